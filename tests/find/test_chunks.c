/* test_chunks.c - the chunks of a prompt: each block and segment has the range, digest, extra and
 * key that the words of chunk.h give it, computed here step by step; prompts that make no sense are
 * refused in words. */
#include "find/find.h"

#include "support/cache_kit.h"
#include "support/test.h"

static const struct tsri_digest pure;

static bool same_key(struct tsri_key a, struct tsri_key b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

/* ---- prefix blocks ---- */

static void check_blocks(struct kit *k, const struct tsr_prompt *p, bool partial)
{
    static struct tsri_walk w;
    CHECK_INT(tsri_walk_init(&w, k->space, p), 0);
    struct tsri_digest chain;
    tsri_digest_root(k->cache->hash, &chain);
    struct tsri_chunk chunk;
    for (uint32_t at = 0; at < p->n_tokens; at += 16) {
        uint32_t n = tsri_min_u32(16, p->n_tokens - at);
        if (n < 16 && !partial) break;
        CHECK(tsri_walk_block(&w, &chunk));
        CHECK_INT(chunk.range.offset, at);
        CHECK_INT(chunk.range.n_tokens, n);
        CHECK_INT(chunk.kind, TSR_KIND_PREFIX);
        CHECK(!chunk.system);
        CHECK(tsri_digest_equal(&chunk.digest, &chain));
        CHECK(same_key(chunk.tokens_hash, tsri_tokens_hash(p->tokens + at, n)));
        uint8_t extra[TSRI_EXTRA_BYTES_MAX];
        size_t bytes =
            (size_t)tsri_extra_encode(p->extra, p->n_extra, (struct tsr_range){at, n}, extra);
        CHECK_INT(chunk.extra_bytes, bytes);
        CHECK(memcmp(chunk.extra, extra, bytes) == 0);
        CHECK(same_key(chunk.extra_hash, tsri_extra_hash(extra, bytes)));
        tsri_digest_next(k->cache->hash, &chain, p->tokens + at, n, extra, bytes, &chain);
        tsri_walk_passed(&w, &chunk);
    }
    CHECK(!tsri_walk_block(&w, &chunk));
    CHECK(!tsri_walk_block(&w, &chunk)); /* the end is the end */
    CHECK(!tsri_walk_segment(&w, &chunk));
}

TEST(blocks_follow_each_other_each_behind_the_digest_of_all_before)
{
    static const char *const hashes[] = {"sha256", "xxh3"};
    for (uint32_t h = 0; h < 2; h++) {
        struct kit k;
        kit_open(&k, (const char *[]){"hash", hashes[h], NULL});
        uint32_t *tokens = kit_tokens(1, 200);
        for (uint32_t n = 1; n <= 100; n++) {
            struct tsr_prompt p = kit_prefix_prompt(tokens, n);
            check_blocks(&k, &p, false);
            p.flags = 0; /* means PREFIX */
            check_blocks(&k, &p, false);
        }
        free(tokens);
        kit_close(&k);
    }
}

TEST(a_last_block_that_is_not_full_counts_where_it_is_saved)
{
    struct kit k;
    kit_open(&k, (const char *[]){"save_partial", "true", NULL});
    uint32_t *tokens = kit_tokens(1, 50);
    for (uint32_t n = 1; n <= 50; n++) {
        struct tsr_prompt p = kit_prefix_prompt(tokens, n);
        check_blocks(&k, &p, true);
    }
    free(tokens);
    kit_close(&k);
}

TEST(every_block_carries_its_extras_and_media_only_where_they_stand)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 100);
    struct tsr_extra extra[] = {
        {TSR_EXTRA_MEDIA, 20, 20, 4, "imgA"}, /* blocks 1 and 2 */
        {TSR_EXTRA_SALT, 0, 0, 3, "who"},
        {TSR_EXTRA_MEDIA, 79, 1, 4, "imgB"}, /* block 4 */
        {TSR_EXTRA_ADAPTER, 0, 0, 5, "adapt"},
    };
    struct tsr_prompt p = kit_prefix_prompt(tokens, 100);
    p.extra = extra;
    p.n_extra = 2;
    check_blocks(&k, &p, false);
    p.n_extra = 4;
    check_blocks(&k, &p, false);
    p.extra = extra + 1; /* without media */
    p.n_extra = 1;
    check_blocks(&k, &p, false);
    free(tokens);
    kit_close(&k);
}

/* ---- segments ---- */

TEST(segments_come_as_given)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 100);
    struct tsr_range ranges[] = {{0, 1}, {1, 30}, {40, 20}, {99, 1}};
    struct tsr_prompt p = kit_prefix_prompt(tokens, 100);
    p.flags = TSR_PROMPT_SEGMENTS;
    p.segments = ranges;
    p.n_segments = 4;
    static struct tsri_walk w;
    struct tsri_chunk chunk;
    CHECK_INT(tsri_walk_init(&w, k.space, &p), 0);
    CHECK(!tsri_walk_block(&w, &chunk));
    CHECK(!w.has_context);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK(tsri_walk_segment(&w, &chunk));
        CHECK_INT(chunk.range.offset, ranges[i].offset);
        CHECK_INT(chunk.range.n_tokens, ranges[i].n_tokens);
        CHECK_INT(chunk.kind, TSR_KIND_SEGMENT);
        CHECK(!chunk.system);
        CHECK_INT(chunk.extra_bytes, 0);
        CHECK(same_key(chunk.tokens_hash,
                       tsri_tokens_hash(tokens + ranges[i].offset, ranges[i].n_tokens)));
    }
    CHECK(!tsri_walk_segment(&w, &chunk));
    p.flags |= TSR_PROMPT_PREFIX; /* both, blocks first */
    CHECK_INT(tsri_walk_init(&w, k.space, &p), 0);
    uint32_t n_blocks = 0, n_segments = 0;
    for (; tsri_walk_block(&w, &chunk); n_blocks++)
        tsri_walk_passed(&w, &chunk);
    for (; tsri_walk_segment(&w, &chunk); n_segments++) {
    }
    CHECK_INT(n_blocks, 6);
    CHECK_INT(n_segments, 4);
    free(tokens);
    kit_close(&k);
}

static int walk_of(struct kit *k, const struct tsr_prompt *p)
{
    static struct tsri_walk w;
    return tsri_walk_init(&w, k->space, p);
}

TEST(segments_that_make_no_sense_are_refused_by_number)
{
    struct kit k;
    kit_open(&k, (const char *[]){"segments_max", "5", NULL});
    uint32_t *tokens = kit_tokens(1, 100);
    struct tsr_prompt p = kit_prefix_prompt(tokens, 100);
    p.flags = TSR_PROMPT_SEGMENTS;
    p.n_segments = 2;
    struct tsr_range empty[] = {{0, 5}, {5, 0}};
    p.segments = empty;
    CHECK_INT(walk_of(&k, &p), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "segment 1 is empty");
    struct tsr_range overlap[] = {{0, 6}, {5, 5}};
    p.segments = overlap;
    CHECK_INT(walk_of(&k, &p), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "segment 1 begins at token 5, before the previous one ends");
    struct tsr_range descending[] = {{50, 6}, {5, 5}};
    p.segments = descending;
    CHECK_INT(walk_of(&k, &p), TSR_EINVAL);
    struct tsr_range beyond[] = {{0, 6}, {90, 11}};
    p.segments = beyond;
    CHECK_INT(walk_of(&k, &p), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "segment 1 ends at token 101, the prompt has 100");
    struct tsr_range wraps[] = {{0, 6}, {90, UINT32_MAX - 50}};
    p.segments = wraps;
    CHECK_INT(walk_of(&k, &p), TSR_EINVAL);
    struct tsr_range many[6];
    for (uint32_t i = 0; i < 6; i++)
        many[i] = (struct tsr_range){i, 1};
    p.segments = many;
    p.n_segments = 5;
    CHECK_INT(walk_of(&k, &p), 0);
    p.n_segments = 6;
    CHECK_INT(walk_of(&k, &p), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "segments_max 5");
    p.segments = NULL;
    p.n_segments = 2;
    CHECK_INT(walk_of(&k, &p), TSR_EINVAL);
    free(tokens);
    kit_close(&k);
}

TEST(separators_cut_and_the_question_is_no_segment)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t tokens[] = {1, 2, 3, 77, 4, 5, 77, 6, 7, 8};
    struct tsr_prompt p = kit_prefix_prompt(tokens, 10);
    p.flags = TSR_PROMPT_SEGMENTS;
    CHECK_INT(walk_of(&k, &p), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "no segments or separators");
    uint32_t separator = 77, length = 1;
    CHECK_INT(tsr_separators_set(k.space, &separator, &length, 1), 0);
    static struct tsri_walk w;
    struct tsri_chunk chunk;
    CHECK_INT(tsri_walk_init(&w, k.space, &p), 0);
    CHECK(tsri_walk_segment(&w, &chunk));
    CHECK_INT(chunk.range.offset, 0);
    CHECK_INT(chunk.range.n_tokens, 4);
    CHECK(tsri_walk_segment(&w, &chunk));
    CHECK_INT(chunk.range.offset, 4);
    CHECK_INT(chunk.range.n_tokens, 3);
    CHECK(!tsri_walk_segment(&w, &chunk));
    p.n_tokens = 3; /* no separator */
    CHECK_INT(walk_of(&k, &p), TSR_EPROMPT);
    CHECK_INT(tsri_stats_read(k.cache->stats, TSRI_M_prompts_malformed), 1);
    CHECK_INT(tsri_stats_read(k.cache->stats, TSRI_M_separators_unseen), 1);
    p.n_tokens = 4; /* no question */
    CHECK_INT(walk_of(&k, &p), TSR_EPROMPT);
    CHECK_INT(tsri_stats_read(k.cache->stats, TSRI_M_prompts_malformed), 2);
    CHECK_INT(tsri_stats_read(k.cache->stats, TSRI_M_separators_unseen), 1);
    kit_close(&k);
}

TEST(the_first_segment_is_the_context_of_the_others)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 100);
    struct tsr_range ranges[] = {{3, 10}, {20, 30}, {60, 20}};
    struct tsr_prompt p = kit_prefix_prompt(tokens, 100);
    p.flags = TSR_PROMPT_SEGMENTS | TSR_PROMPT_CONTEXT;
    p.segments = ranges;
    p.n_segments = 3;
    static struct tsri_walk w;
    struct tsri_chunk chunk;
    CHECK_INT(tsri_walk_init(&w, k.space, &p), 0);
    CHECK(w.has_context);
    struct tsri_digest context;
    tsri_digest_context(k.cache->hash, tokens + 3, 10, &context);
    CHECK(tsri_digest_equal(&w.context, &context));
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(tsri_walk_segment(&w, &chunk));
        CHECK(chunk.system == (i == 0));
    }
    p.flags = TSR_PROMPT_PREFIX | TSR_PROMPT_CONTEXT; /* of no segments */
    CHECK_INT(tsri_walk_init(&w, k.space, &p), 0);
    CHECK(!w.has_context);
    free(tokens);
    kit_close(&k);
}

TEST(a_context_that_is_given_is_that_of_all_segments_but_the_system_prompt)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 100), *primer = kit_tokens(2, 30);
    struct tsr_range ranges[] = {{0, 10}, {20, 30}, {60, 20}};
    struct tsr_extra image = {TSR_EXTRA_MEDIA, 5, 2, 4, "imgA"};
    struct tsr_prompt p = kit_segments_prompt(tokens, 100, ranges, 3);
    p.context = primer;
    p.n_context = 30;
    static struct tsri_walk w;
    struct tsri_chunk chunk;
    struct tsri_digest context;
    tsri_digest_context(k.cache->hash, primer, 30, &context);
    for (uint32_t system = 0; system < 2; system++) {
        p.flags = TSR_PROMPT_SEGMENTS | (system ? TSR_PROMPT_CONTEXT : 0);
        CHECK_INT(tsri_walk_init(&w, k.space, &p), 0);
        CHECK(w.has_context && w.has_system == (system == 1));
        CHECK(tsri_digest_equal(&w.context, &context));
        for (uint32_t i = 0; i < 3; i++) {
            CHECK(tsri_walk_segment(&w, &chunk));
            CHECK(chunk.system == (system && i == 0));
        }
    }
    /* An image in the system prompt is no matter: nothing else has seen it. */
    p.extra = &image;
    p.n_extra = 1;
    CHECK_INT(tsri_walk_init(&w, k.space, &p), 0);
    CHECK(w.has_context && w.has_system && tsri_digest_equal(&w.context, &context));
    p.flags = TSR_PROMPT_PREFIX;
    CHECK_INT(tsri_walk_init(&w, k.space, &p), 0);
    CHECK(!w.has_context && !w.has_system);
    p.context = NULL;
    CHECK_INT(walk_of(&k, &p), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "context of 30 tokens");
    free(tokens), free(primer);
    kit_close(&k);
}

TEST(segments_never_cover_media_and_carry_the_other_extras)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 100);
    struct tsr_range ranges[] = {{0, 10}, {10, 30}, {40, 20}, {60, 10}};
    struct tsr_extra extra[] = {{TSR_EXTRA_MEDIA, 25, 20, 3, "img"},
                                {TSR_EXTRA_SALT, 0, 0, 3, "who"}};
    struct tsr_prompt p = kit_prefix_prompt(tokens, 100);
    p.flags = TSR_PROMPT_SEGMENTS | TSR_PROMPT_CONTEXT;
    p.segments = ranges;
    p.n_segments = 4;
    p.extra = extra;
    p.n_extra = 2;
    uint8_t common[TSRI_EXTRA_BYTES_MAX];
    size_t bytes = (size_t)tsri_extra_encode(&extra[1], 1, (struct tsr_range){0, 10}, common);
    static struct tsri_walk w;
    struct tsri_chunk chunk;
    CHECK_INT(tsri_walk_init(&w, k.space, &p), 0);
    uint32_t want[] = {0, 60};
    for (uint32_t i = 0; i < 2; i++) {
        CHECK(tsri_walk_segment(&w, &chunk));
        CHECK_INT(chunk.range.offset, want[i]);
        CHECK_INT(chunk.extra_bytes, bytes);
        CHECK(memcmp(chunk.extra, common, bytes) == 0);
        CHECK(same_key(chunk.extra_hash, tsri_extra_hash(common, bytes)));
        CHECK(chunk.system == (i == 0));
    }
    CHECK(!tsri_walk_segment(&w, &chunk));
    free(tokens);
    kit_close(&k);
}

TEST(a_system_prompt_with_media_is_nobodys_context)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 100);
    struct tsr_range ranges[] = {{0, 20}, {20, 40}};
    struct tsr_extra image = {TSR_EXTRA_MEDIA, 5, 10, 4, "imgA"};
    struct tsr_prompt p = kit_prefix_prompt(tokens, 100);
    p.flags = TSR_PROMPT_SEGMENTS | TSR_PROMPT_CONTEXT;
    p.segments = ranges;
    p.n_segments = 2;
    /* Stored behind these tokens, with or without an image in their place. */
    CHECK_INT(kit_store_behind(&k, tokens, 20, tokens + 20, 40), 40);
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&k, &p, 0, &hits), 40);
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_SAME);
    /* Another image may stand there: its tokens do not tell. */
    p.extra = &image;
    p.n_extra = 1;
    CHECK_INT(kit_lookup(&k, &p, 0, &hits), 0);
    CHECK_INT(kit_store_segment(&k, tokens + 20, 40), 40);
    CHECK_INT(kit_lookup(&k, &p, 0, &hits), 40); /* computed alone it saw no image */
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_PURE);
    free(tokens);
    kit_close(&k);
}

/* ---- keys and prompts ---- */

TEST(a_key_is_made_of_kind_space_digest_extra_and_tokens)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 40);
    struct tsr_extra salt = {TSR_EXTRA_SALT, 0, 0, 3, "who"};
    struct tsr_range range;
    struct tsr_prompt p = kit_segment_prompt(tokens, 40, &range);
    p.extra = &salt;
    p.n_extra = 1;
    static struct tsri_walk w;
    struct tsri_chunk chunk;
    CHECK_INT(tsri_walk_init(&w, k.space, &p), 0);
    CHECK(tsri_walk_segment(&w, &chunk));
    uint8_t extra[TSRI_EXTRA_BYTES_MAX];
    size_t bytes = (size_t)tsri_extra_encode(&salt, 1, range, extra);
    struct tsri_key_parts parts = {.kind = TSR_KIND_SEGMENT,
                                   .n_tokens = 40,
                                   .extra = tsri_extra_hash(extra, bytes),
                                   .tokens = tsri_tokens_hash(tokens, 40)};
    memcpy(parts.space, k.space->fingerprint, 16);
    CHECK(same_key(tsri_chunk_key(k.space, &chunk, &pure), tsri_key_make(&parts)));
    memset(&parts.digest, 7, sizeof parts.digest);
    CHECK(same_key(tsri_chunk_key(k.space, &chunk, &parts.digest), tsri_key_make(&parts)));
    k.cache->key_mask = 0xFF; /* what tests of collisions use */
    struct tsri_key key = tsri_chunk_key(k.space, &chunk, &parts.digest);
    CHECK(key.lo <= 0xFF && key.hi <= 0xFF);
    k.cache->key_mask = UINT64_MAX;
    free(tokens);
    kit_close(&k);
}

TEST(prompts_that_make_no_sense_are_refused)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 40);
    struct tsr_prompt p = kit_prefix_prompt(tokens, 0);
    CHECK_INT(walk_of(&k, &p), TSR_EINVAL);
    p = kit_prefix_prompt(NULL, 10);
    CHECK_INT(walk_of(&k, &p), TSR_EINVAL);
    p = kit_prefix_prompt(tokens, (uint32_t)INT32_MAX + 1);
    CHECK_INT(walk_of(&k, &p), TSR_ERANGE);
    p = kit_prefix_prompt(tokens, 40);
    p.flags = 64;
    CHECK_INT(walk_of(&k, &p), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "unknown flags 0x40");
    struct tsr_extra bad = {TSR_EXTRA_MEDIA, 30, 11, 3, "img"};
    p = kit_prefix_prompt(tokens, 40);
    p.extra = &bad;
    p.n_extra = 1;
    CHECK_INT(walk_of(&k, &p), TSR_EINVAL);
    struct tsr_range range;
    p = kit_segment_prompt(tokens, 40, &range);
    p.flags = TSR_PROMPT_BLENDED;
    CHECK_INT(walk_of(&k, &p), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "need a recipe");
    p.recipe = "r";
    p.recipe_bytes = 1;
    static struct tsri_walk w;
    struct tsri_chunk chunk;
    CHECK_INT(tsri_walk_init(&w, k.space, &p), 0);
    CHECK(w.blended);
    struct tsri_digest recipe;
    tsri_digest_recipe(k.cache->hash, "r", 1, &recipe);
    CHECK(tsri_digest_equal(&w.recipe, &recipe));
    CHECK(tsri_walk_segment(&w, &chunk)); /* blended are segments */
    free(tokens);
    kit_close(&k);
}

int main(void)
{
    RUN(blocks_follow_each_other_each_behind_the_digest_of_all_before);
    RUN(a_last_block_that_is_not_full_counts_where_it_is_saved);
    RUN(every_block_carries_its_extras_and_media_only_where_they_stand);
    RUN(segments_come_as_given);
    RUN(segments_that_make_no_sense_are_refused_by_number);
    RUN(separators_cut_and_the_question_is_no_segment);
    RUN(the_first_segment_is_the_context_of_the_others);
    RUN(a_context_that_is_given_is_that_of_all_segments_but_the_system_prompt);
    RUN(segments_never_cover_media_and_carry_the_other_extras);
    RUN(a_system_prompt_with_media_is_nobodys_context);
    RUN(a_key_is_made_of_kind_space_digest_extra_and_tokens);
    RUN(prompts_that_make_no_sense_are_refused);
    return test_end();
}
