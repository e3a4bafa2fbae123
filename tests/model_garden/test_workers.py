"""Several workers train one model only where all of them were told the same."""

import json

import pytest
import yaml

pytest.importorskip("official")

from support import clusters, commands
from support.garden import EXPERIMENT, build, tiny

from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.running import run


def test_workers_that_were_told_different_things_are_refused_before_they_write(records, tmp_path):
    """In every worker, with the settings that differ, by the whole command."""
    settings = tiny(records, steps_per_loop=1, checkpoint_interval=20, validation_interval=20)
    settings["runtime"] = {"distribution_strategy": "multi_worker_mirrored"}
    config, folder = tmp_path / "run.yaml", tmp_path / "model"
    config.write_text(yaml.safe_dump(settings))
    flags = [f"--experiment={EXPERIMENT}", f"--config_file={config}", f"--model_dir={folder}",
             "--mode=train", "--seed=1"]  # fmt: skip
    rate = "trainer.optimizer_config.learning_rate.tf_lamb_polynomial.initial_learning_rate"
    others = [[], [f"--params_override={rate}=0.02,trainer.train_steps=14", "--seed=2"]]
    said = [tmp_path / "first", tmp_path / "second"]
    running = [
        commands.started("tf_lamb.model_garden.train", [*flags, *more], output=path, **own)
        for more, path, own in zip(others, said, clusters.workers(2), strict=True)
    ]
    for process in running:
        process.join(300)
        process.kill()
    assert [process.exitcode for process in running] == [1, 1]
    for path in said:
        begin = "tf_lamb.model_garden.train: the workers of TF_CONFIG were told"
        # TensorFlow's runtime may have a word after it, of a worker that has gone.
        (line,) = (each for each in path.read_text().splitlines() if each.startswith(begin))
        for part in (
            f"{rate} is 0.01 in worker 0, 0.02 in worker 1",
            "trainer.train_steps is 20 in worker 0, 14 in worker 1",
            "--seed is 1 in worker 0, 2 in worker 1",
        ):
            assert part in line
        assert "Traceback" not in path.read_text()
    assert not folder.exists()


def test_what_differs_is_named_once_and_the_rest_is_counted():
    told = {"worker 0": {"a": "1", "b": "2"}, "worker 1": {"a": "1", "b": "2"}}
    assert run._differences(told) == ""
    told["worker 1"] = {"a": "3"}
    told["worker 2"] = {"a": "4", "b": "2", "c": "5"}
    assert run._differences(told) == (
        "a is 1 in worker 0, 3 in worker 1; b is 2 in worker 0, not there in worker 1; "
        "c is not there in worker 0, 5 in worker 2"
    )
    told = {f"worker {i}": {str(name): str(i) for name in range(9)} for i in range(2)}
    assert run._differences(told).endswith("; 4 is 0 in worker 0, 1 in worker 1; 4 more")


@pytest.mark.parametrize("strategy", ["off", "one_device", "mirrored"])
def test_a_cluster_under_a_strategy_of_one_worker_is_refused(
    records, tmp_path, monkeypatch, strategy
):
    params = build(tiny(records))
    params.runtime.distribution_strategy = strategy
    task = {"type": "worker", "index": 0}
    for count in (1, 2):
        cluster = {"worker": [f"host:{i}" for i in range(count)]}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
        if count == 1:
            check_run(params, "train", str(tmp_path / "new"), EXPERIMENT)
    with pytest.raises(UserError, match=f"2 workers, but .*{strategy} trains in each") as error:
        check_run(params, "train", str(tmp_path / "new"), EXPERIMENT)
    assert "\n" not in str(error.value)
    check_run(params, "eval", str(tmp_path / "new"), EXPERIMENT)
