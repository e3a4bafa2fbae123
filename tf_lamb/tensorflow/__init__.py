"""Code for TensorFlow that Keras 3, tf_keras and Model Garden share, such as updates of weights."""
