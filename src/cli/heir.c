/* heir.c - see heir.h. Opening the store is the test whether it is free: its lock goes with the owner's
 * process, however that ends, and of several heirs one gets it. */
#include "cli/heir.h"

#include <tessera/server.h>

#include <pthread.h>

#define LOOK_NS ((uint64_t)500000000)
#define ANSWER_MS 200

struct tsri_heir {
    struct tsr_cache *client;
    struct tsr_config *config;
    struct tsr_cache *cache; /* of the heir's thread, then of close: NULL until the store is ours */
    struct tsr_server *server;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* of: */
    pthread_cond_t wake;
    bool stops, serves;
};

/* An idle connection does not notice its end: so it is used. */
static bool is_served(const struct tsri_heir *h)
{
    struct tsr_stats stats = {.size = sizeof stats};
    (void)!tsr_cache_stats(h->client, &stats);
    return tsr_cache_connected(h->client, ANSWER_MS) == 0;
}

/* True: the store is ours. */
static bool take_over(struct tsri_heir *h)
{
    struct tsr_cache *cache;
    struct tsr_server *server;
    /* TSR_EBUSY: the owner lives and is only slow, or another heir was first. */
    if (tsr_cache_open(&cache, h->config) < 0) return false;
    if (tsr_server_open(&server, cache, h->config) < 0) {
        tsr_cache_close(cache);
        return false;
    }
    h->cache = cache;
    h->server = server;
    tsri_cli_note("the process that had the store open has ended; it is served from here now");
    return true;
}

static void *watch(void *arg)
{
    struct tsri_heir *h = arg;
    pthread_mutex_lock(&h->lock);
    while (!h->stops && !h->serves) {
        (void)tsri_cond_wait(&h->wake, &h->lock, tsri_now_ns() + LOOK_NS);
        if (h->stops) break;
        pthread_mutex_unlock(&h->lock);
        bool ours = !is_served(h) && take_over(h);
        pthread_mutex_lock(&h->lock);
        h->serves = ours;
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

static int make_config(struct tsri_heir *h, const struct tsri_cli *cli, const char *store,
                       const char *socket)
{
    static const char *const same[] = {"device", "device_number"};
    int e = tsr_config_open(&h->config);
    if (!e) e = tsr_config_load_env(h->config);
    if (!e) e = tsr_config_load_args(h->config, cli->n_options, cli->options) < 0 ? TSR_ECONFIG : 0;
    for (size_t i = 0; i < TSRI_COUNT(same) && !e; i++) {
        const char *value = tsr_config_get(cli->config, same[i]);
        if (value && *value) e = tsr_config_set(h->config, same[i], value);
    }
    if (!e) e = tsr_config_set(h->config, "disk_path", store);
    if (!e) e = tsr_config_set(h->config, "owner", "embedded");
    if (!e) e = tsr_config_set(h->config, "server_socket", socket);
    return e;
}

int tsri_heir_open(struct tsri_heir **out, struct tsr_cache *cache, const struct tsri_cli *cli,
                   const char *store, const char *socket)
{
    struct tsri_heir *h = tsri_alloc(1, sizeof *h);
    *out = NULL;
    if (!h) return TSR_ENOMEM;
    h->client = cache;
    pthread_mutex_init(&h->lock, NULL);
    tsri_cond_init(&h->wake);
    int e = make_config(h, cli, store, socket);
    if (!e) {
        int failed = tsri_thread_start(&h->thread, "tessera-heir", watch, h);
        if (failed) e = tsri_fail(TSR_ENOMEM, "cannot start a thread: %s", strerror(failed));
        h->has_thread = !failed;
    }
    if (e) {
        tsri_heir_close(h);
        return e;
    }
    *out = h;
    return 0;
}

void tsri_heir_stop(struct tsri_heir *h)
{
    if (!h || !h->has_thread) return;
    pthread_mutex_lock(&h->lock);
    h->stops = true;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    h->has_thread = false;
}

void tsri_heir_close(struct tsri_heir *h)
{
    if (!h) return;
    tsri_heir_stop(h);
    if (h->cache && tsr_cache_flush(h->cache) < 0)
        tsri_cli_note("not everything was stored: %s", tsr_errmsg());
    tsr_server_close(h->server);
    tsr_cache_close(h->cache);
    tsr_config_close(h->config);
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
    tsri_free(h);
}
