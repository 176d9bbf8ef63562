/* disk_script.c - a fixed run on a disk tier and the model beside it. */
#include "support/disk_script.h"

static const struct kv_shape shapes[] = {
    {40, 16, 2, 2, {48, 32}, 10, 0},
    {1, 1, 1, 1, {4, 0}, 0, 0},
    {130, 64, 3, 1, {64, 0}, 0, 1},
};

const struct kv_shape *disk_script_shape(uint64_t key)
{
    return &shapes[key % TSRI_COUNT(shapes)];
}

void disk_script_init(struct disk_script *s, struct disk_kit *kit)
{
    memset(s, 0, sizeof *s);
    s->kit = kit;
}

static void note(struct disk_script *s)
{
    if (s->note) s->note(s, s->arg);
}

static void wrong(struct disk_script *s, const char *what)
{
    if (!s->wrong) s->wrong = what;
}

/* From here on a crash may leave the key or not. */
static void touch(struct disk_script *s, uint64_t key)
{
    s->acked[key] = SCRIPT_EITHER;
    note(s);
}

/* What was acknowledged stays so when it is put again: a crash leaves the one or the other. Where
 * the disk fails, a sync that did may take the new one, and the old one is replaced. */
static bool again(const struct disk_script *s, uint64_t key)
{
    return s->acked[key] == SCRIPT_THERE && s->held[key] && !s->faulty;
}

void disk_script_put(struct disk_script *s, uint64_t key)
{
    if (!again(s, key)) touch(s, key);
    if (kv_tier_put(s->kit->tier, disk_script_shape(key), key) == 0)
        s->held[key] = s->put[key] = true;
}

void disk_script_put_batch(struct disk_script *s, uint64_t from, uint64_t to)
{
    struct kv_entry e[SCRIPT_KEYS];
    struct tsr_tier_io io[SCRIPT_KEYS];
    for (uint64_t i = from; i < to; i++) {
        if (!again(s, i)) touch(s, i);
        kv_entry_init(&e[i], disk_script_shape(i), i);
        io[i] = kv_entry_io(&e[i]);
    }
    if (from < to && tsri_tier_put(s->kit->tier, io + from, to - from) < 0)
        wrong(s, "a batch was refused");
    for (uint64_t i = from; i < to; i++) {
        if (io[i].result == 0) s->held[i] = s->put[i] = true;
        kv_entry_fini(&e[i]);
    }
}

void disk_script_drop(struct disk_script *s, uint64_t key)
{
    touch(s, key);
    int n = kv_tier_drop(s->kit->tier, disk_script_shape(key), key);
    if (n < 0) wrong(s, "a drop failed");
    if (n == 1 && !s->held[key]) wrong(s, "a drop found what was not there");
    s->held[key] = s->put[key] = false;
}

static void disk_script_get(struct disk_script *s, uint64_t key)
{
    int r = kv_tier_get(s->kit->tier, disk_script_shape(key), key, 0);
    if (r == KIT_WRONG) wrong(s, "a get returned wrong bytes");
    if (r == 0 && !s->held[key]) wrong(s, "a get found what was dropped");
    if (r == TSR_ECORRUPT) wrong(s, "a get found corruption where there is none");
}

/* After a fault the tier may have let go of what it could not be sure of; the cache would find out
 * by a miss, the model asks. */
static void ask(struct disk_script *s)
{
    for (uint64_t i = 0; i < SCRIPT_KEYS; i++) {
        struct kv_entry room;
        kv_entry_init_room_seed(&room, disk_script_shape(i), i);
        struct tsr_tier_ref ref = kv_entry_ref(&room);
        kv_entry_fini(&room);
        uint8_t found = 0;
        if (tsri_tier_contains(s->kit->tier, &ref, 1, &found) < 0) wrong(s, "contains failed");
        if (found && !s->held[i]) wrong(s, "a dropped entry is contained");
        s->held[i] = found;
    }
}

void disk_script_flush(struct disk_script *s)
{
    int r = tsri_tier_flush(s->kit->tier);
    ask(s);
    if (r != 0) return;
    s->n_flushed++;
    for (uint64_t i = 0; i < SCRIPT_KEYS; i++) {
        s->acked[i] = s->held[i]                  ? SCRIPT_THERE
                      : s->unseen[i] || s->put[i] ? SCRIPT_EITHER
                                                  : SCRIPT_GONE;
        if (s->held[i]) s->unseen[i] = false;
    }
    note(s);
}

/* A close acknowledges nothing by itself; what it writes must not make anything worse. */
static bool reopen(struct disk_script *s)
{
    disk_kit_close(s->kit);
    if (disk_kit_open(s->kit) != 0) return false;
    disk_script_check(s);
    for (uint64_t i = 0; i < SCRIPT_KEYS; i++) /* drops that were not flushed may be undone */
        if (s->acked[i] == SCRIPT_EITHER) s->held[i] = true;
    ask(s);
    for (uint64_t i = 0; i < SCRIPT_KEYS; i++)
        if (s->faulty && s->acked[i] == SCRIPT_EITHER && !s->held[i]) s->unseen[i] = true;
    return true;
}

void disk_script_run(struct disk_script *s)
{
    disk_script_put(s, 0);
    disk_script_put(s, 1);
    disk_script_flush(s);
    disk_script_put_batch(s, 2, 10);
    disk_script_get(s, 1);
    disk_script_get(s, 5);
    disk_script_flush(s);
    for (uint64_t i = 2; i < 8; i++)
        disk_script_drop(s, i);
    disk_script_put(s, 9); /* again */
    disk_script_flush(s);  /* a segment is mostly dead now */
    disk_script_put_batch(s, 10, 20);
    disk_script_put(s, 3);
    disk_script_drop(s, 0);
    if (!reopen(s)) return;
    disk_script_put(s, 20);
    disk_script_flush(s);
    for (uint64_t i = 10; i < 18; i++)
        disk_script_drop(s, i);
    disk_script_put_batch(s, 20, SCRIPT_KEYS);
    disk_script_drop(s, 22);
    disk_script_flush(s);
    disk_script_get(s, 21);
    disk_script_put(s, 12);
    disk_script_flush(s);
    disk_script_put(s, 13);
    if (!reopen(s)) return;
    disk_script_flush(s);
    for (uint64_t i = 0; i < SCRIPT_KEYS; i++)
        disk_script_get(s, i);
}

void disk_script_run_random(struct disk_script *s, uint64_t seed, int n_steps)
{
    uint64_t state = seed * 2 + 1;
    for (int i = 0; i < n_steps; i++) {
        state = kv_prefix(state, (uint32_t)i);
        uint64_t key = (state >> 8) % SCRIPT_KEYS, other = (state >> 24) % SCRIPT_KEYS;
        switch (state % 12) {
        case 0:
        case 1:
            disk_script_flush(s);
            break;
        case 2:
        case 3:
        case 4:
            disk_script_put(s, key);
            break;
        case 5:
            disk_script_put_batch(s, key < other ? key : other, key < other ? other : key);
            break;
        case 6:
            if ((state >> 40) % 4 == 0 && !reopen(s)) return;
            break;
        case 7:
            disk_script_get(s, key);
            break;
        default:
            disk_script_drop(s, key);
        }
    }
}

void disk_script_check(struct disk_script *s)
{
    for (uint64_t i = 0; i < SCRIPT_KEYS; i++) {
        int r = kv_tier_get(s->kit->tier, disk_script_shape(i), i, 0);
        if (r == KIT_WRONG) wrong(s, "wrong bytes after a restart");
        /* Where the disk may still fail, a miss now is not a loss. */
        if (s->acked[i] == SCRIPT_THERE && r != 0 && s->faulty)
            s->unseen[i] = true;
        else if (s->acked[i] == SCRIPT_THERE && r != 0)
            wrong(s, "an acknowledged entry is lost");
        if (s->acked[i] == SCRIPT_GONE && r == 0) wrong(s, "a dropped entry came back");
    }
}
