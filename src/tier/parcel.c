/* parcel.c - the bytes of an entry on a server, written and read by pure functions;
 * docs/format.md says what stands where. Redis keeps the record under one name and the parts of the
 * KV under others, S3 keeps both in one object: in either case a byte is believed only behind a
 * checksum of the record, and the record only behind its own. */
#include "tier/parcel.h"

#define REMOTE_MAGIC "tsr-rem\n"

enum {
    VERSION_AT = 8,
    RECORD_BYTES_AT = 16,
    NONCE_AT = 24,
    PART_BYTES_AT = 32,
    BODY_SUM_AT = 40,
    KV_BYTES_AT = 48,
    ENTRY_AT = 64,
    HEAD_SUM_AT = 248,
};

/* ---- where everything stands ---- */

static int cut_parts(struct tsri_parcel *r)
{
    r->part_layers = r->layer_parts = 1;
    if (r->layer_bytes <= r->part_bytes)
        r->part_layers = (uint32_t)(r->part_bytes / r->layer_bytes);
    else if (r->layer_bytes > TSRI_PARCEL_PART_MAX)
        r->layer_parts =
            (uint32_t)((r->layer_bytes + TSRI_PARCEL_PART_MAX - 1) / TSRI_PARCEL_PART_MAX);
    uint64_t n = ((uint64_t)r->head.n_layers + r->part_layers - 1) / r->part_layers;
    n *= r->layer_parts;
    if (n > TSRI_PARCEL_PARTS_MAX)
        return tsri_fail(TSR_ERANGE, "entry has %llu parts, limit %u", (unsigned long long)n,
                         TSRI_PARCEL_PARTS_MAX);
    r->n_parts = (uint32_t)n;
    return 0;
}

int tsri_parcel_init(struct tsri_parcel *r, const struct tsr_entry_head *head, uint64_t nonce,
                     uint64_t part_bytes)
{
    *r = (struct tsri_parcel){.head = *head, .nonce = nonce, .part_bytes = part_bytes};
    struct tsr_entry_head *h = &r->head;
    h->cost_s = 0; /* a matter of the machine that computed it, not of the text */
    if (h->n_planes < 2) h->row_bytes[1] = 0;
    r->n_cells = tsri_head_cells(h);
    r->tokens_at = TSRI_PARCEL_HEAD_BYTES;
    r->extra_at = tsri_align_up(r->tokens_at + (uint64_t)h->n_tokens * 4, 8);
    r->sums_at = tsri_align_up(r->extra_at + h->extra_bytes, 8);
    r->record_bytes = r->sums_at + tsri_parcel_cells(r) * 8;
    uint32_t last_tokens = tsri_head_cell_tokens(h, r->n_cells - 1);
    for (uint32_t p = 0; p < h->n_planes; p++) {
        r->cell_bytes[p] = (uint64_t)h->cell_tokens * h->row_bytes[p];
        r->last_bytes[p] = (uint64_t)last_tokens * h->row_bytes[p];
        r->plane_at[p] = r->layer_bytes;
        r->layer_bytes += r->cell_bytes[p] * (r->n_cells - 1) + r->last_bytes[p];
    }
    r->kv_bytes = r->layer_bytes * h->n_layers;
    if (r->record_bytes > TSRI_PARCEL_RECORD_MAX)
        return tsri_fail(TSR_ERANGE, "record of %llu bytes is too large for a server",
                         (unsigned long long)r->record_bytes);
    return cut_parts(r);
}

struct tsri_extent tsri_parcel_cell(const struct tsri_parcel *r, uint64_t cell)
{
    uint64_t run = cell / r->n_cells;
    uint32_t in_plane = (uint32_t)(cell % r->n_cells);
    uint32_t plane = (uint32_t)(run % r->head.n_planes);
    uint64_t begin = run / r->head.n_planes * r->layer_bytes + r->plane_at[plane] +
                     in_plane * r->cell_bytes[plane];
    bool last = in_plane == r->n_cells - 1;
    return (struct tsri_extent){begin,
                                begin + (last ? r->last_bytes[plane] : r->cell_bytes[plane])};
}

struct tsri_extent tsri_parcel_part(const struct tsri_parcel *r, uint32_t part)
{
    struct tsri_extent x;
    if (r->layer_parts == 1) {
        x.begin = (uint64_t)part * r->part_layers * r->layer_bytes;
        x.end = x.begin + r->part_layers * r->layer_bytes;
        if (x.end > r->kv_bytes) x.end = r->kv_bytes;
        return x;
    }
    uint64_t cut = (r->layer_bytes + r->layer_parts - 1) / r->layer_parts;
    uint64_t layer_at = part / r->layer_parts * r->layer_bytes;
    x.begin = layer_at + part % r->layer_parts * cut;
    x.end = x.begin + cut;
    if (x.end > layer_at + r->layer_bytes) x.end = layer_at + r->layer_bytes;
    return x;
}

/* The cell that holds byte `at` of the KV. */
static uint64_t cell_at(const struct tsri_parcel *r, uint64_t at)
{
    uint64_t layer = at / r->layer_bytes, in_layer = at % r->layer_bytes;
    uint32_t plane = r->head.n_planes > 1 && in_layer >= r->plane_at[1];
    uint64_t cell = (in_layer - r->plane_at[plane]) / r->cell_bytes[plane];
    return (layer * r->head.n_planes + plane) * r->n_cells + cell;
}

bool tsri_parcel_wants(const struct tsri_parcel *r, void *const *planes, uint32_t part)
{
    struct tsri_extent x = tsri_parcel_part(r, part);
    uint64_t last = cell_at(r, x.end - 1);
    for (uint64_t cell = cell_at(r, x.begin); cell <= last; cell++)
        if (planes[cell]) return true;
    return false;
}

struct tsri_extent tsri_parcel_wanted(const struct tsri_parcel *r, void *const *planes,
                                      uint32_t part)
{
    struct tsri_extent x = tsri_parcel_part(r, part);
    uint64_t first = cell_at(r, x.begin), last = cell_at(r, x.end - 1);
    while (first <= last && !planes[first])
        first++;
    if (first > last) return (struct tsri_extent){x.begin, x.begin};
    while (!planes[last])
        last--;
    struct tsri_extent begin = tsri_parcel_cell(r, first), end = tsri_parcel_cell(r, last);
    if (begin.begin > x.begin) x.begin = begin.begin;
    if (end.end < x.end) x.end = end.end;
    return x;
}

/* ---- the record ---- */

void tsri_parcel_fill(uint8_t *record, const struct tsri_parcel *r, const uint32_t *tokens,
                      const uint8_t *extra)
{
    memset(record, 0, r->sums_at);
    memcpy(record, REMOTE_MAGIC, 8);
    tsri_put32(record + VERSION_AT, TSRI_PARCEL_VERSION);
    tsri_put64(record + RECORD_BYTES_AT, r->record_bytes);
    tsri_put64(record + NONCE_AT, r->nonce);
    tsri_put64(record + PART_BYTES_AT, r->part_bytes);
    tsri_put64(record + KV_BYTES_AT, r->kv_bytes);
    tsri_head_write(record + ENTRY_AT, &r->head);
    memcpy(record + r->tokens_at, tokens, (size_t)r->head.n_tokens * 4);
    if (r->head.extra_bytes) memcpy(record + r->extra_at, extra, r->head.extra_bytes);
}

void tsri_parcel_sum(uint8_t *record, const struct tsri_parcel *r, void *const *planes,
                     uint64_t first, uint64_t end)
{
    for (uint64_t i = first; i < end; i++) {
        struct tsri_extent x = tsri_parcel_cell(r, i);
        tsri_put64(record + r->sums_at + i * 8, tsri_sum(planes[i], x.end - x.begin));
    }
}

void tsri_parcel_seal(uint8_t *record, const struct tsri_parcel *r)
{
    tsri_put64(record + BODY_SUM_AT,
               tsri_sum(record + TSRI_PARCEL_HEAD_BYTES, r->record_bytes - TSRI_PARCEL_HEAD_BYTES));
    tsri_put64(record + HEAD_SUM_AT, tsri_sum(record, HEAD_SUM_AT));
}

int tsri_parcel_read_head(const uint8_t *from, size_t bytes, struct tsri_parcel *r)
{
    if (bytes < TSRI_PARCEL_HEAD_BYTES || memcmp(from, REMOTE_MAGIC, 8) != 0)
        return tsri_fail(TSR_ECORRUPT, "not an entry record");
    if (tsri_get64(from + HEAD_SUM_AT) != tsri_sum(from, HEAD_SUM_AT))
        return tsri_fail(TSR_ECORRUPT, "record header has a wrong checksum");
    if (tsri_get32(from + VERSION_AT) != TSRI_PARCEL_VERSION)
        return tsri_fail(TSR_EVERSION, "record has format version %u, this library supports %u",
                         tsri_get32(from + VERSION_AT), TSRI_PARCEL_VERSION);
    struct tsr_entry_head head;
    tsri_head_read(from + ENTRY_AT, &head);
    uint64_t part_bytes = tsri_get64(from + PART_BYTES_AT);
    if (!tsri_head_is_valid(&head) || part_bytes < TSRI_PARCEL_PART_MIN ||
        part_bytes > TSRI_PARCEL_PART_MAX ||
        tsri_parcel_init(r, &head, tsri_get64(from + NONCE_AT), part_bytes) != 0 ||
        tsri_get64(from + RECORD_BYTES_AT) != r->record_bytes ||
        tsri_get64(from + KV_BYTES_AT) != r->kv_bytes)
        return tsri_fail(TSR_ECORRUPT, "record has an invalid shape");
    return 0;
}

int tsri_parcel_read(const uint8_t *record, size_t bytes, struct tsri_parcel *r)
{
    int err = tsri_parcel_read_head(record, bytes, r);
    if (err) return err;
    if (bytes != r->record_bytes ||
        tsri_get64(record + BODY_SUM_AT) !=
            tsri_sum(record + TSRI_PARCEL_HEAD_BYTES, bytes - TSRI_PARCEL_HEAD_BYTES))
        return tsri_fail(TSR_ECORRUPT, "record has a wrong checksum");
    return 0;
}

int tsri_parcel_check(const uint8_t *record, const struct tsri_parcel *r, void *const *planes,
                      struct tsri_extent cells, const uint64_t *sums)
{
    for (uint64_t i = cells.begin; i < cells.end; i++) {
        if (!planes[i]) continue;
        struct tsri_extent x = tsri_parcel_cell(r, i);
        uint64_t sum = sums && sums[i] ? sums[i] : tsri_sum(planes[i], x.end - x.begin);
        if (sum != tsri_get64(record + r->sums_at + i * 8))
            return tsri_fail(TSR_ECORRUPT, "cell %llu has a wrong checksum", (unsigned long long)i);
    }
    return 0;
}

bool tsri_parcel_same_text(const uint8_t *a, const uint8_t *b, const struct tsri_parcel *r)
{
    return memcmp(a + ENTRY_AT, b + ENTRY_AT, TSRI_HEAD_BYTES) == 0 &&
           memcmp(a + PART_BYTES_AT, b + PART_BYTES_AT, 8) == 0 &&
           memcmp(a + r->tokens_at, b + r->tokens_at, r->sums_at - r->tokens_at) == 0;
}

int tsri_parcel_deliver(const uint8_t *record, const struct tsri_parcel *r, struct tsr_tier_io *io)
{
    if (memcmp(&r->head.key, &io->head.key, sizeof r->head.key) != 0 ||
        memcmp(r->head.space, io->head.space, sizeof r->head.space) != 0 ||
        !tsri_head_same_shape(&r->head, &io->head))
        return tsri_fail(TSR_ENOENT, "found another entry");
    if (r->head.extra_bytes > io->extra_max)
        return tsri_fail(TSR_ERANGE, "%u extra bytes, room for %u", r->head.extra_bytes,
                         io->extra_max);
    io->head = r->head;
    memcpy(io->tokens, record + r->tokens_at, (size_t)r->head.n_tokens * 4);
    if (r->head.extra_bytes) memcpy(io->extra, record + r->extra_at, r->head.extra_bytes);
    int err = io->head_done ? io->head_done(io) : 0;
    return err < 0 ? err : 0;
}

/* Layers whose cells all lie before `end` of the KV, handed on from *n_layers. */
static void hand_on(const struct tsri_parcel *r, struct tsr_tier_io *io, uint64_t end,
                    uint32_t *n_layers)
{
    for (; (*n_layers + 1) * r->layer_bytes <= end; ++*n_layers)
        if (io->layer_done) io->layer_done(io, *n_layers);
}

/* ---- parts as they arrive ---- */

void tsri_arrivals_note(struct tsri_arrivals *a, uint32_t part)
{
    a->early |= (uint64_t)1 << (part - a->n_arrived);
    for (; a->early & 1; a->early >>= 1)
        a->n_arrived++;
}

int tsri_arrivals_prove(struct tsri_arrivals *a, const uint8_t *record, const struct tsri_parcel *r,
                        struct tsr_tier_io *io)
{
    if (a->n_arrived == 0) return 0;
    uint64_t end = tsri_parcel_part(r, a->n_arrived - 1).end, n_cells = tsri_parcel_cells(r);
    uint64_t first = a->n_checked;
    while (a->n_checked < n_cells && tsri_parcel_cell(r, a->n_checked).end <= end)
        a->n_checked++;
    struct tsri_extent fresh = {first, a->n_checked};
    int err = tsri_parcel_check(record, r, io->planes, fresh, a->sums);
    if (!err) hand_on(r, io, end, &a->n_layers);
    return err;
}

/* ---- streams ---- */

struct tsri_stream tsri_stream_kv(const struct tsri_parcel *r, void *const *planes,
                                  struct tsri_extent extent)
{
    struct tsri_stream s = {.r = r, .planes = planes, .left = extent.end - extent.begin};
    s.cell = cell_at(r, extent.begin);
    s.at = extent.begin - tsri_parcel_cell(r, s.cell).begin;
    s.whole = s.at == 0;
    return s;
}

struct tsri_stream tsri_stream_flat(void *data, uint64_t bytes)
{
    return (struct tsri_stream){.flat = data, .left = bytes};
}

static int add_piece(struct iovec *iov, int n, int n_max, void *base, size_t bytes)
{
    if (n && (uint8_t *)iov[n - 1].iov_base + iov[n - 1].iov_len == base)
        iov[n - 1].iov_len += bytes;
    else if (n < n_max)
        iov[n++] = (struct iovec){base, bytes};
    else
        return -1;
    return n;
}

int tsri_stream_iov(const struct tsri_stream *s, struct iovec *iov, int n_max, void *waste,
                    size_t waste_bytes)
{
    uint64_t left = s->left;
    if (left == 0 || n_max == 0) return 0;
    if (!s->r) {
        size_t bytes = s->flat || left < waste_bytes ? left : waste_bytes;
        iov[0] = (struct iovec){s->flat ? s->flat : waste, bytes};
        return 1;
    }
    int n = 0;
    uint64_t at = s->at;
    for (uint64_t cell = s->cell; left && n >= 0; cell++, at = 0) {
        struct tsri_extent x = tsri_parcel_cell(s->r, cell);
        uint64_t bytes = x.end - x.begin - at;
        if (bytes > left) bytes = left;
        uint8_t *base = s->planes[cell];
        bool cut = !base && bytes > waste_bytes;
        if (cut) bytes = waste_bytes;
        int more = add_piece(iov, n, n_max, base ? base + at : waste, bytes);
        if (more < 0) break;
        n = more;
        left -= bytes;
        if (cut || !base) break; /* waste is used once a call */
    }
    return n;
}

void tsri_stream_advance(struct tsri_stream *s, uint64_t bytes)
{
    TSR_ASSERT(bytes <= s->left);
    s->left -= bytes;
    if (!s->r) {
        if (s->flat) s->flat += bytes;
        return;
    }
    s->at += bytes;
    while (s->left || s->at) {
        struct tsri_extent x = tsri_parcel_cell(s->r, s->cell);
        uint64_t size = x.end - x.begin;
        if (s->at < size) break;
        void *cell = s->planes[s->cell];
        if (s->sums) s->sums[s->cell] = cell && s->whole ? tsri_sum(cell, size) : 0;
        s->whole = true;
        s->at -= size;
        s->cell++;
    }
}

void tsri_stream_give(struct tsri_stream *s, const void *data, size_t bytes)
{
    const uint8_t *from = data;
    uint8_t waste[256];
    while (bytes) {
        struct iovec iov;
        if (tsri_stream_iov(s, &iov, 1, waste, sizeof waste) != 1) return;
        size_t n = iov.iov_len < bytes ? iov.iov_len : bytes;
        memcpy(iov.iov_base, from, n);
        tsri_stream_advance(s, n);
        from += n;
        bytes -= n;
    }
}
