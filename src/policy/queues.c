/* queues.c - doubly linked queues over ids, in one array of ranks. An id is in one queue at most;
 * whoever owns the queues knows which ids are in. Each queue knows how many units its ids take, so
 * that a policy can give it a share of the capacity. */
#include "policy/ranks.h"

struct tsri_rank_mark tsri_mark_make(uint64_t hash, uint32_t units, uint32_t tag)
{
    struct tsri_rank_mark m = {.hash = (hash ^ hash >> 24 ^ hash >> 48) & 0xffffffu,
                               .size = (uint8_t)units,
                               .tag = (uint8_t)tag};
    TSR_ASSERT(tag <= TSRI_TAG_MAX);
    if (units < 32) return m;
    uint32_t shift = 27u - (uint32_t)__builtin_clz(units); /* leaves five bits */
    uint64_t rounded = ((uint64_t)units + (1u << (shift - 1))) >> shift;
    uint64_t code = (shift + 1) * 16 + (rounded - 16); /* 32, too, comes out right: 16 << 1 */
    m.size = (uint8_t)(code < 255 ? code : 255);
    return m;
}

int tsri_queues_init(struct tsri_queues *q, uint32_t ids_max)
{
    memset(q, 0, sizeof *q);
    if (ids_max > TSRI_RANK_NONE)
        return tsri_fail(TSR_ERANGE, "policy: %u entries, limit %u", ids_max, TSRI_RANK_NONE);
    q->ids_max = ids_max;
    for (uint32_t i = 0; i < TSRI_QUEUES; i++)
        q->queues[i].oldest = q->queues[i].newest = TSRI_RANK_NONE;
    int e = tsri_region_init(&q->region, (size_t)ids_max * sizeof q->ranks[0]);
    q->ranks = (struct tsri_rank *)(void *)q->region.data;
    return e;
}

void tsri_queues_fini(struct tsri_queues *q)
{
    tsri_region_fini(&q->region);
}

/* The masks tell the compiler that nothing is lost. */
static void set_prev(struct tsri_queues *q, uint32_t id, uint32_t prev)
{
    q->ranks[id].prev = prev & TSRI_RANK_NONE;
}

static void set_next(struct tsri_queues *q, uint32_t id, uint32_t next)
{
    q->ranks[id].next = next & TSRI_RANK_NONE;
}

static void add(struct tsri_queues *q, uint32_t id, uint32_t queue)
{
    struct tsri_queue *to = &q->queues[queue];
    set_prev(q, id, to->newest);
    set_next(q, id, TSRI_RANK_NONE);
    q->ranks[id].queue = queue & 7u;
    if (to->newest != TSRI_RANK_NONE)
        set_next(q, to->newest, id);
    else
        to->oldest = id;
    to->newest = id;
    to->n++;
    to->units += tsri_mark_units(q->ranks[id].size);
}

void tsri_queues_insert(struct tsri_queues *q, uint32_t id, struct tsri_rank_mark mark,
                        uint32_t queue)
{
    TSR_ASSERT(id < q->ids_max && queue < TSRI_QUEUES);
    q->ranks[id].hash = mark.hash & 0xffffffu;
    q->ranks[id].size = mark.size;
    tsri_queues_tag(q, id, mark.tag);
    add(q, id, queue);
}

void tsri_queues_remove(struct tsri_queues *q, uint32_t id)
{
    TSR_ASSERT(id < q->ids_max);
    const struct tsri_rank *rank = &q->ranks[id];
    struct tsri_queue *from = &q->queues[rank->queue];
    TSR_ASSERT(from->n > 0);
    if (rank->prev != TSRI_RANK_NONE)
        set_next(q, rank->prev, rank->next);
    else
        from->oldest = rank->next;
    if (rank->next != TSRI_RANK_NONE)
        set_prev(q, rank->next, rank->prev);
    else
        from->newest = rank->prev;
    from->n--;
    from->units -= tsri_mark_units(rank->size);
}

void tsri_queues_move(struct tsri_queues *q, uint32_t id, uint32_t queue)
{
    tsri_queues_remove(q, id);
    add(q, id, queue);
}

void tsri_queues_tag(struct tsri_queues *q, uint32_t id, uint32_t tag)
{
    q->ranks[id].tag = tag & TSRI_TAG_MAX;
}

struct tsri_rank_mark tsri_queues_mark(const struct tsri_queues *q, uint32_t id)
{
    const struct tsri_rank *rank = &q->ranks[id];
    return (struct tsri_rank_mark){.hash = rank->hash, .size = rank->size, .tag = rank->tag};
}

uint64_t tsri_queues_units(const struct tsri_queues *q)
{
    uint64_t units = 0;
    for (uint32_t i = 0; i < TSRI_QUEUES; i++)
        units += q->queues[i].units;
    return units;
}

uint32_t tsri_queues_n(const struct tsri_queues *q)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < TSRI_QUEUES; i++)
        n += q->queues[i].n;
    return n;
}

size_t tsri_queues_order(const struct tsri_queues *q, uint32_t *ids, size_t ids_max)
{
    size_t n = 0;
    for (uint32_t i = 0; i < TSRI_QUEUES; i++) {
        uint32_t id = q->queues[i].oldest;
        for (; id != TSRI_RANK_NONE && n < ids_max; id = q->ranks[id].next)
            ids[n++] = id;
    }
    return n;
}
