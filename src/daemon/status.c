/* status.c - what a server says about itself: every metric of every tenant in the two formats of
 * stats.h, and around the JSON one what the page shows besides: tiers, spaces, slow calls. Numbers
 * only; no token and no key of anybody is in here. */
#include "daemon/daemon.h"

#include <inttypes.h>

#define METRICS_BYTES_MAX \
    ((size_t)64 << 10) /* JSON of one tenant; the table makes a fifth of it \
                        */
#define NS_PER_S 1e9

/* Gauges that are levels are only set when they are asked for. */
static void refresh(const struct tsr_server *s)
{
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        struct tsr_stats now = {.size = sizeof now};
        int e = tsr_cache_stats(s->tenants[i].cache, &now);
        (void)e; /* fails only for arguments */
    }
}

size_t tsri_status_prometheus(const struct tsr_server *s, char *buf, size_t bytes)
{
    const struct tsri_stats *all[TSRI_TENANTS_MAX];
    const char *names[TSRI_TENANTS_MAX];
    refresh(s);
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        all[i] = tsri_cache_metrics(s->tenants[i].cache);
        names[i] = s->tenants[i].name;
    }
    return tsri_stats_text_tenants(all, names, s->n_tenants, buf, bytes);
}

/* ---- JSON ---- */

static void add_tiers(struct tsri_text *t, struct tsr_cache *c)
{
    struct tsri_tier_row rows[TSR_TIERS_MAX];
    uint32_t n = tsri_cache_tiers(c, rows);
    for (uint32_t i = 0; i < n; i++) {
        tsri_text_add(t, "%s{\"name\":", i ? "," : "");
        tsri_text_add_json(t, rows[i].name);
        tsri_text_add(t, ",\"entries\":%" PRIu64 ",\"used\":%" PRIu64 ",\"size\":%" PRIu64 "}",
                      rows[i].entries, rows[i].bytes_used, rows[i].bytes_max);
    }
}

static void add_spaces(struct tsri_text *t, struct tsr_cache *c)
{
    struct tsri_space_row rows[TSRI_STATUS_SPACES_MAX];
    uint32_t n = tsri_cache_spaces(c, rows, TSRI_STATUS_SPACES_MAX);
    for (uint32_t i = 0; i < n; i++) {
        tsri_text_add(t, "%s{\"model\":", i ? "," : "");
        tsri_text_add_json(t, rows[i].model);
        tsri_text_add(t, ",\"fingerprint\":\"");
        for (int k = 0; k < 16; k++)
            tsri_text_add(t, "%02x", rows[i].fingerprint[k]);
        tsri_text_add(t, "\",\"open\":%u,\"entries\":%u,\"token_bytes\":%" PRIu64 "}", rows[i].refs,
                      rows[i].entries, rows[i].token_bytes);
    }
}

static void add_slow(struct tsri_text *t, struct tsr_server *s)
{
    struct tsri_slow_call calls[TSRI_SLOW_MAX];
    uint64_t now = tsri_now_ns();
    uint32_t n = tsri_slow_list(&s->slow, now, calls);
    for (uint32_t i = 0; i < n; i++) {
        const char *name = tsri_wire_name(calls[i].type);
        tsri_text_add(t, "%s{\"call\":", i ? "," : "");
        tsri_text_add_json(t, name ? name : "unknown");
        tsri_text_add(t, ",\"tenant\":");
        tsri_text_add_json(t, calls[i].tenant ? calls[i].tenant : "");
        tsri_text_add(t, ",\"seconds\":%.6f,\"ago\":%.1f}", (double)calls[i].ns / NS_PER_S,
                      (double)(now - calls[i].end_ns) / NS_PER_S);
    }
}

static void add_tenant(struct tsri_text *t, const struct tsri_tenant *x, char *scratch)
{
    tsri_text_add(t, "{\"name\":");
    tsri_text_add_json(t, x->name);
    tsri_text_add(t, ",\"tiers\":[");
    add_tiers(t, x->cache);
    tsri_text_add(t, "],\"spaces\":[");
    add_spaces(t, x->cache);
    size_t n = tsri_stats_text_json(tsri_cache_metrics(x->cache), scratch, METRICS_BYTES_MAX);
    TSR_ASSERT(n < METRICS_BYTES_MAX);
    tsri_text_add(t, "],\"metrics\":%s}", scratch);
}

size_t tsri_status_json(struct tsr_server *s, char *buf, size_t bytes)
{
    struct tsri_text t;
    char *scratch = tsri_alloc(1, METRICS_BYTES_MAX);
    if (!scratch) return 0;
    refresh(s);
    tsri_text_init(&t, buf, bytes);
    tsri_text_add(&t, "{\"version\":");
    tsri_text_add_json(&t, tsr_version());
    tsri_text_add(&t, ",\"uptime\":%.1f,\"prefill_rate\":%u,\"slow\":[",
                  (double)(tsri_now_ns() - s->start_ns) / NS_PER_S, s->prefill_rate);
    add_slow(&t, s);
    tsri_text_add(&t, "],\"tenants\":[");
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        if (i) tsri_text_add(&t, ",");
        add_tenant(&t, &s->tenants[i], scratch);
    }
    tsri_text_add(&t, "]}\n");
    tsri_free(scratch);
    return t.length;
}
