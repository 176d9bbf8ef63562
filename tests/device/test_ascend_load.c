/* Opening AscendCL for the device "npu": versions, and what is said when something is missing. */
#include "ascend_kit.h"
#include "support/tmpdir.h"

TEST(a_call_that_fails_at_open_is_an_error_and_leaves_nothing)
{
    struct tsri_device *d;
    uint64_t n_failed = 0;
    for (uint64_t n = 1; n < 8; n++) {
        acl->reset();
        acl->fail(n);
        int e = tsri_device_open(&d, "npu", NULL);
        acl->reset();
        if (e) CHECK_HAS(tsr_errmsg(), "npu: ");
        if (!e) tsri_device_close(d);
        n_failed += e != 0;
        acl->check_closed();
    }
    CHECK(n_failed >= 2); /* the number of devices, and the stream */
}

static void open_as(const char *cann, const char *soc, char *text, int want)
{
    struct tsri_device *d;
    struct tsr_device_info info = {.size = sizeof info};
    setenv("FAKEACL_CANN", cann, 1);
    setenv("FAKEACL_SOC", soc, 1);
    CHECK_INT(tsri_device_open(&d, "npu", NULL), want);
    snprintf(text, 256, "%s", tsr_errmsg());
    if (want == 0) {
        CHECK_INT(tsri_device_info(d, &info), 0);
        snprintf(text, 256, "%s", info.text);
        tsri_device_close(d);
    }
    unsetenv("FAKEACL_CANN");
    unsetenv("FAKEACL_SOC");
}

TEST(versions_of_cann_decide_what_is_used)
{
    char text[256];
    open_as("8.3.RC1", "Ascend910B3", text, 0);
    CHECK_STR(text, "Ascend910B3, CANN 8.3.RC1, single copies; never run on an NPU");
    open_as("9.0.0", "Ascend910B3", text, 0);
    CHECK_STR(text, "Ascend910B3, CANN 9.0.0, batched copies; never run on an NPU");
    open_as("9.0.0", "Ascend310P3", text, 0);
    CHECK_HAS(text, "single copies");
    open_as("7.0.0", "Ascend910B3", text, TSR_EVERSION);
    CHECK_HAS(text, "npu: CANN 7.0.0 is not supported, only 8.x to 9.x");
    open_as("10.1", "Ascend910B3", text, TSR_EVERSION);
    CHECK_HAS(text, "CANN 10.1");
}

static void check_driver(const char *want)
{
    struct tsr_device_info info = {.size = sizeof info};
    struct tsri_device *d = open_device("npu", NULL);
    CHECK_INT(tsri_device_info(d, &info), 0);
    CHECK_STR(info.driver, want);
    tsri_device_close(d);
}

/* By the runtime, else by the driver's own file. */
TEST(versions_of_the_driver_and_of_ascendcl_are_told)
{
    struct tmpdir folder;
    char path[300];
    check_driver("driver 25.2.0, AscendCL 1.14.2");
    setenv("FAKEACL_DRIVER", "none", 1);
    setenv("ASCEND_DRIVER_PATH", "/nowhere", 1);
    check_driver("driver not named, AscendCL 1.14.2");
    tmpdir_init(&folder);
    snprintf(path, sizeof path, "%s/version.info", folder.path);
    FILE *file = fopen(path, "we");
    CHECK(file);
    fputs("package_version=1\nVersion=24.1.rc3\r\nascendhal_version=7.35.23\n", file);
    fclose(file);
    setenv("ASCEND_DRIVER_PATH", folder.path, 1);
    check_driver("driver 24.1.rc3, AscendCL 1.14.2");
    tmpdir_fini(&folder);
    unsetenv("ASCEND_DRIVER_PATH");
    unsetenv("FAKEACL_DRIVER");
}

TEST(a_missing_runtime_a_wrong_one_and_a_wrong_number_are_named)
{
    char given[4096];
    struct tsri_device *d;
    struct tsr_device_desc desc = {.size = sizeof desc, .ordinal = 9};
    snprintf(given, sizeof given, "%s", getenv("TESSERA_ASCENDCL_LIB"));
    CHECK_INT(tsri_device_open(&d, "npu", &desc), TSR_EDEVICE);
    CHECK_STR(tsr_errmsg(), "npu: no such device number");
    setenv("TESSERA_ASCENDCL_LIB", "/nowhere/libascendcl.so", 1);
    CHECK_INT(tsri_device_open(&d, "npu", NULL), TSR_EDEVICE);
    CHECK_HAS(tsr_errmsg(), "npu: no AscendCL: /nowhere/libascendcl.so");
    CHECK_HAS(tsr_errmsg(), "set_env.sh");
    setenv("TESSERA_ASCENDCL_LIB", "libm.so.6", 1);
    CHECK_INT(tsri_device_open(&d, "npu", NULL), TSR_EDEVICE);
    CHECK_HAS(tsr_errmsg(), "npu: libm.so.6 has no aclInit");
    setenv("TESSERA_ASCENDCL_LIB", given, 1);
}

int main(void)
{
    acl = fakeacl_load("libascendcl.so");
    RUN(a_call_that_fails_at_open_is_an_error_and_leaves_nothing);
    RUN(versions_of_cann_decide_what_is_used);
    RUN(versions_of_the_driver_and_of_ascendcl_are_told);
    RUN(a_missing_runtime_a_wrong_one_and_a_wrong_number_are_named);
    return test_end();
}
