/* api.h - a request of the OpenAI API as we understand it, and errors as that API has them. Pure:
 * bytes in, a struct or a refusal out. What OpenAI ignores is ignored; what we cannot do is refused
 * by name, so that nobody takes an answer for one that obeyed.
 *
 * Memory:  strings and documents live as long as the request; fini accepts what was only zeroed.
 * Errors:  false, and the refusal says why.
 */
#ifndef TSRI_SERVE_API_H
#define TSRI_SERVE_API_H

#include "answer/answer.h"
#include "serve/engine.h"

#include <jansson.h>

#define TSRI_API_MESSAGES_MAX 1024u
#define TSRI_API_STOPS_MAX 16u
#define TSRI_API_STOP_BYTES_MAX 256u
#define TSRI_API_NAME_BYTES_MAX 1024u /* of a document: it is put before every piece of it */
#define TSRI_API_VALUES_MAX \
    (256u << 10) /* of JSON in a body: each one costs far more than its bytes */
#define TSRI_API_TOP_MAX TSRI_ENGINE_TOP_MAX

/* An error on its way to a client. */
struct tsri_refusal {
    unsigned status;  /* of HTTP */
    const char *type; /* static: "invalid_request_error", ... */
    const char *code; /* static, or NULL */
    char param[64];   /* "": none */
    char message[640];
};
/* Fills it in; returns false. */
bool tsri_refuse(struct tsri_refusal *r, unsigned status, const char *code, const char *param,
                 const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* {"error": {...}}, for the caller to release; NULL without memory. */
json_t *tsri_refusal_json(const struct tsri_refusal *r);

enum tsri_api { TSRI_API_CHAT, TSRI_API_COMPLETIONS };

struct tsri_api_request {
    enum tsri_api api;
    json_t *body;          /* holds the strings below */
    const char *model;     /* NULL: not named */
    const char *separator; /* of documents in a text of the user; "": none */
    /* Chat: messages. Completions: one of the role "user", which documents may come before; of a
     * prompt that was cut, one of the role "system" has the text before the documents. */
    struct tsri_message *messages;
    uint32_t n_messages;
    struct tsri_document *documents; /* of the list, then of the messages */
    size_t n_documents, n_listed;    /* the first n_listed are of the list */
    const uint32_t *tokens;          /* completions: a prompt given as tokens; NULL: text */
    uint32_t n_tokens;
    const char *stops[TSRI_API_STOPS_MAX];
    uint32_t n_stops;
    uint32_t max_tokens; /* 0: the server's default */
    uint32_t n_top;
    bool logprobs, stream, include_usage, has_seed;
    bool ignore_end; /* ignore_eos, as vLLM and llama-server name it: as long as max_tokens */
    bool fresh;      /* tessera.cache is false: nothing comes from the cache */
    bool progress;   /* tessera.progress: a stream tells how much of the prompt is read */
    bool search;     /* tessera.search, true unless it is false: look into the server's documents */
    enum tsri_order {
        TSRI_ORDER_DEFAULT = 0, /* free for what a search finds, given for the request's own */
        TSRI_ORDER_FREE,
        TSRI_ORDER_GIVEN
    } order; /* tessera.order, of documents */
    enum tsri_mode mode;
    double temperature; /* below 0: the server's default */
    double top_p;
    uint64_t seed;
};

/* Where separator is not "", the last text of the user may have documents, see tsri_api_cut(). */
TSR_MUST bool tsri_api_parse(struct tsri_api_request *q, enum tsri_api api, const char *body,
                             size_t bytes, const char *separator, struct tsri_refusal *no);
void tsri_api_fini(struct tsri_api_request *q);
/* ---- cutting.c ---- */

/* Cuts documents out of the last text of the user, where separators are in it. Text without documents,
 * or with an empty one, stays as it is. */
TSR_MUST bool tsri_api_cut(struct tsri_api_request *q, struct tsri_refusal *no);
/* api.c, for it. A document that is a part of a string of the body. In place: the string is ours, and
 * nobody asks the parser for it again. What follows the text is overwritten by a zero. */
TSR_MUST bool tsri_api_add_text(struct tsri_api_request *q, const char *text, size_t bytes,
                                const char *name, const char *param, struct tsri_refusal *no);
/* A copy becomes the text of a message. */
TSR_MUST bool tsri_api_hold(struct tsri_api_request *q, struct tsri_message *m, const char *text,
                            size_t bytes, struct tsri_refusal *no);

/* "auto", "exact", "fast". */
const char *tsri_mode_name(enum tsri_mode mode);

#endif
