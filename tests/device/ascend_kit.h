/* ascend_kit.h - moves of the device "npu" over the fake AscendCL, and the same on the cpu to compare
 * with. */
#ifndef TSRI_ASCEND_KIT_H
#define TSRI_ASCEND_KIT_H

#include "kv.h"
#include "support/fakeacl.h"

static const struct fakeacl_control *acl;
static uint64_t fail_at;       /* the call of the next move that fails; 0: none */
static const char *fail_named; /* the function that fails in moves; NULL: none */

enum { N_TOKENS = 60, MANY_TOKENS = 1200, CELL = 16 };

/* One move on one device: what it is, and the bytes that are left behind. */
struct job {
    struct kv_shape shape;
    bool int8, on_device, gather, rotates;
    bool gptj;    /* pairing */
    bool follow;  /* slots follow each other */
    bool many;    /* MANY_TOKENS instead of N_TOKENS */
    size_t shift; /* of the cells' address, in bytes */
};
struct result {
    uint8_t *engine, *cells;
    size_t engine_bytes, cells_bytes;
};

static inline void result_free(struct result *r)
{
    free(r->engine);
    free(r->cells);
}

static inline struct tsri_device *open_device(const char *name, const char *variant)
{
    struct tsr_device_desc desc = {.size = sizeof desc, .variant = variant};
    struct tsri_device *d;
    CHECK_INT(tsri_device_open(&d, name, &desc), 0);
    return d;
}

/* The bytes of the cells, wherever they are. */
static inline uint8_t *cells_image(const struct kv_cells *c, const uint8_t *at)
{
    uint8_t *image = malloc(c->bytes);
    struct tsr_copy copy = {image, at, c->bytes};
    CHECK_INT(tsri_device_copy(c->device, NULL, &copy, 1), 0);
    CHECK_INT(tsri_stream_sync(c->device, NULL), 0);
    return image;
}

static inline int move_all(struct tsri_batch *b, const struct job *j, struct tsri_device *d)
{
    int e = j->gather ? tsri_batch_gather(b, 0, 0) : tsri_batch_scatter(b, 0, 0);
    int sync = tsri_stream_sync(d, NULL);
    return e ? e : sync;
}

/* Returns the first error of the move itself, which may be asked for. */
static inline int run_job(struct tsri_device *d, const struct job *j, struct result *out)
{
    struct kv_engine engine;
    struct kv_cells cells;
    struct tsri_batch *batch;
    int64_t slots[MANY_TOKENS];
    uint32_t n = j->many ? MANY_TOKENS : N_TOKENS;
    struct tsr_batch_limits limits = {2, 2 * MANY_TOKENS, 2 * MANY_TOKENS, 1000};
    struct tsr_rope rope = {.size = sizeof rope,
                            .pairing = j->gptj ? TSR_ROPE_GPTJ : TSR_ROPE_NEOX,
                            .dims = j->shape.rope_dims,
                            .theta = 10000};
    kv_engine_init(&engine, d, &j->shape);
    kv_cells_init(&cells, d, &engine.layout, n, CELL, j->int8, 3);
    kv_cells_numbers(&cells, &engine.layout, 4);
    kv_slots(slots, n, j->shape.n_slots, 77);
    for (int64_t i = 0; i < n && j->follow; i++)
        slots[i] = i;
    void *moved = j->on_device ? kv_cells_to_device(&cells, j->shift) : NULL;
    struct tsr_kv_run runs[2] = {{&cells.cells, slots, 0, n - 20, j->rotates ? 321 : 0, 0, 0},
                                 {&cells.cells, slots + n - 20, n - 19, 19, 0, 0, 0}};
    struct tsri_batch_desc desc = {j->gather ? TSRI_BATCH_GATHER : TSRI_BATCH_SCATTER,
                                   2,
                                   &engine.layout,
                                   runs,
                                   j->rotates ? &rope : NULL,
                                   0};
    CHECK_INT(tsri_batch_open(&batch, d, &limits), 0);
    if (fail_at) {
        acl->reset();
        acl->fail(fail_at);
    }
    if (fail_named) setenv("FAKEACL_FAILS", fail_named, 1);
    int e = tsri_batch_set(batch, NULL, &desc);
    if (!e) e = move_all(batch, j, d);
    if (fail_at) acl->reset();
    if (fail_named) unsetenv("FAKEACL_FAILS");
    if (e) CHECK_INT(tsri_stream_sync(d, NULL), 0); /* what was queued may still run */
    if (!e) {
        out->engine = kv_engine_image(&engine);
        out->cells = cells_image(&cells, moved ? (uint8_t *)moved + j->shift : cells.data);
        out->engine_bytes = engine.bytes;
        out->cells_bytes = cells.bytes;
    }
    tsri_batch_close(batch);
    tsri_device_free(d, moved);
    kv_cells_fini(&cells);
    kv_engine_fini(&engine);
    return e;
}

static const struct kv_shape plain_shape = {KV_SPLIT, TSR_DTYPE_BF16, 2, 2, 64, 64, 0, 64, 16, 128};

/* Operators round each step, as the plain loops do. */
static inline const char *cpu_variant(const char *variant)
{
    if (variant && strncmp(variant, "operators", 9) == 0) return "plain";
    return variant && strcmp(variant, "reference") == 0 ? variant : NULL;
}

static inline void check_same_on(struct tsri_device *npu, struct tsri_device *cpu,
                                 const struct job *j)
{
    struct result a = {0}, b = {0};
    CHECK_INT(run_job(cpu, j, &a), 0);
    CHECK_INT(run_job(npu, j, &b), 0);
    bool same = a.engine_bytes == b.engine_bytes && a.cells_bytes == b.cells_bytes &&
                memcmp(a.engine, b.engine, a.engine_bytes) == 0 &&
                memcmp(a.cells, b.cells, a.cells_bytes) == 0;
    if (!same)
        printf("    %s, int8 %d, device %d, gather %d, rotates %d, shift %zu\n",
               kv_kind_names[j->shape.kind], j->int8, j->on_device, j->gather, j->rotates,
               j->shift);
    CHECK(same);
    result_free(&a);
    result_free(&b);
}

static inline void check_same(const char *variant, const struct job *j)
{
    struct tsri_device *npu = open_device("npu", variant);
    struct tsri_device *cpu = open_device("cpu", cpu_variant(variant));
    check_same_on(npu, cpu, j);
    tsri_device_close(npu);
    tsri_device_close(cpu);
    acl->check_closed();
}

/* ---- operators ---- */

/* One of 48 moves. */
static inline struct job job_at(const struct kv_shape *shape, int k)
{
    struct job j = {.shape = *shape, .int8 = k & 1, .on_device = k & 2, .gptj = k & 4};
    j.gather = k / 8 % 3 == 2;
    j.rotates = k / 8 % 3 == 1;
    j.follow = k / 24 % 2;
    j.shift = j.on_device && k >= 24 ? 4 : 0;
    return j;
}

static inline struct tsri_device *open_and_check_info(const char *want)
{
    struct tsr_device_info info = {.size = sizeof info};
    struct tsri_device *d = open_device("npu", "operators_small");
    CHECK_INT(tsri_device_info(d, &info), 0);
    CHECK_STR(info.text, want);
    return d;
}

static inline void check_info(const char *want)
{
    tsri_device_close(open_and_check_info(want));
    acl->check_closed();
}

/* What the device says of itself before and after its operators. */
#define CHIP "Ascend910B3, CANN 9.0.0, batched copies, "
#define END "; never run on an NPU"

#endif
