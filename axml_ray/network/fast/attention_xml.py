"""The paper's network with the fast encoder and the fused loss; by default it is what trains and predicts."""

from torch import Tensor
from torch.nn import functional

from axml_ray.network.backends.base import Seeds
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.fast.encoder import FastEncoder
from axml_ray.network.fast.fused_attention import LevelInputs, fused_logits, fused_loss
from axml_ray.network.fast.fused_head import FusedHead
from axml_ray.network.paper.attention_xml import AttentionXML


class FusedAttentionXML(AttentionXML):
    """`AttentionXML` with the same parameters and results, computed faster."""

    encoder_class = FastEncoder

    def encode(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        unique_ids: tuple[Tensor, Tensor] | None = None,
        seeds: Seeds | None = None,
    ) -> Tensor:
        """Return the hidden states ĥ_t, [B, T, D], in the number format of autocast; see `LevelNetwork.encode`."""
        states_BTD: Tensor = self.encoder(tokens_BT, lengths_B, unique_ids, seeds)
        return states_BTD

    def loss(
        self,
        encodings: Tensor,
        lengths_B: Tensor,
        positives: Tensor,
        denominator: float,
        candidates: Candidates | None = None,
        gradient_scale: Tensor | None = None,
    ) -> Tensor:
        """Return the loss as `LevelNetwork.loss` does."""
        inputs = self.level_inputs(encodings, lengths_B, candidates, positives, denominator, gradient_scale)
        return fused_loss(inputs)

    def logits(self, encodings: Tensor, lengths_B: Tensor, candidates: Candidates | None = None) -> Tensor:
        """Return the logits as `LevelNetwork.logits` does, without gradients."""
        return fused_logits(self.level_inputs(encodings, lengths_B, candidates))

    def level_inputs(
        self,
        states_BTD: Tensor,
        lengths_B: Tensor,
        candidates: Candidates | None = None,
        positives: Tensor | None = None,
        denominator: float = 1.0,
        gradient_scale: Tensor | None = None,
    ) -> LevelInputs:
        """Return what the fused pass reads; the arguments are those of `LevelNetwork.loss`."""
        # Attention weights sum to one over words, so (Σ_t α_t ĥ_t) W₁ + b₁ = Σ_t α_t (ĥ_t W₁ + b₁): the first fully
        # connected layer reads the T states of a text instead of the context vectors of all its candidates.
        first_weight, first_bias, *head_parameters = self.head.parameters()
        values_BTF = functional.linear(states_BTD, first_weight, first_bias)
        if self.evidence_weight is not None:
            head_parameters.append(self.evidence_weight)
        return LevelInputs(
            head=FusedHead(tuple(head_parameters), has_evidence=self.evidence_weight is not None),
            states=states_BTD,
            values=values_BTF,
            lengths=lengths_B,
            table=self.attention.weight,
            candidates=candidates,
            positives=positives,
            denominator=denominator,
            gradient_scale=gradient_scale,
        )
