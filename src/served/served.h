/* served.h - a cache that a server has (owner: daemon): the same calls, asked of the server. The
 * handle is a tsr_cache that holds no entries, only spaces, threads and numbers of its own; each
 * client has a connection, so that leases end with it and clients do not wait for each other.
 *
 * A server that is away, slow or gone is a miss: nothing here waits longer than server_deadline
 * for what only asks, or server_patience for what moves KV.
 *
 * Threads: a seat's lock is held over one round trip at most, when a space is first used.
 */
#ifndef TSRI_SERVED_H
#define TSRI_SERVED_H

#include "cache/core.h"
#include "served/link.h"

/* A connection, and what its session calls our spaces. */
struct tsri_seat {
    struct tsri_served *served;
    struct tsri_link *link;
    pthread_mutex_t lock;
    /* under lock: */
    uint64_t session; /* that the numbers are of */
    struct tsri_seat_space *spaces;
    struct tsri_answer *opening; /* NULL: none; of a space whose number has not come in time */
    uint32_t opening_id;
    pthread_mutex_t staging_lock; /* one store at a time */
    _Atomic uint64_t last_lease;  /* for loads, besides those of requests */
};

struct tsri_seat_space {
    uint8_t fingerprint[16];
    bool open;
    uint32_t number;
    struct tsri_shape shape; /* as the server lays it out */
};

/* What the server needs to know of a space. */
struct tsri_served_space {
    uint8_t fingerprint[16];
    struct tsr_space_desc desc; /* its texts are ours, in one block */
    char *texts;
};

struct tsri_served {
    struct tsr_cache *c;
    struct tsri_link_desc desc;
    struct tsri_shared_pools *pools;
    char *path, *token;
    uint64_t deadline_ns, patience_ns;
    struct tsri_seat *seat; /* for calls that no client makes */
    struct tsri_served_space *spaces;
    pthread_mutex_t lock; /* of spaces and: */
    uint64_t stored_life; /* of the server that took what is not flushed yet; 0: nothing is */
    uint64_t n_stores;
    /* Lives of the server, the last few: one connection may notice later than another that it was
     * started again. What it had lost when we first knew it does not concern us. */
    struct tsri_served_life {
        uint64_t life, n_lost; /* so many are in cache.losses, or were lost before */
    } lives[4];
    uint32_t n_lives;
};

/* ---- served.c ---- */

void tsri_seat_close(struct tsri_seat *seat);

/* All but its room for extras, zeroed. */
struct tsri_request *tsri_request_clear(struct tsri_request *r, uint16_t type);

/* Which life of the server the session is with, as tsri_link_life says. Ask before storing: what
 * this life loses from then on is told, also after another connection. */
uint64_t tsri_seat_life(struct tsri_seat *seat, uint64_t session);
/* That life of the server has taken a store: a flush must reach the same one. */
void tsri_served_stored(struct tsri_served *r, uint64_t life);

/* ---- served_spaces.c ---- */

/* Keeps what the server needs to know of a space, for every new session. */
TSR_MUST int tsri_served_space_open(struct tsr_space *space, const struct tsr_space_desc *d);
/* Its number and shape in that session. */
TSR_MUST int tsri_seat_space(struct tsri_seat *seat, uint64_t session,
                             const struct tsr_space *space, uint64_t until_ns,
                             struct tsri_seat_space *out);

/* ---- served_store.c ---- */

TSR_MUST int tsri_served_store(struct tsr_client *client, const struct tsr_store_desc *store);
TSR_MUST int tsri_served_put_open(struct tsr_put **out, struct tsr_client *client,
                                  const struct tsr_store_desc *store, struct tsri_chain *chain);
TSR_MUST int tsri_served_put_layer(struct tsr_put *put, uint32_t layer,
                                   const struct tsr_view *view);
/* Is it one of this client and space, for so many tokens? 1: the server has them all. */
TSR_MUST int tsri_served_put_check(const struct tsr_put *put, const struct tsr_client *client,
                                   const struct tsr_space *space, uint32_t n_tokens);
/* Layers of a put that a device writes straight into the staging area, some at a time: while the
 * server copies one part, the next is filled. From open to close no other store of the client goes
 * on. Layers are counted from the put's first one; those of one part, which begins at a multiple of
 * part_layers, are waited for, filled and sent together. */
#define TSRI_STAGE_PARTS 4u
struct tsri_staged_put {
    struct tsri_seat *seat;
    uint64_t session;
    struct tsri_mapping *mapping;
    const struct tsri_shape *shape; /* of the server: [layer][plane][token], packed */
    uint32_t put, n_tokens, layer_first;
    uint32_t part_layers;
    size_t layer_bytes;
    struct tsri_answer *answers[TSRI_STAGE_PARTS];
};
/* Page-locks the staging area for the device, if that needs it; TSR_EUNSUP when it cannot be. */
TSR_MUST int tsri_staged_open(struct tsri_staged_put *s, struct tsr_put *put,
                              struct tsri_device *device);
/* Where layer i goes. */
uint8_t *tsri_staged_layer(const struct tsri_staged_put *s, uint32_t i);
/* Until the server has copied what is in the part of layer i. */
TSR_MUST int tsri_staged_wait(struct tsri_staged_put *s, uint32_t i);
TSR_MUST int tsri_staged_send(struct tsri_staged_put *s, uint32_t i, uint32_t n);
/* Waits for what was sent; returns e, or if that is 0, how it went. */
TSR_MUST int tsri_staged_close(struct tsri_staged_put *s, int e);
TSR_MUST int tsri_served_put_commit(struct tsr_put *put);
void tsri_served_put_abort(struct tsr_put *put);

#endif
