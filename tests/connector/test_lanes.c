/* The threads of a worker half. */
#include "support/connector_kit.h"
#include "support/test.h"

TEST(a_lane_has_room_for_a_chunk_and_takes_no_memory_before_it_is_used)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_groups = 2});
    size_t chunk = (size_t)CK_CHUNK * CK_LAYERS * CK_PLANES * CK_ROW_BYTES;
    for (uint32_t i = 0; i < TSRI_LANES; i++) {
        struct tsri_lane *lane = &k.workers[0]->lanes[i];
        CHECK(lane->staging.bytes >= chunk && lane->work && lane->slots);
        CHECK_INT(lane->rows_max, TSRI_LANE_ROWS);
        for (uint32_t g = 0; g < 2; g++) {
            CHECK_INT(tsri_kvmem_layers(&lane->mem[g], CK_CHUNK), CK_LAYERS);
            CHECK(!lane->mem[g].batch && !lane->rows[g].ranges && !lane->deliveries[g]);
        }
        CHECK(!lane->staging.data);
    }
    ck_close(&k);
}

TEST(rows_and_deliveries_are_opened_once)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    struct tsri_lane *lane = &k.workers[0]->lanes[TSRI_LANE_LOAD];
    CHECK_INT(tsri_lane_open_rows(lane, 0), 0);
    const struct tsr_delivery_range *ranges = lane->rows[0].ranges;
    CHECK_INT(tsri_lane_open_rows(lane, 0), 0);
    CHECK(ranges && lane->rows[0].ranges == ranges);
    struct tsr_delivery *delivery = tsri_lane_delivery(lane, 0);
    CHECK(delivery && tsri_lane_delivery(lane, 0) == delivery);
    ck_close(&k);
}

/* Two devices alike would each keep their own memory for batches. */
TEST(a_worker_uses_the_caches_device_where_it_is_the_same)
{
    static const char *const on_cpu[] = {"device", "cpu", NULL};
    struct ck k;
    struct tsr_worker *w;
    ck_open(&k, &(struct ck_options){.cache = on_cpu});
    CHECK(k.workers[0]->device == tsri_cache_device(k.cache) && !k.workers[0]->own_device);
    struct tsr_worker_desc d = {.size = sizeof d, .n_threads = 1};
    CHECK_INT(tsr_worker_open(&w, k.cache, &k.desc, &d), 0);
    CHECK(w->device == w->own_device && w->own_device != tsri_cache_device(k.cache));
    tsr_worker_close(w);
    d = (struct tsr_worker_desc){.size = sizeof d, .device_number = 1};
    CHECK_INT(tsr_worker_open(&w, k.cache, &k.desc, &d), TSR_EDEVICE); /* not the cache's */
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
    RUN(a_lane_has_room_for_a_chunk_and_takes_no_memory_before_it_is_used);
    RUN(rows_and_deliveries_are_opened_once);
    RUN(a_worker_uses_the_caches_device_where_it_is_the_same);
    RUN(kv_caches_of_another_shape_are_refused_and_can_be_registered_right_then);
    RUN(a_device_that_is_missing_is_said_at_open);
    return test_end();
}
