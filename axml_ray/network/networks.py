"""Which network a level gets."""

from collections.abc import Callable

from torch import Tensor

from axml_ray.network.ablations import XMLCNN, MaxPooledBiLSTM
from axml_ray.network.attention_xml import AttentionXML
from axml_ray.network.level_network import Level, LevelNetwork
from axml_ray.network.rows import WHOLE, Shard
from axml_ray.settings import NetworkSettings

KINDS: dict[str, Callable[..., LevelNetwork]] = {
    "attention": AttentionXML,
    "bilstm": MaxPooledBiLSTM,
    "xml_cnn": XMLCNN,
}


def network_of(level: Level, vectors: Tensor, settings: NetworkSettings, shard: Shard = WHOLE) -> LevelNetwork:
    """The network that the settings ask for.

    Args:
        level: the nodes to tell apart.
        vectors: first values of the embedding, float32 [words, E].
        settings: kind, sizes and dropouts.
        shard: which of the nodes, or of their parents, are held here.
    """
    return KINDS[settings.kind](level, vectors, settings, shard)
