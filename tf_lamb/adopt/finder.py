"""Finds calls of optimizers and Model Garden configs in a script, and plans their replacement.

A planned replacement is an entry of `Script.replacements`. `rewriter.py` then makes the
replacements.
"""

import libcst as cst
from libcst import matchers

from tf_lamb.adopt.call import Translation, translate_call
from tf_lamb.adopt.continuing import Continuing
from tf_lamb.adopt.layout import (
    arguments_of,
    entries_of,
    new_arguments,
    new_entries,
    with_quotes_of,
)
from tf_lamb.adopt.reading import KERAS_BY_MODULE, Script
from tf_lamb.adopt.sources import SOURCE_BY_NAME, SOURCE_BY_TYPE

_GARDEN_PREFIXES = ("official.", "tensorflow_models.")
_SETTINGS_CLASSES = {"lamb": ".LAMBConfig", "lars": ".LARSConfig"}
_CONFIG_CLASSES = (".OptimizerConfig", ".OptimizationConfig")

_Settings = dict[str, cst.BaseExpression] | None


class Finder(cst.CSTVisitor):
    """Visits the nodes of a script, plans replacements, and adds notes on what is not replaced.

    Args:
        script: The script, which receives the replacements and the notes.
    """

    def __init__(self, script: Script):
        super().__init__()
        self._script = script
        # The dicts in configs for which a replacement was planned or refused.
        self._handled_dicts: set[cst.Dict] = set()
        self._adopted_types: set[str] = set()  # "lamb" or "lars", of rewritten configs
        # The type, such as "lamb", and the node of each attribute such as `config.optimizer.lamb`.
        self._old_type_settings: list[tuple[str, cst.Attribute]] = []
        self._continuing = Continuing(script)

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_Call(self, node: cst.Call) -> None:
        name = self._script.full_name(node.func)
        self._continuing.see_call(node, name)
        if source := SOURCE_BY_NAME.get(name):
            self._rewrite_call(node, name, source)
        elif name.startswith(_GARDEN_PREFIXES) and name.endswith(_CONFIG_CLASSES):
            self._rewrite_config(node)

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self._note_reference(node)
        name, is_set = node.attr.value, isinstance(self._script.parents[node], cst.AssignTarget)
        is_read = isinstance(self._script.parents[node], cst.Attribute)
        if name in SOURCE_BY_TYPE and (is_set or is_read) and not self._script.full_name(node):
            self._old_type_settings.append((name, node))

    def leave_Module(self, original_node: cst.Module) -> None:
        """Adds the notes that need the whole script."""
        self._continuing.add_notes()
        self._note_old_type_settings()

    def _note_old_type_settings(self):
        """Adds a note on each line that still uses an attribute of a config such as `config.lamb`.

        A config of the new type `tf_lamb` does not read the settings in `lamb`.
        """
        lines = set()
        for optimizer_type, node in self._old_type_settings:
            line, owner = self._script.positions[node].start.line, self._script.code_of(node.value)
            # `self.lamb` is not reported, because it may be an attribute of a class in the script.
            if (
                optimizer_type in self._adopted_types
                and line not in lines
                and owner not in ("self", "cls")
            ):
                lines.add(line)
                text = (
                    f"{owner}.{optimizer_type} is left as it is. A config of the type "
                    f"tf_{optimizer_type} does not read it. In such a config write "
                    f"{owner}.tf_{optimizer_type}, whose settings are the arguments of "
                    f"tf_lamb.{SOURCE_BY_TYPE[optimizer_type].peer.family}"
                )
                self._script.add_note(node, text, is_left=True)

    def visit_Name(self, node: cst.Name) -> None:
        self._note_reference(node)

    def _note_reference(self, node):
        """Adds a note if a node names an optimizer without calling it, as in `cls = LAMB`."""
        script = self._script
        if script.full_name(node) in SOURCE_BY_NAME and node not in script.replaced_references:
            parent = script.parents[node]
            if isinstance(parent, cst.Call) and parent.func is node:
                return  # `_rewrite_call` adds a note on calls
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                return
            code, source = script.code_of(node), SOURCE_BY_NAME[script.full_name(node)]
            our_class = f"{script.module_for(script.full_name(node))}.{source.peer.family}"
            if isinstance(parent, cst.Attribute) and parent.attr.value == "from_config":
                text = (
                    f"{code}.from_config is left as it is, because its config may be of "
                    f"{source.peer.title}: for a config of tf_lamb write {our_class}.from_config"
                )
            else:
                text = (
                    f"{code} is named without a call, and left as it is, because its arguments are "
                    f"not seen here: write {our_class}, and its arguments where it is called"
                )
            script.add_note(node, text, is_left=True)

    def _rewrite_call(self, node, name, source):
        """Plans to replace a call of another package's optimizer by a call of this package's one.

        Args:
            node: The call.
            name: The full name of the function or class that is called, such as
                "keras.optimizers.Lamb".
            source: The optimizer of that name.
        """
        script, positional_names = self._script, tuple(source.defaults)
        values = arguments_of(node, positional_names)
        if values is None:
            return self._note_left(node, source, "its positional arguments cannot be read")
        if script.is_in_f_string(node):
            return self._note_left(node, source, "it stands in an f-string")
        module = script.module_for(name)
        code_by_name = {argument: script.code_of(value) for argument, value in values.items()}
        has_all_arguments = not any(argument.star for argument in node.args)
        translation = translate_call(
            source, code_by_name, script.code, script.keras_names.get(KERAS_BY_MODULE[module]),
            script.same_steps, has_all_arguments,
        )  # fmt: skip
        if translation.obstacles:
            return self._note_left(node, source, " ".join(translation.obstacles))
        script.can_keep_steps |= translation.can_keep_steps
        new_name = f"{module}.{source.peer.family}"
        script.replacements[node] = lambda call: call.with_changes(
            func=cst.parse_expression(new_name),
            args=new_arguments(call, positional_names, code_by_name, translation),
        )
        script.replaced_references.add(node.func)
        script.nodes_needing_import.add(node.func)
        self._continuing.see_rewritten(node, source, module)
        star_note = (
            "Arguments passed by ** are not read. When the script runs, an error names those that "
            "tf_lamb does not have."
        )
        script.add_note(
            node,
            f"{source.peer.title} is {new_name}",
            [*translation.notes, *([star_note] * (not has_all_arguments))],
        )

    def _note_left(self, node, source, reason):
        """Adds a note that a call or a config is not rewritten.

        Args:
            node: The call or the config.
            source: The optimizer that it names.
            reason: Why it is not rewritten.
        """
        self._script.add_note(node, f"{source.peer.title} is left as it is: {reason}", is_left=True)

    def _rewrite_config(self, node):
        """Plans the replacement of each optimizer that the call of a Model Garden config names.

        The name of an optimizer, such as "lamb", is the value of `type`: either of the entry
        `"type": "lamb"` in a dict within the call, or of the argument `type="lamb"` of the call.
        """
        self._script.nodes_needing_import.add(node.func)
        for dictionary in matchers.findall(node, matchers.Dict()):
            entries = entries_of(dictionary)
            optimizer_type = _replaced_type(entries["type"].value) if "type" in entries else ""
            if optimizer_type and dictionary not in self._handled_dicts:
                self._handled_dicts.add(dictionary)  # a config may be within another one
                self._rewrite_config_dict(dictionary, optimizer_type, entries)
        arguments = arguments_of(node, ()) or {}
        if "type" in arguments and (optimizer_type := _replaced_type(arguments["type"])):
            self._rewrite_config_call(node, optimizer_type, arguments)

    def _rewrite_config_call(self, node, optimizer_type, arguments):
        """Plans the replacement of `OptimizerConfig(type="lamb", lamb=...)`.

        The config class has no argument named `tf_lamb`, so the new call passes all settings in a
        dict, as its first argument.

        Args:
            node: The call of the config.
            optimizer_type: The optimizer that it names, "lamb" or "lars".
            arguments: The arguments of the call, name -> value.
        """
        settings = arguments.get(optimizer_type)
        settings_by_name: _Settings = {} if settings is None else None
        if isinstance(settings, cst.Call) and self._script.full_name(settings.func).endswith(
            _SETTINGS_CLASSES[optimizer_type]
        ):
            is_whole = not any(argument.star for argument in settings.args)
            settings_by_name = arguments_of(settings, ()) if is_whole else None
        elif isinstance(settings, cst.Dict):
            settings_by_name = _settings_of_dict(settings)
        if len(arguments) < len(node.args) or arguments.keys() - {"type", optimizer_type}:
            settings_by_name = None
        translation = self._translated_settings(node, optimizer_type, settings_by_name)
        if translation and settings_by_name is not None:
            texts = {name: self._script.code_of(value) for name, value in settings_by_name.items()}
            texts = {name: texts[name] for name in translation.unchanged} | dict(
                translation.new_arguments
            )
            text = ", ".join(f'"{name}": {value}' for name, value in texts.items())
            config = f'{{"type": "tf_{optimizer_type}", "tf_{optimizer_type}": {{{text}}}}}'
            argument = cst.Arg(cst.parse_expression(config))
            self._script.replacements[node] = lambda call: call.with_changes(args=[argument])
            if isinstance(settings, cst.Call):
                self._script.replaced_references.add(settings.func)

    def _rewrite_config_dict(self, node, optimizer_type, entries):
        """Plans the replacement of the keys and settings in `{"type": "lamb", "lamb": {...}}`.

        Args:
            node: The dict.
            optimizer_type: The optimizer that it names, "lamb" or "lars".
            entries: Key of the dict -> the node of this key and its value.
        """
        settings = entries.get(optimizer_type)
        settings_by_name: _Settings = {} if settings is None else None
        if settings and isinstance(settings.value, cst.Dict):
            settings_by_name = _settings_of_dict(settings.value)
        if translation := self._translated_settings(node, optimizer_type, settings_by_name):
            replacements, name = self._script.replacements, f"tf_{optimizer_type}"
            replacements[entries["type"].value] = lambda text: with_quotes_of(text, name)
            if settings:
                replacements[settings.key] = lambda text: with_quotes_of(text, name)
                replacements[settings.value] = lambda settings_by_name: new_entries(
                    settings_by_name, translation
                )

    def _translated_settings(self, node, optimizer_type, settings_by_name) -> Translation | None:
        """Translates the settings of an optimizer in a config.

        Args:
            node: The config.
            optimizer_type: The optimizer that it names, "lamb" or "lars".
            settings_by_name: The settings, name -> value; None if they cannot be read.

        Returns:
            The settings of this package's optimizer; None if the config cannot be rewritten, for
            which a note is added.
        """
        script, source = self._script, SOURCE_BY_TYPE[optimizer_type]
        if settings_by_name is None:
            return self._note_left(
                node,
                source,
                f"its settings cannot be read. Set its type to tf_{optimizer_type} by hand",
            )
        code_by_name = {name: script.code_of(value) for name, value in settings_by_name.items()}
        translation = translate_call(source, code_by_name, script.code, None, script.same_steps)
        if translation.obstacles:
            return self._note_left(node, source, " ".join(translation.obstacles))
        script.needs_registration = True
        script.can_keep_steps |= translation.can_keep_steps
        self._adopted_types.add(optimizer_type)
        script.add_note(
            node, f"the type {optimizer_type} is tf_{optimizer_type}", translation.notes
        )
        return translation


def _settings_of_dict(node: cst.Dict) -> _Settings:
    """Returns the values of a dict by their keys; None unless all keys are literal strings."""
    pairs = {key: entry.value for key, entry in entries_of(node).items()}
    return pairs if len(pairs) == len(node.elements) else None


def _replaced_type(value: cst.CSTNode) -> str:
    """Returns "lamb" or "lars" if the value of `type` in a config is this literal string, else "".

    These are the two optimizers of Model Garden that are replaced.
    """
    name = value.evaluated_value if isinstance(value, cst.SimpleString) else ""
    return str(name) if name in SOURCE_BY_TYPE else ""
