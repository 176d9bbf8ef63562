/* lying_server.h - a server that answers what a test tells it to, in a thread: what a client makes of
 * replies that no server of ours would send. */
#ifndef TSRI_LYING_SERVER_H
#define TSRI_LYING_SERVER_H

#include "base/base.h"
#include "support/tmpdir.h"
#include "wire/wire.h"

#include <pthread.h>

#define LYING_CONNECTIONS 8u
#define LYING_POOL_BYTES (1u << 20)

struct lying_server {
    struct tmpdir dir;
    char path[TSRI_SOCKET_PATH_BYTES];
    struct tsri_region pool, control;
    /* Fills in the reply to everything but hello; its type is set, all else is 0. */
    void (*answer)(struct lying_server *s, struct tsri_reply *r);
    void *arg;
    int listen_fd, fds[LYING_CONNECTIONS];
    atomic_bool stop;
    pthread_t thread;
};
/* `answer` and `arg` are set. */
void lying_server_open(struct lying_server *s);
void lying_server_close(struct lying_server *s);

#endif
