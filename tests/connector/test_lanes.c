/* The threads of a worker half. */
#include "support/connector_kit.h"
#include "support/test.h"

TEST(a_lane_holds_at_least_a_chunk)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_groups = 2});
    size_t chunk = (size_t)CK_CHUNK * CK_LAYERS * CK_PLANES * CK_ROW_BYTES;
    for (uint32_t i = 0; i < TSRI_LANES; i++) {
        struct tsri_lane *lane = &k.workers[0]->lanes[i];
        CHECK(lane->staging_bytes >= chunk);
        CHECK(lane->staging && lane->work && lane->slots);
        for (uint32_t g = 0; g < 2; g++)
            CHECK_INT(tsri_kvmem_layers(&lane->mem[g], CK_CHUNK), CK_LAYERS);
    }
    CHECK(k.workers[0]->lanes[0].staging != k.workers[0]->lanes[1].staging);
    ck_close(&k);
}

TEST(kv_caches_of_another_shape_are_refused_and_can_be_registered_right_then)
{
    struct ck k;
    struct tsr_worker *w;
    ck_open(&k, &(struct ck_options){0});
    struct tsr_worker_desc d = {.size = sizeof d};
    CHECK_INT(tsr_worker_open(&w, k.cache, &k.desc, &d), 0);
    struct tsr_kv_layout right = k.workers[0]->lanes[0].mem[0].layout, wrong = right;
    wrong.planes[1].dim *= 2;
    CHECK(tsr_worker_register_kv_caches(w, &wrong, 1) < 0);
    wrong = right;
    wrong.block_tokens = 4;
    CHECK_INT(tsr_worker_register_kv_caches(w, &wrong, 1), TSR_EINVAL);
    CHECK_INT(tsr_worker_register_kv_caches(w, &right, 2), TSR_EINVAL);
    CHECK_INT(tsr_worker_register_kv_caches(w, &right, 1), 0);
    CHECK_INT(tsr_worker_register_kv_caches(w, &right, 1), TSR_EBUSY);
    tsr_worker_close(w);
    ck_close(&k);
}

TEST(a_device_that_is_missing_is_said_at_open)
{
    struct ck k;
    struct tsr_worker *w;
    ck_open(&k, &(struct ck_options){0});
    struct tsr_worker_desc d = {.size = sizeof d, .device = "none-such"};
    CHECK(tsr_worker_open(&w, k.cache, &k.desc, &d) < 0);
    CHECK(!w);
    CHECK_HAS(tsr_errmsg(), "none-such");
    ck_close(&k);
}

int main(void)
{
    RUN(a_lane_holds_at_least_a_chunk);
    RUN(kv_caches_of_another_shape_are_refused_and_can_be_registered_right_then);
    RUN(a_device_that_is_missing_is_said_at_open);
    return test_end();
}
