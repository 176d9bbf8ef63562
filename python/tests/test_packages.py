"""What engines import in every process is light: it brings neither torch nor an engine along."""

import subprocess
import sys
import unittest
from importlib import import_module

PLUGINS = ("tessera.vllm.plugin", "tessera.sglang.plugin")


class TestPackages(unittest.TestCase):
    def test_plugins_import_no_engine(self):
        code = "import sys; before = set(sys.modules); import tessera, " + ", ".join(PLUGINS)
        code += "; print(*{name.split('.')[0] for name in set(sys.modules) - before})"
        command = [sys.executable, "-c", code]
        brought = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        self.assertIn("tessera", brought)
        self.assertFalse({"torch", "numpy", "vllm", "sglang"} & set(brought))

    def test_plugins_are_the_entry_points(self):
        for name in PLUGINS:
            self.assertTrue(callable(import_module(name).register))

    def test_only_what_is_there_is_found(self):
        for name in ("tessera.vllm", "tessera.sglang"):
            module = import_module(name)
            self.assertEqual(len(module.__all__), 1)
            with self.assertRaises(AttributeError):
                _ = module.Something


if __name__ == "__main__":
    unittest.main()
