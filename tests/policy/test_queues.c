/* test_queues.c - the queues do what plain arrays do, and know how much is in each. */
#include "policy/ranks.h"

#include "support/test.h"

#define IDS 64u

static uint8_t size_of(uint32_t units)
{
    return tsri_mark_make(0, units, 0).size;
}

TEST(small_sizes_are_kept_exactly_and_large_ones_to_a_thirtysecond)
{
    for (uint32_t units = 0; units < 32; units++)
        CHECK_INT(tsri_mark_units(size_of(units)), units);
    for (uint32_t units = 32; units < 400000; units += 1 + units / 50) {
        uint32_t kept = tsri_mark_units(size_of(units));
        uint32_t off = kept > units ? kept - units : units - kept;
        CHECK(off <= units / 32);
        CHECK(size_of(units) <= size_of(units + 1));
    }
    CHECK_INT(size_of(UINT32_MAX), 255);
    CHECK_INT(tsri_mark_units(255), 507904);
}

TEST(the_whole_hash_counts)
{
    uint32_t zero = tsri_mark_make(0, 1, 0).hash;
    for (uint32_t bit = 0; bit < 64; bit++) {
        uint32_t hash = tsri_mark_make((uint64_t)1 << bit, 1, 0).hash;
        CHECK(hash != zero && hash <= 0xffffffu);
    }
}

TEST(a_mark_comes_back_as_it_was_given)
{
    struct tsri_queues q;
    CHECK_INT(tsri_queues_init(&q, IDS), 0);
    struct tsri_rank_mark mark = tsri_mark_make(0x123456789abcdef0u, 21, 5);
    tsri_queues_insert(&q, 7, mark, 1);
    tsri_queues_move(&q, 7, 2);
    struct tsri_rank_mark got = tsri_queues_mark(&q, 7);
    CHECK_INT(got.hash, mark.hash);
    CHECK_INT(got.size, 21);
    CHECK_INT(got.tag, 5);
    tsri_queues_tag(&q, 7, 2);
    CHECK_INT(tsri_queues_mark(&q, 7).tag, 2);
    CHECK_INT(tsri_queues_mark(&q, 7).hash, mark.hash);
    tsri_queues_fini(&q);
}

/* Queues as arrays, oldest first. */
struct naive {
    uint32_t ids[TSRI_QUEUES][IDS], n[TSRI_QUEUES];
    uint32_t units[IDS];
};

static void naive_remove(struct naive *m, uint32_t id)
{
    for (uint32_t i = 0; i < TSRI_QUEUES; i++)
        for (uint32_t at = 0; at < m->n[i]; at++)
            if (m->ids[i][at] == id) {
                memmove(&m->ids[i][at], &m->ids[i][at + 1],
                        (m->n[i] - at - 1) * sizeof m->ids[i][0]);
                m->n[i]--;
                return;
            }
}

static void naive_add(struct naive *m, uint32_t id, uint32_t queue)
{
    m->ids[queue][m->n[queue]++] = id;
}

static void check_same(const struct tsri_queues *q, const struct naive *m)
{
    uint32_t order[IDS], n = 0;
    uint64_t units = 0;
    size_t n_order = tsri_queues_order(q, order, IDS);
    for (uint32_t i = 0; i < TSRI_QUEUES; i++) {
        uint64_t of_queue = 0;
        CHECK_INT(q->queues[i].n, m->n[i]);
        for (uint32_t j = 0; j < m->n[i]; j++) {
            CHECK_INT(order[n], m->ids[i][j]);
            of_queue += m->units[m->ids[i][j]];
            n++;
        }
        CHECK_INT(q->queues[i].units, of_queue);
        units += of_queue;
    }
    CHECK_INT(n_order, n);
    CHECK_INT(tsri_queues_n(q), n);
    CHECK_INT(tsri_queues_units(q), units);
}

TEST(they_do_what_plain_arrays_do)
{
    struct tsri_queues q;
    struct naive m = {.n = {0}};
    uint64_t in = 0, seed = 5;
    CHECK_INT(tsri_queues_init(&q, IDS), 0);
    for (uint32_t step = 0; step < 20000; step++) {
        uint32_t id = (uint32_t)(test_rand(&seed) % IDS);
        uint32_t queue = (uint32_t)(test_rand(&seed) % TSRI_QUEUES);
        if (!(in >> id & 1)) {
            m.units[id] = (uint32_t)(test_rand(&seed) % 32);
            tsri_queues_insert(&q, id, tsri_mark_make(id, m.units[id], 0), queue);
            naive_add(&m, id, queue);
            in |= (uint64_t)1 << id;
        } else if (test_rand(&seed) % 3 == 0) {
            tsri_queues_remove(&q, id);
            naive_remove(&m, id);
            in &= ~((uint64_t)1 << id);
        } else {
            tsri_queues_move(&q, id, queue);
            naive_remove(&m, id);
            naive_add(&m, id, queue);
        }
        check_same(&q, &m);
    }
    tsri_queues_fini(&q);
}

TEST(order_writes_no_more_than_asked_for)
{
    struct tsri_queues q;
    uint32_t order[4] = {77, 77, 77, 77};
    CHECK_INT(tsri_queues_init(&q, IDS), 0);
    for (uint32_t id = 0; id < 10; id++)
        tsri_queues_insert(&q, id, tsri_mark_make(id, 1, 0), id % 2);
    CHECK_INT(tsri_queues_order(&q, order, 3), 3);
    CHECK_INT(order[3], 77);
    tsri_queues_fini(&q);
}

TEST(more_ids_than_a_rank_can_name_are_refused)
{
    struct tsri_queues q;
    CHECK_INT(tsri_queues_init(&q, TSRI_RANK_NONE + 1), TSR_ERANGE);
    tsri_queues_fini(&q);
}

int main(void)
{
    RUN(small_sizes_are_kept_exactly_and_large_ones_to_a_thirtysecond);
    RUN(the_whole_hash_counts);
    RUN(a_mark_comes_back_as_it_was_given);
    RUN(they_do_what_plain_arrays_do);
    RUN(order_writes_no_more_than_asked_for);
    RUN(more_ids_than_a_rank_can_name_are_refused);
    return test_end();
}
