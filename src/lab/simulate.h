/* simulate.h - a fleet of engines that exists only as numbers: a trace is played by as many copies as
 * the fleet has traffic for, against caches that hold the names of entries and no KV.
 *
 * What decides is the library's own code: blocks and keys (chunk/), pages of an entry (chunk/cells.h)
 * and eviction (policy/). The steps between them follow cache/ and find/: discover, look up, load,
 * store, write down. Servers are not ours: their rules are written down in sim_servers.c.
 *
 *   sim_texts.c    the text that a cache or a server has, by key
 *   sim_servers.c  the nodes of a Redis cluster, and a bucket
 *   sim_cache.c    one cache: of an engine, or of a tesserad and all its engines
 *   simulate.c     the requests: who asks when, and who answers
 *   sim_index.c    bytes of an entry of the index, measured in a real cache
 *   sim_limits.c   what breaks first
 *   sim_print.c    the tables, and JSON
 *
 * Threads: one.
 * Memory:  40 bytes a text that a cache or a server has, and 4 to 8 for its place in a table; about 60
 *          bytes an entry of a cache, and what its policy takes (90 KiB and 13 bytes an entry for
 *          adaptive). So the sizes of caches and servers limit it, however long the run; a bucket, which
 *          keeps everything, does not.
 * Errors:  enum tsr_err, with tsr_errmsg. */
#ifndef TSRI_SIMULATE_H
#define TSRI_SIMULATE_H

#include "chunk/cells.h"
#include "lab/lab.h"
#include "policy/policy.h"

#define TSRI_SIM_NONE UINT32_MAX
#define TSRI_SIM_ENGINES_MAX 100000u
#define TSRI_SIM_REDIS_MAX 1024u
#define TSRI_SIM_TEXTS_MAX ((uint32_t)1 << 28)
#define TSRI_SIM_WINDOWS 50u
#define TSRI_SIM_HOT 10u

enum tsri_sim_tier { TSRI_SIM_HOST, TSRI_SIM_DISK, TSRI_SIM_REDIS, TSRI_SIM_S3, TSRI_SIM_TIERS };
extern const char *const tsri_sim_tier_names[TSRI_SIM_TIERS];

typedef void (*tsri_sim_fn)(void *arg, uint64_t n_done, uint64_t n);

/* ---- what is simulated ---- */

struct tsri_sim_desc {
    const struct tsri_trace *trace;
    const struct tsr_config
        *config; /* of the caches; sizes of host memory and disk are for one cache */
    uint32_t n_engines;
    uint32_t per_cache; /* engines that share one cache: those of a tesserad */
    uint32_t n_copies;  /* of the trace */
    double duration_s;  /* of one copy */
    double common;      /* ids in at least this share of requests are the same text in all copies */
    uint64_t seed;
    bool as_prefix;                    /* all requests as plain prompts */
    bool route_prefix;                 /* requests with the same beginning go to the same engine */
    uint32_t n_layers;                 /* of the model */
    uint32_t row_bytes;                /* of K of one token in one layer; V has as many */
    bool disk, s3;                     /* have these tiers */
    uint32_t n_redis;                  /* nodes of the Redis cluster; 0: none */
    uint64_t redis_bytes;              /* of one node */
    uint64_t redis_extra;              /* bytes that an entry takes there besides KV and tokens */
    uint32_t lose_engines, lose_redis; /* replaced by empty ones at lose_at of the requests */
    double lose_at;
    tsri_sim_fn progress; /* (optional) */
    void *arg;
};

struct tsri_sim_window {
    uint64_t tokens_asked, tokens_reused;
};

struct tsri_sim_result {
    uint64_t requests, tokens_asked;
    uint64_t tokens_from[TSRI_SIM_TIERS];                             /* loaded from there */
    uint64_t read_bytes[TSRI_SIM_TIERS], write_bytes[TSRI_SIM_TIERS]; /* KV */
    uint64_t reads[TSRI_SIM_TIERS], writes[TSRI_SIM_TIERS];           /* entries */
    uint64_t asked[TSRI_SIM_TIERS]; /* entries that a shared tier was asked about */
    uint64_t evicted, refused;      /* from host memory; stores */
    uint64_t lost;                  /* loads of entries that were gone from the server */
    uint64_t redis_evicted;
    uint64_t texts; /* that were stored or asked for; again if nobody had it any more */
    uint64_t s3_entries, redis_entries;
    /* of the caches, at the end */
    uint32_t n_caches;
    uint64_t host_entries, cold_entries, host_entries_max, cold_entries_max;
    uint64_t engine_requests_max;  /* of the busiest cache */
    uint64_t redis_node_bytes_max; /* read and written, of the busiest node */
    /* Of a text that nobody had for a while, only the time since. */
    uint64_t hot[TSRI_SIM_HOT]; /* how often the hottest texts were asked for */
    uint64_t hot_redis_reads;   /* of the entry that Redis sent most often */
    struct tsri_sim_window windows[TSRI_SIM_WINDOWS];
    double seconds; /* that the fleet needed, by its own clock */
};
/* Plays all of it. */
TSR_MUST int tsri_simulate(const struct tsri_sim_desc *desc, struct tsri_sim_result *out);

/* ---- hit rates before and after a loss ---- */

struct tsri_sim_loss {
    double before, after; /* the five windows before; the first one after */
    double recovered_s;   /* until a window has 95 % of before again; -1: never */
};
void tsri_sim_loss(const struct tsri_sim_desc *desc, const struct tsri_sim_result *r,
                   struct tsri_sim_loss *out);

/* ---- sim_texts.c ---- */

struct tsri_sim_text {
    struct tsri_key key;
    uint32_t n_tokens, n_asked;
    uint32_t n_held; /* by requests, caches and servers; 0: forgotten */
    uint32_t redis;  /* place in its node, or TSRI_SIM_NONE; forgotten: the next of these */
    uint32_t n_redis_reads : 31, in_s3 : 1;
};
struct tsri_sim_texts {
    struct tsri_sim_text *all;
    uint32_t n, room;    /* numbers that were ever given */
    uint32_t n_free;     /* of these, those that may be given again */
    uint32_t first_free; /* n + 1 of it, 0: none */
    uint32_t *table;     /* n + 1 of a text, 0: free */
    uint64_t mask, n_added;
    uint64_t hot[TSRI_SIM_HOT], hot_redis_reads; /* of those that are forgotten */
};
/* The number of the text with this key, new or not, held once for the caller; TSR_ENOMEM, TSR_ERANGE.
 * Prefetch before, for many: a table of millions is in no processor's cache. */
TSR_MUST int tsri_sim_texts_add(struct tsri_sim_texts *t, struct tsri_key key, uint32_t n_tokens,
                                uint32_t *text);
void tsri_sim_texts_prefetch(const struct tsri_sim_texts *t, struct tsri_key key);
void tsri_sim_texts_hold(struct tsri_sim_texts *t, uint32_t text);
/* Who holds it last forgets it, and its number. */
void tsri_sim_texts_release(struct tsri_sim_texts *t, uint32_t text);
/* How often the hottest texts were asked for, and sent by Redis: of all until now. */
void tsri_sim_texts_hot(const struct tsri_sim_texts *t, uint64_t hot[TSRI_SIM_HOT],
                        uint64_t *redis_reads);
void tsri_sim_texts_fini(struct tsri_sim_texts *t);

/* ---- sim_servers.c ---- */

/* The values of an entry on their node: a record, and parts. */
struct tsri_sim_value {
    uint32_t text;
    uint32_t used_s;  /* Redis knows seconds, no less */
    uint16_t n_parts; /* that are still there */
    uint16_t record;  /* 1: it is there too */
};
struct tsri_sim_redis {
    struct tsri_sim_value *values;
    uint32_t n, room;
    uint32_t values_max; /* the most that an entry has */
    uint64_t bytes_used, bytes_moved;
};

/* What all caches of a simulation share. */
struct tsri_sim {
    const struct tsri_sim_desc *desc;
    const struct tsri_options *options;
    struct tsri_shape shape;
    size_t token_bytes;
    struct tsri_sim_texts texts;
    struct tsri_sim_redis *redis; /* desc->n_redis */
    uint64_t random;
    uint32_t now_s;
    struct tsri_sim_result *result;
};
uint64_t tsri_sim_mix(uint64_t x);
/* Whether the server has it; counts the question. */
bool tsri_sim_has(struct tsri_sim *s, enum tsri_sim_tier tier, uint32_t text);
/* Reads it; false when it is gone. */
bool tsri_sim_read(struct tsri_sim *s, enum tsri_sim_tier tier, uint32_t text);
TSR_MUST int tsri_sim_write(struct tsri_sim *s, enum tsri_sim_tier tier, uint32_t text);
void tsri_sim_drop(struct tsri_sim *s, enum tsri_sim_tier tier, uint32_t text);
/* Node i is replaced by an empty one. */
void tsri_sim_redis_lose(struct tsri_sim *s, uint32_t i);

/* ---- sim_cache.c ---- */

struct tsri_sim_entry {
    uint32_t text, parent, first_child, before, after; /* ids; siblings */
    uint32_t pinned;                                   /* by the request with this number */
    uint8_t tiers;                                     /* bit t: tier t has it */
};
struct tsri_sim_cache {
    struct tsri_sim *s;
    struct tsri_sim_entry *entries;
    uint32_t ids_max, ids_fresh, ids_free, n_host, n_cold;
    uint32_t *table; /* id + 1 by text */
    uint32_t mask;
    struct tsri_policy *host, *disk, *cold; /* cold: what a server has, by last use */
    uint64_t pages_used, pages_max, disk_used, disk_max;
    uint32_t *found; /* ids of the request, by chunk */
    uint32_t found_max;
    uint32_t request;
    uint64_t n_requests;
};
/* For at most ids_max different entries, and requests of chunks_max. */
TSR_MUST int tsri_sim_cache_init(struct tsri_sim_cache *c, struct tsri_sim *s, uint64_t ids_max,
                                 uint32_t chunks_max);
void tsri_sim_cache_fini(struct tsri_sim_cache *c);
/* Lets go of all text, before fini: for a cache whose simulation goes on. */
void tsri_sim_cache_forget(struct tsri_sim_cache *c);
/* One request for these chunks: blocks of one prefix, or segments. Returns tokens reused, or an
 * error. */
TSR_MUST int64_t tsri_sim_cache_ask(struct tsri_sim_cache *c, const uint32_t *texts, uint32_t n,
                                    bool prefix);

/* ---- sim_index.c ---- */

/* Bytes of memory that an entry of so many tokens takes besides its KV: in host memory, and when
 * only a server has it. Measured by filling a real cache. */
struct tsri_sim_index {
    double host_bytes, cold_bytes;
};
TSR_MUST int tsri_sim_index_measure(struct tsri_sim_index *out, uint32_t n_tokens);

/* ---- sim_limits.c ---- */

struct tsri_sim_networks {
    double engine_gbit, redis_gbit; /* of a machine, of a Redis node */
    double memory_share;            /* of host memory that the index may take */
};
struct tsri_sim_limit {
    const char *name;
    double used, limit;
    const char *unit, *then; /* what to run then */
};
#define TSRI_SIM_LIMITS_MAX 8u
/* The tightest first; returns how many. */
uint32_t tsri_sim_limits(const struct tsri_sim_desc *desc, const struct tsri_sim_result *r,
                         const struct tsri_sim_index *index, const struct tsri_sim_networks *net,
                         struct tsri_sim_limit out[TSRI_SIM_LIMITS_MAX]);

/* ---- sim_print.c ---- */

struct tsri_sim_report {
    struct tsri_cli *cli;
    const char *trace;
    const struct tsri_sim_desc *desc;
    const struct tsri_sim_result *result;
    struct tsri_sim_index index;
    struct tsri_sim_networks networks;
};
TSR_MUST int tsri_sim_print(const struct tsri_sim_report *report);

#endif
