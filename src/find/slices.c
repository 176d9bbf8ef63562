/* slices.c - a long part of a prompt is matched in slices, by the caller and by those of the I/O
 * threads that have nothing else to do. A slice is the windows that begin in it; runs grow over its
 * ends, so that nothing is cut, and a run that two slices find is taken once (match.c, join).
 *
 * Nobody waits for a thread that is busy with other things: slices are claimed one by one, the
 * caller claims too, and waits at the end only for those that somebody is working on. A helper that
 * comes later finds nothing left and touches nothing but the counter; the last one frees it all. */
#include "find/find.h"
#include "cache/ops.h"

#define HELPERS_MAX 15u

struct helper {
    struct tsri_job job; /* first */
    struct slice_work *work;
};

struct slice {
    struct tsri_matcher m; /* its runs stand behind the slices */
    struct tsr_range range;
};

struct slice_work {
    struct tsr_range part;
    uint32_t n_slices;
    _Atomic uint32_t n_claimed, n_refs;
    pthread_mutex_t lock;
    pthread_cond_t done;
    uint32_t n_done; /* under lock */
    struct helper helpers[HELPERS_MAX];
    struct slice slices[];
};

static void unref(struct slice_work *w)
{
    if (atomic_fetch_sub_explicit(&w->n_refs, 1, memory_order_acq_rel) != 1) return;
    pthread_cond_destroy(&w->done);
    pthread_mutex_destroy(&w->lock);
    tsri_free(w);
}

static void work_on(struct slice_work *w)
{
    uint32_t n = 0;
    for (;; n++) {
        uint32_t i = atomic_fetch_add_explicit(&w->n_claimed, 1, memory_order_relaxed);
        if (i >= w->n_slices) break;
        tsri_matcher_scan_slice(&w->slices[i].m, w->part, w->slices[i].range);
    }
    if (n == 0) return;
    pthread_mutex_lock(&w->lock);
    w->n_done += n;
    if (w->n_done == w->n_slices) pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->lock);
}

static void run_helper(struct tsri_job *job)
{
    struct slice_work *w = ((struct helper *)job)->work;
    work_on(w);
    unref(w);
}

static struct slice_work *work_open(const struct tsri_matcher *m, struct tsr_range part)
{
    uint32_t n = (part.n_tokens + m->slice_tokens - 1) / m->slice_tokens;
    uint32_t runs_max = tsri_matcher_runs_max(m->slice_tokens);
    size_t at = sizeof(struct slice_work) + n * sizeof(struct slice);
    struct slice_work *w = tsri_alloc(1, at + (size_t)n * runs_max * sizeof(struct tsri_run));
    if (!w) return NULL;
    struct tsri_run *runs = (struct tsri_run *)(void *)((uint8_t *)w + at);
    w->part = part;
    w->n_slices = n;
    atomic_init(&w->n_refs, 1);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->done, NULL);
    for (uint32_t i = 0; i < n; i++) {
        struct slice *s = &w->slices[i];
        uint32_t from = i * m->slice_tokens;
        s->range = (struct tsr_range){part.offset + from,
                                      tsri_min_u32(m->slice_tokens, part.n_tokens - from)};
        s->m = *m;
        s->m.runs = runs + (size_t)i * runs_max;
        s->m.runs_max = runs_max;
        s->m.n_runs = 0;
        s->m.budget = tsri_matcher_budget(s->range.n_tokens);
    }
    return w;
}

/* A full queue is as good as busy threads. */
static void call_helpers(struct slice_work *w, struct tsr_cache *c)
{
    uint32_t n = tsri_min_u32(c->options.io_threads, w->n_slices - 1);
    for (uint32_t i = 0; i < tsri_min_u32(n, HELPERS_MAX); i++) {
        w->helpers[i] = (struct helper){.job.run = run_helper, .work = w};
        atomic_fetch_add_explicit(&w->n_refs, 1, memory_order_relaxed);
        if (tsri_work_push(tsri_ops_work(c->ops), &w->helpers[i].job) == 0) continue;
        unref(w);
        return;
    }
}

bool tsri_slices_scan(struct tsri_matcher *m, struct tsr_range part)
{
    struct slice_work *w = work_open(m, part);
    if (!w) return false;
    call_helpers(w, m->c);
    work_on(w);
    pthread_mutex_lock(&w->lock);
    while (w->n_done < w->n_slices)
        pthread_cond_wait(&w->done, &w->lock);
    pthread_mutex_unlock(&w->lock);
    m->budget = 0;
    for (uint32_t i = 0; i < w->n_slices; i++) {
        const struct tsri_matcher *from = &w->slices[i].m;
        m->budget += from->budget;
        for (uint32_t r = 0; r < from->n_runs; r++)
            tsri_matcher_keep(m, &from->runs[r]);
    }
    unref(w);
    return true;
}
