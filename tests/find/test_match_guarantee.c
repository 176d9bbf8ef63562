/* The guarantee of matching at any offset, on documents and edited copies of them in prompts: every
 * common run of 63 tokens, found by the naive search, is covered by runs that the matcher found. */
#include "support/match_kit.h"
#include "support/test.h"

#define W TSRI_WINDOW
#define COMMONS_MAX 100000u

static struct kit k;

static void reopen(const char *const *more)
{
    const char *options[32] = {"host_size",   "64M",   "host_page_size", "4K",
                               "windows_max", "65536", "metadata_size",  "16M",
                               "entries_max", "4096",  "partial",        "runs"};
    uint32_t n = 12;
    for (; more && *more; more++)
        options[n++] = *more;
    if (k.cache) kit_close(&k);
    kit_open(&k, options);
}

static uint32_t slice_tokens; /* 0: as many as a prompt has here */

static void scan_all(struct matching *x, const uint32_t *tokens, uint32_t n, uint32_t flags)
{
    match_begin(x, &k, tokens, n, flags);
    if (slice_tokens) x->m.slice_tokens = slice_tokens;
    tsri_matcher_scan(&x->m, (struct tsr_range){0, n});
}

struct world {
    struct text docs[12];
    uint32_t ids[12], n_docs;
    uint32_t vocabulary;
};

static void world_init(struct world *w, uint64_t *seed, uint32_t vocabulary)
{
    w->n_docs = 2 + text_random(seed, 8);
    w->vocabulary = vocabulary;
    for (uint32_t d = 0; d < w->n_docs; d++) {
        text_init(&w->docs[d], 800);
        /* Some are edited forms of others, as files and versions are. */
        if (d && text_random(seed, 3) == 0) {
            const struct text *of = &w->docs[text_random(seed, d)];
            text_add_edited(&w->docs[d], seed, of->tokens, of->n, 3, vocabulary);
        } else {
            text_add_random(&w->docs[d], seed, 1 + text_random(seed, 600), vocabulary);
        }
        w->ids[d] = match_entry(&k, *seed + d, w->docs[d].tokens, w->docs[d].n, TSR_KIND_SEGMENT);
    }
}

static void world_fini(struct world *w)
{
    for (uint32_t d = 0; d < w->n_docs; d++)
        text_fini(&w->docs[d]);
}

static void world_prompt(const struct world *w, uint64_t *seed, struct text *prompt)
{
    for (uint32_t parts = 1 + text_random(seed, 8); parts; parts--) {
        const struct text *d = &w->docs[text_random(seed, w->n_docs)];
        uint32_t from = text_random(seed, d->n), n = 1 + text_random(seed, d->n - from);
        switch (text_random(seed, 4)) {
        case 0:
            text_add_random(prompt, seed, text_random(seed, 100), w->vocabulary);
            break;
        case 1:
            text_add(prompt, d->tokens, d->n);
            break;
        case 2:
            text_add(prompt, d->tokens + from, n);
            break;
        default:
            text_add_edited(prompt, seed, d->tokens, d->n, 1 + text_random(seed, 8), w->vocabulary);
        }
    }
    if (prompt->n == 0) text_add_random(prompt, seed, 50, w->vocabulary);
}

static bool has_period_below_8(const uint32_t *tokens)
{
    for (uint32_t period = 1; period < 8; period++) {
        uint32_t same = 0;
        for (uint32_t i = period; i < W; i++)
            same += tokens[i] == tokens[i - period];
        if (same == W - period) return true;
    }
    return false;
}

/* Windows like this that entries registered, or would like to have. */
static uint32_t n_like_it(const struct world *w, const uint32_t *tokens)
{
    uint32_t n = 0;
    for (uint32_t d = 0; d < w->n_docs; d++)
        for (uint32_t at = 0; at + W <= w->docs[d].n; at += W)
            n += memcmp(w->docs[d].tokens + at, tokens, W * sizeof tokens[0]) == 0;
    return n;
}

/* A run is promised when none of its windows is left out on purpose. */
static bool is_promised(const struct world *w, const struct text *doc, const struct common *c)
{
    for (uint32_t at = (c->entry + W - 1) / W * W; at + W <= c->entry + c->n; at += W)
        if (has_period_below_8(doc->tokens + at) ||
            n_like_it(w, doc->tokens + at) > TSRI_WINDOW_CANDIDATES)
            return false;
    return true;
}

static void check_guarantee(const struct world *w, const struct text *prompt, uint64_t *n_promised)
{
    static struct common commons[COMMONS_MAX];
    static bool covered[65536];
    struct matching x;
    scan_all(&x, prompt->tokens, prompt->n, 0);
    memset(covered, 0, prompt->n);
    for (uint32_t i = 0; i < x.m.n_runs; i++) {
        const struct tsri_run *r = &x.m.runs[i];
        CHECK(match_run_is_right(&k, &x, r, true));
        CHECK(r->n_tokens >= W);
        memset(covered + r->prompt_offset, 1, r->n_tokens);
    }
    for (uint32_t d = 0; d < w->n_docs; d++) {
        uint32_t n = match_naive(prompt->tokens, prompt->n, w->docs[d].tokens, w->docs[d].n,
                                 2 * W - 1, commons, COMMONS_MAX);
        CHECK(n < COMMONS_MAX);
        for (uint32_t i = 0; i < n; i++) {
            if (!is_promised(w, &w->docs[d], &commons[i])) continue;
            (*n_promised)++;
            for (uint32_t t = 0; t < commons[i].n; t++)
                CHECK(covered[commons[i].prompt + t]);
        }
    }
    tsri_matcher_choose(&x.m);
    uint32_t end = 0;
    for (uint32_t i = 0; i < x.m.n_chosen; i++) {
        const struct tsri_run *r = &x.m.chosen[i];
        CHECK(match_run_is_right(&k, &x, r, false));
        CHECK(r->prompt_offset >= end && r->n_tokens >= W);
        end = r->prompt_offset + r->n_tokens;
    }
    match_end(&x);
}

static void guarantee(uint32_t vocabulary, uint32_t n_worlds, uint64_t seed)
{
    uint64_t n_promised = 0;
    n_worlds *= getenv("TESSERA_TEST_LONG") ? 50 : 1;
    for (uint32_t i = 0; i < n_worlds; i++) {
        struct world w;
        reopen(NULL);
        world_init(&w, &seed, vocabulary);
        for (uint32_t p = 0; p < 4; p++) {
            struct text prompt;
            text_init(&prompt, 3000);
            world_prompt(&w, &seed, &prompt);
            check_guarantee(&w, &prompt, &n_promised);
            text_fini(&prompt);
        }
        world_fini(&w);
        CHECK(kit_valid(&k));
    }
    CHECK(n_promised > n_worlds);
}

TEST(every_common_run_of_63_tokens_is_covered)
{
    guarantee(50000, 16, 1);
}

TEST(every_common_run_of_63_tokens_is_covered_where_tokens_are_few)
{
    guarantee(2, 8, 2);
    guarantee(5, 8, 3);
}

TEST(every_common_run_of_63_tokens_is_covered_by_several_threads)
{
    static const uint32_t slices[] = {1, 31, 64, 333};
    for (uint32_t i = 0; i < TSRI_COUNT(slices); i++) {
        slice_tokens = slices[i];
        guarantee(50000, 3, 10 + i);
        guarantee(3, 3, 20 + i);
    }
    slice_tokens = 0;
}

int main(void)
{
    RUN(every_common_run_of_63_tokens_is_covered);
    RUN(every_common_run_of_63_tokens_is_covered_where_tokens_are_few);
    RUN(every_common_run_of_63_tokens_is_covered_by_several_threads);
    if (k.cache) kit_close(&k);
    return test_end();
}
