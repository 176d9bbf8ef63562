/* breaker.c - stops asking a server that does not answer, so that a dead one costs a load of one
 * flag and not a timeout. Each change of state is one log line; what happens to single requests is
 * counted elsewhere and never logged. */
#include "tier/parcel.h"

#include <stdio.h>

#define WAIT_DOUBLINGS 6u

void tsri_breaker_init(struct tsri_breaker *b, uint32_t limit, uint32_t wait_ms,
                       const char *trouble)
{
    memset(b, 0, sizeof *b);
    b->limit = limit ? limit : 1;
    b->wait_ms = wait_ms ? wait_ms : 1;
    b->trouble = trouble;
    pthread_mutex_init(&b->lock, NULL);
}

void tsri_breaker_fini(struct tsri_breaker *b)
{
    pthread_mutex_destroy(&b->lock);
}

void tsri_breaker_name(struct tsri_breaker *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b->name, sizeof b->name, fmt, ap);
    va_end(ap);
}

/* The lock is held. */
static uint64_t next_wait_ns(const struct tsri_breaker *b, uint32_t n_tries)
{
    return ((uint64_t)b->wait_ms << tsri_min_u32(n_tries, WAIT_DOUBLINGS)) * 1000000;
}

bool tsri_breaker_try(struct tsri_breaker *b)
{
    if (tsri_breaker_closed(b)) return true;
    pthread_mutex_lock(&b->lock);
    uint64_t now = tsri_now_ns();
    bool due = now >= b->retry_ns;
    if (due) {
        uint32_t n = atomic_fetch_add(&b->n_failures, 1) + 1;
        b->retry_ns = now + next_wait_ns(b, n > b->limit ? n - b->limit : 0);
    }
    pthread_mutex_unlock(&b->lock);
    return due;
}

uint64_t tsri_breaker_retry_ns(struct tsri_breaker *b)
{
    if (tsri_breaker_closed(b)) return 0;
    pthread_mutex_lock(&b->lock);
    uint64_t at = b->retry_ns;
    pthread_mutex_unlock(&b->lock);
    return at;
}

void tsri_breaker_worked(struct tsri_breaker *b)
{
    if (tsri_breaker_closed(b)) {
        if (atomic_load_explicit(&b->n_failures, memory_order_relaxed))
            atomic_store_explicit(&b->n_failures, 0, memory_order_relaxed);
        return;
    }
    pthread_mutex_lock(&b->lock);
    bool was_open = atomic_exchange(&b->open, false);
    atomic_store(&b->n_failures, 0);
    pthread_mutex_unlock(&b->lock);
    if (was_open) tsri_log(TSR_LOG_WARN, "%s: works again", b->name);
}

void tsri_breaker_failed(struct tsri_breaker *b, bool no_doubt, const char *why)
{
    if (!tsri_breaker_closed(b)) return;
    uint32_t n = atomic_fetch_add(&b->n_failures, 1) + 1;
    if (n < b->limit && !no_doubt) return;
    pthread_mutex_lock(&b->lock);
    bool opens = !atomic_exchange(&b->open, true);
    if (opens) {
        atomic_store(&b->n_failures, b->limit);
        b->retry_ns = tsri_now_ns() + next_wait_ns(b, 0);
        atomic_fetch_add(&b->n_opened, 1);
    }
    pthread_mutex_unlock(&b->lock);
    if (opens)
        tsri_log(TSR_LOG_WARN, "%s: %s (%s): not used until it works again", b->name, b->trouble,
                 why);
}
