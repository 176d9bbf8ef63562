/* Words of texts and questions. */
#include "search/inside.h"

#include "support/test.h"

static void folds(const char *from, const char *to)
{
    struct tsri_prose t = {0};
    CHECK_INT(tsri_fold(&t, from, strlen(from)), 0);
    CHECK_STR(t.data, to);
    tsri_prose_fini(&t);
}

TEST(text_with_spaces_stays)
{
    folds("", "");
    folds("The ferry \xC3\xA0 la carte", "The ferry \xC3\xA0 la carte");
}

TEST(writing_without_spaces_becomes_pairs)
{
    /* three Han characters; one alone; between Latin text */
    folds("\xE6\x9D\xB1\xE4\xBA\xAC\xE9\x83\xBD",
          " \xE6\x9D\xB1\xE4\xBA\xAC \xE4\xBA\xAC\xE9\x83\xBD ");
    folds("a\xE6\x9D\xB1z", "a \xE6\x9D\xB1 z");
}

static void asks(const char *question, const char *query)
{
    struct tsri_prose t = {0};
    CHECK_INT(tsri_query(&t, question), 0);
    CHECK_STR(t.data, query);
    tsri_prose_fini(&t);
}

TEST(common_words_are_left_out)
{
    asks("When does the ferry sail?", "\"ferry\" OR \"sail\"");
    asks("FERRY ferry Ferry", "\"FERRY\"");
}

TEST(a_question_of_common_words_alone_keeps_them)
{
    asks("What is it?", "\"What\" OR \"is\" OR \"it\"");
}

TEST(nothing_in_a_question_is_a_query)
{
    asks("a\" OR b NEAR(x, y) -title:z* ^q",
         "\"b\" OR \"NEAR\" OR \"x\" OR \"y\" OR \"title\" OR \"z\" OR \"q\"");
    asks("\"\"\" ' ; DROP", "\"DROP\"");
    asks("???", "");
    asks("", "");
    asks("\xFF\xFE", "");
}

TEST(typographic_marks_separate_words)
{
    asks("\xE2\x80\x9C"
         "ferry\xE2\x80\x9D\xE2\x80\x94harbor\xC2\xA0pier",
         "\"ferry\" OR \"harbor\" OR \"pier\"");
}

TEST(long_questions_have_a_limit)
{
    char question[4096], *at = question;
    for (int i = 0; i < 300; i++)
        at += sprintf(at, "word%d ", i);
    struct tsri_prose t = {0};
    CHECK_INT(tsri_query(&t, question), 0);
    CHECK(strstr(t.data, "\"word63\"") && !strstr(t.data, "word64"));
    t.bytes = 0;
    memset(question, 'x', 1000);
    question[1000] = 0;
    CHECK_INT(tsri_query(&t, question), 0);
    CHECK_STR(t.data, "");
    tsri_prose_fini(&t);
}

TEST(a_subject_is_a_word_that_is_not_common)
{
    CHECK(tsri_search_has_subject("What about the ferry?"));
    CHECK(!tsri_search_has_subject("What about it, and then?"));
    CHECK(!tsri_search_has_subject(""));
}

int main(void)
{
    RUN(text_with_spaces_stays);
    RUN(writing_without_spaces_becomes_pairs);
    RUN(common_words_are_left_out);
    RUN(a_question_of_common_words_alone_keeps_them);
    RUN(nothing_in_a_question_is_a_query);
    RUN(typographic_marks_separate_words);
    RUN(a_subject_is_a_word_that_is_not_common);
    RUN(long_questions_have_a_limit);
    return test_end();
}
