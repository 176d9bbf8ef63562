/* cmd_verify.c - `tessera verify DIR`: reads everything a store holds and compares it with its
 * checksums. An entry that fails is read again cell by cell, so that every bad cell is named;
 * --repair drops such entries. Exits 1 when something was bad and is still there. */
#include "cli/store.h"

/* Room to read one entry into; every plane of it, or one at a time. */
struct entry_room {
    uint32_t *tokens;
    uint8_t *extra, *data;
    void **planes, **one;
    size_t n_planes;
};

static void room_fini(struct entry_room *r)
{
    tsri_free(r->tokens);
    tsri_free(r->extra);
    tsri_free(r->planes);
    tsri_free(r->one);
    tsri_free(r->data);
}

static bool room_init(struct entry_room *r, const struct tsr_entry_head *h)
{
    memset(r, 0, sizeof *r);
    uint32_t n_cells = tsri_head_cells(h);
    r->n_planes = (size_t)h->n_layers * h->n_planes * n_cells;
    r->tokens = tsri_alloc(h->n_tokens, sizeof *r->tokens);
    r->extra = tsri_alloc(h->extra_bytes + 1, 1);
    r->planes = tsri_alloc(r->n_planes, sizeof *r->planes);
    r->one = tsri_alloc(r->n_planes, sizeof *r->one);
    r->data = tsri_alloc(h->n_tokens, tsri_store_token_bytes(h));
    if (!r->tokens || !r->extra || !r->planes || !r->one || !r->data) {
        room_fini(r);
        return false;
    }
    uint8_t *at = r->data;
    for (size_t i = 0; i < r->n_planes; i++) {
        r->planes[i] = at;
        uint32_t cell = (uint32_t)(i % n_cells), plane = (uint32_t)(i / n_cells % h->n_planes);
        at += (size_t)tsri_head_cell_tokens(h, cell) * h->row_bytes[plane];
    }
    return true;
}

static int read_planes(struct tsri_store *s, const struct tsri_store_entry *e, struct entry_room *r,
                       void **planes)
{
    struct tsr_tier_io io = {.head = e->head,
                             .loc = e->loc,
                             .tokens = r->tokens,
                             .extra = r->extra,
                             .extra_max = e->head.extra_bytes,
                             .n_cells = tsri_head_cells(&e->head),
                             .planes = planes};
    int n = tsri_tier_get(s->tier, &io, 1);
    return n < 0 ? n : io.result;
}

/* Names every bad cell; returns how many, 1 at least (the header may be what is bad). */
static size_t name_cells(struct tsri_cli *cli, struct tsri_store *s,
                         const struct tsri_store_entry *e, struct entry_room *r, const char *key,
                         size_t n_before)
{
    uint32_t n_cells = tsri_head_cells(&e->head);
    size_t n_bad = 0;
    for (size_t i = 0; i < r->n_planes; i++) {
        memset(r->one, 0, r->n_planes * sizeof *r->one);
        r->one[i] = r->planes[i];
        if (read_planes(s, e, r, r->one) >= 0) continue;
        uint32_t cell = (uint32_t)(i % n_cells), plane = (uint32_t)(i / n_cells % e->head.n_planes);
        uint32_t layer = (uint32_t)(i / n_cells / e->head.n_planes);
        uint32_t first = cell * e->head.cell_tokens;
        uint32_t end = first + tsri_head_cell_tokens(&e->head, cell);
        if (cli->json)
            printf("%s{\"key\":\"%s\",\"layer\":%u,\"plane\":%u,\"cell\":%u,\"token_first\":%u,"
                   "\"token_end\":%u}",
                   n_before + n_bad ? "," : "", key, layer, plane, cell, first, end);
        else
            printf("%s: layer %u, %s, tokens %u to %u: bad\n", key, layer, plane ? "V" : "K", first,
                   end);
        n_bad++;
    }
    if (n_bad) return n_bad;
    if (cli->json)
        printf("%s{\"key\":\"%s\",\"error\":\"%s\"}", n_before ? "," : "", key, "unreadable");
    else
        printf("%s: cannot be read\n", key);
    return 1;
}

struct tally {
    size_t n_bad_entries, n_bad_cells, n_dropped;
    uint64_t bytes;
};

static int check_entry(struct tsri_cli *cli, struct tsri_store *s, const struct tsri_store_entry *e,
                       bool repair, struct tally *t)
{
    struct entry_room r;
    if (!room_init(&r, &e->head)) return tsri_cli_failed();
    char key[33];
    tsri_hex(key, e->head.key.bytes, 16);
    t->bytes += e->bytes;
    int status = 0;
    if (read_planes(s, e, &r, r.planes) < 0) {
        t->n_bad_entries++;
        t->n_bad_cells += name_cells(cli, s, e, &r, key, t->n_bad_cells);
        if (repair) {
            int n = tsri_store_drop(s, e);
            if (n < 0) status = tsri_cli_fail("%s: %s", key, tsr_errmsg());
            t->n_dropped += n > 0;
        }
    }
    room_fini(&r);
    return status;
}

int tsri_cmd_verify(struct tsri_cli *cli)
{
    int status = tsri_cli_want_args(cli, 1, 1);
    if (status) return status;
    bool repair = tsri_cli_flag(cli, "repair") != NULL;
    struct tsri_store s;
    status = tsri_store_open(&s, cli, cli->args[0], repair);
    if (status) return status;
    struct tally t = {0};
    if (cli->json) printf("{\"bad\":[");
    for (size_t i = 0; i < s.n_entries && !status; i++) {
        status = check_entry(cli, &s, &s.entries[i], repair, &t);
        tsri_cli_progress("verify", i + 1, s.n_entries);
    }
    if (repair && !status) status = tsri_store_flush(&s);
    char size[32];
    if (cli->json)
        printf("],\"entries\":%zu,\"bytes\":%llu,\"bad_entries\":%zu,\"dropped\":%zu}\n",
               s.n_entries, (unsigned long long)t.bytes, t.n_bad_entries, t.n_dropped);
    else
        printf("%zu entries, %s read: %zu bad%s\n", s.n_entries, tsri_cli_size(t.bytes, size),
               t.n_bad_entries, t.n_dropped ? ", dropped" : "");
    tsri_store_close(&s);
    if (status) return status;
    return t.n_bad_entries > t.n_dropped ? CLI_FAILED : 0;
}
