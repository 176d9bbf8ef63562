/* Copies of the device "npu": between all kinds of memory, and one by one where the runtime does not
 * take many. */
#include "ascend_kit.h"

TEST(copies_go_between_all_kinds_of_memory)
{
    enum { BYTES = 300000 };
    struct tsri_device *d = open_device("npu", "small");
    static uint8_t plain[3][BYTES];
    void *there[2], *locked[2];
    uint64_t seed = 8;
    kv_random_bytes(plain[0], BYTES, seed);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(tsri_device_alloc(d, &there[i], BYTES + 64), 0);
        CHECK_INT(tsri_device_host_alloc(d, &locked[i], BYTES), 0);
    }
    /* plain, device, device at an odd address, page-locked, page-locked, plain */
    struct tsr_copy chain[] = {{there[0], plain[0], BYTES},
                               {(uint8_t *)there[1] + 3, there[0], BYTES},
                               {locked[0], (uint8_t *)there[1] + 3, BYTES},
                               {locked[1], locked[0], BYTES},
                               {plain[1], locked[1], BYTES},
                               {plain[2], (uint8_t *)there[1] + 3, BYTES}};
    CHECK_INT(tsri_device_copy(d, NULL, chain, TSRI_COUNT(chain)), 0);
    CHECK_INT(tsri_stream_sync(d, NULL), 0);
    CHECK(memcmp(plain[0], plain[1], BYTES) == 0 && memcmp(plain[0], plain[2], BYTES) == 0);
    for (int i = 0; i < 2; i++) {
        tsri_device_free(d, there[i]);
        tsri_device_host_free(d, locked[i]);
    }
    tsri_device_close(d);
    acl->check_closed();
}

TEST(batches_that_the_runtime_refuses_are_single_copies)
{
    setenv("FAKEACL_NO_BATCH", "1", 1);
    check_same(NULL, &(struct job){.shape = plain_shape});
    unsetenv("FAKEACL_NO_BATCH");
    acl->reset();
    check_same(NULL, &(struct job){.shape = plain_shape});
    CHECK(acl->batches() > 0);
}

int main(void)
{
    acl = fakeacl_load("libascendcl.so");
    RUN(copies_go_between_all_kinds_of_memory);
    RUN(batches_that_the_runtime_refuses_are_single_copies);
    return test_end();
}
