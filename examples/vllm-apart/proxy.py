"""Sends every request to a server that computes its prompt, then to one that generates.

python examples/vllm-apart/proxy.py --producer HOST:PORT --consumer HOST:PORT [--port 8000]

It handles POST /v1/completions and /v1/chat/completions, streams included, and listens on the
loopback address. If the producer fails, the consumer computes the prompt itself.
"""

import argparse
import http.client
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATHS = ("/v1/completions", "/v1/chat/completions")
TIMEOUT_S = 600
BODY_MAX = 64 << 20


def prefill_request(request: dict) -> dict:
    """The same prompt, for one token."""
    prefill = {**request, "max_tokens": 1, "stream": False}
    if "max_completion_tokens" in prefill:
        prefill["max_completion_tokens"] = 1
    for key in ("stream_options", "min_tokens"):
        prefill.pop(key, None)
    return prefill


def post(server: str, path: str, headers: dict, request: dict) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(server, timeout=TIMEOUT_S)
    kept = {name: value for name, value in headers.items() if name.lower() == "authorization"}
    body = json.dumps(request)
    connection.request("POST", path, body, {"Content-Type": "application/json", **kept})
    return connection.getresponse()


class Proxy(BaseHTTPRequestHandler):
    producer = consumer = ""

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if self.path not in PATHS or not 0 < length <= BODY_MAX:
            self.send_error(404 if self.path not in PATHS else 400)
            return
        try:
            request = json.loads(self.rfile.read(length))
            assert isinstance(request, dict)
        except (ValueError, AssertionError):
            self.send_error(400)
            return
        told = self.prefill(request)
        if told:
            request["kv_transfer_params"] = {**(request.get("kv_transfer_params") or {}), **told}
        try:
            answer = post(self.consumer, self.path, dict(self.headers), request)
        except OSError as error:
            self.send_error(502, f"consumer: {error}")
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type") or "application/json")
        self.end_headers()  # the end of the answer is the end of the connection
        while part := answer.read1(65536):
            self.wfile.write(part)
            self.wfile.flush()

    def prefill(self, request: dict) -> dict:
        """What the producer says of the prompt; nothing if it fails."""
        try:
            answer = post(self.producer, self.path, dict(self.headers), prefill_request(request))
            return json.loads(answer.read()).get("kv_transfer_params") or {}
        except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
            print(f"producer: {error}", file=sys.stderr)
            return {}


def serve(producer: str, consumer: str, port: int) -> ThreadingHTTPServer:
    handler = type("Handler", (Proxy,), {"producer": producer, "consumer": consumer})
    return ThreadingHTTPServer(("127.0.0.1", port), handler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--producer", required=True, metavar="HOST:PORT")
    parser.add_argument("--consumer", required=True, metavar="HOST:PORT")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    serve(args.producer, args.consumer, args.port).serve_forever()


if __name__ == "__main__":
    main()
