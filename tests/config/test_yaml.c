/* test_yaml.c - which YAML is taken, and that everything else is refused with its place. */
#include "config/config.h"
#include "support/test.h"

#include <sys/stat.h>
#include <unistd.h>

static struct tsr_config *cfg;

static void reopen(void)
{
    tsr_config_close(cfg);
    CHECK_INT(tsr_config_open(&cfg), 0);
}

static int load(const char *text)
{
    return tsr_config_load_text(cfg, text, strlen(text), "t.yaml");
}

/* The text is refused with this message, and nothing has changed. */
static bool refused(const char *text, const char *message)
{
    reopen();
    if (load(text) == TSR_ECONFIG && strcmp(tsr_errmsg(), message) == 0) {
        for (size_t i = 0; i < tsri_option_count(); i++) {
            const struct tsri_option *o = tsri_option_at(i);
            if (strcmp(tsri_config_value(cfg, o), o->def) != 0) return false;
        }
        return true;
    }
    printf("    \"%s\" says \"%s\"\n", text, tsr_errmsg());
    return false;
}

TEST(flat_keys_are_set_and_remember_their_line)
{
    reopen();
    CHECK_INT(load("# comment\nhost_size: 4G\nhash: 'xxh3'\n\nseparator: \" # # \"\n"), 0);
    CHECK_INT(tsri_config_options(cfg)->host_size, (uint64_t)4 << 30);
    CHECK_INT(tsri_config_options(cfg)->hash, TSRI_HASH_XXH3);
    CHECK_STR(tsri_config_options(cfg)->separator, " # # ");
    CHECK_STR(tsri_config_origin(cfg, tsri_option_find("hash")), "t.yaml:3");
    CHECK_STR(tsri_config_origin(cfg, tsri_option_find("separator")), "t.yaml:5");
    CHECK_STR(tsri_config_origin(cfg, tsri_option_find("chunk_size")), "default");
}

TEST(nested_keys_join_with_underscores)
{
    reopen();
    CHECK_INT(load("host: {size: 2G, page: {size: 64K}}\ndisk:\n  path: /kv\n  size: 1T\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "2G");
    CHECK_STR(tsr_config_get(cfg, "host_page_size"), "64K");
    CHECK_STR(tsr_config_get(cfg, "disk_path"), "/kv");
    CHECK_STR(tsr_config_get(cfg, "disk_size"), "1T");
}

TEST(a_wrapper_key_adds_nothing_to_the_names_below_it)
{
    const char *keys[] = {"tessera", "lmcache", "ucm_connector_config", "chunk_cache",
                          "kv_transfer"};
    for (size_t i = 0; i < TSRI_COUNT(keys); i++) {
        char text[128];
        reopen();
        snprintf(text, sizeof text, "%s:\n  host: {size: 3G}\n  chunk_size: 32\n", keys[i]);
        CHECK_INT(load(text), 0);
        CHECK_STR(tsr_config_get(cfg, "host_size"), "3G");
        CHECK_STR(tsr_config_get(cfg, "chunk_size"), "32");
    }
    reopen();
    CHECK_INT(load("tessera:\n"), 0);
    CHECK_INT(load("tessera: {}\n"), 0);
    CHECK_INT(load("tessera: 5\n"), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "t.yaml:1:10: expected options below this key");
    CHECK_INT(load("tessera: [5]\n"), TSR_ECONFIG);
}

TEST(a_null_is_the_default)
{
    reopen();
    CHECK_INT(load("chunk_size: 64\nhash: xxh3\nfrozen: yes\nseparator: x\n"), 0);
    CHECK_INT(load("chunk_size: null\nhash: ~\nfrozen:\nseparator: ''\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "256");
    CHECK_STR(tsr_config_get(cfg, "hash"), "sha256");
    CHECK_STR(tsr_config_get(cfg, "frozen"), "false");
    CHECK_STR(tsri_config_origin(cfg, tsri_option_find("hash")), "default");
    CHECK_STR(tsri_config_origin(cfg, tsri_option_find("separator")), "t.yaml:4");
}

TEST(empty_documents_change_nothing)
{
    reopen();
    const char *empty[] = {"", "\n\n", "# nothing\n", "---\n", "---\n...\n", "~\n", "{}\n"};
    for (size_t i = 0; i < TSRI_COUNT(empty); i++)
        CHECK_INT(load(empty[i]), 0);
}

TEST(lists_of_scalars_become_text_with_commas)
{
    reopen();
    CHECK_INT(load("separator: [a, 'b c', 3]\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "separator"), "a,b c,3");
    CHECK_INT(load("separator:\n - '##'\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "separator"), "##");
    CHECK_INT(load("separator: []\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "separator"), "");
    CHECK(refused("separator: [a, [b]]", "t.yaml:1:16: a list may only hold single values"));
    CHECK(refused("chunk_size: [1, 2]", "t.yaml:1:13: chunk_size: \"1,2\" is not a whole number"));
}

TEST(a_list_below_a_wrapper_holds_mappings_of_options)
{
    reopen();
    CHECK_INT(
        load("ucm_connectors:\n  - ucm_connector_config: {chunk_size: 64}\n  - {hash: xxh3}\n"), 0);
    CHECK_STR(tsr_config_get(cfg, "chunk_size"), "64");
    CHECK_STR(tsr_config_get(cfg, "hash"), "xxh3");
    CHECK_INT(load("ucm_connectors: []\n"), 0);
    CHECK(refused("ucm_connectors: [{chunk_size: 64}, {chunk_size: 32}]",
                  "t.yaml:1:37: chunk_size: duplicate key, first on line 1"));
    CHECK(refused("ucm_connectors: [{chunk_size: 64}, 5]",
                  "t.yaml:1:36: expected options below this key"));
    CHECK(refused("ucm_connectors: [[{chunk_size: 64}]]",
                  "t.yaml:1:18: expected options below this key"));
    CHECK(refused("ucm_connectors: []\nucm_connectors: []\n",
                  "t.yaml:2:1: ucm_connectors: duplicate key, first on line 1"));
}

TEST(errors_name_line_and_column)
{
    CHECK(refused("hash: xxh3\nhots_size: 1G\n",
                  "t.yaml:2:1: unknown key \"hots_size\"; did you mean \"host_size\"?"));
    CHECK(refused("hash: xxh3\nhost:\n  sized: 1G\n",
                  "t.yaml:3:3: unknown key \"host_sized\"; did you mean \"host_size\"?"));
    CHECK(refused("io_threads:   99\n", "t.yaml:1:15: io_threads: 99 is out of range (1 to 64)"));
    CHECK(refused("chunk_size: 64\nchunk_size: 32\n",
                  "t.yaml:2:1: chunk_size: duplicate key, first on line 1"));
    CHECK(refused("host: {size: 1G}\nhost_size: 2G\n",
                  "t.yaml:2:1: host_size: duplicate key, first on line 1"));
    CHECK(refused("host: {size: 1G}\nhost: {page_size: 64K}\n",
                  "t.yaml:2:1: host: duplicate key, first on line 1"));
}

TEST(what_files_of_configuration_do_not_need_is_refused)
{
    CHECK(refused("hash: &a xxh3\n", "t.yaml:1:7: anchors and aliases are not supported"));
    CHECK(refused("hash: *a\n", "t.yaml:1:7: anchors and aliases are not supported"));
    CHECK(refused("tessera: &a {hash: xxh3}\n",
                  "t.yaml:1:10: anchors and aliases are not supported"));
    CHECK(refused("chunk_size: !!int 4\n", "t.yaml:1:13: tags are not supported"));
    CHECK(refused("hash: xxh3\n---\nhash: xxh3\n", "t.yaml:2:1: more than one document"));
    CHECK(refused("[hash]\n", "t.yaml:1:1: expected key: value"));
    CHECK(refused("hash\n", "t.yaml:1:1: expected key: value"));
    CHECK(refused("[a, b]: c\n", "t.yaml:1:1: a key must be a single word"));
    CHECK(refused("? {a: b}\n: c\n", "t.yaml:1:3: a key must be a single word"));
    CHECK(refused("'': c\n", "t.yaml:1:1: empty key"));
    CHECK(refused("separator: \"a\\0b\"\n", "t.yaml:1:12: text contains a zero byte"));
    CHECK(refused("a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}\n",
                  "t.yaml:1:32: nested more than 8 levels deep"));
    CHECK(refused("transfer_channel: [[[[[[[[[[1]]]]]]]]]]\n",
                  "t.yaml:1:26: nested more than 8 levels deep"));
    CHECK(refused("extra_config: {a: [[[[[[[[1]]]]]]]]}\n",
                  "t.yaml:1:25: nested more than 8 levels deep"));
}

TEST(text_that_is_not_utf8_is_refused_where_it_stands)
{
    CHECK(refused("hash: xxh3\nhost_size: \xff\n",
                  "t.yaml:2:12: not UTF-8 text: invalid leading UTF-8 octet"));
    reopen();
    const char utf16[] = "\xff\xfeh\0a\0s\0h\0";
    CHECK_INT(tsr_config_load_text(cfg, utf16, sizeof utf16 - 1, "t.yaml"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "t.yaml:1:1: not UTF-8 text");
    CHECK_INT(load("separator: \xe2\x80\xbb\n"), 0);
    CHECK_STR(tsri_config_options(cfg)->separator, "\xe2\x80\xbb");
}

TEST(broken_yaml_is_refused_where_it_breaks)
{
    reopen();
    CHECK_INT(load("host: {size: 1G,\nhash]: xxh3\n"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "t.yaml:2:");
    CHECK_INT(load("hash: 'xxh3\n"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "t.yaml:2:1: while scanning a quoted scalar: found unexpected end");
    CHECK_INT(load("\thash: xxh3\n"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "t.yaml:1:1: ");
}

TEST(too_many_keys_and_too_long_ones_are_refused)
{
    reopen();
    char *text = malloc(64 * 1100);
    size_t at = 0;
    for (int i = 0; i < 1100; i++)
        at += (size_t)sprintf(text + at, "kv_transfer_%d:\n", i);
    CHECK_INT(tsr_config_load_text(cfg, text, at, "t.yaml"), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "t.yaml:1025:1: more than 1024 keys");
    text[at / 2] = 0;
    *strrchr(text, '\n') = 0; /* half of them, whole lines */
    CHECK_INT(load(text), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "t.yaml:1:1: unknown key \"kv_transfer_0\"");
    at = 0;
    /* Below a tree that is ignored nothing is counted; empty mappings are. */
    for (int i = 0; i < 1100; i++)
        at += (size_t)sprintf(text + at, "a%d: {}\n", i);
    CHECK_INT(tsr_config_load_text(cfg, text, at, "t.yaml"), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "t.yaml:1025:1: more than 1024 keys");
    memset(text, 'k', 300);
    memcpy(text + 300, ": 1\n", 5);
    CHECK_INT(load(text), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "t.yaml:1:1: key too long");
    free(text);
}

TEST(more_than_a_mebibyte_is_refused)
{
    reopen();
    size_t bytes = ((size_t)1 << 20) + 1;
    char *text = malloc(bytes);
    memset(text, '\n', bytes);
    CHECK_INT(tsr_config_load_text(cfg, text, bytes - 1, "t.yaml"), 0);
    CHECK_INT(tsr_config_load_text(cfg, text, bytes, "t.yaml"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "more than 1 MiB");
    free(text);
}

TEST(files_are_read_and_their_absence_is_told)
{
    reopen();
    char path[] = "/tmp/tessera_test_yaml_XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    CHECK(write(fd, "host_size: 5G\nbad", 17) == 17);
    CHECK_INT(ftruncate(fd, 14), 0);
    CHECK_INT(tsr_config_load_file(cfg, path), 0);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "5G");
    CHECK_HAS(tsri_config_origin(cfg, tsri_option_find("host_size")), path);
    CHECK_INT(ftruncate(fd, (1 << 20) + 1), 0);
    CHECK_INT(tsr_config_load_file(cfg, path), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "more than 1 MiB");
    close(fd);
    unlink(path);
    CHECK_INT(tsr_config_load_file(cfg, path), TSR_ENOENT);
    CHECK_HAS(tsr_errmsg(), path);
    CHECK_INT(tsr_config_load_file(cfg, "/"), TSR_EIO);
    CHECK_INT(mkfifo(path, 0600), 0); /* nobody writes to it: a plain open would wait */
    CHECK_INT(tsr_config_load_file(cfg, path), TSR_EIO);
    unlink(path);
    CHECK_STR(tsr_config_get(cfg, "host_size"), "5G");
}

TEST(null_arguments_are_refused)
{
    reopen();
    CHECK_INT(tsr_config_load_text(NULL, "", 0, "t"), TSR_EINVAL);
    CHECK_INT(tsr_config_load_text(cfg, NULL, 0, "t"), TSR_EINVAL);
    CHECK_INT(tsr_config_load_file(cfg, NULL), TSR_EINVAL);
    CHECK_INT(tsr_config_load_text(cfg, "x", 1, NULL), TSR_ECONFIG);
    CHECK_STR(tsr_errmsg(), "text:1:1: expected key: value");
}

int main(void)
{
    RUN(flat_keys_are_set_and_remember_their_line);
    RUN(nested_keys_join_with_underscores);
    RUN(a_wrapper_key_adds_nothing_to_the_names_below_it);
    RUN(a_null_is_the_default);
    RUN(empty_documents_change_nothing);
    RUN(lists_of_scalars_become_text_with_commas);
    RUN(a_list_below_a_wrapper_holds_mappings_of_options);
    RUN(errors_name_line_and_column);
    RUN(what_files_of_configuration_do_not_need_is_refused);
    RUN(text_that_is_not_utf8_is_refused_where_it_stands);
    RUN(broken_yaml_is_refused_where_it_breaks);
    RUN(too_many_keys_and_too_long_ones_are_refused);
    RUN(more_than_a_mebibyte_is_refused);
    RUN(files_are_read_and_their_absence_is_told);
    RUN(null_arguments_are_refused);
    tsr_config_close(cfg);
    return test_end();
}
