/* Questions of a chat find the passages that they are about, also where only an earlier one says what
 * that is. */
#include "serve/serve.h"

#include "search/folder_kit.h"
#include "support/test.h"

static struct tmpdir tmp;
static struct tsri_serve s;
static struct tsri_passages found;

static void put_documents(void)
{
    char name[64], text[3000];
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "filler/%02d.txt", i);
        size_t n = folder_prose(text, 900, (uint64_t)i + 100, 40);
        folder_put(tmp.path, name, text, n);
    }
    folder_say(tmp.path, "harbor.txt",
               "The harbor master is Ilse Brandt. She was appointed in 1998.");
    folder_say(tmp.path, "road.txt", "The road to the quarry is long and has no bridge.");
    folder_say(tmp.path, "ferry.txt", "The ferry to Aldmouth sails at six in the morning.");
}

/* A chat of these questions, each but the last with an answer. */
static size_t ask(const char *const *questions, uint32_t n)
{
    struct tsri_message messages[16];
    struct tsri_api_request q = {.messages = messages};
    for (uint32_t i = 0; i < n; i++) {
        messages[q.n_messages++] = (struct tsri_message){
            .role = "user", .text = questions[i], .bytes = strlen(questions[i])};
        if (i + 1 < n)
            messages[q.n_messages++] =
                (struct tsri_message){.role = "assistant", .text = "Well.", .bytes = 5};
    }
    tsri_passages_fini(&found);
    CHECK_INT(tsri_seek_passages(&s, &q, &found), 0);
    return found.n;
}
#define ASK(...) \
    ask((const char *const[]){__VA_ARGS__}, TSRI_COUNT(((const char *const[]){__VA_ARGS__})))

static int place_of(const char *name)
{
    for (size_t i = 0; i < found.n; i++)
        if (strcmp(found.items[i].name, name) == 0) return (int)i;
    return -1;
}

TEST(a_question_that_names_its_subject_is_looked_for_alone)
{
    CHECK(ASK("Who is the harbor master?", "When does the ferry sail?") >= 1);
    CHECK_INT(place_of("ferry.txt"), 0);
    CHECK_INT(place_of("harbor.txt"), -1);
}

TEST(a_question_that_finds_nothing_is_about_the_one_before_it)
{
    CHECK_INT(ASK("What about her?"), 0);
    CHECK(ASK("Who is the harbor master?", "What about her?") >= 1);
    CHECK_INT(place_of("harbor.txt"), 0);
    CHECK(ASK("Who is the harbor master?", "What about her?", "And then?") >= 1);
    CHECK_INT(place_of("harbor.txt"), 0);
}

/* "long" is a word of another document. */
TEST(a_question_that_finds_little_keeps_the_passages_of_the_one_before_it)
{
    CHECK_INT(ASK("How long has she been that?"), 1);
    CHECK_INT(place_of("road.txt"), 0);
    CHECK(ASK("Who is the harbor master?", "How long has she been that?") >= 2);
    CHECK_INT(place_of("harbor.txt"), 0);
    CHECK(place_of("road.txt") > 0);
}

TEST(a_long_chat_is_looked_at_in_part)
{
    static char text[200000];
    memset(text, 'x', sizeof text - 1);
    memcpy(text, "harbor master ", 14);
    CHECK(ASK(text, "What about her?") >= 1);
    CHECK_INT(place_of("harbor.txt"), 0);
    (void)ASK("harbor master", "and?", "and?", "and?", "and?");
    CHECK_INT(place_of("harbor.txt"), -1);
    /* The last question alone is all that a search looks at. */
    CHECK_INT(ASK("harbor master", text + 14), 0);
    /* A character is not cut. */
    for (size_t i = 0; i + 2 < sizeof text; i += 2)
        memcpy(text + i, "\xC3\xA9", 2);
    CHECK_INT(ASK(text, "What about her?"), 0);
    CHECK_INT(ASK("Who?"), 0);
    CHECK_INT(ask(NULL, 0), 0);
}

/* Each passage once, and no more bytes than the context has room for. */
TEST(both_together_have_the_limits_of_one)
{
    size_t n_bytes = 0;
    char words[512];
    size_t n = 0;
    for (const char *w = "balo\0kemi\0lonu\0mira\0"; *w; w += strlen(w) + 1)
        n += (size_t)snprintf(words + n, sizeof words - n, "%s ", w);
    CHECK(ASK("harbor ferry road", words, "long?") >= 1);
    for (size_t i = 0; i < found.n; i++) {
        n_bytes += found.items[i].bytes;
        for (size_t k = 0; k < i; k++)
            CHECK(strcmp(found.items[i].name, found.items[k].name) != 0 ||
                  found.items[i].number != found.items[k].number);
    }
    CHECK(n_bytes <= (size_t)s.info.context / 2 * 3);
}

int main(void)
{
    tmpdir_init_fast(&tmp);
    put_documents();
    const char *folders[] = {tmp.path};
    s.info.context = 2048;
    if (tsri_search_open(&s.desc.search, NULL, folders, 1) ||
        tsri_search_sync(s.desc.search, NULL, NULL, NULL, NULL)) {
        puts(tsr_errmsg());
        return 1;
    }
    RUN(a_question_that_names_its_subject_is_looked_for_alone);
    RUN(a_question_that_finds_nothing_is_about_the_one_before_it);
    RUN(a_question_that_finds_little_keeps_the_passages_of_the_one_before_it);
    RUN(a_long_chat_is_looked_at_in_part);
    RUN(both_together_have_the_limits_of_one);
    tsri_passages_fini(&found);
    tsri_search_close(s.desc.search);
    tmpdir_fini(&tmp);
    return test_end();
}
