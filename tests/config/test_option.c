/* test_option.c - one value at a time: text to value, canonical text, ranges. */
#include "config/config.h"
#include "support/test.h"

#include <locale.h>

static char why[256];

static bool parse(const struct tsri_option *o, const char *text, union tsri_value *v)
{
    why[0] = 0;
    return tsri_option_parse(o, text, v, why, sizeof why);
}

static bool size_is(const char *text, uint64_t bytes)
{
    uint64_t v = ~(uint64_t)0;
    return tsri_parse_size(text, &v) && v == bytes;
}

static bool size_refused(const char *text)
{
    uint64_t v;
    return !tsri_parse_size(text, &v);
}

TEST(sizes_take_binary_suffixes_and_decimals)
{
    CHECK(size_is("0", 0));
    CHECK(size_is("4096", 4096));
    CHECK(size_is("1K", 1024));
    CHECK(size_is("256k", 256 << 10));
    CHECK(size_is("3MiB", 3u << 20));
    CHECK(size_is("1Gi", 1u << 30));
    CHECK(size_is("16T", (uint64_t)16 << 40));
    CHECK(size_is("1.5G", (uint64_t)3 << 29));
    CHECK(size_is("0.000001T", 1099511));
}

TEST(what_is_no_size_is_refused)
{
    const char *bad[] = {"",
                         "-1",
                         "+1",
                         "K",
                         "1 K",
                         "1KK",
                         "1Kx",
                         "1.5",
                         ".5G",
                         "1.G",
                         "0x10",
                         "1e3",
                         " 1",
                         "1.1234567G",
                         "1PiB",
                         "nan",
                         "1iB",
                         "1B",
                         "99999999999999999999",
                         "18446744073709551615T"};
    for (size_t i = 0; i < TSRI_COUNT(bad); i++)
        if (!size_refused(bad[i])) {
            printf("    taken: \"%s\"\n", bad[i]);
            TEST_STOP(1);
        }
}

TEST(canonical_text_of_every_default_reads_back_as_itself)
{
    for (size_t i = 0; i < tsri_option_count(); i++) {
        const struct tsri_option *o = tsri_option_at(i);
        union tsri_value v = {0};
        char text[TSRI_OPTION_TEXT_BYTES];
        CHECK(parse(o, o->def, &v));
        if (o->type == TSRI_OPTION_STRING || o->type == TSRI_OPTION_PATH) continue;
        tsri_option_format(o, v, text, sizeof text);
        CHECK_STR(text, o->def);
    }
}

TEST(every_row_has_help_that_fits_one_line_and_a_sane_name)
{
    for (size_t i = 0; i < tsri_option_count(); i++) {
        const struct tsri_option *o = tsri_option_at(i);
        CHECK(strlen(o->help) > 5 && strlen(o->help) < 100 && !strchr(o->help, '\n'));
        CHECK(o->name[strspn(o->name, "abcdefghijklmnopqrstuvwxyz_0123456789")] == 0);
        CHECK(tsri_option_find(o->name) == o);
        CHECK(tsri_option_type_text(o)[0]);
    }
}

TEST(names_match_with_dashes_and_not_by_part)
{
    CHECK(tsri_option_find("host-page-size") == tsri_option_find("host_page_size"));
    CHECK(!tsri_option_find("host"));
    CHECK(!tsri_option_find("host_size_"));
    CHECK(!tsri_option_find(""));
    CHECK(!tsri_option_find("HOST_SIZE"));
}

TEST(limits_are_inclusive_and_beyond_them_is_refused)
{
    union tsri_value v;
    const struct tsri_option *o = tsri_option_find("io_threads");
    CHECK(parse(o, "1", &v));
    CHECK(parse(o, "64", &v));
    CHECK(!parse(o, "0", &v));
    CHECK_HAS(why, "0 is out of range (1 to 64)");
    CHECK(!parse(o, "65", &v));
    CHECK(!parse(o, "two", &v));
    CHECK_HAS(why, "\"two\" is not a whole number");
    CHECK(!parse(o, "1.0", &v));
    CHECK(!parse(o, "", &v));
    o = tsri_option_find("host_size");
    CHECK(!parse(o, "1023K", &v));
    CHECK_HAS(why, "(1M to 16T)");
    CHECK(parse(o, "16T", &v));
    CHECK(!parse(o, "17T", &v));
}

TEST(zero_means_derived_only_where_the_table_says_so)
{
    union tsri_value v;
    CHECK(parse(tsri_option_find("metadata_size"), "0", &v));
    CHECK_INT(v.as_number, 0);
    CHECK(!parse(tsri_option_find("metadata_size"), "1", &v));
    CHECK_HAS(why, "0, or 1M to 128G");
    CHECK(!parse(tsri_option_find("host_size"), "0", &v));
}

TEST(a_power_of_two_is_asked_for_where_the_table_says_so)
{
    union tsri_value v;
    CHECK(parse(tsri_option_find("host_page_size"), "512K", &v));
    CHECK(!parse(tsri_option_find("host_page_size"), "300K", &v));
    CHECK_HAS(why, "300K is not a power of two");
}

TEST(booleans_take_the_usual_words_in_any_case)
{
    const char *yes[] = {"true", "True", "YES", "on", "1"}, *no[] = {"false", "No", "OFF", "0"};
    bool b = false;
    for (size_t i = 0; i < TSRI_COUNT(yes); i++)
        CHECK(tsri_parse_bool(yes[i], &b) && b);
    for (size_t i = 0; i < TSRI_COUNT(no); i++)
        CHECK(tsri_parse_bool(no[i], &b) && !b);
    CHECK(!tsri_parse_bool("", &b) && !tsri_parse_bool("2", &b) && !tsri_parse_bool("truee", &b));
}

TEST(an_unknown_enum_name_lists_the_names_and_the_nearest)
{
    union tsri_value v;
    CHECK(parse(tsri_option_find("hash"), "XXH3", &v));
    CHECK_INT(v.as_enum, TSRI_HASH_XXH3);
    CHECK(!parse(tsri_option_find("hash"), "sha265", &v));
    CHECK_HAS(why, "not one of sha256, xxh3; did you mean \"sha256\"?");
}

TEST(floats_are_read_and_written_alike_in_every_locale)
{
    static const struct tsri_option ratio = {
        .name = "ratio", .def = "0.15", .help = "", .max = 1, .type = TSRI_OPTION_FLOAT};
    const char *locales[] = {"C", "de_DE.UTF-8", "fr_FR.UTF-8"};
    for (size_t i = 0; i < TSRI_COUNT(locales); i++) {
        if (!setlocale(LC_ALL, locales[i])) continue;
        union tsri_value v;
        char text[TSRI_OPTION_TEXT_BYTES];
        CHECK(parse(&ratio, "0.15", &v));
        tsri_option_format(&ratio, v, text, sizeof text);
        CHECK_STR(text, "0.15");
        CHECK(parse(&ratio, "1e-3", &v));
        CHECK(!parse(&ratio, "0,15", &v));
        CHECK(!parse(&ratio, "nan", &v));
        CHECK(!parse(&ratio, "inf", &v));
        CHECK(!parse(&ratio, "1e999", &v));
        CHECK(!parse(&ratio, "1.5", &v));
        CHECK_HAS(why, "out of range (0 to 1)");
    }
    setlocale(LC_ALL, "C");
}

TEST(lists_hold_numbers_in_range_and_read_back)
{
    const struct tsri_option *ratios = tsri_option_find("blend_recompute_ratios");
    const struct tsri_option *boundary = tsri_option_find("blend_boundary");
    union tsri_value v;
    char text[TSRI_OPTION_TEXT_BYTES];
    CHECK(parse(ratios, "", &v) && v.as_list.n == 0);
    CHECK(parse(ratios, " 0.3 ,0.15", &v) && v.as_list.n == 2);
    tsri_option_format(ratios, v, text, sizeof text);
    CHECK_STR(text, "0.3,0.15");
    CHECK(parse(ratios, "0,0.1,0.2,0.3,0.4,0.5,0.6,1", &v) && v.as_list.n == TSRI_LIST_MAX);
    static const char *const wrong[] = {",",  "0.1,", "0.1,,0.2", "two",
                                        "-1", "1.01", "[0.1]",    "0,0,0,0,0,0,0,0,0"};
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++)
        CHECK(!parse(ratios, wrong[i], &v));
    CHECK_STR(why, "\"0,0,0,0,0,0,0,0,0\" is not up to 8 numbers from 0 to 1");
    CHECK(parse(boundary, "3", &v) && v.as_list.n == 1);
    CHECK(!parse(boundary, "3,4", &v) && !parse(boundary, "2.5", &v));
    CHECK_STR(why, "\"2.5\" is not one whole number from 0 to 1024");
}

TEST(text_longer_than_its_limit_is_refused)
{
    union tsri_value v;
    char text[300];
    memset(text, 'x', sizeof text);
    text[255] = 0;
    CHECK(parse(tsri_option_find("separator"), text, &v));
    text[255] = 'x';
    text[256] = 0;
    CHECK(!parse(tsri_option_find("separator"), text, &v));
    CHECK_HAS(why, "text of 256 bytes (up to 255 bytes)");
}

int main(void)
{
    RUN(sizes_take_binary_suffixes_and_decimals);
    RUN(what_is_no_size_is_refused);
    RUN(canonical_text_of_every_default_reads_back_as_itself);
    RUN(every_row_has_help_that_fits_one_line_and_a_sane_name);
    RUN(names_match_with_dashes_and_not_by_part);
    RUN(limits_are_inclusive_and_beyond_them_is_refused);
    RUN(zero_means_derived_only_where_the_table_says_so);
    RUN(a_power_of_two_is_asked_for_where_the_table_says_so);
    RUN(booleans_take_the_usual_words_in_any_case);
    RUN(an_unknown_enum_name_lists_the_names_and_the_nearest);
    RUN(floats_are_read_and_written_alike_in_every_locale);
    RUN(lists_hold_numbers_in_range_and_read_back);
    RUN(text_longer_than_its_limit_is_refused);
    return test_end();
}
