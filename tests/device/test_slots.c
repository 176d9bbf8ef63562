/* Slot maps: alignment to chunks, block tables, and what the set finds. */
#include "device/device.h"
#include "support/test.h"

TEST(a_load_begins_on_the_chunk_before_what_is_cached_and_pads_up_to_it)
{
    /* SGLang with pages of 32 and chunks of 64: 96 tokens are there, 256 asked. */
    struct tsri_span s = tsri_span_align(96, 256, 64);
    CHECK_INT(s.first, 64);
    CHECK_INT(s.n_pad, 32);
    CHECK_INT(s.n_tokens, 192);
}

TEST(an_aligned_prefix_needs_no_padding)
{
    struct tsri_span s = tsri_span_align(128, 130, 64);
    CHECK_INT(s.first, 128);
    CHECK_INT(s.n_pad, 0);
    CHECK_INT(s.n_tokens, 2);
}

TEST(nothing_is_asked_when_all_is_cached)
{
    CHECK_INT(tsri_span_align(256, 256, 64).n_tokens, 0);
    CHECK_INT(tsri_span_align(300, 256, 64).n_tokens, 0);
    CHECK_INT(tsri_span_align(300, 256, 64).n_pad, 0);
}

TEST(block_tables_become_slots_from_any_token_on)
{
    int64_t blocks[] = {9, 2, 5}, slots[6];
    CHECK_INT(tsri_slots_of_blocks(slots, blocks, 3, 4, 2, 6), 0);
    int64_t want[] = {38, 39, 8, 9, 10, 11};
    CHECK(memcmp(slots, want, sizeof want) == 0);
}

TEST(tokens_beyond_the_block_table_and_negative_blocks_are_refused)
{
    int64_t blocks[] = {9, -1}, slots[8];
    CHECK_INT(tsri_slots_of_blocks(slots, blocks, 2, 4, 4, 5), TSR_EINVAL);
    CHECK_INT(tsri_slots_of_blocks(slots, blocks, 2, 4, 0, 8), TSR_EINVAL);
    CHECK_INT(tsri_slots_of_blocks(slots, blocks, 2, 0, 0, 1), TSR_EINVAL);
    CHECK_INT(tsri_slots_of_blocks(slots, blocks, 2, 4, UINT32_MAX, UINT32_MAX), TSR_EINVAL);
}

TEST(the_set_agrees_with_an_array_of_flags)
{
    enum { N = 4096, SPACE = 6000 };
    struct tsri_slot_set set;
    CHECK_INT(tsri_slot_set_init(&set, N), 0);
    uint64_t seed = 3;
    for (int round = 0; round < 20; round++) {
        uint8_t seen[SPACE] = {0};
        tsri_slot_set_clear(&set);
        for (int i = 0; i < N; i++) {
            uint64_t slot = test_rand(&seed) % SPACE;
            bool there = tsri_slot_set_add(&set, slot >> 6, (uint64_t)1 << (slot & 63));
            CHECK_INT(there, seen[slot]);
            seen[slot] = 1;
        }
    }
    tsri_slot_set_fini(&set);
}

static int check(const int64_t *slots, uint32_t n, uint64_t n_slots)
{
    struct tsri_slot_set set;
    CHECK_INT(tsri_slot_set_init(&set, n), 0);
    int e = tsri_slots_check(slots, n, n_slots, &set);
    tsri_slot_set_fini(&set);
    return e;
}

TEST(a_slot_given_twice_is_found_wherever_it_stands)
{
    enum { N = 200 };
    int64_t slots[N];
    for (int at = 1; at < N; at++) {
        for (int i = 0; i < N; i++)
            slots[i] = i < 100 ? 50 + i : 1000 - i;
        CHECK_INT(check(slots, N, 2000), 0);
        slots[at] = slots[0];
        CHECK_INT(check(slots, N, 2000), TSR_EINVAL);
        CHECK_HAS(tsr_errmsg(), "duplicate slot");
    }
}

TEST(overlapping_runs_are_found)
{
    int64_t slots[128];
    for (int i = 0; i < 64; i++) {
        slots[i] = 10 + i;
        slots[64 + i] = 73 + i;
    }
    CHECK_INT(check(slots, 128, 1000), TSR_EINVAL);
    slots[63] = 500;
    CHECK_INT(check(slots, 128, 1000), 0);
}

TEST(slots_out_of_range_are_refused_and_skips_are_not)
{
    int64_t slots[] = {-1, 5, -1, -1, 6};
    CHECK_INT(check(slots, 5, 7), 0);
    CHECK_INT(check(slots, 5, 6), TSR_EINVAL);
    slots[1] = -2;
    CHECK_INT(check(slots, 5, 7), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "-2");
    slots[1] = INT64_MAX;
    CHECK_INT(check(slots, 5, 7), TSR_EINVAL);
    slots[1] = INT64_MIN;
    CHECK_INT(check(slots, 5, 7), TSR_EINVAL);
    /* A run that walks over the end of the engine's memory. */
    int64_t run[] = {62, 63, 64, 65};
    CHECK_INT(check(run, 4, 65), TSR_EINVAL);
    CHECK_INT(check(run, 4, 66), 0);
}

int main(void)
{
    RUN(a_load_begins_on_the_chunk_before_what_is_cached_and_pads_up_to_it);
    RUN(an_aligned_prefix_needs_no_padding);
    RUN(nothing_is_asked_when_all_is_cached);
    RUN(block_tables_become_slots_from_any_token_on);
    RUN(tokens_beyond_the_block_table_and_negative_blocks_are_refused);
    RUN(the_set_agrees_with_an_array_of_flags);
    RUN(a_slot_given_twice_is_found_wherever_it_stands);
    RUN(overlapping_runs_are_found);
    RUN(slots_out_of_range_are_refused_and_skips_are_not);
    return test_end();
}
