"""On a TPU nobody but the TPU says how many replicas a run has."""

import types

import pytest
import yaml

pytest.importorskip("official")

from support.batch_flags import Flags
from support.configs import YAMLS, experiment_of
from support.garden import BATCH, EXPERIMENT, tf_lamb_of, tiny

from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments import parsing
from tf_lamb.model_garden.running import run

PODS = sorted(name for name in YAMLS if name.endswith("_tpu.yaml"))
COUNT = "trainer.optimizer_config.optimizer.tf_lamb.gradient_accumulation_steps"


def test_there_are_ten_files_for_pods():
    assert len(PODS) == 10


@pytest.mark.parametrize("name", PODS)
def test_every_file_of_a_pod_takes_a_batch_a_replica(name):
    """The replicas are given where they are known, as of a topology."""
    flags = Flags(
        experiment_of(YAMLS[name]), config_file=[str(YAMLS[name])], per_replica_batch_size=16
    )
    params, text = parsing.parse(flags)
    batch = params.task.train_data.global_batch_size
    assert f"batch = {batch:,} examples, at most 16 on a replica at once" in text
    params, text = parsing.parse(flags, replicas=8)
    optimizer = params.trainer.optimizer_config.optimizer.get()
    assert optimizer.gradient_accumulation_steps == batch // 8 // 16
    assert f"batch = 16 examples x 8 replica(s) x {batch // 128:,} micro-batch(es)" in text


def experiment(records, tmp_path, **override):
    """The experiment of a TPU as the flags give it, and the flags of its run."""
    settings = tiny(records)
    settings["runtime"] = {"distribution_strategy": "tpu", "tpu": "local"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    flags = Flags(EXPERIMENT, config_file=[str(tmp_path / "run.yaml")], tpu="local",
                  per_replica_batch_size=2, **override)  # fmt: skip
    vars(flags).update(mode="train", model_dir=str(tmp_path / "model"), seed=1, gin_params=[])
    return parsing.parse(flags)[0], flags


@pytest.fixture
def trained(monkeypatch):
    """What Model Garden's main is handed, without a run."""
    found = []
    train = "_have_model_garden_train"
    monkeypatch.setattr(run, train, lambda _, session: found.append(session.params))
    monkeypatch.setattr(run, "_end", lambda *_: None)
    return found


def of_replicas(monkeypatch, count):
    strategy = types.SimpleNamespace(num_replicas_in_sync=count)
    monkeypatch.setattr(run, "_make_strategy", lambda *_: strategy)


@pytest.mark.parametrize(("replicas", "micro_batches"), [(1, 4), (2, 2), (4, 1)])
def test_the_tpus_replicas_make_the_micro_batches(
    records, tmp_path, monkeypatch, trained, capsys, replicas, micro_batches
):
    console = types.SimpleNamespace(keep_in=lambda *_: None, step=None)
    params, flags = experiment(records, tmp_path)
    of_replicas(monkeypatch, replicas)
    run.run(console, params, flags)
    assert tf_lamb_of(trained[-1]).gradient_accumulation_steps == micro_batches
    said = f"x {replicas} replica(s) x {micro_batches} micro-batch(es) = {BATCH}\n"
    assert said in capsys.readouterr().out


def test_a_batch_that_the_tpus_replicas_do_not_divide_is_refused_before_it_writes(
    records, tmp_path, monkeypatch, trained
):
    params, flags = experiment(records, tmp_path)
    of_replicas(monkeypatch, 3)
    with pytest.raises(UserError, match="--per_replica_batch_size=2: .* cannot be dealt out to 3"):
        run.run(None, params, flags)
    assert not trained and not (tmp_path / "model").exists()


def test_micro_batches_of_both_are_refused(records, tmp_path):
    with pytest.raises(UserError, match=f"=2: it stands for {COUNT}, of which .* says 4. Leave"):
        experiment(records, tmp_path, params_override=f"{COUNT}=4")
