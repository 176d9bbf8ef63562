"""What the connector uses of vLLM is what vllm_uses.py lists, and every version has it.

The second half needs the Python sources of the versions: TESSERA_VLLM_SOURCES, or the folder that
tools/setup-vllm-sources fills. Nothing is downloaded here and no vLLM is imported.
"""

import ast
import functools
import os
import subprocess
import unittest
from pathlib import Path

import vllm_uses as uses

from tessera.vllm import versions

TREE = Path(__file__).resolve().parents[2]
PACKAGE = TREE / "python/tessera/vllm"
CLASSES = ("ConnectorBase", "SchedulerSide", "WorkerSide", "TesseraConnector")
# Blending has its own way to tell whether a model and a vLLM are what it knows.
PLAIN = ("base", "compat", "events", "scheduler", "shape", "worker")


def sources():
    named = os.environ.get("TESSERA_VLLM_SOURCES")
    if named:
        return Path(named)
    tool = TREE / "tools/setup-vllm-sources"
    return Path(subprocess.check_output([tool, "--print-dir"], text=True).strip())


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(body):
    """Of a module, also those under if and try."""
    for one in body:
        yield one
        if isinstance(one, ast.If | ast.Try):
            yield from statements(one.body + one.orelse)
        if isinstance(one, ast.Try):
            yield from statements([line for part in one.handlers for line in part.body])


def parameters(function):
    names = [arg.arg for arg in function.args.posonlyargs + function.args.args]
    if names and names[0] in ("self", "cls"):
        del names[0]
    names += ["*" + function.args.vararg.arg] if function.args.vararg else []
    return tuple(names + (["**" + function.args.kwarg.arg] if function.args.kwarg else []))


class Version:
    def __init__(self, folder):
        self.folder = folder
        self.names = functools.cache(self.names)

    def module(self, name):
        path = self.folder.joinpath(*name.split("."))
        return parsed(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))

    def names(self, module):
        found = {}
        for one in statements(self.module(module).body):
            if isinstance(one, ast.ClassDef | ast.FunctionDef):
                found[one.name] = one
            elif isinstance(one, ast.ImportFrom | ast.Import):
                found.update((part.asname or part.name, one) for part in one.names)
            elif isinstance(one, ast.Assign):
                found.update((to.id, one) for to in one.targets if isinstance(to, ast.Name))
            elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                found[one.target.id] = one
        return found

    def has(self, module, name):
        """A package may import what it names only when it is asked for."""
        if name in self.names(module):
            return True
        nodes = ast.walk(self.module(module)) if name.isidentifier() else ()
        return any(isinstance(one, ast.Constant) and one.value == name for one in nodes)

    def find(self, where):
        module, _, path = where.partition(":")
        head, _, method = path.partition(".")
        one = self.names(module).get(head)
        return self.members(module, one).get(method) if method and one is not None else one

    def members(self, module, kind):
        """Attributes of a class and of its bases in the same module."""
        found = {}
        if not isinstance(kind, ast.ClassDef):
            return found
        for base in kind.bases:
            if isinstance(base, ast.Name):
                found.update(self.members(module, self.names(module).get(base.id)))
        for one in kind.body:
            if isinstance(one, ast.FunctionDef):
                found[one.name] = one
                found.update((name, one) for name in assigned(one))
            elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                found[one.target.id] = one
            elif isinstance(one, ast.Assign):
                found.update((to.id, one) for to in one.targets if isinstance(to, ast.Name))
        return found


def assigned(function):
    for one in ast.walk(function):
        if (
            isinstance(one, ast.Attribute)
            and isinstance(one.ctx, ast.Store)
            and isinstance(one.value, ast.Name)
            and one.value.id == "self"
        ):
            yield one.attr


@functools.cache
def version_in(folder):
    return Version(folder)


class TestTables(unittest.TestCase):
    """The tables say what the package does."""

    def test_every_import_is_listed(self):
        found = set()
        for path in PACKAGE.glob("*.py"):
            modules = {}  # names that stand for a module
            for one in ast.walk(parsed(path)):
                if isinstance(one, ast.Import):
                    modules.update((part.name, part.name) for part in one.names)
                if not isinstance(one, ast.ImportFrom) or not (one.module or "").startswith("vllm"):
                    continue
                for part in one.names:
                    if part.name == "base":
                        modules["base"] = f"{one.module}.base"
                    else:
                        found.add((one.module, part.name))
            for one in ast.walk(parsed(path)):
                if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
                    module = modules.get(one.value.id, "")
                    if module.startswith("vllm"):
                        found.add((module, one.attr))
        listed = {(module, name) for module, names in uses.IMPORTS.items() for name in names}
        self.assertEqual(found, listed)

    def test_every_hook_is_listed_with_its_parameters(self):
        found = {}
        for name in ("base", "scheduler", "worker", "connector"):
            for one in parsed(PACKAGE / f"{name}.py").body:
                if isinstance(one, ast.ClassDef) and one.name in CLASSES:
                    methods = [part for part in one.body if isinstance(part, ast.FunctionDef)]
                    found.update((part.name, parameters(part)) for part in methods)
        found = {name: args for name, args in found.items() if not name.startswith("_")}
        self.assertEqual(set(found), set(uses.HOOKS))
        for name, (_since, args) in uses.HOOKS.items():
            self.assertIn(found[name], (args, ("*args", "**kwargs")), name)

    def test_every_attribute_is_listed(self):
        found = set()
        for name in PLAIN:
            for one in ast.walk(parsed(PACKAGE / f"{name}.py")):
                if not isinstance(one, ast.Attribute):
                    continue
                value = one.value
                holder = value.id if isinstance(value, ast.Name) else getattr(value, "attr", "")
                kind = uses.VARIABLES.get(holder)
                if kind is not None:
                    found.add((kind, one.attr))
        listed = {(kind, name) for kind, names in uses.FIELDS.items() for name in names}
        self.assertEqual(found - listed, set())

    def test_every_listed_attribute_is_read(self):
        read = set()
        for name in PLAIN:
            nodes = ast.walk(parsed(PACKAGE / f"{name}.py"))
            read |= {one.attr for one in nodes if isinstance(one, ast.Attribute)}
        for kind, names in uses.FIELDS.items():
            self.assertEqual(set(names) - read, set(), kind)

    def test_versions_are_those_of_the_package(self):
        minors = {versions.minor(version) for version in uses.VERSIONS}
        self.assertEqual(minors, set(range(versions.FIRST, versions.LAST + 1)))
        self.assertEqual(uses.FIRST, versions.FIRST)

    def test_documented(self):
        text = (TREE / "docs/engines.md").read_text(encoding="utf-8")
        for version in uses.VERSIONS:
            self.assertTrue(version in text, version)


class TestSources(unittest.TestCase):
    """Every version has what the tables say, from the version on that they say."""

    @classmethod
    def setUpClass(cls):
        cls.folder = sources()
        cls.found = [one for one in uses.VERSIONS if (cls.folder / one / "vllm").is_dir()]
        if not cls.found:
            raise unittest.SkipTest(f"no sources of vLLM in {cls.folder}: tools/setup-vllm-sources")

    def each(self, check):
        for name in self.found:
            with self.subTest(vllm=name):
                check(versions.minor(name), version_in(self.folder / name))

    def check(self, there, since, minor, what):
        self.assertEqual(there, minor >= since, f"{what}: {'there' if there else 'missing'}")

    def test_all_versions_are_there(self):
        self.assertEqual(tuple(self.found), uses.VERSIONS)

    def test_names(self):
        self.each(self.check_names)

    def check_names(self, minor, version):
        for module, names in uses.IMPORTS.items():
            for name, since in names.items():
                self.check(version.has(module, name), since, minor, f"{module}.{name}")

    def test_hooks(self):
        self.each(self.check_hooks)

    def check_hooks(self, minor, version):
        base = f"{uses._V1}.base"
        for name, (since, wanted) in uses.HOOKS.items():
            kind = "SupportsHMA" if name.endswith("all_groups") else "KVConnectorBase_V1"
            found = version.find(f"{base}:{kind}.{name}")
            self.check(found is not None, since, minor, name)
            if found is not None:
                self.assertEqual(parameters(found), wanted, name)

    def test_calls(self):
        self.each(self.check_calls)

    def check_calls(self, minor, version):
        for name, (since, wanted) in uses.CALLS.items():
            found = version.find(name)
            self.check(found is not None, since, minor, name)
            if found is not None:
                self.assertEqual(parameters(found)[: len(wanted)], wanted, name)

    def test_attributes(self):
        self.each(self.check_attributes)

    def check_attributes(self, minor, version):
        for kind, names in uses.FIELDS.items():
            module = kind.partition(":")[0]
            found = version.members(module, version.find(kind))
            for name, since in names.items():
                self.check(name in found, since, minor, f"{kind}.{name}")

    def test_nothing_else_is_abstract(self):
        """vLLM could not make a connector that lacks an abstract method."""
        self.each(self.check_abstract)

    def check_abstract(self, _minor, version):
        base = f"{uses._V1}.base"
        for kind in ("KVConnectorBase_V1", "SupportsHMA"):
            for name, one in version.members(base, version.find(f"{base}:{kind}")).items():
                marks = getattr(one, "decorator_list", ())
                if any(getattr(mark, "id", "") == "abstractmethod" for mark in marks):
                    self.assertIn(name, uses.HOOKS)


if __name__ == "__main__":
    unittest.main()
