"""Settings that older versions had: the one place that knows their names.

An old name is an error, not a synonym: a config says what ran, and each setting has one name.
"""

RENAMED = {
    "network.attention_start": "network.label_vector_init",
    "network.path_weight": "network.parent_score_exponent",
    "network.bottleneck": "the size is now XML-CNN's, 512",
    "network.filter_widths": "the widths are now XML-CNN's, 2, 4 and 8",
    "network.filters": "the number is now XML-CNN's, 128 of each width",
    "network.pooling_chunks": "the number is now XML-CNN's, 8",
    "training.score_every": "training.eval_every_steps",
    "training.true_candidates": "training.include_true_parents",
    "tracking.artifacts": "MLflow and Weights & Biases get metrics, settings and charts, never texts or bundles",
    "together": "colocate_members",
    "waiting_texts": "max_queued_texts",
    "batches_at_once": "two batches are in flight to each replica",
    "max_inflight_batches": "two batches are in flight to each replica",
    "tree_patience_s": "a server waits a second for a straggler",
    "straggler_timeout_s": "a server waits a second for a straggler",
    "max_texts": "a request may have 64 texts",
    "max_characters": "a text may have 100,000 characters",
    "threads": "a server's replica has one thread for each CPU: set cpus",
    "body_limit_s": "a server waits 10 seconds for a body",
    "batch_words": "batches of a server have at most 8,192 words",
    "max_labels": "a request may name at most 1,000 labels",
    "max_explanations": "at most 320 labels of a request are explained",
    "evaluation.head_from": "head labels have 100 training documents or more",
    "evaluation.torso_from": "torso labels have 10 to 99 training documents",
    "evaluation.resamples": "intervals are of 1,000 samples",
    "evaluation.seed": "samples are always drawn with seed 0",
    "training.averaging": "set training.average_after to training.epochs to train without stochastic weight averaging",
    "training.clip": "gradients are always clipped at five times the largest of the last five norms",
    "training.patience": "set training.patience_steps, which counts steps instead of evaluations",
    "resources.threads": "a worker has a thread for each of resources.cpus_per_worker, and at least one",
    "resources.memory_gib": "leave it out; workers reserve CPUs and GPUs only",
    "evaluation.propensity_a": "set both constants as evaluation.propensity: [A, B]",
    "evaluation.propensity_b": "set both constants as evaluation.propensity: [A, B]",
    "members.linear_tree.threshold": "weights below 0.1 are always dropped, as in Parabel; at lower costs smaller ones",
    "features.lead_weight": "leave it out; leading words count ten times",
    "corpus.max_terms": "leave it out; labels keep 64 terms if there are more than 100,000 labels",
    "corpus.vocabulary_size": "the limit is now 500,000 words; corpus.min_document_frequency drops rare ones",
    "corpus.word_vector_epochs": "word vectors are now computed from word counts, without epochs",
    "corpus.dictionary": "leave it out; texts are no longer translated",
    "corpus.dictionary_stemmer": "leave it out; texts are no longer translated",
    "corpus.max_test_documents": "leave it out; name fewer files in corpus.test, or lower corpus.test_share",
    "corpus.seed": "leave it out; documents are drawn by a hash of their text",
    "corpus.block_bytes": "leave it out; it is fixed",
    "corpus.expected.valid_documents": "leave it out; it follows from corpus.valid_documents",
    "resources.predictors": "leave it out; all predictors start that fit on the cluster",
    "tree.hierarchy": "leave it out; trees are clustered by the texts of their labels",
    "tree.features": "leave it out; labels are clustered by TF-IDF centroids",
}
"""By the path of an old setting or group: its new path or, with blanks, the reason why it was removed."""


def describe_renamed(key: str) -> str | None:
    """Return the message for the path of an old setting, or of one of an old group; None if there never was one.

    The message has its new name, or why it was removed.
    """
    group, rest = key, ""
    while group not in RENAMED:
        group, _, name = group.rpartition(".")
        rest = f".{name}{rest}"
        if not group:
            return None
    now = RENAMED[group]
    return f"{key}: was removed: {now}" if " " in now else f"{key}: is now {now}{rest}"
