/* test_top_sample.c - the status of a server as numbers: what is there is read and added up, what is
 * missing or wrong is 0, what is too long or too much is cut. */
#include "cli/top.h"

#include "support/test.h"

static struct tsri_top_sample s;

static int read_text(const char *text)
{
    return tsri_top_sample_read(&s, text, strlen(text));
}

TEST(tenants_are_read_and_added_up)
{
    CHECK_INT(
        read_text(
            "{\"version\":\"1.2\",\"uptime\":3.5,\"slow\":[{\"call\":\"store\",\"tenant\":\"b\","
            "\"seconds\":0.25,\"ago\":7}],\"tenants\":["
            "{\"name\":\"a\",\"tiers\":[{\"name\":\"host\",\"entries\":2,\"tokens\":128,\"used\":"
            "10,\"size\":100}]"
            ","
            "\"metrics\":{\"lookup_tokens_asked\":100,\"lookup_tokens_reused\":40,\"load_bytes\":7,"
            "\"lookup_ns\":{\"count\":1}}},"
            "{\"name\":\"b\",\"tiers\":[{\"name\":\"host\",\"entries\":1,\"used\":5,\"size\":100},"
            "{\"name\":\"disk\",\"entries\":9,\"used\":50,\"size\":500}],"
            "\"metrics\":{\"lookup_tokens_asked\":50,\"sessions\":3}}]}"),
        0);
    CHECK_STR(s.version, "1.2");
    CHECK(s.uptime == 3.5 && s.n_tenants == 2 && !s.has_serve);
    CHECK(s.all.n.asked == 150 && s.all.n.found == 40 && s.all.n.out == 7 && s.all.n.sessions == 3);
    CHECK_INT(s.all.n_tiers, 2);
    CHECK(s.all.tiers[0].used == 15 && s.all.tiers[0].size == 200 && s.all.tiers[1].entries == 9);
    CHECK(s.all.tiers[0].tokens == 128);
    CHECK_STR(s.tenants[1].tiers[1].name, "disk");
    CHECK_INT(s.n_slow, 1);
    CHECK(s.slow[0].seconds == 0.25 && s.slow[0].ago == 7);
}

TEST(what_is_no_status_is_refused)
{
    static const char *const none[] = {
        "", "[]", "{}", "null", "{\"tenants\":3}", "{\"tenants\":[}", "ok\n"};
    for (size_t i = 0; i < TSRI_COUNT(none); i++) {
        CHECK_INT(read_text(none[i]), TSR_EINVAL);
        CHECK_HAS(tsr_errmsg(), "not the status");
    }
}

TEST(values_of_other_kinds_are_zero)
{
    CHECK_INT(
        read_text(
            "{\"version\":7,\"uptime\":-1,\"slow\":[1,{\"seconds\":\"x\"}],\"serve\":[],"
            "\"tenants\":[null,{\"tiers\":{},\"metrics\":{\"lookups\":-5,\"load_bytes\":1e300}}]}"),
        0);
    CHECK_STR(s.version, "");
    CHECK(s.uptime == 0 && s.n_tenants == 1 && s.n_slow == 1 && s.slow[0].seconds == 0);
    CHECK(s.all.n.lookups == 0 && s.all.n.out == 0 && s.all.n_tiers == 0);
}

TEST(names_are_cut_and_cannot_move_the_cursor)
{
    char text[1200] = "{\"tenants\":[{\"name\":\"a\\u001b[2J\\n\\u009b\xC3\xA9";
    memset(text + strlen(text), 'x', 500);
    strcat(text, "\"}]}");
    CHECK_INT(read_text(text), 0);
    CHECK(strlen(s.tenants[0].name) < TSRI_TOP_NAME_BYTES);
    CHECK(strncmp(s.tenants[0].name, "a?[2J??\xC3\xA9xxx", 11) == 0);
}

TEST(lists_end_at_their_limits)
{
    size_t room = 1 << 20;
    char *text = malloc(room);
    CHECK(text);
    size_t n = (size_t)sprintf(text, "{\"tenants\":[");
    for (int i = 0; i < 100; i++) {
        n += (size_t)sprintf(text + n, "%s{\"name\":\"t%d\",\"tiers\":[", i ? "," : "", i);
        for (int k = 0; k < 20; k++)
            n += (size_t)sprintf(text + n, "%s{\"name\":\"%d-%d\"}", k ? "," : "", i, k);
        n += (size_t)sprintf(text + n, "]}");
    }
    n += (size_t)sprintf(text + n, "],\"slow\":[{}");
    for (int i = 0; i < 50; i++)
        n += (size_t)sprintf(text + n, ",{}");
    strcpy(text + n, "]}");
    CHECK_INT(read_text(text), 0);
    CHECK_INT(s.n_tenants, TSRI_TOP_TENANTS_MAX);
    CHECK_INT(s.n_slow, TSRI_TOP_SLOW_MAX);
    CHECK_INT(s.tenants[63].n_tiers, TSRI_TOP_TIERS_MAX);
    CHECK_INT(s.all.n_tiers, TSRI_TOP_TIERS_MAX);
    free(text);
}

int main(void)
{
    RUN(tenants_are_read_and_added_up);
    RUN(what_is_no_status_is_refused);
    RUN(values_of_other_kinds_are_zero);
    RUN(names_are_cut_and_cannot_move_the_cursor);
    RUN(lists_end_at_their_limits);
    return test_end();
}
