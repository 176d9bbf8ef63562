/* custom_tier.c - a custom storage tier, with entries as flat copies in a tree, and a cache above it
 * that drops its own copy and reads the entry back. docs/backends.md explains it;
 * tests/tier/test_contract.c checks it like every other tier. */
#include <tessera/tier.h>

#include <pthread.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct item {
    struct tsr_entry_head head; /* first, and its key first in it */
    char bytes[]; /* tokens, extra, then the rows of every cell in the order of planes[] */
};
struct tree {
    struct tsr_tier base; /* first */
    pthread_mutex_t lock; /* calls come from several threads */
    void *root;
};

static int tree_open(struct tsr_tier **out, const struct tsr_tier_desc *desc)
{
    (void)desc; /* desc->arg is what tsr_tier_attach() was given */
    struct tree *t = calloc(1, sizeof *t);
    if (!t) return TSR_ENOMEM;
    pthread_mutex_init(&t->lock, NULL);
    *out = &t->base;
    return 0;
}
static int by_key(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct tsr_key));
}
static void tree_close(struct tsr_tier *tier)
{
    struct tree *t = (struct tree *)tier;
    while (t->root) {
        struct item *item = *(struct item **)t->root;
        tdelete(item, &t->root, by_key);
        free(item);
    }
    free(t);
}

/* Copies the parts of an io out (put) or in, one behind the other; without `flat` it only counts
 * their bytes. */
static size_t copy(const struct tsr_tier_io *io, char *flat, int put)
{
    const struct tsr_entry_head *h = &io->head;
    size_t at = 0, n_planes = (size_t)h->n_layers * h->n_planes * io->n_cells;
    for (size_t i = 0; i < n_planes + 2; i++) {
        void *part = i == 0 ? (void *)io->tokens : io->extra;
        size_t bytes = i == 0 ? h->n_tokens * sizeof io->tokens[0] : h->extra_bytes;
        if (i >= 2) {
            uint32_t left = h->n_tokens - (uint32_t)((i - 2) % io->n_cells) * h->cell_tokens;
            part = io->planes[i - 2]; /* get: NULL when it is not wanted */
            bytes = left < h->cell_tokens ? left : h->cell_tokens;
            bytes *= h->row_bytes[(i - 2) / io->n_cells % h->n_planes];
        }
        if (flat && part) memcpy(put ? flat + at : part, put ? part : flat + at, bytes);
        at += bytes;
    }
    return at;
}
static int tree_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    struct tree *t = (struct tree *)tier;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < n; i++) {
        struct item *item = malloc(sizeof *item + copy(&io[i], NULL, 1));
        struct item **at = item ? tsearch(&io[i].head, &t->root, by_key) : NULL;
        io[i].result = at ? 0 : TSR_ENOMEM;
        if (!at) {
            free(item);
            continue;
        }
        if (*at != (void *)&io[i].head) free(*at); /* put again: replaced */
        *at = item;
        item->head = io[i].head;
        copy(&io[i], item->bytes, 1);
        io[i].loc = 1; /* anything but 0: it is here */
    }
    pthread_mutex_unlock(&t->lock);
    return (int)n; /* the cache counts the results */
}
static int get_one(struct item **at, struct tsr_tier_io *io)
{
    const struct tsr_entry_head *h = at ? &(*at)->head : NULL, *want = &io->head;
    if (!h || memcmp(h->space, want->space, sizeof h->space) != 0 ||
        h->n_tokens != want->n_tokens ||
        memcmp(&h->cell_tokens, &want->cell_tokens, 5 * sizeof h->cell_tokens) != 0)
        return TSR_ENOENT; /* or of another shape: cell_tokens to row_bytes */
    if (h->extra_bytes > io->extra_max) return TSR_ERANGE;
    io->head = *h;
    copy(io, (*at)->bytes, 0);
    int err = io->head_done ? io->head_done(io) : 0;
    for (uint32_t l = 0; l < h->n_layers && err >= 0 && io->layer_done; l++)
        io->layer_done(io, l);
    return err < 0 ? err : 0;
}
static int tree_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    struct tree *t = (struct tree *)tier;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < n; i++)
        io[i].result = get_one(tfind(&io[i].head, &t->root, by_key), &io[i]);
    pthread_mutex_unlock(&t->lock);
    return (int)n;
}
static int tree_drop(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n)
{
    struct tree *t = (struct tree *)tier;
    int n_dropped = 0;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < n; i++) {
        struct item **at = tfind(&refs[i].key, &t->root, by_key), *item = at ? *at : NULL;
        if (at) tdelete(&refs[i].key, &t->root, by_key);
        n_dropped += at != NULL;
        free(item);
    }
    pthread_mutex_unlock(&t->lock);
    return n_dropped;
}
const struct tsr_tier_ops tree_ops = {.abi = TSR_TIER_ABI,
                                      .name = "tree",
                                      .open = tree_open,
                                      .close = tree_close,
                                      .put = tree_put,
                                      .get = tree_get,
                                      .drop = tree_drop};

#define OK(x) ((x) >= 0 ? (void)0 : (fprintf(stderr, "%s: %s\n", #x, tsr_errmsg()), exit(1)))

int main(void)
{
    struct tsr_config *cfg;
    struct tsr_cache *cache;
    struct tsr_space *space;
    struct tsr_client *client;
    OK(tsr_config_open(&cfg));
    OK(tsr_tier_attach(cfg, &tree_ops, NULL));
    OK(tsr_cache_open(&cache, cfg));
    struct tsr_space_desc desc = {.size = sizeof desc, .model = "example", .n_layers = 4};
    desc.dtype = TSR_DTYPE_F16, desc.n_heads = 1, desc.k_dim = 64;
    OK(tsr_space_open(&space, cache, &desc));
    OK(tsr_client_open(&client, cache));
    uint32_t tokens[100] = {7, 8, 9};
    static char kv[100 * 4 * 2 * 128] = "the KV of 100 tokens";
    struct tsr_store_desc store = {.size = sizeof store, .space = space, .kind = TSR_KIND_SEGMENT};
    store.tokens = tokens, store.n_tokens = 100, store.view.data = kv, store.view.bytes = sizeof kv;
    OK(tsr_client_store(client, &store));
    OK(tsr_cache_flush(cache));           /* now the tree has it too, */
    OK(tsr_cache_evict(cache, SIZE_MAX)); /* and host memory no longer */
    struct tsr_stats stats = {.size = sizeof stats};
    OK(tsr_cache_stats(cache, &stats));
    printf("in host memory: %d, in the tree: %d\n", (int)stats.tier_entries[0],
           (int)stats.tier_entries[1]);
    tsr_client_close(client);
    tsr_space_close(space);
    tsr_cache_close(cache);
    tsr_config_close(cfg);
    return stats.tier_entries[1] == 1 ? 0 : 1;
}
