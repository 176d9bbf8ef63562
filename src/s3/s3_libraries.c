/* s3_libraries.c - libcurl and expat, loaded when an s3 tier is opened: libcurl brings some thirty
 * libraries along (TLS, LDAP, Kerberos, SSH), and most caches have no bucket. Compiled against
 * their headers, so the types are their own. */
#include "s3/s3.h"

#include <dlfcn.h>
#include <stddef.h>

struct function {
    const char *name;
    size_t offset; /* of its pointer in the table that is filled */
};

static const struct function curl_functions[] = {
#define X(name) {"curl_" #name, offsetof(struct tsri_s3_curl, name)},
    TSRI_S3_CURL_FUNCTIONS(X)
#undef X
};

static const struct function expat_functions[] = {
#define X(name) {"XML_" #name, offsetof(struct tsri_s3_expat, name)},
    TSRI_S3_EXPAT_FUNCTIONS(X)
#undef X
};

static int find_functions(void *table, const struct function *functions, size_t n, void *library,
                          const char *path)
{
    for (size_t i = 0; i < n; i++) {
        void *function = dlsym(library, functions[i].name);
        if (!function) return tsri_fail(TSR_EUNSUP, "s3: %s has no %s", path, functions[i].name);
        memcpy((char *)table + functions[i].offset, &function, sizeof function);
    }
    return 0;
}

/* NULL with a message. Libraries for TLS leave functions to be called at exit: once loaded they
 * stay. */
static void *open_library(const char *name, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) tsri_fail(TSR_EUNSUP, "s3: cannot load %s: %s", name, dlerror());
    return library;
}

int tsri_s3_curl_load(struct tsri_s3_curl *curl, const char *path)
{
    void *library = open_library("libcurl", path);
    if (!library) return TSR_EUNSUP;
    int err = find_functions(curl, curl_functions, TSRI_COUNT(curl_functions), library, path);
    if (!err) {
        const curl_version_info_data *is = curl->version_info(CURLVERSION_NOW);
        if (is->version_num < TSRI_S3_CURL_VERSION)
            err = tsri_fail(TSR_EUNSUP, "s3: %s is libcurl %s: 7.85 or later is required", path,
                            is->version);
    }
    if (err) dlclose(library);
    return err;
}

int tsri_s3_expat_load(struct tsri_s3_expat *expat, const char *path)
{
    void *library = open_library("expat", path);
    if (!library) return TSR_EUNSUP;
    int err = find_functions(expat, expat_functions, TSRI_COUNT(expat_functions), library, path);
    if (err) dlclose(library);
    return err;
}
