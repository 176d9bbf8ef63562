/* Saves in the background. */
#include "support/connector_kit.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

static uint32_t tokens[128];
static int32_t blocks[64];

static void begin(struct ck *k, uint64_t id, uint32_t n)
{
    ck_new(k, id, tokens, n);
    CHECK_INT(ck_alloc(k, id, blocks, n / CK_BLOCK, 0), 0);
    ck_write_all(k, tokens, 0, n, blocks);
}

TEST(blocks_may_be_reused_once_they_were_read)
{
    struct ck k;
    struct ck_answer answer;
    ck_open(&k, &(struct ck_options){0});
    begin(&k, 1, 64);
    CHECK_INT(ck_finish(&k, 1, 64, 64), 1);
    do
        ck_step(&k, NULL, &answer);
    while (!answer.n_sent);
    for (int32_t b = 0; b < 8; b++)
        ck_poison(&k, 0, b, 7);
    ck_settle(&k, NULL);
    ck_new(&k, 2, tokens, 70);
    uint32_t async;
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k.scheduler, 2, 0, &async), 64);
    CHECK_INT(ck_alloc(&k, 2, blocks + 20, 9, 64), 0);
    ck_step(&k, NULL, NULL);
    CHECK(ck_right_all(&k, tokens, 0, 64, blocks + 20));
    ck_close(&k);
}

TEST(a_cache_without_room_fails_the_save_and_nothing_else)
{
    static const char *const frozen[] = {"frozen", "true", NULL};
    struct ck k;
    struct ck_answer answer;
    ck_open(&k, &(struct ck_options){.cache = frozen});
    begin(&k, 1, 64);
    CHECK_INT(ck_finish(&k, 1, 64, 64), 1);
    ck_settle(&k, &answer);
    CHECK_INT(answer.n_sent, 1);
    CHECK_INT(ck_stats(&k).saves_failed, 1);
    CHECK_INT(ck_stats(&k).jobs_in_flight, 0);
    ck_close(&k);
}

TEST(what_stands_behind_a_failed_save_is_not_gathered)
{
    static const char *const frozen[] = {"frozen", "true", NULL};
    struct ck k;
    ck_open(&k, &(struct ck_options){.cache = frozen});
    begin(&k, 1, 64);
    struct tsr_step_row row = {.id = 1, .n_computed = 32, .n_tokens = 64};
    struct tsr_step_desc s = {.size = sizeof s, .rows = &row, .n_rows = 1};
    ck_step(&k, &s, NULL);
    ck_settle(&k, NULL);
    uint64_t gathered = ck_worker_stats(&k, 0).chunks_gathered;
    row.n_computed = 64;
    ck_step(&k, &s, NULL);
    ck_settle(&k, NULL);
    CHECK_INT(ck_worker_stats(&k, 0).chunks_gathered, gathered);
    ck_close(&k);
}

TEST(all_groups_of_a_chunk_are_saved)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_groups = 2, .n_ranks = 2});
    ck_save_prompt(&k, 1, tokens, 64, 0);
    for (uint32_t r = 0; r < 2; r++) {
        CHECK_INT(ck_worker_stats(&k, r).chunks_gathered, 8);
        CHECK_INT(ck_worker_stats(&k, r).chunks_wasted, 0);
    }
    CHECK_INT(ck_find(&k, tokens, 70), 64);
    ck_close(&k);
}

static uint64_t metric(struct ck *k, const char *line)
{
    char text[65536];
    CHECK(tsr_cache_stats_text(k->cache, "json", text, sizeof text) > 0);
    const char *at = strstr(text, line);
    CHECK(at);
    return at ? strtoull(at + strlen(line), NULL, 10) : 0;
}

/* Not one for each chunk: a put has a price. */
TEST(chunks_of_a_save_are_one_put)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_groups = 2});
    uint64_t before = metric(&k, "\"stores\":");
    ck_save_prompt(&k, 1, tokens, 128, 0);
    CHECK_INT(metric(&k, "\"stores\":") - before, 2);
    CHECK_INT(ck_worker_stats(&k, 0).chunks_gathered, 16);
    CHECK_INT(ck_worker_stats(&k, 0).tokens_saved, 256);
    CHECK_INT(ck_worker_stats(&k, 0).bytes_saved,
              256 * (uint64_t)(CK_LAYERS * CK_PLANES * CK_ROW_BYTES));
    CHECK_INT(ck_find(&k, tokens, 128), 127);
    ck_close(&k);
}

TEST(a_save_larger_than_the_cache_keeps_its_beginning)
{
    static const char *const small[] = {"host_size", "1M", "host_page_size", "256K", NULL};
    struct ck k;
    ck_open(&k, &(struct ck_options){.cache = small});
    begin(&k, 1, 128);
    CHECK_INT(ck_finish(&k, 1, 128, 128), 1);
    struct ck_answer answer;
    ck_settle(&k, &answer);
    CHECK_INT(answer.n_sent, 1);
    CHECK_INT(ck_stats(&k).saves_failed, 1);
    CHECK_INT(ck_stats(&k).jobs_in_flight, 0);
    int found = ck_find(&k, tokens, 128);
    CHECK(found > 0 && found <= 64);
    ck_close(&k);
}

int main(void)
{
    ck_number(tokens, blocks);
    RUN(blocks_may_be_reused_once_they_were_read);
    RUN(a_cache_without_room_fails_the_save_and_nothing_else);
    RUN(what_stands_behind_a_failed_save_is_not_gathered);
    RUN(all_groups_of_a_chunk_are_saved);
    RUN(chunks_of_a_save_are_one_put);
    RUN(a_save_larger_than_the_cache_keeps_its_beginning);
    return test_end();
}
