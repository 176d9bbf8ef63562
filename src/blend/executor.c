/* executor.c - models by the table of an executor. The only file that calls through the table: it
 * loads the shared object, checks every argument before the executor sees it and keeps the order of
 * a pass (begin, layers one after the other, logits behind the last, end). */
#include "blend/blend.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#define THREADS_MAX 16u

struct tsr_model {
    const struct tsr_executor_ops *ops;
    struct tsr_executor *impl;
    void *library; /* of dlopen; NULL when the table was given */
    struct tsr_model_info info;
};

struct tsr_session {
    struct tsr_model *model;
    struct tsr_executor_session *impl;
    struct tsr_kv_layout layout;
    uint32_t n_slots;
    /* of the open pass: */
    uint32_t n_rows; /* current; 0: no pass is open */
    uint32_t layer;  /* the next one */
    uint32_t n_bias_rows, n_mass_rows;
    bool failed;
};

struct tsr_decoder {
    struct tsr_model *model;
    struct tsr_executor_decoder *impl; /* NULL: rows go one after another */
    uint32_t rows_max;
};

static int fail_text(int err, const char *text)
{
    return tsri_fail(err, "%s", text);
}

/* ---- models ---- */

static int load(struct tsr_model *m, const char *path)
{
    if (!path) path = "libtessera-model.so";
    /* Compute libraries keep threads and thread-local data: once loaded they stay. */
    m->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!m->library) return tsri_fail(TSR_EDEVICE, "executor: %s", dlerror());
    m->ops = dlsym(m->library, TSR_EXECUTOR_SYMBOL);
    if (!m->ops) return tsri_fail(TSR_EDEVICE, "executor: %s has no %s", path, TSR_EXECUTOR_SYMBOL);
    return 0;
}

static int check_table(const struct tsr_executor_ops *ops)
{
    if (ops->abi == 0 || ops->abi > TSR_EXECUTOR_ABI)
        return tsri_fail(TSR_EVERSION, "executor: abi %u, this library knows up to %u", ops->abi,
                         TSR_EXECUTOR_ABI);
    bool text = ops->tokenize && ops->detokenize && ops->is_end && ops->chat;
    bool no_text = !ops->tokenize && !ops->detokenize && !ops->is_end && !ops->chat;
    if (!ops->name || !ops->open || !ops->close || !ops->info || !(text || no_text) ||
        !ops->session_open || !ops->session_close || !ops->session_layout || !ops->begin ||
        !ops->layer || !ops->narrow || !ops->logits || !ops->end)
        return tsri_fail(TSR_EDEVICE, "executor: the table lacks a required member");
    if (ops->abi >= 2 &&
        (!ops->decoder_open != !ops->decoder_run || !ops->decoder_open != !ops->decoder_close))
        return tsri_fail(TSR_EDEVICE, "executor: the table has a part of the decoder only");
    return 0;
}

static int check_info(const struct tsr_model *m)
{
    const struct tsr_model_info *i = &m->info;
    if (!memchr(i->arithmetic, 0, sizeof i->arithmetic))
        return tsri_fail(TSR_EDEVICE, "executor %s: its arithmetic has no end", m->ops->name);
    if (!i->n_layers || i->n_layers > TSRI_KV_LAYERS_MAX || !i->n_heads || !i->n_kv_heads ||
        i->n_heads % i->n_kv_heads || !i->head_dim || !i->n_vocab || !i->context)
        return tsri_fail(
            TSR_EDEVICE,
            "executor %s: invalid model: %u layers, %u heads over %u KV heads, vocabulary of %u",
            m->ops->name, i->n_layers, i->n_heads, i->n_kv_heads, i->n_vocab);
    if ((i->caps & TSR_MODEL_DEVIATION && !m->ops->deviation) ||
        (i->caps & (TSR_MODEL_TEXT | TSR_MODEL_CHAT) && !m->ops->tokenize))
        return tsri_fail(TSR_EDEVICE, "executor %s: announces a capability that its table lacks",
                         m->ops->name);
    return tsri_rope_check(&i->rope);
}

static uint32_t threads_default(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : tsri_min_u32((uint32_t)n, THREADS_MAX);
}

int tsr_model_open(struct tsr_model **out, const struct tsr_executor_ops *ops,
                   const struct tsr_model_desc *desc)
{
    if (!out) return tsri_fail(TSR_EINVAL, "model: out is NULL");
    *out = NULL;
    if (!desc || desc->size < sizeof *desc || !desc->path)
        return tsri_fail(TSR_EINVAL, "model: desc: size or path is missing");
    struct tsr_model_desc full = *desc;
    full.fail = fail_text;
    if (!full.n_threads) full.n_threads = threads_default();
    if (!full.kv_dtype) full.kv_dtype = TSR_DTYPE_F16;
    if (full.kv_dtype > TSR_DTYPE_F32)
        return tsri_fail(TSR_EINVAL, "model: KV dtype %u", full.kv_dtype);
    struct tsr_model *m = tsri_alloc(1, sizeof *m);
    if (!m) return TSR_ENOMEM;
    m->ops = ops;
    int e = ops ? 0 : load(m, full.library);
    if (!e) e = check_table(m->ops);
    if (!e) e = m->ops->open(&m->impl, &full);
    if (!e) {
        m->info.size = sizeof m->info;
        e = m->ops->info(m->impl, &m->info);
        if (!e) e = check_info(m);
    }
    if (e) {
        tsr_model_close(m);
        return e;
    }
    *out = m;
    return 0;
}

void tsr_model_close(struct tsr_model *m)
{
    if (!m) return;
    if (m->ops && m->impl) m->ops->close(m->impl);
    if (m->library) dlclose(m->library);
    tsri_free(m);
}

int tsr_model_info(const struct tsr_model *m, struct tsr_model_info *out)
{
    if (!m || !out || out->size < sizeof out->size)
        return tsri_fail(TSR_EINVAL, "model info: size is not set");
    size_t size = out->size;
    memset(out, 0, size);
    memcpy(out, &m->info, size < sizeof *out ? size : sizeof *out);
    out->size = size;
    return 0;
}

/* ---- text ---- */

static int refuse_text(const struct tsr_model *m)
{
    return tsri_fail(TSR_EUNSUP, "executor %s has no tokenizer for this model", m->ops->name);
}

int tsr_model_tokenize(const struct tsr_model *m, const char *text, size_t bytes, uint32_t flags,
                       uint32_t *tokens, uint32_t max)
{
    if (!m || (!text && bytes) || (!tokens && max) || bytes > INT32_MAX)
        return tsri_fail(TSR_EINVAL, "tokenize: %zu bytes", bytes);
    if (!(m->info.caps & TSR_MODEL_TEXT)) return refuse_text(m);
    return m->ops->tokenize(m->impl, text ? text : "", bytes, flags, tokens, max);
}

int tsr_model_detokenize(const struct tsr_model *m, const uint32_t *tokens, uint32_t n,
                         uint32_t flags, char *text, size_t bytes)
{
    if (!m || (!tokens && n) || (!text && bytes))
        return tsri_fail(TSR_EINVAL, "detokenize: %u tokens", n);
    if (!(m->info.caps & TSR_MODEL_TEXT)) return refuse_text(m);
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] >= m->info.n_vocab)
            return tsri_fail(TSR_EINVAL, "detokenize: token %u is outside the vocabulary of %u",
                             tokens[i], m->info.n_vocab);
    return m->ops->detokenize(m->impl, tokens, n, flags, text, bytes);
}

int tsr_model_is_end(const struct tsr_model *m, uint32_t token)
{
    if (!m || !(m->info.caps & TSR_MODEL_TEXT) || token >= m->info.n_vocab) return 0;
    return m->ops->is_end(m->impl, token);
}

int tsr_model_chat(const struct tsr_model *m, const struct tsr_chat_message *messages, uint32_t n,
                   char *text, size_t bytes)
{
    if (!m || !messages || !n || (!text && bytes))
        return tsri_fail(TSR_EINVAL, "chat: %u messages", n);
    if (!(m->info.caps & TSR_MODEL_CHAT))
        return tsri_fail(TSR_EUNSUP, "%s has no chat template", m->info.name);
    for (uint32_t i = 0; i < n; i++)
        if (!messages[i].role || !messages[i].content)
            return tsri_fail(TSR_EINVAL, "chat: message %u has no role or no content", i);
    return m->ops->chat(m->impl, messages, n, text, bytes);
}

/* ---- sessions ---- */

static int check_layout(const struct tsr_session *s)
{
    const struct tsr_kv_layout *l = &s->layout;
    const struct tsr_model_info *i = &s->model->info;
    if (l->n_layers != i->n_layers || l->n_planes != 2 || l->n_slots < s->n_slots ||
        l->planes[0].rope_dims != i->rope.dims || l->planes[1].rope_dims ||
        l->planes[0].dtype != i->kv_dtype || l->planes[0].n_heads != i->n_kv_heads ||
        l->planes[0].dim != i->head_dim || l->planes[1].n_heads != i->n_kv_heads)
        return tsri_fail(TSR_EDEVICE, "executor %s: its KV memory does not match its model",
                         s->model->ops->name);
    return tsri_layout_check(l);
}

int tsr_session_open(struct tsr_session **out, struct tsr_model *model, uint32_t n_slots)
{
    if (!out) return tsri_fail(TSR_EINVAL, "session: out is NULL");
    *out = NULL;
    if (!model || !n_slots) return tsri_fail(TSR_EINVAL, "session: %u slots", n_slots);
    if (n_slots > model->info.context)
        return tsri_fail(TSR_ERANGE, "session: %u slots, but the model was trained for %u", n_slots,
                         model->info.context);
    struct tsr_session *s = tsri_alloc(1, sizeof *s);
    if (!s) return TSR_ENOMEM;
    s->model = model;
    s->n_slots = n_slots;
    int e = model->ops->session_open(model->impl, &s->impl, n_slots);
    if (!e) {
        s->layout.size = sizeof s->layout;
        model->ops->session_layout(s->impl, &s->layout);
        e = check_layout(s);
    }
    if (e) {
        tsr_session_close(s);
        return e;
    }
    *out = s;
    return 0;
}

void tsr_session_close(struct tsr_session *s)
{
    if (!s) return;
    tsr_session_end(s);
    if (s->impl) s->model->ops->session_close(s->impl);
    tsri_free(s);
}

const struct tsr_kv_layout *tsr_session_layout(const struct tsr_session *s)
{
    return &s->layout;
}

struct tsr_model *tsr_session_model(const struct tsr_session *s)
{
    return s->model;
}

uint32_t tsr_session_rows(const struct tsr_session *s)
{
    return s->n_rows;
}

/* ---- passes ---- */

static bool range_has(const struct tsr_range *r, uint32_t slot)
{
    return slot >= r->offset && slot - r->offset < r->n_tokens;
}

static int check_group(const struct tsr_session *s, const struct tsr_model_group *g, uint32_t i)
{
    bool good = g->n_rows && (g->n_ranges == 1 || g->n_ranges == 2);
    uint64_t end[TSR_MODEL_RANGES_MAX] = {0};
    for (uint32_t r = 0; good && r < g->n_ranges; r++) {
        end[r] = (uint64_t)g->sees[r].offset + g->sees[r].n_tokens;
        good = g->sees[r].n_tokens && end[r] <= s->n_slots;
    }
    if (good && g->n_ranges == 2) good = g->sees[1].offset > end[0] || g->sees[0].offset > end[1];
    return good ? 0
                : tsri_fail(TSR_EINVAL, "pass: group %u of %u rows has invalid ranges", i,
                            g->n_rows);
}

/* Slots after a group's own are there before the pass begins. */
static int check_behind(const struct tsr_model_pass *p, uint32_t i)
{
    const struct tsr_model_group *g = &p->groups[i];
    const struct tsr_range *whole = &g->sees[0];
    if (g->n_ranges == 1 || whole->offset < g->sees[1].offset) return 0;
    uint32_t lo = 0, hi = p->n_rows;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (p->rows[mid].slot < whole->offset)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == p->n_rows || !range_has(whole, p->rows[lo].slot)) return 0;
    return tsri_fail(TSR_EINVAL, "pass: group %u sees slot %u after it, which the pass computes", i,
                     p->rows[lo].slot);
}

static int check_row(const struct tsr_session *s, const struct tsr_model_pass *p, uint32_t i,
                     const struct tsr_model_group *g)
{
    const struct tsr_model_row *r = &p->rows[i];
    if (r->token >= s->model->info.n_vocab)
        return tsri_fail(TSR_EINVAL, "pass: row %u: token %u is outside the vocabulary of %u", i,
                         r->token, s->model->info.n_vocab);
    if (r->slot >= s->n_slots || r->position >= s->model->info.context)
        return tsri_fail(TSR_ERANGE,
                         "pass: row %u: slot %u of %u or position %u of %u is out of range", i,
                         r->slot, s->n_slots, r->position, s->model->info.context);
    if (i && r->slot <= p->rows[i - 1].slot)
        return tsri_fail(TSR_EINVAL, "pass: row %u: slot %u does not follow slot %u", i, r->slot,
                         p->rows[i - 1].slot);
    if (!range_has(&g->sees[g->n_ranges - 1], r->slot))
        return tsri_fail(TSR_EINVAL,
                         "pass: row %u at slot %u is not in the last range of its group", i,
                         r->slot);
    return 0;
}

static int check_pass(const struct tsr_session *s, const struct tsr_model_pass *p)
{
    const struct tsr_model_info *info = &s->model->info;
    if (!p || p->size < sizeof *p || !p->rows || !p->n_rows || !p->groups || !p->n_groups)
        return tsri_fail(TSR_EINVAL, "pass: size, rows or groups are missing");
    if (info->rows_max && p->n_rows > info->rows_max)
        return tsri_fail(TSR_ERANGE, "pass: %u rows, limit %u", p->n_rows, info->rows_max);
    if ((p->bias && !(info->caps & TSR_MODEL_BIAS)) ||
        (p->n_mass_rows && !(info->caps & TSR_MODEL_MASS)))
        return tsri_fail(TSR_EUNSUP, "executor %s does not support a bias or attention mass",
                         s->model->ops->name);
    if (p->n_bias_rows > p->n_rows || p->n_mass_rows > p->n_rows || (p->bias && !p->n_bias))
        return tsri_fail(TSR_EINVAL, "pass: %u rows, but %u with a bias and %u with attention mass",
                         p->n_rows, p->n_bias_rows, p->n_mass_rows);
    uint32_t row = 0;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        int e = check_group(s, &p->groups[g], g);
        if (!e && p->groups[g].n_rows > p->n_rows - row)
            e = tsri_fail(TSR_EINVAL, "pass: groups have more than %u rows", p->n_rows);
        for (uint32_t i = 0; !e && i < p->groups[g].n_rows; i++)
            e = check_row(s, p, row + i, &p->groups[g]);
        if (e) return e;
        row += p->groups[g].n_rows;
    }
    if (row != p->n_rows)
        return tsri_fail(TSR_EINVAL, "pass: groups have %u rows, not %u", row, p->n_rows);
    int e = 0;
    for (uint32_t g = 0; !e && g < p->n_groups; g++)
        e = check_behind(p, g);
    return e;
}

int tsr_session_begin(struct tsr_session *s, const struct tsr_model_pass *pass)
{
    if (s->n_rows) return tsri_fail(TSR_EBUSY, "session: a pass is open");
    int e = check_pass(s, pass);
    if (e) return e;
    s->n_rows = pass->n_rows;
    s->layer = 0;
    s->n_bias_rows = pass->bias ? pass->n_bias_rows : 0;
    s->n_mass_rows = pass->n_mass_rows;
    s->failed = false;
    e = s->model->ops->begin(s->impl, pass);
    if (e) tsr_session_end(s);
    return e;
}

static int check_open(const struct tsr_session *s)
{
    if (!s->n_rows) return tsri_fail(TSR_EINVAL, "session: no pass is open");
    if (s->failed) return tsri_fail(TSR_EINVAL, "session: the pass has failed and must be ended");
    return 0;
}

static int note(struct tsr_session *s, int e)
{
    if (e) s->failed = true;
    return e;
}

int tsr_session_layer(struct tsr_session *s, const struct tsr_model_layer *layer)
{
    int e = check_open(s);
    if (e) return e;
    if (!layer || layer->size < sizeof *layer || layer->layer != s->layer ||
        layer->layer >= s->model->info.n_layers)
        return tsri_fail(TSR_EINVAL, "session: expected layer %u of %u", s->layer,
                         s->model->info.n_layers);
    if (layer->mass && (!s->n_mass_rows || !layer->n_mass))
        return tsri_fail(TSR_EINVAL, "session: the pass has no rows with attention mass");
    e = s->model->ops->layer(s->impl, layer);
    if (!e) s->layer++;
    return e > 0 ? 1 : note(s, e);
}

void tsr_session_cut(struct tsr_session *s, uint32_t n_rows)
{
    const struct tsr_executor_ops *ops = s->model->ops;
    if (ops->abi >= 2 && ops->cut) ops->cut(s->impl, n_rows);
}

int tsr_session_deviation(struct tsr_session *s, const struct tsr_model_deviation *d)
{
    int e = check_open(s);
    if (e) return e;
    if (!d || d->size < sizeof *d || d->layer != s->layer || d->layer >= s->model->info.n_layers)
        return tsri_fail(TSR_EINVAL, "session: expected the deviation of layer %u", s->layer);
    if (!(s->model->info.caps & TSR_MODEL_DEVIATION))
        return tsri_fail(TSR_EUNSUP, "executor %s does not support deviation", s->model->ops->name);
    return note(s, s->model->ops->deviation(s->impl, d));
}

/* Of the last n rows of all, those that are kept. */
static uint32_t kept_of_last(const uint32_t *keep, uint32_t n_keep, uint32_t n_all, uint32_t n)
{
    uint32_t kept = 0;
    while (kept < n_keep && keep[n_keep - 1 - kept] >= n_all - n)
        kept++;
    return kept;
}

static int check_indices(const struct tsr_session *s, const uint32_t *rows, uint32_t n)
{
    if (!rows || !n || n > s->n_rows)
        return tsri_fail(TSR_EINVAL, "session: %u of %u rows", n, s->n_rows);
    for (uint32_t i = 0; i < n; i++)
        if (rows[i] >= s->n_rows || (i && rows[i] <= rows[i - 1]))
            return tsri_fail(TSR_EINVAL, "session: row %u of %u is out of order", rows[i],
                             s->n_rows);
    return 0;
}

int tsr_session_narrow(struct tsr_session *s, const uint32_t *keep, uint32_t n)
{
    int e = check_open(s);
    if (!e) e = check_indices(s, keep, n);
    if (e || n == s->n_rows) return e;
    s->n_bias_rows = kept_of_last(keep, n, s->n_rows, s->n_bias_rows);
    s->n_mass_rows = kept_of_last(keep, n, s->n_rows, s->n_mass_rows);
    s->n_rows = n;
    return note(s, s->model->ops->narrow(s->impl, keep, n));
}

int tsr_session_logits(struct tsr_session *s, const uint32_t *rows, uint32_t n, float *logits)
{
    int e = check_open(s);
    if (!e) e = check_indices(s, rows, n);
    if (e) return e;
    if (!logits || s->layer < s->model->info.n_layers)
        return tsri_fail(TSR_EINVAL, "session: logits requested after layer %u of %u", s->layer,
                         s->model->info.n_layers);
    return note(s, s->model->ops->logits(s->impl, rows, n, logits));
}

void tsr_session_end(struct tsr_session *s)
{
    if (!s || !s->n_rows) return;
    s->model->ops->end(s->impl);
    s->n_rows = 0;
}

/* ---- several sessions ---- */

int tsr_decoder_open(struct tsr_decoder **out, struct tsr_model *model, uint32_t rows_max)
{
    if (!out) return tsri_fail(TSR_EINVAL, "decoder: out is NULL");
    *out = NULL;
    if (!model || !rows_max || rows_max > TSR_DECODER_ROWS_MAX)
        return tsri_fail(TSR_EINVAL, "decoder: %u rows, limit %u", rows_max, TSR_DECODER_ROWS_MAX);
    struct tsr_decoder *b = tsri_alloc(1, sizeof *b);
    if (!b) return TSR_ENOMEM;
    *b = (struct tsr_decoder){.model = model, .rows_max = rows_max};
    int e = 0;
    if (model->ops->abi >= 2 && model->ops->decoder_open)
        e = model->ops->decoder_open(model->impl, &b->impl, rows_max);
    if (e) {
        tsri_free(b);
        return e;
    }
    *out = b;
    return 0;
}

void tsr_decoder_close(struct tsr_decoder *b)
{
    if (!b) return;
    if (b->impl) b->model->ops->decoder_close(b->impl);
    tsri_free(b);
}

static int check_batch_row(const struct tsr_decoder *b, const struct tsr_decoder_row *rows,
                           uint32_t i)
{
    const struct tsr_decoder_row *r = &rows[i];
    const struct tsr_model_info *info = &b->model->info;
    if (!r->session || r->session->model != b->model)
        return tsri_fail(TSR_EINVAL, "decoder: row %u has no session of this model", i);
    if (r->session->n_rows)
        return tsri_fail(TSR_EBUSY, "decoder: a pass is open in the session of row %u", i);
    if (r->token >= info->n_vocab)
        return tsri_fail(TSR_EINVAL, "decoder: row %u: token %u is outside the vocabulary of %u", i,
                         r->token, info->n_vocab);
    if (r->position >= r->session->n_slots)
        return tsri_fail(TSR_ERANGE, "decoder: row %u: slot %u of %u is out of range", i,
                         r->position, r->session->n_slots);
    if (r->bias && (!(info->caps & TSR_MODEL_BIAS) || !r->n_bias))
        return tsri_fail(TSR_EUNSUP, "decoder: row %u has a bias that cannot be used", i);
    for (uint32_t k = 0; k < i; k++)
        if (rows[k].session == r->session)
            return tsri_fail(TSR_EINVAL, "decoder: rows %u and %u are of the same session", k, i);
    return 0;
}

static int decode_alone(const struct tsr_decoder_row *r, uint32_t n_layers, float *logits)
{
    struct tsr_model_row row = {r->token, r->position, r->position};
    struct tsr_model_group group = {1, 1, {{0, r->position + 1}}};
    struct tsr_model_pass pass = {.size = sizeof pass,
                                  .rows = &row,
                                  .n_rows = 1,
                                  .groups = &group,
                                  .n_groups = 1,
                                  .bias = r->bias,
                                  .n_bias = r->n_bias,
                                  .n_bias_rows = r->bias ? 1 : 0,
                                  .flags = TSR_PASS_DECODE};
    const uint32_t last = 0;
    int e = tsr_session_begin(r->session, &pass);
    for (uint32_t l = 0; !e && l < n_layers; l++) {
        struct tsr_model_layer layer = {.size = sizeof layer, .layer = l};
        do
            e = tsr_session_layer(r->session, &layer);
        while (e > 0);
    }
    if (!e) e = tsr_session_logits(r->session, &last, 1, logits);
    tsr_session_end(r->session);
    return e;
}

int tsr_decoder_run(struct tsr_decoder *b, const struct tsr_decoder_row *rows, uint32_t n,
                    uint32_t flags, float *logits)
{
    if (!b || !rows || !n || n > b->rows_max || !logits || flags & ~(uint32_t)TSR_DECODER_ALIKE)
        return tsri_fail(TSR_EINVAL, "decoder: %u rows of %u, flags %x", n, b ? b->rows_max : 0,
                         flags);
    struct tsr_executor_row own[TSR_DECODER_ROWS_MAX];
    for (uint32_t i = 0; i < n; i++) {
        int e = check_batch_row(b, rows, i);
        if (e) return e;
        own[i] = (struct tsr_executor_row){.session = rows[i].session->impl,
                                           .token = rows[i].token,
                                           .position = rows[i].position,
                                           .bias = rows[i].bias,
                                           .n_bias = rows[i].bias ? rows[i].n_bias : 0};
    }
    if (b->impl) return b->model->ops->decoder_run(b->impl, own, n, flags, logits);
    int e = 0;
    for (uint32_t i = 0; !e && i < n; i++)
        e = decode_alone(&rows[i], b->model->info.n_layers,
                         logits + (size_t)i * b->model->info.n_vocab);
    return e;
}
