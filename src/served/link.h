/* link.h - a client's connection to a server, used by many threads, and what it may read there.
 *
 * Threads: any; who waits for an answer reads for all.
 * Errors:  nothing waits longer than its deadline. TSR_EAGAIN: the connection is lost, or a new one
 *          has begun since.
 */
#ifndef TSRI_LINK_H
#define TSRI_LINK_H

#include "served/shared_pool.h"
#include "wire/wire.h"

/* What a session lets its client read, and where the client writes what the server is to copy. It
 * lives until it is released, also when the connection is gone and another session has begun. No
 * two sessions have the same staging area: the server may still copy from it when the session is
 * over. */
struct tsri_mapping {
    struct tsri_shared_pool *pool;
    struct tsri_region control;
    struct tsri_shared_pool *staging; /* NULL: nothing is stored */
    struct tsri_wire_welcome welcome;
    _Atomic uint32_t refs;
};
/* Asked after a copy: false when the leases under which it was made were gone by then, and the copy
 * is worth nothing. */
bool tsri_mapping_holds(const struct tsri_mapping *m);
/* Accepts NULL. */
void tsri_mapping_release(struct tsri_mapping *m);

struct tsri_link_desc {
    const char *path;       /* as for tsri_socket_path */
    const char *token;      /* "": none */
    uint32_t owner;         /* uid of a server that is trusted besides our own and root's */
    uint64_t staging_bytes; /* 0: stores nothing */
    uint32_t patience_ms;   /* a server that is silent for so long is given up */
    struct tsri_shared_pools *pools; /* (optional) whose links share one mapping of its memory */
};
struct tsri_link;
/* Does not connect yet. */
TSR_MUST int tsri_link_open(struct tsri_link **out, const struct tsri_link_desc *desc);
/* Nobody may be using it. Accepts NULL. */
void tsri_link_close(struct tsri_link *l);
/* The number of the session, connecting as far as that goes without waiting; 0 with a message when
 * there is none now. What the server has numbered (spaces, puts) belongs to one session. */
uint64_t tsri_link_session(struct tsri_link *l);
/* Which life of the server the session is with: a number that another one will not have; 0 when the
 * session is over. *n_lost: entries that this life had lost when the session began. */
uint64_t tsri_link_life(struct tsri_link *l, uint64_t session, uint64_t *n_lost);
/* Waits for a session until then (tsri_now_ns); TSR_EPERM, TSR_EVERSION and their like when the
 * server does not want us. */
TSR_MUST int tsri_link_await(struct tsri_link *l, uint64_t until_ns);
/* NULL when the session is over. */
struct tsri_mapping *tsri_link_mapping(struct tsri_link *l, uint64_t session);
/* Would a request be sent? TSR_EAGAIN: the session is over, or the server owes answers that are late.
 * Ask before writing to the staging area: the server copies from there before it gives them. */
TSR_MUST int tsri_link_check(struct tsri_link *l, uint64_t session);

/* A request on its way. */
struct tsri_answer {
    struct tsri_reply reply; /* after a wait that succeeded; borrowed until _end */
};
/* Sends. TSR_EAGAIN: the session is over, or the server owes answers that are late. */
TSR_MUST int tsri_link_start(struct tsri_link *l, uint64_t session, struct tsri_request *r,
                             uint64_t until_ns, struct tsri_answer **out);
/* The status of the reply, TSR_ETIME, or TSR_EAGAIN when the connection was lost. After TSR_ETIME the
 * answer is late. It can be kept: once tsri_link_check returns 0, it has come. */
TSR_MUST int tsri_link_wait(struct tsri_answer *answer, uint64_t until_ns);
/* Gives it back, answered or not. Accepts NULL. */
void tsri_link_end(struct tsri_answer *answer);
/* Ends the session, if it is not over: the server lets go of everything that belonged to it. */
void tsri_link_drop(struct tsri_link *l, uint64_t session, const char *why);
/* Tells the server to let go of something, without a reply, also while answers are late. When that
 * cannot be sent the session ends, and with it everything that belonged to it. */
void tsri_link_tell(struct tsri_link *l, uint64_t session, struct tsri_request *r);

#endif
