/* test_events.c - a ring that keeps order, drops the oldest when nobody takes, and says so. */
#include "cache/events.h"

#include "support/test.h"

static struct tsr_event event(uint32_t n)
{
    return (struct tsr_event){.n_tokens = n, .kind = TSR_EVENT_STORED};
}

TEST(events_come_out_in_the_order_they_went_in)
{
    struct tsri_events ev;
    CHECK_INT(tsri_events_init(&ev, 8), 0);
    struct tsr_event out[8];
    uint32_t in = 0, taken = 0;
    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < 1 + round % 8; i++, in++) {
            struct tsr_event e = event(in);
            CHECK(tsri_events_push(&ev, &e));
        }
        uint32_t n = tsri_events_take(&ev, out, 8);
        CHECK_INT(n, 1 + round % 8);
        for (uint32_t i = 0; i < n; i++, taken++)
            CHECK_INT(out[i].n_tokens, taken);
    }
    tsri_events_fini(&ev);
}

TEST(when_nobody_takes_the_oldest_go)
{
    struct tsri_events ev;
    CHECK_INT(tsri_events_init(&ev, 5), 0);
    for (uint32_t i = 0; i < 12; i++) {
        struct tsr_event e = event(i);
        CHECK(tsri_events_push(&ev, &e) == (i < 5));
    }
    struct tsr_event out[6];
    memset(out, 0xA5, sizeof out);
    CHECK_INT(tsri_events_take(&ev, out, 2), 2);
    CHECK_INT(out[0].n_tokens, 7);
    CHECK_INT(out[1].n_tokens, 8);
    CHECK_INT(out[2].n_tokens, 0xA5A5A5A5u); /* no more than asked for */
    CHECK_INT(tsri_events_take(&ev, out, 6), 3);
    CHECK_INT(out[2].n_tokens, 11);
    CHECK_INT(tsri_events_take(&ev, out, 6), 0);
    tsri_events_fini(&ev);
}

TEST(a_ring_of_one_keeps_the_newest)
{
    struct tsri_events ev;
    CHECK_INT(tsri_events_init(&ev, 1), 0);
    struct tsr_event e = event(1), out;
    CHECK(tsri_events_push(&ev, &e));
    e = event(2);
    CHECK(!tsri_events_push(&ev, &e));
    CHECK_INT(tsri_events_take(&ev, &out, 1), 1);
    CHECK_INT(out.n_tokens, 2);
    tsri_events_fini(&ev);
}

TEST(without_a_ring_events_go_nowhere)
{
    struct tsri_events ev;
    CHECK_INT(tsri_events_init(&ev, 0), 0);
    struct tsr_event e = event(1), out;
    CHECK(tsri_events_push(&ev, &e));
    CHECK_INT(tsri_events_take(&ev, &out, 1), 0);
    tsri_events_fini(&ev);
    tsri_events_fini(&ev); /* harmless */
}

#define PUSHERS 3u
#define PUSHES 20000u

struct pusher {
    struct tsri_events *ev;
    uint32_t from, n_dropped;
    atomic_bool finished;
};

static void *push_many(void *arg)
{
    struct pusher *p = arg;
    for (uint32_t i = 0; i < PUSHES; i++) {
        struct tsr_event e = event(p->from + i);
        p->n_dropped += !tsri_events_push(p->ev, &e);
    }
    atomic_store(&p->finished, true);
    return NULL;
}

TEST(pushed_is_taken_or_counted_as_dropped_from_many_threads)
{
    struct tsri_events ev;
    CHECK_INT(tsri_events_init(&ev, 64), 0);
    pthread_t threads[PUSHERS];
    struct pusher pushers[PUSHERS];
    for (uint32_t i = 0; i < PUSHERS; i++) {
        pushers[i] = (struct pusher){.ev = &ev, .from = i * PUSHES};
        CHECK_INT(pthread_create(&threads[i], NULL, push_many, &pushers[i]), 0);
    }
    static uint8_t seen[PUSHERS * PUSHES];
    uint32_t n_taken = 0, last[PUSHERS] = {0};
    struct tsr_event out[16];
    bool in_order = true, once = true;
    for (bool finished = false, empty = false; !finished || !empty;) {
        finished = true;
        for (uint32_t i = 0; i < PUSHERS; i++)
            finished &= atomic_load(&pushers[i].finished);
        uint32_t n = tsri_events_take(&ev, out, 16);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t who = out[i].n_tokens / PUSHES;
            in_order &= out[i].n_tokens + 1 > last[who];
            last[who] = out[i].n_tokens + 1;
            once &= !seen[out[i].n_tokens]++;
        }
        n_taken += n;
        empty = n == 0;
    }
    for (uint32_t i = 0; i < PUSHERS; i++)
        pthread_join(threads[i], NULL);
    CHECK(in_order && once);
    uint32_t n_dropped = 0;
    for (uint32_t i = 0; i < PUSHERS; i++)
        n_dropped += pushers[i].n_dropped;
    CHECK_INT(n_taken + n_dropped, PUSHERS * PUSHES);
    tsri_events_fini(&ev);
}

int main(void)
{
    RUN(events_come_out_in_the_order_they_went_in);
    RUN(when_nobody_takes_the_oldest_go);
    RUN(a_ring_of_one_keeps_the_newest);
    RUN(without_a_ring_events_go_nowhere);
    RUN(pushed_is_taken_or_counted_as_dropped_from_many_threads);
    return test_end();
}
