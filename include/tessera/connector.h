/* connector.h - for engines that run many requests at once (vLLM, SGLang, your own): the two halves
 * of a connector, and helpers for engines that address KV by slots.
 *
 *   scheduler half   in the engine's scheduler: looks up requests, decides what is loaded and what
 *                    may be saved, never touches KV bytes
 *   worker half      in every worker: copies between the engine's memory and the cache, never
 *                    touches the index; reports what was done and what failed
 *
 * The halves exchange only bytes. In each step the scheduler half makes some
 * (build_connector_meta), which the engine sends to every worker, and each worker makes some
 * (build_connector_worker_meta), which the engine sends back. They carry a version; unknown ones
 * are refused. Both halves get the same struct tsr_connector_desc, and a worker refuses bytes made
 * with another one.
 *
 * The cache: both halves take a cache that the caller has opened (tessera.h). In one process they
 * may share one. With workers in other processes, open the scheduler's with owner: embedded and
 * serve it with tsr_server_open() (server.h), and open the workers' with owner: daemon and the same
 * server_socket; or make all of them clients of one tesserad. A cache that is down is a miss, and a
 * load from it is a failed load: blocks to recompute.
 *
 * One step of the engine:
 *   scheduler   [on_new_request] [get_num_new_matched_tokens] [update_state_after_alloc]
 *               build_connector_meta --> bytes
 *   worker      handle_preemptions(bytes), start_load_kv(bytes),
 *               for each layer: wait_for_layer_load, (attention), save_kv_layer;
 *               wait_for_save, get_finished, get_block_ids_with_load_errors,
 *               build_connector_worker_meta --> bytes
 *   scheduler   update_connector_output(bytes of each worker) [request_finished] [take_events]
 *
 * What is saved when. A token may be saved once its value is known and its KV has been written.
 * The scheduler half sees neither. It relies on the counters that the engine passes with each step,
 * as they are *before* the step:
 *   running    min(n_computed - n_in_flight, n_tokens)       TSR_BOUNDARY_IN_FLIGHT, default
 *              min(n_computed - n_placeholders, n_tokens)    TSR_BOUNDARY_PLACEHOLDERS
 *   finished   the same, and at most max(n_prompt_tokens, n_tokens - 1): the KV of the last
 *              sampled token is not written yet
 *   aborted    n_computed - max(n_placeholders, n_in_flight), and at most n_tokens
 * IN_FLIGHT covers only steps whose output has been processed, so a copy may run at any time in any
 * thread. PLACEHOLDERS is up to one step ahead, and correct only for engines whose workers run
 * steps one after the other and order the device's queue after them, as vLLM does. An engine
 * without asynchronous scheduling passes 0 for both counters. Whole chunks are saved
 * (chunk_tokens), each once: not if another running request is saving it, and not if every space
 * has it.
 *
 * Threads: a half is used by one thread at a time; different halves from any threads. A worker half
 *          has three threads of its own, two that load and one that saves.
 * Blocking: each call says whether it blocks. No call waits for a disk or a network without a
 *          deadline.
 * Memory:  pointers you pass are borrowed until the call returns. The worker's threads read and
 *          write the engine's KV memory from start_load_kv on: blocks of a save in flight until
 *          get_finished has named the request or handle_preemptions has returned.
 * Errors:  as in tessera.h. A failure of the cache is never an error of these calls: a lookup is a
 *          miss, a load reports its blocks, a save is counted as failed.
 * Fork:    as in tessera.h; a worker half must be opened in the process that uses it.
 *
 * Structs that begin with `size` may grow: set size = sizeof the struct; zero always means default.
 */
#ifndef TESSERA_CONNECTOR_H
#define TESSERA_CONNECTOR_H

#include <tessera/admin.h>
#include <tessera/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what both halves share ---------------------------------------------------------------- */

#define TSR_GROUPS_MAX 8u /* KV groups of a hybrid model */
#define TSR_RANKS_MAX 64u /* and ranks x groups is at most 64, too */

enum tsr_boundary { TSR_BOUNDARY_IN_FLIGHT = 0, TSR_BOUNDARY_PLACEHOLDERS = 1 };

enum tsr_connector_flags {
    TSR_CONNECTOR_NO_LOAD = 1,     /* a producer: lookups answer 0 */
    TSR_CONNECTOR_NO_SAVE = 2,     /* a consumer: nothing is saved */
    TSR_CONNECTOR_SAVE_DECODE = 4, /* also what requests generate, not only their prompts */
    TSR_CONNECTOR_LOAD_SYNC = 8,   /* load within a step .. */
    TSR_CONNECTOR_LOAD_ASYNC = 16, /* .. or always between steps. Neither: KV that is all in host
                                    * memory is loaded within the step, anything else between */
    /* For engines that queue a step before they know how the last one went: within a step only what
     * cannot fail and keeps no other request waiting. Both halves share one cache that is not a
     * server's, all of it is verified KV in host memory, and it is little, or the request is the
     * only one. On a device that queues, the step's wait returns when the engine's stream waits. */
    TSR_CONNECTOR_LOAD_SURE = 32,
    TSR_CONNECTOR_NO_WAIT = 64, /* no request waits for saves in flight */
    /* Ranks with the same space hold the same KV (MLA, replicated heads): the first of them saves
     * it, and all load it. Without the flag, equal spaces are refused as a mistake. */
    TSR_CONNECTOR_SHARED_SPACES = 128
};

enum tsr_group_flags {
    /* A block holds no KV of its tokens but the state after the last of them (Mamba, linear
     * attention), and only if a step has ended there. The engine keeps the state of n_computed -
     * n_in_flight tokens until wait_for_save of the step has returned, and gives blocks without a
     * state as -1. States are saved at multiples of chunk_tokens, and a hit ends at one. All such
     * groups have the same block_tokens. Requests with media are not cached. */
    TSR_GROUP_STATE = 1
};

/* Layers that share a block table. */
struct tsr_group {
    size_t size;
    uint32_t block_tokens; /* tokens of one engine block */
    /* Of sliding-window attention; 0: full attention. From a step on, the engine may free blocks
     * without notice if none of their tokens is among the window_tokens that the step's first token
     * sees: itself, which is number n_computed, and those before it. It keeps what the step sees
     * until wait_for_save of the step has returned. Blocks that may be gone are not saved. */
    uint32_t window_tokens;
    /* Layers of a draft model are among them (EAGLE, MTP): how many tokens it looks ahead; 0: none
     * are. Its KV of a token depends on the tokens after it. So a hit ends one block before the end
     * of what was found, and the last draft_tokens - 1 written tokens are not saved yet. */
    uint32_t draft_tokens;
    uint32_t flags; /* enum tsr_group_flags */
};

struct tsr_connector_desc {
    size_t size;
    uint32_t n_ranks;  /* workers: tensor, pipeline and context parallel ranks all together; 0: 1 */
    uint32_t n_groups; /* 0: 1 */
    /* [n_ranks][n_groups]: what each worker holds of each group, with its rank, world, layers,
     * heads and group. The connector sets block_tokens to chunk_tokens. A prompt is a hit as far as
     * every space has it. */
    const struct tsr_space_desc *spaces;
    const struct tsr_group *groups; /* [n_groups] */
    /* Tokens that are saved and found together, a multiple of every group's block_tokens. 0: the
     * option chunk_size of the cache, rounded to such a multiple. */
    uint32_t chunk_tokens;
    uint32_t boundary;        /* enum tsr_boundary */
    uint32_t flags;           /* enum tsr_connector_flags */
    uint32_t load_timeout_ms; /* a load that takes longer has failed; 0: 30000 */
    uint32_t save_timeout_ms; /* the longest wait for saves; 0: 30000 */
    uint32_t jobs_max;        /* saves in flight; more are skipped; 0: 4096 */
    /* A request whose prefix is in a save in flight waits for it if that is faster than computing
     * the same tokens: at most so long, and 200 ms as long as the speeds of saves and of the
     * engine are not known. 0: 2000; TSR_CONNECTOR_NO_WAIT: never. */
    uint32_t save_wait_ms;
};

/* ---- scheduler half ----------------------------------------------------------------------- */

struct tsr_scheduler;

/* The cache must outlive it. Never waits for long: a server that is down is not an error. */
TSR_API TSR_MUST int tsr_scheduler_open(struct tsr_scheduler **out, struct tsr_cache *cache,
                                        const struct tsr_connector_desc *desc);
/* Releases leases. Accepts NULL. */
TSR_API void tsr_scheduler_close(struct tsr_scheduler *s);
/* Tokens per chunk, as chosen. */
TSR_API uint32_t tsr_scheduler_chunk_tokens(const struct tsr_scheduler *s);

enum tsr_request_flags {
    TSR_REQUEST_NO_LOAD = 1, /* do not look this request up .. */
    TSR_REQUEST_NO_SAVE = 2  /* .. or do not save it */
};

struct tsr_request_desc {
    size_t size;
    uint64_t id; /* chosen by the engine; not 0, unique among live requests */
    const uint32_t *tokens;
    uint32_t n_tokens;        /* known now; usually the prompt */
    uint32_t n_prompt_tokens; /* 0: n_tokens */
    /* Adapter, cache salt, media: everything that changes KV and is not in the tokens. */
    const struct tsr_extra *extra;
    uint32_t n_extra;
    uint32_t flags; /* enum tsr_request_flags */
};
/* Copies tokens and extras. An id that is live already starts over. Does not block. */
TSR_API TSR_MUST int tsr_scheduler_on_new_request(struct tsr_scheduler *s,
                                                  const struct tsr_request_desc *request);
/* Token values that became known outside of a step (a streaming prompt, or just before a resumed
 * request is looked up): tokens[0 .. n) are number `first` and on; those known already are
 * neither compared nor changed. Does not block. */
TSR_API TSR_MUST int tsr_scheduler_append_tokens(struct tsr_scheduler *s, uint64_t id,
                                                 uint32_t first, const uint32_t *tokens,
                                                 uint32_t n);

/* How many tokens beyond n_computed (a multiple of a block; what the engine's own prefix cache has)
 * the cache can load. A load within a step leaves at least one token to compute. *load_async: 1 if
 * the load runs between steps, and get_finished will name the request; it may then cover all known
 * tokens, and the engine computes the last one itself. You may ask again, also with more tokens
 * after a preemption. What was found stays leased until the load has ended, you ask again, or the
 * request ends. Waits for a server at most option server_deadline, and for nothing else.
 * TSR_EAGAIN: ask again in the next step; a save in flight has more of it (save_wait_ms). An unknown
 * id is a miss. */
TSR_API TSR_MUST int tsr_scheduler_get_num_new_matched_tokens(struct tsr_scheduler *s, uint64_t id,
                                                              uint32_t n_computed,
                                                              uint32_t *load_async);

/* Block tables: the blocks of group 0, then those of group 1, ..; n_blocks[g] of each. A block
 * number below 0 is no block (it has left a sliding window): nothing is loaded there, and nothing
 * that needs it is saved. vLLM's null block 0 of windowed groups must be given as -1. */
struct tsr_blocks {
    const int32_t *blocks;
    const uint32_t *n_blocks; /* [n_groups] */
};
/* The engine has blocks for the request (all of them are given, from token 0 on) and will load
 * n_external of the tokens that were found, perhaps not all of them, or 0. The load itself is part
 * of the next build_connector_meta. Does not block. Need not be called for a request of which nothing
 * was found, if its next row has TSR_ROW_RESET_BLOCKS. */
TSR_API TSR_MUST int tsr_scheduler_update_state_after_alloc(struct tsr_scheduler *s, uint64_t id,
                                                            const struct tsr_blocks *blocks,
                                                            uint32_t n_external);

enum tsr_row_flags {
    TSR_ROW_RESET_BLOCKS = 1 /* the blocks given replace those known: new, or resumed */
};
/* One request of a step. Counters as the engine has them before the step is added to them. Only
 * requests that are scheduled in the step need a row; those without one cannot be saved then. */
struct tsr_step_row {
    uint64_t id;
    uint32_t n_computed;     /* tokens scheduled so far, finished or not */
    uint32_t n_placeholders; /* sampled tokens not known yet */
    uint32_t n_in_flight;    /* tokens of steps whose output has not been processed */
    uint32_t n_tokens;       /* whose values are known */
    uint32_t n_new_tokens;   /* of them, the last ones are given here */
    uint32_t flags;          /* enum tsr_row_flags */
};
struct tsr_step_desc {
    size_t size;
    const struct tsr_step_row *rows;
    uint32_t n_rows;
    uint32_t reserved;
    const uint32_t *new_tokens; /* of the first row, then of the second, .. */
    /* [n_rows][n_groups]: how many blocks are added to (or, with RESET_BLOCKS, are now) the
     * tables; NULL: none anywhere. The blocks themselves come in the same order. */
    const uint32_t *n_new_blocks;
    const int32_t *new_blocks;
};
/* Makes the bytes for the workers of this step; they belong to the half until the next call. Call
 * it once, in order, for every step that workers run, including those without tokens. Unknown
 * requests are skipped. If something can be saved, it asks the cache what it has (with a server: at
 * most server_deadline); otherwise it does not wait. */
TSR_API TSR_MUST int tsr_scheduler_build_connector_meta(struct tsr_scheduler *s,
                                                        const struct tsr_step_desc *step,
                                                        const void **meta, size_t *meta_bytes);

/* What one worker's build_connector_worker_meta gave; call it for each worker, before
 * request_finished of the same step. Malformed bytes are refused and change nothing. Does not
 * block. */
TSR_API TSR_MUST int tsr_scheduler_update_connector_output(struct tsr_scheduler *s,
                                                           const void *meta, size_t meta_bytes);

/* These requests have lost their blocks and will be recomputed later, perhaps with tokens that they
 * have generated. Call it before build_connector_meta of the step in which it happened: the workers
 * wait for saves that read those blocks (tsr_worker_handle_preemptions); and before they are looked
 * up again, because what was found or is to be loaded is forgotten with the blocks. What is
 * saved stays saved. Does not block. */
TSR_API TSR_MUST int tsr_scheduler_handle_preemptions(struct tsr_scheduler *s, const uint64_t *ids,
                                                      uint32_t n);

struct tsr_finish_desc {
    size_t size;
    uint64_t id;
    uint32_t n_computed, n_placeholders, n_in_flight; /* as in struct tsr_step_row, now */
    uint32_t n_tokens;
    const uint32_t *new_tokens; /* the last n_new_tokens of them */
    uint32_t n_new_tokens;
    uint32_t aborted; /* 1: it was ended from outside */
    /* All blocks of all groups, if some were added in no step; NULL: as known. */
    const struct tsr_blocks *blocks;
    /* Out, may be NULL: tokens of the request from its first on that the cache has, or that are
     * being saved and have not failed. 0 if nothing of it is saved, or it is not known. */
    uint32_t *n_saved;
};
/* The request has ended. 1: its blocks must not be freed until get_finished of every worker has
 * named it as sent, because saves read them; 0: they may be freed at once. The id may be used again
 * after that. An id that is not known gives 0, and so does one whose asynchronous load has not
 * ended: its blocks may be freed when get_finished has named it as received. Does not block. */
TSR_API TSR_MUST int tsr_scheduler_request_finished(struct tsr_scheduler *s,
                                                    const struct tsr_finish_desc *finish);

/* 1 while workers need further steps, also steps without tokens:
 * loads and saves in flight, ends that were not reported yet. Does not block. */
TSR_API int tsr_scheduler_has_pending_work(const struct tsr_scheduler *s);
/* What entered and left the cache in the spaces of this connector, like tsr_cache_events(). */
TSR_API TSR_MUST int tsr_scheduler_take_events(struct tsr_scheduler *s, struct tsr_event *out,
                                               uint32_t max);
/* Keys of a request's whole chunks [first, first + n), to tell which request an event is about. The
 * keys of a chunk in all spaces are next to each other: keys[n][n_ranks x n_groups]. Returns the
 * number of chunks: fewer if fewer tokens are known, 0 for an unknown request. Does not block. */
TSR_API TSR_MUST int tsr_scheduler_keys(struct tsr_scheduler *s, uint64_t id, uint32_t first,
                                        uint32_t n, struct tsr_key *keys);
/* Discards lookups and clears the connector's spaces in the cache: KV of before the call is not found
 * again, such as that of other weights. Until loads and saves that are under way have ended, nothing
 * is found or saved. Requests that live at the time are neither loaded nor saved any more. If the
 * weights have changed, give requests that come later a salt of their own (struct tsr_extra), because
 * the spaces are still named after the old ones. Returns how many entries it dropped. */
TSR_API TSR_MUST int tsr_scheduler_reset_cache(struct tsr_scheduler *s);

/* ---- worker half -------------------------------------------------------------------------- */

struct tsr_worker;

enum tsr_worker_flags {
    TSR_WORKER_SAVE_IN_STEP = 1 /* wait_for_save waits until saves have read the engine's memory */
};
struct tsr_worker_desc {
    size_t size;
    uint32_t rank;      /* row of tsr_connector_desc.spaces */
    uint32_t flags;     /* enum tsr_worker_flags */
    const char *device; /* where the engine's KV is: "cpu" (NULL), "cuda", .. */
    uint32_t device_number;
    uint32_t n_threads; /* that the device may use to copy; 0: none but the worker's own */
    void *stream;       /* the engine's queue (a cudaStream_t); NULL: the device's default one */
    uint64_t staging_bytes; /* host memory for KV on its way, at most three times; 0: 64 MiB; at
                             * least what a chunk takes. Taken when first used */
};
/* `desc` is the scheduler's. If the cache has the same device (options device, device_number), KV goes
 * straight between its pages and the engine's blocks, else through staging memory
 * (tsr_connector_stats.bytes_staged). */
TSR_API TSR_MUST int tsr_worker_open(struct tsr_worker **out, struct tsr_cache *cache,
                                     const struct tsr_connector_desc *desc,
                                     const struct tsr_worker_desc *worker);
/* Finishes saves that have started, within save_timeout_ms, and gives up the rest. Accepts NULL.
 * The engine's memory is not touched after the call. */
TSR_API void tsr_worker_close(struct tsr_worker *w);

/* Tokens per chunk, as tsr_scheduler_chunk_tokens() of the same description. */
TSR_API uint32_t tsr_worker_chunk_tokens(const struct tsr_worker *w);

/* Where the engine's KV is, one layout per group, by strides (device.h); checked against the
 * spaces and copied, with the arrays of layer pointers. Planes in the space's order: K and V, or
 * one plane for MLA and for an engine's opaque pages. n_slots = blocks x block_tokens; a slot is
 * block x block_tokens + place in the block. Once, before the first step; starts the threads.
 *
 * A layout whose element is OPAQUE moves whole blocks without looking into them, whatever order
 * they have inside (dim = bytes of a block / block_tokens, token_stride = dim): the fastest way for
 * exact reuse. Then the order must be part of the space, such as in its `tokenizer` or `rope`. */
TSR_API TSR_MUST int tsr_worker_register_kv_caches(struct tsr_worker *w,
                                                   const struct tsr_kv_layout *layouts, uint32_t n);

/* Before anything else in a step: waits until saves that read blocks of requests preempted in this
 * step have done so, or gives them up, after save_timeout_ms at most. A save that was given up
 * never becomes visible. Usually there is nothing to wait for. */
TSR_API TSR_MUST int tsr_worker_handle_preemptions(struct tsr_worker *w, const void *meta,
                                                   size_t meta_bytes);
/* (optional, after handle_preemptions) Loads and saves of this step wait for what the engine's stream
 * has queued now, instead of at start_load_kv: for engines that call that when they have queued the
 * step. Whatever clears or copies the step's blocks must have been queued. Does not block. */
TSR_API TSR_MUST int tsr_worker_mark_queue(struct tsr_worker *w, const void *meta,
                                           size_t meta_bytes);
/* Starts the step's loads and saves in the background and returns. Call it in steps without tokens
 * too. TSR_EVERSION, TSR_EINVAL, TSR_ESPACE: the bytes are not for this worker; nothing started. */
TSR_API TSR_MUST int tsr_worker_start_load_kv(struct tsr_worker *w, const void *meta,
                                              size_t meta_bytes);
/* Waits until this layer of the step's loads (those that are not asynchronous) is in place, or has
 * failed, or load_timeout_ms have passed since they began; with TSR_CONNECTOR_LOAD_SURE, in place
 * for whatever is queued on the engine's stream from then on. Failures are not errors of this
 * call; they are blocks with load errors. */
TSR_API TSR_MUST int tsr_worker_wait_for_layer_load(struct tsr_worker *w, uint32_t group,
                                                    uint32_t layer);
/* A layer's KV has been written. Nothing is saved from here: what a step saves was written in
 * earlier steps (see "What is saved when"). For symmetry, and checked. Does not block. */
TSR_API TSR_MUST int tsr_worker_save_kv_layer(struct tsr_worker *w, uint32_t group, uint32_t layer);
/* With SAVE_IN_STEP: waits until the step's saves have read the engine's memory, at most
 * save_timeout_ms, or they are given up. Else, and that is the default, does not block: the blocks
 * are held by request_finished and handle_preemptions. */
TSR_API TSR_MUST int tsr_worker_wait_for_save(struct tsr_worker *w);

struct tsr_finished {
    size_t size;
    uint64_t *sent;     /* out: requests whose blocks may now be freed (request_finished was 1) */
    uint64_t *received; /* out: requests whose asynchronous load has ended, also in failure */
    uint32_t sent_max, received_max;
    uint32_t n_sent, n_received; /* out */
};
/* Each request is named once by each worker; what did not fit comes with the next call. Does not
 * block. */
TSR_API TSR_MUST int tsr_worker_get_finished(struct tsr_worker *w, struct tsr_finished *out);

struct tsr_bad_block {
    uint32_t group;
    int32_t block;
};
/* Blocks whose load failed since the last call: their tokens, and those after them, must be
 * recomputed. Named in the step in which get_finished names their request, or before. Waits for the
 * step's loads that are not asynchronous, as wait_for_layer_load does. Returns how many of at most
 * `max`. */
TSR_API TSR_MUST int tsr_worker_get_block_ids_with_load_errors(struct tsr_worker *w,
                                                               struct tsr_bad_block *out,
                                                               uint32_t max);
/* What this worker has done since the last call, for the scheduler half; the bytes belong to the
 * half until the next call. *meta_bytes 0: there is nothing to send. Does not block. */
TSR_API TSR_MUST int tsr_worker_build_connector_worker_meta(struct tsr_worker *w, const void **meta,
                                                            size_t *meta_bytes);
/* Waits until no save is queued or running; TSR_ETIME after timeout_ms. For tests and
 * an orderly shutdown. */
TSR_API TSR_MUST int tsr_worker_drain(struct tsr_worker *w, int timeout_ms);

/* ---- statistics of both halves ------------------------------------------------------------- */

struct tsr_connector_stats {
    size_t size;
    uint64_t requests, steps;
    uint64_t tokens_asked, tokens_hit; /* of requests, each counted when its load is settled */
    uint64_t loads, loads_failed, tokens_loaded, bytes_loaded;
    uint64_t saves, saves_failed, saves_given_up; /* jobs */
    uint64_t saves_skipped;                       /* not begun: too many in flight */
    uint64_t tokens_saved, bytes_saved;
    uint64_t chunks_gathered; /* copied out of the engine's memory .. */
    uint64_t chunks_wasted;   /* .. of them, chunks that the cache already had */
    uint64_t chunks_known;    /* not gathered: cached already, or being saved for another request */
    uint64_t jobs_in_flight;
    uint64_t bytes_staged; /* of bytes_loaded: those that went through staging memory */
    uint64_t waits;        /* for saves in flight that had more of a request than the cache */
};
/* A half fills what it knows. Any thread. */
TSR_API TSR_MUST int tsr_scheduler_stats(const struct tsr_scheduler *s,
                                         struct tsr_connector_stats *out);
TSR_API TSR_MUST int tsr_worker_stats(struct tsr_worker *w, struct tsr_connector_stats *out);

/* ---- KV by slots: for engines with a pool of tokens and a radix tree ---------------------- */

/* One worker's pool: a space, and where the pool's slots are. There are no halves here: every rank
 * calls it for itself. Calls from any thread, one load at a time.
 *
 * KV goes straight between the slots and the cache's pages if the cache has the pool's device
 * (options device and device_number; for "cpu" it needs none), otherwise through staging memory.
 * Loads and stores go behind what `stream` has queued and are done when the call returns. */
struct tsr_kvpool;

struct tsr_kvpool_desc {
    size_t size;
    const struct tsr_space_desc *space; /* block_tokens 0: option chunk_size */
    const struct tsr_kv_layout *layout; /* by slots; copied */
    const char *device;                 /* "cpu" (NULL), "cuda", .. */
    uint32_t device_number;
    uint32_t n_threads;
    void *stream;           /* the engine's queue; NULL: the device's default one */
    uint64_t staging_bytes; /* host memory for each direction, taken when first used; 0: 64 MiB */
    uint32_t writes_max;    /* waiting for the writer; 0: 256 */
};
TSR_API TSR_MUST int tsr_kvpool_open(struct tsr_kvpool **out, struct tsr_cache *cache,
                                     const struct tsr_kvpool_desc *desc);
/* Waits for the writer. Accepts NULL. */
TSR_API void tsr_kvpool_close(struct tsr_kvpool *p);
TSR_API uint32_t tsr_kvpool_chunk_size(const struct tsr_kvpool *p);

/* Tokens, and the slots of tokens[offset ..]: n_tokens - offset of them, -1 for a token that is not
 * to be touched (prefix padding: what the engine has already of the chunk in which it ends). */
struct tsr_slots_desc {
    size_t size;
    const uint32_t *tokens;
    uint32_t n_tokens;
    uint32_t offset; /* a multiple of the chunk size */
    const int64_t *slots;
    const struct tsr_extra *extra;
    uint32_t n_extra;
    uint32_t reserved;
};
/* Loads what is known of tokens[offset ..], contiguously, and returns how many tokens that is,
 * padding included: a multiple of the chunk size, 0 for a miss, also when the cache fails. Waits
 * for lower tiers at most option tier_load_ms. */
TSR_API TSR_MUST int tsr_kvpool_load_kv(struct tsr_kvpool *p, const struct tsr_slots_desc *x);
/* Stores the whole chunks of tokens[offset ..] that are not known yet and returns how many tokens
 * are new. Slots of chunks that are stored must not be -1. */
TSR_API TSR_MUST int tsr_kvpool_store_kv(struct tsr_kvpool *p, const struct tsr_slots_desc *x);

/* How much of the tokens is known, from the first on: a multiple of the chunk size. Loads nothing.
 * With a lease id (not 0) it stays in the cache until tsr_kvpool_release, or the next match under
 * the id. */
TSR_API TSR_MUST int tsr_kvpool_match_prefix(struct tsr_kvpool *p, const struct tsr_slots_desc *x,
                                             uint64_t lease);
TSR_API int tsr_kvpool_release(struct tsr_kvpool *p, uint64_t lease);
/* What a load of tokens of which the engine has n_cached must ask for: *offset is the chunk
 * boundary at or before n_cached, and the first *n_pad of its slots are -1. */
TSR_API void tsr_kvpool_align(const struct tsr_kvpool *p, uint32_t n_cached, uint32_t *offset,
                              uint32_t *n_pad);

/* store_kv in the writer's thread. `node` names what the slots belong to, such as a tree node: it
 * has one more lock until the write is done, and the engine must not free or reuse the slots while
 * it has any. Everything pointed to is copied. TSR_EAGAIN: the writer has too much to do, nothing
 * was locked. Does not block. */
TSR_API TSR_MUST int tsr_kvpool_store_kv_start(struct tsr_kvpool *p, const struct tsr_slots_desc *x,
                                               uint64_t node);
/* How many locks a node has; 0: free to go. */
TSR_API uint32_t tsr_kvpool_locks(struct tsr_kvpool *p, uint64_t node);
/* Takes the nodes whose writes have ended since the last call, one for each write, so that the
 * engine can undo its own reference: at most max, returns how many. */
TSR_API TSR_MUST int tsr_kvpool_take_written(struct tsr_kvpool *p, uint64_t *nodes, uint32_t max);
/* Waits until the writer is idle; TSR_ETIME after timeout_ms (-1: no limit). */
TSR_API TSR_MUST int tsr_kvpool_drain(struct tsr_kvpool *p, int timeout_ms);
/* Waits for the writer, then clears the space in the cache. Returns how many entries went. */
TSR_API TSR_MUST int tsr_kvpool_reset(struct tsr_kvpool *p);

#ifdef __cplusplus
}
#endif
#endif
