/* puts.h - stores: memory is reserved under the lock, filled without it, then everything becomes
 * visible at once.
 *
 * Threads: a put belongs to one thread at a time.
 * Memory:  a put has its entries and their pages until commit or abort, which both free the handle,
 *          commit also when it fails.
 * Errors:  enum tsr_err. TSR_EAGAIN: the write queue is full; TSR_EFULL: nothing can be evicted.
 */
#ifndef TSRI_PUTS_H
#define TSRI_PUTS_H

#include "cache/core.h"

/* ---- puts.c ---- */

/* Every put begins with this. */
struct tsri_put_base {
    struct tsr_client *client;
    bool sent;                   /* to a server, layer by layer; its blocks are not here */
    uint32_t n_blocks, n_tokens; /* as in struct tsri_put_extent, since it was opened */
};
TSR_MUST int tsri_put_open(struct tsr_put **out, struct tsr_client *client,
                           const struct tsr_store_desc *store, bool use_view,
                           struct tsri_chain *chain);
/* Copies layers [first, first + n) from a view whose strides are set; the view begins at `first`.
 */
TSR_MUST int tsri_put_layers(struct tsr_put *put, uint32_t first, uint32_t n,
                             const struct tsr_view *view);
TSR_MUST int tsri_put_commit(struct tsr_put *put);
void tsri_put_abort(struct tsr_put *put);
/* For those who fill them where they stand (deliver.c), and then say so. */
struct tsri_put_block {
    uint32_t id, n_tokens;
    uint32_t offset; /* of its first token in what is put */
};
struct tsri_put_block tsri_put_block(const struct tsr_put *put, uint32_t i);
const struct tsr_space *tsri_put_space(const struct tsr_put *put);
uint32_t tsri_put_n_tokens(const struct tsr_put *put);
void tsri_put_filled(struct tsr_put *put);
/* All of it in one go. */
TSR_MUST int tsri_put_all(struct tsr_client *client, const struct tsr_store_desc *store);

#endif
