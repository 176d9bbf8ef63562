/* device.h - write a device: it moves KV between Tessera's cells and an engine's memory, rotates it
 * to another position on the way, and ranks scores. docs/backends.md walks through writing one.
 *
 * A device is one constant table, struct tsr_device_ops. Built-in devices are listed in
 * src/device/device.c; any other name N is loaded with dlopen from libtessera-N.so, which exports
 * the table as the one symbol tsr_device_N. The core links no accelerator library.
 *
 * Only src/device calls through the table. It checks every argument first: a device gets shapes
 * that agree, slots in range without duplicates, aligned pointers, and never a count of zero. It
 * may assert what is promised here, and must return what can happen (no driver, no memory, a lost
 * device).
 *
 * Threads: a device, and what was opened on it, may be used from any thread; one stream, event or
 *          batch is used by one thread at a time.
 * Memory:  everything pointed to is borrowed. What a batch points to stays in place until the batch
 *          is set again or closed; rows and cells until the stream has passed the operation.
 * Errors:  int results are >= 0 on success and one of enum tsr_err otherwise; the device says why
 *          through desc->fail, and returns its result. Nothing is written when an operation is
 *          refused.
 *
 * Structs that begin with `size` may grow: set size = sizeof the struct; zero always means default.
 */
#ifndef TESSERA_DEVICE_H
#define TESSERA_DEVICE_H

#include <tessera/tessera.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TSR_DEVICE_ABI 2u

enum tsr_device_caps {
    TSR_DEVICE_ASYNC = 1,      /* operations return when they are queued on their stream */
    TSR_DEVICE_SEPARATE = 2,   /* alloc() gives memory that the host cannot touch */
    TSR_DEVICE_NEEDS_LOCK = 4, /* cells must be page-locked or registered, or in device memory */
    TSR_DEVICE_OWN_ANGLES = 8  /* makes its tables of cos and sin itself, from freq and deltas */
};

enum tsr_stream_flags {
    TSR_STREAM_LOW = 1 /* gives way: its kernels start when streams without it leave room */
};

/* What a device may do that it would not do by itself. */
enum tsr_device_flags {
    TSR_DEVICE_OPERATORS = 1 /* compute with the vendor's operators (option device_operators) */
};

/* Where a pointer points to. */
enum tsr_memory {
    TSR_MEMORY_HOST = 0,   /* plain host memory */
    TSR_MEMORY_LOCKED = 1, /* from host_alloc, or registered with host_register */
    TSR_MEMORY_DEVICE = 2  /* from alloc, or the engine's on the same device */
};

/* ---- layouts: where KV is in an engine's memory ------------------------------------------- */

#define TSR_KV_PLANES_MAX 4u

/* One plane (K, V, an MLA latent, ...) of all layers. In bytes, the element
 * (layer, slot, head, element) is at
 *   L + (slot / block_tokens) * block_stride + (slot % block_tokens) * token_stride
 *     + head * head_stride + element * element_stride
 * where L is layers[layer], or base + layer * layer_stride when layers is NULL. The strides of the
 * axes may come in any order, which makes NHD and HND, K and V apart or side by side in one row,
 * column-major K and pages that hold all layers one description. */
struct tsr_kv_plane {
    void *base;
    void *const *layers;  /* [n_layers], host memory; NULL: one allocation */
    uint64_t layer_bytes; /* from base, or from each of layers; 0: not known, not checked */
    uint64_t layer_stride, block_stride, token_stride, head_stride, element_stride;
    uint32_t dtype;                 /* enum tsr_dtype, not INT8 */
    uint32_t n_heads, dim;          /* elements of a head; OPAQUE: bytes */
    uint32_t rope_first, rope_dims; /* elements of each head that carry the position; 0: none */
};

struct tsr_kv_layout {
    size_t size;
    uint32_t memory;       /* enum tsr_memory */
    uint32_t n_layers;     /* at most 1024 */
    uint32_t n_planes;     /* at most TSR_KV_PLANES_MAX */
    uint32_t block_tokens; /* a power of two; 0: contiguous, block_stride is not used */
    uint64_t n_slots;      /* a multiple of block_tokens; valid slots are below it */
    struct tsr_kv_plane planes[TSR_KV_PLANES_MAX];
};

/* ---- cells: where an entry's KV is in host memory ----------------------------------------- */

/* The KV of one entry, cut into cells of cell_tokens tokens (the last may hold fewer). In a cell
 * each (layer, plane) is a run of rows, one per token, without gaps. A row is n_heads x dim
 * elements of the layout's dtype, or the int8 form of that:
 *   n_heads x dim int8, then a float scale for each group of elements, then zeros to a multiple of
 *   16 bytes. A group is a head, or 64 elements of it where dim is a multiple of 64 above 128 (so
 *   that a latent and its rope part do not share a scale). value = int8 * scale, also where the
 *   scale is NaN or infinite. A group that held a NaN or an infinity has the scale NaN. Otherwise,
 *   with m the largest magnitude of the group and in float: int8 = value * (127 / m) rounded to
 *   even, scale = m / 127; m below 2^-120 gives zeros. */
struct tsr_kv_cells {
    size_t size;
    void *const *planes; /* [(layer * n_planes + plane) * n_cells + cell], host memory */
    uint32_t n_cells;
    uint32_t cell_tokens;
    uint32_t n_tokens; /* of all cells together */
    uint32_t n_layers, n_planes;
    uint32_t int8;   /* 1: rows are in the int8 form; OPAQUE planes cannot be */
    uint32_t memory; /* enum tsr_memory */
};

/* ---- rotation ----------------------------------------------------------------------------- */

enum tsr_rope_pairing {
    TSR_ROPE_NEOX = 1, /* element i rotates with element i + dims / 2 */
    TSR_ROPE_GPTJ = 2  /* element 2i rotates with element 2i + 1 */
};

enum tsr_rope_scaling {
    TSR_ROPE_PLAIN = 0,
    TSR_ROPE_LINEAR = 1,
    TSR_ROPE_DYNAMIC = 2, /* dynamic NTK: the frequencies change with every length */
    TSR_ROPE_YARN = 3,
    TSR_ROPE_LLAMA3 = 4,
    TSR_ROPE_LONGROPE = 5 /* two sets of frequencies, for short and for long prompts */
};

/* How a model rotates K by its position. Names and meanings are those of `rope_scaling` in Hugging
 * Face configurations. */
struct tsr_rope {
    size_t size;
    uint32_t pairing; /* enum tsr_rope_pairing */
    uint32_t scaling; /* enum tsr_rope_scaling */
    uint32_t dims;    /* elements of a head that rotate: even, 2 .. 512 */
    uint32_t trained; /* positions the model was first trained for
                         (original_max_position_embeddings; DYNAMIC: max_position_embeddings) */
    double theta;     /* rope_theta */
    double factor;    /* LINEAR, DYNAMIC, YARN, LLAMA3, LONGROPE: how far positions are stretched */
    double attention_factor;       /* YARN, LONGROPE: scale of cos and sin; 0: derived */
    double beta_fast, beta_slow;   /* YARN; 0: 32 and 1 */
    double mscale, mscale_all_dim; /* YARN; both not 0: their quotient is the attention factor */
    uint32_t yarn_exact;           /* YARN: 1: the borders of the ramp are not rounded (truncate) */
    uint32_t n_factors;            /* LONGROPE: dims / 2 */
    double low_freq_factor, high_freq_factor;   /* LLAMA3 */
    const double *short_factors, *long_factors; /* LONGROPE */
};

/* ---- batches: what to move ----------------------------------------------------------------- */

/* Consecutive tokens of one entry, and their slots in the engine's memory. A slot of -1 skips its
 * token (a prefix the engine has already). */
struct tsr_kv_run {
    const struct tsr_kv_cells *cells;
    const int64_t *slots; /* [n_tokens], host memory */
    uint32_t offset;      /* first token, counted in the entry */
    uint32_t n_tokens;
    int64_t delta;     /* how many positions K moves on its way to the engine */
    uint32_t freq_set; /* frequencies K was rotated with; must be those of the batch */
    uint32_t reserved;
};

/* A batch as a device sees it: checked, and constant until the batch is set again. */
struct tsr_device_batch;
struct tsr_batch {
    const struct tsr_kv_layout *layout;
    const struct tsr_kv_run *runs;
    uint32_t n_runs;
    uint32_t n_tokens; /* of all runs, skipped ones included */
    uint32_t n_cells;  /* that the runs touch, counted for each run */
    uint32_t pairing;  /* enum tsr_rope_pairing; 0: nothing is rotated */
    /* [n_runs], host memory. NULL: K of this run is copied. Otherwise cos of each pair and then sin
     * of each pair, dims / 2 floats each, for every plane with rope_dims. With
     * TSR_DEVICE_OWN_ANGLES itself NULL: a run with a delta rotates pair i by delta * freq[i],
     * computed in double and rounded once. */
    const float *const *rotations;
    const double *freq;              /* [dims / 2]; NULL when nothing is rotated */
    struct tsr_device_batch *device; /* what batch_open gave; NULL without batch_open */
};

/* Limits of a batch; a batch that needs more is refused. */
struct tsr_batch_limits {
    uint32_t runs, tokens, cells;
    uint32_t plane_pointers; /* cells x n_layers x n_planes */
};

/* ---- the other operations ----------------------------------------------------------------- */

struct tsr_copy {
    void *dst;
    const void *src;
    size_t bytes;
};

/* The k largest of n scores: their indices, ascending. NaN counts as larger than everything, of
 * equal scores the first ones are taken. */
struct tsr_top_k {
    const float *scores; /* device memory */
    uint32_t *out;       /* [k], device memory */
    uint32_t n, k;
};

/* ---- the table ---------------------------------------------------------------------------- */

/* Yours to define; the core only hands them back. */
struct tsr_device;
struct tsr_device_stream;
struct tsr_device_event;

struct tsr_device_desc {
    size_t size;
    uint32_t ordinal;    /* which of several alike */
    uint32_t n_threads;  /* host threads the device may start at open; 0: none */
    const char *variant; /* a named code path, for tests; NULL: the best this machine has */
    const char
        *library; /* path of the shared object; NULL: libtessera-NAME.so where dlopen looks */
    /* Set by the core: keeps the text as the calling thread's message and returns err. */
    int (*fail)(int err, const char *text);
    uint32_t flags; /* enum tsr_device_flags */
};

struct tsr_device_info {
    size_t size;
    char text[96]; /* one line to read: model, variant */
    uint64_t bytes_total, bytes_free;
    /* Versions of the driver and its runtime, for reports; empty: not told. A core whose size is
     * smaller has no room for them. */
    char driver[96];
};

struct tsr_device_ops {
    uint32_t abi;     /* TSR_DEVICE_ABI */
    uint32_t caps;    /* enum tsr_device_caps */
    const char *name; /* "cpu", "cuda", ... */

    int (*open)(struct tsr_device **out, const struct tsr_device_desc *desc);
    void (*close)(struct tsr_device *d);
    /* (optional) Defaults to the name and zeros. */
    int (*info)(struct tsr_device *d, struct tsr_device_info *out);

    /* Device memory, aligned to 256 bytes. TSR_ENOMEM when there is none. */
    int (*alloc)(struct tsr_device *d, void **out, size_t bytes);
    void (*free)(struct tsr_device *d, void *p);
    /* (optional, both) Page-locked host memory that the device reads at full speed. Defaults to
     * plain host memory aligned to 4096 bytes. */
    int (*host_alloc)(struct tsr_device *d, void **out, size_t bytes);
    void (*host_free)(struct tsr_device *d, void *p);
    /* (optional, both) The same for memory that exists already; p and bytes are multiples of the
     * page size. Defaults to doing nothing. */
    int (*host_register)(struct tsr_device *d, void *p, size_t bytes);
    void (*host_unregister)(struct tsr_device *d, void *p);

    /* (optional, all three) A queue of operations that run in order; native is the engine's own (a
     * cudaStream_t) or NULL for a new one, with flags of enum tsr_stream_flags: wishes that a device
     * may ignore, as it does with an engine's own. Defaults to one queue that is always empty: every
     * operation is done when it returns. Required with TSR_DEVICE_ASYNC. */
    int (*stream_open)(struct tsr_device *d, struct tsr_device_stream **out, void *native,
                       uint32_t flags);
    void (*stream_close)(struct tsr_device *d, struct tsr_device_stream *s);
    int (*stream_sync)(struct tsr_device *d, struct tsr_device_stream *s);
    /* (optional, all) A mark in a stream. record sets it after what is queued; wait makes another
     * stream wait for it, without holding the caller; sync holds the caller. Defaults to marks that
     * have always passed. Required with TSR_DEVICE_ASYNC. */
    int (*event_open)(struct tsr_device *d, struct tsr_device_event **out);
    void (*event_close)(struct tsr_device *d, struct tsr_device_event *e);
    int (*event_record)(struct tsr_device *d, struct tsr_device_event *e,
                        struct tsr_device_stream *s);
    int (*event_wait)(struct tsr_device *d, struct tsr_device_event *e,
                      struct tsr_device_stream *s);
    int (*event_sync)(struct tsr_device *d, struct tsr_device_event *e);

    /* Copies that do not overlap, between any two kinds of memory the device can reach. */
    int (*copy)(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_copy *copies,
                size_t n);

    /* (optional, all three) What the device keeps for a batch: staging memory sized by limits, and
     * tables of slots and pointers, sent on stream s when the batch is set. set comes before every
     * use and may come again while earlier operations are still queued: the device waits for them
     * first. Defaults to nothing. */
    int (*batch_open)(struct tsr_device *d, struct tsr_device_batch **out,
                      const struct tsr_batch_limits *limits);
    void (*batch_close)(struct tsr_device *d, struct tsr_device_batch *b);
    int (*batch_set)(struct tsr_device *d, struct tsr_device_stream *s,
                     const struct tsr_batch *batch);

    /* Layers [layer_first, layer_first + n_layers) of a batch, on the stream it was set on. gather:
     * from the engine's memory into cells, quantising where they are int8. scatter: from cells into
     * the engine's memory, dequantising where they are int8; bytes are otherwise kept, NaN payloads
     * included. */
    int (*gather)(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_batch *batch,
                  uint32_t layer_first, uint32_t n_layers);
    int (*scatter)(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_batch *batch,
                   uint32_t layer_first, uint32_t n_layers);
    /* (optional) scatter for batches with rotations: pairs rotate by
     *   (a, b) -> (a cos - b sin, b cos + a sin)
     * in at least float, rounded once to the dtype; everything else is copied. Error against the
     * exact result of the float table, in units in the last place of the dtype at hypot(a, b): f16
     * and bf16 0.6, f32 4; bf16 may flush denormals. Defaults to TSR_EUNSUP. */
    int (*scatter_rotate)(struct tsr_device *d, struct tsr_device_stream *s,
                          const struct tsr_batch *batch, uint32_t layer_first, uint32_t n_layers);

    /* (optional) Defaults to TSR_EUNSUP. */
    int (*top_k)(struct tsr_device *d, struct tsr_device_stream *s, const struct tsr_top_k *t);

    /* Members above belong to abi 2; append below, never reorder. */
};

#ifdef __cplusplus
}
#endif
#endif
