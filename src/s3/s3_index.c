/* s3_index.c - which objects are known to be there, so that asking for them costs no request. A
 * table of tags, made of key and space; it may be wrong about an object that somebody else has
 * removed (the read is a miss then, and it forgets it) and never about what an object holds. */
#include "s3/s3.h"

#define N_FIRST 1024u

void tsri_s3_index_init(struct tsri_s3_index *x, uint64_t n_max)
{
    memset(x, 0, sizeof *x);
    x->n_max = n_max;
    pthread_mutex_init(&x->lock, NULL);
}

void tsri_s3_index_fini(struct tsri_s3_index *x)
{
    tsri_free(x->table);
    pthread_mutex_destroy(&x->lock);
    memset(x, 0, sizeof *x);
}

static void tag_of(const struct tsr_key *key, const uint8_t space[16], uint64_t tag[2])
{
    uint64_t other[2];
    memcpy(tag, key->bytes, 16);
    memcpy(other, space, 16);
    tag[0] ^= other[0] * 0x9E3779B97F4A7C15u;
    tag[1] ^= other[1] * 0xC2B2AE3D27D4EB4Fu;
    if (!tag[0] && !tag[1]) tag[0] = 1;
}

static bool is_free(const struct tsri_s3_known *k)
{
    return !k->tag[0] && !k->tag[1];
}

/* Where it stands, or the free place where it would. The lock is held, and there is a table. */
static struct tsri_s3_known *place_of(const struct tsri_s3_index *x, const uint64_t tag[2])
{
    uint64_t i = tag[0] & x->mask;
    while (!is_free(&x->table[i]) && (x->table[i].tag[0] != tag[0] || x->table[i].tag[1] != tag[1]))
        i = (i + 1) & x->mask;
    return &x->table[i];
}

/* Makes room for one more; false without memory or at the limit. */
static bool grow(struct tsri_s3_index *x)
{
    if (x->n >= x->n_max) return false;
    if (x->table && x->n * 2 <= x->mask) return true;
    struct tsri_s3_index bigger = *x;
    bigger.mask = x->table ? x->mask * 2 + 1 : N_FIRST - 1;
    bigger.table = tsri_alloc(bigger.mask + 1, sizeof bigger.table[0]);
    if (!bigger.table) return false;
    for (uint64_t i = 0; x->table && i <= x->mask; i++)
        if (!is_free(&x->table[i])) *place_of(&bigger, x->table[i].tag) = x->table[i];
    tsri_free(x->table);
    x->table = bigger.table;
    x->mask = bigger.mask;
    return true;
}

void tsri_s3_index_add(struct tsri_s3_index *x, const struct tsr_key *key, const uint8_t space[16],
                       uint64_t bytes)
{
    uint64_t tag[2];
    tag_of(key, space, tag);
    pthread_mutex_lock(&x->lock);
    struct tsri_s3_known *k = x->table ? place_of(x, tag) : NULL;
    if (!k || is_free(k)) {
        k = grow(x) ? place_of(x, tag) : NULL;
        if (k) x->n++;
    }
    if (k) {
        x->bytes += bytes - k->bytes;
        *k = (struct tsri_s3_known){{tag[0], tag[1]}, bytes, x->listing};
    }
    pthread_mutex_unlock(&x->lock);
}

/* Takes one out and moves up what follows it, so that no search ends too early. */
static void take_out(struct tsri_s3_index *x, struct tsri_s3_known *k)
{
    uint64_t hole = (uint64_t)(k - x->table), i = hole;
    x->n--;
    x->bytes -= k->bytes;
    for (;;) {
        i = (i + 1) & x->mask;
        if (is_free(&x->table[i])) break;
        uint64_t home = x->table[i].tag[0] & x->mask;
        if (((i - home) & x->mask) < ((i - hole) & x->mask)) continue;
        x->table[hole] = x->table[i];
        hole = i;
    }
    memset(&x->table[hole], 0, sizeof x->table[hole]);
}

void tsri_s3_index_remove(struct tsri_s3_index *x, const struct tsr_key *key,
                          const uint8_t space[16])
{
    uint64_t tag[2];
    tag_of(key, space, tag);
    pthread_mutex_lock(&x->lock);
    struct tsri_s3_known *k = x->table ? place_of(x, tag) : NULL;
    if (k && !is_free(k)) take_out(x, k);
    pthread_mutex_unlock(&x->lock);
}

bool tsri_s3_index_has(struct tsri_s3_index *x, const struct tsr_key *key, const uint8_t space[16])
{
    uint64_t tag[2];
    tag_of(key, space, tag);
    pthread_mutex_lock(&x->lock);
    bool has = x->table && !is_free(place_of(x, tag));
    pthread_mutex_unlock(&x->lock);
    return has;
}

void tsri_s3_index_begin(struct tsri_s3_index *x)
{
    pthread_mutex_lock(&x->lock);
    x->listing++;
    pthread_mutex_unlock(&x->lock);
}

void tsri_s3_index_end(struct tsri_s3_index *x)
{
    pthread_mutex_lock(&x->lock);
    for (uint64_t i = 0; x->table && i <= x->mask;) {
        struct tsri_s3_known *k = &x->table[i];
        /* What moves up into its place is looked at next. */
        if (!is_free(k) && k->listing != x->listing)
            take_out(x, k);
        else
            i++;
    }
    pthread_mutex_unlock(&x->lock);
}
