/* Models through their table: what reaches an executor has been checked, and passes keep their
 * order. */
#include "support/model_kit.h"
#include "support/test.h"

static int begin_with(struct model_kit *k, struct tsr_model_row *rows, uint32_t n_rows,
                      struct tsr_model_group *groups, uint32_t n_groups)
{
    struct tsr_model_pass pass = {.size = sizeof pass,
                                  .rows = rows,
                                  .n_rows = n_rows,
                                  .groups = groups,
                                  .n_groups = n_groups};
    return tsr_session_begin(k->session, &pass);
}

TEST(a_pass_that_makes_no_sense_is_refused_before_it_begins)
{
    struct model_kit k;
    model_kit_open(&k, "llama vocab=32 context=64", TSR_DTYPE_F16, 16);
    struct tsr_model_row good[2] = {{1, 0, 0}, {2, 1, 1}};
    struct tsr_model_group all[1] = {{2, 1, {{0, 2}}}};
    CHECK_INT(begin_with(&k, good, 2, all, 1), 0);
    CHECK_INT(begin_with(&k, good, 2, all, 1), TSR_EBUSY);
    tsr_session_end(k.session);

    struct tsr_model_row token[2] = {{1, 0, 0}, {32, 1, 1}};
    CHECK_INT(begin_with(&k, token, 2, all, 1), TSR_EINVAL);
    struct tsr_model_row order[2] = {{1, 1, 1}, {2, 0, 0}};
    CHECK_INT(begin_with(&k, order, 2, all, 1), TSR_EINVAL);
    struct tsr_model_row twice[2] = {{1, 1, 1}, {2, 1, 1}};
    CHECK_INT(begin_with(&k, twice, 2, all, 1), TSR_EINVAL);
    struct tsr_model_row slot[2] = {{1, 0, 0}, {2, 16, 16}};
    CHECK_INT(begin_with(&k, slot, 2, (struct tsr_model_group[]){{2, 1, {{0, 16}}}}, 1),
              TSR_ERANGE);
    struct tsr_model_row position[2] = {{1, 0, 0}, {2, 64, 1}};
    CHECK_INT(begin_with(&k, position, 2, all, 1), TSR_ERANGE);

    struct tsr_model_group bad[][2] = {
        {{1, 1, {{0, 2}}}, {0, 1, {{0, 2}}}}, /* an empty group */
        {{3, 1, {{0, 2}}}},                   /* too many rows */
        {{1, 1, {{0, 2}}}},                   /* too few */
        {{2, 1, {{0, 17}}}},                  /* beyond the session */
        {{2, 2, {{0, 1}, {1, 1}}}},           /* ranges that touch */
        {{2, 2, {{2, 1}, {0, 2}}}},           /* also the other way round */
        {{2, 2, {{0, 5}, {1, 2}}}},           /* ranges that overlap */
        {{2, 1, {{0, 1}}}},                   /* a row that does not see itself */
        {{2, 2, {{0, 2}, {3, 2}}}},           /* rows in the range that is seen whole */
        {{2, 2, {{0, 2}, {16, 1}}}},          /* the last range beyond the session */
        {{2, 3, {{0, 2}}}},                   /* too many ranges */
        {{2, 1, {{0, 0}}}},                   /* an empty range */
    };
    for (uint32_t i = 0; i < TSRI_COUNT(bad); i++)
        CHECK_INT(begin_with(&k, good, 2, bad[i], i == 0 ? 2 : 1), TSR_EINVAL);
    CHECK_INT(tsr_session_rows(k.session), 0);
    model_kit_close(&k);
}

TEST(layers_come_one_after_the_other_and_logits_behind_the_last)
{
    struct model_kit k;
    model_kit_open(&k, "qwen2 layers=2", TSR_DTYPE_F16, 16);
    float logits[128], k_deviation[4];
    uint32_t tokens[4] = {1, 2, 3, 4}, last = 3;
    struct tsr_model_layer step = {.size = sizeof step};
    struct tsr_model_deviation d = {.size = sizeof d, .layer = 1, .k = k_deviation};
    CHECK_INT(tsr_session_layer(k.session, &step), TSR_EINVAL);
    CHECK_INT(model_kit_begin(&k, tokens, 0, 4), 0);
    step.layer = 1;
    CHECK_INT(tsr_session_layer(k.session, &step), TSR_EINVAL);
    CHECK_INT(tsr_session_deviation(k.session, &d), TSR_EINVAL);
    step.layer = 0;
    CHECK_INT(tsr_session_layer(k.session, &step), 0);
    CHECK_INT(tsr_session_layer(k.session, &step), TSR_EINVAL);
    CHECK_INT(tsr_session_logits(k.session, &last, 1, logits), TSR_EINVAL);
    CHECK_INT(tsr_session_deviation(k.session, &d), 0);
    step.layer = 1;
    float mass[4];
    step.mass = mass, step.n_mass = 4;
    CHECK_INT(tsr_session_layer(k.session, &step), TSR_EINVAL); /* no mass rows */
    step.mass = NULL;
    CHECK_INT(tsr_session_layer(k.session, &step), 0);
    CHECK_INT(tsr_session_narrow(k.session, (const uint32_t[]){1, 1}, 2), TSR_EINVAL);
    CHECK_INT(tsr_session_narrow(k.session, (const uint32_t[]){0, 4}, 2), TSR_EINVAL);
    CHECK_INT(tsr_session_logits(k.session, &last, 1, logits), 0);
    tsr_session_end(k.session);
    tsr_session_end(k.session);
    model_kit_close(&k);
}

/* ---- an executor that fails when told to ---- */

static struct {
    int fail_layer;
    int n_begun, n_ended;
} odd;

static int odd_layer(struct tsr_executor_session *s, const struct tsr_model_layer *layer)
{
    if ((int)layer->layer == odd.fail_layer) return TSR_EIO;
    return tsr_executor_tiny()->layer(s, layer);
}
static int odd_begin(struct tsr_executor_session *s, const struct tsr_model_pass *pass)
{
    odd.n_begun++;
    return tsr_executor_tiny()->begin(s, pass);
}
static void odd_end(struct tsr_executor_session *s)
{
    odd.n_ended++;
    tsr_executor_tiny()->end(s);
}

TEST(a_pass_that_failed_must_be_ended_and_is_ended_once)
{
    struct tsr_executor_ops ops = *tsr_executor_tiny();
    ops.layer = odd_layer;
    ops.begin = odd_begin;
    ops.end = odd_end;
    struct model_kit k = {.info.size = sizeof k.info};
    struct tsr_model_desc config = {.size = sizeof config, .path = "llama"};
    CHECK_INT(tsr_model_open(&k.model, &ops, &config), 0);
    CHECK_INT(tsr_model_info(k.model, &k.info), 0);
    CHECK_INT(k.info.kv_dtype, TSR_DTYPE_F16);
    CHECK_INT(tsr_session_open(&k.session, k.model, 8), 0);
    uint32_t tokens[4] = {1, 2, 3, 4};
    odd.fail_layer = 1;
    CHECK_INT(model_kit_begin(&k, tokens, 0, 4), 0);
    struct tsr_model_layer step = {.size = sizeof step};
    CHECK_INT(tsr_session_layer(k.session, &step), 0);
    step.layer = 1;
    CHECK_INT(tsr_session_layer(k.session, &step), TSR_EIO);
    odd.fail_layer = -1;
    CHECK_INT(tsr_session_layer(k.session, &step), TSR_EINVAL);
    CHECK_INT(odd.n_ended, 0);
    model_kit_close(&k);
    CHECK_INT(odd.n_begun, 1);
    CHECK_INT(odd.n_ended, 1);
}

TEST(tables_that_lack_members_or_are_of_another_age_are_refused)
{
    struct tsr_model_desc config = {.size = sizeof config, .path = "llama"};
    struct tsr_model *m;
    struct tsr_executor_ops ops = *tsr_executor_tiny();
    ops.abi = TSR_EXECUTOR_ABI + 1;
    CHECK_INT(tsr_model_open(&m, &ops, &config), TSR_EVERSION);
    ops = *tsr_executor_tiny();
    ops.narrow = NULL;
    CHECK_INT(tsr_model_open(&m, &ops, &config), TSR_EDEVICE);
    ops = *tsr_executor_tiny();
    ops.deviation = NULL; /* promised by info */
    CHECK_INT(tsr_model_open(&m, &ops, &config), TSR_EDEVICE);
    config.library = "/nowhere/libtessera-model.so";
    CHECK_INT(tsr_model_open(&m, NULL, &config), TSR_EDEVICE);
    CHECK_HAS(tsr_errmsg(), "nowhere");
    config.size = 4;
    CHECK_INT(tsr_model_open(&m, tsr_executor_tiny(), &config), TSR_EINVAL);
    tsr_model_close(NULL);
}

TEST(a_session_is_no_longer_than_the_models_context)
{
    struct model_kit k;
    model_kit_open(&k, "llama context=32", TSR_DTYPE_F16, 32);
    struct tsr_session *s;
    CHECK_INT(tsr_session_open(&s, k.model, 33), TSR_ERANGE);
    CHECK_INT(tsr_session_open(&s, k.model, 0), TSR_EINVAL);
    CHECK(tsr_session_model(k.session) == k.model);
    tsr_session_close(NULL);
    model_kit_close(&k);
}

TEST(a_model_without_a_tokenizer_says_so)
{
    struct model_kit k;
    model_kit_open(&k, "llama", TSR_DTYPE_F16, 8);
    uint32_t token;
    char text[8];
    struct tsr_chat_message message = {"user", "hello"};
    CHECK_INT(tsr_model_tokenize(k.model, "a", 1, 0, &token, 1), TSR_EUNSUP);
    CHECK_INT(tsr_model_detokenize(k.model, &token, 1, 0, text, 8), TSR_EUNSUP);
    CHECK_INT(tsr_model_chat(k.model, &message, 1, text, 8), TSR_EUNSUP);
    CHECK_INT(tsr_model_is_end(k.model, 1), 0);
    model_kit_close(&k);
}

/* ---- several sessions ---- */

#define SEVERAL "qwen2 layers=2 heads=2 kv_heads=1 head_dim=8 ff=24 vocab=64 context=64"

/* Two models alike: one decodes by passes, the other by the decoder. */
TEST(a_decoder_gives_what_passes_give)
{
    struct model_kit k[2];
    struct tsr_session *more;
    struct tsr_decoder *decoder;
    uint32_t tokens[20];
    float logits[2][64], one[64];
    for (int i = 0; i < 2; i++)
        model_kit_open(&k[i], SEVERAL, TSR_DTYPE_F16, 32);
    model_kit_tokens(&k[0], tokens, 20, 3);
    CHECK_INT(tsr_session_open(&more, k[0].model, 64), 0);
    CHECK_INT(tsr_decoder_open(&decoder, k[0].model, 2), 0);
    struct tsr_session *own = k[0].session;
    model_kit_prefill(&k[0], tokens, 0, 10, one);
    k[0].session = more;
    model_kit_prefill(&k[0], tokens, 0, 19, one);
    k[0].session = own;
    struct tsr_decoder_row rows[2] = {{.session = own, .token = tokens[10], .position = 10},
                                      {.session = more, .token = tokens[19], .position = 19}};
    CHECK_INT(tsr_decoder_run(decoder, rows, 2, TSR_DECODER_ALIKE, logits[0]), 0);
    model_kit_prefill(&k[1], tokens, 0, 11, one);
    CHECK(memcmp(one, logits[0], sizeof one) == 0);
    model_kit_prefill(&k[1], tokens, 0, 20, one);
    CHECK(memcmp(one, logits[1], sizeof one) == 0);

    struct tsr_decoder_row bad[2] = {rows[0], rows[0]};
    CHECK_INT(tsr_decoder_run(decoder, bad, 2, 0, logits[0]), TSR_EINVAL);
    bad[1] = (struct tsr_decoder_row){.session = k[1].session, .token = 1, .position = 1};
    CHECK_INT(tsr_decoder_run(decoder, bad, 2, 0, logits[0]), TSR_EINVAL);
    bad[0].token = 64;
    CHECK_INT(tsr_decoder_run(decoder, bad, 1, 0, logits[0]), TSR_EINVAL);
    bad[0] = rows[0];
    bad[0].position = 32;
    CHECK_INT(tsr_decoder_run(decoder, bad, 1, 0, logits[0]), TSR_ERANGE);
    CHECK_INT(tsr_decoder_run(decoder, rows, 2, 2, logits[0]), TSR_EINVAL);
    CHECK_INT(tsr_decoder_run(decoder, rows, 3, 0, logits[0]), TSR_EINVAL);
    CHECK_INT(model_kit_begin(&k[0], tokens, 0, 5), 0);
    CHECK_INT(tsr_decoder_run(decoder, rows, 2, 0, logits[0]), TSR_EBUSY);
    tsr_session_end(own);
    tsr_decoder_close(decoder);
    CHECK_INT(tsr_decoder_open(&decoder, k[0].model, TSR_DECODER_ROWS_MAX + 1), TSR_EINVAL);
    CHECK(decoder == NULL);
    tsr_session_close(more);
    for (int i = 0; i < 2; i++)
        model_kit_close(&k[i]);
}

TEST(layers_in_pieces_give_the_same)
{
    struct model_kit k;
    uint32_t tokens[30], n_pieces = 0;
    float whole[64], pieces[64];
    model_kit_open(&k, SEVERAL, TSR_DTYPE_F16, 32);
    model_kit_tokens(&k, tokens, 30, 3);
    model_kit_prefill(&k, tokens, 0, 30, whole);
    tsr_session_cut(k.session, 8);
    CHECK_INT(model_kit_begin(&k, tokens, 0, 30), 0);
    for (uint32_t l = 0; l < 2; l++) {
        struct tsr_model_layer layer = {.size = sizeof layer, .layer = l};
        int e;
        while ((e = tsr_session_layer(k.session, &layer)) > 0)
            n_pieces++;
        CHECK_INT(e, 0);
        n_pieces++;
    }
    CHECK_INT(n_pieces, 8);
    const uint32_t last = 29;
    CHECK_INT(tsr_session_logits(k.session, &last, 1, pieces), 0);
    CHECK(memcmp(whole, pieces, sizeof whole) == 0);
    tsr_session_end(k.session);
    model_kit_close(&k);
}

int main(void)
{
    RUN(a_decoder_gives_what_passes_give);
    RUN(layers_in_pieces_give_the_same);
    RUN(a_pass_that_makes_no_sense_is_refused_before_it_begins);
    RUN(layers_come_one_after_the_other_and_logits_behind_the_last);
    RUN(a_pass_that_failed_must_be_ended_and_is_ended_once);
    RUN(tables_that_lack_members_or_are_of_another_age_are_refused);
    RUN(a_session_is_no_longer_than_the_models_context);
    RUN(a_model_without_a_tokenizer_says_so);
    return test_end();
}
