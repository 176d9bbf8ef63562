/* bench_connector - what a connector costs an engine: a step of the scheduler half in which nothing
 * is to be done, what asynchronous scheduling adds to it, and how fast the worker half loads and
 * saves a prompt of 3072 tokens of SmolLM2-135M in float32 (30 layers, 3 heads of 64), as a vLLM on
 * a CPU has them: blocks of 128 tokens, K column-major, or the same blocks as opaque bytes. Then what
 * it costs to keep plain requests in a form that blends can use: as K and V instead of blocks. */
#include "support/bench.h"

#include "connector/connector.h"

#include <stdio.h>
#include <stdlib.h>

#define REQUESTS 256u
#define STEP_NS 5e6 /* a decode step of a small model on a fast device */

#define LAYERS 30u
#define HEADS 3u
#define DIM 64u
#define BLOCK 128u
#define PROMPT 3072u
#define SLOTS (PROMPT * 3)
#define TOKEN_BYTES ((size_t)LAYERS * 2 * HEADS * DIM * 4)

enum form {
    COLUMNS, /* K column-major, as vLLM on a CPU has it */
    PAGES,   /* the same as opaque bytes */
    ROWS     /* a row for each token, as vLLM on a GPU has it */
};

struct rig {
    struct tsr_cache *cache;
    struct tsr_scheduler *scheduler;
    struct tsr_worker *worker;
    struct tsr_space_desc space;
    struct tsr_group group;
    struct tsr_connector_desc desc;
    uint8_t *kv, *copy;
    uint32_t *tokens;
    uint64_t last_id;
};

static void open_rig(struct rig *r, enum form form, bool any_offset)
{
    struct tsr_config *cfg;
    BENCH_CHECK(tsr_config_open(&cfg) == 0);
    BENCH_CHECK(tsr_config_set(cfg, "host_size", "768M") == 0);
    BENCH_CHECK(tsr_config_set(cfg, "any_offset", any_offset ? "true" : "false") == 0);
    BENCH_CHECK(tsr_cache_open(&r->cache, cfg) == 0);
    tsr_config_close(cfg);
    r->space = (struct tsr_space_desc){.size = sizeof r->space,
                                       .model = "bench",
                                       .dtype = TSR_DTYPE_F32,
                                       .n_layers = LAYERS,
                                       .n_heads = HEADS,
                                       .k_dim = DIM};
    if (form == PAGES) {
        r->space.dtype = TSR_DTYPE_OPAQUE;
        r->space.layout = TSR_LAYOUT_OPAQUE;
        r->space.n_heads = 1;
        r->space.k_dim = HEADS * DIM * 2 * sizeof(float);
    }
    r->group = (struct tsr_group){.size = sizeof r->group, .block_tokens = BLOCK};
    r->desc = (struct tsr_connector_desc){.size = sizeof r->desc,
                                          .spaces = &r->space,
                                          .groups = &r->group,
                                          .chunk_tokens = 256,
                                          .flags = TSR_CONNECTOR_SAVE_DECODE};
    BENCH_CHECK(tsr_scheduler_open(&r->scheduler, r->cache, &r->desc) == 0);
    r->tokens = malloc(PROMPT * sizeof *r->tokens);
    for (uint32_t i = 0; i < PROMPT; i++)
        r->tokens[i] = i * 31 % 49152;
}

/* A block is [head][K column-major, V row-major], or [K, V][token][head]; both planes in one
 * allocation a layer. */
static void set_planes(struct tsr_kv_layout *l, enum form form)
{
    size_t head = (size_t)BLOCK * DIM * sizeof(float), block = 2 * HEADS * head;
    struct tsr_kv_plane *k = &l->planes[0], *v = &l->planes[1];
    k->token_stride = sizeof(float);
    k->element_stride = BLOCK * sizeof(float);
    v->token_stride = DIM * sizeof(float);
    v->element_stride = sizeof(float);
    k->head_stride = v->head_stride = 2 * head;
    if (form == ROWS) {
        k->token_stride = v->token_stride = HEADS * DIM * sizeof(float);
        k->head_stride = v->head_stride = DIM * sizeof(float);
        k->element_stride = v->element_stride = sizeof(float);
    }
    v->base = (uint8_t *)v->base + (form == ROWS ? HEADS * head : head);
    if (form == PAGES) {
        l->n_planes = 1;
        k->dtype = TSR_DTYPE_OPAQUE;
        k->n_heads = 1;
        k->dim = (uint32_t)(block / BLOCK);
        k->token_stride = k->head_stride = block / BLOCK;
        k->element_stride = 1;
    }
}

static void open_worker(struct rig *r, enum form form)
{
    struct tsr_worker_desc d = {.size = sizeof d};
    size_t block = (size_t)BLOCK * HEADS * DIM * 2 * 4, layer = SLOTS / BLOCK * block;
    r->kv = malloc(LAYERS * layer);
    r->copy = malloc(PROMPT * TOKEN_BYTES);
    BENCH_CHECK(r->kv && r->copy);
    for (size_t i = 0; i < LAYERS * layer / sizeof(float); i++)
        ((float *)(void *)r->kv)[i] = (float)(i % 1000003);
    struct tsr_kv_layout l = {
        .size = sizeof l, .n_layers = LAYERS, .block_tokens = BLOCK, .n_slots = SLOTS};
    struct tsr_kv_plane plane = {.base = r->kv,
                                 .layer_stride = layer,
                                 .block_stride = block,
                                 .dtype = TSR_DTYPE_F32,
                                 .n_heads = HEADS,
                                 .dim = DIM};
    l.n_planes = 2;
    l.planes[0] = l.planes[1] = plane;
    set_planes(&l, form);
    BENCH_CHECK(tsr_worker_open(&r->worker, r->cache, &r->desc, &d) == 0);
    BENCH_CHECK(tsr_worker_register_kv_caches(r->worker, &l, 1) == 0);
}

static void close_rig(struct rig *r)
{
    tsr_worker_close(r->worker);
    tsr_scheduler_close(r->scheduler);
    tsr_cache_close(r->cache);
    free(r->kv);
    free(r->copy);
    free(r->tokens);
}

/* ---- the scheduler half ---- */

struct idle {
    struct rig r;
    struct tsr_step_row rows[REQUESTS];
    uint32_t new_tokens[REQUESTS], n_new_blocks[REQUESTS];
    struct tsr_step_desc step;
    uint32_t in_flight;
};

/* Every request has one token more; none has finished a chunk. Tokens come again in every sample:
 * that they are known is found by the same comparison. */
static void run_step(struct idle *x, uint32_t in_flight)
{
    const void *meta;
    size_t bytes;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        x->rows[i].n_in_flight = x->rows[i].n_placeholders = in_flight;
        x->rows[i].n_computed = 400 + in_flight;
    }
    BENCH_CHECK(tsr_scheduler_build_connector_meta(x->r.scheduler, &x->step, &meta, &bytes) == 0);
    BENCH_CHECK(tsr_scheduler_update_connector_output(x->r.scheduler, NULL, 0) == 0);
    bench_keep(bytes);
}
static void sync_step(void *arg)
{
    run_step(arg, 0);
}
static void async_step(void *arg)
{
    run_step(arg, 2);
}

static void bench_scheduler(void)
{
    static struct idle x;
    open_rig(&x.r, COLUMNS, false);
    int32_t blocks[4] = {1, 2, 3, 4};
    uint32_t n_blocks = 4;
    struct tsr_blocks b = {.blocks = blocks, .n_blocks = &n_blocks};
    for (uint32_t i = 0; i < REQUESTS; i++) {
        x.r.tokens[0] = i; /* no two alike */
        struct tsr_request_desc q = {.size = sizeof q,
                                     .id = i + 1,
                                     .tokens = x.r.tokens,
                                     .n_tokens = 401,
                                     .flags = TSR_REQUEST_NO_LOAD};
        BENCH_CHECK(tsr_scheduler_on_new_request(x.r.scheduler, &q) == 0);
        BENCH_CHECK(tsr_scheduler_update_state_after_alloc(x.r.scheduler, i + 1, &b, 0) == 0);
        x.rows[i] = (struct tsr_step_row){
            .id = i + 1, .n_computed = 400, .n_tokens = 401, .n_new_tokens = 1};
        x.new_tokens[i] = 7;
    }
    x.step = (struct tsr_step_desc){.size = sizeof x.step,
                                    .rows = x.rows,
                                    .n_rows = REQUESTS,
                                    .new_tokens = x.new_tokens,
                                    .n_new_blocks = x.n_new_blocks,
                                    .new_blocks = blocks};
    /* The first step saves the first chunk of each, for which there is no worker here. */
    sync_step(&x);
    BENCH_CHECK(x.r.scheduler->n_savings == REQUESTS);
    struct bench_case c = {.name = "step, 256 requests, asynchronous",
                           .run = async_step,
                           .baseline = sync_step,
                           .arg = &x};
    struct bench_result got = bench_run(&c);
    if (got.ran) {
        bench_report("step, 256 requests, nothing to do", got.value / 1e3, "us", 0, 20, false);
        double added = (got.value - got.baseline) / STEP_NS * 100;
        bench_report("asynchronous bookkeeping, of a step of 5 ms", added > 0 ? added : 0, "%", 0,
                     1, false);
    }
    close_rig(&x.r);
}

/* ---- the worker half ---- */

static void pass(struct rig *r, const struct tsr_step_desc *step)
{
    const void *meta, *report;
    size_t bytes, report_bytes;
    struct tsr_bad_block bad[64];
    uint64_t ids[64], sent[64];
    struct tsr_finished f = {
        .size = sizeof f, .sent = sent, .received = ids, .sent_max = 64, .received_max = 64};
    BENCH_CHECK(tsr_scheduler_build_connector_meta(r->scheduler, step, &meta, &bytes) == 0);
    BENCH_CHECK(tsr_worker_start_load_kv(r->worker, meta, bytes) == 0);
    for (uint32_t l = 0; l < LAYERS; l++)
        BENCH_CHECK(tsr_worker_wait_for_layer_load(r->worker, 0, l) == 0);
    BENCH_CHECK(tsr_worker_wait_for_save(r->worker) == 0);
    BENCH_CHECK(tsr_worker_get_finished(r->worker, &f) >= 0);
    BENCH_CHECK(tsr_worker_get_block_ids_with_load_errors(r->worker, bad, 64) == 0);
    BENCH_CHECK(tsr_worker_build_connector_worker_meta(r->worker, &report, &report_bytes) == 0);
    BENCH_CHECK(tsr_scheduler_update_connector_output(r->scheduler, report, report_bytes) == 0);
}

static void begin(struct rig *r, uint32_t n, int32_t first_block, uint32_t n_external)
{
    int32_t blocks[PROMPT / BLOCK + 1];
    uint32_t n_blocks = PROMPT / BLOCK, async;
    for (uint32_t i = 0; i < n_blocks; i++)
        blocks[i] = first_block + (int32_t)(i * 7 % n_blocks);
    struct tsr_request_desc q = {
        .size = sizeof q, .id = ++r->last_id, .tokens = r->tokens, .n_tokens = n};
    struct tsr_blocks b = {.blocks = blocks, .n_blocks = &n_blocks};
    BENCH_CHECK(tsr_scheduler_on_new_request(r->scheduler, &q) == 0);
    int found = tsr_scheduler_get_num_new_matched_tokens(r->scheduler, q.id, 0, &async);
    BENCH_CHECK(found == (int)n_external && async == 0);
    BENCH_CHECK(tsr_scheduler_update_state_after_alloc(r->scheduler, q.id, &b, n_external) == 0);
}

static void load(void *arg)
{
    struct rig *r = arg;
    struct tsr_step_desc step = {.size = sizeof step};
    begin(r, PROMPT, PROMPT / BLOCK, PROMPT - 1);
    pass(r, &step);
    struct tsr_finish_desc f = {.size = sizeof f, .id = r->last_id, .n_tokens = PROMPT};
    BENCH_CHECK(tsr_scheduler_request_finished(r->scheduler, &f) == 0);
}

static void save(void *arg)
{
    struct rig *r = arg;
    struct tsr_step_desc step = {.size = sizeof step};
    begin(r, PROMPT, 0, 0);
    struct tsr_finish_desc f = {
        .size = sizeof f, .id = r->last_id, .n_tokens = PROMPT, .n_computed = PROMPT};
    BENCH_CHECK(tsr_scheduler_request_finished(r->scheduler, &f) == 1);
    do {
        pass(r, &step);
        BENCH_CHECK(tsr_worker_drain(r->worker, 10000) == 0);
    } while (tsr_scheduler_has_pending_work(r->scheduler));
}

static void forget(void *arg)
{
    struct rig *r = arg;
    BENCH_CHECK(tsr_cache_clear(r->cache, NULL) >= 0);
}

static void copy(void *arg)
{
    struct rig *r = arg;
    memcpy(r->copy, r->kv, PROMPT * TOKEN_BYTES);
}

static void check_loaded(struct rig *r)
{
    size_t block = (size_t)BLOCK * HEADS * DIM * 2 * sizeof(float), layer = SLOTS / BLOCK * block;
    size_t half = PROMPT / BLOCK * block;
    load(r);
    /* The last token is left to be computed: compare all blocks but its own. */
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t i = 0; i + 1 < PROMPT / BLOCK; i++) {
            size_t at = l * layer + (i * 7 % (PROMPT / BLOCK)) * block;
            BENCH_CHECK(memcmp(r->kv + at, r->kv + at + half, block) == 0);
        }
}

static void bench_worker(enum form form)
{
    static struct rig r;
    memset(&r, 0, sizeof r);
    open_rig(&r, form, false);
    open_worker(&r, form);
    const char *names[2][2] = {
        {"save, 3072 tokens, by strides", "load, 3072 tokens, by strides"},
        {"save, 3072 tokens, opaque blocks", "load, 3072 tokens, opaque blocks"}};
    struct bench_case c = {.name = names[form][0],
                           .run = save,
                           .baseline = copy,
                           .prepare = forget,
                           .arg = &r,
                           .n_pairs = 15,
                           .work = PROMPT * TOKEN_BYTES,
                           .unit = "GB/s"};
    bench_run(&c);
    forget(&r);
    save(&r);
    check_loaded(&r);
    c.name = names[form][1];
    c.run = load;
    c.prepare = NULL;
    bench_run(&c);
    close_rig(&r);
}

/* ---- plain requests, kept for blends ---- */

struct kept {
    struct rig pages, rows; /* opaque, and as K and V */
};

static void save_rows(void *arg)
{
    save(&((struct kept *)arg)->rows);
}
static void save_pages(void *arg)
{
    save(&((struct kept *)arg)->pages);
}
static void load_rows(void *arg)
{
    load(&((struct kept *)arg)->rows);
}
static void load_pages(void *arg)
{
    load(&((struct kept *)arg)->pages);
}
static void forget_both(void *arg)
{
    forget(&((struct kept *)arg)->rows);
    forget(&((struct kept *)arg)->pages);
}

static void look(struct rig *r, uint32_t flags)
{
    static struct tsr_match matches[1024];
    struct tsr_space *space = r->scheduler->terms.spaces[0];
    struct tsr_prompt prompt = {
        .size = sizeof prompt, .tokens = r->tokens, .n_tokens = PROMPT, .flags = flags};
    struct tsr_lookup_desc io = {.size = sizeof io,
                                 .spaces = &space,
                                 .n_spaces = 1,
                                 .matches = matches,
                                 .matches_max = 1024};
    BENCH_CHECK(tsr_client_lookup(r->scheduler->terms.client, &prompt, &io) == 0);
}
static void look_anywhere(void *arg)
{
    struct kept *k = arg;
    look(&k->rows, TSR_PROMPT_PREFIX | TSR_PROMPT_ANY | TSR_PROMPT_OTHER);
}
static void look_at_prefix(void *arg)
{
    struct kept *k = arg;
    look(&k->rows, TSR_PROMPT_PREFIX);
}

/* Targets are none: it is off by default. A prompt that is unknown has to be looked up everywhere
 * before it is known to be a plain one. */
static void bench_kept(enum form form)
{
    static struct kept k;
    memset(&k, 0, sizeof k);
    open_rig(&k.pages, PAGES, true);
    open_worker(&k.pages, PAGES);
    open_rig(&k.rows, form, true);
    open_worker(&k.rows, form);
    bool rows = form == ROWS;
    struct bench_case c = {.name = rows ? "save as K and V, blocks of rows (x: of opaque blocks)"
                                        : "save as K and V, K column-major (x: of opaque blocks)",
                           .run = save_rows,
                           .baseline = save_pages,
                           .prepare = forget_both,
                           .arg = &k,
                           .n_pairs = 15,
                           .work = PROMPT * TOKEN_BYTES,
                           .unit = "GB/s"};
    bench_run(&c);
    forget_both(&k);
    save_rows(&k);
    save_pages(&k);
    check_loaded(&k.rows);
    c.name = rows ? "load of K and V, blocks of rows (x: of opaque blocks)"
                  : "load of K and V, K column-major (x: of opaque blocks)";
    c.run = load_rows;
    c.baseline = load_pages;
    c.prepare = NULL;
    bench_run(&c);
    k.rows.tokens[0] += 7; /* known to nobody, as a prefix */
    for (uint32_t i = 0; i < PROMPT; i++)
        k.rows.tokens[i] += i % 8 == 0;
    c = (struct bench_case){.name = "lookup of 3072 unknown tokens at any offset (x: of a prefix)",
                            .run = look_anywhere,
                            .baseline = look_at_prefix,
                            .arg = &k,
                            .n_pairs = 15};
    if (rows) bench_run(&c);
    close_rig(&k.pages);
    close_rig(&k.rows);
}

int main(int argc, char **argv)
{
    bench_init("bench_connector", argc, argv);
    bench_scheduler();
    bench_worker(COLUMNS);
    bench_worker(PAGES);
    bench_kept(ROWS);
    bench_kept(COLUMNS);
    return bench_end();
}
