/* plugin_wrong.c - a device that says it is done and has moved nothing: what measures or tests a
 * device must notice. */
#include <tessera/device.h>

#include <stdlib.h>
#include <string.h>

static int wrong_open(struct tsr_device **out, const struct tsr_device_desc *desc)
{
    *out = malloc(1); /* nothing of it is used */
    return *out ? 0 : desc->fail(TSR_ENOMEM, "device wrong: no memory");
}

static void wrong_close(struct tsr_device *d)
{
    free(d);
}

static int wrong_alloc(struct tsr_device *d, void **out, size_t bytes)
{
    (void)d;
    *out = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return *out ? 0 : TSR_ENOMEM;
}

static void wrong_free(struct tsr_device *d, void *p)
{
    (void)d;
    free(p);
}

static int wrong_copy(struct tsr_device *d, struct tsr_device_stream *s,
                      const struct tsr_copy *copies, size_t n)
{
    (void)d;
    (void)s;
    for (size_t i = 0; i < n; i++)
        memcpy(copies[i].dst, copies[i].src, copies[i].bytes);
    return 0;
}

static int wrong_move(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_batch *b,
                      uint32_t layer_first, uint32_t n_layers)
{
    (void)d;
    (void)s;
    (void)b;
    (void)layer_first;
    (void)n_layers;
    return 0;
}

extern TSR_API const struct tsr_device_ops tsr_device_wrong;
const struct tsr_device_ops tsr_device_wrong = {
    .abi = TSR_DEVICE_ABI,
    .name = "wrong",
    .open = wrong_open,
    .close = wrong_close,
    .alloc = wrong_alloc,
    .free = wrong_free,
    .copy = wrong_copy,
    .gather = wrong_move,
    .scatter = wrong_move,
};
