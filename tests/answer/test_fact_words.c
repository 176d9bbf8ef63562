/* test_fact_words.c - answers that differ only in their wording say the same; with another, a missing
 * or an added fact they do not. */
#include "answer/answer.h"

#include "support/test.h"

struct two_answers {
    const char *question, *one, *other;
};

/* Both ways round. */
static void check_all(const struct two_answers *rows, size_t n, bool same)
{
    for (size_t i = 0; i < n; i++) {
        const struct two_answers *r = &rows[i];
        bool there = tsri_fact_words_same(r->question, r->one, r->other);
        bool back = tsri_fact_words_same(r->question, r->other, r->one);
        if (there != same || back != same)
            fprintf(stderr, "%s | %s | %s\n", r->question, r->one, r->other);
        CHECK(there == same && back == same);
    }
}
#define SAME(rows) check_all(rows, TSRI_COUNT(rows), true)
#define DIFFER(rows) check_all(rows, TSRI_COUNT(rows), false)

TEST(wording_does_not_count)
{
    static const struct two_answers rows[] = {
        {"Which model is the label printer?", "LX-204", "The label printer is LX-204."},
        {"What does Rosa Lind do?", "Rosa Lind works as a tram driver.",
         "Works as the tram driver"},
        {"When does the library close?", "It closes at 18:30.", "The library is closed at 18:30."},
        {"Who called Ida Moor?", "Ben Askew", "Ida Moor was called by Ben Askew."},
        {"What is the rent of 7 Mill Lane?", "The rent of 7 Mill Lane is $1,275.", "$1275"},
        {"Whose dog is it?", "Karin Vogt's", "It is the dog of Karin Vogt."},
        {"How long is it?",
         "\xe2\x80\x9c"
         "45 minutes\xe2\x80\x9d",
         "45 minutes\xe2\x80\xa6"},
        {"", "", "the"},
    };
    SAME(rows);
}

TEST(the_order_of_words_does_not_count)
{
    static const struct two_answers rows[] = {
        {"When is the fair?", "On 12 June 2025.", "June 12, 2025"},
        {"Who comes?", "Ada, Luis and Noor", "Noor, Luis, Ada"},
        {"What does it cost?", "EUR 40, with lunch", "With lunch it costs EUR 40."},
    };
    SAME(rows);
}

TEST(another_fact_differs)
{
    static const struct two_answers rows[] = {
        {"What does it cost?", "EUR 40", "$40"},
        {"What does it cost?",
         "\xe2\x82\xac"
         "40",
         "\xc2\xa3"
         "40"},
        {"What does it cost?", "40", "40 %"},
        {"What does it cost?", "14,50", "1450"},
        {"When is the fair?", "The fair is on 12 June 2025.", "The fair is on 21 June 2025."},
        {"When is the fair?", "12 June", "12 July"},
        {"When is the fair?", "3/4/2025", "4/3/2025"},
        {"When was it built?", "1970", "In the 1970's"},
        {"How cold is it?", "-5 degrees", "5 degrees"},
        {"How cold is it?",
         "\xe2\x88\x92"
         "5 degrees",
         "5 degrees"},
        {"Who is the mayor?", "Tom Peter", "Tom Peters"},
        {"Who lives in Ulm?", "Gr\xc3\xbcn", "Gr\xc3\xb6n"},
    };
    DIFFER(rows);
}

TEST(a_missing_or_added_fact_differs)
{
    static const struct two_answers rows[] = {
        {"Where is Dr Hale?", "In room 12", "In room 12, next to the lift"},
        {"When is the fair?", "On 12 June", "12 June 2025"},
        {"When is the fair?", "The fair is in Ghent.", "The fair is in Ghent, in May."},
        {"Who comes?", "Ada and Luis", "Ada"},
        {"Who comes?", "Ada", ""},
        {"Who comes?", "Ada comes.", "Ada never comes."},
        {"Which shop does not open?", "Bell does not open.", "Bell does open."},
        {"Which shop isn't open?", "Bell isn't open.", "Bell is open."},
    };
    DIFFER(rows);
}

TEST(words_of_the_question_may_be_left_out_but_not_exchanged)
{
    static const struct two_answers same[] = {
        {"Does the bus to Lund go on Monday or Tuesday?", "Monday at 9:40",
         "The bus to Lund: on Monday at 9:40."},
    };
    static const struct two_answers other[] = {
        {"Does the bus go on Monday or Tuesday?", "Monday", "Tuesday"},
        {"Does the bus go on Monday or Tuesday?", "Monday at 9:40", "Tuesday at 9:40"},
        {"Is the flat on floor 2 or 3?", "floor 2", "floor 3"},
        {"Does the bus go on Monday or Tuesday?", "Monday", "Monday or Tuesday"},
        {"Is it red or green?", "red", ""},
    };
    SAME(same);
    DIFFER(other);
}

TEST(words_with_signs_inside_are_one_word)
{
    static const struct two_answers same[] = {
        {"Address?", "10.0.7.21", "It is 10.0.7.21."},
        {"Years?",
         "1999\xe2\x80\x93"
         "2003",
         "1999-2003"},
        {"When?",
         "9 o\xe2\x80\x99"
         "clock",
         "9 o'clock"},
        {"Which?", "tea and/or milk", "tea or milk"},
    };
    static const struct two_answers other[] = {
        {"Address?", "10.0.7.21", "10.0.21.7"},
        {"When?", "9:40", "40:9"},
        {"Score?", "3-2", "2-3"},
    };
    SAME(same);
    DIFFER(other);
}

TEST(long_words_and_answers_are_compared_whole)
{
    static char one[300], other[300], many[3000], more[3000];
    memset(one, 'x', sizeof one - 1);
    memset(other, 'x', sizeof other - 1);
    CHECK(tsri_fact_words_same("", one, other));
    other[sizeof other - 2] = 'y';
    CHECK(!tsri_fact_words_same("", one, other));
    for (int i = 0; i < 500; i++)
        snprintf(many + 4 * i, 5, "%03d ", i);
    memcpy(more, many, sizeof many);
    CHECK(tsri_fact_words_same("", many, more));
    more[1990] = 'y';
    CHECK(!tsri_fact_words_same("", many, more));
}

TEST(broken_utf8_is_not_overrun)
{
    CHECK(!tsri_fact_words_same("\xe2", "\xe2\x80", "\xe2"));
    CHECK(tsri_fact_words_same("\xe2\x80", "\xc2", "\xc2"));
    CHECK(!tsri_fact_words_same("",
                                "\xe2\x80"
                                "a",
                                "\xe2\x80"
                                "b"));
}

int main(void)
{
    RUN(wording_does_not_count);
    RUN(the_order_of_words_does_not_count);
    RUN(another_fact_differs);
    RUN(a_missing_or_added_fact_differs);
    RUN(words_of_the_question_may_be_left_out_but_not_exchanged);
    RUN(words_with_signs_inside_are_one_word);
    RUN(long_words_and_answers_are_compared_whole);
    RUN(broken_utf8_is_not_overrun);
    return test_end();
}
