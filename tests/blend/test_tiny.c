/* The plain executor, beyond what every executor promises (tests/model/test_contract.c): equal bits
 * for passes of any size, its descriptions, and frequencies that change with the prompt. */
#include "support/model_kit.h"
#include "support/test.h"

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
        struct tsr_model_desc config = {.size = sizeof config, .path = bad[i].path};
        CHECK_INT(tsr_model_open(&m, tsr_executor_tiny(), &config), bad[i].err);
        CHECK(m == NULL);
        CHECK_HAS(tsr_errmsg(), bad[i].says);
    }
}

int main(void)
{
    RUN(the_same_row_has_the_same_bits_whoever_shares_its_pass);
    RUN(seeds_and_architectures_differ_and_repeat);
    RUN(frequencies_follow_the_set_of_the_pass);
    RUN(descriptions_it_cannot_read_are_refused_by_word);
    return test_end();
}
