"""Adds notes on loops, checkpoints and saved models, which `finder.py` does not rewrite."""

import re

import libcst as cst
from libcst import matchers

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
_IMPORT = re.compile(r"^\s*(?:from ([\w.]+) )?import ([^#\n]+)", re.MULTILINE)


class Continuing:
    """Collects the calls that `Finder` visits, and adds notes once it has visited the script.

    Args:
        script: The script, which receives the notes.
    """

    def __init__(self, script: Script):
        self._script = script
        self._sources: list[tuple[Source, str]] = []  # of the rewritten calls, with our module
        self._methods: set[str] = set()  # the names of all methods that are called
        self._updates: list[cst.Call] = []  # `optimizer.apply_gradients(...)` in a loop of its own
        self._checkpoints: list[cst.Call] = []  # `tf.train.Checkpoint(optimizer=...)`

    def see_call(self, node: cst.Call, name: str) -> None:
        """Takes note of a call.

        Args:
            node: The call.
            name: The full name that it calls, such as "tensorflow.train.Checkpoint", or "".
        """
        if isinstance(node.func, cst.Attribute):
            self._methods.add(node.func.attr.value)
            if node.func.attr.value == "apply_gradients" and not self._is_called_by_fit(node):
                self._updates.append(node)
        if name == "tensorflow.train.Checkpoint" and "opt" in self._script.code_of(node):
            self._checkpoints.append(node)

    def see_rewritten(self, source: Source, module: str) -> None:
        """Takes note of an optimizer that is replaced.

        Args:
            source: The optimizer.
            module: The module that our class is taken from, such as "tf_lamb.keras".
        """
        self._sources.append((source, module))

    def add_notes(self) -> None:
        """Adds the notes, if an optimizer of the script was replaced by one of this package."""
        if not self._sources:
            return
        script, is_built = self._script, "build" in self._methods
        is_keras_3 = any(module != "tf_lamb.tf_keras" for _, module in self._sources)
        if self._updates and is_keras_3 and not is_built and self._has_strategy():
            update = self._updates[0]
            optimizer = script.code_of(cst.ensure_type(update.func, cst.Attribute).value)
            script.add_note(
                update,
                "on Keras 3 a step on several replicas cannot make the variables of an optimizer: "
                f"before the first one write {optimizer}.build(model.trainable_variables)",
            )
        if self._checkpoints and self._methods & _RESTORES:
            script.add_note(self._checkpoints[0], _text_of_checkpoint(*self._sources[0]))

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
    if not source.is_keras_own:
        return f"what {title} has saved is not restored into ours: pass it to {module}.migrate"
    return (
        f"what {title} has saved begins anew in ours, without an error: restore it into {title}, "
        f"after its build(model.trainable_variables), and pass that to {module}.migrate"
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
                "a file that is saved with an optimizer of tf_lamb loads here after "
                f"import {our_module}, or with compile=False"
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
