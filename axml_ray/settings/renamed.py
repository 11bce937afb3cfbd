"""Settings that older versions had: the one place that knows their names.

An old name is an error, not a synonym: a config says what ran, and each setting has one name.
"""

RENAMED = {
    "network.attention_start": "network.label_vector_init",
    "network.path_weight": "network.parent_score_exponent",
    "training.score_every": "training.eval_every_steps",
    "training.true_candidates": "training.include_true_parents",
    "training.averaging": "set training.average_after to training.epochs to train without stochastic weight averaging",
    "members.linear_tree.threshold": "weights below 0.1 are always dropped, as in Parabel",
    "corpus.word_vector_epochs": "word vectors are now computed from word counts, without epochs",
}
"""By the path of an old setting or group: its new path or, with blanks, the reason why it was removed."""


def describe_renamed(key: str) -> str | None:
    """Return the message for an old setting, or for one of an old group: its new name, or why it was removed.

    Args:
        key: path of a setting, such as `tree.height`.

    Returns:
        The message; None if no older version had the setting.
    """
    group, rest = key, ""
    while group not in RENAMED:
        group, _, name = group.rpartition(".")
        rest = f".{name}{rest}"
        if not group:
            return None
    now = RENAMED[group]
    return f"{key}: was removed: {now}" if " " in now else f"{key}: is now {now}{rest}"
