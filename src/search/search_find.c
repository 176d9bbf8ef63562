/* search_find.c - passages out of the database: the best for a question, or all in order. Every text
 * is compared with its hash first; a database that fails this is made again from the folders. */
#include "search/inside.h"

#include <stdlib.h>

/* Passages that rank below this part of the best one say little about the question, and reading them
 * takes the model longer than leaving them out. */
#define RANK_PART 0.3

void tsri_passages_fini(struct tsri_passages *f)
{
    for (size_t i = 0; i < f->n; i++) {
        free((char *)(uintptr_t)f->items[i].name);
        free((char *)(uintptr_t)f->items[i].text);
    }
    free(f->items);
    memset(f, 0, sizeof *f);
}

void tsri_passages_drop(struct tsri_passages *f, size_t i)
{
    free((char *)(uintptr_t)f->items[i].name);
    free((char *)(uintptr_t)f->items[i].text);
    memmove(&f->items[i], &f->items[i + 1], (f->n - i - 1) * sizeof *f->items);
    f->n--;
}

static struct tsri_passage *room_for_one(struct tsri_passages *out)
{
    if (out->n == out->n_room) {
        size_t room = out->n_room ? 2 * out->n_room : 16;
        void *more = realloc(out->items, room * sizeof *out->items);
        if (!more) return NULL;
        out->items = more;
        out->n_room = room;
    }
    return &out->items[out->n];
}

bool tsri_passages_move(struct tsri_passages *from, size_t i, struct tsri_passages *to)
{
    struct tsri_passage *p = room_for_one(to);
    if (!p) return false;
    *p = from->items[i];
    to->n++;
    from->n--;
    memmove(&from->items[i], &from->items[i + 1], (from->n - i) * sizeof *from->items);
    return true;
}

/* name, folder, number, n_passages, first_byte, hash, text */
#define COLUMNS "f.name, f.folder, p.number, f.n_passages, p.first_byte, p.hash, p.text"

static int take_row(struct tsri_search *s, sqlite3_stmt *q, double rank, struct tsri_passages *out)
{
    struct tsri_passage *p = room_for_one(out);
    if (!p) return tsri_fail(TSR_ENOMEM, "search: no memory for %zu passages", out->n + 1);
    const char *name = (const char *)sqlite3_column_text(q, 0);
    const char *text = (const char *)sqlite3_column_text(q, 6);
    size_t bytes = (size_t)sqlite3_column_bytes(q, 6);
    uint32_t folder = (uint32_t)sqlite3_column_int(q, 1);
    if (!name || !text || !bytes || folder >= s->n_folders || strlen(text) != bytes ||
        tsri_db_hash(text, bytes) != (uint64_t)sqlite3_column_int64(q, 5))
        return tsri_fail(TSR_ECORRUPT, "%s: a passage is damaged", s->path ? s->path : "search");
    *p = (struct tsri_passage){
        .name = strdup(name),
        .text = strdup(text),
        .bytes = bytes,
        .folder = folder,
        .number = (uint32_t)sqlite3_column_int(q, 2),
        .n_in_file = (uint32_t)sqlite3_column_int(q, 3),
        .first_byte = (uint64_t)sqlite3_column_int64(q, 4),
        .rank = rank,
    };
    out->n++;
    if (!p->name || !p->text) return tsri_fail(TSR_ENOMEM, "search: no memory");
    p->title = strrchr(p->name, '/') ? strrchr(p->name, '/') + 1 : p->name;
    return 0;
}

/* ---- finding ---- */

struct finding {
    const char *query;
    uint32_t max;
    size_t max_bytes;
};

static int take_passage(struct tsri_search *s, sqlite3_stmt *q, int64_t id, double rank,
                        struct tsri_passages *out)
{
    sqlite3_bind_int64(q, 1, id);
    int row = tsri_db_step(s, q);
    int err = row == 1   ? take_row(s, q, rank, out)
              : row == 0 ? tsri_fail(TSR_ECORRUPT, "search: a passage is missing")
                         : row;
    sqlite3_reset(q);
    return err;
}

static int find_in_order(struct tsri_search *s, const struct finding *x, sqlite3_stmt *ranked,
                         sqlite3_stmt *passage, struct tsri_passages *out)
{
    size_t n_bytes = 0;
    double best = 0;
    int row, err = 0;
    while (!err && out->n < x->max && (row = tsri_db_step(s, ranked)) != 0) {
        if (row < 0) return row;
        double rank = -sqlite3_column_double(ranked, 1);
        if (out->n == 0) best = rank;
        if (rank < best * RANK_PART) break;
        err = take_passage(s, passage, sqlite3_column_int64(ranked, 0), rank, out);
        if (err) break;
        if (n_bytes + out->items[out->n - 1].bytes > x->max_bytes)
            tsri_passages_drop(out, out->n - 1); /* a shorter one may still fit */
        else
            n_bytes += out->items[out->n - 1].bytes;
    }
    return err;
}

static int find_once(struct tsri_search *s, const struct finding *x, struct tsri_passages *out)
{
    sqlite3_stmt *ranked = NULL, *passage = NULL;
    int err = tsri_db_prepare(s, &ranked,
                              "SELECT rowid, rank FROM words WHERE words MATCH ?"
                              " ORDER BY rank LIMIT ?");
    if (!err)
        err = tsri_db_prepare(s, &passage,
                              "SELECT " COLUMNS " FROM passages p JOIN files f ON f.id = p.file"
                              " WHERE p.id = ?");
    /* In one transaction: ranks and passages are of the same moment. */
    if (!err) err = tsri_db_run(s, "BEGIN");
    if (!err) {
        sqlite3_bind_text(ranked, 1, x->query, -1, SQLITE_STATIC);
        sqlite3_bind_int64(ranked, 2, (int64_t)x->max * 2 + 8);
        err = find_in_order(s, x, ranked, passage, out);
        (void)sqlite3_reset(ranked);
        (void)sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL);
    }
    sqlite3_finalize(ranked);
    sqlite3_finalize(passage);
    return err;
}

/* A damaged database has been thrown away; what is in the folders is read again. */
static int heal(struct tsri_search *s, struct tsri_passages *out)
{
    tsri_passages_fini(out);
    pthread_mutex_lock(&s->lock);
    int err = tsri_db_again(s);
    pthread_mutex_unlock(&s->lock);
    return err ? err : tsri_search_sync(s, NULL, NULL, NULL, NULL);
}

int tsri_search_find(struct tsri_search *s, const char *question, uint32_t max, size_t max_bytes,
                     struct tsri_passages *out)
{
    struct tsri_prose query = {0};
    memset(out, 0, sizeof *out);
    int err = tsri_query(&query, question);
    struct finding x = {query.data, max, max_bytes};
    for (int turn = 0; turn < 2 && !err && query.bytes; turn++) {
        pthread_mutex_lock(&s->lock);
        err = find_once(s, &x, out);
        pthread_mutex_unlock(&s->lock);
        if (err != TSR_ECORRUPT || turn > 0) break;
        err = heal(s, out);
    }
    tsri_prose_fini(&query);
    if (err) tsri_passages_fini(out);
    return err;
}

/* ---- listing ---- */

/* Passages of one file behind a number, or of the first file behind a name. */
static int list_file(struct tsri_search *s, const char *sql, const struct tsri_passage *after,
                     uint32_t max, struct tsri_passages *out)
{
    sqlite3_stmt *q = NULL;
    int err = tsri_db_prepare(s, &q, sql);
    int row = 0;
    if (!err) {
        sqlite3_bind_int64(q, 1, after ? (int64_t)after->folder : -1);
        sqlite3_bind_text(q, 2, after ? after->name : "", -1, SQLITE_STATIC);
        sqlite3_bind_int64(q, 3, after ? (int64_t)after->number : -1);
        sqlite3_bind_int64(q, 4, (int64_t)(max - out->n));
    }
    while (!err && (row = tsri_db_step(s, q)) == 1)
        err = take_row(s, q, 0, out);
    sqlite3_finalize(q);
    return err ? err : row;
}

static int list_once(struct tsri_search *s, const struct tsri_passage *after, uint32_t max,
                     struct tsri_passages *out)
{
    static const char *const same_file =
        "SELECT " COLUMNS " FROM files f JOIN passages p ON p.file = f.id"
        " WHERE f.folder = ?1 AND f.name = ?2 AND p.number > ?3 ORDER BY p.number LIMIT ?4";
    static const char *const next_files =
        "SELECT " COLUMNS " FROM (SELECT * FROM files WHERE (folder, name) > (?1, ?2)"
        " AND n_passages > 0 ORDER BY folder, name LIMIT ?4) f JOIN passages p ON p.file = f.id"
        " WHERE ?3 >= -1 ORDER BY f.folder, f.name, p.number LIMIT ?4";
    int err = after ? list_file(s, same_file, after, max, out) : 0;
    if (!err && out->n < max) err = list_file(s, next_files, after, max, out);
    return err;
}

int tsri_search_list(struct tsri_search *s, const struct tsri_passage *after, uint32_t max,
                     struct tsri_passages *out)
{
    int err = 0;
    memset(out, 0, sizeof *out);
    for (int turn = 0; turn < 2; turn++) {
        pthread_mutex_lock(&s->lock);
        err = list_once(s, after, max, out);
        pthread_mutex_unlock(&s->lock);
        if (err != TSR_ECORRUPT || turn > 0) break;
        err = heal(s, out);
        if (err) break;
    }
    if (err) tsri_passages_fini(out);
    return err;
}

int tsri_search_stats(struct tsri_search *s, struct tsri_search_stats *out)
{
    sqlite3_stmt *q = NULL;
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&s->lock);
    int err = tsri_db_prepare(s, &q,
                              "SELECT count(*), sum(n_passages), sum(n_text) FROM files"
                              " WHERE why IS NULL");
    int row = err ? err : tsri_db_step(s, q);
    if (row == 1)
        *out = (struct tsri_search_stats){(uint64_t)sqlite3_column_int64(q, 0),
                                          (uint64_t)sqlite3_column_int64(q, 1),
                                          (uint64_t)sqlite3_column_int64(q, 2)};
    sqlite3_finalize(q);
    if (row == 1) {
        pthread_mutex_lock(&s->counts_lock);
        s->counts = *out;
        pthread_mutex_unlock(&s->counts_lock);
    }
    pthread_mutex_unlock(&s->lock);
    return row < 0 ? row : 0;
}

struct tsri_search_stats tsri_search_counts(struct tsri_search *s)
{
    pthread_mutex_lock(&s->counts_lock);
    struct tsri_search_stats counts = s->counts;
    pthread_mutex_unlock(&s->counts_lock);
    return counts;
}
