"""Extras beside the large-batch optimizers of `tf_lamb`, one a folder, each whole in it.

They import `tf_lamb`, which imports none of them. This import loads no framework.
"""
