/* lends.c - entries lent to readers that copy out of the pool themselves: the clients of a server.
 * A reader gets the pages that hold its range and a lease that keeps them in place; nothing is
 * copied here. What only a lower tier has is fetched first, on a thread that may wait. */
#include "cache/clients.h"
#include "cache/manager.h"
#include "cache/source.h"

static int check(struct tsr_cache *c, const struct tsri_lend *l, const struct tsr_prompt *prompt)
{
    const struct tsr_match *m = l->match;
    if (!l->space || l->space->cache != c) return tsri_fail(TSR_ESPACE, "no space of this cache");
    if (!m || m->n_tokens == 0) return tsri_fail(TSR_EINVAL, "no match");
    if (l->offset >= m->n_tokens || l->n_tokens > m->n_tokens - l->offset)
        return tsri_fail(TSR_EINVAL, "tokens %u + %u of a match of %u", l->offset, l->n_tokens,
                         m->n_tokens);
    if ((uint64_t)m->entry_offset + m->n_tokens > UINT32_MAX ||
        (uint64_t)m->prompt_offset + m->n_tokens > UINT32_MAX)
        return tsri_fail(TSR_EINVAL, "a match that no lookup made");
    if (!m->verified && !prompt)
        return tsri_fail(TSR_EINVAL, "the match is not verified and no prompt is given");
    return 0;
}

static uint32_t range_tokens(const struct tsri_lend *l)
{
    return l->n_tokens ? l->n_tokens : l->match->n_tokens - l->offset;
}

/* The pages that hold the range. All cells but the last have as many pages as the first. */
static void describe(struct tsr_cache *c, struct tsri_lend *l)
{
    struct tsri_meta *meta = tsri_meta(c, &c->entries[l->id]);
    const struct tsri_shape *shape = &l->space->shape;
    uint32_t first = l->match->entry_offset + l->offset, last = first + range_tokens(l) - 1;
    uint32_t per_cell = tsri_shape_n_pages(shape, shape->cell_tokens);
    l->entry_tokens = meta->n_tokens;
    l->base = meta->base;
    l->freq_set = meta->freq_set;
    l->cell_first = first / shape->cell_tokens;
    uint32_t begin = l->cell_first * per_cell, end = (last / shape->cell_tokens + 1) * per_cell;
    l->n_pages = tsri_min_u32(end, meta->n_pages) - begin;
    l->pages = tsri_meta_pages(meta) + begin;
}

/* Pins it for the call and for the lease. */
static void lend(struct tsr_client *client, uint64_t request_id, struct tsri_lend *l)
{
    struct tsr_cache *c = tsri_client_cache(client);
    enum tsri_state state = tsri_pin_match(c, l->match, &l->id);
    if (state == TSRI_FREE) {
        l->id = TSRI_ID_NONE;
        l->result = TSR_ENOENT;
        return;
    }
    const struct tsri_entry *e = &c->entries[l->id];
    uint64_t end = (uint64_t)l->match->entry_offset + l->offset + range_tokens(l);
    if (e->space != l->space->id || end > e->n_tokens) {
        l->result = TSR_ESPACE;
        return;
    }
    if (tsri_pin(c, l->id) == TSRI_FREE) { /* dropped since: the first pin keeps only its memory */
        l->result = TSR_ENOENT;
        return;
    }
    if (!tsri_client_lease(client, request_id, &l->id, 1)) {
        tsri_unpin(c, l->id);
        l->result = TSR_EFULL;
        return;
    }
    l->cold = state == TSRI_COLD;
}

static struct tsri_lend *lend_of(const struct tsri_wanted *w)
{
    return (struct tsri_lend *)((uintptr_t)w - offsetof(struct tsri_lend, wanted));
}

/* Looks in the prompt for what it is to be compared with: of those that are cold, or of those that
 * are not. In the order of the prompt. */
static struct tsri_wanted *find_wanted(const struct tsr_prompt *prompt, struct tsri_lend *lends,
                                       uint32_t n, bool cold)
{
    struct tsri_wanted *list = NULL;
    for (uint32_t i = 0; i < n; i++) {
        struct tsri_lend *l = &lends[i];
        if (l->result || l->cold != cold || l->match->verified) continue;
        l->wanted = (struct tsri_wanted){
            .space = l->space, .match = l->match, .prompt = prompt, .next = list};
        list = &l->wanted;
    }
    return list ? tsri_wanted_find(list) : NULL;
}

static bool same(const struct tsri_lend *a, const struct tsri_lend *b)
{
    const struct tsr_match *m = a->match, *o = b->match;
    return a->id == b->id && m->kind == o->kind && m->context == o->context &&
           m->prompt_offset - m->entry_offset == o->prompt_offset - o->entry_offset;
}

/* An entry is compared once, however many ranges of it are asked for. */
static void compare(struct tsr_cache *c, const struct tsr_prompt *prompt, struct tsri_lend *lends,
                    uint32_t n)
{
    const struct tsri_lend *last = NULL;
    for (struct tsri_wanted *w = find_wanted(prompt, lends, n, false); w; w = w->next) {
        struct tsri_lend *l = lend_of(w);
        const struct tsri_entry *e = &c->entries[l->id];
        bool is = last && same(last, l) ? last->result == 0 : tsri_wanted_is(w, e, tsri_meta(c, e));
        last = l;
        if (is) continue;
        tsri_stats_add(c->stats, TSRI_M_collisions, 1);
        l->result = TSR_ECORRUPT;
    }
}

int tsri_lends_init(struct tsr_client *client, uint64_t request_id, const struct tsr_prompt *prompt,
                    struct tsri_lend *lends, uint32_t n)
{
    struct tsr_cache *c = tsri_client_cache(client);
    for (uint32_t i = 0; i < n; i++) {
        int e = check(c, &lends[i], prompt);
        if (e) return e;
    }
    int n_cold = 0;
    for (uint32_t i = 0; i < n; i++) {
        lends[i].result = 0;
        lends[i].cold = false;
        lend(client, request_id, &lends[i]);
        n_cold += lends[i].cold;
    }
    compare(c, prompt, lends, n);
    for (uint32_t i = 0; i < n; i++)
        if (lends[i].result == 0 && !lends[i].cold) describe(c, &lends[i]);
    return n_cold;
}

struct cold_lend {
    struct tsr_cache *c;
    struct tsri_lend *lend;
};

static bool verify(struct tsri_fetch *f, struct tsri_meta *meta)
{
    const struct cold_lend *cold = f->arg;
    const struct tsri_lend *l = cold->lend;
    return l->match->verified || tsri_wanted_is(&l->wanted, &cold->c->entries[l->id], meta);
}

#define FETCHES_MAX 64u

static void fetch_some(struct tsr_cache *c, struct cold_lend *cold, uint32_t n)
{
    struct tsri_fetch fetches[FETCHES_MAX];
    for (uint32_t i = 0; i < n; i++)
        fetches[i] = (struct tsri_fetch){.id = cold[i].lend->id, .verify = verify, .arg = &cold[i]};
    tsri_manager_fetch(c, fetches, n);
    for (uint32_t i = 0; i < n; i++) {
        cold[i].lend->cold = false;
        cold[i].lend->result = fetches[i].result;
        if (fetches[i].result == 0) describe(c, cold[i].lend);
    }
}

static void give_up(struct cold_lend *cold, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        cold[i].lend->cold = false;
        cold[i].lend->result = TSR_EAGAIN;
    }
}

void tsri_lends_fetch(struct tsr_client *client, const struct tsr_prompt *prompt,
                      struct tsri_lend *lends, uint32_t n, const atomic_bool *stop)
{
    struct tsr_cache *c = tsri_client_cache(client);
    struct cold_lend cold[FETCHES_MAX];
    uint32_t n_cold = 0;
    (void)find_wanted(prompt, lends, n, true);
    for (uint32_t i = 0; i < n; i++) {
        if (lends[i].cold) cold[n_cold++] = (struct cold_lend){c, &lends[i]};
        if (n_cold == FETCHES_MAX || (n_cold && i + 1 == n)) {
            if (stop && atomic_load(stop))
                give_up(cold, n_cold);
            else
                fetch_some(c, cold, n_cold);
            n_cold = 0;
        }
    }
}

int tsri_lends_fini(struct tsr_client *client, struct tsri_lend *lends, uint32_t n)
{
    struct tsr_cache *c = tsri_client_cache(client);
    uint64_t bytes = 0;
    uint32_t n_lent = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct tsri_lend *l = &lends[i];
        if (l->id != TSRI_ID_NONE) tsri_unpin(c, l->id);
        l->id = TSRI_ID_NONE;
        if (l->result) continue;
        bytes += range_tokens(l) * tsri_shape_token_bytes(&l->space->shape);
        n_lent++;
    }
    tsri_stats_add(c->stats, TSRI_M_loads, n);
    tsri_stats_add(c->stats, TSRI_M_load_misses, n - n_lent);
    tsri_stats_add(c->stats, TSRI_M_load_bytes, bytes);
    return (int)n_lent;
}
