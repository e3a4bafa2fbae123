"""The parts that both TensorFlow frontends share: the compiled update of many variables."""
