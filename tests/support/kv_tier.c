/* kv_tier.c - entries whose every byte follows from their seeds, into tiers and out of them. */
#include "support/kv_tier.h"

#include "base/base.h"
#include "tier/tier.h"

#include <string.h>
#include <unistd.h>

struct tsr_tier_ref kv_tier_ref(const struct kv_shape *shape, uint64_t seed)
{
    struct kv_entry room;
    kv_entry_init_room_seed(&room, shape, seed);
    struct tsr_tier_ref ref = kv_entry_ref(&room);
    kv_entry_fini(&room);
    return ref;
}

int kv_tier_put(struct tsr_tier *tier, const struct kv_shape *shape, uint64_t seed)
{
    struct kv_entry e;
    kv_entry_init(&e, shape, seed);
    struct tsr_tier_io io = kv_entry_io(&e);
    int n = tsri_tier_put(tier, &io, 1);
    kv_entry_fini(&e);
    return n < 0 ? n : io.result;
}

int kv_tier_get(struct tsr_tier *tier, const struct kv_shape *shape, uint64_t seed,
                uint32_t deadline_ms)
{
    struct kv_entry room;
    kv_entry_init_room_seed(&room, shape, seed);
    struct tsr_tier_io io = kv_entry_io(&room);
    if (deadline_ms) io.deadline_ns = tsri_now_ns() + (uint64_t)deadline_ms * 1000000;
    int n = tsri_tier_get(tier, &io, 1);
    room.head = io.head;
    int result = n < 0 ? n : io.result;
    if (result == 0 && !kv_entry_right(&room, shape, seed)) result = KIT_WRONG;
    kv_entry_fini(&room);
    return result;
}

int kv_tier_drop(struct tsr_tier *tier, const struct kv_shape *shape, uint64_t seed)
{
    struct tsr_tier_ref ref = kv_tier_ref(shape, seed);
    return tsri_tier_drop(tier, &ref, 1);
}

bool kv_tier_has(struct tsr_tier *tier, const struct kv_shape *shape, uint64_t seed)
{
    struct tsr_tier_ref ref = kv_tier_ref(shape, seed);
    uint8_t found = 0;
    return tsri_tier_contains(tier, &ref, 1, &found) == 1 && found;
}

bool kv_tier_until(struct tsr_tier *tier, const struct kv_shape *shape, uint64_t seed, int result,
                   uint32_t ms)
{
    uint64_t until = tsri_now_ns() + (uint64_t)ms * 1000000;
    while (kv_tier_get(tier, shape, seed, 0) != result) {
        if (tsri_now_ns() >= until) return false;
        usleep(20000);
    }
    return true;
}

bool kv_tier_fill(struct tsr_tier *tier, uint32_t n)
{
    enum { BATCH = 1000 };
    static struct tsr_tier_io io[BATCH];
    static uint32_t tokens[4];
    static uint8_t kv[4];
    static void *planes[1] = {kv};
    for (uint32_t from = 0; from < n; from += BATCH) {
        for (uint32_t i = 0; i < BATCH; i++) {
            io[i] = (struct tsr_tier_io){.tokens = tokens, .n_cells = 1, .planes = planes};
            io[i].head = (struct tsr_entry_head){.kind = TSR_KIND_SEGMENT,
                                                 .n_tokens = 1,
                                                 .cell_tokens = 64,
                                                 .n_layers = 1,
                                                 .n_planes = 1,
                                                 .row_bytes = {4, 0}};
            /* Keys are hashes: all of their bits differ. */
            uint64_t key[2] = {(from + i + 1) * 0x9E3779B97F4A7C15u,
                               (from + i + 1) * 0xC2B2AE3D27D4EB4Fu};
            memcpy(io[i].head.key.bytes, key, sizeof key);
        }
        if (tsri_tier_put(tier, io, BATCH) != BATCH) return false;
    }
    return true;
}
