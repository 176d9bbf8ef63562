/* sim_index.c - the memory that the index takes, measured: a real cache is filled with entries whose KV
 * is next to nothing, and the process is asked how much it has grown. Once with all of them in host
 * memory, and once with most of them only on a server, which here is a tier that forgets what it is
 * given. */
#include "lab/simulate.h"

#include <tessera/tier.h>

#include <stdlib.h>

#define PAGE_BYTES 4096u
#define HOST_ENTRIES 8192u
#define COLD_ENTRIES 32768u
#define COLD_HOST 1024u /* entries in host memory beside them */

/* ---- a server that keeps nothing ---- */

static int void_open(struct tsr_tier **out, const struct tsr_tier_desc *desc)
{
    *out = desc->arg;
    return 0;
}

static void void_close(struct tsr_tier *tier)
{
    (void)tier;
}

static int void_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    (void)tier;
    for (size_t i = 0; i < n; i++) {
        io[i].loc = 1;
        io[i].result = 0;
    }
    return (int)n;
}

static int void_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    (void)tier;
    for (size_t i = 0; i < n; i++)
        io[i].result = TSR_ENOENT;
    return 0;
}

static int void_drop(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n)
{
    (void)tier, (void)refs, (void)n;
    return 0;
}

static const struct tsr_tier_ops void_ops = {.abi = TSR_TIER_ABI,
                                             .caps = TSR_TIER_SHARED,
                                             .name = "void",
                                             .open = void_open,
                                             .close = void_close,
                                             .put = void_put,
                                             .get = void_get,
                                             .drop = void_drop};

/* ---- measuring ---- */

/* Resident memory of this process, exactly. */
static int resident(uint64_t *bytes)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    unsigned long long kib;
    *bytes = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Rss: %llu kB", &kib) == 1) *bytes = (uint64_t)kib << 10;
    if (f) fclose(f);
    return *bytes ? 0 : tsri_fail(TSR_EIO, "/proc/self/smaps_rollup: cannot be read");
}

static const struct tsr_space_desc space_desc = {.size = sizeof space_desc,
                                                 .model = "tessera-simulate",
                                                 .dtype = TSR_DTYPE_F16,
                                                 .n_layers = 1,
                                                 .n_heads = 1,
                                                 .k_dim = 1};

static int fill(struct tsr_cache *cache, uint32_t n_entries, uint32_t n_tokens, uint64_t *grown)
{
    uint32_t *tokens = calloc(n_tokens, sizeof *tokens);
    uint16_t *kv = calloc(n_tokens, 2 * sizeof *kv);
    struct tsr_space *space = NULL;
    struct tsr_client *client = NULL;
    uint64_t before = 0, after = 0;
    int err = tokens && kv ? tsr_space_open(&space, cache, &space_desc) : TSR_ENOMEM;
    if (!err) err = tsr_client_open(&client, cache);
    if (!err) err = resident(&before);
    for (uint32_t i = 0; err >= 0 && i < n_entries; i++) {
        for (uint32_t t = 0; t < n_tokens; t++)
            tokens[t] = (uint32_t)tsri_sim_mix(((uint64_t)i << 32) + t + 1) >> 1;
        struct tsr_store_desc store = {.size = sizeof store,
                                       .space = space,
                                       .kind = TSR_KIND_SEGMENT,
                                       .tokens = tokens,
                                       .n_tokens = n_tokens,
                                       .view.data = kv,
                                       .view.bytes = (size_t)n_tokens * 4};
        err = tsr_client_store(client, &store);
    }
    if (err >= 0) err = resident(&after);
    *grown = after > before ? after - before : 0;
    tsr_client_close(client);
    tsr_space_close(space);
    free(tokens);
    free(kv);
    return err < 0 ? err : 0;
}

static int set_number(struct tsr_config *cfg, const char *option, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return tsr_config_set(cfg, option, text);
}

/* A cache of its own, whatever is configured for others. */
static int measure(uint32_t n_entries, uint32_t n_pages, uint32_t n_tokens, bool server,
                   uint64_t *grown)
{
    struct tsr_tier tier = {&void_ops};
    struct tsr_config *cfg = NULL;
    struct tsr_cache *cache = NULL;
    uint64_t metadata = (uint64_t)n_entries * (n_tokens * 8 + 512) + (1u << 20);
    int err = tsr_config_open(&cfg);
    if (!err) err = set_number(cfg, "host_page_size", PAGE_BYTES);
    if (!err) err = set_number(cfg, "host_size", (uint64_t)n_pages * PAGE_BYTES);
    if (!err) err = set_number(cfg, "entries_max", n_entries);
    if (!err) err = set_number(cfg, "metadata_size", metadata);
    if (!err) err = tsr_config_set(cfg, "attached_write", "through");
    if (!err && server) err = tsr_tier_attach(cfg, &void_ops, &tier);
    if (!err) err = tsr_cache_open(&cache, cfg);
    if (!err) err = fill(cache, n_entries, n_tokens, grown);
    tsr_cache_close(cache);
    tsr_config_close(cfg);
    return err;
}

int tsri_sim_index_measure(struct tsri_sim_index *out, uint32_t n_tokens)
{
    struct tsri_shape shape;
    uint64_t grown;
    *out = (struct tsri_sim_index){0};
    int err = tsri_shape_init(&shape, &space_desc, PAGE_BYTES);
    if (err) return err;
    const uint32_t pages = tsri_shape_n_pages(&shape, n_tokens);
    err = measure(HOST_ENTRIES, HOST_ENTRIES * pages, n_tokens, false, &grown);
    if (err) return tsri_fail(err, "measuring the index: %s", tsr_errmsg());
    double kv = (double)HOST_ENTRIES * pages * PAGE_BYTES;
    out->host_bytes = (double)grown > kv ? ((double)grown - kv) / HOST_ENTRIES : 0;
    err = measure(COLD_ENTRIES, COLD_HOST * pages, n_tokens, true, &grown);
    if (err) return tsri_fail(err, "measuring the index: %s", tsr_errmsg());
    double host = COLD_HOST * ((double)pages * PAGE_BYTES + out->host_bytes);
    if ((double)grown > host) out->cold_bytes = ((double)grown - host) / (COLD_ENTRIES - COLD_HOST);
    return 0;
}
