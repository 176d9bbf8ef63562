/* writeback.c - what goes down: a queue of commands and the one thread that carries them out in
 * order, so that a drop can never overtake the put it follows. An entry that waits to be written is
 * pinned; when too many wait, stores are refused, and lookups notice nothing.
 *
 * The queue itself cannot overflow: an entry waits at most once to be written, and a tier's copy is
 * dropped before the next one of that id is written. Its memory is touched only as far as it was
 * ever full. */
#include "cache/manager.h"

#include <stdio.h>

/* Victims a full tier is asked to drop for one put, before the put is given up. */
#define VICTIMS_MAX 256u
/* What goes down in one call: many small entries, or a large one. Alone each of them waits for the
 * disk once or twice (bench_disk, small entries). */
#define BATCH_ENTRIES 32u
#define BATCH_BYTES ((uint64_t)4 << 20)

struct tsri_write_command {
    enum { PUT, DROP, UNLIST } what;
    uint8_t tiers; /* PUT: which; others: one bit */
    uint32_t id;
    struct tsr_tier_ref ref;
};

/* ---- the queue ---- */

static void push(struct tsri_manager *m, const struct tsri_write_command *cmd)
{
    pthread_mutex_lock(&m->lock);
    TSR_ASSERT(m->n < m->ring_max);
    m->ring[(m->head + m->n) % m->ring_max] = *cmd;
    m->n++;
    m->n_puts += cmd->what == PUT;
    m->n_pushed++;
    pthread_cond_signal(&m->more);
    pthread_mutex_unlock(&m->lock);
}

static struct tsri_write_command pop(struct tsri_manager *m)
{
    struct tsri_write_command cmd = m->ring[m->head];
    m->head = (m->head + 1) % m->ring_max;
    m->n--;
    m->n_puts -= cmd.what == PUT;
    if (m->n == 0) m->head = 0; /* stay where memory was touched before */
    return cmd;
}

int tsri_manager_reserve(struct tsr_cache *c, uint32_t n)
{
    struct tsri_manager *m = c->manager;
    if (!m->takes_stored) return 0;
    pthread_mutex_lock(&m->lock);
    uint64_t n_before = (uint64_t)m->n_puts + m->n_reserved;
    bool room = n_before + n <= m->puts_max || n_before == 0;
    if (room) m->n_reserved += n;
    pthread_mutex_unlock(&m->lock);
    if (room) return 0;
    tsri_stats_add(c->stats, TSRI_M_tier_refused, 1);
    return tsri_fail(TSR_EAGAIN,
                     "%u entries are waiting to be written to lower tiers (io_queue_max)",
                     m->puts_max);
}

void tsri_manager_unreserve(struct tsr_cache *c, uint32_t n)
{
    struct tsri_manager *m = c->manager;
    if (!m->takes_stored || n == 0) return;
    pthread_mutex_lock(&m->lock);
    TSR_ASSERT(m->n_reserved >= n);
    m->n_reserved -= n;
    pthread_mutex_unlock(&m->lock);
}

/* Tiers that survive a restart and are ours alone: there a block is worth nothing without the one
 * before it. */
static bool keeps_chains(const struct tsri_manager *m, uint32_t t)
{
    return t != m->hot && !tsri_tier_is_shared(m->lower[t].tier);
}

static uint8_t chain_tiers(const struct tsri_manager *m)
{
    uint8_t tiers = 0;
    for (uint32_t t = 1; t <= m->n_lower; t++)
        tiers |= (uint8_t)(keeps_chains(m, t) << t);
    return tiers;
}

/* Whether an entry is in one of these tiers. */
static bool is_in(const struct tsr_cache *c, uint32_t id, uint8_t tiers)
{
    return (atomic_load_explicit(&c->entries[id].tiers, memory_order_relaxed) & tiers) != 0;
}

/* Under cache->lock. */
static void queue_one(struct tsri_manager *m, uint32_t id, uint8_t tiers)
{
    struct tsri_entry *e = &m->c->entries[id];
    if (e->flags & TSRI_ENTRY_QUEUED) return;
    enum tsri_state state = tsri_pin(m->c, id);
    if (state == TSRI_HOST) {
        e->flags |= TSRI_ENTRY_QUEUED;
        e->flags &= (uint16_t)~TSRI_ENTRY_REFUSED;
        push(m, &(struct tsri_write_command){.what = PUT, .tiers = tiers, .id = id});
    } else if (state != TSRI_FREE) {
        tsri_unpin_locked(m->c, id); /* only a tier has it: there is nothing to write */
    }
}

/* The block before a block, when it should have been written to these tiers and is not there, nor
 * on its way: its copy was cleared, or there was no room for it. */
static uint32_t missing_before(const struct tsri_manager *m, uint32_t id, uint8_t tiers)
{
    const struct tsr_cache *c = m->c;
    uint32_t parent = c->entries[id].parent;
    if (parent == TSRI_ID_NONE || is_in(c, parent, tiers)) return TSRI_ID_NONE;
    const struct tsri_entry *e = &c->entries[parent];
    bool host = tsri_word_state(atomic_load(&e->word)) == TSRI_HOST;
    return host && !(e->flags & TSRI_ENTRY_QUEUED) ? parent : TSRI_ID_NONE;
}

#define MISSING_MAX 256u

/* Queues an entry behind those before it that are missing, from the front. Of a long chain that is
 * missing the front is queued now and the rest with the next store. Under cache->lock. */
void tsri_writeback_queue(struct tsri_manager *m, uint32_t id, uint8_t tiers)
{
    uint32_t ids[MISSING_MAX], n = 0;
    uint8_t chains = tiers & chain_tiers(m);
    for (uint32_t at = id; chains && (at = missing_before(m, at, chain_tiers(m))) != TSRI_ID_NONE;)
        ids[n++ % MISSING_MAX] = at;
    for (uint32_t i = tsri_min_u32(n, MISSING_MAX); i > 0; i--)
        queue_one(m, ids[--n % MISSING_MAX], chains);
    queue_one(m, id, tiers);
}

void tsri_manager_stored(struct tsr_cache *c, uint32_t id)
{
    struct tsri_manager *m = c->manager;
    if (!m->takes_stored) return;
    tsri_manager_unreserve(c, 1);
    tsri_writeback_queue(m, id, m->takes_stored);
}

static bool has_room(struct tsri_manager *m)
{
    pthread_mutex_lock(&m->lock);
    bool room = m->n_puts < m->puts_max;
    pthread_mutex_unlock(&m->lock);
    return room;
}

void tsri_manager_used(struct tsr_cache *c, const uint32_t *ids, uint32_t n)
{
    struct tsri_manager *m = c->manager;
    if (!m->takes_used) return;
    for (uint32_t i = 0; i < n; i++) {
        struct tsri_entry *e = &c->entries[ids[i]];
        uint8_t missing =
            m->takes_used & (uint8_t)~atomic_load_explicit(&e->tiers, memory_order_relaxed);
        if (!missing || pthread_mutex_trylock(&c->lock) != 0) continue; /* or at its next use */
        if (has_room(m))
            tsri_writeback_queue(m, ids[i], missing);
        else
            tsri_stats_add(c->stats, TSRI_M_tier_refused, 1);
        pthread_mutex_unlock(&c->lock);
    }
}

static void queue_drop(struct tsri_manager *m, uint32_t t, struct tsr_tier_ref ref)
{
    push(m, &(struct tsri_write_command){.what = DROP, .tiers = (uint8_t)(1u << t), .ref = ref});
}

static void queue_unlist(struct tsri_manager *m, uint32_t t, struct tsr_tier_ref ref)
{
    push(m, &(struct tsri_write_command){.what = UNLIST, .tiers = (uint8_t)(1u << t), .ref = ref});
}

void tsri_manager_forget(struct tsr_cache *c, uint32_t id, enum tsr_event_kind why)
{
    struct tsri_manager *m = c->manager;
    tsri_owed_left(c, id, why != TSR_EVENT_EVICTED);
    for (uint32_t t = 1; m && t <= m->n_lower; t++) {
        if (!(atomic_load_explicit(&c->entries[id].tiers, memory_order_relaxed) >> t & 1)) continue;
        struct tsr_tier_ref ref = tsri_manager_lost(c, id, t);
        if (why != TSR_EVENT_EVICTED)
            queue_drop(m, t, ref);
        else if (!tsri_tier_is_shared(m->lower[t].tier))
            queue_unlist(m, t, ref);
    }
}

void tsri_manager_spare(struct tsr_cache *c, uint32_t id)
{
    struct tsri_manager *m = c->manager;
    uint8_t tiers = atomic_load_explicit(&c->entries[id].tiers, memory_order_relaxed);
    for (uint32_t t = 1; m && t <= m->n_lower; t++)
        if (tiers >> t & 1 && tsri_tier_is_shared(m->lower[t].tier)) tsri_manager_lost(c, id, t);
}

uint32_t tsri_manager_drop_copy(struct tsr_cache *c, uint32_t id, uint32_t t)
{
    struct tsri_manager *m = c->manager;
    struct tsri_entry *e = &c->entries[id];
    uint8_t tiers = atomic_load_explicit(&e->tiers, memory_order_relaxed);
    if (t <= m->n_lower && m->owed[id]) /* nor is it to be written there by the next flush */
        tsri_owed_set(m, id, (uint8_t)(m->owed[id] & ~(1u << t)));
    if (t > m->n_lower || !(tiers >> t & 1)) return 0;
    if (tiers == 1u << t)
        return tsri_entry_is_idle(c, id) ? tsri_entry_drop(c, id, TSR_EVENT_DROPPED) : 0;
    queue_drop(m, t, tsri_manager_lost(c, id, t));
    return 1;
}

/* ---- the writer ---- */

static int may_be_shed(void *arg, uint32_t id)
{
    struct tsr_cache *c = arg;
    const struct tsri_entry *e = &c->entries[id];
    uint64_t w = atomic_load_explicit(&e->word, memory_order_relaxed);
    return tsri_word_state(w) == TSRI_COLD && tsri_word_pins(w) == 0 &&
           e->first_child == TSRI_ID_NONE;
}

/* Blocks behind an entry that are looked at; with more of them, one is thought to be below. */
#define CHILDREN_MAX 64u

/* Whether a block behind the entry is in one of these tiers, or on its way there. */
static bool has_child_in(const struct tsr_cache *c, uint32_t id, uint8_t tiers)
{
    uint32_t n = 0;
    for (uint32_t at = c->entries[id].first_child; at != TSRI_ID_NONE;
         at = c->entries[at].next_sibling)
        if (n++ == CHILDREN_MAX || is_in(c, at, tiers) || c->entries[at].flags & TSRI_ENTRY_QUEUED)
            return true;
    return false;
}

struct leaving {
    struct tsr_cache *c;
    uint8_t chains; /* tiers in which blocks behind an entry keep it there */
    uint8_t others; /* of those, all but the one it would leave */
};

/* A tier that survives a restart gives up chains from their ends: what follows a block that
 * is gone is worth nothing to the next run, whatever host memory has of it now. */
static int may_leave(void *arg, uint32_t id)
{
    const struct leaving *l = arg;
    const struct tsri_entry *e = &l->c->entries[id];
    uint64_t w = atomic_load_explicit(&e->word, memory_order_relaxed);
    if (l->chains && !is_in(l->c, id, l->others) && has_child_in(l->c, id, l->chains)) return 0;
    if (tsri_word_state(w) == TSRI_HOST) return 1; /* only a copy goes */
    return tsri_word_pins(w) == 0 && e->first_child == TSRI_ID_NONE;
}

bool tsri_manager_shed(struct tsr_cache *c)
{
    struct tsri_manager *m = c->manager;
    for (uint32_t t = m->n_lower; t >= 1; t--) {
        struct tsri_policy *policy = m->lower[t].policy;
        uint32_t id = policy->ops->victim(policy, may_be_shed, c);
        if (id == TSRI_POLICY_NONE) continue;
        tsri_stats_add(c->stats, TSRI_M_evictions, 1);
        tsri_entry_drop(c, id, TSR_EVENT_EVICTED);
        return true;
    }
    return false;
}

static void drop_below(struct tsri_manager *m, uint32_t t, const struct tsr_tier_ref *ref)
{
    if (tsri_tier_drop(m->lower[t].tier, ref, 1) < 0)
        tsri_stats_add(m->c->stats, TSRI_M_tier_errors, 1);
}

static void unlist_below(struct tsri_manager *m, uint32_t t, const struct tsr_tier_ref *ref)
{
    if (tsri_tier_unlist(m->lower[t].tier, ref, 1) < 0)
        tsri_stats_add(m->c->stats, TSRI_M_tier_errors, 1);
}

/* The tier's next victim. What only the device pool has is brought down to host memory first, if
 * that has room for it. Under cache->lock, which is let go meanwhile. */
static uint32_t choose_victim(struct tsri_manager *m, uint32_t t)
{
    struct tsr_cache *c = m->c;
    struct tsri_policy *policy = m->lower[t].policy;
    uint8_t chains = keeps_chains(m, t) ? chain_tiers(m) : 0;
    struct leaving leaving = {c, chains, chains & (uint8_t) ~(1u << t)};
    uint32_t id = policy->ops->victim(policy, may_leave, &leaving);
    if (t != m->hot || id == TSRI_POLICY_NONE) return id;
    _Atomic uint8_t *tiers = &c->entries[id].tiers;
    if (atomic_load_explicit(tiers, memory_order_relaxed) != 1u << t ||
        tsri_pin(c, id) == TSRI_FREE)
        return id;
    struct tsri_fetch fetch = {.id = id};
    pthread_mutex_unlock(&c->lock);
    tsri_manager_fetch(c, &fetch, 1);
    if (fetch.result == 0) tsri_stats_add(c->stats, TSRI_M_device_demotions, 1);
    pthread_mutex_lock(&c->lock);
    bool still = atomic_load_explicit(tiers, memory_order_relaxed) >> t & 1;
    tsri_unpin_locked(c, id);
    return still ? id : policy->ops->victim(policy, may_leave, &leaving);
}

/* Drops the tier's next victim; false when it has none. */
static bool make_room(struct tsri_manager *m, uint32_t t)
{
    struct tsr_cache *c = m->c;
    struct tsri_lower *l = &m->lower[t];
    if (tsri_tier_is_shared(l->tier)) return false; /* what goes there is not for one to say */
    pthread_mutex_lock(&c->lock);
    uint32_t id = choose_victim(m, t);
    struct tsr_tier_ref ref = {.loc = 0};
    if (id != TSRI_POLICY_NONE) {
        ref = tsri_manager_lost(c, id, t);
        if (atomic_load_explicit(&c->entries[id].tiers, memory_order_relaxed) == 0) {
            tsri_stats_add(c->stats, TSRI_M_evictions, 1);
            tsri_entry_drop(c, id, TSR_EVENT_EVICTED);
        }
    }
    pthread_mutex_unlock(&c->lock);
    if (id == TSRI_POLICY_NONE) return false;
    drop_below(m, t, &ref);
    return true;
}

static int put_once(struct tsri_manager *m, uint32_t t, struct tsr_tier_io *io)
{
    struct tsri_lower *l = &m->lower[t];
    for (uint32_t i = 0; i <= VICTIMS_MAX; i++) {
        io->deadline_ns = tsri_deadline_ns(m->c->options.tier_store_ms);
        int e = tsri_tier_put(l->tier, io, 1);
        e = e < 0 ? e : io->result;
        if (e != TSR_EFULL || !make_room(m, t)) return e;
    }
    return TSR_EFULL;
}

/* Entries on their way down together. */
struct write_batch {
    struct tsri_write_command cmds[BATCH_ENTRIES];
    uint32_t n;
    void **planes; /* of all of them; NULL: no memory */
    struct tsr_tier_io ios[BATCH_ENTRIES];
    uint32_t parents[BATCH_ENTRIES]; /* TSRI_ID_NONE: none */
    bool orphans[BATCH_ENTRIES];     /* the block before could not be written */
    bool put_off[BATCH_ENTRIES];     /* and will be tried again */
    bool dying[BATCH_ENTRIES];
    uint8_t failed[BATCH_ENTRIES]; /* bit t: tier t could not take it now */
    uint8_t never[BATCH_ENTRIES];  /* bit t: tier t has no room for it */
};

/* False for a block whose front could not be written: it would be worth nothing after a restart,
 * and take the room of something that is. */
static bool stands_behind(const struct tsri_manager *m, const struct write_batch *b, uint32_t i,
                          uint32_t t)
{
    if (!keeps_chains(m, t) || b->parents[i] == TSRI_ID_NONE) return true;
    if (b->orphans[i]) return false;
    for (uint32_t k = 0; k < i; k++)
        if (b->cmds[k].id == b->parents[i])
            return !(b->failed[k] | b->never[k]) || is_in(m->c, b->parents[i], chain_tiers(m));
    return true;
}

/* It is tried again if the block before is. */
static void refuse_orphan(const struct tsri_manager *m, struct write_batch *b, uint32_t i,
                          uint32_t t)
{
    bool put_off = b->put_off[i];
    for (uint32_t k = 0; k < i; k++)
        if (b->cmds[k].id == b->parents[i]) put_off = b->failed[k] != 0;
    tsri_stats_add(m->c->stats, TSRI_M_tier_refused, 1);
    (put_off ? b->failed : b->never)[i] |= (uint8_t)(1u << t);
}

/* What tier t is to have. Returns how many. */
static uint32_t choose_ios(const struct tsri_manager *m, struct write_batch *b, uint32_t t,
                           struct tsr_tier_io *ios, uint32_t *where)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        if (!(b->cmds[i].tiers >> t & 1) || b->dying[i]) continue;
        if (!stands_behind(m, b, i, t)) {
            refuse_orphan(m, b, i, t);
            continue;
        }
        where[n] = i;
        ios[n++] = b->ios[i];
    }
    return n;
}

/* Counts what became of an entry in tier t; true when the tier has it. */
static bool settle_put(struct tsri_manager *m, uint32_t t, uint32_t id, int err)
{
    struct tsr_cache *c = m->c;
    struct tsri_lower *l = &m->lower[t];
    const struct tsri_entry *e = &c->entries[id];
    if (err == TSR_ERANGE && t == m->hot) return false; /* larger than the pool */
    if (err < 0) {
        tsri_stats_add(c->stats, err == TSR_ETIME ? TSRI_M_tier_timeouts : TSRI_M_tier_errors, 1);
        pthread_mutex_lock(&m->lock);
        snprintf(m->why, sizeof m->why, "%s", tsr_errmsg()[0] ? tsr_errmsg() : tsr_strerror(err));
        pthread_mutex_unlock(&m->lock);
        if (!l->failing)
            tsri_log(TSR_LOG_WARN, "tier %s: cannot write entries: %s", tsri_tier_name(l->tier),
                     err == TSR_EFULL ? "the tier is full" : m->why);
        l->failing = true;
        return false;
    }
    if (l->failing)
        tsri_log(TSR_LOG_INFO, "tier %s: writing entries works again", tsri_tier_name(l->tier));
    l->failing = false;
    tsri_stats_add(c->stats, TSRI_M_tier_writes, 1);
    tsri_stats_add(c->stats, TSRI_M_tier_write_bytes,
                   (uint64_t)e->n_tokens * tsri_shape_token_bytes(&c->spaces[e->space].shape));
    return true;
}

/* The tier has it, where it says; unless it was dropped while it was being written: then it must go
 * there too, and at once: somebody may have stored the same text again, and that waits in the
 * queue. */
static void publish_copy(struct tsri_manager *m, uint32_t t, uint32_t id, tsr_tier_loc loc)
{
    struct tsr_cache *c = m->c;
    pthread_mutex_lock(&c->lock);
    bool dying = tsri_word_state(atomic_load(&c->entries[id].word)) == TSRI_DYING;
    struct tsr_tier_ref ref = tsri_manager_ref(c, id, t);
    ref.loc = loc;
    if (!dying) tsri_manager_holds(c, id, t, loc);
    pthread_mutex_unlock(&c->lock);
    if (dying) drop_below(m, t, &ref);
}

/* The block before it found no room: it goes again. */
static void take_back(struct tsri_manager *m, uint32_t t, uint32_t id, tsr_tier_loc loc)
{
    pthread_mutex_lock(&m->c->lock);
    struct tsr_tier_ref ref = tsri_manager_ref(m->c, id, t);
    pthread_mutex_unlock(&m->c->lock);
    ref.loc = loc;
    drop_below(m, t, &ref);
}

/* Blocks came behind others in tier t: its policy is told the order, leaf first, as that of host
 * memory is (puts.c). Once for each chain of the batch. */
static void refresh_chains(struct tsri_manager *m, const struct write_batch *b, uint32_t t)
{
    struct tsr_cache *c = m->c;
    struct tsri_policy *policy = m->lower[t].policy;
    uint8_t bit = (uint8_t)(1u << t);
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < b->n; i++) {
        uint32_t at = b->cmds[i].id, ids[64], n = 0;
        bool more = i + 1 < b->n && b->parents[i + 1] == at && is_in(c, b->cmds[i + 1].id, bit);
        if (more || b->parents[i] == TSRI_ID_NONE) continue;
        for (; at != TSRI_ID_NONE && is_in(c, at, bit); at = c->entries[at].parent) {
            ids[n++] = at;
            if (n < TSRI_COUNT(ids)) continue;
            tsri_policy_refresh(policy, ids, n);
            n = 0;
        }
        if (n) tsri_policy_refresh(policy, ids, n);
    }
    pthread_mutex_unlock(&c->lock);
}

/* A tier at its limit is not asked again: what it has no room for is gone by rule, and told once.
 */
static void note_failure(struct write_batch *b, uint32_t i, uint32_t t, int err)
{
    bool never = err == TSR_ERANGE || err == TSR_EFULL;
    (never ? b->never : b->failed)[i] |= (uint8_t)(1u << t);
}

/* All that tier t is to have, in one call; what finds it full then makes its own room. */
static void put_below(struct tsri_manager *m, struct write_batch *b, uint32_t t)
{
    struct tsr_tier_io ios[BATCH_ENTRIES];
    uint32_t where[BATCH_ENTRIES], n = choose_ios(m, b, t, ios, where);
    uint64_t deadline_ns = tsri_deadline_ns(m->c->options.tier_store_ms);
    for (uint32_t i = 0; i < n; i++)
        ios[i].deadline_ns = deadline_ns;
    (void)tsri_fail(TSR_OK, "%s", ""); /* what is said from now on is of this tier */
    int e = n ? tsri_tier_put(m->lower[t].tier, ios, n) : 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = b->cmds[where[i]].id;
        int err = e < 0 ? e : ios[i].result;
        if (!stands_behind(m, b, where[i], t)) {
            if (err >= 0) take_back(m, t, id, ios[i].loc);
            refuse_orphan(m, b, where[i], t);
            continue;
        }
        if (err == TSR_EFULL && make_room(m, t)) err = put_once(m, t, &ios[i]);
        if (settle_put(m, t, id, err))
            publish_copy(m, t, id, ios[i].loc);
        else if (t != m->hot) /* what the pool has not, nobody misses */
            note_failure(b, where[i], t, err);
    }
    if (n && keeps_chains(m, t)) refresh_chains(m, b, t);
}

/* The entries are pinned: their meta and pages stand still. */
static void prepare(struct tsri_manager *m, struct write_batch *b)
{
    struct tsr_cache *c = m->c;
    size_t n_planes = 0;
    pthread_mutex_lock(&c->lock); /* for states and parents */
    for (uint32_t i = 0; i < b->n; i++) {
        struct tsri_entry *e = &c->entries[b->cmds[i].id];
        b->dying[i] = tsri_word_state(atomic_load(&e->word)) == TSRI_DYING;
        b->failed[i] = b->never[i] = 0;
        b->parents[i] = e->parent;
        b->orphans[i] = e->parent != TSRI_ID_NONE && !is_in(c, e->parent, chain_tiers(m)) &&
                        c->entries[e->parent].flags & TSRI_ENTRY_REFUSED;
        b->put_off[i] = b->orphans[i] && m->owed[e->parent];
        e->flags |= TSRI_ENTRY_WRITING;
        b->ios[i] = (struct tsr_tier_io){.loc = 0};
        if (b->dying[i]) continue;
        tsri_manager_head(c, e, &b->ios[i].head);
        n_planes += tsri_manager_n_planes(c, e);
    }
    pthread_mutex_unlock(&c->lock);
    b->planes = n_planes ? tsri_alloc(n_planes, sizeof *b->planes) : NULL;
    void **at = b->planes;
    for (uint32_t i = 0; i < b->n && at; i++) {
        if (b->dying[i]) continue;
        const struct tsri_entry *e = &c->entries[b->cmds[i].id];
        struct tsri_meta *meta = tsri_meta(c, e);
        struct tsr_tier_io *io = &b->ios[i];
        tsri_manager_planes(c, e, meta, at);
        io->tokens = tsri_meta_tokens(meta);
        io->extra = tsri_meta_extra(meta);
        io->extra_max = meta->extra_bytes;
        io->n_cells = tsri_head_cells(&io->head);
        io->planes = at;
        at += tsri_manager_n_planes(c, e);
    }
}

/* What was tried and did not work is owed from now on. Under cache->lock. */
static void note_owed(struct tsri_manager *m, const struct write_batch *b, uint32_t i)
{
    uint8_t asked = b->cmds[i].tiers, failed = b->failed[i];
    uint32_t id = b->cmds[i].id;
    uint32_t below = m->hot ? ~(1u << m->hot) : UINT32_MAX;
    if (!b->planes) failed = (uint8_t)(asked & below); /* no memory */
    tsri_owed_set(m, id, (uint8_t)((m->owed[id] & ~asked) | failed));
    if (b->never[i]) tsri_losses_add(&m->c->losses, 1);
}

static void carry_puts(struct tsri_manager *m, struct write_batch *b)
{
    struct tsr_cache *c = m->c;
    prepare(m, b);
    for (uint32_t t = 1; t <= m->n_lower && b->planes; t++)
        put_below(m, b, t);
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < b->n; i++) {
        struct tsri_entry *e = &c->entries[b->cmds[i].id];
        bool dying = tsri_word_state(atomic_load(&e->word)) == TSRI_DYING;
        if (!dying) note_owed(m, b, i);
        e->flags &= (uint16_t) ~(TSRI_ENTRY_QUEUED | TSRI_ENTRY_WRITING);
        if (b->failed[i] | b->never[i]) e->flags |= TSRI_ENTRY_REFUSED;
        tsri_unpin_locked(c, b->cmds[i].id);
    }
    pthread_mutex_unlock(&c->lock);
    tsri_free(b->planes);
}

/* Takes puts from the front of the queue that are small together, or one. Under the lock. */
static void pop_puts(struct tsri_manager *m, struct write_batch *b)
{
    const struct tsr_cache *c = m->c;
    uint64_t bytes = 0;
    for (b->n = 0; m->n && b->n < BATCH_ENTRIES && m->ring[m->head].what == PUT; b->n++) {
        const struct tsri_entry *e = &c->entries[m->ring[m->head].id];
        bytes += (uint64_t)e->n_tokens * tsri_shape_token_bytes(&c->spaces[e->space].shape);
        if (b->n && bytes > BATCH_BYTES) break;
        b->cmds[b->n] = pop(m);
    }
}

/* Tiers whose flush has failed are asked what they still have. Under the lock, which is let go. */
static void check_tiers(struct tsri_manager *m)
{
    uint8_t tiers = m->to_check;
    uint64_t until = m->n_checks;
    m->to_check = 0;
    pthread_mutex_unlock(&m->lock);
    for (uint32_t t = 1; t <= m->n_lower; t++)
        if (tiers >> t & 1) tsri_flush_check(m, t);
    pthread_mutex_lock(&m->lock);
    m->n_checked = until;
    pthread_cond_broadcast(&m->done);
}

static void *writer(void *arg)
{
    struct tsri_manager *m = arg;
    struct write_batch batch, *b = &batch;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (m->n == 0 && !m->closing && !m->to_check)
            pthread_cond_wait(&m->more, &m->lock);
        if (m->to_check) {
            check_tiers(m);
            continue;
        }
        if (m->n == 0) break;
        pop_puts(m, b);
        struct tsri_write_command other = b->n ? b->cmds[0] : pop(m);
        pthread_mutex_unlock(&m->lock);
        if (b->n)
            carry_puts(m, b);
        else if (other.what == DROP)
            drop_below(m, (uint32_t)__builtin_ctz(other.tiers), &other.ref);
        else
            unlist_below(m, (uint32_t)__builtin_ctz(other.tiers), &other.ref);
        pthread_mutex_lock(&m->lock);
        m->n_finished += b->n ? b->n : 1;
        pthread_cond_broadcast(&m->done);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* ---- opening, waiting ---- */

int tsri_writeback_init(struct tsri_manager *m)
{
    m->puts_max = m->c->options.io_queue_max;
    m->ring_max = (uint64_t)m->c->ids_max * (m->n_lower + 1);
    int e = tsri_region_init(&m->ring_region, m->ring_max * sizeof *m->ring);
    if (e) return e;
    m->ring = (struct tsri_write_command *)(void *)m->ring_region.data;
    e = tsri_region_init(&m->owed_region, m->c->ids_max);
    if (e) return e;
    m->owed = m->owed_region.data;
    e = tsri_thread_start(&m->writer, "tessera-write", writer, m);
    if (e) return tsri_fail(TSR_ENOMEM, "cannot start a thread: %s", strerror(e));
    m->has_thread = true;
    return 0;
}

void tsri_writeback_fini(struct tsri_manager *m)
{
    if (m->has_thread) {
        pthread_mutex_lock(&m->lock);
        m->closing = true;
        pthread_cond_signal(&m->more);
        pthread_mutex_unlock(&m->lock);
        pthread_join(m->writer, NULL);
    }
    tsri_region_fini(&m->ring_region);
    tsri_region_fini(&m->owed_region);
}

void tsri_manager_drain(struct tsr_cache *c)
{
    struct tsri_manager *m = c->manager;
    pthread_mutex_lock(&m->lock);
    uint64_t until = m->n_pushed;
    while (m->n_finished < until)
        pthread_cond_wait(&m->done, &m->lock);
    pthread_mutex_unlock(&m->lock);
}
