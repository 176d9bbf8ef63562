/* Where texts are cut. */
#include "search/search.h"

#include "folder_kit.h"
#include "support/test.h"

#define TEXT_BYTES 100000u

static char text[TEXT_BYTES + 4096];

struct cuts {
    size_t ends[1024];
    size_t n;
};

static void cut(struct cuts *c, const char *from, size_t bytes)
{
    c->n = 0;
    for (size_t done = 0; done < bytes;) {
        size_t n = tsri_passage_bytes(from + done, bytes - done);
        CHECK(n > 0 && n <= TSRI_PASSAGE_BYTES_MAX && done + n <= bytes && c->n < 1024);
        done += n;
        c->ends[c->n++] = done;
    }
}

TEST(a_short_text_is_one_passage)
{
    size_t n = folder_prose(text, TSRI_PASSAGE_BYTES_MAX + 1, 1, 40);
    CHECK_INT(tsri_passage_bytes(text, n), n);
    CHECK_INT(tsri_passage_bytes("x", 1), 1);
    CHECK_INT(tsri_passage_bytes("", 0), 0);
}

TEST(long_texts_are_cut_at_paragraphs)
{
    struct cuts c;
    size_t n = folder_prose(text, TEXT_BYTES, 2, 40);
    cut(&c, text, n);
    for (size_t i = 0; i + 1 < c.n; i++)
        CHECK(memcmp(text + c.ends[i] - 2, "\n\n", 2) == 0);
    size_t mean = n / c.n;
    CHECK(mean > 1000 && mean < 1800);
}

TEST(a_heading_stays_with_what_follows_it)
{
    struct cuts c;
    size_t n = 0, n_headings = 0;
    for (int section = 0; section < 40; section++) {
        n += (size_t)sprintf(text + n, "# Section %d\n\n", section);
        n += folder_prose(text + n, 1500, (uint64_t)section + 9, 40);
        n += (size_t)sprintf(text + n, ".\n\n");
    }
    cut(&c, text, n);
    for (size_t i = 0; i + 1 < c.n; i++)
        n_headings += text[c.ends[i]] == '#';
    CHECK(n_headings * 10 >= (c.n - 1) * 9);
}

TEST(without_paragraphs_lines_sentences_and_words_are_kept)
{
    struct cuts c;
    size_t n = folder_prose(text, 20000, 3, 1000000);
    cut(&c, text, n);
    for (size_t i = 0; i + 1 < c.n; i++)
        CHECK(memcmp(text + c.ends[i] - 2, ". ", 2) == 0);
    for (size_t i = 0; i < n; i++)
        if (text[i] == '.') text[i] = 'x';
    cut(&c, text, n);
    for (size_t i = 0; i + 1 < c.n; i++)
        CHECK(text[c.ends[i] - 1] == ' ');
    for (size_t i = 0; i < n; i++)
        if (text[i] == ' ' && i % 3 == 0) text[i] = '\n';
    cut(&c, text, n);
    for (size_t i = 0; i + 1 < c.n; i++)
        CHECK(text[c.ends[i] - 1] == '\n');
}

TEST(no_character_is_cut)
{
    struct cuts c;
    for (size_t i = 0; i < 3000; i++)
        memcpy(text + 3 * i, "\xE6\xB8\xAF", 3);
    cut(&c, text, 9000);
    for (size_t i = 0; i < c.n; i++)
        CHECK_INT(c.ends[i] % 3, 0);
}

/* Passages of one version that the other has too. */
static size_t n_common(const struct cuts *a, const char *text_a, const struct cuts *b,
                       const char *text_b)
{
    size_t n = 0;
    for (size_t i = 0; i < a->n; i++) {
        size_t from_a = i ? a->ends[i - 1] : 0, bytes = a->ends[i] - from_a;
        for (size_t j = 0; j < b->n; j++) {
            size_t from_b = j ? b->ends[j - 1] : 0;
            if (b->ends[j] - from_b == bytes &&
                memcmp(text_a + from_a, text_b + from_b, bytes) == 0) {
                n++;
                break;
            }
        }
    }
    return n;
}

TEST(an_edit_changes_few_passages)
{
    static char edited[TEXT_BYTES + 4096];
    struct cuts before, after;
    size_t n = folder_prose(text, TEXT_BYTES, 4, 40);
    cut(&before, text, n);
    const size_t places[] = {0, 5000, 50000, 90000};
    for (size_t i = 0; i < 4; i++) {
        size_t at = (size_t)(strstr(text + places[i], "\n\n") - text) + 2;
        memcpy(edited, text, at);
        size_t more = (size_t)sprintf(edited + at, "A new paragraph that nobody has read.\n\n");
        memcpy(edited + at + more, text + at, n - at);
        cut(&after, edited, n + more);
        CHECK(n_common(&before, text, &after, edited) + 5 >= before.n);
    }
}

int main(void)
{
    RUN(a_short_text_is_one_passage);
    RUN(long_texts_are_cut_at_paragraphs);
    RUN(a_heading_stays_with_what_follows_it);
    RUN(without_paragraphs_lines_sentences_and_words_are_kept);
    RUN(no_character_is_cut);
    RUN(an_edit_changes_few_passages);
    return test_end();
}
