/* deliver.h - for engines with their own KV memory, paged or not, in host memory or on an
 * accelerator. Cached KV goes straight into the engine's slots, K rotated to its new position on
 * the way, layer by layer while the engine computes; and from the slots back into the cache.
 *
 *   tsr_delivery_open()         once for each stream of the engine: allocates all memory it needs
 *   tsr_delivery_start()        matches of a lookup, and the slots for their tokens
 *   tsr_delivery_wait_layer()   before layer l is computed: everything it reads is in place
 *   tsr_delivery_finish()       all of it has arrived; the cache may drop the source
 *   tsr_delivery_collect()      the other direction: fills a put (async.h) from the slots
 *
 * Engines that blend text computed in advance have the calls of a blend server, on a cache server's
 * cache or on their own, with the same results:
 *
 *   tsr_kv_cache_register()     once: the engine's KV memory, for the calls below
 *   tsr_kv_cache_store()        stores the KV of a text that was computed alone, from these slots
 *   tsr_kv_cache_lookup()       finds and leases the cached parts of a prompt, in one round trip
 *   tsr_kv_cache_retrieve()     loads them into these slots, K rotated to its new position
 *   tsr_kv_cache_store_final()  stores the blended KV of the whole prompt under its recipe
 *
 * Which tokens to recompute between retrieve and store_final is up to the engine, or to blend.h.
 * KV stored by store_final was computed over approximate KV: it is of kind BLENDED, and only
 * lookups with its tokens and its recipe find it.
 *
 * struct tsr_kv_layout (device.h) describes the engine's memory. It is memory of the device that
 * option `device` names; without that option it is host memory, and the cpu copies. A range comes
 * from the device pool (option device_pool_size) if it is there, otherwise from host memory, after
 * it was fetched if only a lower tier has it.
 *
 * Devices such as cuda reach host memory that is page-locked. Host memory of a cache is locked in
 * the background from open on, that of a server from the first connection on, at a few GB per
 * second. A range that is not locked yet is not delivered (TSR_EAGAIN). Locked memory is resident:
 * all of host_size, also where it holds nothing yet.
 *
 * A client of a cache server (owner: daemon) delivers out of the server's memory. If the server ends
 * the session during a delivery, finish returns TSR_ENOENT: none of it can be used, nor anything
 * computed from it. With a `compute` stream, call finish before an answer leaves the engine.
 *
 * Delivery is as exact as a load: a range at the position where it was computed is copied byte by
 * byte. Any other range is rotated once, by the difference, in float, and rounded once.
 *
 * Streams: work that a device queues (cuda) runs on `stream`, after everything that `compute` had
 *          queued when the delivery started, so slots may still have readers in the queue.
 *          wait_layer then makes `compute` wait, not the caller. Devices without queues (cpu) copy
 *          layer l when it is waited for.
 * Threads: different deliveries from any threads, one delivery from one thread at a time. The same
 *          holds for a registered KV cache.
 * Memory:  everything the desc points to, layers of the layout and factors of the rope included,
 *          stays in place until the delivery is closed or the KV cache unregistered; ranges and
 *          what they point to until finish, the next start, or close. Nothing is allocated after
 *          open, except to verify entries that only the device pool has.
 * Errors:  as in tessera.h. All errors of a start are reported before a byte is written. An error
 *          of wait_layer or finish comes from the device: nothing that was started can be used. A
 *          server that is down is a miss, and TSR_EAGAIN for a store.
 * Fork:    in a child every call is TSR_EFORK; close and unregister are safe.
 */
#ifndef TESSERA_DELIVER_H
#define TESSERA_DELIVER_H

#include <tessera/async.h>
#include <tessera/device.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tsr_delivery_flags {
    /* The space keeps rows in the int8 form of struct tsr_kv_cells: it has TSR_DTYPE_INT8, one head
     * and a k_dim of tsr_int8_row_bytes(). The layout has the engine's own dtype and heads. */
    TSR_DELIVERY_INT8 = 1,
    /* A stream that the delivery opens itself gives way to the engine's (TSR_STREAM_LOW). */
    TSR_DELIVERY_LOW_PRIORITY = 2
};

struct tsr_delivery_desc {
    size_t size;
    struct tsr_space *space;            /* required: of what is delivered and collected */
    const struct tsr_kv_layout *layout; /* required; the struct itself is copied */
    const struct tsr_rope *rope;        /* copied; NULL: ranges that would move are refused */
    void *stream;        /* the engine's (a cudaStream_t) to queue on; NULL: a new one */
    void *compute;       /* the engine's stream that waits for layers; NULL: wait_layer blocks the
                            caller. CUDA's default stream is cudaStreamLegacy, not NULL */
    uint32_t ranges_max; /* of one start; 0: 256 */
    uint32_t tokens_max; /* of all ranges of one start; 0: 32768 */
    uint32_t flags;      /* enum tsr_delivery_flags */
};

/* ---- deliveries --------------------------------------------------------------------------- */

struct tsr_delivery;
/* The client must outlive it. TSR_EDEVICE: the layout is device memory and no device is configured;
 * TSR_ESPACE: layout and space differ. */
TSR_API TSR_MUST int tsr_delivery_open(struct tsr_delivery **out, struct tsr_client *client,
                                       const struct tsr_delivery_desc *desc);
/* Waits for what is queued. Accepts NULL. */
TSR_API void tsr_delivery_close(struct tsr_delivery *d);

/* One range: tokens of a match and their slots. K is rotated to the position that the match has in
 * its prompt, whatever the slots are. */
struct tsr_delivery_range {
    size_t size;
    const struct tsr_match *match;   /* in the delivery's space */
    const struct tsr_prompt *prompt; /* needed for matches that are not verified */
    uint32_t offset, n_tokens;       /* within the match; n_tokens 0: to its end */
    const int64_t *slots;            /* [n_tokens]; -1: the token is skipped */
    int result; /* out: 0, or why the range must be recomputed; none of it was written then */
    uint32_t position_offset; /* K is rotated so many positions further: the prompt does not begin
                                 at position 0 of the engine */
};

/* Starts the delivery of n ranges; a slot may occur once. Returns how many will arrive. The others
 * have their result set: TSR_ENOENT the entry is gone, TSR_ECORRUPT it holds another text,
 * TSR_EUNSUP it has another frequency set or needs a rope, TSR_EAGAIN its host memory is not
 * page-locked for the device yet (load it with tsr_client_load()). freq_set is that of the prompt, see
 * tsr_rope_choose(). Waits for lower tiers. An earlier start that was not finished is given up;
 * some of its layers never arrive. */
TSR_API TSR_MUST int tsr_delivery_start(struct tsr_delivery *d, struct tsr_delivery_range *ranges,
                                        uint32_t n, uint32_t freq_set);
/* Layers 0 .. layer of every range are in place for all work given to `compute` from now on;
 * without `compute`, for the caller. */
TSR_API TSR_MUST int tsr_delivery_wait_layer(struct tsr_delivery *d, uint32_t layer);
/* Waits for the rest and releases the source. */
TSR_API TSR_MUST int tsr_delivery_finish(struct tsr_delivery *d);

/* Fills every layer of a put (tsr_put_open(), in the delivery's space) from the engine's memory:
 * slots[i] is the slot of token i of the put's view, n of them. Runs after what `compute` has
 * queued, and waits until it is done; call tsr_put_commit() next. Chunks that the cache has already
 * are not read. TSR_EAGAIN: host memory of the put is not page-locked for the device yet, and
 * nothing was written; fill the put with tsr_put_layer(), or abort it. TSR_EUNSUP: the same for the
 * memory that a server copies from, for good. */
TSR_API TSR_MUST int tsr_delivery_collect(struct tsr_delivery *d, struct tsr_put *put,
                                          const int64_t *slots, uint32_t n);

/* ---- text computed in advance ------------------------------------------------------------- */

struct tsr_kv_cache;
TSR_API TSR_MUST int tsr_kv_cache_register(struct tsr_kv_cache **out, struct tsr_client *client,
                                           const struct tsr_delivery_desc *desc);
/* Leases stay until they are released. Accepts NULL. */
TSR_API void tsr_kv_cache_unregister(struct tsr_kv_cache *kv);

/* Finds the cached parts of a prompt: its segments (those given, or between separators, if there
 * are any) and runs of stored text at any offset, besides what prompt->flags asks for. Fills at
 * most lookup->matches_max rows, leased under lookup->request_id, which must not be 0, until
 * tsr_client_release(client, request_id). lookup->spaces and n_spaces are not used; the space is
 * the registered one. Lower tiers start to load what matches. Returns the number of tokens covered.
 */
TSR_API TSR_MUST int tsr_kv_cache_lookup(struct tsr_kv_cache *kv, const struct tsr_prompt *prompt,
                                         struct tsr_lookup_desc *lookup);
/* Loads matches into their slots, like tsr_delivery_start() and _finish(); freq_set as there.
 * Returns how many ranges arrived; the others have their result set and must be computed. */
TSR_API TSR_MUST int tsr_kv_cache_retrieve(struct tsr_kv_cache *kv,
                                           struct tsr_delivery_range *ranges, uint32_t n,
                                           uint32_t freq_set);
/* Stores a text that was computed alone, or after store->context; its token i is in slots[i]. kind
 * (0 or SEGMENT) and space of the store need not be set, and view is not used. Returns how many
 * tokens are new. */
TSR_API TSR_MUST int tsr_kv_cache_store(struct tsr_kv_cache *kv, const struct tsr_store_desc *store,
                                        const int64_t *slots);
/* Stores the blended KV of a prompt. store->recipe says how it was made and is required; only
 * lookups with TSR_PROMPT_BLENDED and the same recipe find it. */
TSR_API TSR_MUST int tsr_kv_cache_store_final(struct tsr_kv_cache *kv,
                                              const struct tsr_store_desc *store,
                                              const int64_t *slots);

/* ---- helpers ------------------------------------------------------------------------------ */

/* Chooses the frequency set for a prompt of n_tokens: freq_set of matches, stores and starts. It is
 * 0 except for DYNAMIC and LONGROPE with prompts longer than `trained`. K of one set cannot be
 * rotated into another. */
TSR_API TSR_MUST int tsr_rope_choose(const struct tsr_rope *rope, uint64_t n_tokens,
                                     uint32_t *freq_set);
/* The parameters as canonical text, for struct tsr_space_desc.rope: equal models give equal bytes.
 * Returns the length needed, like snprintf. */
TSR_API TSR_MUST int tsr_rope_text(const struct tsr_rope *rope, char *buf, size_t bytes);
/* Bytes of a row in the int8 form; 0: there is none. */
TSR_API uint32_t tsr_int8_row_bytes(uint32_t n_heads, uint32_t dim);
/* Slots of tokens [first, first + n) of a sequence that begins in blocks[0]. */
TSR_API TSR_MUST int tsr_slots_of_blocks(int64_t *out, const int64_t *blocks, uint32_t n_blocks,
                                         uint32_t block_tokens, uint32_t first, uint32_t n);

#ifdef __cplusplus
}
#endif
#endif
