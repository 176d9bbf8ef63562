/* Memory of the device "npu": what it gives out and registers, and what kind it takes an engine's
 * memory for. */
#include "ascend_kit.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BYTES = 200000 };

/* ---- an engine's memory ---- */

/* As torch_npu would take it: from the runtime, unknown to the device. */
static void *engine_alloc(void)
{
    int (*take)(void **, size_t, uint32_t);
    void *p = NULL, *library = dlopen(getenv("TESSERA_ASCENDCL_LIB"), RTLD_NOW | RTLD_LOCAL);
    *(void **)(void *)&take = dlsym(library, "aclrtMalloc");
    CHECK_INT(take(&p, BYTES, 0), 0);
    return p;
}

static void engine_free(void *p)
{
    int (*give)(void *);
    void *library = dlopen(getenv("TESSERA_ASCENDCL_LIB"), RTLD_NOW | RTLD_LOCAL);
    *(void **)(void *)&give = dlsym(library, "aclrtFree");
    CHECK_INT(give(p), 0);
}

/* From plain memory to the engine's and back, into plain and into page-locked memory. */
static void check_engine_copies(void)
{
    static uint8_t plain[2][BYTES];
    struct tsri_device *d = open_device("npu", NULL);
    void *locked, *engine = engine_alloc();
    CHECK_INT(tsri_device_host_alloc(d, &locked, BYTES), 0);
    kv_random_bytes(plain[0], BYTES, 5);
    memset(plain[1], 0, BYTES);
    struct tsr_copy copies[] = {
        {engine, plain[0], BYTES}, {plain[1], engine, BYTES}, {locked, engine, BYTES}};
    CHECK_INT(tsri_device_copy(d, NULL, copies, TSRI_COUNT(copies)), 0);
    CHECK_INT(tsri_stream_sync(d, NULL), 0);
    CHECK(memcmp(plain[0], plain[1], BYTES) == 0 && memcmp(plain[0], locked, BYTES) == 0);
    engine_free(engine);
    tsri_device_host_free(d, locked);
    tsri_device_close(d);
    acl->check_closed();
}

TEST(the_runtime_tells_whose_memory_it_is)
{
    check_engine_copies();
}

/* No such call, one that fails, and an answer of later versions. */
TEST(the_kernel_tells_where_the_runtime_does_not)
{
    const struct fakeacl_control *whole = acl;
    setenv("FAKEACL_FAILS", "aclrtPointerGetAttributes", 1);
    check_engine_copies();
    unsetenv("FAKEACL_FAILS");
    setenv("FAKEACL_LOCATION", "9", 1);
    check_engine_copies();
    unsetenv("FAKEACL_LOCATION");
    acl = fakeacl_load("libascendcl-bare.so");
    check_engine_copies();
    acl = whole;
    fakeacl_load("libascendcl.so");
}

/* A mapping of a driver, as a process without rights can have one: the queue of an io_uring. */
static void *map_drivers(int *fd)
{
    uint8_t params[256] = {0};
    *fd = (int)syscall(SYS_io_uring_setup, 8, params);
    void *p = *fd < 0 ? MAP_FAILED
                      : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, *fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

TEST(memory_of_which_nobody_can_tell_is_refused)
{
    int fd;
    uint8_t plain[64];
    void *p = map_drivers(&fd);
    if (!p) SKIP("no mapping of a driver: this kernel has no io_uring, or allows none");
    struct tsri_device *d = open_device("npu", NULL);
    struct tsr_copy out = {plain, p, sizeof plain}, in = {p, plain, sizeof plain};
    setenv("FAKEACL_FAILS", "aclrtPointerGetAttributes", 1);
    CHECK_INT(tsri_device_copy(d, NULL, &out, 1), TSR_EDEVICE);
    CHECK_HAS(tsr_errmsg(), "npu: neither the runtime nor the kernel tells");
    CHECK_INT(tsri_device_copy(d, NULL, &in, 1), TSR_EDEVICE);
    unsetenv("FAKEACL_FAILS");
    tsri_device_close(d);
    acl->check_closed();
    munmap(p, 4096);
    close(fd);
}

/* ---- registering ---- */

TEST(memory_is_registered_in_pieces_and_unregistered_whole)
{
    enum { PIECES = 5 * 65536 + 4096 };
    struct tsri_device *d = open_device("npu", "small");
    uint8_t *p = aligned_alloc(4096, PIECES), *before = malloc(PIECES);
    void *there;
    CHECK_INT(tsri_device_host_register(d, p, PIECES), 0);
    CHECK_INT(acl->registrations(), 6);
    CHECK_INT(tsri_device_alloc(d, &there, PIECES), 0);
    kv_random_bytes(p, PIECES, 3);
    memcpy(before, p, PIECES);
    struct tsr_copy out = {there, p, PIECES}, back = {p, there, PIECES};
    CHECK_INT(tsri_device_copy(d, NULL, &out, 1), 0);
    CHECK_INT(tsri_stream_sync(d, NULL), 0);
    memset(p, 0, PIECES);
    CHECK_INT(tsri_device_copy(d, NULL, &back, 1), 0);
    CHECK_INT(tsri_stream_sync(d, NULL), 0);
    CHECK(memcmp(p, before, PIECES) == 0);
    tsri_device_host_unregister(d, p);
    CHECK_INT(acl->registrations(), 0);
    tsri_device_free(d, there);
    tsri_device_close(d);
    free(p);
    free(before);
    acl->check_closed();
}

TEST(more_memory_than_there_is_is_refused)
{
    struct tsri_device *d = open_device("npu", NULL);
    void *p;
    CHECK_INT(tsri_device_alloc(d, &p, (size_t)1 << 40), TSR_ENOMEM);
    CHECK_HAS(tsr_errmsg(), "npu: cannot allocate device memory: error 207001");
    tsri_device_close(d);
}

TEST(a_piece_that_cannot_be_registered_takes_the_others_with_it)
{
    struct tsri_device *d = open_device("npu", "small");
    void *p = aligned_alloc(4096, 4 * 65536);
    for (uint64_t n = 2; n < 8; n++) { /* both forms of each piece */
        acl->reset();
        acl->fail_from(n + 1);
        CHECK_INT(tsri_device_host_register(d, p, 4 * 65536), n < 5 ? TSR_EDEVICE : 0);
        acl->reset();
        CHECK_INT(acl->registrations(), n < 5 ? 0 : 4);
        if (n >= 5) tsri_device_host_unregister(d, p);
    }
    tsri_device_close(d);
    free(p);
    acl->check_closed();
}

/* A runtime that has the second form may not know its flags. */
TEST(memory_is_registered_the_old_way_where_the_new_one_is_refused)
{
    struct tsri_device *d = open_device("npu", NULL);
    void *p = aligned_alloc(4096, 65536);
    setenv("FAKEACL_FAILS", "aclrtHostRegisterV2", 1);
    CHECK_INT(tsri_device_host_register(d, p, 65536), 0);
    unsetenv("FAKEACL_FAILS");
    CHECK_INT(acl->registrations(), 1);
    tsri_device_host_unregister(d, p);
    setenv("FAKEACL_FAILS", "aclrtHostRegister", 1); /* which is not asked then */
    CHECK_INT(tsri_device_host_register(d, p, 65536), 0);
    unsetenv("FAKEACL_FAILS");
    tsri_device_host_unregister(d, p);
    tsri_device_close(d);
    free(p);
    acl->check_closed();
}

/* Addresses alone: nothing of it is ever touched. */
TEST(no_piece_is_larger_than_drivers_take)
{
    const size_t bytes = (size_t)300 << 30;
    struct tsri_device *d = open_device("npu", NULL);
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        tsri_device_close(d);
        SKIP("no 300 GiB of addresses");
    }
    CHECK_INT(tsri_device_host_register(d, p, bytes), 0);
    CHECK_INT(acl->registrations(), 5);
    tsri_device_host_unregister(d, p);
    CHECK_INT(acl->registrations(), 0);
    tsri_device_close(d);
    munmap(p, bytes);
    acl->check_closed();
}

int main(void)
{
    acl = fakeacl_load("libascendcl.so");
    RUN(the_runtime_tells_whose_memory_it_is);
    RUN(the_kernel_tells_where_the_runtime_does_not);
    RUN(memory_of_which_nobody_can_tell_is_refused);
    RUN(memory_is_registered_in_pieces_and_unregistered_whole);
    RUN(a_piece_that_cannot_be_registered_takes_the_others_with_it);
    RUN(more_memory_than_there_is_is_refused);
    RUN(memory_is_registered_the_old_way_where_the_new_one_is_refused);
    RUN(no_piece_is_larger_than_drivers_take);
    return test_end();
}
