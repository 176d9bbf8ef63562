/* engine_sim.h - an engine without a model: a scheduler as engines have them (chunked prefill,
 * asynchronous steps, drafts that are accepted or not, preemption, aborts, sliding windows, several
 * ranks) and workers whose forward writes, for each token, KV that is a function of all tokens up
 * to it. It drives both halves of a connector and looks at every byte that comes back.
 *
 * What a request generates follows from its prompt, so that the engine can be wrong about nothing
 * but KV: every loaded token is compared with what it must be, and so is everything in the cache at
 * the end. Blocks are overwritten when they are freed, drafts that were not accepted leave KV of
 * other tokens behind, and a forward over KV that a failed load left behind writes rubbish: a save
 * that comes too early, too late or out of another's block is found.
 *
 * A run is determined by its seed as far as the connector is: saves and loads run in threads, and
 * `lockstep` waits for them after every step. */
#ifndef TSRI_ENGINE_SIM_H
#define TSRI_ENGINE_SIM_H

#include "support/connector_kit.h"

struct sim_options {
    uint64_t seed;
    struct ck_options kit;
    uint32_t n_requests; /* alive at the same time */
    uint32_t depth;      /* steps that are scheduled and not processed: 1 is synchronous */
    uint32_t drafts_max; /* of a decode step */
    uint32_t n_families; /* prompts share beginnings */
    uint32_t prompt_max, output_max;
    uint32_t step_tokens, running_max;
    uint32_t abort_per_1000, preempt_per_1000, evict_per_1000;
    uint32_t lose_per_1000; /* loads whose entries are gone when they begin */
    bool lagging;           /* a step's KV is written when the next one has begun, as on a device */
    /* Steps are marked (tsr_worker_mark_queue), and those without a load of their own are queued
     * before loads and saves start. */
    bool late_start;
    bool lockstep;
    void (*opened)(void); /* called when both halves are open; NULL: nothing is */
    bool no_races; /* writes of an engine on a device wait for each other: thread sanitizer */
};
struct sim_result {
    char wrong[160]; /* "": nothing */
    uint64_t n_steps, n_preempted, n_aborted, n_finished, n_rejected;
    uint64_t n_loaded, n_load_failures, n_recomputed, n_held, n_cached_checked;
    struct tsr_connector_stats scheduler, worker;
};
void engine_run(const struct sim_options *o, struct sim_result *out);

/* ---- between engine_sim.c (the scheduler) and engine_worker.c (the workers) ---- */

#define SIM_BLOCKS_MAX 40u /* of a request in one group */
#define SIM_DEPTH_MAX 4u

enum sim_state { SIM_WAITING, SIM_LOADING, SIM_RUNNING, SIM_ENDED };

struct sim_request {
    uint64_t id;
    uint32_t *truth; /* prompt, and what will be generated */
    uint64_t *seen;  /* ck_seen of each */
    uint32_t n_prompt, n_output, n_truth;
    enum sim_state state;
    uint32_t n_known, n_computed, n_in_flight, n_placeholders;
    uint32_t life; /* rows of an earlier one count no more */
    int32_t blocks[CK_GROUPS_MAX][SIM_BLOCKS_MAX];
    uint32_t n_blocks; /* the same in every group; -1 where a window has passed */
    uint32_t n_blocks_told, n_tokens_told;
    uint32_t load_end, bad_at; /* of the load under way */
    uint32_t n_named[2];       /* ranks that have named it as sent, received */
    bool held;
    uint32_t w_life, w_computed; /* the workers': tokens whose KV is right */
};

struct sim_row {
    uint32_t request, life;
    uint32_t first, n, n_drafts;
    bool samples;
    uint32_t load_end; /* not 0: tokens [0, load_end) are loaded within the step */
    int32_t blocks[CK_GROUPS_MAX][SIM_BLOCKS_MAX];
    uint32_t n_accepted; /* result: drafts */
    bool rubbish;        /* result: computed over KV that is not there */
};

struct sim_step {
    struct sim_row *rows;
    uint32_t n_rows, rows_max;
    void *meta;
    size_t meta_bytes;
    struct sim_block {
        uint32_t group;
        int32_t block;
    } * freed; /* since the last step */
    uint32_t n_freed, freed_max;
    bool loads;
    /* results: */
    struct tsr_bad_block *bad;
    uint32_t n_bad, bad_max;
    uint64_t *sent, *received; /* of all ranks, one after the other */
    uint32_t n_sent, n_received, ids_max;
    void *reports[CK_RANKS_MAX];
    size_t report_bytes[CK_RANKS_MAX];
};

struct sim {
    const struct sim_options *o;
    struct sim_result *out;
    struct ck k;
    uint64_t rng;
    struct sim_request *requests;
    uint32_t n_alive;
    int32_t *free_blocks[CK_GROUPS_MAX];
    uint32_t n_free[CK_GROUPS_MAX];
    struct sim_step steps[SIM_DEPTH_MAX + 1];
    uint64_t n_scheduled, n_executed, n_processed;
    struct sim_step *next; /* being scheduled: takes the blocks that are freed */
    struct sim_write {
        uint32_t rank, group;
        int64_t slot;
        uint64_t seen;
    } * writes; /* on their way, with `lagging` */
    uint32_t n_writes, writes_max;
};
uint32_t sim_random(struct sim *s, uint32_t below);
void sim_wrong(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Grows an array of `size` to hold n. */
void *sim_grow(void *array, uint32_t *max, uint32_t n, size_t size);
/* The workers do a step: all of it between its bytes and their reports. */
void sim_execute(struct sim *s, struct sim_step *step);
/* What was computed arrives in memory. */
void sim_arrive(struct sim *s);

#endif
