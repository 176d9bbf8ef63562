/* Lookup through the public API: prefix chains, segments, contexts, several spaces, extras, blended
 * KV, and how they are put together. What a lookup finds is loaded and every byte is checked, so a
 * match that stands for other tokens, another parent or another space cannot pass. */
#include "support/cache_kit.h"
#include "support/test.h"

enum { BLOCK = 16 };

/* Tokens of several runs, one after the other. */
static uint32_t *joined(const uint32_t *a, uint32_t n_a, const uint32_t *b, uint32_t n_b)
{
    uint32_t *all = malloc((n_a + n_b) * sizeof all[0]);
    memcpy(all, a, n_a * sizeof all[0]);
    memcpy(all + n_a, b, n_b * sizeof all[0]);
    return all;
}

/* ---- prefixes ---- */

TEST(a_prefix_is_the_longest_run_of_blocks_from_token_0)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 200);
    CHECK_INT(kit_store_prefix(&k, tokens, 100), 96);
    CHECK_INT(kit_find_prefix(&k, tokens, 200), 96);
    CHECK_INT(kit_find_prefix(&k, tokens, 96), 96);
    CHECK_INT(kit_find_prefix(&k, tokens, 95), 80);
    CHECK_INT(kit_find_prefix(&k, tokens, 15), 0);

    struct kit_hits hits;
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 200);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 96);
    CHECK_INT(hits.io.n_matches, 6);
    CHECK_INT(hits.io.n_prefix_tokens, 96);
    for (uint32_t i = 0; i < 6; i++) {
        const struct tsr_match *m = &hits.matches[i];
        CHECK_INT(m->prompt_offset, i * BLOCK);
        CHECK_INT(m->entry_offset, 0);
        CHECK_INT(m->n_tokens, BLOCK);
        CHECK_INT(m->kind, TSR_KIND_PREFIX);
        CHECK_INT(m->context, TSR_CONTEXT_SAME);
        CHECK_INT(m->tier, 0);
        CHECK_INT(m->verified, 1);
        CHECK_INT(m->base, i * BLOCK);
    }
    CHECK_INT(kit_load_and_check(&k, &prompt), 96);

    tokens[40]++; /* in block 2 */
    CHECK_INT(kit_find_prefix(&k, tokens, 200), 32);
    tokens[0]++;
    CHECK_INT(kit_find_prefix(&k, tokens, 200), 0);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(equal_blocks_behind_different_parents_never_share)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *a = kit_tokens(1, BLOCK), *b = kit_tokens(2, BLOCK), *same = kit_tokens(3, 2 * BLOCK);
    uint32_t *behind_a = joined(a, BLOCK, same, 2 * BLOCK);
    uint32_t *behind_b = joined(b, BLOCK, same, 2 * BLOCK);
    CHECK_INT(kit_store_prefix(&k, behind_a, 48), 48);
    CHECK_INT(kit_find_prefix(&k, behind_b, 48), 0);
    CHECK_INT(kit_find_prefix(&k, same, 32), 0);
    CHECK_INT(kit_store_prefix(&k, behind_b, 48), 48);
    CHECK_INT(kit_stats(&k).entries, 6);
    struct tsr_prompt pa = kit_prefix_prompt(behind_a, 48), pb = kit_prefix_prompt(behind_b, 48);
    CHECK_INT(kit_load_and_check(&k, &pa), 48);
    CHECK_INT(kit_load_and_check(&k, &pb), 48);
    /* The same block as its own parent is another block too. */
    uint32_t *twice = joined(a, BLOCK, a, BLOCK);
    CHECK_INT(kit_find_prefix(&k, twice, 32), BLOCK);
    CHECK_INT(kit_store_prefix(&k, twice, 32), BLOCK);
    struct tsr_prompt pt = kit_prefix_prompt(twice, 32);
    CHECK_INT(kit_load_and_check(&k, &pt), 32);
    free(a), free(b), free(same), free(behind_a), free(behind_b), free(twice);
    CHECK(kit_end(&k));
}

TEST(a_prefix_is_no_segment_and_a_segment_no_prefix)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *a = kit_tokens(1, BLOCK), *b = kit_tokens(2, BLOCK);
    CHECK_INT(kit_store_prefix(&k, a, BLOCK), BLOCK);
    CHECK_INT(kit_store_segment(&k, b, BLOCK), BLOCK);
    CHECK_INT(kit_find_segment(&k, a, BLOCK), 0);
    CHECK_INT(kit_find_prefix(&k, b, BLOCK), 0);
    free(a), free(b);
    CHECK(kit_end(&k));
}

TEST(chains_by_xxh3_are_found_and_bound_as_those_by_sha256)
{
    const char *const options[] = {"hash", "xxh3", NULL};
    struct kit k;
    kit_open(&k, options);
    uint32_t *tokens = kit_tokens(1, 64);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), 64);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 64);
    CHECK_INT(kit_load_and_check(&k, &prompt), 64);
    tokens[3]++;
    CHECK_INT(kit_find_prefix(&k, tokens, 64), 0);
    free(tokens);
    CHECK(kit_end(&k));
}

/* ---- segments ---- */

TEST(segments_are_found_at_any_offset)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *doc = kit_tokens(1, 75), *other = kit_tokens(2, 30);
    CHECK_INT(kit_store_segment(&k, doc, 75), 75);
    uint32_t *prompt_tokens = joined(other, 30, doc, 75);
    const struct tsr_range ranges[] = {{0, 30}, {30, 75}};
    struct tsr_prompt prompt = kit_segments_prompt(prompt_tokens, 105, ranges, 2);
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 75);
    CHECK_INT(hits.io.n_matches, 1);
    CHECK_INT(hits.io.n_prefix_tokens, 0);
    CHECK_INT(hits.matches[0].prompt_offset, 30);
    CHECK_INT(hits.matches[0].n_tokens, 75);
    CHECK_INT(hits.matches[0].kind, TSR_KIND_SEGMENT);
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_PURE);
    CHECK_INT(hits.matches[0].base, 0);
    CHECK_INT(kit_load_and_check(&k, &prompt), 75);
    /* One token more or less is another segment. */
    CHECK_INT(kit_find_segment(&k, doc, 74), 0);
    prompt_tokens[60]++;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 0);
    free(doc), free(other), free(prompt_tokens);
    CHECK(kit_end(&k));
}

TEST(more_segments_than_a_batch_are_found_in_order)
{
    enum { N = 200, LENGTH = 3 };
    struct kit k;
    kit_open(&k, (const char *const[]){"host_size", "4M", NULL});
    uint32_t *tokens = kit_tokens(7, N * LENGTH);
    struct tsr_range ranges[N];
    int stored = 0;
    for (uint32_t i = 0; i < N; i++) {
        ranges[i] = (struct tsr_range){i * LENGTH, LENGTH};
        if (i % 3 == 1) continue;
        CHECK_INT(kit_store_segment(&k, tokens + i * LENGTH, LENGTH), LENGTH);
        stored++;
    }
    struct tsr_prompt prompt = kit_segments_prompt(tokens, N * LENGTH, ranges, N);
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), stored * LENGTH);
    CHECK_INT(hits.io.n_matches, stored);
    for (uint32_t i = 0, row = 0; i < N; i++)
        if (i % 3 != 1) CHECK_INT(hits.matches[row++].prompt_offset, i * LENGTH);
    CHECK_INT(kit_load_and_check(&k, &prompt), stored * LENGTH);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(separators_cut_a_prompt_into_segments_and_a_question)
{
    struct kit k;
    kit_open(&k, NULL);
    /* Spelled 900 901 or 902. */
    const uint32_t spelled[] = {900, 901, 902}, lengths[] = {2, 1};
    CHECK_INT(tsr_separators_set(k.space, spelled, lengths, 2), 0);
    const uint32_t tokens[] = {1, 2, 3, 900, 901, 4, 5, 902, 6, 7, 8};
    CHECK_INT(kit_store_segment(&k, tokens, 5), 5);
    CHECK_INT(kit_store_segment(&k, tokens + 5, 3), 3);
    CHECK_INT(kit_store_segment(&k, tokens + 8, 3), 3);
    struct tsr_prompt prompt = kit_segments_prompt(tokens, 11, NULL, 0);
    struct kit_hits hits;
    /* The question is not looked up, though it is stored. */
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 8);
    CHECK_INT(hits.io.n_matches, 2);
    CHECK_INT(hits.matches[0].n_tokens, 5);
    CHECK_INT(hits.matches[1].prompt_offset, 5);
    CHECK_INT(kit_load_and_check(&k, &prompt), 8);

    struct tsr_range ranges[3];
    CHECK_INT(tsr_space_split(k.space, tokens, 11, ranges, 3), 3);
    CHECK_INT(ranges[2].offset, 8);

    /* Malformed: no separator, no question. */
    struct tsr_stats before = kit_stats(&k);
    prompt.n_tokens = 3;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), TSR_EPROMPT);
    prompt.n_tokens = 8;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), TSR_EPROMPT);
    CHECK_HAS(tsr_errmsg(), "8");
    CHECK_INT(hits.io.n_matches, 0);
    CHECK_INT(kit_stats(&k).lookups, before.lookups);
    CHECK_INT(tsr_separators_set(k.space, NULL, NULL, 0), 0);
    prompt.n_tokens = 11;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), TSR_EINVAL);
    CHECK(kit_end(&k));
}

TEST(a_segment_with_the_same_context_goes_before_a_pure_one_and_another_context_is_not_used)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *system = kit_tokens(1, 10), *doc = kit_tokens(2, 20), *strange = kit_tokens(3, 10);
    uint32_t *tokens = joined(system, 10, doc, 20), *wrong = joined(strange, 10, doc, 20);
    const struct tsr_range ranges[] = {{0, 10}, {10, 20}};
    struct tsr_prompt prompt = kit_segments_prompt(tokens, 30, ranges, 2);
    struct tsr_prompt prompt_wrong = kit_segments_prompt(wrong, 30, ranges, 2);
    prompt.flags |= TSR_PROMPT_CONTEXT;
    prompt_wrong.flags |= TSR_PROMPT_CONTEXT;
    struct kit_hits hits;

    CHECK_INT(kit_store_behind(&k, system, 10, doc, 20), 20);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 20);
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_SAME);
    CHECK_INT(hits.matches[0].base, 10);
    CHECK_INT(kit_load_and_check(&k, &prompt), 20);
    CHECK_INT(kit_lookup(&k, &prompt_wrong, 0, &hits), 0);
    CHECK_INT(kit_find_segment(&k, doc, 20), 0);

    CHECK_INT(kit_store_segment(&k, doc, 20), 20);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 20);
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_SAME);
    CHECK_INT(kit_lookup(&k, &prompt_wrong, 0, &hits), 20);
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_PURE);
    CHECK_INT(kit_load_and_check(&k, &prompt_wrong), 20);

    /* The system prompt itself is a pure segment. */
    CHECK_INT(kit_store_segment(&k, system, 10), 10);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 30);
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_PURE);
    CHECK_INT(hits.matches[1].context, TSR_CONTEXT_SAME);
    CHECK_INT(kit_load_and_check(&k, &prompt), 30);
    free(system), free(doc), free(strange), free(tokens), free(wrong);
    CHECK(kit_end(&k));
}

/* One text behind two primers, behind the system prompt and alone: each is found by its own name. */
TEST(only_the_context_that_is_asked_for_is_found)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *system = kit_tokens(1, 10), *doc = kit_tokens(2, 20);
    uint32_t *primer = kit_tokens(3, 30), *other = kit_tokens(4, 30);
    uint32_t *tokens = joined(system, 10, doc, 20);
    const struct tsr_range ranges[] = {{0, 10}, {10, 20}};
    struct tsr_prompt behind = kit_segments_prompt(tokens, 30, ranges, 2);
    struct kit_hits hits;
    behind.flags |= TSR_PROMPT_CONTEXT;
    struct tsr_prompt primed = behind;
    primed.context = primer;
    primed.n_context = 30;

    CHECK_INT(kit_store_behind(&k, other, 30, doc, 20), 20);
    CHECK_INT(kit_store_behind(&k, primer, 29, doc, 20), 20);
    CHECK_INT(kit_store_behind(&k, system, 10, doc, 20), 20);
    CHECK_INT(kit_lookup(&k, &primed, 0, &hits), 0);
    CHECK_INT(kit_store_behind(&k, primer, 30, doc, 20), 20);
    CHECK_INT(kit_lookup(&k, &primed, 0, &hits), 20);
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_SAME);
    CHECK_INT(hits.matches[0].base, 30);
    CHECK_INT(kit_load_and_check(&k, &primed), 20);
    CHECK_INT(kit_load_and_check(&k, &behind), 20);
    primed.context = other;
    CHECK_INT(kit_load_and_check(&k, &primed), 20);

    /* A system prompt is never taken from behind a primer, the same tokens as a document are. */
    CHECK_INT(kit_store_behind(&k, primer, 30, system, 10), 10);
    primed.context = primer;
    CHECK_INT(kit_lookup(&k, &primed, 0, &hits), 20);
    primed.flags &= ~(uint32_t)TSR_PROMPT_CONTEXT;
    CHECK_INT(kit_lookup(&k, &primed, 0, &hits), 30);
    CHECK_INT(kit_load_and_check(&k, &primed), 30);
    struct tsr_clear_desc what = {
        .size = sizeof what, .space = k.space, .prompt = &primed, .tier = -1};
    CHECK_INT(tsr_cache_clear(k.cache, &what), 2);
    CHECK_INT(kit_lookup(&k, &primed, 0, &hits), 0);
    CHECK_INT(kit_load_and_check(&k, &behind), 20);
    free(system), free(doc), free(primer), free(other), free(tokens);
    CHECK(kit_end(&k));
}

/* ---- composed ---- */

TEST(prefix_and_segments_never_overlap)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 100);
    const struct tsr_range ranges[] = {{0, 20}, {20, 24}, {44, 30}, {74, 26}};
    for (uint32_t i = 0; i < 4; i++)
        CHECK_INT(kit_store_segment(&k, tokens + ranges[i].offset, ranges[i].n_tokens),
                  ranges[i].n_tokens);
    CHECK_INT(kit_store_prefix(&k, tokens, 48), 48);
    struct tsr_prompt prompt = kit_segments_prompt(tokens, 100, ranges, 4);
    prompt.flags |= TSR_PROMPT_PREFIX;
    struct kit_hits hits;
    /* Blocks to token 48; segments 0 and 1 are covered, 2 begins at its fifth token. */
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 100);
    CHECK_INT(hits.io.n_prefix_tokens, 48);
    CHECK_INT(hits.io.n_matches, 5);
    uint32_t at = 0;
    for (uint32_t i = 0; i < hits.io.n_matches; i++) {
        CHECK_INT(hits.matches[i].prompt_offset, at);
        at += hits.matches[i].n_tokens;
    }
    CHECK_INT(at, 100);
    CHECK_INT(hits.matches[3].kind, TSR_KIND_SEGMENT);
    CHECK_INT(hits.matches[3].entry_offset, 4);
    CHECK_INT(hits.matches[3].n_tokens, 26);
    CHECK_INT(kit_load_and_check(&k, &prompt), 100);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(a_lookup_fills_no_more_rows_than_it_was_given)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 80);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), 64);
    CHECK_INT(kit_store_segment(&k, tokens + 64, 16), 16);
    const struct tsr_range range = {64, 16};
    struct tsr_prompt prompt = kit_segments_prompt(tokens, 80, &range, 1);
    prompt.flags |= TSR_PROMPT_PREFIX;
    struct tsr_match matches[6];
    for (uint32_t max = 0; max <= 5; max++) {
        memset(matches, 0xA5, sizeof matches);
        struct tsr_lookup_desc io = {.size = sizeof io,
                                     .spaces = &k.space,
                                     .n_spaces = 1,
                                     .matches = max ? matches : NULL,
                                     .matches_max = max};
        CHECK_INT(tsr_client_lookup(k.client, &prompt, &io), 16 * max);
        CHECK_INT(io.n_matches, max);
        CHECK_INT(io.n_prefix_tokens, 16 * (max < 4 ? max : 4));
        CHECK_INT(matches[max].n_tokens, 0xA5A5A5A5u);
    }
    free(tokens);
    CHECK(kit_end(&k));
}

/* ---- collisions and numbers ---- */

/* With nearly all bits of the keys taken away nearly every key collides: everything that is found
 * must still be right, and the rest is a miss that is counted. */
TEST(a_key_collision_is_a_miss_and_never_a_wrong_byte)
{
    const uint64_t masks[] = {0, 1, 7, 1ull << 40, 0xffffffff00000000u};
    for (size_t i = 0; i < TSRI_COUNT(masks); i++) {
        struct kit k;
        kit_open(&k, NULL);
        k.cache->key_mask = masks[i];
        uint64_t seed = 0x1234 + i, found = 0;
        for (uint32_t round = 0; round < 400; round++) {
            uint32_t *tokens = kit_tokens(test_rand(&seed) % 16, 64);
            uint32_t n = 1 + (uint32_t)(test_rand(&seed) % 64);
            struct tsr_range range;
            bool prefix = test_rand(&seed) % 2;
            if (test_rand(&seed) % 4 == 0)
                CHECK((prefix ? kit_store_prefix : kit_store_segment)(&k, tokens, n) >= 0);
            struct tsr_prompt p =
                prefix ? kit_prefix_prompt(tokens, 64) : kit_segment_prompt(tokens, n, &range);
            int loaded = kit_load_and_check(&k, &p);
            CHECK(loaded >= 0);
            found += (uint64_t)loaded;
            free(tokens);
        }
        CHECK(found > 0);
        if (masks[i] < 8) CHECK(kit_stats(&k).collisions > 0);
        CHECK(kit_end(&k));
    }
}

TEST(a_collision_of_two_texts_is_counted_once_a_lookup)
{
    struct kit k;
    kit_open(&k, NULL);
    k.cache->key_mask = 0;
    uint32_t *a = kit_tokens(1, 20), *b = kit_tokens(2, 20);
    CHECK_INT(kit_store_segment(&k, a, 20), 20);
    CHECK_INT(kit_find_segment(&k, b, 20), 0);
    CHECK_INT(kit_stats(&k).collisions, 1);
    CHECK_INT(kit_find_segment(&k, a, 19), 0); /* a length that differs */
    CHECK_INT(kit_find_prefix(&k, a, 20), 0);  /* a kind that differs */
    CHECK_INT(kit_stats(&k).collisions, 3);
    CHECK_INT(kit_find_segment(&k, a, 20), 20);
    CHECK_INT(kit_stats(&k).collisions, 3);
    free(a), free(b);
    CHECK(kit_end(&k));
}

TEST(lookups_are_counted_exactly)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 100);
    CHECK_INT(kit_store_prefix(&k, tokens, 100), 96);
    CHECK_INT(kit_find_prefix(&k, tokens, 70), 64);
    CHECK_INT(kit_find_prefix(&k, tokens, 10), 0);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 100);
    CHECK_INT(kit_load_and_check(&k, &prompt), 96);
    struct tsr_stats s = kit_stats(&k);
    CHECK_INT(s.lookups, 3);
    CHECK_INT(s.tokens_asked, 180);
    CHECK_INT(s.tokens_reused, 160);
    CHECK_INT(s.loads, 6);
    CHECK_INT(s.load_misses, 0);
    CHECK_INT(s.load_bytes, 96 * tsr_space_token_bytes(k.space));
    CHECK_INT(s.stores, 1);
    CHECK_INT(s.stores_new, 6);
    CHECK_INT(s.store_bytes, 96 * tsr_space_token_bytes(k.space));
    CHECK_INT(s.entries, 6);
    CHECK_INT(s.host_bytes_used, 6 << 14);
    CHECK_INT(s.host_bytes, 1 << 20);
    CHECK_INT(tsr_cache_evict(k.cache, 1 << 20), 6);
    s = kit_stats(&k);
    CHECK_INT(s.evicted, 6);
    CHECK_INT(s.entries, 0);
    CHECK_INT(s.host_bytes_used, 0);
    free(tokens);
    CHECK(kit_end(&k));
}

/* Random texts of a small alphabet of chunks, against a table of what was stored. */
TEST(lookups_agree_with_a_naive_model)
{
    enum { N = 24 };
    struct kit k;
    kit_open(&k, NULL);
    bool stored[N] = {false};
    uint32_t *chunks[N], lengths[N];
    uint64_t seed = 99;
    for (uint32_t i = 0; i < N; i++) {
        lengths[i] = 1 + (uint32_t)(test_rand(&seed) % 60);
        chunks[i] = kit_tokens(100 + i, lengths[i]);
    }
    for (uint32_t round = 0; round < 500; round++) {
        uint32_t tokens[16 * 60], n = 0, want = 0, n_ranges = (uint32_t)(test_rand(&seed) % 16) + 1;
        struct tsr_range ranges[16];
        for (uint32_t i = 0; i < n_ranges; i++) {
            uint32_t c = (uint32_t)(test_rand(&seed) % N);
            if (test_rand(&seed) % 20 == 0) {
                CHECK_INT(kit_store_segment(&k, chunks[c], lengths[c]), stored[c] ? 0 : lengths[c]);
                stored[c] = true;
            }
            memcpy(tokens + n, chunks[c], lengths[c] * sizeof tokens[0]);
            ranges[i] = (struct tsr_range){n, lengths[c]};
            n += lengths[c];
        }
        for (uint32_t i = 0; i < n_ranges; i++)
            for (uint32_t c = 0; c < N; c++)
                if (stored[c] && lengths[c] == ranges[i].n_tokens &&
                    memcmp(chunks[c], tokens + ranges[i].offset, lengths[c] * 4) == 0)
                    want += lengths[c];
        struct tsr_prompt prompt = kit_segments_prompt(tokens, n, ranges, n_ranges);
        CHECK_INT(kit_load_and_check(&k, &prompt), want);
    }
    for (uint32_t i = 0; i < N; i++)
        free(chunks[i]);
    CHECK(kit_end(&k));
}

TEST(blocks_that_a_space_lacks_are_told_from_where_the_last_call_ended)
{
    struct kit k;
    kit_open(&k, NULL);
    struct tsr_space_desc desc = kit_desc();
    desc.rank = 1;
    desc.world = 2;
    struct tsr_space *spaces[2] = {k.space, kit_space(k.cache, &desc)};
    uint32_t *a = kit_tokens(1, 6 * BLOCK);
    CHECK_INT(kit_store_prefix(&k, a, 3 * BLOCK), 3 * BLOCK);
    struct tsr_prompt prompt = kit_prefix_prompt(a, 4 * BLOCK);
    struct tsr_key keys[6], all[6];
    uint64_t lacking[6] = {0};
    struct tsri_chain chain = {.n_tokens = 0};
    CHECK_INT(tsri_find_lacking(spaces, 2, &prompt, 0, &chain, keys, lacking), 0);
    CHECK_INT(chain.n_tokens, 4 * BLOCK);
    for (uint32_t i = 0; i < 4; i++)
        CHECK_INT(lacking[i], i < 3 ? 2 : 3);
    /* Goes on behind the fourth block, with the keys that a whole walk has. */
    prompt = kit_prefix_prompt(a, 6 * BLOCK);
    CHECK_INT(tsri_find_lacking(spaces, 2, &prompt, 4 * BLOCK, &chain, keys, lacking), 0);
    CHECK_INT(lacking[4] & lacking[5], 3);
    CHECK_INT(tsr_space_keys(k.space, &prompt, all, 6), 6);
    CHECK(memcmp(keys, all, sizeof all) == 0);
    tsr_space_close(spaces[1]);
    free(a);
    CHECK(kit_end(&k));
}

int main(void)
{
    RUN(blocks_that_a_space_lacks_are_told_from_where_the_last_call_ended);
    RUN(a_prefix_is_the_longest_run_of_blocks_from_token_0);
    RUN(equal_blocks_behind_different_parents_never_share);
    RUN(a_prefix_is_no_segment_and_a_segment_no_prefix);
    RUN(chains_by_xxh3_are_found_and_bound_as_those_by_sha256);
    RUN(segments_are_found_at_any_offset);
    RUN(more_segments_than_a_batch_are_found_in_order);
    RUN(separators_cut_a_prompt_into_segments_and_a_question);
    RUN(a_segment_with_the_same_context_goes_before_a_pure_one_and_another_context_is_not_used);
    RUN(only_the_context_that_is_asked_for_is_found);
    RUN(prefix_and_segments_never_overlap);
    RUN(a_lookup_fills_no_more_rows_than_it_was_given);
    RUN(a_key_collision_is_a_miss_and_never_a_wrong_byte);
    RUN(a_collision_of_two_texts_is_counted_once_a_lookup);
    RUN(lookups_are_counted_exactly);
    RUN(lookups_agree_with_a_naive_model);
    return test_end();
}
