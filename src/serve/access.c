/* access.c - see access.h. */
#include "serve/access.h"

#include "daemon/daemon.h"

#include <string.h>
#include <strings.h>
#include <sys/random.h>

#define TOKEN_MIN 16u

bool tsri_origin_is_fine(const char *origin, const char *host)
{
    static const char scheme[] = "http://";
    if (!origin) return true;
    return host && strncasecmp(origin, scheme, sizeof scheme - 1) == 0 &&
           strcasecmp(origin + sizeof scheme - 1, host) == 0;
}

bool tsri_bearer_is_fine(const char *authorization, const char *token)
{
    static const char scheme[] = "Bearer ";
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0) return false;
    const char *sent = authorization + sizeof scheme - 1;
    sent += strspn(sent, " ");
    return tsri_token_same(token, sent, strlen(sent));
}

void tsri_head_add(struct tsri_head *h, const char *name, const char *value)
{
    if (name[strcspn(name, " \t")]) h->odd = true;
    if (strcasecmp(name, "Host") == 0) h->n_hosts++;
    if (strcasecmp(name, "Authorization") == 0) h->n_keys++;
    if (strcasecmp(name, "Content-Length") == 0) h->n_lengths++;
    if (strcasecmp(name, "Transfer-Encoding") != 0) return;
    h->n_encodings++;
    if (!value || strcasecmp(value, "chunked") != 0) h->odd = true;
}

bool tsri_head_is_clear(const struct tsri_head *h)
{
    return !h->odd && h->n_hosts <= 1 && h->n_keys <= 1 && h->n_lengths + h->n_encodings <= 1;
}

bool tsri_token_make(char token[static TSRI_TOKEN_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char random[(TSRI_TOKEN_BYTES - 1) / 2];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return false;
    for (size_t i = 0; i < sizeof random; i++) {
        token[2 * i] = digits[random[i] >> 4];
        token[2 * i + 1] = digits[random[i] & 15];
    }
    token[2 * sizeof random] = 0;
    return true;
}

bool tsri_token_is_fine(const char *token)
{
    size_t n = 0;
    for (; token[n]; n++)
        if (token[n] <= ' ' || token[n] >= 127) return false;
    return n >= TOKEN_MIN;
}
