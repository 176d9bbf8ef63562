/* The disk tier as a whole: who may open it, what it leaves on disk, how much. */
#include "config/config.h"
#include "support/disk_kit.h"
#include "support/test.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

static const struct kv_shape small = {100, 64, 3, 2, {48, 32}, 10, 0};
static const struct kv_shape large = {256, 64, 4, 2, {256, 256}, 0, 0}; /* 516 KiB */

static struct disk_kit kit;

TEST(files_are_for_the_owner_alone)
{
    char path[600];
    snprintf(path, sizeof path, "%s/a/b", kit.dir.path);
    kit.setup.path = path;
    umask(0);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    disk_kit_close(&kit);
    struct stat st;
    CHECK_INT(stat(path, &st), 0);
    CHECK_INT(st.st_mode & 0777, 0700);
    snprintf(path, sizeof path, "%s/a", kit.dir.path);
    CHECK_INT(stat(path, &st), 0);
    CHECK_INT(st.st_mode & 0777, 0700);
    const char *const names[] = {"lock", "checkpoint", "0000000000000001.seg"};
    for (size_t i = 0; i < TSRI_COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/a/b/%s", kit.dir.path, names[i]);
        CHECK_INT(stat(path, &st), 0);
        CHECK_INT(st.st_mode & 0777, 0600);
    }
}

TEST(a_second_writer_is_refused_and_told_who_is_first)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    struct disk_kit other = kit;
    other.tier = NULL;
    CHECK_INT(disk_kit_open(&other), TSR_EBUSY);
    char pid[16];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    CHECK_HAS(tsr_errmsg(), pid);
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&other), 0);
    disk_kit_close(&other);
}

static const char *at(const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", kit.dir.path, name);
    return path;
}

TEST(a_second_writer_is_refused_when_the_lock_was_removed_or_replaced)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    struct disk_kit other = kit;
    other.tier = NULL;
    CHECK_INT(unlink(at("lock")), 0);
    CHECK_INT(disk_kit_open(&other), TSR_EBUSY);
    /* The failed one has made the file again: it names nobody. */
    CHECK_INT(disk_kit_open(&other), TSR_EBUSY);
    CHECK(disk_kit_spill(at("lock"), "\33[31m77", 7));
    CHECK_INT(disk_kit_open(&other), TSR_EBUSY);
    CHECK(strchr(tsr_errmsg(), '\33') == NULL);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&other), 0);
    CHECK_INT(kv_tier_get(other.tier, &small, 1, 0), 0);
    disk_kit_close(&other);
}

/* As an older version does it. */
TEST(a_writer_that_locks_only_the_file_is_respected)
{
    int fd = open(at("lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK_INT(flock(fd, LOCK_EX | LOCK_NB), 0);
    CHECK_INT(disk_kit_open(&kit), TSR_EBUSY);
    close(fd);
    CHECK_INT(disk_kit_open(&kit), 0);
}

TEST(a_lock_that_is_no_file_of_ours_is_refused_and_not_written_to)
{
    CHECK(disk_kit_spill(at("victim"), "precious", 8));
    CHECK_INT(symlink("victim", at("lock")), 0);
    CHECK_INT(disk_kit_open(&kit), TSR_EIO);
    CHECK_INT(unlink(at("lock")), 0);
    CHECK_INT(mkfifo(at("lock"), 0600), 0);
    CHECK_INT(disk_kit_open(&kit), TSR_EPERM);
    CHECK_INT(unlink(at("lock")), 0);
    /* A second name of a file is locked, and keeps its content. */
    char lock[600];
    snprintf(lock, sizeof lock, "%s", at("lock"));
    CHECK_INT(link(at("victim"), lock), 0);
    CHECK_INT(disk_kit_open(&kit), 0);
    size_t bytes;
    uint8_t *text = disk_kit_slurp(at("victim"), &bytes);
    CHECK(text && bytes == 8 && memcmp(text, "precious", 8) == 0);
    free(text);
}

TEST(files_of_another_user_are_left_alone)
{
    if (geteuid() != 0) SKIP("only root can give files away");
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    disk_kit_close(&kit);
    CHECK_INT(chown(at("checkpoint"), 12345, 12345), 0);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(disk_kit_stats(&kit).errors, 1);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), 0);
    disk_kit_crash(&kit);
    CHECK_INT(chown(at("0000000000000001.seg"), 12345, 12345), 0);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(disk_kit_stats(&kit).errors, 2);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), TSR_ENOENT);
    disk_kit_crash(&kit);
    CHECK_INT(chown(at("lock"), 12345, 12345), 0);
    CHECK_INT(disk_kit_open(&kit), TSR_EPERM);
    CHECK_HAS(tsr_errmsg(), "another user");
}

TEST(a_reader_sees_the_past_and_changes_nothing)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 2), 0);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    struct disk_kit reader = kit;
    reader.tier = NULL;
    reader.read_only = true;
    CHECK_INT(disk_kit_open(&reader), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 3), 0);
    CHECK_INT(kv_tier_drop(kit.tier, &small, 1), 1);
    CHECK_INT(tsri_tier_flush(kit.tier), 0);
    CHECK_INT(kv_tier_get(reader.tier, &small, 1, 0), 0);
    CHECK_INT(kv_tier_get(reader.tier, &small, 2, 0), 0);
    CHECK_INT(kv_tier_get(reader.tier, &small, 3, 0), TSR_ENOENT);
    CHECK_INT(kv_tier_put(reader.tier, &small, 4), TSR_EPERM);
    CHECK_INT(kv_tier_drop(reader.tier, &small, 2), 1);
    CHECK_INT(kv_tier_get(reader.tier, &small, 2, 0), TSR_ENOENT);
    CHECK_INT(tsri_tier_flush(reader.tier), 0);
    disk_kit_close(&reader);
    CHECK_INT(kv_tier_get(kit.tier, &small, 2, 0), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 3, 0), 0);
}

TEST(another_process_reads_while_the_owner_compacts)
{
    kit.setup.bytes_max = 16 << 20;
    CHECK_INT(disk_kit_open(&kit), 0);
    int told[2];
    CHECK_INT(pipe(told), 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int wrong = 0;
        struct disk_kit reader = kit;
        reader.read_only = true;
        char byte;
        while (read(told[0], &byte, 1) == 1 && byte != 'q') {
            if (disk_kit_open(&reader) != 0) _exit(2);
            for (uint64_t i = 0; i < 40; i++) {
                int r = kv_tier_get(reader.tier, &small, i, 0);
                wrong += r == KIT_WRONG;
            }
            disk_kit_close(&reader);
        }
        _exit(wrong ? 1 : 0);
    }
    for (uint64_t i = 0; i < 300; i++) {
        int r = kv_tier_put(kit.tier, &small, i % 40);
        CHECK_INT(r, 0);
        if (i % 3 == 0) CHECK(kv_tier_drop(kit.tier, &small, (i + 20) % 40) >= 0);
        if (i % 10 == 0) {
            CHECK_INT(tsri_tier_flush(kit.tier), 0);
            CHECK_INT(write(told[1], "x", 1), 1);
        }
    }
    CHECK_INT(write(told[1], "q", 1), 1);
    int status;
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), 0);
    close(told[0]);
    close(told[1]);
}

static void check_fork(enum tsri_aio_mode mode)
{
    kit.setup.mode = mode;
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(60);
        bool right = kv_tier_get(kit.tier, &small, 1, 0) == TSR_EFORK &&
                     kv_tier_put(kit.tier, &small, 2) == TSR_EFORK &&
                     kv_tier_drop(kit.tier, &small, 1) == TSR_EFORK &&
                     tsri_tier_flush(kit.tier) == TSR_EFORK;
        disk_kit_close(&kit);
        _exit(right ? 0 : 1);
    }
    int status;
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 3), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), 0);
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 3, 0), 0);
    disk_kit_close(&kit);
}

TEST(after_fork_the_child_is_refused_and_the_parent_goes_on)
{
    check_fork(TSRI_AIO_AUTO);
    check_fork(TSRI_AIO_THREADS);
    kit.setup.mode = TSRI_AIO_AUTO;
    CHECK_INT(disk_kit_open(&kit), 0);
}

TEST(a_directory_that_cannot_be_is_refused_clearly)
{
    kit.setup.path = "";
    CHECK_INT(disk_kit_open(&kit), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "disk_path");
    char path[600];
    snprintf(path, sizeof path, "%s/file", kit.dir.path);
    CHECK(disk_kit_spill(path, "x", 1));
    kit.setup.path = path;
    CHECK_INT(disk_kit_open(&kit), TSR_EIO);
    CHECK_HAS(tsr_errmsg(), "file");
    kit.read_only = true;
    snprintf(path, sizeof path, "%s/absent", kit.dir.path);
    CHECK_INT(disk_kit_open(&kit), TSR_EIO);
}

static char last_line[512];

static void keep_line(void *arg, int level, const char *text)
{
    (void)arg;
    (void)level;
    snprintf(last_line, sizeof last_line, "%s", text);
}

TEST(the_log_says_how_it_reads_and_writes)
{
    tsr_log_set(keep_line, NULL, TSR_LOG_INFO);
    CHECK_INT(disk_kit_open(&kit), 0);
    tsr_log_set(NULL, NULL, 0);
    CHECK_HAS(last_line, "0 entries in");
    CHECK_HAS(last_line, tsri_disk_mode(kit.tier));
}

TEST(a_configuration_opens_it)
{
    struct tsr_config *cfg;
    CHECK_INT(tsr_config_open(&cfg), 0);
    CHECK_INT(tsr_config_set(cfg, "disk_path", kit.dir.path), 0);
    CHECK_INT(tsr_config_set(cfg, "disk_size", "64M"), 0);
    CHECK_INT(tsr_config_set(cfg, "disk_io", "threads"), 0);
    CHECK_INT(tsr_config_set(cfg, "disk_direct", "false"), 0);
    struct tsr_tier_desc env = {.size = sizeof env, .config = cfg, .n_threads = 2};
    CHECK_INT(tsri_tier_open(&kit.tier, &tsri_tier_disk, &env), 0);
    tsr_config_close(cfg);
    CHECK_STR(tsri_disk_mode(kit.tier), "threads, buffered");
    CHECK_INT(disk_kit_stats(&kit).bytes_max, 64 << 20);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), 0);
}

static uint64_t bytes_on_disk(void)
{
    char path[600];
    uint64_t bytes = 0;
    struct stat st;
    for (int i = 0; disk_kit_path(&kit, ".seg", i, path, sizeof path); i++)
        if (stat(path, &st) == 0) bytes += (uint64_t)st.st_blocks * 512;
    return bytes;
}

TEST(the_size_limit_holds_and_dropping_makes_room)
{
    kit.setup.bytes_max = 8 << 20;
    CHECK_INT(disk_kit_open(&kit), 0);
    uint64_t i = 0;
    while (kv_tier_put(kit.tier, &large, i) == 0 && i < 100)
        i++;
    CHECK(i >= 9 && i < 16);
    CHECK_INT(kv_tier_put(kit.tier, &large, i), TSR_EFULL);
    CHECK(bytes_on_disk() <= kit.setup.bytes_max);
    for (uint64_t k = 0; k < i; k++)
        CHECK_INT(kv_tier_get(kit.tier, &large, k, 0), 0);
    /* A cache that drops its oldest when it is told so. */
    for (uint64_t n = i; n < i + 60; n++) {
        int r;
        for (uint64_t oldest = n - i; (r = kv_tier_put(kit.tier, &large, n)) == TSR_EFULL; oldest++)
            CHECK(kv_tier_drop(kit.tier, &large, oldest) >= 0 && oldest < n);
        CHECK_INT(r, 0);
        CHECK(bytes_on_disk() <= kit.setup.bytes_max);
        CHECK_INT(kv_tier_get(kit.tier, &large, n, 0), 0);
    }
}

TEST(what_is_larger_than_the_store_is_refused)
{
    kit.setup.bytes_max = 1 << 20;
    CHECK_INT(disk_kit_open(&kit), 0);
    const struct kv_shape huge = {2000, 64, 4, 2, {256, 256}, 0, 0};
    CHECK_INT(kv_tier_put(kit.tier, &huge, 1), TSR_ERANGE);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
}

TEST(an_entry_larger_than_a_segment_has_one_of_its_own)
{
    kit.setup.segment_bytes = 128 << 10;
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    CHECK_INT(kv_tier_put(kit.tier, &large, 2), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 3), 0);
    disk_kit_close(&kit);
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), 0);
    CHECK_INT(kv_tier_get(kit.tier, &large, 2, 0), 0);
    CHECK_INT(kv_tier_get(kit.tier, &small, 3, 0), 0);
}

TEST(what_moves_is_counted)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &large, 1), 0);
    struct tsr_tier_stats s = disk_kit_stats(&kit);
    CHECK_INT(s.entries, 1);
    CHECK_INT(s.written_bytes, disk_kit_record_bytes(&large));
    uint64_t before = s.read_bytes;
    CHECK_INT(kv_tier_get(kit.tier, &large, 1, 0), 0);
    s = disk_kit_stats(&kit);
    CHECK_INT(s.read_bytes - before, disk_kit_record_bytes(&large));
    CHECK_INT(s.errors, 0);
}

#define RUN_KIT(promise) \
    do { \
        disk_kit_init(&kit); \
        RUN(promise); \
        disk_kit_fini(&kit); \
    } while (0)

int main(void)
{
    RUN_KIT(files_are_for_the_owner_alone);
    RUN_KIT(a_second_writer_is_refused_and_told_who_is_first);
    RUN_KIT(a_second_writer_is_refused_when_the_lock_was_removed_or_replaced);
    RUN_KIT(a_writer_that_locks_only_the_file_is_respected);
    RUN_KIT(a_lock_that_is_no_file_of_ours_is_refused_and_not_written_to);
    RUN_KIT(files_of_another_user_are_left_alone);
    RUN_KIT(a_reader_sees_the_past_and_changes_nothing);
    RUN_KIT(another_process_reads_while_the_owner_compacts);
    RUN_KIT(after_fork_the_child_is_refused_and_the_parent_goes_on);
    RUN_KIT(a_directory_that_cannot_be_is_refused_clearly);
    RUN_KIT(the_log_says_how_it_reads_and_writes);
    RUN_KIT(a_configuration_opens_it);
    RUN_KIT(the_size_limit_holds_and_dropping_makes_room);
    RUN_KIT(what_is_larger_than_the_store_is_refused);
    RUN_KIT(an_entry_larger_than_a_segment_has_one_of_its_own);
    RUN_KIT(what_moves_is_counted);
    return test_end();
}
