/* Pages in other encodings as UTF-8. */
#include "search/inside.h"

#include "support/test.h"

#define NONE "\xEF\xBF\xBD"

static void becomes_of(const char *page, size_t bytes, const char *text)
{
    struct tsri_prose t = {0};
    CHECK_INT(tsri_page_utf8(page, bytes, &t), 0);
    CHECK_STR(t.data, text);
    CHECK(tsri_is_utf8(t.data, t.bytes));
    tsri_prose_fini(&t);
}

static void becomes(const char *page, const char *text)
{
    becomes_of(page, strlen(page), text);
}

TEST(an_unnamed_encoding_is_that_of_browsers)
{
    becomes("caf\xE9 \x93so\x94", "caf\xC3\xA9 \xE2\x80\x9Cso\xE2\x80\x9D");
}

TEST(a_named_encoding_is_taken)
{
    becomes("<meta charset=windows-1251>\xE0", "<meta charset=windows-1251>\xD0\xB0");
    becomes("<META CHARSET = 'KOI8-R'>\xC1", "<META CHARSET = 'KOI8-R'>\xD0\xB0");
    becomes("<meta content=\"text/html; charset=shift_jis\">\x82\xA0",
            "<meta content=\"text/html; charset=shift_jis\">\xE3\x81\x82");
    becomes("<meta charset=gb2312>\xC4\xE3", "<meta charset=gb2312>\xE4\xBD\xA0");
}

TEST(an_unknown_name_is_passed_over)
{
    becomes("charset=x charset=koi8-r \xC1", "charset=x charset=koi8-r \xD0\xB0");
    becomes("charset=UTF-16//IGNORE \xE9", "charset=UTF-16//IGNORE \xC3\xA9");
    becomes("charset", "charset");
    becomes("charset=", "charset=");
}

TEST(a_name_behind_the_head_is_not_looked_for)
{
    char page[1100], text[1200];
    memset(page, ' ', sizeof page);
    memcpy(page + 1024, "charset=koi8-r", 14);
    page[sizeof page - 1] = (char)0xC1;
    memset(text, ' ', sizeof text);
    memcpy(text + 1024, "charset=koi8-r", 14);
    memcpy(text + sizeof page - 1, "\xC3\x81", 3);
    becomes_of(page, sizeof page, text);
}

TEST(marks_before_the_text_say_the_encoding)
{
    becomes_of("\xFF\xFE"
               "a\0\xAC\x20",
               6, "a\xE2\x82\xAC");
    becomes_of("\xFE\xFF\0a\x20\xAC", 6, "a\xE2\x82\xAC");
    becomes("\xEF\xBB\xBF"
            "a\x92",
            "a" NONE);
}

TEST(what_is_no_text_is_replaced)
{
    becomes("charset=utf-8 a\xFF\xC3", "charset=utf-8 a" NONE NONE);
    becomes("charset=utf-8 \xFC\x92\x92\x92\x92\x92.",
            "charset=utf-8 " NONE NONE NONE NONE NONE NONE ".");
    becomes("charset=utf-8 \xED\xA0\x80", "charset=utf-8 " NONE NONE NONE);
    becomes_of("a\0b\xE9", 4, "a" NONE "b\xC3\xA9");
    /* Half a pair, and half a unit. */
    becomes_of("\xFF\xFE\x00\xD8"
               "a\0b",
               7, NONE "a" NONE);
}

/* iconv waits for an accent behind it. */
TEST(a_letter_before_the_end_or_before_no_text_is_kept)
{
    becomes("charset=windows-1255 \xF9", "charset=windows-1255 \xD7\xA9");
    becomes("charset=windows-1255 \xF9\xFF.", "charset=windows-1255 \xD7\xA9" NONE ".");
    becomes("charset=windows-1258 a", "charset=windows-1258 a");
    becomes("charset=windows-1258 a\xCC", "charset=windows-1258 \xC3\xA0");
}

TEST(long_pages_are_converted_whole)
{
    enum { N = 100000 };
    struct tsri_prose t = {0};
    char *page = malloc(N);
    CHECK(page != NULL);
    memset(page, 0xE9, N);
    CHECK_INT(tsri_page_utf8(page, N, &t), 0);
    CHECK_INT(t.bytes, 2 * N);
    for (size_t i = 0; i < N; i++)
        CHECK(memcmp(t.data + 2 * i, "\xC3\xA9", 2) == 0);
    free(page);
    tsri_prose_fini(&t);
}

int main(void)
{
    RUN(an_unnamed_encoding_is_that_of_browsers);
    RUN(a_named_encoding_is_taken);
    RUN(an_unknown_name_is_passed_over);
    RUN(a_name_behind_the_head_is_not_looked_for);
    RUN(marks_before_the_text_say_the_encoding);
    RUN(what_is_no_text_is_replaced);
    RUN(a_letter_before_the_end_or_before_no_text_is_kept);
    RUN(long_pages_are_converted_whole);
    return test_end();
}
