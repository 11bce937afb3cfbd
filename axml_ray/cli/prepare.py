"""Prepare a corpus: tokenise texts, index labels, and compute word vectors and label features.

axml-ray prepare --config eurlex57k
"""

from axml_ray.cli.console import job
from axml_ray.core.paths import with_urls
from axml_ray.settings import Experiment


@job(__doc__)
def main(settings: Experiment) -> None:
    """Prepare the corpus and print its path."""
    from axml_ray.workflow.train import prepare_corpus

    corpus = prepare_corpus(settings)
    print(f"Corpus: {with_urls(corpus.directory)}")
    print(f"What is in it: {corpus.directory / 'report' / 'corpus.html'}")
    print("Next: axml-ray train with the same settings trains on it.")
