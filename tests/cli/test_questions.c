/* test_questions.c - questions are read as they stand, and what is wrong is named with its line. */
#include "cli/questions.c"

#include "support/cli_stub.h"
#include "support/test.h"
#include "support/tmpdir.h"

static int parse(struct tsri_question *q, const char *text)
{
    return tsri_question_parse(q, text, strlen(text), "q", 7);
}

TEST(a_question_has_what_its_line_says)
{
    struct tsri_question q;
    CHECK_INT(
        parse(&q,
              "{\"set\":\"nq\",\"id\":\"3\",\"documents\":[\"one \\\"1\\\"\\n\",\"zw\u00f6lf\"],"
              "\"question\":\"why?\",\"answers\":[\"so\",\"thus\"],\"system\":\"S\"}\n"),
        0);
    CHECK(strcmp(q.set, "nq") == 0 && strcmp(q.id, "3") == 0 && strcmp(q.system, "S") == 0);
    CHECK(q.n_documents == 2 && strcmp(q.documents[0], "one \"1\"\n") == 0);
    CHECK(strcmp(q.documents[1], "zw\u00f6lf") == 0);
    CHECK(q.n_answers == 2 && strcmp(q.answers[1], "thus") == 0);
    tsri_question_fini(&q);
}

TEST(a_plain_prompt_says_so)
{
    struct tsri_question q;
    CHECK_INT(parse(&q, "{\"id\":\"1\",\"plain\":true,\"system\":\"S\",\"documents\":[\"d\"],"
                        "\"question\":\"x\"}"),
              0);
    CHECK(q.plain);
    tsri_question_fini(&q);
    CHECK_INT(parse(&q, "{\"id\":\"1\",\"plain\":false,\"documents\":[\"d\"],\"question\":\"x\"}"),
              0);
    CHECK(!q.plain);
    tsri_question_fini(&q);
}

TEST(what_is_wrong_is_named_and_nothing_is_kept)
{
    static const struct {
        const char *line, *message;
    } bad[] = {
        {"", "a line is one JSON object"},
        {"[1]", "a line is one JSON object"},
        {"{\"id\":\"1\"", "q:7: "},
        {"{\"id\":\"1\",\"documents\":[\"d\"]}", "id, documents and question are needed"},
        {"{\"id\":\"1\",\"documents\":[],\"question\":\"x\"}", "are needed"},
        {"{\"id\":\"1\",\"documents\":\"d\",\"question\":\"x\"}", "lists of texts"},
        {"{\"id\":\"1\",\"documents\":[[\"d\"]],\"question\":\"x\"}", "256 texts"},
        {"{\"id\":{},\"documents\":[\"d\"],\"question\":\"x\"}", "are texts"},
        {"{\"id\":\"1\",\"id\":\"2\",\"documents\":[\"d\"],\"question\":\"x\"}", "once each"},
        {"{\"id\":\"1\",\"docs\":[\"d\"],\"question\":\"x\"}", "a member that is none of"},
        {"{\"id\":\"1,2\",\"documents\":[\"d\"],\"question\":\"x\"}", "without commas"},
        {"{\"id\":\"1\",\"plain\":\"yes\",\"documents\":[\"d\"],\"question\":\"x\"}",
         "plain is true or false"},
        {"{\"id\":\"1\",\"plain\":true,\"documents\":[\"d\"],\"question\":\"x\"}",
         "needs its system text"},
    };
    struct tsri_question q;
    for (size_t i = 0; i < TSRI_COUNT(bad); i++) {
        CHECK_INT(parse(&q, bad[i].line), CLI_FAILED);
        CHECK_HAS(said, bad[i].message);
        CHECK(!q.documents && !q.question && !q.id);
    }
}

TEST(a_file_is_read_line_by_line)
{
    struct tmpdir dir;
    struct tsri_questions f;
    char path[4200];
    tmpdir_init(&dir);
    snprintf(path, sizeof path, "%s/q", dir.path);
    FILE *out = fopen(path, "w");
    CHECK(out);
    fputs("\n{\"id\":\"1\",\"documents\":[\"d\"],\"question\":\"x\"}\n\n"
          "{\"id\":\"2\",\"documents\":[\"d\"],\"question\":\"y\"}",
          out);
    fclose(out);
    CHECK_INT(tsri_questions_load(&f, path), 0);
    CHECK(f.n == 2 && strcmp(f.items[1].question, "y") == 0);
    CHECK(strcmp(f.items[0].set, "prompts") == 0);
    tsri_questions_fini(&f);
    out = fopen(path, "a");
    CHECK(out);
    fputs("\n{\n", out);
    fclose(out);
    CHECK_INT(tsri_questions_load(&f, path), CLI_FAILED);
    CHECK_HAS(said, "/q:5: ");
    CHECK_INT(tsri_questions_load(&f, "/nowhere"), CLI_FAILED);
    tmpdir_fini(&dir);
}

int main(void)
{
    RUN(a_question_has_what_its_line_says);
    RUN(a_plain_prompt_says_so);
    RUN(what_is_wrong_is_named_and_nothing_is_kept);
    RUN(a_file_is_read_line_by_line);
    return test_end();
}
