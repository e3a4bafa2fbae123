"""Adds notes on loops, checkpoints and saved models, which `finder.py` does not rewrite."""

import re

import libcst as cst
from libcst import matchers

from tf_lamb.adopt.aggregation import Aggregation
from tf_lamb.adopt.attributes import Attributes
from tf_lamb.adopt.building import Building
from tf_lamb.adopt.holders import Holders
from tf_lamb.adopt.reading import Note, Script
from tf_lamb.adopt.sources import Source

_RESTORES = {"restore", "restore_or_initialize"}
# Full name of a function that loads models -> the module of ours that it needs for our optimizers.
_LOADS = {
    f"{keras}.{name}.load_model": our_module
    for keras, our_module in (
        ("keras", "tf_lamb.keras"), ("tensorflow.keras", "tf_lamb.keras"),
        ("tf_keras", "tf_lamb.tf_keras"),
    )
    for name in ("models", "saving")
}  # fmt: skip
_SAVED_FILE = re.compile(r"\.(?:keras|h5|hdf5)\b")
_IMPORT = re.compile(r"^\s*(?:from ([\w.]+) )?import ([^#\n]+)", re.MULTILINE)


class Continuing:
    """Collects the calls that `Finder` visits, and adds notes once it has visited the script.

    Args:
        script: The script, which receives the notes.
    """

    def __init__(self, script: Script):
        self._script = script
        # The rewritten calls, with the optimizer that each called and our module.
        self._rewritten: list[tuple[cst.Call, Source, str]] = []
        self._methods: set[str] = set()  # the names of all methods that are called
        self._builds: list[cst.Attribute] = []  # `....build`, as it is called
        self._updates: list[cst.Call] = []  # `optimizer.apply_gradients(...)`
        self._checkpoints: list[cst.Call] = []  # `tf.train.Checkpoint(optimizer=...)`
        self._saves: list[cst.Call] = []  # calls that save a model with its optimizer

    def see_call(self, node: cst.Call, name: str) -> None:
        """Takes note of a call.

        Args:
            node: The call.
            name: The full name that it calls, such as "tensorflow.train.Checkpoint", or "".
        """
        if isinstance(node.func, cst.Attribute):
            method = node.func.attr.value
            self._methods.add(method)
            if method == "build":
                self._builds.append(node.func)
            if method in ("apply_gradients", "apply"):
                self._updates.append(node)
        if name == "tensorflow.train.Checkpoint" and "opt" in self._script.code_of(node):
            self._checkpoints.append(node)
        if self._is_save(node, name):
            self._saves.append(node)

    def see_rewritten(self, node: cst.Call, source: Source, module: str) -> None:
        """Takes note of an optimizer that is replaced.

        Args:
            node: The call that makes it.
            source: The optimizer.
            module: The module that our class is taken from, such as "tf_lamb.keras".
        """
        if module == "tf_lamb" and "TF_USE_LEGACY_KERAS" in self._script.code:
            module = "tf_lamb.tf_keras"  # the one that tf_lamb follows in such a script
        self._rewritten.append((node, source, module))

    def add_notes(self) -> None:
        """Adds the notes, if an optimizer of the script was replaced by one of this package."""
        if not self._rewritten:
            return
        calls = [node for node, _, module in self._rewritten if module != "tf_lamb.tf_keras"]
        all_calls = {node for node, _, _ in self._rewritten}
        holders, has_strategy = Holders(self._script, set(calls) or all_calls), self._has_strategy()
        if calls and has_strategy:
            in_loops = [node for node in self._updates if not self._is_called_by_fit(node)]
            Building(self._script, holders, calls, in_loops, self._builds).add()
        if calls:
            Aggregation(self._script, holders, calls, self._updates).add()
        Attributes(self._script, holders, has_strategy, is_keras_3=bool(calls)).add_notes()
        if self._checkpoints and self._methods & _RESTORES:
            self._script.add_note(
                self._checkpoints[0], _text_of_checkpoint(*self._rewritten[0][1:])
            )
        host = "Keras" if calls else "tf_keras"
        for node in self._saves:
            self._script.add_note(
                node,
                "A script that loads this file with its optimizer needs `import tf_lamb` after "
                f"{host}.",
            )

    def _is_save(self, node: cst.Call, name: str) -> bool:
        """Returns whether a call saves a model together with its optimizer.

        Args:
            node: The call.
            name: The full name that it calls, such as "keras.callbacks.ModelCheckpoint", or "".
        """
        arguments = {
            arg.keyword.value: self._script.code_of(arg.value) for arg in node.args if arg.keyword
        }
        if (
            arguments.get("save_weights_only") == "True"
            or arguments.get("include_optimizer") == "False"
        ):
            return False
        first_argument = self._script.code_of(node.args[0]) if node.args else ""
        if name.endswith(
            (".callbacks.ModelCheckpoint", ".models.save_model", ".saving.save_model")
        ):
            return ".weights.h5" not in first_argument
        if name or not isinstance(node.func, cst.Attribute) or node.func.attr.value != "save":
            return False
        # A checkpoint and its manager have the method `save`, too, and so have arrays and pictures.
        owner = self._script.code_of(node.func.value)
        return bool(_SAVED_FILE.search(first_argument)) or bool(
            re.search(r"(?:^|[._])(?:model|net|network)$", owner, re.IGNORECASE)
        )

    def _has_strategy(self) -> bool:
        """Returns whether the script names something of `tf.distribute`."""
        nodes = matchers.findall(self._script.module, matchers.Attribute() | matchers.Name())
        return any(
            self._script.full_name(node).startswith("tensorflow.distribute") for node in nodes
        )

    def _is_called_by_fit(self, node: cst.CSTNode) -> bool:
        """Returns whether a node is in a step of a model, whose optimizer `fit` builds before."""
        names = []
        while (parent := self._script.parents.get(node)) is not None:
            node = parent
            if isinstance(node, cst.FunctionDef):
                names.append(node.name.value)
            elif isinstance(node, cst.ClassDef) and node.bases:
                return "train_step" in names
        return False


def _text_of_checkpoint(source: Source, module: str) -> str:
    """Returns the note on a checkpoint that the old optimizer may have written.

    Args:
        source: The old optimizer.
        module: The module that our class is taken from, such as "tf_lamb.keras".
    """
    title = source.peer.title
    migrate = f"{module}.migrate(path, optimizer, model, weights=True)"
    if not source.is_keras_own and module == "tf_lamb.tf_keras":
        return (
            f"A checkpoint of {title} cannot be restored here: restore raises a ValueError. "
            f"{migrate} reads it."
        )
    if not source.is_keras_own:
        return (
            f"A checkpoint of {title} is restored without its moments and its step, and without an "
            "error. Of a model of tf_keras, or of TensorFlow before 2.16, weights are missing, "
            f"too. {migrate} reads all of them."
        )
    return (
        f"A checkpoint of {title} is restored without its optimizer's state, and without an error. "
        f"To continue its run, make {title}, call its build(model.trainable_variables), restore "
        f"the checkpoint into it, and pass it to {module}.migrate."
    )


def loading_notes(script: Script, new_code: str) -> list[Note]:
    """Returns a note on the first `load_model` that cannot load a file with our optimizer in it.

    Args:
        script: The script.
        new_code: The script as it is rewritten.
    """
    for node in matchers.findall(script.module, matchers.Call()):
        our_module = _LOADS.get(script.full_name(node.func))
        if our_module == "tf_lamb.keras" and "TF_USE_LEGACY_KERAS" in script.code:
            our_module = "tf_lamb.tf_keras"
        arguments = {
            arg.keyword.value: script.code_of(arg.value) for arg in node.args if arg.keyword
        }
        if (
            our_module
            and arguments.get("compile") != "False"
            and not _imports(our_module, new_code)
        ):
            text = (
                f"Add `import {our_module}` to load a file here that was saved with an optimizer "
                "of tf_lamb, or pass compile=False."
            )
            return [Note(script.positions[node].start.line, text)]
    return []


def _imports(our_module: str, code: str) -> bool:
    """Returns whether a script imports a module of ours, such as "tf_lamb.keras".

    `import tf_lamb` imports it as well, if Keras has been imported before.
    """
    host, is_host_imported = our_module.rpartition(".")[2], False
    hosts = {host, "tensorflow"} if host == "keras" else {host}
    for module, names in _IMPORT.findall(code):
        for name in re.findall(r"[\w.]+", names):
            path = f"{module}.{name}" if module else name
            package = path.partition(".")[0]
            if path.startswith(our_module) or (package == "tf_lamb" and is_host_imported):
                return True
            is_host_imported = is_host_imported or package in hosts
    return False
