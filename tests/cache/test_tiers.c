/* Which tiers stand below host memory, in which order and how each is used, as the configuration
 * says. */
#include "cache/manager.h"
#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/test.h"
#include "support/tmpdir.h"

#define PLANS TSRI_LOWER_MAX

/* "disk disk2 memory" and the like, or the error's number. */
static const char *order_of(const char *const *options, uint32_t n_attached)
{
    static char text[256];
    struct tsr_config *cfg = kit_config(options);
    for (uint32_t i = 0; i < n_attached; i++)
        CHECK_INT(tsr_tier_attach(cfg, i ? &null_tier : &mem_tier, NULL), 0);
    struct tsri_tier_plan plans[PLANS];
    int n = tsri_tiers_plan(cfg, plans);
    text[0] = '\0';
    for (int i = 0; i < n; i++) {
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, "%s%s", i ? " " : "", plans[i].name);
    }
    if (n < 0) snprintf(text, sizeof text, "%d", n);
    tsr_config_close(cfg);
    return text;
}

#define OPTIONS(...) ((const char *const[]){__VA_ARGS__, NULL})

TEST(without_an_order_the_built_in_ones_come_first)
{
    CHECK_STR(order_of(NULL, 0), "");
    CHECK_STR(order_of(OPTIONS("disk_path", "/x"), 0), "disk");
    CHECK_STR(order_of(OPTIONS("disk2_path", "/x"), 0), "disk2");
    CHECK_STR(order_of(OPTIONS("disk2_path", "/x", "disk_path", "/y"), 2), "disk disk2 mem null");
    CHECK_STR(order_of(OPTIONS("disk_path", "/x", "disk_enabled", "false"), 1), "mem");
}

TEST(the_configuration_names_the_order)
{
    CHECK_STR(order_of(OPTIONS("disk_path", "/x", "disk2_path", "/y", "tiers", "disk2,disk"), 0),
              "disk2 disk");
    CHECK_STR(order_of(OPTIONS("disk_path", "/x", "tiers", " null, disk ,mem"), 2),
              "null disk mem");
    /* what it does not name is left out */
    CHECK_STR(order_of(OPTIONS("disk_path", "/x", "disk2_path", "/y", "tiers", "disk2"), 1),
              "disk2");
}

TEST(a_tier_that_is_not_there_is_refused_by_name)
{
    CHECK_INT(atoi(order_of(OPTIONS("tiers", "disk"), 0)), TSR_ECONFIG);
    CHECK(strstr(tsr_errmsg(), "disk") != NULL);
    CHECK_INT(atoi(order_of(OPTIONS("disk_path", "/x", "tiers", "disk,disk"), 0)), TSR_ECONFIG);
    CHECK_INT(atoi(order_of(OPTIONS("disk_path", "/x", "tiers", "dis"), 0)), TSR_ECONFIG);
}

TEST(more_tiers_than_a_cache_can_have_are_refused)
{
    CHECK_INT(atoi(order_of(OPTIONS("disk_path", "/x"), TSRI_LOWER_MAX)), TSR_ERANGE);
}

TEST(every_policy_that_is_built_in_may_serve_any_tier)
{
    static const char *const options[] = {"disk_policy", "disk2_policy", "attached_policy"};
    const struct tsri_option *host = tsri_option_find("policy");
    for (size_t i = 0; i < TSRI_COUNT(options); i++) {
        const struct tsri_option *o = tsri_option_find(options[i]);
        for (size_t k = 0; host->names[k]; k++)
            CHECK(o && o->names[k] && strcmp(o->names[k], host->names[k]) == 0);
    }
}

/* Two disks: one takes nothing, one everything; then the other way round. */
TEST(each_tier_has_its_own_way_of_writing)
{
    struct tmpdir one, two;
    tmpdir_init_fast(&one);
    tmpdir_init_fast(&two);
    for (int round = 0; round < 2; round++) {
        const char *const options[] = {"disk_path",
                                       one.path,
                                       "disk_size",
                                       "64M",
                                       "disk_segment_size",
                                       "1M",
                                       "disk2_path",
                                       two.path,
                                       "disk2_size",
                                       "128M",
                                       round ? "disk2_write" : "disk_write",
                                       "none",
                                       NULL};
        struct kit k;
        kit_open(&k, options);
        struct tsri_manager *m = k.cache->manager;
        CHECK_INT(m->n_lower, 2);
        CHECK_STR(tsri_tier_name(m->lower[1].tier), "disk");
        CHECK_STR(tsri_tier_name(m->lower[2].tier), "disk2");
        struct tsr_tier_stats stats;
        CHECK_INT(tsri_tier_stats(m->lower[2].tier, &stats), 0);
        CHECK_INT(stats.bytes_max, 128 << 20);
        CHECK_INT(tsr_cache_clear(k.cache, NULL) >= 0, 1);
        uint32_t *tokens = kit_tokens((uint64_t)round + 1, 64);
        CHECK_INT(kit_store_segment(&k, tokens, 64), 64);
        CHECK_INT(tsr_cache_flush(k.cache), 0);
        CHECK_INT(kit_stats(&k).tier_entries[1], round);
        CHECK_INT(kit_stats(&k).tier_entries[2], !round);
        CHECK_INT(kit_evict_all(&k), 1);
        struct tsr_range whole = {0, 64};
        struct tsr_prompt prompt = kit_segment_prompt(tokens, 64, &whole);
        CHECK_INT(kit_load_and_check(&k, &prompt), 64);
        free(tokens);
        kit_close(&k);
    }
    tmpdir_fini(&one);
    tmpdir_fini(&two);
}

TEST(one_directory_cannot_be_two_tiers)
{
    struct tsr_config *cfg = kit_config(OPTIONS("disk_path", "/x", "disk2_path", "/x"));
    CHECK_INT(tsri_config_check(cfg), TSR_ECONFIG);
    tsr_config_close(cfg);
}

TEST(built_in_tiers_are_found_by_name)
{
    CHECK(tsri_tier_find("disk") == &tsri_tier_disk);
    CHECK(tsri_tier_find("floppy") == NULL);
}

int main(void)
{
    RUN(built_in_tiers_are_found_by_name);
    RUN(without_an_order_the_built_in_ones_come_first);
    RUN(the_configuration_names_the_order);
    RUN(a_tier_that_is_not_there_is_refused_by_name);
    RUN(more_tiers_than_a_cache_can_have_are_refused);
    RUN(every_policy_that_is_built_in_may_serve_any_tier);
    RUN(each_tier_has_its_own_way_of_writing);
    RUN(one_directory_cannot_be_two_tiers);
    return test_end();
}
