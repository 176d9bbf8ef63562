/* blender.c - a model and a cache together. Opens the spaces of the model (one for exact KV, one
 * more for int8 segments), and drives a run over a session of the model. */
#include "blend/blend.h"

#include <math.h>
#include <stdio.h>

/* ---- spaces ---- */

#define ROPE_TEXT_BYTES 8192u
#define LABEL_BYTES (TSR_MODEL_NAME_BYTES + sizeof((struct tsr_model_info){0}.architecture) + 4)

/* What people see of the space: "SmolLM2 135M (llama)". An engine need not know the name. */
static const char *label(const struct tsr_model_info *i, char out[LABEL_BYTES])
{
    bool named = i->name[0] && strcmp(i->name, i->architecture) != 0;
    if (named)
        snprintf(out, LABEL_BYTES, "%s (%s)", i->name, i->architecture);
    else
        snprintf(out, LABEL_BYTES, "%s", i->architecture);
    return out;
}

/* Blocks of the space that profiles are named by: those of a cache with default options. */
#define MODEL_BLOCKS 256u

/* The model as a space has it, and the texts that this points to. */
struct identity {
    struct tsr_space_desc desc;
    char tokenizer[33], rope[ROPE_TEXT_BYTES], model[LABEL_BYTES];
    uint8_t weights[TSR_MODEL_WEIGHTS_BYTES + sizeof((struct tsr_model_info){0}.arithmetic)];
};

static int identify(struct identity *id, const struct tsr_model_info *i)
{
    int n = tsri_rope_text(&i->rope, id->rope, sizeof id->rope);
    if (n < 0) return n;
    if ((size_t)n >= sizeof id->rope)
        return tsri_fail(TSR_ERANGE, "blend: rope parameters have %d bytes", n);
    tsri_hex(id->tokenizer, i->tokenizer, sizeof i->tokenizer);
    memcpy(id->weights, i->weights, sizeof i->weights);
    memcpy(id->weights + sizeof i->weights, i->arithmetic, sizeof i->arithmetic);
    id->desc = (struct tsr_space_desc){.size = sizeof id->desc,
                                       .model = label(i, id->model),
                                       .weights = id->weights,
                                       .weights_bytes = sizeof i->weights,
                                       .tokenizer = id->tokenizer,
                                       .rope = id->rope,
                                       .dtype = i->kv_dtype,
                                       .layout = TSR_LAYOUT_STANDARD,
                                       .n_layers = i->n_layers,
                                       .n_heads = i->n_kv_heads,
                                       .k_dim = i->head_dim,
                                       .block_tokens = MODEL_BLOCKS};
    return 0;
}

/* `plain`: who else stores in the space; of size 0, the salt and the blocks of one of the blend's
 * own. */
static int open_space(struct tsr_space **out, const struct tsr_blend *b, bool int8,
                      const struct tsr_space_desc *plain)
{
    const struct tsr_model_info *i = &b->info;
    struct identity id;
    int e = identify(&id, i);
    if (e) return e;
    id.desc.weights_bytes += strlen(i->arithmetic);
    id.desc.block_tokens = 0;
    struct tsr_space_desc desc = id.desc;
    if (plain->size)
        memcpy(&desc, plain, plain->size < sizeof desc ? plain->size : sizeof desc);
    else
        desc.salt = plain->salt, desc.block_tokens = plain->block_tokens;
    desc.size = sizeof desc;
    desc.rope = id.rope;
    desc.dtype = int8 ? TSR_DTYPE_INT8 : i->kv_dtype;
    desc.layout = TSR_LAYOUT_STANDARD;
    desc.n_layers = i->n_layers;
    desc.n_heads = int8 ? 1 : i->n_kv_heads;
    size_t row = tsri_row_bytes_int8(i->n_kv_heads, i->head_dim);
    desc.k_dim = int8 ? (uint32_t)row : i->head_dim;
    desc.v_dim = 0;
    return tsr_space_open(out, b->cache, &desc);
}

/* Where the frequencies change with the length of a prompt, it is not known with which ones an
 * engine computed a plain request. */
static bool turns_alike(const struct tsr_rope *r)
{
    return r->scaling != TSR_ROPE_DYNAMIC && r->scaling != TSR_ROPE_LONGROPE;
}

static int open_cache(struct tsr_blend *b, const struct tsr_blend_desc *desc)
{
    const struct tsr_space_desc *plain = desc->traffic;
    if (plain && plain->size < offsetof(struct tsr_space_desc, dtype))
        return tsri_fail(TSR_EINVAL, "blend: traffic: size is missing");
    if (!b->cache) return 0;
    int e = tsr_client_open(&b->client, b->cache);
    struct tsr_space_desc own = {.salt = desc->salt};
    if (!e) e = open_space(&b->exact, b, false, &own);
    if (!e && b->int8) e = open_space(&b->segments, b, true, &own);
    if (!b->int8) b->segments = b->exact;
    b->prefixes = b->exact;
    own.block_tokens = desc->prefix_block_tokens;
    if (!e && own.block_tokens) e = open_space(&b->prefixes, b, false, &own);
    if (!e && plain && turns_alike(&b->info.rope)) e = open_space(&b->traffic, b, false, plain);
    return e;
}

/* ---- blends ---- */

/* What an engine says of its model is checked as far as it can be. */
static int check_info(const struct tsr_model_info *i)
{
    if (i->size < sizeof *i || !memchr(i->architecture, 0, sizeof i->architecture) ||
        !memchr(i->name, 0, sizeof i->name) || !memchr(i->arithmetic, 0, sizeof i->arithmetic))
        return tsri_fail(TSR_EINVAL,
                         "blend: info: size, name, architecture or arithmetic is missing");
    bool dtype = i->kv_dtype == TSR_DTYPE_F16 || i->kv_dtype == TSR_DTYPE_BF16 ||
                 i->kv_dtype == TSR_DTYPE_F32;
    if (!i->n_layers || !i->n_kv_heads || !i->head_dim || !i->n_vocab || !i->context || !dtype)
        return tsri_fail(TSR_EINVAL,
                         "blend: unsupported model: %u layers, %u KV heads of %u, %u tokens, "
                         "context of %u, dtype %u",
                         i->n_layers, i->n_kv_heads, i->head_dim, i->n_vocab, i->context,
                         i->kv_dtype);
    return 0;
}

static int take_info(struct tsr_blend *b, const struct tsr_blend_desc *desc)
{
    b->info.size = sizeof b->info;
    if (desc->model) return tsr_model_info(desc->model, &b->info);
    int e = check_info(desc->info);
    if (!e) b->info = *desc->info;
    return e;
}

static bool ascend_below_one(const double *rounds, uint32_t n)
{
    bool good = n <= TSR_PROFILE_ROUNDS_MAX;
    for (uint32_t i = 0; good && i < n; i++)
        good = rounds[i] > (i ? rounds[i - 1] : 0) && rounds[i] < 1;
    return good;
}

static bool is_share(double x)
{
    return x >= 0 && x <= 1;
}

static bool is_lead(const struct tsr_lead_profile *l)
{
    return ascend_below_one(l->rounds, l->n_rounds) &&
           (isnan(l->draft_floor) || is_share(l->draft_floor)) &&
           (isnan(l->gate_limit) || is_share(l->gate_limit)) &&
           (isnan(l->draft_passes) || is_share(l->draft_passes)) &&
           (isnan(l->gate_accepts) || is_share(l->gate_accepts));
}

/* A profile from a file was checked as it was read; one that a program has filled was not. */
static int check_profile(const struct tsr_blend *b)
{
    const struct tsr_profile *p = &b->profile;
    if (p->n_checks > TSR_PROFILE_CHECKS_MAX || p->bias.n > TSR_PROFILE_POINTS_MAX ||
        p->bias_chunks.n > TSR_PROFILE_POINTS_MAX || !tsri_selector_of(p->selector))
        return tsri_fail(TSR_EINVAL, "blend: invalid profile: selector %u, %u checks", p->selector,
                         p->n_checks);
    if (!ascend_below_one(p->rounds, p->n_rounds))
        return tsri_fail(TSR_EINVAL,
                         "blend: invalid profile: %u rounds must ascend, between 0 and 1",
                         p->n_rounds);
    if (!is_share(p->ratio) || !is_share(p->draft_floor) || !is_share(p->gate_limit) ||
        !is_share(p->draft_passes) || !is_share(p->gate_accepts) || !p->query_rows ||
        p->draft > TSR_PROFILE_DRAFT_MAX)
        return tsri_fail(TSR_EINVAL,
                         "blend: invalid profile: ratio %g, draft_floor %g, gate_limit %g, "
                         "%u query_rows, draft of %u",
                         p->ratio, p->draft_floor, p->gate_limit, p->query_rows, p->draft);
    if (!is_lead(&p->lead))
        return tsri_fail(TSR_EINVAL,
                         "blend: invalid profile: lead: %u rounds, draft_floor %g, gate_limit %g",
                         p->lead.n_rounds, p->lead.draft_floor, p->lead.gate_limit);
    const double *layers = p->query_layers;
    if (!(layers[0] >= 0 && layers[0] < layers[1] && layers[1] <= 1))
        return tsri_fail(TSR_EINVAL, "blend: invalid profile: query_layers %g to %g", layers[0],
                         layers[1]);
    for (uint32_t i = 0; i < p->n_checks; i++)
        if (p->checks[i].layer >= b->info.n_layers)
            return tsri_fail(TSR_EINVAL, "blend: the profile checks layer %u of %u",
                             p->checks[i].layer, b->info.n_layers);
    char model[33] = "";
    if (!p->space[0]) return 0;
    tsri_hex(model, b->model_id, sizeof b->model_id);
    if (strcmp(model, p->space) != 0)
        return tsri_fail(TSR_ESPACE, "blend: the profile is for space %s, the model's is %s",
                         p->space, model);
    return 0;
}

/* What the program gives, else what the cache was configured with. */
static int take_settings(struct tsr_blend *b, const struct tsr_blend_desc *desc)
{
    const struct tsri_options *o = b->cache ? tsri_cache_options(b->cache) : NULL;
    b->min_tokens = o ? o->blend_min_tokens : TSRI_MIN_TOKENS;
    if (desc->blend_min_tokens) b->min_tokens = desc->blend_min_tokens;
    if (desc->blend_min_tokens == UINT32_MAX) b->min_tokens = 0;
    if (desc->profile && desc->profile->size < sizeof b->profile)
        return tsri_fail(TSR_EINVAL, "blend: profile: size is missing, or of an older header");
    if (desc->profile)
        b->profile = *desc->profile;
    else
        tsr_profile_init(&b->profile);
    uint32_t context = b->profile.context;
    bool can_prime = desc->n_primer || (desc->model && b->info.caps & TSR_MODEL_TEXT);
    int e = o ? tsri_profile_override(&b->profile, o, can_prime) : 0;
    if (!e) e = tsri_primer_init(&b->primer, &b->profile, &b->info, desc);
    if (e != TSR_ERANGE || context == TSR_CONTEXT_PRIMER) return e;
    /* The option asks for a primer, not the profile, and it does not fit: do without. */
    tsri_primer_fini(&b->primer);
    b->primer = (struct tsri_primer){0};
    b->profile.context = TSR_CONTEXT_PURE;
    return 0;
}

int tsr_blend_open(struct tsr_blend **out, const struct tsr_blend_desc *desc)
{
    if (!out) return tsri_fail(TSR_EINVAL, "blend: out is NULL");
    *out = NULL;
    if (!desc || desc->size < sizeof *desc || !desc->model == !desc->info)
        return tsri_fail(TSR_EINVAL, "blend: desc: size, model or info is missing");
    struct tsr_blend *b = tsri_alloc(1, sizeof *b);
    if (!b) return TSR_ENOMEM;
    pthread_mutex_init(&b->lock, NULL);
    tsri_bulk_spare_init(&b->spare);
    b->model = desc->model;
    b->cache = desc->cache;
    b->int8 = desc->flags & TSR_BLEND_INT8;
    struct identity id;
    int e = take_info(b, desc);
    if (!e) e = identify(&id, &b->info);
    if (!e) tsri_space_fingerprint(&id.desc, b->model_id);
    if (!e) e = take_settings(b, desc);
    if (!e) e = tsri_device_open(&b->device, "cpu", NULL);
    if (!e) e = open_cache(b, desc);
    if (!e) e = check_profile(b);
    if (e) {
        tsr_blend_close(b);
        return e;
    }
    *out = b;
    return 0;
}

void tsr_blend_close(struct tsr_blend *b)
{
    if (!b) return;
    if (b->segments != b->exact) tsr_space_close(b->segments);
    if (b->prefixes != b->exact) tsr_space_close(b->prefixes);
    tsr_space_close(b->exact);
    tsr_space_close(b->traffic);
    if (b->client) tsr_client_close(b->client);
    tsri_primer_fini(&b->primer);
    tsri_device_close(b->device);
    tsri_bulk_spare_fini(&b->spare);
    pthread_mutex_destroy(&b->lock);
    tsri_free(b->bias);
    tsri_free(b);
}

struct tsr_space *tsr_blend_space(const struct tsr_blend *b)
{
    return b->exact;
}

void tsr_blend_model(const struct tsr_blend *b, uint8_t out[16])
{
    memcpy(out, b->model_id, sizeof b->model_id);
}

const struct tsr_profile *tsr_blend_profile(const struct tsr_blend *b)
{
    return &b->profile;
}

uint32_t tsr_blend_primer(const struct tsr_blend *b)
{
    return b->primer.n_tokens;
}

const float *tsr_blend_bias(const struct tsr_blend *b, uint32_t *n)
{
    *n = b->n_bias;
    return b->bias;
}

const uint32_t *tsr_blend_draft(const struct tsr_blend *b, uint32_t *n)
{
    *n = b->n_draft;
    return b->draft;
}

/* ---- asking ---- */

int tsri_blend_step(struct tsr_session *s, const struct tsr_blend_step *step)
{
    switch (step->kind) {
    case TSR_STEP_BEGIN:
        return tsr_session_begin(s, &step->pass);
    case TSR_STEP_LAYER:
        return tsr_session_layer(s, &step->layer);
    case TSR_STEP_DEVIATION:
        return tsr_session_deviation(s, &step->deviation);
    case TSR_STEP_NARROW:
        return tsr_session_narrow(s, step->keep, step->n_keep);
    case TSR_STEP_LOGITS:
        return tsr_session_logits(s, step->keep, step->n_keep, step->logits);
    default:
        tsr_session_end(s);
        return 0;
    }
}

int tsri_blend_steps(struct tsr_session *s, struct tsr_run *run)
{
    struct tsr_blend_step step;
    int e;
    for (int result = 0; (e = tsr_blend_next(run, result, &step)) > 0;)
        do
            result = tsri_blend_step(s, &step);
        while (result > 0);
    tsr_session_end(s);
    return e;
}

int tsr_blend_ask(struct tsr_blend *b, const struct tsr_ask_desc *ask, float *logits,
                  struct tsr_blend_report *report)
{
    struct tsr_run *run;
    if (!ask || ask->size < sizeof *ask || !ask->session)
        return tsri_fail(TSR_EINVAL, "ask: size or session is missing");
    int e = tsr_blend_start(&run, b, ask, NULL);
    if (e) return e;
    e = tsri_blend_steps(ask->session, run);
    tsr_blend_end(run, logits, report);
    return e;
}
