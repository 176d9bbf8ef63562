/* store.c - a store directory as the commands on it see it: the disk tier opened by itself, without
 * a cache, and the list of its entries in the order in which they would be evicted after a start.
 * Readers leave the directory to its writer; a command that changes it takes the lock and says so
 * when it cannot. */
#include "cli/store.h"
#include "disk/disk.h"

#include <stdlib.h>
#include <unistd.h>

static int add_entry(void *arg, const struct tsr_entry_head *head, tsr_tier_loc loc, uint64_t bytes)
{
    struct tsri_store *s = arg;
    void *more = tsri_make_room(s->entries, &s->n_room, s->n_entries + 1, sizeof *s->entries);
    if (!more) return TSR_ENOMEM;
    s->entries = more;
    s->entries[s->n_entries] = (struct tsri_store_entry){.head = *head, .loc = loc, .bytes = bytes};
    s->n_entries++;
    return 0;
}

int tsri_store_open(struct tsri_store *s, struct tsri_cli *cli, const char *path, bool write)
{
    memset(s, 0, sizeof *s);
    int status = tsri_cli_config(cli);
    if (status) return status;
    /* A reader would otherwise report an empty store for a mistyped name. */
    if (access(path, R_OK | X_OK) != 0)
        return tsri_cli_fail("%s: %s", path, "no such directory, or not readable");
    struct tsri_disk_setup setup = {.path = path};
    struct tsr_tier_desc env = {.size = sizeof env,
                                .config = cli->config,
                                .arg = &setup,
                                .read_only = !write,
                                .n_threads = 1};
    if (tsri_tier_open(&s->tier, &tsri_tier_disk, &env) != 0) return tsri_cli_failed();
    if (tsri_tier_scan(s->tier, add_entry, s) < 0) {
        tsri_store_close(s);
        return tsri_cli_fail("%s: %s", path, tsr_errmsg());
    }
    /* The tier lists what was used last first. */
    for (size_t i = 0, k = s->n_entries; i + 1 < k; i++) {
        struct tsri_store_entry swap = s->entries[i];
        s->entries[i] = s->entries[--k];
        s->entries[k] = swap;
    }
    for (size_t i = 0; i < s->n_entries; i++)
        s->entries[i].order = i;
    return 0;
}

void tsri_store_close(struct tsri_store *s)
{
    tsri_tier_close(s->tier);
    free(s->entries);
    memset(s, 0, sizeof *s);
}

int tsri_store_drop(struct tsri_store *s, const struct tsri_store_entry *e)
{
    struct tsr_tier_ref ref = {.key = e->head.key, .loc = e->loc};
    memcpy(ref.space, e->head.space, sizeof ref.space);
    return tsri_tier_drop(s->tier, &ref, 1);
}

int tsri_store_flush(struct tsri_store *s)
{
    if (tsri_tier_flush(s->tier) < 0) return tsri_cli_failed();
    return 0;
}

/* A segment takes two rounds: it is sealed, then emptied into another. That one is open then and
 * would be sealed next, so "nothing more to do" never comes: each segment that is there now gets
 * its turn. */
int tsri_store_compact(struct tsri_store *s)
{
    struct tsri_disk *disk = (struct tsri_disk *)s->tier;
    uint32_t rounds = 2 * disk->n_segments + 1;
    for (uint32_t i = 0; i < rounds; i++) {
        int n = tsri_disk_make_room(disk);
        if (n < 0) return tsri_cli_failed();
        if (n == 0) break;
    }
    return tsri_store_flush(s);
}

int tsri_store_space(const struct tsri_cli *cli, const char **hex)
{
    *hex = tsri_cli_flag(cli, "space");
    size_t n = *hex ? strlen(*hex) : 8;
    if (n >= 8 && n <= 32 && (!*hex || strspn(*hex, "0123456789abcdef") == n)) return 0;
    return tsri_cli_usage(cli, "--space=%s: 8 to 32 digits of a fingerprint, as ls prints them",
                          *hex);
}

static const char *name_of(uint32_t i, const char *const names[4])
{
    return names[i < 4 ? i : 0];
}

const char *tsri_store_kind(uint32_t kind)
{
    static const char *const names[] = {"?", "prefix", "segment", "blended"};
    return name_of(kind, names);
}

const char *tsri_match_coverage(uint32_t coverage)
{
    static const char *const names[] = {"none", "full", "partial", "run"};
    return name_of(coverage, names);
}

const char *tsri_match_context(uint32_t context)
{
    static const char *const names[] = {"?", "same", "pure", "other"};
    return name_of(context, names);
}

uint64_t tsri_store_token_bytes(const struct tsr_entry_head *h)
{
    uint64_t row = h->row_bytes[0] + (h->n_planes > 1 ? h->row_bytes[1] : 0);
    return row * h->n_layers;
}
