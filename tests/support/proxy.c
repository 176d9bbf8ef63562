/* proxy.c - a TCP proxy that does what networks do. */
#include "support/proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LINKS_MAX 64
#define BYTES 65536

/* A connection: [0] the client's side, [1] the server's. */
struct link {
    int fd[2];
    char held[2][BYTES]; /* on its way to fd[i] */
    size_t n_held[2];
    uint64_t due_ns[2];
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int connect_to(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void cut(struct link *l)
{
    struct linger now = {1, 0};
    for (int i = 0; i < 2; i++) {
        if (l->fd[i] < 0) continue;
        setsockopt(l->fd[i], SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(l->fd[i]);
        l->fd[i] = -1;
        l->n_held[i] = 0;
    }
}

static void welcome(struct proxy *p, struct link *links)
{
    int fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC), i = 0, on = 1;
    if (fd < 0) return;
    atomic_fetch_add(&p->n_connections, 1);
    while (i < LINKS_MAX && links[i].fd[0] >= 0)
        i++;
    int to = i < LINKS_MAX && !atomic_load(&p->refuse) ? connect_to(p->to_port) : -1;
    if (to < 0) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    memset(&links[i], 0, sizeof links[i]);
    links[i].fd[0] = fd;
    links[i].fd[1] = to;
}

/* Reads what side `from` has sent. */
static void take(struct proxy *p, struct link *l, int from)
{
    int to = !from;
    uint64_t rate = atomic_load(&p->bytes_per_s);
    size_t room = BYTES - l->n_held[to];
    if (rate && room > rate / 100 + 1) room = rate / 100 + 1; /* of ten milliseconds */
    ssize_t n = recv(l->fd[from], l->held[to] + l->n_held[to], room, MSG_DONTWAIT);
    if (n <= 0) {
        cut(l);
        return;
    }
    if (atomic_load(&p->mute)) return;
    uint64_t wait = (uint64_t)atomic_load(&p->delay_ms) * 1000000;
    if (rate) wait += (uint64_t)n * 1000000000u / rate;
    l->due_ns[to] = now_ns() + wait;
    l->n_held[to] += (size_t)n;
}

/* Passes on what is due; false when all connections are to be cut. */
static bool give(struct proxy *p, struct link *l, int to)
{
    _Atomic int64_t *limit = to == 0 ? &p->cut_down : &p->cut_up;
    int64_t left = atomic_load(limit);
    size_t want = l->n_held[to];
    if (left >= 0 && (int64_t)want > left) want = (size_t)left;
    ssize_t n = want ? send(l->fd[to], l->held[to], want, MSG_NOSIGNAL) : 0;
    if (n < 0) {
        cut(l);
        return true;
    }
    memmove(l->held[to], l->held[to] + n, l->n_held[to] - (size_t)n);
    l->n_held[to] -= (size_t)n;
    atomic_fetch_add(to == 0 ? &p->n_down : &p->n_up, (uint64_t)n);
    if (left < 0) return true;
    atomic_store(limit, left - n);
    return left - n > 0;
}

static void *serve(void *arg)
{
    struct proxy *p = arg;
    struct link *links = calloc(LINKS_MAX, sizeof *links);
    for (int i = 0; i < LINKS_MAX; i++)
        links[i].fd[0] = links[i].fd[1] = -1;
    while (!atomic_load(&p->stop)) {
        struct pollfd fds[1 + 2 * LINKS_MAX] = {{.fd = p->listen_fd, .events = POLLIN}};
        for (int i = 0; i < LINKS_MAX; i++)
            for (int k = 0; k < 2; k++) /* one batch at a time each way */
                fds[1 + 2 * i + k] = (struct pollfd){
                    .fd = links[i].n_held[!k] ? -1 : links[i].fd[k], .events = POLLIN};
        poll(fds, 1 + 2 * LINKS_MAX, 2);
        if (fds[0].revents) welcome(p, links);
        bool whole = true;
        for (int i = 0; i < LINKS_MAX; i++)
            for (int k = 0; k < 2; k++) {
                if (fds[1 + 2 * i + k].revents && links[i].fd[k] >= 0) take(p, &links[i], k);
                if (links[i].fd[k] >= 0 && links[i].n_held[k] && now_ns() >= links[i].due_ns[k])
                    whole = give(p, &links[i], k) && whole;
            }
        for (int i = 0; !whole && i < LINKS_MAX; i++)
            cut(&links[i]);
    }
    for (int i = 0; i < LINKS_MAX; i++)
        cut(&links[i]);
    free(links);
    return NULL;
}

void proxy_heal(struct proxy *p)
{
    atomic_store(&p->delay_ms, 0);
    atomic_store(&p->bytes_per_s, 0);
    atomic_store(&p->cut_down, -1);
    atomic_store(&p->cut_up, -1);
    atomic_store(&p->refuse, false);
    atomic_store(&p->mute, false);
}

void proxy_init(struct proxy *p, int to_port)
{
    memset(p, 0, sizeof *p);
    p->to_port = to_port;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof a;
    p->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(p->listen_fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(p->listen_fd, 64) != 0 ||
        getsockname(p->listen_fd, (struct sockaddr *)&a, &bytes) != 0)
        abort();
    p->port = ntohs(a.sin_port);
    snprintf(p->address, sizeof p->address, "127.0.0.1:%d", p->port);
    proxy_heal(p);
    if (pthread_create(&p->thread, NULL, serve, p) != 0) abort();
}

void proxy_fini(struct proxy *p)
{
    atomic_store(&p->stop, true);
    pthread_join(p->thread, NULL);
    close(p->listen_fd);
}
