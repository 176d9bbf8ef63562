/* storing.c - documents are stored after the answer to the first question about them, which was a
 * plain prefill. On a terminal a bar shows how far it is. Ctrl-C stops it without harm: every
 * document that was complete stays, and the next question goes on from there. In a conversation it
 * happens while the user types, and stops for the next question. */
#include "cli/asking.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;

static void interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

struct store_watch {
    const struct tsri_asking *asking;
    bool quiet, told;
    bool typing; /* ends when a line was typed */
    uint32_t n_tokens;
    size_t n_documents, n_done; /* documents that were not stored */
    char what[96];
};

/* Which document a segment is of; documents.n for the system prompt. */
static size_t document_of(const struct tsri_asking *a, uint32_t segment)
{
    if (segment == 0) return a->documents.n;
    size_t i = 0;
    while (i < a->documents.n && a->ends[i] <= segment)
        i++;
    return i;
}

/* Passages of one file come one after another. */
static bool same_document(const struct tsri_asking *a, size_t i, size_t j)
{
    if (i >= a->documents.n || j >= a->documents.n) return i == j;
    return strcmp(a->documents.items[i].name, a->documents.items[j].name) == 0;
}

/* Documents with one of the segments [from, n) of the list. */
static size_t count_documents(const struct tsri_asking *a, const struct tsr_learn *l, uint32_t from)
{
    size_t n = 0, last = a->documents.n;
    for (uint32_t i = from; i < l->n_segments; i++) {
        size_t document = document_of(a, l->segments[i]);
        n += document < a->documents.n && !same_document(a, document, last);
        last = document;
    }
    return n;
}

static bool line_waits(void)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&in, 1, 0) > 0;
}

static int progress(void *arg, const struct tsr_learn *l)
{
    struct store_watch *s = arg;
    s->n_documents = count_documents(s->asking, l, 0);
    s->n_done = s->n_documents - count_documents(s->asking, l, l->n_segments_done);
    s->n_tokens = l->n_tokens;
    if (s->typing && line_waits()) return 1;
    if (!s->quiet && !s->told && s->n_documents) {
        snprintf(s->what, sizeof s->what, "storing %zu document%s for next time", s->n_documents,
                 s->n_documents == 1 ? "" : "s");
        if (!isatty(STDERR_FILENO)) fprintf(stderr, "%s ...\n", s->what);
        strcat(s->what, " (Ctrl-C stops it)");
        s->told = true;
    }
    if (s->told) tsri_cli_progress(s->what, l->n_tokens_done, l->n_tokens);
    return interrupted;
}

static void tell_end(const struct store_watch *s, int e, double took)
{
    tsri_cli_progress_end();
    if (!s->told) return;
    if (e < 0)
        tsri_cli_note("%zu of %zu documents are stored: %s", s->n_done, s->n_documents,
                      tsr_errmsg());
    else if (interrupted)
        fprintf(stderr, "stopped; %zu of %zu documents are stored\n", s->n_done, s->n_documents);
    else
        fprintf(stderr, "stored %zu document%s (%u tokens) in %.1f s\n", s->n_documents,
                s->n_documents == 1 ? "" : "s", s->n_tokens, took);
}

static void store(struct tsri_asking *a, bool quiet, bool typing)
{
    struct sigaction ours = {.sa_handler = interrupt, .sa_flags = (int)SA_RESETHAND}, before;
    struct store_watch s = {.asking = a, .quiet = quiet, .typing = typing};
    if (!a->stores || a->documents.n == 0 || !a->ask.n_tokens) return;
    interrupted = 0;
    struct tsr_ask_desc ask = a->ask;
    ask.session = NULL;
    ask.tokens = a->dialog.tokens; /* it has grown since */
    ask.segments = a->dialog.segments;
    double start = tsri_cli_now_s();
    sigaction(SIGINT, &ours, &before);
    int e = tsr_blend_learn(a->reader.blend, &ask, progress, &s);
    sigaction(SIGINT, &before, NULL);
    if (!quiet) tell_end(&s, e, tsri_cli_now_s() - start);
    /* Killed at its prompt, a conversation still has what was stored. */
    if (e > 0 && tsr_cache_flush(a->reader.cache) < 0)
        tsri_cli_note("not everything was stored: %s", tsr_errmsg());
}

void tsri_storing_finish(struct tsri_asking *a)
{
    store(a, a->cli->json, false);
}

bool tsri_storing_wait(struct tsri_asking *a)
{
    store(a, true, true);
    if (interrupted) a->stores = false; /* a user who leaves does not want to wait */
    return !interrupted;
}
