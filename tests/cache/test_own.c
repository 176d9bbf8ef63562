/* The table of a cache that has its entries itself, beside that of a client of a server. */
#include "cache/backend.h"
#include "support/cache_kit.h"
#include "support/test.h"

/* A table is nothing but function pointers. */
static uint32_t holes(const struct tsri_backend *backend)
{
    uint32_t n = 0;
    for (size_t at = 0; at < sizeof *backend; at += sizeof(void (*)(void))) {
        void (*fn)(void);
        memcpy(&fn, (const char *)backend + at, sizeof fn);
        n += fn == NULL;
    }
    return n;
}

TEST(both_backends_answer_every_call)
{
    CHECK_INT(holes(&tsri_backend_own), 0);
    CHECK_INT(holes(&tsri_backend_served), 0);
}

TEST(a_cache_of_ones_own_is_always_there_and_shares_no_memory)
{
    struct kit k;
    struct tsr_shared shared = {.size = sizeof shared};
    kit_open(&k, NULL);
    CHECK_INT(tsr_cache_connected(k.cache, 0), 0);
    CHECK_INT(tsr_shared_open(k.client, &shared), TSR_EUNSUP);
    kit_close(&k);
}

TEST(an_unknown_format_of_numbers_is_refused)
{
    struct kit k;
    char text[16];
    kit_open(&k, NULL);
    CHECK_INT(tsr_cache_stats_text(k.cache, "yaml", text, sizeof text), TSR_EINVAL);
    CHECK(tsr_cache_stats_text(k.cache, "json", text, sizeof text) > 16);
    kit_close(&k);
}

/* The caller's struct may be an older, shorter one. */
TEST(a_prompt_to_clear_may_be_of_an_older_header)
{
    struct kit k;
    struct {
        struct tsr_prompt prompt;
        uint8_t beyond[64];
    } given;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 32);
    CHECK_INT(kit_store_prefix(&k, tokens, 32), 32);
    memset(&given, 0xff, sizeof given);
    struct tsr_prompt whole = kit_prefix_prompt(tokens, 32);
    size_t known = offsetof(struct tsr_prompt, flags) + sizeof whole.flags;
    memcpy(&given.prompt, &whole, known);
    given.prompt.size = known;
    struct tsr_clear_desc clear = {
        .size = sizeof clear, .tier = -1, .space = k.space, .prompt = &given.prompt};
    CHECK_INT(tsr_cache_clear(k.cache, &clear), 2);
    given.prompt.size = 0;
    CHECK_INT(tsr_cache_clear(k.cache, &clear), TSR_EINVAL);
    free(tokens);
    kit_close(&k);
}

TEST(a_prompt_may_be_cleared_from_a_block_on)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 48);
    CHECK_INT(kit_store_prefix(&k, tokens, 48), 48);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 48);
    struct tsr_clear_desc clear = {
        .size = sizeof clear, .tier = -1, .space = k.space, .prompt = &prompt, .from = 10};
    CHECK_INT(tsr_cache_clear(k.cache, &clear), TSR_EINVAL);
    clear.from = 16;
    CHECK_INT(tsr_cache_clear(k.cache, &clear), 2);
    clear.from = 0;
    CHECK_INT(tsr_cache_clear(k.cache, &clear), 1);
    free(tokens);
    kit_close(&k);
}

int main(void)
{
    RUN(both_backends_answer_every_call);
    RUN(a_cache_of_ones_own_is_always_there_and_shares_no_memory);
    RUN(an_unknown_format_of_numbers_is_refused);
    RUN(a_prompt_to_clear_may_be_of_an_older_header);
    RUN(a_prompt_may_be_cleared_from_a_block_on);
    return test_end();
}
