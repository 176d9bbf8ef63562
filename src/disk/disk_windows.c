/* disk_windows.c - what lets the text of an entry be found at any offset before it is read: the
 * hashes of its windows (chunk/window.c), kept beside the index and in the checkpoint, 8 bytes for
 * every 32 tokens. They follow from tokens and extra, which an entry has for life: they are learnt
 * when it is put or read, and of an entry that open finds by walking, as far as its first page
 * goes. They are hints: who has none is found by its key alone. */
#include "disk/disk.h"

static bool is_bulk(const struct tsri_disk_index *x, const uint64_t *windows)
{
    const uint8_t *at = (const uint8_t *)windows;
    return x->windows.data && at >= x->windows.data && at < x->windows.data + x->windows.bytes;
}

void tsri_disk_windows_free(const struct tsri_disk_index *x, struct tsri_disk_slot *s)
{
    if (!is_bulk(x, s->windows)) tsri_free(s->windows);
    s->windows = NULL;
    s->n_windows = 0;
}

/* Whether the entry is held and fewer than n of its windows are known; the lock is held. */
static bool is_new(const struct tsri_disk *d, const struct tsr_entry_head *head, uint32_t n,
                   uint32_t *slot)
{
    *slot = tsri_disk_index_find(&d->index, &head->key);
    return *slot != TSRI_NO_SLOT && tsri_disk_index_at(&d->index, *slot)->n_windows < n;
}

void tsri_disk_learn(struct tsri_disk *d, const struct tsr_entry_head *head, const uint32_t *tokens,
                     uint32_t n_tokens, const uint8_t *extra)
{
    uint32_t n = n_tokens / TSRI_WINDOW, slot;
    if (n == 0 || head->kind == TSR_KIND_BLENDED ||
        tsri_extra_holds_media(extra, head->extra_bytes))
        return;
    pthread_mutex_lock(&d->lock);
    bool wanted = is_new(d, head, n, &slot);
    pthread_mutex_unlock(&d->lock);
    uint64_t *windows = wanted ? tsri_alloc(n, sizeof windows[0]) : NULL;
    if (!windows) return;
    struct tsri_key extra_hash = tsri_extra_hash(extra, head->extra_bytes);
    tsri_window_hashes(tsri_window_seed(head->space, extra_hash), tokens, n, windows);
    pthread_mutex_lock(&d->lock);
    wanted = is_new(d, head, n, &slot);
    if (wanted) {
        struct tsri_disk_slot *s = tsri_disk_index_at(&d->index, slot);
        d->n_changes += s->n_windows > 0; /* more is known: the checkpoint shall tell */
        tsri_disk_windows_free(&d->index, s);
        s->windows = windows;
        s->n_windows = n;
    }
    pthread_mutex_unlock(&d->lock);
    if (!wanted) tsri_free(windows);
}

void tsri_disk_learn_page(struct tsri_disk *d, const struct tsr_entry_head *head,
                          const uint8_t *page)
{
    struct tsri_layout l;
    tsri_layout_init(&l, head);
    if (head->extra_bytes && l.extra_at + head->extra_bytes > TSRI_PAGE_BYTES) return;
    uint32_t n = (uint32_t)(TSRI_PAGE_BYTES - l.tokens_at) / sizeof(uint32_t);
    tsri_disk_learn(d, head, (const uint32_t *)(const void *)(page + l.tokens_at),
                    tsri_min_u32(n, head->n_tokens), head->extra_bytes ? page + l.extra_at : NULL);
}

int tsri_disk_windows(struct tsr_tier *tier, const struct tsr_tier_ref *ref, uint64_t *out,
                      uint32_t max)
{
    struct tsri_disk *d = (struct tsri_disk *)tier;
    pthread_mutex_lock(&d->lock);
    uint32_t n = 0;
    const struct tsri_disk_slot *s = NULL;
    if (ref->loc && ref->loc <= d->index.n_slots)
        s = tsri_disk_index_at(&d->index, (uint32_t)ref->loc - 1);
    if (s && s->segment && memcmp(&s->head.key, &ref->key, sizeof ref->key) == 0) {
        n = tsri_min_u32(s->n_windows, max);
        if (n) memcpy(out, s->windows, n * sizeof out[0]);
    }
    pthread_mutex_unlock(&d->lock);
    return (int)n;
}
