"""Multi-label attention (paper, equation 2): one vector a label, softmax over a text's real tokens.

Weights sum to one and no dropout stands between attention and the first fully connected layer W₁, so the sum over
tokens and W₁ can change places: (Σ α h) W₁ = Σ α (h W₁). `attend` therefore takes the states already multiplied by W₁
as *values*: T rows are multiplied instead of one for each label.

The nodes of a deep level are stored as blocks of siblings, [parents, K, D], filled up with unused rows where a parent
has fewer than K children. A candidate list is then C parents, and a gather reads C blocks, not C·K rows.

Shapes: B documents, T tokens, D hidden, F units of W₁, n nodes, P parents, K children, C candidates' parents.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def attend(
    queries_nD: Tensor, states_BTD: Tensor, values_BTF: Tensor, real_BT: Tensor, *, evidence: bool = False
) -> tuple[Tensor, Tensor | None]:
    """What each label sees of each text, [B, n, F], and how much of what it looks for it has found, [B, n].

    The latter is the log of the mean over tokens of exp(score), the softmax's own normaliser.

    Args:
        queries_nD: attention vectors, [n, D] for all texts alike or [B, n, D].
        states_BTD: hidden states of the tokens.
        values_BTF: what is averaged.
        real_BT: bool, False at padding; each text has at least one real token.
        evidence: whether the second result is wanted; None is returned otherwise.
    """
    scores_BnT = torch.matmul(queries_nD, states_BTD.transpose(1, 2))
    scores_BnT = scores_BnT.masked_fill(~real_BT[:, None], float("-inf"))
    if not evidence:
        return torch.matmul(scores_BnT.softmax(dim=-1), values_BTF), None
    weights_BnT, norm_Bn = _SoftmaxAndNorm.apply(scores_BnT)
    return torch.matmul(weights_BnT, values_BTF), norm_Bn - real_BT.sum(dim=1, keepdim=True).log()


class _SoftmaxAndNorm(torch.autograd.Function):
    """Softmax over the last dimension and, float32, the log of its denominator, for the price of the softmax alone."""

    @staticmethod
    def forward(context: Any, scores_BnT: Tensor) -> tuple[Tensor, Tensor]:
        weights_BnT = scores_BnT.softmax(dim=-1)
        context.save_for_backward(weights_BnT)
        # the largest weight is exp(largest score - norm)
        return weights_BnT, scores_BnT.amax(-1).float() - weights_BnT.amax(-1).float().log()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (weights_BnT,) = context.saved_tensors
        of_weights_BnT, of_norm_Bn = gradients
        shared_Bn1 = (weights_BnT * of_weights_BnT).sum(-1, keepdim=True) - of_norm_Bn[..., None].to(weights_BnT.dtype)
        return weights_BnT * (of_weights_BnT - shared_Bn1)


class LabelAttention(nn.Module):
    """Attention vectors of a level all of whose nodes are scored.

    Args:
        nodes: n, nodes of the level.
        dimension: D.
    """

    def __init__(self, nodes: int, dimension: int):
        super().__init__()
        self.dimension = dimension
        self.weight = nn.Parameter(torch.empty(nodes, dimension))
        nn.init.xavier_uniform_(self.weight)

    def forward(self) -> Tensor:
        """All vectors, [n, D]."""
        return self.weight


class CandidateAttention(nn.Module):
    """Attention vectors of a level of which each text scores some families.

    Args:
        children: int64 [P], children of each node of the level above.
        dimension: D.
    """

    def __init__(self, children: Tensor, dimension: int):
        super().__init__()
        block = int(children.max())
        # Xavier's bound, as if the table had no unused rows
        bound = (6 / (int(children.sum()) + dimension)) ** 0.5
        self.weight = nn.Parameter(torch.empty(len(children), block * dimension).uniform_(-bound, bound))
        self.block = block
        self.dimension = dimension

    def forward(self, parents_BC: Tensor) -> Tensor:
        """The vectors of the children of `parents_BC` (int [B, C]), [B, C·K, D]; unused rows included."""
        blocks = functional.embedding(parents_BC, self.weight, sparse=True)
        return blocks.view(len(parents_BC), -1, self.dimension)
