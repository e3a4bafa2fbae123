"""The search for the batch size of a model and its data: `find_batch`.

For each batch size the search estimates the hours of training, and the device-hours: the hours
times the number of devices.
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from tf_lamb.api import frontends, seams
from tf_lamb.api.data import map_arrays
from tf_lamb.api.progress import Progress
from tf_lamb.api.variables import unwrapped
from tf_lamb.core import checks
from tf_lamb.core.recipes.recipe import micro_batches
from tf_lamb.core.recipes.scaling import fit_steps, training_steps
from tf_lamb.find import reach, timing
from tf_lamb.find.checks import (
    baseline_rate_of,
    can_accumulate,
    check_even_split,
    check_model,
    copy_optimizer,
    steps_per_execution,
)
from tf_lamb.find.data import Examples
from tf_lamb.find.feeds import make_feed
from tf_lamb.find.found_batch import FoundBatch
from tf_lamb.find.goodput import costs, growth, steps
from tf_lamb.find.goodput.answer_text import duration_text
from tf_lamb.find.search_log import SearchLog, settings_by_name
from tf_lamb.find.trials import Trials, batch_norm_layers

# The length of the first short run, as a share of the steps of the baseline's run.
SHORT_RUN_SHARE = 0.1
# The runs at the baseline's batch estimate the running averages of batch normalization from this
# number of micro-batches, rounded up to whole updates. The runs at the large batch estimate them
# from one update.
BATCH_NORM_BATCHES = 4
# The number of micro-batches of an update, when the accumulation of gradients is timed.
TIMED_CALLS = 4

EPOCH_FIELD_BY_LOG_KEY = {
    "start": "start_seconds",
    "compiled": "step_compile_seconds",
    "evaluated": "evaluation_compile_seconds",
    "drops": "drop_remainder",
}


def find_batch(
    model: Any, data: Any, *, baseline_batch_size: int, baseline_epochs: float,
    baseline_learning_rate: float | None = None,
    noise_scale: float | Iterable[tuple[float, float]] | None = None,
    large_batch_size: int | None = None, step_seconds: Mapping[int, float] | None = None,
    device_counts: int | Iterable[int] | Mapping[int, float] = 1,
    deadline_hours: float | None = None, examples: int | None = None, validation_data: Any = None,
    directory: str | os.PathLike | None = None, verbose: bool = True,
) -> FoundBatch:  # fmt: skip
    """Finds the largest batch that keeps the baseline's result, and the fastest to reach its loss.

        hours(B) = S(B) T(B)/3600,  S(B) = S_min (1 + Bn/B)

    The baseline is the run that you have tuned. S(B) is the number of steps at batch size B to the
    loss at which the baseline ends. S_min is the fewest steps at any batch size. The noise scale Bn
    is the batch size that takes twice as many. The curve S(B) goes through the baseline's batch
    size and steps, so only Bn is unknown. Pass it as `noise_scale=`, or short runs measure it.

    The short runs at the baseline's batch size have a tenth of the baseline's steps. The held-out
    loss at the end of the first of them is the target. Further short runs, at a batch size sixteen
    times as large, train until they reach the target. At each of the two batch sizes, several
    learning rates are tried, constant after a warmup. The best one is run again with two other
    orders of the data.

    The noise scale grows with the number of examples D of a run, Bn = c D^a. To measure a, the
    short runs give Bn at two losses: at the target, and at the loss of the baseline after a quarter
    of its short run. The exponent a is the mean of the measured one and of 0.5, each weighted by
    one over its variance. The standard deviation of the 0.5 is 0.25. The power law then gives Bn
    for the D of the whole run. The interval of Bn includes the uncertainty of the measured Bn and
    that of a. If the short runs do not show how Bn grows, a is 0.5, and the printed result says so.
    A `noise_scale` that you pass is taken as that of the whole run.

    T(B) is the seconds of a step. Pass them as `step_seconds=`, or epochs of `fit` on your data are
    timed. Timed seconds include making the input, and the effect of `steps_per_execution`. They
    also include a share of what an epoch takes besides its steps: its start, and the evaluation of
    `validation_data`. If steps are timed, the hours also include compilation.

    After the search the model has the weights, optimizer, running averages and seeds that it had
    before, even if the search was interrupted. Short runs begin with the weights that the model
    has, so pass a newly built model.

    Args:
        model: A compiled model, with the optimizer of the baseline.
        data: Arrays `(x, y)` or `(x, y, sample_weight)`, or an array x alone; a `tf.data.Dataset`
            of batches, a `PyDataset`, a list of batches, or any object that yields its batches
            again whenever it is iterated. To get batches of another size, the search joins or cuts
            these batches.
        baseline_batch_size: The batch size of the baseline, which is the run that you have tuned.
        baseline_epochs: The epochs of the baseline's run.
        baseline_learning_rate: The peak rate of the baseline. Defaults to None: the rate of the
            model's optimizer.
        noise_scale: Either Bn in examples: the last value that the callback `NoiseScale` measured
            in the baseline's run. It is taken to be right within a factor of two. Or pairs (batch,
            steps) of your own runs to one loss, from which Bn is computed. They need two batches at
            least, sixteen times apart, with learning rates tuned at each. Defaults to None: short
            runs measure Bn.
        large_batch_size: The larger batch size of the short runs. Defaults to None: 16 times the
            baseline's.
        step_seconds: A dict from the examples of a micro-batch to the seconds of a step, for two
            micro-batches at least. Batches beyond the largest one accumulate gradients. Defaults to
            None: steps are timed on one device, at micro-batches of increasing size, until one does
            not fit in memory or an example takes no less time.
        device_counts: Numbers of devices to compare, such as (1, 8). Every device is taken to need
            the seconds of `step_seconds`, or those that were timed. Or a dict from each number of
            devices to the seconds that its network adds to a step, such as {1: 0, 8: 0.002}.
            Without a dict the network is not counted, and the printed result says so. Defaults to
            1.
        deadline_hours: The most hours that training may take. Defaults to None: no deadline.
        examples: The number of examples in an epoch, after which a pass over endless data ends.
            Defaults to None: counted, if the data tell how many batches they have.
        validation_data: Held-out examples, in any form that `data` may have. The evaluation on them
            at the end of each epoch is timed, too. Defaults to None: a tenth of `data` is held out,
            which must then not be shuffled differently in each pass.
        directory: A folder in which the timings and every short run are saved. If the search is
            interrupted, the same call continues it from this folder, with the weights that it began
            with. The result is then bit for bit that of an uninterrupted search, if every pass over
            the data is the same and no layer draws from a global random generator. Defaults to
            None: nothing is saved.
        verbose: Whether to print the expected cost, a progress bar, and each short run. Defaults to
            True.

    Returns:
        A `FoundBatch` to print. Its `largest_batch` keeps the baseline's result over the same
        number of examples. Its `batch_size` is the fastest to the baseline's loss, over more
        examples.

    Raises:
        TypeError: for data that can be read only once, and for sparse or ragged data.
        ValueError: for a model that is not compiled, for fewer examples than a batch, for a loss
            that is not finite before training, for a baseline that learns nothing in a tenth of its
            run, for a large batch that does not reach the target, or for a `directory` that holds a
            search of another model, on other data or with other arguments.

    Example:

    >>> import numpy as np, keras, tf_lamb.keras
    >>> x = np.random.default_rng(0).normal(size=(2048, 8)).astype("float32")
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer="sgd", loss="mse")
    >>> found = tf_lamb.keras.find_batch(
    ...     model, (x, x[:, :1]), baseline_batch_size=32, baseline_epochs=20, noise_scale=500,
    ...     step_seconds={32: 0.01, 128: 0.012})
    >>> found.batch_size
    128

    References:
        - McCandlish et al., https://arxiv.org/abs/1812.06162
        - Qiao et al., Pollux, https://arxiv.org/abs/2008.12260: the model of the seconds of a step
    """
    base_batch = checks.integer("baseline_batch_size", baseline_batch_size)
    checks.number("baseline_epochs", baseline_epochs, "(0, inf)")
    if deadline_hours is not None:
        checks.number("deadline_hours", deadline_hours, "(0, inf)")
    counts, network_seconds = _check_device_counts(device_counts)
    check_model(model, base_batch, None, one_execution=False)
    own_optimizer = unwrapped(model.optimizer)
    baseline_rate = baseline_rate_of(own_optimizer, baseline_learning_rate)
    devices = frontends.of(model).devices(model)
    split = Examples(data, validation_data, examples, devices)
    if split.training_count < base_batch:
        raise ValueError(
            f"{split.training_count:,} examples to train on are fewer than a batch of "
            f"{base_batch:,}: {split.held_out_count:,} are held out; pass validation_data= to "
            "train on all."
        )
    total_steps = training_steps(baseline_epochs, split.examples, base_batch, fit_steps)
    curve = _user_curve(noise_scale, base_batch, total_steps)
    large_batch = steps.RELIABLE_RATIO * base_batch
    if large_batch_size is not None:
        large_batch = checks.integer("large_batch_size", large_batch_size)
    if curve is None:
        _check_large_batch(large_batch, base_batch, split.training_count, total_steps)
    machine, sizes = _user_machine(step_seconds), []
    if machine is None:
        map_arrays(_check_numeric, split.blocks[0])
        if devices > 1:
            raise ValueError(
                f"keras.distribution shares a call among {devices} devices, and a step is timed on "
                "one: pass step_seconds=, or search without it, with a model that is built anew."
            )
        sizes = timing.sizes_to_time(
            base_batch, min(split.training_count, large_batch * steps.RANGE_FACTOR)
        )
    log = SearchLog(directory, "find_batch", model, split, {
        "baseline_batch_size": base_batch, "steps": total_steps, "learning_rate": baseline_rate,
        "large_batch_size": large_batch, "optimizer": type(own_optimizer).__name__,
        **settings_by_name(own_optimizer),
        "loss_scale": "LossScale" in type(model.optimizer).__name__,
    })  # fmt: skip
    search = _Search(
        model, split, own_optimizer, log, base_batch, large_batch, baseline_rate, verbose
    )
    timing_note, seconds_without_input = "seconds of a step: as given", ()
    if machine is None:
        machine, timing_note, seconds_without_input = search.measure_machine(sizes)
    machine = dataclasses.replace(machine, device_counts=counts, network_seconds=network_seconds)
    target, runs = None, []
    if curve is None:
        target, runs = search.make_short_runs(machine, total_steps)
        curve = _measured_curve(runs, base_batch, total_steps)
    answer = costs.plan(
        curve,
        machine,
        baseline=base_batch,
        examples=split.training_count,
        deadline_hours=deadline_hours,
    )
    return FoundBatch(
        answer=answer, runs=tuple(runs), target=target, timed=timing_note,
        optimizer=own_optimizer, learning_rate=baseline_rate, baseline_epochs=baseline_epochs,
        examples=split.examples,
        cost=sum(run.batch * run.steps_trained for run in runs) / (base_batch * total_steps),
        took=log.elapsed_seconds,
        normalizes=bool(batch_norm_layers(model)), data=split.data_code,
        idle=tuple(seconds_without_input),
    )  # fmt: skip


class _Search:
    """Makes the measurements of `find_batch`: timed epochs, and short runs at two batches.

    Args:
        model: The model.
        split: The training examples and the held-out examples.
        optimizer: The model's optimizer. If a `LossScaleOptimizer` wraps it, the inner one.
        log: The `SearchLog`, which saves the measurements.
        base_batch: The number of examples in the baseline's batch.
        large_batch: The number of examples in the large batch.
        baseline_rate: The peak rate of the baseline.
        verbose: Whether to print progress.
    """

    def __init__(
        self, model, split, optimizer, log, base_batch, large_batch, baseline_rate, verbose
    ):
        self.model, self.split, self.optimizer, self.log = model, split, optimizer, log
        self.base_batch, self.large_batch = base_batch, large_batch
        self.baseline_rate, self.verbose = baseline_rate, verbose
        self.steps_per_execution = steps_per_execution(model)
        self.progress: Progress | None = None

    def measure_machine(self, sizes):
        """Times epochs of `fit`, or loads the times from the log, and fits the seconds of a step.

        Args:
            sizes: The examples of each micro-batch to time.

        Returns:
            A triple: the `Machine`, a sentence on which micro-batches were timed, and pairs
            (micro-batch, seconds of a step that does not wait for its input).
        """
        key = ["epochs", sizes, self.steps_per_execution]
        measured = self.log.cached(key, lambda: self._measure_seconds(sizes))
        timed_sizes, seconds = zip(*measured["seconds"], strict=True)
        step_time = costs.fit_step_time(timed_sizes, seconds, measured["update"])
        constant, coefficient = measured["evaluation"]
        epoch = costs.Epoch(
            self.split.examples,
            evaluation_coefficients=(constant, coefficient),
            **{EPOCH_FIELD_BY_LOG_KEY[key]: value for key, value in measured["epoch"].items()},
        )
        return (
            costs.Machine(step_time, max(timed_sizes), epoch=epoch),
            measured["how"],
            measured["idle"],
        )

    def _measure_seconds(self, sizes):
        """Times steps at each micro-batch, an update, and what an epoch takes besides its steps.

        Args:
            sizes: The examples of each micro-batch to time, in ascending order.

        Returns:
            A dict of the measurements, in types that can be written as JSON.

        Raises:
            ValueError: if fewer than two of the micro-batches fit in memory.
        """
        is_accumulating, host = can_accumulate(self.optimizer), frontends.of(self.model).host
        feed = make_feed(self.split.source, self.split.examples, host)
        timing_count = (1 + timing.ROUNDS) * (len(sizes) + is_accumulating)
        epoch_values = {"drops": feed.drop_remainder}
        with Progress(self.model, timing_count, self.verbose, unit="timing") as progress:
            sizes_text = ", ".join(map(str, sizes))
            progress.say(
                f"find_batch: epochs of fit on {feed.name} are timed at micro-batches of "
                f"{sizes_text}"
            )
            with self._open_timed_trials(self.base_batch) as trials:
                fewest_steps = self.steps_per_execution
                fitting, timing_note = timing.sizes_that_fit(
                    trials, feed, sizes, fewest_steps, progress.add
                )
                if len(fitting) < 2:
                    raise ValueError(
                        f"Of {sizes_text} examples in a call, this device holds {min(fitting)} "
                        "alone, and the seconds of a step have to be timed at two numbers: pass "
                        "step_seconds=, which maps two micro-batches to seconds."
                    )
                epoch_timing = timing.time_in_turn(
                    trials, feed, fitting, fewest_steps, progress.add
                )
                evaluation_coefficients = 0.0, 0.0
                if validation_feed := self.split.validation_feed(host):
                    evaluation_coefficients, epoch_values["evaluated"] = self._measure_evaluation(
                        trials, feed, validation_feed, [*fitting]
                    )
            update_seconds, smallest, calls = 0.0, sizes[0], TIMED_CALLS
            if is_accumulating:
                with self._open_timed_trials(calls * smallest, calls) as trials:
                    call_seconds = timing.micro_batch_seconds_in_update(
                        trials, feed, smallest, progress.add
                    )
                step_seconds = dict(
                    epoch_timing.step_seconds_without_input or epoch_timing.step_seconds
                )[smallest]
                update_seconds = min(
                    max(0.0, (step_seconds - call_seconds) * calls / (calls - 1)),
                    0.5 * step_seconds,
                )
        return {
            "seconds": [*epoch_timing.step_seconds.items()], "update": update_seconds,
            "how": timing_note, "idle": [*epoch_timing.step_seconds_without_input.items()],
            "evaluation": evaluation_coefficients,
            "epoch": {
                "start": epoch_timing.start_seconds, "compiled": epoch_timing.compile_seconds,
                **epoch_values,
            },
        }  # fmt: skip

    def _measure_evaluation(self, trials, feed, validation_feed, sizes):
        """Times an evaluation at the smallest and the largest micro-batch.

        Args:
            trials: The `Trials`, with which epochs of `fit` are timed.
            feed: Makes the training data of `fit`.
            validation_feed: Makes the validation data of `fit`.
            sizes: The micro-batches that fit in memory, in ascending order.

        Returns:
            The pair (a, b), such that an evaluation takes a + b/size seconds, and the seconds to
            compile the evaluation.
        """
        end_sizes = sizes[0], sizes[-1]
        (small_seconds, compile_seconds), (large_seconds, _) = (
            timing.time_evaluation(trials, feed, validation_feed, size, self.steps_per_execution)
            for size in end_sizes
        )
        if end_sizes[0] == end_sizes[1]:
            return (small_seconds, 0.0), compile_seconds
        coefficient = max(
            0.0, (small_seconds - large_seconds) / (1 / end_sizes[0] - 1 / end_sizes[1])
        )
        constant = max(0.0, large_seconds - coefficient / end_sizes[1])
        return (constant, coefficient), compile_seconds

    def make_short_runs(self, machine, total_steps):
        """Makes the short runs at the baseline's batch and at the large batch.

        Args:
            machine: The `Machine`, whose step time is used to estimate the time of the runs.
            total_steps: The number of steps of the baseline's run.

        Returns:
            The target loss, and the runs.

        Raises:
            ValueError: if the devices cannot share a micro-batch evenly.
        """
        base_batch, large_batch = self.base_batch, self.large_batch
        first_run_steps = round(SHORT_RUN_SHARE * total_steps)
        run_examples = reach.example_counts(base_batch, first_run_steps)
        expected_ratio, largest_ratio = (
            example_count / (base_batch * total_steps) for example_count in run_examples
        )
        batches = base_batch, large_batch
        example_seconds = sum(machine.step_time.call_seconds(b) / b for b in batches) / 2
        micro_batch = machine.max_micro_batch if can_accumulate(self.optimizer) else large_batch
        _, calls = costs.split_batch(large_batch, 1, micro_batch)
        base_calls = micro_batches(base_batch, micro_batch)
        check_even_split(self.model, base_batch // base_calls)
        check_even_split(self.model, large_batch // calls)
        large_batch = large_batch // calls * calls
        calls_by_batch = {base_batch: (base_calls, BATCH_NORM_BATCHES), large_batch: (calls, 1)}
        expected_examples, most_examples = run_examples
        evaluation_seconds, compile_seconds = self.log.cached(
            ["look", base_batch], lambda: self._evaluation_seconds(*calls_by_batch[base_batch])
        )
        expected_time, longest_time = (
            duration_text(
                example_count * example_seconds
                + run_count * evaluation_count * evaluation_seconds
                + 2 * compile_seconds
            )
            for example_count, (run_count, evaluation_count) in zip(
                run_examples, reach.RUNS_AND_EVALUATIONS, strict=True
            )
        )
        with Progress(self.model, most_examples, self.verbose, expected_examples) as self.progress:
            self.progress.say(
                f"find_batch: short runs at batch {base_batch:,} and {large_batch:,}, on about "
                f"{expected_ratio:.1f} to at most {largest_ratio:.1f} times the examples of the "
                f"baseline, {expected_time} to {longest_time} with evaluation and compilation; "
                f"{self.split.held_out_count:,} are held out"
            )
            self.log.print_resumed(self.progress.say)
            return reach.make_short_runs(
                lambda batch: self._open_trials(batch, *calls_by_batch[batch]),
                self.baseline_rate, base_batch, large_batch, first_run_steps, self.progress.say,
                self.log,
            )  # fmt: skip

    def _evaluation_seconds(self, calls, batch_norm_batches):
        """Returns the seconds of an evaluation during a short run, and those to compile a step.

        Args:
            calls: The number of micro-batches of an update.
            batch_norm_batches: Micro-batches from which the running averages of batch normalization
                are estimated.
        """
        with self._open_trials(self.base_batch, calls, batch_norm_batches) as trials:
            return timing.time_evaluation_within_run(trials)

    @contextlib.contextmanager
    def _open_trials(self, batch, calls=1, batch_norm_batches=1):
        """Yields `Trials`, which train the model at a batch size with a copy of its optimizer.

        Within the context, the `steps_per_execution` of the model is 1.

        Args:
            batch: The number of examples in an update.
            calls: The number of micro-batches of an update. Defaults to 1.
            batch_norm_batches: Micro-batches from which the running averages of batch normalization
                are estimated. Defaults to 1.
        """
        with (
            seams.with_steps_per_execution(self.model, 1),
            Trials(
                self.model, self.split, batch, batch // calls, batch_norm_batches=batch_norm_batches
            ) as trials,
        ):
            self.log.load_or_save_start_values(trials)
            trials.use_optimizer("own", lambda: copy_optimizer(self.optimizer, calls))
            if self.progress:
                trials.on_step = self.progress.add
            yield trials

    @contextlib.contextmanager
    def _open_timed_trials(self, batch, calls=1):
        """Yields `Trials` as `_open_trials` does, but with the user's `steps_per_execution`.

        Args:
            batch: The number of examples in an update.
            calls: The number of micro-batches of an update. Defaults to 1.
        """
        with (
            self._open_trials(batch, calls) as trials,
            seams.with_steps_per_execution(self.model, self.steps_per_execution),
        ):
            yield trials


def _user_curve(noise_scale, base_batch, total_steps):
    """Returns the `StepCurve` from the user's `noise_scale`, or None if `noise_scale` is None.

    Args:
        noise_scale: The noise scale in examples, or pairs (batch, steps to one loss).
        base_batch: The number of examples in the baseline's batch.
        total_steps: The number of steps of the baseline's run.
    """
    if noise_scale is None:
        return None
    is_number = isinstance(noise_scale, str) or getattr(noise_scale, "ndim", None) == 0
    if isinstance(noise_scale, Iterable) and not is_number:
        return steps.curve_from_runs(noise_scale).rescaled_to(base_batch, total_steps)
    return steps.curve_from_noise(
        checks.number("noise_scale", noise_scale, "(0, inf)"), base_batch, total_steps
    )


def _measured_curve(runs, base_batch, total_steps):
    """Returns the `StepCurve` of the whole run, extrapolated from short runs at two batch sizes.

    Args:
        runs: All short runs. The first one has the baseline's batch and rate.
        base_batch: The number of examples in the baseline's batch.
        total_steps: The number of steps of the baseline's run.
    """
    baseline_run = runs[0]
    late_reading, early_reading = (base_batch * baseline_run.steps, _fit_best_runs(runs)), None
    # If the `early_steps` of a run are 0, the run had passed the early loss before its first
    # evaluation, and its steps to that loss are unknown. Its rate may be the fastest one to that
    # loss, so the early loss is then not used at all.
    if baseline_run.early_steps < baseline_run.steps and all(run.early_steps for run in runs):
        at_early_loss = [
            dataclasses.replace(run, steps=run.early_steps, is_given_up=False)
            if run.early_steps < math.inf
            else run
            for run in runs
        ]
        early_reading = base_batch * baseline_run.early_steps, _fit_best_runs(at_early_loss)
    whole_examples = base_batch * total_steps
    curve = growth.extrapolate(base_batch, whole_examples, late_reading, early_reading)
    return curve.rescaled_to(base_batch, total_steps)


def _fit_best_runs(runs):
    """Returns the `StepCurve` that is fitted to the runs at the best rate of each batch.

    If some runs at a batch were given up before the target, only one of the other runs at that
    batch is used: the slowest one. Its steps are the nearest known number to the median of all
    runs, because the runs that were given up would have taken more.
    """
    pairs, given_up_batches = [], []
    for batch, best_runs in reach.best_runs_by_batch(runs).items():
        outcomes = sorted((run.is_given_up, run.steps) for run in best_runs)
        reached = [step_count for is_given_up, step_count in outcomes if not is_given_up]
        given_up_count = len(outcomes) - len(reached)
        pairs += [
            (batch, step_count) for step_count in (reached[-1:] if given_up_count else reached)
        ]
        given_up_batches += given_up_count * [batch]
    return steps.curve_from_runs(pairs, given_up_batches)


def _user_machine(step_seconds):
    """Returns the `Machine` with the user's `step_seconds`, or None if `step_seconds` is None.

    Raises:
        ValueError: if `step_seconds` is no dict of two or more micro-batches.
    """
    if step_seconds is None:
        return None
    if not isinstance(step_seconds, Mapping) or len(step_seconds) < 2:
        raise ValueError(
            "step_seconds must map two micro-batches or more to seconds, such as "
            f"{{32: 0.01, 128: 0.012}}, but it is {step_seconds!r}."
        )
    sizes = [checks.integer("A micro-batch of step_seconds", size) for size in step_seconds]
    return costs.Machine(costs.fit_step_time(sizes, [*step_seconds.values()]), max(sizes))


def _check_device_counts(device_counts):
    """Checks the argument `device_counts` of `find_batch`, and returns it in two parts.

    Args:
        device_counts: A number of devices, several numbers, or a dict from each number to the
            seconds that its network adds to a step.

    Returns:
        A tuple of the numbers of devices, and the dict; None in its place if there is no dict.

    Raises:
        TypeError: for a count or seconds that are no number.
        ValueError: if there is no number of devices, or for a number that is out of range.
    """
    counts = tuple(device_counts) if isinstance(device_counts, Iterable) else (device_counts,)
    if not counts:
        raise ValueError("device_counts must name a number of devices at least, such as (1, 8).")
    for count in counts:
        checks.integer("device_counts", count)
    if not isinstance(device_counts, Mapping):
        return counts, None
    for seconds in device_counts.values():
        checks.number("Seconds of the network in device_counts", seconds, "[0, inf)")
    return counts, dict(device_counts)


def _check_numeric(array):
    """Raises ValueError for an array of strings, because `fit` takes none from a generator."""
    if array.dtype.kind in "OSU":
        raise ValueError(
            "Steps on strings cannot be timed: pass step_seconds=, or data that are numbers, as "
            "data.map(preprocessor) makes them."
        )


def _check_large_batch(large_batch, base_batch, examples, total_steps):
    """Checks that short runs at a large batch can measure the noise scale.

    Args:
        large_batch: The number of examples in the large batch.
        base_batch: The number of examples in the baseline's batch.
        examples: The number of training examples.
        total_steps: The number of steps of the baseline's run.

    Raises:
        ValueError: if the large batch is below twice the baseline's batch, above the number of
            training examples, or so large that a short run would have too few steps.
    """
    largest = min(examples, round(SHORT_RUN_SHARE * total_steps) * base_batch // reach.MIN_STEPS)
    if not 2 * base_batch <= large_batch <= largest:
        raise ValueError(
            f"Short runs at batch {large_batch:,} tell nothing beside {base_batch:,}: "
            f"{2 * base_batch:,} is the least, and {examples:,} examples to train on and a tenth "
            f"of {total_steps:,} steps allow {largest:,} at most. Pass another large_batch_size=, "
            "or noise_scale=."
        )
