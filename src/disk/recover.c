/* recover.c - what open does: reads the checkpoint, lists the segments, and walks the headers of
 * every record the checkpoint does not tell of, many segments at once. Where something is no record
 * (torn by a crash, damaged, or never written) the walk goes on at the next page that is one.
 * Nothing is changed on disk, so a failed or interrupted open costs nothing.
 *
 * Of several records under one key without a tombstone the oldest counts: that with the lowest
 * sequence number, of equal ones that which was copied least. The others are dead, and get a
 * tombstone. The oldest is whole: a record is buried only when what takes its place is synced. */
#include "disk/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* A reader may find that a segment it has listed was compacted away meanwhile, and starts again. */
#define TRIES_MAX 8
/* Entries of the checkpoint whose place in the index is fetched ahead: a third of the time of open
 * went to waiting for it (bench_open). */
#define AHEAD 16u
/* A checkpoint up to this size is read without a look at how large the store is. */
#define CHECKPOINT_BYTES_ANY ((uint64_t)1 << 20)

/* A record that another one under its key has beaten, for now: that one may prove to be dead. */
struct loser {
    struct tsri_record record;
    struct tsri_segment *segment;
};

struct recovery {
    struct tsri_disk *d;
    struct tsri_disk_lane *lane;
    struct tsri_region file; /* of the checkpoint */
    uint8_t *checkpoint;     /* NULL: none that can be used */
    struct tsri_checkpoint c;
    uint64_t *ids; /* of files named like segments, ascending */
    size_t n_ids, ids_max;
    struct tsri_tomb *tombs;
    size_t n_tombs, tombs_max;
    struct loser *losers;
    size_t n_losers, losers_max;
    uint64_t n_walked;
    bool walking; /* behind what the checkpoint tells */
    bool vanished;
};

/* ---- the checkpoint ---- */

/* The most bytes that a checkpoint of what stands in the directory can have: an entry takes a page
 * of its segment at least, and 8 bytes for each 32 of its tokens, which take 128 there. Together
 * less than an eighth. A checkpoint is read whole, so nobody may choose its size alone. */
static uint64_t checkpoint_bytes_max(struct recovery *r)
{
    struct tsri_disk *d = r->d;
    int fd = openat(d->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir && fd >= 0) close(fd);
    uint64_t bytes = 0;
    struct stat st;
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (tsri_segment_id(e->d_name) &&
            fstatat(d->dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_size;
    if (dir) closedir(dir);
    return bytes / 8;
}

static int read_checkpoint_file(struct recovery *r, int fd, const struct stat *st)
{
    struct tsri_disk *d = r->d;
    uint8_t head[TSRI_CHECKPOINT_HEAD_BYTES];
    uint64_t bytes = st->st_size > 0 ? (uint64_t)st->st_size : 0;
    if (bytes < sizeof head)
        return tsri_fail(TSR_ECORRUPT, "checkpoint has %llu bytes", (unsigned long long)bytes);
    int error = tsri_fileio_read(&d->io, fd, head, sizeof head, 0);
    if (error) return tsri_disk_fail(d, error, "cannot read", "checkpoint");
    int err = tsri_checkpoint_read_head(head, bytes, &r->c);
    if (err) return err;
    if (bytes > CHECKPOINT_BYTES_ANY && bytes > checkpoint_bytes_max(r))
        return tsri_fail(TSR_ECORRUPT, "checkpoint has %llu bytes, more than the segments allow",
                         (unsigned long long)bytes);
    err = tsri_region_init(&r->file, (size_t)bytes);
    if (err) return err;
    tsri_region_take(&r->file, (size_t)bytes);
    r->checkpoint = r->file.data;
    error = tsri_fileio_read(&d->io, fd, r->checkpoint, (size_t)bytes, 0);
    if (error) return tsri_disk_fail(d, error, "cannot read", "checkpoint");
    return tsri_checkpoint_read(r->checkpoint, (size_t)bytes, &r->c);
}

/* A checkpoint that is missing or damaged, or is no file of ours, is done without; one of another
 * version is not ours to overwrite. */
static int load_checkpoint(struct recovery *r)
{
    struct tsri_disk *d = r->d;
    struct stat st;
    int fd, err = tsri_disk_open_ours(d, "checkpoint", O_RDONLY, &st, &fd);
    if (err == TSR_ENOENT) return 0;
    if (err && err != TSR_EPERM) return err;
    if (!err) {
        err = read_checkpoint_file(r, fd, &st);
        d->io.close(d->io.arg, fd);
    }
    if (!err) return 0;
    tsri_region_fini(&r->file);
    r->checkpoint = NULL;
    memset(&r->c, 0, sizeof r->c);
    if (err == TSR_EVERSION || err == TSR_ENOMEM) return err;
    d->n_ignored++;
    tsri_log(TSR_LOG_WARN, "disk: %s: ignored the checkpoint: %s", d->path, tsr_errmsg());
    return 0;
}

/* ---- segments ---- */

static int add_id(struct recovery *r, uint64_t id)
{
    if (r->n_ids == r->ids_max) {
        size_t max = r->ids_max ? 2 * r->ids_max : 256;
        uint64_t *ids = tsri_alloc(max, sizeof ids[0]);
        if (!ids) return TSR_ENOMEM;
        if (r->n_ids) memcpy(ids, r->ids, r->n_ids * sizeof ids[0]);
        tsri_free(r->ids);
        r->ids = ids;
        r->ids_max = max;
    }
    r->ids[r->n_ids++] = id;
    return 0;
}

static int compare_ids(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

/* Files of ours that a crash left half made go; all others are left alone. */
static bool is_leftover(const char *name)
{
    size_t n = strlen(name);
    return n > 4 && strcmp(name + n - 4, ".tmp") == 0 &&
           (strncmp(name, "new-", 4) == 0 || strcmp(name, "checkpoint.tmp") == 0);
}

static int list_directory(struct recovery *r)
{
    struct tsri_disk *d = r->d;
    int fd = openat(d->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        int err = tsri_disk_fail(d, errno, "cannot list", "the directory");
        if (fd >= 0) close(fd);
        return err;
    }
    int err = 0;
    for (struct dirent *e; !err && (e = readdir(dir));) {
        uint64_t id = tsri_segment_id(e->d_name);
        if (id) err = add_id(r, id);
        if (!d->read_only && is_leftover(e->d_name)) d->io.unlink(d->io.arg, d->dir_fd, e->d_name);
    }
    closedir(dir);
    if (r->n_ids) qsort(r->ids, r->n_ids, sizeof r->ids[0], compare_ids);
    return err;
}

/* Reads the first page of a segment whose file is open. */
static int check_segment(struct recovery *r, struct tsri_segment *s)
{
    struct tsri_disk *d = r->d;
    struct tsri_segment_head head;
    int err = tsri_region_need(&r->lane->headers[0], TSRI_PAGE_BYTES);
    if (err) return err;
    uint8_t *page = r->lane->headers[0].data;
    int error = tsri_lane_move(d, r->lane, s, false, page, TSRI_PAGE_BYTES, 0);
    if (error == ENODATA) return tsri_fail(TSR_ECORRUPT, "shorter than a page");
    if (error) return tsri_disk_fail(d, error, "cannot read", "a segment");
    err = tsri_segment_head_read(page, &head);
    if (err) return err;
    if (head.id != s->id) return tsri_fail(TSR_ECORRUPT, "its name does not match its id");
    if (s->nonce && s->nonce != head.nonce) { /* not the one that the checkpoint means */
        s->tail = TSRI_PAGE_BYTES;
        s->n_tombs = 0;
    }
    s->nonce = head.nonce;
    return 0;
}

static void drop_segment(struct tsri_disk *d, struct tsri_segment *s)
{
    struct tsri_segment **at = &d->segments;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    d->n_segments--;
    if (s->fd >= 0) {
        d->io.close(d->io.arg, s->fd);
        d->n_fds--;
    }
    tsri_free(s);
}

/* Takes a file into the list of segments, with tail = where the walk begins. `known` is what the
 * checkpoint says of it. A segment it covers to the end is not even opened: its records prove
 * themselves when they are read. */
static int load_segment(struct recovery *r, uint64_t id,
                        const struct tsri_checkpoint_segment *known)
{
    struct tsri_disk *d = r->d;
    char name[TSRI_SEGMENT_NAME_BYTES];
    struct stat st;
    tsri_segment_name(id, name);
    if (fstatat(d->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        r->vanished = true;
        return 0;
    }
    struct tsri_segment *s = tsri_segment_new(id, known ? known->nonce : 0);
    if (!s) return TSR_ENOMEM;
    tsri_segment_insert(d, s);
    uint64_t size = st.st_size > 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    bool ours = tsri_file_is_ours(&st);
    if (known) {
        s->tail = known->covered;
        s->n_tombs = known->n_tombs;
    }
    int err = 0;
    if (!ours) {
        err = tsri_fail(TSR_EPERM, "it belongs to another user");
    } else if (size < TSRI_PAGE_BYTES) {
        err = tsri_fail(TSR_ECORRUPT, "shorter than a page");
    } else if (!known || known->covered != size) {
        err = tsri_segment_ref(d, s);
        if (!err) {
            err = check_segment(r, s);
            tsri_segment_unref(d, s);
        }
    }
    if (err == TSR_EVERSION || err == TSR_ENOMEM) return err;
    if (err == TSR_EIO && known) {
        s->unread = true; /* its entries prove themselves */
        err = 0;
    }
    if (err) {
        r->vanished |= err == TSR_ENOENT;
        d->n_ignored++;
        tsri_log(TSR_LOG_WARN, "disk: %s/%s is ignored: %s", d->path, name, tsr_errmsg());
        drop_segment(d, s);
        return 0;
    }
    s->capacity = size;
    s->synced = s->tail;
    d->bytes_alloc += size;
    return 0;
}

static int load_segments(struct recovery *r)
{
    uint32_t k = 0; /* segments of a checkpoint are ascending too */
    for (size_t i = 0; i < r->n_ids; i++) {
        struct tsri_checkpoint_segment known = {0};
        for (; k < r->c.n_segments; k++) {
            tsri_checkpoint_get_segment(r->checkpoint, k, &known);
            if (known.id >= r->ids[i]) break;
        }
        bool is_known = k < r->c.n_segments && known.id == r->ids[i] &&
                        known.covered >= TSRI_PAGE_BYTES && known.covered % TSRI_PAGE_BYTES == 0;
        int err = load_segment(r, r->ids[i], is_known ? &known : NULL);
        if (err) return err;
        if (r->d->next_segment <= r->ids[i]) r->d->next_segment = r->ids[i] + 1;
    }
    return 0;
}

/* ---- entries ---- */

/* A list with room for n more, or NULL. */
static void *list_need(void *list, size_t used, size_t *max, size_t n, size_t size)
{
    if (*max - used >= n) return list;
    size_t bigger = 2 * *max + 4 * n;
    void *copy = tsri_alloc(bigger, size);
    if (!copy) return NULL;
    if (used) memcpy(copy, list, used * size);
    tsri_free(list);
    *max = bigger;
    return copy;
}

static int add_loser(struct recovery *r, const struct tsri_record *record, struct tsri_segment *s)
{
    struct loser *list = list_need(r->losers, r->n_losers, &r->losers_max, 1, sizeof r->losers[0]);
    if (!list) return TSR_ENOMEM;
    r->losers = list;
    r->losers[r->n_losers++] = (struct loser){*record, s};
    return 0;
}

/* Gives a record its place in the index, or the list of losers to the one of two that is beaten. */
static int add_entry(struct recovery *r, const struct tsri_record *record, struct tsri_segment *s)
{
    struct tsri_disk *d = r->d;
    if (d->next_seq <= record->seq) d->next_seq = record->seq + 1;
    uint32_t slot = tsri_disk_index_find(&d->index, &record->head.key);
    struct tsri_disk_slot *e;
    if (slot != TSRI_NO_SLOT) {
        e = tsri_disk_index_at(&d->index, slot);
        /* A put or copy that a crash cut short may have its header and not its KV; what it was to
         * replace is still there, whole. */
        if (e->seq < record->seq || (e->seq == record->seq && e->n_copies <= record->n_copies))
            return add_loser(r, record, s);
        struct tsri_record beaten = {.offset = (uint64_t)e->page * TSRI_PAGE_BYTES,
                                     .bytes = (uint64_t)e->n_pages * TSRI_PAGE_BYTES,
                                     .seq = e->seq,
                                     .n_copies = e->n_copies,
                                     .head = e->head};
        int err = add_loser(r, &beaten, e->segment);
        if (err) return err;
        tsri_disk_unlink(d, slot);
        e->head = record->head;
    } else {
        slot = tsri_disk_index_add(&d->index, &record->head);
        if (slot == TSRI_NO_SLOT) return TSR_ENOMEM;
        e = tsri_disk_index_at(&d->index, slot);
        e->walked = r->walking;
        if (!r->walking)
            tsri_order_put_last(&d->index, slot); /* newest first, as it stands there */
    }
    e->seq = record->seq;
    e->n_copies = record->n_copies;
    tsri_disk_link(d, slot, s, record->offset, record->bytes);
    return 0;
}

/* Words of an entry stand in the index's region, at their number. */
static void give_words(struct tsri_disk *d, const struct tsri_checkpoint_entry *e, uint64_t first,
                       uint32_t n)
{
    uint64_t n_all = d->index.words.bytes / sizeof(uint64_t);
    if (n == 0 || first > n_all || n > n_all - first ||
        e->n_windows > e->head.n_tokens / TSRI_WINDOW)
        return;
    uint32_t slot = tsri_disk_index_find(&d->index, &e->head.key);
    if (slot == TSRI_NO_SLOT) return;
    struct tsri_disk_slot *s = tsri_disk_index_at(&d->index, slot);
    s->words = (uint64_t *)(void *)d->index.words.data + first;
    s->n_windows = e->n_windows;
    s->shingled = e->shingled;
}

static int add_checkpoint_entries(struct recovery *r)
{
    struct tsri_disk *d = r->d;
    const struct tsri_checkpoint *c = &r->c;
    struct tsri_segment **by_index = tsri_alloc(c->n_segments, sizeof by_index[0]);
    if (!by_index) return TSR_ENOMEM;
    struct tsri_segment *s = d->segments;
    for (uint32_t i = c->n_segments; i-- > 0;) { /* the list descends */
        struct tsri_checkpoint_segment known;
        tsri_checkpoint_get_segment(r->checkpoint, i, &known);
        while (s && s->id > known.id)
            s = s->next;
        if (s && s->id == known.id && s->nonce == known.nonce) by_index[i] = s;
    }
    int err = tsri_disk_index_reserve(&d->index, c->n_entries);
    size_t words_bytes = (size_t)c->n_words * sizeof(uint64_t);
    if (!err && words_bytes) err = tsri_region_init(&d->index.words, words_bytes);
    if (!err && words_bytes)
        memcpy(d->index.words.data, tsri_checkpoint_words(r->checkpoint, c), words_bytes);
    uint64_t word = 0;
    for (uint64_t i = 0; i < c->n_entries && !err; i++) {
        struct tsri_checkpoint_entry e;
        if (i + AHEAD < c->n_entries) {
            struct tsr_key key = tsri_checkpoint_get_key(r->checkpoint, c, i + AHEAD);
            tsri_disk_index_near(&d->index, &key);
        }
        bool valid = tsri_checkpoint_get_entry(r->checkpoint, c, i, &e);
        uint32_t n_words = tsri_disk_n_words(e.head.n_tokens, e.n_windows, e.shingled);
        uint64_t first_word = word;
        word += n_words;
        if (!valid || !by_index[e.segment]) continue;
        struct tsri_record record = {.offset = (uint64_t)e.page * TSRI_PAGE_BYTES,
                                     .bytes = (uint64_t)e.n_pages * TSRI_PAGE_BYTES,
                                     .seq = e.seq,
                                     .head = e.head};
        s = by_index[e.segment];
        if (record.offset < TSRI_PAGE_BYTES || record.offset + record.bytes > s->capacity) continue;
        err = add_entry(r, &record, s);
        if (!err) give_words(d, &e, first_word, n_words);
    }
    tsri_free(by_index);
    if (d->next_seq < c->next_seq) d->next_seq = c->next_seq;
    if (d->next_segment < c->next_segment) d->next_segment = c->next_segment;
    return err;
}

static int add_tombs(struct recovery *r, struct tsri_segment *s, const uint8_t *page,
                     const struct tsri_record *record)
{
    struct tsri_tomb *list =
        list_need(r->tombs, r->n_tombs, &r->tombs_max, TSRI_TOMBS_MAX, sizeof r->tombs[0]);
    if (!list) return TSR_ENOMEM;
    r->tombs = list;
    if (r->d->next_seq <= record->seq) r->d->next_seq = record->seq + 1;
    if (tsri_tombs_read(page, record, r->tombs + r->n_tombs) != 0) return 0;
    /* The id of a segment that is gone is not given again while a tombstone names it: a copy keeps
     * its number, and would be taken for the dead one. */
    for (uint32_t i = 0; i < record->n_tombs; i++) {
        uint64_t id = r->tombs[r->n_tombs + i].segment;
        if (id < TSRI_SEGMENT_ID_MAX && r->d->next_segment <= id) r->d->next_segment = id + 1;
    }
    r->n_tombs += record->n_tombs;
    s->n_tombs += record->n_tombs;
    return 0;
}

static int compare_tombs(const void *a, const void *b)
{
    const struct tsri_tomb *x = a, *y = b;
    if (x->segment != y->segment) return x->segment < y->segment ? -1 : 1;
    return x->seq < y->seq ? -1 : x->seq > y->seq;
}

static bool has_tomb(const struct recovery *r, uint64_t seq, uint64_t segment)
{
    struct tsri_tomb t = {.seq = seq, .segment = segment};
    return r->n_tombs && bsearch(&t, r->tombs, r->n_tombs, sizeof t, compare_tombs);
}

/* With every tombstone known: what is dead goes, and those that it had beaten get their chance. Of
 * records that are not dead and lose for good, a tombstone tells from now on: the one that beat
 * them may go one day, with its own. */
static int apply_tombs(struct recovery *r)
{
    struct tsri_disk *d = r->d;
    for (size_t i = 0; i < r->n_tombs; i++) {
        const struct tsri_tomb *t = &r->tombs[i];
        uint32_t slot = tsri_disk_index_find(&d->index, &t->key);
        if (slot == TSRI_NO_SLOT) continue;
        const struct tsri_disk_slot *e = tsri_disk_index_at(&d->index, slot);
        if (e->seq != t->seq || e->segment->id != t->segment) continue;
        tsri_disk_unlink(d, slot);
        tsri_disk_index_remove(&d->index, slot);
    }
    if (r->n_tombs) qsort(r->tombs, r->n_tombs, sizeof r->tombs[0], compare_tombs);
    size_t n = r->n_losers;
    for (size_t i = 0; i < n; i++) {
        struct loser l = r->losers[i];
        if (has_tomb(r, l.record.seq, l.segment->id)) continue;
        int err = add_entry(r, &l.record, l.segment);
        if (err) return err;
    }
    for (size_t i = n; i < r->n_losers; i++)
        tsri_tomb_add(d, &r->losers[i].record.head.key, r->losers[i].record.seq,
                      r->losers[i].segment->id);
    return 0;
}

/* ---- the walk ---- */

/* The page at the tail is no record: damaged, torn by a crash, or the end. Goes on at the next
 * record, if there is one. KV cannot pass for a record: it would have to hold the nonce, which
 * nobody outside knows, and its own place in the file. */
static bool walk_over_damage(struct recovery *r, struct tsri_segment *s)
{
    uint64_t found;
    int error = tsri_segment_search(r->d, r->lane, s, s->tail + TSRI_PAGE_BYTES, &found);
    if (error) {
        s->unread = true;
        tsri_disk_fail(r->d, error, "cannot read", "a segment");
        return false;
    }
    if (found == UINT64_MAX) return false;
    r->d->n_ignored++;
    tsri_log(TSR_LOG_WARN, "disk: %s: segment %llx is damaged from %llu to %llu", r->d->path,
             (unsigned long long)s->id, (unsigned long long)s->tail, (unsigned long long)found);
    s->tail = found;
    return true;
}

/* The page at the tail of a segment has come: goes on behind the record in it. False at the end. */
static bool walk_on(struct recovery *r, struct tsri_segment *s, struct tsri_disk_piece *p, int *err)
{
    struct tsri_record record;
    const uint8_t *page = p->bounce.data;
    if (p->req.error && p->req.error != ENODATA) {
        /* What follows may be good: the segment is kept as it is for the next open. */
        s->unread = true;
        tsri_disk_fail(r->d, p->req.error, "cannot read", "a segment");
        tsri_log(TSR_LOG_WARN, "disk: %s: cannot read segment %llx at %llu: %s", r->d->path,
                 (unsigned long long)s->id, (unsigned long long)s->tail, strerror(p->req.error));
    }
    if (p->req.error) return false;
    if (tsri_record_read(page, s->nonce, s->tail, s->capacity, &record) != 0)
        return walk_over_damage(r, s);
    *err = record.kind == TSRI_RECORD_TOMBS ? add_tombs(r, s, page, &record)
                                            : add_entry(r, &record, s);
    if (!*err && record.kind == TSRI_RECORD_ENTRY) tsri_disk_learn_page(r->d, &record.head, page);
    s->tail += record.bytes;
    s->synced = s->tail;
    r->n_walked++;
    return !*err && s->tail < s->capacity;
}

static int send_walk(struct recovery *r, struct tsri_segment *s, struct tsri_disk_piece *p)
{
    int err = tsri_region_need(&p->bounce, TSRI_PAGE_BYTES);
    if (err) return err;
    p->iov[0] = (struct iovec){p->bounce.data, TSRI_PAGE_BYTES};
    p->req = (struct tsri_aio_req){.fd = s->fd,
                                   .offset = s->tail,
                                   .iov = p->iov,
                                   .n_iov = 1,
                                   .bytes = TSRI_PAGE_BYTES,
                                   .align = r->d->align};
    atomic_fetch_add(&r->d->read_bytes, TSRI_PAGE_BYTES);
    tsri_aio_push(r->lane->aio, &p->req);
    return 0;
}

/* The next segment that has something to walk over, its file open. */
static struct tsri_segment *next_walk(struct recovery *r, struct tsri_segment **from)
{
    for (struct tsri_segment *s; (s = *from);) {
        *from = s->next;
        if (s->tail >= s->capacity) {
            if (s->tail > s->capacity) s->tail = s->synced = s->capacity; /* was truncated */
            continue;
        }
        int err = tsri_segment_ref(r->d, s);
        if (!err) return s;
        r->vanished |= err == TSR_ENOENT;
        s->unread = true;
    }
    return NULL;
}

static int walk(struct recovery *r)
{
    struct tsri_segment *at[TSRI_AIO_DEPTH] = {NULL}, *from = r->d->segments;
    uint32_t n_busy = 0;
    int err = 0;
    for (uint32_t i = 0;; i = (i + 1) % TSRI_AIO_DEPTH) {
        struct tsri_disk_piece *p = &r->lane->pieces[i];
        if (at[i]) {
            tsri_aio_wait(r->lane->aio, &p->req);
            bool more = !err && walk_on(r, at[i], p, &err);
            if (more) err = send_walk(r, at[i], p);
            if (!more || err) {
                tsri_segment_unref(r->d, at[i]);
                at[i] = NULL;
                n_busy--;
            }
        } else if (!err && (at[i] = next_walk(r, &from))) {
            err = send_walk(r, at[i], p);
            n_busy++;
            if (err) {
                tsri_segment_unref(r->d, at[i]);
                at[i] = NULL;
                n_busy--;
            }
        }
        if (!n_busy && (err || !from)) return err;
    }
}

/* ---- all of it ---- */

static int recover_once(struct recovery *r)
{
    int err = load_checkpoint(r);
    if (!err) err = list_directory(r);
    if (!err) err = load_segments(r);
    if (!err && r->checkpoint) err = add_checkpoint_entries(r);
    r->walking = true;
    if (!err) err = walk(r);
    if (!err) err = apply_tombs(r);
    if (!err) err = tsri_order_walked(&r->d->index);
    if (err) return err;
    r->d->n_changes = r->n_walked;
    return 0;
}

static int start_again(struct tsri_disk *d)
{
    while (d->segments)
        drop_segment(d, d->segments);
    tsri_disk_index_fini(&d->index);
    d->bytes_alloc = d->bytes_live = d->n_ignored = 0;
    return tsri_disk_index_init(&d->index);
}

int tsri_disk_recover(struct tsri_disk *d)
{
    int err = 0;
    for (int i = 0; i < TRIES_MAX; i++) {
        struct recovery r = {.d = d, .lane = d->upkeep_lane};
        err = recover_once(&r);
        tsri_region_fini(&r.file);
        tsri_free(r.ids);
        tsri_free(r.tombs);
        tsri_free(r.losers);
        if (err || !r.vanished || !d->read_only || i + 1 == TRIES_MAX) break;
        err = start_again(d);
        if (err) break;
    }
    return err;
}
