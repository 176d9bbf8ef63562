/* bench_select - which tokens to recompute: the largest 15 % of 32K scores. On the cpu against a
 * plain sum over the same scores; on an accelerator, when there is one, as time. */
#include "device/device.h"
#include "support/bench.h"

#include <stdio.h>
#include <stdlib.h>

enum { N_TOKENS = 32768, N_TOP = N_TOKENS * 15 / 100, CALLS = 20 };

struct work {
    struct tsri_device *device;
    struct tsr_device_stream *stream;
    float *scores; /* device memory */
    uint32_t *top;
};

static void must(int result)
{
    if (result >= 0) return;
    fprintf(stderr, "bench_select: %s\n", tsr_errmsg());
    exit(1);
}

static bool work_init(struct work *w, const char *device)
{
    float *scores = tsri_alloc(N_TOKENS, sizeof *scores);
    void *p[2];
    if (!scores || tsri_device_open(&w->device, device, NULL) != 0) {
        tsri_free(scores);
        return false;
    }
    must(tsri_stream_open(&w->stream, w->device, NULL, 0));
    must(tsri_device_alloc(w->device, &p[0], N_TOKENS * sizeof *w->scores));
    must(tsri_device_alloc(w->device, &p[1], N_TOP * sizeof *w->top));
    w->scores = p[0];
    w->top = p[1];
    for (uint32_t i = 0; i < N_TOKENS; i++)
        scores[i] = (float)(i * 2654435761u % 100003);
    struct tsr_copy copy = {w->scores, scores, N_TOKENS * sizeof *scores};
    must(tsri_device_copy(w->device, w->stream, &copy, 1));
    must(tsri_stream_sync(w->device, w->stream));
    tsri_free(scores);
    return true;
}

static void work_fini(struct work *w)
{
    tsri_device_free(w->device, w->top);
    tsri_device_free(w->device, w->scores);
    tsri_stream_close(w->device, w->stream);
    tsri_device_close(w->device);
}

static void top_k(void *arg)
{
    struct work *w = arg;
    struct tsr_top_k t = {w->scores, w->top, N_TOKENS, N_TOP};
    must(tsri_device_top_k(w->device, w->stream, &t));
}

/* Many queued, waited for once: what a stream of them costs each. */
static void many(void *arg)
{
    struct work *w = arg;
    for (int i = 0; i < CALLS; i++)
        top_k(w);
    must(tsri_stream_sync(w->device, w->stream));
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
    struct work w;
    bench_init("bench_select", argc, argv);
    if (!work_init(&w, "cpu")) return 1;
    many(&w);
    BENCH_CHECK(w.top[N_TOP - 1] < N_TOKENS);
    bench_pair("bench_select", "cpu top-k 32K", top_k, sum_scores, &w, 15, 0);
    work_fini(&w);
    if (work_init(&w, "cuda")) {
        many(&w);
        struct bench_result r = bench_run(&(struct bench_case){
            .name = "cuda top-k 32K, 20 times", .run = many, .arg = &w, .reps = 1});
        bench_report("cuda top-k 32K", r.value / CALLS / 1e6, "ms", 0, 0.2, false);
        work_fini(&w);
    }
    return bench_end();
}
