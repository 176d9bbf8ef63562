/* Pages as text. */
#include "search/inside.h"

#include "support/test.h"

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

TEST(a_page_that_takes_too_long_is_refused)
{
    struct tsri_prose t = {0};
    size_t room = 8 << 20, n = 3;
    char *page = malloc(room);
    CHECK(page != NULL);
    memcpy(page, "<p ", 4);
    for (unsigned i = 0; n + 16 < room; i++)
        n += (size_t)snprintf(page + n, room - n, "a%u=1 ", i);
    int err = tsri_html_text(page, n, &t);
    free(page);
    tsri_prose_fini(&t);
    if (err == TSR_EUNSUP) SKIP("libxml2 is not installed");
    CHECK_INT(err, TSR_ERANGE);
}

int main(void)
{
    RUN(blocks_are_paragraphs_and_spaces_collapse);
    RUN(scripts_and_styles_are_dropped);
    RUN(entities_are_decoded);
    RUN(preformatted_text_keeps_its_lines);
    RUN(utf8_is_taken_for_what_it_is);
    RUN(broken_markup_gives_what_it_can);
    RUN(deep_nesting_ends);
    RUN(a_page_that_takes_too_long_is_refused);
    return test_end();
}
