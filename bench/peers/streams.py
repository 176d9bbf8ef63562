"""A server of the OpenAI API as a process of its own, and the answers that it streams. Every token
comes with two times: the clock, and the processor time of the server until then. Other programs on
the machine do not change the latter."""

import dataclasses
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping

Body = dict[str, object]


@dataclasses.dataclass
class Moment:
    clock: float
    processor: float

    def __sub__(self, other: "Moment") -> "Moment":
        return Moment(self.clock - other.clock, self.processor - other.processor)


@dataclasses.dataclass
class Answer:
    begun: Moment
    tokens: list[Moment]  # one for each piece of text that came
    text: str
    usage: dict[str, object]
    about: dict[str, object]  # what tessera serve says about the answer
    ended: str = ""  # why; "": it did not end
    # With `logprobs`: the bytes of each token, and its logprob.
    bits: list[tuple[bytes, float]] = dataclasses.field(default_factory=list)

    @property
    def first(self) -> Moment:
        """Time to the first token."""
        return self.tokens[0] - self.begun

    @property
    def n_prompt(self) -> int:
        n = self.usage["prompt_tokens"]
        assert isinstance(n, int)
        return n


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


class Server:
    """Started by its command; ended by close()."""

    def __init__(
        self,
        name: str,
        command: list[str],
        port: int,
        log: pathlib.Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.port, self.log = name, port, log
        self.key = "none"
        self.model = name
        out = log.open("wb")
        self.process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
        )
        # The clock of another process, as clock_getcpuclockid(3) names it.
        self.clock_id = (~self.process.pid << 3) | 2

    def wait(self, path: str = "/health", seconds: float = 900) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise SystemExit(f"{self.name} ended: see {self.log}")
            try:
                if self.get(path)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise SystemExit(f"{self.name} does not answer: see {self.log}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def now(self) -> Moment:
        return Moment(time.monotonic(), time.clock_gettime(self.clock_id))

    def get(self, path: str) -> tuple[int, str]:
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("GET", path, headers={"Authorization": f"Bearer {self.key}"})
        r = c.getresponse()
        status, text = r.status, r.read().decode()
        c.close()
        return status, text

    def ask(
        self, body: Body, path: str = "/v1/chat/completions", leave_after: int | None = None
    ) -> Answer:
        """Streams an answer. Raises on anything but an answer. leave_after: goes away after so many
        pieces of text, with 0 as soon as the question is sent."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        whole = {"model": self.model, "stream": True, "temperature": 0, **body}
        whole["stream_options"] = {"include_usage": True}
        data = json.dumps(whole)
        begun = self.now()
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        c.request("POST", path, data, headers)
        a = Answer(begun, [], "", {}, {})
        if leave_after == 0:
            c.close()
            return a
        r = c.getresponse()
        if r.status != 200:
            raise RuntimeError(f"{self.name}: {r.status}: {r.read().decode()[:400]}")
        for line in r:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"{self.name}: {event['error']}")
            a.usage = event.get("usage") or a.usage
            a.about = event.get("tessera") or a.about
            for choice in event.get("choices", []):
                a.ended = choice.get("finish_reason") or a.ended
                for t in (choice.get("logprobs") or {}).get("content") or []:
                    a.bits.append((bytes(t["bytes"]), t["logprob"]))
                piece = choice.get("text") or choice.get("delta", {}).get("content")
                if piece:
                    a.tokens.append(self.now())
                    a.text += piece
            if leave_after and len(a.tokens) >= leave_after:
                r.close()
                break
        c.close()
        if not a.tokens:
            a.tokens.append(self.now())
        return a

    def ask_all(self, bodies: list[Body]) -> list[Answer]:
        """All at once, each on a connection of its own."""
        answers: list[Answer | None] = [None] * len(bodies)

        def one(i: int) -> None:
            answers[i] = self.ask(bodies[i])

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(bodies))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if None in answers:
            raise RuntimeError(f"{self.name}: an answer is missing")
        return [a for a in answers if a]

    def anonymous_mb(self) -> float:
        """Memory of the process that no file is behind."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"{self.name}: no RssAnon")
