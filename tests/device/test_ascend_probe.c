/* The self-test of CANN's operators: one that refuses or gets a bit wrong is not used, the others are,
 * and every move is right. */
#include "ascend_kit.h"

static void each_operator_is(const char *option)
{
    static const struct {
        const char *name, *left;
    } operators[] = {
        {"aclnnCast", CHIP "operators: scatter gather" END},
        {"aclnnMul", CHIP "operators: rotate scatter gather" END},
        {"aclnnRotaryPositionEmbedding", CHIP "operators: int8 scatter gather" END},
        {"aclnnIndexSelect", CHIP "operators: rotate int8 scatter" END},
        {"aclnnScatterPaKvCache", CHIP "operators: rotate int8 gather" END},
    };
    for (size_t i = 0; i < TSRI_COUNT(operators); i++) {
        setenv(option, operators[i].name, 1);
        struct tsri_device *npu = open_and_check_info(operators[i].left);
        struct tsri_device *cpu = open_device("cpu", "plain");
        for (int k = 0; k < 24; k += 5) {
            struct job j = job_at(&plain_shape, k);
            check_same_on(npu, cpu, &j);
        }
        tsri_device_close(npu);
        tsri_device_close(cpu);
        acl->check_closed();
        unsetenv(option);
    }
}

TEST(an_operator_that_refuses_is_not_used)
{
    each_operator_is("FAKEACL_REFUSES");
}

TEST(an_operator_that_gets_a_bit_wrong_is_not_used)
{
    each_operator_is("FAKEACL_WRONG");
}

int main(void)
{
    acl = fakeacl_load("libascendcl.so");
    RUN(an_operator_that_refuses_is_not_used);
    RUN(an_operator_that_gets_a_bit_wrong_is_not_used);
    return test_end();
}
