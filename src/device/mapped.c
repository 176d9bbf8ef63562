/* mapped.c - what the kernel has at an address of this process, for devices whose runtime does not
 * tell what kind of memory a pointer is in. The list is /proc/self/maps, a line for each mapping:
 *     7f01c000-7f02d000 rw-p 00000000 00:00 0      /path of a file, if it is one
 * Memory of a device is at addresses that the processor cannot read, or in a mapping of the
 * driver's file in /dev. Such a mapping may hold page-locked host memory as well: there the kernel
 * does not tell either. */
#include "device/device.h"

/* The end of a line that did not fit. */
static void skip_line(FILE *file, const char *line)
{
    int c = 0;
    if (!strchr(line, '\n'))
        while (c != EOF && c != '\n')
            c = fgetc(file);
}

/* Files in /dev that are memory like any other. */
static bool is_memory_file(const char *path)
{
    static const char *const plain[] = {"/dev/shm/", "/dev/zero", "/dev/hugepages"};
    for (size_t i = 0; i < TSRI_COUNT(plain); i++)
        if (strncmp(path, plain[i], strlen(plain[i])) == 0) return true;
    return false;
}

static bool is_drivers(const char *path)
{
    return (strncmp(path, "/dev/", 5) == 0 && !is_memory_file(path)) ||
           strncmp(path, "anon_inode:", 11) == 0;
}

enum tsri_mapped tsri_mapped_in(FILE *maps, uintptr_t at)
{
    char line[256];
    bool any = false;
    while (fgets(line, sizeof line, maps)) {
        unsigned long long first, end;
        char rights[8] = "";
        int path = 0;
        skip_line(maps, line);
        if (sscanf(line, "%llx-%llx %7s %*s %*s %*s %n", &first, &end, rights, &path) < 3)
            return TSRI_MAPPED_UNKNOWN;
        any = true;
        if (at < first || at >= end) continue;
        if (rights[0] != 'r') return TSRI_MAPPED_NOTHING;
        return path && is_drivers(line + path) ? TSRI_MAPPED_DRIVER : TSRI_MAPPED_HOST;
    }
    return any && !ferror(maps) ? TSRI_MAPPED_NOTHING : TSRI_MAPPED_UNKNOWN;
}

enum tsri_mapped tsri_mapped(const void *p)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps) return TSRI_MAPPED_UNKNOWN;
    enum tsri_mapped what = tsri_mapped_in(maps, (uintptr_t)p);
    fclose(maps);
    return what;
}
