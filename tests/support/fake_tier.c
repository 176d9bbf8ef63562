/* fake_tier.c - a wrapper that makes any tier slow, faulty or stopped at a gate; and the tier that
 * has no room. */
#include "support/fake_tier.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct fake {
    struct tsr_tier base; /* first */
    struct fake_tier_plan *plan;
    struct tsr_tier *inner;
};

void fake_tier_plan_init(struct fake_tier_plan *p)
{
    fake_tier_plan_init_over(p, &mem_tier, &p->mem);
}

void fake_tier_plan_init_over(struct fake_tier_plan *p, const struct tsr_tier_ops *inner, void *arg)
{
    memset(p, 0, sizeof *p);
    p->inner = inner;
    p->inner_arg = arg;
    mem_tier_store_init(&p->mem, 0);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->cond, NULL);
}

void fake_tier_plan_fini(struct fake_tier_plan *p)
{
    pthread_cond_destroy(&p->cond);
    pthread_mutex_destroy(&p->lock);
    mem_tier_store_fini(&p->mem);
}

void fake_tier_fail(struct fake_tier_plan *p, uint32_t calls, uint32_t nth, uint32_t again,
                    int error)
{
    atomic_store(&p->fail_nth, 0);
    atomic_store(&p->n_counted, 0);
    atomic_store(&p->fail_calls, calls);
    atomic_store(&p->fail_again, again);
    atomic_store(&p->fail_error, error);
    atomic_store(&p->fail_nth, nth);
}

void fake_tier_gate(struct fake_tier_plan *p, uint32_t calls)
{
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->gate_calls, calls);
    p->gate_shut = calls != 0;
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->lock);
}

void fake_tier_gate_wait(struct fake_tier_plan *p, uint32_t n)
{
    pthread_mutex_lock(&p->lock);
    while (p->n_waiting < n)
        pthread_cond_wait(&p->cond, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static void wait_us(uint32_t us)
{
    struct timespec t = {us / 1000000, (long)(us % 1000000) * 1000};
    while (us && nanosleep(&t, &t) != 0)
        ;
}

static void stand_at_gate(struct fake_tier_plan *p, uint32_t call)
{
    if (!(atomic_load(&p->gate_calls) & call)) return;
    pthread_mutex_lock(&p->lock);
    p->n_waiting++;
    pthread_cond_broadcast(&p->cond);
    while (p->gate_shut)
        pthread_cond_wait(&p->cond, &p->lock);
    p->n_waiting--;
    pthread_mutex_unlock(&p->lock);
}

/* Before every call: counts, waits, and says whether it fails. Ended by leave(). */
static int enter(struct fake_tier_plan *p, uint32_t call)
{
    atomic_fetch_add(&p->n_calls, 1);
    uint32_t now = atomic_fetch_add(&p->n_now, 1) + 1, max = atomic_load(&p->n_now_max);
    while (now > max && !atomic_compare_exchange_weak(&p->n_now_max, &max, now))
        ;
    stand_at_gate(p, call);
    uint32_t delay_calls = atomic_load(&p->delay_calls);
    if (!delay_calls || (delay_calls & call)) wait_us(atomic_load(&p->delay_us));
    uint32_t nth = atomic_load(&p->fail_nth);
    if (!nth || !(atomic_load(&p->fail_calls) & call)) return 0;
    uint32_t i = atomic_fetch_add(&p->n_counted, 1) + 1;
    return i >= nth && i - nth <= atomic_load(&p->fail_again) ? atomic_load(&p->fail_error) : 0;
}

static void leave(struct fake_tier_plan *p)
{
    atomic_fetch_sub(&p->n_now, 1);
}

static int fake_open(struct tsr_tier **out, const struct tsr_tier_desc *desc)
{
    struct fake *f = calloc(1, sizeof *f);
    if (!f) return TSR_ENOMEM;
    f->plan = desc->arg;
    struct tsr_tier_desc inner = *desc;
    inner.arg = f->plan->inner_arg;
    int err = f->plan->inner->open(&f->inner, &inner);
    if (err < 0) {
        free(f);
        return err;
    }
    f->inner->ops = f->plan->inner;
    *out = &f->base;
    return 0;
}

static void fake_close(struct tsr_tier *tier)
{
    struct fake *f = (struct fake *)tier;
    f->inner->ops->close(f->inner);
    free(f);
}

static int fail_all(struct tsr_tier_io *io, size_t n, int err)
{
    for (size_t i = 0; i < n; i++)
        io[i].result = err;
    return 0;
}

static int fake_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    struct fake *f = (struct fake *)tier;
    atomic_fetch_add(&f->plan->n_puts, n);
    int err = enter(f->plan, FAKE_PUT);
    int r = err ? fail_all(io, n, err) : f->inner->ops->put(f->inner, io, n);
    leave(f->plan);
    return r;
}

/* The caller's callbacks, called after the layer's delay. */
struct slow_get {
    struct tsr_tier_io *io;
    uint32_t delay_us;
};

static int slow_head(struct tsr_tier_io *io)
{
    struct slow_get *s = io->arg;
    struct tsr_tier_io *caller = s->io;
    caller->head = io->head;
    caller->loc = io->loc;
    return caller->head_done ? caller->head_done(caller) : 0;
}

static void slow_layer(struct tsr_tier_io *io, uint32_t layer)
{
    struct slow_get *s = io->arg;
    wait_us(s->delay_us);
    if (s->io->layer_done) s->io->layer_done(s->io, layer);
}

static int get_slowly(struct fake *f, struct tsr_tier_io *io, uint32_t delay_us)
{
    struct slow_get s = {io, delay_us};
    struct tsr_tier_io copy = *io;
    copy.head_done = slow_head;
    copy.layer_done = slow_layer;
    copy.arg = &s;
    int r = f->inner->ops->get(f->inner, &copy, 1);
    io->head = copy.head;
    io->loc = copy.loc;
    io->result = r < 0 ? r : copy.result;
    return io->result >= 0;
}

static int fake_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    struct fake *f = (struct fake *)tier;
    atomic_fetch_add(&f->plan->n_gets, n);
    int err = enter(f->plan, FAKE_GET);
    uint32_t layer_delay = atomic_load(&f->plan->layer_delay_us);
    int r = 0;
    if (err)
        r = fail_all(io, n, err);
    else if (!layer_delay)
        r = f->inner->ops->get(f->inner, io, n);
    else
        for (size_t i = 0; i < n; i++)
            r += get_slowly(f, &io[i], layer_delay);
    leave(f->plan);
    return r;
}

static int fake_drop(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n)
{
    struct fake *f = (struct fake *)tier;
    atomic_fetch_add(&f->plan->n_drops, n);
    int err = enter(f->plan, FAKE_DROP);
    int r = err ? err : f->inner->ops->drop(f->inner, refs, n);
    leave(f->plan);
    return r;
}

static int fake_scan(struct tsr_tier *tier, tsr_tier_scan_fn fn, void *arg)
{
    struct fake *f = (struct fake *)tier;
    atomic_fetch_add(&f->plan->n_scans, 1);
    int err = enter(f->plan, FAKE_SCAN);
    int r = err ? err : f->inner->ops->scan ? f->inner->ops->scan(f->inner, fn, arg) : 0;
    leave(f->plan);
    return r;
}

static int fake_contains(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n,
                         uint8_t *found)
{
    struct fake *f = (struct fake *)tier;
    atomic_fetch_add(&f->plan->n_contains, n);
    int r = enter(f->plan, FAKE_CONTAINS);
    if (!r && f->inner->ops->contains) r = f->inner->ops->contains(f->inner, refs, n, found);
    leave(f->plan);
    return r;
}

static int fake_flush(struct tsr_tier *tier)
{
    struct fake *f = (struct fake *)tier;
    atomic_fetch_add(&f->plan->n_flushes, 1);
    int r = enter(f->plan, FAKE_FLUSH);
    if (!r && f->inner->ops->flush) r = f->inner->ops->flush(f->inner);
    leave(f->plan);
    return r;
}

static int fake_stats(struct tsr_tier *tier, struct tsr_tier_stats *out)
{
    struct fake *f = (struct fake *)tier;
    return f->inner->ops->stats ? f->inner->ops->stats(f->inner, out) : 0;
}

const struct tsr_tier_ops fake_tier = {
    .abi = TSR_TIER_ABI,
    .name = "fake",
    .open = fake_open,
    .close = fake_close,
    .put = fake_put,
    .get = fake_get,
    .drop = fake_drop,
    .scan = fake_scan,
    .contains = fake_contains,
    .flush = fake_flush,
    .stats = fake_stats,
};

static int null_open(struct tsr_tier **out, const struct tsr_tier_desc *desc)
{
    (void)desc;
    *out = calloc(1, sizeof **out);
    return *out ? 0 : TSR_ENOMEM;
}

static void null_close(struct tsr_tier *tier)
{
    free(tier);
}

static int null_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    (void)tier;
    return fail_all(io, n, TSR_EFULL);
}

static int null_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    (void)tier;
    return fail_all(io, n, TSR_ENOENT);
}

static int null_drop(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n)
{
    (void)tier, (void)refs, (void)n;
    return 0;
}

const struct tsr_tier_ops null_tier = {
    .abi = TSR_TIER_ABI,
    .name = "null",
    .open = null_open,
    .close = null_close,
    .put = null_put,
    .get = null_get,
    .drop = null_drop,
};
