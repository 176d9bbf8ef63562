/* connector.h - the two halves of a connector inside: what they agree on (terms.c), the bytes
 * between them (meta.c), what the scheduler half knows of each request (request.c), what it may
 * save (boundary.c, saves.c), load (hits.c), wait for (waits.c) and must forget (resets.c), the
 * engine's memory (kvmem.c), and what the worker half does in the background (jobs.c, fetching.c,
 * keeping.c).
 *
 * The scheduler half is all bookkeeping: one thread, no locks, and nothing in it knows where KV
 * stands but for block numbers that it passes on. The worker half has no state of requests: a job
 * carries everything that is needed to do it, so that the two cannot disagree about the past.
 *
 * Threads: as said in <tessera/connector.h>. In a worker, struct tsri_lane is one thread with its
 *          own staging memory; jobs go through w->lock from state to state.
 * Memory:  a job is freed by whoever takes it off the worker's list, after it was told.
 * Errors:  what the cache cannot do is a result of the job, never of the call.
 */
#ifndef TSRI_CONNECTOR_H
#define TSRI_CONNECTOR_H

#include "cache/cache.h"

#include <tessera/connector.h>
#include <tessera/deliver.h>

#include <pthread.h>

/* ---- terms.c: what both halves agree on ---- */

struct tsri_terms {
    uint32_t n_ranks, n_groups, n_spaces; /* n_spaces = n_ranks x n_groups */
    uint32_t chunk_tokens;
    uint32_t boundary, flags;
    uint64_t load_timeout_ns, save_timeout_ns;
    uint64_t save_wait_ns; /* 0: no request waits for saves */
    uint32_t jobs_max;
    struct tsr_group groups[TSR_GROUPS_MAX];
    uint32_t n_states;     /* groups of states .. */
    uint32_t state_tokens; /* .. the block size of all of them; 0: there are none */
    uint32_t draft_block;  /* the largest block size of groups with a draft model; 0: none */
    uint32_t draft_tokens; /* written tokens that may still change */
    uint8_t identity[16];  /* of all spaces, groups and the chunk: who differs may not talk */
    struct tsr_cache *cache;
    struct tsr_client *client;
    struct tsr_client *state_client;         /* leases of states; NULL: there are none */
    struct tsr_space *spaces[TSR_RANKS_MAX]; /* [n_ranks][n_groups]; only those of `rank` in a
                                              * worker, the others NULL */
    uint64_t copies; /* of them, those that an earlier rank has, too: it saves them */
};
/* Does a space belong to a group of states? */
static inline bool tsri_is_state(const struct tsri_terms *t, uint32_t space)
{
    return t->groups[space % t->n_groups].flags & TSR_GROUP_STATE;
}
/* Those that do (or do not), one after the other; returns how many. */
uint32_t tsri_terms_spaces(const struct tsri_terms *t, bool states,
                           struct tsr_space *out[TSR_RANKS_MAX]);
#define TSRI_ALL_RANKS UINT32_MAX
/* Opens spaces (of one rank, or all) and a client. */
TSR_MUST int tsri_terms_init(struct tsri_terms *t, struct tsr_cache *cache,
                             const struct tsr_connector_desc *desc, uint32_t rank);
void tsri_terms_fini(struct tsri_terms *t);

/* ---- extras ---- */

/* A request's extras, media cut at chunk boundaries, so that a prompt can end at any of them. */
struct tsri_extras {
    struct tsr_extra *items;
    uint32_t n;
    uint8_t *data;
};
TSR_MUST int tsri_extras_init(struct tsri_extras *x, const struct tsr_extra *extra, uint32_t n,
                              uint32_t n_tokens, uint32_t chunk_tokens);
void tsri_extras_fini(struct tsri_extras *x);
/* How many of them a prompt of n_tokens has; they come first. */
uint32_t tsri_extras_within(const struct tsri_extras *x, uint32_t n_tokens);

/* ---- boundary.c: which tokens may be saved ---- */

struct tsri_counters {
    uint32_t n_computed, n_placeholders, n_in_flight;
    uint32_t n_tokens, n_prompt;
};
enum tsri_stage { TSRI_RUNNING, TSRI_FINISHED, TSRI_ABORTED };
/* Tokens [0, result) have values that are known and KV that is written. */
uint32_t tsri_boundary(uint32_t rule, enum tsri_stage stage, const struct tsri_counters *c);
/* The first token of the first block that an engine still has in a group, once it has begun a step
 * with so many tokens computed. */
uint32_t tsri_window_first(const struct tsr_group *group, uint32_t n_computed);

/* ---- meta.c: the bytes between the halves ---- */

#define TSRI_META_VERSION 4u
#define TSRI_META_TOKENS_MAX (1u << 24)

/* Bytes that grow; `failed` once there was no memory. */
struct tsri_bytes {
    uint8_t *data;
    size_t n, max;
    bool failed;
};
void tsri_bytes_put(struct tsri_bytes *b, const void *data, size_t n);
void tsri_bytes_fini(struct tsri_bytes *b);

/* Blocks of all groups that hold tokens [first, end). */
struct tsri_tables {
    const int32_t *blocks[TSR_GROUPS_MAX]; /* from the block of token `first` on */
};
static inline uint32_t tsri_tables_n(const struct tsr_group *g, uint32_t first, uint32_t end)
{
    return (end + g->block_tokens - 1) / g->block_tokens - first / g->block_tokens;
}

enum {
    TSRI_LOAD_ASYNC = 1,
    TSRI_LOAD_SURE = 2 /* within the step, and cannot fail: the engine's stream may wait for it */
};
enum {
    TSRI_SAVE_IN_STEP = 1,
    TSRI_SAVE_STATE = 2 /* the states after `to` tokens; the chunk is the last one before */
};

/* Tokens [first, end) into the engine's memory. `rows` of matches cover them; in spaces of states the
 * last row alone has a match, a segment after everything before it, and the others have none. */
struct tsri_load_order {
    uint64_t request, load;
    uint32_t flags, first, end;
    uint32_t n_tokens; /* 0: all matches are verified; else the prompt's, at least `end` */
    const uint32_t *tokens;
    struct tsri_extras extras;
    uint32_t n_rows;
    const struct tsr_match *rows; /* [n_rows][n_spaces] */
    struct tsri_tables tables;
};
/* Chunks [from, to) out of the engine's memory, for the spaces of the mask. */
struct tsri_save_order {
    uint64_t job, request, spaces;
    uint32_t flags, from, to;
    const uint32_t *tokens; /* [to] */
    struct tsri_extras extras;
    struct tsri_tables tables;
};
void tsri_meta_put_load(struct tsri_bytes *b, const struct tsri_terms *t,
                        const struct tsri_load_order *o);
void tsri_meta_put_save(struct tsri_bytes *b, const struct tsri_terms *t,
                        const struct tsri_save_order *o);

struct tsri_step_head {
    uint64_t step;
    uint32_t n_loads, n_saves, n_preempted, n_ended;
};
void tsri_meta_put_step(struct tsri_bytes *b, const struct tsri_terms *t,
                        const struct tsri_step_head *head);

/* Reads from front to back: head, the ids, then the loads and the saves. An order that was read
 * lies in one block: tsri_free(*memory). */
struct tsri_order_reader {
    const uint8_t *at, *end;
    const struct tsri_terms *terms;
};
TSR_MUST int tsri_meta_read_step(struct tsri_order_reader *r, const struct tsri_terms *t,
                                 const void *bytes, size_t n, struct tsri_step_head *head);
TSR_MUST int tsri_meta_read_load(struct tsri_order_reader *r, struct tsri_load_order *o,
                                 void **memory);
TSR_MUST int tsri_meta_read_save(struct tsri_order_reader *r, struct tsri_save_order *o,
                                 void **memory);
TSR_MUST int tsri_meta_read_id(struct tsri_order_reader *r, uint64_t *id);
/* Everything of a step, checked, nothing kept. */
TSR_MUST int tsri_meta_check_step(const struct tsri_terms *t, const void *bytes, size_t n);

struct tsri_save_report {
    uint64_t job;
    int32_t result; /* 0, or why it was not saved */
    uint32_t n_tokens;
    uint32_t busy_us; /* that the worker was at it */
};
struct tsri_load_report {
    uint64_t request, load;
    int32_t result;
    uint32_t loaded; /* tokens before this one are in place */
};
struct tsri_report_head {
    uint32_t rank, n_saves, n_loads;
    uint32_t n_sent; /* requests whose blocks get_finished has freed */
};
void tsri_meta_put_report(struct tsri_bytes *b, const struct tsri_terms *t,
                          const struct tsri_report_head *head, const struct tsri_save_report *saves,
                          const struct tsri_load_report *loads, const uint64_t *sent);
/* Checks it all; the arrays are unaligned in the bytes: read them one by one. */
TSR_MUST int tsri_meta_read_report(struct tsri_order_reader *r, const struct tsri_terms *t,
                                   const void *bytes, size_t n, struct tsri_report_head *head);
void tsri_meta_read_save_report(struct tsri_order_reader *r, struct tsri_save_report *out);
void tsri_meta_read_load_report(struct tsri_order_reader *r, struct tsri_load_report *out);

/* ---- request.c: what the scheduler half knows of a request ---- */

enum tsri_load_state {
    TSRI_LOAD_NONE,
    TSRI_LOAD_FOUND, /* leased; not asked for yet */
    TSRI_LOAD_READY, /* goes out with the next step */
    TSRI_LOAD_SENT   /* the workers have it */
};

struct tsri_req {
    uint64_t id;
    struct tsri_req *next; /* in its bucket */
    uint32_t *tokens;
    uint32_t n_tokens, tokens_max, n_prompt;
    struct tsri_extras extras;
    int32_t *blocks[TSR_GROUPS_MAX];
    uint32_t n_blocks[TSR_GROUPS_MAX], blocks_max[TSR_GROUPS_MAX];
    bool no_load, no_save, ended, counted;
    uint32_t n_sent_reports; /* still to come, of a request whose blocks are held */
    uint32_t reach;          /* most tokens computed since it has these blocks, drafts and all */
    /* saves: chunks of [0, upto) are there, or in a save, or were decided against */
    uint32_t upto;
    uint32_t saved;          /* of these from 0 on: there, or in a save that has not failed */
    uint32_t state_at;       /* the last tokens whose states are saved, or were decided against */
    struct tsri_chain chain; /* as far as it was asked for */
    uint32_t life;           /* counts restarts */
    uint32_t n_saves;        /* in flight .. */
    uint32_t n_saves_now;    /* .. of them, those of this life: they read blocks that it has */
    /* load */
    enum tsri_load_state load_state;
    uint64_t load;
    uint32_t found;                /* tokens that every space has, from 0 on */
    uint32_t load_first, load_end; /* tokens to be loaded */
    bool load_async, load_sure;
    bool load_old;           /* sent before a reset */
    uint32_t n_load_reports; /* still to come */
    /* waits */
    uint64_t awaited;        /* a save in flight that it waits for; 0: none */
    uint64_t wait_until_ns;  /* .. no longer than this .. */
    uint64_t wait_end_ns;    /* .. and for all saves no longer than this; 0: not set yet */
    uint32_t asked_computed; /* when it was last looked up */
    uint32_t seen_computed;  /* whose output was processed before step .. */
    uint64_t seen_step;      /* .. this one; 0: none */
    struct tsr_match *rows;  /* [n_rows][n_spaces] */
    uint32_t n_rows, rows_max;
};

struct tsri_reqs {
    struct tsri_req **buckets;
    uint32_t n_buckets, n;
};
TSR_MUST int tsri_reqs_init(struct tsri_reqs *t);
void tsri_reqs_fini(struct tsri_reqs *t);
struct tsri_req *tsri_reqs_find(const struct tsri_reqs *t, uint64_t id);
/* A new one; NULL without memory. */
struct tsri_req *tsri_reqs_add(struct tsri_reqs *t, uint64_t id);
void tsri_reqs_remove(struct tsri_reqs *t, struct tsri_req *r);
/* Tokens from `first` on become known; those known already stay. */
TSR_MUST int tsri_req_tokens(struct tsri_req *r, uint32_t first, const uint32_t *tokens,
                             uint32_t n);
TSR_MUST int tsri_req_blocks(struct tsri_req *r, uint32_t group, bool reset, const int32_t *blocks,
                             uint32_t n);
/* Nothing is computed any more, and nothing known of what is saved. */
void tsri_req_restart(struct tsri_req *r);

/* ---- scheduler.c, hits.c, saves.c: the scheduler half ---- */

/* A save that workers have. */
struct tsri_saving {
    uint64_t id; /* 0: free */
    uint64_t request;
    uint32_t life;      /* of the request */
    uint32_t n_reports; /* still to come */
    uint32_t chunks;    /* the first of them in `pending` */
    uint32_t from, to;  /* tokens */
    uint32_t busy_us;   /* of the slowest rank so far */
    bool failed;
    bool states;         /* no chunk, but the states at its end */
    bool old;            /* of before a reset */
    uint32_t prev, next; /* in flight, in the order of their orders; of a free one: the next free */
};
#define TSRI_NO_SAVING UINT32_MAX
/* How long tokens take: sums in which the past fades. */
struct tsri_speed {
    uint64_t n_tokens, ns;
};
/* A chunk of a save in flight, by its key in the first space. */
struct tsri_pending {
    struct tsri_key key;
    uint32_t next;      /* in its bucket */
    uint32_t of_saving; /* the next of its save; of a free one: the next free */
};

struct tsr_scheduler {
    struct tsri_terms terms;
    struct tsri_reqs reqs;
    struct tsri_bytes meta, loads, saves;
    uint64_t *preempted, *ended; /* to be told */
    uint32_t n_preempted, preempted_max, n_ended, ended_max;
    uint64_t *ready; /* requests with a load to go out */
    uint32_t n_ready, ready_max;
    uint32_t n_saves_out, n_loads_sent;
    uint32_t n_live;     /* requests that have not ended */
    uint64_t sure_bytes; /* of a load that may keep others waiting */
    uint32_t n_held;     /* requests that have ended and whose blocks are held */
    uint64_t last_load, last_saving, step;
    bool resetting;              /* resets.c: until what was under way has ended, .. */
    uint32_t n_old;              /* .. which are so many saves and loads, .. */
    uint64_t reset_ns;           /* .. and not before then */
    uint64_t sure_ns;            /* the last report of a sure load; 0: none yet */
    struct tsri_saving *savings; /* [jobs_max] */
    uint32_t savings_free, n_savings;
    uint32_t savings_first, savings_last; /* in flight */
    struct tsri_speed save_speed, compute_speed;
    uint64_t step_ns;             /* when the last step was built */
    struct tsri_pending *pending; /* [pending_max] */
    uint32_t *pending_buckets;
    uint32_t pending_max, pending_free;
    struct tsr_key *keys; /* of one request */
    uint32_t keys_max;
    uint64_t *lacking; /* [chunks]: spaces without them */
    struct tsr_connector_stats stats;
};
/* Grows an array of n_max elements of `size` so that it holds n. */
TSR_MUST int tsri_grow(void *array, uint32_t *n_max, uint32_t n, size_t size);

/* hits.c */
TSR_MUST int tsri_hits_find(struct tsr_scheduler *s, struct tsri_req *r, uint32_t n_computed,
                            uint32_t *load_async);
/* The engine takes n_external of them. */
TSR_MUST int tsri_hits_take(struct tsr_scheduler *s, struct tsri_req *r, uint32_t n_external);
/* Puts the loads that are ready into the step. */
void tsri_hits_send(struct tsr_scheduler *s);
void tsri_hits_report(struct tsr_scheduler *s, const struct tsri_load_report *report);
/* Lets go what was found and not sent. */
void tsri_hits_drop(struct tsr_scheduler *s, struct tsri_req *r);

/* saves.c */
TSR_MUST int tsri_saves_init(struct tsr_scheduler *s);
void tsri_saves_fini(struct tsr_scheduler *s);
/* Orders saves of whole chunks up to `boundary` that are not stored. first_kept: tokens before it may
 * have lost their blocks in windowed groups. */
void tsri_saves_plan(struct tsr_scheduler *s, struct tsri_req *r, uint32_t boundary,
                     uint32_t first_kept);
/* Orders the save of the states after `at` tokens, if a step has ended there and they are wanted;
 * boundary: as above. */
void tsri_saves_states(struct tsr_scheduler *s, struct tsri_req *r, uint32_t at, uint32_t boundary);
void tsri_saves_report(struct tsr_scheduler *s, const struct tsri_save_report *report);
/* As tsr_scheduler_keys. */
TSR_MUST int tsri_saves_keys(struct tsr_scheduler *s, const struct tsri_req *r, uint32_t first,
                             uint32_t n, struct tsr_key *keys);

/* resets.c */
/* Is a reset still under way? Then nothing is looked up or saved. */
bool tsri_resets_on(struct tsr_scheduler *s);
/* A save or load has ended; *old says whether it was of before a reset. */
void tsri_resets_ended(struct tsr_scheduler *s, bool *old);

/* waits.c */
struct tsri_coming {
    uint64_t saving;   /* the last save that brings some of it; 0: none */
    uint32_t end;      /* tokens that are there then */
    uint64_t n_before; /* tokens that are saved until then */
};
/* A save has ended well. */
void tsri_waits_saved(struct tsr_scheduler *s, uint32_t n_tokens, uint64_t busy_ns);
/* So many tokens of a request are computed, and their output processed, when the next step begins.
 * Returns how many are new since the step before, if that is known. */
uint32_t tsri_waits_computed(struct tsr_scheduler *s, struct tsri_req *r, uint32_t n_computed);
/* Of all requests in the step. */
void tsri_waits_step(struct tsr_scheduler *s, uint32_t n_computed);
/* Is it still waiting? Costs next to nothing: asked in every step. */
bool tsri_waits_on(struct tsr_scheduler *s, struct tsri_req *r);
/* Less was found than the request has: does it wait for more? */
bool tsri_waits_begin(struct tsr_scheduler *s, struct tsri_req *r, uint32_t n_computed);

/* scheduler.c */
/* Frees a request that has ended when nothing of it is under way. */
void tsri_scheduler_settle(struct tsr_scheduler *s, struct tsri_req *r);

/* ---- kvmem.c: the engine's device, its memory of one group, and staging memory beside it ---- */

/* The device of that name (NULL: cpu) and number: the cache's where it is the same, so that batches
 * share what it keeps and deliveries can go behind the engine's events. Else a new one, which is
 * *own, to be closed. */
TSR_MUST int tsri_engine_device_open(struct tsri_device **device, struct tsri_device **own,
                                     struct tsr_cache *cache, const char *name,
                                     const struct tsr_device_desc *desc);
/* Does the cache deliver to memory of that device? It needs option device for all but the cpu, and
 * the cpu copies nothing for another device. */
bool tsri_engine_device_delivers(const struct tsri_device *device, const struct tsr_cache *cache);

/* Page-locked memory that all groups of a lane copy through, one after the other. Taken when it is
 * first used: most lanes never need it. */
struct tsri_staging {
    struct tsri_device *device;
    uint8_t *data;
    size_t bytes;
};
void tsri_staging_fini(struct tsri_staging *s);

struct tsri_kvmem {
    struct tsri_device *device;
    struct tsr_device_stream *stream;
    struct tsr_kv_layout layout; /* with own arrays of layer pointers */
    void **layer_pointers;
    struct tsri_staging *shared;
    uint32_t runs_max, run_tokens;
    /* from tsri_kvmem_take on: */
    uint8_t *staging;
    struct tsri_batch *batch;
    struct tsr_kv_cells *cells; /* [runs_max] */
    struct tsr_kv_run *runs;
    void **planes;
    size_t row_bytes; /* of a token in one layer, all planes */
};
struct tsri_kvmem_desc {
    struct tsri_device *device;
    struct tsr_device_stream *stream;
    const struct tsr_kv_layout *layout;
    const struct tsri_shape *shape; /* that its rows must have */
    uint32_t run_tokens;            /* of a run at most */
    struct tsri_staging *staging;   /* outlives it */
};
TSR_MUST int tsri_kvmem_init(struct tsri_kvmem *m, const struct tsri_kvmem_desc *desc);
void tsri_kvmem_fini(struct tsri_kvmem *m);
/* Takes staging memory and what the device keeps for a batch, unless they are there; every move
 * does. */
TSR_MUST int tsri_kvmem_take(struct tsri_kvmem *m);
/* How many layers of so many tokens fit into staging memory; at least 1 of run_tokens does. */
uint32_t tsri_kvmem_layers(const struct tsri_kvmem *m, uint32_t n_tokens);
/* Runs between staging memory and the engine, each packed [layer][plane][token] and beginning at
 * its `at`; layers [layer_first, + n_layers) are there. Returns when the bytes have moved. */
struct tsri_kvmem_run {
    size_t at;
    uint32_t n_tokens;
    const int64_t *slots;
};
TSR_MUST int tsri_kvmem_move(struct tsri_kvmem *m, bool to_engine,
                             const struct tsri_kvmem_run *runs, uint32_t n, uint32_t layer_first,
                             uint32_t n_layers);

/* Slots of tokens [first, first + n) in blocks that begin with that of token `base`; -1 where there
 * is no block. Returns how many are not -1. */
uint32_t tsri_block_slots(int64_t *out, const int32_t *blocks, uint32_t block_tokens, uint32_t base,
                          uint32_t first, uint32_t n);

/* ---- worker.c, jobs.c, fetching.c, keeping.c: the worker half ---- */

/* Rows of a load in one group, as many as go together: those that go straight from the pages of the
 * cache, or of its server, into the engine's memory, and those that go through staging memory. */
struct tsri_lane_rows {
    struct tsr_delivery_range *ranges; /* [rows_max]; NULL: not open yet */
    uint32_t *rows;                    /* [rows_max]: of each range */
    uint32_t *staged;                  /* [rows_max]: the others */
    int64_t *slots;                    /* [rows_max x chunk_tokens]: of the ranges */
    uint32_t n_ranges, n_staged;
};

/* One thread, and what it copies through. */
struct tsri_lane {
    struct tsr_worker *worker;
    struct tsri_work *work;
    struct tsr_device_stream *stream;
    struct tsri_kvmem mem[TSR_GROUPS_MAX];
    struct tsri_staging staging;
    int64_t *slots;                             /* of TSRI_LANE_RUNS chunks */
    uint32_t rows_max;                          /* of a load that go together */
    struct tsri_lane_rows rows[TSR_GROUPS_MAX]; /* opened by the first load */
    struct tsr_delivery *deliveries[TSR_GROUPS_MAX];
    bool has_asked[TSR_GROUPS_MAX]; /* for a delivery; NULL then: there is none */
};
#define TSRI_LANE_RUNS 64u
/* Tokens and chunks that are one delivery: enough for all but the longest prompts, so that the bus
 * has no pause. Tables for chunks of 256 tokens take 6 MB of host and of device memory for each
 * group and lane, those for smaller ones at most twice that. */
#define TSRI_LANE_TOKENS (128u << 10)
#define TSRI_LANE_ROWS 2048u
enum { TSRI_LANE_LOAD, TSRI_LANE_LOAD_ASYNC, TSRI_LANE_SAVE, TSRI_LANES };

enum tsri_job_state {
    TSRI_JOB_QUEUED,
    TSRI_JOB_RUNNING,
    TSRI_JOB_READ, /* a save that needs the engine's memory no more */
    TSRI_JOB_DONE
};

struct tsri_kv_job {
    struct tsri_job job; /* first */
    struct tsr_worker *worker;
    struct tsri_kv_job *next; /* of the worker's list */
    bool is_save;
    struct tsri_load_order load;
    struct tsri_save_order save;
    void *memory; /* of the order */
    uint64_t started_ns;
    struct tsr_device_event *written; /* what the engine had queued before the step is over */
    /* under worker->lock: */
    enum tsri_job_state state;
    bool given_up; /* must not touch the engine's memory any more */
    bool touching; /* is doing so right now */
    bool in_step;  /* the step waits for it */
    bool queued;   /* a sure load that the engine's stream waits for: as good as loaded */
    bool told_request, reported;
    uint32_t n_blocks_told;
    int result;
    uint32_t n_tokens;  /* saved */
    uint64_t busy_ns;   /* of a save */
    uint32_t failed_at; /* first token that is not in place; UINT32_MAX: none */
    uint32_t layers_ready[TSR_GROUPS_MAX];
};

struct tsr_worker {
    struct tsri_terms terms;
    uint32_t rank, flags;
    struct tsri_device *device, *own_device; /* own: NULL where it is the cache's */
    struct tsr_device_stream *engine_stream;
    /* The engine's thread's: `marks` goes on behind what the engine had queued when the step began,
     * and each job gets an event of it. */
    struct tsr_device_event *written;
    struct tsr_device_stream *marks;
    bool has_written; /* for the step that begins, .. */
    uint64_t marked;  /* .. which is this one */
    bool registered;
    uint32_t n_step_loads, n_step_saves; /* of this step that it waits for; the engine's thread's */
    uint64_t staging_bytes;
    struct tsri_lane lanes[TSRI_LANES];
    struct tsri_bytes meta;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock: */
    struct tsri_kv_job *jobs, **jobs_tail;
    const struct tsri_kv_job *awaited; /* that the engine's thread waits for */
    uint64_t *ended;                   /* requests whose `sent` is still to be told */
    uint32_t n_ended, ended_max;
    struct tsri_save_report *save_reports;
    struct tsri_load_report *load_reports;
    uint64_t *sent; /* told, and to be reported */
    uint32_t n_save_reports, save_reports_max, n_load_reports, load_reports_max;
    uint32_t n_sent, sent_max;
    bool closing;
    uint64_t saves_off_until_ns; /* the owner does not answer: saves are not tried before */
    struct tsr_connector_stats stats;
};

/* jobs.c: from state to state. All take worker->lock themselves. */
/* Before the engine's memory is touched; false: must not. Then tsri_job_touched. */
bool tsri_job_touch(struct tsri_kv_job *job);
void tsri_job_touched(struct tsri_kv_job *job);
void tsri_job_layers(struct tsri_kv_job *job, uint32_t group, uint32_t n_layers);
/* All of a sure load is queued, and the engine's stream waits for it. */
void tsri_job_queued(struct tsri_kv_job *job);
/* A load lacks its tokens from this one on. */
void tsri_job_fail_at(struct tsri_kv_job *job, uint32_t token, int err);
void tsri_job_read(struct tsri_kv_job *job);
void tsri_job_done(struct tsri_kv_job *job);
/* Under lock, in the engine's thread: waits until something has changed about the job; false: it was
 * too late. */
bool tsri_job_await(struct tsri_kv_job *job, uint64_t until_ns);
/* Under lock: no more touching, and waits while it does. Only memory is copied at that time, never a
 * disk or a server waited for, so that is as short as copying a layer, or, where the device queues,
 * as all that was queued takes on the bus. */
void tsri_job_give_up(struct tsr_worker *w, struct tsri_kv_job *job, int err);

/* fetching.c, keeping.c: run in a lane. */
void tsri_fetching_run(struct tsri_job *job);
void tsri_keeping_run(struct tsri_job *job);

/* lanes.c */
TSR_MUST int tsri_lane_init(struct tsri_lane *lane, struct tsr_worker *w, const char *name,
                            const struct tsr_kv_layout *layouts);
void tsri_lane_fini(struct tsri_lane *lane);
/* In the lane's thread. The group's delivery, opened by the first call; NULL: there is none, and
 * everything goes through staging memory. */
struct tsr_delivery *tsri_lane_delivery(struct tsri_lane *lane, uint32_t group);
/* Takes the memory for the rows of a load. */
TSR_MUST int tsri_lane_open_rows(struct tsri_lane *lane, uint32_t group);

#endif
