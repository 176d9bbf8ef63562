/* index.c - key to entry id. Readers never block and never write; one writer at a time, under the
 * cache's lock.
 *
 * The table is an array of cache lines. A line holds seven slots of 8 bytes (32 bits of the key, id
 * + 1) and a count of the keys that would have liked to live here or before but had to go on. A key
 * lives in the first line from its home that had room, and never moves, so a reader sees it or does
 * not; it stops at a line whose count is 0. Deleting needs no tombstones: the counts along the way
 * go down.
 *
 * A slot only nominates. The caller compares the whole key, which stands in the entry. */
#include "cache/index.h"

/* Lines are half full at most: 7 slots, 3.5 keys, 18.3 bytes a key. Any number of lines will do, so
 * that this holds for every entries_max and not only for those just below a power of two. */
#define KEYS_PER_TWO_LINES 7u

static uint64_t slot_make(struct tsri_key key, uint32_t id)
{
    return (key.hi & 0xffffffff00000000u) | (id + 1u);
}

/* The i-th line from a home, around the end; i <= n_lines. */
static struct tsri_line *line_at(const struct tsri_index *x, uint64_t home, uint64_t i)
{
    uint64_t at = home + i;
    return &x->lines[at < x->n_lines ? at : at - x->n_lines];
}

int tsri_index_init(struct tsri_index *x, uint32_t keys_max)
{
    memset(x, 0, sizeof *x);
    uint64_t n = ((uint64_t)keys_max * 2 + KEYS_PER_TWO_LINES - 1) / KEYS_PER_TWO_LINES;
    if (n == 0) n = 1;
    int e = tsri_region_init(&x->region, n * sizeof(struct tsri_line));
    if (e) return e;
    x->lines = (struct tsri_line *)(void *)x->region.data;
    x->n_lines = (uint32_t)n;
    return 0;
}

void tsri_index_fini(struct tsri_index *x)
{
    tsri_region_fini(&x->region);
}

uint32_t tsri_index_find(const struct tsri_index *x, const struct tsri_entry *entries,
                         struct tsri_key key)
{
    uint64_t tag = key.hi >> 32, home = tsri_index_home(x, key);
    for (uint64_t i = 0; i < x->n_lines; i++) {
        const struct tsri_line *line = line_at(x, home, i);
        for (uint32_t s = 0; s < TSRI_LINE_SLOTS; s++) {
            uint64_t slot = atomic_load_explicit(&line->slots[s], memory_order_acquire);
            if (slot >> 32 != tag || slot == 0) continue;
            uint32_t id = (uint32_t)slot - 1;
            if (tsri_entry_has_key(&entries[id], key)) return id;
        }
        if (atomic_load_explicit(&line->n_passed, memory_order_acquire) == 0) break;
    }
    return TSRI_ID_NONE;
}

uint32_t tsri_index_nominate(const struct tsri_index *x, const struct tsri_entry *entries,
                             struct tsri_key key)
{
    uint64_t tag = key.hi >> 32;
    const struct tsri_line *line = &x->lines[tsri_index_home(x, key)];
    for (uint32_t s = 0; s < TSRI_LINE_SLOTS; s++) {
        uint64_t slot = atomic_load_explicit(&line->slots[s], memory_order_acquire);
        if (slot >> 32 != tag || slot == 0) continue;
        __builtin_prefetch(&entries[(uint32_t)slot - 1]);
        return (uint32_t)slot - 1;
    }
    if (atomic_load_explicit(&line->n_passed, memory_order_acquire) == 0) return TSRI_ID_NONE;
    return tsri_index_find(x, entries, key);
}

void tsri_index_insert(struct tsri_index *x, struct tsri_key key, uint32_t id)
{
    uint64_t home = tsri_index_home(x, key);
    for (uint64_t i = 0; i < x->n_lines; i++) {
        struct tsri_line *line = line_at(x, home, i);
        for (uint32_t s = 0; s < TSRI_LINE_SLOTS; s++)
            if (atomic_load_explicit(&line->slots[s], memory_order_relaxed) == 0) {
                atomic_store_explicit(&line->slots[s], slot_make(key, id), memory_order_release);
                return;
            }
        atomic_fetch_add_explicit(&line->n_passed, 1, memory_order_release);
    }
    tsri_assert_failed("the index is full", __FILE__, __LINE__); /* ids run out first */
}

void tsri_index_remove(struct tsri_index *x, struct tsri_key key, uint32_t id)
{
    uint64_t slot = slot_make(key, id), home = tsri_index_home(x, key);
    for (uint64_t i = 0; i < x->n_lines; i++) {
        struct tsri_line *line = line_at(x, home, i);
        for (uint32_t s = 0; s < TSRI_LINE_SLOTS; s++)
            if (atomic_load_explicit(&line->slots[s], memory_order_relaxed) == slot) {
                atomic_store_explicit(&line->slots[s], 0, memory_order_release);
                for (uint64_t j = 0; j < i; j++)
                    atomic_fetch_sub_explicit(&line_at(x, home, j)->n_passed, 1,
                                              memory_order_release);
                return;
            }
    }
    tsri_assert_failed("removing a key that is not in the index", __FILE__, __LINE__);
}
