/* s3_upkeep.c - what goes on behind the calls: a server that is down is asked from time to time
 * whether it is back, and the bucket is listed, at the beginning and every s3_list_s seconds, so
 * that what other caches have put there is known without asking for each. A list that breaks off
 * keeps what it has told; only a complete one makes the index forget. */
#include "s3/s3.h"

#include <stdio.h>

#define PAGE_NAMES 1000u
#define AGAIN_S 30u /* after a list that failed */

int tsri_s3_list_page(struct tsri_s3 *s, struct tsri_s3_lane *lane, uint32_t n_max,
                      char token[TSRI_S3_TOKEN_BYTES], tsri_s3_object_fn fn, void *arg)
{
    static const struct tsr_key no_key;
    static const uint8_t no_space[16];
    struct tsri_s3_http_req *req = lane->free;
    char escaped[3 * TSRI_S3_TOKEN_BYTES] = "", dir[3 * TSRI_S3_DIR_MAX + 1];
    if (!tsri_s3_escape(escaped, sizeof escaped, token) || !tsri_s3_escape(dir, sizeof dir, s->dir))
        return tsri_fail(TSR_EIO, "s3: continuation token is too long");
    int err = tsri_region_need(&lane->reply, TSRI_S3_REPLY_MAX);
    if (err) return err;
    tsri_s3_req_entry(s, req, TSRI_S3_HTTP_GET, &no_key, no_space);
    /* In the order of the alphabet, as the signature wants them. */
    int n = snprintf(req->url, sizeof req->url, "%s%s?%s%s%slist-type=2&max-keys=%u&prefix=%s%%2F",
                     s->url, s->path_style ? "" : "/", token[0] ? "continuation-token=" : "",
                     escaped, token[0] ? "&" : "", n_max, dir);
    if (n < 0 || (size_t)n >= sizeof req->url)
        return tsri_fail(TSR_EIO, "s3: continuation token is too long");
    req->sinks[0] = tsri_stream_flat(lane->reply.data, TSRI_S3_REPLY_MAX);
    req->deadline_ns = tsri_s3_deadline(s);
    err = tsri_s3_ask(s, lane, req);
    if (err) return err == TSR_ENOENT ? TSR_EIO : err;
    char before[TSRI_S3_TOKEN_BYTES];
    memcpy(before, token, sizeof before);
    err = tsri_s3_read_list(tsri_s3_http_expat(s->http), (const char *)lane->reply.data, req->bytes,
                            fn, arg, token);
    /* A server that passes over the token would be asked for its first page for ever. */
    if (err >= 0 && token[0] && strcmp(token, before) == 0)
        err = tsri_fail(TSR_ECORRUPT, "s3: listing does not continue");
    if (err < 0) atomic_fetch_add(&s->errors, 1);
    return err;
}

/* ---- the list ---- */

static void add_object(void *arg, const char *name, uint64_t bytes)
{
    struct tsri_s3 *s = arg;
    uint8_t space[16];
    struct tsr_key key;
    if (tsri_s3_is_entry(name, s->dir, space, &key))
        tsri_s3_index_add(&s->index, &key, space, bytes);
}

static bool is_closing(struct tsri_s3 *s)
{
    pthread_mutex_lock(&s->upkeep_lock);
    bool closing = s->closing;
    pthread_mutex_unlock(&s->upkeep_lock);
    return closing;
}

/* All of the bucket that is this tenant's. TSR_EAGAIN when the tier is closed meanwhile. */
static int list_all(struct tsri_s3 *s, struct tsri_s3_lane *lane)
{
    char token[TSRI_S3_TOKEN_BYTES] = "";
    int err;
    tsri_s3_index_begin(&s->index);
    do {
        err = tsri_s3_list_page(s, lane, PAGE_NAMES, token, add_object, s);
        if (err >= 0 && is_closing(s)) return TSR_EAGAIN;
    } while (err >= 0 && token[0]);
    if (err < 0) return err;
    tsri_s3_index_end(&s->index);
    atomic_fetch_add(&s->n_listings, 1);
    return 0;
}

static void ignore_object(void *arg, const char *name, uint64_t bytes)
{
    (void)arg;
    (void)name;
    (void)bytes;
}

/* Whether the server answers and takes our signature; the breaker hears of it. */
static void probe(struct tsri_s3 *s, struct tsri_s3_lane *lane)
{
    char token[TSRI_S3_TOKEN_BYTES] = "";
    (void)!tsri_s3_list_page(s, lane, 1, token, ignore_object, NULL);
}

/* ---- the thread ---- */

/* The lane of the last number is this thread's. */
static void *upkeep(void *arg)
{
    struct tsri_s3 *s = arg;
    struct tsri_s3_lane *lane = &s->lanes[s->n_lanes - 1];
    uint64_t list_ns = 0; /* when the next list is due */
    bool listed = false;
    pthread_mutex_lock(&s->upkeep_lock);
    while (!s->closing) {
        uint64_t now = tsri_now_ns();
        bool up = tsri_breaker_closed(&s->reach);
        uint64_t due = up ? list_ns : tsri_breaker_retry_ns(&s->reach);
        if (now < due) {
            (void)tsri_cond_wait(&s->upkeep_more, &s->upkeep_lock, due);
            continue;
        }
        pthread_mutex_unlock(&s->upkeep_lock);
        if (!up) {
            if (tsri_breaker_try(&s->reach)) probe(s, lane);
            if (!listed && tsri_breaker_closed(&s->reach)) list_ns = 0;
        } else {
            listed = list_all(s, lane) == 0;
            uint32_t wait_s = listed ? s->list_s : AGAIN_S;
            list_ns = wait_s ? tsri_now_ns() + (uint64_t)wait_s * 1000000000 : UINT64_MAX;
        }
        pthread_mutex_lock(&s->upkeep_lock);
    }
    pthread_mutex_unlock(&s->upkeep_lock);
    return NULL;
}

void tsri_s3_failed(struct tsri_s3 *s, bool no_doubt, const char *why)
{
    bool was_closed = tsri_breaker_closed(&s->reach);
    tsri_breaker_failed(&s->reach, no_doubt, why);
    if (!was_closed || tsri_breaker_closed(&s->reach)) return;
    pthread_mutex_lock(&s->upkeep_lock);
    pthread_cond_signal(&s->upkeep_more);
    pthread_mutex_unlock(&s->upkeep_lock);
}

int tsri_s3_upkeep_start(struct tsri_s3 *s)
{
    int e = tsri_thread_start(&s->upkeep, "tessera-s3-keep", upkeep, s);
    if (e) return tsri_fail(TSR_ENOMEM, "s3: cannot start a thread: %s", strerror(e));
    s->has_upkeep = true;
    return 0;
}

void tsri_s3_upkeep_stop(struct tsri_s3 *s)
{
    if (!s->has_upkeep) return;
    pthread_mutex_lock(&s->upkeep_lock);
    s->closing = true;
    pthread_cond_broadcast(&s->upkeep_more);
    pthread_mutex_unlock(&s->upkeep_lock);
    const struct tsri_s3_lane *lane = &s->lanes[s->n_lanes - 1];
    for (uint32_t k = 0; k < TSRI_S3_REQS; k++)
        tsri_s3_http_cancel(s->http, &lane->reqs[k]);
    pthread_join(s->upkeep, NULL);
    s->has_upkeep = false;
}
