"""tessera.vllm inside a vLLM that the connector does not work with: vLLM can make its class, which
does nothing and says why in one line. These vLLMs are stubs: no real one is needed."""

import json
import subprocess
import sys
import textwrap
import unittest

from tessera.vllm import versions

STUBS = """
import abc, enum, json, logging, sys, types
def module(name, **names):
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(names)
    parent, _, child = name.rpartition(".")
    if parent:
        if parent not in sys.modules: module(parent)
        setattr(sys.modules[parent], child, made)
    return made
lines = []
class Logger:
    def warning(self, text, *args): lines.append(text % args)
    debug = info = error = lambda *args: None
class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1
class KVConnectorMetadata(abc.ABC): pass
class KVConnectorBase_V1(abc.ABC):
    def __init__(self, vllm_config, role, kv_cache_config):
        self._role = role
    @abc.abstractmethod
    def start_load_kv(self, forward_context, **kwargs): ...
    @abc.abstractmethod
    def get_num_new_matched_tokens(self, request, num_computed_tokens): ...
    @abc.abstractmethod
    def build_connector_meta(self, scheduler_output): ...
    @abc.abstractmethod
    def a_hook_that_nobody_knows(self, what): ...
    def request_finished(self, request, block_ids):
        raise AssertionError("overridden")
module("vllm", __version__=VERSION)
module("vllm.logger", init_logger=lambda name: Logger())
module("vllm.distributed.kv_transfer.kv_connector.v1.base", KVConnectorBase_V1=KVConnectorBase_V1,
       KVConnectorMetadata=KVConnectorMetadata, KVConnectorRole=KVConnectorRole)
"""
MAKE = """
from tessera.vllm import TesseraConnector
worker = TesseraConnector({}, KVConnectorRole.WORKER, None)
one = TesseraConnector({}, KVConnectorRole.SCHEDULER, None)
import pickle
told = dict(
    lines=lines,
    name=TesseraConnector.__name__,
    matched=one.get_num_new_matched_tokens(None, 0),
    meta=isinstance(
        pickle.loads(pickle.dumps(one.build_connector_meta(None))), KVConnectorMetadata
    ),
    finished=one.request_finished(None, []),
    new=one.a_hook_that_nobody_knows(1),
)
print(json.dumps(told))
"""


def run(version, code):
    program = f"VERSION = {version!r}\n" + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout


class TestIdle(unittest.TestCase):
    def made(self, version, more=""):
        return json.loads(run(version, STUBS + more + MAKE))

    def assert_idle(self, told, *words):
        self.assertEqual(told["name"], "TesseraConnector")
        self.assertEqual((told["matched"], told["finished"]), ([0, False], [False, None]))
        self.assertTrue(told["meta"])
        self.assertIsNone(told["new"])
        (line,) = told["lines"]
        self.assertIn("tessera: off, vLLM runs without it: ", line)
        for word in words:
            self.assertIn(word, line)

    def test_versions_that_are_not_known(self):
        for version in ("0.22.1", "0.33.0", "1.0.0", "dev"):
            with self.subTest(version):
                self.assert_idle(self.made(version), f"vLLM {version} ", versions.KNOWN)

    def test_a_known_version_that_lacks_something(self):
        self.assert_idle(self.made("0.26.0"), "vLLM 0.26.0: ", "Error")

    def test_without_a_version(self):
        self.assert_idle(
            self.made("1", "del sys.modules['vllm'].__version__\n"), "without a version"
        )

    def test_memory_is_managed_as_with_the_connector(self):
        more = """
class SupportsHMA(abc.ABC):
    @abc.abstractmethod
    def request_finished_all_groups(self, request, block_ids): ...
sys.modules["vllm.distributed.kv_transfer.kv_connector.v1.base"].SupportsHMA = SupportsHMA
"""
        code = """
from tessera.vllm import TesseraConnector
one = TesseraConnector({}, KVConnectorRole.WORKER, None)
print(json.dumps([isinstance(one, SupportsHMA), one.request_finished_all_groups(None, ())]))
"""
        told = json.loads(run("0.99.0", STUBS + more + code))
        self.assertEqual(told, [True, [False, None]])

    def test_the_plugin_never_fails(self):
        for version in ("0.22.1", "0.32.0"):
            run(version, STUBS + "import tessera.vllm.plugin as p; p.register(); p.register()")
        run("0", "import tessera.vllm.plugin as p; p.register()")  # no vLLM at all

    def test_the_class_is_made_once(self):
        code = "import tessera.vllm as t\nassert t.TesseraConnector is t.TesseraConnector"
        run("0.33.0", STUBS + code)


class TestHooks(unittest.TestCase):
    def differs(self, change):
        """What idle.py says of a connector over a base class that `change` has made."""
        code = (
            STUBS
            + f"""
def hook(self, request, block_ids): ...
def more(self, request, block_ids, why): ...
def other(self, block_ids, request): ...
def any_of_them(self, *args, **kwargs): ...
KVConnectorBase_V1.request_finished = {change[0]}
class Ours(KVConnectorBase_V1):
    request_finished = {change[1]}
    start_load_kv = get_num_new_matched_tokens = build_connector_meta = any_of_them
    {change[2]}
from tessera.vllm.idle import _differs
print(json.dumps(_differs(Ours)))
"""
        )
        return json.loads(run("0.32.0", code))

    def test_hooks_that_are_called_otherwise(self):
        whole = "a_hook_that_nobody_knows = any_of_them"
        self.assertIsNone(self.differs(("lambda self, request, block_ids: 0", "hook", whole)))
        self.assertIsNone(self.differs(("more", "lambda self, request, block_ids, why: 0", whole)))
        self.assertIn("request_finished(", self.differs(("more", "hook", whole)))
        self.assertIn("request_finished(", self.differs(("other", "hook", whole)))
        self.assertIn("request_finished(", self.differs(("any_of_them", "hook", whole)))

    def test_hooks_that_are_missing(self):
        self.assertIn("a_hook_that_nobody_knows", self.differs(("hook", "hook", "pass")))


class TestVersions(unittest.TestCase):
    def test_minor(self):
        for version, number in (
            ("0.26.0", 26),
            ("0.32.1.dev3+g12ab", 32),
            ("0.9", 9),
            ("1.26.0", None),
            ("", None),
        ):
            self.assertEqual(versions.minor(version), number, version)

    def test_unknown(self):
        for version in ("0.23.0", "0.26.0", "0.32.0", "0.32.1rc1"):
            self.assertIsNone(versions.unknown(version))


if __name__ == "__main__":
    unittest.main()
