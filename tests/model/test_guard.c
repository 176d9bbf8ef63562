/* Files that make libllama throw or assert are refused in words; nothing ends the program. */
#ifdef TSRI_HAVE_LLAMA
#include "model/model.h"
#include "model/session_kit.h"

static struct tmpdir dir;
static char path[sizeof dir.path + 16];

/* A few rows through a model that was accepted. */
static void run_rows(struct tsr_executor *x, const struct tsr_model_info *info)
{
    enum { ROWS = 10 };
    struct kit k = {.x = x, .info = *info};
    static float logits[KIT_VOCAB];
    uint32_t tokens[ROWS] = {0};
    if (info->context < ROWS || info->n_vocab > KIT_VOCAB) return;
    CHECK_INT(tsr_executor.session_open(x, &k.s, ROWS), 0);
    kit_prefill(&k, tokens, 0, ROWS, 1, logits);
    tsr_executor.session_close(k.s);
}

/* Opens the file, asks it for all that has to do with text, and runs it. 1: it could be opened. */
static int try_file(void)
{
    static const char all[] = "a\n\xc3\xa9\x01\xff <|im_start|></s><0x0A>\xe2\x96\x81 zz";
    struct tsr_model_desc config = {
        .size = sizeof config, .path = path, .n_threads = 1, .fail = kit_fail};
    struct tsr_chat_message messages[] = {{"system", "be brief"}, {"user", "why?"}};
    struct tsr_model_info info = {.size = sizeof info};
    struct tsr_executor *x;
    uint32_t tokens[64];
    char text[256];
    kit_said[0] = 0;
    int e = tsr_executor.open(&x, &config);
    if (e) {
        CHECK(e < 0 && kit_said[0] != 0);
        CHECK(!strchr(kit_said, '\n'));
        return 0;
    }
    CHECK_INT(tsr_executor.info(x, &info), 0);
    int n = tsr_executor.tokenize(x, all, sizeof all - 1, TSR_TEXT_START | TSR_TEXT_SPECIAL, tokens,
                                  64);
    CHECK(n >= 0 || kit_said[0] != 0);
    for (int i = 0; i < n && i < 64; i++)
        CHECK(tokens[i] < info.n_vocab);
    for (uint32_t i = 0; i < 64; i++)
        tokens[i] = info.n_vocab - 1 - i % info.n_vocab;
    CHECK(tsr_executor.detokenize(x, tokens, 64, TSR_TEXT_SPECIAL, text, sizeof text) >= 0 ||
          kit_said[0] != 0);
    (void)tsr_executor.is_end(x, info.n_vocab - 1);
    if (info.caps & TSR_MODEL_CHAT)
        CHECK(tsr_executor.chat(x, messages, 2, text, sizeof text) != 0);
    run_rows(x, &info);
    tsr_executor.close(x);
    return 1;
}

static int try_edited(void (*edit)(struct gguf_context *g))
{
    struct kit_model m = {.edit = edit};
    CHECK(kit_write(path, &m));
    return try_file();
}

/* ---- what a guard does ---- */

static int assert_something(void *arg)
{
    (void)arg;
    GGML_ASSERT(arg && "an argument");
    return 7;
}

static int nest(void *arg)
{
    (void)tsri_guard(assert_something, NULL, kit_fail);
    return assert_something(arg);
}

TEST(an_assertion_inside_a_guard_is_an_error_with_its_words)
{
    int here;
    CHECK_INT(tsri_guard(assert_something, &here, kit_fail), 7);
    CHECK_INT(tsri_guard(assert_something, NULL, kit_fail), TSR_ECORRUPT);
    CHECK_HAS(kit_said, "an argument");
    CHECK(!strchr(kit_said, '/')); /* nobody's folders */
    CHECK_INT(tsri_guard(nest, NULL, kit_fail), TSR_ECORRUPT);
    CHECK_INT(tsri_guard(nest, &here, kit_fail), 7);
}

/* ---- vocabularies ---- */

static void set_tokens(struct gguf_context *g, uint32_t n, const char *last)
{
    static const char *tokens[KIT_VOCAB + 8];
    static char text[KIT_VOCAB + 8][16];
    int64_t id = gguf_find_key(g, "tokenizer.ggml.tokens");
    for (uint32_t i = 0; i < n; i++) {
        snprintf(text[i], sizeof text[i], "more %u", i);
        if (i < KIT_VOCAB) snprintf(text[i], sizeof text[i], "%s", gguf_get_arr_str(g, id, i));
        tokens[i] = text[i];
    }
    if (last) tokens[n - 1] = last;
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", tokens, n);
}

static void same_token_twice(struct gguf_context *g)
{
    set_tokens(g, KIT_VOCAB, "a");
}

static void too_many_tokens(struct gguf_context *g)
{
    set_tokens(g, KIT_VOCAB + 8, NULL);
    gguf_remove_key(g, "tokenizer.ggml.scores");
    gguf_remove_key(g, "tokenizer.ggml.token_type");
}

static void few_tokens(struct gguf_context *g)
{
    set_tokens(g, 3, NULL);
}

static void an_empty_token(struct gguf_context *g)
{
    set_tokens(g, KIT_VOCAB, "");
}

static void tokens_are_numbers(struct gguf_context *g)
{
    int32_t one = 1;
    gguf_set_arr_data(g, "tokenizer.ggml.tokens", GGUF_TYPE_INT32, &one, 1);
}

static void tokens_are_one_string(struct gguf_context *g)
{
    gguf_set_val_str(g, "tokenizer.ggml.tokens", "abc");
}

static void short_scores(struct gguf_context *g)
{
    float one = 1;
    gguf_set_arr_data(g, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, &one, 1);
}

static void scores_are_a_number(struct gguf_context *g)
{
    gguf_set_val_u32(g, "tokenizer.ggml.scores", 3);
}

static void an_unknown_tokenizer(struct gguf_context *g)
{
    gguf_set_val_str(g, "tokenizer.ggml.model", "nothing that exists");
}

static void no_tokenizer(struct gguf_context *g)
{
    gguf_set_val_str(g, "tokenizer.ggml.model", "no_vocab");
}

static void bpe_without_merges(struct gguf_context *g)
{
    gguf_set_val_str(g, "tokenizer.ggml.model", "gpt2");
}

static void rwkv_without_a_newline(struct gguf_context *g)
{
    gguf_set_val_str(g, "tokenizer.ggml.model", "rwkv");
}

static void a_broken_charsmap(struct gguf_context *g)
{
    static const uint8_t bytes[64] = {16, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255};
    gguf_set_val_str(g, "tokenizer.ggml.model", "t5");
    gguf_set_arr_data(g, "tokenizer.ggml.precompiled_charsmap", GGUF_TYPE_UINT8, bytes, 64);
}

static void wordpiece(struct gguf_context *g)
{
    gguf_set_val_str(g, "tokenizer.ggml.model", "bert");
}

static void special_tokens_out_of_range(struct gguf_context *g)
{
    gguf_set_val_u32(g, "tokenizer.ggml.bos_token_id", 0xfffffff0u);
    gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", KIT_VOCAB);
}

static void bos_is_a_word(struct gguf_context *g)
{
    gguf_set_val_str(g, "tokenizer.ggml.bos_token_id", "one");
}

static void a_template_of_two_kinds(struct gguf_context *g)
{
    gguf_set_val_u32(g, "tokenizer.chat_template", 3);
}

static void no_byte_tokens(struct gguf_context *g)
{
    set_tokens(g, KIT_VOCAB, NULL);
    int64_t id = gguf_find_key(g, "tokenizer.ggml.tokens");
    static const char *tokens[KIT_VOCAB];
    static char text[KIT_VOCAB][24];
    for (uint32_t i = 0; i < KIT_VOCAB; i++) {
        snprintf(text[i], sizeof text[i], "%s%.16s", i > 2 && i < 259 ? "no" : "",
                 gguf_get_arr_str(g, id, i));
        tokens[i] = text[i];
    }
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", tokens, KIT_VOCAB);
}

TEST(no_vocabulary_ends_the_program)
{
    static void (*const edits[])(struct gguf_context *) = {same_token_twice,
                                                           too_many_tokens,
                                                           few_tokens,
                                                           an_empty_token,
                                                           tokens_are_numbers,
                                                           tokens_are_one_string,
                                                           short_scores,
                                                           scores_are_a_number,
                                                           an_unknown_tokenizer,
                                                           no_tokenizer,
                                                           bpe_without_merges,
                                                           rwkv_without_a_newline,
                                                           a_broken_charsmap,
                                                           wordpiece,
                                                           special_tokens_out_of_range,
                                                           bos_is_a_word,
                                                           a_template_of_two_kinds,
                                                           no_byte_tokens};
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++)
        (void)try_edited(edits[i]);
}

TEST(what_is_wrong_with_a_vocabulary_is_said)
{
    CHECK_INT(try_edited(same_token_twice), 0);
    CHECK_HAS(kit_said, "vocabulary");
    CHECK_INT(try_edited(too_many_tokens), 0);
    CHECK_HAS(kit_said, "embeddings");
    CHECK_INT(try_edited(no_tokenizer), 0);
    CHECK_HAS(kit_said, "no vocabulary");
    CHECK_INT(try_edited(an_unknown_tokenizer), 0);
    CHECK_HAS(kit_said, "nothing that exists");
}

/* ---- any bytes ---- */

static uint8_t *read_file(size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(1 << 22);
    CHECK(f && data);
    *bytes = fread(data, 1, 1 << 22, f);
    fclose(f);
    return data;
}

static void write_file(const uint8_t *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, bytes, f) == bytes);
    fclose(f);
}

/* The header is changed in a few places: bits, small numbers, pieces copied elsewhere; sometimes
 * the file is cut off. */
TEST(no_changed_bytes_of_a_header_end_the_program)
{
    enum { ROUNDS = 400 };
    struct kit_model m = {.n_layers = 1, .n_embd = 64, .n_ff = 64};
    CHECK(kit_write(path, &m));
    size_t bytes;
    uint8_t *good = read_file(&bytes), *bad = malloc(bytes);
    CHECK(bad);
    struct gguf_init_params params = {.no_alloc = true};
    struct gguf_context *g = gguf_init_from_buffer(good, bytes, params);
    size_t header = gguf_get_data_offset(g);
    gguf_free(g);
    uint64_t seed = 20;
    int opened = 0;
    for (int round = 0; round < ROUNDS; round++) {
        memcpy(bad, good, bytes);
        size_t n = bytes;
        for (uint64_t k = 1 + test_rand(&seed) % 3; k > 0; k--) {
            size_t at = test_rand(&seed) % (header - 8), from = test_rand(&seed) % (header - 64);
            switch (test_rand(&seed) % 4) {
            case 0:
                bad[at] ^= (uint8_t)(1u << test_rand(&seed) % 8);
                break;
            case 1:
                bad[at] = (uint8_t)test_rand(&seed);
                break;
            case 2:
                memset(bad + at, test_rand(&seed) % 2 ? 0xff : 0, 4);
                break;
            default:
                memmove(bad + from, good + at, at + 64 < header ? 64 : header - at);
            }
        }
        if (round % 16 == 0) n = test_rand(&seed) % bytes;
        write_file(bad, n);
        opened += try_file();
    }
    CHECK(opened > 0 && opened < ROUNDS);
    free(good);
    free(bad);
}

int main(void)
{
    tmpdir_init_fast(&dir);
    snprintf(path, sizeof path, "%s/m.gguf", dir.path);
    struct kit_model m = {0};
    CHECK(kit_write(path, &m));
    CHECK_INT(try_file(), 1); /* and ggml is started */
    RUN(an_assertion_inside_a_guard_is_an_error_with_its_words);
    RUN(no_vocabulary_ends_the_program);
    RUN(what_is_wrong_with_a_vocabulary_is_said);
    RUN(no_changed_bytes_of_a_header_end_the_program);
    tmpdir_fini(&dir);
    return test_end();
}
#else
#include "model/absent.h"
#endif
