/* kv_entry.h - entries for tests of tiers and of the cache. Their KV is a function of the token
 * prefix (every byte depends on all tokens up to its own, its layer and its plane), so a loaded
 * byte is checked without keeping what was stored. In memory an entry stands as in the host pool:
 * cell after cell, in a cell layer after layer, plane after plane. */
#ifndef TSRI_KV_ENTRY_H
#define TSRI_KV_ENTRY_H

#include <tessera/tier.h>

#include <stdbool.h>

struct kv_shape {
    uint32_t n_tokens, cell_tokens, n_layers, n_planes;
    uint32_t row_bytes[2];
    uint32_t extra_bytes;
    uint32_t skew; /* bytes by which the KV misses its alignment */
};

/* Owns everything it points to. */
struct kv_entry {
    struct tsr_entry_head head;
    uint32_t *tokens;
    uint8_t *extra;
    uint8_t *block, *data; /* data = block + skew; 4 KiB aligned block */
    size_t data_bytes;
    void **planes;
    uint32_t n_cells;
    tsr_tier_loc loc;
};

/* Tokens drawn from the seed, everything else a function of them. The same seed and shape give the
 * same entry. Stops the program when there is no memory. */
void kv_entry_init(struct kv_entry *e, const struct kv_shape *shape, uint64_t seed);
/* Room for a get of `like`: same key and shape, all bytes 0xA5. */
void kv_entry_init_room(struct kv_entry *e, const struct kv_entry *like, uint32_t skew);
/* Back to 0xA5, so that one room serves many gets. */
void kv_entry_blank(struct kv_entry *e);
/* As _init_room, from seed and shape alone: nothing of the KV is computed. */
void kv_entry_init_room_seed(struct kv_entry *e, const struct kv_shape *shape, uint64_t seed);
void kv_entry_fini(struct kv_entry *e);

/* An io over the entry, for put or get. */
struct tsr_tier_io kv_entry_io(struct kv_entry *e);

/* The same as a ref. */
struct tsr_tier_ref kv_entry_ref(const struct kv_entry *e);

/* Fills one row as the function says; prefix = kv_prefix over the tokens up to the row's own. */
uint64_t kv_prefix(uint64_t before, uint32_t token);
void kv_row(uint8_t *row, uint32_t bytes, uint64_t prefix, uint32_t layer, uint32_t plane);

/* Whether head, tokens and extra of a room are those of the seed and shape. */
bool kv_entry_head_right(const struct kv_entry *e, const struct kv_shape *shape, uint64_t seed);
/* Whether every byte of a layer's cells (those whose plane is not NULL in io->planes) is right. */
bool kv_entry_layer_right(const struct kv_entry *e, uint32_t layer);
/* Head and all layers. */
bool kv_entry_right(const struct kv_entry *e, const struct kv_shape *shape, uint64_t seed);

#endif
