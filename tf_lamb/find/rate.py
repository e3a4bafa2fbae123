"""Searches the learning rate, and the best of several optimizers, for a model: `find_rate`."""

import functools
import math
import os
from collections.abc import Sequence
from typing import Any

from tf_lamb.api import frontends
from tf_lamb.api.data import check_paired
from tf_lamb.api.progress import Progress
from tf_lamb.api.variables import is_ours, unwrapped
from tf_lamb.core import checks, rules
from tf_lamb.core.recipes.scaling import fit_steps
from tf_lamb.find import search
from tf_lamb.find.checks import (
    baseline_rate_of,
    can_accumulate,
    check_model,
    check_optimizer,
    copy_optimizer,
    with_loss_scale_of,
)
from tf_lamb.find.data import Examples
from tf_lamb.find.found import Candidate, FoundRate, RateAnswer
from tf_lamb.find.search_log import SearchLog, settings_by_name
from tf_lamb.find.trials import NO_TEST_STEP_HINT, Trials

# For an optimizer class of Keras, the rate at which a search begins unless the model was compiled
# with an optimizer of that class. Each rate is the middle of several rates that were tuned.
KERAS_START_RATES = {"Adam": 0.002, "AdamW": 0.002, "Nadam": 0.002, "Lamb": 0.01, "SGD": 0.05}


def start_rate_of(class_name: str) -> float:
    """Returns the learning rate at which a search begins for the optimizer class of this name."""
    if class_name in rules.ALL:
        return rules.ALL[class_name].start_rate
    return KERAS_START_RATES.get(class_name, 0.01)


def find_rate(
    model: Any, data: Any, batch_size: int, optimizers: Sequence[Any] = (), *, epochs: float,
    examples: int | None = None, validation_data: Any = None,
    baseline_batch_size: int | None = None, baseline_learning_rate: float | None = None,
    warmup: float = 0.05, decay: str = "polynomial", micro_batch_size: int | None = None,
    budget: float = 0.5, seed: int = 0, directory: str | os.PathLike | None = None,
    verbose: bool = True,
) -> FoundRate:  # fmt: skip
    """Searches the learning rate for a model, its data and a batch size.

    The search makes short training runs in two rounds. In the first round it tries each optimizer
    at rates far apart. In the second, with four times the steps, it tries the best optimizers, two
    at most, at rates around their best. Each run is complete in itself, with a warmup and a decay.
    All runs begin with the same weights and read the same data, and are compared by their loss on
    held-out examples. The best rate falls with the number of steps, about as steps^-0.3. So a short
    run of L steps, which tests a rate for the real run of T steps, trains at (T/L)^0.3 times that
    rate.

        rate = middle of the rates whose losses equal the best one within their error

    With `baseline_batch_size=`, the rate that was tuned there is multiplied by the square root of
    the ratio of the batch sizes. The search returns this rate if no other rate is clearly better.

    After the search the model has the weights, optimizer, running averages and seeds that it had
    before, even if the search was interrupted. Short runs begin with the weights that the model
    has, so pass a newly built model. The search does not reset a global random generator of the
    framework, neither for each run nor at its end. Dropout without a seed draws from such a
    generator on torch and in tf_keras.

    Args:
        model: A compiled model. Runs are compared by its loss.
        data: Arrays `(x, y)` or `(x, y, sample_weight)`, or an array x alone; a `tf.data.Dataset`
            of batches, a `PyDataset`, or a list of batches. It is read from its beginning for each
            run.
        batch_size: The number of examples in an update in the real run, for which the rate is
            searched.
        optimizers: Names of classes of this package or of Keras, such as "LAMB", "Muon" or "AdamW",
            in upper or lower case; or optimizers, whose settings are used and whose rate is not. At
            most one of a class. Defaults to (): the model's own.
        epochs: The number of epochs of the real run.
        examples: The number of examples in an epoch, after which a pass over endless data ends.
            Defaults to None: counted, if the data tell how many batches they have.
        validation_data: Held-out examples, in any form that `data` may have. Defaults to None: a
            tenth of `data` is held out, which must then not be shuffled differently in each pass.
        baseline_batch_size: The batch size at which the model's optimizer was tuned. That optimizer
            is then tried as well, and the search begins at its rate times sqrt(batch_size /
            baseline_batch_size). Defaults to None: no baseline.
        baseline_learning_rate: The rate that was tuned at `baseline_batch_size`. Defaults to None:
            the rate of the model's optimizer.
        warmup: The fraction of the real run that is a linear warmup. Short runs have the same
            fraction, but a fifth at least. Defaults to 0.05.
        decay: The schedule after the warmup: "polynomial", which is linear to 0 (the default), or
            "constant".
        micro_batch_size: The number of examples in a micro-batch, if a batch does not fit in
            memory. The gradients of the micro-batches of a batch are accumulated. Defaults to None:
            a batch is not divided.
        budget: The most examples that the search may train on, as a fraction of those of the real
            run. Evaluations are not counted. Defaults to 0.5.
        seed: Seed of the order of the data. Defaults to 0.
        directory: A folder in which every short run is saved. If the search is interrupted, the
            same call continues it from this folder, with the weights that it began with. The result
            is then bit for bit that of an uninterrupted search, if every pass over the data is the
            same and no layer draws from a global random generator. Defaults to None: nothing is
            saved.
        verbose: Whether to print the expected cost, a progress bar, and each short run. Defaults to
            True.

    Returns:
        A `FoundRate`: print it, and pass its `optimizer()` to `compile`.

    Raises:
        TypeError: for data that can be read only once, and for sparse or ragged data.
        ValueError: for a model that is not compiled, for fewer examples than a batch, for a loss
            that is not finite before training or that training does not change, for a budget that
            is too small, or for a `directory` that holds a search of another model, on other data
            or with other arguments.

    Example:

    >>> import numpy as np, keras, tf_lamb.keras
    >>> x = np.random.default_rng(0).normal(size=(2048, 8)).astype("float32")
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer="sgd", loss="mse")
    >>> found = tf_lamb.keras.find_rate(model, (x, x[:, :1]), 64, epochs=20, verbose=False)
    >>> 0.01 < found.learning_rate < 2
    True

    References:
        - Jamieson and Talwalkar, https://arxiv.org/abs/1502.07943: longer runs for the best
          candidates of shorter ones; here with two lengths
        - Bjorck et al., https://arxiv.org/abs/2409.19913: the best rate as a function of the
          length of training
    """
    check_paired("batch_size", batch_size, "find_rate(model, (x, y), batch_size, ...)")
    batch_size = checks.integer("batch_size", batch_size)
    checks.number("epochs", epochs, "(0, inf)")
    warmup = checks.number("warmup", warmup, "[0, 1)")
    checks.number("budget", budget, "(0, inf)")
    seed = checks.integer("seed", seed, minimum=0)
    if decay not in ("polynomial", "constant"):
        raise ValueError(f"decay must be 'polynomial' or 'constant', not {decay!r}.")
    if micro_batch_size is not None:
        micro_batch_size = checks.integer("micro_batch_size", micro_batch_size)
    if baseline_batch_size is not None:
        checks.integer("baseline_batch_size", baseline_batch_size)
    frontend = frontends.of(model)
    check_model(model, batch_size, micro_batch_size)
    split = Examples(data, validation_data, examples, frontend.devices(model))
    if split.training_count < batch_size:
        raise ValueError(
            f"{split.training_count:,} examples to train on are fewer than "
            f"batch_size={batch_size:,}. {split.held_out_count:,} are held out: "
            "pass validation_data= to train on all of data."
        )
    batch_ratio = None if baseline_batch_size is None else batch_size / baseline_batch_size
    calls = batch_size // (micro_batch_size or batch_size)
    candidates = _make_candidates(
        frontend, model, optimizers, batch_ratio, baseline_learning_rate, calls
    )
    total_steps = fit_steps(epochs, split.examples, batch_size // calls) // calls
    with Trials(model, split, batch_size, micro_batch_size, seed) as trials:
        optimizer_count, averaging_updates = len(candidates), trials.averaging_updates
        lengths = _rung_lengths(total_steps, optimizer_count, budget, averaging_updates)
        settings = {
            "batch_size": batch_size, "steps": total_steps, "rungs": lengths, "seed": seed,
            "warmup": warmup, "decay": decay, "micro_batch_size": micro_batch_size,
            "optimizers": [[candidate.name, candidate.start_rate] for candidate in candidates],
            "loss_scale": "LossScale" in type(model.optimizer).__name__,
        }  # fmt: skip
        for candidate in candidates if directory else ():
            settings |= settings_by_name(candidate.make(1.0))
        log = SearchLog(directory, "find_rate", model, split, settings)
        log.load_or_save_start_values(trials)
        most_steps = search.max_steps(lengths, optimizer_count, averaging_updates)
        with Progress(model, most_steps * batch_size, verbose) as progress:
            trials.on_step = progress.add
            progress.say(
                f"find_rate: runs of {lengths[0]:,} and {lengths[1]:,} steps, at most "
                f"{most_steps / total_steps:.2f} times the {total_steps:,} steps of the real run; "
                f"{split.held_out_count:,} examples are held out"
            )
            log.print_resumed(progress.say)
            trials_by_name = _search_rungs(
                _ShortRuns(trials, log, total_steps, warmup, decay, progress.say),
                candidates,
                lengths,
            )
    run_settings = {
        "batch_size": batch_size, "train_steps": total_steps,
        "warmup_steps": round(warmup * total_steps), "epochs": epochs, "examples": split.examples,
        "decay": decay, "schedules": frontend.schedules, "calls": calls, "data": split.data_code,
        "wrapped": functools.partial(with_loss_scale_of, model.optimizer),
    }  # fmt: skip
    return _make_found_rate(candidates, trials_by_name, averaging_updates, split, **run_settings)


def _rung_lengths(total_steps, optimizer_count, budget, averaging_updates):
    """Returns the steps of a short run in each round of the search.

    The runs of the second round are longer.

    Args:
        total_steps: The number of steps of the real run.
        optimizer_count: The number of optimizers to try.
        budget: The most steps of the search, as a fraction of `total_steps`.
        averaging_updates: Updates that each short run makes in addition, to estimate the running
            averages of batch normalization.

    Raises:
        ValueError: if the real run, or a short run within the budget, would have too few steps.
    """
    if total_steps < search.MIN_RUN_STEPS:
        raise ValueError(
            f"A run of {total_steps:,} steps is too short to be searched, "
            f"{search.MIN_RUN_STEPS} are the least: train it in full at half, once and twice the "
            "rate of recipes.transfer."
        )
    lengths = search.rung_lengths(total_steps, optimizer_count, budget, averaging_updates)
    if lengths[0] < search.MIN_RUNG_STEPS:
        raise ValueError(
            f"budget={budget:g} is too small for a run of {total_steps:,} steps: the first runs "
            f"would have {lengths[0]} steps, and {search.MIN_RUNG_STEPS} are the least. Pass "
            f"budget={search.min_budget(total_steps, optimizer_count, averaging_updates)}, or take "
            "recipes.transfer."
        )
    return lengths


class _ShortRuns:
    """Makes short runs, and prints the result of each.

    A run that an interrupted search has saved is read from the log, and not made again.

    Args:
        trials: The `Trials`, which train the model.
        log: The `SearchLog`, which saves the runs.
        total_steps: The number of steps of the real run.
        warmup: The share of the real run that is warmup.
        decay: The schedule after the warmup, "polynomial" or "constant".
        say: A function that prints a line.
    """

    def __init__(self, trials, log, total_steps, warmup, decay, say):
        self.trials, self.log, self.total_steps, self.say = trials, log, total_steps, say
        self.warmup, self.decay = max(warmup, search.MIN_WARMUP_SHARE), decay

    def __call__(self, candidate, rate, steps, order=0) -> search.Trial:
        peak_rate = search.short_run_rate(rate, steps, self.total_steps)
        losses = self.log.cached(
            [candidate.name, rate, steps, order], lambda: self._train(peak_rate, steps, order),
            on_saved=lambda _: self.trials.on_step(steps * self.trials.batch_size),
        )  # fmt: skip
        trial = search.Trial(candidate.name, rate, peak_rate, steps, tuple(losses))
        outcome = f"held-out loss {trial.loss:.4g}" if losses else "lost"
        self.say(f"{candidate.name}, {steps:,} steps at {rate:.3g}: {outcome}")
        return trial

    def _train(self, peak_rate, steps, order):
        """Trains for a short run.

        Args:
            peak_rate: The learning rate after the warmup.
            steps: The number of steps of the run.
            order: The number of the order in which the data are read.

        Returns:
            The losses on blocks of the held-out examples at the end, or () if a loss was not
            finite.
        """
        warmup_steps = max(1, round(self.warmup * steps))
        decay_steps = (
            round(search.COOLDOWN_SHARE * steps)
            if self.decay == "constant"
            else steps - warmup_steps
        )
        self.trials.start_run(order)
        for step in range(steps):
            remaining = (steps - step) / max(1, decay_steps)
            if not math.isfinite(
                self.trials.step(peak_rate * min((step + 1) / warmup_steps, 1.0, remaining))
            ):
                return ()
        return self.trials.evaluate()


def _search_rungs(run, candidates, lengths):
    """Makes the short runs of both rounds of the search.

    Args:
        run: The `_ShortRuns`, a function that makes a short run.
        candidates: A `Candidate` for each optimizer to try.
        lengths: The number of steps of a short run in each round of the search.

    Returns:
        A dict from the name of an optimizer to the pair (its trials in the first round, its trials
        in the second round).

    Raises:
        ValueError: if all short runs end at the same losses.
    """
    first_steps, second_steps = lengths
    trials_by_name: dict[str, tuple[list, list]] = {}
    for candidate in candidates:
        run.trials.use_optimizer(candidate.name, lambda contender=candidate: contender.make(1.0))
        first_rung = _run_rung(
            run, candidate, [], candidate.start_rate, search.COARSE_FACTOR, first_steps,
            search.MAX_FIRST_RUNS,
        )  # fmt: skip
        trials_by_name[candidate.name] = first_rung, []
    final_losses = [
        trial.losses for rungs in trials_by_name.values() for trial in rungs[0] if trial.losses
    ]
    if len(final_losses) > len(set(final_losses)) == 1:
        raise ValueError(
            f"{len(final_losses)} short runs end at the same losses, {NO_TEST_STEP_HINT}"
        )
    plateaus = {
        contender.name: plateau
        for contender in candidates
        if (plateau := search.find_plateau(trials_by_name[contender.name][0]))
    }
    survivors = [contender for contender in candidates if contender.name in plateaus]
    for candidate in sorted(survivors, key=lambda contender: plateaus[contender.name].best.loss)[
        : search.FINALIST_COUNT
    ]:
        run.trials.use_optimizer(candidate.name, lambda contender=candidate: contender.make(1.0))
        first_trials, second_trials = trials_by_name[candidate.name]
        second_trials.extend(
            _run_second_rung(run, candidate, first_trials, plateaus[candidate.name], second_steps)
        )
    return trials_by_name


def _run_second_rung(run, candidate, first_trials, first_plateau, steps):
    """Returns the trials of an optimizer in the second round, the round of longer runs.

    The second round begins at the same rate as the first, unless the best rate of the first round
    was clearly better. The rate of a baseline is always tried. If it is clearly worse than the best
    rate in the second round, it is tried once more, with the data in another order.

    Args:
        run: A function that makes a short run.
        candidate: The `Candidate` of the optimizer.
        first_trials: The trials of the optimizer in the first round.
        first_plateau: The `Plateau` of these trials: the range of rates that were as good as the
            best one.
        steps: The number of steps of a short run in the second round.
    """
    factor = search.second_rung_factor(first_plateau)
    trials, best_rate = [], first_plateau.best.rate
    start_rate = (
        candidate.start_rate
        if search.is_start_kept(first_trials[0], first_plateau.best)
        else best_rate
    )
    if candidate.is_baseline:
        trials.append(run(candidate, candidate.start_rate, steps))
        _run_rung(
            run, candidate, trials, start_rate, factor, steps, search.MAX_SECOND_RUNS - 1, best_rate
        )
        plateau = search.find_plateau(trials)
        if plateau is None or candidate.start_rate not in plateau:
            trials.append(run(candidate, candidate.start_rate, steps, order=1))
    return _run_rung(
        run, candidate, trials, start_rate, factor, steps, search.MAX_SECOND_RUNS, best_rate
    )


def _run_rung(run, candidate, trials, start_rate, factor, steps, most_trials, best_rate=None):
    """Makes the short runs of an optimizer in one of the two rounds of a search.

    `search.next_rate` chooses the rate of each run from the results of the runs before it.

    Args:
        run: A function that makes a short run.
        candidate: The `Candidate` of the optimizer.
        trials: The trials of the optimizer in the round so far. New ones are appended.
        start_rate: The rate to begin with.
        factor: The factor between neighboring rates.
        steps: The number of steps of a short run.
        most_trials: The most trials in the round.
        best_rate: In the second round, the best rate of the first round. Defaults to None, for the
            first round.

    Returns:
        The list `trials`.
    """
    while (
        rate := search.next_rate(trials, start_rate, factor, most_trials, best_rate)
    ) is not None:
        trials.append(run(candidate, rate, steps))
    return trials


def _make_found_rate(
    candidates, trials_by_name, averaging_updates, split, train_steps, **run_settings
) -> FoundRate:
    """Returns the `FoundRate` from the trials of both rounds.

    Args:
        candidates: The optimizers that were tried.
        trials_by_name: A dict from the name of an optimizer to the pair (its trials in the first
            round, its trials in the second round).
        averaging_updates: Updates that each short run made in addition, to estimate the running
            averages of batch normalization.
        split: The training examples and the held-out examples.
        train_steps: The number of steps of the real run.
        **run_settings: Further attributes of the `FoundRate`.

    Raises:
        ValueError: if no run in the second round has a finite loss.
    """
    all_trials = tuple(
        trial for rungs in trials_by_name.values() for rung in rungs for trial in rung
    )
    steps = sum(item.steps + averaging_updates * bool(item.losses) for item in all_trials) + (
        averaging_updates > 0
    )
    first_plateaus, final_plateaus = (
        {
            name: item
            for name, rungs in trials_by_name.items()
            if (item := search.find_plateau(rungs[i]))
        }
        for i in (0, 1)
    )
    if not final_plateaus:
        way_out = "look at the data and the weights, or pass optimizers of smaller rates"
        raise ValueError(
            "Every short run was lost, as no rate that was tried keeps the loss finite: "
            f"{split.not_finite_message() or way_out}."
        )
    winner, why_winner = search.choose_optimizer(
        {name: item.best for name, item in final_plateaus.items()}
    )
    baseline_rates = {item.name: item.start_rate for item in candidates if item.is_baseline}
    answers = {}
    for name, final in final_plateaus.items():
        rate, why = search.decide_rate(first_plateaus[name], final, baseline_rates.get(name))
        bounds = [*search.rate_interval(first_plateaus[name], final), *([rate] if rate else [])]
        answers[name] = RateAnswer(rate, why, (min(bounds), max(bounds)), final.best.loss)
    return FoundRate(
        optimizer_name=winner, why_optimizer=why_winner, answers=answers, train_steps=train_steps,
        trials=all_trials, cost=steps / train_steps, candidates=tuple(candidates), **run_settings,
    )  # fmt: skip


def _make_candidates(frontend, model, optimizers, batch_ratio, user_rate, calls):
    """Returns a `Candidate` for each optimizer to try.

    These are the optimizers that the user passed, or the model's own if none was passed. If there
    is a baseline, the model's own is added.

    Args:
        frontend: The `Frontend` of the model's Keras.
        model: The compiled model.
        optimizers: The `optimizers` that the user passed to `find_rate`.
        batch_ratio: The batch size, divided by that of the baseline; None without a baseline.
        user_rate: The user's `baseline_learning_rate`, or None.
        calls: The number of micro-batches of an update.

    Raises:
        TypeError: for anything that is no optimizer.
        ValueError: if the optimizers have an unknown name, two of them have the same class, one
            cannot be searched or cannot accumulate gradients, or `user_rate` is given and the
            model's own optimizer is not tried.
    """
    model_optimizer = unwrapped(model.optimizer)
    is_single = isinstance(optimizers, str) or hasattr(optimizers, "get_config")
    optimizers = [optimizers] if is_single else optimizers or (model_optimizer,)
    # Each optimizer, under a key by which duplicates are dropped: its class if the user passed the
    # name of a class, else the optimizer itself.
    selected: dict[Any, Any] = {}
    for choice in optimizers:
        if isinstance(choice, str):
            optimizer = _optimizer_by_name(frontend, model_optimizer, choice)
            selected.setdefault(
                model_optimizer if optimizer is model_optimizer else type(optimizer), optimizer
            )
        else:
            check_optimizer(choice)
            selected.setdefault(unwrapped(choice), unwrapped(choice))
    if batch_ratio is not None:
        selected.setdefault(model_optimizer, model_optimizer)
    scaled_rate = 0.0
    if model_optimizer in selected:
        scaled_rate = baseline_rate_of(model_optimizer, user_rate) * math.sqrt(batch_ratio or 1)
    elif user_rate is not None:
        raise ValueError(
            f"baseline_learning_rate={user_rate} is of the model's "
            f"{type(model_optimizer).__name__}, which is not tried: pass baseline_batch_size=, "
            "too, or leave it out."
        )
    candidates: dict[str, Candidate] = {}
    for optimizer in selected.values():
        name = type(optimizer).__name__
        if name in candidates:
            raise ValueError(
                f"{name} would be tried with two settings, and a search tells optimizers apart by "
                "their names: search with one of them at a time. The model's own is tried, too, "
                "where baseline_batch_size is given."
            )
        if calls > 1 and not can_accumulate(optimizer):
            raise ValueError(
                f"micro_batch_size asks for {calls} micro-batches an update, and {name} of "
                f"{frontend.host.__name__} does not accumulate gradients: take an optimizer of "
                "tf_lamb, or leave it out."
            )
        # Learning rate schedules count micro-batches in optimizers of Keras, and updates in those
        # of this package.
        schedule_steps = 1 if is_ours(optimizer) else calls
        start_rate = scaled_rate if optimizer is model_optimizer else start_rate_of(name)
        is_baseline = optimizer is model_optimizer and batch_ratio is not None
        candidates[name] = Candidate(
            name,
            functools.partial(copy_optimizer, optimizer, calls),
            start_rate,
            is_baseline,
            schedule_steps,
        )
    return list(candidates.values())


def _optimizer_by_name(frontend, model_optimizer, name):
    """Returns the model's optimizer if its class has this name, else a new one of that class.

    If no class has exactly this name, the case of letters is ignored.

    Args:
        frontend: The `Frontend` of the model's Keras.
        model_optimizer: The model's optimizer.
        name: The name of an optimizer class.

    Raises:
        ValueError: if there is no such class, or if it needs arguments.
    """
    host = frontend.host
    members = [*vars(frontend.optimizers).items(), *vars(host.optimizers).items()]
    classes = [(class_name, member) for class_name, member in members if isinstance(member, type)]
    makers: list[tuple[str, Any]] = [
        (type(model_optimizer).__name__, lambda: model_optimizer),
        *classes,
    ]
    try:
        return next(
            make
            for normalize_case in (str, str.lower)
            for class_name, make in makers
            if normalize_case(class_name) == normalize_case(name)
        )()
    except (StopIteration, TypeError):
        raise ValueError(
            f"optimizers names {name!r}, which is neither of tf_lamb nor of "
            f"{host.__name__}.optimizers, or needs arguments: take its class's name, such as "
            "'LAMB', 'Muon' or 'AdamW', or pass an optimizer."
        ) from None
