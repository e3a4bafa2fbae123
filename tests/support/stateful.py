"""Trainings that hypothesis draws: any optimizer and options, any sequence of what users do.

`Promised` goes through the same, and after each action both must agree, or the package must have
refused in one sentence where a refusal is an answer. Weights are compared within a bound on the
float32 arithmetic of the action, and `Promised` then takes the package's, so that nothing adds up.
"""

import collections
import contextlib
import importlib
import pathlib
import re
import shutil
import tempfile
import traceback
import warnings

import keras
import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support import promised as promises
from support.frontends import BACKEND, FRONTENDS, apply, array, as_compiled
from support.promised import COLUMNS, LAYERS, ROWS, Promised

from tf_lamb.api.optimizers import named
from tf_lamb.api.variables import variables_of as variables_of_optimizer

COUNTS = collections.Counter()  # of runs, of actions, of refusals

# A weight may differ by this much of what it moved, and of itself; a sum of the largest gradient.
OF_MOVE, OF_SIZE, OF_SUM = 2e-3, 2e-6, 1e-5
OF_MOVE_BFLOAT16, OF_SLOT, OF_SLOT_BFLOAT16 = 0.1, 2e-4, 2.0**-7  # the last for an update
# Muon makes all directions of a matrix as long, those that are nothing but rounding, too.
OF_MOVE_BFLOAT16_MATRIX = 2.0


# -- what is drawn --------------------------------------------------------------------------------

KINDS = st.sampled_from(["usual"] * 4 + ["rare", "rare", "zeros", "nan", "spike", "overflow"])
SEEDS = st.integers(0, 999)
BATCHES = st.lists(st.builds(promises.batch_of, KINDS, SEEDS), min_size=1, max_size=4)
SEVERAL_BATCHES = st.lists(st.builds(promises.batch_of, KINDS, SEEDS), min_size=3, max_size=6)
TOWER = ("left/kernel", "left/bias")  # which a treatment may join
RATES = st.sampled_from([0.1, 0.01, 0.003])
# What runs eagerly is quicker; on JAX what is compiled gives its arrays away.
EAGER = [True, False] if BACKEND == "jax" else [True, True, False]
# On torch, Keras 3.15.1 zeroes the gradients of a model's torch parameters, which it keeps by path:
# of two variables of one path the first is not among them, and its gradients add up.
NAMING = st.sampled_from(
    ["given", "numbered", "numbered", *(["twins"] if BACKEND != "torch" else [])]
)
ACCUMULATION = st.sampled_from([None, 2, 3])
EXCLUSIONS = st.sampled_from([None, None, "norm_and_bias", ["bias"], ["norm"], ["dense"]])

# Without SOAP: what gradients do not span has no determined basis, and these span little.
OF_FAMILY = {
    "LAMB": {
        "bias_correction": st.booleans(),
        "weight_decay_mode": st.sampled_from(["update", "decoupled"]),
        "bounds": st.sampled_from([None, {"trust_ratio": (0.01, 10.0)}]),
    },
    "LANS": {},
    "LARS": {"nesterov": st.booleans(), "trust_coefficient": st.sampled_from([0.001, 0.1])},
    "AdamP": {"nesterov": st.booleans()},
    "SGDP": {"nesterov": st.booleans()},
    # Without a constant norm, which refuses decay and averages that overwrite: both are drawn.
    "Muon": {
        "nesterov": st.booleans(),
        "bounds": st.sampled_from([None, {"trust_ratio": (0.1, None)}]),
        "form": st.sampled_from([None, {"coefficients": [2.0, -1.5, 0.5]}]),
    },
}  # fmt: skip


@st.composite
def arguments(draw):
    """The name of an optimizer, and arguments of its constructor."""
    family = draw(st.sampled_from([*OF_FAMILY]))
    told = {
        "learning_rate": draw(
            RATES
            | RATES
            | st.fixed_dictionaries({
                "rate": RATES, "steps": st.just(3), "factor": st.just(0.5),
                "of": st.sampled_from(["host", "ours", "whole"]),
            })
        ),
        "weight_decay": draw(st.sampled_from([0.0, 0.1])),
        "exclude_from_weight_decay": draw(EXCLUSIONS),
        "exclude_from_layer_adaptation": draw(st.sampled_from([None, None, [], ["bias"]])),
        "use_ema": draw(st.booleans()),
        "ema_momentum": draw(st.sampled_from([0.5, 0.9])),
        "ema_overwrite_frequency": draw(st.sampled_from([None, None, 2])),
        "gradient_accumulation_steps": draw(ACCUMULATION),
        "dtypes": {"slots": draw(st.sampled_from(["float32", "float32", "bfloat16"]))},
        **draw(st.fixed_dictionaries(OF_FAMILY[family])),
    }  # fmt: skip
    if family != "LANS" and (clipping := draw(st.sampled_from(
        [None, None, "clipnorm", "clipvalue", "global_clipnorm"]
    ))):  # fmt: skip
        told[clipping] = draw(st.sampled_from([0.1, 1.0]))
    told["treatments"] = draw(st.sampled_from([None, {"embedding": {"rate": 0.5}}]))
    if family in ("LAMB", "LANS", "LARS") and draw(st.sampled_from([True, True, False])):
        told["treatments"] = {"dense": {"join": True}}
        if family == "LARS":  # whose oracle has one decay a layer
            told["exclude_from_weight_decay"] = None
    return family, told


UNDECAYED = st.sampled_from([(), (), ("left/kernel",), ("embedding", "right/bias")])
AVERAGES_AND_SUMS = st.fixed_dictionaries(
    {"use_ema": st.booleans(), "gradient_accumulation_steps": ACCUMULATION}
)
CHANGES = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"gradient_accumulation_steps": ACCUMULATION}),
    st.fixed_dictionaries({"use_ema": st.booleans()}),
    AVERAGES_AND_SUMS,
    AVERAGES_AND_SUMS.map(dict),
    AVERAGES_AND_SUMS.map(dict),
    st.sampled_from(["float32", "bfloat16"]).map(lambda dtype: {"dtypes": {"slots": dtype}}),
    st.fixed_dictionaries({"weight_decay": st.sampled_from([0.0, 0.1])}),
)

# What a training is saved in. HDF5 is not for twins: Keras's own optimizers have variables of one
# name there, too.
WITH_MODEL = ("model.keras", "model.h5")
WITHOUT_MODEL = ("model.weights.h5", "own variables", "set_weights")
if BACKEND == "tensorflow":
    WITHOUT_MODEL += ("checkpoint",)

# How the script that loads differs from the one that saved.
SCRIPTS = st.fixed_dictionaries({
    "order": st.sampled_from([("left", "right"), ("right", "left"), ("right", "left")]),
    "begins_anew": st.booleans(),
    "compiles_first": st.booleans(),
    "freezes": st.sampled_from([None, None, "embedding", "left"]),
})  # fmt: skip

# -- the network ----------------------------------------------------------------------------------


TOWERS = ("left", "right")


def _network(host, naming, order=TOWERS):
    """Two towers by one function, side by side with an embedding and a normalization.

    Args:
        host: The Keras.
        naming: Of the towers and their layers: "given" names, which Keras numbers as it makes them
            ("numbered"), or one name for the layers of both ("twins").
        order: In which the towers are made.
    """
    layers = host.layers

    def tower(name):
        inputs = host.Input((3,))
        of_layer = {"given": f"{name}_dense", "twins": "dense", "numbered": None}[naming]
        model_name = None if naming == "numbered" else name
        return host.Model(inputs, layers.Dense(2, name=of_layer)(inputs), name=model_name)

    towers = {name: tower(name) for name in order}
    tokens, x = host.Input((), dtype="int32", name="tokens"), host.Input((3,), name="x")
    outputs = [
        layers.Embedding(6, 2, name="embedding")(tokens), *(towers[name](x) for name in TOWERS),
        layers.LayerNormalization(name="norm")(x),
    ]  # fmt: skip
    return host.Model([tokens, x], layers.Concatenate(name="all")(outputs))


def layer_of(model, name):
    """A layer of the network by role; the towers stand in its layers as their outputs do."""
    if name not in TOWERS:
        return model.get_layer(name)
    towers = [layer for layer in model.layers if hasattr(layer, "layers")]
    return towers[TOWERS.index(name)]


def variables_of(model):
    """Its variables, by role."""
    left, right = (
        next(part for part in layer_of(model, tower).layers if "dense" in part.name)
        for tower in TOWERS
    )
    embedding, norm = layer_of(model, "embedding"), layer_of(model, "norm")
    return {
        "embedding": embedding.embeddings, "left/kernel": left.kernel,
        "left/bias": left.bias, "right/kernel": right.kernel, "right/bias": right.bias,
        "norm/gamma": norm.gamma, "norm/beta": norm.beta,
    }  # fmt: skip


def loss_of(host):
    if host.__name__ == "keras":
        total = host.ops.sum
    else:
        total = importlib.import_module("tensorflow").reduce_sum

    def tilted(y, outputs):
        """Linear in the outputs; the last number of y is added."""
        return total(y[:, :COLUMNS] * outputs, axis=-1) + y[:, COLUMNS]

    return tilted


class Disagreement(AssertionError):
    """What the package has, and what was promised."""


def is_refusal(error):
    """Whether it was raised by the package, in words for a user; Keras may quote them."""
    if re.match(r"A total of [12] objects could not be loaded\.", str(error)):
        return "cannot go on from this state" in str(error)
    if re.search(r"expected dtype \w+ does not equal original dtype", str(error)):
        return type(error).__name__ == "InvalidArgumentError"  # TensorFlow casts nothing
    if not isinstance(error, ValueError | TypeError | AttributeError):
        return False
    where = traceback.extract_tb(error.__traceback__)[-1].filename
    text = str(error)
    return "tf_lamb" in where and text.endswith(".") and "\n" not in text


def with_inner(optimizer):
    """The optimizer, and the one that it wraps: each saves what is its own."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [optimizer] if inner is None else [optimizer, inner]


def scale_of(optimizer):
    """What a loss is multiplied by, in either Keras; Keras 3 may not have built it yet."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return float(array(optimizer.scale_loss(np.float32(1.0))))
    return float(array(optimizer.loss_scale))


def take(optimizer, gradients, variables):
    """Applies gradients by hand: Keras 3's loss scale expects those of the scaled loss."""
    is_scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    scale = scale_of(optimizer) if is_scaled else 1.0
    scaled = [None if g is None else scale * np.asarray(g, "float32") for g in gradients]
    apply(optimizer, scaled, variables)


# -- the machine ----------------------------------------------------------------------------------


class Training(RuleBasedStateMachine):
    """One training; a subclass names the Keras of it."""

    frontend = "keras"

    def __init__(self):
        super().__init__()
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.saved, self.trace = [], []
        self.promised = None
        COUNTS["runs"] += 1

    def teardown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def host(self):
        return FRONTENDS[self.frontend][0]

    @property
    def ours(self):
        return FRONTENDS[self.frontend][1]

    @property
    def inner(self):
        return getattr(self.optimizer, "inner_optimizer", self.optimizer)

    def act(self, name, *details):
        COUNTS[name] += 1
        self.trace.append(f"{name}({', '.join(map(str, details))})")

    # Making.

    def make_optimizer(self, family, told, model, wrapper=None, undecayed=()):
        told = dict(told)
        if isinstance(given := told["learning_rate"], dict):
            of_host = self.host.optimizers.schedules
            schedule = of_host.ExponentialDecay(given["rate"], given["steps"], given["factor"])
            if given["of"] == "whole":  # numbers
                schedule = of_host.PiecewiseConstantDecay([given["steps"]], [1, 2])
            elif given["of"] == "ours":
                schedule = self.ours.schedules.Stages((1,), (schedule,))
            told["learning_rate"] = schedule
        optimizer = getattr(self.ours, family)(jit_compile=False, **told)
        if undecayed:
            variables = variables_of(model)
            optimizer.exclude_from_weight_decay([variables[role] for role in undecayed])
        if wrapper == "LossScale":
            wrap = self.host.mixed_precision.LossScaleOptimizer
            return wrap(optimizer, initial_scale=promises.SCALE)
        return self.ours.MeasureNoise(optimizer) if wrapper == "MeasureNoise" else optimizer

    def apply(self, gradients, missing=()):
        """One micro-step by hand; the gradients of some roles are None."""
        variables, trained = variables_of(self.model), self.promised.trained
        given = [None if r in missing else gradients[r] for r in trained]
        take(self.optimizer, given, [variables[r] for r in trained])

    def compile(self, model, optimizer):
        eager = {"run_eagerly": True} if self.eager else {}
        model.compile(optimizer, loss_of(self.host), **eager)
        self.model, self.optimizer = model, model.optimizer

    def new_model(self, told, promised, order=TOWERS):
        """A network that never trained, with an optimizer of these arguments."""
        model = _network(self.host, self.naming, order)
        optimizer = self.make_optimizer(
            promised.family, told, model, self.wrapper, promised.undecayed_as_variables
        )
        return model, optimizer

    @initialize(
        drawn=arguments(), seed=SEEDS, naming=NAMING, undecayed=UNDECAYED,
        eager=st.sampled_from(EAGER),
        wrapper=st.sampled_from([None, None, None, "MeasureNoise"]),
    )  # fmt: skip
    def begin(self, drawn, seed, naming, undecayed, eager, wrapper):
        family, told = drawn
        if not told["gradient_accumulation_steps"]:
            wrapper = None  # there is nothing to measure
        if wrapper is None and seed % 4 == 3:
            wrapper = "LossScale"
        if family == "LARS" and told["treatments"]:
            undecayed = ()  # its oracle has one decay a layer
        if naming == "numbered":
            undecayed = ()  # a config knows them by path
        self.act("begin", family, told, naming, f"{undecayed=}", f"{eager=}", wrapper)
        self.naming, self.eager, self.wrapper, self.is_built = naming, eager, wrapper, False
        self.promised = Promised(family, told, promises.weights_of(seed), undecayed)
        self.compile(*self.new_model(told, self.promised))
        self.put(self.promised.weights)
        self.agree()

    def put(self, weights):
        for role, variable in variables_of(self.model).items():
            variable.assign(weights[role].astype("float32"))

    @contextlib.contextmanager
    def quiet(self):
        """Warnings are kept for the story; nothing is compiled where the model runs eagerly."""
        with warnings.catch_warnings(record=True) as seen, as_compiled(self.model):
            warnings.simplefilter("always")
            yield
        told = [str(w.message) for w in seen if w.category is UserWarning]
        self.told = [text for text in told if "functions_eagerly" not in text]
        self.trace += [f"warned: {text}" for text in self.told]

    # Agreeing.

    def agree(self):
        """The package has what was promised; what was promised is then what the package has."""
        promised, inner = self.promised, self.inner
        self.same("iterations", int(np.asarray(array(self.optimizer.iterations))), promised.step)
        self.near("learning rate", array(self.optimizer.learning_rate), promised.rate, 0, 1e-5)
        bfloat16 = promised.told["dtypes"]["slots"] == "bfloat16"
        for role, variable in variables_of(self.model).items():
            actual, size = array(variable).astype(float), np.abs(promised.weights[role]).max()
            slack = self.of_move(role) * promised.moved[role] + OF_SIZE * size
            self.near(f"weights of {role}", actual, promised.weights[role], slack)
            promised.weights[role] = actual
        if not self.is_built:
            return
        self.same("skipped_steps", inner.skipped_steps, promised.skipped)
        self.agree_on_plan()
        self.agree_on_what_waits()
        for index, role in enumerate(self.order):
            own = {name: array(v).astype(float) for name, v in inner.state_of(index).items()}
            for name, expected in promised.slots[role].items():
                share = OF_SLOT_BFLOAT16 * (1 + promised.updates) if bfloat16 else OF_SLOT
                slack = share * promised.largest[role][name]
                self.near(f"slot {name} of {role}", own[name], expected, slack)
                promised.slots[role][name] = own[name]
            if promised.told["use_ema"] and role in promised.averages:
                slack = self.of_move(role) * promised.moved[role]
                slack += 1e-5 * np.abs(own["average"]).max()
                expected = promised.averages[role]
                self.near(f"average of {role}", own["average"], expected, slack)
                promised.averages[role] = own["average"]
        promised.forget_sizes()

    def of_move(self, role):
        """The share of what a weight moved by which it may differ."""
        if self.promised.told["dtypes"]["slots"] != "bfloat16":
            return OF_MOVE
        is_matrix = self.promised.family == "Muon" and self.promised.is_adapted(role)
        return OF_MOVE_BFLOAT16_MATRIX if is_matrix else OF_MOVE_BFLOAT16

    def agree_on_plan(self):
        """What `describe` prints: who is decayed, and who is adapted."""
        lines = []
        self.inner.describe(lines.append)
        rows = "\n".join(lines).splitlines()[1 : 1 + len(self.order)]
        for role, row in zip(self.order, rows, strict=True):
            _, _, decay, adapted, *_ = row.split()
            self.same(f"decay of {role}", decay != "-", self.promised.is_decayed(role))
            self.same(f"adaptation of {role}", adapted == "yes", self.promised.is_adapted(role))

    def agree_on_what_waits(self):
        """The micro-batches of the next update, and the loss scale that it meets."""
        promised, steps = self.promised, self.promised.told["gradient_accumulation_steps"]
        if self.wrapper == "LossScale":
            smallest = 0.0 if self.frontend == "keras" else 1.0
            self.same("loss scale", scale_of(self.optimizer), max(promised.scale, smallest))
        if not steps:
            return
        state, each = named.named_state(self.inner), f"accumulator_of_{steps}"
        waiting = int(np.asarray(array(state.scalars[f"micro_step_of_{steps}"])))
        self.same("micro-batches that wait", waiting, promised.micro_step)
        for role, part in zip(self.order, state.parts, strict=True):
            if role in promised.trained:
                actual = array(part.arrays[each]).astype(float)
                slack = OF_SUM * promised.largest_gradient
                self.near(f"sum of {role}", actual, promised.sums[role], slack)
                promised.sums[role] = actual

    def same(self, what, actual, expected):
        if actual != expected:
            raise Disagreement(f"{what}: {actual}, promised {expected}; {self.story()}")

    def near(self, what, actual, expected, slack, relative=0.0):
        if not np.allclose(actual, expected, rtol=relative, atol=slack, equal_nan=True):
            raise Disagreement(
                f"{what}: {actual}, promised {expected}, within {slack:.3g}; {self.story()}"
            )

    def story(self):
        return "after\n  " + "\n  ".join(self.trace)

    # Training.

    def learn_order(self):
        """An optimizer is built at its first step."""
        if not self.is_built:
            by_key = {id(v): role for role, v in variables_of(self.model).items()}
            self.order = [by_key[id(v)] for v in self.model.trainable_variables]
            self.is_built = True

    @rule(batches=BATCHES)
    def micro_steps(self, batches):
        self.act("micro_steps", len(batches))
        self.learn_order()
        with self.quiet():
            for batch in batches:
                gradients = promises.gradients_of(batch)
                self.apply(gradients)
                self.promised.take(gradients)
        self.agree()

    # An average of what rests is moved by one Keras and not by the other.
    @precondition(lambda self: self.wrapper is None and not self.promised.told["use_ema"])
    @rule(batches=SEVERAL_BATCHES, missing=st.sampled_from([*sorted(promises.SHAPES), *TOWER]))
    def micro_steps_without(self, batches, missing):
        """What has no gradient in any micro-batch of an update rests."""
        if self.promised.trained == [missing]:
            return
        self.act("micro_steps_without", len(batches), missing)
        self.learn_order()
        with self.quiet():
            for batch in batches:
                gradients = promises.gradients_of(batch)
                self.apply(gradients, {missing})
                self.promised.take(gradients, {missing})
        self.told = []
        self.agree()

    @rule(batch=st.builds(promises.batch_of, KINDS, SEEDS))
    def train_on_batch(self, batch):
        self.act("train_on_batch")
        self.learn_order()
        with self.quiet():
            tokens, x, y = batch
            self.model.train_on_batch([tokens, x], y)
        self.promised.take(promises.gradients_of(batch))
        self.agree()

    @rule(batches=BATCHES, calls=st.sampled_from([1, 2, 2]))
    def fit(self, batches, calls):
        self.act("fit", len(batches), calls)
        self.learn_order()
        tokens, x, y = map(np.concatenate, zip(*batches, strict=True))
        for call in range(calls):
            before = self.promised.tried
            with self.quiet():
                self.model.fit([tokens, x], y, batch_size=ROWS, shuffle=False, verbose=0)
            for batch in batches:
                self.promised.take(promises.gradients_of(batch))
            self.promised.end_fit()
            if call:  # the first cannot tell an update that was made before it
                has_told = any("fit has changed no weight" in text for text in self.told)
                has_none = self.promised.tried == before and self.promised.micro_step > 0
                self.same("whether fit tells of no update", has_told, has_none)
            self.agree()

    @precondition(lambda self: BACKEND == "jax")
    @rule(batches=BATCHES)
    def fit_compiled(self, batches):
        """Twice: what is compiled gives its arrays away, and the next `fit` needs them."""
        if self.eager:
            self.eager = False
            self.compile(self.model, self.optimizer)
        self.fit(batches, 2)

    def evaluate(self, seed):
        self.act("evaluate")
        batch = promises.batch_of("usual", seed)
        tokens, x, y = batch
        with self.quiet():
            loss = self.model.evaluate([tokens, x], y, batch_size=ROWS, verbose=0)
        expected, size = promises.loss_of(self.promised.weights, batch)
        self.near("loss", loss, expected, 1e-5 * size)
        self.agree()

    # Changing.

    @rule(
        what=st.sampled_from(["evaluate", "set_weights", "set_rate", "compile_again", "clone"]),
        seed=SEEDS,
    )
    def change(self, what, seed):
        getattr(self, what)(seed)

    def set_weights(self, seed):
        self.act("set_weights", seed)
        self.promised.weights = promises.weights_of(seed)
        names = {id(v): role for role, v in variables_of(self.model).items()}
        self.model.set_weights(
            [self.promised.weights[names[id(v)]].astype("float32") for v in self.model.weights]
        )
        self.agree()

    def set_rate(self, seed):
        if isinstance(self.promised.told["learning_rate"], dict):
            return
        rate = (0.1, 0.01, 0.003)[seed % 3]
        self.act("set_rate", rate)
        self.optimizer.learning_rate = rate
        self.promised.told["learning_rate"] = rate
        self.agree()

    def compile_again(self, seed):
        self.eager = EAGER[seed % len(EAGER)]
        self.act("compile_again", f"eager={self.eager}")
        self.compile(self.model, self.optimizer)
        self.agree()

    @precondition(lambda self: self.is_built)
    @rule(layer=st.sampled_from(LAYERS))
    def freeze_or_unfreeze(self, layer):
        """And compile, as Keras asks for; between updates."""
        frozen = self.promised.frozen
        layers = {role.partition("/")[0] for role in self.promised.trained}
        if layer not in frozen and (self.promised.micro_step or layers == {layer}):
            return
        if (
            self.naming == "twins"
            and self.promised.undecayed_as_variables
            and layer in ("left", "right")
        ):
            return  # whom a config means by the second of two is refused where there is one
        self.act("freeze_or_unfreeze", layer)
        frozen ^= {layer}
        layer_of(self.model, layer).trainable = layer not in frozen
        # On JAX, Keras's step wants all the variables of the build; elsewhere, no others.
        if BACKEND == "jax" or not set(self.promised.trained) <= set(self.order):
            self.compile_anew()
        else:
            self.compile(self.model, self.optimizer)
        self.agree()

    def clone(self, seed):
        """Begins anew with an optimizer of the same config."""
        self.act("clone")
        self.compile_anew()
        self.agree()

    @precondition(lambda self: self.is_built and not self.promised.frozen)
    @rule(batches=BATCHES)
    def migrate(self, batches):
        """Goes on in another optimizer of these arguments, in the midst of an update, too."""
        promised = self.promised
        self.act("migrate")
        optimizer = self.make_optimizer(
            promised.family, promised.told, self.model, self.wrapper,
            promised.undecayed_as_variables,
        )  # fmt: skip
        with self.quiet():
            report = self.ours.migrate(self.optimizer, optimizer, self.model)
        promised.scale = promises.SCALE  # a loss scale is the host's, and begins anew
        self.same("left behind", report.left_behind, ())
        self.compile(self.model, optimizer)
        self.order = [role for role in self.order if role in promised.trained]
        self.agree()
        self.micro_steps(batches)

    def compile_anew(self):
        """By a config; one that is asked for before the build may not know whom it means."""
        if not self.is_built and self.naming == "twins" and self.promised.undecayed_as_variables:
            self.optimizer.build(self.model.trainable_variables)
        optimizer = type(self.optimizer).from_config(self.optimizer.get_config())
        self.compile(self.model, optimizer)
        self.promised.begin()
        self.is_built = False

    def refused(self, error):
        if not is_refusal(error):
            raise error
        COUNTS["refused"] += 1
        self.trace.append(f"refused: {error}")

    # Saving.

    def forms(self):
        """Of files that hold a model and its optimizer."""
        # On JAX, Keras builds a loss scale of HDF5 on nothing. tf_keras builds an optimizer of HDF5
        # on what is trained, and begins anew, which it says, where the one that was saved had more.
        by_position = self.frontend == "tf_keras" and not {*self.promised.trained} >= {*self.order}
        built_on_nothing = self.wrapper == "LossScale" and BACKEND == "jax"
        only = self.naming == "twins" or built_on_nothing or by_position
        return ["model.keras"] if only else [*WITH_MODEL]

    def forms_without_model(self):
        """Of what is loaded into a new model; lists of weights are not for wrappers."""
        return [form for form in WITHOUT_MODEL if form != "set_weights" or self.wrapper is None]

    @precondition(lambda self: self.is_built)
    @rule(data=st.data())
    def save(self, data):
        self.save_as(data.draw(st.sampled_from([*self.forms(), *self.forms_without_model()])))

    def save_as(self, form):
        """Returns whether it was not refused."""
        self.act("save", form)
        path = self.folder / f"{len(self.saved)} {form}"
        with self.quiet():
            try:
                if form == "own variables":
                    path = [self.own_variables(each) for each in with_inner(self.optimizer)]
                elif form == "set_weights":
                    path = [array(v) for v in variables_of_optimizer(self.optimizer)]
                elif form == "checkpoint":
                    path = self.checkpoint(self.model, self.optimizer).save(path)
                elif form == "model.weights.h5":
                    self.model.save_weights(path)
                else:
                    self.model.save(path)
            except ValueError as error:
                self.refused(error)
                return False
        self.saved.append((form, path, self.promised.copy(), self.order))
        if form == "model.h5":  # Keras 3 takes the optimizer out of what the next `.keras` says
            self.compile(self.model, self.optimizer)
        self.agree()
        return True

    @staticmethod
    def own_variables(optimizer):
        store = {}
        optimizer.save_own_variables(store)
        return {name: np.array(array(value)) for name, value in store.items()}

    @staticmethod
    def checkpoint(model, optimizer):
        import tensorflow as tf

        return tf.train.Checkpoint(model=model, optimizer=optimizer)

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), changes=CHANGES, script=SCRIPTS)
    def load(self, data, changes, script):
        self.load_again(data.draw(st.integers(0, len(self.saved) - 1)), changes, script)

    @precondition(lambda self: self.is_built)
    @rule(data=st.data(), changes=CHANGES, script=SCRIPTS, batches=BATCHES)
    def go_on_otherwise(self, data, changes, script, batches):
        """At once, with other options: the state crosses, and steps follow."""
        if self.save_as(data.draw(st.sampled_from(self.forms_without_model()))):
            self.load_again(len(self.saved) - 1, changes, script)
            self.micro_steps(batches)

    @precondition(lambda self: self.is_built and self.wrapper is None)
    @precondition(lambda self: self.promised.told["gradient_accumulation_steps"] == 3)
    @rule(batches=SEVERAL_BATCHES, script=SCRIPTS)
    def go_on_with_fewer_micro_batches(self, batches, script):
        """By a list of weights, of which more wait than an update takes then."""
        while self.promised.micro_step != 2:
            self.micro_steps([promises.batch_of("usual", self.promised.micro_step)])
        if self.save_as("set_weights"):
            self.load_again(len(self.saved) - 1, {"gradient_accumulation_steps": 2}, script)
            self.micro_steps(batches)

    def load_again(self, at, changes, script):
        form, path, promised, order = self.saved[at]
        promised = promised.copy()
        if form in WITH_MODEL:
            changes = {}
        elif form == "set_weights":  # a list, which only an optimizer with as many sums reads right
            steps = changes.get("gradient_accumulation_steps", 2)
            same = promised.told["gradient_accumulation_steps"] and steps
            changes = {"gradient_accumulation_steps": steps} if same else {}
        elif not promised.micro_step and not self.restores_by_position(form):
            layers = {role.partition("/")[0] for role in promised.trained}
            promised.frozen |= {script["freezes"]} & layers if len(layers) > 1 else set()
            order = [role for role in order if role in promised.trained]
        before, told = dict(promised.told), {**promised.told, **changes}
        self.act("load", at, form, {k: v for k, v in changes.items() if v != before.get(k)})
        try:
            with self.quiet():
                self.load_into(form, path, told, promised, order, script)
        except Exception as error:
            self.refused(error)
            return
        if form in WITH_MODEL:  # built of what is trained
            order = [role for role in order if role in promised.trained]
        self.promised, self.order, self.is_built = promised, order, True
        promised.told = told
        if self.frontend == "tf_keras" and form != "checkpoint":  # which alone has a scale there
            promised.scale = promises.SCALE
        # A list of weights has no names: what waits goes on, whatever it waits for.
        other = told["gradient_accumulation_steps"] != before["gradient_accumulation_steps"]
        if other and form != "set_weights":
            promised.empty()
        fresh = told["use_ema"] and not before["use_ema"]
        if fresh or not told["use_ema"]:
            promised.averages = {}
        if form in ("own variables", "set_weights"):
            self.put(promised.weights)
        if fresh:
            self.first_average(promised)
        self.agree()

    def restores_by_position(self, form):
        """A loss scale of Keras 3 counts in a checkpoint which of the weights are trained."""
        return (form, self.wrapper, self.frontend) == ("checkpoint", "LossScale", "keras")

    def load_into(self, form, path, told, promised, order, script):
        if form in WITH_MODEL:
            loss = loss_of(self.host)
            model = self.host.models.load_model(path, custom_objects={"tilted": loss})
            if form == "model.h5":
                # Keras 3 hands the state over when the optimizer is built. Its loss scale is built
                # by then, of nothing, and would begin anew if it was built again.
                optimizer = model.optimizer
                is_begun = getattr(optimizer, "built", False) and self.wrapper == "LossScale"
                optimizer = optimizer.inner_optimizer if is_begun else optimizer
                optimizer.build(model.trainable_variables)
            self.compile(model, model.optimizer)
            return
        if script["begins_anew"]:  # as another process has it: names are numbered from the first
            self.host.backend.clear_session()
        model, optimizer = self.new_model(told, promised, script["order"])
        for layer in promised.frozen:
            layer_of(model, layer).trainable = False
        if script["compiles_first"]:
            model.compile(optimizer, loss_of(self.host))
            optimizer = model.optimizer
        optimizer.build([variables_of(model)[role] for role in order])
        if form == "set_weights":
            optimizer.set_weights(path)
        elif form == "own variables":
            for each, store in zip(with_inner(optimizer), path, strict=True):
                each.load_own_variables(store)
        elif form == "checkpoint":
            self.checkpoint(model, optimizer).restore(path)
        model.compile(optimizer, loss_of(self.host))
        if form == "model.weights.h5":
            model.load_weights(path)
        self.compile(model, optimizer)

    def first_average(self, promised):
        """Averages that a file had none of: they are made of weights since the load."""
        batch = promises.batch_of("usual", 1)
        before = dict(promised.weights)
        gradients, is_update = promises.gradients_of(batch), False
        with self.quiet():
            while not is_update:  # the first may be skipped, for the micro-batches of the file
                self.apply(gradients)
                is_update = promised.take(gradients)
        for index, role in enumerate(self.order):
            average = array(self.inner.state_of(index)["average"]).astype(float)
            between = [before[role], promised.weights[role]]
            size = 1e-2 * (promised.moved[role] + OF_SIZE * np.abs(between).max())
            low, high = np.min(between, axis=0) - size, np.max(between, axis=0) + size
            if not np.all((low <= average) & (average <= high)):
                raise Disagreement(f"average of {role}: {average}, of {between}; {self.story()}")
            promised.averages[role] = average


def of(frontend):
    """The machine of one Keras."""
    return type(f"{frontend.title()}Training", (Training,), {"frontend": frontend})


MACHINES = {frontend: of(frontend) for frontend in FRONTENDS}
