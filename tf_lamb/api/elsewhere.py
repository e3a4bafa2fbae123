"""Answers who looks for a name of another package, with what serves instead.

The name is that of an optimizer, looked up in a module of this package, or that of a member of an
optimizer.
"""

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tf_lamb.api import frontends
from tf_lamb.core import rules

_NO_REPLACEMENT = "neither this package nor Keras has it"
# What another package calls an optimizer, in small letters -> what to do instead. `{keras}` stands
# for the name of Keras, `{module}` for the module in which the name was looked up.
_OPTIMIZERS = {
    **{
        name.lower(): f"write {{keras}}.optimizers.{name}"
        for name in (
            "Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "Ftrl", "Lion", "Nadam",
            "RMSprop", "SGD",
        )
    },
    "adamweightdecay": "write {keras}.optimizers.AdamW",
    "sgdw": "write {keras}.optimizers.SGD with weight_decay",
    "optimizers": "write {module}.LAMB",
    "larc": "write {module}.LARS(form={{'momentum': 'mixed', 'clip': True}})",
    "nvlamb": "write {module}.LAMB(exclude_from_layer_adaptation=[], global_clipnorm=1.0)",
    "muonwithauxadam": "write {module}.Muon, which leaves to AdamW what is no matrix",
    "shampoo": "write {module}.SOAP, which is Adam in the bases of Shampoo's preconditioners",
    "lookahead": f"{_NO_REPLACEMENT}; use_ema=True averages weights by another rule",
    "movingaverage": "pass use_ema=True to the optimizer",
    "swa": "pass use_ema=True to the optimizer",
    **{
        name: f"it is another algorithm, which is not here; {{module}}.{ours} is the "
        "one that it varies"
        for name, ours in {
            "normuon": "Muon", "adamuon": "Muon", "muonclip": "Muon", "onebitlamb": "LAMB",
            "tvlars": "LARS", "klsoap": "SOAP",
        }.items()
    },
    **dict.fromkeys(("lazyadam", "novograd", "radam", "rectifiedadam", "yogi"), _NO_REPLACEMENT),
}  # fmt: skip
# What begins the name of a variant of an optimizer that computes the same.
_PREFIXES = ("fused", "singledevice")

# Member of another package's optimizers -> what to do instead.
_MEMBERS = {
    "lr": "read or set learning_rate",
    "get_lr": "read learning_rate",
    "set_lr": "set learning_rate",
    "_decayed_lr": "read learning_rate, which is that of the next step",
    "get_slot": "the slots are in variables, each named after its weight",
    "weights": "read variables",
    "get_weights": (
        "[variable.numpy() for variable in optimizer.variables] is the list that set_weights() "
        "takes"
    ),
    "step": "call apply_gradients(zip(gradients, variables))",
    "minimize": (
        "compute the gradients, and call apply_gradients(zip(gradients, variables)), or train by "
        "model.fit()"
    ),
    **dict.fromkeys(
        ("zero_grad", "clear_grad"),
        "leave it out, as an optimizer keeps no gradients; those of torch go by model.zero_grad()",
    ),
    "state_dict": "variables has the state and get_config() the arguments, and model.save() both",
    "load_state_dict": "set_weights() takes a list of arrays, and load_model() restores all",
    **dict.fromkeys(
        ("param_groups", "add_param_group"),
        "learning_rate is for all variables, and the argument treatments for some, such as "
        "{'embedding': {'rate': 0.1}}",
    ),
    "exclude_from_layer_adaptation": "it is an argument of the constructor alone",
}


def missing_name_text(module: str, name: str, names: Iterable[str]) -> str:
    """Returns the message of the AttributeError for a name that a module does not have.

    It says where an optimizer of another package is, or which name was probably meant.

    Args:
        module: The name of the module.
        name: The name that it does not have.
        names: The names that it has.
    """
    names = sorted(names)
    key = name.lower()
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    if case_variants := [candidate for candidate in names if candidate.lower() == key]:
        hint = f". Did you mean {case_variants[0]!r}?"
    elif key in _OPTIMIZERS:
        own_keras = "tf_keras" if module == "tf_lamb.tf_keras" else "keras"
        keras = frontends.keras_of_tensorflow() if module == "tf_lamb" else own_keras
        hint = f": {_OPTIMIZERS[key].format(keras=keras, module=module)}."
    else:
        key = key.replace("lambda", "")  # LambdaLR is no LAMB
        parts = [candidate for candidate in rules.OURS if candidate.lower() in key]
        suggestions = parts or difflib.get_close_matches(name, names, 1)
        hint = f". Did you mean {suggestions[0]!r}?" if suggestions else ""
    return f"module {module!r} has no attribute {name!r}{hint}"


class Elsewhere:
    """Says, for a member that only other packages' optimizers have, what to do instead.

    `hasattr` is False for such a member, as for any other that is not there.
    """

    if not TYPE_CHECKING:  # so that a type checker reports a member that does not exist

        def __getattr__(self, name):
            """Raises the AttributeError for a member that does not exist.

            Python calls it only for such a member, and for a property that has raised an
            AttributeError.
            """
            if hasattr(type(self), name):
                # The property raises its own error again. torch's compiler (2.13) cannot trace this
                # line, so it is not for members that do not exist.
                return object.__getattribute__(self, name)
            advice = f": {_MEMBERS[name]}." if name in _MEMBERS else ""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{advice}"
            )
