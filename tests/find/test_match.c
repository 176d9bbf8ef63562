/* Runs that prompts and entries have in common: all of them are found, none is wrong, and what is
 * chosen of them does not overlap. */
#include "support/match_kit.h"
#include "support/test.h"

#define W TSRI_WINDOW

static struct kit k;

static void reopen(const char *const *more)
{
    const char *options[32] = {"host_size",   "64M",   "host_page_size", "4K",
                               "windows_max", "65536", "metadata_size",  "16M",
                               "entries_max", "4096"};
    uint32_t n = 10;
    for (; more && *more; more++)
        options[n++] = *more;
    if (k.cache) kit_close(&k);
    kit_open(&k, options);
}

static void scan_all(struct matching *x, const uint32_t *tokens, uint32_t n, uint32_t flags)
{
    match_begin(x, &k, tokens, n, flags);
    tsri_matcher_scan(&x->m, (struct tsr_range){0, n});
}

/* ---- growing ---- */

TEST(a_run_of_62_tokens_between_two_windows_may_be_missed_and_63_may_not)
{
    uint32_t *entry = kit_tokens(1, 256), *other = kit_tokens(2, 300);
    for (uint32_t from = 0; from < 100; from++) {
        reopen(NULL);
        match_entry(&k, 1, entry, 256, TSR_KIND_SEGMENT);
        memcpy(other + 50, entry + from, 63 * sizeof *other);
        struct matching x;
        scan_all(&x, other, 300, 0);
        CHECK_INT(x.m.n_runs, 1);
        CHECK_INT(x.m.runs[0].prompt_offset, 50);
        CHECK_INT(x.m.runs[0].entry_offset, from);
        CHECK_INT(x.m.runs[0].n_tokens, 63);
        match_end(&x);
    }
    free(entry);
    free(other);
}

/* ---- work ---- */

/* Text with a period of 9 matches itself at every ninth offset: without a bound this is a thousand
 * million comparisons. */
TEST(text_that_matches_at_every_offset_takes_no_more_than_linear_work)
{
    reopen((const char *const[]){"host_size", "512M", NULL});
    uint32_t n = 400000, n_entry = 100000;
    uint32_t *tokens = malloc(n * sizeof *tokens);
    CHECK(tokens);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i % 9;
    for (uint32_t i = 0; i < 4; i++)
        CHECK(match_entry(&k, i, tokens + i, n_entry, TSR_KIND_SEGMENT) != TSRI_ID_NONE);
    for (uint32_t i = 5000; i < n; i += 5000 + i % 7)
        tokens[i] = 1000;
    struct matching x;
    uint64_t begin = tsri_now_ns();
    scan_all(&x, tokens, n, 0);
    uint64_t budget = x.m.budget;
    tsri_matcher_choose(&x.m);
    double s = (double)(tsri_now_ns() - begin) / 1e9;
    if (s > 20) printf("    %.1f s\n", s);
    CHECK(s < 20);
    CHECK(budget < (uint64_t)n * 32);
    uint64_t covered = 0;
    for (uint32_t i = 0; i < x.m.n_chosen; i++)
        covered += x.m.chosen[i].n_tokens;
    CHECK(covered > n - 100 * 100);
    match_end(&x);
    free(tokens);
    CHECK(kit_valid(&k));
}

/* The hash resists nobody: these six differences, found by lattice reduction, add up to nothing. */
TEST(windows_made_to_collide_are_told_apart_by_their_tokens)
{
    static const int32_t nothing[6] = {37, -679, -869, -428, 816, -133};
    reopen((const char *const[]){"partial", "runs", NULL});
    uint32_t *doc = kit_tokens(1, 1024), *forged = malloc(1024 * sizeof *forged);
    CHECK(forged);
    for (uint32_t i = 0; i < 1024; i++)
        doc[i] += 1000;
    memcpy(forged, doc, 1024 * sizeof *forged);
    for (uint32_t at = 0; at < 1024; at += W)
        for (uint32_t i = 0; i < 6; i++)
            forged[at + W - 6 + i] += (uint32_t)nothing[i];
    match_entry(&k, 1, doc, 1024, TSR_KIND_SEGMENT);
    uint64_t want, got;
    tsri_window_hashes(5, doc, 1, &want);
    tsri_window_hashes(5, forged, 1, &got);
    CHECK(want == got);
    struct matching x;
    scan_all(&x, forged, 1024, 0);
    CHECK_INT(x.m.n_runs, 0);
    CHECK_INT(tsri_stats_read(k.cache->stats, TSRI_M_windows_false), 1024 / W);
    match_end(&x);
    /* Nor is the right one missed, with the forged one stored beside it. */
    match_entry(&k, 2, forged, 1024, TSR_KIND_SEGMENT);
    scan_all(&x, doc, 1024, 0);
    tsri_matcher_choose(&x.m);
    CHECK_INT(x.m.n_chosen, 1);
    CHECK_INT(x.m.chosen[0].n_tokens, 1024);
    CHECK_INT(x.m.chosen[0].coverage, TSR_COVERAGE_FULL);
    match_end(&x);
    free(doc);
    free(forged);
}

/* Texts that are their own worst case, each cut up so that nothing grows far. */
/* Others may use the machine. */
static double thread_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

TEST(no_text_costs_more_than_linear_work)
{
    reopen((const char *const[]){"host_size", "512M", NULL});
    enum { N = 100000, ENTRY = 20000 };
    uint32_t *tokens = malloc(N * sizeof *tokens);
    CHECK(tokens);
    for (uint32_t form = 0; form < 6; form++) {
        for (uint32_t i = 0; i < N; i++)
            tokens[i] = form * 1000 + (form < 4 ? i % (8u << form)
                                                : (uint32_t)__builtin_popcount(i) % (form - 2));
        for (uint32_t i = 0; i < 4; i++)
            match_entry(&k, form * 10 + i, tokens + i, ENTRY, TSR_KIND_SEGMENT);
        for (uint32_t i = 70; i < N; i += 70 + i % 5)
            tokens[i] = 7;
        struct matching x;
        match_begin(&x, &k, tokens, N, 0);
        double begin = thread_s();
        tsri_matcher_scan(&x.m, (struct tsr_range){0, N});
        tsri_matcher_choose(&x.m);
        double s = thread_s() - begin; /* 0.02 without a sanitizer */
        if (s > 5) printf("    form %u: %.1f s\n", form, s);
        CHECK(s < 5);
        CHECK(x.m.n_chosen > 0);
        match_end(&x);
    }
    free(tokens);
    CHECK(kit_valid(&k));
}

TEST(of_too_many_runs_the_longest_are_kept)
{
    reopen(NULL);
    struct text prompt;
    uint64_t seed = 4;
    text_init(&prompt, 1u << 20);
    uint32_t *doc = kit_tokens(1, 2048);
    match_entry(&k, 1, doc, 2048, TSR_KIND_SEGMENT);
    /* 33 tokens of the document at a time, 1 of something else: more runs than there is room. */
    while (prompt.n < 20000) {
        text_add(&prompt, doc + text_random(&seed, 60) * W, W);
        text_add_random(&prompt, &seed, 1, 50000);
    }
    text_add(&prompt, doc, 2048);
    struct matching x;
    match_begin(&x, &k, prompt.tokens, prompt.n, 0);
    x.m.runs_max = 64;
    tsri_matcher_scan(&x.m, (struct tsr_range){0, prompt.n});
    CHECK(x.m.n_runs <= 64);
    tsri_matcher_choose(&x.m);
    const struct tsri_run *last = &x.m.chosen[x.m.n_chosen - 1];
    CHECK_INT(last->n_tokens, 2048);
    CHECK_INT(last->coverage, TSR_COVERAGE_FULL);
    match_end(&x);
    CHECK_INT(tsri_word_pins(atomic_load(&k.cache->entries[0].word)), 0);
    text_fini(&prompt);
    free(doc);
}

/* ---- joining ---- */

static void choose(struct matching *x, const struct text *t, uint32_t flags)
{
    scan_all(x, t->tokens, t->n, flags);
    tsri_matcher_choose(&x->m);
}

#define CHECK_RUN(r, p, e, n, c) \
    do { \
        CHECK_INT((r).prompt_offset, p); \
        CHECK_INT((r).entry_offset, e); \
        CHECK_INT((r).n_tokens, n); \
        CHECK_INT((r).coverage, c); \
    } while (0)

/* A document of 500 tokens in a prompt; what stands for tokens [200, 200 + gone) is `more` others.
 */
static void edited(struct matching *x, uint32_t gone, uint32_t more)
{
    static struct text t;
    uint64_t seed = 9;
    uint32_t *doc = kit_tokens(1, 500);
    if (t.tokens) text_fini(&t);
    reopen(NULL);
    text_init(&t, 2000);
    match_entry(&k, 1, doc, 500, TSR_KIND_SEGMENT);
    text_add_random(&t, &seed, 77, 50000);
    text_add(&t, doc, 200);
    text_add_random(&t, &seed, more, 50000);
    text_add(&t, doc + 200 + gone, 300 - gone);
    text_add_random(&t, &seed, 33, 50000);
    choose(x, &t, 0);
    free(doc);
}

TEST(runs_around_an_edit_are_one_partial_match)
{
    static const uint32_t edits[][2] = {{1, 1}, {5, 5}, {0, 1}, {0, 20}, {1, 0}, {20, 0}, {7, 30}};
    for (uint32_t i = 0; i < TSRI_COUNT(edits); i++) {
        struct matching x;
        uint32_t gone = edits[i][0], more = edits[i][1];
        edited(&x, gone, more);
        CHECK_INT(x.m.n_chosen, 2);
        CHECK_RUN(x.m.chosen[0], 77, 0, 200, TSR_COVERAGE_PARTIAL);
        CHECK_RUN(x.m.chosen[1], 277 + more, 200 + gone, 300 - gone, TSR_COVERAGE_PARTIAL);
        match_end(&x);
    }
}

TEST(less_than_the_ratio_is_only_runs)
{
    struct matching x;
    edited(&x, 101, 0); /* 399 of 500 */
    CHECK_INT(x.m.n_chosen, 2);
    CHECK_RUN(x.m.chosen[0], 77, 0, 200, TSR_COVERAGE_RUN);
    CHECK_RUN(x.m.chosen[1], 277, 301, 199, TSR_COVERAGE_RUN);
    match_end(&x);
    edited(&x, 100, 0); /* 400 of 500 */
    CHECK_RUN(x.m.chosen[0], 77, 0, 200, TSR_COVERAGE_PARTIAL);
    match_end(&x);
    edited(&x, 0, 400); /* two halves far apart */
    CHECK_RUN(x.m.chosen[0], 77, 0, 200, TSR_COVERAGE_RUN);
    CHECK_RUN(x.m.chosen[1], 677, 200, 300, TSR_COVERAGE_RUN);
    match_end(&x);
}

TEST(nothing_changed_is_full)
{
    struct matching x;
    edited(&x, 0, 0);
    CHECK_INT(x.m.n_chosen, 1);
    CHECK_RUN(x.m.chosen[0], 77, 0, 500, TSR_COVERAGE_FULL);
    match_end(&x);
}

TEST(all_copies_of_a_text_match)
{
    struct text t;
    uint64_t seed = 2;
    uint32_t *doc = kit_tokens(1, 300);
    reopen(NULL);
    match_entry(&k, 1, doc, 300, TSR_KIND_SEGMENT);
    text_init(&t, 4000);
    for (uint32_t i = 0; i < 5; i++) {
        if (i % 2) text_add_random(&t, &seed, 10, 50000); /* the others follow at once */
        text_add(&t, doc, 300);
    }
    struct matching x;
    choose(&x, &t, 0);
    CHECK_INT(x.m.n_chosen, 5);
    for (uint32_t i = 0, at = 0; i < 5; i++) {
        at += i % 2 ? 10 : 0;
        CHECK_RUN(x.m.chosen[i], at, 0, 300, TSR_COVERAGE_FULL);
        at += 300;
    }
    match_end(&x);
    text_fini(&t);
    free(doc);
}

/* ---- choosing ---- */

TEST(the_longest_wins_and_the_others_keep_what_is_left)
{
    uint32_t *text = kit_tokens(1, 1000);
    reopen(NULL);
    uint32_t a = match_entry(&k, 1, text, 300, TSR_KIND_SEGMENT);
    uint32_t b = match_entry(&k, 2, text + 200, 600, TSR_KIND_SEGMENT);
    uint32_t c = match_entry(&k, 3, text + 780, 220, TSR_KIND_SEGMENT);
    struct text t = {text, 1000, 1000};
    struct matching x;
    choose(&x, &t, 0);
    CHECK_INT(x.m.n_chosen, 3);
    CHECK_RUN(x.m.chosen[0], 0, 0, 200, TSR_COVERAGE_RUN);
    CHECK_RUN(x.m.chosen[1], 200, 0, 600, TSR_COVERAGE_FULL);
    CHECK_RUN(x.m.chosen[2], 800, 20, 200, TSR_COVERAGE_PARTIAL);
    CHECK(x.m.chosen[0].id == a && x.m.chosen[1].id == b && x.m.chosen[2].id == c);
    match_end(&x);
    free(text);
}

TEST(a_run_with_its_middle_taken_keeps_both_sides)
{
    uint32_t *text = kit_tokens(1, 1000);
    reopen(NULL);
    match_entry(&k, 1, text, 1000, TSR_KIND_PREFIX);
    match_entry(&k, 2, text + 400, 200, TSR_KIND_SEGMENT);
    struct text t = {text, 1000, 1000};
    struct matching x;
    choose(&x, &t, TSR_PROMPT_OTHER);
    CHECK_INT(x.m.n_chosen, 3);
    CHECK_RUN(x.m.chosen[0], 0, 0, 400, TSR_COVERAGE_PARTIAL);
    CHECK_RUN(x.m.chosen[1], 400, 0, 200, TSR_COVERAGE_FULL);
    CHECK_RUN(x.m.chosen[2], 600, 600, 400, TSR_COVERAGE_PARTIAL);
    CHECK_INT(x.m.chosen[0].context, TSR_CONTEXT_OTHER);
    CHECK_INT(x.m.chosen[1].context, TSR_CONTEXT_PURE);
    match_end(&x);
    for (uint32_t id = 0; id < 2; id++)
        CHECK_INT(tsri_word_pins(atomic_load(&k.cache->entries[id].word)), 0);
    free(text);
}

TEST(what_was_computed_behind_other_text_is_found_only_when_asked_for)
{
    uint32_t *text = kit_tokens(1, 600);
    reopen(NULL);
    match_entry(&k, 1, text, 600, TSR_KIND_PREFIX);
    struct text t = {text, 600, 600};
    struct matching x;
    choose(&x, &t, 0);
    CHECK_INT(x.m.n_chosen, 0);
    match_end(&x);
    choose(&x, &t, TSR_PROMPT_OTHER);
    CHECK_INT(x.m.n_chosen, 1);
    CHECK_RUN(x.m.chosen[0], 0, 0, 600, TSR_COVERAGE_FULL);
    CHECK_INT(x.m.chosen[0].kind, TSR_KIND_PREFIX);
    CHECK_INT(x.m.chosen[0].context, TSR_CONTEXT_OTHER);
    match_end(&x);
    free(text);
}

/* The long run behind other text is met first and covers everything; the pure one inside it must
 * be found all the same. */
TEST(a_better_run_inside_a_worse_one_is_found)
{
    uint32_t *text = kit_tokens(1, 2000);
    reopen(NULL);
    match_entry(&k, 1, text, 2000, TSR_KIND_PREFIX);
    match_entry(&k, 2, text + 777, 300, TSR_KIND_SEGMENT);
    struct text t = {text, 2000, 2000};
    struct matching x;
    choose(&x, &t, TSR_PROMPT_OTHER);
    CHECK_INT(x.m.n_chosen, 3);
    CHECK_RUN(x.m.chosen[1], 777, 0, 300, TSR_COVERAGE_FULL);
    match_end(&x);
    free(text);
}

TEST(parts_shorter_than_the_minimum_are_not_used)
{
    uint32_t *text = kit_tokens(1, 1000);
    reopen((const char *const[]){"match_min_tokens", "100", NULL});
    match_entry(&k, 1, text, 500, TSR_KIND_SEGMENT);
    match_entry(&k, 2, text + 410, 180, TSR_KIND_SEGMENT); /* 90 are left of it */
    match_entry(&k, 3, text + 700, 99, TSR_KIND_SEGMENT);
    match_entry(&k, 4, text + 850, 100, TSR_KIND_SEGMENT);
    struct text t = {text, 1000, 1000};
    struct matching x;
    choose(&x, &t, 0);
    CHECK_INT(x.m.n_chosen, 2);
    CHECK_RUN(x.m.chosen[0], 0, 0, 500, TSR_COVERAGE_FULL);
    CHECK_RUN(x.m.chosen[1], 850, 0, 100, TSR_COVERAGE_FULL);
    match_end(&x);
    free(text);
}

TEST(a_part_of_the_prompt_is_matched_alone)
{
    uint32_t *text = kit_tokens(1, 1000);
    reopen(NULL);
    match_entry(&k, 1, text, 1000, TSR_KIND_SEGMENT);
    struct matching x;
    match_begin(&x, &k, text, 1000, 0);
    tsri_matcher_scan(&x.m, (struct tsr_range){100, 63});
    tsri_matcher_scan(&x.m, (struct tsr_range){300, 31});
    tsri_matcher_scan(&x.m, (struct tsr_range){500, 500});
    tsri_matcher_choose(&x.m);
    CHECK_INT(x.m.n_chosen, 2);
    CHECK_RUN(x.m.chosen[0], 100, 100, 63, TSR_COVERAGE_RUN);
    CHECK_RUN(x.m.chosen[1], 500, 500, 500, TSR_COVERAGE_RUN);
    match_end(&x);
    free(text);
}

/* ---- never a wrong token ---- */

/* Ids and windows are reused while others look: every run is right under its pin. */
struct writer {
    pthread_t thread;
    uint32_t n_rounds;
};

static void *write_on(void *arg)
{
    struct writer *w = arg;
    for (uint32_t i = 0; i < w->n_rounds; i++)
        match_churn(&k, i, 512 + i % 5 * 100);
    return NULL;
}

TEST(runs_are_right_while_entries_come_and_go)
{
    struct writer w = {.n_rounds = 1500};
    struct text t;
    reopen(
        (const char *const[]){"host_size", "4M", "entries_max", "32", "windows_max", "1024", NULL});
    text_init(&t, 8000);
    for (uint32_t i = 0; i < 11; i++) {
        uint32_t *tokens = kit_tokens(i, 700);
        text_add(&t, tokens, 700);
        free(tokens);
    }
    CHECK_INT(pthread_create(&w.thread, NULL, write_on, &w), 0);
    uint64_t n_runs = 0;
    bool right = true;
    for (uint32_t i = 0; i < 300; i++) {
        struct matching x;
        scan_all(&x, t.tokens, t.n, 0);
        n_runs += x.m.n_runs;
        for (uint32_t r = 0; r < x.m.n_runs; r++)
            right &= match_run_is_right(&k, &x, &x.m.runs[r], false);
        tsri_matcher_choose(&x.m);
        for (uint32_t r = 0; r < x.m.n_chosen; r++)
            right &= match_run_is_right(&k, &x, &x.m.chosen[r], false);
        match_end(&x);
    }
    pthread_join(w.thread, NULL);
    CHECK(right);
    CHECK(n_runs > 0);
    CHECK(kit_valid(&k));
    text_fini(&t);
}

int main(void)
{
    RUN(a_run_of_62_tokens_between_two_windows_may_be_missed_and_63_may_not);
    RUN(text_that_matches_at_every_offset_takes_no_more_than_linear_work);
    RUN(windows_made_to_collide_are_told_apart_by_their_tokens);
    RUN(no_text_costs_more_than_linear_work);
    RUN(of_too_many_runs_the_longest_are_kept);
    RUN(runs_around_an_edit_are_one_partial_match);
    RUN(less_than_the_ratio_is_only_runs);
    RUN(nothing_changed_is_full);
    RUN(all_copies_of_a_text_match);
    RUN(the_longest_wins_and_the_others_keep_what_is_left);
    RUN(a_run_with_its_middle_taken_keeps_both_sides);
    RUN(what_was_computed_behind_other_text_is_found_only_when_asked_for);
    RUN(a_better_run_inside_a_worse_one_is_found);
    RUN(parts_shorter_than_the_minimum_are_not_used);
    RUN(a_part_of_the_prompt_is_matched_alone);
    RUN(runs_are_right_while_entries_come_and_go);
    if (k.cache) kit_close(&k);
    return test_end();
}
