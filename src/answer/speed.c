/* speed.c - how long a full read of a prompt takes on this machine. "4.8x faster" needs a time that
 * a question answered from the store does not measure, so times of prompts of which half or more was
 * computed are kept, the fastest one for each number of computed tokens up to a power of two:
 *
 *     TOKENS SECONDS HOW
 *
 * A guess takes the nearest length and scales it. It is rather too short than too long, so that
 * nothing is praised too much: the machine was not busy at the fastest time, and attention grows
 * with the square of the length. Scaling down would err the other way, and is limited. */
#include "answer/answer.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TIMES_MAX 32u
#define TOKENS_MIN 64u /* fewer say more about the start of a pass */
#define SCALE_DOWN 2.0
/* Answers are kept as prompts of a length, computed by something else. */
#define ANSWERS ", answers"
#define ANSWER_TOKENS 1000u
#define ANSWER_TOKENS_MIN 8u

struct speed_time {
    uint32_t n_tokens;
    double seconds;
    char how[sizeof((struct tsr_model_info){0}.device) + sizeof ANSWERS];
};

static uint32_t load(const char *path, struct speed_time *times)
{
    FILE *in = fopen(path, "re");
    uint32_t n = 0;
    char line[256];
    while (in && n < TIMES_MAX && fgets(line, sizeof line, in)) {
        struct speed_time *t = &times[n];
        char *end;
        unsigned long tokens = strtoul(line, &end, 10);
        t->seconds = strtod(end, &end);
        end += strspn(end, " ");
        end[strcspn(end, "\n")] = 0;
        snprintf(t->how, sizeof t->how, "%s", end);
        t->n_tokens = (uint32_t)tokens;
        n += tokens >= TOKENS_MIN && tokens < UINT32_MAX && t->seconds > 0 && isfinite(t->seconds);
    }
    if (in) fclose(in);
    return n;
}

static uint32_t bucket(uint32_t n_tokens)
{
    uint32_t n = 0;
    while (n_tokens >>= 1)
        n++;
    return n;
}

static bool same_kind(const struct speed_time *t, const char *how, uint32_t n_tokens)
{
    return bucket(t->n_tokens) == bucket(n_tokens) && strcmp(t->how, how) == 0;
}

/* Written beside and renamed. What cannot be written is only not known the next time. */
void tsri_speed_note(const char *path, const char *how, uint32_t n_tokens, double seconds)
{
    struct speed_time times[TIMES_MAX];
    char beside[4128];
    if (n_tokens < TOKENS_MIN || !(seconds > 0)) return;
    uint32_t n = load(path, times);
    for (uint32_t i = 0; i < n; i++)
        if (same_kind(&times[i], how, n_tokens) &&
            times[i].seconds / times[i].n_tokens <= seconds / n_tokens)
            return;
    snprintf(beside, sizeof beside, "%s.%ld", path, (long)getpid());
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!out) {
        if (fd >= 0) close(fd);
        return;
    }
    fprintf(out, "%u %.6f %s\n", n_tokens, seconds, how);
    for (uint32_t i = 0; i < n && i + 1 < TIMES_MAX; i++)
        if (!same_kind(&times[i], how, n_tokens))
            fprintf(out, "%u %.6f %s\n", times[i].n_tokens, times[i].seconds, times[i].how);
    if (fclose(out) != 0 || rename(beside, path) != 0) unlink(beside);
}

void tsri_speed_note_report(const char *path, const char *how, const struct tsr_blend_report *r)
{
    uint32_t n = r->n_new + r->n_recomputed + r->n_filled;
    double seconds = r->total_s - r->wait_s - r->draft_s - r->judge_s;
    if (n <= r->n_tokens && n >= r->n_tokens / 2) tsri_speed_note(path, how, n, seconds);
}

double tsri_speed_guess(const char *path, const char *how, uint32_t n_tokens)
{
    struct speed_time times[TIMES_MAX];
    double best = INFINITY, seconds = NAN;
    uint32_t n = load(path, times);
    for (uint32_t i = 0; i < n; i++) {
        double scale = (double)n_tokens / times[i].n_tokens, far = fabs(log(scale));
        if (strcmp(times[i].how, how) != 0 || scale < 1 / SCALE_DOWN || far >= best) continue;
        best = far;
        seconds = scale * times[i].seconds;
    }
    return seconds;
}

static const char *for_answers(char to[static sizeof((struct speed_time){0}.how)], const char *how)
{
    snprintf(to, sizeof((struct speed_time){0}.how), "%.95s" ANSWERS, how);
    return to;
}

void tsri_speed_note_answer(const char *path, const char *how, uint32_t n_tokens, double seconds)
{
    char kind[sizeof((struct speed_time){0}.how)];
    if (n_tokens < ANSWER_TOKENS_MIN) return;
    tsri_speed_note(path, for_answers(kind, how), ANSWER_TOKENS,
                    seconds / n_tokens * ANSWER_TOKENS);
}

double tsri_speed_guess_answer(const char *path, const char *how)
{
    char kind[sizeof((struct speed_time){0}.how)];
    return tsri_speed_guess(path, for_answers(kind, how), ANSWER_TOKENS) / ANSWER_TOKENS;
}
