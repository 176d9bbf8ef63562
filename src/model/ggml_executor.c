/* ggml_executor.c - the executor table of libtessera-model.so: models in GGUF files, run on ggml.
 * Opening one maps the file, checks it, places its weights and reads its vocabulary; passes are
 * ggml_session.c's.
 *
 * ggml and libllama print what they think; here their log goes to a place of each thread, from
 * which the reason of a failure is taken. That hook is the process's, and it is theirs, not ours.
 */
#include "model/model.h"

#include <llama.h>

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS_MAX 512u
/* On tiles, four times the rows of other kernels take no longer, and matrices are unpacked less often. */
#define TILES_ROWS_BEST 512u

/* ---- words ---- */

int tsri_model_fail(tsri_fail_fn fail, int err, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fail ? fail(err, text) : err;
}

static _Thread_local char complaint[256], taken[256];

const char *tsri_model_complaint(void)
{
    memcpy(taken, complaint, sizeof taken);
    complaint[0] = 0;
    return taken;
}

/* The first error of several is the reason, the others are its consequences. */
static void listen(enum ggml_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level != GGML_LOG_LEVEL_ERROR || complaint[0]) return;
    snprintf(complaint, sizeof complaint, "%s", text);
    complaint[strcspn(complaint, "\n")] = 0;
}

static void start_ggml(void)
{
    ggml_log_set(listen, NULL);
    llama_log_set(listen, NULL);
    tsri_guard_init();
    /* ggml may be built with its devices in libraries of their own. */
    if (ggml_backend_dev_count() == 0) ggml_backend_load_all();
}

/* ---- opening ---- */

/* ggml's CUDA backend records what it launches for a graph and plays that again for graphs that it
 * takes for the same; graphs of several layers in one place in memory it has taken for the same,
 * with wrong results. It looks at this variable before its first graph, and offers no other way. */
static void play_nothing_again(ggml_backend_dev_t device)
{
    if (ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU)
        setenv("GGML_CUDA_DISABLE_GRAPHS", "1", 0);
}

static int find_device(struct tsr_executor *x, const char *name)
{
    ggml_backend_dev_t *out = &x->weights.device;
    if (!name || strcmp(name, "cpu") == 0)
        *out = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    for (size_t i = 0; !*out && i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t d = ggml_backend_dev_get(i);
        /* "cuda" is the first of CUDA0, CUDA1, ... */
        if (name && strncasecmp(ggml_backend_dev_name(d), name, strlen(name)) == 0) *out = d;
    }
    if (*out) {
        play_nothing_again(*out);
        return 0;
    }
    char have[256] = "";
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        size_t at = strlen(have);
        snprintf(have + at, sizeof have - at, " %s",
                 ggml_backend_dev_name(ggml_backend_dev_get(i)));
    }
    return tsri_model_fail(x->fail, TSR_EDEVICE, "model: ggml has no device '%.40s' here, only%s",
                           name ? name : "cpu", have[0] ? have : " none");
}

static int choose_kv(struct tsr_executor *x, uint32_t dtype)
{
    x->kv_dtype = dtype ? dtype : TSR_DTYPE_F16;
    switch (x->kv_dtype) {
    case TSR_DTYPE_F16:
        x->kv_type = GGML_TYPE_F16;
        return 0;
    case TSR_DTYPE_BF16:
        x->kv_type = GGML_TYPE_BF16;
        return 0;
    case TSR_DTYPE_F32:
        x->kv_type = GGML_TYPE_F32;
        return 0;
    default:
        return tsri_model_fail(x->fail, TSR_EINVAL, "model: unsupported KV dtype %u", dtype);
    }
}

static int choose_weights(struct tsr_executor *x, const char *weights, enum ggml_type *convert)
{
    *convert = GGML_TYPE_COUNT;
    if (!weights || strcmp(weights, "") == 0) return 0;
    if (strcmp(weights, "q8_0") == 0)
        *convert = GGML_TYPE_Q8_0;
    else
        return tsri_model_fail(x->fail, TSR_EINVAL,
                               "model: weights can be converted to q8_0, not "
                               "to '%.40s'",
                               weights);
    return 0;
}

/* TESSERA_TILES=0: with ggml's bits, on processors with AMX too. */
static void choose_tiles(struct tsr_executor *x)
{
    const char *wish = getenv("TESSERA_TILES");
    x->tiles = ggml_backend_dev_type(x->weights.device) == GGML_BACKEND_DEVICE_TYPE_CPU &&
               !(wish && strcmp(wish, "0") == 0) && tsri_tiles_here();
}

/* Not every device has kernels for every kind of KV and size of heads. */
static int check_attention(const struct tsr_executor *x)
{
    const struct tsri_header *h = &x->header;
    struct ggml_init_params params = {.mem_size = 8 * ggml_tensor_overhead(), .no_alloc = true};
    struct ggml_context *ctx = ggml_init(params);
    if (!ctx) return tsri_model_fail(x->fail, TSR_ENOMEM, "model: out of memory");
    int64_t rows = TSRI_TILE_ROWS, keys = TSRI_KV_STEP;
    struct ggml_tensor *q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, h->head_dim, rows, h->n_heads);
    struct ggml_tensor *k = ggml_new_tensor_3d(ctx, x->kv_type, h->head_dim, keys, h->n_kv_heads);
    struct ggml_tensor *v = ggml_new_tensor_3d(ctx, x->kv_type, h->head_dim, keys, h->n_kv_heads);
    struct ggml_tensor *mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, keys, rows);
    struct ggml_tensor *a = ggml_flash_attn_ext(ctx, q, k, v, mask, h->attention_scale, 0, 0);
    bool can = ggml_backend_dev_supports_op(x->weights.device, a);
    ggml_free(ctx);
    if (can) return 0;
    return tsri_model_fail(
        x->fail, TSR_EUNSUP, "model: %s has no attention over KV in %s with heads of %u elements",
        ggml_backend_dev_name(x->weights.device), ggml_type_name(x->kv_type), h->head_dim);
}

/* K and V have the smallest matrices of these models, or the feed-forward layers of a tiny one. */
static void choose_rows(struct tsr_executor *x)
{
    const struct tsri_header *h = &x->header;
    uint32_t n_out = h->n_kv_heads * h->head_dim;
    if (n_out > h->n_embd) n_out = h->n_embd;
    if (n_out > h->n_ff) n_out = h->n_ff;
    if (n_out > h->n_vocab) n_out = h->n_vocab;
    if (x->n_threads > tsri_threads_most(n_out)) x->n_threads = tsri_threads_most(n_out);
    x->rows_least = tsri_rows_least(x->n_threads, n_out);
    if (ggml_backend_dev_type(x->weights.device) != GGML_BACKEND_DEVICE_TYPE_CPU)
        x->rows_least = tsri_rows_least(1, n_out);
}

static void executor_close(struct tsr_executor *x)
{
    if (!x) return;
    tsri_vocab_fini(&x->vocab);
    tsri_header_fini(&x->header);
    tsri_weights_fini(&x->weights);
    free(x);
}

struct loading {
    struct tsr_executor *x;
    const struct tsr_model_desc *desc;
};

static int load(void *arg)
{
    const struct loading *loading = arg;
    struct tsr_executor *x = loading->x;
    const struct tsr_model_desc *desc = loading->desc;
    enum ggml_type convert;
    int e = find_device(x, desc->device);
    if (!e) e = choose_kv(x, desc->kv_dtype);
    if (!e) e = choose_weights(x, desc->weights, &convert);
    if (!e) e = tsri_weights_map(&x->weights, desc->path, x->fail);
    if (!e)
        e = tsri_header_init(&x->header, x->weights.gguf, x->weights.file_tensors, x->weights.map,
                             x->weights.map_bytes, x->fail);
    if (!e) e = check_attention(x);
    if (!e) choose_rows(x);
    if (!e) choose_tiles(x);
    if (!e) e = tsri_vocab_init(&x->vocab, desc->path, x->header.n_vocab, x->fail);
    if (!e) e = tsri_weights_place(&x->weights, &x->header, convert, x->tiles, x->fail);
    if (!e)
        e = tsri_weights_digest(&x->weights, desc->weights ? desc->weights : "", x->digest,
                                x->fail);
    if (!e) e = tsri_tokenizer_digest(&x->weights, x->tokenizer, x->fail);
    return e;
}

static int executor_open(struct tsr_executor **out, const struct tsr_model_desc *desc)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_ggml);
    struct tsr_executor *x = calloc(1, sizeof *x);
    if (!x) return tsri_model_fail(desc->fail, TSR_ENOMEM, "model: out of memory");
    x->fail = desc->fail;
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    x->n_threads = desc->n_threads ? desc->n_threads : n < 1 ? 1 : n > 16 ? 16 : (uint32_t)n;
    int e = 0;
    if (x->n_threads > THREADS_MAX)
        e = tsri_model_fail(x->fail, TSR_ERANGE, "model: %u threads, limit %u", x->n_threads,
                            THREADS_MAX);
    struct loading loading = {x, desc};
    if (!e) e = tsri_guard(load, &loading, x->fail);
    if (e) {
        executor_close(x);
        return e;
    }
    *out = x;
    return 0;
}

static int executor_info(struct tsr_executor *x, struct tsr_model_info *out)
{
    const struct tsri_header *h = &x->header;
    struct tsr_model_info i = {.size = out->size, /* of an older core: less is written */
                               .caps = TSR_MODEL_MASS | TSR_MODEL_DEVIATION | TSR_MODEL_BIAS |
                                       TSR_MODEL_TEXT,
                               .n_layers = h->n_layers,
                               .n_heads = h->n_heads,
                               .n_kv_heads = h->n_kv_heads,
                               .head_dim = h->head_dim,
                               .n_embd = h->n_embd,
                               .n_vocab = h->n_vocab,
                               .context = h->context,
                               .kv_dtype = x->kv_dtype,
                               .token_bos = tsri_vocab_bos(&x->vocab),
                               .weight_bytes = x->weights.bytes,
                               .rope = h->rope};
    if (x->vocab.chat_template) i.caps |= TSR_MODEL_CHAT;
    if (x->tiles) {
        snprintf(i.arithmetic, sizeof i.arithmetic, TSRI_TILES_BITS);
        i.rows_best = TILES_ROWS_BEST;
    }
    snprintf(i.architecture, sizeof i.architecture, "%s", h->architecture);
    snprintf(i.name, sizeof i.name, "%s", h->name);
    snprintf(i.device, sizeof i.device, "%.60s, %u threads%s",
             ggml_backend_dev_description(x->weights.device), x->n_threads,
             x->tiles ? ", AMX" : "");
    memcpy(i.weights, x->digest, sizeof i.weights);
    memcpy(i.tokenizer, x->tokenizer, sizeof i.tokenizer);
    memcpy(out, &i, out->size < sizeof i ? out->size : sizeof i);
    return 0;
}

/* ---- text ---- */

static int tokenize(struct tsr_executor *x, const char *text, size_t bytes, uint32_t flags,
                    uint32_t *tokens, uint32_t max)
{
    return tsri_vocab_tokenize(&x->vocab, text, bytes, flags, tokens, max, x->fail);
}

static int detokenize(struct tsr_executor *x, const uint32_t *tokens, uint32_t n, uint32_t flags,
                      char *text, size_t bytes)
{
    return tsri_vocab_detokenize(&x->vocab, tokens, n, flags, text, bytes, x->fail);
}

static int is_end(struct tsr_executor *x, uint32_t token)
{
    return tsri_vocab_is_end(&x->vocab, token);
}

static int chat(struct tsr_executor *x, const struct tsr_chat_message *messages, uint32_t n,
                char *text, size_t bytes)
{
    return tsri_vocab_chat(&x->vocab, messages, n, text, bytes, x->fail);
}

TSR_API extern const struct tsr_executor_ops tsr_executor;
const struct tsr_executor_ops tsr_executor = {
    .abi = TSR_EXECUTOR_ABI,
    .name = "ggml",
    .open = executor_open,
    .close = executor_close,
    .info = executor_info,
    .tokenize = tokenize,
    .detokenize = detokenize,
    .is_end = is_end,
    .chat = chat,
    .session_open = tsri_ggml_session_open,
    .session_close = tsri_ggml_session_close,
    .session_layout = tsri_ggml_session_layout,
    .begin = tsri_ggml_session_begin,
    .layer = tsri_ggml_session_layer,
    .deviation = tsri_ggml_session_deviation,
    .narrow = tsri_ggml_session_narrow,
    .logits = tsri_ggml_session_logits,
    .end = tsri_ggml_session_end,
    .cut = tsri_ggml_session_cut,
    .decoder_open = tsri_ggml_decoder_open,
    .decoder_close = tsri_ggml_decoder_close,
    .decoder_run = tsri_ggml_decoder_run,
};
