"""What a user's type checker says of the public face: `make check` reads this, and nobody runs it.

A line that is wrong says so: mypy refuses an `ignore` of an error that it does not find.
"""

import pathlib
from collections.abc import Sequence

import tf_lamb
from tf_lamb_extras.automatic_warmup import AutoWarmup
from tf_lamb_extras.preflight import preflight

recipe = tf_lamb.recipes.scale(1024, 256, 1e-2, 0.5, examples=2048, epochs=20, rule="legw")
lamb: tf_lamb.LAMB = tf_lamb.LAMB.from_recipe(recipe, weight_decay=0.01)
schedule = tf_lamb.schedules.Warmup(100, 1e-3)
tf_lamb.LAMB(
    schedule, exclude_from_weight_decay="norm_and_bias", bounds={"weight_norm": (0.0, 10.0)}
)
tf_lamb.LARS(0.1, treatments={"attention": {"join": True}, "qkv/kernel": {"slices": [-1, 3]}})
tf_lamb.keras.LANS(lambda: 1e-3, clipnorm=None)
tf_lamb.LAMB(weight_decay=schedule, treatments={"embed": {"rate": 0.1}}, on_spike=[64, 4.0])
tf_lamb.Muon(treatments={"mixer": {"rows": 0}, "grouped": {"rows": None}, "turned": {"rows": [1]}})
tf_lamb.Muon(form={"heads": "each"}, treatments={"qkv/kernel": {"heads": [-1, 36]}})
tf_lamb.SOAP(form={"one_sided": True}, treatments={"mixer/kernel": {"rows": 0}})
tf_lamb.AdaScale(tf_lamb.Muon(0.02, form={"newton_schulz_steps": 5}), scale=8)
tf_lamb.Muon(form={"coefficients": [[3.4445, -4.775, 2.0315]], "update_scale": "shape"})
tf_lamb.BackupAndRestore(pathlib.Path("backup"))
seen: Sequence[str] = [ratio.path for ratio in lamb.trust_ratios()]
changes: dict = dict(tf_lamb.migrate("checkpoint", lamb, None).changes)
stages: int = len(tf_lamb.recipes.published("bert_mixed_batch").stages)
steps: int = tf_lamb.recipes.published("mlperf_lars", 32768).warmup_steps
text: str = tf_lamb.TrustRatios(every=10).table()

tf_lamb.LAMB("1e-3")  # type: ignore[arg-type]
tf_lamb.LARS(0.1, exclude_from_weight_decay=[1])  # type: ignore[list-item]
tf_lamb.LARS(0.1, treatments={"embed": 0.5})  # type: ignore[dict-item]
tf_lamb.SGDP(0.1, on_spike=6.0)  # type: ignore[arg-type]
tf_lamb.Muon(form=2.5)  # type: ignore[arg-type]
tf_lamb.LAMB.from_recipe(32768)  # type: ignore[arg-type]
tf_lamb.AdaScale(lamb, scale="8")  # type: ignore[arg-type]
tf_lamb.MeasureNoise(lamb, smoothing="0.9")  # type: ignore[arg-type]
AutoWarmup(patience="3")  # type: ignore[arg-type]
tf_lamb.schedules.Warmup("100", 1e-3)  # type: ignore[arg-type]
tf_lamb.recipes.scale("1024", 256, 1e-2, 0.5, examples=2048, epochs=20)  # type: ignore[arg-type]
preflight(None, lamb, "mse", (64, 64), topology=8)  # type: ignore[arg-type]
number: int = lamb.trust_ratios()[0].path  # type: ignore[assignment]
tf_lamb.LAMBB()  # type: ignore[attr-defined]
