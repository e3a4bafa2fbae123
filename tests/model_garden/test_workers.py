"""Several workers train one model only where all of them were told the same."""

import functools
import json
import threading
import time
import types

import pytest
import yaml

pytest.importorskip("official")

import tensorflow as tf
from support import clusters, commands, garden_runs, slow_chief
from support.garden import EXPERIMENT, build, tiny

from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.folders import checkpoints, model_dirs
from tf_lamb.model_garden.running import workers


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


class Store:
    """The coordination service's store, of workers that are threads of this process."""

    def __init__(self, count):
        self._values, self._set = {}, threading.Condition()
        self._barrier = threading.Barrier(count)

    def set_config_key_value(self, key, value):
        with self._set:
            self._values[key] = value
            self._set.notify_all()

    def get_config_key_value(self, key, milliseconds):
        with self._set:
            if not self._set.wait_for(lambda: key in self._values, milliseconds / 1000):
                raise tf.errors.DeadlineExceededError(None, None, "too late")
            return self._values[key]

    def wait_at_barrier(self, _, milliseconds):
        try:
            self._barrier.wait(milliseconds / 1000)
        except threading.BrokenBarrierError:
            raise tf.errors.DeadlineExceededError(None, None, "too late") from None


class StoreOfAChiefThatHasEnded(Store):
    """The same store, where the chief ends before this worker hears that all were there."""

    def __init__(self, **values):
        super().__init__(1)
        self._values.update(values)

    def wait_at_barrier(self, _, milliseconds):
        raise tf.errors.UnavailableError(None, None, "Socket closed")


def folder_at(folder, step):
    checkpoint = tf.train.Checkpoint(global_step=tf.Variable(step, dtype=tf.int64))
    tf.train.CheckpointManager(checkpoint, str(folder), 1).save(checkpoint_number=step)


@pytest.fixture
def two(monkeypatch):
    """Runs the end of both workers, with what the chief does before it; what each returns."""
    store = Store(2)
    monkeypatch.setattr(workers, "context", types.SimpleNamespace(context=lambda: store))

    def run(folder, seen_by_the_other, chief=lambda: None):
        def end(is_chief):
            if is_chief:
                chief()
            try:
                workers.wait_for_chief(is_chief, str(folder if is_chief else seen_by_the_other))
                return checkpoints.steps_done(str(seen_by_the_other))
            except UserError as error:
                return str(error)

        found = {}
        threads = [
            threading.Thread(
                target=lambda is_chief=is_chief: found.update({is_chief: end(is_chief)})
            )
            for is_chief in (False, True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return found

    return run


def test_a_worker_ends_when_it_sees_what_the_chief_has_left(tmp_path, two):
    """Which may take the chief longer than the others, whose own checkpoints nobody reads."""
    folder_at(tmp_path, 5)
    found = two(tmp_path, tmp_path, lambda: (time.sleep(0.3), folder_at(tmp_path, 10)))
    assert found == {True: 10, False: 10}


def test_a_chief_that_ends_first_takes_nothing_from_a_worker(tmp_path, monkeypatch):
    folder_at(tmp_path, 10)
    state = json.dumps(workers._visible_state(str(tmp_path)))
    store = StoreOfAChiefThatHasEnded(**{workers._LEFT: state})
    monkeypatch.setattr(workers, "context", types.SimpleNamespace(context=lambda: store))
    workers.wait_for_chief(is_chief=False, model_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("difference", "error", "message"),
    [
        ("--seed is 1 in worker 0, 2 in worker 1", UserError, "--seed is 1 in worker 0, 2 in wor"),
        ("", tf.errors.UnavailableError, "Socket closed"),
    ],
    ids=["settings differ", "the chief is lost"],
)
def test_a_chief_that_ends_at_the_start_is_lost_unless_settings_differ(
    difference, error, message, monkeypatch
):
    store = StoreOfAChiefThatHasEnded(**{workers._SETTINGS: json.dumps(difference)})
    monkeypatch.setattr(workers, "context", types.SimpleNamespace(context=lambda: store))
    with pytest.raises(error, match=message):
        workers.check_same_settings(["worker 0", "worker 1"], "worker 1", {})


def test_a_worker_waits_for_its_view_of_the_folder(tmp_path, two):
    """As of NFS, which shows it later."""
    folder, view = tmp_path / "folder", tmp_path / "view"
    folder_at(folder, 10)
    later = threading.Timer(0.4, folder_at, (view, 10))
    later.start()
    assert two(folder, view) == {True: 10, False: 10}


def test_a_folder_that_a_worker_does_not_see_is_named(tmp_path, two, monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 0.5)
    folder_at(tmp_path / "folder", 10)
    said = two(tmp_path / "folder", tmp_path / "other")[False]
    assert f"--model_dir={tmp_path / 'other'}: the chief has left ckpt-10 there, and this" in said
    assert "\n" not in said


def test_a_folder_that_lacks_only_the_evaluation_says_so(tmp_path, two, monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 0.5)
    for folder in ("folder", "other"):
        folder_at(tmp_path / folder, 5)
    (tmp_path / "folder" / model_dirs.EVALUATED_FILE).write_text('{"step": 5}')
    said = two(tmp_path / "folder", tmp_path / "other")[False]
    words = "has left the evaluation of step 5 there, and this worker sees no evaluation after"
    assert words in said and "ckpt" not in said


def test_a_folder_in_which_the_chief_left_nothing_says_so(tmp_path, two, monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 0.5)
    folder_at(tmp_path / "other", 5)
    said = two(tmp_path / "folder", tmp_path / "other")[False]
    assert "has left no checkpoint there, and this worker sees ckpt-5 after" in said


@pytest.mark.parametrize(("worker", "seconds"), [("worker 0", 300), ("worker 1", 600)])
def test_a_worker_says_how_long_it_has_waited_at_the_start(monkeypatch, worker, seconds):
    now = [0.0]

    class StoreOfSilence(Store):
        """One in which the others never say anything, and no time passes but by waiting."""

        def get_config_key_value(self, key, milliseconds):
            if key not in self._values:
                now[0] += milliseconds / 1000
            return super().get_config_key_value(key, 0)

    store = StoreOfSilence(1)
    monkeypatch.setattr(workers, "context", types.SimpleNamespace(context=lambda: store))
    monkeypatch.setattr(workers.time, "monotonic", lambda: now[0])
    with pytest.raises(UserError, match=f"has not said in {seconds} seconds, for which this one"):
        workers.check_same_settings(["worker 0", "worker 1"], worker, {})


def test_two_processes_see_the_same_folder_at_their_end(tmp_path):
    """The chief reaches it seconds after the other."""
    end = functools.partial(slow_chief.at_the_end, str(tmp_path / "model"))
    assert clusters.results(end, clusters.workers(2)) == [10, 10]


@pytest.mark.slow
def test_a_stage_follows_a_chief_that_is_slow_to_write(records, tmp_path):
    """The other worker, whose checkpoint nobody reads, is done with the stage before it."""
    settings = tiny(records, train_steps=4, checkpoint_interval=4, validation_interval=4,
                    validation_steps=1)  # fmt: skip
    settings["runtime"] = {"distribution_strategy": "multi_worker_mirrored"}
    settings["task"]["validation_data"]["drop_remainder"] = True
    rate = settings["trainer"]["optimizer_config"]["learning_rate"]["tf_lamb_polynomial"]
    rate["steps"] = 4
    run = garden_runs.Drawn(EXPERIMENT, settings, stages=2, workers=2, pause=4.0)
    ended = garden_runs.go(run, tmp_path / "model")
    assert ended.code == 0, ended.text[-2000:]
    assert "All 2 stages are trained" in ended.text
    for stage in (1, 2):
        assert checkpoints.steps_done(str(tmp_path / "model" / f"stage_{stage}")) == 4
