/* connector_kit.h - both halves of a connector over a small cache, and an engine's memory in which
 * the KV of a token is a function of everything up to it, the layer, the plane, the group and the
 * rank: a byte that was saved too early, too late or from a block of somebody else is wrong. What
 * must work for a test to mean anything stops the program with a line. */
#ifndef TSRI_CONNECTOR_KIT_H
#define TSRI_CONNECTOR_KIT_H

#include "connector/connector.h"
#include "support/fakegpu.h"

#define CK_LAYERS 2u
#define CK_PLANES 2u
#define CK_ROW_BYTES 16u
#define CK_RANKS_MAX 2u
#define CK_GROUPS_MAX 2u

struct ck_options {
    uint32_t n_ranks, n_groups; /* 0: 1 */
    uint32_t window_tokens;     /* of group 1 */
    uint32_t draft_tokens;      /* of group 0 */
    bool states;                /* group 1 holds states */
    uint32_t chunk_tokens;      /* 0: CK_CHUNK */
    uint32_t n_blocks;          /* of each group; 0: 64 */
    uint32_t boundary, flags, worker_flags;
    uint32_t load_timeout_ms, save_timeout_ms, save_wait_ms, jobs_max;
    const char *salt;          /* of all spaces */
    const char *const *cache;  /* options, "key", "value", .., NULL */
    struct tsr_cache *shared;  /* the scheduler's cache; NULL: an own one */
    struct tsr_cache *workers; /* theirs; NULL: the scheduler's */
    /* The engine's memory is this device's. The workers' cache has it too (option device), or not. */
    const struct fakegpu_control *gpu;
    bool default_stream; /* is the engine's */
};

/* Blocks of 8 tokens, chunks of 16. Owns everything but caches that it was given. */
#define CK_BLOCK 8u
#define CK_CHUNK 16u
struct ck {
    struct ck_options o;
    struct tsr_cache *cache;
    bool own_cache;
    struct tsr_space_desc spaces[CK_RANKS_MAX * CK_GROUPS_MAX];
    struct tsr_group groups[CK_GROUPS_MAX];
    struct tsr_connector_desc desc;
    struct tsr_scheduler *scheduler;
    struct tsr_worker *workers[CK_RANKS_MAX];
    uint8_t *memory[CK_RANKS_MAX][CK_GROUPS_MAX]; /* [layer][plane][slot][row], for the host */
    void *on_device[CK_RANKS_MAX][CK_GROUPS_MAX];
    struct tsri_device *device; /* that it was taken from */
    void *stream;               /* the engine's, of a device; NULL: the default one */
    uint32_t n_slots;
};
void ck_open(struct ck *k, const struct ck_options *o);
void ck_close(struct ck *k);
/* What the engine has queued on its stream has run. */
void ck_sync(struct ck *k);
/* Until all of its host memory is page-locked, if a device wants it to be. */
void ck_wait_locked(const struct tsr_cache *c);

/* The text of most tests, and the engine's blocks 0, 1, 2, ... */
void ck_number(uint32_t tokens[128], int32_t blocks[64]);

/* ---- memory ---- */

/* What a token has seen: go on over one token after the other. */
uint64_t ck_seen(uint64_t before, uint32_t token);
/* The KV of a token into a slot of one rank and group. */
void ck_write(struct ck *k, uint32_t rank, uint32_t group, int64_t slot, uint64_t seen);
bool ck_right(const struct ck *k, uint32_t rank, uint32_t group, int64_t slot, uint64_t seen);
/* Bytes that are nobody's KV. */
void ck_poison(struct ck *k, uint32_t group, int32_t block, uint64_t seed);
static inline int64_t ck_slot(const int32_t *blocks, uint32_t token)
{
    int32_t block = blocks[token / CK_BLOCK];
    return block < 0 ? -1 : (int64_t)block * CK_BLOCK + token % CK_BLOCK;
}
/* The same for tokens [first, end) of all ranks and groups, all having the same blocks. */
void ck_write_all(struct ck *k, const uint32_t *tokens, uint32_t first, uint32_t end,
                  const int32_t *blocks);
bool ck_right_all(const struct ck *k, const uint32_t *tokens, uint32_t first, uint32_t end,
                  const int32_t *blocks);

/* ---- steps ---- */

/* What the workers answered in one step, put together. */
struct ck_answer {
    uint64_t sent[64], received[64]; /* named by all ranks */
    uint32_t n_sent, n_received;
    struct tsr_bad_block bad[256];
    uint32_t n_bad;
};
/* The scheduler's bytes to every worker and theirs back, without a forward. */
void ck_step(struct ck *k, const struct tsr_step_desc *step, struct ck_answer *answer);
/* Steps without requests until nothing is under way. */
void ck_settle(struct ck *k, struct ck_answer *answer);
/* Tells the scheduler half of a request whose blocks (all groups alike) are these. */
void ck_new(struct ck *k, uint64_t id, const uint32_t *tokens, uint32_t n);
int ck_alloc(struct ck *k, uint64_t id, const int32_t *blocks, uint32_t n_blocks,
             uint32_t n_external);
/* Ends it; everything is computed and nothing in flight. */
int ck_finish(struct ck *k, uint64_t id, uint32_t n_tokens, uint32_t n_computed);
/* Computes n whole chunks of these tokens in blocks `first_block` and on, saves and ends it. */
void ck_save_prompt(struct ck *k, uint64_t id, const uint32_t *tokens, uint32_t n,
                    int32_t first_block);
/* How much a lookup finds beyond 0; the request is forgotten again. */
int ck_find(struct ck *k, const uint32_t *tokens, uint32_t n);
struct tsr_connector_stats ck_worker_stats(struct ck *k, uint32_t rank);
struct tsr_connector_stats ck_stats(struct ck *k);

#endif
