"""page_check.py - looks at tesserad's page as a person would, in a headless browser: with answers made
up here (two tenants, names that try to be markup) and, given the address of a real server, with its.

  page_check.py made-up | token | real URL PID"""
import http.server, json, os, pathlib, signal, sys, threading

top = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(top / "tests/support"))
from browser import Browser

HOSTILE = "<img src=x onerror=alert(1)>"
TOKEN = "0123456789abcdef"


def tenant(name, asked, reused, model):
    numbers = dict.fromkeys(
        ["lookups", "lookup_tokens_asked", "lookup_tokens_reused", "lookup_misses", "sessions", "load_bytes",
         "store_bytes", "stores_refused", "evictions", "tier_errors", "tier_timeouts", "corrupt",
         "requests_malformed", "sessions_refused"], 0)
    numbers.update(lookups=10, lookup_tokens_asked=asked, lookup_tokens_reused=reused, sessions=1,
                   lookup_ns={"count": 4, "sum": 8000, "buckets": [[1024, 2], [4096, 1], [None, 1]]},
                   load_ns={"count": 0, "sum": 0, "buckets": []}, store_ns={"count": 0, "sum": 0, "buckets": []})
    return {"name": name, "metrics": numbers,
            "tiers": [{"name": "host", "entries": 3, "used": 512 << 20, "size": 1 << 30}],
            "spaces": [{"model": model, "fingerprint": "ab" * 16, "open": 1, "entries": 3, "token_bytes": 23040}]}


ANSWER = {"version": "9.9.9", "uptime": 75.0, "prefill_rate": 1000,
          "slow": [{"call": "store", "tenant": "uid-1", "seconds": 0.25, "ago": 3.0}],
          "tenants": [tenant("uid-1", 1000, 900, HOSTILE), tenant("uid-2", 1000, 100, "other")]}


class MadeUp(http.server.BaseHTTPRequestHandler):
    wants_token = False

    def do_GET(self):
        page = self.path == "/"
        allowed = page or not self.wants_token or self.headers.get("Authorization") == "Bearer " + TOKEN
        body = (top / "src/daemon/page.html").read_bytes() if page else json.dumps(ANSWER).encode()
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Type", "text/html; charset=utf-8" if page else "application/json")
        self.end_headers()
        self.wfile.write(body if allowed else b"")

    def log_message(self, *unused):
        pass


def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), MadeUp)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return "http://127.0.0.1:%d/" % server.server_port


def text(b, element):
    return b.evaluate("document.getElementById('%s').textContent" % element)


def expect(got, wanted):
    assert wanted in got, "%r has no %r" % (got, wanted)


SHOWN = "!document.getElementById('content').hidden"


def made_up(b):
    b.dark(False)
    b.open(serve())
    b.wait(SHOWN)
    expect(text(b, "about"), "9.9.9, up 75.0 s, 2 connected")
    expect(text(b, "hit"), "50.0 %")
    expect(text(b, "reused"), "1K")
    expect(text(b, "saved"), "1.00 s")
    expect(text(b, "tiers"), "host: 1 GiB of 2 GiB, 6 entries")
    expect(text(b, "times"), "lookup82.00 us1.02 us")
    expect(text(b, "slow"), "store250 msuid-13.00 s")
    expect(text(b, "spaces"), HOSTILE)
    assert b.evaluate("document.querySelectorAll('main img').length") == 0, "a name became markup"
    expect(text(b, "tenants"), "uid-190.0 %900")
    b.wait("document.querySelector('#chart-hit').getAttribute('aria-label') === 'now nothing'")
    b.wait("document.querySelector('#chart-tokens path') !== null")

    # By keyboard: the first Tab reaches the choice of the tenant, later ones the tables.
    b.press("Tab")
    assert b.evaluate("document.activeElement.id") == "tenant", "the first Tab does not reach the tenants"
    b.evaluate("(() => { const t = document.getElementById('tenant'); t.value = 'uid-2';"
               " t.dispatchEvent(new Event('change')); })()")
    expect(text(b, "hit"), "10.0 %")
    expect(text(b, "slow"), "none took a millisecond")
    b.press("Tab")
    assert b.evaluate("document.activeElement.className") == "scroll", "a table cannot be reached by keyboard"

    light = b.evaluate("getComputedStyle(document.body).backgroundColor")
    b.dark(True)
    dark = b.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light != dark, "dark is light"
    for width in (390, 768, 1280):
        b.size(width, 800)
        over = b.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, "at %d pixels the page is %d too wide" % (width, over)
    assert b.evaluate("performance.getEntriesByType('resource').every(r => r.name.startsWith(location.origin))")
    assert b.said == [], b.said


def token(b):
    MadeUp.wants_token = True
    b.open(serve())
    b.wait("!document.getElementById('ask').hidden")
    assert not b.evaluate(SHOWN), "something is shown without a token"
    give = ("document.getElementById('token').value = '%s';"
            "document.getElementById('ask').requestSubmit()")
    b.evaluate(give % "wrong")
    b.wait("document.getElementById('problem').textContent.includes('Wrong token')")
    b.evaluate(give % TOKEN)
    b.wait(SHOWN)
    assert b.evaluate("document.getElementById('ask').hidden"), "it still asks for a token"
    assert not [s for s in b.said if "401" not in s], b.said  # the browser itself reports those


def real(b, url, pid):
    b.open(url)
    b.wait(SHOWN)
    expect(text(b, "hit"), "no lookups yet")
    expect(text(b, "tiers"), "host: 0 B of 4 MiB, 0 entries")
    assert b.said == [], b.said
    if os.environ.get("TESSERA_SCREENSHOT"):
        b.screenshot(os.environ["TESSERA_SCREENSHOT"])
    os.kill(int(pid), signal.SIGKILL)
    b.wait("document.getElementById('problem').textContent.includes('No response')")
    assert b.evaluate(SHOWN), "what was last known is gone"


def main():
    b = Browser()
    try:
        {"made-up": made_up, "token": token, "real": real}[sys.argv[1]](b, *sys.argv[2:])
    finally:
        b.close()


main()
