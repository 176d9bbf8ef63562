/* What model.h promises of every executor, asked of each that is here: the plain one, and the one
 * on ggml on every device that it has. An executor that cannot promise equal bits has a tolerance,
 * which is that of its kernels and not ours. */
#include "device/device.h"
#include "support/test.h"
#include "support/tmpdir.h"

#include <tessera/model.h>

#include <math.h>

#ifdef TSRI_HAVE_LLAMA
#include "model/gguf_kit.h"
extern const struct tsr_executor_ops tsr_executor;
#endif

enum { SLOTS = 192, VOCAB_MAX = 512, ROW_MAX = 512 };

/* Who is asked, as one kind of model. */
struct subject {
    const char *name, *path, *device;
    const struct tsr_executor_ops *ops;
    uint32_t dtype;
    float kernels; /* 0: the same bits; else how far logits may be apart */
    float few;     /* the same of passes of an answer, whose kernels may be others */
};
static struct subject subject;
static struct tsri_device *near_kv; /* where the subject's KV is not host memory */

struct rig {
    struct tsr_model *model;
    struct tsr_model_info info;
    struct tsr_session *session;
    uint32_t tokens[SLOTS];
};

static void rig_init(struct rig *r)
{
    struct tsr_model_desc config = {.size = sizeof config,
                                    .path = subject.path,
                                    .device = subject.device,
                                    .kv_dtype = subject.dtype,
                                    .n_threads = 1};
    uint64_t seed = 7;
    *r = (struct rig){.info.size = sizeof r->info};
    CHECK_INT(tsr_model_open(&r->model, subject.ops, &config), 0);
    CHECK_INT(tsr_model_info(r->model, &r->info), 0);
    CHECK(r->info.n_vocab <= VOCAB_MAX);
    CHECK_INT(tsr_session_open(&r->session, r->model, SLOTS), 0);
    for (uint32_t i = 0; i < SLOTS; i++)
        r->tokens[i] = 3 + (uint32_t)(test_rand(&seed) % (r->info.n_vocab - 3));
}

static void rig_fini(struct rig *r)
{
    tsr_session_close(r->session);
    tsr_model_close(r->model);
}

/* ---- KV memory ---- */

static size_t row_bytes(const struct rig *r)
{
    return tsri_row_bytes(&tsr_session_layout(r->session)->planes[0]);
}

/* Reads or writes K (plane 0) or V (1) of a slot. */
static void row_copy(const struct rig *r, uint32_t plane, uint32_t layer, uint32_t slot, void *host,
                     bool write)
{
    const struct tsr_kv_layout *l = tsr_session_layout(r->session);
    const struct tsr_kv_plane *p = &l->planes[plane];
    uint8_t *at = (uint8_t *)(uintptr_t)tsri_layer_base(p, layer) + slot * p->token_stride;
    struct tsr_copy copy = {write ? (void *)at : host, write ? host : (void *)at, row_bytes(r)};
    CHECK(copy.bytes <= ROW_MAX * sizeof(float));
    if (l->memory != TSR_MEMORY_DEVICE) {
        memcpy(copy.dst, copy.src, copy.bytes);
        return;
    }
    CHECK_INT(tsri_device_copy(near_kv, NULL, &copy, 1), 0);
    CHECK_INT(tsri_stream_sync(near_kv, NULL), 0);
}

static float half(uint16_t h)
{
    float v = ldexpf((float)(h & 0x3ff) + (h & 0x7c00 ? 1024.0f : 0.0f),
                     (int)((h >> 10 & 31) ? (h >> 10 & 31) : 1) - 25);
    return h & 0x8000 ? -v : v;
}

static void row_floats(const struct rig *r, uint32_t plane, uint32_t layer, uint32_t slot,
                       float out[ROW_MAX])
{
    uint16_t halves[ROW_MAX];
    uint32_t n = r->info.n_kv_heads * r->info.head_dim;
    if (subject.dtype == TSR_DTYPE_F32) {
        row_copy(r, plane, layer, slot, out, false);
        return;
    }
    row_copy(r, plane, layer, slot, halves, false);
    for (uint32_t i = 0; i < n; i++)
        out[i] = half(halves[i]);
}

/* All rows of [first, end) of a session, as bytes. */
static uint8_t *image(const struct rig *r, uint32_t first, uint32_t end)
{
    size_t bytes = row_bytes(r);
    uint8_t *all = malloc(bytes * 2 * r->info.n_layers * (end - first)), *at = all;
    CHECK(all);
    for (uint32_t l = 0; l < r->info.n_layers; l++)
        for (uint32_t p = 0; p < 2; p++)
            for (uint32_t s = first; s < end; s++, at += bytes)
                row_copy(r, p, l, s, at, false);
    return all;
}

static bool same_image(const struct rig *r, const uint8_t *before, uint32_t first, uint32_t end)
{
    uint8_t *now = image(r, first, end);
    bool same = memcmp(now, before, row_bytes(r) * 2 * r->info.n_layers * (end - first)) == 0;
    free(now);
    return same;
}

/* ---- passes ---- */

struct pass {
    struct tsr_model_row rows[SLOTS];
    struct tsr_model_group group;
    struct tsr_model_pass pass;
};

/* Tokens [first, first + n) at their places, causal. */
static struct tsr_model_pass *causal(struct pass *p, const struct rig *r, uint32_t first,
                                     uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        p->rows[i] = (struct tsr_model_row){r->tokens[first + i], first + i, first + i};
    p->group = (struct tsr_model_group){n, 1, {{0, first + n}}};
    p->pass = (struct tsr_model_pass){
        .size = sizeof p->pass, .rows = p->rows, .n_rows = n, .n_groups = 1, .groups = &p->group};
    return &p->pass;
}

static void layers(struct rig *r, uint32_t first, uint32_t end, float *mass, uint32_t n_mass)
{
    for (uint32_t l = first; l < end; l++) {
        struct tsr_model_layer layer = {
            .size = sizeof layer, .layer = l, .mass = mass, .n_mass = n_mass};
        CHECK_INT(tsr_session_layer(r->session, &layer), 0);
    }
}

/* Begins, runs and ends a pass; logits of the row `which`, or NULL. */
static void run_pass(struct rig *r, const struct tsr_model_pass *pass, uint32_t which,
                     float *logits)
{
    CHECK_INT(tsr_session_begin(r->session, pass), 0);
    layers(r, 0, r->info.n_layers, NULL, 0);
    if (logits) CHECK_INT(tsr_session_logits(r->session, &which, 1, logits), 0);
    tsr_session_end(r->session);
}

static void prefill(struct rig *r, uint32_t first, uint32_t n, float *logits)
{
    struct pass p;
    run_pass(r, causal(&p, r, first, n), n - 1, logits);
}

static void check_near(const struct rig *r, const float *a, const float *b, float limit)
{
    float most = 0;
    for (uint32_t i = 0; i < r->info.n_vocab; i++)
        most = fmaxf(most, fabsf(a[i] - b[i]));
    if (most > limit) printf("    logits are %g apart\n", (double)most);
    CHECK(most <= limit);
}

/* The same bits, or as near as the subject's kernels are. */
static void check_logits(const struct rig *r, const float *a, const float *b)
{
    check_near(r, a, b, subject.kernels);
}

static void check_rows(const struct rig *r, const float *a, const float *b, float limit)
{
    for (uint32_t i = 0; i < r->info.n_kv_heads * r->info.head_dim; i++)
        CHECK(fabsf(a[i] - b[i]) <= limit);
}

/* ---- what is promised ---- */

TEST(kv_memory_has_every_slot_and_begins_with_zeros)
{
    struct rig r;
    rig_init(&r);
    const struct tsr_kv_layout *l = tsr_session_layout(r.session);
    CHECK_INT(tsri_layout_check(l), 0);
    CHECK(l->n_slots >= SLOTS && l->n_layers == r.info.n_layers && l->n_planes == 2);
    CHECK(l->planes[0].rope_dims == r.info.rope.dims && l->planes[1].rope_dims == 0);
    uint8_t *all = image(&r, 0, SLOTS);
    for (size_t i = 0; i < row_bytes(&r) * 2 * r.info.n_layers * SLOTS; i++)
        CHECK(all[i] == 0);
    free(all);
    rig_fini(&r);
}

TEST(a_row_is_the_same_whoever_shares_its_pass)
{
    float whole[VOCAB_MAX], parts[VOCAB_MAX];
    struct rig r;
    rig_init(&r);
    prefill(&r, 0, 150, whole);
    uint8_t *once = image(&r, 0, 150);
    static const uint32_t sizes[] = {1, 67, 2, 60, 9, 7, 3, 1};
    for (uint32_t i = 0, first = 0; first < 150; first += sizes[i++])
        prefill(&r, first, sizes[i], parts);
    check_logits(&r, whole, parts);
    CHECK(subject.kernels > 0 || same_image(&r, once, 0, 150));
    free(once);
    rig_fini(&r);
}

TEST(rows_of_an_answer_one_at_a_time_are_nearly_the_same)
{
    float whole[VOCAB_MAX], steps[VOCAB_MAX];
    struct rig r;
    struct pass p;
    rig_init(&r);
    prefill(&r, 0, 100, whole);
    prefill(&r, 0, 90, NULL);
    for (uint32_t i = 90; i < 100; i++) {
        causal(&p, &r, i, 1)->flags = TSR_PASS_DECODE;
        run_pass(&r, &p.pass, 0, steps);
    }
    check_near(&r, whole, steps, subject.few);
    rig_fini(&r);
}

TEST(rows_with_gaps_over_their_own_kv_change_nothing)
{
    float whole[VOCAB_MAX], again[VOCAB_MAX];
    struct rig r;
    struct pass p;
    rig_init(&r);
    prefill(&r, 0, 150, whole);
    uint8_t *before = image(&r, 0, 150);
    causal(&p, &r, 0, 150);
    for (uint32_t i = 0; i < 50; i++)
        p.rows[i] = p.rows[3 * i + 2];
    p.pass.n_rows = p.group.n_rows = 50;
    run_pass(&r, &p.pass, 49, again);
    check_logits(&r, whole, again);
    CHECK(subject.kernels > 0 || same_image(&r, before, 0, 150));
    free(before);
    rig_fini(&r);
}

TEST(logits_of_many_rows_are_those_of_each)
{
    static float many[40][VOCAB_MAX];
    float one[VOCAB_MAX];
    uint32_t which[40];
    struct rig r;
    struct pass p;
    rig_init(&r);
    float *all = malloc(sizeof *all * 40 * r.info.n_vocab);
    CHECK(all);
    CHECK_INT(tsr_session_begin(r.session, causal(&p, &r, 0, 100)), 0);
    layers(&r, 0, r.info.n_layers, NULL, 0);
    for (uint32_t i = 0; i < 40; i++)
        which[i] = 2 * i + 5;
    CHECK_INT(tsr_session_logits(r.session, which, 40, all), 0);
    for (uint32_t i = 0; i < 40; i++)
        memcpy(many[i], all + (size_t)i * r.info.n_vocab, r.info.n_vocab * sizeof *all);
    tsr_session_end(r.session);
    for (uint32_t i = 3; i < 40; i += 12) {
        prefill(&r, 0, which[i] + 1, one);
        check_logits(&r, many[i], one);
    }
    free(all);
    rig_fini(&r);
}

TEST(groups_see_their_ranges_and_nothing_else)
{
    enum { A = 60, B = 70 };
    struct rig r, alone;
    struct pass p, q;
    float first[ROW_MAX] = {0}, second[ROW_MAX] = {0};
    rig_init(&r);
    rig_init(&alone);
    struct tsr_model_group groups[] = {{A, 1, {{0, A}}}, {B, 1, {{A, B}}}};
    causal(&p, &r, 0, A + B);
    for (uint32_t i = A; i < A + B; i++)
        p.rows[i].position = i - A; /* as if it stood at the front */
    p.pass.groups = groups;
    p.pass.n_groups = 2;
    run_pass(&r, &p.pass, 0, NULL);
    uint8_t *before = image(&r, A, A + B);
    for (uint32_t i = 0; i < A; i++)
        p.rows[i].token = 3 + (p.rows[i].token + 1) % (r.info.n_vocab - 3);
    run_pass(&r, &p.pass, 0, NULL);
    CHECK(same_image(&r, before, A, A + B));
    causal(&q, &alone, 0, B);
    for (uint32_t i = 0; i < B; i++)
        q.rows[i].token = r.tokens[A + i];
    run_pass(&alone, &q.pass, 0, NULL);
    for (uint32_t l = 0; l < r.info.n_layers; l++)
        for (uint32_t i = 0; i < B; i += 23)
            for (uint32_t plane = 0; plane < 2; plane++) {
                row_floats(&r, plane, l, A + i, first);
                row_floats(&alone, plane, l, i, second);
                check_rows(&r, first, second, 0.02f); /* other tiles round differently */
            }
    free(before);
    rig_fini(&r);
    rig_fini(&alone);
}

/* The first of two ranges is seen whole, also when its slots follow those of the rows. */
TEST(a_range_behind_the_rows_is_seen_like_one_before_them)
{
    enum { A = 60, B = 70, GAP = 9 };
    struct rig r, plain;
    struct pass p, q;
    float first[ROW_MAX] = {0}, second[ROW_MAX] = {0};
    rig_init(&r);
    rig_init(&plain);
    causal(&q, &plain, 0, A + B);
    run_pass(&plain, &q.pass, 0, NULL);
    /* A behind a gap and in a pass of its own, then B in slots 0 .. B. */
    struct tsr_model_group groups[] = {{A, 1, {{B + GAP, A}}}, {B, 2, {{B + GAP, A}, {0, B}}}};
    causal(&p, &r, 0, A + B);
    for (uint32_t i = 0; i < A + B; i++) {
        uint32_t at = i < B ? A + i : i - B;
        p.rows[i] = (struct tsr_model_row){plain.tokens[at], at, i < B ? i : i + GAP};
    }
    p.pass.n_groups = 1;
    for (uint32_t i = 0; i < 2; i++) {
        p.pass.groups = &groups[i];
        p.pass.rows = i == 0 ? p.rows + B : p.rows;
        p.pass.n_rows = groups[i].n_rows;
        run_pass(&r, &p.pass, 0, NULL);
    }
    for (uint32_t l = 0; l < r.info.n_layers; l++)
        for (uint32_t i = 0; i < B; i += 23)
            for (uint32_t plane = 0; plane < 2; plane++) {
                row_floats(&r, plane, l, i, first);
                row_floats(&plain, plane, l, A + i, second);
                check_rows(&r, first, second, 0.02f); /* summed in another order */
            }
    /* Executors may compute rows slot by slot: both in one pass would see what is not there yet. */
    struct tsr_model_group together[] = {groups[1], groups[0]};
    p.pass.groups = together;
    p.pass.n_groups = 2;
    p.pass.rows = p.rows;
    p.pass.n_rows = A + B;
    CHECK_INT(tsr_session_begin(r.session, &p.pass), TSR_EINVAL);
    rig_fini(&r);
    rig_fini(&plain);
}

static void turn(const struct rig *r, float *row, int64_t delta)
{
    struct tsri_rope_set set;
    float table[2 * TSRI_ROPE_PAIRS_MAX];
    tsri_rope_set_init(&set, &r->info.rope, 0);
    tsri_rope_table(&set, delta, table);
    bool neox = r->info.rope.pairing == TSR_ROPE_NEOX;
    for (uint32_t h = 0; h < r->info.n_kv_heads; h++)
        for (uint32_t i = 0; i < set.n_pairs; i++) {
            float *a = &row[h * r->info.head_dim + (neox ? i : 2 * i)];
            float *b = a + (neox ? set.n_pairs : 1), x = *a, y = *b;
            *a = x * table[i] - y * table[set.n_pairs + i];
            *b = y * table[i] + x * table[set.n_pairs + i];
        }
}

TEST(k_stands_turned_to_its_position_and_v_does_not_turn)
{
    struct rig r;
    struct pass p;
    float at[2][ROW_MAX] = {{0}}, v[2][ROW_MAX] = {{0}};
    rig_init(&r);
    causal(&p, &r, 0, 2);
    p.rows[0] = (struct tsr_model_row){5, 3, 3};
    p.rows[1] = (struct tsr_model_row){5, 33, 40};
    struct tsr_model_group apart[] = {{1, 1, {{3, 1}}}, {1, 1, {{40, 1}}}};
    p.pass.groups = apart;
    p.pass.n_groups = 2;
    run_pass(&r, &p.pass, 0, NULL);
    for (uint32_t i = 0; i < 2; i++) {
        row_floats(&r, 0, 0, i ? 40 : 3, at[i]);
        row_floats(&r, 1, 0, i ? 40 : 3, v[i]);
    }
    turn(&r, at[0], 30);
    check_rows(&r, at[0], at[1], subject.dtype == TSR_DTYPE_F32 ? 1e-4f : 1e-2f);
    check_rows(&r, v[0], v[1], 0);
    rig_fini(&r);
}

static void mass_of(struct rig *r, const float *bias, uint32_t n_bias, float mass[SLOTS])
{
    struct pass p;
    causal(&p, r, 0, SLOTS);
    p.pass.bias = bias;
    p.pass.n_bias = n_bias;
    p.pass.n_bias_rows = bias ? 40 : 0;
    p.pass.n_mass_rows = 40;
    memset(mass, 0, SLOTS * sizeof *mass);
    CHECK_INT(tsr_session_begin(r->session, &p.pass), 0);
    layers(r, 0, r->info.n_layers, mass, SLOTS);
    tsr_session_end(r->session);
}

TEST(attention_adds_up_to_one_for_each_row_and_follows_the_bias)
{
    float plain[SLOTS], biased[SLOTS], bias[SLOTS / 2];
    double sum[2] = {0, 0}, front[2] = {0, 0};
    struct rig r;
    rig_init(&r);
    CHECK(r.info.caps & TSR_MODEL_MASS && r.info.caps & TSR_MODEL_BIAS);
    for (uint32_t i = 0; i < SLOTS / 2; i++)
        bias[i] = i == 20 ? -INFINITY : -2;
    mass_of(&r, NULL, 0, plain);
    mass_of(&r, bias, SLOTS / 2, biased);
    for (uint32_t i = 0; i < SLOTS; i++) {
        CHECK(plain[i] >= 0 && biased[i] >= 0);
        sum[0] += (double)plain[i];
        sum[1] += (double)biased[i];
        if (i < SLOTS / 2) front[0] += (double)plain[i], front[1] += (double)biased[i];
    }
    CHECK(fabs(sum[0] - 40.0 * r.info.n_layers) < 0.05);
    CHECK(fabs(sum[1] - 40.0 * r.info.n_layers) < 0.05);
    CHECK(front[1] < 0.5 * front[0]);
    CHECK(plain[20] > 0 && biased[20] == 0);
    rig_fini(&r);
}

TEST(a_bias_is_for_its_rows_alone)
{
    float bias[64], plain[VOCAB_MAX], first[VOCAB_MAX], last[VOCAB_MAX], end[VOCAB_MAX];
    struct rig r;
    struct pass p;
    rig_init(&r);
    for (uint32_t i = 0; i < 64; i++)
        bias[i] = -3;
    run_pass(&r, causal(&p, &r, 0, 128), 99, plain);
    run_pass(&r, causal(&p, &r, 0, 128), 127, end);
    p.pass.bias = bias;
    p.pass.n_bias = 64;
    p.pass.n_bias_rows = 16;
    run_pass(&r, &p.pass, 99, first);
    check_logits(&r, plain, first);
    run_pass(&r, &p.pass, 127, last);
    CHECK(memcmp(last, end, r.info.n_vocab * sizeof *last) != 0);
    rig_fini(&r);
}

TEST(deviation_is_zero_where_kv_is_what_it_would_be_and_writes_nothing)
{
    struct rig r;
    struct pass p;
    float dk[120], dv[120], zeros[ROW_MAX] = {0};
    rig_init(&r);
    CHECK(r.info.caps & TSR_MODEL_DEVIATION);
    prefill(&r, 0, 120, NULL);
    row_copy(&r, 0, 1, 77, zeros, true);
    uint8_t *before = image(&r, 0, 120);
    CHECK_INT(tsr_session_begin(r.session, causal(&p, &r, 0, 120)), 0);
    layers(&r, 0, 1, NULL, 0);
    struct tsr_model_deviation d = {.size = sizeof d, .layer = 1, .k = dk, .v = dv};
    CHECK_INT(tsr_session_deviation(r.session, &d), 0);
    for (uint32_t i = 0; i < 120; i++) {
        CHECK(i == 77 ? dk[i] > 1e-3f : dk[i] <= subject.kernels);
        CHECK(dv[i] <= subject.kernels);
    }
    CHECK(same_image(&r, before, 0, 120));
    d.k = NULL;
    CHECK_INT(tsr_session_deviation(r.session, &d), 0);
    tsr_session_end(r.session);
    free(before);
    rig_fini(&r);
}

TEST(narrowing_keeps_the_rows_that_are_named_as_they_were)
{
    float whole[VOCAB_MAX], narrowed[VOCAB_MAX];
    uint32_t keep[40], last = 39;
    struct rig r;
    struct pass p;
    rig_init(&r);
    prefill(&r, 0, 120, whole);
    CHECK_INT(tsr_session_begin(r.session, causal(&p, &r, 0, 120)), 0);
    layers(&r, 0, 1, NULL, 0);
    for (uint32_t i = 0; i < 40; i++)
        keep[i] = 3 * i + 2;
    CHECK_INT(tsr_session_narrow(r.session, keep, 40), 0);
    CHECK_INT(tsr_session_rows(r.session), 40);
    layers(&r, 1, r.info.n_layers, NULL, 0);
    CHECK_INT(tsr_session_logits(r.session, &last, 1, narrowed), 0);
    tsr_session_end(r.session);
    check_logits(&r, whole, narrowed);
    rig_fini(&r);
}

TEST(a_pass_ended_at_any_layer_leaves_everything_else_as_it_was)
{
    float whole[VOCAB_MAX], again[VOCAB_MAX];
    struct rig r;
    struct pass p;
    rig_init(&r);
    size_t row = row_bytes(&r), layer = row * 2 * 60;
    prefill(&r, 0, 120, whole);
    for (uint32_t stop = 0; stop <= r.info.n_layers; stop++) {
        uint8_t *others = image(&r, 0, 60), *own = image(&r, 60, 120);
        causal(&p, &r, 60, 60);
        for (uint32_t i = 0; i < 60; i++)
            p.rows[i].token = 3 + (p.rows[i].token + 7) % (r.info.n_vocab - 3);
        CHECK_INT(tsr_session_begin(r.session, &p.pass), 0);
        CHECK_INT(tsr_session_begin(r.session, &p.pass), TSR_EBUSY);
        layers(&r, 0, stop, NULL, 0);
        tsr_session_end(r.session);
        CHECK_INT(tsr_session_rows(r.session), 0);
        CHECK(same_image(&r, others, 0, 60));
        uint8_t *now = image(&r, 60, 120);
        CHECK(memcmp(now + stop * layer, own + stop * layer, (r.info.n_layers - stop) * layer) ==
              0);
        prefill(&r, 60, 60, again);
        check_logits(&r, whole, again);
        free(others);
        free(own);
        free(now);
    }
    rig_fini(&r);
}

TEST(sessions_of_one_model_do_not_touch_each_other)
{
    float one[VOCAB_MAX], two[VOCAB_MAX];
    struct rig r;
    struct tsr_session *first, *second, *none;
    struct pass p;
    rig_init(&r);
    prefill(&r, 0, 64, one);
    first = r.session;
    CHECK_INT(tsr_session_open(&second, r.model, SLOTS), 0);
    CHECK_INT(tsr_session_begin(first, causal(&p, &r, 64, 16)), 0);
    r.session = second;
    prefill(&r, 0, 64, two); /* while a pass of the other is open */
    r.session = first;
    layers(&r, 0, r.info.n_layers, NULL, 0);
    tsr_session_end(first);
    check_logits(&r, one, two);
    CHECK_INT(tsr_session_open(&none, r.model, r.info.context + 1), TSR_ERANGE);
    CHECK(none == NULL);
    tsr_session_close(second);
    rig_fini(&r);
}

static void run_all(void)
{
    printf("%s, %s:\n", subject.name, subject.device ? subject.device : "cpu");
    RUN(kv_memory_has_every_slot_and_begins_with_zeros);
    RUN(a_row_is_the_same_whoever_shares_its_pass);
    RUN(rows_of_an_answer_one_at_a_time_are_nearly_the_same);
    RUN(rows_with_gaps_over_their_own_kv_change_nothing);
    RUN(logits_of_many_rows_are_those_of_each);
    RUN(groups_see_their_ranges_and_nothing_else);
    RUN(a_range_behind_the_rows_is_seen_like_one_before_them);
    RUN(k_stands_turned_to_its_position_and_v_does_not_turn);
    RUN(attention_adds_up_to_one_for_each_row_and_follows_the_bias);
    RUN(a_bias_is_for_its_rows_alone);
    RUN(deviation_is_zero_where_kv_is_what_it_would_be_and_writes_nothing);
    RUN(narrowing_keeps_the_rows_that_are_named_as_they_were);
    RUN(a_pass_ended_at_any_layer_leaves_everything_else_as_it_was);
    RUN(sessions_of_one_model_do_not_touch_each_other);
}

static const char *const archs[] = {"llama", "qwen2", "qwen3"};

#ifdef TSRI_HAVE_LLAMA
static void run_ggml(const char *device, uint32_t dtype, float kernels, float few)
{
    struct tmpdir dir;
    tmpdir_init_fast(&dir);
    for (uint32_t i = 0; i < TSRI_COUNT(archs); i++) {
        char path[sizeof dir.path + 16];
        struct kit_model m = {.arch = archs[i], .context = 1024, .head_dim = 64}; /* CUDA has it */
        snprintf(path, sizeof path, "%s/m.gguf", dir.path);
        CHECK(kit_write(path, &m));
        subject = (struct subject){"ggml", path, device, &tsr_executor, dtype, kernels, few};
        struct tsr_model *model;
        struct tsr_model_desc config = {.size = sizeof config, .path = path, .device = device};
        if (tsr_model_open(&model, &tsr_executor, &config) == TSR_EDEVICE) break; /* not here */
        tsr_model_close(model);
        run_all();
    }
    tmpdir_fini(&dir);
}
#endif

int main(void)
{
    for (uint32_t i = 0; i < TSRI_COUNT(archs); i++) {
        subject =
            (struct subject){"tiny", archs[i], NULL, tsr_executor_tiny(), TSR_DTYPE_F32, 0, 0};
        run_all();
    }
#ifdef TSRI_HAVE_LLAMA
    run_ggml("cpu", TSR_DTYPE_F32, 0, 1e-3f);
    run_ggml("cpu", TSR_DTYPE_F16, 0, 0.02f); /* ggml adds up such V in 16 bits */
    if (tsri_device_open(&near_kv, "cuda", NULL) == 0)
        run_ggml("cuda", TSR_DTYPE_F16, 0.05f, 0.05f);
    tsri_device_close(near_kv);
#endif
    return test_end();
}
