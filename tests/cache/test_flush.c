/* What a flush answers for: everything stored before it, whoever asked first. What could not be
 * written is tried again and makes every flush fail until it is safe; what is lost is told to every
 * thread; and 0 is true after a crash, whatever call of the disk failed and however full it was. */
#include "cache/manager.h"
#include "support/cache_kit.h"
#include "support/disk_kit.h"
#include "support/fake_tier.h"
#include "support/fault_io.h"
#include "support/full_fs.h"
#include "support/test.h"

#include <signal.h>
#include <sys/wait.h>

enum { N = 24, TOKENS = 30 };

static bool have_fs;

static int store_range(struct kit *k, uint64_t from, uint64_t to)
{
    int n = 0;
    for (uint64_t i = from; i < to; i++) {
        uint32_t *tokens = kit_tokens(i, TOKENS);
        n += kit_store_segment(k, tokens, TOKENS) == TOKENS;
        free(tokens);
    }
    return n;
}

static int load_range(struct kit *k, uint64_t from, uint64_t to)
{
    int n = 0;
    for (uint64_t i = from; i < to; i++) {
        struct tsr_range range;
        uint32_t *tokens = kit_tokens(i, TOKENS);
        struct tsr_prompt prompt = kit_segment_prompt(tokens, TOKENS, &range);
        n += kit_load_and_check(k, &prompt) == TOKENS;
        free(tokens);
    }
    return n;
}

static void *flush_in_thread(void *arg)
{
    static _Thread_local int results[2];
    struct kit *k = arg;
    results[0] = tsr_cache_flush(k->cache);
    results[1] = tsr_cache_flush(k->cache);
    return (void *)(intptr_t)(results[0] * 100 + results[1]);
}

/* Two flushes of another thread, the first one times 100. */
static int others_flushes(struct kit *k)
{
    pthread_t thread;
    void *result = NULL;
    CHECK_INT(pthread_create(&thread, NULL, flush_in_thread, k), 0);
    pthread_join(thread, &result);
    return (int)(intptr_t)result;
}

/* ---- a tier that fails ---- */

struct below {
    struct kit k;
    struct fake_tier_plan plan;
};

static void below_open(struct below *b)
{
    fake_tier_plan_init(&b->plan);
    kit_open_tiers(&b->k, NULL, &b->plan, 1);
}

static void below_end(struct below *b)
{
    CHECK(kit_end(&b->k));
    CHECK_INT(b->plan.mem.n_items, 0);
    fake_tier_plan_fini(&b->plan);
}

TEST(a_flush_fails_until_what_could_not_be_written_is_below)
{
    struct below b;
    below_open(&b);
    fake_tier_fail(&b.plan, FAKE_PUT, 1, UINT32_MAX - 1, TSR_EIO);
    CHECK_INT(store_range(&b.k, 0, N), N);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(tsr_cache_flush(b.k.cache), TSR_EIO);
        CHECK_HAS(tsr_errmsg(), "24 entries");
    }
    CHECK_INT(others_flushes(&b.k), 101 * TSR_EIO);
    CHECK_INT(b.plan.mem.n_items, 0);
    fake_tier_fail(&b.plan, 0, 0, 0, 0);
    CHECK_INT(others_flushes(&b.k), 0);
    CHECK_INT(b.plan.mem.n_items, N);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(kit_evict_all(&b.k), N);
    CHECK_INT(load_range(&b.k, 0, N), N);
    below_end(&b);
}

TEST(a_flush_tries_again_what_failed_before)
{
    struct below b;
    below_open(&b);
    fake_tier_fail(&b.plan, FAKE_PUT, 1, 0, TSR_ETIME);
    CHECK_INT(store_range(&b.k, 0, 1), 1);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plan.mem.n_items, 1);
    below_end(&b);
}

TEST(what_left_memory_before_it_was_below_is_told_to_every_thread_once)
{
    struct below b;
    below_open(&b);
    fake_tier_fail(&b.plan, FAKE_PUT, 1, UINT32_MAX - 1, TSR_EIO);
    CHECK_INT(store_range(&b.k, 0, 5), 5);
    tsri_manager_drain(b.k.cache);
    CHECK_INT(kit_evict_all(&b.k), 5);
    fake_tier_fail(&b.plan, 0, 0, 0, 0);
    CHECK_INT(load_range(&b.k, 0, 5), 0);
    CHECK_INT(tsr_cache_flush(b.k.cache), TSR_EIO);
    CHECK_HAS(tsr_errmsg(), "5 entries were lost");
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(others_flushes(&b.k), 100 * TSR_EIO);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    /* Stored again they are as good as new. */
    CHECK_INT(store_range(&b.k, 0, 5), 5);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plan.mem.n_items, 5);
    below_end(&b);
}

static void *store_and_flush(void *arg)
{
    struct kit *k = arg;
    return (void *)(intptr_t)(store_range(k, 100, 101) == 1 && tsr_cache_flush(k->cache) == 0);
}

/* Loses five entries that this thread stored. */
static void lose_five(struct below *b)
{
    below_open(b);
    fake_tier_fail(&b->plan, FAKE_PUT, 1, UINT32_MAX - 1, TSR_EIO);
    CHECK_INT(store_range(&b->k, 0, 5), 5);
    tsri_manager_drain(b->k.cache);
    CHECK_INT(kit_evict_all(&b->k), 5);
    fake_tier_fail(&b->plan, 0, 0, 0, 0);
}

static bool another_stores_and_flushes(struct kit *k)
{
    pthread_t thread;
    void *good = NULL;
    CHECK_INT(pthread_create(&thread, NULL, store_and_flush, k), 0);
    pthread_join(thread, &good);
    return good != NULL;
}

TEST(a_thread_that_comes_later_does_not_answer_for_what_others_were_told)
{
    struct below b;
    lose_five(&b);
    CHECK_INT(tsr_cache_flush(b.k.cache), TSR_EIO);
    CHECK(another_stores_and_flushes(&b.k));
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    below_end(&b);
}

TEST(what_was_lost_and_told_to_no_thread_is_told_to_one_that_comes_later)
{
    struct below b;
    lose_five(&b);
    CHECK(!another_stores_and_flushes(&b.k));
    CHECK_INT(tsr_cache_flush(b.k.cache), TSR_EIO); /* these were its own */
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    below_end(&b);
}

/* A thread of the cache stores it. */
static int start_store(struct kit *k, uint64_t i)
{
    uint32_t *tokens = kit_tokens(i, TOKENS);
    struct tsr_store_desc s = {.size = sizeof s,
                               .space = k->space,
                               .kind = TSR_KIND_SEGMENT,
                               .tokens = tokens,
                               .n_tokens = TOKENS};
    s.view = kit_store_view(&s);
    struct tsr_op *op;
    CHECK_INT(tsr_client_store_start(&op, k->client, &s, NULL, NULL), 0);
    int n = tsr_op_wait(op, -1);
    tsr_op_close(op);
    free(s.view.data);
    free(tokens);
    return n == TOKENS;
}

/* Whatever else it stores in between, by whatever call. */
TEST(a_thread_is_told_that_its_own_stores_were_lost_after_it_stored_again)
{
    for (int way = 0; way < 2; way++) {
        struct below b;
        below_open(&b);
        fake_tier_fail(&b.plan, FAKE_PUT, 1, UINT32_MAX - 1, TSR_EIO);
        CHECK_INT(way ? start_store(&b.k, 0) : store_range(&b.k, 0, 1), 1);
        tsri_manager_drain(b.k.cache);
        CHECK_INT(kit_evict_all(&b.k), 1);
        fake_tier_fail(&b.plan, 0, 0, 0, 0);
        CHECK_INT(store_range(&b.k, 1, 3), 2);
        CHECK_INT(tsr_cache_flush(b.k.cache), TSR_EIO);
        CHECK_HAS(tsr_errmsg(), "1 entries were lost");
        CHECK_INT(tsr_cache_flush(b.k.cache), 0);
        below_end(&b);
    }
}

TEST(what_is_cleared_is_owed_no_longer)
{
    struct below b;
    below_open(&b);
    fake_tier_fail(&b.plan, FAKE_PUT, 1, UINT32_MAX - 1, TSR_EIO);
    CHECK_INT(store_range(&b.k, 0, 5), 5);
    CHECK_INT(tsr_cache_flush(b.k.cache), TSR_EIO);
    CHECK_INT(tsr_cache_clear(b.k.cache, NULL), 5);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    below_end(&b);
}

TEST(what_is_cleared_from_a_tier_is_owed_to_it_no_longer)
{
    struct below b;
    below_open(&b);
    fake_tier_fail(&b.plan, FAKE_PUT, 1, UINT32_MAX - 1, TSR_EIO);
    CHECK_INT(store_range(&b.k, 0, 5), 5);
    CHECK_INT(tsr_cache_flush(b.k.cache), TSR_EIO);
    fake_tier_fail(&b.plan, 0, 0, 0, 0);
    struct tsr_clear_desc below = {.size = sizeof below, .tier = 1};
    CHECK_INT(tsr_cache_clear(b.k.cache, &below), 0); /* it had none of them */
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plan.mem.n_items, 0);
    below_end(&b);
}

/* More than may wait at once. */
TEST(much_that_is_owed_is_written_in_rounds)
{
    struct below b;
    fake_tier_plan_init(&b.plan);
    kit_open_tiers(&b.k, (const char *const[]){"io_queue_max", "4", NULL}, &b.plan, 1);
    fake_tier_fail(&b.plan, FAKE_PUT, 1, UINT32_MAX - 1, TSR_EIO);
    for (uint64_t i = 0; i < N; i++) {
        CHECK_INT(store_range(&b.k, i, i + 1), 1);
        tsri_manager_drain(b.k.cache);
    }
    uint64_t n_puts = b.plan.n_puts;
    CHECK_INT(tsr_cache_flush(b.k.cache), TSR_EIO);
    CHECK(b.plan.n_puts - n_puts <= 4); /* a round that brings nothing is the last */
    fake_tier_fail(&b.plan, 0, 0, 0, 0);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plan.mem.n_items, N);
    below_end(&b);
}

/* ---- a disk that fails ---- */

struct on_disk {
    struct kit k;
    struct tmpdir dir;
    struct fault_io faults;
    struct tsri_disk_setup setup;
    struct tsr_config *cfg;
};

static void disk_open(struct on_disk *d)
{
    d->setup = (struct tsri_disk_setup){.path = d->dir.path,
                                        .segment_bytes = 128 << 10,
                                        .mode = TSRI_AIO_INLINE,
                                        .buffered = true,
                                        .io = &d->faults.io};
    d->cfg = kit_config(NULL);
    CHECK_INT(tsr_tier_attach(d->cfg, &tsri_tier_disk, &d->setup), 0);
    kit_open_config(&d->k, d->cfg);
}

static void disk_begin(struct on_disk *d)
{
    tmpdir_init_fast(&d->dir);
    fault_io_init(&d->faults);
    disk_open(d);
}

/* As a crash would: what is not on disk now never comes there. */
static void disk_crash(struct on_disk *d)
{
    ((struct tsri_disk *)d->k.cache->manager->lower[1].tier)->read_only = true;
    kit_close(&d->k);
    tsr_config_close(d->cfg);
}

static void disk_end(struct on_disk *d)
{
    disk_crash(d);
    tmpdir_fini(&d->dir);
}

TEST(with_every_sync_failing_no_flush_succeeds)
{
    struct on_disk d;
    disk_begin(&d);
    CHECK_INT(store_range(&d.k, 0, 1), 1);
    CHECK_INT(tsr_cache_flush(d.k.cache), 0);
    CHECK_INT(store_range(&d.k, 1, 3), 2); /* into a segment that is open */
    tsri_manager_drain(d.k.cache);
    fault_io_set(&d.faults, FAULT_SYNC, 1, UINT32_MAX - 1, EIO);
    CHECK_INT(store_range(&d.k, 3, N), N - 3);
    for (int i = 0; i < 3; i++)
        CHECK(tsr_cache_flush(d.k.cache) < 0);
    CHECK(others_flushes(&d.k) <= 101 * TSR_EIO);
    fault_io_set(&d.faults, 0, 0, 0, 0);
    CHECK_INT(tsr_cache_flush(d.k.cache), 0);
    disk_crash(&d);
    disk_open(&d);
    CHECK_INT(load_range(&d.k, 0, N), N);
    disk_end(&d);
}

/* Memory gave them up because the disk had them, and the disk lets go of them. */
TEST(what_only_a_failed_sync_had_is_told_as_lost)
{
    struct on_disk d;
    disk_begin(&d);
    CHECK_INT(store_range(&d.k, 0, 5), 5);
    tsri_manager_drain(d.k.cache);
    CHECK_INT(kit_evict_all(&d.k), 5);
    CHECK_INT(store_range(&d.k, 5, 8), 3);
    tsri_manager_drain(d.k.cache);
    fault_io_set(&d.faults, FAULT_SYNC, 1, UINT32_MAX - 1, EIO);
    CHECK(tsr_cache_flush(d.k.cache) < 0);
    fault_io_set(&d.faults, 0, 0, 0, 0);
    CHECK_INT(others_flushes(&d.k), 100 * TSR_EIO);
    CHECK_INT(tsr_cache_flush(d.k.cache), 0);
    CHECK_INT(kit_stats(&d.k).tier_entries[1], 3);
    disk_crash(&d);
    disk_open(&d);
    CHECK_INT(load_range(&d.k, 0, 5), 0);
    CHECK_INT(load_range(&d.k, 5, 8), 3);
    disk_end(&d);
}

/* Whatever call fails: a flush that says 0 means it, and after an error the next one on a healthy
 * disk does, since everything is still in memory. Returns how many calls the run made. */
static uint32_t run_with_fault(uint32_t nth, uint32_t again, int error)
{
    struct on_disk d;
    disk_begin(&d);
    CHECK_INT(store_range(&d.k, 0, 4), 4);
    CHECK_INT(tsr_cache_flush(d.k.cache), 0);
    fault_io_set(&d.faults, FAULT_ALL & ~(unsigned)FAULT_READ, nth, again, error);
    int first = 0, acked = 4;
    for (int upto = 8; upto <= 16; upto += 4) {
        CHECK_INT(store_range(&d.k, (uint64_t)upto - 4, (uint64_t)upto), 4);
        first = tsr_cache_flush(d.k.cache);
        if (first == 0) acked = upto;
    }
    uint32_t n_calls = atomic_load(&d.faults.n_calls);
    bool heals = nth % 2;
    fault_io_set(&d.faults, 0, 0, 0, 0);
    if (heals) CHECK_INT(tsr_cache_flush(d.k.cache), 0);
    if (heals) acked = 16;
    disk_crash(&d);
    disk_open(&d);
    CHECK_INT(load_range(&d.k, 0, (uint64_t)acked), acked);
    disk_end(&d);
    return n_calls;
}

TEST(whatever_call_of_the_disk_fails_a_flush_that_succeeds_is_true)
{
    const int errors[] = {EIO, ENOSPC, EDQUOT, EROFS};
    uint32_t n = run_with_fault(0, 0, 0);
    CHECK(n > 10 && n < 300);
    for (uint32_t nth = 1; nth <= n; nth++)
        for (uint32_t again = 0; again <= 2; again++)
            run_with_fault(nth, again == 2 ? UINT32_MAX - nth - 1 : again, errors[nth % 4]);
}

/* ---- a disk that is full ---- */

static const char *const full_options[] = {
    "host_size", "8M",           "host_page_size", "16K", "disk_segment_size", "1M", "disk_size",
    "64M",       "io_queue_max", "4096",           NULL};

static void full_open(struct kit *k, const char *path)
{
    struct tsr_config *cfg = kit_config(full_options);
    CHECK_INT(tsr_config_set(cfg, "disk_path", path), 0);
    kit_open_config(k, cfg);
    tsr_config_close(cfg);
}

/* In a process of its own, which ends by kill -9: what it acknowledged must be there. */
static int life(const char *path)
{
    struct kit k;
    full_open(&k, path);
    if (store_range(&k, 0, 60) != 60 || tsr_cache_flush(k.cache) != 0) return 1;
    if (store_range(&k, 1000, 1400) != 400) return 2;
    if (tsr_cache_flush(k.cache) == 0 || tsr_cache_flush(k.cache) == 0) return 3;
    if (!strstr(tsr_errmsg(), "No space left")) return 8;
    if (load_range(&k, 1000, 1400) != 400) return 4;
    if (!full_fs_resize(path, 64 << 10)) return 5;
    if (tsr_cache_flush(k.cache) != 0) return 6;
    raise(SIGKILL);
    return 7;
}

TEST(a_full_file_system_costs_nothing_that_was_acknowledged_before_or_after)
{
    if (!have_fs) SKIP(FULL_FS_REFUSED);
    struct tmpdir dir;
    tmpdir_init(&dir);
    CHECK(full_fs_mount(dir.path, 4 << 10));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) _exit(life(dir.path));
    int status = 0;
    CHECK_INT(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status)) CHECK_INT(WEXITSTATUS(status), 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    struct kit k;
    full_open(&k, dir.path);
    CHECK_INT(load_range(&k, 0, 60), 60);
    CHECK_INT(load_range(&k, 1000, 1400), 400);
    kit_close(&k);
    full_fs_umount(dir.path);
    tmpdir_fini(&dir);
}

int main(void)
{
    have_fs = full_fs_enter();
    RUN(a_flush_fails_until_what_could_not_be_written_is_below);
    RUN(a_flush_tries_again_what_failed_before);
    RUN(what_left_memory_before_it_was_below_is_told_to_every_thread_once);
    RUN(a_thread_that_comes_later_does_not_answer_for_what_others_were_told);
    RUN(what_was_lost_and_told_to_no_thread_is_told_to_one_that_comes_later);
    RUN(a_thread_is_told_that_its_own_stores_were_lost_after_it_stored_again);
    RUN(what_is_cleared_is_owed_no_longer);
    RUN(what_is_cleared_from_a_tier_is_owed_to_it_no_longer);
    RUN(much_that_is_owed_is_written_in_rounds);
    RUN(with_every_sync_failing_no_flush_succeeds);
    RUN(what_only_a_failed_sync_had_is_told_as_lost);
    RUN(whatever_call_of_the_disk_fails_a_flush_that_succeeds_is_true);
    RUN(a_full_file_system_costs_nothing_that_was_acknowledged_before_or_after);
    return test_end();
}
