"""Commands of the documents and examples, read by the engines' own argument parsers."""

import json
import re
import shlex
import unittest
from pathlib import Path

import tessera.sglang.plugin

TREE = Path(__file__).resolve().parents[3]
TEXTS = ["docs/engines.md", "examples/sglang/README.md", "examples/vllm/README.md"]


def commands(program):
    """Arguments behind `program`, wherever it stands in an indented block."""
    for name in TEXTS:
        text = (TREE / name).read_text()
        for block in re.findall(r"(?:^    .*\n)+", text, re.M):
            lines = re.sub(r"\\\n\s*", " ", re.sub(r"^    ", "", block, flags=re.M))
            for at in re.finditer(re.escape(program), lines):
                yield name, arguments(lines[at.end() :])


def arguments(text):
    """Up to the end of the command: a line break outside of quotes, or an ampersand."""
    files = re.compile(r'"\$\(cat ([^)]*)\)"')
    text = files.sub(lambda found: shlex.quote((TREE / found.group(1)).read_text()), text)
    parser = shlex.shlex(text, posix=True, punctuation_chars="&\n")
    parser.whitespace = " \t"
    parser.whitespace_split = True
    parser.commenters = ""
    words = []
    for word in parser:
        if set(word) <= set("&\n"):
            break
        words.append(word)
    return words


class TestCommands(unittest.TestCase):
    def test_sglang(self):
        import argparse

        from sglang.srt.server_args import ServerArgs

        tessera.sglang.plugin.register()
        seen = []
        for name, words in commands("sglang.launch_server"):
            with self.subTest(name, words=words):
                parser = argparse.ArgumentParser(exit_on_error=False)
                ServerArgs.add_cli_args(parser)
                args = parser.parse_args(words)
                seen.append(args.radix_cache_backend or args.hicache_storage_backend)
                if args.hicache_storage_backend:
                    extra = json.loads(args.hicache_storage_backend_extra_config)
                    self.assertEqual(extra["class_name"], "TesseraStorage")
        self.assertEqual(sorted(set(seen)), ["dynamic", "tessera"])

    def test_vllm(self):
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        seen = 0
        for name, words in commands("vllm serve"):
            with self.subTest(name, words=words):
                parser = make_arg_parser(FlexibleArgumentParser(exit_on_error=False))
                args = parser.parse_args(words)
                self.assertEqual(args.kv_transfer_config.kv_connector, "TesseraConnector")
                self.assertEqual(args.kv_transfer_config.kv_load_failure_policy, "recompute")
                seen += 1
        self.assertGreaterEqual(seen, 4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
