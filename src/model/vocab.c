/* vocab.c - tokens and chat templates. Tokenizers are a world of their own, so libllama is asked:
 * it loads the vocabulary of the same file and none of its weights. */
#include "model/model.h"

#include <llama.h>

#include <limits.h>
#include <stdlib.h>
#include <string.h>

int tsri_vocab_init(struct tsri_vocab *v, const char *path, tsri_fail_fn fail)
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

int tsri_vocab_tokenize(const struct tsri_vocab *v, const char *text, size_t bytes, uint32_t flags,
                        uint32_t *tokens, uint32_t max, tsri_fail_fn fail)
{
    if (bytes > INT32_MAX / 2)
        return tsri_model_fail(fail, TSR_ERANGE, "model: a text of %zu bytes", bytes);
    if (max > INT32_MAX) max = INT32_MAX;
    bool start = (flags & TSR_TEXT_START) && llama_vocab_get_add_bos(v->vocab);
    uint32_t n_start = 0;
    if (start) {
        if (max > 0) tokens[0] = (uint32_t)llama_vocab_bos(v->vocab);
        n_start = 1;
    }
    if (bytes == 0) return (int)n_start;
    uint32_t room = max > n_start ? max - n_start : 0;
    int32_t n = llama_tokenize(v->vocab, text, (int32_t)bytes,
                               room ? (llama_token *)tokens + n_start : NULL, (int32_t)room, false,
                               (flags & TSR_TEXT_SPECIAL) != 0);
    if (n == INT32_MIN) return tsri_model_fail(fail, TSR_ERANGE, "model: too many tokens");
    return (int)n_start + (n < 0 ? -n : n);
}

int tsri_vocab_detokenize(const struct tsri_vocab *v, const uint32_t *tokens, uint32_t n,
                          uint32_t flags, char *text, size_t bytes)
{
    size_t total = 0;
    for (uint32_t i = 0; i < n; i++) {
        char piece[256];
        int32_t length =
            llama_token_to_piece(v->vocab, (llama_token)tokens[i], piece, (int32_t)sizeof piece, 0,
                                 (flags & TSR_TEXT_SPECIAL) != 0);
        if (length <= 0) continue; /* nothing to show, or a token longer than any text */
        if (total + (size_t)length <= bytes) memcpy(text + total, piece, (size_t)length);
        total += (size_t)length;
    }
    return total > INT_MAX ? INT_MAX : (int)total;
}

int tsri_vocab_is_end(const struct tsri_vocab *v, uint32_t token)
{
    return llama_vocab_is_eog(v->vocab, (llama_token)token);
}

int tsri_vocab_chat(const struct tsri_vocab *v, const struct tsr_chat_message *messages, uint32_t n,
                    char *text, size_t bytes, tsri_fail_fn fail)
{
    if (!v->chat_template)
        return tsri_model_fail(fail, TSR_EUNSUP,
                               "model: has no chat template, or one that libllama does not know");
    struct llama_chat_message *all = calloc(n ? n : 1, sizeof *all);
    if (!all) return tsri_model_fail(fail, TSR_ENOMEM, "model: no memory");
    for (uint32_t i = 0; i < n; i++)
        all[i] = (struct llama_chat_message){messages[i].role, messages[i].content};
    int32_t length = llama_chat_apply_template(v->chat_template, all, n, true, text,
                                               bytes > INT32_MAX ? INT32_MAX : (int32_t)bytes);
    free(all);
    if (length < 0) return tsri_model_fail(fail, TSR_EUNSUP, "model: the chat template failed");
    return length;
}

uint32_t tsri_vocab_bos(const struct tsri_vocab *v)
{
    llama_token bos = llama_vocab_bos(v->vocab);
    return bos < 0 || !llama_vocab_get_add_bos(v->vocab) ? UINT32_MAX : (uint32_t)bos;
}
