/* test_texts.c - entries without KV are found by lookups as the entries they are copies of, and a
 * text that cannot be read leaves nothing behind. */
#include "support/cache_kit.h"
#include "support/test.h"

#define N 48u

struct text {
    const uint32_t *tokens;
    int result;
};

static int read_text(void *arg, uint32_t *tokens, uint8_t *extra)
{
    const struct text *t = arg;
    (void)extra;
    if (t->result == 0) memcpy(tokens, t->tokens, N * sizeof *tokens);
    return t->result;
}

/* The key that a segment of these tokens has in the space. */
static struct tsr_entry_head head_of(struct kit *k, const uint32_t *tokens)
{
    struct tsr_entry_head head = {.kind = TSR_KIND_SEGMENT, .n_tokens = N};
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, N, &range);
    CHECK_INT(tsr_space_keys(k->space, &prompt, &head.key, 1), 1);
    return head;
}

TEST(a_text_is_found_where_its_entry_would_be)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *a = kit_tokens(1, N), *b = kit_tokens(2, N);
    struct tsr_entry_head head = head_of(&k, a);
    struct text text = {.tokens = a};
    uint64_t handle = 0;
    CHECK_INT(tsri_texts_add(k.space, &head, read_text, &text, &handle), 0);
    CHECK(tsri_entry_is(k.cache, handle));
    CHECK_INT(kit_find_segment(&k, a, N), N);
    CHECK_INT(kit_find_segment(&k, b, N), 0);
    CHECK(kit_valid(&k));
    free(a), free(b);
    CHECK(kit_end(&k));
}

TEST(a_text_that_cannot_be_read_leaves_nothing_behind)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *a = kit_tokens(1, N), free_before = tsri_pool_n_free(&k.cache->pool);
    struct tsr_entry_head head = head_of(&k, a);
    struct text text = {.result = TSR_EIO};
    uint64_t handle = 7;
    CHECK_INT(tsri_texts_add(k.space, &head, read_text, &text, &handle), TSR_EIO);
    CHECK_INT(handle, 7);
    CHECK_INT(tsri_pool_n_free(&k.cache->pool), free_before);
    CHECK_INT(kit_find_segment(&k, a, N), 0);
    free(a);
    CHECK(kit_end(&k));
}

TEST(texts_that_do_not_fit_are_refused)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *a = kit_tokens(1, N);
    struct tsr_entry_head head = head_of(&k, a);
    struct text text = {.tokens = a};
    uint64_t handle;
    head.n_tokens = 64 * 65; /* the pool has 64 pages of 64 tokens */
    CHECK(tsri_texts_add(k.space, &head, read_text, &text, &handle) < 0);
    CHECK(tsri_texts_bytes(N, 1, 3) >= N * 4 + 3);
    free(a);
    CHECK(kit_end(&k));
}

TEST(a_space_takes_the_place_of_another)
{
    static const uint8_t other[16] = {1, 2, 3};
    uint8_t now[16];
    struct kit k;
    kit_open(&k, NULL);
    uint32_t before = tsri_space_block_tokens(k.space);
    tsri_texts_space(k.space, other, 0);
    CHECK_INT(tsri_space_block_tokens(k.space), before);
    tsri_texts_space(k.space, other, 2 * before);
    CHECK_INT(tsri_space_block_tokens(k.space), 2 * before);
    tsr_space_fingerprint(k.space, now);
    CHECK(memcmp(now, other, sizeof now) == 0);
    kit_close(&k);
}

int main(void)
{
    RUN(a_text_is_found_where_its_entry_would_be);
    RUN(a_text_that_cannot_be_read_leaves_nothing_behind);
    RUN(texts_that_do_not_fit_are_refused);
    RUN(a_space_takes_the_place_of_another);
    return test_end();
}
