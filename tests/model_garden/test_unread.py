"""Blocks of settings that no run reads, because another type stands beside them."""

import pytest
import yaml

pytest.importorskip("official")

from support.batch_flags import Flags
from support.garden import build, tiny

from tf_lamb.model_garden import train_stages
from tf_lamb.model_garden.checks.experiment import check_optimizer
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments import parsing

PLACE = "trainer.optimizer_config"
STOCK, OURS = "bert/pretraining", "lamb/bert_pretraining"
LAMB = {"weight_decay_rate": 0.02, "beta_2": 0.98}


def written(folder, *configs):
    """The flag with a file for each `optimizer_config`."""
    paths = [folder / f"{i}.yaml" for i, _ in enumerate(configs)]
    for path, config in zip(paths, configs, strict=True):
        path.write_text(yaml.safe_dump({"trainer": {"optimizer_config": config}}))
    return list(map(str, paths))


def text_of(folder, *configs, experiment=STOCK, override="", **flags):
    """What is told of files with these `optimizer_config`, or the error."""
    files, override = written(folder, *configs), override.replace("@", PLACE)
    return parsing.parse(Flags(experiment, files, params_override=override, **flags))[1]


def choice(kind, **blocks):
    return {"type": kind, **blocks}


def test_a_block_of_the_type_that_ours_replaces_is_to_be_renamed(tmp_path):
    """`type: lamb` became `type: tf_lamb`, and the block below it kept its name."""
    with pytest.raises(UserError) as error:
        text_of(tmp_path, {"optimizer": choice("tf_lamb", lamb=LAMB)})
    assert str(error.value) == (
        f"--config_file={tmp_path}/0.yaml: the block lamb of {PLACE}.optimizer is not read, "
        "because its type is tf_lamb. Rename the block to tf_lamb"
    )


@pytest.mark.parametrize(
    ("experiment", "config", "says"),
    [
        (STOCK, {"optimizer": choice("tf_lars", tf_lamb={"beta_2": 0.98})},
         "tf_lamb of .*optimizer is not read, because its type is tf_lars. Rename .* to tf_lars$"),
        (STOCK, {"optimizer": choice("lamb", tf_lamb={"beta_2": 0.98})},
         "tf_lamb .* is lamb. Write .*optimizer.type=tf_lamb, or rename the block to lamb$"),
        (OURS, {"optimizer": {"lamb": LAMB}},
         "lamb .* is tf_lamb. Rename .* to tf_lamb, or write .*optimizer.type=lamb$"),
        (STOCK, {"learning_rate": choice("tf_lamb_polynomial", polynomial={"decay_steps": 9})},
         "polynomial of .*learning_rate .* Rename the block to tf_lamb_polynomial$"),
        (STOCK, {"learning_rate": {"tf_lamb_cosine": {"steps": 9}}},
         "tf_lamb_cosine .* is polynomial. Write .*learning_rate.type=tf_lamb_cosine, or"),
        (STOCK, {"warmup": choice("tf_lamb", linear={"warmup_steps": 9})},
         "linear of .*warmup .* Rename the block to tf_lamb$"),
        ("resnet_imagenet", {"warmup": choice("linear", tf_lamb={"steps": 9})},
         "tf_lamb of .*warmup .* Write .*warmup.type=tf_lamb, or rename the block to linear$"),
        (STOCK, {"optimizer": choice("tf_lamb", tf_lamb={
            "weight_decay_schedule": {"cosine": {"decay_steps": 9}}})},
         "cosine of .*tf_lamb.weight_decay_schedule is not read, because there is no type. Write "
         ".*weight_decay_schedule.type=cosine$"),
    ],
)  # fmt: skip
def test_the_kind_of_the_mistake_is_refused_wherever_a_type_stands(
    tmp_path, experiment, config, says
):
    with pytest.raises(UserError, match=says) as error:
        text_of(tmp_path, config, experiment=experiment)
    assert "\n" not in str(error.value)


def test_a_flag_is_held_to_the_type_of_a_file(tmp_path):
    ours = {"optimizer": choice("tf_lamb", tf_lamb={"beta_2": 0.98})}
    with pytest.raises(UserError, match="--params_override: the block lamb .* to tf_lamb$"):
        text_of(tmp_path, ours, override="@.optimizer.lamb.epsilon=0.001")


def test_it_is_told_before_a_recipe_scales_what_is_read_instead(tmp_path):
    unread = {"warmup": choice("tf_lamb", linear={"warmup_steps": 9})}
    with pytest.raises(UserError, match="the block linear of"):
        text_of(tmp_path, unread, global_batch_size=1024)


@pytest.mark.parametrize("experiment", [STOCK, OURS, "resnet_imagenet"])
def test_the_blocks_of_the_experiment_itself_are_no_mistake(tmp_path, experiment):
    assert "not read" not in text_of(tmp_path, experiment=experiment)


@pytest.mark.parametrize(
    ("files", "override"),
    [
        # The type that comes later reads it.
        ([{"optimizer": {"tf_lamb": {"beta_2": 0.98}}}, {"optimizer": choice("tf_lamb")}], ""),
        ([{"optimizer": {"tf_lamb": {"beta_2": 0.98}}}], "@.optimizer.type=tf_lamb"),
        # Another one, with settings of its own, takes the place of the one that had read it.
        ([{"optimizer": choice("lamb", lamb=LAMB)}],
         "@.optimizer.type=tf_lamb,@.optimizer.tf_lamb.beta_2=0.98"),
        # As an error on lost settings has it.
        ([{"optimizer": choice("tf_lamb", adamw={
            "weight_decay_rate": 0, "exclude_from_weight_decay": None})}], ""),
        # Turned off.
        ([{"warmup": choice("linear", linear={"warmup_steps": 9})}], "@.warmup.type=null"),
        ([{"warmup": choice(None, tf_lamb={"steps": 9})}], ""),
    ],
)  # fmt: skip
def test_what_is_meant_so_is_not_told(tmp_path, files, override):
    assert "not read" not in text_of(tmp_path, *files, override=override)


@pytest.mark.parametrize(
    ("config", "override", "told"),
    [
        # The type was another one when the file was written.
        ({"optimizer": choice("lamb", lamb=LAMB)}, "@.optimizer.type=tf_lamb",
         "the block lamb of {}.optimizer is not read, because its type is tf_lamb"),
        # Model Garden's own YAMLs may do so.
        ({"optimizer": choice("lars", lamb=LAMB)}, "",
         "the block lamb of {}.optimizer is not read, because its type is lars"),
        # Two to choose from.
        ({"optimizer": choice("tf_lamb", tf_lamb={"beta_2": 0.9}, lamb=LAMB)}, "",
         "the block lamb of {}.optimizer is not read, because its type is tf_lamb"),
    ],
)  # fmt: skip
def test_what_may_be_meant_so_is_a_warning(tmp_path, config, override, told):
    text = text_of(tmp_path, config, override=override)
    assert text == f"--config_file={tmp_path}/0.yaml: {told.format(PLACE)}"


def test_a_recipe_that_brings_the_type_has_its_block_read(tmp_path):
    """`transfer` gives a run without warmup one."""
    rate = choice("constant", constant={"learning_rate": 0.01})
    text = text_of(
        tmp_path, {"learning_rate": rate, "warmup": choice(None)}, recipe="transfer",
        global_batch_size=1024, override="@.warmup.tf_lamb.steps=9",
    )  # fmt: skip
    assert "not read" not in text and "warmup.tf_lamb.steps = 9, as --params_override" in text


def test_a_stage_may_have_another_type_than_the_rest(records, tmp_path, capsys):
    ours = f"{PLACE}.optimizer"
    settings = "beta_2=0.98", "exclude_from_weight_decay=null", "global_clipnorm=null"
    override = ",".join([
        f"{ours}.type=tf_lamb", *(f"{ours}.tf_lamb.{setting}" for setting in settings),
        f"stage_2.{ours}.type=tf_lans",
    ])  # fmt: skip
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(tiny(records)))
    stages = [
        train_stages.Stage(OURS, [str(tmp_path / "a.yaml")], str(tmp_path / f"{i}"), override)
        for i in (1, 2)
    ]
    train_stages.prepare(stages, keep_moments=False)
    told = f"--params_override: the block tf_lamb of {ours} is not read, because its type is "
    assert capsys.readouterr().out.count(told) == 1


def test_settings_that_a_change_of_type_loses_are_first_those_of_the_user():
    """The experiment has others, for an adamw that it does not use either."""
    rate = choice("polynomial", polynomial={"initial_learning_rate": 0.01, "decay_steps": 20})
    config = {
        "optimizer": choice("tf_lamb", lamb=LAMB),
        "learning_rate": rate,
        "warmup": choice("linear", linear={"warmup_steps": 2}),
    }
    params = build({"trainer": {"train_steps": 20, "optimizer_config": config}}, STOCK)
    with pytest.raises(UserError, match="tf_lamb has no weight_decay, but lamb, which .*=0.02"):
        check_optimizer(params, STOCK)
