/* weights.c - the file of a model mapped into memory, and each of its tensors placed where the
 * kernels want it. On a CPU a matrix is first offered to the special kinds of memory that ggml has
 * there (repacked for wide instructions, AMX tiles): each says for itself whether it can multiply
 * with a tensor of that type and shape, and only then gets it; Q4_1 on Arm, for one, has no
 * repacked kernel and crashes in that memory. Everything else, and what our own kernels on tiles
 * multiply with, stays where it is, in the mapped file, and costs no memory of its own. Other devices
 * get copies.
 *
 * Matrices can be converted to Q8_0 while loading: twice the memory of a 4-bit file, but faster
 * kernels on some processors. */
#include "model/model.h"

#include <openssl/evp.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the file ---- */

int tsri_weights_map(struct tsri_weights *w, const char *path, tsri_fail_fn fail)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would keep it waiting */
    if (fd < 0) return tsri_model_fail(fail, TSR_ENOENT, "model: %s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < 32) {
        close(fd);
        return tsri_model_fail(fail, TSR_ECORRUPT, "model: %s is not a model file", path);
    }
    w->map_bytes = (size_t)st.st_size;
    /* Private and writable: nothing writes, but ggml's buffers are not const. */
    w->map = mmap(NULL, w->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    close(fd);
    if (w->map == MAP_FAILED) {
        w->map = NULL;
        return tsri_model_fail(fail, TSR_ENOMEM, "model: %s: %s", path, strerror(errno));
    }
    if (memcmp(w->map, "GGUF", 4) != 0)
        return tsri_model_fail(fail, TSR_ECORRUPT, "model: %s is not a GGUF file", path);
    tsri_model_complaint();
    struct gguf_init_params params = {.no_alloc = true, .ctx = &w->file_tensors};
    w->gguf = gguf_init_from_buffer(w->map, w->map_bytes, params);
    if (!w->gguf) {
        const char *why = tsri_model_complaint();
        return tsri_model_fail(fail, TSR_ECORRUPT, "model: %s is damaged%s%s", path,
                               why[0] ? ": " : "", why);
    }
    if (!w->file_tensors)
        return tsri_model_fail(fail, TSR_ECORRUPT, "model: %s has no tensors", path);
    return 0;
}

void tsri_weights_fini(struct tsri_weights *w)
{
    for (uint32_t i = 0; i < w->n_places; i++) {
        ggml_backend_buffer_free(w->places[i].buffer);
        ggml_free(w->places[i].tensors);
    }
    free(w->layers);
    gguf_free(w->gguf);
    ggml_free(w->file_tensors);
    if (w->map) munmap(w->map, w->map_bytes);
    memset(w, 0, sizeof *w);
}

static const struct ggml_tensor *file_tensor(const struct tsri_weights *w, int64_t id)
{
    return ggml_get_tensor(w->file_tensors, gguf_get_tensor_name(w->gguf, id));
}

static uint8_t *file_data(const struct tsri_weights *w, int64_t id)
{
    return (uint8_t *)w->map + gguf_get_data_offset(w->gguf) + gguf_get_tensor_offset(w->gguf, id);
}

/* ---- where a tensor goes ---- */

/* Whether `device` can multiply with such a matrix when it lies in memory of this kind. The kinds
 * look at the buffer of the tensor, so it gets one without memory. */
static bool can_multiply(ggml_backend_dev_t device, ggml_backend_buffer_type_t kind,
                         enum ggml_type type, const struct ggml_tensor *like)
{
    struct ggml_init_params params = {.mem_size = 8 * ggml_tensor_overhead(), .no_alloc = true};
    struct ggml_context *ctx = ggml_init(params);
    if (!ctx) return false;
    struct ggml_tensor *m = ggml_new_tensor_2d(ctx, type, like->ne[0], like->ne[1]);
    struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, like->ne[0], TSRI_BATCH_ROWS);
    struct ggml_tensor *y = ggml_mul_mat(ctx, m, x);
    m->buffer = ggml_backend_buft_alloc_buffer(kind, 0);
    bool can = m->buffer && ggml_backend_dev_supports_op(device, y);
    ggml_backend_buffer_free(m->buffer);
    ggml_free(ctx);
    return can;
}

/* The first special kind of CPU memory that can multiply with this matrix; NULL: none. */
static ggml_backend_buffer_type_t special_kind(ggml_backend_dev_t device, enum ggml_type type,
                                               const struct ggml_tensor *like)
{
    if (ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU) return NULL;
    void *address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device),
                                                      "ggml_backend_dev_get_extra_bufts");
    ggml_backend_dev_get_extra_bufts_t kinds_of;
    memcpy(&kinds_of, &address, sizeof kinds_of);
    if (!kinds_of) return NULL;
    for (ggml_backend_buffer_type_t *k = kinds_of(device); k && *k; k++)
        if (can_multiply(device, *k, type, like)) return *k;
    return NULL;
}

static struct tsri_tensor_place *place_of(struct tsri_weights *w, ggml_backend_buffer_type_t kind)
{
    for (uint32_t i = 0; i < w->n_places; i++)
        if (w->places[i].kind == kind) return &w->places[i];
    if (w->n_places == TSRI_PLACES_MAX) return NULL;
    size_t n = (size_t)gguf_get_n_tensors(w->gguf) + 8;
    struct ggml_init_params params = {.mem_size = n * ggml_tensor_overhead(), .no_alloc = true};
    struct tsri_tensor_place *p = &w->places[w->n_places];
    p->kind = kind;
    p->tensors = ggml_init(params);
    if (!p->tensors) return NULL;
    w->n_places++;
    return p;
}

struct placing {
    struct tsri_weights *w;
    enum ggml_type convert;
    bool tiles;
    tsri_fail_fn fail;
};

/* Decides where tensor `id` goes and makes it there, without data; absent ones stay NULL. */
static int choose(const struct placing *p, int64_t id, bool matrix, struct ggml_tensor **out)
{
    struct tsri_weights *w = p->w;
    if (id < 0) return 0;
    const struct ggml_tensor *t = file_tensor(w, id);
    bool convert = matrix && p->convert != GGML_TYPE_COUNT && p->convert != t->type &&
                   t->ne[0] % ggml_blck_size(p->convert) == 0;
    enum ggml_type type = convert ? p->convert : t->type;
    ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(w->device), kind = NULL;
    if (matrix && !(p->tiles && tsri_tiles_fit(type, t->ne[0], t->ne[1])))
        kind = special_kind(w->device, type, t);
    if (matrix && !kind && !can_multiply(w->device, plain, type, t))
        return tsri_model_fail(p->fail, TSR_EUNSUP,
                               "model: %s cannot multiply with %s, a %s matrix",
                               ggml_backend_dev_name(w->device), t->name, ggml_type_name(type));
    /* The mapped file serves where the host computes and the tensor is aligned as ggml wants. */
    bool mapped = ggml_backend_buft_is_host(plain) && !convert &&
                  (uintptr_t)file_data(w, id) % ggml_backend_buft_get_alignment(plain) == 0;
    if (!kind && !mapped) kind = plain;
    struct tsri_tensor_place *place = place_of(w, kind);
    struct ggml_tensor *made =
        place ? ggml_new_tensor_2d(place->tensors, type, t->ne[0], t->ne[1]) : NULL;
    if (!made) return tsri_model_fail(p->fail, TSR_ENOMEM, "model: out of memory for tensors");
    ggml_set_name(made, t->name);
    w->bytes += ggml_nbytes(made);
    *out = made;
    return 0;
}

/* ---- filling ---- */

/* Rows of a tensor to float and on to another type. */
static int convert_tensor(const struct tsri_weights *w, int64_t id, struct ggml_tensor *to)
{
    const struct ggml_tensor *from = file_tensor(w, id);
    ggml_to_float_t to_float = ggml_get_type_traits(from->type)->to_float;
    if (!to_float && from->type != GGML_TYPE_F32) return TSR_EUNSUP;
    size_t from_row = ggml_row_size(from->type, from->ne[0]);
    size_t to_row = ggml_row_size(to->type, to->ne[0]);
    float *row = malloc((size_t)from->ne[0] * sizeof *row);
    uint8_t *all = malloc(to_row * (size_t)to->ne[1]);
    int e = row && all ? 0 : TSR_ENOMEM;
    const uint8_t *data = file_data(w, id);
    for (int64_t i = 0; !e && i < from->ne[1]; i++) {
        if (to_float)
            to_float(data + (size_t)i * from_row, row, from->ne[0]);
        else
            memcpy(row, data + (size_t)i * from_row, from_row);
        ggml_quantize_chunk(to->type, row, all + (size_t)i * to_row, 0, 1, to->ne[0], NULL);
    }
    if (!e) ggml_backend_tensor_set(to, all, 0, to_row * (size_t)to->ne[1]);
    free(row);
    free(all);
    return e;
}

static int fill_mapped(struct tsri_weights *w, struct tsri_tensor_place *p)
{
    p->buffer = ggml_backend_cpu_buffer_from_ptr(w->map, w->map_bytes);
    if (!p->buffer) return TSR_ENOMEM;
    for (struct ggml_tensor *t = ggml_get_first_tensor(p->tensors); t;
         t = ggml_get_next_tensor(p->tensors, t)) {
        int64_t id = gguf_find_tensor(w->gguf, t->name);
        if (ggml_backend_tensor_alloc(p->buffer, t, file_data(w, id)) != GGML_STATUS_SUCCESS)
            return TSR_ENOMEM;
    }
    return 0;
}

static int fill_copied(struct tsri_weights *w, struct tsri_tensor_place *p)
{
    p->buffer = ggml_backend_alloc_ctx_tensors_from_buft(p->tensors, p->kind);
    if (!p->buffer) return TSR_ENOMEM;
    ggml_backend_buffer_set_usage(p->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (struct ggml_tensor *t = ggml_get_first_tensor(p->tensors); t;
         t = ggml_get_next_tensor(p->tensors, t)) {
        int64_t id = gguf_find_tensor(w->gguf, t->name);
        int e = 0;
        if (file_tensor(w, id)->type == t->type)
            ggml_backend_tensor_set(t, file_data(w, id), 0, ggml_nbytes(t));
        else
            e = convert_tensor(w, id, t);
        if (e) return e;
    }
    return 0;
}

static int choose_all(const struct placing *p, const struct tsri_header *h)
{
    struct tsri_weights *w = p->w;
    const int64_t *ids = h->model_tensors;
    int64_t head = ids[TSRI_OUTPUT] >= 0 ? ids[TSRI_OUTPUT] : ids[TSRI_TOKEN_EMBD];
    int e = choose(p, ids[TSRI_OUTPUT_NORM], false, &w->output_norm);
    if (!e) e = choose(p, head, true, &w->output);
    if (!e) e = choose(p, ids[TSRI_ROPE_FREQS], false, &w->rope_freqs);
    if (!e) e = choose(p, ids[TSRI_ROPE_LONG], false, &w->rope_long);
    for (uint32_t l = 0; !e && l < h->n_layers; l++)
        for (int t = 0; !e && t < TSRI_LAYER_TENSORS; t++) {
            int64_t id = h->layer_tensors[l][t];
            bool matrix = id >= 0 && file_tensor(w, id)->ne[1] > 1;
            e = choose(p, id, matrix, &w->layers[l][t]);
        }
    return e;
}

int tsri_weights_place(struct tsri_weights *w, const struct tsri_header *h, enum ggml_type convert,
                       bool tiles, tsri_fail_fn fail)
{
    struct placing p = {w, convert, tiles, fail};
    int64_t embd = h->model_tensors[TSRI_TOKEN_EMBD];
    w->embd = file_data(w, embd);
    w->embd_type = file_tensor(w, embd)->type;
    w->embd_row_bytes = ggml_row_size(w->embd_type, h->n_embd);
    if (w->embd_type != GGML_TYPE_F32 && !ggml_get_type_traits(w->embd_type)->to_float)
        return tsri_model_fail(fail, TSR_EUNSUP, "model: embeddings of type %s are not supported",
                               ggml_type_name(w->embd_type));
    w->layers = calloc(h->n_layers, sizeof *w->layers);
    if (!w->layers) return tsri_model_fail(fail, TSR_ENOMEM, "model: out of memory");
    int e = choose_all(&p, h);
    if (e) return e;
    for (uint32_t i = 0; !e && i < w->n_places; i++)
        e = w->places[i].kind ? fill_copied(w, &w->places[i]) : fill_mapped(w, &w->places[i]);
    if (e)
        return tsri_model_fail(fail, e, "model: no room for %llu bytes of weights on %s",
                               (unsigned long long)w->bytes, ggml_backend_dev_name(w->device));
    return 0;
}

void tsri_weights_embed(const struct tsri_weights *w, uint32_t token, uint32_t n_embd, float *out)
{
    const uint8_t *row = w->embd + (size_t)token * w->embd_row_bytes;
    if (w->embd_type == GGML_TYPE_F32)
        memcpy(out, row, w->embd_row_bytes);
    else
        ggml_get_type_traits(w->embd_type)->to_float(row, out, n_embd);
}

/* ---- digests ---- */

#define SAMPLE_BYTES 4096u /* at the begin, the middle and the end of each tensor */

static void add_tensor(EVP_MD_CTX *md, const struct tsri_weights *w, int64_t id)
{
    size_t bytes = ggml_nbytes(file_tensor(w, id));
    const uint8_t *data = file_data(w, id);
    size_t n = bytes < SAMPLE_BYTES ? bytes : SAMPLE_BYTES;
    EVP_DigestUpdate(md, data, n);
    EVP_DigestUpdate(md, data + (bytes - n) / 2, n);
    EVP_DigestUpdate(md, data + bytes - n, n);
}

int tsri_weights_digest(const struct tsri_weights *w, const char *convert,
                        uint8_t out[TSR_MODEL_WEIGHTS_BYTES], tsri_fail_fn fail)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    if (!md || EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(md);
        return tsri_model_fail(fail, TSR_ENOMEM, "model: out of memory for a digest");
    }
    uint64_t bytes = w->map_bytes;
    EVP_DigestUpdate(md, &bytes, sizeof bytes);
    EVP_DigestUpdate(md, convert, strlen(convert) + 1);
    EVP_DigestUpdate(md, w->map, gguf_get_data_offset(w->gguf));
    for (int64_t i = 0; i < gguf_get_n_tensors(w->gguf); i++)
        add_tensor(md, w, i);
    EVP_DigestFinal_ex(md, out, NULL);
    EVP_MD_CTX_free(md);
    return 0;
}

static void add_key(EVP_MD_CTX *md, const struct gguf_context *g, int64_t id)
{
    enum gguf_type type = gguf_get_kv_type(g, id);
    const char *key = gguf_get_key(g, id);
    EVP_DigestUpdate(md, key, strlen(key) + 1);
    if (type == GGUF_TYPE_STRING) {
        const char *s = gguf_get_val_str(g, id);
        EVP_DigestUpdate(md, s, strlen(s) + 1);
    } else if (type == GGUF_TYPE_ARRAY && gguf_get_arr_type(g, id) == GGUF_TYPE_STRING) {
        for (size_t i = 0; i < gguf_get_arr_n(g, id); i++) {
            const char *s = gguf_get_arr_str(g, id, i);
            EVP_DigestUpdate(md, s, strlen(s) + 1);
        }
    } else if (type == GGUF_TYPE_UINT32) {
        uint32_t value = gguf_get_val_u32(g, id);
        EVP_DigestUpdate(md, &value, sizeof value);
    } else if (type == GGUF_TYPE_BOOL) {
        bool value = gguf_get_val_bool(g, id);
        EVP_DigestUpdate(md, &value, sizeof value);
    }
}

int tsri_tokenizer_digest(const struct tsri_weights *w, uint8_t out[16], tsri_fail_fn fail)
{
    static const char prefix[] = "tokenizer.ggml.";
    uint8_t digest[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    if (!md || EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(md);
        return tsri_model_fail(fail, TSR_ENOMEM, "model: out of memory for a digest");
    }
    for (int64_t i = 0; i < gguf_get_n_kv(w->gguf); i++)
        if (strncmp(gguf_get_key(w->gguf, i), prefix, sizeof prefix - 1) == 0)
            add_key(md, w->gguf, i);
    EVP_DigestFinal_ex(md, digest, NULL);
    EVP_MD_CTX_free(md);
    memcpy(out, digest, 16);
    return 0;
}
