"""Declares what `tf_lamb.keras` and `tf_lamb.tf_keras` define for the optimizers, for mypy.

Each of the two is called a frontend. Its Keras is Keras 3 or tf_keras; its framework is TensorFlow,
or with Keras 3 also JAX or torch.
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

    Arrays are those of the framework, unless a docstring says otherwise.
    """

    Layer: Any  # the class of layers of its Keras

    def key_of(self, variable: Variable) -> int:
        """Returns a key of a variable, the same with and without the wrapper of mixed precision."""

    def is_variable(self, item: Any) -> bool:
        """Returns whether an attribute of a layer is a variable."""

    def has_listed_layers(self, layer: Any) -> bool:
        """Returns whether a layer is a Sequential or functional model, with layers in an order."""

    def native(self, variable: Variable | None) -> Any:
        """Returns the variable that updates work on: TensorFlow's own if there is one."""

    def put(self, variable: Variable, value: Any) -> None:
        """Assigns a value to a variable, in the dtype of the variable."""

    def array_of(self, variable: Variable) -> Any:
        """Returns the value of a variable as a NumPy array; None if it has none yet."""

    def fetch(self, vectors: Sequence[Variable]) -> Any:
        """Returns the values of vectors of one length as lists, read in one wait for the device."""

    def initial_value(self, variable: Variable, initializer: str) -> Any:
        """Returns the initial value of a variable, by the name of an initializer."""

    def fit_to_shape(self, variable: Variable, part: Any, value: Any) -> Any:
        """Converts a saved array of another shape to that of a variable.

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

        It is called once, in the build. Keras 3 has made these variables by then; for tf_keras this
        function makes them.
        """

    def observation_vector(self, optimizer: Any, variable: Variable, name: str) -> Variable:
        """Returns a new variable of four numbers, `observation.UNSEEN`, beside another variable.

        Args:
            optimizer: The optimizer, whose distribution strategy places the variable on TensorFlow.
            variable: The other variable, whose devices hold the new one, too.
            name: The name of the new variable.
        """

    def has_accelerator(self) -> bool:
        """Returns whether steps run on an accelerator, and not on a CPU."""


class FrontendMembers(Protocol):
    """Describes what `Layerwise` uses and the `LayerwiseOptimizer` of each frontend defines."""

    _xp: Any  # the array namespace of the framework
    _host: Host
    _schedules: Any  # the frontend's module of schedules
    _counter_dtype: Any  # the dtype of its counters
    _average_dtype: Any  # a dtype as wide as that of any moving average of weights, after the build
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
        """Clips gradients, which are summed over replicas already, as Keras would."""

    def _rate_in_config(self) -> Any:
        """Returns the learning rate as Keras's `get_config` has it: a number or a config."""


class KerasOptimizer:
    """Declares, for type checkers alone, what the `Optimizer`s of Keras 3 and tf_keras have."""

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
    """Describes an optimizer with a function that returns the key of a variable."""

    name: str
    _var_key: Callable[[Any], Any]

    def get_config(self) -> Any:
        """Returns the arguments that make such an optimizer again."""


class SavedOptimizer(Protocol):
    """Describes what `named.load` loads into: an optimizer, `MeasureNoise` or `AdaScale`."""

    name: str
    _host: Host

    def _named_state(self) -> Any:
        """Returns the `named.NamedState`."""


class MeasuringMembers(Protocol):
    """Describes what `named.of_measured` reads from `MeasureNoise` and `AdaScale`."""

    saved_kind: str
    micro_batches: int
    _measured_names: Sequence[str]

    @property
    def _meter(self) -> Any:
        """The `NoiseMeter`."""


class LayerwiseMembers(FrontendMembers, Protocol):
    """Describes a `Layerwise` of either frontend, for functions that take such an optimizer."""

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
        """The micro-batches of an update by optimizer step; None if their number is fixed."""

    def declare_slots(self, plan: Plan) -> list[list[Slot]]:
        """Returns the slots of each variable of a plan."""
