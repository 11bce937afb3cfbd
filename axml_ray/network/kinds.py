"""The networks that `network.kind` and `network.implementation` choose from."""

from collections.abc import Callable

from torch import Tensor

from axml_ray.network.ablations import XMLCNN, MaxPooledBiLSTM
from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.network.level_network import LevelNetwork
from axml_ray.network.paper.attention_xml import AttentionXML
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings


def build_network(level: Level, vectors: Tensor, settings: NetworkSettings, shard: Shard = WHOLE) -> LevelNetwork:
    """Build a network of the kind that the settings name, with random weights from PyTorch's generator.

    The word embedding starts from `vectors`, float32 [words, E], of which row 0 is padding.
    """
    kinds: dict[str, Callable[..., LevelNetwork]] = {
        "attention": FusedAttentionXML if settings.implementation == "fused" else AttentionXML,
        "bilstm": MaxPooledBiLSTM,
        "xml_cnn": XMLCNN,
    }
    return kinds[settings.kind](level, vectors, settings, shard)
