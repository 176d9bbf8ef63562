/* whole.c - folders that go into a prompt whole. While they are small nothing is left out, and every
 * question finds the same KV. Programs that answer from folders agree on what is small here. */
#include "answer/answer.h"
#include "search/search.h"

/* Folders of at most so many tokens go whole, or half of the model's context if that is less. */
#define WHOLE_TOKENS 8192u
/* No text has fewer bytes to a token than this on average: what is larger need not be counted. */
#define BYTES_PER_TOKEN_MAX 16u
#define BATCH 64u

/* Moves the passages of a part into `out`, as long as their tokens fit. 1: all of them did. */
static int take(struct tsri_dialog *d, struct tsri_passages *part, size_t max,
                struct tsri_passages *out)
{
    int e = 0;
    while (part->n && !e && d->n_tokens <= max) {
        struct tsri_passage *p = &part->items[0];
        struct tsri_document doc = {.name = (char *)(uintptr_t)p->title,
                                    .text = (char *)(uintptr_t)p->text,
                                    .bytes = p->bytes};
        e = tsri_dialog_add_document(d, &doc);
        if (!e && !tsri_passages_move(part, 0, out)) e = tsri_fail(TSR_ENOMEM, "no memory");
    }
    return e ? e : d->n_tokens <= max;
}

int tsri_whole_passages(struct tsri_search *s, const struct tsr_model *model, uint64_t n_bytes,
                        struct tsri_passages *out)
{
    struct tsr_model_info info = {.size = sizeof info};
    struct tsri_dialog d = {.model = model}; /* counts the tokens */
    memset(out, 0, sizeof *out);
    int e = tsr_model_info(model, &info);
    if (e < 0) return e;
    d.context = info.context;
    size_t max = tsri_min_u32(info.context / 2, WHOLE_TOKENS);
    if (n_bytes > (uint64_t)max * BYTES_PER_TOKEN_MAX) return 0;
    int fits = 1;
    while (fits == 1) {
        struct tsri_passages part = {0};
        e = tsri_search_list(s, out->n ? &out->items[out->n - 1] : NULL, BATCH, &part);
        bool last = part.n == 0;
        fits = e ? e : take(&d, &part, max, out);
        tsri_passages_fini(&part);
        if (last) break;
    }
    tsri_dialog_fini(&d);
    if (fits != 1) tsri_passages_fini(out);
    return fits;
}
