/* replay.c - an access trace against a real cache, opened through the public interface. Tokens are
 * made from the ids of the trace and KV from the tokens, both by formula: so a chunk is the same
 * text whenever its id returns, and every byte that the cache gives back can be compared. The KV of
 * a token is 64 bytes here, so that a cell of 64 tokens is one page of 4 KiB; a real model of 8
 * billion parameters has 128 KiB, and 1 MiB here holds as many tokens as 2 GiB there. */
#include "lab/replay.h"

#include "cache/cache.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define ROW_WORDS 8u                             /* K or V of one token */
#define ROW_BYTES (ROW_WORDS * sizeof(uint32_t)) /* 16 values of 2 bytes */
#define TOKEN_BYTES (2 * ROW_BYTES)

/* One replay: the handles, and buffers as long as the longest request. */
struct replay {
    const struct tsri_replay *how;
    const struct tsri_trace *trace;
    uint32_t block_tokens;
    struct tsr_cache *cache;
    struct tsr_space *space;
    struct tsr_client *client;
    uint32_t *tokens;
    struct tsr_range *segments;
    struct tsr_match *matches;
    uint32_t matches_max;
    uint32_t *kv;
    struct tsri_replay_result *result;
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
    struct tsr_load_desc load = {
        .size = sizeof load,
        .space = r->space,
        .match = m,
        .prompt = prompt,
        .view = {.data = r->kv, .bytes = (size_t)m->n_tokens * TOKEN_BYTES}};
    int n = tsr_client_load(r->client, &load, 1);
    if (n < 0) return n;
    if (n == 0) return 0;
    if (!kv_is_right(r, m->prompt_offset, m->n_tokens))
        return tsri_fail(TSR_ECORRUPT, "KV of tokens %u to %u differs from what was stored",
                         m->prompt_offset, m->prompt_offset + m->n_tokens);
    r->result->tokens_reused += m->n_tokens;
    if (m->tier != 0) r->result->tokens_from_disk += m->n_tokens;
    return 0;
}

static int store(struct replay *r, uint32_t kind, uint32_t offset, uint32_t n, uint32_t from)
{
    struct tsr_store_desc s = {.size = sizeof s,
                               .space = r->space,
                               .kind = kind,
                               .tokens = r->tokens + offset,
                               .n_tokens = n,
                               .from = from,
                               .view = make_kv(r, offset + from, n - from)};
    int err = tsr_client_store(r->client, &s);
    /* What any engine does when there is no room, or when a server has lost the block before the first
     * one that is stored: go on without. */
    if (err == TSR_EFULL || err == TSR_ERANGE || err == TSR_EAGAIN || err == TSR_EFROZEN ||
        err == TSR_ENOENT) {
        r->result->refused++;
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
    bool prefix = q->prefix || r->how->as_prefix;
    make_prompt(r, q);
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = r->tokens,
                                .n_tokens = q->n_tokens,
                                .flags = prefix ? TSR_PROMPT_PREFIX : TSR_PROMPT_SEGMENTS,
                                .segments = prefix ? NULL : r->segments,
                                .n_segments = prefix ? 0 : q->n_chunks};
    struct tsr_lookup_desc lookup = {.size = sizeof lookup,
                                     .spaces = &r->space,
                                     .n_spaces = 1,
                                     .matches = r->matches,
                                     .matches_max = r->matches_max,
                                     .request_id = i + 1};
    /* Who shares a tier asks it while the request waits in a queue. */
    int err = tsr_client_discover(r->client, r->space, &prompt);
    if (err >= 0) err = tsr_client_lookup(r->client, &prompt, &lookup);
    if (err < 0) return err;
    r->result->requests++;
    r->result->tokens_asked += q->n_tokens;
    err = 0;
    for (uint32_t m = 0; !err && m < lookup.n_matches; m++)
        err = load_match(r, &prompt, &r->matches[m]);
    uint32_t from = lookup.n_prefix_tokens / r->block_tokens * r->block_tokens;
    if (!err && !prefix)
        err = store_missing(r, q->n_chunks, lookup.n_matches);
    else if (!err && lookup.n_prefix_tokens < q->n_tokens)
        err = store(r, TSR_KIND_PREFIX, 0, q->n_tokens, from);
    tsr_client_release(r->client, i + 1);
    return err;
}

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

/* ---- a disk for one replay ---- */

static int make_directory(const char *in, char *path, size_t bytes)
{
    int n = snprintf(path, bytes, "%s/tessera-replay-XXXXXX", in);
    if (n < 0 || (size_t)n >= bytes) return tsri_fail(TSR_ERANGE, "%s: too long", in);
    if (!mkdtemp(path)) return tsri_fail(TSR_EIO, "%s: %s", path, strerror(errno));
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

static void remove_directory(const char *path)
{
    nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Its directory must go also when the user has seen enough. */
static volatile sig_atomic_t interrupted;

static void interrupt(int number)
{
    interrupted = number;
}

/* ---- one replay ---- */

static int open_all(struct replay *r)
{
    struct tsr_space_desc desc = {.size = sizeof desc,
                                  .model = "tessera-replay",
                                  .dtype = TSR_DTYPE_F16,
                                  .n_layers = 1,
                                  .n_heads = 1,
                                  .k_dim = ROW_BYTES / 2};
    int err = tsr_cache_open(&r->cache, r->how->config);
    if (!err) err = tsr_space_open(&r->space, r->cache, &desc);
    if (!err) err = tsr_client_open(&r->client, r->cache);
    return err ? err : take_buffers(r);
}

static void close_all(struct replay *r)
{
    tsr_client_close(r->client);
    tsr_space_close(r->space);
    tsr_cache_close(r->cache);
    tsri_free(r->tokens);
    tsri_free(r->segments);
    tsri_free(r->matches);
    tsri_free(r->kv);
}

static void count(struct replay *r)
{
    const struct tsri_stats *stats = tsri_cache_metrics(r->cache);
    r->result->host_write_bytes = tsri_stats_read(stats, TSRI_M_store_bytes);
    r->result->host_read_bytes = tsri_stats_read(stats, TSRI_M_load_bytes);
    r->result->disk_write_bytes = tsri_stats_read(stats, TSRI_M_tier_write_bytes);
    r->result->disk_read_bytes = tsri_stats_read(stats, TSRI_M_tier_read_bytes);
    r->result->evicted = tsri_stats_read(stats, TSRI_M_evictions);
}

static int replay_all(struct replay *r)
{
    int err = open_all(r);
    uint64_t start_ns = tsri_now_ns();
    for (size_t i = 0; !err && i < r->trace->n_requests; i++) {
        err = replay_request(r, i);
        if (interrupted) err = tsri_fail(TSR_EIO, "interrupted");
        if (r->how->progress) r->how->progress(r->how->arg, i + 1);
    }
    if (!err && (r->how->disk || r->how->keep)) err = tsr_cache_flush(r->cache);
    r->result->seconds = (double)(tsri_now_ns() - start_ns) * 1e-9;
    if (!err) count(r);
    close_all(r);
    return err < 0 ? err : 0;
}

/* Host memory, this disk and these servers, "" and NULL for none: never what the user keeps
 * elsewhere. */
static int set_tiers(struct tsr_config *cfg, const char *disk_path, const struct tsri_replay *how)
{
    const char *slash = how->s3 ? strrchr(how->s3, '/') : NULL;
    char endpoint[256] = "";
    if (how->s3 && (!slash || slash - how->s3 >= (ptrdiff_t)sizeof endpoint))
        return tsri_fail(TSR_EINVAL, "--s3: must be http://HOST:PORT/BUCKET");
    if (slash) snprintf(endpoint, sizeof endpoint, "%.*s", (int)(slash - how->s3), how->s3);
    const struct {
        const char *option, *value;
    } all[] = {{"tiers", ""},
               {"disk_enabled", "true"},
               {"disk_path", disk_path},
               {"disk2_path", ""},
               {"redis_address", how->redis ? how->redis : ""},
               {"s3_endpoint", endpoint},
               {"s3_bucket", slash ? slash + 1 : ""}};
    int err = 0;
    for (size_t i = 0; !err && i < TSRI_COUNT(all); i++)
        err = tsr_config_set(cfg, all[i].option, all[i].value);
    return err;
}

int tsri_replay_run(const struct tsri_replay *how, struct tsri_replay_result *out)
{
    *out = (struct tsri_replay_result){0};
    struct replay r = {.how = how,
                       .trace = how->trace,
                       .block_tokens = tsri_config_options(how->config)->chunk_size,
                       .result = out};
    char path[PATH_MAX] = "";
    bool own = how->disk && !how->keep;
    int err = own ? make_directory(how->disk, path, sizeof path) : 0;
    if (err) return err;
    struct sigaction act = {.sa_handler = interrupt}, before[2];
    sigaction(SIGINT, &act, &before[0]);
    sigaction(SIGTERM, &act, &before[1]);
    err = set_tiers(how->config, how->keep ? how->keep : path, how);
    if (!err) err = replay_all(&r);
    if (own) remove_directory(path);
    sigaction(SIGINT, &before[0], NULL);
    sigaction(SIGTERM, &before[1], NULL);
    return err;
}
