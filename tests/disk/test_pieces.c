/* An entry's KV cut into requests. */
#include "support/kv_entry.h"
#include "support/test.h"
#include "disk/disk.h"

static const struct kv_shape shapes[] = {
    {1, 64, 1, 1, {4, 0}, 0, 0},          {100, 64, 3, 2, {48, 32}, 10, 0},
    {300, 64, 4, 2, {256, 256}, 0, 0},    {77, 16, 2, 2, {512, 512}, 0, 1},
    {1000, 64, 2, 2, {1024, 512}, 0, 64}, {3000, 1, 2, 2, {1, 1}, 1, 0},
    {64, 64, 2, 1, {40000, 0}, 0, 512},   {3000, 64, 3, 1, {64, 0}, 0, 0},
};
static const size_t aligns[] = {1, 512, 4096};

static struct tsri_kv kv_of(struct kv_entry *e, size_t align)
{
    struct tsri_kv kv = {.head = e->head, .planes = e->planes, .offset = 8192, .align = align};
    tsri_layout_init(&kv.layout, &kv.head);
    return kv;
}

/* Carries a request out on a file in memory. */
static void move(struct tsri_disk_piece *p, uint8_t *file)
{
    uint8_t *at = file + p->req.offset;
    for (uint32_t i = 0; i < p->req.n_iov; i++) {
        if (p->req.write)
            memcpy(at, p->iov[i].iov_base, p->iov[i].iov_len);
        else
            memcpy(p->iov[i].iov_base, at, p->iov[i].iov_len);
        at += p->iov[i].iov_len;
    }
}

static void check_request(const struct tsri_disk_piece *p, const struct tsri_kv *kv)
{
    size_t bytes = 0;
    CHECK(p->req.n_iov > 0 && p->req.n_iov <= TSRI_PIECE_IOVS);
    CHECK_INT(p->req.offset % TSRI_PAGE_BYTES, 0);
    CHECK_INT(p->req.bytes % TSRI_PAGE_BYTES, 0);
    for (uint32_t i = 0; i < p->req.n_iov; i++) {
        CHECK_INT((uintptr_t)p->iov[i].iov_base % kv->align, 0);
        CHECK_INT(p->iov[i].iov_len % kv->align, 0);
        bytes += p->iov[i].iov_len;
    }
    CHECK_INT(bytes, p->req.bytes);
    CHECK(p->req.bytes <= 1 << 20 || p->end == p->first + 1);
}

/* Writes all of e; returns the file. */
static uint8_t *write_all(struct kv_entry *e, size_t align, uint64_t *sums)
{
    struct tsri_kv kv = kv_of(e, align);
    uint8_t *file = malloc(kv.offset + kv.layout.record_bytes);
    memset(file, 0xEE, kv.offset + kv.layout.record_bytes);
    struct tsri_disk_piece *p = calloc(1, sizeof *p);
    uint64_t n = tsri_layout_cells(&kv.layout, &kv.head), at = 0;
    while (at < n) {
        CHECK_INT(tsri_piece_cut(p, &kv, at, true), 0);
        CHECK(p->end > at);
        check_request(p, &kv);
        move(p, file);
        tsri_piece_sum(p, &kv, sums);
        at = p->next;
    }
    tsri_region_fini(&p->bounce);
    free(p);
    return file;
}

TEST(what_is_written_in_pieces_is_read_in_pieces)
{
    for (size_t s = 0; s < TSRI_COUNT(shapes); s++)
        for (size_t a = 0; a < TSRI_COUNT(aligns); a++) {
            struct kv_entry e, room;
            kv_entry_init(&e, &shapes[s], s);
            struct tsri_kv kv = kv_of(&e, aligns[a]);
            uint64_t n = tsri_layout_cells(&kv.layout, &kv.head);
            uint64_t *sums = calloc(n, sizeof sums[0]);
            uint8_t *file = write_all(&e, aligns[a], sums);
            kv_entry_init_room(&room, &e, (uint32_t)(s * 7 % 3));
            memcpy(room.tokens, e.tokens, e.head.n_tokens * sizeof e.tokens[0]);
            kv.planes = room.planes;
            struct tsri_disk_piece *p = calloc(1, sizeof *p);
            for (uint64_t at = 0; at < n; at = p->next) {
                CHECK_INT(tsri_piece_cut(p, &kv, at, false), 0);
                check_request(p, &kv);
                move(p, file);
                CHECK_INT(tsri_piece_check(p, &kv, sums), 0);
            }
            for (uint32_t l = 0; l < shapes[s].n_layers; l++)
                CHECK(kv_entry_layer_right(&room, l));
            tsri_region_fini(&p->bounce);
            free(p);
            free(file);
            free(sums);
            kv_entry_fini(&room);
            kv_entry_fini(&e);
        }
}

TEST(padding_is_written_as_zeros)
{
    struct kv_entry e;
    kv_entry_init(&e, &shapes[1], 1);
    struct tsri_kv kv = kv_of(&e, 512);
    uint64_t n = tsri_layout_cells(&kv.layout, &kv.head);
    uint64_t *sums = calloc(n, sizeof sums[0]);
    uint8_t *file = write_all(&e, 512, sums);
    for (uint64_t i = 0; i < n; i++) {
        struct tsri_disk_cell c = tsri_layout_cell(&kv.layout, &kv.head, i);
        for (uint64_t b = c.bytes; b < c.stride; b++)
            CHECK_INT(file[kv.offset + c.at + b], 0);
    }
    free(file);
    free(sums);
    kv_entry_fini(&e);
}

TEST(only_wanted_cells_are_asked_for)
{
    struct kv_entry e;
    kv_entry_init(&e, &shapes[4], 1);
    struct tsri_kv kv = kv_of(&e, 4096);
    uint64_t n = tsri_layout_cells(&kv.layout, &kv.head), n_wanted = 0, n_seen = 0;
    uint64_t state = 8;
    for (uint64_t i = 0; i < n; i++)
        if (test_rand(&state) >> 63)
            e.planes[i] = NULL;
        else
            n_wanted++;
    struct tsri_disk_piece *p = calloc(1, sizeof *p);
    for (uint64_t at = tsri_piece_skip(&kv, 0); at < n; at = p->next) {
        CHECK_INT(tsri_piece_cut(p, &kv, at, false), 0);
        for (uint64_t i = p->first; i < p->end; i++)
            CHECK(e.planes[i] != NULL);
        for (uint64_t i = p->end; i < p->next; i++)
            CHECK(e.planes[i] == NULL);
        n_seen += p->end - p->first;
    }
    CHECK_INT(n_seen, n_wanted);
    tsri_region_fini(&p->bounce);
    free(p);
    kv_entry_fini(&e);
}

TEST(a_large_layer_does_not_share_a_piece_with_the_next)
{
    const struct kv_shape shape = {640, 64, 3, 2, {256, 256}, 0, 0}; /* 320 KiB a layer */
    struct kv_entry e;
    kv_entry_init(&e, &shape, 1);
    struct tsri_kv kv = kv_of(&e, 4096);
    struct tsri_disk_piece *p = calloc(1, sizeof *p);
    CHECK_INT(tsri_piece_cut(p, &kv, 0, false), 0);
    CHECK_INT(p->end, 20);
    tsri_region_fini(&p->bounce);
    free(p);
    kv_entry_fini(&e);
}

TEST(a_changed_cell_fails_its_sum_and_is_named)
{
    struct kv_entry e;
    kv_entry_init(&e, &shapes[2], 1);
    struct tsri_kv kv = kv_of(&e, 512);
    uint64_t n = tsri_layout_cells(&kv.layout, &kv.head);
    uint64_t *sums = calloc(n, sizeof sums[0]);
    struct tsri_disk_piece *p = calloc(1, sizeof *p);
    CHECK_INT(tsri_piece_cut(p, &kv, 0, false), 0);
    tsri_piece_sum(p, &kv, sums);
    CHECK_INT(tsri_piece_check(p, &kv, sums), 0);
    ((uint8_t *)e.planes[1])[77] ^= 4;
    CHECK_INT(tsri_piece_check(p, &kv, sums), TSR_ECORRUPT);
    CHECK_HAS(tsr_errmsg(), "layer 0, plane 0, cell 1");
    tsri_region_fini(&p->bounce);
    free(p);
    free(sums);
    kv_entry_fini(&e);
}

int main(void)
{
    RUN(what_is_written_in_pieces_is_read_in_pieces);
    RUN(padding_is_written_as_zeros);
    RUN(only_wanted_cells_are_asked_for);
    RUN(a_large_layer_does_not_share_a_piece_with_the_next);
    RUN(a_changed_cell_fails_its_sum_and_is_named);
    return test_end();
}
