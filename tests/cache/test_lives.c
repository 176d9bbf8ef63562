/* test_lives.c - a match means something in the life of the store that made it and nowhere else.
 * Entries are numbered from 0 in every life, so that without more the handle of one text is the
 * handle of another one after a restart, or in the cache next door. Each test makes sure that what
 * would be loaded by mistake is there: same number, same generation, same space, another text. */
#include "cache/manager.h"
#include "served/served.h"

#include "support/served_kit.h"
#include "support/test.h"
#include "support/tmpdir.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 48u
#define BYTES (N * 256u) /* of KV in the kit's space */
#define CANARY 0xa5

/* A segment in a cache, and the match of it. */
struct text {
    uint32_t *tokens;
    struct tsr_range range;
    struct tsr_prompt prompt;
    struct kit_hits hits;
};

static void text_init(struct text *t, uint64_t seed)
{
    t->tokens = kit_tokens(seed, N);
    t->prompt = kit_segment_prompt(t->tokens, N, &t->range);
}

static void text_fini(struct text *t)
{
    free(t->tokens);
}

/* Stored, if it is not there, and found. */
static void text_keep(struct text *t, struct kit *k)
{
    CHECK(kit_store_segment(k, t->tokens, N) >= 0);
    CHECK_INT(kit_lookup(k, &t->prompt, 0, &t->hits), N);
}

/* The result of loading a match in a cache; nothing is written unless it is 0. */
static int load(struct kit *k, const struct text *t, bool with_prompt)
{
    static uint8_t kv[BYTES];
    memset(kv, CANARY, sizeof kv);
    struct tsr_load_desc l = {.size = sizeof l,
                              .space = k->space,
                              .match = &t->hits.matches[0],
                              .prompt = with_prompt ? &t->prompt : NULL,
                              .view = {.data = kv, .bytes = sizeof kv}};
    int n = tsr_client_load(k->client, &l, 1);
    if (n == 1 && !kit_right(k->space, kit_seed(k->space), t->tokens, N, 0, 2, &l.view)) {
        printf("    bytes of another text\n");
        return 1;
    }
    for (uint32_t i = 0; n != 1 && i < BYTES; i++)
        CHECK_INT(kv[i], CANARY);
    return n < 0 ? n : l.result;
}

/* With its tokens at hand and without, as who has verified them may. */
static void check_miss(struct kit *k, const struct text *t)
{
    CHECK_INT(load(k, t, false), TSR_ENOENT);
    CHECK_INT(load(k, t, true), TSR_ENOENT);
}

TEST(a_match_of_another_cache_is_a_miss)
{
    struct kit here, there;
    struct text ours, theirs;
    kit_open(&here, NULL);
    kit_open(&there, NULL);
    text_init(&ours, 1);
    text_init(&theirs, 2);
    text_keep(&ours, &here);
    text_keep(&theirs, &there);
    CHECK(ours.hits.matches[0].entry == theirs.hits.matches[0].entry);
    check_miss(&there, &ours);
    check_miss(&here, &theirs);
    CHECK_INT(load(&here, &ours, false), 0);
    CHECK_INT(load(&there, &theirs, false), 0);
    text_fini(&ours);
    text_fini(&theirs);
    CHECK(kit_end(&here));
    CHECK(kit_end(&there));
}

TEST(a_match_without_an_epoch_is_a_miss)
{
    struct kit k;
    struct text t;
    kit_open(&k, NULL);
    text_init(&t, 1);
    text_keep(&t, &k);
    CHECK(t.hits.matches[0].epoch != 0);
    t.hits.matches[0].epoch = 0;
    check_miss(&k, &t);
    text_fini(&t);
    CHECK(kit_end(&k));
}

TEST(a_match_does_not_outlive_its_cache_though_the_disk_does)
{
    struct tmpdir dir;
    tmpdir_init(&dir);
    const char *const options[] = {"disk_path", dir.path, "disk_segment_size", "16M", "disk_size",
                                   "64M",       NULL};
    struct kit k;
    struct text old, other;
    text_init(&old, 1);
    text_init(&other, 2);
    kit_open(&k, options);
    text_keep(&old, &k);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    kit_close(&k);
    kit_open(&k, options);
    check_miss(&k, &old);
    CHECK_INT(tsr_cache_clear(k.cache, NULL), 1);
    text_keep(&other, &k);
    check_miss(&k, &old);
    CHECK_INT(load(&k, &other, false), 0);
    kit_close(&k);
    text_fini(&old);
    text_fini(&other);
    tmpdir_fini(&dir);
}

/* Until the server that was started again has answered this client. */
static void keep_again(struct kit *k, struct text *t)
{
    uint64_t until_ns = tsri_now_ns() + 10000000000u;
    while (kit_store_segment(k, t->tokens, N) < 0 && tsri_now_ns() < until_ns)
        usleep(2000);
    while (kit_lookup(k, &t->prompt, 0, &t->hits) != (int)N && tsri_now_ns() < until_ns)
        usleep(2000);
    CHECK(tsri_now_ns() < until_ns);
}

TEST(a_match_does_not_outlive_its_server)
{
    if (TEST_TSAN) SKIP("the thread sanitizer starts no threads in a forked process");
    static const int signals[] = {SIGTERM, SIGKILL};
    for (size_t i = 0; i < TSRI_COUNT(signals); i++) {
        struct served s = {.pid = 0};
        struct kit k;
        struct text old, other;
        text_init(&old, 1);
        text_init(&other, 2);
        served_start(&s, NULL);
        served_kit_open(&k, s.path, NULL);
        text_keep(&old, &k);
        CHECK_INT(load(&k, &old, false), 0);
        CHECK_INT(tsr_cache_clear(k.cache, NULL), 1); /* so that the disk does not bring it back */
        CHECK_INT(tsr_cache_flush(k.cache), 0);
        served_stop(&s, signals[i]);
        served_start(&s, NULL);
        keep_again(&k, &other);
        CHECK(other.hits.matches[0].entry == old.hits.matches[0].entry);
        check_miss(&k, &old);
        CHECK_INT(load(&k, &other, false), 0);
        /* Nominated by its key alone, it is compared, and still a miss. */
        old.hits.matches[0].verified = 0;
        CHECK_INT(load(&k, &old, true), TSR_ENOENT);
        kit_close(&k);
        served_stop(&s, SIGTERM);
        served_end(&s);
        text_fini(&old);
        text_fini(&other);
    }
}

TEST(a_match_of_one_server_is_a_miss_at_another_and_in_an_own_cache)
{
    struct server_kit a, b;
    struct kit ka, kb, own;
    struct text ta, tb, to;
    server_open(&a, NULL);
    server_open(&b, NULL);
    served_kit_open(&ka, a.path, NULL);
    served_kit_open(&kb, b.path, NULL);
    kit_open(&own, NULL);
    text_init(&ta, 1);
    text_init(&tb, 2);
    text_init(&to, 3);
    text_keep(&ta, &ka);
    text_keep(&tb, &kb);
    text_keep(&to, &own);
    check_miss(&kb, &ta);
    check_miss(&own, &ta);
    check_miss(&ka, &to);
    CHECK_INT(load(&ka, &ta, false), 0);
    /* One that the same store's owner has found is the same there. */
    CHECK_INT(load(&a.k, &ta, false), 0);
    kit_close(&ka);
    kit_close(&kb);
    CHECK(kit_end(&own));
    CHECK(server_end(&a));
    CHECK(server_end(&b));
    text_fini(&ta);
    text_fini(&tb);
    text_fini(&to);
}

TEST(a_connection_that_is_made_again_is_the_same_life)
{
    struct server_kit s;
    struct kit k;
    struct text t;
    server_open(&s, NULL);
    text_init(&t, 1);
    served_kit_open(&k, s.path, NULL);
    text_keep(&t, &k);
    kit_close(&k);
    served_kit_open(&k, s.path, NULL);
    CHECK_INT(load(&k, &t, false), 0);
    kit_close(&k);
    text_fini(&t);
    CHECK(server_end(&s));
}

TEST(a_match_of_the_parent_is_a_miss_in_a_cache_of_the_child)
{
    if (TEST_TSAN) SKIP("the thread sanitizer starts no threads in a forked process");
    struct kit k;
    struct text t, other;
    kit_open(&k, NULL);
    text_init(&t, 1);
    text_init(&other, 2);
    text_keep(&t, &k);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct kit own;
        kit_open(&own, NULL);
        text_keep(&other, &own);
        bool miss = load(&own, &t, false) == TSR_ENOENT && load(&own, &t, true) == TSR_ENOENT;
        bool hit = load(&own, &other, false) == 0;
        kit_close(&own);
        _exit(miss && hit ? 0 : 1);
    }
    int status = 1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
    CHECK_INT(load(&k, &t, false), 0);
    text_fini(&t);
    text_fini(&other);
    CHECK(kit_end(&k));
}

int main(void)
{
    RUN(a_match_of_another_cache_is_a_miss);
    RUN(a_match_without_an_epoch_is_a_miss);
    RUN(a_match_does_not_outlive_its_cache_though_the_disk_does);
    RUN(a_match_does_not_outlive_its_server);
    RUN(a_match_of_one_server_is_a_miss_at_another_and_in_an_own_cache);
    RUN(a_connection_that_is_made_again_is_the_same_life);
    RUN(a_match_of_the_parent_is_a_miss_in_a_cache_of_the_child);
    return test_end();
}
