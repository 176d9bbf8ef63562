/* memory.c - memory of the fake AscendCL. What aclrtMalloc gives is an address that nothing is
 * mapped at for the host; its bytes are elsewhere. Host memory has a page that cannot be touched
 * behind it, and bytes with a pattern between its end and that page. */
#include "fakeacl/parts.h"

#include <stdlib.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define EDGE 0xe5
#define REGISTER_MAX ((uint64_t)200 << 30)

struct range {
    struct range *next;
    uintptr_t first;
    size_t bytes;
    enum fake_where where;
    int32_t device;
    uint8_t *data;
};
static struct range *ranges;
static size_t allocated;

static const char *const names[] = {"device memory", "aclrtMallocHost", "registered memory"};

static struct range *find(uintptr_t p, size_t bytes)
{
    for (struct range *r = ranges; r; r = r->next)
        if (p < r->first + r->bytes && r->first < p + bytes) return r;
    return NULL;
}

static void add(uintptr_t p, size_t bytes, enum fake_where where, uint8_t *data, int32_t device)
{
    struct range *r = calloc(1, sizeof *r);
    if (!r) fake_die("out of memory");
    *r = (struct range){ranges, p, bytes, where, device, data};
    ranges = r;
}

static void *map(size_t bytes, int prot)
{
    void *p = mmap(NULL, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) fake_die("out of memory");
    return p;
}

static uint8_t *map_guarded(size_t bytes)
{
    size_t whole = tsri_align_up(bytes, PAGE);
    uint8_t *p = map(whole + PAGE, PROT_READ | PROT_WRITE);
    memset(p, 0xa5, bytes);
    memset(p + bytes, EDGE, whole - bytes);
    if (mprotect(p + whole, PAGE, PROT_NONE) != 0) fake_die("mprotect");
    return p;
}

static void check_edge(const struct range *r)
{
    for (size_t i = r->bytes; r->where != FAKE_REGISTERED && i < tsri_align_up(r->bytes, PAGE); i++)
        if (r->data[i] != EDGE)
            fake_die("byte %zu of %zu bytes of %s was written", i, r->bytes, names[r->where]);
}

void fake_check_edges(void)
{
    for (const struct range *r = ranges; r; r = r->next)
        check_edge(r);
}

uint8_t *fake_bytes(const char *name, uintptr_t p, size_t bytes, bool device)
{
    const struct range *r = find(p, bytes);
    if (!r)
        fake_die("%s: %zu bytes at %#zx are neither device memory nor page-locked, or were freed",
                 name, bytes, (size_t)p);
    if ((r->where == FAKE_DEVICE) != device)
        fake_die("%s: wrong kind: %#zx is %s", name, (size_t)p, names[r->where]);
    if (p < r->first || p + bytes > r->first + r->bytes)
        fake_die("%s: %zu bytes at %#zx go beyond %zu bytes of %s", name, bytes, (size_t)p,
                 r->bytes, names[r->where]);
    if (device && r->device != fake_device(name))
        fake_die("%s: memory of device %d on device %d", name, r->device, fake_device(name));
    return r->data + (p - r->first);
}

void *fake_view(const void *device)
{
    pthread_mutex_lock(&fake.lock);
    const struct range *r = find((uintptr_t)device, 1);
    if (!r || r->where != FAKE_DEVICE) fake_die("view: %p is no device memory", device);
    void *p = r->data + ((uintptr_t)device - r->first);
    pthread_mutex_unlock(&fake.lock);
    return p;
}

uint32_t fake_registrations(void)
{
    uint32_t n = 0;
    for (const struct range *r = ranges; r; r = r->next)
        n += r->where == FAKE_REGISTERED;
    return n;
}

void fake_memory_check_closed(void)
{
    fake_check_edges();
    if (ranges)
        fake_die("%zu bytes of %s were not given back", ranges->bytes, names[ranges->where]);
}

static void release(struct range *r)
{
    if (r->where != FAKE_REGISTERED) munmap(r->data, tsri_align_up(r->bytes, PAGE) + PAGE);
    if (r->where == FAKE_DEVICE) allocated -= r->bytes;
    free(r);
}

uint32_t fake_memory_forget(void)
{
    uint32_t n = 0;
    fake_check_edges();
    for (struct range *r = ranges, *next; r; r = next, n++) {
        next = r->next;
        release(r);
    }
    ranges = NULL;
    return n;
}

static void give_back(const char *name, void *p, enum fake_where where)
{
    pthread_mutex_lock(&fake.lock);
    struct range **at = &ranges;
    while (*at && ((*at)->first != (uintptr_t)p || (*at)->where != where))
        at = &(*at)->next;
    struct range *r = *at;
    if (!r) fake_die("%s: %p is no %s, or was freed", name, p, names[where]);
    if (fake_in_use(r->first, r->bytes))
        fake_die("%s: %zu bytes of %s are in use by what was queued", name, r->bytes, names[where]);
    check_edge(r);
    *at = r->next;
    release(r);
    pthread_mutex_unlock(&fake.lock);
}

/* ---- AscendCL ---- */

/* A device address stays taken, so that a stale one is never a good one again. */
TSR_API int aclrtMalloc(void **out, size_t bytes, uint32_t policy)
{
    int e = fake_enter("aclrtMalloc");
    if (e) return e;
    int32_t device = fake_device("aclrtMalloc");
    if (policy != TSRI_ACL_HUGE_FIRST || bytes == 0) fake_die("aclrtMalloc: %zu bytes", bytes);
    bool fits = bytes <= FAKE_MEMORY - allocated;
    if (fits) {
        *out = map(tsri_align_up(bytes, PAGE) + PAGE, PROT_NONE);
        add((uintptr_t)*out, bytes, FAKE_DEVICE, map_guarded(bytes), device);
        allocated += bytes;
    }
    pthread_mutex_unlock(&fake.lock);
    return fits ? 0 : TSRI_ACL_NO_MEMORY;
}

TSR_API int aclrtFree(void *p)
{
    give_back("aclrtFree", p, FAKE_DEVICE);
    return 0;
}

TSR_API int aclrtMallocHost(void **out, size_t bytes)
{
    int e = fake_enter("aclrtMallocHost");
    if (e) return e;
    (void)fake_device("aclrtMallocHost");
    uint8_t *p = map_guarded(bytes);
    add((uintptr_t)p, bytes, FAKE_HOST, p, 0);
    *out = p;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

TSR_API int aclrtFreeHost(void *p)
{
    give_back("aclrtFreeHost", p, FAKE_HOST);
    return 0;
}

static int register_memory(const char *name, void *p, uint64_t bytes)
{
    int e = fake_enter(name);
    if (e) return e;
    (void)fake_device(name);
    if (((uintptr_t)p | bytes) % PAGE || !bytes) fake_die("%s: not whole pages", name);
    if (find((uintptr_t)p, bytes)) fake_die("%s: %p is registered or allocated already", name, p);
    if (bytes <= REGISTER_MAX) add((uintptr_t)p, bytes, FAKE_REGISTERED, p, 0);
    pthread_mutex_unlock(&fake.lock);
    return bytes <= REGISTER_MAX ? 0 : TSRI_ACL_NO_MEMORY;
}

TSR_API int aclrtHostRegister(void *p, uint64_t bytes, uint32_t type, void **device)
{
    if (type != TSRI_ACL_REGISTER_MAPPED || !device) fake_die("aclrtHostRegister: type %u", type);
    *device = p;
    return register_memory("aclrtHostRegister", p, bytes);
}

TSR_API int aclrtHostRegisterV2(void *p, uint64_t bytes, uint32_t flags)
{
    if (flags != (TSRI_ACL_REG_MAPPED | TSRI_ACL_REG_PINNED))
        fake_die("aclrtHostRegisterV2: flags %#x", flags);
    return register_memory("aclrtHostRegisterV2", p, bytes);
}

TSR_API int aclrtHostUnregister(void *p)
{
    give_back("aclrtHostUnregister", p, FAKE_REGISTERED);
    return 0;
}

TSR_API int aclrtPointerGetAttributes(const void *p, struct tsri_acl_attributes *out)
{
    int e = fake_enter("aclrtPointerGetAttributes");
    if (e) return e;
    const struct range *r = find((uintptr_t)p, 1);
    const char *told = getenv("FAKEACL_LOCATION");
    out->location.type = told                      ? (uint32_t)atoi(told)
                         : !r                      ? TSRI_ACL_AT_NO_DEVICE
                         : r->where == FAKE_DEVICE ? TSRI_ACL_AT_DEVICE
                                                   : TSRI_ACL_AT_HOST;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

TSR_API int aclrtGetMemInfo(uint32_t attr, size_t *left, size_t *total)
{
    int e = fake_enter("aclrtGetMemInfo");
    if (e) return e;
    (void)fake_device("aclrtGetMemInfo");
    if (attr != TSRI_ACL_HBM) fake_die("aclrtGetMemInfo: attribute %u", attr);
    *left = FAKE_MEMORY - allocated;
    *total = FAKE_MEMORY;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}
