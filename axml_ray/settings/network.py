"""Settings of the network of each level (package `axml_ray.network`)."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from axml_ray.settings.base import Positive, Settings, Share


class NetworkSettings(Settings):
    """The network of one level: the paper's ("Attention-Aware Deep Model"), or one of the networks it is compared
    with."""

    kind: Literal["attention", "bilstm", "xml_cnn"] = "attention"
    """The paper's network, or one of the paper's ablations: a BiLSTM with max-pooling, or XML-CNN."""
    implementation: Literal["fused", "plain"] = "fused"
    """How the paper's network is computed: fused, which is fast, or plain, its equations in PyTorch and float32
    (`axml_ray/network/paper`), to read and to check. Both have the same parameters, so that files of weights serve
    both, and agree up to rounding."""
    max_tokens: Positive | None = None
    """Number of leading words of a text that the networks read; by default `corpus.max_tokens`, like other members."""
    hidden: Positive = 256
    """N̂: LSTM units per direction."""
    fully_connected: Annotated[tuple[Positive, ...], Field(min_length=1)] = (256,)
    """Units of each fully connected layer after attention."""
    embedding_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Dropout after the embedding."""
    encoder_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Dropout after the BiLSTM, and after the bottleneck of bilstm and xml_cnn."""
    evidence: bool = False
    """Not in the paper: adds to a label's logit, times one learned weight, how well its attention vector matches the
    text (the log of the mean of the exponentiated attention scores). Learns faster, above all from few documents."""
    label_vector_init: Literal["random", "features", "names"] = "random"
    """Initial attention vectors: random, as in the paper, or computed from the words of the label's TF-IDF centroid
    (`features`) or readable name (`names`). In a corpus without names, the label itself serves as its name."""
    parent_score_exponent: Share = 1.0
    """Exponent of the parent's score in a node's score: 1 is the paper's product of probabilities (equation 1). A level
    is trained on the whole beam of the level above, true nodes or not, so that its output is closer to the probability
    of the node than to that of the node given its parent, and the product counts parents twice. On the validation
    documents of two corpora, 0.25 was best, or equal to 0."""
    output_bias: Literal["default", "positive_rate"] = "default"
    """Initial bias of the output layer: PyTorch's default, as in the paper, or, not in the paper, the log-odds of the
    positive rate of the candidates, so that training does not first have to learn it."""
    train_embeddings: bool = True
    """False freezes the word vectors (as the paper does for EUR-Lex and Wiki10-31K)."""

    @model_validator(mode="after")
    def _attention_has_evidence_and_start(self) -> Self:
        fixes = []
        if self.evidence:
            fixes.append("network.evidence to false")
        if self.label_vector_init != "random":
            fixes.append("network.label_vector_init to random")
        if fixes and self.kind != "attention":
            raise ValueError(f"network.kind {self.kind} has no attention; set {' and '.join(fixes)}")
        return self
