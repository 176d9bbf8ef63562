/* match_kit.c - random documents, edited copies, and the naive search for what they share. */
#include "support/match_kit.h"

#include <stdio.h>
#include <stdlib.h>

static void stop(const char *what)
{
    printf("match_kit: %s\n", what);
    fflush(stdout);
    abort();
}

/* ---- random text ---- */

uint32_t text_random(uint64_t *seed, uint32_t below)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 33) % below);
}

void text_init(struct text *t, uint32_t max)
{
    *t = (struct text){.tokens = malloc((size_t)max * sizeof t->tokens[0]), .max = max};
    if (!t->tokens) stop("no memory");
}

void text_fini(struct text *t)
{
    free(t->tokens);
    *t = (struct text){0};
}

void text_add(struct text *t, const uint32_t *tokens, uint32_t n)
{
    n = tsri_min_u32(n, t->max - t->n);
    if (n) memcpy(t->tokens + t->n, tokens, n * sizeof tokens[0]);
    t->n += n;
}

void text_add_random(struct text *t, uint64_t *seed, uint32_t n, uint32_t vocabulary)
{
    for (uint32_t i = 0; i < n && t->n < t->max; i++)
        t->tokens[t->n++] = text_random(seed, vocabulary);
}

void text_add_edited(struct text *t, uint64_t *seed, const uint32_t *tokens, uint32_t n,
                     uint32_t n_edits, uint32_t vocabulary)
{
    uint32_t at = 0;
    for (uint32_t e = 0; e <= n_edits && at < n; e++) {
        uint32_t left = n - at, keep = e == n_edits ? left : text_random(seed, left + 1);
        keep = tsri_min_u32(keep, e == n_edits ? left : 2 * n / (n_edits + 1) + 1);
        text_add(t, tokens + at, keep);
        at += keep;
        uint32_t few = 1 + text_random(seed, 5), part = text_random(seed, 200) + 1;
        switch (at < n ? text_random(seed, 5) : 5) {
        case 0: /* replaced */
            text_add_random(t, seed, few, vocabulary);
            at += tsri_min_u32(few, n - at);
            break;
        case 1: /* inserted */
            text_add_random(t, seed, few, vocabulary);
            break;
        case 2: /* deleted */
            at += tsri_min_u32(few, n - at);
            break;
        case 3: /* another part of it stands here too */
            text_add(t, tokens + text_random(seed, n - tsri_min_u32(part, n) + 1),
                     tsri_min_u32(part, n));
            break;
        case 4: /* two parts have changed places */
            part = tsri_min_u32(part, (n - at) / 2);
            text_add(t, tokens + at + part, part);
            text_add(t, tokens + at, part);
            at += 2 * part;
            break;
        default:
            break;
        }
    }
}

/* ---- entries ---- */

uint32_t match_entry(struct kit *k, uint64_t seed, const uint32_t *tokens, uint32_t n,
                     uint32_t kind)
{
    uint32_t id = kit_filling(k, seed, n);
    if (id == TSRI_ID_NONE) return id;
    struct tsr_cache *c = k->cache;
    struct tsri_entry *e = &c->entries[id];
    memcpy(tsri_meta_tokens(tsri_meta(c, e)), tokens, n * sizeof tokens[0]);
    e->kind = (uint8_t)kind;
    pthread_mutex_lock(&c->lock);
    tsri_entry_publish(c, id, TSRI_ID_NONE);
    pthread_mutex_unlock(&c->lock);
    return id;
}

void match_churn(struct kit *k, uint32_t i, uint32_t n)
{
    uint32_t *tokens = kit_tokens(i % 11, n);
    uint32_t id = match_entry(k, i, tokens, n, TSR_KIND_SEGMENT);
    free(tokens);
    if (id == TSRI_ID_NONE || i % 3 == 0) return;
    pthread_mutex_lock(&k->cache->lock);
    if (tsri_word_state(atomic_load(&k->cache->entries[id].word)) == TSRI_HOST)
        tsri_entry_drop(k->cache, id, TSR_EVENT_DROPPED);
    pthread_mutex_unlock(&k->cache->lock);
}

void match_begin(struct matching *x, struct kit *k, const uint32_t *tokens, uint32_t n,
                 uint32_t flags)
{
    x->prompt = (struct tsr_prompt){
        .size = sizeof x->prompt, .tokens = tokens, .n_tokens = n, .flags = flags | TSR_PROMPT_ANY};
    if (tsri_walk_init(&x->walk, k->space, &x->prompt) != 0) stop(tsr_errmsg());
    x->memory = malloc(tsri_matcher_bytes(k->cache, n));
    if (!x->memory) stop("no memory");
    tsri_matcher_init(&x->m, k->space, &x->walk, x->memory);
}

void match_end(struct matching *x)
{
    tsri_matcher_fini(&x->m);
    free(x->memory);
}

bool match_run_is_right(const struct kit *k, const struct matching *x, const struct tsri_run *r,
                        bool maximal)
{
    const struct tsr_cache *c = k->cache;
    const uint32_t *p = x->prompt.tokens + r->prompt_offset,
                   *e = tsri_meta_tokens(tsri_meta(c, &c->entries[r->id])) + r->entry_offset;
    uint32_t entry_tokens = c->entries[r->id].n_tokens;
    if ((uint64_t)r->prompt_offset + r->n_tokens > x->prompt.n_tokens ||
        (uint64_t)r->entry_offset + r->n_tokens > entry_tokens)
        return false;
    if (memcmp(p, e, r->n_tokens * sizeof *p) != 0) return false;
    if (!maximal) return true;
    bool begins = r->prompt_offset == 0 || r->entry_offset == 0 || *(p - 1) != *(e - 1);
    bool ends = r->prompt_offset + r->n_tokens == x->prompt.n_tokens ||
                r->entry_offset + r->n_tokens == entry_tokens || p[r->n_tokens] != e[r->n_tokens];
    return begins && ends;
}

/* ---- the naive search ---- */

uint32_t match_naive(const uint32_t *prompt, uint32_t n_prompt, const uint32_t *entry,
                     uint32_t n_entry, uint32_t n_min, struct common *out, uint32_t max)
{
    uint32_t n = 0;
    for (uint32_t d = 0; d < n_prompt + n_entry; d++) { /* diagonals */
        uint32_t p = d < n_entry ? 0 : d - n_entry, e = d < n_entry ? n_entry - d : 0, run = 0;
        for (; p <= n_prompt && e <= n_entry; p++, e++) {
            bool same = p < n_prompt && e < n_entry && prompt[p] == entry[e];
            if (same) {
                run++;
                continue;
            }
            if (run >= n_min && n < max) out[n++] = (struct common){p - run, e - run, run};
            run = 0;
        }
    }
    return n;
}

/* ---- bytes ---- */

static const struct stored *find_stored(struct kit *k, uint32_t id, const struct stored *stored,
                                        uint32_t n, const struct tsr_match *m, const void *kv)
{
    const struct tsri_entry *e = &k->cache->entries[id];
    const uint32_t *tokens = tsri_meta_tokens(tsri_meta(k->cache, e));
    for (uint32_t i = 0; i < n; i++) {
        const struct stored *s = &stored[i];
        if (s->kind != m->kind || s->n != e->n_tokens ||
            memcmp(s->tokens, tokens, s->n * sizeof tokens[0]) != 0)
            continue;
        struct tsr_view view = {.data = (void *)(uintptr_t)kv};
        uint64_t before = kit_seen(s->before, s->tokens, m->entry_offset);
        if (kit_right(k->space, before, s->tokens + m->entry_offset, m->n_tokens, 0,
                      k->space->shape.n_layers, &view))
            return s;
    }
    return NULL;
}

static bool row_is_right(struct kit *k, const struct kit_hits *hits, uint32_t row,
                         const struct tsr_prompt *prompt, const struct stored *stored, uint32_t n)
{
    const struct tsr_match *m = &hits->matches[row];
    size_t bytes = (size_t)m->n_tokens * tsri_shape_token_bytes(&k->space->shape);
    struct tsr_load_desc load = {.size = sizeof load,
                                 .space = k->space,
                                 .match = m,
                                 .prompt = prompt,
                                 .view = {.data = calloc(1, bytes), .bytes = bytes}};
    if (!load.view.data) stop("no memory");
    uint32_t id;
    const struct stored *s = NULL;
    bool loaded = tsr_client_load(k->client, &load, 1) == 1;
    if (loaded && tsri_pin_handle(k->cache, m->entry, &id) == TSRI_HOST) {
        s = find_stored(k, id, stored, n, m, load.view.data);
        tsri_unpin(k->cache, id);
    }
    bool right = s && (uint64_t)m->entry_offset + m->n_tokens <= s->n && m->entry_tokens == s->n &&
                 memcmp(prompt->tokens + m->prompt_offset, s->tokens + m->entry_offset,
                        m->n_tokens * sizeof(uint32_t)) == 0;
    if (!right)
        printf("    row %u: %u tokens at %u, %u of its entry: %s\n", row, m->n_tokens,
               m->prompt_offset, m->entry_offset, loaded ? "wrong" : tsr_strerror(load.result));
    free(load.view.data);
    return right;
}

bool match_rows_are_right(struct kit *k, const struct kit_hits *hits, int n_tokens,
                          const struct tsr_prompt *prompt, const struct stored *stored, uint32_t n)
{
    uint64_t end = 0, sum = 0;
    for (uint32_t row = 0; row < hits->io.n_matches; row++) {
        const struct tsr_match *m = &hits->matches[row];
        if (m->prompt_offset < end) {
            printf("    row %u begins at %u, before the end of the last\n", row, m->prompt_offset);
            return false;
        }
        end = (uint64_t)m->prompt_offset + m->n_tokens;
        sum += m->n_tokens;
        if (!row_is_right(k, hits, row, prompt, stored, n)) return false;
    }
    if (n_tokens < 0 || sum != (uint64_t)n_tokens || end > prompt->n_tokens) {
        printf("    %d tokens found, rows have %llu\n", n_tokens, (unsigned long long)sum);
        return false;
    }
    return true;
}

/* ---- lookups ---- */

void match_reopen(struct kit *k, const char *const *more)
{
    const char *options[32] = {"host_size",   "32M",   "host_page_size", "4K",
                               "windows_max", "65536", "metadata_size",  "16M",
                               "entries_max", "4096"};
    uint32_t n = 10;
    for (; more && *more; more++)
        options[n++] = *more;
    if (k->cache) kit_close(k);
    kit_open(k, options);
}

struct tsr_prompt match_prompt(const struct text *t, uint32_t flags)
{
    return (struct tsr_prompt){.size = sizeof(struct tsr_prompt),
                               .tokens = t->tokens,
                               .n_tokens = t->n,
                               .flags = flags | TSR_PROMPT_ANY};
}

struct stored match_pure(const struct kit *k, const uint32_t *tokens, uint32_t n)
{
    return (struct stored){kit_seed(k->space), tokens, n, TSR_KIND_SEGMENT};
}
