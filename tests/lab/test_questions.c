/* test_questions.c - questions are read as they stand, and what is wrong is named with its line. */
#include "lab/quality.h"

#include "support/said.h"
#include "support/test.h"
#include "support/tmpdir.h"

static struct tmpdir dir;
static char path[300];

/* The questions of a file with this text. */
static int parse(struct tsri_questions *f, const char *text)
{
    FILE *out = fopen(path, "w");
    CHECK(out);
    fputs(text, out);
    fclose(out);
    return tsri_questions_load(f, path);
}

TEST(a_question_has_what_its_line_says)
{
    struct tsri_questions f;
    CHECK_INT(
        parse(&f,
              "{\"set\":\"nq\",\"id\":\"3\",\"documents\":[\"one \\\"1\\\"\\n\",\"zw\u00f6lf\"],"
              "\"question\":\"why?\",\"answers\":[\"so\",\"thus\"],\"system\":\"S\"}\n"),
        0);
    const struct tsri_question *q = &f.items[0];
    CHECK(strcmp(q->set, "nq") == 0 && strcmp(q->id, "3") == 0 && strcmp(q->system, "S") == 0);
    CHECK(q->n_documents == 2 && strcmp(q->documents[0], "one \"1\"\n") == 0);
    CHECK(strcmp(q->documents[1], "zw\u00f6lf") == 0);
    CHECK(q->n_answers == 2 && strcmp(q->answers[1], "thus") == 0);
    tsri_questions_fini(&f);
}

TEST(a_plain_prompt_says_so)
{
    struct tsri_questions f;
    CHECK_INT(parse(&f, "{\"id\":\"1\",\"plain\":true,\"system\":\"S\",\"documents\":[\"d\"],"
                        "\"question\":\"x\"}\n"
                        "{\"id\":\"1\",\"plain\":false,\"documents\":[\"d\"],\"question\":\"x\"}"),
              0);
    CHECK(f.n == 2 && f.items[0].plain && !f.items[1].plain);
    tsri_questions_fini(&f);
}

TEST(what_is_wrong_is_named_and_nothing_is_kept)
{
    static const struct {
        const char *line, *message;
    } bad[] = {
        {"", "no questions found"},
        {"[1]", "expected a JSON object"},
        {"\n\n{\"id\":\"1\"", "/q:3:9: "},
        {"{\"id\":\"1\",\"documents\":[\"d\"]}", "id, documents and question are required"},
        {"{\"id\":\"1\",\"documents\":[],\"question\":\"x\"}", "are required"},
        {"{\"id\":\"1\",\"documents\":\"d\",\"question\":\"x\"}",
         "documents: expected a list of at most 256 texts"},
        {"{\"id\":\"1\",\"documents\":[[\"d\"]],\"question\":\"x\"}", "documents: expected a text"},
        {"{\"id\":{},\"documents\":[\"d\"],\"question\":\"x\"}", "id: expected a text"},
        {"{\"id\":\"1\",\"id\":\"2\",\"documents\":[\"d\"],\"question\":\"x\"}",
         "duplicate object key"},
        {"{\"id\":\"1\",\"docs\":[\"d\"],\"question\":\"x\"}", "unknown member docs"},
        {"{\"id\":\"1,2\",\"documents\":[\"d\"],\"question\":\"x\"}", "cannot have commas"},
        {"{\"id\":\"1\",\"plain\":\"yes\",\"documents\":[\"d\"],\"question\":\"x\"}",
         "plain: expected true or false"},
        {"{\"id\":\"1\",\"documents\":[\"d\\u0000e\"],\"question\":\"x\"}",
         "documents: expected a text"},
        {"{\"id\":\"1\",\"plain\":true,\"documents\":[\"d\"],\"question\":\"x\"}",
         "needs a system text"},
    };
    struct tsri_questions f;
    for (size_t i = 0; i < TSRI_COUNT(bad); i++) {
        CHECK_INT(parse(&f, bad[i].line), CLI_FAILED);
        CHECK_HAS(said(), bad[i].message);
        CHECK(f.n == 0 && !f.items);
    }
}

TEST(a_file_is_read_line_by_line)
{
    struct tsri_questions f;
    CHECK_INT(parse(&f, "\n{\"id\":\"1\",\"documents\":[\"d\"],\"question\":\"x\"}\n\n"
                        "{\"id\":\"2\",\"documents\":[\"d\"],\"question\":\"y\"}"),
              0);
    CHECK(f.n == 2 && strcmp(f.items[1].question, "y") == 0);
    CHECK(strcmp(f.items[0].set, "prompts") == 0);
    tsri_questions_fini(&f);
    CHECK_INT(tsri_questions_load(&f, "/nowhere"), CLI_FAILED);
}

int main(void)
{
    said_init();
    tmpdir_init(&dir);
    snprintf(path, sizeof path, "%s/q", dir.path);
    RUN(a_question_has_what_its_line_says);
    RUN(a_plain_prompt_says_so);
    RUN(what_is_wrong_is_named_and_nothing_is_kept);
    RUN(a_file_is_read_line_by_line);
    tmpdir_fini(&dir);
    return test_end();
}
