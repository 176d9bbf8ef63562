/* test_speed.c - how long a full read takes is remembered, and guessed with care. */
#include "answer/answer.h"

#include "support/test.h"
#include "support/tmpdir.h"

#include <math.h>
#include <sys/stat.h>

static struct tmpdir dir;
static char path[300];

static bool is(double a, double b)
{
    return fabs(a - b) < 1e-6;
}

TEST(nothing_is_known_at_first)
{
    snprintf(path, sizeof path, "%s/a.speed", dir.path);
    CHECK(isnan(tsri_speed_guess(path, "CPU", 1000)));
}

TEST(the_nearest_length_is_scaled)
{
    snprintf(path, sizeof path, "%s/b.speed", dir.path);
    tsri_speed_note(path, "CPU, 2 threads", 1000, 10);
    CHECK(is(tsri_speed_guess(path, "CPU, 2 threads", 1000), 10));
    CHECK(is(tsri_speed_guess(path, "CPU, 2 threads", 3000), 30));
    CHECK(is(tsri_speed_guess(path, "CPU, 2 threads", 500), 5));
    /* Far shorter ones take less than their share. */
    CHECK(isnan(tsri_speed_guess(path, "CPU, 2 threads", 499)));
    tsri_speed_note(path, "CPU, 2 threads", 100, 0.5);
    CHECK(is(tsri_speed_guess(path, "CPU, 2 threads", 200), 1));
    CHECK(is(tsri_speed_guess(path, "CPU, 2 threads", 900), 9));
    /* Another machine's times are its own. */
    CHECK(isnan(tsri_speed_guess(path, "CUDA0", 1000)));
    struct stat st;
    CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
}

TEST(the_fastest_time_of_a_length_stays)
{
    snprintf(path, sizeof path, "%s/c.speed", dir.path);
    tsri_speed_note(path, "CPU", 1000, 10);
    tsri_speed_note(path, "CPU", 1000, 40);
    CHECK(is(tsri_speed_guess(path, "CPU", 1000), 10));
    tsri_speed_note(path, "CPU", 900, 4.5);
    CHECK(is(tsri_speed_guess(path, "CPU", 1000), 5));
}

TEST(what_is_no_measurement_is_left_out)
{
    snprintf(path, sizeof path, "%s/d.speed", dir.path);
    tsri_speed_note(path, "CPU", 10, 1);
    tsri_speed_note(path, "CPU", 1000, 0);
    tsri_speed_note(path, "CPU", 1000, NAN);
    CHECK(isnan(tsri_speed_guess(path, "CPU", 1000)));
    FILE *out = fopen(path, "w");
    CHECK(out);
    fputs("rubbish\n-5 3 CPU\n1000 nan CPU\n1000 -1 CPU\n99999999999999 1 CPU\n\n1000 2 CPU\n",
          out);
    for (int i = 0; i < 1000; i++)
        fputs("2000 1 x\n", out);
    fclose(out);
    CHECK(is(tsri_speed_guess(path, "CPU", 1000), 2));
    for (uint32_t i = 0; i < 100; i++)
        tsri_speed_note(path, "CPU", 64u << i % 20, 1);
    CHECK(is(tsri_speed_guess(path, "CPU", 64), 1));
    tsri_speed_note("/proc/nowhere/x.speed", "CPU", 1000, 1);
}

TEST(the_longest_name_of_a_device_is_known_again)
{
    char device[sizeof((struct tsr_model_info){0}.device)];
    snprintf(path, sizeof path, "%s/e.speed", dir.path);
    memset(device, 'x', sizeof device - 1);
    device[sizeof device - 1] = 0;
    tsri_speed_note(path, device, 1000, 10);
    CHECK(is(tsri_speed_guess(path, device, 1000), 10));
}

TEST(tokens_of_answers_are_apart_from_prompts)
{
    char device[sizeof((struct tsr_model_info){0}.device)];
    memset(device, 'x', sizeof device - 1);
    device[sizeof device - 1] = 0;
    snprintf(path, sizeof path, "%s/f.speed", dir.path);
    tsri_speed_note(path, device, 1000, 1);
    CHECK(isnan(tsri_speed_guess_answer(path, device)));
    tsri_speed_note_answer(path, device, 7, 0.07); /* too few to say much */
    CHECK(isnan(tsri_speed_guess_answer(path, device)));
    tsri_speed_note_answer(path, device, 20, 0.5);
    tsri_speed_note_answer(path, device, 200, 8); /* slower: something else was running */
    CHECK(is(tsri_speed_guess_answer(path, device), 0.025));
    CHECK(is(tsri_speed_guess(path, device, 1000), 1));
}

TEST(what_was_computed_of_a_prompt_is_a_measurement_where_it_is_most_of_it)
{
    snprintf(path, sizeof path, "%s/f.speed", dir.path);
    struct tsr_blend_report r = {.n_tokens = 200, .n_exact = 101, .n_new = 99, .total_s = 5};
    tsri_speed_note_report(path, "CPU", &r);
    CHECK(isnan(tsri_speed_guess(path, "CPU", 200)));
    /* The system prompt is cached; loads, the gate's draft and its verdict are no part of a read. */
    r = (struct tsr_blend_report){.n_tokens = 200,
                                  .n_exact = 29,
                                  .n_new = 171,
                                  .total_s = 5,
                                  .wait_s = 1,
                                  .draft_s = 0.5,
                                  .judge_s = 0.08};
    tsri_speed_note_report(path, "CPU", &r);
    CHECK(is(tsri_speed_guess(path, "CPU", 342), 6.84));
    /* What was computed twice measures nothing. */
    r = (struct tsr_blend_report){
        .n_tokens = 100, .n_filled = 90, .n_recomputed = 20, .total_s = 0.1};
    tsri_speed_note_report(path, "CPU", &r);
    CHECK(is(tsri_speed_guess(path, "CPU", 100), 2));
}

int main(void)
{
    tmpdir_init(&dir);
    RUN(nothing_is_known_at_first);
    RUN(the_nearest_length_is_scaled);
    RUN(the_fastest_time_of_a_length_stays);
    RUN(what_is_no_measurement_is_left_out);
    RUN(what_was_computed_of_a_prompt_is_a_measurement_where_it_is_most_of_it);
    RUN(the_longest_name_of_a_device_is_known_again);
    RUN(tokens_of_answers_are_apart_from_prompts);
    tmpdir_fini(&dir);
    return test_end();
}
