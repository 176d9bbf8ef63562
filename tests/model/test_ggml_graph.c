/* Graphs that are kept give what graphs that are built anew give, and K in memory is turned as the
 * description of the model's RoPE says. */
#ifdef TSRI_HAVE_LLAMA
#include "device/device.h"
#include "model/session_kit.h"

#include <math.h>

static uint32_t tokens[1024];
static float first[KIT_VOCAB], second[KIT_VOCAB];

TEST(decoding_with_kept_graphs_repeats_itself_bit_by_bit)
{
    struct kit_model m = {0};
    struct kit k;
    kit_open(&k, &m, 0, 1024);
    kit_tokens(tokens, 1024, k.info.n_vocab);
    for (int round = 0; round < 2; round++) {
        kit_prefill(&k, tokens, 0, 500, 0, NULL);
        /* over the border at which the number of keys grows, with another shape in between */
        for (uint32_t i = 500; i < 530; i++) {
            if (i == 510) kit_prefill(&k, tokens, i - 20, 20, 1, second);
            if (i == 511) kit_prefill(&k, tokens, i - 30, 30, 1, second);
            kit_decode(&k, tokens, i, round ? second : first);
        }
    }
    CHECK(memcmp(first, second, sizeof first) == 0);
    kit_close(&k);
}

TEST(a_session_after_another_gives_the_same)
{
    struct kit_model m = {.arch = "qwen3"};
    struct kit k;
    kit_open(&k, &m, 0, 300);
    kit_tokens(tokens, 300, k.info.n_vocab);
    kit_prefill(&k, tokens, 0, 300, 1, first);
    tsr_executor.session_close(k.s);
    CHECK_INT(tsr_executor.session_open(k.x, &k.s, 300), 0);
    kit_prefill(&k, tokens, 0, 300, 1, second);
    CHECK(memcmp(first, second, sizeof first) == 0);
    kit_close(&k);
}

/* K of the same tokens, computed at position 0 and at `shift`, differs by the turn that the
 * description gives, in float and up to the error of ggml's own angles. */
static void check_turn(const char *arch, enum kit_rope rope, uint32_t shift)
{
    enum { ROWS = 16 };
    struct kit_model m = {.arch = arch, .rope = rope, .n_layers = 1};
    struct kit k;
    struct tsr_model_row rows[2 * ROWS];
    kit_open(&k, &m, TSR_DTYPE_F32, 700);
    kit_tokens(tokens, ROWS, k.info.n_vocab);
    for (uint32_t i = 0; i < 2 * ROWS; i++)
        rows[i] = (struct tsr_model_row){tokens[i % ROWS], i % ROWS + (i / ROWS) * shift, i};
    struct tsr_model_group groups[] = {{ROWS, 1, {{0, ROWS}}}, {ROWS, 1, {{ROWS, ROWS}}}};
    struct tsr_model_pass pass = {
        .size = sizeof pass, .rows = rows, .n_rows = 2 * ROWS, .n_groups = 2, .groups = groups};
    CHECK_INT(tsr_executor.begin(k.s, &pass), 0);
    kit_layers(&k, NULL, 0);
    tsr_executor.end(k.s);

    struct tsri_rope_set set;
    const struct tsr_rope *r = &k.info.rope;
    CHECK_INT(tsri_rope_check(r), 0);
    tsri_rope_set_init(&set, r, tsri_rope_set_id(r, 700));
    for (uint32_t i = 0; i < ROWS; i++) {
        const float *at0 = (const float *)(void *)kit_row(&k, 0, 0, i);
        const float *at1 = (const float *)(void *)kit_row(&k, 0, 0, ROWS + i);
        for (uint32_t head = 0; head < 2; head++)
            for (uint32_t p = 0; p < 16; p++) {
                uint32_t ia = r->pairing == TSR_ROPE_NEOX ? p : 2 * p;
                uint32_t ib = r->pairing == TSR_ROPE_NEOX ? p + 16 : 2 * p + 1;
                double a = (double)at0[32 * head + ia], b = (double)at0[32 * head + ib];
                double angle = (double)shift * set.freq[p], c = cos(angle), s = sin(angle);
                CHECK(fabs(a * c - b * s - (double)at1[32 * head + ia]) < 2e-3);
                CHECK(fabs(b * c + a * s - (double)at1[32 * head + ib]) < 2e-3);
            }
    }
    kit_close(&k);
}

TEST(k_is_turned_as_the_description_of_the_rope_says)
{
    for (int rope = KIT_PLAIN; rope <= KIT_LONGROPE; rope++)
        check_turn("llama", (enum kit_rope)rope, 600);
    check_turn("qwen2", KIT_YARN, 431);
    check_turn("qwen3", KIT_PLAIN, 600);
}

int main(void)
{
    RUN(decoding_with_kept_graphs_repeats_itself_bit_by_bit);
    RUN(a_session_after_another_gives_the_same);
    RUN(k_is_turned_as_the_description_of_the_rope_says);
    return test_end();
}
#else
#include "model/absent.h"
#endif
