/* What a client is told of a token: its probability, and those of others. */
#include "serve/engine_kit.h"

#include <math.h>

#define MODEL "qwen2 layers=2 heads=1 kv_heads=1 head_dim=8 ff=8 vocab=24 context=1024"

struct seen {
    struct engine_kit kit;
    struct engine_job job;
    double sum;
    uint32_t n_top;
    bool sorted, has_chosen;
};

static void look(void *arg, const struct tsri_job_event *e)
{
    struct seen *s = arg;
    if (e->kind == TSRI_EVENT_TOKEN) {
        s->sum = 0;
        s->n_top = e->n_top;
        s->sorted = true;
        s->has_chosen = false;
        for (uint32_t i = 0; i < e->n_top; i++) {
            s->sum += exp((double)e->top[i].logprob);
            s->sorted = s->sorted && (i == 0 || e->top[i].logprob <= e->top[i - 1].logprob);
            s->has_chosen |= e->top[i].token == e->token && e->top[i].logprob == e->logprob;
        }
    }
    kit_event(&s->job, e);
}

TEST(probabilities_are_sorted_and_add_up)
{
    struct seen s = {0};
    uint32_t tokens[20];
    engine_kit_open(&s.kit, MODEL, NULL);
    struct tsri_job_desc d = engine_kit_desc(tokens, 20, 24, 4);
    s.job.kit = &s.kit;
    d.event = look;
    d.arg = &s;
    d.n_top = TSRI_ENGINE_TOP_MAX;
    CHECK_INT(tsri_engine_submit(s.kit.engine, &d, &s.job.id), 0);
    engine_kit_wait(&s.kit, 1);
    CHECK_INT(s.n_top, TSRI_ENGINE_TOP_MAX);
    CHECK(s.sorted && s.has_chosen);
    CHECK(s.sum > 0.5 && s.sum <= 1.0001);
    engine_kit_close(&s.kit);
}

TEST(an_event_may_cancel_its_own_job)
{
    struct engine_kit k;
    struct engine_job j = {.cancel_after = 3};
    uint32_t tokens[20];
    engine_kit_open(&k, MODEL, NULL);
    struct tsri_job_desc d = engine_kit_desc(tokens, 20, 24, 4);
    d.max_tokens = 50;
    CHECK_INT(engine_kit_submit(&k, &j, &d), 0);
    engine_kit_wait(&k, 1);
    CHECK_INT(j.why, TSRI_END_CANCELLED);
    CHECK_INT(j.n_tokens, 3);
    CHECK_INT(j.n_late, 0);
    engine_kit_close(&k);
}

int main(void)
{
    RUN(probabilities_are_sorted_and_add_up);
    RUN(an_event_may_cancel_its_own_job);
    return test_end();
}
