/* The buffers that all batches of a CUDA device share: what goes out through them and what comes in
 * is byte for byte what the cpu moves, in one piece, in many, with layers together, by several
 * threads at once and in both directions; without memory for them kernels do it alone. Skipped with
 * one line where there is no GPU. */
#include "device/device.h"
#include "support/test.h"

#include <pthread.h>

enum { CELL = 64, BLOCK = 16, RUNS = 3 };

struct shape {
    uint32_t n_tokens, n_layers, n_planes;
    uint32_t row; /* bytes of a token in a plane: bf16 heads of 128, or opaque */
    bool opaque, int8;
};

/* One engine and one entry on a device, and the batch between them. */
struct side {
    struct tsri_device *d;
    struct tsr_device_stream *stream;
    struct shape shape;
    uint8_t *engine, *cells;
    size_t engine_bytes, cell_bytes; /* a cell is one plane of one layer here */
    uint32_t n_cells;
    void **planes;
    struct tsri_batch *batch;
    struct tsr_kv_layout layout;
    struct tsr_kv_cells entry;
    struct tsr_kv_run runs[RUNS];
    int64_t *slots;
};

static struct tsri_device *cpu, *cuda;

static void open_devices(void)
{
    char path[512], why[256];
    const char *b = getenv("B"), *given = getenv("TESSERA_CUDA_LIB");
    snprintf(path, sizeof path, "%s", given ? given : "");
    if (!given) snprintf(path, sizeof path, "%s/lib/libtessera-cuda.so", b ? b : "build");
    struct tsr_device_desc config = {.size = sizeof config, .library = path};
    int e = tsri_device_open(&cuda, "cuda", &config);
    snprintf(why, sizeof why, "cuda: %s", tsr_errmsg());
    if (e == TSR_EDEVICE) SKIP(why);
    CHECK_INT(e, 0);
    CHECK_INT(tsri_device_open(&cpu, "cpu", NULL), 0);
}

static void close_devices(void)
{
    tsri_device_close(cuda);
    tsri_device_close(cpu);
}

/* Bytes that are finite numbers as bf16, too. */
static void fill(uint8_t *out, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t r = test_rand(&seed) & 0xbf7fbf7fbf7fbf7fu;
        memcpy(out + i, &r, 8);
    }
}

static size_t cells_bytes(const struct side *s)
{
    return (size_t)s->n_cells * s->shape.n_layers * s->shape.n_planes * s->cell_bytes;
}

static void set_layout(struct side *s)
{
    const struct shape *h = &s->shape;
    uint64_t plane_bytes = (uint64_t)h->n_tokens * h->row;
    s->layout = (struct tsr_kv_layout){.size = sizeof s->layout,
                                       .memory = TSR_MEMORY_DEVICE,
                                       .n_layers = h->n_layers,
                                       .n_planes = h->n_planes,
                                       .block_tokens = BLOCK,
                                       .n_slots = h->n_tokens};
    for (uint32_t i = 0; i < h->n_planes; i++)
        s->layout.planes[i] =
            (struct tsr_kv_plane){.base = s->engine + i * plane_bytes,
                                  .layer_stride = h->n_planes * plane_bytes,
                                  .block_stride = (uint64_t)BLOCK * h->row,
                                  .token_stride = h->row,
                                  .head_stride = h->opaque ? h->row : 256,
                                  .element_stride = h->opaque ? 1 : 2,
                                  .dtype = h->opaque ? TSR_DTYPE_OPAQUE : TSR_DTYPE_BF16,
                                  .n_heads = h->opaque ? 1 : h->row / 256,
                                  .dim = h->opaque ? h->row : 128};
    s->entry = (struct tsr_kv_cells){.size = sizeof s->entry,
                                     .planes = s->planes,
                                     .n_cells = s->n_cells,
                                     .cell_tokens = CELL,
                                     .n_tokens = h->n_tokens,
                                     .n_layers = h->n_layers,
                                     .n_planes = h->n_planes,
                                     .int8 = h->int8,
                                     .memory = TSR_MEMORY_LOCKED};
}

/* Three runs that are cut inside cells; blocks in the engine's memory in reverse order. */
static void set_runs(struct side *s, bool skips)
{
    uint32_t n = s->shape.n_tokens, cut[RUNS + 1] = {0, n / 3 + 5, n / 2 + 1, n};
    for (uint32_t t = 0; t < n; t++)
        s->slots[t] =
            skips && t % 7 == 3 ? -1 : (int64_t)((n / BLOCK - 1 - t / BLOCK) * BLOCK + t % BLOCK);
    for (uint32_t i = 0; i < RUNS; i++)
        s->runs[i] = (struct tsr_kv_run){.cells = &s->entry,
                                         .slots = s->slots + cut[i],
                                         .offset = cut[i],
                                         .n_tokens = cut[i + 1] - cut[i]};
}

static void open_side(struct side *s, struct tsri_device *d, const struct shape *shape)
{
    void *p;
    memset(s, 0, sizeof *s);
    s->d = d;
    s->shape = *shape;
    s->n_cells = (shape->n_tokens + CELL - 1) / CELL;
    s->engine_bytes = (size_t)shape->n_layers * shape->n_planes * shape->n_tokens * shape->row;
    size_t row = shape->int8 ? tsri_row_bytes_int8(shape->row / 256, 128) : shape->row;
    s->cell_bytes = CELL * row;
    CHECK_INT(tsri_stream_open(&s->stream, d, NULL, 0), 0);
    CHECK_INT(tsri_device_alloc(d, &p, s->engine_bytes), 0);
    s->engine = p;
    CHECK_INT(tsri_device_host_alloc(d, &p, cells_bytes(s)), 0);
    s->cells = p;
    uint32_t n_lp = shape->n_layers * shape->n_planes;
    s->planes = malloc((size_t)s->n_cells * n_lp * sizeof(void *));
    s->slots = malloc(shape->n_tokens * sizeof *s->slots);
    for (uint32_t c = 0; c < s->n_cells; c++)
        for (uint32_t lp = 0; lp < n_lp; lp++)
            s->planes[(size_t)lp * s->n_cells + c] =
                s->cells + ((size_t)c * n_lp + lp) * s->cell_bytes;
    set_layout(s);
    set_runs(s, false);
    uint32_t cells = s->n_cells + 2 * RUNS;
    struct tsr_batch_limits limits = {RUNS, shape->n_tokens, cells, cells * n_lp};
    CHECK_INT(tsri_batch_open(&s->batch, d, &limits), 0);
}

static void close_side(struct side *s)
{
    tsri_batch_close(s->batch);
    tsri_stream_close(s->d, s->stream);
    tsri_device_free(s->d, s->engine);
    tsri_device_host_free(s->d, s->cells);
    free(s->planes);
    free(s->slots);
}

/* 0, or an error: threads cannot CHECK. */
static int put_engine(struct side *s, const uint8_t *image)
{
    struct tsr_copy copy = {s->engine, image, s->engine_bytes};
    int e = tsri_device_copy(s->d, s->stream, &copy, 1);
    return e ? e : tsri_stream_sync(s->d, s->stream);
}

static int get_engine(struct side *s, uint8_t *image)
{
    struct tsr_copy copy = {image, s->engine, s->engine_bytes};
    int e = tsri_device_copy(s->d, s->stream, &copy, 1);
    return e ? e : tsri_stream_sync(s->d, s->stream);
}

static int move(struct side *s, uint32_t direction, uint32_t layers_at_once)
{
    struct tsri_batch_desc desc = {
        .direction = direction, .n_runs = RUNS, .layout = &s->layout, .runs = s->runs};
    int e = tsri_batch_set(s->batch, s->stream, &desc);
    for (uint32_t l = 0; !e && l < s->shape.n_layers; l += layers_at_once) {
        uint32_t n = tsri_min_u32(layers_at_once, s->shape.n_layers - l);
        e = direction == TSRI_BATCH_GATHER ? tsri_batch_gather(s->batch, l, n)
                                           : tsri_batch_scatter(s->batch, l, n);
    }
    int waited = tsri_stream_sync(s->d, s->stream);
    return e ? e : waited;
}

/* The engine's bytes into cells on both devices, and the cells compared; rows that no slot asks for
 * keep what they had. */
static void save_and_compare(const struct shape *shape, uint32_t layers_at_once, bool skips)
{
    struct side sides[2];
    struct tsri_device *devices[2] = {cpu, cuda};
    for (int i = 0; i < 2; i++) {
        open_side(&sides[i], devices[i], shape);
        set_runs(&sides[i], skips);
        uint8_t *image = malloc(sides[i].engine_bytes);
        fill(image, sides[i].engine_bytes, 5);
        CHECK_INT(put_engine(&sides[i], image), 0);
        free(image);
        memset(sides[i].cells, 0xee, cells_bytes(&sides[i]));
        CHECK_INT(move(&sides[i], TSRI_BATCH_GATHER, layers_at_once), 0);
    }
    CHECK(memcmp(sides[0].cells, sides[1].cells, cells_bytes(&sides[0])) == 0);
    close_side(&sides[0]);
    close_side(&sides[1]);
}

static void load_and_compare(const struct shape *shape, uint32_t layers_at_once, bool skips)
{
    struct side sides[2];
    struct tsri_device *devices[2] = {cpu, cuda};
    uint8_t *images[2];
    for (int i = 0; i < 2; i++) {
        open_side(&sides[i], devices[i], shape);
        set_runs(&sides[i], skips);
        images[i] = calloc(1, sides[i].engine_bytes);
        CHECK_INT(put_engine(&sides[i], images[i]), 0);
        fill(sides[i].cells, cells_bytes(&sides[i]), 7);
        CHECK_INT(move(&sides[i], TSRI_BATCH_SCATTER, layers_at_once), 0);
        CHECK_INT(get_engine(&sides[i], images[i]), 0);
    }
    CHECK(memcmp(images[0], images[1], sides[0].engine_bytes) == 0);
    for (int i = 0; i < 2; i++) {
        close_side(&sides[i]);
        free(images[i]);
    }
}

static const struct shape pages = {4096, 6, 1, 4096, true, false};       /* one buffer a layer */
static const struct shape long_pages = {9008, 3, 1, 4096, true, false};  /* three */
static const struct shape short_pages = {272, 11, 1, 4096, true, false}; /* many layers in one */
static const struct shape odd_pages = {1040, 5, 1, 1056, true, false};   /* rows not on 256 bytes */
static const struct shape halves = {4096, 3, 2, 2048, false, false};     /* K and V */
static const struct shape int8s = {2048, 3, 2, 2048, false, true};

TEST(saves_through_buffers_are_right)
{
    static const struct shape *const shapes[] = {&pages,     &long_pages, &short_pages,
                                                 &odd_pages, &halves,     &int8s};
    open_devices();
    for (uint32_t i = 0; i < TSRI_COUNT(shapes); i++) {
        save_and_compare(shapes[i], shapes[i]->n_layers, false);
        save_and_compare(shapes[i], 1, false);
        save_and_compare(shapes[i], 2, false);
    }
    close_devices();
}

TEST(saves_leave_skipped_rows_alone)
{
    open_devices();
    save_and_compare(&pages, 6, true);
    save_and_compare(&halves, 1, true);
    close_devices();
}

TEST(loads_through_buffers_are_right)
{
    static const struct shape *const shapes[] = {&pages, &long_pages, &short_pages, &odd_pages,
                                                 &halves};
    open_devices();
    for (uint32_t i = 0; i < TSRI_COUNT(shapes); i++) {
        load_and_compare(shapes[i], shapes[i]->n_layers, false);
        load_and_compare(shapes[i], 1, true);
        load_and_compare(shapes[i], 4, false);
    }
    close_devices();
}

/* A load of what a save is still writing, on one stream: the copies of both are ordered by it. */
TEST(a_load_behind_a_save_sees_what_it_wrote)
{
    struct side a, b;
    open_devices();
    open_side(&a, cuda, &long_pages);
    open_side(&b, cuda, &long_pages);
    uint8_t *image = malloc(a.engine_bytes), *back = malloc(a.engine_bytes);
    for (uint64_t round = 1; round <= 5; round++) {
        fill(image, a.engine_bytes, round);
        CHECK_INT(put_engine(&a, image), 0);
        struct tsri_batch_desc save = {
            .direction = TSRI_BATCH_GATHER, .n_runs = RUNS, .layout = &a.layout, .runs = a.runs};
        struct tsri_batch_desc load = save;
        load.direction = TSRI_BATCH_SCATTER;
        load.layout = &b.layout;
        CHECK_INT(tsri_batch_set(a.batch, a.stream, &save), 0);
        CHECK_INT(tsri_batch_gather(a.batch, 0, 0), 0);
        CHECK_INT(tsri_batch_set(b.batch, a.stream, &load), 0);
        CHECK_INT(tsri_batch_scatter(b.batch, 0, 0), 0);
        CHECK_INT(tsri_stream_sync(cuda, a.stream), 0);
        CHECK_INT(get_engine(&b, back), 0);
        CHECK(memcmp(image, back, a.engine_bytes) == 0);
    }
    free(image);
    free(back);
    close_side(&a);
    close_side(&b);
    close_devices();
}

/* ---- threads ---- */

enum { THREADS = 4, ROUNDS = 12 };

struct work {
    struct side s;
    bool saves;
    uint64_t seed;
    uint8_t *image;
    int result; /* 0, an error, or 1: wrong bytes */
};

/* Each round moves other bytes, and what comes out is compared with the loop that defines it. */
static int one_round(struct work *w, uint64_t seed)
{
    struct side *s = &w->s;
    int e;
    if (w->saves) {
        fill(w->image, s->engine_bytes, seed);
        memset(s->cells, 0, cells_bytes(s));
        e = put_engine(s, w->image);
        if (!e) e = move(s, TSRI_BATCH_GATHER, s->shape.n_layers);
    } else {
        fill(s->cells, cells_bytes(s), seed);
        e = move(s, TSRI_BATCH_SCATTER, 1);
        if (!e) e = get_engine(s, w->image);
    }
    for (uint32_t l = 0; !e && l < s->shape.n_layers; l++)
        for (uint32_t t = 0; !e && t < s->shape.n_tokens; t++) {
            const uint8_t *row =
                (uint8_t *)s->planes[(size_t)l * s->n_cells + t / CELL] + t % CELL * s->shape.row;
            const uint8_t *engine = w->image + (size_t)l * s->shape.n_tokens * s->shape.row +
                                    (size_t)s->slots[t] * s->shape.row;
            if (memcmp(row, engine, s->shape.row) != 0) e = 1;
        }
    return e;
}

static void *run_work(void *arg)
{
    struct work *w = arg;
    for (uint64_t i = 0; i < ROUNDS && !w->result; i++)
        w->result = one_round(w, w->seed + i);
    return NULL;
}

TEST(threads_share_the_buffers_in_both_directions)
{
    static const struct shape *const shapes[THREADS] = {&long_pages, &pages, &short_pages,
                                                        &odd_pages};
    struct work work[2 * THREADS];
    pthread_t threads[2 * THREADS];
    open_devices();
    for (uint32_t i = 0; i < 2 * THREADS; i++) {
        work[i] = (struct work){.saves = i % 2, .seed = 1000 * (i + 1)};
        open_side(&work[i].s, cuda, shapes[i / 2]);
        work[i].image = malloc(work[i].s.engine_bytes);
    }
    for (uint32_t i = 0; i < 2 * THREADS; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, run_work, &work[i]), 0);
    for (uint32_t i = 0; i < 2 * THREADS; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < 2 * THREADS; i++) {
        CHECK_INT(work[i].result, 0);
        close_side(&work[i].s);
        free(work[i].image);
    }
    close_devices();
}

/* ---- memory ---- */

static uint64_t bytes_free(void)
{
    struct tsr_device_info info = {.size = sizeof info};
    CHECK_INT(tsri_device_info(cuda, &info), 0);
    return info.bytes_free;
}

TEST(batches_share_the_device_memory_of_their_buffers)
{
    enum { BATCHES = 8 };
    const uint64_t all = (uint64_t)96 << 20, rest = (uint64_t)48 << 20;
    struct side sides[BATCHES];
    open_devices();
    for (uint32_t i = 0; i < BATCHES; i++)
        open_side(&sides[i], cuda, &short_pages);
    uint64_t before = bytes_free();
    for (uint32_t i = 0; i < BATCHES; i++) {
        CHECK_INT(move(&sides[i], TSRI_BATCH_SCATTER, 11), 0);
        CHECK_INT(move(&sides[i], TSRI_BATCH_GATHER, 11), 0);
    }
    uint64_t after = bytes_free();
    CHECK(before < after + all + rest);
    for (uint32_t i = 0; i < BATCHES; i++)
        close_side(&sides[i]);
    close_devices();
}

/* Takes device memory until not even a MiB is left. */
static uint32_t take_all(void **out, uint32_t max)
{
    uint32_t n = 0;
    for (size_t bytes = (size_t)1 << 40; bytes >= (size_t)1 << 20 && n < max; bytes /= 2)
        while (n < max && tsri_device_alloc(cuda, &out[n], bytes) == 0)
            n++;
    return n;
}

TEST(without_memory_for_buffers_kernels_move_the_rows)
{
    void *taken[256];
    struct side s;
    open_devices();
    open_side(&s, cuda, &pages);
    uint8_t *image = malloc(s.engine_bytes), *back = malloc(s.engine_bytes);
    fill(image, s.engine_bytes, 3);
    CHECK_INT(put_engine(&s, image), 0);
    uint32_t n = take_all(taken, TSRI_COUNT(taken));
    CHECK_INT(move(&s, TSRI_BATCH_GATHER, 6), 0);
    CHECK_INT(put_engine(&s, memset(back, 0, s.engine_bytes)), 0);
    CHECK_INT(move(&s, TSRI_BATCH_SCATTER, 6), 0);
    for (uint32_t i = 0; i < n; i++)
        tsri_device_free(cuda, taken[i]);
    CHECK_INT(get_engine(&s, back), 0);
    CHECK(memcmp(image, back, s.engine_bytes) == 0);
    CHECK_INT(put_engine(&s, memset(back, 0, s.engine_bytes)), 0);
    CHECK_INT(move(&s, TSRI_BATCH_SCATTER, 6), 0); /* through buffers again */
    CHECK_INT(get_engine(&s, back), 0);
    CHECK(memcmp(image, back, s.engine_bytes) == 0);
    free(image);
    free(back);
    close_side(&s);
    close_devices();
}

int main(void)
{
    RUN(saves_through_buffers_are_right);
    RUN(saves_leave_skipped_rows_alone);
    RUN(loads_through_buffers_are_right);
    RUN(a_load_behind_a_save_sees_what_it_wrote);
    RUN(threads_share_the_buffers_in_both_directions);
    RUN(batches_share_the_device_memory_of_their_buffers);
    RUN(without_memory_for_buffers_kernels_move_the_rows);
    return test_end();
}
