"""What comes from elsewhere runs no code, and what is malformed is one clear error of ours."""

import ast
import functools
import inspect
import json
import pathlib
import traceback
import warnings

import keras
import numpy as np
import pytest
import tf_keras
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support import malformed
from support.property_cases import cases

pytest.importorskip("official")

from support import garden

import tf_lamb.keras
import tf_lamb.tf_keras
from tf_lamb import recipes
from tf_lamb.core import schedules
from tf_lamb.model_garden import checks, model_dirs, parsing, yamls
from tf_lamb.model_garden.train_stages import Stage

ROOT = pathlib.Path(tf_lamb.__file__).parent
DOORS = {"keras": (tf_lamb.keras, keras), "tf_keras": (tf_lamb.tf_keras, tf_keras)}
OPTIMIZERS = ("LAMB", "LARS", "AdamP", "SGDP")
LISTS = (
    "exclude_from_weight_decay", "exclude_from_layer_adaptation", "layer_groups",
)  # fmt: skip


def refused(call, error, words):
    """One error of ours and no other, in one line that names the value and the way out."""
    with warnings.catch_warnings(), pytest.raises((Exception, SystemExit), match=words) as caught:
        warnings.simplefilter("ignore")
        call()
    assert issubclass(caught.type, error), repr(caught.value)
    raised_in = pathlib.Path(traceback.extract_tb(caught.tb)[-1].filename)
    assert raised_in.is_relative_to(ROOT), f"{caught.value!r} comes from {raised_in}"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2_000


def ids(rows):
    return [f"{i}" for i, _ in enumerate(rows)]


def test_there_are_more_than_a_hundred_of_them():
    tables = (
        malformed.CONSTRUCTORS, malformed.PATTERNS, malformed.YAMLS, malformed.FLAGS,
        malformed.RECIPES, malformed.SOURCES, malformed.ADDONS,
    )  # fmt: skip
    assert sum(map(len, tables)) >= 150


# -- constructors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("row", malformed.CONSTRUCTORS, ids=ids(malformed.CONSTRUCTORS))
@pytest.mark.parametrize("door", DOORS)
def test_a_malformed_argument(door, row):
    (name, arguments, error, words), (room, _) = row, DOORS[door]
    if name == "AdaScale":
        arguments = {"inner": room.LAMB(gradient_accumulation_steps=2), "scale": 2.0, **arguments}
    refused(functools.partial(getattr(room, name), **arguments), error, words)


@pytest.mark.parametrize("row", malformed.CONSTRUCTORS, ids=ids(malformed.CONSTRUCTORS))
@pytest.mark.parametrize("door", DOORS)
def test_a_malformed_config(door, row):
    (name, arguments, error, words), (room, _) = row, DOORS[door]
    if name not in OPTIMIZERS or isinstance(arguments.get("learning_rate"), dict):
        pytest.skip("the host deserializes it before we see it")
    cls = getattr(room, name)
    refused(lambda: cls.from_config({**cls().get_config(), **arguments}), error, words)


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.integers(10**309, 10**310),
    st.floats(width=32), st.complex_numbers(), st.text(max_size=3), st.binary(max_size=3),
    st.just(object()), st.just(np.ones(2)), st.sets(st.integers(), max_size=2),
    st.lists(st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=2), st.none() | st.integers() | st.lists(st.integers())),
)  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_any_argument_is_taken_or_refused_by_us(door):
    """What is taken can be saved, and makes the same optimizer again."""

    @cases(25)
    @given(st.data())
    def check(data):
        cls = getattr(DOORS[door][0], data.draw(st.sampled_from(OPTIMIZERS)))
        name = data.draw(st.sampled_from([*inspect.signature(cls).parameters]))
        name = "no_such_argument" if name == "unknown" else name
        value = data.draw(JUNK)
        try:
            config = cls(**{name: value}).get_config()
        except (TypeError, ValueError) as error:
            raised_in = pathlib.Path(traceback.extract_tb(error.__traceback__)[-1].filename)
            assert raised_in.is_relative_to(ROOT), (raised_in, error)
            assert name in str(error) and "\n" not in str(error)
        else:
            assert cls.from_config(json.loads(json.dumps(config))).get_config() == config

    check()


@pytest.mark.parametrize("row", malformed.PATTERNS, ids=ids(malformed.PATTERNS))
@pytest.mark.parametrize("argument", [*LISTS, "var_names", "groups"])
def test_a_malformed_pattern(argument, row):
    pattern, error, words = row
    room = tf_lamb.keras
    calls = {
        "var_names": lambda: room.LAMB().exclude_from_weight_decay(var_names=["bias", pattern]),
        "groups": lambda: room.Measured(room.LAMB(), groups=[pattern]),
    }
    call = calls.get(argument, lambda: room.LAMB(**{argument: ["bias", pattern]}))
    refused(call, error, f"^{argument}.*{words}")


# -- Model Garden ---------------------------------------------------------------------------------


def prepare(model_dir, experiment=garden.EXPERIMENT, config_file=(), **flags):
    """What `tf_lamb.model_garden.train` does with its flags before it trains."""
    flags = Stage(experiment, list(config_file), str(model_dir), **flags)
    parsing.fill_in(flags)
    params = parsing.parse(flags)
    checks.check(params, "train_and_eval", flags.model_dir, experiment, None)
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
        refused(functools.partial(prepare, model_dir, **flags), parsing.UserError, words)
        assert not touched.exists() and set(tmp_path.rglob("*")) == before

    call.touched = str(touched)
    return call


def test_the_experiment_is_fine_but_for_what_is_malformed(tmp_path, records):
    small = tmp_path / "small.yaml"
    small.write_text(json.dumps(garden.tiny(records)))
    prepare(tmp_path / "model_dir", config_file=[str(small)])
    assert (tmp_path / "model_dir" / model_dirs.RUN_FILE).exists()


@pytest.mark.parametrize("row", malformed.YAMLS, ids=ids(malformed.YAMLS))
def test_a_malformed_yaml(row, garden_refuses):
    text, words = row
    garden_refuses(words, text.replace("TOUCH", garden_refuses.touched))


def test_a_yaml_that_is_no_text(garden_refuses):
    garden_refuses("given.yaml is not YAML", b"\x80\x81 a: 1")


@pytest.mark.parametrize("row", malformed.FLAGS, ids=ids(malformed.FLAGS))
def test_a_malformed_flag(row, garden_refuses, monkeypatch):
    flags, words = dict(row[0]), row[1]
    if cluster := flags.pop("TF_CONFIG", None):
        monkeypatch.setenv("TF_CONFIG", cluster)
        flags["params_override"] = "runtime.distribution_strategy=multi_worker_mirrored"
    if "params_override" in flags:
        override = flags["params_override"].replace("TOUCH", garden_refuses.touched)
        flags["params_override"] = override
    garden_refuses(words, **flags)


@pytest.mark.parametrize("row", malformed.RECIPES, ids=ids(malformed.RECIPES))
def test_a_malformed_recipe(row):
    name, arguments, words = row
    function = getattr(recipes, name, None) or getattr(schedules, name)
    refused(lambda: function(*arguments), (TypeError, ValueError), words)


# -- files ----------------------------------------------------------------------------------------


def model_of(host):
    host.backend.clear_session()
    return host.Sequential([host.Input((4,)), host.layers.Dense(3, name="dense")])


@pytest.mark.parametrize("row", malformed.SOURCES, ids=[row[0] for row in malformed.SOURCES])
@pytest.mark.parametrize("door", DOORS)
def test_a_malformed_file(door, row, tmp_path, monkeypatch):
    (_, make, error, words), (room, host) = row, DOORS[door]
    monkeypatch.chdir(tmp_path)
    source, model, optimizer = make(tmp_path), model_of(host), room.LAMB()
    weights, before = model.get_weights(), set(tmp_path.rglob("*"))
    refused(lambda: room.migrate(source, optimizer, model), error, words)
    assert optimizer._plan is None and set(tmp_path.rglob("*")) == before
    for value, same in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(value, same)


@pytest.mark.parametrize("row", malformed.ADDONS, ids=ids(malformed.ADDONS))
@pytest.mark.parametrize("door", DOORS)
def test_a_malformed_serialized_optimizer(door, row, tmp_path, monkeypatch):
    (config, words), (room, _) = row, DOORS[door]
    monkeypatch.chdir(tmp_path)
    refused(lambda: room.from_addons(config), (TypeError, ValueError, FileNotFoundError), words)
    assert not list(tmp_path.iterdir())


# -- nothing is executed --------------------------------------------------------------------------

EXECUTES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "code"}
CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
METHODS = {"unsafe_load", "full_load", "enable_unsafe_deserialization", "system", "popen"}


def suspicious(tree):
    """The lines that could execute what they read."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module]
        if any(name.split(".")[0] in EXECUTES for name in names):
            yield node.lineno
        if isinstance(node, ast.keyword):
            value = getattr(node.value, "value", None)
            if (node.arg, value) in {("safe_mode", False), ("allow_pickle", True), ("shell", True)}:
                yield node.value.lineno
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in CALLS:
            yield node.lineno
        if isinstance(called, ast.Attribute) and called.attr in METHODS:
            yield node.lineno
        if ast.unparse(called) in ("yaml.load", "yaml.load_all"):
            loaders = [ast.unparse(k.value) for k in node.keywords if k.arg == "Loader"]
            if loaders != ["_Loader"]:
                yield node.lineno


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_executes_what_it_reads(path):
    assert list(suspicious(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from marshal import loads", "eval(text)", "np.load(f, allow_pickle=True)",
     "keras.models.load_model(f, safe_mode=False)", "yaml.load(f, Loader=yaml.Loader)",
     "yaml.load(f)", "yaml.unsafe_load(f)", "os.system(c)", "subprocess.run(c, shell=True)",
     "keras.config.enable_unsafe_deserialization()"],
)  # fmt: skip
def test_the_scan_would_see_it(code):
    assert list(suspicious(ast.parse(code)))


def test_yaml_is_read_by_a_safe_loader():
    assert issubclass(yamls._Loader, yaml.SafeLoader)
    python = {tag for tag in yamls._Loader.yaml_constructors if "python" in (tag or "")}
    assert python == {"tag:yaml.org,2002:python/tuple"}
    assert not yamls._Loader.yaml_multi_constructors


def test_yaml_holds_what_model_garden_writes():
    assert yamls.read("a: 1e-3\nb: !!python/tuple [1, [2]]\nc: &c {d: null}\ne: *c") == {
        "a": 1e-3, "b": (1, [2]), "c": {"d": None}, "e": {"d": None},
    }  # fmt: skip


WRAPPED = [*OPTIMIZERS, "AdaScale", "Measured"]


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("door", DOORS)
def test_a_saved_model_loads_in_safe_mode(door, name, tmp_path):
    room, host = DOORS[door]
    host.backend.clear_session()
    model = host.Sequential([host.Input((4,)), host.layers.Dense(3)])
    arguments = {
        "exclude_from_weight_decay": ["bias"],
        "gradient_accumulation_steps": 2,
        "jit_compile": False,
    }
    optimizer = getattr(room, name if name in OPTIMIZERS else "LAMB")(
        room.schedules.Polynomial(0.1, 10), **arguments
    )
    if name == "AdaScale":
        optimizer = room.AdaScale(optimizer, scale=2.0)
    elif name == "Measured":
        optimizer = room.Measured(optimizer, groups=["bias"])
    model.compile(optimizer, "mse")
    model.fit(np.ones((4, 4)), np.ones((4, 3)), batch_size=2, verbose=0)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = host.models.load_model(path, safe_mode=True)
    assert type(loaded.optimizer) is type(model.optimizer)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for one, other in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        assert np.asarray(one.numpy()).tobytes() == np.asarray(other.numpy()).tobytes()
