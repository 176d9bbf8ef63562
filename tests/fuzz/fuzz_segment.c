/* A segment file of any bytes is opened, walked, listed and read. The checksums of its headers are
 * made right first (unless the input's first byte is odd), so that what lies behind them is
 * reached. Whatever comes of it, every entry that a get returns must agree with what the scan said
 * of it. */
#include "disk/disk.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define INPUT_MAX (256u << 10)
#define TOKENS_MAX 4096u /* entries that claim more are listed and not read */

static char dir[64];

static void remove_dir(void)
{
    char path[128];
    const char *const names[] = {"0000000000000001.seg", "lock", "checkpoint"};
    for (size_t i = 0; i < TSRI_COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "%s/tessera-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(dir)) abort();
    atexit(remove_dir);
}

/* Right lengths and sums for an entry that fits into what is left, so that it can be got. */
static void repair_entry(uint8_t *page, uint64_t offset, uint64_t nonce, size_t room)
{
    struct tsri_record r;
    tsri_put64(page + 248, tsri_sum(page, 248));
    /* Fails for its length alone, when its shape is possible; then it has filled in the head. */
    int err = tsri_record_read(page, nonce, offset, UINT64_MAX, &r);
    if (err && !tsri_head_is_valid(&r.head)) return;
    struct tsri_layout l;
    tsri_layout_init(&l, &r.head);
    if (l.record_bytes > room) return;
    for (uint64_t i = 0; i < tsri_layout_cells(&l, &r.head); i++) {
        struct tsri_disk_cell c = tsri_layout_cell(&l, &r.head, i);
        uint64_t sum = tsri_sum(page + c.at, c.bytes);
        memcpy(page + l.sums_at + 8 * i, &sum, sizeof sum);
    }
    r.bytes = l.record_bytes;
    tsri_header_seal(page, &l, &r);
}

/* Right checksums for the first page, and for every page that begins like a record. */
static void repair(uint8_t *file, size_t bytes)
{
    if (bytes < TSRI_PAGE_BYTES) return;
    struct tsri_segment_head head = {1, tsri_get64(file + 24), bytes};
    tsri_segment_head_write(file, &head);
    for (size_t at = TSRI_PAGE_BYTES; at + TSRI_PAGE_BYTES <= bytes; at += TSRI_PAGE_BYTES) {
        uint8_t *page = file + at;
        if (page[0] == 0) continue;
        memcpy(page, "TSRD", 4);
        tsri_put64(page + 8, head.nonce);
        tsri_put64(page + 16, at);
        if (tsri_get32(page + 4) == TSRI_RECORD_TOMBS) {
            uint32_t n = tsri_get32(page + 48) % (TSRI_TOMBS_MAX + 1);
            tsri_put32(page + 48, n);
            tsri_put64(page + 24, TSRI_PAGE_BYTES);
            tsri_put64(page + 40, tsri_sum(page + TSRI_RECORD_HEAD_BYTES, (size_t)n * 40));
        }
        tsri_put64(page + 248, tsri_sum(page, 248));
        if (tsri_get32(page + 4) == TSRI_RECORD_ENTRY)
            repair_entry(page, at, head.nonce, bytes - at);
    }
}

static void write_file(const uint8_t *data, size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/0000000000000001.seg", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes) abort();
    close(fd);
}

struct seen {
    struct tsr_entry_head heads[64];
    uint32_t n;
};

static int see(void *arg, const struct tsr_entry_head *head, tsr_tier_loc loc, uint64_t bytes)
{
    struct seen *s = arg;
    if (loc == 0 || bytes % TSRI_PAGE_BYTES || bytes > INPUT_MAX) abort();
    if (s->n < TSRI_COUNT(s->heads)) s->heads[s->n++] = *head;
    return 0;
}

static void get(struct tsr_tier *tier, const struct tsr_entry_head *head)
{
    struct tsri_layout l;
    tsri_layout_init(&l, head);
    uint64_t n_planes = tsri_layout_cells(&l, head);
    if (head->n_tokens > TOKENS_MAX || l.record_bytes > INPUT_MAX) abort(); /* beyond its file */
    uint8_t *data = calloc(1, l.record_bytes);
    void **planes = calloc(n_planes, sizeof planes[0]);
    uint32_t *tokens = calloc(head->n_tokens, sizeof tokens[0]);
    uint8_t *extra = calloc(1, head->extra_bytes + 1u);
    if (!data || !planes || !tokens || !extra) abort();
    for (uint64_t i = 0; i < n_planes; i++) {
        struct tsri_disk_cell c = tsri_layout_cell(&l, head, i);
        if (c.at + c.stride > l.record_bytes || c.bytes > c.stride) abort();
        planes[i] = data + c.at;
    }
    struct tsr_tier_io io = {.head = *head,
                             .tokens = tokens,
                             .extra = extra,
                             .extra_max = head->extra_bytes,
                             .n_cells = l.n_cells,
                             .planes = planes};
    int n = tsri_tier_get(tier, &io, 1);
    if (n == 1 && memcmp(&io.head, head, sizeof *head) != 0) abort();
    free(extra);
    free(tokens);
    free(planes);
    free(data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 1 || bytes > INPUT_MAX) return 0;
    if (!dir[0]) make_dir();
    uint8_t *file = malloc(bytes);
    if (!file) abort();
    memcpy(file, data + 1, bytes - 1);
    if (data[0] % 2 == 0) repair(file, bytes - 1);
    write_file(file, bytes - 1);
    free(file);
    struct tsri_disk_setup setup = {.path = dir, .mode = TSRI_AIO_INLINE, .buffered = true};
    struct tsr_tier_desc env = {
        .size = sizeof env, .arg = &setup, .read_only = data[0] % 4 < 2, .n_threads = 1};
    struct tsr_tier *tier;
    if (tsri_tier_open(&tier, &tsri_tier_disk, &env) != 0) return 0;
    struct seen seen = {.n = 0};
    if (tsri_tier_scan(tier, see, &seen) < 0) abort();
    for (uint32_t i = 0; i < seen.n; i++)
        get(tier, &seen.heads[i]);
    if (!env.read_only && data[0] % 8 >= 6 && tsri_tier_flush(tier) != 0) abort();
    ((struct tsri_disk *)tier)->read_only = true; /* close without writing */
    tsri_tier_close(tier);
    return 0;
}
