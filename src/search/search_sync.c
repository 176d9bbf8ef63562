/* search_sync.c - brings the database to what the folders have now. The files that are there and the
 * ones that are known are both sorted by name and gone through side by side; one file at a time is
 * read and written, in a transaction of its own. */
#include "search/inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A file that was changed so shortly before it was read may change again under the same time. */
#define FRESH_NS 2000000000
/* Files changed at once from which on the index is put in order at the end. */
#define MANY_FILES 256u
#define COUNT_FILES 64u /* a sync counts what there is once in so many files */

struct known {
    struct tsri_file file;
    int64_t id;
    uint64_t hash[2];
    bool skipped;
};

struct syncing {
    struct tsri_search *search;
    struct tsri_files files;
    struct known *known;
    size_t n_known;
    struct tsri_sync_state state;
    struct tsri_sync_result *result;
    tsri_sync_fn progress;
    void *arg;
};

/* ---- known files ---- */

static int add_known(struct syncing *x, sqlite3_stmt *q, size_t *room)
{
    if (x->n_known == *room) {
        *room = *room ? 2 * *room : 64;
        void *more = realloc(x->known, *room * sizeof *x->known);
        if (!more) return tsri_fail(TSR_ENOMEM, "search: no memory for %zu files", *room);
        x->known = more;
    }
    const char *name = (const char *)sqlite3_column_text(q, 2);
    struct known *k = &x->known[x->n_known];
    *k = (struct known){
        .id = sqlite3_column_int64(q, 0),
        .file.folder = (uint32_t)sqlite3_column_int(q, 1),
        .file.name = name ? strdup(name) : NULL,
        .file.bytes = (uint64_t)sqlite3_column_int64(q, 3),
        .file.mtime_ns = sqlite3_column_int64(q, 4),
        .hash = {(uint64_t)sqlite3_column_int64(q, 5), (uint64_t)sqlite3_column_int64(q, 6)},
        .skipped = sqlite3_column_type(q, 7) != SQLITE_NULL,
    };
    if (!k->file.name) return tsri_fail(TSR_ENOMEM, "search: no memory");
    x->n_known++;
    return 0;
}

static int load_known(struct syncing *x)
{
    sqlite3_stmt *q = NULL;
    size_t room = 0;
    int err = tsri_db_prepare(x->search, &q,
                              "SELECT id, folder, name, bytes, mtime, hash0, hash1, why FROM files"
                              " ORDER BY folder, name");
    int row = 0;
    while (!err && (row = tsri_db_step(x->search, q)) == 1)
        err = add_known(x, q, &room);
    sqlite3_finalize(q);
    return err ? err : row;
}

static int by_name(const void *a, const void *b)
{
    const struct tsri_file *x = a, *y = b;
    return x->folder != y->folder ? (x->folder < y->folder ? -1 : 1) : strcmp(x->name, y->name);
}

/* ---- writing one file ---- */

/* Takes a passage out of the index, which wants to be told what it was. */
static int forget_words(struct tsri_search *s, int64_t id, const char *title, const char *text,
                        size_t bytes)
{
    sqlite3_stmt *q = NULL;
    struct tsri_prose body = {0}, head = {0};
    int err = tsri_fold(&body, text, bytes);
    if (!err) err = tsri_fold(&head, title, strlen(title));
    if (!err)
        err = tsri_db_prepare(
            s, &q, "INSERT INTO words(words, rowid, title, body) VALUES('delete', ?, ?, ?)");
    if (!err) {
        sqlite3_bind_int64(q, 1, id);
        sqlite3_bind_text(q, 2, head.data, (int)head.bytes, SQLITE_STATIC);
        sqlite3_bind_text(q, 3, body.data, (int)body.bytes, SQLITE_STATIC);
        err = tsri_db_step(s, q);
    }
    sqlite3_finalize(q);
    tsri_prose_fini(&body);
    tsri_prose_fini(&head);
    return err;
}

static int forget_passages(struct tsri_search *s, int64_t file, const char *name)
{
    sqlite3_stmt *q = NULL;
    int err = tsri_db_prepare(s, &q, "SELECT id, text FROM passages WHERE file = ?");
    int row = 0;
    if (!err) sqlite3_bind_int64(q, 1, file);
    while (!err && (row = tsri_db_step(s, q)) == 1)
        err = forget_words(s, sqlite3_column_int64(q, 0), name,
                           (const char *)sqlite3_column_text(q, 1),
                           (size_t)sqlite3_column_bytes(q, 1));
    sqlite3_finalize(q);
    if (err || row < 0) return err ? err : row;
    q = NULL;
    err = tsri_db_prepare(s, &q, "DELETE FROM passages WHERE file = ?");
    if (!err) sqlite3_bind_int64(q, 1, file);
    if (!err) err = tsri_db_step(s, q);
    sqlite3_finalize(q);
    return err;
}

struct inserts {
    sqlite3_stmt *passage, *words;
    struct tsri_prose title, body;
    int64_t file;
};

static int insert_passage(struct tsri_search *s, struct inserts *in, uint32_t number,
                          const char *text, size_t first, size_t bytes)
{
    sqlite3_bind_int64(in->passage, 1, in->file);
    sqlite3_bind_int64(in->passage, 2, number);
    sqlite3_bind_int64(in->passage, 3, (int64_t)first);
    sqlite3_bind_int64(in->passage, 4, (int64_t)tsri_db_hash(text + first, bytes));
    sqlite3_bind_text(in->passage, 5, text + first, (int)bytes, SQLITE_STATIC);
    int err = tsri_db_step(s, in->passage);
    sqlite3_reset(in->passage);
    in->body.bytes = 0;
    if (!err) err = tsri_fold(&in->body, text + first, bytes);
    if (err) return err;
    sqlite3_bind_int64(in->words, 1, sqlite3_last_insert_rowid(s->db));
    sqlite3_bind_text(in->words, 2, in->title.data, (int)in->title.bytes, SQLITE_STATIC);
    sqlite3_bind_text(in->words, 3, in->body.data, (int)in->body.bytes, SQLITE_STATIC);
    err = tsri_db_step(s, in->words);
    sqlite3_reset(in->words);
    return err;
}

static int insert_passages(struct tsri_search *s, int64_t file, const char *name,
                           const struct tsri_prose *text, uint32_t *n_passages)
{
    struct inserts in = {.file = file};
    int err = tsri_fold(&in.title, name, strlen(name));
    if (!err)
        err = tsri_db_prepare(s, &in.passage,
                              "INSERT INTO passages(file, number, first_byte, hash, text)"
                              " VALUES(?, ?, ?, ?, ?)");
    if (!err)
        err =
            tsri_db_prepare(s, &in.words, "INSERT INTO words(rowid, title, body) VALUES(?, ?, ?)");
    for (size_t done = 0; done < text->bytes && !err;) {
        size_t bytes = tsri_passage_bytes(text->data + done, text->bytes - done), n = bytes;
        while (n > 0 && strchr(" \n", text->data[done + n - 1]))
            n--;
        if (n > 0) err = insert_passage(s, &in, (*n_passages)++, text->data, done, n);
        done += bytes;
    }
    sqlite3_finalize(in.passage);
    sqlite3_finalize(in.words);
    tsri_prose_fini(&in.title);
    tsri_prose_fini(&in.body);
    return err;
}

/* The row of a file; 0: there is none. */
static int find_row(struct tsri_search *s, const struct tsri_file *f, int64_t *id, uint64_t hash[2],
                    bool *skipped)
{
    sqlite3_stmt *q = NULL;
    int err = tsri_db_prepare(
        s, &q, "SELECT id, hash0, hash1, why FROM files WHERE folder = ? AND name = ?");
    if (err) return err;
    sqlite3_bind_int64(q, 1, f->folder);
    sqlite3_bind_text(q, 2, f->name, -1, SQLITE_STATIC);
    int row = tsri_db_step(s, q);
    if (row == 1) {
        *id = sqlite3_column_int64(q, 0);
        hash[0] = (uint64_t)sqlite3_column_int64(q, 1);
        hash[1] = (uint64_t)sqlite3_column_int64(q, 2);
        *skipped = sqlite3_column_type(q, 3) != SQLITE_NULL;
    }
    sqlite3_finalize(q);
    return row;
}

static int put_row(struct tsri_search *s, const struct tsri_file *f, const struct tsri_read *r,
                   int64_t id, uint32_t n_passages)
{
    sqlite3_stmt *q = NULL;
    int err = tsri_db_prepare(s, &q, "INSERT OR REPLACE INTO files VALUES(?,?,?,?,?,?,?,?,?,?)");
    if (err) return err;
    sqlite3_bind_int64(q, 1, id);
    sqlite3_bind_int64(q, 2, f->folder);
    sqlite3_bind_text(q, 3, f->name, -1, SQLITE_STATIC);
    sqlite3_bind_int64(q, 4, (int64_t)f->bytes);
    sqlite3_bind_int64(q, 5, f->mtime_ns);
    sqlite3_bind_int64(q, 6, (int64_t)r->hash[0]);
    sqlite3_bind_int64(q, 7, (int64_t)r->hash[1]);
    if (r->why[0]) sqlite3_bind_text(q, 8, r->why, -1, SQLITE_STATIC);
    sqlite3_bind_int64(q, 9, n_passages);
    sqlite3_bind_int64(q, 10, (int64_t)r->text.bytes);
    err = tsri_db_step(s, q);
    sqlite3_finalize(q);
    return err;
}

static int touch_row(struct tsri_search *s, const struct tsri_file *f, int64_t id)
{
    sqlite3_stmt *q = NULL;
    int err = tsri_db_prepare(s, &q, "UPDATE files SET bytes = ?, mtime = ? WHERE id = ?");
    if (err) return err;
    sqlite3_bind_int64(q, 1, (int64_t)f->bytes);
    sqlite3_bind_int64(q, 2, f->mtime_ns);
    sqlite3_bind_int64(q, 3, id);
    err = tsri_db_step(s, q);
    sqlite3_finalize(q);
    return err;
}

static int next_id(struct tsri_search *s, int64_t *id)
{
    sqlite3_stmt *q = NULL;
    int err = tsri_db_prepare(s, &q, "SELECT coalesce(max(id), 0) + 1 FROM files");
    int row = err ? err : tsri_db_step(s, q);
    if (row == 1) *id = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return row < 0 ? row : 0;
}

static int end_write(struct tsri_search *s, int err)
{
    if (!err) err = tsri_db_run(s, "COMMIT");
    if (err) (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return err;
}

/* 0: nothing of it was new, as the hash shows; 1: new; 2: changed. */
static int write_file(struct tsri_search *s, const struct tsri_file *f, const struct tsri_read *r)
{
    int64_t id = 0;
    uint64_t hash[2] = {0, 0};
    bool skipped = false;
    uint32_t n_passages = 0;
    int err = tsri_db_run(s, "BEGIN IMMEDIATE");
    if (err) return err;
    int row = find_row(s, f, &id, hash, &skipped);
    bool same =
        row == 1 && hash[0] == r->hash[0] && hash[1] == r->hash[1] && skipped == (r->why[0] != 0);
    if (row < 0) return end_write(s, row);
    if (same) return end_write(s, touch_row(s, f, id));
    if (row == 1) err = forget_passages(s, id, f->name);
    if (!err && row == 0) err = next_id(s, &id);
    if (!err && !r->why[0]) err = insert_passages(s, id, f->name, &r->text, &n_passages);
    if (!err) err = put_row(s, f, r, id, n_passages);
    err = end_write(s, err);
    return err ? err : row == 0 ? 1 : 2;
}

static int forget_file(struct tsri_search *s, const struct known *k)
{
    sqlite3_stmt *q = NULL;
    int err = tsri_db_run(s, "BEGIN IMMEDIATE");
    if (err) return err;
    err = forget_passages(s, k->id, k->file.name);
    if (!err) err = tsri_db_prepare(s, &q, "DELETE FROM files WHERE id = ?");
    if (!err) sqlite3_bind_int64(q, 1, k->id);
    if (!err) err = tsri_db_step(s, q);
    sqlite3_finalize(q);
    return end_write(s, err);
}

/* ---- one file ---- */

static void say(struct syncing *x, const char *skipped, const char *why)
{
    x->state.skipped = skipped;
    x->state.why = why;
    if (x->progress) x->progress(x->arg, &x->state);
    x->state.skipped = x->state.why = NULL;
}

static int64_t real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int forget(struct syncing *x, const struct known *k)
{
    pthread_mutex_lock(&x->search->lock);
    int err = forget_file(x->search, k);
    pthread_mutex_unlock(&x->search->lock);
    x->result->n_gone += !k->skipped;
    return err;
}

/* Remembers why something is left out, so that it is named once. What cannot be opened is tried again
 * by the next sync. */
static int leave_out(struct syncing *x, struct tsri_file *f, const struct known *known, int error)
{
    struct tsri_search *s = x->search;
    struct tsri_read r = {0};
    snprintf(r.why, sizeof r.why, "%s", f->why ? f->why : strerror(error));
    if (!f->why) f->mtime_ns = -1;
    pthread_mutex_lock(&s->lock);
    int wrote = write_file(s, f, &r);
    pthread_mutex_unlock(&s->lock);
    x->result->n_skipped++;
    x->result->n_gone += known && !known->skipped;
    if (wrote > 0) say(x, f->name, r.why);
    return wrote < 0 ? wrote : 0;
}

/* Reads a file and writes what it has. One that is gone again is found so by the next sync. */
static int take_file(struct syncing *x, struct tsri_file *f, const struct known *known)
{
    struct tsri_search *s = x->search;
    struct tsri_read r = {0};
    struct stat st;
    int fd = f->why ? -1 : tsri_file_below(s->folders[f->folder], f->name);
    if (fd < 0 && !f->why && errno == ENOENT) return known ? forget(x, known) : 0;
    if (fd < 0) return leave_out(x, f, known, errno);
    int err = fstat(fd, &st) == 0 ? tsri_read_file(&r, fd, f->name)
                                  : tsri_fail(TSR_EIO, "%s: %s", f->name, strerror(errno));
    close(fd);
    if (err) return err;
    f->bytes = (uint64_t)st.st_size;
    f->mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    if (r.passing || real_ns() - f->mtime_ns < FRESH_NS) f->mtime_ns = -1;
    pthread_mutex_lock(&s->lock);
    int wrote = write_file(s, f, &r);
    pthread_mutex_unlock(&s->lock);
    if (r.why[0]) x->result->n_skipped++;
    if (wrote > 0 && r.why[0]) say(x, f->name, r.why);
    if (wrote > 0 && !r.why[0]) *(wrote == 1 ? &x->result->n_new : &x->result->n_changed) += 1;
    tsri_read_fini(&r);
    return wrote < 0 ? wrote : 0;
}

/* ---- all of them ---- */

/* For who reads the counts and does not wait. */
static int count(struct tsri_search *s)
{
    struct tsri_search_stats counts;
    return tsri_search_stats(s, &counts);
}

static int go_through(struct syncing *x, const atomic_bool *stop)
{
    size_t k = 0;
    int err = 0;
    for (size_t i = 0; i < x->files.n && !err; i++) {
        struct tsri_file *f = &x->files.items[i];
        if (stop && atomic_load(stop)) return 0;
        while (k < x->n_known && by_name(&x->known[k].file, f) < 0 && !err)
            err = forget(x, &x->known[k++]);
        if (err) break;
        const struct known *known =
            k < x->n_known && by_name(&x->known[k].file, f) == 0 ? &x->known[k++] : NULL;
        bool same = known && (!f->why || known->skipped) && known->file.bytes == f->bytes &&
                    known->file.mtime_ns == f->mtime_ns;
        uint64_t bytes = f->bytes;
        if (same)
            x->result->n_skipped += known->skipped;
        else
            err = take_file(x, f, known);
        x->state.n_files_done++;
        x->state.n_bytes_done += f->why ? 0 : bytes;
        if (!err) say(x, NULL, NULL);
        if (!err && i % COUNT_FILES == 0) err = count(x->search);
    }
    while (k < x->n_known && !err)
        err = forget(x, &x->known[k++]);
    return err;
}

static int sync_once(struct syncing *x, const atomic_bool *stop)
{
    struct tsri_search *s = x->search;
    int err = 0;
    for (uint32_t i = 0; i < s->n_folders && !err; i++)
        err = tsri_files_add(&x->files, s->folders[i], i, NULL, NULL);
    if (err) return err;
    if (x->files.n) qsort(x->files.items, x->files.n, sizeof *x->files.items, by_name);
    x->state.n_files = x->files.n;
    x->state.n_bytes = x->files.n_bytes;
    if (x->files.limit) {
        x->result->n_skipped++;
        say(x, "the rest of the folder", x->files.limit);
    }
    pthread_mutex_lock(&s->lock);
    err = load_known(x);
    pthread_mutex_unlock(&s->lock);
    if (!err) err = go_through(x, stop);
    if (!err) err = count(s);
    if (err || x->result->n_new + x->result->n_changed < MANY_FILES) return err;
    pthread_mutex_lock(&s->lock);
    err = tsri_db_run(s, "INSERT INTO words(words) VALUES('optimize')");
    pthread_mutex_unlock(&s->lock);
    return err;
}

static void syncing_fini(struct syncing *x)
{
    for (size_t i = 0; i < x->n_known; i++)
        free(x->known[i].file.name);
    free(x->known);
    tsri_files_fini(&x->files);
}

int tsri_search_sync(struct tsri_search *s, tsri_sync_fn progress, void *arg,
                     const atomic_bool *stop, struct tsri_sync_result *out)
{
    struct tsri_sync_result result;
    int err = 0;
    for (int turn = 0; turn < 2; turn++) {
        struct syncing x = {.search = s, .result = &result, .progress = progress, .arg = arg};
        memset(&result, 0, sizeof result);
        err = sync_once(&x, stop);
        syncing_fini(&x);
        if (err != TSR_ECORRUPT || turn > 0) break;
        pthread_mutex_lock(&s->lock);
        err = tsri_db_again(s);
        pthread_mutex_unlock(&s->lock);
        if (err) break;
    }
    if (out) *out = result;
    return err;
}
