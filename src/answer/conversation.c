/* conversation.c - a conversation of any messages as one prompt. As in dialog.c, the template runs over
 * marks; here there is one for each message, and what the messages say takes their place as tokens
 * of its own. Special tokens count in the template's text and nowhere else. */
#include "answer/answer.h"

#include <stdio.h>
#include <stdlib.h>

#define MARK_BYTES 16u
#define RENDERED_BYTES_MAX ((size_t)1 << 20)

static void mark_of(uint32_t i, char mark[static MARK_BYTES])
{
    snprintf(mark, MARK_BYTES, "\x01%u\x01", i);
}

/* The template over marks; for models without one, a plain form of dialog. */
static int render(const struct tsr_model *model, const struct tsr_chat_message *messages,
                  uint32_t n, bool has_template, char *text, size_t room)
{
    if (has_template) return tsr_model_chat(model, messages, n, text, room);
    size_t length = 0;
    for (uint32_t i = 0; i < n; i++) {
        const char *role = messages[i].role, *mark = messages[i].content;
        char part[1024];
        int bytes = strcmp(role, "assistant") == 0 ? snprintf(part, sizeof part, "%s\n\n", mark)
                    : strcmp(role, "system") == 0
                        ? snprintf(part, sizeof part, "%s\n\n", mark)
                        : snprintf(part, sizeof part, "%s\nAnswer: ", mark);
        for (int k = 0; k < bytes && k < (int)sizeof part - 1; k++, length++)
            if (length < room) text[length] = part[k];
    }
    return (int)length;
}

static int render_all(const struct tsr_model *model, const struct tsri_message *messages,
                      uint32_t n, bool has_template, char **out)
{
    char(*marks)[MARK_BYTES] = malloc(n * sizeof *marks);
    struct tsr_chat_message *over = malloc(n * sizeof *over);
    size_t room = 4096 + (size_t)n * 256;
    char *text = NULL;
    int bytes = marks && over ? 0 : tsri_fail(TSR_ENOMEM, "no memory");
    for (uint32_t i = 0; !bytes && i < n; i++) {
        mark_of(i, marks[i]);
        over[i] = (struct tsr_chat_message){messages[i].role,
                                            messages[i].trusted ? messages[i].text : marks[i]};
    }
    while (bytes >= 0) {
        free(text);
        text = malloc(room + 1);
        bytes = text ? render(model, over, n, has_template, text, room)
                     : tsri_fail(TSR_ENOMEM, "no memory");
        if (bytes < 0 || (size_t)bytes <= room) break;
        if ((size_t)bytes > RENDERED_BYTES_MAX)
            bytes = tsri_fail(TSR_ERANGE, "the chat template makes %d bytes", bytes);
        else
            room = (size_t)bytes;
    }
    free(marks);
    free(over);
    if (bytes < 0) {
        free(text);
        return bytes;
    }
    text[bytes] = 0;
    *out = text;
    return 0;
}

/* What a message says, in place of its mark. Its documents come first, as they do in a question of
 * dialog.c, and the tokens are the same as there. */
static int add_message(struct tsri_dialog *d, const struct tsri_message *m)
{
    size_t n_before = d->n_segments;
    int e = 0;
    for (size_t i = 0; i < m->n_documents && !e; i++)
        e = tsri_dialog_add_document(d, &m->documents[i]);
    if (!e && d->n_segments > n_before) e = tsri_dialog_add_text(d, "Question: ", 10, 0);
    if (!e && m->bytes) e = tsri_dialog_add_text(d, m->text, m->bytes, 0);
    return e;
}

int tsri_dialog_init_messages(struct tsri_dialog *d, const struct tsr_model *model,
                              const struct tsri_message *messages, uint32_t n)
{
    struct tsr_model_info info = {.size = sizeof info};
    char *text = NULL;
    memset(d, 0, sizeof *d);
    d->model = model;
    int e = tsr_model_info(model, &info);
    if (e < 0) return e;
    if (n == 0) return tsri_fail(TSR_EINVAL, "a conversation needs a message");
    d->context = info.context;
    d->must_fit = true;
    e = render_all(model, messages, n, (info.caps & TSR_MODEL_CHAT) != 0, &text);
    if (e) return e;
    /* The system prompt is a segment up to where the first user speaks, if anything of it is left
     * to the documents. */
    bool has_system = false;
    uint32_t flags = TSR_TEXT_START | TSR_TEXT_SPECIAL;
    char *at = text;
    for (uint32_t i = 0; i < n && !e; i++) {
        char mark[MARK_BYTES];
        if (messages[i].trusted) continue; /* the template has it */
        mark_of(i, mark);
        char *found = strstr(at, mark);
        if (!found) {
            e = tsri_fail(TSR_EUNSUP, "the model's chat template drops message %u (%s)", i + 1,
                          messages[i].role);
            break;
        }
        e = tsri_dialog_add_text(d, at, (size_t)(found - at), flags);
        flags = TSR_TEXT_SPECIAL;
        if (!e && !has_system && strcmp(messages[i].role, "system") != 0) {
            has_system = true;
            if (d->n_tokens) e = tsri_dialog_end_segment(d, 0);
        }
        if (!e) e = add_message(d, &messages[i]);
        at = found + strlen(mark);
    }
    if (!e) e = tsri_dialog_add_text(d, at, strlen(at), TSR_TEXT_SPECIAL);
    free(text);
    return e;
}
