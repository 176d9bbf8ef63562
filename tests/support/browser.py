"""browser.py - a headless Chromium for tests of pages, driven over a pipe with its DevTools protocol;
nothing beyond Python's own library is needed. Everything the page says on its console and every
error in it is collected in Browser.said."""
import base64, json, os, select, shutil, subprocess, tempfile, time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def program():
    return next((shutil.which(p) for p in PROGRAMS if shutil.which(p)), None)


class Browser:
    def __init__(self, width=1280, height=1000):
        self.folder = tempfile.mkdtemp()
        to_it, self.to_it = os.pipe()
        self.from_it, from_it = os.pipe()

        def wire_up():  # the browser reads descriptor 3 and writes descriptor 4
            a, b = os.dup(to_it), os.dup(from_it)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
             "--no-first-run", "--hide-scrollbars", "--user-data-dir=" + self.folder,
             "--window-size=%d,%d" % (width, height), "about:blank"],
            preexec_fn=wire_up, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_it)
        os.close(from_it)
        self.buffer, self.number, self.said, self.session = b"", 0, [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.size(width, height)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def _message(self, deadline):
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.from_it], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            got = os.read(self.from_it, 1 << 20)
            if not got:
                raise RuntimeError("the browser is gone")
            self.buffer += got
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def _note(self, message):
        p = message.get("params", {})
        if message.get("method") == "Runtime.consoleAPICalled":
            self.said.append(" ".join(str(a.get("value", a.get("description"))) for a in p["args"]))
        elif message.get("method") == "Runtime.exceptionThrown":
            self.said.append(p["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif message.get("method") == "Log.entryAdded":
            self.said.append(p["entry"]["text"])

    def call(self, method, timeout=300, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_it, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self._message(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(method + ": " + answer["error"]["message"])
                return answer["result"]
            self._note(answer)

    def open(self, url):
        self.call("Page.navigate", url=url)

    def evaluate(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise RuntimeError(r["exceptionDetails"].get("exception", {}).get("description", expression))
        return r["result"].get("value")

    def wait(self, expression, seconds=300):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if self.evaluate(expression):
                    return
            except RuntimeError:
                pass  # between two pages
            time.sleep(0.1)
        raise AssertionError("never true: " + expression)

    def dark(self, on):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode={"Tab": 9, "Enter": 13, "Escape": 27}.get(key, 0))

    def screenshot(self, path):
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(picture))

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
