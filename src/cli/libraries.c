/* libraries.c - what a build or a machine may lack, for `tessera version` and `tessera doctor`: the
 * libraries of the tiers and of models, and the model and the store of `tessera ask`. Each is found
 * as the code that needs it would find it, and tells its version where it can. */
#include "cli/ask.h"

#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>
#ifdef TSRI_HAVE_REDIS
#include <hiredis/hiredis.h>
#endif
#ifdef TSRI_HAVE_S3
#include "s3/s3.h"
#endif

/* ---- libraries: false and the reason where there is none ---- */

static bool find_uring(char *text, size_t bytes)
{
#ifdef TSRI_HAVE_URING
    snprintf(text, bytes, "%s", TSRI_URING_VERSION);
    return true;
#else
    snprintf(text, bytes, "not in this build: the disk tier uses threads");
    return false;
#endif
}

static bool find_hiredis(char *text, size_t bytes)
{
#ifdef TSRI_HAVE_REDIS
    snprintf(text, bytes, "%d.%d.%d", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
    return true;
#else
    snprintf(text, bytes, "not in this build: there is no redis tier");
    return false;
#endif
}

#ifdef TSRI_HAVE_S3
static bool find_curl(char *text, size_t bytes)
{
    struct tsri_s3_curl curl;
    bool found = tsri_s3_curl_load(&curl, TSRI_S3_CURL_LIBRARY) == 0;
    if (found)
        snprintf(text, bytes, "%s", curl.version_info(CURLVERSION_NOW)->version);
    else
        snprintf(text, bytes, "not found: %s", tsr_errmsg());
    return found;
}

static bool find_expat(char *text, size_t bytes)
{
    struct tsri_s3_expat expat;
    bool found = tsri_s3_expat_load(&expat, TSRI_S3_EXPAT_LIBRARY) == 0;
    if (found) /* "expat_2.5.0" */
        snprintf(text, bytes, "%s",
                 expat.ExpatVersion() + strcspn(expat.ExpatVersion(), "0123456789"));
    else
        snprintf(text, bytes, "not found: %s", tsr_errmsg());
    return found;
}
#else
static bool find_none(char *text, size_t bytes)
{
    snprintf(text, bytes, "not in this build: there is no s3 tier");
    return false;
}
#define find_curl find_none
#define find_expat find_none
#endif

/* ggml comes with the library that runs models. */
static bool find_ggml(char *text, size_t bytes)
{
    char path[4096];
    const char *named = tsri_reader_library(path, sizeof path);
    void *library =
        dlopen(named ? named : "libtessera-model.so", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        snprintf(text, bytes, "not found: %s", dlerror());
        return false;
    }
    const char *(*version)(void);
    void *symbol = dlsym(library, "ggml_version");
    memcpy(&version, &symbol, sizeof version); /* ISO C has no cast from a pointer to data */
    snprintf(text, bytes, "%s", symbol ? version() : "unknown version");
    return true;
}

static bool asks_uring(const struct tsri_options *o)
{
    bool disk = o->disk_enabled && (o->disk_path[0] || o->disk2_path[0]);
    return disk && o->disk_io == TSRI_DISK_IO_URING;
}

static bool asks_redis(const struct tsri_options *o)
{
    return o->redis_address[0];
}

static bool asks_s3(const struct tsri_options *o)
{
    return o->s3_bucket[0];
}

static const struct {
    const char *name;
    bool (*find)(char *text, size_t bytes);
    bool (*asked)(const struct tsri_options *o); /* by the configuration; NULL: by a command */
    const char *advice;
} libraries[] = {
    {"liburing", find_uring, asks_uring, "for io_uring: run tools/setup, then make"},
    {"hiredis", find_hiredis, asks_redis, "for redis_address: run tools/setup, then make"},
    {"libcurl", find_curl, asks_s3, "for s3_bucket: run tools/setup, then make"},
    {"expat", find_expat, asks_s3, "for s3_bucket: run tools/setup, then make"},
    {"ggml", find_ggml, NULL, "for tessera ask: run tools/setup --model, then make"},
};

const char *tsri_library_name(uint32_t i)
{
    return i < TSRI_COUNT(libraries) ? libraries[i].name : NULL;
}

bool tsri_library_find(uint32_t i, char *text, size_t bytes)
{
    return libraries[i].find(text, bytes);
}

void tsri_check_library(uint32_t i, const struct tsri_options *o, struct tsri_finding *f)
{
    char text[sizeof f->found];
    bool by_command = !libraries[i].asked, asked = !by_command && libraries[i].asked(o);
    if (libraries[i].find(text, sizeof text)) {
        tsri_finding_say(f, TSRI_DOCTOR_OK, "%s", text);
        return;
    }
    enum tsri_doctor_status without = by_command ? TSRI_DOCTOR_WARN : TSRI_DOCTOR_OK;
    tsri_finding_say(f, asked ? TSRI_DOCTOR_FAIL : without, "%s", text);
    tsri_finding_advise(f, "%s%s", asked ? "" : "only ", libraries[i].advice);
}

/* ---- the model and the store of ask ---- */

bool tsri_model_find(char *text, size_t bytes)
{
    char path[4096];
    const char *model = tsri_reader_model(NULL, path, sizeof path, NULL);
    bool found = access(model, R_OK) == 0;
    snprintf(text, bytes, found ? "%s" : "none: %s: %s", model, strerror(errno));
    return found;
}

bool tsri_store_find(const struct tsr_config *config, char *text, size_t bytes)
{
    bool on = config && tsri_config_options(config)->disk_enabled;
    if (on)
        tsri_reader_store(config, text, bytes);
    else
        snprintf(text, bytes, "%s",
                 config ? "none: disk_enabled is false"
                        : "not known: the configuration is invalid");
    return on;
}

/* "; installed: 0.5b, 135m", or nothing. */
static void list_models(char *text, size_t bytes)
{
    char path[4096];
    size_t at = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < tsri_reader_models(); i++) {
        const char *name = tsri_reader_installed(i, path, sizeof path);
        if (name && at < bytes)
            at +=
                (size_t)snprintf(text + at, bytes - at, "%s%s", at ? ", " : "; installed: ", name);
    }
}

void tsri_check_model(struct tsri_finding *f)
{
    char text[sizeof f->found - 64], path[4096], names[64];
    bool fallback, found = tsri_model_find(text, sizeof text);
    tsri_reader_model(NULL, path, sizeof path, &fallback);
    list_models(names, sizeof names);
    tsri_finding_say(f, found && !fallback ? TSRI_DOCTOR_OK : TSRI_DOCTOR_WARN, "%s%s", text,
                     names);
    if (!found)
        tsri_finding_advise(f, "only for tessera ask: run tools/setup --model, or set "
                               "TESSERA_MODEL to a GGUF file");
    else if (fallback)
        tsri_finding_advise(f, "its answers are often wrong: run tools/setup --model for a better "
                               "one");
}

/* As a disk tier is checked; but ask goes on without a store, so nothing here is a failure. */
void tsri_check_store(const struct tsr_config *config, struct tsri_finding *f)
{
    char path[4096];
    if (!tsri_store_find(config, path, sizeof path)) {
        tsri_finding_say(f, TSRI_DOCTOR_OK, "%s", path);
        return;
    }
    if (access(path, F_OK) != 0) {
        tsri_finding_say(f, TSRI_DOCTOR_OK, "%.480s, not created yet", path);
        return;
    }
    struct tsri_checked_disk d = {.name = "disk", .path = path};
    tsri_check_disk_path(&d, f);
    if (f->status == TSRI_DOCTOR_FAIL) f->status = TSRI_DOCTOR_WARN;
}
