/* checkpoint.c - the bytes of the checkpoint, written and read by pure functions; docs/format.md
 * says what stands where. It spares open the walk over every record's header and nothing depends on
 * it: without it, or with a damaged one, the walk finds the same entries. What it says about a
 * place is a hint, proven by the record that stands there. */
#include "disk/disk.h"

#define CHECKPOINT_MAGIC "tsr-ckp\n"

enum {
    HEAD_BYTES = TSRI_CHECKPOINT_HEAD_BYTES,
    HEAD_SUM_AT = 56,
    SEGMENT_BYTES = 32,
    ENTRY_BYTES = 144,
    ENTRY_HEAD_AT = 16,
    WORD_BYTES = 8,
};
#define SHINGLED 0x80000000u /* beside the number of windows: shingles follow them */

size_t tsri_checkpoint_bytes(uint32_t n_segments, uint64_t n_entries, uint64_t n_words)
{
    return HEAD_BYTES + (size_t)n_segments * SEGMENT_BYTES + (size_t)n_entries * ENTRY_BYTES +
           (size_t)n_words * WORD_BYTES;
}

static size_t entry_at(uint32_t n_segments, uint64_t i)
{
    return tsri_checkpoint_bytes(n_segments, i, 0);
}

void tsri_checkpoint_put_segment(uint8_t *buf, uint32_t i, const struct tsri_checkpoint_segment *s)
{
    uint8_t *at = buf + HEAD_BYTES + (size_t)i * SEGMENT_BYTES;
    tsri_put64(at, s->id);
    tsri_put64(at + 8, s->nonce);
    tsri_put64(at + 16, s->covered);
    tsri_put32(at + 24, s->n_tombs);
    tsri_put32(at + 28, 0);
}

void tsri_checkpoint_get_segment(const uint8_t *buf, uint32_t i, struct tsri_checkpoint_segment *s)
{
    const uint8_t *at = buf + HEAD_BYTES + (size_t)i * SEGMENT_BYTES;
    s->id = tsri_get64(at);
    s->nonce = tsri_get64(at + 8);
    s->covered = tsri_get64(at + 16);
    s->n_tombs = tsri_get32(at + 24);
}

/* The number of pages is not stored: it follows from the shape. */
void tsri_checkpoint_put_entry(uint8_t *buf, uint32_t n_segments, uint64_t i,
                               const struct tsri_checkpoint_entry *e)
{
    uint8_t *at = buf + entry_at(n_segments, i);
    tsri_put32(at, e->segment);
    tsri_put32(at + 4, e->page);
    tsri_put64(at + 8, e->seq);
    tsri_head_write(at + ENTRY_HEAD_AT, &e->head);
    tsri_put32(at + 136, e->n_windows | (e->shingled ? SHINGLED : 0));
    tsri_put_cost(at + 140, e->head.cost_s);
}

void tsri_checkpoint_put_words(uint8_t *buf, const struct tsri_checkpoint *c, uint64_t first,
                               const uint64_t *words, uint32_t n)
{
    uint8_t *at = buf + tsri_checkpoint_bytes(c->n_segments, c->n_entries, first);
    memcpy(at, words, (size_t)n * WORD_BYTES);
}

/* Everything before them is a multiple of their size. */
const uint64_t *tsri_checkpoint_words(const uint8_t *buf, const struct tsri_checkpoint *c)
{
    return (const uint64_t *)(const void *)(buf + entry_at(c->n_segments, c->n_entries));
}

struct tsr_key tsri_checkpoint_get_key(const uint8_t *buf, const struct tsri_checkpoint *c,
                                       uint64_t i)
{
    struct tsr_key key;
    memcpy(key.bytes, buf + entry_at(c->n_segments, i) + ENTRY_HEAD_AT, sizeof key.bytes);
    return key;
}

bool tsri_checkpoint_get_entry(const uint8_t *buf, const struct tsri_checkpoint *c, uint64_t i,
                               struct tsri_checkpoint_entry *e)
{
    struct tsr_entry_head *h = &e->head;
    const uint8_t *at = buf + entry_at(c->n_segments, i);
    memset(e, 0, sizeof *e);
    e->segment = tsri_get32(at);
    e->page = tsri_get32(at + 4);
    e->seq = tsri_get64(at + 8);
    tsri_head_read(at + ENTRY_HEAD_AT, h);
    e->n_windows = tsri_get32(at + 136) & ~SHINGLED;
    e->shingled = (tsri_get32(at + 136) & SHINGLED) != 0;
    h->cost_s = tsri_get_cost(at + 140);
    if (e->segment >= c->n_segments || e->seq >= c->next_seq || !tsri_head_is_valid(h))
        return false;
    struct tsri_layout l;
    tsri_layout_init(&l, h);
    if (l.record_bytes / TSRI_PAGE_BYTES > UINT32_MAX) return false;
    e->n_pages = (uint32_t)(l.record_bytes / TSRI_PAGE_BYTES);
    return true;
}

void tsri_checkpoint_seal(uint8_t *buf, const struct tsri_checkpoint *c)
{
    size_t bytes = tsri_checkpoint_bytes(c->n_segments, c->n_entries, c->n_words);
    memset(buf, 0, HEAD_BYTES);
    memcpy(buf, CHECKPOINT_MAGIC, 8);
    tsri_put32(buf + 8, TSRI_DISK_VERSION);
    tsri_put32(buf + 12, c->n_segments);
    tsri_put64(buf + 16, c->n_entries);
    tsri_put64(buf + 24, c->next_seq);
    tsri_put64(buf + 32, c->next_segment);
    tsri_put64(buf + 40, tsri_sum(buf + HEAD_BYTES, bytes - HEAD_BYTES));
    tsri_put64(buf + 48, c->n_words);
    tsri_put64(buf + HEAD_SUM_AT, tsri_sum(buf, HEAD_SUM_AT));
}

int tsri_checkpoint_read_head(const uint8_t *head, uint64_t bytes, struct tsri_checkpoint *c)
{
    memset(c, 0, sizeof *c);
    if (memcmp(head, CHECKPOINT_MAGIC, 8) != 0) return tsri_fail(TSR_ECORRUPT, "not a checkpoint");
    if (tsri_get64(head + HEAD_SUM_AT) != tsri_sum(head, HEAD_SUM_AT))
        return tsri_fail(TSR_ECORRUPT, "checkpoint header has a wrong checksum");
    if (tsri_get32(head + 8) != TSRI_DISK_VERSION)
        return tsri_fail(TSR_EVERSION, "checkpoint has format version %u, this library supports %u",
                         tsri_get32(head + 8), TSRI_DISK_VERSION);
    c->n_segments = tsri_get32(head + 12);
    c->n_entries = tsri_get64(head + 16);
    c->next_seq = tsri_get64(head + 24);
    c->next_segment = tsri_get64(head + 32);
    c->n_words = tsri_get64(head + 48);
    if (c->n_segments > TSRI_CHECKPOINT_SEGMENTS_MAX ||
        c->n_entries > TSRI_CHECKPOINT_ENTRIES_MAX || c->n_words > TSRI_CHECKPOINT_WORDS_MAX ||
        bytes != tsri_checkpoint_bytes(c->n_segments, c->n_entries, c->n_words))
        return tsri_fail(TSR_ECORRUPT, "checkpoint has the wrong length");
    return 0;
}

int tsri_checkpoint_read(const uint8_t *buf, size_t bytes, struct tsri_checkpoint *c)
{
    memset(c, 0, sizeof *c);
    if (bytes < HEAD_BYTES) return tsri_fail(TSR_ECORRUPT, "not a checkpoint");
    int err = tsri_checkpoint_read_head(buf, bytes, c);
    if (!err && tsri_get64(buf + 40) != tsri_sum(buf + HEAD_BYTES, bytes - HEAD_BYTES))
        err = tsri_fail(TSR_ECORRUPT, "checkpoint has a wrong checksum");
    return err;
}
