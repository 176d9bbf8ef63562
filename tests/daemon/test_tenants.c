/* test_tenants.c - who has a cache of tesserad's, and that it is theirs alone. */
#include "daemon/daemon.h"

#include "support/test.h"
#include "support/wire_client.h"

#include <sys/stat.h>
#include <unistd.h>

static struct tmpdir dir;
static char tokens_path[300], disk_path[300], disk2_path[300];

static void write_tokens(const char *text, int mode)
{
    snprintf(tokens_path, sizeof tokens_path, "%.200s/tokens", dir.path);
    unlink(tokens_path);
    FILE *f = fopen(tokens_path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f) != 0 || chmod(tokens_path, (mode_t)mode) != 0)
        abort();
}

static int configure(struct tsr_config **out, void *arg)
{
    *out = kit_config(arg);
    return 0;
}

static int tenants_init(struct tsri_tenants *t, const char *const *options)
{
    struct tsr_config *cfg = kit_config(options);
    int e = tsri_tenants_init(t, tsri_config_options(cfg), configure, (void *)(uintptr_t)options);
    tsr_config_close(cfg);
    return e;
}

TEST(uids_are_read_from_a_list)
{
    uint32_t uids[3];
    CHECK_INT(tsri_uids_parse("", uids, 3), 0);
    CHECK_INT(tsri_uids_parse("0", uids, 3), 1);
    CHECK_INT(tsri_uids_parse("1000, 1001 ,65534", uids, 3), 3);
    CHECK(uids[0] == 1000 && uids[1] == 1001 && uids[2] == 65534);
    CHECK_INT(tsri_uids_parse("1,2,3,4", uids, 3), TSR_ECONFIG);
    static const char *const bad[] = {"x", "1,", ",1", "1 2", "-1", "4294967295", "1,,2", "0x"};
    for (size_t i = 0; i < TSRI_COUNT(bad); i++) {
        CHECK_INT(tsri_uids_parse(bad[i], uids, 3), TSR_ECONFIG);
        CHECK_HAS(tsr_errmsg(), "server_allow");
    }
}

TEST(every_tenant_has_a_cache_and_a_folder_of_its_own)
{
    struct tsri_tenants t;
    write_tokens("# who\n\nalice  secret-1\n\tbob secret-2\r\n", 0600);
    snprintf(disk_path, sizeof disk_path, "%.200s/store", dir.path);
    snprintf(disk2_path, sizeof disk2_path, "%.200s/store-2", dir.path);
    const char *const options[] = {"server_allow", "4321",      "server_tokens",
                                   tokens_path,    "disk_path", disk_path,
                                   "disk2_path",   disk2_path,  NULL};
    CHECK_INT(tenants_init(&t, options), 0);
    CHECK_INT(t.n, 4);
    CHECK(t.list[0].uid == geteuid() && !t.list[0].token);
    CHECK_STR(t.list[1].name, "uid-4321");
    CHECK(t.list[1].uid == 4321);
    CHECK_STR(t.list[2].name, "alice");
    CHECK_STR(t.list[3].token, "secret-2");
    char path[400];
    struct stat st;
    for (uint32_t i = 0; i < t.n; i++) {
        CHECK(t.list[i].cache->pool.region.shared);
        for (uint32_t j = 0; j < i; j++)
            CHECK(t.list[i].cache != t.list[j].cache &&
                  t.list[i].cache->pool.region.fd != t.list[j].cache->pool.region.fd);
        for (int k = 0; k < 2; k++) {
            const char *store = k ? disk2_path : disk_path;
            snprintf(path, sizeof path, i ? "%s/tenants/%s" : "%s", store, t.list[i].name);
            CHECK(stat(path, &st) == 0 && S_ISDIR(st.st_mode));
            CHECK_INT(st.st_mode & 077, 0);
        }
    }
    tsri_tenants_fini(&t);
    tsri_tenants_fini(&t);
}

TEST(a_name_below_the_server_s_must_have_room)
{
    struct tsri_tenants t;
    char longest[TSRI_TENANT_MAX + 1];
    snprintf(longest, sizeof longest, "%s.%s.%s", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
             "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "cccccccccccccccccccccccc");
    const char *const one[] = {"tenant", longest, NULL};
    CHECK_INT(tenants_init(&t, one), 0);
    tsri_tenants_fini(&t);
    const char *const two[] = {"tenant", longest, "server_allow", "4321", NULL};
    CHECK_INT(tenants_init(&t, two), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "tenant");
}

TEST(a_file_of_tokens_that_is_not_right_is_refused_with_its_line)
{
    struct tsri_tenants t;
    const char *const options[] = {"server_tokens", tokens_path, NULL};
    static const struct {
        const char *text, *words;
    } bad[] = {{"alice\n", ":1:"},
               {"a b c\n", ":1:"},
               {"\n# x\n../x secret\n", ":3:"},
               {"uid-7 secret\n", ":1:"},
               {"a secret\na other\n", "duplicate tenant"},
               {"a secret\nb secret\n", "the same token"},
               {"averyveryveryveryveryveryverylongname x\n", ":1:"}};
    for (size_t i = 0; i < TSRI_COUNT(bad); i++) {
        write_tokens(bad[i].text, 0600);
        CHECK_INT(tenants_init(&t, options), TSR_ECONFIG);
        CHECK_HAS(tsr_errmsg(), bad[i].words);
        CHECK_INT(t.n, 0);
    }
    write_tokens("alice secret\nbob other\n", 0600);
    FILE *f = fopen(tokens_path, "r+"); /* a NUL would end the text before bob */
    CHECK(f && fseek(f, 9, SEEK_SET) == 0 && fputc(0, f) == 0 && fclose(f) == 0);
    CHECK_INT(tenants_init(&t, options), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "NUL");
    write_tokens("alice secret\n", 0640);
    CHECK_INT(tenants_init(&t, options), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "others may read it (mode 0640, must be 0600)");
    unlink(tokens_path);
    CHECK_INT(tenants_init(&t, options), TSR_ECONFIG);
}

/* Opens a client by token and stores or finds a segment. */
static int as(const char *path, const char *token, const struct tsr_space *model, bool store)
{
    struct wire_client c;
    struct tsr_space_desc desc = kit_desc();
    struct tsri_wire_match match;
    uint32_t *tokens = kit_tokens(3, 40);
    int n = -1000;
    if (wc_connect(&c, path) && wc_stage(&c, 1 << 20) && wc_hello(&c, token) == 0 &&
        wc_space(&c, &desc) == 0)
        n = store ? wc_store_segment(&c, model, 0, tokens, 40)
                  : wc_find_segment(&c, 0, tokens, 40, 0, &match);
    free(tokens);
    wc_close(&c);
    return n;
}

TEST(nothing_of_one_tenant_is_found_by_another)
{
    struct tsri_tenants t;
    struct tsr_server *server;
    char path[TSRI_SOCKET_PATH_BYTES];
    write_tokens("alice secret-1\nbob secret-2\n", 0600);
    const char *const options[] = {"server_tokens", tokens_path, NULL};
    CHECK_INT(tenants_init(&t, options), 0);
    struct tsr_config *cfg = kit_config(NULL);
    snprintf(path, sizeof path, "%.80s/run/sock", dir.path);
    CHECK_INT(tsr_config_set(cfg, "server_socket", path), 0);
    struct tsri_server_desc desc = {.tenants = t.list, .n_tenants = t.n, .listen_fd = -1};
    CHECK_INT(tsri_server_open(&server, &desc, tsri_config_options(cfg)), 0);
    struct tsr_space_desc model_desc = kit_desc();
    struct tsr_space *model = kit_space(t.list[0].cache, &model_desc);
    CHECK_INT(as(path, "secret-1", model, true), 40);
    CHECK_INT(as(path, "secret-1", model, false), 40);
    CHECK_INT(as(path, "secret-2", model, false), 0);
    CHECK_INT(as(path, NULL, model, false), 0);
    CHECK_INT(as(path, "secret-3", model, false), -1000);
    CHECK_INT(as(path, "secret-", model, false), -1000);
    CHECK_INT(as(path, "secret-2", model, true), 40);
    CHECK_INT(as(path, "secret-2", model, false), 40);
    tsr_space_close(model);
    tsr_server_close(server);
    tsr_config_close(cfg);
    tsri_tenants_fini(&t);
}

int main(void)
{
    tmpdir_init(&dir);
    RUN(uids_are_read_from_a_list);
    RUN(every_tenant_has_a_cache_and_a_folder_of_its_own);
    RUN(a_name_below_the_server_s_must_have_room);
    RUN(a_file_of_tokens_that_is_not_right_is_refused_with_its_line);
    RUN(nothing_of_one_tenant_is_found_by_another);
    tmpdir_fini(&dir);
    return test_end();
}
