"""Runs the properties of `test_properties.py`, in `core` and `tensorflow`, on over 10,000 cases.

    python -m benchmarks.fuzz.properties [SCALE] | tee benchmarks/logs/properties.log

What a case is, and what it is held to, the tests say; here there are only more of them, SCALE (20)
times as many, drawn at random. A mismatch ends the run with the smallest case that shows it. The
largest difference of a weight is given in units in the last place of its own dtype, and of any
number as a share of its bound; what has neither is compared bit for bit, or as its test says.
"""

import pathlib
import platform
import sys
import time

TESTS = pathlib.Path(__file__).parents[2] / "tests"
FILES = [str(TESTS / room / "test_properties.py") for room in ("core", "tensorflow")]
SEED = 0
sys.path.insert(0, str(TESTS))

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from support import property_cases as properties  # noqa: E402

hypothesis.settings.register_profile(
    "more", hypothesis.settings.get_profile("every day"), derandomize=False
)


def main():
    begun = time.perf_counter()
    properties.SCALE = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    outcome = pytest.main([
        "-q", "-p", "no:cacheprovider", "-p", "no:warnings", "--hypothesis-profile=more",
        f"--hypothesis-seed={SEED}", *FILES,
    ])  # fmt: skip
    import keras
    import tensorflow as tf
    import tf_keras

    print(
        f"\nTensorFlow {tf.__version__}, Keras {keras.__version__}, tf_keras "
        f"{tf_keras.__version__}, NumPy {np.__version__}, hypothesis {hypothesis.__version__}, "
        f"Python {platform.python_version()}, {platform.machine()}; seed {SEED}, "
        f"{properties.SCALE} times the cases of every day; {time.perf_counter() - begun:,.0f} s"
    )
    line = "{:28} {:>7}  {:>15}  {:>15}".format
    print(line("property", "cases", "largest in ulps", "of its bound"))
    for name, count in sorted(properties.COUNTS.items()):
        worst, share = (
            f"{table[name]:.2f}" if name in table else "-"
            for table in (properties.WORST, properties.NEAREST)
        )
        print(line(name, f"{count:,}", worst, share))
    print(line("in all", f"{sum(properties.COUNTS.values()):,}", "", ""))
    print("no mismatch" if outcome == 0 else f"pytest ended with {outcome!r}")
    sys.exit(int(outcome))


if __name__ == "__main__":
    main()
