/* digest.c - what stood before a chunk, in 32 bytes: the chain of a prefix, the system prompt of a
 * segment, the recipe of blended KV. Digests are stored in the entry and compared on every hit, so
 * with SHA-256 (the default) two histories share a block only if they are the same one, also when
 * someone tries to make them collide. With xxh3 the same fields go through XXH3-128 instead, for
 * those who trust their prompts. Layouts: docs/format.md.
 *
 * libcrypto's SHA256_* functions are used, not EVP: they need no allocated context, and a step over
 * 256 tokens costs 0.95 us with them, 1.03 us with a reused EVP context, 1.67 us with a fresh one.
 */
#define OPENSSL_API_COMPAT \
    0x10100000L /* they are deprecated since 3.0 and there to stay in 3.x \
                 */
#include "chunk/chunk.h"

#include <openssl/sha.h>
#include <xxhash.h>

#define LABEL_BYTES 8
#define LABEL_ROOT "tsr.top\1"
#define LABEL_BLOCK "tsr.blk\1"
#define LABEL_CONTEXT "tsr.ctx\1"
#define LABEL_RECIPE "tsr.rcp\1"

static void xxh3_digest(const uint8_t *bytes, size_t n, struct tsri_digest *out)
{
    XXH128_hash_t h = XXH3_128bits(bytes, n);
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, &h.low64, 8);
    memcpy(out->bytes + 8, &h.high64, 8);
}

static void key_put(uint8_t *at, struct tsri_key key)
{
    memcpy(at, &key.lo, 8);
    memcpy(at + 8, &key.hi, 8);
}

/* SHA-256 of LABEL_ROOT. Every lookup of a prefix begins with it, and libcrypto's SHA256() looks for
 * a provider first: 0.9 us, most of what a miss in the first block takes. */
static const struct tsri_digest sha256_root = {{0x64, 0x78, 0xbb, 0x44, 0x35, 0xc7, 0x62, 0xa8,
                                                0x9d, 0x91, 0x37, 0xe7, 0x2a, 0xfd, 0xcd, 0x84,
                                                0x1f, 0x12, 0xc8, 0x78, 0xa9, 0x65, 0xe8, 0x97,
                                                0x25, 0x27, 0x79, 0x42, 0x9a, 0x97, 0xa3, 0x9f}};

void tsri_digest_root(enum tsri_hash h, struct tsri_digest *out)
{
    if (h == TSRI_HASH_XXH3)
        xxh3_digest((const uint8_t *)LABEL_ROOT, LABEL_BYTES, out);
    else
        *out = sha256_root;
}

#define SHA256_BLOCK 64u

/* SHA-256 of the 48 bytes at `head` and of at least 4 tokens. libcrypto gets whole blocks only, the
 * last one padded here: it then copies nothing, and neither finishes nor wipes its state. */
static void sha256_block(const uint8_t head[48], const uint32_t *tokens, uint32_t n,
                         struct tsri_digest *out)
{
    uint8_t first[SHA256_BLOCK], last[2 * SHA256_BLOCK] = {0};
    size_t bytes = (size_t)n * sizeof *tokens - 16, whole = bytes & ~(size_t)(SHA256_BLOCK - 1);
    size_t rest = bytes - whole, last_bytes = rest + 9 <= SHA256_BLOCK ? SHA256_BLOCK : sizeof last;
    uint64_t bits = __builtin_bswap64((uint64_t)(SHA256_BLOCK + bytes) * 8);
    memcpy(first, head, 48);
    memcpy(first + 48, tokens, 16);
    memcpy(last, (const uint8_t *)(tokens + 4) + whole, rest);
    last[rest] = 0x80;
    memcpy(last + last_bytes - sizeof bits, &bits, sizeof bits);
    SHA256_CTX sha;
    SHA256_Init(&sha);
    SHA256_Update(&sha, first, sizeof first);
    if (whole) SHA256_Update(&sha, tokens + 4, whole);
    SHA256_Update(&sha, last, last_bytes);
    for (uint32_t i = 0; i < TSRI_DIGEST_BYTES / 4; i++) {
        uint32_t word = __builtin_bswap32(sha.h[i]);
        memcpy(out->bytes + (size_t)i * 4, &word, sizeof word);
    }
}

void tsri_digest_next(enum tsri_hash h, const struct tsri_digest *parent, const uint32_t *tokens,
                      uint32_t n, const uint8_t *extra, size_t extra_bytes, struct tsri_digest *out)
{
    TSR_ASSERT(extra_bytes <= TSRI_EXTRA_BYTES_MAX);
    uint32_t n_extra_bytes = (uint32_t)extra_bytes;
    /* 48 bytes: with SHA-256's own 9 they fit one compression, so a block of 256 tokens takes 17
     * where the tokens alone would take 16. */
    uint8_t head[80];
    memcpy(head, LABEL_BLOCK, LABEL_BYTES);
    memcpy(head + 8, parent->bytes, TSRI_DIGEST_BYTES);
    memcpy(head + 40, &n, 4);
    memcpy(head + 44, &n_extra_bytes, 4);
    if (h == TSRI_HASH_XXH3) {
        key_put(head + 48, tsri_extra_hash(extra, extra_bytes));
        key_put(head + 64, tsri_tokens_hash(tokens, n));
        xxh3_digest(head, 80, out);
        return;
    }
    if (!extra_bytes && n >= 4) {
        sha256_block(head, tokens, n, out);
        return;
    }
    SHA256_CTX sha;
    SHA256_Init(&sha);
    SHA256_Update(&sha, head, 48);
    if (extra_bytes) SHA256_Update(&sha, extra, extra_bytes);
    SHA256_Update(&sha, tokens, (size_t)n * sizeof *tokens);
    SHA256_Final(out->bytes, &sha);
}

void tsri_digest_context(enum tsri_hash h, const uint32_t *tokens, uint32_t n,
                         struct tsri_digest *out)
{
    if (!n) {
        memset(out, 0, sizeof *out);
        return;
    }
    uint8_t head[28];
    memcpy(head, LABEL_CONTEXT, LABEL_BYTES);
    memcpy(head + 8, &n, 4);
    if (h == TSRI_HASH_XXH3) {
        key_put(head + 12, tsri_tokens_hash(tokens, n));
        xxh3_digest(head, 28, out);
        return;
    }
    SHA256_CTX sha;
    SHA256_Init(&sha);
    SHA256_Update(&sha, head, 12);
    SHA256_Update(&sha, tokens, (size_t)n * sizeof *tokens);
    SHA256_Final(out->bytes, &sha);
}

void tsri_digest_recipe(enum tsri_hash h, const void *bytes, size_t n, struct tsri_digest *out)
{
    uint64_t n64 = n;
    uint8_t head[32];
    memcpy(head, LABEL_RECIPE, LABEL_BYTES);
    memcpy(head + 8, &n64, 8);
    if (h == TSRI_HASH_XXH3) {
        XXH128_hash_t body = XXH3_128bits(bytes, n);
        key_put(head + 16, (struct tsri_key){body.low64, body.high64});
        xxh3_digest(head, 32, out);
        return;
    }
    SHA256_CTX sha;
    SHA256_Init(&sha);
    SHA256_Update(&sha, head, 16);
    if (n) SHA256_Update(&sha, bytes, n);
    SHA256_Final(out->bytes, &sha);
}
