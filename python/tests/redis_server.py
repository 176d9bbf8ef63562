"""A Redis of its own for tests, on loopback."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time

# redis-tools of Debian has the server under another name; what it does depends on argv[0].
SERVER = shutil.which("redis-server") or shutil.which("redis-check-rdb")


class Redis:
    def __init__(self):
        with contextlib.closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.folder = tempfile.TemporaryDirectory()
        settings = ["--bind", "127.0.0.1", "--save", "", "--dir", self.folder.name]
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), *settings],
            executable=SERVER,
            stdout=subprocess.DEVNULL,
        )
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            assert self.process.poll() is None
            time.sleep(0.01)

    def signal(self, number):
        os.kill(self.process.pid, number)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


def blocked(discovery, wait_s=None):
    """A question to a server that does not answer, until the event is set that this returns. Then
    nobody waits for others: it has taken longer than a request would."""
    begun, answer = threading.Event(), threading.Event()

    def question():
        begun.set()
        answer.wait()
        return 0

    discovery.ask(question)
    begun.wait()
    time.sleep(2 * discovery._wait_s if wait_s is None else wait_s)
    return answer
