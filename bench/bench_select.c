/* bench_select - which tokens to recompute: the deviation of K at a check layer, and the largest
 * 15 % of it, over 32K tokens of an 8B shape (8 heads of 128, bf16, in pages). On the cpu against a
 * plain sum over the same bytes; on an accelerator, when there is one, as time. */
#include "device/device.h"
#include "support/bench.h"

#include <stdio.h>
#include <stdlib.h>

enum { N_TOKENS = 32768, N_HEADS = 8, DIM = 128, BLOCK = 16, ROW = N_HEADS * DIM * 2 };
enum { N_TOP = N_TOKENS * 15 / 100, CALLS = 20 };

struct work {
    struct tsri_device *device;
    struct tsr_device_stream *stream;
    struct tsri_batch *batch;
    struct tsr_kv_layout layout;
    struct tsr_kv_cells cells;
    struct tsr_kv_run run;
    void *plane;
    int64_t slots[N_TOKENS];
    uint8_t *engine, *fresh; /* device memory */
    float *scores;
    uint32_t *top;
    const uint8_t *rows[2]; /* the same bytes in host memory, for the baseline */
};

static void must(int result)
{
    if (result >= 0) return;
    fprintf(stderr, "bench_select: %s\n", tsr_errmsg());
    exit(1);
}

static void *device_bytes(struct work *w, size_t bytes)
{
    void *p;
    must(tsri_device_alloc(w->device, &p, bytes));
    return p;
}

static void fill(struct work *w, uint8_t *dst, uint16_t first)
{
    uint16_t *rows = tsri_alloc(N_TOKENS, ROW);
    for (size_t i = 0; i < (size_t)N_TOKENS * ROW / 2; i++)
        rows[i] = (uint16_t)(first + i * 2654435761u % 1000);
    struct tsr_copy copy = {dst, rows, (size_t)N_TOKENS * ROW};
    must(tsri_device_copy(w->device, w->stream, &copy, 1));
    must(tsri_stream_sync(w->device, w->stream));
    tsri_free(rows);
}

static bool work_init(struct work *w, const char *device)
{
    if (tsri_device_open(&w->device, device, NULL) != 0) return false;
    must(tsri_stream_open(&w->stream, w->device, NULL));
    w->engine = device_bytes(w, (size_t)N_TOKENS * ROW);
    w->fresh = device_bytes(w, (size_t)N_TOKENS * ROW);
    w->scores = device_bytes(w, N_TOKENS * sizeof *w->scores);
    w->top = device_bytes(w, N_TOP * sizeof *w->top);
    fill(w, w->engine, 0x3c00);
    fill(w, w->fresh, 0x3c40);
    w->layout = (struct tsr_kv_layout){.size = sizeof w->layout,
                                       .memory = TSR_MEMORY_DEVICE,
                                       .n_layers = 1,
                                       .n_planes = 1,
                                       .block_tokens = BLOCK,
                                       .n_slots = N_TOKENS};
    w->layout.planes[0] = (struct tsr_kv_plane){.base = w->engine,
                                                .block_stride = BLOCK * ROW,
                                                .token_stride = ROW,
                                                .head_stride = DIM * 2,
                                                .element_stride = 2,
                                                .dtype = TSR_DTYPE_BF16,
                                                .n_heads = N_HEADS,
                                                .dim = DIM,
                                                .rope_dims = DIM};
    for (uint32_t i = 0; i < N_TOKENS; i++) /* blocks in another order */
        w->slots[i] = (int64_t)((i / BLOCK * 1021) % (N_TOKENS / BLOCK)) * BLOCK + i % BLOCK;
    /* Nothing is moved: the cells only have to be there. */
    w->plane = w->fresh;
    w->cells = (struct tsr_kv_cells){.size = sizeof w->cells,
                                     .planes = &w->plane,
                                     .n_cells = 1,
                                     .cell_tokens = N_TOKENS,
                                     .n_tokens = N_TOKENS,
                                     .n_layers = 1,
                                     .n_planes = 1,
                                     .memory = TSR_MEMORY_DEVICE};
    w->run = (struct tsr_kv_run){&w->cells, w->slots, 0, N_TOKENS, 0, 0, 0};
    struct tsr_batch_limits limits = {1, N_TOKENS, 1, 1};
    struct tsri_batch_desc desc = {TSRI_BATCH_SCATTER, 1, &w->layout, &w->run, NULL, 0};
    must(tsri_batch_open(&w->batch, w->device, &limits));
    must(tsri_batch_set(w->batch, w->stream, &desc));
    return true;
}

static void work_fini(struct work *w)
{
    tsri_batch_close(w->batch);
    tsri_device_free(w->device, w->top);
    tsri_device_free(w->device, w->scores);
    tsri_device_free(w->device, w->fresh);
    tsri_device_free(w->device, w->engine);
    tsri_stream_close(w->device, w->stream);
    tsri_device_close(w->device);
}

static void deviation(void *arg)
{
    struct work *w = arg;
    struct tsr_deviation v = {w->fresh, ROW, w->scores, 0, 0, 0, 0};
    must(tsri_batch_deviation(w->batch, &v));
}

static void top_k(void *arg)
{
    struct work *w = arg;
    struct tsr_top_k t = {w->scores, w->top, N_TOKENS, N_TOP};
    must(tsri_device_top_k(w->device, w->stream, &t));
}

/* Many queued, waited for once: what a stream of them costs each. */
static void both(void *arg)
{
    struct work *w = arg;
    for (int i = 0; i < CALLS; i++) {
        deviation(w);
        top_k(w);
    }
    must(tsri_stream_sync(w->device, w->stream));
}

static void sum_bytes(void *arg)
{
    struct work *w = arg;
    uint64_t sum = 0;
    for (int k = 0; k < 2; k++) {
        const uint64_t *words = (const uint64_t *)(const void *)w->rows[k];
        for (size_t i = 0; i < (size_t)N_TOKENS * ROW / 8; i++)
            sum += words[i];
    }
    bench_keep(sum);
}

static void sum_scores(void *arg)
{
    struct work *w = arg;
    const uint32_t *words = (const uint32_t *)(const void *)w->scores;
    uint64_t sum = 0;
    for (size_t i = 0; i < N_TOKENS; i++)
        sum += words[i];
    bench_keep(sum);
}

int main(int argc, char **argv)
{
    struct work *w = tsri_alloc(1, sizeof *w);
    bench_init("bench_select", argc, argv);
    if (!w || !work_init(w, "cpu")) return 1;
    w->rows[0] = w->engine;
    w->rows[1] = w->fresh;
    both(w);
    BENCH_CHECK(w->scores[5] > 0 && w->top[N_TOP - 1] < N_TOKENS);
    bench_pair("bench_select", "cpu deviation 32K", deviation, sum_bytes, w, 15, 0);
    bench_pair("bench_select", "cpu top-k 32K", top_k, sum_scores, w, 15, 0);
    work_fini(w);
    if (work_init(w, "cuda")) {
        both(w);
        struct bench_result r = bench_run(&(struct bench_case){
            .name = "cuda deviation + top-k 32K, 20 times", .run = both, .arg = w, .reps = 1});
        bench_report("cuda deviation + top-k 32K", r.value / CALLS / 1e6, "ms", 0, 0.2, false);
        work_fini(w);
    }
    tsri_free(w);
    return bench_end();
}
