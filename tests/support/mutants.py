"""Slips that somebody could make, each with the tests of `make test` that notice it.

(a file of `tf_lamb`, the tests, under `tests`): of each slip its name, a passage that stands once
in the file, and what it becomes.
"""

import dataclasses

LAMB = "core/test_lamb.py::test_lamb_is_the_oracle"
LARS = "core/test_lars.py::test_lars_is_the_oracle"
PROJECTED = "core/test_projection.py::test_the_projected_rules_are_the_oracle"
FIXED = "core/test_fixed_point.py"
NETWORK = "api/test_fixed_point.py::test_a_network_in_integers_has_the_same_outputs[keras]"
PLAN = "core/test_plan.py"
MATRICES = "core/test_matrices.py"
NOISE = "core/test_noise.py"
RECIPES = "core/test_recipes.py"
PICTURE = "core/test_recipe_plots.py"
DEFECTS = "api/test_defects.py"
OPTIMIZERS = "api/test_optimizers.py"
SCALE = "tf_keras/test_loss_scale.py"
CRASHES = "model_garden/test_crash_safety.py"
PRECISION = "api/test_precision.py"
STEPS = "api/test_steps.py"
SHARED = "keras/test_shared_update.py"
GAIN = "api/test_adascale.py::test_gain_and_tau_are_the_papers[keras-paper]"
MIGRATE = "tensorflow/test_migrate.py"
BACKUP = "tensorflow/test_backup.py"
ACCUMULATED = f"{OPTIMIZERS}::test_accumulated_micro_batches_are_one_large_batch"

CORE = {
    ("core/rules/lamb.py", LAMB): [
        ("no decay", "u = decayed(u, decay, w)", "u = decayed(u, 0.0, w)"),
        ("decay flipped", "u = decayed(u, decay, w)", "u = decayed(u, -decay, w)"),
        ("decay outside the ratio", 'weight_decay_mode="update"', 'weight_decay_mode="decoupled"'),
        ("bias correction forced", "if bias_correction:", "if True:"),
        ("betas swapped", "beta_1=0.9, beta_2=0.999", "beta_1=0.999, beta_2=0.9"),
        ("epsilon too large", "epsilon=1e-6", "epsilon=1e-3"),
        ("exclusion from adaptation ignored", "adapt=adapt", "adapt=True"),
        ("nothing is adapted", "adapt=adapt", "adapt=False"),
        ("moments swapped", "ratio * u, m, v", "ratio * u, v, m"),
    ],
    ("core/rules/shared.py", LAMB): [
        ("no ratio", "    if not adapt:", "    if True:"),
        ("ratio inverted", "safe_ratio(xp, phi, u_norm)", "safe_ratio(xp, u_norm, phi)"),
        ("no bias correction", "1.0 / debias(xp, beta, t)", "1.0"),
        ("t counts from 0", "xp.expm1(t * math", "xp.expm1((t - 1) * math"),
        ("t counts from 2", "xp.expm1(t * math", "xp.expm1((t + 1) * math"),
    ],
    ("core/rules/lans.py", "core/test_lans.py::test_lans_is_the_oracle"): [
        ("gradients keep their length", "    g = g / xp.where", "    xp.where"),
        ("no decay of the momentum's part", "decayed(estimate(xp, m, beta_1, t) / d, decay, w)",
         "estimate(xp, m, beta_1, t) / d"),
        ("no decay of the gradient's part", "decayed(g / d, decay, w)", "g / d"),
        ("one ratio for both", "* of_gradient *", "* of_momentum *"),
        ("the parts change places", "beta_1 * of_momentum * um + (1 - beta_1) * of_gradient",
         "(1 - beta_1) * of_momentum * um + beta_1 * of_gradient"),
        ("the gradient is debiased", "decayed(g / d", "decayed(g / (1 - beta_1) / d"),
        ("no bias correction", "estimate(xp, m, beta_1, t)", "m"),
        ("betas swapped", "estimate(xp, v, beta_2, t)", "estimate(xp, v, beta_1, t)"),
        ("exclusion ignored", "adapt=adapt", "adapt=True"),
    ],
    ("core/rules/lans.py", "core/test_lans.py::test_a_gradient_of_zeros_moves_what_decays_alone"): [
        ("a norm of 0 divides", "length + epsilon, 1.0", "length + epsilon, 0.0"),
    ],
    ("core/fixed_point.py", f"{FIXED}::test_random_lines_at_every_x[few]"): [
        ("a negative slope rises", "_replace(a=-mirrored.a)", "_replace(a=mirrored.a)"),
        ("the range is not mirrored", "_rising(-k, b, bits, -high, -low)",
         "_rising(-k, b, bits, low, high)"),
        ("a threshold one too far", "low + bisect", "low + 1 + bisect"),
        ("no bound at the least x", "[(low, first)] * (first > 0)", "[(low, first)] * 0"),
        ("no bound at the greatest x", "[(high, last + 1)] * (last < top)", "[]"),
        ("what is below a threshold may reach it", "min((j * one - 1 - a", "min((j * one - a"),
        ("a shift too few", "fit(d) if d < 32", "fit(max(d - 1, 0)) if d < 32"),
        ("levels end one later", "shift), 0, 2**bits - 1)", "shift), 0, 2**bits)"),
        ("levels are not clipped below", "shift), 0, 2", "shift), -1, 2"),
    ],
    ("core/fixed_point.py", f"{FIXED}::test_the_worked_lines"): [
        ("a line that is exact, unlike its floats", "key=line)",
         "key=lambda x: Fraction(k) * x + Fraction(b))"),
        ("the greatest B", "Integers(a, from_below, d)", "Integers(a, from_above, d)"),
    ],
    ("core/fixed_point.py",
     f"{FIXED}::test_the_shift_is_the_least_a_the_nearest_and_b_the_least"): [
        ("one shift more than needed", "return fit(d) if d < 32", "return fit(d + 1) if d < 32"),
        ("the A below", "a = round(slope * one)", "a = math.floor(slope * one)"),
    ],
    ("core/fixed_point.py", f"{FIXED}::test_lines_that_are_flat_or_a_step"): [
        ("steeper than all levels", "min(k, 2**bits)", "min(k, 2**40)"),
    ],
    ("core/fixed_point.py", f"{FIXED}::test_one_x_and_the_ends_of_int32"): [
        ("no bit for the sign", ".bit_length() + 1", ".bit_length()"),
    ],
    ("core/fixed_point.py", f"{FIXED}::test_the_line_that_a_layer_is"): [
        ("epsilon beside the root", "math.sqrt(variance + epsilon)",
         "(math.sqrt(variance) + epsilon)"),
        ("the offset is not scaled", "(beta - slope * mean) / scale", "beta - slope * mean"),
        ("the mean has the step", "slope * mean", "slope * step * mean"),
    ],
    ("core/rules/muon.py", "core/test_muon.py::test_a_matrix_is_the_oracles"): [
        ("no momentum", "m = momentum * m + g", "m = g"),
        ("never Nesterov", "g + momentum * m if nesterov else m", "m"),
        ("always Nesterov", "g + momentum * m if nesterov else m", "g + momentum * m"),
        ("a coefficient of another quintic", "_A, _B, _C = 3.4445", "_A, _B, _C = 3.4"),
        ("one step too few", "for _ in range(steps)", "for _ in range(steps - 1)"),
        ("no decay", "decayed(w, decay, -lr * w)", "w"),
        ("decay flipped", "decayed(w, decay, -lr * w)", "decayed(w, decay, lr * w)"),
        ("always the scale of RMS", 'if update_scale == "shape":', "if False:"),
        ("the shape turned", "max(1.0, columns / rows)", "max(1.0, rows / columns)"),
        ("as long as the shorter side", "0.2 * max(rows, columns)", "0.2 * min(rows, columns)"),
        ("a tall matrix stays turned", "xp.transpose(x) if tall else x", "x"),
    ],
    ("core/rules/muon.py", "core/test_muon.py::test_what_is_no_matrix_is_the_oracles"): [
        ("the others at the full rate", "lr=lr * others_rate", "lr=lr"),
        ("the others have a ratio", "adapt=False", "adapt=True"),
    ],
    ("core/matrices.py", f"{MATRICES}::test_paths_and_shapes_tell_what_is_a_matrix"): [
        ("a bias of two axes is a matrix", 'endswith(("bias", "/scale"))', 'endswith("/scale")'),
        ("what is named bias is one", "is_norm_or_bias(path, shape) or", "False or"),
        ("one axis is a matrix", "if len(shape) < 2:", "if len(shape) < 1:"),
        ("depthwise kernels are matrices", 'if "depthwise" in', 'if "deepwise" in'),
        ("pointwise ones are depthwise", '(layer if name == "kernel" else name)', "path"),
        ("experts are one matrix", '("expert", "block_diag")', '("block_diag",)'),
        ("an alpha is a kernel", 'if not name.endswith("kernel"):', "if False:"),
        ("a column is a matrix", 'if 1 in made["view"]', "if False"),
        ("inputs are mixed with heads", "query[0] != query[1] else (0,)", "True else (0, 1)"),
        ("a convolution of the name is attention", "match(layer) and rank == 3", "match(layer)"),
        ("offsets are a convolution", 'if layer == "sampling_offsets":', "if False:"),
        ("three axes are a convolution", "rank > 3 and", "rank > 2 and"),
        ("four axes are one", ' and "einsum_dense" not in layer', ""),
    ],
    ("core/matrices.py", f"{MATRICES}::test_the_layers_of_attention_tell_of_each_other"): [
        ("heads never come first", "return (1,) if turned", "return (1,) if False"),
        ("the output is never turned", "and shape == query", "and False"),
    ],
    ("core/step.py", f"{MATRICES}::test_a_step_is_that_of_the_matrix"): [
        ("axes stay where they are", "if treatment.order:", "if False:"),
        ("the order is not undone", "order.index(axis) for axis", "axis for axis"),
    ],
    ("core/matrices.py",
     f"{MATRICES}::test_what_the_user_says_counts_but_for_biases_and_exclusions"): [
        ("what is given is not looked at", "elif i in given:", "elif False:"),
        ("exclusions do not count", "if i in excluded:", "if False:"),
    ],
    ("core/plan.py",
     f"{MATRICES}::test_what_the_user_says_counts_but_for_biases_and_exclusions"): [
        ("the last pattern counts", "in reversed(found.items())", "in found.items()"),
    ],
    ("core/matrices.py",
     f"{MATRICES}::test_rows_that_a_variable_cannot_have_are_refused_by_name"): [
        ("an axis twice", "len(found) < len(rows) or", ""),
        ("no columns", " or len(found) == rank", ""),
        ("an axis that is not there", "if outside or", "if"),
    ],
    ("core/rules/lars.py", LARS): [
        ("nothing is adapted", "if not adapt:", "if True:"),
        ("exclusion ignored", "if not adapt:", "if False:"),
        ("no decay", "d = decayed(g, decay, w)", "d = g"),
        ("decay flipped", "d = decayed(g, decay, w)", "d = decayed(g, -decay, w)"),
        ("no decay in the ratio", "else decay * w_norm)", "else 0.0)"),
        ("no Nesterov", "u = s + momentum * v if nesterov else v", "u = v"),
        ("Nesterov forced", "s + momentum * v if nesterov else v", "s + momentum * v"),
        ("always inside", '"outside": (1.0, lr * r), "mixed": (r, lr)',
         '"outside": (lr * r, 1.0), "mixed": (lr * r, 1.0)'),
        ("always outside", '"inside": (lr * r, 1.0), "outside": (1.0, lr * r), "mixed": (r, lr)',
         '"inside": (1.0, lr * r), "outside": (1.0, lr * r), "mixed": (1.0, lr * r)'),
        ("always mixed", '"inside": (lr * r, 1.0), "outside": (1.0, lr * r)',
         '"inside": (r, lr), "outside": (r, lr)'),
        ("norm of the sum", 'ratio(d if denominator == "norm_of_sum" else g)', "ratio(d)"),
        ("no clip", "if clip:", "if False:"),
        ("no epsilon", "bottom = u_norm + epsilon", "bottom = u_norm"),
        ("no trust coefficient", "trust_coefficient * w_norm", "w_norm"),
        ("no momentum", "v = momentum * v + ", "v = "),
    ],
    ("core/rules/adamp.py", f"{PROJECTED}[adamp]"): [
        ("never projected", "if adapt and", "if False and"),
        ("no decay", "w = decayed(w, decay, -lr * rho * w)", ""),
        ("decay flipped", "-lr * rho * w", "lr * rho * w"),
        ("no Nesterov", "if nesterov else", "if False else"),
        ("Nesterov forced", "if nesterov else", "if True else"),
        ("betas swapped", "beta_1=0.9, beta_2=0.999", "beta_1=0.999, beta_2=0.9"),
        ("t counts from 2", "debias(xp, beta_1, t)", "debias(xp, beta_1, t + 1)"),
    ],
    ("core/rules/sgdp.py", f"{PROJECTED}[sgdp]"): [
        ("never projected", "if adapt and", "if False and"),
        ("no decay", "w = decayed(w, decay, -lr * rho / (1 - momentum) * w)", ""),
        ("decay flipped", "-lr * rho / ", "lr * rho / "),
        ("no Nesterov", "if nesterov else", "if False else"),
        ("Nesterov forced", "if nesterov else", "if True else"),
        ("no momentum", "v = momentum * v + ", "v = "),
    ],
    **{
        ("core/rules/shared.py", f"{PROJECTED}[{rule}]"): [
            ("decay not shrunk", "xp.where(invariant, wd_ratio * one, shrink)", "shrink"),
            ("always projected", "< delta / row_length**0.5", "< 1e9"),
            ("threshold four times as high", "< delta / row", "< 4 * delta / row"),
            ("channels first", "(axes, whole)", "(tuple(a + 1 for a in axes), whole)"),
        ]
        for rule in ("adamp", "sgdp")
    },
    ("core/plan.py", f"{PLAN}::test_adaptation_follows_decay_unless_told_otherwise"): [
        ("an exclusion decays", "0.0 if i in undecayed else weight_decay", "weight_decay"),
        ("adaptation never follows decay", "unadapted = undecayed - joined", "pass"),
        ("an empty list is none", "if exclude_from_layer_adaptation is None",
         "if not exclude_from_layer_adaptation"),
    ],
    ("core/plan.py", f"{PLAN}::test_a_variable_can_be_excluded_as_an_object"): [
        ("no exclusion by identity", "if excluded}", "if False}"),
    ],
    ("core/patterns.py", f"{PLAN}::test_an_exact_pattern_matches_one_path_only"): [
        ("an exact pattern has no end", '{re.escape(path)}$"', '{re.escape(path)}"'),
    ],
    ("core/patterns.py",
     f"{PLAN}::test_two_variables_of_one_path_answer_to_it_and_each_to_its_number"): [
        ("a number answers to every pattern", 'if "#" in pattern:', "if True:"),
        ("no number answers", 'if "#" in pattern:', "if False:"),
    ],
    ("core/patterns.py", f"{PLAN}::test_a_number_of_another_count_is_refused"): [
        ("another count goes unnoticed", "if not hits:", "if False:"),
    ],
    ("core/patterns.py", f"{PLAN}::test_layers_of_one_path_are_joined_each_by_itself"): [
        ("layers of one path are one", 'layer if count == "1" else', "layer if True else"),
        ("they need not be as many", 'if count != number.rpartition("of")[2]', "if False"),
    ],
    ("core/patterns.py", f"{PLAN}::test_a_stable_path_is_the_same_on_every_replica"): [
        ("replicas have paths of their own", r"(/replica_\d+)?", ""),
    ],
    ("core/plan.py", f"{PLAN}::test_a_pattern_that_matches_nothing_is_named"): [
        ("a pattern in vain goes unnoticed", "if not count and", "if count is None and"),
    ],
    (
        "core/patterns.py",
        f"{PLAN}::test_an_anchored_pattern_may_leave_out_the_name_of_the_model",
    ): [
        ("the model keeps its name", "(path, path.removeprefix(root))", "(path,)"),
        ("any first name is the model's", "names[0] in layers", "True"),
    ],
    ("core/patterns.py",
     f"{PLAN}::test_of_two_names_that_a_model_could_have_the_order_chooses_none"): [
        ("the first path chooses",
         'sorted({path.partition("/")[0] for path in paths if "/" in path})',
         '[path.partition("/")[0] for path in paths if "/" in path]'),
    ],
    ("core/plan.py", f"{PLAN}::test_a_preset_is_one_in_the_exclusions_alone"): [
        ("a preset in vain goes unnoticed", "and not preset)", "and p != 'norm_and_bias')"),
    ],
    ("core/patterns.py", f"{PLAN}::test_a_pattern_is_found_where_re_finds_it"): [
        ("a pattern must match the whole", "regex.search, names", "regex.fullmatch, names"),
        ("a preset stands for groups", "argument in EXCLUSIONS and", ""),
    ],
    ("core/patterns.py", f"{PLAN}::test_a_path_that_nobody_meant_is_refused"): [
        ("a path of any length", "if len(names[0]) > LONGEST_PATH", "if not names[0]"),
    ],
    ("core/checks.py", f"{PLAN}::test_a_pattern_that_nobody_meant_is_refused"): [
        ("a pattern of any length", "if len(pattern) > LONGEST_PATTERN", "if not argument"),
    ],
    ("core/schedules.py", PICTURE): [
        ("decay goes on after a continuous warmup",
         'begun = step if self.handover == "drop" else', "begun = step if True else"),
        ("warmup is a step longer", "xp.where(step < self.steps", "xp.where(step <= self.steps"),
        ("stages count from the first", "own = xp.maximum(step - begin, 0)", "own = step"),
        ("the rate falls a step late", "step >= math.ceil(boundary)", "step > math.ceil(boundary)"),
    ],
    ("core/rules/rounding.py", "core/test_rounding.py"): [
        ("the same noise at every step", "xp.reshape(xp.cast(t,", "0 * xp.reshape(xp.cast(t,"),
        ("the same noise in every layer", "seed + number +", "seed +"),
        ("slots share their noise", "16 * half", "0"),
        ("infinity is a neighbour", "> _LARGEST", "> _LARGEST + 1"),
        ("infinity and NaN are rounded", "xp.isfinite(x)", "xp.isfinite(0 * noise)"),
        ("half of the noise", '"int32") + noise', '"int32") + noise // 2'),
    ],
    ("core/noise.py", NOISE): [
        ("variance over all parts", "(local - total) / (parts - 1)", "(local - total) / parts"),
        ("the signal keeps its noise", "(parts * total - local) / (parts - 1)", "total"),
        ("no bias correction", "/ debias(xp, theta, count)", ""),
        ("a bad step enters the averages", "& when", "| when"),
        ("a noise scale of no signal", "if signal > 0 else math.nan", ""),
        ("the scale forgotten", "variance / scale + signal", "variance + signal"),
        ("the memory grows with the scale", "1 - scale / 1000", "scale / 1000"),
    ],
    ("core/recipes/arithmetic.py", RECIPES): [
        ("steps are rounded down", "+ Fraction(1, 2)", ""),
    ],
    ("core/recipes/published.py", RECIPES): [
        ("linear scaling", "math.sqrt(batch_size / 32768)", "(batch_size / 32768)"),
        ("a stage of the wrong length", "6e-3, 2000, 7037, 0.9", "6e-3, 2000, 7038, 0.9"),
    ],
    ("core/recipes/scaling.py", RECIPES): [
        ("warmup is not stretched", "base_warmup_epochs * k if", "base_warmup_epochs if"),
        ("warmup from above", "min(base_learning_rate, learning_rate)", "base_learning_rate"),
    ],
    ("core/recipes/recipe.py", PICTURE): [
        ("the warmup is counted twice", '(warmup if handover == "continuous" else 0)', "warmup"),
        ("boundaries count from the peak", 'schedules.MultiStep(recipe.boundaries, rates), "drop"',
         'schedules.MultiStep(recipe.boundaries, rates), "continuous"'),
    ],
}  # fmt: skip


TENSORFLOW = {
    ("api/layers/fixed_point.py", NETWORK): [
        ("the layer's bias is lost", "mean - bias", "mean"),
        ("the activation's scale is lost", "scale=activation.scale", "scale=1.0"),
    ],
    ("api/layers/fixed_point.py",
     "api/test_fixed_point.py::test_a_range_said_by_hand_leaves_the_bias_in_b[keras]"): [
        ("no bias where a range is said", "finder.bias(call, channels)", "(0.0,) * channels"),
    ],
    ("api/layers/accumulators.py", NETWORK): [
        ("the scale of the inputs is lost", "step=scale * step", "step=step"),
    ],
    ("api/layers/accumulators.py",
     "api/test_fixed_point.py::test_ranges_are_those_that_the_kernels_allow[keras]"): [
        ("half the step", "return step, kernel / step", "return step / 2, kernel / step * 2"),
        ("a level too few", "0, 2**layer.bits - 1", "0, 2**layer.bits - 2"),
        ("the least and the greatest turned", "a * least + b * most", "b * least + a * most"),
    ],
    ("api/layers/fixed_point.py",
     "api/test_fixed_point.py::test_the_gradient_goes_straight_through[keras]"): [
        ("no gradient", "kept + xp.stop_gradient(levels - kept)", "levels"),
        ("a gradient everywhere", "xp.clip(inputs, 0.0, top * self.scale)", "inputs"),
    ],
    ("tensorflow/fixed_point.py",
     "api/test_fixed_point.py::test_tensors_have_the_same_levels[keras]"): [
        ("no range", "(wide >= low) & (wide <= high)", "wide == wide"),
        ("no shift", "map(along, (layer.a, layer.b, layer.shift))",
         "map(along, (layer.a, layer.b, [0] * len(layer.a)))"),
    ],
    ("keras/optimizer.py", f"{DEFECTS}::test_d27_bias_correction_is_a_switch"): [
        ("t counts from 2", "t=t,", "t=t + 1,"),
    ],
    ("keras/optimizer.py", f"{OPTIMIZERS}::test_gradients_are_clipped[clipnorm-keras]"): [
        ("no clipping", '"clip": self.clip_aggregated,', '"clip": list,'),
    ],
    ("keras/optimizer.py", f"{DEFECTS}::test_d32_the_norm_is_of_the_master"): [
        ("no master", "if self._settings.master_weights and", "if False and"),
    ],
    ("keras/optimizer.py", f"{DEFECTS}::test_d08_the_config_has_both_lists"): [
        ("a config of the rate alone", "return self._config(", "return dict(learning_rate="),
    ],
    ("tf_keras/optimizer.py", f"{DEFECTS}::test_d27_bias_correction_is_a_switch"): [
        ("t counts from 2", "t = self.iterations + 1", "t = self.iterations + 2"),
    ],
    ("tf_keras/host.py", f"{ACCUMULATED}[{{'clipnorm': 0.1}}-tf_keras]"): [
        ("clipped before it is the mean", "return grads",
         "return super()._clip_gradients(grads)"),
    ],
    ("tf_keras/optimizer.py", f"{OPTIMIZERS}::test_between_updates_nothing_moves[tf_keras]"): [
        ("the first micro-batch moves", "(self._micro_step + 1) %", "self._micro_step %"),
    ],
    ("tf_keras/host.py",
     f"{OPTIMIZERS}::test_the_learning_rate_is_read_at_every_step[a callable-tf_keras]"): [
        ("a callable is called once", "return tf.cast(self._function(), ", "return tf.cast(0.1, "),
    ],
    ("tf_keras/optimizer.py", f"{DEFECTS}::test_d32_the_norm_is_of_the_master"): [
        ("no master", "if self._settings.master_weights and", "if False and"),
    ],
    ("tensorflow/update.py", f"{STEPS}::test_micro_batches_count_by_their_mean"): [
        ("the sum of the micro-batches", "accumulator / self.accumulation_steps",
         "accumulator / 1"),
        ("accumulators are never cleared", "each.assign(tf.zeros_like(each))", "each"),
    ],
    ("core/step.py", f"{OPTIMIZERS}::test_averages_follow_the_weights[2-keras]"): [
        ("averages of the last weight", "m * average + (1 - m)", "(1 - m) * average + m"),
    ],
    ("tensorflow/replicas.py",
     "tensorflow/test_accumulation.py::test_what_is_saved_between_two_updates_goes_on"
     "[keras-2-2-saved_in_a_file]"): [
        ("summed at every micro-batch", "tf.cond(is_update(), add_up, lambda: None)", "add_up()"),
        ("never summed", "extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)",
         "extended and own"),
        ("the first replica's alone is saved", "VariableAggregation.SUM",
         "VariableAggregation.ONLY_FIRST_REPLICA"),
    ],
    ("tf_keras/optimizer.py",
     "tensorflow/test_accumulation.py::test_whoever_sums_gradients_they_count_once[by the user]"): [
        ("sums count once for each replica", "gradient: gradient / n", "gradient: gradient"),
    ],
    ("tf_keras/optimizer.py", f"{SCALE}::test_the_scale_grows_with_updates_and_stays_within_one"): [
        ("the scale moves at every micro-batch", "tf.cond(due, ", "tf.cond(True, "),
    ],
    ("tf_keras/host.py",
     f"{SCALE}::test_an_update_that_overflows_is_dropped_as_one[one device-the first part]"): [
        ("the scale never moves", "move([tf.where(skipped, math.nan, 0.0)])", "pass"),
        ("the wrapper drops, too", "scale.update = _let_through", "pass"),
    ],
    ("tf_keras/host.py", f"{SCALE}::test_replicas_are_summed_once_an_update[dynamic]"): [
        ("a loss scale sums at every micro-batch", "accumulates and is_in_loss_scale(self)",
         "False"),
    ],
    ("model_garden/experiments/averages.py",
     "model_garden/test_averages.py::test_a_skipped_update_moves_no_average[None]"): [
        ("averages move at every call", "iterations > before", "iterations >= before"),
    ],
    ("tf_keras/measured.py",
     "tensorflow/test_adascale_replicas.py::test_the_noise_scale_is_numpys[tf_keras]"): [
        ("squares of a replica's part", "self._replicas * squares], into", "squares], into"),
    ],
    ("tensorflow/update.py", f"{STEPS}::test_variables_of_one_shape_keep_their_own_treatment"): [
        ("one program for every treatment", "(layer.treatments, *", "(None, *"),
    ],
    ("api/variables.py",
     f"{DEFECTS}::test_d05_patterns_see_the_name_of_the_layer[functional-keras]"): [
        ("patterns see the last name", 'getattr(variable, "path", None)', "variable.name"),
    ],
    (
        "api/optimizers/layerwise.py",
        "api/test_exclusions.py::test_the_method_of_keras_excludes_too[keras]",
    ): [
        ("identities are not saved", "if names := dict(self._undecayed).values():", "if False:"),
    ],
    ("core/step.py", f"{PRECISION}::test_a_moment_in_bfloat16_does_not_stand_still[keras]"): [
        ("rounded to the nearest", 'if dtype != "bfloat16":', "if True:"),
    ],
    ("core/step.py", f"{PRECISION}::test_a_master_keeps_what_half_precision_cannot[keras]"): [
        ("no master is kept", "None if old.master is None else weight", "old.master"),
        ("the rule steps the weight", "xp.where(is_rounded, master, weight)", "weight"),
    ],
    ("core/step.py", f"{DEFECTS}::test_d36_fused_blocks_can_have_a_ratio_each[keras]"): [
        ("one ratio for all slices", "axes=treatment.axes", "axes=None"),
    ],
    ("core/noise.py", GAIN): [
        ("the squares are summed", "squares / micro_batches, is_update", "squares, is_update"),
        ("fractions of a step are lost", "fraction - whole", "0.0 * whole"),
        ("the base batch is the whole", "scale * variance, signal", "variance, signal"),
    ],
    ("api/schedules.py", f"{DEFECTS}::test_d09_a_warmup_survives_its_config[keras]"): [
        ("what is inside stays a dict", "name: cls._deserialized(value)", "name: value"),
    ],
    ("api/migration/source.py", f"{MIGRATE}::test_other_names_and_fresh_variables"): [
        ("rename is ignored", "rename.get(path) or ", ""),
    ],
    ("api/migration/source.py", f"{MIGRATE}::test_the_name_of_the_model_does_not_matter"): [
        ("the model's name matters", " or lookup.get(own)", ""),
    ],
    ("tensorflow/checkpoints.py",
     f"{MIGRATE}::test_a_file_goes_on_as_the_peer_did[keras-Addons checkpoint]"): [
        ("steps begin anew", 'peers.step_of(values["iter"])', "0"),
    ],
    ("keras/callbacks.py", f"{BACKUP}::test_a_broken_backup_is_refused[keras-cut-*.h5]"): [
        ("what is broken is not said", "raise self._refusal(error) from error", "return"),
    ],
    ("model_garden/folders/checkpoints.py",
     f"{CRASHES}::test_a_run_goes_on_from_the_last_checkpoint_that_is_whole"): [
        ("what is broken is not read", "reader.get_tensor(name)", "pass"),
        ("the oldest first", "reverse=True", "reverse=False"),
    ],
    ("model_garden/folders/model_dirs.py",
     "model_garden/test_model_dirs.py::test_a_model_dir_of_another_experiment_or_seed"): [
        ("the seed of another run", "if seed is not None and", "if False and"),
    ],
}  # fmt: skip
JAX = {
    ("keras/update.py", f"{OPTIMIZERS}::test_gradients_are_clipped[clipnorm-keras]"): [
        ("no clipping", "gradients = self.clip(gradients)", ""),
    ],
    ("keras/update.py", f"{STEPS}::test_micro_batches_count_by_their_mean"): [
        ("the sum of the micro-batches", "gradient / self.accumulation_steps", "gradient"),
        ("accumulators are never cleared", "ops.where(is_update, ops.zeros_like(total), total)",
         "total"),
    ],
    ("keras/update.py", f"{OPTIMIZERS}::test_between_updates_nothing_moves"): [
        ("every micro-batch moves", "self._within(scalars.is_update,", "self._within(True,"),
    ],
    ("keras/update.py", f"{OPTIMIZERS}::test_averages_follow_the_weights[2-keras]"): [
        ("never overwritten", "scalars.ema_overwrites, ops.cast", "False, ops.cast"),
    ],
    ("keras/update.py", "api/test_nonfinite.py::test_every_optimizer_skips"): [
        ("a bad step is taken", "due = ops.all(finite)", "due = ops.any(finite) | True"),
    ],
    ("keras/update.py", f"{SHARED}::test_a_loss_scale_is_one_for_all"): [
        ("the gradient of one replica", "ops.sum(gradient, axis=0)", "gradient[0]"),
    ],
    ("keras/replicas.py", f"{SHARED}::test_a_loss_scale_is_one_for_all"): [
        ("gradients as large as the sum", "g[None] / n", "g[None]"),
    ],
    ("keras/replicas.py", f"{SHARED}::test_a_replica_is_for_itself"): [
        ("all replicas draw alike", "jax.numpy.uint32(GOLDEN_RATIO) *", "jax.numpy.uint32(0) *"),
        ("the seed runs away", "v.at[0].add(-own)", "v"),
        ("the statistics of one replica", "jax.lax.pmean(value, axis) if", "value if"),
    ],
    ("keras/sharding.py", f"{SHARED}::test_each_device_keeps_its_share"): [
        ("every device keeps all", "axes[i] = self._name", "axes[i] = None"),
    ],
    ("keras/sharding.py", f"{SHARED}::test_interrupted_in_the_middle_of_an_update[4-True]"): [
        ("what one replica had added up", "value.sum(axis=0) if", "value[0] if"),
    ],
    ("keras/measured.py", f"{SHARED}::test_replicas_are_parts_of_the_batch"): [
        ("squares of shares", "return self._replicas * squares", "return squares"),
        ("the mean of one replica", "ops.sum(g, axis=0) for", "g[0] for"),
    ],
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One slip: the file, the passage, what it becomes, and the tests that must then fail."""

    file: str
    name: str
    before: str
    after: str
    tests: tuple[str, ...]


def _of(table):
    return [
        Mutant(file, *slip, tuple(tests))
        for (file, *tests), slips in table.items()
        for slip in slips
    ]


# By what has to be loaded: nothing, both Kerases on TensorFlow, Keras 3 on JAX.
MUTANTS = {"core": _of(CORE), "tensorflow": _of(TENSORFLOW), "jax": _of(JAX)}
