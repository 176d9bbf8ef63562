/* runtime.c - the fake AscendCL itself: initialisation, devices, versions, failures, and what tests
 * tell it (support/fakeacl.h). */
#include "fakeacl/parts.h"
#include "support/fakeacl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct fake_state fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
static _Thread_local int32_t current = -1;

void fake_die(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("fakeacl: ", stderr);
    vfprintf(stderr, fmt, args); // NOLINT(clang-analyzer-valist.Uninitialized)
    fputc('\n', stderr);
    va_end(args);
    fflush(stdout);
    abort();
}

static const char *option(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

int fake_enter(const char *name)
{
    pthread_mutex_lock(&fake.lock);
    if (!fake.initialised) fake_die("%s before aclInit", name);
    uint64_t n = ++fake.n_calls;
    bool fails = n == fake.fails_at || (fake.fails_on && n > fake.fails_at) ||
                 strcmp(option("FAKEACL_FAILS", ""), name) == 0;
    if (fails) pthread_mutex_unlock(&fake.lock);
    return fails ? FAKE_ERROR : 0;
}

int32_t fake_device(const char *name)
{
    if (current < 0) fake_die("%s: no device is current on this thread", name);
    return current;
}

/* ---- AscendCL ---- */

TSR_API int aclInit(const char *config)
{
    if (config) fake_die("aclInit: a configuration");
    pthread_mutex_lock(&fake.lock);
    bool again = fake.initialised;
    fake.initialised = true;
    pthread_mutex_unlock(&fake.lock);
    return again ? TSRI_ACL_REPEAT_INITIALIZE : 0;
}

TSR_API const char *aclGetRecentErrMsg(void)
{
    return "EE0000: failed as it was told to\nsecond line";
}

TSR_API int aclrtGetVersion(int32_t *major, int32_t *minor, int32_t *patch)
{
    *major = 1;
    *minor = 14;
    *patch = 2;
    return 0;
}

TSR_API int aclsysGetCANNVersion(uint32_t package, struct tsri_acl_version *out)
{
    bool cann = package == TSRI_ACL_PACKAGE_CANN;
    if (!cann && package != TSRI_ACL_PACKAGE_DRIVER)
        fake_die("aclsysGetCANNVersion: package %u", package);
    const char *version =
        cann ? option("FAKEACL_CANN", "9.0.0") : option("FAKEACL_DRIVER", "25.2.0");
    snprintf(out->version, sizeof out->version, "%s", version);
    return strcmp(version, "none") == 0 ? FAKE_ERROR : 0;
}

TSR_API const char *aclrtGetSocName(void)
{
    return option("FAKEACL_SOC", "Ascend910B3");
}

TSR_API int aclrtGetDeviceCount(uint32_t *count)
{
    int e = fake_enter("aclrtGetDeviceCount");
    if (e) return e;
    *count = FAKE_DEVICES;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

TSR_API int aclrtGetDevice(int32_t *device)
{
    int e = fake_enter("aclrtGetDevice");
    if (e) return e;
    *device = current;
    pthread_mutex_unlock(&fake.lock);
    return *device < 0 ? FAKE_ERROR : 0;
}

TSR_API int aclrtSetDevice(int32_t device)
{
    int e = fake_enter("aclrtSetDevice");
    if (e) return e;
    if (device < 0 || device >= (int32_t)FAKE_DEVICES) fake_die("aclrtSetDevice: %d", device);
    current = device;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

/* ---- what tests tell it ---- */

static void control_fail(uint64_t n)
{
    pthread_mutex_lock(&fake.lock);
    fake.fails_at = n ? fake.n_calls + n : 0;
    pthread_mutex_unlock(&fake.lock);
}

static void control_fail_from(uint64_t n)
{
    control_fail(n);
    pthread_mutex_lock(&fake.lock);
    fake.fails_on = true;
    pthread_mutex_unlock(&fake.lock);
}

static uint64_t locked(const uint64_t *number)
{
    pthread_mutex_lock(&fake.lock);
    uint64_t n = *number;
    pthread_mutex_unlock(&fake.lock);
    return n;
}

static uint64_t control_calls(void)
{
    return locked(&fake.n_calls);
}

static uint64_t control_batches(void)
{
    return locked(&fake.n_batches);
}

static uint64_t control_operators(void)
{
    return locked(&fake.n_operators);
}

static uint64_t control_registrations(void)
{
    pthread_mutex_lock(&fake.lock);
    uint64_t n = fake_registrations();
    pthread_mutex_unlock(&fake.lock);
    return n;
}

static void control_hold(bool held)
{
    pthread_mutex_lock(&fake.lock);
    fake.held = held;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

static void control_lazy(bool lazy)
{
    pthread_mutex_lock(&fake.lock);
    fake.lazy = lazy;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

static void control_reset(void)
{
    pthread_mutex_lock(&fake.lock);
    fake.n_calls = fake.fails_at = fake.n_batches = fake.n_operators = 0;
    fake.held = fake.fails_on = false;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

static uint32_t control_forget(void)
{
    control_reset();
    control_lazy(false);
    uint32_t n = fake_queue_forget();
    pthread_mutex_lock(&fake.lock);
    n += fake_memory_forget();
    pthread_mutex_unlock(&fake.lock);
    return n;
}

static void check_closed(void)
{
    pthread_mutex_lock(&fake.lock);
    fake_queue_check_closed();
    fake_memory_check_closed();
    pthread_mutex_unlock(&fake.lock);
}

__attribute__((destructor)) static void at_end(void)
{
    if (getenv("FAKEACL_CHECK")) check_closed();
}

extern TSR_API const struct fakeacl_control fakeacl_control;
const struct fakeacl_control fakeacl_control = {
    .fail = control_fail,
    .fail_from = control_fail_from,
    .calls = control_calls,
    .hold = control_hold,
    .lazy = control_lazy,
    .view = fake_view,
    .registrations = control_registrations,
    .batches = control_batches,
    .operators = control_operators,
    .reset = control_reset,
    .check_closed = check_closed,
    .forget = control_forget,
};
