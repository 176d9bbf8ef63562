/* After fork() the child's handles answer with misses and refuse stores, whatever the parent's
 * threads were doing and whichever locks they held; closing them is safe, and the parent goes on as
 * if nothing had happened. */
#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/test.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILD_MUST(x) \
    do { \
        if (!(x)) { \
            printf("    child: %s:%d: %s\n", __FILE__, __LINE__, #x); \
            fflush(stdout); \
            _exit(1); \
        } \
    } while (0)

/* Everything that was open at the fork. */
struct family {
    struct kit k;
    struct fake_tier_plan plan;
    uint32_t *tokens;
    struct tsr_prompt prompt;
    struct kit_hits hits;
    struct tsr_store_desc unfinished;
    struct tsr_put *puts[2];
    struct tsr_op *op;
    struct tsr_load_desc load;
    uint8_t kv[16 * 256];
};

static void child_reads(struct family *f)
{
    struct kit_hits hits;
    CHILD_MUST(kit_lookup(&f->k, &f->prompt, 0, &hits) == 0 && hits.io.n_matches == 0);
    CHILD_MUST(kit_lookup(&f->k, &f->prompt, 9, &hits) == 0);
    uint8_t kv[16 * 256];
    struct tsr_load_desc load = {.size = sizeof load,
                                 .space = f->k.space,
                                 .match = &f->hits.matches[0],
                                 .view = {.data = kv, .bytes = sizeof kv}};
    CHILD_MUST(tsr_client_load(f->k.client, &load, 1) == 0 && load.result == TSR_ENOENT);
    struct tsr_key keys[4];
    int8_t tiers[4];
    CHILD_MUST(tsr_space_keys(f->k.space, &f->prompt, keys, 4) == 4);
    CHILD_MUST(tsr_cache_contains(f->k.cache, keys, 4, tiers) == 0 && tiers[0] == -1);
    struct tsr_stats s = {.size = sizeof s};
    struct tsr_event event;
    char text[64];
    CHILD_MUST(tsr_cache_stats(f->k.cache, &s) == 0 && s.entries == 0);
    CHILD_MUST(tsr_cache_stats_text(f->k.cache, "json", text, sizeof text) > 0);
    CHILD_MUST(tsr_cache_events(f->k.cache, &event, 1) == 0);
    CHILD_MUST(tsr_client_release(f->k.client, 1) == 0);
    CHILD_MUST(tsr_client_prefetch(f->k.client, f->k.space, &f->prompt) == 0);
    CHILD_MUST(tsr_space_pin(f->k.space, &f->prompt) == 0 &&
               tsr_space_unpin(f->k.space, &f->prompt) == 0);
    CHILD_MUST(tsr_space_touch(f->k.space, &f->prompt) == 0);
    CHILD_MUST(tsr_cache_evict(f->k.cache, SIZE_MAX) == 0);
    CHILD_MUST(tsr_cache_clear(f->k.cache, NULL) == 0);
}

static void child_writes(struct family *f)
{
    CHILD_MUST(kit_store_prefix(&f->k, f->tokens, 64) == TSR_EFORK);
    struct tsr_put *put;
    struct tsr_op *op;
    CHILD_MUST(tsr_put_open(&put, f->k.client, &f->unfinished) == TSR_EFORK && !put);
    CHILD_MUST(tsr_client_store_start(&op, f->k.client, &f->unfinished, NULL, NULL) == TSR_EFORK &&
               !op);
    CHILD_MUST(tsr_client_load_start(&op, f->k.client, &f->load, 1, NULL, NULL) == TSR_EFORK &&
               !op);
    CHILD_MUST(tsr_cache_flush(f->k.cache) == TSR_EFORK);
    struct tsr_space *space;
    struct tsr_client *client;
    struct tsr_space_desc desc = kit_desc();
    CHILD_MUST(tsr_space_open(&space, f->k.cache, &desc) == TSR_EFORK && !space);
    CHILD_MUST(tsr_client_open(&client, f->k.cache) == TSR_EFORK && !client);
    const uint32_t separator = 5, length = 1;
    CHILD_MUST(tsr_separators_set(f->k.space, &separator, &length, 1) == TSR_EFORK);
    /* What was under way. */
    struct tsr_view one = {.data = f->unfinished.view.data, .bytes = f->unfinished.view.bytes / 2};
    CHILD_MUST(tsr_put_layer(f->puts[0], 0, &one) == TSR_EFORK);
    CHILD_MUST(tsr_put_commit(f->puts[0]) == TSR_EFORK);
    tsr_put_abort(f->puts[1]);
    CHILD_MUST(tsr_op_wait(f->op, -1) == TSR_EFORK);
    CHILD_MUST(tsr_op_wait_layer(f->op, 0, -1) == TSR_EFORK);
    tsr_op_close(f->op);
}

static void child_closes(struct family *f)
{
    tsr_client_close(f->k.client);
    tsr_space_close(f->k.space);
    tsr_cache_close(f->k.cache);
#if !TEST_TSAN /* which cannot start threads in such a child */
    struct kit own;
    kit_open(&own, NULL);
    CHILD_MUST(kit_store_prefix(&own, f->tokens, 64) == 64);
    CHILD_MUST(kit_load_and_check(&own, &f->prompt) == 64);
    CHILD_MUST(kit_end(&own));
#endif
}

/* Forks; true when the child did all of the steps and ended well. */
static bool bear(struct family *f)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60); /* a child that hangs is killed */
        child_reads(f);
        child_writes(f);
        child_closes(f);
        _exit(0);
    }
    int status;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

static void family_open(struct family *f)
{
    fake_tier_plan_init(&f->plan);
    kit_open_tiers(&f->k, NULL, &f->plan, 1);
    f->tokens = kit_tokens(1, 64);
    f->prompt = kit_prefix_prompt(f->tokens, 64);
    CHECK_INT(kit_store_prefix(&f->k, f->tokens, 64), 64);
    CHECK_INT(tsr_cache_flush(f->k.cache), 0);
    CHECK_INT(kit_evict_all(&f->k), 4);
    CHECK_INT(kit_lookup(&f->k, &f->prompt, 1, &f->hits), 64);
    f->unfinished = (struct tsr_store_desc){.size = sizeof f->unfinished,
                                            .space = f->k.space,
                                            .kind = TSR_KIND_SEGMENT,
                                            .tokens = f->tokens,
                                            .n_tokens = 60};
    f->unfinished.view = kit_store_view(&f->unfinished);
    for (int i = 0; i < 2; i++)
        CHECK_INT(tsr_put_open(&f->puts[i], f->k.client, &f->unfinished), 0);
    /* A load that does not end. */
    fake_tier_gate(&f->plan, FAKE_GET);
    f->load = (struct tsr_load_desc){.size = sizeof f->load,
                                     .space = f->k.space,
                                     .match = &f->hits.matches[0],
                                     .prompt = &f->prompt,
                                     .view = {.data = f->kv, .bytes = sizeof f->kv}};
    CHECK_INT(tsr_client_load_start(&f->op, f->k.client, &f->load, 1, NULL, NULL), 0);
    fake_tier_gate_wait(&f->plan, 1);
}

/* The parent ends what it had begun. */
static bool family_end(struct family *f)
{
    fake_tier_gate(&f->plan, 0);
    CHECK_INT(tsr_op_wait(f->op, -1), 1);
    CHECK(kit_right(f->k.space, kit_seed(f->k.space), f->tokens, 16, 0, 2, &f->load.view));
    tsr_op_close(f->op);
    size_t half = f->unfinished.view.bytes / 2;
    for (uint32_t l = 0; l < 2; l++) {
        struct tsr_view one = {.data = (uint8_t *)f->unfinished.view.data + l * half,
                               .bytes = half};
        CHECK_INT(tsr_put_layer(f->puts[0], l, &one), 0);
    }
    CHECK_INT(tsr_put_commit(f->puts[0]), 60);
    tsr_put_abort(f->puts[1]);
    CHECK_INT(tsr_client_release(f->k.client, 1), 4);
    CHECK_INT(kit_load_and_check(&f->k, &f->prompt), 64);
    struct tsr_range range;
    struct tsr_prompt segment = kit_segment_prompt(f->tokens, 60, &range);
    CHECK_INT(kit_load_and_check(&f->k, &segment), 60);
    free(f->unfinished.view.data);
    free(f->tokens);
    bool ended = kit_end(&f->k);
    fake_tier_plan_fini(&f->plan);
    return ended;
}

TEST(the_child_gets_misses_and_the_parent_goes_on)
{
    static struct family f;
    family_open(&f);
    for (int i = 0; i < 3; i++)
        CHECK(bear(&f));
    CHECK(family_end(&f));
}

struct busy {
    struct kit k;
    uint64_t seed;
    atomic_bool *stop;
};

static void *keep_busy(void *arg)
{
    struct busy *b = arg;
    for (uint64_t i = 0; !atomic_load(b->stop); i++) {
        uint32_t *tokens = kit_tokens(b->seed + i % 40, 64);
        struct tsr_range range;
        struct tsr_prompt p = kit_segment_prompt(tokens, 64, &range);
        struct kit_hits hits;
        (void)!kit_store_segment(&b->k, tokens, 64);
        uint64_t request = b->seed << 32 | i;
        (void)!kit_lookup(&b->k, &p, request, &hits);
        tsr_client_release(b->k.client, request);
        kit_stats(&b->k);
        free(tokens);
    }
    return NULL;
}

TEST(a_child_born_while_threads_hold_the_locks_does_not_wait_for_them)
{
#if TEST_ASAN || TEST_TSAN
    SKIP("the sanitizer's malloc waits for locks that the parent's threads held");
#endif
    enum { N = 4 };
    static struct family f;
    family_open(&f);
    struct busy busy[N];
    pthread_t threads[N];
    atomic_bool stop = false;
    for (uint64_t i = 0; i < N; i++) {
        busy[i] = (struct busy){.k = f.k, .seed = 1000 * (i + 1), .stop = &stop};
        busy[i].k.client = i % 2 ? kit_client(f.k.cache) : f.k.client; /* its lock, too */
        pthread_create(&threads[i], NULL, keep_busy, &busy[i]);
    }
    bool well = true;
    for (int i = 0; i < 25 && well; i++)
        well = bear(&f);
    atomic_store(&stop, true);
    for (uint64_t i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        if (i % 2) tsr_client_close(busy[i].k.client);
    }
    CHECK(well);
    CHECK(family_end(&f));
}

TEST(a_child_that_just_ends_takes_nothing_with_it)
{
    static struct family f;
    family_open(&f);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(family_end(&f));
}

int main(void)
{
    RUN(the_child_gets_misses_and_the_parent_goes_on);
    RUN(a_child_born_while_threads_hold_the_locks_does_not_wait_for_them);
    RUN(a_child_that_just_ends_takes_nothing_with_it);
    return test_end();
}
