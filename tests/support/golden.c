/* golden.c - see golden.h. A vector that cannot be read ends the program: it is the test's own
 * mistake, not the library's. */
#include "support/golden.h"

#include <stdlib.h>
#include <string.h>

static void give_up(const char *what, const char *which)
{
    fprintf(stderr, "golden: %s: %s\n", what, which);
    exit(1);
}

void golden_init(struct golden *g, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/%s", name);
    memset(g, 0, sizeof *g);
    g->file = fopen(path, "r");
    if (!g->file) give_up("cannot open", path);
}

void golden_fini(struct golden *g)
{
    fclose(g->file);
}

bool golden_next(struct golden *g, const char *word)
{
    while (fgets(g->line, sizeof g->line, g->file)) {
        char *save, *field = strtok_r(g->line, " \n", &save);
        if (!field || strcmp(field, word) != 0) continue;
        g->n_fields = 0;
        while ((field = strtok_r(NULL, " \n", &save))) {
            if (g->n_fields == GOLDEN_FIELDS_MAX) give_up("too many fields", word);
            g->fields[g->n_fields++] = field;
        }
        return true;
    }
    return false;
}

static const char *field_of(const struct golden *g, uint32_t field)
{
    if (field >= g->n_fields) give_up("a field is missing", g->line);
    return g->fields[field];
}

uint32_t golden_u32(const struct golden *g, uint32_t field)
{
    return (uint32_t)strtoul(field_of(g, field), NULL, 10);
}

static unsigned hex_digit(char c, const char *text)
{
    const char *digits = "0123456789abcdef";
    const char *at = c ? strchr(digits, c) : NULL;
    if (!at) give_up("not hex", text);
    return (unsigned)(at - digits);
}

size_t golden_hex(const char *text, uint8_t *out, size_t max)
{
    if (!strcmp(text, "-")) return 0;
    size_t n = 0;
    for (const char *p = text; *p; p += 2) {
        if (n == max) give_up("too long", text);
        out[n++] = (uint8_t)(hex_digit(p[0], text) << 4 | hex_digit(p[1], text));
    }
    return n;
}

size_t golden_bytes(const struct golden *g, uint32_t field, uint8_t *out, size_t max)
{
    return golden_hex(field_of(g, field), out, max);
}

bool golden_same(const struct golden *g, uint32_t field, const void *bytes, size_t n)
{
    uint8_t want[GOLDEN_LINE_BYTES / 2];
    size_t n_want = golden_bytes(g, field, want, sizeof want);
    if (n_want == n && memcmp(want, bytes, n) == 0) return true;
    printf("    got  ");
    for (size_t i = 0; i < n; i++)
        printf("%02x", ((const uint8_t *)bytes)[i]);
    printf("\n    want %s\n", field_of(g, field));
    return false;
}
