/* custom_tier.c - a storage tier of your own in 60 lines: entries as flat copies in a list. A cache
 * writes to it in the background, gives up its own copy, and reads the entry back, every byte
 * compared. */
#include <tessera/tier.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct item {
    struct item *next;
    struct tsr_entry_head head;
    unsigned char *bytes; /* tokens, extra, then the rows of every cell in the order of planes[] */
};

struct list_tier {
    struct tsr_tier base; /* first */
    pthread_mutex_t lock; /* calls come from several threads */
    struct item *items;
};

static int list_open(struct tsr_tier **out, const struct tsr_tier_env *env)
{
    (void)env;
    struct list_tier *t = calloc(1, sizeof *t);
    if (!t) return TSR_ENOMEM;
    pthread_mutex_init(&t->lock, NULL);
    *out = &t->base;
    return 0;
}

static struct item **find(struct list_tier *t, const struct tsr_key *key)
{
    struct item **at = &t->items;
    while (*at && memcmp(&(*at)->head.key, key, sizeof *key) != 0)
        at = &(*at)->next;
    return at;
}

static int list_drop(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n)
{
    struct list_tier *t = (struct list_tier *)tier;
    int n_dropped = 0;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < n; i++) {
        struct item **at = find(t, &refs[i].key), *item = *at;
        if (!item) continue;
        *at = item->next;
        free(item->bytes);
        free(item);
        n_dropped++;
    }
    pthread_mutex_unlock(&t->lock);
    return n_dropped;
}

static void list_close(struct tsr_tier *tier)
{
    struct list_tier *t = (struct list_tier *)tier;
    while (t->items)
        list_drop(tier, &(struct tsr_tier_ref){.key = t->items->head.key}, 1);
    free(t);
}

/* Goes over an io's bytes in one order, copying out of it (put) or into it (get); returns how many.
 */
static size_t walk(const struct tsr_tier_io *io, unsigned char *flat, int out)
{
    const struct tsr_entry_head *h = &io->head;
    size_t at = 0, n_planes = (size_t)h->n_layers * h->n_planes * io->n_cells;
#define MOVE(p, n) \
    do { \
        if (flat && (p)) memcpy(out ? flat + at : (void *)(p), out ? (void *)(p) : flat + at, n); \
        at += (n); \
    } while (0)
    MOVE(io->tokens, h->n_tokens * sizeof(uint32_t));
    MOVE(io->extra, h->extra_bytes);
    for (size_t i = 0; i < n_planes; i++) {
        uint32_t cell = (uint32_t)(i % io->n_cells), first = cell * h->cell_tokens;
        uint32_t left = h->n_tokens - first, rows = left < h->cell_tokens ? left : h->cell_tokens;
        MOVE(io->planes[i], (size_t)rows * h->row_bytes[i / io->n_cells % h->n_planes]);
    }
    return at;
}

static int list_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    struct list_tier *t = (struct list_tier *)tier;
    for (size_t i = 0; i < n; i++) {
        struct item *item = calloc(1, sizeof *item);
        unsigned char *bytes = malloc(walk(&io[i], NULL, 1));
        io[i].result = item && bytes ? 0 : TSR_ENOMEM;
        if (io[i].result) {
            free(item);
            free(bytes);
            continue;
        }
        walk(&io[i], bytes, 1);
        list_drop(tier, &(struct tsr_tier_ref){.key = io[i].head.key}, 1); /* put again replaces */
        *item = (struct item){.head = io[i].head, .bytes = bytes};
        pthread_mutex_lock(&t->lock);
        item->next = t->items;
        t->items = item;
        pthread_mutex_unlock(&t->lock);
    }
    return (int)n;
}

static int list_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    struct list_tier *t = (struct list_tier *)tier;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < n; i++) {
        struct item *item = *find(t, &io[i].head.key);
        io[i].result = item ? 0 : TSR_ENOENT;
        if (!item) continue;
        io[i].head = item->head;
        walk(&io[i], item->bytes, 0);
        if (io[i].head_done) io[i].result = io[i].head_done(&io[i]);
        for (uint32_t l = 0; l < item->head.n_layers && io[i].result == 0; l++)
            if (io[i].layer_done) io[i].layer_done(&io[i], l);
    }
    pthread_mutex_unlock(&t->lock);
    return (int)n;
}

static const struct tsr_tier_ops list_ops = {.abi = TSR_TIER_ABI,
                                             .name = "list",
                                             .open = list_open,
                                             .close = list_close,
                                             .put = list_put,
                                             .get = list_get,
                                             .drop = list_drop};

#define CHECK(x) ((x) >= 0 ? (void)0 : (fprintf(stderr, "%s: %s\n", #x, tsr_errmsg()), exit(1)))

int main(void)
{
    struct tsr_config *cfg;
    struct tsr_cache *cache;
    struct tsr_space *space;
    struct tsr_client *client;
    CHECK(tsr_config_open(&cfg));
    CHECK(tsr_tier_attach(cfg, &list_ops, NULL));
    CHECK(tsr_open(&cache, cfg));
    struct tsr_space_desc desc = {.size = sizeof desc,
                                  .model = "example",
                                  .dtype = TSR_DTYPE_F16,
                                  .n_layers = 4,
                                  .n_heads = 1,
                                  .k_dim = 64};
    CHECK(tsr_space_open(&space, cache, &desc));
    CHECK(tsr_client_open(&client, cache));
    uint32_t tokens[100];
    static unsigned char kv[100 * 4 * 2 * 128], again[sizeof kv];
    for (uint32_t i = 0; i < sizeof kv; i++)
        tokens[i % 100] = i % 100 + 7, kv[i] = (unsigned char)(i * 31 >> 4);
    struct tsr_store store = {.size = sizeof store,
                              .space = space,
                              .kind = TSR_KIND_SEGMENT,
                              .n_tokens = 100,
                              .tokens = tokens,
                              .view = {kv, sizeof kv, 0, 0, 0}};
    CHECK(tsr_store(client, &store));
    CHECK(tsr_flush(cache));           /* now the list has it too */
    CHECK(tsr_evict(cache, SIZE_MAX)); /* and host memory no longer */
    struct tsr_range all = {0, 100};
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = tokens,
                                .n_tokens = 100,
                                .flags = TSR_PROMPT_SEGMENTS,
                                .segments = &all,
                                .n_segments = 1};
    struct tsr_match match;
    struct tsr_lookup lookup = {.size = sizeof lookup,
                                .spaces = &space,
                                .n_spaces = 1,
                                .matches_max = 1,
                                .matches = &match};
    CHECK(tsr_lookup(client, &prompt, &lookup));
    struct tsr_load load = {.size = sizeof load,
                            .space = space,
                            .match = &match,
                            .prompt = &prompt,
                            .view = {again, sizeof again, 0, 0, 0}};
    int loaded = lookup.n_matches == 1 ? tsr_load(client, &load, 1) : 0;
    int same = loaded == 1 && memcmp(kv, again, sizeof kv) == 0;
    printf("found in tier %u, %s\n", match.tier, same ? "every byte right" : "WRONG");
    tsr_client_close(client);
    tsr_space_close(space);
    tsr_close(cache);
    tsr_config_close(cfg);
    return same ? 0 : 1;
}
