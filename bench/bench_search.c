/* bench_search.c - how fast folders become passages, and how long a question takes, in processor time. Text is made up:
 * 50000 words whose frequencies fall as those of a language do (Zipf), in paragraphs. */
#include "search/search.h"
#include "support/bench.h"
#include "support/tmpdir.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { N_WORDS = 50000, FILE_BYTES = 20000, N_QUESTIONS = 25, PARAGRAPH = 60 };

/* Processor time, because all of this is computing in one thread: waiting for a busy machine is not
 * what is measured. */
static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t state = 88172645463325252u;

static double uniform(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / 9007199254740992.0;
}

static int put_word(char *out, size_t room, uint32_t word)
{
    static const char *const parts[] = {"ba", "ke", "lo", "mi", "nu", "ra", "se", "ti", "vo", "zu"};
    int n = 0;
    do {
        n += snprintf(out + n, room - (size_t)n, "%s", parts[word % 10]);
        word /= 10;
    } while (word);
    return n;
}

static uint32_t any_word(void)
{
    return (uint32_t)exp(uniform() * log(N_WORDS));
}

static void write_file(const char *folder, int number)
{
    static char text[FILE_BYTES + 64];
    char path[400];
    size_t n = 0, n_words = 0;
    while (n < FILE_BYTES) {
        n += (size_t)put_word(text + n, sizeof text - n, any_word());
        const char *end = ++n_words % PARAGRAPH == 0 ? ".\n\n" : " ";
        n += (size_t)snprintf(text + n, sizeof text - n, "%s", end);
    }
    snprintf(path, sizeof path, "%s/%d.txt", folder, number);
    FILE *f = fopen(path, "w");
    BENCH_CHECK(f && fwrite(text, 1, n, f) == n && fclose(f) == 0);
}

static double sync_s(struct tsri_search *s)
{
    uint64_t start = cpu_ns();
    BENCH_CHECK(tsri_search_sync(s, NULL, NULL, NULL, NULL) == 0);
    return (double)(cpu_ns() - start) / 1e9;
}

/* Milliseconds of questions of n words: the median, best passages of 8. */
static double ask_ms(struct tsri_search *s, int n, uint32_t word_min)
{
    double ms[N_QUESTIONS];
    for (int i = 0; i < N_QUESTIONS; i++) {
        char question[512];
        int at = 0;
        for (int k = 0; k < n; k++) {
            uint32_t word = any_word();
            while (word < word_min)
                word = any_word();
            at += put_word(question + at, sizeof question - (size_t)at, word);
            question[at++] = ' ';
        }
        question[at] = 0;
        struct tsri_passages found;
        uint64_t start = cpu_ns();
        BENCH_CHECK(tsri_search_find(s, question, 8, 1 << 20, &found) == 0 && found.n > 0);
        ms[i] = (double)(cpu_ns() - start) / 1e6;
        tsri_passages_fini(&found);
    }
    return bench_median(ms, N_QUESTIONS);
}

int main(int argc, char **argv)
{
    struct tmpdir dir;
    struct tsri_search *s;
    struct tsri_search_stats stats = {0};
    char folder[300], home[300];
    int n_files = 0;
    bench_init("bench_search", argc, argv);
    tmpdir_init(&dir);
    snprintf(folder, sizeof folder, "%s/docs", dir.path);
    snprintf(home, sizeof home, "%s/home", dir.path);
    const char *folders[] = {folder};
    BENCH_CHECK(mkdir(folder, 0700) == 0);
    while (n_files < 10000000 / FILE_BYTES)
        write_file(folder, n_files++);
    BENCH_CHECK(tsri_search_open(&s, home, folders, 1) == 0);
    bench_report("sync of 10 MB, new", 10 / sync_s(s), "MB/s", 0, 0, true);
    bench_report("sync of 10 MB, unchanged", 1e3 * sync_s(s), "ms", 0, 0, false);
    while (stats.n_passages < 100000) {
        for (int i = 0; i < 1000; i++)
            write_file(folder, n_files++);
        sync_s(s);
        BENCH_CHECK(tsri_search_stats(s, &stats) == 0);
    }
    bench_report("100K passages, 5 rare words", ask_ms(s, 5, 500), "ms", 0, 0, false);
    bench_report("100K passages, 5 any words", ask_ms(s, 5, 1), "ms", 0, 0, false);
    tsri_search_close(s);
    tmpdir_fini(&dir);
    return bench_end();
}
