/* manager.h - the tiers below host memory, as the rest of the cache sees them: what is stored goes
 * down in the background, what is wanted comes up, what is dropped is forgotten below too.
 *
 * Threads: any, unless it says otherwise. One thread writes (puts and drops, in the order they were
 *          asked for); fetches run on the thread that wants the bytes. A tier is never called under a
 *          lock. Lock order: cache->lock, then manager->lock.
 * Memory:  the write queue and what is known of each entry are reserved at open.
 * Errors:  enum tsr_err. A tier that fails is a miss, or an entry that is owed to it (flush.c).
 */
#ifndef TSRI_MANAGER_H
#define TSRI_MANAGER_H

#include "cache/core.h"

struct tsri_lower {
    struct tsr_tier *tier;
    struct tsri_region loc_region;
    tsr_tier_loc *loc;            /* by id, under cache->lock */
    struct tsri_policy *policy;   /* of the entries it holds, under cache->lock */
    uint64_t n_entries, n_tokens; /* that it holds, under cache->lock */
    bool failing;                 /* the writer's: the last put did not work, and that was logged */
};

/* How one of the tiers is to be used (tiers.c). Text is borrowed from the configuration. */
struct tsri_tier_plan {
    const char *name;
    const struct tsr_tier_ops *ops;
    void *arg;
    const char *policy;
    int write;     /* enum tsri_disk_write */
    int admission; /* enum tsri_disk_admission */
};

struct tsri_flight;
struct tsri_write_command;

/* A deadline that many milliseconds from now, as in struct tsr_tier_io; 0 for 0. */
static inline uint64_t tsri_deadline_ns(uint32_t ms)
{
    return ms ? tsri_now_ns() + (uint64_t)ms * 1000000 : 0;
}

struct tsri_manager {
    struct tsr_cache *c;
    struct tsri_lower lower[TSR_TIERS_MAX]; /* [1] .. [n_lower] */
    uint32_t n_lower;
    uint32_t hot;                     /* which of them is the device pool; 0: none */
    uint8_t takes_stored, takes_used; /* bit t: tier t wants entries when stored, when used again */
    bool through;                     /* stores wait until they are written */

    pthread_mutex_t lock;
    pthread_cond_t more, done; /* done: of the monotonic clock */
    /* under lock: */
    struct tsri_region ring_region;
    struct tsri_write_command *ring;
    uint64_t ring_max, head, n;
    uint32_t n_puts, n_reserved, puts_max; /* of the n: puts; and those that stores may add */
    uint64_t n_pushed, n_finished;
    bool closing;
    char why[256];    /* the last put that failed did so */
    uint8_t to_check; /* bit t: the writer shall ask tier t what it still has */
    uint64_t n_checks, n_checked;
    struct tsri_flight *flights;

    /* under cache->lock: */
    struct tsri_region owed_region;
    uint8_t *owed; /* by id, bit t: tier t should have it and has not (flush.c) */
    uint32_t n_owed;

    bool has_thread;
    pthread_t writer;
};

/* Of the tiers in a mask, which is not 0, the one to read from: host memory, the device pool, which
 * has the last number, and the others in their order. */
static inline uint8_t tsri_tier_fastest(const struct tsr_cache *c, uint8_t tiers)
{
    uint32_t hot = tiers & 1 ? 0 : c->manager->hot;
    return (uint8_t)(hot && tiers >> hot & 1 ? hot : (uint32_t)__builtin_ctz(tiers));
}

/* ---- manager.c ---- */

/* Opens the configured and attached tiers and takes in what they hold. */
TSR_MUST int tsri_manager_open(struct tsr_cache *c, const struct tsr_config *cfg);
/* Writes what is queued, closes the tiers. Accepts a cache without a manager. */
void tsri_manager_close(struct tsr_cache *c);
void tsri_manager_stats(struct tsr_cache *c, struct tsr_stats *out);
/* Drops what tiers keep although the index has no place for it: of a space (NULL: all), of one tier
 * (-1: all). Returns how many. */
int tsri_manager_purge(struct tsr_cache *c, const uint8_t *space, int32_t tier);
/* The same, of the chunks of a prompt. */
int tsri_manager_purge_prompt(struct tsr_space *space, const struct tsr_prompt *prompt,
                              uint32_t from, int32_t tier);
/* These entries of the device pool were used: they leave it last. */
void tsri_manager_touch_hot(struct tsr_cache *c, const uint32_t *ids, uint32_t n);
/* Under cache->lock: how tier t knows the entry. */
struct tsr_tier_ref tsri_manager_ref(const struct tsr_cache *c, uint32_t id, uint32_t t);
/* Under cache->lock: tier t has the entry now; or no longer has it. */
void tsri_manager_holds(struct tsr_cache *c, uint32_t id, uint32_t t, tsr_tier_loc loc);
struct tsr_tier_ref tsri_manager_lost(struct tsr_cache *c, uint32_t id, uint32_t t);
/* The head and the plane pointers of an entry whose meta is in memory; planes has room for all. */
void tsri_manager_head(struct tsr_cache *c, const struct tsri_entry *e, struct tsr_entry_head *out);
uint32_t tsri_manager_n_planes(const struct tsr_cache *c, const struct tsri_entry *e);
void tsri_manager_planes(const struct tsr_cache *c, const struct tsri_entry *e,
                         struct tsri_meta *meta, void **planes);

/* ---- tiers.c ---- */

#define TSRI_LOWER_MAX (TSR_TIERS_MAX - 1)
/* The tiers below host memory in their order; returns how many, or a negative enum tsr_err. */
TSR_MUST int tsri_tiers_plan(const struct tsr_config *cfg,
                             struct tsri_tier_plan plans[TSRI_LOWER_MAX]);

/* ---- writeback.c ---- */

TSR_MUST int tsri_writeback_init(struct tsri_manager *m);
/* Under cache->lock: the entry goes to these tiers, if it is in host memory and does not wait. */
void tsri_writeback_queue(struct tsri_manager *m, uint32_t id, uint8_t tiers);
void tsri_writeback_fini(struct tsri_manager *m);
/* Back-pressure: room in the write queue for n entries, or TSR_EAGAIN. Every entry reserved is
 * either handed to _stored or given back with _unreserve. */
TSR_MUST int tsri_manager_reserve(struct tsr_cache *c, uint32_t n);
void tsri_manager_unreserve(struct tsr_cache *c, uint32_t n);
/* Under cache->lock: a new entry was published (uses up one reservation). */
void tsri_manager_stored(struct tsr_cache *c, uint32_t id);
/* A lookup used these pinned entries: those waiting for their second use go down now. */
void tsri_manager_used(struct tsr_cache *c, const uint32_t *ids, uint32_t n);
/* Under cache->lock: the entry is about to go; lower tiers shall drop it. What is only evicted, for
 * want of room in memory or in the index, stays below as long as the tier has room. */
void tsri_manager_forget(struct tsr_cache *c, uint32_t id, enum tsr_event_kind why);
/* Under cache->lock: shared tiers keep their copies when the entry goes next; it is as if they were
 * others'. */
void tsri_manager_spare(struct tsr_cache *c, uint32_t id);
/* Under cache->lock: tier t shall drop its copy; the entry goes when it was the last. */
uint32_t tsri_manager_drop_copy(struct tsr_cache *c, uint32_t id, uint32_t t);
/* Under cache->lock: gives up an entry that only a lower tier has, for its place in the index;
 * false when there is none. */
bool tsri_manager_shed(struct tsr_cache *c);
/* Waits until what was queued before the call has been tried. */
void tsri_manager_drain(struct tsr_cache *c);

/* ---- flush.c ---- */

/* By the writer, after a flush of tier t has failed: what the tier has let go of is owed to it, or
 * lost where host memory has not got it either. */
void tsri_flush_check(struct tsri_manager *m, uint32_t t);
/* Under cache->lock: from now on these tiers should have the entry and have not. */
void tsri_owed_set(struct tsri_manager *m, uint32_t id, uint8_t tiers);
/* Under cache->lock: the entry leaves host memory; what is owed is lost, unless it was dropped. */
void tsri_owed_left(struct tsr_cache *c, uint32_t id, bool dropped);

/* ---- discover.c ---- */

/* Asks the shared tiers for the chunks of the prompt that are not known; lookups find those that
 * are there from then on. Waits for their answer. Returns how many were found. */
TSR_MUST int tsri_discover(struct tsr_space *space, const struct tsr_prompt *prompt);
/* The same in the background, and brings up what it finds. */
TSR_MUST int tsri_discover_start(struct tsr_space *space, const struct tsr_prompt *prompt);

/* ---- fetch.c ---- */

/* Brings a COLD entry, pinned by the caller, up to host memory. */
struct tsri_fetch {
    uint32_t id;
    /* (optional) the head has arrived in meta: is it what is wanted? */
    bool (*verify)(struct tsri_fetch *f, struct tsri_meta *meta);
    /* (optional) layer `layer` stands in the pages of meta, proven. */
    void (*layer_done)(struct tsri_fetch *f, struct tsri_meta *meta, uint32_t layer);
    void *arg;
    int result; /* 0: the entry is in state HOST now */
};
/* One flight an entry: who comes second waits for the first. Nobody waits for another's flight
 * longer than tier_load_ms, and a tier that sits on a call for longer is asked nothing more until
 * it answers. */
void tsri_manager_fetch(struct tsr_cache *c, struct tsri_fetch *fetches, uint32_t n);
/* As tsri_cache_prefetch_one, if a tier that has the entry knows this hash of one of its windows. */
struct tsri_window_claim {
    uint32_t number; /* of the window in the entry */
    uint64_t hash;
};
void tsri_manager_prefetch_window(struct tsr_cache *c, uint64_t handle,
                                  const struct tsri_window_claim *claim);

#endif
