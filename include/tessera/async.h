/* async.h - store layer by layer, and load and store in the background.
 *
 *   tsr_put_open(), tsr_put_layer(), tsr_put_commit()   a store, one layer at a time
 *   tsr_client_load_start(), tsr_client_store_start()   the plain calls, in the background
 *   tsr_op_wait_layer(), tsr_op_wait()                  until a layer, or all of it, is done
 *
 * Threads, memory, errors, fork: as in tessera.h. What the structs of a background call point to
 * must stay in place until the operation is done; so must the array of loads. */
#ifndef TESSERA_ASYNC_H
#define TESSERA_ASYNC_H

#include <tessera/tessera.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- layer by layer ----------------------------------------------------------------------- */

/* A store in parts: reserve, give every layer once in any order, commit. */
struct tsr_put;
TSR_API TSR_MUST int tsr_put_open(struct tsr_put **out, struct tsr_client *client,
                                  const struct tsr_store_desc *store);
/* One layer; layer_stride of the view is not used. */
TSR_API TSR_MUST int tsr_put_layer(struct tsr_put *put, uint32_t layer,
                                   const struct tsr_view *view);
/* Makes it visible and frees the handle. TSR_EINVAL when a layer is missing; nothing is kept then.
 * If a server does not respond in time (TSR_ETIME) or is lost (TSR_EAGAIN), it may keep it. */
TSR_API TSR_MUST int tsr_put_commit(struct tsr_put *put);
/* Discards it. Accepts NULL. */
TSR_API void tsr_put_abort(struct tsr_put *put);

/* ---- in the background -------------------------------------------------------------------- */

struct tsr_op;
typedef void (*tsr_done_fn)(void *arg, struct tsr_op *op);
/* TSR_EAGAIN when too many operations are in flight (option ops_max). done may be NULL. */
TSR_API TSR_MUST int tsr_client_load_start(struct tsr_op **out, struct tsr_client *client,
                                           struct tsr_load_desc *loads, uint32_t n,
                                           tsr_done_fn done, void *arg);
TSR_API TSR_MUST int tsr_client_store_start(struct tsr_op **out, struct tsr_client *client,
                                            const struct tsr_store_desc *store, tsr_done_fn done,
                                            void *arg);
/* Waits until it is done and returns what the plain call would have returned; TSR_ETIME after
 * timeout_ms (-1: no limit). */
TSR_API TSR_MUST int tsr_op_wait(struct tsr_op *op, int timeout_ms);
/* Loads go layer by layer over all ranges. Waits until layer `layer` of every range that can be
 * loaded has arrived. Ranges whose result is set by then have failed. */
TSR_API TSR_MUST int tsr_op_wait_layer(struct tsr_op *op, uint32_t layer, int timeout_ms);
/* Waits for the end if needed and frees it. Do not call it from its own done callback. */
TSR_API void tsr_op_close(struct tsr_op *op);

#ifdef __cplusplus
}
#endif
#endif
