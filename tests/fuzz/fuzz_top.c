/* fuzz_top.c - any bytes as the HTTP reply of a server, and as the status in it: what is accepted
 * stays within its limits, and prints. */
#include "cli/top.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tsri_top_sample s;
    static struct tsri_cli cli;
    int status;
    size_t n;
    const char *text = (const char *)data, *body = tsri_top_http_body(text, size, &status, &n);
    if (body) require(body + n == text + size && status >= 0 && status <= 999);
    if (tsri_top_sample_read(&s, text, size) != 0) return 0;
    require(s.n_tenants <= TSRI_TOP_TENANTS_MAX && s.n_slow <= TSRI_TOP_SLOW_MAX);
    struct tsri_top_report r = {.where = "here", .before = &s, .now = &s};
    char *out_text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&out_text, &bytes);
    require(out != NULL);
    tsri_top_report_print(&r, &cli, out, 24, 80, false);
    tsri_top_report_json(&r, out);
    fclose(out);
    require(!memchr(out_text, '\033', bytes));
    free(out_text);
    return 0;
}
