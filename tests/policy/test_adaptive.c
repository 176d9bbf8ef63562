/* test_adaptive.c - adaptive is as good as the better of two fixed policies on traffic that favours
 * one of them, and keeps what is expensive to compute. */
#include "policy/policy.h"

#include "support/cache_sim.h"
#include "support/policy_kit.h"
#include "support/test.h"

static double rate(const struct trace *t, const struct tsri_policy_ops *ops, uint64_t capacity)
{
    struct sim_result r = sim_run(t, ops, capacity);
    CHECK(r.tokens_asked > 0);
    return sim_rate(&r);
}

static void check_against_the_best(struct trace *t, uint64_t hundredths)
{
    uint64_t capacity = sim_footprint(t) * hundredths / 100;
    double lru = rate(t, &tsri_policy_lru, capacity);
    double s3fifo = rate(t, &tsri_policy_s3fifo, capacity);
    double adaptive = rate(t, &tsri_policy_adaptive, capacity);
    CHECK(adaptive >= 0.97 * (lru > s3fifo ? lru : s3fifo));
    trace_fini(t);
}

TEST(on_conversations_it_is_as_good_as_lru)
{
    struct trace t;
    trace_chat(&t, 5);
    check_against_the_best(&t, 5);
}

TEST(on_documents_it_is_as_good_as_s3fifo)
{
    struct trace t;
    trace_zipf(&t, 5);
    check_against_the_best(&t, 5);
}

TEST(a_scan_does_not_wash_it_out)
{
    struct trace t;
    trace_scan(&t, 5);
    check_against_the_best(&t, 5);
}

TEST(it_follows_when_other_things_become_popular)
{
    struct trace t;
    trace_shift(&t, 5);
    check_against_the_best(&t, 20);
}

TEST(on_a_loop_that_does_not_fit_it_keeps_a_part)
{
    struct trace t;
    trace_loop(&t, 5);
    uint64_t capacity = sim_footprint(&t) / 20;
    CHECK(rate(&t, &tsri_policy_lru, capacity) < 0.01);
    CHECK(rate(&t, &tsri_policy_adaptive, capacity) > 0.2);
    trace_fini(&t);
}

#define IDS 200u

enum what { COST, TOKENS, KNOWN };

/* Entries that all come equally often; every other one costs ten times as much a token, or has ten
 * times the tokens a unit, or is the only one whose cost is known. Its hits out of 100 hits. */
static uint32_t hits_of_others(enum what what)
{
    struct tsri_policy *p = policy_open(&tsri_policy_adaptive, IDS, IDS);
    uint64_t seed = 9;
    uint32_t id_of[1000], key_of[IDS], hits[2] = {0}, n = 0;
    memset(id_of, 0xff, sizeof id_of);
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t key = (uint32_t)(test_rand(&seed) % 1000), other = key & 1;
        if (id_of[key] != UINT32_MAX) {
            hits[other]++;
            p->ops->touch(p, &id_of[key], 1);
            continue;
        }
        uint32_t id = n < IDS ? n++ : policy_evict(p);
        struct tsri_policy_item item = {.hash = policy_hash(key), .units = 1, .n_tokens = 64};
        if (what == COST) item.cost_s = other ? 1.0f : 0.1f;
        if (what == TOKENS && other) item.n_tokens = 640;
        if (what == KNOWN && other) item.cost_s = 0.5f;
        if (i >= IDS && id_of[key_of[id]] == id) id_of[key_of[id]] = UINT32_MAX;
        p->ops->insert(p, id, &item);
        id_of[key] = id;
        key_of[id] = key;
    }
    p->ops->close(p);
    return hits[1] * 100 / (hits[0] + hits[1]);
}

TEST(what_is_expensive_to_compute_stays_longer)
{
    CHECK(hits_of_others(COST) > 80);
}

TEST(what_saves_many_tokens_for_its_bytes_stays_longer)
{
    CHECK(hits_of_others(TOKENS) > 80);
}

TEST(whose_cost_is_not_known_costs_what_others_do)
{
    uint32_t hits = hits_of_others(KNOWN);
    CHECK(hits >= 45 && hits <= 55);
}

int main(void)
{
    RUN(on_conversations_it_is_as_good_as_lru);
    RUN(on_documents_it_is_as_good_as_s3fifo);
    RUN(a_scan_does_not_wash_it_out);
    RUN(it_follows_when_other_things_become_popular);
    RUN(on_a_loop_that_does_not_fit_it_keeps_a_part);
    RUN(what_is_expensive_to_compute_stays_longer);
    RUN(what_saves_many_tokens_for_its_bytes_stays_longer);
    RUN(whose_cost_is_not_known_costs_what_others_do);
    return test_end();
}
