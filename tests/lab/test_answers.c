/* test_answers.c - answers are compared by their words, as question answering does. */
#include "lab/quality.h"

#include "support/test.h"

#include <math.h>

static char *right[] = {(char *)"The Eiffel Tower", (char *)"La tour Eiffel"};

TEST(case_punctuation_and_articles_do_not_count)
{
    CHECK(tsri_answer_exact("eiffel tower.", right, 2) == 1);
    CHECK(tsri_answer_exact(" A  Eiffel, \n TOWER! ", right, 2) == 1);
    CHECK(tsri_answer_exact("la tour eiffel", right, 2) == 1);
    CHECK(tsri_answer_exact("tower eiffel", right, 2) == 0);
    CHECK(tsri_answer_exact("", right, 2) == 0);
    CHECK(tsri_answer_exact("anything", right, 0) == 0);
}

TEST(f1_is_the_overlap_with_the_nearest_answer)
{
    CHECK(tsri_answer_f1("Eiffel Tower", right, 2) == 1);
    CHECK(fabs(tsri_answer_f1("the tall tower", right, 1) - 0.5) < 1e-12); /* 1 of 2 and 2 */
    CHECK(fabs(tsri_answer_f1("tower tower", right, 1) - 0.5) < 1e-12);    /* counted once */
    CHECK(tsri_answer_f1("nothing of it", right, 2) == 0);
}

TEST(a_sentence_with_a_right_answer_in_it_is_right)
{
    CHECK(tsri_answer_right("It is the Eiffel Tower, of course.", right, 2) == 1);
    CHECK(tsri_answer_right("Eiffel built a tower.", right, 2) == 0); /* in a row */
    CHECK(tsri_answer_right("The Eiffel Towers", right, 2) == 0);     /* whole words */
    CHECK(tsri_answer_right("tower", right, 2) == 0);
    char *time[] = {(char *)"9:40"}, *none[] = {(char *)"the"};
    CHECK(tsri_answer_right("At 9.40 am.", time, 1) == 1);
    CHECK(tsri_answer_right("At 19:40.", time, 1) == 0);
    CHECK(tsri_answer_right("the", none, 1) == 0); /* nothing is left of it */
}

TEST(long_answers_are_cut_and_not_overrun)
{
    static char many[4096];
    for (size_t i = 0; i + 2 < sizeof many; i += 2)
        memcpy(many + i, "x ", 2);
    char *same[] = {many};
    CHECK(tsri_answer_f1(many, same, 1) == 1);
}

int main(void)
{
    RUN(case_punctuation_and_articles_do_not_count);
    RUN(f1_is_the_overlap_with_the_nearest_answer);
    RUN(a_sentence_with_a_right_answer_in_it_is_right);
    RUN(long_answers_are_cut_and_not_overrun);
    return test_end();
}
