"""The page for those who move in: what it shows runs."""

import contextlib
import io
import shutil

import keras
import numpy as np
import pytest
import tf_keras
from goldens import problem
from support.migrating import ADDONS, GARDEN
from support.pages import ROOT, blocks

BLOCKS = blocks(ROOT / "docs" / "moving_in.md", "python")
# What is marked `before` is not ours to run.
AFTER = [block for block in BLOCKS if not block[1].startswith("# before")]


@pytest.mark.parametrize(("heading", "code"), AFTER, ids=[heading for heading, _ in AFTER])
def test_what_the_docs_show_runs(heading, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ADDONS["files"]["checkpoint"].parent, tmp_path / "addons")
    shutil.copy(ADDONS["files"]["hdf5"], tmp_path / "addons.h5")
    shutil.copytree(GARDEN["lars_model"]["files"]["checkpoint"].parent, tmp_path / "garden")
    with contextlib.redirect_stdout(io.StringIO()):
        for host in (keras, tf_keras):
            host.backend.clear_session()
        rng = np.random.default_rng(0)
        ids, targets = rng.integers(0, 7, (8, 4)), rng.normal(size=(8, 2))
        exec(code, {"ids": ids, "targets": targets, "build_model": problem.build_model})


def test_a_port_is_three_lines():
    befores = [(h, code) for h, code in BLOCKS if code.startswith("# before")]
    assert len(befores) == 4
    for heading, before in befores:
        after = next(c for h, c in BLOCKS if h == heading and c.startswith("# after"))
        new = set(after.splitlines()) - set(before.splitlines()) - {"# after"}
        assert len(new) <= 3, new
