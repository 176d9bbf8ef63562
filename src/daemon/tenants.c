/* tenants.c - who shares a server: its own user, the users of server_allow, and those who show a
 * token of the file server_tokens. Each has a cache of its own, so nothing of one can be reached by
 * another: not its memory, not its keys, not its files. */
#include "daemon/daemon.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#define FILE_MAX 65536

int tsri_uids_parse(const char *text, uint32_t *uids, uint32_t max)
{
    uint32_t n = 0;
    const char *all = text;
    while (*text) {
        char *end;
        errno = 0;
        unsigned long uid = strtoul(text, &end, 10);
        while (*end == ' ')
            end++;
        if (end == text || strchr(text, '-') || errno || uid >= UINT32_MAX ||
            (*end && (*end != ',' || !end[1])))
            return tsri_fail(TSR_ECONFIG, "server_allow: \"%s\" is not a list of uids", all);
        if (n == max) return tsri_fail(TSR_ECONFIG, "server_allow: more than %u uids", max);
        uids[n++] = (uint32_t)uid;
        text = *end ? end + 1 : end;
    }
    return (int)n;
}

/* ---- the file of tokens ---- */

char *tsri_read_private(const char *path, const char *option)
{
    struct stat st;
    int fd = tsri_file_open(path, &st);
    if (fd < 0) {
        tsri_fail(TSR_ECONFIG, "%s: %s: %s", option, path,
                  errno == EINVAL ? "not a regular file" : strerror(errno));
        return NULL;
    }
    char *text = NULL;
    if (st.st_size >= FILE_MAX)
        tsri_fail(TSR_ECONFIG, "%s: %s: not a file of at most %d bytes", option, path, FILE_MAX);
    else if (!tsri_file_is_ours(&st))
        tsri_fail(TSR_ECONFIG, "%s: %s: it belongs to another user", option, path);
    else if (st.st_mode & 077)
        tsri_fail(TSR_ECONFIG, "%s: %s: others may read it (mode %04o, must be 0600)", option, path,
                  (unsigned)st.st_mode & 0777);
    else
        text = tsri_alloc(1, FILE_MAX);
    ssize_t got = text ? read(fd, text, FILE_MAX - 1) : -1;
    bool whole = text && got >= 0 && strlen(text) == (size_t)got; /* no NUL that would end it */
    if (text && !whole) {
        tsri_fail(TSR_ECONFIG, "%s: %s: %s", option, path,
                  got < 0 ? strerror(errno) : "not a text file: contains a NUL");
        tsri_free(text);
        text = NULL;
    }
    close(fd);
    return text;
}

static int add(struct tsri_tenants *t, const char *name, uint32_t uid, const char *token)
{
    if (t->n == TSRI_TENANTS_MAX)
        return tsri_fail(TSR_ECONFIG, "more than %u tenants", TSRI_TENANTS_MAX);
    struct tsri_tenant *x = &t->list[t->n];
    *x = (struct tsri_tenant){.uid = uid};
    for (uint32_t i = 0; i < t->n; i++) {
        const struct tsri_tenant *other = &t->list[i];
        if (strcmp(other->name, name) == 0)
            return tsri_fail(TSR_ECONFIG, "duplicate tenant %s", name);
        if (token && other->token && strcmp(other->token, token) == 0)
            return tsri_fail(TSR_ECONFIG, "tenants %s and %s have the same token", other->name,
                             name);
    }
    x->name = tsri_strdup(name);
    if (!x->name) return TSR_ENOMEM;
    t->n++;
    if (!token) return 0;
    x->token = tsri_strdup(token);
    return x->token ? 0 : TSR_ENOMEM;
}

static int add_tokens(struct tsri_tenants *t, const char *path)
{
    char *text = tsri_read_private(path, "server_tokens"), *rest = NULL;
    if (!text) return TSR_ECONFIG;
    int e = 0, line = 0;
    for (char *at = text, *end; e == 0 && *at; at = end) {
        end = at + strcspn(at, "\n");
        if (*end) *end++ = 0;
        line++;
        char *name = strtok_r(at, " \t\r", &rest), *token = strtok_r(NULL, " \t\r", &rest);
        if (!name || *name == '#') continue;
        if (!token || strtok_r(NULL, " \t\r", &rest) || !tsri_tenant_is_part(name) ||
            strncmp(name, "uid-", 4) == 0 || strlen(token) > TSRI_WIRE_TOKEN_MAX)
            e = tsri_fail(TSR_ECONFIG, "server_tokens: %s:%d: expected a name and a token", path,
                          line);
        else
            e = add(t, name, UINT32_MAX, token);
    }
    tsri_free(text);
    return e;
}

/* ---- caches ---- */

/* What tells this machine from others: its id, and its name for clones and containers, which may
 * have the same id or none. Hashed, for the id is not to be shown to others: machine-id(5). */
static uint64_t machine(void)
{
    char text[64 + sizeof(struct utsname)] = "";
    struct utsname is;
    FILE *f = fopen("/etc/machine-id", "re");
    if (f && !fgets(text, 64, f)) text[0] = '\0';
    if (f) fclose(f);
    size_t n = strlen(text);
    if (uname(&is) == 0) n += (size_t)snprintf(text + n, sizeof text - n, "%s", is.nodename);
    return tsri_bytes_hash(text, n);
}

/* On servers that machines share, a tenant that is not the server's own user has a name below the
 * server's: TENANT.NAME. A uid, and the name of a token, say who somebody is on one machine; only
 * the option tenant says that machines belong together. Without it the machine is in the name too,
 * so that uid 1001 of one machine never meets uid 1001 of another. */
static int set_tenant(struct tsr_config *cfg, const char *name)
{
    char own[TSRI_TENANT_MAX + 1], below[TSRI_TENANT_MAX + 64];
    bool fleet = tsri_config_options(cfg)->tenant[0] != '\0';
    tsri_tenant_of(own, cfg);
    if (fleet)
        snprintf(below, sizeof below, "%s.%s", own, name);
    else
        snprintf(below, sizeof below, "%s.%016llx.%s", own, (unsigned long long)machine(), name);
    return tsr_config_set(cfg, "tenant", below); /* refuses what is too long */
}

/* A store on a disk is one cache's: the others have folders in it. */
static int set_folder(struct tsr_config *cfg, const char *option, const char *name)
{
    const char *store = tsr_config_get(cfg, option);
    char path[4096];
    if (!store || !*store) return 0;
    int n = snprintf(path, sizeof path, "%s/tenants/%s", store, name);
    if (n < 0 || n >= (int)sizeof path) return tsri_fail(TSR_ECONFIG, "%s is too long", option);
    return tsr_config_set(cfg, option, path);
}

/* The first tenant has the places that the options name, as if it had no server; every tier of the
 * others has a place of its own. */
static int open_cache(struct tsri_tenant *x, bool first, tsri_configure_fn configure, void *arg)
{
    struct tsr_config *cfg = NULL;
    int e = configure(&cfg, arg);
    if (e) return e;
    e = tsr_config_set(cfg, "owner", "embedded");
    if (!first) {
        if (e == 0) e = set_folder(cfg, "disk_path", x->name);
        if (e == 0) e = set_folder(cfg, "disk2_path", x->name);
        if (e == 0) e = set_tenant(cfg, x->name);
    }
    /* The first one has said what is to be said of the options, which are the same for all. */
    if (e == 0) e = first ? tsr_cache_open(&x->cache, cfg) : tsri_cache_open(&x->cache, cfg);
    tsr_config_close(cfg);
    return e;
}

int tsri_tenants_init(struct tsri_tenants *t, const struct tsri_options *o,
                      tsri_configure_fn configure, void *arg)
{
    uint32_t uids[TSRI_TENANTS_MAX];
    char name[32];
    memset(t, 0, sizeof *t);
    int n = tsri_uids_parse(o->server_allow, uids, TSRI_TENANTS_MAX);
    if (n < 0) return n;
    snprintf(name, sizeof name, "uid-%u", (unsigned)geteuid());
    int e = add(t, name, geteuid(), NULL);
    for (int i = 0; e == 0 && i < n; i++) {
        if (uids[i] == geteuid()) continue;
        snprintf(name, sizeof name, "uid-%u", uids[i]);
        e = add(t, name, uids[i], NULL);
    }
    if (e == 0 && *o->server_tokens) e = add_tokens(t, o->server_tokens);
    for (uint32_t i = 0; e == 0 && i < t->n; i++)
        e = open_cache(&t->list[i], i == 0, configure, arg);
    if (e) tsri_tenants_fini(t);
    return e;
}

void tsri_tenants_fini(struct tsri_tenants *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        tsr_cache_close(t->list[i].cache);
        tsri_free((void *)(uintptr_t)t->list[i].name);
        tsri_free((void *)(uintptr_t)t->list[i].token);
    }
    memset(t, 0, sizeof *t);
}
