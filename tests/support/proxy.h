/* proxy.h - a TCP proxy on loopback that does to a connection what networks do: it delays, limits
 * the rate, cuts connections after so many bytes, refuses them, or takes bytes and gives none. One
 * thread; everything may be changed while it runs. */
#ifndef TSRI_PROXY_H
#define TSRI_PROXY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct proxy {
    int port, to_port, listen_fd;
    char address[64];
    pthread_t thread;
    _Atomic bool stop;
    _Atomic uint32_t delay_ms;        /* before what arrived is passed on */
    _Atomic uint64_t bytes_per_s;     /* each way; 0: no limit */
    _Atomic int64_t cut_down, cut_up; /* bytes to the client, to the server, after which all are
                                       * cut; negative: never */
    _Atomic bool refuse;              /* new connections are closed at once */
    _Atomic bool mute;                /* takes everything and passes on nothing */
    _Atomic uint64_t n_connections, n_down, n_up; /* counted */
};

void proxy_init(struct proxy *p, int to_port);
void proxy_fini(struct proxy *p);
/* Back to a plain wire. */
void proxy_heal(struct proxy *p);

#endif
