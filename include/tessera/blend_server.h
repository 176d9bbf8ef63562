/* blend_server.h - for engines that blend: text whose KV was computed ahead, alone, and is used
 * wherever it stands in a later prompt. The five calls of a blend server, on a server's cache
 * (owner: daemon, see client.h) or, with the same results, on one of the engine's own.
 *
 *   tsr_kv_cache_register()       once: the engine's KV memory, where the others read and write
 *   tsr_kv_cache_store()      keep the KV of a text that was computed alone, from these slots
 *   tsr_kv_cache_lookup()     all that is known of a prompt, wherever it stands, in one round
 *                                 trip; leased, so that it stays
 *   tsr_kv_cache_retrieve()   into these slots, K turned to its place in the prompt
 *   tsr_kv_cache_store_final()             the blended KV of the whole prompt, for who asks for just that
 *
 * Which tokens to compute anew between retrieve and store_final is the engine's business, or that
 * of blend.h. What store_final keeps was computed over approximate KV: it is of kind BLENDED, named
 * by its tokens and its recipe, and a lookup that does not ask for that recipe never gets it.
 *
 * Threads: a registered cache from one thread at a time; register one for each.
 * Memory:  what the configuration points to stays in place until it is unregistered.
 * Errors:  as in tessera.h; a server that is away is a miss, or TSR_EAGAIN of a store.
 * Fork:    in a child every call is TSR_EFORK; unregister is safe.
 */
#ifndef TESSERA_BLEND_SERVER_H
#define TESSERA_BLEND_SERVER_H

#include <tessera/deliver.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The engine's memory is described as for a delivery (deliver.h). */
struct tsr_kv_cache;
TSR_API TSR_MUST int tsr_kv_cache_register(struct tsr_kv_cache **out, struct tsr_client *client,
                                           const struct tsr_delivery_desc *config);
/* Leases stay until they are released. Accepts NULL. */
TSR_API void tsr_kv_cache_unregister(struct tsr_kv_cache *kv);

/* What is known of the prompt: its segments (those given, or between separators, if there are any)
 * and runs of stored text at any offset, besides what prompt->flags asks for. Fills at most
 * lookup->matches_max rows, leased under lookup->request_id, which is not 0, until
 * tsr_client_release(client, request_id). lookup->spaces and n_spaces are not used: the space is
 * the registered one. Lower tiers begin to bring up what matches. Returns the tokens covered. */
TSR_API TSR_MUST int tsr_kv_cache_lookup(struct tsr_kv_cache *kv, const struct tsr_prompt *prompt,
                                         struct tsr_lookup_desc *lookup);
/* Matches into their slots, as tsr_delivery_start and _finish do; freq_set as there. Returns how
 * many ranges arrived; the others have their result set and must be computed. */
TSR_API TSR_MUST int tsr_kv_cache_retrieve(struct tsr_kv_cache *kv,
                                           struct tsr_delivery_range *ranges, uint32_t n,
                                           uint32_t freq_set);
/* A text that was computed alone, or behind store->context: token i of it stands in slots[i]. Of
 * the store, kind (0 or SEGMENT) and space need not be set and view is not used. Returns how many
 * tokens are new. */
TSR_API TSR_MUST int tsr_kv_cache_store(struct tsr_kv_cache *kv, const struct tsr_store_desc *store,
                                        const int64_t *slots);
/* The same of the blended KV of a prompt; store->recipe says how it was made and is required. Found
 * with TSR_PROMPT_BLENDED and the same recipe, by nobody else. */
TSR_API TSR_MUST int tsr_kv_cache_store_final(struct tsr_kv_cache *kv,
                                              const struct tsr_store_desc *store,
                                              const int64_t *slots);

#ifdef __cplusplus
}
#endif
#endif
