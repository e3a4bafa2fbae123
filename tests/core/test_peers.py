"""What other packages call their slots."""

from tf_lamb.api.migration import peers


def test_names_of_slots_are_parsed():
    named = {"training/LAMB/iter:0": 3, "training/LAMB/a/b/m:0": 1, "training/LAMB/a/b/v:0": 2}
    assert peers.legacy_slots(named) == ("LAMB", 3, {"a/b": {"m": 1, "v": 2}})
    assert peers.legacy_slots({"LAMB/a/b/m:0": 1}) == ("", 0, {})


def test_who_wrote_a_weight_decay_rate_is_not_guessed():
    """TensorFlow Addons before 0.16 did, and Model Garden does, under one name."""
    peer = peers.of_legacy("the file", "LAMB", {"m", "v"}, {"weight_decay_rate": 0.01})
    assert peer.title == "LAMB of Model Garden or of TensorFlow Addons before 0.16"
