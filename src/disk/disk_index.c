/* disk_index.c - the entries a disk tier holds: slots that do not move, so that a slot's number can
 * be handed out as the entry's loc, and a table of keys with open addressing. Keys are hashes
 * already; their first bytes choose the place. */
#include "disk/disk.h"

#define BLOCK_SLOTS 1024u
#define SLOTS_MAX (1u << 30)
#define TABLE_MIN 1024u
#define BULK_MIN 64u /* blocks from which one region is cheaper than one allocation each */

static uint32_t home_of(const struct tsri_disk_index *x, const struct tsr_key *key)
{
    uint32_t h;
    memcpy(&h, key->bytes, sizeof h);
    return h & x->mask;
}

static uint32_t tag_of(const struct tsr_key *key)
{
    uint32_t tag;
    memcpy(&tag, key->bytes + 4, sizeof tag);
    return tag;
}

int tsri_disk_index_init(struct tsri_disk_index *x)
{
    memset(x, 0, sizeof *x);
    x->free = TSRI_NO_SLOT;
    tsri_order_init(x);
    x->mask = TABLE_MIN - 1;
    x->table = tsri_alloc(TABLE_MIN, sizeof x->table[0]);
    if (!x->table) return TSR_ENOMEM;
    memset(x->table, 0xFF, TABLE_MIN * sizeof x->table[0]);
    return 0;
}

void tsri_disk_index_fini(struct tsri_disk_index *x)
{
    for (uint32_t i = 0; i < x->n_slots; i++)
        tsri_disk_windows_free(x, tsri_disk_index_at(x, i));
    tsri_region_fini(&x->words);
    for (uint32_t i = x->n_bulk; i < x->n_blocks; i++)
        tsri_free(x->blocks[i]);
    tsri_region_fini(&x->bulk);
    tsri_free(x->blocks);
    tsri_free(x->table);
    memset(x, 0, sizeof *x);
}

struct tsri_disk_slot *tsri_disk_index_at(const struct tsri_disk_index *x, uint32_t slot)
{
    return &x->blocks[slot / BLOCK_SLOTS][slot % BLOCK_SLOTS];
}

static bool grow_table(struct tsri_disk_index *x, uint32_t n)
{
    struct tsri_disk_place *table = tsri_alloc(n, sizeof table[0]), *old = x->table;
    if (!table) return false;
    memset(table, 0xFF, n * sizeof table[0]);
    uint32_t n_old = x->mask + 1;
    x->table = table;
    x->mask = n - 1;
    for (uint32_t i = 0; i < n_old; i++) {
        if (old[i].slot == TSRI_NO_SLOT) continue;
        uint32_t at = home_of(x, &tsri_disk_index_at(x, old[i].slot)->head.key);
        while (table[at].slot != TSRI_NO_SLOT)
            at = (at + 1) & x->mask;
        table[at] = old[i];
    }
    tsri_free(old);
    return true;
}

static bool grow_blocks(struct tsri_disk_index *x, uint32_t n_blocks)
{
    struct tsri_disk_slot **blocks = tsri_alloc(n_blocks, sizeof blocks[0]);
    if (!blocks) return false;
    if (x->n_blocks) memcpy(blocks, x->blocks, x->n_blocks * sizeof blocks[0]);
    tsri_free(x->blocks);
    x->blocks = blocks;
    size_t block_bytes = BLOCK_SLOTS * sizeof blocks[0][0];
    if (x->n_blocks == 0 && n_blocks >= BULK_MIN) {
        if (tsri_region_init(&x->bulk, n_blocks * block_bytes) != 0) return false;
        for (; x->n_bulk < n_blocks; x->n_bulk++)
            blocks[x->n_bulk] =
                (struct tsri_disk_slot *)(void *)(x->bulk.data + x->n_bulk * block_bytes);
        x->n_blocks = n_blocks;
    }
    for (; x->n_blocks < n_blocks; x->n_blocks++) {
        blocks[x->n_blocks] = tsri_alloc(BLOCK_SLOTS, sizeof blocks[0][0]);
        if (!blocks[x->n_blocks]) return false;
    }
    return true;
}

int tsri_disk_index_reserve(struct tsri_disk_index *x, uint64_t n)
{
    uint64_t want = x->n_entries + n;
    if (want > SLOTS_MAX) return tsri_fail(TSR_ERANGE, "disk: more than %u entries", SLOTS_MAX);
    uint32_t table = x->mask + 1;
    while (want > (uint64_t)table / 4 * 3)
        table *= 2;
    if (table != x->mask + 1 && !grow_table(x, table)) return TSR_ENOMEM;
    /* Free slots may lie anywhere; new ones are taken from the end. */
    uint64_t n_free = (uint64_t)x->n_blocks * BLOCK_SLOTS - x->n_entries;
    if (n_free >= n) return 0;
    uint64_t blocks = x->n_blocks + (n - n_free + BLOCK_SLOTS - 1) / BLOCK_SLOTS;
    return grow_blocks(x, (uint32_t)blocks) ? 0 : TSR_ENOMEM;
}

void tsri_disk_index_near(const struct tsri_disk_index *x, const struct tsr_key *key)
{
    __builtin_prefetch(&x->table[home_of(x, key)], 1);
}

uint32_t tsri_disk_index_find(const struct tsri_disk_index *x, const struct tsr_key *key)
{
    uint32_t tag = tag_of(key);
    for (uint32_t at = home_of(x, key); x->table[at].slot != TSRI_NO_SLOT;
         at = (at + 1) & x->mask) {
        uint32_t slot = x->table[at].slot;
        if (x->table[at].tag != tag) continue;
        if (memcmp(&tsri_disk_index_at(x, slot)->head.key, key, sizeof *key) == 0) return slot;
    }
    return TSRI_NO_SLOT;
}

uint32_t tsri_disk_index_add(struct tsri_disk_index *x, const struct tsr_entry_head *head)
{
    if (tsri_disk_index_reserve(x, 1) != 0) return TSRI_NO_SLOT;
    uint32_t slot = x->free;
    if (slot != TSRI_NO_SLOT)
        x->free = tsri_disk_index_at(x, slot)->next;
    else
        slot = x->n_slots++;
    struct tsri_disk_slot *s = tsri_disk_index_at(x, slot);
    memset(s, 0, sizeof *s);
    s->head = *head;
    s->next = s->prev = TSRI_NO_SLOT;
    uint32_t at = home_of(x, &head->key);
    while (x->table[at].slot != TSRI_NO_SLOT)
        at = (at + 1) & x->mask;
    x->table[at] = (struct tsri_disk_place){slot, tag_of(&head->key)};
    x->n_entries++;
    tsri_order_add(x, slot, false);
    return slot;
}

void tsri_disk_index_remove(struct tsri_disk_index *x, uint32_t slot)
{
    struct tsri_disk_slot *s = tsri_disk_index_at(x, slot);
    uint32_t hole = home_of(x, &s->head.key);
    while (x->table[hole].slot != slot)
        hole = (hole + 1) & x->mask;
    /* Pull back what is after the hole and belongs before it, so that no search ends early. */
    for (uint32_t at = (hole + 1) & x->mask; x->table[at].slot != TSRI_NO_SLOT;
         at = (at + 1) & x->mask) {
        uint32_t home = home_of(x, &tsri_disk_index_at(x, x->table[at].slot)->head.key);
        if (((at - home) & x->mask) < ((at - hole) & x->mask)) continue;
        x->table[hole] = x->table[at];
        hole = at;
    }
    x->table[hole].slot = TSRI_NO_SLOT;
    tsri_order_remove(x, slot);
    tsri_disk_windows_free(x, s);
    s->segment = NULL;
    s->next = x->free;
    x->free = slot;
    x->n_entries--;
}
