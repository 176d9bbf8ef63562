/* evp.h - stands in for OpenSSL's where the tests of models are built for another processor, for
 * which there is no libcrypto: only tools/check-arm includes it. Digests tell files apart, and that
 * is all those tests ask of them. */
#ifndef TSRI_ARM_EVP_H
#define TSRI_ARM_EVP_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EVP_MAX_MD_SIZE 64

typedef struct {
    uint64_t lanes[4];
} EVP_MD_CTX;
typedef void EVP_MD;

static inline EVP_MD_CTX *EVP_MD_CTX_new(void)
{
    return calloc(1, sizeof(EVP_MD_CTX));
}

static inline void EVP_MD_CTX_free(EVP_MD_CTX *md)
{
    free(md);
}

static inline const EVP_MD *EVP_sha256(void)
{
    return NULL;
}

static inline int EVP_DigestInit_ex(EVP_MD_CTX *md, const EVP_MD *type, void *engine)
{
    (void)type;
    (void)engine;
    for (int i = 0; i < 4; i++)
        md->lanes[i] = 14695981039346656037u + (uint64_t)i;
    return 1;
}

static inline int EVP_DigestUpdate(EVP_MD_CTX *md, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    for (size_t k = 0; k < bytes; k++)
        for (int i = 0; i < 4; i++)
            md->lanes[i] = (md->lanes[i] ^ at[k]) * 1099511628211u;
    return 1;
}

static inline int EVP_DigestFinal_ex(EVP_MD_CTX *md, uint8_t *out, unsigned *bytes)
{
    memcpy(out, md->lanes, sizeof md->lanes);
    if (bytes) *bytes = sizeof md->lanes;
    return 1;
}

#endif
