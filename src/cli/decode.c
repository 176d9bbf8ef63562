/* decode.c - an answer, token by token, until the model ends it, it is too long, or it repeats
 * itself. What is shown is never taken back: text that may turn out to be a repetition is held back
 * until something else follows. */
#include "cli/asking.h"
#include "answer/repeat.h"

#include <stdlib.h>

int tsri_told_init(struct tsri_told *a, uint32_t n_max)
{
    *a = (struct tsri_told){.n_max = n_max};
    a->tokens = malloc(((size_t)n_max + 1) * sizeof *a->tokens);
    a->ends = malloc(((size_t)n_max + 1) * sizeof *a->ends);
    a->text = tsri_make_room(NULL, &a->n_room, 1, 1);
    return a->tokens && a->ends && a->text ? 0 : tsri_cli_fail("no memory");
}

void tsri_told_fini(struct tsri_told *a)
{
    free(a->tokens);
    free(a->ends);
    free(a->text);
    memset(a, 0, sizeof *a);
}

static int show(struct tsri_told *a, size_t n, bool last)
{
    if (n > a->n_shown) tsri_cli_put_text(a->text + a->n_shown, n - a->n_shown);
    if (n > a->n_shown) a->n_shown = n;
    if (last) putchar('\n');
    return fflush(stdout) == 0 ? 0 : tsri_cli_fail("cannot write the answer");
}

static int add_token(struct tsri_told *a, const struct tsr_model *model, uint32_t token)
{
    int n = tsr_model_detokenize(model, &token, 1, 0, NULL, 0);
    if (n < 0) return tsri_cli_failed();
    char *more = tsri_make_room(a->text, &a->n_room, a->n_text + (size_t)n + 1, 1);
    if (!more) return tsri_cli_failed();
    a->text = more;
    if (tsr_model_detokenize(model, &token, 1, 0, a->text + a->n_text, (size_t)n) != n)
        return tsri_cli_failed();
    a->n_text += (size_t)n;
    a->text[a->n_text] = 0;
    a->ends[a->n_tokens] = a->n_text;
    a->tokens[a->n_tokens++] = token;
    return 0;
}

/* Whether it repeats itself: then it ends before that. */
static bool repeats(struct tsri_told *a)
{
    size_t keep = tsri_repeat_cut(a->text, a->n_text);
    if (keep == a->n_text) return false;
    a->n_text = keep;
    a->text[keep] = 0;
    while (a->n_tokens && a->ends[a->n_tokens - 1] > keep)
        a->n_tokens--;
    a->ended = TSRI_ENDED_REPEAT;
    return true;
}

static int show_safe(struct tsri_told *a, const struct tsri_decode *d)
{
    if (!d->shows) return 0;
    size_t n = d->may_repeat ? a->n_text : tsri_repeat_safe(a->text, a->n_text);
    return show(a, n - tsri_utf8_unfinished(a->text, n), false);
}

int tsri_told_decode(struct tsri_told *a, const struct tsri_decode *d)
{
    const struct tsri_reader *r = d->reader;
    uint32_t max = a->n_max < d->n_max ? a->n_max : d->n_max;
    uint32_t n_known = d->sampler->temperature > 0 ? 0 : d->n_draft;
    int e = 0;
    a->n_tokens = 0;
    a->n_text = a->n_shown = 0;
    a->text[0] = 0;
    a->ended = TSRI_ENDED_LENGTH;
    for (uint32_t i = 0; i < max && !e; i++) {
        uint32_t token =
            i < n_known ? d->draft[i] : tsri_sampler_pick(d->sampler, r->logits, r->info.n_vocab);
        if (token == TSRI_NO_TOKEN) return tsri_fail(TSR_EDEVICE, TSRI_NO_TOKEN_TEXT);
        if (i == 0) a->ttft_s = tsri_cli_now_s() - d->start_s;
        if (tsr_model_is_end(r->model, token)) {
            a->ended = TSRI_ENDED_STOP;
            break;
        }
        e = add_token(a, r->model, token);
        if (!e && !d->may_repeat && repeats(a)) break;
        if (!e) e = show_safe(a, d);
        if (e || i + 1 == max) break;
        if (i + 1 < n_known) continue; /* its KV is there */
        struct tsri_more more = {.blend = d->blend,
                                 .tokens = &token,
                                 .held = d->n_prompt + i,
                                 .n = 1,
                                 .n_logits = 1,
                                 .logits = r->logits,
                                 .session = d->session};
        e = tsri_reader_go_on(r, &more);
    }
    a->answer_s = tsri_cli_now_s() - d->start_s - a->ttft_s;
    if (!e && d->shows) e = show(a, a->n_text, true);
    return e;
}
