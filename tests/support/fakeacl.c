/* fakeacl.c - see fakeacl.h. */
#include "support/fakeacl.h"

#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Test programs are in $B/tests/FOLDER, the device in $B/lib. */
static void *load(const char *format, const char *file, char path[4096 + 128])
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    snprintf(path, 4096 + 128, format, dirname(self), file);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        printf("fakeacl: %s\n", dlerror());
        exit(1);
    }
    return library;
}

/* A library that is loaded is found by its soname: "npu" then works as the name of a device without
 * LD_LIBRARY_PATH. TESSERA_TEST_ASCEND_LIB names another build of it. */
const struct fakeacl_control *fakeacl_load(const char *file)
{
    char path[4096 + 128];
    const char *given = getenv("TESSERA_TEST_ASCEND_LIB");
    load(given ? "%.0s%s" : "%s/../../lib/%s", given ? given : "libtessera-ascend.so", path);
    void *library = load("%s/../fakeacl/%s", file, path);
    setenv("TESSERA_ASCENDCL_LIB", path, 1);
    bool all = strcmp(file, "libascendcl.so") == 0; /* operators work with that one */
    if (all) load("%s/../fakeacl/%s", "libopapi.so", path);
    setenv("TESSERA_OPAPI_LIB", all ? path : "none", 1);
    const struct fakeacl_control *control = dlsym(library, "fakeacl_control");
    if (!control) exit(1);
    return control;
}
