/* One row of each of several sessions: the logits and KV of a pass, in any company. */
#ifdef TSRI_HAVE_LLAMA
#include "model/session_kit.h"

enum { SESSIONS = 9, PROMPT = 300 };

/* Several sessions of one model, each with another prompt. */
struct team {
    struct kit kit;
    struct tsr_executor_session *sessions[SESSIONS];
    struct tsr_executor_decoder *decoder;
    uint32_t tokens[SESSIONS + PROMPT];
    uint32_t lengths[SESSIONS];
};

static float logits[SESSIONS * KIT_VOCAB], alone[SESSIONS * KIT_VOCAB], others[KIT_VOCAB];

static void team_open(struct team *t, const struct kit_model *m, uint32_t n_threads)
{
    kit_open_threads(&t->kit, m, TSR_DTYPE_F16, PROMPT + 64, n_threads);
    kit_tokens(t->tokens, SESSIONS + PROMPT, t->kit.info.n_vocab);
    t->sessions[0] = t->kit.s;
    for (uint32_t i = 0; i < SESSIONS; i++) {
        if (i) CHECK_INT(tsr_executor.session_open(t->kit.x, &t->sessions[i], PROMPT + 64), 0);
        t->kit.s = t->sessions[i];
        t->lengths[i] = 1 + (i * 70 + 33) % PROMPT; /* around the 256 keys of a step, too */
        kit_prefill(&t->kit, t->tokens + i, 0, t->lengths[i], 0, NULL);
    }
    CHECK_INT(tsr_executor.decoder_open(t->kit.x, &t->decoder, SESSIONS), 0);
}

static void team_close(struct team *t)
{
    tsr_executor.decoder_close(t->decoder);
    for (uint32_t i = 1; i < SESSIONS; i++)
        tsr_executor.session_close(t->sessions[i]);
    t->kit.s = t->sessions[0];
    kit_close(&t->kit);
}

static struct tsr_executor_row row_of(const struct team *t, uint32_t i, uint32_t step)
{
    return (struct tsr_executor_row){.session = t->sessions[i],
                                     .token = t->tokens[(i * 7 + step) % PROMPT],
                                     .position = t->lengths[i] + step};
}

/* Rows of n sessions from `first` on. */
static void run(struct team *t, uint32_t first, uint32_t n, uint32_t step, uint32_t flags,
                float *out)
{
    struct tsr_executor_row rows[SESSIONS];
    for (uint32_t i = 0; i < n; i++)
        rows[i] = row_of(t, first + i, step);
    CHECK_INT(tsr_executor.decoder_run(t->decoder, rows, n, flags, out), 0);
}

TEST(rows_are_those_of_a_pass_for_every_architecture)
{
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    for (uint32_t a = 0; a < 3; a++) {
        struct kit_model m = {.arch = archs[a], .tied = a == 1};
        struct team t = {0};
        team_open(&t, &m, 2);
        for (uint32_t step = 0; step < 3; step++) {
            run(&t, 0, SESSIONS, step, 0, logits);
            for (uint32_t i = 0; i < SESSIONS; i++) {
                struct tsr_executor_row r = row_of(&t, i, step);
                uint32_t padded[PROMPT + 64];
                uint8_t kv[512];
                t.kit.s = r.session;
                padded[r.position] = r.token;
                size_t bytes = kit_row_bytes(&t.kit);
                uint32_t last = t.kit.info.n_layers - 1;
                CHECK(bytes <= sizeof kv);
                memcpy(kv, kit_row(&t.kit, 1, last, r.position), bytes);
                kit_decode(&t.kit, padded, r.position, others);
                /* 1e-6, and 1e-3 where a bit of K or V is rounded another way. */
                CHECK(kit_max_difference(logits + (size_t)i * KIT_VOCAB, others, KIT_VOCAB) < 1e-2);
                /* V of 16 bits: what differs by rounding differs in few of them. */
                uint32_t n_same = 0;
                for (size_t b = 0; b < bytes; b++)
                    n_same += kv[b] == kit_row(&t.kit, 1, last, r.position)[b];
                CHECK(n_same > bytes / 4);
            }
        }
        team_close(&t);
    }
}

TEST(rows_are_alike_in_any_company_for_every_kind_of_weights)
{
    static const enum ggml_type types[] = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_Q8_0,
                                           GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0,
                                           GGML_TYPE_Q4_K, GGML_TYPE_Q6_K};
    for (uint32_t i = 0; i < sizeof types / sizeof types[0]; i++)
        for (uint32_t n_threads = 1; n_threads <= 3; n_threads += 2) {
            struct kit_model m = {
                .arch = "qwen2", .type = types[i], .n_embd = 256, .n_heads = 4, .n_ff = 512};
            struct team t = {0};
            team_open(&t, &m, n_threads);
            for (uint32_t k = 0; k < SESSIONS; k++)
                run(&t, k, 1, 0, TSR_DECODER_ALIKE, alone + (size_t)k * KIT_VOCAB);
            for (uint32_t n = 2; n <= SESSIONS; n++)
                for (uint32_t first = 0; first + n <= SESSIONS; first += n) {
                    run(&t, first, n, 0, TSR_DECODER_ALIKE, logits);
                    CHECK(memcmp(logits, alone + (size_t)first * KIT_VOCAB,
                                 n * KIT_VOCAB * sizeof *logits) == 0);
                }
            team_close(&t);
        }
}

TEST(a_bias_counts_as_in_a_pass)
{
    struct kit_model m = {.arch = "llama"};
    struct team t = {0};
    float bias[40];
    team_open(&t, &m, 1);
    for (uint32_t i = 0; i < 40; i++)
        bias[i] = i % 3 ? 0 : -2.5f;
    struct tsr_executor_row row = row_of(&t, 3, 0);
    CHECK_INT(tsr_executor.decoder_run(t.decoder, &row, 1, 0, logits), 0);
    row.bias = bias;
    row.n_bias = 40;
    CHECK_INT(tsr_executor.decoder_run(t.decoder, &row, 1, 0, alone), 0);
    CHECK(kit_max_difference(logits, alone, KIT_VOCAB) > 1e-4);
    struct tsr_model_row one = {row.token, row.position, row.position};
    struct tsr_model_group group = {1, 1, {{0, row.position + 1}}};
    struct tsr_model_pass pass = {.size = sizeof pass,
                                  .rows = &one,
                                  .n_rows = 1,
                                  .groups = &group,
                                  .n_groups = 1,
                                  .bias = bias,
                                  .n_bias = 40,
                                  .n_bias_rows = 1,
                                  .flags = TSR_PASS_DECODE};
    const uint32_t last = 0;
    t.kit.s = row.session;
    CHECK_INT(tsr_executor.begin(t.kit.s, &pass), 0);
    kit_layers(&t.kit, NULL, 0);
    CHECK_INT(tsr_executor.logits(t.kit.s, &last, 1, others), 0);
    tsr_executor.end(t.kit.s);
    CHECK(kit_max_difference(alone, others, KIT_VOCAB) < 1e-4);
    team_close(&t);
}

TEST(a_session_at_the_address_of_a_closed_one_is_another)
{
    struct kit_model m = {.arch = "llama"};
    struct team t = {0};
    team_open(&t, &m, 1);
    for (uint32_t round = 0; round < 4; round++) {
        run(&t, 0, 2, 0, 0, logits);
        tsr_executor.session_close(t.sessions[1]);
        CHECK_INT(tsr_executor.session_open(t.kit.x, &t.sessions[1], PROMPT + 64), 0);
        t.kit.s = t.sessions[1];
        kit_prefill(&t.kit, t.tokens + 1, 0, t.lengths[1], 0, NULL);
        run(&t, 0, 2, 0, 0, alone);
        CHECK(memcmp(logits, alone, 2 * KIT_VOCAB * sizeof *logits) == 0);
    }
    team_close(&t);
}

int main(void)
{
    RUN(rows_are_those_of_a_pass_for_every_architecture);
    RUN(rows_are_alike_in_any_company_for_every_kind_of_weights);
    RUN(a_bias_counts_as_in_a_pass);
    RUN(a_session_at_the_address_of_a_closed_one_is_another);
    return test_end();
}
#else
#include "model/absent.h"
#endif
