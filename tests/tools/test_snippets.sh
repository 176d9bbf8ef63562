#!/usr/bin/env bash
# The snippets of Python in the guides, against a running `tessera serve`, and that server as a guide starts it.
# The kit forgets variables of ours.
python=${TESSERA_DEPS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tessera}/clients/bin/python
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/../serve/serve_kit.sh"
serve_needs
serve_start "$tmp_all/server" || exit 1

blocks() { python3 tests/tools/doc_blocks.py "$@"; }

# snippet N LINE: the N-th block of Python of the guide to RAG and a line that calls it, against a server with a small
# model. Only the name of the model, the length of the answer and $place are replaced.
snippet() {
    [ -x "$python" ] || { skip 'no clients here: tools/setup --clients'; return; }
    {
        blocks run python docs/guides/rag.md | awk -v n="$1" '/^#---/ {on = $2 == n; next} on' |
            sed "s|\"MODEL\"|\"m\"|; s|max_tokens=64|max_tokens=4|; $place"
        echo "$2"
    } >"$tmp/snippet.py"
    [ "$(awk 'NF' "$tmp/snippet.py" | wc -l)" -le 14 ] || fail 'longer than it says' || return
    HOME=$tmp/home "$python" "$tmp/snippet.py" >"$tmp/out" 2>&1 || fail "$(tail -5 "$tmp/out")"
}
# vLLM is at port 8000 and has no key; here the server of the test stands for it.
of_vllm() { place="s|http://127.0.0.1:8000|$url|; s|api_key=\"none\"|api_key=\"$token\"|"; }
# Of tessera serve, only the port is another one. The key is where the snippet looks for it.
of_serve() {
    place="s|http://127.0.0.1:7465/|$url/|"
    mkdir -p "$tmp/home/.cache"
    ln -s "$TESSERA_DEPS_DIR" "$tmp/home/.cache/tessera"
}
langchain_answers() {
    of_vllm
    snippet 0 'from langchain_core.documents import Document
assert answer("why", [Document(page_content="The ferry sails at nine."), Document(page_content="Bread is baked at four.")]) is not None'
}
llamaindex_answers() {
    of_vllm
    snippet 1 'from llama_index.core.schema import TextNode
assert answer("why", [TextNode(text="The ferry sails at nine."), TextNode(text="Bread is baked at four.")]) is not None'
}
openai_answers() {
    of_serve
    snippet 2 'assert answer("why", ["The ferry sails at nine.", "Bread is baked at four."]) is not None'
}

# The command of the guide as it is, but for the port.
open_webui_has_a_server() {
    local line i pid
    line=$(blocks run sh docs/guides/open-webui.md | grep '^tessera serve')
    "$B/tests/model/make_gguf" "$tmp/m.gguf" llama >/dev/null || return
    # shellcheck disable=SC2086  # words of a command
    TESSERA_DEPS_DIR=$tmp/deps TESSERA_MODEL=$tmp/m.gguf "$tessera" ${line#tessera } --port=0 --threads=1 >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    for ((i = 0; i < 1200; i++)); do
        [ -s "$tmp/out" ] && break
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    kill -INT "$pid" 2>/dev/null
    wait "$pid"
    out=$(cat "$tmp/out")
    [[ $(json 'x["token_file"]') == */serve.token ]] || fail "$out $(cat "$tmp/err")"
}

run langchain_answers
run llamaindex_answers
run openai_answers
run open_webui_has_a_server
serve_end
test_end
