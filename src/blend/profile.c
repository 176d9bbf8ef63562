/* profile.c - the defaults of a profile and the tables of its fields. profile_read.c and
 * profile_write.c make a file of it and back. */
#include "blend/profile_fields.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

void tsr_profile_init(struct tsr_profile *p)
{
    /* The ratio is that of the papers. Late layers chose better than all of them on every model
     * that was compared; early ones choose badly. */
    *p = (struct tsr_profile){
        .size = sizeof *p,
        .selector = TSR_SELECT_QUERY,
        .context = TSR_CONTEXT_SAME,
        .boundary = 2,
        .first_tokens = 1,
        .query_rows = 32,
        .bias_reused = 1,
        .ratio = 0.15,
        .query_layers = {0.667, 1},
        .n_checks = 1,
        .checks = {{.layer = 1}},
        .gate_limit = 0.95,
        .lead = {.draft_floor = NAN, .gate_limit = NAN, .draft_passes = NAN, .gate_accepts = NAN},
        .draft_passes = 1};
    snprintf(p->primer, sizeof p->primer, "%s", tsri_primer_text);
}

static const struct {
    const char *name;
    uint32_t id;
} contexts[] = {
    {"same", TSR_CONTEXT_SAME}, {"pure", TSR_CONTEXT_PURE}, {"primer", TSR_CONTEXT_PRIMER}};

const char *tsri_context_name(uint32_t context)
{
    for (size_t i = 0; i < TSRI_COUNT(contexts); i++)
        if (contexts[i].id == context) return contexts[i].name;
    return NULL;
}

int tsri_context_find(const char *name)
{
    for (size_t i = 0; i < TSRI_COUNT(contexts); i++)
        if (strcmp(contexts[i].name, name) == 0) return (int)contexts[i].id;
    return -1;
}

#define PROFILE(field) offsetof(struct tsr_profile, field)
static const struct tsri_profile_field of_profile[] = {
    {"selector", TSRI_PROFILE_SELECTOR, PROFILE(selector), 0, 0},
    {"context", TSRI_PROFILE_CONTEXT, PROFILE(context), 0, 0},
    {"ratio", TSRI_PROFILE_NUMBER, PROFILE(ratio), 0, 1},
    {"boundary", TSRI_PROFILE_COUNT, PROFILE(boundary), 0, 1024},
    {"first_tokens", TSRI_PROFILE_COUNT, PROFILE(first_tokens), 0, 1024},
    {"query_rows", TSRI_PROFILE_COUNT, PROFILE(query_rows), 1, 1024},
    {"bias_reused", TSRI_PROFILE_COUNT, PROFILE(bias_reused), 0, 1},
    {"bias_answer", TSRI_PROFILE_COUNT, PROFILE(bias_answer), 0, 1},
    {"draft", TSRI_PROFILE_COUNT, PROFILE(draft), 0, TSR_PROFILE_DRAFT_MAX},
    {"draft_selects", TSRI_PROFILE_COUNT, PROFILE(draft_selects), 0, 1},
    {"draft_floor", TSRI_PROFILE_NUMBER, PROFILE(draft_floor), 0, 1},
    {"gate_limit", TSRI_PROFILE_NUMBER, PROFILE(gate_limit), 0, 1},
    {"draft_passes", TSRI_PROFILE_NUMBER, PROFILE(draft_passes), 0, 1},
    {"gate_accepts", TSRI_PROFILE_NUMBER, PROFILE(gate_accepts), 0, 1},
};
#define LEAD(field) offsetof(struct tsr_lead_profile, field)
static const struct tsri_profile_field of_lead[] = {
    {"draft_floor", TSRI_PROFILE_NUMBER, LEAD(draft_floor), 0, 1},
    {"gate_limit", TSRI_PROFILE_NUMBER, LEAD(gate_limit), 0, 1},
    {"draft_passes", TSRI_PROFILE_NUMBER, LEAD(draft_passes), 0, 1},
    {"gate_accepts", TSRI_PROFILE_NUMBER, LEAD(gate_accepts), 0, 1},
};
#define CHECK_AT(field) offsetof(struct tsr_check, field)
static const struct tsri_profile_field of_check[] = {
    {"layer", TSRI_PROFILE_COUNT, CHECK_AT(layer), 0, 1023},
    {"ratio", TSRI_PROFILE_NUMBER, CHECK_AT(ratio), 0, 1},
    {"threshold", TSRI_PROFILE_NUMBER, CHECK_AT(threshold), 0, 1e9},
};
#define FRONTIER(field) offsetof(struct tsr_frontier, field)
static const struct tsri_profile_field of_frontier[] = {
    {"selector", TSRI_PROFILE_SELECTOR, FRONTIER(selector), 0, 0},
    {"context", TSRI_PROFILE_CONTEXT, FRONTIER(context), 0, 0},
    {"prompts", TSRI_PROFILE_COUNT, FRONTIER(n_prompts), 0, 1e9},
    {"ratio", TSRI_PROFILE_NUMBER, FRONTIER(ratio), 0, 1},
    {"bias", TSRI_PROFILE_NUMBER, FRONTIER(bias), -100, 100},
    {"layers_from", TSRI_PROFILE_NUMBER, FRONTIER(layers_from), 0, 1},
    {"layers_to", TSRI_PROFILE_NUMBER, FRONTIER(layers_to), 0, 1},
    {"rounds", TSRI_PROFILE_COUNT, FRONTIER(n_rounds), 0, TSR_PROFILE_ROUNDS_MAX},
    {"kl", TSRI_PROFILE_NUMBER, FRONTIER(kl), 0, 1e6},
    {"agreement", TSRI_PROFILE_NUMBER, FRONTIER(agreement), 0, 1},
    {"speedup", TSRI_PROFILE_NUMBER, FRONTIER(speedup), 0, 1e9},
};

const struct tsri_profile_table tsri_profile_fields = {of_profile, TSRI_COUNT(of_profile)};
const struct tsri_profile_table tsri_lead_fields = {of_lead, TSRI_COUNT(of_lead)};
const struct tsri_profile_table tsri_check_fields = {of_check, TSRI_COUNT(of_check)};
const struct tsri_profile_table tsri_frontier_fields = {of_frontier, TSRI_COUNT(of_frontier)};
