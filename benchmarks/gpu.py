"""Correctness, speed and memory of training on one GPU, without Ray.

    python benchmarks/gpu.py [--quick] [--device cpu] [--only PART] [--minutes N] [--corpus DIR] [--json PATH]

`--device cpu --quick` runs the parts that need no GPU on small shapes, which tests that they work. The parts are in the
order of their importance. Each is a process of its own that ends after `--minutes`, so none can take the others along,
and what it has measured by then is in its file. The exit code is 1 if a part failed or broke its bound.

- `parity`: logits, loss and all gradients of one step on the device, in float32 (bound: 1e-4) and in bfloat16 (bound:
  0.1 for the label table), against float64 on the CPU; both kinds of levels, hidden 256 and 512, 504 words. Rows also
  have the error of float32 on the CPU.
- `lstm`: forward and backward of the encoder's two LSTMs: one after the other, on two streams, and as one bidirectional
  call, in float16 and bfloat16; and each of them as a CUDA graph, without the time of launching.
- `profile`: the twenty kernels that take longest in a first and a deep step.
- `chunks`: the first step with 2^26 to 2^32 values in a chunk of nodes.
- `sync`: a training step in which waiting for the GPU is an error.
- `steps`: a first level of 8,192 nodes and a deep level of 1,280 candidates at 500 words, and a deep one at 104 words;
  200 documents, 512 hidden units in each direction.
- `kernel`: the deep step with Adam's rows updated by the Triton kernel, which is off by default.
- `recipes`: a step of each level of Amazon-670K and Amazon-3M with the paper's settings and tables of real size; from
  them the hours of the whole recipe, three trees and the scoring between levels included, on one GPU.
- `predict`: `Ensemble.rank` on networks of Amazon-670K's size with random weights, documents of 250 and 500 words; one
  tree in batches of several sizes, and three trees.
- `resume`: a training that is killed and resumed, against an undisturbed one, bit for bit, and that one repeated.
- `gloo`: two workers on the device against one (bounds on the losses: 1e-4 in float32, 0.02 in bfloat16), and the
  collective operations of training in groups of gloo and NCCL. Correctness only: NCCL takes one worker a GPU.
- `corpus`: trains one tree on `--corpus`, a prepared corpus or a compact copy of one by `gpu_corpus.py`, with
  `configs/NAME.yaml` if there is one, else the paper's settings: 500 words, hidden 256, ten epochs, batches of 200. It
  has figures after each level, and scores the test split.

Figures: `parity` (largest relative error of the logits), `level1_ms`, `deep_ms`, `deep_short_ms`, `share_of_floor`
(time of the matrix products alone, of the time of these three steps), `deep_kernel_ms`, `kernel_error` (relative error
of the change of the label table in some steps), `amazon670k_hours`, `amazon3m_hours`, `memory_share_of_plan` (largest
peak, of what the plan says); `predict_docs_per_second` (three trees, 500 words), `predict_3_trees_250_words_per_s` and
so on, `resume_differing_tensors`, `gloo_float32_loss_error`, `nccl_collectives` (of four); and of a corpus
`corpus_level1_nDCG@5` and so on (validation), `corpus_seconds`, and with its name `NAME_P@1` to `NAME_nDCG@5`.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import results_file
import torch
from gpu_corpus import train_and_score
from gpu_predict import rank_documents
from gpu_steps import (
    CPU,
    BrokenBoundError,
    StepTimes,
    counts_of,
    gpu_code,
    matrix_rate,
    measure,
    on_device,
    settings_of,
    shape_of,
    training_of,
)
from gpu_workers import compare_workers, kill_and_resume
from results_file import Result
from rich.console import Console
from rich.table import Table
from timed_parts import measure_within

from axml_ray.core.errors import SettingsError
from axml_ray.core.limits import available_cpus
from axml_ray.corpus.counts import Counts, count_corpus
from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.cuda_backend import CudaBackend
from axml_ray.network.backends.devices import device_named, synchronize
from axml_ray.network.backends.precision import autocast, use_threads
from axml_ray.network.level_network import TABLE
from axml_ray.planning.shapes import LevelShape, level_shapes
from axml_ray.planning.work import count_steps
from axml_ray.settings import Experiment, Precision
from axml_ray.settings.configuration import load

MINUTES = 9.0
"""Default time limit of a run."""
PUBLISHED_HOURS = {"amazon670k": 3.7, "amazon3m": 18.0}
"""ELMO in FP8 on one H100 (ICML 2025), for the rows."""


class Bench:
    """The parts of the benchmark on one device.

    Args:
        device: the device.
        quick: small shapes.
        corpus: directory of a prepared corpus, if one is trained.
    """

    def __init__(self, device: torch.device, quick: bool, corpus: Path | None):
        self.device, self.quick, self.corpus = device, quick, corpus
        self.rate = matrix_rate(device, 512 if quick else 8192)
        self.seconds = 0.0 if quick else 4.0

    def parity(self) -> Iterator[Result]:
        """Compare one step's logits, loss and gradients with float64 on the CPU."""
        bounds: dict[Precision, float] = {"float32": 1e-4, "bfloat16": 0.1}
        worst, broken = dict.fromkeys(bounds, 0.0), []
        cases = [(256, 104), (512, 96)] if not self.quick else [(32, 8)]
        for hidden, documents in cases:
            settings, counts = settings_of(self.device, hidden, documents), counts_of(24 if self.quick else 504)
            for name, shape in (("level1", shape_of(1, 520)), ("deep", shape_of(2, 150, block=8, parents=20))):
                exact = _one_step(settings, counts, shape, CPU, "float64")
                results = _one_step(settings, counts, shape, CPU, "float32")
                on_cpu = max(_relative_error(results[key], value) for key, value in exact.items())
                for precision, bound in bounds.items():
                    results = _one_step(settings, counts, shape, self.device, precision)
                    errors = {key: _relative_error(results[key], value) for key, value in exact.items()}
                    bounded = errors if precision == "float32" else {key: errors[key] for key in (TABLE, "logits")}
                    worst[precision] = max(worst[precision], *bounded.values())
                    row = {"level": name, "hidden": hidden, "documents": documents, "precision": precision, **errors}
                    row["float32_on_cpu"] = on_cpu
                    if max(bounded.values()) > bound:
                        broken.append(row)
                    yield {f"parity_{key}": value for key, value in worst.items()}, [row]
        if broken:
            raise BrokenBoundError(f"{len(broken)} comparisons exceed their bound")

    def lstm(self) -> Iterator[Result]:
        """Time the encoder's LSTMs, forward and backward, in several ways."""
        documents, tokens, hidden = (4, 8, 128) if self.quick else (200, 500, 512)
        for dtype in (torch.float16, torch.bfloat16):
            for documents_at_once in (documents, 128):
                runs = lstm_variants(self.device, dtype, documents, tokens, hidden, documents_at_once)
                times = {
                    name: 1e3 * _seconds_of(run, self.device, 1 if self.quick else 5) for name, run in runs.items()
                }
                key = str(dtype).removeprefix("torch.")
                row = {"dtype": key, "documents_at_once": documents_at_once, **times}
                yield {f"lstm_{key}_{documents_at_once}_{name}_ms": ms for name, ms in times.items()}, [row]

    def profile(self) -> Iterator[Result]:
        """List the kernels that take longest."""
        settings = settings_of(self.device, 32, 4) if self.quick else settings_of(self.device, 512, 200)
        shapes = {"level1": (shape_of(1, 8_192), 500), "deep": (shape_of(2, 16_384, block=8, parents=160), 500)}
        for name, (shape, tokens) in shapes.items():
            if self.quick:
                shape, tokens = shape_of(1, 64), 8
            training = training_of(settings, counts_of(tokens), shape, self.device)
            batches = [batch.stage(self.device) for batch in training.batches()]
            for batch in batches[:2]:
                training.step(batch)
            synchronize(self.device)
            with torch.profiler.profile() as profiler:
                for batch in batches[:3]:
                    training.step(batch)
                synchronize(self.device)
            device_time = "self_device_time_total" if self.device != CPU else "self_cpu_time_total"
            events = sorted(profiler.key_averages(), key=lambda event: -getattr(event, device_time))
            total = sum(getattr(event, device_time) for event in events) / 3e3
            rows = [
                {
                    "step": name,
                    "kernel": event.key[:90],
                    "calls": event.count / 3,
                    "ms": getattr(event, device_time) / 3e3,
                }
                for event in events[:20]
            ]
            yield {f"{name}_kernels_ms": total}, rows

    def chunks(self) -> Iterator[Result]:
        """Time the first step with chunks of several sizes."""
        backend = backend_for(self.device)
        before = backend.limits
        shape, settings = shape_of(1, 8_192), settings_of(self.device, 512, 200)
        try:
            for exponent in (26, 28, 30, 32):
                backend.limits = replace(before, group_values=1 << exponent)
                times = self._measure(settings, counts_of(500), shape)
                yield {f"level1_chunk_{exponent}_ms": times.step_ms}, [{"figure": f"2^{exponent}", **asdict(times)}]
        finally:
            backend.limits = before

    def sync(self) -> Iterator[Result]:
        """Train some steps during which PyTorch raises wherever the CPU would wait for the GPU."""
        if self.device == CPU:
            raise SettingsError("a CPU has nothing to wait for")
        training = training_of(
            settings_of(self.device, 128, 24), counts_of(64), shape_of(2, 150, block=8, parents=20), self.device
        )
        batches = list(training.batches())
        training.step(batches[0])
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in batches[1:3]:
                training.step(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        yield {"steps_without_waiting": 2.0}, [{"steps": 2}]

    def steps(self) -> Iterator[Result]:
        """Time the three steps whose targets are known."""
        shapes = {
            "level1_ms": (shape_of(1, 8_192), 500),
            "deep_ms": (shape_of(2, 16_384, block=8, parents=160), 500),
            "deep_short_ms": (shape_of(2, 65_536, block=8, parents=160), 104),
        }
        settings = settings_of(self.device, 512, 200)
        floor = total = 0.0
        for name, (shape, tokens) in shapes.items():
            times = self._measure(settings, counts_of(tokens), shape)
            floor, total = floor + times.floor_ms, total + times.step_ms
            yield {name: times.step_ms, "share_of_floor": floor / total}, [{"figure": name, **asdict(times)}]

    def kernel(self) -> Iterator[Result]:
        """Time the deep step with the Triton kernel, and compare how it changes weights with the eager way."""
        backend = backend_for(self.device)
        if not isinstance(backend, CudaBackend) or self.device == CPU:
            raise SettingsError("a CPU has no Triton kernels")
        shape, counts, small = (
            shape_of(2, 16_384, block=8, parents=160),
            counts_of(500),
            settings_of(self.device, 128, 24),
        )
        before, changes = backend.row_kernel, []
        try:
            for backend.row_kernel in (False, True):
                training = training_of(small, counts_of(64), shape_of(2, 150, block=8, parents=20), self.device)
                table = training.parameters[TABLE]
                start = table.detach().double()
                for batch in training.batches():
                    training.step(batch)
                changes.append((table.detach().double() - start).cpu())
            times = self._measure(settings_of(self.device, 512, 200), counts, shape)
        finally:
            backend.row_kernel = before
        error = _relative_error(changes[1], changes[0])
        yield {"deep_kernel_ms": times.step_ms, "kernel_error": error}, [{"figure": "deep_kernel_ms", **asdict(times)}]

    def recipes(self) -> Iterator[Result]:
        """Time a step of each level of the two largest corpora, and add up their recipes."""
        share = 0.0
        for name in ("amazon670k", "amazon3m"):
            settings = load(results_file.ROOT / "configs" / f"{name}.yaml")
            settings = on_device(settings, self.device)
            counts, hours = count_corpus(settings), 0.0
            shapes = level_shapes(counts.labels, settings.tree)
            for shape in shapes:
                times = self._measure(settings, counts, shape)
                training = count_steps(settings, counts, shape.number) * times.step_ms
                scoring = counts.documents * times.scoring_ms if shape is not shapes[-1] else 0.0
                hours += settings.ensemble.trees * (training + scoring) / 3.6e6
                share = max(share, times.peak_gib / times.planned_gib)
                figures = {} if self.device == CPU else {"memory_share_of_plan": share}
                if shape is shapes[-1]:
                    figures[f"{name}_hours"] = hours
                row = {"corpus": name, "level": shape.number, "nodes": shape.nodes, **asdict(times)}
                yield figures, [{**row, "published_hours": PUBLISHED_HOURS[name]}]

    def whole_corpus(self) -> Iterator[Result]:
        """Train and score a prepared corpus."""
        if self.corpus is None:
            raise SettingsError("no --corpus is given")
        yield from train_and_score(self.corpus, self.device, self.quick)

    def predict(self) -> Iterator[Result]:
        """Predict with networks of Amazon-670K's size."""
        yield from rank_documents(self.device, self.quick)

    def resume(self) -> Iterator[Result]:
        """Kill a training, resume it, and compare it with an undisturbed one."""
        yield from kill_and_resume(self.device, self.quick)

    def gloo(self) -> Iterator[Result]:
        """Compare two workers on the device with one."""
        yield from compare_workers(self.device, self.quick)

    def _measure(self, settings: Experiment, counts: Counts, shape: LevelShape) -> StepTimes:
        if self.quick:
            network = settings.network.model_copy(update={"hidden": 32, "fully_connected": (32, 16)})
            training = settings.training.model_copy(update={"batch_size": 8})
            settings = settings.model_copy(update={"network": network, "training": training})
            counts = replace(counts, words=1_000, tokens=8, longest=8)
            rows, parents = min(200, shape.rows), shape.parents and min(20, shape.parents)
            shape = replace(shape, rows=rows, nodes=rows * shape.block, parents=parents)
        return measure(settings, counts, shape, self.device, seconds=self.seconds, rate=self.rate)


def _one_step(
    settings: Experiment,
    counts: Counts,
    shape: LevelShape,
    device: torch.device,
    precision: Precision | Literal["float64"],
) -> dict[str, torch.Tensor]:
    """Return the logits, the loss and the gradients of a step without dropout, float64 on the CPU."""
    network = settings.network.model_copy(update={"embedding_dropout": 0.0, "encoder_dropout": 0.0})
    settings = settings.model_copy(update={"network": network})
    training = training_of(settings, counts, shape, device)
    batch = next(training.batches()).to(device)
    if precision == "float64":
        training.network.double()
    with autocast(device, "float32" if precision == "float64" else precision):
        states = training.network.encode(batch.tokens, batch.own_lengths, batch.unique_ids)
        logits = training.network.logits(states.detach(), batch.lengths, batch.candidates)
        loss = training.network.loss(states, batch.lengths, batch.positives, batch.count, batch.candidates)
    loss.backward()
    results = {"logits": logits, "loss": loss.detach()}
    results |= {name: p.grad.to_dense() for name, p in training.parameters.items() if p.grad is not None}
    return {name: value.double().cpu() for name, value in results.items()}


def _relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    exists = exact.isfinite()
    return float((found - exact)[exists].norm() / exact[exists].norm().clamp(min=1e-30))


def lstm_variants(
    device: torch.device, dtype: torch.dtype, documents: int, tokens: int, hidden: int, documents_at_once: int
) -> dict[str, Callable[[], None]]:
    """Return functions that run both directions over random words, forward and backward."""
    words = torch.randn(documents, tokens, 384, device=device, dtype=dtype, requires_grad=True)
    parts = words.split(documents_at_once) if documents_at_once < documents else [words]
    left, right = (torch.nn.LSTM(384, hidden, batch_first=True).to(device, dtype) for _ in range(2))
    both = torch.nn.LSTM(384, hidden, batch_first=True, bidirectional=True).to(device, dtype)

    def one_after_the_other() -> None:
        outputs = [lstm(part)[0] for lstm in (left, right) for part in parts]
        torch.autograd.backward([output.sum() for output in outputs])

    def bidirectional() -> None:
        torch.autograd.backward([both(part)[0].sum() for part in parts])

    variants = {"separate": one_after_the_other, "bidirectional": bidirectional}
    if device != CPU:
        streams = [torch.cuda.Stream(device) for _ in range(2)]

        def on_two_streams() -> None:
            now = torch.cuda.current_stream(device)
            outputs = []
            for lstm, stream in zip((left, right), streams, strict=True):
                stream.wait_stream(now)
                with torch.cuda.stream(stream):
                    outputs += [lstm(part)[0].sum() for part in parts]
            for stream in streams:
                now.wait_stream(stream)
            torch.autograd.backward(outputs)  # each part runs on the stream of its forward pass

        variants["two_streams"] = on_two_streams
        if len(parts) == 1:
            leaves = [words, *left.parameters(), *right.parameters(), *both.parameters()]
            variants |= {f"graph_{name}": captured(run, leaves, device) for name, run in variants.items()}
    return variants


def captured(run: Callable[[], None], leaves: Sequence[torch.Tensor], device: torch.device) -> Callable[[], None]:
    """Return a function that launches all kernels of `run` at once, as a CUDA graph; `leaves` get new gradients."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):  # libraries allocate what they keep before the capture
            run()
    torch.cuda.current_stream(device).wait_stream(stream)
    for leaf in leaves:
        leaf.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _seconds_of(run: Callable[[], None], device: torch.device, repeats: int) -> float:
    """Return the median seconds of a run on the device, after two warm-ups."""
    seconds = []
    for _ in range(repeats + 2):
        synchronize(device)
        began = time.perf_counter()
        run()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[2:])


def table(rows: list[dict[str, Any]]) -> Table:
    """Return the rows of steps and levels."""
    columns = ("part", "figure", "corpus", "level", "step_ms", "floor_ms", "scoring_ms", "peak_gib", "planned_gib")
    shown = Table(*columns)
    for row in rows:
        if "step_ms" in row:
            shown.add_row(*(f"{v:.3g}" if isinstance(v := row.get(c, ""), float) else str(v) for c in columns))
    return shown


PARTS = {
    "parity": Bench.parity,
    "lstm": Bench.lstm,
    "profile": Bench.profile,
    "sync": Bench.sync,
    "steps": Bench.steps,
    "kernel": Bench.kernel,
    "chunks": Bench.chunks,
    "recipes": Bench.recipes,
    "predict": Bench.predict,
    "resume": Bench.resume,
    "gloo": Bench.gloo,
    "corpus": Bench.whole_corpus,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts, print their rows, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small shapes: tests the benchmark, measures nothing")
    parser.add_argument("--device", default="cuda", help="default: cuda; cpu runs the GPU's code there")
    parser.add_argument("--only", choices=PARTS, help="run this part alone")
    parser.add_argument("--minutes", type=_minutes, default=MINUTES, help=f"time limit; default: {MINUTES:g}")
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="a prepared corpus to train whole")
    parser.add_argument("--json", type=Path, help="file of results with --only; default: gpu-PART.json in --out")
    parser.add_argument("--out", type=Path, default=results_file.RESULTS, help="directory of the parts' results")
    options = parser.parse_args(arguments)
    device = device_named(options.device)
    if options.only is None:
        raise SystemExit(run_parts(options))
    use_threads(available_cpus())
    corpus = options.corpus and options.corpus.absolute()
    path = options.json or options.out / f"{'gpu' if device != CPU else 'gpu-cpu'}-{options.only}.json"
    with gpu_code(device):
        bench = Bench(device, options.quick, corpus)
        parts = {options.only: partial(PARTS[options.only], bench)}
        rows = measure_within(parts, options.minutes, path, threads=torch.get_num_threads())
    Console().print(table(rows))


def run_parts(options: argparse.Namespace) -> int:
    """Run each part in a process of its own; return 1 if one of them failed."""
    argv = [
        sys.executable,
        __file__,
        "--device",
        options.device,
        "--minutes",
        str(options.minutes),
        "--out",
        str(options.out),
    ]
    argv += ["--quick"] * options.quick + (["--corpus", str(options.corpus)] if options.corpus else [])
    codes = {}
    for name in PARTS:
        try:
            codes[name] = subprocess.run(
                [*argv, "--only", name], timeout=60 * options.minutes + 60, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            codes[name] = -1
    Console().print({name: "ended" if code == 0 else f"exit code {code}" for name, code in codes.items()})
    return int(any(code not in (0, 2) for code in codes.values()))


def _minutes(word: str) -> float:
    minutes = float(word)
    if not 0 < minutes < 1e6:
        raise argparse.ArgumentTypeError(f"expected a number above 0 (given: {word!r})")
    return minutes


if __name__ == "__main__":
    results_file.run(main)
