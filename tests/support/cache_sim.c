/* cache_sim.c - a cache that is only counted. See cache_sim.h. */
#include "support/cache_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct state {
    uint32_t id;         /* in the policy; TRACE_NONE: not in the cache */
    uint32_t n_children; /* blocks behind it that are in the cache */
    uint32_t used;       /* the request that has it in use, plus one */
};

struct sim {
    const struct trace *t;
    struct tsri_policy *policy;
    struct state *objects;
    uint32_t *by_id; /* object of an id */
    uint32_t *free_ids, n_free;
    uint32_t *ids, *missing; /* of one request */
    uint64_t capacity, used;
    uint32_t request;
    struct sim_result result;
};

static void *take(size_t n, size_t bytes)
{
    void *p = calloc(n ? n : 1, bytes);
    if (!p) {
        fprintf(stderr, "cache_sim: no memory\n");
        exit(1);
    }
    return p;
}

static uint32_t units_of(const struct trace *t, uint32_t object)
{
    return (t->objects[object].n_tokens + SIM_UNIT_TOKENS - 1) / SIM_UNIT_TOKENS;
}

uint64_t sim_footprint(const struct trace *t)
{
    uint8_t *seen = take(t->n_objects, 1);
    uint64_t n = 0;
    for (uint32_t i = 0; i < t->n_refs; i++)
        if (!seen[t->refs[i]]) {
            seen[t->refs[i]] = 1;
            n += units_of(t, t->refs[i]);
        }
    free(seen);
    return n;
}

static uint32_t longest_request(const struct trace *t)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < t->n_requests; r++)
        if (t->starts[r + 1] - t->starts[r] > n) n = t->starts[r + 1] - t->starts[r];
    return n;
}

static uint64_t hash_of(uint64_t x)
{
    x = (x + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int may_go(void *arg, uint32_t id)
{
    const struct sim *s = arg;
    const struct state *o = &s->objects[s->by_id[id]];
    return o->used != s->request + 1 && o->n_children == 0;
}

static void leave(struct sim *s, uint32_t object)
{
    struct state *o = &s->objects[object];
    s->policy->ops->remove(s->policy, o->id);
    s->free_ids[s->n_free++] = o->id;
    o->id = TRACE_NONE;
    s->used -= units_of(s->t, object);
    uint32_t parent = s->t->objects[object].parent;
    if (parent != TRACE_NONE) s->objects[parent].n_children--;
    s->result.n_evicted++;
}

static struct tsri_policy_item item_of(const struct sim *s, uint32_t object)
{
    uint32_t parent = s->t->objects[object].parent;
    return (struct tsri_policy_item){.hash = hash_of(object),
                                     .units = units_of(s->t, object),
                                     .n_tokens = s->t->objects[object].n_tokens,
                                     .parent = parent == TRACE_NONE ? TSRI_POLICY_NONE
                                                                    : s->objects[parent].id};
}

static bool make_room(struct sim *s, uint32_t object)
{
    const struct tsri_policy_ops *ops = s->policy->ops;
    struct tsri_policy_item item = item_of(s, object);
    if (item.units > s->capacity) return false;
    while (s->used + item.units > s->capacity) {
        uint32_t id = ops->victim(s->policy, may_go, s);
        if (id == TSRI_POLICY_NONE) return false;
        leave(s, s->by_id[id]);
    }
    s->used += item.units;
    return true;
}

static void number(struct sim *s, uint32_t object)
{
    s->objects[object].id = s->free_ids[--s->n_free];
    s->by_id[s->objects[object].id] = object;
}

static void enter(struct sim *s, uint32_t object)
{
    struct tsri_policy_item item = item_of(s, object);
    uint32_t parent = s->t->objects[object].parent;
    if (parent != TRACE_NONE) s->objects[parent].n_children++;
    s->policy->ops->insert(s->policy, s->objects[object].id, &item);
    s->result.units_stored += item.units;
}

/* What the request finds is in use from here on; returns how many pieces are missing. */
static uint32_t ask(struct sim *s, const uint32_t *refs, uint32_t n)
{
    uint32_t n_ids = 0, n_missing = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct state *o = &s->objects[refs[i]];
        uint32_t n_tokens = s->t->objects[refs[i]].n_tokens;
        s->result.tokens_asked += n_tokens;
        if (o->id == TRACE_NONE || (s->t->chained && n_missing)) {
            s->missing[n_missing++] = refs[i];
            continue;
        }
        s->result.tokens_reused += n_tokens;
        o->used = s->request + 1;
        s->ids[n_ids++] = o->id;
    }
    for (uint32_t i = 0; s->t->chained && i < n_ids / 2; i++) {
        uint32_t id = s->ids[i];
        s->ids[i] = s->ids[n_ids - 1 - i];
        s->ids[n_ids - 1 - i] = id;
    }
    s->policy->ops->touch(s->policy, s->ids, n_ids);
    return n_missing;
}

static void refresh(struct sim *s, uint32_t leaf)
{
    const struct tsri_policy_ops *ops = s->policy->ops;
    uint32_t n = 0;
    for (uint32_t object = leaf; object != TRACE_NONE; object = s->t->objects[object].parent)
        s->ids[n++] = s->objects[object].id;
    (ops->refresh ? ops->refresh : ops->touch)(s->policy, s->ids, n);
}

static void store(struct sim *s, uint32_t n_missing)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_missing; i++) {
        uint32_t object = s->missing[i];
        if (!s->t->chained) {
            /* One store each. */
            if (s->objects[object].id != TRACE_NONE || !make_room(s, object)) continue;
            number(s, object);
            enter(s, object);
            continue;
        }
        if (!make_room(s, object)) break;
        n++;
    }
    /* One store for all blocks: they appear together. */
    for (uint32_t i = 0; i < n; i++) {
        number(s, s->missing[i]);
        enter(s, s->missing[i]);
    }
    if (n) refresh(s, s->missing[n - 1]);
}

struct sim_result sim_run(const struct trace *t, const struct tsri_policy_ops *ops,
                          uint64_t capacity)
{
    struct sim s = {.t = t, .capacity = capacity};
    uint32_t ids_max = (uint32_t)(capacity < t->n_objects ? capacity : t->n_objects);
    uint32_t longest = longest_request(t);
    struct tsri_policy_env env = {.ids_max = ids_max, .capacity = capacity};
    if (ops->open(&s.policy, &env) != 0) {
        fprintf(stderr, "cache_sim: %s does not open\n", ops->name);
        exit(1);
    }
    s.objects = take(t->n_objects, sizeof s.objects[0]);
    s.by_id = take(ids_max, sizeof s.by_id[0]);
    s.free_ids = take(ids_max, sizeof s.free_ids[0]);
    s.ids = take(longest, sizeof s.ids[0]);
    s.missing = take(longest, sizeof s.missing[0]);
    for (uint32_t i = 0; i < t->n_objects; i++)
        s.objects[i].id = TRACE_NONE;
    while (s.n_free < ids_max) {
        s.free_ids[s.n_free] = ids_max - 1 - s.n_free;
        s.n_free++;
    }
    for (; s.request < t->n_requests; s.request++) {
        uint32_t first = t->starts[s.request];
        store(&s, ask(&s, t->refs + first, t->starts[s.request + 1] - first));
    }
    s.policy->ops->close(s.policy);
    free(s.objects);
    free(s.by_id);
    free(s.free_ids);
    free(s.ids);
    free(s.missing);
    return s.result;
}

/* ---- belady ---- */

/* Objects by when they are needed next, the latest on top; notes that have become wrong are thrown
 * away when they come to the top. */
struct note {
    uint32_t next, object;
};

struct future {
    const struct trace *t;
    uint32_t *next_ref; /* of each reference: the next request that has the object */
    uint32_t *next;     /* of each object in the cache; TRACE_NONE - 1: never */
    uint8_t *in;
    struct note *heap;
    uint32_t n_heap;
    uint64_t capacity, used;
};

/* With equal times the block that is deeper in its chain goes first: objects are numbered so that a
 * parent comes before its children. */
static bool goes_before(struct note a, struct note b)
{
    return a.next != b.next ? a.next > b.next : a.object > b.object;
}

static void heap_push(struct future *f, struct note note)
{
    uint32_t i = f->n_heap++;
    for (; i && goes_before(note, f->heap[(i - 1) / 2]); i = (i - 1) / 2)
        f->heap[i] = f->heap[(i - 1) / 2];
    f->heap[i] = note;
}

static struct note heap_pop(struct future *f)
{
    struct note top = f->heap[0], last = f->heap[--f->n_heap];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= f->n_heap) break;
        if (child + 1 < f->n_heap && goes_before(f->heap[child + 1], f->heap[child])) child++;
        if (!goes_before(f->heap[child], last)) break;
        f->heap[i] = f->heap[child];
        i = child;
    }
    f->heap[i] = last;
    return top;
}

#define NEVER (TRACE_NONE - 1)

static void look_ahead(struct future *f)
{
    uint32_t *last = take(f->t->n_objects, sizeof last[0]);
    for (uint32_t i = 0; i < f->t->n_objects; i++)
        last[i] = NEVER;
    for (uint32_t r = f->t->n_requests; r-- > 0;) {
        for (uint32_t i = f->t->starts[r]; i < f->t->starts[r + 1]; i++)
            f->next_ref[i] = last[f->t->refs[i]];
        for (uint32_t i = f->t->starts[r]; i < f->t->starts[r + 1]; i++)
            last[f->t->refs[i]] = r;
    }
    free(last);
}

/* Lets go what is needed last until there is room; false when the newcomer itself is that. */
static bool belady_room(struct future *f, struct note newcomer)
{
    uint32_t units = units_of(f->t, newcomer.object);
    if (newcomer.next == NEVER || units > f->capacity) return false;
    while (f->used + units > f->capacity) {
        if (f->n_heap == 0) return false;
        struct note top = f->heap[0];
        if (!f->in[top.object] || f->next[top.object] != top.next) {
            heap_pop(f);
            continue;
        }
        if (goes_before(newcomer, top)) return false;
        heap_pop(f);
        f->in[top.object] = 0;
        f->used -= units_of(f->t, top.object);
    }
    return true;
}

static void belady_request(struct future *f, uint32_t r, struct sim_result *result)
{
    const struct trace *t = f->t;
    bool broken = false;
    for (uint32_t i = t->starts[r]; i < t->starts[r + 1]; i++) {
        uint32_t object = t->refs[i];
        result->tokens_asked += t->objects[object].n_tokens;
        if (!f->in[object]) broken = true;
        if (f->in[object] && (!t->chained || !broken)) {
            result->tokens_reused += t->objects[object].n_tokens;
            f->next[object] = f->next_ref[i];
            heap_push(f, (struct note){f->next_ref[i], object});
        }
    }
    for (uint32_t i = t->starts[r]; i < t->starts[r + 1]; i++) {
        struct note newcomer = {f->next_ref[i], t->refs[i]};
        if (f->in[newcomer.object]) continue;
        if (!belady_room(f, newcomer)) {
            if (t->chained) break;
            continue;
        }
        f->in[newcomer.object] = 1;
        f->next[newcomer.object] = newcomer.next;
        f->used += units_of(t, newcomer.object);
        result->units_stored += units_of(t, newcomer.object);
        heap_push(f, newcomer);
    }
}

struct sim_result sim_belady(const struct trace *t, uint64_t capacity)
{
    struct sim_result result = {0};
    struct future f = {.t = t, .capacity = capacity};
    f.next_ref = take(t->n_refs, sizeof f.next_ref[0]);
    f.next = take(t->n_objects, sizeof f.next[0]);
    f.in = take(t->n_objects, 1);
    f.heap = take((size_t)t->n_refs * 2, sizeof f.heap[0]);
    look_ahead(&f);
    for (uint32_t r = 0; r < t->n_requests; r++)
        belady_request(&f, r, &result);
    free(f.next_ref);
    free(f.next);
    free(f.in);
    free(f.heap);
    return result;
}
