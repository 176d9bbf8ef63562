/* heir.h - who serves a store when its owner ends. A store has one owner, and the other processes are
 * its clients. An heir watches from a client's process: when the server is gone and the store is free,
 * it opens the store and serves it at the same socket. The client's handle, and those of all others,
 * connect to the new server by themselves; until then their lookups miss.
 *
 * Threads: one, which open starts and close joins.
 * Memory:  what a desc points to is read in open only, but for the cache, which outlives the heir's
 *          thread: close the heir in two steps, around the client's cache.
 * Errors:  enum tsr_err.
 */
#ifndef TSRI_CLI_HEIR_H
#define TSRI_CLI_HEIR_H

#include "cli/cli.h"

struct tsri_heir;

/* `cache`: the client's handle. `store` and `socket`: of the store. Options are those of the command
 * line, read again. */
TSR_MUST int tsri_heir_open(struct tsri_heir **out, struct tsr_cache *cache,
                            const struct tsri_cli *cli, const char *store, const char *socket);
/* Before the client's cache is closed: takes nothing over any more. Accepts NULL. */
void tsri_heir_stop(struct tsri_heir *h);
/* After it: what was stored is on disk, and the server is gone. Accepts NULL. */
void tsri_heir_close(struct tsri_heir *h);

#endif
