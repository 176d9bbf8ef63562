/* served_spaces.c - what a server needs to know of our spaces, and the numbers that a session has
 * given them. */
#include "served/served.h"

static size_t text_bytes(const char *s)
{
    return s ? strlen(s) + 1 : 0;
}

static const char *keep_text(char **at, const char *s)
{
    if (!s) return NULL;
    const char *kept = *at;
    memcpy(*at, s, strlen(s) + 1);
    *at += strlen(s) + 1;
    return kept;
}

int tsri_served_space_open(struct tsr_space *space, const struct tsr_space_desc *d)
{
    struct tsri_served *r = space->cache->served;
    struct tsri_served_space *s = &r->spaces[space->id];
    pthread_mutex_lock(&r->lock);
    bool known = s->texts && memcmp(s->fingerprint, space->fingerprint, 16) == 0;
    int e = 0;
    if (!known) {
        char *texts =
            tsri_alloc(1, d->weights_bytes + text_bytes(d->model) + text_bytes(d->tokenizer) +
                              text_bytes(d->adapter) + text_bytes(d->salt) + text_bytes(d->rope));
        char *at = texts;
        e = texts ? 0 : TSR_ENOMEM;
        if (texts) {
            tsri_free(s->texts);
            s->texts = texts;
            memcpy(s->fingerprint, space->fingerprint, 16);
            s->desc = *d;
            s->desc.size = sizeof s->desc;
            if (d->weights_bytes) memcpy(at, d->weights, d->weights_bytes);
            s->desc.weights = d->weights_bytes ? at : NULL;
            at += d->weights_bytes;
            s->desc.model = keep_text(&at, d->model);
            s->desc.tokenizer = keep_text(&at, d->tokenizer);
            s->desc.adapter = keep_text(&at, d->adapter);
            s->desc.salt = keep_text(&at, d->salt);
            s->desc.rope = keep_text(&at, d->rope);
        }
    }
    pthread_mutex_unlock(&r->lock);
    return e;
}

/* Under seat->lock. */
static int open_space(struct tsri_seat *seat, uint64_t session, const struct tsr_space *space,
                      uint64_t until_ns, struct tsri_seat_space *out)
{
    struct tsri_request q;
    struct tsri_answer *a;
    if (out->open) { /* the slot had another space before */
        tsri_request_clear(&q, TSRI_WIRE_SPACE_CLOSE)->space = out->number;
        tsri_link_tell(seat->link, session, &q);
        out->open = false;
    }
    struct tsri_served *r = seat->served;
    pthread_mutex_lock(&r->lock);
    tsri_request_clear(&q, TSRI_WIRE_SPACE_OPEN)->desc = r->spaces[space->id].desc;
    int e = tsri_link_start(seat->link, session, &q, until_ns, &a);
    pthread_mutex_unlock(&r->lock);
    if (e) return e;
    e = tsri_link_wait(a, until_ns);
    const struct tsri_wire_space *w = &a->reply.space;
    const struct tsri_shape *ours = &space->shape;
    const struct tsri_shape theirs = {.n_layers = w->n_layers,
                                      .n_planes = w->n_planes,
                                      .row_bytes = {w->row_bytes[0], w->row_bytes[1]},
                                      .cell_tokens = w->cell_tokens,
                                      .page_bytes = w->page_bytes};
    if (e == 0 &&
        (w->n_layers != ours->n_layers || w->n_planes != ours->n_planes ||
         w->row_bytes[0] != ours->row_bytes[0] || w->row_bytes[1] != ours->row_bytes[1] ||
         !tsri_shape_is_sound(&theirs) || memcmp(w->fingerprint, space->fingerprint, 16) != 0))
        e = tsri_fail(TSR_ESPACE, "the server has a different description of this space");
    if (e == 0) {
        *out = (struct tsri_seat_space){.open = true, .number = w->space, .shape = theirs};
        memcpy(out->fingerprint, space->fingerprint, 16);
    }
    tsri_link_end(a);
    return e;
}

int tsri_seat_space(struct tsri_seat *seat, uint64_t session, const struct tsr_space *space,
                    uint64_t until_ns, struct tsri_seat_space *out)
{
    int e = 0;
    pthread_mutex_lock(&seat->lock);
    if (seat->session != session) {
        memset(seat->spaces, 0, seat->served->c->options.spaces_max * sizeof *seat->spaces);
        seat->session = session;
    }
    struct tsri_seat_space *s = &seat->spaces[space->id];
    if (!s->open || memcmp(s->fingerprint, space->fingerprint, 16) != 0)
        e = open_space(seat, session, space, until_ns, s);
    *out = *s;
    pthread_mutex_unlock(&seat->lock);
    return e;
}
