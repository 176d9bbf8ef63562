/* vocab.c - tokens and chat templates. Tokenizers are a world of their own, so libllama is asked:
 * it loads the vocabulary of the same file and none of its weights. */
#include "model/model.h"

#include <llama.h>

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* What cannot be run, or would be tokens without embeddings. */
static int check_vocab(const struct llama_vocab *vocab, uint32_t n_vocab, tsri_fail_fn fail)
{
    int32_t n = llama_vocab_n_tokens(vocab);
    if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE || n < 1)
        return tsri_model_fail(fail, TSR_ECORRUPT, "model: has no vocabulary");
    if ((uint32_t)n > n_vocab)
        return tsri_model_fail(fail, TSR_ECORRUPT,
                               "model: a vocabulary of %d tokens with %u embeddings", n, n_vocab);
    return 0;
}

int tsri_vocab_init(struct tsri_vocab *v, const char *path, uint32_t n_vocab, tsri_fail_fn fail)
{
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    tsri_model_complaint();
    v->model = llama_model_load_from_file(path, params);
    if (!v->model) {
        const char *why = tsri_model_complaint();
        return tsri_model_fail(fail, TSR_ECORRUPT, "model: the vocabulary of %s cannot be read%s%s",
                               path, why[0] ? ": " : "", why);
    }
    v->vocab = llama_model_get_vocab(v->model);
    int e = check_vocab(v->vocab, n_vocab, fail);
    if (e) return e;
    v->chat_template = llama_model_chat_template(v->model, NULL);
    struct llama_chat_message hello = {"user", "hello"};
    /* libllama knows templates by their looks and not by running them. */
    if (v->chat_template &&
        llama_chat_apply_template(v->chat_template, &hello, 1, true, NULL, 0) < 0)
        v->chat_template = NULL;
    return 0;
}

void tsri_vocab_fini(struct tsri_vocab *v)
{
    if (v->model) llama_model_free(v->model);
    memset(v, 0, sizeof *v);
}

struct tokenizing {
    const struct tsri_vocab *v;
    const char *text;
    int32_t bytes;
    uint32_t flags;
    llama_token *tokens;
    int32_t room, n;
};

static int tokenize(void *arg)
{
    struct tokenizing *t = arg;
    t->n = llama_tokenize(t->v->vocab, t->text, t->bytes, t->tokens, t->room, false,
                          (t->flags & TSR_TEXT_SPECIAL) != 0);
    return 0;
}

int tsri_vocab_tokenize(const struct tsri_vocab *v, const char *text, size_t bytes, uint32_t flags,
                        uint32_t *tokens, uint32_t max, tsri_fail_fn fail)
{
    if (bytes > INT32_MAX / 2)
        return tsri_model_fail(fail, TSR_ERANGE, "model: a text of %zu bytes", bytes);
    if (max > INT32_MAX) max = INT32_MAX;
    uint32_t bos = tsri_vocab_bos(v), n_start = 0;
    if ((flags & TSR_TEXT_START) && bos != UINT32_MAX) {
        if (max > 0) tokens[0] = bos;
        n_start = 1;
    }
    if (bytes == 0) return (int)n_start;
    uint32_t room = max > n_start ? max - n_start : 0;
    struct tokenizing t = {.v = v,
                           .text = text,
                           .bytes = (int32_t)bytes,
                           .flags = flags,
                           .tokens = room ? (llama_token *)tokens + n_start : NULL,
                           .room = (int32_t)room};
    int e = tsri_guard(tokenize, &t, fail);
    if (e) return e;
    if (t.n == INT32_MIN) return tsri_model_fail(fail, TSR_ERANGE, "model: too many tokens");
    return (int)n_start + (t.n < 0 ? -t.n : t.n);
}

struct detokenizing {
    const struct tsri_vocab *v;
    const uint32_t *tokens;
    uint32_t n, flags;
    char *text;
    size_t bytes, total;
};

static int detokenize(void *arg)
{
    struct detokenizing *d = arg;
    int32_t known = llama_vocab_n_tokens(d->v->vocab);
    for (uint32_t i = 0; i < d->n; i++) {
        char piece[256];
        if (d->tokens[i] >= (uint32_t)known) continue; /* an embedding that is only filling */
        int32_t length =
            llama_token_to_piece(d->v->vocab, (llama_token)d->tokens[i], piece,
                                 (int32_t)sizeof piece, 0, (d->flags & TSR_TEXT_SPECIAL) != 0);
        if (length <= 0) continue; /* nothing to show, or a token longer than any text */
        if (d->total + (size_t)length <= d->bytes)
            memcpy(d->text + d->total, piece, (size_t)length);
        d->total += (size_t)length;
    }
    return 0;
}

int tsri_vocab_detokenize(const struct tsri_vocab *v, const uint32_t *tokens, uint32_t n,
                          uint32_t flags, char *text, size_t bytes, tsri_fail_fn fail)
{
    struct detokenizing d = {
        .v = v, .tokens = tokens, .n = n, .flags = flags, .text = text, .bytes = bytes};
    int e = tsri_guard(detokenize, &d, fail);
    if (e) return e;
    return d.total > INT_MAX ? INT_MAX : (int)d.total;
}

int tsri_vocab_is_end(const struct tsri_vocab *v, uint32_t token)
{
    return llama_vocab_is_eog(v->vocab, (llama_token)token);
}

struct chatting {
    const struct tsri_vocab *v;
    const struct llama_chat_message *all;
    uint32_t n;
    char *text;
    int32_t bytes, length;
};

static int chat(void *arg)
{
    struct chatting *c = arg;
    c->length =
        llama_chat_apply_template(c->v->chat_template, c->all, c->n, true, c->text, c->bytes);
    return 0;
}

int tsri_vocab_chat(const struct tsri_vocab *v, const struct tsr_chat_message *messages, uint32_t n,
                    char *text, size_t bytes, tsri_fail_fn fail)
{
    if (!v->chat_template)
        return tsri_model_fail(fail, TSR_EUNSUP,
                               "model: has no chat template, or one that libllama does not know");
    struct llama_chat_message *all = calloc(n ? n : 1, sizeof *all);
    if (!all) return tsri_model_fail(fail, TSR_ENOMEM, "model: out of memory");
    for (uint32_t i = 0; i < n; i++)
        all[i] = (struct llama_chat_message){messages[i].role, messages[i].content};
    struct chatting c = {.v = v,
                         .all = all,
                         .n = n,
                         .text = text,
                         .bytes = bytes > INT32_MAX ? INT32_MAX : (int32_t)bytes};
    int e = tsri_guard(chat, &c, fail);
    free(all);
    if (e) return e;
    if (c.length < 0) return tsri_model_fail(fail, TSR_EUNSUP, "model: the chat template failed");
    return c.length;
}

uint32_t tsri_vocab_bos(const struct tsri_vocab *v)
{
    llama_token bos = llama_vocab_bos(v->vocab);
    return bos < 0 || !llama_vocab_get_add_bos(v->vocab) ? UINT32_MAX : (uint32_t)bos;
}
