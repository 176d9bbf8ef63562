/* cmd_server.c - commands on a server's cache: ls, evict, clear and warm with --connect, and flush,
 * pin and unpin, which are about a running cache and nothing else. */
#include "cli/prompt_file.h"
#include "cli/remote.h"
#include "cli/store.h"

#include <stdlib.h>

#define LIST_ROWS 16384u                 /* of one request */
#define WARM_BYTES ((uint64_t)256 << 20) /* of one request: somebody else may want the worker */

/* Says what a call on entries did. */
static int say(const struct tsri_cli *cli, const char *what, int64_t n)
{
    if (cli->json)
        printf("{\"%s\":%lld}\n", what, (long long)n);
    else
        printf("%lld entries %s\n", (long long)n, what);
    return 0;
}

static int call_and_say(struct tsri_cli *cli, struct tsri_request *q, const char *what)
{
    struct tsri_remote r;
    int status = tsri_remote_open(&r, cli);
    if (status) return status;
    int n = tsri_remote_call(&r, q);
    tsri_remote_close(&r);
    return n < 0 ? CLI_FAILED : say(cli, what, n);
}

/* ---- ls ---- */

struct rows {
    struct tsri_wire_entry *list;
    size_t n, room;
};

static bool keep(struct rows *rows, const struct tsri_wire_entry *more, size_t n)
{
    void *list = tsri_make_room(rows->list, &rows->room, rows->n + n, sizeof *more);
    if (!list) return false;
    rows->list = list;
    if (n) memcpy(rows->list + rows->n, more, n * sizeof *more);
    rows->n += n;
    return true;
}

static int read_rows(struct tsri_remote *r, struct rows *rows)
{
    struct tsri_request q;
    for (uint32_t next = 0; next != TSRI_WIRE_LIST_END;) {
        struct tsri_answer *a;
        tsri_remote_clear(&q, TSRI_WIRE_LIST)->n = LIST_ROWS;
        q.value = next;
        if (tsri_remote_ask(r, &q, &a) < 0) return CLI_FAILED;
        uint32_t before = next;
        next = a->reply.next;
        bool ok = next > before && keep(rows, a->reply.entries, a->reply.n);
        tsri_link_end(a);
        if (!ok)
            return tsri_cli_fail("cannot read the list of the server: bad reply, or no memory");
    }
    return 0;
}

static int by_key(const void *a, const void *b)
{
    const struct tsri_wire_entry *x = a, *y = b;
    return memcmp(x->key, y->key, sizeof x->key);
}

static int by_size(const void *a, const void *b)
{
    const struct tsri_wire_entry *x = a, *y = b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : by_key(a, b);
}

/* "host", "host, 1", "1, 2": tiers below are numbered as the configuration names them. */
static const char *tiers_of(uint8_t tiers, char buf[static 40])
{
    size_t n = 0;
    buf[0] = 0;
    for (unsigned t = 0; t < 8; t++) {
        if (!(tiers >> t & 1)) continue;
        if (t == 0)
            n += (size_t)snprintf(buf + n, 40 - n, "host");
        else
            n += (size_t)snprintf(buf + n, 40 - n, "%s%u", n ? ", " : "", t);
    }
    return buf;
}

static void print_json(const struct rows *rows)
{
    printf("{\"entries\":[");
    for (size_t i = 0; i < rows->n; i++) {
        const struct tsri_wire_entry *e = &rows->list[i];
        char key[33], space[33];
        tsri_hex(key, e->key, 16);
        tsri_hex(space, e->space, 16);
        printf("%s{\"key\":\"%s\",\"space\":\"%s\",\"kind\":\"%s\",\"tokens\":%u,\"bytes\":%llu,"
               "\"tiers\":[",
               i ? "," : "", key, space, tsri_store_kind(e->kind), e->n_tokens,
               (unsigned long long)e->bytes);
        for (unsigned t = 0, n = 0; t < 8; t++)
            if (e->tiers >> t & 1) printf("%s%u", n++ ? "," : "", t);
        printf("],\"in_use\":%u,\"pinned\":%u}", e->pins - e->user_pins, e->user_pins);
    }
    printf("]}\n");
}

static int print_rows(const struct tsri_cli *cli, const struct rows *rows)
{
    struct tsri_table t;
    char key[33], space[33], size[32], tiers[40];
    uint64_t tokens = 0, bytes = 0;
    tsri_table_init(&t, "lllrrlrr", "key|space|kind|tokens|KV|tiers|in use|pinned");
    for (size_t i = 0; i < rows->n; i++) {
        const struct tsri_wire_entry *e = &rows->list[i];
        tsri_hex(key, e->key, 16);
        tsri_hex(space, e->space, 4);
        tsri_table_row(&t, "%s|%s|%s|%u|%s|%s|%u|%u", key, space, tsri_store_kind(e->kind),
                       e->n_tokens, e->bytes ? tsri_cli_size(e->bytes, size) : "?",
                       tiers_of(e->tiers, tiers), e->pins - e->user_pins, e->user_pins);
        tokens += e->n_tokens;
        bytes += e->bytes;
    }
    int status = tsri_table_print(&t, cli);
    if (!status)
        printf("%zu entries, %llu tokens, %s\n", rows->n, (unsigned long long)tokens,
               tsri_cli_size(bytes, size));
    return status;
}

int tsri_server_ls(struct tsri_cli *cli)
{
    struct tsri_remote r;
    struct rows rows = {0};
    const char *order = tsri_cli_flag(cli, "order");
    int status = tsri_cli_want_args(cli, 0, 0);
    if (status) return status;
    if (order && strcmp(order, "key") != 0 && strcmp(order, "size") != 0)
        return tsri_cli_usage(cli, "--order=%s: must be key or size with --connect", order);
    status = tsri_remote_open(&r, cli);
    if (status) return status;
    status = read_rows(&r, &rows);
    tsri_remote_close(&r);
    bool size = order && strcmp(order, "size") == 0;
    if (rows.n) qsort(rows.list, rows.n, sizeof *rows.list, size ? by_size : by_key);
    if (!status && cli->json)
        print_json(&rows);
    else if (!status)
        status = print_rows(cli, &rows);
    free(rows.list);
    return status;
}

/* ---- evict, clear, warm, flush ---- */

int tsri_server_evict(struct tsri_cli *cli)
{
    struct tsri_request q;
    int status = tsri_cli_want_args(cli, 1, 1);
    if (status) return status;
    tsri_remote_clear(&q, TSRI_WIRE_EVICT);
    if (!tsri_parse_size(cli->args[0], &q.bytes) || q.bytes == 0)
        return tsri_cli_usage(cli, "%s: not a size", cli->args[0]);
    return call_and_say(cli, &q, "evicted");
}

int tsri_server_clear(struct tsri_cli *cli)
{
    struct tsri_remote r;
    struct tsri_request q;
    const char *hex;
    uint32_t space = TSRI_WIRE_SPACE_ALL;
    bool bare;
    int status = tsri_cli_want_args(cli, 0, 0);
    if (!status) status = tsri_store_space(cli, &hex);
    if (!status) status = tsri_remote_open(&r, cli);
    if (status) return status;
    if (hex) status = tsri_remote_space(&r, hex, &space, &bare);
    int n = 0;
    if (!status) {
        tsri_remote_clear(&q, TSRI_WIRE_CLEAR)->space = space;
        q.tier = -1;
        n = tsri_remote_call(&r, &q);
        if (n < 0) status = CLI_FAILED;
    }
    tsri_remote_close(&r);
    return status ? status : say(cli, "cleared", n);
}

int tsri_server_warm(struct tsri_cli *cli)
{
    struct tsri_remote r;
    struct tsri_request q;
    int status = tsri_cli_want_args(cli, 0, 0);
    if (!status) status = tsri_remote_open(&r, cli);
    if (status) return status;
    int64_t all = 0;
    int n;
    do {
        tsri_remote_clear(&q, TSRI_WIRE_WARM)->bytes = WARM_BYTES;
        n = tsri_remote_call(&r, &q);
        all += n > 0 ? n : 0;
    } while (n > 0);
    tsri_remote_close(&r);
    return n < 0 ? CLI_FAILED : say(cli, "warmed", all);
}

int tsri_cmd_flush(struct tsri_cli *cli)
{
    struct tsri_remote r;
    struct tsri_request q;
    int status = tsri_cli_want_args(cli, 0, 0);
    if (!status) status = tsri_remote_open(&r, cli);
    if (status) return status;
    struct tsri_answer *a;
    uint64_t n_before;
    tsri_link_life(r.link, r.session, &n_before);
    int e = tsri_remote_ask(&r, tsri_remote_clear(&q, TSRI_WIRE_FLUSH), &a);
    uint64_t n_lost = e < 0 ? 0 : a->reply.n_lost - n_before;
    tsri_link_end(a);
    tsri_remote_close(&r);
    if (e < 0) return CLI_FAILED;
    if (n_lost)
        return tsri_cli_fail("%llu entries were lost before they were written to a lower tier",
                             (unsigned long long)n_lost);
    puts(cli->json ? "{\"flushed\":true}" : "flushed");
    return 0;
}

/* ---- pins ---- */

/* The prompt of a file as tokens, which is all that a server knows. */
static int load_prompt(struct tsri_cli *cli, struct tsri_prompt_file *f, struct tsr_prompt *prompt)
{
    if (tsri_prompt_file_load(f, cli->args[0]) < 0) return tsri_cli_failed();
    if (f->prompt.bytes || f->n_documents) {
        tsri_prompt_file_fini(f);
        return tsri_cli_fail("%s: a server stores tokens: the prompt must be tokens, without "
                             "documents",
                             cli->args[0]);
    }
    *prompt = (struct tsr_prompt){.size = sizeof *prompt,
                                  .tokens = f->prompt.tokens,
                                  .n_tokens = (uint32_t)f->prompt.n_tokens,
                                  .flags = TSR_PROMPT_PREFIX,
                                  .segments = f->parts,
                                  .n_segments = f->n_parts};
    if (f->n_parts) prompt->flags |= TSR_PROMPT_SEGMENTS;
    if (f->system.n_tokens) prompt->flags |= TSR_PROMPT_CONTEXT;
    return 0;
}

/* A request on a prompt: connected, its space found. */
static int ask_prompt(struct tsri_cli *cli, struct tsri_request *q,
                      int (*then)(struct tsri_cli *cli, struct tsri_remote *r,
                                  struct tsri_request *q, const struct tsri_prompt_file *f))
{
    struct tsri_remote r;
    struct tsri_prompt_file f;
    bool bare;
    const char *hex;
    int status = tsri_cli_want_args(cli, 1, 1);
    if (!status) status = tsri_store_space(cli, &hex);
    if (!status) status = load_prompt(cli, &f, &q->prompt);
    if (status) return status;
    status = tsri_remote_open(&r, cli);
    if (!status) {
        status = tsri_remote_space(&r, hex, &q->space, &bare);
        if (!status && bare)
            status = tsri_cli_fail("no engine has opened this space since the server started");
        if (!status) status = then(cli, &r, q, &f);
        tsri_remote_close(&r);
    }
    tsri_prompt_file_fini(&f);
    return status;
}

static int mark(struct tsri_cli *cli, struct tsri_remote *r, struct tsri_request *q,
                const struct tsri_prompt_file *f)
{
    (void)f;
    int n = tsri_remote_call(r, q);
    return n < 0 ? CLI_FAILED : say(cli, q->type == TSRI_WIRE_PIN ? "pinned" : "unpinned", n);
}

int tsri_cmd_pin(struct tsri_cli *cli)
{
    struct tsri_request q;
    tsri_remote_clear(&q, TSRI_WIRE_PIN);
    return ask_prompt(cli, &q, mark);
}

int tsri_cmd_unpin(struct tsri_cli *cli)
{
    struct tsri_request q;
    tsri_remote_clear(&q, TSRI_WIRE_UNPIN);
    return ask_prompt(cli, &q, mark);
}

/* ---- inspect ---- */

#define MATCHES_MAX 65536u

static void print_match_json(const struct tsri_wire_match *m, bool first)
{
    printf("%s{\"offset\":%u,\"tokens\":%u,\"entry_offset\":%u,\"entry_tokens\":%u,\"kind\":\"%s\","
           "\"coverage\":\"%s\",\"context\":\"%s\",\"tier\":%u,\"edits\":%s}",
           first ? "" : ",", m->prompt_offset, m->n_tokens, m->entry_offset, m->entry_tokens,
           tsri_store_kind(m->kind), tsri_match_coverage(m->coverage),
           tsri_match_context(m->context), m->tier, m->edits ? "true" : "false");
}

static int print_matches(const struct tsri_cli *cli, const struct tsri_reply *reply)
{
    struct tsri_table t;
    char tiers[40];
    tsri_table_init(&t, "rllllll", "tokens|in prompt|in entry|kind|match|context|tier");
    for (uint32_t i = 0; i < reply->n; i++) {
        const struct tsri_wire_match *m = &reply->matches[i];
        tsri_table_row(&t, "%u|%u..%u|%u..%u of %u|%s|%s|%s|%s", m->n_tokens, m->prompt_offset,
                       m->prompt_offset + m->n_tokens - 1, m->entry_offset,
                       m->entry_offset + m->n_tokens - 1, m->entry_tokens, tsri_store_kind(m->kind),
                       tsri_match_coverage(m->coverage), tsri_match_context(m->context),
                       tiers_of((uint8_t)(1u << (m->tier & 7)), tiers));
    }
    return tsri_table_print(&t, cli);
}

static int inspect(struct tsri_cli *cli, struct tsri_remote *r, struct tsri_request *q,
                   const struct tsri_prompt_file *f)
{
    struct tsri_answer *a;
    q->prompt.flags |= TSR_PROMPT_ANY | TSR_PROMPT_OTHER;
    q->lookup =
        (struct tsri_wire_lookup){.n_spaces = 1, .matches_max = MATCHES_MAX, .spaces = &q->space};
    int n = tsri_remote_ask(r, q, &a), status = 0;
    if (n < 0) return CLI_FAILED;
    if (cli->json) {
        printf("{\"tokens\":%zu,\"found\":%d,\"matches\":[", f->prompt.n_tokens, n);
        for (uint32_t i = 0; i < a->reply.n; i++)
            print_match_json(&a->reply.matches[i], i == 0);
        printf("]}\n");
    } else {
        if (a->reply.n) status = print_matches(cli, &a->reply);
        if (a->reply.n) putchar('\n');
        printf("prompt: %zu tokens, %d found (%.1f %%)\n", f->prompt.n_tokens, n,
               100.0 * n / (double)f->prompt.n_tokens);
    }
    tsri_link_end(a);
    return status;
}

int tsri_server_inspect(struct tsri_cli *cli)
{
    struct tsri_request q;
    tsri_remote_clear(&q, TSRI_WIRE_LOOKUP);
    if (tsri_cli_flag(cli, "store"))
        return tsri_cli_usage(cli, "inspect: use --store or --connect, not both");
    return ask_prompt(cli, &q, inspect);
}
