/* A checkpoint of any bytes is read, first by itself, then by a store that opens with it. Its
 * checksums are made right first (unless the input's first byte is odd), so that what lies behind
 * them is reached. */
#include "disk/disk.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define INPUT_MAX (64u << 10)
#define SEGMENT_PAGES 16u

static char dir[64];
static const uint64_t nonce = 0x5EED;

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

static void write_file(const char *name, const uint8_t *data, size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes) abort();
    close(fd);
}

/* One segment for the checkpoint to speak of, with nothing in it. */
static void make_dir(void)
{
    static uint8_t file[SEGMENT_PAGES * TSRI_PAGE_BYTES];
    snprintf(dir, sizeof dir, "%s/tessera-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(dir)) abort();
    atexit(remove_dir);
    struct tsri_segment_head head = {1, nonce, sizeof file};
    tsri_segment_head_write(file, &head);
    write_file("0000000000000001.seg", file, sizeof file);
}

static void repair(uint8_t *buf, size_t bytes)
{
    if (bytes < 64) return;
    struct tsri_checkpoint c = {.next_seq = tsri_get64(buf + 24),
                                .next_segment = tsri_get64(buf + 32)};
    c.n_segments = tsri_get32(buf + 12) % 8;
    size_t rest = bytes - 64;
    if (c.n_segments * 32u > rest) c.n_segments = 0;
    rest -= c.n_segments * 32u;
    c.n_words = tsri_get64(buf + 48) % 64;
    if (c.n_words * 8 > rest) c.n_words = 0;
    c.n_entries = (rest - c.n_words * 8) / 144;
    tsri_checkpoint_seal(buf, &c);
}

/* What the reader accepts must be safe to use. */
static void read_alone(const uint8_t *buf, size_t bytes)
{
    struct tsri_checkpoint c;
    if (tsri_checkpoint_read(buf, bytes, &c) != 0) return;
    for (uint32_t i = 0; i < c.n_segments; i++) {
        struct tsri_checkpoint_segment s;
        tsri_checkpoint_get_segment(buf, i, &s);
    }
    for (uint64_t i = 0; i < c.n_entries; i++) {
        struct tsri_checkpoint_entry e;
        if (!tsri_checkpoint_get_entry(buf, &c, i, &e)) continue;
        if (e.segment >= c.n_segments || !tsri_head_is_valid(&e.head) || e.n_pages == 0) abort();
    }
}

static int refuse(void *arg, const struct tsr_entry_head *head, tsr_tier_loc loc, uint64_t bytes)
{
    (void)arg, (void)head, (void)loc;
    if (bytes > SEGMENT_PAGES * TSRI_PAGE_BYTES) abort(); /* ends behind its file */
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 1 || bytes > INPUT_MAX) return 0;
    if (!dir[0]) make_dir();
    uint8_t *buf = malloc(bytes);
    if (!buf) abort();
    size_t n = bytes - 1;
    memcpy(buf, data + 1, n);
    if (data[0] % 2 == 0) {
        repair(buf, n);
        if (n >= 64)
            n = tsri_checkpoint_bytes(tsri_get32(buf + 12), tsri_get64(buf + 16),
                                      tsri_get64(buf + 48));
    }
    read_alone(buf, n);
    write_file("checkpoint", buf, n);
    free(buf);
    struct tsri_disk_setup setup = {.path = dir, .mode = TSRI_AIO_INLINE, .buffered = true};
    struct tsr_tier_desc env = {
        .size = sizeof env, .arg = &setup, .read_only = true, .n_threads = 1};
    struct tsr_tier *tier;
    if (tsri_tier_open(&tier, &tsri_tier_disk, &env) != 0) return 0;
    if (tsri_tier_scan(tier, refuse, NULL) < 0) abort();
    tsri_tier_close(tier);
    return 0;
}
