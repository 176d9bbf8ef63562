/* pieces.c - cuts the KV of an entry into requests of about PIECE_BYTES, each of whole cells that
 * follow one another on disk. Where memory and lengths are aligned, bytes move between the disk and
 * the caller's cells without a copy; what is not (the ragged end of a last cell, a caller's odd
 * pointer) takes the way over the piece's own bounce memory. */
#include "disk/disk.h"

/* 1 MiB: below it a request costs more than its bytes; above it nothing is gained and the first
 * layer comes later (bench_disk). A piece does not run over into the next layer once it has
 * MERGE_BYTES: small layers share a read, large ones arrive alone. */
#define PIECE_BYTES ((size_t)1 << 20)
#define MERGE_BYTES ((size_t)128 << 10)

/* The bytes of a cell that move straight to or from its memory; the rest of its stride bounces. */
static uint64_t straight_bytes(const struct tsri_disk_cell *c, const void *memory, size_t align)
{
    return (uintptr_t)memory % align ? 0 : c->bytes - c->bytes % align;
}

static void add_iov(struct tsri_disk_piece *p, void *base, size_t bytes)
{
    if (!bytes) return;
    struct iovec *last = p->req.n_iov ? &p->iov[p->req.n_iov - 1] : NULL;
    if (last && (uint8_t *)last->iov_base + last->iov_len == base) {
        last->iov_len += bytes;
        return;
    }
    TSR_ASSERT(p->req.n_iov < TSRI_PIECE_IOVS);
    p->iov[p->req.n_iov++] = (struct iovec){base, bytes};
}

static int add_cell(struct tsri_disk_piece *p, const struct tsri_disk_cell *c, void *memory,
                    bool write, size_t align)
{
    uint64_t straight = straight_bytes(c, memory, align), rest = c->stride - straight;
    add_iov(p, memory, straight);
    if (rest) {
        /* Only the first cell of a piece can be larger than a piece: nothing in use is lost. */
        size_t need = p->bounce_used + rest;
        int err = tsri_region_need(&p->bounce, need > PIECE_BYTES ? need : PIECE_BYTES);
        if (err) return err;
        uint8_t *at = p->bounce.data + p->bounce_used;
        if (write) {
            memcpy(at, (const uint8_t *)memory + straight, c->bytes - straight);
            memset(at + (c->bytes - straight), 0, c->stride - c->bytes);
        }
        add_iov(p, at, rest);
        p->bounce_used += rest;
    }
    p->req.bytes += c->stride;
    return 0;
}

uint64_t tsri_piece_skip(const struct tsri_kv *kv, uint64_t from)
{
    uint64_t n = tsri_layout_cells(&kv->layout, &kv->head);
    while (from < n && !kv->planes[from])
        from++;
    return from;
}

int tsri_piece_cut(struct tsri_disk_piece *p, const struct tsri_kv *kv, uint64_t from, bool write)
{
    uint64_t n = tsri_layout_cells(&kv->layout, &kv->head);
    p->is_header = false;
    p->bounce_used = 0;
    p->first = p->end = from;
    p->req.iov = p->iov;
    p->req.n_iov = 0;
    p->req.bytes = 0;
    p->req.write = write;
    p->req.align = kv->align;
    for (; p->end < n && kv->planes[p->end]; p->end++) {
        struct tsri_disk_cell c = tsri_layout_cell(&kv->layout, &kv->head, p->end);
        if (p->end == from) {
            p->req.offset = kv->offset + c.at;
        } else {
            if (p->req.bytes + c.stride > PIECE_BYTES) break;
            if (p->req.n_iov + 2 > TSRI_PIECE_IOVS) break;
            if (c.cell == 0 && c.plane == 0 && p->req.bytes >= MERGE_BYTES) break;
        }
        int err = add_cell(p, &c, kv->planes[p->end], write, kv->align);
        if (err) return err;
    }
    p->next = tsri_piece_skip(kv, p->end);
    return 0;
}

int tsri_piece_check(const struct tsri_disk_piece *p, const struct tsri_kv *kv,
                     const uint64_t *sums)
{
    size_t bounced = 0;
    for (uint64_t i = p->first; i < p->end; i++) {
        struct tsri_disk_cell c = tsri_layout_cell(&kv->layout, &kv->head, i);
        uint8_t *cell = kv->planes[i];
        uint64_t straight = straight_bytes(&c, cell, kv->align);
        if (c.bytes > straight)
            memcpy(cell + straight, p->bounce.data + bounced, c.bytes - straight);
        bounced += c.stride - straight;
        if (tsri_sum(cell, c.bytes) != sums[i])
            return tsri_fail(TSR_ECORRUPT, "layer %u, plane %u, cell %u has a wrong checksum",
                             c.layer, c.plane, c.cell);
    }
    return 0;
}

void tsri_piece_sum(const struct tsri_disk_piece *p, const struct tsri_kv *kv, uint64_t *sums)
{
    for (uint64_t i = p->first; i < p->end; i++)
        sums[i] = tsri_sum(kv->planes[i], tsri_layout_cell(&kv->layout, &kv->head, i).bytes);
}
