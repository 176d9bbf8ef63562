/* test_repeat.c - loops of a model are noticed; lists, tables, code and songs are not. */
#include "answer/repeat.h"

#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>

/* `head`, then `cycle` n times; what is kept of it. */
static const char *kept(const char *head, const char *cycle, uint32_t n)
{
    static char text[8192];
    size_t length = (size_t)snprintf(text, sizeof text, "%s", head);
    for (uint32_t i = 0; i < n; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s", cycle);
    text[tsri_repeat_cut(text, length)] = 0;
    return text;
}

TEST(a_sentence_is_said_once)
{
    const char *cycle = " The ferry to the island sails at nine o'clock.";
    CHECK_STR(kept("Yes.", cycle, 3), "Yes. The ferry to the island sails at nine o'clock.");
    CHECK_STR(kept("", "I do not know the answer to this question.\n", 4),
              "I do not know the answer to this question.\n");
    CHECK_STR(kept("Answer: ", "it is in the north, in the north of the island, and ", 3),
              "Answer: it is in the north, in the north of the island, and");
}

TEST(words_may_be_said_three_times_and_not_for_ever)
{
    CHECK_STR(kept("Row, ", "row, ", 3), "Row, row, row, row, ");
    CHECK_STR(kept("", "Happy birthday to you!\n", 3),
              "Happy birthday to you!\nHappy birthday to you!\nHappy birthday to you!\n");
    CHECK_STR(kept("It is ", "very ", 24), "It is very");
    CHECK_STR(kept("", "ha", 60), "ha");
}

TEST(several_lines_that_come_back_are_one_cycle)
{
    const char *cycle = "- The lamp is lit at dusk.\n- The keeper sleeps at noon.\n";
    CHECK_STR(kept("Two facts:\n", cycle, 2),
              "Two facts:\n- The lamp is lit at dusk.\n- The keeper sleeps at noon.\n"
              "- The lamp is lit at dusk.\n- The keeper sleeps at noon.\n");
    CHECK_STR(kept("Two facts:\n", cycle, 3),
              "Two facts:\n- The lamp is lit at dusk.\n- The keeper sleeps at noon.");
}

TEST(lists_tables_and_code_are_not_cut)
{
    static const char *const texts[] = {
        "1. The harbor master is Ada.\n2. The harbor master is Ben.\n3. The harbor master is Cy.\n"
        "4. The harbor master is Dee.\n5. The harbor master is Eve.\n6. The harbor master is "
        "Fay.\n",
        "a = [[0, 0, 0, 0, 0, 0, 0, 0],\n     [0, 0, 0, 0, 0, 0, 0, 0],\n"
        "     [0, 0, 0, 0, 0, 0, 0, 0],\n     [0, 0, 0, 0, 0, 0, 0, 0],\n",
        "| name | age | height | weight | town | country |\n| --- | --- | --- | --- | --- | --- "
        "|\n",
        "<tr><td></td><td></td><td></td><td></td><td></td><td></td></tr>\n",
        "========================================================================================="
        "=",
        "p = p->next;\np = p->next;\np = p->next;\np = p->next;\n",
        "        }\n    }\n    }\n    }\n}\n",
    };
    for (uint32_t i = 0; i < sizeof texts / sizeof *texts; i++)
        CHECK_INT(tsri_repeat_cut(texts[i], strlen(texts[i])), strlen(texts[i]));
}

TEST(numbers_end_much_later)
{
    CHECK_INT(strlen(kept("", "0, ", 300)), 900);
    CHECK_STR(kept("", "0, ", 400), "0, ");
}

TEST(characters_stay_whole)
{
    /* The cycle begins in the middle of two characters that begin with the same byte. */
    const char *cycle = "\xC3\xA9t\xC3\xA9 comme hiver, on danse sur le port \xC3\xA0 minuit ";
    char text[1024] = "\xC3\xA8";
    for (uint32_t i = 0; i < 4; i++)
        strcat(text, cycle);
    size_t keep = tsri_repeat_cut(text, strlen(text));
    CHECK(keep < strlen(text));
    CHECK(((unsigned char)text[keep] & 0xC0) != 0x80);
}

/* Whatever a text becomes, it is not cut before what was shown of it. */
TEST(what_is_shown_is_never_taken_back)
{
    uint64_t seed = 20;
    for (uint32_t round = 0; round < 200; round++) {
        char text[1500];
        size_t shown = 0, n = 0;
        while (n < sizeof text) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            uint64_t x = seed >> 33;
            size_t back = x % 97 + 1;
            /* Mostly copies from a little before, so that there are many runs. */
            text[n] = x % 7 && n > back ? text[n - back] : "ab. \n"[x % 5];
            if (round % 2 && n > 60) text[n] = text[n - 41];
            n++;
            size_t cut = tsri_repeat_cut(text, n);
            CHECK(cut >= shown && cut <= n);
            if (cut < n) break;
            size_t safe = tsri_repeat_safe(text, n);
            CHECK(safe <= n);
            if (safe > shown) shown = safe;
        }
    }
}

TEST(plain_text_is_shown_at_once_or_nearly)
{
    const char *text = "The night train leaves Halden at a quarter past eleven and stops in Orsa.";
    size_t n = strlen(text);
    CHECK_INT(tsri_repeat_cut(text, n), n);
    for (size_t i = 1; i <= n; i++)
        CHECK(tsri_repeat_safe(text, i) + 4 >= i);
    CHECK_INT(tsri_repeat_safe("", 0), 0);
    CHECK_INT(tsri_repeat_cut("", 0), 0);
}

int main(void)
{
    RUN(a_sentence_is_said_once);
    RUN(words_may_be_said_three_times_and_not_for_ever);
    RUN(several_lines_that_come_back_are_one_cycle);
    RUN(lists_tables_and_code_are_not_cut);
    RUN(numbers_end_much_later);
    RUN(characters_stay_whole);
    RUN(what_is_shown_is_never_taken_back);
    RUN(plain_text_is_shown_at_once_or_nearly);
    return test_end();
}
