/* texts.c - entries of a cache that has the text of a store and not its KV: `tessera inspect` looks
 * prompts up in one. They are made below the API with the keys and digests they were stored with,
 * so they are found just as in the cache that owns the store. */
#include "cache/core.h"

#include <tessera/tier.h>

/* Under lock. It is held while the text is read: the cache has no other user. */
static int add(struct tsr_space *space, const struct tsr_entry_head *h, tsri_read_text_fn read,
               void *arg, uint64_t *handle)
{
    struct tsr_cache *c = space->cache;
    uint32_t at;
    int err = tsri_room_take(c, &space->shape, h->n_tokens, h->extra_bytes, &at);
    if (err) return err;
    struct tsri_meta *meta =
        (struct tsri_meta *)(void *)(c->arena.region.data + (size_t)at * TSRI_ARENA_UNIT);
    err = tsri_entry_can_alloc(c) ? read(arg, tsri_meta_tokens(meta), tsri_meta_extra(meta))
                                  : tsri_fail(TSR_EFULL, "no room for one more text");
    if (err) {
        tsri_room_give(c, at);
        return err;
    }
    memcpy(&meta->digest, h->digest, sizeof meta->digest);
    meta->base = h->base;
    meta->freq_set = h->freq_set;
    uint32_t id = tsri_entry_alloc(c);
    struct tsri_entry *e = &c->entries[id];
    struct tsri_key key;
    memcpy(&key, &h->key, sizeof key);
    atomic_store(&e->key_lo, key.lo);
    atomic_store(&e->key_hi, key.hi);
    e->meta = at;
    e->n_tokens = h->n_tokens;
    e->space = space->id;
    e->kind = (uint8_t)h->kind;
    e->extra_bytes = h->extra_bytes;
    tsri_entry_publish(c, id, TSRI_ID_NONE);
    *handle = tsri_handle(id, tsri_word_gen(atomic_load(&e->word)));
    return 0;
}

int tsri_texts_add(struct tsr_space *space, const struct tsr_entry_head *head,
                   tsri_read_text_fn read, void *arg, uint64_t *handle)
{
    pthread_mutex_lock(&space->cache->lock);
    int err = add(space, head, read, arg, handle);
    pthread_mutex_unlock(&space->cache->lock);
    return err;
}

size_t tsri_texts_bytes(uint32_t n_tokens, uint32_t n_pages, uint32_t extra_bytes)
{
    return tsri_meta_bytes(n_tokens, n_pages, extra_bytes);
}

void tsri_texts_space(struct tsr_space *space, const uint8_t fingerprint[16], uint32_t block_tokens)
{
    memcpy(space->fingerprint, fingerprint, sizeof space->fingerprint);
    if (block_tokens) space->block_tokens = block_tokens;
}
