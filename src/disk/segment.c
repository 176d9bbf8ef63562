/* segment.c - the bytes of a segment file, written and read by pure functions; docs/format.md says
 * what stands where. Bytes from a file are believed only behind a checksum that also covers where
 * they stand, so a page from another file, another place or another time is no record. Hosts are
 * little-endian, as the format is. */
#include "disk/disk.h"

#define SEGMENT_MAGIC "tsr-seg\n"
#define RECORD_MAGIC 0x44525354u /* "TSRD" */

enum {
    SEGMENT_SUM_AT = 56,
    ENTRY_HEAD_AT = 64,
    COST_AT = 184,
    RECORD_SUM_AT = 248,
    TOMB_BYTES = 40,
};

/* ---- where the parts of a record stand ---- */

void tsri_layout_init(struct tsri_layout *l, const struct tsr_entry_head *h)
{
    memset(l, 0, sizeof *l);
    l->n_cells = tsri_head_cells(h);
    l->tokens_at = TSRI_RECORD_HEAD_BYTES;
    l->extra_at = tsri_align_up(l->tokens_at + (uint64_t)h->n_tokens * 4, 8);
    l->sums_at = tsri_align_up(l->extra_at + h->extra_bytes, 8);
    l->body_end = l->sums_at + tsri_layout_cells(l, h) * 8;
    l->header_bytes = tsri_align_up(l->body_end, TSRI_PAGE_BYTES);
    uint32_t last_tokens = tsri_head_cell_tokens(h, l->n_cells - 1);
    for (uint32_t p = 0; p < h->n_planes; p++) {
        l->cell_bytes[p] = (uint64_t)h->cell_tokens * h->row_bytes[p];
        l->cell_stride[p] = tsri_align_up(l->cell_bytes[p], TSRI_PAGE_BYTES);
        l->last_bytes[p] = (uint64_t)last_tokens * h->row_bytes[p];
        l->plane_at[p] = l->layer_bytes;
        l->layer_bytes +=
            l->cell_stride[p] * (l->n_cells - 1) + tsri_align_up(l->last_bytes[p], TSRI_PAGE_BYTES);
    }
    l->record_bytes = l->header_bytes + l->layer_bytes * h->n_layers;
}

struct tsri_disk_cell tsri_layout_cell(const struct tsri_layout *l, const struct tsr_entry_head *h,
                                       uint64_t number)
{
    struct tsri_disk_cell c;
    uint64_t run = number / l->n_cells;
    c.cell = (uint32_t)(number % l->n_cells);
    c.plane = (uint32_t)(run % h->n_planes);
    c.layer = (uint32_t)(run / h->n_planes);
    c.at = l->header_bytes + c.layer * l->layer_bytes + l->plane_at[c.plane] +
           c.cell * l->cell_stride[c.plane];
    bool last = c.cell == l->n_cells - 1;
    c.bytes = last ? l->last_bytes[c.plane] : l->cell_bytes[c.plane];
    c.stride = tsri_align_up(c.bytes, TSRI_PAGE_BYTES);
    return c;
}

/* ---- the first page of a segment ---- */

void tsri_segment_head_write(uint8_t *page, const struct tsri_segment_head *h)
{
    memset(page, 0, TSRI_PAGE_BYTES);
    memcpy(page, SEGMENT_MAGIC, 8);
    tsri_put32(page + 8, TSRI_DISK_VERSION);
    tsri_put32(page + 12, TSRI_PAGE_BYTES);
    tsri_put64(page + 16, h->id);
    tsri_put64(page + 24, h->nonce);
    tsri_put64(page + 32, h->capacity);
    tsri_put64(page + SEGMENT_SUM_AT, tsri_sum(page, SEGMENT_SUM_AT));
}

int tsri_segment_head_read(const uint8_t *page, struct tsri_segment_head *h)
{
    memset(h, 0, sizeof *h);
    if (memcmp(page, SEGMENT_MAGIC, 8) != 0)
        return tsri_fail(TSR_ECORRUPT, "not a segment of a store");
    if (tsri_get64(page + SEGMENT_SUM_AT) != tsri_sum(page, SEGMENT_SUM_AT))
        return tsri_fail(TSR_ECORRUPT, "segment header has a wrong checksum");
    /* Behind the checksum: a flipped bit in the version must not pass for a newer format. Every
     * version keeps magic, version and checksum where they are. */
    if (tsri_get32(page + 8) != TSRI_DISK_VERSION)
        return tsri_fail(TSR_EVERSION, "segment has format version %u, this library supports %u",
                         tsri_get32(page + 8), TSRI_DISK_VERSION);
    h->id = tsri_get64(page + 16);
    h->nonce = tsri_get64(page + 24);
    h->capacity = tsri_get64(page + 32);
    return 0;
}

/* ---- the head of a record ---- */

void tsri_record_write(uint8_t *to, const struct tsri_record *r)
{
    memset(to, 0, TSRI_RECORD_HEAD_BYTES);
    tsri_put32(to, RECORD_MAGIC);
    tsri_put32(to + 4, r->kind);
    tsri_put64(to + 8, r->nonce);
    tsri_put64(to + 16, r->offset);
    tsri_put64(to + 24, r->bytes);
    tsri_put64(to + 32, r->seq);
    tsri_put64(to + 40, r->body_sum);
    tsri_put32(to + 48, r->n_tombs);
    tsri_put32(to + 52, r->n_copies);
    if (r->kind == TSRI_RECORD_ENTRY) {
        tsri_head_write(to + ENTRY_HEAD_AT, &r->head);
        tsri_put_cost(to + COST_AT, r->head.cost_s);
    }
    tsri_put64(to + RECORD_SUM_AT, tsri_sum(to, RECORD_SUM_AT));
}

/* What a record says of itself must also make sense: its length is the one its shape has. */
static bool record_is_sane(const struct tsri_record *r)
{
    if (r->kind == TSRI_RECORD_TOMBS)
        return r->bytes == TSRI_PAGE_BYTES && r->n_tombs > 0 && r->n_tombs <= TSRI_TOMBS_MAX;
    if (r->kind != TSRI_RECORD_ENTRY || !tsri_head_is_valid(&r->head)) return false;
    struct tsri_layout l;
    tsri_layout_init(&l, &r->head);
    return r->bytes == l.record_bytes;
}

int tsri_record_read(const uint8_t *from, uint64_t nonce, uint64_t offset, uint64_t end,
                     struct tsri_record *r)
{
    memset(r, 0, sizeof *r);
    if (tsri_get32(from) != RECORD_MAGIC) return tsri_fail(TSR_ECORRUPT, "no record here");
    if (tsri_get64(from + RECORD_SUM_AT) != tsri_sum(from, RECORD_SUM_AT))
        return tsri_fail(TSR_ECORRUPT, "record header has a wrong checksum");
    r->kind = tsri_get32(from + 4);
    r->nonce = tsri_get64(from + 8);
    r->offset = tsri_get64(from + 16);
    r->bytes = tsri_get64(from + 24);
    r->seq = tsri_get64(from + 32);
    r->body_sum = tsri_get64(from + 40);
    r->n_tombs = tsri_get32(from + 48);
    r->n_copies = tsri_get32(from + 52);
    if (r->kind == TSRI_RECORD_ENTRY) {
        tsri_head_read(from + ENTRY_HEAD_AT, &r->head);
        r->head.cost_s = tsri_get_cost(from + COST_AT);
    }
    if (r->nonce != nonce || r->offset != offset)
        return tsri_fail(TSR_ECORRUPT, "record belongs to another place");
    if (!record_is_sane(r)) return tsri_fail(TSR_ECORRUPT, "record has an invalid shape");
    if (offset > end || r->bytes > end - offset)
        return tsri_fail(TSR_ECORRUPT, "record ends after the end of its file");
    return 0;
}

/* ---- the header of an entry ---- */

void tsri_header_fill(uint8_t *header, const struct tsri_layout *l, const struct tsr_entry_head *h,
                      const uint32_t *tokens, const uint8_t *extra)
{
    memset(header, 0, l->header_bytes);
    memcpy(header + l->tokens_at, tokens, (size_t)h->n_tokens * 4);
    if (h->extra_bytes) memcpy(header + l->extra_at, extra, h->extra_bytes);
}

void tsri_header_seal(uint8_t *header, const struct tsri_layout *l, struct tsri_record *r)
{
    r->body_sum = tsri_sum(header + TSRI_RECORD_HEAD_BYTES, l->body_end - TSRI_RECORD_HEAD_BYTES);
    tsri_record_write(header, r);
}

int tsri_header_check(const uint8_t *header, const struct tsri_layout *l,
                      const struct tsri_record *r)
{
    uint64_t sum = tsri_sum(header + TSRI_RECORD_HEAD_BYTES, l->body_end - TSRI_RECORD_HEAD_BYTES);
    if (sum != r->body_sum) return tsri_fail(TSR_ECORRUPT, "entry header has a wrong checksum");
    return 0;
}

/* ---- tombstones ---- */

void tsri_tombs_write(uint8_t *page, const struct tsri_tomb *tombs, uint32_t n,
                      struct tsri_record *r)
{
    TSR_ASSERT(n > 0 && n <= TSRI_TOMBS_MAX);
    memset(page, 0, TSRI_PAGE_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *at = page + TSRI_RECORD_HEAD_BYTES + (size_t)i * TOMB_BYTES;
        memcpy(at, tombs[i].key.bytes, 16);
        tsri_put64(at + 16, tombs[i].seq);
        tsri_put64(at + 24, tombs[i].segment);
    }
    r->kind = TSRI_RECORD_TOMBS;
    r->bytes = TSRI_PAGE_BYTES;
    r->n_tombs = n;
    r->body_sum = tsri_sum(page + TSRI_RECORD_HEAD_BYTES, (size_t)n * TOMB_BYTES);
    tsri_record_write(page, r);
}

int tsri_tombs_read(const uint8_t *page, const struct tsri_record *r, struct tsri_tomb *tombs)
{
    const uint8_t *at = page + TSRI_RECORD_HEAD_BYTES;
    if (tsri_sum(at, (size_t)r->n_tombs * TOMB_BYTES) != r->body_sum)
        return tsri_fail(TSR_ECORRUPT, "tombstones have a wrong checksum");
    for (uint32_t i = 0; i < r->n_tombs; i++, at += TOMB_BYTES) {
        tombs[i] = (struct tsri_tomb){.seq = tsri_get64(at + 16), .segment = tsri_get64(at + 24)};
        memcpy(tombs[i].key.bytes, at, 16);
    }
    return 0;
}
