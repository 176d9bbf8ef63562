/* The record of an entry on a server, from bytes that anybody may have written there. Whatever is
 * believed must be safe to walk: every cell and part lies within the KV, tokens and sums within the
 * record. */
#include "tier/parcel.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct tsri_parcel r;
    uint8_t *copy = malloc(bytes + 1);
    if (!copy) return 0;
    memcpy(copy, data, bytes);
    /* Most inputs would fail at a checksum: the second try has right ones. */
    for (int i = 0; i < 2; i++) {
        if (tsri_parcel_read_head(copy, bytes, &r) == 0) {
            TSR_ASSERT(tsri_head_is_valid(&r.head));
            TSR_ASSERT(r.n_parts > 0 && r.n_parts <= TSRI_PARCEL_PARTS_MAX);
            uint64_t at = 0;
            for (uint32_t p = 0; p < r.n_parts; p++) {
                struct tsri_extent x = tsri_parcel_part(&r, p);
                TSR_ASSERT(x.begin == at && x.end > x.begin && x.end <= r.kv_bytes);
                at = x.end;
            }
            TSR_ASSERT(at == r.kv_bytes);
        }
        if (tsri_parcel_read(copy, bytes, &r) == 0) {
            TSR_ASSERT(r.sums_at + tsri_parcel_cells(&r) * 8 == bytes);
            TSR_ASSERT(r.tokens_at + (uint64_t)r.head.n_tokens * 4 <= r.extra_at);
            TSR_ASSERT(r.extra_at + r.head.extra_bytes <= r.sums_at);
        }
        if (bytes < TSRI_PARCEL_HEAD_BYTES) break;
        tsri_put64(copy + 40,
                   tsri_sum(copy + TSRI_PARCEL_HEAD_BYTES, bytes - TSRI_PARCEL_HEAD_BYTES));
        tsri_put64(copy + 248, tsri_sum(copy, 248));
    }
    free(copy);
    return 0;
}
