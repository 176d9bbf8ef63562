/* choosing.c - which parts of the documents a prompt has. Files that were named are in it. Folders
 * are in it whole while they are small: then nothing is left out, and every question finds the same
 * KV. Of larger folders each question gets the passages that it is about. */
#include "cli/asking.h"

#include <stdlib.h>

/* Passages that a later question adds to a conversation. */
#define LATER_PASSAGES 3u

/* Documents from `first` on into the dialog. */
static int add_documents(struct tsri_asking *a, size_t first)
{
    void *more = tsri_make_room(a->ends, &a->n_ends, a->documents.n + 1, sizeof *a->ends);
    if (!more) return tsri_cli_failed();
    a->ends = more;
    int e = 0;
    for (size_t i = first; i < a->documents.n && !e; i++) {
        e = tsri_cli_check(tsri_dialog_add_document(&a->dialog, &a->documents.items[i]));
        a->ends[i] = a->dialog.n_segments;
    }
    return e;
}

struct mark {
    size_t n_documents, n_tokens, n_segments;
};

static struct mark mark_of(const struct tsri_asking *a)
{
    return (struct mark){a->documents.n, a->dialog.n_tokens, a->dialog.n_segments};
}

static void go_back(struct tsri_asking *a, const struct mark *m)
{
    while (a->documents.n > m->n_documents) {
        struct tsri_document *doc = &a->documents.items[--a->documents.n];
        free(doc->name);
        free(doc->text);
    }
    a->dialog.n_tokens = m->n_tokens;
    a->dialog.n_segments = m->n_segments;
}

/* ---- whole folders ---- */

static int take(void *arg, const struct tsri_passage *p)
{
    return tsri_folders_take(arg, p);
}

static int add_whole(struct tsri_asking *a)
{
    size_t first = a->documents.n;
    struct tsri_passages all = {0};
    if (a->all) {
        int e = tsri_folders_each(&a->folders, take, &a->documents);
        return e ? e : add_documents(a, first);
    }
    int n = tsri_whole_passages(a->folders.search, a->reader.model, a->folders.stats.n_bytes, &all);
    if (n < 0) return tsri_cli_failed();
    a->chooses = n == 0;
    int e = 0;
    for (size_t i = 0; i < all.n && !e; i++)
        e = tsri_folders_take(&a->documents, &all.items[i]);
    tsri_passages_fini(&all);
    return e ? e : add_documents(a, first);
}

int tsri_choosing_begin(struct tsri_asking *a)
{
    int e = add_documents(a, 0);
    return e || !a->folders.search ? e : add_whole(a);
}

/* ---- passages ---- */

static bool is_in_prompt(const struct tsri_asking *a, const struct tsri_passage *p)
{
    for (size_t i = 0; i < a->documents.n; i++)
        if (a->documents.items[i].bytes == p->bytes &&
            memcmp(a->documents.items[i].text, p->text, p->bytes) == 0)
            return true;
    return false;
}

/* The rest of the prompt must fit too; the bytes of a question are more than its tokens. */
static bool fits(const struct tsri_asking *a, const char *question)
{
    size_t room = a->n_turns > 1 ? a->reader.n_slots : a->reader.info.context;
    return a->dialog.n_tokens + strlen(question) + a->answer_max + 64 <= room;
}

/* Best last, right before the question: small models look there. */
static int add_found(struct tsri_asking *a, const char *question)
{
    int e = 0;
    while (a->found.n) {
        struct mark before = mark_of(a);
        for (size_t i = a->found.n; i > 0 && !e; i--)
            e = tsri_folders_take(&a->documents, &a->found.items[i - 1]);
        if (!e) e = add_documents(a, before.n_documents);
        if (e || fits(a, question)) return e;
        go_back(a, &before);
        tsri_passages_drop(&a->found, a->found.n - 1);
    }
    return 0;
}

int tsri_choosing_find(struct tsri_asking *a, const char *question)
{
    bool later = a->n_turns > 1;
    if (!a->chooses) return 0;
    tsri_passages_fini(&a->found);
    if (tsri_search_find(a->folders.search, question, a->passages_max, SIZE_MAX, &a->found) != 0)
        return tsri_cli_failed();
    if (a->found.n == 0 && !later)
        return tsri_cli_fail(
            "none of the %llu documents has a word of the question: use words that "
            "they use, or name files with --doc",
            (unsigned long long)a->folders.stats.n_files);
    for (size_t i = a->found.n; later && i > 0; i--)
        if (is_in_prompt(a, &a->found.items[i - 1])) tsri_passages_drop(&a->found, i - 1);
    while (later && a->found.n > LATER_PASSAGES)
        tsri_passages_drop(&a->found, a->found.n - 1);
    bool found = a->found.n > 0;
    int e = add_found(a, question);
    if (!e && found && a->found.n == 0 && !later)
        return tsri_cli_fail("no passage fits into the model's context of %u tokens beside the "
                             "question and %u tokens of answer: use a smaller --max",
                             a->reader.info.context, a->answer_max);
    return e;
}

/* ---- their order ---- */

/* The documents as their segments are now; each has one. */
static void move_document(struct tsri_documents *d, size_t lead)
{
    struct tsri_document first = d->items[lead];
    memmove(d->items + 1, d->items, lead * sizeof *d->items);
    d->items[0] = first;
}

int tsri_choosing_lead(struct tsri_asking *a, struct tsr_blend_report *look)
{
    struct tsri_dialog *d = &a->dialog;
    uint32_t n = (uint32_t)d->n_segments, system = a->ask.system;
    /* Pieces of one document stay together. */
    if (!a->free_order || n != a->documents.n + system) return 0;
    double *looks = malloc(n * sizeof *looks);
    if (!looks) return tsri_cli_fail("no memory");
    int found = tsr_blend_look(a->reader.blend, &a->ask, looks, look);
    int lead = found > 0 ? tsr_segments_lead(d->tokens, d->segments, n, system, looks) : TSR_ENOENT;
    free(looks);
    if (found < 0) return tsri_cli_failed();
    if (lead < 0) return 0;
    move_document(&a->documents, (size_t)lead - system);
    a->ask.flags |= TSR_ASK_LEAD;
    return 0;
}
