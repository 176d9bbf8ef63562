/* The cpu device itself: its variants by name, its threads, and that sharing work changes no bit.
 */
#include "kv.h"

#include <pthread.h>

TEST(variants_are_chosen_by_name_and_unknown_ones_refused)
{
    struct tsri_device *d;
    struct tsr_device_desc config = {.size = sizeof config, .variant = "abacus"};
    CHECK_INT(tsri_device_open(&d, "cpu", &config), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "abacus");
    static const char *const names[] = {"reference", "plain"};
    for (size_t i = 0; i < TSRI_COUNT(names); i++) {
        struct tsr_device_info info = {.size = sizeof info};
        config.variant = names[i];
        CHECK_INT(tsri_device_open(&d, "cpu", &config), 0);
        CHECK_INT(tsri_device_info(d, &info), 0);
        CHECK_HAS(info.text, names[i]);
        tsri_device_close(d);
    }
}

TEST(absurd_configurations_are_refused)
{
    struct tsri_device *d;
    struct tsr_device_desc config = {.size = sizeof config, .n_threads = 65};
    CHECK_INT(tsri_device_open(&d, "cpu", &config), TSR_EINVAL);
    config.n_threads = 0;
    config.ordinal = 1;
    CHECK_INT(tsri_device_open(&d, "cpu", &config), TSR_EDEVICE);
}

/* Big enough for every thread to get a share. */
static const struct kv_shape big = {KV_BLOCKS, TSR_DTYPE_F16, 4, 8, 64, 64, 0, 64, 16, 1024};
enum { N_TOKENS = 700 };

static uint8_t *rotated_image(uint32_t n_threads)
{
    struct tsr_device_desc config = {.size = sizeof config, .n_threads = n_threads};
    struct tsri_device *d;
    struct kv_engine g;
    struct kv_cells c;
    struct tsri_batch *b;
    struct tsr_batch_limits limits = {2, N_TOKENS, 16, 128};
    int64_t slots[N_TOKENS];
    CHECK_INT(tsri_device_open(&d, "cpu", &config), 0);
    kv_engine_init(&g, d, &big);
    kv_cells_init(&c, d, &g.layout, N_TOKENS, 64, false, 1);
    kv_cells_numbers(&c, &g.layout, 2);
    kv_slots(slots, N_TOKENS, big.n_slots, 3);
    CHECK_INT(tsri_batch_open(&b, d, &limits), 0);
    struct tsr_rope rope = {
        .size = sizeof rope, .pairing = TSR_ROPE_GPTJ, .dims = 64, .theta = 10000};
    struct tsr_kv_run runs[] = {{&c.cells, slots, 0, 300, 7, 0, 0},
                                {&c.cells, slots + 300, 300, 400, -9, 0, 0}};
    struct tsri_batch_desc desc = {TSRI_BATCH_SCATTER, 2, &g.layout, runs, &rope, 0};
    CHECK_INT(tsri_batch_set(b, NULL, &desc), 0);
    CHECK_INT(tsri_batch_scatter(b, 0, 0), 0);
    uint8_t *image = kv_engine_image(&g);
    /* And back: what was gathered is what was scattered, in V, which is not turned. */
    uint8_t *v_plane = malloc(64 * 1024);
    memcpy(v_plane, c.planes[11], 64 * 1024);
    memset(c.planes[11], 0, 64 * 1024);
    runs[0].delta = runs[1].delta = 0;
    desc.direction = TSRI_BATCH_GATHER;
    CHECK_INT(tsri_batch_set(b, NULL, &desc), 0);
    CHECK_INT(tsri_batch_gather(b, 0, 0), 0);
    for (int i = 0; i < 64; i++)
        if (slots[i] >= 0)
            CHECK(memcmp(v_plane + i * 1024, (uint8_t *)c.planes[11] + i * 1024, 1024) == 0);
    free(v_plane);
    tsri_batch_close(b);
    kv_cells_fini(&c);
    kv_engine_fini(&g);
    tsri_device_close(d);
    return image;
}

TEST(shares_of_many_threads_give_the_bytes_of_one)
{
    uint8_t *want = rotated_image(0);
    size_t bytes = (size_t)big.n_slots * 8 * 128 * 2 * 4 + 128;
    for (uint32_t n = 1; n <= 5; n += 2) {
        uint8_t *got = rotated_image(n);
        CHECK(memcmp(want, got, bytes) == 0);
        free(got);
    }
    free(want);
}

/* ---- one device, several callers ---- */

struct caller {
    struct tsri_device *device;
    uint8_t seed;
    int wrong;
};

static void *copy_often(void *arg)
{
    struct caller *c = arg;
    enum { BYTES = 3 << 20 };
    uint8_t *from = malloc(BYTES), *to = malloc(BYTES);
    for (int round = 0; round < 8; round++) {
        memset(from, c->seed + round, BYTES);
        struct tsr_copy copies[3] = {{to, from, 1 << 20},
                                     {to + (1 << 20), from + (1 << 20), (1 << 20) + 5},
                                     {to + (2 << 20) + 5, from + (2 << 20) + 5, (1 << 20) - 5}};
        c->wrong += tsri_device_copy(c->device, NULL, copies, 3) != 0;
        c->wrong += memcmp(from, to, BYTES) != 0;
    }
    free(from);
    free(to);
    return NULL;
}

TEST(several_callers_share_one_device)
{
    struct tsr_device_desc config = {.size = sizeof config, .n_threads = 3};
    struct tsri_device *d;
    struct caller callers[4];
    pthread_t threads[4];
    CHECK_INT(tsri_device_open(&d, "cpu", &config), 0);
    for (int i = 0; i < 4; i++) {
        callers[i] = (struct caller){d, (uint8_t)(i * 50), 0};
        CHECK_INT(pthread_create(&threads[i], NULL, copy_often, &callers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(callers[i].wrong, 0);
    }
    tsri_device_close(d);
}

int main(void)
{
    RUN(variants_are_chosen_by_name_and_unknown_ones_refused);
    RUN(absurd_configurations_are_refused);
    RUN(shares_of_many_threads_give_the_bytes_of_one);
    RUN(several_callers_share_one_device);
    return test_end();
}
