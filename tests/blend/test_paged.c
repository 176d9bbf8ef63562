/* Engines with their KV in pages: the context of a run is in slots of the engine's choice, and what
 * follows it, the question and the primer, in memory of its own. The tiny executor plays the engine:
 * around every step its session gets what the pages hold, and the pages what it has computed. */
#include "support/blend_kit.h"
#include "support/test.h"

#include <stdlib.h>

static const uint32_t docs[] = {70, 40, 66, 33};
static const uint32_t order[] = {2, 0, 3, 1};
#define N_CONTEXT (24u + 209u)
#define BLOCK 16u
#define CONTEXT (TSR_ASK_FILL | TSR_ASK_CONTEXT)
#define PRIMER 20u
#define MORE PRIMER /* slots after the prompt, for the primer or a draft */
#define LAYERS 3u
#define ROW 16u /* floats */

struct pages {
    float *memory[LAYERS], *rest;
    void *k[LAYERS], *v[LAYERS];
    struct tsr_kv_layout layout, behind;
    int64_t slots[N_CONTEXT];
};

/* K and V of a head side by side, as FlashAttention's pages have them: [block][head][token][K, V]. */
static void describe(const struct blend_kit *k, struct pages *p)
{
    uint32_t n_heads = k->model.info.n_kv_heads, dim = k->model.info.head_dim;
    uint64_t item = sizeof(float);
    CHECK_INT(n_heads * dim, ROW);
    p->layout = *tsr_session_layout(k->model.session);
    p->layout.block_tokens = BLOCK;
    p->layout.n_slots = 1024;
    for (uint32_t i = 0; i < 2; i++) {
        struct tsr_kv_plane *plane = &p->layout.planes[i];
        plane->base = NULL;
        plane->layers = i ? p->v : p->k;
        plane->layer_bytes = 0;
        plane->token_stride = 2 * dim * item;
        plane->head_stride = BLOCK * plane->token_stride;
        plane->block_stride = n_heads * plane->head_stride;
        plane->element_stride = item;
    }
    p->behind = *tsr_session_layout(k->model.session);
    p->behind.n_slots = 256;
    for (uint32_t i = 0; i < 2; i++) {
        struct tsr_kv_plane *plane = &p->behind.planes[i];
        plane->base = p->rest + (size_t)i * 256 * ROW;
        plane->layers = NULL;
        plane->layer_bytes = 0;
        plane->layer_stride = 2 * 256 * ROW * item;
        plane->token_stride = ROW * item;
        plane->head_stride = dim * item;
        plane->element_stride = item;
    }
}

static void pages_init(struct pages *p, const struct blend_kit *k)
{
    CHECK_INT(k->model.info.n_layers, LAYERS);
    for (uint32_t l = 0; l < LAYERS; l++) {
        p->memory[l] = calloc(1024 * 2, ROW * sizeof(float));
        p->k[l] = p->memory[l];
        p->v[l] = p->memory[l] + k->model.info.head_dim;
    }
    p->rest = calloc((size_t)LAYERS * 2 * 256, ROW * sizeof(float));
    for (uint32_t i = 0; i < N_CONTEXT; i++) /* blocks out of order */
        p->slots[i] = (int64_t)(((i / BLOCK * 7 + 3) % 64) * BLOCK + i % BLOCK);
    describe(k, p);
}

static void pages_fini(struct pages *p)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        free(p->memory[l]);
    free(p->rest);
}

static float *element(const struct pages *p, uint32_t plane, uint32_t layer, uint32_t token,
                      uint32_t head)
{
    bool context = token < N_CONTEXT;
    const struct tsr_kv_layout *l = context ? &p->layout : &p->behind;
    const struct tsr_kv_plane *at = &l->planes[plane];
    uint64_t slot = context ? (uint64_t)p->slots[token] : token - N_CONTEXT;
    return (float *)(void *)(tsri_layer_base(at, layer) + tsri_slot_offset(l, at, slot) +
                             head * at->head_stride);
}

/* Between the session's slots and the pages, of layers that are all in place. */
static void mirror(struct blend_kit *k, struct pages *p, bool to_pages, uint32_t layer)
{
    uint32_t n_heads = k->model.info.n_kv_heads, dim = k->model.info.head_dim;
    for (uint32_t i = 0; i < 2 * (k->n_tokens + MORE); i++)
        for (uint32_t h = 0; h < n_heads; h++) {
            float *mine = model_kit_row(&k->model, i % 2, layer, i / 2) + (size_t)h * dim;
            float *theirs = element(p, i % 2, layer, i / 2, h);
            memcpy(to_pages ? theirs : mine, to_pages ? mine : theirs, dim * sizeof *mine);
        }
}

static int do_step(struct blend_kit *k, struct pages *p, const struct tsr_blend_step *step)
{
    if (step->kind == TSR_STEP_LAYER) mirror(k, p, false, step->layer.layer);
    if (step->kind == TSR_STEP_DEVIATION) mirror(k, p, false, step->deviation.layer);
    int e = tsri_blend_step(k->model.session, step);
    if (step->kind == TSR_STEP_LAYER) mirror(k, p, true, step->layer.layer);
    return e;
}

static void drive(struct blend_kit *k, struct pages *p, const struct tsr_ask_desc *asked,
                  float *logits)
{
    struct tsr_ask_desc ask = *asked;
    struct tsr_run *run;
    struct tsr_blend_step step;
    int e, result = 0;
    ask.session = NULL;
    ask.n_context = N_CONTEXT;
    ask.slots = p->slots;
    ask.rest = &p->behind;
    k->report = (struct tsr_blend_report){.size = sizeof k->report};
    CHECK_INT(tsr_blend_start(&run, k->blend, &ask, &p->layout), 0);
    while ((e = tsr_blend_next(run, result, &step)) > 0) {
        result = do_step(k, p, &step);
        CHECK_INT(result, 0);
    }
    CHECK_INT(e, 0);
    tsr_blend_end(run, logits, &k->report);
    for (uint32_t l = 0; l < LAYERS; l++)
        mirror(k, p, false, l);
}

/* Over all selectors, with and without a primer: first everything is unknown, then it is loaded in
 * another order. */
TEST(a_context_in_pages_gives_the_answer_of_one_in_a_row)
{
    for (uint32_t selector = TSR_SELECT_QUERY; selector <= TSR_SELECT_FULL; selector++)
        for (uint32_t primed = 0; primed < 2; primed++) {
            struct blend_kit k;
            struct pages p;
            float mine[128];
            blend_kit_open(&k, "llama", TSR_DTYPE_F32, 0);
            k.profile.context = primed ? TSR_CONTEXT_PRIMER : TSR_CONTEXT_SAME;
            k.n_primer = primed ? PRIMER : 0;
            model_kit_tokens(&k.model, k.primer, k.n_primer, 5000);
            pages_init(&p, &k);
            for (uint32_t round = 0; round < 2; round++) {
                blend_kit_prompt(&k, selector, 24, docs, 4, round ? order : NULL);
                blend_kit_reopen(&k);
                struct tsr_ask_desc ask = blend_kit_ask_of(&k, selector, 0.2, CONTEXT);
                drive(&k, &p, &ask, NULL);
                CHECK_INT(k.report.n_filled, round ? 0 : N_CONTEXT);
                CHECK_INT(k.report.n_exact + k.report.n_reused + k.report.n_recomputed, N_CONTEXT);
                model_kit_prefill(&k.model, k.tokens, N_CONTEXT, k.n_tokens - N_CONTEXT, mine);
                CHECK_INT(blend_kit_ask(&k, selector, 0.2, TSR_ASK_FILL), 0);
                CHECK(memcmp(mine, k.logits, sizeof mine) == 0);
            }
            pages_fini(&p);
            CHECK(blend_kit_close(&k));
        }
}

/* The question is computed too, with the bias of the profile and a gate that is never sure: drafts
 * and rounds, and then everything. */
TEST(questions_are_answered_over_pages_with_bias_and_gate)
{
    for (uint32_t gated = 0; gated < 2; gated++) {
        struct blend_kit k;
        struct pages p;
        float mine[128];
        blend_kit_open(&k, "llama", TSR_DTYPE_F32, 0);
        if (gated) {
            blend_kit_set_weight(&k, "constant", -5);
            k.profile.gate_limit = 0.5;
            k.profile.rounds[0] = 0.1;
            k.profile.rounds[1] = 0.3;
            k.profile.n_rounds = 2;
            k.profile.draft = 6;
        } else {
            k.profile.bias = (struct tsr_curve){.n = 1, .points = {{0, -0.7}}};
        }
        pages_init(&p, &k);
        for (uint32_t round = 0; round < 2; round++) {
            uint32_t flags = TSR_ASK_FILL | (gated ? (uint32_t)TSR_ASK_GATE : 0);
            blend_kit_prompt(&k, 5, 24, docs, 4, round ? order : NULL);
            blend_kit_reopen(&k);
            struct tsr_ask_desc ask = blend_kit_ask_of(&k, TSR_SELECT_QUERY, -1, flags);
            drive(&k, &p, &ask, mine);
            struct tsr_blend_report report = k.report;
            CHECK(gated ? report.n_rounds == 2 && report.reasons & TSR_BLEND_FULL
                        : report.bias == -0.7);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_QUERY, -1, flags), 0);
            CHECK(memcmp(mine, k.logits, sizeof mine) == 0);
            CHECK_INT(report.n_rounds, k.report.n_rounds);
            if (gated) {
                blend_kit_prefill(&k, k.logits);
                CHECK(memcmp(mine, k.logits, sizeof mine) == 0);
            }
        }
        pages_fini(&p);
        CHECK(blend_kit_close(&k));
    }
}

TEST(places_that_make_no_sense_are_refused)
{
    struct blend_kit k;
    struct pages p;
    struct tsr_run *run;
    blend_kit_open(&k, "llama", TSR_DTYPE_F32, 0);
    pages_init(&p, &k);
    blend_kit_prompt(&k, 7, 24, docs, 4, NULL);
    struct tsr_ask_desc good = blend_kit_ask_of(&k, TSR_SELECT_NONE, 0, CONTEXT);
    good.n_context = N_CONTEXT;
    good.slots = p.slots;
    good.rest = &p.behind;
    struct tsr_ask_desc bad = good;
    bad.rest = NULL;
    CHECK_INT(tsr_blend_start(&run, k.blend, &bad, &p.layout), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "rest");
    bad = good;
    bad.n_context = 0;
    CHECK_INT(tsr_blend_start(&run, k.blend, &bad, &p.layout), TSR_EINVAL);
    p.slots[5] = -1;
    CHECK_INT(tsr_blend_start(&run, k.blend, &good, &p.layout), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "token 5");
    p.slots[5] = 1024;
    CHECK(tsr_blend_start(&run, k.blend, &good, &p.layout) < 0);
    p.slots[5] = 5;
    p.behind.n_slots = 1;
    CHECK_INT(tsr_blend_start(&run, k.blend, &good, &p.layout), TSR_ERANGE);
    pages_fini(&p);
    CHECK(blend_kit_close(&k));
}

int main(void)
{
    RUN(a_context_in_pages_gives_the_answer_of_one_in_a_row);
    RUN(questions_are_answered_over_pages_with_bias_and_gate);
    RUN(places_that_make_no_sense_are_refused);
    return test_end();
}
