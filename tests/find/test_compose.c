/* Lookups that also look anywhere: what is added to prefix and segments, in which order, for whom,
 * and that every byte loaded is right. */
#include "support/match_kit.h"
#include "support/test.h"

static struct kit k;

#define CHECK_ROW(m, p, e, n) \
    do { \
        CHECK_INT((m).prompt_offset, p); \
        CHECK_INT((m).entry_offset, e); \
        CHECK_INT((m).n_tokens, n); \
    } while (0)

TEST(stored_text_is_found_wherever_it_stands)
{
    match_reopen(&k, NULL);
    uint64_t seed = 1;
    struct text t;
    struct stored docs[3];
    struct kit_hits hits;
    text_init(&t, 5000);
    for (uint32_t d = 0; d < 3; d++) {
        uint32_t n = 300 + d * 111;
        uint32_t *tokens = kit_tokens(d, n);
        docs[d] = match_pure(&k, tokens, n);
        CHECK_INT(kit_store_segment(&k, tokens, n), n);
    }
    text_add_random(&t, &seed, 41, 50000);
    text_add(&t, docs[2].tokens, docs[2].n);
    text_add(&t, docs[0].tokens + 100, 150);
    text_add_random(&t, &seed, 99, 50000);
    text_add(&t, docs[1].tokens, 200);
    text_add_random(&t, &seed, 1, 50000);
    text_add(&t, docs[1].tokens + 201, docs[1].n - 201);
    struct tsr_prompt prompt = match_prompt(&t, 0);
    int n = kit_lookup(&k, &prompt, 0, &hits);
    CHECK_INT(n, 522 + 150 + 410);
    CHECK_INT(hits.io.n_matches, 4);
    CHECK_INT(hits.io.n_prefix_tokens, 0);
    CHECK_ROW(hits.matches[0], 41, 0, 522);
    CHECK_ROW(hits.matches[1], 563, 100, 150);
    CHECK_ROW(hits.matches[2], 812, 0, 200);
    CHECK_ROW(hits.matches[3], 1013, 201, 210);
    static const uint8_t coverage[] = {TSR_COVERAGE_FULL, TSR_COVERAGE_RUN, TSR_COVERAGE_PARTIAL,
                                       TSR_COVERAGE_PARTIAL};
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_INT(hits.matches[i].coverage, coverage[i]);
        CHECK_INT(hits.matches[i].verified, 1);
        CHECK_INT(hits.matches[i].kind, TSR_KIND_SEGMENT);
        CHECK_INT(hits.matches[i].context, TSR_CONTEXT_PURE);
        CHECK_INT(hits.matches[i].tier, 0);
    }
    CHECK(match_rows_are_right(&k, &hits, n, &prompt, docs, 3));
    CHECK_INT(kit_metric(&k, TSRI_M_lookup_tokens_any), n);
    CHECK_INT(kit_metric(&k, TSRI_M_lookup_tokens_reused), n);
    /* Who does not ask for it gets nothing. */
    prompt.flags = TSR_PROMPT_PREFIX;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 0);
    for (uint32_t d = 0; d < 3; d++)
        free((uint32_t *)(uintptr_t)docs[d].tokens);
    text_fini(&t);
}

/* A prefix, a segment found by its key, and runs before, between and behind them. */
TEST(exact_comes_first_then_segments_then_runs)
{
    match_reopen(&k, NULL);
    uint32_t *front = kit_tokens(1, 64), *doc = kit_tokens(2, 200), *more = kit_tokens(3, 500);
    struct text t;
    struct kit_hits hits;
    text_init(&t, 2000);
    CHECK_INT(kit_store_prefix(&k, front, 64), 64);
    CHECK_INT(kit_store_segment(&k, doc, 200), 200);
    CHECK_INT(kit_store_segment(&k, more, 500), 500);
    /* The same text as the prefix, but usable anywhere: the exact one must win. */
    text_add(&t, front, 64);
    CHECK_INT(kit_store_segment(&k, front, 64), 64);
    text_add(&t, more + 50, 100);
    text_add(&t, doc, 200);
    text_add(&t, more + 300, 100);
    struct tsr_range segment = {164, 200};
    struct tsr_prompt prompt = match_prompt(&t, TSR_PROMPT_PREFIX | TSR_PROMPT_SEGMENTS);
    prompt.segments = &segment;
    prompt.n_segments = 1;
    int n = kit_lookup(&k, &prompt, 0, &hits);
    CHECK_INT(n, 464);
    CHECK_INT(hits.io.n_prefix_tokens, 64);
    CHECK_INT(hits.io.n_matches, 4 + 3);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_INT(hits.matches[i].kind, TSR_KIND_PREFIX);
        CHECK_INT(hits.matches[i].coverage, TSR_COVERAGE_FULL);
        CHECK_INT(hits.matches[i].entry_tokens, 16);
    }
    CHECK_ROW(hits.matches[4], 64, 50, 100);
    CHECK_ROW(hits.matches[5], 164, 0, 200);
    CHECK_ROW(hits.matches[6], 364, 300, 100);
    struct stored docs[7] = {match_pure(&k, doc, 200), match_pure(&k, more, 500)};
    for (uint32_t i = 0; i < 4; i++)
        docs[2 + i] = (struct stored){kit_seen(kit_seed(k.space), front, i * 16), front + i * 16,
                                      16, TSR_KIND_PREFIX};
    CHECK(match_rows_are_right(&k, &hits, n, &prompt, docs, 6));
    CHECK_INT(kit_metric(&k, TSRI_M_lookup_tokens_any), 200);
    free(front);
    free(doc);
    free(more);
    text_fini(&t);
}

TEST(a_prefix_elsewhere_is_approximate_and_only_for_who_accepts_it)
{
    match_reopen(&k, NULL);
    struct tsr_space_desc desc = kit_desc();
    desc.block_tokens = 64;
    struct tsr_space *space = kit_space(k.cache, &desc), *own = k.space;
    k.space = space;
    uint32_t *front = kit_tokens(1, 256);
    struct text t;
    struct kit_hits hits;
    uint64_t seed = 3;
    text_init(&t, 1000);
    CHECK_INT(kit_store_prefix(&k, front, 256), 256);
    text_add_random(&t, &seed, 10, 50000);
    text_add(&t, front, 256);
    struct tsr_prompt prompt = match_prompt(&t, TSR_PROMPT_PREFIX);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 0);
    prompt.flags |= TSR_PROMPT_OTHER;
    int n = kit_lookup(&k, &prompt, 0, &hits);
    CHECK_INT(n, 256);
    CHECK_INT(hits.io.n_prefix_tokens, 0);
    CHECK_INT(hits.io.n_matches, 4);
    struct stored blocks[4];
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_ROW(hits.matches[i], 10 + i * 64, 0, 64);
        CHECK_INT(hits.matches[i].kind, TSR_KIND_PREFIX);
        CHECK_INT(hits.matches[i].context, TSR_CONTEXT_OTHER);
        CHECK_INT(hits.matches[i].base, i * 64);
        blocks[i] = (struct stored){kit_seen(kit_seed(space), front, i * 64), front + i * 64, 64,
                                    TSR_KIND_PREFIX};
    }
    CHECK(match_rows_are_right(&k, &hits, n, &prompt, blocks, 4));
    /* At its own place it is exact, with both flags. */
    struct text same = {front, 256, 256};
    prompt = match_prompt(&same, TSR_PROMPT_PREFIX | TSR_PROMPT_OTHER);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 256);
    CHECK_INT(hits.io.n_prefix_tokens, 256);
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_SAME);
    k.space = own;
    tsr_space_close(space);
    free(front);
    text_fini(&t);
}

TEST(the_context_of_a_run_is_same_pure_or_other)
{
    match_reopen(&k, NULL);
    uint32_t *system = kit_tokens(1, 50), *alien = kit_tokens(2, 50), *doc = kit_tokens(3, 300);
    struct text t;
    struct kit_hits hits;
    text_init(&t, 1000);
    text_add(&t, system, 50);
    text_add(&t, alien, 3); /* so that the document is no whole segment */
    text_add(&t, doc, 300);
    struct tsr_range segments[2] = {{0, 50}, {50, 303}};
    struct tsr_prompt prompt = match_prompt(&t, TSR_PROMPT_SEGMENTS | TSR_PROMPT_CONTEXT);
    prompt.segments = segments;
    prompt.n_segments = 2;

    CHECK_INT(kit_store_behind(&k, alien, 50, doc, 300), 300);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 0);
    prompt.flags |= TSR_PROMPT_OTHER;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 300);
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_OTHER);
    struct stored docs[3] = {{kit_seen(kit_seed(k.space), alien, 50), doc, 300, TSR_KIND_SEGMENT},
                             {kit_seed(k.space), doc, 300, TSR_KIND_SEGMENT},
                             {kit_seen(kit_seed(k.space), system, 50), doc, 300, TSR_KIND_SEGMENT}};
    CHECK(match_rows_are_right(&k, &hits, 300, &prompt, &docs[0], 1));

    CHECK_INT(kit_store_segment(&k, doc, 300), 300);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 300);
    CHECK_INT(hits.io.n_matches, 1);
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_PURE);
    CHECK(match_rows_are_right(&k, &hits, 300, &prompt, &docs[1], 1));

    CHECK_INT(kit_store_behind(&k, system, 50, doc, 300), 300);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 300);
    CHECK_INT(hits.io.n_matches, 1);
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_SAME);
    CHECK(match_rows_are_right(&k, &hits, 300, &prompt, &docs[2], 1));
    /* The system prompt has not been seen by what stands in or before it. */
    segments[0] = (struct tsr_range){0, 353};
    prompt.n_segments = 1;
    prompt.flags &= ~(uint32_t)TSR_PROMPT_OTHER;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 300);
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_PURE);
    /* A context that is given takes the place of the system prompt. */
    segments[0] = (struct tsr_range){0, 50};
    prompt.n_segments = 2;
    prompt.context = alien;
    prompt.n_context = 50;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 300);
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_SAME);
    CHECK(match_rows_are_right(&k, &hits, 300, &prompt, &docs[0], 1));
    prompt.n_context = 49; /* nothing was stored behind that */
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 300);
    CHECK_INT(hits.matches[0].context, TSR_CONTEXT_PURE);
    CHECK(match_rows_are_right(&k, &hits, 300, &prompt, &docs[1], 1));
    free(system);
    free(alien);
    free(doc);
    text_fini(&t);
}

TEST(other_salts_adapters_and_spaces_never_match)
{
    match_reopen(&k, NULL);
    uint32_t *doc = kit_tokens(1, 400);
    struct text t = {doc, 400, 400};
    struct kit_hits hits;
    const struct tsr_extra a = {TSR_EXTRA_SALT, 0, 0, 1, "a"}, b = {TSR_EXTRA_SALT, 0, 0, 1, "b"};
    const struct tsr_extra c = {TSR_EXTRA_ADAPTER, 0, 0, 1, "a"};
    const struct tsr_extra *all[] = {NULL, &a, &b, &c};
    for (uint32_t stored = 0; stored < 4; stored++) {
        struct tsr_store_desc store = {.kind = TSR_KIND_SEGMENT,
                                       .tokens = doc,
                                       .n_tokens = 400,
                                       .extra = all[stored],
                                       .n_extra = all[stored] != NULL};
        CHECK_INT(kit_store(&k, &store), 400);
        for (uint32_t asked = 0; asked < 4; asked++) {
            struct tsr_prompt prompt = match_prompt(&t, TSR_PROMPT_OTHER);
            prompt.extra = all[asked];
            prompt.n_extra = all[asked] != NULL;
            CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), asked == stored ? 400 : 0);
        }
        CHECK_INT(tsr_cache_clear(k.cache, NULL), 1);
    }
    struct tsr_space_desc desc = kit_desc();
    desc.salt = "tenant";
    struct tsr_space *other = kit_space(k.cache, &desc);
    CHECK_INT(kit_store(&k, &(struct tsr_store_desc){.space = other,
                                                     .kind = TSR_KIND_SEGMENT,
                                                     .tokens = doc,
                                                     .n_tokens = 400}),
              400);
    struct tsr_prompt prompt = match_prompt(&t, TSR_PROMPT_OTHER);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 0);
    tsr_space_close(other);
    free(doc);
}

TEST(tokens_of_media_are_never_covered)
{
    match_reopen(&k, NULL);
    uint32_t *doc = kit_tokens(1, 600);
    struct text t = {doc, 600, 600};
    struct kit_hits hits;
    CHECK_INT(kit_store_segment(&k, doc, 600), 600);
    /* Not in order, one inside another, and two that touch. */
    struct tsr_extra media[] = {{TSR_EXTRA_MEDIA, 400, 1, 3, "one"},
                                {TSR_EXTRA_MEDIA, 100, 50, 3, "two"},
                                {TSR_EXTRA_MEDIA, 110, 5, 5, "three"},
                                {TSR_EXTRA_MEDIA, 150, 10, 4, "four"}};
    struct tsr_prompt prompt = match_prompt(&t, TSR_PROMPT_OTHER);
    prompt.extra = media;
    prompt.n_extra = 4;
    int n = kit_lookup(&k, &prompt, 0, &hits);
    CHECK_INT(n, 100 + 240 + 199);
    CHECK_INT(hits.io.n_matches, 3);
    CHECK_ROW(hits.matches[0], 0, 0, 100);
    CHECK_ROW(hits.matches[1], 160, 160, 240);
    CHECK_ROW(hits.matches[2], 401, 401, 199);
    struct stored stored = match_pure(&k, doc, 600);
    CHECK(match_rows_are_right(&k, &hits, n, &prompt, &stored, 1));
    free(doc);
}

TEST(blended_entries_are_not_found_anywhere)
{
    match_reopen(&k, NULL);
    uint32_t *doc = kit_tokens(1, 300);
    struct text t = {doc, 300, 300};
    struct kit_hits hits;
    CHECK_INT(kit_store(&k, &(struct tsr_store_desc){.kind = TSR_KIND_BLENDED,
                                                     .tokens = doc,
                                                     .n_tokens = 300,
                                                     .recipe = "r",
                                                     .recipe_bytes = 1}),
              300);
    struct tsr_prompt prompt = match_prompt(&t, TSR_PROMPT_OTHER);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 0);
    free(doc);
}

TEST(of_too_many_rows_the_longest_are_kept)
{
    match_reopen(&k, NULL);
    struct text t;
    struct kit_hits hits;
    uint64_t seed = 8;
    text_init(&t, 6000);
    for (uint32_t d = 0; d < 8; d++) {
        uint32_t n = 100 + (d * 5 % 8) * 50;
        uint32_t *doc = kit_tokens(d, n);
        CHECK_INT(kit_store_segment(&k, doc, n), n);
        text_add(&t, doc, n);
        text_add_random(&t, &seed, 10, 50000);
        free(doc);
    }
    struct tsr_prompt prompt = match_prompt(&t, 0);
    CHECK(kit_lookup(&k, &prompt, 0, &hits) == 8 * 100 + 28 * 50);
    CHECK_INT(hits.io.n_matches, 8);
    hits.io.matches_max = 3;
    CHECK_INT(tsr_client_lookup(k.client, &prompt, &hits.io), 450 + 400 + 350);
    CHECK_INT(hits.io.n_matches, 3);
    for (uint32_t i = 1; i < 3; i++)
        CHECK(hits.matches[i].prompt_offset > hits.matches[i - 1].prompt_offset);
    hits.io.matches_max = 0;
    CHECK_INT(tsr_client_lookup(k.client, &prompt, &hits.io), 0);
    text_fini(&t);
}

/* ---- several spaces ---- */

static int lookup_two(struct tsr_space *const *spaces, const struct tsr_prompt *prompt,
                      struct tsr_match *matches, uint32_t *n_rows)
{
    struct tsr_lookup_desc io = {
        .size = sizeof io, .spaces = spaces, .n_spaces = 2, .matches = matches, .matches_max = 32};
    int n = tsr_client_lookup(k.client, prompt, &io);
    *n_rows = io.n_matches;
    return n;
}

TEST(a_run_must_be_in_all_spaces)
{
    match_reopen(&k, NULL);
    struct tsr_space_desc desc = kit_desc();
    desc.rank = 1;
    desc.world = 2;
    struct tsr_space *second = kit_space(k.cache, &desc), *spaces[2] = {k.space, second};
    uint32_t *doc = kit_tokens(1, 500), *more = kit_tokens(2, 300), n_rows;
    struct text t;
    struct tsr_match matches[64];
    text_init(&t, 2000);
    text_add(&t, more, 70);
    text_add(&t, doc, 500);
    text_add(&t, more + 100, 200);
    struct tsr_prompt prompt = match_prompt(&t, 0);
    CHECK_INT(kit_store_segment(&k, doc, 500), 500);
    CHECK_INT(kit_store_segment(&k, more, 300), 300);
    CHECK_INT(lookup_two(spaces, &prompt, matches, &n_rows), 0);
    CHECK_INT(n_rows, 0);
    /* The second space knows the document in two pieces, and begins a little later. */
    struct tsr_store_desc store = {.space = second, .kind = TSR_KIND_SEGMENT};
    store.tokens = doc + 20;
    store.n_tokens = 180;
    CHECK_INT(kit_store(&k, &store), 180);
    store.tokens = doc + 200;
    store.n_tokens = 300;
    CHECK_INT(kit_store(&k, &store), 300);
    CHECK_INT(lookup_two(spaces, &prompt, matches, &n_rows), 480);
    CHECK_INT(n_rows, 2);
    CHECK_ROW(matches[0], 90, 20, 180);
    CHECK_ROW(matches[1], 90, 0, 180);
    CHECK_ROW(matches[2], 270, 200, 300);
    CHECK_ROW(matches[3], 270, 0, 300);
    CHECK_INT(matches[0].coverage, TSR_COVERAGE_RUN);
    CHECK_INT(matches[1].coverage, TSR_COVERAGE_FULL);
    CHECK(matches[0].entry == matches[2].entry && matches[1].entry != matches[3].entry);
    for (uint32_t id = 0; id < k.cache->ids_fresh; id++)
        CHECK_INT(tsri_word_pins(atomic_load(&k.cache->entries[id].word)), 0);
    tsr_space_close(second);
    free(doc);
    free(more);
    text_fini(&t);
}

/* ---- leases ---- */

static uint32_t n_pins(void)
{
    uint32_t n = 0;
    for (uint32_t id = 0; id < k.cache->ids_fresh; id++)
        n += tsri_word_pins(atomic_load(&k.cache->entries[id].word));
    return n;
}

TEST(runs_are_leased_like_other_matches)
{
    match_reopen(&k, NULL);
    uint32_t *doc = kit_tokens(1, 500), *other = kit_tokens(2, 600);
    struct text t;
    struct kit_hits hits;
    text_init(&t, 2000);
    text_add(&t, doc, 200);
    text_add(&t, other, 7);
    text_add(&t, doc + 200, 300);
    text_add(&t, other, 600);
    CHECK_INT(kit_store_segment(&k, doc, 500), 500);
    CHECK_INT(kit_store_segment(&k, other, 600), 600);
    struct tsr_prompt prompt = match_prompt(&t, 0);
    CHECK_INT(kit_lookup(&k, &prompt, 77, &hits), 1100);
    CHECK_INT(hits.io.n_matches, 3);
    CHECK_INT(n_pins(), 3);
    CHECK_INT(tsr_cache_clear(k.cache, NULL), 0);
    CHECK_INT(kit_lookup(&k, &prompt, 77, &hits), 1100); /* the same request again */
    CHECK_INT(n_pins(), 3);
    CHECK_INT(tsr_client_release(k.client, 77), 3);
    CHECK_INT(n_pins(), 0);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 1100);
    CHECK_INT(n_pins(), 0);
    match_reopen(&k, (const char *const[]){"lease_entries_max", "2", NULL});
    CHECK_INT(kit_store_segment(&k, doc, 500), 500);
    CHECK_INT(kit_store_segment(&k, other, 600), 600);
    CHECK_INT(kit_lookup(&k, &prompt, 77, &hits), 900); /* the two longest */
    CHECK_INT(n_pins(), 2);
    CHECK_INT(tsr_client_release(k.client, 77), 2);
    free(doc);
    free(other);
    text_fini(&t);
}

int main(void)
{
    RUN(stored_text_is_found_wherever_it_stands);
    RUN(exact_comes_first_then_segments_then_runs);
    RUN(a_prefix_elsewhere_is_approximate_and_only_for_who_accepts_it);
    RUN(the_context_of_a_run_is_same_pure_or_other);
    RUN(other_salts_adapters_and_spaces_never_match);
    RUN(tokens_of_media_are_never_covered);
    RUN(blended_entries_are_not_found_anywhere);
    RUN(of_too_many_rows_the_longest_are_kept);
    RUN(a_run_must_be_in_all_spaces);
    RUN(runs_are_leased_like_other_matches);
    if (k.cache) kit_close(&k);
    return test_end();
}
