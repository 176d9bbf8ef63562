/* cmd_version.c - `tessera version`: what a bug report needs to say about the build. */
#include "cli/cli.h"

#include <errno.h>
#include <jansson.h>
#include <sqlite3.h>
#include <openssl/crypto.h>
#include <sys/utsname.h>
#include <xxhash.h>
#include <yaml.h>

/* What an option that names things can name, separated by spaces: what was compiled in. */
static const char *names_of(const char *option, char *buf, size_t bytes)
{
    const struct tsri_option *o = tsri_option_find(option);
    size_t used = 0;
    buf[0] = 0;
    for (size_t i = 0; o && o->names[i] && used < bytes; i++)
        used += (size_t)snprintf(buf + used, bytes - used, "%s%s", i ? " " : "", o->names[i]);
    return buf;
}

static void print_row(const struct tsri_cli *cli, bool first, const char *name, const char *value)
{
    char shown[1024];
    if (cli->json) {
        printf("%s\"%s\"", first ? "{" : ",", name);
        tsri_cli_json(":", value);
    } else if (first) {
        printf("tessera %s\n", value);
    } else {
        printf("  %-10s%s\n", name, tsri_printable(value, shown, sizeof shown));
    }
}

/* What the machine may lack, and what `tessera ask` would use. */
static void print_found(const struct tsri_cli *cli)
{
    char text[1024];
    const char *name;
    for (uint32_t i = 0; (name = tsri_library_name(i)) != NULL; i++) {
        tsri_library_find(i, text, sizeof text);
        print_row(cli, false, name, text);
    }
    tsri_model_find(text, sizeof text);
    print_row(cli, false, "model", text);
    tsri_store_find(cli->config, text, sizeof text);
    print_row(cli, false, "store", text);
}

int tsri_cmd_version(struct tsri_cli *cli)
{
    char features[128], xxhash[32], policies[128], digests[128];
    int status = tsri_cli_want_args(cli, 0, 0);
    if (status) return status;
    unsigned v = XXH_versionNumber();
    snprintf(xxhash, sizeof xxhash, "%u.%u.%u", v / 10000, v / 100 % 100, v % 100);
    struct utsname machine;
    if (uname(&machine) != 0) return tsri_cli_fail("uname: %s", strerror(errno));
    const char *const rows[][2] = {
        {"version", tsr_version()},
#if defined(__clang__)
        {"compiler", __VERSION__},
#else
        {"compiler", "gcc " __VERSION__},
#endif
        {"machine", machine.machine},
        {"libyaml", yaml_get_version_string()},
        {"xxhash", xxhash},
        {"jansson", jansson_version_str()},
        {"sqlite", sqlite3_libversion()},
        {"openssl", OpenSSL_version(OPENSSL_VERSION_STRING)},
        {"cpu", tsri_cli_cpu_features(features, sizeof features)},
        {"policies", names_of("policy", policies, sizeof policies)},
        {"digests", names_of("hash", digests, sizeof digests)},
    };
    for (size_t i = 0; i < TSRI_COUNT(rows); i++)
        print_row(cli, i == 0, rows[i][0], rows[i][1]);
    print_found(cli);
    if (cli->json) puts("}");
    return 0;
}
