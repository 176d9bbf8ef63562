/* mem_tier.c - the reference tier: deep copies in a list under one lock. Right by being plain; the
 * contract suite compares every other tier with what this one does. */
#include "support/fake_tier.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct mem_tier_item {
    struct mem_tier_item *next;
    struct tsr_entry_head head;
    tsr_tier_loc loc;
    uint64_t bytes;
    uint64_t sum; /* of kv: what a real tier's checksums do */
    uint32_t *tokens;
    uint8_t *extra, *kv; /* kv: layer by layer, plane by plane, cell by cell */
};

struct mem {
    struct tsr_tier base; /* first */
    struct mem_tier_store *store, own;
};

static uint64_t sum_bytes(const void *data, size_t bytes, uint64_t sum)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ p[i]) * 0x100000001B3u;
    return sum;
}

static uint32_t rows_of(const struct tsr_entry_head *h, uint32_t cell)
{
    uint32_t left = h->n_tokens - cell * h->cell_tokens;
    return left < h->cell_tokens ? left : h->cell_tokens;
}

static uint64_t kv_bytes(const struct tsr_entry_head *h)
{
    return (uint64_t)h->n_tokens * h->n_layers *
           ((uint64_t)h->row_bytes[0] + (h->n_planes > 1 ? h->row_bytes[1] : 0));
}

static uint64_t item_sum(const struct mem_tier_item *it)
{
    uint64_t sum = sum_bytes(it->tokens, it->head.n_tokens * sizeof it->tokens[0], 1);
    sum = sum_bytes(it->extra, it->head.extra_bytes, sum);
    return sum_bytes(it->kv, kv_bytes(&it->head), sum);
}

static void item_close(struct mem_tier_item *it)
{
    if (!it) return;
    free(it->tokens);
    free(it->extra);
    free(it->kv);
    free(it);
}

void mem_tier_store_init(struct mem_tier_store *s, uint64_t bytes_max)
{
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->bytes_max = bytes_max;
    s->next_loc = 1;
}

void mem_tier_store_fini(struct mem_tier_store *s)
{
    while (s->items) {
        struct mem_tier_item *it = s->items;
        s->items = it->next;
        item_close(it);
    }
    pthread_mutex_destroy(&s->lock);
}

static struct mem_tier_item **find(struct mem_tier_store *s, const struct tsr_key *key)
{
    struct mem_tier_item **at = &s->items;
    while (*at && memcmp(&(*at)->head.key, key, sizeof *key) != 0)
        at = &(*at)->next;
    return at;
}

static bool remove_key(struct mem_tier_store *s, const struct tsr_key *key)
{
    struct mem_tier_item **at = find(s, key), *it = *at;
    if (!it) return false;
    *at = it->next;
    s->bytes_used -= it->bytes;
    s->n_items--;
    item_close(it);
    return true;
}

bool mem_tier_store_damage(struct mem_tier_store *s, const struct tsr_key *key, uint64_t bit)
{
    pthread_mutex_lock(&s->lock);
    struct mem_tier_item *it = *find(s, key);
    if (it) it->kv[bit / 8 % kv_bytes(&it->head)] ^= (uint8_t)(1u << (bit % 8));
    pthread_mutex_unlock(&s->lock);
    return it != NULL;
}

static int mem_open(struct tsr_tier **out, const struct tsr_tier_desc *desc)
{
    struct mem *m = calloc(1, sizeof *m);
    if (!m) return TSR_ENOMEM;
    m->store = desc->arg;
    if (!m->store) {
        mem_tier_store_init(&m->own, 0);
        m->store = &m->own;
    }
    *out = &m->base;
    return 0;
}

static void mem_close(struct tsr_tier *tier)
{
    struct mem *m = (struct mem *)tier;
    if (m->store == &m->own) mem_tier_store_fini(&m->own);
    free(m);
}

/* Copies rows between the cells of an io and an item's block, in the block's order. */
static void copy_layer(struct mem_tier_item *it, struct tsr_tier_io *io, uint32_t layer, bool put)
{
    const struct tsr_entry_head *h = &it->head;
    uint8_t *at = it->kv + kv_bytes(h) / h->n_layers * layer;
    for (uint32_t p = 0; p < h->n_planes; p++)
        for (uint32_t c = 0; c < io->n_cells; c++) {
            size_t bytes = (size_t)rows_of(h, c) * h->row_bytes[p];
            void *cell = io->planes[((size_t)layer * h->n_planes + p) * io->n_cells + c];
            if (put)
                memcpy(at, cell, bytes);
            else if (cell)
                memcpy(cell, at, bytes);
            at += bytes;
        }
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int put_one(struct mem_tier_store *s, struct tsr_tier_io *io)
{
    if (io->deadline_ns && now_ns() >= io->deadline_ns) return TSR_ETIME;
    struct mem_tier_item *it = calloc(1, sizeof *it);
    if (!it) return TSR_ENOMEM;
    it->head = io->head;
    it->tokens = malloc(io->head.n_tokens * sizeof it->tokens[0]);
    it->extra = malloc(io->head.extra_bytes + 1u);
    it->kv = malloc(kv_bytes(&io->head));
    if (!it->tokens || !it->extra || !it->kv) {
        item_close(it);
        return TSR_ENOMEM;
    }
    memcpy(it->tokens, io->tokens, io->head.n_tokens * sizeof it->tokens[0]);
    if (io->head.extra_bytes) memcpy(it->extra, io->extra, io->head.extra_bytes);
    for (uint32_t l = 0; l < io->head.n_layers; l++)
        copy_layer(it, io, l, true);
    it->sum = item_sum(it);
    it->bytes = kv_bytes(&io->head) + io->head.n_tokens * sizeof it->tokens[0] +
                io->head.extra_bytes + sizeof it->head;
    pthread_mutex_lock(&s->lock);
    int err = 0;
    uint64_t freed = *find(s, &io->head.key) ? (*find(s, &io->head.key))->bytes : 0;
    if (s->bytes_max && s->bytes_used - freed + it->bytes > s->bytes_max) {
        err = TSR_EFULL;
        item_close(it);
    } else {
        remove_key(s, &io->head.key);
        it->loc = io->loc = s->next_loc++;
        it->next = s->items;
        s->items = it;
        s->bytes_used += it->bytes;
        s->written_bytes += it->bytes;
        s->n_items++;
    }
    pthread_mutex_unlock(&s->lock);
    return err;
}

/* A get works on a copy, so that callbacks run without the lock. */
static int copy_item(struct mem_tier_store *s, const struct tsr_tier_io *io,
                     struct mem_tier_item *copy)
{
    pthread_mutex_lock(&s->lock);
    struct mem_tier_item *it = *find(s, &io->head.key);
    int err = it ? 0 : TSR_ENOENT;
    if (it) {
        const struct tsr_entry_head *a = &it->head, *b = &io->head;
        if (memcmp(a->space, b->space, sizeof a->space) != 0 || a->n_tokens != b->n_tokens ||
            a->cell_tokens != b->cell_tokens || a->n_layers != b->n_layers ||
            a->n_planes != b->n_planes || a->row_bytes[0] != b->row_bytes[0] ||
            (a->n_planes > 1 && a->row_bytes[1] != b->row_bytes[1]))
            err = TSR_ENOENT;
        else if (a->extra_bytes > io->extra_max)
            err = TSR_ERANGE;
    }
    if (!err) {
        *copy = *it;
        copy->tokens = malloc(it->head.n_tokens * sizeof it->tokens[0]);
        copy->extra = malloc(it->head.extra_bytes + 1u);
        copy->kv = malloc(kv_bytes(&it->head));
        if (!copy->tokens || !copy->extra || !copy->kv) abort();
        memcpy(copy->tokens, it->tokens, it->head.n_tokens * sizeof it->tokens[0]);
        memcpy(copy->extra, it->extra, it->head.extra_bytes);
        memcpy(copy->kv, it->kv, kv_bytes(&it->head));
        s->read_bytes += it->bytes;
    }
    pthread_mutex_unlock(&s->lock);
    return err;
}

static int get_one(struct mem_tier_store *s, struct tsr_tier_io *io)
{
    struct mem_tier_item it;
    if (io->deadline_ns && now_ns() >= io->deadline_ns) return TSR_ETIME;
    int err = copy_item(s, io, &it);
    if (err) return err;
    if (item_sum(&it) != it.sum) err = TSR_ECORRUPT;
    if (!err) {
        io->head = it.head;
        io->loc = it.loc;
        memcpy(io->tokens, it.tokens, it.head.n_tokens * sizeof it.tokens[0]);
        if (it.head.extra_bytes) memcpy(io->extra, it.extra, it.head.extra_bytes);
        if (io->head_done) err = io->head_done(io);
        if (err > 0) err = 0;
    }
    for (uint32_t l = 0; l < it.head.n_layers && !err; l++) {
        copy_layer(&it, io, l, false);
        if (io->layer_done) io->layer_done(io, l);
    }
    free(it.tokens);
    free(it.extra);
    free(it.kv);
    return err;
}

static int mem_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    int n_ok = 0;
    for (size_t i = 0; i < n; i++) {
        io[i].result = put_one(((struct mem *)tier)->store, &io[i]);
        n_ok += io[i].result >= 0;
    }
    return n_ok;
}

static int mem_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    int n_ok = 0;
    for (size_t i = 0; i < n; i++) {
        io[i].result = get_one(((struct mem *)tier)->store, &io[i]);
        n_ok += io[i].result >= 0;
    }
    return n_ok;
}

static int mem_drop(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n)
{
    struct mem_tier_store *s = ((struct mem *)tier)->store;
    int n_dropped = 0;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < n; i++)
        n_dropped += remove_key(s, &refs[i].key);
    pthread_mutex_unlock(&s->lock);
    return n_dropped;
}

static int mem_scan(struct tsr_tier *tier, tsr_tier_scan_fn fn, void *arg)
{
    struct mem_tier_store *s = ((struct mem *)tier)->store;
    for (struct mem_tier_item *it = s->items; it; it = it->next) {
        int err = fn(arg, &it->head, it->loc, it->bytes);
        if (err < 0) return err;
    }
    return 0;
}

static int mem_contains(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n,
                        uint8_t *found)
{
    struct mem_tier_store *s = ((struct mem *)tier)->store;
    int n_found = 0;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < n; i++) {
        found[i] = *find(s, &refs[i].key) != NULL;
        n_found += found[i];
    }
    pthread_mutex_unlock(&s->lock);
    return n_found;
}

static int mem_flush(struct tsr_tier *tier)
{
    (void)tier;
    return 0;
}

static int mem_stats(struct tsr_tier *tier, struct tsr_tier_stats *out)
{
    struct mem_tier_store *s = ((struct mem *)tier)->store;
    pthread_mutex_lock(&s->lock);
    out->entries = s->n_items;
    out->bytes_used = s->bytes_used;
    out->bytes_max = s->bytes_max;
    out->read_bytes = s->read_bytes;
    out->written_bytes = s->written_bytes;
    pthread_mutex_unlock(&s->lock);
    return 0;
}

const struct tsr_tier_ops mem_tier = {
    .abi = TSR_TIER_ABI,
    .name = "mem",
    .open = mem_open,
    .close = mem_close,
    .put = mem_put,
    .get = mem_get,
    .drop = mem_drop,
    .scan = mem_scan,
    .contains = mem_contains,
    .flush = mem_flush,
    .stats = mem_stats,
};
