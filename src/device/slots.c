/* slots.c - slot maps: which place in the engine's memory each token has. Engines give them as
 * numbers or as block tables, pad them with -1 where a prefix is there already, and sometimes get
 * them wrong: the set here finds a slot given twice in one pass, whatever the order. */
#include "device/device.h"

struct tsri_span tsri_span_align(uint32_t n_cached, uint32_t n_total, uint32_t chunk_tokens)
{
    TSR_ASSERT(chunk_tokens > 0);
    if (n_cached >= n_total) return (struct tsri_span){n_total, 0, 0};
    uint32_t n_pad = n_cached % chunk_tokens;
    uint32_t first = n_cached - n_pad;
    return (struct tsri_span){first, n_pad, n_total - first};
}

int tsri_slots_of_blocks(int64_t *out, const int64_t *blocks, uint32_t n_blocks,
                         uint32_t block_tokens, uint32_t first, uint32_t n)
{
    if (!block_tokens || (uint64_t)first + n > (uint64_t)n_blocks * block_tokens)
        return tsri_fail(TSR_EINVAL, "slots: tokens %u + %u in %u blocks of %u", first, n, n_blocks,
                         block_tokens);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t token = first + i;
        int64_t block = blocks[token / block_tokens];
        if (block < 0 || block > INT64_MAX / block_tokens - 1)
            return tsri_fail(TSR_EINVAL, "slots: block %lld", (long long)block);
        out[i] = block * block_tokens + token % block_tokens;
    }
    return 0;
}

/* ---- the set: open addressing, 64 neighbouring numbers a word ---- */

int tsri_slot_set_init(struct tsri_slot_set *s, uint32_t n_max)
{
    s->n_words = tsri_pow2_up((uint64_t)n_max * 2);
    s->epoch = 1;
    s->words = tsri_alloc(s->n_words, sizeof *s->words);
    return s->words ? 0 : TSR_ENOMEM;
}

void tsri_slot_set_fini(struct tsri_slot_set *s)
{
    tsri_free(s->words);
    s->words = NULL;
}

/* 2^64 epochs do not run out. */
void tsri_slot_set_clear(struct tsri_slot_set *s)
{
    s->epoch++;
}

bool tsri_slot_set_add(struct tsri_slot_set *s, uint64_t word, uint64_t mask)
{
    uint64_t i = (word * 0x9E3779B97F4A7C15u) >> 20;
    for (;; i++) {
        struct tsri_slot_word *w = &s->words[i & (s->n_words - 1)];
        if (w->epoch != s->epoch) {
            *w = (struct tsri_slot_word){word, mask, s->epoch};
            return false;
        }
        if (w->key == word) {
            bool seen = (w->mask & mask) != 0;
            w->mask |= mask;
            return seen;
        }
    }
}

static inline bool eight_follow(const int64_t *s, int64_t first)
{
    return !((s[0] ^ first) | (s[1] ^ (first + 1)) | (s[2] ^ (first + 2)) | (s[3] ^ (first + 3)) |
             (s[4] ^ (first + 4)) | (s[5] ^ (first + 5)) | (s[6] ^ (first + 6)) |
             (s[7] ^ (first + 7)));
}

int tsri_slots_check(const int64_t *slots, uint32_t n, uint64_t n_slots, struct tsri_slot_set *once)
{
    for (uint32_t i = 0; i < n;) {
        int64_t slot = slots[i];
        if (slot == -1) {
            i++;
            continue;
        }
        if (slot < 0 || (uint64_t)slot >= n_slots)
            return tsri_fail(TSR_EINVAL,
                             "slot %lld of token %u is invalid: must be -1 or 0 to %llu",
                             (long long)slot, i, (unsigned long long)(n_slots - 1));
        /* As far as slots follow each other within one word of the set. */
        uint64_t room = n_slots - (uint64_t)slot;
        uint32_t most = 64 - (uint32_t)(slot & 63), k = 0;
        if (room < most) most = (uint32_t)room;
        if (most > n - i) most = n - i;
        /* Blocks of 16 are the usual case: eight at a time, without a branch for each. */
        while (k + 8 <= most && eight_follow(slots + i + k, slot + k))
            k += 8;
        while (k < most && slots[i + k] == slot + k)
            k++;
        uint64_t mask = (k == 64 ? ~(uint64_t)0 : ((uint64_t)1 << k) - 1) << (slot & 63);
        if (once && tsri_slot_set_add(once, (uint64_t)slot >> 6, mask))
            return tsri_fail(TSR_EINVAL, "duplicate slot in %lld .. %lld, from token %u",
                             (long long)slot, (long long)slot + k - 1, i);
        i += k;
    }
    return 0;
}
