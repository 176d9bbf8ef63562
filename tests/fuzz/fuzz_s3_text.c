/* What an S3 server writes: lists, elements of answers, ranges, names; and files of keys. */
#include "s3/s3.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void see(void *arg, const char *name, uint64_t size)
{
    uint32_t *n = arg;
    uint8_t space[16];
    struct tsr_key key;
    char again[TSRI_S3_NAME_BYTES], escaped[3 * TSRI_S3_NAME_BYTES];
    (void)size;
    ++*n;
    TSR_ASSERT(strlen(name) < TSRI_S3_NAME_BYTES);
    TSR_ASSERT(tsri_s3_escape(escaped, sizeof escaped, name));
    if (tsri_s3_is_entry(name, "tessera", space, &key)) {
        tsri_s3_name(again, "tessera", space, &key);
        TSR_ASSERT(strcmp(name, again) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct tsri_s3_expat expat;
    if (!expat.Parse && tsri_s3_expat_load(&expat, TSRI_S3_EXPAT_LIBRARY) < 0) abort();
    static const char *const elements[] = {"Code", "UploadId", "Key"};
    char *text = malloc(bytes + 1), token[TSRI_S3_TOKEN_BYTES], out[64];
    if (!text) return 0;
    memcpy(text, data, bytes);
    uint32_t n_seen = 0;
    /* Exactly its bytes: nothing behind them is read. */
    char *exact = malloc(bytes ? bytes : 1);
    if (!exact) abort();
    memcpy(exact, data, bytes);
    int n = tsri_s3_read_list(&expat, exact, bytes, see, &n_seen, token);
    TSR_ASSERT(n < 0 || (uint32_t)n == n_seen);
    TSR_ASSERT(strlen(token) < sizeof token);
    for (size_t i = 0; i < TSRI_COUNT(elements); i++)
        if (tsri_s3_element(&expat, exact, bytes, elements[i], out, sizeof out))
            TSR_ASSERT(strlen(out) < sizeof out);
    struct tsri_s3_login login = {0};
    if (tsri_s3_login_read(&login, exact, bytes, "default") == 0)
        TSR_ASSERT(login.access_key && login.secret_key);
    tsri_s3_login_fini(&login);
    free(exact);
    text[bytes] = '\0';
    struct tsri_extent x;
    uint64_t total;
    if (tsri_s3_content_range(text, &x, &total)) TSR_ASSERT(x.begin < x.end && x.end <= total);
    free(text);
    return 0;
}
