/* Pages as text. */
#include "search/inside.h"

#include "support/test.h"

#include <time.h>

static void reads(const char *page, const char *text)
{
    struct tsri_prose t = {0};
    int err = tsri_html_text(page, strlen(page), &t);
    if (err == TSR_EUNSUP) SKIP("libxml2 is not installed");
    CHECK_INT(err, 0);
    CHECK_STR(t.data, text);
    tsri_prose_fini(&t);
}

TEST(blocks_are_paragraphs_and_spaces_collapse)
{
    reads(
        "<html><head><title>Harbor</title></head><body><h1>The\n  ferry</h1><p>It sails <b>at</b> "
        "six.</p><p>Daily.</p></body></html>",
        "Harbor\n\nThe ferry\n\nIt sails at six.\n\nDaily.");
    reads("<ul><li>one<li>two</ul>a<br>b", "one\ntwo\n\na\nb");
    reads("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>", "a b\nc");
}

TEST(scripts_and_styles_are_dropped)
{
    reads("<p>a<script>alert('x')</script><style>p{}</style><!-- no --><template>t</template>b</p>",
          "ab");
}

TEST(entities_are_decoded)
{
    reads("<p>caf&eacute; &lt;b&gt; &#8364; &amp;amp;</p>", "caf\xC3\xA9 <b> \xE2\x82\xAC &amp;");
}

TEST(preformatted_text_keeps_its_lines)
{
    reads("<p>x</p><pre>a  b\n c</pre>", "x\n\na  b\n c");
}

TEST(utf8_is_taken_for_what_it_is)
{
    reads("<meta charset=iso-8859-1><p>caf\xC3\xA9", "caf\xC3\xA9");
    reads("<meta charset=iso-8859-1><p>caf\xE9", "caf\xC3\xA9");
    reads("<meta charset=koi8-r><p>\xC1", "\xD0\xB0");
}

TEST(broken_text_becomes_text)
{
    reads("\xEF\xBB\xBF<p>a &&\x92\x92 b", "a &&\xEF\xBF\xBD\xEF\xBF\xBD b");
    reads("<meta charset=utf-8><p>a\xFF", "a\xEF\xBF\xBD");
}

TEST(broken_markup_gives_what_it_can)
{
    reads("<p>a<div>b</p></i></table>c", "a\n\nbc");
    reads("", "");
}

TEST(deep_nesting_ends)
{
    struct tsri_prose page = {0}, t = {0};
    for (int i = 0; i < 20000; i++)
        CHECK_INT(tsri_prose_add(&page, "<div>x", 6), 0);
    int err = tsri_html_text(page.data, page.bytes, &t);
    if (err == TSR_EUNSUP) SKIP("libxml2 is not installed");
    CHECK(err == 0 || err == TSR_EIO);
    tsri_prose_fini(&page);
    tsri_prose_fini(&t);
}

/* One tag with so many attributes that the page has so many bytes; the result, and the processor's
 * time. */
static int read_attributes(size_t bytes, double *busy_s)
{
    struct tsri_prose t = {0};
    struct timespec begin, end;
    char *page = malloc(bytes);
    size_t n = 3;
    CHECK(page != NULL);
    memcpy(page, "<p ", 4);
    for (unsigned i = 0; n + 16 < bytes; i++)
        n += (size_t)snprintf(page + n, bytes - n, "a%u=1 ", i);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    int err = tsri_html_text(page, n, &t);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    *busy_s = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    free(page);
    tsri_prose_fini(&t);
    return err;
}

TEST(a_page_that_takes_too_long_is_refused)
{
    double busy_s;
    int err = read_attributes(8 << 20, &busy_s);
    if (err == TSR_EUNSUP) SKIP("libxml2 is not installed");
    CHECK_INT(err, TSR_ERANGE);
    CHECK(busy_s < 6);
}

/* A tag that is read within the limit of 3 s is not what takes the time afterwards. */
TEST(what_is_read_in_time_is_written_in_time)
{
    double busy_s;
    int err = read_attributes(270000, &busy_s);
    if (err == TSR_EUNSUP) SKIP("libxml2 is not installed");
    CHECK(err == 0 || err == TSR_ERANGE);
    CHECK(busy_s < 6);
}

int main(void)
{
    RUN(blocks_are_paragraphs_and_spaces_collapse);
    RUN(scripts_and_styles_are_dropped);
    RUN(entities_are_decoded);
    RUN(preformatted_text_keeps_its_lines);
    RUN(utf8_is_taken_for_what_it_is);
    RUN(broken_text_becomes_text);
    RUN(broken_markup_gives_what_it_can);
    RUN(deep_nesting_ends);
    RUN(a_page_that_takes_too_long_is_refused);
    RUN(what_is_read_in_time_is_written_in_time);
    return test_end();
}
