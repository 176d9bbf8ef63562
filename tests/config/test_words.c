/* test_words.c - distances between names, printable copies, places. */
#include "config/config.h"
#include "support/test.h"

TEST(the_distance_counts_inserts_drops_changes_and_swaps)
{
    CHECK_INT(tsri_edit_distance("host_size", "host_size"), 0);
    CHECK_INT(tsri_edit_distance("host_size", "host_siz"), 1);
    CHECK_INT(tsri_edit_distance("host_size", "host_sizes"), 1);
    CHECK_INT(tsri_edit_distance("host_size", "hots_size"), 1);
    CHECK_INT(tsri_edit_distance("host_size", "disk_size"), 3);
    CHECK_INT(tsri_edit_distance("", "abc"), 3);
    CHECK_INT(tsri_edit_distance("abc", ""), 3);
}

TEST(names_beyond_the_limit_are_far_from_everything)
{
    char name[65];
    memset(name, 'a', 64);
    name[64] = 0;
    CHECK(tsri_edit_distance(name, name) == SIZE_MAX);
    name[63] = 0;
    CHECK_INT(tsri_edit_distance(name, name), 0);
}

TEST(printable_text_is_bounded_and_keeps_whole_characters)
{
    char buf[10];
    CHECK_STR(tsri_printable("a\nb\x7f", buf, sizeof buf), "a?b?");
    CHECK_STR(tsri_printable("123456789", buf, sizeof buf), "123456789");
    CHECK_STR(tsri_printable("1234567890", buf, sizeof buf), "123456...");
    CHECK_STR(tsri_printable("12345\xc3\xa9 and more", buf, sizeof buf), "12345...");
    CHECK_STR(tsri_printable("1234\xc3\xa9 and more", buf, sizeof buf), "1234\xc3\xa9...");
}

TEST(a_place_is_named_by_its_kind)
{
    char buf[TSRI_PLACE_BYTES];
    struct tsri_place p = {.from = TSRI_FROM_CALL};
    CHECK_STR(tsri_place_text(&p, buf, sizeof buf), "");
    p = (struct tsri_place){.from = TSRI_FROM_FILE, .name = "a.yaml", .line = 3, .column = 7};
    CHECK_STR(tsri_place_text(&p, buf, sizeof buf), "a.yaml:3:7: ");
    p = (struct tsri_place){.from = TSRI_FROM_ENV, .name = "TESSERA_HASH"};
    CHECK_STR(tsri_place_text(&p, buf, sizeof buf), "environment variable TESSERA_HASH: ");
    p = (struct tsri_place){.from = TSRI_FROM_FLAG, .name = "--hash"};
    CHECK_STR(tsri_place_text(&p, buf, sizeof buf), "flag --hash: ");
}

int main(void)
{
    RUN(the_distance_counts_inserts_drops_changes_and_swaps);
    RUN(names_beyond_the_limit_are_far_from_everything);
    RUN(printable_text_is_bounded_and_keeps_whole_characters);
    RUN(a_place_is_named_by_its_kind);
    return test_end();
}
