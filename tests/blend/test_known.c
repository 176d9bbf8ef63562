/* Text of plain requests: found where nobody marked it, used for what it is, and by nobody else. */
#include "support/blend_kit.h"
#include "support/test.h"

#include <math.h>

#define BLOCK 64u

static struct tsr_extra salt_of(const char *text)
{
    return (struct tsr_extra){
        .kind = TSR_EXTRA_SALT, .bytes = (uint32_t)strlen(text), .data = text};
}

static void open_kit(struct blend_kit *k, const char *path, uint32_t dtype)
{
    blend_kit_open(k, path, dtype, 0);
    k->traffic = (struct tsr_space_desc){
        .size = sizeof k->traffic, .model = "plain", .tokenizer = "engine", .block_tokens = BLOCK};
    blend_kit_reopen(k);
}

static const uint32_t docs[] = {200, 230};
static const uint32_t there[] = {0, 1}, back[] = {1, 0};

/* Documents behind a system prompt, as no segment marks them. */
static void prompt_of(struct blend_kit *k, uint32_t n_system, const uint32_t *order)
{
    blend_kit_prompt(k, 3, n_system, docs, 2, order);
    k->n_segments = 0;
    k->has_system = false;
}

/* What a plain request has left behind. */
static void serve_plain(struct blend_kit *k, const struct tsr_extra *extra)
{
    prompt_of(k, 30, there);
    uint32_t n = k->n_tokens / BLOCK * BLOCK;
    CHECK_INT(blend_kit_plain(k, k->n_tokens, extra, extra != NULL), n);
}

/* The kit for documents that are computed alone, after a plain request. */
static void open_pure(struct blend_kit *k)
{
    open_kit(k, "llama", TSR_DTYPE_F16);
    k->profile.context = TSR_CONTEXT_PURE;
    blend_kit_reopen(k);
    serve_plain(k, NULL);
}

static uint32_t n_used(const struct blend_kit *k)
{
    return k->report.n_exact + k->report.n_reused + k->report.n_recomputed;
}

TEST(documents_that_no_request_marked_are_found_behind_other_text)
{
    struct blend_kit k;
    open_kit(&k, "llama", TSR_DTYPE_F16);
    serve_plain(&k, NULL);
    prompt_of(&k, 45, back);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY), 0);
    /* Of 430 tokens no more than the ends of the documents and of the blocks are missing. */
    CHECK(k.report.n_other > 320);
    CHECK_INT(k.report.n_other, k.report.n_reused);
    CHECK_INT(k.report.n_exact, 0);
    CHECK_INT(k.report.n_stored, 0);
    /* Nobody asked for text at any offset. */
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, 0), 0);
    CHECK_INT(n_used(&k), 0);
    CHECK(blend_kit_close(&k));
}

TEST(text_behind_other_text_is_never_exact_also_at_its_own_place)
{
    struct blend_kit k;
    float prefill[128];
    open_kit(&k, "llama", TSR_DTYPE_F32);
    serve_plain(&k, NULL);
    /* As long as before, so that all blocks are where they were, but behind another beginning. */
    prompt_of(&k, 30, there);
    k.tokens[0] ^= 1;
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY), 0);
    CHECK_INT(k.report.n_exact, 0);
    CHECK(k.report.n_other > 320);
    blend_kit_prefill(&k, prefill);
    CHECK(memcmp(prefill, k.logits, sizeof prefill) != 0);
    /* Recomputing everything is a prefill. */
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, TSR_ASK_ANY), 0);
    CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
    CHECK(blend_kit_close(&k));
}

TEST(the_exact_prefix_of_plain_requests_stays_exact)
{
    struct blend_kit k;
    float prefill[128];
    open_kit(&k, "llama", TSR_DTYPE_F16);
    serve_plain(&k, NULL);
    for (uint32_t cold = 0; cold < 2; cold++) {
        prompt_of(&k, 30, there);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY), 0);
        uint32_t n = k.n_tokens / BLOCK * BLOCK;
        CHECK_INT(k.report.n_exact, n);
        CHECK_INT(k.report.n_other, 0);
        blend_kit_prefill(&k, prefill);
        CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
        blend_kit_make_cold(&k); /* the second time they are compared when they are read */
    }
    CHECK(blend_kit_close(&k));
}

/* A neighbour that has the same prompt tries every way to somebody's text. */
TEST(nobody_reads_the_text_of_another_salt)
{
    struct tsr_extra mine = salt_of("mine"), hers = salt_of("hers");
    struct tsr_extra adapter = {.kind = TSR_EXTRA_ADAPTER, .bytes = 4, .data = "mine"};
    const struct tsr_extra tries[] = {{0}, hers, salt_of("min"), salt_of("mine2"), adapter};
    struct blend_kit k;
    open_kit(&k, "llama", TSR_DTYPE_F16);
    serve_plain(&k, &mine);
    for (uint32_t cold = 0; cold < 2; cold++) {
        for (uint32_t i = 0; i < TSRI_COUNT(tries); i++) {
            for (uint32_t same = 0; same < 2; same++) {
                k.extra = tries[i];
                prompt_of(&k, same ? 30 : 45, same ? there : back);
                CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY | TSR_ASK_FILL), 0);
                CHECK_INT(n_used(&k), 0);
            }
        }
        blend_kit_make_cold(&k);
    }
    k.extra = mine;
    prompt_of(&k, 30, there);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY), 0);
    CHECK(n_used(&k) > 320);
    CHECK(blend_kit_close(&k));
}

TEST(engines_with_another_salt_weights_rank_or_blocks_share_nothing)
{
    struct blend_kit k;
    open_kit(&k, "llama", TSR_DTYPE_F16);
    serve_plain(&k, NULL);
    struct tsr_space_desc right = k.traffic, other[6];
    for (uint32_t i = 0; i < TSRI_COUNT(other); i++)
        other[i] = right;
    other[0].salt = "tenant";
    other[1].weights = "w", other[1].weights_bytes = 1;
    other[2].rank = 1, other[2].world = 2;
    other[3].block_tokens = BLOCK / 2;
    other[4].adapter = "a";
    other[5].tokenizer = "another engine";
    for (uint32_t i = 0; i <= TSRI_COUNT(other); i++) {
        k.traffic = i < TSRI_COUNT(other) ? other[i] : right;
        blend_kit_reopen(&k);
        prompt_of(&k, 45, back);
        CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY), 0);
        CHECK((n_used(&k) > 0) == (i == TSRI_COUNT(other)));
    }
    CHECK(blend_kit_close(&k));
}

TEST(marked_documents_are_computed_alone_rather_than_taken_from_traffic)
{
    struct blend_kit k;
    open_pure(&k);
    blend_kit_prompt(&k, 3, 45, docs, 2, back);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY | TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_filled, 45 + 430);
    CHECK_INT(k.report.n_other, 0);
    /* And from then on they are what other prompts find, marked or not. */
    prompt_of(&k, 60, there);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY), 0);
    CHECK_INT(k.report.n_other, 0);
    CHECK(n_used(&k) >= 430);
    CHECK(blend_kit_close(&k));
}

/* The first two tokens of each document are a separator now: runs begin there, outside of any
 * segment, and reach into the document. */
TEST(text_that_begins_before_a_marked_document_does_not_replace_it)
{
    struct blend_kit k;
    open_pure(&k);
    blend_kit_prompt(&k, 3, 45, docs, 2, back);
    for (uint32_t i = 1; i < k.n_segments; i++) {
        k.segments[i].offset += 2;
        k.segments[i].n_tokens -= 2;
    }
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY | TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_filled, 45 + 430 - 2 * 2);
    CHECK_INT(k.report.n_other, 0);
    CHECK(blend_kit_close(&k));
}

/* Segments that were computed alone, and text of plain requests between and around them. */
TEST(text_of_plain_requests_takes_the_places_that_are_left)
{
    struct blend_kit k;
    open_pure(&k);
    blend_kit_prompt(&k, 3, 0, docs, 1, NULL); /* the first document, marked once */
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
    CHECK_INT(k.report.n_filled, 200);
    prompt_of(&k, 45, back);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY), 0);
    CHECK(k.report.n_other > 150 && k.report.n_other <= 230);
    CHECK(k.report.n_reused >= k.report.n_other + 196);
    CHECK(blend_kit_close(&k));
}

static void check_apart(struct blend_kit *k, uint32_t flags)
{
    struct tsr_ask_desc ask = blend_kit_ask_of(k, TSR_SELECT_NONE, 0, flags);
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = k->tokens,
                                .n_tokens = k->n_tokens,
                                .segments = k->segments,
                                .n_segments = k->n_segments,
                                .flags = k->n_segments ? TSR_PROMPT_SEGMENTS | TSR_PROMPT_ANY
                                                       : TSR_PROMPT_ANY};
    struct tsri_known known;
    uint32_t end = 0;
    CHECK_INT(tsri_known_find(&known, k->blend, &ask, &prompt), 0);
    for (uint32_t i = 0; i < known.n; i++) {
        CHECK(known.matches[i].prompt_offset >= end);
        CHECK(known.matches[i].n_tokens > 0);
        end = known.matches[i].prompt_offset + known.matches[i].n_tokens;
    }
    CHECK(end <= k->n_tokens);
    tsri_known_fini(&known);
}

/* Random prompts of few documents, plain and asked in turn: all tokens are accounted for, and
 * recomputing everything is a prefill. */
TEST(random_traffic_keeps_every_promise)
{
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    uint64_t state = 77;
    for (uint32_t round = 0; round < (TEST_SANITIZED ? 4u : 12u); round++) {
        struct blend_kit k;
        float prefill[128];
        uint32_t order[4] = {0, 1, 2, 3}, lengths[4];
        open_kit(&k, archs[round % 3], round % 2 ? TSR_DTYPE_F16 : TSR_DTYPE_F32);
        k.profile.context = 1 + round / 2 % 2;
        blend_kit_reopen(&k);
        for (uint32_t i = 0; i < 4; i++)
            lengths[i] = 20 + (uint32_t)(test_rand(&state) >> 40) % 120;
        for (uint32_t ask = 0; ask < 6; ask++) {
            uint32_t r = (uint32_t)(test_rand(&state) >> 32);
            uint32_t swap = order[r % 4];
            order[r % 4] = order[0], order[0] = swap;
            blend_kit_prompt(&k, 50 + round, r / 8 % 3 * 15, lengths, 1 + r / 64 % 4, order);
            if (r / 256 % 3 == 0) k.tokens[r % k.n_tokens] ^= 1;
            if (r / 1024 % 2) k.n_segments = 0, k.has_system = false;
            if (r / 2048 % 2) blend_kit_make_cold(&k);
            uint32_t flags = r / 4096 % 4, selector = TSR_SELECT_QUERY + r / 65536 % 4;
            CHECK_INT(blend_kit_ask(&k, selector, 0.3, flags), 0);
            check_apart(&k, flags);
            CHECK_INT(n_used(&k) + k.report.n_new, k.n_tokens);
            CHECK(k.report.n_other <= k.report.n_reused);
            CHECK(isfinite(k.logits[0]));
            blend_kit_prefill(&k, prefill);
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_FULL, 1, flags), 0);
            CHECK(memcmp(prefill, k.logits, sizeof prefill) == 0);
            (void)blend_kit_plain(&k, k.n_tokens, NULL, 0);
        }
        CHECK(blend_kit_close(&k));
    }
}

/* Whatever a prompt was answered from, what it has stored is its documents computed alone: the same
 * prompt without text at any offset gives the bits that it gives without a cache. */
TEST(nothing_of_other_text_is_stored_with_a_document)
{
    static const uint32_t contexts[] = {TSR_CONTEXT_SAME, TSR_CONTEXT_PURE, TSR_CONTEXT_PRIMER};
    uint64_t state = 5;
    uint32_t n_stored = 0, n_other = 0;
    for (uint32_t round = 0; round < (TEST_SANITIZED ? 3u : 9u); round++) {
        struct blend_kit k;
        float stored[128];
        uint32_t lengths[3], order[3] = {0, 1, 2};
        open_kit(&k, round % 2 ? "llama" : "qwen3", TSR_DTYPE_F16);
        k.profile.context = contexts[round % 3];
        k.n_primer = 20;
        for (uint32_t i = 0; i < k.n_primer; i++)
            k.primer[i] = 3 + i;
        blend_kit_reopen(&k);
        for (uint32_t i = 0; i < 3; i++)
            lengths[i] = 60 + (uint32_t)(test_rand(&state) >> 40) % 120;
        for (uint32_t ask = 0; ask < 4; ask++) {
            uint32_t r = (uint32_t)(test_rand(&state) >> 32), gap = r % 4 * 3;
            order[0] = r / 4 % 3, order[1] = (order[0] + 1 + r / 16 % 2) % 3;
            blend_kit_prompt(&k, 90 + round, r / 32 % 3 * 25, lengths, 2, order);
            (void)blend_kit_plain(&k, k.n_tokens, NULL, 0);
            order[2] = order[0], order[0] = order[1], order[1] = order[2];
            /* One that was computed without a system prompt would be taken behind one, too. */
            blend_kit_prompt(&k, 90 + round, 25 + r / 128 % 2 * 25, lengths, 2, order);
            for (uint32_t i = k.has_system; i < k.n_segments; i++) {
                k.segments[i].offset += gap;
                k.segments[i].n_tokens -= gap;
            }
            if (r / 512 % 2) blend_kit_make_cold(&k);
            uint32_t selector = TSR_SELECT_QUERY + r / 1024 % 4;
            CHECK_INT(blend_kit_ask(&k, selector, 0.3, TSR_ASK_ANY | TSR_ASK_FILL), 0);
            n_stored += k.report.n_stored, n_other += k.report.n_other;
            CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL), 0);
            memcpy(stored, k.logits, sizeof stored);
            blend_kit_ask_alone(&k, TSR_SELECT_NONE, 0, TSR_ASK_FILL);
            CHECK(memcmp(stored, k.logits, sizeof stored) == 0);
        }
        CHECK(blend_kit_close(&k));
    }
    CHECK(n_stored > 0 && n_other > 0);
}

TEST(a_rope_that_changes_with_the_length_is_left_alone)
{
    struct blend_kit k;
    open_kit(&k, "llama dynamic=2 trained=150", TSR_DTYPE_F16);
    CHECK(k.blend->traffic == NULL);
    CHECK(blend_kit_close(&k));
}

TEST(what_cannot_be_is_refused)
{
    struct tsr_extra image = {.kind = TSR_EXTRA_MEDIA, .n_tokens = 4, .bytes = 1, .data = "i"};
    struct blend_kit k;
    open_kit(&k, "llama", TSR_DTYPE_F16);
    prompt_of(&k, 30, there);
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY | TSR_ASK_PREFIX), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "plain requests");
    k.extra = image;
    CHECK_INT(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY), TSR_EINVAL);
    k.extra.kind = 99;
    CHECK(blend_kit_ask(&k, TSR_SELECT_NONE, 0, TSR_ASK_ANY) < 0);
    CHECK(blend_kit_close(&k));
}

int main(void)
{
    RUN(documents_that_no_request_marked_are_found_behind_other_text);
    RUN(text_behind_other_text_is_never_exact_also_at_its_own_place);
    RUN(the_exact_prefix_of_plain_requests_stays_exact);
    RUN(nobody_reads_the_text_of_another_salt);
    RUN(engines_with_another_salt_weights_rank_or_blocks_share_nothing);
    RUN(marked_documents_are_computed_alone_rather_than_taken_from_traffic);
    RUN(text_that_begins_before_a_marked_document_does_not_replace_it);
    RUN(text_of_plain_requests_takes_the_places_that_are_left);
    RUN(random_traffic_keeps_every_promise);
    RUN(nothing_of_other_text_is_stored_with_a_document);
    RUN(a_rope_that_changes_with_the_length_is_left_alone);
    RUN(what_cannot_be_is_refused);
    return test_end();
}
