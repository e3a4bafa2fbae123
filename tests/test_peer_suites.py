"""Keras's own tests, from the installed wheel, with our classes in the place of theirs.

`DIFFER` has the cases that fail. Another one that fails is news, and so is one of them that passes,
or fails with other words.
"""

import collections
import fnmatch
import importlib.util
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from support.peer_suites import FILES

TESTS = pathlib.Path(__file__).parent
CLIPS_LATER = (
    "the private _clip_gradients does nothing: replicas and micro-batches are summed first"
)
OWN_WORDS = "the same refusal, in our words"
NO_AMSGRAD = "no rule of ours is AMSGrad"
# (cases, words of the error, why ours differs)
DIFFER = [
    ("*.test_clip_[nv]*", "ACTUAL: array([100., 100.]", CLIPS_LATER),
    ("OptimizerTest.test_global_clip_norm", "ACTUAL: array([ 50., 100.]", CLIPS_LATER),
    ("OptimizerTest.test_clip_args", "At most one of clipnorm, clipvalue,", OWN_WORDS),
    ("SGDTest.test_invalid_momentum", "momentum must be a number in [0, 1)", OWN_WORDS),
    ("SGDTest.test_single_step", "4 != 2",
     "a velocity is kept at momentum 0, too, and skipped steps are counted"),
    ("OptimizerTest.test_*gradient_accumulation", "ACTUAL: array(0",
     "the private _iterations counts updates: Keras's counts micro-steps"),
    ("OptimizerTest.test_set_weights", "ValueError not raised",
     "weights that come before the build wait for it: so HDF5 files load"),
    ("OptimizerSparseTest.test_sparse_gradients_*sgd", "False != True",
     "a sparse gradient becomes dense: norms are of whole layers"),
    ("OptimizerSparseTest.test_sparse_gradients_loss_scale_optimizer_sgd", "on a variable. Use",
     "in a branch of JAX, `assign` is asked on values, which are written after it"),
    ("AdamTest.test_config", "has no argument 'amsgrad'", NO_AMSGRAD),
    ("AdamTest.test_correctness_with_golden", "has no argument 'amsgrad'", NO_AMSGRAD),
    ("OptimizerSparseTest.*_amsgrad", "has no argument 'amsgrad'", NO_AMSGRAD),
]  # fmt: skip


def outcomes(backend, folder):
    """Case that ran -> its error, "" for none; and how many optimizers of ours a file has made."""
    (package,) = importlib.util.find_spec("keras").submodule_search_locations
    report = folder / "report.xml"
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p",
            "support.peer_suites", "--assert=plain", "--noconftest", "-W", "ignore", "-c",
            os.devnull, f"--rootdir={pathlib.Path(package).parent}", f"--junitxml={report}",
            "--pyargs", *FILES,
        ],
        cwd=folder,
        # No devices but those that Keras expects.
        env={**os.environ, "KERAS_BACKEND": backend, "XLA_FLAGS": "", "PYTEST_ADDOPTS": "",
             "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[:4000]
    errors, made = {}, collections.Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        file, _, group = case.get("classname").rpartition(".")
        failed = [child for child in case if child.tag in ("failure", "error")]
        errors[f"{group}.{case.get('name')}"] = "\n".join(child.text or "" for child in failed)
        made[file] += sum(int(each.get("value")) for each in case.iter("property"))
    return errors, made


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_keras_tests_differ_where_the_table_says(backend, tmp_path):
    pytest.importorskip(backend)
    errors, made = outcomes(backend, tmp_path)
    assert all(made[file] for file in FILES), f"ours was in no case of some: {made}"
    news = [
        f"{case}\n{error[-600:]}"
        for case, error in errors.items()
        if error and not any(fnmatch.fnmatch(case, row[0]) and row[1] in error for row in DIFFER)
    ]
    assert not news, "\n\n".join(["cases that the table does not have:", *news])
    stale = [
        case
        for case, error in errors.items()
        if not error and any(fnmatch.fnmatch(case, row[0]) for row in DIFFER)
    ]
    unused = [row for row in DIFFER if not fnmatch.filter(errors, row[0])]
    assert not stale and not unused, f"rows that are no more: {stale} {unused}"
