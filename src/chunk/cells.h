/* cells.h - where the rows of an entry are in the pages of a pool, for the process that owns the pool
 * and for those that only read it.
 *
 * Threads: pure functions over a shape and a page table.
 */
#ifndef TSRI_CELLS_H
#define TSRI_CELLS_H

#include "base/base.h"
#include "chunk/chunk.h"

/* A plane of a cell is at most this large: cells of models with huge rows hold fewer tokens. A
 * constant, not an option, because files depend on it. */
#define TSRI_PLANE_BYTES_MAX (256u << 10)

struct tsri_shape {
    uint32_t n_layers, n_planes;
    uint32_t row_bytes[2];
    uint32_t cell_tokens;
    uint32_t page_bytes;
};
/* How a cell of n tokens lies in its pages: layers one after the other, each K then V, as many
 * whole layers to a page as fit; where a layer does not fit, one plane to a page. */
struct tsri_cell {
    uint32_t n_tokens;
    uint32_t k_bytes, layer_bytes;
    uint32_t layers_per_page; /* 0: a plane to a page */
    uint32_t n_pages;
};
TSR_MUST int tsri_shape_init(struct tsri_shape *s, const struct tsr_space_desc *desc,
                             size_t page_bytes);
/* Does a plane of a full cell fit in a page? Everything below takes that for granted. */
bool tsri_shape_is_sound(const struct tsri_shape *s);
/* Cell c of an entry of n_tokens. */
void tsri_cell_layout(const struct tsri_shape *s, uint32_t n_tokens, uint32_t c,
                      struct tsri_cell *out);
uint32_t tsri_shape_n_cells(const struct tsri_shape *s, uint32_t n_tokens);
/* 0 when it does not fit in 32 bits. */
uint32_t tsri_shape_n_pages(const struct tsri_shape *s, uint32_t n_tokens);
size_t tsri_shape_token_bytes(const struct tsri_shape *s);
/* The first row of a plane of a cell. */
uint8_t *tsri_plane(uint8_t *pool, const struct tsri_shape *s, const uint32_t *pages,
                    const struct tsri_cell *cell, uint32_t c, uint32_t layer, uint32_t plane);
/* Fills in default strides and proves that everything the view describes lies in its buffer. */
TSR_MUST int tsri_view_check(const struct tsri_shape *s, struct tsr_view *v, uint32_t n_tokens,
                             uint32_t n_layers);
/* Copies rows [offset, offset + n) of n_layers layers between an entry's pages and a checked view.
 */
struct tsri_cell_move {
    uint8_t *pool; /* page p begins at p * shape->page_bytes */
    const struct tsri_shape *shape;
    const uint32_t *pages;
    uint32_t entry_tokens; /* of the whole entry */
    uint32_t offset, n_tokens;
    uint32_t layer_first, n_layers;
    bool to_view;
};
void tsri_cells_move(const struct tsri_cell_move *m, const struct tsr_view *view);
/* From a view of a region that can only be read (tsri_region_init_remote). */
TSR_MUST int tsri_cells_read(const struct tsri_cell_move *m, const struct tsr_view *view,
                             const struct tsri_region *source);

#endif
