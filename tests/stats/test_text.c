/* The bounded writer and its escapes. */
#include "stats/stats.h"
#include "support/test.h"

static char buf[256];

static const char *json(const char *s)
{
    struct tsri_text t;
    tsri_text_init(&t, buf, sizeof buf);
    tsri_text_add_json(&t, s);
    return buf;
}

TEST(a_short_buffer_is_cut_and_the_needed_length_known)
{
    for (size_t bytes = 0; bytes < 40; bytes++) {
        struct tsri_text t;
        memset(buf, 'x', sizeof buf);
        tsri_text_init(&t, buf, bytes);
        tsri_text_add(&t, "abc%d", 12);
        tsri_text_add_json(&t, "d\ne\x01");
        tsri_text_add_help(&t, "f\\g");
        tsri_text_add_label(&t, "h\"i");
        const char *whole = "abc12\"d\\ne\\u0001\"f\\\\g\"h\\\"i\"";
        CHECK_INT(t.length, strlen(whole));
        CHECK(buf[bytes] == 'x');
        if (bytes > strlen(whole)) CHECK_STR(buf, whole);
        if (bytes == 0) continue;
        CHECK(strlen(buf) < bytes);
        CHECK(strncmp(buf, whole, strlen(buf)) == 0);
    }
}

TEST(json_strings_escape_what_must_be)
{
    CHECK_STR(json(""), "\"\"");
    CHECK_STR(json("a\"b\\c/d"), "\"a\\\"b\\\\c/d\"");
    CHECK_STR(json("\n\t\r\x1f\x7f"), "\"\\n\\t\\u000d\\u001f\\u007f\"");
    CHECK_STR(json("\xc2\x9b\xc2\xa0"), "\"\\u009b\xc2\xa0\"");
}

TEST(json_strings_are_utf8_whatever_comes_in)
{
    CHECK_STR(json("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"),
              "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
    CHECK_STR(json("\xff"), "\"\\ufffd\"");
    CHECK_STR(json("\xc3"), "\"\\ufffd\"");
    CHECK_STR(json("a\xe2\x82"), "\"a\\ufffd\\ufffd\"");
    CHECK_STR(json("\xc0\x80"), "\"\\ufffd\\ufffd\"");                         /* overlong */
    CHECK_STR(json("\xe0\x80\x80"), "\"\\ufffd\\ufffd\\ufffd\"");              /* overlong */
    CHECK_STR(json("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\"");              /* surrogate */
    CHECK_STR(json("\xf4\x90\x80\x80z"), "\"\\ufffd\\ufffd\\ufffd\\ufffdz\""); /* > U+10FFFF */
    CHECK_STR(json("\xf0\x90\x80"), "\"\\ufffd\\ufffd\\ufffd\"");
}

TEST(prometheus_help_and_labels_escape_what_must_be)
{
    struct tsri_text t;
    tsri_text_init(&t, buf, sizeof buf);
    tsri_text_add_help(&t, "a\\b\nc\"d");
    CHECK_STR(buf, "a\\\\b\\nc\"d");
    tsri_text_init(&t, buf, sizeof buf);
    tsri_text_add_label(&t, "a\\b\nc\"d");
    CHECK_STR(buf, "\"a\\\\b\\nc\\\"d\"");
}

int main(void)
{
    RUN(a_short_buffer_is_cut_and_the_needed_length_known);
    RUN(json_strings_escape_what_must_be);
    RUN(json_strings_are_utf8_whatever_comes_in);
    RUN(prometheus_help_and_labels_escape_what_must_be);
    return test_end();
}
