/* workload.c - the built-in trace: what a service that answers questions over documents and chats
 * sees, small enough to replay in a moment. Made by whole-number formulas from a fixed seed, so
 * that it is the same on every machine.
 *
 * Two thirds of the requests are questions: a system prompt and five of 400 documents, chosen so
 * that few are asked for often and many seldom, in an order that changes. The others are turns of
 * 40 chats, each repeating all that was said before and adding to it. */
#include "lab/lab.h"

#define REQUESTS 900
#define DOCUMENTS 400u
#define DOCUMENTS_ASKED 5u
#define CHATS 40u
#define CHAT_BLOCK 256u
#define CHAT_TOKENS_MAX 6000u

/* Ids of the three sorts of text must not meet. */
#define ID_SYSTEM ((uint64_t)1 << 40)
#define ID_DOCUMENT ((uint64_t)2 << 40)
#define ID_CHAT ((uint64_t)3 << 40)

static uint32_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)((*state * 0x2545F4914F6CDD1Du) >> 32);
}

/* 0 .. n-1, evenly. */
static uint32_t even(uint64_t *state, uint32_t n)
{
    return (uint32_t)((uint64_t)next(state) * n >> 32);
}

/* 0 .. n-1, small ones often: the cube of an even number falls off like a power law. */
static uint32_t skewed(uint64_t *state, uint32_t n)
{
    uint64_t u = next(state);
    uint64_t cube = ((u * u) >> 32) * u >> 32;
    return (uint32_t)(cube * n >> 32);
}

static uint32_t document_tokens(uint32_t document)
{
    uint64_t state = ID_DOCUMENT + document;
    next(&state);
    return 60 + even(&state, 600);
}

static int add_question(struct tsri_trace *t, uint64_t *state)
{
    uint32_t asked[DOCUMENTS_ASKED];
    int err = tsri_trace_add_request(t, false);
    if (!err) err = tsri_trace_add_chunk(t, ID_SYSTEM, 120);
    for (uint32_t n = 0; !err && n < DOCUMENTS_ASKED;) {
        asked[n] = skewed(state, DOCUMENTS);
        uint32_t same = 0;
        while (asked[same] != asked[n])
            same++;
        if (same < n) continue; /* a document is given once */
        err = tsri_trace_add_chunk(t, ID_DOCUMENT + asked[n], document_tokens(asked[n]));
        n++;
    }
    return err;
}

/* Block b of a chat; the first one holds the system prompt and is everybody's. */
static uint64_t chat_block_id(uint32_t chat, uint32_t generation, uint32_t b)
{
    if (b == 0) return ID_CHAT;
    return ID_CHAT + ((uint64_t)chat + 1) * 65536 + (uint64_t)generation * 256 + b;
}

static int add_turn(struct tsri_trace *t, uint64_t *state, uint32_t tokens[CHATS],
                    uint32_t generation[CHATS])
{
    uint32_t chat = skewed(state, CHATS);
    if (tokens[chat] > CHAT_TOKENS_MAX) { /* that one ended; its place is taken by a new one */
        tokens[chat] = 0;
        generation[chat]++;
    }
    if (tokens[chat] == 0) tokens[chat] = CHAT_BLOCK;
    tokens[chat] += 40 + even(state, 500);
    int err = tsri_trace_add_request(t, true);
    uint32_t left = tokens[chat];
    for (uint32_t b = 0; !err && left > 0; b++) {
        uint32_t n = tsri_min_u32(left, CHAT_BLOCK);
        err = tsri_trace_add_chunk(t, chat_block_id(chat, generation[chat], b), n);
        left -= n;
    }
    return err;
}

int tsri_trace_builtin(struct tsri_trace *t, size_t limit)
{
    uint64_t state = 0x7465737365726121u;
    uint32_t tokens[CHATS] = {0}, generation[CHATS] = {0};
    int err = 0;
    *t = (struct tsri_trace){0};
    for (size_t i = 0; !err && i < REQUESTS && i < limit; i++)
        err = even(&state, 3) ? add_question(t, &state) : add_turn(t, &state, tokens, generation);
    if (err) tsri_trace_fini(t);
    return err;
}
