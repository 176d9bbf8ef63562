/* search.c - the database: opened, begun, and thrown away when it cannot be trusted. It holds what
 * the folders said when they were last read, and never anything that they cannot say again. */
#include "search/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Of tables, words and cuts together: another version starts over. */
#define VERSION 1
#define BUSY_MS 20000

/* The index has no text of its own: it is over what tsri_fold makes of the passages. */
static const char schema[] =
    "CREATE TABLE home(folders TEXT);"
    "CREATE TABLE files(id INTEGER PRIMARY KEY, folder INTEGER, name TEXT, bytes INTEGER,"
    " mtime INTEGER, hash0 INTEGER, hash1 INTEGER, why TEXT, n_passages INTEGER, n_text INTEGER);"
    "CREATE UNIQUE INDEX files_name ON files(folder, name);"
    "CREATE TABLE passages(id INTEGER PRIMARY KEY, file INTEGER, number INTEGER,"
    " first_byte INTEGER, hash INTEGER, text TEXT);"
    "CREATE UNIQUE INDEX passages_file ON passages(file, number);"
    "CREATE VIRTUAL TABLE words USING fts5(title, body, content='',"
    " tokenize='porter unicode61 remove_diacritics 2');"
    "INSERT INTO words(words, rank) VALUES('rank', 'bm25(2.0, 1.0)');";

uint64_t tsri_db_hash(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

/* ---- statements ---- */

int tsri_db_failed(struct tsri_search *s)
{
    int code = sqlite3_extended_errcode(s->db);
    const char *where = s->path ? s->path : "search";
    switch (code & 0xFF) {
    case SQLITE_NOMEM:
        return tsri_fail(TSR_ENOMEM, "%s: no memory", where);
    case SQLITE_BUSY:
        return tsri_fail(TSR_EBUSY, "%s: another process is writing to it", where);
    case SQLITE_FULL:
        return tsri_fail(TSR_EIO, "%s: the disk is full", where);
    /* The statements are fixed: one that is refused shows that the tables are not ours. */
    case SQLITE_ERROR:
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_SCHEMA:
    case SQLITE_MISMATCH:
    case SQLITE_CONSTRAINT:
        return tsri_fail(TSR_ECORRUPT, "%s: damaged: %s", where, sqlite3_errmsg(s->db));
    default:
        return tsri_fail(code == SQLITE_READONLY_DBMOVED ? TSR_ECORRUPT : TSR_EIO, "%s: %s", where,
                         sqlite3_errmsg(s->db));
    }
}

int tsri_db_prepare(struct tsri_search *s, sqlite3_stmt **out, const char *sql)
{
    return sqlite3_prepare_v2(s->db, sql, -1, out, NULL) == SQLITE_OK ? 0 : tsri_db_failed(s);
}

int tsri_db_step(struct tsri_search *s, sqlite3_stmt *q)
{
    int code = sqlite3_step(q);
    return code == SQLITE_ROW ? 1 : code == SQLITE_DONE ? 0 : tsri_db_failed(s);
}

int tsri_db_run(struct tsri_search *s, const char *sql)
{
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : tsri_db_failed(s);
}

/* ---- opening ---- */

static int folders_text(const struct tsri_search *s, struct tsri_prose *out)
{
    int err = tsri_prose_add(out, "", 0);
    for (uint32_t i = 0; i < s->n_folders && !err; i++)
        err = tsri_prose_add(out, s->folders[i], strlen(s->folders[i]) + 1);
    return err;
}

/* 1: the tables are there and of this version and these folders. */
static int check_tables(struct tsri_search *s, const struct tsri_prose *folders)
{
    sqlite3_stmt *q = NULL;
    int err = tsri_db_prepare(s, &q, "PRAGMA user_version");
    int row = err ? err : tsri_db_step(s, q);
    int version = row == 1 ? sqlite3_column_int(q, 0) : 0;
    sqlite3_finalize(q);
    if (row < 0) return row;
    if (version == 0) return 0;
    if (version != VERSION) return tsri_fail(TSR_ECORRUPT, "%s: version %d", s->path, version);
    q = NULL;
    err = tsri_db_prepare(s, &q, "SELECT folders FROM home");
    row = err ? err : tsri_db_step(s, q);
    bool same = row == 1 && (size_t)sqlite3_column_bytes(q, 0) == folders->bytes &&
                memcmp(sqlite3_column_blob(q, 0), folders->data, folders->bytes) == 0;
    sqlite3_finalize(q);
    if (row < 0) return row;
    return same ? 1 : tsri_fail(TSR_ECORRUPT, "%s: of other folders", s->path);
}

static int make_tables(struct tsri_search *s, const struct tsri_prose *folders)
{
    sqlite3_stmt *q = NULL;
    char version[48];
    snprintf(version, sizeof version, "PRAGMA user_version = %d; COMMIT", VERSION);
    int err = tsri_db_run(s, "BEGIN IMMEDIATE");
    if (err) return err;
    int there = check_tables(s, folders); /* another process may have been first */
    if (there != 0) {
        (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
        return there < 0 ? there : 0;
    }
    err = tsri_db_run(s, schema);
    if (!err) err = tsri_db_prepare(s, &q, "INSERT INTO home VALUES(?)");
    if (!err) sqlite3_bind_text(q, 1, folders->data, (int)folders->bytes, SQLITE_STATIC);
    if (!err) err = tsri_db_step(s, q);
    sqlite3_finalize(q);
    if (!err) err = tsri_db_run(s, version);
    if (err) (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return err;
}

/* The file itself, made with its mode before SQLite looks at it. An existing one is not opened here:
 * to close a file drops the locks that this process has on it. */
static int make_file(struct tsri_search *s)
{
    struct stat st;
    int fd = open(s->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0) close(fd);
    if (fd < 0 && errno != EEXIST) return tsri_fail(TSR_EIO, "%s: %s", s->path, strerror(errno));
    if (lstat(s->path, &st) != 0) return tsri_fail(TSR_EIO, "%s: %s", s->path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
        return tsri_fail(TSR_EPERM, "%s: not a file of this user", s->path);
    if ((st.st_mode & 077) && chmod(s->path, 0600) != 0)
        return tsri_fail(TSR_EPERM, "%s: mode %04o, must be 0600", s->path, st.st_mode & 07777);
    s->file[0] = st.st_dev;
    s->file[1] = st.st_ino;
    return 0;
}

static int open_db(struct tsri_search *s)
{
    struct tsri_prose folders = {0};
    int err = s->path ? make_file(s) : 0;
    if (err) return err;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW;
    if (sqlite3_open_v2(s->path ? s->path : ":memory:", &s->db, flags, NULL) != SQLITE_OK)
        return s->db ? tsri_db_failed(s) : tsri_fail(TSR_ENOMEM, "search: no memory");
    sqlite3_busy_timeout(s->db, BUSY_MS);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    err = tsri_db_run(s, "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
                         "PRAGMA temp_store=MEMORY; PRAGMA cell_size_check=ON");
    if (!err) err = folders_text(s, &folders);
    int there = err ? err : check_tables(s, &folders);
    if (there == 0) there = make_tables(s, &folders);
    tsri_prose_fini(&folders);
    return there < 0 ? there : 0;
}

static void close_db(struct tsri_search *s)
{
    sqlite3_close_v2(s->db);
    s->db = NULL;
}

/* While one process throws a database away, none opens it: SQLite finds a file's log by its name,
 * and a new file must not get the log of the old one. -1: goes without. */
static int guard(const struct tsri_search *s, int how)
{
    char path[PATH_MAX];
    if (!s->path || snprintf(path, sizeof path, "%s.lock", s->path) >= (int)sizeof path) return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | TSRI_FILE_SAFE, 0600);
    while (fd >= 0 && flock(fd, how) != 0 && errno == EINTR)
        continue;
    return fd;
}

static void unguard(int fd)
{
    if (fd >= 0) close(fd);
}

static void remove_files(const struct tsri_search *s)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    char path[PATH_MAX];
    for (size_t i = 0; i < TSRI_COUNT(ends); i++)
        if (snprintf(path, sizeof path, "%s%s", s->path, ends[i]) < (int)sizeof path) unlink(path);
}

int tsri_db_again(struct tsri_search *s)
{
    struct stat st;
    tsri_log(TSR_LOG_WARN, "search: beginning a new database: %s", tsr_errmsg());
    close_db(s);
    int fd = guard(s, LOCK_EX);
    if (s->path && lstat(s->path, &st) == 0 && st.st_dev == s->file[0] && st.st_ino == s->file[1])
        remove_files(s);
    int err = open_db(s);
    unguard(fd);
    return err;
}

static int take_folder(struct tsri_search *s, const char *folder)
{
    struct stat st;
    char *real = realpath(folder, NULL);
    if (!real) return tsri_fail(TSR_ENOENT, "%s: %s", folder, strerror(errno));
    s->folders[s->n_folders++] = real;
    if (stat(real, &st) != 0 || !S_ISDIR(st.st_mode))
        return tsri_fail(TSR_EINVAL, "%s: not a folder", folder);
    return 0;
}

/* And the folders above it. */
static int make_home(const char *home)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s", home) >= (int)sizeof path)
        return tsri_fail(TSR_EINVAL, "%s: path too long", home);
    for (char *at = path + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        (void)mkdir(path, 0700);
        *at = '/';
    }
    if (mkdir(home, 0700) != 0 && errno != EEXIST)
        return tsri_fail(TSR_EIO, "%s: %s", home, strerror(errno));
    return 0;
}

static int make_path(struct tsri_search *s, const char *home)
{
    struct tsri_prose folders = {0};
    char path[PATH_MAX];
    int err = make_home(home);
    if (!err) err = folders_text(s, &folders);
    if (err) return err;
    int n = snprintf(path, sizeof path, "%s/search-%016llx.db", home,
                     (unsigned long long)XXH3_64bits(folders.data, folders.bytes));
    tsri_prose_fini(&folders);
    if (n >= (int)sizeof path - 8) return tsri_fail(TSR_EINVAL, "%s: path too long", home);
    s->path = strdup(path);
    return s->path ? 0 : tsri_fail(TSR_ENOMEM, "search: no memory");
}

int tsri_search_open(struct tsri_search **out, const char *home, const char *const *folders,
                     uint32_t n_folders)
{
    *out = NULL;
    if (n_folders == 0 || n_folders > TSRI_SEARCH_FOLDERS_MAX)
        return tsri_fail(TSR_ERANGE, "search: %u folders, 1 to %u are possible", n_folders,
                         TSRI_SEARCH_FOLDERS_MAX);
    struct tsri_search *s = tsri_alloc(1, sizeof *s);
    if (!s) return TSR_ENOMEM;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->counts_lock, NULL);
    s->folders = tsri_alloc(n_folders, sizeof *s->folders);
    int err = s->folders ? 0 : TSR_ENOMEM;
    for (uint32_t i = 0; i < n_folders && !err; i++)
        err = take_folder(s, folders[i]);
    if (!err && home) err = make_path(s, home);
    int fd = err ? -1 : guard(s, LOCK_SH);
    if (!err) err = open_db(s);
    unguard(fd);
    if (err == TSR_ECORRUPT) err = tsri_db_again(s);
    if (err) {
        tsri_search_close(s);
        return err;
    }
    *out = s;
    return 0;
}

void tsri_search_close(struct tsri_search *s)
{
    if (!s) return;
    close_db(s);
    for (uint32_t i = 0; s->folders && i < s->n_folders; i++)
        free(s->folders[i]);
    tsri_free(s->folders);
    free(s->path);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->counts_lock);
    tsri_free(s);
}
