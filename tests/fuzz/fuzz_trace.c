/* fuzz_trace.c - any bytes as a trace file. Refused ones say where; accepted ones have requests
 * whose chunks are all there, in order, and add up. */
#include "lab/lab.h"

#include "as_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds) abort();
}

static void check(const struct tsri_trace *t)
{
    size_t n_chunks = 0;
    for (size_t i = 0; i < t->n_requests; i++) {
        const struct tsri_trace_request *r = &t->requests[i];
        uint64_t n_tokens = 0;
        require(r->n_chunks > 0 && r->chunk_first == n_chunks);
        n_chunks += r->n_chunks;
        require(n_chunks <= t->n_chunks);
        for (uint32_t c = 0; c < r->n_chunks; c++) {
            uint32_t n = t->chunks[r->chunk_first + c].n_tokens;
            require(n > 0 && (!r->prefix || n <= TSRI_TRACE_BLOCK_TOKENS));
            n_tokens += n;
        }
        require(n_tokens == r->n_tokens && n_tokens <= TSRI_TRACE_TOKENS_MAX);
    }
    require(n_chunks == t->n_chunks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tsri_trace t;
    const char *path = as_file(data, size);
    if (tsri_trace_load(&t, path, SIZE_MAX) == 0) {
        check(&t);
        tsri_trace_fini(&t);
    } else {
        require(strncmp(tsr_errmsg(), path, strlen(path)) == 0);
    }
    return 0;
}
