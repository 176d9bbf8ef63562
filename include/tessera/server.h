/* server.h - share a cache between the processes of a machine.
 *
 * The server side, in an engine's process (tesserad is the same as a program of its own):
 *
 *   1. tsr_config_set(cfg, "owner", "embedded")   other processes may map its host memory
 *   2. tsr_cache_open()                           this process uses the cache as usual
 *   3. tsr_server_open()                          a thread that serves others, on a Unix socket
 *
 * The client side:
 *
 *   1. tsr_config_set(cfg, "owner", "daemon")     option server_socket says where, if needed
 *   2. tsr_cache_open()                           connects; without a server every lookup misses
 *   3. the calls of tessera.h, as usual
 *
 * Clients map the server's memory read-only and copy out of it themselves; the server copies in
 * what they store. Only processes with the uid of the server may connect; tesserad can serve
 * several users. What a client holds is released when its process ends.
 *
 * How a client of a cache server differs from a cache of its own:
 *
 * - A server that is down, stopped or slow is a miss. A lookup waits at most server_deadline, and
 *   while an answer is overdue other lookups do not wait at all. Loads report TSR_ENOENT, stores
 *   and flush TSR_EAGAIN. The client reconnects by itself; leases end with the connection.
 * - tsr_client_store() copies through a staging area of server_staging bytes for each client. One
 *   layer of a segment must fit into a quarter of it.
 * - A store becomes visible as a whole. Open puts take at most half of the server's memory
 *   (TSR_EFULL). Pins belong to the cache and outlive the client; leases do not.
 * - tsr_client_release() does not wait and returns 0.
 * - tsr_cache_stats(), tsr_cache_stats_text() and tsr_cache_events() are about the server's cache.
 * - If the server refuses this process (uid, token, version), tsr_cache_open() fails.
 *
 * Threads: one for the server, and some that copy (option server_threads); open and close the
 *          server from one thread. Everything else as in tessera.h.
 * Memory:  close the server before its cache.
 * Errors:  as in tessera.h.
 * Fork:    in a child the server's handle does nothing; closing it is safe.
 */
#ifndef TESSERA_SERVER_H
#define TESSERA_SERVER_H

#include <tessera/tessera.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the server --------------------------------------------------------------------------- */

struct tsr_server;

/* Listens at option server_socket. The cache must have been opened with owner: embedded. TSR_EBUSY:
 * another server is there already. cfg may be NULL (defaults) and is not used after the call. */
TSR_API TSR_MUST int tsr_server_open(struct tsr_server **out, struct tsr_cache *cache,
                                     const struct tsr_config *cfg);
/* Finishes what clients have asked for, for at most a second, then ends their sessions. Accepts
 * NULL. */
TSR_API void tsr_server_close(struct tsr_server *server);
/* The path of its socket. */
TSR_API const char *tsr_server_path(const struct tsr_server *server);

/* ---- its clients -------------------------------------------------------------------------- */

/* Waits at most timeout_ms for the server. 0: it is there; an error says why not (TSR_EAGAIN: no
 * answer). A cache of this process's own is always there. */
TSR_API TSR_MUST int tsr_cache_connected(struct tsr_cache *cache, int timeout_ms);

/* The memory that a server shares with the clients of a cache handle, for page-locking it (such as
 * with cudaHostRegister and cudaHostRegisterReadOnly; with option `device` the library does that
 * itself). It stays mapped until tsr_shared_close(), also when the connection is lost; a server that
 * was started again has new memory. TSR_EUNSUP for a cache of this process's own. */
struct tsr_shared {
    size_t size;
    const void *data;
    size_t bytes;
    void *handle; /* for tsr_shared_close() */
};
TSR_API TSR_MUST int tsr_shared_open(struct tsr_client *client, struct tsr_shared *out);
TSR_API void tsr_shared_close(struct tsr_shared *shared);

#ifdef __cplusplus
}
#endif
#endif
