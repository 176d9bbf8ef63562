/* waits.c - requests whose prefix is being saved. A conversation goes on, or the same document is
 * asked about again, before the save of its beginning has ended: the lookup finds too little, and
 * what is a few ms away would be computed again. Such a request waits when that is cheaper: when the
 * tokens that are to be saved before it can go on take less time than computing those it waits for.
 *
 * How fast saves are, the workers report; how fast the engine computes, its counters show from step
 * to step. Both are sums in which the past fades, so that long saves and long steps count for more
 * than short ones, which measure mostly what does not depend on their length. As long as one is not
 * known a request waits a little on trust.
 *
 * Savings are found by comparing tokens with those of the request that is saved, which is known
 * until its saves have ended: no hashes, and nothing is asked of the cache. A wrong guess costs a
 * wait, and no byte: what is loaded is looked up again afterwards. */
#include "connector/connector.h"

#define TRUST_NS ((uint64_t)200000000) /* while speeds are unknown */
#define SAVINGS_MAX 64u                /* that are looked at for one request */
#define MEASURED_NS_MAX ((uint64_t)60000000000)

/* ---- speeds ---- */

static void measure(struct tsri_speed *v, uint64_t n_tokens, uint64_t ns)
{
    if (ns > MEASURED_NS_MAX) return; /* the machine was asleep */
    v->n_tokens += n_tokens - v->n_tokens / 4;
    v->ns += ns - v->ns / 4;
}

/* 0: not known. */
static uint64_t time_of(const struct tsri_speed *v, uint64_t n_tokens)
{
    return v->n_tokens ? (uint64_t)((double)v->ns / (double)v->n_tokens * (double)n_tokens) + 1 : 0;
}

void tsri_waits_saved(struct tsr_scheduler *s, uint32_t n_tokens, uint64_t busy_ns)
{
    measure(&s->save_speed, n_tokens, busy_ns);
}

uint32_t tsri_waits_computed(struct tsr_scheduler *s, struct tsri_req *r, uint32_t n_computed)
{
    /* An engine may leave out rows in which there is nothing to save. */
    bool known = r->seen_step && r->seen_step == s->step && n_computed > r->seen_computed;
    uint32_t n = known ? n_computed - r->seen_computed : 0;
    r->seen_computed = n_computed;
    r->seen_step = s->step + 1;
    return n;
}

/* Steps that compute less than a chunk are mostly decoding, which is slower for each token. */
void tsri_waits_step(struct tsr_scheduler *s, uint32_t n_computed)
{
    uint64_t now = tsri_now_ns();
    if (n_computed >= s->terms.chunk_tokens && s->step_ns)
        measure(&s->compute_speed, n_computed, now - s->step_ns);
    s->step_ns = now;
}

/* ---- what is coming ---- */

static bool same_extras(const struct tsri_req *a, const struct tsri_req *b, uint32_t end)
{
    uint32_t n = tsri_extras_within(&a->extras, end);
    if (n != tsri_extras_within(&b->extras, end)) return false;
    for (uint32_t i = 0; i < n; i++) {
        const struct tsr_extra *x = &a->extras.items[i], *y = &b->extras.items[i];
        if (x->kind != y->kind || x->offset != y->offset || x->n_tokens != y->n_tokens ||
            x->bytes != y->bytes || memcmp(x->data, y->data, x->bytes) != 0)
            return false;
    }
    return true;
}

/* As far as whole chunks of [0, end) of both requests are the same. */
static uint32_t common(const struct tsri_req *a, const struct tsri_req *b, uint32_t first,
                       uint32_t end, uint32_t chunk)
{
    end = tsri_min_u32(end, tsri_min_u32(a->n_tokens, b->n_tokens)) / chunk * chunk;
    if (end <= first || memcmp(a->tokens, b->tokens, first * sizeof *a->tokens) != 0) return 0;
    uint32_t n = first;
    while (n < end && memcmp(a->tokens + n, b->tokens + n, chunk * sizeof *a->tokens) == 0)
        n += chunk;
    return same_extras(a, b, n) ? n : 0;
}

/* Saves of the same text, one after the other, that go on where `found` ends. */
static struct tsri_coming find_coming(const struct tsr_scheduler *s, const struct tsri_req *r,
                                      uint32_t found)
{
    struct tsri_coming out = {.end = found};
    uint64_t n_tokens = 0;
    uint32_t n = 0;
    for (uint32_t i = s->savings_first; i != TSRI_NO_SAVING && n < SAVINGS_MAX; n++) {
        const struct tsri_saving *x = &s->savings[i];
        i = x->next;
        n_tokens += x->states ? 0 : x->to - x->from;
        if (x->failed || x->states || x->from > out.end || x->to <= out.end) continue;
        const struct tsri_req *other = tsri_reqs_find(&s->reqs, x->request);
        uint32_t end = other ? common(r, other, out.end, x->to, s->terms.chunk_tokens) : 0;
        if (end <= out.end) continue;
        out = (struct tsri_coming){.saving = x->id, .end = end, .n_before = n_tokens};
    }
    return out;
}

static bool in_flight(const struct tsr_scheduler *s, uint64_t saving)
{
    const struct tsri_saving *x = &s->savings[saving % s->terms.jobs_max];
    return x->id == saving && !x->failed;
}

/* ---- waiting ---- */

bool tsri_waits_on(struct tsr_scheduler *s, struct tsri_req *r)
{
    if (!r->awaited) return false;
    bool late = tsri_now_ns() >= r->wait_until_ns;
    if (in_flight(s, r->awaited) && !late) return true;
    if (late) r->wait_end_ns = 1; /* it was not worth it: once is enough */
    r->awaited = 0;
    return false;
}

bool tsri_waits_begin(struct tsr_scheduler *s, struct tsri_req *r, uint32_t n_computed)
{
    if (!s->n_savings || !s->terms.save_wait_ns) return false;
    uint32_t have = r->found > n_computed ? r->found : n_computed;
    struct tsri_coming c = find_coming(s, r, r->found);
    if (!c.saving || c.end <= have) return false;
    uint64_t now = tsri_now_ns();
    if (!r->wait_end_ns) r->wait_end_ns = now + s->terms.save_wait_ns;
    uint64_t worth_ns = time_of(&s->compute_speed, c.end - have);
    uint64_t takes_ns = time_of(&s->save_speed, c.n_before);
    if (!worth_ns || !takes_ns) worth_ns = TRUST_NS;
    if (takes_ns >= worth_ns || now + takes_ns >= r->wait_end_ns) return false;
    r->awaited = c.saving;
    r->wait_until_ns = now + worth_ns < r->wait_end_ns ? now + worth_ns : r->wait_end_ns;
    s->stats.waits++;
    if (tsri_log_wants(TSR_LOG_DEBUG))
        tsri_log(TSR_LOG_DEBUG, "connector: request %llu: %u tokens found, waits for %u in a save",
                 (unsigned long long)r->id, r->found, c.end - r->found);
    return true;
}
