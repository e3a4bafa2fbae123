"""Defines the base class of the callback `AutoWarmup`, its copy of the weights, and its plot."""

import glob
import json
import math
import os
from typing import Any

from tf_lamb.api import files, plots
from tf_lamb.api.callbacks.callback import MODELS_WITH_RISING_RATE, Callback
from tf_lamb.api.variables import value_of, variables_of
from tf_lamb.core.messages import warn
from tf_lamb_extras.automatic_warmup import gaussian_process
from tf_lamb_extras.automatic_warmup.decisions import AutoWUState, Settings

# The rounding error of the difference of two means in float32, as a fraction of the larger mean.
ROUNDING = 2.0**-22


class AutoWarmup(Callback):
    """Finds the peak learning rate during the warmup (AutoWU); a callback for `fit`.

        warmup    the learning rate rises from min to max as min (max/min)^(step/longest), with
                  longest = max_warmup_fraction T
        test      at the end of an epoch, a Gaussian process over the losses so far gives P, the
                  probability that the loss was lower before than it is now
        switch    after `patience` epochs in a row in which more than half of the tests give
                  P > confidence: restore the weights and the optimizer's state from the end of the
                  lowest epoch, and decay from the learning rate at which the loss was lowest, or
                  from the rate at the end of the lowest epoch if that is smaller
        longest   after the longest warmup without a switch, or after an epoch without a finite
                  loss: restore the same weights and state, and decay from half of the learning rate
                  at the end of the lowest epoch
        decay     peak (1 + cos(pi s/S))/2 after s of the S steps from the switch to step T
        watch     after `patience` epochs in a row of the decay in which every loss is above
                  (F + L)/2: restore the same weights and state again, and halve the peak

    min and max are the first two arguments, and T is the number of all steps. The lowest epoch is
    the epoch of the warmup with the smallest mean loss over the last quarter of its steps. L is
    this mean, and F is the mean loss of the first epoch.

    If the last epoch of the longest warmup is the lowest, the decay starts there, from its rate.
    The callback sets the learning rate before every step, or before every call if the model is
    compiled with `steps_per_execution`, so give the optimizer any number as its learning rate. The
    callback warns if another callback sets the rate, too. A wide range from min to max costs
    little, because the rate grows by the same factor at every step.

    A rate beyond the peak may damage the network for every later rate. Therefore the callback keeps
    one copy of the weights and the optimizer's state in the memory of the CPU, and restores both.
    The state includes the optimizer's count of steps, `iterations`. If the callback
    `StopOnDivergence` is used as well, it waits until the warmup has ended.

    Keras reports the mean loss over the examples of the epoch so far, from which the callback
    computes the loss of each step. Keras does not report the number of examples, so the callback
    assumes that all batches of an epoch are equally large. Assume that the last of n batches has
    only r times the examples of the others, whose mean loss is m. Then the callback records
    m + (loss - m) n r/(n - 1 + r), which is nearer to m than the loss of that batch. Drop a smaller
    last batch if an epoch has few steps.

    The callback needs scikit-learn. `plot()` draws the loss, the Gaussian process, and the rate.

    Args:
        min_learning_rate: Learning rate at the start of the warmup. Defaults to 1e-5 (the authors'
            value, for AdamP).
        max_learning_rate: Learning rate at the end of the longest warmup. Defaults to 1.0 (also the
            authors' value).
        max_warmup_fraction: Longest warmup, as a fraction of all steps. Defaults to 0.5.
        decay: "cosine", the default, or "constant_then_cosine": the rate stays at the peak, and
            falls over the last `cooldown_fraction` of all steps.
        cooldown_fraction: The fraction of all steps in which "constant_then_cosine" decays.
            Defaults to 0.2.
        confidence: Threshold of P. Defaults to 0.95.
        patience: Number of epochs in a row before a switch, and before the peak is halved. Defaults
            to 3.
        tests: Tests per epoch, on different sets of at most 500 losses. Defaults to 5.
        total_steps: T, all steps of the training. Defaults to None: epochs times steps per epoch of
            `fit`.
        state_file: The path of a JSON file, which is written at the end of every epoch. A `fit`
            that starts at a later epoch than 0 resumes from it, and from a file of weights beside
            it. Place this callback before `BackupAndRestore` in the list of callbacks. Defaults to
            None: a `fit` that starts at a later epoch raises ValueError, unless this object was
            used in the earlier epochs.
        verbose: Whether to print the decisions. Defaults to True.

    Attributes:
        warmup: The losses and decisions so far, an `AutoWUState`. None before training begins. It
            has `points`, pairs (step, loss) of the warmup. Its `verdicts` has a pair for each epoch
            of the warmup: the step at its end, and whether most tests gave P > confidence. `begin`
            and `peak` are the step and the learning rate at which the decay begins. `found` is
            False until a switch.

    Raises:
        ValueError: At construction, for a range, fraction or decay that is not allowed. When
            training begins, if the number of steps is unknown, if the optimizer has a learning rate
            schedule, or if the state of earlier epochs is missing or belongs to another training.
        FloatingPointError: At the end of the first epoch, if none of its losses is finite.
        ModuleNotFoundError: At construction, if scikit-learn is not installed.

    Example:

    >>> import numpy as np, tensorflow as tf, tf_lamb
    >>> from tf_lamb_extras.automatic_warmup import AutoWarmup
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> model.compile(optimizer=tf_lamb.LAMB(1e-3), loss="mse")
    >>> x, y = np.random.normal(size=(64, 4)), np.random.normal(size=(64, 2))
    >>> warmup = AutoWarmup(1e-4, 1.0, verbose=False)
    >>> _ = model.fit(x, y, batch_size=8, epochs=10, callbacks=[warmup], verbose=0)
    >>> warmup.warmup.settings.total_steps
    80

    References:
        - Kim et al., Automated Learning Rate Scheduler for Large-batch Training,
          https://arxiv.org/abs/2107.05855
    """

    warmup: Any = None
    sets_learning_rate = True
    _state_file: Any
    # Tells Keras 3 that it need not wait for the loss of each step. The callback reads the losses
    # only when an epoch ends.
    async_safe = True

    def __init__(
        self, min_learning_rate: float = 1e-5, max_learning_rate: float = 1.0, *,
        max_warmup_fraction: float = 0.5, decay: str = "cosine", cooldown_fraction: float = 0.2,
        confidence: float = 0.95, patience: int = 3, tests: int = 5,
        total_steps: int | None = None, state_file: str | os.PathLike | None = None,
        verbose: bool = True,
    ):  # fmt: skip
        super().__init__()
        self._told: dict[str, Any] = {
            "min_learning_rate": min_learning_rate, "max_learning_rate": max_learning_rate,
            "max_warmup_fraction": max_warmup_fraction, "decay": decay,
            "cooldown_fraction": cooldown_fraction, "confidence": confidence,
            "patience": patience, "tests": tests,
        }  # fmt: skip
        gaussian_process.check_installed()
        self._total_steps, self._state_file, self._verbose = total_steps, state_file, verbose
        self._kept = Kept(state_file)
        # Raises for invalid arguments at construction. If the number of steps will be known only in
        # `fit`, any large number stands for it.
        Settings(total_steps or 10**9, **self._told)

    def on_train_begin(self, logs=None):
        """Computes the number of steps of the training.

        Raises:
            ValueError: If the number of steps in an epoch is unknown.
        """
        self._steps = self.params.get("steps")
        if not self._steps:
            raise ValueError(
                "AutoWarmup needs to know how many steps an epoch has, and this data does not "
                "say: give fit steps_per_epoch=..."
            )
        total = self._total_steps or self.params["epochs"] * self._steps
        self._settings = Settings(total, **self._told)
        super().on_train_begin(logs)
        self._has_begun = self._knows_others = False
        self._set: float | None = None

    def on_epoch_begin(self, epoch, logs=None):
        """Starts the warmup in the first epoch, or resumes if `fit` begins at a later epoch.

        While the learning rate rises, it also keeps the model in `MODELS_WITH_RISING_RATE`, so that
        `StopOnDivergence` does not check it.

        Args:
            epoch: The number of the epoch, from 0.
            logs: Ignored. Defaults to None.

        Raises:
            ValueError: If the state of the earlier epochs is missing, or belongs to another
                training.
        """
        self._first = epoch * self._steps
        self._means: list[tuple[int, Any]] = []
        if not self._has_begun:
            self._has_begun = True
            state = self._state_before(epoch) if epoch else None
            self.warmup = AutoWUState(self._settings)
            if state:
                self.warmup.restore(state, self._first)
        is_rising = self.warmup.is_rising(self._first)
        (MODELS_WITH_RISING_RATE.add if is_rising else MODELS_WITH_RISING_RATE.discard)(self.model)

    def on_train_batch_begin(self, batch, logs=None):
        """Sets the learning rate of the next step.

        Args:
            batch: The number of the batch in its epoch, from 0.
            logs: Ignored. Defaults to None.

        Raises:
            ValueError: If the optimizer has a learning rate schedule.
        """
        if batch == 0:
            self._warn_of_others()
        self._set = rate = self.warmup.rate(self._first + batch)
        try:
            self.model.optimizer.learning_rate = rate
        except TypeError as error:
            raise ValueError(
                "AutoWarmup sets the learning rate itself, but this optimizer has a schedule of "
                "its own: give the optimizer a number instead."
            ) from error

    def _warn_of_others(self):
        """Warns if other code has changed the learning rate since this callback set it.

        Such a change has no effect, because the callback sets the rate before every step. It warns
        only once.
        """
        if self._set is None or self._knows_others:
            return
        rate = float(value_of(self.model.optimizer.learning_rate))
        if not math.isclose(rate, self._set, rel_tol=1e-5):  # optimizers store it in float32
            self._knows_others = True
            warn(
                f"AutoWarmup sets the learning rate before every step. It has set {self._set:.3g}, "
                f"and something else has set {rate:.3g} since, which has no effect. Take "
                "LearningRateScheduler and ReduceLROnPlateau out of the callbacks."
            )

    def on_train_batch_end(self, batch, logs=None):
        """Stores the mean loss of the epoch so far, which `on_epoch_end` reads.

        Args:
            batch: The number of the batch in its epoch, from 0.
            logs: Keras's logs, with "loss". Defaults to None.
        """
        # Keras 3 may call this method from several threads, in any order. So the number of steps is
        # computed from `batch`, and not counted.
        steps_done = min(
            (batch // self._batches_per_call + 1) * self._batches_per_call, self._steps
        )
        self._means.append((steps_done, logs["loss"]))

    def on_epoch_end(self, epoch, logs=None):
        """Records the losses, and decides whether the warmup ends or the peak is halved.

        It also keeps a copy of the weights if this epoch is the lowest, restores that copy if the
        decision asks for it, saves the state to the file, and prints the decision if `verbose`.

        Args:
            epoch: The number of the epoch, from 0.
            logs: Keras's logs, to which "learning_rate" is added. Defaults to None.

        Raises:
            FloatingPointError: If the first epoch has no finite loss, so that there are no weights
                to restore.
        """
        for step, loss in _of_steps(self._means):
            self.warmup.record(self._first + step, loss)
        step = self._first + self._steps
        was_rising, rate = self.warmup.is_rising(self._first), self.warmup.rate(step - 1)
        goes_back = self.warmup.end_epoch(step)
        if logs is not None:
            logs["learning_rate"] = rate
        lowest, total = self.warmup.lowest, self._settings.total_steps
        if lowest == step:
            self._kept.keep(step, self._copies())
        note = self._go_back(lowest) if goes_back and lowest < step else ""
        if self._state_file:
            with files.atomic_write(self._state_file) as file:
                json.dump({**self.warmup.state(), "steps": step}, file)
        self._kept.drop(but=lowest if step < total else -1)
        if self._verbose and (goes_back or was_rising and not self.warmup.is_rising(step)):
            print(f"\n{self.warmup}{note}")

    def on_train_end(self, logs=None):
        """Warns if the losses of the last `patience` epochs were too high when training ends.

        The limit is half way from the lowest loss of the warmup to the loss of its first epoch.
        """
        MODELS_WITH_RISING_RATE.discard(self.model)
        if self.warmup and self.warmup.is_lost():
            warn(
                f"AutoWarmup: training ends with no loss below {self.warmup.halfway:.3g}, half way "
                "from the lowest of the warmup to that of its first epoch. Train for more epochs, "
                f"or with max_learning_rate={self.warmup.peak_at() / 2:.2g}, or with normalization "
                "in the network."
            )

    def _go_back(self, lowest):
        """Restores the weights and the optimizer's state from the copy of step `lowest`.

        Returns:
            A sentence to print about it. If there is no copy, the method warns and returns "".
        """
        if (arrays := self._kept.at(lowest, self._copies())) is None:
            warn(
                f"AutoWarmup goes back to a lower learning rate, but not to the weights of step "
                f"{lowest:,}, where the loss was lowest: they were kept by a process that is gone. "
                "If the loss does not fall again, begin anew, with max_learning_rate="
                f"{self.warmup.peak_at():.2g}."
            )
            return ""
        for variable, array in zip(self._all_variables(), arrays, strict=True):
            variable.assign(array.copy())  # a later call may need the stored array again
        self._set = None
        return f" The weights and the optimizer are those of step {lowest:,} again."

    def _all_variables(self):
        """Returns all variables of the model and of the optimizer, also those of frozen layers."""
        return [*self.model.weights, *variables_of(self.model.optimizer)]

    def _copies(self):
        """Returns copies of the model's and the optimizer's variables, as NumPy arrays."""
        return [variable.numpy().copy() for variable in self._all_variables()]

    def plot(self, axes: Any = None) -> Any:
        """Draws the loss, the Gaussian process, the switch and the learning rate.

        Args:
            axes: Two matplotlib `Axes`. Defaults to None: those of a new figure.

        Returns:
            The two `Axes`. The caller shows or saves them.

        Raises:
            ValueError: Before the first loss.
            ModuleNotFoundError: If matplotlib is not installed.
        """
        return draw(self.warmup, axes)

    def _state_before(self, epoch):
        """Returns the state of the epochs before this one, from this object or from the state file.

        The state is the dict that `AutoWUState.state` returns, and the number of "steps" so far.
        Warns if the state ends before this epoch.

        Raises:
            ValueError: If there is no state, or if it is of a training with another number of
                steps.
        """
        path = self._state_file
        if self.warmup is not None:
            state = {**self.warmup.state(), "steps": self._first}
        elif path and os.path.exists(path):
            with open(path) as file:
                state = json.load(file)
        else:
            reason = f"and there is no state_file={path!r}" if path else "and has no state_file"
            raise ValueError(
                f"fit begins at epoch {epoch}, but this AutoWarmup has not seen the ones before, "
                f"{reason}: give the state_file of that training, or begin at epoch 0."
            )
        if state["total_steps"] != self._settings.total_steps:
            raise ValueError(
                f"AutoWarmup was begun for {state['total_steps']:,} steps, and fit has "
                f"{self._settings.total_steps:,}: keep epochs and steps_per_epoch, or say "
                f"total_steps={state['total_steps']}."
            )
        if state["steps"] < self._first:
            warn(
                f"The state of AutoWarmup ends at step {state['steps']:,}, before step "
                f"{self._first:,}, at which fit goes on: the losses between are missing. Put "
                "AutoWarmup before BackupAndRestore in the list of callbacks."
            )
        return state


def _of_steps(means):
    """Yields pairs (step, loss), computed from the running means of the loss in an epoch.

    The running mean is over examples, so the losses are exact only if all batches are equally
    large. If Keras reports the mean only after several steps, there is one pair for these steps,
    with their mean loss and mean step.

    The running mean is a float32. After a loss of 1e8, a loss of 2 is below its rounding error. A
    computed loss that is smaller than the rounding error is replaced with the rounding error, so
    that it is not taken for the lowest loss.

    Args:
        means: Pairs (number of steps so far in the epoch, their mean loss), in any order.
    """
    counted, total = 0, 0.0
    for count, mean in sorted(means, key=lambda item: item[0]):
        new_total = count * float(mean)
        loss = (new_total - total) / (count - counted)
        rounding = ROUNDING * max(abs(new_total), abs(total)) / (count - counted)
        yield (counted + count - 1) / 2, rounding if abs(loss) < rounding else loss
        counted, total = count, new_total


class Kept:
    """Stores a copy of the variables of a model and its optimizer from one step, as NumPy arrays.

    In memory there is one copy, which that of a later step replaces. A file stays until `drop`, so
    that the state file always has the copy that it needs, also if the process is killed.

    Args:
        state_file: The callback's state file. The arrays are also written to a file beside it,
            `STATE_FILE.STEP.weights`, for a run that resumes. Defaults to None: the arrays are only
            in memory.
    """

    def __init__(self, state_file=None):
        self._file = state_file
        self._step, self._arrays = -1, []

    def keep(self, step: int, arrays: list) -> None:
        """Stores the arrays of a step.

        Args:
            step: The number of steps after which the arrays were copied.
            arrays: The NumPy arrays. The caller must not change them later.
        """
        self._step, self._arrays = step, arrays
        if not self._file:
            return
        with files.atomic_write(self._path(step), "wb", f"{self._file}.unfinished") as file:
            for array in arrays:
                file.write(array.tobytes())

    def drop(self, but: int = -1) -> None:
        """Deletes all arrays and files, except those of step `but`; by default all of them."""
        if self._step != but:
            self._step, self._arrays = -1, []
        for path in glob.glob(f"{glob.escape(str(self._file))}.*.weights") if self._file else ():
            if path != self._path(but):
                os.remove(path)

    def at(self, step: int, templates: list) -> list | None:
        """Returns the arrays of a step, or None if they are not stored.

        Args:
            step: The step.
            templates: Arrays of the same shapes and dtypes. If the arrays are read from a file,
                they overwrite these.
        """
        if self._step == step:
            return self._arrays
        if not self._file or not os.path.exists(self._path(step)):
            return None
        if os.path.getsize(self._path(step)) != sum(array.nbytes for array in templates):
            return None  # the file is of another model
        with open(self._path(step), "rb") as file:
            return [_read(file, template) for template in templates]

    def _path(self, step):
        """Returns the path of the file that holds the copy of the variables from a step."""
        return f"{self._file}.{step}.weights"


def _read(file, template):
    """Reads an array from an open file, and returns it.

    Args:
        file: The file, which was opened in binary mode.
        template: An array of the same shape and dtype, which is overwritten.
    """
    # `reshape` copies a NumPy scalar. In that case `template` is not overwritten, and only the
    # returned array has the value.
    flat = template.reshape(-1)
    flat.view("uint8").data[:] = file.read(template.nbytes)
    return flat.reshape(template.shape)


def draw(state, axes=None):
    """Draws a warmup: above, the losses and the Gaussian process; below, the learning rate.

    A vertical line marks the step at which the decay begins.

    Args:
        state: An `AutoWUState`.
        axes: Two matplotlib `Axes`. Defaults to None: those of a new figure.

    Returns:
        The two `Axes`.

    Raises:
        ValueError: Before the first loss.
        ModuleNotFoundError: If matplotlib is not installed.
    """
    loss_axes, rate_axes = plots.axes_for_data("a warmup", state and state.points, axes, rows=2)
    import numpy as np

    steps, losses = np.array(state.points).T
    step_count = steps[-1] + 1
    grid, mean, deviation = gaussian_process.curve(steps / step_count, losses)
    loss_axes.plot(steps, losses, ".", ms=3, color="0.6", label="loss")
    loss_axes.plot(grid * step_count, mean, label="posterior, 2 deviations")
    loss_axes.fill_between(grid * step_count, mean - 2 * deviation, mean + 2 * deviation, alpha=0.3)
    plots.label_axes(loss_axes, "loss of a step")

    grid_steps = np.unique(np.r_[0 : state.settings.total_steps : 1000j, state.begin])
    rate_axes.plot(grid_steps, [state.rate(step) for step in grid_steps], label="learning rate")
    rate_axes.set(yscale="log")
    rate_axes.set_ylim(bottom=state.settings.min_learning_rate)
    plots.label_axes(rate_axes, "learning rate")
    ending = "switch" if state.found else "longest warmup"
    for ax in (loss_axes, rate_axes):
        ax.axvline(state.begin, color="black", ls=":", lw=1, label=f"{ending}: {state.begin:,.0f}")
        plots.legend(ax)
    return loss_axes, rate_axes
