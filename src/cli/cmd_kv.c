/* cmd_kv.c - `tessera kv store|lookup|retrieve|store-final`: the calls of a blend server, for scripts
 * and for looking into one. The engine's KV memory is a file, packed as [layer][K, V][token][head]
 * [dim], registered for the length of a command; token i is in slot i. */
#include "cache/cache.h"
#include "cli/inspect.h"
#include "cli/prompt_file.h"
#include "cli/remote.h"
#include "cli/store.h"
#include "device/device.h"

#include <tessera/deliver.h>
#include <tessera/server.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define REQUEST 1u
#define MATCHES_MAX 4096u

struct kv {
    struct tsri_cli *cli;
    struct tsri_prompt_file file;
    struct tsr_cache *cache;
    struct tsr_client *client;
    struct tsr_space *space;
    struct tsr_kv_cache *registered;
    struct tsri_rope_read rope; /* its dims are 0: none */
    uint32_t position_offset, freq_set;
    uint32_t dtype, n_layers, n_heads, dim, element_bytes;
    struct tsr_kv_layout layout;
    uint8_t *data; /* [n_tokens] of all layers */
    size_t bytes;
    int64_t *slots;
    struct tsr_prompt prompt;
    struct tsr_range whole; /* of the prompt */
    struct tsr_match *matches;
    uint32_t n_matches;
};

/* ---- what the command line says ---- */

static int read_dtype(struct kv *k)
{
    static const struct {
        const char *name;
        uint32_t id, bytes;
    } known[] = {{"f16", TSR_DTYPE_F16, 2}, {"bf16", TSR_DTYPE_BF16, 2}, {"f32", TSR_DTYPE_F32, 4}};
    const char *name = tsri_cli_flag(k->cli, "dtype");
    for (size_t i = 0; name && i < TSRI_COUNT(known); i++) {
        if (strcmp(known[i].name, name) != 0) continue;
        k->dtype = known[i].id;
        k->element_bytes = known[i].bytes;
    }
    return k->dtype ? 0 : tsri_cli_usage(k->cli, "--dtype must be f16, bf16 or f32");
}

static int read_count(const struct kv *k, const char *flag, uint32_t max, uint32_t *out)
{
    double value = 0;
    int status = tsri_cli_flag_count(k->cli, flag, 1, max, &value);
    *out = (uint32_t)value;
    if (!status && !*out) return tsri_cli_usage(k->cli, "--%s is missing", flag);
    return status;
}

/* How the model rotates K. --theta is short for the usual case. */
static int read_rope(struct kv *k)
{
    double theta = 0;
    const char *text = tsri_cli_flag(k->cli, "rope");
    int status = tsri_cli_flag_number(k->cli, "theta", 1, 1e12, &theta);
    if (status) return status;
    if (text && theta > 0) return tsri_cli_usage(k->cli, "use --theta or --rope, not both");
    if (text && tsri_rope_read(&k->rope, text, k->dim) < 0)
        return tsri_cli_usage(k->cli, "--rope: %s", tsr_errmsg());
    if (text && k->rope.rope.dims > k->dim)
        return tsri_cli_usage(k->cli, "--rope: dims=%u, a head has --dim=%u", k->rope.rope.dims,
                              k->dim);
    if (theta > 0)
        k->rope.rope = (struct tsr_rope){
            .size = sizeof k->rope.rope, .pairing = TSR_ROPE_NEOX, .dims = k->dim, .theta = theta};
    return 0;
}

static int read_shape(struct kv *k)
{
    int status = read_dtype(k);
    if (!status) status = read_count(k, "layers", 4096, &k->n_layers);
    if (!status) status = read_count(k, "heads", 4096, &k->n_heads);
    if (!status) status = read_count(k, "dim", 512, &k->dim);
    if (!status) status = read_rope(k);
    if (!status && !tsri_cli_flag(k->cli, "model"))
        status = tsri_cli_usage(k->cli, "--model is missing");
    return status;
}

static int read_prompt(struct kv *k)
{
    struct tsri_prompt_file *f = &k->file;
    if (tsri_prompt_file_load(f, k->cli->args[0]) < 0) return tsri_cli_failed();
    if (f->prompt.bytes || f->n_documents)
        return tsri_cli_fail("%s: the prompt must be tokens, without documents", k->cli->args[0]);
    k->prompt = (struct tsr_prompt){.size = sizeof k->prompt,
                                    .tokens = f->prompt.tokens,
                                    .n_tokens = (uint32_t)f->prompt.n_tokens,
                                    .segments = f->parts,
                                    .n_segments = f->n_parts};
    const char *recipe = tsri_cli_flag(k->cli, "recipe");
    if (!recipe || !*recipe) return 0;
    k->whole = (struct tsr_range){0, k->prompt.n_tokens};
    if (!f->n_parts) {
        k->prompt.segments = &k->whole;
        k->prompt.n_segments = 1;
    }
    k->prompt.flags = TSR_PROMPT_BLENDED;
    k->prompt.recipe = recipe;
    k->prompt.recipe_bytes = strlen(recipe);
    return 0;
}

/* ---- memory ---- */

static int make_memory(struct kv *k)
{
    size_t n = k->prompt.n_tokens, row = (size_t)k->n_heads * k->dim * k->element_bytes;
    k->bytes = 2 * n * k->n_layers * row; /* limits of the flags and the file: far from 2^64 */
    k->data = calloc(1, k->bytes);
    k->slots = malloc(n * sizeof *k->slots);
    if (!k->data || !k->slots) return tsri_cli_fail("no memory");
    for (size_t i = 0; i < n; i++)
        k->slots[i] = (int64_t)i;
    k->layout = (struct tsr_kv_layout){.size = sizeof k->layout,
                                       .memory = TSR_MEMORY_HOST,
                                       .n_layers = k->n_layers,
                                       .n_planes = 2,
                                       .n_slots = n};
    for (uint32_t p = 0; p < 2; p++)
        k->layout.planes[p] =
            (struct tsr_kv_plane){.base = k->data + p * n * row,
                                  .layer_bytes = k->bytes - p * n * row,
                                  .layer_stride = 2 * n * row,
                                  .token_stride = row,
                                  .head_stride = (size_t)k->dim * k->element_bytes,
                                  .element_stride = k->element_bytes,
                                  .dtype = k->dtype,
                                  .n_heads = k->n_heads,
                                  .dim = k->dim,
                                  .rope_dims = p ? 0 : k->rope.rope.dims};
    return 0;
}

static int read_memory(struct kv *k, const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        int status = tsri_cli_fail("%s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return status;
    }
    int status = 0;
    if ((uint64_t)st.st_size != k->bytes)
        status = tsri_cli_fail("%s: %lld bytes, the KV of %u tokens has %zu", path,
                               (long long)st.st_size, k->prompt.n_tokens, k->bytes);
    size_t at = 0;
    while (!status && at < k->bytes) {
        ssize_t n = read(fd, k->data + at, k->bytes - at);
        if (n <= 0) status = tsri_cli_fail("%s: %s", path, n ? strerror(errno) : "too short");
        at += n > 0 ? (size_t)n : 0;
    }
    close(fd);
    return status;
}

/* KV is the user's own text: a file that was there before is closed to others first. */
static int write_memory(const struct kv *k, const char *path)
{
    struct stat st;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    size_t at = 0;
    bool good = fd >= 0 && fstat(fd, &st) == 0;
    if (good && S_ISREG(st.st_mode) && st.st_mode & 077) good = fchmod(fd, 0600) == 0;
    while (good && at < k->bytes) {
        ssize_t n = write(fd, k->data + at, k->bytes - at);
        good = n > 0;
        at += good ? (size_t)n : 0;
    }
    if (fd >= 0) good &= close(fd) == 0;
    return good ? 0 : tsri_cli_fail("%s: %s", path, strerror(errno));
}

/* ---- the cache ---- */

static int open_cache(struct kv *k)
{
    char rope[TSRI_SPACE_TEXT_MAX + 1] = ""; /* a longer one is refused below */
    const struct tsr_rope *r = k->rope.rope.dims ? &k->rope.rope : NULL;
    int status = tsri_remote_wanted(k->cli) ? tsri_remote_config(k->cli) : tsri_cli_config(k->cli);
    if (status) return status;
    int n = r ? tsr_rope_text(r, rope, sizeof rope) : 0;
    if (n >= (int)sizeof rope)
        n = tsri_fail(TSR_ERANGE, "--rope: longer than %u bytes", (unsigned)TSRI_SPACE_TEXT_MAX);
    /* Models with other frequencies for long prompts: K of one set fits no prompt of the other. */
    uint64_t end = (uint64_t)k->prompt.n_tokens + k->position_offset;
    if (n < 0 || (r && tsr_rope_choose(r, end, &k->freq_set) < 0)) return tsri_cli_failed();
    struct tsr_space_desc desc = {.size = sizeof desc,
                                  .model = tsri_cli_flag(k->cli, "model"),
                                  .rope = rope[0] ? rope : NULL,
                                  .dtype = k->dtype,
                                  .n_layers = k->n_layers,
                                  .n_heads = k->n_heads,
                                  .k_dim = k->dim};
    struct tsr_delivery_desc memory = {.size = sizeof memory,
                                       .layout = &k->layout,
                                       .rope = r,
                                       .ranges_max = MATCHES_MAX,
                                       .tokens_max = k->prompt.n_tokens};
    if (tsr_cache_open(&k->cache, k->cli->config) < 0) return tsri_cli_failed();
    if (tsri_remote_wanted(k->cli) && tsr_cache_connected(k->cache, 5000) < 0)
        return tsri_cli_failed();
    if (tsr_space_open(&k->space, k->cache, &desc) < 0 || tsr_client_open(&k->client, k->cache) < 0)
        return tsri_cli_failed();
    memory.space = k->space;
    if (tsr_kv_cache_register(&k->registered, k->client, &memory) < 0) return tsri_cli_failed();
    return 0;
}

static void fini(struct kv *k)
{
    tsr_kv_cache_unregister(k->registered);
    tsr_client_close(k->client);
    tsr_space_close(k->space);
    tsr_cache_close(k->cache);
    tsri_prompt_file_fini(&k->file);
    free(k->data);
    free(k->slots);
    free(k->matches);
}

/* With a KV file after the prompt's: n_files 2. */
static int begin(struct kv *k, struct tsri_cli *cli, int n_files, bool reads)
{
    double position_offset = 0;
    *k = (struct kv){.cli = cli};
    int status = tsri_cli_flag_count(cli, "position-offset", 0, 1 << 30, &position_offset);
    k->position_offset = (uint32_t)position_offset;
    if (!status) status = tsri_cli_want_args(cli, n_files, n_files);
    if (!status) status = read_shape(k);
    if (!status) status = read_prompt(k);
    if (!status) status = make_memory(k);
    if (!status && reads) status = read_memory(k, cli->args[1]);
    return status ? status : open_cache(k);
}

/* ---- commands ---- */

static int look_up(struct kv *k)
{
    /* Text at any offset is found in memory, and this cache was opened a moment ago. */
    if (!tsri_remote_wanted(k->cli)) tsri_cache_warm(k->cache, 0, NULL);
    k->matches = malloc(MATCHES_MAX * sizeof *k->matches);
    if (!k->matches) return tsri_cli_fail("no memory");
    struct tsr_lookup_desc l = {
        .size = sizeof l, .matches = k->matches, .matches_max = MATCHES_MAX, .request_id = REQUEST};
    if (tsr_kv_cache_lookup(k->registered, &k->prompt, &l) < 0) return tsri_cli_failed();
    k->n_matches = l.n_matches;
    return 0;
}

/* results: NULL, or of each match whether it has arrived. */
static int print_matches(const struct kv *k, const struct tsr_delivery_range *results)
{
    struct tsri_table t;
    uint32_t n_tokens = 0;
    for (uint32_t i = 0; i < k->n_matches; i++)
        n_tokens += results && results[i].result ? 0 : k->matches[i].n_tokens;
    if (k->cli->json) {
        printf("{\"tokens\":%u,\"matches\":[", n_tokens);
        for (uint32_t i = 0; i < k->n_matches; i++) {
            const struct tsr_match *m = &k->matches[i];
            printf("%s{\"offset\":%u,\"tokens\":%u,\"kind\":\"%s\",\"coverage\":\"%s\",\"tier\":%u,"
                   "\"loaded\":%s}",
                   i ? "," : "", m->prompt_offset, m->n_tokens, tsri_store_kind(m->kind),
                   tsri_match_coverage(m->coverage), m->tier,
                   !results            ? "null"
                   : results[i].result ? "false"
                                       : "true");
        }
        puts("]}");
        return 0;
    }
    tsri_table_init(&t, "rlllrl", "tokens|in prompt|kind|match|tier|loaded");
    for (uint32_t i = 0; i < k->n_matches; i++) {
        const struct tsr_match *m = &k->matches[i];
        tsri_table_row(&t, "%u|%u..%u|%s|%s|%u|%s", m->n_tokens, m->prompt_offset,
                       m->prompt_offset + m->n_tokens - 1, tsri_store_kind(m->kind),
                       tsri_match_coverage(m->coverage), m->tier,
                       !results            ? "-"
                       : results[i].result ? "no"
                                           : "yes");
    }
    return tsri_table_print(&t, k->cli);
}

static int store(struct tsri_cli *cli, bool final)
{
    struct kv k;
    const char *recipe = tsri_cli_flag(cli, "recipe");
    if (final && (!recipe || !*recipe)) return tsri_cli_usage(cli, "--recipe is missing");
    int status = begin(&k, cli, 2, true);
    struct tsr_store_desc s = {.size = sizeof s,
                               .tokens = k.prompt.tokens,
                               .n_tokens = k.prompt.n_tokens,
                               .freq_set = k.freq_set,
                               .recipe = final ? recipe : NULL,
                               .recipe_bytes = final ? strlen(recipe) : 0};
    int n = 0;
    if (!status) {
        n = final ? tsr_kv_cache_store_final(k.registered, &s, k.slots)
                  : tsr_kv_cache_store(k.registered, &s, k.slots);
        if (n < 0 || tsr_cache_flush(k.cache) < 0) status = tsri_cli_failed();
    }
    if (!status) printf(cli->json ? "{\"stored\":%d}\n" : "%d tokens stored\n", n);
    fini(&k);
    return status;
}

int tsri_cmd_kv_store(struct tsri_cli *cli)
{
    return store(cli, false);
}

int tsri_cmd_kv_store_final(struct tsri_cli *cli)
{
    return store(cli, true);
}

int tsri_cmd_kv_lookup(struct tsri_cli *cli)
{
    struct kv k;
    int status = begin(&k, cli, 1, false);
    if (!status) status = look_up(&k);
    if (!status) status = print_matches(&k, NULL);
    fini(&k);
    return status;
}

static int retrieve(struct kv *k)
{
    struct tsr_delivery_range *ranges = calloc(k->n_matches + 1, sizeof *ranges);
    if (!ranges) return tsri_cli_fail("no memory");
    for (uint32_t i = 0; i < k->n_matches; i++)
        ranges[i] = (struct tsr_delivery_range){.size = sizeof *ranges,
                                                .match = &k->matches[i],
                                                .prompt = &k->prompt,
                                                .slots = k->slots + k->matches[i].prompt_offset,
                                                .position_offset = k->position_offset};
    int n = tsr_kv_cache_retrieve(k->registered, ranges, k->n_matches, k->freq_set);
    int status = n < 0 ? tsri_cli_failed() : write_memory(k, k->cli->args[1]);
    if (!status) status = print_matches(k, ranges);
    free(ranges);
    return status;
}

int tsri_cmd_kv_retrieve(struct tsri_cli *cli)
{
    struct kv k;
    int status = begin(&k, cli, 2, false);
    if (!status) status = look_up(&k);
    if (!status) status = retrieve(&k);
    fini(&k);
    return status;
}
