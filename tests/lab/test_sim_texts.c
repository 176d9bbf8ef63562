/* test_sim_texts.c - texts of a simulation are numbered once, however many there are. */
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

int main(void)
{
    RUN(a_text_keeps_its_number_while_the_table_grows);
    return test_end();
}
