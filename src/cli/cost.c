/* cost.c - what an answer cost and how far it can be trusted, in people's terms: how long until the
 * first token, how much faster than a full read of everything, and whether a full read would give
 * the same answer. What is not known is not said. */
#include "cli/asking.h"

#include <math.h>
#include <unistd.h>

static bool same_answer(const struct tsri_asking *a)
{
    return strcmp(a->answer.text, a->full.text) == 0;
}

static bool says_same(const struct tsri_asking *a)
{
    return tsri_fact_words_same(a->question, a->answer.text, a->full.text);
}

static const char *compared(const struct tsri_asking *a)
{
    if (same_answer(a)) return "the same answer as a full read gives";
    return says_same(a) ? "a full read says the same in other words"
                        : "not the same answer as a full read gives";
}

/* ---- the line ---- */

static const char *source_name(const struct tsr_blend_report *r)
{
    uint32_t below = 0;
    for (int i = 1; i < 8; i++)
        below += r->tier_tokens[i];
    if (r->tier_tokens[0] && below) return " from memory and disk";
    return below ? " from disk" : r->tier_tokens[0] ? " from memory" : "";
}

/* Tokens that were known before this question. What was read just now is no reuse, though the blend
 * takes it from the store as it will the next time. */
static uint32_t n_known(const struct tsr_blend_report *r)
{
    return r->n_exact + r->n_reused - r->n_filled_reused;
}

static void print_speed(const struct tsri_asking *a)
{
    double times = a->full_guess_s / a->answer.ttft_s;
    const char *how = a->compare ? "" : " (estimated)";
    if (isnan(times) || n_known(&a->report) == 0) return;
    if (times >= 1.05)
        fprintf(stderr, ", %.1fx faster than a full read%s", times, how);
    else
        fprintf(stderr, ", no faster than a full read%s", how);
}

void tsri_cost_line(const struct tsri_asking *a)
{
    const struct tsr_blend_report *r = &a->report;
    fflush(stdout);
    fprintf(stderr, "first token after %.2f s", a->answer.ttft_s);
    print_speed(a);
    if (a->compare)
        fprintf(stderr, "; %s", compared(a));
    else if (a->n_turns == 1)
        fprintf(stderr, "; %s", tsri_trust_words(tsri_trust_sure(r)));
    if (a->n_turns == 1 && r->reasons & TSR_BLEND_COSTLY)
        fputs(", which is faster here than to reuse and check", stderr);
    if (a->answer.ended == TSRI_ENDED_REPEAT) fputs("; ended where it repeats itself", stderr);
    if (a->answer.ended == TSRI_ENDED_LENGTH)
        fprintf(stderr, "; ended after %u tokens", a->answer.n_tokens);
    fprintf(stderr, "\n%u tokens: %u reused%s, %u recomputed, %u new\n", r->n_tokens, n_known(r),
            n_known(r) ? source_name(r) : "", r->n_recomputed, r->n_new + r->n_filled_reused);
}

static bool same_file(const struct tsri_passage *a, const struct tsri_passage *b)
{
    return a->folder == b->folder && strcmp(a->name, b->name) == 0;
}

/* harbor.txt (2, 5), garden.md: numbers where a file has several passages. */
void tsri_cost_passages(const struct tsri_asking *a)
{
    const struct tsri_passages *f = &a->found;
    if (f->n == 0) return;
    fprintf(stderr, "from %zu of %llu passages:", f->n,
            (unsigned long long)a->folders.stats.n_passages);
    for (size_t i = 0; i < f->n; i++) {
        bool told = false, more = false;
        for (size_t j = 0; j < i; j++)
            told |= same_file(&f->items[i], &f->items[j]);
        if (told) continue;
        char name[256];
        fprintf(stderr, "%s %s", i ? "," : "", tsri_printable(f->items[i].name, name, sizeof name));
        for (size_t j = i; j < f->n && f->items[i].n_in_file > 1; j++) {
            if (!same_file(&f->items[i], &f->items[j])) continue;
            fprintf(stderr, "%s%u", more ? ", " : " (", f->items[j].number + 1);
            more = true;
        }
        fputs(more ? ")" : "", stderr);
    }
    fputs("\n", stderr);
}

void tsri_cost_stats(const struct tsri_asking *a)
{
    const struct tsr_blend_report *r = &a->report;
    const struct tsri_reader *m = &a->reader;
    const struct tsri_told *answer = &a->answer;
    char name[sizeof m->info.name];
    fprintf(stderr,
            "  model        %s, %s; opened in %.2f s\n"
            "  profile      %s; selector %s, ratio %.3f, bias %.2f\n"
            "  tokens       %u exact, %u filled, %u stored, %u failed, in %u chunks\n"
            "  time         lookup %.1f ms, waited for tiers %.1f ms, prompt %.2f s\n"
            "  answer       %u tokens in %.2f s (%.1f a second)\n",
            tsri_printable(m->info.name, name, sizeof name), m->info.device, m->open_s,
            m->profiled ? "measured" : "none", tsr_selector_name(r->selector), r->ratio, r->bias,
            r->n_exact, r->n_filled, r->n_stored, r->n_failed, r->n_chunks, 1e3 * r->lookup_s,
            1e3 * r->wait_s, r->total_s, answer->n_tokens, answer->answer_s,
            answer->answer_s > 0 ? answer->n_tokens / answer->answer_s : 0);
    if (a->compare)
        fprintf(stderr, "  full read    first token after %.2f s, KL of the first token %.4f\n",
                a->full.ttft_s, a->kl);
}

/* ---- JSON ---- */

static void print_number(const char *name, double value)
{
    if (isnan(value) || isinf(value))
        printf(",\"%s\":null", name);
    else
        printf(",\"%s\":%.6g", name, value);
}

static void print_flag(const char *name, bool value)
{
    printf(",\"%s\":%s", name, value ? "true" : "false");
}

static const char *ended_name(enum tsri_ended ended)
{
    static const char *const names[] = {"stop", "length", "repeat"};
    return names[ended];
}

static void print_compared(const struct tsri_asking *a)
{
    const struct tsri_told *x = &a->answer, *full = &a->full;
    tsri_cli_json(",\"full_answer\":", full->text);
    printf(",\"full_ended\":\"%s\"", ended_name(full->ended));
    print_number("full_s", full->ttft_s);
    print_number("full_answer_s", full->answer_s);
    print_number("kl", a->kl);
    print_flag("same_answer", same_answer(a));
    print_flag("says_same", says_same(a));
    print_flag("same_first_token",
               x->n_tokens && full->n_tokens && x->tokens[0] == full->tokens[0]);
}

static void print_passages(const struct tsri_asking *a)
{
    printf(",\"passages\":[");
    for (size_t i = 0; i < a->found.n; i++) {
        const struct tsri_passage *p = &a->found.items[i];
        tsri_cli_json(i ? ",{\"document\":" : "{\"document\":", p->name);
        tsri_cli_json(",\"folder\":", a->folders.names[p->folder]);
        printf(",\"passage\":%u,\"of\":%u,\"first_byte\":%llu", p->number + 1, p->n_in_file,
               (unsigned long long)p->first_byte);
        print_number("rank", p->rank);
        tsri_cli_json(",\"text\":", p->text);
        putchar('}');
    }
    putchar(']');
}

void tsri_cost_json(const struct tsri_asking *a)
{
    const struct tsr_blend_report *r = &a->report;
    double sure = a->n_turns == 1 ? tsri_trust_sure(r) : NAN;
    tsri_cli_json("{\"question\":", a->question);
    tsri_cli_json(",\"answer\":", a->answer.text);
    printf(",\"ended\":\"%s\"", ended_name(a->answer.ended));
    printf(",\"tokens\":{\"prompt\":%u,\"exact\":%u,\"reused\":%u,\"recomputed\":%u,\"new\":%u,"
           "\"filled\":%u,\"stored\":%u,\"failed\":%u,\"answer\":%u},\"tiers\":[",
           r->n_tokens, r->n_exact, r->n_reused, r->n_recomputed, r->n_new, r->n_filled,
           r->n_stored, r->n_failed, a->answer.n_tokens);
    for (int i = 0; i < 8; i++)
        printf("%s%u", i ? "," : "", r->tier_tokens[i]);
    printf("],\"selector\":\"%s\",\"reasons\":%u", tsr_selector_name(r->selector), r->reasons);
    print_number("ratio", r->ratio);
    print_number("bias", r->bias);
    print_flag("first", r->reasons & TSR_BLEND_FIRST);
    print_flag("costly", r->reasons & TSR_BLEND_COSTLY);
    print_flag("exact", sure >= 1);
    print_number("sure", sure);
    printf(",\"rounds\":%u", r->n_rounds);
    print_number("ttft_s", a->answer.ttft_s);
    print_number("answer_s", a->answer.answer_s);
    print_number("wait_s", r->wait_s);
    print_number("open_s", a->reader.open_s);
    print_number("full_estimate_s", a->compare ? NAN : a->full_guess_s);
    print_number("speedup", n_known(r) ? a->full_guess_s / a->answer.ttft_s : NAN);
    if (a->compare) print_compared(a);
    if (a->chooses) print_passages(a);
    puts("}");
    fflush(stdout);
}

/* ---- both answers ---- */

void tsri_cost_both(const struct tsri_asking *a)
{
    char heads[2][80];
    snprintf(heads[0], sizeof heads[0], "from the store (after %.2f s)", a->answer.ttft_s);
    snprintf(heads[1], sizeof heads[1], "full read (after %.2f s)", a->full.ttft_s);
    struct tsri_sides sides = {{heads[0], heads[1]}, {a->answer.text, a->full.text}};
    tsri_sides_print(stdout, &sides, tsri_sides_width(STDOUT_FILENO));
}
