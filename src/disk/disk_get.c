/* disk_get.c - get. The header and the pieces of an entry, and of the entries behind it, are queued
 * together and taken off in order: while a piece is compared with its sums, the next ones are on
 * their way, and what has arrived early makes room for more of them. The header of an entry is
 * proven before its first layer is handed on, a layer when all of its wanted cells are. Nothing of
 * an entry is believed because the index says so: record, key, sequence number and shape are
 * compared with what was asked for. */
#include "disk/disk.h"

#include <errno.h>

/* A disk is busy with so many requests of a piece each, as a rule (bench_disk). */
#define FIRST_DEPTH 4u

struct disk_read {
    struct tsr_tier_io *io;
    struct tsri_kv kv;
    struct tsri_segment *segment; /* NULL: was never there */
    uint64_t seq, next;           /* next: cell to be cut */
    uint32_t n_pieces;            /* under way */
    uint32_t n_layers;            /* handed on */
    int err;                      /* enum tsr_err */
};

struct disk_get {
    struct tsri_disk *d;
    struct tsri_disk_lane *lane;
    struct disk_read entries[TSRI_UNDER_WAY];
    uint32_t first, n_entries;      /* under way: a ring */
    uint32_t piece_first, n_pieces; /* in hand: a ring */
    int n_ok;
};

/* Where an entry is, and a reference to its segment. */
static int locate(struct tsri_disk *d, struct disk_read *e)
{
    const struct tsr_tier_io *io = e->io;
    pthread_mutex_lock(&d->lock);
    uint32_t slot = tsri_disk_index_find(&d->index, &io->head.key);
    struct tsri_disk_slot *s = slot == TSRI_NO_SLOT ? NULL : tsri_disk_index_at(&d->index, slot);
    bool there = s && tsri_head_same_shape(&s->head, &io->head) &&
                 memcmp(s->head.space, io->head.space, sizeof s->head.space) == 0;
    if (there) {
        e->kv.head = s->head;
        e->kv.offset = (uint64_t)s->page * TSRI_PAGE_BYTES;
        e->seq = s->seq;
        e->segment = s->segment;
        e->segment->n_refs++; /* stays while the lock is not held */
        e->io->loc = (tsr_tier_loc)slot + 1;
        tsri_order_touch(&d->index, slot, s->stray);
        d->reordered = true;
    }
    pthread_mutex_unlock(&d->lock);
    if (!there) return tsri_fail(TSR_ENOENT, "disk: no such entry");
    int err = tsri_segment_ref(d, e->segment);
    tsri_segment_unref(d, e->segment);
    if (err) e->segment = NULL;
    return err;
}

static int start_entry(struct disk_get *g, struct disk_read *e)
{
    struct tsr_tier_io *io = e->io;
    if (io->deadline_ns && tsri_now_ns() >= io->deadline_ns)
        return tsri_fail(TSR_ETIME, "disk: deadline passed");
    int err = locate(g->d, e);
    if (err) return err;
    if (e->kv.head.extra_bytes > io->extra_max)
        return tsri_fail(TSR_ERANGE, "disk: %u extra bytes, room for %u", e->kv.head.extra_bytes,
                         io->extra_max);
    e->kv.planes = io->planes;
    e->kv.align = g->d->align;
    tsri_layout_init(&e->kv.layout, &e->kv.head);
    e->next = tsri_piece_skip(&e->kv, 0);
    return tsri_region_need(&g->lane->headers[e - g->entries], e->kv.layout.header_bytes);
}

static void send_piece(struct disk_get *g, struct disk_read *e, struct tsri_disk_piece *piece)
{
    piece->owner = (uint32_t)(e - g->entries);
    piece->req.fd = e->segment->fd;
    atomic_fetch_add(&g->d->read_bytes, piece->req.bytes);
    tsri_aio_push(g->lane->aio, &piece->req);
    g->n_pieces++;
    e->n_pieces++;
}

static struct tsri_disk_piece *free_piece(struct disk_get *g)
{
    return &g->lane->pieces[(g->piece_first + g->n_pieces) % TSRI_PIECES];
}

static void send_header(struct disk_get *g, struct disk_read *e)
{
    struct tsri_disk_piece *piece = free_piece(g);
    size_t bytes = e->kv.layout.header_bytes;
    piece->is_header = true;
    piece->iov[0] = (struct iovec){g->lane->headers[e - g->entries].data, bytes};
    piece->req = (struct tsri_aio_req){.offset = e->kv.offset,
                                       .iov = piece->iov,
                                       .n_iov = 1,
                                       .bytes = bytes,
                                       .align = g->d->align};
    send_piece(g, e, piece);
}

/* How many pieces may be queued now. Before the first layer is there, and somebody waits for it,
 * fewer are under way: a disk that serves all at once would bring them all at the same time, and
 * late. */
static uint32_t room(struct disk_get *g)
{
    const struct disk_read *oldest = g->n_entries ? &g->entries[g->first] : NULL;
    bool first = oldest && oldest->n_layers == 0 && oldest->io->layer_done;
    uint32_t most = first ? FIRST_DEPTH : TSRI_AIO_DEPTH, n_flying = 0;
    uint32_t in_hand = first ? TSRI_AIO_DEPTH : TSRI_PIECES;
    tsri_aio_poll(g->lane->aio);
    for (uint32_t i = 0; i < g->n_pieces; i++) {
        const struct tsri_disk_piece *p = &g->lane->pieces[(g->piece_first + i) % TSRI_PIECES];
        n_flying += !tsri_aio_is_done(g->lane->aio, &p->req);
    }
    if (n_flying >= most || g->n_pieces >= in_hand) return 0;
    return tsri_min_u32(most - n_flying, in_hand - g->n_pieces);
}

/* Queues what it can: the rest of the newest entry, then entries of io[*i] on. */
static void fill_queue(struct disk_get *g, struct tsr_tier_io *io, size_t *i, size_t n)
{
    for (uint32_t left = room(g); left;) {
        struct disk_read *e = NULL;
        if (g->n_entries) e = &g->entries[(g->first + g->n_entries - 1) % TSRI_UNDER_WAY];
        if (e && !e->err && e->next < tsri_layout_cells(&e->kv.layout, &e->kv.head)) {
            struct tsri_disk_piece *piece = free_piece(g);
            e->err = tsri_piece_cut(piece, &e->kv, e->next, false);
            if (e->err) continue;
            e->next = piece->next;
            send_piece(g, e, piece);
            left--;
            continue;
        }
        if (*i == n || g->n_entries == TSRI_UNDER_WAY) break;
        e = &g->entries[(g->first + g->n_entries++) % TSRI_UNDER_WAY];
        *e = (struct disk_read){.io = &io[(*i)++]};
        e->err = start_entry(g, e);
        if (e->err) continue;
        send_header(g, e);
        left--;
    }
    tsri_aio_kick(g->lane->aio);
}

static int check_header(struct disk_get *g, struct disk_read *e)
{
    const uint8_t *header = g->lane->headers[e - g->entries].data;
    const struct tsri_layout *l = &e->kv.layout;
    struct tsri_record r;
    int err = tsri_record_read(header, e->segment->nonce, e->kv.offset, UINT64_MAX, &r);
    if (err) return err;
    if (r.kind != TSRI_RECORD_ENTRY || r.seq != e->seq || !tsri_head_same(&r.head, &e->kv.head))
        return tsri_fail(TSR_ECORRUPT, "disk: found another record");
    err = tsri_header_check(header, l, &r);
    if (err) return err;
    struct tsr_tier_io *io = e->io;
    io->head = r.head;
    memcpy(io->tokens, header + l->tokens_at, (size_t)r.head.n_tokens * 4);
    if (r.head.extra_bytes) memcpy(io->extra, header + l->extra_at, r.head.extra_bytes);
    tsri_disk_learn(g->d, &io->head, io->tokens, io->head.n_tokens, io->extra);
    err = io->head_done ? io->head_done(io) : 0;
    return err < 0 ? err : 0;
}

/* Hands on the layers before that cell. */
static void hand_on(struct disk_read *e, uint64_t cell)
{
    uint64_t layer_cells = (uint64_t)e->kv.head.n_planes * e->kv.layout.n_cells;
    for (; (e->n_layers + 1) * layer_cells <= cell; e->n_layers++)
        if (e->io->layer_done) e->io->layer_done(e->io, e->n_layers);
}

static int check_piece(struct disk_get *g, struct disk_read *e, struct tsri_disk_piece *piece)
{
    if (piece->req.error == ENODATA)
        return tsri_fail(TSR_ECORRUPT, "disk: a segment ends within an entry");
    if (piece->req.error) return tsri_disk_fail(g->d, piece->req.error, "cannot read", "an entry");
    if (e->io->deadline_ns && tsri_now_ns() >= e->io->deadline_ns)
        return tsri_fail(TSR_ETIME, "disk: deadline passed");
    uint8_t *header = g->lane->headers[e - g->entries].data;
    if (piece->is_header) {
        int err = check_header(g, e);
        if (!err) hand_on(e, tsri_piece_skip(&e->kv, 0)); /* layers of which nothing is wanted */
        return err;
    }
    int err = tsri_piece_check(piece, &e->kv, tsri_header_sums(header, &e->kv.layout));
    if (!err) hand_on(e, piece->next);
    return err;
}

static void finish_entry(struct disk_get *g, struct disk_read *e)
{
    if (e->err == TSR_ECORRUPT) atomic_fetch_add(&g->d->corrupt, 1);
    if (e->segment) tsri_segment_unref(g->d, e->segment);
    e->io->result = e->err;
    g->n_ok += e->err == 0;
    g->first = (g->first + 1) % TSRI_UNDER_WAY;
    g->n_entries--;
}

/* Takes the oldest piece off, then the entries that have nothing under way and nothing to come. */
static void empty_queue(struct disk_get *g)
{
    if (g->n_pieces) {
        struct tsri_disk_piece *piece = &g->lane->pieces[g->piece_first];
        struct disk_read *e = &g->entries[piece->owner];
        tsri_aio_wait(g->lane->aio, &piece->req);
        if (!e->err) e->err = check_piece(g, e, piece);
        e->n_pieces--;
        g->piece_first = (g->piece_first + 1) % TSRI_PIECES;
        g->n_pieces--;
    }
    while (g->n_entries) {
        struct disk_read *e = &g->entries[g->first];
        bool cut = e->err || e->next == tsri_layout_cells(&e->kv.layout, &e->kv.head);
        if (!cut || e->n_pieces) break;
        finish_entry(g, e);
    }
}

int tsri_disk_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    struct tsri_disk *d = (struct tsri_disk *)tier;
    if (!tsri_fork_guard_parent(&d->guard))
        return tsri_fail(TSR_EFORK, "disk: not usable after fork");
    struct disk_get g = {.d = d, .lane = tsri_lane_take(d, tsri_disk_deadline(io, n))};
    if (!g.lane) return tsri_fail(TSR_ETIME, "disk: too many concurrent calls");
    for (size_t i = 0; i < n || g.n_entries;) {
        fill_queue(&g, io, &i, n);
        empty_queue(&g);
    }
    tsri_lane_give(d, g.lane);
    return g.n_ok;
}
