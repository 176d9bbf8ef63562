/* s3_curl.c - libcurl, loaded when an s3 tier is opened: it brings some thirty libraries along
 * (TLS, LDAP, Kerberos, SSH), and most who use the cache have no bucket. Compiled against its
 * header, so the types are its own. */
#include "tier/s3.h"

#include <dlfcn.h>
#include <stddef.h>

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
#define X(name) {"curl_" #name, offsetof(struct tsri_s3_curl, name)},
    TSRI_S3_CURL_FUNCTIONS(X)
#undef X
};

static int find_functions(struct tsri_s3_curl *curl, void *library, const char *path)
{
    for (size_t i = 0; i < TSRI_COUNT(functions); i++) {
        void *function = dlsym(library, functions[i].name);
        if (!function)
            return tsri_fail(TSR_EUNSUP, "s3: %s has no %s: libcurl 7.85 or later is needed", path,
                             functions[i].name);
        memcpy((char *)curl + functions[i].offset, &function, sizeof function);
    }
    return 0;
}

int tsri_s3_curl_load(struct tsri_s3_curl *curl, const char *path)
{
    /* Libraries for TLS leave functions to be called at exit: once loaded they stay. */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return tsri_fail(TSR_EUNSUP, "s3: libcurl is needed and cannot be loaded: %s", dlerror());
    int err = find_functions(curl, library, path);
    if (!err) {
        const curl_version_info_data *is = curl->version_info(CURLVERSION_NOW);
        if (is->version_num < TSRI_S3_CURL_VERSION)
            err = tsri_fail(TSR_EUNSUP, "s3: %s is libcurl %s: 7.85 or later is needed", path,
                            is->version);
    }
    if (err) dlclose(library);
    return err;
}
