/* ascend_probe.c - the self-test of CANN's operators. Nobody could try them on an NPU while this was
 * written, and they differ between chips and versions. So each is tried when a device is opened
 * with them: a few rows move by operators, through the same code as later, and the whole of the
 * engine's memory is compared with what the reference says. An operator that fails, refuses, or
 * gives something else is not used.
 *
 * Moving and int8 must be the same bits; a rotation must be within the bounds of <tessera/device.h>,
 * also where it overflows, and for numbers that are denormal in f16. */
#include "device/ascend_nn.h"

#include <math.h>
#include <stdlib.h>

enum { TOKENS = 24, BLOCK = 16, SLOTS = 64, CELL = 16, CELLS = 2, PLANES = 2 };
#define ERROR_MAX 0.6 /* units in the last place */

struct npu_shape {
    uint32_t n_heads, dim, rope_first, rope_dims;
};
/* The first ones for all operators, the others for rotation. */
enum { SHAPES_MOVED = 2 };
static const struct npu_shape shapes[] = {{8, 128, 0, 128}, {1, 64, 0, 64}, {2, 96, 32, 64}};

struct npu_probe {
    struct tsr_device *d;
    struct tsri_ascend_ops *ops;
    uint32_t dtype, pairing; /* pairing 0: nothing is rotated */
    bool int8, gather;
    struct npu_shape shape;
    size_t row, cell_row, plane_bytes; /* of the engine's memory */
    uint8_t *engine;                   /* device memory: K and V */
    uint8_t *image;                    /* page-locked: what is there in the end */
    uint8_t *cells;                    /* page-locked */
    uint8_t *want, *want_cells;        /* host memory: what the reference makes of it */
    void *planes[PLANES * CELLS], *want_planes[PLANES * CELLS];
    float table[TSRI_ASCEND_ROPE_MAX];
    int64_t slots[TOKENS];
    uint64_t dice;
};

static uint32_t throw_dice(struct npu_probe *p)
{
    p->dice = p->dice * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(p->dice >> 33);
}

/* ---- the scene ---- */

static size_t cells_bytes(const struct npu_probe *p)
{
    return PLANES * CELLS * CELL * p->cell_row;
}

static uint16_t narrow(const struct npu_probe *p, float f)
{
    return p->dtype == TSR_DTYPE_F16 ? tsri_f32_to_f16(f) : tsri_f32_to_bf16(f);
}

static float widen(const struct npu_probe *p, const uint8_t *at)
{
    uint16_t h;
    memcpy(&h, at, sizeof h);
    return p->dtype == TSR_DTYPE_F16 ? tsri_f16_to_f32(h) : tsri_bf16_to_f32(h);
}

/* Any bits, or numbers where they are computed with: large ones, small ones, and usual ones. */
static void fill(struct npu_probe *p, uint8_t *at, size_t bytes, bool numbers)
{
    for (size_t i = 0; i + 1 < bytes; i += 2) {
        uint32_t r = throw_dice(p);
        float usual = (float)((int32_t)(r % 4001) - 2000) / 251.0f;
        if (r % 61 == 0) usual *= p->dtype == TSR_DTYPE_F16 ? 7000.0f : 0x1p100f;
        if (r % 59 == 0) usual *= p->dtype == TSR_DTYPE_F16 ? 0x1p-20f : 0x1p-100f;
        uint16_t h = numbers ? narrow(p, usual) : (uint16_t)r;
        memcpy(at + i, &h, sizeof h);
    }
}

/* Rows whose scales are numbers, and one that is not. */
static void fill_int8(struct npu_probe *p)
{
    uint32_t n = p->shape.n_heads * p->shape.dim;
    for (size_t i = 0; i < cells_bytes(p); i += p->cell_row) {
        for (uint32_t k = 0; k < n; k++)
            p->cells[i + k] = (uint8_t)throw_dice(p);
        for (size_t k = n; k + sizeof(float) <= p->cell_row; k += sizeof(float)) {
            float scale = (float)(throw_dice(p) % 1000 + 1) / 8191.0f;
            if (i == 0 && k == n) scale = NAN;
            memcpy(p->cells + i + k, &scale, sizeof scale);
        }
    }
}

static void describe(const struct npu_probe *p, struct tsr_kv_layout *l, uint8_t *base)
{
    *l = (struct tsr_kv_layout){.size = sizeof *l,
                                .memory = base == p->engine ? TSR_MEMORY_DEVICE : TSR_MEMORY_HOST,
                                .n_layers = 1,
                                .n_planes = PLANES,
                                .block_tokens = BLOCK,
                                .n_slots = SLOTS};
    for (uint32_t i = 0; i < PLANES; i++)
        l->planes[i] = (struct tsr_kv_plane){.base = base + i * p->plane_bytes,
                                             .block_stride = BLOCK * p->row,
                                             .token_stride = p->row,
                                             .head_stride = (uint64_t)p->shape.dim * 2,
                                             .element_stride = 2,
                                             .dtype = p->dtype,
                                             .n_heads = p->shape.n_heads,
                                             .dim = p->shape.dim,
                                             .rope_first = i ? 0 : p->shape.rope_first,
                                             .rope_dims = i ? 0 : p->shape.rope_dims};
}

static int make_scene(struct npu_probe *p)
{
    struct tsr_device *d = p->d;
    p->row = (size_t)p->shape.n_heads * p->shape.dim * 2;
    p->cell_row = p->int8 ? tsri_row_bytes_int8(p->shape.n_heads, p->shape.dim) : p->row;
    p->plane_bytes = SLOTS * p->row;
    p->want = malloc(PLANES * p->plane_bytes);
    p->want_cells = malloc(cells_bytes(p));
    if (!p->want || !p->want_cells) return d->fail(TSR_ENOMEM, "npu: out of memory");
    int e = d->acl.aclrtMalloc((void **)&p->engine, PLANES * p->plane_bytes, TSRI_ACL_HUGE_FIRST);
    if (!e) e = d->acl.aclrtMallocHost((void **)&p->image, PLANES * p->plane_bytes);
    if (!e) e = d->acl.aclrtMallocHost((void **)&p->cells, cells_bytes(p));
    if (e) return tsri_ascend_failed(d, e, "no memory for a self-test");
    fill(p, p->image, PLANES * p->plane_bytes, false);
    memcpy(p->want, p->image, PLANES * p->plane_bytes);
    if (p->int8)
        fill_int8(p);
    else
        fill(p, p->cells, cells_bytes(p), p->pairing != 0);
    memcpy(p->want_cells, p->cells, cells_bytes(p));
    for (size_t i = 0; i < PLANES * CELLS; i++) {
        p->planes[i] = p->cells + i * CELL * p->cell_row;
        p->want_planes[i] = p->want_cells + i * CELL * p->cell_row;
    }
    for (uint32_t i = 0; i < TOKENS; i++)
        p->slots[i] = i % 5 == 4 ? -1 : (int64_t)(i * 7 + 3) % SLOTS;
    uint32_t n_pairs = p->shape.rope_dims / 2;
    for (uint32_t i = 0; i < n_pairs; i++) {
        p->table[i] = cosf((float)(i + 1));
        p->table[n_pairs + i] = sinf((float)(i + 1));
    }
    struct tsri_ascend_list up;
    tsri_ascend_list_init(&up, d, &d->stream, TSRI_ACL_HOST_TO_DEVICE);
    int err = tsri_ascend_list_add(&up, p->engine, p->image, PLANES * p->plane_bytes);
    return err ? err : tsri_ascend_list_flush(&up);
}

static void clear_scene(struct npu_probe *p)
{
    (void)!tsri_ascend_sync(p->d, &p->d->stream);
    bool usable = !atomic_load(&p->d->lost);
    if (usable && p->engine) p->d->acl.aclrtFree(p->engine);
    if (usable && p->image) p->d->acl.aclrtFreeHost(p->image);
    if (usable && p->cells) p->d->acl.aclrtFreeHost(p->cells);
    free(p->want);
    free(p->want_cells);
}

/* ---- comparing ---- */

/* One element of a rotated pair; a and b are those before. */
static bool is_close(const struct npu_probe *p, float got, double exact, double a, double b)
{
    bool f16 = p->dtype == TSR_DTYPE_F16;
    int e;
    if (fabs(exact) >= (f16 ? 65520.0 : 0x1.ffp127)) return isinf(got);
    /* The square of a 16-bit float fits a double. hypot() would need glibc 2.35, which RHEL 9 lacks. */
    (void)frexp(sqrt(a * a + b * b), &e);
    int least = f16 ? -13 : -125;
    double unit = ldexp(1.0, (e < least ? least : e) - (f16 ? 11 : 8));
    return fabs((double)got - exact) <= ERROR_MAX * unit;
}

static bool rotated_head_is_close(const struct npu_probe *p, const uint8_t *got,
                                  const uint8_t *from)
{
    uint32_t n_pairs = p->shape.rope_dims / 2;
    for (uint32_t i = 0; i < n_pairs; i++) {
        bool neox = p->pairing == TSR_ROPE_NEOX;
        uint32_t ia = p->shape.rope_first + (neox ? i : 2 * i), ib = ia + (neox ? n_pairs : 1);
        double a = (double)widen(p, from + (size_t)ia * 2);
        double b = (double)widen(p, from + (size_t)ib * 2);
        double c = (double)p->table[i], s = (double)p->table[n_pairs + i];
        if (!is_close(p, widen(p, got + (size_t)ia * 2), a * c - b * s, a, b)) return false;
        if (!is_close(p, widen(p, got + (size_t)ib * 2), b * c + a * s, a, b)) return false;
    }
    return true;
}

/* Rows of K that are close enough count as those that the reference made. */
static bool accept_rotations(const struct npu_probe *p)
{
    size_t head = (size_t)p->shape.dim * 2, first = (size_t)p->shape.rope_first * 2;
    for (uint32_t i = 0; i < TOKENS; i++) {
        const uint8_t *from = p->cells + i / CELL * CELL * p->cell_row + i % CELL * p->cell_row;
        size_t at = (size_t)p->slots[i] * p->row;
        for (uint32_t h = 0; h < p->shape.n_heads && p->slots[i] >= 0; h++, at += head) {
            if (!rotated_head_is_close(p, p->image + at, from + h * head)) return false;
            memcpy(p->want + at + first, p->image + at + first, (size_t)p->shape.rope_dims * 2);
        }
    }
    return true;
}

static bool is_right(const struct npu_probe *p)
{
    if (p->pairing && !accept_rotations(p)) return false;
    return memcmp(p->want, p->image, PLANES * p->plane_bytes) == 0 &&
           memcmp(p->want_cells, p->cells, cells_bytes(p)) == 0;
}

/* ---- trying ---- */

static int move_both_ways(struct npu_probe *p, bool *done)
{
    struct tsr_device *d = p->d;
    struct tsr_kv_layout layouts[2];
    struct tsr_kv_cells cells[2];
    struct tsr_kv_run runs[2];
    const float *table = p->pairing ? p->table : NULL;
    describe(p, &layouts[0], p->engine);
    describe(p, &layouts[1], p->want);
    struct tsr_batch batches[2];
    for (uint32_t i = 0; i < 2; i++) {
        cells[i] = (struct tsr_kv_cells){.size = sizeof cells[i],
                                         .planes = i ? p->want_planes : p->planes,
                                         .n_cells = CELLS,
                                         .cell_tokens = CELL,
                                         .n_tokens = CELLS * CELL,
                                         .n_layers = 1,
                                         .n_planes = PLANES,
                                         .int8 = p->int8,
                                         .memory = i ? TSR_MEMORY_HOST : TSR_MEMORY_LOCKED};
        runs[i] = (struct tsr_kv_run){.cells = &cells[i], .slots = p->slots, .n_tokens = TOKENS};
        batches[i] = (struct tsr_batch){.layout = &layouts[i],
                                        .runs = &runs[i],
                                        .n_runs = 1,
                                        .n_tokens = TOKENS,
                                        .pairing = p->pairing,
                                        .rotations = &table};
    }
    for (uint32_t i = 0; i < PLANES; i++)
        tsri_reference_move(&batches[1], !p->gather, 0, i, 0);
    struct tsri_ascend_run run = {&batches[0], !p->gather, 0, 0};
    int err = tsri_ascend_ops_move(d, &d->stream, &run, done);
    struct tsri_ascend_list down;
    tsri_ascend_list_init(&down, d, &d->stream, TSRI_ACL_DEVICE_TO_HOST);
    if (!err) err = tsri_ascend_list_add(&down, p->image, p->engine, PLANES * p->plane_bytes);
    if (!err) err = tsri_ascend_list_flush(&down);
    return err ? err : tsri_ascend_sync(d, &d->stream);
}

/* can: what may be used meanwhile; *right: this went by operators and as it should. */
static int try_one(struct npu_probe p, uint32_t can, bool *right)
{
    bool done = false;
    atomic_store(&p.ops->can, can);
    p.dice = 1;
    int err = make_scene(&p);
    if (!err) err = move_both_ways(&p, &done);
    *right = !err && done && is_right(&p);
    clear_scene(&p);
    return err;
}

/* An error of the device is one of the operator: without it the device would work. */
static bool try_all(struct npu_probe p, uint32_t can)
{
    for (uint32_t i = 0; i < 2 * (p.pairing ? TSRI_COUNT(shapes) : SHAPES_MOVED); i++) {
        bool right;
        p.dtype = i % 2 ? TSR_DTYPE_BF16 : TSR_DTYPE_F16;
        p.shape = shapes[i / 2];
        if (try_one(p, can, &right) || !right) return false;
    }
    return true;
}

int tsri_ascend_ops_probe(struct tsr_device *d, struct tsri_ascend_ops *o)
{
    struct npu_probe p = {.d = d, .ops = o};
    uint32_t can = 0;
    if (try_all(p, TSRI_CAN_SCATTER)) can |= TSRI_CAN_SCATTER;
    p.gather = true;
    if (try_all(p, TSRI_CAN_GATHER)) can |= TSRI_CAN_GATHER;
    p.gather = false;
    p.pairing = TSR_ROPE_NEOX;
    bool rotates = try_all(p, can | TSRI_CAN_ROTATE);
    p.pairing = TSR_ROPE_GPTJ;
    if (rotates && try_all(p, can | TSRI_CAN_ROTATE)) can |= TSRI_CAN_ROTATE;
    p.pairing = 0;
    p.int8 = true;
    if (try_all(p, can | TSRI_CAN_WIDEN)) can |= TSRI_CAN_WIDEN;
    atomic_store(&o->can, can);
    if (can) return 0;
    atomic_store(&o->why, "none passed its self-test");
    return d->fail(TSR_EUNSUP, "npu: no operator passed its self-test");
}
