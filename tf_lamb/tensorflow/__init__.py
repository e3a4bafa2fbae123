"""The parts that all frontends on TensorFlow share, such as the compiled update."""
