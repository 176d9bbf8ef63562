/* What the scheduler half finds, leases and sends. */
#include "support/connector_kit.h"
#include "support/test.h"

static uint32_t tokens[128];
static const int32_t blocks[] = {40, 41, 42, 43, 44, 45, 46, 47, 48, 49};

static int match(struct ck *k, uint64_t id, uint32_t n_computed)
{
    uint32_t async;
    return tsr_scheduler_get_num_new_matched_tokens(k->scheduler, id, n_computed, &async);
}

TEST(only_tokens_beyond_what_is_computed_count)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    ck_save_prompt(&k, 1, tokens, 64, 0);
    ck_new(&k, 2, tokens, 70);
    CHECK_INT(match(&k, 2, 0), 64);
    CHECK_INT(match(&k, 2, 40), 24); /* within a chunk: blocks are smaller */
    CHECK_INT(match(&k, 2, 64), 0);
    CHECK_INT(match(&k, 99, 0), 0); /* nobody */
    ck_close(&k);
}

TEST(a_load_within_a_chunk_brings_its_other_tokens_only)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    ck_save_prompt(&k, 1, tokens, 64, 0);
    ck_new(&k, 2, tokens, 70);
    CHECK_INT(match(&k, 2, 24), 40);
    CHECK_INT(ck_alloc(&k, 2, blocks, 9, 40), 0);
    ck_step(&k, NULL, NULL);
    CHECK(ck_right_all(&k, tokens, 24, 64, blocks));
    CHECK(!ck_right_all(&k, tokens, 0, 24, blocks));
    ck_close(&k);
}

TEST(the_engine_may_take_fewer_than_were_found)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    ck_save_prompt(&k, 1, tokens, 64, 0);
    ck_new(&k, 2, tokens, 70);
    CHECK_INT(match(&k, 2, 0), 64);
    CHECK_INT(ck_alloc(&k, 2, blocks, 9, 24), 0);
    ck_step(&k, NULL, NULL);
    CHECK(ck_right_all(&k, tokens, 0, 24, blocks));
    CHECK(!ck_right_all(&k, tokens, 24, 32, blocks));
    CHECK_INT(ck_alloc(&k, 2, blocks, 9, 8), TSR_EINVAL); /* nothing is found now */
    ck_close(&k);
}

TEST(what_was_found_is_leased_until_the_load_has_ended)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    ck_save_prompt(&k, 1, tokens, 64, 0);
    ck_new(&k, 2, tokens, 70);
    CHECK_INT(match(&k, 2, 0), 64);
    CHECK_INT(tsr_cache_evict(k.cache, SIZE_MAX), 0);
    CHECK_INT(ck_alloc(&k, 2, blocks, 9, 64), 0);
    CHECK_INT(tsr_cache_evict(k.cache, SIZE_MAX), 0);
    ck_step(&k, NULL, NULL);
    ck_settle(&k, NULL);
    CHECK_INT(tsr_cache_evict(k.cache, SIZE_MAX), 4);
    ck_close(&k);
}

TEST(an_engine_that_takes_nothing_lets_go)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    ck_save_prompt(&k, 1, tokens, 64, 0);
    ck_new(&k, 2, tokens, 70);
    CHECK_INT(match(&k, 2, 0), 64);
    CHECK_INT(ck_alloc(&k, 2, blocks, 9, 0), 0);
    CHECK_INT(tsr_cache_evict(k.cache, SIZE_MAX), 4);
    ck_close(&k);
}

TEST(a_rank_that_has_evicted_makes_it_a_miss)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_ranks = 2});
    ck_save_prompt(&k, 1, tokens, 64, 0);
    CHECK_INT(ck_find(&k, tokens, 70), 64);
    struct tsr_prompt p = {.size = sizeof p, .tokens = tokens, .n_tokens = 64};
    struct tsr_clear_desc clear = {
        .size = sizeof clear, .space = k.scheduler->terms.spaces[1], .prompt = &p, .tier = -1};
    CHECK_INT(tsr_cache_clear(k.cache, &clear), 4);
    CHECK_INT(ck_find(&k, tokens, 70), 0);
    ck_close(&k);
}

TEST(another_salt_adapter_or_image_is_a_miss)
{
    struct ck k;
    uint32_t async;
    ck_open(&k, &(struct ck_options){0});
    struct tsr_extra cat = {
        .kind = TSR_EXTRA_MEDIA, .offset = 10, .n_tokens = 20, .bytes = 3, .data = "cat"};
    struct tsr_extra dog = cat;
    dog.data = "dog";
    struct tsr_request_desc r = {
        .size = sizeof r, .id = 1, .tokens = tokens, .n_tokens = 64, .extra = &cat, .n_extra = 1};
    CHECK_INT(tsr_scheduler_on_new_request(k.scheduler, &r), 0);
    CHECK_INT(ck_alloc(&k, 1, blocks, 8, 0), 0);
    ck_write_all(&k, tokens, 0, 64, blocks);
    CHECK_INT(ck_finish(&k, 1, 64, 64), 1);
    ck_settle(&k, NULL);
    r.id = 2;
    CHECK_INT(tsr_scheduler_on_new_request(k.scheduler, &r), 0);
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k.scheduler, 2, 0, &async), 63);
    r.id = 3;
    r.extra = &dog;
    CHECK_INT(tsr_scheduler_on_new_request(k.scheduler, &r), 0);
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k.scheduler, 3, 0, &async), 0);
    struct tsr_extra salt = {.kind = TSR_EXTRA_SALT, .bytes = 1, .data = "s"};
    struct tsr_extra both[] = {cat, salt};
    r.id = 4;
    r.extra = both;
    r.n_extra = 2;
    CHECK_INT(tsr_scheduler_on_new_request(k.scheduler, &r), 0);
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k.scheduler, 4, 0, &async), 0);
    ck_close(&k);
}

TEST(a_producer_finds_nothing)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.flags = TSR_CONNECTOR_NO_LOAD});
    ck_save_prompt(&k, 1, tokens, 64, 0);
    CHECK_INT(ck_find(&k, tokens, 70), 0);
    CHECK(ck_stats(&k).saves > 0);
    ck_close(&k);
}

int main(void)
{
    for (uint32_t i = 0; i < 128; i++)
        tokens[i] = i * 7 + 1;
    RUN(only_tokens_beyond_what_is_computed_count);
    RUN(a_load_within_a_chunk_brings_its_other_tokens_only);
    RUN(the_engine_may_take_fewer_than_were_found);
    RUN(what_was_found_is_leased_until_the_load_has_ended);
    RUN(an_engine_that_takes_nothing_lets_go);
    RUN(a_rank_that_has_evicted_makes_it_a_miss);
    RUN(another_salt_adapter_or_image_is_a_miss);
    RUN(a_producer_finds_nothing);
    return test_end();
}
