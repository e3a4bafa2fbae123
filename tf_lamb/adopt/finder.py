"""Finds calls of optimizers and Model Garden configs in a script, and plans their replacement.

`rewriter.py` then makes the replacements.
"""

import libcst as cst
from libcst import matchers

from tf_lamb.adopt.call import Translated, translated
from tf_lamb.adopt.layout import arguments_of, entries_of, new_arguments, new_entries, quoted_as
from tf_lamb.adopt.reading import KERAS_OF, Script
from tf_lamb.adopt.sources import OF_NAME, OF_TYPE

_GARDENS = ("official.", "tensorflow_models.")
_SETTINGS = {"lamb": ".LAMBConfig", "lars": ".LARSConfig"}
_CONFIGS = (".OptimizerConfig", ".OptimizationConfig")

_Pairs = dict[str, cst.BaseExpression] | None


class Finder(cst.CSTVisitor):
    """Visits the nodes of a script; plans replacements, and notes what stays as it is.

    Args:
        script: The script, which receives the replacements and the notes.
    """

    def __init__(self, script: Script):
        super().__init__()
        self._script = script
        self._visited: set[cst.Dict] = set()  # the dicts of configs that were rewritten or left
        self._adopted_types: set[str] = set()  # types, such as "lamb", of rewritten configs
        self._settings_of_type: list[tuple[str, cst.Attribute]] = []  # `config.optimizer.lamb`

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_Call(self, node: cst.Call) -> None:
        name = self._script.name_of(node.func)
        if source := OF_NAME.get(name):
            self._rewrite_call(node, name, source)
        elif name.startswith(_GARDENS) and name.endswith(_CONFIGS):
            self._rewrite_config(node)

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self._note_reference(node)
        name, is_set = node.attr.value, isinstance(self._script.parents[node], cst.AssignTarget)
        is_read = isinstance(self._script.parents[node], cst.Attribute)
        if name in OF_TYPE and (is_set or is_read) and not self._script.name_of(node):
            self._settings_of_type.append((name, node))

    def leave_Module(self, original_node: cst.Module) -> None:
        """Notes lines that still use a config's attribute for its old type, as `config.lamb`."""
        lines = set()
        for kind, node in self._settings_of_type:
            line, owner = self._script.positions[node].start.line, self._script.text(node.value)
            # A class may have a `self.lamb` of its own.
            if kind in self._adopted_types and line not in lines and owner not in ("self", "cls"):
                lines.add(line)
                text = (
                    f"{owner}.{kind} is left as it is. A config whose type is tf_{kind} now does "
                    f"not read it: for such a one write {owner}.tf_{kind}, whose settings are the "
                    f"arguments of tf_lamb.{OF_TYPE[kind].peer.family}"
                )
                self._script.note(node, text, is_left=True)

    def visit_Name(self, node: cst.Name) -> None:
        self._note_reference(node)

    def _note_reference(self, node):
        """Notes that a node names an optimizer without calling it, as `cls = LAMB` does."""
        script = self._script
        if script.name_of(node) in OF_NAME and node not in script.referring:
            parent = script.parents[node]
            if isinstance(parent, cst.Call) and parent.func is node:
                return  # `_rewrite_call` notes it
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                return
            text = f"{script.text(node)} is named without a call, and left as it is"
            script.note(node, text, is_left=True)

    def _rewrite_call(self, node, name, source):
        """Plans the replacement of a call of another package's optimizer by one of ours.

        Args:
            node: The call.
            name: The full name that it calls, such as "keras.optimizers.Lamb".
            source: The optimizer of that name.
        """
        script, names = self._script, tuple(source.defaults)
        values = arguments_of(node, names)
        if values is None:
            return self._note_left(node, source, "its arguments by position cannot be told apart")
        if script.is_in_text(node):
            return self._note_left(node, source, "it stands in an f-string")
        namespace = script.namespace_of(name)
        code_by_name = {argument: script.text(value) for argument, value in values.items()}
        is_whole = not any(argument.star for argument in node.args)
        translation = translated(
            source, code_by_name, script.code, script.keras_names.get(KERAS_OF[namespace]),
            script.same_steps, is_whole,
        )  # fmt: skip
        if translation.obstacles:
            return self._note_left(node, source, " ".join(translation.obstacles))
        cls = f"{namespace}.{source.peer.family}"
        script.replacements[node] = lambda call: call.with_changes(
            func=cst.parse_expression(cls),
            args=new_arguments(call, names, code_by_name, translation),
        )
        script.referring.add(node.func)
        script.needing_import.add(node.func)
        star_note = "What ** passes is not read: an error will name words that are not ours."
        script.note(
            node,
            f"{source.peer.title} is {cls}",
            [*translation.notes, *([star_note] * (not is_whole))],
        )

    def _note_left(self, node, source, reason):
        """Notes that a call or a config stays as it is.

        Args:
            node: The call or the config.
            source: The optimizer that it names.
            reason: Why it stays.
        """
        self._script.note(node, f"{source.peer.title} is left as it is: {reason}", is_left=True)

    def _rewrite_config(self, node):
        """Plans the replacement of each optimizer that a Model Garden config names.

        The config names it by `"type"`, in a dict or as an argument of the config's own call.
        """
        self._script.needing_import.add(node.func)
        for dictionary in matchers.findall(node, matchers.Dict()):
            entries = entries_of(dictionary)
            kind = _optimizer_of_type(entries["type"].value) if "type" in entries else ""
            if kind and dictionary not in self._visited:
                self._visited.add(dictionary)  # one config may be in another
                self._rewrite_config_dict(dictionary, kind, entries)
        arguments = arguments_of(node, ()) or {}
        if "type" in arguments and (kind := _optimizer_of_type(arguments["type"])):
            self._rewrite_config_call(node, kind, arguments)

    def _rewrite_config_call(self, node, kind, arguments):
        """Plans the replacement of `OptimizerConfig(type="lamb", lamb=...)`.

        The config has no argument for our optimizer, but takes it in a dict, as its first argument.

        Args:
            node: The call of the config.
            kind: The optimizer that it names, "lamb" or "lars".
            arguments: The arguments of the call, by name.
        """
        settings = arguments.get(kind)
        pairs: _Pairs = {} if settings is None else None
        if isinstance(settings, cst.Call) and self._script.name_of(settings.func).endswith(
            _SETTINGS[kind]
        ):
            is_whole = not any(argument.star for argument in settings.args)
            pairs = arguments_of(settings, ()) if is_whole else None
        elif isinstance(settings, cst.Dict):
            pairs = _pairs_of(settings)
        if len(arguments) < len(node.args) or arguments.keys() - {"type", kind}:
            pairs = None
        if (translation := self._translated_settings(node, kind, pairs)) and pairs is not None:
            texts = {name: self._script.text(value) for name, value in pairs.items()}
            texts = {name: texts[name] for name in translation.unchanged} | dict(translation.new)
            text = ", ".join(f'"{name}": {value}' for name, value in texts.items())
            config = f'{{"type": "tf_{kind}", "tf_{kind}": {{{text}}}}}'
            argument = cst.Arg(cst.parse_expression(config))
            self._script.replacements[node] = lambda call: call.with_changes(args=[argument])
            if isinstance(settings, cst.Call):
                self._script.referring.add(settings.func)

    def _rewrite_config_dict(self, node, kind, entries):
        """Plans the replacement of the keys and settings in `{"type": "lamb", "lamb": {...}}`.

        Args:
            node: The dict.
            kind: The optimizer that it names, "lamb" or "lars".
            entries: Key of the dict -> the node of this key and its value.
        """
        settings = entries.get(kind)
        pairs: _Pairs = {} if settings is None else None
        if settings and isinstance(settings.value, cst.Dict):
            pairs = _pairs_of(settings.value)
        if translation := self._translated_settings(node, kind, pairs):
            replacements, name = self._script.replacements, f"tf_{kind}"
            replacements[entries["type"].value] = lambda text: quoted_as(text, name)
            if settings:
                replacements[settings.key] = lambda text: quoted_as(text, name)
                replacements[settings.value] = lambda pairs: new_entries(pairs, translation)

    def _translated_settings(self, node, kind, pairs) -> Translated | None:
        """Translates the settings of an optimizer in a config.

        Args:
            node: The config.
            kind: The optimizer that it names, "lamb" or "lars".
            pairs: The settings, by name; None if they cannot be read.

        Returns:
            The settings of our optimizer; None if the config stays as it is, which is noted.
        """
        script, source = self._script, OF_TYPE[kind]
        if pairs is None:
            return self._note_left(node, source, f"the type of its config is to be tf_{kind}")
        code_by_name = {name: script.text(value) for name, value in pairs.items()}
        translation = translated(source, code_by_name, script.code, None, script.same_steps)
        if translation.obstacles:
            return self._note_left(node, source, " ".join(translation.obstacles))
        script.needs_garden = True
        self._adopted_types.add(kind)
        script.note(node, f"the type {kind} is tf_{kind}", translation.notes)
        return translation


def _pairs_of(node: cst.Dict) -> _Pairs:
    """Returns the values of a dict by their keys; None unless all keys are literal strings."""
    pairs = {key: entry.value for key, entry in entries_of(node).items()}
    return pairs if len(pairs) == len(node.elements) else None


def _optimizer_of_type(value: cst.CSTNode) -> str:
    """Returns the optimizer, "lamb" or "lars", that the `type` of a config names; else ""."""
    name = value.evaluated_value if isinstance(value, cst.SimpleString) else ""
    return str(name) if name in OF_TYPE else ""
