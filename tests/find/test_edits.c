/* Text with frequent small edits: found whatever the edits are and wherever they stand, never where
 * tokens, space or extra differ, and never in more than linear work. */
#include "support/match_kit.h"
#include "support/test.h"

#define NEW 1000000u /* tokens from here on are in no document */

static struct kit k;
static uint64_t seed;

static void reopen(const char *partial)
{
    match_reopen(&k, (const char *const[]){"partial", partial, NULL});
}

static uint32_t new_token(void)
{
    return NEW + text_random(&seed, NEW);
}

/* Other text, the document with an edit of the given form at each of the places, other text. */
enum form { REPLACED, INSERTED, DELETED, ANY_FORM };
static struct text edited(const uint32_t *doc, uint32_t n, const bool *places, enum form form)
{
    struct text t;
    text_init(&t, 3 * n + 200);
    for (uint32_t i = 0; i < 77; i++)
        t.tokens[t.n++] = new_token();
    for (uint32_t i = 0; i < n; i++) {
        enum form is = form == ANY_FORM ? text_random(&seed, 3) : form;
        if (places[i] && is != DELETED) t.tokens[t.n++] = new_token();
        if (!places[i] || is == INSERTED) t.tokens[t.n++] = doc[i];
    }
    for (uint32_t i = 0; i < 33; i++)
        t.tokens[t.n++] = new_token();
    return t;
}

/* What was chosen: every run is right, they do not overlap; tokens in all, and with what is beside
 * them. */
struct sums {
    uint32_t tokens, equal, n;
    uint8_t coverage; /* the best */
};
static struct sums found(const struct text *t, uint32_t flags)
{
    struct matching x;
    struct sums sums = {.coverage = TSR_COVERAGE_RUN + 1};
    uint32_t end = 0;
    match_begin(&x, &k, t->tokens, t->n, flags);
    tsri_matcher_scan(&x.m, (struct tsr_range){0, t->n});
    tsri_matcher_choose(&x.m);
    for (uint32_t i = 0; i < x.m.n_chosen; i++) {
        const struct tsri_run *r = &x.m.chosen[i];
        CHECK(match_run_is_right(&k, &x, r, false));
        CHECK(r->prompt_offset >= end);
        end = r->prompt_offset + r->n_tokens;
        sums.tokens += r->n_tokens;
        sums.equal += r->n_tokens + r->beside;
        sums.n++;
        if (r->coverage < sums.coverage) sums.coverage = r->coverage;
    }
    match_end(&x);
    for (uint32_t id = 0; id < k.cache->ids_fresh; id++)
        CHECK_INT(tsri_word_pins(atomic_load(&k.cache->entries[id].word)), 0);
    return sums;
}

/* ---- what must be found ---- */

TEST(a_chunk_of_64_tokens_with_any_4_edits_is_a_partial_match)
{
    reopen("edits");
    uint32_t *doc = kit_tokens(1, 64);
    match_entry(&k, 1, doc, 64, TSR_KIND_SEGMENT);
    for (uint32_t round = 0; round < 3000; round++) {
        bool places[64] = {false};
        for (uint32_t n = 0; n < 4;) {
            uint32_t at = text_random(&seed, 64);
            n += !places[at];
            places[at] = true;
        }
        struct text t = edited(doc, 64, places, (enum form)(round % 4));
        struct sums s = found(&t, 0);
        if (s.coverage != TSR_COVERAGE_PARTIAL || s.equal < 52) printf("    round %u\n", round);
        CHECK_INT(s.coverage, TSR_COVERAGE_PARTIAL);
        CHECK(s.equal >= 52 && s.equal <= 64);
        text_fini(&t);
    }
    free(doc);
}

/* As a file of UCM says it: blend_chunk_size is the length of a chunk, not of what is equal in it. */
TEST(the_ucm_file_finds_its_chunk_of_64_tokens_with_any_4_edits)
{
    struct tsr_config *cfg = kit_config((const char *const[]){"host_size", "32M", "host_page_size",
                                                              "4K", "metadata_size", "16M", NULL});
    CHECK_INT(tsr_config_load_file(cfg, "tests/config/fixtures/ucm_blend.yaml"), 0);
    if (k.cache) kit_close(&k);
    kit_open_config(&k, cfg);
    tsr_config_close(cfg);
    CHECK_INT(k.cache->options.match_min_tokens, 64);
    CHECK(k.cache->options.min_match_ratio == 0.8);
    uint32_t *doc = kit_tokens(1, 64);
    match_entry(&k, 1, doc, 64, TSR_KIND_SEGMENT);
    for (uint32_t round = 0; round < 3000; round++) {
        bool places[64] = {false};
        /* The ends of the chunk among them now and then: what is equal is a shorter stretch then. */
        places[0] = round % 5 == 0;
        places[63] = round % 7 == 0;
        for (uint32_t n = (uint32_t)places[0] + places[63]; n < 4;) {
            uint32_t at = text_random(&seed, 64);
            n += !places[at];
            places[at] = true;
        }
        struct text t = edited(doc, 64, places, (enum form)(round % 4));
        struct sums s = found(&t, 0);
        if (s.coverage != TSR_COVERAGE_PARTIAL) printf("    round %u\n", round);
        CHECK_INT(s.coverage, TSR_COVERAGE_PARTIAL);
        CHECK(s.equal >= 52 && s.equal <= 64);
        text_fini(&t);
    }
    /* 51 equal tokens are less than 0.8 of the chunk. */
    for (uint32_t n_equal = 50; n_equal < 54; n_equal++) {
        bool places[64];
        for (uint32_t i = 0; i < 64; i++)
            places[i] = i >= n_equal;
        struct text t = edited(doc, 64, places, REPLACED);
        CHECK_INT(found(&t, 0).tokens, n_equal < 52 ? 0 : n_equal);
        text_fini(&t);
    }
    free(doc);
}

TEST(a_stretch_below_the_minimum_is_not_found_in_a_longer_entry)
{
    uint32_t *doc = kit_tokens(1, 640);
    for (uint32_t n = 50; n < 80; n++) {
        bool places[640];
        for (uint32_t i = 0; i < 640; i++)
            places[i] = i < 300 || i >= 300 + n || i == 320 || i == 335;
        match_reopen(&k, (const char *const[]){"match_min_tokens", "64", NULL});
        match_entry(&k, 1, doc, 640, TSR_KIND_SEGMENT);
        struct text t = edited(doc, 640, places, REPLACED);
        CHECK_INT(found(&t, 0).tokens, n < 64 ? 0 : n - 2);
        text_fini(&t);
    }
    free(doc);
}

/* A ratio of 0 does not make a few equal tokens a match of the whole entry. */
TEST(less_than_half_is_never_the_same_text)
{
    uint32_t *doc = kit_tokens(1, 64);
    for (uint32_t n = 8; n < 64; n += 4) {
        bool places[64];
        for (uint32_t i = 0; i < 64; i++)
            places[i] = i >= n;
        match_reopen(&k,
                     (const char *const[]){"match_min_tokens", "64", "min_match_ratio", "0", NULL});
        match_entry(&k, 1, doc, 64, TSR_KIND_SEGMENT);
        struct text t = edited(doc, 64, places, REPLACED);
        CHECK_INT(found(&t, 0).tokens, n < 32 ? 0 : n);
        text_fini(&t);
    }
    free(doc);
}

/* Edits at equal distances leave runs of one length only. Those of fewer than 8 tokens have no
 * shingle: docs/architecture.md says so. */
TEST(edits_every_8_tokens_or_closer_at_equal_distances_find_nothing)
{
    uint32_t *doc = kit_tokens(1, 640);
    for (uint32_t every = 5; every <= 8; every++)
        for (uint32_t from = 0; from < every; from++) {
            bool places[640] = {false};
            for (uint32_t i = from; i < 640; i += every)
                places[i] = true;
            reopen("edits");
            match_entry(&k, 1, doc, 640, TSR_KIND_SEGMENT);
            struct text t = edited(doc, 640, places, REPLACED);
            CHECK_INT(found(&t, 0).tokens, 0);
            text_fini(&t);
        }
    free(doc);
}

/* The table "How often text with edits is found" in docs/architecture.md: stored once, asked for
 * with the options of UCM's file (64 tokens, 80 % alike). */
static void reopen_as_table(void)
{
    match_reopen(&k,
                 (const char *const[]){"match_min_tokens", "64", "min_match_ratio", "0.8", NULL});
    seed = 22;
}

/* So many of n tokens are replaced at random, in each of `rounds` texts. How many are found, and of those the share of
 * equal tokens that is reused. */
static uint32_t found_of(uint32_t n, uint32_t n_edits, uint32_t rounds, double *share)
{
    uint64_t n_reused = 0, n_equal = 0;
    uint32_t n_found = 0, *doc = kit_tokens(1, n);
    reopen_as_table();
    match_entry(&k, 1, doc, n, TSR_KIND_SEGMENT);
    for (uint32_t round = 0; round < rounds; round++) {
        bool places[640] = {false};
        for (uint32_t i = 0; i < n_edits;) {
            uint32_t at = text_random(&seed, n);
            i += !places[at];
            places[at] = true;
        }
        struct text t = edited(doc, n, places, REPLACED);
        uint32_t reused = found(&t, 0).tokens;
        n_found += reused > 0;
        n_reused += reused;
        n_equal += reused ? n - n_edits : 0;
        text_fini(&t);
    }
    free(doc);
    *share = n_equal ? (double)n_reused / (double)n_equal : 0;
    return n_found;
}

TEST(random_edits_are_found_as_often_as_documented)
{
    static const struct {
        uint32_t n, n_edits, rounds, least;
        double share;
    } rows[] = {{64, 4, 1000, 1000, 0.85}, {64, 6, 1000, 980, 0.75},  {64, 8, 1000, 910, 0.64},
                {64, 10, 1000, 820, 0.52}, {64, 12, 1000, 660, 0.39}, {640, 64, 200, 200, 0.78},
                {640, 128, 200, 200, 0.35}};
    for (size_t i = 0; i < TSRI_COUNT(rows); i++) {
        double share;
        uint32_t n = found_of(rows[i].n, rows[i].n_edits, rows[i].rounds, &share);
        if (n < rows[i].least || share < rows[i].share)
            printf("    %u tokens, %u edits: %u found, share %.2f\n", rows[i].n, rows[i].n_edits, n,
                   share);
        CHECK(n >= rows[i].least && share >= rows[i].share);
    }
}

/* Also every 9 and every 12 tokens, which keep step with the places of the shingles. */
TEST(edits_at_equal_distances_from_9_tokens_on_are_found_wherever_they_begin)
{
    uint32_t *doc = kit_tokens(1, 640);
    for (uint32_t every = 9; every <= 24; every++)
        for (uint32_t from = 0; from < every; from++) {
            bool places[640] = {false};
            uint32_t n_edits = 0;
            for (uint32_t i = from; i < 640; i += every, n_edits++)
                places[i] = true;
            reopen_as_table();
            match_entry(&k, 1, doc, 640, TSR_KIND_SEGMENT);
            struct text t = edited(doc, 640, places, REPLACED);
            uint32_t n = found(&t, 0).tokens;
            if (n + 2 * 8 < 640 - n_edits) printf("    every %u from %u: %u\n", every, from, n);
            CHECK(n + 2 * 8 >= 640 - n_edits); /* the ends may be too short to be runs */
            text_fini(&t);
        }
    free(doc);
}

TEST(an_edit_every_20_tokens_leaves_every_other_token)
{
    uint32_t *doc = kit_tokens(1, 640);
    for (uint32_t round = 0; round < 80; round++) {
        bool places[640] = {false};
        for (uint32_t i = round % 20; i < 640; i += 20)
            places[i] = true;
        reopen("edits");
        match_entry(&k, 1, doc, 640, TSR_KIND_SEGMENT);
        enum form form = (enum form)(round / 20);
        struct text t = edited(doc, 640, places, form);
        struct sums s = found(&t, 0);
        CHECK_INT(s.coverage, TSR_COVERAGE_PARTIAL);
        /* The ends may be too short to be runs. */
        CHECK(s.tokens >= 608 - 2 * 8 && s.equal >= 608 - 2 * 4);
        text_fini(&t);
    }
    free(doc);
}

TEST(forty_equal_tokens_of_fifty_are_a_partial_match)
{
    uint32_t *doc = kit_tokens(1, 50);
    reopen("edits");
    match_entry(&k, 1, doc, 50, TSR_KIND_SEGMENT);
    for (uint32_t from = 0; from <= 10; from++) {
        bool places[50];
        for (uint32_t i = 0; i < 50; i++)
            places[i] = i < from || i >= from + 40;
        struct text t = edited(doc, 50, places, REPLACED);
        struct sums s = found(&t, 0);
        CHECK_INT(s.n, 1);
        CHECK_INT(s.tokens, 40);
        CHECK_INT(s.coverage, TSR_COVERAGE_PARTIAL);
        text_fini(&t);
    }
    free(doc);
}

/* Replaced for good in the middle: more than a path is followed over, so two alignments are joined.
 */
TEST(two_parts_around_a_longer_edit_are_one_partial_match)
{
    uint32_t *doc = kit_tokens(1, 640);
    bool places[640] = {false};
    for (uint32_t i = 10; i < 640; i += 15)
        places[i] = true;
    for (uint32_t i = 300; i < 330; i++)
        places[i] = true;
    reopen("edits");
    match_entry(&k, 1, doc, 640, TSR_KIND_SEGMENT);
    struct text t = edited(doc, 640, places, REPLACED);
    struct sums s = found(&t, 0);
    CHECK_INT(s.coverage, TSR_COVERAGE_PARTIAL);
    CHECK(s.tokens > 640 - 30 - 43 - 40);
    text_fini(&t);
    free(doc);
}

/* Long runs that windows find, and many edits between them. */
TEST(edits_between_long_runs_are_followed_too)
{
    uint32_t *doc = kit_tokens(1, 1000);
    bool places[1000] = {false};
    for (uint32_t i = 300; i < 700; i += 12)
        places[i] = true;
    reopen("edits");
    match_entry(&k, 1, doc, 1000, TSR_KIND_SEGMENT);
    struct text t = edited(doc, 1000, places, ANY_FORM);
    struct sums s = found(&t, 0);
    CHECK_INT(s.coverage, TSR_COVERAGE_PARTIAL);
    CHECK(s.tokens >= 1000 - 34 - 8);
    reopen("runs");
    match_entry(&k, 1, doc, 1000, TSR_KIND_SEGMENT);
    CHECK(found(&t, 0).tokens < 650);
    text_fini(&t);
    free(doc);
}

TEST(of_two_versions_the_nearer_is_chosen)
{
    uint32_t *old = kit_tokens(1, 320), *newer = kit_tokens(1, 320);
    bool places[320] = {false};
    for (uint32_t i = 7; i < 320; i += 16)
        newer[i] = new_token();
    for (uint32_t i = 15; i < 320; i += 40)
        places[i] = true;
    for (uint32_t order = 0; order < 2; order++) {
        reopen("edits");
        match_entry(&k, 1, order ? old : newer, 320, TSR_KIND_SEGMENT);
        match_entry(&k, 2, order ? newer : old, 320, TSR_KIND_SEGMENT);
        struct text t = edited(newer, 320, places, REPLACED);
        struct sums s = found(&t, 0);
        CHECK(s.tokens >= 312 - 16);
        text_fini(&t);
    }
    free(old);
    free(newer);
}

TEST(text_that_is_not_alike_enough_is_not_taken)
{
    uint32_t *doc = kit_tokens(1, 320);
    bool places[320] = {false};
    for (uint32_t i = 0; i < 320; i++) /* 9 equal tokens, 4 others: 0.69 */
        places[i] = i % 13 >= 9;
    struct text t = edited(doc, 320, places, REPLACED);
    reopen("edits");
    match_entry(&k, 1, doc, 320, TSR_KIND_SEGMENT);
    CHECK_INT(found(&t, 0).tokens, 0);
    match_reopen(&k, (const char *const[]){"min_match_ratio", "0.65", NULL});
    match_entry(&k, 1, doc, 320, TSR_KIND_SEGMENT);
    struct sums s = found(&t, 0);
    CHECK(s.tokens > 200);
    CHECK_INT(s.coverage, TSR_COVERAGE_PARTIAL);
    text_fini(&t);
    free(doc);
}

TEST(partial_off_finds_whole_entries_and_runs_finds_runs)
{
    static const char *const names[] = {"off", "runs", "edits"};
    static const uint32_t want[3][3] = {{500, 0, 0}, {500, 500 - 1, 0}, {500, 500 - 1, 475}};
    uint32_t *doc = kit_tokens(1, 500);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t text = 0; text < 3; text++) {
            bool places[500] = {false};
            places[250] = text == 1;
            for (uint32_t p = 10; text == 2 && p < 500; p += 20)
                places[p] = true;
            reopen(names[i]);
            match_entry(&k, 1, doc, 500, TSR_KIND_SEGMENT);
            struct text t = edited(doc, 500, places, REPLACED);
            CHECK_INT(found(&t, 0).tokens, want[i][text]);
            text_fini(&t);
        }
    free(doc);
}

/* ---- what must not be found ---- */

TEST(edited_text_of_another_space_or_salt_is_not_found)
{
    uint32_t *doc = kit_tokens(1, 640);
    bool places[640] = {false};
    for (uint32_t i = 10; i < 640; i += 20)
        places[i] = true;
    reopen("edits");
    struct text t = edited(doc, 640, places, REPLACED);
    struct tsr_prompt prompt = match_prompt(&t, 0);
    struct kit_hits hits;
    CHECK_INT(kit_store_segment(&k, doc, 640), 640);
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 608);
    CHECK_INT(kit_metric(&k, TSRI_M_edit_matches), 1);
    CHECK_INT(kit_metric(&k, TSRI_M_lookup_tokens_edits), 608);
    struct stored stored = match_pure(&k, doc, 640);
    CHECK(match_rows_are_right(&k, &hits, 608, &prompt, &stored, 1));
    struct tsr_extra salt = {.kind = TSR_EXTRA_SALT, .data = "other", .bytes = 5};
    prompt.extra = &salt;
    prompt.n_extra = 1;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 0);
    prompt.n_extra = 0;
    struct tsr_space_desc desc = kit_desc();
    desc.model = "another";
    struct tsr_space *mine = k.space, *other = kit_space(k.cache, &desc);
    k.space = other;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 0);
    k.space = mine;
    tsr_space_close(other);
    text_fini(&t);
    free(doc);
}

/* The table nominates what it likes: here every shingle nominates every entry. */
TEST(a_wrong_nominee_is_never_a_match)
{
    match_reopen(&k, (const char *const[]){"entries_max", "4194304", NULL}); /* short tags */
    uint32_t *doc = kit_tokens(1, 64), *other = kit_tokens(2, 300);
    for (uint32_t i = 0; i < 3; i++) {
        doc[0]++;
        match_entry(&k, 1 + i, doc, 64, TSR_KIND_SEGMENT);
    }
    struct tsri_shingles *t = &k.cache->shingles;
    for (uint32_t b = 0; b < t->n_buckets; b++) {
        atomic_store(&t->filter[b], UINT64_MAX);
        for (uint32_t i = 0; i < 16; i++)
            atomic_store(&t->slots[b * 16 + i],
                         text_random(&seed, 1u << t->tag_bits) << (t->id_bits + 2) | i % 3);
    }
    struct text text = {other, 300, 300};
    CHECK_INT(found(&text, 0).tokens, 0);
    CHECK(tsri_stats_read(k.cache->stats, TSRI_M_shingles_false) > 0);
    free(doc);
    free(other);
}

/* ---- any text ---- */

TEST(random_edits_give_right_runs_and_most_of_the_text)
{
    uint64_t n_equal = 0, n_possible = 0;
    for (uint32_t round = 0; round < 60; round++) {
        uint32_t vocabulary = round % 3 == 2 ? 5 : 50000;
        struct text t, docs[6];
        reopen("edits");
        text_init(&t, 20000);
        for (uint32_t d = 0; d < 6; d++) {
            text_init(&docs[d], 600);
            text_add_random(&docs[d], &seed, 40 + text_random(&seed, 560), vocabulary);
            match_entry(&k, d, docs[d].tokens, docs[d].n, TSR_KIND_SEGMENT);
        }
        for (uint32_t d = 0; d < 6; d++) {
            for (uint32_t i = 0; i < docs[d].n; i++) {
                uint32_t what = text_random(&seed, 75);
                if (what == 0 || what == 1) text_add_random(&t, &seed, 1, vocabulary);
                if (what == 0 || what == 2) continue;
                text_add(&t, &docs[d].tokens[i], 1);
                n_possible += vocabulary > 5;
            }
            text_add_random(&t, &seed, 50, vocabulary);
        }
        struct sums s = found(&t, 0);
        if (vocabulary > 5) n_equal += s.equal;
        for (uint32_t d = 0; d < 6; d++)
            text_fini(&docs[d]);
        text_fini(&t);
    }
    if (n_equal < n_possible * 97 / 100)
        printf("    %llu of %llu\n", (unsigned long long)n_equal, (unsigned long long)n_possible);
    CHECK(n_equal >= n_possible * 97 / 100);
}

TEST(hostile_text_takes_no_more_than_its_budget)
{
    enum { N = 100000, ENTRY = 20000 };
    uint32_t *tokens = malloc(N * sizeof *tokens);
    CHECK(tokens);
    for (uint32_t form = 0; form < 7; form++) {
        match_reopen(&k, (const char *const[]){"host_size", "512M", NULL});
        for (uint32_t i = 0; i < N; i++) /* all equal, periods, sums of bits */
            tokens[i] = form == 0  ? 7
                        : form < 5 ? i % (5u * form)
                                   : (uint32_t)__builtin_popcount(i) % (form - 2);
        for (uint32_t i = 0; i < 4; i++)
            match_entry(&k, form * 10 + i, tokens + i, ENTRY, TSR_KIND_SEGMENT);
        for (uint32_t i = 11; i < N; i += 11 + i % 5)
            tokens[i] = 9;
        struct text t = {tokens, N, N};
        uint64_t begin = tsri_now_ns();
        found(&t, 0);
        double s = (double)(tsri_now_ns() - begin) / 1e9; /* 0.02 on an idle machine */
        if (s > 5) printf("    form %u: %.1f s\n", form, s);
        CHECK(s < 5);
    }
    free(tokens);
}

/* A thousand forms that differ in a name: every shingle nominates four of them, all too long. */
TEST(many_entries_with_the_same_boilerplate_take_no_more_than_their_budget)
{
    enum { FORMS = 1000, FORM = 600, N = 60000 };
    match_reopen(&k, (const char *const[]){"host_size", "512M", NULL});
    uint32_t *form = kit_tokens(1, FORM);
    struct text t;
    text_init(&t, N);
    for (uint32_t i = 0; i < FORMS; i++) {
        for (uint32_t p = i % 25; p < FORM; p += 25)
            form[p] = NEW + i * 100 + p;
        match_entry(&k, i, form, FORM, TSR_KIND_SEGMENT);
    }
    while (t.n < N) {
        text_add(&t, form + 50, 300);
        text_add_random(&t, &seed, 3, 50000);
    }
    struct matching x;
    match_begin(&x, &k, t.tokens, t.n, 0);
    uint64_t begin = tsri_now_ns(), budget = x.m.edit_budget;
    CHECK(budget <= (uint64_t)N * 16 + 32768);
    tsri_matcher_scan(&x.m, (struct tsr_range){0, t.n});
    tsri_matcher_choose(&x.m);
    double s = (double)(tsri_now_ns() - begin) / 1e9;
    CHECK(s < 5);
    CHECK(x.m.n_chosen > 0);
    match_end(&x);
    /* And the form that is meant is found by what is its own. */
    for (uint32_t p = 3; p < FORM; p += 25)
        form[p] = NEW + 503 * 100 + p;
    t.n = 0;
    text_add(&t, form, FORM);
    CHECK(found(&t, 0).tokens > FORM / 2);
    text_fini(&t);
    free(form);
}

static void *write_on(void *arg)
{
    for (uint32_t i = 0; i < 1500; i++)
        match_churn(&k, i, 512 + i % 5 * 30);
    return arg;
}

TEST(runs_are_right_while_entries_come_and_go)
{
    pthread_t thread;
    struct text t;
    match_reopen(&k, (const char *const[]){"host_size", "4M", "entries_max", "32", NULL});
    text_init(&t, 8000);
    for (uint32_t i = 0; i < 11; i++) {
        uint32_t *tokens = kit_tokens(i, 630);
        for (uint32_t p = 10; p < 630; p += 18)
            tokens[p] = new_token();
        text_add(&t, tokens, 630);
        free(tokens);
    }
    CHECK_INT(pthread_create(&thread, NULL, write_on, NULL), 0);
    uint64_t n_runs = 0;
    bool right = true;
    for (uint32_t i = 0; i < 300; i++) {
        struct matching x;
        match_begin(&x, &k, t.tokens, t.n, 0);
        tsri_matcher_scan(&x.m, (struct tsr_range){0, t.n});
        tsri_matcher_choose(&x.m);
        n_runs += x.m.n_chosen;
        for (uint32_t r = 0; r < x.m.n_chosen; r++)
            right &= match_run_is_right(&k, &x, &x.m.chosen[r], false);
        match_end(&x);
    }
    pthread_join(thread, NULL);
    CHECK(right);
    CHECK(n_runs > 0);
    CHECK(kit_valid(&k));
    text_fini(&t);
}

int main(void)
{
    RUN(a_chunk_of_64_tokens_with_any_4_edits_is_a_partial_match);
    RUN(the_ucm_file_finds_its_chunk_of_64_tokens_with_any_4_edits);
    RUN(a_stretch_below_the_minimum_is_not_found_in_a_longer_entry);
    RUN(less_than_half_is_never_the_same_text);
    RUN(edits_every_8_tokens_or_closer_at_equal_distances_find_nothing);
    RUN(random_edits_are_found_as_often_as_documented);
    RUN(edits_at_equal_distances_from_9_tokens_on_are_found_wherever_they_begin);
    RUN(an_edit_every_20_tokens_leaves_every_other_token);
    RUN(forty_equal_tokens_of_fifty_are_a_partial_match);
    RUN(two_parts_around_a_longer_edit_are_one_partial_match);
    RUN(edits_between_long_runs_are_followed_too);
    RUN(of_two_versions_the_nearer_is_chosen);
    RUN(text_that_is_not_alike_enough_is_not_taken);
    RUN(partial_off_finds_whole_entries_and_runs_finds_runs);
    RUN(edited_text_of_another_space_or_salt_is_not_found);
    RUN(a_wrong_nominee_is_never_a_match);
    RUN(random_edits_give_right_runs_and_most_of_the_text);
    RUN(hostile_text_takes_no_more_than_its_budget);
    RUN(many_entries_with_the_same_boilerplate_take_no_more_than_their_budget);
    RUN(runs_are_right_while_entries_come_and_go);
    if (k.cache) kit_close(&k);
    return test_end();
}
