/* mask.c - who may see whom. While entries are made, a chunk sees the system prompt (or nothing)
 * and itself; text that belongs to no chunk, the question and what is generated see everything
 * before them. While blending, every row that is computed sees everything before it, so that
 * recomputing all rows equals a plain prefill. Answers are one or two ranges of keys, never an
 * n x n matrix. */
#include "device/device.h"

int tsri_mask_check(const struct tsri_mask *m)
{
    if (m->regime != TSRI_MASK_ISOLATE && m->regime != TSRI_MASK_BLEND)
        return tsri_fail(TSR_EINVAL, "mask: regime %u", m->regime);
    uint64_t end = m->n_context;
    for (uint32_t i = 0; i < m->n_chunks; i++) {
        const struct tsr_range *c = &m->chunks[i];
        if (!c->n_tokens || c->offset < end)
            return tsri_fail(TSR_EINVAL, "mask: chunk %u of %u tokens at %u, after token %llu", i,
                             c->n_tokens, c->offset, (unsigned long long)end);
        end = (uint64_t)c->offset + c->n_tokens;
        if (end > UINT32_MAX) return tsri_fail(TSR_EINVAL, "mask: chunk %u ends beyond 2^32", i);
    }
    return 0;
}

/* The last chunk that begins at or before row, if row is in it. */
static const struct tsr_range *chunk_of(const struct tsri_mask *m, uint32_t row)
{
    uint32_t lo = 0, hi = m->n_chunks;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (m->chunks[mid].offset <= row)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (!lo) return NULL;
    const struct tsr_range *c = &m->chunks[lo - 1];
    return row - c->offset < c->n_tokens ? c : NULL;
}

uint32_t tsri_mask_row(const struct tsri_mask *m, uint32_t row,
                       struct tsr_range ranges[TSRI_MASK_RANGES_MAX])
{
    const struct tsr_range *c = m->regime == TSRI_MASK_ISOLATE ? chunk_of(m, row) : NULL;
    uint32_t seen = m->context_visible ? m->n_context : 0;
    if (!c || (seen == c->offset && seen > 0)) {
        ranges[0] = (struct tsr_range){0, row + 1};
        return 1;
    }
    uint32_t n = 0;
    if (seen) ranges[n++] = (struct tsr_range){0, seen};
    ranges[n++] = (struct tsr_range){c->offset, row - c->offset + 1};
    return n;
}
