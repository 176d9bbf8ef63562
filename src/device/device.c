/* device.c - devices by name. Built-in tables stand in one array; any other name is a shared object
 * that exports one symbol. This file and batch.c are the only callers of a device's table: they
 * check arguments before the device sees them and stand in for members a device leaves out. */
#include "device/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* Known names, in the order in which lists show them; those without a table are shared objects. */
static const struct known {
    const char *name;
    const struct tsr_device_ops *ops;
    const char *file; /* that its library is named after; NULL: the name */
    const char *get;  /* how to get a library that is not there */
} known[] = {{"cpu", &tsri_device_cpu, NULL, NULL},
             {"cuda", NULL, NULL, "; make cuda builds it, and the package tessera-kv-cuda has it"},
             {"npu", NULL, "ascend", NULL}};

const char *tsri_device_known(uint32_t i)
{
    return i < TSRI_COUNT(known) ? known[i].name : NULL;
}

static int fail_text(int err, const char *text)
{
    return tsri_fail(err, "%s", text);
}

/* ---- loading ---- */

static bool is_name(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return n > 0 && n <= 32 && s[n] == '\0';
}

static const char *file_of(const char *name)
{
    for (uint32_t i = 0; i < TSRI_COUNT(known); i++)
        if (known[i].file && strcmp(known[i].name, name) == 0) return known[i].file;
    return name;
}

/* What to do about an error of dlopen: something if the library itself is missing. */
static const char *how_to_get(const char *name, const char *library, const char *error)
{
    size_t n = strlen(library);
    if (strncmp(error, library, n) != 0 || error[n] != ':') return "";
    for (uint32_t i = 0; i < TSRI_COUNT(known); i++)
        if (known[i].get && strcmp(known[i].name, name) == 0) return known[i].get;
    return "";
}

static int load(struct tsri_device *d, const char *name, const char *path)
{
    char library[64], symbol[64];
    snprintf(library, sizeof library, "libtessera-%s.so", file_of(name));
    snprintf(symbol, sizeof symbol, "tsr_device_%s", name);
    /* Accelerator runtimes keep threads and thread-local data: once loaded they stay. */
    d->library = dlopen(path ? path : library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!d->library) {
        const char *error = dlerror();
        return tsri_fail(TSR_EDEVICE, "device %s: %s%s", name, error,
                         how_to_get(name, library, error));
    }
    d->ops = dlsym(d->library, symbol);
    if (!d->ops)
        return tsri_fail(TSR_EDEVICE, "device %s: %s has no %s", name, path ? path : library,
                         symbol);
    return 0;
}

/* In abi 1 stream_open had no flags. */
#define ABI_MIN 2u

static int check_table(const struct tsr_device_ops *ops, const char *name)
{
    if (ops->abi < ABI_MIN || ops->abi > TSR_DEVICE_ABI)
        return tsri_fail(TSR_EVERSION, "device %s: abi %u, this library knows %u to %u", name,
                         ops->abi, ABI_MIN, TSR_DEVICE_ABI);
    bool streams = ops->stream_open && ops->stream_close && ops->stream_sync;
    bool events = ops->event_open && ops->event_close && ops->event_record && ops->event_wait &&
                  ops->event_sync;
    if (!ops->open || !ops->close || !ops->alloc || !ops->free || !ops->copy || !ops->gather ||
        !ops->scatter || !ops->host_alloc != !ops->host_free ||
        !ops->host_register != !ops->host_unregister || !ops->batch_open != !ops->batch_close ||
        (ops->batch_open && !ops->batch_set) || ((ops->caps & TSR_DEVICE_ASYNC) && !streams) ||
        ((ops->caps & TSR_DEVICE_ASYNC) && !events) || (ops->stream_open && !streams) ||
        (ops->event_open && !events))
        return tsri_fail(TSR_EDEVICE, "device %s: the table lacks a required member", name);
    return 0;
}

static const struct tsr_device_ops *built_in(const char *name)
{
    for (uint32_t i = 0; i < TSRI_COUNT(known); i++)
        if (strcmp(known[i].name, name) == 0) return known[i].ops;
    return NULL;
}

int tsri_device_open(struct tsri_device **out, const char *name, const struct tsr_device_desc *desc)
{
    *out = NULL;
    if (!name || !is_name(name))
        return tsri_fail(TSR_EINVAL, "device name \"%s\"", name ? name : "");
    if (desc && desc->size < sizeof *desc)
        return tsri_fail(TSR_EINVAL, "device %s: desc: size is not set", name);
    struct tsr_device_desc with_fail = {.size = sizeof with_fail};
    if (desc) with_fail = *desc;
    with_fail.fail = fail_text;
    struct tsri_device *d = tsri_alloc(1, sizeof *d);
    if (!d) return TSR_ENOMEM;
    d->ops = with_fail.library ? NULL : built_in(name);
    int e = d->ops ? 0 : load(d, name, with_fail.library);
    if (!e) e = check_table(d->ops, name);
    if (!e) e = d->ops->open(&d->impl, &with_fail);
    if (e) {
        if (d->library) dlclose(d->library);
        tsri_free(d);
        return e;
    }
    *out = d;
    return 0;
}

void tsri_device_close(struct tsri_device *d)
{
    if (!d) return;
    d->ops->close(d->impl);
    if (d->library) dlclose(d->library);
    tsri_free(d);
}

const char *tsri_device_name(const struct tsri_device *d)
{
    return d->ops->name;
}

uint32_t tsri_device_caps(const struct tsri_device *d)
{
    return d->ops->caps;
}

int tsri_device_info(struct tsri_device *d, struct tsr_device_info *out)
{
    if (!out || out->size < sizeof *out)
        return tsri_fail(TSR_EINVAL, "device info: size is not set");
    *out = (struct tsr_device_info){.size = sizeof *out};
    snprintf(out->text, sizeof out->text, "%s", d->ops->name);
    return d->ops->info ? d->ops->info(d->impl, out) : 0;
}

/* ---- memory ---- */

#define HOST_ALIGN 4096u

int tsri_device_alloc(struct tsri_device *d, void **out, size_t bytes)
{
    *out = NULL;
    if (!bytes) return tsri_fail(TSR_EINVAL, "device %s: zero bytes", d->ops->name);
    return d->ops->alloc(d->impl, out, bytes);
}

void tsri_device_free(struct tsri_device *d, void *p)
{
    if (p) d->ops->free(d->impl, p);
}

int tsri_device_host_alloc(struct tsri_device *d, void **out, size_t bytes)
{
    *out = NULL;
    if (!bytes || bytes > SIZE_MAX - HOST_ALIGN)
        return tsri_fail(TSR_EINVAL, "host memory: %zu bytes", bytes);
    if (d->ops->host_alloc) return d->ops->host_alloc(d->impl, out, bytes);
    *out = aligned_alloc(HOST_ALIGN, tsri_align_up(bytes, HOST_ALIGN));
    return *out ? 0 : tsri_fail(TSR_ENOMEM, "out of host memory: %zu bytes", bytes);
}

void tsri_device_host_free(struct tsri_device *d, void *p)
{
    if (!p) return;
    if (d->ops->host_free)
        d->ops->host_free(d->impl, p);
    else
        free(p);
}

int tsri_device_host_register(struct tsri_device *d, void *p, size_t bytes)
{
    if (!p || !bytes || ((uintptr_t)p | bytes) % HOST_ALIGN)
        return tsri_fail(TSR_EINVAL, "register: %zu bytes at %p are not whole pages", bytes, p);
    return d->ops->host_register ? d->ops->host_register(d->impl, p, bytes) : 0;
}

void tsri_device_host_unregister(struct tsri_device *d, void *p)
{
    if (p && d->ops->host_unregister) d->ops->host_unregister(d->impl, p);
}

/* ---- streams and events: without them everything is done when it returns ---- */

int tsri_stream_open(struct tsr_device_stream **out, struct tsri_device *d, void *native,
                     uint32_t flags)
{
    *out = NULL;
    return d->ops->stream_open ? d->ops->stream_open(d->impl, out, native, flags) : 0;
}

void tsri_stream_close(struct tsri_device *d, struct tsr_device_stream *s)
{
    if (s) d->ops->stream_close(d->impl, s);
}

int tsri_stream_sync(struct tsri_device *d, struct tsr_device_stream *s)
{
    return d->ops->stream_sync ? d->ops->stream_sync(d->impl, s) : 0;
}

int tsri_event_open(struct tsr_device_event **out, struct tsri_device *d)
{
    *out = NULL;
    return d->ops->event_open ? d->ops->event_open(d->impl, out) : 0;
}

void tsri_event_close(struct tsri_device *d, struct tsr_device_event *e)
{
    if (e) d->ops->event_close(d->impl, e);
}

int tsri_event_record(struct tsri_device *d, struct tsr_device_event *e,
                      struct tsr_device_stream *s)
{
    return d->ops->event_record ? d->ops->event_record(d->impl, e, s) : 0;
}

int tsri_event_wait(struct tsri_device *d, struct tsr_device_event *e, struct tsr_device_stream *s)
{
    return d->ops->event_wait ? d->ops->event_wait(d->impl, e, s) : 0;
}

int tsri_event_sync(struct tsri_device *d, struct tsr_device_event *e)
{
    return d->ops->event_sync ? d->ops->event_sync(d->impl, e) : 0;
}

/* ---- operations without a batch ---- */

int tsri_device_copy(struct tsri_device *d, struct tsr_device_stream *s,
                     const struct tsr_copy *copies, size_t n)
{
    if (n && !copies) return tsri_fail(TSR_EINVAL, "copy: no list");
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (copies[i].bytes && (!copies[i].dst || !copies[i].src))
            return tsri_fail(TSR_EINVAL, "copy %zu: no %s", i, copies[i].dst ? "source" : "target");
        bytes |= copies[i].bytes;
    }
    return bytes ? d->ops->copy(d->impl, s, copies, n) : 0;
}

/* Indices that a device may add a block of threads to without thinking. */
#define TOP_K_MAX (1u << 30)

int tsri_device_top_k(struct tsri_device *d, struct tsr_device_stream *s, const struct tsr_top_k *t)
{
    if (!t->scores || !t->out || (uintptr_t)t->scores % 4 || (uintptr_t)t->out % 4)
        return tsri_fail(TSR_EINVAL, "top k: missing or unaligned pointer");
    if (!t->n || !t->k || t->k > t->n || t->n > TOP_K_MAX)
        return tsri_fail(TSR_EINVAL, "top k: %u of %u scores", t->k, t->n);
    if (!d->ops->top_k)
        return tsri_fail(TSR_EUNSUP, "device %s: top k is not supported", d->ops->name);
    return d->ops->top_k(d->impl, s, t);
}
