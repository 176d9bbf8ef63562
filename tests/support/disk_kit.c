/* disk_kit.c - a disk tier for tests. */
#include "support/disk_kit.h"

#include <dirent.h>
#include <fcntl.h>

static void set_defaults(struct disk_kit *kit)
{
    kit->setup.path = kit->dir.path;
    kit->setup.segment_bytes = 1 << 20;
    kit->n_threads = 2;
}

void disk_kit_init(struct disk_kit *kit)
{
    memset(kit, 0, sizeof *kit);
    tmpdir_init(&kit->dir);
    set_defaults(kit);
}

void disk_kit_init_fast(struct disk_kit *kit)
{
    memset(kit, 0, sizeof *kit);
    tmpdir_init_fast(&kit->dir);
    set_defaults(kit);
}

int disk_kit_open(struct disk_kit *kit)
{
    struct tsr_tier_desc env = {.size = sizeof env,
                                .arg = &kit->setup,
                                .read_only = kit->read_only,
                                .n_threads = kit->n_threads};
    return tsri_tier_open(&kit->tier, &tsri_tier_disk, &env);
}

void disk_kit_close(struct disk_kit *kit)
{
    tsri_tier_close(kit->tier);
    kit->tier = NULL;
}

/* Read-only instances write nothing on close. */
void disk_kit_crash(struct disk_kit *kit)
{
    if (kit->tier) ((struct tsri_disk *)kit->tier)->read_only = true;
    disk_kit_close(kit);
}

void disk_kit_fini(struct disk_kit *kit)
{
    disk_kit_crash(kit);
    tmpdir_fini(&kit->dir);
}

struct tsr_tier_stats disk_kit_stats(struct disk_kit *kit)
{
    struct tsr_tier_stats stats;
    if (tsri_tier_stats(kit->tier, &stats) != 0) memset(&stats, 0, sizeof stats);
    return stats;
}

uint64_t disk_kit_record_bytes(const struct kv_shape *shape)
{
    struct kv_entry room;
    kv_entry_init_room_seed(&room, shape, 1);
    struct tsri_layout l;
    tsri_layout_init(&l, &room.head);
    kv_entry_fini(&room);
    return l.record_bytes;
}

static int list(const struct disk_kit *kit, const char *suffix, struct dirent ***names)
{
    struct dirent **all;
    int n = scandir(kit->dir.path, &all, NULL, alphasort), kept = 0;
    for (int i = 0; i < n; i++) {
        size_t have = strlen(all[i]->d_name), want = strlen(suffix);
        if (have >= want && strcmp(all[i]->d_name + have - want, suffix) == 0)
            all[kept++] = all[i];
        else
            free(all[i]);
    }
    *names = all;
    return kept;
}

bool disk_kit_path(const struct disk_kit *kit, const char *suffix, int i, char *path, size_t bytes)
{
    struct dirent **names;
    int n = list(kit, suffix, &names);
    if (i < n) snprintf(path, bytes, "%s/%s", kit->dir.path, names[i]->d_name);
    for (int k = 0; k < n; k++)
        free(names[k]);
    free(names);
    return i < n;
}

int disk_kit_files(const struct disk_kit *kit, const char *suffix)
{
    struct dirent **names;
    int n = list(kit, suffix, &names);
    for (int k = 0; k < n; k++)
        free(names[k]);
    free(names);
    return n;
}

uint8_t *disk_kit_slurp(const char *path, size_t *bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    uint8_t *data = NULL;
    if (fd >= 0 && fstat(fd, &st) == 0) {
        *bytes = (size_t)st.st_size;
        data = malloc(*bytes + 1);
        if (data && pread(fd, data, *bytes, 0) != st.st_size) {
            free(data);
            data = NULL;
        }
    }
    if (fd >= 0) close(fd);
    return data;
}

bool disk_kit_spill(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && pwrite(fd, data, bytes, 0) == (ssize_t)bytes;
    if (fd >= 0) close(fd);
    return ok;
}
