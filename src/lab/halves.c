/* halves.c - which half of its set a question belongs to. */
#include "lab/answers.h"

#include <openssl/sha.h>

int tsri_half_find(const char *name)
{
    static const char *const names[] = {"tune", "test", "all"};
    for (int i = 0; i < (int)TSRI_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

bool tsri_half_has(enum tsri_half half, const char *set, const char *id)
{
    char name[2 * TSRI_QUALITY_NAME_BYTES + 2];
    uint8_t hash[SHA256_DIGEST_LENGTH];
    if (half == TSRI_HALF_ALL) return true;
    int n = snprintf(name, sizeof name, "%s/%s", set, id);
    if (n >= (int)sizeof name) n = (int)sizeof name - 1;
    SHA256((const uint8_t *)name, (size_t)n, hash);
    bool odd = hash[sizeof hash - 1] & 1; /* the last byte is the lowest of the number */
    return odd == (half == TSRI_HALF_TEST);
}
