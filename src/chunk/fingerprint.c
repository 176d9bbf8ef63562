/* fingerprint.c - a space in 16 bytes. The description is checked, brought to its canonical form
 * (defaults filled in) and hashed field by field, texts with their length before them. SHA-256
 * truncated, not XXH3: a tenant chooses its own salt and must not be able to choose one that meets
 * another tenant's space, and spaces are opened rarely. Layout: docs/format.md. */
#define OPENSSL_API_COMPAT 0x10100000L
#include "chunk/chunk.h"

#include <openssl/sha.h>

#define FINGERPRINT_BYTES 16

static int text_check(const char *name, const char *text)
{
    if (text && strnlen(text, TSRI_SPACE_TEXT_MAX + 1) > TSRI_SPACE_TEXT_MAX)
        return tsri_fail(TSR_EINVAL, "space: %s is longer than %u bytes", name,
                         (unsigned)TSRI_SPACE_TEXT_MAX);
    return 0;
}

static int count_check(const char *name, uint32_t value, uint32_t min, uint32_t max)
{
    if (value < min || value > max)
        return tsri_fail(TSR_EINVAL, "space: %s is %u, not %u to %u", name, value, min, max);
    return 0;
}

static int texts_check(const struct tsr_space_desc *d)
{
    int err;
    if (!d->model || !*d->model) return tsri_fail(TSR_EINVAL, "space: model is missing");
    if ((err = text_check("model", d->model)) < 0) return err;
    if (!d->weights != !d->weights_bytes)
        return tsri_fail(TSR_EINVAL,
                         "space: weights and weights_bytes must both be set or both be empty");
    if (d->weights_bytes > TSRI_SPACE_TEXT_MAX)
        return tsri_fail(TSR_EINVAL, "space: weights_bytes is %zu, limit %u (a fingerprint)",
                         d->weights_bytes, (unsigned)TSRI_SPACE_TEXT_MAX);
    if ((err = text_check("tokenizer", d->tokenizer)) < 0) return err;
    if ((err = text_check("adapter", d->adapter)) < 0) return err;
    if ((err = text_check("salt", d->salt)) < 0) return err;
    return text_check("rope", d->rope);
}

int tsri_space_check(const struct tsr_space_desc *desc)
{
    if (!desc) return tsri_fail(TSR_EINVAL, "space: the description is NULL");
    const struct tsr_space_desc *d = desc;
    int err = texts_check(d);
    if (err < 0) return err;
    if (d->dtype < TSR_DTYPE_F16 || d->dtype > TSR_DTYPE_OPAQUE)
        return tsri_fail(TSR_EINVAL, "space: dtype %u is %s", d->dtype,
                         d->dtype ? "unknown" : "missing");
    if (d->layout > TSR_LAYOUT_OPAQUE)
        return tsri_fail(TSR_EINVAL, "space: unknown layout %u", d->layout);
    bool standard = d->layout == TSR_LAYOUT_STANDARD;
    uint32_t world = d->world ? d->world : 1;
    const struct {
        const char *name;
        uint32_t value, min, max;
    } counts[] = {
        {"n_layers", d->n_layers, 1, TSRI_SPACE_LAYERS_MAX},
        {"layer_first", d->layer_first, 0, TSRI_SPACE_LAYERS_MAX},
        {"n_heads", d->n_heads, standard, standard ? TSRI_SPACE_HEADS_MAX : 1},
        {"k_dim", d->k_dim, 1, TSRI_SPACE_DIM_MAX},
        {"v_dim", d->v_dim, 0, TSRI_SPACE_DIM_MAX},
        {"world", world, 1, TSRI_SPACE_RANKS_MAX},
        {"rank", d->rank, 0, world - 1},
        {"group", d->group, 0, TSRI_SPACE_LAYERS_MAX},
        {"block_tokens", d->block_tokens, 0, TSRI_SPACE_BLOCK_MAX},
    };
    for (size_t i = 0; i < TSRI_COUNT(counts); i++) {
        err = count_check(counts[i].name, counts[i].value, counts[i].min, counts[i].max);
        if (err < 0) return err;
    }
    return 0;
}

static void bytes_hash(SHA256_CTX *sha, const void *bytes, size_t n)
{
    uint32_t n32 = (uint32_t)n;
    SHA256_Update(sha, &n32, sizeof n32);
    if (n) SHA256_Update(sha, bytes, n);
}

static void text_hash(SHA256_CTX *sha, const char *text)
{
    bytes_hash(sha, text, text ? strlen(text) : 0);
}

void tsri_space_fingerprint(const struct tsr_space_desc *desc, uint8_t out[16])
{
    bool standard = desc->layout == TSR_LAYOUT_STANDARD;
    const uint32_t numbers[] = {
        desc->dtype,
        desc->layout,
        desc->n_layers,
        desc->layer_first,
        desc->n_heads ? desc->n_heads : 1,
        desc->k_dim,
        desc->v_dim || !standard ? desc->v_dim : desc->k_dim,
        desc->rank,
        desc->world ? desc->world : 1,
        desc->group,
        desc->block_tokens,
    };
    SHA256_CTX sha;
    SHA256_Init(&sha);
    SHA256_Update(&sha, "tsr.spc\1", 8);
    text_hash(&sha, desc->model);
    bytes_hash(&sha, desc->weights, desc->weights_bytes);
    text_hash(&sha, desc->tokenizer);
    text_hash(&sha, desc->adapter);
    text_hash(&sha, desc->salt);
    text_hash(&sha, desc->rope);
    SHA256_Update(&sha, numbers, sizeof numbers);
    uint8_t digest[SHA256_DIGEST_LENGTH];
    SHA256_Final(digest, &sha);
    memcpy(out, digest, FINGERPRINT_BYTES);
}
