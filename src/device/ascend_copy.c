/* ascend_copy.c - copies of the device "npu": lists of them on their way to the runtime, the
 * page-locked buffers between what the runtime cannot copy directly, and the operation copy.
 *
 * The runtime copies between page-locked host memory and device memory, and within device memory
 * where both addresses are multiples of 64. Everything else goes through a buffer: plain host
 * memory, and device memory at other addresses. Copies between two places of host memory are the
 * processor's.
 *
 * Buffers take turns. `used` of a buffer is recorded behind the last copy that touches it, and
 * waited for before it is filled again. The lock is held from taking the first buffer until `used`
 * of the last one is recorded. When a call fails in between, its stream is waited for: then the
 * buffer is idle whatever was queued. */
#include "device/ascend.h"

#define DEVICE_ALIGN 64u /* of copies within device memory */

/* ---- lists ---- */

void tsri_ascend_list_init(struct tsri_ascend_list *l, struct tsr_device *d,
                           struct tsr_device_stream *s, enum tsri_acl_kind kind)
{
    l->d = d;
    l->s = s;
    l->kind = kind;
    l->n = 0;
    l->to_buffer = false;
}

/* One call for all; *done false: the runtime has no such call after all. */
static int send_batch(struct tsri_ascend_list *l, bool *done)
{
    struct tsr_device *d = l->d;
    struct tsri_acl_location host = {0, TSRI_ACL_AT_HOST};
    struct tsri_acl_location device = {(uint32_t)d->ordinal, TSRI_ACL_AT_DEVICE};
    bool up = l->kind == TSRI_ACL_HOST_TO_DEVICE;
    struct tsri_acl_batch attr = {.dst = up ? device : host, .src = up ? host : device};
    size_t first = 0, failed = SIZE_MAX;
    int e = d->acl.aclrtMemcpyBatchAsync(l->dsts, l->sizes, l->srcs, l->sizes, l->n, &attr, &first,
                                         1, &failed, l->s->native);
    *done = e != TSRI_ACL_NOT_SUPPORTED;
    if (!*done) atomic_store(&d->batches, false);
    return *done ? e : 0;
}

int tsri_ascend_list_flush(struct tsri_ascend_list *l)
{
    struct tsr_device *d = l->d;
    bool done = false;
    int e = 0;
    if (l->n == 0) return 0;
    if (l->n > 1 && l->kind != TSRI_ACL_DEVICE_TO_DEVICE && atomic_load(&d->batches))
        e = send_batch(l, &done);
    for (uint32_t i = 0; i < l->n && !done && !e; i++)
        e = d->acl.aclrtMemcpyAsync(l->dsts[i], l->sizes[i], l->srcs[i], l->sizes[i], l->kind,
                                    l->s->native);
    if (l->kind == TSRI_ACL_DEVICE_TO_HOST && !l->to_buffer) tsri_ascend_writes_host(d, l->s);
    l->n = 0;
    if (!e) return 0;
    return tsri_ascend_abandon(d, l->s, tsri_ascend_failed(d, e, "a copy was refused"));
}

static int add_one(struct tsri_ascend_list *l, void *dst, const void *src, size_t bytes)
{
    l->dsts[l->n] = dst;
    l->srcs[l->n] = (void *)(uintptr_t)src;
    l->sizes[l->n++] = bytes;
    return l->n < TSRI_ASCEND_COPIES ? 0 : tsri_ascend_list_flush(l);
}

/* Cut where one registration of host memory ends and the next begins. */
int tsri_ascend_list_add(struct tsri_ascend_list *l, void *dst, const void *src, size_t bytes)
{
    if (!atomic_load_explicit(&l->d->has_pieces, memory_order_relaxed))
        return add_one(l, dst, src, bytes);
    int err = 0;
    while (bytes && !err) {
        size_t n = bytes;
        size_t in_dst = tsri_ascend_piece_left(l->d, dst),
               in_src = tsri_ascend_piece_left(l->d, src);
        if (n > in_dst) n = in_dst;
        if (n > in_src) n = in_src;
        err = add_one(l, dst, src, n);
        dst = (uint8_t *)dst + n;
        src = (const uint8_t *)src + n;
        bytes -= n;
    }
    return err;
}

/* ---- staging ---- */

/* Leaves it as it was before it was opened. */
void tsri_ascend_staging_fini(struct tsr_device *d)
{
    bool usable = tsri_ascend_enter(d) == 0;
    for (uint32_t i = 0; i < TSRI_ASCEND_BUFFERS; i++) {
        struct tsri_ascend_buffer *b = &d->buffers[i];
        if (usable && tsri_ascend_is_idle(d, &b->used)) { /* else rather left than freed in use */
            tsri_ascend_event_fini(d, &b->used);
            if (b->data) d->acl.aclrtFreeHost(b->data);
        }
        *b = (struct tsri_ascend_buffer){0};
    }
    d->staging_open = false;
}

static int open_staging(struct tsr_device *d)
{
    int err = 0;
    for (uint32_t i = 0; i < TSRI_ASCEND_BUFFERS && !err; i++) {
        struct tsri_ascend_buffer *b = &d->buffers[i];
        int e = d->acl.aclrtMallocHost((void **)&b->data, d->buffer_bytes);
        if (e)
            err = tsri_ascend_failed(d, e, "no page-locked memory for buffers");
        else
            err = tsri_ascend_event_init(d, &b->used);
    }
    if (err) tsri_ascend_staging_fini(d);
    d->staging_open = !err;
    return err;
}

int tsri_ascend_staging_take(struct tsr_device *d)
{
    pthread_mutex_lock(&d->staging_lock);
    int err = tsri_ascend_enter(d); /* whoever had the lock may have lost the device */
    if (!err && !d->staging_open) err = open_staging(d);
    if (err) pthread_mutex_unlock(&d->staging_lock);
    return err;
}

void tsri_ascend_staging_give(struct tsr_device *d)
{
    pthread_mutex_unlock(&d->staging_lock);
}

int tsri_ascend_buffer(struct tsr_device *d, struct tsri_ascend_buffer **out)
{
    *out = &d->buffers[d->next++ % TSRI_ASCEND_BUFFERS];
    return tsri_ascend_await(d, &(*out)->used);
}

/* ---- copy ---- */

/* One copy through a buffer, `bytes` of at most its size. */
static int through_buffer(struct tsr_device *d, struct tsr_device_stream *s, struct tsr_copy c,
                          bool from_device, bool to_device)
{
    struct tsri_ascend_buffer *b;
    struct tsri_ascend_list down, up;
    tsri_ascend_list_init(&down, d, s, TSRI_ACL_DEVICE_TO_HOST);
    tsri_ascend_list_init(&up, d, s, TSRI_ACL_HOST_TO_DEVICE);
    down.to_buffer = true;
    int err = from_device ? 0 : tsri_ascend_settle(d, s);
    if (!err) err = tsri_ascend_buffer(d, &b);
    if (err) return err;
    if (from_device) {
        err = tsri_ascend_list_add(&down, b->data, c.src, c.bytes);
        if (!err) err = tsri_ascend_list_flush(&down);
    } else {
        memcpy(b->data, c.src, c.bytes);
    }
    if (!err && to_device) {
        err = tsri_ascend_list_add(&up, c.dst, b->data, c.bytes);
        if (!err) err = tsri_ascend_list_flush(&up);
    }
    if (!err) err = tsri_ascend_record(d, &b->used, s);
    if (!err && !to_device) err = tsri_ascend_await(d, &b->used);
    if (!err && !to_device) memcpy(c.dst, b->data, c.bytes);
    return tsri_ascend_abandon(d, s, err);
}

static int copy_staged(struct tsr_device *d, struct tsr_device_stream *s, struct tsr_copy c,
                       bool from_device, bool to_device)
{
    int err = tsri_ascend_staging_take(d);
    if (err) return err;
    while (c.bytes && !err) {
        struct tsr_copy part = c;
        if (part.bytes > d->buffer_bytes) part.bytes = d->buffer_bytes;
        err = through_buffer(d, s, part, from_device, to_device);
        c.dst = (uint8_t *)c.dst + part.bytes;
        c.src = (const uint8_t *)c.src + part.bytes;
        c.bytes -= part.bytes;
    }
    tsri_ascend_staging_give(d);
    return err;
}

/* Everything that is queued comes first: it may read what is written here, or write what is read. */
static int copy_on_host(struct tsr_device *d, struct tsr_device_stream *s, struct tsr_copy c)
{
    int err = tsri_ascend_sync(d, s);
    if (!err) memcpy(c.dst, c.src, c.bytes);
    return err;
}

/* One copy whose ends are each in one piece of memory. */
static int copy_piece(struct tsri_ascend_list *l, struct tsr_copy c, uint32_t dst, uint32_t src)
{
    bool up = dst == TSR_MEMORY_DEVICE, down = src == TSR_MEMORY_DEVICE;
    bool aligned = ((uintptr_t)c.dst | (uintptr_t)c.src) % DEVICE_ALIGN == 0;
    bool direct =
        up && down ? aligned : up != down && dst != TSR_MEMORY_HOST && src != TSR_MEMORY_HOST;
    enum tsri_acl_kind kind = !down ? TSRI_ACL_HOST_TO_DEVICE
                              : !up ? TSRI_ACL_DEVICE_TO_HOST
                                    : TSRI_ACL_DEVICE_TO_DEVICE;
    int err = 0;
    if (!direct || kind != l->kind) err = tsri_ascend_list_flush(l);
    if (err) return err;
    if (direct) {
        l->kind = kind;
        return tsri_ascend_list_add(l, c.dst, c.src, c.bytes);
    }
    return up || down ? copy_staged(l->d, l->s, c, down, up) : copy_on_host(l->d, l->s, c);
}

int tsri_ascend_copy(struct tsr_device *d, struct tsr_device_stream *s,
                     const struct tsr_copy *copies, size_t n)
{
    struct tsri_ascend_list list;
    s = tsri_ascend_stream(d, s);
    int err = tsri_ascend_enter(d);
    tsri_ascend_list_init(&list, d, s, TSRI_ACL_HOST_TO_DEVICE);
    for (size_t i = 0; i < n && !err; i++)
        for (struct tsr_copy c = copies[i]; c.bytes && !err;) {
            size_t dst_left, src_left;
            uint32_t dst, src;
            err = tsri_ascend_memory(d, c.dst, &dst, &dst_left);
            if (!err) err = tsri_ascend_memory(d, c.src, &src, &src_left);
            if (err) break;
            struct tsr_copy part = c;
            if (part.bytes > dst_left) part.bytes = dst_left;
            if (part.bytes > src_left) part.bytes = src_left;
            err = copy_piece(&list, part, dst, src);
            c.dst = (uint8_t *)c.dst + part.bytes;
            c.src = (const uint8_t *)c.src + part.bytes;
            c.bytes -= part.bytes;
        }
    if (!err) err = tsri_ascend_list_flush(&list);
    return tsri_ascend_abandon(d, s, err);
}
