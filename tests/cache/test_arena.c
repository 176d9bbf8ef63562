/* test_arena.c - blocks of any size never overlap, keep their bytes, merge when they come back, and
 * are refused for the right reason; held against a map with one owner a unit. */
#include "cache/pool.h"

#include "support/test.h"

#define UNITS 2048u
#define BLOCKS_MAX 512u

struct block {
    uint32_t unit, n_units;
    size_t bytes;
};

/* One byte a unit: 0 free, else the number of its block, from 1. */
struct model {
    struct tsri_arena arena;
    uint16_t owner[UNITS];
    struct block blocks[BLOCKS_MAX + 1];
    size_t units_used;
};

static uint32_t units_of(size_t bytes)
{
    return (uint32_t)((bytes + TSRI_ARENA_UNIT - 1) / TSRI_ARENA_UNIT);
}

static uint8_t *bytes_of(struct model *m, uint32_t i)
{
    return m->arena.region.data + (size_t)m->blocks[i].unit * TSRI_ARENA_UNIT;
}

static void open_model(struct model *m)
{
    memset(m, 0, sizeof *m);
    CHECK_INT(tsri_arena_init(&m->arena, UNITS * TSRI_ARENA_UNIT), 0);
    m->owner[0] = UINT16_MAX; /* never handed out */
}

static uint32_t longest_free_run(const struct model *m)
{
    uint32_t best = 0, run = 0;
    for (uint32_t u = 0; u < UNITS; u++) {
        run = m->owner[u] ? 0 : run + 1;
        if (run > best) best = run;
    }
    return best;
}

static int take(struct model *m, uint32_t i, size_t bytes)
{
    struct block *b = &m->blocks[i];
    uint32_t n = units_of(bytes), longest = longest_free_run(m);
    int e = tsri_arena_alloc(&m->arena, bytes, &b->unit);
    if (e) {
        CHECK_INT(e, TSR_EFULL);
        /* Eight classes to a power of two: what is an eighth larger is always found. */
        CHECK(longest < n + n / 8 + 1);
        return e;
    }
    CHECK(b->unit > 0 && b->unit + n <= UNITS);
    for (uint32_t u = b->unit; u < b->unit + n; u++) {
        CHECK(m->owner[u] == 0);
        m->owner[u] = (uint16_t)i;
    }
    b->n_units = n;
    b->bytes = bytes;
    m->units_used += n;
    memset(bytes_of(m, i), (int)(i & 255), bytes);
    return 0;
}

static void give(struct model *m, uint32_t i)
{
    struct block *b = &m->blocks[i];
    for (size_t at = 0; at < b->bytes; at++)
        CHECK(bytes_of(m, i)[at] == (uint8_t)(i & 255));
    for (uint32_t u = b->unit; u < b->unit + b->n_units; u++)
        m->owner[u] = 0;
    m->units_used -= b->n_units;
    tsri_arena_free(&m->arena, b->unit, b->bytes);
    b->n_units = 0;
}

static void run_model(uint64_t seed, size_t bytes_max, uint32_t steps)
{
    static struct model m;
    open_model(&m);
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t i = 1 + (uint32_t)(test_rand(&seed) % BLOCKS_MAX);
        if (m.blocks[i].n_units)
            give(&m, i);
        else
            take(&m, i, 1 + test_rand(&seed) % bytes_max);
        CHECK_INT(m.arena.bytes_used, m.units_used * TSRI_ARENA_UNIT);
        if (step % 64 == 0) CHECK(tsri_arena_is_valid(&m.arena));
    }
    for (uint32_t i = 1; i <= BLOCKS_MAX; i++)
        if (m.blocks[i].n_units) give(&m, i);
    CHECK(tsri_arena_is_valid(&m.arena));
    /* Everything has merged: one block takes it all. */
    CHECK_INT(take(&m, 1, tsri_arena_bytes_max(&m.arena)), 0);
    CHECK(tsri_arena_is_valid(&m.arena));
    tsri_arena_fini(&m.arena);
}

TEST(blocks_never_overlap_and_keep_their_bytes)
{
    for (uint64_t seed = 1; seed <= 6; seed++)
        run_model(seed, 1200, 20000);
}

TEST(blocks_of_one_unit_merge_again)
{
    run_model(77, TSRI_ARENA_UNIT, 20000);
}

TEST(few_large_blocks_merge_again)
{
    run_model(99, UNITS * TSRI_ARENA_UNIT / 5, 20000);
}

TEST(a_full_arena_gives_every_unit_out)
{
    static struct model m;
    open_model(&m);
    for (uint32_t i = 1; i <= 89; i++) /* 2047 = 89 x 23 */
        CHECK_INT(take(&m, i, 23 * TSRI_ARENA_UNIT), 0);
    CHECK_INT(m.arena.bytes_used, tsri_arena_bytes_max(&m.arena));
    CHECK_INT(take(&m, 90, 1), TSR_EFULL);
    CHECK(tsri_arena_is_valid(&m.arena));
    give(&m, 40);
    CHECK_INT(take(&m, 40, 23 * TSRI_ARENA_UNIT - 1), 0);
    tsri_arena_fini(&m.arena);
}

TEST(a_hole_of_exactly_its_size_is_found)
{
    /* Sizes that are no class of their own, so the search in the request's own class decides. */
    static const uint32_t sizes[] = {1, 7, 8, 9, 17, 33, 65, 100, 129, 257, 511};
    for (size_t s = 0; s < TSRI_COUNT(sizes); s++) {
        static struct model m;
        open_model(&m);
        size_t bytes = (size_t)sizes[s] * TSRI_ARENA_UNIT;
        CHECK_INT(take(&m, 1, bytes), 0);
        CHECK_INT(take(&m, 2, TSRI_ARENA_UNIT), 0);
        CHECK_INT(take(&m, 3, (size_t)longest_free_run(&m) * TSRI_ARENA_UNIT), 0);
        give(&m, 1);
        CHECK_INT(take(&m, 1, bytes), 0);
        CHECK_INT(m.arena.bytes_used, tsri_arena_bytes_max(&m.arena));
        tsri_arena_fini(&m.arena);
    }
}

TEST(what_can_never_fit_is_out_of_range_and_what_does_not_fit_now_is_full)
{
    static struct model m;
    open_model(&m);
    uint32_t unit = 12345;
    size_t max = tsri_arena_bytes_max(&m.arena);
    CHECK_INT(tsri_arena_alloc(&m.arena, 0, &unit), TSR_ERANGE);
    CHECK_INT(tsri_arena_alloc(&m.arena, max + 1, &unit), TSR_ERANGE);
    CHECK_INT(tsri_arena_alloc(&m.arena, SIZE_MAX, &unit), TSR_ERANGE);
    CHECK_INT(unit, 12345);
    CHECK_INT(take(&m, 1, 1), 0);
    CHECK_INT(tsri_arena_alloc(&m.arena, max, &unit), TSR_EFULL);
    tsri_arena_fini(&m.arena);
}

TEST(sizes_beyond_the_limits_are_refused_at_init)
{
    struct tsri_arena a;
    CHECK_INT(tsri_arena_init(&a, 0), TSR_ERANGE);
    CHECK_INT(tsri_arena_init(&a, TSRI_ARENA_UNIT), TSR_ERANGE);
    CHECK_INT(tsri_arena_init(&a, ((size_t)TSRI_ARENA_UNITS_MAX + 1) * TSRI_ARENA_UNIT),
              TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "metadata");
    CHECK_INT(tsri_arena_init(&a, 2 * TSRI_ARENA_UNIT), 0);
    uint32_t unit;
    CHECK_INT(tsri_arena_alloc(&a, TSRI_ARENA_UNIT, &unit), 0);
    CHECK_INT(unit, 1);
    CHECK_INT(tsri_arena_alloc(&a, 1, &unit), TSR_EFULL);
    tsri_arena_fini(&a);
}

TEST(the_largest_arena_there_is_knows_its_classes)
{
    struct tsri_arena a;
    int e = tsri_arena_init(&a, (size_t)TSRI_ARENA_UNITS_MAX * TSRI_ARENA_UNIT);
    if (e == TSR_ENOMEM) SKIP("no 128 GiB of address space");
    CHECK_INT(e, 0);
    uint32_t unit, half = TSRI_ARENA_UNITS_MAX / 2;
    CHECK_INT(tsri_arena_alloc(&a, tsri_arena_bytes_max(&a), &unit), 0);
    CHECK_INT(unit, 1);
    tsri_arena_free(&a, unit, tsri_arena_bytes_max(&a));
    CHECK_INT(tsri_arena_alloc(&a, (size_t)half * TSRI_ARENA_UNIT, &unit), 0);
    CHECK_INT(tsri_arena_alloc(&a, (size_t)half * TSRI_ARENA_UNIT, &unit), TSR_EFULL);
    CHECK(tsri_arena_is_valid(&a));
    tsri_arena_fini(&a);
}

TEST(the_walker_sees_a_broken_list)
{
    static struct model m;
    open_model(&m);
    CHECK_INT(take(&m, 1, 100), 0);
    CHECK(tsri_arena_is_valid(&m.arena));
    m.arena.bytes_used += TSRI_ARENA_UNIT;
    CHECK(!tsri_arena_is_valid(&m.arena));
    m.arena.bytes_used -= TSRI_ARENA_UNIT;
    m.arena.map[0] ^= 2;
    CHECK(!tsri_arena_is_valid(&m.arena));
    tsri_arena_fini(&m.arena);
}

int main(void)
{
    RUN(blocks_never_overlap_and_keep_their_bytes);
    RUN(blocks_of_one_unit_merge_again);
    RUN(few_large_blocks_merge_again);
    RUN(a_full_arena_gives_every_unit_out);
    RUN(a_hole_of_exactly_its_size_is_found);
    RUN(what_can_never_fit_is_out_of_range_and_what_does_not_fit_now_is_full);
    RUN(sizes_beyond_the_limits_are_refused_at_init);
    RUN(the_largest_arena_there_is_knows_its_classes);
    RUN(the_walker_sees_a_broken_list);
    return test_end();
}
