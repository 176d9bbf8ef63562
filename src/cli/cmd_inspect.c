/* cmd_inspect.c - `tessera inspect`: how a prompt would be matched. The documents of a file, and
 * the text of a store, are put into a cache in memory, without real KV; then the file's prompt is
 * looked up in every way there is and shown: what was found, how, in which document, and where. */
#include "cli/inspect.h"
#include "cli/prompt_file.h"
#include "cli/remote.h"

#include <stdlib.h>

#define MATCHES_MAX 65536u

/* An entry that was made of a document: a whole one, or a prefix block of it. The entries of a
 * store are numbered after the documents. */
struct span_source {
    uint64_t entry;
    uint32_t document, offset;
};

struct inspect {
    struct tsri_cli *cli;
    struct tsri_prompt_file file;
    struct tsri_inspect_store store;
    struct tsr_cache *cache;
    struct tsr_space *space;
    struct tsr_client *client;
    struct span_source *sources; /* by entry */
    size_t n_sources;
    struct tsr_match *matches;
    uint32_t n_matches, n_found;
};

/* ---- storing and looking up ---- */

static int open_cache(struct inspect *x)
{
    struct tsr_space_desc desc = {.size = sizeof desc,
                                  .model = "inspect",
                                  .dtype = TSR_DTYPE_OPAQUE,
                                  .layout = TSR_LAYOUT_OPAQUE,
                                  .n_layers = 1,
                                  .n_heads = 1,
                                  .k_dim = 1};
    /* Nothing of this belongs into a store. */
    if (tsr_config_set(x->cli->config, "disk_enabled", "false") < 0 ||
        tsr_config_set(x->cli->config, "any_offset", "true") < 0 ||
        tsr_config_set(x->cli->config, "host_page_size", "4K") < 0 ||
        tsr_config_set(x->cli->config, "frozen", "false") < 0 ||
        tsr_cache_open(&x->cache, x->cli->config) < 0 ||
        tsr_space_open(&x->space, x->cache, &desc) < 0 || tsr_client_open(&x->client, x->cache) < 0)
        return tsri_cli_failed();
    return 0;
}

static int look_up(struct inspect *x, const struct tsr_prompt *prompt, uint32_t *n_matches)
{
    struct tsr_lookup_desc lookup = {.size = sizeof lookup,
                                     .spaces = &x->space,
                                     .n_spaces = 1,
                                     .matches = x->matches,
                                     .matches_max = MATCHES_MAX};
    int n = tsr_client_lookup(x->client, prompt, &lookup);
    *n_matches = lookup.n_matches;
    return n;
}

/* Looks the document up the way it was stored, to learn its entries. */
static int add_sources(struct inspect *x, uint32_t document)
{
    const struct tsri_prompt_document *d = &x->file.documents[document];
    uint32_t n_behind = (uint32_t)d->behind.n_tokens, n = (uint32_t)d->text.n_tokens;
    uint32_t *tokens = tsri_alloc(n_behind + n, sizeof tokens[0]), n_matches = 0;
    if (!tokens) return tsri_cli_failed();
    if (n_behind) memcpy(tokens, d->behind.tokens, n_behind * sizeof tokens[0]);
    memcpy(tokens + n_behind, d->text.tokens, n * sizeof tokens[0]);
    struct tsr_range ranges[2] = {{0, n_behind}, {n_behind, n}};
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = tokens,
                                .n_tokens = n_behind + n,
                                .segments = n_behind ? ranges : ranges + 1,
                                .n_segments = n_behind ? 2 : 1,
                                .flags = d->prefix  ? TSR_PROMPT_PREFIX
                                         : n_behind ? TSR_PROMPT_SEGMENTS | TSR_PROMPT_CONTEXT
                                                    : TSR_PROMPT_SEGMENTS};
    int err = look_up(x, &prompt, &n_matches);
    tsri_free(tokens);
    if (err < 0) return tsri_cli_failed();
    if (n_matches == 0) return 0; /* a prefix shorter than a block */
    struct span_source *more = realloc(x->sources, (x->n_sources + n_matches) * sizeof *more);
    if (!more) return tsri_cli_fail("no memory");
    x->sources = more;
    for (uint32_t i = 0; i < n_matches; i++) {
        const struct tsr_match *m = &x->matches[i];
        if (m->prompt_offset < n_behind) continue; /* another document is the system prompt */
        x->sources[x->n_sources++] =
            (struct span_source){m->entry, document, m->prompt_offset - n_behind};
    }
    return 0;
}

static int store_document(struct inspect *x, uint32_t i)
{
    const struct tsri_prompt_document *d = &x->file.documents[i];
    size_t bytes = d->text.n_tokens * tsr_space_token_bytes(x->space);
    void *kv = tsri_alloc(bytes, 1);
    if (!kv) return tsri_cli_failed();
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = x->space,
                                   .kind = d->prefix ? TSR_KIND_PREFIX : TSR_KIND_SEGMENT,
                                   .tokens = d->text.tokens,
                                   .n_tokens = (uint32_t)d->text.n_tokens,
                                   .context = d->behind.tokens,
                                   .n_context = (uint32_t)d->behind.n_tokens,
                                   .view = {.data = kv, .bytes = bytes}};
    int n = tsr_client_store(x->client, &store);
    tsri_free(kv);
    if (n < 0) return tsri_cli_fail("document %u: %s", i + 1, tsr_errmsg());
    return add_sources(x, i);
}

static int add_store_sources(struct inspect *x)
{
    size_t n = x->store.store.n_entries;
    struct span_source *more = realloc(x->sources, (x->n_sources + n + 1) * sizeof *more);
    if (!more) return tsri_cli_fail("no memory");
    x->sources = more;
    for (size_t i = 0; i < n; i++)
        x->sources[x->n_sources++] =
            (struct span_source){x->store.handles[i], (uint32_t)(x->file.n_documents + i), 0};
    return 0;
}

static int by_entry(const void *a, const void *b)
{
    const struct span_source *x = a, *y = b;
    if (x->entry != y->entry) return x->entry < y->entry ? -1 : 1;
    return x->document < y->document ? -1 : x->document > y->document;
}

static int find(struct inspect *x)
{
    const struct tsri_prompt_file *f = &x->file;
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = f->prompt.tokens,
                                .n_tokens = (uint32_t)f->prompt.n_tokens,
                                .flags = TSR_PROMPT_PREFIX | TSR_PROMPT_ANY | TSR_PROMPT_OTHER,
                                .segments = f->parts,
                                .n_segments = f->n_parts};
    if (f->n_parts) prompt.flags |= TSR_PROMPT_SEGMENTS;
    if (f->system.n_tokens) prompt.flags |= TSR_PROMPT_CONTEXT;
    int n = look_up(x, &prompt, &x->n_matches);
    if (n < 0) return tsri_cli_failed();
    x->n_found = (uint32_t)n;
    if (x->n_sources) qsort(x->sources, x->n_sources, sizeof x->sources[0], by_entry);
    return 0;
}

/* ---- what was found ---- */

/* Of equal documents, the first. */
static const struct span_source *source_of(const struct inspect *x, const struct tsr_match *m)
{
    size_t from = 0, to = x->n_sources;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (x->sources[middle].entry < m->entry)
            from = middle + 1;
        else
            to = middle;
    }
    static const struct span_source none;
    return from < x->n_sources && x->sources[from].entry == m->entry ? &x->sources[from] : &none;
}

static size_t n_texts(const struct inspect *x)
{
    return x->file.n_documents + x->store.store.n_entries;
}

static uint32_t text_tokens(const struct inspect *x, size_t i)
{
    size_t n = x->file.n_documents;
    return i < n ? (uint32_t)x->file.documents[i].text.n_tokens
                 : x->store.store.entries[i - n].head.n_tokens;
}

/* "3" for a document, the beginning of its key for an entry of the store. */
static const char *text_name(const struct inspect *x, size_t i, char buf[static 33])
{
    size_t n = x->file.n_documents;
    if (i < n)
        snprintf(buf, 33, "%zu", i + 1);
    else
        tsri_hex(buf, x->store.store.entries[i - n].head.key.bytes, 4);
    return buf;
}

/* By which of the four ways a match was found. */
static const char *way_of(const struct inspect *x, const struct tsr_match *m)
{
    if (m->kind == TSR_KIND_PREFIX && m->context == TSR_CONTEXT_SAME) return "prefix";
    uint32_t end = m->prompt_offset + m->n_tokens;
    for (uint32_t i = 0; i < x->file.n_parts && m->context != TSR_CONTEXT_OTHER; i++) {
        const struct tsr_range *part = &x->file.parts[i];
        if (part->offset + part->n_tokens == end && part->n_tokens == m->entry_tokens)
            return "segment";
    }
    return m->edits ? "edits" : "anywhere";
}

struct found {
    uint8_t coverage; /* the best of its matches; 0: none */
    uint64_t n_tokens;
};

static void count(const struct inspect *x, struct found *found, uint64_t *n_other)
{
    *n_other = 0;
    for (uint32_t i = 0; i < x->n_matches; i++) {
        const struct tsr_match *m = &x->matches[i];
        struct found *f = &found[source_of(x, m)->document];
        if (!f->coverage || m->coverage < f->coverage) f->coverage = m->coverage;
        f->n_tokens += m->n_tokens;
        if (m->context == TSR_CONTEXT_OTHER) *n_other += m->n_tokens;
    }
    /* A prefix is as many entries as it has blocks. */
    double ratio = strtod(tsr_config_get(x->cli->config, "min_match_ratio"), NULL);
    for (size_t i = 0; i < x->file.n_documents; i++) {
        const struct tsri_prompt_document *d = &x->file.documents[i];
        if (!d->prefix || !found[i].n_tokens || found[i].n_tokens >= d->text.n_tokens) continue;
        double share = (double)found[i].n_tokens / (double)d->text.n_tokens;
        found[i].coverage = share >= ratio ? TSR_COVERAGE_PARTIAL : TSR_COVERAGE_RUN;
    }
}

/* Of a store only what was found. */
static bool is_told(const struct inspect *x, const struct found *found, size_t i)
{
    return i < x->file.n_documents || found[i].n_tokens;
}

/* The number of a document, or the whole key of an entry. */
static void print_json_name(const struct inspect *x, size_t i)
{
    if (i < x->file.n_documents) {
        printf("\"document\":%zu", i + 1);
        return;
    }
    char key[33];
    tsri_hex(key, x->store.store.entries[i - x->file.n_documents].head.key.bytes, 16);
    printf("\"entry\":\"%s\"", key);
}

static void print_json(const struct inspect *x, const struct found *found, uint64_t n_other)
{
    printf("{\"tokens\":%zu,\"found\":%u,\"found_behind_other_text\":%llu,\"matches\":[",
           x->file.prompt.n_tokens, x->n_found, (unsigned long long)n_other);
    for (uint32_t i = 0; i < x->n_matches; i++) {
        const struct tsr_match *m = &x->matches[i];
        const struct span_source *from = source_of(x, m);
        printf("%s\n{\"offset\":%u,\"tokens\":%u,", i ? "," : "", m->prompt_offset, m->n_tokens);
        print_json_name(x, from->document);
        printf(",\"document_offset\":%u,\"coverage\":\"%s\",\"way\":\"%s\",\"context\":\"%s\"}",
               from->offset + m->entry_offset, tsri_match_coverage(m->coverage), way_of(x, m),
               tsri_match_context(m->context));
    }
    printf("],\n\"documents\":[");
    for (size_t i = 0, n = 0; i < n_texts(x); i++) {
        if (!is_told(x, found, i)) continue;
        printf("%s\n{", n++ ? "," : "");
        print_json_name(x, i);
        printf(",\"tokens\":%u,\"found\":%llu,\"match\":\"%s\"}", text_tokens(x, i),
               (unsigned long long)found[i].n_tokens, tsri_match_coverage(found[i].coverage));
    }
    puts("]}");
}

/* ---- for people ---- */

static const char *document_color(const struct inspect *x, size_t document)
{
    static const char *const colors[] = {"\033[32m", "\033[36m", "\033[33m",
                                         "\033[35m", "\033[34m", "\033[31m"};
    return x->cli->color ? colors[(document - 1) % TSRI_COUNT(colors)] : "";
}

static void put_tokens(const struct inspect *x, uint32_t from, uint32_t to)
{
    const struct tsri_prompt_text *p = &x->file.prompt;
    if (p->bytes) {
        size_t begin = from ? p->ends[from - 1] : 0;
        tsri_cli_put_text(p->bytes + begin, p->ends[to - 1] - begin);
        return;
    }
    for (uint32_t i = from; i < to; i++)
        printf("%s%u", i > from ? " " : "", p->tokens[i]);
}

static void put_piece(const struct inspect *x, uint32_t from, uint32_t to, size_t document)
{
    char name[33];
    const char *gap = x->file.prompt.bytes ? "" : " ";
    if (from == to) return;
    if (document && x->cli->color)
        fputs(document_color(x, document), stdout);
    else if (document)
        printf("[%s:%s", text_name(x, document - 1, name), gap);
    put_tokens(x, from, to);
    if (document) fputs(x->cli->color ? tsri_cli_plain(x->cli) : "]", stdout);
    fputs(gap, stdout);
}

static void print_prompt(const struct inspect *x)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < x->n_matches; i++) {
        const struct tsr_match *m = &x->matches[i];
        put_piece(x, at, m->prompt_offset, 0);
        at = m->prompt_offset + m->n_tokens;
        put_piece(x, m->prompt_offset, at, source_of(x, m)->document + 1);
    }
    put_piece(x, at, (uint32_t)x->file.prompt.n_tokens, 0);
    putchar('\n');
}

static int print_matches(const struct inspect *x)
{
    struct tsri_table t;
    char name[33];
    tsri_table_init(&t, "rlrllll", "tokens|in prompt|document|in document|match|found as|context");
    for (uint32_t i = 0; i < x->n_matches; i++) {
        const struct tsr_match *m = &x->matches[i];
        const struct span_source *from = source_of(x, m);
        uint32_t at = from->offset + m->entry_offset;
        tsri_table_row(&t, "%u|%u..%u|%s|%u..%u of %u|%s|%s|%s", m->n_tokens, m->prompt_offset,
                       m->prompt_offset + m->n_tokens - 1, text_name(x, from->document, name), at,
                       at + m->n_tokens - 1, text_tokens(x, from->document),
                       tsri_match_coverage(m->coverage), way_of(x, m),
                       tsri_match_context(m->context));
    }
    return tsri_table_print(&t, x->cli);
}

static int print_all(const struct inspect *x, const struct found *found, uint64_t n_other)
{
    size_t n = x->file.prompt.n_tokens;
    print_prompt(x);
    putchar('\n');
    int status = x->n_matches ? print_matches(x) : 0;
    if (x->n_matches) putchar('\n');
    char name[33];
    for (size_t i = 0; i < n_texts(x); i++) {
        if (!is_told(x, found, i)) continue;
        printf("%s%s %s%s: %u tokens, match %s", document_color(x, i + 1),
               i < x->file.n_documents ? "document" : "entry", text_name(x, i, name),
               tsri_cli_plain(x->cli), text_tokens(x, i), tsri_match_coverage(found[i].coverage));
        if (found[i].coverage == TSR_COVERAGE_RUN || found[i].coverage == TSR_COVERAGE_PARTIAL)
            printf(", %llu tokens", (unsigned long long)found[i].n_tokens);
        putchar('\n');
    }
    printf("prompt: %zu tokens, %u found (%.1f %%)\n", n, x->n_found,
           100.0 * x->n_found / (double)n);
    if (n_other)
        printf("%llu of them were computed after other text: lookups return them only with "
               "TSR_PROMPT_OTHER\n",
               (unsigned long long)n_other);
    if (x->store.n_unread)
        printf("%zu entries of the store could not be read\n", x->store.n_unread);
    return status;
}

/* ---- the whole ---- */

static int show(const struct inspect *x)
{
    struct found *found = tsri_alloc(n_texts(x) + 1, sizeof found[0]);
    uint64_t n_other;
    if (!found) return tsri_cli_failed();
    count(x, found, &n_other);
    int status = 0;
    if (x->cli->json)
        print_json(x, found, n_other);
    else
        status = print_all(x, found, n_other);
    tsri_free(found);
    return status;
}

static int inspect(struct inspect *x)
{
    int status = tsri_cli_config(x->cli);
    if (status) return status;
    if (tsri_prompt_file_load(&x->file, x->cli->args[0]) < 0) return tsri_cli_failed();
    x->matches = tsri_alloc(MATCHES_MAX, sizeof x->matches[0]);
    if (!x->matches) return tsri_cli_failed();
    const char *store = tsri_cli_flag(x->cli, "store");
    const char *space = tsri_cli_flag(x->cli, "space");
    if (store) status = tsri_inspect_store_open(&x->store, x->cli, store, space);
    if (!status) status = open_cache(x);
    if (!status && store) status = tsri_inspect_store_fill(&x->store, x->space);
    if (!status && store) status = add_store_sources(x);
    for (size_t i = 0; i < x->file.n_documents && !status; i++)
        status = store_document(x, (uint32_t)i);
    if (!status) status = find(x);
    return status ? status : show(x);
}

int tsri_cmd_inspect(struct tsri_cli *cli)
{
    struct inspect x = {.cli = cli};
    if (tsri_remote_wanted(cli)) return tsri_server_inspect(cli);
    int status = tsri_cli_want_args(cli, 1, 1);
    if (!status && tsri_cli_flag(cli, "space") && !tsri_cli_flag(cli, "store"))
        status = tsri_cli_usage(cli, "--space needs --store or --connect");
    if (!status) status = inspect(&x);
    tsr_client_close(x.client);
    tsr_space_close(x.space);
    tsr_cache_close(x.cache);
    tsri_free(x.matches);
    free(x.sources);
    tsri_inspect_store_close(&x.store);
    tsri_prompt_file_fini(&x.file);
    return status;
}
