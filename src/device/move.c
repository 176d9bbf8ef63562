/* move.c - the walk over a batch on the cpu: it cuts a run of tokens into stretches whose slots
 * follow each other within a block and whose rows follow each other within a cell, and hands each
 * stretch to the cheapest loop its strides allow. Copies are memcpy; what is computed is left to a
 * set of kernels. */
#include "device/device.h"

/* Copies that wait until there are enough of them to go past the caches side by side. */
struct queue {
    const struct tsri_kernels *kernels;
    uint32_t n;
    struct tsr_copy pieces[TSRI_STREAM_PIECES];
};

/* n tokens, on both sides evenly spaced. */
struct stretch {
    const struct tsr_kv_plane *p;
    uint8_t *engine; /* first token */
    uint8_t *cell;   /* its row */
    size_t row;      /* bytes from row to row in the cell */
    uint32_t n;
    struct queue *queue; /* NULL: copies are made at once */
};

static uint32_t float_kind(uint32_t dtype)
{
    return dtype == TSR_DTYPE_F32 ? TSRI_F32 : dtype == TSR_DTYPE_F16 ? TSRI_F16 : TSRI_BF16;
}

/* ---- copies ---- */

static inline void copy_bytes(bool to_engine, uint8_t *engine, uint8_t *cell, size_t bytes)
{
    if (to_engine)
        memcpy(engine, cell, bytes);
    else
        memcpy(cell, engine, bytes);
}

/* Elements apart from each other, as in column-major K: tokens are the inner loop because there
 * the engine's side is the dense one. */
static inline __attribute__((always_inline)) void copy_elements(const struct stretch *s,
                                                                bool to_engine, uint32_t bytes)
{
    const struct tsr_kv_plane *p = s->p;
    for (uint32_t h = 0; h < p->n_heads; h++)
        for (uint32_t i = 0; i < p->dim; i++) {
            uint8_t *engine = s->engine + h * p->head_stride + i * p->element_stride;
            uint8_t *cell = s->cell + ((size_t)h * p->dim + i) * bytes;
            for (uint32_t t = 0; t < s->n; t++)
                copy_bytes(to_engine, engine + t * p->token_stride, cell + t * s->row, bytes);
        }
}

static void flush(struct queue *q)
{
    for (uint32_t i = 0; i < q->n; i++)
        memcpy(q->pieces[i].dst, q->pieces[i].src, q->pieces[i].bytes);
    q->n = 0;
}

/* A head or more. */
static inline void copy_piece(const struct stretch *s, bool to_engine, size_t engine, size_t cell,
                              size_t bytes)
{
    uint8_t *to = to_engine ? s->engine + engine : s->cell + cell;
    const uint8_t *from = to_engine ? s->cell + cell : s->engine + engine;
    struct queue *q = s->queue;
    if (!q) {
        memcpy(to, from, bytes);
        return;
    }
    q->pieces[q->n++] = (struct tsr_copy){to, from, bytes};
    if (q->n < TSRI_STREAM_PIECES) return;
    q->kernels->stream(q->pieces);
    q->n = 0;
}

static void copy_stretch(const struct stretch *s, bool to_engine)
{
    const struct tsr_kv_plane *p = s->p;
    uint32_t bytes = tsri_dtype_bytes(p->dtype);
    size_t head = (size_t)p->dim * bytes;
    if (p->element_stride != bytes && p->dim > 1) {
        if (bytes == 2)
            copy_elements(s, to_engine, 2);
        else
            copy_elements(s, to_engine, 4);
    } else if (p->head_stride != head && p->n_heads > 1) {
        for (uint32_t h = 0; h < p->n_heads; h++)
            for (uint32_t t = 0; t < s->n; t++)
                copy_piece(s, to_engine, h * p->head_stride + t * p->token_stride,
                           h * head + t * s->row, head);
    } else if (p->token_stride == s->row || s->n == 1) {
        copy_piece(s, to_engine, 0, 0, s->n * s->row);
    } else {
        for (uint32_t t = 0; t < s->n; t++)
            copy_piece(s, to_engine, t * p->token_stride, t * s->row, s->row);
    }
}

/* ---- heads through a buffer ---- */

/* A head that is spread out in the engine's memory, and a dense one. */
static void spread(uint8_t *engine, const struct tsr_kv_plane *p, const void *dense)
{
    if (p->dtype == TSR_DTYPE_F32)
        for (uint32_t i = 0; i < p->dim; i++)
            memcpy(engine + i * p->element_stride, (const uint32_t *)dense + i, 4);
    else
        for (uint32_t i = 0; i < p->dim; i++)
            memcpy(engine + i * p->element_stride, (const uint16_t *)dense + i, 2);
}

static const void *collect(void *dense, const struct tsr_kv_plane *p, const uint8_t *engine)
{
    uint32_t bytes = tsri_dtype_bytes(p->dtype);
    if (p->element_stride == bytes) return engine;
    if (p->dtype == TSR_DTYPE_F32)
        for (uint32_t i = 0; i < p->dim; i++)
            memcpy((uint32_t *)dense + i, engine + i * p->element_stride, 4);
    else
        for (uint32_t i = 0; i < p->dim; i++)
            memcpy((uint16_t *)dense + i, engine + i * p->element_stride, 2);
    return dense;
}

static void turn_spread(const struct stretch *s, tsri_turn_fn turn, const struct tsri_turn *t)
{
    const struct tsr_kv_plane *p = s->p;
    size_t bytes = tsri_dtype_bytes(p->dtype), head = p->dim * bytes;
    uint8_t dense[TSRI_KV_DIM_MAX * sizeof(float)] __attribute__((aligned(64)));
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t h = 0; h < p->n_heads; h++) {
            const uint8_t *in = s->cell + i * s->row + h * head;
            memcpy(dense, in, head);
            turn(dense + p->rope_first * bytes, head, in + p->rope_first * bytes, head, 1, t);
            spread(s->engine + i * p->token_stride + h * p->head_stride, p, dense);
        }
}

static void turn_stretch(const struct stretch *s, tsri_turn_fn turn, const struct tsri_turn *t)
{
    const struct tsr_kv_plane *p = s->p;
    size_t bytes = tsri_dtype_bytes(p->dtype), head = p->dim * bytes;
    if (p->element_stride != bytes) {
        turn_spread(s, turn, t);
        return;
    }
    /* What does not turn is copied with the rest, which is then overwritten. */
    if (p->rope_dims < p->dim) {
        struct stretch now = *s;
        now.queue = NULL;
        copy_stretch(&now, true);
    }
    uint8_t *to = s->engine + p->rope_first * bytes;
    const uint8_t *from = s->cell + p->rope_first * bytes;
    if (p->n_heads == 1 || (p->head_stride == head && p->token_stride == s->row)) {
        turn(to, p->n_heads == 1 ? p->token_stride : head, from, head, (size_t)s->n * p->n_heads,
             t);
    } else if (p->head_stride == head) {
        for (uint32_t i = 0; i < s->n; i++)
            turn(to + i * p->token_stride, head, from + i * s->row, head, p->n_heads, t);
    } else {
        for (uint32_t h = 0; h < p->n_heads; h++)
            turn(to + h * p->head_stride, p->token_stride, from + h * head, s->row, s->n, t);
    }
}

/* ---- int8 ---- */

struct int8_move {
    const struct tsri_kernels *k;
    const struct tsri_turn *turn; /* NULL: none */
    uint32_t pairing;             /* TSRI_NEOX or TSRI_GPTJ */
};

static void widen_head(const struct int8_move *m, const struct tsr_kv_plane *p, float *wide,
                       const uint8_t *row, uint32_t head)
{
    uint32_t group = tsri_quant_group(p->dim);
    size_t n = (size_t)p->n_heads * p->dim, first = (size_t)head * p->dim;
    for (uint32_t i = 0; i < p->dim; i += group) {
        float scale;
        memcpy(&scale, row + n + (first + i) / group * sizeof scale, sizeof scale);
        m->k->widen_int8(wide + i, (const int8_t *)row + first + i, scale, group);
    }
}

static void from_int8(const struct stretch *s, const struct int8_move *m)
{
    const struct tsr_kv_plane *p = s->p;
    uint32_t kind = float_kind(p->dtype);
    size_t bytes = tsri_dtype_bytes(p->dtype);
    float wide[TSRI_KV_DIM_MAX] __attribute__((aligned(64)));
    uint8_t dense[TSRI_KV_DIM_MAX * sizeof(float)] __attribute__((aligned(64)));
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t h = 0; h < p->n_heads; h++) {
            uint8_t *engine = s->engine + i * p->token_stride + h * p->head_stride;
            uint8_t *out = p->element_stride == bytes ? engine : dense;
            widen_head(m, p, wide, s->cell + i * s->row, h);
            if (!m->turn || p->rope_dims < p->dim) m->k->narrow[kind](out, wide, p->dim);
            if (m->turn)
                m->k->turn_wide[kind][m->pairing](out + p->rope_first * bytes, 0,
                                                  wide + p->rope_first, 0, 1, m->turn);
            if (out == dense) spread(engine, p, dense);
        }
}

static void to_int8(const struct stretch *s, const struct tsri_kernels *k)
{
    const struct tsr_kv_plane *p = s->p;
    uint32_t kind = float_kind(p->dtype), group = tsri_quant_group(p->dim);
    size_t n = (size_t)p->n_heads * p->dim, n_groups = n / group;
    float wide[TSRI_KV_DIM_MAX] __attribute__((aligned(64)));
    uint8_t dense[TSRI_KV_DIM_MAX * sizeof(float)] __attribute__((aligned(64)));
    for (uint32_t i = 0; i < s->n; i++) {
        uint8_t *row = s->cell + i * s->row;
        for (uint32_t h = 0; h < p->n_heads; h++) {
            const uint8_t *engine = s->engine + i * p->token_stride + h * p->head_stride;
            k->widen[kind](wide, collect(dense, p, engine), p->dim);
            for (uint32_t j = 0; j < p->dim; j += group) {
                size_t at = (size_t)h * p->dim + j;
                float scale = k->quantise((int8_t *)row + at, wide + j, group);
                memcpy(row + n + at / group * sizeof scale, &scale, sizeof scale);
            }
        }
        size_t used = n + n_groups * sizeof(float);
        memset(row + used, 0, s->row - used);
    }
}

/* ---- the walk ---- */

static void move_stretch(const struct tsri_move *m, const struct stretch *s,
                         const struct tsr_kv_cells *c, const float *table)
{
    uint32_t pairing = m->batch->pairing == TSR_ROPE_GPTJ ? TSRI_GPTJ : TSRI_NEOX;
    uint32_t n_pairs = s->p->rope_dims / 2;
    struct tsri_turn turn = {table, table ? table + n_pairs : NULL, n_pairs};
    if (c->int8 && m->to_engine)
        from_int8(s, &(struct int8_move){m->kernels, table ? &turn : NULL, pairing});
    else if (c->int8)
        to_int8(s, m->kernels);
    else if (table)
        turn_stretch(s, m->kernels->turn[float_kind(s->p->dtype)][pairing], &turn);
    else
        copy_stretch(s, m->to_engine);
}

/* How many tokens from i on have slots and rows that follow each other. */
static uint32_t stretch_tokens(const struct tsr_kv_layout *l, const struct tsr_kv_run *r,
                               uint32_t i, uint32_t most)
{
    int64_t slot = r->slots[i];
    uint32_t in_cell = r->cells->cell_tokens - (r->offset + i) % r->cells->cell_tokens, n = 1;
    if (in_cell < most) most = in_cell;
    if (l->block_tokens) {
        uint32_t in_block = l->block_tokens - (uint32_t)((uint64_t)slot & (l->block_tokens - 1));
        if (in_block < most) most = in_block;
    }
    while (n < most && r->slots[i + n] == slot + n)
        n++;
    return n;
}

struct move_at {
    uint32_t layer, plane, run;
};

static void move_run(const struct tsri_move *m, struct move_at at, struct tsr_range tokens,
                     struct queue *queue)
{
    const struct tsr_kv_layout *l = m->batch->layout;
    const struct tsr_kv_run *r = &m->batch->runs[at.run];
    const struct tsr_kv_cells *c = r->cells;
    const struct tsr_kv_plane *p = &l->planes[at.plane];
    const float *table = m->to_engine && p->rope_dims ? m->batch->rotations[at.run] : NULL;
    uint8_t *base = tsri_layer_base(p, at.layer);
    void *const *cells = c->planes + ((size_t)at.layer * c->n_planes + at.plane) * c->n_cells;
    size_t row = c->int8 ? tsri_row_bytes_int8(p->n_heads, p->dim) : tsri_row_bytes(p);
    uint32_t end = tokens.offset + tokens.n_tokens;
    for (uint32_t i = tokens.offset; i < end;) {
        if (r->slots[i] < 0) {
            i++;
            continue;
        }
        uint32_t token = r->offset + i;
        struct stretch s = {p,
                            base + tsri_slot_offset(l, p, (uint64_t)r->slots[i]),
                            (uint8_t *)cells[token / c->cell_tokens] +
                                (size_t)(token % c->cell_tokens) * row,
                            row,
                            stretch_tokens(l, r, i, end - i),
                            queue};
        move_stretch(m, &s, c, table);
        i += s.n;
    }
}

void tsri_move_tokens(const struct tsri_move *m, uint32_t layer, uint32_t plane, uint32_t first,
                      uint32_t n)
{
    struct queue queue = {.kernels = m->kernels};
    for (uint32_t run = 0; n > 0; run++) {
        uint32_t in_run = m->batch->runs[run].n_tokens;
        if (first >= in_run) {
            first -= in_run;
            continue;
        }
        uint32_t here = tsri_min_u32(n, in_run - first);
        move_run(m, (struct move_at){layer, plane, run}, (struct tsr_range){first, here},
                 m->streams ? &queue : NULL);
        n -= here;
        first = 0;
    }
    flush(&queue);
}

/* ---- selection ---- */

/* Scores as numbers whose order is that of top k: NaN above all, -0 and 0 alike. */
static inline uint32_t rank_of(float score)
{
    uint32_t u;
    if (score != score) return UINT32_MAX;
    score += 0.0f;
    memcpy(&u, &score, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Finds the rank of the k-th largest digit by digit, from the top: no memory but one histogram, and
 * three passes whatever the scores are. */
void tsri_move_top_k(const struct tsr_top_k *t)
{
    static const struct {
        uint32_t shift, mask;
    } digits[] = {{21, 0x7ff}, {10, 0x7ff}, {0, 0x3ff}};
    uint32_t counts[0x800], found = 0, known = 0, k = t->k;
    for (uint32_t d = 0; d < TSRI_COUNT(digits); d++) {
        memset(counts, 0, sizeof counts);
        for (uint32_t i = 0; i < t->n; i++) {
            uint32_t rank = rank_of(t->scores[i]);
            if ((rank & known) == found) counts[(rank >> digits[d].shift) & digits[d].mask]++;
        }
        uint32_t digit = digits[d].mask;
        while (counts[digit] < k)
            k -= counts[digit--];
        found |= digit << digits[d].shift;
        known |= digits[d].mask << digits[d].shift;
    }
    uint32_t n = 0; /* k of those equal to `found` are taken, the first ones */
    for (uint32_t i = 0; n < t->k; i++) {
        uint32_t rank = rank_of(t->scores[i]);
        if (rank > found || (rank == found && k > 0)) {
            k -= rank == found;
            t->out[n++] = i;
        }
    }
}
