/* The table of registered windows: what is registered is nominated at any offset, what is not is
 * not, and a full table goes on learning. */
#include "support/match_kit.h"
#include "support/test.h"

static struct kit k;

static void reopen(const char *windows_max)
{
    const char *options[] = {
        "host_size",     "64M", "host_page_size", "4K",   "windows_max", windows_max,
        "metadata_size", "8M",  "entries_max",    "4096", NULL};
    if (k.cache) kit_close(&k);
    kit_open(&k, options);
}

static uint64_t seed_of(const struct tsr_space *space)
{
    return tsri_window_seed(space->fingerprint, (struct tsri_key){0, 0});
}

/* Whether the scan of these tokens nominates (id, entry_offset) at `at`. */
static bool nominates(uint64_t seed, const uint32_t *tokens, uint32_t n, uint32_t at, uint32_t id,
                      uint32_t entry_offset)
{
    struct tsri_window_scan s;
    struct tsri_nominee out[TSRI_WINDOW_BATCH * TSRI_WINDOW_CANDIDATES];
    tsri_window_scan_init(&s, &k.cache->windows, seed, tokens, n);
    bool found = false;
    for (uint32_t p = 0; p < n;) {
        uint32_t n_out = tsri_window_scan_some(&s, p, &p, out);
        for (uint32_t i = 0; i < n_out; i++)
            found |= out[i].at == at && out[i].id == id && out[i].entry_offset == entry_offset;
    }
    return found;
}

static uint32_t count_at(const uint32_t *tokens, uint32_t n, uint32_t at)
{
    struct tsri_window_scan s;
    struct tsri_nominee out[TSRI_WINDOW_BATCH * TSRI_WINDOW_CANDIDATES];
    tsri_window_scan_init(&s, &k.cache->windows, seed_of(k.space), tokens, n);
    uint32_t count = 0, n_out = tsri_window_scan_some(&s, at, &at, out);
    for (uint32_t i = 0; i < n_out; i++)
        count += out[i].at == out[0].at;
    return count;
}

TEST(a_registered_window_is_nominated_wherever_it_stands_in_a_prompt)
{
    reopen("4096");
    uint32_t *entry = kit_tokens(1, 100), *other = kit_tokens(2, 700);
    uint32_t id = match_entry(&k, 1, entry, 100, TSR_KIND_SEGMENT);
    for (uint32_t at = 0; at < 600; at += 13) {
        struct text t;
        text_init(&t, 700);
        text_add(&t, other, at);
        text_add(&t, entry, 100);
        text_add(&t, other, 700);
        for (uint32_t w = 0; w + TSRI_WINDOW <= 100; w += TSRI_WINDOW)
            CHECK(nominates(seed_of(k.space), t.tokens, t.n, at + w, id, w));
        text_fini(&t);
    }
    /* To the last token, and with nothing behind it. */
    CHECK(nominates(seed_of(k.space), entry, 32, 0, id, 0));
    CHECK(nominates(seed_of(k.space), entry, 96, 64, id, 64));
    CHECK(!nominates(seed_of(k.space), entry, 31, 0, id, 0));
    CHECK(!nominates(seed_of(k.space), entry, 95, 64, id, 64));
    free(entry);
    free(other);
}

TEST(going_on_elsewhere_is_like_beginning_there)
{
    reopen("4096");
    uint32_t *entry = kit_tokens(1, 2000);
    uint32_t id = match_entry(&k, 1, entry, 2000, TSR_KIND_SEGMENT);
    struct tsri_window_scan s;
    struct tsri_nominee out[TSRI_WINDOW_BATCH * TSRI_WINDOW_CANDIDATES];
    tsri_window_scan_init(&s, &k.cache->windows, seed_of(k.space), entry, 2000);
    uint64_t seed = 7;
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t from = text_random(&seed, 2000), at = from, next;
        uint32_t n = tsri_window_scan_some(&s, at, &next, out);
        for (uint32_t w = (from + 31) / 32 * 32; w + 32 <= 2000 && w < next; w += 32) {
            bool found = false;
            for (uint32_t i = 0; i < n; i++)
                found |= out[i].at == w && out[i].id == id && out[i].entry_offset == w;
            CHECK(found);
        }
    }
    free(entry);
}

TEST(the_filter_passes_whatever_is_registered)
{
    reopen("65536");
    struct text docs[200];
    uint32_t ids[200];
    uint64_t seed = 3;
    for (uint32_t d = 0; d < 200; d++) {
        text_init(&docs[d], 1500);
        text_add_random(&docs[d], &seed, 1500, 40000);
        ids[d] = match_entry(&k, d, docs[d].tokens, 1500, TSR_KIND_SEGMENT);
        CHECK(ids[d] != TSRI_ID_NONE);
    }
    CHECK_INT(k.cache->windows.n_used, 200 * (1500 / 32));
    CHECK_INT(kit_metric(&k, TSRI_M_windows_dropped), 0);
    for (uint32_t d = 0; d < 200; d++) {
        struct tsri_window_scan s;
        struct tsri_nominee out[TSRI_WINDOW_BATCH * TSRI_WINDOW_CANDIDATES];
        uint32_t n_found = 0;
        tsri_window_scan_init(&s, &k.cache->windows, seed_of(k.space), docs[d].tokens, 1500);
        for (uint32_t p = 0; p < 1500;) {
            uint32_t n = tsri_window_scan_some(&s, p, &p, out);
            for (uint32_t i = 0; i < n; i++)
                n_found += out[i].id == ids[d] && out[i].entry_offset == out[i].at;
        }
        CHECK_INT(n_found, 1500 / 32);
    }
    for (uint32_t d = 0; d < 200; d++)
        text_fini(&docs[d]);
}

TEST(false_nominations_are_rare)
{
    reopen("65536");
    uint64_t seed = 5;
    struct text t;
    text_init(&t, 100000);
    for (uint32_t d = 0; d < 1000; d++) {
        t.n = 0;
        text_add_random(&t, &seed, 1024, 50000);
        if (match_entry(&k, d, t.tokens, 1024, TSR_KIND_SEGMENT) == TSRI_ID_NONE) break;
    }
    t.n = 0;
    text_add_random(&t, &seed, 100000, 50000);
    struct tsri_window_scan s;
    struct tsri_nominee out[TSRI_WINDOW_BATCH * TSRI_WINDOW_CANDIDATES];
    uint32_t n_false = 0;
    tsri_window_scan_init(&s, &k.cache->windows, seed_of(k.space), t.tokens, t.n);
    for (uint32_t p = 0; p < t.n;)
        n_false += tsri_window_scan_some(&s, p, &p, out);
    CHECK(n_false <= 100); /* 0.1 % */
    text_fini(&t);
}

TEST(other_spaces_and_other_extras_are_not_nominated)
{
    reopen("4096");
    struct tsr_space_desc desc = kit_desc();
    desc.salt = "tenant";
    struct tsr_space *other = kit_space(k.cache, &desc);
    uint32_t *entry = kit_tokens(1, 256);
    uint32_t id = match_entry(&k, 1, entry, 256, TSR_KIND_SEGMENT);
    uint8_t salt[] = "some salt";
    struct tsri_key extra = tsri_extra_hash(salt, sizeof salt);
    CHECK(nominates(seed_of(k.space), entry, 256, 0, id, 0));
    CHECK(!nominates(seed_of(other), entry, 256, 0, id, 0));
    CHECK(!nominates(tsri_window_seed(k.space->fingerprint, extra), entry, 256, 0, id, 0));
    tsr_space_close(other);
    free(entry);
}

TEST(windows_that_repeat_themselves_are_not_registered)
{
    reopen("4096");
    uint32_t entry[64];
    for (uint32_t period = 1; period <= 12; period++) {
        uint64_t before = k.cache->windows.n_added;
        for (uint32_t i = 0; i < 64; i++)
            entry[i] = 1000 * period + i % period;
        match_entry(&k, period, entry, 64, TSR_KIND_SEGMENT);
        bool registered = k.cache->windows.n_added > before;
        CHECK_INT(registered, period >= 8);
    }
    /* One token that differs is enough. */
    uint64_t before = k.cache->windows.n_added;
    for (uint32_t i = 0; i < 32; i++)
        entry[i] = 7;
    entry[31] = 8;
    match_entry(&k, 100, entry, 32, TSR_KIND_SEGMENT);
    CHECK_INT(k.cache->windows.n_added - before, 1);
}

TEST(blended_and_short_entries_and_those_with_media_are_not_registered)
{
    reopen("4096");
    uint32_t *tokens = kit_tokens(1, 256);
    match_entry(&k, 1, tokens, 31, TSR_KIND_SEGMENT);
    match_entry(&k, 2, tokens, 256, TSR_KIND_BLENDED);
    CHECK_INT(k.cache->windows.n_added, 0);
    struct tsr_extra media = {TSR_EXTRA_MEDIA, 100, 4, 5, "image"};
    struct tsr_extra salt = {TSR_EXTRA_SALT, 0, 0, 4, "salt"};
    struct tsr_store_desc store = {
        .kind = TSR_KIND_PREFIX, .tokens = tokens, .n_tokens = 256, .extra = &media, .n_extra = 1};
    struct tsr_space_desc desc = kit_desc();
    desc.block_tokens = 64;
    store.space = kit_space(k.cache, &desc);
    CHECK_INT(kit_store(&k, &store), 256);
    CHECK_INT(k.cache->windows.n_added, 3 * 2); /* the image is in the second block */
    store.extra = &salt;
    CHECK_INT(kit_store(&k, &store), 256);
    CHECK_INT(k.cache->windows.n_added, 7 * 2);
    tsr_space_close(store.space);
    free(tokens);
}

TEST(at_most_four_entries_are_nominated_for_one_window)
{
    reopen("4096");
    uint32_t *tokens = kit_tokens(1, 64), ids[10];
    for (uint32_t i = 0; i < 10; i++) {
        tokens[63] = i; /* the first window is the same in all, the second in none */
        ids[i] = match_entry(&k, i, tokens, 64, TSR_KIND_SEGMENT);
    }
    CHECK_INT(count_at(tokens, 64, 0), 4);
    CHECK_INT(kit_metric(&k, TSRI_M_windows_dropped), 6);
    CHECK(nominates(seed_of(k.space), tokens, 64, 32, ids[9], 32));
    free(tokens);
}

TEST(an_entry_that_repeats_a_text_is_found_by_its_first_places)
{
    reopen("4096");
    struct text t;
    uint32_t *part = kit_tokens(1, 32);
    text_init(&t, 320);
    for (uint32_t i = 0; i < 10; i++)
        text_add(&t, part, 32);
    uint32_t id = match_entry(&k, 1, t.tokens, 320, TSR_KIND_SEGMENT);
    for (uint32_t i = 0; i < 4; i++)
        CHECK(nominates(seed_of(k.space), part, 32, 0, id, i * 32));
    CHECK_INT(count_at(part, 32, 0), 4);
    CHECK_INT(kit_metric(&k, TSRI_M_windows_dropped), 0);
    text_fini(&t);
    free(part);
}

TEST(segments_do_not_give_way_to_blocks)
{
    reopen("4096");
    uint32_t *tokens = kit_tokens(1, 64), first = TSRI_ID_NONE;
    for (uint32_t i = 0; i < 4; i++) {
        tokens[63] = i;
        uint32_t id = match_entry(&k, i, tokens, 64, TSR_KIND_SEGMENT);
        if (i == 0) first = id;
    }
    tokens[63] = 4;
    uint32_t block = match_entry(&k, 4, tokens, 64, TSR_KIND_PREFIX);
    CHECK(nominates(seed_of(k.space), tokens, 64, 0, first, 0));
    CHECK(!nominates(seed_of(k.space), tokens, 64, 0, block, 0));
    CHECK(nominates(seed_of(k.space), tokens, 64, 32, block, 32));
    free(tokens);
}

TEST(blocks_give_way_to_segments)
{
    reopen("4096");
    uint32_t *tokens = kit_tokens(1, 64);
    for (uint32_t i = 0; i < 4; i++) {
        tokens[63] = i;
        match_entry(&k, i, tokens, 64, TSR_KIND_PREFIX);
    }
    tokens[63] = 4;
    uint32_t segment = match_entry(&k, 4, tokens, 64, TSR_KIND_SEGMENT);
    CHECK(nominates(seed_of(k.space), tokens, 64, 0, segment, 0));
    free(tokens);
}

TEST(registering_again_takes_no_second_place)
{
    reopen("4096");
    uint32_t *tokens = kit_tokens(1, 640);
    uint32_t id = match_entry(&k, 1, tokens, 640, TSR_KIND_SEGMENT);
    uint64_t used = k.cache->windows.n_used;
    CHECK_INT(used, 20);
    pthread_mutex_lock(&k.cache->lock);
    for (uint32_t i = 0; i < 5; i++)
        tsri_windows_add(k.cache, id);
    pthread_mutex_unlock(&k.cache->lock);
    CHECK_INT(k.cache->windows.n_used, used);
    CHECK_INT(count_at(tokens, 640, 0), 1);
    free(tokens);
}

static void drop(uint32_t id)
{
    pthread_mutex_lock(&k.cache->lock);
    tsri_entry_drop(k.cache, id, TSR_EVENT_DROPPED);
    pthread_mutex_unlock(&k.cache->lock);
}

/* A hot entry stays while a hundred times the table's content goes by: places of entries that are
 * gone are used first, also when their ids stand for others. */
TEST(what_lives_stays_registered_while_others_come_and_go)
{
    reopen("1024");
    uint32_t *hot = kit_tokens(1, 3200);
    uint32_t hot_id = match_entry(&k, 1, hot, 3200, TSR_KIND_SEGMENT), last = TSRI_ID_NONE;
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t *tokens = kit_tokens(100 + i, 3200);
        uint32_t id = match_entry(&k, 100 + i, tokens, 3200, TSR_KIND_SEGMENT);
        CHECK(id != TSRI_ID_NONE);
        uint32_t n_found = 0;
        for (uint32_t w = 0; w < 3200; w += 32)
            n_found += nominates(seed_of(k.space), tokens, 3200, w, id, w);
        CHECK_INT(n_found, 100); /* never stops learning */
        if (last != TSRI_ID_NONE) drop(last);
        last = id;
        free(tokens);
        i += i > 20 ? 100 : 0;
    }
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t *tokens = kit_tokens(5000 + i, 3200);
        drop(match_entry(&k, 5000 + i, tokens, 3200, TSR_KIND_SEGMENT));
        free(tokens);
    }
    uint32_t n_found = 0;
    for (uint32_t w = 0; w < 3200; w += 32)
        n_found += nominates(seed_of(k.space), hot, 3200, w, hot_id, w);
    CHECK(n_found >= 98);
    CHECK(kit_metric(&k, TSRI_M_windows_dropped) <= 20);
    free(hot);
}

TEST(a_full_table_loses_the_oldest_and_counts)
{
    reopen("1024");
    uint32_t ids[100], n_new = 0, n_old = 0;
    for (uint32_t i = 0; i < 100; i++) { /* 3200 windows */
        uint32_t *tokens = kit_tokens(i, 1024);
        ids[i] = match_entry(&k, i, tokens, 1024, TSR_KIND_SEGMENT);
        CHECK(ids[i] != TSRI_ID_NONE);
        free(tokens);
    }
    CHECK(kit_metric(&k, TSRI_M_windows_dropped) >= 3200 - k.cache->windows.n_buckets * 8);
    CHECK_INT(k.cache->windows.n_used + kit_metric(&k, TSRI_M_windows_dropped), 3200);
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t *old = kit_tokens(i, 1024), *new = kit_tokens(80 + i, 1024);
        for (uint32_t w = 0; w < 1024; w += 32) {
            n_old += nominates(seed_of(k.space), old, 1024, w, ids[i], w);
            n_new += nominates(seed_of(k.space), new, 1024, w, ids[80 + i], w);
        }
        free(old);
        free(new);
    }
    CHECK(n_new >= 20 * 32 * 95 / 100);
    CHECK(n_old <= 20 * 32 * 30 / 100);
}

TEST(a_window_costs_less_than_sixteen_bytes_with_its_filter)
{
    struct tsri_windows w;
    CHECK_INT(tsri_windows_init(&w, 1u << 20, 1u << 16), 0);
    CHECK((uint64_t)w.n_buckets * 9 * 8 <= (uint64_t)16 << 20);
    tsri_windows_fini(&w);
}

TEST(any_number_of_ids_leaves_room_for_the_rest_of_a_slot)
{
    for (uint32_t bits = 0; bits <= 28; bits++) {
        struct tsri_windows w;
        CHECK_INT(tsri_windows_init(&w, 1024, 1u << bits), 0);
        CHECK(w.id_bits >= bits && w.mark_bits >= 16 && w.mark_bits <= 32 && w.number_bits >= 12);
        CHECK(w.mark_bits + w.number_bits + w.id_bits <= 56);
        tsri_windows_fini(&w);
    }
}

TEST(without_the_option_there_is_no_table)
{
    if (k.cache) kit_close(&k);
    kit_open(&k, (const char *const[]){"any_offset", "false", NULL});
    uint32_t *tokens = kit_tokens(1, 256);
    uint32_t id = match_entry(&k, 1, tokens, 256, TSR_KIND_SEGMENT);
    CHECK(k.cache->windows.region.data == NULL);
    CHECK(!nominates(seed_of(k.space), tokens, 256, 0, id, 0));
    free(tokens);
}

struct reader {
    pthread_t thread;
    uint32_t *tokens;
    atomic_bool *stop;
    uint64_t n;
};

static void *read_on(void *arg)
{
    struct reader *r = arg;
    struct tsri_window_scan s;
    struct tsri_nominee out[TSRI_WINDOW_BATCH * TSRI_WINDOW_CANDIDATES];
    while (!atomic_load(r->stop)) {
        tsri_window_scan_init(&s, &k.cache->windows, seed_of(k.space), r->tokens, 2048);
        for (uint32_t p = 0; p < 2048;)
            r->n += tsri_window_scan_some(&s, p, &p, out);
    }
    return NULL;
}

TEST(readers_need_no_lock)
{
    reopen("1024");
    atomic_bool done = false;
    struct reader r[2];
    for (uint32_t i = 0; i < 2; i++) {
        r[i] = (struct reader){.tokens = kit_tokens(i, 2048), .stop = &done};
        CHECK_INT(pthread_create(&r[i].thread, NULL, read_on, &r[i]), 0);
    }
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t *tokens = kit_tokens(i % 7, 2048);
        drop(match_entry(&k, i, tokens, 2048, TSR_KIND_SEGMENT));
        free(tokens);
    }
    atomic_store(&done, true);
    for (uint32_t i = 0; i < 2; i++) {
        pthread_join(r[i].thread, NULL);
        free(r[i].tokens);
    }
    CHECK(kit_valid(&k));
}

int main(void)
{
    RUN(a_registered_window_is_nominated_wherever_it_stands_in_a_prompt);
    RUN(going_on_elsewhere_is_like_beginning_there);
    RUN(the_filter_passes_whatever_is_registered);
    RUN(false_nominations_are_rare);
    RUN(other_spaces_and_other_extras_are_not_nominated);
    RUN(windows_that_repeat_themselves_are_not_registered);
    RUN(blended_and_short_entries_and_those_with_media_are_not_registered);
    RUN(at_most_four_entries_are_nominated_for_one_window);
    RUN(an_entry_that_repeats_a_text_is_found_by_its_first_places);
    RUN(segments_do_not_give_way_to_blocks);
    RUN(blocks_give_way_to_segments);
    RUN(registering_again_takes_no_second_place);
    RUN(what_lives_stays_registered_while_others_come_and_go);
    RUN(a_full_table_loses_the_oldest_and_counts);
    RUN(a_window_costs_less_than_sixteen_bytes_with_its_filter);
    RUN(any_number_of_ids_leaves_room_for_the_rest_of_a_slot);
    RUN(without_the_option_there_is_no_table);
    RUN(readers_need_no_lock);
    if (k.cache) kit_close(&k);
    return test_end();
}
