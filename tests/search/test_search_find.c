/* Questions find the passages that they are about. */
#include "search/inside.h"

#include "folder_kit.h"
#include "support/test.h"

static struct tmpdir tmp;
static struct tsri_search *s;
static struct tsri_passages found;

static void put_documents(void)
{
    char name[64], text[3000];
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "filler/%02d.txt", i);
        size_t n = folder_prose(text, 900, (uint64_t)i + 100, 40);
        folder_put(tmp.path, name, text, n);
    }
    folder_say(tmp.path, "harbor.txt", "The ferry to Aldmouth sails at six in the morning.");
    folder_say(tmp.path, "caf\xC3\xA9.md", "The caf\xC3\xA9 opens at NOON on sundays.");
    folder_say(tmp.path, "tokyo.txt",
               "\xE6\x9D\xB1\xE4\xBA\xAC\xE9\x83\xBD\xE3\x81\xAE\xE6\xB8\xAF");
    folder_say(tmp.path, "budget-2026.txt", "Twelve thousand for the roof.");
    folder_say(tmp.path, "odd.txt", "NEAR title body rowid words MATCH");
}

static size_t ask(const char *question)
{
    tsri_passages_fini(&found);
    CHECK_INT(tsri_search_find(s, question, 8, 1 << 20, &found), 0);
    return found.n;
}

static void finds(const char *question, const char *name)
{
    CHECK(ask(question) >= 1);
    CHECK_STR(found.items[0].name, name);
    CHECK(found.items[0].rank > 0);
}

TEST(the_best_passage_comes_first)
{
    finds("When does the ferry to Aldmouth sail?", "harbor.txt");
    CHECK_STR(found.items[0].title, "harbor.txt");
    for (size_t i = 1; i < found.n; i++)
        CHECK(found.items[i].rank <= found.items[i - 1].rank);
}

TEST(case_accents_and_endings_do_not_matter)
{
    finds("CAFE sunday?", "caf\xC3\xA9.md");
    finds("sailing", "harbor.txt");
}

TEST(writing_without_spaces_is_found)
{
    finds("\xE4\xBA\xAC\xE9\x83\xBD", "tokyo.txt");
}

TEST(names_of_files_count)
{
    finds("What is in the budget?", "budget-2026.txt");
    finds("tokyo", "tokyo.txt");
}

TEST(a_question_about_nothing_finds_nothing)
{
    CHECK_INT(ask("xylophone"), 0);
    CHECK_INT(ask(""), 0);
    CHECK_INT(ask("???"), 0);
    CHECK_INT(ask("\xF0\x9F\x98\x80"), 0);
    CHECK_INT(ask("\xFF\xFE\x80"), 0);
}

TEST(the_syntax_of_queries_is_text)
{
    static const char *const hostile[] = {
        "ferry AND xylophone", "ferry NOT ferry", "\"ferry", "ferry*",      "title:ferry",
        "ferry NEAR/3 sails",  "^ferry",          "(ferry",  "ferry + six", "{title}: ferry",
        "ferry' OR 1=1 --",    "NEAR(ferry six)", "-ferry",  "ferry;",      "words MATCH ferry",
    };
    for (size_t i = 0; i < TSRI_COUNT(hostile); i++) {
        ask(hostile[i]);
        bool has = false;
        for (size_t j = 0; j < found.n; j++)
            has |= strcmp(found.items[j].name, "harbor.txt") == 0;
        CHECK(has);
    }
}

TEST(passages_and_bytes_have_limits)
{
    tsri_passages_fini(&found);
    CHECK_INT(tsri_search_find(s, "kelo baba mira zuti filler", 3, 1 << 20, &found), 0);
    CHECK(found.n <= 3);
    tsri_passages_fini(&found);
    size_t n_bytes = 0;
    CHECK_INT(tsri_search_find(s, "filler txt", 40, 2000, &found), 0);
    for (size_t i = 0; i < found.n; i++)
        n_bytes += found.items[i].bytes;
    CHECK(n_bytes > 900 && n_bytes <= 2000);
    tsri_passages_fini(&found);
    CHECK_INT(tsri_search_find(s, "ferry", 8, 10, &found), 0);
    CHECK_INT(found.n, 0);
}

/* The lock is held as by a statement that takes long; who waited for it would wait forever. */
TEST(counts_do_not_wait_for_what_is_going_on)
{
    struct tsri_search_stats stats, counts;
    pthread_mutex_lock(&s->lock);
    counts = tsri_search_counts(s);
    pthread_mutex_unlock(&s->lock);
    CHECK_INT(counts.n_files, 45); /* the sync has counted them */
    CHECK_INT(tsri_search_stats(s, &stats), 0);
    CHECK(memcmp(&counts, &stats, sizeof counts) == 0);
}

TEST(all_passages_are_listed_in_parts)
{
    struct tsri_search_stats stats;
    struct tsri_passages last = {0};
    uint64_t n = 0, n_bytes = 0;
    char before[64] = "";
    CHECK_INT(tsri_search_stats(s, &stats), 0);
    do {
        struct tsri_passages part;
        CHECK_INT(tsri_search_list(s, last.n ? &last.items[last.n - 1] : NULL, 7, &part), 0);
        for (size_t i = 0; i < part.n; i++) {
            CHECK(strcmp(part.items[i].name, before) > 0);
            snprintf(before, sizeof before, "%s", part.items[i].name);
            n_bytes += part.items[i].bytes;
        }
        n += part.n;
        tsri_passages_fini(&last);
        last = part;
    } while (last.n);
    CHECK_INT(n, stats.n_passages);
    CHECK_INT(n, 45);
    CHECK_INT(n_bytes, stats.n_bytes);
}

int main(void)
{
    tmpdir_init_fast(&tmp);
    put_documents();
    const char *folders[] = {tmp.path};
    if (tsri_search_open(&s, NULL, folders, 1) || tsri_search_sync(s, NULL, NULL, NULL, NULL)) {
        puts(tsr_errmsg());
        return 1;
    }
    RUN(the_best_passage_comes_first);
    RUN(case_accents_and_endings_do_not_matter);
    RUN(writing_without_spaces_is_found);
    RUN(names_of_files_count);
    RUN(a_question_about_nothing_finds_nothing);
    RUN(the_syntax_of_queries_is_text);
    RUN(passages_and_bytes_have_limits);
    RUN(counts_do_not_wait_for_what_is_going_on);
    RUN(all_passages_are_listed_in_parts);
    tsri_passages_fini(&found);
    tsri_search_close(s);
    tmpdir_fini(&tmp);
    return test_end();
}
