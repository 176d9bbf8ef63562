/* ops.h - loads and stores in the background, on the threads of the cache.
 *
 * Threads: any; ops->lock is a leaf. `done` runs on a thread of the cache, without a lock.
 * Memory:  ops_max operations are taken at open; an operation is the caller's again after its close.
 *          What a load or store points to is borrowed until the operation is done.
 * Errors:  TSR_EAGAIN when ops_max operations or the queue are full.
 */
#ifndef TSRI_OPS_H
#define TSRI_OPS_H

#include "cache/core.h"

/* ---- ops.c: asynchronous operations ---- */

struct tsri_ops;
TSR_MUST int tsri_ops_open(struct tsri_ops **out, struct tsr_cache *c);
void tsri_ops_close(struct tsri_ops *ops);
struct tsri_work *tsri_ops_work(struct tsri_ops *ops);
struct tsri_op_desc {
    struct tsr_client *client;
    struct tsr_load_desc *loads; /* a load, or */
    uint32_t n_loads;
    const struct tsr_store_desc *store; /* a store */
    tsr_done_fn done;
    void *arg;
};
TSR_MUST int tsri_op_start(struct tsr_op **out, struct tsri_ops *ops,
                           const struct tsri_op_desc *desc);

#endif
