/* deliver.h - for engines with KV memory of their own, paged or not, in host memory or on an
 * accelerator: what is found goes into their slots, K turned to its new position on the way, layer
 * by layer while they compute; and back from their slots into the cache.
 *
 *   tsr_delivery_open()         once for each of the engine's streams: takes all memory it needs
 *   tsr_delivery_start()        matches of a lookup, and the slots their tokens shall have
 *   tsr_delivery_wait_layer()   before layer l is computed: what it reads is in place
 *   tsr_delivery_finish()       all of it has arrived; the cache may drop what it came from
 *   tsr_delivery_collect()      the other way: fills a put from the engine's slots
 *
 * The engine's memory is described by struct tsr_kv_layout (device.h), and is memory of the device
 * that option `device` names. Without that option it is host memory, and the cpu moves it. A range
 * is taken from the device pool (option device_pool_size) when it is there, otherwise from host
 * memory, after having been fetched when only a lower tier has it.
 *
 * A cache that a server has (owner: daemon) delivers out of the server's memory, which is
 * page-locked for the device when the first delivery starts. Should the server end the session
 * while something is on its way, TSR_ENOENT from finish says that nothing of it can be used,
 * whatever was computed from it: with a `compute` stream, ask finish before an answer leaves the
 * engine.
 *
 * Exact where a load is: a range at the position at which it was computed is copied byte by byte.
 * Any other is turned once, by the difference, in float, and rounded once.
 *
 * Streams: what a device queues (cuda) runs on `stream` behind everything that `compute` had in its
 *          queue when the delivery started: slots may be given whose last readers are queued still.
 *          wait_layer then lets `compute` wait, not the caller. Devices without queues (cpu) copy
 *          layer l when it is waited for.
 * Threads: different deliveries from any threads, one delivery from one at a time.
 * Memory:  what the configuration points to, layers of the layout and factors of the rope included,
 *          stays in place until the delivery is closed; ranges and what they point to until finish,
 *          the next start, or close. Nothing is allocated after open but to verify what only the
 *          device pool has.
 * Errors:  as in tessera.h. Everything that can be wrong with a start is told before a byte is
 *          written. An error of wait_layer or finish is the device's: nothing of what was started
 *          can be used then.
 * Fork:    in a child every call is TSR_EFORK; close is safe.
 */
#ifndef TESSERA_DELIVER_H
#define TESSERA_DELIVER_H

#include <tessera/device.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tsr_delivery_flags {
    /* The space keeps rows in the int8 form of struct tsr_kv_cells: it has TSR_DTYPE_INT8, one head
     * and a k_dim of tsr_int8_row_bytes(). The layout has the engine's own dtype and heads. */
    TSR_DELIVERY_INT8 = 1
};

struct tsr_delivery_desc {
    size_t size;
    struct tsr_space *space;            /* required: of what is delivered and collected */
    const struct tsr_kv_layout *layout; /* required; the struct itself is copied */
    const struct tsr_rope *rope;        /* copied; NULL: what would have to move is not delivered */
    void *stream;        /* the engine's (a cudaStream_t) to queue on; NULL: one of its own */
    void *compute;       /* the engine's that shall wait for layers; NULL: wait_layer holds the
                            caller. CUDA's default stream is cudaStreamLegacy, not NULL */
    uint32_t ranges_max; /* of one start; 0: 256 */
    uint32_t tokens_max; /* of all ranges of one start; 0: 32768 */
    uint32_t flags;      /* enum tsr_delivery_flags */
};

struct tsr_delivery;
/* The client must outlive it. TSR_EDEVICE: the layout says device memory and no device is
 * configured; TSR_ESPACE: layout and space differ. */
TSR_API TSR_MUST int tsr_delivery_open(struct tsr_delivery **out, struct tsr_client *client,
                                       const struct tsr_delivery_desc *config);
/* Waits for what is queued. Accepts NULL. */
TSR_API void tsr_delivery_close(struct tsr_delivery *d);

/* One range: tokens of a match and their slots. K goes to the position that the match has in its
 * prompt, whatever the slots are. */
struct tsr_delivery_range {
    size_t size;
    const struct tsr_match *match;   /* in the delivery's space */
    const struct tsr_prompt *prompt; /* needed for matches that are not verified */
    uint32_t offset, n_tokens;       /* within the match; n_tokens 0: to its end */
    const int64_t *slots;            /* [n_tokens]; -1: the token is skipped */
    int result; /* out: 0, or why the range must be recomputed; nothing of it was written then */
};

/* Begins the delivery of n ranges; a slot may occur once. Returns how many will arrive. The others
 * have their result set: TSR_ENOENT gone, TSR_ECORRUPT another text, TSR_EUNSUP of another
 * frequency set or in need of a rope. freq_set is the prompt's: tsr_rope_choose(). Waits for lower
 * tiers. What was started before and not finished is given up: some of its layers never come. */
TSR_API TSR_MUST int tsr_delivery_start(struct tsr_delivery *d, struct tsr_delivery_range *ranges,
                                        uint32_t n, uint32_t freq_set);
/* Layers 0 .. layer of every range are in place for whatever `compute` is given from now on;
 * without one, for the caller. */
TSR_API TSR_MUST int tsr_delivery_wait_layer(struct tsr_delivery *d, uint32_t layer);
/* Waits for the rest, and lets go of what it was taken from. */
TSR_API TSR_MUST int tsr_delivery_finish(struct tsr_delivery *d);

/* Every layer of a put (tsr_put_open, in the delivery's space) from the engine's memory: slots[i]
 * is that of the token that the put's view begins with + i, and there are n of them. Runs behind
 * what `compute` has in its queue, and waits until it is done; tsr_put_commit is then due. Chunks
 * the cache has already are not read. */
TSR_API TSR_MUST int tsr_delivery_collect(struct tsr_delivery *d, struct tsr_put *put,
                                          const int64_t *slots, uint32_t n);

/* ---- what a start needs to know ------------------------------------------------------------ */

/* The frequency set that a prompt of n_tokens uses: freq_set of matches, stores and starts. 0 but
 * for DYNAMIC and LONGROPE with prompts longer than `trained`. K of one set cannot be turned into
 * that of another. */
TSR_API TSR_MUST int tsr_rope_choose(const struct tsr_rope *rope, uint64_t n_tokens,
                                     uint32_t *freq_set);
/* The parameters as canonical text, for struct tsr_space_desc.rope: equal models give equal bytes.
 * Returns the length it needs, like snprintf. */
TSR_API TSR_MUST int tsr_rope_text(const struct tsr_rope *rope, char *buf, size_t bytes);
/* Bytes of a row in the int8 form; 0: there is none. */
TSR_API uint32_t tsr_int8_row_bytes(uint32_t n_heads, uint32_t dim);
/* Slots of tokens [first, first + n) of a sequence that stands in these blocks, from token 0 on. */
TSR_API TSR_MUST int tsr_slots_of_blocks(int64_t *out, const int64_t *blocks, uint32_t n_blocks,
                                         uint32_t block_tokens, uint32_t first, uint32_t n);

#ifdef __cplusplus
}
#endif
#endif
