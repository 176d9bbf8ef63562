/* PDF files by pdftotext, and what it may not do. */
#include "search/inside.h"

#include "folder_kit.h"
#include "support/test.h"

#include <fcntl.h>

static struct tmpdir tmp;

/* A program of the test's own as the pdftotext that is found. */
static void install(const char *script)
{
    char path[512];
    folder_say(tmp.path, "bin/pdftotext", script);
    snprintf(path, sizeof path, "%s/bin/pdftotext", tmp.path);
    CHECK_INT(chmod(path, 0700), 0);
    snprintf(path, sizeof path, "bin:%s/bin", tmp.path);
    setenv("PATH", path, 1);
}

static int convert(const char *pdf, uint32_t wait_ms, size_t bytes_max, struct tsri_prose *out)
{
    char path[512];
    struct tsri_pdf_limits limits = {wait_ms, bytes_max};
    folder_say(tmp.path, "x.pdf", pdf);
    snprintf(path, sizeof path, "%s/x.pdf", tmp.path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    int err = tsri_pdf_text(fd, &limits, out);
    close(fd);
    return err;
}

static const char page[] =
    "%PDF-1.4\n"
    "1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
    "2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    "3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 100]/Contents 4 0 R"
    "/Resources<</Font<</F 5 0 R>>>>>>endobj\n"
    "4 0 obj<</Length 52>>stream\nBT /F 12 Tf 20 50 Td (The ferry sails at six) Tj ET\nendstream "
    "endobj\n"
    "5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj\n"
    "trailer<</Root 1 0 R/Size 6>>\n%%EOF\n";

TEST(a_pdf_becomes_text)
{
    struct tsri_prose t = {0};
    if (access("/usr/bin/pdftotext", X_OK) != 0) SKIP("pdftotext is not installed");
    setenv("PATH", "/usr/bin:/bin", 1);
    CHECK_INT(convert(page, 300000, 1 << 20, &t), 0);
    CHECK_HAS(t.data, "The ferry sails at six");
    tsri_prose_fini(&t);
    CHECK_INT(convert("%PDF-1.4\nnothing", 300000, 1 << 20, &t), TSR_EIO);
    tsri_prose_fini(&t);
}

TEST(the_file_is_given_as_it_is)
{
    struct tsri_prose t = {0};
    install("#!/bin/sh\necho \"$@\"; cat; echo; ls /proc/self/fd | tr '\\n' ' '\n");
    CHECK_INT(convert("%PDF- 'x' $(id) `id`", 300000, 1 << 20, &t), 0);
    CHECK_STR(t.data, "-q -enc UTF-8 - -\n%PDF- 'x' $(id) `id`\n0 1 2 3 ");
    tsri_prose_fini(&t);
}

TEST(without_the_program_it_is_named)
{
    struct tsri_prose t = {0};
    setenv("PATH", "/nowhere", 1);
    CHECK_INT(convert(page, 300000, 1 << 20, &t), TSR_EUNSUP);
    CHECK_HAS(tsr_errmsg(), "pdftotext");
    tsri_prose_fini(&t);
}

TEST(a_failure_is_an_error)
{
    struct tsri_prose t = {0};
    install("#!/bin/sh\necho half; exit 3\n");
    CHECK_INT(convert(page, 300000, 1 << 20, &t), TSR_EIO);
    tsri_prose_fini(&t);
}

TEST(time_and_output_have_limits)
{
    struct tsri_prose t = {0};
    uint64_t start = tsri_now_ns();
    install("#!/bin/sh\nexec sleep 600\n");
    CHECK_INT(convert(page, 200, 1 << 20, &t), TSR_ETIME);
    tsri_prose_fini(&t);
    install("#!/bin/sh\nexec cat /dev/zero\n");
    CHECK_INT(convert(page, 300000, 1 << 20, &t), TSR_ERANGE);
    CHECK(t.bytes <= 1 << 20);
    tsri_prose_fini(&t);
    CHECK(tsri_now_ns() - start < 300u * 1000000000ull);
}

int main(void)
{
    tmpdir_init(&tmp);
    RUN(a_pdf_becomes_text);
    RUN(the_file_is_given_as_it_is);
    RUN(without_the_program_it_is_named);
    RUN(a_failure_is_an_error);
    RUN(time_and_output_have_limits);
    tmpdir_fini(&tmp);
    return test_end();
}
