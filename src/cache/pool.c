/* pool.c - host memory for KV: one region of fixed pages, reserved at open. Alloc and free are O(1)
 * a page and cannot fragment. Pages that were never used are not touched, so an empty pool costs no
 * resident memory. Owned by a cache and called under its lock; other processes may read the pages
 * of a shared one, as far as the owner lends them. */
#include "cache/pool.h"

static int init(struct tsri_pool *p, size_t bytes, size_t page_bytes, bool shared)
{
    memset(p, 0, sizeof *p);
    TSR_ASSERT(page_bytes >= 4096 && (page_bytes & (page_bytes - 1)) == 0);
    uint64_t n = bytes / page_bytes;
    if (n == 0) return tsri_fail(TSR_EINVAL, "host_size is less than one page of %zu", page_bytes);
    if (n >= UINT32_MAX)
        return tsri_fail(TSR_ERANGE, "host_size has too many pages: raise host_page_size");
    int e = shared ? tsri_region_init_shared(&p->region, "tessera-pool", n * page_bytes)
                   : tsri_region_init(&p->region, n * page_bytes);
    if (e) return e;
    e = tsri_region_init(&p->stack_region, n * sizeof(uint32_t));
    if (e) {
        tsri_region_fini(&p->region);
        return e;
    }
    p->stack = (uint32_t *)(void *)p->stack_region.data;
    p->page_shift = (uint32_t)__builtin_ctzll(page_bytes);
    p->n_pages = (uint32_t)n;
    return 0;
}

int tsri_pool_init(struct tsri_pool *p, size_t bytes, size_t page_bytes)
{
    return init(p, bytes, page_bytes, false);
}

int tsri_pool_init_shared(struct tsri_pool *p, size_t bytes, size_t page_bytes)
{
    return init(p, bytes, page_bytes, true);
}

void tsri_pool_fini(struct tsri_pool *p)
{
    tsri_region_fini(&p->stack_region);
    tsri_region_fini(&p->region);
}

bool tsri_pool_alloc(struct tsri_pool *p, uint32_t n, uint32_t *pages)
{
    if (n > tsri_pool_n_free(p)) return false;
    for (uint32_t i = 0; i < n; i++)
        pages[i] = p->n_stack ? p->stack[--p->n_stack] : p->n_fresh++;
    return true;
}

void tsri_pool_free(struct tsri_pool *p, uint32_t n, const uint32_t *pages)
{
    TSR_ASSERT(p->n_stack + n <= p->n_fresh);
    /* Backwards, so that the next entry gets them in the same order: neighbours stay neighbours. */
    for (uint32_t i = n; i-- > 0;)
        p->stack[p->n_stack++] = pages[i];
}

bool tsri_pool_is_valid(const struct tsri_pool *p)
{
    if (p->n_fresh > p->n_pages || p->n_stack > p->n_fresh) return false;
    for (uint32_t i = 0; i < p->n_stack; i++)
        if (p->stack[i] >= p->n_fresh) return false;
    return true;
}
