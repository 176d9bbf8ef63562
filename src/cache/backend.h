/* backend.h - where the entries of a cache are. There are two answers: in memory of our own with
 * tiers below it (own.c), or with a server that we are a client of (served.c). Each is one table;
 * tessera.c checks arguments and calls through it, so that no caller asks which of the two it has.
 *
 * Prompts and stores that come here are complete (struct sizes) and of this cache. A forked child
 * gets here with keys and put_abort alone.
 *
 * Threads: any, as the public calls; open and close while no other call is under way.
 * Memory, errors: as in tessera.h.
 */
#ifndef TSRI_BACKEND_H
#define TSRI_BACKEND_H

#include "cache/core.h"

#include <tessera/server.h>

struct tsri_source;

/* What can be done to the entries of a prompt. */
enum tsri_mark { TSRI_MARK_PIN, TSRI_MARK_UNPIN, TSRI_MARK_TOUCH, TSRI_MARK_PREFETCH };

struct tsri_backend {
    /* The cache's threads and tables are there. After an error close is called too. */
    int (*open)(struct tsr_cache *c, const struct tsr_config *cfg);
    /* Before the threads go; nothing is under way. */
    void (*close)(struct tsr_cache *c);
    /* A space was described here for the first time, or again. */
    int (*space_open)(struct tsr_space *space, const struct tsr_space_desc *desc);
    /* Makes the client's connection, if it needs one. */
    int (*client_open)(struct tsri_seat **seat, struct tsr_cache *c);

    int (*lookup)(struct tsr_client *client, const struct tsr_prompt *prompt,
                  struct tsr_lookup_desc *io);
    int (*release)(struct tsr_client *client, uint64_t request_id);
    int (*keys)(struct tsr_space *space, const struct tsr_prompt *prompt, struct tsr_key *keys,
                uint32_t keys_max);
    int (*contains)(struct tsr_cache *c, const struct tsr_key *keys, uint32_t n, int8_t *tiers);
    /* As tsri_cache_lacking and tsri_cache_bring_up. */
    int (*lacking)(struct tsr_space *const *spaces, uint32_t n_spaces,
                   const struct tsr_prompt *prompt, uint32_t from, struct tsri_chain *chain,
                   struct tsr_key *keys, uint64_t *lacking);
    void (*bring_up)(struct tsr_space *space, const struct tsr_prompt *prompt);
    int (*mark)(struct tsr_space *space, const struct tsr_prompt *prompt, enum tsri_mark mark);
    int (*discover)(struct tsr_client *client, struct tsr_space *space,
                    const struct tsr_prompt *prompt);

    /* As tsri_source_open and tsri_source_fetch. */
    uint32_t (*source_open)(struct tsri_source *s);
    int (*source_fetch)(struct tsri_source *s, const atomic_bool *stop);
    int (*store)(struct tsr_client *client, const struct tsr_store_desc *store);
    /* As tsri_cache_put_open. */
    int (*put_open)(struct tsr_put **out, struct tsr_client *client,
                    const struct tsr_store_desc *store, struct tsri_chain *chain);
    int (*put_layer)(struct tsr_put *put, uint32_t layer, const struct tsr_view *view);
    int (*put_commit)(struct tsr_put *put);
    void (*put_abort)(struct tsr_put *put); /* of a forked child too */

    int (*flush)(struct tsr_cache *c);
    /* keys NULL: all that must go. */
    int (*evict)(struct tsr_cache *c, size_t free_bytes, struct tsr_key *keys, uint32_t keys_max);
    int (*list)(struct tsr_cache *c, struct tsr_listed *out, uint32_t max);
    int (*clear)(struct tsr_cache *c, const struct tsr_clear_desc *what);
    void (*freeze)(struct tsr_cache *c, bool frozen);
    int (*stats)(struct tsr_cache *c, struct tsr_stats *out);
    int (*stats_text)(struct tsr_cache *c, const char *format, char *buf, size_t bytes);
    int (*events)(struct tsr_cache *c, struct tsr_event *out, uint32_t max);

    /* 0: it can be used now. */
    int (*connected)(struct tsr_cache *c, uint64_t until_ns);
    int (*shared)(struct tsr_client *client, struct tsr_shared *out);
};

extern const struct tsri_backend tsri_backend_own, tsri_backend_served;

#endif
