/* cmd_ask.c - `tessera ask`: questions about documents. The answer is written as it comes, then one
 * line says what it cost: how long until the first token, and how much of the prompt was known.
 * Both go apart, the answer to standard output and the line to standard error, so that an answer
 * can be piped. */
#include "cli/ask.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define ANSWER_TOKENS 256u
#define QUESTION_BYTES_MAX ((size_t)1 << 20)

struct asking {
    struct tsri_cli *cli;
    struct tsri_reader reader;
    struct tsri_documents documents;
    struct tsri_dialog dialog;
    struct tsri_sampler sampler;
    struct tsr_ask_desc ask;
    uint32_t answer_max;
    bool compare, stats;
    FILE *chat; /* where questions come from, NULL without --chat */
    const char *chat_name;
    uint32_t n_turns;
    uint32_t n_held; /* tokens of the dialog that the session has */
    bool blended;    /* they were computed over approximate KV */
    /* the answer of this turn */
    uint32_t *tokens;
    uint32_t n_tokens;
    size_t n_text, n_shown, text_room;
    char *text;
    float *first_logits; /* what the first token was chosen from */
    double start_s, ttft_s, answer_s, full_s, kl;
    uint32_t full_token;
    struct tsr_blend_report report;
};

/* ---- showing ---- */

/* Bytes at the end of a text that begin a character and do not finish it. */
static size_t unfinished(const char *text, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)text[n - back];
        if ((c & 0xC0) == 0x80) continue;
        size_t want = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
        return want > back ? back : 0;
    }
    return 0;
}

static int show(struct asking *a, bool last)
{
    if (a->cli->json) return 0;
    size_t n = a->n_text - (last ? 0 : unfinished(a->text, a->n_text));
    if (n > a->n_shown) tsri_cli_put_text(a->text + a->n_shown, n - a->n_shown);
    if (n > a->n_shown) a->n_shown = n;
    if (last) putchar('\n');
    return fflush(stdout) == 0 ? 0 : tsri_cli_fail("cannot write the answer");
}

static int add_token(struct asking *a, uint32_t token)
{
    int n = tsr_model_detokenize(a->reader.model, &token, 1, 0, NULL, 0);
    if (n < 0) return tsri_cli_failed();
    char *more = tsri_cli_grow(a->text, &a->text_room, a->n_text + (size_t)n + 1, 1);
    if (!more) return tsri_cli_failed();
    a->text = more;
    if (tsr_model_detokenize(a->reader.model, &token, 1, 0, a->text + a->n_text, (size_t)n) != n)
        return tsri_cli_failed();
    a->tokens[a->n_tokens++] = token;
    a->n_text += (size_t)n;
    return show(a, false);
}

static const char *source_name(const struct tsr_blend_report *r)
{
    uint32_t below = 0;
    for (int i = 1; i < 8; i++)
        below += r->tier_tokens[i];
    if (r->tier_tokens[0] && below) return " from memory and disk";
    return below ? " from disk" : r->tier_tokens[0] ? " from memory" : "";
}

/* What was read just now is no reuse, though the blend takes it from the store as it will the next
 * time: it is new, or recomputed where it was computed once more in its place. */
static void print_line(const struct asking *a)
{
    const struct tsr_blend_report *r = &a->report;
    uint32_t known = r->n_exact + r->n_reused - r->n_filled_reused;
    fflush(stdout);
    fprintf(stderr, "first token after %.2f s; %u tokens: %u reused%s, %u recomputed, %u new",
            a->ttft_s, r->n_tokens, known, known ? source_name(r) : "", r->n_recomputed,
            r->n_new + r->n_filled_reused);
    if (!isnan(r->sure))
        fprintf(stderr, "; same answer as a full prefill: %.0f %% likely", 100 * r->sure);
    if (a->compare)
        fprintf(stderr, "; true KL %.4f, full prefill %.2f s (%.1fx)", a->kl, a->full_s,
                a->full_s / a->ttft_s);
    fputc('\n', stderr);
}

static void print_stats(const struct asking *a)
{
    const struct tsr_blend_report *r = &a->report;
    const struct tsri_reader *m = &a->reader;
    char name[sizeof m->info.name];
    fprintf(stderr,
            "  model        %s, %s; opened in %.2f s\n"
            "  profile      %s; selector %s, ratio %.3f, bias %.2f\n"
            "  tokens       %u exact, %u filled, %u stored, %u failed, in %u chunks\n"
            "  time         lookup %.1f ms, waited for tiers %.1f ms, prompt %.2f s\n"
            "  answer       %u tokens in %.2f s (%.1f a second)\n",
            tsri_printable(m->info.name, name, sizeof name), m->info.device, m->open_s,
            m->profiled ? "measured" : "none", tsr_selector_name(r->selector), r->ratio, r->bias,
            r->n_exact, r->n_filled, r->n_stored, r->n_failed, r->n_chunks, 1e3 * r->lookup_s,
            1e3 * r->wait_s, r->total_s, a->n_tokens, a->answer_s,
            a->answer_s > 0 ? a->n_tokens / a->answer_s : 0);
}

static void print_number(const char *name, double value)
{
    if (isnan(value) || isinf(value))
        printf(",\"%s\":null", name);
    else
        printf(",\"%s\":%.6g", name, value);
}

static void print_json(const struct asking *a, const char *question)
{
    const struct tsr_blend_report *r = &a->report;
    tsri_cli_json("{\"question\":", question);
    a->text[a->n_text] = 0;
    tsri_cli_json(",\"answer\":", a->text);
    printf(",\"tokens\":{\"prompt\":%u,\"exact\":%u,\"reused\":%u,\"recomputed\":%u,\"new\":%u,"
           "\"filled\":%u,\"stored\":%u,\"failed\":%u,\"answer\":%u},\"tiers\":[",
           r->n_tokens, r->n_exact, r->n_reused, r->n_recomputed, r->n_new, r->n_filled,
           r->n_stored, r->n_failed, a->n_tokens);
    for (int i = 0; i < 8; i++)
        printf("%s%u", i ? "," : "", r->tier_tokens[i]);
    printf("],\"selector\":\"%s\",\"reasons\":%u", tsr_selector_name(r->selector), r->reasons);
    print_number("ratio", r->ratio);
    print_number("bias", r->bias);
    print_number("sure", r->sure);
    print_number("ttft_s", a->ttft_s);
    print_number("answer_s", a->answer_s);
    print_number("wait_s", r->wait_s);
    print_number("open_s", a->reader.open_s);
    if (a->compare) {
        print_number("kl", a->kl);
        print_number("full_s", a->full_s);
        printf(",\"same_first_token\":%s",
               a->n_tokens && a->tokens[0] == a->full_token ? "true" : "false");
    }
    puts("}");
}

/* ---- answering ---- */

/* Computes the tokens of the dialog from `first` on, after those that the session holds. */
static int go_on(const struct asking *a, uint32_t first)
{
    const struct tsri_reader *r = &a->reader;
    struct tsri_more more = {.blend = r->blend,
                             .tokens = a->dialog.tokens + first,
                             .held = first,
                             .n = (uint32_t)a->dialog.n_tokens - first,
                             .n_logits = 1,
                             .logits = r->logits};
    return tsri_reader_go_on(r, &more);
}

/* The first turn goes through the cache; later turns continue after the tokens of the session. */
static int read_prompt(struct asking *a)
{
    struct tsri_dialog *d = &a->dialog;
    struct tsri_reader *r = &a->reader;
    uint32_t n = (uint32_t)d->n_tokens, first = a->n_held;
    a->n_held = n;
    if (first > 0) {
        int e = go_on(a, first);
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
    a->report.size = sizeof a->report;
    if (tsr_blend_ask(r->blend, &a->ask, r->logits, &a->report) < 0) return tsri_cli_failed();
    a->blended = a->report.n_reused > 0;
    return 0;
}

static int decode(struct asking *a)
{
    struct tsri_dialog *d = &a->dialog;
    struct tsri_reader *r = &a->reader;
    uint32_t room = r->n_slots - (uint32_t)d->n_tokens;
    uint32_t max = a->answer_max < room ? a->answer_max : room;
    int e = 0;
    for (uint32_t i = 0; i < max && !e; i++) {
        uint32_t token = tsri_sampler_pick(&a->sampler, r->logits, r->info.n_vocab);
        if (i == 0) a->ttft_s = tsri_cli_now_s() - a->start_s;
        if (tsr_model_is_end(r->model, token)) break;
        e = add_token(a, token);
        if (!e) e = tsri_dialog_add_answer(d, &token, 1);
        uint32_t n = (uint32_t)d->n_tokens;
        if (e || i + 1 == max) break;
        e = go_on(a, n - 1);
        a->n_held = n;
    }
    a->answer_s = tsri_cli_now_s() - a->start_s - a->ttft_s;
    return e ? e : show(a, true);
}

/* The same prompt without a cache. */
static int compare(struct asking *a, uint32_t n_prompt)
{
    struct tsri_reader *r = &a->reader;
    struct tsr_blend_desc config = {.size = sizeof config, .model = r->model};
    struct tsr_ask_desc ask = {.size = sizeof ask,
                               .tokens = a->dialog.tokens,
                               .n_tokens = n_prompt,
                               .selector = TSR_SELECT_FULL};
    if (!r->plain && tsr_blend_open(&r->plain, &config) < 0) return tsri_cli_failed();
    tsr_session_close(r->plain_session);
    r->plain_session = NULL;
    if (tsr_session_open(&r->plain_session, r->model, r->n_slots) < 0) return tsri_cli_failed();
    ask.session = r->plain_session;
    double start = tsri_cli_now_s();
    if (tsr_blend_ask(r->plain, &ask, r->logits, NULL) < 0) return tsri_cli_failed();
    a->full_s = tsri_cli_now_s() - start;
    a->kl = tsr_logits_kl(r->logits, a->first_logits, r->info.n_vocab);
    tsr_logits_top(r->logits, r->info.n_vocab, &a->full_token);
    return 0;
}

/* Says when the prompt does not fit, with what does. */
static int check_fit(const struct asking *a)
{
    size_t n = a->dialog.n_tokens, context = a->reader.info.context;
    if (n + 1 <= context) return 0;
    return tsri_cli_fail("the prompt has %zu tokens (%zu pieces of documents), the model's "
                         "context has %zu: use fewer documents",
                         n, a->dialog.n_segments - 1, context);
}

/* Adds the question to the dialog and makes room for the answer. */
static int pose(struct asking *a, const char *question)
{
    struct tsri_dialog *d = &a->dialog;
    struct tsri_reader *r = &a->reader;
    bool later = a->n_turns++ > 0;
    int e = later ? tsri_dialog_next_turn(d) : 0;
    if (!e) e = tsri_dialog_add_question(d, question);
    if (!e) e = check_fit(a);
    if (e) return e;
    if (later && d->n_tokens + 1 > r->n_slots)
        return tsri_cli_fail("the conversation is too long: %zu tokens", d->n_tokens);
    /* A dialog cannot move to another session, so that it gets room for more from the start. */
    size_t room = d->n_tokens + a->answer_max;
    return later ? 0 : tsri_reader_make_room(r, tsri_cli_flag(a->cli, "chat") ? 4 * room : room);
}

static int one_turn(struct asking *a, const char *question)
{
    struct tsri_dialog *d = &a->dialog;
    struct tsri_reader *r = &a->reader;
    a->n_tokens = 0;
    a->n_text = a->n_shown = 0;
    int e = pose(a, question);
    if (e) return e;
    uint32_t n_prompt = (uint32_t)d->n_tokens;
    bool terminal = isatty(STDERR_FILENO) && !a->cli->json;
    if (terminal) fprintf(stderr, "reading %u tokens ...", n_prompt - a->n_held);
    a->start_s = tsri_cli_now_s();
    e = read_prompt(a);
    if (terminal) fprintf(stderr, "\r%32s\r", "");
    if (e) return e;
    memcpy(a->first_logits, r->logits, r->info.n_vocab * sizeof *r->logits);
    e = decode(a);
    if (!e && a->compare) e = compare(a, n_prompt);
    if (e) return e;
    if (a->cli->json)
        print_json(a, question);
    else
        print_line(a);
    if (a->stats && !a->cli->json) print_stats(a);
    return 0;
}

/* ---- the command ---- */

static int read_flags(struct asking *a)
{
    struct tsri_cli *cli = a->cli;
    double answer_max = ANSWER_TOKENS;
    a->ask = (struct tsr_ask_desc){.size = sizeof a->ask,
                                   .flags = TSR_ASK_FILL | TSR_ASK_PREFIX | TSR_ASK_GATE};
    const char *selector = tsri_cli_flag(cli, "selector");
    int found = selector ? tsr_selector_find(selector) : TSR_SELECT_DEFAULT;
    if (found < 0)
        return tsri_cli_usage(cli, "--selector=%s: must be query, hkvd, link, none or full",
                              selector);
    a->ask.selector = (uint32_t)found;
    if (tsri_cli_flag(cli, "ratio")) a->ask.flags |= TSR_ASK_RATIO;
    if (tsri_cli_flag(cli, "no-gate")) a->ask.flags &= ~(uint32_t)TSR_ASK_GATE;
    int e = tsri_cli_flag_number(cli, "ratio", 0, 1, &a->ask.ratio);
    if (!e) e = tsri_cli_flag_count(cli, "max", 1, 1 << 20, &answer_max);
    a->answer_max = (uint32_t)answer_max;
    a->compare = tsri_cli_flag(cli, "compare") != NULL;
    a->stats = tsri_cli_flag(cli, "stats") != NULL;
    return e;
}

static int read_documents(struct asking *a)
{
    struct tsri_cli *cli = a->cli;
    int e = 0;
    for (int i = 0; i < cli->n_flags && !e; i++) {
        if (strcmp(cli->flags[i].name, "doc") == 0)
            e = tsri_documents_add_file(&a->documents, cli->flags[i].value);
        else if (strcmp(cli->flags[i].name, "docs") == 0)
            e = tsri_documents_add_folder(&a->documents, cli->flags[i].value);
    }
    return e;
}

static int prepare(struct asking *a)
{
    int e = tsri_reader_open(&a->reader, a->cli);
    if (!e) e = tsri_sampler_init(&a->sampler, a->cli, a->reader.info.n_vocab);
    if (!e) e = tsri_dialog_init(&a->dialog, a->reader.model, tsri_cli_flag(a->cli, "system"));
    for (size_t i = 0; i < a->documents.n && !e; i++)
        e = tsri_dialog_add_document(&a->dialog, &a->documents.items[i]);
    if (e) return e;
    if (!a->reader.profiled && a->documents.n > 0)
        tsri_cli_note("no profile was measured for this model: using cautious settings "
                      "(tessera-lab calibrate measures one)");
    a->tokens = malloc(((size_t)a->answer_max + 1) * sizeof *a->tokens);
    a->first_logits = malloc(a->reader.info.n_vocab * sizeof *a->first_logits);
    a->text = tsri_cli_grow(NULL, &a->text_room, 1, 1);
    return a->tokens && a->first_logits && a->text ? 0 : tsri_cli_fail("no memory");
}

/* Before the model is loaded: that takes long, and a mistake should show at once. */
static int open_chat(struct asking *a, const char *path)
{
    bool standard = path[0] == 0 || strcmp(path, "-") == 0;
    a->chat = standard ? stdin : fopen(path, "re");
    a->chat_name = standard ? "standard input" : path;
    return a->chat ? 0 : tsri_cli_fail("--chat=%s: %s", path, strerror(errno));
}

/* A question a line. */
static int all_turns(struct asking *a)
{
    bool terminal = a->chat == stdin && isatty(STDIN_FILENO);
    char *line = NULL;
    size_t room = 0;
    int e = 0;
    while (!e) {
        if (terminal) fputs("> ", stderr);
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
    struct asking *a = tsri_alloc(1, sizeof *a);
    if (!a) return tsri_cli_fail("no memory");
    a->cli = cli;
    int e = check_question(cli, chat);
    if (!e) e = read_flags(a);
    if (!e && chat) e = open_chat(a, chat);
    if (!e) e = read_documents(a);
    if (!e) e = prepare(a);
    if (!e) e = chat ? all_turns(a) : one_turn(a, cli->args[0]);
    tsri_reader_close(&a->reader);
    tsri_sampler_fini(&a->sampler);
    tsri_dialog_fini(&a->dialog);
    tsri_documents_fini(&a->documents);
    free(a->tokens);
    free(a->first_logits);
    free(a->text);
    if (a->chat && a->chat != stdin) fclose(a->chat);
    tsri_free(a);
    return e;
}
