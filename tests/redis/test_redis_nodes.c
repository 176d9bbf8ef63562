/* Which servers there are: a cluster of three with replicas, slots that move, a failover; and a
 * pair of master and replica whose parts change. */
#include "support/redis_kit.h"
#include "support/test.h"

#include <signal.h>
#include <sys/wait.h>

enum { N_SERVERS = 6, N_ENTRIES = 24 };

static const struct kv_shape shape = {100, 64, 4, 2, {128, 128}, 5, 0};
static struct redis_server servers[N_SERVERS];
static struct redis_kit kit;

/* ---- what a server says ---- */

static redisReply *parse(const char *text, redisReader **reader)
{
    void *reply = NULL;
    *reader = redisReaderCreate();
    redisReaderFeed(*reader, text, strlen(text));
    CHECK_INT(redisReaderGetReply(*reader, &reply), REDIS_OK);
    CHECK(reply != NULL);
    return reply;
}

static int take_slots(const char *text)
{
    redisReader *reader;
    redisReply *reply = parse(text, &reader);
    int n = tsri_redis_take_slots((struct tsri_redis *)kit.tier, reply, "10.0.0.1:1");
    freeReplyObject(reply);
    redisReaderFree(reader);
    return n;
}

TEST(lists_of_slots_are_taken_as_far_as_they_make_sense)
{
    kit = (struct redis_kit){.setup = {.timeout_ms = 100}};
    CHECK_INT(redis_kit_open(&kit, "127.0.0.1:1"), 0);
    struct tsri_redis *r = (struct tsri_redis *)kit.tier;
    CHECK_INT(take_slots("*2\r\n*3\r\n:0\r\n:9\r\n*2\r\n$8\r\n10.0.0.2\r\n:7\r\n"
                         "*4\r\n:10\r\n:10\r\n*2\r\n$0\r\n\r\n:8\r\n*2\r\n$1\r\nx\r\n:1\r\n"),
              11);
    CHECK_STR(r->nodes[atomic_load(&r->slots[9])].address, "10.0.0.2:7");
    CHECK_STR(r->nodes[atomic_load(&r->slots[10])].address, "10.0.0.1:8");
    CHECK_INT(take_slots("-ERR This instance has cluster support disabled\r\n"), -1);
    CHECK_INT(take_slots("*0\r\n"), 0);
    CHECK_INT(take_slots("*1\r\n*3\r\n:5\r\n:4\r\n*2\r\n$1\r\na\r\n:7\r\n"), 0);
    CHECK_INT(take_slots("*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:7\r\n"), 0);
    CHECK_INT(take_slots("*1\r\n*3\r\n:-1\r\n:4\r\n*2\r\n$1\r\na\r\n:7\r\n"), 0);
    CHECK_INT(take_slots("*1\r\n*3\r\n:0\r\n:4\r\n*2\r\n$1\r\na\r\n:70000\r\n"), 0);
    CHECK_INT(take_slots("*1\r\n*3\r\n:0\r\n:4\r\n:7\r\n"), 0);
    CHECK_INT(take_slots("*1\r\n:7\r\n"), 0);
    redis_kit_close(&kit);
}

/* ---- a cluster ---- */

static bool wait_for_text(const struct redis_server *s, const char *section, const char *part)
{
    uint64_t until = tsri_now_ns() + 30000000000u;
    while (tsri_now_ns() < until) {
        const char *command = strcmp(section, "cluster") == 0 ? "CLUSTER" : "INFO";
        const char *which = strcmp(section, "cluster") == 0 ? "INFO" : section;
        if (strstr(REDIS_DO(s, command, which), part)) return true;
        usleep(50000);
    }
    return false;
}

static int n_keys(const struct redis_server *s)
{
    const char *said = REDIS_DO(s, "DBSIZE");
    return said[0] == ':' ? atoi(said + 1) : -1;
}

/* Until the replica has what the master has: a put is answered before that. */
static bool wait_for_copy(const struct redis_server *replica, const struct redis_server *master)
{
    uint64_t until = tsri_now_ns() + 30000000000u;
    int has;
    while ((has = n_keys(replica)) < 0 || has != n_keys(master)) {
        if (tsri_now_ns() > until) return false;
        usleep(10000);
    }
    return true;
}

static const struct redis_server *replica_of(const struct redis_server *master)
{
    char port[32];
    snprintf(port, sizeof port, "master_port:%d\r", master->port);
    for (int i = 0; i < N_SERVERS; i++)
        if (strstr(REDIS_DO(&servers[i], "INFO", "replication"), port)) return &servers[i];
    return NULL;
}

static bool start_cluster(void)
{
    char command[1024] = "redis-cli --cluster create";
    for (int i = 0; i < N_SERVERS; i++) {
        redis_server_init(
            &servers[i], (const char *const[]){"--cluster-enabled", "yes", "--cluster-node-timeout",
                                               "1000", "--repl-diskless-sync-delay", "0", NULL});
        size_t n = strlen(command);
        snprintf(command + n, sizeof command - n, " %s", servers[i].tcp);
    }
    size_t n = strlen(command);
    snprintf(command + n, sizeof command - n,
             " --cluster-replicas 1 --cluster-yes >/dev/null 2>&1");
    if (system(command) != 0) return false; /* NOLINT: its words are ours */
    for (int i = 0; i < N_SERVERS; i++) {
        if (!wait_for_text(&servers[i], "cluster", "cluster_state:ok")) return false;
        const char *role = REDIS_DO(&servers[i], "INFO", "replication");
        if (strstr(role, "role:slave") &&
            !wait_for_text(&servers[i], "replication", "master_link_status:up"))
            return false;
    }
    return true;
}

static void open_cluster(const char *address)
{
    kit = (struct redis_kit){.setup = {.timeout_ms = 3000, .part_bytes = 16 << 10}};
    CHECK_INT(redis_kit_open(&kit, address), 0);
}

TEST(entries_are_spread_over_a_cluster_and_found_again)
{
    CHECK(start_cluster());
    open_cluster(servers[0].tcp);
    for (uint64_t seed = 0; seed < N_ENTRIES; seed++)
        CHECK_INT(kv_tier_put(kit.tier, &shape, seed), 0);
    int n_used = 0;
    for (int i = 0; i < 3; i++)
        n_used += strcmp(REDIS_DO(&servers[i], "DBSIZE"), ":0") != 0;
    CHECK_INT(n_used, 3);
    redis_kit_close(&kit);
    open_cluster(servers[4].tcp); /* any of them tells of the others */
    struct tsr_tier_ref refs[N_ENTRIES];
    uint8_t found[N_ENTRIES];
    for (uint64_t seed = 0; seed < N_ENTRIES; seed++) {
        struct kv_entry room;
        kv_entry_init_room_seed(&room, &shape, seed);
        refs[seed] = kv_entry_ref(&room);
        kv_entry_fini(&room);
        CHECK_INT(kv_tier_get(kit.tier, &shape, seed, 0), 0);
    }
    CHECK_INT(tsri_tier_contains(kit.tier, refs, N_ENTRIES, found), N_ENTRIES);
    CHECK_INT(kv_tier_drop(kit.tier, &shape, 0), 1);
    CHECK_INT(kv_tier_get(kit.tier, &shape, 0, 0), TSR_ENOENT);
    redis_kit_close(&kit);
}

/* With all slots wrong every request is sent elsewhere by the server it reaches. */
TEST(a_wrong_map_of_slots_is_put_right_by_redirections)
{
    open_cluster(servers[0].tcp);
    struct tsri_redis *r = (struct tsri_redis *)kit.tier;
    int node = tsri_redis_node(r, servers[1].tcp);
    CHECK(node >= 0);
    for (uint32_t slot = 0; slot < TSRI_REDIS_SLOTS; slot++)
        tsri_redis_set_slot(r, slot, (uint32_t)node);
    for (uint64_t seed = 1; seed < N_ENTRIES; seed++)
        CHECK_INT(kv_tier_get(kit.tier, &shape, seed, 0), 0);
    redis_kit_close(&kit);
}

static const struct redis_server *server_of(const char *address)
{
    for (int i = 0; i < N_SERVERS; i++)
        if (strcmp(servers[i].tcp, address) == 0) return &servers[i];
    return NULL;
}

/* While a slot moves, what has moved already is asked for with ASK. */
TEST(entries_are_found_while_their_slot_moves)
{
    open_cluster(servers[0].tcp);
    struct tsri_redis *r = (struct tsri_redis *)kit.tier;
    char name[TSRI_REDIS_NAME_BYTES], part[TSRI_REDIS_NAME_BYTES], slot[16], port[16];
    struct kv_entry room;
    kv_entry_init_room_seed(&room, &shape, 5);
    tsri_redis_name(name, r->root, room.head.space, &room.head.key, 0, TSRI_REDIS_RECORD);
    kv_entry_fini(&room);
    uint32_t number = tsri_redis_slot(name, strlen(name));
    snprintf(slot, sizeof slot, "%u", number);
    const struct redis_server *from = server_of(r->nodes[atomic_load(&r->slots[number])].address);
    CHECK(from != NULL);
    const struct redis_server *to = from == &servers[0] ? &servers[1] : &servers[0];
    CHECK(strstr(REDIS_DO(to, "INFO", "replication"), "role:master") != NULL);
    char from_id[64], to_id[64];
    snprintf(from_id, sizeof from_id, "%s", REDIS_DO(from, "CLUSTER", "MYID") + 1);
    snprintf(to_id, sizeof to_id, "%s", REDIS_DO(to, "CLUSTER", "MYID") + 1);
    CHECK_STR(REDIS_DO(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", from_id), "+OK");
    CHECK_STR(REDIS_DO(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", to_id), "+OK");
    /* Half of it moves: the record and one part. */
    redis_kit_name(&kit, from, &shape, 5, 1, part);
    snprintf(port, sizeof port, "%d", to->port);
    CHECK_STR(REDIS_DO(from, "MIGRATE", "127.0.0.1", port, name, "0", "5000"), "+OK");
    CHECK_STR(REDIS_DO(from, "MIGRATE", "127.0.0.1", port, part, "0", "5000"), "+OK");
    for (int i = 0; i < 5; i++)
        CHECK_INT(kv_tier_get(kit.tier, &shape, 5, 0), 0);
    CHECK_STR(REDIS_DO(from, "CLUSTER", "SETSLOT", slot, "STABLE"), "+OK");
    CHECK_STR(REDIS_DO(to, "CLUSTER", "SETSLOT", slot, "STABLE"), "+OK");
    redis_kit_close(&kit);
}

TEST(when_a_master_dies_its_replica_takes_over)
{
    open_cluster(servers[2].tcp);
    int n_before = 0, n_after = 0;
    for (uint64_t seed = 1; seed < N_ENTRIES; seed++)
        n_before += kv_tier_get(kit.tier, &shape, seed, 0) == 0;
    CHECK(n_before >= N_ENTRIES - 2);
    const struct redis_server *replica = replica_of(&servers[0]);
    CHECK(replica != NULL);
    CHECK(wait_for_copy(replica, &servers[0]));
    redis_server_kill(&servers[0]);
    /* Misses meanwhile, and never for long. */
    for (uint64_t seed = 1; seed < N_ENTRIES; seed++) {
        uint64_t begin = tsri_now_ns();
        int got = kv_tier_get(kit.tier, &shape, seed, 1000);
        CHECK(got != KIT_WRONG);
        CHECK(tsri_now_ns() - begin < 3000000000u);
    }
    CHECK(wait_for_text(&servers[1], "cluster", "cluster_state:ok"));
    uint64_t until = tsri_now_ns() + 30000000000u;
    while (n_after < n_before && tsri_now_ns() < until) {
        n_after = 0;
        for (uint64_t seed = 1; seed < N_ENTRIES; seed++)
            n_after += kv_tier_get(kit.tier, &shape, seed, 1000) == 0;
        usleep(50000);
    }
    CHECK_INT(n_after, n_before);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 100), 0);
    redis_kit_close(&kit);
}

/* ---- master and replica ---- */

TEST(of_a_pair_the_master_is_found_whichever_it_is)
{
    struct redis_server a, b;
    char port[16], both[160];
    redis_server_init(&a, NULL);
    snprintf(port, sizeof port, "%d", a.port);
    redis_server_init(&b, (const char *const[]){"--replicaof", "127.0.0.1", port,
                                                "--repl-diskless-sync-delay", "0", NULL});
    CHECK(wait_for_text(&b, "replication", "master_link_status:up"));
    snprintf(both, sizeof both, "%s,%s", b.tcp, a.tcp); /* the replica first */
    kit = (struct redis_kit){.setup = {.timeout_ms = 3000}};
    CHECK_INT(redis_kit_open(&kit, both), 0);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    CHECK(wait_for_copy(&b, &a));
    redis_server_kill(&a);
    CHECK_STR(REDIS_DO(&b, "REPLICAOF", "NO", "ONE"), "+OK");
    CHECK(kv_tier_until(kit.tier, &shape, 1, 0, 60000));
    WAIT_FOR(kv_tier_put(kit.tier, &shape, 2) == 0);
    redis_kit_close(&kit);
    redis_server_fini(&a);
    redis_server_fini(&b);
}

int main(void)
{
    RUN(lists_of_slots_are_taken_as_far_as_they_make_sense);
    if (redis_kit_missing()) return test_end_without(redis_kit_missing());
    RUN(entries_are_spread_over_a_cluster_and_found_again);
    RUN(a_wrong_map_of_slots_is_put_right_by_redirections);
    RUN(entries_are_found_while_their_slot_moves);
    RUN(when_a_master_dies_its_replica_takes_over);
    for (int i = 0; i < N_SERVERS; i++)
        redis_server_fini(&servers[i]);
    RUN(of_a_pair_the_master_is_found_whichever_it_is);
    return test_end();
}
