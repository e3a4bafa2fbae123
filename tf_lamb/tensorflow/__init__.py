"""What both TensorFlow hosts share: the compiled update of many variables."""
