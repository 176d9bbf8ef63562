/* inspect_store.c - the text of a store directory, in the cache that `tessera inspect` looks a
 * prompt up in. Tokens and extras are read, not the KV, by a reader that leaves the directory to
 * its writer. Entries are made below the API with the keys and digests they were stored with: so
 * they are found just as in the cache that owns the store. */
#include "cli/inspect.h"
#include "cache/core.h"

#define PAGE_BYTES 4096u /* of host memory, as cmd_inspect.c sets it */
#define SPACES_TOLD 8u
#define UNREAD UINT64_MAX /* in the place of a handle: cannot be read, or does not fit */

/* ---- which space ---- */

static bool begins(const struct tsri_store_entry *e, const char *hex)
{
    char space[33];
    tsri_store_hex(e->head.space, 16, space);
    return strncmp(space, hex, strlen(hex)) == 0;
}

static bool same_space(const struct tsri_store_entry *a, const struct tsri_store_entry *b)
{
    return memcmp(a->head.space, b->head.space, sizeof a->head.space) == 0;
}

/* The spaces of a store, as far as they fit in a line. */
static int fail_spaces(const struct tsri_store *s, const char *path, const char *why)
{
    char line[SPACES_TOLD * 12 + 8] = "";
    uint32_t n = 0;
    for (size_t i = 0; i < s->n_entries; i++) {
        size_t k = 0;
        while (!same_space(&s->entries[k], &s->entries[i]))
            k++;
        if (k < i) continue;
        char hex[9];
        tsri_store_hex(s->entries[i].head.space, 4, hex);
        if (n == SPACES_TOLD) strcat(line, " ...");
        if (n++ >= SPACES_TOLD) break;
        strcat(strcat(line, n > 1 ? ", " : " "), hex);
    }
    return tsri_cli_fail("%s: %s; --space is one of%s", path, why, line);
}

/* Keeps the entries of one space. */
static int choose_space(struct tsri_store *s, const char *path, const char *space)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_entries; i++) {
        struct tsri_store_entry *e = &s->entries[i];
        if (space && !begins(e, space)) continue;
        if (n && !same_space(e, &s->entries[0]))
            return fail_spaces(s, path, space ? "several spaces begin so" : "has several spaces");
        struct tsri_store_entry kept = *e;
        *e = s->entries[n]; /* nothing is lost: the list may have to be told */
        s->entries[n++] = kept;
    }
    if (n == 0 && s->n_entries) return fail_spaces(s, path, "has no such space");
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++)
        if (s->entries[i].head.kind != TSR_KIND_BLENDED) s->entries[n_kept++] = s->entries[i];
    s->n_entries = n_kept;
    return 0;
}

/* ---- options ---- */

static bool set_count(struct tsr_config *cfg, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return tsr_config_set(cfg, key, text) >= 0;
}

/* A digest of xxh3 ends with 16 zeros. */
static bool is_xxh3(const struct tsri_store_entry *e)
{
    static const uint8_t zero[32];
    return memcmp(e->head.digest, zero, 32) != 0 && memcmp(e->head.digest + 16, zero, 16) == 0;
}

static int set_options(const struct tsri_store *s, struct tsr_config *cfg)
{
    const struct tsri_options *o = tsri_config_options(cfg);
    uint64_t pages = 0, meta = 0, windows = 0;
    bool xxh3 = false;
    for (size_t i = 0; i < s->n_entries; i++) {
        const struct tsr_entry_head *h = &s->entries[i].head;
        uint64_t n_pages =
            ((uint64_t)h->n_tokens + TSRI_CELL_TOKENS_MAX - 1) / TSRI_CELL_TOKENS_MAX;
        pages += n_pages;
        meta += tsri_meta_bytes(h->n_tokens, (uint32_t)n_pages, h->extra_bytes) + 128;
        windows += h->n_tokens / TSRI_WINDOW;
        xxh3 |= is_xxh3(&s->entries[i]);
    }
    /* Besides what the documents of the file may take. */
    uint64_t host = o->host_size;
    bool ok = set_count(cfg, "metadata_size", meta + meta / 8 + host / 32 + (4 << 20)) &&
              set_count(cfg, "windows_max", windows + windows / 4 + 131072) &&
              set_count(cfg, "entries_max", s->n_entries + 65536) &&
              set_count(cfg, "host_size", host + pages * PAGE_BYTES) &&
              (!xxh3 || tsr_config_set(cfg, "hash", "xxh3") >= 0);
    return ok ? 0 : tsri_cli_fail("%s", tsr_errmsg());
}

int tsri_inspect_store_open(struct tsri_inspect_store *s, struct tsri_cli *cli, const char *path,
                            const char *space)
{
    memset(s, 0, sizeof *s);
    int status = tsri_store_open(&s->store, cli, path, false);
    if (!status) status = choose_space(&s->store, path, space);
    if (!status) status = set_options(&s->store, cli->config);
    if (status) return status;
    s->handles = tsri_alloc(s->store.n_entries + 1, sizeof s->handles[0]);
    return s->handles ? 0 : tsri_cli_fail("%s", tsr_errmsg());
}

void tsri_inspect_store_close(struct tsri_inspect_store *s)
{
    tsri_store_close(&s->store);
    tsri_free(s->handles);
    memset(s, 0, sizeof *s);
}

/* ---- filling ---- */

/* Tokens and extra of an entry, into its meta; an error of the library. */
static int read_text(struct tsri_store *s, const struct tsri_store_entry *e, struct tsri_meta *meta,
                     void **no_planes)
{
    struct tsr_tier_io io = {.head = e->head,
                             .loc = e->loc,
                             .tokens = tsri_meta_tokens(meta),
                             .extra = tsri_meta_extra(meta),
                             .extra_max = e->head.extra_bytes,
                             .n_cells = tsri_head_cells(&e->head),
                             .planes = no_planes};
    int n = tsri_tier_get(s->tier, &io, 1);
    return n < 0 ? n : io.result;
}

/* The handle, or UNREAD. */
static uint64_t add_entry(struct tsri_store *s, const struct tsri_store_entry *from,
                          struct tsr_space *space, void **no_planes)
{
    struct tsr_cache *c = space->cache;
    const struct tsr_entry_head *h = &from->head;
    uint32_t at;
    if (tsri_room_take(c, &space->shape, h->n_tokens, h->extra_bytes, &at) != 0) return UNREAD;
    struct tsri_meta *meta =
        (struct tsri_meta *)(void *)(c->arena.region.data + (size_t)at * TSRI_ARENA_UNIT);
    if (!tsri_entry_can_alloc(c) || read_text(s, from, meta, no_planes) != 0) {
        tsri_room_give(c, at);
        return UNREAD;
    }
    memcpy(&meta->digest, h->digest, sizeof meta->digest);
    meta->base = h->base;
    meta->freq_set = h->freq_set;
    uint32_t id = tsri_entry_alloc(c);
    struct tsri_entry *e = &c->entries[id];
    struct tsri_key key;
    memcpy(&key, &h->key, sizeof key);
    atomic_store(&e->key_lo, key.lo);
    atomic_store(&e->key_hi, key.hi);
    e->meta = at;
    e->n_tokens = h->n_tokens;
    e->space = space->id;
    e->kind = (uint8_t)h->kind;
    e->extra_bytes = h->extra_bytes;
    tsri_entry_publish(c, id, TSRI_ID_NONE);
    return tsri_handle(id, tsri_word_gen(atomic_load(&e->word)));
}

int tsri_inspect_store_fill(struct tsri_inspect_store *s, struct tsr_space *space)
{
    size_t n_planes = 1;
    for (size_t i = 0; i < s->store.n_entries; i++) {
        const struct tsr_entry_head *h = &s->store.entries[i].head;
        size_t n = (size_t)h->n_layers * h->n_planes * tsri_head_cells(h);
        if (n > n_planes) n_planes = n;
        /* Blocks are of one size, but for the last of a prompt. */
        bool block = h->kind == TSR_KIND_PREFIX;
        if (block && (i == 0 || h->n_tokens > space->block_tokens))
            space->block_tokens = h->n_tokens;
    }
    void **no_planes = tsri_alloc(n_planes, sizeof no_planes[0]);
    if (!no_planes) return tsri_cli_fail("%s", tsr_errmsg());
    if (s->store.n_entries)
        memcpy(space->fingerprint, s->store.entries[0].head.space, sizeof space->fingerprint);
    for (size_t i = 0; i < s->store.n_entries; i++) {
        /* Nobody else uses the cache: the lock is for the rules of its functions. */
        pthread_mutex_lock(&space->cache->lock);
        s->handles[i] = add_entry(&s->store, &s->store.entries[i], space, no_planes);
        pthread_mutex_unlock(&space->cache->lock);
        s->n_unread += s->handles[i] == UNREAD;
        tsri_cli_progress("read", i + 1, s->store.n_entries);
    }
    tsri_free(no_planes);
    return 0;
}
