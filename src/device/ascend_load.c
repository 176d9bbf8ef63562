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

/* "8.3.RC1" of one of CANN's packages; false: it does not tell. */
static bool ask_version(const struct tsr_device *d, uint32_t package, char out[32])
{
    struct tsri_acl_version v = {0};
    if (!d->acl.aclsysGetCANNVersion || d->acl.aclsysGetCANNVersion(package, &v) != 0) return false;
    v.version[sizeof v.version - 1] = '\0';
    snprintf(out, 32, "%.31s", v.version);
    return out[0];
}

/* The line "Version=24.1.rc3" of the driver's own file, which containers mount with its libraries. */
static void read_driver_version(char out[32])
{
    const char *given = getenv("ASCEND_DRIVER_PATH");
    char path[512], line[128];
    snprintf(path, sizeof path, "%.480s/version.info",
             given && *given ? given : "/usr/local/Ascend/driver");
    FILE *file = fopen(path, "re");
    while (file && !out[0] && fgets(line, sizeof line, file))
        if (strncmp(line, "Version=", 8) == 0)
            snprintf(out, 32, "%.*s", (int)strcspn(line + 8, " \r\n"), line + 8);
    if (file) fclose(file);
}

/* A runtime that does not tell the version of CANN is taken for one that is supported. */
static int check_version(struct tsr_device *d)
{
    char text[160];
    int32_t *v = d->acl_version;
    TSRI_ACL_TRY(d, d->acl.aclrtGetVersion(&v[0], &v[1], &v[2]), "cannot read the version");
    if (!ask_version(d, TSRI_ACL_PACKAGE_DRIVER, d->driver)) read_driver_version(d->driver);
    if (!ask_version(d, TSRI_ACL_PACKAGE_CANN, d->cann)) return 0;
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
