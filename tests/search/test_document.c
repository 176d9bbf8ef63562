/* Files of all kinds as text. */
#include "search/inside.h"

#include "folder_kit.h"
#include "support/test.h"

static struct tmpdir tmp;

static struct tsri_read got(const char *name, const char *data, size_t bytes)
{
    struct tsri_read r;
    folder_put(tmp.path, name, data, bytes);
    int fd = tsri_file_below(tmp.path, name);
    CHECK(fd >= 0);
    CHECK_INT(tsri_read_file(&r, fd, name), 0);
    close(fd);
    return r;
}

TEST(kinds_are_told_apart)
{
    CHECK_INT(tsri_kind_of("a.txt", "hello", 5), TSRI_KIND_TEXT);
    CHECK_INT(tsri_kind_of("a.md", "<p>", 3), TSRI_KIND_TEXT);
    CHECK_INT(tsri_kind_of("a.HTM", "", 0), TSRI_KIND_HTML);
    CHECK_INT(tsri_kind_of("a", "<!DOCTYPE HTML>", 15), TSRI_KIND_HTML);
    CHECK_INT(tsri_kind_of("a.txt", "%PDF-1.7", 8), TSRI_KIND_PDF);
    CHECK_INT(tsri_kind_of("html", "x", 1), TSRI_KIND_TEXT);
}

TEST(text_is_tidied)
{
    struct tsri_read r = got("a.txt", "one\r\ntwo\n\n", 10);
    CHECK(!r.why[0]);
    CHECK_STR(r.text.data, "one\ntwo");
    tsri_read_fini(&r);
}

TEST(html_is_read_as_its_text)
{
    struct tsri_read r = got("a.html", "<p>a<p>b", 8);
    if (r.why[0] && r.passing) SKIP("libxml2 is not installed");
    CHECK_STR(r.text.data, "a\n\nb");
    tsri_read_fini(&r);
}

TEST(what_cannot_be_read_says_why)
{
    struct tsri_read r = got("a", "\0\1", 2);
    CHECK_STR(r.why, "is binary");
    CHECK(!r.passing && !r.text.data);
    r = got("a", "", 0);
    CHECK_STR(r.why, "is empty");
    r = got("a.html", "<script>x</script>", 18);
    if (!r.passing) CHECK_STR(r.why, "is empty");
    setenv("PATH", "/nowhere", 1);
    r = got("a.pdf", "%PDF-1.4", 8);
    CHECK_HAS(r.why, "pdftotext");
    CHECK(r.passing); /* it may be installed */
}

TEST(large_files_are_refused)
{
    size_t bytes = TSRI_SEARCH_FILE_BYTES_MAX + 1;
    char *data = malloc(bytes);
    memset(data, 'x', bytes);
    struct tsri_read r = got("a", data, bytes);
    CHECK_STR(r.why, "is larger than 16 MB");
    free(data);
}

TEST(the_hash_is_of_the_file)
{
    struct tsri_read a = got("a", "x", 1), b = got("b", "x", 1), c = got("c", "y", 1);
    CHECK(a.hash[0] == b.hash[0] && a.hash[1] == b.hash[1] && a.hash[0] != c.hash[0]);
    tsri_read_fini(&a), tsri_read_fini(&b), tsri_read_fini(&c);
}

int main(void)
{
    tmpdir_init(&tmp);
    RUN(kinds_are_told_apart);
    RUN(text_is_tidied);
    RUN(html_is_read_as_its_text);
    RUN(what_cannot_be_read_says_why);
    RUN(large_files_are_refused);
    RUN(the_hash_is_of_the_file);
    tmpdir_fini(&tmp);
    return test_end();
}
