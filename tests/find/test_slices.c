/* Long prompts in slices: what is found is what one thread finds, whoever comes to help. */
#include "support/match_kit.h"
#include "support/test.h"

#include <stdatomic.h>
#include <unistd.h>

static struct kit k;

static void reopen(const char *io_threads, const char *io_queue_max)
{
    if (k.cache) kit_close(&k);
    kit_open(&k, (const char *const[]){"host_size", "64M", "host_page_size", "4K", "windows_max",
                                       "65536", "metadata_size", "16M", "entries_max", "4096",
                                       "io_threads", io_threads, "io_queue_max", io_queue_max,
                                       "partial", "runs", NULL});
}

static uint64_t scan(struct matching *x, const struct text *t, uint32_t slice_tokens)
{
    match_begin(x, &k, t->tokens, t->n, 0);
    x->m.slice_tokens = slice_tokens;
    tsri_matcher_scan(&x->m, (struct tsr_range){0, t->n});
    tsri_matcher_choose(&x->m);
    uint64_t n = 0;
    for (uint32_t i = 0; i < x->m.n_chosen; i++) {
        const struct tsri_run *r = &x->m.chosen[i];
        const uint32_t *tokens = tsri_meta_tokens(tsri_meta(k.cache, &k.cache->entries[r->id]));
        CHECK(memcmp(t->tokens + r->prompt_offset, tokens + r->entry_offset, r->n_tokens * 4) == 0);
        n += r->n_tokens;
    }
    return n;
}

/* Documents one after the other, some edited, with other text between them. */
static void make_prompt(struct text *t, uint32_t n_docs, uint32_t doc_tokens)
{
    uint64_t seed = 7;
    text_init(t, n_docs * (doc_tokens + 100) * 2);
    for (uint32_t d = 0; d < n_docs; d++) {
        uint32_t *doc = kit_tokens(d, doc_tokens);
        match_entry(&k, d, doc, doc_tokens, TSR_KIND_SEGMENT);
        text_add_edited(t, &seed, doc, doc_tokens, d % 3, 50000);
        text_add_random(t, &seed, d % 90, 50000);
        free(doc);
    }
}

static bool all_unpinned(void)
{
    for (uint32_t id = 0; id < k.cache->ids_fresh; id++)
        if (tsri_word_pins(atomic_load(&k.cache->entries[id].word))) return false;
    return true;
}

TEST(slices_of_any_size_find_what_one_scan_finds)
{
    reopen("2", "16");
    struct text t;
    struct matching one, many;
    make_prompt(&t, 40, 300);
    uint64_t want = scan(&one, &t, UINT32_MAX);
    CHECK(want > 11000);
    for (uint32_t slice = 1; slice < t.n; slice += slice / 2 + 7) {
        CHECK_INT(scan(&many, &t, slice), want);
        CHECK_INT(many.m.n_chosen, one.m.n_chosen);
        for (uint32_t i = 0; i < one.m.n_chosen; i++) {
            const struct tsri_run *a = &one.m.chosen[i], *b = &many.m.chosen[i];
            CHECK(a->id == b->id && a->prompt_offset == b->prompt_offset &&
                  a->entry_offset == b->entry_offset && a->n_tokens == b->n_tokens &&
                  a->coverage == b->coverage);
        }
        match_end(&many);
    }
    match_end(&one);
    CHECK(all_unpinned());
    text_fini(&t);
}

TEST(a_part_is_not_left_by_its_slices)
{
    reopen("2", "16");
    struct text t;
    struct matching x;
    make_prompt(&t, 10, 300);
    match_begin(&x, &k, t.tokens, t.n, 0);
    x.m.slice_tokens = 64;
    tsri_matcher_scan(&x.m, (struct tsr_range){1000, 800});
    CHECK(x.m.n_runs > 0);
    for (uint32_t i = 0; i < x.m.n_runs; i++)
        CHECK(x.m.runs[i].prompt_offset >= 1000 &&
              x.m.runs[i].prompt_offset + x.m.runs[i].n_tokens <= 1800);
    match_end(&x);
    CHECK(all_unpinned());
    text_fini(&t);
}

/* ---- threads that do not help ---- */

static atomic_bool held;
static atomic_int n_held;

static void hold(struct tsri_job *job)
{
    (void)job;
    atomic_fetch_add(&n_held, 1);
    while (atomic_load(&held))
        usleep(1000);
    atomic_fetch_sub(&n_held, 1);
}

TEST(nobody_waits_for_threads_that_are_busy)
{
    reopen("2", "3");
    struct text t;
    struct matching x;
    make_prompt(&t, 20, 300);
    struct tsri_job jobs[4];
    atomic_store(&held, true);
    for (int i = 0; i < 2; i++) {
        jobs[i] = (struct tsri_job){.run = hold};
        CHECK_INT(tsri_work_push(tsri_ops_work(k.cache->ops), &jobs[i]), 0);
    }
    WAIT_FOR(atomic_load(&n_held) == 2);
    uint64_t want = scan(&x, &t, UINT32_MAX);
    match_end(&x);
    CHECK_INT(scan(&x, &t, 500), want); /* the queue keeps helpers that come too late */
    match_end(&x);
    CHECK_INT(scan(&x, &t, 500), want); /* and is full now */
    match_end(&x);
    CHECK(all_unpinned());
    memset(t.tokens, 0xFF, t.n * sizeof t.tokens[0]); /* nobody looks at the prompt any more */
    text_fini(&t);
    atomic_store(&held, false);
    tsri_work_drain(tsri_ops_work(k.cache->ops));
}

/* ---- several lookups while entries come and go ---- */

static atomic_bool stop;

static void *come_and_go(void *arg)
{
    (void)arg;
    struct kit own = k;
    own.client = kit_client(k.cache);
    for (uint32_t i = 0; !atomic_load(&stop); i++) {
        uint32_t *doc = kit_tokens(i % 40, 300);
        if (kit_store_segment(&own, doc, 300) < 0) printf("    %s\n", tsr_errmsg());
        free(doc);
        if (i % 16 == 0) kit_evict_all(&own);
    }
    tsr_client_close(own.client);
    return NULL;
}

struct reader {
    pthread_t thread;
    const struct text *t;
    bool right;
};

static void *look(void *arg)
{
    struct reader *r = arg;
    r->right = true;
    for (int i = 0; i < 60 && r->right; i++) {
        struct matching x;
        match_begin(&x, &k, r->t->tokens, r->t->n, 0);
        x.m.slice_tokens = 700;
        tsri_matcher_scan(&x.m, (struct tsr_range){0, r->t->n});
        tsri_matcher_choose(&x.m);
        for (uint32_t c = 0; c < x.m.n_chosen; c++) {
            const struct tsri_run *run = &x.m.chosen[c];
            struct tsri_entry *e = &k.cache->entries[run->id];
            r->right &= memcmp(r->t->tokens + run->prompt_offset,
                               tsri_meta_tokens(tsri_meta(k.cache, e)) + run->entry_offset,
                               run->n_tokens * sizeof(uint32_t)) == 0;
        }
        match_end(&x);
    }
    return NULL;
}

TEST(slices_are_right_while_entries_come_and_go)
{
    reopen("3", "64");
    struct text t;
    make_prompt(&t, 40, 300);
    pthread_t writer;
    struct reader readers[3];
    atomic_store(&stop, false);
    CHECK_INT(pthread_create(&writer, NULL, come_and_go, NULL), 0);
    for (int i = 0; i < 3; i++) {
        readers[i] = (struct reader){.t = &t};
        CHECK_INT(pthread_create(&readers[i].thread, NULL, look, &readers[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(readers[i].thread, NULL);
    atomic_store(&stop, true);
    pthread_join(writer, NULL);
    for (int i = 0; i < 3; i++)
        CHECK(readers[i].right);
    CHECK(all_unpinned());
    CHECK(kit_valid(&k));
    text_fini(&t);
}

int main(void)
{
    RUN(slices_of_any_size_find_what_one_scan_finds);
    RUN(a_part_is_not_left_by_its_slices);
    RUN(nobody_waits_for_threads_that_are_busy);
    RUN(slices_are_right_while_entries_come_and_go);
    if (k.cache) kit_close(&k);
    return test_end();
}
