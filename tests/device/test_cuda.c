/* The CUDA device's own promises; what it shares with other devices is in test_contract.c. Where
 * there is no library or no GPU everything is skipped with one line. */
#include "kv.h"

#include <sys/wait.h>
#include <unistd.h>

static struct tsri_device *cuda;

static int open_number(uint32_t ordinal)
{
    char path[512];
    const char *b = getenv("B"), *given = getenv("TESSERA_CUDA_LIB");
    snprintf(path, sizeof path, "%s", given ? given : "");
    if (!given) snprintf(path, sizeof path, "%s/lib/libtessera-cuda.so", b ? b : "build");
    struct tsr_device_desc config = {.size = sizeof config, .ordinal = ordinal, .library = path};
    return tsri_device_open(&cuda, "cuda", &config);
}

static void open_or_skip(void)
{
    char why[256];
    int e = open_number(0);
    snprintf(why, sizeof why, "cuda: %s", tsr_errmsg());
    if (e == TSR_EDEVICE) SKIP(why);
    CHECK_INT(e, 0);
}

TEST(a_missing_library_is_named)
{
    struct tsri_device *d = NULL;
    struct tsr_device_desc config = {.size = sizeof config, .library = "/nowhere/lib.so"};
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
    CHECK_INT(open_number(4711), TSR_EDEVICE);
}

/* An engine that describes memory it does not have: the kernel faults, and the driver gives up the
 * whole context. Returns the number of the first thing that went wrong. */
static int lose_device(void)
{
    static const int64_t slots[4] = {0, 1, 2, 3};
    void *data, *planes[1], *more = NULL;
    struct tsr_kv_layout layout = {.size = sizeof layout,
                                   .memory = TSR_MEMORY_DEVICE,
                                   .n_layers = 1,
                                   .n_planes = 1,
                                   .n_slots = 64,
                                   .planes[0] = {.base = (void *)4096, // NOLINT
                                                 .token_stride = 128,
                                                 .head_stride = 128,
                                                 .element_stride = 2,
                                                 .dtype = TSR_DTYPE_F16,
                                                 .n_heads = 1,
                                                 .dim = 64}};
    struct tsr_kv_cells cells;
    struct tsr_kv_run run = {.cells = &cells, .slots = slots, .n_tokens = 4};
    struct tsri_batch_desc desc = {TSRI_BATCH_SCATTER, 1, &layout, &run, NULL, 0};
    struct tsr_batch_limits limits = {1, 4, 1, 1};
    struct tsri_batch *batch;
    if (tsri_device_host_alloc(cuda, &data, 4096) != 0) return 1;
    if (kv_cells_2ltd(&cells, planes, data, &layout, 4) > 4096) return 2;
    cells.memory = TSR_MEMORY_LOCKED;
    if (tsri_batch_open(&batch, cuda, &limits) != 0) return 3;
    if (tsri_batch_set(batch, NULL, &desc) != 0) return 4;
    if (tsri_batch_scatter(batch, 0, 0) != 0) return 5;
    if (tsri_stream_sync(cuda, NULL) != TSR_EDEVICE) return 6;
    if (!strstr(tsr_errmsg(), "cuda: ")) return 7;
    if (tsri_batch_set(batch, NULL, &desc) != TSR_EDEVICE) return 8;
    if (tsri_device_alloc(cuda, &more, 4096) != TSR_EDEVICE || more) return 9;
    struct tsr_copy copy = {data, (uint8_t *)data + 128, 128};
    if (tsri_device_copy(cuda, NULL, &copy, 1) != TSR_EDEVICE) return 10;
    tsri_batch_close(batch);
    tsri_device_host_free(cuda, data);
    tsri_device_close(cuda);
    return 0;
}

enum { NO_DEVICE = 77 };

/* In a process of its own, since a context that is lost stays so; runs first, since a driver that
 * was used does not survive fork. */
TEST(a_lost_device_is_an_error_of_every_call_and_closes)
{
    pid_t child = fork();
    if (child == 0) _exit(open_number(0) == 0 ? lose_device() : NO_DEVICE);
    int status;
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_DEVICE) SKIP("no CUDA device here");
    CHECK_INT(WEXITSTATUS(status), 0);
}

int main(void)
{
    RUN(a_lost_device_is_an_error_of_every_call_and_closes);
    RUN(a_missing_library_is_named);
    RUN(a_device_says_what_it_is);
    RUN(more_memory_than_there_is_is_refused_and_forgotten);
    RUN(a_device_number_that_is_not_there_is_refused);
    return test_end();
}
