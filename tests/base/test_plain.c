/* What reaches a terminal or a log is one line, whatever the names in it hold. */
#include "base/base.h"
#include "support/test.h"

static const char *plain(const char *text)
{
    static char buf[64];
    snprintf(buf, sizeof buf, "%s", text);
    return tsri_plain(buf);
}

TEST(control_characters_of_one_byte_and_of_two_are_not_obeyed)
{
    CHECK_STR(plain("a\x1b[2Jb"), "a?[2Jb");
    CHECK_STR(plain("a\nb\tc\rd\x7f"), "a?b?c?d?");
    CHECK_STR(plain("\xc2\x9b"
                    "2J"),
              "??2J"); /* CSI */
    CHECK_STR(plain("\xc2\x85"), "??");
}

TEST(other_text_stays)
{
    CHECK_STR(plain("Caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 ~"),
              "Caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 ~");
    CHECK_STR(plain("\xc2\xa0"), "\xc2\xa0");
    CHECK_STR(plain(""), "");
}

TEST(what_is_no_utf8_is_not_passed_on)
{
    CHECK_STR(plain("\x9b"
                    "2J"),
              "?2J");                                    /* CSI of terminals with 8-bit text */
    CHECK_STR(plain("\xc0\x9b|\xe0\x82\x9b"), "??|???"); /* overlong */
    CHECK_STR(plain("a\xc3"), "a?");                     /* cut off */
    CHECK_STR(plain("\xe2\x82"
                    "a"),
              "??a");
}

TEST(a_character_that_is_not_complete_is_told)
{
    CHECK_INT(tsri_utf8_unfinished("ab", 2), 0);
    CHECK_INT(tsri_utf8_unfinished("a\xc3\xa9", 3), 0);
    CHECK_INT(tsri_utf8_unfinished("a\xc3", 2), 1);
    CHECK_INT(tsri_utf8_unfinished("\xf0\x9f\x98", 3), 3);
    CHECK_INT(tsri_utf8_unfinished("\x98\x98\x98\x98", 4), 0); /* none begins here */
    CHECK_INT(tsri_utf8_unfinished("", 0), 0);
}

static char line[256];

static void keep(void *arg, int level, const char *text)
{
    (void)arg, (void)level;
    snprintf(line, sizeof line, "%s", text);
}

TEST(messages_and_log_lines_are_made_so)
{
    CHECK_INT(tsri_fail(TSR_EIO, "disk: %s: %s", "x\x1b]0;y\x07", "bad\nline"), TSR_EIO);
    CHECK_STR(tsr_errmsg(), "disk: x?]0;y?: bad?line");
    tsr_log_set(keep, NULL, TSR_LOG_WARN);
    tsri_log(TSR_LOG_WARN, "tier %s", "a\nforged line");
    tsr_log_set(NULL, NULL, 0);
    CHECK_STR(line, "tier a?forged line");
}

int main(void)
{
    RUN(control_characters_of_one_byte_and_of_two_are_not_obeyed);
    RUN(other_text_stays);
    RUN(what_is_no_utf8_is_not_passed_on);
    RUN(a_character_that_is_not_complete_is_told);
    RUN(messages_and_log_lines_are_made_so);
    return test_end();
}
