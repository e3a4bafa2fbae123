"""The table `WORDS`: arguments of other packages' optimizers, and what replaces them here.

`arguments.py` rewrites a call by this table, and docs/moving_in.md shows it.
"""

import ast
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tf_lamb.core import rules
from tf_lamb.core.messages import join_words


class Word(NamedTuple):
    """Holds a row of `WORDS`: an argument of other packages, or several that belong together.

    Attributes:
        foreign_arguments: The other packages' arguments, written as in a call: "lr". With a value,
            as in "adam_w_mode=False", the row is for this value alone. Besides them the text may
            have an argument of this package; then `replacement` overrides the user's value of it.
        packages: The packages that have the arguments. It is "" if the row is a guess at what a
            word means that people make up.
        replacement: The arguments of this package to pass instead, written as in a call. A name in
            it stands for the value that the user passed: "epsilon=eps". It is "" if no argument is
            needed, None if this package cannot do what the other packages' arguments ask for.
        note: A sentence on what this package computes differently, or on why it cannot do this and
            what to do instead. Defaults to "".
        classes: The names of this package's optimizers that the row is for. Defaults to all that
            have the arguments in `replacement`.
        noop: Values of the first argument that ask for what this package does anyway; the argument
            is then left out. Defaults to none.
        optimizer: The name of the optimizer of this package that does what those in `classes`
            cannot. `replacement` is None then. Defaults to none.
        unless_packages: Packages, as in `packages`. The row is not for a call that an earlier row
            of theirs is for. Defaults to none.
    """

    foreign_arguments: str
    packages: str
    replacement: str | None
    note: str = ""
    classes: tuple[str, ...] = ()
    noop: tuple[Any, ...] = ()
    optimizer: str = ""
    unless_packages: tuple[str, ...] = ()

    @property
    def conditions(self) -> Mapping[str, Any]:
        """Name of each argument in `foreign_arguments` -> the value it must have.

        The value `...` (Ellipsis) stands for any value.
        """
        return _required_values(self.foreign_arguments)

    @property
    def is_renaming(self) -> bool:
        """Whether one argument of this package takes the value as it is."""
        values = [*self.replacing_arguments.values()]
        return len(values) == 1 and isinstance(values[0], ast.Name)

    @property
    def replacing_arguments(self) -> Mapping[str, ast.expr]:
        """Name of each argument in `replacement` -> its value, as a syntax tree."""
        return {str(item.arg): item.value for item in _parse_call(self.replacement or "").keywords}


class Habit(NamedTuple):
    """Holds what an optimizer of other packages computes otherwise, whatever its arguments are.

    Attributes:
        packages: The packages, as in `Word.packages`. A call has the habit if a row for one of its
            arguments is of exactly these packages.
        classes: The names of this package's optimizers that the habit is for.
        replacement: The arguments that compute so, written as in a call. The call gets those that
            it does not have.
        note: A sentence on the habit.
        unless: Arguments whose rows settle the matter; with one of them the call stays as it is.
        unless_packages: Packages that do not have the habit; with an argument of theirs the call
            stays as it is. Defaults to none.
    """

    packages: tuple[str, ...]
    classes: tuple[str, ...]
    replacement: str
    note: str
    unless: tuple[str, ...] = ()
    unless_packages: tuple[str, ...] = ()

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Name of each argument in `replacement` -> its value."""
        keywords = _parse_call(self.replacement).keywords
        return {str(item.arg): ast.literal_eval(item.value) for item in keywords}


def _parse_call(text: str) -> ast.Call:
    """Parses the text of a call's arguments, such as "lr, eps=1e-6", into a syntax tree."""
    call = ast.parse(f"f({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    return call


@functools.cache
def _required_values(foreign_arguments):
    """Parses a text of arguments, such as "lr, eps=1e-6", into a dict of required values.

    The dict has the name of each argument. The value is that in the text, or `...` (any value) if
    the text has only the name.
    """
    call = _parse_call(foreign_arguments)
    return {
        **{ast.unparse(name): ... for name in call.args},
        **{str(item.arg): ast.literal_eval(item.value) for item in call.keywords},
    }


def _optimizers_where(condition: Callable[[rules.Rule], bool]) -> tuple[str, ...]:
    """Returns the names of this package's optimizers whose rules fulfil a condition."""
    return tuple(name for name, rule in rules.OURS.items() if condition(rule))


def _form_keys(rule: rules.Rule) -> list[str]:
    """Returns the keys of `form` that are neither arguments of the optimizer nor in other rows."""
    keys = [field.name for field in dataclasses.fields(rule.hyper["form"])]
    return [key for key in keys if key not in rule.hyper and key != "clip"]


# The optimizers that keep two moments of every variable, and have no argument `momentum`.
_WITH_MOMENTS = _optimizers_where(
    lambda rule: "beta_1" in rule.hyper and "momentum" not in rule.hyper
)
# The optimizers that keep a velocity of every variable.
_WITH_VELOCITY = _optimizers_where(
    lambda rule: "momentum" in rule.hyper and "beta_1" not in rule.hyper
)
_WITH_RATIO = _optimizers_where(lambda rule: rule.always_has_ratio)
_WITH_BOUNDS = _optimizers_where(lambda rule: "bounds" in rule.hyper)
_WITHOUT_BOUNDS = _optimizers_where(lambda rule: "bounds" not in rule.hyper)
_WITHOUT_RATIO = _optimizers_where(lambda rule: not rule.always_has_ratio)
_MATRICES = ("Muon", "SOAP")  # the optimizers that update matrices in their own way

_TORCH = "torch"
_KERAS_MUON = "Keras's Muon"
_TORCH_MUON = "torch's Muon"
_JORDAN = "Jordan's Muon"
_TIMM_MUON = "timm's Muon"
_SGD_OF_TORCH = "SGD of torch, LARS of timm"
_TORCH_AND_JORDAN = "Muon of torch and of Jordan"
_TORCH_AND_OPTAX = "Muon of torch and of optax"
_DEEPSPEED_LAMB = "DeepSpeed's Lamb"
_ONE_BIT_LAMB = "DeepSpeed's 1-bit Lamb"
_MXNET = "MXNet"
_XLA = "XLA compiles the update as one program."
_CLIPS_OF_RATIO = (
    "trust_ratio_clip", "clip_trust_ratio", "max_trust_ratio", "trust_ratio_max",
    "trust_ratio_clipping",
)  # fmt: skip
_PARAMETERS = "The model gives its variables in `compile`, or you in `build`."
_TIMM_CLIPS = "Without max_grad_norm timm clips, too, as global_clipnorm=1.0 does."
_REGEXES = "What a mask leaves out is a list of regexes here, searched in paths, or this group."
_ONE_DECAY = (
    "One weight_decay is for all variables, and Adam's follow Adam's rate; what shall not decay "
    "goes into exclude_from_weight_decay. Keras's Muon decays by 0.004 where nothing is given."
)
_ONE_DECAY_OF_ADAM = (
    "One weight_decay is for all variables here, and that one is AdamW's alone: pass weight_decay, "
    "and put what shall not decay into exclude_from_weight_decay."
)
_ADAMS = "Betas are AdamW's, which updates what is no matrix: matrices have momentum alone."
_SHAPE = "Their Muon scales steps by the shape, as this form does. Without it AdamW's rate serves."
# What `arguments.py` says of `ns_steps`, which several packages have, if nothing else in a call
# tells whose it is.
SCALES_OF_NS_STEPS = (
    "torch (decay 0.1 by default), Jordan and optax scale steps by the shape: add 'update_scale': "
    "'shape' to form for theirs; Keras (decay 0.004 by default) scales them as without it."
)
_L2 = (
    "There decay is part of the gradient: give the layers "
    "kernel_regularizer=keras.regularizers.L2(weight_decay / 2) instead."
)
_SCHEDULE_NOT_NUMBER = (
    "A schedule, such as keras.optimizers.schedules.CosineDecay(rate, steps), takes the place of "
    "the number."
)
_STEPS_OF_SCHEDULE = "Write the number of your steps for 10000."
_RATE_OF_ADAM = (
    "All variables have one rate: give the paths that shall be slower one in treatments, such as "
    "{'embedding': {'rate': 0.1}}."
)

_TWO_NORMS = (
    "global_clipnorm scales all gradients by one factor if the norm of all of them together is "
    "larger, and clipnorm each variable's by its own norm."
)
_SCHEDULE = (
    "It belongs to a schedule, such as keras.optimizers.schedules.CosineDecay: pass that as "
    "learning_rate."
)
_NO_COMPRESSION = "Nothing is compressed here: the steps are those of uncompressed LAMB."
_DISTRIBUTION = "Keras, or the strategy of TensorFlow, knows the devices and sends gradients."
_ONE_CONVOLUTION = "A convolution is one matrix here, as with conv_mode='flatten'."
_LIFTED_ZERO = (
    "There lower_bound lifts the norm of a weight at 0, too, which is thus adapted; here its ratio "
    "is 1."
)
_COUNT_OF_STEPS = (
    "It is the number of steps already taken; here that is iterations, which a saved optimizer "
    "restores."
)
_MXNET_LARS = (
    "MXNet's Module exempts what ends with gamma, beta or bias, as exclude_from_weight_decay="
    "['gamma', 'beta', 'bias'] does; its Gluon exempts nothing. Epsilon is 1e-8 in MXNet 2, and 0 "
    "in 1.9 and here."
)
_NO_CAUTION = "No rule here masks a step by the sign of its gradient."
_NO_GRAFTING = "Its steps are Adam's, in the bases of Shampoo: they need no grafting."
_MUON_PICKS = (
    "It takes all matrices but embeddings, and leaves the rest, and what "
    "exclude_from_layer_adaptation matches, to AdamW."
)
_NO_COEFFICIENT = "Its trust ratio has no coefficient; that of LARS has."
_NO_SECOND_MOMENT = "It keeps no second moment."
_NO_MOMENTUM = "The momentum_decay of torch's NAdam is another thing."
_NESTEROV = "LANS is LAMB with Nesterov's step, on normalized gradients."
_EXCLUDED = (
    "What has no decay has no trust ratio either, unless exclude_from_layer_adaptation has a list "
    "of its own."
)
_LEFT_TO_ADAM = (
    "It leaves these variables to Adam; exclude_from_weight_decay keeps them as they are, without "
    "decay."
)

# Parts of names that say whose an argument is, or what kind of thing, such as those in
# "adam_epsilon" and "momentum_factor". A name is also searched for without them.
QUALIFIERS = {
    "adam", "adamp", "adamw", "base", "coef", "coeff", "coefficient", "default", "enable", "factor",
    "fn", "init", "initial", "lamb", "lans", "lars", "muon", "opt", "optim", "optimizer", "param",
    "peak", "schedule", "scheduler", "sgd", "sgdp", "soap", "use", "value",
}  # fmt: skip

# A call is rewritten by the first row whose arguments it has. So a row of several arguments comes
# before the rows of each of them.
WORDS = (
    # -- timm's Muon: before the words that it shares with torch's and Jordan's
    Word("lr, fallback_lr_scale", _TIMM_MUON,
         "learning_rate=lr, form={'fallback_lr_scale': fallback_lr_scale}", "", ("Muon",)),
    Word("betas, adjust_lr_fn='match_rms_adamw'", _TIMM_MUON,
         "beta_1=betas[0], beta_2=betas[1]", "", ("Muon",)),
    Word("betas, adjust_lr_fn='original'", _TIMM_MUON,
         "beta_1=betas[0], beta_2=betas[1], form={'update_scale': 'shape'}", "", ("Muon",)),
    Word("adjust_lr_fn='rms_to_rms'", _TIMM_MUON, None,
         "Steps are scaled by sqrt(outputs/inputs) only where a layer widens, with "
         "form={'update_scale': 'shape'}.", ("Muon",)),
    Word("ns_coefficients='quintic'", _TIMM_MUON, "", "", ("Muon",)),
    Word("ns_coefficients='original'", _TIMM_MUON, "form={'coefficients': 'jordan'}", "",
         ("Muon",)),
    *(
        Word(f"ns_coefficients={name!r}", _TIMM_MUON, "form={'coefficients': 'polar_express'}",
             "Its numbers are not quite timm's: for those pass a list of triples.", ("Muon",))
        for name in ("polar_express", "polar_express_safer")
    ),
    Word("conv_mode", _TIMM_MUON, None, _ONE_CONVOLUTION, ("Muon",), noop=("flatten",)),
    Word("normalize_spatial", _TIMM_MUON, "", _ONE_CONVOLUTION, ("Muon",)),
    Word("safety_factor", _TIMM_MUON, None,
         "A matrix is divided by its norm alone before the Newton-Schulz steps.", ("Muon",),
         noop=(1,)),
    Word("scale_eps", _TIMM_MUON, None, "The epsilon of Newton-Schulz is 1e-7 for every shape.",
         ("Muon",), noop=(False,)),
    Word("algo", _TIMM_MUON, None, "AdaMuon is another algorithm, which is not here.", ("Muon",),
         noop=("muon",)),
    Word("verbose", _TIMM_MUON, "", "tf_lamb.describe prints which variables are matrices.",
         ("Muon",)),
    # -- learning rate and decay
    Word(
        "lr, adjust_lr_fn='match_rms_adamw'", _TORCH_MUON, "learning_rate=lr", "", ("Muon",)
    ),
    Word(
        "lr", _TORCH_AND_JORDAN, "learning_rate=lr, form={'update_scale': 'shape'}",
        _SHAPE, ("Muon",), unless_packages=(_TIMM_MUON,),
    ),
    Word("lr", "torch, timm, apex, old Keras", "learning_rate=lr"),
    Word(
        "decay, learning_rate=None", "TensorFlow Addons, old Keras",
        "learning_rate=keras.optimizers.schedules.InverseTimeDecay(0.001, 1, decay)",
        "It is the decay of the learning rate, which is 0.001 there by default.", noop=(0, None),
    ),
    Word(
        "decay, learning_rate", "TensorFlow Addons, old Keras",
        "learning_rate=keras.optimizers.schedules.InverseTimeDecay(learning_rate, 1, decay)",
        "It is the decay of the learning rate.", noop=(0, None),
    ),
    Word("decay_rate, decay_steps, learning_rate", "Keras's schedules",
         "learning_rate=keras.optimizers.schedules.ExponentialDecay(learning_rate, decay_steps, "
         "decay_rate)", "It is the decay of the learning rate."),
    Word("decay_rate", "", "weight_decay=decay_rate",
         "If it is a schedule's, such as that of keras.optimizers.schedules.ExponentialDecay, pass "
         "the schedule as learning_rate."),
    *(
        Word(f"learning_rate, {name}={kind!r}", packages, f"learning_rate={schedule}",
             _STEPS_OF_SCHEDULE)
        for name, packages in {"lr_scheduler_type": "Hugging Face", "lr_scheduler": ""}.items()
        for kind, schedule in {
            "cosine": "keras.optimizers.schedules.CosineDecay(learning_rate, 10000)",
            "linear": "keras.optimizers.schedules.PolynomialDecay(learning_rate, 10000, 0.0)",
        }.items()
    ),
    *(
        Word(f"{name}, learning_rate", packages, f"learning_rate={name}", _SCHEDULE_NOT_NUMBER,
             noop=(None,))
        for name, packages in {
            "lr_scheduler_type": "Hugging Face", "lr_scheduler": "", "lr_schedule": "",
            "learning_rate_scheduler": "", "learning_rate_schedule": "", "schedule": "",
        }.items()
    ),
    *(
        Word(
            f"{warmup}, {total}, learning_rate", packages,
            f"learning_rate=tf_lamb.keras.schedules.Warmup({warmup}, "
            f"keras.optimizers.schedules.PolynomialDecay(learning_rate, {total} - {warmup}, 0.0))",
            "The rate goes up in the first steps, and then down to 0 at the last.",
        )
        for warmup, total, packages in (
            ("num_warmup_steps", "num_train_steps", "BERT, Model Garden"),
            ("num_warmup_steps", "num_training_steps", "Hugging Face"),
            ("warmup_steps", "total_steps", ""),
            ("warmup_steps", "train_steps", ""),
        )
    ),
    *(
        Word(name, packages, None, _SCHEDULE, noop=(None,))
        for name, packages in {
            "num_warmup_steps": "BERT, Hugging Face", "num_train_steps": "BERT, Model Garden",
            "num_training_steps": "Hugging Face", "train_steps": "Model Garden",
            "warmup_steps": "Hugging Face", "warmup_ratio": "Hugging Face",
            "warmup_proportion": "TensorFlow Addons", "warmup_num_steps": "DeepSpeed",
            "warmup_epochs": "timm", "warmup_lr": "timm", "min_lr": "timm, TensorFlow Addons",
            "max_epoch": "others' LARS",
            "max_lr": "torch's schedules", "total_steps": "TensorFlow Addons, torch's schedules",
            "decay_steps": "Keras's schedules", "lr_decay": "", "learning_rate_decay": "",
            "steps": "",
        }.items()
    ),
    *(
        Word(name, "", f"weight_decay={name}",
             "Decay is no part of the gradient here; a penalty in the loss is the "
             "kernel_regularizer of a layer.")
        for name in ("l2", "l2_reg", "l2_regularization")
    ),
    Word("weight_decay_rate", "TensorFlow Addons, Model Garden", "weight_decay=weight_decay_rate"),
    Word("wd", "MXNet, fastai", "weight_decay=wd"),
    Word("lamb_weight_decay", "paddle", "weight_decay=lamb_weight_decay", "", ("LAMB",)),
    Word("lars_weight_decay", "paddle", "weight_decay=lars_weight_decay", "", ("LARS",)),
    Word(
        "decoupled_decay", "timm", "weight_decay_mode='decoupled'", noop=(False, None)
    ),
    Word(
        "weight_decouple", "pytorch_optimizer", "weight_decay_mode='decoupled'",
        "Its Lamb differs elsewhere, too: see docs/other_lambs.md.", noop=(False,),
    ),
    Word("weight_decay, adam_w_mode=False", "apex", "weight_decay=0.0",
         f"{_L2} The weight_decay of apex is 0.01 if none is passed."),
    Word("adam_w_mode", "apex", "", "Decay is no part of the gradient here."),
    Word("use_decoupled_weight_decay", "Shampoo", None, _L2, ("SOAP",), noop=(True,)),
    Word("mode", "LANS of its authors", None, _L2, ("LANS",), noop=(1,)),
    Word("fixed_decay", "pytorch_optimizer", None, "Decay follows the rate.", noop=(False,)),
    Word("cautious_weight_decay", "", None, "No rule here masks decay by the sign of a step.",
         noop=(False,)),
    Word(
        "corrected_weight_decay", "timm", None, "Decay here follows the rate itself.",
        noop=(False, None),
    ),
    # -- moments
    Word(
        "betas", "torch, timm, apex", "momentum=betas[0]", _NO_SECOND_MOMENT,
        _WITH_VELOCITY,
    ),
    Word("betas", "torch, timm, apex", "beta_1=betas[0], beta_2=betas[1]", _ADAMS, ("Muon",)),
    Word("betas", "torch, timm, apex", "beta_1=betas[0], beta_2=betas[1]"),
    Word("b1", "optax", "momentum=b1", "", _WITH_VELOCITY),
    Word("b2", "optax", None, _NO_SECOND_MOMENT, _WITH_VELOCITY),
    Word("b1", "optax", "beta_1=b1", _ADAMS, ("Muon",)),
    Word("b2", "optax", "beta_2=b2", _ADAMS, ("Muon",)),
    Word("b1", "optax", "beta_1=b1"),
    Word("b2", "optax", "beta_2=b2"),
    Word("beta1", "paddle, MXNet", "momentum=beta1", "", _WITH_VELOCITY),
    Word("beta2", "paddle, MXNet", None, _NO_SECOND_MOMENT, _WITH_VELOCITY),
    Word("beta1", "paddle, MXNet", "beta_1=beta1", _ADAMS, ("Muon",)),
    Word("beta2", "paddle, MXNet", "beta_2=beta2", _ADAMS, ("Muon",)),
    Word("beta1", "paddle, MXNet", "beta_1=beta1"),
    Word("beta2", "paddle, MXNet", "beta_2=beta2"),
    Word("beta", "", "momentum=beta", "", _WITH_VELOCITY),
    Word("beta", "optax's Muon", "momentum=beta", "", ("Muon",)),
    Word("beta_1", "Keras", "momentum=beta_1", "", _WITH_VELOCITY),
    Word("beta_2", "Keras, torch", None, _NO_SECOND_MOMENT, _WITH_VELOCITY),
    Word("momentum", "Keras's and torch's SGD", "beta_1=momentum", "", _WITH_MOMENTS),
    Word("mom", "fastai", "beta_1=mom", "", _WITH_MOMENTS),
    Word("mom", "fastai", "momentum=mom"),
    Word("momentum_decay", "", "beta_1=momentum_decay", _NO_MOMENTUM, _WITH_MOMENTS),
    Word("momentum_decay", "", "momentum=momentum_decay", _NO_MOMENTUM),
    Word("eps", _TORCH_AND_OPTAX, "epsilon=eps",
         "It is AdamW's. That of Newton-Schulz, which torch's Muon calls so, is 1e-7.", ("Muon",)),
    Word("eps", "torch, timm, apex, optax", "epsilon=eps"),
    Word(
        "eps_root", "optax", None, "Epsilon here stands outside of the root: pass epsilon.",
        noop=(0,),
    ),
    Word("eps_inside_sqrt=True", _DEEPSPEED_LAMB, "epsilon=0.0001",
         "There epsilon, 1e-8 by default, is added inside the root. Outside of it, where it stands "
         "here, its root, 1e-4, comes nearest."),
    Word("eps_inside_sqrt", _DEEPSPEED_LAMB, None,
         "Epsilon here stands outside of the root: pass epsilon.", noop=(False,)),
    Word("debias=False", "torch_optimizer", "bias_correction=False", "", ("LAMB",)),
    Word("debias", "torch_optimizer", "bias_correction=False",
         "There the rate is corrected, after the ratio: for the same steps pass `Corrected` of "
         "docs/other_lambs.md as learning_rate.", ("LAMB",)),
    Word("correct_bias", "Vyas' SOAP", None, "Bias is always corrected.", ("SOAP",), noop=(True,)),
    Word(
        "bias_correction", "timm, apex", None, "Bias is always corrected.",
        ("LANS", "SOAP", "AdamP", "Muon"), noop=(True,),
    ),
    Word(
        "grad_averaging", "timm, apex", None, "The first moment here is an average, not a sum.",
        ("LAMB", "LANS", "AdamP", "SOAP"), noop=(True,),
    ),
    Word(
        "normalize_grad", "LANS of its authors", None,
        "LANS normalizes each gradient; LAMB does not.", ("LANS",), noop=(True,), optimizer="LAMB",
    ),
    Word("normalize_grad", "LANS of its authors", None, _NESTEROV, ("LAMB",), noop=(False,),
         optimizer="LANS"),
    Word("amsgrad", "Keras, torch", None, "No rule of this package is AMSGrad.", noop=(False,)),
    *(
        Word(name, "pytorch_optimizer", None, note, noop=(False,))
        for note, names in {
            "No rule here is rectified.": ("rectify", "degenerated_to_sgd"),
            "No gradient is scaled to the mean of its norms.": ("adanorm",),
            "Bias is corrected in both moments.": ("adam_debias",),
            "Gradients are not centralized.": ("use_gc",),
        }.items()
        for name in names
    ),
    Word("n_sma_threshold", "pytorch_optimizer", None, "No rule here is rectified.", noop=(5,)),
    Word("dampening", _SGD_OF_TORCH, None, "A gradient enters the velocity whole.", noop=(0,)),
    Word("use_nesterov", "MLPerf", "nesterov=use_nesterov"),
    Word("nesterov_momentum", "", "nesterov=nesterov_momentum"),
    Word("nesterov", "Keras, torch", None, _NESTEROV, ("LAMB",), noop=(False,), optimizer="LANS"),
    Word("nesterov", "Keras, torch", None, "LANS always takes Nesterov's step; LAMB never does.",
         ("LANS",), noop=(True,), optimizer="LAMB"),
    Word(
        "nesterov", "Keras, torch", None, "SOAP has no Nesterov's step; Muon has.", ("SOAP",),
        noop=(False,),
    ),
    # -- the trust ratio
    Word("eeta, classic_momentum=True", "Model Garden",
         "trust_coefficient=eeta, form={'denominator': 'norm_of_sum'}", "", ("LARS",)),
    Word("eeta, classic_momentum=False", "Model Garden",
         "trust_coefficient=eeta, form={'momentum': 'outside', 'denominator': 'norm_of_update'}",
         "", ("LARS",)),
    Word("eeta", "Model Garden, MLPerf", "trust_coefficient=eeta",
         "Model Garden's ratio divides by the norm of the sum: add "
         "form={'denominator': 'norm_of_sum'} to compute as it does."),
    Word("trust_coeff", "timm", "trust_coefficient=trust_coeff, form={'momentum': 'mixed'}",
         "timm's epsilon is 1e-8, and its momentum is 0 where none is given."),
    Word("lars_coeff", "paddle", "trust_coefficient=lars_coeff", "", ("LARS",)),
    Word("eta", "others' LARS", "trust_coefficient=eta", _MXNET_LARS),
    Word("momentum_correction", _MXNET, None,
         "It scales momentum with the rate, but that of the first four variables alone: see "
         "docs/other_lambs.md.", ("LARS",), noop=(False,)),
    *(
        Word(name, packages, None, note, classes)
        for classes, note in {
            ("LAMB", "LANS"): _NO_COEFFICIENT,
            _WITHOUT_RATIO: "It has no trust coefficient; LARS has.",
        }.items()
        for name, packages in {
            "trust_coefficient": "LARS, optax", "trust_coeff": "timm", "lars_coeff": "paddle",
            "eeta": "Model Garden, MLPerf", "tcoef": "", "trust_coef": "",
        }.items()
    ),
    Word("eta", "others' LARS", None,
         "It is the trust coefficient, which only LARS has; a rate is called learning_rate.",
         ("LAMB", "LANS", *_WITHOUT_RATIO)),
    *(Word(name, "", f"trust_coefficient={name}") for name in ("tcoef", "trust_coef")),
    Word("classic_momentum=True", "Model Garden", "form={'denominator': 'norm_of_sum'}",
         "", ("LARS",)),
    Word("classic_momentum=False", "Model Garden",
         "form={'momentum': 'outside', 'denominator': 'norm_of_update'}", "", ("LARS",)),
    Word("trust_clip", "timm", "form={'momentum': 'mixed', 'clip': True}", "", ("LARS",),
         noop=(False,)),
    Word(
        "trust_clip", "timm", "bounds={'trust_ratio': (0, 1)}", "", ("LAMB",),
        noop=(False,),
    ),
    *(
        Word(f"{name}=True", "", "bounds={'trust_ratio': (0, 1)}", "", _WITH_BOUNDS)
        for name in _CLIPS_OF_RATIO
    ),
    *(
        Word(name, "", f"bounds={{'trust_ratio': (0, {name})}}", "", _WITH_BOUNDS,
             noop=(False, None))
        for name in _CLIPS_OF_RATIO
    ),
    *(
        Word(name, "", None, f"{join_words(_WITH_BOUNDS)} have bounds of a trust ratio.",
             _WITHOUT_BOUNDS, noop=(False, None))
        for name in _CLIPS_OF_RATIO
    ),
    Word("clip", "apex's LARC", "form={'momentum': 'mixed', 'clip': clip}", "", ("LARS",)),
    Word("larc", "", "form={'momentum': 'mixed', 'clip': True}", "", ("LARS",), noop=(False,)),
    Word("adam=True", "pytorch-lamb, torch_optimizer, pytorch_optimizer",
         "exclude_from_layer_adaptation=['.*'], bias_correction=False",
         "Their Adam corrects no bias; pytorch_optimizer's divides the rate by 1 - beta_1^t: see "
         "docs/other_lambs.md.", ("LAMB",)),
    Word("adam", "torch_optimizer", "", "", ("LAMB",), noop=(False,)),
    *(
        Word(name, "", replacement, "", classes, noop)
        for name in ("use_trust_ratio", "layerwise_adaptation", "layer_adaptation")
        for classes, replacement, noop in (
            (_WITH_RATIO, "exclude_from_layer_adaptation=['.*']", (True,)),
            (_MATRICES, "bounds={'trust_ratio': (None, None)}", (False,)),
        )
    ),
    Word("trust_ratio=False", "", "exclude_from_layer_adaptation=['.*']", "", _WITH_RATIO),
    Word("trust_ratio=False", "", "", "", _MATRICES, noop=(False,)),
    Word("trust_ratio=True", "", "", "", _WITH_RATIO, noop=(True,)),
    Word("trust_ratio=True", "", "bounds={'trust_ratio': (None, None)}", "", _MATRICES),
    Word("always_adapt", "timm", "exclude_from_layer_adaptation=[]", "", ("LARS",),
         noop=(False,)),
    Word("always_adapt", "timm, paddle", "exclude_from_layer_adaptation=[]", _TIMM_CLIPS,
         ("LAMB", "LANS"), noop=(False,)),
    Word("use_nvlamb", "apex", "exclude_from_layer_adaptation=[]", "NVLAMB adapts every variable.",
         ("LAMB",), noop=(False,)),
    Word("min_coeff, max_coeff", _DEEPSPEED_LAMB,
         "bounds={'trust_ratio': (min_coeff, max_coeff)}", "", ("LAMB", "LARS")),
    Word("max_coeff", _DEEPSPEED_LAMB, "bounds={'trust_ratio': (0.01, max_coeff)}", "",
         ("LAMB", "LARS")),
    Word("min_coeff", _DEEPSPEED_LAMB, "bounds={'trust_ratio': (min_coeff, 10)}", "",
         ("LAMB", "LARS")),
    Word("lower_bound", _MXNET, None, f"LANS has no lower bound of a norm. {_LIFTED_ZERO}",
         ("LANS",), noop=(None,)),
    Word("upper_bound", _MXNET, None, "LANS has no upper bound of a norm.", ("LANS",),
         noop=(None,)),
    Word("upper_bound, lower_bound=None", _MXNET, "bounds={'weight_norm': (0, upper_bound)}", "",
         ("LAMB",), noop=(None,)),
    Word("lower_bound, upper_bound", _MXNET,
         "bounds={'weight_norm': (lower_bound, upper_bound)}", _LIFTED_ZERO, ("LAMB",)),
    Word("upper_bound", _MXNET, "bounds={'weight_norm': (0, upper_bound)}", "", ("LAMB",)),
    Word("lower_bound", _MXNET, "bounds={'weight_norm': (lower_bound, None)}",
         _LIFTED_ZERO, ("LAMB",), noop=(None,)),
    Word("clamp_value", "torch_optimizer", "bounds={'weight_norm': (0, clamp_value)}", "",
         ("LAMB",)),
    Word("max_unorm", "bitsandbytes", None,
         "There it bounds the norm of the step: see docs/other_lambs.md.", _WITH_RATIO),
    Word("caution", "timm", None, _NO_CAUTION, noop=(False,)),
    Word("cautious", "", None, _NO_CAUTION, noop=(False,)),
    # -- what is excluded
    Word("exclude_layers, exclude_embeddings=False", _KERAS_MUON,
         "exclude_from_layer_adaptation=[*exclude_layers]", "", _MATRICES),
    Word("exclude_layers", _KERAS_MUON,
         "exclude_from_layer_adaptation=[*exclude_layers, 'embedding']",
         "Keras's Muon leaves embeddings to Adam besides what you list.", _MATRICES),
    Word("exclude_layers", _KERAS_MUON, "exclude_from_layer_adaptation=[*exclude_layers]"),
    Word("exclude_embeddings", _KERAS_MUON, "exclude_from_layer_adaptation=[]",
         "", _MATRICES, noop=(True,)),
    Word("mask", "optax", "exclude_from_weight_decay='norm_and_bias'", _REGEXES, noop=(None,)),
    Word("weight_decay_mask", "optax", "exclude_from_weight_decay='norm_and_bias'", _REGEXES,
         noop=(None, True)),
    Word("trust_ratio_mask=True", "optax", "exclude_from_layer_adaptation=[]", "", _WITH_RATIO),
    Word("trust_ratio_mask", "optax", "exclude_from_layer_adaptation='norm_and_bias'", _REGEXES,
         _WITH_RATIO),
    Word("exclude_from_weight_decay_fn", "paddle", "exclude_from_weight_decay='norm_and_bias'",
         "What the function picks is a list of regexes here, searched in paths, or this group.",
         noop=(None,)),
    Word("skip_list", "MLPerf", "exclude_from_weight_decay=skip_list"),
    Word("no_weight_decay", "timm", "exclude_from_weight_decay=no_weight_decay"),
    Word("weight_decay_exclude", "", "exclude_from_weight_decay=weight_decay_exclude"),
    Word("exclude_from_decay", "", "exclude_from_weight_decay=exclude_from_decay"),
    Word("exclude", "", "exclude_from_layer_adaptation=exclude", _LEFT_TO_ADAM, _MATRICES),
    Word("exclude", "", "exclude_from_weight_decay=exclude", _EXCLUDED, _WITH_RATIO),
    Word("exclude", "", "exclude_from_weight_decay=exclude"),
    Word("exclude_from_lars", "", "exclude_from_layer_adaptation=exclude_from_lars"),
    Word("lars_exclude", "", "exclude_from_layer_adaptation=lars_exclude"),
    Word("filter_bias_and_bn", "timm", "exclude_from_weight_decay='norm_and_bias'",
         noop=(False,)),
    *(
        Word(name, "", "exclude_from_weight_decay='norm_and_bias'", noop=(False, None))
        for name in ("exclude_bias", "exclude_bias_and_norm", "exclude_norm_and_bias")
    ),
    Word("no_decay", "Hugging Face", "exclude_from_weight_decay=no_decay"),
    Word("no_decay_params", "", "exclude_from_weight_decay=no_decay_params"),
    Word("apply_to_bias", "", "exclude_from_weight_decay=['bias']", noop=(True, None)),
    Word("weight_decay_filter=True, lars_adaptation_filter=True", "LARS of Barlow Twins",
         "exclude_from_weight_decay='norm_and_bias', "
         "exclude_from_layer_adaptation='norm_and_bias'", "", _WITH_RATIO),
    Word("weight_decay_filter", "LARS of Barlow Twins",
         "exclude_from_weight_decay='norm_and_bias'", _EXCLUDED, _WITH_RATIO, noop=(False, None)),
    *(
        Word(f"lars_adaptation_filter={value}", "LARS of Barlow Twins",
             "exclude_from_layer_adaptation=[]", "", _WITH_RATIO)
        for value in (False, None)
    ),
    Word("lars_adaptation_filter", "LARS of Barlow Twins",
         "exclude_from_layer_adaptation='norm_and_bias'", "", _WITH_RATIO),
    Word("include_in_weight_decay", "Model Garden, Hugging Face", None,
         "All decays but what exclude_from_weight_decay matches: list the others there.",
         noop=(None,)),
    # -- Muon
    Word("ns_steps", "torch, optax, Keras's Muon", "form={'newton_schulz_steps': ns_steps}", "",
         ("Muon",)),
    Word("backend_steps", _JORDAN, "form={'newton_schulz_steps': backend_steps}", "",
         ("Muon",)),
    Word("ns_coefficients", _TORCH_MUON, "form={'coefficients': ns_coefficients}", "", ("Muon",),
         noop=((3.4445, -4.775, 2.0315),)),
    Word("ns_coeffs", "optax", "form={'coefficients': ns_coeffs}", "", ("Muon",),
         noop=((3.4445, -4.775, 2.0315),)),
    Word("muon_a, muon_b, muon_c", _KERAS_MUON,
         "form={'coefficients': [muon_a, muon_b, muon_c]}", "", ("Muon",)),
    Word("muon_a, muon_b", _KERAS_MUON, "form={'coefficients': [muon_a, muon_b, 2.0315]}", "",
         ("Muon",)),
    Word("muon_a, muon_c", _KERAS_MUON, "form={'coefficients': [muon_a, -4.775, muon_c]}", "",
         ("Muon",)),
    Word("muon_b, muon_c", _KERAS_MUON, "form={'coefficients': [3.4445, muon_b, muon_c]}", "",
         ("Muon",)),
    Word("muon_a", _KERAS_MUON, "form={'coefficients': [muon_a, -4.775, 2.0315]}", "", ("Muon",),
         noop=(3.4445,)),
    Word("muon_b", _KERAS_MUON, "form={'coefficients': [3.4445, muon_b, 2.0315]}", "", ("Muon",),
         noop=(-4.775,)),
    Word("muon_c", _KERAS_MUON, "form={'coefficients': [3.4445, -4.775, muon_c]}", "", ("Muon",),
         noop=(2.0315,)),
    Word("rms_rate", _KERAS_MUON, None,
         "It is 0.2 here. For another multiply learning_rate by rms_rate / 0.2, and divide "
         "weight_decay and the fallback_lr_scale of form by that.", ("Muon",), noop=(0.2,)),
    Word("adjust_lr_fn='match_rms_adamw'", _TORCH_MUON, "form={'update_scale': 'rms'}", "",
         ("Muon",)),
    Word("adjust_lr_fn", _TORCH_MUON, "form={'update_scale': 'shape'}", "", ("Muon",)),
    Word("consistent_rms=None", "optax", "form={'update_scale': 'shape'}", "", ("Muon",)),
    Word("consistent_rms", "optax", None, "It is 0.2 here, Moonlight's.", ("Muon",), noop=(0.2,)),
    Word("adaptive", "optax", None, "A step is not scaled by the dual norm.", ("Muon",),
         noop=(False,)),
    Word("adam_lr_ratio", _KERAS_MUON, "form={'fallback_lr_scale': adam_lr_ratio}",
         "Keras decays what AdamW updates by the full rate, and Muon here by this share of it.",
         ("Muon",)),
    Word("adam_lr_ratio", _KERAS_MUON, None, _RATE_OF_ADAM, noop=(1,)),
    *(
        Word(name, packages, f"form={{'fallback_lr_scale': {name} / learning_rate}}", "",
             ("Muon",), noop=(None,))
        for name, packages in {
            "adamw_lr": _JORDAN, "adam_learning_rate": "optax", "adam_lr": "",
            "adamw_learning_rate": "", "aux_lr": "", "aux_learning_rate": "", "lr_adam": "",
            "lr_adamw": "",
        }.items()
    ),
    Word("adam_weight_decay, weight_decay=None", _KERAS_MUON, "weight_decay=adam_weight_decay",
         _ONE_DECAY, ("Muon",)),
    Word("adam_weight_decay", _KERAS_MUON, "", _ONE_DECAY, ("Muon",)),
    Word("adamw_wd", _JORDAN, "", _ONE_DECAY_OF_ADAM, ("Muon",)),
    Word("adamw_weight_decay", "", "", _ONE_DECAY_OF_ADAM, ("Muon",)),
    Word("muon_params", _JORDAN, "", _MUON_PICKS, ("Muon",)),
    Word("adamw_params", _JORDAN, "", _MUON_PICKS, ("Muon",)),
    Word("use_muon", _JORDAN, None, _MUON_PICKS, ("Muon",), noop=(True,)),
    Word("muon_weight_dimension_numbers", "optax", None,
         "The axes of a matrix are in treatments, such as {'mixer/kernel': {'rows': 0}}.",
         ("Muon",), noop=(None,)),
    Word("preconditioning", "optax", None,
         "A matrix is divided by its Frobenius norm before the Newton-Schulz steps.", ("Muon",),
         noop=("frobenius",)),
    Word("backend", _JORDAN, None, "Matrices are orthogonalized by Newton-Schulz steps.",
         ("Muon",), noop=("newtonschulz5",)),
    Word("adam_beta_1", _KERAS_MUON, "beta_1=adam_beta_1", "", ("Muon",)),
    Word("adam_beta_2", _KERAS_MUON, "beta_2=adam_beta_2", "", ("Muon",)),
    Word("adam_b1", "optax", "beta_1=adam_b1", "", ("Muon",)),
    Word("adam_b2", "optax", "beta_2=adam_b2", "", ("Muon",)),
    Word("adamw_betas", _JORDAN, "beta_1=adamw_betas[0], beta_2=adamw_betas[1]", "",
         ("Muon",)),
    Word("adamw_eps", _JORDAN, "epsilon=adamw_eps", "", ("Muon",)),
    Word("per_head_muon", "DeepSpeed", "form={'heads': 'each'}", "", ("Muon",), noop=(False,)),
    Word("split_qkv_per_head", "Megatron's Muon", "form={'heads': 'each'}", "", ("Muon",),
         noop=(False,)),
    Word("split_qkv", "Megatron's Muon", "",
         "Query, key and value are kernels of their own in Keras's attention layers. A fused one "
         "takes treatments={'qkv/kernel': {'heads': [-1, 3]}}.", ("Muon",), noop=(False,)),
    # -- SOAP
    Word("shampoo_beta", "Vyas' SOAP", None, "The factors decay by beta_2.", ("SOAP",),
         noop=(-1,)),
    *(
        Word(name, "", None, "The factors decay by beta_2, and the moments by beta_1 and beta_2.",
             ("SOAP",))
        for name in ("hidden_beta", "precond_beta", "preconditioner_beta", "factor_beta")
    ),
    *(
        Word(name, packages, None,
             "The bases are renewed every precondition_frequency steps, which is 1 divided by the "
             "probability.", ("SOAP",))
        for name, packages in {
            "preconditioner_update_probability": "PSGD", "precond_update_prob": "",
        }.items()
    ),
    Word("merge_dims", "Vyas' SOAP", None,
         "Kernels of more axes are matrices already: `tf_lamb.describe` shows which.", ("SOAP",),
         noop=(False,)),
    Word("precondition_1d", "Vyas' SOAP", None, "What has one axis is AdamW's.", ("SOAP",),
         noop=(False,)),
    Word("normalize_grads", "Vyas' SOAP", None, "Updates keep their length.", ("SOAP",),
         noop=(False,)),
    Word("precond_freq", "", "precondition_frequency=precond_freq", "", ("SOAP",)),
    Word("preconditioning_compute_steps", "Shampoo",
         "precondition_frequency=preconditioning_compute_steps", "", ("SOAP",)),
    Word("start_preconditioning_step", "Shampoo", None, "Bases serve from the second step on.",
         ("SOAP",)),
    Word("block_size", "Shampoo", None,
         "Matrices are not cut into blocks: max_precond_dim is the longest axis that has a basis.",
         ("SOAP",)),
    Word("max_size_triangular", "PSGD", None,
         "No preconditioner is triangular: max_precond_dim is the longest axis that has a basis.",
         ("SOAP",)),
    Word("graft_type", "Shampoo", None, _NO_GRAFTING, ("SOAP",)),
    Word("grafting_config", "Shampoo", None, _NO_GRAFTING, ("SOAP",)),
    Word("data_format", "Vyas' SOAP", "", "Keras's order of axes is known.", ("SOAP",)),
    # -- AdamP
    Word("projection_delta", "", "delta=projection_delta", "", ("AdamP", "SGDP")),
    # -- clipping
    Word("max_grad_norm", "timm, apex", "global_clipnorm=max_grad_norm", "", ("LAMB",),
         noop=(None, 0, False)),
    Word("max_grad_norm", "timm, apex, Hugging Face", "global_clipnorm=max_grad_norm",
         noop=(None, 0, False)),
    Word("gradient_clip_norm", "Model Garden", "global_clipnorm=gradient_clip_norm",
         noop=(None, 0)),
    Word("clip_norm", "tf.clip_by_global_norm", "global_clipnorm=clip_norm", _TWO_NORMS,
         noop=(None,)),
    *(
        Word(name, packages, f"global_clipnorm={name}", _TWO_NORMS, noop=(None, False))
        for name, packages in {
            "clip_grad": "timm, Megatron", "clip_grad_norm": "torch",
            "grad_clip_norm": "", "gradient_clip_val": "Lightning", "max_gradient_norm": "",
            "clip": "", "clip_gradients": "",
        }.items()
    ),
    Word("gradient_clipping", "DeepSpeed", "global_clipnorm=gradient_clipping", noop=(None, 0)),
    Word("clip_by_global_norm", "optax", "global_clipnorm=clip_by_global_norm", noop=(None,)),
    Word("clip_value", "torch's clip_grad_value_", "clipvalue=clip_value", noop=(None,)),
    Word("max_norm", "torch's clip_grad_norm_", "global_clipnorm=max_norm", noop=(None,)),
    Word("clip_gradient", _MXNET, "clipvalue=clip_gradient", noop=(None, -1)),
    Word("pre_norm", "pytorch_optimizer", None,
         "Gradients are clipped by a number, global_clipnorm, and not divided by a norm.",
         noop=(False,)),
    Word("grad_clip", "paddle", None, "Pass global_clipnorm, clipnorm or clipvalue, a number.",
         noop=(None,)),
    # -- all else
    Word("params", "torch", "", _PARAMETERS),
    Word("parameters", "paddle", "", _PARAMETERS),
    Word("foreach", _TORCH, "", _XLA),
    Word("fused", _TORCH, "", _XLA),
    Word("capturable", _TORCH, "", _XLA),
    Word("differentiable", _TORCH, None, "No gradient flows through a step.", noop=(False,)),
    Word("maximize", _TORCH, None, "Steps go down: negate the loss.", noop=(False,)),
    Word("set_grad_none", "apex", "", "Gradients are not kept between steps."),
    Word("mu_dtype", "optax", "dtypes={'slots': mu_dtype}", "Both moments have it.",
         noop=(None,)),
    Word("accumulator_dtype", "optax", "dtypes={'slots': accumulator_dtype}", noop=(None,)),
    Word("state_dtype", "", "dtypes={'slots': state_dtype}", noop=(None,)),
    Word("master_weights", "apex", "dtypes={'masters': 'float32'}", noop=(False,)),
    Word("mixed_precision", "", None,
         "Set it by the policy of Keras, keras.mixed_precision; dtypes={'masters': 'float32'} is "
         "for weights of half precision.", noop=(False, None)),
    Word("loss_scale='dynamic'", "apex, DeepSpeed", None,
         "Wrap the optimizer: keras.mixed_precision.LossScaleOptimizer(optimizer)."),
    Word("loss_scale", "apex, DeepSpeed", "loss_scale_factor=loss_scale", noop=(None,)),
    Word("multi_precision", "paddle, MXNet", "dtypes={'masters': 'float32'}", noop=(False,)),
    Word("optim_bits", "bitsandbytes", None,
         "The smallest slots are dtypes={'slots': 'bfloat16'}.", noop=(32,)),
    Word("rescale_grad", _MXNET, None, "The loss is a mean already: scale it, if need be.",
         noop=(1,)),
    Word("lazy_update", _MXNET, None, "The moments of rows without a gradient decay, too.",
         noop=(False,)),
    Word("ema_decay", "timm", "use_ema=True, ema_momentum=ema_decay", noop=(None,)),
    Word("average_decay", "TensorFlow Addons, Model Garden",
         "use_ema=True, ema_momentum=average_decay", noop=(None,)),
    *(
        Word(name, packages, f"gradient_accumulation_steps={name}", noop=(None, 1))
        for name, packages in {
            "accum_steps": "", "grad_accum_steps": "timm",
            "accumulate_grad_batches": "Lightning", "every_k_schedule": "optax",
        }.items()
    ),
    Word("jit", "", "jit_compile=jit"),
    *(
        Word(name, _ONE_BIT_LAMB, None, _NO_COMPRESSION)
        for name in ("freeze_step", "coeff_beta", "factor_max", "factor_min", "factor_threshold")
    ),
    *(
        Word(name, packages, "", _DISTRIBUTION)
        for name, packages in {
            "cuda_aware": _ONE_BIT_LAMB, "comm_backend_name": _ONE_BIT_LAMB,
            "deepspeed": _ONE_BIT_LAMB, "rank": _JORDAN, "world_size": _JORDAN,
        }.items()
    ),
    *(
        Word(name, _MXNET, "", f"It is for the kernels of MXNet. {_XLA}")
        for name in ("aggregate_num", "use_fused_step")
    ),
    *(Word(name, _MXNET, "", _PARAMETERS) for name in ("param_idx2name", "param_dict", "sym")),
    Word("begin_num_update", _MXNET, "", _COUNT_OF_STEPS, noop=(0,)),
    Word("step", "apex", "", _COUNT_OF_STEPS, noop=(0,)),
    Word("reduced_precision_dtype", "apex", "dtypes={'masters': 'float32'}", noop=(None,)),
    Word("use_locking", "TensorFlow 1", "", "A step takes no locks."),
    Word("lookahead", "", None,
         "Nothing here averages as Lookahead does; use_ema=True averages by another rule.",
         noop=(False, None)),
    Word("layer_decay", "timm, Model Garden", None,
         "Pass treatments=tf_lamb.layer_decay(...), which makes rates by depth.",
         noop=(None, 1)),
    Word("is_legacy_optimizer", "old Keras's configs", ""),
    # -- entries of dicts, passed by themselves
    *(
        Word(key, "", f"form={{'{key}': {key}}}", "", (name,))
        for name, rule in rules.OURS.items()
        if "form" in rule.hyper
        for key in _form_keys(rule)
    ),
    *(
        Word(key, "", f"bounds={{'{key}': {key}}}", "", _WITH_BOUNDS)
        for key in ("trust_ratio", "weight_norm")
    ),
    *(
        Word(f"{key}_bounds", "", f"bounds={{'{key}': {key}_bounds}}", "", _WITH_BOUNDS)
        for key in ("trust_ratio", "weight_norm")
    ),
)  # fmt: skip


# What marks a call as that of a Muon whose steps are scaled by the shape.
_SHAPED = (_JORDAN, _TORCH_MUON, _TORCH_AND_JORDAN, _TORCH_AND_OPTAX, "optax's Muon", "optax",
           _TORCH)  # fmt: skip
HABITS = (
    Habit(_SHAPED, ("Muon",), "form={'update_scale': 'shape'}", _SHAPE,
          ("adjust_lr_fn", "consistent_rms", "rms_rate"), (_KERAS_MUON, _TIMM_MUON)),
    Habit((_TIMM_MUON,), ("Muon",),
          "learning_rate=0.02, nesterov=False, beta_2=0.95, epsilon=1e-7, "
          "exclude_from_layer_adaptation=[], form={'coefficients': [(4.0848, -6.8946, 2.927), "
          "(3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046), "
          "(2.8366, -3.0525, 1.2012)]}",
          "timm's Muon has these defaults. Embeddings are matrices, too, but what has an axis "
          "under 4, or one over 128 times as long as the other, is left to AdamW, as treatments="
          "{'path': {'rows': None}} leaves it. With nesterov=True it is left to NAdamW, which is "
          "not here."),
    Habit(("apex", "timm", "timm, apex"), ("LAMB",), "global_clipnorm=1.0",
          "timm and apex clip the global norm to 1 unless max_grad_norm is passed.",
          ("max_grad_norm",)),
    Habit(("torch_optimizer",), ("LAMB",),
          "bias_correction=False, bounds={'weight_norm': (0, 10)}, "
          "exclude_from_layer_adaptation=[]",
          "torch_optimizer's Lamb corrects no bias without debias, takes 10 for a larger norm of a "
          "weight, and adapts what does not decay.", (), ("pytorch_optimizer",)),
    Habit((_ONE_BIT_LAMB,), ("LAMB",),
          "epsilon=1e-8, bias_correction=False, bounds={'trust_ratio': (0.01, 10)}, "
          "exclude_from_layer_adaptation=[]",
          "1-bit Lamb has this epsilon and these bounds by default, adapts what does not decay, "
          "and corrects no bias, whatever its bias_correction is."),
    Habit((_DEEPSPEED_LAMB,), ("LAMB",),
          "epsilon=1e-8, bias_correction=False, bounds={'trust_ratio': (0.01, 10)}, "
          "exclude_from_layer_adaptation=[]",
          "DeepSpeed's Lamb has this epsilon and these bounds by default, and adapts what does not "
          "decay. Its bias_correction=True, the default, corrects the rate, after the ratio: pass "
          "False here, and `Corrected` of docs/other_lambs.md as learning_rate.",
          (), (_ONE_BIT_LAMB,)),
    Habit((_MXNET,), ("LAMB", "LANS"), "exclude_from_layer_adaptation=[]",
          "MXNet adapts what does not decay, too, as this empty list does."),
    Habit((_MXNET,), ("LARS",), "exclude_from_weight_decay=['gamma', 'beta', 'bias']",
          _MXNET_LARS),
    Habit((_SGD_OF_TORCH, _MXNET), ("LARS", "SGDP"), "momentum=0.0",
          "There momentum is 0 unless it is passed, and here 0.9."),
    Habit(("optax",), ("LAMB", "LARS"), "exclude_from_layer_adaptation=[]",
          "optax adapts what does not decay, too, as this empty list does."),
    Habit(("optax",), ("LARS",), "form={'denominator': 'norm_of_sum'}",
          "The ratio of optax divides by the norm of the sum, as this form does."),
)  # fmt: skip

# Name of an optimizer of this package -> packages, as in `Word.packages` -> the weight decay of
# their optimizer if none is passed. Those with 0, as here, are left out, unless others with another
# decay share their arguments.
DEFAULT_DECAYS = {
    "LAMB": {
        "apex": 0.01, "timm": 0.01, "timm, apex": 0.01, "paddle": 0.01, _DEEPSPEED_LAMB: 0.0,
        _ONE_BIT_LAMB: 0.0,
    },
    "LARS": {"paddle": 0.0005, "MLPerf": 0.0001},
    "LANS": {"LANS of its authors": 0.01},
    "Muon": {_TORCH_MUON: 0.1, _KERAS_MUON: 0.004, _TIMM_MUON: 0.0},
    "SOAP": {"Vyas' SOAP": 0.01},
}  # fmt: skip


def is_known(name: str) -> bool:
    """Returns whether another package has an argument of this name."""
    return any(name in entry.conditions for entry in WORDS)
