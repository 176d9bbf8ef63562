/* What servers write: lists as SeaweedFS, MinIO and Amazon spell them, and what nobody should. */
#include "support/test.h"
#include "s3/s3.h"

static char names[16][TSRI_S3_NAME_BYTES];
static uint64_t sizes[16];
static int n_objects;

static void keep(void *arg, const char *name, uint64_t bytes)
{
    (void)arg;
    if (n_objects == 16) return;
    snprintf(names[n_objects], sizeof names[0], "%s", name);
    sizes[n_objects++] = bytes;
}

static char token[TSRI_S3_TOKEN_BYTES];
static struct tsri_s3_expat expat;

static int read_list(const char *text)
{
    n_objects = 0;
    return tsri_s3_read_list(&expat, text, strlen(text), keep, NULL, token);
}

TEST(a_list_is_read_name_by_name)
{
    CHECK_INT(
        read_list("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                  "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
                  "<Name>b</Name><Prefix>t/</Prefix><MaxKeys>2</MaxKeys>"
                  "<IsTruncated>false</IsTruncated>"
                  "<Contents><Key>t/one</Key><ETag>&#34;82&#34;</ETag><Size>20000000</Size>"
                  "<Owner><ID>x</ID><DisplayName>Key</DisplayName></Owner></Contents>\n"
                  "  <Contents>\n <Size> 7 </Size>\n <Key>t/a&amp;b&lt;&#x2f;&gt;&quot;</Key>\n"
                  "</Contents><KeyCount>2</KeyCount></ListBucketResult>\n"),
        2);
    CHECK_STR(names[0], "t/one");
    CHECK_INT(sizes[0], 20000000);
    CHECK_STR(names[1], "t/a&b</>\"");
    CHECK_INT(sizes[1], 7);
    CHECK_STR(token, "");
    CHECK_INT(read_list("<ListBucketResult/>"), 0);
    CHECK_INT(read_list("<ListBucketResult><Contents/></ListBucketResult>"), 0);
}

TEST(a_page_that_is_not_the_last_tells_how_to_go_on)
{
    CHECK_INT(read_list("<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>"
                        "a+b/c=</NextContinuationToken></ListBucketResult>"),
              0);
    CHECK_STR(token, "a+b/c=");
    CHECK_INT(read_list("<ListBucketResult><IsTruncated>false</IsTruncated><NextContinuationToken>"
                        "old</NextContinuationToken></ListBucketResult>"),
              0);
    CHECK_STR(token, "");
    /* One that cannot be gone on with must not look complete: the index would forget the rest. */
    CHECK_INT(read_list("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"),
              TSR_ECORRUPT);
}

TEST(a_list_that_breaks_off_is_no_list)
{
    static const char whole[] =
        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>t/one</Key>"
        "<Size>1</Size></Contents></ListBucketResult>";
    CHECK_INT(read_list(whole), 1);
    for (size_t n = 0; n + 1 < sizeof whole; n++)
        CHECK_INT(tsri_s3_read_list(&expat, whole, n, keep, NULL, token), TSR_ECORRUPT);
    CHECK_INT(read_list("<html><body>It works!</body></html>"), TSR_ECORRUPT);
    CHECK_INT(read_list("<Error><Code>NoSuchBucket</Code></Error>"), TSR_ECORRUPT);
    CHECK_INT(read_list("<!DOCTYPE x [<!ENTITY a \"b\">]><ListBucketResult></ListBucketResult>"),
              TSR_ECORRUPT);
}

TEST(what_is_not_well_formed_is_no_list)
{
    static const char *const wrong[] = {
        "<ListBucketResult><Contents><Key>t/&nope;</Key></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>t/&#0;</Key></Contents></ListBucketResult>",
        "<ListBucketResult></ListBucketResult><ListBucketResult></ListBucketResult>",
        "<ListBucketResult><Contents></ListBucketResult>",
        "<List><ListBucketResult></ListBucketResult></List>",
        "<ListBucketResult>\xff</ListBucketResult>",
    };
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++)
        CHECK_INT(read_list(wrong[i]), TSR_ECORRUPT);
    CHECK_INT(n_objects, 0);
}

TEST(entities_of_its_own_are_refused_before_they_grow)
{
    static const char laughs[] =
        "<!DOCTYPE x [<!ENTITY a \"aaaaaaaaaaaaaaaa\">"
        "<!ENTITY b \"&a;&a;&a;&a;&a;&a;&a;&a;\">]>"
        "<ListBucketResult><IsTruncated>&b;</IsTruncated></ListBucketResult>";
    static const char outside[] = "<!DOCTYPE x SYSTEM \"file:///etc/passwd\"><ListBucketResult/>";
    char out[16];
    CHECK_INT(read_list(laughs), TSR_ECORRUPT);
    CHECK_INT(read_list(outside), TSR_ECORRUPT);
    CHECK(!tsri_s3_element(&expat, laughs, sizeof laughs - 1, "IsTruncated", out, sizeof out));
}

TEST(nesting_and_size_have_limits)
{
    size_t n = TSRI_S3_REPLY_MAX + 64;
    char *text = malloc(n), out[16];
    CHECK(text);
    size_t at = (size_t)sprintf(text, "<ListBucketResult>");
    for (int i = 0; i < 20; i++)
        at += (size_t)sprintf(text + at, "<a>");
    for (int i = 0; i < 20; i++)
        at += (size_t)sprintf(text + at, "</a>");
    sprintf(text + at, "</ListBucketResult>");
    CHECK_INT(read_list(text), TSR_ECORRUPT);
    memset(text, 'x', n);
    memcpy(text, "<Code>a</Code>", 14);
    CHECK(tsri_s3_element(&expat, text, 1024, "Code", out, sizeof out)); /* the rest is cut off */
    CHECK(!tsri_s3_element(&expat, text, n, "Code", out, sizeof out));
    free(text);
}

TEST(space_that_keeps_a_connection_alive_is_passed_over)
{
    CHECK_INT(read_list(" \n\n <?xml version=\"1.0\"?> <ListBucketResult/>\n"), 0);
    CHECK_INT(read_list(" \n\n "), TSR_ECORRUPT);
}

TEST(text_comes_in_pieces_and_is_put_together)
{
    char out[16];
    static const char text[] = "<a><Code>\n a&amp;<![CDATA[<b]]>\r\nc&#x20;d \n</Code></a>";
    CHECK(tsri_s3_element(&expat, text, sizeof text - 1, "Code", out, sizeof out));
    CHECK_STR(out, "a&<b\nc d");
}

TEST(names_that_cannot_be_ours_are_left_out)
{
    char text[8192], longer[600];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    snprintf(text, sizeof text,
             "<ListBucketResult><Contents><Key>%s</Key><Size>1</Size></Contents>"
             "<Owner><Key>t/elsewhere</Key><Size>1</Size></Owner>"
             "<Contents><Owner><Key>t/deeper</Key></Owner><Size>1</Size></Contents>"
             "<Contents><Key>t/sizeless</Key></Contents>"
             "<Contents><Key>t/size</Key><Size>-1</Size></Contents>"
             "<Contents><Key>t/size</Key><Size>99999999999999999999</Size></Contents>"
             "<Contents><Key><b>t</b></Key><Size>1</Size></Contents>"
             "<Contents><Key>t/right</Key><Size>1</Size></Contents></ListBucketResult>",
             longer);
    CHECK_INT(read_list(text), 1);
    CHECK_STR(names[0], "t/right");
}

TEST(an_element_is_found_by_name)
{
    static const char text[] = "<?xml version=\"1.0\"?><!-- <Code>no</Code> --><Error>"
                               "<Codes>no</Codes><Code>SlowDown</Code></Error>";
    char out[16];
    CHECK(tsri_s3_element(&expat, text, sizeof text - 1, "Code", out, sizeof out));
    CHECK_STR(out, "SlowDown");
    CHECK(!tsri_s3_element(&expat, text, sizeof text - 1, "Code", out, 8)); /* no room */
    CHECK(!tsri_s3_element(&expat, text, sizeof text - 1, "UploadId", out, sizeof out));
    CHECK(!tsri_s3_element(&expat, text, sizeof text - 1, "Error", out, sizeof out));
    CHECK(tsri_s3_element(&expat, "<a><Code/></a>", 14, "Code", out, sizeof out));
    CHECK_STR(out, "");
    CHECK(!tsri_s3_element(&expat, "<a><Code>x</a>", 14, "Code", out, sizeof out));
}

TEST(a_range_is_read_exactly)
{
    struct tsri_extent x;
    uint64_t total;
    CHECK(tsri_s3_content_range("bytes 0-9/100", &x, &total));
    CHECK_INT(x.begin, 0);
    CHECK_INT(x.end, 10);
    CHECK_INT(total, 100);
    CHECK(tsri_s3_content_range("bytes 99-99/100", &x, &total));
    static const char *const wrong[] = {"",
                                        "bytes",
                                        "bytes 0-9",
                                        "bytes 0-9/*",
                                        "bytes */100",
                                        "bytes 9-0/100",
                                        "bytes 0-100/100",
                                        "bytes -1-9/100",
                                        "bytes 0-9/100x",
                                        "items 0-9/100",
                                        "bytes 0-9/99999999999999999999999",
                                        "bytes  0-9/100"};
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++)
        CHECK(!tsri_s3_content_range(wrong[i], &x, &total));
}

int main(void)
{
    if (tsri_s3_expat_load(&expat, TSRI_S3_EXPAT_LIBRARY) < 0) return 1;
    RUN(a_list_is_read_name_by_name);
    RUN(a_page_that_is_not_the_last_tells_how_to_go_on);
    RUN(a_list_that_breaks_off_is_no_list);
    RUN(what_is_not_well_formed_is_no_list);
    RUN(entities_of_its_own_are_refused_before_they_grow);
    RUN(nesting_and_size_have_limits);
    RUN(space_that_keeps_a_connection_alive_is_passed_over);
    RUN(text_comes_in_pieces_and_is_put_together);
    RUN(names_that_cannot_be_ours_are_left_out);
    RUN(an_element_is_found_by_name);
    RUN(a_range_is_read_exactly);
    return test_end();
}
