/* redis.h - the parts of the redis tier, for its own files and their tests.
 *
 *   resp.c         one connection: commands out, replies in, without waiting and without copies
 *   redis_names.c  names of keys, their slots, and addresses as text
 *   redis_run.c    jobs: runs of commands over several connections, redirected where need be
 *   redis_nodes.c  which servers there are: one, one with replicas, or a cluster; and who is down
 *   redis_get.c, redis_put.c   get and put
 *   redis.c        the table of operations, open and close
 *
 * An entry is a record under ROOT:SPACE:{KEY} and its parts under ROOT:SPACE:{KEY}:NONCE:N, where
 * ROOT is PREFIX:TENANT: nothing of another tenant has a name that this tier asks for. The nonce is
 * the writer's own, the record names it and is written last: a reader sees all of one writer or
 * nothing. What stands in braces makes a cluster keep an entry on one server.
 *
 * hiredis connects and parses the nested replies of control commands. Values do not pass through
 * it: it would copy each of them three times, and it knows no deadlines.
 *
 * Threads: a lane belongs to one caller between take and give; nodes and slots may be read by any.
 * Memory:  a request and everything it points to stays in place until it has been answered.
 * Errors:  enum tsr_err. No message and no log line holds a password.
 */
#ifndef TSRI_REDIS_H
#define TSRI_REDIS_H

#include "config/config.h"
#include "tier/parcel.h"

#include <hiredis/hiredis.h>

#define TSRI_REDIS_PREFIX_MAX 64u
#define TSRI_REDIS_ROOT_MAX (TSRI_REDIS_PREFIX_MAX + 1 + TSRI_TENANT_MAX) /* PREFIX:TENANT */
#define TSRI_REDIS_NAME_BYTES 272u /* that, space, key, nonce, part and what joins them */
#define TSRI_REDIS_ADDRESS_BYTES 128u
#define TSRI_REDIS_NODES_MAX 128u
#define TSRI_REDIS_SLOTS 16384u
#define TSRI_REDIS_SHARE_MAX 8u /* connections of a lane to one server */
#define TSRI_REDIS_REQS 64u     /* requests a lane has under way */
#define TSRI_REDIS_JOBS 8u      /* entries a lane has under way */

/* ---- resp.c ---- */

struct tsri_login {
    char *user, *password; /* NULL: none */
    uint32_t database;
};

/* A command and its reply. The owner fills the first part and keeps it in place until `done`. */
struct tsri_resp_req {
    char head[4096], tail[64]; /* the command, up to the body and behind it */
    uint32_t head_bytes, tail_bytes;
    struct tsri_stream body;
    uint32_t n_ignored; /* replies that come before its own */
    /* (optional) a value of that many bytes comes: where to? NULL leaves it out. */
    struct tsri_stream (*sink)(struct tsri_resp_req *req, uint64_t bytes);
    void (*done)(struct tsri_resp_req *req);
    void *arg;
    uint32_t number, slot, n_redirects;
    /* the reply */
    char type;      /* '+', '-', ':', '$', or 0: the connection broke */
    int64_t length; /* of '$', -1: nothing there; the number of ':' */
    char text[160]; /* of '+' and '-' */
    /* the connection's */
    struct tsri_resp_req *next;
};
/* Commands, argument by argument: begin, then as many args as announced, the body among them. */
void tsri_req_begin(struct tsri_resp_req *req, uint32_t n_args, const char *command);
void tsri_req_arg(struct tsri_resp_req *req, const char *text);
void tsri_req_number(struct tsri_resp_req *req, uint64_t number);
void tsri_req_body(struct tsri_resp_req *req, struct tsri_stream body);
/* Whether it is an error reply that begins with the word. */
bool tsri_req_says(const struct tsri_resp_req *req, const char *word);

struct tsri_resp;
/* Connects and logs in. `why` says what failed, in a few words without secrets. */
TSR_MUST int tsri_resp_open(struct tsri_resp **out, const char *address,
                            const struct tsri_login *login, uint64_t deadline_ns, char *why,
                            size_t why_bytes);
/* Accepts NULL. Nothing may be under way. */
void tsri_resp_close(struct tsri_resp *c);
/* One control command; the caller frees the reply. NULL: broken or too late. */
redisReply *tsri_resp_ask(struct tsri_resp *c, uint64_t deadline_ns, int n,
                          const char *const *args);
/* Queues a request. */
void tsri_resp_send(struct tsri_resp *c, struct tsri_resp_req *req);
uint32_t tsri_resp_pending(const struct tsri_resp *c);
/* Idle, and the server has hung up or sent what nobody asked for. */
bool tsri_resp_is_stale(struct tsri_resp *c);
/* For poll: what it waits for; 0 when nothing is under way. */
short tsri_resp_events(const struct tsri_resp *c);
int tsri_resp_fd(const struct tsri_resp *c);
/* Sends (POLLOUT) and receives (POLLIN, or that something is wrong) what can be moved now, and
 * calls `done` of what was answered. Returns the bytes moved, or TSR_EIO when the connection is of
 * no more use. */
TSR_MUST int64_t tsri_resp_move(struct tsri_resp *c, short events);
/* Ends what is under way with type 0, in order. The connection can only be closed then. */
void tsri_resp_break(struct tsri_resp *c);
/* When bytes last moved, or requests began to wait. */
uint64_t tsri_resp_active_ns(const struct tsri_resp *c);

/* ---- redis_names.c ---- */

/* part UINT32_MAX: the record. */
void tsri_redis_name(char name[TSRI_REDIS_NAME_BYTES], const char *root, const uint8_t space[16],
                     const struct tsr_key *key, uint64_t nonce, uint32_t part);
#define TSRI_REDIS_RECORD UINT32_MAX
/* The space and key of a name that is a record's of that root; false for other names. */
bool tsri_redis_is_record(const char *name, size_t bytes, const char *root, uint8_t space[16],
                          struct tsr_key *key);
/* The slot that a cluster keeps a name in. */
uint32_t tsri_redis_slot(const char *name, size_t bytes);
/* "host:port" of "host", "host:port", "[v6]:port", "redis://host:port"; "unix:/path" stays. The
 * i-th of several separated by commas; false behind the last. TSR_ECONFIG is told by *err. */
bool tsri_redis_address(const char *list, uint32_t i, char out[TSRI_REDIS_ADDRESS_BYTES], int *err);
/* An address apart; port 0: a path. */
TSR_MUST int tsri_redis_address_split(const char *address, char host[TSRI_REDIS_ADDRESS_BYTES],
                                      int *port);
/* "MOVED 3999 10.0.0.1:6381" and ASK: the slot and the address. False for anything else. An empty
 * host means the one that answered. */
bool tsri_redis_redirect(const char *text, const char *from, uint32_t *slot,
                         char address[TSRI_REDIS_ADDRESS_BYTES]);

/* ---- the tier ---- */

struct tsri_redis_node {
    char address[TSRI_REDIS_ADDRESS_BYTES];
    struct tsri_breaker reach;
    bool in_use; /* serves a slot */
};

/* What one caller works with. */
struct tsri_redis_lane {
    bool taken;
    struct tsri_resp *conns[TSRI_REDIS_NODES_MAX][TSRI_REDIS_SHARE_MAX];
    struct tsri_resp_req reqs[TSRI_REDIS_REQS];
    struct tsri_resp_req *free;
    struct tsri_region records[TSRI_REDIS_JOBS], olds[TSRI_REDIS_JOBS];
};

/* What env.arg may point to: overrides the configuration; tests use it. Zero: as configured. */
struct tsri_redis_setup {
    const char *address, *prefix, *user, *password, *password_file;
    uint32_t connections, timeout_ms, ttl_s, absent_ms, database;
    uint64_t part_bytes, bytes_per_s;
};

struct tsri_redis {
    struct tsr_tier base; /* first */
    struct tsri_fork_guard guard;
    char *root, *addresses;
    struct tsri_login login;
    uint32_t share, timeout_ms, ttl_s;
    uint64_t part_bytes;
    bool read_only;
    struct tsri_absent absent;
    struct tsri_throttle throttle;
    struct tsri_breaker writes; /* open: the server takes no writes now */

    pthread_mutex_t lock; /* lanes, and adding nodes */
    pthread_cond_t freed;
    struct tsri_redis_lane *lanes;
    uint32_t n_lanes;

    struct tsri_redis_node *nodes; /* an address once added stays */
    _Atomic uint32_t n_nodes;
    _Atomic uint16_t slots[TSRI_REDIS_SLOTS]; /* index of a node */
    _Atomic bool cluster;

    pthread_t upkeep;
    bool has_upkeep, closing; /* closing: under upkeep_lock */
    pthread_mutex_t upkeep_lock;
    pthread_cond_t upkeep_more;
    _Atomic bool survey_wanted;

    _Atomic uint64_t nonce;
    _Atomic uint64_t entries, bytes; /* put and not dropped by us, or seen by scan */
    _Atomic uint64_t read_bytes, written_bytes, errors, corrupt;
};

/* Whether it is worth trying at all: 0, TSR_EFORK, or TSR_EIO while the one server there is, is
 * down. */
TSR_MUST int tsri_redis_usable(struct tsri_redis *r);
/* Waits for a lane; NULL after the deadline. */
struct tsri_redis_lane *tsri_redis_lane_take(struct tsri_redis *r, uint64_t deadline_ns);
void tsri_redis_lane_give(struct tsri_redis *r, struct tsri_redis_lane *lane);

/* ---- redis_run.c ---- */

/* One thing to be done: stages, one after the other, each a run of requests that may be under way
 * together. */
struct tsri_redis_run;
struct tsri_redis_job {
    struct tsri_redis_run *run;
    uint32_t stage, next, n; /* requests of this stage: made, and in all */
    uint32_t n_flying;
    int err; /* enum tsr_err; no more requests are made then */
    uint64_t deadline_ns;
    bool active;
};
struct tsri_redis_job_ops {
    size_t job_bytes; /* of the struct that begins with struct tsri_redis_job */
    uint32_t window;  /* requests under way at once, at most TSRI_REDIS_REQS */
    /* Begins with thing i of the call: sets stage and n, or err. */
    void (*start)(struct tsri_redis_job *job, size_t i);
    /* Fills request number req->number of the stage; false: nothing to do for this one. */
    bool (*make)(struct tsri_redis_job *job, struct tsri_resp_req *req);
    /* It was answered, or broke (type 0). */
    void (*answered)(struct tsri_redis_job *job, struct tsri_resp_req *req);
    /* Everything of the stage was answered: sets the next stage and its n and returns true, or
     * false at the end. Not called after an error. */
    bool (*advance)(struct tsri_redis_job *job);
    /* Nothing of it is under way any more. */
    void (*finish)(struct tsri_redis_job *job);
};
struct tsri_redis_run {
    struct tsri_redis *r;
    struct tsri_redis_lane *lane;
    const struct tsri_redis_job_ops *ops;
    void *arg;
    uint32_t n_flying, n_sent;
    uint64_t deadline_ns; /* of the whole; 0: none */
    bool one_connection;  /* to each server: small replies come sooner together */
    struct tsri_redis_job *jobs[TSRI_REDIS_JOBS];
};
/* Carries out things 0 .. n - 1, some at once. jobs: TSRI_REDIS_JOBS of job_bytes each. */
void tsri_redis_run(struct tsri_redis_run *run, void *jobs, size_t n);
/* Which of the run's jobs it is: 0 .. TSRI_REDIS_JOBS - 1. */
uint32_t tsri_redis_job_number(const struct tsri_redis_job *job);
/* What an error reply or a broken connection means: enum tsr_err. */
int tsri_redis_error(struct tsri_redis *r, const struct tsri_resp_req *req);

/* ---- redis_nodes.c ---- */

TSR_MUST int tsri_redis_nodes_init(struct tsri_redis *r);
void tsri_redis_nodes_fini(struct tsri_redis *r);
/* The node of an address, added if need be; -1 when there are too many. */
int tsri_redis_node(struct tsri_redis *r, const char *address);
void tsri_redis_set_slot(struct tsri_redis *r, uint32_t slot, uint32_t node);
/* Finds out which servers there are and who has what. Returns 0 when one answered. */
TSR_MUST int tsri_redis_survey(struct tsri_redis *r);
/* Soon, in the background. */
void tsri_redis_want_survey(struct tsri_redis *r);
/* A CLUSTER SLOTS reply; how many slots it covers, or -1 when it is none. */
int tsri_redis_take_slots(struct tsri_redis *r, const redisReply *reply, const char *from);
TSR_MUST int tsri_redis_upkeep_start(struct tsri_redis *r);
void tsri_redis_upkeep_stop(struct tsri_redis *r);

/* ---- redis_get.c, redis_put.c ---- */

int tsri_redis_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n);
int tsri_redis_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n);
int tsri_redis_drop(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n);
int tsri_redis_contains(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n,
                        uint8_t *found);
int tsri_redis_scan(struct tsr_tier *tier, tsr_tier_scan_fn fn, void *arg);

#endif
