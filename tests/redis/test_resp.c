/* A connection against a server of our own that says whatever a test wants, in pieces of any size.
 */
#include "redis/redis.h"
#include "support/test.h"
#include "support/tmpdir.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Answers PING, then says `script` in pieces of `step` bytes once it has been sent something. */
struct script {
    struct tmpdir dir;
    char address[300];
    int listen_fd, fd;
    pthread_t thread;
    const char *text;
    size_t bytes, step;
    char heard[65536];
    size_t n_heard;
    bool hang_up;
};

static void *play(void *arg)
{
    struct script *s = arg;
    char buf[4096];
    s->fd = accept(s->listen_fd, NULL, NULL);
    if (recv(s->fd, buf, sizeof buf, 0) <= 0) return NULL; /* PING */
    if (send(s->fd, "+PONG\r\n", 7, MSG_NOSIGNAL) != 7) return NULL;
    ssize_t n = recv(s->fd, s->heard, sizeof s->heard, 0);
    for (size_t at = 0; n > 0 && at < s->bytes; at += s->step) {
        size_t piece = s->bytes - at < s->step ? s->bytes - at : s->step;
        if (send(s->fd, s->text + at, piece, MSG_NOSIGNAL) < 0) break;
    }
    s->n_heard = n > 0 ? (size_t)n : 0;
    if (s->hang_up) shutdown(s->fd, SHUT_WR);
    while (n > 0) {
        n = recv(s->fd, s->heard + s->n_heard, sizeof s->heard - s->n_heard, 0);
        if (n > 0) s->n_heard += (size_t)n;
    }
    return NULL;
}

static struct tsri_resp *begin(struct script *s, const char *text, size_t bytes, size_t step)
{
    memset(s, 0, sizeof *s);
    tmpdir_init(&s->dir);
    snprintf(s->address, sizeof s->address, "unix:%s/s", s->dir.path);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%.100s", s->address + 5);
    s->listen_fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK_INT(bind(s->listen_fd, (struct sockaddr *)&a, sizeof a), 0);
    CHECK_INT(listen(s->listen_fd, 1), 0);
    s->text = text;
    s->bytes = bytes;
    s->step = step;
    pthread_create(&s->thread, NULL, play, s);
    struct tsri_resp *c;
    struct tsri_login login = {0};
    char why[160];
    CHECK_INT(tsri_resp_open(&c, s->address, &login, tsri_now_ns() + 10000000000u, why, sizeof why),
              0);
    return c;
}

static void end(struct script *s, struct tsri_resp *c)
{
    tsri_resp_break(c);
    tsri_resp_close(c);
    pthread_join(s->thread, NULL);
    close(s->fd);
    close(s->listen_fd);
    tmpdir_fini(&s->dir);
}

struct asked {
    struct tsri_resp_req req;
    char value[256];
    int n_done;
};

static struct tsri_stream to_value(struct tsri_resp_req *req, uint64_t bytes)
{
    struct asked *a = req->arg;
    return tsri_stream_flat(a->value, bytes <= sizeof a->value ? bytes : 0);
}

static void was_answered(struct tsri_resp_req *req)
{
    ((struct asked *)req->arg)->n_done++;
}

static void ask(struct tsri_resp *c, struct asked *a)
{
    memset(a, 0, sizeof *a);
    a->req.done = was_answered;
    a->req.sink = to_value;
    a->req.arg = a;
    tsri_req_begin(&a->req, 2, "GET");
    tsri_req_arg(&a->req, "name");
    tsri_resp_send(c, &a->req);
}

/* Moves until everything was answered; 0, or the error. */
static int settle(struct tsri_resp *c)
{
    uint64_t until = tsri_now_ns() + 5000000000u;
    while (tsri_resp_pending(c) && tsri_now_ns() < until) {
        struct pollfd p = {.fd = tsri_resp_fd(c), .events = tsri_resp_events(c)};
        poll(&p, 1, 100);
        int64_t n = tsri_resp_move(c, p.revents);
        if (n < 0) return (int)n;
    }
    return tsri_resp_pending(c) ? TSR_ETIME : 0;
}

TEST(replies_are_understood_however_they_are_cut)
{
    static const char text[] = "+OK\r\n-ERR no\r\n:42\r\n$5\r\nab\r\nc\r\n$-1\r\n$0\r\n\r\n";
    for (size_t step = 1; step < sizeof text; step++) {
        struct script s;
        struct tsri_resp *c = begin(&s, text, sizeof text - 1, step);
        struct asked a[6];
        for (int i = 0; i < 6; i++)
            ask(c, &a[i]);
        CHECK_INT(settle(c), 0);
        CHECK(a[0].req.type == '+' && strcmp(a[0].req.text, "OK") == 0);
        CHECK(tsri_req_says(&a[1].req, "ERR") && !tsri_req_says(&a[1].req, "ER"));
        CHECK(a[2].req.type == ':' && a[2].req.length == 42);
        CHECK(a[3].req.type == '$' && a[3].req.length == 5);
        CHECK(memcmp(a[3].value, "ab\r\nc", 5) == 0);
        CHECK(a[4].req.type == '$' && a[4].req.length == -1);
        CHECK(a[5].req.type == '$' && a[5].req.length == 0);
        for (int i = 0; i < 6; i++)
            CHECK_INT(a[i].n_done, 1);
        end(&s, c);
    }
}

TEST(what_no_server_says_breaks_the_connection)
{
    static const char *const texts[] = {
        "hello\r\n", "\r\n",          "$abc\r\n",        ":\r\n",       ":1x\r\n", "$-2\r\n",
        "*1\r\n",    "$2\r\nabc\r\n", "$9999999999\r\n", "$3\r\nabcXY", "*-1\r\n",
    };
    for (size_t i = 0; i < TSRI_COUNT(texts); i++) {
        struct script s;
        struct tsri_resp *c = begin(&s, texts[i], strlen(texts[i]), 100);
        struct asked a;
        ask(c, &a);
        CHECK_INT(settle(c), TSR_EIO);
        end(&s, c);
        CHECK_INT(a.n_done, 1);
        CHECK_INT(a.req.type, 0);
    }
}

TEST(what_nobody_asked_for_makes_it_stale)
{
    struct script s;
    struct tsri_resp *c = begin(&s, "+a\r\n+unasked\r\n", 14, 4);
    CHECK(!tsri_resp_is_stale(c));
    struct asked a;
    ask(c, &a);
    int err = settle(c);
    for (int i = 0; i < 5000 && !err && !tsri_resp_is_stale(c); i++)
        usleep(1000);
    CHECK(err == TSR_EIO || tsri_resp_is_stale(c));
    end(&s, c);
}

TEST(a_line_without_an_end_is_not_waited_for_in_vain)
{
    char *text = malloc(100000);
    memset(text, '+', 100000);
    struct script s;
    struct tsri_resp *c = begin(&s, text, 100000, 100000);
    struct asked a;
    ask(c, &a);
    CHECK_INT(settle(c), TSR_EIO);
    end(&s, c);
    free(text);
}

TEST(a_server_that_hangs_up_ends_everything_under_way)
{
    struct script s;
    struct tsri_resp *c = begin(&s, "$100\r\nhalf", 10, 100);
    s.hang_up = true;
    struct asked a[2];
    ask(c, &a[0]);
    ask(c, &a[1]);
    CHECK_INT(settle(c), TSR_EIO);
    CHECK_INT(tsri_resp_pending(c), 2);
    tsri_resp_break(c);
    CHECK(a[0].n_done == 1 && a[1].n_done == 1);
    CHECK(a[0].req.type == 0 && a[1].req.type == 0);
    end(&s, c);
}

TEST(commands_and_bodies_arrive_as_they_were_given)
{
    struct script s;
    struct tsri_resp *c = begin(&s, "+OK\r\n+OK\r\n", 10, 100);
    struct asked a[2];
    for (int i = 0; i < 2; i++) {
        memset(&a[i], 0, sizeof a[i]);
        a[i].req.done = was_answered;
        a[i].req.arg = &a[i];
        tsri_req_begin(&a[i].req, 5, "SET");
        tsri_req_arg(&a[i].req, i ? "b" : "a");
        tsri_req_body(&a[i].req, tsri_stream_flat(i ? "12345" : "\r\n", i ? 5 : 2));
        tsri_req_arg(&a[i].req, "EX");
        tsri_req_number(&a[i].req, 60);
        tsri_resp_send(c, &a[i].req);
    }
    CHECK_INT(settle(c), 0);
    end(&s, c);
    static const char want[] =
        "*5\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\n\r\n\r\n$2\r\nEX\r\n$2\r\n60\r\n"
        "*5\r\n$3\r\nSET\r\n$1\r\nb\r\n$5\r\n12345\r\n$2\r\nEX\r\n$2\r\n60\r\n";
    CHECK_INT(s.n_heard, sizeof want - 1);
    CHECK(memcmp(s.heard, want, sizeof want - 1) == 0);
}

TEST(replies_that_are_to_be_ignored_are)
{
    struct script s;
    struct tsri_resp *c = begin(&s, "+OK\r\n$2\r\nhi\r\n", 13, 3);
    struct asked a;
    ask(c, &a);
    a.req.n_ignored = 1;
    CHECK_INT(settle(c), 0);
    CHECK(a.n_done == 1 && a.req.type == '$' && memcmp(a.value, "hi", 2) == 0);
    end(&s, c);
}

TEST(nobody_there_is_told_at_once_and_in_words)
{
    struct tsri_resp *c;
    struct tsri_login login = {0};
    char why[160];
    uint64_t before = tsri_now_ns();
    CHECK_INT(tsri_resp_open(&c, "unix:/nowhere/s", &login, before + 5000000000u, why, sizeof why),
              TSR_EIO);
    CHECK(tsri_now_ns() - before < 4000000000u);
    CHECK(why[0] != '\0');
    CHECK(c == NULL);
    CHECK_INT(tsri_resp_open(&c, "127.0.0.1:1", &login, before + 5000000000u, why, sizeof why),
              TSR_EIO);
}

int main(void)
{
    RUN(replies_are_understood_however_they_are_cut);
    RUN(what_no_server_says_breaks_the_connection);
    RUN(what_nobody_asked_for_makes_it_stale);
    RUN(a_line_without_an_end_is_not_waited_for_in_vain);
    RUN(a_server_that_hangs_up_ends_everything_under_way);
    RUN(commands_and_bodies_arrive_as_they_were_given);
    RUN(replies_that_are_to_be_ignored_are);
    RUN(nobody_there_is_told_at_once_and_in_words);
    return test_end();
}
