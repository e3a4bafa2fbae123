"""Who types another package's word reads their own call, rewritten; and that call works."""

import inspect
import itertools
import re

import keras
import numpy as np
import pytest
from support.frontends import FRONTENDS, every_frontend

import tf_lamb.keras
from tf_lamb.api.optimizers import arguments
from tf_lamb.api.optimizers.words import WORDS
from tf_lamb.core.checks import CHOICES

pytestmark = pytest.mark.once
NAMES = {
    "tf_lamb": tf_lamb, "keras": keras, "iter": iter, "np": np,
    "schedule": keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9),
    **{name: getattr(tf_lamb.keras, name) for name in tf_lamb.core.rules.OURS},
}  # fmt: skip
QUINTIC = (
    "'coefficients': [(4.0848, -6.8946, 2.927), (3.9505, -6.3029, 2.6377), "
    "(3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)]"
)
# What is typed -> what the error says to write.
CALLS = {
    # TensorFlow Addons and old Keras
    "LAMB(1e-3, weight_decay_rate=0.01)": "LAMB(0.001, weight_decay=0.01)",
    "LAMB(schedule, weight_decay_rate=0.01)": "LAMB(..., weight_decay=0.01)",
    "LAMB(1e-3, 0.9, 0.99, weight_decay_rate=0.01)": "LAMB(0.001, 0.9, 0.99, weight_decay=0.01)",
    "LAMB(weight_decay_rate=0.01, name='mine')": "LAMB(weight_decay=0.01, name='mine')",
    "LAMB(lr=1e-3, exclude_from_weight_decay=['bias'])":
        "LAMB(learning_rate=0.001, exclude_from_weight_decay=['bias'])",
    "LAMB(1e-3, decay=1e-4)":
        "LAMB(keras.optimizers.schedules.InverseTimeDecay(0.001, 1, 0.0001))",
    "LAMB(lr=0.1, decay=0.5)":
        "LAMB(learning_rate=keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.5))",
    "LAMB(decay=0.5)":
        "LAMB(learning_rate=keras.optimizers.schedules.InverseTimeDecay(0.001, 1, 0.5))",
    "SGDP(0.1, decay=0.0, momentum=0.8)": "SGDP(0.1, momentum=0.8)",
    "AdamP(lr=np.float32(1e-3), amsgrad=False)": "AdamP(learning_rate=0.001)",
    # Model Garden
    "LARS(0.5, weight_decay_rate=1e-4, eeta=0.002)":
        "LARS(0.5, weight_decay=0.0001, trust_coefficient=0.002)",
    "LARS(0.5, classic_momentum=True)": "LARS(0.5, form={'denominator': 'norm_of_sum'})",
    "LARS(eeta=0.01, classic_momentum=False, nesterov=False)":
        "LARS(trust_coefficient=0.01, nesterov=False, "
        "form={'momentum': 'outside', 'denominator': 'norm_of_update'})",
    "LAMB(1e-3, gradient_clip_norm=1.0)": "LAMB(0.001, global_clipnorm=1.0)",
    "LARS(17.0, use_nesterov=True, skip_list=['bias'])":
        "LARS(17.0, exclude_from_weight_decay=['bias'], nesterov=True)",
    # Keras
    "LAMB(1e-3, weight_decay=0.01, amsgrad=True)": "LAMB(0.001, weight_decay=0.01)",
    "LAMB(0.1, momentum=0.8, nesterov=False)": "LAMB(0.1, beta_1=0.8)",
    "LARS(0.1, beta_1=0.8, beta_2=0.99)": "LARS(0.1, momentum=0.8)",
    "Muon(1e-3, exclude_layers=['head'])":
        "Muon(0.001, exclude_from_layer_adaptation=['head', 'embedding'])",
    "Muon(1e-3, exclude_layers=['head'], exclude_embeddings=False)":
        "Muon(0.001, exclude_from_layer_adaptation=['head'])",
    "Muon(1e-3, exclude_embeddings=False)": "Muon(0.001, exclude_from_layer_adaptation=[])",
    "Muon(1e-3, exclude_embeddings=True, rms_rate=0.2)": "Muon(0.001)",
    "Muon(1e-3, exclude_layers=None)": "Muon(0.001, exclude_from_layer_adaptation=['embedding'])",
    "Muon(weight_decay=0.1, adam_weight_decay=0.1)": "Muon(weight_decay=0.1)",
    "Muon(adam_weight_decay=0.01)": "Muon(weight_decay=0.01)",
    "Muon(1e-3, adam_lr_ratio=0.1, ns_steps=6)":
        "Muon(0.001, form={'newton_schulz_steps': 6, 'fallback_lr_scale': 0.1})",
    "Muon(ns_steps=6, form={'update_scale': 'shape'})":
        "Muon(form={'update_scale': 'shape', 'newton_schulz_steps': 6})",
    "Muon(adam_beta_1=0.8, adam_beta_2=0.99, muon_a=3.4445)": "Muon(beta_1=0.8, beta_2=0.99)",
    "Muon(1e-3, muon_b=-4.0)": "Muon(0.001, form={'coefficients': [3.4445, -4.0, 2.0315]})",
    "Muon(1e-3, muon_a=3, muon_c=2, ns_steps=6)":
        "Muon(0.001, form={'newton_schulz_steps': 6, 'coefficients': [3, -4.775, 2]})",
    "Muon(1e-3, muon_a=3.4445, muon_b=-4.775, muon_c=2.0)":
        "Muon(0.001, form={'coefficients': [3.4445, -4.775, 2.0]})",
    "SOAP(1e-3, adam_lr_ratio=0.1)": "SOAP(0.001)",
    "LAMB(1e-3, exclude_layers='head')": "LAMB(0.001, exclude_from_layer_adaptation=['head'])",
    # torch, Jordan, Vyas
    "LAMB(iter([]), lr=1e-3, betas=(0.9, 0.99), eps=1e-8)":
        "LAMB(learning_rate=0.001, beta_1=0.9, beta_2=0.99, epsilon=1e-08)",
    "SGDP([], lr=0.1, dampening=0, betas=[0.8, 0.99])": "SGDP(learning_rate=0.1, momentum=0.8)",
    "LAMB(1e-3, foreach=True, fused=None, maximize=False)": "LAMB(0.001)",
    "LAMB(1e-3, maximize=True)": "LAMB(0.001)",
    "LAMB(1e-3, betas=schedule)": "LAMB(0.001, beta_1=..., beta_2=...)",
    "Muon(lr=0.02, momentum=0.9)":
        "Muon(learning_rate=0.02, momentum=0.9, form={'update_scale': 'shape'})",
    "Muon(lr=1e-3, adjust_lr_fn='match_rms_adamw')": "Muon(learning_rate=0.001)",
    "Muon(lr=1e-3, adjust_lr_fn='original', ns_coefficients=(3.4445, -4.775, 2.0315))":
        "Muon(learning_rate=0.001, form={'update_scale': 'shape'})",
    "Muon(1e-3, ns_coefficients=(3, -4, 2), ns_steps=4)":
        "Muon(0.001, form={'newton_schulz_steps': 4, 'coefficients': (3, -4, 2), "
        "'update_scale': 'shape'})",
    "Muon(1e-3, ns_coeffs=[(4.0, -6.0, 2.5), (2.0, -1.5, 0.5)], weight_decay=0.1)":
        "Muon(0.001, weight_decay=0.1, "
        "form={'coefficients': [(4.0, -6.0, 2.5), (2.0, -1.5, 0.5)], 'update_scale': 'shape'})",
    "Muon(lr=0.02, adamw_lr=1e-3, adamw_betas=(0.9, 0.95), adamw_eps=1e-9)":
        "Muon(learning_rate=0.02, form={'update_scale': 'shape', 'fallback_lr_scale': 0.05}, "
        "beta_1=0.9, beta_2=0.95, epsilon=1e-09)",
    "SOAP(lr=3e-3, betas=(.95, .95), max_precond_dim=9, merge_dims=False, correct_bias=True)":
        "SOAP(learning_rate=0.003, beta_1=0.95, beta_2=0.95, max_precond_dim=9)",
    "SOAP(3e-3, normalize_grads=True, shampoo_beta=-1, data_format='channels_last')": "SOAP(0.003)",
    # apex, timm, DeepSpeed, torch_optimizer
    "LAMB(1e-3, use_nvlamb=True, adam_w_mode=True)":
        "LAMB(0.001, exclude_from_layer_adaptation=[], global_clipnorm=1.0)",
    "LAMB(1e-3, use_nvlamb=True, max_grad_norm=2.0)":
        "LAMB(0.001, exclude_from_layer_adaptation=[], global_clipnorm=2.0)",
    "LAMB(1e-3, weight_decay=0.1, adam_w_mode=False)":
        "LAMB(0.001, weight_decay=0.0, global_clipnorm=1.0)",
    "LAMB(1e-3, set_grad_none=True, global_clipnorm=2.0)": "LAMB(0.001, global_clipnorm=2.0)",
    "LAMB(1e-3, grad_averaging=True)": "LAMB(0.001, global_clipnorm=1.0)",
    "LAMB(1e-3, max_grad_norm=None, grad_averaging=True)": "LAMB(0.001)",
    "LAMB(1e-3, trust_clip=True, always_adapt=True, bounds={'weight_norm': (0, 10)})":
        "LAMB(0.001, exclude_from_layer_adaptation=[], "
        "bounds={'weight_norm': (0, 10), 'trust_ratio': (0, 1)}, global_clipnorm=1.0)",
    "LAMB(1e-3, decoupled_decay=True)":
        "LAMB(0.001, weight_decay_mode='decoupled', global_clipnorm=1.0)",
    "LARS(0.1, dampening=0.0)": "LARS(0.1, momentum=0.0)",
    "LARS(0.1, momentum=0.9, dampening=0.0)": "LARS(0.1, momentum=0.9)",
    "LARS(1.0, trust_coeff=0.002, trust_clip=True)":
        "LARS(1.0, trust_coefficient=0.002, form={'momentum': 'mixed', 'clip': True})",
    "LAMB(1e-3, lower_bound=0.5)":
        "LAMB(0.001, exclude_from_layer_adaptation=[], bounds={'weight_norm': (0.5, None)})",
    "LAMB(1e-3, lower_bound=None, upper_bound=10)":
        "LAMB(0.001, exclude_from_layer_adaptation=[], bounds={'weight_norm': (0, 10)})",
    "LAMB(1e-3, max_coeff=5, min_coeff=0.1)":
        "LAMB(0.001, epsilon=1e-08, exclude_from_layer_adaptation=[], bias_correction=False, "
        "bounds={'trust_ratio': (0.1, 5)})",
    "LAMB(1e-3, eps=1e-7, eps_inside_sqrt=False)":
        "LAMB(0.001, epsilon=1e-07, exclude_from_layer_adaptation=[], bias_correction=False, "
        "bounds={'trust_ratio': (0.01, 10)})",
    "LAMB(1e-3, eps_inside_sqrt=True)":
        "LAMB(0.001, epsilon=0.0001, exclude_from_layer_adaptation=[], bias_correction=False, "
        "bounds={'trust_ratio': (0.01, 10)})",
    "LAMB(1e-3, clamp_value=5)":
        "LAMB(0.001, exclude_from_layer_adaptation=[], bias_correction=False, "
        "bounds={'weight_norm': (0, 5)})",
    "LAMB(1e-3, clamp_value=10, debias=False)":
        "LAMB(0.001, exclude_from_layer_adaptation=[], bias_correction=False, "
        "bounds={'weight_norm': (0, 10)})",
    "LAMB(1e-3, step=0)": "LAMB(0.001, global_clipnorm=1.0)",
    "LAMB(1e-3, reduced_precision_dtype='bfloat16')":
        "LAMB(0.001, global_clipnorm=1.0, dtypes={'masters': 'float32'})",
    # optax, paddle, MXNet
    "LAMB(1e-3, b1=0.8, b2=0.99, eps_root=0.0, mask=None)":
        "LAMB(0.001, beta_1=0.8, beta_2=0.99, exclude_from_layer_adaptation=[])",
    "LAMB(1e-3, b1=0.8, exclude_from_layer_adaptation=['bias'])":
        "LAMB(0.001, beta_1=0.8, exclude_from_layer_adaptation=['bias'])",
    "LAMB(1e-3, weight_decay=0.1, mask=lambda tree: tree)":
        "LAMB(0.001, weight_decay=0.1, exclude_from_weight_decay='norm_and_bias', "
        "exclude_from_layer_adaptation=[])",
    "LARS(1.0, trust_ratio_mask=True, weight_decay_mask=True)":
        "LARS(1.0, exclude_from_layer_adaptation=[], form={'denominator': 'norm_of_sum'})",
    "LAMB(1e-3, wd=0.01, beta1=0.8, mu_dtype='bfloat16')":
        "LAMB(0.001, beta_1=0.8, weight_decay=0.01, exclude_from_layer_adaptation=[], "
        "dtypes={'slots': 'bfloat16'})",
    "LAMB(1e-3, multi_precision=True, clip_gradient=5.0)":
        "LAMB(0.001, exclude_from_layer_adaptation=[], clipvalue=5.0, "
        "dtypes={'masters': 'float32'})",
    "LAMB(1e-3, aggregate_num=4, use_fused_step=True)":
        "LAMB(0.001, exclude_from_layer_adaptation=[])",
    "LANS(1e-3, begin_num_update=0, param_dict={})":
        "LANS(0.001, exclude_from_layer_adaptation=[])",
    "LARS(0.1, momentum_correction=False)":
        "LARS(0.1, momentum=0.0, exclude_from_weight_decay=['gamma', 'beta', 'bias'])",
    "LARS(1.0, trust_coefficient=0.01, eps=1e-9, b1=0.9)":
        "LARS(1.0, momentum=0.9, epsilon=1e-09, exclude_from_layer_adaptation=[], "
        "trust_coefficient=0.01, form={'denominator': 'norm_of_sum'})",
    "SGDP(0.1, accumulator_dtype='bfloat16')": "SGDP(0.1, dtypes={'slots': 'bfloat16'})",
    "SGDP(0.1, beta1=0.8, b2=0.99)": "SGDP(0.1, momentum=0.8)",
    # another optimizer of ours
    "LAMB(1e-3, nesterov=True)": "LANS(0.001)",
    "LAMB(lr=1e-3, use_nesterov=True, eps=1e-8)": "LANS(learning_rate=0.001, epsilon=1e-08)",
    "LAMB(1e-3, normalize_grad=True, bias_correction=True)": "LANS(0.001)",
    "LAMB(1e-3, nesterov=True, bounds={'trust_ratio': (0, 1)})": "LANS(0.001)",
    "LANS(1e-3, nesterov=False)": "LAMB(0.001)",
    "LANS(1e-3, bounds={'trust_ratio': (0, 1)}, lr=1e-3)": "LANS(0.001)",
    "Muon(1e-3, newton_schulz_steps=4, heads='each')":
        "Muon(0.001, form={'newton_schulz_steps': 4, 'heads': 'each'})",
    "LAMB(1e-3, trust_ratio=(0, 1))": "LAMB(0.001, bounds={'trust_ratio': (0, 1)})",
    # momentum, and what it is taken for
    "LARS(0.1, momentum_decay=0.9)": "LARS(0.1, momentum=0.9)",
    "AdamP(1e-3, momentum_decay=0.9)": "AdamP(0.001, beta_1=0.9)",
    "LARS(lr=0.1, momentum_decay=0.9, eeta=0.002)":
        "LARS(learning_rate=0.1, momentum=0.9, trust_coefficient=0.002)",
    "SGDP(0.1, mom=0.9)": "SGDP(0.1, momentum=0.9)",
    "LARS(0.1, momentum_factor=0.8)": "LARS(0.1, momentum=0.8)",
    "LARS(0.1, nesterov_momentum=True)": "LARS(0.1, nesterov=True)",
    # clipping and accumulation
    "LAMB(1e-3, clip_norm=1.0)": "LAMB(0.001, global_clipnorm=1.0)",
    "LAMB(1e-3, clip_grad=1.0)": "LAMB(0.001, global_clipnorm=1.0)",
    "LANS(1e-3, clip_grad_norm=1.0)": "LANS(0.001, global_clipnorm=1.0)",
    "Muon(1e-3, gradient_clip_val=None)": "Muon(0.001)",
    "SOAP(1e-3, clip=1.0)": "SOAP(0.001, global_clipnorm=1.0)",
    "SOAP(1e-3, clipNorm=1.0)": "SOAP(0.001, clipnorm=1.0)",
    "LAMB(1e-3, clip_value=0.5)": "LAMB(0.001, clipvalue=0.5)",
    "LAMB(1e-3, accum_steps=4)": "LAMB(0.001, gradient_accumulation_steps=4)",
    "LAMB(1e-3, average_decay=0.99)": "LAMB(0.001, use_ema=True, ema_momentum=0.99)",
    "LAMB(1e-3, loss_scale=128.0, jit=False)":
        "LAMB(0.001, loss_scale_factor=128.0, jit_compile=False)",
    # decay and what has none
    "LAMB(1e-3, decay_rate=0.01)": "LAMB(0.001, weight_decay=0.01)",
    "LAMB(1e-3, decay_rate=0.9, decay_steps=100)":
        "LAMB(keras.optimizers.schedules.ExponentialDecay(0.001, 100, 0.9))",
    "LAMB(1e-3, l2=0.1)": "LAMB(0.001, weight_decay=0.1)",
    "LAMB(1e-3, exclude=['bias'])": "LAMB(0.001, exclude_from_weight_decay=['bias'])",
    "AdamP(1e-3, exclude=['bias'])": "AdamP(0.001, exclude_from_weight_decay=['bias'])",
    "Muon(1e-3, exclude=['head'])": "Muon(0.001, exclude_from_layer_adaptation=['head'])",
    "LAMB(1e-3, no_weight_decay=['bias'])":
        "LAMB(0.001, exclude_from_weight_decay=['bias'], global_clipnorm=1.0)",
    "LAMB(1e-3, weight_decay_exclude=['b'])": "LAMB(0.001, exclude_from_weight_decay=['b'])",
    "AdamP(1e-3, exclude_bias=True)": "AdamP(0.001, exclude_from_weight_decay='norm_and_bias')",
    "LARS(0.1, lars_exclude=['b'])": "LARS(0.1, exclude_from_layer_adaptation=['b'])",
    "Muon(0.02, exclude_layers=['head', 'embedding'])":
        "Muon(0.02, exclude_from_layer_adaptation=['head', 'embedding'])",
    "Muon(0.02, muon_a=2.0, muon_b=2.0, muon_c=2.0)":
        "Muon(0.02, form={'coefficients': [2.0, 2.0, 2.0]})",
    # Adam's rate beside Muon's
    "Muon(0.02, adam_learning_rate=3e-4)":
        "Muon(0.02, form={'fallback_lr_scale': 0.015, 'update_scale': 'shape'})",
    "Muon(lr=0.02, adam_lr=3e-4)":
        "Muon(learning_rate=0.02, form={'update_scale': 'shape', 'fallback_lr_scale': 0.015})",
    "Muon(0.02, aux_lr=None, adamw_weight_decay=0.1)": "Muon(0.02)",
    # without a trust ratio, or with one
    "LAMB(1e-3, use_trust_ratio=False)": "LAMB(0.001, exclude_from_layer_adaptation=['.*'])",
    "LANS(1e-3, layerwise_adaptation=False)":
        "LANS(0.001, exclude_from_layer_adaptation=['.*'])",
    "LAMB(1e-3, adam=True)":
        "LAMB(0.001, exclude_from_layer_adaptation=['.*'], bias_correction=False)",
    "LARS(0.1, trust_ratio=False)": "LARS(0.1, exclude_from_layer_adaptation=['.*'])",
    "LANS(0.1, trust_ratio=True)": "LANS(0.1)",
    "Muon(0.1, trust_ratio=False)": "Muon(0.1)",
    "LAMB(1e-3, use_trust_ratio=True, adam=False)":
        "LAMB(0.001, exclude_from_layer_adaptation=[], bias_correction=False, "
        "bounds={'weight_norm': (0, 10)})",
    "SOAP(1e-3, use_trust_ratio=True)": "SOAP(0.001, bounds={'trust_ratio': (None, None)})",
    "LARS(0.1, weight_decay_filter=True, lars_adaptation_filter=True)":
        "LARS(0.1, exclude_from_weight_decay='norm_and_bias', "
        "exclude_from_layer_adaptation='norm_and_bias')",
    "LARS(0.1, weight_decay_filter=True, lars_adaptation_filter=False)":
        "LARS(0.1, exclude_from_weight_decay='norm_and_bias', exclude_from_layer_adaptation=[])",
    "LARS(0.1, larc=True)": "LARS(0.1, form={'momentum': 'mixed', 'clip': True})",
    # a schedule beside a number
    "LAMB(1e-3, lr_scheduler='cosine')":
        "LAMB(keras.optimizers.schedules.CosineDecay(0.001, 10000))",
    "LAMB(lr=0.1, lr_scheduler_type='linear')":
        "LAMB(learning_rate=keras.optimizers.schedules.PolynomialDecay(0.1, 10000, 0.0))",
    "LAMB(1e-3, learning_rate_schedule=schedule)": "LAMB(...)",
    "LAMB(1e-3, learning_rate_fn=schedule)": "LAMB(...)",
    "LAMB(1e-3, lr_schedule=None)": "LAMB(0.001)",
    # other names of what there is
    "SOAP(3e-3, precond_freq=5)": "SOAP(0.003, precondition_frequency=5)",
    "AdamP(1e-3, projection_delta=0.2)": "AdamP(0.001, delta=0.2)",
    "LAMB(1e-3, l2_reg=0.1)": "LAMB(0.001, weight_decay=0.1)",
    "LAMB(1e-3, no_decay_params=['bias'])": "LAMB(0.001, exclude_from_weight_decay=['bias'])",
    "LAMB(1e-3, apply_to_bias=False)": "LAMB(0.001, exclude_from_weight_decay=['bias'])",
    "LAMB(1e-3, state_dtype='bfloat16')": "LAMB(0.001, dtypes={'slots': 'bfloat16'})",
    "LAMB(1e-3, master_weights=True)":
        "LAMB(0.001, global_clipnorm=1.0, dtypes={'masters': 'float32'})",
    "LAMB(1e-3, clip_grad_norm=False)": "LAMB(0.001)",
    # what nothing here needs
    "LAMB(1e-3, cuda_aware=True, comm_backend_name='nccl', use_locking=False)":
        "LAMB(0.001, epsilon=1e-08, exclude_from_layer_adaptation=[], bias_correction=False, "
        "bounds={'trust_ratio': (0.01, 10)})",
    "Muon(0.02, rank=0, world_size=1, use_muon=True, backend='newtonschulz5')":
        "Muon(0.02, form={'update_scale': 'shape'})",
    "Muon(0.02, muon_params=[], adamw_params=[])": "Muon(0.02, form={'update_scale': 'shape'})",
    "Muon(0.02, preconditioning='frobenius', muon_weight_dimension_numbers=None)":
        "Muon(0.02, form={'update_scale': 'shape'})",
    # the scale of Muon's steps
    "Muon(0.02, adamw_wd=0.1)": "Muon(0.02, form={'update_scale': 'shape'})",
    "Muon(0.02, adamw_eps=1e-9)": "Muon(0.02, form={'update_scale': 'shape'}, epsilon=1e-09)",
    "Muon(0.02, backend_steps=6, weight_decay=0.1)":
        "Muon(0.02, weight_decay=0.1, form={'newton_schulz_steps': 6, 'update_scale': 'shape'})",
    "Muon(0.02, beta=0.9)": "Muon(0.02, momentum=0.9, form={'update_scale': 'shape'})",
    "Muon(0.02, rank=0, form={'update_scale': 'rms'})": "Muon(0.02, form={'update_scale': 'rms'})",
    "Muon(1e-3, ns_coefficients=(3, -4, 2), adjust_lr_fn='match_rms_adamw')":
        "Muon(0.001, form={'coefficients': (3, -4, 2), 'update_scale': 'rms'})",
    "Muon(1e-3, ns_steps=6, rms_rate=0.2)": "Muon(0.001, form={'newton_schulz_steps': 6})",
    # timm's Muon
    **{
        f"Muon({typed})": f"Muon({learning_rate}, exclude_from_layer_adaptation=[], "
        f"nesterov=False, form={{{form}}}, {betas}, epsilon=1e-07)"
        for typed, learning_rate, form, betas in [
            ("conv_mode='flatten'", "learning_rate=0.02", QUINTIC, "beta_2=0.95"),
            ("lr=0.01, conv_mode='flatten'", "learning_rate=0.01", QUINTIC, "beta_2=0.95"),
            ("1e-3, ns_coefficients='quintic'", "0.001", QUINTIC, "beta_2=0.95"),
            ("1e-3, ns_coefficients='original'", "0.001", "'coefficients': 'jordan'",
             "beta_2=0.95"),
            ("1e-3, ns_coefficients='polar_express'", "0.001", "'coefficients': 'polar_express'",
             "beta_2=0.95"),
            ("lr=0.01, fallback_lr_scale=0.1", "learning_rate=0.01",
             f"'fallback_lr_scale': 0.1, {QUINTIC}", "beta_2=0.95"),
            ("1e-3, betas=(0.9, 0.99), adjust_lr_fn='match_rms_adamw', ns_steps=5", "0.001",
             f"'newton_schulz_steps': 5, {QUINTIC}", "beta_1=0.9, beta_2=0.99"),
            ("1e-3, betas=(0.9, 0.99), adjust_lr_fn='original'", "0.001",
             f"'update_scale': 'shape', {QUINTIC}", "beta_1=0.9, beta_2=0.99"),
        ]
    },
    # schedules, ratios, corrections
    "LAMB(num_warmup_steps=10, num_train_steps=100)":
        "LAMB(learning_rate=tf_lamb.keras.schedules.Warmup(10, "
        "keras.optimizers.schedules.PolynomialDecay(0.01, 90, 0.0)))",
    "LAMB(lr=0.1, num_warmup_steps=10, num_training_steps=100)":
        "LAMB(learning_rate=tf_lamb.keras.schedules.Warmup(10, "
        "keras.optimizers.schedules.PolynomialDecay(0.1, 90, 0.0)))",
    "LAMB(1e-3, warmup_steps=10, total_steps=100)":
        "LAMB(tf_lamb.keras.schedules.Warmup(10, "
        "keras.optimizers.schedules.PolynomialDecay(0.001, 90, 0.0)))",
    "LAMB(1e-3, trust_ratio_clip=10.0)": "LAMB(0.001, bounds={'trust_ratio': (0, 10.0)})",
    "LARS(0.1, max_trust_ratio=5)": "LARS(0.1, bounds={'trust_ratio': (0, 5)})",
    "LAMB(1e-3, clip_trust_ratio=True)": "LAMB(0.001, bounds={'trust_ratio': (0, 1)})",
    "LANS(1e-3, trust_ratio_clip=False)": "LANS(0.001)",
    "LAMB(1e-3, debias=True)":
        "LAMB(0.001, exclude_from_layer_adaptation=[], bias_correction=False, "
        "bounds={'weight_norm': (0, 10)})",
    "LARS(0.1, trust_coef=0.001)": "LARS(0.1, trust_coefficient=0.001)",
    "LARS(0.1, trustcoef=0.001)": "LARS(0.1, trust_coefficient=0.001)",
    "LANS(1e-3, mode=1)": "LANS(0.001)",
    "AdamP(1e-3, fixed_decay=False, use_gc=False)": "AdamP(0.001)",
    # misspelt
    "LAMB(1e-3, eplison=1e-8)": "LAMB(0.001, epsilon=1e-08)",
    "LAMB(LR=1e-3, Beta1=0.8)": "LAMB(learning_rate=0.001, beta_1=0.8)",
    "LAMB(opt_eps=1e-8, initial_learning_rate=1e-3)":
        "LAMB(learning_rate=0.001, epsilon=1e-08)",
    "SOAP(1e-3, adam_epsilon=1e-8)": "SOAP(0.001, epsilon=1e-08)",
    "LAMB(1e-3, wieght_decay=0.01)": "LAMB(0.001, weight_decay=0.01)",
    "LAMB(1e-3, exclude_from_weight_deacy=['bias'])":
        "LAMB(0.001, exclude_from_weight_decay=['bias'])",
    "Muon(1e-3, exclude_layer=['head'], nestorov=False)":
        "Muon(0.001, exclude_from_layer_adaptation=['head', 'embedding'], nesterov=False)",
    # too long to show, and twice the same
    "LAMB(1e-3, weight_decay_rate=0.1, exclude_from_weight_decay=['a'] * 300)":
        "LAMB(0.001, weight_decay=0.1, exclude_from_weight_decay=...)",
    "LAMB(1e-3, lr=1e-2)": "LAMB(0.001)",
}  # fmt: skip


def error_of(call, names=NAMES):
    with pytest.raises(TypeError) as caught:
        eval(call, dict(names))
    return str(caught.value)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_in_others_words_is_answered_with_the_call_in_ours(call):
    assert f"write {CALLS[call]}." in error_of(call)


@pytest.mark.parametrize(
    ("call", "is_told"),
    [
        ("LAMB(weight_decay_rate=0.01)", True),
        ("LAMB(1e-3, weight_decay_rate=0.01)", False),
        ("LAMB(lr=1e-3, weight_decay_rate=0.01)", False),
        ("LAMB(weight_decy=0.01)", False),
        ("AdamP(weight_decay_rate=0.01)", False),
        ("LAMB(num_warmup_steps=1, num_train_steps=9)", True),
        ("LAMB(lr=0.1, num_warmup_steps=1, num_train_steps=9)", False),
        ("LAMB(decay=0.5)", False),
    ],
)
def test_a_rate_that_is_left_to_another_default_is_told_of(call, is_told):
    told = "Without learning_rate it begins at 0.01 here: pass the rate that you had."
    assert (told in error_of(call)) is is_told


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("LAMB(1e-3, use_nvlamb=True)",
         "apex decays by 0.01 where no decay is passed: add weight_decay=0.01 to keep it."),
        ("LAMB(1e-3, grad_averaging=True)", "timm and apex decay by 0.01 where no decay is passed"),
        ("LAMB(1e-3, decoupled_decay=True)", "timm decays by 0.01 where"),
        ("LAMB(1e-3, max_grad_norm=1.0)", "timm and apex decay by 0.01 where"),
        ("LAMB(1e-3, lamb_weight_decay=0.1)", ""),
        ("LARS(0.1, lars_coeff=0.1)", "paddle decays by 0.0005 where"),
        ("LARS(0.1, use_nesterov=True)", "MLPerf decays by 0.0001 where"),
        ("LANS(1e-3, mode=1)", "LANS of its authors decays by 0.01 where"),
        ("SOAP(1e-3, merge_dims=False)", "Vyas' SOAP decays by 0.01 where"),
        ("Muon(lr=1e-3, adjust_lr_fn='original')", "torch's Muon decays by 0.1 where"),
        ("Muon(1e-3, muon_a=3.4445)", "Keras's Muon decays by 0.004 where"),
        ("Muon(1e-3, rank=0)", ""),
        ("LAMB(1e-3, use_nvlamb=True, weight_decay=0.0)", ""),
        ("LAMB(1e-3, eps=1e-8)", ""),
        ("LAMB(1e-3, clamp_value=10)", ""),
    ],
)  # fmt: skip
def test_a_decay_that_is_left_to_another_default_is_told_of(call, answer):
    assert answer in error_of(call) and ("where no decay" in error_of(call)) is bool(answer)


@pytest.mark.parametrize("call", sorted({*CALLS.values()}))
def test_the_call_that_is_answered_can_be_made(call):
    value = "['a']" if "decay=..." in call else "0.9" if "beta_1=..." in call else "schedule"
    eval(call.replace("...", value), dict(NAMES))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("LAMB(1e-3, lr=1e-2)", "gives learning_rate twice"),
        ("LAMB(1e-3, amsgrad=True)",
         "LAMB has no argument 'amsgrad' (Keras, torch). No rule of this package is AMSGrad. "
         "Without it, write LAMB(0.001)."),
        ("LAMB(lr=1e-3, eps=1e-8)",
         "LAMB has no arguments 'lr' (torch, timm, apex, old Keras) and 'eps' (torch, timm, apex, "
         "optax): write LAMB(learning_rate=0.001, epsilon=1e-08)."),
        ("LAMB(1e-3, wieght_decay=0.1)",
         "LAMB has no argument 'wieght_decay' (did you mean weight_decay?): write LAMB(0.001, "
         "weight_decay=0.1)."),
        ("LAMB(lr=1e-3, colour=2)",
         "and 'colour'. 'colour' is unknown. Without 'colour', write LAMB(learning_rate=0.001). It "
         "takes learning_rate, "),
        ("LAMB(lr=1e-3, colour=2, tint=1)",
         "'colour' and 'tint' are unknown. Without 'colour' and 'tint', write LAMB("),
        ("SOAP(lr=3e-3, amsgrad=True)",
         "and 'amsgrad' (Keras, torch). No rule of this package is AMSGrad. Without 'amsgrad', "
         "write SOAP(learning_rate=0.003)."),
        ("LAMB(1e-3, nesterov=True, amsgrad=True)", "Without 'amsgrad', write LANS(0.001). LANS"),
        ("LAMB(1e-3, nesterov=True, bounds={'trust_ratio': (0, 1)})", "LANS has no bounds."),
        ("LANS(1e-3, nesterov=False)", "LANS always takes Nesterov's step; LAMB never does."),
        ("LANS(1e-3, weight_decay_mode='decoupled')",
         "LANS has no argument 'weight_decay_mode'. LAMB has weight_decay_mode. Without it, write "
         "LANS(0.001)."),
        ("AdamP(1e-3, bounds={'trust_ratio': (0, 1)})", "LAMB, LARS, Muon and SOAP have bounds."),
        ("LAMB(1e-3, clip_norm=1.0)",
         "global_clipnorm scales all gradients by one factor if the norm of all of them together "
         "is larger, and clipnorm each variable's by its own norm."),
        ("LARS(0.1, beta1=0.8)", "'beta1' (paddle, MXNet; LARS calls it momentum): write"),
        ("SGDP(0.1, bta_1=0.8)", "'bta_1' (did you mean beta_1? SGDP calls it momentum): "),
        ("SOAP(1e-3, momentum=0.9)", "SOAP calls it beta_1"),
        *((f"{name}(1e-3, {word}=1.0)", said)
          for word in ("trust_coeff", "trust_coefficient", "trust_coefficent", "eeta", "tcoef")
          for name, said in {
              "LAMB": "Its trust ratio has no coefficient; that of LARS has. Without it, write",
              "LANS": "Its trust ratio has no coefficient; that of LARS has. Without it, write",
              "AdamP": "It has no trust coefficient; LARS has. Without it, write",
          }.items()),
        ("LAMB(1e-3, eta=0.1)", "which only LARS has; a rate is called learning_rate."),
        ("LARS(0.1, momentum_decay=0.9)", "'momentum_decay' (did you mean momentum?): write"),
        ("LAMB(1e-3, exclude=['bias'])", "(did you mean exclude_from_weight_decay?): write"),
        ("LAMB(1e-3, decay_rate=0.1)", "pass the schedule as learning_rate."),
        ("LAMB(1e-3, warmup_steps=9)", "schedules.CosineDecay: pass that as learning_rate. With"),
        ("LAMB(1e-3, mixed_precision=True)", "keras.mixed_precision"),
        ("LAMB(1e-3, loss_scale='dynamic')", "LossScaleOptimizer(optimizer). Without it"),
        ("LAMB(1e-3, maximize=False)",
         "'maximize' (torch; False is what LAMB does without it): write LAMB(0.001)."),
        ("Muon(1e-3, heads='each')", "(did you mean an entry of form?): write Muon(0.001, "),
        ("LARS(classic_momentum='no')", "no argument 'classic_momentum': it takes learning_rate, "),
        ("LAMB(colour=2, tint=1)", "no arguments 'colour' and 'tint': it takes learning_rate, "),
        ("Muon(1e-3, adam_weight_decay=0.0)", "exclude_from_weight_decay"),
        ("SOAP(1e-3, adam_lr_ratio=0.1)", "slower one in treatments"),
        ("LAMB(1e-3, nesterov=True)", "LANS is LAMB with Nesterov's step"),
        ("LAMB(1e-3, learning_rate_schedule=schedule)", "takes the place of the number."),
        ("LAMB(1e-3, learning_rate_fn=schedule)", "The schedule is passed as the rate itself"),
        *((f"LAMB(1e-3, {word}=0.5)", "those of uncompressed LAMB. Without it, write LAMB(")
          for word in ("coeff_beta", "factor_max", "factor_min", "factor_threshold")),
        *((f"SOAP(1e-3, {word}=9)", said)
          for word, said in {
              "block_size": "max_precond_dim is the longest axis that has a basis. Without it",
              "max_size_triangular": "max_precond_dim is the longest axis that has a basis. With",
              "start_preconditioning_step": "Bases serve from the second step on. Without it",
          }.items()),
        ("Muon(0.02, cautious_weight_decay=True)", "No rule here masks decay by the sign of a st"),
        ("Muon(0.02, use_muon=False)", "It takes all matrices but embeddings, and leaves the re"),
        ("Muon(0.02, preconditioning='schatten')", "divided by its Frobenius norm before"),
        ("Muon(0.02, muon_weight_dimension_numbers={})", "{'mixer/kernel': {'rows': 0}}. With"),
        ("LAMB(1e-3, lookahead=True)", "use_ema=True averages by another rule. Without it"),
        ("LAMB(1e-3, pre_norm=True)", "clipped by a number, global_clipnorm, and not divided"),
        ("LANS(1e-3, mode=0)", "keras.regularizers.L2"),
        ("AdamP(1e-3, use_gc=True)", "Gradients are not centralized. Without it, write AdamP("),
        ("SOAP(1e-3, use_decoupled_weight_decay=False)", "keras.regularizers.L2"),
        ("LAMB(1e-3, adam_w_mode=False)", "keras.regularizers.L2"),
        ("LAMB(1e-3, adam_w_mode=False)", "The weight_decay of apex is 0.01 if none is passed."),
        ("Muon(0.02, adam_lr_ratio=0.1)", "Muon here by this share of it"),
        ("LARS(0.1, max_epoch=10)", "It belongs to a schedule"),
        ("LANS(1e-3, lower_bound=1e-3, upper_bound=10.0)", "LANS has no upper bound of a norm."),
        ("Muon(1e-3, ns_steps=6)",
         "torch (decay 0.1 by default), Jordan and optax scale steps by the shape: add "
         "'update_scale': 'shape' to form for theirs; Keras (decay 0.004 by default) scales them "
         "as without it."),
        ("Muon(1e-3, rank=0)", "Their Muon scales steps by the shape, as this form does."),
        *((f"Muon(1e-3, {argument})", "Betas are AdamW's, which updates what is no matrix: ")
          for argument in ("beta1=0.8", "beta2=0.95", "b1=0.8", "b2=0.95", "betas=(0.8, 0.95)")),
        ("Muon(1e-3, adamw_wd=0.1)", "that one is AdamW's alone: pass weight_decay, and put"),
        ("LAMB(1e-3, b1=0.8)", "optax adapts what does not decay, too, as this empty list does."),
        ("LARS(1e-3, b1=0.8)", "The ratio of optax divides by the norm of the sum, as this form"),
        ("LAMB(1e-3, debias=True)", "There the rate is corrected, after the ratio: for the same"),
        ("LAMB(1e-3, adam=True)", "Their Adam corrects no bias; pytorch_optimizer's divides the"),
        ("LAMB(1e-3, clamp_value=10)", "corrects no bias without debias, takes 10 for a larger n"),
        ("LAMB(1e-3, max_coeff=5)", "has this epsilon and these bounds by default, and adapts wh"),
        ("LAMB(1e-3, max_coeff=5)", "corrects the rate, after the ratio: pass False here, and `C"),
        ("LAMB(1e-3, eps_inside_sqrt=True)", "is added inside the root. Outside of it, where it"),
        ("LAMB(1e-3, freeze_step=9)", "1-bit Lamb has this epsilon and these bounds by default,"),
        ("LAMB(1e-3, freeze_step=9)", "corrects no bias, whatever its bias_correction is."),
        ("LAMB(1e-3, lower_bound=0.5)", "There lower_bound lifts the norm of a weight at 0, too"),
        ("LANS(1e-3, lower_bound=0.5)", "There lower_bound lifts the norm of a weight at 0, too"),
        ("LAMB(1e-3, upper_bound=5)", "MXNet adapts what does not decay, too, as this empty list"),
        ("LARS(0.1, eta=0.001)", "MXNet's Module exempts what ends with gamma, beta or bias, as"),
        ("LARS(0.1, eta=0.001)", "Epsilon is 1e-8 in MXNet 2, and 0 in 1.9 and here."),
        ("LARS(0.1, lazy_update=False)", "There momentum is 0 unless it is passed, and here 0.9."),
        ("LARS(0.1, momentum_correction=True)", "that of the first four variables alone: see"),
        ("LAMB(1e-3, step=7)", "here that is iterations, which a saved optimizer restores."),
        ("LAMB(1e-3, aggregate_num=4)", "It is for the kernels of MXNet. XLA compiles the update"),
        ("Muon(0.02, conv_mode='flatten')", "Embeddings are matrices, too, but what has an axis u"),
        ("Muon(0.02, conv_mode='batched')", "A convolution is one matrix here, as with conv_mode="),
        ("Muon(0.02, algo='adamuon')", "AdaMuon is another algorithm, which is not here. Without"),
        ("Muon(0.02, adjust_lr_fn='rms_to_rms')", "sqrt(outputs/inputs) only where a layer widens"),
        ("Muon(0.02, ns_coefficients='polar_express')", "Its numbers are not quite timm's: for th"),
        ("LAMB(1e-3, num_warmup_steps=9)", "schedules.CosineDecay: pass that as learning_rate. W"),
        ("LAMB(1e-3, num_warmup_steps=9, num_train_steps=99)", "and then down to 0 at the last."),
        ("LANS(1e-3, trust_ratio_clip=10.0)", "LAMB, LARS, Muon and SOAP have bounds of a trust"),
        ("LAMB(1e-3, trust_coef=0.1)", "Its trust ratio has no coefficient; that of LARS has."),
        ("SOAP(1e-3, preconditioner_update_probability=0.1)",
         "every precondition_frequency steps, which is 1 divided by the probability. Without it"),
        *((f"SOAP(1e-3, {word}=0.9)", "The factors decay by beta_2, and the moments by beta_1 and")
          for word in ("hidden_beta", "precond_beta", "preconditioner_beta", "factor_beta")),
    ],
)  # fmt: skip
def test_what_changes_and_why_something_cannot_be_had_is_said(call, said):
    assert said in error_of(call)


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("LAMB(weight_decay_mode='adamw')", "not 'adamw'. Did you mean 'decoupled'?"),
        ("LAMB(weight_decay_mode='updates')", "Did you mean 'update'?"),
        ("LAMB(treatments={'bias': {'lr': 0.1}})",
         "Did you mean 'rate', a factor of the optimizer's rate?"),
        ("LAMB(treatments={'bias': {'slice': 0}})", "Did you mean 'slices'?"),
        ("LAMB(bounds={'trust': (0, 1)})", "Did you mean 'trust_ratio'?"),
        ("LAMB(bounds={'norm': (0, 1)})", "Did you mean 'weight_norm'?"),
        ("LAMB(dtypes={'slot': 'bfloat16'})", "Did you mean 'slots'?"),
        ("LAMB(dtypes={'slots': 'bf16'})", "Did you mean 'bfloat16'?"),
        ("LARS(form={'momentum': 'heavy'})", "not 'heavy'. Did you mean 'inside'?"),
        ("LARS(form={'momntum': 'inside'})", "Did you mean 'momentum'?"),
        ("LARS(form={'trust_clip': True})", "Did you mean 'clip'?"),
        ("LARS(form={'denominator': 'norm_of_sums'})", "Did you mean 'norm_of_sum'?"),
        ("Muon(form={'ns_steps': 6})", "Did you mean 'newton_schulz_steps'?"),
        ("Muon(form={'backend_steps': 6})", "Did you mean 'newton_schulz_steps'?"),
        ("Muon(form={'adam_lr_ratio': 0.1})", "Did you mean 'fallback_lr_scale'?"),
        ("Muon(form={'update_scale': 'match_rms_adamw'})", "Did you mean 'rms'?"),
        ("SOAP(form={'onesided': True})", "Did you mean 'one_sided'?"),
        ("LAMB(bounds={'ns_steps': 6})", "'weight_norm', 'trust_ratio'."),
        ("LAMB(weight_decay_mode='colour')", "not 'colour'."),
        ("LAMB(bounds={1: (0, 1)})", "bounds has no 1: its keys are 'weight_norm', 'trust_ratio'."),
    ],
)  # fmt: skip
def test_a_wrong_key_or_value_is_answered_with_the_one_that_was_meant(call, answer):
    with pytest.raises(ValueError) as caught:
        eval(call, dict(NAMES))
    assert str(caught.value).endswith(answer)


@every_frontend
def test_a_schedule_is_of_the_keras_that_asks(frontend):
    names = {"LAMB": FRONTENDS[frontend][1].LAMB}
    rate = f"LAMB({frontend}.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.5))."
    assert rate in error_of("LAMB(0.1, decay=0.5)", names)


def test_a_subclass_reads_only_what_is_new():
    class Mine(tf_lamb.keras.LAMB):
        def __init__(self, rate=0.1, **arguments):
            super().__init__(rate, **arguments)

    names = {"Mine": Mine}
    assert error_of("Mine(eps=1e-8, wd=1)", names).endswith(
        ": write weight_decay=1 and epsilon=1e-08."
    )
    assert ": leave it out. XLA" in error_of("Mine(fused=True)", names)
    assert error_of("Mine(nesterov=True)", names).endswith("normalized gradients. Leave it out.")
    assert "Without 'amsgrad', write weight_decay=1." in error_of("Mine(wd=1, amsgrad=1)", names)


class Secret:
    def __repr__(self):
        raise AssertionError("was shown")

    __eq__ = __str__ = __float__ = __len__ = __iter__ = __repr__
    __hash__ = object.__hash__


@pytest.mark.parametrize("name", ["LAMB", "Muon"])
@pytest.mark.parametrize(
    "word", ["eps", "betas", "mask", "decay", "exclude_layers", "ns_steps", "fused"]
)
@pytest.mark.parametrize(
    "value",
    [Secret(), [Secret()] * 40, {"key": "x" * 200}, np.ones(3), 10**5000, [[[[[1]]]]], "x" * 200],
    ids=["object", "list", "dict", "array", "number", "nested", "text"],
)
def test_a_value_is_shown_in_short_or_not_at_all(value, word, name):
    with pytest.raises(TypeError) as caught:
        getattr(tf_lamb.keras, name)(1e-3, **{word: value})
    assert len(str(caught.value)) < 700 and "xxxx" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("LANS(1e-3, grad_norm=True)",
         "LANS has no argument 'grad_norm' (did you mean max_grad_norm?). LANS(0.001, "
         "global_clipnorm=True) is refused, too: global_clipnorm must be a number in [0, inf), not "
         "True. Try global_clipnorm=1.0."),
        ("LAMB(lr='1e-3')", "LAMB(learning_rate='1e-3') is refused, too: learning_rate must be"),
        ("LAMB(1e-3, wd=0.1, beta_1=1.0)", "is refused, too: beta_1 must be a number in [0, 1)"),
        ("LAMB(1e-3, skip_list='bias')", "not 'bias'. Did you mean ['bias']?"),
        ("LARS(0.1, trust_ratio=2)", "is refused, too: bounds['trust_ratio'] must be None or two"),
        ("LAMB(1e-3, clip_value=1.0, clip_norm=1.0)", "is refused, too: At most one of clipnorm"),
        ("LAMB(1e-3, lr_scheduler='step')", "schedules.CosineDecay(rate, steps), takes the place"),
    ],
)  # fmt: skip
def test_a_call_that_is_refused_is_not_recommended(call, answer):
    assert answer in error_of(call) and "write" not in error_of(call)
    assert "?." not in error_of(call)


@pytest.mark.parametrize(
    ("call", "unsaid"),
    [
        ("Muon(1e-3, adamw_wd=0.1)", "Keras's"),
        ("Muon(1e-3, ns_steps=6, rms_rate=0.2)", "scale steps by the shape"),
        ("Muon(1e-3, ns_steps=6, rank=0)", "for theirs"),
        ("LARS(0.1, trust_coef=0.001)", "timm"),
        ("LARS(0.1, betas=(0.9, 0.99))", "AdamW"),
        ("Muon(learning_rate=1e-3, lr=0.1, adjust_lr_fn='match_rms_adamw')",
         "'adjust_lr_fn' (torch's Muon; "),
        ("Muon(lr=0.02, conv_mode='flatten')", "by the shape"),
        ("Muon(lr=0.02, rank=0, conv_mode='flatten')", "by the shape"),
        ("Muon(0.02, adjust_lr_fn='original', conv_mode='flatten')", "torch's Muon decays"),
        ("LAMB(1e-3, max_coeff=5, max_grad_norm=0.0)", "timm and apex decay"),
        ("LAMB(1e-3, freeze_step=9, max_coeff=5)", "Corrected"),
    ],
)  # fmt: skip
def test_what_is_of_another_source_is_not_said(call, unsaid):
    assert unsaid not in error_of(call)


def test_in_tf_keras_a_scale_of_the_loss_is_not_recommended():
    names = {"LAMB": FRONTENDS["tf_keras"][1].LAMB}
    assert "LossScaleOptimizer around the optimizer." in error_of("LAMB(loss_scale=8.0)", names)


def values_for(word, entry):
    """What is passed for an argument whose value a row leaves open."""
    if "Warmup(" in (entry.replacement or ""):
        return [9 if "warmup" in word else 99]
    if "schedules." in (entry.replacement or ""):
        return [0.5, 2.0]
    choices = CHOICES.get(f"form[{word!r}]", ())
    return [0.5, 2, True, False, None, "float32", "bias", ["bias"], (3, 4, 2), (0.1, 0.9), *choices]


@pytest.mark.filterwarnings("ignore:global_clipnorm")  # of LANS, which it does not change
@pytest.mark.parametrize("entry", WORDS, ids=[entry.foreign_arguments for entry in WORDS])
def test_every_call_that_is_recommended_can_be_made(entry):
    recommended = set()
    values = [
        values_for(word, entry) if value is ... else [value]
        for word, value in entry.conditions.items()
    ]
    for name in entry.classes or tf_lamb.core.rules.OURS:
        cls = NAMES[name]
        if entry.conditions.keys() <= inspect.signature(cls).parameters.keys():
            continue  # a row for the other classes
        for given in zip(*map(itertools.cycle, values), range(max(map(len, values))), strict=False):
            with pytest.raises(TypeError, match="has no argument") as caught:
                cls(**dict(zip(entry.conditions, given, strict=False)))
            recommended |= {*re.findall(r"write (\w+\(.*?\))\.(?: |$)", str(caught.value))}
    complete = [call for call in recommended if "..." not in call]
    for call in complete:
        eval(call, dict(NAMES))
    assert complete


@pytest.mark.parametrize("entry", WORDS, ids=[entry.foreign_arguments for entry in WORDS])
def test_an_entry_is_reached_by_every_optimizer_that_it_is_for(entry):
    values = {name: 0.5 if value is ... else value for name, value in entry.conditions.items()}
    reached = []
    for name in entry.classes or tf_lamb.core.rules.OURS:
        cls = getattr(tf_lamb.keras, name)
        known = inspect.signature(cls).parameters
        assert entry.replacing_arguments.keys() <= known.keys() or not entry.classes
        if entry.replacing_arguments.keys() <= known.keys() and not values.keys() <= known.keys():
            with pytest.raises(TypeError, match="has no argument"):
                cls(**values)
            new, said, _ = arguments.translate(cls, values)
            reached.append(entry.note in said and entry.replacing_arguments.keys() <= new.keys())
    assert any(reached) and (all(reached) or not entry.classes)
