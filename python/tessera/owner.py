"""The owner of the cache in an engine with several processes.

The scheduler process opens the cache and serves it on a Unix socket (owner: embedded); workers
are its clients. With owner: daemon both are clients of a tesserad. Options come from
TESSERA_CONFIG_FILE, then TESSERA_* variables, then the engine's own configuration.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._lib import check, library
from .cache import configure

__all__ = ["EngineCache", "private_socket"]


def private_socket(engine: str) -> str:
    """A socket path that both halves of one engine know and no other user can take."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"tessera-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = folder.lstat()
    if owner.st_uid != os.getuid() or owner.st_mode & 0o077 or folder.is_symlink():
        raise PermissionError(f"{folder} is not a private folder of this user")
    return str(folder / (hashlib.sha256(engine.encode()).hexdigest()[:16] + ".sock"))


class EngineCache:
    """A cache for one half: the owner itself with its server, or a client."""

    def __init__(self, options: Mapping[str, Any], engine: str, serve: bool) -> None:
        lib = library()
        self._lib = lib
        self.handle = ctypes.c_void_p()
        self._server = ctypes.c_void_p()
        config = ctypes.c_void_p()
        check(lib.tsr_config_open(ctypes.byref(config)))
        try:
            configure(config, None, True, options)
            daemon = lib.tsr_config_get(config, b"owner") == b"daemon"
            if not daemon:
                if not lib.tsr_config_get(config, b"server_socket"):
                    path = private_socket(engine).encode()
                    check(lib.tsr_config_set(config, b"server_socket", path))
                owner = b"embedded" if serve else b"daemon"
                check(lib.tsr_config_set(config, b"owner", owner))
            self.socket = (lib.tsr_config_get(config, b"server_socket") or b"").decode()
            check(lib.tsr_cache_open(ctypes.byref(self.handle), config))
            self.serves = serve and not daemon
            if self.serves:
                try:
                    server = ctypes.byref(self._server)
                    check(lib.tsr_server_open(server, self.handle, config))
                except Exception:
                    self.close()
                    raise
        finally:
            lib.tsr_config_close(config)

    def connected(self, timeout_ms: int) -> bool:
        """Whether the server is reachable; always true for the owner itself."""
        return bool(self._lib.tsr_cache_connected(self.handle, timeout_ms) == 0)

    def close(self) -> None:
        """Writes queued entries. May be called twice."""
        if self._server:
            self._lib.tsr_server_close(self._server)
            self._server = ctypes.c_void_p()
        self._lib.tsr_cache_close(self.handle)
        self.handle = ctypes.c_void_p()
