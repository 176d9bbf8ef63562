/* parcel.h - what the tiers on servers share: the bytes of an entry there, a breaker that stops
 * asking a server that does not answer, a memory of what is not there, and a limit on bandwidth.
 *
 *   parcel.c     the record of an entry and its KV as one stream of bytes, cut into parts
 *   breaker.c    open and closed, one log line a change
 *   absent.c     keys that were not there a moment ago
 *   throttle.c   bytes a second
 *   secret.c     files of passwords and keys
 *
 * Threads: parcel.c is pure; the others may be called from any thread.
 * Memory:  nothing here allocates but tsri_absent_init and tsri_secret_line.
 * Errors:  enum tsr_err.
 */
#ifndef TSRI_PARCEL_ENTRY_H
#define TSRI_PARCEL_ENTRY_H

#include "tier/tier.h"

#include <pthread.h>
#include <sys/uio.h>

/* ---- parcel.c ---- */

#define TSRI_PARCEL_VERSION 1u
#define TSRI_PARCEL_HEAD_BYTES 256u
#define TSRI_PARCEL_RECORD_MAX \
    ((uint64_t)64 << 20) /* tokens and sums of an entry; more is refused */
#define TSRI_PARCEL_PARTS_MAX (1u << 16)
#define TSRI_PARCEL_PART_MAX ((uint64_t)8 << 20)
#define TSRI_PARCEL_PART_MIN ((uint64_t)4 << 10)

/* An entry as a server keeps it: a record (head, tokens, extra, a sum of every cell) and the KV,
 * layer after layer, plane after plane, cell after cell without gaps. The stream of KV is cut into
 * parts: several whole layers where layers are small, pieces of one where it is large. */
struct tsri_parcel {
    struct tsr_entry_head head;
    uint64_t nonce; /* of who wrote it */
    uint64_t part_bytes;
    uint32_t n_cells;                      /* of a plane */
    uint64_t tokens_at, extra_at, sums_at; /* in the record */
    uint64_t record_bytes, kv_bytes;
    uint64_t layer_bytes, plane_at[TSRI_ENTRY_PLANES_MAX];
    uint64_t cell_bytes[TSRI_ENTRY_PLANES_MAX], last_bytes[TSRI_ENTRY_PLANES_MAX];
    uint32_t part_layers, layer_parts; /* one of them is 1 */
    uint32_t n_parts;
};
/* Where everything stands. The head must be valid; TSR_ERANGE when the entry is too large. */
TSR_MUST int tsri_parcel_init(struct tsri_parcel *r, const struct tsr_entry_head *head,
                              uint64_t nonce, uint64_t part_bytes);
static inline uint64_t tsri_parcel_cells(const struct tsri_parcel *r)
{
    return (uint64_t)r->head.n_layers * r->head.n_planes * r->n_cells;
}
/* Bytes [begin, end) of the KV. */
struct tsri_extent {
    uint64_t begin, end;
};
struct tsri_extent tsri_parcel_cell(const struct tsri_parcel *r, uint64_t cell);
struct tsri_extent tsri_parcel_part(const struct tsri_parcel *r, uint32_t part);
/* Whether the part has a cell that is wanted. */
bool tsri_parcel_wants(const struct tsri_parcel *r, void *const *planes, uint32_t part);
/* Of the part what lies between its first and its last wanted cell; empty when there is none. */
struct tsri_extent tsri_parcel_wanted(const struct tsri_parcel *r, void *const *planes,
                                      uint32_t part);

/* A record of r->record_bytes: filled, then the sums of its cells set, then sealed. */
void tsri_parcel_fill(uint8_t *record, const struct tsri_parcel *r, const uint32_t *tokens,
                      const uint8_t *extra);
void tsri_parcel_sum(uint8_t *record, const struct tsri_parcel *r, void *const *planes,
                     uint64_t first, uint64_t end);
void tsri_parcel_seal(uint8_t *record, const struct tsri_parcel *r);
/* The first TSRI_PARCEL_HEAD_BYTES of a record, believed only behind their checksum.
 * TSR_ECORRUPT, or TSR_EVERSION. */
TSR_MUST int tsri_parcel_read_head(const uint8_t *from, size_t bytes, struct tsri_parcel *r);
/* All of it: also the checksum of tokens, extra and sums. */
TSR_MUST int tsri_parcel_read(const uint8_t *record, size_t bytes, struct tsri_parcel *r);
/* Compares cells with their sums; those that are not wanted count as right. sums: of cells that were
 * summed already, 0 for others; NULL: none. */
TSR_MUST int tsri_parcel_check(const uint8_t *record, const struct tsri_parcel *r,
                               void *const *planes, struct tsri_extent cells, const uint64_t *sums);
/* Whether two records say the same of the same text: everything but who wrote it and the sums. */
bool tsri_parcel_same_text(const uint8_t *a, const uint8_t *b, const struct tsri_parcel *r);
/* What a get must compare before it believes a record: key, space and shape are those asked for
 * (TSR_ENOENT), the extra bytes have room (TSR_ERANGE). Then fills the io and calls head_done. */
TSR_MUST int tsri_parcel_deliver(const uint8_t *record, const struct tsri_parcel *r,
                                 struct tsr_tier_io *io);

/* Parts of a get as they arrive, in any order: what is complete is proven and handed on. */
#define TSRI_ARRIVALS_AHEAD 64u /* a part that far ahead of the first missing one must wait */
struct tsri_arrivals {
    uint32_t n_arrived;   /* parts, all before this one */
    uint64_t early;       /* bit i: part n_arrived + i has arrived too */
    uint64_t n_checked;   /* cells */
    uint32_t n_layers;    /* handed on */
    const uint64_t *sums; /* as streams have left them (below); NULL: none are known */
};
/* The part is there, or nobody wants it. */
void tsri_arrivals_note(struct tsri_arrivals *a, uint32_t part);
/* Compares what has become complete with its sums and hands on its layers. */
TSR_MUST int tsri_arrivals_prove(struct tsri_arrivals *a, const uint8_t *record,
                                 const struct tsri_parcel *r, struct tsr_tier_io *io);

/* A run of bytes on its way: of an entry's cells, of one buffer, or to be thrown away. */
struct tsri_stream {
    const struct tsri_parcel *r; /* NULL: flat */
    void *const *planes;
    uint64_t cell, at; /* the next byte: cell and offset in it */
    uint8_t *flat;     /* NULL: nobody wants it */
    uint64_t left;
    /* By cell: the sum of one that was given from its first byte to its last, made while it is in
     * the caches: a third of what it costs later. 0: not known. NULL: nobody wants them. */
    uint64_t *sums;
    bool whole; /* this cell, so far */
};
struct tsri_stream tsri_stream_kv(const struct tsri_parcel *r, void *const *planes,
                                  struct tsri_extent extent);
struct tsri_stream tsri_stream_flat(void *data, uint64_t bytes);
/* The next bytes as at most n_max pieces; what nobody wants goes to `waste`. Returns how many. */
int tsri_stream_iov(const struct tsri_stream *s, struct iovec *iov, int n_max, void *waste,
                    size_t waste_bytes);
void tsri_stream_advance(struct tsri_stream *s, uint64_t bytes);
/* A copy of `bytes` to where the stream stands. */
void tsri_stream_give(struct tsri_stream *s, const void *data, size_t bytes);

/* ---- breaker.c ---- */

/* Closed: requests go through. After `limit` failures in a row, or one that leaves no doubt, it is
 * open: requests are refused at once, and from time to time one is let through to see whether the
 * server is back. */
struct tsri_breaker {
    _Atomic bool open;
    _Atomic uint32_t n_failures; /* in a row */
    uint32_t limit, wait_ms;
    uint64_t retry_ns;
    pthread_mutex_t lock;
    char name[160];      /* for log lines: "redis 10.0.0.1:6379" */
    const char *trouble; /* "down" or "not writable" */
    _Atomic uint64_t n_opened;
};
/* The first try comes after wait_ms, the later ones at twice the distance each, up to 64 times. */
void tsri_breaker_init(struct tsri_breaker *b, uint32_t limit, uint32_t wait_ms,
                       const char *trouble);
void tsri_breaker_fini(struct tsri_breaker *b);
void tsri_breaker_name(struct tsri_breaker *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static inline bool tsri_breaker_closed(const struct tsri_breaker *b)
{
    return !atomic_load_explicit(&b->open, memory_order_relaxed);
}
/* Closed, or it is time to try: true for one caller then. */
bool tsri_breaker_try(struct tsri_breaker *b);
/* When the next try is due; 0 when it is closed. */
uint64_t tsri_breaker_retry_ns(struct tsri_breaker *b);
void tsri_breaker_worked(struct tsri_breaker *b);
void tsri_breaker_failed(struct tsri_breaker *b, bool no_doubt, const char *why);

/* ---- absent.c ---- */

/* Keys that a server did not have, for some milliseconds; a table that forgets when it is full. */
struct tsri_absent {
    struct tsri_absent_slot {
        _Atomic uint64_t tag, until_ns;
    } * slots;
    uint64_t mask, keep_ns;
};
/* keep_ms 0: remembers nothing. */
TSR_MUST int tsri_absent_init(struct tsri_absent *a, uint32_t n_slots, uint32_t keep_ms);
void tsri_absent_fini(struct tsri_absent *a);
void tsri_absent_add(struct tsri_absent *a, const struct tsr_key *key, const uint8_t space[16]);
void tsri_absent_remove(struct tsri_absent *a, const struct tsr_key *key, const uint8_t space[16]);
bool tsri_absent_has(struct tsri_absent *a, const struct tsr_key *key, const uint8_t space[16]);

/* ---- throttle.c ---- */

/* At most that many bytes a second, over all callers, with a tenth of a second's worth at once. */
struct tsri_throttle {
    uint64_t bytes_per_s; /* 0: no limit */
    pthread_mutex_t lock;
    uint64_t free_ns; /* when everything taken so far has passed */
};
void tsri_throttle_init(struct tsri_throttle *t, uint64_t bytes_per_s);
void tsri_throttle_fini(struct tsri_throttle *t);
/* Counts bytes that have moved; returns how long to wait before more may, in ns. */
uint64_t tsri_throttle_take(struct tsri_throttle *t, uint64_t bytes);

/* ---- secret.c ---- */

#define TSRI_SECRET_MAX 1024u /* bytes of a password */
/* The bytes of a file that only its owner may read, how many; TSR_EPERM where others may, too, and
 * TSR_ECONFIG for one that is not there or has bytes_max and more. Errors name the option. */
TSR_MUST int64_t tsri_secret_read(const char *option, const char *path, char *text,
                                  size_t bytes_max);
/* Such a file's only line, to be freed as below. */
TSR_MUST int tsri_secret_line(const char *option, const char *path, char **out);
/* Overwrites it first. */
void tsri_secret_free(char **text);

#endif
