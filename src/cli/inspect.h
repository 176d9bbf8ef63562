/* inspect.h - what `tessera inspect` takes from a store directory.
 *
 * Threads: one.
 * Memory:  the struct is embedded; close gives back what it holds.
 * Errors:  as in cli.h. */
#ifndef TSRI_CLI_INSPECT_H
#define TSRI_CLI_INSPECT_H

#include "cli/store.h"

/* The entries of one space of a store. */
struct tsri_inspect_store {
    struct tsri_store store; /* entries: those of the space, blended ones left out */
    uint64_t *handles;       /* by entry, in the cache that was filled */
    size_t n_unread;
};
/* Reads what the directory holds, and sets the options of cli->config so that its text fits.
 * `space` is the beginning of a fingerprint in hex; NULL: there is only one. 0, or the exit status
 * after having said why. */
int tsri_inspect_store_open(struct tsri_inspect_store *s, struct tsri_cli *cli, const char *path,
                            const char *space);
/* Makes the space, in which nothing is stored yet, the store's, and puts its text there. */
int tsri_inspect_store_fill(struct tsri_inspect_store *s, struct tsr_space *space);
void tsri_inspect_store_close(struct tsri_inspect_store *s);

#endif
