"""Clients that people have, against a running `tessera serve`: the openai package, LangChain and
LlamaIndex. `clients.py WHICH URL TOKEN` exits with 77 where the package is not installed."""

import sys

which, url, token = sys.argv[1:]
base = url + "/v1"
question = [{"role": "user", "content": "why is the sky blue"}]


def openai() -> None:
    from openai import AuthenticationError, BadRequestError, NotFoundError, OpenAI

    client = OpenAI(base_url=base, api_key=token, max_retries=0, timeout=300)
    model = client.models.list().data[0].id
    whole = client.chat.completions.create(
        model=model, messages=question, max_tokens=8, logprobs=True, top_logprobs=2
    )
    text = whole.choices[0].message.content
    assert whole.usage.completion_tokens == 8 and whole.choices[0].finish_reason == "length"
    assert len(whole.choices[0].logprobs.content) == 8
    parts, usage = "", None
    for chunk in client.chat.completions.create(
        model=model,
        messages=question,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    ):
        usage = chunk.usage or usage
        parts += "".join(c.delta.content or "" for c in chunk.choices)
    assert parts == text, (parts, text)
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    documents = [{"name": "a.md", "text": "The ferry sails at nine. " * 40}]
    for _ in range(2):
        known = client.chat.completions.create(
            model=model,
            messages=question,
            max_tokens=2,
            extra_body={"documents": documents, "tessera": {"mode": "fast"}},
        )
    assert known.usage.prompt_tokens_details.cached_tokens > 100, known.usage
    assert known.tessera["documents"][0]["name"] == "a.md"
    plain = client.completions.create(model=model, prompt="once", max_tokens=4, logprobs=1)
    assert len(plain.choices[0].logprobs.tokens) == 4
    for error, call in (
        (NotFoundError, lambda: client.chat.completions.create(model="other", messages=question)),
        (BadRequestError, lambda: client.embeddings.create(model=model, input="x")),
        (
            AuthenticationError,
            lambda: OpenAI(base_url=base, api_key="wrong", max_retries=0).models.list(),
        ),
    ):
        try:
            call()
        except error as e:
            assert e.body["message"], e
        else:
            raise AssertionError(f"no {error.__name__}")


def langchain() -> None:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(
        base_url=base, api_key=token, model="m", max_tokens=6, temperature=0, max_retries=0
    )
    whole = chat.invoke("why").content
    assert "".join(c.content for c in chat.stream("why")) == whole
    assert chat.invoke("why").usage_metadata["output_tokens"] == 6


def llamaindex() -> None:
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(
        api_base=base,
        api_key=token,
        model="m",
        is_chat_model=True,
        max_tokens=6,
        temperature=0,
        max_retries=0,
    )
    whole = llm.complete("why").text
    assert "".join(c.delta or "" for c in llm.stream_complete("why")) == whole


try:
    {"openai": openai, "langchain": langchain, "llamaindex": llamaindex}[which]()
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)
