/* test_chunked.c - with option chunked a prompt is cut at its separators: the same chunk is found
 * behind another system prompt, in another order, the first time and again. */
#include "blend/blend.h"
#include "support/blend_kit.h"
#include "support/test.h"

#define SEPARATOR 127u
static struct blend_kit k;
static struct tsr_cache *cache;
static struct tsr_blend *blend;
static uint32_t prompt[512], n_prompt;

static void open_all(bool chunked)
{
    struct tsr_config *cfg;
    CHECK_INT(tsr_config_open(&cfg), 0);
    CHECK_INT(tsr_config_load_file(cfg, "tests/config/fixtures/chunk_cache.yaml"), 0);
    CHECK_INT(tsr_config_set(cfg, "host_size", "16M"), 0);
    CHECK_INT(tsr_config_set(cfg, "enable_chunk_cache", chunked ? "true" : "false"), 0);
    CHECK_INT(tsr_config_set(cfg, "blend_min_tokens", "0"), 0);
    CHECK_INT(tsr_cache_open(&cache, cfg), 0);
    tsr_config_close(cfg);
    blend_kit_open(&k, "llama", TSR_DTYPE_F32, 0);
    struct tsr_blend_desc desc = {.size = sizeof desc, .model = k.model.model, .cache = cache};
    const uint32_t token = SEPARATOR, length = 1;
    CHECK_INT(tsr_blend_open(&blend, &desc), 0);
    CHECK_INT(tsr_separators_set(tsr_blend_space(blend), &token, &length, 1), 0);
}

static void close_all(void)
{
    tsr_blend_close(blend);
    tsr_cache_close(cache);
    CHECK(blend_kit_close(&k));
}

/* n tokens that only `seed` decides on, and a separator. */
static void add(uint32_t seed, uint32_t n, bool separated)
{
    for (uint32_t i = 0; i < n; i++)
        prompt[n_prompt++] = (seed * 31 + i * 7 + i * i % 11) % 120;
    if (separated) prompt[n_prompt++] = SEPARATOR;
}

static int ask(uint32_t flags)
{
    struct tsr_ask_desc a = {.size = sizeof a,
                             .session = k.model.session,
                             .tokens = prompt,
                             .n_tokens = n_prompt,
                             .selector = TSR_SELECT_NONE,
                             .flags = flags};
    k.report = (struct tsr_blend_report){.size = sizeof k.report};
    return tsr_blend_ask(blend, &a, k.logits, &k.report);
}

static void make_prompt(uint32_t system, uint32_t n_system, uint32_t first, uint32_t second)
{
    n_prompt = 0;
    add(system, n_system, true);
    add(first, 50, true);
    if (second) add(second, 50, true);
    add(77, 9, false);
}

TEST(a_chunk_is_a_hit_behind_another_system_prompt_and_in_another_order)
{
    open_all(true);
    make_prompt(1, 20, 5, 6);
    CHECK_INT(ask(TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_filled, 21 + 2 * 51);
    CHECK_INT(ask(TSR_ASK_FILL), 0); /* again */
    CHECK_INT(k.report.n_filled, 0);
    CHECK_INT(k.report.n_exact + k.report.n_reused, 21 + 2 * 51);
    make_prompt(2, 13, 5, 0);
    CHECK_INT(ask(TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_filled, 14); /* the system prompt alone */
    CHECK_INT(k.report.n_reused, 51);
    make_prompt(1, 20, 6, 5);
    CHECK_INT(ask(TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_filled, 0);
    close_all();
}

TEST(nothing_is_cut_unless_somebody_asks)
{
    open_all(false);
    make_prompt(1, 20, 5, 6);
    CHECK_INT(ask(TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_filled, 0);
    close_all();
    open_all(true);
    n_prompt = 0;
    add(3, 60, false); /* no separator */
    CHECK_INT(ask(TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_filled, 0);
    close_all();
}

TEST(a_malformed_prompt_is_refused_with_its_token)
{
    open_all(true);
    n_prompt = 0;
    add(1, 4, true);
    add(2, 0, true);
    add(3, 4, false);
    CHECK_INT(ask(0), TSR_EPROMPT);
    CHECK_HAS(tsr_errmsg(), "nothing before the separator at token 5");
    struct tsr_ask_desc a = {.size = sizeof a, .tokens = prompt, .n_tokens = n_prompt};
    CHECK_INT(tsr_blend_learn(blend, &a, NULL, NULL), TSR_EPROMPT);
    close_all();
}

TEST(documents_are_learnt_without_an_answer)
{
    open_all(true);
    make_prompt(1, 20, 5, 6);
    struct tsr_ask_desc a = {.size = sizeof a, .tokens = prompt, .n_tokens = n_prompt};
    CHECK_INT(tsr_blend_learn(blend, &a, NULL, NULL), 21 + 2 * 51);
    CHECK_INT(ask(TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_filled, 0);
    close_all();
}

/* Both of its documents are stored, behind another system prompt and the other way around. */
static struct tsr_prompt known_in_another_order(void)
{
    make_prompt(1, 20, 5, 6);
    CHECK_INT(ask(TSR_ASK_FILL), 0);
    make_prompt(2, 13, 6, 5);
    return (struct tsr_prompt){
        .size = sizeof(struct tsr_prompt), .tokens = prompt, .n_tokens = n_prompt};
}

TEST(lookups_without_flags_find_chunks)
{
    struct tsr_match matches[8];
    struct tsr_client *client;
    open_all(true);
    struct tsr_space *space = tsr_blend_space(blend);
    struct tsr_prompt p = known_in_another_order();
    struct tsr_lookup_desc io = {
        .size = sizeof io, .spaces = &space, .n_spaces = 1, .matches = matches, .matches_max = 8};
    CHECK_INT(tsr_client_open(&client, cache), 0);
    CHECK_INT(tsr_client_lookup(client, &p, &io), 2 * 51);
    CHECK_INT(io.n_matches, 2);
    CHECK_INT(matches[0].prompt_offset, 14);
    p.flags = TSR_PROMPT_PREFIX;
    CHECK_INT(tsr_client_lookup(client, &p, &io), 0);
    tsr_client_close(client);
    close_all();
}

TEST(other_calls_without_flags_mean_chunks_too)
{
    struct tsr_key keys[16];
    open_all(true);
    struct tsr_space *space = tsr_blend_space(blend);
    struct tsr_prompt p = known_in_another_order();
    struct tsr_clear_desc clear = {
        .size = sizeof clear, .space = space, .prompt = &p, .tier = TSR_CLEAR_ALL};
    CHECK_INT(tsr_space_pin(space, &p), 2);
    CHECK_INT(tsr_cache_clear(cache, &clear), 0); /* pinned */
    CHECK_INT(tsr_space_unpin(space, &p), 2);
    CHECK_INT(tsr_space_touch(space, &p), 2);
    int n = tsr_space_keys(space, &p, keys, 16);
    p.flags = TSR_PROMPT_PREFIX;
    CHECK(n > tsr_space_keys(space, &p, keys, 16));
    CHECK_INT(tsr_cache_clear(cache, &clear), 0);
    p.flags = 0;
    CHECK_INT(tsr_cache_clear(cache, &clear), 2);
    close_all();
}

int main(void)
{
    RUN(a_chunk_is_a_hit_behind_another_system_prompt_and_in_another_order);
    RUN(nothing_is_cut_unless_somebody_asks);
    RUN(a_malformed_prompt_is_refused_with_its_token);
    RUN(documents_are_learnt_without_an_answer);
    RUN(lookups_without_flags_find_chunks);
    RUN(other_calls_without_flags_mean_chunks_too);
    return test_end();
}
