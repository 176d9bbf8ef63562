"""vllm_metrics.py - a page with the metrics that vLLM shows of Tessera's connector, for a Prometheus: their names are
those of python/tessera/vllm/metrics.py, their labels vLLM's, and every counter grows from scrape to scrape.

    vllm_metrics.py            prints its port, then serves
    vllm_metrics.py --names    prints the names"""

import ast
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

source = Path(__file__).resolve().parents[2] / "python/tessera/vllm/metrics.py"
shown = next(
    ast.literal_eval(node.value)
    for node in ast.parse(source.read_text()).body
    if isinstance(node, ast.Assign) and node.targets[0].id == "_SHOWN"
)
names = [f"vllm:tessera_{name}_total" for name in shown]
if sys.argv[1:] == ["--names"]:
    print("\n".join(names))
    sys.exit()
n_scrapes = 0


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        global n_scrapes
        n_scrapes += 1
        labels = '{engine="0",model_name="m"}'
        page = "".join(f"# TYPE {name} counter\n{name}{labels} {n_scrapes}\n" for name in names).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *args):
        pass


server = HTTPServer(("127.0.0.1", 0), Page)
print(server.server_port, flush=True)
server.serve_forever()
