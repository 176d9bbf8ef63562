/* A reset: whatever was computed before it is not found after it, also what was under way. */
#include "support/connector_kit.h"
#include "support/test.h"

#include <unistd.h>

static const struct fakegpu_control *gpu;
static uint32_t tokens[128];
static int32_t blocks[64];

static void gpu_open(struct ck *k, uint32_t flags)
{
    static const char *const on_gpu[] = {"device", "fakegpu", NULL};
    ck_open(k, &(struct ck_options){.flags = flags, .cache = on_gpu, .gpu = gpu});
    ck_wait_locked(k->cache);
}

/* A request that has computed 64 tokens. */
static void compute(struct ck *k, uint64_t id)
{
    ck_new(k, id, tokens, 64);
    CHECK_INT(ck_alloc(k, id, blocks, 8, 0), 0);
    ck_write_all(k, tokens, 0, 64, blocks);
}

static void check_works_again(struct ck *k)
{
    CHECK_INT(ck_find(k, tokens, 70), 0);
    CHECK(!k->scheduler->resetting);
    ck_save_prompt(k, 100, tokens, 64, 0);
    CHECK_INT(ck_find(k, tokens, 70), 64);
}

TEST(what_was_saved_is_forgotten)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_ranks = 2});
    ck_save_prompt(&k, 1, tokens, 64, 0);
    CHECK_INT(tsr_scheduler_reset_cache(k.scheduler), 8);
    check_works_again(&k);
    CHECK_INT(tsr_scheduler_reset_cache(NULL), TSR_EINVAL);
    ck_close(&k);
}

TEST(a_save_that_ends_after_the_reset_is_not_found)
{
    struct ck k;
    gpu_open(&k, 0);
    compute(&k, 1);
    gpu->hold(true);
    CHECK_INT(ck_finish(&k, 1, 64, 64), 1);
    ck_step(&k, NULL, NULL);
    CHECK_INT(tsr_scheduler_reset_cache(k.scheduler), 0);
    CHECK_INT(tsr_scheduler_reset_cache(k.scheduler), 0); /* once more: the same */
    CHECK_INT(ck_find(&k, tokens, 70), 0);
    gpu->hold(false);
    ck_settle(&k, NULL);
    check_works_again(&k);
    ck_close(&k);
}

TEST(a_request_of_before_is_neither_saved_nor_loaded)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    compute(&k, 1);
    compute(&k, 2);
    CHECK_INT(tsr_scheduler_reset_cache(k.scheduler), 0);
    CHECK_INT(ck_finish(&k, 1, 64, 64), 0);
    CHECK_INT(ck_find(&k, tokens, 70), 0);
    /* This one starts again, and another has saved the same meanwhile. */
    ck_save_prompt(&k, 3, tokens, 64, 20);
    uint32_t async;
    CHECK_INT(tsr_scheduler_handle_preemptions(k.scheduler, (const uint64_t[]){2}, 1), 0);
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k.scheduler, 2, 0, &async), 0);
    CHECK_INT(ck_alloc(&k, 2, blocks, 8, 0), 0);
    CHECK_INT(ck_finish(&k, 2, 64, 64), 0);
    CHECK_INT(ck_find(&k, tokens, 70), 64);
    ck_close(&k);
}

/* Its lease keeps the entries from being cleared. */
TEST(what_is_being_loaded_is_not_found_by_others_afterwards)
{
    static const uint32_t modes[] = {TSR_CONNECTOR_LOAD_ASYNC, TSR_CONNECTOR_LOAD_SURE};
    for (uint32_t i = 0; i < 2; i++) {
        struct ck k;
        uint32_t async;
        gpu_open(&k, modes[i]);
        ck_save_prompt(&k, 1, tokens, 64, 0);
        ck_new(&k, 2, tokens, 70);
        CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k.scheduler, 2, 0, &async), 64);
        CHECK_INT(ck_alloc(&k, 2, blocks + 20, 9, 64), 0);
        gpu->hold(true);
        ck_step(&k, NULL, NULL); /* a sure one is reported with this */
        CHECK_INT(tsr_scheduler_reset_cache(k.scheduler), 0);
        CHECK_INT(ck_find(&k, tokens, 70), 0);
        gpu->hold(false);
        ck_settle(&k, NULL);
        ck_sync(&k);
        WAIT_FOR(ck_worker_stats(&k, 0).jobs_in_flight == 0);
        CHECK_INT(tsri_resets_on(k.scheduler), modes[i] == TSR_CONNECTOR_LOAD_SURE);
        k.scheduler->reset_ns = 0; /* nothing is pinned any more */
        check_works_again(&k);
        ck_close(&k);
    }
}

int main(void)
{
    ck_number(tokens, blocks);
    gpu = fakegpu_load();
    RUN(what_was_saved_is_forgotten);
    RUN(a_save_that_ends_after_the_reset_is_not_found);
    RUN(a_request_of_before_is_neither_saved_nor_loaded);
    RUN(what_is_being_loaded_is_not_found_by_others_afterwards);
    return test_end();
}
