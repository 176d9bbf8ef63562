/* The plain executor: what every other one is measured against, held to the promises of model.h. */
#include "support/model_kit.h"
#include "support/test.h"

#include <math.h>

static const char *const archs[] = {"llama", "qwen2", "qwen3"};
static const uint32_t dtypes[] = {TSR_DTYPE_F32, TSR_DTYPE_F16, TSR_DTYPE_BF16};

TEST(the_same_row_has_the_same_bits_whoever_shares_its_pass)
{
    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t t = 0; t < 3; t++) {
            struct model_kit k;
            model_kit_open(&k, archs[a], dtypes[t], 64);
            uint32_t tokens[40];
            model_kit_tokens(&k, tokens, 40, 11);
            float whole[128], parts[128];
            model_kit_prefill(&k, tokens, 0, 40, whole);
            struct tsr_session *other;
            CHECK_INT(tsr_session_open(&other, k.model, 64), 0);
            struct tsr_session *first = k.session;
            k.session = other;
            model_kit_prefill(&k, tokens, 0, 17, parts);
            model_kit_prefill(&k, tokens, 17, 22, parts);
            model_kit_prefill(&k, tokens, 39, 1, parts);
            CHECK(memcmp(whole, parts, sizeof whole) == 0);
            k.session = first;
            tsr_session_close(other);
            model_kit_close(&k);
        }
}

TEST(seeds_and_architectures_differ_and_repeat)
{
    float logits[4][128];
    const char *paths[] = {"llama seed=1", "llama seed=2", "qwen2 seed=1", "llama seed=1"};
    uint8_t weights[4][TSR_MODEL_WEIGHTS_BYTES];
    for (uint32_t i = 0; i < 4; i++) {
        struct model_kit k;
        model_kit_open(&k, paths[i], TSR_DTYPE_F32, 16);
        uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
        model_kit_prefill(&k, tokens, 0, 8, logits[i]);
        memcpy(weights[i], k.info.weights, sizeof weights[i]);
        model_kit_close(&k);
    }
    CHECK(memcmp(logits[0], logits[3], sizeof logits[0]) == 0);
    CHECK(memcmp(weights[0], weights[3], sizeof weights[0]) == 0);
    CHECK(memcmp(logits[0], logits[1], sizeof logits[0]) != 0);
    CHECK(memcmp(logits[0], logits[2], sizeof logits[0]) != 0);
    CHECK(memcmp(weights[0], weights[1], sizeof weights[0]) != 0);
}

/* K at position p, turned on to p + d by the device, is K at p + d. */
TEST(k_stands_turned_as_the_device_turns_it)
{
    for (uint32_t a = 0; a < 3; a++) {
        struct model_kit k;
        model_kit_open(&k, archs[a], TSR_DTYPE_F32, 64);
        struct tsr_model_row rows[2] = {{5, 3, 3}, {5, 33, 33}};
        struct tsr_model_group groups[2] = {{1, 1, {{3, 1}}}, {1, 1, {{33, 1}}}};
        struct tsr_model_pass pass = {
            .size = sizeof pass, .rows = rows, .n_rows = 2, .groups = groups, .n_groups = 2};
        CHECK_INT(tsr_session_begin(k.session, &pass), 0);
        struct tsr_model_layer step = {.size = sizeof step};
        CHECK_INT(tsr_session_layer(k.session, &step), 0);
        tsr_session_end(k.session);
        const float *at3 = model_kit_row(&k, 0, 0, 3), *at33 = model_kit_row(&k, 0, 0, 33);
        float turned[32];
        memcpy(turned, at3, sizeof turned);
        model_kit_turn(&k, turned, 30);
        for (uint32_t i = 0; i < 32; i++)
            CHECK(fabsf(turned[i] - at33[i]) < 1e-5f);
        CHECK(memcmp(model_kit_row(&k, 1, 0, 3), model_kit_row(&k, 1, 0, 33), 128) == 0);
        model_kit_close(&k);
    }
}

TEST(mass_is_one_for_each_row_and_layer_and_follows_the_bias)
{
    struct model_kit k;
    model_kit_open(&k, "qwen3", TSR_DTYPE_F16, 64);
    uint32_t tokens[24];
    model_kit_tokens(&k, tokens, 24, 5);
    float plain[24] = {0}, biased[24] = {0}, bias[12];
    for (uint32_t i = 0; i < 12; i++)
        bias[i] = -1.5f;
    model_kit_mass(&k, tokens, 24, NULL, 0, plain);
    model_kit_mass(&k, tokens, 24, bias, 12, biased);
    double sum = 0, front = 0, front_biased = 0;
    for (uint32_t i = 0; i < 24; i++) {
        sum += plain[i];
        if (i < 12) front += plain[i], front_biased += biased[i];
    }
    CHECK(fabs(sum - 4.0 * k.info.n_layers) < 1e-3);
    CHECK(front_biased < 0.8 * front);
    model_kit_close(&k);
}

TEST(a_bias_of_minus_infinity_hides_a_slot)
{
    struct model_kit k;
    model_kit_open(&k, "llama", TSR_DTYPE_F32, 64);
    uint32_t tokens[16];
    model_kit_tokens(&k, tokens, 16, 9);
    float mass[16] = {0}, bias[4] = {0, -INFINITY, 0, -INFINITY};
    model_kit_mass(&k, tokens, 16, bias, 4, mass);
    CHECK(mass[0] > 0 && mass[1] == 0 && mass[2] > 0 && mass[3] == 0);
    model_kit_close(&k);
}

TEST(deviation_of_what_stands_there_is_zero_and_writes_nothing)
{
    struct model_kit k;
    model_kit_open(&k, "qwen2", TSR_DTYPE_F16, 32);
    uint32_t tokens[16];
    model_kit_tokens(&k, tokens, 16, 3);
    float logits[128], dk[16], dv[16];
    model_kit_prefill(&k, tokens, 0, 16, logits);
    uint8_t *row = (uint8_t *)model_kit_row(&k, 1, 1, 7);
    uint8_t before = row[1];
    row[1] ^= 0x40;
    CHECK_INT(model_kit_begin(&k, tokens, 0, 16), 0);
    struct tsr_model_layer step = {.size = sizeof step};
    CHECK_INT(tsr_session_layer(k.session, &step), 0);
    struct tsr_model_deviation d = {.size = sizeof d, .layer = 1, .k = dk, .v = dv};
    CHECK_INT(tsr_session_deviation(k.session, &d), 0);
    for (uint32_t i = 0; i < 16; i++) {
        CHECK(dk[i] == 0);
        CHECK((dv[i] != 0) == (i == 7));
    }
    CHECK_INT(row[1], before ^ 0x40);
    tsr_session_end(k.session);
    model_kit_close(&k);
}

TEST(rows_that_are_narrowed_away_leave_the_others_as_they_are)
{
    struct model_kit k;
    model_kit_open(&k, "llama", TSR_DTYPE_F32, 32);
    uint32_t tokens[16];
    model_kit_tokens(&k, tokens, 16, 21);
    float whole[128], narrowed[128];
    model_kit_prefill(&k, tokens, 0, 16, whole);
    /* Everything stands there already: those that remain compute the same. */
    CHECK_INT(model_kit_begin(&k, tokens, 0, 16), 0);
    for (uint32_t l = 0; l < k.info.n_layers; l++) {
        struct tsr_model_layer step = {.size = sizeof step, .layer = l};
        CHECK_INT(tsr_session_layer(k.session, &step), 0);
        const uint32_t keep[] = {2, 5, 15};
        if (l == 0) CHECK_INT(tsr_session_narrow(k.session, keep, 3), 0);
    }
    CHECK_INT(tsr_session_rows(k.session), 3);
    CHECK_INT(tsr_session_logits(k.session, (const uint32_t[]){2}, 1, narrowed), 0);
    tsr_session_end(k.session);
    CHECK(memcmp(whole, narrowed, sizeof whole) == 0);
    model_kit_close(&k);
}

TEST(frequencies_follow_the_set_of_the_pass)
{
    struct model_kit k;
    model_kit_open(&k, "llama dynamic=2 trained=16", TSR_DTYPE_F32, 64);
    uint32_t tokens[12];
    model_kit_tokens(&k, tokens, 12, 2);
    float near[128], far[128];
    model_kit_prefill(&k, tokens, 0, 12, near);
    k.freq_set = 40;
    model_kit_prefill(&k, tokens, 0, 12, far);
    CHECK(memcmp(near, far, sizeof near) != 0);
    model_kit_close(&k);
}

TEST(descriptions_it_cannot_read_are_refused_by_word)
{
    const struct {
        const char *path;
        int err;
        const char *says;
    } bad[] = {{"gpt2", TSR_EUNSUP, "gpt2"},
               {"", TSR_EUNSUP, "architecture"},
               {"llama layers=0", TSR_EINVAL, "layers=0"},
               {"llama layers=1.5", TSR_ERANGE, "layers=1.5"},
               {"llama size=3", TSR_EINVAL, "size=3"},
               {"llama seed=x", TSR_EINVAL, "seed=x"},
               {"llama heads=5 kv_heads=2", TSR_EINVAL, "divide"},
               {"llama vocab=1000000 heads=256", TSR_ERANGE, "too many"}};
    for (uint32_t i = 0; i < TSRI_COUNT(bad); i++) {
        struct tsr_model *m;
        struct tsr_model_config config = {.size = sizeof config, .path = bad[i].path};
        CHECK_INT(tsr_model_open(&m, tsr_executor_tiny(), &config), bad[i].err);
        CHECK(m == NULL);
        CHECK_HAS(tsr_errmsg(), bad[i].says);
    }
}

int main(void)
{
    RUN(the_same_row_has_the_same_bits_whoever_shares_its_pass);
    RUN(seeds_and_architectures_differ_and_repeat);
    RUN(k_stands_turned_as_the_device_turns_it);
    RUN(mass_is_one_for_each_row_and_layer_and_follows_the_bias);
    RUN(a_bias_of_minus_infinity_hides_a_slot);
    RUN(deviation_of_what_stands_there_is_zero_and_writes_nothing);
    RUN(rows_that_are_narrowed_away_leave_the_others_as_they_are);
    RUN(frequencies_follow_the_set_of_the_pass);
    RUN(descriptions_it_cannot_read_are_refused_by_word);
    return test_end();
}
