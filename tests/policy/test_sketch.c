/* test_sketch.c - counts are never too low, seldom too high, and fade. */
#include "policy/ranks.h"

#include "support/test.h"

TEST(a_count_is_never_too_low_and_ends_at_its_limit)
{
    struct tsri_sketch s;
    CHECK_INT(tsri_sketch_init(&s, 1000), 0);
    for (uint32_t key = 0; key < 1000; key++)
        for (uint32_t i = 0; i < key % 20; i++)
            tsri_sketch_add(&s, key, 1000000);
    for (uint32_t key = 0; key < 1000; key++) {
        uint32_t count = tsri_sketch_count(&s, key);
        CHECK(count >= tsri_min_u32(key % 20, TSRI_SKETCH_MAX));
        CHECK(count <= TSRI_SKETCH_MAX);
    }
    tsri_sketch_fini(&s);
}

TEST(few_counts_are_too_high)
{
    struct tsri_sketch s;
    uint32_t n_wrong = 0, keys = 20000;
    CHECK_INT(tsri_sketch_init(&s, keys), 0);
    for (uint32_t key = 0; key < keys; key++)
        for (uint32_t i = 0; i < 1 + key % 4; i++)
            tsri_sketch_add(&s, key, UINT32_MAX);
    for (uint32_t key = 0; key < keys; key++)
        n_wrong += tsri_sketch_count(&s, key) != 1 + key % 4;
    CHECK(n_wrong < keys / 4);
    /* Keys that never came are mostly known as such. */
    n_wrong = 0;
    for (uint32_t key = keys; key < 2 * keys; key++)
        n_wrong += tsri_sketch_count(&s, key) > 1;
    CHECK(n_wrong < keys / 4);
    tsri_sketch_fini(&s);
}

TEST(counts_are_halved_after_sixteen_uses_for_each_entry)
{
    struct tsri_sketch s;
    uint32_t n_entries = 1000;
    CHECK_INT(tsri_sketch_init(&s, n_entries), 0);
    for (uint32_t i = 0; i < 12; i++)
        tsri_sketch_add(&s, 7, n_entries);
    CHECK_INT(tsri_sketch_count(&s, 7), 12);
    for (uint32_t i = 12; i < 16 * n_entries - 1; i++)
        tsri_sketch_add(&s, 8, n_entries);
    CHECK_INT(tsri_sketch_count(&s, 7), 12);
    tsri_sketch_add(&s, 8, n_entries);
    CHECK_INT(tsri_sketch_count(&s, 7), 6);
    CHECK_INT(tsri_sketch_count(&s, 8), TSRI_SKETCH_MAX / 2);
    /* The next time comes in half the uses, since half of them still count. */
    for (uint32_t i = 0; i < 8 * n_entries; i++)
        tsri_sketch_add(&s, 8, n_entries);
    CHECK_INT(tsri_sketch_count(&s, 7), 3);
    tsri_sketch_fini(&s);
}

TEST(a_cache_of_few_entries_does_not_forget_at_once)
{
    struct tsri_sketch s;
    CHECK_INT(tsri_sketch_init(&s, 10), 0);
    for (uint32_t i = 0; i < 4000; i++)
        tsri_sketch_add(&s, 7, 1);
    CHECK_INT(tsri_sketch_count(&s, 7), TSRI_SKETCH_MAX);
    tsri_sketch_fini(&s);
}

int main(void)
{
    RUN(a_count_is_never_too_low_and_ends_at_its_limit);
    RUN(few_counts_are_too_high);
    RUN(counts_are_halved_after_sixteen_uses_for_each_entry);
    RUN(a_cache_of_few_entries_does_not_forget_at_once);
    return test_end();
}
