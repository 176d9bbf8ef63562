/* base.h - what every layer stands on: errors in words, checked memory, log lines, worker threads.
 * Knows nothing of caches.
 *
 * Threads: everything here may be called from any thread.
 * Memory:  tsri_alloc'd blocks are freed with tsri_free; regions with tsri_region_fini.
 * Errors:  return tsri_fail(TSR_EXXX, "what: %s", why) sets the thread's message and the result.
 */
#ifndef TSRI_BASE_H
#define TSRI_BASE_H

#include <tessera/admin.h>

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h> /* pthread_cond_t */

/* ---- assertions: programmer errors only; operating errors are returned ---- */

void tsri_assert_failed(const char *what, const char *file, int line) __attribute__((noreturn));
#define TSR_ASSERT(x) ((x) ? (void)0 : tsri_assert_failed(#x, __FILE__, __LINE__))
#ifdef TSR_DEBUG
#define TSR_ASSERT_SLOW(x) TSR_ASSERT(x)
#else
#define TSR_ASSERT_SLOW(x) ((void)0)
#endif

/* ---- errors ---- */

/* Sets the calling thread's message and returns err. */
int tsri_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#ifdef __clang_analyzer__
/* The analyser does not look into variadic functions: without this it takes every failure for a
 * possible success. */
#define tsri_fail(err, ...) ((void)(tsri_fail)((err), __VA_ARGS__), (err))
#endif

/* ---- log ---- */

void tsri_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Whether a line of this level would go anywhere; for lines that are costly to build. */
bool tsri_log_wants(int level);

/* Lines kept until the level is known: a configuration has log lines of its own and names the level.
 * Begins zeroed. tsri_log_hold is a tsr_log_fn whose argument it is; tsri_log_tell hands the lines up
 * to level_max on, in order. Lines beyond its room are counted and told as a number. */
struct tsri_log_held {
    size_t n_bytes;
    uint32_t n_left_out;
    char lines[16384]; /* level, text, zero */
};
void tsri_log_hold(void *held, int level, const char *text);
void tsri_log_tell(struct tsri_log_held *held, int level_max, tsr_log_fn fn, void *arg);

/* ---- plain.c ---- */

/* Length of the UTF-8 sequence that starts here; 0 when it is none (RFC 3629: no overlong forms, no
 * surrogates, nothing above U+10FFFF). Reads no further than the final zero. */
int tsri_utf8_length(const char *s);
/* Bytes at the end of a text that begin a character and do not finish it. */
size_t tsri_utf8_unfinished(const char *text, size_t n);
/* Whether a control character begins here, of one byte or of two. */
bool tsri_is_control(const char *s);
/* Control characters and what is no UTF-8 become '?', in place. Messages and log lines are made so
 * by tsri_fail and tsri_log; what a program prints on its own is its own business. */
char *tsri_plain(char *text);

/* ---- hex.c ---- */

/* Two lower-case digits for each byte, and a zero, where the result points. */
char *tsri_hex(char *to, const uint8_t *bytes, size_t n);
/* The 2 n digits of n bytes; false at the first character that is none. */
bool tsri_hex_read(const char *text, uint8_t *out, size_t n);

/* ---- memory ---- */

/* Zeroed. NULL with a message set when there is none or n * size overflows. */
void *tsri_alloc(size_t n, size_t size);
void tsri_free(void *p);
char *tsri_strdup(const char *s);
/* The array with room for n items, which may be somewhere else now; NULL with tsr_errmsg, and the old
 * one stays. */
void *tsri_make_room(void *items, size_t *room, size_t n, size_t item_bytes);

/* A large span of zeroed, page-aligned memory whose pages are taken on first touch, in huge pages
 * where the machine allows it. */
struct tsri_region {
    uint8_t *data;
    size_t bytes;
    bool shared; /* other processes may map it, by fd */
    int fd;
};
TSR_MUST int tsri_region_init(struct tsri_region *r, size_t bytes);
void tsri_region_fini(struct tsri_region *r);
/* Takes the first `bytes` of them, or all, now and in one call, for who will touch them anyway: one
 * by one a page costs about twice as much, and one that is read before it is written is taken twice.
 * Advice: where it is refused, pages are taken on first touch. */
void tsri_region_take(const struct tsri_region *r, size_t bytes);
/* The same, for other processes to read: r->fd may be given to anybody, who can then map it, but
 * neither write to it nor change its size; only this mapping writes. `name` shows in /proc. */
TSR_MUST int tsri_region_init_shared(struct tsri_region *r, const char *name, size_t bytes);
/* Maps the first `bytes` of what another process has shared, to read it. The descriptor stays the
 * caller's, and r has none. TSR_EPERM when it is not sealed against shrinking, or is nothing that
 * tsri_region_init_shared makes: reading it could then fault. */
TSR_MUST int tsri_region_init_reader(struct tsri_region *r, int fd, size_t bytes);
/* The same for memory of somebody who is not trusted: its addresses only say where something is,
 * and what is there is read with tsri_region_read. Reading a mapping gives memory to the holes in
 * it, which counts as ours, and waits while their owner makes some. Takes over fd when it succeeds.
 */
TSR_MUST int tsri_region_init_remote(struct tsri_region *r, int fd, size_t bytes);
/* [at, at + bytes) of such a region; the caller has checked that it lies in it. */
TSR_MUST int tsri_region_read(const struct tsri_region *r, const uint8_t *at, void *to,
                              size_t bytes);

/* True in the process that called tsri_fork_guard_init, false in its forked children; one load. */
struct tsri_fork_guard {
    volatile uint32_t *page;
};
TSR_MUST int tsri_fork_guard_init(struct tsri_fork_guard *g);
void tsri_fork_guard_fini(struct tsri_fork_guard *g);
static inline bool tsri_fork_guard_parent(const struct tsri_fork_guard *g)
{
    return *g->page != 0;
}

/* memcpy past the caches, for copies so large that they would only evict what is useful there.
 * Where the processor has nothing better it is memcpy. */
void tsri_copy_stream(void *dst, const void *src, size_t bytes);

/* ---- files that somebody else may have put there (file.c) ---- */

/* For open(): never through a link in the last place, never waiting for the other end of a FIFO,
 * never a terminal of ours. */
#define TSRI_FILE_SAFE (O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)
struct stat;
/* Whether this user made it, or root, who could have done anything anyway. */
bool tsri_file_is_ours(const struct stat *st);
/* Opens a regular file to read it; a link may lead to it. The descriptor, or -1 and errno: EINVAL
 * for a folder, a FIFO or a device, which may have no end or keep open() waiting. */
TSR_MUST int tsri_file_open(const char *path, struct stat *st);

/* ---- small helpers ---- */

#define TSRI_CACHE_LINE 64u
#define TSRI_COUNT(a) (sizeof(a) / sizeof((a)[0]))

static inline size_t tsri_align_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}
static inline uint32_t tsri_min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}
static inline void tsri_reverse_u32(uint32_t *values, uint32_t n)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        uint32_t t = values[i];
        values[i] = values[n - 1 - i];
        values[n - 1 - i] = t;
    }
}
static inline uint64_t tsri_pow2_up(uint64_t n)
{
    return n <= 1 ? 1 : (uint64_t)1 << (64 - __builtin_clzll(n - 1));
}
/* Monotonic, nanoseconds. */
uint64_t tsri_now_ns(void);
/* A random number that is not 0, for names that must never come twice. */
uint64_t tsri_nonce(void);

/* ---- waiting with a deadline (work.c) ---- */

/* A condition whose waits end at times of tsri_now_ns. */
void tsri_cond_init(pthread_cond_t *cond);
/* As pthread_cond_wait; false when the deadline has passed. 0: there is none. */
bool tsri_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);

/* ---- threads (work.c) ---- */

/* A thread that gets no signals: those stay with the program's own threads. Returns what
 * pthread_create does. Linux shows the first 15 bytes of the name. */
TSR_MUST int tsri_thread_start(pthread_t *thread, const char *name, void *(*run)(void *),
                               void *arg);

/* ---- work: a bounded queue of jobs and fixed, named threads ---- */

struct tsri_job {
    void (*run)(struct tsri_job *job); /* the job is the worker's until run is called, then run's */
    struct tsri_job *next;
};
struct tsri_work;
/* Threads are named NAME-0 .. and take no signals. */
TSR_MUST int tsri_work_open(struct tsri_work **out, const char *name, uint32_t n_threads,
                            uint32_t queue_max);
/* Runs what is queued, then joins; in a forked child only frees memory. Accepts NULL. */
void tsri_work_close(struct tsri_work *w);
/* Queues a job; TSR_EAGAIN when queue_max jobs wait. */
TSR_MUST int tsri_work_push(struct tsri_work *w, struct tsri_job *job);
/* Queues a job if a thread has nothing else to do. */
TSR_MUST bool tsri_work_push_idle(struct tsri_work *w, struct tsri_job *job);
/* Waits until the queue is empty and every thread idle. */
void tsri_work_drain(struct tsri_work *w);

/* Items 0 .. n_items - 1, each once, by the caller and by at most n_helpers of those threads that
 * have nothing else to do. Returns when all are done. */
typedef void (*tsri_item_fn)(void *arg, uint32_t i);
void tsri_spread(struct tsri_work *work, uint32_t n_helpers, uint32_t n_items, tsri_item_fn run,
                 void *arg);

#endif
