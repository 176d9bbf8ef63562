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

/* All of these under seat->lock. */

static bool is_open_as(const struct tsri_seat_space *s, const struct tsr_space *space)
{
    return s->open && memcmp(s->fingerprint, space->fingerprint, 16) == 0;
}

/* Does the server lay it out as we do? */
static bool is_alike(const struct tsri_seat_space *s, const struct tsr_space *space)
{
    const struct tsri_shape *theirs = &s->shape, *ours = &space->shape;
    return is_open_as(s, space) && theirs->n_layers == ours->n_layers &&
           theirs->n_planes == ours->n_planes && theirs->row_bytes[0] == ours->row_bytes[0] &&
           theirs->row_bytes[1] == ours->row_bytes[1] && tsri_shape_is_sound(theirs);
}

/* Numbers of one session mean nothing in the next. */
static int enter_session(struct tsri_seat *seat, uint64_t session)
{
    if (session == seat->session) return 0;
    if (session < seat->session) return tsri_fail(TSR_EAGAIN, "the connection was lost meanwhile");
    tsri_link_end(seat->opening);
    seat->opening = NULL;
    memset(seat->spaces, 0, seat->served->c->options.spaces_max * sizeof *seat->spaces);
    seat->session = session;
    return 0;
}

/* Takes the number of the space that is being opened. One that comes late is for the next call:
 * opened again, it would have two. */
static int take_number(struct tsri_seat *seat, uint64_t until_ns)
{
    int e = tsri_link_wait(seat->opening, until_ns);
    if (e == TSR_ETIME) return e;
    if (e >= 0) {
        const struct tsri_wire_space *w = &seat->opening->reply.space;
        struct tsri_seat_space *s = &seat->spaces[seat->opening_id];
        *s = (struct tsri_seat_space){.open = true,
                                      .number = w->space,
                                      .shape = {.n_layers = w->n_layers,
                                                .n_planes = w->n_planes,
                                                .row_bytes = {w->row_bytes[0], w->row_bytes[1]},
                                                .cell_tokens = w->cell_tokens,
                                                .page_bytes = w->page_bytes}};
        memcpy(s->fingerprint, w->fingerprint, 16);
    }
    tsri_link_end(seat->opening);
    seat->opening = NULL;
    return e < 0 ? e : 0;
}

/* The same of one that came late, or is late still: nothing waits for it twice. */
static int take_late(struct tsri_seat *seat, uint64_t session, uint64_t until_ns)
{
    int e = tsri_link_check(seat->link, session);
    if (e == 0) e = take_number(seat, until_ns);
    return seat->opening ? e : 0; /* one that was refused is asked for again */
}

static int open_space(struct tsri_seat *seat, uint64_t session, const struct tsr_space *space,
                      uint64_t until_ns)
{
    struct tsri_seat_space *s = &seat->spaces[space->id];
    struct tsri_served *r = seat->served;
    struct tsri_request q;
    if (s->open) { /* the slot had another space before */
        tsri_request_clear(&q, TSRI_WIRE_SPACE_CLOSE)->space = s->number;
        tsri_link_tell(seat->link, session, &q);
        s->open = false;
    }
    pthread_mutex_lock(&r->lock);
    tsri_request_clear(&q, TSRI_WIRE_SPACE_OPEN)->desc = r->spaces[space->id].desc;
    int e = tsri_link_start(seat->link, session, &q, until_ns, &seat->opening);
    pthread_mutex_unlock(&r->lock);
    seat->opening_id = space->id;
    return e ? e : take_number(seat, until_ns);
}

int tsri_seat_space(struct tsri_seat *seat, uint64_t session, const struct tsr_space *space,
                    uint64_t until_ns, struct tsri_seat_space *out)
{
    pthread_mutex_lock(&seat->lock);
    struct tsri_seat_space *s = &seat->spaces[space->id];
    int e = enter_session(seat, session);
    if (e == 0 && seat->opening) e = take_late(seat, session, until_ns);
    if (e == 0 && !is_open_as(s, space)) e = open_space(seat, session, space, until_ns);
    if (e == 0 && !is_alike(s, space))
        e = tsri_fail(TSR_ESPACE, "the server has a different description of this space");
    *out = *s;
    pthread_mutex_unlock(&seat->lock);
    return e;
}
