/* slices.c - a long part of a prompt is matched in slices, by the caller and by those of the I/O
 * threads that have nothing else to do. A slice is the windows that begin in it; runs grow over its
 * ends, so that nothing is cut, and a run that two slices find is taken once (match.c, join). */
#include "find/find.h"
#include "cache/ops.h"

struct slice {
    struct tsri_matcher m; /* its runs stand behind the slices */
    struct tsr_range range;
};

struct slice_work {
    struct tsr_range part;
    uint32_t n_slices;
    struct slice slices[];
};

static void scan_slice(void *arg, uint32_t i)
{
    struct slice_work *w = arg;
    tsri_matcher_scan_slice(&w->slices[i].m, w->part, w->slices[i].range);
}

static struct slice_work *work_open(const struct tsri_matcher *m, struct tsr_range part)
{
    uint32_t n = (part.n_tokens + m->slice_tokens - 1) / m->slice_tokens;
    uint32_t runs_max = tsri_matcher_runs_max(m->slice_tokens, false);
    size_t at = sizeof(struct slice_work) + n * sizeof(struct slice);
    struct slice_work *w = tsri_alloc(1, at + (size_t)n * runs_max * sizeof(struct tsri_run));
    if (!w) return NULL;
    struct tsri_run *runs = (struct tsri_run *)(void *)((uint8_t *)w + at);
    w->part = part;
    w->n_slices = n;
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

bool tsri_slices_scan(struct tsri_matcher *m, struct tsr_range part)
{
    struct slice_work *w = work_open(m, part);
    if (!w) return false;
    struct tsr_cache *c = m->c;
    tsri_spread(tsri_ops_work(c->ops), c->options.io_threads, w->n_slices, scan_slice, w);
    m->budget = 0;
    for (uint32_t i = 0; i < w->n_slices; i++) {
        const struct tsri_matcher *from = &w->slices[i].m;
        m->budget += from->budget;
        for (uint32_t r = 0; r < from->n_runs; r++)
            tsri_matcher_keep(m, &from->runs[r]);
    }
    tsri_free(w);
    return true;
}
