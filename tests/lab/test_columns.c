/* test_columns.c - numbers are found by the heading; what is malformed is refused with its line. */
#include "lab/columns.h"

#include "support/said.h"
#include "support/test.h"
#include "support/tmpdir.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

struct place {
    char name[8];
    double wide, high;
};
static const char *const texts[] = {"name"};
static const struct tsri_column numbers[] = {{"wide", offsetof(struct place, wide)},
                                             {"high", offsetof(struct place, high)}};
static const struct tsri_columns plain = {"places", texts, 1, numbers, 2, NULL};
static const struct tsri_columns with_last = {"places", texts, 1, numbers, 2, "note"};

static struct tmpdir dir;
static char path[4200];
static struct place places[8];
static size_t n_places;

static void write_text(const char *text)
{
    FILE *out = fopen(path, "w");
    CHECK(out);
    fputs(text, out);
    fclose(out);
}

static bool is_file(const char *wanted)
{
    char text[4096];
    FILE *in = fopen(path, "r");
    size_t n = in ? fread(text, 1, sizeof text - 1, in) : 0;
    if (in) fclose(in);
    text[n] = 0;
    return strcmp(text, wanted) == 0;
}

static int take(void *unused, const struct tsri_columns_line *line)
{
    struct place *p = &places[n_places];
    char *rest = line->text;
    (void)unused;
    if (!tsri_columns_text(&rest, p->name, sizeof p->name) ||
        !tsri_columns_numbers(&plain, line->order, &rest, p) || *rest)
        return -1;
    n_places++;
    return 0;
}

static int load(const struct tsri_columns *c, bool to_append)
{
    n_places = 0;
    return tsri_columns_load(c, path, to_append, take, NULL);
}

static int append(const struct tsri_columns *c, const struct place *p)
{
    FILE *out;
    int e = tsri_columns_open(&out, c, path);
    CHECK(e ? !out : !!out);
    if (e) return e;
    fputs(p->name, out);
    tsri_columns_put(out, c, p, 6);
    fputc('\n', out);
    return tsri_columns_close(out, path);
}

TEST(rows_come_back_below_one_heading)
{
    struct place a = {"a", 0.5, 2}, b = {"b", NAN, -1e-9};
    CHECK_INT(load(&plain, true), 0); /* not there yet */
    CHECK_INT(n_places, 0);
    CHECK_INT(append(&plain, &a), 0);
    CHECK_INT(append(&plain, &b), 0);
    CHECK(is_file("name,wide,high\na,0.5,2\nb,nan,-1e-09\n"));
    CHECK_INT(load(&plain, false), 0);
    CHECK(n_places == 2 && places[0].wide == 0.5 && places[0].high == 2);
    CHECK(isnan(places[1].wide) && places[1].high == -1e-9);
    CHECK_STR(places[1].name, "b");
}

TEST(columns_may_have_any_order_and_be_missing)
{
    write_text("name,high,wide\na,3,4\n");
    CHECK_INT(load(&plain, false), 0);
    CHECK(n_places == 1 && places[0].wide == 4 && places[0].high == 3);
    write_text("name,high\na,3\n");
    CHECK_INT(load(&plain, false), 0);
    CHECK(n_places == 1 && isnan(places[0].wide) && places[0].high == 3);
}

TEST(other_columns_are_not_continued)
{
    static const char *const others[] = {"name,high\n", "name,high,wide\n", "a,b\n"};
    for (size_t i = 0; i < TSRI_COUNT(others); i++) {
        write_text(others[i]);
        CHECK_INT(append(&plain, &(struct place){"a", 1, 2}), CLI_FAILED);
        CHECK_HAS(said(), "has other columns than this version writes");
        CHECK(is_file(others[i]));
    }
}

TEST(half_a_line_is_cut_off_only_to_append)
{
    write_text("name,wide,high\na,1,2\nb,3");
    CHECK_INT(load(&plain, false), 0);
    CHECK_INT(n_places, 1);
    CHECK(is_file("name,wide,high\na,1,2\nb,3"));
    CHECK_INT(load(&plain, true), 0);
    CHECK_INT(n_places, 1);
    CHECK(is_file("name,wide,high\na,1,2\n"));
}

TEST(a_missing_file_is_an_error_to_read)
{
    snprintf(path, sizeof path, "%s/none.csv", dir.path);
    CHECK_INT(load(&plain, false), CLI_FAILED);
    CHECK_HAS(said(), "No such file");
    snprintf(path, sizeof path, "%s/places.csv", dir.path);
}

TEST(headings_that_are_not_ours_are_refused)
{
    static const char *const wrong[] = {"wide,high\n", "name\n", "name,wide,wide,high\n",
                                        "name,wide,note\n", "\n"};
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++) {
        write_text(wrong[i]);
        CHECK_INT(load(&plain, false), CLI_FAILED);
        CHECK_HAS(said(), "not a table of places: unknown heading");
    }
    static const char *const wrong_last[] = {"name,wide\n", "name,note,wide\n", "name,x,note\n"};
    for (size_t i = 0; i < TSRI_COUNT(wrong_last); i++) {
        write_text(wrong_last[i]);
        CHECK_INT(load(&with_last, false), CLI_FAILED);
        CHECK_HAS(said(), "unknown heading");
    }
    write_text("name,high,note\n");
    CHECK_INT(load(&with_last, false), 0);
}

TEST(malformed_rows_are_refused_with_their_line)
{
    static const char *const wrong[] = {"b,1\n",    "b,1,2,3\n", "b,1,\n",         "b,1,x\n",
                                        "b,1,2x\n", "b\n",       "too_long,1,2\n", "\n"};
    char text[128];
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++) {
        snprintf(text, sizeof text, "name,wide,high\na,1,2\n%s", wrong[i]);
        write_text(text);
        CHECK_INT(load(&plain, false), CLI_FAILED);
        CHECK_HAS(said(), "places.csv:3: not a valid row");
        CHECK_INT(n_places, 1);
    }
    memset(text, '1', 80);
    snprintf(text + 80, sizeof text - 80, ",2\n");
    memcpy(text, "a,", 2);
    char all[256];
    snprintf(all, sizeof all, "name,wide,high\n%s", text);
    write_text(all);
    CHECK_INT(load(&plain, false), CLI_FAILED);
    CHECK_HAS(said(), ":2: not a valid row");
}

TEST(a_failed_write_is_told)
{
    FILE *out = fopen("/dev/full", "w");
    if (!out) SKIP("no /dev/full");
    tsri_columns_put(out, &plain, &places[0], 6);
    CHECK_INT(tsri_columns_close(out, "x.csv"), CLI_FAILED);
    CHECK_HAS(said(), "x.csv: ");
}

int main(void)
{
    said_init();
    tmpdir_init(&dir);
    snprintf(path, sizeof path, "%s/places.csv", dir.path);
    RUN(rows_come_back_below_one_heading);
    RUN(columns_may_have_any_order_and_be_missing);
    RUN(other_columns_are_not_continued);
    RUN(half_a_line_is_cut_off_only_to_append);
    RUN(a_missing_file_is_an_error_to_read);
    RUN(headings_that_are_not_ours_are_refused);
    RUN(malformed_rows_are_refused_with_their_line);
    RUN(a_failed_write_is_told);
    tmpdir_fini(&dir);
    return test_end();
}
