/* request.c - what the scheduler half knows of the engine's requests: their tokens, their block
 * tables, how far they are saved and what is being loaded. A hash table by id, because an engine
 * names hundreds of them in every step. */
#include "connector/connector.h"

#include <stdlib.h>

#define BUCKETS_MIN 1024u
#define TOKENS_MIN 64u

int tsri_grow(void *array, uint32_t *n_max, uint32_t n, size_t size)
{
    if (n <= *n_max) return 0;
    uint64_t max = tsri_pow2_up((uint64_t)n < 16 ? 16 : n);
    void *old, *grown = max <= UINT32_MAX / 2 ? tsri_alloc((size_t)max, size) : NULL;
    if (!grown) return TSR_ENOMEM;
    memcpy(&old, array, sizeof old);
    if (old) memcpy(grown, old, *n_max * size);
    tsri_free(old);
    memcpy(array, &grown, sizeof grown);
    *n_max = (uint32_t)max;
    return 0;
}

static uint32_t bucket_of(const struct tsri_reqs *t, uint64_t id)
{
    uint64_t x = id * 0x9E3779B97F4A7C15u;
    return (uint32_t)((x ^ x >> 32) & (t->n_buckets - 1));
}

int tsri_reqs_init(struct tsri_reqs *t)
{
    *t = (struct tsri_reqs){.n_buckets = BUCKETS_MIN};
    t->buckets = tsri_alloc(BUCKETS_MIN, sizeof *t->buckets);
    return t->buckets ? 0 : TSR_ENOMEM;
}

static void req_free(struct tsri_req *r)
{
    for (uint32_t g = 0; g < TSR_GROUPS_MAX; g++)
        tsri_free(r->blocks[g]);
    tsri_extras_fini(&r->extras);
    tsri_free(r->rows);
    tsri_free(r->tokens);
    tsri_free(r);
}

void tsri_reqs_fini(struct tsri_reqs *t)
{
    for (uint32_t i = 0; t->buckets && i < t->n_buckets; i++)
        while (t->buckets[i]) {
            struct tsri_req *r = t->buckets[i];
            t->buckets[i] = r->next;
            req_free(r);
        }
    tsri_free(t->buckets);
    *t = (struct tsri_reqs){0};
}

struct tsri_req *tsri_reqs_find(const struct tsri_reqs *t, uint64_t id)
{
    struct tsri_req *r = t->buckets[bucket_of(t, id)];
    while (r && r->id != id)
        r = r->next;
    return r;
}

/* When it cannot grow, chains are longer, that is all. */
static void grow_table(struct tsri_reqs *t)
{
    struct tsri_reqs big = {.n_buckets = t->n_buckets * 2, .n = t->n};
    big.buckets = tsri_alloc(big.n_buckets, sizeof *big.buckets);
    if (!big.buckets) return;
    for (uint32_t i = 0; i < t->n_buckets; i++)
        while (t->buckets[i]) {
            struct tsri_req *r = t->buckets[i];
            t->buckets[i] = r->next;
            uint32_t to = bucket_of(&big, r->id);
            r->next = big.buckets[to];
            big.buckets[to] = r;
        }
    tsri_free(t->buckets);
    *t = big;
}

struct tsri_req *tsri_reqs_add(struct tsri_reqs *t, uint64_t id)
{
    TSR_ASSERT_SLOW(!tsri_reqs_find(t, id));
    struct tsri_req *r = tsri_alloc(1, sizeof *r);
    if (!r) return NULL;
    if (t->n >= t->n_buckets && t->n_buckets < 1u << 24) grow_table(t);
    uint32_t to = bucket_of(t, id);
    r->id = id;
    r->next = t->buckets[to];
    t->buckets[to] = r;
    t->n++;
    return r;
}

void tsri_reqs_remove(struct tsri_reqs *t, struct tsri_req *r)
{
    struct tsri_req **at = &t->buckets[bucket_of(t, r->id)];
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    t->n--;
    req_free(r);
}

int tsri_req_tokens(struct tsri_req *r, uint32_t first, const uint32_t *tokens, uint32_t n)
{
    uint64_t end = (uint64_t)first + n;
    if (first > r->n_tokens || end > TSRI_META_TOKENS_MAX)
        return tsri_fail(TSR_EINVAL, "request: tokens %u + %u, but only %u are known", first, n,
                         r->n_tokens);
    if (end <= r->n_tokens) return 0;
    int e = tsri_grow(&r->tokens, &r->tokens_max, end < TOKENS_MIN ? TOKENS_MIN : (uint32_t)end,
                      sizeof *r->tokens);
    if (e) return e;
    uint32_t known = r->n_tokens - first;
    memcpy(r->tokens + r->n_tokens, tokens + known, (n - known) * sizeof *tokens);
    r->n_tokens = (uint32_t)end;
    return 0;
}

int tsri_req_blocks(struct tsri_req *r, uint32_t group, bool reset, const int32_t *blocks,
                    uint32_t n)
{
    uint32_t had = reset ? 0 : r->n_blocks[group];
    if (n > TSRI_META_TOKENS_MAX - had)
        return tsri_fail(TSR_EINVAL, "request: %u + %u blocks", had, n);
    if (n) {
        int e = tsri_grow(&r->blocks[group], &r->blocks_max[group], had + n, sizeof *blocks);
        if (e) return e;
        memcpy(r->blocks[group] + had, blocks, n * sizeof *blocks);
    }
    r->n_blocks[group] = had + n;
    return 0;
}

void tsri_req_restart(struct tsri_req *r)
{
    memset(r->n_blocks, 0, sizeof r->n_blocks);
    r->upto = r->saved = r->state_at = r->chain.n_tokens = r->reach = 0;
    r->n_saves_now = 0;
    r->life++;
    r->found = r->n_rows = 0;
    r->counted = false;
    r->awaited = r->seen_step = 0;
}
