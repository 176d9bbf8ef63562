/* reference.c - every operation as a plain loop over elements. It is slow and right by definition:
 * what another variant or another device gives is compared with this, bit for bit where bytes are
 * copied and within the bounds of <tessera/device.h> where they are computed. */
#include "device/device.h"

#include <math.h>

/* ---- numbers ---- */

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float tsri_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, m = h & 0x3ffu;
    if (exponent == 31) return float_of(sign | 0x7f800000u | (m << 13));
    if (exponent) return float_of(sign | ((exponent + 112) << 23) | (m << 13));
    float tiny = (float)m * 0x1p-24f;
    return float_of(sign | bits_of(tiny));
}

uint16_t tsri_f32_to_f16(float f)
{
    uint32_t u = bits_of(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or beyond */
    if (a < 0x38800000u) {
        /* Denormal: adding 0.5 leaves multiples of 2^-24, rounded to even, in the low bits. */
        float shifted = float_of(a) + 0.5f;
        return (uint16_t)(sign | (bits_of(shifted) - 0x3f000000u));
    }
    a += 0xfffu + ((a >> 13) & 1u);
    return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
}

float tsri_bf16_to_f32(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

uint16_t tsri_f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static double read_element(const void *at, uint32_t dtype)
{
    uint16_t h;
    float f;
    if (dtype == TSR_DTYPE_F32) {
        memcpy(&f, at, sizeof f);
        return (double)f;
    }
    memcpy(&h, at, sizeof h);
    return (double)(dtype == TSR_DTYPE_F16 ? tsri_f16_to_f32(h) : tsri_bf16_to_f32(h));
}

static void write_element(void *at, uint32_t dtype, double v)
{
    float f = (float)v;
    uint16_t h;
    if (dtype == TSR_DTYPE_F32) {
        memcpy(at, &f, sizeof f);
        return;
    }
    h = dtype == TSR_DTYPE_F16 ? tsri_f32_to_f16(f) : tsri_f32_to_bf16(f);
    memcpy(at, &h, sizeof h);
}

/* ---- int8 rows ---- */

static float quantise_group(int8_t *dst, const float *src, uint32_t n)
{
    float m = 0;
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) {
        finite = finite && isfinite(src[i]);
        if (fabsf(src[i]) > m) m = fabsf(src[i]);
    }
    if (!finite || m < 0x1p-120f) {
        memset(dst, 0, n);
        return finite ? 0 : NAN;
    }
    float to_int8 = 127.0f / m;
    for (uint32_t i = 0; i < n; i++)
        dst[i] = (int8_t)rintf(src[i] * to_int8);
    return m / 127.0f;
}

/* A row of heads of which each is `stride` bytes from the next and its elements `step` bytes. */
static void quantise_row(uint8_t *dst, const uint8_t *src, const struct tsr_kv_plane *p)
{
    uint32_t group = tsri_quant_group(p->dim), n_groups = p->n_heads * (p->dim / group);
    size_t n = (size_t)p->n_heads * p->dim;
    memset(dst + n, 0, tsri_row_bytes_int8(p->n_heads, p->dim) - n);
    for (uint32_t g = 0; g < n_groups; g++) {
        float values[TSRI_KV_DIM_MAX];
        for (uint32_t i = 0; i < group; i++) {
            uint64_t at = (uint64_t)g * group + i;
            values[i] = (float)read_element(
                src + at / p->dim * p->head_stride + at % p->dim * p->element_stride, p->dtype);
        }
        float scale = quantise_group((int8_t *)dst + (size_t)g * group, values, group);
        memcpy(dst + n + g * sizeof scale, &scale, sizeof scale);
    }
}

static double read_int8(const uint8_t *row, const struct tsr_kv_plane *p, uint32_t head, uint32_t i)
{
    size_t n = (size_t)p->n_heads * p->dim, at = (size_t)head * p->dim + i;
    float scale;
    memcpy(&scale, row + n + at / tsri_quant_group(p->dim) * sizeof scale, sizeof scale);
    return (double)(int8_t)row[at] * (double)scale;
}

/* ---- moving ---- */

struct token_at {
    const struct tsr_kv_plane *p;
    uint8_t *engine; /* of the token */
    uint8_t *row;    /* in its cell */
    bool int8;
};

static double read_cell(const struct token_at *at, uint32_t head, uint32_t i)
{
    const struct tsr_kv_plane *p = at->p;
    if (at->int8) return read_int8(at->row, p, head, i);
    return read_element(at->row + ((size_t)head * p->dim + i) * tsri_dtype_bytes(p->dtype),
                        p->dtype);
}

static void turn_head(const struct token_at *at, uint32_t head, uint32_t pairing,
                      const float *table)
{
    const struct tsr_kv_plane *p = at->p;
    uint32_t n_pairs = p->rope_dims / 2;
    uint8_t *out = at->engine + head * p->head_stride;
    for (uint32_t i = 0; i < n_pairs; i++) {
        uint32_t ia = p->rope_first + (pairing == TSR_ROPE_NEOX ? i : 2 * i);
        uint32_t ib = pairing == TSR_ROPE_NEOX ? ia + n_pairs : ia + 1;
        double a = read_cell(at, head, ia), b = read_cell(at, head, ib);
        double c = (double)table[i], s = (double)table[n_pairs + i];
        write_element(out + ia * p->element_stride, p->dtype, a * c - b * s);
        write_element(out + ib * p->element_stride, p->dtype, b * c + a * s);
    }
}

static void copy_head(const struct token_at *at, uint32_t head, bool to_engine, bool all)
{
    const struct tsr_kv_plane *p = at->p;
    uint32_t bytes = tsri_dtype_bytes(p->dtype);
    for (uint32_t i = 0; i < p->dim; i++) {
        if (!all && i >= p->rope_first && i < p->rope_first + p->rope_dims) continue;
        uint8_t *engine = at->engine + head * p->head_stride + i * p->element_stride;
        uint8_t *cell = at->row + ((size_t)head * p->dim + i) * bytes;
        if (!to_engine)
            memcpy(cell, engine, bytes);
        else if (at->int8)
            write_element(engine, p->dtype, read_cell(at, head, i));
        else
            memcpy(engine, cell, bytes);
    }
}

void tsri_reference_move(const struct tsr_batch *b, bool to_engine, uint32_t layer, uint32_t plane,
                         uint32_t run)
{
    const struct tsr_kv_run *r = &b->runs[run];
    const struct tsr_kv_cells *c = r->cells;
    const struct tsr_kv_plane *p = &b->layout->planes[plane];
    const float *table = to_engine && p->rope_dims ? b->rotations[run] : NULL;
    size_t row = c->int8 ? tsri_row_bytes_int8(p->n_heads, p->dim) : tsri_row_bytes(p);
    for (uint32_t i = 0; i < r->n_tokens; i++) {
        if (r->slots[i] < 0) continue;
        uint32_t token = r->offset + i;
        size_t cell = ((size_t)layer * c->n_planes + plane) * c->n_cells + token / c->cell_tokens;
        struct token_at at = {
            p, tsri_layer_base(p, layer) + tsri_slot_offset(b->layout, p, (uint64_t)r->slots[i]),
            (uint8_t *)c->planes[cell] + token % c->cell_tokens * row, c->int8 != 0};
        if (!to_engine && c->int8) {
            quantise_row(at.row, at.engine, p);
            continue;
        }
        for (uint32_t h = 0; h < p->n_heads; h++) {
            if (table) turn_head(&at, h, b->pairing, table);
            copy_head(&at, h, to_engine, !table);
        }
    }
}

/* ---- selection ---- */

/* By definition: a score is taken when fewer than k others rank before it. */
void tsri_reference_top_k(const struct tsr_top_k *t)
{
    for (uint32_t j = 0, n = 0; j < t->n && n < t->k; j++) {
        uint32_t n_before = 0; /* how many rank before j */
        for (uint32_t i = 0; i < t->n; i++) {
            float a = t->scores[i], b = t->scores[j];
            bool larger = isnan(a) ? !isnan(b) : a > b;
            bool equal = isnan(a) ? isnan(b) : a == b;
            n_before += larger || (equal && i < j);
        }
        if (n_before < t->k) t->out[n++] = j;
    }
}
