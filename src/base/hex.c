/* hex.c - bytes as hexadecimal digits and back: keys, fingerprints and names on servers. */
#include "base/base.h"

/* Of every byte its two digits: a lookup of 64 keys writes 4096 of them into names of redis. */
static const char pairs[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
                            "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
                            "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f"
                            "606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f"
                            "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f"
                            "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf"
                            "c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf"
                            "e0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff";

char *tsri_hex(char *to, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        memcpy(to + 2 * i, pairs + 2 * (size_t)bytes[i], 2);
    to[2 * n] = '\0';
    return to + 2 * n;
}

bool tsri_hex_read(const char *text, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < 2 * n; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return false;
        out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | digit : digit << 4);
    }
    return true;
}
