"""Calls `tf_lamb.model_garden.register` on import, for main programs that can only import modules.

    python -m official.nlp.train --gin_params='import tf_lamb.model_garden.registered' \\
        --experiment=lamb/bert_pretraining ...
"""

from tf_lamb.model_garden import register

register()
