/* Bytes become digits and digits become bytes; nothing else does. */
#include "base/base.h"
#include "support/test.h"

TEST(every_byte_is_its_two_digits_and_comes_back)
{
    char text[5], want[5];
    uint8_t back[2];
    for (unsigned b = 0; b < 256; b++) {
        const uint8_t bytes[2] = {(uint8_t)b, (uint8_t)~b};
        CHECK(tsri_hex(text, bytes, 2) == text + 4);
        snprintf(want, sizeof want, "%02x%02x", bytes[0], bytes[1]);
        CHECK_STR(text, want);
        CHECK(tsri_hex_read(text, back, 2) && memcmp(back, bytes, 2) == 0);
    }
}

TEST(what_is_no_lower_case_digit_is_refused)
{
    static const char *const wrong[] = {"0G", "A0", "0-", " 0", "0", "", "0\x80"};
    uint8_t out[1];
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++)
        CHECK(!tsri_hex_read(wrong[i], out, 1));
}

int main(void)
{
    RUN(every_byte_is_its_two_digits_and_comes_back);
    RUN(what_is_no_lower_case_digit_is_refused);
    return test_end();
}
