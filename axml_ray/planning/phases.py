"""The phases of a run: memory that their Ray tasks reserve, time, bytes that are moved, and bytes on disk.

A task reserves what `task_memory` returns for its kind, and `axml-ray plan` prints the same numbers. They are estimates
from the sizes of the corpus alone; nothing is allocated for them. A measured rate names the file of the result.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from axml_ray.core.memory import PREDICTOR_BYTES, PROCESS_BYTES
from axml_ray.corpus.counts import Counts, merging_bytes
from axml_ray.corpus.labels.label_features import max_terms
from axml_ray.members.featurizer import COUNTED_PER_SECOND, DISTINCT_SHARE, WORD_BYTES, counting_bytes, matrix_entries
from axml_ray.members.label_clusters import CLUSTERED_PER_SECOND
from axml_ray.members.member import FitCosts, Member
from axml_ray.planning.machines import Machines, choose_machines
from axml_ray.planning.memory import FLOAT, candidates_bytes, corpus_bytes, level_memory, main_memory
from axml_ray.planning.shapes import LevelShape, level_shapes, network_shapes
from axml_ray.planning.work import count_steps, forward_operations
from axml_ray.runs.selection import planned_fits
from axml_ray.settings import Experiment
from axml_ray.settings.members import kinds
from axml_ray.settings.presets import TRIED
from axml_ray.tree.clustering import SUBTREE_TERMS

TREE_BYTES, SUBTREE_BYTES, NODE_BYTES, STARTING_BYTES = 52, 64, 24, 24
"""Bytes of a term of the labels' features while a tree is built, of one in a job of subtrees, of a label, and of a term
while label vectors start from the features: as they are read, in the order of leaves, and of nodes."""
TERM_BYTES, TEXT_BYTES = 8, 6
"""Bytes of a term in the file of the labels' features, and of a word in texts."""
PREPARED_PER_SECOND = 3.8e5
"""Words that a core prepares in a second (`benchmarks/results/scale.json`: documents of 104 words, two cores)."""
EVALUATED_PER_SECOND = 9.3e2
"""Rankings of 100 labels that are evaluated in a second, intervals, bands and label sets included
(`benchmarks/results/evaluation-scale.json`: three rankings of 816,757 documents)."""
LABEL_BYTES, RANKED_BYTES = 100, 8
"""Bytes of a label in a process that reads names and counts, and of a label with its score in a ranking."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The estimate for one phase of a run."""

    name: str
    memory: int
    """Bytes of its largest process, PyTorch and Python included; 0 if the phase has none of its own."""
    processes: int
    """Number of processes that can work at the same time."""
    seconds: float | None
    """Time, if P processes are P times as fast as one; None if a rate is not known."""
    moved: int = 0
    """Bytes that are read from files, written to files, or exchanged by workers."""
    disk: int = 0
    """Bytes of the files that remain."""


def label_terms(counts: Counts) -> int:
    """Estimate the terms of all labels' features: n texts of t distinct words have about t √n distinct words."""
    texts = max(1.0, counts.all_documents * counts.labels_per_document / counts.labels)
    terms = min(DISTINCT_SHARE * counts.tokens * math.sqrt(texts), counts.words)
    return round(counts.labels * min(terms, max_terms(counts.labels) or math.inf))


def predictor_bytes(files: int) -> int:
    """Return the bytes that a process with open members needs, given the bytes of their files."""
    return PREDICTOR_BYTES + files


def report_bytes(largest: int, labels: int) -> int:
    """Return the bytes of the process that writes the report: it opens one member at a time, and reads all labels.

    `largest` is the size of the largest member's files in bytes. One text is explained at a time.
    """
    return PROCESS_BYTES + largest + LABEL_BYTES * labels


def task_memory(settings: Experiment, counts: Counts, machines: Machines | None = None) -> dict[str, int]:
    """Return the bytes that a Ray task of each kind reserves.

    Args:
        settings: settings of the experiment.
        counts: sizes of the corpus.
        machines: hardware of the networks' workers; by default what the settings reserve.
    """
    machines = machines or choose_machines(settings, None, None)
    needed = {
        "prepare": merging_bytes(counts.labels),
        "label trees": PROCESS_BYTES + TREE_BYTES * label_terms(counts) + NODE_BYTES * counts.labels,
        "label trees, parts": PROCESS_BYTES + SUBTREE_BYTES * SUBTREE_TERMS,
        "features": PROCESS_BYTES + counting_bytes(counts, settings.features),
    }
    for kind, own in settings.members.chosen.items():
        implementation: type[Member] = kinds()[kind].load()
        if not implementation.trained_by_workers:
            costs = implementation.costs(settings, own, counts)
            needed[kind] = PROCESS_BYTES + costs.memory
            needed[f"{kind}, parts"] = PROCESS_BYTES + costs.part_memory
    tried = [kind for kind in settings.members.chosen if kind in TRIED]
    for part in ("", ", parts"):
        needed[f"choose members{part}"] = max((needed[f"{kind}{part}"] for kind in tried), default=0)
    levels = [
        level_memory(
            settings, counts, shape,
            workers=settings.resources.min_workers, accelerator=machines.accelerator, width=machines.width,
        )
        for shape in network_shapes(counts.labels, settings)
    ]  # fmt: skip
    if not levels:
        return needed
    needed["worker"] = max(main_memory(counts, level) if machines.accelerator else level.total for level in levels)
    if settings.network.label_vector_init != "random":  # each worker reads the features of all labels
        starting = corpus_bytes(counts) + levels[-1].label_table + STARTING_BYTES * label_terms(counts)
        needed["worker"] = max(needed["worker"], PROCESS_BYTES + starting)
    return needed


@dataclass(frozen=True)
class RunPhases:
    """The phases of a run.

    Attributes:
        settings: settings of the experiment.
        counts: sizes of the corpus.
        machines: the hardware.
        training_seconds: seconds until the networks of all trees are trained; None if they are not known.
        rate: operations per second of one worker; None if it is not known.
    """

    settings: Experiment
    counts: Counts
    machines: Machines
    training_seconds: float | None
    rate: float | None

    def all(self) -> tuple[Phase, ...]:
        """Return the phases in their order."""
        return *self._corpus(), *self._choice(), *self._members(), *self._networks(), *self._predictions()

    @cached_property
    def cores(self) -> int:
        """Return the number of cores of all workers, or of the machine that they share."""
        of_workers = self.workers * self.settings.resources.cpus_per_worker
        return max(1, int(of_workers if self.machines.accelerator else self.machines.units))

    @cached_property
    def workers(self) -> int:
        """Return the number of workers of a tree."""
        return self.settings.resources.min_workers

    @cached_property
    def needed(self) -> dict[str, int]:
        """Return the memory of each kind of task."""
        return task_memory(self.settings, self.counts, self.machines)

    @cached_property
    def shapes(self) -> tuple[LevelShape, ...]:
        """Return the shapes of the levels of a tree."""
        return level_shapes(self.counts.labels, self.settings.tree)

    @cached_property
    def words(self) -> int:
        """Return the number of words of the training texts."""
        return round(self.counts.documents * self.counts.tokens)

    @cached_property
    def costs(self) -> dict[str, tuple[int, FitCosts]]:
        """Return the number of members of each kind without networks, and the costs of one."""
        costs = {}
        for kind, own in self.settings.members.chosen.items():
            implementation: type[Member] = kinds()[kind].load()
            if not implementation.trained_by_workers:
                count = implementation.number_in_run(self.settings, own, self.counts.labels)
                costs[kind] = count, implementation.costs(self.settings, own, self.counts)
        return costs

    @cached_property
    def networks(self) -> int:
        """Return the number of trees that have networks."""
        return self.settings.ensemble.trees if "network_tree" in self.settings.members.chosen else 0

    @cached_property
    def network_values(self) -> list[int]:
        """Return the number of weights of each level of a tree's networks."""
        table = 2 * self.settings.network.hidden
        return [shape.rows * shape.block * table + self.word_values for shape in self.shapes]

    @cached_property
    def word_values(self) -> int:
        """Return the number of values of all word vectors."""
        return self.counts.words * self.counts.word_dimension

    @cached_property
    def side_by_side(self) -> int:
        """Return the number of trees whose networks train at the same time, at least 1."""
        return max(1, self.machines.side_by_side(self.workers, self.networks))

    @cached_property
    def predictors(self) -> int:
        """Return the number of processes that predict at the same time: on CPUs, those for which there are cores."""
        if self.machines.accelerator:
            return self.workers * self.side_by_side
        return max(1, int(self.cores / self.settings.resources.of_a_predictor["CPU"]))

    def _corpus(self) -> Iterator[Phase]:
        words = round(self.counts.all_documents * self.counts.tokens)
        terms, trees = label_terms(self.counts), self.settings.ensemble.trees
        files = words * (WORD_BYTES + TEXT_BYTES) + TERM_BYTES * terms
        yield Phase(
            name="prepare",
            memory=self.needed["prepare"],
            processes=self.cores,
            seconds=words / PREPARED_PER_SECOND / self.cores,
            # The texts are read, written in blocks and read again; the corpus is written.
            moved=words * (3 * TEXT_BYTES + 2 * WORD_BYTES) + TERM_BYTES * terms + files,
            disk=files + FLOAT * self.word_values,
        )
        if len(self.shapes) > 1:
            seconds, processes = tree_seconds(terms, self.shapes[-2].nodes, self.cores)
            yield Phase(
                name="label trees",
                memory=self.needed["label trees"],
                processes=processes,
                seconds=trees * seconds,
                moved=trees * 2 * TERM_BYTES * terms,
                disk=trees * 2 * WORD_BYTES * self.counts.labels,
            )

    def _choice(self) -> Iterator[Phase]:
        if self.settings.preset != "auto":
            return
        rounds, seconds = planned_fits(self.settings, self.counts), 0.0
        for fits in rounds:
            runs = [RunPhases(*fit, self.machines, None, None) for fit in fits]
            # That of the longest fit on all cores, if this is longer than all fits on a core each.
            longest = max(run.fit_seconds(self.cores) for run in runs)
            seconds += max(longest, sum(run.fit_seconds(1) for run in runs) / self.cores)
        if rounds:
            yield Phase(
                name="choose members",
                memory=self.needed["choose members"],
                processes=min(self.cores, max(map(len, rounds))),
                seconds=seconds,
            )

    def fit_seconds(self, cores: int) -> float:
        """Return the seconds in which cores fit the members without networks and rank the validation documents."""
        seconds = matrix_entries(self.counts, self.settings.features) / COUNTED_PER_SECOND
        for count, cost in self.costs.values():
            ranked = self.counts.valid_documents * cost.text_seconds
            seconds += count * (cost.seconds + cost.part_seconds / min(cores, cost.parts or 1) + ranked)
        return seconds

    def _members(self) -> Iterator[Phase]:
        entries = matrix_entries(self.counts, self.settings.features)
        if any(kinds()[kind].load().uses_features for kind in self.costs):
            seconds, moved = entries / COUNTED_PER_SECOND, WORD_BYTES * self.words
            yield Phase(name="features", memory=self.needed["features"], processes=1, seconds=seconds, moved=moved)
        for kind, (count, costs) in self.costs.items():
            processes = min(count, self.cores)
            yield Phase(
                name=kind.replace("_", " "),
                memory=self.needed[kind],
                processes=processes,
                seconds=-(-count // processes) * costs.seconds,
                moved=count * costs.moved,
                disk=count * costs.files,
            )
            if costs.parts:
                processes = min(self.cores, count * costs.parts)
                yield Phase(
                    name=f"{kind.replace('_', ' ')}, parts",
                    memory=self.needed[f"{kind}, parts"],
                    processes=processes,
                    seconds=count * costs.part_seconds / processes,
                )

    def _networks(self) -> Iterator[Phase]:
        if not self.networks:
            return
        yield Phase(
            name="networks",
            memory=self.needed["worker"],
            processes=self.workers * self.side_by_side,
            seconds=self.training_seconds,
            moved=self.networks * sum(self._level_moved(shape) for shape in self.shapes),
            disk=self.networks * FLOAT * sum(self.network_values),
        )
        # Weights, two moments, average and best weights of the largest level. The newest one is kept until the next
        # is complete, which is written to the local disk first.
        state = 5 * FLOAT * max(self.network_values)
        yield Phase(name="checkpoints", memory=0, processes=0, seconds=0.0, disk=3 * self.side_by_side * state)

    def _level_moved(self, shape: LevelShape) -> int:
        """Return the bytes of a level's beams, which are written and read, and of what W workers exchange in its steps.

        In a step, each worker gets the states of the batch and their gradients, in 16 bits, and the gradients of its
        words.
        """
        settings, beams = self.settings, 2 * candidates_bytes(self.counts, shape, self.settings)
        if self.workers == 1:
            return beams
        of_word = 2 * 2 * 2 * settings.network.hidden
        of_word += FLOAT * self.counts.word_dimension * settings.network.train_embeddings
        words = self.workers * settings.training.batch_size * self.counts.network_tokens
        return round(beams + count_steps(settings, self.counts, shape.number) * words * of_word)

    def _predictions(self) -> Iterator[Phase]:
        counts, settings = self.counts, self.settings
        of_networks = FLOAT * sum(self.network_values)
        files = self.networks * of_networks + sum(count * cost.files for count, cost in self.costs.values())
        documents = counts.valid_documents + counts.test_documents
        members = self.networks + sum(count for count, _ in self.costs.values())
        of_text = sum(count * cost.text_seconds for count, cost in self.costs.values()) / self.cores
        seconds: float | None = documents * of_text
        if self.networks:
            forward = sum(
                forward_operations(settings.network, counts.word_dimension, counts.network_tokens, shape.candidates)
                for shape in self.shapes
            )
            # Trees that train side by side use what there is, and so do predictors.
            operations = self.networks * forward / (self.workers * self.side_by_side)
            seconds = None if self.rate is None else documents * (of_text + operations / self.rate)
        ranked = documents * (members + 1) * settings.ensemble.top_labels * RANKED_BYTES
        names = LABEL_BYTES * counts.labels
        largest = max([of_networks if self.networks else 0, *(cost.files for _, cost in self.costs.values())])
        evaluating = documents * (members + 1) / EVALUATED_PER_SECOND
        bundle = files + 2 * WORD_BYTES * counts.labels  # and the names of the labels
        if self.networks and not settings.network.train_embeddings:  # word vectors once, not in each level
            bundle -= (self.networks * len(self.shapes) - 1) * FLOAT * self.word_values
        yield Phase(
            name="predict",
            memory=predictor_bytes(files),
            processes=self.predictors,
            seconds=seconds,
            moved=self.predictors * files + ranked,
            disk=ranked,
        )
        job = PREDICTOR_BYTES + names  # which evaluates itself, and waits for the report
        yield Phase(name="evaluate", memory=job, processes=1, seconds=evaluating, moved=ranked)
        memory = max(job, report_bytes(largest, counts.labels))
        yield Phase(name="report", memory=memory, processes=1, seconds=0.0, moved=largest)
        yield Phase(name="bundle", memory=0, processes=1, seconds=0.0, moved=files + bundle, disk=bundle)


def tree_seconds(terms: int, clusters: int, cores: int) -> tuple[float, int]:
    """Return the seconds in which a label tree is built, and the number of processes that build its subtrees.

    The first halvings are the work of one process, until a node has few terms; those below are jobs of subtrees.
    """
    halvings = math.log2(clusters)
    first = min(halvings, max(0.0, math.log2(max(1.0, terms / SUBTREE_TERMS))))
    processes = min(cores, 2 ** int(first))
    return terms / CLUSTERED_PER_SECOND * (first + (halvings - first) / processes), processes
