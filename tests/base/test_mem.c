/* Checked allocation, large regions, the fork guard, and the small helpers of base.h. */
#include "base/base.h"
#include "support/test.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* volatile: the compiler must not know that the size is absurd and warn of it. */
static volatile size_t huge = SIZE_MAX;

TEST(memory_comes_zeroed)
{
    uint8_t *p = tsri_alloc(1000, 3);
    CHECK(p != NULL);
    for (size_t i = 0; i < 3000; i++)
        CHECK_INT(p[i], 0);
    tsri_free(p);
    tsri_free(NULL);
}

TEST(a_product_that_overflows_is_refused_in_words)
{
    CHECK(tsri_alloc(huge / 2 + 1, 2) == NULL);
    CHECK_HAS(tsr_errmsg(), "out of memory");
    CHECK(tsri_alloc(huge, huge) == NULL);
}

TEST(nothing_may_be_allocated_and_freed)
{
    void *a = tsri_alloc(0, 8), *b = tsri_alloc(8, 0);
    CHECK(a && b);
    CHECK(a != b);
    tsri_free(a);
    tsri_free(b);
}

TEST(a_copied_string_is_equal_and_its_own)
{
    char text[] = "abc";
    char *copy = tsri_strdup(text);
    CHECK(copy != text);
    text[0] = 'x';
    CHECK_STR(copy, "abc");
    tsri_free(copy);
    copy = tsri_strdup("");
    CHECK_STR(copy, "");
    tsri_free(copy);
}

TEST(a_region_is_zeroed_aligned_and_writable_to_its_last_byte)
{
    struct tsri_region r;
    size_t bytes = ((size_t)5 << 20) + 1;
    CHECK_INT(tsri_region_init(&r, bytes), 0);
    CHECK(r.bytes >= bytes);
    CHECK_INT((uintptr_t)r.data % (size_t)sysconf(_SC_PAGESIZE), 0);
    for (size_t i = 0; i < r.bytes; i += 4096)
        CHECK_INT(r.data[i], 0);
    r.data[0] = 1;
    r.data[r.bytes - 1] = 2;
    CHECK_INT(r.data[0] + r.data[r.bytes - 1], 3);
    tsri_region_fini(&r);
    CHECK(r.data == NULL && r.bytes == 0);
    tsri_region_fini(&r);
}

/* Resident pages of this process, or -1. */
static long resident_pages(void)
{
    long total, resident = -1;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return -1;
    if (fscanf(f, "%ld %ld", &total, &resident) != 2) resident = -1;
    fclose(f);
    return resident;
}

TEST(a_region_costs_memory_only_where_it_is_touched)
{
    struct tsri_region r;
    long before = resident_pages();
    if (before < 0) SKIP("no /proc/self/statm");
    CHECK_INT(tsri_region_init(&r, (size_t)1 << 30), 0);
    long after = resident_pages();
    tsri_region_fini(&r);
    CHECK((after - before) * sysconf(_SC_PAGESIZE) < (8 << 20));
}

TEST(pages_that_are_taken_are_there_and_zeroed)
{
    struct tsri_region r;
    unsigned char there[256];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = sizeof there * page;
    CHECK_INT(tsri_region_init(&r, 2 * bytes), 0);
    r.data[page] = 7;
    errno = EXDEV;
    tsri_region_take(&r, bytes);
    CHECK_INT(errno, EXDEV);
    CHECK_INT(r.data[page], 7);
    CHECK_INT(mincore(r.data, bytes, there), 0);
    size_t n_there = 0;
    for (size_t i = 0; i < sizeof there; i++)
        n_there += there[i] & 1;
    tsri_region_take(&r, SIZE_MAX); /* all */
    tsri_region_take(&r, 0);
    for (size_t i = 2 * page; i < r.bytes; i += page)
        CHECK_INT(r.data[i], 0);
#ifdef MADV_POPULATE_WRITE
    bool known = madvise(r.data, page, MADV_POPULATE_WRITE) == 0;
#else
    bool known = false;
#endif
    tsri_region_fini(&r);
    if (!known) SKIP("this kernel gives memory on first touch only");
    CHECK_INT(n_there, sizeof there);
}

TEST(a_region_of_no_bytes_is_a_small_one)
{
    struct tsri_region r;
    CHECK_INT(tsri_region_init(&r, 0), 0);
    CHECK(r.bytes > 0);
    r.data[r.bytes - 1] = 1;
    tsri_region_fini(&r);
}

TEST(an_absurd_region_is_refused_and_leaves_nothing)
{
    struct tsri_region r = {.data = (uint8_t *)1, .bytes = 1};
    CHECK_INT(tsri_region_init(&r, huge), TSR_ENOMEM);
    CHECK(r.data == NULL && r.bytes == 0);
    CHECK_HAS(tsr_errmsg(), "reserve");
    /* Accepted by the first check, refused by the kernel: beyond any address space. */
    CHECK_INT(tsri_region_init(&r, huge / 4), TSR_ENOMEM);
    CHECK(r.data == NULL && r.bytes == 0);
    tsri_region_fini(&r);
}

/* The exit status of a child that runs fn. */
static int in_child(int (*fn)(void *), void *arg)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) _exit(fn(arg));
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int is_parent(void *arg)
{
    return tsri_fork_guard_parent(arg);
}

static int grandchild_is_parent(void *arg)
{
    return in_child(is_parent, arg);
}

static int own_guard_works(void *arg)
{
    struct tsri_fork_guard mine;
    tsri_fork_guard_fini(arg); /* closing an inherited handle is safe */
    if (tsri_fork_guard_init(&mine) != 0) return 2;
    int parent = tsri_fork_guard_parent(&mine);
    tsri_fork_guard_fini(&mine);
    return parent;
}

TEST(the_guard_knows_the_child_and_the_grandchild_from_the_parent)
{
    struct tsri_fork_guard g;
    CHECK_INT(tsri_fork_guard_init(&g), 0);
    CHECK(tsri_fork_guard_parent(&g));
    CHECK_INT(in_child(is_parent, &g), 0);
    CHECK_INT(in_child(grandchild_is_parent, &g), 0);
    CHECK(tsri_fork_guard_parent(&g));
    tsri_fork_guard_fini(&g);
    CHECK(g.page == NULL);
    tsri_fork_guard_fini(&g);
}

TEST(a_child_may_have_a_guard_of_its_own)
{
    struct tsri_fork_guard g;
    CHECK_INT(tsri_fork_guard_init(&g), 0);
    CHECK_INT(in_child(own_guard_works, &g), 1);
    CHECK(tsri_fork_guard_parent(&g));
    tsri_fork_guard_fini(&g);
}

TEST(align_up_and_pow2_up_round_up_and_keep_what_fits)
{
    CHECK_INT(tsri_align_up(0, 64), 0);
    CHECK_INT(tsri_align_up(1, 64), 64);
    CHECK_INT(tsri_align_up(64, 64), 64);
    CHECK_INT(tsri_align_up(65, 48), 96);
    CHECK_INT(tsri_pow2_up(0), 1);
    CHECK_INT(tsri_pow2_up(1), 1);
    CHECK_INT(tsri_pow2_up(2), 2);
    CHECK_INT(tsri_pow2_up(3), 4);
    CHECK_INT(tsri_pow2_up(1025), 2048);
    CHECK(tsri_pow2_up(((uint64_t)1 << 62) + 1) == (uint64_t)1 << 63);
}

TEST(the_clock_goes_on_and_counts_nanoseconds)
{
    uint64_t a = tsri_now_ns();
    struct timespec wait = {0, 2000000};
    nanosleep(&wait, NULL);
    uint64_t b = tsri_now_ns();
    CHECK(b - a >= 2000000);
    CHECK(b - a < 60000000000u);
}

TEST(a_copy_past_the_caches_moves_every_byte_and_no_other)
{
    enum { ROOM = 5000 };
    static uint8_t from[ROOM], to[ROOM], want[ROOM];
    uint64_t seed = 9;
    for (size_t i = 0; i < ROOM; i++)
        from[i] = (uint8_t)test_rand(&seed);
    for (size_t round = 0; round < 2000; round++) {
        size_t a = test_rand(&seed) % 130, b = test_rand(&seed) % 130;
        size_t n = test_rand(&seed) % (ROOM - 130);
        memset(to, 0xa5, ROOM);
        memset(want, 0xa5, ROOM);
        memcpy(want + b, from + a, n);
        tsri_copy_stream(to + b, from + a, n);
        CHECK(memcmp(to, want, ROOM) == 0);
    }
}

int main(void)
{
    RUN(memory_comes_zeroed);
    RUN(a_product_that_overflows_is_refused_in_words);
    RUN(nothing_may_be_allocated_and_freed);
    RUN(a_copied_string_is_equal_and_its_own);
    RUN(a_region_is_zeroed_aligned_and_writable_to_its_last_byte);
    RUN(pages_that_are_taken_are_there_and_zeroed);
    RUN(a_region_costs_memory_only_where_it_is_touched);
    RUN(a_region_of_no_bytes_is_a_small_one);
    RUN(an_absurd_region_is_refused_and_leaves_nothing);
    RUN(the_guard_knows_the_child_and_the_grandchild_from_the_parent);
    RUN(a_child_may_have_a_guard_of_its_own);
    RUN(align_up_and_pow2_up_round_up_and_keep_what_fits);
    RUN(the_clock_goes_on_and_counts_nanoseconds);
    RUN(a_copy_past_the_caches_moves_every_byte_and_no_other);
    return test_end();
}
