/* arena.c - variable-size blocks out of one region, for the tokens and page tables of entries: they
 * are small beside KV, contiguous so that a reader compares them in one go, and of any length.
 *
 * Segregated fit in units of 64 bytes: free blocks hang in lists by size class (eight classes to a
 * power of two), a bit map finds the first list that has one, and neighbours merge when they are
 * freed. Alloc and free are O(1) and a block wastes less than a unit. A power-of-two buddy was
 * tried and dropped: entries of 256 or 512 tokens are just over one and wasted half. What must be
 * known of a free block stands in its own first and last unit, so blocks in use have no header.
 * Owned by a cache and called under its lock; readers only follow offsets. */
#include "cache/pool.h"

#include <sys/mman.h>

#define UNIT TSRI_ARENA_UNIT
#define NONE UINT32_MAX
#define END_BYTES ((size_t)2 << 20) /* a huge page */
/* Blocks of the request's own class that are tried when no larger class has any. */
#define TRIES 16u

enum { FREE_FIRST = 1, FREE_LAST = 2 }; /* marks of a unit */

/* The first unit of a free block. Its last four bytes hold its size again, for the neighbour
 * behind. */
struct free_block {
    uint32_t n_units, prev, next;
};

static struct free_block *at(const struct tsri_arena *a, uint32_t unit)
{
    return (struct free_block *)(void *)(a->region.data + (size_t)unit * UNIT);
}

static uint32_t *tail_of(const struct tsri_arena *a, uint32_t end)
{
    return (uint32_t *)(void *)(a->region.data + (size_t)end * UNIT - sizeof(uint32_t));
}

static uint32_t units_of(size_t bytes)
{
    return (uint32_t)((bytes + UNIT - 1) / UNIT);
}

static uint32_t class_of(uint32_t n)
{
    if (n < 8) return n;
    uint32_t log = 31 - (uint32_t)__builtin_clz(n);
    return (log - 2) * 8 + ((n >> (log - 3)) & 7);
}

/* The first class all of whose blocks have n units. */
static uint32_t class_above(uint32_t n)
{
    if (n < 8) return n;
    uint32_t log = 31 - (uint32_t)__builtin_clz(n);
    return class_of(n + (1u << (log - 3)) - 1);
}

static void list_add(struct tsri_arena *a, uint32_t unit, uint32_t n)
{
    uint32_t c = class_of(n);
    *at(a, unit) = (struct free_block){n, NONE, a->heads[c]};
    *tail_of(a, unit + n) = n;
    if (a->heads[c] != NONE) at(a, a->heads[c])->prev = unit;
    a->heads[c] = unit;
    a->map[c / 64] |= (uint64_t)1 << c % 64;
    a->marks[unit] |= FREE_FIRST;
    a->marks[unit + n - 1] |= FREE_LAST;
}

static void list_remove(struct tsri_arena *a, uint32_t unit)
{
    struct free_block f = *at(a, unit);
    uint32_t c = class_of(f.n_units);
    if (f.prev != NONE)
        at(a, f.prev)->next = f.next;
    else
        a->heads[c] = f.next;
    if (f.next != NONE) at(a, f.next)->prev = f.prev;
    if (a->heads[c] == NONE) a->map[c / 64] &= ~((uint64_t)1 << c % 64);
    a->marks[unit] &= (uint8_t)~FREE_FIRST;
    a->marks[unit + f.n_units - 1] &= (uint8_t)~FREE_LAST;
}

/* The first and the last bytes are written at once: in huge pages an idle cache would have 4 MiB of
 * them resident. */
static void small_ends(struct tsri_region *r)
{
    if (r->bytes < 2 * END_BYTES) return;
    madvise(r->data, END_BYTES, MADV_NOHUGEPAGE);
    madvise(r->data + r->bytes - END_BYTES, END_BYTES, MADV_NOHUGEPAGE);
}

int tsri_arena_init(struct tsri_arena *a, size_t bytes)
{
    memset(a, 0, sizeof *a);
    uint64_t units = bytes / UNIT;
    if (units < 2 || units > TSRI_ARENA_UNITS_MAX)
        return tsri_fail(TSR_ERANGE, "metadata of %zu bytes, from %u to %llu", bytes, 2 * UNIT,
                         (unsigned long long)TSRI_ARENA_UNITS_MAX * UNIT);
    int e = tsri_region_init(&a->region, units * UNIT);
    if (e) return e;
    e = tsri_region_init(&a->marks_region, units);
    if (e) {
        tsri_region_fini(&a->region);
        return e;
    }
    a->marks = a->marks_region.data;
    small_ends(&a->region);
    small_ends(&a->marks_region);
    a->n_units = (uint32_t)units;
    for (uint32_t c = 0; c < TSRI_ARENA_CLASSES; c++)
        a->heads[c] = NONE;
    /* Unit 0 is never handed out, so that an offset of 0 can mean none. */
    list_add(a, 1, a->n_units - 1);
    return 0;
}

void tsri_arena_fini(struct tsri_arena *a)
{
    tsri_region_fini(&a->marks_region);
    tsri_region_fini(&a->region);
}

size_t tsri_arena_bytes_max(const struct tsri_arena *a)
{
    return (size_t)(a->n_units - 1) * UNIT;
}

static uint32_t find_fit(const struct tsri_arena *a, uint32_t n)
{
    uint32_t c = class_above(n);
    if (c < TSRI_ARENA_CLASSES) {
        uint64_t word = a->map[c / 64] & ~(uint64_t)0 << c % 64;
        for (uint32_t i = c / 64; i < TSRI_COUNT(a->map);
             word = ++i < TSRI_COUNT(a->map) ? a->map[i] : 0)
            if (word) return a->heads[i * 64 + (uint32_t)__builtin_ctzll(word)];
    }
    uint32_t unit = a->heads[class_of(n)];
    for (uint32_t i = 0; i < TRIES && unit != NONE; i++, unit = at(a, unit)->next)
        if (at(a, unit)->n_units >= n) return unit;
    return NONE;
}

int tsri_arena_alloc(struct tsri_arena *a, size_t bytes, uint32_t *out)
{
    if (bytes == 0 || bytes > tsri_arena_bytes_max(a)) return TSR_ERANGE;
    uint32_t n = units_of(bytes), unit = find_fit(a, n);
    if (unit == NONE) return TSR_EFULL;
    uint32_t had = at(a, unit)->n_units;
    list_remove(a, unit);
    if (had > n) list_add(a, unit + n, had - n);
    a->bytes_used += (size_t)n * UNIT;
    *out = unit;
    return 0;
}

void tsri_arena_free(struct tsri_arena *a, uint32_t unit, size_t bytes)
{
    uint32_t n = units_of(bytes), end = unit + n;
    TSR_ASSERT(unit > 0 && end <= a->n_units && a->bytes_used >= (size_t)n * UNIT);
    TSR_ASSERT(!(a->marks[unit] & FREE_FIRST) && !(a->marks[end - 1] & FREE_LAST));
    a->bytes_used -= (size_t)n * UNIT;
    if (a->marks[unit - 1] & FREE_LAST) {
        unit -= *tail_of(a, unit);
        list_remove(a, unit);
    }
    if (end < a->n_units && a->marks[end] & FREE_FIRST) {
        uint32_t behind = at(a, end)->n_units;
        list_remove(a, end);
        end += behind;
    }
    list_add(a, unit, end - unit);
}

bool tsri_arena_is_valid(const struct tsri_arena *a)
{
    size_t n_free = 0;
    for (uint32_t c = 0; c < TSRI_ARENA_CLASSES; c++) {
        if ((a->heads[c] != NONE) != (a->map[c / 64] >> c % 64 & 1)) return false;
        for (uint32_t u = a->heads[c]; u != NONE; u = at(a, u)->next) {
            uint32_t n = at(a, u)->n_units;
            if (class_of(n) != c || u + n > a->n_units || *tail_of(a, u + n) != n) return false;
            if (!(a->marks[u] & FREE_FIRST) || !(a->marks[u + n - 1] & FREE_LAST)) return false;
            if (u + n < a->n_units && a->marks[u + n] & FREE_FIRST) return false; /* not merged */
            n_free += n;
        }
    }
    return n_free * UNIT + a->bytes_used == tsri_arena_bytes_max(a);
}
