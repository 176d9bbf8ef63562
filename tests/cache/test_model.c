/* Sixteen threads do everything at once to one small cache: store, look up, load, lease, pin,
 * evict, clear, prefetch, freeze, synchronously and not, over none, one or two tiers, good and bad
 * ones. The model is the text itself: KV is a function of what its tokens have seen, so every
 * loaded byte is checked against it, and what a lease holds must be there. In the end the books
 * must balance: the cache is valid, the counters add up, and cleared it has all of its pages back.
 */
#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/test.h"

#include <pthread.h>
#include <time.h>

enum { N_THREADS = 16, N_CHAINS = 12, N_SEGMENTS = 24, CHAIN_MAX = 160, ROWS_MAX = 64 };

#define MUST(x) \
    do { \
        if (!(x)) { \
            printf("    %s:%d: MUST(%s): %s\n", __FILE__, __LINE__, #x, tsr_errmsg()); \
            fflush(stdout); \
            abort(); \
        } \
    } while (0)

struct plan {
    const char *const *options;
    uint64_t key_mask; /* 0: all bits */
    uint32_t n_tiers;
    uint64_t tier_bytes; /* of each, 0: no limit */
    uint32_t fail_every; /* calls of the tiers; 0: none fails */
};

struct model {
    struct kit k;
    struct tsr_space *other; /* of the same shape */
    struct tsr_client *shared;
    const struct plan *plan;
    struct fake_tier_plan tiers[2];
    uint32_t *chains[N_CHAINS], *segments[N_SEGMENTS], *system, *primer;
    uint32_t lengths[N_SEGMENTS];
    atomic_bool stop;
    _Atomic uint64_t n_lookups, n_loads, n_loaded_tokens, n_stored_tokens;
};

struct worker {
    struct model *m;
    struct kit k; /* the cache, its client, one of the two spaces */
    pthread_t thread;
    uint64_t rand;
    uint64_t first_request, next_request; /* of its own, also where it shares the client */
};

static uint32_t draw(struct worker *w, uint32_t below)
{
    return (uint32_t)((test_rand(&w->rand) >> 16) % below);
}

/* ---- prompts ---- */

/* Text made of whole segments of the model, perhaps behind the system prompt; or of one chain. */
struct text {
    uint32_t tokens[CHAIN_MAX + 8 * 64], n;
    struct tsr_range ranges[8];
    struct tsr_prompt prompt;
};

static void add_run(struct text *t, const uint32_t *tokens, uint32_t n)
{
    memcpy(t->tokens + t->n, tokens, n * sizeof tokens[0]);
    t->n += n;
}

static void add_segment(struct text *t, const uint32_t *tokens, uint32_t n)
{
    t->ranges[t->prompt.n_segments++] = (struct tsr_range){t->n, n};
    add_run(t, tokens, n);
}

static void draw_text(struct worker *w, struct text *t)
{
    const struct model *m = w->m;
    t->n = 0;
    t->prompt =
        (struct tsr_prompt){.size = sizeof t->prompt, .tokens = t->tokens, .segments = t->ranges};
    uint32_t kind = draw(w, 4);
    if (kind < 2) {
        t->prompt.flags = TSR_PROMPT_PREFIX;
        add_run(t, m->chains[draw(w, N_CHAINS)], 16 + draw(w, CHAIN_MAX - 16));
    }
    if (kind >= 1) {
        t->prompt.flags |= TSR_PROMPT_SEGMENTS;
        if (kind == 3) {
            t->prompt.flags |= TSR_PROMPT_CONTEXT;
            add_segment(t, m->system, 12);
            if (draw(w, 2)) { /* which is not in the prompt */
                t->prompt.context = m->primer;
                t->prompt.n_context = 12;
            }
        }
        for (uint32_t n = 1 + draw(w, 5); n > 0; n--) {
            uint32_t s = draw(w, N_SEGMENTS);
            add_segment(t, m->segments[s], m->lengths[s]);
        }
    }
    t->prompt.n_tokens = t->n;
    if (!t->prompt.n_segments) t->prompt.segments = NULL;
}

/* ---- what a thread does ---- */

static struct tsr_store_desc draw_store(struct worker *w)
{
    const struct model *m = w->m;
    struct tsr_store_desc s = {.size = sizeof s, .space = w->k.space};
    if (draw(w, 2)) {
        s.kind = TSR_KIND_PREFIX;
        s.tokens = m->chains[draw(w, N_CHAINS)];
        s.n_tokens = 16 + draw(w, CHAIN_MAX - 16);
        if (draw(w, 4) == 0) s.from = s.n_tokens / 32 * 16;
    } else {
        uint32_t i = draw(w, N_SEGMENTS);
        s.kind = TSR_KIND_SEGMENT;
        s.tokens = m->segments[i];
        s.n_tokens = m->lengths[i];
        if (draw(w, 3) == 0) {
            s.context = draw(w, 2) ? m->system : m->primer;
            s.n_context = 12;
        }
    }
    return s;
}

static void count_store(struct worker *w, const struct tsr_store_desc *s, int n)
{
    MUST(n >= 0 || n == TSR_EFULL || n == TSR_EAGAIN || n == TSR_EFROZEN ||
         (n == TSR_ENOENT && s->from));
    MUST(n <= (int)(s->n_tokens - s->from));
    if (n > 0) atomic_fetch_add(&w->m->n_stored_tokens, (uint64_t)n);
}

static void do_store(struct worker *w)
{
    struct tsr_store_desc s = draw_store(w);
    count_store(w, &s, kit_store(&w->k, &s));
}

static void do_put(struct worker *w)
{
    struct tsr_store_desc s = draw_store(w);
    struct tsr_put *put;
    int e = tsr_put_open(&put, w->k.client, &s);
    count_store(w, &s, e);
    if (e < 0) return;
    struct tsr_view all = kit_store_view(&s);
    uint32_t n_layers = 2, give_up = draw(w, 6); /* 0, 1: after so many layers */
    for (uint32_t l = 0; l < n_layers && l != give_up; l++) {
        struct tsr_view one = {.data = (uint8_t *)all.data + all.bytes / n_layers * l,
                               .bytes = all.bytes / n_layers};
        MUST(tsr_put_layer(put, l, &one) == 0);
    }
    if (give_up < n_layers)
        tsr_put_abort(put);
    else
        count_store(w, &s, tsr_put_commit(put));
    free(all.data);
}

static void do_store_async(struct worker *w)
{
    struct tsr_store_desc s = draw_store(w);
    s.view = kit_store_view(&s);
    struct tsr_op *op;
    int e = tsr_client_store_start(&op, w->k.client, &s, NULL, NULL);
    MUST(e == 0 || e == TSR_EAGAIN);
    if (e == 0) {
        count_store(w, &s, tsr_op_wait(op, -1));
        tsr_op_close(op);
    }
    free(s.view.data);
}

static void check_rows(const struct text *t, const struct kit_hits *h, int n)
{
    uint32_t at = 0, sum = 0;
    for (uint32_t i = 0; i < h->io.n_matches; i++) {
        const struct tsr_match *m = &h->matches[i];
        MUST(m->prompt_offset >= at && m->n_tokens > 0);
        at = m->prompt_offset + m->n_tokens;
        sum += m->n_tokens;
    }
    MUST(at <= t->n && sum == (uint32_t)n && h->io.n_prefix_tokens <= sum);
}

/* Looks up, perhaps leases, and loads. What a lease holds in host memory must be there. */
static void do_read(struct worker *w)
{
    struct text t;
    struct kit_hits hits;
    draw_text(w, &t);
    uint64_t request = draw(w, 3) ? w->next_request++ : 0;
    int n = kit_lookup(&w->k, &t.prompt, request, &hits);
    MUST(n >= 0);
    atomic_fetch_add(&w->m->n_lookups, 1);
    check_rows(&t, &hits, n);
    for (uint32_t i = 0; i < hits.io.n_matches; i++) {
        int e = kit_load(&w->k, &t.prompt, &hits, i);
        atomic_fetch_add(&w->m->n_loads, 1);
        MUST(e == 0 || !request || !hits.matches[i].verified);
        MUST(e == 0 || w->m->plan->n_tiers || e == TSR_ENOENT);
        if (e == 0) atomic_fetch_add(&w->m->n_loaded_tokens, hits.matches[i].n_tokens);
    }
    if (draw(w, 4)) tsr_client_release(w->k.client, request);
    if (draw(w, 50) == 0)
        for (; w->first_request < w->next_request; w->first_request++)
            tsr_client_release(w->k.client, w->first_request);
}

/* All rows at once, on a thread of the cache. */
static void do_read_async(struct worker *w)
{
    struct text t;
    struct kit_hits hits;
    draw_text(w, &t);
    MUST(kit_lookup(&w->k, &t.prompt, 0, &hits) >= 0);
    atomic_fetch_add(&w->m->n_lookups, 1);
    uint32_t n = hits.io.n_matches;
    if (n == 0 || n > ROWS_MAX) return;
    struct tsr_load_desc loads[ROWS_MAX];
    for (uint32_t i = 0; i < n; i++) {
        const struct tsr_match *m = &hits.matches[i];
        size_t bytes = m->n_tokens * tsr_space_token_bytes(w->k.space);
        loads[i] = (struct tsr_load_desc){.size = sizeof loads[i],
                                          .space = w->k.space,
                                          .match = m,
                                          .prompt = &t.prompt,
                                          .view = {.data = malloc(bytes), .bytes = bytes}};
    }
    struct tsr_op *op;
    int e = tsr_client_load_start(&op, w->k.client, loads, n, NULL, NULL);
    MUST(e == 0 || e == TSR_EAGAIN);
    if (e == 0) {
        MUST(tsr_op_wait_layer(op, draw(w, 2), -1) == 0);
        MUST(tsr_op_wait(op, -1) >= 0);
        tsr_op_close(op);
        atomic_fetch_add(&w->m->n_loads, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct tsr_match *m = loads[i].match;
        if (e == 0 && loads[i].result == 0) {
            MUST(kit_right(w->k.space, kit_match_seen(w->k.space, &t.prompt, m),
                           t.tokens + m->prompt_offset, m->n_tokens, 0, 2, &loads[i].view));
            atomic_fetch_add(&w->m->n_loaded_tokens, m->n_tokens);
        }
        free(loads[i].view.data);
    }
}

static void do_both_spaces(struct worker *w)
{
    struct text t;
    draw_text(w, &t);
    struct tsr_space *spaces[] = {w->m->k.space, w->m->other};
    struct tsr_match matches[ROWS_MAX * 2];
    struct tsr_lookup_desc io = {.size = sizeof io,
                                 .spaces = spaces,
                                 .n_spaces = 2,
                                 .matches = matches,
                                 .matches_max = ROWS_MAX};
    MUST(tsr_client_lookup(w->k.client, &t.prompt, &io) >= 0);
    atomic_fetch_add(&w->m->n_lookups, 1);
    for (uint32_t i = 0; i < io.n_matches * 2; i++)
        MUST(matches[i].prompt_offset == matches[i & ~1u].prompt_offset &&
             matches[i].n_tokens == matches[i & ~1u].n_tokens);
}

static void do_keep(struct worker *w)
{
    struct text t;
    draw_text(w, &t);
    switch (draw(w, 5)) {
    case 0:
        MUST(tsr_space_pin(w->k.space, &t.prompt) >= 0);
        break;
    case 1:
    case 2:
        MUST(tsr_space_unpin(w->k.space, &t.prompt) >= 0);
        break;
    case 3:
        MUST(tsr_space_touch(w->k.space, &t.prompt) >= 0);
        break;
    default:
        MUST(tsr_client_prefetch(w->k.client, w->k.space, &t.prompt) >= 0);
    }
}

static void do_drop(struct worker *w)
{
    struct text t;
    draw_text(w, &t);
    struct tsr_clear_desc clear = {.size = sizeof clear, .tier = (int32_t)draw(w, 5) - 2};
    uint32_t what = draw(w, 40);
    if (what == 0) {
        MUST(tsr_cache_clear(w->k.cache, NULL) >= 0);
    } else if (what == 1) {
        clear.space = w->k.space;
        MUST(tsr_cache_clear(w->k.cache, &clear) >= 0);
    } else if (what < 8) {
        clear.space = w->k.space;
        clear.prompt = &t.prompt;
        MUST(tsr_cache_clear(w->k.cache, &clear) >= 0);
    } else {
        MUST(tsr_cache_evict(w->k.cache, (size_t)draw(w, 64) << 14) >= 0);
    }
}

static void do_watch(struct worker *w)
{
    struct text t;
    struct tsr_event events[16];
    struct tsr_key keys[64];
    int8_t tiers[64];
    char text[256];
    draw_text(w, &t);
    int n = tsr_space_keys(w->k.space, &t.prompt, keys, 64);
    MUST(n >= 0 && n <= 64);
    MUST(tsr_cache_contains(w->k.cache, keys, (uint32_t)n, tiers) <= n);
    MUST(tsr_cache_events(w->k.cache, events, 16) >= 0);
    MUST(tsr_cache_stats_text(w->k.cache, "json", text, sizeof text) > 0);
    struct tsr_stats s = kit_stats(&w->k);
    MUST(s.host_bytes_used <= s.host_bytes && s.tokens_reused <= s.tokens_asked);
    if (draw(w, 30) == 0) {
        tsr_cache_freeze(w->k.cache, 1);
        tsr_cache_freeze(w->k.cache, 0);
    }
    if (draw(w, 10) == 0) {
        int e = tsr_cache_flush(w->k.cache);
        MUST(e == 0 || w->m->plan->fail_every || w->m->plan->tier_bytes);
    }
    struct tsr_space_desc desc = kit_desc();
    tsr_space_close(kit_space(w->k.cache, &desc)); /* the same space, opened once more */
}

static void *work(void *arg)
{
    struct worker *w = arg;
    while (!atomic_load_explicit(&w->m->stop, memory_order_relaxed)) {
        w->k.space = draw(w, 8) ? w->m->k.space : w->m->other;
        uint32_t what = draw(w, 100);
        if (what < 25)
            do_store(w);
        else if (what < 32)
            do_put(w);
        else if (what < 36)
            do_store_async(w);
        else if (what < 70)
            do_read(w);
        else if (what < 76)
            do_read_async(w);
        else if (what < 80)
            do_both_spaces(w);
        else if (what < 88)
            do_keep(w);
        else if (what < 95)
            do_drop(w);
        else
            do_watch(w);
    }
    return NULL;
}

/* ---- a run ---- */

static void model_open(struct model *m, const struct plan *plan)
{
    *m = (struct model){.plan = plan};
    for (uint32_t i = 0; i < 2; i++) {
        fake_tier_plan_init(&m->tiers[i]);
        m->tiers[i].mem.bytes_max = plan->tier_bytes;
    }
    kit_open_tiers(&m->k, plan->options, m->tiers, plan->n_tiers);
    if (plan->key_mask) m->k.cache->key_mask = plan->key_mask;
    struct tsr_space_desc desc = kit_desc();
    desc.rank = 1;
    desc.world = 2;
    m->other = kit_space(m->k.cache, &desc);
    m->shared = kit_client(m->k.cache);
    for (uint32_t i = 0; i < N_CHAINS; i++) {
        m->chains[i] = kit_tokens(i, CHAIN_MAX);
        /* Chains come in threes that part ways after 3 and 6 blocks. */
        memcpy(m->chains[i], m->chains[i / 3 * 3], 48 * (i % 3) * sizeof(uint32_t));
    }
    for (uint32_t i = 0; i < N_SEGMENTS; i++) {
        m->lengths[i] = 1 + i * 61 % 64;
        m->segments[i] = kit_tokens(1000 + i, m->lengths[i]);
    }
    m->system = kit_tokens(2000, 12);
    m->primer = kit_tokens(2001, 12);
}

/* Where keys collide a pin may be out of reach of every prompt: it was made while only a tier had
 * the entry, so by its key, and the block that leads to the entry's own text has gone since. */
static void unpin_by_id(struct tsr_cache *c)
{
    for (uint32_t id = 0; id < c->ids_max; id++) {
        uint64_t gen = tsri_word_gen(atomic_load(&c->entries[id].word));
        while (tsri_cache_unpin_one(c, tsri_handle(id, gen), NULL) > 0) {
        }
    }
}

static void unpin_everything(struct model *m)
{
    struct tsr_space *spaces[] = {m->k.space, m->other};
    struct tsr_range ranges[2];
    uint32_t both[12 + 64];
    for (int s = 0; s < 2; s++) {
        for (uint32_t i = 0; i < N_CHAINS; i++) {
            struct tsr_prompt p = kit_prefix_prompt(m->chains[i], CHAIN_MAX);
            for (uint32_t n = 16; n <= CHAIN_MAX; n += 16)
                for (p.n_tokens = n; tsr_space_unpin(spaces[s], &p) > 0;) {
                }
        }
        for (uint32_t i = 0; i <= N_SEGMENTS; i++) {
            const uint32_t *tokens = i < N_SEGMENTS ? m->segments[i] : m->system;
            uint32_t n = i < N_SEGMENTS ? m->lengths[i] : 12;
            struct tsr_prompt p = kit_segment_prompt(tokens, n, ranges);
            while (tsr_space_unpin(spaces[s], &p) > 0) {
            }
            memcpy(both, m->system, 12 * sizeof both[0]);
            memcpy(both + 12, tokens, n * sizeof both[0]);
            p = kit_segment_prompt(both, 12 + n, ranges);
            p.flags |= TSR_PROMPT_CONTEXT;
            ranges[0] = (struct tsr_range){0, 12};
            ranges[1] = (struct tsr_range){12, n};
            p.n_segments = 2;
            while (tsr_space_unpin(spaces[s], &p) > 0) {
            }
            p.context = m->primer;
            p.n_context = 12;
            while (tsr_space_unpin(spaces[s], &p) > 0) {
            }
        }
    }
}

static void model_end(struct model *m)
{
    unpin_everything(m);
    if (m->plan->key_mask) unpin_by_id(m->k.cache);
    int flushed = tsr_cache_flush(m->k.cache);
    CHECK(flushed == 0 || m->plan->fail_every || m->plan->tier_bytes);
    tsri_work_drain(tsri_ops_work(m->k.cache->ops)); /* prefetches hold pins */
    struct tsr_stats s = kit_stats(&m->k);
    CHECK_INT(s.lookups, m->n_lookups);
    CHECK_INT(s.loads, m->n_loads);
    CHECK_INT(s.load_bytes, m->n_loaded_tokens * tsr_space_token_bytes(m->k.space));
    CHECK_INT(s.store_bytes, m->n_stored_tokens * tsr_space_token_bytes(m->k.space));
    CHECK_INT(s.corrupt, 0);
    if (!m->plan->key_mask) CHECK_INT(s.collisions, 0);
    CHECK(m->n_loaded_tokens > 0 && m->n_stored_tokens > 0);
    tsr_space_close(m->other);
    CHECK(kit_end(&m->k));
    for (uint32_t i = 0; i < 2; i++) {
        if (!m->plan->fail_every) CHECK_INT(m->tiers[i].mem.n_items, 0);
        fake_tier_plan_fini(&m->tiers[i]);
    }
    for (uint32_t i = 0; i < N_CHAINS; i++)
        free(m->chains[i]);
    for (uint32_t i = 0; i < N_SEGMENTS; i++)
        free(m->segments[i]);
    free(m->system);
    free(m->primer);
}

static void pause_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static void run_model(const struct plan *plan)
{
    static struct model m;
    static struct worker workers[N_THREADS];
    model_open(&m, plan);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        struct worker *w = &workers[i];
        *w = (struct worker){.m = &m, .k = m.k, .rand = 0x9E3779B9u * (i + 1)};
        w->first_request = w->next_request = (uint64_t)i << 32 | 1;
        /* Half of them have a client of their own. */
        w->k.client = i < N_THREADS / 2 ? m.shared : kit_client(m.k.cache);
        MUST(pthread_create(&w->thread, NULL, work, w) == 0);
    }
    long ms = getenv("TESSERA_TEST_LONG") ? 20000 : 1200;
    for (long t = 0; t < ms; t += 10) {
        pause_ms(10);
        for (uint32_t i = 0; plan->fail_every && i < plan->n_tiers; i++)
            fake_tier_fail(&m.tiers[i], FAKE_ALL, plan->fail_every, 1, TSR_EIO);
    }
    atomic_store(&m.stop, true);
    for (uint32_t i = 0; i < N_THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    for (uint32_t i = 0; i < plan->n_tiers; i++)
        fake_tier_fail(&m.tiers[i], 0, 0, 0, 0);
    for (uint32_t i = N_THREADS / 2; i < N_THREADS; i++)
        tsr_client_close(workers[i].k.client);
    tsr_client_close(m.shared);
    model_end(&m);
}

TEST(in_host_memory_alone)
{
    run_model(&(struct plan){.options = (const char *const[]){"lease_entries_max", "20", NULL}});
}

TEST(over_a_tier)
{
    run_model(&(struct plan){.n_tiers = 1});
}

TEST(over_two_small_tiers_and_a_short_queue)
{
    run_model(&(struct plan){.options = (const char *const[]){"io_queue_max", "8", NULL},
                             .n_tiers = 2,
                             .tier_bytes = 300000});
}

TEST(over_a_tier_that_takes_what_is_used_twice)
{
    run_model(&(struct plan){.options = (const char *const[]){"attached_admission", "second_touch",
                                                              "hash", "xxh3", NULL},
                             .n_tiers = 2});
}

TEST(over_a_tier_that_fails_now_and_then)
{
    run_model(&(struct plan){.n_tiers = 2, .fail_every = 5});
}

TEST(with_an_index_that_is_always_full)
{
    run_model(&(struct plan){
        .options = (const char *const[]){"entries_max", "48", "events_max", "4", NULL},
        .n_tiers = 1});
}

TEST(with_keys_that_collide)
{
    run_model(&(struct plan){.key_mask = 0x1F});
}

TEST(with_keys_that_collide_over_a_tier)
{
    run_model(&(struct plan){.key_mask = 0x1F, .n_tiers = 1});
}

int main(void)
{
    RUN(in_host_memory_alone);
    RUN(over_a_tier);
    RUN(over_two_small_tiers_and_a_short_queue);
    RUN(over_a_tier_that_takes_what_is_used_twice);
    RUN(over_a_tier_that_fails_now_and_then);
    RUN(with_an_index_that_is_always_full);
    RUN(with_keys_that_collide);
    RUN(with_keys_that_collide_over_a_tier);
    return test_end();
}
