"""Runs the properties of `tests/api/test_properties.py` on more than 10,000 cases.

    python benchmarks/properties.py | tee benchmarks/logs/properties.log

What a case is, and what it is held to, the test says; here there are only more of them, drawn at
random. A mismatch ends the run with the smallest case that shows it. The largest difference of a
weight is given in units in the last place of its own dtype, and of any number as a share of its
bound; what has neither is compared bit for bit, or as its test says.
"""

import os
import platform
import sys
import time

SCALE, SEED = os.environ.setdefault("PROPERTY_SCALE", "20"), 0
FILE = os.path.join(os.path.dirname(__file__), "..", "tests", "api", "test_properties.py")

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402


def main():
    begun = time.perf_counter()
    quietly = ["-q", "-p", "no:cacheprovider", "-p", "no:warnings"]
    outcome = pytest.main([*quietly, f"--hypothesis-seed={SEED}", FILE])
    import keras
    import tensorflow as tf
    import tf_keras
    from support import property_cases as properties  # by now on the path, from the tests

    print(
        f"\nTensorFlow {tf.__version__}, Keras {keras.__version__}, tf_keras "
        f"{tf_keras.__version__}, NumPy {np.__version__}, hypothesis {hypothesis.__version__}, "
        f"Python {platform.python_version()}, {platform.machine()}; seed {SEED}, {SCALE} times "
        f"the cases of every day; {time.perf_counter() - begun:,.0f} s"
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
