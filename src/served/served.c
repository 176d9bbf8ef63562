/* served.c - a cache that a server has: connections, and every call that moves no KV. What the
 * server answers is what the call returns, but for a server that is away: then it is a miss, or
 * TSR_EAGAIN where there is no such thing. */
#include "cache/backend.h"
#include "cache/clients.h"
#include "find/find.h"
#include "cache/manager.h"
#include "cache/ops.h"
#include "served/served.h"
#include "cache/source.h"

#define KEYS_AT_ONCE 16384u
/* Pages are the server's business: any space fits in such ones. */
#define PAGE_BYTES_ANY (64 * TSRI_MIB)

struct tsri_request *tsri_request_clear(struct tsri_request *r, uint16_t type)
{
    memset(r, 0, offsetof(struct tsri_request, extra));
    r->type = type;
    return r;
}

/* Is this what a server that is away, slow or full answers: a miss? */
static bool is_away(int err)
{
    return err == TSR_EAGAIN || err == TSR_ETIME || err == TSR_EPERM || err == TSR_EVERSION;
}

/* ---- seats ---- */

/* Under lock. n_lost: when it is new, entries that it had lost before it concerned us. */
static struct tsri_served_life *know_life(struct tsri_served *r, uint64_t life, uint64_t n_lost)
{
    for (uint32_t i = 0; i < TSRI_COUNT(r->lives); i++)
        if (r->lives[i].life == life) return &r->lives[i];
    struct tsri_served_life *known = &r->lives[r->n_lives++ % TSRI_COUNT(r->lives)];
    *known = (struct tsri_served_life){.life = life, .n_lost = n_lost};
    return known;
}

uint64_t tsri_seat_life(struct tsri_seat *seat, uint64_t session)
{
    struct tsri_served *r = seat->served;
    uint64_t n_lost, life = tsri_link_life(seat->link, session, &n_lost);
    if (!life) return 0;
    pthread_mutex_lock(&r->lock);
    know_life(r, life, n_lost);
    pthread_mutex_unlock(&r->lock);
    return life;
}

/* Waits for the connection as long as a lookup would; it is no error when there is none, unless the
 * server does not want us. */
static int seat_open(struct tsri_seat **out, struct tsri_served *r, bool stores)
{
    *out = NULL;
    struct tsri_seat *seat = tsri_alloc(1, sizeof *seat);
    struct tsri_link_desc desc = r->desc;
    if (!stores) desc.staging_bytes = 0;
    int e = seat ? 0 : TSR_ENOMEM;
    if (e == 0) {
        seat->served = r;
        seat->spaces = tsri_alloc(r->c->options.spaces_max, sizeof *seat->spaces);
        e = seat->spaces ? tsri_link_open(&seat->link, &desc) : TSR_ENOMEM;
    }
    if (e) {
        if (seat) tsri_free(seat->spaces);
        tsri_free(seat);
        return e;
    }
    pthread_mutex_init(&seat->lock, NULL);
    pthread_mutex_init(&seat->staging_lock, NULL);
    e = tsri_link_await(seat->link, tsri_now_ns() + r->deadline_ns);
    if (e && e != TSR_EAGAIN) {
        tsri_seat_close(seat);
        return e;
    }
    uint64_t session = tsri_link_session(seat->link);
    if (session) tsri_seat_life(seat, session);
    *out = seat;
    return 0;
}

void tsri_seat_close(struct tsri_seat *seat)
{
    if (!seat) return;
    tsri_link_close(seat->link);
    pthread_mutex_destroy(&seat->lock);
    pthread_mutex_destroy(&seat->staging_lock);
    tsri_free(seat->spaces);
    tsri_free(seat);
}

/* Sends, waits, and leaves the reply in *out for the caller to end; NULL when there is none. */
static int ask(struct tsri_seat *seat, uint64_t session, struct tsri_request *q, uint64_t until_ns,
               struct tsri_answer **out)
{
    int e = tsri_link_start(seat->link, session, q, until_ns, out);
    if (e) return e;
    e = tsri_link_wait(*out, until_ns);
    if (e >= 0) return e;
    tsri_link_end(*out);
    *out = NULL;
    return e;
}

/* The same where the status is all that counts. */
static int ask_status(struct tsri_seat *seat, struct tsri_request *q, uint64_t wait_ns)
{
    struct tsri_answer *a;
    uint64_t session = tsri_link_session(seat->link);
    if (!session) return TSR_EAGAIN;
    int n = ask(seat, session, q, tsri_now_ns() + wait_ns, &a);
    tsri_link_end(a);
    return n;
}

/* ---- prompts ---- */

/* The prompt as the server takes it: separators are known here alone. */
static int split_prompt(const struct tsr_space *space, const struct tsr_prompt *in,
                        struct tsr_prompt *out, struct tsr_range *ranges)
{
    *out = *in;
    if (!in->tokens || in->n_tokens == 0) return tsri_fail(TSR_EINVAL, "prompt: no tokens");
    int e = tsri_extra_check(in->extra, in->n_extra, in->n_tokens);
    if (e) return e;
    bool splits = in->flags & (TSR_PROMPT_SEGMENTS | TSR_PROMPT_BLENDED);
    if (!splits || in->segments || in->n_segments || !space->separators) return 0;
    int n = tsri_split(space->separators, in->tokens, in->n_tokens, ranges,
                       tsri_min_u32(space->cache->options.segments_max, TSRI_SEGMENTS_MAX));
    if (n < 0) return n;
    out->segments = ranges;
    out->n_segments = (uint32_t)n - 1; /* the last range is the question */
    return 0;
}

/* What calls on a space and a prompt have in common: the request is q, its prompt in ranges. */
static int ask_prompt(struct tsri_seat *seat, struct tsr_space *space,
                      const struct tsr_prompt *prompt, struct tsri_request *q,
                      struct tsri_answer **out, uint64_t wait_ns)
{
    struct tsr_range ranges[TSRI_SEGMENTS_MAX];
    struct tsri_seat_space s;
    *out = NULL;
    uint64_t session = tsri_link_session(seat->link);
    uint64_t until_ns = tsri_now_ns() + wait_ns;
    int e = split_prompt(space, prompt, &q->prompt, ranges);
    if (e == 0 && !session) e = TSR_EAGAIN;
    if (e == 0) e = tsri_seat_space(seat, session, space, until_ns, &s);
    if (e == 0) {
        q->space = s.number;
        e = ask(seat, session, q, until_ns, out);
    }
    q->prompt.segments = NULL; /* they were here */
    return e;
}

/* ---- lookup ---- */

/* Leases of requests and those of loads never meet: the highest bit tells them apart. */
static uint64_t request_lease(uint64_t request_id)
{
    uint64_t lease = request_id & (UINT64_MAX >> 1);
    return request_id && !lease ? 1 : lease;
}

/* Engines copy to where a match is in the prompt, so it must be in there. */
static bool is_sound(const struct tsri_reply *r, uint32_t n_tokens,
                     const struct tsr_lookup_desc *io)
{
    if ((uint32_t)r->status > n_tokens || r->n_prefix_tokens > n_tokens ||
        r->n_spaces != io->n_spaces)
        return false;
    for (size_t i = 0; i < (size_t)r->n * r->n_spaces; i++) {
        const struct tsri_wire_match *m = &r->matches[i];
        const struct tsri_wire_match *before = i < r->n_spaces ? NULL : m - r->n_spaces;
        uint64_t end = (uint64_t)m->prompt_offset + m->n_tokens;
        if (m->n_tokens == 0 || end > n_tokens ||
            (before && m->prompt_offset < before->prompt_offset + before->n_tokens))
            return false;
    }
    return true;
}

static int take_matches(const struct tsri_reply *r, const struct tsr_prompt *prompt,
                        struct tsr_lookup_desc *io)
{
    if (!is_sound(r, prompt->n_tokens, io))
        return tsri_fail(TSR_ECORRUPT, "the server found text that is not in the prompt");
    io->n_matches = tsri_min_u32(r->n, io->matches_max);
    io->n_prefix_tokens = r->n_prefix_tokens;
    for (size_t i = 0; i < (size_t)io->n_matches * io->n_spaces; i++)
        tsri_wire_match_get(&r->matches[i], &io->matches[i]);
    return r->status;
}

static int lookup(struct tsri_seat *seat, uint64_t session, const struct tsr_prompt *prompt,
                  struct tsr_lookup_desc *io)
{
    struct tsr_range ranges[TSRI_SEGMENTS_MAX];
    uint32_t numbers[TSRI_LOOKUP_SPACES_MAX];
    struct tsri_seat_space s;
    struct tsri_request q;
    struct tsri_answer *a = NULL;
    uint64_t until_ns = tsri_now_ns() + seat->served->deadline_ns;
    tsri_request_clear(&q, TSRI_WIRE_LOOKUP);
    int n = split_prompt(io->spaces[0], prompt, &q.prompt, ranges);
    for (uint32_t i = 0; n == 0 && i < io->n_spaces; i++) {
        n = tsri_seat_space(seat, session, io->spaces[i], until_ns, &s);
        numbers[i] = s.number;
    }
    if (n) return n;
    q.lookup = (struct tsri_wire_lookup){.lease = request_lease(io->request_id),
                                         .n_spaces = io->n_spaces,
                                         .matches_max = io->matches_max,
                                         .flags = TSRI_WIRE_LOOKUP_PREFETCH,
                                         .spaces = numbers};
    n = ask(seat, session, &q, until_ns, &a);
    if (n > 0) n = take_matches(&a->reply, prompt, io);
    tsri_link_end(a);
    return n;
}

static int served_release(struct tsr_client *client, uint64_t request_id)
{
    struct tsri_seat *seat = tsri_client_seat(client);
    struct tsri_request q;
    uint64_t lease = request_lease(request_id);
    tsri_request_clear(&q, TSRI_WIRE_RELEASE);
    q.ids = &lease;
    q.n = 1;
    uint64_t session = tsri_link_session(seat->link);
    if (!session) return 0; /* gone with their session */
    /* In order behind everything else, so nobody needs to wait for it. */
    tsri_link_tell(seat->link, session, &q);
    return 0;
}

static int served_lookup(struct tsr_client *client, const struct tsr_prompt *prompt,
                         struct tsr_lookup_desc *io)
{
    struct tsri_seat *seat = tsri_client_seat(client);
    uint64_t session = tsri_link_session(seat->link);
    int n = session ? lookup(seat, session, prompt, io) : TSR_EAGAIN;
    /* It may still find something, and lease it: that comes to an end right behind it. */
    if (n == TSR_ETIME && io->request_id) served_release(client, io->request_id);
    return is_away(n) ? 0 : n;
}

/* ---- keys ---- */

static int served_keys(struct tsr_space *space, const struct tsr_prompt *prompt,
                       struct tsr_key *keys, uint32_t keys_max)
{
    if (tsri_forked(space->cache))
        return tsri_fail(TSR_EFORK, "the connection belongs to the parent process");
    struct tsri_request q;
    struct tsri_answer *a;
    tsri_request_clear(&q, TSRI_WIRE_KEYS)->n = tsri_min_u32(keys_max, TSRI_WIRE_ITEMS_MAX);
    struct tsri_served *served = space->cache->served;
    int n = ask_prompt(served->seat, space, prompt, &q, &a, served->deadline_ns);
    uint32_t n_sent = a ? a->reply.n : 0;
    if (n > 0 && n_sent < tsri_min_u32(q.n, (uint32_t)n))
        n = tsri_fail(TSR_ECORRUPT, "the server sent fewer keys than it announced");
    if (n > 0 && n_sent) memcpy(keys, a->reply.keys, tsri_min_u32(n_sent, keys_max) * sizeof *keys);
    tsri_link_end(a);
    return n;
}

static int served_contains(struct tsr_cache *c, const struct tsr_key *keys, uint32_t n,
                           int8_t *tiers)
{
    struct tsri_seat *seat = c->served->seat;
    uint64_t session = tsri_link_session(seat->link);
    uint64_t until_ns = tsri_now_ns() + c->served->deadline_ns;
    int found = 0;
    memset(tiers, -1, n);
    for (uint32_t at = 0; session && at < n;) {
        struct tsri_request q;
        struct tsri_answer *a;
        tsri_request_clear(&q, TSRI_WIRE_CONTAINS)->keys = keys + at;
        q.n = tsri_min_u32(n - at, KEYS_AT_ONCE);
        int e = ask(seat, session, &q, until_ns, &a);
        if (a && e >= 0 && a->reply.n == q.n) {
            memcpy(tiers + at, a->reply.tiers, q.n);
            found += e;
        }
        tsri_link_end(a);
        if (e < 0) return is_away(e) ? found : e;
        at += q.n;
    }
    return found;
}

/* The server has the chain: it is asked for all keys every time. */
static int served_lacking(struct tsr_space *const *spaces, uint32_t n_spaces,
                          const struct tsr_prompt *prompt, uint32_t from, struct tsri_chain *chain,
                          struct tsr_key *keys, uint64_t *lacking)
{
    (void)chain;
    uint32_t block_tokens = spaces[0]->block_tokens, n_blocks = prompt->n_tokens / block_tokens;
    int8_t *tiers = tsri_alloc(n_blocks, sizeof *tiers);
    int e = tiers ? 0 : TSR_ENOMEM;
    /* The first space last: its keys are those that count. */
    for (uint32_t k = n_spaces; e == 0 && k-- > 0;) {
        int n = served_keys(spaces[k], prompt, keys, n_blocks);
        if (n >= 0 && n < (int)n_blocks) n = TSR_EAGAIN;
        if (n >= 0) n = served_contains(spaces[k]->cache, keys, n_blocks, tiers);
        if (n < 0) e = n;
        for (uint32_t i = from / block_tokens; e == 0 && i < n_blocks; i++)
            if (tiers[i] < 0) lacking[i] |= (uint64_t)1 << k;
    }
    tsri_free(tiers);
    return e;
}

static void served_bring_up(struct tsr_space *space, const struct tsr_prompt *prompt)
{
    (void)space, (void)prompt; /* the server has begun to when it was asked (LOOKUP_PREFETCH) */
}

static int served_mark(struct tsr_space *space, const struct tsr_prompt *prompt,
                       enum tsri_mark mark)
{
    static const uint16_t types[] = {[TSRI_MARK_PIN] = TSRI_WIRE_PIN,
                                     [TSRI_MARK_UNPIN] = TSRI_WIRE_UNPIN,
                                     [TSRI_MARK_TOUCH] = TSRI_WIRE_TOUCH,
                                     [TSRI_MARK_PREFETCH] = TSRI_WIRE_PREFETCH};
    struct tsri_request q;
    struct tsri_answer *a;
    struct tsri_served *served = space->cache->served;
    tsri_request_clear(&q, types[mark]);
    int n = ask_prompt(served->seat, space, prompt, &q, &a, served->deadline_ns);
    tsri_link_end(a);
    bool hint = mark == TSRI_MARK_TOUCH || mark == TSRI_MARK_PREFETCH;
    return hint && is_away(n) ? 0 : n;
}

/* Waits for tiers of the server, as it would for those of a cache of one's own. */
static int served_discover(struct tsr_client *client, struct tsr_space *space,
                           const struct tsr_prompt *prompt)
{
    struct tsri_seat *seat = tsri_client_seat(client);
    struct tsri_request q;
    struct tsri_answer *a;
    tsri_request_clear(&q, TSRI_WIRE_DISCOVER);
    int n = ask_prompt(seat, space, prompt, &q, &a, seat->served->patience_ns);
    tsri_link_end(a);
    return is_away(n) || n == TSR_EUNSUP ? 0 : n; /* EUNSUP: an older server */
}

/* ---- the whole cache ---- */

static int served_clear(struct tsr_cache *c, const struct tsr_clear_desc *what)
{
    struct tsr_range ranges[TSRI_SEGMENTS_MAX];
    struct tsri_seat *seat = c->served->seat;
    struct tsri_seat_space s = {.number = TSRI_WIRE_SPACE_ALL};
    struct tsri_request q;
    struct tsri_answer *a;
    uint64_t session = tsri_link_session(seat->link);
    if (what->from) return tsri_fail(TSR_EUNSUP, "clear: from token %u, by a server", what->from);
    if (!session) return TSR_EAGAIN;
    uint64_t until_ns = tsri_now_ns() + c->served->patience_ns;
    tsri_request_clear(&q, TSRI_WIRE_CLEAR)->tier = what->tier;
    int e = what->space ? tsri_seat_space(seat, session, what->space, until_ns, &s) : 0;
    if (e == 0 && what->space && what->prompt)
        e = split_prompt(what->space, what->prompt, &q.prompt, ranges);
    if (e) return e;
    q.space = s.number;
    q.has_prompt = what->prompt != NULL;
    e = ask(seat, session, &q, until_ns, &a);
    tsri_link_end(a);
    return e;
}

static struct tsr_listed listed_of(const struct tsri_wire_entry *e)
{
    struct tsr_listed out = {.n_tokens = e->n_tokens, .pins = e->pins, .kind = e->kind};
    memcpy(&out.key, e->key, sizeof out.key);
    memcpy(out.space, e->space, sizeof out.space);
    return out;
}

/* In parts, if there are more than one reply takes; the order may change between two of them. */
static int served_list(struct tsr_cache *c, struct tsr_listed *out, uint32_t max)
{
    struct tsri_request q;
    struct tsri_answer *a;
    uint64_t until_ns = tsri_now_ns() + c->served->patience_ns;
    uint64_t session = tsri_link_session(c->served->seat->link);
    if (!session) return TSR_EAGAIN;
    uint32_t n = 0;
    for (uint32_t next = 0;;) {
        tsri_request_clear(&q, TSRI_WIRE_ORDER)->value = next;
        q.n = tsri_min_u32(max - n, TSRI_WIRE_ITEMS_MAX);
        int total = ask(c->served->seat, session, &q, until_ns, &a);
        uint32_t got = total < 0 ? 0 : tsri_min_u32(a->reply.n, q.n);
        for (uint32_t i = 0; i < got; i++)
            out[n++] = listed_of(&a->reply.entries[i]);
        uint32_t before = next;
        next = total < 0 ? TSRI_WIRE_LIST_END : a->reply.next;
        tsri_link_end(a);
        if (total < 0 || n == max) return total;
        /* All of it: fewer than the last part said there are, if some went meanwhile. */
        if (next == TSRI_WIRE_LIST_END || next <= before) return (int)n;
    }
}

/* What went is told, also when the server fails behind a part of it. */
static int evict_keys(struct tsr_cache *c, size_t free_bytes, struct tsr_key *keys, uint32_t max)
{
    struct tsri_request q;
    struct tsri_answer *a;
    uint64_t until_ns = tsri_now_ns() + c->served->patience_ns;
    uint64_t session = tsri_link_session(c->served->seat->link);
    if (!session) return TSR_EAGAIN;
    for (uint32_t n = 0;;) {
        tsri_request_clear(&q, TSRI_WIRE_EVICT_KEYS)->bytes = free_bytes;
        q.n = tsri_min_u32(max - n, TSRI_WIRE_ITEMS_MAX);
        int e = ask(c->served->seat, session, &q, until_ns, &a);
        uint32_t got = e < 0 ? 0 : tsri_min_u32(a->reply.n, q.n);
        if (got) memcpy(keys + n, a->reply.keys, (size_t)got * sizeof *keys);
        tsri_link_end(a);
        n += got;
        if (e < 0 && n == 0) return e;
        if (got < q.n || n == max) return (int)n;
    }
}

static int served_evict(struct tsr_cache *c, size_t free_bytes, struct tsr_key *keys,
                        uint32_t keys_max)
{
    struct tsri_request q;
    if (keys) return evict_keys(c, free_bytes, keys, keys_max);
    tsri_request_clear(&q, TSRI_WIRE_EVICT)->bytes = free_bytes;
    return ask_status(c->served->seat, &q, c->served->patience_ns);
}

void tsri_served_stored(struct tsri_served *r, uint64_t life)
{
    pthread_mutex_lock(&r->lock);
    /* A server that is gone took with it what was not flushed. How much is not known: one. */
    if (r->stored_life && r->stored_life != life) tsri_losses_add(&r->c->losses, 1);
    r->stored_life = life;
    r->n_stores++;
    pthread_mutex_unlock(&r->lock);
}

/* A flush has reached that life of the server, which has lost so many entries by now. What was
 * stored after `n_stores` is not acknowledged by it. */
static void settle_flush(struct tsri_served *r, uint64_t life, uint64_t n_stores, uint64_t n_lost)
{
    pthread_mutex_lock(&r->lock);
    struct tsri_served_life *known = know_life(r, life, 0);
    if (n_lost > known->n_lost) {
        tsri_losses_add(&r->c->losses, n_lost - known->n_lost);
        known->n_lost = n_lost;
    }
    bool gone = r->stored_life && r->stored_life != life;
    if (gone) tsri_losses_add(&r->c->losses, 1);
    if (gone || r->n_stores == n_stores) r->stored_life = 0;
    pthread_mutex_unlock(&r->lock);
}

static int served_flush(struct tsr_cache *c)
{
    struct tsri_served *r = c->served;
    struct tsri_request q;
    struct tsri_answer *a;
    pthread_mutex_lock(&r->lock);
    uint64_t n_stores = r->n_stores;
    pthread_mutex_unlock(&r->lock);
    uint64_t session = tsri_link_session(r->seat->link);
    if (!session) return TSR_EAGAIN;
    uint64_t life = tsri_seat_life(r->seat, session);
    int n = ask(r->seat, session, tsri_request_clear(&q, TSRI_WIRE_FLUSH),
                tsri_now_ns() + r->patience_ns, &a);
    if (n >= 0) settle_flush(r, life, n_stores, a->reply.n_lost);
    tsri_link_end(a);
    if (n < 0) return n;
    uint64_t n_told = tsri_losses_tell(&c->losses);
    return n_told ? tsri_fail(TSR_EIO, "the server lost at least %llu entries that it had accepted",
                              (unsigned long long)n_told)
                  : 0;
}

static void served_freeze(struct tsr_cache *c, bool frozen)
{
    struct tsri_request q;
    tsri_request_clear(&q, TSRI_WIRE_FREEZE)->value = frozen;
    (void)ask_status(c->served->seat, &q, c->served->deadline_ns);
    atomic_store(&c->frozen, frozen);
}

static int ask_stats(struct tsr_cache *c, uint32_t form, struct tsri_answer **a)
{
    struct tsri_request q;
    *a = NULL;
    tsri_request_clear(&q, TSRI_WIRE_STATS)->value = form;
    uint64_t session = tsri_link_session(c->served->seat->link);
    if (!session) return TSR_EAGAIN;
    return ask(c->served->seat, session, &q, tsri_now_ns() + c->served->deadline_ns, a);
}

static int served_stats(struct tsr_cache *c, struct tsr_stats *out)
{
    struct tsri_answer *a;
    int e = ask_stats(c, TSRI_WIRE_STATS_NUMBERS, &a);
    uint32_t n = (sizeof *out - sizeof out->size) / sizeof(uint64_t);
    if (a && a->reply.n)
        memcpy((uint8_t *)out + sizeof out->size, a->reply.numbers,
               tsri_min_u32(a->reply.n, n) * sizeof(uint64_t));
    tsri_link_end(a);
    return e;
}

static int served_stats_text(struct tsr_cache *c, const char *format, char *buf, size_t bytes)
{
    struct tsri_answer *a;
    bool json = strcmp(format, "json") == 0;
    if (!json && strcmp(format, "prometheus") != 0)
        return tsri_fail(TSR_EINVAL, "unknown format %s: use prometheus or json", format);
    int e = ask_stats(c, json ? TSRI_WIRE_STATS_JSON : TSRI_WIRE_STATS_PROMETHEUS, &a);
    if (a) {
        size_t n = a->reply.text_bytes, fits = bytes ? (n < bytes ? n : bytes - 1) : 0;
        if (bytes) {
            if (fits) memcpy(buf, a->reply.text, fits);
            buf[fits] = 0;
        }
        e = (int)n;
    }
    tsri_link_end(a);
    return e;
}

static int served_events(struct tsr_cache *c, struct tsr_event *out, uint32_t max)
{
    struct tsri_request q;
    struct tsri_answer *a;
    tsri_request_clear(&q, TSRI_WIRE_EVENTS)->n = tsri_min_u32(max, TSRI_WIRE_ITEMS_MAX);
    uint64_t session = tsri_link_session(c->served->seat->link);
    if (!session) return 0;
    int n = ask(c->served->seat, session, &q, tsri_now_ns() + c->served->deadline_ns, &a);
    if (n > 0) {
        n = (int)tsri_min_u32(a->reply.n, max);
        if (n) memcpy(out, a->reply.events, (size_t)n * sizeof *out);
    }
    tsri_link_end(a);
    return is_away(n) ? 0 : n;
}

/* ---- life ---- */

static int served_open(struct tsr_cache *c, const struct tsr_config *cfg)
{
    (void)cfg;
    struct tsri_options *o = &c->options;
    struct tsri_served *r = tsri_alloc(1, sizeof *r);
    if (!r) return TSR_ENOMEM;
    pthread_mutex_init(&r->lock, NULL);
    r->c = c;
    c->served = r;
    r->path = tsri_strdup(o->server_socket);
    r->token = tsri_strdup(o->server_token);
    r->spaces = tsri_alloc(o->spaces_max, sizeof *r->spaces);
    if (!r->path || !r->token || !r->spaces) return TSR_ENOMEM;
    o->host_page_size = PAGE_BYTES_ANY;
    r->deadline_ns = (uint64_t)o->server_deadline * 1000000;
    r->patience_ns = (uint64_t)o->server_patience * 1000000;
    uint32_t owner;
    int bad = tsri_socket_owner(o->server_owner, &owner);
    if (bad) return bad;
    r->desc = (struct tsri_link_desc){.path = r->path,
                                      .token = r->token,
                                      .owner = owner,
                                      .staging_bytes = o->server_staging,
                                      .patience_ms = o->server_patience};
    struct tsr_device_desc device = {.size = sizeof device,
                                     .ordinal = o->device_number,
                                     .flags = o->device_operators ? TSR_DEVICE_OPERATORS : 0};
    int e = o->device[0] ? tsri_device_open(&c->device, o->device, &device) : 0;
    if (!e) e = tsri_shared_pools_open(&r->pools, c->device, tsri_ops_work(c->ops));
    r->desc.pools = r->pools;
    return e ? e : seat_open(&r->seat, r, false);
}

static void served_close(struct tsr_cache *c)
{
    struct tsri_served *r = c->served;
    if (!r) return;
    tsri_shared_pools_close(r->pools);
    tsri_seat_close(r->seat);
    tsri_device_close(r->c->device);
    r->c->device = NULL;
    for (uint32_t i = 0; r->spaces && i < r->c->options.spaces_max; i++)
        tsri_free(r->spaces[i].texts);
    tsri_free(r->spaces);
    tsri_free(r->path);
    tsri_free(r->token);
    pthread_mutex_destroy(&r->lock);
    tsri_free(r);
}

static int served_client_open(struct tsri_seat **seat, struct tsr_cache *c)
{
    return seat_open(seat, c->served, true);
}

/* ---- the memory of the server ---- */

static int served_connected(struct tsr_cache *c, uint64_t until_ns)
{
    return tsri_link_await(c->served->seat->link, until_ns);
}

static int served_shared(struct tsr_client *client, struct tsr_shared *out)
{
    struct tsri_link *link = tsri_client_seat(client)->link;
    uint64_t session = tsri_link_session(link);
    struct tsri_mapping *m = session ? tsri_link_mapping(link, session) : NULL;
    if (!m) return TSR_EAGAIN;
    out->data = m->pool->region.data;
    out->bytes = m->pool->region.bytes;
    out->handle = m;
    return 0;
}

const struct tsri_backend tsri_backend_served = {
    .open = served_open,
    .close = served_close,
    .space_open = tsri_served_space_open,
    .client_open = served_client_open,
    .lookup = served_lookup,
    .release = served_release,
    .keys = served_keys,
    .contains = served_contains,
    .lacking = served_lacking,
    .bring_up = served_bring_up,
    .mark = served_mark,
    .discover = served_discover,
    .source_open = tsri_source_open_served,
    .source_fetch = tsri_source_fetch_served,
    .store = tsri_served_store,
    .put_open = tsri_served_put_open,
    .put_layer = tsri_served_put_layer,
    .put_commit = tsri_served_put_commit,
    .put_abort = tsri_served_put_abort,
    .flush = served_flush,
    .evict = served_evict,
    .list = served_list,
    .clear = served_clear,
    .freeze = served_freeze,
    .stats = served_stats,
    .stats_text = served_stats_text,
    .events = served_events,
    .connected = served_connected,
    .shared = served_shared,
};
