/* parts.c - where the text of a prompt is cut: system prompt, documents and question, with a
 * separator after each but the last. Blanks around a separator do not count, so " # # " and "# #"
 * are the same; a part of nothing but blanks is empty. */
#include "chunk/chunk.h"

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

const char *tsri_separator_core(const char *separator, size_t *bytes)
{
    const char *core = separator;
    size_t n = strlen(separator);
    while (n && is_blank(*core))
        core++, n--;
    while (n && is_blank(core[n - 1]))
        n--;
    *bytes = n ? n : strlen(separator);
    return n ? core : separator;
}

static bool is_empty(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!is_blank(text[i])) return false;
    return true;
}

int tsri_text_split(const char *text, size_t bytes, const char *separator,
                    struct tsr_text_part *parts, uint32_t parts_max)
{
    size_t n_core, begin = 0;
    const char *core = tsri_separator_core(separator, &n_core);
    uint32_t n = 0;
    if (!n_core) return tsri_fail(TSR_EINVAL, "prompt: the separator is empty");
    for (;;) {
        const char *at = memmem(text + begin, bytes - begin, core, n_core);
        size_t end = at ? (size_t)(at - text) : bytes;
        if (!at && n == 0) return tsri_fail(TSR_EPROMPT, "prompt: no separator \"%s\"", separator);
        if (is_empty(text + begin, end - begin))
            return at ? tsri_fail(TSR_EPROMPT,
                                  "prompt: empty chunk: nothing before the separator at byte %zu",
                                  end)
                      : tsri_fail(TSR_EPROMPT,
                                  "prompt: no question: nothing after the separator at byte %zu",
                                  begin - n_core);
        if (n == parts_max)
            return tsri_fail(TSR_EPROMPT, "prompt: more than %u chunks: one more at byte %zu",
                             parts_max, begin);
        parts[n++] = (struct tsr_text_part){begin, end - begin};
        if (!at) return (int)n;
        begin = end + n_core;
    }
}
