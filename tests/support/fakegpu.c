/* fakegpu.c - see fakegpu.h. */
#include "support/fakegpu.h"

#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Test programs are in $B/tests/FOLDER; where everything is in one folder, it is there. */
static const char *path_of(void)
{
    static char path[4096 + 64];
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    const char *folder = dirname(self);
    snprintf(path, sizeof path, "%s/libtessera-fakegpu.so", folder);
    if (access(path, F_OK) != 0)
        snprintf(path, sizeof path, "%s/../device/libtessera-fakegpu.so", folder);
    return path;
}

/* A library that is loaded is found by its soname, wherever it is: "fakegpu" then works as the name
 * of a device without LD_LIBRARY_PATH. */
const struct fakegpu_control *fakegpu_load(void)
{
    static const struct fakegpu_control *control;
    if (control) return control;
    void *library = dlopen(path_of(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library) control = dlsym(library, "fakegpu_control");
    if (control) return control;
    printf("fakegpu: %s\n", dlerror());
    exit(1);
}
