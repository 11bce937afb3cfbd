"""A search space of a level's network and training: sizes, dropout, learning rate, batch size, epochs, averaging.

    --space tune_spaces.attention            all of them, for the paper's network and those of its ablation table
    --space tune_spaces.attention:training   learning rate, batch size, epochs and averaging only
    --space tune_spaces.attention:rates      learning rate, batch size and dropout: the epochs stay the config's

A name is the path of a setting; a number at its end is an index into a list, such as 0 for the first level's epochs.
"""

from axml_ray.tuning.space import Draw


def space(draw: Draw) -> None:
    """Draw the network and its training."""
    network(draw)
    training(draw)


def network(draw: Draw) -> None:
    """Draw the kind of network, its sizes and dropout rates; only settings that the kind uses are drawn."""
    kind = draw.suggest_categorical("network.kind", ["attention", "bilstm", "xml_cnn"])
    dropouts(draw)
    if kind in ("attention", "bilstm"):
        draw.suggest_int("network.hidden", 64, 512, log=True)
    if kind == "attention":
        draw.suggest_int("network.fully_connected.0", 64, 512, log=True)
        draw.suggest_categorical("network.evidence", [False, True])
        draw.suggest_categorical("network.label_vector_init", ["random", "features", "names"])
        return
    # The other two kinds have no attention, and refuse these settings of the config.
    draw.fix("network.evidence", False)
    draw.fix("network.label_vector_init", "random")


def dropouts(draw: Draw) -> None:
    """Draw the dropout rates after the embedding and after the encoder."""
    draw.suggest_float("network.embedding_dropout", 0.0, 0.5, step=0.1)
    draw.suggest_float("network.encoder_dropout", 0.0, 0.7, step=0.1)


def training(draw: Draw) -> None:
    """Draw the epochs of the first level and of all deeper ones; averaging begins before the last epoch."""
    steps(draw)
    for place in (0, 1):
        epochs = draw.suggest_int(f"training.epochs.{place}", 2, 10)
        draw.suggest_int(f"training.average_after.{place}", 1, epochs - 1)


def rates(draw: Draw) -> None:
    """Draw settings that change neither the network's size nor the number of epochs."""
    steps(draw)
    dropouts(draw)


def steps(draw: Draw) -> None:
    """Draw the learning rate and the batch size."""
    draw.suggest_float("training.learning_rate", 5e-4, 1e-2, log=True)
    draw.suggest_categorical("training.batch_size", [20, 40, 80])
