/* cmd_answers.c - `tessera-lab answers`: how many answers stay right when documents are reused. Long
 * work, as calibrate: every question is kept in a table as soon as it is done, and a run goes on
 * where the last one stopped. Several processes can share the questions, each with its own table. */
#include "lab/answers.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define ANSWER_TOKENS 32
#define NOTE_S 60.0 /* how often a log hears how far it is */

struct answering {
    struct tsri_cli *cli;
    struct tsri_reader reader;
    struct tsri_questions questions;
    struct tsri_responses rows;
    struct tsri_methods methods;
    struct tsri_responder responder;
    int half;
    double answer_max, limit;
    bool free_order;
    char speed_path[4096];    /* "": trials are not weighed */
    unsigned shard, n_shards; /* 1 of 1: all */
    size_t *wanted;           /* indices of questions */
    size_t n_wanted;
};

/* ---- flags ---- */

static int read_shard(struct answering *x)
{
    const char *text = tsri_cli_flag(x->cli, "shard");
    int end = 0;
    x->shard = x->n_shards = 1;
    if (!text) return 0;
    if (sscanf(text, "%4u/%4u%n", &x->shard, &x->n_shards, &end) == 2 && !text[end] &&
        x->shard >= 1 && x->shard <= x->n_shards)
        return 0;
    return tsri_cli_usage(x->cli, "--shard=%s: must be I/N, I from 1 to N", text);
}

static int read_flags(struct answering *x)
{
    const char *half = tsri_cli_flag(x->cli, "half"), *methods = tsri_cli_flag(x->cli, "methods");
    x->half = half ? tsri_half_find(half) : TSRI_HALF_ALL;
    if (x->half < 0) return tsri_cli_usage(x->cli, "--half=%s: must be tune, test or all", half);
    if (tsri_methods_parse(&x->methods, methods ? methods : "reuse,cacheblend,tessera") < 0)
        return tsri_cli_usage(x->cli, "--methods: %s", tsr_errmsg());
    x->answer_max = ANSWER_TOKENS;
    x->limit = 1e9;
    const char *order = tsri_cli_flag(x->cli, "order");
    x->free_order = order && strcmp(order, "free") == 0;
    if (order && !x->free_order && strcmp(order, "given") != 0)
        return tsri_cli_usage(x->cli, "--order=%s: must be free or given", order);
    int e = read_shard(x);
    if (!e) e = tsri_cli_flag_count(x->cli, "tokens", 1, TSRI_RESPONSE_TOKENS_MAX, &x->answer_max);
    return e ? e : tsri_cli_flag_count(x->cli, "limit", 1, 1e9, &x->limit);
}

/* ---- what is left to do ---- */

static bool answered(const struct answering *x, const struct tsri_question *q)
{
    for (uint32_t i = 0; i < x->methods.n; i++)
        if (!tsri_responses_find(&x->rows, q->set, q->id, x->methods.items[i].name)) return false;
    return true;
}

/* The first --limit questions of the half, then this shard's, then those that are not in the table. */
static int choose_questions(struct answering *x)
{
    size_t n = 0;
    x->wanted = malloc(x->questions.n * sizeof *x->wanted);
    if (!x->wanted) return tsri_cli_fail("no memory");
    for (size_t i = 0; i < x->questions.n && (double)n < x->limit; i++) {
        const struct tsri_question *q = &x->questions.items[i];
        if (!tsri_half_has((enum tsri_half)x->half, q->set, q->id)) continue;
        if (n++ % x->n_shards == x->shard - 1 && !answered(x, q)) x->wanted[x->n_wanted++] = i;
    }
    return n ? 0 : tsri_cli_fail("no questions of this half");
}

/* ---- answering ---- */

static void tell(const struct answering *x, size_t done, double start, double *told)
{
    char what[96] = "answers";
    double now = tsri_cli_now_s(), rate = (double)done / (now - start);
    if (done)
        snprintf(what, sizeof what, "answers: %.3g questions a minute, %.0f min left", 60 * rate,
                 (double)(x->n_wanted - done) / rate / 60);
    tsri_cli_progress(what, done, x->n_wanted);
    if (!done || isatty(STDERR_FILENO) || now - *told < NOTE_S) return;
    *told = now;
    tsri_cli_note("%zu of %zu %s", done, x->n_wanted, what);
}

static int answer_one(struct answering *x, const struct tsri_question *q)
{
    const char *csv = tsri_cli_flag(x->cli, "csv");
    struct tsri_response rows[TSRI_METHODS_MAX];
    uint32_t n = 0, n_new = 0;
    int e = tsri_respond(&x->responder, q, rows, &n);
    if (e) return e;
    /* A table of another run may have some of them. */
    for (uint32_t i = 0; i < n; i++)
        if (!tsri_responses_find(&x->rows, rows[i].set, rows[i].id, rows[i].method))
            rows[n_new++] = rows[i];
    for (uint32_t i = 0; i < n_new && !e; i++)
        e = tsri_responses_add(&x->rows, &rows[i]);
    return e || !csv ? e : tsri_responses_append(&x->rows, csv, rows, n_new);
}

/* Times of this run alone: those that `ask` keeps may be of a quieter machine, and are the user's. */
static int begin_weighing(struct answering *x)
{
    const char *folder = getenv("TMPDIR");
    if (!tsri_cli_flag(x->cli, "weigh")) return 0;
    snprintf(x->speed_path, sizeof x->speed_path, "%s/tessera-times-XXXXXX",
             folder && *folder ? folder : "/tmp");
    int fd = mkstemp(x->speed_path);
    if (fd < 0) {
        int e = tsri_cli_fail("%s: %s", x->speed_path, strerror(errno));
        x->speed_path[0] = 0;
        return e;
    }
    close(fd);
    x->responder.speed_path = x->speed_path;
    return 0;
}

static int answer_all(struct answering *x)
{
    double start = tsri_cli_now_s(), told = start;
    int e = tsri_responder_init(&x->responder, &x->reader, &x->methods, (uint32_t)x->answer_max);
    x->responder.free_order = x->free_order;
    if (!e) e = begin_weighing(x);
    for (size_t i = 0; i < x->n_wanted && !e; i++) {
        tell(x, i, start, &told);
        e = answer_one(x, &x->questions.items[x->wanted[i]]);
    }
    tsri_cli_progress_end();
    return e;
}

/* Rows say which model they are of; a field of a table has no commas or quotes. */
static int name_model(struct answering *x)
{
    char name[sizeof x->rows.model];
    snprintf(name, sizeof name, "%s", x->reader.info.name);
    for (char *at = name; *at; at++)
        if (strchr(",\"\n\r", *at)) *at = ' ';
    if (x->rows.model[0] && strcmp(x->rows.model, name) != 0)
        return tsri_cli_fail("%s: of model %s, not %s", tsri_cli_flag(x->cli, "csv"), x->rows.model,
                             name);
    memcpy(x->rows.model, name, sizeof name);
    return 0;
}

/* A store on disk would know prompts of earlier runs. Other policies than lru may evict the
 * documents of a long prompt before it is asked, in favour of those of earlier questions. */
static int open_reader(struct answering *x)
{
    int e = tsri_cli_config(x->cli);
    if (!e && (tsr_config_set(x->cli->config, "disk_enabled", "false") < 0 ||
               tsr_config_set(x->cli->config, "policy", "lru") < 0))
        e = tsri_cli_failed();
    if (!e) e = tsri_reader_open(&x->reader, x->cli);
    return e ? e : name_model(x);
}

static int run(struct answering *x)
{
    const char *prompts = tsri_cli_flag(x->cli, "prompts"), *csv = tsri_cli_flag(x->cli, "csv");
    int e = tsri_cli_want_args(x->cli, 0, 0);
    if (!e && !prompts) e = tsri_cli_usage(x->cli, "--prompts=FILE or --summary is needed");
    if (!e) e = tsri_questions_load(&x->questions, prompts);
    if (!e && csv) e = tsri_responses_load(&x->rows, csv, true);
    if (!e) e = choose_questions(x);
    if (!e && x->n_wanted) e = open_reader(x);
    return e || !x->n_wanted ? e : answer_all(x);
}

static int load_tables(struct answering *x)
{
    int e = x->cli->n_args ? 0 : tsri_cli_usage(x->cli, "--summary needs tables");
    for (int i = 0; i < x->cli->n_args && !e; i++)
        e = tsri_responses_load(&x->rows, x->cli->args[i], false);
    return e;
}

int tsri_cmd_answers(struct tsri_cli *cli)
{
    struct answering *x = tsri_alloc(1, sizeof *x);
    if (!x) return tsri_cli_fail("no memory");
    x->cli = cli;
    int e = read_flags(x);
    if (!e) e = tsri_cli_flag(cli, "summary") ? load_tables(x) : run(x);
    if (!e) e = tsri_responses_print(&x->rows, (enum tsri_half)x->half, cli);
    tsri_responder_fini(&x->responder);
    if (x->speed_path[0]) unlink(x->speed_path);
    tsri_reader_close(&x->reader);
    tsri_questions_fini(&x->questions);
    tsri_responses_fini(&x->rows);
    free(x->wanted);
    tsri_free(x);
    return e;
}
