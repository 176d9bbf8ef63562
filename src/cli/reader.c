/* reader.c - a model and its cache, opened as the command line says: the model that was named or
 * the one of tools/setup --model, the store in the user's cache folder unless the configuration has
 * another, and the profile that was measured for this model. The first process that opens the store
 * serves it to the others, which become its clients. */
#include "cli/ask.h"
#include "cli/heir.h"

#include <tessera/server.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

/* The models that tools/setup --model installs, by the names that --model takes. Without one, the
 * first that is there is used, the one with the best answers first; the last one is for want of a
 * better one. */
static const struct {
    const char *name, *file;
} models[] = {
    {"1.5b", "models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"},
    {"0.5b", "models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"},
    {"135m", "models/SmolLM2-135M-Instruct.Q4_1.gguf"},
};
#define CONNECT_MS 2000
#define PREFIX_BLOCK 32u /* a turn of a chat is often shorter than the blocks of engines */
#define SOCKET_BYTES_MAX 107u
#define DEFAULT 1u /* what tools/setup --model installs */
#define FALLBACK (TSRI_COUNT(models) - 1)

/* ---- folders ---- */

/* Where models and the store are kept: <folder>/<rest> into buf. */
static void path_of(const char *rest, char *buf, size_t bytes)
{
    const char *deps = getenv("TESSERA_DEPS_DIR"), *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (deps && *deps)
        snprintf(buf, bytes, "%s/%s", deps, rest);
    else if (cache && *cache)
        snprintf(buf, bytes, "%s/tessera/%s", cache, rest);
    else
        snprintf(buf, bytes, "%s/.cache/tessera/%s", home && *home ? home : ".", rest);
}

/* Beside the program: <where it is>/../<rest>. */
static bool beside(const char *rest, char *buf, size_t bytes)
{
    char path[3072];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) return false;
    path[n] = 0;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(path, '/');
        if (!slash) return false;
        *slash = 0;
    }
    snprintf(buf, bytes, "%s/%s", path, rest);
    return access(buf, R_OK) == 0;
}

/* ---- model ---- */

const char *tsri_reader_installed(uint32_t i, char *buf, size_t bytes)
{
    path_of(models[i].file, buf, bytes);
    return access(buf, R_OK) == 0 ? models[i].name : NULL;
}

uint32_t tsri_reader_models(void)
{
    return TSRI_COUNT(models);
}

const char *tsri_reader_model(const char *named, char *buf, size_t bytes, bool *fallback)
{
    if (fallback) *fallback = false;
    if (!named) named = getenv("TESSERA_MODEL");
    for (uint32_t i = 0; named && i < TSRI_COUNT(models); i++) {
        /* A file of that name comes first: that is what the flag is for. */
        if (strcasecmp(named, models[i].name) != 0 || access(named, F_OK) == 0) continue;
        path_of(models[i].file, buf, bytes);
        return buf;
    }
    if (named) return named;
    for (uint32_t i = 0; i < TSRI_COUNT(models); i++) {
        if (!tsri_reader_installed(i, buf, bytes)) continue;
        if (fallback) *fallback = i == FALLBACK;
        return buf;
    }
    path_of(models[DEFAULT].file, buf, bytes);
    return buf;
}

/* In lib/ of a build, or where distributions have libraries below a prefix (LIBDIR of make
 * install); anywhere else the dynamic linker has to know it. */
const char *tsri_reader_library(char *buf, size_t bytes)
{
    static const char *const folders[] = {
        "lib",
        "lib64",
#if defined(__x86_64__)
        "lib/x86_64-linux-gnu"
#elif defined(__aarch64__)
        "lib/aarch64-linux-gnu"
#endif
    };
    for (size_t i = 0; i < TSRI_COUNT(folders); i++) {
        char rest[64];
        snprintf(rest, sizeof rest, "%s/libtessera-model.so", folders[i]);
        if (beside(rest, buf, bytes)) return buf;
    }
    return NULL;
}

static int open_model(struct tsri_reader *r, struct tsri_cli *cli)
{
    char path[4096], library[4096];
    double threads = 0;
    bool fallback;
    const char *named = tsri_cli_flag(cli, "model");
    const char *model = tsri_reader_model(named, path, sizeof path, &fallback);
    if (model == path && access(path, R_OK) != 0)
        return tsri_cli_fail("no model is installed%s%s: run `tools/setup --model%s` in the source "
                             "folder, or use --model=FILE",
                             named ? " as " : "", named ? named : "",
                             strstr(path, "-1.5b-") ? "=1.5b" : "");
    if (fallback)
        tsri_cli_note("using SmolLM2-135M, whose answers are often wrong; `tools/setup --model` "
                      "in the source folder gets a better model");
    int e = tsri_cli_flag_count(cli, "threads", 1, 512, &threads);
    if (e) return e;
    struct tsr_model_desc config = {.size = sizeof config,
                                    .path = model,
                                    .n_threads = (uint32_t)threads,
                                    .weights = tsri_cli_flag(cli, "weights"),
                                    .device = tsri_cli_flag(cli, "device"),
                                    .library = tsri_reader_library(library, sizeof library)};
    r->info.size = sizeof r->info;
    int status = tsr_model_open(&r->model, NULL, &config);
    if (status == TSR_EDEVICE && !config.library)
        return tsri_cli_fail("%s; run `tools/setup --model` and `make` in the source folder",
                             tsr_errmsg());
    if (status < 0 || tsr_model_info(r->model, &r->info) < 0) return tsri_cli_failed();
    r->logits = malloc(r->info.n_vocab * sizeof *r->logits);
    return r->logits ? 0 : tsri_cli_fail("no memory");
}

/* ---- cache ---- */

/* The cache reaches KV where the model computes: "cuda", or one of several by its number. */
static int use_device(struct tsri_cli *cli)
{
    const char *name = tsri_cli_flag(cli, "device"), *own = tsr_config_get(cli->config, "device");
    if (!name || strncasecmp(name, "cuda", 4) != 0 || (own && *own)) return 0;
    if (tsr_config_set(cli->config, "device", "cuda") < 0 ||
        tsr_config_set(cli->config, "device_number", name[4] ? name + 4 : "0") < 0)
        return tsri_cli_failed();
    return 0;
}

void tsri_reader_store(const struct tsr_config *config, char *buf, size_t bytes)
{
    const char *given = tsri_config_options(config)->disk_path;
    if (given[0])
        snprintf(buf, bytes, "%s", given);
    else
        path_of("store", buf, bytes);
}

/* Another process has the store open and serves it. */
static int become_client(struct tsri_reader *r, struct tsri_cli *cli, const char *store,
                         const char *socket)
{
    int e = tsr_config_set(cli->config, "owner", "daemon");
    if (!e) e = tsr_cache_open(&r->cache, cli->config);
    if (!e) e = tsr_cache_connected(r->cache, CONNECT_MS);
    if (e == 0) {
        tsri_cli_note("sharing the store with the process that has it open");
        if (tsri_heir_open(&r->heir, r->cache, cli, store, socket) < 0)
            tsri_log(TSR_LOG_WARN, "store: lost if its owner ends: %s", tsr_errmsg());
        return 0;
    }
    tsr_cache_close(r->cache);
    r->cache = NULL;
    (void)!tsr_config_set(cli->config, "owner", "process");
    return e;
}

/* A store has one owner. It serves the others at a socket in the store, unless the configuration
 * says who owns the cache; a path that is too long for a socket is not shared. */
static int open_shared(struct tsri_reader *r, struct tsri_cli *cli, const char *store)
{
    char path[SOCKET_BYTES_MAX + 1];
    const char *owner = tsr_config_get(cli->config, "owner");
    bool shares = owner && strcmp(owner, "process") == 0 &&
                  (size_t)snprintf(path, sizeof path, "%s/share/socket", store) < sizeof path;
    if (shares && (tsr_config_set(cli->config, "owner", "embedded") < 0 ||
                   tsr_config_set(cli->config, "server_socket", path) < 0))
        return TSR_ECONFIG;
    int e = tsr_cache_open(&r->cache, cli->config);
    /* A client that stores nothing would have to freeze the cache of all. */
    if (e == TSR_EBUSY && shares && !tsri_cli_flag(cli, "no-store"))
        return become_client(r, cli, store, path);
    /* Without a server the store is this process's alone, as it is without sharing. */
    if (e == 0 && shares && tsr_server_open(&r->server, r->cache, cli->config) < 0)
        tsri_log(TSR_LOG_INFO, "store: not shared: %s", tsr_errmsg());
    if (e < 0 && shares) (void)!tsr_config_set(cli->config, "owner", "process");
    return e;
}

static int open_cache(struct tsri_reader *r, struct tsri_cli *cli)
{
    char store[4096];
    int e = tsri_cli_config(cli);
    if (e) return e;
    tsri_reader_store(cli->config, store, sizeof store);
    if (tsr_config_set(cli->config, "disk_path", store) < 0) return tsri_cli_failed();
    e = use_device(cli);
    if (e) return e;
    if (open_shared(r, cli, store) == 0) return 0;
    tsri_cli_note("continuing without the store: %s", tsr_errmsg());
    r->storeless = true;
    if (tsr_config_set(cli->config, "disk_enabled", "false") < 0 ||
        tsr_cache_open(&r->cache, cli->config) < 0)
        return tsri_cli_failed();
    return 0;
}

/* ---- profile ---- */

static int open_blend(struct tsri_reader *r, const struct tsr_profile *profile, bool cached,
                      struct tsr_blend **out)
{
    struct tsr_blend_desc config = {.size = sizeof config,
                                    .model = r->model,
                                    .cache = cached ? r->cache : NULL,
                                    .profile = profile,
                                    .prefix_block_tokens = PREFIX_BLOCK};
    return tsr_blend_open(out, &config);
}

void tsri_reader_beside(const struct tsri_reader *r, struct tsri_cli *cli, const char *kind,
                        char *path, size_t bytes)
{
    char hex[33];
    tsri_reader_id(r, hex);
    snprintf(path, bytes, "%s/%s.%s", tsr_config_get(cli->config, "disk_path"), hex, kind);
}

void tsri_reader_profile(const struct tsri_reader *r, struct tsri_cli *cli, char *path,
                         size_t bytes)
{
    tsri_reader_beside(r, cli, "yaml", path, bytes);
}

void tsri_reader_id(const struct tsri_reader *r, char hex[static 33])
{
    uint8_t id[16];
    tsr_blend_model(r->blend, id);
    tsri_hex(hex, id, sizeof id);
}

/* The profile that was measured for this space: beside the store, or shipped with the program. */
static bool find_profile(const struct tsri_reader *r, struct tsri_cli *cli, char *path,
                         size_t bytes)
{
    char hex[33], rest[96];
    tsri_reader_profile(r, cli, path, bytes);
    if (access(path, R_OK) == 0) return true;
    tsri_reader_id(r, hex);
    snprintf(rest, sizeof rest, "share/tessera/profiles/%s.yaml", hex);
    return beside(rest, path, bytes);
}

static int use_profile(struct tsri_reader *r, struct tsri_cli *cli, const char *path)
{
    struct tsr_profile profile = {.size = sizeof profile};
    struct tsr_blend *blend;
    int e = tsr_profile_load(&profile, path);
    if (!e) e = open_blend(r, &profile, true, &blend);
    if (e) return e;
    tsr_blend_close(r->blend);
    r->blend = blend;
    /* One that is shipped may hold nothing but the defaults, until they are measured. */
    r->profiled = tsri_cli_flag(cli, "profile") || profile.n_frontier > 0;
    return 0;
}

static int choose_profile(struct tsri_reader *r, struct tsri_cli *cli)
{
    char path[4096];
    const char *named = tsri_cli_flag(cli, "profile");
    if (!named && !find_profile(r, cli, path, sizeof path)) {
        /* For models that were not measured. One whose primer would be too long has the defaults. */
        if (!beside("share/tessera/profiles/safe.yaml", path, sizeof path)) return 0;
        int e = use_profile(r, cli, path);
        return e == TSR_ERANGE ? 0 : e < 0 ? tsri_cli_failed() : 0;
    }
    return use_profile(r, cli, named ? named : path) < 0 ? tsri_cli_failed() : 0;
}

int tsri_reader_open(struct tsri_reader *r, struct tsri_cli *cli)
{
    double start = tsri_cli_now_s();
    memset(r, 0, sizeof *r);
    int e = open_model(r, cli);
    if (!e) e = open_cache(r, cli);
    if (!e && open_blend(r, NULL, true, &r->blend) < 0) e = tsri_cli_failed();
    if (!e) e = choose_profile(r, cli);
    r->open_s = tsri_cli_now_s() - start;
    return e;
}

void tsri_reader_close(struct tsri_reader *r)
{
    tsr_session_close(r->session);
    tsr_session_close(r->plain_session);
    tsr_blend_close(r->blend);
    tsr_blend_close(r->plain);
    tsri_heir_stop(r->heir);
    if (r->cache && tsr_cache_flush(r->cache) < 0)
        tsri_cli_note("not everything was stored: %s", tsr_errmsg());
    tsr_server_close(r->server);
    tsr_cache_close(r->cache);
    tsri_heir_close(r->heir);
    tsr_model_close(r->model);
    free(r->logits);
    memset(r, 0, sizeof *r);
}

int tsri_reader_make_room(struct tsri_reader *r, size_t n_slots)
{
    /* Answers and dialogs grow: in steps, so that sessions are seldom reopened. */
    n_slots = (n_slots + tsr_blend_primer(r->blend) + 511) / 512 * 512;
    if (n_slots > r->info.context) n_slots = r->info.context;
    if (r->session && r->n_slots >= n_slots) return 0;
    tsr_session_close(r->session);
    r->session = NULL;
    r->n_slots = (uint32_t)n_slots;
    if (tsr_session_open(&r->session, r->model, r->n_slots) < 0) return tsri_cli_failed();
    return 0;
}

int tsri_reader_go_on(const struct tsri_reader *r, const struct tsri_more *m)
{
    struct tsr_session *session = m->session ? m->session : r->session;
    struct tsr_model_group group = {.n_rows = m->n, .n_ranges = 1, .sees = {{0, m->held + m->n}}};
    struct tsr_model_row *rows = malloc(m->n * sizeof *rows);
    uint32_t *last = malloc(m->n_logits * sizeof *last);
    int e = rows && last ? 0 : TSR_ENOMEM;
    for (uint32_t i = 0; !e && i < m->n; i++)
        rows[i] = (struct tsr_model_row){m->tokens[i], m->held + i, m->held + i};
    for (uint32_t i = 0; !e && i < m->n_logits; i++)
        last[i] = m->n - m->n_logits + i;
    struct tsr_model_pass pass = {
        .size = sizeof pass, .rows = rows, .n_rows = m->n, .n_groups = 1, .groups = &group};
    if (m->n == 1) pass.flags = TSR_PASS_DECODE;
    pass.bias = tsr_blend_bias(m->blend, &pass.n_bias);
    pass.n_bias_rows = pass.bias ? m->n : 0;
    if (!e) e = tsr_session_begin(session, &pass);
    for (uint32_t l = 0; e >= 0 && l < r->info.n_layers; l++) {
        struct tsr_model_layer layer = {.size = sizeof layer, .layer = l};
        e = tsr_session_layer(session, &layer);
    }
    if (e >= 0) e = tsr_session_logits(session, last, m->n_logits, m->logits);
    tsr_session_end(session);
    free(rows);
    free(last);
    if (e == TSR_ENOMEM) return tsri_cli_fail("no memory");
    return e < 0 ? tsri_cli_failed() : 0;
}

void tsri_reader_weigh(const struct tsri_reader *r, const char *speed_path,
                       struct tsr_ask_desc *ask)
{
    double full_s = tsri_speed_guess(speed_path, r->info.device, ask->n_tokens);
    double token_s = tsri_speed_guess_answer(speed_path, r->info.device);
    bool known = ask->flags & TSR_ASK_GATE && !isnan(full_s) && !isnan(token_s);
    ask->row_s = known ? full_s / ask->n_tokens : 0;
    ask->token_s = known ? token_s : 0;
}

/* ---- what flags say about answers ---- */

int tsri_ask_sampler(struct tsri_sampler *s, struct tsri_cli *cli, uint32_t n_vocab)
{
    double seed = -1;
    int e = tsri_cli_check(tsri_sampler_init(s, n_vocab));
    if (!e) e = tsri_cli_flag_number(cli, "temperature", 0, 100, &s->temperature);
    if (!e) e = tsri_cli_flag_number(cli, "top-p", 0, 1, &s->top_p);
    if (!e) e = tsri_cli_flag_number(cli, "seed", 0, 0x1p52, &seed);
    s->state = seed < 0 ? tsri_nonce() : (uint64_t)seed;
    return e;
}
