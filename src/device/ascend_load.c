/* ascend_load.c - opens AscendCL and finds out what it can do. The library is libascendcl.so where
 * the loader looks, which CANN's set_env.sh arranges; TESSERA_ASCENDCL_LIB names another one, for
 * tests. It stays loaded, and is never finalised: other libraries of the process may use it. */
#include "device/ascend.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* Versions of CANN whose documents were read for this device. */
enum { CANN_FIRST = 8, CANN_LAST = 9, BATCHES_FROM = 9 };

int tsri_ascend_failed(const struct tsr_device *d, int e, const char *what)
{
    char text[256];
    const char *why = d->acl.aclGetRecentErrMsg ? d->acl.aclGetRecentErrMsg() : NULL;
    int n = why ? (int)strcspn(why, "\n") : 0;
    snprintf(text, sizeof text, "npu: %s: error %d%s%.*s", what, e, n ? ": " : "",
             n > 160 ? 160 : n, n ? why : "");
    return d->fail(e == TSRI_ACL_NO_MEMORY ? TSR_ENOMEM : TSR_EDEVICE, text);
}

static int find_functions(struct tsr_device *d, void *library, const char *path)
{
    char text[256];
#define FIND(name, result, parameters) *(void **)(void *)&d->acl.name = dlsym(library, #name);
    TSRI_ACL_NEEDED(FIND)
    TSRI_ACL_OPTIONAL(FIND)
#undef FIND
#define CHECK_THERE(name, result, parameters) \
    if (!d->acl.name) { \
        snprintf(text, sizeof text, "npu: %.160s has no %s: CANN 8.x or 9.x is needed", path, \
                 #name); \
        return d->fail(TSR_EDEVICE, text); \
    }
    TSRI_ACL_NEEDED(CHECK_THERE)
#undef CHECK_THERE
    return 0;
}

/* "8.3.RC1". A runtime that does not tell is taken for one of these. */
static int check_version(struct tsr_device *d)
{
    char text[160];
    int32_t major = 0, minor = 0, patch = 0;
    TSRI_ACL_TRY(d, d->acl.aclrtGetVersion(&major, &minor, &patch), "cannot read the version");
    struct tsri_acl_version v = {0};
    if (!d->acl.aclsysGetCANNVersion || d->acl.aclsysGetCANNVersion(TSRI_ACL_PACKAGE_CANN, &v) != 0)
        return 0;
    v.version[sizeof v.version - 1] = '\0';
    snprintf(d->cann, sizeof d->cann, "%.31s", v.version);
    d->major = atoi(d->cann);
    if (d->major >= CANN_FIRST && d->major <= CANN_LAST) return 0;
    snprintf(text, sizeof text, "npu: CANN %s is not supported, only %d.x to %d.x", d->cann,
             CANN_FIRST, CANN_LAST);
    return d->fail(TSR_EVERSION, text);
}

int tsri_ascend_load(struct tsr_device *d)
{
    const char *given = getenv("TESSERA_ASCENDCL_LIB");
    const char *path = given && *given ? given : "libascendcl.so";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        char text[320];
        snprintf(text, sizeof text, "npu: no AscendCL: %.200s; source CANN's set_env.sh",
                 dlerror());
        return d->fail(TSR_EDEVICE, text);
    }
    int err = find_functions(d, library, path);
    if (!err) err = check_version(d);
    if (err) {
        dlclose(library);
        return err;
    }
    int e = d->acl.aclInit(NULL);
    if (e && e != TSRI_ACL_REPEAT_INITIALIZE) return tsri_ascend_failed(d, e, "cannot initialise");
    const char *soc = d->acl.aclrtGetSocName ? d->acl.aclrtGetSocName() : NULL;
    snprintf(d->soc, sizeof d->soc, "%.31s", soc ? soc : "");
    /* Batches of copies are experimental before CANN 9, and a 310P has none. */
    atomic_store(&d->batches, d->acl.aclrtMemcpyBatchAsync && d->major >= BATCHES_FROM &&
                                  !strstr(d->soc, "310P"));
    return 0;
}
