/* Text that grows, and what counts as text. */
#include "search/inside.h"

#include "support/test.h"

#include <stdlib.h>

static struct tsri_prose made(const char *data, size_t bytes)
{
    struct tsri_prose t = {0};
    CHECK_INT(tsri_prose_add(&t, data, bytes), 0);
    return t;
}

TEST(text_grows_and_ends_with_a_zero)
{
    struct tsri_prose t = {0};
    for (int i = 0; i < 1000; i++)
        CHECK_INT(tsri_prose_add(&t, "abc", 3), 0);
    CHECK_INT(t.bytes, 3000);
    CHECK_INT(strlen(t.data), 3000);
    tsri_prose_fini(&t);
    CHECK(!t.data && !t.bytes);
}

static void tidied(const char *from, const char *to)
{
    struct tsri_prose t = made(from, strlen(from));
    tsri_prose_tidy(&t);
    CHECK_STR(t.data, to);
    CHECK_INT(t.bytes, strlen(to));
    tsri_prose_fini(&t);
}

TEST(line_ends_and_pages_are_alike_everywhere)
{
    tidied("\xEF\xBB\xBF\n a\r\nb\rc\n\n", "a\nb\nc");
    tidied("one\n\ftwo", "one\n\ntwo");
    tidied("", "");
    tidied(" \n ", "");
}

static const char *flaw(const char *data, size_t bytes)
{
    struct tsri_prose t = made(data, bytes);
    const char *what = tsri_prose_flaw(&t);
    tsri_prose_fini(&t);
    return what;
}

TEST(what_is_no_text_is_named)
{
    CHECK(!flaw("plain", 5));
    CHECK(!flaw("\xC3\xA9", 2));
    CHECK_STR(flaw("a\0b", 3), "is binary");
    CHECK_STR(flaw("a\xFF", 2), "is not UTF-8 text");
    CHECK_STR(flaw("\xC3", 1), "is not UTF-8 text");
    CHECK_STR(flaw(" \n", 2), "is empty");
    CHECK_STR(flaw("", 0), "is empty");
}

/* In memory of exactly that size, which a sanitizer watches. */
static bool is_utf8(const char *text, size_t bytes)
{
    char *own = malloc(bytes);
    CHECK(own);
    memcpy(own, text, bytes);
    bool is = tsri_is_utf8(own, bytes);
    free(own);
    return is;
}

TEST(the_last_character_is_not_read_beyond_its_end)
{
    CHECK(is_utf8("a\xE2\x82\xAC", 4) && is_utf8("\xF0\x9F\x98\x80", 4) && is_utf8("z", 1));
    CHECK(!is_utf8("\xE2", 1) && !is_utf8("a\xE2\x82", 3) && !is_utf8("\xF0\x9F\x98", 3));
    CHECK(!is_utf8("\x82", 1) && !is_utf8("\xE2z", 2) && !is_utf8("\xF0\x9Fz", 3));
}

int main(void)
{
    RUN(text_grows_and_ends_with_a_zero);
    RUN(line_ends_and_pages_are_alike_everywhere);
    RUN(what_is_no_text_is_named);
    RUN(the_last_character_is_not_read_beyond_its_end);
    return test_end();
}
