/* hash.c - the key of a chunk. One XXH3-128 pass over the tokens and one over a fixed block of 96
 * bytes that names everything else the KV depends on; also the canonical bytes of a prompt's
 * extras, which stand in that block by their hash and are stored and compared by the cache. A key
 * only nominates, so XXH3 is enough here; what must resist an adversary is in digest.c. Layouts:
 * docs/format.md. */
#include "chunk/chunk.h"

#include <xxhash.h>

#define KEY_BLOCK_BYTES 96
#define EXTRA_VERSION 1

static struct tsri_key key_of(XXH128_hash_t h)
{
    return (struct tsri_key){h.low64, h.high64};
}

/* Debian builds libxxhash's plain entry points for SSE2 alone, and beside them ones that choose
 * AVX2 or AVX-512 at run time: the same results, more than twice as fast on 128 KiB. Their header
 * is installed only where the library has them. Version 0.8.1 returns from its AVX-512 loop with
 * the upper halves of the registers in use, after which the next SSE instruction of whoever called
 * waits some 190 ns; clearing them costs nothing. */
#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<xxh_x86dispatch.h>)
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>
#define HAVE_DISPATCH
#endif
#endif

#ifdef HAVE_DISPATCH
static inline void clear_upper_halves(void)
{
    if (__builtin_cpu_supports("avx"))
        __asm__ volatile("vzeroupper"
                         :
                         :
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                           "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}
#endif

struct tsri_key tsri_tokens_hash(const uint32_t *tokens, size_t n)
{
#ifdef HAVE_DISPATCH
    XXH128_hash_t h = XXH3_128bits_dispatch(tokens, n * sizeof *tokens);
    clear_upper_halves();
    return key_of(h);
#elif defined(__aarch64__)
    return tsri_xxh3_128(tokens, n * sizeof *tokens);
#else
    return key_of(XXH3_128bits(tokens, n * sizeof *tokens));
#endif
}

uint64_t tsri_bytes_hash(const void *data, size_t bytes)
{
#ifdef HAVE_DISPATCH
    uint64_t h = XXH3_64bits_dispatch(data, bytes);
    clear_upper_halves();
    return h;
#elif defined(__aarch64__)
    return tsri_xxh3_64(data, bytes);
#else
    return XXH3_64bits(data, bytes);
#endif
}

struct tsri_key tsri_key_make(const struct tsri_key_parts *parts)
{
    uint8_t block[KEY_BLOCK_BYTES];
    memcpy(block, "tsr.key\1", 8);
    memcpy(block + 8, &parts->kind, 4);
    memcpy(block + 12, &parts->n_tokens, 4);
    memcpy(block + 16, parts->space, 16);
    memcpy(block + 32, parts->digest.bytes, TSRI_DIGEST_BYTES);
    memcpy(block + 64, &parts->extra.lo, 8);
    memcpy(block + 72, &parts->extra.hi, 8);
    memcpy(block + 80, &parts->tokens.lo, 8);
    memcpy(block + 88, &parts->tokens.hi, 8);
    return key_of(XXH3_128bits(block, sizeof block));
}

/* ---- extra ---- */

#define ITEM_BYTES 3        /* kind, length of the data */
#define MEDIA_ITEM_BYTES 11 /* and offset, n_tokens */

static size_t item_bytes(const struct tsr_extra *e)
{
    return (e->kind == TSR_EXTRA_MEDIA ? MEDIA_ITEM_BYTES : ITEM_BYTES) + (size_t)e->bytes;
}

static int item_check(const struct tsr_extra *e, uint32_t i, uint32_t n_tokens)
{
    if (e->kind < TSR_EXTRA_ADAPTER || e->kind > TSR_EXTRA_MEDIA)
        return tsri_fail(TSR_EINVAL, "extra %u: unknown kind %u", i, e->kind);
    if (!e->data || !e->bytes) return tsri_fail(TSR_EINVAL, "extra %u: no data", i);
    if (e->bytes > TSRI_EXTRA_BYTES_MAX)
        return tsri_fail(TSR_ERANGE, "extra %u: %u bytes, limit %u for all together", i, e->bytes,
                         (unsigned)TSRI_EXTRA_BYTES_MAX);
    if (e->kind != TSR_EXTRA_MEDIA) {
        if (e->offset || e->n_tokens)
            return tsri_fail(TSR_EINVAL, "extra %u: only media have an offset", i);
        return 0;
    }
    if (!e->n_tokens) return tsri_fail(TSR_EINVAL, "extra %u: media without tokens", i);
    if (e->offset >= n_tokens || e->n_tokens > n_tokens - e->offset)
        return tsri_fail(TSR_EINVAL, "extra %u: media at token %u + %u, the prompt has %u", i,
                         e->offset, e->n_tokens, n_tokens);
    return 0;
}

int tsri_extra_check(const struct tsr_extra *extra, uint32_t n_extra, uint32_t n_tokens)
{
    if (!n_extra) return 0;
    if (!extra) return tsri_fail(TSR_EINVAL, "extra: NULL for %u items", n_extra);
    if (n_extra > TSRI_EXTRA_ITEMS_MAX)
        return tsri_fail(TSR_ERANGE, "extra: %u items, limit %u", n_extra,
                         (unsigned)TSRI_EXTRA_ITEMS_MAX);
    /* Offsets are encoded relative to a range, as int32. */
    if (n_tokens > INT32_MAX)
        return tsri_fail(TSR_ERANGE, "extra: prompt of %u tokens, limit %d", n_tokens, INT32_MAX);
    size_t total = 1;
    for (uint32_t i = 0; i < n_extra; i++) {
        int err = item_check(&extra[i], i, n_tokens);
        if (err < 0) return err;
        total += item_bytes(&extra[i]);
    }
    if (total > TSRI_EXTRA_BYTES_MAX)
        return tsri_fail(TSR_ERANGE, "extra: %zu bytes encoded, limit %u", total,
                         (unsigned)TSRI_EXTRA_BYTES_MAX);
    return 0;
}

/* An empty range overlaps nothing, wherever it stands. */
static bool overlaps(const struct tsr_extra *e, struct tsr_range range)
{
    return range.n_tokens && e->offset < (uint64_t)range.offset + range.n_tokens &&
           range.offset < (uint64_t)e->offset + e->n_tokens;
}

bool tsri_extra_has_media(const struct tsr_extra *extra, uint32_t n_extra, struct tsr_range range)
{
    for (uint32_t i = 0; i < n_extra; i++)
        if (extra[i].kind == TSR_EXTRA_MEDIA && overlaps(&extra[i], range)) return true;
    return false;
}

/* The order of items in the encoding; items that compare equal have equal bytes. */
static bool item_before(const struct tsr_extra *a, const struct tsr_extra *b)
{
    if (a->kind != b->kind) return a->kind < b->kind;
    if (a->offset != b->offset) return a->offset < b->offset;
    if (a->n_tokens != b->n_tokens) return a->n_tokens < b->n_tokens;
    if (a->bytes != b->bytes) return a->bytes < b->bytes;
    return memcmp(a->data, b->data, a->bytes) < 0;
}

static size_t item_encode(const struct tsr_extra *e, uint32_t range_offset, uint8_t *out)
{
    size_t at = 0;
    out[at++] = (uint8_t)e->kind;
    uint16_t bytes = (uint16_t)e->bytes;
    memcpy(out + at, &bytes, 2);
    at += 2;
    if (e->kind == TSR_EXTRA_MEDIA) {
        uint32_t offset = e->offset - range_offset; /* modulo 2^32 is int32 in two's complement */
        memcpy(out + at, &offset, 4);
        memcpy(out + at + 4, &e->n_tokens, 4);
        at += 8;
    }
    memcpy(out + at, e->data, e->bytes);
    return at + e->bytes;
}

int tsri_extra_encode(const struct tsr_extra *extra, uint32_t n_extra, struct tsr_range range,
                      uint8_t out[TSRI_EXTRA_BYTES_MAX])
{
    const struct tsr_extra *items[TSRI_EXTRA_ITEMS_MAX];
    uint32_t n = 0;
    TSR_ASSERT(n_extra <= TSRI_EXTRA_ITEMS_MAX);
    for (uint32_t i = 0; i < n_extra; i++) {
        if (extra[i].kind == TSR_EXTRA_MEDIA && !overlaps(&extra[i], range)) continue;
        /* Insertion: callers list their items in order nearly always, and they are few. */
        uint32_t at = n++;
        for (; at > 0 && item_before(&extra[i], items[at - 1]); at--)
            items[at] = items[at - 1];
        items[at] = &extra[i];
    }
    if (!n) return 0;
    size_t bytes = 0;
    out[bytes++] = EXTRA_VERSION;
    for (uint32_t i = 0; i < n; i++) {
        TSR_ASSERT(item_bytes(items[i]) <= TSRI_EXTRA_BYTES_MAX - bytes);
        bytes += item_encode(items[i], range.offset, out + bytes);
    }
    return (int)bytes;
}

bool tsri_extra_holds_media(const uint8_t *bytes, size_t n)
{
    for (size_t at = 1; at + ITEM_BYTES <= n;) {
        uint16_t data_bytes;
        if (bytes[at] == TSR_EXTRA_MEDIA) return true;
        memcpy(&data_bytes, bytes + at + 1, 2);
        at += ITEM_BYTES + (size_t)data_bytes;
    }
    return false;
}

struct tsri_key tsri_extra_hash(const uint8_t *bytes, size_t n)
{
    if (!n) return (struct tsri_key){0, 0};
    return key_of(XXH3_128bits(bytes, n));
}
