/* access.h - who may ask: checks of Host, Origin and token, and of headers that another program before
 * the server could read differently. Pure functions over header values; NULL is a header that was not
 * sent. */
#ifndef TSRI_SERVE_ACCESS_H
#define TSRI_SERVE_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TSRI_TOKEN_BYTES 33u /* 32 hexadecimal digits and a zero */

/* Whether a page of another origin sends this: Origin is there and is not http://HOST. A browser
 * sends it with every request that could do something; other programs send none. */
bool tsri_origin_is_fine(const char *origin, const char *host);
/* Whether Authorization is "Bearer TOKEN". */
bool tsri_bearer_is_fine(const char *authorization, const char *token);
/* The headers of a request that say where it ends, where it goes and who sends it. */
struct tsri_head {
    uint32_t n_hosts, n_keys, n_lengths, n_encodings;
    bool odd; /* a name with a blank, or an encoding other than chunked */
};
void tsri_head_add(struct tsri_head *h, const char *name, const char *value);
/* Whether everybody reads them alike: where two programs see different ends of one request, what one
 * takes for a body is a second request to the other. */
bool tsri_head_is_clear(const struct tsri_head *h);
/* A new token. False: the system gives no random numbers. */
bool tsri_token_make(char token[static TSRI_TOKEN_BYTES]);
/* Whether a text can be a token: 16 characters or more, all of them printable ASCII without spaces. */
bool tsri_token_is_fine(const char *token);

#endif
