/* buddy.c - variable-size blocks out of one region, for tokens and page tables of entries: they are
 * small beside KV, contiguous so that a reader compares them in one go, and of any length. A
 * classic buddy allocator: blocks are powers of two of 64 bytes, free blocks merge with their twin,
 * alloc and free are O(log n). Owned by a cache and called under its lock; readers only follow
 * offsets. */
#include "cache/cache.h"

#define UNIT TSRI_BUDDY_UNIT

/* Lives in the first bytes of a free block. */
struct free_block {
    uint32_t prev, next; /* in units; UINT32_MAX ends */
};

static struct free_block *at(const struct tsri_buddy *b, uint32_t unit)
{
    return (struct free_block *)(void *)(b->region.data + (size_t)unit * UNIT);
}

static void list_add(struct tsri_buddy *b, uint32_t unit, uint32_t order)
{
    struct free_block *f = at(b, unit);
    f->prev = UINT32_MAX;
    f->next = b->free[order];
    if (f->next != UINT32_MAX) at(b, f->next)->prev = unit;
    b->free[order] = unit;
    b->order[unit] = (uint8_t)(order + 1);
}

static void list_remove(struct tsri_buddy *b, uint32_t unit, uint32_t order)
{
    struct free_block *f = at(b, unit);
    if (f->prev != UINT32_MAX)
        at(b, f->prev)->next = f->next;
    else
        b->free[order] = f->next;
    if (f->next != UINT32_MAX) at(b, f->next)->prev = f->prev;
    b->order[unit] = 0;
}

static uint32_t order_of(size_t bytes)
{
    uint64_t units = tsri_pow2_up((bytes + UNIT - 1) / UNIT);
    return (uint32_t)__builtin_ctzll(units);
}

int tsri_buddy_init(struct tsri_buddy *b, size_t bytes)
{
    memset(b, 0, sizeof *b);
    uint64_t units = tsri_pow2_up((bytes + UNIT - 1) / UNIT);
    if (units > (uint64_t)1 << TSRI_BUDDY_ORDERS)
        return tsri_fail(TSR_ERANGE, "metadata of %zu bytes is beyond the limit of %zu", bytes,
                         ((size_t)1 << TSRI_BUDDY_ORDERS) * UNIT);
    int e = tsri_region_init(&b->region, units * UNIT);
    if (e) return e;
    e = tsri_region_init(&b->map, units);
    if (e) {
        tsri_region_fini(&b->region);
        return e;
    }
    b->order = b->map.data;
    b->top = (uint32_t)__builtin_ctzll(units);
    for (uint32_t i = 0; i <= TSRI_BUDDY_ORDERS; i++)
        b->free[i] = UINT32_MAX;
    list_add(b, 0, b->top);
    /* Unit 0 is never handed out, so that an offset of 0 can mean none. */
    uint32_t none;
    e = tsri_buddy_alloc(b, 1, &none);
    TSR_ASSERT(e == 0 && none == 0);
    return 0;
}

void tsri_buddy_fini(struct tsri_buddy *b)
{
    tsri_region_fini(&b->map);
    tsri_region_fini(&b->region);
}

size_t tsri_buddy_bytes_max(const struct tsri_buddy *b)
{
    /* Unit 0 is taken, so the largest block that can ever be had is half of all. */
    return ((size_t)UNIT << b->top) / 2;
}

int tsri_buddy_alloc(struct tsri_buddy *b, size_t bytes, uint32_t *out)
{
    if (bytes == 0 || bytes > (size_t)UNIT << b->top) return TSR_ERANGE;
    uint32_t want = order_of(bytes), order = want;
    while (order <= b->top && b->free[order] == UINT32_MAX)
        order++;
    if (order > b->top) return TSR_EFULL;
    uint32_t unit = b->free[order];
    list_remove(b, unit, order);
    while (order > want) {
        order--;
        list_add(b, unit + (1u << order), order);
    }
    b->bytes_used += (size_t)UNIT << want;
    *out = unit;
    return 0;
}

void tsri_buddy_free(struct tsri_buddy *b, uint32_t unit, size_t bytes)
{
    uint32_t order = order_of(bytes);
    TSR_ASSERT(b->order[unit] == 0 && b->bytes_used >= (size_t)UNIT << order);
    b->bytes_used -= (size_t)UNIT << order;
    while (order < b->top) {
        uint32_t twin = unit ^ (1u << order);
        if (b->order[twin] != order + 1) break;
        list_remove(b, twin, order);
        unit &= ~(1u << order);
        order++;
    }
    list_add(b, unit, order);
}

bool tsri_buddy_is_valid(const struct tsri_buddy *b)
{
    size_t bytes_free = 0;
    for (uint32_t order = 0; order <= b->top; order++)
        for (uint32_t u = b->free[order]; u != UINT32_MAX; u = at(b, u)->next) {
            if (b->order[u] != order + 1 || u % (1u << order) != 0) return false;
            bytes_free += (size_t)UNIT << order;
        }
    return bytes_free + b->bytes_used == (size_t)UNIT << b->top;
}
