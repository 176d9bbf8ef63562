/* trace.c - reads access traces: JSON lines, each a request in one of two forms,
 *
 *   {"chunks":[[id,tokens],...]}                independent segments
 *   {"hash_ids":[id,...],"input_length":n}      blocks of 512 tokens of one text, the last
 *                                               one short
 *
 * A "timestamp" in milliseconds says when the request came. Other members are passed over. Ids are
 * below 2^63, as far as jansson's integers go. Lines, nesting (cli/json.h) and counts are bounded,
 * so that any file is safe to name. */
#include "cli/json.h"
#include "lab/lab.h"

#include <stdlib.h>

#define LINE_BYTES_MAX ((size_t)16 << 20)
#define REQUESTS_MAX ((size_t)1 << 26)
#define CHUNKS_MAX ((size_t)1 << 30)

/* ---- building ---- */

/* The array with room for one more than n; NULL with a message when it would be too long. */
static void *grow(void *items, size_t *room, size_t n, size_t item_bytes, size_t max)
{
    if (n < *room) return items;
    size_t more = *room ? 2 * *room : 1024;
    void *p = n < max ? realloc(items, more * item_bytes) : NULL;
    if (p)
        *room = more;
    else
        tsri_fail(TSR_ERANGE, n < max ? "no memory for the trace" : "too long");
    return p;
}

int tsri_trace_add_request(struct tsri_trace *t, bool prefix)
{
    void *p =
        grow(t->requests, &t->requests_room, t->n_requests, sizeof *t->requests, REQUESTS_MAX);
    if (!p) return TSR_ERANGE;
    t->requests = p;
    t->requests[t->n_requests++] =
        (struct tsri_trace_request){.chunk_first = t->n_chunks, .prefix = prefix};
    return 0;
}

int tsri_trace_add_chunk(struct tsri_trace *t, uint64_t id, uint64_t n_tokens)
{
    struct tsri_trace_request *r = &t->requests[t->n_requests - 1];
    if (n_tokens == 0) return tsri_fail(TSR_EINVAL, "a chunk without tokens");
    if (n_tokens > TSRI_TRACE_TOKENS_MAX - r->n_tokens)
        return tsri_fail(TSR_ERANGE, "more than %u tokens in a request", TSRI_TRACE_TOKENS_MAX);
    void *p = grow(t->chunks, &t->chunks_room, t->n_chunks, sizeof *t->chunks, CHUNKS_MAX);
    if (!p) return TSR_ERANGE;
    t->chunks = p;
    t->chunks[t->n_chunks++] = (struct tsri_trace_chunk){id, (uint32_t)n_tokens};
    r->n_chunks++;
    r->n_tokens += (uint32_t)n_tokens;
    return 0;
}

void tsri_trace_fini(struct tsri_trace *t)
{
    free(t->requests);
    free(t->chunks);
    *t = (struct tsri_trace){0};
}

/* ---- the members that count ---- */

static bool is_whole(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) >= 0;
}

static int read_chunks(struct tsri_trace *t, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i);
        const json_t *id = json_array_get(pair, 0), *n_tokens = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !is_whole(id) || !is_whole(n_tokens))
            return tsri_fail(TSR_EINVAL, "chunks[%zu]: expected [id,tokens]", i);
        int err = tsri_trace_add_chunk(t, (uint64_t)json_integer_value(id),
                                       (uint64_t)json_integer_value(n_tokens));
        if (err) return tsri_fail(err, "chunks[%zu]: %s", i, tsr_errmsg());
    }
    return json_array_size(list) ? 0 : tsri_fail(TSR_EINVAL, "chunks: expected a list of chunks");
}

/* The last block is as long as the input leaves it. */
static int read_blocks(struct tsri_trace *t, const json_t *list, const json_t *length)
{
    if (!length) return tsri_fail(TSR_EINVAL, "hash_ids without input_length");
    if (!is_whole(length)) return tsri_fail(TSR_EINVAL, "input_length: expected a whole number");
    if (json_array_size(list) == 0)
        return tsri_fail(TSR_EINVAL, "hash_ids: expected a list of ids");
    uint64_t n_tokens = (uint64_t)json_integer_value(length);
    uint64_t n = n_tokens / TSRI_TRACE_BLOCK_TOKENS + (n_tokens % TSRI_TRACE_BLOCK_TOKENS != 0);
    if (n != json_array_size(list))
        return tsri_fail(TSR_EINVAL, "%zu hash_ids for an input_length of %llu: expected %llu",
                         json_array_size(list), (unsigned long long)n_tokens,
                         (unsigned long long)n);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        if (!is_whole(id)) return tsri_fail(TSR_EINVAL, "hash_ids[%zu]: expected an id", i);
        uint64_t left = n_tokens - i * TSRI_TRACE_BLOCK_TOKENS;
        int err =
            tsri_trace_add_chunk(t, (uint64_t)json_integer_value(id),
                                 left < TSRI_TRACE_BLOCK_TOKENS ? left : TSRI_TRACE_BLOCK_TOKENS);
        if (err) return tsri_fail(err, "hash_ids[%zu]: %s", i, tsr_errmsg());
    }
    return 0;
}

static int read_request(struct tsri_trace *t, const json_t *line)
{
    const json_t *chunks = json_object_get(line, "chunks"),
                 *blocks = json_object_get(line, "hash_ids");
    if (!chunks && !blocks) return tsri_fail(TSR_EINVAL, "neither chunks nor hash_ids");
    if (chunks && blocks) return tsri_fail(TSR_EINVAL, "both chunks and hash_ids");
    int err = tsri_trace_add_request(t, blocks != NULL);
    if (err) return err;
    double at_s = json_number_value(json_object_get(line, "timestamp")) * 1e-3;
    if (at_s > t->duration_s) t->duration_s = at_s;
    return chunks ? read_chunks(t, chunks)
                  : read_blocks(t, blocks, json_object_get(line, "input_length"));
}

int tsri_trace_load(struct tsri_trace *t, const char *path, size_t limit)
{
    struct tsri_json_lines lines;
    *t = (struct tsri_trace){0};
    int err = tsri_json_lines_open(&lines, path, LINE_BYTES_MAX);
    while (!err && t->n_requests < limit) {
        json_t *line;
        int more = tsri_json_lines_next(&lines, &line);
        if (more <= 0) {
            err = more;
            break;
        }
        err = read_request(t, line);
        if (err) tsri_fail(err, "%s:%zu: %s", path, lines.number, tsr_errmsg());
        json_decref(line);
    }
    tsri_json_lines_close(&lines);
    if (!err && t->n_requests == 0) err = tsri_fail(TSR_EINVAL, "%s: no requests", path);
    if (err) tsri_trace_fini(t);
    return err;
}
