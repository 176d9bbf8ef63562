/* test_served.c - a cache that a server has, seen through the same calls as one in this process;
 * and what becomes of them when the server is away, stopped, killed or started again. */
#include "served/served.h"
#include "cache/manager.h"

#include "support/fake_tier.h"
#include "support/lying_server.h"
#include "support/served_kit.h"
#include <tessera/server.h>
#include "support/test.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void sleep_ms(unsigned ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000},
              NULL);
}

static uint64_t ms_since(uint64_t start_ns)
{
    return (tsri_now_ns() - start_ns) / 1000000;
}

/* Stores, finds, loads and checks the same things in any cache; how many tokens it has loaded. */
static int use(struct kit *k)
{
    uint32_t *doc = kit_tokens(1, 300), *system = kit_tokens(2, 40), *chat = kit_tokens(3, 100);
    struct tsr_range range;
    struct tsr_prompt segment = kit_segment_prompt(doc, 300, &range);
    struct tsr_prompt prefix = kit_prefix_prompt(chat, 100);
    int n = 0;
    CHECK_INT(kit_find_segment(k, doc, 300), 0);
    CHECK_INT(kit_store_segment(k, doc, 300), 300);
    CHECK_INT(kit_store_segment(k, doc, 300), 0); /* there already */
    CHECK_INT(kit_store_prefix(k, chat, 100), 96);
    CHECK_INT(kit_store_behind(k, system, 40, doc, 64), 64);
    CHECK_INT(kit_find_prefix(k, chat, 100), 96);
    n += kit_load_and_check(k, &segment);
    n += kit_load_and_check(k, &prefix);
    struct kit_hits hits;
    CHECK_INT(kit_lookup(k, &prefix, 77, &hits), 96);
    CHECK_INT(hits.io.n_matches, 6);
    CHECK_INT(hits.io.n_prefix_tokens, 96);
    CHECK(tsr_client_release(k->client, 77) >= 0);
    struct tsr_key keys[8];
    int8_t tiers[8];
    CHECK_INT(tsr_space_keys(k->space, &prefix, keys, 8), 6);
    CHECK_INT(tsr_cache_contains(k->cache, keys, 6, tiers), 6);
    CHECK_INT(tiers[5], 0);
    struct tsr_key same[8] = {0};
    uint64_t lacking[8] = {0};
    struct tsri_chain chain = {.n_tokens = 0};
    CHECK_INT(tsri_cache_lacking(&k->space, 1, &prefix, 0, &chain, same, lacking), 0);
    CHECK(memcmp(keys, same, 6 * sizeof keys[0]) == 0);
    for (uint32_t i = 0; i < 8; i++)
        CHECK_INT(lacking[i], 0);
    tsri_cache_bring_up(k->space, &prefix);
    CHECK_INT(tsr_space_pin(k->space, &prefix), 6);
    CHECK_INT(tsr_space_unpin(k->space, &prefix), 6);
    CHECK_INT(tsr_space_touch(k->space, &prefix), 6);
    CHECK_INT(tsr_client_prefetch(k->client, k->space, &prefix), 0);
    CHECK_INT(tsr_cache_flush(k->cache), 0);
    CHECK(kit_stats(k).stores_new >= 8);
    CHECK(kit_stats(k).lookup_hits > 0 && kit_stats(k).lookup_misses > 0);
    CHECK(kit_stats(k).tokens_cached >= 300 + 96 + 64);
    CHECK_INT(kit_stats(k).tier_tokens[0], kit_stats(k).tokens_cached);
    char text[64];
    CHECK(tsr_cache_stats_text(k->cache, "prometheus", text, sizeof text) > 100);
    CHECK(strlen(text) == 63);
    CHECK_INT(tsr_cache_stats_text(k->cache, "yaml", text, sizeof text), TSR_EINVAL);
    struct tsr_clear_desc what = {
        .size = sizeof what, .space = k->space, .prompt = &prefix, .tier = -1};
    CHECK_INT(tsr_cache_clear(k->cache, &what), 6);
    chain = (struct tsri_chain){.n_tokens = 0};
    CHECK_INT(tsri_cache_lacking(&k->space, 1, &prefix, 32, &chain, same, lacking), 0);
    for (uint32_t i = 0; i < 8; i++)
        CHECK_INT(lacking[i], i >= 2 && i < 6);
    CHECK_INT(tsr_cache_clear(k->cache, NULL), 2);
    free(doc), free(system), free(chat);
    return n;
}

TEST(the_same_calls_give_the_same_answers)
{
    struct kit own;
    struct server_kit s;
    struct kit k;
    kit_open(&own, NULL);
    CHECK_INT(use(&own), 396);
    kit_close(&own);
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    CHECK_INT(use(&k), 396);
    CHECK_INT(use(&k), 396);
    kit_close(&k);
    CHECK(server_end(&s));
}

/* Also of what only a tier of the server has. */
TEST(only_the_context_that_is_asked_for_is_found_through_a_server)
{
    struct server_kit s;
    struct kit k;
    struct tmpdir dir;
    char path[sizeof dir.path + 8];
    tmpdir_init_fast(&dir);
    snprintf(path, sizeof path, "%s/kv", dir.path);
    const char *const options[] = {"disk_path",         path, "disk_size", "64M",
                                   "disk_segment_size", "4M", NULL};
    uint32_t *doc = kit_tokens(2, 40), *primers[3];
    struct tsr_range range;
    struct tsr_prompt p = kit_segment_prompt(doc, 40, &range);
    struct kit_hits hits;
    for (uint32_t i = 0; i < 3; i++)
        primers[i] = kit_tokens(10 + i, 31);
    server_open(&s, options);
    served_kit_open(&k, s.path, NULL);
    for (uint32_t i = 0; i < 2; i++)
        CHECK_INT(kit_store_behind(&k, primers[i], 30, doc, 40), 40);
    for (uint32_t cold = 0; cold < 2; cold++) {
        CHECK_INT(kit_lookup(&k, &p, 0, &hits), 0);
        for (uint32_t i = 0; i < 3; i++) {
            p.context = primers[i];
            p.n_context = 30;
            CHECK_INT(kit_load_and_check(&k, &p), i < 2 ? 40 : 0);
            p.n_context = 31; /* one token more is another text */
            CHECK_INT(kit_lookup(&k, &p, 0, &hits), 0);
        }
        p.n_context = 0;
        CHECK_INT(tsr_cache_flush(k.cache), 0);
        CHECK(server_wait_leased(&s, 0)); /* the server has read that they end */
        /* Not the second time: then lookups have started prefetches, which may still hold or bring
         * up an entry. */
        if (!cold) CHECK_INT(kit_evict_all(&s.k), 2);
    }
    kit_close(&k);
    CHECK(server_end(&s));
    for (uint32_t i = 0; i < 3; i++)
        free(primers[i]);
    free(doc);
    tmpdir_fini(&dir);
}

TEST(mistakes_are_errors_as_they_are_in_process)
{
    struct server_kit s;
    struct kit k;
    struct kit_hits hits;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t tokens[4] = {1, 2, 3, 4};
    struct tsr_prompt p = kit_prefix_prompt(tokens, 4);
    p.flags = 1u << 20;
    CHECK_INT(kit_lookup(&k, &p, 0, &hits), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "flags");
    p.flags = TSR_PROMPT_SEGMENTS;
    CHECK_INT(kit_lookup(&k, &p, 0, &hits), TSR_EINVAL);
    struct tsr_store_desc store = {
        .size = sizeof store, .space = k.space, .kind = 9, .tokens = tokens, .n_tokens = 4};
    CHECK_INT(kit_store(&k, &store), TSR_EINVAL);
    kit_close(&k);
    CHECK(server_end(&s));
}

TEST(separators_are_split_here)
{
    struct server_kit s;
    struct kit k;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t sep[1] = {9}, one[1] = {1}, doc[4] = {5, 6, 7, 9}, ask[6] = {5, 6, 7, 9, 1, 2};
    CHECK_INT(tsr_separators_set(k.space, sep, one, 1), 0);
    CHECK_INT(kit_store_segment(&k, doc, 4), 4);
    struct tsr_prompt p = {
        .size = sizeof p, .tokens = ask, .n_tokens = 6, .flags = TSR_PROMPT_SEGMENTS};
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&k, &p, 0, &hits), 4);
    p.n_tokens = 3;
    CHECK_INT(kit_lookup(&k, &p, 0, &hits), TSR_EPROMPT);
    kit_close(&k);
    CHECK(server_end(&s));
}

TEST(leases_are_the_clients_and_end_with_it)
{
    struct server_kit s;
    struct kit k;
    struct kit_hits hits;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(3, 64);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), 64);
    struct tsr_prompt p = kit_prefix_prompt(tokens, 64);
    CHECK_INT(kit_lookup(&k, &p, UINT64_MAX, &hits), 64);
    CHECK(server_wait_leased(&s, 4));
    CHECK_INT(kit_lookup(&k, &p, UINT64_MAX, &hits), 64); /* takes the place of the first */
    CHECK(server_wait_leased(&s, 4));
    CHECK_INT(kit_load(&k, &p, &hits, 0), 0); /* its own lease comes and goes */
    CHECK(server_wait_leased(&s, 4));
    CHECK(tsr_client_release(k.client, UINT64_MAX) >= 0);
    CHECK(server_wait_leased(&s, 0));
    CHECK_INT(kit_lookup(&k, &p, 5, &hits), 64);
    tsr_client_close(k.client);
    CHECK(server_wait_leased(&s, 0));
    k.client = kit_client(k.cache);
    CHECK_INT(kit_load_and_check(&k, &p), 64);
    kit_close(&k);
    free(tokens);
    CHECK(server_end(&s));
}

TEST(shared_memory_stays_while_it_is_held)
{
    struct server_kit s;
    struct kit k;
    struct tsr_shared shared = {.size = sizeof shared};
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    CHECK_INT(tsr_cache_connected(k.cache, 0), 0);
    CHECK_INT(tsr_cache_connected(s.k.cache, 0), 0);
    CHECK_INT(tsr_shared_open(k.client, &shared), 0);
    CHECK_INT(shared.bytes, 64 * 16384);
    uint32_t *tokens = kit_tokens(3, 16);
    CHECK_INT(kit_store_prefix(&k, tokens, 16), 16);
    CHECK(memcmp(shared.data, s.k.cache->pool.region.data, shared.bytes) == 0);
    kit_close(&k);
    CHECK(memcmp(shared.data, s.k.cache->pool.region.data, shared.bytes) == 0);
    tsr_shared_close(&shared);
    CHECK(shared.data == NULL);
    CHECK_INT(tsr_shared_open(s.k.client, &shared), TSR_EUNSUP);
    free(tokens);
    CHECK(server_end(&s));
}

/* ---- without a server ---- */

TEST(without_a_server_everything_misses_at_once)
{
    struct tmpdir dir;
    struct kit k;
    char path[100];
    tmpdir_init(&dir);
    snprintf(path, sizeof path, "%.80s/sock", dir.path);
    uint64_t start = tsri_now_ns();
    served_kit_open(&k, path, (const char *const[]){"server_deadline", "50", NULL});
    CHECK(ms_since(start) < 5000); /* two times the deadline, and this machine may be busy */
    uint32_t *tokens = kit_tokens(3, 64);
    struct tsr_prompt p = kit_prefix_prompt(tokens, 64);
    struct tsr_key key = {{1}};
    int8_t tier = 3;
    uint64_t best = UINT64_MAX; /* one of ten is not interrupted for long */
    for (int round = 0; round < 10; round++) {
        start = tsri_now_ns();
        for (int i = 0; i < 100; i++)
            CHECK_INT(kit_find_prefix(&k, tokens, 64), 0);
        if (ms_since(start) < best) best = ms_since(start);
    }
    CHECK(best < 100); /* a millisecond each would be far too much */
    CHECK_INT(kit_store_prefix(&k, tokens, 64), TSR_EAGAIN);
    CHECK_HAS(tsr_errmsg(), path);
    CHECK_INT(tsr_cache_contains(k.cache, &key, 1, &tier), 0);
    CHECK_INT(tier, -1);
    CHECK_INT(tsr_cache_flush(k.cache), TSR_EAGAIN);
    CHECK_INT(tsr_cache_connected(k.cache, 10), TSR_EAGAIN);
    CHECK_INT(tsr_client_release(k.client, 3), 0);
    CHECK_INT(tsr_client_prefetch(k.client, k.space, &p), 0);
    struct tsr_stats stats = {.size = sizeof stats};
    CHECK_INT(tsr_cache_stats(k.cache, &stats), TSR_EAGAIN);
    kit_close(&k);
    free(tokens);
    tmpdir_fini(&dir);
}

/* Until it finds so many tokens, for ten seconds at most. */
static bool finds_again(struct kit *k, const uint32_t *tokens, uint32_t n, int wanted)
{
    for (int i = 0; i < 1000; i++) {
        if (kit_find_prefix(k, tokens, n) == wanted) return true;
        sleep_ms(10);
    }
    return false;
}

/* For calls of a client with a short deadline, which they may miss on a busy machine. */
#define CHECK_SOON(x) \
    for (int check_i = 0; !(x); sleep_ms(10)) \
    CHECK(++check_i < 1000)

TEST(a_server_that_comes_later_is_used_and_one_that_goes_is_not_missed)
{
    struct server_kit s;
    struct kit k;
    server_open(&s, NULL);
    struct tsr_config *cfg = kit_config((const char *const[]){"owner", "embedded", NULL});
    CHECK_INT(tsr_config_set(cfg, "server_socket", s.path), 0);
    uint32_t *tokens = kit_tokens(3, 64);
    CHECK_INT(kit_store_prefix(&s.k, tokens, 64), 64);
    tsr_server_close(s.server);
    served_kit_open(&k, s.path, (const char *const[]){"server_deadline", "200", NULL});
    struct tsr_prompt p = kit_prefix_prompt(tokens, 64);
    for (int round = 0; round < 3; round++) {
        CHECK_INT(kit_find_prefix(&k, tokens, 64), 0);
        CHECK_INT(tsr_server_open(&s.server, s.k.cache, cfg), 0);
        CHECK_SOON(kit_load_and_check(&k, &p) == 64);
        struct kit_hits hits;
        CHECK_SOON(kit_lookup(&k, &p, 9, &hits) == 64);
        if (round == 2) break;
        tsr_server_close(s.server);
        /* What it has promised is gone with it, and said so. */
        CHECK(kit_load(&k, &p, &hits, 0) < 0);
        CHECK_INT(kit_store_prefix(&k, tokens, 64), TSR_EAGAIN);
    }
    tsr_config_close(cfg);
    kit_close(&k);
    free(tokens);
    CHECK(server_end(&s));
}

TEST(a_stopped_server_costs_one_deadline_and_is_used_again_when_it_goes_on)
{
    if (TEST_TSAN) SKIP("the thread sanitizer starts no threads in a forked process");
    struct served s = {.pid = 0};
    struct kit k;
    served_start(&s, NULL);
    served_kit_open(&k, s.path, (const char *const[]){"server_deadline", "200", NULL});
    uint32_t *tokens = kit_tokens(3, 64);
    CHECK_SOON(kit_store_prefix(&k, tokens, 64) >= 0);
    CHECK(finds_again(&k, tokens, 64, 64));
    kill(s.pid, SIGSTOP);
    CHECK(waitpid(s.pid, NULL, WUNTRACED) == s.pid); /* it takes a moment */
    struct tsr_prompt p = kit_prefix_prompt(tokens, 64);
    struct kit_hits hits;
    uint64_t start = tsri_now_ns();
    CHECK_INT(kit_lookup(&k, &p, 11, &hits), 0);
    uint64_t first = ms_since(start);
    CHECK(first >= 150 && first < 5000);
    start = tsri_now_ns();
    for (int i = 0; i < 100; i++)
        CHECK_INT(kit_find_prefix(&k, tokens, 64), 0);
    CHECK(ms_since(start) < 5000); /* a deadline each would take 20 s */
    kill(s.pid, SIGCONT);
    CHECK_SOON(kit_load_and_check(&k, &p) == 64);
    kit_close(&k);
    served_stop(&s, SIGTERM);
    free(tokens);
    served_end(&s);
}

TEST(killed_it_comes_back_with_what_was_flushed)
{
    if (TEST_TSAN) SKIP("the thread sanitizer starts no threads in a forked process");
    struct served s = {.pid = 0};
    struct kit k;
    served_start(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(3, 64), *lost = kit_tokens(4, 64);
    struct tsr_prompt p = kit_prefix_prompt(tokens, 64);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), 64);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    for (int round = 0; round < 3; round++) {
        CHECK_INT(kit_load_and_check(&k, &p), 64);
        served_stop(&s, SIGKILL);
        CHECK_INT(kit_find_prefix(&k, tokens, 64), 0);
        CHECK_INT(kit_find_prefix(&k, lost, 64), 0);
        served_start(&s, NULL);
        CHECK(finds_again(&k, tokens, 64, 64));
    }
    CHECK_INT(kit_load_and_check(&k, &p), 64);
    CHECK_INT(kit_store_prefix(&k, lost, 64), 64);
    kit_close(&k);
    served_stop(&s, SIGTERM);
    free(tokens), free(lost);
    served_end(&s);
}

/* What a flush says when the server is there. */
static int flush_again(struct kit *k)
{
    int e = TSR_EAGAIN;
    for (int i = 0; i < 500 && e == TSR_EAGAIN; i++, sleep_ms(20))
        e = tsr_cache_flush(k->cache);
    return e;
}

/* The server that took it is gone, and with it what was not flushed: the next one must not
 * acknowledge it. */
TEST(a_flush_fails_when_the_server_that_took_the_stores_is_gone)
{
    if (TEST_TSAN) SKIP("the thread sanitizer starts no threads in a forked process");
    struct served s = {.pid = 0};
    struct kit k;
    served_start(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(3, 64), *lost = kit_tokens(4, 64), *later = kit_tokens(5, 64);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), 64);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    CHECK_INT(kit_store_prefix(&k, lost, 64), 64);
    served_stop(&s, SIGKILL);
    CHECK(tsr_cache_flush(k.cache) < 0);
    served_start(&s, NULL);
    CHECK(finds_again(&k, tokens, 64, 64));
    CHECK_INT(flush_again(&k), TSR_EIO);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    /* Stored after it came back. */
    served_stop(&s, SIGKILL);
    served_start(&s, NULL);
    CHECK(finds_again(&k, tokens, 64, 64));
    CHECK_INT(kit_store_prefix(&k, later, 64), 64);
    CHECK_INT(flush_again(&k), 0);
    kit_close(&k);
    served_stop(&s, SIGTERM);
    free(tokens), free(lost), free(later);
    served_end(&s);
}

TEST(a_flush_fails_when_the_next_server_took_stores_too)
{
    if (TEST_TSAN) SKIP("the thread sanitizer starts no threads in a forked process");
    struct served s = {.pid = 0};
    struct kit k;
    served_start(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t *lost = kit_tokens(4, 64), *later = kit_tokens(5, 64);
    CHECK_INT(kit_store_prefix(&k, lost, 64), 64);
    served_stop(&s, SIGKILL);
    served_start(&s, NULL);
    int n = TSR_EAGAIN;
    for (int i = 0; i < 500 && n < 0; i++, sleep_ms(20))
        n = kit_store_prefix(&k, later, 64);
    CHECK_INT(n, 64);
    CHECK_INT(flush_again(&k), TSR_EIO);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    kit_close(&k);
    served_stop(&s, SIGTERM);
    free(lost), free(later);
    served_end(&s);
}

/* Both of its connections, from this side. */
static int cut_connections(const char *path)
{
    int n = 0;
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_un peer = {0};
        socklen_t bytes = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &bytes) != 0) continue;
        if (peer.sun_family != AF_UNIX || strcmp(peer.sun_path, path) != 0) continue;
        n += shutdown(fd, SHUT_RDWR) == 0;
    }
    return n;
}

TEST(a_flush_tells_of_what_was_lost_before_the_client_connected_again)
{
    struct server_kit s;
    struct kit k;
    struct fake_tier_plan plan;
    fake_tier_plan_init(&plan);
    server_open_tiers(&s, NULL, &plan, 1);
    uint32_t *before = kit_tokens(3, 64), *lost = kit_tokens(4, 64);
    /* Not the client's. */
    fake_tier_fail(&plan, FAKE_PUT, 1, UINT32_MAX - 1, TSR_EIO);
    CHECK_INT(kit_store_segment(&s.k, before, 64), 64);
    tsri_manager_drain(s.k.cache);
    CHECK_INT(kit_evict_all(&s.k), 1);
    served_kit_open(&k, s.path, NULL);
    CHECK_INT(kit_store_segment(&k, lost, 64), 64);
    tsri_manager_drain(s.k.cache);
    CHECK_INT(kit_evict_all(&s.k), 1);
    fake_tier_fail(&plan, 0, 0, 0, 0);
    CHECK_INT(cut_connections(s.path), 2);
    CHECK_INT(flush_again(&k), TSR_EIO);
    CHECK_HAS(tsr_errmsg(), "at least 1 entries");
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    /* What was told is not told again by another connection. */
    CHECK_INT(cut_connections(s.path) > 0, 1);
    CHECK_INT(flush_again(&k), 0);
    kit_close(&k);
    CHECK(server_end(&s));
    fake_tier_plan_fini(&plan);
    free(before), free(lost);
}

TEST(one_that_does_not_want_us_says_so_at_open)
{
    struct server_kit s;
    struct tsr_cache *c;
    server_open(&s, NULL);
    struct tsr_config *cfg = kit_config((const char *const[]){"owner", "daemon", NULL});
    CHECK_INT(tsr_config_set(cfg, "server_socket", s.path), 0);
    CHECK_INT(tsr_config_set(cfg, "server_token", "guess"), 0);
    CHECK_INT(tsr_cache_open(&c, cfg), TSR_EPERM);
    CHECK_HAS(tsr_errmsg(), "unknown token");
    CHECK_INT(tsr_config_set(cfg, "server_token", ""), 0);
    CHECK_INT(tsr_config_set(cfg, "server_socket", "relative"), 0);
    CHECK_INT(tsr_cache_open(&c, cfg), TSR_EINVAL);
    tsr_config_close(cfg);
    CHECK(server_end(&s));
}

/* ---- processes and threads ---- */

TEST(a_forked_child_misses_and_does_not_disturb_its_parent)
{
    struct server_kit s;
    struct kit k;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(3, 64);
    struct tsr_prompt p = kit_prefix_prompt(tokens, 64);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), 64);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        bool fine = kit_find_prefix(&k, tokens, 64) == 0 &&
                    kit_store_prefix(&k, tokens, 64) == TSR_EFORK &&
                    tsr_client_release(k.client, 4) == 0;
        kit_close(&k);
        _exit(fine ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK_INT(kit_load_and_check(&k, &p), 64);
    kit_close(&k);
    free(tokens);
    CHECK(server_end(&s));
}

struct worker {
    pthread_t thread;
    struct kit *k;
    struct tsr_client *client; /* NULL: the kit's */
    uint64_t seed;
    bool fine;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    struct kit k = *w->k;
    if (w->client) k.client = w->client;
    w->fine = true;
    for (uint64_t i = 0; i < 20 && w->fine; i++) {
        uint32_t *tokens = kit_tokens(w->seed * 100 + i % 5, 96);
        struct tsr_prompt p = kit_prefix_prompt(tokens, 96);
        int n = kit_store_prefix(&k, tokens, 96);
        w->fine = n >= 0 || n == TSR_EFULL || n == TSR_EAGAIN;
        n = kit_load_and_check(&k, &p); /* stops the program at a wrong byte */
        w->fine = w->fine && n >= 0;
        free(tokens);
    }
    return NULL;
}

TEST(many_threads_use_one_connection_and_many)
{
    enum { N = 8 };
    struct server_kit s;
    struct kit k;
    struct worker w[N];
    server_open(&s, (const char *const[]){"host_size", "2M", NULL});
    served_kit_open(&k, s.path, (const char *const[]){"server_deadline", "20000", NULL});
    for (int i = 0; i < N; i++) {
        w[i] = (struct worker){
            .k = &k, .client = i % 2 ? kit_client(k.cache) : NULL, .seed = (uint64_t)i / 2 + 1};
        CHECK(pthread_create(&w[i].thread, NULL, work, &w[i]) == 0);
    }
    for (int i = 0; i < N; i++)
        pthread_join(w[i].thread, NULL);
    for (int i = 0; i < N; i++) {
        CHECK(w[i].fine);
        tsr_client_close(w[i].client);
    }
    kit_close(&k);
    CHECK(server_end(&s));
}

TEST(events_of_the_server_reach_its_clients)
{
    struct server_kit s;
    struct kit k;
    struct tsr_event events[8];
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    CHECK_INT(tsr_cache_events(k.cache, events, 8), 0); /* from here on */
    uint32_t *tokens = kit_tokens(3, 64);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), 64);
    CHECK_INT(tsr_cache_events(k.cache, events, 8), 4);
    CHECK_INT(events[0].kind, TSR_EVENT_STORED);
    CHECK_INT(events[0].n_tokens, 16);
    kit_close(&k);
    free(tokens);
    CHECK(server_end(&s));
}

/* ---- replies that no server of ours would send ---- */

struct lie {
    struct tsri_wire_space space; /* without fingerprint and sizes of rows: the client's */
    struct tsri_wire_match match;
    struct tsri_wire_lent lent;
    int32_t status;
    uint32_t n, n_prefix_tokens;
    const struct tsr_space *clients;
};

static void tell_lie(struct lying_server *s, struct tsri_reply *r)
{
    const struct lie *lie = s->arg;
    static const struct tsr_key keys[4];
    static const struct tsr_event events[4];
    static const uint32_t pages[4096];
    r->status = lie->status;
    r->n = lie->n;
    switch (r->type) {
    case TSRI_WIRE_SPACE_OPEN:
        r->status = 0;
        r->space = lie->space;
        r->space.n_layers = lie->clients->shape.n_layers;
        r->space.n_planes = lie->clients->shape.n_planes;
        memcpy(r->space.row_bytes, lie->clients->shape.row_bytes, sizeof r->space.row_bytes);
        memcpy(r->space.fingerprint, lie->clients->fingerprint, 16);
        break;
    case TSRI_WIRE_LOOKUP:
        r->n_spaces = 1;
        r->n_prefix_tokens = lie->n_prefix_tokens;
        r->matches = &lie->match;
        break;
    case TSRI_WIRE_RETRIEVE:
        r->lent = &lie->lent;
        r->n_pages = lie->lent.n_pages;
        r->pages = pages;
        break;
    case TSRI_WIRE_KEYS:
        r->keys = keys;
        break;
    case TSRI_WIRE_EVENTS:
        r->events = events;
        break;
    default:
        r->n = 0;
        break;
    }
}

#define LIE_TOKENS 64u

static struct lie truth(void)
{
    return (struct lie){.space = {.cell_tokens = 64, .page_bytes = 1 << 16},
                        .match = {.n_tokens = LIE_TOKENS,
                                  .kind = TSR_KIND_SEGMENT,
                                  .verified = 1,
                                  .entry_tokens = LIE_TOKENS},
                        .lent = {.entry_tokens = LIE_TOKENS, .n_pages = 1},
                        .status = LIE_TOKENS,
                        .n = 1};
}

/* What a load of the whole prompt makes of it: a number of tokens, or an error. */
static int hear(const struct lie *told)
{
    struct lie lie = *told;
    struct lying_server s = {.answer = tell_lie, .arg = &lie};
    struct kit k;
    lying_server_open(&s);
    served_kit_open(&k, s.path, NULL);
    lie.clients = k.space;
    uint32_t *tokens = kit_tokens(1, LIE_TOKENS);
    size_t bytes = LIE_TOKENS * tsr_space_token_bytes(k.space);
    uint8_t *kv = malloc(bytes);
    int n = tsr_text_load(k.client, k.space, tokens, LIE_TOKENS, kv, bytes);
    free(kv), free(tokens);
    kit_close(&k);
    lying_server_close(&s);
    return n;
}

TEST(pages_in_which_no_cell_fits_are_not_read)
{
    struct lie lie = truth();
    CHECK_INT(hear(&lie), LIE_TOKENS);
    lie.space.page_bytes = 64; /* its last page ends before the cell does */
    lie.lent.n_pages = 4;
    CHECK_INT(hear(&lie), TSR_ESPACE);
    lie.space.page_bytes = 1 << 16;
    lie.space.cell_tokens = 1u << 31; /* times the bytes of a row: 0 in 32 bits */
    CHECK_INT(hear(&lie), TSR_ESPACE);
}

TEST(matches_outside_the_prompt_are_refused)
{
    struct lie lie = truth();
    lie.match.prompt_offset = 1;
    CHECK_INT(hear(&lie), TSR_ECORRUPT);
    lie = truth();
    lie.match.n_tokens = 0;
    CHECK_INT(hear(&lie), TSR_ECORRUPT);
    lie = truth();
    lie.status = LIE_TOKENS + 1;
    CHECK_INT(hear(&lie), TSR_ECORRUPT);
    lie = truth();
    lie.n_prefix_tokens = LIE_TOKENS + 1;
    CHECK_INT(hear(&lie), TSR_ECORRUPT);
    lie = truth();
    lie.n = 0; /* found, but nothing said of where */
    CHECK(hear(&lie) <= 0);
    lie = truth();
    lie.match.n_tokens = 32; /* not all of the text */
    lie.status = 32;
    CHECK_INT(hear(&lie), 0);
}

TEST(no_more_keys_and_events_are_announced_than_were_sent)
{
    struct lie lie = truth();
    struct lying_server s = {.answer = tell_lie, .arg = &lie};
    struct kit k;
    lying_server_open(&s);
    served_kit_open(&k, s.path, NULL);
    lie.clients = k.space;
    lie.status = 1000;
    lie.n = 2;
    struct tsr_event events[8];
    CHECK_INT(tsr_cache_events(k.cache, events, 8), 2);
    lie.n = 4;
    CHECK_INT(tsr_cache_events(k.cache, events, 3), 3);
    lie.n = 0;
    CHECK_INT(tsr_cache_events(k.cache, events, 8), 0);
    struct tsr_stats stats = {.size = sizeof stats};
    char text[8] = "?";
    CHECK_INT(tsr_cache_stats(k.cache, &stats), 0);
    CHECK_INT(tsr_cache_stats_text(k.cache, "json", text, sizeof text), 0);
    CHECK_STR(text, "");
    lie.n = 4;
    uint32_t *tokens = kit_tokens(1, LIE_TOKENS);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, LIE_TOKENS);
    struct tsr_key keys[8];
    CHECK_INT(tsr_space_keys(k.space, &prompt, keys, 8), TSR_ECORRUPT);
    CHECK_INT(tsr_space_keys(k.space, &prompt, keys, 4), 1000); /* there may be more than fit */
    free(tokens);
    kit_close(&k);
    lying_server_close(&s);
}

int main(void)
{
    RUN(the_same_calls_give_the_same_answers);
    RUN(only_the_context_that_is_asked_for_is_found_through_a_server);
    RUN(mistakes_are_errors_as_they_are_in_process);
    RUN(separators_are_split_here);
    RUN(leases_are_the_clients_and_end_with_it);
    RUN(shared_memory_stays_while_it_is_held);
    RUN(without_a_server_everything_misses_at_once);
    RUN(a_server_that_comes_later_is_used_and_one_that_goes_is_not_missed);
    RUN(a_stopped_server_costs_one_deadline_and_is_used_again_when_it_goes_on);
    RUN(killed_it_comes_back_with_what_was_flushed);
    RUN(a_flush_fails_when_the_server_that_took_the_stores_is_gone);
    RUN(a_flush_fails_when_the_next_server_took_stores_too);
    RUN(a_flush_tells_of_what_was_lost_before_the_client_connected_again);
    RUN(one_that_does_not_want_us_says_so_at_open);
    RUN(a_forked_child_misses_and_does_not_disturb_its_parent);
    RUN(many_threads_use_one_connection_and_many);
    RUN(events_of_the_server_reach_its_clients);
    RUN(pages_in_which_no_cell_fits_are_not_read);
    RUN(matches_outside_the_prompt_are_refused);
    RUN(no_more_keys_and_events_are_announced_than_were_sent);
    return test_end();
}
