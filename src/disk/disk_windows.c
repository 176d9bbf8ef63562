/* disk_windows.c - what lets the text of an entry be found at any offset before it is read: the
 * hashes of its windows and shingles (chunk/window.c), kept beside the index and in the checkpoint:
 * 8 bytes for every 32 tokens, and 4 for every 12. They follow from tokens and extra, which an
 * entry has for life: they are learnt when it is put or read, and of an entry that open finds by
 * walking, as far as its first page goes. They are hints: who has none is found by its key
 * alone. */
#include "disk/disk.h"

static bool is_bulk(const struct tsri_disk_index *x, const uint64_t *words)
{
    const uint8_t *at = (const uint8_t *)words;
    return x->words.data && at >= x->words.data && at < x->words.data + x->words.bytes;
}

void tsri_disk_windows_free(const struct tsri_disk_index *x, struct tsri_disk_slot *s)
{
    if (!is_bulk(x, s->words)) tsri_free(s->words);
    s->words = NULL;
    s->n_windows = 0;
    s->shingled = false;
}

/* How many shingles an entry of so many tokens has, of which so many windows are known. */
static uint32_t n_shingles(uint32_t n_tokens, uint32_t n_windows)
{
    bool all = n_windows == n_tokens / TSRI_WINDOW;
    return tsri_n_shingles(all ? n_tokens : n_windows * TSRI_WINDOW);
}

uint32_t tsri_disk_n_words(uint32_t n_tokens, uint32_t n_windows, bool shingled)
{
    return n_windows + (shingled ? (n_shingles(n_tokens, n_windows) + 1) / 2 : 0);
}

/* Whether the entry is held and less is known of it than n windows and their shingles; the lock is
 * held. */
static bool is_new(const struct tsri_disk *d, const struct tsr_entry_head *head, uint32_t n,
                   uint32_t *slot)
{
    *slot = tsri_disk_index_find(&d->index, &head->key);
    if (*slot == TSRI_NO_SLOT) return false;
    const struct tsri_disk_slot *s = tsri_disk_index_at(&d->index, *slot);
    return s->n_windows < n || (s->n_windows == n && !s->shingled);
}

void tsri_disk_learn(struct tsri_disk *d, const struct tsr_entry_head *head, const uint32_t *tokens,
                     uint32_t n_tokens, const uint8_t *extra)
{
    uint32_t n = n_tokens / TSRI_WINDOW, slot;
    uint32_t n_words = tsri_disk_n_words(head->n_tokens, n, true);
    /* Of one so short that it has no window all tokens are known, or nothing is. */
    if (n_words == 0 || (n == 0 && n_tokens < head->n_tokens) || head->kind == TSR_KIND_BLENDED ||
        tsri_extra_holds_media(extra, head->extra_bytes))
        return;
    if (n == head->n_tokens / TSRI_WINDOW && n_tokens < head->n_tokens) {
        /* The last tokens, behind the last window, are not on the page: leave that window out, and
         * it is as with any entry of which the beginning is known. */
        if (--n == 0) return;
        n_words = tsri_disk_n_words(head->n_tokens, n, true);
    }
    pthread_mutex_lock(&d->lock);
    bool wanted = is_new(d, head, n, &slot);
    pthread_mutex_unlock(&d->lock);
    uint64_t *words = wanted ? tsri_alloc(n_words, sizeof words[0]) : NULL;
    if (!words) return;
    uint64_t seed = tsri_window_seed(head->space, tsri_extra_hash(extra, head->extra_bytes));
    tsri_window_hashes(seed, tokens, n, words);
    tsri_shingle_hashes(seed, tokens, n_shingles(head->n_tokens, n),
                        (uint32_t *)(void *)(words + n));
    pthread_mutex_lock(&d->lock);
    wanted = is_new(d, head, n, &slot);
    if (wanted) {
        struct tsri_disk_slot *s = tsri_disk_index_at(&d->index, slot);
        d->n_changes += s->words != NULL; /* more is known: the checkpoint shall tell */
        tsri_disk_windows_free(&d->index, s);
        s->words = words;
        s->n_windows = n;
        s->shingled = true;
    }
    pthread_mutex_unlock(&d->lock);
    if (!wanted) tsri_free(words);
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

/* The slot of an entry that is held, whose words are known; the lock is held. */
static const struct tsri_disk_slot *slot_of(const struct tsri_disk *d,
                                            const struct tsr_tier_ref *ref)
{
    const struct tsri_disk_slot *s = NULL;
    if (ref->loc && ref->loc <= d->index.n_slots)
        s = tsri_disk_index_at(&d->index, (uint32_t)ref->loc - 1);
    bool held = s && s->segment && memcmp(&s->head.key, &ref->key, sizeof ref->key) == 0;
    return held && s->words ? s : NULL;
}

int tsri_disk_windows(struct tsr_tier *tier, const struct tsr_tier_ref *ref, uint64_t *out,
                      uint32_t max)
{
    struct tsri_disk *d = (struct tsri_disk *)tier;
    pthread_mutex_lock(&d->lock);
    const struct tsri_disk_slot *s = slot_of(d, ref);
    uint32_t n = s ? tsri_min_u32(s->n_windows, max) : 0;
    if (n) memcpy(out, s->words, n * sizeof out[0]);
    pthread_mutex_unlock(&d->lock);
    return (int)n;
}

int tsri_disk_shingles(struct tsr_tier *tier, const struct tsr_tier_ref *ref, uint32_t *out,
                       uint32_t max)
{
    struct tsri_disk *d = (struct tsri_disk *)tier;
    pthread_mutex_lock(&d->lock);
    const struct tsri_disk_slot *s = slot_of(d, ref);
    uint32_t n = 0;
    if (s && s->shingled) n = tsri_min_u32(n_shingles(s->head.n_tokens, s->n_windows), max);
    if (n) memcpy(out, s->words + s->n_windows, n * sizeof out[0]);
    pthread_mutex_unlock(&d->lock);
    return (int)n;
}
