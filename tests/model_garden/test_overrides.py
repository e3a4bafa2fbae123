"""Flags and settings that contradict each other: one outranks, or one line refuses both."""

import pathlib

import pytest
import yaml

pytest.importorskip("official")

from official.core import exp_factory
from support.batch_flags import Flags
from support.garden import BATCH, build, optimizer, tiny

from tf_lamb.model_garden.checks.experiment import (
    check_batch,
    check_optimizer,
    check_run,
    check_runtime,
)
from tf_lamb.model_garden.checks.rates import check_rate
from tf_lamb.model_garden.common import yamls
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments import parsing

STOCK = {
    "type": "polynomial",
    "polynomial": {"initial_learning_rate": 0.01, "end_learning_rate": 0.0, "decay_steps": 40},
}
LINEAR = {"type": "linear", "linear": {"warmup_steps": 4}}
OURS = {
    "type": "tf_lamb_polynomial",
    "tf_lamb_polynomial": {"initial_learning_rate": 0.01, "steps": 36},
}
CONTINUOUS = {"type": "tf_lamb", "tf_lamb": {"steps": 4, "handover": "continuous"}}
CONFIGS = {
    "stock": {"learning_rate": STOCK, "warmup": LINEAR},
    "ours": {"learning_rate": OURS, "warmup": CONTINUOUS},
}


@pytest.fixture(params=CONFIGS)
def a_yaml(request, records, tmp_path):
    """40 steps at a batch of 8, in a file; its rate comes to 0 with the last step."""
    settings = tiny(records, train_steps=40, steps_per_loop=4, summary_interval=8,
                    checkpoint_interval=8, validation_interval=20)  # fmt: skip
    settings["trainer"]["optimizer_config"] = CONFIGS[request.param]
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(settings))
    return str(tmp_path / "a.yaml")


of_ours = pytest.mark.parametrize("a_yaml", ["ours"], indirect=True)


def filled(path, **flags):
    return parsing.parse(Flags(config_file=[path], **flags))


def last_step(params) -> int:
    """The step at which the rate comes to 0."""
    config = params.trainer.optimizer_config
    if config.learning_rate.type == "polynomial":
        return config.learning_rate.polynomial.decay_steps
    return config.learning_rate.tf_lamb_polynomial.steps + config.warmup.tf_lamb.steps


# A batch flag and --params_override.


@pytest.mark.parametrize(
    ("override", "steps"),
    [("", 20), ("trainer.train_steps=30", 30), ("trainer.train_steps=10", 10)],
)
def test_the_rate_comes_to_0_with_the_last_step_whoever_says_how_many(a_yaml, override, steps):
    params, text = filled(a_yaml, global_batch_size=2 * BATCH, params_override=override)
    assert params.trainer.train_steps == steps == last_step(params)
    check_rate(params)
    as_said = f"training = {steps} steps, as --params_override has it"
    counted = f"training = 40 steps x {BATCH} / {2 * BATCH} = 20 steps"
    assert (as_said if override else counted) in text
    assert params.trainer.validation_interval == steps / 2


def test_where_steps_alone_leave_the_rate_is_told(a_yaml):
    """Both come from 0.01 to 0 in 40 steps."""
    way_out = f"--global_batch_size={BATCH}"
    params, text = filled(a_yaml, params_override="trainer.train_steps=30")
    is_ours = params.trainer.optimizer_config.learning_rate.type == "tf_lamb_polynomial"
    left = 0.01 * 10 / (36 if is_ours else 40)  # ours begins behind a warmup of 4
    assert text == (
        f"the learning rate ends at {left:.4g}, and not at 0: trainer.train_steps=30 of "
        "--params_override ends training, and not the decay, which is for 40 steps. Add "
        f"{way_out} to have the decay end there, too"
    )
    # The way out.
    params, text = filled(a_yaml, params_override="trainer.train_steps=30", global_batch_size=BATCH)
    assert params.trainer.train_steps == 30 == last_step(params) and "ends at" not in text


@pytest.mark.parametrize("override", ["trainer.train_steps=40", "trainer.max_to_keep=3"])
def test_a_rate_that_comes_to_its_end_is_no_news(a_yaml, override):
    assert filled(a_yaml, params_override=override)[1] == ""


def test_a_decay_that_is_shortened_with_the_steps_is_no_news(a_yaml):
    ours = "tf_lamb_polynomial" in pathlib.Path(a_yaml).read_text()
    length = "tf_lamb_polynomial.steps=26" if ours else "polynomial.decay_steps=30"
    path = f"trainer.optimizer_config.learning_rate.{length}"
    assert filled(a_yaml, params_override=f"trainer.train_steps=30,{path}")[1] == ""


def test_the_decay_follows_a_warmup_that_is_overridden(a_yaml):
    is_ours = "tf_lamb_polynomial" in pathlib.Path(a_yaml).read_text()
    place = "tf_lamb.steps" if is_ours else "linear.warmup_steps"
    path = f"trainer.optimizer_config.warmup.{place}"
    params, text = filled(a_yaml, global_batch_size=2 * BATCH, params_override=f"{path}=9")
    assert last_step(params) == params.trainer.train_steps == 20
    assert f"but {path} = 9, as --params_override has it, not 4" in text


def test_a_type_that_is_overridden_is_the_one_that_is_scaled(a_yaml):
    settings = yamls.read(pathlib.Path(a_yaml).read_bytes())
    rate = settings["trainer"]["optimizer_config"]["learning_rate"]
    rate["cosine"] = {"initial_learning_rate": 0.25}
    pathlib.Path(a_yaml).write_text(yaml.safe_dump(settings))
    path = "trainer.optimizer_config.learning_rate"
    cosine = f"{path}.type=cosine,{path}.cosine.decay_steps=20"
    params, _ = filled(a_yaml, global_batch_size=4 * BATCH, params_override=cosine)
    chosen = params.trainer.optimizer_config.learning_rate.get()
    assert (chosen.initial_learning_rate, chosen.decay_steps) == (0.5, 20)


@of_ours
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"global_batch_size": 32, "params_override": "task.train_data.global_batch_size=8"},
         "--global_batch_size=32 makes task.train_data.global_batch_size 32, but --params_override "
         "says 8. Leave one of them out"),
        ({"per_replica_batch_size": 4, "params_override":
          "trainer.optimizer_config.optimizer.tf_lamb.gradient_accumulation_steps=4"},
         "--per_replica_batch_size=4 makes trainer.optimizer_config.optimizer.tf_lamb."
         "gradient_accumulation_steps 2, but --params_override says 4"),
        ({"global_batch_size": 512, "recipe": "untuned_lamb_bert",
          "params_override": "trainer.train_steps=7"},
         "untuned_lamb_bert trains for 1,000,000 steps, but --params_override says trainer."
         "train_steps=7"),
        ({"global_batch_size": 16, "params_override": "trainer.train_steps=-7"}, "not -7"),
    ],
)  # fmt: skip
def test_two_that_contradict_each_other_are_refused(a_yaml, flags, expected):
    with pytest.raises(UserError) as error:
        filled(a_yaml, **flags)
    assert expected in str(error.value) and "\n" not in str(error.value)


@of_ours
def test_steps_of_adascale_and_of_averages_are_scaled(a_yaml):
    settings = yamls.read(pathlib.Path(a_yaml).read_bytes())
    config = settings["trainer"]["optimizer_config"]
    config |= optimizer(gradient_accumulation_steps=2, adascale={"scale": 2, "base_steps": 40})
    config["ema"] = {"start_step": 12}
    pathlib.Path(a_yaml).write_text(yaml.safe_dump(settings))
    params, text = filled(a_yaml, global_batch_size=3 * BATCH)
    adascale = params.trainer.optimizer_config.optimizer.tf_lamb.adascale
    assert adascale.base_steps == 13 == last_step(params) == params.trainer.train_steps
    assert params.trainer.optimizer_config.ema.start_step == 4
    assert "optimizer.tf_lamb.adascale.base_steps = 13 steps" in text
    assert "ema.start_step = 4 steps" in text


# Rates.


def with_rate(**config):
    settings = tiny("")
    settings["trainer"]["optimizer_config"] = yamls.merged(CONFIGS["stock"], config)
    return build(settings)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"learning_rate": {"polynomial": {"decay_steps": 0}}}, "polynomial.decay_steps is 0. Set"),
        ({"learning_rate": {"polynomial": {"decay_steps": 19}}}, "0 from step 19 of trainer.train_"
         "steps=20 on, because trainer.optimizer_config.learning_rate.polynomial.decay_steps is 19."
         " Write trainer.optimizer_config.learning_rate.polynomial.decay_steps=20, or trainer."
         "train_steps=19"),
        ({"learning_rate": {"polynomial": {"decay_steps": 20}},
          "warmup": {"linear": {"warmup_steps": 20}}},
         "to a learning rate of 0: trainer.optimizer_config.warmup.linear.warmup_steps=20 ends "
         "where trainer.optimizer_config.learning_rate.polynomial.decay_steps has brought the rate "
         "to 0, at step 20. Write warmup_steps of less than 20, or train and decay for longer"),
        ({"learning_rate": OURS | {"tf_lamb_polynomial": {
            "initial_learning_rate": 0.1, "steps": 15}}, "warmup": CONTINUOUS},
         "tf_lamb_polynomial.steps is 15 and begins at 4. Write trainer.optimizer_config."
         "learning_rate.tf_lamb_polynomial.steps=16, or trainer.train_steps=19"),
        ({"learning_rate": {"polynomial": {"initial_learning_rate": -0.1}}},
         "initial_learning_rate is -0.1, and a learning rate is a number of 0 or more"),
        ({"learning_rate": {"type": "stepwise", "stepwise": {
            "boundaries": [3], "values": [0.1, -0.1]}}}, "stepwise.values is [0.1, -0.1]"),
        ({"learning_rate": OURS, "warmup": CONTINUOUS, **optimizer(adascale={"scale": 4})},
         "0 from step 40 of trainer.train_steps x adascale.scale=80 on"),
        ({"learning_rate": OURS, "warmup": CONTINUOUS, **optimizer(adascale={
            "scale": 4, "base_steps": 41})}, "base_steps=40"),
    ],
)  # fmt: skip
def test_a_rate_that_is_none_or_comes_to_0_too_early(config, expected):
    with pytest.raises(UserError) as error:
        check_rate(with_rate(**config))
    assert expected in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "config",
    [
        {"learning_rate": {"polynomial": {"decay_steps": 20}},
         "warmup": {"linear": {"warmup_steps": 19}}},
        {"learning_rate": {"polynomial": {"decay_steps": 5, "end_learning_rate": 0.001}},
         "warmup": {"linear": {"warmup_steps": 20}}},
        {"learning_rate": {"polynomial": {"decay_steps": 5, "cycle": True}}},
        {"learning_rate": OURS, "warmup": CONTINUOUS,
         **optimizer(adascale={"scale": 4, "base_steps": 40})},
    ],
)  # fmt: skip
def test_a_rate_that_lasts_as_long_as_training(config):
    check_rate(with_rate(**config))


@pytest.mark.parametrize("decay", [-0.1, float("nan")])
@pytest.mark.parametrize(
    ("kind", "name"), [("tf_lamb", "weight_decay"), ("adamw", "weight_decay_rate")]
)
def test_a_decay_that_cannot_be(kind, name, decay):
    params = with_rate(optimizer={"type": kind, kind: {name: decay}})
    with pytest.raises(UserError, match=f"{kind}.{name} is {decay}, and it is a number of 0"):
        check_optimizer(params)


def decayed_by(kind, **settings):
    return {"weight_decay": 0.0, "weight_decay_schedule": {"type": kind, kind: settings}}


@pytest.mark.parametrize("kind", ["stepwise", "exponential", "power", "tf_lamb_polynomial"])
def test_a_decay_that_lacks_its_numbers(kind):
    params = with_rate(**optimizer(**decayed_by(kind)))
    words = rf"weight_decay_schedule.{kind}.\w+ is not set and has no default. Set it, e.g. for"
    with pytest.raises(UserError, match=words):
        check_optimizer(params)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (decayed_by("stepwise", boundaries=[2], values=[0.1, -0.1]),
         "weight_decay_schedule.stepwise.values is [0.1, -0.1], and weight decay is a number of 0"),
        (decayed_by("tf_lamb_constant", learning_rate=0.1) | {"weight_decay": 0.01},
         "weight_decay_schedule.type=tf_lamb_constant takes the place of weight_decay, which is "
         "0.01, by you or by the experiment. Write weight_decay=0, or"),
        (decayed_by("constant", learning_rate=0.1),
         "weight_decay_schedule.type=constant is no schedule. Write a number as weight_decay"),
        (decayed_by("tf_lamb_polynomial", initial_learning_rate=0.1, steps=4), None),
    ],
)  # fmt: skip
def test_a_schedule_that_weight_decay_cannot_follow(own, expected):
    params = with_rate(**optimizer(**own))
    if expected is None:
        check_optimizer(params)
        return
    with pytest.raises(UserError) as error:
        check_optimizer(params)
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_decay_in_the_loss_is_refused_beside_a_schedule_of_it():
    params = exp_factory.get_exp_config("lamb/resnet_imagenet")
    falling = decayed_by("stepwise", boundaries=[100], values=[0.1, 0.0])
    params.override({
        "task": {"losses": {"l2_weight_decay": 1e-4}},
        "trainer": {"optimizer_config": {"optimizer": {"type": "tf_lamb", "tf_lamb": falling}}},
    })  # fmt: skip
    with pytest.raises(UserError, match="tf_lamb.weight_decay_schedule.type=stepwise decays too"):
        check_optimizer(params)


def test_two_clippings_are_one_too_many():
    """One is the experiment's own."""
    with pytest.raises(UserError) as error:
        check_optimizer(with_rate(**optimizer(clipnorm=0.5)))
    place = "trainer.optimizer_config.optimizer.tf_lamb"
    assert str(error.value) == (
        f"{place} has clipnorm=0.5 and global_clipnorm=1.0, by you or by the experiment, and one "
        f"alone can clip. Write {place}.clipnorm=null or {place}.global_clipnorm=null"
    )
    check_optimizer(with_rate(**optimizer(clipnorm=0.5, global_clipnorm=None)))


ADAMW = {
    "weight_decay_rate": 0.01, "exclude_from_weight_decay": ["LayerNorm", "bias"],
    "gradient_clip_norm": 1.0,
}  # fmt: skip


def in_the_place_of_adamw(own, **more):
    """One of Model Garden's experiments, with a type of ours."""
    optimizer = {"type": "tf_adamp", "tf_adamp": own, "adamw": ADAMW | more}
    experiment = exp_factory.get_exp_config("bert/pretraining")
    config = CONFIGS["stock"] | {"optimizer": optimizer}
    experiment.override({"trainer": {"train_steps": 40, "optimizer_config": config}})
    return experiment


def test_what_an_optimizer_of_model_gardens_had_is_not_lost_with_its_type():
    with pytest.raises(UserError) as error:
        check_optimizer(in_the_place_of_adamw({}))
    assert str(error.value) == (
        "trainer.optimizer_config.optimizer.type=tf_adamp has no weight_decay, "
        "exclude_from_weight_decay and global_clipnorm, but adamw, which is not used, has "
        "weight_decay_rate=0.01, exclude_from_weight_decay=['LayerNorm', 'bias'] and "
        "gradient_clip_norm=1.0. Write tf_adamp.weight_decay, tf_adamp.exclude_from_weight_decay "
        "and tf_adamp.global_clipnorm, or for none tf_adamp.weight_decay=0, "
        "tf_adamp.exclude_from_weight_decay=null and tf_adamp.global_clipnorm=null"
    )


def test_what_is_lost_of_an_experiment_names_it():
    experiment = exp_factory.get_exp_config("bert/pretraining")
    config = CONFIGS["stock"] | {"optimizer": {"type": "tf_adamp"}}
    experiment.override({"trainer": {"train_steps": 40, "optimizer_config": config}})
    message = r"adamw, which is not used, has .* in the experiment bert/pretraining\. Write tf_"
    with pytest.raises(UserError, match=message):
        check_optimizer(experiment, "bert/pretraining")


@pytest.mark.parametrize(
    ("own", "more", "lacking"),
    [
        ({"weight_decay": 0.1, "exclude_from_weight_decay": ["bias"], "clipnorm": 1.0}, {}, None),
        ({"exclude_from_weight_decay": ["bias"], "clipnorm": 1.0}, {}, "weight_decay"),
        ({"weight_decay": 0.1, "clipnorm": 1.0}, {}, "exclude_from_weight_decay"),
        ({"weight_decay": 0.1, "exclude_from_weight_decay": ["bias"]}, {}, "global_clipnorm"),
        ({}, {"weight_decay_rate": 0, "exclude_from_weight_decay": None,
              "gradient_clip_norm": 0}, None),
        (decayed_by("tf_lamb_constant", learning_rate=0.1) |
         {"exclude_from_weight_decay": ["bias"], "clipnorm": 1.0}, {}, None),
        ({"weight_decay": 0.1, "clipnorm": 1.0}, {"exclude_from_weight_decay": None,
          "include_in_weight_decay": ["kernel"]}, "exclude_from_weight_decay"),
    ],
)  # fmt: skip
def test_each_of_them_is_written_or_turned_off(own, more, lacking):
    experiment = in_the_place_of_adamw(own, **more)
    if lacking is None:
        check_optimizer(experiment)
        return
    with pytest.raises(UserError, match=f"type=tf_adamp has no {lacking}, but adamw, which is"):
        check_optimizer(experiment)


@pytest.mark.parametrize(
    ("written", "way_out"),
    [
        ("learning_rate=0.1", "learning_rate takes settings of its own, but it is given 0.1. Write "
         "@.learning_rate.polynomial.initial_learning_rate=0.1"),
        ("optimizer.lr=0.1", "Write @.learning_rate.polynomial.initial_learning_rate=0.1"),
        ("optimizer.tf_lamb.learning_rate=0.1,@.learning_rate.type=constant",
         "Write @.learning_rate.constant.learning_rate=0.1"),
        ("optimizer.tf_lamb.warmup_steps=9", "Write @.warmup.polynomial.warmup_steps=9"),
        ("warmup=9", "given 9. Write @.warmup.polynomial.warmup_steps=9"),
        ("optimizer=tf_lamb", "given 'tf_lamb'. Write @.optimizer.type=tf_lamb"),
        ("weight_decay=0.1,@.optimizer.type=tf_lamb", "Write @.optimizer.tf_lamb.weight_decay=0.1"),
        ("optimizer.tf_lamb.decay_steps=9", "Write @.learning_rate.polynomial.decay_steps=9"),
        ("optimizer.tf_lamb.include_in_weight_decay=[kernel]", "All decays but what "
         "exclude_from_weight_decay matches: list the others there"),
        ("optimizer.tf_lamb.include_in_weight_decay=null", "Leave it out"),
        ("optimizer.tf_lamb.maximize=true", "Steps go down: negate the loss"),
        ("learning_rate.polynomial.steps=9", "Did you mean decay_steps"),
    ],
)  # fmt: skip
def test_of_a_misplaced_setting_the_place_is_told(written, way_out):
    place = "trainer.optimizer_config"
    flags = Flags("bert/pretraining", params_override=f"{place}.{written.replace('@', place)}")
    with pytest.raises(UserError) as error:
        parsing.parse(flags)
    assert way_out.replace("@", place) in str(error.value) and "\n" not in str(error.value)


OWN = {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias"]}
NONE = {"weight_decay": 0, "exclude_from_weight_decay": None, "global_clipnorm": None}
CLIP = "trainer.optimizer_config.optimizer.tf_adamp.global_clipnorm=null"


def checked(folder, kind, own, override="", experiment="bert/sentence_prediction"):
    """An experiment whose YAML puts a type of ours in the place of adamw, once it is checked."""
    config = CONFIGS["stock"] | {"optimizer": {"type": kind, "tf_adamp": own}}
    path = folder / "a.yaml"
    path.write_text(yaml.safe_dump({"trainer": {"train_steps": 40, "optimizer_config": config}}))
    params, _ = parsing.parse(Flags(experiment, [str(path)], params_override=override))
    check_optimizer(params, experiment)
    return params


@pytest.mark.parametrize(
    ("own", "override", "experiment"),
    [
        (OWN | {"global_clipnorm": None}, "", "bert/sentence_prediction"),
        (OWN, CLIP, "bert/sentence_prediction"),
        (NONE, "", "bert/sentence_prediction"),
        (NONE, "", "lamb/bert_pretraining"),
    ],
    ids=["a null in a YAML", "a null in an override", "all", "of a type of ours"],
)
def test_what_is_answered_with_nothing_is_not_asked_again(tmp_path, own, override, experiment):
    params = checked(tmp_path, "tf_adamp", own, override, experiment)
    config = params.trainer.optimizer_config.optimizer
    assert config.tf_adamp.global_clipnorm is None and not config.adamw.gradient_clip_norm


def test_a_block_that_is_set_to_null_loses_nothing(tmp_path):
    override = "trainer.optimizer_config.optimizer.adamw=null"
    params = checked(tmp_path, "tf_adamp", OWN, override)
    assert params.trainer.optimizer_config.optimizer.tf_adamp.weight_decay == 0.1


def test_the_block_of_the_chosen_type_is_not_null(tmp_path):
    with pytest.raises(UserError, match="tf_adamp is null. Leave it out to have its defaults"):
        checked(tmp_path, "tf_adamp", None)


def test_what_is_not_answered_is_asked_still_of_the_experiment(tmp_path):
    message = r"no global_clipnorm, .* gradient_clip_norm=1.0 in the experiment bert/sentence_pre"
    with pytest.raises(UserError, match=message):
        checked(tmp_path, "tf_adamp", {"weight_decay": 0, "exclude_from_weight_decay": None})


def test_a_null_of_a_file_of_another_type_is_no_answer(tmp_path):
    override = "trainer.optimizer_config.optimizer.type=tf_adamp"
    with pytest.raises(UserError, match="type=tf_adamp has no weight_decay, exclude_from"):
        checked(tmp_path, "adamw", NONE, override)


@pytest.mark.parametrize("name", sorted(parsing.experiments()))
def test_no_experiment_comes_to_0_too_early(name):
    params = exp_factory.get_exp_config(name)
    rate = params.trainer.optimizer_config.learning_rate
    if rate.get() is None or None in rate.get().as_dict().values():
        return  # its YAML has the rest
    check_rate(params)


# Devices.


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        ("mirrored", "but TensorFlow sees 0. Write runtime.num_gpus=0"),
        ("one_device", "but .*=one_device has one device. Write .*distribution_strategy=mirrored"),
        ("'off'", "but .* has one device"),
    ],
)
def test_gpus_that_are_not_there(records, tmp_path, strategy, says):
    settings = tiny(records)
    settings["runtime"] = {"distribution_strategy": strategy.strip("'"), "num_gpus": 2}
    with pytest.raises(UserError, match=f"runtime.num_gpus is 2, {says}"):
        check_run(build(settings), "train", str(tmp_path / "model"))
    check_runtime(build(settings), evaluating=False)  # for those of another machine


def test_replicas_that_meet_within_a_step_are_not_compiled_alone(records):
    runtime = {"distribution_strategy": "mirrored", "num_gpus": 2, "enable_xla": True}
    params = build(tiny(records))
    params.override({"runtime": runtime})
    check_runtime(params, evaluating=False)
    params.override({"runtime": {"all_reduce_alg": "nccl"}})
    with pytest.raises(UserError, match="all_reduce_alg=nccl .* Leave .* or write runtime.enable_"):
        check_runtime(params, evaluating=False)


@pytest.mark.parametrize("own", [{"measure_noise": {"enabled": True}}, {"adascale": {"scale": 2}}])
def test_what_cannot_measure_gradients_is_refused(records, own):
    """One part of a batch has no other to be compared with, and a loss scale sums the parts."""
    ((name, settings),) = own.items()
    off = f"{name}.{'enabled=false' if 'enabled' in settings else 'scale=null'}"
    alone = tiny(records, optimizer_config=optimizer(**own))
    words = f"tf_lamb.{name} compares .* has one part. Write .*steps=2 or more, or .*{off}"
    with pytest.raises(UserError, match=words):
        check_batch(build(alone))
    check_batch(build(tiny(records, optimizer_config=optimizer(
        gradient_accumulation_steps=2, **own))))  # fmt: skip
    alone["runtime"] = {"distribution_strategy": "mirrored", "num_gpus": 2}
    check_batch(build(alone))
    alone["runtime"] |= {"mixed_precision_dtype": "float16"}
    with pytest.raises(UserError, match=f"tf_lamb.{name} has to see"):
        check_runtime(build(alone), evaluating=False)
