/* test_cutting.c - documents between separators, and texts that have separators and no documents. */
#include "serve/api.h"

#include "support/test.h"

static struct tsri_api_request q;
static struct tsri_refusal no;
static const char *separator = "##";

static bool parse(enum tsri_api api, const char *body)
{
    tsri_api_fini(&q);
    return tsri_api_parse(&q, api, body, strlen(body), separator, &no);
}

/* A text, with JSON's escapes, as the only message of a chat. */
static void chat(const char *text)
{
    char body[1024];
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", text);
    CHECK(parse(TSRI_API_CHAT, body));
    CHECK_INT(q.n_messages, 1);
    CHECK_STR(q.messages[0].role, "user");
}

static void check_document(size_t i, const char *text)
{
    CHECK(i < q.n_documents);
    CHECK_STR(q.documents[i].text, text);
    CHECK_INT(q.documents[i].bytes, strlen(text));
    CHECK_STR(q.documents[i].name, "");
}

/* The text stays as it is. */
static void is_whole(const char *text, const char *plain)
{
    chat(text);
    CHECK_INT(q.n_documents, 0);
    CHECK_STR(q.messages[0].text, plain);
    CHECK_INT(q.messages[0].bytes, strlen(plain));
}

TEST(documents_are_between_separators)
{
    chat("Be brief. ## One.## Two. ##Why?");
    CHECK_STR(q.messages[0].text, "Be brief.\n\nWhy?");
    CHECK_INT(q.messages[0].bytes, 15);
    CHECK_INT(q.messages[0].n_documents, 2);
    CHECK(q.messages[0].documents == q.documents);
    check_document(0, "One.");
    check_document(1, "Two.");
    chat("You are helpful.##Doc1##What?");
    CHECK_STR(q.messages[0].text, "You are helpful.\n\nWhat?");
    check_document(0, "Doc1");
    chat("Be brief.\\n##\\nOne.\\n\\n##\\r\\nTwo.\\n ## \\nWhy?");
    CHECK_INT(q.n_documents, 2);
    check_document(0, "One.");
    check_document(1, "Two.");
}

TEST(a_plain_prompt_keeps_its_order)
{
    CHECK(parse(TSRI_API_COMPLETIONS, "{\"prompt\":\"S##One.##Why?\"}"));
    CHECK_INT(q.n_messages, 2);
    CHECK_STR(q.messages[0].text, "S");
    CHECK_STR(q.messages[1].text, "Why?");
    CHECK_INT(q.messages[1].n_documents, 1);
    CHECK(parse(TSRI_API_COMPLETIONS, "{\"documents\":[\"Zero.\"],\"prompt\":\"S##One.##Why?\"}"));
    CHECK_INT(q.messages[1].n_documents, 1);
    check_document(1, "One.");
    separator = "";
    CHECK(parse(TSRI_API_COMPLETIONS, "{\"prompt\":\"S##One.##Why?\"}"));
    separator = "##";
    CHECK_STR(q.messages[0].text, "S##One.##Why?");
    CHECK_INT(q.n_documents, 0);
}

TEST(headings_are_no_separators)
{
    is_whole("## Plan\\nWrite it", "## Plan\nWrite it");
    is_whole("Sum this up:\\n### A\\none\\n### B\\ntwo\\n### C",
             "Sum this up:\n### A\none\n### B\ntwo\n### C");
    is_whole("Sum this up:\\n## A\\none\\n   ## B ##\\ntwo\\n##\\tC",
             "Sum this up:\n## A\none\n   ## B ##\ntwo\n##\tC");
    is_whole("a\\n###\\nb\\n####\\nc", "a\n###\nb\n####\nc");
    /* Documents may have them. */
    chat("Be brief.##Intro\\n## A\\ntext##Other\\n### B##Why?");
    CHECK_INT(q.n_documents, 2);
    check_document(0, "Intro\n## A\ntext");
    check_document(1, "Other\n### B");
    /* Parts that were put together without a line between them. */
    chat("Be brief.### Title\\none\\n##two##Why?");
    CHECK_INT(q.n_documents, 2);
    check_document(0, "# Title\none");
    check_document(1, "two");
    CHECK(parse(TSRI_API_COMPLETIONS, "{\"prompt\":\"Sum up:\\n## A\\n1\\n## B\\n2\"}"));
    CHECK_INT(q.n_documents, 0);
}

TEST(a_text_without_documents_stays_as_it_is)
{
    is_whole("#define CAT(a, b) a##b", "#define CAT(a, b) a##b");
    is_whole("a ##b", "a ##b");
    is_whole("a## ##b", "a## ##b");
    is_whole("##a##b", "##a##b");
    is_whole("a##b##", "a##b##");
    is_whole("a##\\n\\n##b", "a##\n\n##b");
    is_whole("a####b", "a####b");
    is_whole("##", "##");
    is_whole("", "");
}

TEST(only_the_last_text_of_the_user_is_cut)
{
    CHECK(parse(TSRI_API_CHAT,
                "{\"documents\":[\"Zero.\"],\"messages\":["
                "{\"role\":\"system\",\"content\":\"a##b##c\"},"
                "{\"role\":\"user\",\"content\":\"Read: ## One. ## Why?\"},"
                "{\"role\":\"assistant\",\"content\":\"## So.##x\"},"
                "{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"text\":\"Two.\"},"
                "{\"type\":\"text\",\"text\":\"And ## Three. ## what?\"}]}]}"));
    CHECK_INT(q.n_messages, 4);
    CHECK_STR(q.messages[0].text, "a##b##c");
    CHECK_STR(q.messages[1].text, "Read: ## One. ## Why?");
    CHECK_STR(q.messages[2].text, "## So.##x");
    CHECK_STR(q.messages[3].text, "And\n\nwhat?");
    CHECK_INT(q.n_listed, 1);
    CHECK_INT(q.messages[1].n_documents, 0);
    CHECK_INT(q.messages[3].n_documents, 2);
    CHECK(q.messages[3].documents == q.documents + 1);
    check_document(1, "Two.");
    check_document(2, "Three.");
    CHECK(parse(TSRI_API_CHAT, "{\"messages\":[{\"role\":\"system\",\"content\":\"a##b##c\"}]}"));
    CHECK_INT(q.n_documents, 0);
}

TEST(blanks_around_a_separator_do_not_count)
{
    separator = " # # ";
    CHECK(parse(TSRI_API_COMPLETIONS, "{\"prompt\":\"S# #One.\\n# #\\nWhy?\"}"));
    CHECK_INT(q.n_messages, 2);
    CHECK_STR(q.messages[1].text, "Why?");
    CHECK_INT(q.n_documents, 1);
    check_document(0, "One.");
    separator = "\n\n";
    CHECK(parse(TSRI_API_COMPLETIONS, "{\"prompt\":\"S\\n\\nOne.\\n\\nWhy?\"}"));
    CHECK_INT(q.n_documents, 1);
    CHECK(parse(TSRI_API_COMPLETIONS, "{\"prompt\":\"One\\nquestion\"}"));
    CHECK_INT(q.n_documents, 0);
    separator = "##";
}

/* One more than there may be. */
TEST(a_text_of_too_many_documents_stays_as_it_is)
{
    for (size_t more = 0; more < 2; more++) {
        size_t n = TSRI_DOCUMENTS_MAX + more, room = 3 * n + 100;
        char *body = malloc(room);
        CHECK(body != NULL);
        size_t at = (size_t)sprintf(body, "{\"prompt\":\"S");
        for (size_t i = 0; i < n; i++, at += 3)
            memcpy(body + at, "##d", 4);
        memcpy(body + at, "##Why?\"}", 9);
        CHECK(parse(TSRI_API_COMPLETIONS, body));
        CHECK_INT(q.n_documents, more ? 0 : TSRI_DOCUMENTS_MAX);
        free(body);
    }
}

/* What would take a minute if a line were looked at again for each of its separators. */
TEST(a_line_of_many_megabytes_is_looked_at_once)
{
    enum { BYTES = 8 << 20 };
    static const char *const begins[] = {"#", "# x ", "x ", "    ", "## "};
    char *body = malloc(BYTES + 100);
    CHECK(body != NULL);
    for (size_t i = 0; i < 2 * (sizeof begins / sizeof *begins); i++) {
        size_t at = (size_t)sprintf(body, "{\"prompt\":\"S\\n%s", begins[i / 2]);
        memset(body + at, i % 2 ? ' ' : '#', BYTES);
        for (size_t k = 0; k < 400; k++)
            memcpy(body + BYTES - 4 * k, "##a ", 4);
        sprintf(body + BYTES + 4, "##Why?\"}");
        CHECK(parse(TSRI_API_COMPLETIONS, body));
        CHECK_INT(q.n_documents, i % 2 ? 400 : 0); /* of marks alone a part is empty */
    }
    free(body);
}

int main(void)
{
    RUN(documents_are_between_separators);
    RUN(a_plain_prompt_keeps_its_order);
    RUN(headings_are_no_separators);
    RUN(a_text_without_documents_stays_as_it_is);
    RUN(only_the_last_text_of_the_user_is_cut);
    RUN(blanks_around_a_separator_do_not_count);
    RUN(a_text_of_too_many_documents_stays_as_it_is);
    RUN(a_line_of_many_megabytes_is_looked_at_once);
    tsri_api_fini(&q);
    return test_end();
}
