/* fuzz_extra.c - extras that pass the check always encode: within the limit, the same in any order,
 * and so that a plain reader of docs/format.md finds every item again.
 * Input: prompt length, range, then items of kind, offset, n_tokens, length and data. */
#include "chunk/chunk.h"

#define ITEMS_MAX (TSRI_EXTRA_ITEMS_MAX + 8)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct input {
    const uint8_t *data;
    size_t bytes;
};

static uint32_t take(struct input *in, uint32_t n)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < n && in->bytes; i++) {
        value |= (uint32_t)*in->data++ << (8 * i);
        in->bytes--;
    }
    return value;
}

static uint32_t take_items(struct input *in, struct tsr_extra *items)
{
    uint32_t n = 0;
    while (in->bytes && n < ITEMS_MAX) {
        struct tsr_extra *e = &items[n++];
        *e = (struct tsr_extra){.kind = take(in, 1) % 5};
        uint32_t wide = take(in, 1);
        e->offset = take(in, wide & 1 ? 4 : 1);
        e->n_tokens = take(in, wide & 2 ? 4 : 1);
        e->bytes = take(in, wide & 4 ? 2 : 1);
        if (e->bytes > in->bytes) e->bytes = (uint32_t)in->bytes;
        e->data = wide & 8 ? NULL : in->data;
        in->data += e->bytes;
        in->bytes -= e->bytes;
    }
    return n;
}

/* Reads the encoding item by item; returns how many, and whether there are media. */
static uint32_t read_back(const uint8_t *at, size_t n, struct tsr_range range, bool *media)
{
    const uint8_t *end = at + n;
    uint32_t count = 0;
    *media = false;
    if (!n) return 0;
    TSR_ASSERT(*at++ == 1);
    for (uint8_t kind, before = 0; at < end; before = kind, count++) {
        uint16_t bytes;
        TSR_ASSERT(end - at >= 3);
        kind = *at;
        TSR_ASSERT(kind >= before && kind >= TSR_EXTRA_ADAPTER && kind <= TSR_EXTRA_MEDIA);
        memcpy(&bytes, at + 1, 2);
        at += 3;
        if (kind == TSR_EXTRA_MEDIA) {
            int32_t offset;
            uint32_t n_tokens;
            TSR_ASSERT(end - at >= 8);
            memcpy(&offset, at, 4);
            memcpy(&n_tokens, at + 4, 4);
            at += 8;
            *media = true;
            TSR_ASSERT(offset < (int64_t)range.n_tokens && offset + (int64_t)n_tokens > 0);
        }
        TSR_ASSERT(bytes >= 1 && end - at >= bytes);
        at += bytes;
    }
    TSR_ASSERT(at == end);
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct tsr_extra items[ITEMS_MAX], reversed[ITEMS_MAX];
    static uint8_t out[TSRI_EXTRA_BYTES_MAX], again[TSRI_EXTRA_BYTES_MAX];
    struct input in = {data, bytes};
    uint32_t n_tokens = take(&in, 2);
    struct tsr_range range = {take(&in, 2), take(&in, 2)};
    uint32_t n = take_items(&in, items), expect = 0;
    if (tsri_extra_check(items, n, n_tokens) < 0) return 0;
    TSR_ASSERT(n <= TSRI_EXTRA_ITEMS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        reversed[n - 1 - i] = items[i];
        expect += items[i].kind != TSR_EXTRA_MEDIA || tsri_extra_has_media(&items[i], 1, range);
    }
    int got = tsri_extra_encode(items, n, range, out);
    TSR_ASSERT(got >= 0 && got <= TSRI_EXTRA_BYTES_MAX);
    TSR_ASSERT(tsri_extra_encode(reversed, n, range, again) == got);
    TSR_ASSERT(memcmp(out, again, (size_t)got) == 0);
    bool media;
    TSR_ASSERT(read_back(out, (size_t)got, range, &media) == expect);
    TSR_ASSERT(media == tsri_extra_has_media(items, n, range));
    struct tsri_key key = tsri_extra_hash(out, (size_t)got);
    TSR_ASSERT((key.lo == 0 && key.hi == 0) == (got == 0));
    return 0;
}
