/* test_saying.c - text goes out in whole characters, and never a part of a stop string. */
#include "serve/saying.h"

#include "support/test.h"

#include <stdlib.h>

static void add(struct tsri_saying *s, const char *text)
{
    CHECK_INT(tsri_saying_add(s, text, strlen(text)), 0);
}

TEST(a_stop_string_over_several_tokens_is_found)
{
    static const char *const stops[] = {"\n\n", "END"};
    struct tsri_saying s = {.stops = stops, .n_stops = 2};
    add(&s, "one E");
    CHECK_INT(tsri_saying_safe(&s, false), 4);
    add(&s, "N");
    CHECK_INT(tsri_saying_safe(&s, false), 4);
    add(&s, "X\n");
    CHECK_INT(tsri_saying_safe(&s, false), 7);
    add(&s, "\nlater");
    CHECK(s.stopped);
    CHECK_STR(s.text, "one ENX");
    add(&s, "more");
    CHECK_STR(s.text, "one ENX");
    tsri_saying_fini(&s);
}

TEST(the_earliest_of_several_stops_counts)
{
    static const char *const stops[] = {"ccc", "b"};
    struct tsri_saying s = {.stops = stops, .n_stops = 2};
    add(&s, "aabccc");
    CHECK_STR(s.text, "aa");
    tsri_saying_fini(&s);
    static const char *const other[] = {"b", "ccc"};
    s = (struct tsri_saying){.stops = other, .n_stops = 2};
    add(&s, "acccb");
    CHECK_STR(s.text, "a");
    tsri_saying_fini(&s);
}

TEST(a_character_is_never_cut)
{
    struct tsri_saying s = {0};
    add(&s, "a\xe2\x82");
    CHECK_INT(tsri_saying_safe(&s, false), 1);
    add(&s, "\xac");
    CHECK_INT(tsri_saying_safe(&s, false), 4);
    add(&s, "\xf0\x9f");
    CHECK_INT(tsri_saying_safe(&s, false), 4);
    CHECK_INT(tsri_saying_safe(&s, true), 6); /* there is no more to wait for */
    tsri_saying_fini(&s);
}

/* Whatever the cuts: what was taken out stays a begin of the text, and all of it comes in the end. */
TEST(what_is_taken_is_never_taken_back)
{
    static const char text[] = "xaab aaab \xc3\xa9 aa\xe2\x82\xac aabX rest";
    static const char *const stops[] = {"aabX", "aaaa"};
    for (size_t step = 1; step < 9; step++) {
        struct tsri_saying s = {.stops = stops, .n_stops = 2};
        char out[64] = "";
        for (size_t i = 0; i < sizeof text - 1; i += step) {
            size_t n = sizeof text - 1 - i < step ? sizeof text - 1 - i : step;
            CHECK_INT(tsri_saying_add(&s, text + i, n), 0);
            size_t safe = tsri_saying_safe(&s, i + n == sizeof text - 1);
            CHECK(safe >= s.n_taken && safe <= s.n);
            strncat(out, s.text + s.n_taken, safe - s.n_taken);
            s.n_taken = safe;
        }
        CHECK(s.stopped);
        CHECK_STR(out, "xaab aaab \xc3\xa9 aa\xe2\x82\xac ");
        tsri_saying_fini(&s);
    }
}

TEST(bytes_that_are_no_text_are_replaced)
{
    char *copy = tsri_utf8_copy("a\xff\xc3\xa9\xc3", 5);
    CHECK_STR(copy, "a\xEF\xBF\xBD\xc3\xa9\xEF\xBF\xBD");
    free(copy);
    copy = tsri_utf8_copy("a\0b", 3);
    CHECK_STR(copy, "a\xEF\xBF\xBD"
                    "b");
    free(copy);
}

int main(void)
{
    RUN(a_stop_string_over_several_tokens_is_found);
    RUN(the_earliest_of_several_stops_counts);
    RUN(a_character_is_never_cut);
    RUN(what_is_taken_is_never_taken_back);
    RUN(bytes_that_are_no_text_are_replaced);
    return test_end();
}
