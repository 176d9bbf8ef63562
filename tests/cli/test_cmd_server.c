/* test_cmd_server.c - the program as a user runs it against a server with something in it: what it
 * prints is what the server's cache has, and what it is told to do is done there. */
#include "support/fake_tier.h"
#include "support/test.h"
#include "support/wire_client.h"

#include <sys/wait.h>
#include <unistd.h>

static struct server_kit s;
static struct fake_tier_plan plan;
static char out[65536];

/* A server with a tier below, three segments and a prefix of two blocks. */
static void fresh(void)
{
    fake_tier_plan_init(&plan);
    server_open_tiers(&s, NULL, &plan, 1);
    for (uint64_t i = 0; i < 3; i++) {
        uint32_t *tokens = kit_tokens(10 + i, 64);
        CHECK_INT(kit_store_segment(&s.k, tokens, 64), 64);
        free(tokens);
    }
    uint32_t *tokens = kit_tokens(20, 32);
    CHECK_INT(kit_store_prefix(&s.k, tokens, 32), 32);
    free(tokens);
    CHECK_INT(tsr_cache_flush(s.k.cache), 0);
}

static void done(void)
{
    CHECK(server_end(&s));
    fake_tier_plan_fini(&plan);
}

/* Runs `tessera` with these arguments and --connect; the exit status. Everything it prints is in
 * out. */
static int tessera(const char *arguments)
{
    char command[2048];
    const char *b = getenv("B");
    snprintf(command, sizeof command, "%s/bin/tessera %s --connect=%s 2>&1", b ? b : "build",
             arguments, s.path);
    FILE *p = popen(command, "r");
    CHECK(p != NULL);
    size_t n = fread(out, 1, sizeof out - 1, p);
    out[n] = 0;
    int status = pclose(p);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* A prompt file with the tokens of a seed, as one text or, with `segment`, as a segment. */
static void write_prompt(const char *path, uint64_t seed, uint32_t n, bool segment)
{
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    uint32_t *tokens = kit_tokens(seed, n);
    fprintf(f, "{\"prompt\":%s", segment ? "[[" : "[");
    for (uint32_t i = 0; i < n; i++)
        fprintf(f, "%s%u", i ? "," : "", tokens[i]);
    fprintf(f, "%s}\n", segment ? "],[1]]" : "]");
    free(tokens);
    CHECK_INT(fclose(f), 0);
}

static const char *prompt_path(void)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/prompt", s.dir.path);
    return path;
}

static uint32_t n_lines(const char *text, const char *part)
{
    uint32_t n = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
        n++;
    return n;
}

TEST(stat_prints_the_servers_numbers)
{
    fresh();
    CHECK_INT(tessera("stat --prometheus"), 0);
    CHECK_HAS(out, "tessera_stores_total 4\n");
    CHECK_INT(tessera("stat --json"), 0);
    CHECK_HAS(out, "\"stores\":4");
    CHECK_INT(tessera("stat"), 0);
    CHECK_HAS(out, "stores");
    done();
}

TEST(ls_lists_every_entry_and_where_it_is)
{
    fresh();
    CHECK_INT(tessera("ls"), 0);
    CHECK_INT(n_lines(out, "segment"), 3);
    CHECK_INT(n_lines(out, "prefix"), 2);
    CHECK_INT(n_lines(out, "host, 1"), 5);
    CHECK_HAS(out, "5 entries, 224 tokens, 56.0 KiB\n");
    CHECK_INT(kit_evict_all(&s.k), 5);
    CHECK_INT(tessera("ls --json --order=size"), 0);
    CHECK_INT(n_lines(out, "\"tiers\":[1]"), 5);
    CHECK_INT(n_lines(out, "\"in_use\":0,\"pinned\":0"), 5);
    CHECK(strstr(out, "segment") < strstr(out, "prefix"));
    CHECK_INT(tessera("ls --order=eviction"), 2);
    CHECK_HAS(out, "must be key or size");
    CHECK_INT(tessera("ls somewhere"), 2);
    done();
}

TEST(evict_makes_room_and_warm_brings_back)
{
    fresh();
    uint64_t used = kit_stats(&s.k).tier_entries[0];
    CHECK_INT(used, 5);
    CHECK_INT(tessera("evict 1G"), 0);
    CHECK_HAS(out, "5 entries evicted");
    CHECK_INT(kit_stats(&s.k).tier_entries[0], 0);
    CHECK_INT(tessera("warm --json"), 0);
    CHECK_STR(out, "{\"warmed\":5}\n");
    CHECK_INT(kit_stats(&s.k).tier_entries[0], 5);
    CHECK_INT(tessera("evict much"), 2);
    CHECK_HAS(out, "much: not a size");
    done();
}

TEST(clear_empties_all_of_it_or_one_space)
{
    fresh();
    struct tsr_space_desc desc = kit_desc();
    desc.model = "other";
    struct tsr_space *other = kit_space(s.k.cache, &desc);
    uint32_t *tokens = kit_tokens(10, 64);
    struct tsr_store_desc one = {.size = sizeof one,
                                 .space = other,
                                 .kind = TSR_KIND_SEGMENT,
                                 .tokens = tokens,
                                 .n_tokens = 64};
    CHECK_INT(kit_store(&s.k, &one), 64);
    uint8_t f[16];
    char command[64];
    tsr_space_fingerprint(other, f);
    snprintf(command, sizeof command, "clear --space=%02x%02x%02x%02x", f[0], f[1], f[2], f[3]);
    CHECK_INT(tessera(command), 0);
    CHECK_HAS(out, "1 entries cleared");
    CHECK_INT(kit_stats(&s.k).entries, 5);
    CHECK_INT(tessera("clear --space=00000000"), 1);
    CHECK_HAS(out, "no such space; choose one with --space:");
    CHECK_INT(tessera("clear --space=xyz"), 2);
    CHECK_INT(tessera("clear"), 0);
    CHECK_HAS(out, "5 entries cleared");
    CHECK_INT(kit_stats(&s.k).entries, 0);
    tsr_space_close(other);
    free(tokens);
    done();
}

TEST(flush_writes_down_what_was_stored)
{
    fresh();
    uint32_t *tokens = kit_tokens(30, 64);
    CHECK_INT(kit_store_segment(&s.k, tokens, 64), 64);
    CHECK_INT(tessera("flush"), 0);
    CHECK_STR(out, "flushed\n");
    pthread_mutex_lock(&plan.mem.lock); /* the server's threads are at work */
    uint64_t n_items = plan.mem.n_items;
    pthread_mutex_unlock(&plan.mem.lock);
    CHECK_INT(n_items, 6);
    fake_tier_fail(&plan, FAKE_FLUSH, 1, 100, TSR_EIO);
    CHECK_INT(tessera("flush --json"), 1); /* and when that cannot be done it is said */
    CHECK_HAS(out, "tessera: ");
    free(tokens);
    done();
}

TEST(pins_keep_a_text_until_they_are_undone)
{
    fresh();
    char command[600];
    write_prompt(prompt_path(), 11, 64, true);
    snprintf(command, sizeof command, "pin %s", prompt_path());
    CHECK_INT(tessera(command), 0);
    CHECK_HAS(out, "1 entries pinned");
    CHECK_INT(kit_stats(&s.k).pinned, 1);
    CHECK_INT(kit_evict_all(&s.k), 4);
    snprintf(command, sizeof command, "unpin --json %s", prompt_path());
    CHECK_INT(tessera(command), 0);
    CHECK_STR(out, "{\"unpinned\":1}\n");
    CHECK_INT(kit_stats(&s.k).pinned, 0);
    done();
}

TEST(inspect_shows_what_the_server_would_find)
{
    fresh();
    char command[600];
    write_prompt(prompt_path(), 11, 64, false); /* not as it was cut: found anywhere */
    snprintf(command, sizeof command, "inspect %s", prompt_path());
    CHECK_INT(tessera(command), 0);
    CHECK_HAS(out, "0..63 of 64");
    CHECK_HAS(out, "prompt: 64 tokens, 64 found (100.0 %)");
    write_prompt(prompt_path(), 20, 40, false);
    snprintf(command, sizeof command, "inspect --json %s", prompt_path());
    CHECK_INT(tessera(command), 0);
    CHECK_HAS(out, "{\"tokens\":40,\"found\":32,\"matches\":[{\"offset\":0,\"tokens\":16,");
    CHECK_HAS(out, "\"kind\":\"prefix\"");
    CHECK_INT(server_metric(&s, TSRI_M_leased_entries), 0); /* nothing is held afterwards */
    FILE *f = fopen(prompt_path(), "w");
    CHECK(f && fputs("{\"prompt\":\"words\"}", f) >= 0 && fclose(f) == 0);
    CHECK_INT(tessera(command), 1);
    CHECK_HAS(out, "must be tokens");
    done();
}

TEST(several_spaces_are_told_apart)
{
    fresh();
    char command[700];
    struct tsr_space_desc desc = kit_desc();
    desc.model = "other";
    struct tsr_space *other = kit_space(s.k.cache, &desc);
    uint8_t f[16];
    write_prompt(prompt_path(), 11, 64, true);
    snprintf(command, sizeof command, "pin %s", prompt_path());
    CHECK_INT(tessera(command), 1);
    CHECK_HAS(out, "the server has several spaces; choose one with --space:");
    tsr_space_fingerprint(s.k.space, f);
    snprintf(command, sizeof command, "inspect --space=%02x%02x%02x%02x %s", f[0], f[1], f[2], f[3],
             prompt_path());
    CHECK_INT(tessera(command), 0);
    CHECK_HAS(out, "64 found");
    tsr_space_close(other);
    done();
}

int main(void)
{
    RUN(stat_prints_the_servers_numbers);
    RUN(ls_lists_every_entry_and_where_it_is);
    RUN(evict_makes_room_and_warm_brings_back);
    RUN(clear_empties_all_of_it_or_one_space);
    RUN(flush_writes_down_what_was_stored);
    RUN(pins_keep_a_text_until_they_are_undone);
    RUN(inspect_shows_what_the_server_would_find);
    RUN(several_spaces_are_told_apart);
    return test_end();
}
