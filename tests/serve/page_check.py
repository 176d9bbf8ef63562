"""page_check.py - looks at the page of `tessera serve` as a person would, in a headless browser, over a
server made up here that answers as the real one does: with texts that try to be markup, slow ones,
errors, and none at all. `real` looks at one that a real server shows.

  page_check.py real PAGE_FILE STORE
  page_check.py chat | why | markdown | kept | room | colours | compare | reading | stop | token | gone | bare | pictures FOLDER"""
import http.server, json, pathlib, queue, re, sys, threading, time

top = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(top / "tests/support"))
from browser import Browser

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
TOKEN = "0123456789abcdef0123456789abcdef"
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
          "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'")
FILES = {"/": ("page.html", "text/html"), "/page.js": ("page.js", "text/javascript"), "/page.css": ("page.css", "text/css")}
SIZES = ((1280, 800), (768, 1024), (390, 844), (320, 568), (740, 340), (320, 256))  # the last one: 1280 x 1024 at 400 %
WORDS = ["The ", "ferry ", "sails ", "at ", "06:40, ", "every ", "day ", "but ", "Sunday."]
CODE = HOSTILE + "\n    <b>**as** `it` is</b>" + 30 * " and long"
MARKDOWN = ("Set **bold <b>x</b> `in` it** and `code <i>y</i>`, " + HOSTILE + ", not 2**3**4, a * b or `open.\n- `-n`, `a` and `b`, **c** and **d**: a list\n| a | b |\n\n"
            "   ```html\n" + "".join("   %s\n" % line for line in CODE.split("\n")) + "   ```\n\nThen:\n~~~\nopen ```\nto the end")
DOCUMENTS = [
    {"name": "harbor/ferry.md", "bytes": 42, "passage": 2, "passages": 5, "first_byte": 0, "text": "The ferry to Aldmouth sails at 06:40.\n" + HOSTILE},
    {"name": HOSTILE + ".txt", "bytes": 9, "passage": 1, "passages": 1, "first_byte": 0, "text": "Not on Sundays."}]


def about(full, mode, question=""):
    if "doubted" in question:  # by the gate
        return {**about(False, mode), "exact": True, "sure": 1, "trust": "exactly the answer of a full read",
                "tokens": {"exact": 38, "reused": 0, "recomputed": 1394, "new": 48}}
    if "nothing" in question:  # is found
        return {**about(True, mode), "documents": [], "documents_searched": "unsearched" not in question}
    tokens = {"exact": 0, "reused": 0, "recomputed": 0, "new": 1480} if full else {"exact": 38, "reused": 1310, "recomputed": 84, "new": 48}
    return {"mode": mode, "exact": full, "sure": 1 if full else 0.97,
            "trust": "exactly the answer of a full read" if full else "same answer as a full read: very likely",
            "tokens": tokens, "documents": DOCUMENTS, "documents_searched": True,
            "seconds": {"queued": 0, "first_token": 12.5 if full else 0.62, "full_read_estimate": None if full else 11.8, "total": 13}}


def progress(read, left=None, names=("ferry.md", "harbor.md", HOSTILE, "map.md")):
    return {"documents": list(names), "tokens_read": read, "tokens": 6642, "seconds_left": left}


class MadeUp(http.server.BaseHTTPRequestHandler):
    wants_token, asked, holds, dies = False, [], False, False
    steps = None  # a queue of what is told while the prompt is read, None last; None: one step
    documents = {"files": 74, "passages": 812, "bytes": 900000}

    def send(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def allowed(self):
        if not self.wants_token or self.headers.get("Authorization") == "Bearer " + TOKEN:
            return True
        self.send(401, "application/json", b'{"error":{"message":"wrong token"}}')
        return False

    def do_GET(self):
        if self.path in FILES:
            name, kind = FILES[self.path]
            self.send(200, kind + "; charset=utf-8", (top / "src/serve" / name).read_bytes())
        elif self.path == "/tessera/status" and self.allowed():
            self.send(200, "application/json", json.dumps(
                {"model": "qwen2.5-coder-0.5b", "version": "9.9.9", "context": 32768,
                 "documents": self.documents}).encode())

    def event(self, choices, **more):
        self.wfile.write(b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n")
        self.wfile.flush()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        MadeUp.asked.append(body)
        question = body["messages"][-1]["content"]
        if "refuse" in question:
            return self.send(400, "application/json", json.dumps({"error": {"message": "too long: " + HOSTILE}}).encode())
        full = body["tessera"]["mode"] == "exact"
        self.send(200, "text/event-stream", b"")
        if body["tessera"].get("progress"):
            for step in iter(self.steps.get if self.steps else iter([progress(0), None]).__next__, None):
                self.event([], tessera={"progress": step})
        self.event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        words = [HOSTILE + "\n"] + WORDS if "markup" in question else WORDS
        if "code" in question:
            words = [MARKDOWN[i:i + 3] for i in range(0, len(MARKDOWN), 3)]
        for i, word in enumerate(words):
            if self.dies and i == 3:
                return
            while self.holds and i == 3:  # until the page leaves: the writing fails then
                self.wfile.write(b": still here\n\n")
                time.sleep(0.05)
            self.event([{"index": 0, "delta": {"content": word}, "finish_reason": None}])
        self.event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        self.event([], usage={"prompt_tokens": 1480}, tessera=about(full, body["tessera"]["mode"], question))
        self.wfile.write(b"data: [DONE]\n\n")

    def handle(self):
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            pass  # stopped

    def log_message(self, *unused):
        pass


def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), MadeUp)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, "http://127.0.0.1:%d/" % server.server_port


def text(b, selector):
    return b.evaluate("[...document.querySelectorAll('%s')].map(e => e.textContent).join('|')" % selector)


def expect(got, wanted):
    assert wanted in got, "%r has no %r" % (got, wanted)


READY = "!document.getElementById('send').disabled"


def ask(b, question, waits=True):
    b.evaluate("document.getElementById('question').focus()")
    b.call("Input.insertText", text=question)
    b.press("Enter")
    b.wait("!" + READY + " || document.querySelectorAll('.answer').length > 0")
    if waits:
        b.wait(READY)


def opened(b, fragment=""):
    server, url = serve()
    b.open(url + fragment)
    b.wait("document.getElementById('about').textContent.includes('74 documents in 812 passages')")
    return server


def chat(b):
    opened(b)
    assert b.evaluate("document.activeElement.id") == "question", "the question has no focus"
    ask(b, "When does the ferry sail, with markup?")
    expect(text(b, ".said"), HOSTILE + "\nThe ferry sails at 06:40, every day but Sunday.")
    expect(text(b, ".question"), "with markup?")
    expect(text(b, ".numbers"), "first token after 0.62 s; a full read takes about 12 s, 19.0x faster; same answer as a full read: very likely")
    expect(text(b, ".legend"), "38 exact from the cache1,310 reused84 recomputed48 new")
    expect(b.evaluate("document.querySelector('.bar').getAttribute('aria-label')"), "Prompt of 1,480 tokens: 38 exact")
    expect(text(b, ".answer > details > summary"), "From 2 passages: harbor/ferry.md, " + HOSTILE)
    expect(text(b, "details details summary"), "harbor/ferry.md, passage 2 of 5")
    expect(text(b, "details pre"), "sails at 06:40.\n" + HOSTILE)
    assert b.evaluate("document.querySelectorAll('#talk img, #talk script').length") == 0, "text became markup"
    assert b.evaluate("document.activeElement.id") == "question", "the focus is lost"
    # The second turn has the first one before it.
    ask(b, "And on Sunday?")
    sent = MadeUp.asked[-1]["messages"]
    assert [m["role"] for m in sent] == ["user", "assistant", "user"], sent
    # A refusal says why, and the question is not lost.
    ask(b, "refuse this")
    expect(text(b, ".problem"), "too long: " + HOSTILE)
    assert b.evaluate("document.getElementById('question').value") == "refuse this"
    # A new chat forgets.
    b.evaluate("document.getElementById('clear').click()")
    assert b.evaluate("document.querySelectorAll('.answer').length") == 0
    b.evaluate("document.getElementById('question').value = ''")
    ask(b, "Again?")
    assert len(MadeUp.asked[-1]["messages"]) == 1
    assert not [s for s in b.said if "400" not in s], b.said
    # Nothing inline, nothing from elsewhere, and no wider than the window.
    assert b.evaluate("performance.getEntriesByType('resource').every(r => r.name.startsWith(location.origin))")
    b.dark(False)
    light = b.evaluate("getComputedStyle(document.body).backgroundColor")
    b.dark(True)
    assert light != b.evaluate("getComputedStyle(document.body).backgroundColor"), "dark is light"


# Whether there are documents behind an answer, and why they were not reused.
def why(b):
    opened(b)
    none, gate = "No document was found for this question: the model answered from what it has learned.", "; read in full, because"
    expect(text(b, "#empty"), "short prompts, and those whose answer might change by that, are read in full")
    ask(b, "When?")
    assert none not in text(b, ".answer") and gate not in text(b, ".answer"), text(b, ".answer")
    ask(b, "Is nothing found?")
    expect(text(b, ".answer:last-child"), none)
    ask(b, "Is nothing found, unsearched?")
    assert none not in text(b, ".answer:last-child")
    ask(b, "Is it doubted?")
    expect(text(b, ".answer:last-child .numbers"), "exactly the answer of a full read" + gate + " with reuse the answer might have been another one")


def markdown(b):
    opened(b)
    ask(b, "How, in code?")
    assert text(b, ".said strong") == "bold <b>x</b> in it|c|d", text(b, ".said strong")
    assert text(b, ".said p code") == "in|code <i>y</i>|-n|a|b", text(b, ".said p code")
    assert text(b, ".said pre code") == CODE + "|open ```\nto the end", text(b, ".said pre code")
    assert text(b, ".said .code span") == "html|"
    expect(text(b, ".said p"), "code <i>y</i>, " + HOSTILE + ", not 2**3**4, a * b or `open.\n- -n, a and b, c and d: a list\n| a | b ||Then:")
    assert b.evaluate("document.querySelectorAll('.said :is(img, script, i, b)').length") == 0, "text became markup"
    # Copied as it was written, or selected where there is no clipboard.
    b.evaluate("navigator.clipboard.writeText = async t => { window.copied = t; }; document.querySelector('.copy').click()")
    b.wait("document.querySelector('.copy').textContent === 'Copied'")
    assert b.evaluate("window.copied") == CODE and text(b, "#told") == "Copied"
    b.evaluate("navigator.clipboard.writeText = async t => { throw new Error(); }; [...document.querySelectorAll('.copy')].pop().click()")
    b.wait("[...document.querySelectorAll('.copy')].pop().textContent === 'Selected'")
    assert b.evaluate("getSelection().toString()") == "open ```\nto the end"
    fits(b, "code")
    # What is above does not change while more is written, and the model sees its own words again.
    MadeUp.holds = True
    ask(b, "And more code?", waits=False)
    b.wait("document.querySelectorAll('.said')[1].textContent.includes('Set')")
    MadeUp.holds = False
    kept = b.evaluate("(window.part = document.querySelectorAll('.said')[1].firstChild) !== null")
    b.wait(READY)
    assert kept and b.evaluate("part === document.querySelectorAll('.said')[1].firstChild")
    assert MadeUp.asked[-1]["messages"][1]["content"] == MARKDOWN
    assert b.said == [], b.said


def kept(b):
    def reload(answers):
        b.evaluate("window.old = true")
        b.call("Page.reload")
        b.wait("!window.old && document.getElementById('about').textContent.includes('74')")
        assert b.evaluate("document.querySelectorAll('.answer').length") == answers, "answers after a reload"

    MadeUp.wants_token = True
    opened(b, "#token=" + TOKEN)
    ask(b, "How, in code?")
    ask(b, "With doubted passages?")
    ask(b, "refuse this")
    before = text(b, ".question, .answer").replace("|refuse this|too long: " + HOSTILE, "")
    reload(2)
    assert text(b, ".question, .answer") == before and text(b, ".writing") == ""
    assert b.evaluate("document.getElementById('empty').hidden && document.getElementById('question').value") == "refuse this"
    store = "sessionStorage.getItem('tessera-serve-chat')"
    assert TOKEN not in b.evaluate(store), "a token is kept with the chat"
    # It goes on as if nothing had been: for the model, and for a comparison.
    b.evaluate("document.querySelectorAll('.compare')[1].click()")
    b.wait("document.querySelectorAll('.side').length === 3 && " + READY)
    assert [m["role"] for m in MadeUp.asked[-1]["messages"]] == ["user", "assistant", "user"]
    assert MadeUp.asked[-1]["messages"][1]["content"] == MARKDOWN
    # Left while it is written.
    MadeUp.holds = True
    b.evaluate("document.getElementById('question').value = ''")
    ask(b, "When does it sail?", waits=False)
    b.wait("[...document.querySelectorAll('.said')].pop().textContent === 'The ferry sails '")
    assert len(MadeUp.asked[-1]["messages"]) == 5
    reload(3)
    MadeUp.holds = False
    expect(text(b, ".answer:last-child"), "The ferry sails The answer was cut off.")
    # The oldest go first, and it says so.
    b.evaluate("for (const t of turns) t.asked += ' and'.repeat(100000); keep()")
    assert 400000 < b.evaluate(store + ".length") <= 1000000
    reload(2)
    expect(text(b, ".cut"), "earlier questions are gone, for the model, too")
    # A new chat forgets, and what cannot be read is forgotten.
    b.evaluate("document.getElementById('clear').click()")
    assert b.evaluate(store) is None and text(b, ".cut") == ""
    reload(0)
    assert not b.evaluate("document.getElementById('empty').hidden")
    b.evaluate("sessionStorage.setItem('tessera-serve-chat', '{\"turns\":7}'); removeEventListener('pagehide', keep)")
    reload(0)
    assert b.evaluate(store) is None
    ask(b, "Again?")
    assert len(MadeUp.asked[-1]["messages"]) == 1
    assert not [s for s in b.said if "400" not in s], b.said


# Nothing is cut off or scrolls but the chat, which keeps much of the window, and the buttons are in one row.
def fits(b, what):
    for width, height in SIZES:
        b.size(width, height)
        at = "%s, %d x %d: " % (what, width, height)
        page, main = (b.evaluate("(e => [e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight, e.clientHeight])(%s)" % e)
                      for e in ("document.documentElement", "document.querySelector('main')"))
        assert page[0] <= 0, at + "the page is %d too wide" % page[0]
        assert page[1] <= 0, at + "the page is %d too high" % page[1]
        assert main[0] <= 0, at + "the chat is %d too wide" % main[0]
        assert main[2] >= 0.4 * height, at + "%d pixels for the chat" % main[2]
        rows = b.evaluate("""[...document.querySelectorAll('#ask select, #ask button')].map(e => e.getBoundingClientRect())
            .filter(r => r.width).map(r => [Math.round(r.top + r.height / 2), r.right, r.bottom])""")
        assert max(r[0] for r in rows) - min(r[0] for r in rows) <= 12, at + "buttons in two rows"
        assert all(r[1] <= width and r[2] <= height for r in rows), at + "a button is outside"
    b.size(1280, 1000)


def room(b):
    opened(b)
    fits(b, "empty")
    for i in range(12):
        ask(b, "When does the ferry sail, please tell me, for the %d. time?" % (i + 1))
    fits(b, "12 answers")
    MadeUp.holds = True
    ask(b, "And who is on it?", waits=False)
    b.wait("!document.getElementById('stop').hidden")
    fits(b, "while it is written")


# Of two colours as a browser writes them, by WCAG 2.
def contrast(*colours):
    def light(colour):
        parts = [int(c) / 255 for c in re.findall(r"\d+", colour)[:3]]
        return sum(w * (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4) for w, c in zip((0.2126, 0.7152, 0.0722), parts))
    a, z = sorted(map(light, colours))
    return (z + 0.05) / (a + 0.05)


def colours(b):
    opened(b)
    ask(b, "When does the ferry sail?")
    b.evaluate("document.getElementById('login').hidden = document.getElementById('stop').hidden = false")
    style = "getComputedStyle(document.querySelector('%s')%s)['%s']"
    for dark in (False, True):
        b.dark(dark)

        def of(selector, name, part=""):
            return b.evaluate(style % (selector, part, name))

        back, card = of("body", "background-color"), of(".answer", "background-color")
        for e in ("textarea", "#token", "#login button", "select", "#clear", "#stop", "#send", ".compare"):
            got = contrast(of(e, "border-top-color"), card if e in ("#token", "#login button", ".compare") else back)
            assert got >= 3, "dark %d, border of %s: %.2f" % (dark, e, got)
        for kind in ("exact", "reused", "recomputed", "new"):
            got = contrast(of(".bar ." + kind, "background-color"), card)
            assert got >= 3, "dark %d, %s: %.2f" % (dark, kind, got)
        assert float(of(".bar", "column-gap").replace("px", "")) >= 2 and of(".bar", "background-color") == "rgba(0, 0, 0, 0)"
        for e, beside in ((".soft", back), (".numbers", card), (".legend", card)):
            assert contrast(of(e, "color"), beside) >= 4.5, "dark %d, text of %s" % (dark, e)
        assert contrast(of("textarea", "color", ", '::placeholder'"), card) >= 4.5, "dark %d, placeholder" % dark
        assert contrast(of("#send", "color"), of("#send", "background-color")) >= 4.5, "dark %d, Send" % dark


def compare(b):
    opened(b)
    ask(b, "When does the ferry sail?")
    b.evaluate("document.querySelector('.compare').click()")
    b.wait("document.querySelectorAll('.side').length === 2 && " + READY)
    assert MadeUp.asked[-1]["tessera"] == {"mode": "exact", "cache": False, "progress": True}, MadeUp.asked[-1]
    assert MadeUp.asked[-1]["messages"] == MadeUp.asked[-2]["messages"]
    expect(text(b, ".side h2"), "With the cache|Full read, without the cache")
    expect(text(b, ".numbers"), "first token after 13 s")
    expect(text(b, ".answer > .numbers"), "The same answer; the first token was 20.2x faster")
    assert b.said == [], b.said


def reading(b):
    MadeUp.steps = queue.Queue()
    opened(b)
    b.evaluate("window.clock = 0; performance.now = () => window.clock; 0")
    ask(b, "When does the ferry sail?", waits=False)
    names = "Reading ferry.md, harbor.md, " + HOSTILE + " and 1 other: "
    said = "document.getElementById('told').textContent"
    told = "document.querySelector('.answer .reading').textContent"
    MadeUp.steps.put(progress(0))
    b.wait("!!document.querySelector('.answer .reading')")
    assert b.evaluate(told) == b.evaluate(said) == names + "0 of 6,642 tokens"
    assert MadeUp.asked[-1]["stream"] and MadeUp.asked[-1]["tessera"] == {"mode": "auto", "progress": True}
    fits(b, "while it is read")
    # Everybody sees each step; who listens hears one in five seconds.
    b.evaluate("window.clock = 4900")
    MadeUp.steps.put(progress(1200, 40.4))
    b.wait(told + ".includes('1,200')")
    assert b.evaluate(told) == names + "1,200 of 6,642 tokens, about 40 s left"
    assert b.evaluate(said) == names + "0 of 6,642 tokens"
    b.evaluate("window.clock = 5100")
    MadeUp.steps.put(progress(2000, 200, ()))
    b.wait(told + ".includes('2,000')")
    assert b.evaluate(told) == b.evaluate(said) == "Reading the question: 2,000 of 6,642 tokens, about 3 min left"
    assert b.evaluate("document.getElementById('told').getAttribute('role')") == "status"
    assert b.evaluate("!document.querySelector('[aria-busy=true] #told')"), "what is busy is not told"
    assert text(b, ".said") == ""
    MadeUp.steps.put(progress(2001, None, ["%d.md" % i for i in range(64)]))
    b.wait(told + ".includes('Reading 0.md, 1.md, 2.md and many others: 2,001 of')")
    MadeUp.steps.put(None)
    b.wait(READY)
    assert text(b, ".said") == "".join(WORDS) and text(b, ".reading") == b.evaluate(said) == ""
    expect(text(b, ".numbers"), "first token after 0.62 s")  # of the reply, and no step in its place
    # Stopped while it is read: the question is there again.
    ask(b, "And now?", waits=False)
    MadeUp.steps.put(progress(0))
    b.wait("!!document.querySelector('.answer:last-child .reading')")
    b.press("Escape")
    b.wait(READY)
    assert text(b, ".reading") == b.evaluate(said) == "" and b.evaluate("document.getElementById('question').value") == "And now?"
    MadeUp.steps.put(None)


def stop(b):
    MadeUp.holds = True
    opened(b)
    for how in ("document.getElementById('stop').click()", None):
        ask(b, "When does the ferry sail?", waits=False)
        b.wait("[...document.querySelectorAll('.said')].pop().textContent.includes('The')")
        assert b.evaluate("document.getElementById('talk').getAttribute('aria-busy')") == "true"
        if how:
            b.evaluate(how)
        else:
            b.press("Escape")
        b.wait(READY)
        assert b.evaluate("document.getElementById('stop').hidden"), "it can still be stopped"
        expect(text(b, ".answer:last-child .numbers"), "stopped")
        assert "Sunday" not in text(b, ".answer:last-child .said")


def token(b):
    MadeUp.wants_token = True
    server, url = serve()
    b.open(url)
    b.wait("!document.getElementById('login').hidden")
    assert text(b, "#about") == "token needed" and b.evaluate("document.getElementById('wrong').hidden")
    assert b.evaluate("document.activeElement.id") == "token"
    expect(text(b, "#login"), "in the file serve.token in the store of tessera serve, or in the one that --token-file names")
    fits(b, "without a token")
    give = "document.getElementById('token').value = '%s'; document.getElementById('login').requestSubmit()"
    b.evaluate(give % "no key at all")
    b.wait("!document.getElementById('wrong').hidden")
    # Who is elsewhere on the page stays there when the page looks again.
    b.evaluate("document.getElementById('question').focus(); about()")
    assert b.evaluate("document.activeElement.id") == "question", "the focus is taken"
    b.evaluate(give % TOKEN)
    b.wait("document.getElementById('login').hidden && document.getElementById('about').textContent.includes('74')")
    b.evaluate("sessionStorage.clear()")
    b.open("about:blank")
    b.open(url + "#token=" + TOKEN)
    b.wait("document.getElementById('about').textContent.includes('74')")
    assert b.evaluate("location.hash") == "", "the token stays in the address"
    ask(b, "When?")
    expect(text(b, ".said"), "The ferry")
    assert not [s for s in b.said if "401" not in s], b.said


def gone(b):
    server = opened(b)
    MadeUp.dies = True
    ask(b, "When does the ferry sail?")
    expect(text(b, ".said"), "The ferry sails")
    expect(text(b, ".problem"), "The server is gone. What it wrote so far stays")
    expect(text(b, "#state"), "no connection")
    server.shutdown()
    server.server_close()
    ask(b, "Still there?")
    assert b.evaluate("document.querySelectorAll('.answer .problem').length") == 2
    assert b.evaluate("document.getElementById('question').value") == "Still there?"
    expect(text(b, ".said"), "The ferry sails")


def bare(b):
    MadeUp.documents = None
    server, url = serve()
    b.open(url)
    b.wait("document.getElementById('about').textContent.includes('no documents')")
    expect(text(b, "#empty"), "This server has no documents")
    assert b.evaluate("document.getElementById('question').placeholder") == "Ask a question"


# All that was said in the place of an answer while its prompt was read, however short that was.
READING_SEEN = """window.readings = []; new MutationObserver(all => all.forEach(m => m.addedNodes.forEach(n => {
    const e = n.nodeType === 1 ? n : n.parentElement;
    if (e && e.classList.contains('reading')) readings.push(e.textContent);
}))).observe(document.getElementById('talk'), {subtree: true, childList: true})"""


# As a person who opens the file that `tessera serve` names, with ferry.md and train.md in its folder.
def real(b, page, store):
    names = "ferry.md, train.md"
    b.open("file://" + page)
    b.wait("document.getElementById('about').textContent.includes('2 documents in ')")
    assert b.evaluate("location.hash === '' && location.protocol === 'http:' && document.getElementById('login').hidden")
    b.evaluate(READING_SEEN)
    for i, question in enumerate(("When does the ferry leave?", "And the train?")):
        ask(b, question)
        assert text(b, ".answer .problem") == "", text(b, ".answer .problem")
        assert b.evaluate("turns.length") == i + 1 and b.evaluate("turns[%d].said" % i), "no answer"
        assert text(b, ".answer:last-child .said"), "the answer is not shown"
        expect(text(b, ".answer:last-child > details > summary"), "passages: " + names)
        expect(text(b, ".answer:last-child .numbers"), "first token after ")
        said = b.evaluate("readings.join('|')")
        assert re.search(r"Reading %s: [\d,]+ of [\d,]+ tokens" % re.escape(names), said), said
        assert text(b, ".reading") == ""
        b.evaluate("readings = []")
        end = time.monotonic() + 60  # the first read is noted when the server is done with it
        while not list(pathlib.Path(store).glob("*.speed")):
            assert time.monotonic() < end, "the time of a full read is not kept"
            time.sleep(0.05)
    first, second = text(b, ".numbers").split("first token after ")[1:]
    assert "a full read takes about" not in first, first
    expect(second, "; a full read takes about ")
    expect(text(b, ".answer:last-child .legend"), "exact from the cache")
    # Compared with a full read.
    exact = b.evaluate("turns[1].about.exact")
    b.evaluate("[...document.querySelectorAll('.compare')].pop().click()")
    b.wait("document.querySelectorAll('.answer:last-child .side').length === 2 && " + READY)
    expect(text(b, ".answer:last-child h2"), "Full read, without the cache")
    expect(text(b, ".answer:last-child > .numbers"), "he same answer")
    if exact:
        expect(text(b, ".answer:last-child > .numbers"), "The same answer; the first token was ")
    read = text(b, ".answer:last-child .side:last-child .legend")
    assert re.fullmatch(r"[\d,]+ new", read), "not a full read: " + read
    # Reloaded: both answers are there, and the chat goes on without another look at the address.
    before = b.evaluate("JSON.stringify(turns.map(t => [t.asked, t.said]))")
    b.evaluate("window.old = true")
    b.call("Page.reload")
    b.wait("!window.old && document.getElementById('about').textContent.includes('2 documents')")
    assert b.evaluate("JSON.stringify(turns.map(t => [t.asked, t.said]))") == before
    assert b.evaluate("[...document.querySelectorAll('.said')].filter(e => e.textContent).length") == 2
    assert text(b, ".answer > details > summary").count(names) == 2
    ask(b, "Why?")
    assert b.evaluate("turns.length === 3 && turns[2].said") and text(b, ".answer .problem") == ""
    assert b.said == [], b.said


# Of every state, in every size, for a person to look at.
def pictures(b, folder):
    def take(name):
        for width, height in SIZES[:5]:
            for dark in (False, True):
                b.size(width, height)
                b.dark(dark)
                b.evaluate("document.querySelector('main').scrollTop = 1e6")
                time.sleep(0.3)
                b.screenshot("%s/%s-%dx%d-%s.png" % (folder, name, width, height, "dark" if dark else "light"))

    MadeUp.wants_token = True
    opened(b, "#token=" + TOKEN)
    take("empty")
    b.evaluate("token = 'no key at all'; about()")
    take("login")
    MadeUp.wants_token = False
    b.evaluate("about()")
    for _ in range(10):
        ask(b, "Who is the harbor master?")
    ask(b, "When does the ferry to Aldmouth sail, and on which days does it not?")
    b.evaluate("[...document.querySelectorAll('.compare')].pop().click()")
    b.wait("document.querySelectorAll('.side').length === 12 && " + READY)
    ask(b, "Who is the harbor master, in code?")
    b.evaluate("[...document.querySelectorAll('.answer:last-child details')].slice(0, 2).forEach(d => { d.open = true; })")
    b.evaluate("document.querySelector('main').scrollTop = 1e6")
    take("answers")
    MadeUp.steps = queue.Queue()
    ask(b, "And who is on it?", waits=False)
    MadeUp.steps.put(progress(1200, 40))
    b.wait("!!document.querySelector('.reading')")
    take("reading")
    MadeUp.holds = True
    MadeUp.steps.put(None)
    b.wait("!document.querySelector('.reading')")
    take("writing")


def main():
    b = Browser()
    try:
        {f.__name__: f for f in (chat, why, markdown, kept, room, colours, compare, reading, stop, token, gone, bare, pictures, real)}[sys.argv[1]](b, *sys.argv[2:])
    finally:
        b.close()


main()
