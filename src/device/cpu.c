/* cpu.c - the cpu as a device: the reference for all others, and the fast one where engines compute
 * on the host. A variant is chosen at open: "reference" (reference.c), or a set of kernels under
 * move.c. Threads are the device's own, started at open; a call is cut into equal shares, of which
 * the caller takes one. */
#include "device/device.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ALIGN 4096u
#define THREADS_MAX 64u
#define QUEUE_MAX 1024u
/* Bytes that are worth a thread. Handing over a share and waiting for it costs 5 to 6 us. With two
 * shares of 128 KiB that is all they save, of 256 KiB they are 1.5 times as fast, of 512 KiB 1.7
 * times, where a core is free; where none is, they cost 40, 21 and 9 % (rotation and copy of f16,
 * docs/performance.md). */
#define SHARE_BYTES ((uint64_t)512 << 10)

/* From here on, several times what a core's own cache holds, a call writes past the caches and
 * saves reading each line first: 1.2 to 1.6 times memcpy at 16 MB and up, 0.85 without
 * (bench_copy). Layer by layer, a load of fewer bytes stays in the caches for the attention that
 * reads it next. */
#define STREAM_BYTES ((uint64_t)8 << 20)

struct tsr_device {
    const struct tsri_kernels *kernels; /* NULL: the reference */
    struct tsri_work *work;             /* NULL: the caller does it all */
    uint32_t n_threads;
};

/* ---- open and close ---- */

static const struct tsri_kernels *kernels_at(uint32_t i)
{
    const struct tsri_kernels *k = tsri_kernels_x86(i);
    return k ? k : tsri_kernels_arm(i);
}

static int choose(struct tsr_device *d, const char *variant)
{
    const struct tsri_kernels *k;
    if (variant && strcmp(variant, "reference") == 0) return 0;
    bool found = !variant || strcmp(variant, "plain") == 0;
    if (found) d->kernels = &tsri_kernels_plain;
    for (uint32_t i = 0; (k = kernels_at(i)) != NULL; i++) {
        bool wanted = !variant || strcmp(variant, k->name) == 0;
        if (wanted && k->supported()) d->kernels = k;
        found = found || wanted;
    }
    if (!d->kernels)
        return tsri_fail(found ? TSR_EUNSUP : TSR_EINVAL, "device cpu: %s variant \"%s\"",
                         found ? "this machine cannot run" : "no", variant);
    return 0;
}

static void cpu_close(struct tsr_device *d)
{
    tsri_work_close(d->work);
    tsri_free(d);
}

static int cpu_open(struct tsr_device **out, const struct tsr_device_desc *desc)
{
    if (desc->ordinal)
        return tsri_fail(TSR_EDEVICE, "device cpu: no device number %u", desc->ordinal);
    if (desc->n_threads > THREADS_MAX)
        return tsri_fail(TSR_EINVAL, "device cpu: %u threads, limit %u", desc->n_threads,
                         THREADS_MAX);
    struct tsr_device *d = tsri_alloc(1, sizeof *d);
    if (!d) return TSR_ENOMEM;
    d->n_threads = desc->n_threads;
    int e = choose(d, desc->variant);
    if (!e && d->n_threads) e = tsri_work_open(&d->work, "tessera-cpu", d->n_threads, QUEUE_MAX);
    if (e) {
        cpu_close(d);
        return e;
    }
    *out = d;
    return 0;
}

static int cpu_info(struct tsr_device *d, struct tsr_device_info *out)
{
    snprintf(out->text, sizeof out->text, "%s, %u threads",
             d->kernels ? d->kernels->name : "reference", d->n_threads);
    long page = sysconf(_SC_PAGESIZE), total = sysconf(_SC_PHYS_PAGES);
    long available = sysconf(_SC_AVPHYS_PAGES);
    if (page > 0 && total > 0) out->bytes_total = (uint64_t)page * (uint64_t)total;
    if (page > 0 && available > 0) out->bytes_free = (uint64_t)page * (uint64_t)available;
    return 0;
}

static int cpu_alloc(struct tsr_device *d, void **out, size_t bytes)
{
    (void)d;
    *out = bytes > SIZE_MAX - ALIGN ? NULL : aligned_alloc(ALIGN, tsri_align_up(bytes, ALIGN));
    return *out ? 0 : tsri_fail(TSR_ENOMEM, "device cpu: out of memory: %zu bytes", bytes);
}

static void cpu_free(struct tsr_device *d, void *p)
{
    (void)d;
    free(p);
}

/* ---- shares ---- */

typedef void (*share_fn)(const void *arg, uint64_t first, uint64_t n);
struct team {
    share_fn fn;
    const void *arg;
    atomic_uint n_left; /* of the other threads' shares */
    sem_t done;
};
struct share {
    struct tsri_job job; /* first: the queue hands it back */
    struct team *team;
    uint64_t first, n;
};

static void run_share(struct tsri_job *job)
{
    struct share *s = (struct share *)job;
    struct team *team = s->team;
    team->fn(team->arg, s->first, s->n);
    if (atomic_fetch_sub(&team->n_left, 1) == 1) sem_post(&team->done);
}

/* fn over [0, n_units), on several threads when there are that many bytes. */
static void split(struct tsr_device *d, uint64_t bytes, uint64_t n_units, share_fn fn,
                  const void *arg)
{
    uint64_t n_shares = bytes / SHARE_BYTES;
    if (n_shares > (uint64_t)d->n_threads + 1) n_shares = (uint64_t)d->n_threads + 1;
    if (n_shares > n_units) n_shares = n_units;
    if (n_shares < 2) {
        fn(arg, 0, n_units);
        return;
    }
    struct team team = {.fn = fn, .arg = arg};
    struct share shares[THREADS_MAX + 1];
    atomic_init(&team.n_left, (unsigned)(n_shares - 1));
    sem_init(&team.done, 0, 0);
    for (uint64_t i = 1; i < n_shares; i++) {
        uint64_t first = n_units * i / n_shares;
        shares[i] =
            (struct share){{run_share, NULL}, &team, first, n_units * (i + 1) / n_shares - first};
        /* A full queue is other callers' work: do this share here. */
        if (tsri_work_push(d->work, &shares[i].job) != 0) run_share(&shares[i].job);
    }
    fn(arg, 0, n_units / n_shares);
    while (sem_wait(&team.done) != 0)
        ; /* interrupted by a signal */
    sem_destroy(&team.done);
}

/* ---- operations ---- */

static void copy_share(const void *arg, uint64_t first, uint64_t n)
{
    for (const struct tsr_copy *c = arg; n > 0; c++) {
        if (first >= c->bytes) {
            first -= c->bytes;
            continue;
        }
        uint64_t here = c->bytes - first < n ? c->bytes - first : n;
        memcpy((uint8_t *)c->dst + first, (const uint8_t *)c->src + first, here);
        n -= here;
        first = 0;
    }
}

static int cpu_copy(struct tsr_device *d, struct tsr_device_stream *s,
                    const struct tsr_copy *copies, size_t n)
{
    (void)s;
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += copies[i].bytes;
    split(d, bytes, bytes, copy_share, copies);
    return 0;
}

struct move_args {
    struct tsri_move move;
    uint32_t layer_first;
};

/* Units are (layer, plane, token), tokens innermost. */
static void move_share(const void *arg, uint64_t first, uint64_t n)
{
    const struct move_args *a = arg;
    uint32_t n_tokens = a->move.batch->n_tokens, n_planes = a->move.batch->layout->n_planes;
    while (n > 0) {
        uint32_t token = (uint32_t)(first % n_tokens), row = (uint32_t)(first / n_tokens);
        uint32_t here = n < n_tokens - token ? (uint32_t)n : n_tokens - token;
        tsri_move_tokens(&a->move, a->layer_first + row / n_planes, row % n_planes, token, here);
        first += here;
        n -= here;
    }
    if (a->move.streams) a->move.kernels->fence();
}

static int move(struct tsr_device *d, const struct tsr_batch *b, bool to_engine,
                struct tsr_range layers)
{
    const struct tsr_kv_layout *l = b->layout;
    if (b->n_tokens == 0) return 0;
    if (!d->kernels) {
        for (uint32_t i = 0; i < layers.n_tokens; i++)
            for (uint32_t p = 0; p < l->n_planes; p++)
                for (uint32_t r = 0; r < b->n_runs; r++)
                    tsri_reference_move(b, to_engine, layers.offset + i, p, r);
        return 0;
    }
    uint64_t row = 0;
    for (uint32_t p = 0; p < l->n_planes; p++)
        row += tsri_row_bytes(&l->planes[p]);
    uint64_t n = (uint64_t)layers.n_tokens * b->n_tokens;
    bool streams = n * row >= STREAM_BYTES && d->kernels->stream;
    struct move_args a = {{b, d->kernels, to_engine, streams}, layers.offset};
    split(d, n * row, n * l->n_planes, move_share, &a);
    return 0;
}

static int cpu_gather(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_batch *b,
                      uint32_t layer_first, uint32_t n_layers)
{
    (void)s;
    return move(d, b, false, (struct tsr_range){layer_first, n_layers});
}

static int cpu_scatter(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_batch *b,
                       uint32_t layer_first, uint32_t n_layers)
{
    (void)s;
    return move(d, b, true, (struct tsr_range){layer_first, n_layers});
}

static int cpu_top_k(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_top_k *t)
{
    (void)s;
    if (d->kernels)
        tsri_move_top_k(t);
    else
        tsri_reference_top_k(t);
    return 0;
}

const struct tsr_device_ops tsri_device_cpu = {
    .abi = TSR_DEVICE_ABI,
    .caps = 0,
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = cpu_copy,
    .gather = cpu_gather,
    .scatter = cpu_scatter,
    .scatter_rotate = cpu_scatter,
    .top_k = cpu_top_k,
};
