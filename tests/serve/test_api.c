/* test_api.c - bodies of requests: what is understood, what is ignored, what is refused and how. */
#include "serve/api.h"

#include "support/test.h"

static struct tsri_api_request q;
static struct tsri_refusal no;

static bool parse(enum tsri_api api, const char *body)
{
    tsri_api_fini(&q);
    return tsri_api_parse(&q, api, body, strlen(body), "", &no);
}

static bool chat(const char *rest)
{
    char body[1024];
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"why\"}]%s%s}",
             *rest ? "," : "", rest);
    return parse(TSRI_API_CHAT, body);
}

TEST(a_request_has_defaults)
{
    CHECK(chat(""));
    CHECK_INT(q.n_messages, 1);
    CHECK_STR(q.messages[0].text, "why");
    CHECK_STR(q.messages[0].role, "user");
    CHECK_INT(q.max_tokens, 0);
    CHECK(q.temperature < 0 && q.top_p == 1 && !q.stream && !q.logprobs && !q.has_seed);
    CHECK(!q.ignore_end);
    CHECK(q.mode == TSRI_MODE_AUTO && q.search && q.model == NULL);
}

TEST(null_is_as_good_as_absent_and_what_nobody_knows_is_ignored)
{
    CHECK(chat("\"max_tokens\":null,\"stop\":null,\"stream\":null,\"logprobs\":null,\"n\":null,"
               "\"tessera\":null,\"documents\":null,\"user\":\"me\",\"xyz\":{},\"store\":false,"
               "\"tools\":[],\"logit_bias\":{},\"frequency_penalty\":0,\"repetition_penalty\":1.0,"
               "\"n\":1"));
}

TEST(progress_is_told_where_it_is_asked_for)
{
    CHECK(chat(""));
    CHECK(!q.progress);
    CHECK(chat("\"tessera\":{\"progress\":true},\"stream\":true"));
    CHECK(q.progress);
    CHECK(!chat("\"tessera\":{\"progress\":1}"));
    CHECK_STR(no.param, "progress");
}

TEST(without_the_cache_an_answer_is_exact)
{
    CHECK(chat("\"tessera\":{\"cache\":false}"));
    CHECK(q.fresh && q.mode == TSRI_MODE_EXACT);
    CHECK(chat("\"tessera\":{\"cache\":false,\"mode\":\"fast\"}"));
    CHECK(q.fresh && q.mode == TSRI_MODE_EXACT);
    CHECK(chat("\"tessera\":{\"cache\":true,\"mode\":\"fast\"}"));
    CHECK(!q.fresh && q.mode == TSRI_MODE_FAST);
    CHECK(!chat("\"tessera\":{\"cache\":1}"));
}

TEST(numbers_have_types_and_limits)
{
    CHECK(chat("\"temperature\":0.5,\"top_p\":0.9,\"seed\":-1,\"max_tokens\":7"));
    CHECK(q.temperature == 0.5 && q.top_p == 0.9 && q.has_seed);
    CHECK_INT(q.max_tokens, 7);
    CHECK(chat("\"max_tokens\":7,\"max_completion_tokens\":9"));
    CHECK_INT(q.max_tokens, 9);
    CHECK(chat("\"ignore_eos\":true"));
    CHECK(q.ignore_end);
    static const char *const bad[][2] = {
        {"\"temperature\":3", "temperature"},
        {"\"temperature\":\"1\"", "temperature"},
        {"\"temperature\":-0.1", "temperature"},
        {"\"top_p\":1.1", "top_p"},
        {"\"max_tokens\":0", "max_tokens"},
        {"\"max_tokens\":1.5", "max_tokens"},
        {"\"seed\":\"x\"", "seed"},
        {"\"n\":2", "n"},
        {"\"stream\":1", "stream"},
        {"\"ignore_eos\":1", "ignore_eos"},
        {"\"logprobs\":3", "logprobs"},
        {"\"top_logprobs\":2", "top_logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
        {"\"model\":1", "model"},
        {"\"documents\":{}", "documents"},
        {"\"documents\":[1]", "documents"},
        {"\"documents\":[\" \"]", "documents"},
        {"\"stop\":1", "stop"},
        {"\"stop\":[1]", "stop"},
        {"\"tools\":[{}]", "tools"},
        {"\"presence_penalty\":1", "presence_penalty"},
        {"\"repetition_penalty\":1.1", "repetition_penalty"},
        {"\"repetition_penalty\":\"1\"", "repetition_penalty"},
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format"},
        {"\"stream_options\":{}", "stream_options"},
        {"\"tessera\":{\"mode\":\"best\"}", "tessera.mode"},
        {"\"tessera\":{\"order\":\"any\"}", "tessera.order"},
        {"\"tessera\":{\"order\":1}", "tessera.order"},
        {"\"tessera\":1", "tessera"},
        {"\"logit_bias\":{\"1\":2}", "logit_bias"},
    };
    for (size_t i = 0; i < TSRI_COUNT(bad); i++) {
        CHECK(!chat(bad[i][0]));
        CHECK_INT(no.status, 400);
        CHECK_STR(no.param, bad[i][1]);
        CHECK_STR(no.type, "invalid_request_error");
        CHECK(no.message[0]);
    }
}

TEST(contents_are_strings_or_parts)
{
    CHECK(parse(TSRI_API_CHAT,
                "{\"messages\":[{\"role\":\"developer\",\"content\":\"s\"},{\"role\":\"user\","
                "\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"document\",\"title\":"
                "\"n\",\"source\":{\"type\":\"text\",\"data\":\" d\\r\\ne \"}},{\"type\":\"text\","
                "\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":null}]}"));
    CHECK_INT(q.n_messages, 3);
    CHECK_STR(q.messages[0].role, "system");
    CHECK_STR(q.messages[1].text, "ab");
    CHECK_INT(q.messages[1].n_documents, 1);
    CHECK_STR(q.messages[1].documents[0].name, "n");
    CHECK_STR(q.messages[1].documents[0].text, "d\ne"); /* as the same text of a file */
    CHECK_STR(q.messages[2].text, "");
    const char *system_document = "{\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":"
                                  "\"document\",\"text\":\"d\"}]}]}";
    const char *const bad[] = {
        "{}",
        "{\"messages\":[]}",
        "{\"messages\":{}}",
        "{\"messages\":[1]}",
        "{\"messages\":[{\"role\":\"user\"}]}",
        "{\"messages\":[{\"content\":\"a\"}]}",
        "{\"messages\":[{\"role\":\"tool\",\"content\":\"a\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\"}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[1]}]}",
        system_document,
    };
    for (size_t i = 0; i < TSRI_COUNT(bad); i++) {
        CHECK(!parse(TSRI_API_CHAT, bad[i]));
        CHECK_STR(no.param, "messages");
    }
}

TEST(documents_have_names_that_are_one_line)
{
    CHECK(chat("\"documents\":[\"a\",{\"name\":\"n\",\"text\":\"t\"},{\"title\":\"x\\ny\","
               "\"content\":\"c\"}]"));
    CHECK_INT(q.n_listed, 3);
    CHECK_STR(q.documents[0].name, "");
    CHECK_STR(q.documents[1].name, "n");
    CHECK_STR(q.documents[2].name, "");
    CHECK_STR(q.documents[2].text, "c");
}

/* A document in pieces has its name before each of them. */
TEST(documents_have_short_names)
{
    char name[TSRI_API_NAME_BYTES_MAX + 2], body[4096];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    for (int longer = 1; longer >= 0; longer--) {
        name[TSRI_API_NAME_BYTES_MAX] = longer ? 'n' : 0;
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],"
                 "\"documents\":[{\"name\":\"%s\",\"text\":\"t\"}]}",
                 name);
        CHECK(parse(TSRI_API_CHAT, body) == !longer);
        if (longer) CHECK_STR(no.param, "documents");
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\","
                 "\"title\":\"%s\",\"source\":{\"data\":\"d\"}}]}]}",
                 name);
        CHECK(parse(TSRI_API_CHAT, body) == !longer);
        if (longer) CHECK_STR(no.param, "messages");
    }
}

/* Three bytes of a body can be a hundred of memory. */
TEST(a_body_has_a_limit_of_values)
{
    static const char head[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"x\":";
    size_t room = 3 * (size_t)TSRI_API_VALUES_MAX + 1024;
    char *body = malloc(room);
    CHECK(body != NULL);
    size_t n = (size_t)snprintf(body, room, "%s[[]", head);
    for (size_t i = 0; i < TSRI_API_VALUES_MAX / 2; i++, n += 3)
        memcpy(body + n, ",[]", 4);
    memcpy(body + n, "]}", 3);
    CHECK(!parse(TSRI_API_CHAT, body));
    CHECK_INT(no.status, 413);
    /* What is inside of a string counts as one. */
    n = (size_t)snprintf(body, room, "%s\"\\\"", head);
    memset(body + n, ',', TSRI_API_VALUES_MAX + 8);
    memcpy(body + n + TSRI_API_VALUES_MAX + 8, "\"}", 3);
    CHECK(parse(TSRI_API_CHAT, body));
    free(body);
}

TEST(a_prompt_is_text_or_tokens)
{
    CHECK(parse(TSRI_API_COMPLETIONS, "{\"prompt\":\"p\",\"logprobs\":2}"));
    CHECK_STR(q.messages[0].text, "p");
    CHECK(q.logprobs && q.n_top == 2);
    CHECK(parse(TSRI_API_COMPLETIONS, "{\"prompt\":[\"p\"]}"));
    CHECK_STR(q.messages[0].text, "p");
    CHECK(parse(TSRI_API_COMPLETIONS, "{\"prompt\":[1,2]}"));
    CHECK_INT(q.n_tokens, 2);
    CHECK(parse(TSRI_API_COMPLETIONS, "{\"prompt\":[[1,2]]}"));
    CHECK_INT(q.n_tokens, 2);
    static const char *const bad[] = {"{}",
                                      "{\"prompt\":\"\"}",
                                      "{\"prompt\":[]}",
                                      "{\"prompt\":[\"a\",\"b\"]}",
                                      "{\"prompt\":[1,\"b\"]}",
                                      "{\"prompt\":[-1]}",
                                      "{\"prompt\":[[1],[2]]}"};
    for (size_t i = 0; i < TSRI_COUNT(bad); i++) {
        CHECK(!parse(TSRI_API_COMPLETIONS, bad[i]));
        CHECK_STR(no.param, "prompt");
    }
    CHECK(!parse(TSRI_API_COMPLETIONS, "{\"prompt\":\"p\",\"echo\":true}"));
    CHECK_STR(no.param, "echo");
}

TEST(what_is_no_json_is_told_with_its_place)
{
    CHECK(!parse(TSRI_API_CHAT, "{\"messages\":"));
    CHECK_INT(no.status, 400);
    CHECK(strstr(no.message, "line 1") != NULL);
    CHECK(!parse(TSRI_API_CHAT, "[]"));
    CHECK(!parse(TSRI_API_CHAT, ""));
    CHECK(!parse(TSRI_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\\u0000\"}]}"));
}

TEST(errors_have_the_form_of_openai)
{
    tsri_refuse(&no, 429, "queue_full", NULL, "line\n%s", "two");
    json_t *v = tsri_refusal_json(&no), *e = json_object_get(v, "error");
    CHECK_STR(json_string_value(json_object_get(e, "type")), "rate_limit_error");
    CHECK_STR(json_string_value(json_object_get(e, "code")), "queue_full");
    CHECK_STR(json_string_value(json_object_get(e, "message")), "line?two");
    CHECK(json_is_null(json_object_get(e, "param")));
    json_decref(v);
}

int main(void)
{
    RUN(a_request_has_defaults);
    RUN(null_is_as_good_as_absent_and_what_nobody_knows_is_ignored);
    RUN(progress_is_told_where_it_is_asked_for);
    RUN(without_the_cache_an_answer_is_exact);
    RUN(numbers_have_types_and_limits);
    RUN(contents_are_strings_or_parts);
    RUN(documents_have_names_that_are_one_line);
    RUN(documents_have_short_names);
    RUN(a_body_has_a_limit_of_values);
    RUN(a_prompt_is_text_or_tokens);
    RUN(what_is_no_json_is_told_with_its_place);
    RUN(errors_have_the_form_of_openai);
    tsri_api_fini(&q);
    return test_end();
}
