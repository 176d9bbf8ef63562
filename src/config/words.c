/* words.c - words about settings: how far two names are apart, text made fit for a message, and the
 * place a setting stands at. */
#include "config/config.h"

#define NAME_BYTES 64

bool tsri_same_name(const char *ours, const char *given)
{
    for (; *ours && *given; ours++, given++)
        if (*ours != *given && !(*ours == '_' && *given == '-')) return false;
    return *ours == *given;
}

size_t tsri_edit_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    if (n >= NAME_BYTES || m >= NAME_BYTES) return SIZE_MAX;
    uint8_t rows[3][NAME_BYTES]; /* two rows back, one row back, this row */
    for (size_t j = 0; j <= m; j++)
        rows[1][j] = (uint8_t)j;
    memset(rows[0], 0, sizeof rows[0]);
    for (size_t i = 1; i <= n; i++) {
        rows[2][0] = (uint8_t)i;
        for (size_t j = 1; j <= m; j++) {
            bool same = a[i - 1] == b[j - 1];
            unsigned best = rows[1][j - 1] + (same ? 0u : 1u);
            if (rows[1][j] + 1u < best) best = rows[1][j] + 1u;
            if (rows[2][j - 1] + 1u < best) best = rows[2][j - 1] + 1u;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && rows[0][j - 2] + 1u < best) best = rows[0][j - 2] + 1u;
            rows[2][j] = (uint8_t)best;
        }
        memcpy(rows[0], rows[1], sizeof rows[0]);
        memcpy(rows[1], rows[2], sizeof rows[1]);
    }
    return rows[1][m];
}

const char *tsri_printable(const char *text, char *buf, size_t bytes)
{
    TSR_ASSERT(bytes > 4);
    size_t n = strlen(text), keep = n < bytes ? n : bytes - 4;
    /* Cut before a character, not within it. */
    while (keep < n && keep > 0 && ((unsigned char)text[keep] & 0xC0) == 0x80)
        keep--;
    memcpy(buf, text, keep);
    memcpy(buf + keep, keep < n ? "..." : "", keep < n ? 4 : 1);
    return tsri_plain(buf);
}

const char *tsri_place_text(const struct tsri_place *place, char *buf, size_t bytes)
{
    char name[256];
    buf[0] = 0;
    if (place->from == TSRI_FROM_CALL) return buf;
    tsri_printable(place->name, name, sizeof name);
    switch (place->from) {
    case TSRI_FROM_CALL:
        break;
    case TSRI_FROM_FILE:
        snprintf(buf, bytes, "%s:%zu:%zu: ", name, place->line, place->column);
        break;
    case TSRI_FROM_ENV:
        snprintf(buf, bytes, "environment variable %s: ", name);
        break;
    case TSRI_FROM_FLAG:
        snprintf(buf, bytes, "flag %s: ", name);
        break;
    }
    return buf;
}
