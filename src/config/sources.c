/* sources.c - settings from the environment and from flags. Both name options by their own names in
 * the source's spelling (TESSERA_HOST_SIZE, --host-size). The environment is applied in the order
 * of its sorted names, so the result does not depend on how the process was started; LMCACHE_*
 * sorts before TESSERA_*, so our own name wins over a foreign one. */
#include "config/config.h"

#include <ctype.h>
#include <stdlib.h>
#include <unistd.h>

#define VARIABLES_MAX 512
#define NAME_BYTES 128

#define OURS "TESSERA_"
#define LMCACHE "LMCACHE_"
#define ENGINE "VLLM_"

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* NAME=VALUE split in two; the name in lower case too. */
struct variable {
    char name[NAME_BYTES], lower[NAME_BYTES];
    const char *value;
};

static bool split(const char *entry, struct variable *v)
{
    const char *equals = strchr(entry, '=');
    size_t n = equals ? (size_t)(equals - entry) : 0;
    if (n == 0 || n >= NAME_BYTES) return false;
    for (size_t i = 0; i <= n; i++) {
        v->name[i] = i < n ? entry[i] : 0;
        v->lower[i] = (char)tolower((unsigned char)v->name[i]);
    }
    v->value = equals + 1;
    return true;
}

/* The row a foreign variable means, or NULL. LMCACHE_CHUNK_<KEY> is the chunk cache's spelling of
 * its keys, LMCACHE_<KEY> everybody else's. */
static const struct tsri_compat *foreign_row(const struct variable *v)
{
    if (starts(v->name, ENGINE)) return tsri_compat_find(v->lower);
    const char *key = v->lower + strlen(LMCACHE);
    const struct tsri_compat *c = tsri_compat_find(key);
    return !c && starts(key, "chunk_") ? tsri_compat_find(key + strlen("chunk_")) : c;
}

static int put_foreign(struct tsr_config *cfg, const struct variable *v)
{
    struct tsri_place place = {.from = TSRI_FROM_ENV, .name = v->name};
    if (strcmp(v->name, LMCACHE "CONFIG_FILE") == 0) return 0; /* loaded before the variables */
    const struct tsri_compat *c = foreign_row(v);
    const char *key = starts(v->name, LMCACHE) ? v->lower + strlen(LMCACHE) : v->lower;
    if (c) return tsri_compat_put(cfg, c, key, v->value, &place);
    if (!starts(v->name, LMCACHE)) return 0;
    /* Others' names are theirs to invent: a new LMCache must not keep us from starting. */
    char text[NAME_BYTES + 64];
    snprintf(text, sizeof text, "environment variable %s: ignored: unknown", v->name);
    return tsri_config_note(cfg, v->name, TSR_LOG_WARN, text);
}

static int put_ours(struct tsr_config *cfg, const struct variable *v)
{
    struct tsri_place place = {.from = TSRI_FROM_ENV, .name = v->name};
    if (strcmp(v->name, OURS "CONFIG_FILE") == 0) return 0; /* loaded before the variables */
    if (starts(v->name, OURS "TEST_")) return 0;            /* read by the tests themselves */
    /* Where tools/setup --model puts things, what `tessera ask` takes from there and how it computes,
     * which library Python loads, and what its connector for SGLang reads. */
    static const char *const others[] = {"DEPS_DIR",  "LLAMA_DIR",        "CUDA",
                                         "MODEL",     "LIBRARY",          "ASCENDCL_LIB",
                                         "OPAPI_LIB", "DISCOVER_WAIT_MS", "TILES"};
    for (size_t i = 0; i < TSRI_COUNT(others); i++)
        if (strcmp(v->name + strlen(OURS), others[i]) == 0) return 0;
    const char *key = v->lower + strlen(OURS);
    if (!tsri_option_find(key)) return tsri_config_fail_unknown(key, &place);
    return tsri_config_put(cfg, key, v->value, &place);
}

static int load_env_file(struct tsr_config *cfg)
{
    const char *ours = getenv(OURS "CONFIG_FILE"), *theirs = getenv(LMCACHE "CONFIG_FILE");
    const char *path = ours && *ours ? ours : theirs;
    if (!path || !*path) return 0;
    int err = path == ours && theirs && *theirs
                  ? tsri_config_note(cfg, LMCACHE "CONFIG_FILE", TSR_LOG_INFO,
                                     "environment variable " LMCACHE "CONFIG_FILE: ignored: " OURS
                                     "CONFIG_FILE names the file")
                  : 0;
    if (!err)
        err = path == ours ? tsr_config_load_file(cfg, path) : tsri_yaml_load_theirs(cfg, path);
    if (err == TSR_ENOENT || err == TSR_EIO)
        return tsri_fail(err, "configuration file (%s): %s", /* a program's --config sets ours */
                         path == ours ? "--config or " OURS "CONFIG_FILE" : LMCACHE "CONFIG_FILE",
                         tsr_errmsg());
    return err;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int fill_from_env(struct tsr_config *draft, void *arg)
{
    (void)arg;
    int err = load_env_file(draft);
    if (err) return err;
    const char *entries[VARIABLES_MAX] = {NULL};
    size_t n = 0;
    for (char **e = environ; e && *e; e++) {
        if (!starts(*e, OURS) && !starts(*e, LMCACHE) && !starts(*e, ENGINE)) continue;
        if (n == VARIABLES_MAX)
            return tsri_fail(TSR_ERANGE, "more than %d variables in the environment",
                             VARIABLES_MAX);
        entries[n++] = *e;
    }
    qsort(entries, n, sizeof entries[0], by_text);
    for (size_t i = 0; !err && i < n; i++) {
        struct variable v;
        char shown[80];
        if (split(entries[i], &v))
            err = starts(v.name, OURS) ? put_ours(draft, &v) : put_foreign(draft, &v);
        else if (starts(entries[i], OURS))
            err = tsri_fail(TSR_ECONFIG, "environment variable %s: unknown",
                            tsri_printable(entries[i], shown, sizeof shown));
    }
    return err;
}

int tsr_config_load_env(struct tsr_config *cfg)
{
    if (!cfg) return tsri_fail(TSR_EINVAL, "config: cfg is NULL");
    return tsri_config_try(cfg, fill_from_env, NULL);
}

/* ---- flags ---- */

struct flags {
    int argc;
    char *const *argv;
};

/* One flag and its value; returns how many arguments it took. A BOOL may stand alone. What looks
 * like a flag is one: as a value it must be behind =. */
static int put_flag(struct tsr_config *cfg, int n_left, char *const *at)
{
    const char *flag = at[0], *equals = strchr(flag, '=');
    char name[NAME_BYTES], shown[80];
    size_t n = equals ? (size_t)(equals - flag) : strlen(flag);
    if (n >= sizeof name)
        return tsri_fail(TSR_ECONFIG, "flag %s: unknown",
                         tsri_printable(flag, shown, sizeof shown));
    memcpy(name, flag, n);
    name[n] = 0;
    const char *key = name + 2;
    struct tsri_place place = {.from = TSRI_FROM_FLAG, .name = name};
    const char *next = n_left > 1 && !starts(at[1], "--") ? at[1] : NULL;
    const char *value = equals ? equals + 1 : next;
    int took = equals || !value ? 1 : 2;
    const struct tsri_option *o = tsri_option_find(key);
    const struct tsri_compat *foreign = o ? NULL : tsri_compat_find(key);
    if (!o && !foreign) return tsri_config_fail_unknown(key, &place);
    bool unused, is_switch = o ? o->type == TSRI_OPTION_BOOL : tsri_compat_is_switch(foreign);
    if (is_switch && !equals && (!value || !tsri_parse_bool(value, &unused))) {
        value = "true";
        took = 1;
    }
    if (!value) return tsri_fail(TSR_ECONFIG, "flag %s: needs a value", name);
    int err = tsri_config_put(cfg, key, value, &place);
    return err ? err : took;
}

static int fill_from_args(struct tsr_config *draft, void *arg)
{
    const struct flags *f = arg;
    int i = 0;
    while (i < f->argc && f->argv[i] && starts(f->argv[i], "--") && f->argv[i][2]) {
        int took = put_flag(draft, f->argc - i, f->argv + i);
        if (took < 0) return took;
        i += took;
    }
    return i;
}

int tsr_config_load_args(struct tsr_config *cfg, int argc, char *const *argv)
{
    if (!cfg || argc < 0 || (argc && !argv)) return tsri_fail(TSR_EINVAL, "config: argv is NULL");
    struct flags f = {argc, argv};
    return tsri_config_try(cfg, fill_from_args, &f);
}
