/* What the kernel says is at an address: of this process, and in lists that are written here. */
#include "device/device.h"
#include "support/test.h"

#include <sys/mman.h>

enum { BYTES = 65536 };

TEST(memory_of_this_process_is_host_memory)
{
    static int here;
    int on_the_stack = 0;
    void *heap = malloc(100);
    uint8_t *anonymous = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(anonymous != MAP_FAILED);
    CHECK_INT(tsri_mapped(&here), TSRI_MAPPED_HOST);
    CHECK_INT(tsri_mapped(&on_the_stack), TSRI_MAPPED_HOST);
    CHECK_INT(tsri_mapped(heap), TSRI_MAPPED_HOST);
    CHECK_INT(tsri_mapped("text"), TSRI_MAPPED_HOST);
    CHECK_INT(tsri_mapped(anonymous), TSRI_MAPPED_HOST);
    CHECK_INT(tsri_mapped(anonymous + BYTES - 1), TSRI_MAPPED_HOST);
    munmap(anonymous, BYTES);
    free(heap);
}

TEST(what_the_processor_cannot_read_is_nothing)
{
    uint8_t *p = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    CHECK_INT(tsri_mapped(p + 100), TSRI_MAPPED_NOTHING);
    munmap(p, BYTES);
    CHECK_INT(tsri_mapped(p + 100), TSRI_MAPPED_NOTHING);
    CHECK_INT(tsri_mapped(NULL), TSRI_MAPPED_NOTHING);
    CHECK_INT(tsri_mapped((void *)UINTPTR_MAX), TSRI_MAPPED_NOTHING);
}

static enum tsri_mapped at(const char *list, uintptr_t p)
{
    FILE *file = tmpfile();
    if (!file) return TSRI_MAPPED_UNKNOWN;
    fputs(list, file);
    rewind(file);
    enum tsri_mapped what = tsri_mapped_in(file, p);
    fclose(file);
    return what;
}

/* A driver's mapping may hold its memory or the host's: whoever asks must not take it for either. */
TEST(mappings_of_a_driver_are_told_from_files_that_are_memory)
{
    static const char list[] = "1000-2000 rw-s 00000000 00:06 17     /dev/devmm_svm\n"
                               "2000-3000 rw-s 00000000 00:01 9      /dev/shm/tessera\n"
                               "3000-4000 rw-s 00000000 00:01 9      /dev/zero (deleted)\n"
                               "4000-5000 ---s 00000000 00:06 17     /dev/davinci_manager\n"
                               "5000-6000 rw-s 00000000 00:0e 1      anon_inode:[davinci]\n"
                               "6000-7000 rw-s 00000000 00:0f 1      /dev/hugepages/x\n"
                               "7000-8000 rw-p 00000000 00:00 0\n"
                               "8000-9000 r--p 00000000 fe:01 7      /data/dev/model of /dev/x\n";
    CHECK_INT(at(list, 0xfff), TSRI_MAPPED_NOTHING);
    CHECK_INT(at(list, 0x1000), TSRI_MAPPED_DRIVER);
    CHECK_INT(at(list, 0x1fff), TSRI_MAPPED_DRIVER);
    CHECK_INT(at(list, 0x2000), TSRI_MAPPED_HOST);
    CHECK_INT(at(list, 0x3000), TSRI_MAPPED_HOST);
    CHECK_INT(at(list, 0x4000), TSRI_MAPPED_NOTHING);
    CHECK_INT(at(list, 0x5000), TSRI_MAPPED_DRIVER);
    CHECK_INT(at(list, 0x6000), TSRI_MAPPED_HOST);
    CHECK_INT(at(list, 0x7000), TSRI_MAPPED_HOST);
    CHECK_INT(at(list, 0x8000), TSRI_MAPPED_HOST);
    CHECK_INT(at(list, 0x9000), TSRI_MAPPED_NOTHING);
}

TEST(a_list_that_cannot_be_read_tells_nothing)
{
    CHECK_INT(at("", 0x1000), TSRI_MAPPED_UNKNOWN);
    CHECK_INT(at("1000-2000 rw-p 0 00:00 0\nwhat is this\n", 0x3000), TSRI_MAPPED_UNKNOWN);
    CHECK_INT(at("1000-2000 rw-p 0 00:00 0\nwhat is this\n", 0x1000), TSRI_MAPPED_HOST);
}

/* A long path must not be taken for lines of its own. */
TEST(a_line_of_any_length_is_one_line)
{
    char list[2000] = "1000-2000 rw-p 0 00:00 0 /";
    size_t n = strlen(list);
    while (n < 1000)
        n += (size_t)snprintf(list + n, sizeof list - n, " 5000-6000 rw-p 0 00:00 0 ");
    snprintf(list + n, sizeof list - n, "\n7000-8000 rw-p 0 00:00 0\n");
    CHECK_INT(at(list, 0x5000), TSRI_MAPPED_NOTHING);
    CHECK_INT(at(list, 0x7000), TSRI_MAPPED_HOST);
}

int main(void)
{
    RUN(memory_of_this_process_is_host_memory);
    RUN(what_the_processor_cannot_read_is_nothing);
    RUN(mappings_of_a_driver_are_told_from_files_that_are_memory);
    RUN(a_list_that_cannot_be_read_tells_nothing);
    RUN(a_line_of_any_length_is_one_line);
    return test_end();
}
