/* select.c - which of the reused tokens are recomputed, as one table. Selectors see the plan and
 * perhaps scores; they mark tokens. hkvd marks all of them and lets go most at its check layers,
 * where the executor says how far each is from what was loaded. */
#include "blend/blend.h"

#include <math.h>

const char *tsr_selector_name(uint32_t id)
{
    const struct tsri_selector *s = tsri_selector_of(id);
    return s ? s->name : NULL;
}

uint32_t tsri_select_budget(const struct tsri_plan *p, double ratio)
{
    uint32_t n_known = p->n_candidates + p->n_always;
    double wanted = floor(ratio * n_known + 0.5);
    if (wanted <= p->n_always) return 0;
    uint32_t n = (uint32_t)wanted - p->n_always;
    return tsri_min_u32(n, p->n_candidates);
}

size_t tsri_select_bytes(uint32_t n_tokens)
{
    return (size_t)n_tokens * (2 * sizeof(uint32_t) + sizeof(float));
}

static int choose_nothing(const struct tsri_select *s)
{
    (void)s;
    return 0;
}

static int choose_all(const struct tsri_select *s)
{
    struct tsri_plan *p = s->plan;
    for (uint32_t i = 0; i < p->n_tokens; i++)
        if (p->states[i] == TSR_TOKEN_CANDIDATE) p->states[i] = TSR_TOKEN_SELECTED;
    return 0;
}

static int choose_scored(const struct tsri_select *s)
{
    struct tsri_plan *p = s->plan;
    uint32_t *tokens = s->memory, *chosen = tokens + p->n_tokens, n = 0;
    float *scores = (void *)(chosen + p->n_tokens);
    uint32_t k = tsri_select_budget(p, s->ratio), n_before = tsri_plan_count(p, TSR_TOKEN_SELECTED);
    if (k <= n_before) return 0;
    k -= n_before;
    for (uint32_t i = 0; i < p->n_tokens; i++) {
        if (p->states[i] != TSR_TOKEN_CANDIDATE) continue;
        tokens[n] = i;
        scores[n++] = s->scores[i];
    }
    struct tsr_top_k top = {.scores = scores, .out = chosen, .n = n, .k = k};
    int e = tsri_device_top_k(s->device, NULL, &top);
    for (uint32_t i = 0; !e && i < k; i++)
        p->states[tokens[chosen[i]]] = TSR_TOKEN_SELECTED;
    return e;
}

/* The same share of every chunk, from its front. */
static int choose_first(const struct tsri_select *s)
{
    struct tsri_plan *p = s->plan;
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        const struct tsri_piece *piece = &p->pieces[i];
        if (piece->exact || piece->kind == TSRI_PIECE_LOST) continue;
        uint32_t n = (uint32_t)ceil(s->ratio * piece->match.n_tokens);
        for (uint32_t k = 0; k < tsri_min_u32(n, piece->match.n_tokens); k++) {
            uint8_t *state = &p->states[piece->match.prompt_offset + k];
            if (*state == TSR_TOKEN_CANDIDATE) *state = TSR_TOKEN_SELECTED;
        }
    }
    return 0;
}

static const struct tsri_selector selectors[] = {
    {.name = "query",
     .id = TSR_SELECT_QUERY,
     .needs = TSR_MODEL_MASS,
     .asks = true,
     .forces = true,
     .choose = choose_scored},
    {.name = "hkvd",
     .id = TSR_SELECT_HKVD,
     .needs = TSR_MODEL_DEVIATION,
     .checks = true,
     .choose = choose_all},
    {.name = "link", .id = TSR_SELECT_LINK, .choose = choose_first},
    {.name = "none", .id = TSR_SELECT_NONE, .choose = choose_nothing},
    {.name = "full", .id = TSR_SELECT_FULL, .choose = choose_all},
};

const struct tsri_selector *tsri_selector_of(uint32_t id)
{
    for (size_t i = 0; i < TSRI_COUNT(selectors); i++)
        if (selectors[i].id == id) return &selectors[i];
    return NULL;
}

int tsr_selector_find(const char *name)
{
    for (size_t i = 0; name && i < TSRI_COUNT(selectors); i++)
        if (strcmp(selectors[i].name, name) == 0) return (int)selectors[i].id;
    return -1;
}

int tsri_select_check(struct tsri_device *device, const struct tsr_check *check, double ratio,
                      const float *deviation, uint32_t n, uint32_t *keep)
{
    if (n == 0) return 0;
    if (check->threshold > 0) {
        double mean = 0;
        uint32_t n_kept = 0;
        for (uint32_t i = 0; i < n; i++)
            mean += (double)deviation[i] / n;
        for (uint32_t i = 0; i < n; i++)
            if (!(deviation[i] <= check->threshold * mean)) keep[n_kept++] = i;
        return (int)n_kept;
    }
    double wanted = floor(ratio * n + 0.5);
    uint32_t k = wanted < 0 ? 0 : tsri_min_u32((uint32_t)wanted, n);
    if (k == 0) return 0;
    struct tsr_top_k top = {.scores = deviation, .out = keep, .n = n, .k = k};
    int e = tsri_device_top_k(device, NULL, &top);
    return e ? e : (int)k;
}
