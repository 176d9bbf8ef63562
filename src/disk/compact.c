/* compact.c - upkeep of a store, one caller at a time: flush, the checkpoint, and making room. Dead
 * entries leave their bytes in a segment; a segment that is dead for the greater part is emptied by
 * copying what lives, proven on the way, to the end of another, and removed.
 *
 * A segment is removed only after a sync that came after it held nothing: what replaced its entries
 * survives a crash before they are gone. Its tombstones that still mean something (the segment they
 * speak of exists) are written again before. A tombstone is written only after a sync that came
 * after it was needed: a crash that keeps it keeps what took the place of the dead record. */
#include "disk/disk.h"

#include <errno.h>
#include <fcntl.h>

#define COPY_BYTES ((size_t)1 << 20)
/* A checkpoint is due after this many changes, or a quarter of all entries. */
#define CHANGES_MIN 4096u
/* More small segments than this are joined. */
#define SMALL_MAX 8u

/* ---- tombstones ---- */

/* Of the n oldest that are pending, takes out those of segments that are gone for good. Returns how
 * many of the n are left. */
static uint32_t prune_tombs(struct tsri_disk *d, uint32_t n)
{
    pthread_mutex_lock(&d->lock);
    uint32_t kept = 0, left = n;
    for (uint32_t i = 0; i < d->n_tombs; i++) {
        bool gone = i < n && d->tombs[i].unlinked;
        left -= gone;
        if (!gone) d->tombs[kept++] = d->tombs[i];
    }
    d->n_tombs = kept;
    pthread_mutex_unlock(&d->lock);
    return left;
}

int tsri_disk_bury(struct tsri_disk *d)
{
    pthread_mutex_lock(&d->lock);
    uint32_t n = d->n_tombs;
    pthread_mutex_unlock(&d->lock);
    if (n == 0) return 0;
    int err = tsri_disk_sync(d);
    return err ? err : tsri_tombs_flush(d, d->upkeep_lane, prune_tombs(d, n));
}

/* Room for n more, if there is memory: without it the checkpoint must tell. */
static int bury_if_many(struct tsri_disk *d, uint32_t n)
{
    pthread_mutex_lock(&d->lock);
    bool many = TSRI_TOMBS_PENDING - d->n_tombs < n;
    pthread_mutex_unlock(&d->lock);
    return many ? tsri_disk_bury(d) : 0;
}

static bool segment_exists(struct tsri_disk *d, uint64_t id)
{
    pthread_mutex_lock(&d->lock);
    struct tsri_segment *s = d->segments;
    while (s && s->id > id)
        s = s->next;
    bool exists = s && s->id == id;
    pthread_mutex_unlock(&d->lock);
    return exists;
}

/* Of one page. Those that speak of its own segment go with it; those that speak of another that is
 * doomed too are kept, since a crash may keep that one. */
static int carry_page(struct tsri_disk *d, uint64_t self, const uint8_t *page,
                      const struct tsri_record *r)
{
    struct tsri_tomb tombs[TSRI_TOMBS_MAX];
    if (tsri_tombs_read(page, r, tombs) != 0) return 0;
    int err = bury_if_many(d, TSRI_TOMBS_MAX);
    if (err) return err;
    for (uint32_t i = 0; i < r->n_tombs; i++) {
        if (tombs[i].segment == self || !segment_exists(d, tombs[i].segment)) continue;
        pthread_mutex_lock(&d->lock);
        tsri_tomb_add(d, &tombs[i].key, tombs[i].seq, tombs[i].segment);
        pthread_mutex_unlock(&d->lock);
    }
    return 0;
}

/* 1 when one of the tombstones of a page means something. */
static int weigh_page(struct tsri_disk *d, uint64_t self, const uint8_t *page,
                      const struct tsri_record *r)
{
    struct tsri_tomb tombs[TSRI_TOMBS_MAX];
    if (tsri_tombs_read(page, r, tombs) != 0) return 0;
    for (uint32_t i = 0; i < r->n_tombs; i++)
        if (tombs[i].segment != self && segment_exists(d, tombs[i].segment)) return 1;
    return 0;
}

typedef int (*page_fn)(struct tsri_disk *d, uint64_t self, const uint8_t *page,
                       const struct tsri_record *r);

/* Walks the headers of a doomed segment and calls fn for each page of tombstones, until it returns
 * something. A segment that cannot be read stays, until the next open at least: what it says of
 * others would be forgotten. */
static int each_page(struct tsri_disk *d, struct tsri_segment *s, page_fn fn)
{
    if (!s->n_tombs) return 0;
    struct tsri_disk_lane *lane = d->upkeep_lane;
    int result = tsri_region_need(&lane->headers[1], TSRI_PAGE_BYTES);
    if (!result) result = tsri_segment_ref(d, s);
    if (result) return result;
    uint8_t *page = lane->headers[1].data;
    struct tsri_record r = {.bytes = 0};
    for (uint64_t at = TSRI_PAGE_BYTES, next; at < s->tail && !result; at = next) {
        int error = tsri_lane_move(d, lane, s, false, page, TSRI_PAGE_BYTES, at);
        bool damaged = !error && tsri_record_read(page, s->nonce, at, s->tail, &r) != 0;
        next = at + r.bytes;
        if (damaged) error = tsri_segment_search(d, lane, s, at + TSRI_PAGE_BYTES, &next);
        if (damaged && !error) continue;
        if (error) {
            pthread_mutex_lock(&d->lock);
            s->unread = true;
            s->doomed = false;
            pthread_mutex_unlock(&d->lock);
            break;
        }
        if (r.kind == TSRI_RECORD_TOMBS) result = fn(d, s->id, page, &r);
    }
    tsri_segment_unref(d, s);
    return result;
}

/* ---- removing what holds nothing ---- */

/* The doomed segment with the highest id below `before`. It stays: only upkeep removes segments. */
static struct tsri_segment *next_doomed(struct tsri_disk *d, uint64_t before)
{
    pthread_mutex_lock(&d->lock);
    struct tsri_segment *s = d->segments;
    while (s && (s->id >= before || !s->doomed))
        s = s->next;
    pthread_mutex_unlock(&d->lock);
    return s;
}

/* Is there anything to gain where tombstones that mean something must be written again? */
static bool is_worth_it(const struct tsri_segment *s)
{
    uint64_t n_pages = 2 + s->n_tombs / TSRI_TOMBS_MAX;
    return !s->n_tombs || s->capacity > 2 * n_pages * TSRI_PAGE_BYTES;
}

/* Of the doomed ones, those with little but tombstones stay while these mean something: to write
 * them again would gain nothing, for ever. Many of them are joined. Returns how many stay. */
static uint32_t spare_some(struct tsri_disk *d)
{
    uint32_t n_little = 0, n_spared = 0;
    pthread_mutex_lock(&d->lock);
    uint64_t n_removed = d->n_removed;
    for (const struct tsri_segment *s = d->segments; s; s = s->next)
        n_little += s->doomed && !is_worth_it(s);
    pthread_mutex_unlock(&d->lock);
    if (n_little > SMALL_MAX) return 0;
    struct tsri_segment *s;
    for (uint64_t id = UINT64_MAX; (s = next_doomed(d, id)); id = s->id) {
        if (is_worth_it(s)) continue;
        /* They can have lost their meaning only since another segment went. */
        bool means = s->weighed == n_removed + 1 || each_page(d, s, weigh_page) != 0;
        pthread_mutex_lock(&d->lock);
        if (means) s->weighed = n_removed + 1;
        if (means || !s->doomed) n_spared++;
        if (means) s->doomed = false;
        pthread_mutex_unlock(&d->lock);
    }
    return n_spared;
}

/* Removes the segments that hold nothing; those with tombstones only when told. Without them
 * nothing needs to be written before, so that it works, and gives bytes back, on a full file
 * system: the tombstones that speak of such a segment are pending until its removal is synced. */
static int remove_some(struct tsri_disk *d, bool with_tombs)
{
    uint32_t n = 0;
    pthread_mutex_lock(&d->lock);
    for (struct tsri_segment *s = d->segments; s; s = s->next) {
        s->doomed = s->state == TSRI_SEGMENT_SEALED && !s->unread && s->n_live == 0 &&
                    (with_tombs || !s->n_tombs);
        n += s->doomed;
    }
    pthread_mutex_unlock(&d->lock);
    if (n && with_tombs) n -= spare_some(d);
    if (!n) return 0;
    int err = 0;
    struct tsri_segment *s;
    for (uint64_t id = UINT64_MAX; !err && (s = next_doomed(d, id)); id = s->id)
        err = each_page(d, s, carry_page);
    if (!err && with_tombs) err = tsri_disk_bury(d);
    if (!err) err = tsri_disk_sync(d);
    int n_gone = 0;
    for (uint64_t id = UINT64_MAX; !err && (s = next_doomed(d, id)); n_gone += !err) {
        id = s->id;
        err = tsri_segment_unlink(d, s);
    }
    return err ? err : n_gone;
}

/* Returns how many segments went. Those that tombstones speak of go first, for good, so that the
 * tombstones need not be carried on. */
static int remove_dead(struct tsri_disk *d)
{
    int n = remove_some(d, false);
    int more = n < 0 ? n : remove_some(d, true);
    return more < 0 ? more : n + more;
}

/* ---- copying what lives ---- */

/* One entry's way to its new place. */
struct move {
    uint32_t slot, page; /* where it was */
    uint64_t seq, at;    /* where its copy stands */
    struct tsri_layout layout;
    struct tsr_key key;
};

/* The emptying of one segment into another. Entries stay where they are until all copies are on
 * disk: a failure on the way loses nothing. */
struct emptying {
    struct tsri_disk *d;
    struct tsri_segment *from, *to;
    uint64_t to_at; /* where the next copy goes */
    struct move *moves;
    uint32_t n_moves;
};

/* Reads and proves the header of an entry. */
static int read_header(struct emptying *x, const struct tsri_disk_slot *e,
                       const struct tsri_layout *l, struct tsri_record *r)
{
    struct tsri_disk *d = x->d;
    uint64_t at = (uint64_t)e->page * TSRI_PAGE_BYTES;
    int err = tsri_region_need(&d->upkeep_lane->headers[0], l->header_bytes);
    if (err) return err;
    uint8_t *header = d->upkeep_lane->headers[0].data;
    int error = tsri_lane_move(d, d->upkeep_lane, x->from, false, header, l->header_bytes, at);
    if (error) return tsri_disk_fail(d, error, "cannot read", "an entry");
    err = tsri_record_read(header, x->from->nonce, at, UINT64_MAX, r);
    if (err) return err;
    if (r->kind != TSRI_RECORD_ENTRY || r->seq != e->seq || !tsri_head_same(&r->head, &e->head))
        return tsri_fail(TSR_ECORRUPT, "disk: found another record");
    return tsri_header_check(header, l, r);
}

/* One run of cells of at most COPY_BYTES, or one cell; sets *next. Returns what is wrong with the
 * entry; *write_error is the errno of the writer. */
static int copy_cells(struct emptying *x, const struct tsri_disk_slot *e,
                      const struct tsri_layout *l, uint64_t *next, int *write_error)
{
    struct tsri_disk *d = x->d;
    uint64_t n = tsri_layout_cells(l, &e->head), first = *next, end = first, bytes = 0;
    struct tsri_disk_cell begin = tsri_layout_cell(l, &e->head, first);
    for (; end < n; end++) {
        struct tsri_disk_cell cell = tsri_layout_cell(l, &e->head, end);
        if (end > first && bytes + cell.stride > COPY_BYTES) break;
        bytes += cell.stride;
    }
    int err = tsri_region_need(&d->upkeep_lane->pieces[0].bounce, bytes);
    if (err) return err;
    uint8_t *buf = d->upkeep_lane->pieces[0].bounce.data;
    int error = tsri_lane_move(d, d->upkeep_lane, x->from, false, buf, bytes,
                               (uint64_t)e->page * TSRI_PAGE_BYTES + begin.at);
    if (error) return tsri_disk_fail(d, error, "cannot read", "an entry");
    const uint64_t *sums = tsri_header_sums(d->upkeep_lane->headers[0].data, l);
    for (uint64_t i = first; i < end; i++) {
        struct tsri_disk_cell cell = tsri_layout_cell(l, &e->head, i);
        if (tsri_sum(buf + (cell.at - begin.at), cell.bytes) != sums[i])
            return tsri_fail(TSR_ECORRUPT, "disk: a cell has a wrong checksum");
    }
    *write_error = tsri_lane_move(d, d->upkeep_lane, x->to, true, buf, bytes, x->to_at + begin.at);
    *next = end;
    return 0;
}

/* Copies one entry behind the last copy. */
static int copy_entry(struct emptying *x, const struct tsri_disk_slot *e,
                      const struct tsri_layout *l, int *write_error)
{
    struct tsri_disk *d = x->d;
    struct tsri_record r;
    int err = read_header(x, e, l, &r);
    uint64_t n = tsri_layout_cells(l, &e->head);
    for (uint64_t cell = 0; cell < n && !err && !*write_error;)
        err = copy_cells(x, e, l, &cell, write_error);
    if (err || *write_error) return err;
    r.nonce = x->to->nonce;
    r.offset = x->to_at;
    r.n_copies++;
    uint8_t *header = d->upkeep_lane->headers[0].data;
    tsri_header_seal(header, l, &r);
    *write_error =
        tsri_lane_move(d, d->upkeep_lane, x->to, true, header, l->header_bytes, x->to_at);
    return 0;
}

/* What fails its checks is dropped: it would keep its segment for ever. What could not be read may
 * be readable one day: it stays, and its segment is left alone until the next open. */
static void give_up_entry(struct emptying *x, const struct move *m, int err)
{
    struct tsri_disk *d = x->d;
    bool drop = err == TSR_ECORRUPT;
    pthread_mutex_lock(&d->lock);
    struct tsri_disk_slot *e = tsri_disk_index_at(&d->index, m->slot);
    x->from->unread |= !drop;
    if (drop && e->segment == x->from && e->page == m->page && e->seq == m->seq)
        tsri_disk_forget(d, m->slot);
    pthread_mutex_unlock(&d->lock);
    if (drop) atomic_fetch_add(&d->corrupt, 1);
    tsri_log(TSR_LOG_WARN, "disk: %s: an entry is %s: %s", d->path, drop ? "dropped" : "not moved",
             tsr_errmsg());
}

/* Copies everything that lives in x->from now; x->moves are then those that were. */
static int copy_all(struct emptying *x)
{
    struct tsri_disk *d = x->d;
    uint32_t n = 0;
    int result = 0;
    for (uint32_t i = 0; i < x->n_moves; i++) {
        struct move m = x->moves[i];
        pthread_mutex_lock(&d->lock);
        struct tsri_disk_slot e = *tsri_disk_index_at(&d->index, m.slot);
        pthread_mutex_unlock(&d->lock);
        if (e.segment != x->from || e.page != m.page || e.seq != m.seq) continue;
        tsri_layout_init(&m.layout, &e.head);
        m.key = e.head.key;
        m.at = x->to_at;
        int write_error = 0, err = copy_entry(x, &e, &m.layout, &write_error);
        if (write_error) err = tsri_disk_fail(d, write_error, "cannot write", "an entry");
        if (write_error || err == TSR_ENOMEM) {
            result = err;
            break;
        }
        if (err) {
            give_up_entry(x, &m, err);
            continue;
        }
        x->to_at += m.layout.record_bytes;
        x->moves[n++] = m;
    }
    x->n_moves = n;
    return result;
}

/* One copy is on disk: the entry now lives there, unless it was dropped or put again meanwhile. Or
 * there was a failure, and the copy is dead. Of the two records one dies either way, and gets its
 * tombstone: while the old segment stays, what is dropped in the new one would come back from it.
 * The lock is held. */
static void settle_move(struct emptying *x, const struct move *m, bool failed)
{
    struct tsri_disk *d = x->d;
    const struct tsri_disk_slot *e = tsri_disk_index_at(&d->index, m->slot);
    bool same = e->segment == x->from && e->page == m->page && e->seq == m->seq;
    if (failed || !same) {
        tsri_tomb_add(d, &m->key, m->seq, x->to->id);
        return;
    }
    tsri_tomb_add(d, &m->key, m->seq, x->from->id);
    tsri_disk_unlink(d, m->slot);
    tsri_disk_link(d, m->slot, x->to, m->at, m->layout.record_bytes);
}

#define SETTLE_AT_ONCE 256u

/* Without room for more tombstones the list overflows, and the checkpoint tells instead. */
static void settle_moves(struct emptying *x, bool failed)
{
    struct tsri_disk *d = x->d;
    for (uint32_t i = 0; i < x->n_moves;) {
        if (bury_if_many(d, SETTLE_AT_ONCE) != 0)
            tsri_log(TSR_LOG_WARN, "disk: %s: compaction: %s", d->path, tsr_errmsg());
        pthread_mutex_lock(&d->lock);
        for (uint32_t k = 0; k < SETTLE_AT_ONCE && i < x->n_moves; k++)
            settle_move(x, &x->moves[i++], failed);
        pthread_mutex_unlock(&d->lock);
    }
}

/* The slots of a segment and the bytes they need. */
static int list_moves(struct emptying *x, uint64_t *bytes)
{
    struct tsri_disk *d = x->d;
    pthread_mutex_lock(&d->lock);
    uint32_t n = x->from->n_live;
    *bytes = x->from->live_bytes;
    pthread_mutex_unlock(&d->lock);
    x->moves = tsri_alloc(n, sizeof x->moves[0]);
    if (!x->moves) return TSR_ENOMEM;
    pthread_mutex_lock(&d->lock);
    for (uint32_t slot = x->from->first; slot != TSRI_NO_SLOT && x->n_moves < n;) {
        const struct tsri_disk_slot *e = tsri_disk_index_at(&d->index, slot);
        x->moves[x->n_moves++] = (struct move){.slot = slot, .page = e->page, .seq = e->seq};
        slot = e->next;
    }
    pthread_mutex_unlock(&d->lock);
    return 0;
}

static int move_all(struct emptying *x)
{
    struct tsri_disk *d = x->d;
    uint64_t bytes;
    int err = list_moves(x, &bytes);
    if (err || !x->n_moves) return err;
    err = tsri_segment_take(d, bytes, true, 0, &x->to);
    if (err) return err;
    x->to_at = x->to->tail;
    err = copy_all(x);
    bool written = !err;
    if (written && d->io.fdatasync(d->io.arg, x->to->fd) != 0)
        err = tsri_disk_fail(d, errno, "cannot sync", "a segment");
    /* What was acknowledged must not depend on a file whose name is not on disk. */
    if (!err) err = tsri_disk_sync_names(d);
    pthread_mutex_lock(&d->lock);
    if (!err)
        x->to->tail = x->to->synced = x->to_at;
    else if (written)
        tsri_segment_doubt(d, x->to);
    else
        x->to->failed = true; /* cut before the copies */
    pthread_mutex_unlock(&d->lock);
    tsri_segment_give(d, x->to); /* the tombstones may need its room */
    settle_moves(x, err != 0);
    return err;
}

static int empty_segment(struct tsri_disk *d, struct tsri_segment *s)
{
    int err = tsri_segment_ref(d, s);
    if (err == TSR_ENOENT) {
        /* Somebody removed the file: what it held is gone. */
        pthread_mutex_lock(&d->lock);
        while (s->first != TSRI_NO_SLOT)
            tsri_disk_forget(d, s->first);
        pthread_mutex_unlock(&d->lock);
        return 0;
    }
    if (err) return err;
    struct emptying x = {.d = d, .from = s};
    err = move_all(&x);
    tsri_free(x.moves);
    tsri_segment_unref(d, s);
    return err;
}

static uint64_t dead_bytes(const struct tsri_segment *s)
{
    uint64_t held = TSRI_PAGE_BYTES + s->live_bytes;
    return s->capacity > held ? s->capacity - held : 0;
}

/* The segment with most to gain, if it is dead by at least one part in `parts`; or, when there are
 * many small ones, the smallest. */
static struct tsri_segment *choose_victim(struct tsri_disk *d, uint64_t parts)
{
    struct tsri_segment *best = NULL, *smallest = NULL;
    uint32_t n_small = 0;
    pthread_mutex_lock(&d->lock);
    for (struct tsri_segment *s = d->segments; s; s = s->next) {
        if (s->state != TSRI_SEGMENT_SEALED || s->unread || s->n_live == 0) continue;
        /* By the share of bytes that would come back, in pages to stay within 64 bits. */
        uint64_t dead = dead_bytes(s) / TSRI_PAGE_BYTES, all = s->capacity / TSRI_PAGE_BYTES;
        bool better = !best || dead * (best->capacity / TSRI_PAGE_BYTES) >
                                   dead_bytes(best) / TSRI_PAGE_BYTES * all;
        if (dead * parts >= all && better) best = s;
        if (s->capacity < d->segment_bytes / 4) {
            n_small++;
            if (!smallest || s->capacity < smallest->capacity) smallest = s;
        }
    }
    pthread_mutex_unlock(&d->lock);
    return best ? best : n_small > SMALL_MAX ? smallest : NULL;
}

/* ---- the checkpoint ---- */

/* The bytes of a checkpoint of this moment. The lock is held. */
static uint8_t *build_checkpoint(struct tsri_disk *d, size_t *bytes)
{
    struct tsri_checkpoint c = {.next_seq = d->next_seq,
                                .next_segment = d->next_segment,
                                .n_segments = d->n_segments,
                                .n_entries = d->index.n_entries};
    for (uint32_t k = 0; k < d->index.n_slots; k++) {
        const struct tsri_disk_slot *e = tsri_disk_index_at(&d->index, k);
        if (e->words) c.n_words += tsri_disk_n_words(e->head.n_tokens, e->n_windows, e->shingled);
    }
    *bytes = tsri_checkpoint_bytes(c.n_segments, c.n_entries, c.n_words);
    uint8_t *buf = tsri_alloc(*bytes, 1);
    if (!buf) return NULL;
    uint32_t i = c.n_segments;
    uint64_t n = 0, n_words = 0;
    for (struct tsri_segment *s = d->segments; s; s = s->next) {
        struct tsri_checkpoint_segment cs = {s->id, s->nonce, s->tail, s->n_tombs};
        s->number = --i;
        tsri_checkpoint_put_segment(buf, i, &cs);
    }
    for (uint32_t k = 0; k < TSRI_COUNT(d->index.order); k++)
        for (uint32_t slot = d->index.order[k].newest; slot != TSRI_NO_SLOT;) {
            const struct tsri_disk_slot *e = tsri_disk_index_at(&d->index, slot);
            struct tsri_checkpoint_entry ce = {e->segment->number,
                                               e->page,
                                               e->n_pages,
                                               e->seq,
                                               e->head,
                                               .n_windows = e->n_windows,
                                               .shingled = e->shingled};
            tsri_checkpoint_put_entry(buf, c.n_segments, n++, &ce);
            uint32_t more =
                e->words ? tsri_disk_n_words(e->head.n_tokens, e->n_windows, e->shingled) : 0;
            if (more) tsri_checkpoint_put_words(buf, &c, n_words, e->words, more);
            n_words += more;
            slot = e->older;
        }
    TSR_ASSERT(n == c.n_entries && n_words == c.n_words && i == 0);
    tsri_checkpoint_seal(buf, &c);
    return buf;
}

static int write_checkpoint(struct tsri_disk *d, const uint8_t *buf, size_t bytes)
{
    const struct tsri_fileio *io = &d->io;
    /* A new file: what an older run or somebody else left there may be a link. */
    if (io->unlink(io->arg, d->dir_fd, "checkpoint.tmp") != 0 && errno != ENOENT) return errno;
    int fd = io->open(io->arg, d->dir_fd, "checkpoint.tmp", O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd < 0) return errno;
    int error = tsri_fileio_write(io, fd, buf, bytes, 0);
    if (!error && io->fdatasync(io->arg, fd) != 0) error = errno;
    io->close(io->arg, fd);
    if (!error && io->rename(io->arg, d->dir_fd, "checkpoint.tmp", "checkpoint") != 0)
        error = errno;
    if (error) { /* on a full file system its bytes are wanted */
        io->unlink(io->arg, d->dir_fd, "checkpoint.tmp");
        return error;
    }
    if (io->fsync(io->arg, d->dir_fd) != 0) return errno;
    atomic_fetch_add(&d->written_bytes, bytes);
    return 0;
}

/* The bytes are made first and everything they speak of is synced then: what is put after that
 * moment is after `covered` and is walked over, so a record that it replaces is not forgotten
 * before it is safe itself. And segments that were removed must be gone for good before a
 * checkpoint covers the tombstones that speak of them: one that came back would be walked, and its
 * dropped entries with it. */
static int save_checkpoint(struct tsri_disk *d)
{
    size_t bytes;
    pthread_mutex_lock(&d->lock);
    uint8_t *buf = build_checkpoint(d, &bytes);
    uint64_t n_changes = d->n_changes;
    bool lost = d->tombs_lost, reordered = d->reordered;
    if (buf) d->tombs_lost = d->reordered = false; /* what comes from now on is not told here */
    pthread_mutex_unlock(&d->lock);
    if (!buf) return TSR_ENOMEM;
    int err = tsri_disk_sync(d);
    int error = err ? 0 : write_checkpoint(d, buf, bytes);
    tsri_free(buf);
    pthread_mutex_lock(&d->lock);
    if (err || error) {
        d->tombs_lost |= lost;
        d->reordered |= reordered;
    } else {
        d->n_changes -= n_changes;
    }
    pthread_mutex_unlock(&d->lock);
    return error ? tsri_disk_fail(d, error, "cannot write", "checkpoint") : err;
}

static bool checkpoint_is_due(struct tsri_disk *d, bool closing)
{
    pthread_mutex_lock(&d->lock);
    uint64_t most = d->index.n_entries / 4;
    if (most < CHANGES_MIN) most = CHANGES_MIN;
    bool due = d->tombs_lost || d->n_changes > most || (closing && (d->n_changes || d->reordered));
    pthread_mutex_unlock(&d->lock);
    return due;
}

/* ---- what others call ---- */

/* Segments that wait, open, for entries: what they have reserved goes back. */
static bool seal_idle(struct tsri_disk *d)
{
    for (bool sealed = false;;) {
        pthread_mutex_lock(&d->lock);
        struct tsri_segment *s = d->segments;
        while (s && s->state != TSRI_SEGMENT_OPEN)
            s = s->next;
        pthread_mutex_unlock(&d->lock);
        if (!s) return sealed;
        tsri_segment_seal(d, s);
        sealed = true;
    }
}

/* What a flush does beyond its duty. A failure costs room, not entries: it is counted, and tried
 * again next time. */
static void tidy(struct tsri_disk *d, bool closing)
{
    int n = remove_dead(d);
    struct tsri_segment *victim = n < 0 ? NULL : choose_victim(d, 2);
    if (victim) {
        n = empty_segment(d, victim);
        if (!n) n = remove_dead(d);
    }
    if (closing && n >= 0 && seal_idle(d)) n = remove_dead(d);
    if (closing) seal_idle(d);
    if (n < 0) tsri_log(TSR_LOG_WARN, "disk: %s: compaction: %s", d->path, tsr_errmsg());
}

int tsri_disk_upkeep(struct tsri_disk *d, bool closing)
{
    pthread_mutex_lock(&d->upkeep);
    int err = tsri_disk_sync(d);
    /* Before tombstones are written: on a full file system this is where they find room. */
    if (!err && remove_some(d, false) < 0)
        tsri_log(TSR_LOG_WARN, "disk: %s: compaction: %s", d->path, tsr_errmsg());
    int e = tsri_disk_bury(d);
    if (!err) err = e;
    e = tsri_disk_sync(d);
    if (!err) err = e;
    if (!err) tidy(d, closing);
    if (!err && checkpoint_is_due(d, closing)) {
        pthread_mutex_lock(&d->lock);
        bool must = d->tombs_lost;
        pthread_mutex_unlock(&d->lock);
        e = save_checkpoint(d);
        if (must) err = e;
    }
    pthread_mutex_lock(&d->lock);
    uint64_t n_doubted = d->n_doubted;
    d->n_doubted = 0;
    pthread_mutex_unlock(&d->lock);
    if (!err && n_doubted)
        err = tsri_fail(TSR_EIO, "disk: %s: sync failed, %llu entries are lost", d->path,
                        (unsigned long long)n_doubted);
    pthread_mutex_unlock(&d->upkeep);
    return err;
}

int tsri_disk_make_room(struct tsri_disk *d)
{
    pthread_mutex_lock(&d->upkeep);
    int n = remove_dead(d);
    if (n == 0 && seal_idle(d)) n = 1;
    if (n == 0) {
        struct tsri_segment *victim = choose_victim(d, 16);
        if (victim) {
            int err = empty_segment(d, victim);
            n = err ? err : remove_dead(d);
            if (n == TSR_EFULL) n = 0;
        }
    }
    pthread_mutex_unlock(&d->upkeep);
    return n > 0 ? 1 : n;
}
