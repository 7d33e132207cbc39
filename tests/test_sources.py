"""Rules that hold for every source file of the project."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("splaxel_mpi", "cuda_src", "tests", "tools", "benchmarks", "configs", "jobs", "docs")
TOP = ("Makefile", "README.md", "CHANGES.md", "setup.py", "setup.cfg", "pyproject.toml", ".ci/run")
CODE = {"", ".py", ".cpp", ".h", ".cu", ".cuh", ".sh"}
TEXT = CODE | {".md", ".yaml", ".yml", ".cfg", ".toml", ".sbatch", ".txt"}
# A file is to be read in one sitting: about 400 lines, with room for one more function.
MAX_LINES = 420
MAX_COLUMNS = 100


def files(endings):
    """Our files with one of `endings` ("" for Makefile), relative to the root, sorted."""
    found = [ROOT / name for name in TOP]
    for folder in FOLDERS:
        found += (ROOT / folder).rglob("*")
    return sorted(p.relative_to(ROOT) for p in found if p.suffix in endings and p.is_file())


def offences(endings, offends):
    """["path:line: text"] of the lines for which offends(line) is true."""
    return [
        f"{path}:{number}: {line.strip()[:120]}"
        for path in files(endings)
        for number, line in enumerate(read(path).splitlines(), 1)
        if offends(line)
    ]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def tree(path):
    return ast.parse(read(path), filename=str(path))


def package_files():
    return [p for p in files({".py"}) if p.parts[0] == "splaxel_mpi"]


def imports(node):
    """Names that `node` imports: "a.b" for both "import a.b" and "from a import b"."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def at_import(node):
    """Nodes below `node` that run when the module is imported: all but function bodies."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from at_import(child)


def test_files_are_short():
    long = {str(p): n for p in files(CODE) if (n := len(read(p).splitlines())) > MAX_LINES}
    assert not long


def test_lines_are_short():
    assert not offences(CODE, lambda line: len(line) > MAX_COLUMNS)


def test_no_path_of_one_machine():
    pattern = re.compile(r"(?<![\w.$}/])/(work|root|home|Users|mnt|opt)/\w")
    assert not offences(TEXT, pattern.search)


def test_no_package_registry_is_named():
    pattern = re.compile(r"\b(pypi|pythonhosted|anaconda|npmjs|crates)\.(org|io|com)\b")
    assert not offences(TEXT, pattern.search)


def test_nothing_is_left_to_do():
    pattern = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
    assert not offences(CODE, pattern.search)


@pytest.mark.parametrize("library", ["cupy", "pycuda", "torch", "mpi4py"])
def test_optional_library_is_not_imported_with_the_package(library):
    """cupy waits for a CUDA backend; MPI starts on import, so only splaxel_mpi/mpi does that."""
    found = [
        f"{path}: {name}"
        for path in package_files()
        for node in at_import(tree(path))
        for name in imports(node)
        if name.split(".")[0] == library
        if not (library == "mpi4py" and path.parts[1] == "mpi")
    ]
    assert not found


def test_input_is_never_executed():
    """Settings and scenes come from others: no pickle, eval, shell or unsafe YAML."""
    found = [
        f"{path}:{node.lineno}: {reason}"
        for path in package_files()
        for node in ast.walk(tree(path))
        if (reason := executes(node))
    ]
    assert not found


def executes(node):
    """Why `node` could run what is in a file, or None."""
    for name in imports(node):
        if name.split(".")[0] in {"pickle", "dill", "cloudpickle", "marshal", "shelve"}:
            return f"imports {name}"
    if not isinstance(node, ast.Call):
        return None
    called = ast.unparse(node.func)
    if called in {"eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"}:
        return f"calls {called}"
    for keyword in node.keywords:
        if keyword.arg in {"shell", "allow_pickle"} and ast.unparse(keyword.value) != "False":
            return f"passes {keyword.arg}"
    return None


IMPORT_ALL = """
import importlib, pkgutil, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"mpi4py", "cupy", "pycuda"}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Block())
import splaxel_mpi

for module in pkgutil.walk_packages(splaxel_mpi.__path__, "splaxel_mpi."):
    # The extension is no module of Python's: ctypes loads it.
    if not module.name.startswith("splaxel_mpi.mpi.") and not module.name.endswith("._host"):
        importlib.import_module(module.name)
        print(module.name)
"""


def test_package_imports_without_mpi_and_cuda():
    """As on a login node: everything but splaxel_mpi/mpi imports where MPI may not start."""
    result = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert "splaxel_mpi.backends.base" in result.stdout.split()
