/* s3_flow.c - runs of requests on behalf of one caller, and what their answers mean: which are a
 * miss, which say that the server is down or refuses us (and open a breaker), and which only that
 * this one thing is not to be had. */
#include "s3/s3.h"

int tsri_s3_usable(struct tsri_s3 *s)
{
    if (!tsri_fork_guard_parent(&s->guard))
        return tsri_fail(TSR_EFORK, "s3: not usable after fork");
    if (tsri_breaker_closed(&s->reach)) return 0;
    return tsri_fail(TSR_EIO, "s3: %s is down", s->url);
}

uint64_t tsri_s3_deadline(const struct tsri_s3 *s)
{
    return tsri_now_ns() + (uint64_t)s->timeout_ms * 1000000;
}

/* ---- lanes ---- */

int tsri_s3_lanes_init(struct tsri_s3 *s, uint32_t n)
{
    s->lanes = tsri_alloc(n + 1, sizeof s->lanes[0]);
    if (!s->lanes) return TSR_ENOMEM;
    for (uint32_t i = 0; i < n + 1; i++) {
        struct tsri_s3_lane *lane = &s->lanes[i];
        lane->reqs = tsri_alloc(TSRI_S3_REQS, sizeof lane->reqs[0]);
        if (!lane->reqs) return TSR_ENOMEM;
        tsri_s3_http_batch_init(&lane->batch);
        s->n_lanes++;
        for (uint32_t k = 0; k < TSRI_S3_REQS; k++) {
            lane->reqs[k].next = lane->free;
            lane->free = &lane->reqs[k];
        }
    }
    s->lanes[n].taken = true; /* upkeep's */
    return 0;
}

void tsri_s3_lanes_fini(struct tsri_s3 *s)
{
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        struct tsri_s3_lane *lane = &s->lanes[i];
        for (uint32_t k = 0; k < TSRI_S3_JOBS; k++)
            tsri_region_fini(&lane->records[k]);
        tsri_region_fini(&lane->reply);
        tsri_s3_http_batch_fini(&lane->batch);
        tsri_free(lane->reqs);
    }
    tsri_free(s->lanes);
}

struct tsri_s3_lane *tsri_s3_lane_take(struct tsri_s3 *s, uint64_t deadline_ns)
{
    struct tsri_s3_lane *lane = NULL;
    pthread_mutex_lock(&s->lock);
    do {
        for (uint32_t i = 0; i < s->n_lanes && !lane; i++)
            if (!s->lanes[i].taken) lane = &s->lanes[i];
    } while (!lane && tsri_cond_wait(&s->freed, &s->lock, deadline_ns));
    if (lane) lane->taken = true;
    pthread_mutex_unlock(&s->lock);
    return lane;
}

void tsri_s3_lane_give(struct tsri_s3 *s, struct tsri_s3_lane *lane)
{
    pthread_mutex_lock(&s->lock);
    lane->taken = false;
    pthread_cond_signal(&s->freed);
    pthread_mutex_unlock(&s->lock);
}

/* ---- requests ---- */

static void clear(struct tsri_s3_http_req *req, enum tsri_s3_http_method method)
{
    req->method = method;
    req->range = (struct tsri_extent){0, 0};
    for (int i = 0; i < 2; i++)
        req->bodies[i] = req->sinks[i] = tsri_stream_flat(NULL, 0);
    req->deadline_ns = 0;
    atomic_store(&req->cancelled, false);
}

void tsri_s3_req_entry(const struct tsri_s3 *s, struct tsri_s3_http_req *req,
                       enum tsri_s3_http_method method, const struct tsr_key *key,
                       const uint8_t space[16])
{
    clear(req, method);
    size_t n = strlen(s->url);
    memcpy(req->url, s->url, n);
    req->url[n] = '/';
    tsri_s3_name(req->url + n + 1, s->dir, space, key);
}

/* A refusal that holds for every request: wrong keys, a clock that differs, no such bucket. */
static bool refuses_all(const struct tsri_s3_http_req *req)
{
    static const char *const codes[] = {"SignatureDoesNotMatch", "InvalidAccessKeyId",
                                        "RequestTimeTooSkewed",  "NoSuchBucket",
                                        "ExpiredToken",          "InvalidToken",
                                        "PermanentRedirect",     "AuthorizationHeaderMalformed",
                                        "InvalidBucketName",     "InvalidClientTokenId"};
    for (size_t i = 0; i < TSRI_COUNT(codes); i++)
        if (strstr(req->why, codes[i])) return true;
    return false;
}

static bool is_write(const struct tsri_s3_http_req *req)
{
    return req->method != TSRI_S3_HTTP_GET && req->method != TSRI_S3_HTTP_HEAD;
}

/* What an answer that is none of 2xx says of the server. */
static int refused(struct tsri_s3 *s, const struct tsri_s3_http_req *req)
{
    if (refuses_all(req)) {
        tsri_s3_failed(s, true, req->why);
        return tsri_fail(TSR_EPERM, "s3: refused: %s", req->why);
    }
    switch (req->status) {
    case 404:
    case 412: /* replaced meanwhile */
        return tsri_fail(TSR_ENOENT, "s3: no such object");
    case 401:
    case 403:
        /* A HEAD has no words; whoever may read and not write is told so by a write. */
        if (is_write(req))
            tsri_breaker_failed(&s->writes, true, req->why);
        else
            tsri_s3_failed(s, true, req->why);
        return tsri_fail(TSR_EPERM, "s3: refused: %s", req->why);
    case 416:
        return tsri_fail(TSR_ECORRUPT, "s3: the object is shorter than an entry");
    case 507:
        tsri_breaker_failed(&s->writes, true, req->why);
        return tsri_fail(TSR_EFULL, "s3: full: %s", req->why);
    default:
        break;
    }
    atomic_fetch_add(&s->errors, 1);
    bool server = req->status >= 500 || req->status == 429;
    tsri_s3_failed(s, !server && req->status < 400, req->why);
    return tsri_fail(TSR_EIO, "s3: %s", req->why);
}

int tsri_s3_error(struct tsri_s3 *s, const struct tsri_s3_http_req *req)
{
    switch (req->end) {
    case TSRI_S3_HTTP_ANSWERED:
        if (req->status / 100 != 2) return refused(s, req);
        tsri_breaker_worked(&s->reach);
        return 0;
    case TSRI_S3_HTTP_CANCELLED:
        return TSR_ETIME;
    case TSRI_S3_HTTP_UNREACHED:
    case TSRI_S3_HTTP_BROKEN:
    case TSRI_S3_HTTP_SILENT:
    case TSRI_S3_HTTP_LATE:
        break;
    }
    atomic_fetch_add(&s->errors, 1);
    tsri_s3_failed(s, req->end == TSRI_S3_HTTP_UNREACHED, req->why);
    if (req->end == TSRI_S3_HTTP_LATE) return tsri_fail(TSR_ETIME, "s3: deadline passed");
    return tsri_fail(TSR_EIO, "s3: %s", req->why);
}

static void send_req(struct tsri_s3 *s, struct tsri_s3_lane *lane, struct tsri_s3_http_req *req)
{
    atomic_fetch_add(&s->n_requests, 1);
    req->batch = &lane->batch;
    tsri_s3_http_send(s->http, req);
}

int tsri_s3_ask(struct tsri_s3 *s, struct tsri_s3_lane *lane, struct tsri_s3_http_req *req)
{
    TSR_ASSERT(req == lane->free);
    lane->free = req->next;
    send_req(s, lane, req);
    (void)tsri_s3_http_next(&lane->batch);
    req->next = lane->free;
    lane->free = req;
    return tsri_s3_error(s, req);
}

/* ---- flows ---- */

void tsri_s3_flow_run(struct tsri_s3_flow *flow)
{
    struct tsri_s3_lane *lane = flow->lane;
    uint32_t n_flying = 0, window = tsri_min_u32(flow->window, TSRI_S3_REQS);
    enum tsri_s3_make made = TSRI_S3_MADE;
    do {
        while (n_flying < window) {
            struct tsri_s3_http_req *req = lane->free;
            TSR_ASSERT(req);
            made = flow->make(flow, req);
            if (made != TSRI_S3_MADE) break;
            lane->free = req->next;
            n_flying++;
            send_req(flow->s, lane, req);
        }
        if (!n_flying) continue;
        struct tsri_s3_http_req *req = tsri_s3_http_next(&lane->batch);
        n_flying--;
        flow->answered(flow, req);
        req->arg = NULL;
        req->next = lane->free;
        lane->free = req;
    } while (n_flying || made != TSRI_S3_END);
}

void tsri_s3_flow_cancel(struct tsri_s3_flow *flow, const void *arg)
{
    for (uint32_t k = 0; k < TSRI_S3_REQS; k++)
        if (flow->lane->reqs[k].arg == arg)
            tsri_s3_http_cancel(flow->s->http, &flow->lane->reqs[k]);
}
