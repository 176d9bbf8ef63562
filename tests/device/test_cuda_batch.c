/* Loads whose cells come over the bus through the staging buffers, which the shapes of
 * test_contract.c are too small for: one piece a layer, several pieces, entries cut anywhere,
 * skipped slots, int8; against the cpu. Skipped with one line where there is no GPU. */
#include "device/device.h"
#include "support/test.h"

enum { HEADS = 8, DIM = 128, ROW = HEADS * DIM * 2, LAYERS = 2, CELL = 64, BLOCK = 16 };

/* The same load on one device. */
struct side {
    struct tsri_device *d;
    uint8_t *engine; /* [layer][K, V][slot][row] */
    uint8_t *cells;
    void **planes;
    struct tsri_batch *batch;
    struct tsr_kv_layout layout;
    struct tsr_kv_cells entry;
};

static struct side sides[2]; /* cpu, cuda */
static uint32_t n_tokens;
static size_t engine_bytes, row_bytes;

static void open_devices(void)
{
    char path[512], why[256];
    const char *b = getenv("B"), *given = getenv("TESSERA_CUDA_LIB");
    snprintf(path, sizeof path, "%s", given ? given : "");
    if (!given) snprintf(path, sizeof path, "%s/lib/libtessera-cuda.so", b ? b : "build");
    struct tsr_device_desc config = {.size = sizeof config, .library = path};
    int e = tsri_device_open(&sides[1].d, "cuda", &config);
    snprintf(why, sizeof why, "cuda: %s", tsr_errmsg());
    if (e == TSR_EDEVICE) SKIP(why);
    CHECK_INT(e, 0);
    CHECK_INT(tsri_device_open(&sides[0].d, "cpu", NULL), 0);
}

static void open_side(struct side *s, bool int8)
{
    uint32_t n_cells = (n_tokens + CELL - 1) / CELL;
    size_t cell_bytes = (size_t)CELL * row_bytes;
    void *p;
    CHECK_INT(tsri_device_alloc(s->d, &p, engine_bytes), 0);
    s->engine = p;
    CHECK_INT(tsri_device_host_alloc(s->d, &p, n_cells * LAYERS * 2 * cell_bytes), 0);
    s->cells = p;
    s->planes = malloc((size_t)n_cells * LAYERS * 2 * sizeof(void *));
    uint64_t seed = 5;
    for (uint32_t c = 0; c < n_cells; c++)
        for (uint32_t lp = 0; lp < LAYERS * 2; lp++)
            s->planes[(size_t)lp * n_cells + c] =
                s->cells + ((size_t)c * LAYERS * 2 + lp) * cell_bytes;
    for (size_t i = 0; i < n_cells * LAYERS * 2 * cell_bytes; i += 8) {
        uint64_t r = test_rand(&seed) & 0x3f7f3f7f3f7f3f7fu; /* no infinities */
        memcpy(s->cells + i, &r, 8);
    }
    if (int8) /* scales that are numbers */
        for (uint32_t lp = 0; lp < n_cells * LAYERS * 2; lp++)
            for (uint32_t t = 0; t < CELL; t++)
                for (uint32_t g = 0; g < HEADS; g++) {
                    float scale = 0.01f * (float)(1 + (lp + t + g) % 7);
                    memcpy(s->cells + lp * cell_bytes + t * row_bytes + HEADS * DIM + g * 4, &scale,
                           4);
                }
    s->layout = (struct tsr_kv_layout){.size = sizeof s->layout,
                                       .memory = TSR_MEMORY_DEVICE,
                                       .n_layers = LAYERS,
                                       .n_planes = 2,
                                       .block_tokens = BLOCK,
                                       .n_slots = n_tokens};
    for (uint32_t i = 0; i < 2; i++)
        s->layout.planes[i] = (struct tsr_kv_plane){.base = s->engine + (size_t)i * n_tokens * ROW,
                                                    .layer_stride = (uint64_t)2 * n_tokens * ROW,
                                                    .block_stride = BLOCK * ROW,
                                                    .token_stride = ROW,
                                                    .head_stride = DIM * 2,
                                                    .element_stride = 2,
                                                    .dtype = TSR_DTYPE_BF16,
                                                    .n_heads = HEADS,
                                                    .dim = DIM,
                                                    .rope_dims = i ? 0 : DIM};
    s->entry = (struct tsr_kv_cells){.size = sizeof s->entry,
                                     .planes = s->planes,
                                     .n_cells = n_cells,
                                     .cell_tokens = CELL,
                                     .n_tokens = n_tokens,
                                     .n_layers = LAYERS,
                                     .n_planes = 2,
                                     .int8 = int8,
                                     .memory = TSR_MEMORY_LOCKED};
    struct tsr_batch_limits limits = {8, n_tokens, n_cells + 8, (n_cells + 8) * LAYERS * 2};
    CHECK_INT(tsri_batch_open(&s->batch, s->d, &limits), 0);
}

static void close_side(struct side *s)
{
    tsri_batch_close(s->batch);
    tsri_device_free(s->d, s->engine);
    tsri_device_host_free(s->d, s->cells);
    free(s->planes);
    tsri_device_close(s->d);
}

/* Three runs with a delta each, cut off cell boundaries, and every seventh slot skipped. */
static void load_side(struct side *s, const int64_t *slots, const int64_t *deltas)
{
    uint8_t *zeros = calloc(1, engine_bytes);
    struct tsr_copy blank = {s->engine, zeros, engine_bytes};
    CHECK_INT(tsri_device_copy(s->d, NULL, &blank, 1), 0);
    uint32_t cut[4] = {0, n_tokens / 3 + 5, n_tokens / 2 + 1, n_tokens};
    struct tsr_kv_run runs[3];
    for (uint32_t i = 0; i < 3; i++)
        runs[i] = (struct tsr_kv_run){.cells = &s->entry,
                                      .slots = slots + cut[i],
                                      .offset = cut[i],
                                      .n_tokens = cut[i + 1] - cut[i],
                                      .delta = deltas[i]};
    struct tsr_rope rope = {
        .size = sizeof rope, .pairing = TSR_ROPE_NEOX, .dims = DIM, .theta = 10000};
    struct tsri_batch_desc desc = {.direction = TSRI_BATCH_SCATTER,
                                   .n_runs = 3,
                                   .layout = &s->layout,
                                   .runs = runs,
                                   .rope = &rope};
    CHECK_INT(tsri_batch_set(s->batch, NULL, &desc), 0);
    for (uint32_t l = 0; l < LAYERS; l++)
        CHECK_INT(tsri_batch_scatter(s->batch, l, 1), 0);
    CHECK_INT(tsri_stream_sync(s->d, NULL), 0);
    free(zeros);
}

static void compare(void)
{
    uint16_t *image[2];
    for (int i = 0; i < 2; i++) {
        image[i] = malloc(engine_bytes);
        struct tsr_copy out = {image[i], sides[i].engine, engine_bytes};
        CHECK_INT(tsri_device_copy(sides[i].d, NULL, &out, 1), 0);
        CHECK_INT(tsri_stream_sync(sides[i].d, NULL), 0);
    }
    size_t n_off = 0;
    for (size_t i = 0; i < engine_bytes / 2; i++) {
        float a = tsri_bf16_to_f32(image[0][i]), b = tsri_bf16_to_f32(image[1][i]);
        float d = a > b ? a - b : b - a, m = a > 0 ? a : -a;
        /* One unit in the last place of a pair's length at most, which is not far below 1. */
        if (d > 0.0079f * (m > 2 ? m : 2)) n_off++;
    }
    CHECK_INT(n_off, 0);
    free(image[0]);
    free(image[1]);
}

static void load_and_compare(uint32_t tokens, bool int8)
{
    open_devices();
    n_tokens = tokens;
    row_bytes = int8 ? tsri_row_bytes_int8(HEADS, DIM) : ROW;
    engine_bytes = (size_t)LAYERS * 2 * n_tokens * ROW;
    int64_t *slots = malloc(n_tokens * sizeof *slots);
    for (uint32_t t = 0; t < n_tokens; t++)
        slots[t] = t % 7 == 3 ? -1 : (int64_t)(n_tokens - 1 - t);
    for (int i = 0; i < 2; i++) {
        open_side(&sides[i], int8);
        load_side(&sides[i], slots, (int64_t[]){1000, 0, -3});
    }
    compare();
    for (int i = 0; i < 2; i++) /* again: the tables of a batch are used anew */
        load_side(&sides[i], slots, (int64_t[]){0, 77, 0});
    compare();
    for (int i = 0; i < 2; i++)
        close_side(&sides[i]);
    free(slots);
}

TEST(a_staged_load_in_one_piece_is_right)
{
    load_and_compare(1024, false);
}

TEST(a_staged_load_in_several_pieces_is_right)
{
    load_and_compare(20000 / BLOCK * BLOCK, false);
}

TEST(a_staged_load_of_int8_cells_is_right)
{
    load_and_compare(4096, true);
}

int main(void)
{
    RUN(a_staged_load_in_one_piece_is_right);
    RUN(a_staged_load_in_several_pieces_is_right);
    RUN(a_staged_load_of_int8_cells_is_right);
    return test_end();
}
