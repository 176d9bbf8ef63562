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
static void refresh(struct tsr_cache *c)
{
    struct tsr_stats now = {.size = sizeof now};
    int e = tsr_cache_stats(c, &now);
    (void)e; /* fails only for arguments */
}

size_t tsri_status_prometheus(const struct tsr_server *s, char *buf, size_t bytes)
{
    const struct tsri_stats *all[TSRI_TENANTS_MAX];
    const char *names[TSRI_TENANTS_MAX];
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        refresh(s->tenants[i].cache);
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
        tsri_text_add(t,
                      ",\"entries\":%" PRIu64 ",\"tokens\":%" PRIu64 ",\"used\":%" PRIu64
                      ",\"size\":%" PRIu64 "}",
                      rows[i].entries, rows[i].tokens, rows[i].bytes_used, rows[i].bytes_max);
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

void tsri_status_add_slow(struct tsri_text *t, struct tsri_slow *slow, const char *only)
{
    struct tsri_slow_call calls[TSRI_SLOW_MAX];
    uint64_t now = tsri_now_ns();
    uint32_t n = tsri_slow_list(slow, now, calls), n_added = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (only && calls[i].tenant != only) continue;
        tsri_text_add(t, "%s{\"call\":", n_added++ ? "," : "");
        tsri_text_add_json(t, calls[i].call ? calls[i].call : "unknown");
        tsri_text_add(t, ",\"tenant\":");
        tsri_text_add_json(t, calls[i].tenant ? calls[i].tenant : "");
        tsri_text_add(t, ",\"seconds\":%.6f,\"ago\":%.1f}", (double)calls[i].ns / NS_PER_S,
                      (double)(now - calls[i].end_ns) / NS_PER_S);
    }
}

bool tsri_status_add_cache(struct tsri_text *t, const char *name, struct tsr_cache *c)
{
    char *scratch = tsri_alloc(1, METRICS_BYTES_MAX);
    if (!scratch) return false;
    refresh(c);
    tsri_text_add(t, "{\"name\":");
    tsri_text_add_json(t, name);
    tsri_text_add(t, ",\"tiers\":[");
    add_tiers(t, c);
    tsri_text_add(t, "],\"spaces\":[");
    add_spaces(t, c);
    size_t n = tsri_stats_text_json(tsri_cache_metrics(c), scratch, METRICS_BYTES_MAX);
    TSR_ASSERT(n < METRICS_BYTES_MAX);
    tsri_text_add(t, "],\"metrics\":%s}", scratch);
    tsri_free(scratch);
    return true;
}

size_t tsri_status_json(struct tsr_server *s, const struct tsri_tenant *only, char *buf,
                        size_t bytes)
{
    struct tsri_text t;
    bool first = true;
    tsri_text_init(&t, buf, bytes);
    tsri_text_add(&t, "{\"version\":");
    tsri_text_add_json(&t, tsr_version());
    tsri_text_add(&t, ",\"uptime\":%.1f,\"prefill_rate\":%u,\"slow\":[",
                  (double)(tsri_now_ns() - s->start_ns) / NS_PER_S, s->prefill_rate);
    tsri_status_add_slow(&t, &s->slow, only ? only->name : NULL);
    tsri_text_add(&t, "],\"tenants\":[");
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        if (only && only != &s->tenants[i]) continue;
        if (!first) tsri_text_add(&t, ",");
        first = false;
        if (!tsri_status_add_cache(&t, s->tenants[i].name, s->tenants[i].cache)) return 0;
    }
    tsri_text_add(&t, "]}\n");
    return t.length;
}
