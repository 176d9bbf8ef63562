/* fuzz_prompt_file.c - any bytes as a prompt file. Refused ones say where, accepted ones have
 * tokens, and where they come from text, the tokens cut it from its
 * beginning to its end. */
#include "cli/prompt_file.h"

#include "as_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds) abort();
}

static void check(const struct tsri_prompt_text *t)
{
    require(t->n_tokens > 0 && t->n_tokens <= TSRI_PROMPT_TOKENS_MAX);
    size_t at = 0;
    for (size_t i = 0; t->bytes && i < t->n_tokens; i++) {
        require(t->ends[i] > at);
        at = t->ends[i];
    }
    require(!t->bytes || at == t->n_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tsri_prompt_file f;
    const char *path = as_file(data, size);
    if (tsri_prompt_file_load(&f, path) == 0) {
        check(&f.prompt);
        for (size_t i = 0; i < f.n_documents; i++)
            check(&f.documents[i].text);
        uint64_t at = 0; /* parts cut the prompt from its beginning to its end */
        for (uint32_t i = 0; i < f.n_parts; at += f.parts[i++].n_tokens)
            require(f.parts[i].offset == at);
        require(f.n_parts == 0 || at == f.prompt.n_tokens);
        tsri_prompt_file_fini(&f);
    } else {
        require(strncmp(tsr_errmsg(), path, strlen(path)) == 0);
    }
    return 0;
}
