/* tensors.c - tensors and executors of the fake libopapi.so, and the two calls of each operator. */
#include "fakeopapi/nn.h"

#include <stdlib.h>

#define TENSOR_MAGIC 0x746e73726f697461u
#define EXECUTOR_MAGIC 0x6578656375746f72u
#define GARBAGE 0xcd

#define DECLARE(name, result, parameters) TSR_API result name parameters;
TSRI_ACLNN_BASE(DECLARE)
#undef DECLARE
#define DECLARE(name, ...) \
    TSR_API int name##GetWorkspaceSize(__VA_ARGS__, uint64_t *workspace_bytes, void **executor); \
    TSR_API int name(void *workspace, uint64_t bytes, void *executor, void *stream);
TSRI_ACLNN_OPERATORS(DECLARE)
#undef DECLARE

/* What is given back stays for a while, so that a later use is seen. */
static void bury(void *p)
{
    static void *dead[256];
    static uint32_t n;
    void **at = &dead[n++ % TSRI_COUNT(dead)];
    free(*at);
    *at = p;
}

/* ---- tensors ---- */

size_t nn_size(enum tsri_acl_dtype dtype)
{
    switch (dtype) {
    case TSRI_ACL_F32:
        return 4;
    case TSRI_ACL_F16:
    case TSRI_ACL_BF16:
        return 2;
    case TSRI_ACL_INT8:
        return 1;
    case TSRI_ACL_INT64:
        return 8;
    }
    fake_die("aclCreateTensor: dtype %d", (int)dtype);
}

int64_t nn_count(const struct nn_tensor *t)
{
    int64_t n = 1;
    for (uint32_t i = 0; i < t->n_dims; i++)
        n *= t->dims[i];
    return n;
}

bool nn_dense(const struct nn_tensor *t)
{
    int64_t stride = 1;
    for (uint32_t i = t->n_dims; i-- > 0;) {
        if (t->dims[i] > 1 && t->strides[i] != stride) return false;
        stride *= t->dims[i];
    }
    return true;
}

bool nn_same_dims(const struct nn_tensor *a, const struct nn_tensor *b)
{
    return a->n_dims == b->n_dims && memcmp(a->dims, b->dims, a->n_dims * sizeof *a->dims) == 0;
}

const struct nn_tensor *nn_tensor(const char *name, const void *handle)
{
    const struct nn_tensor *t = handle;
    if (!t) fake_die("%s: a tensor is NULL", name);
    if (t->magic != TENSOR_MAGIC) fake_die("%s: a tensor that was destroyed", name);
    return t;
}

struct fake_span nn_span(const struct nn_tensor *t)
{
    int64_t last = 0;
    for (uint32_t i = 0; i < t->n_dims; i++)
        last += (t->dims[i] - 1) * t->strides[i];
    size_t size = nn_size(t->dtype);
    return (struct fake_span){(uintptr_t)t->data + (size_t)t->offset * size,
                              ((size_t)last + 1) * size, false};
}

int64_t nn_at(const struct nn_tensor *t, const struct nn_tensor *as, int64_t i)
{
    int64_t at = 0;
    for (uint32_t k = as->n_dims; k-- > 0; i /= as->dims[k])
        if (t->dims[k] > 1) at += i % as->dims[k] * t->strides[k];
    return at;
}

/* NOLINTNEXTLINE(readability-function-size): the library's signature */
TSR_API void *aclCreateTensor(const int64_t *dims, uint64_t n_dims, enum tsri_acl_dtype dtype,
                              const int64_t *strides, int64_t offset, int format,
                              const int64_t *storage_dims, uint64_t n_storage_dims, void *data)
{
    if (fake_enter("aclCreateTensor")) return NULL;
    if (n_dims == 0 || n_dims > NN_DIMS || offset < 0 || !data)
        fake_die("aclCreateTensor: %zu axes", (size_t)n_dims);
    if (format != TSRI_ACL_ND) fake_die("aclCreateTensor: format %d", format);
    struct nn_tensor *t = calloc(1, sizeof *t);
    if (!t) fake_die("out of memory");
    *t = (struct nn_tensor){TENSOR_MAGIC, data, dtype, (uint32_t)n_dims, {0}, {0}, offset};
    int64_t storage = 1;
    for (uint64_t i = 0; i < n_dims; i++) {
        if (dims[i] < 1 || strides[i] < 0) fake_die("aclCreateTensor: an axis of %d", (int)dims[i]);
        t->dims[i] = dims[i];
        t->strides[i] = strides[i];
    }
    for (uint64_t i = 0; i < n_storage_dims; i++)
        storage *= storage_dims[i];
    struct fake_span span = nn_span(t);
    if (span.first + span.bytes > (uintptr_t)data + (size_t)storage * nn_size(dtype))
        fake_die("aclCreateTensor: the view goes beyond its storage");
    fake_bytes("aclCreateTensor", span.first, span.bytes, true);
    fake.n_tensors++;
    pthread_mutex_unlock(&fake.lock);
    return t;
}

TSR_API int aclDestroyTensor(const void *handle)
{
    pthread_mutex_lock(&fake.lock);
    union {
        const void *given;
        struct nn_tensor *t;
    } mine = {handle};
    nn_tensor("aclDestroyTensor", handle);
    mine.t->magic = 0;
    bury(mine.t);
    fake.n_tensors--;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

/* ---- executors ---- */

static struct nn_task *executor_of(const char *name, void *handle)
{
    struct nn_task *t = handle;
    if (!t || t->magic != EXECUTOR_MAGIC) fake_die("%s: an executor that is used up", name);
    return t;
}

TSR_API int aclSetAclOpExecutorRepeatable(void *handle)
{
    int e = fake_enter("aclSetAclOpExecutorRepeatable");
    if (e) return e;
    executor_of("aclSetAclOpExecutorRepeatable", handle)->repeatable = true;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static void use_up(struct nn_task *t)
{
    t->magic = 0;
    bury(t);
    fake.n_executors--;
}

TSR_API int aclDestroyAclOpExecutor(void *handle)
{
    pthread_mutex_lock(&fake.lock);
    struct nn_task *t = executor_of("aclDestroyAclOpExecutor", handle);
    if (!t->repeatable) fake_die("aclDestroyAclOpExecutor: not a repeatable one");
    use_up(t);
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static bool is_named(const char *option, const char *name)
{
    const char *value = getenv(option);
    return value && strcmp(value, name) == 0;
}

/* ---- the first call ---- */

static int plan(const struct nn_operator *op, const void *const *handles, int64_t mode,
                uint64_t *workspace_bytes, void **executor)
{
    int e = fake_enter(op->name);
    if (e) return e;
    struct nn_task *t = calloc(1, sizeof *t);
    if (!t) fake_die("out of memory");
    *t = (struct nn_task){.magic = EXECUTOR_MAGIC, .op = op, .mode = mode};
    for (uint32_t i = 0; i < op->n_tensors; i++) {
        t->given[i] = nn_tensor(op->name, handles[i]);
        t->tensors[i] = *t->given[i];
    }
    const char *more = getenv("FAKEACL_WORKSPACE");
    t->workspace_bytes = op->check(t) + (more ? (uint64_t)atoll(more) : 0);
    t->wrong = is_named("FAKEACL_WRONG", op->name);
    bool refused = is_named("FAKEACL_REFUSES", op->name);
    if (refused) {
        free(t);
    } else {
        *workspace_bytes = t->workspace_bytes;
        *executor = t;
        fake.n_executors++;
    }
    pthread_mutex_unlock(&fake.lock);
    return refused ? NN_REFUSED : 0;
}

/* ---- the second call ---- */

static const struct nn_tensor *slots_of(const struct nn_task *t)
{
    return &t->tensors[t->op->slots];
}

/* The rows that slots name, in tensors that are paged. The slots are there now. */
static uint32_t paged_spans(void *arg, struct fake_span *out)
{
    const struct nn_task *t = arg;
    const int64_t *slots = (const int64_t *)(const void *)t->bytes[t->op->slots];
    int64_t n = nn_count(slots_of(t));
    uint32_t n_spans = 0;
    for (uint32_t k = 0; k < t->op->n_tensors; k++) {
        const struct nn_tensor *cache = &t->tensors[k];
        if (!(t->op->paged & (1u << k))) continue;
        int64_t n_rows = cache->n_dims == 4 ? cache->dims[0] * cache->dims[1] : cache->dims[0];
        size_t row = (size_t)(nn_count(cache) / n_rows) * nn_size(cache->dtype);
        bool writes = t->op->written & (1u << k);
        for (int64_t i = 0; i < n; i++) {
            if (slots[i] < 0 || slots[i] >= n_rows)
                fake_die("%s: slot %lld of %lld", t->op->name, (long long)slots[i],
                         (long long)n_rows);
            for (int64_t j = 0; j < i && writes; j++)
                if (slots[i] == slots[j])
                    fake_die("%s: slot %lld twice", t->op->name, (long long)slots[i]);
            if (n_spans == FAKE_SPANS) fake_die("%s: too many rows", t->op->name);
            out[n_spans++] =
                (struct fake_span){(uintptr_t)cache->data + (size_t)slots[i] * row, row, writes};
        }
    }
    return n_spans;
}

static void run_task(void *arg)
{
    struct nn_task *t = arg;
    if (t->workspace) memset(t->workspace, GARBAGE, t->workspace_bytes);
    t->op->run(t);
    free(t);
}

static int launch(const struct nn_operator *op, void *workspace, uint64_t bytes, void *executor,
                  void *stream)
{
    int e = fake_enter(op->name);
    if (e) pthread_mutex_lock(&fake.lock);
    struct nn_task *t = executor_of(op->name, executor), *queued = malloc(sizeof *queued);
    if (!queued) fake_die("out of memory");
    if (t->op != op) fake_die("%s: an executor of %s", op->name, t->op->name);
    if (bytes < t->workspace_bytes)
        fake_die("%s: workspace of %zu bytes, not %zu", op->name, (size_t)bytes,
                 (size_t)t->workspace_bytes);
    struct fake_span spans[NN_TENSORS + 1];
    uint32_t n = 0;
    for (uint32_t i = 0; i < op->n_tensors; i++) {
        nn_tensor(op->name, t->given[i]);
        struct fake_span span = nn_span(&t->tensors[i]);
        t->bytes[i] = fake_bytes(op->name, span.first, span.bytes, true);
        span.writes = op->written & (1u << i);
        if (!(op->paged & (1u << i))) spans[n++] = span;
    }
    if (t->workspace_bytes) {
        t->workspace = fake_bytes(op->name, (uintptr_t)workspace, t->workspace_bytes, true);
        spans[n++] = (struct fake_span){(uintptr_t)workspace, t->workspace_bytes, true};
    }
    *queued = *t;
    use_up(t);
    struct fake_work work = {op->paged ? paged_spans : NULL, run_task, queued};
    if (e)
        free(queued); /* a call that fails has queued nothing, and used up its executor */
    else
        fake_queue_work(op->name, stream, &work, spans, n);
    pthread_mutex_unlock(&fake.lock);
    return e;
}

#define LAUNCH(name, op) \
    TSR_API int name(void *workspace, uint64_t bytes, void *executor, void *stream) \
    { \
        return launch(&(op), workspace, bytes, executor, stream); \
    }
LAUNCH(aclnnCast, nn_cast)
LAUNCH(aclnnMul, nn_mul)
LAUNCH(aclnnRotaryPositionEmbedding, nn_rope)
LAUNCH(aclnnIndexSelect, nn_select)
LAUNCH(aclnnScatterPaKvCache, nn_paged)

/* ---- the operators' own first calls ---- */

TSR_API int aclnnCastGetWorkspaceSize(const void *self, enum tsri_acl_dtype dtype, void *out,
                                      uint64_t *bytes, void **executor)
{
    const void *const handles[] = {self, out};
    return plan(&nn_cast, handles, dtype, bytes, executor);
}

TSR_API int aclnnMulGetWorkspaceSize(const void *self, const void *other, void *out,
                                     uint64_t *bytes, void **executor)
{
    const void *const handles[] = {self, other, out};
    return plan(&nn_mul, handles, 0, bytes, executor);
}

TSR_API int aclnnRotaryPositionEmbeddingGetWorkspaceSize(const void *x, const void *cos,
                                                         const void *sin, int64_t mode, void *out,
                                                         uint64_t *bytes, void **executor)
{
    const void *const handles[] = {x, cos, sin, out};
    return plan(&nn_rope, handles, mode, bytes, executor);
}

TSR_API int aclnnIndexSelectGetWorkspaceSize(const void *self, int64_t dim, const void *index,
                                             void *out, uint64_t *bytes, void **executor)
{
    const void *const handles[] = {self, index, out};
    return plan(&nn_select, handles, dim, bytes, executor);
}

/* NOLINTNEXTLINE(readability-function-size): the library's signature */
TSR_API int aclnnScatterPaKvCacheGetWorkspaceSize(
    const void *key, void *key_cache, const void *slots, const void *value, void *value_cache,
    const void *compress_lens, const void *compress_offsets, const void *lens, char *cache_mode,
    char *scatter_mode, const void *strides, const void *offsets, uint64_t *bytes, void **executor)
{
    const void *const handles[] = {key, key_cache, slots, value, value_cache};
    if (compress_lens || compress_offsets || lens || strides || offsets)
        fake_die("aclnnScatterPaKvCache: what is optional is NULL in this mode");
    if (strcmp(cache_mode, "Norm") != 0 || strcmp(scatter_mode, "None") != 0)
        fake_die("aclnnScatterPaKvCache: modes %s, %s", cache_mode, scatter_mode);
    return plan(&nn_paged, handles, 0, bytes, executor);
}
