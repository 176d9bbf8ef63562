/* worker.c - a process that uses the library as a program would: it opens a cache, or is a client
 * of a server, and does what the driver asks over a socket. Every byte that a load gives is
 * compared here. Arguments: the socket's descriptor, the shape, whether tenants are the server's
 * (1) or salts (0), whether to serve others (1), then options key=value. */
#include "life/life.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <tessera/server.h>
#include <unistd.h>

#define THREADS 3u
#define OPS 14u /* of a thread in a burst */

static struct worker {
    const struct life_shape *shape;
    bool apart; /* tenants are the server's business: this process is one of them */
    struct tsr_cache *cache;
    struct tsr_client *client;
    struct tsr_space *spaces[LIFE_TENANTS][LIFE_SPACES];
    struct tsr_server *server;
} w;

static void say(char *text, size_t bytes, const char *what)
{
    snprintf(text, bytes, "%s: %s", what, tsr_errmsg());
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void *need(size_t bytes)
{
    void *p = malloc(bytes);
    if (!p) abort();
    return p;
}

/* ---- opening ---- */

/* Keys of every entry of a space, asked for once: they follow from the tokens. */
static struct names {
    struct tsr_key keys[LIFE_TEXTS * LIFE_BLOCKS];
    uint32_t first[LIFE_TEXTS + 1];
} * names[LIFE_TENANTS][LIFE_SPACES];

static int open_spaces(void)
{
    int e = 0;
    for (uint32_t t = 0; t < LIFE_TENANTS; t++)
        for (uint32_t s = 0; s < LIFE_SPACES && e == 0; s++) {
            struct tsr_space_desc desc = {.size = sizeof desc,
                                          .model = s ? "life-b" : "life-a",
                                          .salt = w.apart ? NULL
                                                  : t     ? "tenant-b"
                                                          : "tenant-a",
                                          .dtype = TSR_DTYPE_F32,
                                          .n_layers = w.shape->n_layers,
                                          .n_heads = 1,
                                          .k_dim = w.shape->k_dim,
                                          .block_tokens = LIFE_BLOCK_TOKENS};
            e = tsr_space_open(&w.spaces[t][s], w.cache, &desc);
        }
    return e;
}

static int open_all(int argc, char **argv, bool serves)
{
    struct tsr_config *cfg;
    int e = tsr_config_open(&cfg);
    for (int i = 0; i < argc && e == 0; i++) {
        char *equals = strchr(argv[i], '=');
        *equals = '\0';
        e = tsr_config_set(cfg, argv[i], equals + 1);
    }
    if (e == 0) e = tsr_cache_open(&w.cache, cfg);
    if (e == 0) e = open_spaces();
    if (e == 0) e = tsr_client_open(&w.client, w.cache);
    if (e == 0 && serves) e = tsr_server_open(&w.server, w.cache, cfg);
    tsr_config_close(cfg);
    return e;
}

static void close_all(void)
{
    tsr_server_close(w.server);
    tsr_client_close(w.client);
    for (uint32_t t = 0; t < LIFE_TENANTS; t++)
        for (uint32_t s = 0; s < LIFE_SPACES; s++)
            tsr_space_close(w.spaces[t][s]), free(names[t][s]);
    tsr_cache_close(w.cache);
}

/* ---- prompts ---- */

struct ask {
    struct life_text text;
    struct tsr_prompt prompt;
    struct tsr_range segments[2];
};

static void ask_make(struct ask *a, uint32_t text)
{
    struct life_text *t = &a->text;
    life_text_make(t, w.shape, text);
    a->prompt =
        (struct tsr_prompt){.size = sizeof a->prompt, .tokens = t->tokens, .n_tokens = t->n_tokens};
    a->prompt.flags = t->chain ? TSR_PROMPT_PREFIX : TSR_PROMPT_SEGMENTS;
    if (t->chain) return;
    uint32_t n = 0;
    if (t->n_context && text % 2) { /* named, and no segment of the prompt */
        a->prompt.context = t->tokens;
        a->prompt.n_context = t->n_context;
    } else if (t->n_context) {
        a->segments[n++] = (struct tsr_range){0, t->n_context};
        a->prompt.flags |= TSR_PROMPT_CONTEXT;
    }
    a->segments[n++] = (struct tsr_range){t->n_context, t->n_tokens - t->n_context};
    a->prompt.segments = a->segments;
    a->prompt.n_segments = n;
}

/* ---- store ---- */

static int put_layers(struct tsr_store_desc *store)
{
    struct tsr_put *put;
    size_t layer_bytes = store->view.bytes / w.shape->n_layers;
    int e = tsr_put_open(&put, w.client, store);
    if (e < 0) return e;
    for (uint32_t i = w.shape->n_layers; i-- > 0;) {
        struct tsr_view view = {.data = (char *)store->view.data + i * layer_bytes,
                                .bytes = layer_bytes};
        e = tsr_put_layer(put, i, &view);
        if (e < 0) {
            tsr_put_abort(put);
            return e;
        }
    }
    return tsr_put_commit(put);
}

static int put_later(struct tsr_store_desc *store)
{
    struct tsr_op *op;
    int e = tsr_client_store_start(&op, w.client, store, NULL, NULL);
    if (e < 0) return e;
    e = tsr_op_wait(op, -1);
    tsr_op_close(op);
    return e;
}

/* Leading entries of a chain that are there: a store whose room ends keeps those. */
static uint32_t stored_blocks(struct ask *a, struct tsr_space *space)
{
    struct tsr_key keys[LIFE_BLOCKS];
    int8_t tiers[LIFE_BLOCKS];
    uint32_t n = 0;
    int got = tsr_space_keys(space, &a->prompt, keys, LIFE_BLOCKS);
    if (got <= 0 || tsr_cache_contains(w.cache, keys, (uint32_t)got, tiers) < 0) return 0;
    while (n < (uint32_t)got && tiers[n] >= 0)
        n++;
    return n;
}

/* Tokens that are new, or an error. */
static int store_text(uint32_t tenant, uint32_t space, uint32_t text, uint32_t form,
                      struct life_reply *out)
{
    struct ask a;
    ask_make(&a, text);
    const struct life_text *t = &a.text;
    uint32_t n = t->n_tokens - t->n_context;
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = w.spaces[tenant][space],
                                   .kind = t->chain ? TSR_KIND_PREFIX : TSR_KIND_SEGMENT,
                                   .tokens = t->tokens + t->n_context,
                                   .n_tokens = n,
                                   .context = t->n_context ? t->tokens : NULL,
                                   .n_context = t->n_context,
                                   .base = t->chain ? 0 : t->base + t->n_context,
                                   .view.bytes = n * life_token_bytes(w.shape)};
    store.view.data = need(store.view.bytes);
    life_kv(w.shape, tenant, space, t, t->n_context, n, store.view.data);
    int rc = form % 4 == 1   ? put_layers(&store)
             : form % 4 == 2 ? put_later(&store)
                             : tsr_client_store(w.client, &store);
    free(store.view.data);
    if (rc < 0) {
        say(out->message, sizeof out->message, "store");
        return rc;
    }
    out->entries[text] = (uint8_t)(t->chain ? stored_blocks(&a, store.space) : 1);
    out->fresh[text] = rc == (int)n;
    return rc;
}

/* ---- lookup and load ---- */

static int lookup_text(struct ask *a, uint32_t tenant, uint32_t space, uint64_t request_id,
                       struct tsr_match *matches, uint32_t *n)
{
    struct tsr_lookup_desc look = {.size = sizeof look,
                                   .spaces = &w.spaces[tenant][space],
                                   .n_spaces = 1,
                                   .matches = matches,
                                   .matches_max = LIFE_BLOCKS,
                                   .request_id = request_id};
    int rc = tsr_client_lookup(w.client, &a->prompt, &look);
    *n = rc > 0 ? look.n_matches : 0;
    return rc;
}

/* Whether the last layers of these tokens, as many as there are bytes, are right. */
static bool is_right(const struct life_text *t, uint32_t tenant, uint32_t space,
                     struct tsr_range range, const uint8_t *data, size_t bytes)
{
    size_t all = range.n_tokens * life_token_bytes(w.shape);
    uint8_t *want = need(all);
    life_kv(w.shape, tenant, space, t, range.offset, range.n_tokens, want);
    bool right = memcmp(want + all - bytes, data, bytes) == 0;
    free(want);
    return right;
}

static int load_later(struct tsr_load_desc *load)
{
    struct tsr_op *op;
    int e = tsr_client_load_start(&op, w.client, load, 1, NULL, NULL);
    if (e < 0) return e;
    e = tsr_op_wait_layer(op, 0, 60000);
    int rc = tsr_op_wait(op, 60000);
    tsr_op_close(op);
    (void)e;
    return rc;
}

/* Loads one match, or a part of it; tokens that were loaded, all of them right. */
static uint32_t load_match(struct ask *a, uint32_t tenant, uint32_t space,
                           const struct tsr_match *m, uint32_t form, struct life_reply *out)
{
    if (m->prompt_offset >= a->text.n_tokens || m->n_tokens > a->text.n_tokens - m->prompt_offset ||
        m->n_tokens == 0) {
        snprintf(out->wrong, sizeof out->wrong, "a match of tokens %u+%u of %u", m->prompt_offset,
                 m->n_tokens, a->text.n_tokens);
        return 0;
    }
    if (m->base != TSR_BASE_UNKNOWN && m->base != a->text.base + m->prompt_offset) {
        snprintf(out->wrong, sizeof out->wrong, "base %u of a match at %u, tier %u verified %u",
                 m->base, m->prompt_offset, m->tier, m->verified);
        return 0;
    }
    uint32_t skip = form % 3 == 1 ? m->n_tokens / 2 : 0, n = m->n_tokens - skip;
    uint32_t layer = form % 3 == 2 ? w.shape->n_layers - 1 : 0;
    size_t bytes = n * life_token_bytes(w.shape) / w.shape->n_layers * (w.shape->n_layers - layer);
    struct tsr_load_desc load = {.size = sizeof load,
                                 .space = w.spaces[tenant][space],
                                 .match = m,
                                 .prompt = &a->prompt,
                                 .offset = skip,
                                 .layer_first = layer,
                                 .view = {.data = need(bytes), .bytes = bytes}};
    memset(load.view.data, 0xA5, bytes);
    int rc = form & 8 ? load_later(&load) : tsr_client_load(w.client, &load, 1);
    bool loaded = rc == 1 && load.result == 0;
    struct tsr_range range = {m->prompt_offset + skip, n};
    if (loaded && !is_right(&a->text, tenant, space, range, load.view.data, bytes))
        snprintf(out->wrong, sizeof out->wrong,
                 "wrong bytes: tokens %u+%u of a text of %u, kind %u tier %u verified %u",
                 m->prompt_offset + skip, n, a->text.n_tokens, m->kind, m->tier, m->verified);
    if (!loaded) {
        out->rc = rc < 0 ? rc : load.result;
        say(out->message, sizeof out->message, "load");
    }
    free(load.view.data);
    return loaded ? m->n_tokens : 0;
}

static void load_matches(const struct life_request *q, struct life_reply *out)
{
    struct ask a;
    ask_make(&a, q->text);
    for (uint32_t i = 0; i < q->n_matches && !out->wrong[0]; i++)
        out->n_tokens += load_match(&a, q->tenant, q->space, &q->matches[i], q->form, out);
}

/* Looks up and loads, again and again until what must be there is there or the time is over. */
static void check_text(const struct life_request *q, struct life_reply *out)
{
    struct ask a;
    struct tsr_match matches[LIFE_BLOCKS];
    uint64_t until = now_ms() + q->wait_ms;
    ask_make(&a, q->text);
    for (;;) {
        uint32_t n;
        if (q->wait_ms) out->rc = tsr_cache_connected(w.cache, (int)q->wait_ms);
        if (q->discover)
            out->rc = tsr_client_discover(w.client, w.spaces[q->tenant][q->space], &a.prompt);
        out->rc = lookup_text(&a, q->tenant, q->space, 0, matches, &n);
        if (out->rc < 0) say(out->message, sizeof out->message, "lookup");
        out->n_tokens = 0;
        for (uint32_t i = 0; i < n && !out->wrong[0]; i++)
            out->n_tokens += load_match(&a, q->tenant, q->space, &matches[i], 0, out);
        if (out->wrong[0] || out->n_tokens >= q->want || now_ms() >= until) return;
        usleep(20000);
    }
}

static int names_make(struct names **out, struct tsr_space *space)
{
    struct names *x = need(sizeof *x);
    uint32_t n = 0;
    for (uint32_t text = 0; text < LIFE_TEXTS; text++) {
        struct ask a;
        struct tsr_key keys[LIFE_BLOCKS];
        ask_make(&a, text);
        int got = tsr_space_keys(space, &a.prompt, keys, LIFE_BLOCKS);
        if (got < 0) {
            free(x);
            return got;
        }
        x->first[text] = n;
        for (int i = a.prompt.n_segments > 1 ? 1 : 0; i < got;
             i++) /* a context is a chunk of its own */
            x->keys[n++] = keys[i];
    }
    x->first[LIFE_TEXTS] = n;
    *out = x;
    return 0;
}

/* How many of each text's entries are known, without touching any. */
static int contains(const struct life_request *q, struct life_reply *out)
{
    static int8_t tiers[LIFE_TEXTS * LIFE_BLOCKS];
    struct names **x = &names[q->tenant][q->space];
    uint64_t until = now_ms() + q->wait_ms;
    int e;
    do { /* the end of a server is noticed when it is asked */
        e = tsr_cache_connected(w.cache, (int)q->wait_ms);
        if (e == 0 && !*x) e = names_make(x, w.spaces[q->tenant][q->space]);
        if (e == 0) e = tsr_cache_contains(w.cache, (*x)->keys, (*x)->first[LIFE_TEXTS], tiers);
    } while (e < 0 && now_ms() < until);
    for (uint32_t text = 0; text < LIFE_TEXTS && e >= 0; text++)
        for (uint32_t i = (*x)->first[text]; i < (*x)->first[text + 1] && tiers[i] >= 0; i++)
            out->entries[text]++;
    return e;
}

/* ---- several threads at once ---- */

struct thread {
    pthread_t id;
    const struct life_request *q;
    struct life_reply out;
    uint64_t rng;
};

static uint32_t roll(uint64_t *rng, uint32_t n)
{
    *rng = *rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*rng >> 33) % n;
}

static void *burst_thread(void *arg)
{
    struct thread *t = arg;
    const struct life_request *q = t->q;
    for (uint32_t i = 0; i < OPS && !t->out.wrong[0]; i++) {
        uint32_t text = q->text + roll(&t->rng, q->n_texts), what = roll(&t->rng, 10);
        struct life_request one = {
            .tenant = q->tenant, .space = q->space, .text = text, .form = roll(&t->rng, 16)};
        if (what < 6) {
            int rc = store_text(q->tenant, q->space, text, one.form, &t->out);
            (void)rc;
        } else if (what < 9) {
            check_text(&one, &t->out);
        } else {
            int e = tsr_cache_evict(w.cache, (size_t)1 << 18);
            (void)e;
        }
    }
    return NULL;
}

static void burst(const struct life_request *q, struct life_reply *out)
{
    struct thread threads[THREADS];
    memset(threads, 0, sizeof threads);
    for (uint32_t i = 0; i < THREADS; i++) {
        threads[i].q = q;
        threads[i].rng = q->seed + i;
        if (pthread_create(&threads[i].id, NULL, burst_thread, &threads[i]) != 0) abort();
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i].id, NULL);
        for (uint32_t text = 0; text < LIFE_TEXTS; text++) {
            out->fresh[text] |= threads[i].out.fresh[text];
            if (out->entries[text] < threads[i].out.entries[text])
                out->entries[text] = threads[i].out.entries[text];
        }
        if (threads[i].out.wrong[0]) *out = threads[i].out;
    }
}

/* ---- main ---- */

static int clear(const struct life_request *q)
{
    struct ask a;
    struct tsr_clear_desc what = {
        .size = sizeof what, .space = w.spaces[q->tenant][q->space], .tier = -1};
    if (q->text < LIFE_TEXTS) {
        ask_make(&a, q->text);
        what.prompt = &a.prompt;
    }
    return tsr_cache_clear(w.cache, &what);
}

static void answer(const struct life_request *q, struct life_reply *out)
{
    struct ask a;
    if (q->op != LIFE_OP_CHECK && q->op != LIFE_OP_CONTAINS && q->wait_ms)
        out->rc = tsr_cache_connected(w.cache, (int)q->wait_ms);
    switch (q->op) {
    case LIFE_OP_STORE:
        out->rc = 0;
        for (uint32_t i = 0; i < q->n_texts; i++) {
            int rc = store_text(q->tenant, q->space, q->text + i, q->form, out);
            if (out->rc >= 0) out->rc = rc;
        }
        break;
    case LIFE_OP_LOOKUP:
        ask_make(&a, q->text);
        if (q->request_id) tsr_client_release(w.client, q->request_id);
        out->rc =
            lookup_text(&a, q->tenant, q->space, q->request_id, out->matches, &out->n_matches);
        break;
    case LIFE_OP_LOAD:
        out->rc = 0;
        load_matches(q, out);
        break;
    case LIFE_OP_CHECK:
        check_text(q, out);
        break;
    case LIFE_OP_CONTAINS:
        out->rc = contains(q, out);
        break;
    case LIFE_OP_FLUSH:
        out->rc = tsr_cache_flush(w.cache);
        break;
    case LIFE_OP_CLEAR:
        out->rc = clear(q);
        break;
    case LIFE_OP_EVICT:
        out->rc = tsr_cache_evict(w.cache, (size_t)1 << 40);
        break;
    case LIFE_OP_BURST:
        burst(q, out);
        break;
    case LIFE_OP_RELEASE:
        for (uint64_t id = 1; id <= LIFE_SLOTS; id++)
            tsr_client_release(w.client, id);
        break;
    case LIFE_OP_QUIT:
        break;
    }
    if (out->rc < 0 && !out->message[0]) say(out->message, sizeof out->message, "");
}

int life_worker(int argc, char **argv)
{
    static struct life_request q;
    static struct life_reply out;
    if (argc < 4) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = atoi(argv[0]);
    w.shape = &life_shapes[atoi(argv[1])];
    w.apart = atoi(argv[2]) != 0;
    tsr_log_set(tsr_log_stderr, NULL, TSR_LOG_WARN);
    out.rc = open_all(argc - 4, argv + 4, atoi(argv[3]) != 0);
    if (out.rc < 0) say(out.message, sizeof out.message, "open");
    int e = out.rc;
    while (write(fd, &out, sizeof out) == (ssize_t)sizeof out && e >= 0 &&
           read(fd, &q, sizeof q) == (ssize_t)sizeof q && q.op != LIFE_OP_QUIT) {
        memset(&out, 0, sizeof out);
        answer(&q, &out);
    }
    close_all();
    return e < 0 ? 3 : 0;
}
