"""Whole runs of the Model Garden, drawn with a seed, and what their users are promised.

A run is a command with a YAML and flags; it may be interrupted, and go on with the same command.
Promised is: a step of the trainer is an update, the rate is the schedule's, every evaluation that
is due is made of the weights of its step, a run that was killed ends as one that was not, micro-
batches end where whole batches do, nothing hangs.
"""

import dataclasses
import math
import os
import random
import re
import signal
import sys
import time

import numpy as np
import yaml
from support import clusters, commands, processes, slow_chief

from tf_lamb.model_garden.common.yamls import merged
from tf_lamb.model_garden.folders import model_dirs

PATIENCE = 900  # seconds; a run takes ten to thirty, on a busy machine more
BATCH = 8
# Without tf_soap: what gradients do not span has no determined basis, and programs differ there.
OPTIMIZERS = ("tf_lamb", "tf_lans", "tf_lars", "tf_muon", "tf_adamp", "tf_sgdp")
EXPERIMENTS = {"lamb/bert_pretraining": "bert", "lars/resnet_imagenet": "resnet"}


class Broken(AssertionError):
    """What was promised, and what the run did instead."""


@dataclasses.dataclass
class Drawn:
    """A command, and what happens to it."""

    experiment: str
    settings: dict
    flags: list = dataclasses.field(default_factory=list)
    stages: int = 1  # one after another, of the same settings
    mode: str = "train_and_eval"
    batch: int = BATCH  # of the flags, if they say one
    interruption: tuple = ()  # (signal's name, stage, checkpoint's step, seconds after it)
    overflows: bool = False  # float16's first loss scale is too large
    workers: int = 1  # processes that train one model together
    pause: float = 0.0  # seconds that the chief's checkpoints take longer
    lacks: str = ""  # what its type of optimizer lacks of another one's: it is refused

    @property
    def steps(self):
        return self.settings["trainer"]["train_steps"] * BATCH // self.batch

    @property
    def optimizer(self):
        config = self.settings["trainer"]["optimizer_config"]["optimizer"]
        return config[config["type"]]

    @property
    def has_offset(self):
        """Whether the decay has an offset, of which the scaled rate is known behind warmup."""
        rate = self.settings["trainer"]["optimizer_config"]["learning_rate"]
        return "offset" in rate[rate["type"]]

    @property
    def is_rate_known(self):
        is_scaled = bool(self.flags) and not self.has_offset
        return not is_scaled and "adascale" not in self.optimizer

    @property
    def may_end_early(self):
        limit = self.optimizer.get("adascale", {}).get("base_steps", math.inf)
        return limit < 2 * self.settings["trainer"]["train_steps"]

    @property
    def precision(self):
        return self.settings["runtime"].get("mixed_precision_dtype", "float32")

    @property
    def averages(self):
        return self.settings["trainer"]["optimizer_config"]["ema"]

    @property
    def accumulates(self):
        return self.optimizer.get("gradient_accumulation_steps") or 1

    @property
    def is_run_at_once_too(self):
        """Whether it is compared with a run that does not accumulate."""
        is_alone = self.stages == self.workers == 1 and self.is_rate_known
        is_plain = self.precision == "float32" and "measure_noise" not in self.optimizer
        return self.accumulates > 1 and self.is_exact and is_alone and is_plain

    @property
    def is_exact(self):
        """Whether it goes on with the very next batch."""
        return bool(self.settings["task"]["train_data"].get("resume_in_order"))


# -- drawing ------------------------------------------------------------------


def _task(kind, data):
    """The smallest model of a kind."""
    from support import garden

    if kind == "bert":
        task = garden.tiny(data["bert"])["task"]
        task["train_data"] |= {"resume_in_order": True, "shuffle_buffer_size": 100}
        return task
    of_file = {"input_path": data["resnet"], "global_batch_size": BATCH, "seed": 1,
               "aug_crop": False}  # fmt: skip
    backbone = {"type": "resnet", "resnet": {"model_id": 10, "depth_multiplier": 0.125}}
    model = {"num_classes": 10, "input_size": [32, 32, 3], "backbone": backbone}
    return {"model": model, "train_data": of_file, "validation_data": dict(of_file)}


def draw(seed, data):
    """The run of a seed."""
    pick = random.Random(seed)
    experiment = pick.choice(["lamb/bert_pretraining"] * 3 + [*EXPERIMENTS])
    kind = EXPERIMENTS[experiment]
    loop = pick.choice([1, 1, 2, 3])
    steps = loop * pick.randint(2, 12 // loop)
    optimizer = pick.choice(OPTIMIZERS)
    own = {"jit_compile": False, "weight_decay": pick.choice([0.0, 0.01]),
           "exclude_from_weight_decay": ["norm_and_bias"]}  # fmt: skip
    if (accumulated := pick.choice([None, None, 2, 4])) is not None:
        own["gradient_accumulation_steps"] = accumulated
    if pick.random() < 0.2:
        own["dtypes"] = {"slots": "bfloat16"}
    is_measured = pick.random() < 0.15
    runtime = {"distribution_strategy": pick.choice(["off", "one_device"])}
    averages = {"average_decay": 0.5, "start_step": pick.choice([0, 2])}
    averages = averages if pick.random() < 0.3 else None
    if averages:
        runtime["distribution_strategy"] = "one_device"
    if is_measured and accumulated:
        own["measure_noise"] = {"enabled": True}
    precision = pick.choice(["float32", "float32", "bfloat16", "float16"])
    if precision != "float32":
        runtime["mixed_precision_dtype"] = precision
    task = _task(kind, data)
    if experiment == "lamb/bert_pretraining" and precision == "float16":
        task["scale_loss"] = True
    config = {
        "optimizer": {"type": optimizer, optimizer: own},
        "learning_rate": {
            "type": "tf_lamb_polynomial",
            "tf_lamb_polynomial": {
                "initial_learning_rate": 0.01, "end_learning_rate": 0.0, "steps": steps,
                "power": pick.choice([1.0, 2.0]),
            },
        },
        "warmup": {"type": None},
        "ema": averages,
    }  # fmt: skip
    if experiment == "lamb/bert_pretraining" and optimizer != "tf_lamb":
        config["optimizer"]["tf_lamb"] = {"global_clipnorm": None}
    if (warmup := pick.randint(0, steps // 2)) > 0:
        handover = pick.choice(["continuous", "drop"])
        config["warmup"] = {"type": "tf_lamb", "tf_lamb": {"steps": warmup, "handover": handover}}
    trainer = {
        "train_steps": steps, "steps_per_loop": loop, "summary_interval": loop,
        "checkpoint_interval": loop * pick.randint(1, 3),
        "validation_interval": loop * pick.randint(1, 4), "validation_steps": 1,
        "max_to_keep": 3, "optimizer_config": config,
    }  # fmt: skip
    run = Drawn(
        experiment, {"runtime": runtime, "task": task, "trainer": trainer},
        mode=pick.choice(["train_and_eval"] * 3 + ["train"]),
    )  # fmt: skip
    _draw_more(pick, run)
    _draw_trouble(pick, run)
    _draw_offset(pick, run)
    _draw_type(pick, run)
    _draw_workers(pick, run)
    return run


def _draw_more(pick, run):
    """Flags, stages, a rate that is found or scaled."""
    trainer = run.settings["trainer"]
    config = trainer["optimizer_config"]
    if pick.random() < 0.2 and config["optimizer"]["type"] not in ("tf_lans", "tf_muon"):
        steps = trainer["train_steps"]  # a step is worth 1 to 2: the first of these ends it early
        end = pick.choice([steps // 2 + 1, 2 * steps])
        if run.accumulates > 1:  # else there is nothing to measure
            run.optimizer.pop("measure_noise", None)
            config["learning_rate"]["tf_lamb_polynomial"]["steps"] = end
            run.optimizer["adascale"] = {"scale": 2, "base_steps": end}
    what = pick.choice(["", "", "", "batch", "share", "stages"])
    if what == "batch" and run.steps % 2 == 0:
        run.batch = 2 * BATCH
        run.flags = [f"--global_batch_size={run.batch}", "--recipe=sqrt"]
        trainer.update(steps_per_loop=1, summary_interval=1)
    if what == "share":
        run.optimizer.pop("gradient_accumulation_steps", None)
        run.flags = [f"--per_replica_batch_size={pick.choice([2, 4])}"]
    if what == "stages" and run.is_exact:
        run.stages = 2


def _draw_trouble(pick, run):
    """What happens to the run."""
    if pick.random() < 0.5:
        kind = pick.choice(["SIGKILL", "SIGKILL", "SIGINT", "SIGTERM"])
        at = pick.randint(0, run.steps - 1)
        run.interruption = (kind, pick.randint(1, run.stages), at, pick.uniform(0, 0.3))
    run.overflows = pick.random() < 0.5
    if run.precision == "float16":
        run.settings["trainer"]["optimizer_config"]["ema"] = None  # refused, in words of its own


def _draw_offset(pick, run):
    """A decay of Model Garden's with an offset behind our warmup, at twice the batch by LEGW."""
    config = run.settings["trainer"]["optimizer_config"]
    if pick.random() > 0.3 or run.flags or run.stages > 1 or "adascale" in run.optimizer:
        return
    kind, offset = pick.choice(["polynomial", "cosine"]), pick.choice([2, 4])
    warmup = 2  # as long at the other batch, where the decay does not begin before it ends
    rate = {"initial_learning_rate": 0.01, "decay_steps": 12 - warmup - offset, "offset": offset}
    config["learning_rate"] = {"type": kind, kind: rate}
    if kind == "polynomial":
        rate["end_learning_rate"] = 0.0
    own = {"steps": warmup, "handover": "continuous"}
    config["warmup"] = {"type": "tf_lamb", "tf_lamb": own}
    run.settings["trainer"].update(
        train_steps=12, steps_per_loop=1, summary_interval=1, validation_interval=4,
        checkpoint_interval=2,
    )  # fmt: skip
    run.batch = 2 * BATCH
    run.flags = [f"--global_batch_size={run.batch}"]
    if run.interruption:
        kind, stage, at, seconds = run.interruption
        run.interruption = kind, stage, min(at, run.steps - 1), seconds


# What belongs to a type of optimizer: as Model Garden's adamw has it, and as ours have it.
_OF_A_TYPE = {
    "weight_decay": ({"weight_decay_rate": 0.01}, {"weight_decay": 0.01}),
    "exclude_from_weight_decay": (
        {"exclude_from_weight_decay": ["LayerNorm", "bias"]},
        {"exclude_from_weight_decay": ["norm_and_bias"]},
    ),
    "global_clipnorm": ({"gradient_clip_norm": 1.0}, {"global_clipnorm": 1.0}),
}


def _draw_type(pick, run):
    """Settings of an adamw whose place a type of ours has taken; all of them are written, or not.

    They are lost where ours has nothing for them: then the run is refused. Of tf_lamb the
    experiment itself has them, so there a 0 or a null is written, which is an answer.
    """
    if pick.random() > 0.15 or run.experiment != "lamb/bert_pretraining":
        return
    config = run.settings["trainer"]["optimizer_config"]["optimizer"]
    config["tf_lamb"] = {"exclude_from_weight_decay": None, "global_clipnorm": None,
                         "weight_decay": 0.0} | config.get("tf_lamb", {})  # fmt: skip
    config["adamw"] = {"beta_2": 0.98, "gradient_clip_norm": 0.0}
    own = config[config["type"]]
    lacks = []
    for name, (theirs, ours) in _OF_A_TYPE.items():
        config["adamw"] |= theirs
        own.pop(name, None)
        if pick.random() < 0.8:
            own |= ours
        elif config["type"] == "tf_lamb":
            own[name] = 0.0 if name == "weight_decay" else None
        else:
            lacks.append(name)
    *first, last = lacks or [""]
    run.lacks = f"{', '.join(first)} and {last}" if first else last


def _draw_workers(pick, run):
    """Two workers, of which the chief may be slow to write."""
    is_plain = run.precision == "float32" and not run.averages and not run.lacks
    is_plain = is_plain and not {"adascale", "measure_noise"} & run.optimizer.keys()
    if pick.random() > 0.25 or not is_plain or run.experiment != "lamb/bert_pretraining":
        return
    run.workers, run.pause = 2, pick.choice([0.0, 4.0])
    run.settings["runtime"] = {"distribution_strategy": "multi_worker_mirrored"}
    run.settings["task"]["validation_data"]["drop_remainder"] = True
    run.settings["trainer"]["checkpoint_interval"] = run.settings["trainer"]["train_steps"]
    run.interruption = ()
    if not run.flags and pick.random() < 0.7:
        run.stages = 2


def _optimizer(kind, settings):
    return {"trainer": {"optimizer_config": {"optimizer": {kind: settings}}}}


# -- running ------------------------------------------------------------------


def begin(module, flags, overflows, pause=0.0):
    """In the child: the command."""
    if pause:
        slow_chief.begin(pause)
    if overflows:
        from tf_keras.src.mixed_precision import loss_scale_optimizer

        loss_scale_optimizer._DEFAULT_INITIAL_SCALE = 2.0**24
    execute = os.execv

    def execute_likewise(python, arguments):  # the next stage
        again = (module, arguments[3:], overflows, pause)
        code = f"import sys; sys.path[:0] = {sys.path!r}\nfrom support import garden_runs\n"
        execute(python, [python, "-c", f"{code}garden_runs.begin(*{again!r})"])

    os.execv = execute_likewise
    commands._main(module, flags, None)


@dataclasses.dataclass
class Ended:
    """How a command ended."""

    code: int
    text: str


def command(run, folder, settings=None):
    """Module and flags; the YAML is beside the folder."""
    config = folder.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(settings or run.settings))
    same = [f"--mode={run.mode}", f"--model_dir={folder}", "--seed=1", *run.flags]
    if run.stages == 1:
        own = [f"--experiment={run.experiment}", f"--config_file={config}"]
        return "tf_lamb.model_garden.train", [*own, *same]
    own = [f"--stage={run.experiment}:{config}"] * run.stages
    return "tf_lamb.model_garden.train_stages", [*own, *same]


def last_folder(run, folder):
    """Where the last stage is, or the only one."""
    return folder / f"stage_{run.stages}" if run.stages > 1 else folder


def go(run, folder, interruption=(), settings=None):
    """The command, from beginning to end, or until it is interrupted."""
    output = folder.with_suffix(f".{time.time_ns()}.txt")
    line = *command(run, folder, settings), run.overflows, run.pause
    others: list = []
    environments = clusters.workers(run.workers) if run.workers > 1 else [{}]
    for i, environment in enumerate(environments[1:], 1):
        said = output.with_suffix(f".{i}.txt")
        others.append((processes.started(begin, *line, output=said, **environment), said))
    process = processes.started(begin, *line, output=output, **environments[0])
    try:
        if interruption:
            kind, stage, step, seconds = interruption
            _wait_for_step(process, folder / f"stage_{stage}" if run.stages > 1 else folder, step)
            time.sleep(seconds)
            if process.exitcode is None:
                os.kill(process.pid, getattr(signal, kind))
        _wait_for_all([(process, output), *others])
    finally:
        for each in (process, *(other for other, _ in others)):
            each.kill()
    return Ended(process.exitcode, output.read_text())


def _wait_for_all(started):
    """Returns when all have ended; the first to fail says what is broken, before others hang."""
    until = time.monotonic() + PATIENCE
    while any(process.exitcode is None for process, _ in started):
        failed = [said for process, said in started[1:] if process.exitcode not in (None, 0)]
        if failed:
            raise Broken(f"a worker has ended: {failed[0].read_text()[-2000:]}")
        if time.monotonic() > until:
            raise Broken(f"it hangs: {started[0][1].read_text()[-2000:]}")
        time.sleep(0.05)


def _wait_for_step(process, folder, step):
    from tf_lamb.model_garden.folders.checkpoints import steps_done

    until = time.monotonic() + PATIENCE
    while process.exitcode is None and time.monotonic() < until:
        try:
            if steps_done(str(folder)) >= step and folder.is_dir():
                return
        except Exception:  # it is being written
            pass
        time.sleep(0.02)


# -- judging ------------------------------------------------------------------


def scalars(folder, name):
    """(step, tag) -> value of TensorBoard's files; the last that was written holds."""
    from tf_lamb.model_garden.folders import report

    found = report.read_scalars(str(folder / name)).items()
    return {(step, tag): value for tag, curve in found for step, value in curve.items()}


def check(run, folder):
    """Runs what was drawn; returns how it ended, and raises `Broken` where a promise is."""
    whole = folder / "unbroken"
    ended = go(run, whole)
    if run.lacks:
        return _refused(run, ended)
    _trained(ended)
    _check_end(run, last_folder(run, whole), ended)
    if run.interruption:
        _check_interrupted(run, folder, whole)
    if run.is_run_at_once_too:
        _check_accumulation(run, folder, whole)
    return "trained"


def _refused(run, ended):
    kind = run.settings["trainer"]["optimizer_config"]["optimizer"]["type"]
    words = f"optimizer.type={kind} has no {run.lacks}, but adamw, which is not used, has"
    if not ended.code or words not in ended.text:
        raise Broken(f"{kind} lacks {run.lacks} in silence: {ended.code}, {ended.text[-2000:]}")
    return "refused"


def _trained(ended):
    if ended.code:
        raise Broken(f"it ends with {ended.code}: {ended.text[-3000:]}")


def _state(folder):
    from support import garden

    return garden.checkpoint(folder)


def _counts(folder):
    state = _state(folder)
    (iterations,) = {
        int(value) for name, value in state.items() if re.search(r"(^|/)iterations?/", name)
        or re.search(r"(^|/)iter/", name)
    } or {None}  # fmt: skip
    return int(state["global_step/.ATTRIBUTES/VARIABLE_VALUE"]), iterations


def _with_offset(rate, step):
    """Of a run of 12 steps, 2 of them warmup, which the decay does not count."""
    own = rate[rate["type"]]
    share = (step - 2 - own["offset"]) / own["decay_steps"]
    fall = 1 - share if rate["type"] == "polynomial" else (1 + math.cos(math.pi * share)) / 2
    return own["initial_learning_rate"] * fall


def _rate_at(run, step):
    from tf_lamb.core import schedules

    config = run.settings["trainer"]["optimizer_config"]
    if run.has_offset:  # behind the warmup, at equal shares of the run
        return 2**0.5 * _with_offset(config["learning_rate"], 2 * step)
    schedule = schedules._Polynomial(**config["learning_rate"]["tf_lamb_polynomial"])
    if config["warmup"]["type"]:
        schedule = schedules.Warmup(after=schedule, **config["warmup"]["tf_lamb"])
    return float(schedule.value(np, np.float64(step)))


def _skipped(folder):
    state = _state(folder)
    return sum(int(v) for n, v in state.items() if "skipped_steps" in n)


def _check_end(run, folder, ended):
    """Holds a run to its promises."""
    global_step, iterations = _counts(folder)
    skipped = _skipped(folder)
    end = global_step if run.may_end_early else run.steps
    if global_step != end or end > run.steps:
        raise Broken(f"global_step is {global_step}, of {run.steps}")
    if iterations is not None and iterations != end - skipped:
        raise Broken(f"iterations is {iterations} of {end} steps, {skipped} of them skipped")
    is_over = run.stages > 1 and "Training stage" not in ended.text  # there is no report then
    if not is_over and not re.search(rf"steps +{end} of {run.steps}", ended.text):
        raise Broken(f"the report does not end at step {end}: {ended.text[-1500:]}")
    for (step, tag), value in scalars(folder, "train").items():
        if tag != "learning_rate" or skipped:
            continue
        if step < end and not value:
            raise Broken(f"rate 0 at step {step} of {run.steps}")
        if not run.is_rate_known or (run.has_offset and step < 2):
            continue
        if not np.isclose(value, expected := _rate_at(run, step), rtol=1e-4, atol=1e-9):
            raise Broken(f"rate {value} at step {step}, not {expected}")
    _check_evaluations(run, folder, end)
    params = model_dirs.read_params(str(folder))
    if run.averages and run.batch != BATCH:
        start = run.averages["start_step"] * run.steps / run.settings["trainer"]["train_steps"]
        begun = params["trainer"]["optimizer_config"]["ema"]["start_step"]
        if begun != round(start):
            raise Broken(f"averages begin at step {begun}, not {round(start)}")
    if run.stages > 1:
        begins = params["task"]["init_checkpoint"]
        if begins != str(folder.with_name(f"stage_{run.stages - 1}")):
            raise Broken(f"the last stage begins with {begins}")


def due(run, end):
    """The steps after which a run evaluates that ends with this one."""
    interval = run.settings["trainer"]["validation_interval"]
    if run.batch != BATCH:  # at the same shares of training
        interval = max(round(interval * run.steps / run.settings["trainer"]["train_steps"]), 1)
    return sorted({*range(interval, end + 1, interval), end})


def _check_evaluations(run, folder, end):
    if "eval" not in run.mode:
        return
    steps = sorted({step for step, _ in scalars(folder, "validation")})
    if steps != (expected := due(run, end)):
        raise Broken(f"evaluated at {steps}, due at {expected}")


def _check_interrupted(run, folder, whole):
    broken = folder / "interrupted"
    ended = go(run, broken, run.interruption)
    kind = run.interruption[0]
    in_words = re.search("Stopped (at step|before)", ended.text) and "Traceback" not in ended.text
    if kind != "SIGKILL" and ended.code and not (ended.code == 130 and in_words):  # 0: it was over
        raise Broken(f"{kind}: exit {ended.code}, {ended.text[-2500:]}")
    again = go(run, broken)
    if again.code:
        raise Broken(f"{kind}, and it does not go on: {again.code} {again.text[-3000:]}")
    one, other = last_folder(run, whole), last_folder(run, broken)
    _check_end(run, other, again)
    if not run.is_exact:
        return
    _check_same_bits(one, other)
    if "eval" in run.mode:
        expected, found = scalars(one, "validation"), scalars(other, "validation")
        for key, value in expected.items():
            if key[1].endswith("loss") and not np.isclose(found.get(key, np.nan), value, rtol=1e-5):
                raise Broken(f"evaluation {key}: {found.get(key)}, unbroken {value}")


def _check_same_bits(whole, broken):
    one, other = _state(whole), _state(broken)
    if one.keys() != other.keys():
        raise Broken(f"other variables: {one.keys() ^ other.keys()}")
    different = [n for n in one if one[n].tobytes() != other[n].tobytes()]
    if different:
        raise Broken(f"{len(different)} variables have other bits, {different[:3]}")


def _check_accumulation(run, folder, whole):
    """Micro-batches end where whole batches do; not so the bias of attention's keys.

    No loss depends on it: its gradient is rounding alone, which the second moment makes a step of.
    """
    kind = run.settings["trainer"]["optimizer_config"]["optimizer"]["type"]
    settings = merged(run.settings, _optimizer(kind, {"gradient_accumulation_steps": None}))
    other = folder / "at once"
    _trained(go(run, other, settings=settings))
    one, two = _state(whole), _state(other)
    for name in [n for n in two if n.startswith("model/") or "average" in n]:
        if name not in one or "_key_dense/bias" in name:
            continue
        if not np.allclose(one[name], two[name], rtol=2e-2, atol=2e-4):
            worst = np.abs(one[name].astype(float) - two[name]).max()
            raise Broken(f"{name} differs by {worst:.2g} from the run without accumulation")


# -- data ---------------------------------------------------------------------


def write_data(folder):
    """Kind of task -> its file."""
    from support import garden

    write = {"bert": garden.write_records, "resnet": garden.write_pictures}
    for kind in write:
        (folder / kind).mkdir()
    return {kind: write[kind](folder / kind) for kind in write}


def summary(run):
    """What was drawn."""
    drawn = dataclasses.asdict(run)
    del drawn["settings"]["task"]  # which the experiment says
    return drawn
