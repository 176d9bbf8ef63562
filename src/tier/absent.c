/* absent.c - what a server did not have a moment ago, so that asking for the same text again costs
 * no round trip. One slot a key, chosen by its hash; a new key takes the place of an old one. A tag
 * without its time, or the time of another tag, can only make a key look absent or present for the
 * few milliseconds that the table keeps anything: both are what it would have been without it. */
#include "tier/parcel.h"

int tsri_absent_init(struct tsri_absent *a, uint32_t n_slots, uint32_t keep_ms)
{
    memset(a, 0, sizeof *a);
    if (!keep_ms) return 0;
    uint64_t n = tsri_pow2_up(n_slots ? n_slots : 1);
    a->slots = tsri_alloc(n, sizeof a->slots[0]);
    if (!a->slots) return TSR_ENOMEM;
    a->mask = n - 1;
    a->keep_ns = (uint64_t)keep_ms * 1000000;
    return 0;
}

void tsri_absent_fini(struct tsri_absent *a)
{
    tsri_free(a->slots);
    memset(a, 0, sizeof *a);
}

static struct tsri_absent_slot *slot_of(struct tsri_absent *a, const struct tsr_key *key,
                                        const uint8_t space[16], uint64_t *tag)
{
    uint64_t home, other;
    memcpy(&other, space, sizeof other);
    memcpy(&home, key->bytes, sizeof home);
    memcpy(tag, key->bytes + 8, sizeof *tag);
    *tag ^= other ^ home >> 32; /* no bit is lost for the comparison */
    return &a->slots[home & a->mask];
}

void tsri_absent_add(struct tsri_absent *a, const struct tsr_key *key, const uint8_t space[16])
{
    if (!a->slots) return;
    uint64_t tag;
    struct tsri_absent_slot *s = slot_of(a, key, space, &tag);
    atomic_store_explicit(&s->until_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&s->tag, tag, memory_order_release);
    atomic_store_explicit(&s->until_ns, tsri_now_ns() + a->keep_ns, memory_order_release);
}

void tsri_absent_remove(struct tsri_absent *a, const struct tsr_key *key, const uint8_t space[16])
{
    if (!a->slots) return;
    uint64_t tag;
    struct tsri_absent_slot *s = slot_of(a, key, space, &tag);
    atomic_store_explicit(&s->until_ns, 0, memory_order_release);
}

bool tsri_absent_has(struct tsri_absent *a, const struct tsr_key *key, const uint8_t space[16])
{
    if (!a->slots) return false;
    uint64_t tag;
    struct tsri_absent_slot *s = slot_of(a, key, space, &tag);
    uint64_t until = atomic_load_explicit(&s->until_ns, memory_order_acquire);
    if (!until || atomic_load_explicit(&s->tag, memory_order_acquire) != tag) return false;
    return tsri_now_ns() < until;
}
