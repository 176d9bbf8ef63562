/* bench_recall.c - how often the search finds the passage that a question is about. A folder of documents and a list of
 * questions with known answers come from the caller: `bench_recall FOLDER QUESTIONS`, one question per line as
 * "text<TAB>file<TAB>answer". A passage counts if it is of that file, or of one whose name begins so, and has the
 * answer in it, letters of either case. */
#include "search/search.h"
#include "support/bench.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 24 };

static bool is_right(const struct tsri_passage *p, const char *file, const char *answer)
{
    return strncmp(p->name, file, strlen(file)) == 0 && strcasestr(p->text, answer) != NULL;
}

int main(int argc, char **argv)
{
    static const uint32_t ks[] = {1, 3, 5, 10, 24};
    uint32_t n_found[TSRI_COUNT(ks)] = {0}, n = 0;
    struct tsri_search *s;
    char line[8192];
    if (argc < 3) {
        fputs("bench_recall FOLDER QUESTIONS: nothing to measure without both\n", stderr);
        return 0;
    }
    bench_init("bench_recall", 1, argv);
    const char *folders[] = {argv[1]};
    FILE *f = fopen(argv[2], "r");
    BENCH_CHECK(f && tsri_search_open(&s, NULL, folders, 1) == 0);
    BENCH_CHECK(tsri_search_sync(s, NULL, NULL, NULL, NULL) == 0);
    while (fgets(line, sizeof line, f)) {
        char *file = strchr(line, '\t'), *answer = file ? strchr(file + 1, '\t') : NULL;
        BENCH_CHECK(answer != NULL);
        *file++ = *answer++ = 0;
        answer[strcspn(answer, "\n")] = 0;
        struct tsri_passages found;
        BENCH_CHECK(tsri_search_find(s, line, MOST, (size_t)1 << 20, &found) == 0);
        size_t at = 0;
        while (at < found.n && !is_right(&found.items[at], file, answer))
            at++;
        for (size_t i = 0; i < TSRI_COUNT(ks); i++)
            n_found[i] += at < found.n && at < ks[i];
        n++;
        tsri_passages_fini(&found);
    }
    fclose(f);
    BENCH_CHECK(n > 0);
    for (size_t i = 0; i < TSRI_COUNT(ks); i++) {
        char name[48];
        snprintf(name, sizeof name, "recall at %u, of %u questions", ks[i], n);
        bench_report(name, (double)n_found[i] / n, "", 0, 0, true);
    }
    tsri_search_close(s);
    return bench_end();
}
