"""What Model Garden reads runs no code, and what is malformed is one clear error of ours."""

import functools
import json

import pytest

pytest.importorskip("official")

from support import garden, malformed
from support.malformed import every, refused

from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common import yamls
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments import parsing
from tf_lamb.model_garden.folders import model_dirs
from tf_lamb.model_garden.train_stages import Stage


def prepare(model_dir, experiment=garden.EXPERIMENT, config_file=(), **flags):
    """What `tf_lamb.model_garden.train` does with its flags before it trains."""
    flags = Stage(experiment, list(config_file), str(model_dir), **flags)
    params, _ = parsing.parse(flags)
    check_run(params, "train_and_eval", flags.model_dir, experiment, None)
    model_dirs.write_run(flags.model_dir, experiment, None)


@pytest.fixture
def garden_refuses(tmp_path, records, monkeypatch):
    """Refuses flags, without a trace on the disk; the experiment they change would train."""
    monkeypatch.chdir(tmp_path)
    small = tmp_path / "small.yaml"
    small.write_text(json.dumps(garden.tiny(records)))
    touched = tmp_path / "touched"

    def call(words, text=None, **flags):
        files, model_dir = [str(small)], tmp_path / "model_dir"
        if text is not None:
            path = tmp_path / "given.yaml"
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            files.append(str(path))
        before = set(tmp_path.rglob("*"))
        flags = {"config_file": files, **flags}
        refused(functools.partial(prepare, model_dir, **flags), UserError, words)
        assert not touched.exists() and set(tmp_path.rglob("*")) == before

    call.touched = str(touched)
    return call


def test_the_experiment_is_fine_but_for_what_is_malformed(tmp_path, records):
    small = tmp_path / "small.yaml"
    small.write_text(json.dumps(garden.tiny(records)))
    prepare(tmp_path / "model_dir", config_file=[str(small)])
    assert (tmp_path / "model_dir" / model_dirs.RUN_FILE).exists()


@every(malformed.YAMLS)
def test_a_malformed_yaml(row, garden_refuses):
    text, words = row
    garden_refuses(words, text.replace("TOUCH", garden_refuses.touched))


@every(malformed.FLAGS)
def test_a_malformed_flag(row, garden_refuses, monkeypatch):
    flags, words = dict(row[0]), row[1]
    if cluster := flags.pop("TF_CONFIG", None):
        monkeypatch.setenv("TF_CONFIG", cluster)
        flags["params_override"] = "runtime.distribution_strategy=multi_worker_mirrored"
    if "params_override" in flags:
        override = flags["params_override"].replace("TOUCH", garden_refuses.touched)
        flags["params_override"] = override
    garden_refuses(words, **flags)


def test_yaml_holds_what_model_garden_writes_and_a_merge_is_no_key_twice():
    assert yamls.read("a: 1e-3\nb: !!python/tuple [1, [2]]\nc: &c {d: null}\ne: *c") == {
        "a": 1e-3, "b": (1, [2]), "c": {"d": None}, "e": {"d": None},
    }  # fmt: skip
    text = "a: &a {<<: {k: 1, l: 1}, k: 2}\nb: {<<: *a, k: 3}"
    assert yamls.read(text) == {"a": {"k": 2, "l": 1}, "b": {"k": 3, "l": 1}}
