/* test_hello.c - how a session begins, and everything it is refused for: versions, tokens, staging
 * areas, uids, the wrong order. */
#include "daemon/daemon.h"

#include "support/test.h"
#include "support/wire_bytes.h"
#include "support/wire_client.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Is the last reply this error, with these words in it? */
static bool is_error(const struct wire_client *c, int err, const char *words)
{
    char text[300] = "";
    if (c->reply.status != err) {
        printf("    status is %d\n", c->reply.status);
        return false;
    }
    snprintf(text, sizeof text, "%.*s", (int)c->reply.text_bytes, c->reply.text);
    bool has = strstr(text, words) != NULL;
    if (!has) printf("    \"%s\"\n", text);
    return has;
}

TEST(a_client_is_welcomed_with_a_pool_it_can_only_read)
{
    struct server_kit s;
    struct wire_client c;
    server_open(&s, NULL);
    CHECK(wc_connect(&c, s.path));
    CHECK(wc_stage(&c, 1 << 20));
    CHECK_INT(wc_hello(&c, NULL), 0);
    CHECK_INT(c.welcome.version, 3);
    CHECK_INT(c.welcome.page_bytes, 16384);
    CHECK_INT(c.welcome.pool_bytes, 64 * 16384);
    CHECK_INT(c.welcome.block_tokens, s.k.cache->options.chunk_size);
    CHECK(c.welcome.word != 0 && c.welcome.boot_id != 0);
    CHECK(wc_holds(&c));
    CHECK(mprotect(c.pool.data, c.pool.bytes, PROT_READ | PROT_WRITE) != 0);
    CHECK(mprotect(c.control.data, c.control.bytes, PROT_READ | PROT_WRITE) != 0);
    CHECK(server_wait_sessions(&s, 1));
    wc_close(&c);
    CHECK(server_wait_sessions(&s, 0));
    CHECK(server_end(&s));
}

TEST(sessions_have_words_of_their_own_that_never_come_again)
{
    struct server_kit s;
    struct wire_client a, b, again;
    server_open(&s, NULL);
    CHECK(wc_open(&a, s.path, 0) && wc_open(&b, s.path, 0));
    CHECK(a.welcome.slot != b.welcome.slot && a.welcome.word != b.welcome.word);
    CHECK(a.welcome.boot_id == b.welcome.boot_id);
    shutdown(a.fd, SHUT_RDWR);
    CHECK(server_wait_sessions(&s, 1));
    CHECK(!wc_holds(&a) && wc_holds(&b));
    CHECK(wc_open(&again, s.path, 0));
    CHECK_INT(again.welcome.slot, a.welcome.slot);
    CHECK(again.welcome.word != a.welcome.word);
    CHECK(!wc_holds(&a) && wc_holds(&again));
    wc_close(&a), wc_close(&b), wc_close(&again);
    CHECK(server_end(&s));
}

/* A hello made by hand. */
static bool send_hello(struct wire_client *c, uint32_t low, uint32_t high, uint16_t head_version)
{
    struct wire_bytes b;
    wb_head(&b, TSRI_WIRE_HELLO, 5, 0);
    wb_u32(&b, low), wb_u32(&b, high), wb_u64(&b, 0), wb_u64(&b, 0);
    wb_end(&b);
    memcpy(b.data + 4, &head_version, 2);
    return wc_send_bytes(c, b.data, b.n);
}

TEST(versions_that_do_not_meet_are_answered_with_ours)
{
    static const struct {
        uint32_t low, high;
        int status;
    } cases[] = {
        {4, 9, TSR_EVERSION}, {0, 2, TSR_EVERSION}, {4, 3, TSR_EVERSION}, {3, 9, 0}, {0, 3, 0}};
    struct server_kit s;
    server_open(&s, NULL);
    for (size_t i = 0; i < TSRI_COUNT(cases); i++) {
        struct wire_client c;
        CHECK(wc_connect(&c, s.path));
        CHECK(send_hello(&c, cases[i].low, cases[i].high, 1));
        CHECK(wc_receive(&c));
        CHECK_INT(c.reply.status, cases[i].status);
        CHECK_INT(c.head.id, 5);
        if (cases[i].status) {
            CHECK_INT(c.reply.version_min, TSRI_WIRE_VERSION_MIN);
            CHECK_INT(c.reply.version_max, TSRI_WIRE_VERSION_MAX);
            CHECK(is_error(&c, TSR_EVERSION, "client supports versions"));
            CHECK(wc_ends(&c));
        } else {
            CHECK_INT(c.reply.welcome.version, 3);
        }
        wc_close(&c);
    }
    CHECK(server_end(&s));
}

TEST(what_comes_before_hello_or_after_it_again_ends_the_session)
{
    struct server_kit s;
    struct wire_client c;
    struct tsri_request ping = {.type = TSRI_WIRE_PING};
    server_open(&s, NULL);
    CHECK(wc_connect(&c, s.path));
    CHECK_INT(wc_call(&c, &ping), TSR_EPERM);
    CHECK(is_error(&c, TSR_EPERM, "hello first"));
    CHECK(wc_ends(&c));
    wc_close(&c);
    CHECK(wc_open(&c, s.path, 0));
    CHECK(send_hello(&c, 1, 1, 1));
    CHECK(wc_receive(&c));
    CHECK(is_error(&c, TSR_EPERM, "duplicate hello"));
    CHECK(wc_ends(&c));
    wc_close(&c);
    /* A version that was not agreed on. */
    CHECK(wc_open(&c, s.path, 0));
    struct wire_bytes b;
    wb_head(&b, TSRI_WIRE_PING, 6, 0);
    b.data[4] = 4;
    CHECK(wc_send_bytes(&c, b.data, b.n));
    CHECK(wc_receive(&c));
    CHECK(is_error(&c, TSR_EVERSION, "version 4"));
    CHECK(wc_ends(&c));
    wc_close(&c);
    CHECK(server_end(&s));
}

TEST(a_staging_area_that_could_hurt_is_refused)
{
    struct server_kit s;
    server_open(&s, (const char *const[]){"server_staging_max", "1M", NULL});
    for (int i = 0; i < 4; i++) {
        struct wire_client c;
        CHECK(wc_connect(&c, s.path));
        switch (i) {
        case 0: /* not sealed: it could shrink under the server's hands */
            c.staging.fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
            CHECK(ftruncate(c.staging.fd, 4096) == 0);
            break;
        case 1: /* smaller than it says */
            c.staging.fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
            CHECK(ftruncate(c.staging.fd, 4095) == 0);
            CHECK(fcntl(c.staging.fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
            break;
        case 2: /* a file */
            c.staging.fd = open("/proc/self/exe", O_RDONLY);
            break;
        default: /* larger than allowed */
            c.staging.fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
            CHECK(ftruncate(c.staging.fd, 2 << 20) == 0);
            CHECK(fcntl(c.staging.fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
        }
        int fd = c.staging.fd;
        c.staging.data = (uint8_t *)1;
        c.staging.bytes = i == 3 ? 2 << 20 : 4096;
        CHECK_INT(wc_hello(&c, NULL), i == 3 ? TSR_ERANGE : TSR_EPERM);
        CHECK(wc_ends(&c));
        c.staging = (struct tsri_region){.fd = -1};
        close(fd);
        wc_close(&c);
    }
    /* None where one is announced. */
    struct wire_client c;
    struct wire_bytes b;
    CHECK(wc_connect(&c, s.path));
    wb_head(&b, TSRI_WIRE_HELLO, 5, 0);
    wb_u32(&b, 3), wb_u32(&b, 3), wb_u64(&b, 4096), wb_u64(&b, 0);
    wb_end(&b);
    CHECK(wc_send_bytes(&c, b.data, b.n));
    CHECK(wc_receive(&c));
    CHECK(is_error(&c, TSR_EINVAL, "no file descriptor"));
    CHECK(wc_ends(&c));
    wc_close(&c);
    CHECK(server_end(&s));
}

TEST(a_token_that_is_nobodys_is_refused)
{
    struct server_kit s;
    struct wire_client c;
    server_open(&s, NULL);
    CHECK(wc_connect(&c, s.path));
    CHECK_INT(wc_hello(&c, "guess"), TSR_EPERM);
    CHECK(is_error(&c, TSR_EPERM, "token"));
    CHECK(wc_ends(&c));
    wc_close(&c);
    CHECK(server_end(&s));
}

/* Connects as another user; the status of the reply to hello. */
static int as_nobody(const char *path)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct wire_client c;
        if (setgroups(0, NULL) != 0 || setgid(65534) != 0 || setuid(65534) != 0) _exit(99);
        if (!wc_connect(&c, path)) _exit(98);
        _exit(-wc_hello(&c, NULL));
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -100;
    return -WEXITSTATUS(status);
}

TEST(another_user_does_not_even_reach_the_socket)
{
    if (geteuid() != 0) SKIP("only root can try as somebody else");
    struct server_kit s;
    server_open(&s, NULL);
    CHECK(chmod(s.dir.path, 0755) == 0);
    CHECK_INT(as_nobody(s.path), -98);
    CHECK(server_end(&s));
}

TEST(another_user_is_refused_by_its_uid)
{
    if (geteuid() != 0) SKIP("only root can try as somebody else");
    struct server_kit s;
    server_open(&s, (const char *const[]){"server_allow", "4321, 4322", NULL});
    CHECK(chmod(s.dir.path, 0755) == 0);
    CHECK_INT(as_nobody(s.path), TSR_EPERM);
    struct wire_client c; /* the owner may, as always */
    CHECK(wc_open(&c, s.path, 0));
    wc_close(&c);
    CHECK(server_end(&s));
    /* One who may come, but has no cache here. */
    server_open(&s, (const char *const[]){"server_allow", "65534", NULL});
    CHECK(chmod(s.dir.path, 0755) == 0);
    CHECK_INT(as_nobody(s.path), TSR_EPERM);
    CHECK(server_end(&s));
}

int main(void)
{
    RUN(a_client_is_welcomed_with_a_pool_it_can_only_read);
    RUN(sessions_have_words_of_their_own_that_never_come_again);
    RUN(versions_that_do_not_meet_are_answered_with_ours);
    RUN(what_comes_before_hello_or_after_it_again_ends_the_session);
    RUN(a_staging_area_that_could_hurt_is_refused);
    RUN(a_token_that_is_nobodys_is_refused);
    RUN(another_user_does_not_even_reach_the_socket);
    RUN(another_user_is_refused_by_its_uid);
    return test_end();
}
