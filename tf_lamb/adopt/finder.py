"""Finds the calls, names and configs of a script that are to be rewritten."""

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
    """Finds what is to be rewritten, and notes what is left."""

    def __init__(self, script: Script):
        super().__init__()
        self._script = script
        self._seen: set[cst.Dict] = set()  # those that were rewritten or left

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_Call(self, node: cst.Call) -> None:
        name = self._script.name_of(node.func)
        if source := OF_NAME.get(name):
            self._call(node, name, source)
        elif name.startswith(_GARDENS) and name.endswith(_CONFIGS):
            self._config(node)

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self._reference(node)

    def visit_Name(self, node: cst.Name) -> None:
        self._reference(node)

    def _reference(self, node):
        """Notes that an optimizer is named without a call."""
        script = self._script
        if script.name_of(node) in OF_NAME and node not in script.referring:
            parent = script.parents[node]
            if isinstance(parent, cst.Call) and parent.func is node:
                return  # it has its note
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                return
            text = f"{script.text(node)} is named without a call, and left as it is"
            script.note(node, text, is_left=True)

    def _call(self, node, name, source):
        """Rewrites a call of an optimizer."""
        script, names = self._script, tuple(source.defaults)
        values = arguments_of(node, names)
        if values is None:
            return self._left(node, source, "its arguments by position cannot be told apart")
        if script.is_in_text(node):
            return self._left(node, source, "it stands in an f-string")
        namespace = script.namespace_of(name)
        given = {argument: script.text(value) for argument, value in values.items()}
        is_whole = not any(argument.star for argument in node.args)
        found = translated(
            source, given, script.code, script.keras_names.get(KERAS_OF[namespace]),
            script.same_steps, is_whole,
        )  # fmt: skip
        if found.obstacles:
            return self._left(node, source, " ".join(found.obstacles))
        cls = f"{namespace}.{source.peer.family}"
        script.replacements[node] = lambda call: call.with_changes(
            func=cst.parse_expression(cls), args=new_arguments(call, names, given, found)
        )
        script.referring.add(node.func)
        script.anchors.add(node.func)
        of_star = "What ** passes is not read: an error will name words that are not ours."
        script.note(
            node, f"{source.peer.title} is {cls}", [*found.notes, *([of_star] * (not is_whole))]
        )

    def _left(self, node, source, reason):
        """Notes that a call or a config stays as it is."""
        self._script.note(node, f"{source.peer.title} is left as it is: {reason}", is_left=True)

    def _config(self, node):
        """Rewrites the optimizer of one of the Model Garden's configs."""
        self._script.anchors.add(node.func)
        for dictionary in matchers.findall(node, matchers.Dict()):
            entries = entries_of(dictionary)
            kind = _type(entries["type"].value) if "type" in entries else ""
            if kind and dictionary not in self._seen:
                self._seen.add(dictionary)  # one config may be in another
                self._dictionary(dictionary, kind, entries)
        given = arguments_of(node, ()) or {}
        if "type" in given and (kind := _type(given["type"])):
            self._call_of_config(node, kind, given)

    def _call_of_config(self, node, kind, given):
        """Rewrites `OptimizerConfig(type="lamb", lamb=...)`, which takes ours in a dict alone."""
        settings = given.get(kind)
        pairs: _Pairs = {} if settings is None else None
        if isinstance(settings, cst.Call) and self._script.name_of(settings.func).endswith(
            _SETTINGS[kind]
        ):
            is_whole = not any(argument.star for argument in settings.args)
            pairs = arguments_of(settings, ()) if is_whole else None
        elif isinstance(settings, cst.Dict):
            pairs = _pairs_of(settings)
        if len(given) < len(node.args) or given.keys() - {"type", kind}:
            pairs = None
        if (found := self._settings(node, kind, pairs)) and pairs is not None:
            texts = {name: self._script.text(value) for name, value in pairs.items()}
            texts = {name: texts[name] for name in found.kept} | dict(found.new)
            text = ", ".join(f'"{name}": {value}' for name, value in texts.items())
            config = f'{{"type": "tf_{kind}", "tf_{kind}": {{{text}}}}}'
            argument = cst.Arg(cst.parse_expression(config))
            self._script.replacements[node] = lambda call: call.with_changes(args=[argument])
            if isinstance(settings, cst.Call):
                self._script.referring.add(settings.func)

    def _dictionary(self, node, kind, entries):
        """Rewrites `{"type": "lamb", "lamb": {...}}`."""
        settings = entries.get(kind)
        pairs: _Pairs = {} if settings is None else None
        if settings and isinstance(settings.value, cst.Dict):
            pairs = _pairs_of(settings.value)
        if found := self._settings(node, kind, pairs):
            replacements, name = self._script.replacements, f"tf_{kind}"
            replacements[entries["type"].value] = lambda text: quoted_as(text, name)
            if settings:
                replacements[settings.key] = lambda text: quoted_as(text, name)
                replacements[settings.value] = lambda pairs: new_entries(pairs, found)

    def _settings(self, node, kind, pairs) -> Translated | None:
        """Returns the settings of our optimizer; None if they are left, which is noted.

        Args:
            node: The config.
            kind: The optimizer that it names.
            pairs: The settings, by name; None if they cannot be read.
        """
        script, source = self._script, OF_TYPE[kind]
        if pairs is None:
            return self._left(node, source, f"the type of its config is to be tf_{kind}")
        given = {name: script.text(value) for name, value in pairs.items()}
        found = translated(source, given, script.code, None, script.same_steps)
        if found.obstacles:
            return self._left(node, source, " ".join(found.obstacles))
        script.needs_garden = True
        script.note(node, f"the type {kind} is tf_{kind}", found.notes)
        return found


def _pairs_of(node: cst.Dict) -> _Pairs:
    """Returns the values of a dict by their keys; None if a key is no text."""
    pairs = {key: entry.value for key, entry in entries_of(node).items()}
    return pairs if len(pairs) == len(node.elements) else None


def _type(value: cst.CSTNode) -> str:
    """Returns the optimizer that a config's type names, if we have one for it; else ""."""
    name = value.evaluated_value if isinstance(value, cst.SimpleString) else ""
    return str(name) if name in OF_TYPE else ""
