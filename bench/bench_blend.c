/* bench_blend.c - answering from cached documents on a real model: the time to the first token
 * against the same prompt computed whole, by the same executor in the same process; and the
 * executor against libllama on the same file and threads. A prefill takes seconds to minutes, so a
 * case is a few rounds in turns and their median, not the pairs of the other benches. Tokens are
 * random: what is computed does not depend on what they mean.
 *
 * Needs libtessera-model.so and the model of tools/setup --model. */
#include "support/bench.h"

#ifdef TSRI_HAVE_LLAMA
#include "llama_side.h"

#include <tessera/admin.h>
#include <tessera/blend.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_QUESTION 24u
#define N_SYSTEM 40u
#define ROUNDS_MAX 9u

struct work {
    struct tsr_model *model;
    struct tsr_model_info info;
    struct tsr_cache *cache;
    struct tsr_blend *blend, *plain;
    struct tsr_session *session;
    struct llama_side *llama;
    uint64_t seed;
    float *logits;
    char store[256];
};

/* A prompt: system prompt, documents, question. */
struct prompt {
    uint32_t *tokens;
    uint32_t n;
    struct tsr_range segments[16];
    uint32_t n_segments;
};

static uint64_t next(struct work *w)
{
    w->seed ^= w->seed << 13;
    w->seed ^= w->seed >> 7;
    w->seed ^= w->seed << 17;
    return w->seed * 0x2545F4914F6CDD1Du >> 33;
}

static void fill(struct work *w, uint32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = 100 + (uint32_t)(next(w) % (w->info.n_vocab - 100));
}

static struct prompt make_prompt(struct work *w, uint32_t n_docs, uint32_t doc_tokens)
{
    struct prompt p = {.n = N_SYSTEM + n_docs * doc_tokens + N_QUESTION, .n_segments = n_docs + 1};
    p.tokens = malloc(p.n * sizeof *p.tokens);
    BENCH_CHECK(p.tokens && n_docs < 16);
    fill(w, p.tokens, p.n);
    p.segments[0] = (struct tsr_range){0, N_SYSTEM};
    for (uint32_t i = 0; i < n_docs; i++)
        p.segments[i + 1] = (struct tsr_range){N_SYSTEM + i * doc_tokens, doc_tokens};
    return p;
}

/* The documents in another order. */
static struct prompt shuffled(const struct prompt *p)
{
    struct prompt q = *p;
    uint32_t n_docs = p->n_segments - 1, doc = p->segments[1].n_tokens;
    q.tokens = malloc(q.n * sizeof *q.tokens);
    BENCH_CHECK(q.tokens);
    memcpy(q.tokens, p->tokens, q.n * sizeof *q.tokens);
    for (uint32_t i = 0; i < n_docs; i++)
        memcpy(q.tokens + N_SYSTEM + i * doc, p->tokens + N_SYSTEM + (i * 7 + 3) % n_docs * doc,
               doc * sizeof *q.tokens);
    return q;
}

/* A new question for the next round: the old one would be a known prefix. */
static void ask_anew(struct work *w, struct prompt *p)
{
    fill(w, p->tokens + p->n - N_QUESTION, N_QUESTION);
}

/* ---- what is timed, in seconds ---- */

static double seconds(uint64_t since)
{
    return 1e-9 * (double)(bench_now_ns() - since);
}

static double full(struct work *w, const struct prompt *p)
{
    struct tsr_ask_desc ask = {.size = sizeof ask,
                               .session = w->session,
                               .tokens = p->tokens,
                               .n_tokens = p->n,
                               .selector = TSR_SELECT_FULL};
    uint64_t start = bench_now_ns();
    BENCH_CHECK(tsr_blend_ask(w->plain, &ask, w->logits, NULL) >= 0);
    return seconds(start);
}

struct way {
    uint32_t selector, flags;
    double ratio, bias;
};

static double blended(struct work *w, const struct prompt *p, const struct way *way,
                      struct tsr_blend_report *report)
{
    struct tsr_ask_desc ask = {.size = sizeof ask,
                               .session = w->session,
                               .tokens = p->tokens,
                               .n_tokens = p->n,
                               .segments = p->segments,
                               .n_segments = p->n_segments,
                               .system = 1,
                               .flags = TSR_ASK_RATIO | TSR_ASK_BIAS | way->flags,
                               .selector = way->selector,
                               .ratio = way->ratio,
                               .bias = way->bias};
    *report = (struct tsr_blend_report){.size = sizeof *report};
    uint64_t start = bench_now_ns();
    BENCH_CHECK(tsr_blend_ask(w->blend, &ask, w->logits, report) >= 0);
    return seconds(start);
}

/* ---- cases ---- */

/* Rounds of way against full, in turns; prints tokens a second of both and their ratio. */
static void versus_full(struct work *w, const char *name, struct prompt *p, const struct way *way,
                        uint32_t rounds, double target, bool cold)
{
    double ours[ROUNDS_MAX], theirs[ROUNDS_MAX];
    struct tsr_blend_report report;
    if (!bench_wanted(name)) return;
    (void)blended(w, p, &(struct way){TSR_SELECT_NONE, TSR_ASK_FILL, 0, 0}, &report);
    BENCH_CHECK(tsr_cache_flush(w->cache) >= 0);
    for (uint32_t i = 0; i < rounds; i++) {
        struct tsr_clear_desc host = {.size = sizeof host, .tier = 0};
        if (cold) BENCH_CHECK(tsr_cache_clear(w->cache, &host) >= 0);
        ask_anew(w, p);
        ours[i] = blended(w, p, way, &report);
        BENCH_CHECK(report.n_exact + report.n_reused + report.n_recomputed >=
                    p->n - N_QUESTION - p->n_segments);
        BENCH_CHECK(!cold || report.tier_tokens[0] < p->n / 2);
        theirs[i] = full(w, p);
    }
    double rate = p->n / bench_median(ours, rounds), base = p->n / bench_median(theirs, rounds);
    bench_report(name, rate, "tokens/s", base, target, true);
}

static void blend_cases(struct work *w, uint32_t n_docs, uint32_t doc_tokens, uint32_t rounds,
                        const double targets[4])
{
    struct prompt p = make_prompt(w, n_docs, doc_tokens);
    const struct way r0 = {TSR_SELECT_NONE, 0, 0, -0.7}, r5 = {TSR_SELECT_QUERY, 0, 0.05, -0.5},
                     r15 = {TSR_SELECT_QUERY, 0, 0.15, -0.3};
    char name[64];
#define NAME(what) (snprintf(name, sizeof name, what ", %u x %u", n_docs, doc_tokens), name)
    versus_full(w, NAME("r=0"), &p, &r0, rounds, targets[0], false);
    versus_full(w, NAME("r=5"), &p, &r5, rounds, targets[1], false);
    versus_full(w, NAME("r=15"), &p, &r15, rounds, targets[2], false);
    if (targets[3] > 0) versus_full(w, NAME("from disk, r=5"), &p, &r5, rounds, targets[3], true);
#undef NAME
    free(p.tokens);
}

static void chunk_cases(struct work *w)
{
    const struct way r5 = {TSR_SELECT_QUERY, 0, 0.05, -0.5};
    struct prompt one = make_prompt(w, 1, 600), five = make_prompt(w, 5, 600);
    versus_full(w, "one chunk", &one, &r5, 3, 0, false);
    versus_full(w, "five chunks", &five, &r5, 1, 0, false);
    free(one.tokens);
    free(five.tokens);
}

/* Nothing is known: the same prefill, with the cache asked in vain and without one. */
static void cold_miss(struct work *w)
{
    enum { ROUNDS = 5 };
    double with[ROUNDS], without[ROUNDS];
    if (!bench_wanted("cold miss")) return;
    struct prompt p = make_prompt(w, 4, 120);
    struct tsr_blend_report report;
    const struct way way = {TSR_SELECT_QUERY, 0, 0.05, 0};
    for (int i = 0; i < ROUNDS; i++) {
        fill(w, p.tokens, p.n);
        with[i] = blended(w, &p, &way, &report);
        BENCH_CHECK(report.n_new == p.n);
        without[i] = full(w, &p);
    }
    double inside = report.lookup_s + report.wait_s;
    bench_report("cold miss: inside our calls", 100 * inside / bench_median(without, ROUNDS), "%",
                 0, 1, false);
    bench_report("cold miss", 1e3 * bench_median(with, ROUNDS), "ms",
                 1e3 * bench_median(without, ROUNDS), 1.01, false);
    free(p.tokens);
}

/* What a process needs beyond weights and KV for a prompt of 2048 tokens. One of its own:
 * libllama's memory would count here. */
static double memory_beyond(const struct tsr_model_desc *desc)
{
    struct work w = {.seed = 1};
    struct rusage used;
    struct tsr_blend_desc plain = {.size = sizeof plain};
    w.info.size = sizeof w.info;
    BENCH_CHECK(tsr_model_open(&w.model, NULL, desc) == 0);
    BENCH_CHECK(tsr_model_info(w.model, &w.info) == 0);
    plain.model = w.model;
    BENCH_CHECK(tsr_blend_open(&w.plain, &plain) == 0);
    BENCH_CHECK(tsr_session_open(&w.session, w.model, 2048) == 0);
    w.logits = malloc(w.info.n_vocab * sizeof *w.logits);
    BENCH_CHECK(w.logits);
    struct prompt p = make_prompt(&w, 8, 240);
    (void)full(&w, &p);
    BENCH_CHECK(getrusage(RUSAGE_SELF, &used) == 0);
    const struct tsr_kv_layout *layout = tsr_session_layout(w.session);
    double kv = 0;
    for (uint32_t i = 0; i < layout->n_planes; i++)
        kv += (double)layout->planes[i].token_stride * p.n * layout->n_layers;
    return ((double)used.ru_maxrss * 1024 - (double)w.info.weight_bytes - kv) / 1e6;
}

static void memory_case(const struct tsr_model_desc *desc)
{
    double mb = 0;
    int ends[2], status;
    if (!bench_wanted("memory beyond weights and KV")) return;
    BENCH_CHECK(pipe(ends) == 0);
    pid_t child = fork();
    BENCH_CHECK(child >= 0);
    if (child == 0) {
        mb = memory_beyond(desc);
        _exit(write(ends[1], &mb, sizeof mb) == sizeof mb ? 0 : 1);
    }
    BENCH_CHECK(read(ends[0], &mb, sizeof mb) == sizeof mb);
    BENCH_CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(ends[0]);
    close(ends[1]);
    bench_report("memory beyond weights and KV", mb, "MB", 0, 100, false);
}

/* The fifth turn of a dialog: four are in the session. */
static void fifth_turn(struct work *w)
{
    const struct way r5 = {TSR_SELECT_QUERY, TSR_ASK_FILL, 0.05, -0.5};
    if (!bench_wanted("turn 5")) return;
    struct prompt p = make_prompt(w, 8, 120);
    struct tsr_blend_report report;
    (void)blended(w, &p, &r5, &report);
    uint32_t held = p.n, turn = 60, n = held + 4 * turn;
    uint32_t *tokens = malloc(n * sizeof *tokens);
    BENCH_CHECK(tokens);
    memcpy(tokens, p.tokens, held * sizeof *tokens);
    fill(w, tokens + held, 4 * turn);
    double last = 0;
    for (uint32_t first = held; first < n; first += turn) {
        struct tsr_model_row rows[60];
        struct tsr_model_group group = {turn, 1, {{0, first + turn}}};
        struct tsr_model_pass pass = {
            .size = sizeof pass, .rows = rows, .n_rows = turn, .n_groups = 1, .groups = &group};
        uint32_t row = turn - 1;
        for (uint32_t i = 0; i < turn; i++)
            rows[i] = (struct tsr_model_row){tokens[first + i], first + i, first + i};
        uint64_t start = bench_now_ns();
        BENCH_CHECK(tsr_session_begin(w->session, &pass) >= 0);
        for (uint32_t l = 0; l < w->info.n_layers; l++) {
            struct tsr_model_layer layer = {.size = sizeof layer, .layer = l};
            BENCH_CHECK(tsr_session_layer(w->session, &layer) >= 0);
        }
        BENCH_CHECK(tsr_session_logits(w->session, &row, 1, w->logits) >= 0);
        tsr_session_end(w->session);
        last = seconds(start);
    }
    struct prompt whole = {.tokens = tokens, .n = n};
    bench_report("turn 5", n / last, "tokens/s", n / full(w, &whole), 0, true);
    free(tokens);
    free(p.tokens);
}

/* ---- against libllama ---- */

/* Behind a prefill libllama computes the last layer for one row with the kernels for one row, we
 * with those for many: another order of sums, which eight bits of activation make a difference of.
 * A decoded token is computed
 * alone by both, over the KV that each has written: there the logits are the same. */
static void check_logits(const struct work *w, const float *theirs, double kl_max)
{
    BENCH_CHECK(tsr_logits_kl(theirs, w->logits, w->info.n_vocab) <= kl_max);
}

static void decode_token(struct work *w, uint32_t token, uint32_t at)
{
    struct tsr_model_row row = {token, at, at};
    struct tsr_model_group group = {1, 1, {{0, at + 1}}};
    struct tsr_model_pass pass = {
        .size = sizeof pass, .rows = &row, .n_rows = 1, .n_groups = 1, .groups = &group};
    pass.flags = TSR_PASS_DECODE;
    uint32_t zero = 0;
    BENCH_CHECK(tsr_session_begin(w->session, &pass) >= 0);
    for (uint32_t l = 0; l < w->info.n_layers; l++) {
        struct tsr_model_layer layer = {.size = sizeof layer, .layer = l};
        BENCH_CHECK(tsr_session_layer(w->session, &layer) >= 0);
    }
    BENCH_CHECK(tsr_session_logits(w->session, &zero, 1, w->logits) >= 0);
    tsr_session_end(w->session);
}

static void llama_cases(struct work *w)
{
    enum { ROUNDS = 7, DECODE = 24 };
    double ours[ROUNDS], theirs[ROUNDS], ours_one[ROUNDS], theirs_one[ROUNDS];
    bool prefill = bench_wanted("prefill"), decode = bench_wanted("decode");
    if (!prefill && !decode) return;
    /* 512 tokens, one batch for both: rounding depends on the size of batches. */
    struct prompt p = make_prompt(w, 4, 112);
    for (int i = 0; i < ROUNDS; i++) {
        ours[i] = full(w, &p);
        uint64_t start = bench_now_ns();
        const float *logits = llama_side_prefill(w->llama, p.tokens, p.n);
        theirs[i] = seconds(start);
        check_logits(w, logits, 1e-2);
        start = bench_now_ns();
        for (uint32_t k = 0; k < DECODE; k++)
            decode_token(w, p.tokens[k], p.n + k);
        ours_one[i] = seconds(start);
        start = bench_now_ns();
        for (uint32_t k = 0; k < DECODE; k++)
            logits = llama_side_decode(w->llama, p.tokens[k]);
        theirs_one[i] = seconds(start);
        check_logits(w, logits, 1e-6);
    }
    bench_report("prefill", p.n / bench_median(ours, ROUNDS), "tokens/s",
                 p.n / bench_median(theirs, ROUNDS), 0.97, true);
    bench_report("decode", DECODE / bench_median(ours_one, ROUNDS), "tokens/s",
                 DECODE / bench_median(theirs_one, ROUNDS), 0.95, true);
    free(p.tokens);
}

/* Known documents in another order: what llama-server reuses of them, and what we do. */
static void shuffle_case(struct work *w)
{
    enum { ROUNDS = 3 };
    double ours[ROUNDS], theirs[ROUNDS];
    if (!bench_wanted("shuffled, against --cache-reuse")) return;
    struct prompt p = make_prompt(w, 8, 120), q = shuffled(&p);
    struct tsr_blend_report report;
    (void)blended(w, &p, &(struct way){TSR_SELECT_NONE, TSR_ASK_FILL, 0, 0}, &report);
    for (int i = 0; i < ROUNDS; i++) {
        (void)llama_side_prefill(w->llama, p.tokens, p.n);
        uint64_t start = bench_now_ns();
        (void)llama_side_reuse(w->llama, q.tokens, q.n);
        theirs[i] = seconds(start);
        ours[i] = blended(w, &q, &(struct way){TSR_SELECT_QUERY, 0, 0.05, -0.5}, &report);
    }
    bench_report("shuffled, against --cache-reuse", q.n / bench_median(ours, ROUNDS), "tokens/s",
                 q.n / bench_median(theirs, ROUNDS), 5, true);
    free(p.tokens);
    free(q.tokens);
}

/* ---- opening ---- */

static void open_all(struct work *w, const char *path)
{
    char library[4096];
    ssize_t n = readlink("/proc/self/exe", library, sizeof library - 1);
    BENCH_CHECK(n > 0);
    library[n] = 0;
    for (int up = 0; up < 2; up++)
        *strrchr(library, '/') = 0;
    strncat(library, "/lib/libtessera-model.so", sizeof library - strlen(library) - 1);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const char *wish = getenv("TESSERA_TEST_THREADS"); /* a loaded machine does better with one */
    uint32_t threads = wish ? (uint32_t)atoi(wish) : cores > 16 ? 16 : (uint32_t)cores;
    struct tsr_model_desc config = {
        .size = sizeof config, .path = path, .library = library, .n_threads = threads};
    memory_case(&config);
    w->info.size = sizeof w->info;
    w->seed = 88172645463325252u;
    BENCH_CHECK(tsr_model_open(&w->model, NULL, &config) == 0);
    BENCH_CHECK(tsr_model_info(w->model, &w->info) == 0);
    struct tsr_config *options;
    const char *tmp = getenv("TMPDIR");
    snprintf(w->store, sizeof w->store, "%s/bench-blend-XXXXXX", tmp ? tmp : "/tmp");
    BENCH_CHECK(mkdtemp(w->store));
    BENCH_CHECK(tsr_config_open(&options) == 0);
    BENCH_CHECK(tsr_config_set(options, "disk_path", w->store) == 0);
    BENCH_CHECK(tsr_cache_open(&w->cache, options) == 0);
    tsr_config_close(options);
    struct tsr_blend_desc cached = {.size = sizeof cached, .model = w->model, .cache = w->cache};
    struct tsr_blend_desc plain = {.size = sizeof plain, .model = w->model};
    BENCH_CHECK(tsr_blend_open(&w->blend, &cached) == 0);
    BENCH_CHECK(tsr_blend_open(&w->plain, &plain) == 0);
    BENCH_CHECK(tsr_session_open(&w->session, w->model, 6400) == 0);
    w->logits = malloc(w->info.n_vocab * sizeof *w->logits);
    BENCH_CHECK(w->logits);
    w->llama = llama_side_open(path, 2048, threads);
}

static void close_all(struct work *w)
{
    char command[300];
    llama_side_close(w->llama);
    tsr_session_close(w->session);
    tsr_blend_close(w->blend);
    tsr_blend_close(w->plain);
    tsr_cache_close(w->cache);
    tsr_model_close(w->model);
    free(w->logits);
    snprintf(command, sizeof command, "rm -rf '%s'", w->store);
    BENCH_CHECK(system(command) == 0);
}

int main(int argc, char **argv)
{
    bench_init("bench_blend", argc, argv);
    struct work w = {0};
    char path[4096];
    const char *named = getenv("TESSERA_MODEL"), *home = getenv("HOME");
    snprintf(path, sizeof path, "%s/.cache/tessera/models/SmolLM2-135M-Instruct.Q4_1.gguf",
             home ? home : "");
    if (access(named ? named : path, R_OK) != 0) {
        fprintf(stderr, "bench_blend: no model: tools/setup --model\n");
        return 77;
    }
    open_all(&w, named ? named : path);
    llama_cases(&w);
    cold_miss(&w);
    shuffle_case(&w);
    blend_cases(&w, 8, 120, 3, (const double[]){14, 6, 3, 0});
    fifth_turn(&w);
    chunk_cases(&w);
    blend_cases(&w, 10, 600, 1, (const double[]){50, 10, 4.5, 8});
    close_all(&w);
    return bench_end();
}
#else
#include <stdio.h>

int main(int argc, char **argv)
{
    bench_init("bench_blend", argc, argv);
    fprintf(stderr, "bench_blend: llama.cpp is not installed: tools/setup --model\n");
    return 77;
}
#endif
