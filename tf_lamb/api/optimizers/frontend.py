"""What the optimizers ask of each Keras: the names that a frontend supplies, which mypy checks."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol


class Host(Protocol):
    """The module of a frontend with its functions on variables.

    A variable may be one of Keras or one of the framework; an array is the framework's.
    """

    def native(self, variable: Any) -> Any:
        """Returns the framework's variable of a variable of Keras; None for None."""

    def put(self, variable: Any, value: Any) -> None:
        """Assigns a value to a variable, in the dtype of the variable."""

    def array_of(self, variable: Any) -> Any:
        """Returns the value of a variable as a NumPy array; None if it has none yet."""

    def fetch(self, vectors: Sequence) -> Any:
        """Returns the values of variables of one shape, stacked, in one wait for the device."""

    def initial(self, variable: Any, initializer: str) -> Any:
        """Returns the value with which an initializer, by name, begins a variable."""

    def fit(self, variable: Any, part: Any, value: Any) -> Any:
        """Returns a saved value in the shape of a variable; None if that is not possible."""

    def which_are_finite(self, variables: Sequence) -> Iterable[bool]:
        """Returns for each variable whether all of its values are finite."""

    def accumulators(self, optimizer: Any, variables: Sequence) -> Sequence:
        """Returns the variables that add up the gradients of micro-batches, of a build."""

    def vector_like(self, optimizer: Any, variable: Any, name: str) -> Any:
        """Returns a new vector of `observation.UNSEEN` that lives where a variable does."""

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

    def _index_of(self, variable: Any) -> int:
        """Returns the position of a variable among those of the build."""

    def _averaged(self, variables: Sequence) -> set[int]:
        """Returns the positions whose averages move in a step of these variables."""

    def _add_iterations(self, stepped: Any) -> Any:
        """Counts an optimizer step where a boolean scalar is true."""

    def add_variable_like(
        self, variable: Any, name: str, dtype: Any, shape: Any = None, initial: str = "zeros"
    ) -> Any:
        """Adds a variable of a dtype where another one lives."""

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
