/* bench_index.c - one hit in an index of a million keys, each key depending on the entry found
 * before, against following a random chain of cache lines through memory of the same size and page
 * size: what the memory itself costs. */
#include "cache/index.h"
#include "support/bench.h"

#define N_KEYS (1u << 20)
#define N_STEPS 4096u

struct work {
    struct tsri_index index;
    struct tsri_region entries_region, chase_region;
    struct tsri_entry *entries;
    struct {
        _Alignas(64) uint64_t next;
    } * lines;
    uint64_t n_lines;
    uint64_t at, chase_at, n_steps;
};

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static struct tsri_key key_of(uint64_t i)
{
    return (struct tsri_key){mix(i * 2 + 1), mix(i * 2 + 2)};
}

static void look_up(void *arg)
{
    struct work *w = arg;
    uint64_t i = w->at;
    for (uint32_t step = 0; step < N_STEPS; step++) {
        uint32_t id = tsri_index_find(&w->index, w->entries, key_of(i));
        i = mix(w->n_steps++ + w->entries[id].n_tokens) % N_KEYS; /* depends on what was found */
    }
    w->at = i;
}

static void chase(void *arg)
{
    struct work *w = arg;
    uint64_t at = w->chase_at;
    for (uint32_t step = 0; step < N_STEPS; step++)
        at = w->lines[at].next;
    w->chase_at = at;
}

/* One cycle through all lines in random order (Sattolo). */
static void make_chain(struct work *w)
{
    for (uint64_t i = 0; i < w->n_lines; i++)
        w->lines[i].next = i;
    for (uint64_t i = w->n_lines - 1; i > 0; i--) {
        uint64_t j = mix(i + 99) % i, t = w->lines[i].next;
        w->lines[i].next = w->lines[j].next;
        w->lines[j].next = t;
    }
}

int main(int argc, char **argv)
{
    bench_init("bench_index", argc, argv);
    struct work w = {0};
    BENCH_CHECK(tsri_index_init(&w.index, N_KEYS) == 0);
    BENCH_CHECK(tsri_region_init(&w.entries_region, N_KEYS * sizeof *w.entries) == 0);
    w.entries = (struct tsri_entry *)(void *)w.entries_region.data;
    for (uint32_t i = 0; i < N_KEYS; i++) {
        struct tsri_key key = key_of(i);
        atomic_store(&w.entries[i].key_lo, key.lo);
        atomic_store(&w.entries[i].key_hi, key.hi);
        w.entries[i].n_tokens = (uint32_t)mix(i + 7) % N_KEYS;
        tsri_index_insert(&w.index, key, i);
    }
    for (uint32_t i = 0; i < N_KEYS; i++)
        BENCH_CHECK(tsri_index_find(&w.index, w.entries, key_of(i)) == i);
    size_t bytes = w.index.n_lines * sizeof(struct tsri_line) + N_KEYS * sizeof *w.entries;
    BENCH_CHECK(tsri_region_init(&w.chase_region, bytes) == 0);
    w.lines = (void *)w.chase_region.data;
    w.n_lines = bytes / 64;
    make_chain(&w);

    bench_pair("bench_index", "dependent hits in 1M keys", look_up, chase, &w, 31, 3.0);
    /* Beyond its tokens: line slots, the entry, and what the policy adaptive takes: a rank of 12
     * bytes and one of its sketch. */
    bench_report("index bytes an entry", (double)bytes / N_KEYS + 13, "bytes", 0, 96, false);
    tsri_index_fini(&w.index);
    tsri_region_fini(&w.entries_region);
    tsri_region_fini(&w.chase_region);
    return bench_end();
}
