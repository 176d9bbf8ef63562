/* charset.c - a page as UTF-8, whatever it was written in. Pages say their encoding, and many are
 * wrong: what is valid UTF-8 is UTF-8. Done before libxml2 sees them, which passes broken bytes on
 * and prints about them. */
#include "search/inside.h"

#include <ctype.h>
#include <errno.h>
#include <iconv.h>
#include <strings.h>

/* Where a page has to name its encoding, by the HTML standard. */
#define HEAD_BYTES 1024

/* What stands for bytes that are no text. */
#define REPLACEMENT "\xEF\xBF\xBD"

/* iconv holds a letter back that an accent may follow (Hebrew, Vietnamese), with room for it here. */
#define HELD_MAX 16

/* What pages call their encoding, and what iconv calls it; browsers too take Latin-1 for Windows's.
 * Encodings that shift between character sets are left out: pages do not need them, and iconv is at
 * its weakest there. */
static const struct {
    const char *name, *iconv;
} encodings[] = {
    {"utf-8", "UTF-8"},
    {"utf8", "UTF-8"},
    {"iso-8859-1", "WINDOWS-1252"},
    {"latin1", "WINDOWS-1252"},
    {"us-ascii", "WINDOWS-1252"},
    {"ascii", "WINDOWS-1252"},
    {"windows-1252", "WINDOWS-1252"},
    {"cp1252", "WINDOWS-1252"},
    {"iso-8859-2", "ISO-8859-2"},
    {"iso-8859-3", "ISO-8859-3"},
    {"iso-8859-4", "ISO-8859-4"},
    {"iso-8859-5", "ISO-8859-5"},
    {"iso-8859-6", "ISO-8859-6"},
    {"iso-8859-7", "ISO-8859-7"},
    {"iso-8859-8", "ISO-8859-8"},
    {"iso-8859-9", "WINDOWS-1254"},
    {"iso-8859-13", "ISO-8859-13"},
    {"iso-8859-15", "ISO-8859-15"},
    {"windows-1250", "WINDOWS-1250"},
    {"windows-1251", "WINDOWS-1251"},
    {"windows-1253", "WINDOWS-1253"},
    {"windows-1254", "WINDOWS-1254"},
    {"windows-1255", "WINDOWS-1255"},
    {"windows-1256", "WINDOWS-1256"},
    {"windows-1257", "WINDOWS-1257"},
    {"windows-1258", "WINDOWS-1258"},
    {"windows-874", "CP874"},
    {"tis-620", "CP874"},
    {"koi8-r", "KOI8-R"},
    {"koi8-u", "KOI8-U"},
    {"macintosh", "MACINTOSH"},
    {"gb2312", "GB18030"},
    {"gbk", "GB18030"},
    {"gb18030", "GB18030"},
    {"big5", "BIG5-HKSCS"},
    {"shift_jis", "CP932"},
    {"shift-jis", "CP932"},
    {"sjis", "CP932"},
    {"windows-31j", "CP932"},
    {"euc-jp", "EUC-JP"},
    {"euc-kr", "UHC"},
    {"ks_c_5601-1987", "UHC"},
};

static const char *by_name(const char *name, size_t bytes)
{
    for (size_t i = 0; i < TSRI_COUNT(encodings); i++)
        if (strlen(encodings[i].name) == bytes && strncasecmp(encodings[i].name, name, bytes) == 0)
            return encodings[i].iconv;
    return NULL;
}

/* What follows "charset=" in the page's head: in <meta charset> and in <meta http-equiv> alike. */
static const char *named(const char *page, size_t bytes)
{
    static const char word[] = "charset";
    const size_t n_word = sizeof word - 1;
    size_t end = bytes < HEAD_BYTES ? bytes : HEAD_BYTES;
    for (size_t i = 0; i + n_word < end; i++) {
        if (strncasecmp(page + i, word, n_word) != 0) continue;
        size_t at = i + n_word, n = 0;
        while (at < end && strchr(" \t\r\n=\"'", page[at]) && page[at])
            at++;
        while (at + n < end &&
               (isalnum((unsigned char)page[at + n]) || strchr("-_", page[at + n])) && page[at + n])
            n++;
        const char *found = by_name(page + at, n);
        if (found) return found;
    }
    return NULL;
}

/* The encoding of a page that is not valid UTF-8; *skip: the mark before its text. */
static const char *encoding_of(const char *page, size_t bytes, size_t *skip)
{
    *skip = bytes >= 3 && memcmp(page, "\xEF\xBB\xBF", 3) == 0 ? 3 : 2;
    if (*skip == 3) return "UTF-8";
    if (bytes >= 2 && memcmp(page, "\xFF\xFE", 2) == 0) return "UTF-16LE";
    if (bytes >= 2 && memcmp(page, "\xFE\xFF", 2) == 0) return "UTF-16BE";
    *skip = 0;
    const char *found = named(page, bytes);
    return found ? found : "WINDOWS-1252";
}

static int add_replacement(struct tsri_prose *out)
{
    return tsri_prose_add(out, REPLACEMENT, strlen(REPLACEMENT));
}

/* Adds what should be UTF-8; iconv lets through what was UTF-8 once, of up to six bytes. Nor zeros:
 * they end the text for whoever reads it as a string. */
static int add(struct tsri_prose *out, const char *text, size_t bytes)
{
    size_t whole = bytes - tsri_utf8_unfinished(text, bytes), from = 0;
    int err = 0;
    for (size_t i = 0; i < whole && !err;) {
        int n = text[i] ? tsri_utf8_length(text + i) : 0;
        i += n ? (size_t)n : 1;
        if (n) continue;
        err = tsri_prose_add(out, text + from, i - 1 - from);
        if (!err) err = add_replacement(out);
        from = i;
    }
    if (!err) err = tsri_prose_add(out, text + from, whole - from);
    return err || whole == bytes ? err : add_replacement(out);
}

/* unit: the bytes that stand together, to go on behind those that are no text. */
static int convert(iconv_t cd, char *from, size_t bytes, size_t unit, struct tsri_prose *out)
{
    char buf[4096];
    int err = 0;
    while (bytes && !err) {
        char *to = buf;
        size_t room = sizeof buf - HELD_MAX;
        bool full = iconv(cd, &from, &bytes, &to, &room) == (size_t)-1 && errno == E2BIG;
        room += HELD_MAX;
        if (!full) (void)iconv(cd, NULL, NULL, &to, &room);
        err = add(out, buf, sizeof buf - room);
        if (!bytes || full || err) continue; /* else no text, or the beginning of a character */
        size_t skip = bytes < unit ? bytes : unit;
        from += skip, bytes -= skip;
        err = add_replacement(out);
    }
    return err;
}

int tsri_page_utf8(const char *page, size_t bytes, struct tsri_prose *out)
{
    size_t skip;
    const char *encoding = encoding_of(page, bytes, &skip);
    if (strcmp(encoding, "UTF-8") == 0) return add(out, page + skip, bytes - skip);
    iconv_t cd = iconv_open("UTF-8", encoding);
    if (cd == (iconv_t)-1)
        return tsri_fail(TSR_EUNSUP, "is in %s, which cannot be read here", encoding);
    /* iconv's argument is not const, but what it points to is not written. */
    char *from = (char *)(uintptr_t)(page + skip);
    int err = convert(cd, from, bytes - skip, skip == 2 ? 2 : 1, out);
    iconv_close(cd);
    return err;
}
