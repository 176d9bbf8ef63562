/* top_sample.c - the status of a server (/api/stats, which the socket gives too) as numbers. Bytes
 * from outside: names are cut and lose their control characters, lists end at their limits, and a
 * number that is none is 0. */
#include "cli/json.h"
#include "cli/top.h"

/* clang-format off */
static const char *const members[TSRI_TOP_NUMBERS] = { /* in the order of struct tsri_top_numbers */
    "lookup_tokens_asked", "lookup_tokens_reused", "lookups", "lookup_misses", "load_bytes", "store_bytes",
    "tier_read_bytes", "tier_write_bytes", "evictions", "stores_refused", "tier_errors", "tier_timeouts",
    "corrupt", "sessions",
};
/* clang-format on */

static double number(const json_t *object, const char *name)
{
    double v = json_number_value(json_object_get(object, name));
    return v > 0 && v < 1e19 ? v : 0;
}

static void copy_name(char out[static TSRI_TOP_NAME_BYTES], const json_t *object, const char *name)
{
    const char *s = json_string_value(json_object_get(object, name));
    size_t n = 0, length;
    for (; s && *s && n + 4 < TSRI_TOP_NAME_BYTES; s += length) {
        length = (size_t)tsri_utf8_length(s);
        if (length == 0) break; /* jansson gives UTF-8 alone */
        if (tsri_is_control(s)) {
            out[n++] = '?';
            continue;
        }
        memcpy(out + n, s, length);
        n += length;
    }
    out[n] = 0;
}

static void read_tier(struct tsri_top_tenant *t, const json_t *row)
{
    if (t->n_tiers == TSRI_TOP_TIERS_MAX || !json_is_object(row)) return;
    struct tsri_top_tier *x = &t->tiers[t->n_tiers++];
    copy_name(x->name, row, "name");
    x->entries = number(row, "entries");
    x->tokens = number(row, "tokens");
    x->used = number(row, "used");
    x->size = number(row, "size");
}

static void add_tier(struct tsri_top_tenant *all, const struct tsri_top_tier *x)
{
    uint32_t i = 0;
    while (i < all->n_tiers && strcmp(all->tiers[i].name, x->name) != 0)
        i++;
    if (i == TSRI_TOP_TIERS_MAX) return;
    struct tsri_top_tier *sum = &all->tiers[i];
    if (i == all->n_tiers) {
        memcpy(sum->name, x->name, sizeof sum->name);
        all->n_tiers++;
    }
    sum->entries += x->entries;
    sum->tokens += x->tokens;
    sum->used += x->used;
    sum->size += x->size;
}

static void read_tenant(struct tsri_top_sample *s, const json_t *row)
{
    size_t i;
    const json_t *metrics = json_object_get(row, "metrics"), *tiers = json_object_get(row, "tiers");
    if (s->n_tenants == TSRI_TOP_TENANTS_MAX || !json_is_object(row)) return;
    struct tsri_top_tenant *t = &s->tenants[s->n_tenants++];
    copy_name(t->name, row, "name");
    for (i = 0; i < TSRI_TOP_NUMBERS; i++) {
        t->n.each[i] = number(metrics, members[i]);
        s->all.n.each[i] += t->n.each[i];
    }
    for (i = 0; i < json_array_size(tiers); i++)
        read_tier(t, json_array_get(tiers, i));
    for (i = 0; i < t->n_tiers; i++)
        add_tier(&s->all, &t->tiers[i]);
}

static void read_slow(struct tsri_top_sample *s, const json_t *row)
{
    if (s->n_slow == TSRI_TOP_SLOW_MAX || !json_is_object(row)) return;
    struct tsri_top_slow *x = &s->slow[s->n_slow++];
    copy_name(x->call, row, "call");
    copy_name(x->tenant, row, "tenant");
    x->seconds = number(row, "seconds");
    x->ago = number(row, "ago");
}

static void read_serve(struct tsri_top_sample *s, const json_t *o)
{
    s->has_serve = json_is_object(o);
    s->serve = (struct tsri_top_serve){.requests = number(o, "requests_total"),
                                       .queued = number(o, "queued"),
                                       .reading = number(o, "reading"),
                                       .writing = number(o, "writing"),
                                       .prompt = number(o, "prompt_tokens_total"),
                                       .recomputed = number(o, "recomputed_tokens_total"),
                                       .answer = number(o, "answer_tokens_total")};
}

int tsri_top_sample_read(struct tsri_top_sample *s, const char *text, size_t bytes)
{
    memset(s, 0, sizeof *s);
    s->at_s = tsri_cli_now_s();
    json_t *root = json_loadb(text, bytes, 0, NULL);
    const json_t *tenants = json_object_get(root, "tenants"), *slow = json_object_get(root, "slow");
    if (!json_is_array(tenants)) {
        json_decref(root);
        return tsri_fail(TSR_EINVAL, "the reply is not the status of a Tessera server");
    }
    copy_name(s->version, root, "version");
    s->uptime = number(root, "uptime");
    for (size_t i = 0; i < json_array_size(tenants); i++)
        read_tenant(s, json_array_get(tenants, i));
    for (size_t i = 0; i < json_array_size(slow); i++)
        read_slow(s, json_array_get(slow, i));
    read_serve(s, json_object_get(root, "serve"));
    json_decref(root);
    return 0;
}
