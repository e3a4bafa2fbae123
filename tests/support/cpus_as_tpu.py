"""CPUs in the place of a TPU, for code that asks `tf.distribute` for one."""

from support import clusters


def install(monkeypatch, replicas=2):
    """Lets `TPUStrategy` be a MirroredStrategy of logical CPUs; what comes before it does nothing.

    The code under test stays as a reader pastes it.
    """
    import tensorflow as tf

    class TPUStrategy:
        """No function: our code asks `isinstance` of it."""

        def __new__(cls, resolver):
            return clusters.mirrored(replicas)

    resolvers = tf.distribute.cluster_resolver
    monkeypatch.setattr(resolvers, "TPUClusterResolver", lambda tpu=None, **more: tpu)
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda resolver: None)
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", lambda resolver: None)
    monkeypatch.setattr(tf.distribute, "TPUStrategy", TPUStrategy)
