/* wire_client.c - see wire_client.h. */
#include "support/wire_client.h"
#include "support/sandbox.h"
#include "support/fake_tier.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 10000
#define FRAME_MAX ((size_t)32 << 20)

static void must(int result, const char *what)
{
    if (result >= 0) return;
    printf("    %s: %s\n", what, tsr_errmsg());
    sandbox_stop();
}

/* ---- the server ---- */

void server_open_tiers(struct server_kit *s, const char *const *options,
                       struct fake_tier_plan *plans, uint32_t n)
{
    tmpdir_init(&s->dir);
    snprintf(s->path, sizeof s->path, "%.80s/s/sock", s->dir.path);
    struct tsr_config *cfg = kit_config(options);
    must(tsr_config_set(cfg, "owner", "embedded"), "owner");
    must(tsr_config_set(cfg, "server_socket", s->path), "server_socket");
    for (uint32_t i = 0; i < n; i++)
        must(tsr_tier_attach(cfg, &fake_tier, &plans[i]), "attach");
    kit_open_config(&s->k, cfg);
    must(tsr_server_open(&s->server, s->k.cache, cfg), "server");
    tsr_config_close(cfg);
}

void server_open(struct server_kit *s, const char *const *options)
{
    server_open_tiers(s, options, NULL, 0);
}

bool server_end(struct server_kit *s)
{
    tsr_server_close(s->server);
    bool gone = server_metric(s, TSRI_M_sessions) == 0 &&
                server_metric(s, TSRI_M_leased_entries) == 0 && access(s->path, F_OK) != 0;
    bool clean = kit_end(&s->k);
    tmpdir_fini(&s->dir);
    return gone && clean;
}

uint64_t server_metric(struct server_kit *s, enum tsri_metric m)
{
    return tsri_stats_read(s->k.cache->stats, m);
}

bool server_wait_metric(struct server_kit *s, enum tsri_metric m, uint64_t n)
{
    for (int i = 0; i < WAIT_MS; i++) {
        if (server_metric(s, m) == n) return true;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    printf("    metric is %llu, not %llu\n", (unsigned long long)server_metric(s, m),
           (unsigned long long)n);
    return false;
}

bool server_wait_sessions(struct server_kit *s, uint32_t n)
{
    return server_wait_metric(s, TSRI_M_sessions, n);
}

bool server_wait_leased(struct server_kit *s, uint64_t n)
{
    return server_wait_metric(s, TSRI_M_leased_entries, n);
}

/* ---- a client ---- */

bool wc_connect(struct wire_client *c, const char *path)
{
    *c = (struct wire_client){.fd = tsri_socket_connect(path, geteuid())};
    c->frame = malloc(FRAME_MAX);
    return c->fd >= 0 && c->frame;
}

bool wc_stage(struct wire_client *c, size_t bytes)
{
    return tsri_region_init_shared(&c->staging, "test-staging", bytes) == 0;
}

void wc_close(struct wire_client *c)
{
    if (c->fd >= 0) close(c->fd);
    tsri_region_fini(&c->staging);
    tsri_region_fini(&c->pool);
    tsri_region_fini(&c->control);
    free(c->frame);
    *c = (struct wire_client){.fd = -1};
}

bool wc_send_bytes(struct wire_client *c, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    while (n) {
        ssize_t sent = tsri_socket_send_fds(c->fd, at, n, NULL, 0);
        if (sent < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = c->fd, .events = POLLOUT};
            if (poll(&p, 1, WAIT_MS) <= 0) return false;
            continue;
        }
        if (sent <= 0) return false;
        at += sent;
        n -= (size_t)sent;
    }
    return true;
}

uint64_t wc_send(struct wire_client *c, struct tsri_request *r, int32_t status)
{
    size_t bytes;
    if (tsri_request_bytes(r, &bytes) != 0) return 0;
    uint8_t *frame = malloc(bytes);
    if (!frame) return 0;
    uint64_t id = ++c->next_id;
    tsri_request_encode(r, id, status, frame, bytes);
    bool sent = wc_send_bytes(c, frame, bytes);
    free(frame);
    return sent ? id : 0;
}

/* Exactly n bytes; descriptors that come along are added to fds. */
static bool receive(struct wire_client *c, uint8_t *at, size_t n, int *fds, uint32_t *n_fds)
{
    while (n) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        if (poll(&p, 1, WAIT_MS) <= 0) return false;
        ssize_t got = tsri_socket_recv_fds(c->fd, at, n, fds, fds ? 2 : 0, n_fds);
        if (got < 0 && errno == EAGAIN) continue;
        if (got <= 0) return false;
        at += got;
        n -= (size_t)got;
    }
    return true;
}

static bool receive_frame(struct wire_client *c, int *fds, uint32_t *n_fds)
{
    if (!receive(c, c->frame, TSRI_WIRE_HEAD_BYTES, fds, n_fds)) return false;
    if (tsri_wire_head_get(c->frame, &c->head) != 0 || c->head.body_bytes > FRAME_MAX - 24)
        return false;
    uint8_t *body = c->frame + TSRI_WIRE_HEAD_BYTES;
    return receive(c, body, c->head.body_bytes, fds, n_fds) &&
           tsri_reply_decode(&c->reply, &c->head, body) == 0;
}

bool wc_receive(struct wire_client *c)
{
    uint32_t none = 0;
    return receive_frame(c, NULL, &none);
}

int wc_hello(struct wire_client *c, const char *token)
{
    static struct tsri_request r;
    memset(&r, 0, offsetof(struct tsri_request, extra));
    r.type = TSRI_WIRE_HELLO;
    r.hello = (struct tsri_wire_hello){.version_min = TSRI_WIRE_VERSION_MIN,
                                       .version_max = TSRI_WIRE_VERSION_MAX,
                                       .staging_bytes = c->staging.data ? c->staging.bytes : 0,
                                       .token = token,
                                       .token_bytes = token ? (uint32_t)strlen(token) : 0};
    uint8_t frame[512];
    size_t bytes;
    if (tsri_request_bytes(&r, &bytes) != 0 || bytes > sizeof frame) return INT32_MIN;
    tsri_request_encode(&r, ++c->next_id, 0, frame, bytes);
    uint32_t n_fds = c->staging.data ? 1 : 0;
    /* Whether it arrives or not: who may not come at all is told so before it has said anything. */
    (void)tsri_socket_send_fds(c->fd, frame, bytes, &c->staging.fd, n_fds);
    int fds[2] = {-1, -1};
    n_fds = 0;
    bool got = receive_frame(c, fds, &n_fds);
    const struct tsri_wire_welcome *w = &c->welcome;
    c->welcome = c->reply.welcome;
    if (got && c->reply.status == 0 &&
        (n_fds != 2 || tsri_region_init_reader(&c->pool, fds[0], w->pool_bytes) != 0 ||
         tsri_region_init_reader(&c->control, fds[1], w->control_bytes) != 0))
        got = false;
    for (uint32_t i = 0; i < n_fds; i++)
        close(fds[i]);
    return got ? c->reply.status : INT32_MIN;
}

bool wc_open(struct wire_client *c, const char *path, size_t staging_bytes)
{
    return wc_connect(c, path) && (staging_bytes == 0 || wc_stage(c, staging_bytes)) &&
           wc_hello(c, NULL) == 0;
}

int wc_call(struct wire_client *c, struct tsri_request *r)
{
    uint64_t id = wc_send(c, r, 0);
    while (id && wc_receive(c))
        if (c->head.id == id) return c->reply.status;
    return INT32_MIN;
}

bool wc_ends(struct wire_client *c)
{
    uint8_t some[4096];
    for (;;) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        if (poll(&p, 1, WAIT_MS) <= 0) return false;
        ssize_t got = recv(c->fd, some, sizeof some, 0);
        if (got < 0 && errno == EAGAIN) continue;
        if (got <= 0) return true;
    }
}

/* ---- what most tests do ---- */

static struct tsri_request *fresh(struct tsri_request *r, uint16_t type)
{
    memset(r, 0, offsetof(struct tsri_request, extra));
    r->type = type;
    return r;
}

int wc_space(struct wire_client *c, const struct tsr_space_desc *desc)
{
    struct tsri_request r;
    fresh(&r, TSRI_WIRE_SPACE_OPEN)->desc = *desc;
    int e = wc_call(c, &r);
    return e < 0 ? e : (int)c->reply.space.space;
}

int wc_store_segment(struct wire_client *c, const struct tsr_space *model, uint32_t space,
                     const uint32_t *tokens, uint32_t n)
{
    struct tsri_request r;
    fresh(&r, TSRI_WIRE_STORE);
    size_t bytes = n * tsr_space_token_bytes(model);
    if (bytes > c->staging.bytes) return INT32_MIN;
    kit_fill(model, kit_seed(model), tokens, n, c->staging.data);
    r.space = space;
    r.store = (struct tsr_store_desc){.kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = n};
    r.view.bytes = bytes;
    return wc_call(c, &r);
}

int wc_find_segment(struct wire_client *c, uint32_t space, const uint32_t *tokens, uint32_t n,
                    uint64_t lease, struct tsri_wire_match *match)
{
    struct tsri_request r;
    struct tsr_range range;
    fresh(&r, TSRI_WIRE_LOOKUP);
    r.lookup = (struct tsri_wire_lookup){
        .lease = lease, .n_spaces = 1, .matches_max = 1, .spaces = &space};
    r.prompt = kit_segment_prompt(tokens, n, &range);
    int found = wc_call(c, &r);
    if (found > 0) *match = c->reply.matches[0];
    return found;
}

int wc_borrow(struct wire_client *c, const struct tsr_space *model, uint32_t space,
              const struct tsri_wire_match *match, const uint32_t *tokens, uint64_t lease)
{
    struct tsri_request r;
    struct tsr_range range;
    fresh(&r, TSRI_WIRE_RETRIEVE);
    struct tsri_wire_want want = {.match = *match, .space = space};
    r.retrieve = (struct tsri_wire_retrieve){.lease = lease, .n_wants = 1, .wants = &want};
    if (!match->verified) {
        r.retrieve.has_prompt = 1;
        r.prompt = kit_segment_prompt(tokens, match->n_tokens, &range);
    }
    int n = wc_call(c, &r);
    if (n < 0) return n;
    if (n == 0) return c->reply.lent[0].result;
    const struct tsri_shape *shape = &model->shape;
    size_t bytes = match->n_tokens * tsr_space_token_bytes(model);
    struct tsr_view view = {.data = malloc(bytes), .bytes = bytes};
    must(tsri_view_check(shape, &view, match->n_tokens, shape->n_layers), "view");
    struct tsri_cell_move move = {.pool = c->pool.data,
                                  .shape = shape,
                                  .pages = c->reply.pages,
                                  .entry_tokens = c->reply.lent[0].entry_tokens,
                                  .n_tokens = match->n_tokens,
                                  .n_layers = shape->n_layers,
                                  .to_view = true};
    tsri_cells_move(&move, &view);
    bool right =
        kit_right(model, kit_seed(model), tokens, match->n_tokens, 0, shape->n_layers, &view);
    free(view.data);
    return right ? 0 : TSR_ECORRUPT;
}

bool wc_holds(const struct wire_client *c)
{
    const _Atomic uint64_t *words = (const _Atomic uint64_t *)(const void *)c->control.data;
    return atomic_load(&words[c->welcome.slot]) == c->welcome.word;
}
