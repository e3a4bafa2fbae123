"""The house: who may import whom, and what an import costs."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

import tf_lamb

ROOT = pathlib.Path(tf_lamb.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# room -> packages that its files may import, besides the standard library.
LAW = {
    "": set(),
    "core": {"tf_lamb.core"},
    "tensorflow": {"h5py", "tensorflow", "tf_lamb.core", "tf_lamb.tensorflow"},
    "keras": {
        "keras", "jax", "tensorflow", "tf_lamb.core", "tf_lamb.tensorflow", "tf_lamb.tpu",
        "tf_lamb.keras",
    },
    "tf_keras": {
        "tf_keras", "tensorflow", "tf_lamb.core", "tf_lamb.tensorflow", "tf_lamb.tf_keras",
    },
    "model_garden": {
        "absl", "gin", "official", "orbit", "sklearn", "tensorflow", "tensorboard", "tf_keras",
        "tokenizers", "tqdm", "yaml", "tf_lamb.core", "tf_lamb.tensorflow", "tf_lamb.tf_keras",
        "tf_lamb.tpu", "tf_lamb.model_garden",
    },
    "tpu": {"jax", "jaxlib", "tf_lamb.core", "tf_lamb.tpu"},
}  # fmt: skip


# Needed only on demand: a file of this name may import them too, but inside functions.
ON_DEMAND = {
    "gaussian_process.py": {"numpy", "scipy", "sklearn", "threadpoolctl"},
    "picture.py": {"matplotlib", "numpy"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module, node
            if node.module == "tf_lamb":
                yield from ((f"tf_lamb.{alias.name}", node) for alias in node.names)


def lazy_lines(path):
    """The lines inside functions, which an import does not run."""
    functions = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef))
    return {line for n in functions for line in range(n.lineno, n.end_lineno + 1)}


def room_of(path):
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_import_law(path):
    lazy = lazy_lines(path)
    for name, node in imports(path):
        if name.split(".")[0] in sys.stdlib_module_names:
            continue
        on_demand = ON_DEMAND.get(path.name, set()) if node.lineno in lazy else set()
        allowed = LAW[room_of(path)] | on_demand
        permitted = any(name == package or name.startswith(package + ".") for package in allowed)
        bare = name == "tf_lamb" and isinstance(node, ast.ImportFrom)  # judged by what it takes
        assert permitted or bare, f"{path}:{node.lineno} imports {name}"


def test_door_1_loads_a_backend_only_where_keras_does():
    """In `keras`, a backend is imported inside functions only: it may be another one."""
    for path in ROOT.joinpath("keras").glob("*.py"):
        top = ast.parse(path.read_text()).body
        names = {n for node in top for n, _ in imports_of(node)}
        backends = ("jax", "tensorflow", "tf_lamb.tensorflow")
        assert not {n for n in names if n.startswith(backends)}, path


def imports_of(node):
    if isinstance(node, ast.Import):
        return [(alias.name, node) for alias in node.names]
    return [(node.module, node)] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_rooms_not_halls(path):
    assert len(path.read_text().splitlines()) <= 250


def code_lines(function):
    """Lines of code of a function, without its signature and its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", sorted(ROOT.joinpath("core", "rules").glob("*.py")), ids=str)
def test_a_rule_fits_on_a_screen(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            assert code_lines(node) <= 40, f"{path}: {node.name}"


def run(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip


def test_importing_the_package_loads_no_framework():
    code = "import sys, tf_lamb; dir(tf_lamb); print(*sys.modules)"
    loaded = {name.split(".")[0] for name in run(code).split()}
    assert not loaded & {"tensorflow", "keras", "tf_keras", "jax", "numpy", "official", "torch"}


@pytest.mark.parametrize("host", ["keras", "tf_keras"])
def test_a_saved_model_loads_where_only_the_package_was_imported(host, tmp_path):
    save = (
        f"import {host}, tf_lamb.{host}; m = {host}.Sequential([{host}.Input((2,)),"
        f" {host}.layers.Dense(1)]); m.compile(tf_lamb.{host}.LAMB(), 'mse');"
        f" m.save('{tmp_path}/m.keras')"
    )
    load = (
        f"import {host}, tf_lamb;"
        f" print({host}.models.load_model('{tmp_path}/m.keras').optimizer.name)"
    )
    run(save)
    assert run(load).strip() == "LAMB"


@pytest.mark.parametrize(("legacy", "module"), [("0", "tf_lamb.keras"), ("1", "tf_lamb.tf_keras")])
def test_the_bare_name_follows_tensorflow(legacy, module):
    code = (
        "import tf_lamb, tensorflow as tf; print(tf_lamb.LAMB.__module__,"
        " issubclass(tf_lamb.LAMB, tf.keras.optimizers.Optimizer))"
    )
    name, is_subclass = run(code, TF_USE_LEGACY_KERAS=legacy).split()
    assert name == f"{module}.family"
    assert is_subclass == "True"


def test_door_1_on_jax_loads_no_tensorflow_room():
    code = "import sys, tf_lamb.keras; print('tf_lamb.tensorflow' in sys.modules)"
    assert run(code, KERAS_BACKEND="jax").strip() == "False"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'LAMBDA'"):
        tf_lamb.LAMBDA  # noqa: B018
