/* test_confdoc.c - the documents name every option and every foreign key, and mandoc takes the man
 * page. */
#include "config/config.h"
#include "support/test.h"

#include <unistd.h>

/* The document as text, to be freed. */
static char *text_of(void (*print)(FILE *))
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    CHECK(f);
    print(f);
    CHECK_INT(fclose(f), 0);
    return text;
}

TEST(the_markdown_page_has_a_row_for_every_option_and_key)
{
    char *text = text_of(tsri_config_doc_markdown);
    char row[300];
    for (size_t i = 0; i < tsri_option_count(); i++) {
        const struct tsri_option *o = tsri_option_at(i);
        snprintf(row, sizeof row, "\n| `%s` | %s | ", o->name, tsri_option_type_text(o));
        CHECK_HAS(text, row);
        CHECK_HAS(text, o->help);
    }
    for (size_t i = 0; i < tsri_compat_count(); i++) {
        const struct tsri_compat *c = tsri_compat_at(i);
        snprintf(row, sizeof row, "\n| `%s` | %s | ", c->key, tsri_compat_owner_text(c));
        CHECK_HAS(text, row);
    }
    CHECK_HAS(text, "| `host_size` | size | `1G` | 1M to 16T | host memory for KV |\n");
    CHECK_HAS(text, "| `separator` | string | empty | up to 255 bytes | ");
    CHECK_HAS(text, "| `max_local_cpu_size` | LMCache | `host_size` | ");
    CHECK_HAS(text, "| `enable_pd` | LMCache | ignored | ");
    free(text);
}

TEST(every_table_row_of_the_markdown_page_has_its_columns)
{
    char *text = text_of(tsri_config_doc_markdown);
    unsigned width = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned bars = 0;
        for (char *c = line; *c; c++)
            bars += *c == '|';
        if (line[0] != '|') bars = 0;
        if (width && bars) CHECK_INT(bars, width);
        width = bars;
    }
    free(text);
}

TEST(the_man_page_has_an_item_for_every_option_and_key)
{
    char *text = text_of(tsri_config_doc_man);
    char item[300];
    for (size_t i = 0; i < tsri_option_count(); i++) {
        snprintf(item, sizeof item, "\n.It Cm %s\n", tsri_option_at(i)->name);
        CHECK_HAS(text, item);
    }
    for (size_t i = 0; i < tsri_compat_count(); i++) {
        snprintf(item, sizeof item, "\n.It Cm %s Pq ", tsri_compat_at(i)->key);
        CHECK_HAS(text, item);
    }
    free(text);
}

TEST(mandoc_finds_nothing_wrong_with_the_man_page)
{
    if (system("command -v mandoc >/dev/null") != 0) SKIP("no mandoc");
    FILE *p = popen("mandoc -T lint -W warning", "w");
    CHECK(p);
    tsri_config_doc_man(p);
    CHECK_INT(pclose(p), 0);
}

int main(void)
{
    RUN(the_markdown_page_has_a_row_for_every_option_and_key);
    RUN(every_table_row_of_the_markdown_page_has_its_columns);
    RUN(the_man_page_has_an_item_for_every_option_and_key);
    RUN(mandoc_finds_nothing_wrong_with_the_man_page);
    return test_end();
}
