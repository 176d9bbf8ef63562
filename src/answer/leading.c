/* leading.c - an answer whose documents were looked at first, so that one of them could lead. */
#include "answer/answer.h"

void tsri_leading_count(struct tsr_blend_report *r, const struct tsr_blend_report *look)
{
    /* What the look has filled, the answer found in the cache, unless it leads or was evicted since;
     * the user waited for it all the same. */
    r->n_filled += look->n_filled;
    r->n_filled_reused =
        tsri_min_u32(r->n_filled_reused + look->n_filled_reused, r->n_exact + r->n_reused);
    r->n_stored += look->n_stored;
    r->n_failed += look->n_failed;
    r->reasons |= look->reasons & (TSR_BLEND_FAULT | TSR_BLEND_REFUSED | TSR_BLEND_ROOM);
    r->lookup_s += look->lookup_s;
    r->wait_s += look->wait_s;
    r->fill_s += look->fill_s;
    r->query_s += look->query_s;
    r->total_s += look->total_s;
}
