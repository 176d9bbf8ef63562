/* chunks.c - the chunks of a prompt as lookups and stores see them: the blocks of its prefix chain,
 * then its segments. A walk lives on its user's stack (about 40 KiB), allocates nothing and
 * computes digests only as far as somebody goes. */
#include "find/find.h"

static int check_segments(const struct tsr_prompt *p)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < p->n_segments; i++) {
        const struct tsr_range *r = &p->segments[i];
        if (r->n_tokens == 0) return tsri_fail(TSR_EINVAL, "segment %u is empty", i);
        if (r->offset < end)
            return tsri_fail(TSR_EINVAL,
                             "segment %u begins at token %u, before the previous one ends", i,
                             r->offset);
        end = (uint64_t)r->offset + r->n_tokens;
        if (end > p->n_tokens)
            return tsri_fail(TSR_EINVAL, "segment %u ends at token %llu, the prompt has %u", i,
                             (unsigned long long)end, p->n_tokens);
    }
    return 0;
}

static int find_segments(struct tsri_walk *w, const struct tsr_space *space)
{
    const struct tsr_prompt *p = w->prompt;
    uint32_t max = tsri_min_u32(space->cache->options.segments_max, TSRI_SEGMENTS_MAX);
    if (p->segments || p->n_segments) {
        if (!p->segments || p->n_segments > max)
            return tsri_fail(TSR_EINVAL, "%u segments (NULL or more than segments_max %u)",
                             p->n_segments, max);
        w->segments = p->segments;
        w->n_segments = p->n_segments;
        return check_segments(p);
    }
    if (!space->separators)
        return tsri_fail(TSR_EINVAL, "segments requested, but no segments or separators given");
    int n = tsri_split(space->separators, p->tokens, p->n_tokens, w->ranges, max);
    if (n < 0) {
        tsri_stats_add(space->cache->stats, TSRI_M_prompts_malformed, 1);
        if (!tsri_separators_seen(space->separators, p->tokens, p->n_tokens))
            tsri_stats_add(space->cache->stats, TSRI_M_separators_unseen, 1);
        return n;
    }
    w->segments = w->ranges;
    w->n_segments = (uint32_t)n - 1; /* the last range is the question */
    return 0;
}

static void find_context(struct tsri_walk *w, uint32_t flags)
{
    const struct tsr_prompt *p = w->prompt;
    bool given = p->n_context && flags & ~(uint32_t)TSR_PROMPT_PREFIX;
    if (given) tsri_digest_context(w->hash, p->context, p->n_context, &w->context);
    w->has_context = given;
    if (!(flags & TSR_PROMPT_CONTEXT) || w->n_segments == 0) return;
    struct tsr_range first = w->segments[0];
    w->has_system = true;
    /* The digest of a context is made of tokens, which do not tell two images apart: behind a
     * system prompt with media only pure segments are found. */
    if (given || (w->has_media && tsri_extra_has_media(p->extra, p->n_extra, first))) return;
    w->has_context = true;
    tsri_digest_context(w->hash, p->tokens + first.offset, first.n_tokens, &w->context);
}

int tsri_walk_init(struct tsri_walk *w, const struct tsr_space *space,
                   const struct tsr_prompt *prompt)
{
    const struct tsr_cache *c = space->cache;
    /* Field by field: zeroing the 40 KiB of buffers would cost more than a short lookup. */
    w->prompt = prompt;
    w->hash = c->hash;
    w->block_tokens = space->block_tokens;
    w->n_blocks = w->block = w->n_segments = w->segment = 0;
    w->has_context = w->has_system = w->blended = false;
    if (w->block_tokens == 0)
        return tsri_fail(TSR_ENOENT, "the space is known only from a tier: open it first");
    if (!prompt->tokens || prompt->n_tokens == 0) return tsri_fail(TSR_EINVAL, "prompt: no tokens");
    if (prompt->n_tokens > INT32_MAX)
        return tsri_fail(TSR_ERANGE, "prompt: %u tokens", prompt->n_tokens);
    if (prompt->n_context > INT32_MAX || (prompt->n_context && !prompt->context))
        return tsri_fail(TSR_EINVAL, "prompt: context of %u tokens", prompt->n_context);
    int e = tsri_extra_check(prompt->extra, prompt->n_extra, prompt->n_tokens);
    if (e) return e;
    uint32_t flags = prompt->flags ? prompt->flags : TSR_PROMPT_PREFIX;
    if (flags & ~63u) return tsri_fail(TSR_EINVAL, "prompt: unknown flags %#x", flags);

    w->has_media = false;
    for (uint32_t i = 0; i < prompt->n_extra; i++)
        w->has_media |= prompt->extra[i].kind == TSR_EXTRA_MEDIA;
    /* What every chunk carries: an empty range overlaps no media. */
    w->common_bytes = (uint32_t)tsri_extra_encode(prompt->extra, prompt->n_extra,
                                                  (struct tsr_range){0, 0}, w->common);
    w->common_hash = tsri_extra_hash(w->common, w->common_bytes);
    if (flags & TSR_PROMPT_PREFIX) {
        w->n_blocks = tsri_block_count(prompt->n_tokens, w->block_tokens, c->options.save_partial);
        tsri_digest_root(w->hash, &w->chain);
    }
    if (flags & TSR_PROMPT_BLENDED) {
        if (!prompt->recipe || !prompt->recipe_bytes)
            return tsri_fail(TSR_EINVAL, "prompt: blended entries need a recipe");
        w->blended = true;
        tsri_digest_recipe(w->hash, prompt->recipe, prompt->recipe_bytes, &w->recipe);
    }
    if (flags & (TSR_PROMPT_SEGMENTS | TSR_PROMPT_BLENDED)) e = find_segments(w, space);
    if (!e) find_context(w, flags);
    return e;
}

bool tsri_walk_block(struct tsri_walk *w, struct tsri_chunk *out)
{
    if (w->block == w->n_blocks) return false;
    uint32_t at = w->block * w->block_tokens;
    const struct tsr_prompt *p = w->prompt;
    out->range = (struct tsr_range){at, tsri_min_u32(w->block_tokens, p->n_tokens - at)};
    out->kind = TSR_KIND_PREFIX;
    out->system = false;
    out->tokens_hash = tsri_tokens_hash(p->tokens + at, out->range.n_tokens);
    out->digest = w->chain;
    if (w->has_media) {
        out->extra = w->block_extra;
        out->extra_bytes =
            (uint32_t)tsri_extra_encode(p->extra, p->n_extra, out->range, w->block_extra);
        out->extra_hash = tsri_extra_hash(out->extra, out->extra_bytes);
    } else {
        out->extra = w->common;
        out->extra_bytes = w->common_bytes;
        out->extra_hash = w->common_hash;
    }
    w->block++;
    return true;
}

void tsri_walk_passed(struct tsri_walk *w, const struct tsri_chunk *block)
{
    if (w->block == w->n_blocks) return; /* nobody asks for the digest of the last */
    tsri_digest_next(w->hash, &w->chain, w->prompt->tokens + block->range.offset,
                     block->range.n_tokens, block->extra, block->extra_bytes, &w->chain);
}

bool tsri_walk_segment(struct tsri_walk *w, struct tsri_chunk *out)
{
    const struct tsr_prompt *p = w->prompt;
    while (w->segment < w->n_segments) {
        bool first = w->segment == 0;
        struct tsr_range r = w->segments[w->segment++];
        /* The same tokens may stand for another image: such a segment is not found by its tokens.
         */
        if (w->has_media && tsri_extra_has_media(p->extra, p->n_extra, r)) continue;
        out->range = r;
        out->kind = TSR_KIND_SEGMENT;
        out->system = first && w->has_system;
        out->tokens_hash = tsri_tokens_hash(p->tokens + r.offset, r.n_tokens);
        out->extra = w->common;
        out->extra_bytes = w->common_bytes;
        out->extra_hash = w->common_hash;
        return true;
    }
    return false;
}

struct tsri_key tsri_chunk_key(const struct tsr_space *space, const struct tsri_chunk *chunk,
                               const struct tsri_digest *digest)
{
    struct tsri_key_parts parts = {.kind = chunk->kind,
                                   .n_tokens = chunk->range.n_tokens,
                                   .digest = *digest,
                                   .extra = chunk->extra_hash,
                                   .tokens = chunk->tokens_hash};
    memcpy(parts.space, space->fingerprint, sizeof parts.space);
    struct tsri_key key = tsri_key_make(&parts);
    key.lo &= space->cache->key_mask;
    key.hi &= space->cache->key_mask;
    return key;
}
