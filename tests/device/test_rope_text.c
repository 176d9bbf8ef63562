/* Parameters of rotary positions as text: equal models give equal text, other models another one, and
 * what is read back is the same model. */
#include "device/device.h"
#include "support/test.h"

#include <math.h>

static struct tsri_rope_read back;

static struct tsr_rope plain_rope(void)
{
    return (struct tsr_rope){
        .size = sizeof(struct tsr_rope), .pairing = TSR_ROPE_NEOX, .dims = 128, .theta = 500000};
}

TEST(the_text_tells_models_apart_and_is_stable)
{
    struct tsr_rope r = plain_rope(), other = r;
    char a[512], b[512];
    int n = tsri_rope_text(&r, a, sizeof a);
    CHECK_STR(a, "rope=plain pairing=neox dims=128 theta=0x1.e848p+18");
    CHECK_INT(n, strlen(a));
    CHECK_INT(tsri_rope_text(&r, a, 10), n);
    CHECK_STR(a, "rope=plai");
    CHECK_INT(tsri_rope_text(&r, a, sizeof a), n);
    other.theta = nextafter(other.theta, 1e9);
    CHECK(tsri_rope_text(&other, b, sizeof b) > 0);
    CHECK(strcmp(a, b) != 0);
    other = r;
    other.scaling = TSR_ROPE_YARN;
    other.factor = 4;
    other.trained = 4096;
    CHECK(tsri_rope_text(&other, a, sizeof a) > 0);
    other.beta_fast = 32; /* the default, spelled out: the same model */
    CHECK(tsri_rope_text(&other, b, sizeof b) > 0);
    CHECK_STR(a, b);
    other.mscale = other.mscale_all_dim = 0.5;
    CHECK(tsri_rope_text(&other, b, sizeof b) > 0);
    CHECK(strcmp(a, b) != 0);
    double f[] = {1, 2}, g[] = {1, 3};
    other = r;
    other.dims = 4;
    other.scaling = TSR_ROPE_LONGROPE;
    other.factor = 4;
    other.trained = 4096;
    other.n_factors = 2;
    other.short_factors = other.long_factors = f;
    CHECK(tsri_rope_text(&other, a, sizeof a) > 0);
    CHECK_HAS(a, "factors=0x1p+0/0x1p+0,0x1p+1/0x1p+1");
    other.long_factors = g;
    CHECK(tsri_rope_text(&other, b, sizeof b) > 0);
    CHECK(strcmp(a, b) != 0);
}

/* The text of the rope that was read from the text of r. */
static void comes_back(const struct tsr_rope *r)
{
    char a[512], b[512];
    int n = tsri_rope_text(r, a, sizeof a);
    CHECK(n > 0 && (size_t)n < sizeof a);
    CHECK_INT(tsri_rope_read(&back, a, 2), 0);
    CHECK_INT(tsri_rope_text(&back.rope, b, sizeof b), n);
    CHECK_STR(b, a);
}

TEST(every_scaling_is_read_as_it_was_written)
{
    double f[] = {1, 2.1}, g[] = {1.0 / 3, 3};
    struct tsr_rope r = plain_rope();
    comes_back(&r);
    r.pairing = TSR_ROPE_GPTJ;
    r.factor = 4.7;
    r.trained = 8192;
    r.low_freq_factor = 1;
    r.high_freq_factor = 4;
    for (r.scaling = TSR_ROPE_LINEAR; r.scaling <= TSR_ROPE_LLAMA3; r.scaling++)
        comes_back(&r);
    r.scaling = TSR_ROPE_YARN;
    r.yarn_exact = 1;
    r.mscale = 0.7;
    r.mscale_all_dim = 0.9;
    comes_back(&r);
    r.attention_factor = 1.1;
    comes_back(&r);
    r.scaling = TSR_ROPE_LONGROPE;
    r.dims = 4;
    r.n_factors = 2;
    r.short_factors = f;
    r.long_factors = g;
    comes_back(&r);
    CHECK(back.rope.long_factors[0] == g[0] && back.rope.short_factors[1] == f[1]);
}

TEST(people_write_decimals_in_any_order_and_leave_out_what_is_usual)
{
    CHECK_INT(tsri_rope_read(&back, "theta=10000", 64), 0);
    CHECK(back.rope.pairing == TSR_ROPE_NEOX && back.rope.scaling == TSR_ROPE_PLAIN);
    CHECK(back.rope.dims == 64 && back.rope.theta == 10000);
    CHECK_INT(
        tsri_rope_read(&back, " factor=8  theta=5e5 high=4 low=1 trained=8192 rope=llama3", 128),
        0);
    CHECK(back.rope.scaling == TSR_ROPE_LLAMA3 && back.rope.trained == 8192);
    CHECK(back.rope.low_freq_factor == 1 && back.rope.high_freq_factor == 4);
    CHECK_INT(tsri_rope_read(&back, "pairing=gptj dims=32 theta=1e4", 128), 0);
    CHECK(back.rope.pairing == TSR_ROPE_GPTJ && back.rope.dims == 32);
}

TEST(what_would_not_act_is_refused_by_name)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"", "theta"},
        {"rope=llama3 theta=5e5", "factor"},
        {"theta=1e4 base=3", "unknown word: base=3"},
        {"theta", "unknown word: theta"},
        {"theta= dims=4", "wrong value: theta="},
        {"theta=1e4x", "wrong value: theta=1e4x"},
        {"theta=nan", "theta"},
        {"theta=1e4 theta=1e5", "theta is there twice"},
        {"theta=1e4 dims=3.5", "wrong value: dims=3.5"},
        {"theta=1e4 dims=-2", "wrong value: dims=-2"},
        {"theta=1e4 rope=llama", "wrong value: rope=llama"},
        {"theta=1e4 pairing=", "wrong value: pairing="},
        {"theta=1e4 factor=8", "factor has no meaning for plain"},
        {"rope=yarn theta=1e4 factor=8 trained=8192 low=1", "low has no meaning for yarn"},
        {"rope=longrope theta=1e4 factor=8 trained=8192 dims=4 factors=1/1", "longrope"},
        {"rope=longrope theta=1e4 factor=8 trained=8192 dims=4 factors=1/1,2", "wrong value"},
    };
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++) {
        CHECK_INT(tsri_rope_read(&back, wrong[i].text, 64), TSR_EINVAL);
        CHECK_HAS(tsr_errmsg(), wrong[i].says);
    }
    char many[2048] = "rope=longrope theta=1e4 factor=8 trained=8192 factors=1/1";
    for (size_t n = strlen(many); n + 5 < sizeof many; n += 4)
        memcpy(many + n, ",1/1", 5);
    CHECK_INT(tsri_rope_read(&back, many, 64), TSR_EINVAL);
}

int main(void)
{
    RUN(the_text_tells_models_apart_and_is_stable);
    RUN(every_scaling_is_read_as_it_was_written);
    RUN(people_write_decimals_in_any_order_and_leave_out_what_is_usual);
    RUN(what_would_not_act_is_refused_by_name);
    return test_end();
}
