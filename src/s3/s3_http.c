/* s3_http.c - requests to an S3 server, carried out by one thread that drives libcurl's multi
 * interface. Callers queue a request and wait for it in a batch of their own; the thread starts as
 * many at once as there may be connections, moves bytes straight between sockets and the caller's
 * cells (through libcurl's buffer), and ends every request: answered, broken, silent for too long
 * or past its deadline. So nobody who waits here waits for ever, and nobody touches libcurl but the
 * thread. */
#include "s3/s3.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define POLL_MS_MAX 100
#define BUFFER_BYTES (128L << 10) /* of libcurl: one receive fills it (bench_s3) */
#define EXPECT_MS 500L            /* a server that ignores "Expect: 100-continue" */
#define CONNECTIONS_MAX 64u

struct tsri_s3_http {
    const struct tsri_s3_login *login;
    char *signing, *ca_file;
    uint32_t connections, timeout_ms;
    struct tsri_throttle *throttle;
    struct tsri_s3_curl curl;
    struct tsri_s3_expat expat;
    CURLM *multi;
    struct curl_slist *headers;
    CURL *idle[CONNECTIONS_MAX]; /* the thread's, as everything up to the lock */
    uint32_t n_idle, n_flying;
    struct tsri_s3_http_req *flying;
    uint64_t moved; /* bytes since the throttle was last told */
    pthread_t thread;
    bool has_thread, global;

    pthread_mutex_t lock;
    pthread_cond_t more;
    struct tsri_s3_http_req *queue, **queue_end;
    bool closing;
};

/* ---- batches ---- */

void tsri_s3_http_batch_init(struct tsri_s3_http_batch *b)
{
    pthread_mutex_init(&b->lock, NULL);
    tsri_cond_init(&b->more);
    b->done = NULL;
}

void tsri_s3_http_batch_fini(struct tsri_s3_http_batch *b)
{
    pthread_cond_destroy(&b->more);
    pthread_mutex_destroy(&b->lock);
}

struct tsri_s3_http_req *tsri_s3_http_next(struct tsri_s3_http_batch *b)
{
    pthread_mutex_lock(&b->lock);
    while (!b->done)
        pthread_cond_wait(&b->more, &b->lock);
    struct tsri_s3_http_req *req = b->done;
    b->done = req->next;
    pthread_mutex_unlock(&b->lock);
    req->next = NULL;
    return req;
}

/* From here on the request is the caller's again. */
static void hand_back(struct tsri_s3_http_req *req)
{
    struct tsri_s3_http_batch *b = req->batch;
    pthread_mutex_lock(&b->lock);
    req->next = b->done;
    b->done = req;
    pthread_cond_signal(&b->more);
    pthread_mutex_unlock(&b->lock);
}

void tsri_s3_http_send(struct tsri_s3_http *h, struct tsri_s3_http_req *req)
{
    req->next = NULL;
    req->http = h;
    pthread_mutex_lock(&h->lock);
    *h->queue_end = req;
    h->queue_end = &req->next;
    pthread_cond_signal(&h->more);
    pthread_mutex_unlock(&h->lock);
    h->curl.multi_wakeup(h->multi);
}

void tsri_s3_http_cancel(struct tsri_s3_http *h, struct tsri_s3_http_req *req)
{
    atomic_store(&req->cancelled, true);
    h->curl.multi_wakeup(h->multi);
}

/* ---- what libcurl calls ---- */

static void note_moved(struct tsri_s3_http_req *req, size_t bytes)
{
    req->http->moved += bytes;
    req->active_ns = tsri_now_ns();
}

/* Whether the answer is for the range that was asked for, as far as the server had it. */
static bool right_range(const struct tsri_s3_http_req *req)
{
    if (req->range.end == 0) return true;
    if (req->status == 206)
        return req->got.begin == req->range.begin && req->got.end <= req->range.end &&
               req->got.end > 0;
    /* All of it, by a server that knows no ranges or where it is the same. */
    return req->range.begin == 0;
}

static size_t to_sinks(struct tsri_s3_http_req *req, const char *data, size_t bytes)
{
    size_t left = bytes;
    for (size_t i = 0; i < TSRI_COUNT(req->sinks) && left; i++) {
        struct tsri_stream *s = &req->sinks[i];
        size_t n = left < s->left ? left : (size_t)s->left;
        tsri_stream_give(s, data, n);
        data += n;
        left -= n;
        req->bytes += n;
    }
    return bytes - left;
}

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    struct tsri_s3_http_req *req = arg;
    size_t bytes = size * n;
    note_moved(req, bytes);
    req->http->curl.easy_getinfo(req->easy, CURLINFO_RESPONSE_CODE, &req->status);
    if (req->status / 100 != 2) {
        size_t room = sizeof req->text - req->text_bytes, k = bytes < room ? bytes : room;
        memcpy(req->text + req->text_bytes, data, k);
        req->text_bytes += k;
        return bytes;
    }
    if (!right_range(req) || to_sinks(req, data, bytes) != bytes) {
        req->wrong = true;
        return 0;
    }
    return bytes;
}

/* The value of a header line, if it is that one. */
static bool header_is(const char *line, size_t n, const char *name, char *out, size_t out_bytes)
{
    size_t k = strlen(name);
    if (n < k + 1 || strncasecmp(line, name, k) != 0 || line[k] != ':') return false;
    line += k + 1;
    n -= k + 1;
    while (n && (*line == ' ' || *line == '\t'))
        line++, n--;
    while (n && (unsigned char)line[n - 1] <= ' ')
        n--;
    if (n >= out_bytes) n = 0;
    memcpy(out, line, n);
    out[n] = '\0';
    return true;
}

static size_t on_header(char *data, size_t size, size_t n, void *arg)
{
    struct tsri_s3_http_req *req = arg;
    char value[TSRI_S3_ETAG_BYTES];
    size_t bytes = size * n;
    req->active_ns = tsri_now_ns();
    if (header_is(data, bytes, "ETag", value, sizeof value))
        memcpy(req->etag, value, sizeof value);
    else if (header_is(data, bytes, "Content-Range", value, sizeof value))
        (void)tsri_s3_content_range(value, &req->got, &req->total);
    return bytes;
}

static size_t on_read(char *to, size_t size, size_t n, void *arg)
{
    struct tsri_s3_http_req *req = arg;
    size_t room = size * n, done = 0;
    for (size_t i = 0; i < TSRI_COUNT(req->sent); i++)
        while (done < room && req->sent[i].left) {
            struct iovec iov;
            if (tsri_stream_iov(&req->sent[i], &iov, 1, NULL, 0) != 1) return CURL_READFUNC_ABORT;
            size_t k = iov.iov_len < room - done ? iov.iov_len : room - done;
            memcpy(to + done, iov.iov_base, k);
            tsri_stream_advance(&req->sent[i], k);
            done += k;
        }
    note_moved(req, done);
    return done;
}

/* A connection that was kept turned out to be gone: from the beginning, over another one. */
static int on_seek(void *arg, curl_off_t offset, int origin)
{
    struct tsri_s3_http_req *req = arg;
    if (offset != 0 || origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
    memcpy(req->sent, req->bodies, sizeof req->sent);
    return CURL_SEEKFUNC_OK;
}

static uint64_t body_bytes(const struct tsri_s3_http_req *req)
{
    return req->bodies[0].left + req->bodies[1].left;
}

/* ---- one request ---- */

static void set_always(struct tsri_s3_http *h, CURL *easy)
{
    h->curl.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    h->curl.easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    h->curl.easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    h->curl.easy_setopt(easy, CURLOPT_HTTPHEADER, h->headers);
    h->curl.easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)h->timeout_ms);
    h->curl.easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, EXPECT_MS);
    h->curl.easy_setopt(easy, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    h->curl.easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, BUFFER_BYTES);
    h->curl.easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    h->curl.easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    h->curl.easy_setopt(easy, CURLOPT_READFUNCTION, on_read);
    h->curl.easy_setopt(easy, CURLOPT_SEEKFUNCTION, on_seek);
    if (h->ca_file) h->curl.easy_setopt(easy, CURLOPT_CAINFO, h->ca_file);
    if (!h->login->access_key) return;
    h->curl.easy_setopt(easy, CURLOPT_AWS_SIGV4, h->signing);
    h->curl.easy_setopt(easy, CURLOPT_USERNAME, h->login->access_key);
    h->curl.easy_setopt(easy, CURLOPT_PASSWORD, h->login->secret_key);
}

static void set_method(struct tsri_s3_http *h, CURL *easy, const struct tsri_s3_http_req *req)
{
    char range[48];
    switch (req->method) {
    case TSRI_S3_HTTP_GET:
        if (req->range.end == 0) break;
        snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)req->range.begin,
                 (unsigned long long)req->range.end - 1);
        h->curl.easy_setopt(easy, CURLOPT_RANGE, range);
        break;
    case TSRI_S3_HTTP_HEAD:
        h->curl.easy_setopt(easy, CURLOPT_NOBODY, 1L);
        break;
    case TSRI_S3_HTTP_PUT:
        h->curl.easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        h->curl.easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)body_bytes(req));
        break;
    case TSRI_S3_HTTP_POST:
        h->curl.easy_setopt(easy, CURLOPT_POST, 1L);
        h->curl.easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body_bytes(req));
        break;
    case TSRI_S3_HTTP_DELETE:
        h->curl.easy_setopt(easy, CURLOPT_CUSTOMREQUEST, "DELETE");
        break;
    }
}

static void clear_answer(struct tsri_s3_http_req *req)
{
    req->status = 0;
    req->bytes = req->total = 0;
    req->etag[0] = req->why[0] = '\0';
    req->text_bytes = 0;
    req->got = (struct tsri_extent){0, 0};
    req->wrong = false;
    memcpy(req->sent, req->bodies, sizeof req->sent);
    req->active_ns = tsri_now_ns();
}

/* Puts it under way; false without memory. */
static bool start(struct tsri_s3_http *h, struct tsri_s3_http_req *req)
{
    clear_answer(req);
    CURL *easy = h->n_idle ? h->idle[--h->n_idle] : h->curl.easy_init();
    if (!easy) return false;
    h->curl.easy_reset(easy);
    set_always(h, easy);
    h->curl.easy_setopt(easy, CURLOPT_URL, req->url);
    h->curl.easy_setopt(easy, CURLOPT_WRITEDATA, req);
    h->curl.easy_setopt(easy, CURLOPT_HEADERDATA, req);
    h->curl.easy_setopt(easy, CURLOPT_READDATA, req);
    h->curl.easy_setopt(easy, CURLOPT_SEEKDATA, req);
    set_method(h, easy, req);
    req->easy = easy;
    if (h->curl.multi_add_handle(h->multi, easy) != CURLM_OK) {
        h->curl.easy_cleanup(easy);
        req->easy = NULL;
        return false;
    }
    req->next = h->flying;
    h->flying = req;
    h->n_flying++;
    return true;
}

static void finish(struct tsri_s3_http *h, struct tsri_s3_http_req *req, enum tsri_s3_http_end end)
{
    struct tsri_s3_http_req **at = &h->flying;
    while (*at != req)
        at = &(*at)->next;
    *at = req->next;
    h->n_flying--;
    h->curl.multi_remove_handle(h->multi, req->easy);
    h->idle[h->n_idle++] = req->easy;
    req->easy = NULL;
    req->end = end;
    hand_back(req);
}

/* ---- how it ended ---- */

static void describe_error(struct tsri_s3_http_req *req)
{
    char code[TSRI_S3_CODE_BYTES];
    if (req->status / 100 == 2) return;
    if (tsri_s3_element(&req->http->expat, req->text, req->text_bytes, "Code", code, sizeof code) &&
        strspn(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz.") == strlen(code))
        snprintf(req->why, sizeof req->why, "%ld %s", req->status, code);
    else
        snprintf(req->why, sizeof req->why, "%ld", req->status);
}

static enum tsri_s3_http_end how_it_ended(const struct tsri_s3_http *h,
                                          struct tsri_s3_http_req *req, CURLcode result)
{
    curl_off_t length = 0;
    h->curl.easy_getinfo(req->easy, CURLINFO_RESPONSE_CODE, &req->status);
    if (result == CURLE_OK && req->status) {
        if (!req->total &&
            h->curl.easy_getinfo(req->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length) ==
                CURLE_OK &&
            length > 0)
            req->total = (uint64_t)length;
        describe_error(req);
        return TSRI_S3_HTTP_ANSWERED;
    }
    const char *why = req->wrong ? "unexpected response" : h->curl.easy_strerror(result);
    snprintf(req->why, sizeof req->why, "%s", why);
    if (result == CURLE_COULDNT_CONNECT || result == CURLE_COULDNT_RESOLVE_HOST ||
        result == CURLE_COULDNT_RESOLVE_PROXY || result == CURLE_SSL_CONNECT_ERROR ||
        result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_OPERATION_TIMEDOUT)
        return TSRI_S3_HTTP_UNREACHED;
    return TSRI_S3_HTTP_BROKEN;
}

static void take_ended(struct tsri_s3_http *h)
{
    int left;
    CURLMsg *m;
    while ((m = h->curl.multi_info_read(h->multi, &left)) != NULL) {
        if (m->msg != CURLMSG_DONE) continue;
        struct tsri_s3_http_req *req = h->flying;
        while (req && req->easy != m->easy_handle)
            req = req->next;
        if (req) finish(h, req, how_it_ended(h, req, m->data.result));
    }
}

/* Ends what is late, silent or not wanted any more. Returns when the next one may be. */
static uint64_t expire(struct tsri_s3_http *h)
{
    uint64_t now = tsri_now_ns(), silent_ns = (uint64_t)h->timeout_ms * 1000000;
    uint64_t next = now + (uint64_t)POLL_MS_MAX * 1000000;
    for (struct tsri_s3_http_req *req = h->flying, *after; req; req = after) {
        after = req->next;
        if (atomic_load(&req->cancelled)) {
            finish(h, req, TSRI_S3_HTTP_CANCELLED);
        } else if (req->deadline_ns && now >= req->deadline_ns) {
            snprintf(req->why, sizeof req->why, "slower than the deadline");
            finish(h, req, TSRI_S3_HTTP_LATE);
        } else if (now - req->active_ns > silent_ns && now > req->active_ns) {
            snprintf(req->why, sizeof req->why, "no response");
            finish(h, req, TSRI_S3_HTTP_SILENT);
        } else if (req->deadline_ns && req->deadline_ns < next) {
            next = req->deadline_ns;
        }
    }
    return next;
}

/* ---- the thread ---- */

/* One that is due, taken out of the queue. */
static struct tsri_s3_http_req *take_queued(struct tsri_s3_http *h)
{
    pthread_mutex_lock(&h->lock);
    struct tsri_s3_http_req *req = h->queue;
    if (req) h->queue = req->next;
    if (!h->queue) h->queue_end = &h->queue;
    pthread_mutex_unlock(&h->lock);
    return req;
}

static void start_queued(struct tsri_s3_http *h)
{
    while (h->n_flying < h->connections) {
        struct tsri_s3_http_req *req = take_queued(h);
        if (!req) return;
        if (start(h, req)) continue;
        snprintf(req->why, sizeof req->why, "out of memory for a request");
        req->end = TSRI_S3_HTTP_BROKEN;
        hand_back(req);
    }
}

/* What waits in the queue may become late there too. */
static void expire_queued(struct tsri_s3_http *h)
{
    struct tsri_s3_http_req *late = NULL;
    uint64_t now = tsri_now_ns();
    pthread_mutex_lock(&h->lock);
    for (struct tsri_s3_http_req **at = &h->queue; *at;) {
        struct tsri_s3_http_req *req = *at;
        bool cancelled = atomic_load(&req->cancelled);
        if (!cancelled && (!req->deadline_ns || now < req->deadline_ns)) {
            at = &req->next;
            continue;
        }
        *at = req->next;
        req->next = late;
        late = req;
        req->end = cancelled ? TSRI_S3_HTTP_CANCELLED : TSRI_S3_HTTP_LATE;
    }
    h->queue_end = &h->queue;
    while (*h->queue_end)
        h->queue_end = &(*h->queue_end)->next;
    pthread_mutex_unlock(&h->lock);
    while (late) {
        struct tsri_s3_http_req *req = late;
        late = req->next;
        req->status = 0;
        snprintf(req->why, sizeof req->why, "slower than the deadline");
        hand_back(req);
    }
}

/* The limit on bandwidth is one over all requests: the thread itself pauses. */
static void pause_for_throttle(struct tsri_s3_http *h)
{
    uint64_t wait_ns = tsri_throttle_take(h->throttle, h->moved);
    h->moved = 0;
    if (!wait_ns) return;
    uint64_t until = tsri_now_ns() + wait_ns;
    while (tsri_now_ns() < until) {
        uint64_t wake = expire(h);
        pthread_mutex_lock(&h->lock);
        if (!h->closing) (void)tsri_cond_wait(&h->more, &h->lock, wake < until ? wake : until);
        pthread_mutex_unlock(&h->lock);
    }
    for (struct tsri_s3_http_req *req = h->flying; req; req = req->next)
        req->active_ns = tsri_now_ns();
}

static void *work(void *arg)
{
    struct tsri_s3_http *h = arg;
    for (;;) {
        int n_running;
        start_queued(h);
        h->curl.multi_perform(h->multi, &n_running);
        take_ended(h);
        uint64_t next = expire(h), now = tsri_now_ns();
        expire_queued(h);
        pause_for_throttle(h);
        pthread_mutex_lock(&h->lock);
        bool idle = !h->queue && h->n_flying == 0, stop = idle && h->closing;
        bool room = h->queue && h->n_flying < h->connections;
        pthread_mutex_unlock(&h->lock);
        if (stop) return NULL;
        int ms = idle ? 60000 : room ? 0 : next > now ? (int)((next - now + 999999) / 1000000) : 0;
        h->curl.multi_poll(h->multi, NULL, 0, ms, NULL);
    }
}

/* ---- open and close ---- */

static int set_headers(struct tsri_s3_http *h)
{
    char line[4200];
    /* The body is not read twice to hash it: it has checksums of its own, and TLS. */
    h->headers = h->curl.slist_append(NULL, "x-amz-content-sha256: UNSIGNED-PAYLOAD");
    if (!h->headers) return TSR_ENOMEM;
    if (!h->login->access_key || !h->login->token) return 0;
    snprintf(line, sizeof line, "x-amz-security-token: %s", h->login->token);
    struct curl_slist *more = h->curl.slist_append(h->headers, line);
    explicit_bzero(line, sizeof line);
    if (!more) return TSR_ENOMEM;
    h->headers = more;
    return 0;
}

static int start_thread(struct tsri_s3_http *h)
{
    int e = tsri_thread_start(&h->thread, "tessera-s3", work, h);
    if (e) return tsri_fail(TSR_ENOMEM, "s3: cannot start a thread: %s", strerror(e));
    h->has_thread = true;
    return 0;
}

int tsri_s3_http_open(struct tsri_s3_http **out, const struct tsri_s3_http_setup *setup)
{
    struct tsri_s3_http *h = tsri_alloc(1, sizeof *h);
    if (!h) return TSR_ENOMEM;
    h->login = setup->login;
    h->connections = tsri_min_u32(setup->connections, CONNECTIONS_MAX);
    h->timeout_ms = setup->timeout_ms;
    h->throttle = setup->throttle;
    h->queue_end = &h->queue;
    pthread_mutex_init(&h->lock, NULL);
    tsri_cond_init(&h->more);
    char signing[64];
    snprintf(signing, sizeof signing, "aws:amz:%s:s3", setup->region);
    h->signing = tsri_strdup(signing);
    bool has_ca = setup->ca_file && setup->ca_file[0];
    if (has_ca) h->ca_file = tsri_strdup(setup->ca_file);
    int err = h->signing && (h->ca_file || !has_ca) ? 0 : TSR_ENOMEM;
    if (!err) err = tsri_s3_expat_load(&h->expat, TSRI_S3_EXPAT_LIBRARY);
    if (!err) err = tsri_s3_curl_load(&h->curl, TSRI_S3_CURL_LIBRARY);
    if (!err) {
        h->global = h->curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
        h->multi = h->global ? h->curl.multi_init() : NULL;
        err = h->multi ? set_headers(h) : TSR_ENOMEM;
    }
    if (!err) {
        h->curl.multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, (long)h->connections);
        h->curl.multi_setopt(h->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
        err = start_thread(h);
    }
    if (err)
        tsri_s3_http_close(h, false);
    else
        *out = h;
    return err;
}

const struct tsri_s3_expat *tsri_s3_http_expat(const struct tsri_s3_http *h)
{
    return &h->expat;
}

void tsri_s3_http_close(struct tsri_s3_http *h, bool in_child)
{
    if (!h) return;
    if (in_child) { /* libcurl would say goodbye to the server on the parent's connections */
        tsri_free(h->signing);
        tsri_free(h->ca_file);
        tsri_free(h);
        return;
    }
    if (h->has_thread) {
        pthread_mutex_lock(&h->lock);
        h->closing = true;
        pthread_cond_signal(&h->more);
        pthread_mutex_unlock(&h->lock);
        h->curl.multi_wakeup(h->multi);
        pthread_join(h->thread, NULL);
    }
    while (h->n_idle)
        h->curl.easy_cleanup(h->idle[--h->n_idle]);
    if (h->multi) h->curl.multi_cleanup(h->multi);
    if (h->headers) h->curl.slist_free_all(h->headers);
    if (h->global) h->curl.global_cleanup();
    pthread_cond_destroy(&h->more);
    pthread_mutex_destroy(&h->lock);
    tsri_free(h->signing);
    tsri_free(h->ca_file);
    tsri_free(h);
}
