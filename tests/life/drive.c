/* drive.c - takes the steps of a plan and holds every answer against the model. What the workers
 * see is reported at once; what must be there is looked for after the steps. */
#include "life/life.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SURE_MS 1500u /* how long what must be there is looked for before it counts as lost */
#define LIVE_MS 10000u

/* A match that is kept, with what was asked for. */
struct slot {
    uint32_t tenant, space, text, n;
    uint32_t owner; /* life of the owner that gave them */
    struct tsr_match matches[LIFE_BLOCKS];
};

struct run {
    const struct life_plan *plan;
    struct life_world world;
    struct life_model model;
    struct slot slots[LIFE_SLOTS];
    FILE *trace;
    uint32_t step;
    char failed[500];
    struct life_reply reply;
};

static void fail(struct run *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct run *r, const char *fmt, ...)
{
    va_list args;
    if (r->failed[0]) return;
    va_start(args, fmt);
    vsnprintf(r->failed, sizeof r->failed, fmt, args);
    va_end(args);
}

static bool owner_is_up(struct run *r)
{
    return life_owner(&r->world)->pid != 0;
}

/* An index that is too small for everything forgets by rule, as long as the store is open. */
static bool sees_all(const struct life_options *o)
{
    return o->entries_max == 0 || o->entries_max >= 1024;
}

/* Which worker a step means, or NULL; its tenant when the server tells them apart. */
static struct life_process *pick(struct run *r, uint32_t number, uint32_t *tenant)
{
    struct life_process *p = &r->world.workers[number % r->world.n_workers];
    if (r->plan->owner == LIFE_DAEMON) *tenant = p->tenant;
    return p->pid ? p : NULL;
}

/* ---- asking ---- */

static bool hear(struct run *r, struct life_process *p)
{
    char why[200];
    memset(&r->reply, 0, sizeof r->reply);
    if (life_hear(p, &r->reply)) {
        if (r->reply.wrong[0]) fail(r, "%s", r->reply.wrong);
        return !r->failed[0];
    }
    usleep(100000);
    if (life_process_died(p, why))
        fail(r, "%s", why);
    else
        fail(r, "a call does not return");
    return false;
}

static bool ask(struct run *r, struct life_process *p, const struct life_request *q)
{
    if (!life_say(p, q)) {
        fail(r, "a worker is gone");
        return false;
    }
    return hear(r, p);
}

/* ---- what must be true ---- */

static uint32_t tokens_of(const struct run *r, uint32_t text, uint32_t n_entries)
{
    struct life_text t;
    if (text >= LIFE_SEGMENTS) return n_entries * LIFE_BLOCK_TOKENS;
    life_text_make(&t, life_plan_shape(r->plan), text);
    return n_entries ? t.n_tokens - t.n_context : 0;
}

static uint32_t must(const struct run *r, uint32_t tenant, uint32_t space, uint32_t text,
                     uint8_t tiers)
{
    const struct life_options *o = &r->world.options;
    if (!sees_all(o)) return 0;
    return life_model_must(&r->model, r->plan, tenant, space, text, tiers & o->tiers);
}

static void release_all(struct run *r)
{
    struct life_request q = {.op = LIFE_OP_RELEASE};
    for (uint32_t i = 0; i < r->world.n_workers; i++)
        if (r->world.workers[i].pid) ask(r, &r->world.workers[i], &q);
}

/* Looks a text up and loads it. sure: it is lost when what must be there does not come. */
static void check(struct run *r, struct life_process *p, const struct life_request *what, bool sure)
{
    struct life_request q = *what;
    uint32_t n = must(r, q.tenant, q.space, q.text, 0xFF);
    uint32_t may = life_model_may(&r->model, q.tenant, q.space, q.text);
    q.op = LIFE_OP_CHECK;
    q.want = tokens_of(r, q.text, n);
    q.wait_ms = sure ? SURE_MS : 0;
    q.discover = (r->world.options.tiers & LIFE_REDIS) != 0;
    if (!ask(r, p, &q)) return;
    life_model_used(&r->model, r->plan, q.text);
    if (r->reply.n_tokens > tokens_of(r, q.text, may))
        fail(r, "tenant %u finds %u tokens of text %u in space %u and has stored only %u", q.tenant,
             r->reply.n_tokens, q.text, q.space, tokens_of(r, q.text, may));
    if (sure && r->reply.n_tokens < q.want)
        fail(r, "lost: tenant %u, space %u, text %u: %u of %u tokens that were acknowledged (%s)",
             q.tenant, q.space, q.text, r->reply.n_tokens, q.want, r->reply.message);
}

/* A worker through which a tenant's things can be seen. */
static struct life_process *eyes(struct run *r, uint32_t tenant)
{
    for (uint32_t i = 0; i < r->world.n_workers; i++) {
        struct life_process *p = &r->world.workers[i];
        if (p->pid && (r->plan->owner != LIFE_DAEMON || p->tenant == tenant)) return p;
    }
    return NULL;
}

/* Everything of a tenant and space, without touching it; what is missing is looked for closely. */
static void look_at(struct run *r, uint32_t tenant, uint32_t space)
{
    struct life_process *p = eyes(r, tenant);
    struct life_request q = {
        .op = LIFE_OP_CONTAINS, .tenant = tenant, .space = space, .wait_ms = LIVE_MS};
    if (!p || !ask(r, p, &q)) return;
    if (r->reply.rc < 0) {
        fail(r, "contains: %s", r->reply.message);
        return;
    }
    struct life_reply seen = r->reply;
    for (q.text = 0; q.text < LIFE_TEXTS && !r->failed[0]; q.text++) {
        uint32_t n = seen.entries[q.text];
        if (n > life_model_may(&r->model, tenant, space, q.text))
            fail(r, "tenant %u has %u entries of text %u in space %u that it never stored", tenant,
                 n, q.text, space);
        if (n >= must(r, tenant, space, q.text, LIFE_DISK | LIFE_DISK2)) continue;
        release_all(r);
        check(r, p, &q, true);
    }
}

static void look_at_all(struct run *r)
{
    for (uint32_t t = 0; t < LIFE_TENANTS && owner_is_up(r); t++)
        for (uint32_t s = 0; s < LIFE_SPACES && !r->failed[0]; s++)
            look_at(r, t, s);
}

/* Loads everything that must be there. */
static void load_all(struct run *r)
{
    release_all(r);
    for (uint32_t t = 0; t < LIFE_TENANTS && owner_is_up(r); t++)
        for (uint32_t s = 0; s < LIFE_SPACES; s++)
            for (uint32_t text = 0; text < LIFE_TEXTS && !r->failed[0]; text++) {
                struct life_request q = {.tenant = t, .space = s, .text = text};
                struct life_process *p = eyes(r, t);
                if (p && must(r, t, s, text, 0xFF)) check(r, p, &q, true);
            }
}

static void look_for_deaths(struct run *r)
{
    char why[200];
    if (life_process_died(&r->world.daemon, why)) fail(r, "tesserad: %s", why);
    for (uint32_t i = 0; i < LIFE_WORKERS; i++)
        if (life_process_died(&r->world.workers[i], why)) fail(r, "worker %u: %s", i, why);
}

/* ---- steps that are calls ---- */

static struct life_request request_of(const struct life_step *s, enum life_step_kind kind,
                                      uint32_t tenant)
{
    struct life_request q = {.tenant = tenant,
                             .space = s->space,
                             .text = s->text,
                             .n_texts = s->n_texts,
                             .form = s->form,
                             .seed = s->seed};
    static const enum life_op ops[] = {
        [LIFE_STORE] = LIFE_OP_STORE,    [LIFE_LOOKUP] = LIFE_OP_LOOKUP,
        [LIFE_LOAD] = LIFE_OP_LOAD,      [LIFE_FLUSH] = LIFE_OP_FLUSH,
        [LIFE_CLEAR] = LIFE_OP_CLEAR,    [LIFE_CLEAR_ALL] = LIFE_OP_CLEAR,
        [LIFE_EVICT] = LIFE_OP_EVICT,    [LIFE_BURST] = LIFE_OP_BURST,
        [LIFE_BURST_ALL] = LIFE_OP_BURST};
    q.op = ops[kind];
    if (kind == LIFE_CLEAR_ALL) q.text = LIFE_TEXTS;
    if (kind == LIFE_LOOKUP && s->form & 1) q.request_id = s->slot + 1u;
    return q;
}

static bool stores(const struct life_request *q)
{
    return q->op == LIFE_OP_STORE || q->op == LIFE_OP_BURST;
}

/* What a call may do, whether or not it ends. */
static void before(struct run *r, const struct life_request *q)
{
    for (uint32_t i = 0; i < q->n_texts && stores(q); i++)
        life_model_try(&r->model, q->tenant, q->space, q->text + i);
    for (uint32_t t = 0; t < LIFE_TENANTS && stores(q) && !sees_all(&r->world.options); t++)
        if (r->plan->owner != LIFE_DAEMON || t == q->tenant)
            life_model_crowded(&r->model, t, r->world.options.tiers);
    if (q->op == LIFE_OP_CLEAR) life_model_cleared(&r->model, q->tenant, q->space, q->text);
}

/* What a call has done. tiers: of the owner that did it. */
static void after(struct run *r, const struct life_request *q, uint32_t by, uint32_t owner,
                  uint8_t tiers)
{
    struct life_deed d = {.tenant = q->tenant,
                          .space = q->space,
                          .by = by,
                          .redis = r->world.redis_life,
                          .owner = owner,
                          .tiers = tiers};
    fprintf(r->trace, "        -> %d %s\n", r->reply.rc, r->reply.message);
    for (d.text = 0; d.text < LIFE_TEXTS && stores(q); d.text++) {
        d.n_entries = r->reply.entries[d.text];
        d.fresh = r->reply.fresh[d.text];
        if (d.n_entries) life_model_stored(&r->model, r->plan, &d);
    }
    if (q->op == LIFE_OP_FLUSH && r->reply.rc == 0)
        life_model_flushed(&r->model, r->plan, by, r->world.redis_life, owner);
}

/* After a flush that failed: what is not there any more is lost, and was told. */
static void take_losses(struct run *r, struct life_process *p, const struct life_request *q)
{
    struct life_request look = {.op = LIFE_OP_CONTAINS};
    if (q->op != LIFE_OP_FLUSH || r->reply.rc >= 0) return;
    if (owner_is_up(r)) look.wait_ms = LIVE_MS;
    for (look.tenant = 0; look.tenant < LIFE_TENANTS; look.tenant++)
        for (look.space = 0; look.space < LIFE_SPACES; look.space++) {
            if (r->plan->owner == LIFE_DAEMON && look.tenant != p->tenant) continue;
            if (!ask(r, p, &look)) return;
            life_model_told(&r->model, look.tenant, look.space, p->life, r->reply.entries);
        }
}

static void keep_matches(struct run *r, const struct life_step *s, const struct life_request *q)
{
    struct slot *slot = &r->slots[s->slot];
    uint32_t may = life_model_may(&r->model, q->tenant, q->space, q->text);
    *slot = (struct slot){
        .tenant = q->tenant, .space = q->space, .text = q->text, .n = r->reply.n_matches};
    slot->owner = life_owner(&r->world)->life;
    memcpy(slot->matches, r->reply.matches, sizeof slot->matches);
    if (r->reply.rc > 0 && (uint32_t)r->reply.rc > tokens_of(r, q->text, may))
        fail(r, "tenant %u is offered %d tokens of text %u and has stored only %u", q->tenant,
             r->reply.rc, q->text, tokens_of(r, q->text, may));
}

/* The load of kept matches: text and space are those of the slot. */
static bool fill_load(struct run *r, const struct life_step *s, struct life_request *q)
{
    const struct slot *slot = &r->slots[s->slot];
    q->space = slot->space;
    q->text = slot->text;
    q->n_matches = slot->n;
    memcpy(q->matches, slot->matches, sizeof q->matches);
    bool stale = slot->owner != life_owner(&r->world)->life;
    return slot->n > 0 && (!stale || r->plan->parts & LIFE_WITH_STALE);
}

/* Which worker and tenant a step means: loads go to the tenant that looked up, or to the other. */
static struct life_process *actor(struct run *r, const struct life_step *s,
                                  enum life_step_kind kind, uint32_t *tenant)
{
    *tenant = s->tenant;
    if (kind != LIFE_LOAD) return pick(r, s->worker, tenant);
    uint32_t want = r->slots[s->slot].tenant ^ (s->crossed ? 1u : 0u);
    *tenant = want;
    uint32_t number = s->worker;
    if (r->plan->owner == LIFE_DAEMON) number = (number & ~1u) | want;
    return pick(r, number, tenant);
}

static void take_call(struct run *r, const struct life_step *s)
{
    uint32_t tenant;
    struct life_process *p = actor(r, s, s->kind, &tenant);
    if (!p) return;
    struct life_request q = request_of(s, s->kind, tenant);
    if (s->kind == LIFE_LOAD && !fill_load(r, s, &q)) return;
    before(r, &q);
    if (s->waits && owner_is_up(r)) q.wait_ms = LIVE_MS;
    if (!ask(r, p, &q)) return;
    if (s->kind == LIFE_LOOKUP) keep_matches(r, s, &q);
    after(r, &q, p->life, life_owner(&r->world)->life, r->world.options.tiers);
    take_losses(r, p, &q);
}

static void take_check(struct run *r, const struct life_step *s)
{
    uint32_t tenant;
    struct life_process *p = actor(r, s, s->kind, &tenant);
    struct life_request q = {.tenant = tenant, .space = s->space, .text = s->text};
    if (p) check(r, p, &q, false);
}

/* Every worker has a burst at the same time. */
static void take_burst_all(struct run *r, const struct life_step *s)
{
    struct life_request qs[LIFE_WORKERS];
    for (uint32_t i = 0; i < r->world.n_workers; i++) {
        uint32_t tenant = s->tenant;
        struct life_process *p = pick(r, i, &tenant);
        qs[i] = request_of(s, LIFE_BURST, tenant);
        qs[i].seed += i * 100;
        if (!p) continue;
        before(r, &qs[i]);
        if (!life_say(p, &qs[i])) fail(r, "worker %u is gone", i);
    }
    for (uint32_t i = 0; i < r->world.n_workers && !r->failed[0]; i++) {
        struct life_process *p = &r->world.workers[i];
        if (p->pid && hear(r, p))
            after(r, &qs[i], p->life, life_owner(&r->world)->life, r->world.options.tiers);
    }
}

/* ---- steps that happen to a store ---- */

/* One that cannot open its store while the file system is full may try again later. */
static void start_owner(struct run *r, const struct life_options *o, bool must_open)
{
    char why[200] = "";
    if (owner_is_up(r)) return;
    if (life_owner_start(&r->world, o, why)) return;
    fprintf(r->trace, "        does not open: %s\n", why);
    if (must_open || !r->world.full) fail(r, "the store does not open: %s", why);
}

static void stop_owner(struct run *r, bool killed)
{
    char why[200];
    if (owner_is_up(r) && !life_owner_stop(&r->world, killed, why)) fail(r, "%s", why);
}

static void take_client_restart(struct run *r, const struct life_step *s)
{
    char why[200];
    uint32_t i = s->worker % r->world.n_workers;
    if (i == 0 && r->plan->owner != LIFE_DAEMON) return;
    if (!life_worker_stop(&r->world, i, s->kill, why) || !life_worker_start(&r->world, i, why))
        fail(r, "%s", why);
}

static void take_kill_during(struct run *r, const struct life_step *s)
{
    char why[200];
    uint32_t tenant;
    struct life_process *p = actor(r, s, s->during, &tenant), *owner = life_owner(&r->world);
    if (!p || !owner_is_up(r)) return;
    struct life_request q = request_of(s, s->during, tenant);
    if (s->during == LIFE_LOAD && !fill_load(r, s, &q)) return;
    uint32_t number = (uint32_t)(p - r->world.workers);
    bool kill_owner = s->owner || p == owner;
    uint8_t tiers = r->world.options.tiers;
    uint32_t life = owner->life;
    before(r, &q);
    if (!life_say(p, &q)) {
        fail(r, "worker %u is gone", number);
        return;
    }
    usleep(s->delay_us);
    if (kill_owner)
        stop_owner(r, true);
    else if (!life_worker_stop(&r->world, number, true, why))
        fail(r, "%s", why);
    bool heard = p->pid && hear(r, p);
    if (heard) after(r, &q, p->life, life, tiers);
    struct life_reply reply = r->reply;
    if (kill_owner) start_owner(r, &s->options, false);
    r->reply = reply;
    if (heard) take_losses(r, p, &q);
    if (kill_owner) return;
    if (!life_worker_start(&r->world, number, why)) fail(r, "%s", why);
}

static void take_step(struct run *r, const struct life_step *s)
{
    switch (s->kind) {
    case LIFE_CHECK:
        take_check(r, s);
        break;
    case LIFE_BURST_ALL:
        take_burst_all(r, s);
        break;
    case LIFE_RESTART:
        stop_owner(r, s->kill);
        start_owner(r, &s->options, false);
        if (s->form & 1) load_all(r);
        break;
    case LIFE_STOP:
        stop_owner(r, s->kill);
        break;
    case LIFE_START:
        start_owner(r, &s->options, false);
        break;
    case LIFE_KILL_DURING:
        take_kill_during(r, s);
        break;
    case LIFE_CLIENT_RESTART:
        take_client_restart(r, s);
        break;
    case LIFE_FILL:
        life_fill(&r->world, s->spare_kb);
        break;
    case LIFE_UNFILL:
        life_unfill(&r->world);
        break;
    case LIFE_REDIS_RESTART:
        life_redis_restart(&r->world);
        life_model_redis_lost(&r->model);
        break;
    default:
        take_call(r, s);
    }
    look_for_deaths(r);
    if (!r->failed[0] && !s->unseen) look_at_all(r);
    look_for_deaths(r);
}

/* The end: with room and an index for everything, all of it must be there, also after a kill. */
static void take_last(struct run *r)
{
    struct life_options o = r->plan->options;
    o.entries_max = 0;
    o.tiers = r->plan->tiers;
    for (int i = 0; i < 2 && !r->failed[0]; i++) {
        stop_owner(r, i == 1);
        life_unfill(&r->world);
        start_owner(r, &o, true);
        look_at_all(r);
        load_all(r);
    }
    look_for_deaths(r);
}

bool life_drive(const struct life_plan *p, const bool *mask, const char *dir, FILE *trace)
{
    static struct run r;
    char text[300], why[200];
    memset(&r, 0, sizeof r);
    r.plan = p;
    r.trace = trace;
    life_world_init(&r.world, p, dir);
    start_owner(&r, &p->options, true);
    for (uint32_t i = 0; i < r.world.n_workers && !r.failed[0]; i++)
        if (r.world.workers[i].pid == 0 && !life_worker_start(&r.world, i, why))
            fail(&r, "%s", why);
    for (r.step = 0; r.step < p->n_steps && !r.failed[0]; r.step++) {
        if (mask && !mask[r.step]) continue;
        life_step_say(&p->steps[r.step], text, sizeof text);
        fprintf(trace, "  %3u %s\n", r.step, text);
        take_step(&r, &p->steps[r.step]);
    }
    if (!r.failed[0]) {
        fprintf(trace, "  end\n");
        take_last(&r);
    }
    life_world_fini(&r.world);
    if (r.failed[0]) fprintf(trace, "  BROKEN: %s\n", r.failed);
    return !r.failed[0];
}
