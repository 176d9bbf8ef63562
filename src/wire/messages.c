/* messages.c - the bodies of requests. One function a type, which reads or writes. The structs that
 * cross the wire as they stand in memory are asserted to be what docs/format.md says. */
#include "wire/wire.h"

_Static_assert(sizeof(struct tsr_range) == 8, "a range is two u32");
_Static_assert(sizeof(struct tsr_key) == 16, "a key is 16 bytes");
_Static_assert(sizeof(struct tsri_wire_match) == 48, "a match has no holes");
_Static_assert(sizeof(struct tsri_wire_want) == 64, "a want is a match and four u32");

void tsri_wire_match_put(const struct tsr_match *m, struct tsri_wire_match *out)
{
    *out = (struct tsri_wire_match){.entry = m->entry,
                                    .epoch = m->epoch,
                                    .prompt_offset = m->prompt_offset,
                                    .entry_offset = m->entry_offset,
                                    .n_tokens = m->n_tokens,
                                    .kind = m->kind,
                                    .context = m->context,
                                    .tier = m->tier,
                                    .verified = m->verified,
                                    .base = m->base,
                                    .freq_set = m->freq_set,
                                    .entry_tokens = m->entry_tokens,
                                    .coverage = m->coverage,
                                    .edits = m->edits};
}

void tsri_wire_match_get(const struct tsri_wire_match *m, struct tsr_match *out)
{
    *out = (struct tsr_match){.entry = m->entry,
                              .epoch = m->epoch,
                              .prompt_offset = m->prompt_offset,
                              .entry_offset = m->entry_offset,
                              .n_tokens = m->n_tokens,
                              .kind = m->kind,
                              .context = m->context,
                              .tier = m->tier,
                              .verified = m->verified,
                              .base = m->base,
                              .freq_set = m->freq_set,
                              .entry_tokens = m->entry_tokens,
                              .coverage = m->coverage,
                              .edits = m->edits};
}

/* ---- parts that several requests have ---- */

static const struct tsr_extra *extra_part(struct tsri_wire *w, const struct tsr_extra *given,
                                          uint32_t n, struct tsr_extra *room)
{
    tsri_wire_limit(w, n, TSRI_EXTRA_ITEMS_MAX);
    for (uint32_t i = 0; i < n && !w->bad; i++) {
        struct tsr_extra e = {0};
        if (!w->in) e = given[i];
        tsri_wire_u32(w, &e.kind);
        tsri_wire_u32(w, &e.offset);
        tsri_wire_u32(w, &e.n_tokens);
        tsri_wire_u32(w, &e.bytes);
        tsri_wire_limit(w, e.bytes, TSRI_EXTRA_BYTES_MAX);
        e.data = tsri_wire_array(w, e.data, e.bytes, 1);
        if (w->in) room[i] = e;
    }
    if (!w->in) return given;
    return n && !w->bad ? room : NULL;
}

static void recipe_part(struct tsri_wire *w, const void **recipe, size_t *bytes, uint32_t n)
{
    tsri_wire_limit(w, *bytes, TSRI_WIRE_RECIPE_MAX);
    tsri_wire_limit(w, n, TSRI_WIRE_RECIPE_MAX);
    *recipe = tsri_wire_array(w, *recipe, n, 1);
    if (w->in) *bytes = w->bad ? 0 : n;
}

static void prompt_part(struct tsri_wire *w, struct tsri_request *r)
{
    struct tsr_prompt *p = &r->prompt;
    uint32_t recipe_bytes = (uint32_t)p->recipe_bytes;
    if (w->in) p->size = sizeof *p;
    tsri_wire_u32(w, &p->n_tokens);
    tsri_wire_u32(w, &p->flags);
    tsri_wire_u32(w, &p->n_segments);
    tsri_wire_u32(w, &p->n_extra);
    tsri_wire_u32(w, &recipe_bytes);
    tsri_wire_u32(w, &p->n_context);
    tsri_wire_limit(w, p->n_segments, TSRI_WIRE_SEGMENTS_MAX);
    TSRI_WIRE_ARRAY(w, p->tokens, p->n_tokens);
    TSRI_WIRE_ARRAY(w, p->context, p->n_context);
    TSRI_WIRE_ARRAY(w, p->segments, p->n_segments);
    p->extra = extra_part(w, p->extra, p->n_extra, r->extra);
    recipe_part(w, &p->recipe, &p->recipe_bytes, recipe_bytes);
}

/* What is no number of seconds would spoil every comparison of the policy. */
static void cost_part(struct tsri_wire *w, float *cost_s)
{
    uint32_t bits;
    memcpy(&bits, cost_s, sizeof bits);
    tsri_wire_u32(w, &bits);
    memcpy(cost_s, &bits, sizeof bits);
    if (bits && !(*cost_s > 0 && *cost_s < 1e9f)) w->bad = true;
}

static void store_part(struct tsri_wire *w, struct tsri_request *r)
{
    struct tsr_store_desc *s = &r->store;
    uint32_t recipe_bytes = (uint32_t)s->recipe_bytes;
    if (w->in) s->size = sizeof *s;
    tsri_wire_u32(w, &r->space);
    tsri_wire_u32(w, &s->kind);
    tsri_wire_u32(w, &s->n_tokens);
    tsri_wire_u32(w, &s->from);
    tsri_wire_u32(w, &s->n_context);
    tsri_wire_u32(w, &s->n_extra);
    tsri_wire_u32(w, &s->base);
    tsri_wire_u32(w, &s->freq_set);
    tsri_wire_u32(w, &recipe_bytes);
    cost_part(w, &s->cost_s);
    TSRI_WIRE_ARRAY(w, s->tokens, s->n_tokens);
    TSRI_WIRE_ARRAY(w, s->context, s->n_context);
    s->extra = extra_part(w, s->extra, s->n_extra, r->extra);
    recipe_part(w, &s->recipe, &s->recipe_bytes, recipe_bytes);
}

static void view_part(struct tsri_wire *w, struct tsri_wire_view *v)
{
    tsri_wire_u64(w, &v->offset);
    tsri_wire_u64(w, &v->bytes);
    tsri_wire_u64(w, &v->layer_stride);
    tsri_wire_u64(w, &v->plane_stride);
    tsri_wire_u64(w, &v->token_stride);
}

/* ---- hello and spaces ---- */

static void hello_body(struct tsri_wire *w, struct tsri_request *r)
{
    struct tsri_wire_hello *h = &r->hello;
    tsri_wire_u32(w, &h->version_min);
    tsri_wire_u32(w, &h->version_max);
    tsri_wire_u64(w, &h->staging_bytes);
    tsri_wire_u32(w, &h->token_bytes);
    tsri_wire_zero_u32(w);
    tsri_wire_limit(w, h->token_bytes, TSRI_WIRE_TOKEN_MAX);
    TSRI_WIRE_ARRAY(w, h->token, h->token_bytes);
}

/* Texts have a zero behind them, so that they can be used where they stand. */
static const char *text_part(struct tsri_wire *w, const char *text, uint32_t n)
{
    tsri_wire_limit(w, n, TSRI_SPACE_TEXT_MAX);
    text = tsri_wire_array(w, text, n ? (size_t)n + 1 : 0, 1);
    if (w->in && text && strnlen(text, (size_t)n + 1) != n) w->bad = true;
    return text;
}

static void space_open_body(struct tsri_wire *w, struct tsri_request *r)
{
    struct tsr_space_desc *d = &r->desc;
    const char **texts[5] = {&d->model, &d->tokenizer, &d->adapter, &d->salt, &d->rope};
    uint32_t *numbers[11] = {&d->dtype,   &d->layout, &d->n_layers,    &d->layer_first,
                             &d->n_heads, &d->k_dim,  &d->v_dim,       &d->rank,
                             &d->world,   &d->group,  &d->block_tokens};
    uint32_t weights_bytes = (uint32_t)d->weights_bytes, text_bytes[5] = {0};
    if (w->in) d->size = sizeof *d;
    tsri_wire_limit(w, d->weights_bytes, TSRI_SPACE_TEXT_MAX);
    for (size_t i = 0; i < TSRI_COUNT(numbers); i++)
        tsri_wire_u32(w, numbers[i]);
    tsri_wire_u32(w, &weights_bytes);
    for (size_t i = 0; i < TSRI_COUNT(texts); i++) {
        if (!w->in && *texts[i])
            text_bytes[i] = (uint32_t)strnlen(*texts[i], TSRI_SPACE_TEXT_MAX + 1);
        tsri_wire_u32(w, &text_bytes[i]);
    }
    tsri_wire_zero_u32(w);
    tsri_wire_limit(w, weights_bytes, TSRI_SPACE_TEXT_MAX);
    d->weights = tsri_wire_array(w, d->weights, weights_bytes, 1);
    if (w->in) d->weights_bytes = w->bad ? 0 : weights_bytes;
    for (size_t i = 0; i < TSRI_COUNT(texts); i++)
        *texts[i] = text_part(w, *texts[i], text_bytes[i]);
}

static void space_close_body(struct tsri_wire *w, struct tsri_request *r)
{
    tsri_wire_u32(w, &r->space);
    tsri_wire_zero_u32(w);
}

/* ---- reading ---- */

static void lookup_body(struct tsri_wire *w, struct tsri_request *r)
{
    struct tsri_wire_lookup *l = &r->lookup;
    tsri_wire_u64(w, &l->lease);
    tsri_wire_u32(w, &l->n_spaces);
    tsri_wire_u32(w, &l->matches_max);
    tsri_wire_u32(w, &l->flags);
    tsri_wire_zero_u32(w);
    tsri_wire_limit(w, l->n_spaces, TSRI_WIRE_SPACES_MAX);
    TSRI_WIRE_ARRAY(w, l->spaces, l->n_spaces);
    prompt_part(w, r);
}

static void retrieve_body(struct tsri_wire *w, struct tsri_request *r)
{
    struct tsri_wire_retrieve *t = &r->retrieve;
    tsri_wire_u64(w, &t->lease);
    tsri_wire_u32(w, &t->deadline_ms);
    tsri_wire_u32(w, &t->n_wants);
    tsri_wire_u32(w, &t->has_prompt);
    tsri_wire_zero_u32(w);
    tsri_wire_limit(w, t->n_wants, TSRI_WIRE_ITEMS_MAX);
    tsri_wire_limit(w, t->has_prompt, 1);
    TSRI_WIRE_ARRAY(w, t->wants, t->n_wants);
    for (uint32_t i = 0; i < t->n_wants && !w->bad; i++)
        if (t->wants[i].reserved) w->bad = true;
    if (t->has_prompt) prompt_part(w, r);
}

static void release_body(struct tsri_wire *w, struct tsri_request *r)
{
    tsri_wire_u32(w, &r->n);
    tsri_wire_zero_u32(w);
    tsri_wire_limit(w, r->n, TSRI_WIRE_ITEMS_MAX);
    TSRI_WIRE_ARRAY(w, r->ids, r->n);
}

static void keys_body(struct tsri_wire *w, struct tsri_request *r)
{
    tsri_wire_u32(w, &r->space);
    tsri_wire_u32(w, &r->n);
    tsri_wire_limit(w, r->n, TSRI_WIRE_ITEMS_MAX);
    prompt_part(w, r);
}

static void contains_body(struct tsri_wire *w, struct tsri_request *r)
{
    tsri_wire_u32(w, &r->n);
    tsri_wire_zero_u32(w);
    tsri_wire_limit(w, r->n, TSRI_WIRE_ITEMS_MAX);
    TSRI_WIRE_ARRAY(w, r->keys, r->n);
}

/* ---- writing ---- */

static void store_body(struct tsri_wire *w, struct tsri_request *r)
{
    view_part(w, &r->view);
    store_part(w, r);
}

static void put_layers_body(struct tsri_wire *w, struct tsri_request *r)
{
    tsri_wire_u32(w, &r->put.put);
    tsri_wire_u32(w, &r->put.layer_first);
    tsri_wire_u32(w, &r->put.n_layers);
    tsri_wire_zero_u32(w);
    view_part(w, &r->view);
}

static void put_end_body(struct tsri_wire *w, struct tsri_request *r)
{
    tsri_wire_u32(w, &r->put.put);
    tsri_wire_zero_u32(w);
}

/* ---- keeping, dropping, watching ---- */

static void prompt_body(struct tsri_wire *w, struct tsri_request *r)
{
    tsri_wire_u32(w, &r->space);
    tsri_wire_zero_u32(w);
    prompt_part(w, r);
}

static void clear_body(struct tsri_wire *w, struct tsri_request *r)
{
    tsri_wire_u32(w, &r->space);
    tsri_wire_i32(w, &r->tier);
    tsri_wire_u32(w, &r->has_prompt);
    tsri_wire_zero_u32(w);
    tsri_wire_limit(w, r->has_prompt, 1);
    if (r->has_prompt) prompt_part(w, r);
}

static void value_body(struct tsri_wire *w, struct tsri_request *r)
{
    tsri_wire_u32(w, &r->value);
    tsri_wire_zero_u32(w);
}

static void events_body(struct tsri_wire *w, struct tsri_request *r)
{
    tsri_wire_u32(w, &r->n);
    tsri_wire_zero_u32(w);
    tsri_wire_limit(w, r->n, TSRI_WIRE_ITEMS_MAX);
}

static void list_body(struct tsri_wire *w, struct tsri_request *r)
{
    tsri_wire_u32(w, &r->value);
    tsri_wire_u32(w, &r->n);
    tsri_wire_limit(w, r->n, TSRI_WIRE_ITEMS_MAX);
}

static void evict_keys_body(struct tsri_wire *w, struct tsri_request *r)
{
    tsri_wire_u64(w, &r->bytes);
    tsri_wire_u32(w, &r->n);
    tsri_wire_zero_u32(w);
    tsri_wire_limit(w, r->n, TSRI_WIRE_ITEMS_MAX);
}

static void space_find_body(struct tsri_wire *w, struct tsri_request *r)
{
    const void *at = tsri_wire_array(w, r->fingerprint, 16, 1);
    if (w->in && at) memcpy(r->fingerprint, at, 16);
}

/* Reads or writes the body of r->type. Afterwards ask tsri_wire_done. False for a type that has no
 * request. */
static bool request_body(struct tsri_wire *w, struct tsri_request *r)
{
    switch ((enum tsri_wire_type)r->type) {
    case TSRI_WIRE_HELLO:
        return hello_body(w, r), true;
    case TSRI_WIRE_PING:
    case TSRI_WIRE_FLUSH:
    case TSRI_WIRE_SPACES:
        return true;
    case TSRI_WIRE_SPACE_OPEN:
        return space_open_body(w, r), true;
    case TSRI_WIRE_SPACE_CLOSE:
        return space_close_body(w, r), true;
    case TSRI_WIRE_LOOKUP:
        return lookup_body(w, r), true;
    case TSRI_WIRE_RETRIEVE:
        return retrieve_body(w, r), true;
    case TSRI_WIRE_RELEASE:
        return release_body(w, r), true;
    case TSRI_WIRE_STORE:
        return store_body(w, r), true;
    case TSRI_WIRE_PUT_OPEN:
        return store_part(w, r), true;
    case TSRI_WIRE_PUT_LAYERS:
        return put_layers_body(w, r), true;
    case TSRI_WIRE_PUT_COMMIT:
    case TSRI_WIRE_PUT_ABORT:
        return put_end_body(w, r), true;
    case TSRI_WIRE_KEYS:
        return keys_body(w, r), true;
    case TSRI_WIRE_CONTAINS:
        return contains_body(w, r), true;
    case TSRI_WIRE_PREFETCH:
    case TSRI_WIRE_PIN:
    case TSRI_WIRE_UNPIN:
    case TSRI_WIRE_TOUCH:
    case TSRI_WIRE_DISCOVER:
        return prompt_body(w, r), true;
    case TSRI_WIRE_CLEAR:
        return clear_body(w, r), true;
    case TSRI_WIRE_EVICT:
    case TSRI_WIRE_WARM:
        return tsri_wire_u64(w, &r->bytes), true;
    case TSRI_WIRE_FREEZE:
    case TSRI_WIRE_STATS:
        return value_body(w, r), true;
    case TSRI_WIRE_EVENTS:
        return events_body(w, r), true;
    case TSRI_WIRE_LIST:
    case TSRI_WIRE_ORDER:
        return list_body(w, r), true;
    case TSRI_WIRE_EVICT_KEYS:
        return evict_keys_body(w, r), true;
    case TSRI_WIRE_SPACE_FIND:
        return space_find_body(w, r), true;
    }
    return false;
}

int tsri_request_decode(struct tsri_request *r, uint16_t type, const uint8_t *body, size_t bytes)
{
    struct tsri_wire w;
    /* All but the room for extras, which is only read as far as it was filled. */
    memset(r, 0, offsetof(struct tsri_request, extra));
    r->type = type;
    tsri_wire_read_init(&w, body, bytes);
    if (!request_body(&w, r)) return tsri_fail(TSR_EUNSUP, "wire: unknown request %u", type);
    if (!tsri_wire_done(&w))
        return tsri_fail(TSR_EINVAL, "wire: malformed %s of %zu bytes", tsri_wire_name(type),
                         bytes);
    return 0;
}

int tsri_request_bytes(struct tsri_request *r, size_t *bytes)
{
    struct tsri_wire w;
    tsri_wire_write_init(&w, NULL, 0);
    bool known = request_body(&w, r);
    TSR_ASSERT(known);
    if (!tsri_wire_done(&w) || w.at > TSRI_WIRE_BODY_MAX)
        return tsri_fail(TSR_ERANGE, "wire: %s exceeds a limit", tsri_wire_name(r->type));
    *bytes = TSRI_WIRE_HEAD_BYTES + w.at;
    return 0;
}

void tsri_request_encode(struct tsri_request *r, uint64_t id, int32_t status, uint8_t *out,
                         size_t bytes)
{
    struct tsri_wire w;
    struct tsri_wire_head head = {.version = tsri_wire_version(r->type),
                                  .type = r->type,
                                  .id = id,
                                  .status = status,
                                  .body_bytes = (uint32_t)(bytes - TSRI_WIRE_HEAD_BYTES)};
    tsri_wire_head_put(&head, out);
    tsri_wire_write_init(&w, out + TSRI_WIRE_HEAD_BYTES, bytes - TSRI_WIRE_HEAD_BYTES);
    request_body(&w, r);
    TSR_ASSERT(tsri_wire_done(&w) && w.at == w.end);
}

int tsri_request_parts_bytes(struct tsri_request *r, size_t *small_bytes)
{
    struct tsri_wire w;
    struct tsri_wire_parts parts = {0};
    tsri_wire_write_init(&w, NULL, 0);
    w.parts = &parts;
    bool known = request_body(&w, r);
    TSR_ASSERT(known);
    if (!tsri_wire_done(&w) || w.at > TSRI_WIRE_BODY_MAX)
        return tsri_fail(TSR_ERANGE, "wire: %s exceeds a limit", tsri_wire_name(r->type));
    *small_bytes = TSRI_WIRE_HEAD_BYTES + w.at - parts.left_out;
    return 0;
}

/* The head is written as if it were part of the body, when the length of that is known. */
void tsri_request_encode_parts(struct tsri_request *r, uint64_t id, int32_t status, uint8_t *out,
                               struct tsri_wire_parts *parts)
{
    struct tsri_wire w;
    *parts = (struct tsri_wire_parts){0};
    tsri_wire_write_init(&w, out, SIZE_MAX / 2);
    w.parts = parts;
    w.at = TSRI_WIRE_HEAD_BYTES;
    request_body(&w, r);
    TSR_ASSERT(!w.bad && w.at - TSRI_WIRE_HEAD_BYTES <= TSRI_WIRE_BODY_MAX);
    size_t end = w.at - parts->left_out;
    if (end > parts->begin)
        parts->list[parts->n++] = (struct iovec){out + parts->begin, end - parts->begin};
    struct tsri_wire_head head = {.version = tsri_wire_version(r->type),
                                  .type = r->type,
                                  .id = id,
                                  .status = status,
                                  .body_bytes = (uint32_t)(w.at - TSRI_WIRE_HEAD_BYTES)};
    tsri_wire_head_put(&head, out);
}
