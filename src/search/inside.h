/* inside.h - what the files of src/search share: growing text, readers of files, folders, words, and
 * the database.
 *
 * Memory:  structs here are embedded; fini accepts what was only zeroed.
 * Errors:  enum tsr_err, unless a comment says otherwise.
 */
#ifndef TSRI_SEARCH_INSIDE_H
#define TSRI_SEARCH_INSIDE_H

#include "search/search.h"

#include <pthread.h>
#include <sqlite3.h>

/* ---- growing text (prose.c) ---- */

struct tsri_prose {
    char *data; /* [bytes], and a zero once something was added */
    size_t bytes, room;
};
TSR_MUST int tsri_prose_add(struct tsri_prose *t, const char *data, size_t bytes);
void tsri_prose_fini(struct tsri_prose *t);
/* One way to end lines, pages as paragraphs, nothing around the text; in place. Files that differ
 * only in this have the same passages. */
void tsri_prose_tidy(struct tsri_prose *t);
/* No zero byte either. */
bool tsri_is_utf8(const char *data, size_t bytes);
/* NULL when it is UTF-8 text with something in it, else what it is. */
const char *tsri_prose_flaw(const struct tsri_prose *t);

/* ---- words (folding.c) ---- */

/* The text for the index. Writing without spaces (Chinese, Japanese) becomes pairs of characters,
 * which FTS5 takes as words; the rest stays. */
TSR_MUST int tsri_fold(struct tsri_prose *out, const char *text, size_t bytes);
/* The question as an FTS5 query: its words, each quoted, any of them. Empty when it has none. */
TSR_MUST int tsri_query(struct tsri_prose *out, const char *question);

/* ---- readers (charset.c, html.c, pdf.c, document.c) ---- */

/* Adds a page that is not valid UTF-8 as UTF-8: from the encoding it begins with or names, else as a
 * browser would, from Windows-1252. What is no text in it becomes U+FFFD. TSR_EUNSUP: iconv here
 * does not have the encoding. */
TSR_MUST int tsri_page_utf8(const char *page, size_t bytes, struct tsri_prose *out);

/* The text of a page without its markup, scripts and styles. TSR_EUNSUP: libxml2 is missing. */
TSR_MUST int tsri_html_text(const char *data, size_t bytes, struct tsri_prose *out);
struct tsri_pdf_limits {
    uint32_t wait_ms;
    size_t bytes_max;
};
/* What pdftotext makes of the file that fd has open. TSR_EUNSUP: it is not installed; TSR_ETIME,
 * TSR_ERANGE: it went beyond a limit; TSR_EIO: it failed. */
TSR_MUST int tsri_pdf_text(int fd, const struct tsri_pdf_limits *limits, struct tsri_prose *out);

/* How a file is read, of its name and its first bytes. */
enum tsri_kind { TSRI_KIND_TEXT, TSRI_KIND_HTML, TSRI_KIND_PDF };
enum tsri_kind tsri_kind_of(const char *name, const char *data, size_t bytes);

struct tsri_read {
    struct tsri_prose text;
    uint64_t hash[2]; /* of the file */
    char why[160];    /* not empty: it cannot be read, and this is why */
    bool passing;     /* the reason may pass without a change of the file */
};
/* The text of the file that fd has open, or why there is none. */
TSR_MUST int tsri_read_file(struct tsri_read *r, int fd, const char *name);
void tsri_read_fini(struct tsri_read *r);

/* ---- folders (folder.c) ---- */

struct tsri_file {
    char *name; /* below the folder */
    uint32_t folder;
    uint64_t bytes;
    int64_t mtime_ns;
    const char *why; /* not NULL: left out, and why */
};
struct tsri_files {
    struct tsri_file *items;
    size_t n, n_room;
    uint64_t n_bytes;
    const char *limit; /* not NULL: there is more, and this limit was reached */
    uint32_t n_folders_seen;
};
/* Adds the files below a folder, in no order that counts. Hidden ones are left out, and links:
 * those that lead out of the folder are named. `each_folder`, if given, hears of every folder. */
typedef void (*tsri_folder_fn)(void *arg, int fd, const char *name);
TSR_MUST int tsri_files_add(struct tsri_files *f, const char *folder, uint32_t index,
                            tsri_folder_fn each_folder, void *arg);
void tsri_files_fini(struct tsri_files *f);
/* Opens a file below a folder, through no link at any place. -1 and errno. */
int tsri_file_below(const char *folder, const char *name);

/* ---- the database (search.c) ---- */

struct tsri_search {
    pthread_mutex_t lock; /* held while a statement runs, which may take seconds */
    sqlite3 *db;
    char *path;       /* NULL: in memory */
    uint64_t file[2]; /* device and inode of what is open: another process may begin a new one */
    char **folders;
    uint32_t n_folders;
    pthread_mutex_t counts_lock; /* held for a copy only; taken last */
    struct tsri_search_stats counts;
};

/* With the lock held. */
TSR_MUST int tsri_db_prepare(struct tsri_search *s, sqlite3_stmt **out, const char *sql);
/* 1: a row, 0: none is left; else an error, TSR_ECORRUPT for a damaged database. */
TSR_MUST int tsri_db_step(struct tsri_search *s, sqlite3_stmt *q);
/* Runs statements that give no rows. */
TSR_MUST int tsri_db_run(struct tsri_search *s, const char *sql);
/* The error of the last call. */
TSR_MUST int tsri_db_failed(struct tsri_search *s);
/* Throws the database away and begins an empty one. */
TSR_MUST int tsri_db_again(struct tsri_search *s);
/* What a passage's text must hash to. */
uint64_t tsri_db_hash(const void *data, size_t bytes);

#endif
