/* ask_folders.c - folders of documents that questions are asked about. Their text is kept as
 * passages in a database beside the store. A folder that is small enough goes into the prompt
 * whole; of a larger one the passages that the question is about. */
#include "cli/ask.h"

#include <stdlib.h>

/* ---- opening ---- */

struct heard {
    const struct tsri_folders *folders;
    double next_s;
};

static void hear(void *arg, const struct tsri_sync_state *state)
{
    struct heard *h = arg;
    if (state->skipped) {
        tsri_cli_progress_end();
        if (h->folders->n == 1)
            tsri_cli_note("%s/%s %s: skipped", h->folders->names[0], state->skipped, state->why);
        else
            tsri_cli_note("%s %s: skipped", state->skipped, state->why);
        return;
    }
    double now = tsri_cli_now_s();
    if (now < h->next_s) return;
    h->next_s = now + 0.2;
    tsri_cli_progress("looking through the documents", state->n_bytes_done, state->n_bytes);
}

static int open_search(struct tsri_folders *f, struct tsri_cli *cli, bool stores)
{
    char home[4096];
    int e = stores ? tsri_cli_config(cli) : 0;
    if (e) return e;
    if (stores) {
        tsri_reader_store(cli->config, home, sizeof home);
        int err = tsri_search_open(&f->search, home, f->names, f->n);
        if (err == 0) return 0;
        if (err == TSR_EIO || err == TSR_EPERM || err == TSR_EBUSY)
            tsri_cli_note("continuing without the index of the documents: %s", tsr_errmsg());
        else
            return tsri_cli_failed();
    }
    return tsri_cli_check(tsri_search_open(&f->search, NULL, f->names, f->n));
}

int tsri_folders_add(struct tsri_folders *f, const char *name)
{
    if (f->n == TSRI_SEARCH_FOLDERS_MAX)
        return tsri_cli_fail("more than %u folders", TSRI_SEARCH_FOLDERS_MAX);
    f->names[f->n++] = name;
    return 0;
}

int tsri_folders_open(struct tsri_folders *f, struct tsri_cli *cli, bool stores)
{
    struct heard h = {.folders = f, .next_s = tsri_cli_now_s() + 0.5};
    if (f->n == 0) return 0;
    int e = open_search(f, cli, stores);
    if (e) return e;
    if (tsri_search_sync(f->search, hear, &h, NULL, NULL) != 0) return tsri_cli_failed();
    tsri_cli_progress_end();
    if (tsri_search_stats(f->search, &f->stats) != 0) return tsri_cli_failed();
    if (f->stats.n_files == 0) return tsri_cli_fail("%s: no documents found", f->names[0]);
    return 0;
}

void tsri_folders_fini(struct tsri_folders *f)
{
    tsri_search_close(f->search);
    memset(f, 0, sizeof *f);
}

/* ---- reading ---- */

int tsri_folders_each(struct tsri_folders *f, int (*each)(void *arg, const struct tsri_passage *p),
                      void *arg)
{
    struct tsri_passages last = {0};
    int e = 0;
    do {
        struct tsri_passages part;
        const struct tsri_passage *after = last.n ? &last.items[last.n - 1] : NULL;
        if (tsri_search_list(f->search, after, 64, &part) != 0) e = tsri_cli_failed();
        for (size_t i = 0; !e && i < part.n; i++)
            e = each(arg, &part.items[i]);
        tsri_passages_fini(&last);
        last = part;
    } while (!e && last.n);
    tsri_passages_fini(&last);
    return e;
}

int tsri_folders_take(struct tsri_documents *d, const struct tsri_passage *p)
{
    if (d->n == TSRI_DOCUMENTS_MAX)
        return tsri_cli_fail("more than %u passages: use fewer documents", TSRI_DOCUMENTS_MAX);
    void *more = tsri_make_room(d->items, &d->n_room, d->n + 1, sizeof *d->items);
    if (!more) return tsri_cli_failed();
    d->items = more;
    struct tsri_document doc = {strdup(p->title), strdup(p->text), p->bytes};
    d->items[d->n++] = doc;
    return doc.name && doc.text ? 0 : tsri_cli_fail("no memory");
}
