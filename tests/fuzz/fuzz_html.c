/* fuzz_html.c - any bytes as a page: what comes out is UTF-8 without a zero, and no longer than the
 * page by more than entities allow. */
#include "search/inside.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tsri_prose t = {0};
    if (tsri_html_text((const char *)data, size, &t) == 0) {
        const char *flaw = tsri_prose_flaw(&t);
        if (flaw && strcmp(flaw, "is empty") != 0) abort();
        if (t.bytes > 16 * size + 64) abort();
        tsri_prose_tidy(&t);
    }
    tsri_prose_fini(&t);
    return 0;
}
