"""What engines import in every process is light: it brings neither torch nor an engine along."""

import subprocess
import sys
import unittest
from importlib import import_module
from pathlib import Path
from unittest import mock

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

    def test_the_quickstart_runs(self):
        example = Path(__file__).resolve().parents[2] / "examples" / "quickstart.py"
        done = subprocess.run([sys.executable, example], check=True, capture_output=True, text=True)
        self.assertEqual(done.stdout, "4 of 7 tokens from the cache, K[0] = 0.5\n")

    def test_commands_become_the_programs_of_the_package(self):
        programs = import_module("tessera.programs")
        with mock.patch.object(programs.Path, "exists", return_value=True):
            with mock.patch.object(programs.os, "execv") as become:
                with mock.patch.object(sys, "argv", ["anything", "doctor", "--json"]):
                    programs.tessera()
        path, arguments = become.call_args.args
        self.assertEqual((path.parent.name, path.name), ("bin", "tessera"))
        self.assertEqual(arguments, ["tessera", "doctor", "--json"])

    def test_a_package_without_programs_says_so(self):
        programs = import_module("tessera.programs")
        with mock.patch.object(programs.Path, "exists", return_value=False):
            with self.assertRaisesRegex(SystemExit, "tesserad: .*built without programs"):
                programs.tesserad()


if __name__ == "__main__":
    unittest.main()
