/* prompts.c - from a request to the tokens that the model reads. Documents are segments: those of the
 * request's list and whole folders come before the first question, those that a search has found
 * before the last one, and those among the messages stay where they are. */
#include "serve/serve.h"

#include <stdio.h>
#include <stdlib.h>

/* For the model, where the system prompt wants an answer from the documents alone. Of six wordings, a
 * small model obeyed this one most often; without any it makes an answer up. */
#define NOTHING_FOUND "There is no document about this question. Say so."

/* The question that documents come before. Those of a list and whole folders stand before the first
 * one: in the next turn everything up to there is the same prompt. What a search finds belongs to the
 * last one. */
static struct tsri_message *question_of(struct tsri_flow *f)
{
    struct tsri_api_request *q = &f->request;
    struct tsri_message *found = NULL;
    for (uint32_t i = 0; i < q->n_messages && !(found && (q->n_listed || f->whole)); i++)
        if (strcmp(q->messages[i].role, "user") == 0) found = &q->messages[i];
    return found;
}

static bool no_memory(struct tsri_refusal *no)
{
    return tsri_refuse(no, 503, NULL, NULL, "no memory");
}

static json_t *name_document(struct tsri_flow *f, const char *name, size_t bytes)
{
    json_t *row = json_pack("{s:s, s:I}", "name", name, "bytes", (json_int_t)bytes);
    return row && json_array_append_new(f->documents, row) == 0 ? row : NULL;
}

static bool name_passage(struct tsri_flow *f, const struct tsri_passage *p)
{
    json_t *row = name_document(f, p->name, p->bytes);
    if (!row) return false;
    json_object_set_new(row, "passage", json_integer(p->number + 1));
    json_object_set_new(row, "passages", json_integer(p->n_in_file));
    json_object_set_new(row, "first_byte", json_integer((json_int_t)p->first_byte));
    json_object_set_new(row, "text", json_stringn(p->text, p->bytes));
    return true;
}

static bool name_own(struct tsri_flow *f, struct tsri_refusal *no)
{
    f->documents = json_array();
    if (!f->documents) return no_memory(no);
    for (size_t i = 0; i < f->request.n_documents; i++) {
        const struct tsri_document *d = &f->request.documents[i];
        if (!name_document(f, d->name, d->bytes)) return no_memory(no);
    }
    return true;
}

/* The question with what comes before it: listed documents, passages, and its own. */
static struct tsri_document *gather(const struct tsri_api_request *q, const struct tsri_message *m,
                                    const struct tsri_passages *found, size_t *n)
{
    struct tsri_document *all =
        tsri_alloc(q->n_listed + found->n + m->n_documents + 1, sizeof *all);
    *n = 0;
    if (!all) return NULL;
    for (size_t i = 0; i < q->n_listed; i++)
        all[(*n)++] = q->documents[i];
    for (size_t i = 0; i < found->n; i++)
        all[(*n)++] = (struct tsri_document){.name = (char *)(uintptr_t)found->items[i].title,
                                             .text = (char *)(uintptr_t)found->items[i].text,
                                             .bytes = found->items[i].bytes};
    for (size_t i = 0; i < m->n_documents; i++)
        all[(*n)++] = m->documents[i];
    return all;
}

/* ---- chat ---- */

static bool has_system(const struct tsri_api_request *q)
{
    return strcmp(q->messages[0].role, "system") == 0;
}

/* The question, after a line that says that no document was found. It stands where documents would,
 * so the system prompt, and with it the begin of every prompt, stays the same. NULL: no memory. */
static char *tell_none(const struct tsri_message *m, size_t *bytes)
{
    static const char none[] = NOTHING_FOUND "\n\nQuestion: ";
    char *text = malloc(sizeof none + m->bytes);
    if (!text) return NULL;
    memcpy(text, none, sizeof none - 1);
    memcpy(text + sizeof none - 1, m->text, m->bytes + 1);
    *bytes = sizeof none - 1 + m->bytes;
    return text;
}

static int make_chat(struct tsri_api_request *q, const struct tsr_model *model, bool documents,
                     struct tsri_dialog *d)
{
    if (!documents || has_system(q))
        return tsri_dialog_init_messages(d, model, q->messages, q->n_messages);
    /* Documents without a system prompt get the one of `tessera ask`. */
    struct tsri_message *with = tsri_alloc(q->n_messages + 1, sizeof *with);
    if (!with) return TSR_ENOMEM;
    with[0] = (struct tsri_message){.role = "system", .trusted = true, .text = TSRI_SYSTEM};
    memcpy(with + 1, q->messages, q->n_messages * sizeof *with);
    int e = tsri_dialog_init_messages(d, model, with, q->n_messages + 1);
    tsri_free(with);
    return e;
}

/* ---- completions ---- */

static int make_plain(const struct tsri_api_request *q, const struct tsri_message *m,
                      const struct tsr_model *model, struct tsri_dialog *d)
{
    struct tsr_model_info info = {.size = sizeof info};
    memset(d, 0, sizeof *d);
    d->model = model;
    d->plain = true;
    d->must_fit = true;
    int e = tsr_model_info(model, &info);
    d->context = info.context;
    const struct tsri_message *first = q->n_messages > 1 ? &q->messages[0] : NULL;
    /* A text that begins the prompt may get a token before it. */
    if (!e)
        e = tsri_dialog_add_text(d, first ? first->text : "", first ? first->bytes : 0,
                                 TSR_TEXT_START);
    for (size_t i = 0; m && i < m->n_documents && !e; i++)
        e = tsri_dialog_add_document(d, &m->documents[i]);
    if (!e && q->tokens) {
        d->tokens = tsri_make_room(d->tokens, &d->n_room, d->n_tokens + q->n_tokens, 4);
        if (!d->tokens) return TSR_ENOMEM;
        for (uint32_t i = 0; i < q->n_tokens && !e; i++)
            if (q->tokens[i] >= info.n_vocab)
                e = tsri_fail(TSR_EINVAL, "prompt: token %u is not one of the model's %u",
                              q->tokens[i], info.n_vocab);
        if (!e) memcpy(d->tokens, q->tokens, q->n_tokens * sizeof *d->tokens);
        d->n_tokens = q->n_tokens;
        return e;
    }
    return e ? e : tsri_dialog_add_text(d, m->text, m->bytes, 0);
}

/* ---- both ---- */

static bool refuse_error(const struct tsri_flow *f, int e, struct tsri_refusal *no)
{
    if (e == TSR_ERANGE)
        return tsri_refuse(no, 400, "context_length_exceeded",
                           f->request.api == TSRI_API_CHAT ? "messages" : "prompt", "%s",
                           tsr_errmsg());
    unsigned status = e == TSR_ENOMEM ? 503 : e == TSR_EIO || e == TSR_EDEVICE ? 500 : 400;
    return tsri_refuse(no, status, NULL, NULL, "%s", tsr_errmsg());
}

/* The prompt with these passages. */
static int make_with(struct tsri_flow *f, const struct tsri_passages *found, struct tsri_dialog *d)
{
    struct tsri_api_request *q = &f->request;
    struct tsri_message *m = question_of(f);
    const struct tsr_model *model = f->serve->desc.model;
    struct tsri_document *all = NULL;
    struct tsri_message before = {0};
    char *text = NULL;
    if (m) before = *m;
    if (m && (q->n_listed || found->n)) {
        size_t n;
        all = gather(q, m, found, &n);
        if (!all) return TSR_ENOMEM;
        m->documents = all;
        m->n_documents = n;
    } else if (m && f->searched && !has_system(q)) {
        text = tell_none(m, &m->bytes);
        if (!text) return TSR_ENOMEM;
        m->text = text;
    }
    bool documents = q->n_documents + found->n > 0 || f->searched;
    int e =
        q->api == TSRI_API_CHAT ? make_chat(q, model, documents, d) : make_plain(q, m, model, d);
    if (m) *m = before;
    tsri_free(all);
    free(text);
    if (e < 0) tsri_dialog_fini(d);
    return e;
}

/* Tokens that passages leave to the answer. */
static uint32_t answer_room(const struct tsri_dialog *d)
{
    return d->context / 8;
}

/* Without passages for the question, there are just none. */
static bool search(struct tsri_flow *f, struct tsri_passages *found, struct tsri_refusal *no)
{
    f->whole = false;
    tsri_passages_fini(found);
    if (tsri_seek_passages(f->serve, &f->request, found) >= 0) return true;
    return tsri_refuse(no, 503, NULL, NULL, "search: %s", tsr_errmsg());
}

/* The server's folders whole, or what the question is about. */
static bool seek(struct tsri_flow *f, struct tsri_passages *found, struct tsri_refusal *no)
{
    f->searched = true;
    int n = tsri_seek_whole(f->serve, found);
    if (n < 0) return tsri_refuse(no, 503, NULL, NULL, "search: %s", tsr_errmsg());
    f->whole = found->n > 0;
    return f->whole || search(f, found, no);
}

/* What cannot fit is not searched for. */
static bool fits_alone(struct tsri_flow *f, struct tsri_dialog *d, struct tsri_refusal *no)
{
    const struct tsri_passages none = {0};
    if (f->n_body < f->serve->info.context) return true; /* a token has a byte at least */
    int e = make_with(f, &none, d);
    if (e >= 0) tsri_dialog_fini(d);
    return e >= 0 || refuse_error(f, e, no);
}

/* After a prompt that does not fit. Of folders that are whole: what a search finds. Of what it has
 * found, which has more tokens than its bytes promised: less of it, the best of it. */
static bool take_less(struct tsri_flow *f, struct tsri_passages *found, struct tsri_refusal *no)
{
    if (f->whole) return search(f, found, no);
    for (size_t n = found->n / 2; found->n > n;)
        tsri_passages_drop(found, found->n - 1);
    return true;
}

bool tsri_prompt_make(struct tsri_flow *f, struct tsri_dialog *d, struct tsri_refusal *no)
{
    struct tsri_api_request *q = &f->request;
    struct tsri_passages found = {0};
    const struct tsri_message *m = question_of(f);
    memset(d, 0, sizeof *d);
    if (!name_own(f, no)) return false;
    bool chat = q->api == TSRI_API_CHAT, ok = true;
    if (q->tokens && q->n_documents)
        return tsri_refuse(no, 400, NULL, "documents", "documents need a prompt that is text");
    if (q->n_listed && !m)
        return tsri_refuse(no, 400, NULL, "documents", "documents need a message of the user");
    if (m && chat && f->serve->desc.search && q->search && q->n_documents == 0)
        ok = fits_alone(f, d, no) && seek(f, &found, no);
    while (ok) {
        int e = make_with(f, &found, d);
        bool fits = e >= 0 && d->n_tokens + answer_room(d) <= d->context;
        if (e < 0 && (e != TSR_ERANGE || !found.n)) ok = refuse_error(f, e, no);
        if (!ok || !found.n || fits) break;
        tsri_dialog_fini(d);
        ok = take_less(f, &found, no);
    }
    for (size_t i = 0; i < found.n && ok; i++)
        if (!name_passage(f, &found.items[i])) ok = no_memory(no);
    tsri_passages_fini(&found);
    if (ok && d->n_tokens >= d->context)
        ok = tsri_refuse(no, 400, "context_length_exceeded", chat ? "messages" : "prompt",
                         "the prompt has %zu tokens, the model's context has %u", d->n_tokens,
                         d->context);
    if (!ok) tsri_dialog_fini(d);
    return ok;
}
