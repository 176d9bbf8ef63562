/* ascend_nn.c - CANN's operators one by one: their libraries, tensors, and the two calls that each of
 * them is. They are in libopapi.so, or since CANN 8.5 in libraries that it was divided into;
 * TESSERA_OPAPI_LIB names another one, for tests. Libraries stay loaded. */
#include "device/ascend_nn.h"

#include <dlfcn.h>
#include <stdlib.h>

/* ScatterPaKvCache got three more parameters under the same name between two releases of 8.3. */
enum { SCATTER_FROM_MAJOR = 8, SCATTER_FROM_MINOR = 5 };
#define WORKSPACE_FIRST ((size_t)16 << 10)
#define WORKSPACE_STEP ((size_t)1 << 20)

/* ---- libraries ---- */

static const char *const libraries[] = {"libopapi.so", "libopapi_transformer.so", "libopapi_nn.so",
                                        "libopapi_math.so"};

struct npu_handles {
    void *at[TSRI_COUNT(libraries)];
    uint32_t n;
};

static void *find(const struct npu_handles *h, const char *name)
{
    void *p = NULL;
    for (uint32_t i = 0; i < h->n && !p; i++)
        p = dlsym(h->at[i], name);
    return p;
}

static void open_libraries(struct npu_handles *h)
{
    const char *given = getenv("TESSERA_OPAPI_LIB");
    bool is_given = given && *given;
    for (uint32_t i = 0; i < (is_given ? 1 : TSRI_COUNT(libraries)); i++) {
        void *p = dlopen(is_given ? given : libraries[i], RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
        if (p) h->at[h->n++] = p;
    }
}

static bool has_scatter(const struct tsr_device *d)
{
    const char *dot = strchr(d->cann, '.');
    int minor = dot ? atoi(dot + 1) : 0;
    return d->major > SCATTER_FROM_MAJOR ||
           (d->major == SCATTER_FROM_MAJOR && minor >= SCATTER_FROM_MINOR);
}

static int load_functions(struct tsr_device *d, struct tsri_aclnn *nn)
{
    struct npu_handles h = {.n = 0};
    open_libraries(&h);
    if (h.n == 0) return d->fail(TSR_EDEVICE, "npu: no libopapi.so");
#define FIND(name, result, parameters) *(void **)(void *)&nn->name = find(&h, #name);
    TSRI_ACLNN_BASE(FIND)
#undef FIND
/* Half an operator is none. */
#define FIND(name, ...) \
    *(void **)(void *)&nn->name##GetWorkspaceSize = find(&h, #name "GetWorkspaceSize"); \
    *(void **)(void *)&nn->name = find(&h, #name); \
    if (!nn->name##GetWorkspaceSize) nn->name = NULL;
    TSRI_ACLNN_OPERATORS(FIND)
#undef FIND
    if (!has_scatter(d)) nn->aclnnScatterPaKvCache = NULL;
    if (nn->aclCreateTensor && nn->aclDestroyTensor) return 0;
    return d->fail(TSR_EDEVICE, "npu: libopapi.so has no aclCreateTensor");
}

/* ---- areas ---- */

static void close_areas(struct tsr_device *d, struct tsri_ascend_ops *o)
{
    for (uint32_t i = 0; i < TSRI_ASCEND_AREAS && tsri_ascend_enter(d) == 0; i++) {
        struct tsri_ascend_area *a = &o->areas[i];
        if (!tsri_ascend_is_idle(d, &a->used)) continue; /* rather left than freed in use */
        tsri_ascend_event_fini(d, &a->used);
        if (a->data) d->acl.aclrtFree(a->data);
        if (a->host) d->acl.aclrtFreeHost(a->host);
        if (a->workspace) d->acl.aclrtFree(a->workspace);
    }
}

static int open_areas(struct tsr_device *d, struct tsri_ascend_ops *o)
{
    int err = 0;
    for (uint32_t i = 0; i < TSRI_ASCEND_AREAS && !err; i++) {
        struct tsri_ascend_area *a = &o->areas[i];
        int e = d->acl.aclrtMalloc((void **)&a->data, o->area_bytes, TSRI_ACL_HUGE_FIRST);
        if (!e) e = d->acl.aclrtMallocHost((void **)&a->host, TSRI_ASCEND_TABLES_BYTES);
        if (!e) e = d->acl.aclrtMalloc(&a->workspace, WORKSPACE_FIRST, TSRI_ACL_HUGE_FIRST);
        if (!e) a->workspace_bytes = WORKSPACE_FIRST;
        err = e ? tsri_ascend_failed(d, e, "no memory for operators")
                : tsri_ascend_event_init(d, &a->used);
    }
    return err;
}

int tsri_ascend_ops_open(struct tsr_device *d, struct tsri_ascend_ops **out)
{
    if (d->major == 0)
        return d->fail(TSR_EDEVICE, "npu: no operators: the version of CANN is not known");
    struct tsri_ascend_ops *o = calloc(1, sizeof *o);
    if (!o) return d->fail(TSR_ENOMEM, "npu: out of memory");
    o->area_bytes = d->buffer_bytes < TSRI_ASCEND_BUFFER_BYTES ? TSRI_ASCEND_AREA_SMALL
                                                               : TSRI_ASCEND_AREA_BYTES;
    int err = load_functions(d, &o->nn);
    if (!err) err = open_areas(d, o);
    if (err) {
        close_areas(d, o);
        free(o);
        return err;
    }
    pthread_mutex_init(&o->lock, NULL);
    *out = o;
    return 0;
}

void tsri_ascend_ops_close(struct tsr_device *d, struct tsri_ascend_ops *o)
{
    if (!o) return;
    close_areas(d, o);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

void tsri_ascend_ops_stop(struct tsri_ascend_ops *o, const char *why)
{
    atomic_store(&o->why, why);
    atomic_store(&o->can, 0);
}

/* ---- tensors ---- */

struct tsri_ascend_tensor tsri_ascend_dense(void *data, enum tsri_acl_dtype dtype, uint32_t n_dims,
                                            const int64_t *dims)
{
    struct tsri_ascend_tensor t = {.data = data, .dtype = dtype, .n_dims = n_dims};
    int64_t stride = 1;
    for (uint32_t i = n_dims; i-- > 0;) {
        t.dims[i] = dims[i];
        t.strides[i] = stride;
        stride *= dims[i];
    }
    return t;
}

/* The storage is what lies between the address and the last element. */
static void *make_tensor(const struct tsri_aclnn *nn, const struct tsri_ascend_tensor *t)
{
    int64_t storage = t->offset + 1;
    for (uint32_t i = 0; i < t->n_dims; i++)
        storage += (t->dims[i] - 1) * t->strides[i];
    /* cppcheck-suppress returnDanglingLifetime ; the tensor keeps a copy of the dims */
    return nn->aclCreateTensor(t->dims, t->n_dims, t->dtype, t->strides, t->offset, TSRI_ACL_ND,
                               &storage, 1, t->data);
}

#define TENSORS_MAX 5u
struct npu_tensors {
    void *at[TENSORS_MAX];
    uint32_t n;
    bool all; /* none could not be made */
};

static void tensors_init(struct npu_tensors *ts, const struct tsri_aclnn *nn,
                         const struct tsri_ascend_tensor *const *views, uint32_t n)
{
    *ts = (struct npu_tensors){.n = n, .all = true};
    for (uint32_t i = 0; i < n; i++) {
        ts->at[i] = make_tensor(nn, views[i]);
        ts->all = ts->all && ts->at[i];
    }
}

static void tensors_fini(const struct npu_tensors *ts, const struct tsri_aclnn *nn)
{
    for (uint32_t i = 0; i < ts->n; i++)
        if (ts->at[i]) nn->aclDestroyTensor(ts->at[i]);
}

/* ---- the two calls ---- */

/* Operations that are queued may use the old workspace, so it goes when the stream is empty. */
static int grow_workspace(const struct tsri_ascend_call *c, size_t bytes)
{
    struct tsr_device *d = c->d;
    if (bytes <= c->area->workspace_bytes) return 0;
    if (bytes > TSRI_ASCEND_WORKSPACE_MAX)
        return d->fail(TSR_ERANGE, "npu: an operator wants too much workspace");
    int err = tsri_ascend_sync(d, c->s);
    if (err) return err;
    if (c->area->workspace) d->acl.aclrtFree(c->area->workspace);
    c->area->workspace = NULL;
    c->area->workspace_bytes = 0;
    bytes = tsri_align_up(bytes, WORKSPACE_STEP);
    TSRI_ACL_TRY(d, d->acl.aclrtMalloc(&c->area->workspace, bytes, TSRI_ACL_HUGE_FIRST),
                 "no memory for an operator");
    c->area->workspace_bytes = bytes;
    return 0;
}

/* An executor that no second call will use up. Only a repeatable one may be destroyed. */
static void drop_executor(const struct tsri_aclnn *nn, void *executor)
{
    if (nn->aclSetAclOpExecutorRepeatable && nn->aclDestroyAclOpExecutor &&
        nn->aclSetAclOpExecutorRepeatable(executor) == 0)
        nn->aclDestroyAclOpExecutor(executor);
}

/* What the first call gives. */
struct npu_plan {
    uint64_t bytes;
    void *executor;
};

/* The second call. e: of the first one; tensors are not needed behind it. */
static int launch(const struct tsri_ascend_call *c, int e, const struct npu_plan *plan,
                  tsri_aclnn_run_fn run)
{
    if (e) return tsri_ascend_failed(c->d, e, "an operator was refused");
    int err = grow_workspace(c, plan->bytes);
    if (err) {
        drop_executor(&c->d->ops->nn, plan->executor);
        return err;
    }
    e = run(plan->bytes ? c->area->workspace : NULL, plan->bytes, plan->executor, c->s->native);
    return e ? tsri_ascend_failed(c->d, e, "an operator failed") : 0;
}

static int finish(const struct tsri_ascend_call *c, const struct npu_tensors *ts, int e,
                  const struct npu_plan *plan, tsri_aclnn_run_fn run)
{
    int err =
        ts->all ? launch(c, e, plan, run) : c->d->fail(TSR_ENOMEM, "npu: cannot make a tensor");
    tensors_fini(ts, &c->d->ops->nn);
    return err;
}

static int missing(const struct tsri_ascend_call *c)
{
    return c->d->fail(TSR_EUNSUP, "npu: an operator is missing");
}

int tsri_ascend_cast(const struct tsri_ascend_call *c, const struct tsri_ascend_tensor *from,
                     const struct tsri_ascend_tensor *to)
{
    const struct tsri_aclnn *nn = &c->d->ops->nn;
    const struct tsri_ascend_tensor *const views[] = {from, to};
    struct npu_tensors ts;
    struct npu_plan plan = {0};
    int e = 0;
    if (!nn->aclnnCast) return missing(c);
    tensors_init(&ts, nn, views, 2);
    if (ts.all)
        e = nn->aclnnCastGetWorkspaceSize(ts.at[0], to->dtype, ts.at[1], &plan.bytes,
                                          &plan.executor);
    return finish(c, &ts, e, &plan, nn->aclnnCast);
}

int tsri_ascend_mul(const struct tsri_ascend_call *c, const struct tsri_ascend_tensor *a,
                    const struct tsri_ascend_tensor *b, const struct tsri_ascend_tensor *to)
{
    const struct tsri_aclnn *nn = &c->d->ops->nn;
    const struct tsri_ascend_tensor *const views[] = {a, b, to};
    struct npu_tensors ts;
    struct npu_plan plan = {0};
    int e = 0;
    if (!nn->aclnnMul) return missing(c);
    tensors_init(&ts, nn, views, 3);
    if (ts.all)
        e = nn->aclnnMulGetWorkspaceSize(ts.at[0], ts.at[1], ts.at[2], &plan.bytes, &plan.executor);
    return finish(c, &ts, e, &plan, nn->aclnnMul);
}

int tsri_ascend_rope(const struct tsri_ascend_call *c, const struct tsri_ascend_tensor *from,
                     const struct tsri_ascend_tensor table[2], int64_t mode,
                     const struct tsri_ascend_tensor *to)
{
    const struct tsri_aclnn *nn = &c->d->ops->nn;
    const struct tsri_ascend_tensor *const views[] = {from, &table[0], &table[1], to};
    struct npu_tensors ts;
    struct npu_plan plan = {0};
    int e = 0;
    if (!nn->aclnnRotaryPositionEmbedding) return missing(c);
    tensors_init(&ts, nn, views, 4);
    if (ts.all)
        e = nn->aclnnRotaryPositionEmbeddingGetWorkspaceSize(ts.at[0], ts.at[1], ts.at[2], mode,
                                                             ts.at[3], &plan.bytes, &plan.executor);
    return finish(c, &ts, e, &plan, nn->aclnnRotaryPositionEmbedding);
}

int tsri_ascend_select(const struct tsri_ascend_call *c, const struct tsri_ascend_tensor *from,
                       const struct tsri_ascend_tensor *index, const struct tsri_ascend_tensor *to)
{
    const struct tsri_aclnn *nn = &c->d->ops->nn;
    const struct tsri_ascend_tensor *const views[] = {from, index, to};
    struct npu_tensors ts;
    struct npu_plan plan = {0};
    int e = 0;
    if (!nn->aclnnIndexSelect) return missing(c);
    tensors_init(&ts, nn, views, 3);
    if (ts.all)
        e = nn->aclnnIndexSelectGetWorkspaceSize(ts.at[0], 0, ts.at[1], ts.at[2], &plan.bytes,
                                                 &plan.executor);
    return finish(c, &ts, e, &plan, nn->aclnnIndexSelect);
}

int tsri_ascend_paged(const struct tsri_ascend_call *c, const struct tsri_ascend_tensor rows[2],
                      const struct tsri_ascend_tensor *slots,
                      const struct tsri_ascend_tensor caches[2])
{
    static char cache_mode[] = "Norm", scatter_mode[] = "None";
    const struct tsri_aclnn *nn = &c->d->ops->nn;
    const struct tsri_ascend_tensor *const views[] = {&rows[0], &caches[0], slots, &rows[1],
                                                      &caches[1]};
    struct npu_tensors ts;
    struct npu_plan plan = {0};
    int e = 0;
    if (!nn->aclnnScatterPaKvCache) return missing(c);
    tensors_init(&ts, nn, views, TENSORS_MAX);
    if (ts.all)
        e = nn->aclnnScatterPaKvCacheGetWorkspaceSize(
            ts.at[0], ts.at[1], ts.at[2], ts.at[3], ts.at[4], NULL, NULL, NULL, cache_mode,
            scatter_mode, NULL, NULL, &plan.bytes, &plan.executor);
    return finish(c, &ts, e, &plan, nn->aclnnScatterPaKvCache);
}
