/* slow.c - the slowest calls of the last hour, for whoever asks why something took so long. A small
 * table: a call enters when there is room, or in place of the fastest one there. Calls of less than
 * a millisecond are not slow, so the lock is hardly ever taken. */
#include "daemon/daemon.h"

#define HOUR_NS 3600000000000u

void tsri_slow_init(struct tsri_slow *s)
{
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
}

void tsri_slow_fini(struct tsri_slow *s)
{
    pthread_mutex_destroy(&s->lock);
}

static void forget_old(struct tsri_slow *s, uint64_t now_ns)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (now_ns - s->calls[i].end_ns <= HOUR_NS) s->calls[kept++] = s->calls[i];
    s->n = kept;
}

void tsri_slow_note(struct tsri_slow *s, const struct tsri_slow_call *call)
{
    if (call->ns < TSRI_SLOW_NS) return;
    pthread_mutex_lock(&s->lock);
    forget_old(s, call->end_ns);
    uint32_t at = s->n; /* sorted, slowest first */
    while (at > 0 && s->calls[at - 1].ns < call->ns)
        at--;
    if (at < TSRI_SLOW_MAX) {
        if (s->n < TSRI_SLOW_MAX) s->n++;
        memmove(&s->calls[at + 1], &s->calls[at], (s->n - 1 - at) * sizeof *s->calls);
        s->calls[at] = *call;
    }
    pthread_mutex_unlock(&s->lock);
}

uint32_t tsri_slow_list(struct tsri_slow *s, uint64_t now_ns,
                        struct tsri_slow_call out[TSRI_SLOW_MAX])
{
    pthread_mutex_lock(&s->lock);
    forget_old(s, now_ns);
    uint32_t n = s->n;
    memcpy(out, s->calls, n * sizeof *out);
    pthread_mutex_unlock(&s->lock);
    return n;
}
