/* fuzz_passages.c - any bytes as a text to cut and as a question. Passages cover the text from its
 * beginning to its end, within their limit, without cutting a character of UTF-8; a question becomes
 * quoted words and nothing else. */
#include "search/inside.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds) abort();
}

static void cut(const struct tsri_prose *t, bool is_text)
{
    for (size_t done = 0; done < t->bytes;) {
        size_t n = tsri_passage_bytes(t->data + done, t->bytes - done);
        require(n > 0 && n <= TSRI_PASSAGE_BYTES_MAX && done + n <= t->bytes);
        done += n;
        require(!is_text || ((unsigned char)t->data[done] & 0xC0) != 0x80);
    }
}

/* "a" OR "b" OR ... */
static void check_query(const char *q)
{
    while (*q) {
        require(*q++ == '"');
        const char *end = strchr(q, '"');
        require(end && end > q);
        q = end + 1;
        if (*q) {
            require(strncmp(q, " OR ", 4) == 0);
            q += 4;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tsri_prose t = {0}, query = {0}, longer = {0};
    if (tsri_prose_add(&t, (const char *)data, size) != 0) return 0;
    if (tsri_query(&query, t.data) == 0) check_query(query.data);
    bool is_text = !tsri_prose_flaw(&t);
    if (is_text) tsri_prose_tidy(&t);
    /* Fuzzers make short inputs, and only long texts are cut. */
    for (int i = 0; i < 8 && t.bytes; i++)
        if (tsri_prose_add(&longer, t.data, t.bytes) != 0) abort();
    cut(&t, is_text);
    cut(&longer, is_text);
    tsri_prose_fini(&t);
    tsri_prose_fini(&query);
    tsri_prose_fini(&longer);
    return 0;
}
