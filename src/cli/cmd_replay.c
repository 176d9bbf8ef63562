/* cmd_replay.c - `tessera replay`: an access trace against a real cache in memory, opened through
 * the public interface. Tokens are made from the ids of the trace and KV from the tokens, both by
 * formula: so a chunk is the same text whenever its id returns, and every byte that the cache gives
 * back can be compared. The KV of a token is 64 bytes here, so that a cell of 64
 * tokens is one page of 4 KiB; a real model of 8 billion parameters has 128 KiB, and 1 MiB here
 * holds as many tokens as 2 GiB there. */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define ROW_WORDS 8u                             /* K or V of one token */
#define ROW_BYTES (ROW_WORDS * sizeof(uint32_t)) /* 16 values of 2 bytes */
#define TOKEN_BYTES (2 * ROW_BYTES)
#define PAGE_SIZE "4K"
#define MEBIBYTE ((uint64_t)1 << 20)
#define SIZES_MAX 16

struct result {
    uint64_t host_size, requests, tokens_asked, tokens_reused;
    uint64_t bytes, evicted, refused;
    double seconds;
};

/* One replay: the handles, and buffers as long as the longest request. */
struct replay {
    const struct tsri_trace *trace;
    bool as_prefix;
    uint32_t block_tokens;
    struct tsr_cache *cache;
    struct tsr_space *space;
    struct tsr_client *client;
    uint32_t *tokens;
    struct tsr_range *segments;
    struct tsr_match *matches;
    uint32_t matches_max;
    uint32_t *kv;
    struct result result;
};

/* ---- text and KV by formula ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint32_t token_of(uint64_t id, uint32_t i)
{
    return (uint32_t)(mix(mix(id) + i) >> 33);
}

/* Word w of a token's row in plane 0 (K) or 1 (V). */
static uint32_t kv_word(uint32_t token, uint32_t plane, uint32_t w)
{
    return (token + (plane * ROW_WORDS + w + 1) * 0x9E3779B9u) * 0x85EBCA6Bu;
}

static void make_prompt(struct replay *r, const struct tsri_trace_request *q)
{
    const struct tsri_trace_chunk *chunks = r->trace->chunks + q->chunk_first;
    uint32_t n = 0;
    for (uint32_t c = 0; c < q->n_chunks; c++) {
        r->segments[c] = (struct tsr_range){n, chunks[c].n_tokens};
        for (uint32_t i = 0; i < chunks[c].n_tokens; i++)
            r->tokens[n++] = token_of(chunks[c].id, i);
    }
}

/* KV of tokens [offset, offset + n), packed. */
static struct tsr_view make_kv(struct replay *r, uint32_t offset, uint32_t n)
{
    uint32_t *out = r->kv;
    for (uint32_t plane = 0; plane < 2; plane++)
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t w = 0; w < ROW_WORDS; w++)
                *out++ = kv_word(r->tokens[offset + i], plane, w);
    return (struct tsr_view){.data = r->kv, .bytes = (size_t)n * TOKEN_BYTES};
}

static bool kv_is_right(const struct replay *r, uint32_t offset, uint32_t n)
{
    uint32_t wrong = 0;
    const uint32_t *got = r->kv;
    for (uint32_t plane = 0; plane < 2; plane++)
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t w = 0; w < ROW_WORDS; w++)
                wrong |= *got++ ^ kv_word(r->tokens[offset + i], plane, w);
    return wrong == 0;
}

/* ---- one request ---- */

/* Loads a match and compares it. A match that has gone meanwhile counts for nothing. */
static int load_match(struct replay *r, const struct tsr_prompt *prompt, const struct tsr_match *m)
{
    struct tsr_load load = {.size = sizeof load,
                            .space = r->space,
                            .match = m,
                            .prompt = prompt,
                            .view = {.data = r->kv, .bytes = (size_t)m->n_tokens * TOKEN_BYTES}};
    int n = tsr_load(r->client, &load, 1);
    if (n < 0) return n;
    if (n == 0) return 0;
    if (!kv_is_right(r, m->prompt_offset, m->n_tokens))
        return tsri_fail(TSR_ECORRUPT, "KV of tokens %u to %u differs from what was stored",
                         m->prompt_offset, m->prompt_offset + m->n_tokens);
    r->result.tokens_reused += m->n_tokens;
    return 0;
}

static int store(struct replay *r, uint32_t kind, uint32_t offset, uint32_t n, uint32_t from)
{
    struct tsr_store s = {.size = sizeof s,
                          .space = r->space,
                          .kind = kind,
                          .tokens = r->tokens + offset,
                          .n_tokens = n,
                          .from = from,
                          .view = make_kv(r, offset + from, n - from)};
    int err = tsr_store(r->client, &s);
    /* What any engine does when there is no room: go on without. */
    if (err == TSR_EFULL || err == TSR_ERANGE || err == TSR_EAGAIN || err == TSR_EFROZEN) {
        r->result.refused++;
        return 0;
    }
    return err < 0 ? err : 0;
}

/* Stores the segments that no match covers; matches are in the order of the prompt. */
static int store_missing(struct replay *r, uint32_t n_segments, uint32_t n_matches)
{
    for (uint32_t s = 0, m = 0; s < n_segments; s++) {
        struct tsr_range range = r->segments[s];
        while (m < n_matches && r->matches[m].prompt_offset < range.offset)
            m++;
        if (m < n_matches && r->matches[m].prompt_offset == range.offset &&
            r->matches[m].n_tokens == range.n_tokens)
            continue;
        int err = store(r, TSR_KIND_SEGMENT, range.offset, range.n_tokens, 0);
        if (err) return err;
    }
    return 0;
}

static int replay_request(struct replay *r, size_t i)
{
    const struct tsri_trace_request *q = &r->trace->requests[i];
    bool prefix = q->prefix || r->as_prefix;
    make_prompt(r, q);
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = r->tokens,
                                .n_tokens = q->n_tokens,
                                .flags = prefix ? TSR_PROMPT_PREFIX : TSR_PROMPT_SEGMENTS,
                                .segments = prefix ? NULL : r->segments,
                                .n_segments = prefix ? 0 : q->n_chunks};
    struct tsr_lookup lookup = {.size = sizeof lookup,
                                .spaces = &r->space,
                                .n_spaces = 1,
                                .matches = r->matches,
                                .matches_max = r->matches_max,
                                .request_id = i + 1};
    int err = tsr_lookup(r->client, &prompt, &lookup);
    if (err < 0) return err;
    r->result.requests++;
    r->result.tokens_asked += q->n_tokens;
    err = 0;
    for (uint32_t m = 0; !err && m < lookup.n_matches; m++)
        err = load_match(r, &prompt, &r->matches[m]);
    uint32_t from = lookup.n_prefix_tokens / r->block_tokens * r->block_tokens;
    if (!err && !prefix)
        err = store_missing(r, q->n_chunks, lookup.n_matches);
    else if (!err && lookup.n_prefix_tokens < q->n_tokens)
        err = store(r, TSR_KIND_PREFIX, 0, q->n_tokens, from);
    tsr_release(r->client, i + 1);
    return err;
}

/* ---- one replay ---- */

static int take_buffers(struct replay *r)
{
    uint32_t tokens_max = 1, chunks_max = 1;
    for (size_t i = 0; i < r->trace->n_requests; i++) {
        const struct tsri_trace_request *q = &r->trace->requests[i];
        if (q->n_tokens > tokens_max) tokens_max = q->n_tokens;
        if (q->n_chunks > chunks_max) chunks_max = q->n_chunks;
    }
    r->matches_max = chunks_max + tokens_max / r->block_tokens + 1;
    r->tokens = tsri_alloc(tokens_max, sizeof *r->tokens);
    r->segments = tsri_alloc(chunks_max, sizeof *r->segments);
    r->matches = tsri_alloc(r->matches_max, sizeof *r->matches);
    r->kv = tsri_alloc(tokens_max, TOKEN_BYTES);
    return r->tokens && r->segments && r->matches && r->kv ? 0 : TSR_ENOMEM;
}

static int replay_all(struct replay *r, struct tsr_config *cfg)
{
    struct tsr_space_desc desc = {.size = sizeof desc,
                                  .model = "tessera-replay",
                                  .dtype = TSR_DTYPE_F16,
                                  .n_layers = 1,
                                  .n_heads = 1,
                                  .k_dim = ROW_BYTES / 2};
    struct tsr_stats stats = {.size = sizeof stats};
    int err = tsr_open(&r->cache, cfg);
    if (!err) err = tsr_space_open(&r->space, r->cache, &desc);
    if (!err) err = tsr_client_open(&r->client, r->cache);
    if (!err) err = take_buffers(r);
    uint64_t start_ns = tsri_now_ns();
    for (size_t i = 0; !err && i < r->trace->n_requests; i++)
        err = replay_request(r, i);
    r->result.seconds = (double)(tsri_now_ns() - start_ns) * 1e-9;
    if (!err) err = tsr_stats_get(r->cache, &stats);
    r->result.bytes = stats.store_bytes;
    r->result.evicted = stats.evicted;
    tsr_client_close(r->client);
    tsr_space_close(r->space);
    tsr_close(r->cache);
    tsri_free(r->tokens);
    tsri_free(r->segments);
    tsri_free(r->matches);
    tsri_free(r->kv);
    return err < 0 ? err : 0;
}

/* ---- the command ---- */

static double hit_rate(const struct result *r)
{
    return r->tokens_asked ? (double)r->tokens_reused / (double)r->tokens_asked : 0;
}

static int print_table(const struct tsri_cli *cli, const struct result *results, size_t n)
{
    static const char *const heads[] = {"host size", "requests",  "tokens asked", "tokens reused",
                                        "hit rate",  "KV stored", "evictions",    "refused"};
    struct tsri_table t;
    tsri_table_init(&t, "rrrrrrrr");
    for (size_t i = 0; i < TSRI_COUNT(heads); i++)
        tsri_table_add(&t, "%s", heads[i]);
    for (size_t i = 0; i < n; i++) {
        const struct result *r = &results[i];
        char size[32];
        tsri_table_add(&t, "%s", tsri_cli_size(r->host_size, size));
        tsri_table_add(&t, "%" PRIu64, r->requests);
        tsri_table_add(&t, "%" PRIu64, r->tokens_asked);
        tsri_table_add(&t, "%" PRIu64, r->tokens_reused);
        tsri_table_add(&t, "%.1f %%", 100 * hit_rate(r));
        tsri_table_add(&t, "%s", tsri_cli_size(r->bytes, size));
        tsri_table_add(&t, "%" PRIu64, r->evicted);
        tsri_table_add(&t, "%" PRIu64, r->refused);
    }
    int status = tsri_table_print(&t, cli);
    tsri_table_fini(&t);
    return status;
}

static void print_json(const char *trace, const char *as, const struct result *results, size_t n)
{
    printf("{\"trace\":");
    tsri_cli_print_json_string(trace);
    printf(",\"as\":\"%s\",\"runs\":[", as);
    for (size_t i = 0; i < n; i++) {
        const struct result *r = &results[i];
        printf("%s\n{\"host_size\":%" PRIu64 ",\"requests\":%" PRIu64 ",\"tokens_asked\":%" PRIu64
               ",\"tokens_reused\":%" PRIu64 ",\"hit_rate\":%.6f,\"store_bytes\":%" PRIu64
               ",\"evictions\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"seconds\":%.3f}",
               i ? "," : "", r->host_size, r->requests, r->tokens_asked, r->tokens_reused,
               hit_rate(r), r->bytes, r->evicted, r->refused, r->seconds);
    }
    puts("\n]}");
}

/* --sizes as a list, or the option host_size alone; how many, or the negative exit status. */
static int read_sizes(struct tsri_cli *cli, char sizes[SIZES_MAX][32])
{
    const char *list = tsri_cli_flag(cli, "sizes");
    int n = 0;
    if (!list) {
        snprintf(sizes[0], sizeof sizes[0], "%s", tsr_config_get(cli->config, "host_size"));
        return 1;
    }
    for (const char *at = list;; n++) {
        size_t length = strcspn(at, ",");
        if (n == SIZES_MAX || length == 0 || length >= sizeof sizes[0])
            return -tsri_cli_usage(cli, "--sizes: '%s' is no list of 1 to %d sizes", list,
                                   SIZES_MAX);
        snprintf(sizes[n], sizeof sizes[n], "%.*s", (int)length, at);
        if (tsr_config_set(cli->config, "host_size", sizes[n]) < 0)
            return -tsri_cli_usage(cli, "--sizes: %s", tsr_errmsg());
        at += length;
        if (!*at++) return n + 1;
    }
}

/* Sets an option that the user left alone. */
static int set_default(struct tsr_config *cfg, const char *key, const char *value)
{
    const struct tsri_option *o = tsri_option_find(key);
    /* "call" is what an earlier size set here. */
    const char *origin = tsri_config_origin(cfg, o);
    if (strcmp(origin, "default") != 0 && strcmp(origin, "call") != 0) return 0;
    return tsr_config_set(cfg, key, value);
}

/* The configuration for one size: memory for tokens is derived from host_size with real models in
 * mind, whose KV is a thousand times larger than ours. */
static int configure(struct tsr_config *cfg, const char *size)
{
    char metadata[32];
    int err = tsr_config_set(cfg, "host_size", size);
    if (err < 0) return err;
    uint64_t bytes = tsri_config_options(cfg)->host_size / 4;
    snprintf(metadata, sizeof metadata, "%" PRIu64, bytes > MEBIBYTE ? bytes : MEBIBYTE);
    err = set_default(cfg, "metadata_size", metadata);
    return err < 0 ? err : set_default(cfg, "host_page_size", PAGE_SIZE);
}

static int run_sizes(struct tsri_cli *cli, const struct tsri_trace *trace, const char *name,
                     bool as_prefix)
{
    char sizes[SIZES_MAX][32];
    struct result results[SIZES_MAX];
    int n = read_sizes(cli, sizes);
    if (n < 0) return -n;
    for (int i = 0; i < n; i++) {
        if (configure(cli->config, sizes[i]) < 0) return tsri_cli_fail("%s", tsr_errmsg());
        const struct tsri_options *o = tsri_config_options(cli->config);
        struct replay r = {.trace = trace, .as_prefix = as_prefix, .block_tokens = o->chunk_size};
        r.result.host_size = o->host_size;
        if (replay_all(&r, cli->config) < 0)
            return tsri_cli_fail("replay: request %" PRIu64 ": %s", r.result.requests + 1,
                                 tsr_errmsg());
        results[i] = r.result;
    }
    if (!cli->json) return print_table(cli, results, (size_t)n);
    print_json(name, as_prefix ? "prefix" : "trace", results, (size_t)n);
    return 0;
}

int tsri_cmd_replay(struct tsri_cli *cli)
{
    const char *as = tsri_cli_flag(cli, "as"), *text = tsri_cli_flag(cli, "limit");
    uint64_t limit = UINT64_MAX;
    struct tsri_trace trace;
    int status = tsri_cli_want_args(cli, 0, 1);
    if (status) return status;
    if (as && strcmp(as, "trace") != 0 && strcmp(as, "prefix") != 0)
        return tsri_cli_usage(cli, "--as: '%s' is neither trace nor prefix", as);
    char *end = NULL;
    if (text) {
        errno = 0;
        limit = strtoull(text, &end, 10);
        if (text[0] < '0' || text[0] > '9' || *end || limit == 0 || errno)
            return tsri_cli_usage(cli, "--limit: '%s' is no count", text);
    }
    status = tsri_cli_config(cli);
    if (status) return status;
    const char *name = cli->n_args ? cli->args[0] : "built-in";
    int err =
        cli->n_args ? tsri_trace_load(&trace, name, limit) : tsri_trace_builtin(&trace, limit);
    if (err < 0) return tsri_cli_fail("%s", tsr_errmsg());
    status = run_sizes(cli, &trace, name, as && strcmp(as, "prefix") == 0);
    tsri_trace_fini(&trace);
    return status;
}
