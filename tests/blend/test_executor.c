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

int main(void)
{
    RUN(a_pass_that_makes_no_sense_is_refused_before_it_begins);
    RUN(layers_come_one_after_the_other_and_logits_behind_the_last);
    RUN(a_pass_that_failed_must_be_ended_and_is_ended_once);
    RUN(tables_that_lack_members_or_are_of_another_age_are_refused);
    RUN(a_session_is_no_longer_than_the_models_context);
    RUN(a_model_without_a_tokenizer_says_so);
    return test_end();
}
