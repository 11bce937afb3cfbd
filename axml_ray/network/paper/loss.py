"""The loss of one level (paper, section 2.4.5); by default `fast.fused_attention.fused_loss` computes the same."""

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits


def cross_entropy(
    logits_BN: Tensor, positives_2P: Tensor, exists_BN: Tensor | None = None, denominator: float = 1.0
) -> Tensor:
    """Return the summed binary cross-entropy of the candidates, divided by `denominator`, a scalar.

    Args:
        logits_BN: logit of each candidate of each document, before the sigmoid.
        positives_2P: int64, the document and the column of each true node.
        exists_BN: bool, False in columns without a candidate; None if all have one.
        denominator: number of candidates of all documents, for the mean.
    """
    document, column = positives_2P
    targets_BN = logits_BN.new_zeros(logits_BN.shape).index_put((document, column), logits_BN.new_ones(()))
    counted_BN = None if exists_BN is None else exists_BN.to(logits_BN.dtype)
    return binary_cross_entropy_with_logits(logits_BN, targets_BN, weight=counted_BN, reduction="sum") / denominator
