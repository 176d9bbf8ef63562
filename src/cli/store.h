/* store.h - store directories, for the commands that work on one: ls, verify, evict, clear,
 * compact, warm.
 *
 * Threads: one.
 * Memory:  a struct tsri_store is embedded; close gives back the entries and the tier.
 * Errors:  as in cli.h, unless it says otherwise. */
#ifndef TSRI_CLI_STORE_H
#define TSRI_CLI_STORE_H

#include "cli/cli.h"
#include "tier/tier.h"

struct tsri_store_entry {
    struct tsr_entry_head head;
    tsr_tier_loc loc;
    uint64_t bytes; /* on disk */
    size_t order;   /* 0 goes first */
};

struct tsri_store {
    struct tsr_tier *tier;
    struct tsri_store_entry *entries; /* in eviction order */
    size_t n_entries, n_room;
};

/* 0, or the exit status after having said why. */
int tsri_store_open(struct tsri_store *s, struct tsri_cli *cli, const char *path, bool write);
void tsri_store_close(struct tsri_store *s);
/* 1 when it was there, 0 when not, or an error of the library. */
int tsri_store_drop(struct tsri_store *s, const struct tsri_store_entry *e);
/* These give 0 or the exit status. */
int tsri_store_flush(struct tsri_store *s);
int tsri_store_compact(struct tsri_store *s);

/* The value of --space, the beginning of a fingerprint as ls prints it; NULL if it was not given. 0, or
 * CLI_USAGE. */
int tsri_store_space(const struct tsri_cli *cli, const char **hex);
/* The names of what tessera.h numbers; "?" for other numbers. */
const char *tsri_store_kind(uint32_t kind);
const char *tsri_match_coverage(uint32_t coverage);
const char *tsri_match_context(uint32_t context);
/* KV bytes of one token. */
uint64_t tsri_store_token_bytes(const struct tsr_entry_head *h);

#endif
