/* test_dialog_text.c - texts become tokens, however many the tokenizer makes of a byte. */
#include "answer/answer.h"

#include "support/test.h"

enum { TEXT_BYTES = 4 };

/* A model whose tokenizer gives what it is told to, a number for each call. */
static struct {
    int counts[4];
    uint32_t n_calls;
} odd;

static int odd_tokenize(struct tsr_executor *x, const char *text, size_t bytes, uint32_t flags,
                        uint32_t *tokens, uint32_t max)
{
    (void)x, (void)text, (void)bytes, (void)flags;
    int n = odd.counts[odd.n_calls++];
    for (uint32_t i = 0; i < max && (int)i < n; i++)
        tokens[i] = i;
    return n;
}

static int odd_detokenize(struct tsr_executor *x, const uint32_t *tokens, uint32_t n,
                          uint32_t flags, char *text, size_t bytes)
{
    (void)x, (void)tokens, (void)n, (void)flags, (void)text, (void)bytes;
    return 0;
}

static int odd_is_end(struct tsr_executor *x, uint32_t token)
{
    (void)x, (void)token;
    return 0;
}

static int odd_chat(struct tsr_executor *x, const struct tsr_chat_message *messages, uint32_t n,
                    char *text, size_t bytes)
{
    (void)x, (void)messages, (void)n, (void)text, (void)bytes;
    return 0;
}

static int odd_info(struct tsr_executor *x, struct tsr_model_info *out)
{
    int e = tsr_executor_tiny()->info(x, out);
    out->caps |= TSR_MODEL_TEXT;
    return e;
}

static struct tsr_model *odd_model(void)
{
    struct tsr_model *m = NULL;
    static struct tsr_executor_ops ops;
    struct tsr_model_desc config = {.size = sizeof config, .path = "llama"};
    ops = *tsr_executor_tiny();
    ops.info = odd_info;
    ops.tokenize = odd_tokenize;
    ops.detokenize = odd_detokenize;
    ops.is_end = odd_is_end;
    ops.chat = odd_chat;
    CHECK_INT(tsr_model_open(&m, &ops, &config), 0);
    return m;
}

/* Four bytes, of which the tokenizer makes `first` tokens, and `then` when it is asked again. */
static int add(struct tsri_dialog *d, int first, int then)
{
    *d = (struct tsri_dialog){.model = odd_model()};
    odd.n_calls = 0;
    odd.counts[0] = first;
    odd.counts[1] = then;
    return tsri_dialog_add_text(d, "text", TEXT_BYTES, 0);
}

static void end(struct tsri_dialog *d)
{
    struct tsr_model *m = (struct tsr_model *)(uintptr_t)d->model;
    tsri_dialog_fini(d);
    tsr_model_close(m);
}

TEST(a_text_may_have_more_tokens_than_bytes)
{
    struct tsri_dialog d;
    CHECK_INT(add(&d, 3, 0), 0);
    CHECK_INT(odd.n_calls, 1);
    CHECK_INT(d.n_tokens, 3);
    end(&d);
    CHECK_INT(add(&d, 500, 500), 0);
    CHECK_INT(odd.n_calls, 2);
    CHECK_INT(d.n_tokens, 500);
    for (uint32_t i = 0; i < 500; i++)
        CHECK_INT(d.tokens[i], i);
    end(&d);
}

TEST(a_tokenizer_that_gives_more_the_second_time_is_refused)
{
    struct tsri_dialog d;
    CHECK_INT(add(&d, 500, 1 << 20), TSR_EIO);
    CHECK_INT(d.n_tokens, 0);
    end(&d);
}

int main(void)
{
    RUN(a_text_may_have_more_tokens_than_bytes);
    RUN(a_tokenizer_that_gives_more_the_second_time_is_refused);
    return test_end();
}
