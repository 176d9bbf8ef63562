"""top_pty.py - drives `tessera top` in a terminal: starts it at a pty, sends keys and signals, and looks at
the screen and at the terminal that is left.

    top_pty.py KIND TESSERA SOCKET [TESSERAD]    KIND is one of the functions below"""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time

PATIENCE_S = 60  # long: nothing here depends on speed, and a broken program is noticed all the same


class Terminal:
    def __init__(self, argv, rows=30, columns=100):
        self.ours, theirs = pty.openpty()
        self.size(rows, columns)
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        self.text = ""
        env = dict(os.environ, TERM="xterm")
        self.process = subprocess.Popen(
            argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.set_blocking(self.ours, False)

    def size(self, rows, columns):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        try:
            while chunk := os.read(self.ours, 65536):
                self.text += chunk.decode(errors="replace")
        except OSError:
            pass

    def wait(self, wanted, why):
        """Until the text since the last call has the pattern."""
        until = time.monotonic() + PATIENCE_S
        while not (found := re.search(wanted, self.text)):
            assert time.monotonic() < until, f"{why}: no {wanted!r} in {self.text[-3000:]!r}"
            time.sleep(0.02)
            self.read()
        self.text = self.text[found.end():]

    def send(self, keys):
        os.write(self.ours, keys)

    def ends(self, status=0):
        assert self.process.wait(PATIENCE_S) == status, self.process.returncode
        self.read()
        assert self.text.endswith("\x1b[?25h\x1b[?1049l"), repr(self.text[-200:])
        assert termios.tcgetattr(self.theirs) == self.before, "the terminal is not as it was"


def top(tessera, socket, *more):
    t = Terminal([tessera, "top", f"--connect={socket}", "--interval=0.1", *more])
    t.wait(re.escape("\x1b[?1049h\x1b[?25l"), "it takes the screen")
    return t


def q_and_control_c_quit(tessera, socket):
    for keys in (b"q", b"xyzq", b"\x03"):
        t = top(tessera, socket)
        t.wait("hit rate", "it shows numbers")
        assert not termios.tcgetattr(t.theirs)[3] & termios.ECHO, "keys are echoed"
        t.send(keys)
        t.ends()


def signals_restore_the_terminal(tessera, socket):
    for number in (signal.SIGTERM, signal.SIGHUP):
        t = top(tessera, socket)
        t.wait("hit rate", "it shows numbers")
        t.process.send_signal(number)
        t.ends()


def it_follows_the_size(tessera, socket):
    t = top(tessera, socket, "--interval=3600")
    t.wait("\x1b\\[30;1H.*q quits", "the foot is in the last row")
    t.size(12, 40)
    t.wait("\x1b\\[12;1H.*q quits", "the foot follows, without waiting for the interval")
    t.size(4, 20)
    t.wait("\x1b\\[H.*tessera", "a terminal that is too small")
    t.send(b"q")
    t.ends()


def it_stops_and_goes_on(tessera, socket):
    t = top(tessera, socket)
    t.wait("hit rate", "it shows numbers")
    t.send(b"\x1a")
    t.wait(re.escape("\x1b[?25h\x1b[?1049l"), "Ctrl-Z gives the screen back")
    _, status = os.waitpid(t.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), status
    assert termios.tcgetattr(t.theirs) == t.before
    os.kill(t.process.pid, signal.SIGCONT)
    t.wait(re.escape("\x1b[?1049h"), "and takes it again")
    t.wait("hit rate", "with numbers")
    t.send(b"q")
    t.ends()


def start_server(tesserad, socket):
    return subprocess.Popen([tesserad, "--host_size=4M", "--http_listen=off", f"--server_socket={socket}"],
                            stderr=subprocess.DEVNULL)


def a_server_goes_and_comes_back(tessera, socket, tesserad):
    t = top(tessera, socket)
    t.wait("no server answers at .*; retrying", "without a server it waits")
    for _ in range(2):
        server = start_server(tesserad, socket)
        t.wait("connected\x1b\\[0m\x1b\\[K\\s+hit rate", "the server is there, and no line says otherwise")
        server.terminate()
        server.wait()
        t.wait("retrying.*\\s.*the numbers below are the last ones", "it is gone")
    t.send(b"q")
    t.ends()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
