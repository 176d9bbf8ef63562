"""The proxy of examples/vllm-apart between two servers that say what they were asked."""

import importlib.util
import json
import threading
import unittest
import unittest.mock
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_PATH = Path(__file__).resolve().parents[2] / "examples" / "vllm-apart" / "proxy.py"
_SPEC = importlib.util.spec_from_file_location("proxy", _PATH)
proxy = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(proxy)

TOLD = {"tessera_handover": {"tokens": 64, "key": "ab"}}


class Server(BaseHTTPRequestHandler):
    """Answers with `reply`, and keeps the requests."""

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        self.server.asked.append((self.path, json.loads(self.rfile.read(length))))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(self.server.reply)

    def log_message(self, *_what):
        pass


class TestProxy(unittest.TestCase):
    def start(self, server):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"127.0.0.1:{server.server_address[1]}"

    def engine(self, reply):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
        server.reply, server.asked = reply, []
        return server, self.start(server)

    def setUp(self):
        quiet = unittest.mock.patch.object(proxy.Proxy, "log_message", lambda *_what: None)
        quiet.start()
        self.addCleanup(quiet.stop)
        self.producer, producer = self.engine(json.dumps({"kv_transfer_params": TOLD}).encode())
        self.consumer, consumer = self.engine(b'{"text": "an answer"}')
        self.address = self.start(proxy.serve(producer, consumer, 0))

    def ask(self, request, path="/v1/completions"):
        url = f"http://{self.address}{path}"
        with urllib.request.urlopen(url, json.dumps(request).encode(), timeout=20) as answer:
            return json.loads(answer.read())

    def test_a_request_goes_to_both_with_what_the_first_told(self):
        request = {"prompt": "text", "max_tokens": 32, "stream": True, "stream_options": {}}
        self.assertEqual(self.ask(request), {"text": "an answer"})
        ((path, prefill),) = self.producer.asked
        self.assertEqual(path, "/v1/completions")
        self.assertEqual(prefill, {"prompt": "text", "max_tokens": 1, "stream": False})
        ((_path, decode),) = self.consumer.asked
        self.assertEqual(decode, {**request, "kv_transfer_params": TOLD})

    def test_what_the_client_gave_stays(self):
        self.ask({"prompt": "text", "kv_transfer_params": {"tessera": {"blend": False}}})
        ((_path, decode),) = self.consumer.asked
        self.assertEqual(decode["kv_transfer_params"], {"tessera": {"blend": False}, **TOLD})

    def test_an_answer_does_not_depend_on_the_producer(self):
        for reply in (b"", b"no json", b"[1]", b"{}"):
            self.producer.reply = reply
            self.consumer.asked.clear()
            self.assertEqual(self.ask({"prompt": "text"}), {"text": "an answer"})
            ((_path, decode),) = self.consumer.asked
            self.assertEqual(decode, {"prompt": "text"})

    def test_other_requests_are_refused(self):
        for path, body, status in (
            ("/v1/other", b"{}", 404),
            ("/v1/completions", b"no json", 400),
            ("/v1/completions", b"[]", 400),
        ):
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"http://{self.address}{path}", body, timeout=20)
            self.assertEqual(caught.exception.code, status)
            caught.exception.close()
        self.assertEqual(self.producer.asked + self.consumer.asked, [])


if __name__ == "__main__":
    unittest.main()
