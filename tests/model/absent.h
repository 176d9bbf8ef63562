/* absent.h - main() of a test of the executor where llama.cpp is not installed. */
#include "support/test.h"

TEST(the_executor_agrees_with_llama_cpp)
{
    SKIP("llama.cpp is not installed: tools/setup --model");
}

int main(void)
{
    RUN(the_executor_agrees_with_llama_cpp);
    return test_end();
}
