/* blend_kit.h - a tiny model, a cache with one faulty tier below it, and a prompt: a system prompt,
 * documents and a question. Calls that must not fail abort. */
#ifndef TSRI_BLEND_KIT_H
#define TSRI_BLEND_KIT_H

#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/model_kit.h"

#define BLEND_KIT_TOKENS_MAX 1024u
#define BLEND_KIT_SEGMENTS_MAX 16u

struct blend_kit {
    struct model_kit model;
    struct kit cache;
    struct fake_tier_plan tier; /* below */
    struct tsr_profile profile;
    struct tsr_blend *blend;
    uint32_t flags; /* of the blend */
    uint32_t primer[64], n_primer;
    uint32_t prefix_block;         /* tokens; 0: blocks of the cache, of 16 */
    struct tsr_space_desc traffic; /* of plain requests; size 0: none */
    struct tsr_extra extra;        /* of the asks; kind 0: none */
    /* the prompt: */
    uint32_t tokens[BLEND_KIT_TOKENS_MAX];
    struct tsr_range segments[BLEND_KIT_SEGMENTS_MAX];
    uint32_t n_tokens, n_segments;
    bool has_system;
    /* of the last ask: */
    struct tsr_blend_report report;
    float logits[128];
};

/* path: of the tiny model. A cache of 16 MiB, a blend with the default profile. */
void blend_kit_open(struct blend_kit *k, const char *path, uint32_t dtype, uint32_t flags);
/* The same, on the cpu as the cache's device, with a pool there. */
void blend_kit_open_pool(struct blend_kit *k, const char *path, uint32_t dtype);
/* False when a page, a byte of metadata or a pin did not come back. */
bool blend_kit_close(struct blend_kit *k);
/* Opens the blend anew, after a change of k->profile or k->flags. */
void blend_kit_reopen(struct blend_kit *k);
/* A weight of the profile's gate; the blend must then be opened anew. */
void blend_kit_set_weight(struct blend_kit *k, const char *name, double weight);
/* A prompt of these lengths; n_system 0: none. The same seed gives the same documents, in the order
 * of `order` (NULL: 0, 1, ..), and the same question. */
void blend_kit_prompt(struct blend_kit *k, uint64_t seed, uint32_t n_system, const uint32_t *docs,
                      uint32_t n_docs, const uint32_t *order);
/* ratio < 0: the profile's, or its rounds. */
struct tsr_ask_desc blend_kit_ask_of(struct blend_kit *k, uint32_t selector, double ratio,
                                     uint32_t flags);
/* Asks; fills logits and report. */
int blend_kit_ask(struct blend_kit *k, uint32_t selector, double ratio, uint32_t flags);
/* The same with nothing known: a blend without a cache. */
void blend_kit_ask_alone(struct blend_kit *k, uint32_t selector, double ratio, uint32_t flags);
/* Logits of a plain prefill, in another session. */
void blend_kit_prefill(struct blend_kit *k, float *logits);
/* The prompt as a plain request: computed whole, and its first n_tokens stored as a prefix, with
 * these extras, in the space of plain requests. Returns the tokens stored. */
uint32_t blend_kit_plain(struct blend_kit *k, uint32_t n_tokens, const struct tsr_extra *extra,
                         uint32_t n_extra);
/* Everything that is stored goes to the tier below, and out of host memory. */
void blend_kit_make_cold(struct blend_kit *k);

#endif
