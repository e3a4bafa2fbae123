"""The line of progress of a run."""

import io
import shutil
import time

from tf_lamb.model_garden.running.console import Console


class Progress:
    """The line of progress: an Orbit action, which is called after each loop of steps.

    On a terminal one line moves. Elsewhere there are ten of it, as there are of evaluations
    anywhere: one when another tenth of the steps is over, or as the console's `parts` say.

    Args:
        console: where it is shown.
        step: what tells the present step.
        total: steps of the run; None where it only evaluates.
        batch_size: examples of one update.
    """

    def __init__(self, console: Console, step, total: int | None, batch_size: int):
        self._console, self._step, self._total = console, step, total
        self._batch_size, self._parts, self._begun = batch_size, {}, None

    def begin(self) -> None:
        """Shows the line before the first step, which takes long: it is compiled."""
        import tqdm

        self._at = self._console.step = self._step()
        self._is_terminal = self._console.stream.isatty()
        self._first = self._part()
        # What a narrow terminal cuts off comes last.
        gauge = " |{bar:12}| " if self._is_terminal else ", "
        self._console.bar = tqdm.tqdm(
            total=self._total, initial=self._at, mininterval=0, miniters=1,
            file=self._console.stream if self._is_terminal else io.StringIO(),
            ncols=shutil.get_terminal_size().columns if self._is_terminal else None,
            desc="compiling the first step",
            bar_format=f"step {{n_fmt}}/{{total_fmt}}{gauge}{{remaining}} left, {{desc}}",
        )  # fmt: skip

    def __call__(self, output):
        """Moves on to the present step."""
        step, now, bar = self._step(), time.perf_counter(), self._console.bar
        rate = output.get("scaled_learning_rate", output.get("learning_rate"))
        told = [
            f"{name} {float(value):.4g}"
            for name, value in (("loss", output.get("training_loss")), ("learning rate", rate))
            if value is not None
        ]
        if self._begun is not None:  # the first loop compiles
            speed = (step - self._at) * self._batch_size / (now - self._begun)
            told.append(f"{speed:,.0f} examples/s")
        bar.set_description_str(", ".join(told), refresh=False)
        bar.update(step - bar.n)
        self._at, self._begun, self._console.step = step, now, step
        if not self._is_terminal and self._is_due("loop"):
            self._console.say(str(bar))

    def evaluated(self, output):
        """Shows what an evaluation came to: an Orbit action, too."""
        # What was made up for, before any step, is always shown.
        if self._begun is None or self._is_due("evaluation"):
            told = ", ".join(
                f"{name} {float(value):.4g}"
                for name, value in output.items()
                if not isinstance(value, dict) and not len(getattr(value, "shape", ()))
            )
            self._console.say(f"Evaluated at step {self._step():,}: {told}")
        if self._begun is not None:
            self._begun = time.perf_counter()

    def _is_due(self, what):
        before, self._parts[what] = self._parts.get(what, self._first), self._part()
        return self._parts[what] > before

    def _part(self):
        return self._console.parts * self._step() // self._total
