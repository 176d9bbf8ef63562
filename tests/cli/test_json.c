/* test_json.c - JSON from files: what is too deep, too large or ambiguous is refused with its place. */
#include "cli/json.h"

#include "support/test.h"
#include "support/tmpdir.h"

static struct tmpdir dir;
static char path[300];

static void put(const char *text, size_t bytes)
{
    FILE *out = fopen(path, "w");
    CHECK(out && fwrite(text, 1, bytes, out) == bytes);
    fclose(out);
}

/* {"a": [[...]]} with so many levels. */
static json_t *nested(size_t depth)
{
    char *text = malloc(2 * depth + 6);
    CHECK(text);
    size_t n = (size_t)sprintf(text, "{\"a\":");
    memset(text + n, '[', depth - 1);
    memset(text + n + depth - 1, ']', depth - 1);
    text[n + 2 * (depth - 1)] = '}';
    json_t *v = tsri_json_parse(text, n + 2 * (depth - 1) + 1, "deep", 1);
    free(text);
    return v;
}

TEST(nesting_has_a_limit)
{
    json_decref(nested(100));
    CHECK(!nested(3000));
    CHECK_HAS(tsr_errmsg(), "deep:1:");
    CHECK_HAS(tsr_errmsg(), "depth");
    CHECK(!nested(1 << 20));
}

TEST(a_member_that_is_there_twice_is_refused_at_any_depth)
{
    static const char *const twice[] = {"{\"a\":1,\"a\":1}", "{\"b\":[{\"a\":1,\"\\u0061\":2}]}"};
    for (size_t i = 0; i < TSRI_COUNT(twice); i++) {
        CHECK(!tsri_json_parse(twice[i], strlen(twice[i]), "twice", 7));
        CHECK_HAS(tsr_errmsg(), "twice:7:");
        CHECK_HAS(tsr_errmsg(), "duplicate");
    }
}

TEST(only_objects_are_taken)
{
    static const char *const others[] = {"",      "[1]",   "1",   "null",
                                         "\"a\"", "{} {}", "{}x", "{\"a\":NaN}"};
    for (size_t i = 0; i < TSRI_COUNT(others); i++)
        CHECK(!tsri_json_parse(others[i], strlen(others[i]), "other", 1));
    CHECK(!tsri_json_parse("{\"a\0\":1}", 8, "zero", 1));
}

TEST(a_file_has_a_limit_and_mistakes_have_a_line)
{
    put("{\"a\":1}", 7);
    json_t *v = tsri_json_load(path, 7);
    CHECK(v && json_integer_value(json_object_get(v, "a")) == 1);
    json_decref(v);
    CHECK(!tsri_json_load(path, 6));
    CHECK_HAS(tsr_errmsg(), "/j:1: more than 6 bytes");
    put("{\n\"a\":\nx}", 9);
    CHECK(!tsri_json_load(path, 100));
    CHECK_HAS(tsr_errmsg(), "/j:3:1: ");
    CHECK(!tsri_json_load("/nowhere", 100));
    CHECK_HAS(tsr_errmsg(), "/nowhere: No such file");
    CHECK(!tsri_json_load(dir.path, 100));
}

TEST(lines_are_read_one_by_one_up_to_their_limit)
{
    static const char text[] = "\n{\"a\":1}\n \t\r\n{\"a\":2}";
    struct tsri_json_lines l;
    json_t *v;
    put(text, sizeof text - 1);
    CHECK_INT(tsri_json_lines_open(&l, path, 8), 0); /* with the end of the line */
    for (int i = 1; i <= 2; i++) {
        CHECK_INT(tsri_json_lines_next(&l, &v), 1);
        CHECK_INT(json_integer_value(json_object_get(v, "a")), i);
        CHECK_INT(l.number, 2 * i);
        json_decref(v);
    }
    CHECK_INT(tsri_json_lines_next(&l, &v), 0);
    tsri_json_lines_close(&l);
    CHECK_INT(tsri_json_lines_open(&l, path, 7), 0);
    CHECK_INT(tsri_json_lines_next(&l, &v), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "/j:2: more than 7 bytes");
    tsri_json_lines_close(&l);
    CHECK_INT(tsri_json_lines_open(&l, "/nowhere", 7), TSR_EIO);
    tsri_json_lines_close(&l);
}

TEST(unknown_members_are_found)
{
    static const char *const names[] = {"a", "b"};
    json_t *v = tsri_json_parse("{\"b\":1,\"c\":2}", 13, "members", 1);
    CHECK(v);
    CHECK_STR(tsri_json_unknown(v, names, 2), "c");
    json_object_del(v, "c");
    CHECK(!tsri_json_unknown(v, names, 2));
    json_decref(v);
}

int main(void)
{
    tmpdir_init(&dir);
    snprintf(path, sizeof path, "%s/j", dir.path);
    RUN(nesting_has_a_limit);
    RUN(a_member_that_is_there_twice_is_refused_at_any_depth);
    RUN(only_objects_are_taken);
    RUN(a_file_has_a_limit_and_mistakes_have_a_line);
    RUN(lines_are_read_one_by_one_up_to_their_limit);
    RUN(unknown_members_are_found);
    tmpdir_fini(&dir);
    return test_end();
}
