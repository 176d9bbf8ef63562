/* replies.c - the bodies of replies. A reply has the type and the id of its request; a negative
 * status makes it an error, whose body is the same for every type and every version. */
#include "wire/wire.h"

_Static_assert(sizeof(struct tsri_wire_lent) == 24, "six u32");
_Static_assert(sizeof(struct tsr_event) == 40, "a new field of an event needs a new wire version");
_Static_assert(sizeof(struct tsri_wire_entry) == 64, "an entry has no holes");
_Static_assert(sizeof(struct tsri_wire_space_row) == 96, "a space has no holes");
/* STATS carries everything behind the size. The struct may grow, and so may what the other side
 * sends: who reads takes what it knows. */
#define NUMBERS_MAX 1024u
_Static_assert(offsetof(struct tsr_stats, lookups) == sizeof(uint64_t), "numbers follow the size");
_Static_assert(sizeof(struct tsr_stats) / sizeof(uint64_t) <= NUMBERS_MAX, "they fit");

#define TEXT_MAX (16u << 20)

static void error_body(struct tsri_wire *w, struct tsri_reply *r)
{
    tsri_wire_u32(w, &r->version_min);
    tsri_wire_u32(w, &r->version_max);
    tsri_wire_u32(w, &r->text_bytes);
    tsri_wire_zero_u32(w);
    tsri_wire_limit(w, r->text_bytes, TEXT_MAX);
    TSRI_WIRE_ARRAY(w, r->text, r->text_bytes);
}

static void hello_body(struct tsri_wire *w, struct tsri_reply *r)
{
    struct tsri_wire_welcome *h = &r->welcome;
    tsri_wire_u32(w, &h->version);
    tsri_wire_u32(w, &h->slot);
    tsri_wire_u64(w, &h->word);
    tsri_wire_u64(w, &h->pool_bytes);
    tsri_wire_u64(w, &h->control_bytes);
    tsri_wire_u32(w, &h->page_bytes);
    tsri_wire_u32(w, &h->block_tokens);
    tsri_wire_u32(w, &h->body_max);
    tsri_wire_u32(w, &h->leases_max);
    tsri_wire_u32(w, &h->calls_max);
    tsri_wire_u32(w, &h->hash);
    tsri_wire_u64(w, &h->boot_id);
    tsri_wire_u64(w, &h->n_lost);
}

static void space_open_body(struct tsri_wire *w, struct tsri_reply *r)
{
    struct tsri_wire_space *s = &r->space;
    tsri_wire_u32(w, &s->space);
    tsri_wire_u32(w, &s->block_tokens);
    const void *fingerprint = tsri_wire_array(w, s->fingerprint, 16, 1);
    if (w->in && fingerprint) memcpy(s->fingerprint, fingerprint, 16);
    tsri_wire_u32(w, &s->n_layers);
    tsri_wire_u32(w, &s->n_planes);
    tsri_wire_u32(w, &s->row_bytes[0]);
    tsri_wire_u32(w, &s->row_bytes[1]);
    tsri_wire_u32(w, &s->cell_tokens);
    tsri_wire_u32(w, &s->page_bytes);
}

static void lookup_body(struct tsri_wire *w, struct tsri_reply *r)
{
    tsri_wire_u32(w, &r->n);
    tsri_wire_u32(w, &r->n_prefix_tokens);
    tsri_wire_u32(w, &r->n_spaces);
    tsri_wire_zero_u32(w);
    tsri_wire_limit(w, r->n_spaces, TSRI_WIRE_SPACES_MAX);
    TSRI_WIRE_ARRAY(w, r->matches, (size_t)r->n * r->n_spaces);
}

static void retrieve_body(struct tsri_wire *w, struct tsri_reply *r)
{
    tsri_wire_u32(w, &r->n);
    tsri_wire_u32(w, &r->n_pages);
    tsri_wire_limit(w, r->n, TSRI_WIRE_ITEMS_MAX);
    TSRI_WIRE_ARRAY(w, r->lent, r->n);
    TSRI_WIRE_ARRAY(w, r->pages, r->n_pages);
}

static void put_open_body(struct tsri_wire *w, struct tsri_reply *r)
{
    tsri_wire_u32(w, &r->put);
    tsri_wire_u32(w, &r->n_blocks);
}

static void count_part(struct tsri_wire *w, struct tsri_reply *r)
{
    tsri_wire_u32(w, &r->n);
    tsri_wire_zero_u32(w);
    tsri_wire_limit(w, r->n, TSRI_WIRE_ITEMS_MAX);
}

static void stats_body(struct tsri_wire *w, struct tsri_reply *r)
{
    tsri_wire_u32(w, &r->n);
    tsri_wire_u32(w, &r->text_bytes);
    tsri_wire_limit(w, r->n, NUMBERS_MAX);
    tsri_wire_limit(w, r->text_bytes, TEXT_MAX);
    TSRI_WIRE_ARRAY(w, r->numbers, r->n);
    TSRI_WIRE_ARRAY(w, r->text, r->text_bytes);
}

static void list_body(struct tsri_wire *w, struct tsri_reply *r)
{
    tsri_wire_u32(w, &r->n);
    tsri_wire_u32(w, &r->next);
    tsri_wire_limit(w, r->n, TSRI_WIRE_ITEMS_MAX);
    TSRI_WIRE_ARRAY(w, r->entries, r->n);
}

/* Texts end inside their fields. */
static void spaces_body(struct tsri_wire *w, struct tsri_reply *r)
{
    count_part(w, r);
    TSRI_WIRE_ARRAY(w, r->spaces, r->n);
    for (uint32_t i = 0; w->in && !w->bad && i < r->n; i++)
        if (!memchr(r->spaces[i].model, 0, sizeof r->spaces[i].model)) w->bad = true;
}

static bool reply_body(struct tsri_wire *w, struct tsri_reply *r)
{
    /* An error answers any request, also one that nobody here has heard of. */
    if (r->status < 0) return error_body(w, r), true;
    if (!tsri_wire_name(r->type)) return false;
    switch (r->type) {
    case TSRI_WIRE_HELLO:
        return hello_body(w, r), true;
    case TSRI_WIRE_SPACE_OPEN:
    case TSRI_WIRE_SPACE_FIND:
        return space_open_body(w, r), true;
    case TSRI_WIRE_LOOKUP:
        return lookup_body(w, r), true;
    case TSRI_WIRE_RETRIEVE:
        return retrieve_body(w, r), true;
    case TSRI_WIRE_PUT_OPEN:
        return put_open_body(w, r), true;
    case TSRI_WIRE_KEYS:
    case TSRI_WIRE_EVICT_KEYS:
        count_part(w, r);
        TSRI_WIRE_ARRAY(w, r->keys, r->n);
        return true;
    case TSRI_WIRE_CONTAINS:
        count_part(w, r);
        TSRI_WIRE_ARRAY(w, r->tiers, r->n);
        return true;
    case TSRI_WIRE_EVENTS:
        count_part(w, r);
        TSRI_WIRE_ARRAY(w, r->events, r->n);
        return true;
    case TSRI_WIRE_FLUSH:
        return tsri_wire_u64(w, &r->n_lost), true;
    case TSRI_WIRE_LIST:
    case TSRI_WIRE_ORDER:
        return list_body(w, r), true;
    case TSRI_WIRE_SPACES:
        return spaces_body(w, r), true;
    case TSRI_WIRE_STATS:
        return stats_body(w, r), true;
    default:
        return true; /* the status is all there is to say */
    }
}

int tsri_reply_decode(struct tsri_reply *r, const struct tsri_wire_head *head, const uint8_t *body)
{
    struct tsri_wire w;
    *r = (struct tsri_reply){.type = (uint16_t)(head->type & ~TSRI_WIRE_REPLY),
                             .status = head->status};
    tsri_wire_read_init(&w, body, head->body_bytes);
    if (!(head->type & TSRI_WIRE_REPLY) || !reply_body(&w, r) || !tsri_wire_done(&w))
        return tsri_fail(TSR_EINVAL, "wire: malformed reply %u of %u bytes", head->type,
                         head->body_bytes);
    return 0;
}

int tsri_reply_bytes(struct tsri_reply *r, size_t *bytes)
{
    struct tsri_wire w;
    tsri_wire_write_init(&w, NULL, 0);
    bool known = reply_body(&w, r);
    TSR_ASSERT(known);
    if (!tsri_wire_done(&w) || w.at > TSRI_WIRE_BODY_MAX)
        return tsri_fail(TSR_ERANGE, "wire: reply %u exceeds a limit", r->type);
    *bytes = TSRI_WIRE_HEAD_BYTES + w.at;
    return 0;
}

void tsri_reply_encode(struct tsri_reply *r, uint64_t id, uint8_t *out, size_t bytes)
{
    struct tsri_wire w;
    struct tsri_wire_head head = {.version = tsri_wire_version(r->type),
                                  .type = (uint16_t)(r->type | TSRI_WIRE_REPLY),
                                  .id = id,
                                  .status = r->status,
                                  .body_bytes = (uint32_t)(bytes - TSRI_WIRE_HEAD_BYTES)};
    tsri_wire_head_put(&head, out);
    tsri_wire_write_init(&w, out + TSRI_WIRE_HEAD_BYTES, bytes - TSRI_WIRE_HEAD_BYTES);
    reply_body(&w, r);
    TSR_ASSERT(tsri_wire_done(&w) && w.at == w.end);
}
