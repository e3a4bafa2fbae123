"""What nobody should hand to us, and what we say of it: the tables of each `test_untrusted.py`."""

import json
import pathlib
import traceback
import warnings

import h5py
import numpy as np
import pytest

import tf_lamb

PACKAGE = pathlib.Path(tf_lamb.__file__).parent


def refused(call, error, words):
    """One error of ours and no other, in one line that names the value and the way out."""
    with warnings.catch_warnings(), pytest.raises((Exception, SystemExit), match=words) as caught:
        warnings.simplefilter("ignore")
        call()
    assert issubclass(caught.type, error), repr(caught.value)
    raised_in = pathlib.Path(traceback.extract_tb(caught.tb)[-1].filename)
    assert raised_in.is_relative_to(PACKAGE), f"{caught.value!r} comes from {raised_in}"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2_000


def every(rows, names=None):
    """A test for each row of a table."""
    return pytest.mark.parametrize("row", rows, ids=names or map(str, range(len(rows))))


NAN = float("nan")
NESTED = "(" * 3000 + "a" + ")" * 3000

# Class, arguments, error, what it says.
CONSTRUCTORS = [
    ("LAMB", {"learning_rate": NAN}, ValueError, r"learning_rate .* nan"),
    ("LAMB", {"learning_rate": [1e-3]}, TypeError, r"learning_rate .* \[0.001\]"),
    ("LAMB", {"learning_rate": {"class_name": "os.system", "config": {}}}, TypeError,
     r"learning_rate .*os.system"),
    ("LAMB", {"beta_1": "0.9"}, TypeError, r"beta_1 .* '0.9'"),
    ("LAMB", {"epsilon": -1e-6}, ValueError, r"epsilon .* -1e-06"),
    ("LAMB", {"weight_decay": False}, TypeError, r"weight_decay .* False"),
    ("LAMB", {"weight_decay_mode": ["update"]}, ValueError, r"weight_decay_mode .* \['update'\]"),
    ("LAMB", {"bounds": {"weight_norm": (1, 2, 3)}}, TypeError, r"bounds.* \(1, 2, 3\)"),
    ("LAMB", {"bounds": {"trust_ratio": "01"}}, TypeError, r"bounds.* None is open, not '01'"),
    ("LAMB", {"treatments": {"a": {"slices": 1.5}}}, TypeError, r"treatments.* 1.5"),
    ("LAMB", {"treatments": {"a": {"slices": "01"}}}, TypeError, r"treatments.* '01'"),
    ("LAMB", {"treatments": ["a"]}, TypeError, r"treatments .* \['a'\]"),
    ("LAMB", {"treatments": {"a": {"rate": -0.5}}}, ValueError,
     r"treatments\['a'\]\['rate'\] .* -0.5"),
    ("SGDP", {"treatments": {"a": 0.5}}, TypeError, r"treatments\['a'\] .* 0.5"),
    ("LAMB", {"on_spike": "raise"}, TypeError, r"on_spike must be None, 'skip' or .* 'raise'"),
    ("LAMB", {"on_spike": [1, 6.0]}, ValueError, r"window of on_spike .* >= 2, not 1"),
    ("LAMB", {"on_spike": "skip", "on_nonfinite": "propagate"}, ValueError,
     r"on_nonfinite='propagate' at none.* Leave one"),
    ("LAMB", {"on_nonfinite": "ignore"}, ValueError, r"on_nonfinite must be one of .* 'ignore'"),
    ("Muon", {"treatments": {"a": {"rows": "0"}}}, TypeError, r"\['a'\]\['rows'\] .* '0'"),
    ("Muon", {"treatments": {"a": {"join": True}}}, ValueError, r"no 'join': .* 'rate', 'rows'"),
    ("Muon", {"form": {"newton_schulz_steps": 0}}, ValueError, r"newton_schulz_steps'\] .* 0"),
    ("Muon", {"form": {"update_scale": 2}}, ValueError, r"update_scale'\] .* 2"),
    ("Muon", {"form": {"coefficients": "keller"}}, ValueError, r"coefficients'\] .* 'keller'"),
    ("Muon", {"form": {"coefficients": [3, -4]}}, TypeError, r"coefficients'\] .*\[3, -4\]"),
    ("Muon", {"form": {"coefficients": [[3, -4, "2"]]}}, TypeError, r"coefficients'\] .* '2'"),
    ("Muon", {"form": {"coefficients": []}}, TypeError, r"coefficients'\] .* \[\]"),
    ("Muon", {"form": {"coefficients": None}}, TypeError, r"coefficients'\] .* None"),
    ("Muon", {"form": {"coefficients": [3, -4, float("nan")]}}, ValueError,
     r"coefficients'\] .* nan"),
    ("Muon", {"form": {"coefficients": "cubic5", "newton_schulz_steps": 6}}, ValueError,
     r"coefficients of 5 steps.* newton_schulz_steps=6: leave"),
    ("Muon", {"form": {"heads": "all"}}, ValueError, r"heads'\] must be one of 'each', not 'all'"),
    ("SOAP", {"form": {"heads": 12}}, ValueError, r"heads'\] must be one of 'each', not 12"),
    ("Muon", {"treatments": {"a": {"heads": "12"}}}, TypeError, r"\['heads'\] .* '12'"),
    ("Muon", {"treatments": {"a": {"heads": [1, 0]}}}, ValueError, r"\['heads'\] .* 0 blocks"),
    ("Muon", {"form": {"fallback_lr_scale": -1.0}}, ValueError, r"fallback_lr_scale'\] .* -1.0"),
    ("Muon", {"form": {"norm": "constant"}, "use_ema": True, "ema_overwrite_frequency": 5},
     ValueError, r"every 5 steps \(ema_overwrite_frequency\) .* leave one of the two out"),
    ("SOAP", {"precondition_frequency": True}, ValueError, r"precondition_frequency .* True"),
    ("SOAP", {"form": {"one_sided": 1}}, TypeError, r"one_sided.* 1"),
    ("LAMB", {"gradient_accumulation_steps": {0: 4, 500: 2}}, ValueError,
     r"gradient_accumulation_steps .* \{0: 4, 500: 2\}"),
    ("AdamP", {"gradient_accumulation_steps": {1: 2}}, ValueError,
     r"gradient_accumulation_steps .* \{1: 2\}"),
    ("LAMB", {"dtypes": {"slots": "float8"}}, ValueError, r"dtypes.* 'float8'"),
    ("LAMB", {"learning_rate": -0.1}, ValueError, r"learning_rate .*\[0, inf\).* -0.1"),
    ("LAMB", {"learning_rate": None}, TypeError, r"(?=.*=0\.01)learning_rate .* None"),
    ("LAMB", {"beta_1": 1.0}, ValueError, r"beta_1 .*\[0, 1\).* 1.0"),
    ("LAMB", {"bias_correction": 1}, TypeError, r"bias_correction .* 1"),
    ("LAMB", {"clipnorm": 1.0, "clipvalue": 2.0}, ValueError, r"clipnorm=1.0.* clipvalue=2.0"),
    ("LAMB", {"ema_momentum": 1.5}, ValueError, r"ema_momentum .*\[0, 1\].* 1.5"),
    ("LAMB", {"gradient_accumulation_steps": 1.5}, TypeError,
     r"gradient_accumulation_steps .* 1.5"),
    ("LAMB", {"jit_compile": "auto"}, TypeError, r"jit_compile .* 'auto'"),
    ("LAMB", {"exclude_from_weight_decay": "bias"}, TypeError,
     r"(?=.*'bias')exclude_from_weight_decay .*\['bias'\]"),
    ("LARS", {"form": {"a": 1}}, ValueError, r"form has no 'a'"),
    ("AdamP", {"delta": b"0.1"}, TypeError, r"delta .* b'0.1'"),
    ("SGDP", {"wd_ratio": 1.5}, ValueError, r"wd_ratio .* 1.5"),
    ("MeasureNoise", {"inner": None}, TypeError, r"MeasureNoise .* None"),
    ("AdaScale", {"scale": 0.5}, ValueError, r"scale .* 0.5"),
]  # fmt: skip

# A pattern, and what is said of it.
PATTERNS = [
    ("((", ValueError, r"'\(\('.* not a regular expression"),
    ("\\", ValueError, r"bad escape"),
    ("(?<=a+)b", ValueError, r"look-behind"),
    ("a{99999999999999}", ValueError, r"repetition number"),
    (NESTED, ValueError, r"not a regular expression.* recursion"),
    (None, TypeError, r"None"),
    (["bias"], TypeError, r"\['bias'\]"),
    (b"bias", TypeError, r"b'bias'"),
]

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
OURS = "trainer: {optimizer_config: {optimizer: {tf_lamb: {%s}}}}"
# The contents of a --config_file, and what is said of it. TOUCH is a file that code would make.
YAMLS = [
    ("!!python/object/apply:os.system ['touch TOUCH']", r"is not YAML: .*python/object/apply"),
    ("trainer: !!python/name:os.system", r"python/name"),
    ("trainer: {train_steps: 1%s}" % ("0" * 5000), r"is not YAML: .*digits"),
    (BOMB, r"too many values"),
    ("trainer: &a [*a]", r"too many values"),
    ("trainer: {train_steps: 2020-01-01}", r"is not YAML: .*2020, 1, 1"),
    ("trainer: {train_steps: 010}", r"010 in line 1 is 8 in YAML.* Write 10"),
    ("trainer: {train_steps: 1:30}", r"1:30 in line 1 is 90 in YAML.* Write 90, or '1:30' for"),
    ("[" * 5000 + "]" * 5000, r"is not YAML: .*nested"),
    ("trainer: {train_steps: 1", r"is not YAML"),
    ("? [1]\n: 2", r"is not YAML: .*unhashable"),
    ("hello", r"holds 'hello', no settings"),
    ("trainer: 3", r"trainer takes settings of its own, but it is given 3"),
    ("trainer: {optimizer_config: null}", r"optimizer_config"),
    ("trainer: {optimizer_config: {optimizer: {type: nope}}}", r"type='nope' is not known"),
    ("trainer: {optimizer_config: {optimizer: {type: null}}}", r"optimizer.type is not set"),
    ("trainer: {train_steps: many}", r"train_steps takes a value such as .* 'many'"),
    ("trainer: {train_steps: 1e3}", r"train_steps is 1000.0, which is no whole number. Write 1000"),
    ("trainer: {train_steps: 1}\ntask: {}\ntrainer: {steps_per_loop: 2}",
     r"given.yaml: trainer is in line 1 and again in line 3, and only one would count"),
    ("runtime: {num_gpus: 0, num_gpus: 1}", r"num_gpus is in line 1 and again in line 1"),
    ("runtime: {distribution_strategy: banana}", r"'banana' is not known. There is off, one_dev"),
    ("trainer: {train_stepz: 1}", r"no trainer.train_stepz. Did you mean train_steps"),
    ("trainer: {as_dict: 1}", r"there is no trainer.as_dict"),
    (OURS % "beta_1: 2", r"tf_lamb: beta_1 .* 2"),
    (OURS % "exclude_from_weight_decay: ['((']", r"'\(\('.* not a regular expression"),
    (OURS % "gradient_accumulation_steps: 0", r"gradient_accumulation_steps.* 0"),
    (OURS % "gradient_accumulation_steps: {0: 1, 500: 2}", r"_steps takes one number here"),
    ("runtime: {distribution_strategy: off}", r"YAML reads a bare off as false.* quotes: 'off'"),
    ("task: {train_data: {global_batch_size: 0}}", r"global_batch_size"),
]  # fmt: skip

# Other flags.
FLAGS = [
    ({"experiment": "lamb/bert"}, r"'lamb/bert' is not known. Did you mean lamb/bert_"),
    ({"config_file": ["/no/such.yaml"]}, r"/no/such.yaml: there is no such file"),
    ({"params_override": "trainer.train_steps"}, r"--params_override holds .* no settings"),
    ({"params_override": "/"}, r"--params_override=/ cannot be read: Is a directory"),
    ({"params_override": "trainer.train_steps=5,trainer.train_steps=6"}, r"train_steps is in line"),
    ({"params_override": "trainer.train_steps=40"}, r"would be 0 from step 20 of .*=40 on"),
    ({"params_override": "a: !!python/object/apply:os.system ['touch TOUCH']"}, r"python/object"),
    ({"recipe": "legw"}, r"--recipe=legw needs --global_batch_size"),
    ({"recipe": "legw", "global_batch_size": 10**30}, r"--global_batch_size=1000"),
    ({"per_replica_batch_size": 8, "TF_CONFIG": "{cluster"}, r"TF_CONFIG"),
]  # fmt: skip

# A call of `tf_lamb.recipes` or `tf_lamb.core.schedules`.
RECIPES = [
    ("published", ("untuned_lamb_bert", 0), r"batch_size .* 0"),
    ("published", ("untuned_lamb_bert", 512.5), r"batch_size .* 512.5"),
    ("published", ("mlperf_lars", 4097), r"4,?097"),
    ("scale", (8192, 0, 0.1, 1.0, 60000, 25), r"base_batch_size .* 0"),
    ("scale", (8192, 128, NAN, 1.0, 60000, 25), r"base_learning_rate .* nan"),
    ("scale", (8192, 128, 0.1, -1.0, 60000, 25), r"warmup.* -1"),
    ("scale", (8192, 128, 0.1, 1.0, "all", 25), r"examples .* 'all'"),
    ("_Polynomial", (-1.0, 10), r"initial_learning_rate .* -1"),
    ("_Polynomial", (1.0, 0), r"steps .* 0"),
    ("_MultiStep", ((1, 2), (1.0,)), r"2 boundaries need 3"),
    ("_MultiStep", ((1,), (1.0, "x")), r"learning_rates\[1\] .* 'x'"),
    ("Stages", ((), ()), r"Stages"),
]  # fmt: skip


# -- files ----------------------------------------------------------------------------------------


def written(name, data):
    def make(folder):
        path = folder / name
        path.write_bytes(data)
        return path

    return make


def hdf5(training_config=None, weights=None, names=None):
    """An HDF5 file as legacy Keras lays it out, with what is given in place of what belongs."""

    def make(folder):
        path = folder / "model.h5"
        with h5py.File(path, "w") as file:
            if training_config is not None:
                file.attrs["training_config"] = training_config
            group = file.create_group("optimizer_weights")
            for name, value in (weights or {}).items():
                group[name] = value
            group.attrs["weight_names"] = list(weights or ()) if names is None else names
        return path

    return make


def config(said):
    return json.dumps({"optimizer_config": {"class_name": "Addons>LAMB", "config": said}})


def pointing(text):
    def make(folder):
        (folder / "checkpoint").write_text(text)
        return folder

    return make


GOOD = {"weight_decay": 0.01, "name": "LAMB"}
SLOT = np.ones((4, 3), "float32")
# What makes the source of a migration in a folder, the error, and what it says.
SOURCES = [
    ("noise", written("model.h5", bytes(range(256)) * 9), ValueError, r"cut short or damaged"),
    ("a pickle", written("model.pkl", b"cos\nsystem\n(S'touch TOUCH'\ntR."), ValueError,
     r"cut short or damaged"),
    ("a zip", written("m.keras", b"PK\5\6" + bytes(18)), ValueError, r"holds no slots"),
    ("a pointer of noise", pointing("\0{{{"), FileNotFoundError, r"neither"),
    ("a pointer to nothing", pointing('model_checkpoint_path: "../../etc/passwd"'),
     FileNotFoundError, r"neither"),
    ("a path that cannot be", lambda folder: "a\0b", FileNotFoundError, r"neither"),
    ("bytes", lambda folder: b"model.h5", TypeError, r"source must be"),
    ("a config that is no JSON", hdf5("{"), ValueError, r"training_config"),
    ("a config that is code", hdf5("__import__('os').system('touch TOUCH')"), ValueError,
     r"training_config"),
    ("an optimizer without arguments", hdf5('{"optimizer_config": {"class_name": "LAMB"}}'),
     ValueError, r"training_config"),
    ("arguments that are a list", hdf5(config([1])), ValueError, r"training_config"),
    ("names that are numbers", hdf5(config(GOOD), names=[1, 2]), ValueError,
     r"cut short or damaged"),
    ("a counter that is a text", hdf5(config(GOOD), {"LAMB/iter:0": "five"}), ValueError,
     r"step counter"),
    ("a counter below zero",
     hdf5(config(GOOD), {"LAMB/iter:0": -3, "LAMB/dense/kernel/m:0": SLOT,
                         "LAMB/dense/kernel/v:0": SLOT}), ValueError, r"step counter"),
    ("a slot that is a text",
     hdf5(config(GOOD), {"LAMB/iter:0": 3, "LAMB/dense/kernel/m:0": "x",
                         "LAMB/dense/kernel/v:0": "y"}), ValueError, r"no array of numbers"),
]  # fmt: skip

# What `LAMB.from_addons` is given, and what it says.
ADDONS = [
    (None, r"Addons>LAMB.* None"),
    ({"class_name": "Addons>LAMB", "config": [1]}, r"Addons>LAMB"),
    ({"class_name": "os.system", "config": {"command": "touch TOUCH"}}, r"os.system"),
    ({"class_name": "Addons>LAMB", "config": {"nope": 1}}, r"'nope'"),
    ({"class_name": "Addons>LAMB", "config": {"beta_1": "high"}}, r"beta_1 .* 'high'"),
    ({"class_name": "Addons>LAMB", "config": {"learning_rate": {
        "module": "os", "class_name": "system", "config": "touch TOUCH",
        "registered_name": "system"}}}, r"learning_rate .*system"),
    ({"class_name": "Addons>LAMB", "config": {"learning_rate": {
        "class_name": "__lambda__", "config": {"value": "x"}}}}, r"learning_rate .*__lambda__"),
    ({"class_name": "Addons>LAMB", "config": {"learning_rate": {
        "class_name": "PolynomialDecay", "config": {"steps": 1}}}}, r"learning_rate .*Polynomial"),
    (pathlib.Path("/no/such/model.h5"), r"/no/such/model.h5"),
]  # fmt: skip
