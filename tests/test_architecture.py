"""The house: who may import whom, what an import costs, and that the tests are built alike."""

import ast
import functools
import os
import pathlib
import subprocess
import sys

import pytest

import tf_lamb

ROOT = pathlib.Path(tf_lamb.__file__).parent
TESTS = pathlib.Path(__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
TEST_FILES = sorted(TESTS.rglob("*.py"))

# room -> packages that its files may import, besides the standard library.
LAW = {
    "": {"tf_lamb.registration"},
    "core": {"tf_lamb.core"},
    "api": {"tf_lamb.api", "tf_lamb.core"},
    "tensorflow": {"h5py", "tensorflow", "tf_lamb.api", "tf_lamb.core", "tf_lamb.tensorflow"},
    "keras": {
        "keras", "jax", "tensorflow", "tf_lamb.api", "tf_lamb.core", "tf_lamb.tensorflow",
        "tf_lamb.tpu", "tf_lamb.keras",
    },
    "tf_keras": {
        "tf_keras", "tensorflow", "tf_lamb.api", "tf_lamb.core", "tf_lamb.tensorflow",
        "tf_lamb.tf_keras",
    },
    "model_garden": {
        "absl", "gin", "official", "orbit", "sklearn", "tensorflow", "tensorboard", "tf_keras",
        "tokenizers", "tqdm", "yaml", "tf_lamb.api", "tf_lamb.core", "tf_lamb.tensorflow",
        "tf_lamb.tf_keras", "tf_lamb.tpu", "tf_lamb.model_garden",
    },
    "tpu": {"jax", "jaxlib", "tf_lamb.core", "tf_lamb.tpu"},
}  # fmt: skip

# Needed only on demand: a file of this name may import them too, but inside functions.
ON_DEMAND = {
    "gaussian_process.py": {"numpy", "scipy", "sklearn", "threadpoolctl"},
    "picture.py": {"matplotlib", "numpy"},
}
# What `pytest tests/core` never loads.
HOSTS = {"jax", "keras", "official", "tensorflow", "tf_keras", "torch"}


@functools.cache
def tree(path):
    return ast.parse(path.read_text())


@functools.cache
def imports(path):
    """(name, line) of all that a file imports, wherever in it."""
    found = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            if name in ("tf_lamb", "support"):  # judged by what is taken from them
                found += [(f"{name}.{alias.name}", node.lineno) for alias in node.names]
            else:
                found.append((name, node.lineno))
    return found


def functions(path):
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]


def lines(nodes):
    return {line for node in nodes for line in range(node.lineno, node.end_lineno + 1)}


def lazy_lines(path):
    """The lines inside functions, which an import does not run."""
    return lines(functions(path))


def lines_for_editors(path):
    """What stands under TYPE_CHECKING is never run."""
    branches = (node for node in ast.walk(tree(path)) if isinstance(node, ast.If))
    return lines(node for node in branches if ast.unparse(node.test) == "TYPE_CHECKING")


def is_of(name, packages):
    return any(name == package or name.startswith(package + ".") for package in packages)


def room_of(path, root=ROOT):
    parts = path.relative_to(root).parts
    return parts[0] if len(parts) > 1 else ""


def assert_none(offenders):
    """None there; or an error that lists them all, which pytest would cut short."""
    assert not (listed := sorted(map(str, offenders))), "\n" + "\n".join(listed)


# -- the package -----------------------------------------------------------------------------------


def test_the_import_law():
    def is_allowed(path, name, line):
        lazy = path.name in ON_DEMAND and line in lazy_lines(path)
        on_demand = ON_DEMAND[path.name] if lazy else set()
        if path == ROOT / "__init__.py" and line in lines_for_editors(path):
            return is_of(name, {"tf_lamb"})
        return is_of(name, sys.stdlib_module_names | LAW[room_of(path)] | on_demand)

    assert_none(
        f"{path}:{line} imports {name}"
        for path in FILES
        for name, line in imports(path)
        if not is_allowed(path, name, line)
    )


def test_door_1_loads_a_backend_only_where_keras_does():
    """In `keras`, a backend is imported inside functions only: it may be another one."""
    assert_none(
        f"{path}:{line} imports {name}"
        for path in ROOT.joinpath("keras").rglob("*.py")
        for name, line in imports(path)
        if is_of(name, ("jax", "tensorflow", "tf_lamb.tensorflow"))
        if line not in lazy_lines(path)
    )


def test_files_are_rooms_not_halls():
    assert_none(path for path in FILES if len(path.read_text().splitlines()) > 250)


def code_lines(function):
    """Lines of code of a function, without its signature and its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_a_rule_fits_on_a_screen():
    rules = list(ROOT.joinpath("core", "rules").glob("*.py"))
    assert sum(len(functions(path)) for path in rules) > 10
    assert_none(
        f"{path}: {function.name}"
        for path in rules
        for function in functions(path)
        if code_lines(function) > 40
    )


# -- what an import does ---------------------------------------------------------------------------


def run(code, **env):
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_no_framework():
    code = "import sys, tf_lamb; dir(tf_lamb); print(*sys.modules)"
    assert not {name.split(".")[0] for name in run(code).split()} & (HOSTS | {"numpy"})


@pytest.mark.parametrize(("host", "legacy"), [("keras", "0"), ("tf_keras", "1")])
def test_the_package_alone_opens_the_door_of_its_host(host, legacy, tmp_path):
    """One process: a saved model loads, and the bare name is of what `tf.keras` is."""
    out = run(
        f"""if True:
        import sys, {host} as host, tf_lamb
        door = sys.modules["tf_lamb.{host}"]  # opened by that import, or no saved model loads
        model = host.Sequential([host.Input((2,)), host.layers.Dense(1)])
        model.compile(door.LAMB(), "mse")
        model.save("{tmp_path}/m.keras")
        loaded = host.models.load_model("{tmp_path}/m.keras").optimizer
        assert type(loaded) is door.LAMB and loaded is not model.optimizer

        import tensorflow as tf
        assert tf_lamb.LAMB.__module__ == "tf_lamb.{host}.family", tf_lamb.LAMB.__module__
        assert issubclass(tf_lamb.LAMB, tf.keras.optimizers.Optimizer)
        print("both")
        """,
        TF_USE_LEGACY_KERAS=legacy,
    )
    assert out.split()[-1:] == ["both"]


def test_door_1_on_jax_loads_no_tensorflow_room():
    code = "import sys, tf_lamb.keras; print('tf_lamb.tensorflow' in sys.modules)"
    assert run(code, KERAS_BACKEND="jax").strip() == "False"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'LAMBDA'"):
        tf_lamb.LAMBDA  # noqa: B018


# -- the tests -------------------------------------------------------------------------------------


def test_every_folder_of_tests_is_a_room():
    rooms = {*LAW, "docs", "goldens", "support"}
    assert_none({room_of(path, TESTS) for path in TEST_FILES} - rooms)


def test_no_test_file_imports_another():
    assert_none(
        f"{path}:{line} imports {name}"
        for path in TEST_FILES
        for name, line in imports(path)
        if any(part.startswith(("test_", "conftest")) for part in name.split("."))
    )


def loaded_by(path):
    """(file, name, line) of all that a test file imports, and the helpers that it imports."""
    for name, line in imports(path):
        yield path, name, line
        parts = name.split(".")
        # `from support import x` is of a module, `from support.x import y` of one too.
        helper = TESTS.joinpath(*parts[: 1 + (parts[0] == "support")]).with_suffix(".py")
        if helper.exists():
            yield from loaded_by(helper)


def test_the_tests_of_core_load_no_framework():
    free = ("", "core", "api", "tpu")  # of any framework
    beyond = HOSTS | {f"tf_lamb.{room}" for room in LAW if room not in free}
    assert_none(
        {
            f"{file}:{line} imports {name}"
            for path in TESTS.joinpath("core").glob("*.py")
            for file, name, line in loaded_by(path)
            if is_of(name, beyond)
        }
    )
