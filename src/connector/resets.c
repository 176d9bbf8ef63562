/* resets.c - forgetting everything: an engine resets its caches when its weights have changed, and
 * KV of the old ones must not be found again. What is in the cache is cleared. What is under way is
 * not there to be cleared yet: a save becomes visible when it ends, and a load keeps its entries
 * until then. So nothing is looked up or saved while something of before is under way, and then it
 * is cleared once more. Requests that live at the time are neither loaded nor saved any more: what
 * they have in their blocks is of before, and so is the identity that they were announced with. */
#include "connector/connector.h"

/* A sure load is reported when it is queued, and its pages are pinned until the device has read
 * them: as long as the bus takes for the longest prompts, and the engine's queue before that. */
#define PINNED_NS ((uint64_t)2000000000)

static int clear(struct tsr_scheduler *s)
{
    int sum = 0;
    for (uint32_t k = 0; k < s->terms.n_spaces; k++) {
        struct tsr_clear_desc what = {.size = sizeof what, .space = s->terms.spaces[k], .tier = -1};
        int n = tsr_cache_clear(s->terms.cache, &what);
        if (n < 0) return n;
        sum += n;
    }
    return sum;
}

static void reset_request(struct tsr_scheduler *s, struct tsri_req *r)
{
    tsri_hits_drop(s, r);
    r->upto = r->saved = r->chain.n_tokens = 0;
    r->no_load = r->no_save = true;
    if (r->load_state != TSRI_LOAD_SENT || r->load_old) return;
    r->load_old = true;
    s->n_old++;
}

int tsr_scheduler_reset_cache(struct tsr_scheduler *s)
{
    if (!s) return tsri_fail(TSR_EINVAL, "connector: scheduler is NULL");
    for (uint32_t i = 0; i < s->reqs.n_buckets; i++)
        for (struct tsri_req *r = s->reqs.buckets[i]; r; r = r->next)
            reset_request(s, r);
    for (uint32_t i = s->savings_first; i != TSRI_NO_SAVING; i = s->savings[i].next) {
        if (s->savings[i].old) continue;
        s->savings[i].old = true;
        s->n_old++;
    }
    uint64_t pinned_ns = s->sure_ns ? s->sure_ns + PINNED_NS : 0;
    s->resetting = s->n_old || tsri_now_ns() < pinned_ns;
    s->reset_ns = pinned_ns;
    return clear(s);
}

void tsri_resets_ended(struct tsr_scheduler *s, bool *old)
{
    if (!*old) return;
    *old = false;
    TSR_ASSERT(s->n_old > 0);
    s->n_old--;
}

bool tsri_resets_on(struct tsr_scheduler *s)
{
    if (!s->resetting) return false;
    if (s->n_old || tsri_now_ns() < s->reset_ns) return true;
    int n = clear(s);
    s->resetting = n < 0; /* the owner is away: again the next time */
    if (n < 0) tsri_log(TSR_LOG_DEBUG, "connector: reset: %s", tsr_errmsg());
    return s->resetting;
}
