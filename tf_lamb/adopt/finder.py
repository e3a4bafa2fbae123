"""Finds the calls, names and configs of a script that are to be rewritten."""

import libcst as cst
from libcst import matchers

from tf_lamb.adopt.call import translated
from tf_lamb.adopt.layout import arguments_of, entries_of, new_arguments, quoted_as
from tf_lamb.adopt.reading import KERAS_OF, Script
from tf_lamb.adopt.sources import OF_NAME, OF_TYPE, OF_WORD

_GARDENS = ("official.", "tensorflow_models.")
_CONFIGS = (".OptimizerConfig", ".OptimizationConfig")


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
        elif not name and _is_method(node.func, "compile"):  # of a model, not of a module
            named = [a.value for a in node.args if a.keyword and a.keyword.value == "optimizer"]
            first = [a.value for a in node.args[:1] if not a.keyword and not a.star]
            self._word(next(iter(named + first), None))
        elif name.endswith("keras.optimizers.get") and node.args:
            self._word(node.args[0].value, whole=node)

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
        script = self._script
        given = arguments_of(node, tuple(source.defaults))
        if given is None:
            text = f"{source.peer.title} is left as it is: a list is unpacked into its arguments"
            return script.note(node, text, is_left=True)
        namespace = script.namespace_of(name)
        found = translated(
            source, {name: script.text(value) for name, value in given.items()}, script.code,
            KERAS_OF[namespace], script.same_steps,
        )  # fmt: skip
        if found.obstacles:
            text = f"{source.peer.title} is left as it is: {' '.join(found.obstacles)}"
            return script.note(node, text, is_left=True)
        cls = f"{namespace}.{source.peer.family}"
        script.replacements[node] = node.with_changes(
            func=cst.parse_expression(cls), args=new_arguments(node, source, found)
        )
        script.referring.add(node.func)
        script.need("import tf_lamb")
        details = list(found.notes)
        if any(argument.star == "**" for argument in node.args):
            details.append(
                "What ** passes is not read: an error will name words that are not ours."
            )
        script.note(node, f"{source.peer.title} is {cls}", details)

    def _word(self, value, whole=None):
        """Rewrites the name of an optimizer, as Keras looks it up."""
        script = self._script
        if not isinstance(value, cst.SimpleString):
            return
        source = OF_WORD.get(str(value.evaluated_value).lower())
        if source is None:
            return
        namespace = script.namespace_of("")
        found = translated(source, {}, script.code, KERAS_OF[namespace], script.same_steps)
        cls = f"{namespace}.{source.peer.family}"
        arguments = ", ".join(f"{name}={text}" for name, text in found.new.items())
        script.replacements[whole or value] = cst.parse_expression(f"{cls}({arguments})")
        script.need("import tf_lamb")
        script.note(value, f"{value.value} is {cls}({arguments})", found.notes)

    def _config(self, node):
        """Rewrites the optimizer of one of the Model Garden's configs."""
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
        if text := self._settings(node, kind, settings, bool(given.keys() - {"type", kind})):
            config = cst.parse_expression(f'{{"type": "tf_{kind}", "tf_{kind}": {text}}}')
            self._script.replacements[node] = node.with_changes(args=[cst.Arg(config)])
            if isinstance(settings, cst.Call):
                self._script.referring.add(settings.func)

    def _dictionary(self, node, kind, entries):
        """Rewrites `{"type": "lamb", "lamb": {...}}`."""
        settings = entries.get(kind)
        if text := self._settings(node, kind, settings and settings.value):
            replacements = self._script.replacements
            replacements[entries["type"].value] = quoted_as(entries["type"].value, f"tf_{kind}")
            if settings:
                replacements[settings.key] = quoted_as(settings.key, f"tf_{kind}")
                replacements[settings.value] = cst.parse_expression(text)

    def _settings(self, node, kind, settings, is_unknown=False) -> str:
        """Returns the settings of our optimizer as code; "" if they are left, which is noted.

        Args:
            node: The config.
            kind: The optimizer that it names.
            settings: The call or dict of its settings; None if it has none.
            is_unknown: Whether the config has other parts, which are not understood.
        """
        script = self._script
        pairs: dict[str, cst.BaseExpression] | None = None
        if settings is None:
            pairs = {}
        elif isinstance(settings, cst.Call):
            pairs = arguments_of(settings, ())
        elif isinstance(settings, cst.Dict):
            pairs = {key: entry.value for key, entry in entries_of(settings).items()}
            is_unknown |= len(pairs) < len(settings.elements)
        if is_unknown or pairs is None:
            self._left(node, kind, f"its type is to be tf_{kind}")
            return ""
        given = {name: script.text(value) for name, value in pairs.items()}
        found = translated(OF_TYPE[kind], given, script.code, "tf_keras", script.same_steps)
        if found.obstacles:
            self._left(node, kind, " ".join(found.obstacles))
            return ""
        script.need("import tf_lamb")
        script.need("tf_lamb.model_garden.register()")
        script.note(node, f"the type {kind} is tf_{kind}", found.notes)
        values = {name: given[name] for name in found.kept} | dict(found.new)
        return "{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}"

    def _left(self, node, kind, reason):
        """Notes that a config stays as it is."""
        text = f"the config of {kind} is left as it is: {reason}"
        self._script.note(node, text, is_left=True)


def _is_method(function: cst.BaseExpression, name: str) -> bool:
    """Returns whether a function is called as an attribute of a name."""
    return isinstance(function, cst.Attribute) and function.attr.value == name


def _type(value: cst.CSTNode) -> str:
    """Returns the optimizer that a config's type names, if we have one for it; else ""."""
    name = value.evaluated_value if isinstance(value, cst.SimpleString) else ""
    return str(name) if name in OF_TYPE else ""
