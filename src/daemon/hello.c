/* hello.c - how a session begins: the version both speak, the tenant, the client's staging area,
 * and in return the pool and the control page. A client that cannot be served is told why and cut
 * off. */
#include "daemon/daemon.h"

#include <errno.h>
#include <unistd.h>

static int agree(const struct tsri_wire_hello *h, uint32_t *version)
{
    uint32_t low = h->version_min > TSRI_WIRE_VERSION_MIN ? h->version_min : TSRI_WIRE_VERSION_MIN;
    uint32_t high = tsri_min_u32(h->version_max, TSRI_WIRE_VERSION_MAX);
    if (low > high)
        return tsri_fail(TSR_EVERSION, "client supports versions %u to %u, server %u to %u",
                         h->version_min, h->version_max, TSRI_WIRE_VERSION_MIN,
                         TSRI_WIRE_VERSION_MAX);
    *version = high;
    return 0;
}

static int take_staging(struct tsri_session *x, uint64_t bytes)
{
    if (bytes == 0) return 0;
    if (bytes > x->server->staging_max)
        return tsri_fail(TSR_ERANGE, "staging area of %llu bytes, server_staging_max is %llu",
                         (unsigned long long)bytes, (unsigned long long)x->server->staging_max);
    if (x->staging_fd < 0) return tsri_fail(TSR_EINVAL, "hello: no file descriptor received");
    int e = tsri_region_init_remote(&x->staging, x->staging_fd, (size_t)bytes);
    if (e == 0) x->staging_fd = -1; /* the region's now */
    return e;
}

/* The word of its row in the control page gets a value that it never had. */
static uint64_t take_word(struct tsri_session *x)
{
    _Atomic uint64_t *words = (_Atomic uint64_t *)(void *)x->server->control.data;
    uint64_t word = ++x->server->last_word;
    atomic_store(&words[x->row], word);
    return word;
}

static int begin(struct tsri_session *x, const struct tsri_wire_hello *h,
                 struct tsri_wire_welcome *w)
{
    struct tsr_server *s = x->server;
    int e = agree(h, &w->version);
    if (e) return e;
    x->tenant = tsri_server_tenant(s, x->peer.uid, h->token, h->token_bytes);
    if (!x->tenant && h->token_bytes) return tsri_fail(TSR_EPERM, "unknown token");
    if (!x->tenant) return tsri_fail(TSR_EPERM, "uid %u needs a token", x->peer.uid);
    e = tsri_share_join(x, tsri_share_of(s, x->tenant));
    if (e == 0) e = take_staging(x, h->staging_bytes);
    if (e == 0) e = tsr_client_open(&x->client, x->tenant->cache);
    if (e) return e;
    w->word = take_word(x);
    const struct tsr_cache *c = x->tenant->cache;
    const struct tsri_options *o = tsri_cache_options(c);
    struct tsri_cache_memory memory = tsri_cache_memory(c);
    w->slot = x->row;
    w->pool_bytes = (uint64_t)memory.n_pages * memory.page_bytes;
    w->control_bytes = s->control.bytes;
    w->page_bytes = memory.page_bytes;
    w->block_tokens = o->chunk_size;
    w->body_max = TSRI_WIRE_BODY_MAX;
    w->leases_max = o->lease_entries_max;
    w->calls_max = TSRI_CALLS_MAX;
    w->hash = (uint32_t)o->hash;
    w->boot_id = s->boot_id;
    w->n_lost = tsri_cache_n_lost(c);
    return 0;
}

/* Nothing was sent before, so a fresh socket takes the few bytes at once. */
static bool send_welcome(struct tsri_session *x, uint64_t id, struct tsri_reply *r)
{
    uint8_t frame[256];
    size_t bytes;
    int fds[2] = {tsri_cache_memory(x->tenant->cache).fd, x->server->control.fd};
    if (tsri_reply_bytes(r, &bytes) != 0 || bytes > sizeof frame) return false;
    tsri_reply_encode(r, id, frame, bytes);
    return tsri_socket_send_fds(x->fd, frame, bytes, fds, 2) == (ssize_t)bytes;
}

void tsri_hello(struct tsri_session *x, const struct tsri_wire_head *head,
                const struct tsri_request *r)
{
    struct tsri_reply reply = {.type = TSRI_WIRE_HELLO};
    int e = begin(x, &r->hello, &reply.welcome);
    if (e) {
        tsri_stats_add(tsri_server_stats(x->server), TSRI_M_sessions_refused, 1);
        tsri_session_fail(x, head, e);
        tsri_session_flush(x);
        tsri_session_end(x, tsr_errmsg());
        return;
    }
    if (x->staging_fd >= 0) close(x->staging_fd);
    x->staging_fd = -1;
    if (!send_welcome(x, head->id, &reply)) {
        tsri_session_end(x, "cannot send the welcome");
        return;
    }
    x->state = TSRI_SESSION_OPEN;
    tsri_log(TSR_LOG_INFO, "server: process %d of uid %u connected to %s", (int)x->peer.pid,
             x->peer.uid, x->tenant->name);
}
