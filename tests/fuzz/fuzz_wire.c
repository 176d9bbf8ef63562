/* fuzz_wire.c - any bytes as any message, as a server and as a client would take them in. What is
 * accepted is exactly what encoding it again gives, and everything it points to can be read.
 * Input: a frame. */
#include "wire/wire.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static uint64_t sum(const void *p, size_t n)
{
    uint64_t s = 0;
    for (size_t i = 0; i < n; i++)
        s += ((const uint8_t *)p)[i];
    return s;
}

/* Touches what a decoded prompt or store points to. */
static uint64_t touch(const struct tsri_request *r)
{
    uint64_t s = sum(r->prompt.tokens, (size_t)r->prompt.n_tokens * 4) +
                 sum(r->prompt.segments, (size_t)r->prompt.n_segments * 8) +
                 sum(r->prompt.context, (size_t)r->prompt.n_context * 4) +
                 sum(r->prompt.recipe, r->prompt.recipe_bytes) +
                 sum(r->store.tokens, (size_t)r->store.n_tokens * 4) +
                 sum(r->store.context, (size_t)r->store.n_context * 4) +
                 sum(r->store.recipe, r->store.recipe_bytes) +
                 sum(r->hello.token, r->hello.token_bytes) +
                 sum(r->desc.weights, r->desc.weights_bytes);
    uint32_t n_extra = r->prompt.n_extra ? r->prompt.n_extra : r->store.n_extra;
    for (uint32_t i = 0; i < n_extra; i++)
        s += sum(r->extra[i].data, r->extra[i].bytes);
    const char *texts[] = {r->desc.model, r->desc.tokenizer, r->desc.adapter, r->desc.salt,
                           r->desc.rope};
    for (size_t i = 0; i < TSRI_COUNT(texts); i++)
        if (texts[i]) s += strlen(texts[i]);
    return s;
}

static void as_request(const struct tsri_wire_head *head, const uint8_t *frame, size_t bytes)
{
    static struct tsri_request r;
    uint16_t type = head->type & (uint16_t)~TSRI_WIRE_REPLY;
    if (tsri_request_decode(&r, type, frame + TSRI_WIRE_HEAD_BYTES, head->body_bytes) != 0) return;
    volatile uint64_t keep = touch(&r);
    (void)keep;
    size_t again;
    TSR_ASSERT(tsri_request_bytes(&r, &again) == 0 && again == bytes);
    uint8_t *copy = malloc(again);
    TSR_ASSERT(copy);
    tsri_request_encode(&r, head->id, head->status, copy, again);
    TSR_ASSERT(memcmp(copy + TSRI_WIRE_HEAD_BYTES, frame + TSRI_WIRE_HEAD_BYTES,
                      again - TSRI_WIRE_HEAD_BYTES) == 0);
    free(copy);
}

static void as_reply(struct tsri_wire_head *head, const uint8_t *frame, size_t bytes)
{
    static struct tsri_reply r;
    head->type |= TSRI_WIRE_REPLY;
    if (tsri_reply_decode(&r, head, frame + TSRI_WIRE_HEAD_BYTES) != 0) return;
    size_t again;
    TSR_ASSERT(tsri_reply_bytes(&r, &again) == 0 && again == bytes);
    uint8_t *copy = malloc(again);
    TSR_ASSERT(copy);
    tsri_reply_encode(&r, head->id, copy, again);
    TSR_ASSERT(memcmp(copy + TSRI_WIRE_HEAD_BYTES, frame + TSRI_WIRE_HEAD_BYTES,
                      again - TSRI_WIRE_HEAD_BYTES) == 0);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct tsri_wire_head head;
    /* The magic and the length are given, or nothing would ever be reached. */
    if (bytes < TSRI_WIRE_HEAD_BYTES) return 0;
    uint32_t magic = TSRI_WIRE_MAGIC, body = (uint32_t)(bytes - TSRI_WIRE_HEAD_BYTES) & ~7u;
    uint8_t *frame = malloc(TSRI_WIRE_HEAD_BYTES + body); /* exactly: a byte beyond is seen */
    TSR_ASSERT(frame);
    memcpy(frame, data, TSRI_WIRE_HEAD_BYTES + body);
    memcpy(frame, &magic, 4);
    memcpy(frame + 16, &body, 4);
    TSR_ASSERT(tsri_wire_head_get(frame, &head) == 0);
    as_request(&head, frame, TSRI_WIRE_HEAD_BYTES + body);
    as_reply(&head, frame, TSRI_WIRE_HEAD_BYTES + body);
    free(frame);
    return 0;
}
