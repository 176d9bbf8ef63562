/* seeking.c - what a question gets of the server's folders. Small folders are in every prompt whole, as
 * in `tessera ask`. Of larger ones a question gets the passages that it is about. A question that goes
 * on with another one ("How long has she been that?") does not name what it is about, so a question
 * whose words find little is looked for together with those before it. */
#include "serve/serve.h"

#include <stdlib.h>

/* What a search may bring: passages, and the part of the context that they may take. */
#define FOUND_MAX 24u
#define FOUND_PART 2u      /* half of it */
#define BYTES_PER_TOKEN 3u /* of text, rather too few than too many */
#define FOUND_BYTES_MAX ((size_t)24 << 10)
/* Questions before the last one that are looked at, and how much of each. */
#define EARLIER_MAX 3u
#define EARLIER_BYTES_MAX ((size_t)1024)
/* A question finds little if the best passage ranks below this part of the best one that it finds
 * together with the question before it. One that names its subject ranks higher: BM25 is a sum over
 * words, and the earlier question then adds words that its passages do not have. */
#define LITTLE 0.5

/* ---- two results ---- */

static double best_of(const struct tsri_passages *f)
{
    return f->n ? f->items[0].rank : 0;
}

static bool has(const struct tsri_passages *f, const struct tsri_passage *p)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->items[i].number == p->number && f->items[i].folder == p->folder &&
            strcmp(f->items[i].name, p->name) == 0)
            return true;
    return false;
}

static bool take_first(struct tsri_passages *from, struct tsri_passages *to, size_t *n_bytes,
                       size_t max_bytes)
{
    struct tsri_passage *p = &from->items[0];
    if (has(to, p) || to->n == FOUND_MAX || *n_bytes + p->bytes > max_bytes) {
        tsri_passages_drop(from, 0);
        return true;
    }
    if (!tsri_passages_move(from, 0, to)) return false;
    *n_bytes += to->items[to->n - 1].bytes;
    return true;
}

/* Best of either first, in turn, into `of`. `with` has the words of both questions. */
static int merge(struct tsri_passages *of, struct tsri_passages *with, size_t max_bytes)
{
    struct tsri_passages both = {0};
    size_t n_bytes = 0;
    bool fine = true;
    while (fine && (of->n || with->n)) {
        if (with->n) fine = take_first(with, &both, &n_bytes, max_bytes);
        if (fine && of->n) fine = take_first(of, &both, &n_bytes, max_bytes);
    }
    tsri_passages_fini(of);
    *of = both;
    return fine ? 0 : TSR_ENOMEM;
}

/* ---- questions ---- */

static const struct tsri_message *last_question(const struct tsri_api_request *q, uint32_t *at)
{
    while (*at > 0)
        if (strcmp(q->messages[--*at].role, "user") == 0) return &q->messages[*at];
    return NULL;
}

/* Adds an earlier question to a query, in part if it is long. */
static size_t add_question(char *query, size_t n, const struct tsri_message *m)
{
    size_t bytes = m->bytes < EARLIER_BYTES_MAX ? m->bytes : EARLIER_BYTES_MAX;
    while (bytes && bytes < m->bytes &&
           (m->text[bytes] & 0xC0) == 0x80) /* not within a character */
        bytes--;
    query[n++] = '\n';
    memcpy(query + n, m->text, bytes);
    query[n + bytes] = 0;
    return n + bytes;
}

int tsri_seek_passages(const struct tsri_serve *s, const struct tsri_api_request *q,
                       struct tsri_passages *found)
{
    uint32_t at = q->n_messages;
    const struct tsri_message *m = last_question(q, &at);
    size_t bytes = (size_t)s->info.context / FOUND_PART * BYTES_PER_TOKEN;
    if (bytes > FOUND_BYTES_MAX) bytes = FOUND_BYTES_MAX;
    memset(found, 0, sizeof *found);
    if (!m) return 0;
    int e = tsri_search_find(s->desc.search, m->text, FOUND_MAX, bytes, found);
    char *query = e ? NULL : malloc(m->bytes + EARLIER_MAX * (EARLIER_BYTES_MAX + 1) + 1);
    if (!e && !query) e = tsri_fail(TSR_ENOMEM, "no memory");
    size_t n = m->bytes;
    if (query) memcpy(query, m->text, n + 1);
    /* Passages that have an "and" of the question's are none that it is about. */
    bool says = query && tsri_search_has_subject(query);
    double best = says ? best_of(found) : 0;
    for (uint32_t i = 0; i < EARLIER_MAX && !e && (m = last_question(q, &at)); i++) {
        struct tsri_passages with;
        n = add_question(query, n, m);
        e = tsri_search_find(s->desc.search, query, FOUND_MAX, bytes, &with);
        bool little = !e && best < best_of(&with) * LITTLE;
        if (little && !says) tsri_passages_fini(found);
        says = says || tsri_search_has_subject(query);
        best = says ? best_of(&with) : 0;
        if (little) e = merge(found, &with, bytes);
        tsri_passages_fini(&with);
        /* Where nothing is found yet, the question before that one may say what it is about. */
        if (!little && best > 0) break;
    }
    free(query);
    if (e) tsri_passages_fini(found);
    return e;
}

int tsri_seek_whole(struct tsri_serve *s, struct tsri_passages *found)
{
    struct tsri_search_stats now = tsri_search_counts(s->desc.search);
    memset(found, 0, sizeof *found);
    pthread_mutex_lock(&s->lock);
    bool large = s->counted && now.n_bytes == s->large.n_bytes && now.n_files == s->large.n_files &&
                 now.n_passages == s->large.n_passages;
    pthread_mutex_unlock(&s->lock);
    if (large) return 0;
    int n = tsri_whole_passages(s->desc.search, s->desc.model, now.n_bytes, found);
    if (n == 0) {
        pthread_mutex_lock(&s->lock);
        s->counted = true;
        s->large = now;
        pthread_mutex_unlock(&s->lock);
    }
    return n;
}
