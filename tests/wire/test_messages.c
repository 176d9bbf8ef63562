/* test_messages.c - every request is the bytes that docs/format.md says, comes back as it was, and
 * is refused when anything about it is not as it must be. */
#include "wire/wire.h"

#include "support/test.h"
#include "support/wire_bytes.h"

static struct tsri_request request, back;
static _Alignas(8) uint8_t frame[8192];
static size_t frame_bytes;

static struct tsri_request *fresh(uint16_t type)
{
    memset(&request, 0, sizeof request);
    request.type = type;
    return &request;
}

/* Encodes `request` and decodes it to `back`; false when either fails. */
static bool there_and_back(void)
{
    if (tsri_request_bytes(&request, &frame_bytes) != 0 || frame_bytes > sizeof frame) return false;
    memset(frame, 0xee, sizeof frame);
    tsri_request_encode(&request, 77, 0, frame, frame_bytes);
    struct tsri_wire_head head;
    if (tsri_wire_head_get(frame, &head) != 0) return false;
    if (head.type != request.type || head.id != 77 || head.status != 0) return false;
    if (head.body_bytes != frame_bytes - TSRI_WIRE_HEAD_BYTES) return false;
    return tsri_request_decode(&back, head.type, frame + TSRI_WIRE_HEAD_BYTES, head.body_bytes) ==
           0;
}

static bool is(struct wire_bytes *want)
{
    wb_end(want);
    return frame_bytes == want->n && memcmp(frame, want->data, want->n) == 0;
}

static const uint32_t tokens[3] = {7, 8, 9};
static const uint32_t context[5] = {90, 91, 92, 93, 94};
static const struct tsr_range segments[2] = {{0, 1}, {1, 2}};
static const struct tsr_extra extras[2] = {
    {.kind = TSR_EXTRA_SALT, .bytes = 3, .data = "abc"},
    {.kind = TSR_EXTRA_MEDIA, .offset = 1, .n_tokens = 2, .bytes = 8, .data = "12345678"}};

static struct tsr_prompt a_prompt(void)
{
    return (struct tsr_prompt){.size = sizeof(struct tsr_prompt),
                               .tokens = tokens,
                               .n_tokens = 3,
                               .flags = TSR_PROMPT_SEGMENTS | TSR_PROMPT_BLENDED,
                               .segments = segments,
                               .n_segments = 2,
                               .extra = extras,
                               .n_extra = 2,
                               .recipe = "R",
                               .recipe_bytes = 1,
                               .context = context,
                               .n_context = 5};
}

static void wb_extras(struct wire_bytes *b)
{
    wb_u32(b, 2), wb_u32(b, 0), wb_u32(b, 0), wb_u32(b, 3);
    wb_bytes(b, "abc", 3), wb_fill(b);
    wb_u32(b, 3), wb_u32(b, 1), wb_u32(b, 2), wb_u32(b, 8);
    wb_bytes(b, "12345678", 8);
}

static void wb_prompt(struct wire_bytes *b)
{
    wb_u32(b, 3), wb_u32(b, 2 | 8), wb_u32(b, 2), wb_u32(b, 2), wb_u32(b, 1), wb_u32(b, 5);
    wb_u32(b, 7), wb_u32(b, 8), wb_u32(b, 9), wb_fill(b);
    for (uint32_t i = 90; i < 95; i++)
        wb_u32(b, i);
    wb_fill(b);
    wb_u32(b, 0), wb_u32(b, 1), wb_u32(b, 1), wb_u32(b, 2);
    wb_extras(b);
    wb_bytes(b, "R", 1), wb_fill(b);
}

static bool same_prompt(const struct tsr_prompt *p)
{
    return p->size == sizeof *p && p->n_tokens == 3 && memcmp(p->tokens, tokens, 12) == 0 &&
           p->flags == (TSR_PROMPT_SEGMENTS | TSR_PROMPT_BLENDED) && p->n_segments == 2 &&
           memcmp(p->segments, segments, 16) == 0 && p->n_extra == 2 && p->extra == back.extra &&
           p->extra[0].kind == TSR_EXTRA_SALT && p->extra[0].bytes == 3 &&
           memcmp(p->extra[0].data, "abc", 3) == 0 && p->extra[1].offset == 1 &&
           p->extra[1].n_tokens == 2 && memcmp(p->extra[1].data, "12345678", 8) == 0 &&
           p->recipe_bytes == 1 && memcmp(p->recipe, "R", 1) == 0 && p->n_context == 5 &&
           memcmp(p->context, context, 20) == 0;
}

TEST(hello_is_these_bytes)
{
    struct tsri_request *r = fresh(TSRI_WIRE_HELLO);
    r->hello = (struct tsri_wire_hello){.version_min = 1,
                                        .version_max = 3,
                                        .staging_bytes = 1u << 20,
                                        .token_bytes = 5,
                                        .token = "alice"};
    CHECK(there_and_back());
    struct wire_bytes want;
    wb_head(&want, 1, 77, 0);
    wb_u32(&want, 1), wb_u32(&want, 3), wb_u64(&want, 1 << 20), wb_u32(&want, 5), wb_u32(&want, 0);
    wb_bytes(&want, "alice", 5), wb_fill(&want);
    CHECK(is(&want));
    CHECK_INT(back.hello.version_max, 3);
    CHECK_INT(back.hello.staging_bytes, 1 << 20);
    CHECK(back.hello.token_bytes == 5 && memcmp(back.hello.token, "alice", 5) == 0);
}

TEST(space_open_is_these_bytes)
{
    struct tsri_request *r = fresh(TSRI_WIRE_SPACE_OPEN);
    r->desc = (struct tsr_space_desc){.size = sizeof r->desc,
                                      .model = "llama",
                                      .weights = "\0\1",
                                      .weights_bytes = 2,
                                      .salt = "s",
                                      .dtype = 1,
                                      .layout = 2,
                                      .n_layers = 3,
                                      .layer_first = 4,
                                      .n_heads = 5,
                                      .k_dim = 6,
                                      .v_dim = 7,
                                      .rank = 8,
                                      .world = 9,
                                      .group = 10,
                                      .block_tokens = 11};
    CHECK(there_and_back());
    struct wire_bytes want;
    wb_head(&want, 3, 77, 0);
    for (uint32_t i = 1; i <= 11; i++)
        wb_u32(&want, i);
    wb_u32(&want, 2);                                     /* weights */
    wb_u32(&want, 5), wb_u32(&want, 0), wb_u32(&want, 0); /* model, tokenizer, adapter */
    wb_u32(&want, 1), wb_u32(&want, 0), wb_u32(&want, 0); /* salt, rope, zero */
    wb_bytes(&want, "\0\1", 2), wb_fill(&want);
    wb_bytes(&want, "llama", 6), wb_fill(&want);
    wb_bytes(&want, "s", 2), wb_fill(&want);
    CHECK(is(&want));
    CHECK_STR(back.desc.model, "llama");
    CHECK_STR(back.desc.salt, "s");
    CHECK(!back.desc.tokenizer && !back.desc.adapter && !back.desc.rope);
    CHECK(back.desc.weights_bytes == 2 && memcmp(back.desc.weights, "\0\1", 2) == 0);
    CHECK_INT(back.desc.block_tokens, 11);
    CHECK_INT(back.desc.dtype, 1);
    CHECK_INT(back.desc.size, sizeof back.desc);
}

TEST(a_text_ends_where_it_says)
{
    struct tsri_request *r = fresh(TSRI_WIRE_SPACE_OPEN);
    r->desc = (struct tsr_space_desc){.size = sizeof r->desc, .model = "llama"};
    CHECK(there_and_back());
    uint8_t *text = frame + TSRI_WIRE_HEAD_BYTES + 72;
    CHECK_STR((const char *)text, "llama");
    text[2] = 0; /* shorter than it says */
    CHECK_INT(tsri_request_decode(&back, 3, frame + 24, frame_bytes - 24), TSR_EINVAL);
    text[2] = 'a', text[5] = 'x'; /* longer */
    CHECK_INT(tsri_request_decode(&back, 3, frame + 24, frame_bytes - 24), TSR_EINVAL);
}

TEST(lookup_is_these_bytes)
{
    struct tsri_request *r = fresh(TSRI_WIRE_LOOKUP);
    const uint32_t spaces[3] = {4, 5, 6};
    r->lookup = (struct tsri_wire_lookup){
        .lease = 99, .n_spaces = 3, .matches_max = 128, .flags = 1, .spaces = spaces};
    r->prompt = a_prompt();
    CHECK(there_and_back());
    struct wire_bytes want;
    wb_head(&want, 5, 77, 0);
    wb_u64(&want, 99), wb_u32(&want, 3), wb_u32(&want, 128), wb_u32(&want, 1), wb_u32(&want, 0);
    wb_u32(&want, 4), wb_u32(&want, 5), wb_u32(&want, 6), wb_fill(&want);
    wb_prompt(&want);
    CHECK(is(&want));
    CHECK(back.lookup.lease == 99 && back.lookup.n_spaces == 3 && back.lookup.spaces[2] == 6);
    CHECK_INT(back.lookup.matches_max, 128);
    CHECK(same_prompt(&back.prompt));
}

TEST(retrieve_is_these_bytes_with_and_without_a_prompt)
{
    struct tsri_request *r = fresh(TSRI_WIRE_RETRIEVE);
    const struct tsri_wire_want wants[1] = {{.match = {.entry = 0x0102030405060708u,
                                                       .epoch = 0x1112131415161718u,
                                                       .prompt_offset = 1,
                                                       .entry_offset = 2,
                                                       .n_tokens = 3,
                                                       .kind = 4,
                                                       .context = 5,
                                                       .tier = 6,
                                                       .verified = 7,
                                                       .base = 8,
                                                       .freq_set = 9,
                                                       .entry_tokens = 13,
                                                       .coverage = 14},
                                             .space = 10,
                                             .offset = 11,
                                             .n_tokens = 12}};
    for (uint32_t with = 0; with < 2; with++) {
        r->retrieve = (struct tsri_wire_retrieve){
            .lease = 98, .deadline_ms = 20, .n_wants = 1, .has_prompt = with, .wants = wants};
        r->prompt = a_prompt();
        CHECK(there_and_back());
        struct wire_bytes want;
        wb_head(&want, 6, 77, 0);
        wb_u64(&want, 98), wb_u32(&want, 20), wb_u32(&want, 1), wb_u32(&want, with);
        wb_u32(&want, 0);
        wb_u64(&want, 0x0102030405060708u), wb_u64(&want, 0x1112131415161718u);
        wb_u32(&want, 1), wb_u32(&want, 2), wb_u32(&want, 3);
        wb_bytes(&want, "\4\5\6\7", 4), wb_u32(&want, 8), wb_u32(&want, 9);
        wb_u32(&want, 13), wb_u32(&want, 14);
        wb_u32(&want, 10), wb_u32(&want, 11), wb_u32(&want, 12), wb_u32(&want, 0);
        if (with) wb_prompt(&want);
        CHECK(is(&want));
        CHECK(memcmp(back.retrieve.wants, wants, sizeof wants) == 0);
        CHECK(with ? same_prompt(&back.prompt) : back.prompt.tokens == NULL);
        frame[TSRI_WIRE_HEAD_BYTES + 24 + 60] = 1; /* a field without meaning */
        CHECK_INT(tsri_request_decode(&back, 6, frame + 24, frame_bytes - 24), TSR_EINVAL);
    }
}

TEST(a_match_comes_back_as_it_was)
{
    const struct tsr_match m = {.entry = 0x0102030405060708u,
                                .epoch = 0x1112131415161718u,
                                .prompt_offset = 1,
                                .entry_offset = 2,
                                .n_tokens = 3,
                                .kind = 4,
                                .context = 5,
                                .tier = 6,
                                .verified = 1,
                                .base = 8,
                                .freq_set = 9,
                                .entry_tokens = 10,
                                .coverage = 11,
                                .edits = 1};
    struct tsri_wire_match wire;
    struct tsr_match again;
    memset(&again, 0, sizeof again);
    tsri_wire_match_put(&m, &wire);
    tsri_wire_match_get(&wire, &again);
    CHECK(memcmp(&m, &again, sizeof m) == 0);
}

TEST(release_contains_and_keys_are_these_bytes)
{
    struct wire_bytes want;
    struct tsri_request *r = fresh(TSRI_WIRE_RELEASE);
    const uint64_t ids[2] = {5, UINT64_MAX};
    r->ids = ids, r->n = 2;
    CHECK(there_and_back());
    wb_head(&want, 7, 77, 0);
    wb_u32(&want, 2), wb_u32(&want, 0), wb_u64(&want, 5), wb_u64(&want, UINT64_MAX);
    CHECK(is(&want));
    CHECK(back.n == 2 && back.ids[1] == UINT64_MAX);

    r = fresh(TSRI_WIRE_CONTAINS);
    const struct tsr_key keys[1] = {{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}}};
    r->keys = keys, r->n = 1;
    CHECK(there_and_back());
    wb_head(&want, 14, 77, 0);
    wb_u32(&want, 1), wb_u32(&want, 0), wb_bytes(&want, keys, 16);
    CHECK(is(&want));
    CHECK(memcmp(back.keys, keys, 16) == 0);

    r = fresh(TSRI_WIRE_KEYS);
    r->space = 2, r->n = 40, r->prompt = a_prompt();
    CHECK(there_and_back());
    wb_head(&want, 13, 77, 0);
    wb_u32(&want, 2), wb_u32(&want, 40), wb_prompt(&want);
    CHECK(is(&want));
    CHECK(back.space == 2 && back.n == 40 && same_prompt(&back.prompt));
}

static const struct tsri_wire_view a_view = {
    .offset = 64, .bytes = 4096, .layer_stride = 3, .plane_stride = 2, .token_stride = 1};

static void wb_view(struct wire_bytes *b)
{
    wb_u64(b, 64), wb_u64(b, 4096), wb_u64(b, 3), wb_u64(b, 2), wb_u64(b, 1);
}

static void a_store(struct tsri_request *r)
{
    r->space = 21;
    r->store = (struct tsr_store_desc){.size = sizeof r->store,
                                       .kind = 2,
                                       .tokens = tokens,
                                       .n_tokens = 3,
                                       .from = 4,
                                       .context = tokens,
                                       .n_context = 2,
                                       .base = 5,
                                       .freq_set = 6,
                                       .extra = extras,
                                       .n_extra = 2,
                                       .recipe = "how",
                                       .recipe_bytes = 3};
}

static void wb_store(struct wire_bytes *b)
{
    wb_u32(b, 21), wb_u32(b, 2), wb_u32(b, 3), wb_u32(b, 4), wb_u32(b, 2), wb_u32(b, 2);
    wb_u32(b, 5), wb_u32(b, 6), wb_u32(b, 3), wb_u32(b, 0);
    wb_u32(b, 7), wb_u32(b, 8), wb_u32(b, 9), wb_fill(b);
    wb_u32(b, 7), wb_u32(b, 8);
    wb_extras(b);
    wb_bytes(b, "how", 3), wb_fill(b);
}

TEST(store_and_put_are_these_bytes)
{
    struct wire_bytes want;
    struct tsri_request *r = fresh(TSRI_WIRE_STORE);
    a_store(r);
    r->view = a_view;
    CHECK(there_and_back());
    wb_head(&want, 8, 77, 0);
    wb_view(&want), wb_store(&want);
    CHECK(is(&want));
    CHECK(back.space == 21 && back.store.kind == 2 && back.store.from == 4);
    CHECK(back.store.n_context == 2 && back.store.context[1] == 8);
    CHECK(back.store.recipe_bytes == 3 && memcmp(back.store.recipe, "how", 3) == 0);
    CHECK(memcmp(&back.view, &a_view, sizeof a_view) == 0);

    r = fresh(TSRI_WIRE_PUT_OPEN);
    a_store(r);
    CHECK(there_and_back());
    wb_head(&want, 9, 77, 0);
    wb_store(&want);
    CHECK(is(&want));

    r = fresh(TSRI_WIRE_PUT_LAYERS);
    r->put = (struct tsri_wire_put_layers){.put = 3, .layer_first = 4, .n_layers = 5};
    r->view = a_view;
    CHECK(there_and_back());
    wb_head(&want, 10, 77, 0);
    wb_u32(&want, 3), wb_u32(&want, 4), wb_u32(&want, 5), wb_u32(&want, 0), wb_view(&want);
    CHECK(is(&want));
    CHECK(back.put.n_layers == 5 && back.view.bytes == 4096);

    for (int type = TSRI_WIRE_PUT_COMMIT; type <= TSRI_WIRE_PUT_ABORT; type++) {
        r = fresh((uint16_t)type);
        r->put.put = 3;
        CHECK(there_and_back());
        wb_head(&want, (uint16_t)type, 77, 0);
        wb_u32(&want, 3), wb_u32(&want, 0);
        CHECK(is(&want));
    }
}

TEST(the_small_requests_are_these_bytes)
{
    struct wire_bytes want;
    for (int type = TSRI_WIRE_PREFETCH; type <= TSRI_WIRE_TOUCH; type++) {
        struct tsri_request *r = fresh((uint16_t)type);
        r->space = 3, r->prompt = a_prompt();
        CHECK(there_and_back());
        wb_head(&want, (uint16_t)type, 77, 0);
        wb_u32(&want, 3), wb_u32(&want, 0), wb_prompt(&want);
        CHECK(is(&want));
        CHECK(same_prompt(&back.prompt));
    }
    for (uint32_t with = 0; with < 2; with++) {
        struct tsri_request *r = fresh(TSRI_WIRE_CLEAR);
        r->space = 9, r->tier = -1, r->has_prompt = with, r->prompt = a_prompt();
        CHECK(there_and_back());
        wb_head(&want, 19, 77, 0);
        wb_u32(&want, 9), wb_u32(&want, UINT32_MAX), wb_u32(&want, with), wb_u32(&want, 0);
        if (with) wb_prompt(&want);
        CHECK(is(&want));
        CHECK_INT(back.tier, -1);
    }
    static const struct {
        uint16_t type;
        int words; /* -1: a u64 */
    } rest[] = {{TSRI_WIRE_PING, 0},   {TSRI_WIRE_FLUSH, 0},  {TSRI_WIRE_SPACE_CLOSE, 2},
                {TSRI_WIRE_EVICT, -1}, {TSRI_WIRE_FREEZE, 2}, {TSRI_WIRE_STATS, 2},
                {TSRI_WIRE_EVENTS, 2}, {TSRI_WIRE_SPACES, 0}, {TSRI_WIRE_WARM, -1}};
    for (size_t i = 0; i < TSRI_COUNT(rest); i++) {
        struct tsri_request *r = fresh(rest[i].type);
        r->space = r->value = r->n = 6, r->bytes = 6;
        CHECK(there_and_back());
        wb_head(&want, rest[i].type, 77, 0);
        if (rest[i].words == 2) wb_u32(&want, 6), wb_u32(&want, 0);
        if (rest[i].words == -1) wb_u64(&want, 6);
        CHECK(is(&want));
        if (rest[i].words) CHECK_INT(back.space + back.value + back.n + back.bytes, 6);
    }
}

TEST(what_people_ask_is_these_bytes)
{
    struct wire_bytes want;
    struct tsri_request *r = fresh(TSRI_WIRE_DISCOVER);
    r->space = 3, r->prompt = a_prompt();
    CHECK(there_and_back());
    wb_head(&want, 25, 77, 0);
    wb_u32(&want, 3), wb_u32(&want, 0), wb_prompt(&want);
    CHECK(is(&want));
    CHECK(same_prompt(&back.prompt));
    r = fresh(TSRI_WIRE_LIST);
    r->value = 4096, r->n = 100;
    CHECK(there_and_back());
    wb_head(&want, 26, 77, 0);
    wb_u32(&want, 4096), wb_u32(&want, 100);
    CHECK(is(&want));
    CHECK(back.value == 4096 && back.n == 100);
    r = fresh(TSRI_WIRE_ORDER);
    r->value = 65536, r->n = 100;
    CHECK(there_and_back());
    wb_head(&want, 30, 77, 0);
    wb_u32(&want, 65536), wb_u32(&want, 100);
    CHECK(is(&want));
    CHECK(back.value == 65536 && back.n == 100);
    r = fresh(TSRI_WIRE_EVICT_KEYS);
    r->bytes = (uint64_t)1 << 40, r->n = 7;
    CHECK(there_and_back());
    wb_head(&want, 31, 77, 0);
    wb_u64(&want, (uint64_t)1 << 40), wb_u32(&want, 7), wb_u32(&want, 0);
    CHECK(is(&want));
    CHECK(back.bytes == (uint64_t)1 << 40 && back.n == 7);
    r->n = TSRI_WIRE_ITEMS_MAX + 1;
    CHECK(!there_and_back());
    r = fresh(TSRI_WIRE_SPACE_FIND);
    memcpy(r->fingerprint, "0123456789abcdef", 16);
    CHECK(there_and_back());
    wb_head(&want, 28, 77, 0);
    wb_bytes(&want, "0123456789abcdef", 16);
    CHECK(is(&want));
    CHECK(memcmp(back.fingerprint, "0123456789abcdef", 16) == 0);
}

TEST(a_cost_is_a_number_of_seconds)
{
    struct tsri_request *r = fresh(TSRI_WIRE_PUT_OPEN);
    a_store(r);
    r->store.cost_s = 1.5f;
    CHECK(there_and_back());
    CHECK(back.store.cost_s == 1.5f);
    static const uint32_t wrong[] = {0x7fc00000u /* NaN */, 0x7f800000u /* infinite */,
                                     0xbf800000u /* -1 */, 0x80000000u /* -0 */, 0x4f000000u};
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++) {
        memcpy(frame + 24 + 36, &wrong[i], 4);
        CHECK_INT(tsri_request_decode(&back, TSRI_WIRE_PUT_OPEN, frame + 24, frame_bytes - 24),
                  TSR_EINVAL);
    }
}

/* Parts one after the other are the frame. */
TEST(sent_in_parts_a_request_is_the_same_bytes)
{
    static uint32_t many[5000];
    static uint8_t small[65536], whole[65536], joined[65536];
    for (uint32_t i = 0; i < TSRI_COUNT(many); i++)
        many[i] = i * 2654435761u;
    static const uint32_t lengths[] = {1, 1023, 1024, 1025, 4999, 5000};
    for (size_t i = 0; i < TSRI_COUNT(lengths); i++) {
        struct tsri_wire_parts parts;
        struct tsri_request *r = fresh(TSRI_WIRE_LOOKUP);
        const uint32_t spaces[3] = {1, 2, 3};
        r->lookup = (struct tsri_wire_lookup){.n_spaces = 3, .matches_max = 7, .spaces = spaces};
        r->prompt = a_prompt();
        r->prompt.tokens = many;
        r->prompt.n_tokens = lengths[i];
        size_t bytes, small_bytes, n = 0;
        CHECK_INT(tsri_request_bytes(r, &bytes), 0);
        CHECK(bytes <= sizeof whole);
        tsri_request_encode(r, 9, 1, whole, bytes);
        CHECK_INT(tsri_request_parts_bytes(r, &small_bytes), 0);
        tsri_request_encode_parts(r, 9, 1, small, &parts);
        CHECK_INT(small_bytes, bytes - (lengths[i] >= 1024 ? lengths[i] * 4 : 0));
        CHECK_INT(parts.n, lengths[i] >= 1024 ? 3 : 1);
        for (uint32_t k = 0; k < parts.n; k++) {
            CHECK(n + parts.list[k].iov_len <= sizeof joined);
            memcpy(joined + n, parts.list[k].iov_base, parts.list[k].iov_len);
            n += parts.list[k].iov_len;
        }
        CHECK_INT(n, bytes);
        CHECK(memcmp(joined, whole, bytes) == 0);
    }
}

TEST(a_request_cut_short_or_drawn_out_is_refused)
{
    struct tsri_request *r = fresh(TSRI_WIRE_LOOKUP);
    const uint32_t spaces[1] = {0};
    r->lookup = (struct tsri_wire_lookup){.n_spaces = 1, .matches_max = 1, .spaces = spaces};
    r->prompt = a_prompt();
    CHECK(there_and_back());
    size_t body = frame_bytes - 24;
    for (size_t n = 0; n < body; n += 8) {
        CHECK_INT(tsri_request_decode(&back, TSRI_WIRE_LOOKUP, frame + 24, n), TSR_EINVAL);
        CHECK_HAS(tsr_errmsg(), "malformed lookup");
    }
    memset(frame + frame_bytes, 0, 8);
    CHECK_INT(tsri_request_decode(&back, TSRI_WIRE_LOOKUP, frame + 24, body + 8), TSR_EINVAL);
}

TEST(a_type_nobody_knows_is_unsupported)
{
    CHECK_INT(tsri_request_decode(&back, 0, frame, 0), TSR_EUNSUP);
    CHECK_INT(tsri_request_decode(&back, 4711, frame, 0), TSR_EUNSUP);
    CHECK_HAS(tsr_errmsg(), "4711");
}

TEST(counts_beyond_their_limits_are_refused_by_both_sides)
{
    static uint32_t many[TSRI_WIRE_SEGMENTS_MAX * 2 + 2];
    struct tsri_request *r = fresh(TSRI_WIRE_LOOKUP);
    size_t bytes;
    r->lookup = (struct tsri_wire_lookup){.n_spaces = TSRI_WIRE_SPACES_MAX + 1, .spaces = many};
    r->prompt = a_prompt();
    CHECK_INT(tsri_request_bytes(r, &bytes), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "lookup");
    r->lookup.n_spaces = TSRI_WIRE_SPACES_MAX;
    r->lookup.spaces = many;
    r->prompt = a_prompt();
    CHECK_INT(tsri_request_bytes(r, &bytes), 0);
    r->prompt.n_segments = TSRI_WIRE_SEGMENTS_MAX + 1;
    r->prompt.segments = (const struct tsr_range *)(const void *)many;
    CHECK_INT(tsri_request_bytes(r, &bytes), TSR_ERANGE);
    r->prompt = a_prompt();
    r->prompt.recipe = many, r->prompt.recipe_bytes = TSRI_WIRE_RECIPE_MAX + 1;
    CHECK_INT(tsri_request_bytes(r, &bytes), TSR_ERANGE);
    r->prompt.recipe_bytes = ((size_t)1 << 32) + 1; /* not by its low half either */
    r->prompt.recipe = many;
    CHECK_INT(tsri_request_bytes(r, &bytes), TSR_ERANGE);

    r = fresh(TSRI_WIRE_RELEASE);
    r->n = TSRI_WIRE_ITEMS_MAX + 1;
    CHECK_INT(tsri_request_bytes(r, &bytes), TSR_ERANGE);
    /* The same from outside: a body that says so. */
    struct wire_bytes b;
    memset(&b, 0, sizeof b);
    wb_u32(&b, TSRI_WIRE_ITEMS_MAX + 1), wb_u32(&b, 0);
    CHECK_INT(tsri_request_decode(&back, TSRI_WIRE_RELEASE, b.data, 8), TSR_EINVAL);
}

int main(void)
{
    RUN(hello_is_these_bytes);
    RUN(space_open_is_these_bytes);
    RUN(a_text_ends_where_it_says);
    RUN(lookup_is_these_bytes);
    RUN(retrieve_is_these_bytes_with_and_without_a_prompt);
    RUN(a_match_comes_back_as_it_was);
    RUN(release_contains_and_keys_are_these_bytes);
    RUN(store_and_put_are_these_bytes);
    RUN(the_small_requests_are_these_bytes);
    RUN(what_people_ask_is_these_bytes);
    RUN(a_cost_is_a_number_of_seconds);
    RUN(sent_in_parts_a_request_is_the_same_bytes);
    RUN(a_request_cut_short_or_drawn_out_is_refused);
    RUN(a_type_nobody_knows_is_unsupported);
    RUN(counts_beyond_their_limits_are_refused_by_both_sides);
    return test_end();
}
