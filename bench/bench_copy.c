/* bench_copy - KV between cells and an engine's pages on the cpu, against one memcpy of the same
 * bytes. The engine is paged (blocks of 16, in random order), K and V in one tensor for each layer;
 * cells hold 64 tokens. Shapes: "135m" has rows of 384 bytes (3 heads of 64), "8b" of 2048 (8 heads
 * of 128). rotate is the fused load: K turned by a delta, V copied. */
#include "device/device.h"
#include "support/bench.h"

#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 16, CELL = 64 };

struct shape {
    const char *name;
    uint32_t n_layers, n_heads, dim, n_tokens;
    bool hnd;
};
/* Both below and above the size from which memcpy, and a move, write past the caches. */
static const struct shape shapes[] = {{"135m 24M", 30, 3, 64, 1024, false},
                                      {"135m 94M", 30, 3, 64, 4096, false},
                                      {"8b 16M", 32, 8, 128, 128, false},
                                      {"8b 134M", 32, 8, 128, 1024, false},
                                      {"8b hnd 134M", 32, 8, 128, 1024, true}};

struct work {
    struct tsri_device *device;
    struct tsr_kv_layout layout;
    struct tsri_region engine, cells, flat[2];
    void **layers[2], **planes;
    struct tsr_kv_cells entry;
    struct tsr_kv_run run;
    struct tsri_batch *batch;
    int64_t *slots;
    size_t bytes;
};

static void must(int result)
{
    if (result >= 0) return;
    fprintf(stderr, "bench_copy: %s\n", tsr_errmsg());
    exit(1);
}

/* ---- an engine and its cells ---- */

static void make_engine(struct work *w, const struct shape *s, uint32_t dtype)
{
    uint64_t e = tsri_dtype_bytes(dtype), head = s->dim * e, row = s->n_heads * head;
    uint64_t layer = 2 * s->n_tokens * row;
    must(tsri_region_init(&w->engine, s->n_layers * layer));
    memset(w->engine.data, 1, w->engine.bytes);
    w->layout = (struct tsr_kv_layout){.size = sizeof w->layout,
                                       .n_layers = s->n_layers,
                                       .n_planes = 2,
                                       .block_tokens = BLOCK,
                                       .n_slots = s->n_tokens};
    for (uint32_t p = 0; p < 2; p++) {
        w->layers[p] = tsri_alloc(s->n_layers, sizeof(void *));
        for (uint32_t i = 0; i < s->n_layers; i++)
            w->layers[p][i] = w->engine.data + i * layer + p * BLOCK * row;
        w->layout.planes[p] = (struct tsr_kv_plane){.layers = w->layers[p],
                                                    .block_stride = 2 * BLOCK * row,
                                                    .token_stride = s->hnd ? head : row,
                                                    .head_stride = s->hnd ? BLOCK * head : head,
                                                    .element_stride = e,
                                                    .dtype = dtype,
                                                    .n_heads = s->n_heads,
                                                    .dim = s->dim,
                                                    .rope_dims = p ? 0 : s->dim};
    }
    w->bytes = (size_t)(s->n_layers * layer);
}

/* Cells as a pool gives them: each with all its planes, cell after cell. */
static void make_cells(struct work *w, const struct shape *s, bool int8)
{
    const struct tsr_kv_plane *p = &w->layout.planes[0];
    size_t row = int8 ? tsri_row_bytes_int8(p->n_heads, p->dim) : tsri_row_bytes(p);
    uint32_t n_cells = s->n_tokens / CELL, n_planes = 2 * s->n_layers;
    must(tsri_region_init(&w->cells, (size_t)n_cells * n_planes * CELL * row));
    w->planes = tsri_alloc((size_t)n_cells * n_planes, sizeof(void *));
    /* Bits that are small numbers in every dtype, and small scales in int8 rows. */
    for (size_t i = 0; i < w->cells.bytes / 4; i++)
        ((uint32_t *)(void *)w->cells.data)[i] = 0x3c003c00u + (uint32_t)(i % 97);
    for (uint32_t c = 0; c < n_cells; c++)
        for (uint32_t i = 0; i < n_planes; i++)
            w->planes[(size_t)i * n_cells + c] =
                w->cells.data + ((size_t)c * n_planes + i) * CELL * row;
    w->entry = (struct tsr_kv_cells){.size = sizeof w->entry,
                                     .planes = w->planes,
                                     .n_cells = n_cells,
                                     .cell_tokens = CELL,
                                     .n_tokens = s->n_tokens,
                                     .n_layers = s->n_layers,
                                     .n_planes = 2,
                                     .int8 = int8};
}

/* Every block once, in random order. */
static void make_slots(struct work *w, const struct shape *s)
{
    uint32_t n_blocks = s->n_tokens / BLOCK;
    uint32_t *blocks = tsri_alloc(n_blocks, sizeof *blocks);
    uint64_t state = 88172645463325252u;
    for (uint32_t i = 0; i < n_blocks; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t k = (uint32_t)((state >> 33) % (i + 1));
        blocks[i] = blocks[k];
        blocks[k] = i;
    }
    w->slots = tsri_alloc(s->n_tokens, sizeof *w->slots);
    for (uint32_t i = 0; i < s->n_tokens; i++)
        w->slots[i] = (int64_t)blocks[i / BLOCK] * BLOCK + i % BLOCK;
    tsri_free(blocks);
}

struct setup {
    uint32_t dtype, direction;
    int64_t delta;
    bool int8;
    const char *variant;
    uint32_t n_threads;
};

/* False when this machine has no such variant. */
static bool work_init(struct work *w, const struct shape *s, const struct setup *how)
{
    memset(w, 0, sizeof *w);
    struct tsr_device_config config = {
        .size = sizeof config, .variant = how->variant, .n_threads = how->n_threads};
    if (tsri_device_open(&w->device, "cpu", &config) != 0) return false;
    make_engine(w, s, how->dtype);
    make_cells(w, s, how->int8);
    make_slots(w, s);
    for (int i = 0; i < 2; i++) {
        must(tsri_region_init(&w->flat[i], w->bytes));
        memset(w->flat[i].data, i, w->bytes);
    }
    struct tsr_batch_limits limits = {1, s->n_tokens, s->n_tokens / CELL,
                                      s->n_tokens / CELL * s->n_layers * 2};
    struct tsr_rope rope = {
        .size = sizeof rope, .pairing = TSR_ROPE_NEOX, .dims = s->dim, .theta = 500000};
    w->run = (struct tsr_kv_run){&w->entry, w->slots, 0, s->n_tokens, how->delta, 0, 0};
    struct tsri_batch_desc desc = {
        how->direction, 1, &w->layout, &w->run, how->delta ? &rope : NULL, 0};
    must(tsri_batch_open(&w->batch, w->device, &limits));
    must(tsri_batch_set(w->batch, NULL, &desc));
    return true;
}

static void work_fini(struct work *w)
{
    tsri_batch_close(w->batch);
    tsri_region_fini(&w->flat[0]);
    tsri_region_fini(&w->flat[1]);
    tsri_region_fini(&w->cells);
    tsri_region_fini(&w->engine);
    tsri_free(w->slots);
    tsri_free(w->planes);
    tsri_free(w->layers[0]);
    tsri_free(w->layers[1]);
    tsri_device_close(w->device);
}

/* ---- what is timed ---- */

static void scatter(void *arg)
{
    must(tsri_batch_scatter(((struct work *)arg)->batch, 0, 0));
}

static void gather(void *arg)
{
    must(tsri_batch_gather(((struct work *)arg)->batch, 0, 0));
}

static void flat_copy(void *arg)
{
    struct work *w = arg;
    memcpy(w->flat[0].data, w->flat[1].data, w->bytes);
    bench_keep(w->flat[0].data[w->bytes / 2]);
}

static bool close_enough(const struct work *w, const struct setup *how)
{
    /* The last token of the last V plane: copied, or widened to small numbers. */
    const struct tsr_kv_plane *p = &w->layout.planes[1];
    uint32_t layer = w->layout.n_layers - 1, token = w->entry.n_tokens - 1;
    const uint8_t *engine =
        tsri_layer_base(p, layer) + tsri_slot_offset(&w->layout, p, (uint64_t)w->slots[token]);
    const uint8_t *row =
        (const uint8_t *)w->planes[(size_t)(2 * layer + 1) * w->entry.n_cells + token / CELL] +
        token % CELL * tsri_row_bytes(p);
    return how->int8 || memcmp(engine, row, (size_t)p->dim * tsri_dtype_bytes(p->dtype)) == 0;
}

static void run_case(const char *name, const struct shape *s, const struct setup *how,
                     double target)
{
    struct work w;
    char full[96];
    if (!work_init(&w, s, how)) return;
    bench_fn fn = how->direction == TSRI_BATCH_SCATTER ? scatter : gather;
    fn(&w);
    BENCH_CHECK(close_enough(&w, how));
    snprintf(full, sizeof full, "%s %s", name, s->name);
    bench_rate("bench_copy", full, fn, flat_copy, &w, (double)w.bytes, target);
    work_fini(&w);
}

/* One layer of n tokens, shared with one more thread or not: where threads begin to pay. */
static void scatter_alone(void *arg)
{
    scatter(((struct work **)arg)[0]);
}

static void scatter_shared(void *arg)
{
    scatter(((struct work **)arg)[1]);
}

static void run_threads(uint32_t n_tokens)
{
    struct shape s = {"8b", 1, 8, 128, n_tokens, false};
    struct work alone, shared, *both[2] = {&alone, &shared};
    struct setup how = {TSR_DTYPE_F16, TSRI_BATCH_SCATTER, 777, false, NULL, 0};
    char name[64];
    if (!work_init(&alone, &s, &how)) return;
    how.n_threads = 1;
    BENCH_CHECK(work_init(&shared, &s, &how));
    snprintf(name, sizeof name, "threads 2 of %zu KiB", alone.bytes >> 10);
    bench_rate("bench_copy", name, scatter_shared, scatter_alone, both, (double)alone.bytes, 0);
    work_fini(&alone);
    work_fini(&shared);
}

static void run_rotations(const struct shape *s)
{
    static const struct {
        const char *variant, *name;
        double target;
    } bf16[] = {{"avx512bf16", "rotate bf16 avx512bf16", 0.50},
                {"neon_bf16", "rotate bf16 neon_bf16", 0.50},
                {"avx512", "rotate bf16 avx512", 0.33},
                {"avx2", "rotate bf16 avx2", 0.33},
                {"neon", "rotate bf16 neon", 0.33}};
    struct setup turn = {TSR_DTYPE_F16, TSRI_BATCH_SCATTER, 777, false, NULL, 0};
    run_case("rotate f16", s, &turn, 0.45);
    turn.dtype = TSR_DTYPE_F32;
    run_case("rotate f32", s, &turn, 0);
    turn.dtype = TSR_DTYPE_BF16;
    for (size_t k = 0; k < TSRI_COUNT(bf16); k++) {
        turn.variant = bf16[k].variant;
        run_case(bf16[k].name, s, &turn, bf16[k].target);
    }
    turn.variant = NULL;
    turn.int8 = true;
    run_case("rotate int8 to bf16", s, &turn, 0);
}

int main(int argc, char **argv)
{
    bench_init("bench_copy", argc, argv);
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++) {
        const struct shape *s = &shapes[i];
        struct setup copy = {TSR_DTYPE_F16, TSRI_BATCH_SCATTER, 0, false, NULL, 0};
        double target = s->hnd ? 0 : 0.90; /* pieces of a head are shorter than 384 bytes */
        run_case("scatter", s, &copy, target);
        copy.direction = TSRI_BATCH_GATHER;
        run_case("gather", s, &copy, target);
        run_rotations(s);
    }
    for (uint32_t n = 64; n <= 4096; n *= 2)
        run_threads(n);
    return bench_end();
}
