/* life.h - whole lives of a store, made from a seed. A life is a plan of steps: stores, lookups,
 * loads, flushes and clears by several processes and two tenants, and in between everything that
 * happens to a store: its processes are stopped and killed, its file system fills up and gets
 * space back, its options change, its Redis forgets. The driver (drive.c) takes the steps and keeps
 * a plain model of what must be true (model.c); workers (worker.c) are processes of their own that
 * call the library and compare every byte.
 *
 *   texts.c   the texts: their tokens, and their KV as a function of tenant, space and tokens
 *   plan.c    a seed becomes a plan; nothing in it depends on what happens
 *   model.c   what was stored, what a flush has answered for, what may be gone by rule
 *   world.c   processes, the file system and the Redis server of a life
 *   worker.c  a process that uses the library, driven over a socket
 *   drive.c   takes the steps of a plan and holds every answer against the model */
#ifndef TSRI_LIFE_H
#define TSRI_LIFE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <tessera/admin.h>
#include <tessera/async.h>
#include <tessera/server.h>
#include <tessera/tessera.h>

#define LIFE_TENANTS 2u
#define LIFE_SPACES 2u
#define LIFE_SEGMENTS 56u /* texts that are one entry; every third behind a context */
#define LIFE_CHAINS 12u   /* texts that are prefixes, in families of three that begin alike */
#define LIFE_TEXTS (LIFE_SEGMENTS + LIFE_CHAINS)
#define LIFE_BLOCKS 8u /* of a chain */
#define LIFE_BLOCK_TOKENS 16u
#define LIFE_TOKENS_MAX 192u /* of a prompt */
#define LIFE_WORKERS 4u
#define LIFE_SLOTS 12u /* matches that the driver keeps */
#define LIFE_STEPS_MAX 240u

/* ---- texts ---- */

/* A prompt and the part of it that is stored. */
struct life_text {
    uint32_t tokens[LIFE_TOKENS_MAX]; /* context, then text */
    uint32_t n_tokens, n_context;
    uint32_t base; /* what its positions are ahead of those in the prompt */
    bool chain;
    uint32_t n_entries; /* 1, or blocks of the chain */
};

/* How large the KV is: small entries for many steps, large ones to reach the budget of a disk. */
struct life_shape {
    uint32_t n_layers, k_dim; /* F32, one head */
    uint32_t segment_tokens;  /* 0: they differ */
};
extern const struct life_shape life_shapes[2];

void life_text_make(struct life_text *t, const struct life_shape *shape, uint32_t text);
size_t life_token_bytes(const struct life_shape *shape);
/* Bytes of all entries of a text. */
size_t life_text_bytes(const struct life_shape *shape, uint32_t text);
/* KV of tokens [first, first + n) of the prompt, packed. */
void life_kv(const struct life_shape *shape, uint32_t tenant, uint32_t space,
             const struct life_text *t, uint32_t first, uint32_t n, void *packed);
/* The entry that holds block b of a text, or the text itself: chains of a family share some. */
uint32_t life_entry(uint32_t text, uint32_t b);
#define LIFE_ENTRIES (LIFE_SEGMENTS + LIFE_CHAINS * LIFE_BLOCKS)

/* ---- options of one opening ---- */

enum life_tier { LIFE_DISK = 1, LIFE_DISK2 = 2, LIFE_REDIS = 4 };
struct life_options {
    uint32_t host_kb, page_kb, entries_max;
    uint32_t segment_mb, io_threads;
    uint8_t tiers;   /* enum life_tier */
    uint8_t policy;  /* of host memory */
    uint8_t disk_io; /* auto or threads */
    uint8_t write;   /* back or through */
    bool windows;    /* any_offset */
};

/* ---- plan ---- */

/* What a life may have in it; without some of it a defect is narrowed down, and what a machine does
 * not have is left out. The rest of the plan stays as it is. */
/* clang-format off */
#define LIFE_PARTS(X) \
    X(INDEX, "index")   /* openings with an index that is too small */ \
    X(FILL, "fill")     /* full file systems */ \
    X(REDIS, "redis") \
    X(DISK2, "disk2") \
    X(EVICT, "evict")   /* more entries than the disk has room for */ \
    X(STALE, "stale")   /* loads of matches from before the owner's restart */ \
    X(CROSS, "cross")   /* loads of another tenant's matches */ \
    X(ANSWER, "answer") /* a flush answers for stores from before the owner's restart */ \
    X(KILL, "kill")     /* processes end only when they are told to */
/* clang-format on */
enum life_part_bit {
#define LIFE_PART_BIT(name, word) LIFE_BIT_##name,
    LIFE_PARTS(LIFE_PART_BIT)
#undef LIFE_PART_BIT
};
enum life_part {
#define LIFE_PART(name, word) LIFE_WITH_##name = 1 << LIFE_BIT_##name,
    LIFE_PARTS(LIFE_PART)
#undef LIFE_PART
        LIFE_WITH_ALL = 0xFFFF
};

enum life_owner { LIFE_PROCESS, LIFE_EMBEDDED, LIFE_DAEMON };

/* clang-format off */
#define LIFE_STEPS(X) \
    X(STORE) X(LOOKUP) X(LOAD) X(CHECK) X(FLUSH) X(CLEAR) X(CLEAR_ALL) X(EVICT) X(BURST) X(BURST_ALL) \
    X(RESTART) X(STOP) X(START) X(KILL_DURING) X(CLIENT_RESTART) X(FILL) X(UNFILL) X(REDIS_RESTART)
/* clang-format on */
enum life_step_kind {
#define LIFE_STEP_ENUM(name) LIFE_##name,
    LIFE_STEPS(LIFE_STEP_ENUM)
#undef LIFE_STEP_ENUM
        LIFE_STEP_KINDS
};

struct life_step {
    enum life_step_kind kind;
    uint8_t worker, tenant, space, slot;
    uint8_t form; /* which of the forms of a call, worker.c */
    bool kill;    /* SIGKILL, not SIGTERM or a close */
    bool owner;   /* KILL_DURING: the owner dies, not the worker */
    bool crossed; /* LOAD: by the other tenant */
    bool waits;   /* for the server to be there, if it runs */
    bool unseen;  /* nothing is looked at behind it: looking also connects and wakes up */
    uint16_t text, n_texts;
    enum life_step_kind during; /* KILL_DURING: what is under way */
    uint32_t delay_us;
    uint32_t spare_kb;           /* FILL: what is left */
    uint64_t seed;               /* BURST */
    struct life_options options; /* RESTART, START */
};

struct life_plan {
    uint64_t seed;
    enum life_owner owner;
    uint32_t parts;              /* enum life_part */
    uint8_t tiers;               /* that the life has at all */
    bool evicts;                 /* large entries on a small disk */
    bool fills;                  /* its file system becomes full */
    struct life_options options; /* of the first opening */
    struct life_step steps[LIFE_STEPS_MAX];
    uint32_t n_steps;
};
void life_plan_make(struct life_plan *p, uint64_t seed, uint32_t parts);
const char *life_step_name(enum life_step_kind kind);
void life_step_say(const struct life_step *s, char *text, size_t bytes);
static inline const struct life_shape *life_plan_shape(const struct life_plan *p)
{
    return &life_shapes[p->evicts];
}

/* ---- what driver and workers say ---- */

enum life_op {
    LIFE_OP_STORE,
    LIFE_OP_LOOKUP,
    LIFE_OP_LOAD,
    LIFE_OP_CHECK,
    LIFE_OP_CONTAINS,
    LIFE_OP_FLUSH,
    LIFE_OP_CLEAR,
    LIFE_OP_EVICT,
    LIFE_OP_BURST,
    LIFE_OP_RELEASE,
    LIFE_OP_QUIT
};
struct life_request {
    enum life_op op;
    uint32_t tenant, space, text, n_texts, form;
    uint32_t want, wait_ms; /* CHECK: tokens that must be there, and how long to try */
    bool discover;
    uint64_t seed, request_id;
    uint32_t n_matches;
    struct tsr_match matches[LIFE_BLOCKS];
};
struct life_reply {
    int32_t rc;
    uint32_t n_tokens; /* CHECK, LOAD: loaded, and right */
    uint32_t n_matches;
    char wrong[200]; /* not empty: a promise is broken */
    char message[160];
    struct tsr_match matches[LIFE_BLOCKS];
    /* Leading entries of each text: CONTAINS, that are there; STORE and BURST, that were stored. */
    uint8_t entries[LIFE_TEXTS];
    uint8_t fresh[LIFE_TEXTS]; /* and were not there before */
};
int life_worker(int argc, char **argv);

/* ---- model ---- */

/* One entry of one tenant in one space. */
struct life_fact {
    bool tried;     /* some store was begun, ever: it may be found */
    uint8_t wanted; /* tiers that wanted it when it was last stored; 0: not stored */
    uint8_t kept;   /* tiers that a flush has answered for */
    uint32_t by;    /* life of the worker that stored it last, whose flush answers for it */
    uint32_t redis; /* life of the Redis server it was stored to */
    uint32_t owner; /* and of the owner */
    uint64_t clock; /* bytes used before it was stored */
};
struct life_model {
    struct life_fact facts[LIFE_TENANTS][LIFE_SPACES][LIFE_ENTRIES];
    uint64_t clock; /* bytes of everything that was used */
};
void life_model_try(struct life_model *m, uint32_t tenant, uint32_t space, uint32_t text);
/* What a store or a burst has done: by which life of a worker, to which tiers and Redis. fresh: it
 * was not there before. */
struct life_deed {
    uint32_t tenant, space, text, n_entries;
    uint32_t by, redis, owner;
    uint8_t tiers;
    bool fresh;
};
void life_model_stored(struct life_model *m, const struct life_plan *p, const struct life_deed *d);
/* Everything that this life of a worker stored is where it was wanted; owner: life of the one that
 * answers. */
void life_model_flushed(struct life_model *m, const struct life_plan *p, uint32_t by,
                        uint32_t redis, uint32_t owner);
/* A flush has told this life of a worker that not all was written: of its stores in a space, what is
 * not there any more (entries: leading ones of each text) was lost and told, which is told once. */
void life_model_told(struct life_model *m, uint32_t tenant, uint32_t space, uint32_t by,
                     const uint8_t entries[LIFE_TEXTS]);
/* text LIFE_TEXTS: everything. What shares a chain goes too. */
void life_model_cleared(struct life_model *m, uint32_t tenant, uint32_t space, uint32_t text);
/* A store where the index is full: what it pushes out of the index is not known. */
void life_model_crowded(struct life_model *m, uint32_t tenant, uint8_t tiers);
void life_model_redis_lost(struct life_model *m);
void life_model_used(struct life_model *m, const struct life_plan *p, uint32_t text);
/* Leading entries of a text that must be there with these tiers. */
uint32_t life_model_must(const struct life_model *m, const struct life_plan *p, uint32_t tenant,
                         uint32_t space, uint32_t text, uint8_t tiers);
/* Leading entries that may be there. */
uint32_t life_model_may(const struct life_model *m, uint32_t tenant, uint32_t space, uint32_t text);

/* ---- world ---- */

struct life_process {
    int pid; /* 0: not running */
    int fd;  /* of a worker */
    uint32_t life;
    uint32_t tenant; /* of a client of tesserad */
    bool may_fail;   /* its exit status may be 1 */
};
struct redis_server;
struct life_world {
    const struct life_plan *plan;
    char dir[256], store[300], socket[300];
    struct life_process workers[LIFE_WORKERS], daemon;
    uint32_t n_workers, n_lives;
    struct redis_server *redis;
    uint32_t redis_life;
    bool full;                   /* the file system is, or has been */
    int ballast;                 /* what fills the file system */
    struct life_options options; /* of the owner that runs, or ran last */
};
/* Whether this machine has what a life may need. */
bool life_has_redis(void);
bool life_has_mounts(void);
/* In a process of its own, which this changes: it has a file system of its own afterwards. */
void life_world_init(struct life_world *w, const struct life_plan *p, const char *dir);
void life_world_fini(struct life_world *w);
/* Who has the store: tesserad, or worker 0. Starting one that cannot open its store is false, with
 * the reason; so is stopping one that does not end well. */
struct life_process *life_owner(struct life_world *w);
bool life_owner_start(struct life_world *w, const struct life_options *o, char why[200]);
bool life_owner_stop(struct life_world *w, bool kill, char why[200]);
bool life_worker_start(struct life_world *w, uint32_t i, char why[200]);
bool life_worker_stop(struct life_world *w, uint32_t i, bool kill, char why[200]);
/* Has ended without being told to; says how. */
bool life_process_died(struct life_process *p, char why[200]);
bool life_say(struct life_process *p, const struct life_request *q);
/* False when it has ended, or does not answer. */
bool life_hear(struct life_process *p, struct life_reply *out);
void life_fill(struct life_world *w, uint32_t spare_kb);
void life_unfill(struct life_world *w);
void life_redis_restart(struct life_world *w);

/* ---- driver ---- */

/* Lives one plan, leaving out steps whose bit is not set in `mask` (NULL: none). Writes what it
 * does to `trace`; false when a promise was broken, which the trace's last line says. */
bool life_drive(const struct life_plan *p, const bool *mask, const char *dir, FILE *trace);

#endif
