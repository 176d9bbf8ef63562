/* test_sim_texts.c - texts of a simulation are numbered once, however many there are, until nobody has them. */
#include "lab/simulate.h"

#include "support/test.h"

TEST(a_text_keeps_its_number_while_the_table_grows)
{
    struct tsri_sim_texts t = {0};
    uint32_t text;
    for (uint32_t i = 0; i < 10000; i++) {
        CHECK(tsri_sim_texts_add(&t, (struct tsri_key){i % 64, i}, i + 1, &text) == 0);
        CHECK(text == i);
    }
    for (uint32_t i = 0; i < 10000; i++) {
        CHECK(tsri_sim_texts_add(&t, (struct tsri_key){i % 64, i}, 7, &text) == 0);
        CHECK(text == i && t.all[i].n_tokens == i + 1 && t.all[i].redis == TSRI_SIM_NONE);
    }
    CHECK(t.n == 10000);
    tsri_sim_texts_fini(&t);
    CHECK(t.n == 0 && !t.all && !t.table);
}

/* Keys of 64 homes, so that most are not at theirs. */
static uint32_t add(struct tsri_sim_texts *t, uint32_t i)
{
    uint32_t text = TSRI_SIM_NONE;
    CHECK(tsri_sim_texts_add(t, (struct tsri_key){i % 64, i}, i + 1, &text) == 0);
    return text;
}

TEST(a_text_that_nobody_holds_is_forgotten_and_the_others_are_found)
{
    struct tsri_sim_texts t = {0};
    for (uint32_t i = 0; i < 1000; i++)
        CHECK(add(&t, i) == i);
    tsri_sim_texts_hold(&t, 500);
    for (uint32_t i = 0; i < 1000; i += 2)
        tsri_sim_texts_release(&t, i);
    for (uint32_t i = 1; i < 1000; i += 2)
        CHECK(add(&t, i) == i);
    CHECK(add(&t, 500) == 500 && t.n_free == 499 && t.n_added == 1000);
    /* New ones get the numbers of the forgotten, and nothing of what these were. */
    t.all[500].n_asked = 9;
    for (uint32_t i = 2000; i < 2499; i++) {
        uint32_t text = add(&t, i);
        CHECK(text < 1000 && text % 2 == 0 && text != 500);
        CHECK(t.all[text].n_tokens == i + 1 && !t.all[text].n_asked && t.all[text].n_held == 1);
        CHECK(t.all[text].redis == TSRI_SIM_NONE);
    }
    CHECK(t.n == 1000 && t.n_free == 0 && add(&t, 9999) == 1000);
    tsri_sim_texts_fini(&t);
}

TEST(the_memory_of_a_long_run_is_that_of_the_text_it_holds)
{
    struct tsri_sim_texts t = {0};
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t text = add(&t, i);
        tsri_sim_texts_release(&t, text);
    }
    CHECK(t.n == 1 && t.n_added == 100000 && t.mask < 4096);
    tsri_sim_texts_fini(&t);
}

TEST(the_hottest_texts_are_counted_also_when_they_are_forgotten)
{
    struct tsri_sim_texts t = {0};
    uint64_t hot[TSRI_SIM_HOT], reads;
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t text = add(&t, i);
        t.all[text].n_asked = 1 + i * 7 % 40; /* 1 to 40, in no order */
        t.all[text].n_redis_reads = i & 0x7FFFFFFF;
    }
    for (uint32_t i = 0; i < 40; i += 3)
        tsri_sim_texts_release(&t, i);
    tsri_sim_texts_hot(&t, hot, &reads);
    for (uint32_t i = 0; i < TSRI_SIM_HOT; i++)
        CHECK(hot[i] == 40 - i);
    CHECK(reads == 39);
    tsri_sim_texts_fini(&t);
}

int main(void)
{
    RUN(a_text_that_nobody_holds_is_forgotten_and_the_others_are_found);
    RUN(the_memory_of_a_long_run_is_that_of_the_text_it_holds);
    RUN(the_hottest_texts_are_counted_also_when_they_are_forgotten);
    RUN(a_text_keeps_its_number_while_the_table_grows);
    return test_end();
}
