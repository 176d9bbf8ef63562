/* bench_match.c - finding text at any offset: nanoseconds a token of a prompt of 32K tokens against
 * a million registered windows. Few hits: a prompt of other text with one stored paragraph in it.
 * Many hits: nothing but stored paragraphs, from the middle of their entries. No hit is what every
 * prompt of new text pays, edited is stored text with a token changed in every 200, short runs are
 * 512 paragraphs of 64 tokens. Cold is with the caches of the processor full of other things. The
 * baseline is one pass of a hash over the prompt's tokens (xxh3), about the least a lookup can do.
 * Then what a window costs in memory and in time to register, and what several threads bring for
 * long prompts, against one, in turns. All of that is without frequent edits; what looking for them
 * adds (partial: edits against runs) is measured for the same texts, in turns, and for text with a
 * token changed in every 20, of which windows find nothing.
 *
 * Entries are made under the API, without KV: matching does not look at it. */
#include "find/find.h"
#include "support/bench.h"

#include <stdio.h>
#include <stdlib.h>

#define N_TOKENS 32768u
#define LONG_TOKENS (1u << 20)
#define ENTRY_TOKENS 2048u
#define N_ENTRIES 16384u
#define N_WINDOWS (N_ENTRIES * (ENTRY_TOKENS / TSRI_WINDOW))

struct work {
    struct tsr_cache *cache;
    struct tsr_space *space;
    struct tsri_walk walk;
    struct tsr_prompt prompt;
    uint32_t *tokens;
    void *memory;
    uint32_t found;
    uint32_t next; /* entry to register anew */
    uint32_t slice_tokens;
    bool edits; /* partial: edits */
};

static uint64_t seed = 42;
static uint32_t random_below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

/* A tokenizer's tokens: a few are common. */
static uint32_t random_token(void)
{
    return random_below(4) ? 100 + random_below(50000) : random_below(100);
}

static uint32_t *entry_tokens(struct work *w, uint32_t id)
{
    return tsri_meta_tokens(tsri_meta(w->cache, &w->cache->entries[id]));
}

static void add_entry(struct work *w)
{
    struct tsr_cache *c = w->cache;
    uint32_t meta;
    BENCH_CHECK(tsri_room_take(c, &w->space->shape, ENTRY_TOKENS, 0, &meta) == 0);
    uint32_t id = tsri_entry_alloc(c);
    struct tsri_entry *e = &c->entries[id];
    e->meta = meta;
    e->n_tokens = ENTRY_TOKENS;
    e->space = w->space->id;
    e->kind = TSR_KIND_SEGMENT;
    e->extra_bytes = 0;
    atomic_store(&e->key_lo, (uint64_t)id * 0x9E3779B97F4A7C15u);
    atomic_store(&e->key_hi, (uint64_t)id * 0xD6E8FEB86659FD93u);
    for (uint32_t i = 0; i < ENTRY_TOKENS; i++)
        entry_tokens(w, id)[i] = random_token();
    tsri_entry_publish(c, id, TSRI_ID_NONE);
}

static void open_cache(struct work *w)
{
    static const char *const options[][2] = {{"host_size", "4G"},
                                             {"host_page_size", "4K"},
                                             {"metadata_size", "256M"},
                                             {"entries_max", "20000"},
                                             {"windows_max", "1048576"}};
    struct tsr_config *cfg;
    BENCH_CHECK(tsr_config_open(&cfg) == 0);
    for (size_t i = 0; i < TSRI_COUNT(options); i++)
        BENCH_CHECK(tsr_config_set(cfg, options[i][0], options[i][1]) == 0);
    BENCH_CHECK(tsr_cache_open(&w->cache, cfg) == 0);
    tsr_config_close(cfg);
    struct tsr_space_desc desc = {.size = sizeof desc,
                                  .model = "bench",
                                  .dtype = TSR_DTYPE_F16,
                                  .n_layers = 1,
                                  .n_heads = 1,
                                  .k_dim = 8};
    BENCH_CHECK(tsr_space_open(&w->space, w->cache, &desc) == 0);
    pthread_mutex_lock(&w->cache->lock);
    for (uint32_t i = 0; i < N_ENTRIES; i++)
        add_entry(w);
    pthread_mutex_unlock(&w->cache->lock);
    w->tokens = malloc(LONG_TOKENS * sizeof w->tokens[0]);
    w->memory = malloc(tsri_matcher_bytes(w->cache, LONG_TOKENS));
    BENCH_CHECK(w->tokens && w->memory);
    w->prompt = (struct tsr_prompt){.size = sizeof w->prompt,
                                    .tokens = w->tokens,
                                    .n_tokens = N_TOKENS,
                                    .flags = TSR_PROMPT_ANY};
    BENCH_CHECK(tsri_walk_init(&w->walk, w->space, &w->prompt) == 0);
}

/* Stored paragraphs of `run` tokens, `apart` tokens of other text between them, every n-th token
 * changed. */
static void make_prompt(struct work *w, uint32_t run, uint32_t apart, uint32_t edit_every)
{
    uint32_t n = w->prompt.n_tokens;
    for (uint32_t i = 0; i < n;) {
        for (uint32_t k = 0; k < apart && i < n; k++)
            w->tokens[i++] = random_token();
        if (run == 0) continue;
        uint32_t id = random_below(N_ENTRIES), from = random_below(ENTRY_TOKENS - run);
        for (uint32_t k = 0; k < run && i < n; k++)
            w->tokens[i++] = entry_tokens(w, id)[from + k];
    }
    for (uint32_t i = edit_every; edit_every && i < n; i += edit_every)
        w->tokens[i] = 1u << 30 | i;
}

static void match(void *arg)
{
    struct work *w = arg;
    struct tsri_matcher m;
    tsri_matcher_init(&m, w->space, &w->walk, w->memory);
    if (w->slice_tokens) m.slice_tokens = w->slice_tokens;
    m.edits = w->edits;
    tsri_matcher_scan(&m, (struct tsr_range){0, w->prompt.n_tokens});
    tsri_matcher_choose(&m);
    w->found = 0;
    for (uint32_t i = 0; i < m.n_chosen; i++)
        w->found += m.chosen[i].n_tokens;
    tsri_matcher_fini(&m);
}

static void hash_pass(void *arg)
{
    struct work *w = arg;
    bench_keep(tsri_tokens_hash(w->tokens, N_TOKENS).lo);
}

/* The prompt is warm, it has just been made; the cache has been used by others since. */
static void chill(void *arg)
{
    bench_chill();
    hash_pass(arg);
}

static void add_again(void *arg)
{
    struct work *w = arg;
    pthread_mutex_lock(&w->cache->lock);
    tsri_windows_add(w->cache, w->next);
    pthread_mutex_unlock(&w->cache->lock);
    w->next = (w->next + 977) % N_ENTRIES;
}

/* Known already: looked up and left as they are. */
static void add_shingles_again(void *arg)
{
    struct work *w = arg;
    pthread_mutex_lock(&w->cache->lock);
    tsri_shingles_add(w->cache, w->next);
    pthread_mutex_unlock(&w->cache->lock);
    w->next = (w->next + 977) % N_ENTRIES;
}

static void match_edits(void *arg)
{
    struct work *w = arg;
    w->edits = true;
    match(w);
    w->edits = false;
}

/* One slice of everything is one thread. */
static void match_alone(void *arg)
{
    struct work *w = arg;
    w->slice_tokens = UINT32_MAX;
    match(w);
    w->slice_tokens = 0;
}

static void bench_long(struct work *w)
{
    static const uint32_t sizes[] = {1u << 16, 1u << 17, 1u << 18, 1u << 20};
    for (size_t i = 0; i < TSRI_COUNT(sizes); i++) {
        w->prompt.n_tokens = sizes[i];
        make_prompt(w, 400, 2000, 0);
        char name[64];
        snprintf(name, sizeof name, "%uK, threads : alone", sizes[i] >> 10);
        struct bench_result r = bench_run(
            &(struct bench_case){.name = name, .run = match, .baseline = match_alone, .arg = w});
        if (!r.ran) continue;
        double alone = bench_best_ns(60, NULL, match_alone, w),
               together = bench_best_ns(60, NULL, match, w);
        snprintf(name, sizeof name, "%uK, best of 60, threads : alone", sizes[i] >> 10);
        bench_report(name, together / alone, "x", 0, 0, false);
    }
}

/* The best of interleaved turns with edits and without. */
static void bench_edits(struct work *w, const char *name, double target)
{
    double with = 1e300, without = 1e300;
    char title[64];
    for (uint32_t i = 0; i < 300; i++) {
        uint64_t begin = bench_now_ns();
        match(w);
        uint64_t middle = bench_now_ns();
        match_edits(w);
        uint64_t end = bench_now_ns();
        if ((double)(middle - begin) < without) without = (double)(middle - begin);
        if ((double)(end - middle) < with) with = (double)(end - middle);
    }
    snprintf(title, sizeof title, "%s, added by edits, a token", name);
    bench_report(title, (with - without) / N_TOKENS, "ns", 0, target, false);
}

/* Text of few tokens that entries repeat, broken every eleven: nearly every shingle nominates, and
 * every diagonal goes on. The budget ends it. */
static void bench_hostile(struct work *w)
{
    w->prompt.n_tokens = N_TOKENS;
    for (uint32_t i = 0; i < 16; i++) {
        for (uint32_t k = 0; k < ENTRY_TOKENS; k++)
            entry_tokens(w, i)[k] = 1u << 29 | (k + i) % (5 + i % 4);
        pthread_mutex_lock(&w->cache->lock);
        tsri_shingles_add(w->cache, i);
        tsri_windows_add(w->cache, i);
        pthread_mutex_unlock(&w->cache->lock);
    }
    for (uint32_t i = 0; i < N_TOKENS; i++)
        w->tokens[i] = i % 11 == 10 ? 1u << 30 | i : 1u << 29 | i % (5 + i / 977 % 4);
    struct bench_result r = bench_run(&(struct bench_case){
        .name = "hostile, edits : runs", .run = match_edits, .baseline = match, .arg = w});
    if (r.ran) bench_edits(w, "hostile", 0);
}

struct text {
    const char *name, *cold_name;
    uint32_t run, apart, edit_every;
    uint32_t found_min, found_max;
    double target;
};

static void bench_text(struct work *w, const struct text *t)
{
    make_prompt(w, t->run, t->apart, t->edit_every);
    match(w);
    BENCH_CHECK(w->found >= t->found_min && w->found <= t->found_max);
    struct bench_case c = {.name = t->name, .run = match, .baseline = hash_pass, .arg = w};
    struct bench_result hot = bench_run(&c);
    c.name = t->cold_name;
    c.prepare = chill;
    struct bench_result cold = bench_run(&c);
    char name[64];
    snprintf(name, sizeof name, "%s, a token", t->name);
    if (hot.ran)
        bench_report(name, bench_best_ns(300, NULL, match, w) / N_TOKENS, "ns", 0, t->target,
                     false);
    snprintf(name, sizeof name, "%s, a token", t->cold_name);
    if (cold.ran)
        bench_report(name, bench_best_ns(30, chill, match, w) / N_TOKENS, "ns", 0, 0, false);
    if (hot.ran) bench_edits(w, t->name, 15);
}

static void bench_frequent(struct work *w)
{
    make_prompt(w, 640, 0, 20);
    match(w);
    uint32_t without = w->found;
    match_edits(w);
    BENCH_CHECK(without < N_TOKENS / 20 && w->found > N_TOKENS * 9 / 10);
    struct bench_result r = bench_run(&(struct bench_case){
        .name = "edit every 20, edits : runs", .run = match_edits, .baseline = match, .arg = w});
    if (r.ran) bench_edits(w, "edit every 20", 15);
}

int main(int argc, char **argv)
{
    static const struct text texts[] = {
        {"no hit", "no hit cold", 0, 64, 0, 0, 0, 8},
        {"few hits", "few hits cold", 400, 8000, 0, 1000, 1700, 8},
        {"many hits", "many hits cold", 400, 0, 0, N_TOKENS - 200, N_TOKENS, 15},
        {"edited", "edited cold", 2000, 0, 200, N_TOKENS * 9 / 10, N_TOKENS, 15},
        {"short runs", "short runs cold", 64, 0, 0, N_TOKENS - 200, N_TOKENS, 0},
    };
    bench_init("bench_match", argc, argv);
    static struct work w;
    open_cache(&w);
    struct tsri_windows *x = &w.cache->windows;
    /* A table filled to what it was sized for loses a few to groups that overflow. */
    BENCH_CHECK(x->n_used >= N_WINDOWS - N_WINDOWS / 10000);

    for (size_t i = 0; i < TSRI_COUNT(texts); i++)
        bench_text(&w, &texts[i]);
    bench_frequent(&w);
    uint32_t n_windows = N_WINDOWS;
    bench_report("memory of a window", (double)x->n_buckets * 72 / (double)n_windows, "bytes", 0,
                 16, false);
    bench_report("more for edits", (double)w.cache->shingles.n_buckets * 72 / (double)n_windows,
                 "bytes", 0, 16, false);
    struct bench_result add =
        bench_run(&(struct bench_case){.name = "register 2K tokens", .run = add_again, .arg = &w});
    if (add.ran) bench_report("register, a token", add.value / ENTRY_TOKENS, "ns", 0, 0, false);
    add = bench_run(&(struct bench_case){
        .name = "register 2K tokens for edits", .run = add_shingles_again, .arg = &w});
    if (add.ran)
        bench_report("register for edits, a token", add.value / ENTRY_TOKENS, "ns", 0, 0, false);
    bench_hostile(&w);
    bench_long(&w);
    free(w.tokens);
    free(w.memory);
    tsr_space_close(w.space);
    tsr_cache_close(w.cache);
    return bench_end();
}
