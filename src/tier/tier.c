/* tier.c - the checks and defaults around every call into a tier. A tier may be somebody else's
 * code: successes are counted from the results it has set, and what it forgot to set is a failure.
 */
#include "tier/tier.h"
#include "config/config.h"

#include <float.h>

bool tsri_head_is_valid(const struct tsr_entry_head *h)
{
    if (h->n_tokens == 0 || h->n_tokens > TSRI_ENTRY_TOKENS_MAX) return false;
    if (h->cell_tokens == 0 || h->cell_tokens > TSRI_CELL_TOKENS_MAX) return false;
    if (h->cell_tokens & (h->cell_tokens - 1)) return false;
    if (h->n_layers == 0 || h->n_layers > TSRI_ENTRY_LAYERS_MAX) return false;
    if (h->n_planes == 0 || h->n_planes > TSRI_ENTRY_PLANES_MAX) return false;
    for (uint32_t p = 0; p < h->n_planes; p++)
        if (h->row_bytes[p] == 0 || h->row_bytes[p] > TSRI_ENTRY_ROW_MAX) return false;
    return h->extra_bytes <= TSRI_ENTRY_EXTRA_MAX;
}

bool tsri_head_same_shape(const struct tsr_entry_head *a, const struct tsr_entry_head *b)
{
    if (a->n_tokens != b->n_tokens || a->cell_tokens != b->cell_tokens) return false;
    if (a->n_layers != b->n_layers || a->n_planes != b->n_planes) return false;
    for (uint32_t p = 0; p < a->n_planes && p < TSRI_ENTRY_PLANES_MAX; p++)
        if (a->row_bytes[p] != b->row_bytes[p]) return false;
    return true;
}

bool tsri_head_same(const struct tsr_entry_head *a, const struct tsr_entry_head *b)
{
    return memcmp(&a->key, &b->key, sizeof a->key) == 0 &&
           memcmp(a->space, b->space, sizeof a->space) == 0 &&
           memcmp(a->digest, b->digest, sizeof a->digest) == 0 &&
           memcmp(&a->parent, &b->parent, sizeof a->parent) == 0 && a->kind == b->kind &&
           a->base == b->base && a->freq_set == b->freq_set && a->extra_bytes == b->extra_bytes &&
           tsri_head_same_shape(a, b);
}

static int check_ops(const struct tsr_tier_ops *ops)
{
    if (!ops) return tsri_fail(TSR_EINVAL, "tier: the table is NULL");
    if (ops->abi < 1 || ops->abi > TSR_TIER_ABI)
        return tsri_fail(TSR_EVERSION, "tier: abi %u, this library supports %u", ops->abi,
                         TSR_TIER_ABI);
    if (!ops->name || !ops->open || !ops->close || !ops->put || !ops->get || !ops->drop)
        return tsri_fail(TSR_EINVAL, "tier %s lacks open, close, put, get or drop",
                         ops->name ? ops->name : "without a name");
    return 0;
}

int tsr_tier_attach(struct tsr_config *cfg, const struct tsr_tier_ops *ops, void *arg)
{
    if (!cfg) return tsri_fail(TSR_EINVAL, "tier: config is NULL");
    int err = check_ops(ops);
    return err ? err : tsri_config_attach(cfg, ops, arg);
}

int tsri_tier_open(struct tsr_tier **out, const struct tsr_tier_ops *ops,
                   const struct tsr_tier_desc *desc)
{
    *out = NULL;
    int err = check_ops(ops);
    if (err) return err;
    struct tsr_tier_desc e = *desc;
    if (e.n_threads == 0) e.n_threads = 1;
    char tenant[TSRI_TENANT_MAX + 1];
    if (!e.tenant) {
        tsri_tenant_of(tenant, e.config);
        e.tenant = tenant;
    }
    if (!tsri_tenant_is_name(e.tenant))
        return tsri_fail(TSR_EINVAL, "tier: tenant name is missing");
    struct tsr_tier *tier = NULL;
    err = ops->open(&tier, &e);
    if (err < 0) return err;
    if (!tier) return tsri_fail(TSR_EIO, "tier %s: open returned no instance", ops->name);
    tier->ops = ops;
    *out = tier;
    return 0;
}

void tsri_tier_close(struct tsr_tier *tier)
{
    if (tier) tier->ops->close(tier);
}

const char *tsri_tier_name(const struct tsr_tier *tier)
{
    return tier->ops->name;
}

bool tsri_tier_is_shared(const struct tsr_tier *tier)
{
    return (tier->ops->caps & TSR_TIER_SHARED) != 0;
}

/* Nothing is done when one io is wrong: that is the caller's mistake, not an entry's. */
static int check_ios(struct tsr_tier_io *io, size_t n, bool put)
{
    if (n && !io) return tsri_fail(TSR_EINVAL, "tier: no io");
    int err = 0;
    for (size_t i = 0; i < n && !err; i++) {
        const struct tsr_tier_io *x = &io[i];
        if (!tsri_head_is_valid(&x->head))
            err = tsri_fail(TSR_EINVAL, "tier: io %zu: invalid shape", i);
        else if (x->n_cells != tsri_head_cells(&x->head))
            err = tsri_fail(TSR_EINVAL, "tier: io %zu: %u cells, but its tokens need %u", i,
                            x->n_cells, tsri_head_cells(&x->head));
        else if (!x->tokens || !x->planes)
            err = tsri_fail(TSR_EINVAL, "tier: io %zu: no tokens or no planes", i);
        else if (put ? x->head.extra_bytes && !x->extra : x->extra_max && !x->extra)
            err = tsri_fail(TSR_EINVAL, "tier: io %zu: no extra", i);
    }
    /* A result the tier forgets to set is a failure, not a success. */
    for (size_t i = 0; i < n; i++)
        io[i].result = err ? err : TSR_EIO;
    return err;
}

static int count_results(struct tsr_tier_io *io, size_t n, int answer)
{
    int n_ok = 0;
    for (size_t i = 0; i < n; i++) {
        if (answer < 0) io[i].result = answer;
        n_ok += io[i].result >= 0;
    }
    return n_ok;
}

/* Nobody waits for any of them any more: the tier is not asked. */
static bool all_late(struct tsr_tier_io *io, size_t n)
{
    uint64_t now = 0;
    for (size_t i = 0; i < n; i++) {
        if (!io[i].deadline_ns) return false;
        if (!now) now = tsri_now_ns();
        if (io[i].deadline_ns > now) return false;
    }
    for (size_t i = 0; i < n; i++)
        io[i].result = TSR_ETIME;
    return true;
}

int tsri_tier_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    int err = check_ios(io, n, true);
    if (err || n == 0) return err;
    if (all_late(io, n)) return 0;
    return count_results(io, n, tier->ops->put(tier, io, n));
}

int tsri_tier_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    int err = check_ios(io, n, false);
    if (err || n == 0) return err;
    if (all_late(io, n)) return 0;
    return count_results(io, n, tier->ops->get(tier, io, n));
}

int tsri_tier_drop(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n)
{
    if (n && !refs) return tsri_fail(TSR_EINVAL, "tier: no refs");
    return n ? tier->ops->drop(tier, refs, n) : 0;
}

struct checked_scan {
    tsr_tier_scan_fn fn;
    void *arg;
    int n;
};

static int scan_one(void *arg, const struct tsr_entry_head *head, tsr_tier_loc loc, uint64_t bytes)
{
    struct checked_scan *s = arg;
    if (!tsri_head_is_valid(head)) return 0;
    s->n++;
    return s->fn(s->arg, head, loc, bytes);
}

int tsri_tier_scan(struct tsr_tier *tier, tsr_tier_scan_fn fn, void *arg)
{
    if (!tier->ops->scan) return 0;
    struct checked_scan s = {fn, arg, 0};
    int err = tier->ops->scan(tier, scan_one, &s);
    return err < 0 ? err : s.n;
}

int tsri_tier_contains(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n,
                       uint8_t *found)
{
    if (n && (!refs || !found)) return tsri_fail(TSR_EINVAL, "tier: no refs");
    if (n == 0) return 0;
    if (tier->ops->contains) return tier->ops->contains(tier, refs, n, found);
    int n_found = 0;
    for (size_t i = 0; i < n; i++) {
        found[i] = refs[i].loc != 0;
        n_found += found[i];
    }
    return n_found;
}

int tsri_tier_flush(struct tsr_tier *tier)
{
    return tier->ops->flush ? tier->ops->flush(tier) : 0;
}

int tsri_tier_unlist(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n)
{
    if (n && !refs) return tsri_fail(TSR_EINVAL, "tier: no refs");
    if (n == 0) return 0;
    return tier->ops->unlist ? tier->ops->unlist(tier, refs, n) : tier->ops->drop(tier, refs, n);
}

bool tsri_tier_can_purge(const struct tsr_tier *tier)
{
    return tier->ops->purge != NULL;
}

int tsri_tier_purge(struct tsr_tier *tier, const uint8_t *space)
{
    return tier->ops->purge ? tier->ops->purge(tier, space) : 0;
}

uint32_t tsri_tier_windows(struct tsr_tier *tier, const struct tsr_tier_ref *ref, uint64_t *out,
                           uint32_t max)
{
    int n = tier->ops->windows ? tier->ops->windows(tier, ref, out, max) : 0;
    return n > 0 ? tsri_min_u32((uint32_t)n, max) : 0;
}

uint32_t tsri_tier_shingles(struct tsr_tier *tier, const struct tsr_tier_ref *ref, uint32_t *out,
                            uint32_t max)
{
    if (tier->ops->abi < 2 || !tier->ops->shingles) return 0;
    int n = tier->ops->shingles(tier, ref, out, max);
    return n > 0 ? tsri_min_u32((uint32_t)n, max) : 0;
}

int tsri_tier_stats(struct tsr_tier *tier, struct tsr_tier_stats *out)
{
    memset(out, 0, sizeof *out);
    return tier->ops->stats ? tier->ops->stats(tier, out) : 0;
}

/* ---- bytes that every format shares ---- */

void tsri_put_cost(uint8_t *at, float cost_s)
{
    memcpy(at, &cost_s, sizeof cost_s);
}

float tsri_get_cost(const uint8_t *at)
{
    float cost_s;
    memcpy(&cost_s, at, sizeof cost_s);
    return cost_s >= 0 && cost_s <= FLT_MAX ? cost_s : 0;
}

uint64_t tsri_sum(const void *data, size_t bytes)
{
    return tsri_bytes_hash(data, bytes);
}

int tsri_region_need(struct tsri_region *r, size_t bytes)
{
    if (r->bytes >= bytes) return 0;
    tsri_region_fini(r);
    return tsri_region_init(r, bytes);
}

void tsri_head_write(uint8_t *to, const struct tsr_entry_head *h)
{
    memcpy(to, h->key.bytes, 16);
    memcpy(to + 16, h->space, 16);
    memcpy(to + 32, h->digest, 32);
    memcpy(to + 64, h->parent.bytes, 16);
    tsri_put32(to + 80, h->kind);
    tsri_put32(to + 84, h->n_tokens);
    tsri_put32(to + 88, h->base);
    tsri_put32(to + 92, h->freq_set);
    tsri_put32(to + 96, h->cell_tokens);
    tsri_put32(to + 100, h->n_layers);
    tsri_put32(to + 104, h->n_planes);
    tsri_put32(to + 108, h->row_bytes[0]);
    tsri_put32(to + 112, h->n_planes > 1 ? h->row_bytes[1] : 0);
    tsri_put32(to + 116, h->extra_bytes);
}

void tsri_head_read(const uint8_t *from, struct tsr_entry_head *h)
{
    memset(h, 0, sizeof *h);
    memcpy(h->key.bytes, from, 16);
    memcpy(h->space, from + 16, 16);
    memcpy(h->digest, from + 32, 32);
    memcpy(h->parent.bytes, from + 64, 16);
    h->kind = tsri_get32(from + 80);
    h->n_tokens = tsri_get32(from + 84);
    h->base = tsri_get32(from + 88);
    h->freq_set = tsri_get32(from + 92);
    h->cell_tokens = tsri_get32(from + 96);
    h->n_layers = tsri_get32(from + 100);
    h->n_planes = tsri_get32(from + 104);
    h->row_bytes[0] = tsri_get32(from + 108);
    h->row_bytes[1] = tsri_get32(from + 112);
    h->extra_bytes = tsri_get32(from + 116);
}
