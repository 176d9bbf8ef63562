/* sampler.c - which token comes next: the most likely one, or one drawn from the most likely ones
 * with a generator that a seed starts, so that an answer can be repeated. */
#include "answer/answer.h"

#include <math.h>
#include <stdlib.h>

struct tsri_sample {
    double p;
    uint32_t token;
};

int tsri_sampler_init(struct tsri_sampler *s, uint32_t n_vocab)
{
    memset(s, 0, sizeof *s);
    s->top_p = 1;
    s->room = malloc(n_vocab * sizeof *s->room);
    return s->room ? 0 : tsri_fail(TSR_ENOMEM, "no memory");
}

void tsri_sampler_fini(struct tsri_sampler *s)
{
    free(s->room);
    memset(s, 0, sizeof *s);
}

/* splitmix64: every seed is a good one. */
static double uniform(struct tsri_sampler *s)
{
    uint64_t z = s->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

static int by_probability(const void *a, const void *b)
{
    const struct tsri_sample *x = a, *y = b;
    if (x->p != y->p) return x->p < y->p ? 1 : -1;
    return x->token < y->token ? -1 : x->token > y->token;
}

/* Of equal ones the first. Four maxima at once, because a vocabulary has 150,000 tokens and each
 * comparison waits for the one before. */
static uint32_t most_likely(const float *logits, uint32_t n)
{
    float top[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (uint32_t k = 0; k < 4; k++)
            top[k] = logits[i + k] > top[k] ? logits[i + k] : top[k];
    for (; i < n; i++)
        top[0] = logits[i] > top[0] ? logits[i] : top[0];
    for (uint32_t k = 1; k < 4; k++)
        top[0] = top[k] > top[0] ? top[k] : top[0];
    for (i = 0; i < n; i++)
        if (logits[i] == top[0]) return i;
    return 0;
}

uint32_t tsri_sampler_pick(struct tsri_sampler *s, const float *logits, uint32_t n_vocab)
{
    uint32_t top = most_likely(logits, n_vocab);
    if (!isfinite(logits[top])) return TSRI_NO_TOKEN;
    if (s->temperature <= 0) return top;
    /* What is e^-20 times less likely than the best is never drawn; the rest is a few hundred. */
    uint32_t n = 0;
    double sum = 0, kept = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        double x = ((double)logits[i] - (double)logits[top]) / s->temperature;
        if (!(x > -20)) continue;
        s->room[n++] = (struct tsri_sample){exp(x), i};
        sum += exp(x);
    }
    qsort(s->room, n, sizeof *s->room, by_probability);
    uint32_t n_kept = 0;
    while (n_kept < n && (n_kept == 0 || kept < s->top_p * sum))
        kept += s->room[n_kept++].p;
    double at = uniform(s) * kept;
    for (uint32_t i = 0; i + 1 < n_kept; i++) {
        at -= s->room[i].p;
        if (at < 0) return s->room[i].token;
    }
    return n_kept ? s->room[n_kept - 1].token : top;
}
