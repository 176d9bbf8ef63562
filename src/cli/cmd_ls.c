/* cmd_ls.c - `tessera ls DIR`: what a store directory holds. */
#include "cli/remote.h"
#include "cli/store.h"

#include <stdlib.h>

static int by_key(const void *a, const void *b)
{
    const struct tsri_store_entry *x = a, *y = b;
    return memcmp(&x->head.key, &y->head.key, sizeof x->head.key);
}

static int by_size(const void *a, const void *b)
{
    const struct tsri_store_entry *x = a, *y = b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : by_key(a, b);
}

/* The digest of the text that a segment was computed after; false: none. */
static bool context_of(const struct tsri_store_entry *e, char hex[static 65])
{
    tsri_hex(hex, e->head.digest, 32);
    return e->head.kind == TSR_KIND_SEGMENT && strspn(hex, "0") != 64;
}

static void print_json(const struct tsri_store *s)
{
    printf("{\"entries\":[");
    for (size_t i = 0; i < s->n_entries; i++) {
        const struct tsri_store_entry *e = &s->entries[i];
        char key[33], space[33], parent[33], context[65];
        tsri_hex(key, e->head.key.bytes, 16);
        tsri_hex(space, e->head.space, 16);
        tsri_hex(parent, e->head.parent.bytes, 16);
        printf("%s{\"key\":\"%s\",\"space\":\"%s\",\"kind\":\"%s\",\"tokens\":%u,\"bytes\":%llu,"
               "\"base\":%u,\"layers\":%u,\"eviction_order\":%zu",
               i ? "," : "", key, space, tsri_store_kind(e->head.kind), e->head.n_tokens,
               (unsigned long long)e->bytes, e->head.base, e->head.n_layers, e->order);
        if (strspn(parent, "0") != 32) printf(",\"parent\":\"%s\"", parent);
        if (context_of(e, context)) printf(",\"context\":\"%s\"", context);
        printf("}");
    }
    printf("]}\n");
}

static int print_table(const struct tsri_cli *cli, const struct tsri_store *s)
{
    struct tsri_table t;
    tsri_table_init(&t, "llllrrrr", "key|space|kind|after|tokens|layers|KV per token|on disk");
    uint64_t bytes = 0, tokens = 0;
    char a[32], b[32], key[33], space[33], context[65];
    for (size_t i = 0; i < s->n_entries; i++) {
        const struct tsri_store_entry *e = &s->entries[i];
        tsri_hex(key, e->head.key.bytes, 16);
        tsri_hex(space, e->head.space, 4);
        bool after = context_of(e, context);
        tsri_table_row(&t, "%s|%s|%s|%.8s|%u|%u|%s|%s", key, space, tsri_store_kind(e->head.kind),
                       after ? context : "-", e->head.n_tokens, e->head.n_layers,
                       tsri_cli_size(tsri_store_token_bytes(&e->head), a),
                       tsri_cli_size(e->bytes, b));
        bytes += e->bytes;
        tokens += e->head.n_tokens;
    }
    int status = tsri_table_print(&t, cli);
    if (!status)
        printf("%zu entries, %llu tokens, %s\n", s->n_entries, (unsigned long long)tokens,
               tsri_cli_size(bytes, a));
    return status;
}

int tsri_cmd_ls(struct tsri_cli *cli)
{
    if (tsri_remote_wanted(cli)) return tsri_server_ls(cli);
    int status = tsri_cli_want_args(cli, 1, 1);
    if (status) return status;
    const char *order = tsri_cli_flag(cli, "order");
    int (*compare)(const void *, const void *) = by_key;
    if (order && strcmp(order, "eviction") == 0)
        compare = NULL;
    else if (order && strcmp(order, "size") == 0)
        compare = by_size;
    else if (order && strcmp(order, "key") != 0)
        return tsri_cli_usage(cli, "--order=%s: must be key, size or eviction", order);
    struct tsri_store s;
    status = tsri_store_open(&s, cli, cli->args[0], false);
    if (status) return status;
    if (compare && s.n_entries) qsort(s.entries, s.n_entries, sizeof s.entries[0], compare);
    if (cli->json)
        print_json(&s);
    else
        status = print_table(cli, &s);
    tsri_store_close(&s);
    return status;
}
