/* serve.h - `tessera serve` from inside: an HTTP server with the OpenAI API in front of one engine.
 *
 * web.c speaks HTTP (libmicrohttpd, one thread), preparing.c brings requests to the engine (two more),
 * seeking.c finds documents for them, prompts.c makes their tokens, flow.c turns events of the engine into the bytes of a reply (reply.c
 * has their JSON), and serve.c keeps all of it: limits of time, clients that have gone, the end.
 *
 * Threads: the functions at the top may be called from any thread. A flow is touched by four: the
 *          HTTP thread, the one that prepares it, the engine's and the watcher; what they share is
 *          under tsri_serve.lock.
 *          Neither the engine nor libmicrohttpd is called with it held, but to resume a connection.
 * Memory:  what a desc points to outlives the server, but for strings, which are copied.
 * Errors:  enum tsr_err.
 */
#ifndef TSRI_SERVE_H
#define TSRI_SERVE_H

#include "daemon/daemon.h"
#include "serve/api.h"
#include "search/search.h"
#include "serve/saying.h"

#include <pthread.h>
#include <sys/socket.h>

struct tsri_serve_desc {
    struct tsr_model *model;
    struct tsr_blend *blend;
    struct tsr_cache *cache;    /* for /metrics and /api/stats; NULL: none */
    struct tsri_search *search; /* documents of the server; NULL: none */
    const char *model_name;     /* of /v1/models */
    const char *separator;      /* of documents in texts of requests; NULL: none */
    const char *speed_path;     /* see tsri_speed_guess(); NULL: nothing is kept */
    const char *token;
    const char *page_token; /* as good as `token`, for this life of the server; NULL: none */
    const struct sockaddr_storage *address;
    uint32_t n_running_max, n_queued_max; /* of the engine; 0: its defaults */
    uint32_t connections_max;             /* 0: 128 */
    uint32_t max_tokens;                  /* of an answer whose request names none; 0: 1024 */
    uint32_t whole_s;                     /* for one answer; 0: 600 */
    size_t body_bytes_max;                /* 0: 16 MB */
    double temperature;                   /* where a request names none */
};

struct tsri_serve;
TSR_MUST int tsri_serve_open(struct tsri_serve **out, const struct tsri_serve_desc *desc);
uint16_t tsri_serve_port(const struct tsri_serve *s);
struct tsri_engine *tsri_serve_engine(struct tsri_serve *s);
/* From now on new questions are refused. */
void tsri_serve_drain(struct tsri_serve *s);
/* Answers that are not sent yet. */
uint32_t tsri_serve_busy(struct tsri_serve *s);
/* Ends answers that are under way. Accepts NULL. */
void tsri_serve_close(struct tsri_serve *s);

/* ---- the room's own ---- */

struct MHD_Connection;
struct MHD_Daemon;

/* One request for an answer, until both the engine and the connection are done with it. */
struct tsri_flow {
    struct tsri_serve *serve;
    struct tsri_flow *next, *before; /* of serve->flows, under lock */
    enum tsri_api api;
    char *body; /* of the request, until it is read */
    size_t n_body;
    struct tsri_api_request request;
    struct tsri_refusal no; /* why it was not started; status 0: it was */
    char id[48];
    int64_t created;
    uint32_t n_prompt;
    double start_s, full_guess_s;
    json_t *documents; /* of the prompt, as the reply names them */
    bool searched;     /* the server's folders were looked into for it */
    bool whole;        /* and are in the prompt whole */
    /* Of the engine's thread: */
    struct tsri_saying said;
    uint32_t n_tokens;
    json_t *logprobs; /* of tokens whose text is not out yet; all of them without a stream */
    struct tsr_blend_report report;
    bool has_report, over; /* over: the reply is complete */
    double queued_s, ttft_s;
    char *progress; /* a chunk about progress without its numbers; NULL: none is wanted */
    /* Under lock: */
    bool alone;                        /* no other answer was under way while its prompt was read */
    bool reading;                      /* the prompt is being read, or waits for that */
    uint32_t n_there, n_cached;        /* of its tokens: read; and when it began */
    uint64_t read_ns, there_ns;        /* when reading began, 0: not yet; and when n_there grew */
    uint64_t chunk_ns;                 /* when progress was last told */
    struct MHD_Connection *connection; /* NULL: it is gone */
    int fd;
    bool suspended, done, late, engine_has;
    bool ready;  /* prepared: the HTTP thread may go on with it */
    bool listed; /* in serve->flows */
    struct tsri_flow *next_prepared;
    bool gone; /* it counts as one whose client has left */
    unsigned status;
    char *out; /* bytes of the reply, of which n_sent are sent */
    size_t n_out, n_sent, out_room;
    uint64_t job, deadline_ns, told_ns; /* told_ns: when bytes were last added */
};

struct tsri_conn; /* web.c: a connection */

/* preparing.c: a thread, and the requests that wait for it. */
struct tsri_preparer {
    struct tsri_serve *serve;
    pthread_t thread;
    pthread_cond_t has_request;
    struct tsri_flow *first, *last; /* under the server's lock */
};

struct tsri_serve {
    struct tsri_serve_desc desc;
    struct tsr_model_info info;
    struct tsri_engine *engine;
    struct MHD_Daemon *daemon;
    uint16_t port;
    pthread_t watcher;
    bool has_watcher;
    struct tsri_preparer preparers[2]; /* of small requests, of large ones */
    uint32_t n_preparers;              /* that run */
    pthread_mutex_t lock;              /* of everything below, and of flows as they say */
    pthread_cond_t wake;
    bool draining, closing, preparing_ends;
    struct tsri_flow *flows;
    uint32_t n_flows;
    _Atomic uint32_t n_open; /* flows, also those that wait to be prepared */
    struct tsri_conn *conns;
    uint32_t n_conns;
    uint64_t n_requests, n_refused, n_gone, n_late;
    struct tsri_search_stats large; /* of folders that were too large to go whole */
    bool counted;                   /* `large` is known: they are not counted again */
    uint64_t start_ns;
    struct tsri_slow slow; /* answers; has a lock of its own */
};

/* ---- prompts.c ---- */

/* The prompt of a request, with the server's documents where it has some. */
TSR_MUST bool tsri_prompt_make(struct tsri_flow *f, struct tsri_dialog *d, struct tsri_refusal *no);

/* ---- seeking.c ---- */

/* Passages for the last question of a request, best first; none is no error. */
TSR_MUST int tsri_seek_passages(const struct tsri_serve *s, const struct tsri_api_request *q,
                                struct tsri_passages *found);
/* All passages, in their order, of folders that are small enough to be in every prompt: 1, else 0. */
TSR_MUST int tsri_seek_whole(struct tsri_serve *s, struct tsri_passages *found);

/* ---- preparing.c ---- */

TSR_MUST int tsri_preparing_open(struct tsri_serve *s);
/* Finishes what waits, before the engine is closed. */
void tsri_preparing_close(struct tsri_serve *s);
/* With the lock held: starts the flow soon, then marks it as ready and resumes its connection. False:
 * the server ends, and the flow is refused. */
TSR_MUST bool tsri_preparing_put(struct tsri_flow *f);

/* ---- flow.c ---- */

/* Takes the body over. NULL: no memory. */
struct tsri_flow *tsri_flow_open(struct tsri_serve *s, enum tsri_api api, char *body, size_t bytes);
/* Reads the request and gives it to the engine. A refusal: the flow is the caller's, as before. */
TSR_MUST bool tsri_flow_start(struct tsri_flow *f, struct tsri_refusal *no);
/* With the lock held: counts one whose client has left, once. */
void tsri_flow_gone(struct tsri_flow *f);
/* The connection is gone, or its reply is out. */
void tsri_flow_leave(struct tsri_flow *f);
void tsri_flow_free(struct tsri_flow *f);
/* With the lock held: the time is over, or bytes to show that somebody is there. */
bool tsri_flow_watch(struct tsri_flow *f, uint64_t now_ns);

/* ---- reply.c ---- */

/* Bytes of JSON, free() them; NULL without memory. */
char *tsri_reply_whole(const struct tsri_flow *f, const char *why);
char *tsri_reply_models(const struct tsri_serve *s);
char *tsri_reply_model(const struct tsri_serve *s);
/* The model, its context, and the documents that questions are answered from. */
char *tsri_reply_status(const struct tsri_serve *s);
char *tsri_reply_refusal(const struct tsri_refusal *no);
/* Chunks of a stream, "data: ...\n\n". text NULL: none; why NULL: it goes on. `logprobs` is taken. */
char *tsri_reply_chunk(const struct tsri_flow *f, const char *text, json_t *logprobs,
                       const char *why);
/* The begin of chunks about progress; tsri_reply_progress() has the whole of one, in `to`. Returns its
 * bytes, 0: they are more. */
char *tsri_reply_progress_begin(const struct tsri_flow *f);
size_t tsri_reply_progress(const struct tsri_flow *f, double seconds_left, char *to, size_t bytes);
/* The one with usage, where it is asked for. */
char *tsri_reply_usage(const struct tsri_flow *f);
char *tsri_reply_error_chunk(const struct tsri_refusal *no);
/* A token with its chance, in the form of the chat API; the other form is made of these. NULL: no
 * memory. */
json_t *tsri_reply_logprob(const struct tsri_flow *f, const struct tsri_job_event *e);
/* Prometheus text of everything. */
char *tsri_reply_metrics(struct tsri_serve *s);
/* JSON of the same, as tesserad says it. */
char *tsri_reply_stats(struct tsri_serve *s);

/* ---- web.c ---- */

TSR_MUST int tsri_web_open(struct tsri_serve *s);
void tsri_web_close(struct tsri_serve *s);
/* With the lock held: shuts connections whose request has not come in time. */
void tsri_web_watch(struct tsri_serve *s, uint64_t now_ns);
/* With the lock held: goes on with a suspended connection. */
void tsri_web_resume(struct tsri_flow *f);
/* Whether the other end of a connection is closed. */
bool tsri_web_is_gone(int fd);

#endif
