/* test_parts.c - the text of a prompt is cut at its separators, and what is malformed is refused with
 * the byte where it is. */
#include "chunk/chunk.h"
#include "support/test.h"

static struct tsr_text_part parts[8];
static const char *text;

static int split(const char *prompt, const char *separator)
{
    text = prompt;
    return tsr_text_split(prompt, strlen(prompt), separator, parts, 8);
}

static bool part_is(int i, const char *expected)
{
    return parts[i].bytes == strlen(expected) &&
           memcmp(text + parts[i].offset, expected, parts[i].bytes) == 0;
}

TEST(a_prompt_is_system_documents_and_question)
{
    CHECK_INT(split("You are helpful.##Doc1##What?", "##"), 3);
    CHECK(part_is(0, "You are helpful.") && part_is(1, "Doc1") && part_is(2, "What?"));
    CHECK_INT(parts[1].offset, 18);
    CHECK_INT(split("a # # b # # c", " # # "), 3);
    CHECK(part_is(0, "a ") && part_is(1, " b ") && part_is(2, " c"));
    CHECK_INT(split("a\n# #\nb", " # # "), 2);
    CHECK(part_is(1, "\nb"));
}

TEST(what_is_malformed_is_refused_with_its_byte)
{
    CHECK_INT(split("no separator here", "##"), TSR_EPROMPT);
    CHECK_HAS(tsr_errmsg(), "no separator \"##\"");
    CHECK_INT(split("##doc##question", "##"), TSR_EPROMPT);
    CHECK_HAS(tsr_errmsg(), "nothing before the separator at byte 0");
    CHECK_INT(split("sys## \n##question", "##"), TSR_EPROMPT);
    CHECK_HAS(tsr_errmsg(), "empty chunk: nothing before the separator at byte 7");
    CHECK_INT(split("sys##doc## ", "##"), TSR_EPROMPT);
    CHECK_HAS(tsr_errmsg(), "no question: nothing after the separator at byte 8");
    CHECK_INT(split("", "##"), TSR_EPROMPT);
    CHECK_INT(split("1##2##3##4##5##6##7##8##9", "##"), TSR_EPROMPT);
    CHECK_HAS(tsr_errmsg(), "more than 8 chunks: one more at byte 24");
    CHECK_INT(split("a##b", ""), TSR_EINVAL);
    CHECK_INT(tsr_text_split(NULL, 0, "##", parts, 8), TSR_EINVAL);
}

TEST(a_text_may_hold_zeros_and_hashes)
{
    text = "a#\0#b##c#";
    CHECK_INT(tsr_text_split(text, 9, "##", parts, 8), 2);
    CHECK(parts[0].bytes == 5 && part_is(1, "c#"));
}

int main(void)
{
    RUN(a_prompt_is_system_documents_and_question);
    RUN(what_is_malformed_is_refused_with_its_byte);
    RUN(a_text_may_hold_zeros_and_hashes);
    return test_end();
}
