/* frame.c - the head of a frame, and the codec that bodies are read and written with. The codec
 * checks every length against what is left before it believes it. */
#include "wire/wire.h"

const char *tsri_wire_name(uint16_t type)
{
    switch (type & ~TSRI_WIRE_REPLY) {
#define NAME_CASE(NAME, number, name) \
    case TSRI_WIRE_##NAME: \
        return name;
        TSRI_WIRE_TYPES(NAME_CASE)
#undef NAME_CASE
    default:
        return NULL;
    }
}

/* Hosts are little-endian, as the wire is. */
int tsri_wire_head_get(const uint8_t bytes[TSRI_WIRE_HEAD_BYTES], struct tsri_wire_head *out)
{
    uint32_t magic;
    memcpy(&magic, bytes, 4);
    memcpy(&out->version, bytes + 4, 2);
    memcpy(&out->type, bytes + 6, 2);
    memcpy(&out->id, bytes + 8, 8);
    memcpy(&out->body_bytes, bytes + 16, 4);
    memcpy(&out->status, bytes + 20, 4);
    if (magic != TSRI_WIRE_MAGIC) return tsri_fail(TSR_EINVAL, "wire: not a frame");
    if (out->body_bytes % 8)
        return tsri_fail(TSR_EINVAL, "wire: body of %u bytes is not a multiple of 8",
                         out->body_bytes);
    return 0;
}

void tsri_wire_head_put(const struct tsri_wire_head *head, uint8_t out[TSRI_WIRE_HEAD_BYTES])
{
    uint32_t magic = TSRI_WIRE_MAGIC;
    TSR_ASSERT(head->body_bytes % 8 == 0);
    memcpy(out, &magic, 4);
    memcpy(out + 4, &head->version, 2);
    memcpy(out + 6, &head->type, 2);
    memcpy(out + 8, &head->id, 8);
    memcpy(out + 16, &head->body_bytes, 4);
    memcpy(out + 20, &head->status, 4);
}

void tsri_wire_read_init(struct tsri_wire *w, const uint8_t *body, size_t bytes)
{
    static const uint64_t nothing;
    TSR_ASSERT((uintptr_t)body % 8 == 0);
    *w = (struct tsri_wire){.in = body ? body : (const uint8_t *)&nothing, .end = bytes};
}

void tsri_wire_write_init(struct tsri_wire *w, uint8_t *body, size_t room)
{
    *w = (struct tsri_wire){.out = body, .end = body ? room : SIZE_MAX / 2};
}

bool tsri_wire_done(const struct tsri_wire *w)
{
    return !w->bad && (!w->in || w->at == w->end);
}

/* Steps over n bytes; false when there are not as many. */
static bool step(struct tsri_wire *w, size_t n)
{
    if (w->bad || n > w->end - w->at) {
        w->bad = true;
        return false;
    }
    w->at += n;
    return true;
}

/* Where the byte at `at` of the message is written. */
static uint8_t *place(const struct tsri_wire *w, size_t at)
{
    return w->out + at - (w->parts ? w->parts->left_out : 0);
}

static void field(struct tsri_wire *w, void *v, size_t n)
{
    size_t at = w->at;
    if (!step(w, n)) {
        if (w->in) memset(v, 0, n);
    } else if (w->in) {
        memcpy(v, w->in + at, n);
    } else if (w->out) {
        memcpy(place(w, at), v, n);
    }
}

void tsri_wire_u32(struct tsri_wire *w, uint32_t *v)
{
    field(w, v, sizeof *v);
}

void tsri_wire_i32(struct tsri_wire *w, int32_t *v)
{
    field(w, v, sizeof *v);
}

void tsri_wire_u64(struct tsri_wire *w, uint64_t *v)
{
    field(w, v, sizeof *v);
}

void tsri_wire_zero_u32(struct tsri_wire *w)
{
    uint32_t zero = 0;
    field(w, &zero, sizeof zero);
    if (zero) w->bad = true;
}

/* Leaves the bytes [at, at + bytes) where they are; true when it does. */
static bool leave_out(struct tsri_wire *w, size_t at, const void *from, size_t bytes)
{
    struct tsri_wire_parts *p = w->parts;
    if (!p || bytes < TSRI_WIRE_PART_BYTES || p->n + 3 > TSRI_WIRE_PARTS_MAX) return false;
    size_t here = at - p->left_out;
    if (here > p->begin)
        p->list[p->n++] = (struct iovec){w->out ? w->out + p->begin : NULL, here - p->begin};
    p->list[p->n++] = (struct iovec){(void *)(uintptr_t)from, bytes};
    p->begin = here;
    p->left_out += bytes;
    return true;
}

const void *tsri_wire_array(struct tsri_wire *w, const void *from, size_t n, size_t size)
{
    size_t bytes, at = w->at;
    TSR_ASSERT(at % 8 == 0 || w->bad);
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 4) {
        w->bad = true;
        return NULL;
    }
    size_t fill = (size_t)-bytes & 7;
    if (!step(w, bytes + fill)) return NULL;
    if (w->in) {
        for (size_t i = 0; i < fill; i++)
            if (w->in[at + bytes + i]) w->bad = true;
        return bytes && !w->bad ? w->in + at : NULL;
    }
    bool copies = !leave_out(w, at, from, bytes);
    if (w->out) {
        if (bytes && copies) memcpy(place(w, at), from, bytes);
        memset(place(w, at + bytes), 0, fill);
    }
    return from;
}

void tsri_wire_limit(struct tsri_wire *w, uint64_t v, uint64_t max)
{
    if (v > max) w->bad = true;
}
