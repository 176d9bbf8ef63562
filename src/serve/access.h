/* access.h - who may ask: checks of Host, Origin and token. Pure functions over header values; NULL
 * is a header that was not sent. */
#ifndef TSRI_SERVE_ACCESS_H
#define TSRI_SERVE_ACCESS_H

#include <stdbool.h>
#include <stddef.h>

#define TSRI_TOKEN_BYTES 33u /* 32 hexadecimal digits and a zero */

/* Whether a page of another origin sends this: Origin is there and is not http://HOST. A browser
 * sends it with every request that could do something; other programs send none. */
bool tsri_origin_is_fine(const char *origin, const char *host);
/* Whether Authorization is "Bearer TOKEN". */
bool tsri_bearer_is_fine(const char *authorization, const char *token);
/* A new token. False: the system gives no random numbers. */
bool tsri_token_make(char token[static TSRI_TOKEN_BYTES]);
/* Whether a text can be a token: 16 characters or more, all of them printable ASCII without spaces. */
bool tsri_token_is_fine(const char *token);

#endif
