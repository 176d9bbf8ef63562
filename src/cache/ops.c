/* ops.c - asynchronous operations: a bounded number of them, run by the cache's I/O threads. An
 * operation is the library's from start until its end is reported, and the caller's again after
 * close. */
#include "cache/ops.h"
#include "cache/backend.h"
#include "cache/clients.h"
#include "cache/manager.h"
#include "cache/source.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

struct tsr_op {
    struct tsri_job job; /* first */
    struct tsri_ops *ops;
    struct tsr_client *client;
    struct tsri_loader loader;
    struct tsr_store_desc store; /* kind 0: a load */
    tsr_done_fn done_fn;
    void *done_arg;
    /* under ops->lock: */
    bool finished, called_back;
    uint32_t layers_done;
    int result;
    char message[256]; /* why, when the result is an error: tsr_errmsg() is per thread */
    struct tsr_op *next_free;
};

struct tsri_ops {
    struct tsr_cache *c;
    struct tsri_work *work;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct tsr_op *all, *free;
    uint32_t n_fresh, max;
};

int tsri_ops_open(struct tsri_ops **out, struct tsr_cache *c)
{
    struct tsri_ops *ops = tsri_alloc(1, sizeof *ops);
    if (!ops) return TSR_ENOMEM;
    ops->c = c;
    ops->max = c->options.ops_max;
    ops->all = tsri_alloc(ops->max, sizeof *ops->all);
    int e = ops->all ? 0 : TSR_ENOMEM;
    if (e == 0)
        e = tsri_work_open(&ops->work, "tessera-io", c->options.io_threads,
                           c->options.io_queue_max);
    if (e) {
        tsri_free(ops->all);
        tsri_free(ops);
        return e;
    }
    tsri_cond_init(&ops->changed);
    pthread_mutex_init(&ops->lock, NULL);
    *out = ops;
    return 0;
}

void tsri_ops_close(struct tsri_ops *ops)
{
    if (!ops) return;
    tsri_work_close(ops->work);
    pthread_cond_destroy(&ops->changed);
    pthread_mutex_destroy(&ops->lock);
    tsri_free(ops->all);
    tsri_free(ops);
}

struct tsri_work *tsri_ops_work(struct tsri_ops *ops)
{
    return ops->work;
}

static void layer_arrived(struct tsri_loader *loader, uint32_t layer)
{
    struct tsr_op *op = loader->arg;
    pthread_mutex_lock(&op->ops->lock);
    op->layers_done = layer + 1;
    pthread_cond_broadcast(&op->ops->changed);
    pthread_mutex_unlock(&op->ops->lock);
}

static void run_op(struct tsri_job *job)
{
    struct tsr_op *op = (struct tsr_op *)job;
    const struct tsri_backend *backend = tsri_client_cache(op->client)->backend;
    int result =
        op->store.kind ? backend->store(op->client, &op->store) : tsri_loader_run(&op->loader);
    struct tsri_ops *ops = op->ops;
    pthread_mutex_lock(&ops->lock);
    op->finished = true;
    op->result = result;
    if (result < 0) snprintf(op->message, sizeof op->message, "%s", tsr_errmsg());
    tsr_done_fn done = op->done_fn;
    if (!done) op->called_back = true;
    pthread_cond_broadcast(&ops->changed);
    pthread_mutex_unlock(&ops->lock);
    if (!done) return;
    done(op->done_arg, op);
    /* Close waits for this, so the operation is still here. */
    pthread_mutex_lock(&ops->lock);
    op->called_back = true;
    pthread_cond_broadcast(&ops->changed);
    pthread_mutex_unlock(&ops->lock);
}

static struct tsr_op *take(struct tsri_ops *ops)
{
    pthread_mutex_lock(&ops->lock);
    struct tsr_op *op = ops->free;
    if (op)
        ops->free = op->next_free;
    else if (ops->n_fresh < ops->max)
        op = &ops->all[ops->n_fresh++];
    pthread_mutex_unlock(&ops->lock);
    if (op) *op = (struct tsr_op){.job.run = run_op, .ops = ops};
    return op;
}

static void give(struct tsr_op *op)
{
    struct tsri_ops *ops = op->ops;
    pthread_mutex_lock(&ops->lock);
    op->next_free = ops->free;
    ops->free = op;
    pthread_mutex_unlock(&ops->lock);
}

int tsri_op_start(struct tsr_op **out, struct tsri_ops *ops, const struct tsri_op_desc *desc)
{
    struct tsr_op *op = take(ops);
    if (!op)
        return tsri_fail(TSR_EAGAIN, "%u operations are in flight, the limit (ops_max)", ops->max);
    op->client = desc->client;
    if (desc->store) op->store = *desc->store;
    op->done_fn = desc->done;
    op->done_arg = desc->arg;
    op->loader = (struct tsri_loader){.client = desc->client,
                                      .loads = desc->loads,
                                      .n = desc->n_loads,
                                      .layer_done = layer_arrived,
                                      .arg = op};
    /* Written before the job can run: done may be called before push returns. */
    *out = op;
    int e = tsri_work_push(ops->work, &op->job);
    if (e) {
        *out = NULL;
        give(op);
    }
    return e;
}

/* A negative timeout is none. */
static uint64_t deadline(int timeout_ms)
{
    return timeout_ms < 0 ? 0 : tsri_now_ns() + (uint64_t)timeout_ms * 1000000;
}

/* No thread of a forked child will ever end it. */
static int refuse_child(void)
{
    return tsri_fail(TSR_EFORK, "the operation belongs to the parent process");
}

int tsr_op_wait(struct tsr_op *op, int timeout_ms)
{
    if (!op) return tsri_fail(TSR_EINVAL, "op is NULL");
    uint64_t until = deadline(timeout_ms);
    struct tsri_ops *ops = op->ops;
    if (tsri_forked(ops->c)) return refuse_child();
    pthread_mutex_lock(&ops->lock);
    while (!op->finished && tsri_cond_wait(&ops->changed, &ops->lock, until)) {
    }
    bool finished = op->finished;
    pthread_mutex_unlock(&ops->lock);
    if (!finished) return tsri_fail(TSR_ETIME, "the operation is not done after %d ms", timeout_ms);
    return op->result < 0 ? tsri_fail(op->result, "%s", op->message) : op->result;
}

int tsr_op_wait_layer(struct tsr_op *op, uint32_t layer, int timeout_ms)
{
    if (!op || op->store.kind) return tsri_fail(TSR_EINVAL, "only loads have layers");
    uint64_t until = deadline(timeout_ms);
    struct tsri_ops *ops = op->ops;
    if (tsri_forked(ops->c)) return refuse_child();
    pthread_mutex_lock(&ops->lock);
    while (op->layers_done <= layer && !op->finished &&
           tsri_cond_wait(&ops->changed, &ops->lock, until)) {
    }
    bool there = op->layers_done > layer, finished = op->finished;
    pthread_mutex_unlock(&ops->lock);
    if (finished && op->result < 0) return tsri_fail(op->result, "%s", op->message);
    if (there || finished) return 0;
    return tsri_fail(TSR_ETIME, "layer %u has not arrived after %d ms", layer, timeout_ms);
}

void tsr_op_close(struct tsr_op *op)
{
    if (!op || tsri_forked(op->ops->c)) return;
    struct tsri_ops *ops = op->ops;
    pthread_mutex_lock(&ops->lock);
    while (!op->finished || !op->called_back)
        pthread_cond_wait(&ops->changed, &ops->lock);
    pthread_mutex_unlock(&ops->lock);
    give(op);
}
