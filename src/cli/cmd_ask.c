/* cmd_ask.c - `tessera ask`: questions about documents. The answer is written as it comes, then one
 * line says what it cost: how long until the first token, and how much of the prompt was known.
 * Both go apart, the answer to standard output and the line to standard error, so that an answer
 * can be piped. */
#include "cli/asking.h"

#include <tessera/admin.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define ANSWER_TOKENS 256u
#define PASSAGES 8u
#define QUESTION_BYTES_MAX ((size_t)1 << 20)

/* ---- answering ---- */

/* The first turn goes through the cache; later turns continue after the tokens of the session. */
static int read_prompt(struct tsri_asking *a)
{
    struct tsri_dialog *d = &a->dialog;
    struct tsri_reader *r = &a->reader;
    uint32_t n = (uint32_t)d->n_tokens, first = a->n_held;
    a->n_held = n;
    if (first > 0) {
        struct tsri_more more = {.blend = r->blend,
                                 .tokens = d->tokens + first,
                                 .held = first,
                                 .n = n - first,
                                 .n_logits = 1,
                                 .logits = r->logits};
        int e = tsri_reader_go_on(r, &more);
        a->report = (struct tsr_blend_report){.size = sizeof a->report,
                                              .n_tokens = n,
                                              .n_exact = a->blended ? 0 : first,
                                              .n_reused = a->blended ? first : 0,
                                              .n_new = n - first,
                                              .selector = a->report.selector,
                                              .bias = a->report.bias,
                                              .ratio = a->report.ratio,
                                              .sure = NAN};
        return e;
    }
    a->ask.session = r->session;
    a->ask.tokens = d->tokens;
    a->ask.n_tokens = n;
    a->ask.segments = d->segments;
    a->ask.n_segments = (uint32_t)d->n_segments;
    a->ask.system = 1;
    char speed[4096];
    tsri_reader_beside(r, a->cli, "speed", speed, sizeof speed);
    tsri_reader_weigh(r, speed, &a->ask);
    struct tsr_blend_report look = {.size = sizeof look};
    int e = tsri_choosing_lead(a, &look);
    if (e) return e;
    a->report.size = sizeof a->report;
    if (tsr_blend_ask(r->blend, &a->ask, r->logits, &a->report) < 0) return tsri_cli_failed();
    tsri_leading_count(&a->report, &look);
    a->blended = !(tsri_trust_sure(&a->report) >= 1);
    return 0;
}

/* ---- how long a full read takes ---- */

static void note_speed(const struct tsri_asking *a)
{
    const struct tsr_blend_report *r = &a->report;
    char path[4096];
    tsri_reader_beside(&a->reader, a->cli, "speed", path, sizeof path);
    uint32_t n_known = a->n_drafted ? a->n_drafted : 1; /* tokens that took no pass */
    if (a->answer.n_tokens > n_known)
        tsri_speed_note_answer(path, a->reader.info.device, a->answer.n_tokens - n_known,
                               a->answer.answer_s);
    tsri_speed_note_report(path, a->reader.info.device, r);
}

static double guess_speed(const struct tsri_asking *a)
{
    char path[4096];
    tsri_reader_beside(&a->reader, a->cli, "speed", path, sizeof path);
    return tsri_speed_guess(path, a->reader.info.device, a->report.n_tokens);
}

/* ---- comparing ---- */

/* The same prompt without a cache, and its answer. */
static int compare(struct tsri_asking *a, struct tsri_decode *d)
{
    struct tsri_reader *r = &a->reader;
    struct tsr_blend_desc config = {.size = sizeof config, .model = r->model};
    struct tsr_ask_desc ask = {.size = sizeof ask,
                               .tokens = a->dialog.tokens,
                               .n_tokens = d->n_prompt,
                               .selector = TSR_SELECT_FULL};
    if (!r->plain && tsr_blend_open(&r->plain, &config) < 0) return tsri_cli_failed();
    tsr_session_close(r->plain_session);
    r->plain_session = NULL;
    if (tsr_session_open(&r->plain_session, r->model, r->n_slots) < 0) return tsri_cli_failed();
    ask.session = d->session = r->plain_session;
    d->blend = r->plain;
    d->n_draft = 0;
    d->start_s = tsri_cli_now_s();
    if (tsr_blend_ask(r->plain, &ask, r->logits, NULL) < 0) return tsri_cli_failed();
    a->kl = tsr_logits_kl(r->logits, a->first_logits, r->info.n_vocab);
    int e = tsri_told_decode(&a->full, d);
    a->full_guess_s = a->full.ttft_s;
    return e;
}

/* Says when the prompt does not fit, with what does. */
static int check_fit(const struct tsri_asking *a)
{
    size_t n = a->dialog.n_tokens, context = a->reader.info.context;
    if (n + 1 <= context) return 0;
    return tsri_cli_fail("the prompt has %zu tokens (%zu pieces of documents), the model's "
                         "context has %zu: use fewer documents",
                         n, a->dialog.n_segments - 1, context);
}

/* Adds the question to the dialog and makes room for the answer. */
static int pose(struct tsri_asking *a, const char *question)
{
    struct tsri_dialog *d = &a->dialog;
    struct tsri_reader *r = &a->reader;
    bool later = a->n_turns++ > 0;
    int e = later ? tsri_cli_check(tsri_dialog_next_turn(d)) : 0;
    if (!e) e = tsri_choosing_find(a, question);
    if (!e) e = tsri_cli_check(tsri_dialog_add_question(d, question));
    if (!e) e = check_fit(a);
    if (e) return e;
    if (later && d->n_tokens + 1 > r->n_slots)
        return tsri_cli_fail("the conversation is too long: %zu tokens", d->n_tokens);
    /* A dialog cannot move to another session, so that it gets room for more from the start. */
    uint32_t n_primer = tsr_blend_primer(r->blend);
    size_t room = d->n_tokens + (a->answer_max > n_primer ? a->answer_max : n_primer);
    return later ? 0 : tsri_reader_make_room(r, tsri_cli_flag(a->cli, "chat") ? 4 * room : room);
}

/* Both answers of --compare are drawn with the same luck. */
static int answer(struct tsri_asking *a, double start_s)
{
    struct tsri_dialog *d = &a->dialog;
    struct tsri_reader *r = &a->reader;
    uint32_t n_prompt = (uint32_t)d->n_tokens;
    uint64_t luck = a->sampler.state;
    struct tsri_decode decode = {.reader = r,
                                 .session = r->session,
                                 .blend = r->blend,
                                 .sampler = &a->sampler,
                                 .n_prompt = n_prompt,
                                 .n_max = r->n_slots - n_prompt,
                                 .start_s = start_s,
                                 .shows = !a->cli->json && !a->compare,
                                 .may_repeat = a->may_repeat};
    if (a->n_turns == 1) decode.draft = tsr_blend_draft(r->blend, &decode.n_draft);
    a->n_drafted = decode.n_draft;
    int e = tsri_told_decode(&a->answer, &decode);
    uint32_t n = a->answer.n_tokens;
    if (!e) e = tsri_cli_check(tsri_dialog_add_answer(d, a->answer.tokens, n));
    a->n_held = n_prompt + (n ? n - 1 : 0);
    if (e) return e;
    a->full_guess_s = guess_speed(a);
    if (!a->compare) return 0;
    a->sampler.state = luck;
    return compare(a, &decode);
}

static int one_turn(struct tsri_asking *a, const char *question)
{
    struct tsri_reader *r = &a->reader;
    a->question = question;
    int e = pose(a, question);
    if (e) return e;
    bool terminal = isatty(STDERR_FILENO) && !a->cli->json;
    if (terminal) fprintf(stderr, "reading %zu tokens ...", a->dialog.n_tokens - a->n_held);
    double start_s = tsri_cli_now_s();
    e = read_prompt(a);
    if (terminal) fprintf(stderr, "\r%32s\r", "");
    if (e) return e;
    memcpy(a->first_logits, r->logits, r->info.n_vocab * sizeof *r->logits);
    e = answer(a, start_s);
    if (e) return e;
    note_speed(a);
    if (a->cli->json) {
        tsri_cost_json(a);
        return 0;
    }
    if (a->compare) tsri_cost_both(a);
    tsri_cost_line(a);
    tsri_cost_passages(a);
    if (a->stats) tsri_cost_stats(a);
    return 0;
}

/* ---- the command ---- */

/* Files that were named are in the order that they were named in; what is found in folders has none. */
static int read_order(struct tsri_asking *a)
{
    const char *order = tsri_cli_flag(a->cli, "order");
    bool given = order && strcmp(order, "given") == 0,
         is_free = order && strcmp(order, "free") == 0;
    if (order && !given && !is_free)
        return tsri_cli_usage(a->cli, "--order=%s: must be free or given", order);
    bool folders = tsri_cli_flag(a->cli, "docs") && !tsri_cli_flag(a->cli, "doc");
    a->free_order = a->ask.selector != TSR_SELECT_FULL && (is_free || (folders && !given));
    return 0;
}

static int read_flags(struct tsri_asking *a)
{
    struct tsri_cli *cli = a->cli;
    double answer_max = ANSWER_TOKENS, passages_max = PASSAGES;
    a->ask = (struct tsr_ask_desc){.size = sizeof a->ask, .flags = TSRI_ASK_FLAGS};
    const char *selector = tsri_cli_flag(cli, "selector");
    int found = selector ? tsr_selector_find(selector) : TSR_SELECT_DEFAULT;
    if (found < 0)
        return tsri_cli_usage(cli, "--selector=%s: must be query, hkvd, link, none or full",
                              selector);
    a->ask.selector = (uint32_t)found;
    if (tsri_cli_flag(cli, "ratio")) a->ask.flags |= TSR_ASK_RATIO;
    if (tsri_cli_flag(cli, "no-gate")) a->ask.flags &= ~(uint32_t)TSR_ASK_GATE;
    int e = read_order(a);
    if (!e) e = tsri_cli_flag_number(cli, "ratio", 0, 1, &a->ask.ratio);
    if (!e) e = tsri_cli_flag_count(cli, "max", 1, 1 << 20, &answer_max);
    a->answer_max = (uint32_t)answer_max;
    a->compare = tsri_cli_flag(cli, "compare") != NULL;
    a->stats = tsri_cli_flag(cli, "stats") != NULL;
    a->all = tsri_cli_flag(cli, "all") != NULL;
    if (!e) e = tsri_cli_flag_count(cli, "passages", 1, 64, &passages_max);
    a->passages_max = (uint32_t)passages_max;
    a->may_repeat = tsri_cli_flag(cli, "no-repeat-stop") != NULL;
    a->stores = tsri_cli_flag(cli, "no-store") == NULL;
    return e;
}

static int read_documents(struct tsri_asking *a)
{
    struct tsri_cli *cli = a->cli;
    int e = 0;
    for (int i = 0; i < cli->n_flags && !e; i++) {
        if (strcmp(cli->flags[i].name, "doc") == 0)
            e = tsri_cli_check(tsri_documents_add_file(&a->documents, cli->flags[i].value));
        else if (strcmp(cli->flags[i].name, "docs") == 0)
            e = tsri_folders_add(&a->folders, cli->flags[i].value);
    }
    return e ? e : tsri_folders_open(&a->folders, cli, a->stores);
}

/* With option chunked, a prompt that has separators is all of it: system prompt, documents and
 * question. *question then is its end. */
static int split_prompt(struct tsri_asking *a, const char **question)
{
    const struct tsr_config *config = a->cli->config;
    const struct tsri_options *o = config ? tsri_config_options(config) : NULL;
    const char *text = *question;
    struct tsr_text_part *parts;
    if (!o || !o->chunked || !*o->separator) return 0;
    parts = malloc(TSRI_DOCUMENTS_MAX * sizeof *parts);
    if (!parts) return tsri_cli_fail("no memory");
    int n = tsr_text_split(text, strlen(text), o->separator, parts, TSRI_DOCUMENTS_MAX);
    int e = 0;
    if (n < 0 && !strstr(text, o->separator)) {
        n = 0; /* a question alone */
    } else if (n < 0) {
        e = tsri_cli_failed();
    } else if (tsri_cli_flag(a->cli, "system")) {
        e = tsri_cli_usage(a->cli, "--system: the prompt begins with its own system prompt");
    } else {
        a->system = strndup(text + parts[0].offset, parts[0].bytes);
        if (!a->system) e = tsri_cli_fail("no memory");
        *question = text + parts[n - 1].offset;
    }
    for (int i = 1; !e && i < n - 1; i++)
        e = tsri_cli_check(
            tsri_documents_add_text(&a->documents, text + parts[i].offset, parts[i].bytes));
    free(parts);
    return e;
}

static int prepare(struct tsri_asking *a)
{
    const char *system = a->system ? a->system : tsri_cli_flag(a->cli, "system");
    int e = tsri_reader_open(&a->reader, a->cli);
    if (!e) e = tsri_ask_sampler(&a->sampler, a->cli, a->reader.info.n_vocab);
    if (!e) e = tsri_cli_check(tsri_dialog_init(&a->dialog, a->reader.model, system));
    if (!e) e = tsri_told_init(&a->answer, a->answer_max);
    if (!e) e = tsri_told_init(&a->full, a->answer_max);
    if (e) return e;
    if (!a->stores) tsr_cache_freeze(a->reader.cache, 1);
    a->stores &= !a->reader.storeless;
    a->first_logits = malloc(a->reader.info.n_vocab * sizeof *a->first_logits);
    if (!a->first_logits) return tsri_cli_fail("no memory");
    return tsri_choosing_begin(a);
}

/* Before the model is loaded: that takes long, and a mistake should show at once. */
static int open_chat(struct tsri_asking *a, const char *path)
{
    bool standard = path[0] == 0 || strcmp(path, "-") == 0;
    a->chat = standard ? stdin : fopen(path, "re");
    a->chat_name = standard ? "standard input" : path;
    return a->chat ? 0 : tsri_cli_fail("--chat=%s: %s", path, strerror(errno));
}

/* A question a line. */
static int all_turns(struct tsri_asking *a)
{
    bool terminal = a->chat == stdin && isatty(STDIN_FILENO);
    char *line = NULL;
    size_t room = 0;
    int e = 0;
    while (!e) {
        if (terminal) fputs("> ", stderr);
        if (terminal && a->n_turns && !tsri_storing_wait(a)) break;
        if (getline(&line, &room, a->chat) <= 0) break;
        line[strcspn(line, "\r\n")] = 0;
        if (line[strspn(line, " \t")] == 0) continue;
        if (!terminal && !a->cli->json) {
            fputs("> ", stdout);
            tsri_cli_put_text(line, strlen(line));
            putchar('\n');
        }
        e = one_turn(a, line);
    }
    free(line);
    if (!e && a->n_turns == 0) return tsri_cli_fail("%s: no questions found", a->chat_name);
    return e;
}

/* What the command line asks, and that it asks something. */
static int check_question(const struct tsri_cli *cli, const char *chat)
{
    if (chat && cli->n_args > 0)
        return tsri_cli_usage(cli, "--chat and '%s': for a file of questions, use --chat=FILE",
                              cli->args[0]);
    int e = tsri_cli_want_args(cli, chat ? 0 : 1, chat ? 0 : 1);
    if (e || chat) return e;
    if (strlen(cli->args[0]) > QUESTION_BYTES_MAX)
        return tsri_cli_fail("the question is too long: %zu bytes", strlen(cli->args[0]));
    if (cli->args[0][strspn(cli->args[0], " \t\r\n")] == 0)
        return tsri_cli_usage(cli, "the question is empty");
    return 0;
}

int tsri_cmd_ask(struct tsri_cli *cli)
{
    const char *chat = tsri_cli_flag(cli, "chat");
    struct tsri_asking *a = tsri_alloc(1, sizeof *a);
    if (!a) return tsri_cli_fail("no memory");
    a->cli = cli;
    const char *question = cli->args[0];
    int e = check_question(cli, chat);
    if (!e) e = read_flags(a);
    if (!e && chat) e = open_chat(a, chat);
    if (!e && !chat) e = split_prompt(a, &question);
    if (!e) e = read_documents(a);
    if (!e) e = prepare(a);
    if (!e) e = chat ? all_turns(a) : one_turn(a, question);
    if (!e) tsri_storing_finish(a);
    tsri_reader_close(&a->reader);
    tsri_sampler_fini(&a->sampler);
    tsri_dialog_fini(&a->dialog);
    tsri_documents_fini(&a->documents);
    tsri_folders_fini(&a->folders);
    tsri_passages_fini(&a->found);
    tsri_told_fini(&a->answer);
    tsri_told_fini(&a->full);
    free(a->ends);
    free(a->system);
    free(a->first_logits);
    if (a->chat && a->chat != stdin) fclose(a->chat);
    tsri_free(a);
    return e;
}
