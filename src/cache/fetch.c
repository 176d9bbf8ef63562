/* fetch.c - what comes up: entries that only a lower tier has, read into host memory on the thread
 * that wants them. There is one flight an entry: who comes second waits for the first. Bytes are
 * handed on layer by layer as the tier proves them; the entry itself turns from COLD to HOST when
 * all are there.
 *
 * A flight has a deadline, which the tier is told and should keep. Where it does not, only the
 * thread that asked it is stuck: those who wait for its flights give up at their own deadlines, and
 * nobody else asks that tier until it has answered. */
#include "cache/manager.h"
#include "cache/ops.h"

/* An entry on its way up; on the stack of who fetches it, listed under manager->lock. */
struct tsri_flight {
    struct tsri_flight *next;
    struct tsr_cache *c;
    struct tsri_fetch *fetch;
    struct tsr_tier_io io;
    void **planes;
    uint32_t id, meta, tier;   /* which is asked */
    uint32_t n_layers, n_told; /* of n_layers, handed on, from whatever tier */
    bool claimed, rejected;
    bool proven;          /* this tier's head was the right one */
    bool moved;           /* or its K is at another position than the layers handed on before */
    uint64_t deadline_ns; /* set before it is listed */
    uint32_t asked;       /* the tier that has not answered yet, or 0; under manager->lock */
};

static bool in_flight(const struct tsri_manager *m, uint32_t id)
{
    for (const struct tsri_flight *f = m->flights; f; f = f->next)
        if (f->id == id) return true;
    return false;
}

static bool claim(struct tsri_manager *m, struct tsri_flight *f)
{
    pthread_mutex_lock(&m->lock);
    f->claimed = !in_flight(m, f->id);
    if (f->claimed) {
        f->next = m->flights;
        m->flights = f;
    }
    pthread_mutex_unlock(&m->lock);
    return f->claimed;
}

static void land(struct tsri_manager *m, struct tsri_flight *f)
{
    pthread_mutex_lock(&m->lock);
    struct tsri_flight **at = &m->flights;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    pthread_cond_broadcast(&m->done);
    pthread_mutex_unlock(&m->lock);
}

/* Waits for somebody else's flight; false after the deadline. */
static bool wait_landed(struct tsri_manager *m, uint32_t id, uint64_t deadline_ns)
{
    pthread_mutex_lock(&m->lock);
    while (in_flight(m, id) && tsri_cond_wait(&m->done, &m->lock, deadline_ns))
        ;
    bool landed = !in_flight(m, id);
    pthread_mutex_unlock(&m->lock);
    return landed;
}

/* Does tier t sit on a call that is past its deadline? Under manager->lock. */
static bool is_stuck(const struct tsri_manager *m, uint32_t t)
{
    uint64_t now = tsri_now_ns();
    for (const struct tsri_flight *f = m->flights; f; f = f->next)
        if (f->asked == t && f->deadline_ns && f->deadline_ns < now) return true;
    return false;
}

static struct tsri_meta *meta_of(const struct tsri_flight *f)
{
    return (struct tsri_meta *)(void *)(f->c->arena.region.data +
                                        (size_t)f->meta * TSRI_ARENA_UNIT);
}

/* ---- what the tier tells ---- */

/* The key must be that of what arrived: a tier that hands out another entry is caught here,
 * whatever its own checksums say. */
static bool is_its_key(const struct tsri_flight *f, const struct tsr_tier_io *io)
{
    const struct tsr_entry_head *h = &io->head;
    struct tsri_key_parts parts = {.kind = h->kind,
                                   .n_tokens = h->n_tokens,
                                   .extra = tsri_extra_hash(io->extra, h->extra_bytes),
                                   .tokens = tsri_tokens_hash(io->tokens, h->n_tokens)};
    memcpy(parts.space, h->space, sizeof parts.space);
    memcpy(&parts.digest, h->digest, sizeof parts.digest);
    struct tsri_key key = tsri_key_make(&parts);
    key.lo &= f->c->key_mask;
    key.hi &= f->c->key_mask;
    return tsri_entry_has_key(&f->c->entries[f->id], key);
}

static int head_arrived(struct tsr_tier_io *io)
{
    struct tsri_flight *f = io->arg;
    struct tsri_meta *m = meta_of(f);
    if (io->head.n_tokens != m->n_tokens || io->head.extra_bytes != m->extra_bytes ||
        !is_its_key(f, io))
        return TSR_ECORRUPT;
    /* One text may have been computed at two positions, by processes that share a tier. Whoever has
     * layers of one copy cannot go on with those of the other. */
    f->moved = f->n_told && (m->base != io->head.base || m->freq_set != io->head.freq_set);
    if (f->moved) return TSR_ENOENT;
    memcpy(&m->digest, io->head.digest, sizeof m->digest);
    m->base = io->head.base;
    m->freq_set = io->head.freq_set;
    if (f->fetch->verify && !f->fetch->verify(f->fetch, m)) {
        f->rejected = true;
        return TSR_ENOENT;
    }
    f->proven = true;
    return 0;
}

/* In their order, whatever the tier's is: those who wait for a layer have all before it then. */
static void layer_arrived(struct tsr_tier_io *io, uint32_t layer)
{
    struct tsri_flight *f = io->arg;
    if (!f->proven || layer != f->n_told || layer >= f->n_layers) return;
    f->n_told++;
    if (f->fetch->layer_done) f->fetch->layer_done(f->fetch, meta_of(f), layer);
}

/* The get has ended well: hands on the layers that the tier did not tell of. Without a proven head
 * nothing that it brought may be used. */
static int all_arrived(struct tsri_flight *f)
{
    if (!f->proven)
        return tsri_fail(TSR_EIO, "tier %s: get did not report a head",
                         tsri_tier_name(f->c->manager->lower[f->tier].tier));
    while (f->n_told < f->n_layers)
        layer_arrived(&f->io, f->n_told);
    return 0;
}

/* ---- one flight ---- */

static int prepare(struct tsri_flight *f)
{
    struct tsr_cache *c = f->c;
    struct tsri_entry *e = &c->entries[f->id];
    const struct tsr_space *space = &c->spaces[e->space];
    if (!space->shaped) return tsri_fail(TSR_ESPACE, "the entry's space is not open here");
    f->planes = tsri_alloc(tsri_manager_n_planes(c, e), sizeof *f->planes);
    if (!f->planes) return TSR_ENOMEM;
    pthread_mutex_lock(&c->lock);
    int err = tsri_room_take(c, &space->shape, e->n_tokens, e->extra_bytes, &f->meta);
    if (err == 0) tsri_manager_head(c, e, &f->io.head);
    pthread_mutex_unlock(&c->lock);
    if (err) return err;
    struct tsri_meta *m = meta_of(f);
    tsri_manager_planes(c, e, m, f->planes);
    f->n_layers = space->shape.n_layers;
    f->io.tokens = tsri_meta_tokens(m);
    f->io.extra = tsri_meta_extra(m);
    f->io.extra_max = m->extra_bytes;
    f->io.n_cells = tsri_head_cells(&f->io.head);
    f->io.planes = f->planes;
    f->io.deadline_ns = f->deadline_ns;
    f->io.head_done = head_arrived;
    f->io.layer_done = layer_arrived;
    f->io.arg = f;
    return 0;
}

/* The tier's copy is gone or bad. Under cache->lock. */
static void lose_copy(struct tsri_flight *f, uint32_t t, int err)
{
    struct tsr_cache *c = f->c;
    struct tsri_entry *e = &c->entries[f->id];
    if (!(atomic_load_explicit(&e->tiers, memory_order_relaxed) >> t & 1)) return;
    if (err == TSR_ECORRUPT) {
        tsri_stats_add(c->stats, TSRI_M_corrupt, 1);
        tsri_log(TSR_LOG_WARN, "tier %s: dropped an entry that failed verification",
                 tsri_tier_name(c->manager->lower[t].tier));
    }
    bool last = atomic_load_explicit(&e->tiers, memory_order_relaxed) == 1u << t;
    if (last)
        tsri_stats_add(c->stats, TSRI_M_drops, tsri_entry_drop(c, f->id, TSR_EVENT_DROPPED));
    else
        tsri_manager_drop_copy(c, f->id, t);
}

/* What one tier answered for a flight. */
static void digest_answer(struct tsri_flight *f, uint32_t t)
{
    struct tsr_cache *c = f->c;
    int err = f->io.result;
    if (err >= 0) err = all_arrived(f);
    pthread_mutex_lock(&c->lock);
    bool still = tsri_word_state(atomic_load(&c->entries[f->id].word)) == TSRI_COLD;
    if (err >= 0 && still) {
        tsri_entry_warm(c, f->id, f->meta);
        f->meta = 0;
    } else if (err >= 0) {
        err = TSR_ENOENT; /* dropped while it was on its way */
    } else if (!f->rejected && !f->moved && still && (err == TSR_ENOENT || err == TSR_ECORRUPT)) {
        lose_copy(f, t, err);
    }
    pthread_mutex_unlock(&c->lock);
    f->fetch->result = err < 0 ? err : 0;
    if (err >= 0) {
        tsri_stats_add(c->stats, TSRI_M_promotions, 1);
        tsri_stats_add(c->stats, TSRI_M_tier_reads, 1);
        const struct tsri_entry *e = &c->entries[f->id];
        tsri_stats_add(c->stats, TSRI_M_tier_read_bytes,
                       (uint64_t)e->n_tokens * tsri_shape_token_bytes(&c->spaces[e->space].shape));
    } else if (f->rejected) {
        tsri_stats_add(c->stats, TSRI_M_collisions, 1);
    } else if (err == TSR_ETIME) {
        tsri_stats_add(c->stats, TSRI_M_tier_timeouts, 1);
    } else if (err != TSR_ENOENT && err != TSR_ECORRUPT) {
        tsri_stats_add(c->stats, TSRI_M_tier_errors, 1);
    }
}

/* ---- a batch ---- */

/* The flights of a batch, and what goes to the tier that is asked now. */
struct fetch_batch {
    struct tsri_flight *flights;
    uint32_t n;
    struct tsr_tier_io *ios;
    uint32_t *where, n_ios; /* where[i]: the flight of ios[i] */
};

/* What tier t has of the flights that are still missing something. */
static void choose_ios(struct tsr_cache *c, struct fetch_batch *b, uint32_t t)
{
    b->n_ios = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        struct tsri_flight *f = &b->flights[i];
        if (!f->claimed || !f->meta || f->rejected) continue;
        uint8_t tiers = atomic_load_explicit(&c->entries[f->id].tiers, memory_order_relaxed);
        if (!(tiers >> t & 1)) continue;
        pthread_mutex_lock(&c->lock);
        f->io.loc = c->manager->lower[t].loc[f->id];
        pthread_mutex_unlock(&c->lock);
        f->tier = t;
        f->proven = f->moved = false;
        b->where[b->n_ios] = i;
        b->ios[b->n_ios++] = f->io;
    }
}

/* The flights of the batch wait for tier t now (or for none, 0); false when it is stuck. */
static bool ask(struct tsri_manager *m, struct fetch_batch *b, uint32_t t)
{
    pthread_mutex_lock(&m->lock);
    bool stuck = t && is_stuck(m, t);
    for (uint32_t i = 0; i < b->n_ios && !stuck; i++)
        b->flights[b->where[i]].asked = t;
    pthread_mutex_unlock(&m->lock);
    return !stuck;
}

/* The policy of tier t hears what was read, the blocks of a chain leaf first: they are asked for in
 * the opposite order. */
static void touch_copies(struct tsr_cache *c, const struct fetch_batch *b, uint32_t t)
{
    struct tsri_policy *policy = c->manager->lower[t].policy;
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = b->n_ios; i-- > 0;) {
        const struct tsri_flight *f = &b->flights[b->where[i]];
        /* Its copy may have been cleared while it was read. */
        if (f->fetch->result == 0 &&
            atomic_load_explicit(&c->entries[f->id].tiers, memory_order_relaxed) >> t & 1)
            policy->ops->touch(policy, &f->id, 1);
    }
    pthread_mutex_unlock(&c->lock);
}

/* Reads from tier t whatever it has of those that are still missing; all of them in one call. */
static void read_tier(struct tsr_cache *c, struct fetch_batch *b, uint32_t t)
{
    struct tsri_manager *m = c->manager;
    choose_ios(c, b, t);
    if (b->n_ios == 0) return;
    if (!ask(m, b, t)) {
        tsri_stats_add(c->stats, TSRI_M_tier_refused, b->n_ios);
        for (uint32_t i = 0; i < b->n_ios; i++)
            b->flights[b->where[i]].fetch->result = tsri_fail(
                TSR_EAGAIN, "tier %s is not responding", tsri_tier_name(m->lower[t].tier));
        return;
    }
    int e = tsri_tier_get(m->lower[t].tier, b->ios, b->n_ios);
    ask(m, b, 0);
    for (uint32_t i = 0; i < b->n_ios; i++) {
        struct tsri_flight *f = &b->flights[b->where[i]];
        f->io.result = e < 0 ? e : b->ios[i].result;
        digest_answer(f, t);
    }
    touch_copies(c, b, t);
}

static void fly(struct tsr_cache *c, struct tsri_flight *flights, uint32_t n)
{
    struct tsri_manager *m = c->manager;
    struct fetch_batch b = {.flights = flights,
                            .n = n,
                            .ios = tsri_alloc(n, sizeof *b.ios),
                            .where = tsri_alloc(n, sizeof *b.where)};
    bool memory = b.ios && b.where;
    for (uint32_t i = 0; i < n; i++)
        if (flights[i].claimed) {
            int e = memory ? prepare(&flights[i]) : TSR_ENOMEM;
            flights[i].fetch->result = e ? e : TSR_ENOENT;
        }
    /* The pool is nearest, whatever its number. */
    if (memory && m->hot) read_tier(c, &b, m->hot);
    for (uint32_t t = 1; memory && t <= m->n_lower; t++)
        if (t != m->hot) read_tier(c, &b, t);
    for (uint32_t i = 0; i < n; i++) {
        struct tsri_flight *f = &flights[i];
        if (!f->claimed) continue;
        if (f->meta) {
            pthread_mutex_lock(&c->lock);
            tsri_room_give(c, f->meta);
            pthread_mutex_unlock(&c->lock);
        }
        tsri_free(f->planes);
        land(m, f);
    }
    tsri_free(b.where);
    tsri_free(b.ios);
}

/* Somebody else brought it up: hand on what stands in memory now. */
static bool hand_on(struct tsr_cache *c, struct tsri_fetch *f)
{
    struct tsri_entry *e = &c->entries[f->id];
    uint64_t w = atomic_load_explicit(&e->word, memory_order_acquire);
    if (tsri_word_state(w) != TSRI_HOST) return false;
    struct tsri_meta *meta = tsri_meta(c, e);
    if (f->verify && !f->verify(f, meta)) {
        tsri_stats_add(c->stats, TSRI_M_collisions, 1);
        f->result = TSR_ENOENT;
        return true;
    }
    for (uint32_t l = 0; f->layer_done && l < c->spaces[e->space].shape.n_layers; l++)
        f->layer_done(f, meta, l);
    f->result = 0;
    return true;
}

#define FLIGHTS_MAX 64u

static struct tsri_flight new_flight(struct tsr_cache *c, struct tsri_fetch *fetch,
                                     uint64_t deadline_ns)
{
    return (struct tsri_flight){
        .c = c, .fetch = fetch, .id = fetch->id, .deadline_ns = deadline_ns};
}

static void fetch_some(struct tsr_cache *c, struct tsri_fetch *fetches, uint32_t n)
{
    struct tsri_flight flights[FLIGHTS_MAX];
    uint64_t deadline_ns = tsri_deadline_ns(c->options.tier_load_ms);
    uint32_t n_mine = 0;
    for (uint32_t i = 0; i < n; i++) {
        flights[i] = new_flight(c, &fetches[i], deadline_ns);
        /* Asked again after the claim: it may have landed in between. */
        if (!claim(c->manager, &flights[i])) continue;
        if (hand_on(c, &fetches[i])) {
            land(c->manager, &flights[i]);
            flights[i].claimed = false;
            flights[i].rejected = true; /* settled */
            continue;
        }
        n_mine++;
    }
    if (n_mine) fly(c, flights, n);
    for (uint32_t i = 0; i < n; i++) {
        if (flights[i].claimed || flights[i].rejected) continue;
        if (!wait_landed(c->manager, fetches[i].id, deadline_ns)) {
            tsri_stats_add(c->stats, TSRI_M_tier_timeouts, 1);
            fetches[i].result =
                tsri_fail(TSR_ETIME, "timed out waiting for another load of the entry");
            continue;
        }
        if (hand_on(c, &fetches[i])) continue;
        /* Their flight failed, perhaps for reasons of their own: one try of ours. */
        flights[i] = new_flight(c, &fetches[i], deadline_ns);
        fetches[i].result = TSR_ENOENT;
        if (claim(c->manager, &flights[i])) fly(c, &flights[i], 1);
    }
}

void tsri_manager_fetch(struct tsr_cache *c, struct tsri_fetch *fetches, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += FLIGHTS_MAX)
        fetch_some(c, fetches + i, tsri_min_u32(FLIGHTS_MAX, n - i));
}

/* ---- in the background ---- */

struct prefetch {
    struct tsri_job job; /* first */
    struct tsr_cache *c;
    uint64_t handle;
    bool doubted; /* only if a tier says that it has this window */
    struct tsri_window_claim claim;
};

/* Does a tier that has the entry, pinned by the caller, know it by this window? */
static bool is_known_by(struct tsr_cache *c, uint32_t id, const struct tsri_window_claim *claim)
{
    if (claim->number >= c->entries[id].n_tokens / TSRI_WINDOW) return false;
    uint32_t n = claim->number + 1;
    uint64_t *hashes = tsri_alloc(n, sizeof hashes[0]);
    bool known = false;
    for (uint32_t t = 1; hashes && !known && t <= c->manager->n_lower; t++) {
        if (!(atomic_load_explicit(&c->entries[id].tiers, memory_order_relaxed) >> t & 1)) continue;
        pthread_mutex_lock(&c->lock);
        struct tsr_tier_ref ref = tsri_manager_ref(c, id, t);
        pthread_mutex_unlock(&c->lock);
        known = tsri_tier_windows(c->manager->lower[t].tier, &ref, hashes, n) == n &&
                hashes[claim->number] == claim->hash;
    }
    tsri_free(hashes);
    return known;
}

static void run_prefetch(struct tsri_job *job)
{
    struct prefetch *p = (struct prefetch *)job;
    struct tsr_cache *c = p->c;
    struct tsri_fetch f = {.result = 0};
    if (tsri_pin_handle(c, p->handle, &f.id) != TSRI_FREE) {
        bool wanted = tsri_word_state(atomic_load(&c->entries[f.id].word)) == TSRI_COLD;
        if (wanted && p->doubted) {
            wanted = is_known_by(c, f.id, &p->claim);
            tsri_stats_add(c->stats, wanted ? TSRI_M_prefetches : TSRI_M_windows_false, 1);
        }
        if (wanted) tsri_manager_fetch(c, &f, 1);
        tsri_unpin(c, f.id);
    }
    tsri_free(p);
}

static int start_prefetch(const struct prefetch *what)
{
    struct tsr_cache *c = what->c;
    uint64_t w = atomic_load(&c->entries[tsri_handle_id(what->handle)].word);
    if (tsri_word_state(w) != TSRI_COLD) return 0;
    struct prefetch *p = tsri_alloc(1, sizeof *p);
    if (!p) return 0;
    *p = *what;
    p->job.run = run_prefetch;
    if (tsri_work_push(tsri_ops_work(c->ops), &p->job) != 0) {
        tsri_free(p);
        tsri_stats_add(c->stats, TSRI_M_tier_refused, 1);
        return 0;
    }
    if (!what->doubted) tsri_stats_add(c->stats, TSRI_M_prefetches, 1);
    return 1;
}

int tsri_cache_prefetch_one(struct tsr_cache *c, uint64_t handle, void *unused)
{
    (void)unused;
    return start_prefetch(&(struct prefetch){.c = c, .handle = handle});
}

void tsri_manager_prefetch_window(struct tsr_cache *c, uint64_t handle,
                                  const struct tsri_window_claim *claim)
{
    start_prefetch(&(struct prefetch){.c = c, .handle = handle, .doubted = true, .claim = *claim});
}
