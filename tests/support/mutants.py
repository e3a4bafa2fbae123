"""Slips that somebody could make, each with the test that notices it.

(a definition of the package, the test, under `tests`): of each slip its name, a passage of the
definition, and what it becomes.

A definition is a function, a class or a constant, named as in `support/killing.py`: `lamb`,
`Update._apply`, or with its room where both Kerases have one, `keras.LayerwiseOptimizer.build`;
its file does not matter. A passage is of its code as `ast.unparse` writes it: without comments, on
one line a statement, in single quotes.
"""

import dataclasses

LAMB = "core/test_lamb.py::test_lamb_is_the_oracle"
LANS = "core/test_lans.py::test_lans_is_the_oracle"
LARS = "core/test_lars.py::test_lars_is_the_oracle"
PROJECTED = "core/test_projection.py::test_the_projected_rules_are_the_oracle"
FIXED = "extras/integers/test_arithmetic.py"
INTEGERS = "extras/integers/test_model.py"
NETWORK = f"{INTEGERS}::test_a_network_in_integers_has_the_same_outputs[keras]"
PLAN = "core/test_plan.py"
MATRICES = "core/test_matrices.py"
GIVEN = f"{MATRICES}::test_what_the_user_says_counts_but_for_biases_and_exclusions"
SOAP = "core/test_soap.py"
NOISE = "core/test_noise.py"
GOODPUT = "core/test_goodput.py"
RECIPES = "core/test_recipes.py"
PICTURE = "core/test_recipe_plots.py"
DEFECTS = "contracts/test_defects.py"
OPTIMIZERS = "contracts/test_optimizers.py"
SCALE = "tf_keras/test_loss_scale.py"
SCALED = "api/test_loss_scale.py"
CRASHES = "model_garden/test_crash_safety.py"
PRECISION = "contracts/test_precision.py"
SOAP_TRAINS = "api/test_soap.py::test_soap_is_the_oracle[float32-2e-05-keras]"
STEPS = "contracts/test_steps.py"
CONFIG = "contracts/test_frontends.py::test_the_config_holds_every_argument[keras]"
PATTERNS = "api/test_exclusions.py::test_the_same_patterns_exclude_the_same_variables"
JOINT = "api/test_schedules.py::test_the_joint_of_a_warmup_with_the_hosts_own_is_exact"
SHARED = "keras/test_shared_update.py"
GAIN = "api/test_adascale.py::test_gain_and_tau_are_the_papers[keras-paper]"
MIGRATE = "tensorflow/test_migrate.py"
BACKUP = "tensorflow/test_backup.py"
ACCUMULATION = "tensorflow/test_accumulation.py"
ADASCALE = "tensorflow/test_adascale_replicas.py"
SAVED = f"{ACCUMULATION}::test_what_is_saved_between_two_updates_goes_on[keras-2-2-saved_in_a_file]"
UNCLEAR = f"{PLAN}::test_of_two_names_that_a_model_could_have_the_order_chooses_none"
ACCUMULATED = f"{OPTIMIZERS}::test_accumulated_micro_batches_are_one_large_batch"

MULTIPLIERS = "contracts/test_multipliers.py"
SPIKES = "contracts/test_spikes.py"
DECAYS = "contracts/test_decay_schedules.py"
GROWING = "contracts/test_growing_batches.py"
MISSING = "contracts/test_missing_gradients.py"
FROZEN = f"{MISSING}::test_what_is_frozen_when_the_update_comes_stays_as_it_was"
STAGES = "core/test_accumulation.py"
GROWN = "core/test_growing.py"
FIT_STAGES = "api/test_fit_stages.py"

CORE = {
    ("lamb", LAMB): [
        ("no decay", "u = decayed(u, decay, w)", "u = decayed(u, 0.0, w)"),
        ("decay flipped", "u = decayed(u, decay, w)", "u = decayed(u, -decay, w)"),
        ("decay outside the ratio", "weight_decay_mode='update'",
         "weight_decay_mode='decoupled'"),
        ("bias correction forced", "if bias_correction:", "if True:"),
        ("betas swapped", "beta_1=0.9, beta_2=0.999", "beta_1=0.999, beta_2=0.9"),
        ("epsilon too large", "epsilon=1e-06", "epsilon=0.001"),
        ("exclusion from adaptation ignored", "adapt=adapt", "adapt=True"),
        ("nothing is adapted", "adapt=adapt", "adapt=False"),
        ("moments swapped", "ratio * u, m, v", "ratio * u, v, m"),
    ],
    ("trust_ratio", LAMB): [
        ("no ratio", "    if not adapt:", "    if True:"),
        ("ratio inverted", "safe_ratio(xp, phi, u_norm)", "safe_ratio(xp, u_norm, phi)"),
    ],
    ("estimate", LAMB): [
        ("no bias correction", "1.0 / debias(xp, beta, t)", "1.0"),
    ],
    ("debias", LAMB): [
        ("t counts from 0", "xp.expm1(t * math", "xp.expm1((t - 1) * math"),
        ("t counts from 2", "xp.expm1(t * math", "xp.expm1((t + 1) * math"),
    ],
    ("lans", LANS): [
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
    ("count", f"{STAGES}::test_an_update_takes_as_many_as_its_stage"): [
        ("a stage begins an update late", "step >= start", "step > start"),
    ],
    ("batches", f"{STAGES}::test_batches_are_those_of_each_update"): [
        ("those of earlier updates, too", "max(step, start)", "start"),
    ],
    ("accumulation", f"{STAGES}::test_what_cannot_be_is_refused"): [
        ("a batch may shrink", "or counts != sorted(counts)", ""),
    ],
    ("multiples", f"{GROWN}::test_a_larger_batch_is_not_begun_for_fewer_than_four_updates"): [
        ("the batch shrinks at the end", "return np.maximum.accumulate(k)", "return k"),
    ],
    ("_stages", f"{GROWN}::test_every_rate_is_that_of_the_recipe_at_these_examples"): [
        ("a stage counts its own steps", "begin += steps * k", "begin += steps"),
    ],
    ("_stage", f"{GROWN}::test_every_rate_is_that_of_the_recipe_at_these_examples"): [
        ("the square root for SGD, too", "k if recipe.optimizer == 'SGD' else math.sqrt(k)",
         "math.sqrt(k)"),
    ],
    ("Epochs._before", "core/test_epochs.py::test_an_epoch_is_the_updates_that_begin_in_it"): [
        ("an update is of the epoch that it ends in", "math.ceil(at / stage.batch)",
         "math.floor(at / stage.batch)"),
    ],
    ("lans", "core/test_lans.py::test_a_gradient_of_zeros_moves_what_decays_alone"): [
        ("a norm of 0 divides", "length + epsilon, 1.0", "length + epsilon, 0.0"),
    ],
    ("_found", f"{FIXED}::test_random_lines_at_every_x[few]"): [
        ("a negative slope rises", "_replace(a=-mirrored.a)", "_replace(a=mirrored.a)"),
        ("the range is not mirrored", "_rising(-k, b, bits, -high, -low)",
         "_rising(-k, b, bits, low, high)"),
    ],
    ("_thresholds", f"{FIXED}::test_random_lines_at_every_x[few]"): [
        ("a threshold one too far", "low + bisect", "low + 1 + bisect"),
    ],
    ("_rising", f"{FIXED}::test_random_lines_at_every_x[few]"): [
        ("no bound at the least x", "[(low, first)] * (first > 0)", "[(low, first)] * 0"),
        ("no bound at the greatest x", "[(high, last + 1)] * (last < top)", "[]"),
        ("a shift too few", "fit(d) if d < 32", "fit(max(d - 1, 0)) if d < 32"),
    ],
    ("_fit", f"{FIXED}::test_random_lines_at_every_x[few]"): [
        ("what is below a threshold may reach it", "min(((j * one - 1 - a", "min(((j * one - a"),
    ],
    ("evaluate", f"{FIXED}::test_random_lines_at_every_x[few]"): [
        ("levels end one later", "2 ** bits - 1)", "2 ** bits)"),
        ("levels are not clipped below", "shift), 0, 2", "shift), -1, 2"),
    ],
    ("_thresholds", f"{FIXED}::test_the_worked_lines"): [
        ("a line that is exact, unlike its floats", "key=line)",
         "key=lambda x: Fraction(k) * x + Fraction(b))"),
    ],
    ("_fit", f"{FIXED}::test_the_worked_lines"): [
        ("the greatest B", "Integers(a, from_below, d)", "Integers(a, from_above, d)"),
    ],
    ("_rising", f"{FIXED}::test_the_shift_is_the_least_a_the_nearest_and_b_the_least"): [
        ("one shift more than needed", "return fit(d) if d < 32", "return fit(d + 1) if d < 32"),
    ],
    ("_fit", f"{FIXED}::test_the_shift_is_the_least_a_the_nearest_and_b_the_least"): [
        ("the A below", "a = round(slope * one)", "a = math.floor(slope * one)"),
    ],
    ("_rising", f"{FIXED}::test_lines_that_are_flat_or_a_step"): [
        ("steeper than all levels", "min(k, 2 ** bits)", "min(k, 2 ** 40)"),
    ],
    ("width", f"{FIXED}::test_one_x_and_the_ends_of_int32"): [
        ("no bit for the sign", ".bit_length() + 1", ".bit_length()"),
    ],
    ("folded", f"{FIXED}::test_the_line_that_a_layer_is"): [
        ("epsilon beside the root", "math.sqrt(variance + epsilon)",
         "(math.sqrt(variance) + epsilon)"),
        ("the offset is not scaled", "(beta - slope * mean) / scale", "beta - slope * mean"),
        ("the mean has the step", "slope * mean", "slope * step * mean"),
    ],
    ("muon", "core/test_muon.py::test_a_matrix_is_the_oracles"): [
        ("no momentum", "m = momentum * m + g", "m = g"),
        ("never Nesterov", "g + momentum * m if nesterov else m", "m"),
        ("always Nesterov", "g + momentum * m if nesterov else m", "g + momentum * m"),
        ("no decay", "decayed(w, decay, -lr * w)", "w"),
        ("decay flipped", "decayed(w, decay, -lr * w)", "decayed(w, decay, lr * w)"),
        ("always the scale of RMS", "if form.update_scale == 'shape':", "if False:"),
        ("the shape turned", "max(1.0, columns / rows)", "max(1.0, rows / columns)"),
        ("as long as the shorter side", "0.2 * max(rows, columns)", "0.2 * min(rows, columns)"),
    ],
    ("_A", "core/test_muon.py::test_a_matrix_is_the_oracles"): [
        ("a coefficient of another quintic", "3.4445", "3.4"),
    ],
    ("orthogonalized", "core/test_muon.py::test_a_matrix_is_the_oracles"): [
        ("one step too few", "for _ in range(steps)", "for _ in range(steps - 1)"),
        ("a tall matrix stays turned", "transposed(xp, x) if tall else x", "x"),
    ],
    ("_of_stack", "core/test_stacks.py::test_steps_come_to_what_they_come_to_alone"): [
        ("a neighbour's part", "array[i]", "array[i - 1]"),
    ],
    ("transposed", "core/test_stacks.py::test_the_last_two_axes_are_exchanged"): [
        ("the stack turned, too", "(*others, columns, rows)", "(columns, rows, *others)"),
    ],
    ("muon", "core/test_muon.py::test_what_is_no_matrix_is_the_oracles"): [
        ("the others at the full rate", "lr=lr * form.fallback_lr_scale", "lr=lr"),
    ],
    ("adamw", "core/test_muon.py::test_what_is_no_matrix_is_the_oracles"): [
        ("the others have a ratio", "adapt=False", "adapt=True"),
    ],
    ("soap", f"{SOAP}::test_a_matrix_is_the_oracles"): [
        ("the first gradient moves, too", "xp.where(begins, w, decayed(",
         "xp.where(begins, w - lr * g, decayed("),
        ("the first step counts", "xp.where(stays, s, s + 1)",
         "xp.where(begins, s + 2, s + 1)"),
        ("decay before the step", "decayed(new_w, decay, -lr * new_w)",
         "decayed(new_w, decay, -lr * w)"),
        ("epsilon beside the corrected moment", "(safe_root(xp, new_v) + epsilon)",
         "(safe_root(xp, new_v) + epsilon * xp.sqrt(debias(xp, beta_2, n)))"),
        ("momentum not in the basis", "(inside / (", "(new_m / ("),
        ("renewed a step late", "% precondition_frequency, 0)", "% precondition_frequency, 1)"),
        ("no bias correction of v", "debias(xp, beta_2, n) ** 0.5", "1.0"),
        ("factors forget nothing", "beta_2 * factor", "factor"),
    ],
    ("adamw", f"{SOAP}::test_what_is_no_matrix_is_adamws"): [
        ("the others have a ratio", "adapt=False", "adapt=True"),
    ],
    ("soap", f"{SOAP}::test_a_matrix_counts_its_own_steps"): [
        ("it counts all", "*pairs, kept, s = state", "*pairs, kept, s = (*state[:-1], t - 1)"),
    ],
    ("out_of_bases", f"{SOAP}::test_a_matrix_is_the_oracles"): [
        ("the update not out of it", "basis @ x", "transposed(xp, basis) @ x"),
    ],
    ("squares", f"{SOAP}::test_a_matrix_is_the_oracles"): [
        ("sides exchanged", "if side == 0", "if side == 1"),
    ],
    ("renewed", f"{SOAP}::test_a_matrix_is_the_oracles"): [
        ("the second moment stays in its order",
         "xp.take_along_axis(ordered, *((along, -2) if side == 0 else (across, -1)))", "ordered"),
        ("the basis stays in its order", "xp.take_along_axis(image, across, -1)", "image"),
        ("the smallest first", "xp.argsort(-", "xp.argsort("),
    ],
    ("renewed", f"{SOAP}::test_cholesky_finds_what_householder_finds[rank 1]"): [
        ("what has no weight is noise", "0.0001 * basis", "0.0 * basis"),
    ],
    ("renewed", f"{SOAP}::test_a_factor_that_has_faded_still_has_a_basis[0.0]"): [
        ("nothing is divided by nothing", "xp.where(mean > 0, mean, 1.0)", "mean"),
    ],
    ("renewed", f"{SOAP}::test_in_a_stack_each_has_its_own_clock_scale_and_faults"): [
        ("all begin", "_taken(xp, begins,", "_taken(xp, begins | True,"),
        ("all are due", "_taken(xp, due,", "_taken(xp, due | True,"),
    ],
    ("_phase", f"{SOAP}::test_shapes_take_turns"): [
        ("all at once", "rows + 3 * columns", "0 * rows"),
    ],
    ("_taken", f"{SOAP}::test_a_basis_that_is_not_finite_stays_and_is_counted"): [
        ("nobody counts", "kept + 1", "kept"),
        ("taken as it comes", "xp.where(takes, basis * sign, before)", "basis * sign"),
    ],
    ("_taken", f"{SOAP}::test_a_basis_that_is_not_orthogonal_is_not_taken"): [
        ("finite is enough", "< 0.0001", "< 1000.0"),
    ],
    ("_taken", f"{SOAP}::test_bases_stay_orthogonal_and_in_order"): [
        ("signs stay open", "basis * sign", "basis"),
    ],
    ("sides_of", f"{SOAP}::test_the_sides_that_have_a_basis"): [
        ("the longer side", "shape[1] < shape[0]", "shape[1] > shape[0]"),
        ("one too long", "shape[axis] <= max_precond_dim", "shape[axis] <= max_precond_dim + 2"),
    ],
    ("matrices.layout", f"{MATRICES}::test_paths_and_shapes_tell_what_is_a_matrix"): [
        ("a bias of two axes is a matrix", "endswith(('bias', '/scale'))", "endswith('/scale')"),
        ("what is named bias is one", "is_norm_or_bias(path, shape) or", "False or"),
    ],
    ("_found", f"{MATRICES}::test_paths_and_shapes_tell_what_is_a_matrix"): [
        ("one axis is a matrix", "if len(shape) < 2:", "if len(shape) < 1:"),
        ("depthwise kernels are matrices", "if 'depthwise' in", "if 'deepwise' in"),
        ("pointwise ones are depthwise", "(layer if name == 'kernel' else name)", "path"),
        ("an alpha is a kernel", "if not name.endswith('kernel'):", "if False:"),
        ("a column is a matrix", "if 1 in made.view", "if False"),
        ("LoRA's first factor is none", "'lora_\\\\w+_a'", "'lora_a'"),
    ],
    ("_STACKS", f"{MATRICES}::test_paths_and_shapes_tell_what_is_a_matrix"): [
        ("experts are one matrix", "('expert', 'block_diag')", "('block_diag',)"),
    ],
    ("_rows", f"{MATRICES}::test_paths_and_shapes_tell_what_is_a_matrix"): [
        ("inputs are mixed with heads", "query[0] != query[1] else (0,)", "True else (0, 1)"),
        ("a convolution of the name is attention", "match(layer) and rank == 3", "match(layer)"),
        ("offsets are a convolution", "if layer == 'sampling_offsets':", "if False:"),
        ("three axes are a convolution", "rank > 3 and", "rank > 2 and"),
        ("four axes are one", " and 'einsum_dense' not in layer", ""),
    ],
    ("_rows", f"{MATRICES}::test_the_layers_of_attention_tell_of_each_other"): [
        ("heads never come first", "return (1,) if turned", "return (1,) if False"),
        ("the output is never turned", "(shape == query)", "False"),
    ],
    ("_laid_out", f"{MATRICES}::test_a_step_is_that_of_the_matrix"): [
        ("axes stay where they are", "if treatment.order:", "if False:"),
    ],
    ("_as_stored", f"{MATRICES}::test_a_step_is_that_of_the_matrix"): [
        ("the order is not undone", "order.index(axis) for axis", "axis for axis"),
    ],
    ("matrices.layout", GIVEN): [
        ("what is given is not looked at", "if 'rows' in variable.given:", "if False:"),
        ("exclusions do not count", "if variable.excluded:", "if False:"),
    ],
    ("plan._given", GIVEN): [
        ("the last pattern counts", "given[i].setdefault(key, (pattern, value))",
         "given[i][key] = (pattern, value)"),
    ],
    ("matrices._given", f"{MATRICES}::test_rows_that_a_variable_cannot_have_are_refused_by_name"): [
        ("an axis twice", "len(found) < len(rows) or", ""),
        ("no columns", " or len(found) == rank", ""),
        ("an axis that is not there", "if outside or", "if"),
    ],
    ("lars", LARS): [
        ("nothing is adapted", "if not adapt:", "if True:"),
        ("exclusion ignored", "if not adapt:", "if False:"),
        ("no decay", "d = decayed(g, decay, w)", "d = g"),
        ("decay flipped", "d = decayed(g, decay, w)", "d = decayed(g, -decay, w)"),
        ("no decay in the ratio", "else decay * w_norm)", "else 0.0)"),
        ("no Nesterov", "u = s + momentum * v if nesterov else v", "u = v"),
        ("Nesterov forced", "s + momentum * v if nesterov else v", "s + momentum * v"),
        ("always inside", "'outside': (1.0, lr * r), 'mixed': (r, lr)",
         "'outside': (lr * r, 1.0), 'mixed': (lr * r, 1.0)"),
        ("always outside", "'inside': (lr * r, 1.0), 'outside': (1.0, lr * r), 'mixed': (r, lr)",
         "'inside': (1.0, lr * r), 'outside': (1.0, lr * r), 'mixed': (1.0, lr * r)"),
        ("always mixed", "'inside': (lr * r, 1.0), 'outside': (1.0, lr * r)",
         "'inside': (r, lr), 'outside': (r, lr)"),
        ("norm of the sum", "ratio(d if form.denominator == 'norm_of_sum' else g)", "ratio(d)"),
        ("no clip", "if form.clip:", "if False:"),
        ("no epsilon", "bottom = u_norm + epsilon", "bottom = u_norm"),
        ("no trust coefficient", "trust_coefficient * w_norm", "w_norm"),
        ("no momentum", "v = momentum * v + ", "v = "),
    ],
    ("adamp", f"{PROJECTED}[adamp]"): [
        ("no decay", "w = decayed(w, decay, -lr * rho * w)", ""),
        ("decay flipped", "-lr * rho * w", "lr * rho * w"),
        ("no Nesterov", "if nesterov else", "if False else"),
        ("Nesterov forced", "if nesterov else", "if True else"),
        ("betas swapped", "beta_1=0.9, beta_2=0.999", "beta_1=0.999, beta_2=0.9"),
        ("t counts from 2", "debias(xp, beta_1, t)", "debias(xp, beta_1, t + 1)"),
    ],
    ("sgdp", f"{PROJECTED}[sgdp]"): [
        ("no decay", "w = decayed(w, decay, -lr * rho / (1 - momentum) * w)", ""),
        ("decay flipped", "-lr * rho / ", "lr * rho / "),
        ("no Nesterov", "if nesterov else", "if False else"),
        ("Nesterov forced", "if nesterov else", "if True else"),
        ("no momentum", "v = momentum * v + ", "v = "),
    ],
    **{
        ("project", f"{PROJECTED}[{rule}]"): [
            ("never projected", "if not adapt or", "if True or"),
            ("decay not shrunk", "xp.where(invariant, wd_ratio * one, shrink)", "shrink"),
            ("always projected", "< delta / row_length ** 0.5", "< 1e9"),
            ("threshold four times as high", "< delta / row", "< 4 * delta / row"),
            ("channels first", "(axes or whole[:-1], whole)",
             "(tuple(a + 1 for a in axes or whole[:-1]), whole)"),
        ]
        for rule in ("adamp", "sgdp")
    },
    ("plan_for", f"{PLAN}::test_adaptation_follows_decay_unless_given"): [
        ("an exclusion decays", "0.0 if i in undecayed else decay", "decay"),
        ("adaptation never follows decay", "unadapted = undecayed - joined", "pass"),
        ("an empty list is none", "if exclude_from_layer_adaptation is None",
         "if not exclude_from_layer_adaptation"),
    ],
    ("plan_for", f"{PLAN}::test_a_variable_can_be_excluded_as_an_object"): [
        ("no exclusion by identity", "if excluded}", "if False}"),
    ],
    ("exact", f"{PLAN}::test_an_exact_pattern_matches_one_path_only"): [
        ("an exact pattern has no end", "{re.escape(path)}$'", "{re.escape(path)}'"),
    ],
    ("search", f"{PLAN}::test_two_variables_of_one_path_answer_to_it_and_each_to_its_number"): [
        ("a number answers to every pattern", "if '#' in pattern:", "if True:"),
        ("no number answers", "if '#' in pattern:", "if False:"),
    ],
    ("search", f"{PLAN}::test_a_number_of_another_count_is_refused"): [
        ("another count goes unnoticed", "if not hits:", "if False:"),
    ],
    ("joined_layers", f"{PLAN}::test_layers_of_one_path_are_joined_each_by_itself"): [
        ("layers of one path are one", "layer if count == '1' else", "layer if True else"),
        ("they need not be as many", "if count != number.rpartition('of')[2]", "if False"),
    ],
    ("stable_path", f"{PLAN}::test_a_stable_path_is_the_same_on_every_replica"): [
        ("replicas have paths of their own", r"(/replica_\\d+)?", ""),
    ],
    ("plan_for", f"{PLAN}::test_a_pattern_that_matches_nothing_is_named"): [
        ("a pattern in vain goes unnoticed", "if not count and", "if count is None and"),
    ],
    ("aliases", f"{PLAN}::test_an_anchored_pattern_may_leave_out_the_name_of_the_model"): [
        ("the model keeps its name", "(path, path.removeprefix(root))", "(path,)"),
    ],
    ("model_name", f"{PLAN}::test_an_anchored_pattern_may_leave_out_the_name_of_the_model"): [
        ("any first name is the model's", "names[0] in layers", "True"),
    ],
    ("model_name", UNCLEAR): [
        ("the first path chooses",
         "sorted({path.partition('/')[0] for path in paths if '/' in path})",
         "[path.partition('/')[0] for path in paths if '/' in path]"),
    ],
    ("plan_for", f"{PLAN}::test_a_preset_is_one_in_the_exclusions_alone"): [
        ("a preset in vain goes unnoticed", "(not preset)", "p != 'norm_and_bias'"),
    ],
    ("is_norm_bias_or_vector", f"{PLAN}::test_a_preset_holds_vectors_and_no_kernel"): [
        ("a class token is none", "or (len(shape) > 2 and set(shape[:-1]) == {1})", ""),
        ("a kernel may be one", "and 'kernel' not in name", ""),
    ],
    ("Plan.holding", f"{PLAN}::test_a_joined_layer_is_near_zero_as_one"): [
        ("a bias speaks for its kernel", "- {''}", "- set(self.groups)"),
    ],
    ("Plan._pattern_of", f"{PLAN}::test_what_is_near_zero_is_named_by_a_pattern_of_its_own"): [
        ("a name finds others, too", "name in self.paths[k]", "False"),
    ],
    ("search", f"{PLAN}::test_a_pattern_is_found_where_re_finds_it"): [
        ("a pattern must match the whole", "regex.search, names", "regex.fullmatch, names"),
    ],
    ("is_preset", f"{PLAN}::test_a_pattern_is_found_where_re_finds_it"): [
        ("a preset stands for groups", "argument in EXCLUSIONS and", ""),
    ],
    ("search", f"{PLAN}::test_a_path_that_nobody_meant_is_refused"): [
        ("a path of any length", "if len(names[0]) > LONGEST_PATH", "if not names[0]"),
    ],
    ("patterns", f"{PLAN}::test_a_pattern_that_nobody_meant_is_refused"): [
        ("a pattern of any length", "if len(pattern) > LONGEST_PATTERN", "if not argument"),
    ],
    ("Warmup.value", PICTURE): [
        ("decay goes on after a continuous warmup", "begun = step if self.handover == 'drop' else",
         "begun = step if True else"),
        ("warmup is a step longer", "xp.where(step < self.steps", "xp.where(step <= self.steps"),
    ],
    ("Stages.value", PICTURE): [
        ("stages count from the first", "own = xp.maximum(step - begin, 0)", "own = step"),
    ],
    ("_MultiStep.value", PICTURE): [
        ("the rate falls a step late", "step >= math.ceil(boundary)", "step > math.ceil(boundary)"),
    ],
    ("noise", "core/test_rounding.py"): [
        ("the same noise at every step", "xp.reshape(xp.cast(t,", "0 * xp.reshape(xp.cast(t,"),
        ("the same noise in every layer", "seed + number +", "seed +"),
        ("slots share their noise", "16 * half", "0"),
    ],
    ("stochastic", "core/test_rounding.py"): [
        ("infinity is a neighbour", "> _LARGEST", "> _LARGEST + 1"),
        ("infinity and NaN are rounded", "xp.isfinite(x)", "xp.isfinite(0 * noise)"),
        ("half of the noise", "'int32') + noise", "'int32') + noise // 2"),
    ],
    ("moments", NOISE): [
        ("variance over all parts", "(local - total) / (parts - 1)", "(local - total) / parts"),
        ("the signal keeps its noise", "(parts * total - local) / (parts - 1)", "total"),
    ],
    ("average", NOISE): [
        ("no bias correction", "/ debias(xp, theta, count)", ""),
        ("a bad step enters the averages", "& when", "| when"),
    ],
    ("noise_scale", NOISE): [
        ("a noise scale of no signal", "if signal > 0 else math.nan", ""),
    ],
    ("_entered", NOISE): [
        ("readings that know each other", "kept * (1 - theta ** before.count)", "0.0"),
    ],
    ("standard_error", NOISE): [
        ("parts without their covariance", "variance / mean[0] - signal / mean[1]",
         "signal / mean[1]"),
        ("the oldest weighs most", "theta ** (whole.count - now.count)", "theta ** now.count"),
    ],
    ("_worth", NOISE): [
        ("an average as long as its memory", "(1 + theta) / (1 - theta)", "1 / (1 - theta)"),
    ],
    ("gain", NOISE): [
        ("the scale forgotten", "variance / scale + signal", "variance + signal"),
    ],
    ("Plan.layers", f"{PLAN}::test_the_first_multiplier_that_matches_counts"): [
        ("the multiplier of another", "self.multipliers[pairs[0][1]]",
         "self.multipliers[pairs[0][0]]"),
    ],
    ("layer_decay", "core/test_layer_decay.py"): [
        ("the last block is the head", "decay ** (depth - i)", "decay ** (depth - 1 - i)"),
        ("embeddings are the first block", "decay ** (depth + 1)", "decay ** depth"),
    ],
    ("watched", "core/test_spikes.py"): [
        ("of all, not of n - 1", "xp.maximum(n - 1.0, 1.0)", "xp.maximum(n, 1.0)"),
        ("half a step late", "n + 1.0 >=", "n >="),
        ("the whole window", "window.shape[0] // 2", "window.shape[0]"),
        ("the norm is of those before", "norm - mu > deviations", "entered[-1] - mu >= deviations"),
        ("a spike does not enter", "xp.where(xp.isfinite(norm),",
         "xp.where(xp.isfinite(norm) & ~spike,"),
        ("infinity enters", "xp.isfinite(norm)", "norm == norm"),
    ],
    ("smoothing", NOISE): [
        ("the memory grows with the scale", "1 - scale / 1000", "scale / 1000"),
    ],
    ("StepTime.step", GOODPUT): [
        ("an update a micro-batch", "+ self.update", "+ accumulation * self.update"),
    ],
    ("fit", GOODPUT): [
        ("a step of negative seconds", "if alpha < 0:", "if alpha < -1:"),
    ],
    ("two_runs", GOODPUT): [
        ("a bend in perfect scaling", "rho >= large / small", "rho > large / small"),
    ],
    ("from_runs", GOODPUT): [
        ("seeds that never scatter", "SEED_RUNS * SEED_DEVIATION ** 2", "0"),
    ],
    ("arrange", GOODPUT): [
        ("more than a device holds", "math.ceil(local / largest)", "round(local / largest) or 1"),
    ],
    ("_why_not_larger", GOODPUT): [
        ("the micro-batch is never the reason", "< 3600 * fastest.hours", "< 0 * fastest.hours"),
    ],
    ("nearest", RECIPES): [
        ("steps are rounded down", "+ Fraction(1, 2)", ""),
    ],
    ("by_rule", RECIPES): [
        ("linear scaling", "math.sqrt(k)", "k"),
        ("warmup is not stretched", "warmup_epochs *= k", "warmup_epochs *= 1"),
        ("warmup from above", "base_rate * min(1.0, k)", "base_rate"),
    ],
    ("_lars_point", RECIPES): [
        ("warmup is always counted in", "0 if is_whole else warmup_steps", "0"),
    ],
    ("Recipe._rates", PICTURE): [
        ("the warmup is counted twice", "(warmup if handover == 'continuous' else 0)", "warmup"),
        ("boundaries count from the peak", "schedules._MultiStep(self.boundaries, rates), 'drop'",
         "schedules._MultiStep(self.boundaries, rates), 'continuous'"),
    ],
}  # fmt: skip

TENSORFLOW = {
    ("Layer.rate",
     f"{MULTIPLIERS}::test_a_multiplier_is_another_rate[LANS-one device-keras]"): [
        ("no multiplier", "self.multiplier * lr", "lr"),
    ],
    ("Layerwise._scalars",
     f"{DECAYS}::test_every_step_decays_by_its_own[SGDP-one device-keras]"): [
        ("decay as at the first step", "decay(self.iterations)", "decay(0 * self.iterations)"),
        ("decay of the next step", "decay(self.iterations)", "decay(self.iterations + 1)"),
    ],
    ("_decay",
     f"{DECAYS}::test_every_step_decays_by_its_own[LARS-one device-keras]"): [
        ("no decay where it is scheduled", "own * scheduled", "0.0"),
        ("the square of it", "own * scheduled", "own * scheduled * scheduled"),
    ],
    ("tensorflow.Update._apply_if_finite",
     f"{SPIKES}::test_a_spike_has_never_been[LAMB-one device-False-keras]"): [
        ("a spike is taken", "finite & ~spike", "finite"),
    ],
    ("tensorflow.Update._apply_if_finite",
     f"{SPIKES}::test_what_is_not_finite_is_counted_by_itself[tf_keras]"): [
        ("what is not finite is a spike", "finite & self._watch(", "self._watch("),
    ],
    ("MeasureNoise._counted",
     f"{SPIKES}::test_adascale_has_never_seen_it[micro-batches-keras]"): [
        ("AdaScale counts it", "iterations > step", "iterations >= step"),
        ("its gain stays", "self._assign(own, values)", "pass"),
    ],
    ("tf_keras.LayerwiseOptimizer._count",
     f"{SPIKES}::test_a_loss_scale_does_not_move_by_it[tf_keras]"): [
        ("a loss scale moves by a spike", "tf.equal(became, NONFINITE)", "became > 0"),
    ],
    ("_move", f"{SCALED}::test_the_scale_grows_with_updates[keras]"): [
        ("the scale moves at every micro-batch", "ops.where(due, now * ", "ops.where(True, now * "),
    ],
    ("Guard.is_searching", f"{SCALED}::test_raise_raises_where_no_scale_explains_it[tf_keras]"): [
        ("a scale explains all", "self._scale() > 1", "self._scale() > 0"),
    ],
    ("of", f"{SPIKES}::test_a_resumed_run_goes_on_with_the_window[keras]"): [
        ("the window is not saved", "if guard.window:", "if False:"),
    ],
    ("Layerwise.is_frozen", f"{MULTIPLIERS}::test_a_factor_of_0_freezes[1-LAMB-tf_keras]"): [
        ("nothing is frozen", "self._plan.frozen if self._plan else ()", "()"),
    ],
    ("MeasureNoise._without_frozen",
     f"{MULTIPLIERS}::test_the_gain_of_adascale_is_as_it_was[LARS-keras]"): [
        ("what is frozen is measured", "inner.without_frozen(pairs)", "pairs"),
    ],
    ("_fixed", NETWORK): [
        ("the layer's bias is lost", "mean - bias", "mean"),
        ("the activation's scale is lost", "scale=activation.scale", "scale=1.0"),
    ],
    ("_fixed", f"{INTEGERS}::test_a_range_given_by_hand_leaves_the_bias_in_b[keras]"): [
        ("no bias where a range is said", "finder.bias(call, channels)", "(0.0,) * channels"),
    ],
    ("Accumulators.of", NETWORK): [
        ("the scale of the inputs is lost", "step=scale * step", "step=step"),
    ],
    ("_on_grid", f"{INTEGERS}::test_ranges_are_those_that_the_kernels_allow[keras]"): [
        ("half the step", "return (step, kernel / step)", "return (step / 2, kernel / step * 2)"),
    ],
    ("Accumulators._grid", f"{INTEGERS}::test_ranges_are_those_that_the_kernels_allow[keras]"): [
        ("a level too few", "2 ** layer.bits - 1", "2 ** layer.bits - 2"),
    ],
    ("Accumulators.of", f"{INTEGERS}::test_ranges_are_those_that_the_kernels_allow[keras]"): [
        ("the least and the greatest turned", "a * least + b * most", "b * least + a * most"),
    ],
    ("QuantizedReLU.call", f"{INTEGERS}::test_the_gradient_goes_straight_through[keras]"): [
        ("no gradient", "kept + xp.stop_gradient(levels - kept)", "levels"),
        ("a gradient everywhere", "xp.clip(inputs, 0.0, top * self.scale)", "inputs"),
    ],
    ("evaluate", f"{INTEGERS}::test_tensors_have_the_same_levels[keras]"): [
        ("no range", "(wide >= low) & (wide <= high)", "wide == wide"),
        ("no shift", "map(along, (layer.a, layer.b, layer.shift))",
         "map(along, (layer.a, layer.b, [0] * len(layer.a)))"),
    ],
    ("Layerwise._scalars", f"{STEPS}::test_variables_of_one_shape_keep_their_own_treatment"): [
        ("t counts from 2", "t=t,", "t=t + 1,"),
    ],
    ("LayerwiseOptimizer._make_update",
     f"{OPTIMIZERS}::test_gradients_are_clipped[clipnorm-keras]"): [
        ("no clipping", "'clip': self.clip_aggregated,", "'clip': list,"),
    ],
    ("keras.LayerwiseOptimizer._add_master", f"{DEFECTS}::test_d32_the_norm_is_of_the_master"): [
        ("no master", "if self._settings.dtypes.masters and", "if False and"),
    ],
    ("keras.LayerwiseOptimizer.get_config", CONFIG): [
        ("a config of the rate alone", "return self._config(", "return dict(learning_rate="),
    ],
    ("tf_keras.LayerwiseOptimizer._clip_gradients",
     f"{ACCUMULATED}[{{'clipnorm': 0.1}}-tf_keras]"): [
        ("clipped before it is the mean", "return grads", "return super()._clip_gradients(grads)"),
    ],
    ("LayerwiseOptimizer._count", f"{OPTIMIZERS}::test_between_updates_nothing_moves[tf_keras]"): [
        ("the first micro-batch moves", "storage.micro_step + 1", "storage.micro_step"),
    ],
    ("AsSchedule.__call__",
     f"{OPTIMIZERS}::test_the_learning_rate_is_read_at_every_step[a callable-tf_keras]"): [
        ("a callable is called once", "return tf.cast(self._function(), ", "return tf.cast(0.1, "),
    ],
    ("Update._finish_micro_step", f"{STEPS}::test_micro_batches_count_by_their_mean"): [
        ("accumulators are never cleared", "each.assign(tf.zeros_like(each))", "each"),
    ],
    ("Update._finish_micro_step", f"{FROZEN}[None-tf_keras]"): [
        ("what is frozen keeps its sums", "*state.dropped", "*()"),
    ],
    ("tf_keras.LayerwiseOptimizer.apply_gradients", f"{FROZEN}[None-tf_keras]"): [
        ("what is frozen moves in the midst of an update",
         "self.without_gradient(given, unfrozen)",
         "self.without_gradient(given, self._storage.weights)"),
    ],
    ("Update.mean", f"{STEPS}::test_micro_batches_count_by_their_mean"): [
        ("the sum of the micro-batches", "total / self.accumulation_steps", "total"),
    ],
    ("Update.mean", f"{GROWING}::test_an_update_is_of_the_mean_of_its_micro_batches"): [
        ("by the most that an update takes", "xp.cast(scalars.micro_batches, total.dtype)",
         "self.accumulation_steps"),
    ],
    ("averaged", f"{OPTIMIZERS}::test_averages_follow_the_weights[2-keras]"): [
        ("averages of the last weight", "m * average + (1 - m)", "(1 - m) * average + m"),
    ],
    ("gather", SAVED): [
        ("summed at every micro-batch", "tf.cond(is_update(), add_up, lambda: None)", "add_up()"),
        ("never summed", "extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)",
         "extended and own"),
    ],
    ("per_replica_variables", SAVED): [
        ("the first replica's alone is saved", "VariableAggregation.SUM",
         "VariableAggregation.ONLY_FIRST_REPLICA"),
    ],
    ("LayerwiseOptimizer.own_parts",
     f"{ACCUMULATION}::test_whoever_sums_gradients_they_count_once[by the user]"): [
        ("sums count once for each replica", "gradient: gradient / n", "gradient: gradient"),
    ],
    ("LayerwiseOptimizer._count",
     f"{SCALE}::test_the_scale_grows_with_updates_and_stays_within_one"): [
        ("the scale moves at every micro-batch", "tf.cond(due, ", "tf.cond(True, "),
    ],
    ("_after_update",
     f"{SCALE}::test_an_update_that_overflows_is_dropped_as_one[one device-the first part]"): [
        ("the scale never moves", "move([tf.where(skipped, math.nan, 0.0)])", "pass"),
    ],
    ("take_over_scale",
     f"{SCALE}::test_an_update_that_overflows_is_dropped_as_one[one device-the first part]"): [
        ("the wrapper drops, too", "scale.update = _let_through", "pass"),
    ],
    ("LayerwiseOptimizer.aggregate_gradients",
     f"{SCALE}::test_replicas_are_summed_once_an_update[dynamic]"): [
        ("a loss scale sums at every micro-batch", "accumulates and host.is_in_loss_scale(self)",
         "False"),
    ],
    ("ExponentialMovingAverage.apply_gradients",
     "model_garden/test_averages.py::test_a_skipped_update_moves_no_average[None]"): [
        ("averages move at every call", "iterations > before", "iterations >= before"),
    ],
    ("MeasureNoise._gather",
     f"{ADASCALE}::test_the_noise_scale_is_numpys[tf_keras]"): [
        ("squares of a replica's part", "self._replicas * squares], into", "squares], into"),
    ],
    ("Update._key", f"{STEPS}::test_variables_of_one_shape_keep_their_own_treatment"): [
        ("one program for every treatment", "(layer.treatments, *", "(None, *"),
    ],
    ("stages_of", f"{FIT_STAGES}::test_micro_batches_are_taken_from_the_optimizer[keras]"): [
        ("the micro-batches of the first stage", "if step <= start][-1]", "if step <= start][0]"),
    ],
    ("Arrays.stream", f"{FIT_STAGES}::test_it_is_the_loop_of_its_updates[keras]"): [
        ("every pass in one order", "np.random.default_rng((seed, each))",
         "np.random.default_rng((seed, 0))"),
    ],
    ("path_of", f"{PATTERNS}[functional-keras]"): [
        ("patterns see the last name", "getattr(variable, 'path', None)", "variable.name"),
    ],
    ("Layerwise._config", "api/test_exclusions.py::test_the_method_of_keras_excludes_too[keras]"): [
        ("identities are not saved", "if (names := dict(self._undecayed).values()):", "if False:"),
    ],
    ("step", f"{PRECISION}::test_a_moment_in_bfloat16_does_not_stand_still[keras]"): [
        ("rounded to the nearest", "if dtype != 'bfloat16':", "if True:"),
    ],
    ("step", f"{PRECISION}::test_a_master_keeps_what_half_precision_cannot[keras]"): [
        ("no master is kept", "None if old.master is None else weight", "old.master"),
    ],
    ("_weight", f"{PRECISION}::test_a_master_keeps_what_half_precision_cannot[keras]"): [
        ("the rule steps the weight", "xp.where(is_rounded, master, weight)", "weight"),
    ],
    ("averaged",
     f"{PRECISION}::test_what_averages_overwrite_is_the_master_too[in training-bfloat16-keras]"): [
        ("averages of what is rounded", "_weight(xp, stored, wide, bitcast)",
         "wide(stored.weight)"),
    ],
    ("Stored.copies",
     f"{PRECISION}::test_what_averages_overwrite_is_the_master_too[at the end of fit-float16-keras]"
     ): [
        ("the master of before stays", "[self.weight, self.master]", "[self.weight]"),
    ],
    ("MeasureNoise._squares_of_mean",
     "api/test_noise.py::test_none_in_the_last_micro_batch_is_measured_as_zeros[tf_keras]"): [
        ("what was added up is forgotten", "[*positions, *missing]", "positions"),
    ],
    ("apply_rule", SOAP_TRAINS): [
        ("every slot is laid out", "if tuple(array.shape) == shape else array", ""),
    ],
    ("apply_rule", "core/test_layer_groups.py::test_the_sizes_of_fused_blocks_no_longer_meet"): [
        ("one ratio for all slices", "axes=treatment.axes", "axes=None"),
    ],
    ("MeasureNoise._measure", GAIN): [
        ("the squares are summed", "squares / self.micro_batches", "squares"),
    ],
    ("spent", GAIN): [
        ("fractions of a step are lost", "fraction - whole", "0.0 * whole"),
    ],
    ("measured", GAIN): [
        ("the base batch is the whole", "scale * variance, signal", "variance, signal"),
    ],
    ("Schedule.from_config", f"{JOINT}[polynomial-7-keras]"): [
        ("what is inside stays a dict", "name: cls._deserialized(value)", "name: value"),
    ],
    ("match", f"{MIGRATE}::test_other_names_and_fresh_variables"): [
        ("rename is ignored", "rename.get(path) or ", ""),
    ],
    ("match", f"{MIGRATE}::test_the_name_of_the_model_does_not_matter"): [
        ("the model's name matters", " or lookup.get(own)", ""),
    ],
    ("_read_checkpoint",
     f"{MIGRATE}::test_a_file_goes_on_as_the_peer_did[keras-Addons checkpoint]"): [
        ("steps begin anew", "peers.step_of(values['iter'])", "0"),
    ],
    ("keras.BackupAndRestore.on_train_begin",
     f"{BACKUP}::test_a_broken_backup_is_refused[keras-cut-*.h5]"): [
        ("what is broken is not said", "raise self._refusal(error) from error", "return"),
    ],
    ("why_broken", f"{CRASHES}::test_a_run_goes_on_from_the_last_checkpoint_that_is_whole"): [
        ("what is broken is not read", "reader.get_tensor(name)", "pass"),
    ],
    ("_newest_first", f"{CRASHES}::test_a_run_goes_on_from_the_last_checkpoint_that_is_whole"): [
        ("the oldest first", "reverse=True", "reverse=False"),
    ],
    ("check_folder",
     "model_garden/test_model_dirs.py::test_a_model_dir_of_another_experiment_or_seed"): [
        ("the seed of another run", "if seed is not None and", "if False and"),
    ],
}  # fmt: skip

JAX = {
    ("Update._apply", f"{OPTIMIZERS}::test_gradients_are_clipped[clipnorm-keras]"): [
        ("no clipping", "gradients = self.clip(gradients)", ""),
    ],
    ("Update.mean", f"{STEPS}::test_micro_batches_count_by_their_mean"): [
        ("the sum of the micro-batches", "total / self.accumulation_steps", "total"),
    ],
    ("Update._accumulate", f"{STEPS}::test_micro_batches_count_by_their_mean"): [
        ("accumulators are never cleared", "ops.where(is_update, ops.zeros_like(total), total)",
         "total"),
    ],
    ("Storage.state", f"{FROZEN}[None-keras]"): [
        ("what is frozen keeps its sums", "for i in sorted(frozen)", "for i in ()"),
    ],
    ("Update.__call__", f"{OPTIMIZERS}::test_between_updates_nothing_moves"): [
        ("every micro-batch moves", "self._within(scalars.is_update,", "self._within(True,"),
    ],
    ("keras.Update._average", f"{OPTIMIZERS}::test_averages_follow_the_weights[2-keras]"): [
        ("never overwritten", "scalars.ema_overwrites, ops.cast", "False, ops.cast"),
    ],
    ("keras.Update._apply_if_finite",
     f"{SPIKES}::test_a_spike_has_never_been[LAMB-one device-False-keras]"): [
        ("a spike is taken", "due = due & ~spike", "due = due"),
    ],
    ("keras.Update._changed_by",
     f"{SPIKES}::test_a_bad_batch_is_skipped_and_told_of[2-keras]"): [
        ("the window is left behind", "*state.spikes[:1]", ""),
    ],
    ("Update._apply_if_finite",
     "contracts/test_nonfinite.py::test_every_optimizer_skips[keras-LARS]"): [
        ("a bad step is taken", "due = ops.all(finite)", "due = ops.any(finite) | True"),
    ],
    ("Update._aggregated", f"{SHARED}::test_a_loss_scale_is_one_for_all"): [
        ("the gradient of one replica", "ops.sum(gradient, axis=0)", "gradient[0]"),
    ],
    ("per_replica_gradients", f"{SHARED}::test_a_loss_scale_is_one_for_all"): [
        ("gradients as large as the sum", "g[None] / n", "g[None]"),
    ],
    ("per_replica_gradients", f"{SHARED}::test_a_replica_is_for_itself"): [
        ("all replicas draw alike", "jax.numpy.uint32(GOLDEN_RATIO) *", "jax.numpy.uint32(0) *"),
        ("the seed runs away", "v.at[0].add(-own)", "v"),
    ],
    ("_mean", f"{SHARED}::test_a_replica_is_for_itself"): [
        ("the statistics of one replica", "jax.lax.pmean(value, axis) if", "value if"),
    ],
    ("Shares._axes", f"{SHARED}::test_each_device_keeps_its_share[arguments0]"): [
        ("every device keeps all", "axes[i] = self._name", "axes[i] = None"),
    ],
    ("fitting", f"{SHARED}::test_interrupted_in_the_middle_of_an_update[4-True]"): [
        ("what one replica had added up", "value.sum(axis=0) if", "value[0] if"),
    ],
    ("MeasureNoise._measure", f"{SHARED}::test_replicas_are_parts_of_the_batch[MeasureNoise]"): [
        ("squares of shares", "self._replicas * self._sum_over_replicas(own)",
         "self._sum_over_replicas(own)"),
    ],
    ("MeasuringOptimizer._summed",
     f"{SHARED}::test_replicas_are_parts_of_the_batch[MeasureNoise]"): [
        ("the mean of one replica", "ops.sum(g, axis=0) for", "g[0] for"),
    ],
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One slip: the definition, the passage, what it becomes, and the test that must then fail."""

    definition: str
    name: str
    before: str
    after: str
    test: str


def _of(table):
    return [
        Mutant(definition, *slip, test)
        for (definition, test), slips in table.items()
        for slip in slips
    ]


# By what has to be loaded: nothing, both Kerases on TensorFlow, Keras 3 on JAX.
MUTANTS = {"core": _of(CORE), "tensorflow": _of(TENSORFLOW), "jax": _of(JAX)}
