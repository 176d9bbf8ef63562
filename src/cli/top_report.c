/* top_report.c - two samples of a server as one screen, and as one line of JSON. A screen is made
 * of whole lines, each of one colour, which are cut to the terminal's columns last; tenants and slow
 * calls share the rows that the rest leaves. */
#include "cli/top.h"
#include "stats/stats.h"

#include <math.h>
#include <stdlib.h>

#define LINES_MAX 128u
#define LINE_BYTES 320u
#define BAR_CELLS 20u
#define ROWS_LEAST 3u /* of a section that has rows, however small the terminal */

struct top_line {
    int color; /* enum tsri_color, or -1 */
    char text[LINE_BYTES];
};
struct top_screen {
    struct top_line lines[LINES_MAX];
    uint32_t n;
};

/* ---- numbers as people read them ---- */

static const char *count_of(double v, char buf[static 32])
{
    static const char units[] = " KMGTPE";
    size_t unit = 0;
    for (; v >= 999.5 && unit + 2 < sizeof units; unit++)
        v /= 1000;
    int digits = unit == 0 || v >= 99.5 ? 0 : v >= 9.95 ? 1 : 2;
    snprintf(buf, 32, unit ? "%.*f%c" : "%.*f", digits, v, units[unit]);
    return buf;
}

static const char *size_of(double bytes, char buf[static 32])
{
    return tsri_cli_size((uint64_t)bytes, buf);
}

static const char *time_of(double s, char buf[static 32])
{
    if (s < 1e-3)
        snprintf(buf, 32, "%.0f us", s * 1e6);
    else if (s < 1)
        snprintf(buf, 32, "%.3g ms", s * 1e3);
    else if (s < 120)
        snprintf(buf, 32, "%.3g s", s);
    else if (s < 7200)
        snprintf(buf, 32, "%.0f min", s / 60);
    else if (s < 172800)
        snprintf(buf, 32, "%.1f h", s / 3600);
    else
        snprintf(buf, 32, "%.1f days", s / 86400);
    return buf;
}

/* "87.3 %", or "-": nothing was asked. */
static const char *share_of(double part, double of, char buf[static 32])
{
    if (of > 0)
        snprintf(buf, 32, "%.1f %%", 100 * (part < of ? part / of : 1));
    else
        snprintf(buf, 32, "-");
    return buf;
}

/* ---- rates ---- */

bool tsri_top_same_life(const struct tsri_top_sample *before, const struct tsri_top_sample *now)
{
    /* Counters of a server that was started again begin at 0. */
    return now->at_s > before->at_s && now->uptime >= before->uptime &&
           now->all.n.lookups >= before->all.n.lookups && now->all.n.in >= before->all.n.in &&
           now->all.n.out >= before->all.n.out;
}

static const struct tsri_top_tenant *tenant_of(const struct tsri_top_sample *s, const char *name)
{
    for (uint32_t i = 0; s && i < s->n_tenants; i++)
        if (strcmp(s->tenants[i].name, name) == 0) return &s->tenants[i];
    return NULL;
}

/* What was counted between the two, for each second; zeros without a sample before. */
static struct tsri_top_numbers rates_of(const struct tsri_top_report *r,
                                        const struct tsri_top_tenant *before,
                                        const struct tsri_top_tenant *now)
{
    struct tsri_top_numbers rates = {0};
    if (!r->before || !before) return rates;
    double dt = r->now->at_s - r->before->at_s;
    const double *a = before->n.each, *b = now->n.each;
    for (size_t i = 0; i < TSRI_TOP_NUMBERS; i++)
        rates.each[i] = dt > 0 && b[i] > a[i] ? (b[i] - a[i]) / dt : 0;
    return rates;
}

static double rate(const struct tsri_top_report *r, double before, double now)
{
    double dt = r->before ? r->now->at_s - r->before->at_s : 0;
    return dt > 0 && now > before ? (now - before) / dt : 0;
}

struct tenant_row {
    const struct tsri_top_tenant *tenant;
    struct tsri_top_numbers rates;
};

static int busiest_first(const void *a, const void *b)
{
    const struct tenant_row *x = a, *y = b;
    double d = y->rates.asked - x->rates.asked;
    if (d == 0) d = y->tenant->n.asked - x->tenant->n.asked;
    return d > 0 ? 1 : d < 0 ? -1 : strcmp(x->tenant->name, y->tenant->name);
}

static uint32_t rows_of(const struct tsri_top_report *r,
                        struct tenant_row rows[TSRI_TOP_TENANTS_MAX])
{
    for (uint32_t i = 0; i < r->now->n_tenants; i++) {
        const struct tsri_top_tenant *t = &r->now->tenants[i];
        rows[i] = (struct tenant_row){t, rates_of(r, tenant_of(r->before, t->name), t)};
    }
    if (r->now->n_tenants) qsort(rows, r->now->n_tenants, sizeof *rows, busiest_first);
    return r->now->n_tenants;
}

/* ---- the screen ---- */

__attribute__((format(printf, 3, 4))) static void add(struct top_screen *s, int color,
                                                      const char *fmt, ...)
{
    if (s->n == LINES_MAX) return;
    struct top_line *l = &s->lines[s->n++];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(l->text, sizeof l->text, fmt, ap);
    va_end(ap);
    l->color = color;
}

static void add_summary(struct top_screen *s, const struct tsri_top_report *r)
{
    const struct tsri_top_sample *now = r->now;
    const struct tsri_top_numbers *n = &now->all.n;
    struct tsri_top_numbers d = rates_of(r, r->before ? &r->before->all : NULL, &now->all);
    char a[32], b[32], c[32], e[32];
    add(s, -1, "hit rate  %s now, %s since the start; %s lookups, %s of them found nothing",
        share_of(d.found, d.asked, a), share_of(n->found, n->asked, b), count_of(n->lookups, c),
        count_of(n->misses, e));
    add(s, -1, "tokens    %s/s asked, %s/s found; %s of %s since the start", count_of(d.asked, a),
        count_of(d.found, b), count_of(n->found, c), count_of(n->asked, e));
    add(s, -1, "bytes     %s/s out, %s/s in; lower tiers %s/s read, %s/s written",
        size_of(d.out, a), size_of(d.in, b), size_of(d.tier_read, c), size_of(d.tier_written, e));
    bool bad = n->tier_errors + n->tier_timeouts + n->corrupt > 0;
    add(s, bad ? TSRI_COLOR_YELLOW : -1,
        "health    %s evicted, %s stores refused; lower tiers: %.0f failed, %.0f late, %.0f wrong "
        "checksums",
        count_of(n->evicted, a), count_of(n->refused, b), n->tier_errors, n->tier_timeouts,
        n->corrupt);
    if (!now->has_serve) return;
    const struct tsri_top_serve *v = &now->serve, *w = r->before ? &r->before->serve : v;
    add(s, -1,
        "answers   %.0f queued, %.0f reading, %.0f writing; %s/s tokens read, %s/s written; %s "
        "questions",
        v->queued, v->reading, v->writing, count_of(rate(r, w->prompt, v->prompt), a),
        count_of(rate(r, w->answer, v->answer), b), count_of(v->requests, c));
}

static void add_tiers(struct top_screen *s, const struct tsri_top_tenant *all)
{
    add(s, -1, "%s", "");
    add(s, TSRI_COLOR_BOLD, "%-12s %10s %10s %8s %8s", "tier", "used", "of", "entries", "tokens");
    for (uint32_t i = 0; i < all->n_tiers; i++) {
        const struct tsri_top_tier *t = &all->tiers[i];
        char used[32], size[32], n[32], tokens[32], bar[BAR_CELLS + 1] = "";
        double share = t->size > 0 ? fmin(1, t->used / t->size) : 0;
        memset(bar, '.', BAR_CELLS);
        memset(bar, '#', (size_t)lround(share * BAR_CELLS));
        if (t->size > 0)
            add(s, -1, "%-12s %10s %10s %8s %8s  [%s] %3.0f %%", t->name, size_of(t->used, used),
                size_of(t->size, size), count_of(t->entries, n), count_of(t->tokens, tokens), bar,
                100 * share);
        else
            add(s, -1, "%-12s %10s %10s %8s %8s", t->name,
                t->used > 0 ? size_of(t->used, used) : "-", "-",
                t->entries > 0 ? count_of(t->entries, n) : "-",
                t->tokens > 0 ? count_of(t->tokens, tokens) : "-");
    }
}

/* Says what a section has left out. */
static void add_more(struct top_screen *s, uint32_t shown, uint32_t n)
{
    if (shown < n) add(s, TSRI_COLOR_DIM, "  and %u more", n - shown);
}

static void add_tenants(struct top_screen *s, const struct tsri_top_report *r, uint32_t max)
{
    struct tenant_row rows[TSRI_TOP_TENANTS_MAX];
    uint32_t n = rows_of(r, rows);
    if (n < 2) return;
    add(s, -1, "%s", "");
    add(s, TSRI_COLOR_BOLD, "%-20s %8s %8s %9s %12s %12s %10s", "tenant", "hits now", "all",
        "tokens/s", "out/s", "in/s", "host");
    for (uint32_t i = 0; i < n && i < max; i++) {
        const struct tsri_top_tenant *t = rows[i].tenant;
        const struct tsri_top_numbers *d = &rows[i].rates;
        char now[32], all[32], tokens[32], out[32], in[32], host[32];
        add(s, -1, "%-20.40s %8s %8s %9s %12s %12s %10s", t->name,
            share_of(d->found, d->asked, now), share_of(t->n.found, t->n.asked, all),
            count_of(d->asked, tokens), size_of(d->out, out), size_of(d->in, in),
            size_of(t->n_tiers ? t->tiers[0].used : 0, host));
    }
    add_more(s, max, n);
}

static void add_slow(struct top_screen *s, const struct tsri_top_sample *now, uint32_t max)
{
    add(s, -1, "%s", "");
    if (now->n_slow == 0) {
        add(s, TSRI_COLOR_DIM, "no call took a millisecond or more in the last hour");
        return;
    }
    add(s, TSRI_COLOR_BOLD, "%-14s %10s  %-20s %s", "slowest calls", "took", "tenant", "ago");
    for (uint32_t i = 0; i < now->n_slow && i < max; i++) {
        const struct tsri_top_slow *c = &now->slow[i];
        char took[32], ago[32];
        add(s, -1, "%-14.40s %10s  %-20.40s %s", c->call, time_of(c->seconds, took), c->tenant,
            time_of(c->ago, ago));
    }
    add_more(s, max, now->n_slow);
}

static uint32_t least(uint32_t n)
{
    return n < ROWS_LEAST ? n : ROWS_LEAST;
}

static void fill(struct top_screen *s, const struct tsri_top_report *r, uint32_t rows)
{
    const struct tsri_top_sample *now = r->now;
    char up[32], clients[48] = "";
    if (now && now->all.n.sessions > 0) /* the server counts them for its owner */
        snprintf(clients, sizeof clients, ", %.0f connected", now->all.n.sessions);
    if (now)
        add(s, TSRI_COLOR_BOLD, "tessera %s at %s, up %s%s", now->version, r->where,
            time_of(now->uptime, up), clients);
    else
        add(s, TSRI_COLOR_BOLD, "tessera top: %s", r->where);
    if (r->problem) add(s, TSRI_COLOR_RED, "%s; retrying", r->problem);
    if (!now) return;
    if (r->problem) add(s, TSRI_COLOR_RED, "the numbers below are the last ones received");
    add_summary(s, r);
    add_tiers(s, &now->all);
    uint32_t n_tenants = now->n_tenants > 1 ? now->n_tenants : 0, slow = now->n_slow;
    if (rows) { /* two titles and two empty lines, and lines that say how much is missing */
        uint32_t taken = s->n + (n_tenants ? 3 : 0) + 3, left = rows > taken ? rows - taken : 0;
        uint32_t half = left / 2;
        if (n_tenants > half && slow > half)
            n_tenants = half, slow = left - half;
        else if (n_tenants > half)
            n_tenants = left - slow;
        else if (slow > left - n_tenants)
            slow = left - n_tenants;
        n_tenants = n_tenants ? n_tenants : least(now->n_tenants);
        slow = slow ? slow : least(now->n_slow);
    }
    add_tenants(s, r, n_tenants);
    add_slow(s, now, slow);
}

/* Bytes of a text that take at most so many columns. */
static size_t clip(const char *s, uint32_t columns)
{
    size_t n = 0;
    uint32_t width = 0;
    for (; s[n]; n++) {
        width += ((unsigned char)s[n] & 0xC0) != 0x80;
        if (columns && width > columns) break;
    }
    return n;
}

void tsri_top_report_print(const struct tsri_top_report *r, const struct tsri_cli *cli, FILE *out,
                           uint32_t rows, uint32_t columns, bool live)
{
    static const char quit[] = "q quits, space asks now";
    struct top_screen *s = tsri_alloc(1, sizeof *s);
    if (!s) return;
    bool has_foot = live && rows > 8;
    uint32_t room = has_foot ? rows - 2 : rows;
    fill(s, r, room);
    if (live) fputs("\033[H", out);
    for (uint32_t i = 0; i < s->n && (!rows || i < room); i++) {
        const struct top_line *l = &s->lines[i];
        if (live && i) putc('\n', out);
        fprintf(out, "%s%.*s%s", l->color < 0 ? "" : tsri_cli_color(cli, (enum tsri_color)l->color),
                (int)clip(l->text, columns), l->text, l->color < 0 ? "" : tsri_cli_plain(cli));
        fputs(live ? "\033[K" : "\n", out);
    }
    if (live) fputs("\033[J", out);
    if (has_foot)
        fprintf(out, "\033[%u;1H%s%.*s%s", rows, tsri_cli_color(cli, TSRI_COLOR_DIM),
                (int)clip(quit, columns), quit, tsri_cli_plain(cli));
    fflush(out);
    tsri_free(s);
}

/* ---- JSON ---- */

static void put_string(FILE *out, const char *before, const char *s)
{
    char buf[6 * LINE_BYTES + 3]; /* an escape takes six bytes at most */
    struct tsri_text t;
    tsri_text_init(&t, buf, sizeof buf);
    tsri_text_add_json(&t, s);
    fprintf(out, "%s%s", before, t.length < sizeof buf ? buf : "null");
}

static void put_share(FILE *out, const char *name, double part, double of)
{
    if (of > 0)
        fprintf(out, ",\"%s\":%.4f", name, part < of ? part / of : 1);
    else
        fprintf(out, ",\"%s\":null", name);
}

static void put_numbers(FILE *out, const struct tsri_top_numbers *n,
                        const struct tsri_top_numbers *d)
{
    put_share(out, "hit_rate", d->found, d->asked);
    put_share(out, "hit_rate_total", n->found, n->asked);
    fprintf(out,
            ",\"lookups\":%.0f,\"lookup_misses\":%.0f,\"tokens_asked_per_second\":%.1f,"
            "\"tokens_found_per_second\":%.1f,\"bytes_out_per_second\":%.0f,"
            "\"bytes_in_per_second\":%.0f,\"tier_read_bytes_per_second\":%.0f,"
            "\"tier_write_bytes_per_second\":%.0f",
            n->lookups, n->misses, d->asked, d->found, d->out, d->in, d->tier_read,
            d->tier_written);
}

static void put_tiers(FILE *out, const struct tsri_top_tenant *t)
{
    fputs(",\"tiers\":[", out);
    for (uint32_t i = 0; i < t->n_tiers; i++) {
        put_string(out, i ? ",{\"name\":" : "{\"name\":", t->tiers[i].name);
        fprintf(out, ",\"entries\":%.0f,\"tokens\":%.0f,\"used\":%.0f,\"size\":%.0f}",
                t->tiers[i].entries, t->tiers[i].tokens, t->tiers[i].used, t->tiers[i].size);
    }
    fputc(']', out);
}

static void put_serve(FILE *out, const struct tsri_top_report *r)
{
    const struct tsri_top_serve *v = &r->now->serve, *w = r->before ? &r->before->serve : v;
    if (!r->now->has_serve) return;
    fprintf(out,
            ",\"serve\":{\"questions\":%.0f,\"queued\":%.0f,\"reading\":%.0f,\"writing\":%.0f,"
            "\"tokens_read_per_second\":%.1f,\"tokens_written_per_second\":%.1f}",
            v->requests, v->queued, v->reading, v->writing, rate(r, w->prompt, v->prompt),
            rate(r, w->answer, v->answer));
}

void tsri_top_report_json(const struct tsri_top_report *r, FILE *out)
{
    put_string(out, "{\"server\":", r->where);
    if (r->problem || !r->now) {
        put_string(out, ",\"error\":", r->problem ? r->problem : "no reply yet");
        fputs("}\n", out);
        return;
    }
    struct tenant_row rows[TSRI_TOP_TENANTS_MAX];
    uint32_t n = rows_of(r, rows);
    struct tsri_top_numbers d = rates_of(r, r->before ? &r->before->all : NULL, &r->now->all);
    put_string(out, ",\"version\":", r->now->version);
    fprintf(out, ",\"uptime\":%.1f,\"seconds\":%.3f,\"sessions\":%.0f", r->now->uptime,
            r->before ? r->now->at_s - r->before->at_s : 0, r->now->all.n.sessions);
    put_numbers(out, &r->now->all.n, &d);
    put_tiers(out, &r->now->all);
    put_serve(out, r);
    fputs(",\"tenants\":[", out);
    for (uint32_t i = 0; i < n; i++) {
        put_string(out, i ? ",{\"name\":" : "{\"name\":", rows[i].tenant->name);
        put_numbers(out, &rows[i].tenant->n, &rows[i].rates);
        put_tiers(out, rows[i].tenant);
        fputc('}', out);
    }
    fputs("],\"slow\":[", out);
    for (uint32_t i = 0; i < r->now->n_slow; i++) {
        const struct tsri_top_slow *c = &r->now->slow[i];
        put_string(out, i ? ",{\"call\":" : "{\"call\":", c->call);
        put_string(out, ",\"tenant\":", c->tenant);
        fprintf(out, ",\"seconds\":%.6f,\"ago\":%.1f}", c->seconds, c->ago);
    }
    fputs("]}\n", out);
}
