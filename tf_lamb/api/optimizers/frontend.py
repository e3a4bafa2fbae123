"""Declares what a frontend, Keras 3 or tf_keras, supplies to the optimizers, for mypy to check."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tf_lamb.api.optimizers.guard import Guard
from tf_lamb.api.optimizers.settings import Settings
from tf_lamb.core.accumulation import Stages
from tf_lamb.core.plan import Plan
from tf_lamb.core.rules import Rule
from tf_lamb.core.stored import Slot


class Variable(Protocol):
    """A variable of either Keras, or one of its framework."""

    @property
    def shape(self) -> Any:
        """The shape of the variable."""

    @property
    def dtype(self) -> Any:
        """The dtype of the variable."""

    def assign(self, value: Any) -> Any:
        """Gives the variable a value."""


class Host(Protocol):
    """The module of a frontend with its functions on variables.

    An array is the framework's.
    """

    Layer: Any  # the class of layers of its Keras

    def key_of(self, variable: Variable) -> int:
        """Returns a key of a variable, the same with and without the wrapper of mixed precision."""

    def is_variable(self, item: Any) -> bool:
        """Returns whether an attribute of a layer is a variable."""

    def has_listed_layers(self, layer: Any) -> bool:
        """Returns whether the layers inside one have an order: Sequential and functional models."""

    def native(self, variable: Variable | None) -> Any:
        """Returns the framework's variable of a variable of Keras; None for None."""

    def put(self, variable: Variable, value: Any) -> None:
        """Assigns a value to a variable, in the dtype of the variable."""

    def array_of(self, variable: Variable) -> Any:
        """Returns the value of a variable as a NumPy array; None if it has none yet."""

    def fetch(self, vectors: Sequence[Variable]) -> Any:
        """Returns the values of variables of one shape, stacked, in one wait for the device."""

    def initial(self, variable: Variable, initializer: str) -> Any:
        """Returns the initial value of a variable, by the name of an initializer."""

    def fit(self, variable: Variable, part: Any, value: Any) -> Any:
        """Converts a saved array of another shape to that of a variable.

        Args:
            variable: The optimizer's variable.
            part: The `named.Part` of the model's variable that it belongs to.
            value: The saved array.

        Returns:
            The array in the shape of `variable`; None if that is not possible.
        """

    def which_are_finite(self, variables: Sequence[Variable]) -> Iterable[bool]:
        """Returns for each variable whether all of its values are finite."""

    def accumulators(self, optimizer: Any, variables: Sequence[Variable]) -> Sequence[Variable]:
        """Returns the variables that add up the gradients of micro-batches.

        A build calls it once: where Keras made them, it returns those, and else it makes them.
        """

    def vector_like(self, optimizer: Any, variable: Variable, name: str) -> Variable:
        """Returns a new vector of `observation.UNSEEN` on the devices of a variable.

        Args:
            optimizer: The optimizer, whose strategy places the vector on TensorFlow.
            variable: The variable.
            name: The name of the vector.
        """

    def has_accelerator(self) -> bool:
        """Returns whether steps run on an accelerator, and not on a CPU."""


class FrontendMembers(Protocol):
    """What `LayerwiseOptimizer` of each frontend defines, for `Layerwise` to use."""

    _xp: Any  # the array namespace of the framework
    _host: Host
    _schedules: Any  # the frontend's module of schedules
    _counts: Any  # the dtype of its counters
    _widest: Any  # the dtype that holds the averages of all variables, after the build
    _update: Any  # the `Update` of its framework, after the build

    def _index_of(self, variable: Variable) -> int:
        """Returns the position of a variable among those of the build."""

    def _averaged(self, variables: Sequence) -> set[int]:
        """Returns the positions whose averages move in a step of these variables."""

    def _add_iterations(self, stepped: Any) -> Any:
        """Counts an optimizer step where a boolean scalar is true."""

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
        """Clips gradients that are summed over replicas, as its Keras clips."""

    def _rate_in_config(self) -> Any:
        """Returns the learning rate as the config of its Keras has it."""


class KerasOptimizer:
    """What both base classes of Keras's optimizers have, for type checkers; never made."""

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
    """What tells the variables of an optimizer's build from others."""

    name: str
    _var_key: Callable[[Any], Any]

    def get_config(self) -> Any:
        """Returns the arguments that make such an optimizer again."""


class SavedOptimizer(Protocol):
    """What has a state that `named.load` sets: an optimizer, or what measures for one."""

    name: str
    _host: Host

    def _named_state(self) -> Any:
        """Returns the `named.NamedState`."""


class MeasuringMembers(Protocol):
    """What `MeasureNoise` and `AdaScale` save."""

    saved_kind: str
    micro_batches: int
    _measured_names: Sequence[str]

    @property
    def _meter(self) -> Any:
        """The `NoiseMeter`."""


class LayerwiseMembers(FrontendMembers, Protocol):
    """What `Layerwise` has in a frontend, for the functions that work on such an optimizer."""

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
    def _growing(self) -> Stages | None:
        """The micro-batches of an update by optimizer step; None if their number is fixed."""

    def declared_by(self, plan: Plan) -> list[list[Slot]]:
        """Returns the slots of each variable of a plan."""
