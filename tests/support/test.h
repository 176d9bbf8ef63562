/* test.h - the whole test framework. A test file lists TEST(name) functions, whose names are
 * promises, and RUNs them from main; exit 0 passed, 1 failed, 77 skipped. tests/run.sh counts. */
#ifndef TSRI_TEST_H
#define TSRI_TEST_H

#include "support/sandbox.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <unistd.h>

static int test_n_passed, test_n_failed, test_n_skipped;
static jmp_buf test_stop;

/* Which sanitizer this was built with; gcc and clang each say it in their own way. Each slows
 * everything down tenfold or more: tests of many rounds do with fewer there. */
#if defined(__SANITIZE_THREAD__)
#define TEST_TSAN 1
#elif defined(__SANITIZE_ADDRESS__)
#define TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TEST_TSAN 1
#elif __has_feature(address_sanitizer)
#define TEST_ASAN 1
#endif
#endif
#ifndef TEST_TSAN
#define TEST_TSAN 0
#endif
#ifndef TEST_ASAN
#define TEST_ASAN 0
#endif
#define TEST_SANITIZED (TEST_TSAN || TEST_ASAN)

#define TEST(name) static void test_##name(void)

#define TEST_STOP(code) longjmp(test_stop, code)
/* 1, or 2 where the machine refuses what the test is about. */
static inline int test_failed(void)
{
    if (!strstr(tsr_errmsg(), "memfd") || !sandbox_refuses_memfd()) return 1;
    printf("    skipped: " SANDBOX_NO_MEMFD "\n");
    return 2;
}
/* Fails this test and goes on with the next. Only on the thread that RUNs. */
#define CHECK(x) \
    do { \
        if (!(x)) { \
            printf("    %s:%d: CHECK(%s)\n", __FILE__, __LINE__, #x); \
            TEST_STOP(test_failed()); \
        } \
    } while (0)
#define CHECK_INT(a, b) \
    do { \
        long long check_a = (long long)(a), check_b = (long long)(b); \
        if (check_a != check_b) { \
            printf("    %s:%d: %s is %lld, not %s = %lld\n", __FILE__, __LINE__, #a, check_a, #b, \
                   check_b); \
            TEST_STOP(test_failed()); \
        } \
    } while (0)
#define CHECK_STR(a, b) \
    do { \
        const char *check_a = (a), *check_b = (b); \
        if (!check_a || strcmp(check_a, check_b) != 0) { \
            printf("    %s:%d: %s is \"%s\", not \"%s\"\n", __FILE__, __LINE__, #a, \
                   check_a ? check_a : "(null)", check_b); \
            TEST_STOP(test_failed()); \
        } \
    } while (0)
/* The text holds the part. */
#define CHECK_HAS(text, part) \
    do { \
        const char *check_t = (text), *check_p = (part); \
        if (!check_t || !strstr(check_t, check_p)) { \
            printf("    %s:%d: \"%s\" does not hold \"%s\"\n", __FILE__, __LINE__, \
                   check_t ? check_t : "(null)", check_p); \
            TEST_STOP(test_failed()); \
        } \
    } while (0)
/* Waits until it is so; fails this test after a minute. Only on the thread that RUNs. */
#define WAIT_FOR(x) \
    do { \
        for (int wait_ms = 0; !(x); wait_ms++) { \
            if (wait_ms == 60000) { \
                printf("    %s:%d: WAIT_FOR(%s)\n", __FILE__, __LINE__, #x); \
                TEST_STOP(test_failed()); \
            } \
            usleep(1000); \
        } \
    } while (0)
#define SKIP(why) \
    do { \
        printf("    skipped: %s\n", why); \
        TEST_STOP(2); \
    } while (0)

#define RUN(name) \
    do { \
        switch (setjmp(test_stop)) { \
        case 0: \
            test_##name(); \
            test_n_passed++; \
            printf("  ok      %s\n", #name); \
            break; \
        case 1: \
            test_n_failed++; \
            printf("  FAILED  %s\n", #name); \
            if (getenv("TESSERA_TEST_FIRST")) exit(1); /* one is enough */ \
            break; \
        default: \
            test_n_skipped++; \
            printf("  skipped %s\n", #name); \
        } \
        fflush(stdout); \
    } while (0)

/* Ends main: the line run.sh adds up, and the exit status. */
static inline int test_end(void)
{
    printf("# %d passed %d failed %d skipped\n", test_n_passed, test_n_failed, test_n_skipped);
    if (test_n_failed) return 1;
    return test_n_passed ? 0 : 77;
}

/* The same for a main whose other tests need what is not here. */
static inline int test_end_without(const char *what)
{
    printf("    skipped: %s\n", what);
    test_n_skipped++;
    return test_end();
}

/* A small generator with a seed, so that a failure can be repeated. */
static inline uint64_t test_rand(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545F4914F6CDD1Du;
}

#endif
