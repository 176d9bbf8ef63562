/* test_served_list.c - entries in the order of eviction, and the keys of what was evicted, through a
 * server: as in the process that has the cache. */
#include "served/served.h"

#include "support/lying_server.h"
#include "support/served_kit.h"
#include <tessera/admin.h>
#include "support/test.h"

#define N 6

TEST(a_client_lists_and_evicts_as_the_owner_does)
{
    struct server_kit s;
    struct kit k;
    struct tsr_listed own[N], seen[N];
    struct tsr_key keys[N];
    struct tsr_range range;
    server_open(&s, (const char *const[]){"policy", "lru", NULL});
    served_kit_open(&k, s.path, NULL);
    CHECK_INT(tsr_cache_list(k.cache, NULL, 0), 0);
    uint32_t *tokens = kit_tokens(6, 64 * N);
    for (uint32_t i = 0; i < N; i++)
        CHECK_INT(kit_store_segment(&k, tokens + i * 64, 64), 64);
    struct tsr_prompt first = kit_segment_prompt(tokens, 64, &range);
    CHECK_INT(tsr_space_touch(k.space, &first), 1);
    CHECK_INT(tsr_space_pin(k.space, &first), 1);
    CHECK_INT(tsr_cache_list(s.k.cache, own, N), N);
    CHECK_INT(tsr_cache_list(k.cache, NULL, 0), N);
    CHECK_INT(tsr_cache_list(k.cache, seen, 2), N); /* how many there are, not how many fitted */
    CHECK_INT(tsr_cache_list(k.cache, seen, N), N);
    CHECK(memcmp(own, seen, sizeof own) == 0);
    CHECK(seen[N - 1].pins == 1 && seen[0].n_tokens == 64 && seen[0].kind == TSR_KIND_SEGMENT);
    /* At most as many as there is room for keys; what is pinned stays. */
    CHECK_INT(tsr_cache_evict_keys(k.cache, SIZE_MAX, keys, 2), 2);
    CHECK_INT(tsr_cache_evict_keys(k.cache, SIZE_MAX, keys + 2, N - 2), N - 3);
    for (uint32_t i = 0; i < N - 1; i++)
        CHECK(memcmp(&keys[i], &own[i].key, sizeof keys[i]) == 0);
    CHECK_INT(tsr_cache_list(s.k.cache, own, N), 1);
    CHECK_INT(tsr_space_unpin(k.space, &first), 1);
    CHECK_INT(tsr_cache_evict_keys(k.cache, SIZE_MAX, keys, 0), 0);
    CHECK_INT(tsr_cache_evict(k.cache, SIZE_MAX), 1);
    free(tokens);
    kit_close(&k);
    CHECK(server_end(&s));
}

/* What the next replies say. */
struct tale {
    int32_t status;
    uint32_t n, next;
};

static void tell(struct lying_server *s, struct tsri_reply *r)
{
    static const struct tsri_wire_entry entries[4];
    static const struct tsr_key keys[4];
    const struct tale *tale = s->arg;
    r->status = tale->status;
    r->n = tale->n;
    r->next = tale->next;
    if (r->type == TSRI_WIRE_ORDER) r->entries = entries;
    if (r->type == TSRI_WIRE_EVICT_KEYS) r->keys = keys;
}

TEST(a_server_that_is_too_old_or_lies_is_no_danger)
{
    struct tale tale = {.status = TSR_EUNSUP};
    struct lying_server s = {.answer = tell, .arg = &tale};
    struct tsr_listed seen[3];
    struct tsr_key keys[3];
    struct tsr_config *config;
    struct tsr_cache *cache;
    lying_server_open(&s);
    CHECK_INT(tsr_config_open(&config), 0);
    CHECK_INT(tsr_config_set(config, "owner", "daemon"), 0);
    CHECK_INT(tsr_config_set(config, "server_socket", s.path), 0);
    CHECK_INT(tsr_config_set(config, "server_patience", "60000"), 0);
    CHECK_INT(tsr_cache_open(&cache, config), 0);
    tsr_config_close(config);
    CHECK_INT(tsr_cache_list(cache, seen, 3), TSR_EUNSUP);
    CHECK_INT(tsr_cache_evict_keys(cache, 1, keys, 3), TSR_EUNSUP);
    /* More rows than were asked for: those that fit are taken. */
    tale = (struct tale){.status = 4, .n = 4, .next = TSRI_WIRE_LIST_END};
    CHECK_INT(tsr_cache_list(cache, seen, 3), 4);
    CHECK_INT(tsr_cache_evict_keys(cache, 1, keys, 3), 3);
    /* A list that never gets on ends. */
    tale = (struct tale){.status = 9, .n = 0, .next = 0};
    CHECK_INT(tsr_cache_list(cache, seen, 3), 0);
    tale = (struct tale){.status = 9, .n = 1, .next = 7};
    CHECK_INT(tsr_cache_list(cache, seen, 3), 2);
    tsr_cache_close(cache);
    lying_server_close(&s);
}

int main(void)
{
    RUN(a_client_lists_and_evicts_as_the_owner_does);
    RUN(a_server_that_is_too_old_or_lies_is_no_danger);
    return test_end();
}
