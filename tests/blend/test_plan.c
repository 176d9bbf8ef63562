/* What becomes of each token. */
#include "blend/blend.h"
#include "support/test.h"

static uint32_t tokens[400];
static const struct tsr_range segments[] = {{0, 20}, {20, 100}, {120, 100}, {220, 60}};
static struct tsr_profile profile;

static struct tsr_match segment(uint32_t i, uint32_t context)
{
    return (struct tsr_match){.entry = i + 1,
                              .prompt_offset = segments[i].offset,
                              .n_tokens = segments[i].n_tokens,
                              .entry_tokens = segments[i].n_tokens,
                              .kind = TSR_KIND_SEGMENT,
                              .context = (uint8_t)context,
                              .base = context == TSR_CONTEXT_SAME ? 20 : 0,
                              .verified = 1,
                              .coverage = TSR_COVERAGE_FULL};
}

static void plan_of(struct tsri_plan *p, const struct tsr_match *matches, uint32_t n,
                    uint32_t flags, const struct tsri_plan_desc *more)
{
    static struct tsr_ask_desc ask;
    ask = (struct tsr_ask_desc){.size = sizeof ask,
                                .tokens = tokens,
                                .n_tokens = 300,
                                .segments = segments,
                                .n_segments = 4,
                                .system = 1,
                                .flags = flags};
    struct tsri_plan_desc d = *more;
    d.ask = &ask;
    d.profile = &profile;
    d.matches = matches;
    d.n_matches = n;
    d.same_context = true;
    if (!d.selector) d.selector = TSR_SELECT_QUERY;
    tsr_profile_init(&profile);
    CHECK_INT(tsri_plan_init(p, &d), 0);
}
static const struct tsri_plan_desc plain;

TEST(what_nobody_knows_is_computed)
{
    struct tsri_plan p;
    plan_of(&p, NULL, 0, 0, &plain);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_NEW), 300);
    CHECK_INT(p.question, 280);
    for (uint32_t i = 0; i < 300; i++)
        CHECK(tsri_plan_computes(&p, i));
    tsri_plan_fini(&p);
}

TEST(the_system_prompt_and_what_follows_it_are_exact)
{
    struct tsri_plan p;
    struct tsr_match m[] = {segment(0, TSR_CONTEXT_PURE), segment(1, TSR_CONTEXT_SAME),
                            segment(2, TSR_CONTEXT_SAME), segment(3, TSR_CONTEXT_PURE)};
    plan_of(&p, m, 4, 0, &plain);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_EXACT), 120);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_ALWAYS), 2); /* one at each start */
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_CANDIDATE), 158);
    CHECK_INT(p.n_chunks, 2);
    CHECK_INT(p.states[120], TSR_TOKEN_ALWAYS);
    CHECK_INT(p.states[121], TSR_TOKEN_CANDIDATE);
    tsri_plan_fini(&p);
}

TEST(a_pure_segment_behind_the_system_prompt_is_not_exact)
{
    struct tsri_plan p;
    struct tsr_match m[] = {segment(0, TSR_CONTEXT_PURE), segment(1, TSR_CONTEXT_PURE)};
    plan_of(&p, m, 2, 0, &plain);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_EXACT), 20);
    tsri_plan_fini(&p);
    /* The same context, but computed elsewhere. */
    m[1] = segment(1, TSR_CONTEXT_SAME);
    m[1].base = 21;
    plan_of(&p, m, 2, 0, &plain);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_EXACT), 20);
    tsri_plan_fini(&p);
}

/* What stands before it in the entry may be other text than what stands before it here. */
TEST(the_rest_of_an_entry_at_its_own_place_is_not_exact)
{
    struct tsri_plan p;
    struct tsr_match m[] = {segment(0, TSR_CONTEXT_PURE), segment(1, TSR_CONTEXT_SAME)};
    m[1].prompt_offset += 30;
    m[1].entry_offset = 30;
    m[1].n_tokens -= 30;
    m[1].coverage = TSR_COVERAGE_PARTIAL;
    plan_of(&p, m, 2, TSR_ASK_ANY, &plain);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_EXACT), 20);
    tsri_plan_fini(&p);
    /* Chunks that were found as a whole are that text; the prefix has their first tokens. */
    plan_of(&p, m, 2, 0, &plain);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_EXACT), 90);
    tsri_plan_fini(&p);
}

/* Segments are filled behind it, and kept as what stands behind this very text. */
TEST(nothing_approximate_stands_in_a_system_prompt_that_is_filled_behind)
{
    struct tsri_plan p;
    struct tsr_match m = segment(0, TSR_CONTEXT_PURE);
    m.prompt_offset = 4;
    m.n_tokens = m.entry_tokens = 16;
    plan_of(&p, &m, 1, TSR_ASK_ANY | TSR_ASK_FILL, &plain);
    CHECK_INT(p.n_pieces, 4);
    CHECK_INT(p.pieces[0].kind, TSRI_PIECE_FILL);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_EXACT), 120);
    tsri_plan_fini(&p);
}

TEST(the_last_token_is_always_computed)
{
    struct tsri_plan p;
    struct tsr_match m = {.n_tokens = 300,
                          .entry_tokens = 300,
                          .kind = TSR_KIND_PREFIX,
                          .context = TSR_CONTEXT_SAME,
                          .verified = 1,
                          .coverage = TSR_COVERAGE_FULL};
    struct tsri_plan_desc d = {.n_prefix_tokens = 300};
    plan_of(&p, &m, 1, 0, &d);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_EXACT), 299);
    CHECK_INT(p.states[299], TSR_TOKEN_NEW);
    tsri_plan_fini(&p);
}

TEST(prefix_blocks_elsewhere_are_approximate_and_edges_are_seams)
{
    struct tsri_plan p;
    struct tsr_match m = {.prompt_offset = 130,
                          .entry_offset = 3,
                          .n_tokens = 40,
                          .entry_tokens = 64,
                          .kind = TSR_KIND_PREFIX,
                          .context = TSR_CONTEXT_OTHER,
                          .verified = 1,
                          .coverage = TSR_COVERAGE_RUN};
    plan_of(&p, &m, 1, 0, &plain);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_CANDIDATE), 36);
    CHECK_INT(p.states[130], TSR_TOKEN_ALWAYS);
    CHECK_INT(p.states[131], TSR_TOKEN_ALWAYS);
    CHECK_INT(p.states[168], TSR_TOKEN_ALWAYS);
    CHECK_INT(p.states[170], TSR_TOKEN_NEW);
    tsri_plan_fini(&p);
    /* Where segments are filled, a run of one is of no use. */
    plan_of(&p, &m, 1, TSR_ASK_FILL, &plain);
    CHECK_INT(p.n_pieces, 4);
    for (uint32_t i = 0; i < 4; i++)
        CHECK_INT(p.pieces[i].kind, TSRI_PIECE_FILL);
    tsri_plan_fini(&p);
}

TEST(blocks_that_followed_each_other_have_no_seam_between_them)
{
    struct tsri_plan p;
    struct tsr_match m[3];
    for (uint32_t i = 0; i < 3; i++)
        m[i] = (struct tsr_match){.prompt_offset = 130 + 32 * i,
                                  .n_tokens = 32,
                                  .entry_tokens = 32,
                                  .base = 64 + 32 * i,
                                  .kind = TSR_KIND_PREFIX,
                                  .context = TSR_CONTEXT_OTHER,
                                  .verified = 1,
                                  .coverage = TSR_COVERAGE_FULL};
    plan_of(&p, m, 3, 0, &plain);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_CANDIDATE), 3 * 32 - 4);
    CHECK_INT(p.n_chunks, 1);
    /* One that is lost leaves seams. */
    tsri_plan_lose(&p, 1);
    tsri_plan_paint(&p);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_CANDIDATE), 2 * 32 - 8);
    CHECK_INT(p.n_chunks, 2);
    tsri_plan_fini(&p);
    /* Another block between them, there, or other text of a block. */
    m[1].base += 32;
    plan_of(&p, m, 3, 0, &plain);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_CANDIDATE), 3 * 32 - 12);
    tsri_plan_fini(&p);
    m[1].base -= 32;
    m[1].entry_tokens = 40;
    plan_of(&p, m, 3, 0, &plain);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_CANDIDATE), 3 * 32 - 8);
    tsri_plan_fini(&p);
}

TEST(little_is_not_worth_blending)
{
    struct tsri_plan p;
    struct tsr_match m[] = {segment(0, TSR_CONTEXT_PURE), segment(3, TSR_CONTEXT_SAME)};
    struct tsri_plan_desc d = {.min_tokens = 61};
    plan_of(&p, m, 2, 0, &d);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_EXACT), 20);
    CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_NEW), 280);
    CHECK_INT(p.reasons, TSR_BLEND_FEW);
    tsri_plan_fini(&p);
    d.min_tokens = 60;
    plan_of(&p, m, 2, 0, &d);
    CHECK_INT(p.reasons, 0);
    CHECK_INT(p.n_chunks, 1);
    tsri_plan_fini(&p);
}

TEST(other_frequencies_are_of_no_use)
{
    struct tsri_plan p;
    struct tsr_match m[] = {segment(0, TSR_CONTEXT_PURE), segment(2, TSR_CONTEXT_SAME)};
    m[1].freq_set = 7;
    plan_of(&p, m, 2, 0, &plain);
    CHECK_INT(p.n_pieces, 1);
    CHECK_INT(p.reasons, TSR_BLEND_FREQ);
    tsri_plan_fini(&p);
}

TEST(what_is_lost_is_filled_when_it_is_a_whole_segment)
{
    struct tsri_plan p;
    struct tsr_match m[] = {segment(0, TSR_CONTEXT_PURE), segment(1, TSR_CONTEXT_SAME),
                            segment(2, TSR_CONTEXT_SAME), segment(3, TSR_CONTEXT_SAME)};
    plan_of(&p, m, 4, TSR_ASK_FILL, &plain);
    tsri_plan_lose(&p, 2);
    CHECK_INT(p.pieces[2].kind, TSRI_PIECE_FILL);
    CHECK_INT(p.pieces[2].match.base, 20);
    CHECK_INT(p.pieces[2].match.context, TSR_CONTEXT_SAME);
    CHECK_INT(p.pieces[3].kind, TSRI_PIECE_LOAD);
    tsri_plan_lose(&p, 0);
    CHECK_INT(p.pieces[0].match.context, TSR_CONTEXT_PURE);
    CHECK_INT(p.pieces[0].match.base, 0);
    CHECK(p.pieces[0].exact);
    tsri_plan_fini(&p);
    plan_of(&p, m, 4, 0, &plain);
    tsri_plan_lose(&p, 2);
    tsri_plan_paint(&p);
    CHECK_INT(p.states[150], TSR_TOKEN_NEW);
    CHECK_INT(p.n_chunks, 1);
    tsri_plan_fini(&p);
}

/* Any matches that do not overlap: every token has one state, and counts agree. */
TEST(random_plans_are_whole)
{
    uint64_t state = 99;
    for (uint32_t round = 0; round < 2000; round++) {
        struct tsr_match m[24];
        uint32_t n = 0, at = 0;
        while (n < 24) {
            at += (uint32_t)(test_rand(&state) >> 40) % 40;
            uint32_t len = 1 + (uint32_t)(test_rand(&state) >> 40) % 60;
            if (at + len > 300) break;
            uint64_t r = test_rand(&state) >> 20;
            m[n++] = (struct tsr_match){.prompt_offset = at,
                                        .entry_offset = (uint32_t)(r % 5),
                                        .n_tokens = len,
                                        .entry_tokens = len + 9,
                                        .kind = (uint8_t)(1 + r / 8 % 2),
                                        .context = (uint8_t)(1 + r / 16 % 3),
                                        .verified = r / 64 % 2,
                                        .coverage = (uint8_t)(1 + r / 128 % 3)};
            at += len;
        }
        struct tsri_plan p;
        struct tsri_plan_desc d = {.min_tokens = round % 3 * 40,
                                   .selector = TSR_SELECT_QUERY + round % 5};
        plan_of(&p, m, n, round % 2 ? TSR_ASK_FILL : 0, &d);
        for (uint32_t i = 0; i < p.n_pieces && round % 4 == 3; i += 3)
            tsri_plan_lose(&p, i);
        tsri_plan_paint(&p);
        uint32_t end = 0, sum = 0;
        for (uint32_t i = 0; i < p.n_pieces; i++) {
            CHECK(p.pieces[i].match.prompt_offset >= end);
            end = p.pieces[i].match.prompt_offset + p.pieces[i].match.n_tokens;
        }
        CHECK(end <= 299);
        for (uint32_t s = TSR_TOKEN_NEW; s <= TSR_TOKEN_SELECTED; s++)
            sum += tsri_plan_count(&p, s);
        CHECK_INT(sum, 300);
        CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_CANDIDATE), p.n_candidates);
        CHECK_INT(tsri_plan_count(&p, TSR_TOKEN_ALWAYS), p.n_always);
        CHECK_INT(p.states[299], TSR_TOKEN_NEW);
        tsri_plan_fini(&p);
    }
}

int main(void)
{
    RUN(what_nobody_knows_is_computed);
    RUN(the_system_prompt_and_what_follows_it_are_exact);
    RUN(a_pure_segment_behind_the_system_prompt_is_not_exact);
    RUN(the_rest_of_an_entry_at_its_own_place_is_not_exact);
    RUN(nothing_approximate_stands_in_a_system_prompt_that_is_filled_behind);
    RUN(the_last_token_is_always_computed);
    RUN(prefix_blocks_elsewhere_are_approximate_and_edges_are_seams);
    RUN(blocks_that_followed_each_other_have_no_seam_between_them);
    RUN(little_is_not_worth_blending);
    RUN(other_frequencies_are_of_no_use);
    RUN(what_is_lost_is_filled_when_it_is_a_whole_segment);
    RUN(random_plans_are_whole);
    return test_end();
}
