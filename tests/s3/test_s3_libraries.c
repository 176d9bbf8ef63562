/* libcurl and expat are loaded when they are needed: what is there works, what is not is said, and a cache
 * without a bucket loads neither. */
#include "support/test.h"
#include "s3/s3.h"

#include <dlfcn.h>
#include <string.h>

TEST(libcurl_is_loaded_when_it_is_asked_for_and_not_before)
{
    struct tsri_s3_curl curl;
    void *before = dlopen(TSRI_S3_CURL_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    CHECK(!before);
    CHECK_INT(tsri_s3_curl_load(&curl, TSRI_S3_CURL_LIBRARY), 0);
    CHECK(curl.version_info(CURLVERSION_NOW)->version_num >= TSRI_S3_CURL_VERSION);
    struct curl_slist *list = curl.slist_append(NULL, "a: b");
    CHECK(list && strcmp(list->data, "a: b") == 0);
    curl.slist_free_all(list);
}

TEST(expat_is_loaded_when_it_is_asked_for_and_not_before)
{
    struct tsri_s3_expat expat;
    void *before = dlopen(TSRI_S3_EXPAT_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    CHECK(!before);
    CHECK_INT(tsri_s3_expat_load(&expat, TSRI_S3_EXPAT_LIBRARY), 0);
    CHECK_HAS(expat.ExpatVersion(), "expat_");
}

TEST(a_library_that_is_missing_is_named)
{
    struct tsri_s3_curl curl;
    struct tsri_s3_expat expat;
    CHECK_INT(tsri_s3_expat_load(&expat, "libexpat-of-nobody.so.1"), TSR_EUNSUP);
    CHECK_HAS(tsr_errmsg(), "cannot load expat");
    CHECK_INT(tsri_s3_curl_load(&curl, "libcurl-of-nobody.so.4"), TSR_EUNSUP);
    CHECK(strstr(tsr_errmsg(), "cannot load libcurl"));
    CHECK(strstr(tsr_errmsg(), "libcurl-of-nobody.so.4"));
}

TEST(a_library_that_is_another_one_is_refused)
{
    struct tsri_s3_curl curl;
    CHECK_INT(tsri_s3_curl_load(&curl, "libm.so.6"), TSR_EUNSUP);
    CHECK(strstr(tsr_errmsg(), "libm.so.6 has no curl_version_info"));
    struct tsri_s3_expat expat;
    CHECK_INT(tsri_s3_expat_load(&expat, "libm.so.6"), TSR_EUNSUP);
}

int main(void)
{
    RUN(expat_is_loaded_when_it_is_asked_for_and_not_before);
    RUN(libcurl_is_loaded_when_it_is_asked_for_and_not_before);
    RUN(a_library_that_is_missing_is_named);
    RUN(a_library_that_is_another_one_is_refused);
    return test_end();
}
