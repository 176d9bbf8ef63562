/* test_wanted.c - what matches stand for in their prompts: all of a call together, in any order and
 * of any kind, are found where each of them would be found alone, and nowhere else. */
#include "cache/source.h"

#include "support/cache_kit.h"
#include "support/test.h"

enum { TOKENS = 400, SEGMENTS = 3, MATCHES = 300 };

struct asked {
    struct kit k;
    struct tsr_space *small; /* has blocks of another size */
    uint32_t *tokens;
    struct tsr_range segments[SEGMENTS];
    struct tsr_prompt prompt;
    struct tsr_match matches[MATCHES];
    struct tsri_wanted wanted[MATCHES];
};

static void asked_open(struct asked *a, uint32_t flags)
{
    struct tsr_space_desc desc = kit_desc();
    kit_open(&a->k, NULL);
    desc.block_tokens = 5;
    desc.model = "small blocks";
    a->small = kit_space(a->k.cache, &desc);
    a->tokens = kit_tokens(3, TOKENS);
    for (uint32_t i = 0; i < SEGMENTS; i++)
        a->segments[i] = (struct tsr_range){i * 100, 80 + i};
    a->prompt = (struct tsr_prompt){.size = sizeof a->prompt,
                                    .tokens = a->tokens,
                                    .n_tokens = TOKENS,
                                    .flags = flags,
                                    .segments = a->segments,
                                    .n_segments = SEGMENTS,
                                    .recipe = "recipe",
                                    .recipe_bytes = 6};
    static const uint8_t kinds[] = {TSR_KIND_PREFIX, TSR_KIND_SEGMENT, TSR_KIND_BLENDED};
    uint32_t seed = 1;
    for (uint32_t i = 0; i < MATCHES; i++) {
        seed = seed * 1664525u + 1013904223u;
        a->matches[i] = (struct tsr_match){.entry = seed >> 28,
                                           .prompt_offset = (seed >> 8) % (TOKENS + 50),
                                           .entry_offset = i % 4 ? 0 : 3,
                                           .n_tokens = 1,
                                           .kind = kinds[i % 3],
                                           .context = i % 2 ? TSR_CONTEXT_SAME : 0};
        if (i % 3 && i % 5) a->matches[i].prompt_offset = i % SEGMENTS * 100 + (i % 4 ? 0 : 3);
        a->wanted[i] = (struct tsri_wanted){.space = i % 7 < 3 ? a->small : a->k.space,
                                            .match = &a->matches[i],
                                            .prompt = &a->prompt,
                                            .next = i + 1 < MATCHES ? &a->wanted[i + 1] : NULL};
    }
}

static bool asked_end(struct asked *a)
{
    tsr_space_close(a->small);
    free(a->tokens);
    return kit_end(&a->k);
}

/* Without a walk: the tokens of the chunk that begins there. */
static uint32_t chunk_tokens(const struct asked *a, const struct tsri_wanted *w)
{
    uint32_t at = w->match->prompt_offset - w->match->entry_offset, flags = a->prompt.flags;
    uint32_t block = w->space->block_tokens;
    if (w->match->kind == TSR_KIND_PREFIX)
        return flags & TSR_PROMPT_PREFIX && at < TOKENS && at % block == 0 ? block : 0;
    if (w->match->kind == TSR_KIND_BLENDED && !(flags & TSR_PROMPT_BLENDED)) return 0;
    if (w->match->kind == TSR_KIND_SEGMENT && w->match->context == TSR_CONTEXT_SAME &&
        !(flags & TSR_PROMPT_CONTEXT))
        return 0;
    for (uint32_t i = 0; flags & (TSR_PROMPT_SEGMENTS | TSR_PROMPT_BLENDED) && i < SEGMENTS; i++)
        if (a->segments[i].offset == at) return a->segments[i].n_tokens;
    return 0;
}

TEST(together_they_are_found_as_each_alone)
{
    static const uint32_t flags[] = {
        TSR_PROMPT_PREFIX, TSR_PROMPT_SEGMENTS, TSR_PROMPT_PREFIX | TSR_PROMPT_SEGMENTS,
        TSR_PROMPT_PREFIX | TSR_PROMPT_SEGMENTS | TSR_PROMPT_CONTEXT | TSR_PROMPT_BLENDED};
    for (size_t f = 0; f < TSRI_COUNT(flags); f++) {
        struct asked a;
        asked_open(&a, flags[f]);
        uint32_t n = 0, n_found = 0;
        for (struct tsri_wanted *w = tsri_wanted_find(a.wanted); w; w = w->next, n++) {
            struct tsri_wanted alone = {.space = w->space, .match = w->match, .prompt = w->prompt};
            CHECK(tsri_wanted_find(&alone) == &alone && alone.next == NULL);
            CHECK_INT(w->n_tokens, alone.n_tokens);
            CHECK_INT(w->n_tokens, chunk_tokens(&a, w));
            CHECK(tsri_digest_equal(&w->digest, &alone.digest));
            n_found += w->n_tokens > 0;
        }
        CHECK_INT(n, MATCHES);
        CHECK(n_found > 10);
        CHECK(asked_end(&a));
    }
}

TEST(in_a_prompt_that_is_refused_nothing_is_found)
{
    struct asked a;
    asked_open(&a, TSR_PROMPT_PREFIX);
    a.prompt.flags = 1u << 30;
    for (const struct tsri_wanted *w = tsri_wanted_find(a.wanted); w; w = w->next)
        CHECK_INT(w->n_tokens, 0);
    CHECK(tsri_wanted_find(NULL) == NULL);
    CHECK(asked_end(&a));
}

int main(void)
{
    RUN(together_they_are_found_as_each_alone);
    RUN(in_a_prompt_that_is_refused_nothing_is_found);
    return test_end();
}
