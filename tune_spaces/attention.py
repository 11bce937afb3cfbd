"""The network of a level and its training: sizes, dropouts, learning rate, batches, epochs and weight averaging.

    --space tune_spaces.attention            all of it, for the paper's network and those of its table of ablations
    --space tune_spaces.attention:training   learning rate, batches, epochs and averaging only
    --space tune_spaces.attention:rates      learning rate, batches and dropouts: training takes as long as the config's

A name is the path of a setting; a number at its end is a place in a list, such as the first level's epochs.
"""

from axml_ray.tuning.space import Draw


def space(draw: Draw) -> None:
    """The network and its training."""
    network(draw)
    training(draw)


def network(draw: Draw) -> None:
    """Which network, its sizes and its dropouts; settings that a network doesn't read are not drawn for it."""
    kind = draw.suggest_categorical("network.kind", ["attention", "bilstm", "xml_cnn"])
    dropouts(draw)
    if kind in ("attention", "bilstm"):
        draw.suggest_int("network.hidden", 64, 512, log=True)
    if kind == "attention":
        draw.suggest_int("network.fully_connected.0", 64, 512, log=True)
        draw.suggest_categorical("network.evidence", [False, True])
        draw.suggest_categorical("network.attention_start", ["random", "features", "names"])
        return
    # The other two have neither, whatever the config says.
    draw.fix("network.evidence", False)
    draw.fix("network.attention_start", "random")
    draw.suggest_int("network.bottleneck", 128, 512, log=True)
    if kind == "xml_cnn":
        draw.suggest_int("network.filters", 32, 256, log=True)
        draw.suggest_int("network.pooling_chunks", 1, 8, log=True)


def dropouts(draw: Draw) -> None:
    """After the embedding, and after the encoder."""
    draw.suggest_float("network.embedding_dropout", 0.0, 0.5, step=0.1)
    draw.suggest_float("network.encoder_dropout", 0.0, 0.7, step=0.1)


def training(draw: Draw) -> None:
    """How the levels are trained: the first, and all below it. The average begins before the last epoch."""
    steps(draw)
    for place in (0, 1):
        epochs = draw.suggest_int(f"training.epochs.{place}", 2, 10)
        draw.suggest_int(f"training.average_after.{place}", 1, epochs - 1)


def rates(draw: Draw) -> None:
    """What changes neither the network nor how long it is trained."""
    steps(draw)
    dropouts(draw)


def steps(draw: Draw) -> None:
    """How large a step is, and of how many documents."""
    draw.suggest_float("training.learning_rate", 5e-4, 1e-2, log=True)
    draw.suggest_categorical("training.batch_size", [20, 40, 80])
