/* redis_nodes.c - which servers there are. One that stands alone, one of several with replicas, or
 * a cluster: the first that answers tells. A survey asks when the tier opens, when a server stops
 * answering, refuses writes or sends somebody elsewhere; it runs on a thread of its own, so that no
 * request waits for a server that is down. */
#include "redis/redis.h"

#include <stdio.h>

#define SURVEY_MS_MIN 100u /* between two surveys */
#define NO_NODE UINT16_MAX

int tsri_redis_node(struct tsri_redis *r, const char *address)
{
    uint32_t n = atomic_load(&r->n_nodes);
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(r->nodes[i].address, address) == 0) return (int)i;
    pthread_mutex_lock(&r->lock);
    n = atomic_load(&r->n_nodes);
    uint32_t i = 0;
    while (i < n && strcmp(r->nodes[i].address, address) != 0)
        i++;
    if (i == n && n < TSRI_REDIS_NODES_MAX) {
        struct tsri_redis_node *node = &r->nodes[n];
        snprintf(node->address, sizeof node->address, "%s", address);
        tsri_breaker_init(&node->reach, 3, SURVEY_MS_MIN, "down");
        tsri_breaker_name(&node->reach, "redis %s", address);
        atomic_store(&r->n_nodes, n + 1);
    }
    pthread_mutex_unlock(&r->lock);
    return i < TSRI_REDIS_NODES_MAX ? (int)i : -1;
}

void tsri_redis_set_slot(struct tsri_redis *r, uint32_t slot, uint32_t node)
{
    TSR_ASSERT(slot < TSRI_REDIS_SLOTS && node < TSRI_REDIS_NODES_MAX);
    atomic_store_explicit(&r->slots[slot], (uint16_t)node, memory_order_relaxed);
}

static void set_all_slots(struct tsri_redis *r, uint32_t node)
{
    for (uint32_t slot = 0; slot < TSRI_REDIS_SLOTS; slot++)
        tsri_redis_set_slot(r, slot, node);
}

int tsri_redis_nodes_init(struct tsri_redis *r)
{
    r->nodes = tsri_alloc(TSRI_REDIS_NODES_MAX, sizeof r->nodes[0]);
    if (!r->nodes) return TSR_ENOMEM;
    char address[TSRI_REDIS_ADDRESS_BYTES];
    int err = 0;
    for (uint32_t i = 0; tsri_redis_address(r->addresses, i, address, &err); i++) {
        if (err) return err;
        if (tsri_redis_node(r, address) < 0)
            return tsri_fail(TSR_ECONFIG, "redis_address: more than %u servers",
                             TSRI_REDIS_NODES_MAX);
    }
    set_all_slots(r, 0);
    return 0;
}

void tsri_redis_nodes_fini(struct tsri_redis *r)
{
    uint32_t n = atomic_load(&r->n_nodes);
    for (uint32_t i = 0; r->nodes && i < n; i++)
        tsri_breaker_fini(&r->nodes[i].reach);
    tsri_free(r->nodes);
}

/* ---- what servers tell ---- */

static bool is_number(const redisReply *x, long long min, long long max)
{
    return x->type == REDIS_REPLY_INTEGER && x->integer >= min && x->integer <= max;
}

/* [host, port, ..] as an address; false when it is none. */
static bool read_address(const redisReply *x, const char *from, char out[TSRI_REDIS_ADDRESS_BYTES])
{
    if (x->type != REDIS_REPLY_ARRAY || x->elements < 2 || !is_number(x->element[1], 1, 65535))
        return false;
    const redisReply *host = x->element[0];
    bool same = host->type == REDIS_REPLY_NIL ||
                (host->type == REDIS_REPLY_STRING && (host->len == 0 || host->str[0] == '?'));
    if (!same && (host->type != REDIS_REPLY_STRING || host->len >= TSRI_REDIS_ADDRESS_BYTES / 2))
        return false;
    char text[TSRI_REDIS_ADDRESS_BYTES];
    snprintf(text, sizeof text, "MOVED 0 %s:%lld", same ? "" : host->str, x->element[1]->integer);
    uint32_t slot;
    return tsri_redis_redirect(text, from, &slot, out);
}

int tsri_redis_take_slots(struct tsri_redis *r, const redisReply *reply, const char *from)
{
    if (!reply || reply->type != REDIS_REPLY_ARRAY) return -1;
    int n_slots = 0;
    for (size_t i = 0; i < reply->elements; i++) {
        const redisReply *x = reply->element[i];
        char address[TSRI_REDIS_ADDRESS_BYTES];
        if (x->type != REDIS_REPLY_ARRAY || x->elements < 3 ||
            !is_number(x->element[0], 0, TSRI_REDIS_SLOTS - 1) ||
            !is_number(x->element[1], x->element[0]->integer, TSRI_REDIS_SLOTS - 1) ||
            !read_address(x->element[2], from, address))
            continue;
        int node = tsri_redis_node(r, address);
        if (node < 0) continue;
        for (long long s = x->element[0]->integer; s <= x->element[1]->integer; s++, n_slots++)
            tsri_redis_set_slot(r, (uint32_t)s, (uint32_t)node);
    }
    return n_slots;
}

static struct tsri_resp *reach(struct tsri_redis *r, uint32_t node)
{
    char why[160];
    struct tsri_resp *c;
    uint64_t deadline = tsri_now_ns() + (uint64_t)r->timeout_ms * 1000000;
    int err = tsri_resp_open(&c, r->nodes[node].address, &r->login, deadline, why, sizeof why);
    if (err) {
        if (r->nodes[node].in_use) tsri_breaker_failed(&r->nodes[node].reach, true, why);
        return NULL;
    }
    tsri_breaker_worked(&r->nodes[node].reach);
    return c;
}

/* The role of a server that stands alone: 1 master, 0 replica, whose master it tells; -1 unknown.
 */
static int ask_role(struct tsri_redis *r, struct tsri_resp *c, const char *from,
                    char master[TSRI_REDIS_ADDRESS_BYTES])
{
    uint64_t deadline = tsri_now_ns() + (uint64_t)r->timeout_ms * 1000000;
    redisReply *reply = tsri_resp_ask(c, deadline, 1, (const char *[]){"ROLE"});
    int role = -1;
    master[0] = '\0';
    if (reply && reply->type == REDIS_REPLY_ERROR) role = 1; /* may not be asked: believe it */
    if (reply && reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 &&
        reply->element[0]->type == REDIS_REPLY_STRING) {
        role = strcmp(reply->element[0]->str, "master") == 0;
        if (!role && reply->elements > 2) {
            redisReply pair = *reply;
            pair.element++;
            pair.elements--;
            if (!read_address(&pair, from, master)) master[0] = '\0';
        }
    }
    freeReplyObject(reply);
    return role;
}

/* ---- the survey ---- */

enum kind { DEAD, REPLICA, MASTER, CLUSTER };

static enum kind ask_node(struct tsri_redis *r, uint32_t node)
{
    struct tsri_resp *c = reach(r, node);
    if (!c) return DEAD;
    const char *from = r->nodes[node].address;
    uint64_t deadline = tsri_now_ns() + (uint64_t)r->timeout_ms * 1000000;
    redisReply *reply = tsri_resp_ask(c, deadline, 2, (const char *[]){"CLUSTER", "SLOTS"});
    enum kind kind = DEAD;
    if (reply && tsri_redis_take_slots(r, reply, from) >= 0) kind = CLUSTER;
    bool alone = reply && reply->type == REDIS_REPLY_ERROR;
    freeReplyObject(reply);
    if (alone) {
        char master[TSRI_REDIS_ADDRESS_BYTES];
        int role = ask_role(r, c, from, master);
        kind = role < 0 ? DEAD : role ? MASTER : REPLICA;
        /* Its master becomes known, and is asked in its turn. */
        if (role == 0 && master[0]) (void)tsri_redis_node(r, master);
    }
    tsri_resp_close(c);
    return kind;
}

/* Nodes that serve a slot now. */
static void mark_in_use(struct tsri_redis *r)
{
    bool used[TSRI_REDIS_NODES_MAX] = {false};
    for (uint32_t slot = 0; slot < TSRI_REDIS_SLOTS; slot++)
        used[atomic_load_explicit(&r->slots[slot], memory_order_relaxed)] = true;
    for (uint32_t i = 0; i < TSRI_REDIS_NODES_MAX; i++)
        r->nodes[i].in_use = used[i];
}

int tsri_redis_survey(struct tsri_redis *r)
{
    atomic_store(&r->survey_wanted, false);
    uint16_t replica = NO_NODE;
    enum kind kind = DEAD;
    for (uint32_t i = 0; i < atomic_load(&r->n_nodes) && kind < MASTER; i++) {
        kind = ask_node(r, i);
        if (kind == REPLICA && replica == NO_NODE) replica = (uint16_t)i;
        if (kind == MASTER) set_all_slots(r, i);
    }
    /* No master: a replica still answers reads, and the breaker of writes tells the rest. */
    if (kind < MASTER && replica != NO_NODE) set_all_slots(r, replica);
    atomic_store(&r->cluster, kind == CLUSTER);
    mark_in_use(r);
    for (uint32_t i = 0; kind == CLUSTER && i < atomic_load(&r->n_nodes); i++)
        if (r->nodes[i].in_use && !tsri_breaker_closed(&r->nodes[i].reach))
            tsri_resp_close(reach(r, i));
    return kind == DEAD && replica == NO_NODE ? TSR_EIO : 0;
}

void tsri_redis_want_survey(struct tsri_redis *r)
{
    if (atomic_exchange(&r->survey_wanted, true)) return;
    pthread_mutex_lock(&r->upkeep_lock);
    pthread_cond_signal(&r->upkeep_more);
    pthread_mutex_unlock(&r->upkeep_lock);
}

/* ---- the thread ---- */

static bool all_in_use_are_up(struct tsri_redis *r)
{
    uint32_t n = atomic_load(&r->n_nodes);
    for (uint32_t i = 0; i < n; i++)
        if (r->nodes[i].in_use && !tsri_breaker_closed(&r->nodes[i].reach)) return false;
    return true;
}

static void *upkeep(void *arg)
{
    struct tsri_redis *r = arg;
    uint64_t distance_ms = SURVEY_MS_MIN;
    pthread_mutex_lock(&r->upkeep_lock);
    while (!r->closing) {
        bool up = all_in_use_are_up(r);
        if (up && !atomic_load(&r->survey_wanted)) {
            distance_ms = SURVEY_MS_MIN;
            pthread_cond_wait(&r->upkeep_more, &r->upkeep_lock);
            continue;
        }
        pthread_mutex_unlock(&r->upkeep_lock);
        int err = tsri_redis_survey(r);
        pthread_mutex_lock(&r->upkeep_lock);
        /* Up to 64 times as rarely while nobody answers. */
        distance_ms = err && distance_ms < 64 * SURVEY_MS_MIN ? distance_ms * 2
                      : err                                   ? distance_ms
                                                              : SURVEY_MS_MIN;
        uint64_t until = tsri_now_ns() + distance_ms * 1000000;
        while (!r->closing && tsri_now_ns() < until)
            (void)tsri_cond_wait(&r->upkeep_more, &r->upkeep_lock, until);
    }
    pthread_mutex_unlock(&r->upkeep_lock);
    return NULL;
}

int tsri_redis_upkeep_start(struct tsri_redis *r)
{
    int e = tsri_thread_start(&r->upkeep, "tessera-redis", upkeep, r);
    if (e) return tsri_fail(TSR_ENOMEM, "redis: cannot start a thread: %s", strerror(e));
    r->has_upkeep = true;
    return 0;
}

void tsri_redis_upkeep_stop(struct tsri_redis *r)
{
    if (!r->has_upkeep) return;
    pthread_mutex_lock(&r->upkeep_lock);
    r->closing = true;
    pthread_cond_broadcast(&r->upkeep_more);
    pthread_mutex_unlock(&r->upkeep_lock);
    pthread_join(r->upkeep, NULL);
    r->has_upkeep = false;
}
