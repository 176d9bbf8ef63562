/* s3_login.c - the keys that requests are signed with: from the configuration (which may have them
 * from its own environment variables), from a file as `aws configure` writes it, or from the
 * variables that every S3 program knows. A file is read only when nobody else can; keys are
 * overwritten before their memory is given back. */
#include "s3/s3.h"

#include <ctype.h>
#include <stdlib.h>

#define FILE_BYTES_MAX ((size_t)64 << 10)
#define VALUE_BYTES_MAX 4096u /* session tokens are long */

void tsri_s3_login_fini(struct tsri_s3_login *l)
{
    tsri_secret_free(&l->access_key);
    tsri_secret_free(&l->secret_key);
    tsri_secret_free(&l->token);
}

/* Header lines and user names are made of them. */
static bool printable(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~') return false;
    return true;
}

static int set(char **to, const char *text, size_t n)
{
    tsri_secret_free(to);
    if (n == 0) return 0;
    if (n > VALUE_BYTES_MAX || !printable(text, n))
        return tsri_fail(TSR_ECONFIG, "s3: access key or secret key is malformed");
    char *copy = tsri_alloc(n + 1, 1);
    if (!copy) return TSR_ENOMEM;
    memcpy(copy, text, n);
    *to = copy;
    return 0;
}

/* ---- the file ---- */

struct text_span {
    const char *at;
    size_t n;
};

static struct text_span trim(struct text_span s)
{
    while (s.n && isspace((unsigned char)s.at[0]))
        s.at++, s.n--;
    while (s.n && isspace((unsigned char)s.at[s.n - 1]))
        s.n--;
    return s;
}

static bool says(struct text_span s, const char *word)
{
    return s.n == strlen(word) && memcmp(s.at, word, s.n) == 0;
}

static int take_setting(struct tsri_s3_login *l, struct text_span line)
{
    const char *equals = memchr(line.at, '=', line.n);
    if (!equals) return tsri_fail(TSR_ECONFIG, "s3_credentials_file: line without =");
    struct text_span name = trim((struct text_span){line.at, (size_t)(equals - line.at)});
    struct text_span value =
        trim((struct text_span){equals + 1, line.n - (size_t)(equals + 1 - line.at)});
    if (says(name, "aws_access_key_id")) return set(&l->access_key, value.at, value.n);
    if (says(name, "aws_secret_access_key")) return set(&l->secret_key, value.at, value.n);
    if (says(name, "aws_session_token")) return set(&l->token, value.at, value.n);
    return 0; /* region and the like are of no use here */
}

int tsri_s3_login_read(struct tsri_s3_login *l, const char *text, size_t bytes, const char *profile)
{
    bool ours = false;
    for (size_t i = 0; i < bytes;) {
        const char *end = memchr(text + i, '\n', bytes - i);
        size_t n = end ? (size_t)(end - text) - i : bytes - i;
        struct text_span line = trim((struct text_span){text + i, n});
        i += n + 1;
        if (line.n == 0 || line.at[0] == '#' || line.at[0] == ';') continue;
        if (line.at[0] == '[') {
            if (line.at[line.n - 1] != ']')
                return tsri_fail(TSR_ECONFIG, "s3_credentials_file: section without ]");
            ours = says(trim((struct text_span){line.at + 1, line.n - 2}), profile);
            continue;
        }
        int err = ours ? take_setting(l, line) : 0;
        if (err) return err;
    }
    if (!l->access_key || !l->secret_key)
        return tsri_fail(TSR_ECONFIG, "s3_credentials_file: no keys in section [%s]", profile);
    return 0;
}

static int login_from_file(struct tsri_s3_login *l, const char *path)
{
    char *text = tsri_alloc(FILE_BYTES_MAX, 1);
    if (!text) return TSR_ENOMEM;
    const char *profile = getenv("AWS_PROFILE");
    int64_t n = tsri_secret_read("s3_credentials_file", path, text, FILE_BYTES_MAX);
    int err =
        n < 0 ? (int)n
              : tsri_s3_login_read(l, text, (size_t)n, profile && profile[0] ? profile : "default");
    explicit_bzero(text, FILE_BYTES_MAX);
    tsri_free(text);
    return err;
}

/* ---- where they come from ---- */

static int set_text(char **to, const char *text)
{
    return set(to, text ? text : "", text ? strlen(text) : 0);
}

static int set_all(struct tsri_s3_login *l, const char *access_key, const char *secret_key,
                   const char *token)
{
    int err = set_text(&l->access_key, access_key);
    if (!err) err = set_text(&l->secret_key, secret_key);
    if (!err) err = set_text(&l->token, token);
    if (!err && !l->access_key != !l->secret_key)
        err = tsri_fail(TSR_ECONFIG, "s3: access key or secret key is missing");
    return err;
}

int tsri_s3_login_init(struct tsri_s3_login *l, const char *access_key, const char *secret_key,
                       const char *token, const char *file)
{
    memset(l, 0, sizeof *l);
    int err;
    if ((access_key && access_key[0]) || (secret_key && secret_key[0]))
        err = set_all(l, access_key, secret_key, token);
    else if (file && file[0])
        err = login_from_file(l, file);
    else
        err = set_all(l, getenv("AWS_ACCESS_KEY_ID"), getenv("AWS_SECRET_ACCESS_KEY"),
                      getenv("AWS_SESSION_TOKEN"));
    if (err) tsri_s3_login_fini(l);
    return err;
}
