/* cmd_bench_blend.c - `tessera-lab bench blend`: where the time of an answer goes when its documents
 * are cached. Documents of random tokens are stored once. Then every round asks a new question about
 * them in three ways, in turns: a full prefill, everything reused (r = 0) and a share recomputed.
 * What is computed does not depend on what tokens mean. Prints medians of the whole and of its parts;
 * bench_blend has the ratios that are promised. */
#include "lab/lab.h"
#include "cli/ask.h"

#include <stdlib.h>
#include <time.h>

#define LENGTHS_MAX 8u
#define TOKENS_MIN 512u /* fewer tokens of documents are not blended (blend_min_tokens) */
#define ROUNDS_MAX 64u
#define SEGMENTS_MAX 256u
#define N_SYSTEM 40u
#define N_QUESTION 32u
/* Host memory is page-locked in the background: until then documents are computed. */
#define WARM_TRIES 100u
#define WARM_PAUSE_MS 100
#define SPECIAL_TOKENS 1000u /* at either end of a vocabulary, where they may mean something */

enum way { FULL, REUSED, SHARE, N_WAYS };

/* In seconds, in the order of the table. */
enum ask_part { TOTAL, LOOKUP, WAIT, QUERY, SELECT, BLEND, JUDGE, N_PARTS };

struct timing {
    struct tsri_cli *cli;
    struct tsri_reader reader;
    struct tsr_blend *plain;
    uint32_t lengths[LENGTHS_MAX], n_lengths;
    double ratio, n_rounds, document;
    uint64_t seed;
    uint32_t *tokens; /* of the prompt at hand */
    uint32_t n_tokens, n_segments;
    struct tsr_range segments[SEGMENTS_MAX];
    double seconds[N_WAYS][N_PARTS][ROUNDS_MAX];
    struct tsri_table table;
    bool told;
};

/* ---- prompts ---- */

static void draw(struct timing *x, uint32_t *tokens, uint32_t n)
{
    uint32_t n_vocab = x->reader.info.n_vocab,
             skip = n_vocab > 4 * SPECIAL_TOKENS ? SPECIAL_TOKENS : 3;
    for (uint32_t i = 0; i < n; i++) {
        x->seed = x->seed * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = skip + (uint32_t)((x->seed >> 33) % (n_vocab - 2 * skip));
    }
}

/* A system prompt, documents of about the same size and a question. */
static int make_prompt(struct timing *x, uint32_t n)
{
    free(x->tokens);
    x->tokens = malloc(n * sizeof *x->tokens);
    if (!x->tokens) return tsri_cli_fail("no memory");
    x->n_tokens = n;
    draw(x, x->tokens, n);
    x->segments[0] = (struct tsr_range){0, N_SYSTEM};
    uint32_t all = n - N_SYSTEM - N_QUESTION, n_docs = all / (uint32_t)x->document;
    if (n_docs == 0) n_docs = 1;
    if (n_docs > SEGMENTS_MAX - 1) n_docs = SEGMENTS_MAX - 1;
    for (uint32_t i = 0; i < n_docs; i++) {
        uint32_t from = (uint32_t)((uint64_t)all * i / n_docs);
        uint32_t to = (uint32_t)((uint64_t)all * (i + 1) / n_docs);
        x->segments[i + 1] = (struct tsr_range){N_SYSTEM + from, to - from};
    }
    x->n_segments = n_docs + 1;
    return 0;
}

/* ---- asking ---- */

static int ask(struct timing *x, enum way way, uint32_t flags, struct tsr_blend_report *report)
{
    static const uint32_t selectors[] = {TSR_SELECT_FULL, TSR_SELECT_NONE, TSR_SELECT_QUERY};
    struct tsr_ask_desc desc = {.size = sizeof desc,
                                .session = x->reader.session,
                                .tokens = x->tokens,
                                .n_tokens = x->n_tokens,
                                .selector = selectors[way],
                                .flags = flags | TSR_ASK_RATIO | TSR_ASK_BIAS,
                                .ratio = way == SHARE ? x->ratio : way == FULL};
    if (way != FULL) {
        desc.segments = x->segments;
        desc.n_segments = x->n_segments;
        desc.system = 1;
    }
    *report = (struct tsr_blend_report){.size = sizeof *report};
    int e =
        tsr_blend_ask(way == FULL ? x->plain : x->reader.blend, &desc, x->reader.logits, report);
    return e < 0 ? tsri_cli_failed() : 0;
}

static bool reused(const struct timing *x, const struct tsr_blend_report *r)
{
    return r->n_new <= N_QUESTION + N_SYSTEM && r->n_failed == 0 && r->n_filled == 0 &&
           r->n_tokens == x->n_tokens;
}

/* Stores the documents and asks until they are reused. */
static int warm_up(struct timing *x)
{
    const struct timespec pause = {0, WARM_PAUSE_MS * 1000000l};
    struct tsr_blend_report report;
    int e = ask(x, REUSED, TSR_ASK_FILL, &report);
    for (uint32_t i = 0; !e && i < WARM_TRIES; i++) {
        draw(x, x->tokens + x->n_tokens - N_QUESTION, N_QUESTION);
        e = ask(x, REUSED, 0, &report);
        if (e || report.n_failed == 0) break;
        nanosleep(&pause, NULL);
    }
    if (!e && !reused(x, &report))
        e = tsri_cli_fail("bench blend: %u of %u tokens were not reused: host_size too small?",
                          report.n_new + report.n_failed, x->n_tokens);
    for (enum way way = FULL; !e && way < N_WAYS; way++)
        e = ask(x, way, 0, &report); /* kernels and graphs are there from now on */
    return e;
}

static int run_rounds(struct timing *x)
{
    struct tsr_blend_report r;
    int e = 0;
    for (uint32_t i = 0; i < (uint32_t)x->n_rounds; i++)
        for (enum way way = FULL; way < N_WAYS; way++) {
            draw(x, x->tokens + x->n_tokens - N_QUESTION, N_QUESTION);
            double start = tsri_cli_now_s();
            e = ask(x, way, 0, &r);
            if (e) return e;
            const double parts[N_PARTS] = {[TOTAL] = tsri_cli_now_s() - start,
                                           [LOOKUP] = r.lookup_s,
                                           [WAIT] = r.wait_s,
                                           [QUERY] = r.query_s,
                                           [SELECT] = r.select_s,
                                           [BLEND] = r.blend_s,
                                           [JUDGE] = r.judge_s};
            for (uint32_t p = 0; p < N_PARTS; p++)
                x->seconds[way][p][i] = parts[p];
            if (way != FULL && !reused(x, &r))
                return tsri_cli_fail("bench blend: the documents were not reused");
        }
    return 0;
}

/* ---- telling ---- */

static int by_value(const void *a, const void *b)
{
    double p = *(const double *)a, q = *(const double *)b;
    return (p > q) - (p < q);
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void tell(struct timing *x)
{
    static const char *const names[] = {"lookup_s", "wait_s",  "query_s",
                                        "select_s", "blend_s", "judge_s"};
    double full = 0;
    for (enum way way = FULL; way < N_WAYS; way++) {
        double t[N_PARTS], rest;
        char name[32] = "prefill";
        for (uint32_t p = 0; p < N_PARTS; p++)
            t[p] = median(x->seconds[way][p], (uint32_t)x->n_rounds);
        rest = t[TOTAL];
        for (uint32_t p = LOOKUP; p < N_PARTS; p++)
            rest -= t[p];
        if (way == FULL) full = t[TOTAL];
        if (way != FULL) snprintf(name, sizeof name, "r = %g", way == SHARE ? x->ratio : 0);
        if (!x->cli->json) {
            tsri_table_row(&x->table, "%u|%s|%.2f|%.1f|%.2f|%.2f|%.2f|%.2f|%.2f|%.2f|%.2f",
                           x->n_tokens, name, 1e3 * t[TOTAL], full / t[TOTAL], 1e3 * t[LOOKUP],
                           1e3 * t[WAIT], 1e3 * t[QUERY], 1e3 * t[SELECT], 1e3 * t[BLEND],
                           1e3 * t[JUDGE], 1e3 * rest);
            continue;
        }
        printf("%s\n{\"tokens\":%u,\"way\":\"%s\",\"total_s\":%.6f,\"speedup\":%.4g",
               x->told ? "," : "", x->n_tokens, name, t[TOTAL], full / t[TOTAL]);
        for (uint32_t p = LOOKUP; p < N_PARTS; p++)
            printf(",\"%s\":%.6f", names[p - LOOKUP], t[p]);
        printf(",\"rest_s\":%.6f}", rest);
        x->told = true;
    }
}

/* ---- the command ---- */

static int read_lengths(struct timing *x)
{
    const char *text = tsri_cli_flag(x->cli, "tokens"), *at = text ? text : "1024,6144";
    for (x->n_lengths = 0; x->n_lengths < LENGTHS_MAX; at++) {
        char *end;
        unsigned long n = strtoul(at, &end, 10);
        if (end == at || n < TOKENS_MIN || n > 1u << 20 || (*end && *end != ',')) break;
        x->lengths[x->n_lengths++] = (uint32_t)n;
        if (!*end) return 0;
        at = end;
    }
    return tsri_cli_usage(x->cli, "--tokens=%s: up to %u numbers from %u", text, LENGTHS_MAX,
                          TOKENS_MIN);
}

static int read_flags(struct timing *x)
{
    x->ratio = 0.05;
    x->n_rounds = 9;
    x->document = 600;
    int e = tsri_cli_want_args(x->cli, 0, 0);
    if (!e) e = read_lengths(x);
    if (!e) e = tsri_cli_flag_number(x->cli, "ratio", 0.001, 0.99, &x->ratio);
    if (!e) e = tsri_cli_flag_count(x->cli, "rounds", 1, ROUNDS_MAX, &x->n_rounds);
    return e ? e : tsri_cli_flag_count(x->cli, "document", 16, 1 << 20, &x->document);
}

/* Without the user's store; the cache only has what is stored here. */
static int open_all(struct timing *x)
{
    int e = tsri_cli_config(x->cli);
    if (!e && tsr_config_set(x->cli->config, "disk_enabled", "false") < 0) e = tsri_cli_failed();
    if (!e) e = tsri_reader_open(&x->reader, x->cli);
    struct tsr_blend_desc plain = {.size = sizeof plain, .model = x->reader.model};
    if (!e && tsr_blend_open(&x->plain, &plain) < 0) e = tsri_cli_failed();
    return e;
}

static int run_lengths(struct timing *x)
{
    int e = 0;
    uint32_t most = 0;
    for (uint32_t i = 0; i < x->n_lengths; i++)
        if (x->lengths[i] > most) most = x->lengths[i];
    if (most > x->reader.info.context)
        return tsri_cli_fail("bench blend: %u tokens, the model's context has %u", most,
                             x->reader.info.context);
    e = tsri_reader_make_room(&x->reader, most);
    if (!e && x->cli->json) {
        printf("{\"bench\":\"blend\"");
        tsri_cli_json(",\"device\":", x->reader.info.device);
        printf(",\"rows\":[");
    }
    for (uint32_t i = 0; !e && i < x->n_lengths; i++) {
        e = make_prompt(x, x->lengths[i]);
        if (!e) e = warm_up(x);
        if (!e) e = run_rounds(x);
        if (!e) tell(x);
    }
    if (x->cli->json && x->told) puts("\n]}");
    return e;
}

int tsri_cmd_bench_blend(struct tsri_cli *cli)
{
    struct timing *x = calloc(1, sizeof *x);
    if (!x) return tsri_cli_fail("no memory");
    x->cli = cli;
    x->seed = 88172645463325252u;
    int e = read_flags(x);
    if (e) {
        free(x);
        return e;
    }
    tsri_table_init(&x->table, "rlrrrrrrrrr",
                    "tokens|way|ms|speed-up|lookup|wait|query|select|blend|judge|rest");
    e = open_all(x);
    if (!e) e = run_lengths(x);
    if (!e && !cli->json) {
        printf("%s, %s; times in ms\n", x->reader.info.name, x->reader.info.device);
        e = tsri_table_print(&x->table, cli);
    }
    tsri_table_fini(&x->table);
    tsr_blend_close(x->plain);
    tsri_reader_close(&x->reader);
    free(x->tokens);
    free(x);
    return e;
}
