/* redis_run.c - carries out jobs: each is a few stages, each stage a run of commands that may be
 * under way together, spread over the lane's connections. Replies that say MOVED or ASK are
 * followed here, so that jobs know nothing of clusters; and everything that waits, waits here,
 * until a reply, a deadline or a server that has been silent for too long. */
#include "redis/redis.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>

#define REDIRECTS_MAX 5u
#define POLL_MS_MAX 100

int tsri_redis_error(struct tsri_redis *r, const struct tsri_resp_req *req)
{
    static const struct {
        const char *word;
        int err;
        enum { READING, WRITING } which;
    } known[] = {
        {"OOM", TSR_EFULL, WRITING},       {"READONLY", TSR_EPERM, WRITING},
        {"MISCONF", TSR_EIO, WRITING},     {"NOREPLICAS", TSR_EIO, WRITING},
        {"NOPERM", TSR_EPERM, WRITING},    {"WRONGTYPE", TSR_ECORRUPT, READING},
        {"TRYAGAIN", TSR_EAGAIN, READING}, {"CLUSTERDOWN", TSR_EIO, READING},
    };
    if (req->type == 0) return TSR_EIO;
    if (req->type != '-') return TSR_EIO; /* a reply of the wrong kind */
    for (size_t i = 0; i < TSRI_COUNT(known); i++) {
        if (!tsri_req_says(req, known[i].word)) continue;
        if (known[i].which == WRITING) tsri_breaker_failed(&r->writes, true, req->text);
        if (known[i].err == TSR_EPERM || known[i].which == READING) tsri_redis_want_survey(r);
        return known[i].err;
    }
    return TSR_EIO;
}

uint32_t tsri_redis_job_number(const struct tsri_redis_job *job)
{
    uint32_t i = 0;
    while (job->run->jobs[i] != job)
        i++;
    return i;
}

/* ---- connections ---- */

static uint64_t earliest(uint64_t a, uint64_t b)
{
    return !a || (b && b < a) ? b : a;
}

static struct tsri_resp *connect_node(struct tsri_redis_run *run, uint32_t node)
{
    struct tsri_redis *r = run->r;
    struct tsri_redis_node *n = &r->nodes[node];
    uint64_t deadline = tsri_now_ns() + (uint64_t)r->timeout_ms * 1000000;
    char why[160];
    struct tsri_resp *c;
    if (!tsri_breaker_closed(&n->reach)) return NULL;
    if (tsri_resp_open(&c, n->address, &r->login, earliest(deadline, run->deadline_ns), why,
                       sizeof why) == 0)
        return c;
    tsri_breaker_failed(&n->reach, true, why);
    tsri_redis_want_survey(r);
    atomic_fetch_add(&r->errors, 1);
    return NULL;
}

/* The connection for a request: one that is there, or a new one. */
static struct tsri_resp **connection(struct tsri_redis_run *run, uint32_t node)
{
    uint32_t i = run->one_connection ? 0 : run->n_sent++ % run->r->share;
    struct tsri_resp **at = &run->lane->conns[node][i];
    if (*at && !tsri_resp_pending(*at) && tsri_resp_is_stale(*at)) {
        tsri_resp_close(*at);
        *at = NULL;
    }
    if (!*at) *at = connect_node(run, node);
    return *at ? at : NULL;
}

static void lose(struct tsri_redis_run *run, uint32_t node, uint32_t i)
{
    struct tsri_resp **at = &run->lane->conns[node][i], *c = *at;
    *at = NULL; /* first: what its requests do next goes elsewhere */
    tsri_resp_break(c);
    tsri_resp_close(c);
}

/* ---- requests ---- */

static void request_done(struct tsri_resp_req *req);

static void give_req(struct tsri_redis_lane *lane, struct tsri_resp_req *req)
{
    req->next = lane->free;
    lane->free = req;
}

static void send_to(struct tsri_redis_run *run, struct tsri_resp_req *req, uint32_t node)
{
    struct tsri_resp **c = connection(run, node);
    if (c) {
        tsri_resp_send(*c, req);
        return;
    }
    req->type = 0;
    req->n_redirects = REDIRECTS_MAX;
    request_done(req);
}

/* True when the request is on its way to somebody else. */
static bool redirected(struct tsri_redis_run *run, struct tsri_resp_req *req)
{
    struct tsri_redis *r = run->r;
    bool moved = tsri_req_says(req, "MOVED"), ask = tsri_req_says(req, "ASK");
    if ((!moved && !ask) || req->n_redirects++ >= REDIRECTS_MAX) return false;
    char address[TSRI_REDIS_ADDRESS_BYTES];
    uint32_t slot, from = atomic_load(&r->slots[req->slot]);
    if (!tsri_redis_redirect(req->text, r->nodes[from].address, &slot, address)) return false;
    int node = tsri_redis_node(r, address);
    if (node < 0) return false;
    static const char asking[] = "*1\r\n$6\r\nASKING\r\n";
    size_t n = sizeof asking - 1;
    if (moved) {
        tsri_redis_set_slot(r, slot, (uint32_t)node);
        tsri_redis_want_survey(r);
    } else if (strncmp(req->head, asking, n) != 0) {
        TSR_ASSERT(req->head_bytes + n <= sizeof req->head);
        memmove(req->head + n, req->head, req->head_bytes);
        memcpy(req->head, asking, n);
        req->head_bytes += (uint32_t)n;
    }
    req->n_ignored = strncmp(req->head, asking, n) == 0;
    send_to(run, req, (uint32_t)node);
    return true;
}

static void request_done(struct tsri_resp_req *req)
{
    struct tsri_redis_job *job = req->arg;
    struct tsri_redis_run *run = job->run;
    if (req->type == '-' && redirected(run, req)) return;
    if (req->type) {
        struct tsri_redis_node *n = &run->r->nodes[atomic_load(&run->r->slots[req->slot])];
        tsri_breaker_worked(&n->reach);
    }
    job->n_flying--;
    run->n_flying--;
    run->ops->answered(job, req);
    give_req(run->lane, req);
}

/* ---- jobs ---- */

/* Makes requests of a job until the window is full; goes on to its next stage when it may. */
static void feed(struct tsri_redis_run *run, struct tsri_redis_job *job)
{
    const struct tsri_redis_job_ops *ops = run->ops;
    while (job->active) {
        while (!job->err && job->next < job->n && run->n_flying < ops->window) {
            struct tsri_resp_req *req = run->lane->free;
            TSR_ASSERT(req);
            req->number = job->next++;
            req->arg = job;
            req->done = request_done;
            req->sink = NULL;
            if (!ops->make(job, req)) continue;
            run->lane->free = req->next;
            job->n_flying++;
            run->n_flying++;
            send_to(run, req, atomic_load(&run->r->slots[req->slot]));
        }
        if (job->n_flying || (!job->err && job->next < job->n)) return;
        if (!job->err) {
            job->next = job->n = 0;
            if (ops->advance(job)) continue;
        }
        job->active = false;
        ops->finish(job);
    }
}

static bool start_some(struct tsri_redis_run *run, size_t *i, size_t n)
{
    bool any = false;
    for (uint32_t k = 0; k < TSRI_REDIS_JOBS; k++) {
        struct tsri_redis_job *job = run->jobs[k];
        if (!job->active && *i < n) {
            memset(job, 0, run->ops->job_bytes);
            job->run = run;
            job->active = true;
            run->ops->start(job, (*i)++);
        }
        if (job->active) feed(run, job);
        any |= job->active;
    }
    return any;
}

/* The connections of the lane that have something under way. */
struct watch {
    struct pollfd fds[TSRI_REDIS_NODES_MAX * 2];
    uint16_t node[TSRI_REDIS_NODES_MAX * 2], i[TSRI_REDIS_NODES_MAX * 2];
    nfds_t n;
};

static void watch_all(const struct tsri_redis_run *run, struct watch *w)
{
    w->n = 0;
    uint32_t n_nodes = atomic_load(&run->r->n_nodes);
    for (uint32_t node = 0; node < n_nodes; node++)
        for (uint32_t i = 0; i < run->r->share && w->n < TSRI_COUNT(w->fds); i++) {
            const struct tsri_resp *c = run->lane->conns[node][i];
            if (!c || !tsri_resp_pending(c)) continue;
            w->node[w->n] = (uint16_t)node;
            w->i[w->n] = (uint16_t)i;
            w->fds[w->n++] = (struct pollfd){.fd = tsri_resp_fd(c), .events = tsri_resp_events(c)};
        }
}

static void fail_node(struct tsri_redis_run *run, uint32_t node, uint32_t i, const char *why)
{
    struct tsri_redis *r = run->r;
    atomic_fetch_add(&r->errors, 1);
    tsri_breaker_failed(&r->nodes[node].reach, false, why);
    tsri_redis_want_survey(r);
    lose(run, node, i);
}

/* Sends what was made just now; as a rule it goes at once, and only the replies are waited for. */
static uint64_t send_new(struct tsri_redis_run *run, struct watch *w)
{
    uint64_t bytes = 0;
    for (nfds_t k = 0; k < w->n; k++) {
        struct tsri_resp *c = run->lane->conns[w->node[k]][w->i[k]];
        if (!(w->fds[k].events & POLLOUT)) continue;
        int64_t moved = tsri_resp_move(c, POLLOUT);
        if (moved < 0) continue; /* poll tells it again */
        bytes += (uint64_t)moved;
        w->fds[k].events = tsri_resp_events(c);
    }
    return bytes;
}

/* Waits and moves once; gives up on those that were silent for too long. */
static void move_some(struct tsri_redis_run *run)
{
    struct tsri_redis *r = run->r;
    struct watch w;
    watch_all(run, &w);
    if (w.n == 0) return;
    uint64_t bytes = send_new(run, &w);
    uint64_t now = tsri_now_ns(), until = now + POLL_MS_MAX * 1000000u;
    until = earliest(until, run->deadline_ns);
    int ms = until > now ? (int)((until - now + 999999) / 1000000) : 0;
    if (poll(w.fds, w.n, ms) < 0 && errno != EINTR) return;
    uint64_t silent_ns = (uint64_t)r->timeout_ms * 1000000;
    for (nfds_t k = 0; k < w.n; k++) {
        struct tsri_resp *c = run->lane->conns[w.node[k]][w.i[k]];
        if (!c) continue;
        int64_t moved = w.fds[k].revents ? tsri_resp_move(c, w.fds[k].revents) : 0;
        if (moved < 0)
            fail_node(run, w.node[k], w.i[k], "connection lost");
        else if (tsri_resp_pending(c) && tsri_now_ns() - tsri_resp_active_ns(c) > silent_ns)
            fail_node(run, w.node[k], w.i[k], "no response");
        bytes += moved > 0 ? (uint64_t)moved : 0;
    }
    uint64_t wait_ns = tsri_throttle_take(&r->throttle, bytes);
    if (!wait_ns) return;
    now = tsri_now_ns();
    if (run->deadline_ns && now + wait_ns > run->deadline_ns)
        wait_ns = run->deadline_ns > now ? run->deadline_ns - now : 0;
    struct timespec t = {(time_t)(wait_ns / 1000000000), (long)(wait_ns % 1000000000)};
    nanosleep(&t, NULL);
}

/* Everything under way is too late: its connections are given up, for what they still bring would
 * go to memory that is not ours any more. */
static void give_up(struct tsri_redis_run *run)
{
    for (uint32_t k = 0; k < TSRI_REDIS_JOBS; k++)
        if (run->jobs[k]->active && !run->jobs[k]->err)
            run->jobs[k]->err = tsri_fail(TSR_ETIME, "redis: deadline passed");
    struct watch w;
    watch_all(run, &w);
    for (nfds_t k = 0; k < w.n; k++)
        fail_node(run, w.node[k], w.i[k], "slower than the deadline");
}

/* The earliest deadline of what is under way; 0: none. */
static uint64_t deadline_of(const struct tsri_redis_run *run)
{
    uint64_t deadline = 0;
    for (uint32_t k = 0; k < TSRI_REDIS_JOBS; k++)
        if (run->jobs[k]->active) deadline = earliest(deadline, run->jobs[k]->deadline_ns);
    return deadline;
}

void tsri_redis_run(struct tsri_redis_run *run, void *jobs, size_t n)
{
    for (uint32_t k = 0; k < TSRI_REDIS_JOBS; k++) {
        run->jobs[k] = (struct tsri_redis_job *)(void *)((uint8_t *)jobs + k * run->ops->job_bytes);
        memset(run->jobs[k], 0, run->ops->job_bytes);
    }
    run->n_flying = run->n_sent = 0;
    size_t i = 0;
    do {
        run->deadline_ns = deadline_of(run);
        if (run->deadline_ns && tsri_now_ns() >= run->deadline_ns) give_up(run);
        move_some(run);
    } while (start_some(run, &i, n) || i < n);
}
