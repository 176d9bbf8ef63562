/* ascend_ops.c - moves of the device "npu" by CANN's operators. Rows pass through an area of device
 * memory without gaps and without those that are skipped, so the slots that operators see are all
 * valid:
 *     scatter: copies bring cells to the area, operators widen and rotate them there, one operator
 *              brings K and V to their slots, or copies do
 *     gather:  one operator for each plane brings rows to the area, copies bring them to the cells
 * Operators write only to areas and to named slots. One that gets memory with gaps copies all of it
 * to and fro, also what the engine changes meanwhile: so the engine's memory is only shown to an
 * operator where it has none.
 *
 * Not done here, but by the caller with copies and the processor: dtypes other than f16 and bf16,
 * quantising (int8 rows are the same bytes on every device), layouts with gaps where rows are at
 * odd addresses, and runs whose slots follow each other, which copies move as fast. */
#include "device/ascend_nn.h"

#define DEVICE_ALIGN 64u /* of copies within device memory */
#define ROWS_ALIGN 512u  /* of tensors in an area */
/* Tokens that lie together on average, from which on copies are preferred to an operator. Not
 * measured: nobody could. */
#define SCATTERED_BELOW 16u

struct npu_rows {
    uint8_t *cells;  /* as they are in cells */
    uint8_t *engine; /* as the engine has them; the same unless cells are int8 */
};

struct npu_job {
    struct tsri_ascend_call call;
    const struct tsr_batch *batch;
    const struct tsr_kv_layout *layout;
    const struct tsr_kv_run *run;
    const float *table; /* NULL: nothing is rotated */
    uint32_t layer;
    bool to_engine, paged;
    uint32_t most; /* tokens of a part */
    struct npu_rows rows[TSR_KV_PLANES_MAX];
    uint8_t *wide[2]; /* floats of a plane */
    uint32_t n;       /* tokens of this part, and which of the run they are */
    uint32_t tokens[TSRI_ASCEND_TOKENS_MAX];
};

/* ---- shapes ---- */

static const struct tsr_kv_plane *plane_at(const struct npu_job *j, uint32_t plane)
{
    return &j->layout->planes[plane];
}

static enum tsri_acl_dtype dtype_of(const struct tsr_kv_plane *p)
{
    return p->dtype == TSR_DTYPE_F16 ? TSRI_ACL_F16 : TSRI_ACL_BF16;
}

static bool is_int8(const struct npu_job *j)
{
    return j->run->cells->int8 != 0;
}

static size_t cell_row_bytes(const struct npu_job *j, const struct tsr_kv_plane *p)
{
    return is_int8(j) ? tsri_row_bytes_int8(p->n_heads, p->dim) : tsri_row_bytes(p);
}

static bool turns(const struct npu_job *j, const struct tsr_kv_plane *p)
{
    return j->table && p->rope_dims;
}

/* Rows without gaps, and tokens without gaps in all blocks. */
static bool has_dense_rows(const struct tsr_kv_plane *p)
{
    size_t element = tsri_dtype_bytes(p->dtype);
    return (p->dim == 1 || p->element_stride == element) &&
           (p->n_heads == 1 || p->head_stride == p->dim * element);
}

static bool is_dense(const struct tsr_kv_layout *l, const struct tsr_kv_plane *p)
{
    size_t row = tsri_row_bytes(p);
    return has_dense_rows(p) && p->token_stride == row &&
           (!l->block_tokens || p->block_stride == l->block_tokens * row);
}

/* K and V that ScatterPaKvCache takes. */
static bool is_pair(const struct tsr_kv_layout *l)
{
    const struct tsr_kv_plane *k = &l->planes[0], *v = &l->planes[1];
    return l->n_planes == 2 && l->block_tokens && k->dtype == v->dtype &&
           k->n_heads == v->n_heads && is_dense(l, k) && is_dense(l, v);
}

static void *const *cells_at(const struct npu_job *j, uint32_t plane)
{
    const struct tsr_kv_cells *c = j->run->cells;
    return c->planes + ((size_t)j->layer * c->n_planes + plane) * c->n_cells;
}

static bool cells_aligned(const struct npu_job *j, uint32_t plane)
{
    uint64_t bits = cell_row_bytes(j, plane_at(j, plane));
    if (j->run->cells->memory != TSR_MEMORY_DEVICE) return true;
    for (uint32_t i = 0; i < j->run->cells->n_cells; i++)
        bits |= (uintptr_t)cells_at(j, plane)[i];
    return bits % DEVICE_ALIGN == 0;
}

static bool engine_aligned(const struct npu_job *j, uint32_t plane)
{
    const struct tsr_kv_plane *p = plane_at(j, plane);
    uint64_t bits = (uintptr_t)tsri_layer_base(p, j->layer) | p->token_stride | tsri_row_bytes(p);
    if (j->layout->block_tokens) bits |= p->block_stride;
    return has_dense_rows(p) && bits % DEVICE_ALIGN == 0;
}

/* ---- whether ---- */

static bool is_scattered(const struct tsr_kv_run *r)
{
    uint32_t n = 0, n_stretches = 0;
    for (uint32_t i = 0; i < r->n_tokens; i++) {
        if (r->slots[i] < 0) continue;
        n++;
        n_stretches += i == 0 || r->slots[i] != r->slots[i - 1] + 1;
    }
    return n && n < SCATTERED_BELOW * n_stretches;
}

static bool rope_fits(const struct npu_job *j, const struct tsr_kv_plane *p)
{
    return p->rope_dims <= TSRI_ASCEND_ROPE_MAX && p->n_heads <= TSRI_ASCEND_TOKENS_MAX &&
           (j->batch->pairing == TSR_ROPE_NEOX || j->batch->pairing == TSR_ROPE_GPTJ);
}

/* Scales are floats in the middle of rows of bytes. */
static bool int8_fits(const struct tsr_kv_plane *p)
{
    return (uint64_t)p->n_heads * p->dim % sizeof(float) == 0;
}

/* What a plane needs of the operators, or more than there is. */
static bool plane_fits(const struct npu_job *j, uint32_t plane, uint32_t can)
{
    const struct tsr_kv_plane *p = plane_at(j, plane);
    if (p->dtype != TSR_DTYPE_F16 && p->dtype != TSR_DTYPE_BF16) return false;
    if (!cells_aligned(j, plane)) return false;
    if (!j->to_engine) return is_dense(j->layout, p);
    if (turns(j, p) && !(can & TSRI_CAN_ROTATE && rope_fits(j, p))) return false;
    if (is_int8(j) && !(can & TSRI_CAN_WIDEN && int8_fits(p))) return false;
    return j->paged || engine_aligned(j, plane);
}

static bool is_worth_it(struct npu_job *j, uint32_t can)
{
    bool computed = is_int8(j);
    if (j->layout->memory != TSR_MEMORY_DEVICE) return false;
    for (uint32_t p = 0; p < j->layout->n_planes; p++)
        computed = computed || turns(j, plane_at(j, p));
    if (!j->to_engine && (is_int8(j) || !(can & TSRI_CAN_GATHER))) return false;
    j->paged = j->to_engine && (can & TSRI_CAN_SCATTER) && is_pair(j->layout);
    if (!computed && !(is_scattered(j->run) && (j->paged || !j->to_engine))) return false;
    for (uint32_t p = 0; p < j->layout->n_planes; p++)
        if (!plane_fits(j, p, can)) return false;
    return true;
}

/* ---- areas ---- */

static uint8_t *cut(uint8_t **at, size_t bytes)
{
    uint8_t *p = *at;
    *at += tsri_align_up(bytes, ROWS_ALIGN);
    return p;
}

/* Bytes of a token's floats, of the widest plane that is computed on. */
static size_t wide_bytes(const struct npu_job *j)
{
    size_t widest = 0;
    for (uint32_t i = 0; i < j->layout->n_planes; i++) {
        const struct tsr_kv_plane *p = plane_at(j, i);
        size_t wide = (size_t)p->n_heads * p->dim * sizeof(float);
        if ((turns(j, p) || is_int8(j)) && wide > widest) widest = wide;
    }
    return widest;
}

/* How many tokens fit, 0: none does. */
static uint32_t tokens_most(const struct npu_job *j, size_t area_bytes)
{
    size_t token = 2 * wide_bytes(j), heads = 1;
    for (uint32_t i = 0; i < j->layout->n_planes; i++) {
        const struct tsr_kv_plane *p = plane_at(j, i);
        token += cell_row_bytes(j, p) + (is_int8(j) ? tsri_row_bytes(p) : 0);
        if (turns(j, p) && j->batch->pairing == TSR_ROPE_GPTJ && p->n_heads > heads)
            heads = p->n_heads; /* of which tokens x heads are limited */
    }
    size_t used = TSRI_ASCEND_TABLES_BYTES + (2 * TSR_KV_PLANES_MAX + 2) * (size_t)ROWS_ALIGN;
    size_t most = token && area_bytes > used ? (area_bytes - used) / token : 0;
    if (most > TSRI_ASCEND_TOKENS_MAX / heads) most = TSRI_ASCEND_TOKENS_MAX / heads;
    return (uint32_t)most;
}

static void divide_area(struct npu_job *j)
{
    uint8_t *at = j->call.area->data + TSRI_ASCEND_TABLES_BYTES;
    for (uint32_t i = 0; i < j->layout->n_planes; i++) {
        const struct tsr_kv_plane *p = plane_at(j, i);
        j->rows[i].cells = j->rows[i].engine = cut(&at, j->most * cell_row_bytes(j, p));
        if (is_int8(j)) j->rows[i].engine = cut(&at, j->most * tsri_row_bytes(p));
    }
    for (uint32_t i = 0; i < 2; i++)
        j->wide[i] = cut(&at, j->most * wide_bytes(j));
}

static int take_area(struct npu_job *j)
{
    struct tsri_ascend_ops *o = j->call.d->ops;
    j->call.area = &o->areas[o->next++ % TSRI_ASCEND_AREAS];
    divide_area(j);
    return tsri_ascend_await(j->call.d, &j->call.area->used);
}

/* ---- copies ---- */

/* Between the cells of a plane and its rows in the area, as many tokens at a time as follow each
 * other in a cell. */
static int copy_rows(struct npu_job *j, uint32_t plane)
{
    const struct tsr_kv_cells *c = j->run->cells;
    size_t row = cell_row_bytes(j, plane_at(j, plane));
    struct tsri_ascend_list list;
    tsri_ascend_list_init(&list, j->call.d, j->call.s,
                          c->memory == TSR_MEMORY_DEVICE ? TSRI_ACL_DEVICE_TO_DEVICE
                          : j->to_engine                 ? TSRI_ACL_HOST_TO_DEVICE
                                                         : TSRI_ACL_DEVICE_TO_HOST);
    int err = 0;
    for (uint32_t i = 0, n; i < j->n && !err; i += n) {
        uint32_t token = j->run->offset + j->tokens[i], in_cell = token % c->cell_tokens;
        for (n = 1; i + n < j->n && j->tokens[i + n] == j->tokens[i] + n; n++)
            if (in_cell + n == c->cell_tokens) break;
        uint8_t *cell = (uint8_t *)cells_at(j, plane)[token / c->cell_tokens] + in_cell * row;
        uint8_t *rows = j->rows[plane].cells + i * row;
        err = j->to_engine ? tsri_ascend_list_add(&list, rows, cell, n * row)
                           : tsri_ascend_list_add(&list, cell, rows, n * row);
    }
    return err ? err : tsri_ascend_list_flush(&list);
}

/* From the area to the engine, where no operator does it. */
static int copy_to_slots(struct npu_job *j, uint32_t plane)
{
    const struct tsr_kv_plane *p = plane_at(j, plane);
    uint32_t block = j->layout->block_tokens;
    size_t row = tsri_row_bytes(p);
    struct tsri_ascend_list list;
    tsri_ascend_list_init(&list, j->call.d, j->call.s, TSRI_ACL_DEVICE_TO_DEVICE);
    int err = 0;
    for (uint32_t i = 0, n; i < j->n && !err; i += n) {
        uint64_t slot = (uint64_t)j->run->slots[j->tokens[i]];
        for (n = 1; i + n < j->n && p->token_stride == row; n++)
            if ((uint64_t)j->run->slots[j->tokens[i + n]] != slot + n ||
                (block && (slot + n) % block == 0))
                break;
        err = tsri_ascend_list_add(
            &list, tsri_layer_base(p, j->layer) + tsri_slot_offset(j->layout, p, slot),
            j->rows[plane].engine + i * row, n * row);
    }
    return err ? err : tsri_ascend_list_flush(&list);
}

/* Slots, cos and sin, as the operators read them. */
static int send_tables(struct npu_job *j)
{
    uint8_t *host = j->call.area->host;
    int64_t *slots = (int64_t *)(void *)host;
    float *cos = (float *)(void *)(host + TSRI_ASCEND_TABLES_BYTES - 2 * TSRI_ASCEND_TABLE_BYTES);
    float *sin = (float *)(void *)(host + TSRI_ASCEND_TABLES_BYTES - TSRI_ASCEND_TABLE_BYTES);
    uint32_t n_pairs = 0;
    for (uint32_t i = 0; i < j->n; i++)
        slots[i] = j->run->slots[j->tokens[i]];
    for (uint32_t i = 0; i < j->layout->n_planes; i++)
        if (turns(j, plane_at(j, i))) n_pairs = plane_at(j, i)->rope_dims / 2;
    bool neox = j->batch->pairing == TSR_ROPE_NEOX;
    for (uint32_t i = 0; i < n_pairs; i++) {
        uint32_t a = neox ? i : 2 * i, b = neox ? i + n_pairs : 2 * i + 1;
        cos[a] = cos[b] = j->table[i];
        sin[a] = sin[b] = j->table[n_pairs + i];
    }
    struct tsri_ascend_list up;
    tsri_ascend_list_init(&up, j->call.d, j->call.s, TSRI_ACL_HOST_TO_DEVICE);
    int err = tsri_ascend_list_add(&up, j->call.area->data, host, j->n * sizeof *slots);
    size_t table = n_pairs * 2 * sizeof *cos;
    if (!err && table) {
        uint8_t *at = j->call.area->data + ((uint8_t *)cos - host);
        err = tsri_ascend_list_add(&up, at, cos, table);
        if (!err) err = tsri_ascend_list_add(&up, at + TSRI_ASCEND_TABLE_BYTES, sin, table);
    }
    return err ? err : tsri_ascend_list_flush(&up);
}

/* ---- operators ---- */

/* The elements that turn, of rows without gaps. */
static struct tsri_ascend_tensor rope_view(const struct npu_job *j, const struct tsr_kv_plane *p,
                                           void *rows, enum tsri_acl_dtype dtype)
{
    int64_t row = (int64_t)p->n_heads * p->dim;
    return (struct tsri_ascend_tensor){.data = rows,
                                       .dtype = dtype,
                                       .n_dims = 4,
                                       .dims = {j->n, 1, p->n_heads, p->rope_dims},
                                       .strides = {row, row, p->dim, 1},
                                       .offset = p->rope_first};
}

/* floats: the rows as floats, or NULL: they are of the engine's dtype. */
static int rotate(const struct npu_job *j, uint32_t plane, const struct tsri_ascend_tensor *floats,
                  uint8_t *result)
{
    const struct tsr_kv_plane *p = plane_at(j, plane);
    const int64_t dims[4] = {j->n, 1, p->n_heads, p->rope_dims};
    const int64_t table_dims[4] = {1, 1, 1, p->rope_dims};
    uint8_t *tables = j->call.area->data + TSRI_ASCEND_TABLES_BYTES - 2 * TSRI_ASCEND_TABLE_BYTES;
    struct tsri_ascend_tensor rows = rope_view(j, p, j->rows[plane].engine, dtype_of(p));
    struct tsri_ascend_tensor in = tsri_ascend_dense(j->wide[0], TSRI_ACL_F32, 4, dims);
    struct tsri_ascend_tensor out = tsri_ascend_dense(result, TSRI_ACL_F32, 4, dims);
    const struct tsri_ascend_tensor table[2] = {
        tsri_ascend_dense(tables, TSRI_ACL_F32, 4, table_dims),
        tsri_ascend_dense(tables + TSRI_ASCEND_TABLE_BYTES, TSRI_ACL_F32, 4, table_dims)};
    int64_t mode =
        j->batch->pairing == TSR_ROPE_NEOX ? TSRI_ACL_ROPE_HALF : TSRI_ACL_ROPE_INTERLEAVE;
    int err = floats ? 0 : tsri_ascend_cast(&j->call, &rows, &in);
    if (!err) err = tsri_ascend_rope(&j->call, floats ? floats : &in, table, mode, &out);
    return err ? err : tsri_ascend_cast(&j->call, &out, &rows);
}

/* int8 rows to the engine's dtype: value = int8 * scale, rounded once, or rotated before that. */
static int widen(const struct npu_job *j, uint32_t plane)
{
    const struct tsr_kv_plane *p = plane_at(j, plane);
    uint32_t group = tsri_quant_group(p->dim);
    int64_t n_elements = (int64_t)p->n_heads * p->dim, n_groups = n_elements / group;
    int64_t row = (int64_t)cell_row_bytes(j, p);
    const int64_t dims[3] = {j->n, n_groups, group};
    struct tsri_ascend_tensor bytes = {.data = j->rows[plane].cells,
                                       .dtype = TSRI_ACL_INT8,
                                       .n_dims = 3,
                                       .dims = {j->n, n_groups, group},
                                       .strides = {row, group, 1}};
    struct tsri_ascend_tensor scales = {.data = j->rows[plane].cells,
                                        .dtype = TSRI_ACL_F32,
                                        .n_dims = 3,
                                        .dims = {j->n, n_groups, 1},
                                        .strides = {row / (int64_t)sizeof(float), 1, 1},
                                        .offset = n_elements / (int64_t)sizeof(float)};
    struct tsri_ascend_tensor wide = tsri_ascend_dense(j->wide[0], TSRI_ACL_F32, 3, dims);
    struct tsri_ascend_tensor scaled = tsri_ascend_dense(j->wide[1], TSRI_ACL_F32, 3, dims);
    struct tsri_ascend_tensor rows = tsri_ascend_dense(j->rows[plane].engine, dtype_of(p), 3, dims);
    int err = tsri_ascend_cast(&j->call, &bytes, &wide);
    if (!err) err = tsri_ascend_mul(&j->call, &wide, &scales, &scaled);
    if (!err && (!turns(j, p) || p->rope_dims < p->dim))
        err = tsri_ascend_cast(&j->call, &scaled, &rows);
    if (err || !turns(j, p)) return err;
    struct tsri_ascend_tensor floats = rope_view(j, p, j->wide[1], TSRI_ACL_F32);
    return rotate(j, plane, &floats, j->wide[0]);
}

static struct tsri_ascend_tensor slots_view(const struct npu_job *j)
{
    const int64_t n = j->n;
    return tsri_ascend_dense(j->call.area->data, TSRI_ACL_INT64, 1, &n);
}

static int put_in_slots(const struct npu_job *j)
{
    struct tsri_ascend_tensor rows[2], caches[2], slots = slots_view(j);
    for (uint32_t i = 0; i < 2; i++) {
        const struct tsr_kv_plane *p = plane_at(j, i);
        int64_t block = j->layout->block_tokens, n_blocks = (int64_t)j->layout->n_slots / block;
        rows[i] = tsri_ascend_dense(j->rows[i].engine, dtype_of(p), 3,
                                    (int64_t[]){j->n, p->n_heads, p->dim});
        caches[i] = tsri_ascend_dense(tsri_layer_base(p, j->layer), dtype_of(p), 4,
                                      (int64_t[]){n_blocks, block, p->n_heads, p->dim});
    }
    return tsri_ascend_paged(&j->call, rows, &slots, caches);
}

static int take_from_slots(const struct npu_job *j, uint32_t plane)
{
    const struct tsr_kv_plane *p = plane_at(j, plane);
    int64_t row = (int64_t)p->n_heads * p->dim;
    struct tsri_ascend_tensor slots = slots_view(j);
    struct tsri_ascend_tensor cache =
        tsri_ascend_dense(tsri_layer_base(p, j->layer), dtype_of(p), 2,
                          (int64_t[]){(int64_t)j->layout->n_slots, row});
    struct tsri_ascend_tensor rows =
        tsri_ascend_dense(j->rows[plane].cells, dtype_of(p), 2, (int64_t[]){j->n, row});
    return tsri_ascend_select(&j->call, &cache, &slots, &rows);
}

/* ---- parts ---- */

static int scatter_part(struct npu_job *j)
{
    int err = send_tables(j);
    for (uint32_t i = 0; i < j->layout->n_planes && !err; i++) {
        err = copy_rows(j, i);
        if (!err && is_int8(j))
            err = widen(j, i);
        else if (!err && turns(j, plane_at(j, i)))
            err = rotate(j, i, NULL, j->wide[1]);
        if (!err && !j->paged) err = copy_to_slots(j, i);
    }
    return err || !j->paged ? err : put_in_slots(j);
}

static int gather_part(struct npu_job *j)
{
    int err = send_tables(j);
    for (uint32_t i = 0; i < j->layout->n_planes && !err; i++) {
        err = take_from_slots(j, i);
        if (!err) err = copy_rows(j, i);
    }
    return err;
}

static int move_part(struct npu_job *j)
{
    int err = take_area(j);
    if (err) return err;
    err = j->to_engine ? scatter_part(j) : gather_part(j);
    int recorded = tsri_ascend_record(j->call.d, &j->call.area->used, j->call.s);
    return err ? err : recorded;
}

static int move_parts(struct npu_job *j)
{
    int err = 0;
    for (uint32_t i = 0; i < j->run->n_tokens && !err;) {
        for (j->n = 0; i < j->run->n_tokens && j->n < j->most; i++)
            if (j->run->slots[i] >= 0) j->tokens[j->n++] = i;
        if (j->n) err = move_part(j);
    }
    return err;
}

int tsri_ascend_ops_move(struct tsr_device *d, struct tsr_device_stream *s,
                         const struct tsri_ascend_run *r, bool *done)
{
    struct tsri_ascend_ops *o = d->ops;
    uint32_t can = o ? atomic_load(&o->can) : 0;
    *done = false;
    if (!can) return 0;
    struct npu_job j = {.call = {.d = d, .s = s},
                        .batch = r->batch,
                        .layout = r->batch->layout,
                        .run = &r->batch->runs[r->run],
                        .layer = r->layer,
                        .to_engine = r->to_engine};
    j.table = r->to_engine && r->batch->rotations ? r->batch->rotations[r->run] : NULL;
    if (!is_worth_it(&j, can)) return 0;
    j.most = tokens_most(&j, o->area_bytes);
    if (j.most == 0) return 0;
    pthread_mutex_lock(&o->lock);
    int err = tsri_ascend_enter(d); /* whoever had the lock may have lost the device */
    if (!err) err = move_parts(&j);
    if (err) tsri_ascend_ops_stop(o, "one failed in use");
    /* What was queued writes to slots that the caller now writes again, on the same stream, and uses
     * an area that another thread may take when the lock is free. */
    if (err) (void)!tsri_ascend_abandon(d, s, err);
    pthread_mutex_unlock(&o->lock);
    *done = !err;
    return atomic_load(&d->lost) ? err : 0;
}
