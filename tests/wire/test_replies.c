/* test_replies.c - every reply is the bytes that docs/format.md says and comes back as it was; an
 * error answers any request. */
#include "wire/wire.h"

#include "support/test.h"
#include "support/wire_bytes.h"

static struct tsri_reply reply, back;
static _Alignas(8) uint8_t frame[8192];
static size_t frame_bytes;

static struct tsri_reply *fresh(uint16_t type, int32_t status)
{
    memset(&reply, 0, sizeof reply);
    reply.type = type;
    reply.status = status;
    return &reply;
}

static bool there_and_back(void)
{
    if (tsri_reply_bytes(&reply, &frame_bytes) != 0 || frame_bytes > sizeof frame) return false;
    memset(frame, 0xee, sizeof frame);
    tsri_reply_encode(&reply, 78, frame, frame_bytes);
    struct tsri_wire_head head;
    if (tsri_wire_head_get(frame, &head) != 0 || head.id != 78) return false;
    return tsri_reply_decode(&back, &head, frame + TSRI_WIRE_HEAD_BYTES) == 0 &&
           back.type == reply.type && back.status == reply.status;
}

static bool is(struct wire_bytes *want)
{
    wb_end(want);
    return frame_bytes == want->n && memcmp(frame, want->data, want->n) == 0;
}

TEST(an_error_answers_any_request_with_versions_and_words)
{
    static const uint16_t types[] = {TSRI_WIRE_HELLO, TSRI_WIRE_LOOKUP, TSRI_WIRE_STATS, 4711};
    for (size_t i = 0; i < TSRI_COUNT(types); i++) {
        struct tsri_reply *r = fresh(types[i], TSR_EVERSION);
        r->version_min = 2, r->version_max = 3;
        r->text = "too old", r->text_bytes = 7;
        CHECK(there_and_back());
        struct wire_bytes want;
        wb_head(&want, (uint16_t)(types[i] | 0x8000), 78, -9);
        wb_u32(&want, 2), wb_u32(&want, 3), wb_u32(&want, 7), wb_u32(&want, 0);
        wb_bytes(&want, "too old", 7), wb_fill(&want);
        CHECK(is(&want));
        CHECK(back.version_min == 2 && back.version_max == 3);
        CHECK(back.text_bytes == 7 && memcmp(back.text, "too old", 7) == 0);
    }
}

TEST(welcome_is_these_bytes)
{
    struct tsri_reply *r = fresh(TSRI_WIRE_HELLO, 0);
    r->welcome = (struct tsri_wire_welcome){.version = 1,
                                            .slot = 2,
                                            .word = 3,
                                            .pool_bytes = 4,
                                            .control_bytes = 5,
                                            .page_bytes = 6,
                                            .block_tokens = 7,
                                            .body_max = 8,
                                            .leases_max = 9,
                                            .calls_max = 10,
                                            .hash = 1,
                                            .boot_id = 12,
                                            .n_lost = 13};
    CHECK(there_and_back());
    struct wire_bytes want;
    wb_head(&want, 0x8001, 78, 0);
    wb_u32(&want, 1), wb_u32(&want, 2), wb_u64(&want, 3), wb_u64(&want, 4), wb_u64(&want, 5);
    wb_u32(&want, 6), wb_u32(&want, 7), wb_u32(&want, 8), wb_u32(&want, 9), wb_u32(&want, 10);
    wb_u32(&want, 1), wb_u64(&want, 12), wb_u64(&want, 13);
    CHECK(is(&want));
    CHECK(memcmp(&back.welcome, &r->welcome, sizeof r->welcome) == 0);
}

TEST(space_open_is_these_bytes)
{
    struct tsri_reply *r = fresh(TSRI_WIRE_SPACE_OPEN, 0);
    r->space = (struct tsri_wire_space){
        .space = 1,
        .block_tokens = 256,
        .fingerprint = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
        .n_layers = 32,
        .n_planes = 2,
        .row_bytes = {2048, 1024},
        .cell_tokens = 64,
        .page_bytes = 262144};
    CHECK(there_and_back());
    struct wire_bytes want;
    wb_head(&want, 0x8003, 78, 0);
    wb_u32(&want, 1), wb_u32(&want, 256), wb_bytes(&want, r->space.fingerprint, 16);
    wb_u32(&want, 32), wb_u32(&want, 2), wb_u32(&want, 2048), wb_u32(&want, 1024);
    wb_u32(&want, 64), wb_u32(&want, 262144);
    CHECK(is(&want));
    CHECK(memcmp(&back.space, &r->space, sizeof r->space) == 0);
}

TEST(lookup_is_these_bytes)
{
    struct tsri_reply *r = fresh(TSRI_WIRE_LOOKUP, 768);
    struct tsri_wire_match matches[2] = {
        {.entry = 5,
         .epoch = 13,
         .prompt_offset = 6,
         .n_tokens = 7,
         .kind = 2,
         .context = 1,
         .tier = 3,
         .verified = 1,
         .base = 9},
        {.entry = 10, .epoch = 14, .entry_offset = 11, .freq_set = 12}};
    r->n = 1, r->n_spaces = 2, r->n_prefix_tokens = 256, r->matches = matches;
    CHECK(there_and_back());
    struct wire_bytes want;
    wb_head(&want, 0x8005, 78, 768);
    wb_u32(&want, 1), wb_u32(&want, 256), wb_u32(&want, 2), wb_u32(&want, 0);
    wb_u64(&want, 5), wb_u64(&want, 13), wb_u32(&want, 6), wb_u32(&want, 0), wb_u32(&want, 7);
    wb_bytes(&want, "\2\1\3\1", 4), wb_u32(&want, 9), wb_u32(&want, 0), wb_u64(&want, 0);
    wb_u64(&want, 10), wb_u64(&want, 14);
    wb_u32(&want, 0), wb_u32(&want, 11), wb_u32(&want, 0);
    wb_u32(&want, 0), wb_u32(&want, 0), wb_u32(&want, 12), wb_u64(&want, 0);
    CHECK(is(&want));
    CHECK(back.n == 1 && back.n_spaces == 2 && back.n_prefix_tokens == 256);
    CHECK(memcmp(back.matches, matches, sizeof matches) == 0);
}

TEST(retrieve_is_these_bytes)
{
    struct tsri_reply *r = fresh(TSRI_WIRE_RETRIEVE, 1);
    const struct tsri_wire_lent lent[2] = {
        {.result = 0, .entry_tokens = 100, .cell_first = 1, .n_pages = 3, .base = 4, .freq_set = 5},
        {.result = TSR_ENOENT}};
    const uint32_t pages[3] = {30, 31, 32};
    r->n = 2, r->n_pages = 3, r->lent = lent, r->pages = pages;
    CHECK(there_and_back());
    struct wire_bytes want;
    wb_head(&want, 0x8006, 78, 1);
    wb_u32(&want, 2), wb_u32(&want, 3);
    wb_u32(&want, 0), wb_u32(&want, 100), wb_u32(&want, 1), wb_u32(&want, 3), wb_u32(&want, 4);
    wb_u32(&want, 5);
    wb_u32(&want, (uint32_t)-6);
    for (int i = 0; i < 5; i++)
        wb_u32(&want, 0);
    wb_u32(&want, 30), wb_u32(&want, 31), wb_u32(&want, 32), wb_fill(&want);
    CHECK(is(&want));
    CHECK(back.pages[2] == 32 && back.lent[1].result == TSR_ENOENT);
}

TEST(the_small_replies_are_these_bytes)
{
    struct wire_bytes want;
    struct tsri_reply *r = fresh(TSRI_WIRE_PUT_OPEN, 0);
    r->put = 3, r->n_blocks = 4;
    CHECK(there_and_back());
    wb_head(&want, 0x8009, 78, 0);
    wb_u32(&want, 3), wb_u32(&want, 4);
    CHECK(is(&want));
    CHECK(back.put == 3 && back.n_blocks == 4);

    r = fresh(TSRI_WIRE_KEYS, 1);
    const struct tsr_key keys[1] = {{"0123456789abcde"}};
    r->n = 1, r->keys = keys;
    CHECK(there_and_back());
    wb_head(&want, 0x800d, 78, 1);
    wb_u32(&want, 1), wb_u32(&want, 0), wb_bytes(&want, keys, 16);
    CHECK(is(&want));

    r = fresh(TSRI_WIRE_CONTAINS, 2);
    const int8_t tiers[3] = {-1, 0, 2};
    r->n = 3, r->tiers = tiers;
    CHECK(there_and_back());
    wb_head(&want, 0x800e, 78, 2);
    wb_u32(&want, 3), wb_u32(&want, 0), wb_bytes(&want, "\xff\0\2", 3), wb_fill(&want);
    CHECK(is(&want));
    CHECK(back.tiers[0] == -1 && back.tiers[2] == 2);

    r = fresh(TSRI_WIRE_EVENTS, 1);
    const struct tsr_event events[1] = {
        {.key = {"0123456789abcde"}, .n_tokens = 5, .kind = 1, .entry_kind = 2, .tier = 3}};
    r->n = 1, r->events = events;
    CHECK(there_and_back());
    wb_head(&want, 0x8018, 78, 1);
    wb_u32(&want, 1), wb_u32(&want, 0), wb_bytes(&want, "0123456789abcde", 16);
    wb_u64(&want, 0), wb_u64(&want, 0), wb_u32(&want, 5), wb_bytes(&want, "\1\2\3\0", 4);
    CHECK(is(&want));
    CHECK(memcmp(back.events, events, sizeof events) == 0);
}

TEST(lists_are_these_bytes)
{
    struct wire_bytes want;
    struct tsri_reply *r = fresh(TSRI_WIRE_LIST, 1);
    const struct tsri_wire_entry entries[1] = {{.entry = 5,
                                                .key = "0123456789abcde",
                                                .space = "fedcba987654321",
                                                .bytes = 4096,
                                                .n_tokens = 64,
                                                .pins = 3,
                                                .user_pins = 2,
                                                .kind = 1,
                                                .tiers = 3}};
    r->n = 1, r->next = 7, r->entries = entries;
    CHECK(there_and_back());
    wb_head(&want, 0x801a, 78, 1);
    wb_u32(&want, 1), wb_u32(&want, 7), wb_u64(&want, 5), wb_bytes(&want, "0123456789abcde", 16);
    wb_bytes(&want, "fedcba987654321", 16), wb_u64(&want, 4096), wb_u32(&want, 64);
    wb_u32(&want, 3), wb_u16(&want, 2), wb_bytes(&want, "\1\3", 2), wb_u32(&want, 0);
    CHECK(is(&want));
    CHECK(back.next == 7 && memcmp(back.entries, entries, sizeof entries) == 0);
    r = fresh(TSRI_WIRE_ORDER, 9);
    r->n = 1, r->next = 7, r->entries = entries;
    CHECK(there_and_back());
    CHECK(back.status == 9 && back.next == 7);
    CHECK(memcmp(back.entries, entries, sizeof entries) == 0);
    r = fresh(TSRI_WIRE_EVICT_KEYS, 1);
    r->n = 1, r->keys = (const struct tsr_key *)entries[0].key;
    CHECK(there_and_back());
    wb_head(&want, 0x801f, 78, 1);
    wb_u32(&want, 1), wb_u32(&want, 0), wb_bytes(&want, "0123456789abcde", 16);
    CHECK(is(&want));

    r = fresh(TSRI_WIRE_SPACES, 1);
    struct tsri_wire_space_row spaces[1] = {{.fingerprint = "0123456789abcde",
                                             .model = "a model",
                                             .token_bytes = 131072,
                                             .refs = 1,
                                             .entries = 2}};
    r->n = 1, r->spaces = spaces;
    CHECK(there_and_back());
    wb_head(&want, 0x801b, 78, 1);
    wb_u32(&want, 1), wb_u32(&want, 0), wb_bytes(&want, "0123456789abcde", 16);
    wb_bytes(&want, spaces[0].model, 64), wb_u64(&want, 131072), wb_u32(&want, 1);
    wb_u32(&want, 2);
    CHECK(is(&want));
    memset(spaces[0].model, 'x', sizeof spaces[0].model); /* a text that does not end */
    CHECK(!there_and_back());
}

TEST(stats_are_numbers_or_a_text)
{
    struct wire_bytes want;
    struct tsri_reply *r = fresh(TSRI_WIRE_STATS, 0);
    const uint64_t numbers[2] = {11, 12};
    r->n = 2, r->numbers = numbers;
    CHECK(there_and_back());
    wb_head(&want, 0x8017, 78, 0);
    wb_u32(&want, 2), wb_u32(&want, 0), wb_u64(&want, 11), wb_u64(&want, 12);
    CHECK(is(&want));
    CHECK(back.numbers[1] == 12);
    r = fresh(TSRI_WIRE_STATS, 0);
    r->text = "{}", r->text_bytes = 2;
    CHECK(there_and_back());
    wb_head(&want, 0x8017, 78, 0);
    wb_u32(&want, 0), wb_u32(&want, 2), wb_bytes(&want, "{}", 2), wb_fill(&want);
    CHECK(is(&want));
    CHECK(back.text_bytes == 2 && memcmp(back.text, "{}", 2) == 0);
}

TEST(flush_is_these_bytes)
{
    fresh(TSRI_WIRE_FLUSH, 0)->n_lost = 1ull << 40;
    CHECK(there_and_back());
    struct wire_bytes want;
    wb_head(&want, 0x8016, 78, 0);
    wb_u64(&want, 1ull << 40);
    CHECK(is(&want));
    CHECK(back.n_lost == 1ull << 40);
}

TEST(the_rest_say_everything_in_their_status)
{
    static const uint16_t types[] = {TSRI_WIRE_PING,      TSRI_WIRE_SPACE_CLOSE, TSRI_WIRE_RELEASE,
                                     TSRI_WIRE_STORE,     TSRI_WIRE_PUT_LAYERS,  TSRI_WIRE_CLEAR,
                                     TSRI_WIRE_PUT_COMMIT};
    for (size_t i = 0; i < TSRI_COUNT(types); i++) {
        fresh(types[i], 5);
        CHECK(there_and_back());
        struct wire_bytes want;
        wb_head(&want, (uint16_t)(types[i] | 0x8000), 78, 5);
        CHECK(is(&want));
    }
}

TEST(what_is_no_reply_is_refused)
{
    struct tsri_wire_head head = {.version = 1, .type = TSRI_WIRE_PING};
    CHECK_INT(tsri_reply_decode(&back, &head, NULL), TSR_EINVAL); /* a request */
    head.type = 4711 | TSRI_WIRE_REPLY;                           /* success of what? */
    CHECK_INT(tsri_reply_decode(&back, &head, NULL), TSR_EINVAL);
    head.type = TSRI_WIRE_PING | TSRI_WIRE_REPLY;
    CHECK_INT(tsri_reply_decode(&back, &head, NULL), 0);
    head.body_bytes = 8;
    CHECK_INT(tsri_reply_decode(&back, &head, frame), TSR_EINVAL);
}

int main(void)
{
    RUN(an_error_answers_any_request_with_versions_and_words);
    RUN(welcome_is_these_bytes);
    RUN(space_open_is_these_bytes);
    RUN(lookup_is_these_bytes);
    RUN(retrieve_is_these_bytes);
    RUN(the_small_replies_are_these_bytes);
    RUN(lists_are_these_bytes);
    RUN(stats_are_numbers_or_a_text);
    RUN(flush_is_these_bytes);
    RUN(the_rest_say_everything_in_their_status);
    RUN(what_is_no_reply_is_refused);
    return test_end();
}
