"""The registered experiment of docs/protocol.md, on JAX."""
