/* ascend_memory.c - memory of the device "npu": what it gives out, what was registered with it, and
 * what kind of memory any other pointer is in.
 *
 * A copy of the runtime must name the kind of both its ends. What the device gave out or was told of
 * is on a list. Of an engine's memory the runtime is asked, and where it has no such call or no
 * answer, the kernel: what the processor cannot read is the device's. Nothing is taken for granted:
 * if nobody can tell, the copy is refused. A wrong kind would let the processor read addresses that
 * are not its own, or the device read memory that may move. */
#include "device/ascend.h"

#include <stdlib.h>

/* ---- the list ---- */

/* Under the lock; NULL: none. */
static struct tsri_ascend_range *find_range(struct tsr_device *d, const void *p)
{
    const uint8_t *at = p;
    struct tsri_ascend_range *r = d->ranges;
    while (r && (at < r->p || (size_t)(at - r->p) >= r->bytes))
        r = r->next;
    return r;
}

static void add_range(struct tsr_device *d, struct tsri_ascend_range *r)
{
    pthread_mutex_lock(&d->ranges_lock);
    r->next = d->ranges;
    d->ranges = r;
    pthread_mutex_unlock(&d->ranges_lock);
}

/* Takes it off the list. */
static struct tsri_ascend_range *take_range(struct tsr_device *d, const void *p)
{
    pthread_mutex_lock(&d->ranges_lock);
    struct tsri_ascend_range **at = &d->ranges;
    while (*at && (*at)->p != p)
        at = &(*at)->next;
    struct tsri_ascend_range *r = *at;
    if (r) *at = r->next;
    pthread_mutex_unlock(&d->ranges_lock);
    TSR_ASSERT(r); /* given back what was never taken */
    return r;
}

/* ---- what a pointer is in ---- */

/* In memory of the list: what kind it is, and how many bytes from p on are in one piece. */
static bool find_memory(struct tsr_device *d, const void *p, uint32_t *memory, size_t *bytes)
{
    pthread_mutex_lock(&d->ranges_lock);
    const struct tsri_ascend_range *r = find_range(d, p);
    if (r) {
        size_t at = (size_t)((const uint8_t *)p - r->p), piece = r->piece_bytes;
        size_t in_piece = piece - at % piece, left = r->bytes - at;
        *bytes = in_piece < left ? in_piece : left;
        *memory = r->memory;
    }
    pthread_mutex_unlock(&d->ranges_lock);
    return r;
}

size_t tsri_ascend_piece_left(struct tsr_device *d, const void *p)
{
    uint32_t memory;
    size_t bytes;
    return find_memory(d, p, &memory, &bytes) ? bytes : SIZE_MAX;
}

/* What the runtime says of memory that somebody else took; false: nothing that we know. */
static bool ask_runtime(const struct tsr_device *d, const void *p, uint32_t *memory)
{
    struct tsri_acl_attributes a = {.location.type = UINT32_MAX};
    if (!d->acl.aclrtPointerGetAttributes || d->acl.aclrtPointerGetAttributes(p, &a) != 0)
        return false;
    *memory = a.location.type == TSRI_ACL_AT_DEVICE ? TSR_MEMORY_DEVICE : TSR_MEMORY_HOST;
    return a.location.type == TSRI_ACL_AT_DEVICE || a.location.type == TSRI_ACL_AT_HOST ||
           a.location.type == TSRI_ACL_AT_NO_DEVICE || a.location.type == TSRI_ACL_AT_NUMA;
}

int tsri_ascend_memory(struct tsr_device *d, const void *p, uint32_t *memory, size_t *bytes)
{
    if (find_memory(d, p, memory, bytes)) return 0;
    *bytes = SIZE_MAX;
    if (ask_runtime(d, p, memory)) return 0;
    enum tsri_mapped what = tsri_mapped(p);
    *memory = what == TSRI_MAPPED_HOST ? TSR_MEMORY_HOST : TSR_MEMORY_DEVICE;
    if (what == TSRI_MAPPED_HOST || what == TSRI_MAPPED_NOTHING) return 0;
    return d->fail(TSR_EDEVICE, "npu: neither the runtime nor the kernel tells whether memory is "
                                "the device's");
}

/* bytes in pieces of piece_bytes. */
static struct tsri_ascend_range *new_range(struct tsr_device *d, uint32_t memory, size_t bytes,
                                           size_t piece_bytes)
{
    struct tsri_ascend_range *r = calloc(1, sizeof *r);
    if (!r) {
        d->fail(TSR_ENOMEM, "npu: out of memory");
        return NULL;
    }
    r->memory = memory;
    r->bytes = bytes;
    r->piece_bytes = piece_bytes;
    return r;
}

/* ---- giving out and registering ---- */

static int take_memory(struct tsr_device *d, uint32_t memory, void **out, size_t bytes)
{
    int err = tsri_ascend_enter(d);
    if (err) return err;
    struct tsri_ascend_range *r = new_range(d, memory, bytes, SIZE_MAX);
    if (!r) return TSR_ENOMEM;
    void *p = NULL;
    int e = memory == TSR_MEMORY_DEVICE ? d->acl.aclrtMalloc(&p, bytes, TSRI_ACL_HUGE_FIRST)
                                        : d->acl.aclrtMallocHost(&p, bytes);
    if (e) {
        free(r);
        return tsri_ascend_failed(d, e,
                                  memory == TSR_MEMORY_DEVICE
                                      ? "cannot allocate device memory"
                                      : "cannot allocate page-locked memory");
    }
    r->p = p;
    add_range(d, r);
    *out = p;
    return 0;
}

int tsri_ascend_alloc(struct tsr_device *d, void **out, size_t bytes)
{
    return take_memory(d, TSR_MEMORY_DEVICE, out, bytes);
}

void tsri_ascend_free(struct tsr_device *d, void *p)
{
    free(take_range(d, p));
    if (tsri_ascend_enter(d) == 0) d->acl.aclrtFree(p);
}

int tsri_ascend_host_alloc(struct tsr_device *d, void **out, size_t bytes)
{
    return take_memory(d, TSR_MEMORY_LOCKED, out, bytes);
}

void tsri_ascend_host_free(struct tsr_device *d, void *p)
{
    free(take_range(d, p));
    if (tsri_ascend_enter(d) == 0) d->acl.aclrtFreeHost(p);
}

/* The second form pins by name; a runtime that has it may still refuse the flag. */
static int register_piece(struct tsr_device *d, void *p, size_t bytes)
{
    void *mapped = NULL;
    if (d->acl.aclrtHostRegisterV2 &&
        d->acl.aclrtHostRegisterV2(p, bytes, TSRI_ACL_REG_MAPPED | TSRI_ACL_REG_PINNED) == 0)
        return 0;
    return d->acl.aclrtHostRegister(p, bytes, TSRI_ACL_REGISTER_MAPPED, &mapped);
}

static void unregister_pieces(struct tsr_device *d, const struct tsri_ascend_range *r, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += r->piece_bytes)
        d->acl.aclrtHostUnregister(r->p + at);
}

int tsri_ascend_host_register(struct tsr_device *d, void *p, size_t bytes)
{
    int err = tsri_ascend_enter(d);
    if (err) return err;
    struct tsri_ascend_range *r = new_range(d, TSR_MEMORY_LOCKED, bytes, d->piece_bytes);
    if (!r) return TSR_ENOMEM;
    r->p = p;
    if (bytes > r->piece_bytes) atomic_store(&d->has_pieces, true);
    for (size_t at = 0; at < bytes; at += r->piece_bytes) {
        size_t n = bytes - at < r->piece_bytes ? bytes - at : r->piece_bytes;
        int e = register_piece(d, r->p + at, n);
        if (!e) continue;
        err = tsri_ascend_failed(d, e, "cannot page-lock memory");
        unregister_pieces(d, r, at);
        free(r);
        return err;
    }
    add_range(d, r);
    return 0;
}

void tsri_ascend_host_unregister(struct tsr_device *d, void *p)
{
    struct tsri_ascend_range *r = take_range(d, p);
    if (tsri_ascend_enter(d) == 0) unregister_pieces(d, r, r->bytes);
    free(r);
}
