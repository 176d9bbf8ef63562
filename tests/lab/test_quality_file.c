/* test_quality_file.c - rows come back as they were written, and a file that was cut off goes on
 * where it was whole. */
#include "lab/quality.h"

#include "support/said.h"
#include "support/test.h"
#include "support/tmpdir.h"

#include <math.h>

static struct tmpdir dir;
static char path[4200];

static struct tsri_quality_row row_of(const char *id, double kl)
{
    struct tsri_quality_row r = {
        .set = "nq",
        .setting = {TSR_SELECT_QUERY, TSR_CONTEXT_PURE, 0.05, -0.3, false, {0.5, 1}, 2},
        .kl = kl,
        .exact = NAN,
        .f1 = NAN,
        .full_s = 2,
        .blend_s = 0.5,
        .same_answer = 0,
        .says_same = 1,
        .gate = {.moved = 0.25,
                 .changed = 1,
                 .mass = 0.5,
                 .entropy = NAN,
                 .margin = 0.75,
                 .n_chunks = 8,
                 .draft = 0.0625}};
    snprintf(r.id, sizeof r.id, "%s", id);
    return r;
}

TEST(rows_come_back_as_they_were_written)
{
    struct tsri_quality_rows rows = {0};
    struct tsri_quality_row two[] = {row_of("1", 0.125), row_of("2", 3)};
    struct tsri_question q = {.set = (char *)"nq", .id = (char *)"2"};
    two[1].setting.int8 = true;
    CHECK_INT(tsri_quality_load(&rows, path), 0); /* not there yet */
    CHECK_INT(tsri_quality_append(path, two, 2), 0);
    CHECK_INT(tsri_quality_append(path, two, 1), 0);
    CHECK_INT(tsri_quality_load(&rows, path), 0);
    CHECK_INT(rows.n, 3);
    CHECK(rows.items[1].kl == 3 && strcmp(rows.items[1].id, "2") == 0);
    CHECK(tsri_setting_same(&rows.items[0].setting, &two[0].setting));
    CHECK(tsri_setting_same(&rows.items[1].setting, &two[1].setting));
    CHECK(!tsri_setting_same(&rows.items[0].setting, &rows.items[1].setting));
    CHECK(isnan(rows.items[0].f1) && rows.items[0].gate.mass == 0.5 &&
          rows.items[0].gate.n_chunks == 8 && rows.items[0].gate.changed == 1 &&
          rows.items[0].gate.margin == 0.75 && rows.items[0].gate.ratio == 0.05 &&
          rows.items[0].gate.draft == 0.0625 && rows.items[0].same_answer == 0 &&
          rows.items[0].says_same == 1 && rows.items[0].blend_s == 0.5);
    CHECK(tsri_quality_has(&rows, &q));
    q.id = (char *)"3";
    CHECK(!tsri_quality_has(&rows, &q));
    tsri_quality_fini(&rows);
}

TEST(half_a_line_is_left_out_and_overwritten)
{
    struct tsri_quality_rows rows = {0};
    struct tsri_quality_row r = row_of("9", 1);
    FILE *out = fopen(path, "a");
    CHECK(out);
    fputs("nq,4,query,pu", out);
    fclose(out);
    CHECK_INT(tsri_quality_load(&rows, path), 0);
    CHECK_INT(rows.n, 3);
    tsri_quality_fini(&rows);
    CHECK_INT(tsri_quality_append(path, &r, 1), 0);
    CHECK_INT(tsri_quality_load(&rows, path), 0);
    CHECK(rows.n == 4 && strcmp(rows.items[3].id, "9") == 0);
    tsri_quality_fini(&rows);
}

TEST(a_table_from_before_a_column_was_added_is_read)
{
    struct tsri_quality_rows rows = {0};
    FILE *out = fopen(path, "w");
    CHECK(out);
    fputs("set,id,selector,context,stored,ratio,bias,kl\n"
          "nq,1,query,same,plain,0.05,0,0.5\nnq,1,none,same,plain,0,0,0.7\n",
          out);
    fclose(out);
    CHECK_INT(tsri_quality_load(&rows, path), 0);
    CHECK(rows.n == 2 && rows.items[0].kl == 0.5 && isnan(rows.items[0].f1));
    const double *layers = rows.items[0].setting.layers;
    CHECK(layers[0] == 0 && layers[1] == 1); /* as it was then */
    CHECK(rows.items[1].setting.layers[1] == 0);
    CHECK(rows.items[0].setting.n_rounds == 0);
    tsri_quality_fini(&rows);
}

TEST(rows_do_not_go_below_a_heading_without_their_columns)
{
    struct tsri_quality_rows rows = {0};
    struct tsri_quality_row r = row_of("9", 1);
    CHECK_INT(tsri_quality_append(path, &r, 1), CLI_FAILED);
    CHECK_HAS(said(), "has other columns than this version writes");
    CHECK_INT(tsri_quality_load(&rows, path), 0);
    CHECK_INT(rows.n, 2);
    tsri_quality_fini(&rows);
}

TEST(other_files_are_refused)
{
    struct tsri_quality_rows rows = {0};
    FILE *out = fopen(path, "a");
    CHECK(out);
    fputs("nq,4,query,pure,plain,0.05,x,1\n", out);
    fclose(out);
    CHECK_INT(tsri_quality_load(&rows, path), CLI_FAILED);
    CHECK_HAS(said(), ":4: not a valid row");
    tsri_quality_fini(&rows);
    out = fopen(path, "w");
    CHECK(out);
    fputs("a,b\n1,2\n", out);
    fclose(out);
    CHECK_INT(tsri_quality_load(&rows, path), CLI_FAILED);
    CHECK_HAS(said(), "not a table");
    tsri_quality_fini(&rows);
}

int main(void)
{
    said_init();
    tmpdir_init(&dir);
    snprintf(path, sizeof path, "%s/rows.csv", dir.path);
    RUN(rows_come_back_as_they_were_written);
    RUN(half_a_line_is_left_out_and_overwritten);
    RUN(a_table_from_before_a_column_was_added_is_read);
    RUN(rows_do_not_go_below_a_heading_without_their_columns);
    RUN(other_files_are_refused);
    tmpdir_fini(&dir);
    return test_end();
}
