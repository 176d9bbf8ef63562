/* Lanes, and what the answers of a server mean. */
#include "support/s3_kit.h"
#include "support/s3_stub.h"
#include "support/test.h"

static struct s3_stub stub;
static struct s3_kit kit;
static struct tsri_s3_http_req req;

static struct tsri_s3 *open_kit(void)
{
    kit = (struct s3_kit){.setup = {.timeout_ms = 1000}};
    CHECK_INT(s3_kit_open(&kit, stub.endpoint), 0);
    CHECK(s3_kit_listed(&kit, 1, 10000));
    return (struct tsri_s3 *)kit.tier;
}

static int meaning(struct tsri_s3 *s, enum tsri_s3_http_end end, enum tsri_s3_http_method method,
                   long status, const char *why)
{
    memset(&req, 0, sizeof req);
    req.end = end;
    req.method = method;
    req.status = status;
    snprintf(req.why, sizeof req.why, "%s", why);
    return tsri_s3_error(s, &req);
}

TEST(a_thing_that_is_not_there_says_nothing_of_the_server)
{
    struct tsri_s3 *s = open_kit();
    for (int i = 0; i < 20; i++) {
        CHECK_INT(meaning(s, TSRI_S3_HTTP_ANSWERED, TSRI_S3_HTTP_GET, 404, "404 NoSuchKey"),
                  TSR_ENOENT);
        CHECK_INT(meaning(s, TSRI_S3_HTTP_ANSWERED, TSRI_S3_HTTP_GET, 412, "412"), TSR_ENOENT);
        CHECK_INT(meaning(s, TSRI_S3_HTTP_ANSWERED, TSRI_S3_HTTP_GET, 416, "416"), TSR_ECORRUPT);
    }
    CHECK_INT(meaning(s, TSRI_S3_HTTP_ANSWERED, TSRI_S3_HTTP_GET, 206, ""), 0);
    CHECK_INT(meaning(s, TSRI_S3_HTTP_ANSWERED, TSRI_S3_HTTP_DELETE, 204, ""), 0);
    CHECK(tsri_breaker_closed(&s->reach) && tsri_breaker_closed(&s->writes));
    CHECK_INT(atomic_load(&s->errors), 0);
    s3_kit_close(&kit);
}

TEST(what_may_pass_opens_the_breaker_after_some_and_what_will_not_at_once)
{
    struct tsri_s3 *s = open_kit();
    CHECK_INT(meaning(s, TSRI_S3_HTTP_ANSWERED, TSRI_S3_HTTP_GET, 503, "503 SlowDown"), TSR_EIO);
    CHECK_INT(meaning(s, TSRI_S3_HTTP_LATE, TSRI_S3_HTTP_GET, 0, "late"), TSR_ETIME);
    CHECK(tsri_breaker_closed(&s->reach));
    CHECK_INT(meaning(s, TSRI_S3_HTTP_ANSWERED, TSRI_S3_HTTP_GET, 206, ""), 0); /* all is well */
    CHECK_INT(meaning(s, TSRI_S3_HTTP_BROKEN, TSRI_S3_HTTP_GET, 0, "broken"), TSR_EIO);
    CHECK_INT(meaning(s, TSRI_S3_HTTP_SILENT, TSRI_S3_HTTP_GET, 0, "silent"), TSR_EIO);
    CHECK(tsri_breaker_closed(&s->reach));
    CHECK_INT(meaning(s, TSRI_S3_HTTP_ANSWERED, TSRI_S3_HTTP_PUT, 500, "500"), TSR_EIO);
    CHECK(!tsri_breaker_closed(&s->reach));
    CHECK_INT(tsri_s3_usable(s), TSR_EIO);
    s3_kit_close(&kit);
    static const struct {
        enum tsri_s3_http_end end;
        long status;
        const char *why;
    } fatal[] = {{TSRI_S3_HTTP_UNREACHED, 0, "nobody"},
                 {TSRI_S3_HTTP_ANSWERED, 403, "403 SignatureDoesNotMatch"},
                 {TSRI_S3_HTTP_ANSWERED, 403, "403 RequestTimeTooSkewed"},
                 {TSRI_S3_HTTP_ANSWERED, 403, "403"},
                 {TSRI_S3_HTTP_ANSWERED, 404, "404 NoSuchBucket"},
                 {TSRI_S3_HTTP_ANSWERED, 301, "301 PermanentRedirect"}};
    for (size_t i = 0; i < TSRI_COUNT(fatal); i++) {
        s = open_kit();
        CHECK(meaning(s, fatal[i].end, TSRI_S3_HTTP_GET, fatal[i].status, fatal[i].why) < 0);
        CHECK_INT(atomic_load(&s->reach.n_opened), 1);
        s3_kit_close(&kit);
    }
}

TEST(writes_that_are_refused_do_not_stop_reads)
{
    struct tsri_s3 *s = open_kit();
    CHECK_INT(meaning(s, TSRI_S3_HTTP_ANSWERED, TSRI_S3_HTTP_PUT, 403, "403 AccessDenied"),
              TSR_EPERM);
    CHECK(tsri_breaker_closed(&s->reach));
    CHECK(!tsri_breaker_closed(&s->writes));
    s3_kit_close(&kit);
    s = open_kit();
    CHECK_INT(meaning(s, TSRI_S3_HTTP_ANSWERED, TSRI_S3_HTTP_PUT, 507, "507"), TSR_EFULL);
    CHECK(!tsri_breaker_closed(&s->writes));
    s3_kit_close(&kit);
}

TEST(lanes_are_taken_in_time_or_not_at_all)
{
    struct tsri_s3 *s = open_kit();
    struct tsri_s3_lane *a = tsri_s3_lane_take(s, 0), *b = tsri_s3_lane_take(s, 0);
    CHECK(a && b && a != b);
    uint64_t begin = tsri_now_ns();
    CHECK(tsri_s3_lane_take(s, begin + 50 * 1000000u) == NULL);
    CHECK((tsri_now_ns() - begin) / 1000000 >= 49);
    tsri_s3_lane_give(s, a);
    CHECK(tsri_s3_lane_take(s, begin + 1000000000u) == a);
    tsri_s3_lane_give(s, a);
    tsri_s3_lane_give(s, b);
    s3_kit_close(&kit);
}

struct count {
    uint32_t n_made, n_answered, n_flying, n_flying_max, n;
};

static enum tsri_s3_make count_make(struct tsri_s3_flow *flow, struct tsri_s3_http_req *r)
{
    static const struct tsr_key key;
    static const uint8_t space[16];
    struct count *c = flow->arg;
    if (c->n_made == c->n) return TSRI_S3_END;
    if (c->n_flying && c->n_made % 5 == 4) return TSRI_S3_LATER;
    tsri_s3_req_entry(flow->s, r, TSRI_S3_HTTP_HEAD, &key, space);
    r->number = c->n_made++;
    if (++c->n_flying > c->n_flying_max) c->n_flying_max = c->n_flying;
    return TSRI_S3_MADE;
}

static void count_answered(struct tsri_s3_flow *flow, struct tsri_s3_http_req *r)
{
    struct count *c = flow->arg;
    c->n_flying--;
    c->n_answered += r->status == 404;
}

TEST(a_flow_answers_everything_within_its_window)
{
    struct tsri_s3 *s = open_kit();
    struct tsri_s3_lane *lane = tsri_s3_lane_take(s, 0);
    static const uint32_t windows[] = {1, 3, 64, 1000};
    for (size_t i = 0; i < TSRI_COUNT(windows); i++) {
        struct count c = {.n = 100};
        struct tsri_s3_flow flow = {.s = s,
                                    .lane = lane,
                                    .window = windows[i],
                                    .arg = &c,
                                    .make = count_make,
                                    .answered = count_answered};
        tsri_s3_flow_run(&flow);
        CHECK_INT(c.n_answered, 100);
        CHECK(c.n_flying_max <= windows[i]);
    }
    tsri_s3_lane_give(s, lane);
    s3_kit_close(&kit);
}

int main(void)
{
    s3_stub_init(&stub);
    RUN(a_thing_that_is_not_there_says_nothing_of_the_server);
    RUN(what_may_pass_opens_the_breaker_after_some_and_what_will_not_at_once);
    RUN(writes_that_are_refused_do_not_stop_reads);
    RUN(lanes_are_taken_in_time_or_not_at_all);
    RUN(a_flow_answers_everything_within_its_window);
    s3_stub_fini(&stub);
    return test_end();
}
