/* xxh3.c - XXH3 of long inputs on Arm, bit for bit what libxxhash returns. Version 0.8.1 of it, which
 * Debian 12 has, keeps its sums in memory and separates the halves of each product one vector at a
 * time; this loop keeps them in registers, does that for two vectors at once, and gives two of the
 * eight sums to the integer units: 1.6x as fast on a Neoverse-N1.
 *
 * The input is read in stripes of 64 bytes, each against a window of the secret that moves on by 8
 * bytes. After 16 stripes, a block of 1024 bytes, the window starts over and the sums are scrambled.
 * The last stripe ends where the input ends. */
#include "chunk/chunk.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <xxhash.h>

#define INLINE static inline __attribute__((always_inline))
#define STRIPE 64u
#define BLOCK_STRIPES 16u
#define BLOCK ((size_t)STRIPE * BLOCK_STRIPES)
/* Shorter inputs have ways of their own, which libxxhash takes. */
#define SHORT_MAX 240u

#define PRIME32_1 0x9E3779B1u
#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87u
#define PRIME64_2 0xC2B2AE3D27D4EB4Fu
#define PRIME64_3 0x165667B19E3779F9u
#define PRIME64_4 0x85EBCA77C2B2AE63u
#define PRIME64_5 0x27D4EB2F165667C5u
#define PRIME_AVALANCHE 0x165667919E3779F9u

/* Offsets into the secret. */
#define SECRET_SCRAMBLE 128u
#define SECRET_LAST 121u
#define SECRET_LOW 11u
#define SECRET_HIGH 117u

static const uint8_t secret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

/* Eight sums: six in vectors, two in integers. */
struct sums {
    uint64x2_t v0, v1, v2;
    uint64_t s6, s7;
};

INLINE uint64x2_t load2(const uint8_t *p)
{
    return vreinterpretq_u64_u8(vld1q_u8(p));
}

INLINE uint64_t load1(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE uint64_t product_of_halves(uint64_t v)
{
    return (v & UINT32_MAX) * (v >> 32);
}

/* To each sum the product of the halves of its word, and the word of its neighbour. */
INLINE void add_stripe(struct sums *a, const uint8_t *in, const uint8_t *key)
{
    uint64x2_t d0 = load2(in), d1 = load2(in + 16), d2 = load2(in + 32);
    uint32x4_t k0 = vreinterpretq_u32_u64(veorq_u64(d0, load2(key)));
    uint32x4_t k1 = vreinterpretq_u32_u64(veorq_u64(d1, load2(key + 16)));
    uint64x2_t k2 = veorq_u64(d2, load2(key + 32));
    uint32x4_t low = vuzp1q_u32(k0, k1), high = vuzp2q_u32(k0, k1);
    /* A product and the neighbour first: then each sum waits for one addition alone. */
    d0 = vmlal_u32(vextq_u64(d0, d0, 1), vget_low_u32(low), vget_low_u32(high));
    d1 = vmlal_high_u32(vextq_u64(d1, d1, 1), low, high);
    d2 = vmlal_u32(vextq_u64(d2, d2, 1), vmovn_u64(k2), vshrn_n_u64(k2, 32));
    a->v0 = vaddq_u64(a->v0, d0);
    a->v1 = vaddq_u64(a->v1, d1);
    a->v2 = vaddq_u64(a->v2, d2);
    uint64_t d6 = load1(in + 48), d7 = load1(in + 56);
    a->s6 += d7 + product_of_halves(d6 ^ load1(key + 48));
    a->s7 += d6 + product_of_halves(d7 ^ load1(key + 56));
}

INLINE void add_stripes(struct sums *a, const uint8_t *in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        add_stripe(a, in + i * STRIPE, secret + i * 8);
}

INLINE uint64x2_t scramble2(uint64x2_t v, const uint8_t *key)
{
    v = veorq_u64(veorq_u64(v, vshrq_n_u64(v, 47)), load2(key));
    /* v * PRIME32_1: the high half by itself, then the low one. */
    uint32x2_t prime = vdup_n_u32(PRIME32_1);
    uint64x2_t high = vshlq_n_u64(vmull_u32(vshrn_n_u64(v, 32), prime), 32);
    return vmlal_u32(high, vmovn_u64(v), prime);
}

INLINE uint64_t scramble1(uint64_t v, const uint8_t *key)
{
    return (v ^ v >> 47 ^ load1(key)) * PRIME32_1;
}

INLINE void scramble(struct sums *a)
{
    const uint8_t *key = secret + SECRET_SCRAMBLE;
    a->v0 = scramble2(a->v0, key);
    a->v1 = scramble2(a->v1, key + 16);
    a->v2 = scramble2(a->v2, key + 32);
    a->s6 = scramble1(a->s6, key + 48);
    a->s7 = scramble1(a->s7, key + 56);
}

static void sum_up(const uint8_t *in, size_t bytes, uint64_t out[8])
{
    const uint8_t *last = in + bytes - STRIPE;
    size_t n_blocks = (bytes - 1) / BLOCK, n_rest = (bytes - 1) % BLOCK / STRIPE;
    struct sums a = {{PRIME32_3, PRIME64_1},
                     {PRIME64_2, PRIME64_3},
                     {PRIME64_4, PRIME32_2},
                     PRIME64_5,
                     PRIME32_1};
    for (; n_blocks; n_blocks--, in += BLOCK) {
        add_stripes(&a, in, BLOCK_STRIPES);
        scramble(&a);
    }
    add_stripes(&a, in, n_rest);
    add_stripe(&a, last, secret + SECRET_LAST);
    vst1q_u64(out, a.v0);
    vst1q_u64(out + 2, a.v1);
    vst1q_u64(out + 4, a.v2);
    out[6] = a.s6;
    out[7] = a.s7;
}

__extension__ typedef unsigned __int128 wide;

static uint64_t merge(const uint64_t sums[8], const uint8_t *key, uint64_t h)
{
    for (size_t i = 0; i < 8; i += 2) {
        wide product =
            (wide)(sums[i] ^ load1(key + 8 * i)) * (sums[i + 1] ^ load1(key + 8 * i + 8));
        h += (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    h = (h ^ h >> 37) * PRIME_AVALANCHE;
    return h ^ h >> 32;
}

uint64_t tsri_xxh3_64(const void *data, size_t bytes)
{
    if (bytes <= SHORT_MAX) return XXH3_64bits(data, bytes);
    uint64_t sums[8];
    sum_up(data, bytes, sums);
    return merge(sums, secret + SECRET_LOW, bytes * PRIME64_1);
}

struct tsri_key tsri_xxh3_128(const void *data, size_t bytes)
{
    if (bytes <= SHORT_MAX) {
        XXH128_hash_t h = XXH3_128bits(data, bytes);
        return (struct tsri_key){h.low64, h.high64};
    }
    uint64_t sums[8];
    sum_up(data, bytes, sums);
    return (struct tsri_key){merge(sums, secret + SECRET_LOW, bytes * PRIME64_1),
                             merge(sums, secret + SECRET_HIGH, ~(bytes * PRIME64_2))};
}

#endif
