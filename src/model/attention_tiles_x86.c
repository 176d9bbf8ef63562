/* attention_tiles_x86.c - softmax(Q K + mask) V of many rows, on AMX tiles: several times as fast as
 * attention_x86.c, with bits of its own.
 *
 * bf16 has 8 bits, which is too few for scores. So each number is the sum of two of them, a high and a low
 * part, and a product is three: low * high, high * high, high * low. K and V in f16 have 11 bits, and
 * are their two parts exactly. Q, which is scaled before, and weights lose 2^-18 of their value; so
 * much is lost again with low * low. A score is off by at most 2^-17 of its sum of absolute products,
 * and so is a sum of values.
 *
 * Tiles of scores have a row for each lane and a column for each of 16 keys, so rows of Q, masks,
 * weights and results stay as they are. Only keys are turned around. A pair in a row of a tile is numbers
 * i and i + 16 of 32: two instructions make it, and any order does that both factors have.
 *
 * The softmax of a lane is relative to a whole number near a score that it has seen, its `top`, which
 * moves when a weight would be 2^8 or more. So what was added up is hardly ever scaled again. Everything is in
 * powers of two.
 *
 * Tiles are multiplied while other lanes' scores become weights, three products and then some lanes: the
 * processor looks ahead by about 500 instructions, which is little. Order of steps (a block and 64
 * keys), two by two: scores of 2 and 3 while 1 is weighed, values of 0 and 1 while 2 is weighed,
 * scores of 4 and 5 while 3 is weighed. So a tile is loaded long after it was stored, which would be slow
 * at once, and keys and values serve two blocks while they are in the first-level cache.
 *
 * A lane depends on its row and its keys alone. Keys that are left out have a weight of 0, and adding
 * 0 changes no sum: after a product none is -0, nor too small for a normal float. */
#include "model/attention_x86.h"
#include "model/parts_x86.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)

#define LANES 32u             /* of a block: the rows of two tiles */
#define BLOCKS 16u            /* that share 64 keys, at most */
#define BLOCKS_LEAST 4u       /* tiles of keys take as long to make as one block does to use them */
#define BLOCKS_BYTES 0x3c000u /* of all of them, on the stack: 350 KB with the rest */
#define HALF (TILE_BYTES / sizeof(float)) /* a tile */
#define WHOLE (2 * HALF)                  /* a tile of high parts, and one of low parts */
#define MARGIN 8.0F                       /* powers of two */
#define LOG2_E 0x1.715476p+0F

/* 32 lanes: rows of Q as tiles, and how far their attention is. */
struct tile_block {
    float *q;      /* [2][dim / 32] tiles */
    float *values; /* [2][dim / 16] tiles of sums */
    float *totals; /* [LANES][WIDE] of weights, to be added up at the end */
    float top[LANES], limit[LANES], shift[LANES];
    struct lanes lanes;
};

/* 64 keys and a block. */
struct tile_step {
    struct tile_block *block;
    uint32_t key;
    bool plain;
    uint32_t moved;     /* lanes whose top did */
    float again[LANES]; /* what their sums are multiplied by */
    /* [2][4] tiles: scores of 16 keys each, then high parts of 32 weights each, and low parts. */
    _Alignas(64) float scores[LANES * KEYS];
};

/* Blocks of a head of K. */
struct tile_pass {
    const struct attention *a;
    uint32_t kv_head, n_blocks;
    uint32_t chunks;       /* of 32 dimensions */
    uint32_t key, block;   /* what is next */
    uint32_t k_key, v_key; /* what k and v are of */
    struct tile_step steps[4];
    struct tile_block blocks[BLOCKS];
    _Alignas(64) float k[KEYS * DIM_MAX]; /* [KEYS / 16][dim / 32] tiles */
    _Alignas(64) float v[KEYS * DIM_MAX]; /* [KEYS / 32][dim / 16] tiles */
    _Alignas(64) float memory[BLOCKS_BYTES / sizeof(float)];
};

/* ---- keys and values ---- */

/* 64 keys, turned around: row i of a tile has numbers i and i + 16 of 32 dimensions of 16 keys. */
TILES static void set_keys(struct tile_pass *p, uint32_t key)
{
    const struct ggml_tensor *t = p->a->k;
    const char *from = (const char *)t->data + key * t->nb[1] + p->kv_head * t->nb[2];
    float *to = p->k;
    for (uint32_t k = 0; k < KEYS; k += WIDE, from += WIDE * t->nb[1])
        for (uint32_t c = 0; c < p->chunks; c++, to += WHOLE) {
            __m512 high[WIDE], low[WIDE];
            for (uint32_t i = 0; i < WIDE; i++) {
                const char *row = from + i * t->nb[1] + c * PAIRED * sizeof(ggml_fp16_t);
                struct two_parts x =
                    parts_of(widened(row), widened(row + WIDE * sizeof(ggml_fp16_t)));
                high[i] = x.high, low[i] = x.low;
            }
            turn(high);
            UNROLL
            for (uint32_t i = 0; i < WIDE; i++)
                _mm512_store_ps(to + i * WIDE, high[i]);
            turn(low);
            UNROLL
            for (uint32_t i = 0; i < WIDE; i++)
                _mm512_store_ps(to + HALF + i * WIDE, low[i]);
        }
    p->k_key = key;
}

/* Values of 64 keys: row i of a tile has those of keys i and i + 16 of 32. */
TILES static void set_values(struct tile_pass *p, uint32_t key)
{
    const struct ggml_tensor *t = p->a->v;
    const char *from = (const char *)t->data + key * t->nb[1] + p->kv_head * t->nb[2];
    uint32_t n = 2 * p->chunks;
    for (uint32_t k = 0; k < KEYS; k++) {
        if (k & WIDE) continue;
        float *to = p->v + k / PAIRED * n * WHOLE + k % WIDE * WIDE;
        const char *row = from + k * t->nb[1], *other = row + WIDE * t->nb[1];
        for (uint32_t d = 0; d < n; d++, to += WHOLE) {
            size_t at = d * WIDE * sizeof(ggml_fp16_t);
            struct two_parts x = parts_of(widened(row + at), widened(other + at));
            _mm512_store_ps(to, x.high);
            _mm512_store_ps(to + HALF, x.low);
        }
    }
    p->v_key = key;
}

/* ---- in and out ---- */

static uint32_t block_floats(uint32_t dim)
{
    return LANES * (dim + dim + WIDE);
}

TILES static void begin(struct tile_block *b, const struct tile_pass *p)
{
    const struct attention *a = p->a;
    __m512 by = _mm512_set1_ps(a->scale * LOG2_E);
    for (uint32_t i = 0; i < LANES; i++) {
        const float *from = lane_of(a->q, a, p->kv_head, lane_at(b->lanes, i));
        float *to = b->q + i / WIDE * p->chunks * WHOLE + i % WIDE * WIDE;
        for (uint32_t c = 0; c < p->chunks; c++, from += PAIRED, to += WHOLE) {
            struct two_parts x = parts_of(_mm512_mul_ps(_mm512_loadu_ps(from), by),
                                          _mm512_mul_ps(_mm512_loadu_ps(from + WIDE), by));
            _mm512_store_ps(to, x.high);
            _mm512_store_ps(to + HALF, x.low);
        }
        b->top[i] = b->limit[i] = -INFINITY;
        b->shift[i] = SIXTEENTHS; /* until there is a top all scores are -INFINITY */
    }
    memset(b->values, 0, LANES * a->dim * sizeof *b->values);
    memset(b->totals, 0, LANES * WIDE * sizeof *b->totals);
}

TILES static void finish(const struct tile_block *b, const struct tile_pass *p)
{
    const struct attention *a = p->a;
    for (uint32_t i = 0; i < b->lanes.n; i++) {
        float total = _mm512_reduce_add_ps(_mm512_load_ps(b->totals + i * WIDE));
        __m512 by = _mm512_set1_ps(total != 0 ? 1 / total : 0);
        const float *from = b->values + i / WIDE * p->chunks * WHOLE + i % WIDE * WIDE;
        float *to = lane_of(a->out, a, p->kv_head, b->lanes.first + i);
        for (uint32_t d = 0; d < a->dim; d += WIDE, from += HALF)
            _mm512_storeu_ps(to + d, _mm512_mul_ps(_mm512_load_ps(from), by));
    }
}

/* ---- products ---- */

/* Two tiles of rows, and the columns that they are multiplied with. */
struct tile_factors {
    const float *a;        /* high parts of the first 16 rows */
    size_t a_low, a_next;  /* to their low parts, to the other rows */
    const float *b, *next; /* pairs of tiles of 16 columns */
};

/* Adds 12 products to tiles 0 to 3, three at a time. Each of the others is loaded once. */
INLINE TILES void add_products(const struct tile_factors *f, uint32_t part)
{
    switch (part) {
    case 0:
        _tile_loadd(4, f->a + f->a_low, TILE_ROW);
        _tile_loadd(6, f->b, TILE_ROW);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, f->next, TILE_ROW);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, f->a + f->a_low + f->a_next, TILE_ROW);
        _tile_dpbf16ps(2, 5, 6);
        break;
    case 1:
        _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(4, f->a, TILE_ROW);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        break;
    case 2:
        _tile_loadd(5, f->a + f->a_next, TILE_ROW);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(6, f->b + HALF, TILE_ROW);
        _tile_dpbf16ps(0, 4, 6);
        break;
    default:
        _tile_loadd(7, f->next + HALF, TILE_ROW);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

/* Tiles 0 to 3, as they are in memory: two of the first 16 lanes, two of the others. */
INLINE TILES void load_sums(const float *first, const float *other)
{
    _tile_loadd(0, first, TILE_ROW);
    _tile_loadd(1, first + HALF, TILE_ROW);
    _tile_loadd(2, other, TILE_ROW);
    _tile_loadd(3, other + HALF, TILE_ROW);
}

INLINE TILES void store_sums(float *first, float *other)
{
    _tile_stored(0, first, TILE_ROW);
    _tile_stored(1, first + HALF, TILE_ROW);
    _tile_stored(2, other, TILE_ROW);
    _tile_stored(3, other + HALF, TILE_ROW);
}

/* Scores of keys 32 * pair to 32 * pair + 31, as far as 32 dimensions make them. */
INLINE TILES void score(struct tile_pass *p, struct tile_step *s, uint32_t pair, uint32_t chunk,
                        uint32_t part)
{
    const float *k = p->k + (2 * pair * p->chunks + chunk) * WHOLE;
    if (chunk == 0 && part == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    add_products(&(struct tile_factors){.a = s->block->q + chunk * WHOLE,
                                        .a_low = HALF,
                                        .a_next = p->chunks * WHOLE,
                                        .b = k,
                                        .next = k + p->chunks * WHOLE},
                 part);
    if (chunk + 1 < p->chunks || part < 3) return;
    store_sums(s->scores + pair * WHOLE, s->scores + (pair + 2) * WHOLE);
}

/* What 32 keys add to dimensions 32 * chunk to 32 * chunk + 31. */
INLINE TILES void add_values(struct tile_pass *p, struct tile_step *s, uint32_t chunk,
                             uint32_t pair, uint32_t part)
{
    const float *v = p->v + (2 * pair * p->chunks + 2 * chunk) * WHOLE;
    float *sums = s->block->values + chunk * WHOLE, *other = sums + p->chunks * WHOLE;
    if (pair == 0 && part == 0) load_sums(sums, other);
    add_products(&(struct tile_factors){.a = s->scores + pair * HALF,
                                        .a_low = WHOLE,
                                        .a_next = 2 * WHOLE,
                                        .b = v,
                                        .next = v + WHOLE},
                 part);
    if (pair == 1 && part == 3) store_sums(sums, other);
}

/* ---- softmax ---- */

/* The first 16 of a lane; the others are in the tiles after that one. */
INLINE float *scores_of(struct tile_step *s, uint32_t lane)
{
    return s->scores + lane / WIDE * 2 * WHOLE + lane % WIDE * WIDE;
}

/* A lane has a score that is too far above its top, or its first one. */
TILES static void move_top(struct tile_step *s, uint32_t i, __m512 scores)
{
    struct tile_block *b = s->block;
    float top = rintf(_mm512_reduce_max_ps(scores));
    __m512 again = power(_mm512_set1_ps(b->top[i]), _mm512_set1_ps(SIXTEENTHS - top));
    float *totals = b->totals + i * WIDE;
    _mm512_store_ps(totals, _mm512_mul_ps(_mm512_load_ps(totals), again));
    s->again[i] = _mm512_cvtss_f32(again);
    s->moved |= 1u << i;
    b->top[i] = top;
    b->limit[i] = top + MARGIN;
    b->shift[i] = SIXTEENTHS - top;
}

/* Adds masks to scores. A hidden key may be no number. */
TILES static void add_masks(const struct attention *a, struct tile_step *s)
{
    const __m256i hidden = _mm256_set1_epi16((short)TSRI_HIDDEN);
    const __m512 none = _mm512_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < LANES; i++) {
        uint32_t row = lane_at(s->block->lanes, i) / a->per_kv;
        for (uint32_t k = 0; k < KEYS; k += WIDE) {
            float *at = scores_of(s, i) + k / WIDE * HALF;
            __m256i mask = mask_at(a, row, s->key + k);
            __m512 x =
                _mm512_fmadd_ps(_mm512_cvtph_ps(mask), _mm512_set1_ps(LOG2_E), _mm512_load_ps(at));
            __mmask16 hides = _mm256_cmpeq_epi16_mask(mask, hidden);
            _mm512_store_ps(at, _mm512_mask_mov_ps(x, hides, none));
        }
    }
}

/* A lane's scores become weights. */
INLINE TILES void weigh(struct tile_step *s, uint32_t i)
{
    float *row = scores_of(s, i), *totals = s->block->totals + i * WIDE;
    __m512 x[KEYS / WIDE];
    UNROLL
    for (uint32_t k = 0; k < KEYS / WIDE; k++)
        x[k] = _mm512_load_ps(row + k * HALF);
    __m512 most = _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
    __m512 limit = _mm512_set1_ps(s->block->limit[i]);
    if (_mm512_cmp_ps_mask(most, limit, _CMP_GT_OQ)) move_top(s, i, most);
    __m512 shift = _mm512_set1_ps(s->block->shift[i]);
    UNROLL
    for (uint32_t k = 0; k < KEYS / WIDE; k++)
        x[k] = power(x[k], shift);
    UNROLL
    for (uint32_t k = 0; k < 2; k++) {
        struct two_parts w = parts_of(x[2 * k], x[2 * k + 1]);
        _mm512_store_ps(row + k * HALF, w.high);
        _mm512_store_ps(row + WHOLE + k * HALF, w.low);
    }
    __m512 total = _mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3]));
    _mm512_store_ps(totals, _mm512_add_ps(_mm512_load_ps(totals), total));
}

/* What was added up with another top. */
TILES static void move_values(const struct attention *a, const struct tile_step *s)
{
    for (uint32_t left = s->moved; left; left &= left - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(left);
        float *values = s->block->values + i / WIDE * a->dim * WIDE + i % WIDE * WIDE;
        __m512 by = _mm512_set1_ps(s->again[i]);
        for (uint32_t d = 0; d < a->dim; d += WIDE, values += HALF)
            _mm512_store_ps(values, _mm512_mul_ps(_mm512_load_ps(values), by));
    }
}

/* ---- steps ---- */

/* The next keys and block; false: there are none. */
TILES static bool next_step(struct tile_pass *p, struct tile_step *s)
{
    for (; p->key < p->a->n_kv; p->key += KEYS, p->block = 0)
        while (p->block < p->n_blocks) {
            s->block = &p->blocks[p->block++];
            s->plain = false;
            uint32_t n = seen(s->block->lanes, p->a, p->key, &s->plain);
            if (n == 0) continue;
            s->key = p->key;
            s->plain = s->plain && n == KEYS;
            s->moved = 0;
            return true;
        }
    return false;
}

/* Scores of two steps, or their values are added up; another one is weighed meanwhile. NULL: there is none. */
INLINE TILES void step(struct tile_pass *p, struct tile_step *const two[2], bool values,
                       struct tile_step *other)
{
    uint32_t n = 8 * p->chunks, all = (two[0] ? n : 0) + (two[1] ? n : 0);
    uint32_t lane = other ? 0 : LANES, due = 0;
    if (other && !other->plain) add_masks(p->a, other);
    for (uint32_t t = 0; t < 2 && two[t]; t++) {
        if (!values && p->k_key != two[t]->key) set_keys(p, two[t]->key);
        if (values && p->v_key != two[t]->key) set_values(p, two[t]->key);
        if (values) move_values(p->a, two[t]);
        for (uint32_t i = 0, chunk = 0, pair = 0; i < n; i += 4) {
            UNROLL
            for (uint32_t part = 0; part < 4; part++) {
                tiles_written();
                if (values)
                    add_values(p, two[t], chunk, pair, part);
                else
                    score(p, two[t], pair, chunk, part);
                for (due += LANES; due >= all && lane < LANES; due -= all)
                    weigh(other, lane++);
            }
            if (values && (pair ^= 1) == 0) chunk++;
            if (!values && ++chunk == p->chunks) chunk = 0, pair = 1;
        }
    }
    for (; lane < LANES; lane++)
        weigh(other, lane);
}

TILES static void attend_by_tiles(const struct attention *a, uint32_t kv_head, uint32_t first,
                                  uint32_t n)
{
    struct tile_pass p;
    struct tile_sizes before_us;
    p.a = a, p.kv_head = kv_head, p.n_blocks = n, p.chunks = a->dim / PAIRED;
    p.key = p.block = 0, p.k_key = p.v_key = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        struct tile_block *b = &p.blocks[i];
        b->q = p.memory + i * block_floats(a->dim);
        b->values = b->q + LANES * a->dim;
        b->totals = b->values + LANES * a->dim;
        b->lanes = lanes_of(a, first + i, LANES);
        begin(b, &p);
    }
    tiles_begin(&before_us);
    struct tile_step *before[2] = {NULL, NULL};
    for (uint32_t i = 0;; i ^= 2) {
        struct tile_step *now[2] = {&p.steps[i], &p.steps[i + 1]};
        for (uint32_t t = 0; t < 2; t++)
            if (!next_step(&p, now[t])) now[t] = NULL;
        if (!now[0] && !before[0]) break;
        step(&p, now, false, before[1]);
        step(&p, before, true, now[0]);
        before[0] = now[0], before[1] = now[1];
    }
    tiles_end(&before_us);
    for (uint32_t i = 0; i < n; i++)
        finish(&p.blocks[i], &p);
}

/* ---- the operation ---- */

void tsri_attention_tiles(struct ggml_tensor *dst, int ith, int nth, void *scale)
{
    struct attention a = attention_of(dst, scale);
    uint32_t most = BLOCKS_BYTES / (uint32_t)sizeof(float) / block_floats(a.dim);
    struct turns turns = {LANES, BLOCKS_LEAST, most < BLOCKS ? most : BLOCKS};
    take_turns(&a, (uint32_t)ith, (uint32_t)nth, turns, attend_by_tiles);
}

bool tsri_attention_tiles_can(const struct ggml_tensor *kv, uint32_t head_dim)
{
    return kv->type == GGML_TYPE_F16 && head_dim % PAIRED == 0 && head_dim <= DIM_MAX &&
           kv->buffer && ggml_backend_buffer_is_host(kv->buffer) && tsri_tiles_here();
}

#else

bool tsri_attention_tiles_can(const struct ggml_tensor *kv, uint32_t head_dim)
{
    (void)kv;
    (void)head_dim;
    return false;
}

#endif
