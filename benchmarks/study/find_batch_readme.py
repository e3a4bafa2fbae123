"""What README's example of `find_batch` answers: runs README's own code.

    KERAS_BACKEND=tensorflow python -m benchmarks.study.find_batch_readme

It runs README's first block, and the one with `find_batch`. A line of the log has the machine, the
next one has the whole answer, `str(which)`. The lines that the search prints on its way are not in
it. What the log has is not run again: delete it first, and commit README before.
"""

import contextlib
import io
import os
import pathlib
import re

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from absl import app, flags

from benchmarks.shared.run_log import Log, commit

README = pathlib.Path(__file__).parents[2] / "README.md"


def printed() -> list[str]:
    """Returns the lines of the answer that README's example prints."""
    import keras

    first, *others = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.M)
    (example,) = (block for block in others if "find_batch" in block)
    keras.utils.set_random_seed(0)
    names: dict = {}
    exec(first, names)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(example, names)
    return str(names["which"]).splitlines() if out.getvalue() else []


def main(_):
    log = Log(flags.FLAGS.log)
    line = log.run({"example": "find_batch"}, lambda: {"print": printed(), "commit": commit()})
    print(*line["print"], sep="\n")


if __name__ == "__main__":
    flags.DEFINE_string("log", "benchmarks/logs/find_batch_readme.jsonl", "What was printed.")
    app.run(main)
