"""The owner of the cache in an engine with several processes.

The scheduler process opens the cache and serves it on a Unix socket (owner: embedded); workers
are its clients. A worker in the scheduler's own process uses the owner's handle instead: its loads
and saves then need no round trip and move straight between the pool and the engine's memory. With
owner: daemon both are clients of a tesserad. Options come from TESSERA_CONFIG_FILE, then TESSERA_*
variables, then the engine's own configuration.

Workers tell this module their device when their KV memory is there, which is before the scheduler
opens the cache. So the owner knows whether a worker shares its process, and which device its pool
is page-locked for. A scheduler process without a worker never touches a device.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import _c as c
from ._lib import check, library, quietly
from .cache import configure

__all__ = [
    "EngineCache",
    "announce_worker",
    "device_pool_share",
    "forbid_pool",
    "private_socket",
    "worker_device",
    "worker_gone",
]

_POOL_SHARES = b"device_pool_share", b"device_pool_chunked_share"
Device = tuple[str, int]  # name and number, as the options device and device_number have them

_lock = threading.Lock()  # of the two tables
# By engine and process: a forked child must not use a handle whose threads it does not have.
_owners: dict[tuple[str, int], _Opened] = {}
_workers: dict[tuple[str, int], list[Device]] = {}
_poolless: set[tuple[str, int]] = set()  # engines whose device has no room for a pool


def private_socket(engine: str) -> str:
    """A socket path that both halves of one engine know and no other user can take."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"tessera-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = folder.lstat()
    if owner.st_uid != os.getuid() or owner.st_mode & 0o077 or folder.is_symlink():
        raise PermissionError(f"{folder} is not a private folder of this user")
    return str(folder / (hashlib.sha256(engine.encode()).hexdigest()[:16] + ".sock"))


def announce_worker(engine: str, device: Device) -> None:
    """A worker of this process has its KV memory on this device."""
    with _lock:
        _workers.setdefault((engine, os.getpid()), []).append(device)


def worker_gone(engine: str, device: Device) -> None:
    key = engine, os.getpid()
    with _lock:
        devices = _workers.get(key, [])
        if device in devices:
            devices.remove(device)
        if not devices:
            _workers.pop(key, None)


def worker_device(engine: str) -> Device | None:
    """The device of the engine's worker in this process; None: it has none, or several."""
    with _lock:
        devices = set(_workers.get((engine, os.getpid()), ()))
    return devices.pop() if len(devices) == 1 else None


def device_pool_share(options: Mapping[str, Any]) -> float:
    """The share of device memory that a cache with these options takes for its pool; 0: none, or a
    number of bytes."""
    lib = library()
    config = ctypes.c_void_p()
    check(lib.tsr_config_open(ctypes.byref(config)))
    try:
        configure(config, None, True, options)
        fixed = lib.tsr_config_get(config, b"device_pool_size") != b"0"
        served = lib.tsr_config_get(config, b"owner") == b"daemon"
        chunked = lib.tsr_config_get(config, b"chunked") == b"true"
        share, chunked_share = (
            float(lib.tsr_config_get(config, name) or 0) for name in _POOL_SHARES
        )
    finally:
        lib.tsr_config_close(config)
    if fixed or served:
        return 0.0
    return share or (chunked_share if chunked else 0.0)


def forbid_pool(engine: str) -> None:
    """The engine's cache, which this process will open, takes no share of device memory."""
    with _lock:
        _poolless.add((engine, os.getpid()))


class _Opened:
    """An open cache, with its server if it has one, for as long as it has users."""

    def __init__(
        self, options: Mapping[str, Any], engine: str, serve: bool, device: Device | None
    ) -> None:
        self._lib = lib = library()
        self.handle = ctypes.c_void_p()
        self._server = ctypes.c_void_p()
        self.users = 1  # under _lock
        config = ctypes.c_void_p()
        check(lib.tsr_config_open(ctypes.byref(config)))
        try:
            configure(config, None, True, options)
            daemon = lib.tsr_config_get(config, b"owner") == b"daemon"
            if not (daemon and serve):  # a scheduler beside a tesserad moves no KV
                _choose_device(config, options, device)
            if (engine, os.getpid()) in _poolless:
                for name in _POOL_SHARES:
                    check(lib.tsr_config_set(config, name, b"0"))
            if not daemon:
                if not lib.tsr_config_get(config, b"server_socket"):
                    path = private_socket(engine).encode()
                    check(lib.tsr_config_set(config, b"server_socket", path))
                owner = b"embedded" if serve else b"daemon"
                check(lib.tsr_config_set(config, b"owner", owner))
            self.socket = (lib.tsr_config_get(config, b"server_socket") or b"").decode()
            # Settings without effect are named by the scheduler's or first rank's process alone.
            with contextlib.nullcontext() if serve else quietly():
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

    def close_server(self) -> None:
        if self._server:
            self._lib.tsr_server_close(self._server)
            self._server = ctypes.c_void_p()

    def close(self) -> None:
        self.close_server()
        self._lib.tsr_cache_close(self.handle)
        self.handle = ctypes.c_void_p()


def _choose_device(config: Any, options: Mapping[str, Any], device: Device | None) -> None:
    """The worker's device, unless the configuration names another; and its number with it."""
    if device is None or device[0] == "cpu":
        return
    lib = library()
    name = device[0].encode()
    if not lib.tsr_config_get(config, b"device"):
        check(lib.tsr_config_set(config, b"device", name))
    if lib.tsr_config_get(config, b"device") == name and "device_number" not in options:
        check(lib.tsr_config_set(config, b"device_number", str(device[1]).encode()))


class EngineCache:
    """A cache for one half: the owner itself with its server, or a client. The device is that of
    the worker in this process, if there is one."""

    def __init__(
        self,
        options: Mapping[str, Any],
        engine: str,
        serve: bool,
        device: Device | None = None,
    ) -> None:
        opened = _Opened(options, engine, serve, device)
        self._attach(opened)
        self._key: tuple[str, int] | None = None
        if self.serves:
            self._key = engine, os.getpid()
            with _lock:
                _owners[self._key] = opened

    def _attach(self, opened: _Opened) -> None:
        self._opened: _Opened | None = opened
        self.handle = opened.handle
        self.socket = opened.socket
        self.serves = opened.serves

    @classmethod
    def join(cls, engine: str) -> EngineCache | None:
        """The owner's own cache, if this process has it open. It stays open until all its users
        have closed it."""
        with _lock:
            opened = _owners.get((engine, os.getpid()))
            if opened is None:
                return None
            opened.users += 1
        cache = cls.__new__(cls)
        cache._key = None
        cache._attach(opened)
        return cache

    def connected(self, timeout_ms: int) -> bool:
        """Whether the server is reachable; always true for the owner itself."""
        return bool(library().tsr_cache_connected(self.handle, timeout_ms) == 0)

    def has_all(self, keys: list[bytes]) -> bool:
        """Whether every one of these is in some tier."""
        rows = (c.Key * len(keys))(*[c.Key((ctypes.c_uint8 * 16)(*key)) for key in keys])
        tiers = (ctypes.c_int8 * len(keys))()
        check(library().tsr_cache_contains(self.handle, rows, len(keys), tiers))
        return all(tier >= 0 for tier in tiers)

    def close(self) -> None:
        """The last user's writes queued entries. May be called twice."""
        opened, self._opened = self._opened, None
        self.handle = ctypes.c_void_p()
        if opened is None:
            return
        with _lock:
            if self._key is not None and _owners.get(self._key) is opened:
                del _owners[self._key]  # from here on it gets no new users
            opened.users -= 1
            last = opened.users == 0
        if last:
            opened.close()
