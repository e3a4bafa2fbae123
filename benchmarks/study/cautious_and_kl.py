"""Two changes that others report to win: cautious decay, and KL factors in SOAP. Do they here?

    python -m benchmarks.study.cautious_and_kl            # goes on where the log ends
    python -m benchmarks.study.cautious_and_kl --table    # the table, from the log

Cautious decay (arXiv:2510.12402) shrinks an element of a weight only where the step moves it
towards 0 as well. KL factors (arXiv:2509.03378) replace SOAP's L and R by

    L <- b2 L + (1 - b2) g R^-1 g' / columns        R <- b2 R + (1 - b2) g' L^-1 g / rows

Protocol, written before the first run. Tasks, networks, warmup, decay of the rate and clipping are
those of docs/protocol_ladder.md, at batch 256 with 2,048 updates. An arm is an optimizer, as it is
or changed. On seed 0, by validation loss, each arm searches five rates on a grid of 2 with a weight
decay of 0.1; then, of AdamW, LAMB and Muon, the decays 0.02 and 0.5 at the best rate. Seeds 1 to 6
are then scored by test loss. Both arms decay matrices alone, outside of the optimizer and of LAMB's
trust ratio: w <- w - lr decay w. SOAP has a decay of 0.01.

A change gains on a task with an optimizer if its mean test loss is lower and a paired t-test over
the six seeds says so: cautious decay by Holm's method at 5% over its nine comparisons, KL factors
over their three. Cautious decay enters the package if at least two of the three tasks gain by it
with LAMB, or with two of the three optimizers. KL factors enter it if at least two tasks gain by
them. L^-1 is by the eigenvalues diag(QL' L QL), none below 1e-4 of their mean. Before the first
factors are known, and where a factor is 0, g g' and g' g are used.
"""

import collections
import dataclasses
import functools
import math
import os
import time

import numpy as np
from absl import app, flags

from benchmarks.equivalence.report import markdown
from benchmarks.equivalence.statistics import holm
from benchmarks.ladder.climb import loss_of
from benchmarks.shared import rate_search
from benchmarks.shared.run_log import commit
from benchmarks.updates_left.protocol import Settings
from benchmarks.updates_left.runs import Runs, make_all, note_machine, pool_of_cores, runs_of
from tf_lamb.core.rules.soap import RULE, products
from tf_lamb.core.stacks import transposed

FLAGS = flags.FLAGS

PROTOCOL = "cautious and KL, 1"
TASKS = ("letters", "pictures", "flights")
BATCH, UPDATES, WARMUP = 256, 2048, 0.05
START_RATES = {"AdamW": 0.008, "LAMB": 0.02, "Muon": 0.02, "SOAP": 0.008}  # at batch 256
POINTS, SEARCH_SEED, SEEDS = 5, 0, (1, 2, 3, 4, 5, 6)
DECAY, OTHER_DECAYS, SOAP_DECAY = 0.1, (0.02, 0.5), 0.01
LEAST_EIGENVALUE = 1e-4  # of the mean of a factor's eigenvalues
# Name of a change -> the optimizers that are trained with it and without it.
CHANGES = {"cautious decay": ("AdamW", "LAMB", "Muon"), "KL factors": ("SOAP",)}


@dataclasses.dataclass(frozen=True)
class Run:
    """Holds what the log knows a run by.

    Attributes:
        task, optimizer: Their names.
        change: A name in `CHANGES`, or "" for the optimizer as it is.
        learning_rate, weight_decay: What is tuned.
        seed: Of the weights and of the examples.
    """

    task: str
    optimizer: str
    change: str
    learning_rate: float
    weight_decay: float
    seed: int

    @property
    def line(self) -> dict:
        """What its line in the log begins with."""
        return {"protocol": PROTOCOL, **dataclasses.asdict(self)}

    @property
    def examples(self) -> int:
        """How many examples it sees, with those that come again."""
        return BATCH * UPDATES

    @property
    def settings(self) -> Settings:
        """What the loop reads; the optimizer itself has no decay, see `program_class`."""
        beta_2 = 0.95 if self.optimizer == "SOAP" else 0.999
        return Settings(self.learning_rate, WARMUP, 0.0, beta_2)


# -- the two changes -------------------------------------------------------------------------------


def kl_squares(xp, g, *state, sides):
    """Computes g R^-1 g' / columns and g' L^-1 g / rows, or plain g g' and g' g if a factor is 0.

    Args:
        xp: An array namespace such as NumPy.
        g: The gradient of a matrix, or of each matrix of a stack.
        *state: The factors L and R, then their bases QL and QR.
        sides: The axes that have a factor, 0 for rows and 1 for columns; both, or it is SOAP's.

    Returns:
        A list of the two products.
    """
    g_transposed = transposed(xp, g)
    if tuple(sides) != (0, 1):
        return [g @ g_transposed if side == 0 else g_transposed @ g for side in sides]
    (left, right), bases = state[:2], state[2:]
    whitened = []
    for x, factor, basis in ((g, right, bases[1]), (g_transposed, left, bases[0])):
        eigenvalues = xp.sum(basis * (factor @ basis), -2, keepdims=True)
        mean = xp.mean(eigenvalues, -1, keepdims=True)
        is_known = mean > 0
        least = xp.where(is_known, LEAST_EIGENVALUE * mean, 1.0)
        inside = (x @ basis) / xp.sqrt(xp.maximum(eigenvalues, least) * factor.shape[-1])
        product = inside @ transposed(xp, inside)
        whitened.append(xp.where(is_known, product, x @ transposed(xp, x)))
    return whitened


def kl_rule():
    """Returns SOAP's rule with KL factors: its step, in which only the two products differ."""

    @functools.wraps(RULE.step)
    def step(xp, g, w, m, v, *state, **settings):
        steps, sent = RULE.step(xp, g, w, m, v, *state, **settings), None
        pairs = state[:-2]
        while True:
            try:
                function, arrays, of_function = steps.send(sent)
            except StopIteration as stop:
                return stop.value
            sent = yield function, arrays, of_function
            if function is products:
                squares = yield (
                    kl_squares, (g, *pairs[::2], *pairs[1::2]), {"sides": of_function["sides"]},
                )  # fmt: skip
                sent = [*sent[:2], *squares]

    return dataclasses.replace(RULE, step=step)


def optimizer_of(run: Run):
    """Makes the optimizer of an arm, without weight decay, which `program_class` adds."""
    from benchmarks.updates_left import training
    from tf_lamb import keras as tf_lamb

    if run.change != "KL factors":
        return training.optimizer(run.optimizer, run.settings)

    class KLSOAP(tf_lamb.SOAP):
        rule = kl_rule()

    return KLSOAP(1.0, beta_2=run.settings.beta_2, weight_decay=0.0, global_clipnorm=1.0)


def program_class():
    """Returns the compiled network with an optimizer, to which it adds a decay of matrices."""
    import jax.numpy as jnp

    from benchmarks.ladder import training

    class Program(training.Program):
        """Compiles the steps of an arm; the decay of a run is part of its state."""

        is_cautious = False
        weight_decay = 0.0

        def _start(self, seed):
            *state, slots = super()._start(seed)
            return *state, [*slots, jnp.float32(self.weight_decay)]

        def _advance(self, batch, state, arrays, key, done, count, rates):
            optimizer, decays = self.optimizer, self._decayed

            class Decaying:
                """Stands for the optimizer: its step, and then the decay."""

                @staticmethod
                def stateless_apply(slots, gradients, weights):
                    *slots, decay = slots
                    new, slots = optimizer.stateless_apply(slots, gradients, weights)
                    lr = slots[self.rate]
                    new = [decays(*pair, lr * decay) for pair in zip(new, weights, strict=True)]
                    return new, [*slots, decay]

            self.optimizer = Decaying
            try:
                return super()._advance(batch, state, arrays, key, done, count, rates)
            finally:
                self.optimizer = optimizer

        def _decayed(self, new, old, share):
            if new.ndim < 2:
                return new
            shrinks = (new - old) * old < 0 if self.is_cautious else 1.0
            return new - share * shrinks * old

    return Program


_programs: dict[tuple, object] = {}  # of each arm


def result_of(run: Run) -> dict:
    """Makes a run; returns what its line in the log ends with."""
    import jax

    from benchmarks.updates_left import tasks, training
    from tf_lamb.core import schedules

    arm = run.task, run.optimizer, run.change
    if arm not in _programs:
        _programs[arm] = program_class()(tasks.task(run.task), optimizer_of(run))
    program = _programs[arm]
    program.is_cautious = run.change == "cautious decay"
    program.weight_decay = run.weight_decay
    rates = training.as_tuned(run, BATCH).schedule(schedules).value(np, np.arange(UPDATES))
    key = jax.random.key(run.seed)
    state, seconds = program.steps(program._start(run.seed), key, BATCH, 0, rates)
    task = program.task
    losses = {"validation": task.validation, "test": task.test}
    losses = {name: program._loss(state, part) for name, part in losses.items()}
    return losses | {"seconds": round(seconds, 2)}


# -- which runs ------------------------------------------------------------------------------------


class ArmRuns(Runs):
    """The lines of the log, and the runs that it lacks."""

    protocol = PROTOCOL

    @staticmethod
    def key(line):
        """Returns what tells one run from another, of its line."""
        return tuple(line[field.name] for field in dataclasses.fields(Run))

    result_of = staticmethod(result_of)


def tuned(make, task, optimizer, change) -> Run:
    """Searches rate and decay of an arm; returns the best run of the search."""

    def run_at(power, decay):
        rate = START_RATES[optimizer] * 2.0**power
        return Run(task, optimizer, change, float(f"{rate:.4g}"), decay, SEARCH_SEED)

    def loss_with(run):
        return loss_of(make(run)["validation"])

    decay = SOAP_DECAY if optimizer == "SOAP" else DECAY
    power, loss = rate_search.best_of(lambda power: loss_with(run_at(power, decay)), POINTS)
    losses = {run_at(power, decay): loss}
    for other in OTHER_DECAYS if optimizer != "SOAP" else ():
        run = run_at(power, other)
        losses[run] = loss_with(run)
    return min(losses, key=losses.__getitem__)


def one(path, until, task, optimizer, change) -> str:
    """Makes the runs of an arm that the log lacks; returns how that ended."""
    runs = ArmRuns(path, until)
    try:
        best = tuned(runs.make, task, optimizer, change)
        for seed in SEEDS:
            runs.make(dataclasses.replace(best, seed=seed))
    except TimeoutError:
        return "the hours were over"
    return "done"


def arms():
    """Returns (task, optimizer, change) of each arm, the plain one before the changed one."""
    return [
        (task, optimizer, arm)
        for change, optimizers in CHANGES.items()
        for task in TASKS
        for optimizer in optimizers
        for arm in ("", change)
    ]


# -- what they say ---------------------------------------------------------------------------------


def comparisons(lines):
    """Compares each changed arm with the plain one, over the seeds of both.

    Returns:
        (change, task, optimizer) -> the change of the mean test loss as a share, p of the paired
        t-test, and whether the task gains, for all arms that the log has whole.
    """
    from scipy import stats

    scored = collections.defaultdict(dict)
    for line in lines:
        if line["seed"] in SEEDS:
            arm = line["task"], line["optimizer"], line["change"]
            scored[arm][line["seed"]] = loss_of(line["test"])
    found = {}
    for change, optimizers in CHANGES.items():
        compared = {}
        for task in TASKS:
            for optimizer in optimizers:
                plain, changed = (scored[task, optimizer, arm] for arm in ("", change))
                if len(plain) == len(changed) == len(SEEDS):
                    pairs = np.array([[plain[seed], changed[seed]] for seed in SEEDS])
                    means = pairs.mean(0)
                    p = stats.ttest_rel(pairs[:, 1], pairs[:, 0]).pvalue
                    key = change, task, optimizer
                    compared[key] = means[1] / means[0] - 1, 1.0 if math.isnan(p) else p
        decided = holm([p for _, p in compared.values()])
        found |= {
            key: (excess, p, bool(is_decided and excess < 0))
            for (key, (excess, p)), is_decided in zip(compared.items(), decided, strict=True)
        }
    return found


def verdict(found, change) -> bool | None:
    """Says whether a change enters the package, by the rule of the protocol; None if runs lack."""
    gains = {key[1:]: has_gained for key, (*_, has_gained) in found.items() if key[0] == change}
    if len(gains) < len(TASKS) * len(CHANGES[change]):
        return None
    winners = {
        optimizer
        for optimizer in CHANGES[change]
        if sum(gains[task, optimizer] for task in TASKS) >= 2
    }
    return bool(winners & {"LAMB", "SOAP"}) or len(winners) >= 2


def table(lines) -> str:
    """Returns a row of each task and optimizer, and the verdict of each change."""
    found = comparisons(lines)
    rows = [
        [change, task, optimizer, f"{100 * excess:+.2f}%", f"{p:.3f}", "yes" if gains else "no"]
        for (change, task, optimizer), (excess, p, gains) in found.items()
    ]
    outcomes = {True: "it enters the package", False: "it stays out", None: "runs are missing"}
    verdicts = [f"{change}: {outcomes[verdict(found, change)]}" for change in CHANGES]
    head = ["change", "task", "optimizer", "test loss", "p", "gains"]
    return "\n".join([markdown(head, rows), "", *verdicts])


def main(_):
    if FLAGS.table:
        print(table(runs_of(FLAGS.log, PROTOCOL)))
        return
    # The processes of the pool, which import Keras, inherit these.
    os.environ.setdefault("KERAS_BACKEND", "jax")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    until = time.time() + 3600 * FLAGS.hours
    note_machine(FLAGS.log)
    print(f"commit {commit()}")
    with pool_of_cores(FLAGS.processes) as pool:
        make_all(pool, functools.partial(one, FLAGS.log, until), arms())


if __name__ == "__main__":  # another study defines flags of these names, too
    flags.DEFINE_string(
        "log", "benchmarks/logs/cautious_and_kl.jsonl", "Where every run is a line."
    )
    flags.DEFINE_bool("table", False, "Print the table of the log, and run nothing.")
    flags.DEFINE_float("hours", 2.0, "No run begins after these.")
    flags.DEFINE_integer("processes", 2, "Arms at a time.")
    app.run(main)
