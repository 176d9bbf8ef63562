/* pre_computed.c - the calls of a blend server, over lookups, puts and deliveries, which already
 * ask a server where one has the cache. */
#include "deliver/deliver.h"

#include <tessera/deliver.h>

struct tsr_kv_cache {
    struct tsr_client *client;
    struct tsr_space *space;
    struct tsr_delivery *delivery;
};

static int no_handle(void)
{
    return tsri_fail(TSR_EINVAL, "kv cache: a handle is NULL");
}

int tsr_kv_cache_register(struct tsr_kv_cache **out, struct tsr_client *client,
                          const struct tsr_delivery_desc *desc)
{
    if (!out) return no_handle();
    *out = NULL;
    if (!client || !desc) return no_handle();
    struct tsr_kv_cache *kv = tsri_alloc(1, sizeof *kv);
    if (!kv) return TSR_ENOMEM;
    int e = tsr_delivery_open(&kv->delivery, client, desc);
    if (e) {
        tsri_free(kv);
        return e;
    }
    kv->client = client;
    kv->space = desc->space;
    *out = kv;
    return 0;
}

void tsr_kv_cache_unregister(struct tsr_kv_cache *kv)
{
    if (!kv) return;
    tsr_delivery_close(kv->delivery);
    tsri_free(kv);
}

int tsr_kv_cache_lookup(struct tsr_kv_cache *kv, const struct tsr_prompt *prompt,
                        struct tsr_lookup_desc *lookup)
{
    if (!kv || !prompt || !lookup) return no_handle();
    if (prompt->size < sizeof prompt->size || lookup->size < sizeof *lookup)
        return tsri_fail(TSR_EINVAL, "lookup: size is not set");
    if (lookup->request_id == 0)
        return tsri_fail(TSR_EINVAL, "lookup: request_id must not be 0, because hits are leased");
    struct tsr_prompt p = {0};
    memcpy(&p, prompt, prompt->size < sizeof p ? prompt->size : sizeof p);
    p.size = sizeof p;
    p.flags |= TSR_PROMPT_ANY;
    if (p.n_segments || tsri_space_is_split(kv->space)) p.flags |= TSR_PROMPT_SEGMENTS;
    lookup->spaces = &kv->space;
    lookup->n_spaces = 1;
    int n = tsr_client_lookup(kv->client, &p, lookup);
    if (n > 0) tsri_cache_bring_up(kv->space, &p);
    return n;
}

int tsr_kv_cache_retrieve(struct tsr_kv_cache *kv, struct tsr_delivery_range *ranges, uint32_t n,
                          uint32_t freq_set)
{
    if (!kv) return no_handle();
    int started = tsr_delivery_start(kv->delivery, ranges, n, freq_set);
    if (started <= 0) return started;
    int e = tsr_delivery_finish(kv->delivery);
    if (e == 0) return started;
    for (uint32_t i = 0; i < n; i++) /* the server went away meanwhile, or the device failed */
        if (ranges[i].result == 0) ranges[i].result = e;
    return e == TSR_ENOENT ? 0 : e;
}

static int keep(struct tsr_kv_cache *kv, const struct tsr_store_desc *store, const int64_t *slots,
                uint32_t kind)
{
    struct tsr_store_desc s = {0};
    struct tsr_put *put;
    memcpy(&s, store, store->size < sizeof s ? store->size : sizeof s);
    s.size = sizeof s;
    s.space = kv->space;
    s.kind = kind;
    s.view = (struct tsr_view){0};
    int e = tsr_put_open(&put, kv->client, &s);
    if (e) return e;
    e = tsr_delivery_collect(kv->delivery, put, slots, s.n_tokens);
    if (e == 0) return tsr_put_commit(put);
    tsr_put_abort(put);
    return e;
}

static int check_store(const struct tsr_kv_cache *kv, const struct tsr_store_desc *store,
                       const int64_t *slots, uint32_t kind)
{
    if (!kv || !store || !slots) return no_handle();
    if (store->size < offsetof(struct tsr_store_desc, view))
        return tsri_fail(TSR_EINVAL, "store: size is not set");
    if (store->kind && store->kind != kind)
        return tsri_fail(TSR_EINVAL, "store: kind %u needs another call", store->kind);
    return 0;
}

int tsr_kv_cache_store(struct tsr_kv_cache *kv, const struct tsr_store_desc *store,
                       const int64_t *slots)
{
    int e = check_store(kv, store, slots, TSR_KIND_SEGMENT);
    return e ? e : keep(kv, store, slots, TSR_KIND_SEGMENT);
}

int tsr_kv_cache_store_final(struct tsr_kv_cache *kv, const struct tsr_store_desc *store,
                             const int64_t *slots)
{
    int e = check_store(kv, store, slots, TSR_KIND_BLENDED);
    if (e == 0 && (!store->recipe || store->recipe_bytes == 0))
        e = tsri_fail(TSR_EINVAL, "store_final: recipe is missing");
    return e ? e : keep(kv, store, slots, TSR_KIND_BLENDED);
}
