/* dialog.c - from documents and questions to tokens. The model's chat template is applied once, to
 * messages whose contents are marks; the text between the marks is the template's own, in
 * which special tokens count. Documents and questions are tokenised by themselves, without special
 * tokens, and joined as tokens: nothing that a document says can end it, and its tokens are the
 * same at every place, so the cache finds it again. */
#include "answer/answer.h"
#include "search/search.h"

#include <stdio.h>
#include <stdlib.h>

/* No template has control characters of its own. */
#define MARK_1 \
    "\x01" \
    "1" \
    "\x01"
#define MARK_2 \
    "\x01" \
    "2" \
    "\x01"
#define MARK_3 \
    "\x01" \
    "3" \
    "\x01"
#define TEMPLATE_BYTES_MAX ((size_t)1 << 20)
#define COUNTED_BYTES ((size_t)16 << 10) /* of a text at once */
#define TOKENS_MORE 16u                  /* than bytes, where a text is short */

static int add_tokens(struct tsri_dialog *d, const uint32_t *tokens, size_t n)
{
    void *more = tsri_make_room(d->tokens, &d->n_room, d->n_tokens + n, sizeof *tokens);
    if (!more) return TSR_ENOMEM;
    d->tokens = more;
    if (n) memcpy(d->tokens + d->n_tokens, tokens, n * sizeof *tokens);
    d->n_tokens += n;
    return 0;
}

static int refuse_long(const struct tsri_dialog *d, size_t n)
{
    return tsri_fail(TSR_ERANGE, "the prompt has at least %zu tokens, the model's context has %u",
                     n, d->context);
}

/* The tokens of 15 MB take seconds, so a long text is counted in pieces first, up to where it is too
 * long. A cut changes the count by a token or two for thousands, so twice the context leaves no doubt
 * that the whole has more than the context. */
static int check_length(const struct tsri_dialog *d, const char *text, size_t bytes)
{
    size_t n = 0, limit = 2 * (size_t)d->context;
    if (bytes <= limit) return 0; /* a token has a byte at least */
    for (size_t at = 0, piece; at < bytes; at += piece) {
        piece = bytes - at < COUNTED_BYTES ? bytes - at : COUNTED_BYTES;
        /* not within a character */
        for (int i = 0; i < 3 && at + piece < bytes && (text[at + piece] & 0xC0) == 0x80; i++)
            piece--;
        int got = tsr_model_tokenize(d->model, text + at, piece, 0, NULL, 0);
        if (got < 0) return got;
        n += (size_t)got;
        if (n > limit) return refuse_long(d, d->n_tokens + n / 2);
    }
    return 0;
}

int tsri_dialog_add_text(struct tsri_dialog *d, const char *text, size_t bytes, uint32_t flags)
{
    size_t room = 0, wanted = bytes + TOKENS_MORE;
    uint32_t *tokens = NULL;
    int n = d->must_fit ? check_length(d, text, bytes) : 0;
    /* Again where tokens are less than a byte each. */
    for (int turn = 0; turn < 2 && n >= 0; turn++) {
        room = wanted;
        free(tokens);
        tokens = malloc(room * sizeof *tokens);
        n = tokens ? tsr_model_tokenize(d->model, text, bytes, flags, tokens, (uint32_t)room)
                   : tsri_fail(TSR_ENOMEM, "no memory");
        if (n < 0 || (size_t)n <= room) break;
        wanted = (size_t)n;
    }
    int e = n < 0 ? n : 0;
    if (!e && (size_t)n > room)
        e = tsri_fail(TSR_EIO, "the tokenizer gives two results for one text");
    if (!e) e = add_tokens(d, tokens, (size_t)n);
    free(tokens);
    if (!e && d->must_fit && d->n_tokens >= d->context) e = refuse_long(d, d->n_tokens);
    return e;
}

int tsri_dialog_end_segment(struct tsri_dialog *d, size_t first)
{
    void *more =
        tsri_make_room(d->segments, &d->n_segments_room, d->n_segments + 1, sizeof *d->segments);
    if (!more) return TSR_ENOMEM;
    d->segments = more;
    d->segments[d->n_segments++] =
        (struct tsr_range){(uint32_t)first, (uint32_t)(d->n_tokens - first)};
    return 0;
}

/* ---- the template ---- */

/* The template over marks, or a plain form of dialog for models without one. */
static char *render(const struct tsr_model *model, const char *system, bool has_template)
{
    struct tsr_chat_message messages[] = {
        {"system", system}, {"user", MARK_1}, {"assistant", MARK_2}, {"user", MARK_3}};
    size_t room = strlen(system) + 4096;
    for (;;) {
        char *text = malloc(room + 1);
        if (!text) return NULL;
        int n =
            has_template
                ? tsr_model_chat(model, messages, 4, text, room)
                : snprintf(text, room,
                           "%s\n\n" MARK_1 "\nAnswer: " MARK_2 "\n\n" MARK_3 "\nAnswer:", system);
        if (n >= 0 && (size_t)n <= room) {
            text[n] = 0;
            return text;
        }
        free(text);
        if (n < 0 || (size_t)n > TEMPLATE_BYTES_MAX) return NULL;
        room = (size_t)n;
    }
}

int tsri_dialog_init(struct tsri_dialog *d, const struct tsr_model *model, const char *system)
{
    struct tsr_model_info info = {.size = sizeof info};
    memset(d, 0, sizeof *d);
    d->model = model;
    int e = tsr_model_info(model, &info);
    if (e < 0) return e;
    d->context = info.context;
    if (!system) system = TSRI_SYSTEM;
    char *text = render(model, system, (info.caps & TSR_MODEL_CHAT) != 0);
    if (!text) return tsri_fail(TSR_EUNSUP, "the model's chat template failed: %s", tsr_errmsg());
    char *one = strstr(text, MARK_1), *two = one ? strstr(one, MARK_2) : NULL;
    char *three = two ? strstr(two, MARK_3) : NULL;
    if (!three) {
        e = tsri_fail(TSR_EUNSUP, "the model's chat template drops messages");
    } else {
        *three = 0;
        d->turn = strdup(two + strlen(MARK_2));
        d->tail = strdup(three + strlen(MARK_3));
        e = d->turn && d->tail ? tsri_dialog_add_text(d, text, (size_t)(one - text),
                                                      TSR_TEXT_START | TSR_TEXT_SPECIAL)
                               : tsri_fail(TSR_ENOMEM, "no memory");
    }
    if (!e) e = tsri_dialog_end_segment(d, 0);
    free(text);
    return e;
}

int tsri_dialog_init_plain(struct tsri_dialog *d, const struct tsr_model *model, const char *system)
{
    struct tsr_model_info info = {.size = sizeof info};
    memset(d, 0, sizeof *d);
    d->model = model;
    d->plain = true;
    int e = tsr_model_info(model, &info);
    if (e < 0) return e;
    d->context = info.context;
    d->turn = strdup("");
    d->tail = strdup("");
    e = d->turn && d->tail ? tsri_dialog_add_text(d, system, strlen(system), TSR_TEXT_START)
                           : tsri_fail(TSR_ENOMEM, "no memory");
    return e ? e : tsri_dialog_end_segment(d, 0);
}

void tsri_dialog_fini(struct tsri_dialog *d)
{
    free(d->tokens);
    free(d->segments);
    free(d->tail);
    free(d->turn);
    memset(d, 0, sizeof *d);
}

/* ---- contents ---- */

static int add_plain(struct tsri_dialog *d, const struct tsri_document *doc)
{
    size_t first = d->n_tokens;
    int e = tsri_dialog_add_text(d, doc->text, doc->bytes, 0);
    return e ? e : tsri_dialog_end_segment(d, first);
}

/* Every piece begins with the name, as a title: a piece may be read without its neighbours. Not
 * "Document 3:" or the like: where every piece begins with the same words, what was computed for
 * one of them alone is further from what it is among the others (docs/quality.md). */
int tsri_dialog_add_document(struct tsri_dialog *d, const struct tsri_document *doc)
{
    if (d->plain) return add_plain(d, doc);
    for (size_t done = 0; done < doc->bytes;) {
        size_t bytes = tsri_passage_bytes(doc->text + done, doc->bytes - done);
        size_t room = strlen(doc->name) + bytes + 32, first = d->n_tokens;
        char *piece = malloc(room);
        if (!piece) return tsri_fail(TSR_ENOMEM, "no memory");
        int n = snprintf(piece, room, "%s%s%.*s", doc->name, doc->name[0] ? "\n" : "", (int)bytes,
                         doc->text + done);
        while (n > 0 && (piece[n - 1] == '\n' || piece[n - 1] == ' '))
            n--;
        memcpy(piece + n, "\n\n", 2);
        int e = tsri_dialog_add_text(d, piece, (size_t)n + 2, 0);
        free(piece);
        if (!e) e = tsri_dialog_end_segment(d, first);
        if (e) return e;
        done += bytes;
    }
    return 0;
}

int tsri_dialog_add_question(struct tsri_dialog *d, const char *question)
{
    size_t documents = d->n_tokens;
    int e = d->n_segments > 1 && !d->plain ? tsri_dialog_add_text(d, "Question: ", 10, 0) : 0;
    if (!e) e = tsri_dialog_add_text(d, question, strlen(question), 0);
    if (!e) e = tsri_dialog_add_text(d, d->tail, strlen(d->tail), TSR_TEXT_SPECIAL);
    if (e) return e;
    if (d->n_tokens - documents >= d->context)
        return tsri_fail(TSR_ERANGE,
                         "the question alone has %zu tokens, the model's context has %u",
                         d->n_tokens - documents, d->context);
    return 0;
}

int tsri_dialog_add_nothing(struct tsri_dialog *d)
{
    return tsri_dialog_add_text(d, "\n", 1, 0);
}

int tsri_dialog_add_answer(struct tsri_dialog *d, const uint32_t *tokens, size_t n)
{
    return add_tokens(d, tokens, n);
}

int tsri_dialog_next_turn(struct tsri_dialog *d)
{
    return tsri_dialog_add_text(d, d->turn, strlen(d->turn), TSR_TEXT_SPECIAL);
}
