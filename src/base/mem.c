/* mem.c - checked allocation, large regions, and the page that tells a forked child from its
 * parent. */
#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

void *tsri_alloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);
    if (!p) tsri_fail(TSR_ENOMEM, "out of memory: %zu x %zu bytes", n, size);
    return p;
}

void tsri_free(void *p)
{
    free(p);
}

char *tsri_strdup(const char *s)
{
    size_t bytes = strlen(s) + 1;
    char *copy = tsri_alloc(bytes, 1);
    if (copy) memcpy(copy, s, bytes);
    return copy;
}

void *tsri_make_room(void *items, size_t *room, size_t n, size_t item_bytes)
{
    if (items && n <= *room) return items;
    size_t more = n > 2 * *room ? n + 16 : 2 * *room;
    void *moved = more < SIZE_MAX / item_bytes ? realloc(items, more * item_bytes) : NULL;
    if (moved)
        *room = more;
    else
        (void)tsri_fail(TSR_ENOMEM, "no memory");
    return moved;
}

int tsri_region_init(struct tsri_region *r, size_t bytes)
{
    *r = (struct tsri_region){.fd = -1};
    if (bytes > SIZE_MAX / 2) return tsri_fail(TSR_ENOMEM, "cannot reserve %zu bytes", bytes);
    /* One huge page more than asked, cut back to an aligned start: a misaligned mapping would get
     * none for its first and last piece. */
    size_t want = tsri_align_up(bytes ? bytes : 1, HUGE_PAGE_BYTES);
    uint8_t *p = mmap(NULL, want + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return tsri_fail(TSR_ENOMEM, "cannot reserve %zu bytes: %s", bytes, strerror(errno));
    size_t head = (HUGE_PAGE_BYTES - (uintptr_t)p % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (head) munmap(p, head);
    if (HUGE_PAGE_BYTES - head) munmap(p + head + want, HUGE_PAGE_BYTES - head);
    r->data = p + head;
    r->bytes = want;
    /* Advice: without huge pages everything works, a little slower. Small regions are left alone,
     * since one touched byte would cost 2 MiB of resident memory. */
    if (want >= 8 * HUGE_PAGE_BYTES) madvise(r->data, want, MADV_HUGEPAGE);
    /* KV is user data: keep it out of core files. */
    madvise(r->data, want, MADV_DONTDUMP);
    return 0;
}

void tsri_region_take(const struct tsri_region *r, size_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    if (bytes > r->bytes) bytes = r->bytes;
    int before = errno;
    if (bytes) madvise(r->data, bytes, MADV_POPULATE_WRITE); /* Linux 5.14 */
    errno = before;
#else
    (void)r, (void)bytes;
#endif
}

void tsri_region_fini(struct tsri_region *r)
{
    if (r->data) munmap(r->data, r->bytes);
    if (r->shared) close(r->fd);
    *r = (struct tsri_region){.fd = -1};
}

#ifdef __SSE2__
static void stream_line(uint8_t *d, const uint8_t *s)
{
    __builtin_prefetch(s + 8 * TSRI_CACHE_LINE);
    for (size_t j = 0; j < TSRI_CACHE_LINE; j += sizeof(__m128i))
        _mm_stream_si128((__m128i *)(void *)(d + j),
                         _mm_loadu_si128((const __m128i *)(const void *)(s + j)));
}
#endif

void tsri_copy_stream(void *dst, const void *src, size_t bytes)
{
#ifdef __SSE2__
    /* A plain store first reads the line it will overwrite, a third of all traffic; memcpy itself
     * avoids that, but only for single copies larger than the last-level cache. */
    uint8_t *d = dst;
    const uint8_t *s = src;
    size_t head = (size_t)(-(uintptr_t)d & (TSRI_CACHE_LINE - 1));
    if (bytes < 4 * TSRI_CACHE_LINE) {
        memcpy(d, s, bytes);
        return;
    }
    memcpy(d, s, head);
    /* Two streams at once, one from the middle on: one alone does not keep the memory busy. */
    size_t half = (bytes - head) / (2 * TSRI_CACHE_LINE) * TSRI_CACHE_LINE;
    for (size_t i = head; i < head + half; i += TSRI_CACHE_LINE) {
        stream_line(d + i, s + i);
        stream_line(d + half + i, s + half + i);
    }
    size_t done = head + 2 * half;
    memcpy(d + done, s + done, bytes - done);
    _mm_sfence();
#else
    memcpy(dst, src, bytes);
#endif
}

int tsri_fork_guard_init(struct tsri_fork_guard *g)
{
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return tsri_fail(TSR_ENOMEM, "fork guard: %s", strerror(errno));
    if (madvise(p, bytes, MADV_WIPEONFORK) != 0) {
        int err = tsri_fail(TSR_EUNSUP, "fork guard: %s", strerror(errno));
        munmap(p, bytes);
        return err;
    }
    g->page = p;
    *g->page = 1;
    return 0;
}

void tsri_fork_guard_fini(struct tsri_fork_guard *g)
{
    if (g->page) munmap((void *)(uintptr_t)g->page, (size_t)sysconf(_SC_PAGESIZE));
    g->page = NULL;
}

uint64_t tsri_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Where the kernel refuses getrandom (a sandbox): what it has drawn for this process when it was
 * started, and the time. */
static uint64_t make_do(void)
{
    uint64_t drawn = 0;
    const void *at = (const void *)getauxval(AT_RANDOM);
    if (at) memcpy(&drawn, at, sizeof drawn);
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t x = drawn ^ ((uint64_t)t.tv_sec << 30 | (uint64_t)t.tv_nsec);
    x ^= (uint64_t)getpid() << 40;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 29;
}

uint64_t tsri_nonce(void)
{
    uint64_t n = 0;
    while (n == 0)
        if (getrandom(&n, sizeof n, 0) != (ssize_t)sizeof n) n = make_do();
    return n;
}
