"""Servers that are compared: `tessera serve`, llama-server, and vLLM on a processor. All of them
have the weights of one GGUF file, as many threads, and room for four answers at once with a context
of 8192 tokens each."""

import argparse
import os
import pathlib
import subprocess
import time

from streams import Server, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLOTS, CONTEXT = 4, 8192


def deps() -> pathlib.Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(pathlib.Path.home() / ".cache")
    return pathlib.Path(os.environ.get("TESSERA_DEPS_DIR") or f"{cache}/tessera")


def arguments(p: argparse.ArgumentParser, threads: int) -> None:
    model = deps() / "models" / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    p.add_argument("--threads", type=int, default=threads)
    p.add_argument("--cache-reuse", type=int, default=64, help="of llama-server")
    p.add_argument("--host-size", default="2G", help="host memory for tessera's cache")
    p.add_argument("--build", default=os.environ.get("B", str(ROOT / "build")))
    p.add_argument("--model", default=str(model))
    p.add_argument("--llama-server", default="")
    p.add_argument("--llama-flags", default="", help="more flags for llama-server")
    p.add_argument("--json", help="a file for all figures")


def find(a: argparse.Namespace, peers: bool = True) -> None:
    """Looks for the programs before anything is started; those of others only with `peers`."""
    if peers and not a.llama_server:
        setup = [str(ROOT / "tools" / "setup-model"), "--server", "--print-dir"]
        where = subprocess.run(setup, capture_output=True, text=True, check=True).stdout.strip()
        a.llama_server = f"{where}/bin/llama-server"
    for needed in (*([a.llama_server] if peers else []), a.model, f"{a.build}/bin/tessera"):
        if not os.access(needed, os.R_OK):
            raise SystemExit(f"no {needed}: tools/setup --model, tools/setup --peers, make")


def start_tessera(
    a: argparse.Namespace, folder: pathlib.Path, more: tuple[str, ...] = ()
) -> Server:
    port = free_port()
    command = [f"{a.build}/bin/tessera", "serve", f"--model={a.model}", f"--threads={a.threads}"]
    command += [f"--port={port}", f"--at-once={SLOTS}", "--no-open", "--json", "--time-limit=3600"]
    command += more
    env = {"TESSERA_DISK_PATH": str(folder / "store"), "TESSERA_HOST_SIZE": a.host_size}
    s = Server("tessera", command, port, folder / "tessera.log", env)
    s.wait()
    s.key = (folder / "store" / "serve.token").read_text().strip()
    s.model = pathlib.Path(a.model).stem
    return s


def start_llama(a: argparse.Namespace, folder: pathlib.Path) -> Server:
    port = free_port()
    command = [a.llama_server, "-m", a.model, "-t", str(a.threads), "-tb", str(a.threads)]
    command += ["-c", str(SLOTS * CONTEXT), "-np", str(SLOTS), "-fa", "on", "-ctk", "f16"]
    command += ["-ctv", "f16", "--cache-reuse", str(a.cache_reuse), "--port", str(port)]
    command += ["-lv", "4"]  # says how large its buffers are
    command += a.llama_flags.split()
    s = Server("llama-server", command, port, folder / "llama.log")
    s.wait()
    s.model = pathlib.Path(a.model).stem
    return s


def start_vllm(a: argparse.Namespace, folder: pathlib.Path) -> Server:
    """vLLM does not run this GGUF file on a processor, so it has its weights as bfloat16. Prefix
    caching is on, as it is by default."""
    port = free_port()
    command = [str(deps() / "vllm" / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", a.vllm_model, "--served-model-name", pathlib.Path(a.model).stem]
    command += ["--dtype", "bfloat16", "--max-model-len", str(CONTEXT), "--port", str(port)]
    command += ["--max-num-seqs", str(SLOTS), "--host", "127.0.0.1"]
    command += a.vllm_flags.split()
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{a.threads - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    s = Server("vllm", command, port, folder / "vllm.log", env)
    s.wait()
    s.model = pathlib.Path(a.model).stem
    return s


def settle(s: Server) -> None:
    """Waits until the server has nothing more to do: documents are stored after the answer."""
    quiet = 0
    while quiet < 4:
        before = s.now()
        time.sleep(0.25)
        quiet = quiet + 1 if (s.now() - before).processor < 0.01 else 0
