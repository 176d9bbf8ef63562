/* wire_bytes.h - the bytes of a message put together by hand, after docs/format.md and not after
 * the code: tests compare what the library makes with this. */
#ifndef TSRI_WIRE_BYTES_H
#define TSRI_WIRE_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct wire_bytes {
    _Alignas(8) uint8_t data[8192];
    size_t n;
};

static inline void wb_number(struct wire_bytes *b, uint64_t v, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        b->data[b->n++] = (uint8_t)(v >> (8 * i));
}
static inline void wb_u16(struct wire_bytes *b, uint64_t v)
{
    wb_number(b, v, 2);
}
static inline void wb_u32(struct wire_bytes *b, uint64_t v)
{
    wb_number(b, v, 4);
}
static inline void wb_u64(struct wire_bytes *b, uint64_t v)
{
    wb_number(b, v, 8);
}
static inline void wb_bytes(struct wire_bytes *b, const void *p, size_t n)
{
    memcpy(b->data + b->n, p, n);
    b->n += n;
}
static inline void wb_fill(struct wire_bytes *b)
{
    while (b->n % 8)
        b->data[b->n++] = 0;
}
/* A head whose body length is set by wb_end. */
static inline void wb_head(struct wire_bytes *b, uint16_t type, uint64_t id, int32_t status)
{
    memset(b, 0, sizeof *b);
    wb_bytes(b, "TSRW", 4);
    wb_u16(b, (type & 0x7fff) == 1 ? 1 : 3); /* a hello says 1, whatever comes later */
    wb_u16(b, type);
    wb_u64(b, id);
    wb_u32(b, 0);
    wb_u32(b, (uint32_t)status);
}
static inline void wb_end(struct wire_bytes *b)
{
    size_t all = b->n;
    b->n = 16;
    wb_u32(b, all - 24);
    b->n = all;
}

#endif
