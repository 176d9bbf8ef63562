/* ops.h - loads and stores in the background, on the threads of the cache. */
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
