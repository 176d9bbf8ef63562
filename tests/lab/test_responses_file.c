/* test_responses_file.c - answers come back as they were written, and a table that was cut off goes
 * on where it was whole. */
#include "lab/answers.h"

#include "support/said.h"
#include "support/test.h"
#include "support/tmpdir.h"

#include <math.h>

static struct tmpdir dir;
static char path[4200];

static struct tsri_response row_of(const char *id, const char *method, const char *text)
{
    struct tsri_response r = {.set = "facts",
                              .n_tokens = 500,
                              .n_computed = 20,
                              .seconds = 0.25,
                              .f1 = 0.5,
                              .right = 1,
                              .same_words = 0,
                              .says_same = 1,
                              .kl = 0.125,
                              .sure = NAN,
                              .rounds = 2,
                              .reasons = TSR_BLEND_FULL,
                              .gate = {.moved = 0.5, .n_chunks = 7, .low = 3, .draft = 0.375}};
    snprintf(r.id, sizeof r.id, "%s", id);
    snprintf(r.method, sizeof r.method, "%s", method);
    snprintf(r.text, sizeof r.text, "%s", text);
    return r;
}

static void add_text(const char *text)
{
    FILE *out = fopen(path, "a");
    CHECK(out);
    fputs(text, out);
    fclose(out);
}

TEST(rows_come_back_as_they_were_written)
{
    struct tsri_responses rows = {.model = "tiny"}, back = {.n = 0};
    struct tsri_response two[] = {row_of("1", "prefill", "It says \"9:40\", they\nsaid\xff."),
                                  row_of("1", "tessera@0.05", "")};
    CHECK_INT(tsri_responses_load(&back, path, true), 0); /* not there yet */
    CHECK_INT(tsri_responses_append(&rows, path, two, 2), 0);
    CHECK_INT(tsri_responses_load(&back, path, true), 0);
    CHECK_INT(back.n, 2);
    CHECK_STR(back.model, "tiny");
    CHECK_STR(back.items[0].text, "It says \"9:40\", they said?."); /* one line of UTF-8 */
    const struct tsri_response *r = tsri_responses_find(&back, "facts", "1", "tessera@0.05");
    CHECK(r == &back.items[1] && r->n_computed == 20 && r->seconds == 0.25 && r->kl == 0.125);
    CHECK(isnan(r->sure) && r->rounds == 2 && r->reasons == TSR_BLEND_FULL && r->right == 1);
    CHECK(r->same_words == 0 && r->says_same == 1);
    CHECK(r->gate.moved == 0.5 && r->gate.n_chunks == 7 && r->gate.low == 3);
    CHECK(r->gate.draft == 0.375);
    CHECK(!tsri_responses_find(&back, "facts", "2", "prefill"));
    CHECK(!tsri_responses_find(&back, "nq", "1", "prefill"));
    tsri_responses_fini(&back);
}

TEST(half_a_line_is_left_out_and_overwritten)
{
    struct tsri_responses rows = {.model = "tiny"}, back = {.n = 0};
    struct tsri_response one = row_of("2", "reuse", "x");
    add_text("tiny,facts,2,reu");
    CHECK_INT(tsri_responses_load(&back, path, false), 0); /* the run may be on */
    CHECK_INT(back.n, 2);
    tsri_responses_fini(&back);
    CHECK_INT(tsri_responses_load(&back, path, true), 0);
    tsri_responses_fini(&back);
    CHECK_INT(tsri_responses_append(&rows, path, &one, 1), 0);
    CHECK_INT(tsri_responses_load(&back, path, true), 0);
    CHECK(back.n == 3 && strcmp(back.items[2].id, "2") == 0);
    tsri_responses_fini(&back);
}

TEST(other_tables_are_refused)
{
    struct tsri_responses back = {.model = "other"};
    CHECK_INT(tsri_responses_load(&back, path, false), CLI_FAILED);
    CHECK_HAS(said(), ":2: of model tiny, not other");
    tsri_responses_fini(&back);
    add_text("tiny,facts,3,reuse,1,2,3\n");
    CHECK_INT(tsri_responses_load(&back, path, false), CLI_FAILED);
    CHECK_HAS(said(), ":5: not a valid row");
    tsri_responses_fini(&back);
    snprintf(path, sizeof path, "%s/other.csv", dir.path);
    CHECK_INT(tsri_responses_load(&back, path, false), CLI_FAILED);
    CHECK_HAS(said(), "No such file");
    add_text("a,b\n1,2\n");
    CHECK_INT(tsri_responses_load(&back, path, true), CLI_FAILED);
    CHECK_HAS(said(), "not a table of answers");
}

TEST(a_table_from_before_a_column_was_added_is_read_and_not_continued)
{
    struct tsri_responses rows = {.model = "tiny"}, back = {.n = 0};
    struct tsri_response one = row_of("4", "reuse", "x");
    snprintf(path, sizeof path, "%s/old.csv", dir.path);
    add_text(
        "model,set,id,method,f1,tokens,reasons,answer\ntiny,facts,3,reuse,0.5,80,32,\"a, b\"\n");
    CHECK_INT(tsri_responses_load(&back, path, true), 0);
    CHECK(back.n == 1 && back.items[0].f1 == 0.5 && back.items[0].n_tokens == 80);
    CHECK(back.items[0].reasons == TSR_BLEND_FULL && isnan(back.items[0].gate.worst));
    CHECK(isnan(back.items[0].kl) && isnan(back.items[0].gate.draft));
    CHECK_STR(back.items[0].text, "a, b");
    tsri_responses_fini(&back);
    CHECK_INT(tsri_responses_append(&rows, path, &one, 1), CLI_FAILED);
    CHECK_HAS(said(), "has other columns than this version writes");
    CHECK_INT(tsri_responses_load(&back, path, true), 0);
    CHECK_INT(back.n, 1);
    tsri_responses_fini(&back);
}

TEST(headings_that_are_not_ours_are_refused)
{
    static const char *const wrong[] = {
        "model,set,id,method,f1\n", "model,set,id,method,g,answer\n",
        "model,set,id,method,f1,answer,f1\n", "set,id,model,method,f1,answer\n"};
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++) {
        struct tsri_responses back = {.n = 0};
        snprintf(path, sizeof path, "%s/wrong%zu.csv", dir.path, i);
        add_text(wrong[i]);
        CHECK_INT(tsri_responses_load(&back, path, false), CLI_FAILED);
        CHECK_HAS(said(), "not a table of answers");
    }
}

int main(void)
{
    said_init();
    tmpdir_init(&dir);
    snprintf(path, sizeof path, "%s/answers.csv", dir.path);
    RUN(rows_come_back_as_they_were_written);
    RUN(half_a_line_is_left_out_and_overwritten);
    RUN(other_tables_are_refused);
    RUN(a_table_from_before_a_column_was_added_is_read_and_not_continued);
    RUN(headings_that_are_not_ours_are_refused);
    tmpdir_fini(&dir);
    return test_end();
}
