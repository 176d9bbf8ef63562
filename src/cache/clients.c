/* clients.c - who asks, and the leases they hold. A lease is a pin in the name of a request of a
 * client: the entry stays in place until the request is released or the client closed. Each client
 * has its own lock and a bounded stock of lease records, so one client can neither block nor starve
 * another. */
#include "cache/clients.h"
#include "cache/backend.h"
#include "cache/manager.h"
#include "served/served.h"

#define BUCKETS 1024u

struct tsri_lease {
    uint64_t request_id;
    struct tsri_lease *next;      /* of its request, or of the free ones */
    struct tsri_lease *next_head; /* of the bucket; used by the first lease of a request */
    uint32_t id;
};

struct tsr_client {
    struct tsr_cache *cache;
    pthread_mutex_t lock;
    struct tsri_lease *buckets[BUCKETS];
    struct tsri_lease *free;
    struct tsri_region region;
    struct tsri_lease *records;
    uint32_t n_fresh, max;
    uint32_t n_used;     /* leases that requests hold */
    uint32_t n_reserved; /* and those that lookups under way may add */
    struct tsri_holder holder;
    struct tsri_seat *seat; /* a server's client; then no leases are here */
    uint64_t seed;          /* nobody chooses ids that all hang in one bucket */
    uint32_t n_out; /* records that are not free: of leases, and of old ones on their way back */
};

int tsri_client_open(struct tsr_client **out, struct tsr_cache *c)
{
    struct tsr_client *client = tsri_alloc(1, sizeof *client);
    if (!client) return TSR_ENOMEM;
    client->cache = c;
    client->seed = tsri_now_ns() ^ (uint64_t)(uintptr_t)client << 20;
    int e = c->backend->client_open(&client->seat, c);
    client->max = client->seat ? 0 : c->options.lease_entries_max;
    /* Twice, because a lookup takes new leases before it lets the old ones go. */
    if (e == 0 && client->max)
        e = tsri_region_init(&client->region, (size_t)client->max * 2 * sizeof(struct tsri_lease));
    if (e == 0) e = tsri_holder_init(&client->holder, c, client->max);
    if (e) goto out;
    client->records = (struct tsri_lease *)(void *)client->region.data;
    pthread_mutex_lock(&c->lock);
    bool room = c->n_clients < c->options.clients_max;
    c->n_clients += room;
    pthread_mutex_unlock(&c->lock);
    if (!room) {
        e = tsri_fail(TSR_EAGAIN, "%u clients are open, the limit (clients_max)",
                      c->options.clients_max);
        goto out;
    }
    pthread_mutex_init(&client->lock, NULL);
    *out = client;
    return 0;
out:
    tsri_holder_fini(&client->holder);
    tsri_seat_close(client->seat);
    tsri_region_fini(&client->region);
    tsri_free(client);
    return e;
}

struct tsr_cache *tsri_client_cache(const struct tsr_client *client)
{
    return client->cache;
}

struct tsri_seat *tsri_client_seat(const struct tsr_client *client)
{
    return client->seat;
}

struct tsri_holder *tsri_client_holder(struct tsr_client *client)
{
    return &client->holder;
}

/* The place where the first lease of a request hangs, or where it would. */
static struct tsri_lease **head_of(struct tsr_client *client, uint64_t request_id)
{
    uint64_t h = (request_id ^ client->seed) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 32) * 0xD6E8FEB86659FD93u;
    struct tsri_lease **at = &client->buckets[h >> 54];
    while (*at && (*at)->request_id != request_id)
        at = &(*at)->next_head;
    return at;
}

#define UNHOLDS 64u /* under one lock of what all clients hold */

/* Under lock: at most `max` leases out of the list of a request, which hangs at *at. */
static struct tsri_lease *take_some(struct tsr_client *client, struct tsri_lease **at, uint32_t max)
{
    struct tsri_lease *list = *at, *last = NULL, *rest = list, *next_head = list->next_head;
    uint32_t ids[UNHOLDS], n = 0;
    for (; rest && max > 0; max--, rest = rest->next) {
        last = rest;
        ids[n++] = rest->id;
        client->n_used--;
        if (n < UNHOLDS && rest->next && max > 1) continue;
        tsri_unhold(&client->holder, ids, n);
        n = 0;
    }
    last->next = NULL;
    *at = rest ? rest : next_head;
    if (rest) rest->next_head = next_head;
    return list;
}

struct tsri_lease *tsri_client_detach(struct tsr_client *client, uint64_t request_id)
{
    pthread_mutex_lock(&client->lock);
    struct tsri_lease **at = head_of(client, request_id), *list = NULL;
    if (*at) list = take_some(client, at, UINT32_MAX);
    pthread_mutex_unlock(&client->lock);
    return list;
}

int tsri_client_let_go(struct tsr_client *client, struct tsri_lease *list)
{
    if (!list) return 0;
    int n = 0;
    struct tsri_lease *last = list;
    for (struct tsri_lease *l = list; l; last = l, l = l->next, n++)
        tsri_unpin(client->cache, l->id);
    pthread_mutex_lock(&client->lock);
    last->next = client->free;
    client->free = list;
    client->n_out -= (uint32_t)n;
    pthread_mutex_unlock(&client->lock);
    tsri_stats_gauge_add(client->cache->stats, TSRI_M_leased_entries, -n);
    return n;
}

int tsri_client_release(struct tsr_client *client, uint64_t request_id)
{
    return tsri_client_let_go(client, tsri_client_detach(client, request_id));
}

static uint32_t room(const struct tsr_client *client)
{
    uint32_t leases = client->max - client->n_used, records = client->max * 2 - client->n_out;
    return tsri_min_u32(leases, records) - client->n_reserved;
}

uint32_t tsri_client_reserve(struct tsr_client *client, uint64_t n)
{
    pthread_mutex_lock(&client->lock);
    uint32_t granted = room(client);
    if (granted > n) granted = (uint32_t)n;
    client->n_reserved += granted;
    pthread_mutex_unlock(&client->lock);
    return granted;
}

void tsri_client_unreserve(struct tsr_client *client, uint32_t n)
{
    pthread_mutex_lock(&client->lock);
    TSR_ASSERT(client->n_reserved >= n);
    client->n_reserved -= n;
    pthread_mutex_unlock(&client->lock);
}

/* There is one: room() counts them. */
static struct tsri_lease *record(struct tsr_client *client)
{
    struct tsri_lease *l = client->free;
    if (l)
        client->free = l->next;
    else
        l = &client->records[client->n_fresh++];
    client->n_out++;
    return l;
}

void tsri_client_lease_reserved(struct tsr_client *client, uint64_t request_id, const uint32_t *ids,
                                uint32_t n)
{
    pthread_mutex_lock(&client->lock);
    TSR_ASSERT(client->n_reserved >= n);
    client->n_reserved -= n;
    client->n_used += n;
    struct tsri_lease **at = head_of(client, request_id);
    for (uint32_t i = 0; i < n; i++) {
        struct tsri_lease *l = record(client);
        *l = (struct tsri_lease){.request_id = request_id, .id = ids[i]};
        if (*at) {
            l->next = (*at)->next;
            (*at)->next = l;
        } else {
            *at = l;
        }
    }
    pthread_mutex_unlock(&client->lock);
    tsri_stats_gauge_add(client->cache->stats, TSRI_M_leased_entries, n);
}

bool tsri_client_lease(struct tsr_client *client, uint64_t request_id, const uint32_t *ids,
                       uint32_t n)
{
    uint32_t granted = tsri_client_reserve(client, n);
    if (granted == n && tsri_hold(&client->holder, ids, n)) {
        tsri_client_lease_reserved(client, request_id, ids, n);
        return true;
    }
    tsri_client_unreserve(client, granted);
    tsri_stats_add(client->cache->stats, TSRI_M_lease_refused, n);
    return false;
}

int tsri_client_release_some(struct tsr_client *client, uint32_t max)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < BUCKETS && n < max;) {
        pthread_mutex_lock(&client->lock);
        struct tsri_lease **at = &client->buckets[b], *list = NULL;
        if (*at) list = take_some(client, at, max - n);
        pthread_mutex_unlock(&client->lock);
        n += (uint32_t)tsri_client_let_go(client, list);
        b += !list;
    }
    return (int)n;
}

int tsri_client_release_all(struct tsr_client *client)
{
    return tsri_client_release_some(client, UINT32_MAX);
}

void tsri_client_close(struct tsr_client *client)
{
    struct tsr_cache *c = client->cache;
    if (!tsri_forked(c)) {
        tsri_client_release_all(client);
        TSR_ASSERT(client->holder.pages == 0);
        pthread_mutex_lock(&c->lock);
        c->n_clients--;
        pthread_mutex_unlock(&c->lock);
        tsri_seat_close(client->seat);
        pthread_mutex_destroy(&client->lock);
    }
    tsri_holder_fini(&client->holder);
    tsri_region_fini(&client->region);
    tsri_free(client);
}
