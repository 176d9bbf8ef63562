/* Tokens and templates. */
#ifdef TSRI_HAVE_LLAMA
#include "model/session_kit.h"

static struct kit k;

static int tokenize(const char *text, uint32_t flags, uint32_t *tokens, uint32_t max)
{
    return tsr_executor.tokenize(k.x, text, strlen(text), flags, tokens, max);
}

TEST(text_comes_back_from_its_tokens)
{
    static const char text[] = "hello world, 12 \xc3\xa9!";
    uint32_t tokens[64];
    char back[128];
    int n = tokenize(text, 0, tokens, 64);
    CHECK(n > 0 && n <= 64);
    int bytes = tsr_executor.detokenize(k.x, tokens, (uint32_t)n, 0, back, sizeof back);
    CHECK(bytes > 0 && bytes < (int)sizeof back);
    back[bytes] = 0;
    CHECK_HAS(back, text); /* sentencepiece puts a space in front */
}

TEST(a_short_buffer_gets_the_number_that_is_needed)
{
    uint32_t tokens[64];
    char back[4];
    int n = tokenize("some text", 0, tokens, 64);
    CHECK_INT(tokenize("some text", 0, NULL, 0), n);
    CHECK_INT(tokenize("some text", TSR_TEXT_START, tokens, 1), n + 1);
    CHECK_INT(tokens[0], k.info.token_bos);
    CHECK_INT(tokenize("", 0, tokens, 64), 0);
    n = tokenize("some text", 0, tokens, 64);
    CHECK(tsr_executor.detokenize(k.x, tokens, (uint32_t)n, 0, back, sizeof back) > 4);
}

TEST(documents_cannot_spell_special_tokens)
{
    uint32_t tokens[64];
    int n = tokenize("<|im_end|>", 0, tokens, 64);
    for (int i = 0; i < n; i++)
        CHECK(tokens[i] != 260);
    n = tokenize("<|im_end|>", TSR_TEXT_SPECIAL, tokens, 64);
    CHECK(n >= 1 && tokens[n - 1] == 260);
}

TEST(answers_end_at_the_end_tokens)
{
    CHECK_INT(tsr_executor.is_end(k.x, 2), 1);
    CHECK_INT(tsr_executor.is_end(k.x, 270), 0);
}

TEST(the_chat_template_is_applied_and_opens_the_answer)
{
    struct tsr_chat_message messages[] = {{"system", "be brief"}, {"user", "why?"}};
    char text[512];
    CHECK(k.info.caps & TSR_MODEL_CHAT);
    int n = tsr_executor.chat(k.x, messages, 2, text, sizeof text);
    CHECK(n > 0 && n < (int)sizeof text);
    text[n] = 0;
    CHECK_STR(text, "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nwhy?<|im_end|>\n"
                    "<|im_start|>assistant\n");
    CHECK_INT(tsr_executor.chat(k.x, messages, 2, text, 10), n);
}

static void no_template(struct gguf_context *g)
{
    gguf_remove_key(g, "tokenizer.chat_template");
}

TEST(a_model_without_a_template_says_so)
{
    struct kit_model m = {.edit = no_template};
    struct kit other;
    struct tsr_chat_message hello = {"user", "hello"};
    char text[64];
    kit_open(&other, &m, 0, 64);
    CHECK(!(other.info.caps & TSR_MODEL_CHAT));
    CHECK_INT(tsr_executor.chat(other.x, &hello, 1, text, sizeof text), TSR_EUNSUP);
    kit_close(&other);
}

TEST(a_file_without_a_vocabulary_is_refused)
{
    struct kit_model m = {.plain = true};
    struct tsr_executor *x;
    char path[512];
    snprintf(path, sizeof path, "%s/plain.gguf", k.dir.path);
    CHECK(kit_write(path, &m));
    struct tsr_model_desc config = {.size = sizeof config, .path = path, .fail = kit_fail};
    CHECK_INT(tsr_executor.open(&x, &config), TSR_ECORRUPT);
    CHECK_HAS(kit_said, "vocabulary");
}

int main(void)
{
    struct kit_model m = {0};
    kit_open(&k, &m, 0, 64);
    RUN(text_comes_back_from_its_tokens);
    RUN(a_short_buffer_gets_the_number_that_is_needed);
    RUN(documents_cannot_spell_special_tokens);
    RUN(answers_end_at_the_end_tokens);
    RUN(the_chat_template_is_applied_and_opens_the_answer);
    RUN(a_model_without_a_template_says_so);
    RUN(a_file_without_a_vocabulary_is_refused);
    kit_close(&k);
    return test_end();
}
#else
#include "model/absent.h"
#endif
