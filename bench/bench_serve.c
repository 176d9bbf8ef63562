/* bench_serve.c - the engine of `tessera serve` against libllama on the same file and threads, as
 * llama-server uses it: tokens per second of one and of four answers, of a prompt, the memory beyond
 * weights and KV, and the longest time that a running answer waits while a prompt is read. Rounds are
 * in turns; the result is the median of their ratios. With one thread the clock is that of the
 * process, which other programs do not change (TESSERA_TEST_THREADS=1).
 *
 * Needs libtessera-model.so and a model: TESSERA_MODEL, or that of tools/setup --model. */
#include "support/bench.h"

#ifdef TSRI_HAVE_LLAMA
#include "llama_side.h"

#include "serve/engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TEAM = 4, CONTEXT = 64, STEPS = 6, PROMPT = 512, SLOTS = 2048, ROUNDS = 3, CUT = 128 };

struct work {
    struct tsr_model *model;
    struct tsr_model_info info;
    struct tsr_session *sessions[TEAM];
    struct tsr_decoder *decoder;
    struct llama_team *llama;
    float *logits;
    uint32_t tokens[SLOTS], n_threads;
};

static double clock_s(const struct work *w)
{
    struct timespec t;
    clock_gettime(w->n_threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- ours ---- */

static const char *library(char *path, size_t bytes)
{
    char own[3000];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    BENCH_CHECK(n > 0);
    own[n] = 0;
    for (int up = 0; up < 2; up++)
        *strrchr(own, '/') = 0;
    snprintf(path, bytes, "%s/lib/libtessera-model.so", own);
    return path;
}

static void open_model(struct work *w, const char *path)
{
    char where[4096];
    struct tsr_model_desc d = {.size = sizeof d,
                               .path = path,
                               .library = library(where, sizeof where),
                               .n_threads = w->n_threads};
    w->info.size = sizeof w->info;
    BENCH_CHECK(tsr_model_open(&w->model, NULL, &d) == 0);
    BENCH_CHECK(tsr_model_info(w->model, &w->info) == 0);
    w->logits = calloc((size_t)TEAM * w->info.n_vocab, sizeof *w->logits);
    BENCH_CHECK(w->logits);
}

static void prefill(struct work *w, uint32_t session, uint32_t n)
{
    static struct tsr_model_row rows[SLOTS];
    struct tsr_model_group group = {n, 1, {{0, n}}};
    struct tsr_model_pass pass = {
        .size = sizeof pass, .rows = rows, .n_rows = n, .groups = &group, .n_groups = 1};
    struct tsr_session *s = w->sessions[session];
    uint32_t last = n - 1;
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct tsr_model_row){w->tokens[i], i, i};
    BENCH_CHECK(tsr_session_begin(s, &pass) == 0);
    for (uint32_t l = 0; l < w->info.n_layers; l++) {
        struct tsr_model_layer layer = {.size = sizeof layer, .layer = l};
        int r;
        while ((r = tsr_session_layer(s, &layer)) > 0)
            continue;
        BENCH_CHECK(r == 0);
    }
    BENCH_CHECK(tsr_session_logits(s, &last, 1, w->logits) == 0);
    tsr_session_end(s);
}

/* STEPS tokens of n answers; seconds. */
static double decode(struct work *w, uint32_t n, uint32_t flags)
{
    struct tsr_decoder_row rows[TEAM];
    double start = clock_s(w);
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct tsr_decoder_row){.session = w->sessions[i],
                                               .token = w->tokens[i + step],
                                               .position = CONTEXT + step};
        BENCH_CHECK(tsr_decoder_run(w->decoder, rows, n, flags, w->logits) == 0);
    }
    return clock_s(w) - start;
}

static double llama_decode_steps(struct work *w, uint32_t n)
{
    double start = clock_s(w);
    for (uint32_t step = 0; step < STEPS; step++)
        bench_keep((uint64_t)llama_team_decode(w->llama, w->tokens + step, n)[0]);
    double s = clock_s(w) - start;
    llama_team_back(w->llama, n, STEPS);
    return s;
}

/* ---- cases ---- */

static void decode_case(struct work *w, const char *name, uint32_t n, uint32_t flags)
{
    double ratios[ROUNDS], ours[ROUNDS], theirs[ROUNDS];
    if (!bench_wanted(name)) return;
    for (uint32_t i = 0; i < n; i++) {
        prefill(w, i, CONTEXT);
        llama_team_prefill(w->llama, i, w->tokens, CONTEXT);
    }
    (void)decode(w, n, flags);
    (void)llama_decode_steps(w, n);
    for (uint32_t r = 0; r < ROUNDS; r++) {
        ours[r] = n * STEPS / decode(w, n, flags);
        theirs[r] = n * STEPS / llama_decode_steps(w, n);
        ratios[r] = ours[r] / theirs[r];
    }
    double baseline = bench_median(theirs, ROUNDS), ratio = bench_median(ratios, ROUNDS);
    bench_report(name, baseline * ratio, "tokens/s", baseline, 0.95, true);
}

static void prefill_case(struct work *w, const char *name, uint32_t n, uint32_t cut)
{
    double ratios[ROUNDS], theirs[ROUNDS];
    if (!bench_wanted(name)) return;
    tsr_session_cut(w->sessions[0], cut);
    for (uint32_t r = 0; r < ROUNDS; r++) {
        double start = clock_s(w);
        prefill(w, 0, n);
        double own = clock_s(w) - start;
        start = clock_s(w);
        llama_team_prefill(w->llama, 0, w->tokens, n);
        theirs[r] = n / (clock_s(w) - start);
        ratios[r] = n / own / theirs[r];
    }
    double baseline = bench_median(theirs, ROUNDS), ratio = bench_median(ratios, ROUNDS);
    bench_report(name, baseline * ratio, "tokens/s", baseline, 0.97, true);
}

/* ---- memory ---- */

static double rss_mb(void)
{
    char line[256];
    double mb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %lf", &mb) == 1) break;
    if (f) fclose(f);
    return mb / 1024;
}

static double weights_mb;

static void note_weights(void)
{
    weights_mb = rss_mb();
}

static double kv_mb(const struct tsr_model_info *i, double n_tokens)
{
    return n_tokens * i->n_layers * 2 * i->n_kv_heads * i->head_dim * 2 / 1048576;
}

static void touch_kv(struct tsr_session *s)
{
    const struct tsr_kv_layout *layout = tsr_session_layout(s);
    for (uint32_t p = 0; p < layout->n_planes; p++)
        for (uint32_t l = 0; l < layout->n_layers; l++)
            memset(layout->planes[p].layers[l], 0, layout->planes[p].layer_bytes);
}

/* In a process of its own: private memory after a prompt and four answers, without that of the loaded
 * model and of the KV of all slots, which libllama clears. */
static double memory_of(const char *path, bool llama, uint32_t n_threads)
{
    int ends[2];
    double mb = 0;
    BENCH_CHECK(pipe(ends) == 0);
    fflush(stdout);
    pid_t child = fork();
    BENCH_CHECK(child >= 0);
    if (child == 0) {
        static struct work w;
        w.n_threads = n_threads;
        for (uint32_t i = 0; i < SLOTS; i++)
            w.tokens[i] = 1000 + i * 7 % 5000;
        open_model(&w, path);
        double weights = rss_mb();
        if (llama) {
            w.llama = llama_team_open(path, TEAM, SLOTS, n_threads, note_weights);
            weights = weights_mb;
            for (uint32_t i = 0; i < TEAM; i++)
                llama_team_prefill(w.llama, i, w.tokens, i ? CONTEXT : PROMPT);
            for (uint32_t i = 0; i < STEPS; i++)
                bench_keep((uint64_t)llama_team_decode(w.llama, w.tokens, TEAM)[0]);
        } else {
            for (uint32_t i = 0; i < TEAM; i++) {
                BENCH_CHECK(tsr_session_open(&w.sessions[i], w.model, SLOTS) == 0);
                tsr_session_cut(w.sessions[i], CUT);
                touch_kv(w.sessions[i]);
                prefill(&w, i, i ? CONTEXT : PROMPT);
            }
            BENCH_CHECK(tsr_decoder_open(&w.decoder, w.model, TEAM) == 0);
            (void)decode(&w, TEAM, TSR_DECODER_ALIKE);
        }
        mb = rss_mb() - weights - kv_mb(&w.info, TEAM * SLOTS);
        BENCH_CHECK(write(ends[1], &mb, sizeof mb) == sizeof mb);
        _exit(0);
    }
    close(ends[1]);
    BENCH_CHECK(read(ends[0], &mb, sizeof mb) == sizeof mb);
    close(ends[0]);
    waitpid(child, NULL, 0);
    return mb;
}

/* ---- the longest wait ---- */

static void count_event(void *arg, const struct tsri_job_event *e)
{
    if (e->kind == TSRI_EVENT_END) __atomic_add_fetch((uint32_t *)arg, 1, __ATOMIC_SEQ_CST);
}

/* One answer is written while a prompt is read: the longest time between two of its tokens. */
static void gap_case(struct work *w, const char *name)
{
    if (!bench_wanted(name)) return;
    struct tsr_blend_desc bd = {.size = sizeof bd, .model = w->model};
    struct tsri_engine_desc ed = {.model = w->model};
    struct tsri_engine *engine;
    struct tsri_engine_stats stats;
    uint32_t n_over = 0;
    uint64_t job;
    BENCH_CHECK(tsr_blend_open(&ed.blend, &bd) == 0);
    BENCH_CHECK(tsri_engine_open(&engine, &ed) == 0);
    struct tsri_job_desc d = {.tokens = w->tokens,
                              .n_tokens = 64,
                              .max_tokens = 400,
                              .client = 1,
                              .event = count_event,
                              .arg = &n_over};
    BENCH_CHECK(tsri_engine_submit(engine, &d, &job) == 0);
    d.n_tokens = SLOTS - 48;
    d.max_tokens = 1;
    d.client = 2;
    uint64_t start = bench_now_ns();
    BENCH_CHECK(tsri_engine_submit(engine, &d, &job) == 0);
    while (__atomic_load_n(&n_over, __ATOMIC_SEQ_CST) == 0)
        usleep(20000);
    double read_s = 1e-9 * (double)(bench_now_ns() - start);
    tsri_engine_stats(engine, &stats);
    tsri_engine_close(engine);
    tsr_blend_close(ed.blend);
    bench_report(name, stats.gap_max_s * 1e3, "ms", 0, 0, false);
    bench_report("gap: mean", stats.gap_s / (double)stats.answer_tokens * 1e3, "ms", 0, 0, false);
    bench_report("gap: prompt read in", read_s, "s", 0, 0, false);
}

int main(int argc, char **argv)
{
    static struct work w;
    char path[4096];
    bench_init("bench_serve", argc, argv);
    const char *named = getenv("TESSERA_MODEL"), *home = getenv("HOME");
    const char *threads = getenv("TESSERA_TEST_THREADS");
    snprintf(path, sizeof path, "%s/.cache/tessera/models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
             home ? home : "");
    if (access(named ? named : path, R_OK) != 0) {
        fprintf(stderr, "bench_serve: no model: tools/setup --model\n");
        return 77;
    }
    w.n_threads = threads ? (uint32_t)strtoul(threads, NULL, 10) : 2;
    for (uint32_t i = 0; i < SLOTS; i++)
        w.tokens[i] = 1000 + (uint32_t)((i * 2654435761u) >> 8) % 20000;
    const char *model = named ? named : path;
    if (bench_wanted("memory")) {
        double theirs = memory_of(model, true, w.n_threads);
        bench_report("memory", memory_of(model, false, w.n_threads), "MB", theirs, 1, false);
    }
    open_model(&w, model);
    for (uint32_t i = 0; i < TEAM; i++)
        BENCH_CHECK(tsr_session_open(&w.sessions[i], w.model, SLOTS) == 0);
    BENCH_CHECK(tsr_decoder_open(&w.decoder, w.model, TEAM) == 0);
    w.llama = llama_team_open(model, TEAM, SLOTS, w.n_threads, NULL);
    decode_case(&w, "decode 1", 1, 0);
    decode_case(&w, "decode 4", TEAM, 0);
    decode_case(&w, "decode 4 exact", TEAM, TSR_DECODER_ALIKE);
    prefill_case(&w, "prefill 512", PROMPT, 0);
    prefill_case(&w, "prefill 512 in pieces", PROMPT, CUT);
    llama_team_close(w.llama);
    gap_case(&w, "gap: longest");
    for (uint32_t i = 0; i < TEAM; i++)
        tsr_session_close(w.sessions[i]);
    tsr_decoder_close(w.decoder);
    tsr_model_close(w.model);
    free(w.logits);
    return bench_end();
}
#else
#include <stdio.h>

int main(int argc, char **argv)
{
    bench_init("bench_serve", argc, argv);
    fprintf(stderr, "bench_serve: llama.cpp is not installed: tools/setup --model\n");
    return 77;
}
#endif
