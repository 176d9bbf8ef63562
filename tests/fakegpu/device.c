/* device.c - the fake GPU as a device plug-in: its table, its handles, and what tests tell it
 * (support/fakegpu.h). */
#include "fakegpu/parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define DELAY_ONE_IN 8u
#define DELAY_US 100u

struct fake_state fake = {.lock = PTHREAD_MUTEX_INITIALIZER,
                          .passed = PTHREAD_COND_INITIALIZER,
                          .delay_one_in = DELAY_ONE_IN,
                          .delay_us = DELAY_US,
                          .seed = 1};

void fake_die(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("fakegpu: ", stderr);
    vfprintf(stderr, fmt, args); // NOLINT(clang-analyzer-valist.Uninitialized)
    fputc('\n', stderr);
    va_end(args);
    fflush(stdout);
    abort();
}

/* ---- open and close ---- */

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *env = getenv(name);
    return env ? strtoull(env, NULL, 10) : otherwise;
}

static void read_env(void)
{
    fake.seed = env_number("FAKEGPU_SEED", 1);
    fake.delay_us = (uint32_t)env_number("FAKEGPU_DELAY_US", DELAY_US);
    fake_register_max = env_number("FAKEGPU_REGISTER_MAX", UINT64_MAX);
    fake_faults_from_env();
}

static int device_open(struct tsr_device **out, const struct tsr_device_desc *desc)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_env);
    struct tsr_device *d = calloc(1, sizeof *d);
    if (!d) fake_die("out of memory");
    *d = (struct tsr_device){.fail = desc->fail, .ordinal = desc->ordinal};
    int e = fake_fault(d, FAKE_OPEN);
    if (!e && desc->ordinal >= FAKE_ORDINALS)
        e = desc->fail(TSR_EDEVICE, "fakegpu: no such device number");
    if (e) {
        free(d);
        return e;
    }
    pthread_mutex_lock(&fake.lock);
    bool first = fake.n_open[d->ordinal]++ == 0;
    pthread_mutex_unlock(&fake.lock);
    if (first) fake.defaults[d->ordinal] = fake_queue_open(d->ordinal, 0);
    *out = d;
    return 0;
}

static void device_close(struct tsr_device *d)
{
    pthread_mutex_lock(&fake.lock);
    if (d->n_streams || d->n_events || d->n_batches)
        fake_die("close: %u streams, %u events, %u batches were not closed", d->n_streams,
                 d->n_events, d->n_batches);
    fake_memory_check_closed(d);
    bool last = --fake.n_open[d->ordinal] == 0;
    pthread_mutex_unlock(&fake.lock);
    if (last) fake_queue_close(fake.defaults[d->ordinal]);
    free(d);
}

static int device_info(struct tsr_device *d, struct tsr_device_info *out)
{
    snprintf(out->text, sizeof out->text, "fake GPU %u, for tests", d->ordinal);
    pthread_mutex_lock(&fake.lock);
    out->bytes_total = fake_memory_max;
    out->bytes_free = fake_memory_max > fake_allocated ? fake_memory_max - fake_allocated : 0;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

/* ---- memory ---- */

static int device_take(struct tsr_device *d, enum fake_kind kind, void **out, size_t bytes)
{
    int e = fake_fault(d, kind == FAKE_DEVICE ? FAKE_ALLOC : FAKE_HOST_ALLOC);
    if (e) return e;
    pthread_mutex_lock(&fake.lock);
    e = fake_memory_add(d, kind, out, bytes);
    pthread_mutex_unlock(&fake.lock);
    return e;
}

static void device_give(struct tsr_device *d, enum fake_kind kind, void *p)
{
    pthread_mutex_lock(&fake.lock);
    fake_memory_remove(d, kind, p);
    pthread_mutex_unlock(&fake.lock);
}

static int device_alloc(struct tsr_device *d, void **out, size_t bytes)
{
    return device_take(d, FAKE_DEVICE, out, bytes);
}

static void device_free(struct tsr_device *d, void *p)
{
    device_give(d, FAKE_DEVICE, p);
}

static int device_host_alloc(struct tsr_device *d, void **out, size_t bytes)
{
    return device_take(d, FAKE_HOST, out, bytes);
}

static void device_host_free(struct tsr_device *d, void *p)
{
    device_give(d, FAKE_HOST, p);
}

static int device_register(struct tsr_device *d, void *p, size_t bytes)
{
    int e = fake_fault(d, FAKE_HOST_REGISTER);
    if (e) return e;
    usleep(fake.register_us);
    pthread_mutex_lock(&fake.lock);
    e = fake_memory_register(d, p, bytes);
    pthread_mutex_unlock(&fake.lock);
    return e;
}

static void device_unregister(struct tsr_device *d, void *p)
{
    device_give(d, FAKE_REGISTERED, p);
}

extern TSR_API const struct tsr_device_ops tsr_device_fakegpu;
const struct tsr_device_ops tsr_device_fakegpu = {
    .abi = TSR_DEVICE_ABI,
    .caps = TSR_DEVICE_ASYNC | TSR_DEVICE_SEPARATE | TSR_DEVICE_NEEDS_LOCK,
    .name = "fakegpu",
    .open = device_open,
    .close = device_close,
    .info = device_info,
    .alloc = device_alloc,
    .free = device_free,
    .host_alloc = device_host_alloc,
    .host_free = device_host_free,
    .host_register = device_register,
    .host_unregister = device_unregister,
    .stream_open = fake_stream_open,
    .stream_close = fake_stream_close,
    .stream_sync = fake_stream_sync,
    .event_open = fake_event_open,
    .event_close = fake_event_close,
    .event_record = fake_event_record,
    .event_wait = fake_event_wait,
    .event_sync = fake_event_sync,
    .copy = fake_copy,
    .batch_open = fake_batch_open,
    .batch_close = fake_batch_close,
    .batch_set = fake_batch_set,
    .gather = fake_gather,
    .scatter = fake_scatter,
    .scatter_rotate = fake_scatter,
    .top_k = fake_top_k,
};

/* ---- what tests tell it ---- */

static void control_register_max(uint64_t bytes)
{
    pthread_mutex_lock(&fake.lock);
    fake_register_max = bytes;
    pthread_mutex_unlock(&fake.lock);
}

static void control_register_delay(uint32_t us)
{
    fake.register_us = us;
}

static void control_delay(uint64_t seed, uint32_t one_in, uint32_t most_us)
{
    pthread_mutex_lock(&fake.lock);
    fake.seed = seed;
    fake.delay_one_in = one_in ? one_in : 1;
    fake.delay_us = most_us;
    pthread_mutex_unlock(&fake.lock);
}

static void control_hold(bool held)
{
    pthread_mutex_lock(&fake.lock);
    fake.held = held;
    pthread_cond_broadcast(&fake.passed);
    pthread_mutex_unlock(&fake.lock);
}

static void control_lose(bool lost)
{
    pthread_mutex_lock(&fake.lock);
    fake.lost = lost;
    pthread_cond_broadcast(&fake.passed);
    pthread_mutex_unlock(&fake.lock);
}

static void control_memory_max(uint64_t bytes)
{
    pthread_mutex_lock(&fake.lock);
    fake_memory_max = bytes;
    pthread_mutex_unlock(&fake.lock);
}

static void control_reset(void)
{
    pthread_mutex_lock(&fake.lock);
    fake.held = fake.lost = false;
    fake.seed = 1;
    fake.delay_one_in = DELAY_ONE_IN;
    fake.delay_us = DELAY_US;
    fake.register_us = 0;
    fake_register_max = UINT64_MAX;
    fake_memory_max = FAKE_MEMORY;
    fake_faults_reset();
    pthread_cond_broadcast(&fake.passed);
    pthread_mutex_unlock(&fake.lock);
}

static uint64_t control_registered(void)
{
    pthread_mutex_lock(&fake.lock);
    uint64_t n = fake_registered;
    pthread_mutex_unlock(&fake.lock);
    return n;
}

extern TSR_API const struct fakegpu_control fakegpu_control;
const struct fakegpu_control fakegpu_control = {
    .fail = fake_control_fail,
    .fail_often = fake_control_fail_often,
    .register_max = control_register_max,
    .register_delay = control_register_delay,
    .delay = control_delay,
    .hold = control_hold,
    .lose = control_lose,
    .memory_max = control_memory_max,
    .reset = control_reset,
    .calls = fake_control_calls,
    .queued = fake_control_queued,
    .registered_bytes = control_registered,
    .view = fake_control_view,
    .stream_open = fake_control_stream_open,
    .stream_close = fake_control_stream_close,
    .stream_sync = fake_control_stream_sync,
    .launch = fake_control_launch,
};
