/* clients.h - who uses a cache, and what it keeps by leases: pins in the name of a request.
 *
 * Threads: any; client->lock comes before cache->lock.
 */
#ifndef TSRI_CLIENTS_H
#define TSRI_CLIENTS_H

#include "cache/core.h"

/* ---- clients.c: leases ---- */

TSR_MUST int tsri_client_open(struct tsr_client **out, struct tsr_cache *c);
void tsri_client_close(struct tsr_client *client);
/* Its connection, when a server has the cache. */
struct tsri_seat *tsri_client_seat(const struct tsr_client *client);
/* A lookup under a request id replaces what the id had: detach the old leases, lease what was
 * found, then let the old ones go, so that nothing is unprotected in between. */
struct tsri_lease;
struct tsri_lease *tsri_client_detach(struct tsr_client *client, uint64_t request_id);
int tsri_client_let_go(struct tsr_client *client, struct tsri_lease *list);
/* Sets leases aside, so that what a lookup reports is leased whoever else uses the client: as many
 * as there are, at most n. What is not used is given back. */
uint32_t tsri_client_reserve(struct tsr_client *client, uint64_t n);
void tsri_client_unreserve(struct tsr_client *client, uint32_t n);
/* Takes over pins as leases of the request, out of those set aside; they are held (tsri_hold). */
void tsri_client_lease_reserved(struct tsr_client *client, uint64_t request_id, const uint32_t *ids,
                                uint32_t n);
/* The same without setting aside and holding before; false when there is no room, then nothing
 * changed. */
bool tsri_client_lease(struct tsr_client *client, uint64_t request_id, const uint32_t *ids,
                       uint32_t n);
int tsri_client_release(struct tsr_client *client, uint64_t request_id);
/* Those of every request. */
int tsri_client_release_all(struct tsr_client *client);

#endif
