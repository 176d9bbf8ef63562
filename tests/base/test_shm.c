/* test_shm.c - shared memory: what the owner writes others read, and nothing they can do changes a
 * byte or the size of it. */
#include "base/base.h"
#include "support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES ((size_t)3 << 20)

TEST(what_the_owner_writes_a_reader_sees)
{
    struct tsri_region owner, reader;
    CHECK_INT(tsri_region_init_shared(&owner, "test", BYTES), 0);
    CHECK(owner.bytes >= BYTES && owner.shared && owner.fd >= 0);
    CHECK_INT(tsri_region_init_reader(&reader, owner.fd, BYTES), 0);
    CHECK_INT(reader.bytes, BYTES);
    CHECK(!reader.shared && reader.data != owner.data);
    for (size_t i = 0; i < BYTES; i += 4096)
        CHECK_INT(reader.data[i], 0);
    memset(owner.data, 7, owner.bytes);
    CHECK(reader.data[0] == 7 && reader.data[BYTES - 1] == 7);
    tsri_region_fini(&owner);
    CHECK(owner.data == NULL && owner.fd == -1);
    CHECK(reader.data[BYTES / 2] == 7); /* the memory lives as long as somebody maps it */
    tsri_region_fini(&reader);
    tsri_region_fini(&reader);
}

/* Everything that the holder of a descriptor can try. Returns the number of what worked. */
static int attack(int fd)
{
    char path[64], byte = 9;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED) return 1;
    if (pwrite(fd, &byte, 1, 0) >= 0) return 2;
    if (ftruncate(fd, 4096) == 0 || ftruncate(fd, (off_t)BYTES * 8) == 0) return 3;
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0) return 4;
    if (fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, 4096) == 0) return 5;
    int again = open(path, O_RDWR | O_CLOEXEC);
    if (again >= 0) {
        if (pwrite(again, &byte, 1, 0) >= 0) return 6;
        if (mmap(NULL, BYTES, PROT_WRITE, MAP_SHARED, again, 0) != MAP_FAILED) return 7;
        close(again);
    }
    again = open(path, O_RDWR | O_TRUNC | O_CLOEXEC);
    if (again >= 0) return 8;
    void *p = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return 9;
    if (mprotect(p, BYTES, PROT_READ | PROT_WRITE) == 0) return 10;
    if (madvise(p, BYTES, MADV_REMOVE) == 0) return 11;
    munmap(p, BYTES);
    /* A private copy may be written, and is only that. */
    uint8_t *own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (own == MAP_FAILED) return 12;
    own[0] = 9;
    munmap(own, BYTES);
    return 0;
}

TEST(nobody_who_has_the_descriptor_can_change_a_byte)
{
    struct tsri_region owner;
    CHECK_INT(tsri_region_init_shared(&owner, "test", BYTES), 0);
    memset(owner.data, 7, owner.bytes);
    CHECK_INT(attack(owner.fd), 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) _exit(attack(owner.fd));
    int status = -1;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), 0);
    for (size_t i = 0; i < owner.bytes; i += 512)
        CHECK_INT(owner.data[i], 7);
    owner.data[0] = 8; /* the owner still can */
    tsri_region_fini(&owner);
}

TEST(shared_memory_costs_only_where_it_is_touched)
{
    if (TEST_TSAN) SKIP("the thread sanitizer has no 64 GB of addresses to spare on Arm");
    struct tsri_region owner;
    CHECK_INT(tsri_region_init_shared(&owner, "test", (size_t)1 << 36), 0);
    owner.data[(size_t)1 << 35] = 1;
    CHECK_INT(owner.data[((size_t)1 << 35) + 1], 0);
    tsri_region_fini(&owner);
    CHECK_INT(tsri_region_init_shared(&owner, "test", 0), 0);
    CHECK(owner.bytes > 0);
    tsri_region_fini(&owner);
}

TEST(a_descriptor_that_could_fault_is_not_mapped)
{
    struct tsri_region r;
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING); /* not sealed */
    CHECK(fd >= 0 && ftruncate(fd, (off_t)BYTES) == 0);
    CHECK_INT(tsri_region_init_reader(&r, fd, BYTES), TSR_EPERM);
    CHECK(r.data == NULL);
    CHECK_INT(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    CHECK_INT(tsri_region_init_reader(&r, fd, BYTES + 1), TSR_EPERM); /* not as large as said */
    CHECK_HAS(tsr_errmsg(), "3145728");
    CHECK_INT(tsri_region_init_reader(&r, fd, 0), TSR_EPERM);
    CHECK_INT(tsri_region_init_reader(&r, fd, BYTES), 0);
    tsri_region_fini(&r);
    close(fd);
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    CHECK_INT(tsri_region_init_reader(&r, pipes[0], 1), TSR_EPERM);
    close(pipes[0]), close(pipes[1]);
    FILE *f = tmpfile();
    CHECK(f && ftruncate(fileno(f), (off_t)BYTES) == 0);
    CHECK_INT(tsri_region_init_reader(&r, fileno(f), BYTES), TSR_EPERM);
    fclose(f);
    CHECK_INT(tsri_region_init_reader(&r, -1, BYTES), TSR_EPERM);
    fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (fd < 0) return; /* no huge pages in this kernel */
    CHECK(ftruncate(fd, (off_t)4 << 20) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    CHECK_INT(tsri_region_init_reader(&r, fd, BYTES), TSR_EPERM);
    close(fd);
}

TEST(what_is_only_read_is_never_touched)
{
    struct tsri_region r;
    struct stat before, after;
    uint8_t page[4096], zeros[4096] = {0};
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)BYTES) == 0);
    CHECK_INT(tsri_region_init_remote(&r, fd, BYTES), TSR_EPERM); /* it may shrink */
    CHECK_INT(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    CHECK_INT(tsri_region_init_remote(&r, fd, BYTES), 0);
    CHECK(pwrite(fd, "hello", 5, 8192) == 5 && fstat(fd, &before) == 0);
    CHECK_INT(tsri_region_read(&r, r.data + 8192, page, 5), 0);
    CHECK(memcmp(page, "hello", 5) == 0);
    for (size_t at = 0; at < BYTES; at += sizeof page) {
        CHECK_INT(tsri_region_read(&r, r.data + at, page, sizeof page), 0);
        CHECK(at == 8192 || memcmp(page, zeros, sizeof page) == 0);
    }
    CHECK(fstat(fd, &after) == 0);
    CHECK_INT(after.st_blocks, before.st_blocks);
    tsri_region_fini(&r);
    CHECK(fcntl(fd, F_GETFD) < 0); /* it was the region's */
}

TEST(absurd_sizes_are_refused_in_words)
{
    struct tsri_region r;
    volatile size_t huge = SIZE_MAX;
    CHECK_INT(tsri_region_init_shared(&r, "test", huge), TSR_ENOMEM);
    CHECK_INT(tsri_region_init_shared(&r, "test", huge / 8), TSR_ENOMEM);
    CHECK(r.data == NULL && r.fd == -1);
}

int main(void)
{
    RUN(what_the_owner_writes_a_reader_sees);
    RUN(nobody_who_has_the_descriptor_can_change_a_byte);
    RUN(shared_memory_costs_only_where_it_is_touched);
    RUN(a_descriptor_that_could_fault_is_not_mapped);
    RUN(what_is_only_read_is_never_touched);
    RUN(absurd_sizes_are_refused_in_words);
    return test_end();
}
