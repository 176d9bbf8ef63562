/* server.h - lets other processes of this machine use a cache: the engine's own, with the server as
 * a thread of its process, or tesserad's. Users of such a cache need client.h alone.
 *
 *   1. tsr_config_set(cfg, "owner", "embedded")   its host memory can then be mapped by others
 *   2. tsr_cache_open()                                 the cache; this process uses it as always
 *   3. tsr_server_open()                          a thread that serves others, on a Unix socket
 *
 * Clients map the cache's memory read-only and copy out of it themselves; what they store the
 * server copies in. Only processes of this one's uid may connect; a cache for several users is
 * tesserad's work. What a client holds is gone with its process.
 *
 * Threads: one for the server, and some that copy (option server_threads); open and close from one
 *          thread.
 * Memory:  the cache must be closed after the server.
 * Errors:  as in tessera.h.
 * Fork:    in a child the handle does nothing; close is safe.
 */
#ifndef TESSERA_SERVER_H
#define TESSERA_SERVER_H

#include <tessera/tessera.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tsr_server;

/* Listens at option server_socket. The cache must have been opened with owner: embedded. TSR_EBUSY:
 * another server is there already. cfg may be NULL (defaults) and is not used afterwards. */
TSR_API TSR_MUST int tsr_server_open(struct tsr_server **out, struct tsr_cache *cache,
                                     const struct tsr_config *cfg);
/* Finishes what clients have asked for, as far as a second goes, then ends their sessions. Accepts
 * NULL. */
TSR_API void tsr_server_close(struct tsr_server *server);
/* Where it listens. */
TSR_API const char *tsr_server_path(const struct tsr_server *server);

#ifdef __cplusplus
}
#endif
#endif
