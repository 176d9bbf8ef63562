/* memory.c - memory of the fake GPU. What alloc() gives is an address that nothing is mapped at for
 * the host; its bytes are elsewhere, where only operations (and fakegpu_control.view) look. Freed
 * addresses are remembered for a while, to tell use after free from any other mistake. */
#include "fakegpu/parts.h"

#include <stdlib.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define FREED_MAX 256u

struct range {
    struct range *next;
    struct fake_span span;
    enum fake_kind kind;
    const struct tsr_device *owner;
    uint32_t ordinal;
    uint8_t *bytes; /* where the host reaches them */
};

static struct range *ranges;
static struct freed {
    struct fake_span span;
    enum fake_kind kind;
} freed[FREED_MAX];
static uint32_t n_freed;
uint64_t fake_register_max = UINT64_MAX, fake_registered;
uint64_t fake_memory_max = FAKE_MEMORY, fake_allocated;

static const char *kind_name(enum fake_kind kind)
{
    static const char *const names[] = {"device memory", "host_alloc", "registered memory"};
    return names[kind];
}

static bool overlap(struct fake_span a, struct fake_span b)
{
    return a.first < b.first + b.bytes && b.first < a.first + a.bytes;
}

static struct range *find(struct fake_span span)
{
    for (struct range *r = ranges; r; r = r->next)
        if (overlap(r->span, span)) return r;
    return NULL;
}

static void add(struct tsr_device *d, enum fake_kind kind, void *p, size_t bytes, void *at)
{
    struct range *r = calloc(1, sizeof *r);
    if (!r) fake_die("out of memory");
    *r = (struct range){ranges, {(uintptr_t)p, bytes}, kind, d, d->ordinal, at};
    ranges = r;
}

/* ---- taking and giving back ---- */

static void *map(size_t bytes, int prot)
{
    void *p = mmap(NULL, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Whole pages with an untouchable one behind them. */
static void *map_guarded(size_t bytes)
{
    uint8_t *p = map(bytes + PAGE, PROT_READ | PROT_WRITE);
    if (p && mprotect(p + bytes, PAGE, PROT_NONE) != 0) fake_die("mprotect");
    return p;
}

int fake_memory_add(struct tsr_device *d, enum fake_kind kind, void **out, size_t bytes)
{
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    if (kind == FAKE_DEVICE && fake_allocated + whole > fake_memory_max)
        return d->fail(TSR_ENOMEM, "fakegpu: out of device memory");
    uint8_t *at = map_guarded(whole), *p = at;
    if (at && kind == FAKE_DEVICE) p = map(whole + PAGE, PROT_NONE);
    if (!at || !p) return d->fail(TSR_ENOMEM, "fakegpu: out of memory");
    memset(at, 0xa5, whole);
    if (kind == FAKE_DEVICE) fake_allocated += whole;
    add(d, kind, p, bytes, at);
    *out = p;
    return 0;
}

static bool is_mapped(const void *p, size_t bytes)
{
    unsigned char *pages = malloc(bytes / PAGE + 1);
    if (!pages) fake_die("out of memory");
    bool mapped = mincore((void *)(uintptr_t)p, bytes, pages) == 0;
    free(pages);
    return mapped;
}

int fake_memory_register(struct tsr_device *d, void *p, size_t bytes)
{
    struct fake_span span = {(uintptr_t)p, bytes};
    const struct range *other = find(span);
    if (other)
        fake_die("host_register of %zu bytes at %p: %zu bytes at %#zx are %s already", bytes, p,
                 other->span.bytes, (size_t)other->span.first, kind_name(other->kind));
    if (!is_mapped(p, bytes)) fake_die("host_register of %zu bytes at %p: not mapped", bytes, p);
    if (fake_registered + bytes > fake_register_max)
        return d->fail(TSR_ENOMEM, "fakegpu: host_register: beyond FAKEGPU_REGISTER_MAX");
    fake_registered += bytes;
    add(d, FAKE_REGISTERED, p, bytes, p);
    return 0;
}

/* Device addresses stay taken, so that a stale one is never a good one again. */
static void unmap(const struct range *r)
{
    size_t whole = (r->span.bytes + PAGE - 1) / PAGE * PAGE;
    if (r->kind == FAKE_REGISTERED) {
        if (!is_mapped(r->bytes, r->span.bytes))
            fake_die("host_unregister of %zu bytes at %p: unmapped before", r->span.bytes,
                     (void *)r->bytes);
        fake_registered -= r->span.bytes;
        return;
    }
    if (r->kind == FAKE_DEVICE) fake_allocated -= whole;
    munmap(r->bytes, whole + PAGE);
}

void fake_memory_remove(struct tsr_device *d, enum fake_kind kind, void *p)
{
    struct range **at = &ranges;
    while (*at && ((*at)->span.first != (uintptr_t)p || (*at)->kind != kind))
        at = &(*at)->next;
    struct range *r = *at;
    if (!r) fake_die("%p is given back as %s, which it is not", p, kind_name(kind));
    if (r->owner != d) fake_die("%s at %p is of another handle", kind_name(kind), p);
    fake_queues_check_unused(r->span, kind_name(kind));
    unmap(r);
    freed[n_freed++ % FREED_MAX] = (struct freed){r->span, kind};
    *at = r->next;
    free(r);
}

void fake_memory_check_closed(const struct tsr_device *d)
{
    for (const struct range *r = ranges; r; r = r->next)
        if (r->owner == d)
            fake_die("close: %zu bytes of %s at %#zx were not given back", r->span.bytes,
                     kind_name(r->kind), (size_t)r->span.first);
}

/* ---- finding ---- */

_Noreturn static void die_unknown(struct fake_span span, const char *what)
{
    for (uint32_t i = 0; i < FREED_MAX; i++)
        if (overlap(freed[i].span, span))
            fake_die("%s: %zu bytes at %#zx were %s and are no more", what, span.bytes,
                     (size_t)span.first, kind_name(freed[i].kind));
    fake_die("%s: %zu bytes at %#zx are neither device memory nor page-locked", what, span.bytes,
             (size_t)span.first);
}

static void *inside(const struct tsr_device *d, const struct range *r, struct fake_span span,
                    const char *what)
{
    if (span.first < r->span.first || span.first + span.bytes > r->span.first + r->span.bytes)
        fake_die("%s: %zu bytes at %#zx go beyond the %zu bytes of %s at %#zx", what, span.bytes,
                 (size_t)span.first, r->span.bytes, kind_name(r->kind), (size_t)r->span.first);
    if (r->kind == FAKE_DEVICE && r->ordinal != d->ordinal)
        fake_die("%s: memory of device %u used on device %u", what, r->ordinal, d->ordinal);
    return r->bytes + (span.first - r->span.first);
}

void *fake_memory_at(const struct tsr_device *d, uint32_t memory, struct fake_span span,
                     const char *what)
{
    const struct range *r = find(span);
    if (!r) die_unknown(span, what);
    if ((r->kind == FAKE_DEVICE) != (memory == TSR_MEMORY_DEVICE))
        fake_die("%s: %#zx is %s and was called something else", what, (size_t)span.first,
                 kind_name(r->kind));
    return inside(d, r, span, what);
}

void *fake_memory_any(const struct tsr_device *d, struct fake_span span, const char *what)
{
    const struct range *r = find(span);
    if (r && r->kind == FAKE_DEVICE) return inside(d, r, span, what);
    for (uint32_t i = 0; !r && i < FREED_MAX; i++)
        if (freed[i].kind == FAKE_DEVICE && overlap(freed[i].span, span)) die_unknown(span, what);
    return (void *)span.first; /* NOLINT(performance-no-int-to-ptr) */
}

void *fake_control_view(const void *p)
{
    struct fake_span span = {(uintptr_t)p, 1};
    pthread_mutex_lock(&fake.lock);
    const struct range *r = find(span);
    if (!r) die_unknown(span, "view");
    void *at = r->bytes + (span.first - r->span.first);
    pthread_mutex_unlock(&fake.lock);
    return at;
}
