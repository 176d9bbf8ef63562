/* wire_client.h - a client that speaks the protocol and nothing else, for tests of the server: it
 * sends what it is told, right or wrong, and waits at most ten seconds for anything. */
#ifndef TSRI_WIRE_CLIENT_H
#define TSRI_WIRE_CLIENT_H

#include "support/cache_kit.h"
#include "support/tmpdir.h"
#include "wire/wire.h"

#include <tessera/server.h>

/* A cache that serves others at a socket in a folder of its own. */
struct server_kit {
    struct kit k;
    struct tmpdir dir;
    char path[TSRI_SOCKET_PATH_BYTES];
    struct tsr_server *server;
};
/* Options as for kit_open, and those of the server. */
void server_open(struct server_kit *s, const char *const *options);
/* With fake tiers below. */
void server_open_tiers(struct server_kit *s, const char *const *options,
                       struct fake_tier_plan *plans, uint32_t n);
/* False when something did not come back. */
bool server_end(struct server_kit *s);
/* Waits until so many clients are connected; false after ten seconds. */
bool server_wait_sessions(struct server_kit *s, uint32_t n);
/* Waits until a metric has this value. */
bool server_wait_metric(struct server_kit *s, enum tsri_metric m, uint64_t n);
/* Waits until so many entries are leased. */
bool server_wait_leased(struct server_kit *s, uint64_t n);
uint64_t server_metric(struct server_kit *s, enum tsri_metric m);

struct wire_client {
    int fd;
    uint64_t next_id;
    struct tsri_region staging, pool, control; /* no data: not there */
    struct tsri_wire_welcome welcome;
    uint8_t *frame; /* the last one received */
    struct tsri_wire_head head;
    struct tsri_reply reply; /* points into it */
};
/* Connects. */
bool wc_connect(struct wire_client *c, const char *path);
/* The staging area to be shown in hello. */
bool wc_stage(struct wire_client *c, size_t bytes);
/* Says hello and maps what comes back; the status of the reply. */
int wc_hello(struct wire_client *c, const char *token);
/* Both, with a staging area. */
bool wc_open(struct wire_client *c, const char *path, size_t staging_bytes);
void wc_close(struct wire_client *c);

bool wc_send_bytes(struct wire_client *c, const void *bytes, size_t n);
/* The id it was sent with; 0 when it could not be. */
uint64_t wc_send(struct wire_client *c, struct tsri_request *r, int32_t status);
/* The next frame; false when there is none in time. */
bool wc_receive(struct wire_client *c);
/* Sends and waits for the reply, leaving out others; the status, or INT32_MIN when there is none.
 */
int wc_call(struct wire_client *c, struct tsri_request *r);
/* Waits for the end of the connection, reading over what comes before. */
bool wc_ends(struct wire_client *c);
/* Does the session's word still stand in the control page? */
bool wc_holds(const struct wire_client *c);

/* ---- what most tests do ---- */

/* Opens a space; its number, or an error. */
int wc_space(struct wire_client *c, const struct tsr_space_desc *desc);
/* Stores a segment with the kit's KV through the staging area. */
int wc_store_segment(struct wire_client *c, const struct tsr_space *model, uint32_t space,
                     const uint32_t *tokens, uint32_t n);
/* Looks one segment up; tokens found. The match is in *match. */
int wc_find_segment(struct wire_client *c, uint32_t space, const uint32_t *tokens, uint32_t n,
                    uint64_t lease, struct tsri_wire_match *match);
/* Borrows what matches, copies it out of the pool and checks every byte; 0, or why not. The lease
 * stays. */
int wc_borrow(struct wire_client *c, const struct tsr_space *model, uint32_t space,
              const struct tsri_wire_match *match, const uint32_t *tokens, uint64_t lease);

#endif
