/* compute.c - the operators of the fake libopapi.so: what each of them takes, as CANN's documents say
 * it, and what it makes of it, element by element. */
#include "fakeopapi/nn.h"

#include <math.h>
#include <stdlib.h>

/* ---- elements ---- */

static float get(const struct nn_task *t, uint32_t i, int64_t at)
{
    const uint8_t *p = t->bytes[i] + at * (int64_t)nn_size(t->tensors[i].dtype);
    uint16_t h;
    float f;
    switch (t->tensors[i].dtype) {
    case TSRI_ACL_F32:
        memcpy(&f, p, sizeof f);
        return f;
    case TSRI_ACL_F16:
        memcpy(&h, p, sizeof h);
        return tsri_f16_to_f32(h);
    case TSRI_ACL_BF16:
        memcpy(&h, p, sizeof h);
        return tsri_bf16_to_f32(h);
    case TSRI_ACL_INT8:
        return (float)(int8_t)*p;
    default:
        fake_die("%s: a dtype that has no numbers", t->op->name);
    }
}

static void put(const struct nn_task *t, uint32_t i, int64_t at, float f)
{
    uint8_t *p = t->bytes[i] + at * (int64_t)nn_size(t->tensors[i].dtype);
    uint16_t h;
    switch (t->tensors[i].dtype) {
    case TSRI_ACL_F32:
        memcpy(p, &f, sizeof f);
        break;
    case TSRI_ACL_F16:
        h = tsri_f32_to_f16(f);
        memcpy(p, &h, sizeof h);
        break;
    case TSRI_ACL_BF16:
        h = tsri_f32_to_bf16(f);
        memcpy(p, &h, sizeof h);
        break;
    default:
        fake_die("%s: a dtype that is not written", t->op->name);
    }
}

/* Of a result, in its first byte: the low bit of little-endian numbers. The highest, so that it is
 * more than rounding would be, where a number is wide. */
static void spoil(const struct nn_task *t, uint32_t i)
{
    if (t->wrong) t->bytes[i][nn_size(t->tensors[i].dtype) == 4 ? 2 : 0] ^= 0x40;
}

/* ---- rules ---- */

static void want(const struct nn_task *t, bool is_so, const char *what)
{
    if (!is_so) fake_die("%s: %s", t->op->name, what);
}

static bool is_float(const struct nn_tensor *t)
{
    return t->dtype == TSRI_ACL_F32 || t->dtype == TSRI_ACL_F16 || t->dtype == TSRI_ACL_BF16;
}

static bool overlap(const struct nn_tensor *a, const struct nn_tensor *b)
{
    struct fake_span x = nn_span(a), y = nn_span(b);
    return x.first < y.first + y.bytes && y.first < x.first + x.bytes;
}

/* A tensor with gaps is copied to the workspace. */
static uint64_t copy_bytes(const struct nn_tensor *t)
{
    return nn_dense(t) ? 0 : (uint64_t)nn_count(t) * nn_size(t->dtype) + 512;
}

/* ---- Cast ---- */

static uint64_t check_cast(const struct nn_task *t)
{
    const struct nn_tensor *from = &t->tensors[0], *to = &t->tensors[1];
    want(t, nn_same_dims(from, to), "shapes differ");
    want(t, to->dtype == (enum tsri_acl_dtype)t->mode, "the result has another dtype");
    want(t, is_float(to) && (is_float(from) || from->dtype == TSRI_ACL_INT8), "dtypes");
    want(t, !overlap(from, to), "it overwrites what it reads");
    return copy_bytes(from) + copy_bytes(to);
}

static void run_cast(const struct nn_task *t)
{
    const struct nn_tensor *from = &t->tensors[0], *to = &t->tensors[1];
    for (int64_t i = 0; i < nn_count(to); i++)
        put(t, 1, nn_at(to, to, i), get(t, 0, nn_at(from, to, i)));
    spoil(t, 1);
}

const struct nn_operator nn_cast = {"aclnnCast", 2, 2, 0, 0, check_cast, run_cast};

/* ---- Mul ---- */

static uint64_t check_mul(const struct nn_task *t)
{
    const struct nn_tensor *a = &t->tensors[0], *b = &t->tensors[1], *to = &t->tensors[2];
    want(t, a->dtype == TSRI_ACL_F32 && b->dtype == a->dtype && to->dtype == a->dtype, "dtypes");
    want(t, nn_same_dims(a, to) && b->n_dims == a->n_dims, "shapes differ");
    for (uint32_t i = 0; i < a->n_dims; i++)
        want(t, b->dims[i] == a->dims[i] || b->dims[i] == 1, "shapes cannot be broadcast");
    return copy_bytes(b);
}

static void run_mul(const struct nn_task *t)
{
    const struct nn_tensor *to = &t->tensors[2];
    for (int64_t i = 0; i < nn_count(to); i++)
        put(t, 2, nn_at(to, to, i),
            get(t, 0, nn_at(&t->tensors[0], to, i)) * get(t, 1, nn_at(&t->tensors[1], to, i)));
    spoil(t, 2);
}

const struct nn_operator nn_mul = {"aclnnMul", 3, 4, 0, 0, check_mul, run_mul};

/* ---- RotaryPositionEmbedding ---- */

/* BSND with one S, and tables of 1S1D. */
static uint64_t check_rope(const struct nn_task *t)
{
    const struct nn_tensor *x = &t->tensors[0], *cos = &t->tensors[1], *to = &t->tensors[3];
    want(t,
         is_float(x) && x->dtype == cos->dtype && x->dtype == t->tensors[2].dtype &&
             x->dtype == to->dtype,
         "dtypes");
    want(t, x->n_dims == 4 && nn_same_dims(x, to), "shape of x");
    want(t, nn_same_dims(cos, &t->tensors[2]), "cos and sin");
    want(t, nn_dense(to), "the result has gaps");
    want(t, !overlap(x, to), "it overwrites what it reads");
    int64_t b = x->dims[0], n = x->dims[2], d = x->dims[3];
    want(t,
         cos->n_dims == 4 && cos->dims[0] == 1 && cos->dims[1] == x->dims[1] && cos->dims[2] == 1 &&
             cos->dims[3] == d,
         "shape of cos");
    want(t, d % 2 == 0 && d < 896, "elements of a head");
    want(t, t->mode == TSRI_ACL_ROPE_HALF || t->mode == TSRI_ACL_ROPE_INTERLEAVE, "mode");
    want(t, t->mode == TSRI_ACL_ROPE_HALF ? b < 1000 && n < 1000 : b * n < 1000, "too many heads");
    return 4096 + copy_bytes(x);
}

static void run_rope(const struct nn_task *t)
{
    const struct nn_tensor *x = &t->tensors[0], *cos = &t->tensors[1], *sin = &t->tensors[2];
    const struct nn_tensor *to = &t->tensors[3];
    int64_t d = x->dims[3];
    bool fused = getenv("FAKEACL_FMA") != NULL;
    for (int64_t i = 0; i < nn_count(to); i++) {
        int64_t k = i % d, half = t->mode == TSRI_ACL_ROPE_HALF;
        bool first = half ? k < d / 2 : k % 2 == 0;
        int64_t other = i + (first ? 1 : -1) * (half ? d / 2 : 1);
        float a = get(t, 0, nn_at(x, to, i)), b = get(t, 0, nn_at(x, to, other));
        float c = get(t, 1, nn_at(cos, to, i)), s = get(t, 2, nn_at(sin, to, i));
        float turned = (first ? -b : b) * s, kept = a * c; /* each is rounded */
        put(t, 3, i, fused ? fmaf(a, c, turned) : kept + turned);
    }
    spoil(t, 3);
}

const struct nn_operator nn_rope = {
    "aclnnRotaryPositionEmbedding", 4, 8, 0, 0, check_rope, run_rope};

/* ---- paged ---- */

static const int64_t *slots_at(const struct nn_task *t)
{
    return (const int64_t *)(const void *)t->bytes[t->op->slots];
}

static uint64_t check_select(const struct nn_task *t)
{
    const struct nn_tensor *from = &t->tensors[0], *index = &t->tensors[1], *to = &t->tensors[2];
    want(t, t->mode == 0, "not along the first axis");
    want(t, nn_dense(from), "the cache has gaps: all of it would be copied");
    want(t, nn_dense(to) && nn_dense(index), "gaps");
    want(t, index->dtype == TSRI_ACL_INT64 && index->n_dims == 1, "index");
    want(t,
         from->dtype == to->dtype && from->n_dims == 2 && to->n_dims == 2 &&
             from->dims[1] == to->dims[1] && to->dims[0] == index->dims[0],
         "shapes");
    return 1024;
}

static void run_select(const struct nn_task *t)
{
    const struct nn_tensor *to = &t->tensors[2];
    size_t row = (size_t)to->dims[1] * nn_size(to->dtype);
    for (int64_t i = 0; i < to->dims[0]; i++)
        memcpy(t->bytes[2] + (size_t)i * row, t->bytes[0] + (size_t)slots_at(t)[i] * row, row);
    spoil(t, 2);
}

const struct nn_operator nn_select = {"aclnnIndexSelect", 3, 4, 1, 1, check_select, run_select};

/* As A2 and A3 have it: f16, bf16 and int8. */
static uint64_t check_paged(const struct nn_task *t)
{
    const struct nn_tensor *slots = &t->tensors[2];
    want(t, slots->dtype == TSRI_ACL_INT64 && slots->n_dims == 1 && nn_dense(slots), "slots");
    for (uint32_t i = 0; i < 2; i++) {
        const struct nn_tensor *rows = &t->tensors[i * 3], *cache = &t->tensors[i * 3 + 1];
        want(t,
             rows->dtype == t->tensors[0].dtype && cache->dtype == rows->dtype &&
                 rows->dtype != TSRI_ACL_F32 && rows->dtype != TSRI_ACL_INT64,
             "dtypes");
        want(t, nn_dense(rows) && nn_dense(cache), "gaps");
        want(t,
             rows->n_dims == 3 && cache->n_dims == 4 && rows->dims[0] == slots->dims[0] &&
                 rows->dims[1] == t->tensors[0].dims[1] && rows->dims[1] == cache->dims[2] &&
                 rows->dims[2] == cache->dims[3] && cache->dims[0] == t->tensors[1].dims[0] &&
                 cache->dims[1] == t->tensors[1].dims[1],
             "shapes");
    }
    return 0;
}

static void run_paged(const struct nn_task *t)
{
    const struct nn_tensor *slots = &t->tensors[2];
    for (uint32_t k = 0; k < 2; k++) {
        const struct nn_tensor *rows = &t->tensors[k * 3];
        size_t row = (size_t)(rows->dims[1] * rows->dims[2]) * nn_size(rows->dtype);
        for (int64_t i = 0; i < slots->dims[0]; i++)
            memcpy(t->bytes[k * 3 + 1] + (size_t)slots_at(t)[i] * row,
                   t->bytes[k * 3] + (size_t)i * row, row);
    }
    if (t->wrong) t->bytes[1][0] ^= 1; /* slot 0, whether or not it was named */
}

const struct nn_operator nn_paged = {
    "aclnnScatterPaKvCache", 5, 2 | 16, 2 | 16, 2, check_paged, run_paged};
