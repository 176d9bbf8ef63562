/* test_top_report.c - two samples of a server as a screen and as JSON: rates are those between them,
 * the screen fits its rows and columns, and a server that was started again has no rates at first. */
#include "cli/json.h"
#include "cli/top.h"

#include "support/test.h"

static struct tsri_top_sample before, now;
static struct tsri_cli cli;
static char *text;

static void tenant(struct tsri_top_sample *s, const char *name, double asked, double found,
                   double out)
{
    struct tsri_top_tenant *t = &s->tenants[s->n_tenants++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->n = (struct tsri_top_numbers){
        .asked = asked, .found = found, .lookups = asked / 10, .out = out};
    t->n_tiers = 1;
    t->tiers[0] = (struct tsri_top_tier){"host", 3, 192, 50, 100};
    s->all.n.asked += asked;
    s->all.n.found += found;
    s->all.n.lookups += asked / 10;
    s->all.n.out += out;
    s->all.n_tiers = 1;
    s->all.tiers[0] = t->tiers[0];
}

/* Two seconds in which `busy` has asked for 200 tokens and found 150, and `idle` nothing. */
static struct tsri_top_report two_samples(void)
{
    before = now = (struct tsri_top_sample){.version = "1.2"};
    before.at_s = 10, before.uptime = 5;
    now.at_s = 12, now.uptime = 7;
    tenant(&before, "idle", 1000, 100, 0);
    tenant(&before, "busy", 100, 50, 4096);
    tenant(&now, "idle", 1000, 100, 0);
    tenant(&now, "busy", 300, 200, 8192);
    return (struct tsri_top_report){.where = "here", .before = &before, .now = &now};
}

static const char *print(const struct tsri_top_report *r, uint32_t rows, uint32_t columns,
                         bool live)
{
    size_t n;
    free(text);
    FILE *out = open_memstream(&text, &n);
    CHECK(out);
    tsri_top_report_print(r, &cli, out, rows, columns, live);
    fclose(out);
    return text;
}

static json_t *as_json(const struct tsri_top_report *r)
{
    size_t n;
    free(text);
    FILE *out = open_memstream(&text, &n);
    CHECK(out);
    tsri_top_report_json(r, out);
    fclose(out);
    CHECK(n > 0 && text[n - 1] == '\n' && !memchr(text, '\n', n - 1));
    json_t *v = json_loads(text, 0, NULL);
    CHECK(v);
    return v;
}

TEST(rates_are_those_between_the_samples)
{
    struct tsri_top_report r = two_samples();
    CHECK(tsri_top_same_life(&before, &now));
    print(&r, 0, 0, false);
    CHECK_HAS(text, "75.0 % now, 23.1 % since the start");
    CHECK_HAS(text, "100/s asked, 75/s found");
    CHECK_HAS(text, "2.0 KiB/s out");
    CHECK_HAS(text, "[##########..........]  50 %");
    CHECK_HAS(text, " 3      192  [#");
    CHECK(strstr(text, "\nbusy ") < strstr(text, "\nidle ")); /* the busiest first */
    json_t *v = as_json(&r);
    CHECK(json_number_value(json_object_get(v, "hit_rate")) == 0.75);
    CHECK(json_number_value(json_object_get(v, "tokens_asked_per_second")) == 100);
    CHECK(json_is_null(
        json_object_get(json_array_get(json_object_get(v, "tenants"), 1), "hit_rate")));
    json_decref(v);
}

TEST(a_server_that_was_started_again_has_no_rates_at_first)
{
    struct tsri_top_report r = two_samples();
    now.uptime = 1;
    CHECK(!tsri_top_same_life(&before, &now));
    now.uptime = 7, now.all.n.lookups = 0;
    CHECK(!tsri_top_same_life(&before, &now));
    r.before = NULL;
    CHECK_HAS(print(&r, 0, 0, false), "hit rate  - now");
    CHECK_HAS(text, "0/s asked");
}

TEST(a_server_that_is_away_leaves_its_last_numbers)
{
    struct tsri_top_report r = two_samples();
    r.problem = "no server \"x\"";
    CHECK_HAS(print(&r, 0, 0, false), "no server \"x\"; retrying\nthe numbers below");
    CHECK_HAS(text, "busy");
    json_t *v = as_json(&r);
    CHECK_STR(json_string_value(json_object_get(v, "error")), "no server \"x\"");
    json_decref(v);
    r.now = r.before = NULL;
    CHECK_HAS(print(&r, 24, 80, false), "no server \"x\"; retrying\n");
    r.problem = NULL;
    v = as_json(&r);
    CHECK(json_object_get(v, "error"));
    json_decref(v);
}

/* Lines, and the columns of the longest one. */
static uint32_t lines_of(const char *s, uint32_t *widest)
{
    uint32_t n = 1, width = 0;
    *widest = 0;
    for (; *s; s++) {
        width += *s >= ' ';
        if (*s == '\n') n++, width = 0;
        if (width > *widest) *widest = width;
    }
    return n;
}

TEST(a_screen_is_never_larger_than_the_terminal)
{
    struct tsri_top_report r = two_samples();
    for (int i = 0; i < 40; i++) {
        char name[32];
        snprintf(name, sizeof name, "tenant-%d", i);
        tenant(&now, name, 10, 5, 0);
    }
    now.n_slow = TSRI_TOP_SLOW_MAX;
    for (uint32_t i = 0; i < now.n_slow; i++)
        now.slow[i] = (struct tsri_top_slow){"store", "busy", 0.5, 3};
    for (uint32_t rows = 1; rows < 90; rows++)
        for (uint32_t columns = 1; columns < 130; columns += 9) {
            uint32_t widest, n = lines_of(print(&r, rows, columns, false), &widest);
            CHECK(n <= rows + 1 && widest <= columns); /* the last line ends too */
        }
    print(&r, 34, 100, false);
    CHECK_HAS(text, "and 32 more"); /* tenants and calls share what is left */
    CHECK_HAS(text, "and 6 more");
    CHECK_HAS(text, "slowest calls");
}

TEST(a_live_screen_overwrites_the_one_before)
{
    struct tsri_top_report r = two_samples();
    print(&r, 30, 100, true);
    CHECK(strncmp(text, "\033[H", 3) == 0);
    CHECK_HAS(text, "\033[K\n");
    CHECK_HAS(text, "\033[J");
    CHECK_HAS(text, "\033[30;1Hq quits");
    CHECK(strstr(text, "\n\n") == NULL);
}

TEST(answers_of_a_serving_model_have_a_line)
{
    struct tsri_top_report r = two_samples();
    before.has_serve = now.has_serve = true;
    before.serve = (struct tsri_top_serve){.prompt = 100};
    now.serve = (struct tsri_top_serve){.requests = 3, .writing = 2, .prompt = 2100, .answer = 50};
    CHECK_HAS(print(&r, 0, 0, false),
              "0 queued, 0 reading, 2 writing; 1.00K/s tokens read, 25/s written");
    json_t *v = as_json(&r);
    CHECK(json_number_value(json_object_get(json_object_get(v, "serve"), "writing")) == 2);
    json_decref(v);
}

int main(void)
{
    RUN(rates_are_those_between_the_samples);
    RUN(a_server_that_was_started_again_has_no_rates_at_first);
    RUN(a_server_that_is_away_leaves_its_last_numbers);
    RUN(a_screen_is_never_larger_than_the_terminal);
    RUN(a_live_screen_overwrites_the_one_before);
    RUN(answers_of_a_serving_model_have_a_line);
    free(text);
    return test_end();
}
