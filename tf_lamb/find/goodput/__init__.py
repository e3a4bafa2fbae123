"""How long training takes at each batch and what it costs: `steps` to a target, and `costs`."""
