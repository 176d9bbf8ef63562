/* disk_put.c - put. The entries of a call are appended one behind the other; while the disk takes a
 * piece, its cells are summed, and the header with the sums follows the last piece. Small entries
 * that follow each other are put together in memory and written as one piece: the disk counts
 * requests, not bytes. An entry is published, in order, when all of its bytes are written. When one
 * fails, those behind it in the same segment fail too (a walk over the headers could not reach
 * them) and the segment is cut before it. */
#include "disk/disk.h"

/* Records up to so many bytes are small; so many, and so many bytes of them, make a bundle. */
#define SMALL_BYTES (48u << 10)
#define BUNDLE_ENTRIES 32u
#define BUNDLE_BYTES (1u << 20)

struct disk_write {
    struct tsr_tier_io *io;
    struct tsri_kv kv;
    uint64_t seq, next; /* next: cell to be cut */
    uint32_t n_pieces;  /* under way */
    bool header_cut;
    int error; /* errno, or negative enum tsr_err */
};

/* One call of put, or the part of it that goes to one segment. */
struct disk_put {
    struct tsri_disk *d;
    struct tsri_disk_lane *lane;
    struct tsri_segment *segment;
    uint64_t offset; /* where the next entry begins */
    struct disk_write entries[TSRI_UNDER_WAY];
    uint32_t first, n_entries; /* under way: a ring */
    uint32_t piece_first, n_pieces;
    int failed; /* of the first entry that failed in this segment */
    int n_ok;
};

static void publish(struct disk_put *p, struct disk_write *e)
{
    struct tsri_disk *d = p->d;
    struct tsri_segment *s = p->segment;
    uint64_t bytes = e->kv.layout.record_bytes;
    const struct tsr_key *key = &e->kv.head.key;
    pthread_mutex_lock(&d->lock);
    if (!e->error && s->failed) e->error = TSR_EIO; /* a sync failed meanwhile */
    uint32_t slot = e->error ? TSRI_NO_SLOT : tsri_disk_index_find(&d->index, key);
    if (!e->error) s->tail = e->kv.offset + bytes;
    if (slot != TSRI_NO_SLOT && tsri_disk_index_at(&d->index, slot)->seq > e->seq) {
        tsri_tomb_add(d, key, e->seq, s->id); /* another caller put it again and was faster */
    } else if (!e->error) {
        if (slot != TSRI_NO_SLOT) {
            struct tsri_disk_slot *old = tsri_disk_index_at(&d->index, slot);
            tsri_tomb_add(d, key, old->seq, old->segment->id);
            tsri_disk_unlink(d, slot);
            tsri_order_touch(&d->index, slot, false);
            old->head = e->kv.head;
        } else {
            slot = tsri_disk_index_add(&d->index, &e->kv.head);
            if (slot == TSRI_NO_SLOT) e->error = TSR_ENOMEM;
        }
        if (!e->error) {
            tsri_disk_index_at(&d->index, slot)->seq = e->seq;
            tsri_disk_link(d, slot, s, e->kv.offset, bytes);
        }
    }
    /* Its header may have reached the disk although something else of it did not. */
    if (e->error) tsri_tomb_add(d, key, e->seq, s->id);
    pthread_mutex_unlock(&d->lock);
    if (e->error) {
        p->failed = e->error;
        return;
    }
    tsri_disk_learn(d, &e->kv.head, e->io->tokens, e->kv.head.n_tokens, e->io->extra);
    e->io->loc = (tsr_tier_loc)slot + 1;
    e->io->result = 0;
    p->n_ok++;
    atomic_fetch_add(&d->written_bytes, bytes);
}

/* The result of an entry that was published or could not be. */
static void tell(struct disk_put *p, struct disk_write *e)
{
    if (!e->error) return;
    e->io->result =
        e->error < 0 ? e->error : tsri_disk_fail(p->d, e->error, "cannot write", "an entry");
}

/* Waits for the oldest piece; publishes its entry when that was the last of it. */
static void finish_piece(struct disk_put *p)
{
    struct tsri_disk_piece *piece = &p->lane->pieces[p->piece_first];
    tsri_aio_wait(p->lane->aio, &piece->req);
    p->piece_first = (p->piece_first + 1) % TSRI_AIO_DEPTH;
    p->n_pieces--;
    struct disk_write *e = &p->entries[piece->owner];
    if (piece->req.error && !e->error) e->error = piece->req.error;
    e->n_pieces--;
    while (p->n_entries) {
        struct disk_write *oldest = &p->entries[p->first];
        bool whole = oldest->header_cut || oldest->error;
        if (!whole || oldest->n_pieces) break;
        if (p->failed && !oldest->error) oldest->error = p->failed;
        publish(p, oldest);
        tell(p, oldest);
        p->first = (p->first + 1) % TSRI_UNDER_WAY;
        p->n_entries--;
    }
}

/* A free piece, waiting for one if need be. */
static struct tsri_disk_piece *next_piece(struct disk_put *p, uint32_t owner)
{
    while (p->n_pieces == TSRI_AIO_DEPTH)
        finish_piece(p);
    struct tsri_disk_piece *piece =
        &p->lane->pieces[(p->piece_first + p->n_pieces) % TSRI_AIO_DEPTH];
    piece->owner = owner;
    return piece;
}

static void send_piece(struct disk_put *p, struct disk_write *e, struct tsri_disk_piece *piece)
{
    piece->req.fd = p->segment->fd;
    tsri_aio_push(p->lane->aio, &piece->req);
    tsri_aio_kick(p->lane->aio);
    p->n_pieces++;
    e->n_pieces++;
}

static void seal_header(const struct disk_put *p, const struct disk_write *e, uint8_t *header)
{
    struct tsri_record r = {.kind = TSRI_RECORD_ENTRY,
                            .nonce = p->segment->nonce,
                            .offset = e->kv.offset,
                            .bytes = e->kv.layout.record_bytes,
                            .seq = e->seq,
                            .head = e->kv.head};
    tsri_header_seal(header, &e->kv.layout, &r);
}

static void send_header(struct disk_put *p, struct disk_write *e, uint32_t number)
{
    struct tsri_disk_piece *piece = next_piece(p, number);
    uint8_t *header = p->lane->headers[number].data;
    seal_header(p, e, header);
    piece->iov[0] = (struct iovec){header, e->kv.layout.header_bytes};
    piece->req = (struct tsri_aio_req){.write = true,
                                       .offset = e->kv.offset,
                                       .iov = piece->iov,
                                       .n_iov = 1,
                                       .bytes = e->kv.layout.header_bytes,
                                       .align = p->d->align};
    e->header_cut = true;
    send_piece(p, e, piece);
}

/* The entry that is to stand where the last one ends, with its number. */
static struct disk_write next_entry(struct disk_put *p, struct tsr_tier_io *io,
                                    const struct tsri_layout *layout)
{
    struct disk_write e = {.io = io, .kv = {io->head, *layout, io->planes, p->offset, p->d->align}};
    if (e.kv.head.n_planes < 2) e.kv.head.row_bytes[1] = 0;
    pthread_mutex_lock(&p->d->lock);
    e.seq = p->d->next_seq++;
    pthread_mutex_unlock(&p->d->lock);
    p->offset += layout->record_bytes;
    return e;
}

/* Writes one entry, all of it queued when this returns. */
static void write_entry(struct disk_put *p, struct tsr_tier_io *io,
                        const struct tsri_layout *layout)
{
    while (p->n_entries == TSRI_UNDER_WAY)
        finish_piece(p);
    uint32_t number = (p->first + p->n_entries) % TSRI_UNDER_WAY;
    int err = tsri_region_need(&p->lane->headers[number], layout->header_bytes);
    if (err) {
        io->result = p->failed = err;
        return;
    }
    struct disk_write *e = &p->entries[number];
    *e = next_entry(p, io, layout);
    uint8_t *header = p->lane->headers[number].data;
    tsri_header_fill(header, layout, &e->kv.head, io->tokens, io->extra);
    p->n_entries++;
    uint64_t n_cells = tsri_layout_cells(layout, &e->kv.head);
    while (e->next < n_cells && !e->error) {
        struct tsri_disk_piece *piece = next_piece(p, number);
        e->error = tsri_piece_cut(piece, &e->kv, e->next, true);
        if (e->error) break;
        e->next = piece->end;
        send_piece(p, e, piece);
        /* The disk is busy with it now; nobody changes it. */
        tsri_piece_sum(piece, &e->kv, tsri_header_sums(header, layout));
    }
    if (!e->error) send_header(p, e, number);
}

/* ---- small entries ---- */

static bool is_late(const struct tsr_tier_io *io)
{
    return io->deadline_ns && tsri_now_ns() >= io->deadline_ns;
}

static void copy_record(const struct disk_put *p, const struct disk_write *e, uint8_t *to)
{
    const struct tsri_layout *l = &e->kv.layout;
    const struct tsr_entry_head *h = &e->kv.head;
    memset(to + l->header_bytes, 0, l->record_bytes - l->header_bytes);
    tsri_header_fill(to, l, h, e->io->tokens, e->io->extra);
    for (uint64_t i = 0; i < tsri_layout_cells(l, h); i++) {
        struct tsri_disk_cell c = tsri_layout_cell(l, h, i);
        memcpy(to + c.at, e->kv.planes[i], c.bytes);
        tsri_header_sums(to, l)[i] = tsri_sum(to + c.at, c.bytes);
    }
    seal_header(p, e, to);
}

static bool is_small(const struct disk_put *p, const struct tsr_tier_io *io,
                     struct tsri_layout *layout)
{
    tsri_layout_init(layout, &io->head);
    return layout->record_bytes <= SMALL_BYTES &&
           layout->record_bytes <= p->segment->capacity - p->offset;
}

/* Writes small entries from io[0] on with one request, and waits for it. Returns how many there
 * were. Nothing else is under way. */
static size_t write_bundle(struct disk_put *p, struct tsr_tier_io *io, size_t n)
{
    struct disk_write bundle[BUNDLE_ENTRIES];
    struct tsri_disk_piece *piece = &p->lane->pieces[0];
    struct tsri_layout layout;
    uint64_t begin = p->offset;
    size_t n_bundle = 0;
    int err = tsri_region_need(&piece->bounce, BUNDLE_BYTES);
    for (; n_bundle < n && n_bundle < BUNDLE_ENTRIES; n_bundle++) {
        if (is_late(&io[n_bundle]) || !is_small(p, &io[n_bundle], &layout)) break;
        if (p->offset - begin + layout.record_bytes > BUNDLE_BYTES) break;
        bundle[n_bundle] = next_entry(p, &io[n_bundle], &layout);
        if (!err)
            copy_record(p, &bundle[n_bundle],
                        piece->bounce.data + (bundle[n_bundle].kv.offset - begin));
    }
    if (!err && n_bundle) {
        piece->iov[0] = (struct iovec){piece->bounce.data, p->offset - begin};
        piece->req = (struct tsri_aio_req){.fd = p->segment->fd,
                                           .write = true,
                                           .offset = begin,
                                           .iov = piece->iov,
                                           .n_iov = 1,
                                           .bytes = p->offset - begin,
                                           .align = p->d->align};
        tsri_aio_push(p->lane->aio, &piece->req);
        tsri_aio_wait(p->lane->aio, &piece->req);
        err = piece->req.error;
    }
    for (size_t i = 0; i < n_bundle; i++) {
        bundle[i].error = err ? err : p->failed;
        publish(p, &bundle[i]);
        tell(p, &bundle[i]);
    }
    return n_bundle;
}

static void drain(struct disk_put *p)
{
    while (p->n_pieces)
        finish_piece(p);
    /* An entry that failed before it had a piece. */
    for (; p->n_entries; p->n_entries--, p->first = (p->first + 1) % TSRI_UNDER_WAY)
        p->entries[p->first].io->result = p->failed = p->entries[p->first].error;
}

/* Appends entries from io[i] on to one segment, until it is full or something failed. Returns the
 * first entry that was not tried. */
static size_t fill_segment(struct disk_put *p, struct tsr_tier_io *io, size_t i, size_t n)
{
    struct tsri_disk *d = p->d;
    p->offset = p->segment->tail;
    p->failed = 0;
    while (i < n && !p->failed) {
        struct tsri_layout layout;
        bool small = is_small(p, &io[i], &layout);
        if (p->segment->capacity - p->offset < layout.record_bytes) break;
        if (is_late(&io[i])) {
            io[i++].result = tsri_fail(TSR_ETIME, "disk: put missed its deadline");
        } else if (small) {
            drain(p);
            if (!p->failed) i += write_bundle(p, io + i, n - i);
        } else {
            write_entry(p, &io[i++], &layout);
        }
    }
    drain(p);
    pthread_mutex_lock(&d->lock);
    if (p->failed) p->segment->failed = true;
    pthread_mutex_unlock(&d->lock);
    return i;
}

int tsri_disk_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    struct tsri_disk *d = (struct tsri_disk *)tier;
    if (d->read_only || !tsri_fork_guard_parent(&d->guard))
        return tsri_fail(d->read_only ? TSR_EPERM : TSR_EFORK,
                         "disk: %s is read-only for this process", d->path);
    struct disk_put p = {.d = d, .lane = tsri_lane_take(d, tsri_disk_deadline(io, n))};
    if (!p.lane) return tsri_fail(TSR_ETIME, "disk: too many concurrent calls");
    /* A record this large found the file system full: those that are not smaller are not tried, or
     * each of them would make a file and remove it. */
    uint64_t too_large = UINT64_MAX;
    for (size_t i = 0; i < n;) {
        struct tsri_layout layout;
        tsri_layout_init(&layout, &io[i].head);
        int err = 0;
        if (layout.record_bytes >= too_large) err = TSR_EIO;
        if (!err && d->bytes_max && layout.record_bytes > d->live_max)
            err =
                tsri_fail(TSR_ERANGE, "disk: entry of %llu bytes exceeds the store of %llu",
                          (unsigned long long)layout.record_bytes, (unsigned long long)d->live_max);
        if (!err)
            err = tsri_segment_take(d, layout.record_bytes, false, io[i].deadline_ns, &p.segment);
        if (err == TSR_EIO && layout.record_bytes < too_large) too_large = layout.record_bytes;
        if (err) {
            io[i++].result = err;
            continue;
        }
        i = fill_segment(&p, io, i, n);
        tsri_segment_give(d, p.segment);
        if (tsri_disk_is_full(p.failed)) too_large = 0;
    }
    tsri_lane_give(d, p.lane);
    /* Where blocks cannot be reserved, each segment that met a full file system is empty now. */
    if (too_large == 0) (void)!tsri_disk_make_room(d);
    return p.n_ok;
}
