/* search.h - the documents of folders as passages, and the passages that a question is about.
 *
 * A passage is what becomes one segment of a prompt. It is cut at paragraphs by what the text says
 * there, so an unchanged passage keeps its bytes, and with them its tokens and its KV, when other
 * parts of the file change. Passages are in an SQLite database with an FTS5 index, one file for each
 * set of folders, mode 0600. The database is a copy: one that is damaged or of another version is
 * made again from the folders.
 *
 * Threads: a handle may be used by several threads; a find waits at most while one file is written.
 *          Several processes may have the same database open.
 * Memory:  texts and names of a tsri_passages live until its fini.
 * Errors:  enum tsr_err. A file that cannot be read is left out and named, and fails nothing.
 */
#ifndef TSRI_SEARCH_H
#define TSRI_SEARCH_H

#include "base/base.h"

/* ---- passages (passages.c) ---- */

/* A text of at most so many bytes is one passage: about 1000 tokens. */
#define TSRI_PASSAGE_BYTES_MAX 4096u

/* The number of bytes of the first passage of a text: ends at a paragraph if there is one to end at,
 * else at a line, a sentence, a word, or a character. */
size_t tsri_passage_bytes(const char *text, size_t bytes);

/* ---- one file (document.c) ---- */

/* Whether a file with these first bytes is not text itself, and has text inside: HTML and PDF. */
bool tsri_document_has_text(const char *name, const char *data, size_t bytes);
/* The text of such a file, for the caller to free(). The message says why there is none. */
TSR_MUST int tsri_document_text(int fd, const char *name, char **text, size_t *bytes);

/* ---- a set of folders ---- */

#define TSRI_SEARCH_FOLDERS_MAX 16u
#define TSRI_SEARCH_FILES_MAX 100000u
#define TSRI_SEARCH_BYTES_MAX ((uint64_t)2 << 30)
#define TSRI_SEARCH_DEPTH_MAX 32u
#define TSRI_SEARCH_FILE_BYTES_MAX ((size_t)16 << 20) /* of text; of a PDF four times that */

struct tsri_search;

/* `home`: the folder that the database is in, made if it is missing; NULL: the database is in
 * memory. `folders`: at least one; TSR_ENOENT or TSR_EINVAL names one that is missing or is none. */
TSR_MUST int tsri_search_open(struct tsri_search **out, const char *home,
                              const char *const *folders, uint32_t n_folders);
void tsri_search_close(struct tsri_search *s); /* accepts NULL */

struct tsri_sync_state {
    uint64_t n_files, n_bytes;           /* of the folders, as they are now */
    uint64_t n_files_done, n_bytes_done; /* looked at so far */
    const char *skipped;                 /* not NULL: this file was left out now, `why` says why */
    const char *why;
};
typedef void (*tsri_sync_fn)(void *arg, const struct tsri_sync_state *state);

struct tsri_sync_result {
    uint64_t n_new, n_changed, n_gone; /* files */
    uint64_t n_skipped;                /* files that are there and cannot be read, known ones too */
};

/* Reads what is new or changed in the folders and forgets what is gone. `progress` may be NULL; it
 * hears of every file that is skipped for the first time. *stop, if given, ends it early: what was
 * read stays. */
TSR_MUST int tsri_search_sync(struct tsri_search *s, tsri_sync_fn progress, void *arg,
                              const atomic_bool *stop, struct tsri_sync_result *out);

struct tsri_search_stats {
    uint64_t n_files, n_passages, n_bytes; /* of text that questions are answered from */
};
/* Counts them, after whatever else is going on. */
TSR_MUST int tsri_search_stats(struct tsri_search *s, struct tsri_search_stats *out);
/* The same as counted last: by the call above, or by a sync, which counts now and then. Never waits
 * for a sync or a question, so it is for threads that others wait for. */
struct tsri_search_stats tsri_search_counts(struct tsri_search *s);

/* ---- finding ---- */

struct tsri_passage {
    const char *name;    /* path of the file below its folder */
    const char *title;   /* the last part of that: what a prompt calls the document */
    uint32_t folder;     /* index of its folder */
    uint32_t number;     /* among the passages of the file, from 0 */
    uint32_t n_in_file;  /* passages of the file */
    uint64_t first_byte; /* in the text of the file */
    const char *text;    /* [bytes], and a zero */
    size_t bytes;
    double rank; /* BM25, larger is better; 0 from tsri_search_list */
};

struct tsri_passages {
    struct tsri_passage *items;
    size_t n, n_room;
};
void tsri_passages_fini(struct tsri_passages *f); /* accepts what was only zeroed */
void tsri_passages_drop(struct tsri_passages *f, size_t i);
/* To the end of another list; false: no memory, and nothing has changed. */
TSR_MUST bool tsri_passages_move(struct tsri_passages *from, size_t i, struct tsri_passages *to);

/* Best first by BM25, at most max passages and max_bytes of text together. A question is free text:
 * nothing in it is a query language. One that shares no word with the documents finds nothing. */
TSR_MUST int tsri_search_find(struct tsri_search *s, const char *question, uint32_t max,
                              size_t max_bytes, struct tsri_passages *out);

/* Whether a question has a word that is not as common as "what" and "then". */
bool tsri_search_has_subject(const char *question);

/* Passages in the order of folder, name and number, from the one that follows `after` (NULL: the first).
 * At most max; out->n is 0 at the end. The folders may change between two calls: then passages are
 * left out or come twice, never in parts. */
TSR_MUST int tsri_search_list(struct tsri_search *s, const struct tsri_passage *after, uint32_t max,
                              struct tsri_passages *out);

/* ---- watching (watch.c) ---- */

struct tsri_folder_watch;
/* Watches the folders for changes: by inotify, or where that is not possible by asking for a sync
 * every ten seconds. */
TSR_MUST int tsri_folder_watch_open(struct tsri_folder_watch **out, const char *const *folders,
                                    uint32_t n_folders);
void tsri_folder_watch_close(struct tsri_folder_watch *w);
/* 1: something has changed and been quiet for a moment since, so sync; 0: the time has passed. */
TSR_MUST int tsri_folder_watch_wait(struct tsri_folder_watch *w, uint32_t timeout_ms);

#endif
