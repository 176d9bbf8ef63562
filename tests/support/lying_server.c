/* lying_server.c - one thread for all connections. */
#include "support/lying_server.h"
#include "support/sandbox.h"

#include <poll.h>
#include <sys/un.h>

#define BODY_BYTES ((size_t)64 << 10)

/* One request and its reply; false at the end of the connection. */
static bool serve_one(struct lying_server *s, int fd)
{
    static uint8_t body[BODY_BYTES], frame[BODY_BYTES];
    struct tsri_wire_head head;
    size_t bytes;
    if (recv(fd, frame, TSRI_WIRE_HEAD_BYTES, MSG_WAITALL) != TSRI_WIRE_HEAD_BYTES) return false;
    if (tsri_wire_head_get(frame, &head) != 0 || head.body_bytes > sizeof body) return false;
    if (head.body_bytes && recv(fd, body, head.body_bytes, MSG_WAITALL) != (ssize_t)head.body_bytes)
        return false;
    struct tsri_reply r = {.type = head.type};
    bool hello = head.type == TSRI_WIRE_HELLO;
    if (hello)
        r.welcome = (struct tsri_wire_welcome){.version = TSRI_WIRE_VERSION_MAX,
                                               .pool_bytes = LYING_POOL_BYTES,
                                               .control_bytes = 4096,
                                               .page_bytes = 4096,
                                               .boot_id = 1};
    else
        s->answer(s, &r);
    if (tsri_reply_bytes(&r, &bytes) != 0 || bytes > sizeof frame) abort();
    tsri_reply_encode(&r, head.id, frame, bytes);
    int shared[2] = {s->pool.fd, s->control.fd};
    return tsri_socket_send_fds(fd, frame, bytes, shared, hello ? 2 : 0) == (ssize_t)bytes;
}

static void *serve(void *arg)
{
    struct lying_server *s = arg;
    while (!atomic_load(&s->stop)) {
        struct pollfd polls[LYING_CONNECTIONS + 1];
        for (uint32_t i = 0; i < LYING_CONNECTIONS; i++)
            polls[i] = (struct pollfd){.fd = s->fds[i], .events = POLLIN};
        polls[LYING_CONNECTIONS] = (struct pollfd){.fd = s->listen_fd, .events = POLLIN};
        if (poll(polls, LYING_CONNECTIONS + 1, 10) <= 0) continue;
        for (uint32_t i = 0; i < LYING_CONNECTIONS; i++) {
            if (!polls[i].revents || serve_one(s, s->fds[i])) continue;
            close(s->fds[i]);
            s->fds[i] = -1;
        }
        for (uint32_t i = 0; polls[LYING_CONNECTIONS].revents && i < LYING_CONNECTIONS; i++) {
            if (s->fds[i] >= 0) continue;
            s->fds[i] = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);
            break;
        }
    }
    return NULL;
}

void lying_server_open(struct lying_server *s)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    tmpdir_init(&s->dir);
    snprintf(s->path, sizeof s->path, "%.80s/sock", s->dir.path);
    memcpy(at.sun_path, s->path, strlen(s->path) + 1);
    memset(s->fds, -1, sizeof s->fds);
    atomic_init(&s->stop, false);
    s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(s->listen_fd, (struct sockaddr *)&at, sizeof at) != 0 ||
        listen(s->listen_fd, 8) != 0 ||
        tsri_region_init_shared(&s->pool, "test-pool", LYING_POOL_BYTES) != 0 ||
        tsri_region_init_shared(&s->control, "test-control", 4096) != 0)
        sandbox_stop();
    pthread_create(&s->thread, NULL, serve, s);
}

void lying_server_close(struct lying_server *s)
{
    atomic_store(&s->stop, true);
    pthread_join(s->thread, NULL);
    for (uint32_t i = 0; i < LYING_CONNECTIONS; i++)
        if (s->fds[i] >= 0) close(s->fds[i]);
    close(s->listen_fd);
    tsri_region_fini(&s->pool);
    tsri_region_fini(&s->control);
    tmpdir_fini(&s->dir);
}
