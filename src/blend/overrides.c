/* overrides.c - blend_* options in place of a profile's settings. A profile is what was measured for
 * a model; an option is what a user has asked for, so it wins. Options that are not set leave the
 * profile as it is. */
#include "blend/blend.h"

/* The i-th of a list with one number for all, or one for each. */
static double item(const struct tsri_list *list, uint32_t i)
{
    return list->n == 0 ? 0 : list->values[list->n == 1 ? 0 : i];
}

/* By deviation, as CacheBlend does it; rounds are for selection by the question. */
static int override_checks(struct tsr_profile *p, const struct tsri_options *o)
{
    const struct tsri_list *layers = &o->blend_check_layers;
    if (layers->n > TSR_PROFILE_CHECKS_MAX)
        return tsri_fail(TSR_ECONFIG, "blend_check_layers: %u layers, at most %u", layers->n,
                         TSR_PROFILE_CHECKS_MAX);
    p->selector = TSR_SELECT_HKVD;
    p->n_rounds = p->lead.n_rounds = 0;
    if (layers->n) p->n_checks = layers->n;
    for (uint32_t i = 0; i < p->n_checks; i++) {
        struct tsr_check *check = &p->checks[i];
        if (layers->n) *check = (struct tsr_check){.layer = (uint32_t)layers->values[i]};
        if (o->blend_recompute_ratios.n) check->ratio = item(&o->blend_recompute_ratios, i);
        if (o->blend_thresholds.n) check->threshold = item(&o->blend_thresholds, i);
    }
    return 0;
}

int tsri_profile_override(struct tsr_profile *p, const struct tsri_options *o, bool can_prime)
{
    const struct tsri_list *ratios = &o->blend_recompute_ratios;
    if (o->blend_boundary.n) p->boundary = (uint32_t)o->blend_boundary.values[0];
    if (ratios->n) {
        p->ratio = ratios->values[ratios->n - 1];
        p->n_rounds = p->lead.n_rounds = 0;
    }
    /* In chunked mode a document is the same whatever system prompt is before it. */
    if (o->chunked && p->context == TSR_CONTEXT_SAME)
        p->context = can_prime ? TSR_CONTEXT_PRIMER : TSR_CONTEXT_PURE;
    return o->blend_check_layers.n || o->blend_thresholds.n ? override_checks(p, o) : 0;
}
