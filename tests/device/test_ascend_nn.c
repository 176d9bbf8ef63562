/* CANN's operators for the device "npu": which versions and libraries have them, and what happens when
 * one cannot be had. */
#include "ascend_kit.h"

TEST(versions_and_missing_libraries_decide)
{
    char given[4096];
    check_info(CHIP "all operators" END);
    setenv("FAKEACL_CANN", "8.3.RC1", 1); /* whose ScatterPaKvCache has two forms */
    check_info("Ascend910B3, CANN 8.3.RC1, single copies, operators: rotate int8 gather" END);
    setenv("FAKEACL_CANN", "8.5.0", 1);
    check_info("Ascend910B3, CANN 8.5.0, single copies, all operators" END);
    unsetenv("FAKEACL_CANN");
    snprintf(given, sizeof given, "%s", getenv("TESSERA_OPAPI_LIB"));
    setenv("TESSERA_OPAPI_LIB", "/nowhere/libopapi.so", 1);
    check_info(CHIP "no operators: no libopapi.so" END);
    setenv("TESSERA_OPAPI_LIB", "libm.so.6", 1);
    check_info(CHIP "no operators: no libopapi.so" END);
    setenv("TESSERA_OPAPI_LIB", given, 1);
}

/* A device that is opened with the n-th call failing works, with or without operators. */
TEST(whichever_call_fails_at_open_a_device_works_or_is_refused)
{
    struct tsr_device_desc desc = {.size = sizeof desc, .flags = TSR_DEVICE_OPERATORS};
    uint64_t n_refused = 0, n_calls;
    struct tsri_device *d;
    acl->reset();
    CHECK_INT(tsri_device_open(&d, "npu", &desc), 0);
    n_calls = acl->calls();
    tsri_device_close(d);
    CHECK(n_calls > 100);
    for (uint64_t n = 1; n < n_calls; n += n < 24 ? 1 : 61) {
        acl->reset();
        acl->fail(n);
        int e = tsri_device_open(&d, "npu", &desc);
        acl->reset();
        n_refused += e != 0;
        if (!e) tsri_device_close(d);
        acl->check_closed();
    }
    CHECK(n_refused >= 2 && n_refused < 8);
}

int main(void)
{
    acl = fakeacl_load("libascendcl.so");
    RUN(versions_and_missing_libraries_decide);
    RUN(whichever_call_fails_at_open_a_device_works_or_is_refused);
    return test_end();
}
