/* served_kit.h - a kit whose cache a server has, and servers in processes of their own, which can
 * be stopped and killed. */
#ifndef TSRI_SERVED_KIT_H
#define TSRI_SERVED_KIT_H

#include "support/wire_client.h"

/* A kit that is a client of the server at that path. */
void served_kit_open(struct kit *k, const char *path, const char *const *options);

/* A server in another process, with a disk below it. */
struct served {
    struct tmpdir dir;
    char path[TSRI_SOCKET_PATH_BYTES];
    pid_t pid;
};
/* Starts it, for the first time or again, and waits until it listens. */
void served_start(struct served *s, const char *const *options);
void served_stop(struct served *s, int signal);
/* Removes its folder. */
void served_end(struct served *s);

#endif
