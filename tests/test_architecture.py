"""Who may import whom, and what an import costs."""

import ast
import functools
import graphlib
import importlib
import os
import pathlib
import re
import subprocess
import sys

import pytest

import tf_lamb

ROOT = pathlib.Path(tf_lamb.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
EXTRAS = ROOT.parent / "tf_lamb_extras"
FILES_OF_EXTRAS = sorted(EXTRAS.rglob("*.py"))
NAMES_OF_EXTRAS = [f"tf_lamb_extras.{path.parent.name}" for path in EXTRAS.glob("*/__init__.py")]

# room -> packages that its files may import, besides the standard library.
LAW = {
    "": {"tf_lamb.core"},
    "core": {"tf_lamb.core"},
    "api": {"tf_lamb.api", "tf_lamb.core"},
    "adopt": {"libcst", "tf_lamb.api", "tf_lamb.core", "tf_lamb.adopt"},
    "find": {"tf_lamb.api", "tf_lamb.core", "tf_lamb.find"},
    "tensorflow": {"tensorflow", "tf_lamb.core", "tf_lamb.tensorflow"},
    "keras": {
        "keras", "jax", "tensorflow", "torch", "tf_lamb.api", "tf_lamb.core",
        "tf_lamb.tensorflow", "tf_lamb.keras",
    },
    "tf_keras": {
        "tf_keras", "tensorflow", "tf_lamb.api", "tf_lamb.core", "tf_lamb.tensorflow",
        "tf_lamb.tf_keras",
    },
    "model_garden": {
        "absl", "gin", "official", "orbit", "sklearn", "tensorflow", "tensorboard", "tf_keras",
        "tokenizers", "tqdm", "yaml", "tf_lamb.api", "tf_lamb.core", "tf_lamb.tensorflow",
        "tf_lamb.tf_keras", "tf_lamb.model_garden",
    },
}  # fmt: skip

# What one file may import besides.
BEYOND = {
    "tensorflow/checkpoints.py": {"h5py", "tf_lamb.api.migration"},  # reads what others saved
    "tensorflow/summaries.py": {"tf_lamb.api.callbacks", "tf_lamb.api.optimizers"},  # their words
    "tensorflow/tracking.py": {"tf_lamb.api.optimizers"},  # their state by name
    # The wing of the searches, which nothing that trains imports.
    "keras/__init__.py": {"tf_lamb.find"},
    "tf_keras/__init__.py": {"tf_lamb.find"},
    "model_garden/find.py": {"tf_lamb.find.goodput"},
}
# And what only inside functions, on demand.
ON_DEMAND = {
    "core/recipes/growing.py": {"numpy"}, "api/data.py": {"numpy"}, "api/variables.py": {"numpy"},
    "find/trials.py": {"numpy"}, "api/plots.py": {"matplotlib", "numpy"},
    "api/optimizers/layout.py": {"numpy"},
    "model_garden/experiments/decays.py": {"numpy"},
}  # fmt: skip
# What an extra may import besides `tf_lamb` and itself; the second only inside functions.
OF_EXTRAS = {
    "absl", "keras", "official", "tensorflow", "tf_keras", "tf_lamb", "tf_lamb_extras.OF_BOTH",
    "tf_lamb_extras.lazily",
}  # fmt: skip
OF_EXTRAS_LAZILY = {"jax", "jaxlib", "numpy", "scipy", "sklearn", "threadpoolctl"}
# room -> packages that its files import inside functions alone: the backend may be another one.
LAZY = {"keras": {"jax", "tensorflow", "torch", "tf_lamb.tensorflow"}}
# The files that replace what is of others, at run time.
SEAMS = {f"{place}/seams.py" for place in ("api", "keras", "model_garden/common", "tf_keras")}
# How the code calls what is a user's, or a framework's that it has not imported.
OF_A_USER = {
    "adapter", "distribution", "inner", "inner_optimizer", "layer", "model", "optimizer", "scale",
    "variable", "wrapper",
}  # fmt: skip
# What a user may set, too; then what optimizers of ours alone have.
SETTABLE = {
    "iterations", "learning_rate", "stop_training",
    "_deferred_weights", "_is_from_config", "_recipe", "_replicas", "gradients_are_gathered",
    "gradients_are_summed",
}  # fmt: skip
# What an import of a package never loads.
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
            found += [(f"{name}.{alias.name}", node.lineno) for alias in node.names]
    return found


def lines(nodes):
    return {line for node in nodes for line in range(node.lineno, node.end_lineno + 1)}


def lazy_lines(path):
    """The lines inside functions, which an import does not run."""
    return lines(node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef))


def lines_for_editors(path):
    """What stands under TYPE_CHECKING is never run."""
    branches = (node for node in ast.walk(tree(path)) if isinstance(node, ast.If))
    return lines(node for node in branches if ast.unparse(node.test) == "TYPE_CHECKING")


def is_of(name, packages):
    parts = name.split(".")
    return any(".".join(parts[:end]) in packages for end in range(1, len(parts) + 1))


def room_of(path):
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else ""


def assert_none(offenders):
    """None there; or an error that lists them all, which pytest would cut short."""
    assert not (listed := sorted(map(str, offenders))), "\n" + "\n".join(listed)


# -- the package -----------------------------------------------------------------------------------


def test_the_import_law():
    def is_allowed(path, name, line):
        if path == ROOT / "__init__.py" and line in lines_for_editors(path):
            return is_of(name, {"tf_lamb"})
        file = path.relative_to(ROOT).as_posix()
        lazy = file in ON_DEMAND and line in lazy_lines(path)
        allowed = LAW[room_of(path)] | BEYOND.get(file, set())
        return is_of(name, sys.stdlib_module_names | allowed | (ON_DEMAND[file] if lazy else set()))

    assert_none(
        f"{path}:{line} imports {name}"
        for path in FILES
        for name, line in imports(path)
        if not is_allowed(path, name, line)
    )
    assert_none(file for file in {**BEYOND, **ON_DEMAND} if not ROOT.joinpath(file).exists())


def test_an_extra_imports_no_other():
    def is_allowed(path, name, line):
        own = {".".join(path.relative_to(ROOT.parent).parts[:2])}
        lazy = OF_EXTRAS_LAZILY if line in lazy_lines(path) else set()
        return is_of(name, sys.stdlib_module_names | OF_EXTRAS | own | lazy)

    assert_none(
        f"{path}:{line} imports {name}"
        for path in FILES_OF_EXTRAS
        for name, line in imports(path)
        if not is_allowed(path, name, line)
    )


def test_tf_lamb_knows_no_extra():
    """Neither by an import, nor by a string that becomes one, nor by a public name."""
    names = [name for extra in NAMES_OF_EXTRAS for name in importlib.import_module(extra).__all__]
    known = re.compile(rf"\btf_lamb_extras\.|\b({'|'.join(names)})\b")
    assert_none(
        f"{path} names {found.group()}"
        for path in FILES
        for found in known.finditer(path.read_text())
    )


@pytest.mark.parametrize("room", LAZY)
def test_a_backend_is_loaded_on_demand(room):
    assert_none(
        f"{path}:{line} imports {name}"
        for path in ROOT.joinpath(room).rglob("*.py")
        for name, line in imports(path)
        if is_of(name, LAZY[room]) and line not in lazy_lines(path)
    )


def module_of(path):
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def arrows():
    """(file, file that it imports) within the packages, wherever in it, as names of modules."""
    modules = {module_of(path) for path in FILES + FILES_OF_EXTRAS}
    found = set()
    for path in FILES + FILES_OF_EXTRAS:
        for name, _ in imports(path):
            taken = name if name in modules else name.rpartition(".")[0]
            if taken in modules:
                found.add((module_of(path), taken))
    return found


PLACES = {
    "files": lambda module: module,
    "rooms": lambda module: ".".join(module.split(".")[:2]),
    "folders": lambda module: ".".join(module.split(".")[:3]),
}


@pytest.mark.parametrize("places", PLACES)
def test_no_circle_between(places):
    graph, place = {}, PLACES[places]
    for here, there in arrows():
        if place(here) != place(there) and here != "tf_lamb":  # which opens its rooms on demand
            graph.setdefault(place(here), set()).add(place(there))
    graphlib.TopologicalSorter(graph).prepare()  # names the circle


# A run passes through the folders of the Model Garden in this order; what is typed comes last.
RUN = "common", "folders", "tasks", "experiments", "checks", "running", "commands"


def test_the_model_garden_runs_one_way():
    def place(module):
        _, _, inside = module.partition(".model_garden.")
        folder, _, file = inside.partition(".")
        return RUN.index(folder if file or folder in RUN else "commands")

    garden = [arrow for arrow in arrows() if all(".model_garden" in module for module in arrow)]
    assert_none(f"{here} imports {there}" for here, there in garden if place(here) < place(there))
    paths = [ROOT.joinpath("model_garden", part) for part in RUN[:-1]]
    assert all(path.is_dir() or path.with_suffix(".py").exists() for path in paths)
    folders = {path.name for path in ROOT.joinpath("model_garden").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} <= set(RUN)


@functools.cache
def replaced(path):
    """What a file changes that is of a framework, by an import or an alias of it, or of a user."""
    theirs = {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if is_of(getattr(node, "module", None) or alias.name, HOSTS | {"gin", "orbit"})
    }
    for node in ast.walk(tree(path)):
        match node:
            case ast.Assign([ast.Name(alias)], ast.Attribute() as value):
                if words_of(value)[0] in theirs:
                    theirs.add(alias)
    return [
        ast.unparse(whose)
        for node in ast.walk(tree(path))
        for whose, name in changed(node)
        for words in [words_of(whose)]
        if words[0] in theirs or (OF_A_USER.intersection(words) and name not in SETTABLE)
    ]


def words_of(node):
    return re.findall(r"\w+", ast.unparse(node))


def changed(node):
    """(whose, name) of an attribute or an entry that a node of a tree sets or deletes."""
    match node:
        case ast.Attribute(whose, name, ast.Store() | ast.Del()):
            yield whose, name
        case ast.Subscript(ast.Name() | ast.Attribute() as whose, _, ast.Store() | ast.Del()):
            yield whose, None
        case ast.Call(ast.Name("setattr" | "delattr"), [whose, name, *_]):
            yield whose, getattr(name, "value", None)
        case ast.Call(ast.Attribute(ast.Call(ast.Name("vars"), [whose]), "update" | "pop")):
            yield whose, None


def test_seams_alone_replace_what_is_of_a_framework_or_of_a_user():
    found = {path.relative_to(ROOT).as_posix(): replaced(path) for path in FILES}
    assert all(len(found.pop(file)) > 4 for file in SEAMS)
    assert_none(f"{file} changes {whose}" for file in found for whose in found[file])


# -- what an import does ---------------------------------------------------------------------------


def run(code, **env):
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("package", ["tf_lamb", *NAMES_OF_EXTRAS])
def test_importing_a_package_loads_no_framework(package):
    code = f"""if True:
    import importlib, sys
    finders = list(sys.meta_path)
    package = importlib.import_module("{package}")
    assert sys.meta_path == finders
    dir(package)
    print(*sys.modules)
    """
    assert not {name.split(".")[0] for name in run(code).split()} & (HOSTS | {"numpy"})


@pytest.mark.parametrize(
    ("host", "legacy"), [("keras", "0"), pytest.param("tf_keras", "1", marks=pytest.mark.slow)]
)
def test_the_package_alone_opens_the_frontend_of_its_host(host, legacy, tmp_path):
    """One process: a saved model loads, and the bare name is of what `tf.keras` is."""
    out = run(
        f"""if True:
        import sys, {host} as host, tf_lamb
        frontend = sys.modules["tf_lamb.{host}"]  # opened by that import, or no saved model loads
        model = host.Sequential([host.Input((2,)), host.layers.Dense(1)])
        model.compile(frontend.LAMB(), "mse")
        model.save("{tmp_path}/m.keras")
        loaded = host.models.load_model("{tmp_path}/m.keras").optimizer
        assert type(loaded) is frontend.LAMB and loaded is not model.optimizer

        import tensorflow as tf
        assert tf_lamb.LAMB.__module__ == "tf_lamb.{host}.family", tf_lamb.LAMB.__module__
        assert issubclass(tf_lamb.LAMB, tf.keras.optimizers.Optimizer)
        print("both")
        """,
        TF_USE_LEGACY_KERAS=legacy,
    )
    assert out.split()[-1:] == ["both"]


@pytest.mark.parametrize("host", ["keras", pytest.param("tf_keras", marks=pytest.mark.slow)])
def test_the_searches_are_loaded_at_their_first_use(host):
    run(
        f"""if True:
        import sys, {host}, tf_lamb
        frontend = sys.modules["tf_lamb.{host}"]
        assert not any(name.startswith("tf_lamb.find.") for name in sys.modules)
        assert {{"find_batch", "find_rate"}} <= set(dir(frontend))
        assert frontend.find_batch.__module__ == "tf_lamb.find.batch"
        assert frontend.find_rate.__module__ == "tf_lamb.find.rate"
        """
    )


# -- the tests -------------------------------------------------------------------------------------
