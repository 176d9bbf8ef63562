/* daemon.h - the server of a cache: one event loop that reads requests, answers at once what needs
 * no copying and no waiting, and hands the rest to workers.
 *
 * A *session* is one connection. It belongs to the loop's thread; a worker sees of it only the call
 * it was given, the client, the spaces and the staging area, and there is at most one worker at a
 * time for each session. What a session holds goes when its connection ends or its process dies,
 * whichever comes first.
 *
 * A *tenant* is who shares a cache: a uid, or a token. Each has a cache, and with it a pool, of its
 * own.
 *
 * Threads: tesserad runs the loop in a thread as an engine does. Lock order: nothing is held while
 *          a cache is called; server->lock guards the list of finished calls alone.
 * Memory:  what clients send and do not fetch is counted against server_memory; the buffers of a
 *          session that is idle are freed.
 * Errors:  a client that breaks a rule is answered or cut off; nobody else notices.
 */
#ifndef TSRI_DAEMON_H
#define TSRI_DAEMON_H

#include "cache/cache.h"
#include "cache/events.h"
#include "cache/source.h"
#include "wire/wire.h"

#include <tessera/server.h>

#include <sys/types.h>

/* ---- endpoint.c: the socket, and who is at its other end ---- */

struct tsri_endpoint {
    int fd, lock_fd; /* lock_fd -1: the socket is somebody else's, as with socket activation */
    char path[TSRI_SOCKET_PATH_BYTES];
};
/* Makes the folder (0700) when it is missing, refuses one that others can write to, takes a lock
 * and listens. `open_to_all`: other users may reach it and are told apart by their credentials. */
TSR_MUST int tsri_endpoint_init(struct tsri_endpoint *e, const char *path, bool open_to_all);
/* One that listens already. */
TSR_MUST int tsri_endpoint_adopt(struct tsri_endpoint *e, int fd);
void tsri_endpoint_fini(struct tsri_endpoint *e);

struct tsri_peer {
    uint32_t uid;
    int32_t pid;
    int pidfd; /* readable when the process is gone; -1: not to be had (another pid namespace) */
};
/* Of a connected socket: the process that connected, whoever holds the socket now. TSR_EAGAIN when
 * there are no descriptors left. */
TSR_MUST int tsri_peer_init(struct tsri_peer *p, int fd);
void tsri_peer_fini(struct tsri_peer *p);

/* ---- tenants ---- */

struct tsri_tenant {
    struct tsr_cache *cache;
    uint32_t uid;
    const char *token; /* NULL: everybody of that uid who shows none */
    const char *name;
};

/* ---- tenants.c: those of tesserad ---- */

#define TSRI_TENANTS_MAX 64u

struct tsri_tenants {
    struct tsri_tenant list[TSRI_TENANTS_MAX];
    uint32_t n;
};
/* A configuration for one more cache; the caller closes it. */
typedef int (*tsri_configure_fn)(struct tsr_config **out, void *arg);
/* Opens a cache for this process's uid, for each of server_allow and each of server_tokens. */
TSR_MUST int tsri_tenants_init(struct tsri_tenants *t, const struct tsri_options *o,
                               tsri_configure_fn configure, void *arg);
void tsri_tenants_fini(struct tsri_tenants *t);
/* All of a small file that only its owner may read, ended by a zero; NULL with a message that names
 * the option. The caller frees it. */
char *tsri_read_private(const char *path, const char *option);
/* "1000,1001"; returns how many. */
TSR_MUST int tsri_uids_parse(const char *text, uint32_t *uids, uint32_t max);

/* ---- slow.c: the slowest calls of the last hour ---- */

#define TSRI_SLOW_MAX 16u
#define TSRI_SLOW_NS 1000000u /* what takes less is not slow */

struct tsri_slow_call {
    uint64_t ns, end_ns;
    const char *tenant; /* outlives the table; NULL: none yet */
    const char *call;   /* its name, static */
};
struct tsri_slow {
    pthread_mutex_t lock;
    struct tsri_slow_call calls[TSRI_SLOW_MAX]; /* slowest first */
    uint32_t n;
};
void tsri_slow_init(struct tsri_slow *s);
void tsri_slow_fini(struct tsri_slow *s);
void tsri_slow_note(struct tsri_slow *s, const struct tsri_slow_call *call);
/* Returns how many, slowest first. */
uint32_t tsri_slow_list(struct tsri_slow *s, uint64_t now_ns,
                        struct tsri_slow_call out[TSRI_SLOW_MAX]);

/* ---- roster.c: sessions by number, for events ---- */

struct tsri_session;
/* What an event is about; the first two belong to no session, and are events by themselves. */
enum tsri_watch { TSRI_WATCH_LISTEN, TSRI_WATCH_WAKE, TSRI_WATCH_SOCKET, TSRI_WATCH_PROCESS };
struct tsri_roster_row {
    struct tsri_session *session; /* NULL: free */
    uint32_t generation, next_free;
};
struct tsri_roster {
    struct tsri_roster_row *list;
    uint32_t max, n_used, first_free;
};
TSR_MUST int tsri_roster_init(struct tsri_roster *p, uint32_t max);
void tsri_roster_fini(struct tsri_roster *p);
/* False when all are taken. */
TSR_MUST bool tsri_roster_take(struct tsri_roster *p, struct tsri_session *x, uint32_t *row);
/* From here on its events mean nothing. */
void tsri_roster_give(struct tsri_roster *p, uint32_t row);
/* The number that epoll is given, and what it is about. */
uint64_t tsri_roster_event(const struct tsri_roster *p, uint32_t row, enum tsri_watch kind);
enum tsri_watch tsri_event_watch(uint64_t event);
/* NULL: it is gone. */
struct tsri_session *tsri_roster_at(const struct tsri_roster *p, uint64_t event);

/* ---- allowance.c: memory that clients may make the server hold ---- */

enum tsri_side {
    TSRI_SIDE_IN,  /* requests, and what is kept for them */
    TSRI_SIDE_OUT, /* replies */
    TSRI_SIDES
};
#define TSRI_TENANT_NONE UINT32_MAX /* has not said who it is: its floor is all it gets */

struct tsri_allowance {
    pthread_mutex_t lock;
    uint64_t floor;        /* of each side of a session */
    uint64_t tenant_floor; /* of all sessions of a tenant, beyond theirs */
    uint64_t stock, stock_used;
    uint64_t *tenants; /* bytes that each holds beyond the floors of its sessions */
    _Atomic uint64_t used;
};
TSR_MUST int tsri_allowance_init(struct tsri_allowance *a, uint64_t memory, uint32_t n_tenants,
                                 uint32_t n_sessions);
void tsri_allowance_fini(struct tsri_allowance *a);
/* *side: what that side of a session holds; only these two change it. From any thread. */
TSR_MUST bool tsri_allowance_take(struct tsri_allowance *a, uint64_t *side, uint32_t tenant,
                                  uint64_t bytes);
void tsri_allowance_give(struct tsri_allowance *a, uint64_t *side, uint32_t tenant, uint64_t bytes);
/* Memory that is counted; NULL when there is none, or not for this one. */
void *tsri_session_alloc(struct tsri_session *x, enum tsri_side side, size_t bytes);
void *tsri_session_grow(struct tsri_session *x, enum tsri_side side, void *p, size_t old_bytes,
                        size_t bytes);
void tsri_session_free(struct tsri_session *x, enum tsri_side side, void *p, size_t bytes);

/* ---- the server ---- */

#define TSRI_SESSION_SPACES_MAX 256u
#define TSRI_SESSION_PUTS_MAX 64u
#define TSRI_INLINE_WORK ((uint64_t)512 << 10) /* bytes of a request that the loop answers */
#define TSRI_INLINE_STEPS 4096u                /* and chunks, keys or ranges in it: 0.3 us each */
#define TSRI_TURN_NS 2000000u                  /* of one session, then it is another's turn */
#define TSRI_CALLS_MAX 64u                     /* calls of one session that wait for a worker */
#define TSRI_OUT_HIGH \
    ((size_t)256 << 10) /* a session that leaves more unread is not listened to \
                         */
#define TSRI_REPLY_MAX ((size_t)16 << 20)
#define TSRI_MATCHES_MAX (1u << 17) /* of one lookup, over all its spaces */
#define TSRI_READ_BYTES ((size_t)256 << 10)
#define TSRI_STALL_NS 10000000000u /* half a request, or replies nobody takes, for so long */
#define TSRI_FRAME_STALLS 8u       /* a request has come whole after so many times that */
#define TSRI_DRAIN_NS 1000000000u

/* A request that may take its time. */
struct tsri_call {
    struct tsri_job job; /* first */
    struct tsri_session *session;
    struct tsri_wire_head head;
    uint8_t *body;
    uint64_t start_ns;
    struct tsri_source *lends; /* RETRIEVE: pinned and leased already */
    bool leasing;              /* takes leases when it runs */
    void *memory;              /* what the reply points to while it is made */
    uint8_t *reply;            /* the frame; NULL when there was no memory for it */
    size_t reply_bytes;
    struct tsri_call *next;
};

/* Bytes on their way in or out: data[at, end), of `room`. */
struct tsri_pending_bytes {
    uint8_t *data;
    size_t at, end, room;
    uint64_t since_ns; /* last progress */
    uint64_t begin_ns; /* since when there is something */
};

enum tsri_session_state {
    TSRI_SESSION_NEW,  /* has not said hello */
    TSRI_SESSION_OPEN, /* has */
    TSRI_SESSION_ENDED /* waits for its worker and the end of the batch of events, then goes */
};

/* A session's place in a list of its share; next is NULL: in none. */
struct tsri_spot {
    struct tsri_spot *prev, *next;
    struct tsri_session *session;
};

struct tsri_session {
    struct tsr_server *server;
    uint32_t row; /* in the roster; also of its word in the control page */
    int fd;
    struct tsri_peer peer;
    enum tsri_session_state state;
    atomic_bool ended; /* the same for its worker: no one waits for its answers any more */
    uint64_t open_ns;
    const struct tsri_tenant *tenant;
    struct tsr_client *client;
    struct tsri_region staging;
    _Atomic(struct tsr_space *) spaces[TSRI_SESSION_SPACES_MAX];
    _Atomic uint64_t bare[TSRI_SESSION_SPACES_MAX / 64]; /* bits: known from a tier alone */
    struct tsr_space *closed[TSRI_SESSION_SPACES_MAX];   /* when nothing uses them any more */
    uint32_t n_closed;
    uint64_t put_pages[TSRI_SESSION_PUTS_MAX];   /* the worker's, like puts */
    struct tsr_put *puts[TSRI_SESSION_PUTS_MAX]; /* the worker's, and the loop's when none runs */

    struct tsri_pending_bytes in, out;
    uint64_t held[TSRI_SIDES]; /* bytes; under allowance.lock */
    uint64_t skip;             /* bytes of a body that is not wanted */
    struct tsri_wire_head skip_head;
    int skip_error;
    int staging_fd;   /* of hello, before it is understood; -1: none */
    uint32_t listens; /* EPOLLIN | EPOLLOUT, as registered */

    struct tsri_share *share;      /* of its tenant; before hello, of its uid's */
    struct tsri_spot ready, waits; /* in the share: for the loop, and for a worker */
    uint32_t ready_events;         /* EPOLL*, since it is ready */

    struct tsri_call *calls, **calls_end; /* in order; the first one runs */
    uint64_t turn_ns;                     /* when its turn began */
    uint32_t n_calls, n_leasing;          /* n_leasing: those that will take leases when they run */
    bool running;

    struct tsri_events events; /* max 0: not asked for */
    struct tsri_session *prev, *next;
    struct tsri_session *next_retired, *next_leaving;
    bool leaving; /* has ended and still has leases */
};

/* What is left of something beyond the floors, for whoever comes first. */
struct tsri_stock {
    uint32_t spare, used;
};

/* What a tenant has of what all share. */
struct tsri_share {
    struct tsri_spot ready; /* its sessions that the loop should look at, in order */
    struct tsri_spot waits; /* its sessions whose next call waits for a worker, in order */
    uint32_t n_running;     /* calls that workers have */
    uint32_t n_places, places_floor;
};

struct tsr_server {
    struct tsri_fork_guard guard;
    const struct tsri_tenant *tenants;
    uint32_t n_tenants;
    struct tsri_tenant *own; /* of tsr_server_open, or NULL */
    uint32_t *allow;         /* uids besides ours */
    uint32_t n_allow;
    struct tsri_endpoint endpoint;
    int epoll_fd, wake_fd, spare_fd;

    struct tsri_region control; /* a word for each session */
    uint64_t last_word;
    uint64_t boot_id;
    struct tsri_roster roster;
    struct tsri_session *sessions; /* all that are not freed, also those that have ended */
    struct tsri_session *retired;  /* nothing uses them any more: freed after the batch of events */
    struct tsri_session *leaving;  /* have ended and still have leases, which go in pieces */
    uint64_t staging_max;
    struct tsri_allowance allowance;
    _Atomic uint64_t stall_ns; /* TSRI_STALL_NS; tests have less patience */

    uint8_t *read_buffer; /* TSRI_READ_BYTES, on a boundary of 8 */
    struct tsri_region matches, wire_matches;
    struct tsri_request request; /* being answered */

    struct tsri_share *shares; /* as tenants, and one more for those that are none (yet) */
    uint32_t n_shares, share_next;
    struct tsri_stock places, workers;

    struct tsri_work *work;
    pthread_mutex_t lock;
    struct tsri_call *finished; /* under lock */

    uint64_t start_ns;
    uint32_t prefill_rate;
    struct tsri_slow slow;

    pthread_t thread;
    bool has_thread;
    atomic_bool stopping;
    uint64_t stop_ns;
};

struct tsri_server_desc {
    const struct tsri_tenant *tenants; /* outlive the server */
    uint32_t n_tenants;
    int listen_fd; /* -1: the option's path */
};
TSR_MUST int tsri_server_open(struct tsr_server **out, const struct tsri_server_desc *desc,
                              const struct tsri_options *options);
/* Whose cache a client uses, or NULL: nobody's. */
const struct tsri_tenant *tsri_server_tenant(const struct tsr_server *s, uint32_t uid,
                                             const char *token, size_t token_bytes);
/* Compares all of a token, however early it differs. */
bool tsri_token_same(const char *ours, const char *theirs, size_t bytes);
bool tsri_server_allows(const struct tsr_server *s, uint32_t uid);
/* Numbers of the first tenant's cache. */
struct tsri_stats *tsri_server_stats(const struct tsr_server *s);
/* Tells the loop that a call is finished. From a worker. */
void tsri_server_finished(struct tsr_server *s, struct tsri_call *call);

/* ---- shares.c: what each tenant may have of what all share ---- */

/* One more for somebody who holds *held, `floor` of which are its own; false when there is none. */
TSR_MUST bool tsri_stock_take(struct tsri_stock *k, uint32_t floor, uint32_t *held);
void tsri_stock_give(struct tsri_stock *k, uint32_t floor, uint32_t *held);
/* n_workers: option server_threads. */
TSR_MUST int tsri_shares_init(struct tsr_server *s, uint32_t n_workers);
void tsri_shares_fini(struct tsr_server *s);
/* Threads to start, so that every tenant has one whatever the others do. */
uint32_t tsri_shares_threads(const struct tsr_server *s, uint32_t n_workers);
/* NULL: of those that are no tenant. */
struct tsri_share *tsri_share_of(const struct tsr_server *s, const struct tsri_tenant *tenant);
/* Takes a place, and gives back the one it had in another share. TSR_EAGAIN when none is left, and
 * then it has none. */
TSR_MUST int tsri_share_join(struct tsri_session *x, struct tsri_share *share);
/* Out of its lists: it has ended. Its place is its own until its worker is done. */
void tsri_share_unlist(struct tsri_session *x);
/* Gives its place back. */
void tsri_share_leave(struct tsri_session *x);
/* There is something to read or to send: it gets a turn. */
void tsri_share_ready(struct tsri_session *x, uint32_t events);
/* Whose turn it is in a share, or NULL. */
struct tsri_session *tsri_share_turn(struct tsri_share *share);
bool tsri_shares_are_ready(const struct tsr_server *s);
/* Its first call gets a worker, now or when it is its turn (tsri_lane_start). */
void tsri_share_start(struct tsri_session *x);
/* A worker is done with a call of it. */
void tsri_share_done(struct tsri_session *x);

/* ---- sessions.c: one connection; all of it in the loop ---- */

/* Takes over fd. */
TSR_MUST int tsri_session_open(struct tsr_server *s, int fd);
void tsri_session_read(struct tsri_session *x);
/* Sends what waits; afterwards listens for what it should. */
void tsri_session_flush(struct tsri_session *x);
/* Ends it for a reason that is logged. Its leases go now or, of a great many, in the next turns of
 * the loop. Idempotent. */
void tsri_session_end(struct tsri_session *x, const char *why);
/* Of one that has ended and has no worker: it will be freed. */
void tsri_session_retire(struct tsri_session *x);
/* Frees those, as many as one turn has time for; false when there are more. The only place where a
 * session is freed; never while events are handled. */
bool tsri_sessions_reap(struct tsr_server *s);
/* Queues a reply; ends the session when it cannot. */
void tsri_session_reply(struct tsri_session *x, uint64_t id, struct tsri_reply *r);
/* A frame that is ready. */
void tsri_session_send(struct tsri_session *x, const uint8_t *frame, size_t bytes);
/* An error with tsr_errmsg(). */
void tsri_session_fail(struct tsri_session *x, const struct tsri_wire_head *head, int err);
/* Is there too much waiting to take more from it? */
bool tsri_session_is_full(const struct tsri_session *x);
/* A call of it that began at start_ns has been answered. */
void tsri_session_took(struct tsri_session *x, uint16_t type, uint64_t start_ns);
/* Looks whether it has stood still for too long. */
void tsri_session_check(struct tsri_session *x, uint64_t now_ns);

/* ---- hello.c ---- */

/* Negotiates; the session is open afterwards, or ended. */
void tsri_hello(struct tsri_session *x, const struct tsri_wire_head *head,
                const struct tsri_request *r);

/* ---- calls.c: what is answered in the loop ---- */

/* One whole request; body on a boundary of 8. */
void tsri_call_answer(struct tsri_session *x, const struct tsri_wire_head *head,
                      const uint8_t *body);
/* The space of that number, or NULL with a message; any_space: also one without a shape. */
struct tsr_space *tsri_session_space(struct tsri_session *x, uint32_t number);
struct tsr_space *tsri_session_any_space(struct tsri_session *x, uint32_t number);
/* Closes the spaces that were given up, as soon as no call and no put uses them. */
void tsri_session_settle(struct tsri_session *x);
/* RELEASE; KEYS and CONTAINS, whose replies point to *memory (tsri_free); PREFETCH, PIN, UNPIN and
 * TOUCH. In the loop or, when they are long, on a worker. The status. */
TSR_MUST int tsri_release(struct tsri_session *x, const struct tsri_request *q);
TSR_MUST int tsri_keys(struct tsri_session *x, const struct tsri_request *q, struct tsri_reply *r,
                       void **memory);
TSR_MUST int tsri_contains(struct tsri_session *x, const struct tsri_request *q,
                           struct tsri_reply *r, void **memory);
TSR_MUST int tsri_mark(struct tsri_session *x, const struct tsri_request *q);

/* In the loop: opens a space for which a worker has made room, if it could. */
void tsri_space_again(struct tsri_session *x, const struct tsri_wire_head *head,
                      const uint8_t *body);

/* ---- finds.c: lookup and retrieve, in the loop or on a worker ---- */

void tsri_lookup_answer(struct tsri_session *x, const struct tsri_wire_head *head,
                        const struct tsri_request *q);
void tsri_retrieve_answer(struct tsri_session *x, const struct tsri_wire_head *head,
                          const uint8_t *body, const struct tsri_request *q);
/* On a worker. *memory is what the reply points to. */
TSR_MUST int tsri_lookup(struct tsri_session *x, const struct tsri_request *q, struct tsri_reply *r,
                         void **memory);
/* What is asked for, in memory of its own (tsri_lends_free), pinned and leased: how many ranges only
 * a lower tier has, or an error. */
TSR_MUST int tsri_lend_all(struct tsri_session *x, const struct tsri_request *q,
                           struct tsri_source **out);
void tsri_lends_free(struct tsri_session *x, struct tsri_source *lends);
/* The frame of what was lent, in memory of its own (tsri_session_free); NULL when there is none. */
uint8_t *tsri_retrieve_reply(struct tsri_session *x, uint64_t id, const struct tsri_source *lends,
                             size_t *bytes);

/* ---- lane.c: what is not ---- */

/* Queues the request, with a copy of its body. Takes over lends. */
void tsri_lane_push(struct tsri_session *x, const struct tsri_wire_head *head, const uint8_t *body,
                    struct tsri_source *lends);
/* Gives the first call to a worker. */
void tsri_lane_start(struct tsri_session *x);
/* In the loop, for a call that is finished: its reply goes out and the next one starts. */
void tsri_lane_finish(struct tsri_call *call);
/* Drops what has not started. */
void tsri_lane_clear(struct tsri_session *x);

/* ---- status.c: the server in numbers ---- */

#define TSRI_STATUS_SPACES_MAX 64u /* of a tenant */

/* Like snprintf: return the length needed. From any thread. JSON is 0 without memory. */
size_t tsri_status_prometheus(const struct tsr_server *s, char *buf, size_t bytes);
/* only: (optional) of this tenant alone. */
size_t tsri_status_json(struct tsr_server *s, const struct tsri_tenant *only, char *buf,
                        size_t bytes);
/* The parts of that for programs that have a cache and no server: a tenant, and slow calls (`only`:
 * of whom, or NULL). */
TSR_MUST bool tsri_status_add_cache(struct tsri_text *t, const char *name, struct tsr_cache *c);
void tsri_status_add_slow(struct tsri_text *t, struct tsri_slow *slow, const char *only);

/* ---- http_address.c ---- */

struct sockaddr_storage;
/* "127.0.0.1:7464" and "[::1]:0" to an address; TSR_ECONFIG for others than numbers. */
TSR_MUST int tsri_http_address(const char *text, struct sockaddr_storage *out);
/* Is it this machine alone? */
bool tsri_http_is_loopback(const struct sockaddr_storage *address);
/* Host header: a name of loopback or an address, as anything else may be a page of a stranger that
 * had its name point here. */
bool tsri_http_host_is_fine(const char *host);

/* ---- http.c: the same for browsers and Prometheus; linked into tesserad alone ---- */

struct tsri_http;
/* Listens at option http_listen. *out is NULL when it is off, or when the address is taken, which
 * is logged: nobody should be without a cache for want of a page. */
TSR_MUST int tsri_http_open(struct tsri_http **out, struct tsr_server *server,
                            const struct tsri_options *o);
/* Accepts NULL. Before the server closes. */
void tsri_http_close(struct tsri_http *http);

#endif
