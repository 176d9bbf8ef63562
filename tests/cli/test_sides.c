/* test_sides.c - two texts beside each other. */
#include "cli/asking.h"

#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>

/* What is printed; freed by the next call. */
static const char *printed(const char *left, const char *right, uint32_t width)
{
    static char *text;
    size_t bytes;
    free(text);
    FILE *out = open_memstream(&text, &bytes);
    CHECK(out);
    struct tsri_sides sides = {{"one", "two"}, {left, right}};
    tsri_sides_print(out, &sides, width);
    fclose(out);
    return text;
}

#define DASHES "------------------------------"
#define BLANKS "                              "

TEST(words_are_wrapped_into_two_columns)
{
    CHECK_STR(printed("The ferry sails at nine in the morning.", "At nine.", 65),
              "one                             |  two\n" DASHES "--+--" DASHES "\n"
              "The ferry sails at nine in the  |  At nine.\n"
              "morning.                        |\n");
    CHECK_STR(printed("Yes.", "First line.\n\nThird line.", 65),
              "one                             |  two\n" DASHES "--+--" DASHES "\n"
              "Yes.                            |  First line.\n" BLANKS "  |  \n" BLANKS
              "  |  Third line.\n");
}

TEST(characters_of_other_alphabets_are_one_column_each)
{
    CHECK_STR(printed("\xC3\xA9t\xC3\xA9", "x", 65),
              "one                             |  two\n" DASHES "--+--" DASHES "\n"
              "\xC3\xA9t\xC3\xA9                             |  x\n");
}

TEST(a_word_longer_than_a_column_is_cut)
{
    CHECK_HAS(printed("aaaaaaaaaabbbbbbbbbbccccccccccdddd", "x", 65),
              "aaaaaaaaaabbbbbbbbbbcccccccccc  |  x\ndddd                            |\n");
}

TEST(where_it_is_narrow_one_is_below_the_other)
{
    for (uint32_t width = 0; width < 65; width += 16)
        CHECK_STR(printed("Long ago.\nOnce.", "Now.", width),
                  "one:\nLong ago.\nOnce.\n\ntwo:\nNow.\n");
}

TEST(what_a_terminal_would_obey_is_not_printed)
{
    CHECK_STR(printed("a\033[2Jb\tc", "\xC2\x9Bm", 0), "one:\na?[2Jb c\n\ntwo:\n?m\n");
}

int main(void)
{
    RUN(words_are_wrapped_into_two_columns);
    RUN(characters_of_other_alphabets_are_one_column_each);
    RUN(a_word_longer_than_a_column_is_cut);
    RUN(where_it_is_narrow_one_is_below_the_other);
    RUN(what_a_terminal_would_obey_is_not_printed);
    return test_end();
}
