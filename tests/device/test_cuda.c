/* The CUDA device's own promises; what it shares with other devices is in test_contract.c. Where
 * there is no library or no GPU everything is skipped with one line. */
#include "device/device.h"
#include "support/test.h"

static struct tsri_device *cuda;

static void open_or_skip(void)
{
    char path[512], why[256];
    const char *b = getenv("B"), *given = getenv("TESSERA_CUDA_LIB");
    snprintf(path, sizeof path, "%s", given ? given : "");
    if (!given) snprintf(path, sizeof path, "%s/lib/libtessera-cuda.so", b ? b : "build");
    struct tsr_device_config config = {.size = sizeof config, .library = path};
    int e = tsri_device_open(&cuda, "cuda", &config);
    snprintf(why, sizeof why, "cuda: %s", tsr_errmsg());
    if (e == TSR_EDEVICE) SKIP(why);
    CHECK_INT(e, 0);
}

TEST(a_missing_library_is_named)
{
    struct tsri_device *d = NULL;
    struct tsr_device_config config = {.size = sizeof config, .library = "/nowhere/lib.so"};
    CHECK_INT(tsri_device_open(&d, "cuda", &config), TSR_EDEVICE);
    CHECK_HAS(tsr_errmsg(), "/nowhere/lib.so");
    CHECK(d == NULL);
}

TEST(a_device_says_what_it_is)
{
    open_or_skip();
    struct tsr_device_info info = {.size = sizeof info};
    CHECK_INT(tsri_device_info(cuda, &info), 0);
    CHECK(info.text[0] && info.bytes_total >= info.bytes_free && info.bytes_free > 0);
    tsri_device_close(cuda);
}

TEST(more_memory_than_there_is_is_refused_and_forgotten)
{
    open_or_skip();
    void *p = NULL;
    CHECK_INT(tsri_device_alloc(cuda, &p, (size_t)1 << 50), TSR_ENOMEM);
    CHECK_INT(tsri_device_alloc(cuda, &p, 4096), 0);
    tsri_device_free(cuda, p);
    tsri_device_close(cuda);
}

TEST(a_device_number_that_is_not_there_is_refused)
{
    open_or_skip();
    tsri_device_close(cuda);
    const char *given = getenv("TESSERA_CUDA_LIB"), *b = getenv("B");
    char path[512];
    snprintf(path, sizeof path, "%s/lib/libtessera-cuda.so", b ? b : "build");
    struct tsr_device_config config = {
        .size = sizeof config, .ordinal = 4711, .library = given ? given : path};
    CHECK_INT(tsri_device_open(&cuda, "cuda", &config), TSR_EDEVICE);
}

int main(void)
{
    RUN(a_missing_library_is_named);
    RUN(a_device_says_what_it_is);
    RUN(more_memory_than_there_is_is_refused_and_forgotten);
    RUN(a_device_number_that_is_not_there_is_refused);
    return test_end();
}
