"""A malformed recipe is one clear error of ours, and no file of ours executes what it reads."""

import ast

import pytest
from support import malformed
from support.malformed import PACKAGE, every, refused

from tf_lamb import recipes
from tf_lamb.core import schedules


@every(malformed.RECIPES)
def test_a_malformed_recipe(row):
    name, arguments, words = row
    function = getattr(recipes, name, None) or getattr(schedules, name)
    refused(lambda: function(*arguments), (TypeError, ValueError), words)


# -- nothing is executed --------------------------------------------------------------------------

EXECUTES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "code"}
CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
METHODS = {"unsafe_load", "full_load", "enable_unsafe_deserialization", "system", "popen"}


def suspicious(tree):
    """The lines that could execute what they read."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module]
        if any(name.split(".")[0] in EXECUTES for name in names):
            yield node.lineno
        if isinstance(node, ast.keyword):
            value = getattr(node.value, "value", None)
            if (node.arg, value) in {("safe_mode", False), ("allow_pickle", True), ("shell", True)}:
                yield node.value.lineno
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in CALLS:
            yield node.lineno
        if isinstance(called, ast.Attribute) and called.attr in METHODS:
            yield node.lineno
        if ast.unparse(called) in ("yaml.load", "yaml.load_all"):
            loaders = [ast.unparse(k.value) for k in node.keywords if k.arg == "Loader"]
            if loaders != ["_Loader"]:
                yield node.lineno


def test_nothing_executes_what_it_reads():
    files = sorted(PACKAGE.rglob("*.py"))
    found = [f"{path}:{line}" for path in files for line in suspicious(ast.parse(path.read_text()))]
    assert files and not found


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from marshal import loads", "eval(text)", "np.load(f, allow_pickle=True)",
     "keras.models.load_model(f, safe_mode=False)", "yaml.load(f, Loader=yaml.Loader)",
     "yaml.load(f)", "yaml.unsafe_load(f)", "os.system(c)", "subprocess.run(c, shell=True)",
     "keras.config.enable_unsafe_deserialization()"],
)  # fmt: skip
def test_the_scan_would_see_it(code):
    assert list(suspicious(ast.parse(code)))
