/* The client alone: every request ends, as it should and when it should, whatever the server does.
 */
#include "support/s3_stub.h"
#include "support/test.h"
#include "s3/s3.h"

#include <unistd.h>

static struct s3_stub stub;
static struct tsri_s3_login login = {(char *)(uintptr_t) "key", (char *)(uintptr_t) "secret", NULL};
static struct tsri_throttle throttle;
static struct tsri_s3_http *http;
static struct tsri_s3_http_batch batch;
static struct tsri_s3_http_req reqs[40];
static uint8_t bytes[1 << 20], room[1 << 20];

static void open_client(uint32_t connections, uint32_t timeout_ms, uint64_t bytes_per_s)
{
    s3_stub_heal(&stub);
    tsri_throttle_init(&throttle, bytes_per_s);
    tsri_s3_http_batch_init(&batch);
    struct tsri_s3_http_setup setup = {.login = &login,
                                       .region = "us-east-1",
                                       .connections = connections,
                                       .timeout_ms = timeout_ms,
                                       .throttle = &throttle};
    CHECK_INT(tsri_s3_http_open(&http, &setup), 0);
}

static void close_client(void)
{
    tsri_s3_http_close(http, false);
    tsri_s3_http_batch_fini(&batch);
    tsri_throttle_fini(&throttle);
}

static struct tsri_s3_http_req *make(int i, enum tsri_s3_http_method method, const char *path)
{
    struct tsri_s3_http_req *req = &reqs[i];
    memset(req, 0, sizeof *req);
    req->method = method;
    req->batch = &batch;
    snprintf(req->url, sizeof req->url, "%s%s", stub.endpoint, path);
    return req;
}

static struct tsri_s3_http_req *ask(struct tsri_s3_http_req *req)
{
    tsri_s3_http_send(http, req);
    return tsri_s3_http_next(&batch);
}

static void put_object(void)
{
    struct tsri_s3_http_req *req = make(0, TSRI_S3_HTTP_PUT, "/bucket/name");
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    req->bodies[0] = tsri_stream_flat(bytes, 1000);
    req->bodies[1] = tsri_stream_flat(bytes + 1000, sizeof bytes - 1000);
    ask(req);
    CHECK_INT(req->end, TSRI_S3_HTTP_ANSWERED);
    CHECK_INT(req->status, 200);
    CHECK_STR(req->etag, "\"whole\"");
}

static struct tsri_s3_http_req *make_get(int i, uint64_t begin, uint64_t end)
{
    struct tsri_s3_http_req *req = make(i, TSRI_S3_HTTP_GET, "/bucket/name");
    req->range = (struct tsri_extent){begin, end};
    req->sinks[0] = tsri_stream_flat(room + begin, (end - begin) / 3);
    req->sinks[1] =
        tsri_stream_flat(room + begin + (end - begin) / 3, end - begin - (end - begin) / 3);
    return req;
}

TEST(bytes_go_out_and_come_back_by_range)
{
    open_client(4, 5000, 0);
    put_object();
    memset(room, 0, sizeof room);
    int n = 32;
    size_t step = sizeof bytes / (size_t)n;
    for (int i = 0; i < n; i++)
        tsri_s3_http_send(http, make_get(i, (size_t)i * step, (size_t)(i + 1) * step));
    for (int i = 0; i < n; i++) {
        const struct tsri_s3_http_req *req = tsri_s3_http_next(&batch);
        CHECK_INT(req->status, 206);
        CHECK_INT(req->bytes, step);
        CHECK_INT(req->total, sizeof bytes);
    }
    CHECK(memcmp(room, bytes, sizeof bytes) == 0);
    CHECK(atomic_load(&stub.n_links) <= 4);
    struct tsri_s3_http_req *head = ask(make(0, TSRI_S3_HTTP_HEAD, "/bucket/name"));
    CHECK_INT(head->status, 200);
    CHECK_INT(head->total, sizeof bytes);
    CHECK_INT(ask(make(0, TSRI_S3_HTTP_HEAD, "/bucket/none"))->status, 404);
    struct tsri_s3_http_req *miss = make_get(0, 0, 100);
    snprintf(miss->url, sizeof miss->url, "%s/bucket/none", stub.endpoint);
    ask(miss);
    CHECK_INT(miss->status, 404);
    CHECK_STR(miss->why, "404 NoSuchKey");
    CHECK_INT(miss->bytes, 0);
    close_client();
}

TEST(an_answer_to_another_question_is_broken_off)
{
    static const enum s3_fault faults[] = {S3_OTHER_RANGE, S3_NO_RANGE, S3_CUT, S3_HANG_UP,
                                           S3_NO_HTTP};
    open_client(2, 5000, 0);
    put_object();
    for (size_t i = 0; i < TSRI_COUNT(faults); i++) {
        s3_stub_fail(&stub, faults[i], 'G', -1);
        const struct tsri_s3_http_req *req = ask(make_get(0, 1000, 300000));
        CHECK_INT(req->end, TSRI_S3_HTTP_BROKEN);
        CHECK(req->why[0] != '\0');
    }
    s3_stub_heal(&stub);
    /* More than there is room for, of a server that knows no ranges. */
    struct tsri_s3_http_req *req = make(0, TSRI_S3_HTTP_GET, "/bucket/name");
    req->sinks[0] = tsri_stream_flat(room, 1000);
    ask(req);
    CHECK_INT(req->end, TSRI_S3_HTTP_BROKEN);
    CHECK_INT(ask(make_get(0, 1000, 300000))->status, 206);
    close_client();
}

TEST(silence_and_deadlines_end_a_request_in_time)
{
    open_client(2, 300, 0);
    put_object();
    s3_stub_fail(&stub, S3_SILENT, 0, -1);
    uint64_t begin = tsri_now_ns();
    CHECK_INT(ask(make_get(0, 0, 1000))->end, TSRI_S3_HTTP_SILENT);
    uint64_t ms = (tsri_now_ns() - begin) / 1000000;
    CHECK(ms >= 290 && ms < 2000);
    begin = tsri_now_ns();
    for (int i = 0; i < 8; i++) { /* also those that wait for a connection */
        struct tsri_s3_http_req *req = make_get(i, 0, 1000);
        req->deadline_ns = begin + 100 * 1000000u;
        tsri_s3_http_send(http, req);
    }
    for (int i = 0; i < 8; i++)
        CHECK_INT(tsri_s3_http_next(&batch)->end, TSRI_S3_HTTP_LATE);
    CHECK((tsri_now_ns() - begin) / 1000000 < 1500);
    s3_stub_heal(&stub);
    CHECK_INT(ask(make_get(0, 0, 1000))->status, 206);
    close_client();
}

TEST(a_cancelled_request_comes_back_soon)
{
    open_client(1, 60000, 0);
    put_object();
    s3_stub_fail(&stub, S3_SILENT, 0, -1);
    tsri_s3_http_send(http, make_get(0, 0, 1000));
    tsri_s3_http_send(http, make_get(1, 0, 1000)); /* still queued */
    usleep(50000);
    uint64_t begin = tsri_now_ns();
    tsri_s3_http_cancel(http, &reqs[0]);
    tsri_s3_http_cancel(http, &reqs[1]);
    CHECK_INT(tsri_s3_http_next(&batch)->end, TSRI_S3_HTTP_CANCELLED);
    CHECK_INT(tsri_s3_http_next(&batch)->end, TSRI_S3_HTTP_CANCELLED);
    CHECK((tsri_now_ns() - begin) / 1000000 < 2000);
    s3_stub_heal(&stub);
    close_client();
}

TEST(nobody_there_is_told_at_once)
{
    open_client(2, 5000, 0);
    struct tsri_s3_http_req *req = make(0, TSRI_S3_HTTP_GET, "");
    snprintf(req->url, sizeof req->url, "http://127.0.0.1:1/bucket/name");
    uint64_t begin = tsri_now_ns();
    CHECK_INT(ask(req)->end, TSRI_S3_HTTP_UNREACHED);
    CHECK((tsri_now_ns() - begin) / 1000000 < 2000);
    close_client();
}

TEST(bandwidth_is_limited_over_all_requests)
{
    open_client(4, 5000, 4 << 20);
    uint64_t begin = tsri_now_ns();
    put_object();
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 4; i++)
            tsri_s3_http_send(http, make_get(i, (size_t)i << 18, (size_t)(i + 1) << 18));
        for (int i = 0; i < 4; i++)
            CHECK_INT(tsri_s3_http_next(&batch)->status, 206);
        CHECK(memcmp(room, bytes, sizeof bytes) == 0);
    }
    /* 5 MiB at 4 MiB/s, the last of them and a tenth of a second's worth unpaid. */
    uint64_t ms = (tsri_now_ns() - begin) / 1000000;
    CHECK(ms >= 800);
    close_client();
}

int main(void)
{
    s3_stub_init(&stub);
    RUN(bytes_go_out_and_come_back_by_range);
    RUN(an_answer_to_another_question_is_broken_off);
    RUN(silence_and_deadlines_end_a_request_in_time);
    RUN(a_cancelled_request_comes_back_soon);
    RUN(nobody_there_is_told_at_once);
    RUN(bandwidth_is_limited_over_all_requests);
    s3_stub_fini(&stub);
    return test_end();
}
