/* client.h - a cache that a server has. It is used with the calls of tessera.h, nothing else:
 *
 *   1. tsr_config_set(cfg, "owner", "daemon")     option server_socket says where, if need be
 *   2. tsr_cache_open()                                 connects; without a server every lookup misses
 *   3. everything as ever                         tsr_client_lookup, tsr_client_load, tsr_client_store, ...
 *
 * What is different from a cache of one's own:
 *
 * - A server that is away, stopped or slow is a miss. A lookup waits at most server_deadline; while
 *   an answer is overdue others do not wait at all. Loads report TSR_ENOENT, stores and flush
 *   TSR_EAGAIN. The connection is made again by itself; leases end with it.
 * - tsr_client_load() copies out of memory that the server shares, tsr_client_store() through a
 * staging area of
 *   server_staging bytes for each client. One layer of a segment must fit in a quarter of it.
 * - What is stored goes in as a whole: puts that are open at once take at most half of the server's
 *   memory (TSR_EFULL). Pins (tsr_space_pin) are the cache's and outlive the client; leases do not.
 * - tsr_client_release() does not wait and returns 0.
 * - tsr_cache_stats(), tsr_cache_stats_text() and tsr_cache_events() are about the server's cache.
 * - A server that does not want this process (uid, token, version) makes tsr_cache_open() fail.
 *
 * This header has what only such a cache has. Its functions also accept a cache of one's own.
 *
 * Threads, memory, errors, fork: as in tessera.h. */
#ifndef TESSERA_CLIENT_H
#define TESSERA_CLIENT_H

#include <tessera/tessera.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 0 when the server is there, waiting for it at most timeout_ms; else why not (TSR_EAGAIN: nobody
 * answers). A cache of one's own is always there. */
TSR_API TSR_MUST int tsr_cache_connected(struct tsr_cache *cache, int timeout_ms);

/* The memory that a server shares with this client, to be page-locked for a device (such as with
 * cudaHostRegister and cudaHostRegisterReadOnly). It stays mapped until tsr_shared_close, also
 * when the connection is lost; a new connection has new memory. TSR_EUNSUP for a cache of one's
 * own. */
struct tsr_shared {
    size_t size;
    const void *data;
    size_t bytes;
    void *handle; /* for tsr_shared_close */
};
TSR_API TSR_MUST int tsr_shared_open(struct tsr_client *client, struct tsr_shared *out);
TSR_API void tsr_shared_close(struct tsr_shared *shared);

#ifdef __cplusplus
}
#endif
#endif
