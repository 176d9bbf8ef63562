/* cmd_doctor.c - `tessera doctor`: does this machine give what the configuration asks for? A list
 * of checks, each of which finds one thing out and says ok, warn or fail, what it found, and what
 * to do about it. Checks read /proc and /sys, or try the real thing where only trying tells; they
 * change nothing and leave nothing behind. Those of memory and disk are in checks.c, those of
 * devices in devices.c, those of libraries in libraries.c. */
#include "cli/cli.h"
#include "device/device.h"

#include <errno.h>
#include <glob.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

static void check_page_size(const struct tsri_options *o, struct tsri_finding *f)
{
    char size[32];
    (void)o;
    tsri_finding_say(f, TSRI_DOCTOR_OK, "%s", tsri_cli_size((uint64_t)sysconf(_SC_PAGESIZE), size));
}

static void check_huge_pages(const struct tsri_options *o, struct tsri_finding *f)
{
    const char *path = "/sys/kernel/mm/transparent_hugepage/enabled";
    char text[128];
    (void)o;
    if (!tsri_read_line(path, text, sizeof text)) {
        tsri_finding_say(f, TSRI_DOCTOR_WARN, "not known: %s cannot be read", path);
        tsri_finding_advise(f, "without huge pages, large caches are slightly slower");
    } else if (strstr(text, "[never]")) {
        tsri_finding_say(f, TSRI_DOCTOR_WARN, "never");
        tsri_finding_advise(f, "as root: echo madvise > %s", path);
    } else {
        tsri_finding_say(f, TSRI_DOCTOR_OK, "%s", strstr(text, "[always]") ? "always" : "madvise");
    }
}

static void check_shared_pages(const struct tsri_options *o, struct tsri_finding *f)
{
    const char *path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    char text[128];
    (void)o;
    tsri_check_shared_pages(path, tsri_read_line(path, text, sizeof text) ? text : NULL, f);
}

static void check_cores(const struct tsri_options *o, struct tsri_finding *f)
{
    cpu_set_t set;
    int usable = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    /* More processors than the set has room for: then affinity was not what limits us. */
    if (usable == 0) usable = (int)online;
    if (o->io_threads <= (uint32_t)usable) {
        tsri_finding_say(f, TSRI_DOCTOR_OK, "%d usable of %ld", usable, online);
        return;
    }
    tsri_finding_say(f, TSRI_DOCTOR_WARN, "%d usable of %ld, io_threads is %u", usable, online,
                     o->io_threads);
    tsri_finding_advise(f, "set io_threads to at most %d", usable);
}

static void check_numa(const struct tsri_options *o, struct tsri_finding *f)
{
    (void)o;
    glob_t nodes = {0};
    size_t n = 1; /* a kernel without NUMA has no such files */
    if (glob("/sys/devices/system/node/node[0-9]*", 0, NULL, &nodes) == 0) n = nodes.gl_pathc;
    globfree(&nodes);
    if (n == 1)
        tsri_finding_say(f, TSRI_DOCTOR_OK, "1 node");
    else
        tsri_finding_say(f, TSRI_DOCTOR_OK,
                         "%zu nodes: memory comes from the node of the thread that touches it", n);
}

static void check_simd(const struct tsri_options *o, struct tsri_finding *f)
{
    char features[128];
    (void)o;
    tsri_cli_cpu_features(features, sizeof features);
    if (strstr(features, "avx2") || strstr(features, "asimd")) {
        tsri_finding_say(f, TSRI_DOCTOR_OK, "%s", features);
        return;
    }
    tsri_finding_say(f, TSRI_DOCTOR_WARN, "%s", features);
    tsri_finding_advise(f, "the plain C code is used: hashing and conversion are slower");
}

static const struct {
    const char *name;
    void (*run)(const struct tsri_options *o, struct tsri_finding *f);
} checks[] = {
    {"page size", check_page_size},
    {"huge pages", check_huge_pages},
    {"shared pages", check_shared_pages},
    {"cores", check_cores},
    {"NUMA", check_numa},
    {"SIMD", check_simd},
    {"host memory", tsri_check_host_memory},
    {"overcommit", tsri_check_overcommit},
    {"locked memory", tsri_check_memlock},
    {"io_uring", tsri_check_io_uring},
};

/* Of each disk tier; the second one is spoken of only where there is one. */
static const struct {
    const char *first, *second; /* names */
    void (*run)(const struct tsri_checked_disk *d, struct tsri_finding *f);
} disk_checks[] = {
    {"disk path", "disk2 path", tsri_check_disk_path},
    {"disk space", "disk2 space", tsri_check_disk_space},
    {"O_DIRECT", "disk2 O_DIRECT", tsri_check_direct},
};

static const char *const status_names[] = {"ok", "warn", "fail"};

void tsri_finding_say(struct tsri_finding *f, enum tsri_doctor_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    f->status = status;
    vsnprintf(f->found, sizeof f->found, fmt, ap);
    va_end(ap);
}

void tsri_finding_advise(struct tsri_finding *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->advice, sizeof f->advice, fmt, ap);
    va_end(ap);
}

bool tsri_read_line(const char *path, char *buf, size_t bytes)
{
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool ok = fgets(buf, (int)bytes, file) != NULL;
    fclose(file);
    if (ok) buf[strcspn(buf, "\n")] = 0;
    return ok;
}

static void print_text(const struct tsri_cli *cli, const char *name, const struct tsri_finding *f)
{
    static const enum tsri_color colors[] = {TSRI_COLOR_GREEN, TSRI_COLOR_YELLOW, TSRI_COLOR_RED};
    struct tsri_finding shown = *f;
    printf("%s%-5s%s %-14s %s\n", tsri_cli_color(cli, colors[f->status]), status_names[f->status],
           tsri_cli_plain(cli), name, tsri_plain(shown.found));
    if (f->advice[0]) printf("      -> %s\n", tsri_plain(shown.advice));
}

static void print_json(const char *name, const struct tsri_finding *f, bool first)
{
    printf("%s\n{\"name\":\"%s\",\"status\":\"%s\"", first ? "" : ",", name,
           status_names[f->status]);
    tsri_cli_json(",\"found\":", f->found);
    tsri_cli_json(",\"advice\":", f->advice);
    putchar('}');
}

static void print_finding(struct tsri_cli *cli, const char *name, const struct tsri_finding *f,
                          int count[3])
{
    bool first = count[0] + count[1] + count[2] == 0;
    count[f->status]++;
    if (cli->json)
        print_json(name, f, first);
    else
        print_text(cli, name, f);
}

static void check_disks(struct tsri_cli *cli, int count[3])
{
    for (int second = 0; second <= 1; second++) {
        struct tsri_checked_disk d = tsri_checked_disk(tsri_config_options(cli->config), second);
        for (size_t i = 0; i < TSRI_COUNT(disk_checks) && (!second || d.path); i++) {
            struct tsri_finding f = {0};
            disk_checks[i].run(&d, &f);
            print_finding(cli, second ? disk_checks[i].second : disk_checks[i].first, &f, count);
        }
    }
}

static void check_libraries(struct tsri_cli *cli, int count[3])
{
    const struct tsri_options *o = tsri_config_options(cli->config);
    const char *name;
    for (uint32_t i = 0; (name = tsri_library_name(i)) != NULL; i++) {
        struct tsri_finding f = {0};
        tsri_check_library(i, o, &f);
        print_finding(cli, name, &f, count);
    }
    struct tsri_finding model = {0}, store = {0};
    tsri_check_model(&model);
    print_finding(cli, "ask model", &model, count);
    tsri_check_store(cli->config, &store);
    print_finding(cli, "ask store", &store, count);
}

static void check_device(struct tsri_cli *cli, const char *device, int count[3])
{
    struct tsri_finding f = {0};
    char name[48];
    snprintf(name, sizeof name, "device %s", device);
    tsri_check_device(device, tsri_config_options(cli->config), &f);
    print_finding(cli, name, &f, count);
}

/* Those that are known by name, and the one that is wanted. */
static void check_devices(struct tsri_cli *cli, int count[3])
{
    const char *device, *wanted = tsri_config_options(cli->config)->device;
    bool seen = !wanted[0];
    for (uint32_t i = 0; (device = tsri_device_known(i)) != NULL; i++) {
        seen = seen || strcmp(device, wanted) == 0;
        check_device(cli, device, count);
    }
    if (!seen) check_device(cli, wanted, count);
}

int tsri_cmd_doctor(struct tsri_cli *cli)
{
    int count[3] = {0};
    int status = tsri_cli_want_args(cli, 0, 0);
    if (!status) status = tsri_cli_config(cli);
    if (status) return status;
    if (cli->json) printf("{\"checks\":[");
    for (size_t i = 0; i < TSRI_COUNT(checks); i++) {
        struct tsri_finding f = {0};
        checks[i].run(tsri_config_options(cli->config), &f);
        print_finding(cli, checks[i].name, &f, count);
    }
    check_disks(cli, count);
    check_libraries(cli, count);
    check_devices(cli, count);
    if (cli->json)
        printf("\n],\"ok\":%d,\"warn\":%d,\"fail\":%d}\n", count[0], count[1], count[2]);
    else
        printf("%d ok, %d warn, %d fail\n", count[0], count[1], count[2]);
    return count[TSRI_DOCTOR_FAIL] ? CLI_FAILED : 0;
}
