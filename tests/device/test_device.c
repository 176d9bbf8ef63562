/* Devices by name: built in, from a shared object, refused; defaults for what a device leaves out;
 * arguments checked before the device sees them. */
#include "kv.h"

#include <libgen.h>
#include <unistd.h>

/* The plugin is built next to this program. */
static const char *plugin(void)
{
    static char path[4096 + 64];
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(n > 0);
    self[n] = '\0';
    snprintf(path, sizeof path, "%s/libtessera-least.so", dirname(self));
    return path;
}

static int open_plugin(struct tsri_device **d, const char *name)
{
    struct tsr_device_desc config = {.size = sizeof config, .library = plugin()};
    return tsri_device_open(d, name, &config);
}

TEST(the_cpu_is_always_there_and_says_what_it_is)
{
    struct tsri_device *d;
    struct tsr_device_info info = {.size = sizeof info};
    CHECK_INT(tsri_device_open(&d, "cpu", NULL), 0);
    CHECK_STR(tsri_device_name(d), "cpu");
    CHECK_STR(tsri_device_known(0), "cpu");
    CHECK_INT(tsri_device_caps(d), 0);
    CHECK_INT(tsri_device_info(d, &info), 0);
    CHECK(info.bytes_total > 0 && strlen(info.text) > 0);
    info.size = 0;
    CHECK_INT(tsri_device_info(d, &info), TSR_EINVAL);
    tsri_device_close(d);
    tsri_device_close(NULL);
}

TEST(a_name_that_nobody_provides_is_an_error_in_words)
{
    struct tsri_device *d = (struct tsri_device *)&d;
    CHECK_INT(tsri_device_open(&d, "abacus", NULL), TSR_EDEVICE);
    CHECK(d == NULL);
    CHECK_HAS(tsr_errmsg(), "libtessera-abacus.so");
    if (tsri_device_open(&d, "cuda", NULL) == 0)
        tsri_device_close(d);
    else if (strstr(tsr_errmsg(), "libtessera-cuda.so: cannot open"))
        CHECK_HAS(tsr_errmsg(), "; make cuda builds it");
    CHECK_INT(tsri_device_open(&d, "../evil", NULL), TSR_EINVAL);
    CHECK_INT(tsri_device_open(&d, "", NULL), TSR_EINVAL);
    CHECK_INT(tsri_device_open(&d, NULL, NULL), TSR_EINVAL);
    struct tsr_device_desc config = {.size = 1};
    CHECK_INT(tsri_device_open(&d, "cpu", &config), TSR_EINVAL);
}

TEST(a_shared_object_is_opened_by_one_symbol)
{
    struct tsri_device *d;
    CHECK_INT(open_plugin(&d, "least"), 0);
    CHECK_STR(tsri_device_name(d), "least");
    tsri_device_close(d);
    CHECK_INT(open_plugin(&d, "other"), TSR_EDEVICE);
    CHECK_HAS(tsr_errmsg(), "tsr_device_other");
}

TEST(tables_of_another_abi_or_with_a_member_missing_are_refused)
{
    struct tsri_device *d;
    CHECK_INT(open_plugin(&d, "later"), TSR_EVERSION);
    CHECK_HAS(tsr_errmsg(), "abi 3");
    CHECK_INT(open_plugin(&d, "earlier"), TSR_EVERSION);
    CHECK_HAS(tsr_errmsg(), "abi 1");
    CHECK_INT(open_plugin(&d, "torn"), TSR_EDEVICE);
    CHECK_HAS(tsr_errmsg(), "lacks");
}

TEST(what_a_device_says_of_its_failure_reaches_the_caller)
{
    struct tsri_device *d;
    struct tsr_device_desc config = {.size = sizeof config, .library = plugin(), .ordinal = 3};
    CHECK_INT(tsri_device_open(&d, "least", &config), TSR_EDEVICE);
    CHECK_STR(tsr_errmsg(), "device least: there is only one");
}

TEST(defaults_stand_in_for_everything_optional)
{
    struct tsri_device *d;
    struct tsr_device_info info = {.size = sizeof info};
    struct tsr_device_stream *s;
    struct tsr_device_event *e;
    void *p;
    CHECK_INT(open_plugin(&d, "least"), 0);
    CHECK_INT(tsri_device_info(d, &info), 0);
    CHECK_STR(info.text, "least");
    CHECK_INT(tsri_device_host_alloc(d, &p, 100), 0);
    CHECK_INT((uintptr_t)p % 4096, 0);
    CHECK_INT(tsri_device_host_register(d, p, 4096), 0);
    tsri_device_host_unregister(d, p);
    tsri_device_host_free(d, p);
    CHECK_INT(tsri_stream_open(&s, d, NULL, 0), 0);
    CHECK_INT(tsri_stream_sync(d, s), 0);
    CHECK_INT(tsri_event_open(&e, d), 0);
    CHECK_INT(tsri_event_record(d, e, s), 0);
    CHECK_INT(tsri_event_wait(d, e, s), 0);
    CHECK_INT(tsri_event_sync(d, e), 0);
    tsri_event_close(d, e);
    tsri_stream_close(d, s);
    uint32_t row[4] = {0}, out[8];
    struct tsr_top_k t = {(const float *)(const void *)row, out, 4, 1};
    CHECK_INT(tsri_device_top_k(d, NULL, &t), TSR_EUNSUP);
    CHECK_HAS(tsr_errmsg(), "least");
    tsri_device_close(d);
}

TEST(a_device_that_cannot_rotate_refuses_the_batch_and_copies_the_others)
{
    struct tsri_device *d;
    struct kv_engine g;
    struct kv_cells c;
    struct tsri_batch *b;
    struct tsr_batch_limits limits = {1, 64, 4, 64};
    struct kv_shape shape = {KV_HND, TSR_DTYPE_BF16, 2, 2, 32, 32, 0, 32, 16, 64};
    int64_t slots[20];
    CHECK_INT(open_plugin(&d, "least"), 0);
    kv_engine_init(&g, d, &shape);
    kv_cells_init(&c, d, &g.layout, 20, 16, false, 1);
    kv_slots(slots, 20, 64, 2);
    CHECK_INT(tsri_batch_open(&b, d, &limits), 0);
    struct tsr_rope rope = {
        .size = sizeof rope, .pairing = TSR_ROPE_NEOX, .dims = 32, .theta = 10000};
    struct tsr_kv_run run = {&c.cells, slots, 0, 20, 1, 0, 0};
    struct tsri_batch_desc desc = {TSRI_BATCH_SCATTER, 1, &g.layout, &run, &rope, 0};
    CHECK_INT(tsri_batch_set(b, NULL, &desc), TSR_EUNSUP);
    CHECK_HAS(tsr_errmsg(), "cannot rotate");
    run.delta = 0;
    CHECK_INT(tsri_batch_set(b, NULL, &desc), 0);
    CHECK_INT(tsri_batch_scatter(b, 0, 0), 0);
    const struct tsr_kv_plane *p = &g.layout.planes[1];
    uint32_t i = slots[3] >= 0 ? 3 : 4;
    CHECK(memcmp(tsri_layer_base(p, 1) + tsri_slot_offset(&g.layout, p, (uint64_t)slots[i]) +
                     p->head_stride,
                 (uint8_t *)c.planes[6] + i * 128 + 64, 64) == 0);
    tsri_batch_close(b);
    kv_cells_fini(&c);
    kv_engine_fini(&g);
    tsri_device_close(d);
}

TEST(arguments_are_checked_before_the_device_sees_them)
{
    struct tsri_device *d;
    void *p;
    uint32_t a[8] = {0}, b[8] = {0};
    CHECK_INT(tsri_device_open(&d, "cpu", NULL), 0);
    CHECK_INT(tsri_device_alloc(d, &p, 0), TSR_EINVAL);
    CHECK_INT(tsri_device_alloc(d, &p, SIZE_MAX - 5), TSR_ENOMEM);
    CHECK_INT(tsri_device_host_alloc(d, &p, 0), TSR_EINVAL);
    CHECK_INT(tsri_device_host_alloc(d, &p, SIZE_MAX), TSR_EINVAL);
    CHECK_INT(tsri_device_host_register(d, (uint8_t *)4096 + 1, 4096), TSR_EINVAL);
    CHECK_INT(tsri_device_host_register(d, (uint8_t *)4096, 4095), TSR_EINVAL);
    struct tsr_copy copies[] = {{a, b, 8}, {NULL, b, 8}};
    b[0] = 9;
    CHECK_INT(tsri_device_copy(d, NULL, copies, 2), TSR_EINVAL);
    CHECK_INT(a[0], 0); /* not even the first */
    copies[1].bytes = 0;
    CHECK_INT(tsri_device_copy(d, NULL, copies, 2), 0);
    CHECK_INT(a[0], 9);
    CHECK_INT(tsri_device_copy(d, NULL, NULL, 0), 0);
    CHECK_INT(tsri_device_copy(d, NULL, NULL, 1), TSR_EINVAL);
    struct tsr_top_k t = {(const float *)(const void *)a, b, 8, 9};
    CHECK_INT(tsri_device_top_k(d, NULL, &t), TSR_EINVAL);
    t.n = UINT32_MAX;
    CHECK_INT(tsri_device_top_k(d, NULL, &t), TSR_EINVAL);
    t.k = 0;
    CHECK_INT(tsri_device_top_k(d, NULL, &t), TSR_EINVAL);
    tsri_device_close(d);
}

int main(void)
{
    RUN(the_cpu_is_always_there_and_says_what_it_is);
    RUN(a_name_that_nobody_provides_is_an_error_in_words);
    RUN(a_shared_object_is_opened_by_one_symbol);
    RUN(tables_of_another_abi_or_with_a_member_missing_are_refused);
    RUN(what_a_device_says_of_its_failure_reaches_the_caller);
    RUN(defaults_stand_in_for_everything_optional);
    RUN(a_device_that_cannot_rotate_refuses_the_batch_and_copies_the_others);
    RUN(arguments_are_checked_before_the_device_sees_them);
    return test_end();
}
