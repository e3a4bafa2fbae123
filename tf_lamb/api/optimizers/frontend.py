"""Declares, for mypy, the members that each frontend has to define for the optimizers.

A frontend adapts this package to one Keras: `tf_lamb.keras` to Keras 3 on TensorFlow, JAX or torch,
and `tf_lamb.tf_keras` to tf_keras on TensorFlow.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tf_lamb.api.optimizers.guard import Guard
from tf_lamb.api.optimizers.settings import Settings
from tf_lamb.core.accumulation import Stages
from tf_lamb.core.plan import Plan
from tf_lamb.core.rules import Rule
from tf_lamb.core.stored import Slot


class Variable(Protocol):
    """Describes a variable of Keras 3, tf_keras or TensorFlow."""

    @property
    def shape(self) -> Any:
        """The shape of the variable."""

    @property
    def dtype(self) -> Any:
        """The dtype of the variable."""

    def assign(self, value: Any) -> Any:
        """Gives the variable a value."""


class Host(Protocol):
    """Describes the module `host` of a frontend, which has functions on variables.

    Arrays are tensors of TensorFlow, JAX or torch, unless a docstring says otherwise.
    """

    Layer: Any  # the class `keras.layers.Layer` or `tf_keras.layers.Layer`

    def key_of(self, variable: Variable) -> int:
        """Returns an integer that identifies a variable.

        It is the same for a variable and for tf_keras's mixed-precision wrapper around it.
        """

    def is_variable(self, item: Any) -> bool:
        """Returns whether an attribute of a layer is a variable."""

    def has_listed_layers(self, layer: Any) -> bool:
        """Returns whether a layer is a Sequential or Functional model, with layers in an order."""

    def native(self, variable: Variable | None) -> Any:
        """Returns the variable that an update reads and assigns.

        On TensorFlow it is the `tf.Variable` inside a variable of Keras, otherwise the argument.
        """

    def put(self, variable: Variable, value: Any) -> None:
        """Assigns a value to a variable, in the dtype of the variable."""

    def array_of(self, variable: Variable) -> Any:
        """Returns the value of a variable as a NumPy array; None if it has no value yet."""

    def fetch(self, vectors: Sequence[Variable]) -> Any:
        """Returns the values of vectors of equal length as lists, with one transfer for all."""

    def initial_value(self, variable: Variable, initializer: str) -> Any:
        """Returns the initial value of a variable, given the name of a Keras initializer."""

    def fit_to_shape(self, variable: Variable, part: Any, value: Any) -> Any:
        """Converts a saved array to the shape of a variable, if it has another shape.

        Keras 3 can do so on JAX for sums of gradients that each replica accumulated by itself.

        Args:
            variable: The optimizer's variable.
            part: The `named.Part` of the model's variable to which `variable` belongs.
            value: The saved array.

        Returns:
            The array in the shape of `variable`; None if that is not possible.
        """

    def which_are_finite(self, variables: Sequence[Variable]) -> Iterable[bool]:
        """Returns for each variable whether all of its values are finite."""

    def accumulators(self, optimizer: Any, variables: Sequence[Variable]) -> Sequence[Variable]:
        """Returns the variables that add up the gradients of micro-batches.

        It is called once, in the build of the optimizer. Keras 3 has made the variables by then;
        with tf_keras this function makes them.
        """

    def observation_vector(self, optimizer: Any, variable: Variable, name: str) -> Variable:
        """Makes the variable in which steps record the trust ratio of another variable.

        It has four numbers, at first `observation.UNSEEN`.

        Args:
            optimizer: The optimizer. On TensorFlow its distribution strategy places the variable.
            variable: The other variable. The new one is on the same devices.
            name: The name of the new variable.
        """

    def has_accelerator(self) -> bool:
        """Returns whether steps run on an accelerator, and not on a CPU."""


class FrontendMembers(Protocol):
    """Describes the members that `Layerwise` uses but does not define.

    The class `LayerwiseOptimizer` of each frontend defines them.
    """

    _xp: Any  # the array namespace of the framework
    _host: Host
    _schedules: Any  # the frontend's module of schedules
    _counter_dtype: Any  # the dtype of counters, such as that of skipped steps
    _average_dtype: Any  # the widest dtype of a moving average of weights; the build sets it
    _update: Any  # the framework's subclass of `core.step.Update`, made by the build

    def _index_of(self, variable: Variable) -> int:
        """Returns the position of a variable in the list that the optimizer was built for."""

    def _averaged_positions(self, variables: Sequence) -> set[int]:
        """Returns the positions of the variables whose moving averages a step updates.

        Args:
            variables: The variables that the step updates.
        """

    def _add_iterations(self, is_step_taken: Any) -> Any:
        """Counts an optimizer step if `is_step_taken`, a boolean scalar, is true."""

    def add_variable_like(
        self, variable: Variable, name: str, dtype: Any, shape: Any = None, initial: str = "zeros"
    ) -> Variable:
        """Adds a variable to the optimizer, on the devices of another variable.

        Args:
            variable: The other variable.
            name: The name of the new variable.
            dtype: The dtype.
            shape: The shape. Defaults to None: that of `variable`.
            initial: The name of an initializer. Defaults to "zeros".
        """

    def clip_aggregated(self, gradients: list) -> list:
        """Returns gradients, which are already summed over replicas, clipped as Keras does it."""

    def _rate_in_config(self) -> Any:
        """Returns the learning rate as Keras's `get_config` has it: a number or a config."""


class KerasOptimizer:
    """Declares, for type checkers only, members of `Optimizer` in Keras 3 and in tf_keras."""

    name: str
    iterations: Any
    learning_rate: Any
    gradient_accumulation_steps: int | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    _learning_rate: Any
    _var_key: Callable[[Any], Any]
    add_variable: Callable[..., Any]
    build: Callable[..., Any]


class KeyedOptimizer(Protocol):
    """Describes an optimizer with `_var_key`, which returns a key that identifies a variable."""

    name: str
    _var_key: Callable[[Any], Any]

    def get_config(self) -> Any:
        """Returns the constructor's arguments by name, from which a copy can be made."""


class SavedOptimizer(Protocol):
    """Describes the argument of `named.load`: an optimizer, a `MeasureNoise` or an `AdaScale`."""

    name: str
    _host: Host

    def _named_state(self) -> Any:
        """Returns the variables that are saved and loaded, by name, as a `named.NamedState`."""


class MeasuringMembers(Protocol):
    """Describes what `named.measured_state` reads from `MeasureNoise` and `AdaScale`."""

    saved_kind: str
    micro_batches: int
    _measured_names: Sequence[str]

    @property
    def _meter(self) -> Any:
        """The `NoiseMeter` that measures the noise of the gradients."""


class LayerwiseMembers(FrontendMembers, Protocol):
    """Describes an optimizer such as LAMB in either frontend, for the annotations of functions.

    Such an optimizer inherits from `Layerwise` and from the optimizer base class of Keras 3 or of
    tf_keras.
    """

    rule: Rule
    iterations: Any
    gradient_accumulation_steps: int | None
    use_ema: bool
    add_variable: Callable[..., Any]
    build: Callable[..., Any]
    _learning_rate: Any
    _settings: Settings
    _guard: Guard
    _storage: Any  # the `Storage`; None until the build

    @property
    def _accumulation_stages(self) -> Stages | None:
        """Dict from an optimizer step to the micro-batches per update from there on.

        It is None if their number does not change during training.
        """

    def declare_slots(self, plan: Plan) -> list[list[Slot]]:
        """Returns the slots of each variable of a plan, in the order of the plan."""
