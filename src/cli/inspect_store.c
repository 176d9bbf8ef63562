/* inspect_store.c - the text of a store directory, in the cache that `tessera inspect` looks a
 * prompt up in. Tokens and extras are read, not the KV, by a reader that leaves the directory to
 * its writer (cache/texts.c). */
#include "cli/inspect.h"
#include "cache/cache.h"

#define PAGE_BYTES 4096u /* of host memory, as cmd_inspect.c sets it */
#define SPACES_TOLD 8u
#define UNREAD UINT64_MAX /* in the place of a handle: cannot be read, or does not fit */

/* ---- which space ---- */

static bool begins(const struct tsri_store_entry *e, const char *hex)
{
    char space[33];
    tsri_hex(space, e->head.space, 16);
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
        tsri_hex(hex, s->entries[i].head.space, 4);
        if (n == SPACES_TOLD) strcat(line, " ...");
        if (n++ >= SPACES_TOLD) break;
        strcat(strcat(line, n > 1 ? ", " : " "), hex);
    }
    return tsri_cli_fail("%s: %s; choose one with --space:%s", path, why, line);
}

/* Keeps the entries of one space. */
static int choose_space(struct tsri_store *s, const char *path, const char *space)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_entries; i++) {
        struct tsri_store_entry *e = &s->entries[i];
        if (space && !begins(e, space)) continue;
        if (n && !same_space(e, &s->entries[0]))
            return fail_spaces(s, path, space ? "several spaces match" : "has several spaces");
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
        meta += tsri_texts_bytes(h->n_tokens, (uint32_t)n_pages, h->extra_bytes) + 128;
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
    return ok ? 0 : tsri_cli_failed();
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
    return s->handles ? 0 : tsri_cli_failed();
}

void tsri_inspect_store_close(struct tsri_inspect_store *s)
{
    tsri_store_close(&s->store);
    tsri_free(s->handles);
    memset(s, 0, sizeof *s);
}

/* ---- filling ---- */

/* What is read next, and from where. */
struct text_from {
    struct tsri_store *store;
    const struct tsri_store_entry *entry;
    void **no_planes;
};

static int read_text(void *arg, uint32_t *tokens, uint8_t *extra)
{
    const struct text_from *from = arg;
    const struct tsr_entry_head *h = &from->entry->head;
    struct tsr_tier_io io = {.head = *h,
                             .loc = from->entry->loc,
                             .tokens = tokens,
                             .extra = extra,
                             .extra_max = h->extra_bytes,
                             .n_cells = tsri_head_cells(h),
                             .planes = from->no_planes};
    int n = tsri_tier_get(from->store->tier, &io, 1);
    return n < 0 ? n : io.result;
}

int tsri_inspect_store_fill(struct tsri_inspect_store *s, struct tsr_space *space)
{
    size_t n_planes = 1, n_entries = s->store.n_entries;
    uint32_t block_tokens = 0; /* blocks are of one size, but for the last of a prompt */
    for (size_t i = 0; i < n_entries; i++) {
        const struct tsr_entry_head *h = &s->store.entries[i].head;
        size_t n = (size_t)h->n_layers * h->n_planes * tsri_head_cells(h);
        if (n > n_planes) n_planes = n;
        if (h->kind == TSR_KIND_PREFIX && h->n_tokens > block_tokens) block_tokens = h->n_tokens;
    }
    struct text_from from = {&s->store, NULL, tsri_alloc(n_planes, sizeof *from.no_planes)};
    if (!from.no_planes) return tsri_cli_failed();
    if (n_entries) tsri_texts_space(space, s->store.entries[0].head.space, block_tokens);
    for (size_t i = 0; i < n_entries; i++) {
        from.entry = &s->store.entries[i];
        if (tsri_texts_add(space, &from.entry->head, read_text, &from, &s->handles[i]) != 0) {
            s->handles[i] = UNREAD;
            s->n_unread++;
        }
        tsri_cli_progress("read", i + 1, n_entries);
    }
    tsri_free(from.no_planes);
    return 0;
}
