/* folder_kit.h - a folder of documents for tests of the search. */
#ifndef TSRI_TEST_FOLDER_KIT_H
#define TSRI_TEST_FOLDER_KIT_H

#include "support/tmpdir.h"

#include <stdint.h>
#include <string.h>
#include <sys/time.h>

/* Writes a file below a folder, and the folders that its name has. Its time is an hour ago, so that
 * it counts as finished. */
static inline void folder_put(const char *folder, const char *name, const char *text, size_t bytes)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *at = path + strlen(folder) + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(path, 0700);
        *at = '/';
    }
    FILE *f = n < (int)sizeof path ? fopen(path, "wb") : NULL;
    if (!f || fwrite(text, 1, bytes, f) != bytes || fclose(f) != 0) {
        perror(path);
        abort();
    }
    struct timeval then[2];
    gettimeofday(&then[0], NULL);
    then[0].tv_sec -= 3600;
    then[1] = then[0];
    utimes(path, then);
}

static inline void folder_say(const char *folder, const char *name, const char *text)
{
    folder_put(folder, name, text, strlen(text));
}

static inline void folder_remove(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (remove(path) != 0) perror(path);
}

/* Paragraphs of made-up words, the same for the same seed. Returns their bytes. */
static inline size_t folder_prose(char *out, size_t room, uint64_t seed, size_t n_words_paragraph)
{
    static const char *const parts[] = {"ba", "ke", "lo", "mi", "nu", "ra", "se", "ti", "vo", "zu"};
    size_t n = 0, word = 0;
    while (n + 32 < room) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t r = (uint32_t)(seed >> 33);
        for (uint32_t i = 0; i < 2 + r % 3; i++, r /= 10)
            n += (size_t)snprintf(out + n, room - n, "%s", parts[r % 10]);
        word++;
        const char *end = word % n_words_paragraph == 0 ? ".\n\n" : word % 12 == 0 ? ". " : " ";
        n += (size_t)snprintf(out + n, room - n, "%s", end);
    }
    return n;
}

#endif
