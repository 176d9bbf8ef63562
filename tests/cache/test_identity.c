/* Whose KV a lookup may return: several spaces at once, spaces that differ in one field, extras
 * (adapter, salt, media) and blended KV. What is found is loaded and every byte is checked;
 * adapters and salts change every byte. */
#include "support/cache_kit.h"
#include "support/test.h"

/* ---- several spaces ---- */

TEST(several_spaces_hit_only_where_all_of_them_do)
{
    struct kit k;
    kit_open(&k, NULL);
    struct tsr_space_desc desc = kit_desc();
    desc.rank = 1;
    desc.world = 2;
    struct tsr_space *other = kit_space(k.cache, &desc);
    struct tsr_space *spaces[] = {k.space, other};
    uint32_t *tokens = kit_tokens(1, 84);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), 64);
    CHECK_INT(kit_store_segment(&k, tokens + 64, 20), 20);
    struct tsr_store_desc store = {.space = other, .kind = TSR_KIND_PREFIX, .tokens = tokens};
    const struct tsr_range range = {64, 20};
    struct tsr_prompt prompt = kit_segments_prompt(tokens, 84, &range, 1);
    prompt.flags |= TSR_PROMPT_PREFIX;
    struct tsr_match m[16];
    struct tsr_lookup_desc io = {.size = sizeof io, .spaces = spaces, .n_spaces = 2, .matches = m};
    io.matches_max = 8;
    CHECK_INT(tsr_client_lookup(k.client, &prompt, &io), 0);
    store.n_tokens = 32;
    CHECK_INT(kit_store(&k, &store), 32);
    CHECK_INT(tsr_client_lookup(k.client, &prompt, &io), 32);
    CHECK_INT(io.n_prefix_tokens, 32);
    store = (struct tsr_store_desc){
        .space = other, .kind = TSR_KIND_SEGMENT, .tokens = tokens + 64, .n_tokens = 20};
    CHECK_INT(kit_store(&k, &store), 20);
    CHECK_INT(tsr_client_lookup(k.client, &prompt, &io), 52);
    CHECK_INT(io.n_matches, 3);
    /* Rows are [match][space], and each cell is of its own space. */
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t s = 0; s < 2; s++) {
            const struct tsr_match *x = &m[i * 2 + s];
            CHECK_INT(x->prompt_offset, i < 2 ? i * 16 : 64);
            uint8_t kv[20 * 256];
            struct tsr_load_desc load = {.size = sizeof load,
                                         .space = spaces[s],
                                         .match = x,
                                         .view = {.data = kv, .bytes = sizeof kv}};
            CHECK_INT(tsr_client_load(k.client, &load, 1), 1);
            CHECK(kit_right(spaces[s], kit_match_seen(spaces[s], &prompt, x),
                            tokens + x->prompt_offset, x->n_tokens, 0, 2, &load.view));
            load.space = spaces[!s];
            CHECK_INT(tsr_client_load(k.client, &load, 1), 0);
            CHECK_INT(load.result, TSR_ESPACE);
        }
    free(tokens);
    tsr_space_close(other);
    CHECK(kit_end(&k));
}

TEST(each_space_of_a_row_says_its_own_kind)
{
    struct kit k;
    kit_open(&k, NULL);
    struct tsr_space_desc desc = kit_desc();
    desc.rank = 1;
    desc.world = 2;
    struct tsr_space *other = kit_space(k.cache, &desc);
    uint32_t *tokens = kit_tokens(1, 20);
    /* Exact in the one, blended in the other, whichever is asked first. */
    CHECK_INT(kit_store_segment(&k, tokens, 20), 20);
    CHECK_INT(kit_store(&k, &(struct tsr_store_desc){.space = other,
                                                     .kind = TSR_KIND_BLENDED,
                                                     .tokens = tokens,
                                                     .n_tokens = 20,
                                                     .recipe = "r",
                                                     .recipe_bytes = 1}),
              20);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 20, &range);
    prompt.flags |= TSR_PROMPT_BLENDED;
    prompt.recipe = "r";
    prompt.recipe_bytes = 1;
    for (uint32_t first = 0; first < 2; first++) {
        struct tsr_space *spaces[] = {first ? other : k.space, first ? k.space : other};
        struct tsr_match m[2];
        struct tsr_lookup_desc io = {
            .size = sizeof io, .spaces = spaces, .n_spaces = 2, .matches = m, .matches_max = 1};
        CHECK_INT(tsr_client_lookup(k.client, &prompt, &io), 20);
        CHECK_INT(m[first].kind, TSR_KIND_SEGMENT);
        CHECK_INT(m[!first].kind, TSR_KIND_BLENDED);
    }
    free(tokens);
    tsr_space_close(other);
    CHECK(kit_end(&k));
}

TEST(spaces_that_differ_in_one_field_never_share)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 32);
    CHECK_INT(kit_store_prefix(&k, tokens, 32), 32);
    CHECK_INT(kit_store_segment(&k, tokens, 32), 32);
    struct tsr_space_desc d[] = {kit_desc(), kit_desc(), kit_desc(), kit_desc(), kit_desc(),
                                 kit_desc(), kit_desc(), kit_desc(), kit_desc()};
    d[0].model = "kit2";
    d[1].salt = "tenant";
    d[2].adapter = "lora";
    d[3].rope = "theta=1";
    d[4].dtype = TSR_DTYPE_BF16;
    d[5].group = 1;
    d[6].layer_first = 2;
    d[7].tokenizer = "t";
    d[8].weights = "w";
    d[8].weights_bytes = 1;
    struct tsr_space *own = k.space;
    for (size_t i = 0; i < TSRI_COUNT(d); i++) {
        k.space = kit_space(k.cache, &d[i]);
        CHECK(k.space != own);
        CHECK_INT(kit_find_prefix(&k, tokens, 32), 0);
        CHECK_INT(kit_find_segment(&k, tokens, 32), 0);
        tsr_space_close(k.space);
    }
    k.space = own;
    CHECK_INT(kit_find_prefix(&k, tokens, 32), 32);
    free(tokens);
    CHECK(kit_end(&k));
}

/* ---- extras ---- */

static int find_with(struct kit *k, struct tsr_prompt prompt, const struct tsr_extra *extra,
                     uint32_t n)
{
    prompt.extra = extra;
    prompt.n_extra = n;
    return kit_load_and_check(k, &prompt);
}

TEST(the_same_tokens_with_another_adapter_or_salt_never_share)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 32);
    const struct tsr_extra variants[][2] = {
        {{.kind = TSR_EXTRA_ADAPTER, .bytes = 3, .data = "abc"}},
        {{.kind = TSR_EXTRA_ADAPTER, .bytes = 3, .data = "abd"}},
        {{.kind = TSR_EXTRA_SALT, .bytes = 3, .data = "abc"}},
        {{.kind = TSR_EXTRA_ADAPTER, .bytes = 3, .data = "abc"},
         {.kind = TSR_EXTRA_SALT, .bytes = 3, .data = "abc"}},
        {{0}},
    };
    const uint32_t n_items[] = {1, 1, 1, 2, 0};
    struct tsr_range range;
    struct tsr_prompt prefix = kit_prefix_prompt(tokens, 32);
    struct tsr_prompt segment = kit_segment_prompt(tokens, 32, &range);
    for (uint32_t i = 0; i < 5; i++) {
        for (uint32_t j = i; j < 5; j++) {
            CHECK_INT(find_with(&k, prefix, variants[j], n_items[j]), 0);
            CHECK_INT(find_with(&k, segment, variants[j], n_items[j]), 0);
        }
        struct tsr_store_desc s = {.kind = TSR_KIND_PREFIX, .tokens = tokens, .n_tokens = 32};
        s.extra = variants[i];
        s.n_extra = n_items[i];
        CHECK_INT(kit_store(&k, &s), 32);
        s.kind = TSR_KIND_SEGMENT;
        CHECK_INT(kit_store(&k, &s), 32);
        CHECK_INT(find_with(&k, prefix, variants[i], n_items[i]), 32);
        CHECK_INT(find_with(&k, segment, variants[i], n_items[i]), 32);
    }
    const struct tsr_extra swapped[] = {variants[3][1], variants[3][0]};
    prefix.extra = swapped;
    prefix.n_extra = 2;
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&k, &prefix, 0, &hits), 32);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(the_same_tokens_with_another_image_share_only_what_stands_before_it)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 64);
    /* In block 2. */
    struct tsr_extra cat = {TSR_EXTRA_MEDIA, 36, 8, 3, "cat"},
                     dog = {TSR_EXTRA_MEDIA, 36, 8, 3, "dog"};
    struct tsr_extra later = {TSR_EXTRA_MEDIA, 37, 8, 3, "cat"};
    struct tsr_store_desc s = {.kind = TSR_KIND_PREFIX, .tokens = tokens, .n_tokens = 64};
    s.extra = &cat;
    s.n_extra = 1;
    CHECK_INT(kit_store(&k, &s), 64);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 64);
    CHECK_INT(find_with(&k, prompt, &cat, 1), 64);
    CHECK_INT(find_with(&k, prompt, &dog, 1), 32);
    CHECK_INT(find_with(&k, prompt, &later, 1), 32);
    CHECK_INT(find_with(&k, prompt, NULL, 0), 32);
    s.extra = &dog;
    CHECK_INT(kit_store(&k, &s), 32);
    CHECK_INT(find_with(&k, prompt, &dog, 1), 64);
    CHECK_INT(kit_stats(&k).entries, 6);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(segments_that_cover_media_are_neither_stored_nor_found)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 60);
    CHECK_INT(kit_store_segment(&k, tokens, 20), 20);
    CHECK_INT(kit_store_segment(&k, tokens + 20, 20), 20);
    CHECK_INT(kit_store_segment(&k, tokens + 40, 20), 20);
    const struct tsr_range ranges[] = {{0, 20}, {20, 20}, {40, 20}};
    struct tsr_prompt prompt = kit_segments_prompt(tokens, 60, ranges, 3);
    struct tsr_extra edge = {TSR_EXTRA_MEDIA, 19, 2, 3, "cat"};
    CHECK_INT(find_with(&k, prompt, &edge, 1), 20);
    edge.offset = 40;
    CHECK_INT(find_with(&k, prompt, &edge, 1), 40);
    struct tsr_store_desc s = {.kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = 60};
    s.extra = &edge;
    s.n_extra = 1;
    CHECK_INT(kit_store(&k, &s), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "media");
    free(tokens);
    CHECK(kit_end(&k));
}

/* ---- blended ---- */

TEST(blended_kv_is_found_only_by_its_recipe)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 32);
    struct tsr_store_desc s = {.kind = TSR_KIND_BLENDED,
                               .tokens = tokens,
                               .n_tokens = 32,
                               .recipe = "query 15",
                               .recipe_bytes = 8};
    CHECK_INT(kit_store(&k, &s), 32);
    CHECK_INT(kit_find_segment(&k, tokens, 32), 0);
    CHECK_INT(kit_find_prefix(&k, tokens, 32), 0);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 32, &range);
    prompt.flags |= TSR_PROMPT_BLENDED | TSR_PROMPT_PREFIX;
    prompt.recipe = "query 16";
    prompt.recipe_bytes = 8;
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 0);
    prompt.recipe = "query 15";
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 32);
    CHECK_INT(hits.matches[0].kind, TSR_KIND_BLENDED);
    CHECK_INT(hits.io.n_prefix_tokens, 0);
    CHECK_INT(kit_load_and_check(&k, &prompt), 32);
    prompt.flags = TSR_PROMPT_SEGMENTS; /* a recipe alone asks for nothing */
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 0);
    /* Exact goes before blended. */
    CHECK_INT(kit_store_segment(&k, tokens, 32), 32);
    prompt.flags |= TSR_PROMPT_BLENDED;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 32);
    CHECK_INT(hits.matches[0].kind, TSR_KIND_SEGMENT);
    CHECK_INT(kit_load_and_check(&k, &prompt), 32);
    free(tokens);
    CHECK(kit_end(&k));
}

int main(void)
{
    RUN(several_spaces_hit_only_where_all_of_them_do);
    RUN(each_space_of_a_row_says_its_own_kind);
    RUN(spaces_that_differ_in_one_field_never_share);
    RUN(the_same_tokens_with_another_adapter_or_salt_never_share);
    RUN(the_same_tokens_with_another_image_share_only_what_stands_before_it);
    RUN(segments_that_cover_media_are_neither_stored_nor_found);
    RUN(blended_kv_is_found_only_by_its_recipe);
    return test_end();
}
