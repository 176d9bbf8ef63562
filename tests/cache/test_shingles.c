/* The table of shingles: what is registered is nominated, in so many bytes, and what is gone makes
 * room. */
#include "support/match_kit.h"
#include "support/test.h"

#define BATCH TSRI_SHINGLE_BATCH

static struct kit k;
static struct tsri_shingled out[BATCH * TSRI_SHINGLE_CANDIDATES];

static void reopen(const char *windows_max, const char *entries_max)
{
    if (k.cache) kit_close(&k);
    kit_open(&k, (const char *const[]){"host_size", "64M", "host_page_size", "4K", "metadata_size",
                                       "16M", "windows_max", windows_max, "entries_max",
                                       entries_max, "partial", "edits", NULL});
}

static uint64_t window_seed(void)
{
    return tsri_window_seed(k.space->fingerprint, tsri_extra_hash(NULL, 0));
}

static uint32_t nominate(const uint32_t *tokens, uint32_t at, uint32_t n)
{
    return tsri_shingles_nominate(&k.cache->shingles, window_seed(), tokens, at, n, out);
}

/* Whether one of the shingles of n tokens nominates the entry. */
static bool is_nominated(const uint32_t *tokens, uint32_t n, uint32_t id)
{
    uint32_t found = nominate(tokens, 0, n - TSRI_SHINGLE + 1);
    for (uint32_t i = 0; i < found; i++)
        if (out[i].id == id) return true;
    return false;
}

TEST(any_19_tokens_of_an_entry_nominate_it)
{
    reopen("4096", "4096");
    uint32_t *doc = kit_tokens(1, 200), id = match_entry(&k, 1, doc, 200, TSR_KIND_SEGMENT);
    uint32_t n_missed = 0;
    CHECK_INT(k.cache->shingles.n_used, (200 - 8) / 12 + 1 + 2); /* and at 16 and 92 */
    for (uint32_t from = 0; from + 19 <= 200; from++)
        CHECK(is_nominated(doc + from, 19, id));
    for (uint32_t from = 0; from + 18 <= 200; from++)
        n_missed += !is_nominated(doc + from, 18, id);
    CHECK_INT(n_missed, 14); /* one offset in twelve, and not those with a shingle between */
    free(doc);
}

TEST(a_shingle_is_found_in_its_entry)
{
    uint32_t *doc = kit_tokens(1, 200);
    for (uint32_t at = 0; at + 8 <= 200; at += 12)
        CHECK_INT(tsri_shingle_place(doc + at, doc, 200), at);
    CHECK_INT(tsri_shingle_place(doc + 16, doc, 200), 16);
    CHECK_INT(tsri_shingle_place(doc + 92, doc, 200), 92);
    CHECK_INT(tsri_shingle_place(doc + 92, doc, 99), UINT32_MAX);
    CHECK_INT(tsri_shingle_place(doc + 5, doc, 200), UINT32_MAX);
    CHECK_INT(tsri_shingle_place(doc + 192, doc, 199), UINT32_MAX);
    CHECK_INT(tsri_shingle_place(doc, doc, 7), UINT32_MAX);
    free(doc);
}

TEST(other_tokens_spaces_and_salts_nominate_next_to_nothing)
{
    reopen("65536", "4096");
    for (uint32_t i = 0; i < 50; i++) {
        uint32_t *doc = kit_tokens(i, 2000);
        match_entry(&k, i, doc, 2000, TSR_KIND_SEGMENT);
        free(doc);
    }
    uint32_t *other = kit_tokens(1000, 100000), *doc = kit_tokens(1, 2000), n = 0;
    for (uint32_t at = 0; at + BATCH + TSRI_SHINGLE <= 100000; at += BATCH)
        n += nominate(other, at, BATCH);
    CHECK(n < 20);
    n = 0;
    for (uint32_t at = 0; at + BATCH + TSRI_SHINGLE <= 2000; at += BATCH)
        n += tsri_shingles_nominate(&k.cache->shingles, window_seed() + 1, doc, at, BATCH, out);
    CHECK(n < 5);
    free(other);
    free(doc);
}

TEST(text_that_repeats_itself_is_not_registered)
{
    reopen("4096", "4096");
    uint32_t doc[120];
    for (uint32_t period = 1; period < 6; period++) {
        uint64_t before = k.cache->shingles.n_used;
        for (uint32_t i = 0; i < 120; i++)
            doc[i] = period * 100 + i % period;
        match_entry(&k, period, doc, 120, TSR_KIND_SEGMENT);
        if (period < 4) CHECK_INT(k.cache->shingles.n_used, before);
        /* An entry has a slot for a shingle, however often the shingle stands in it. */
        if (period == 4) CHECK_INT(k.cache->shingles.n_used, before + 1);
        if (period == 5) CHECK_INT(k.cache->shingles.n_used, before + 5);
    }
}

TEST(text_that_many_entries_have_nominates_four_of_them)
{
    reopen("4096", "4096");
    uint32_t *doc = kit_tokens(1, 64);
    for (uint32_t i = 0; i < 20; i++) {
        doc[63] = 60000 + i;
        match_entry(&k, i, doc, 64, TSR_KIND_SEGMENT);
    }
    CHECK_INT(nominate(doc, 0, 1), TSRI_SHINGLE_CANDIDATES);
    CHECK_INT(k.cache->shingles.n_used, 6 * TSRI_SHINGLE_CANDIDATES);
    CHECK_INT(tsri_stats_read(k.cache->stats, TSRI_M_shingles_dropped), 6 * 16);
    /* When they are gone their places are given to others. */
    CHECK(kit_evict_all(&k) > 0);
    uint32_t id = match_entry(&k, 100, doc, 64, TSR_KIND_SEGMENT);
    CHECK(is_nominated(doc, 64, id));
    CHECK_INT(k.cache->shingles.n_used, 6 * TSRI_SHINGLE_CANDIDATES);
    free(doc);
}

/* Many lives of a table that holds a fraction of them: what is in memory is found. */
TEST(entries_that_are_gone_make_room)
{
    reopen("1024", "4096");
    struct tsri_shingles *t = &k.cache->shingles;
    for (uint32_t life = 0; life < 12; life++) {
        uint32_t n_found = 0, n_all = 0;
        for (uint32_t i = 0; i < 12; i++) { /* 2000 of 2730 shingles */
            uint32_t *doc = kit_tokens(life * 100 + i, 2000);
            uint32_t id = match_entry(&k, life * 100 + i, doc, 2000, TSR_KIND_SEGMENT);
            for (uint32_t at = 0; at + 8 <= 2000; at += 12) {
                n_found += is_nominated(doc + at, 8, id);
                n_all++;
            }
            free(doc);
        }
        CHECK(n_found >= n_all * 98 / 100);
        CHECK_INT(kit_evict_all(&k), 12);
    }
    CHECK(t->n_used <= (uint64_t)t->n_buckets * 16);
}

TEST(shingles_take_at_most_16_bytes_for_32_tokens)
{
    struct tsri_shingles t;
    CHECK_INT(tsri_shingles_init(&t, 1u << 20, 20000), 0);
    CHECK(t.region.bytes <= (16u << 20));
    tsri_shingles_fini(&t);
    CHECK_INT(tsri_shingles_init(&t, 0, 20000), 0);
    CHECK_INT(t.n_buckets, 0);
    tsri_shingles_fini(&t);
}

TEST(with_ids_beyond_what_a_slot_holds_the_first_are_registered)
{
    struct tsri_shingles t;
    CHECK_INT(tsri_shingles_init(&t, 1024, 1u << 28), 0);
    CHECK_INT(t.id_bits, 23);
    CHECK_INT(t.tag_bits, 6);
    tsri_shingles_fini(&t);
    CHECK_INT(tsri_shingles_init(&t, 1024, 1), 0);
    CHECK_INT(t.id_bits + t.tag_bits, 29);
    tsri_shingles_fini(&t);
}

TEST(there_is_no_table_unless_edits_are_looked_for)
{
    static const char *const options[][2] = {{"partial", "runs"}, {"any_offset", "false"}};
    uint32_t *doc = kit_tokens(1, 100);
    for (uint32_t i = 0; i < 2; i++) {
        if (k.cache) kit_close(&k);
        kit_open(&k, (const char *const[]){options[i][0], options[i][1], NULL});
        CHECK_INT(k.cache->shingles.n_buckets, 0);
        CHECK(match_entry(&k, 1, doc, 60, TSR_KIND_SEGMENT) != TSRI_ID_NONE);
    }
    free(doc);
}

int main(void)
{
    RUN(any_19_tokens_of_an_entry_nominate_it);
    RUN(a_shingle_is_found_in_its_entry);
    RUN(other_tokens_spaces_and_salts_nominate_next_to_nothing);
    RUN(text_that_repeats_itself_is_not_registered);
    RUN(text_that_many_entries_have_nominates_four_of_them);
    RUN(entries_that_are_gone_make_room);
    RUN(shingles_take_at_most_16_bytes_for_32_tokens);
    RUN(with_ids_beyond_what_a_slot_holds_the_first_are_registered);
    RUN(there_is_no_table_unless_edits_are_looked_for);
    if (k.cache) kit_close(&k);
    return test_end();
}
