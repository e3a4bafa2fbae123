"""Loss over the batch, and seconds over the batch: benchmarks/logs/language_model.png.

python -m benchmarks.language_model.picture
"""

from absl import app, flags

from benchmarks.language_model.protocol import FROZEN
from benchmarks.language_model.report import Found
from benchmarks.shared.run_log import Log

COLORS = {"adamw": "C0", "muon": "C1", "lamb": "C2"}


def draw(found: Found):
    """The figure."""
    from matplotlib import figure

    drawn = figure.Figure(figsize=(9, 3.4), layout="constrained")
    left, right = drawn.subplots(1, 2)
    for name in ("adamw", "muon"):
        batches = [FROZEN["base"], FROZEN["large"], *FROZEN["beyond"]]
        arms = [f"tuned {name}", *[f"transfer {name}"] * 3]
        for i in range(FROZEN["seeds"]):
            each = zip(arms, batches, strict=True)
            losses = [list(found.scores(*own).values())[i] for own in each]
            label = f"{name}, by transfer" if i == 0 else None
            left.plot(batches, losses, "o-", ms=3, lw=0.8, color=COLORS[name], label=label)
    grown = list(found.scores("growing adamw", FROZEN["large"]).values())
    left.plot([FROZEN["large"]] * len(grown), grown, "k^", ms=4, label="adamw, growing to 2,048")
    for name, color in COLORS.items():
        batches = sorted(batch for of, batch in found.steps if of == name)
        each = [1e6 * found.steps[name, b]["seconds_a_step"] / b for b in batches]
        right.plot(batches, each, "o-", ms=3, lw=0.8, color=color, label=name)
    left.set(ylabel="test loss, nats")
    right.set(yscale="log", ylabel="microseconds an example", ylim=(20, 200))
    right.set_yticks([20, 50, 100, 200], [20, 50, 100, 200])
    right.minorticks_off()
    for axes, ticks in ((left, (256, 2048, 8192, 32768)), (right, (16, 64, 256, 2048, 32768))):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_xlabel("batch")
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    return drawn


def main(_):
    """Draws it."""
    found = Found(Log(flags.FLAGS.log).lines)
    draw(found).savefig("benchmarks/logs/language_model.png", dpi=110)


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/language_model.jsonl", "Where a run is a line.")
    app.run(main)
