"""Run: pytest tests/network/test_frozen.py

A network that only predicts: the weights it was given, in the format of the products, against the trained one.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_corpus import DEEP, FLAT, key_documents, small_network

from axml_ray.members.weight_files import load_weights, quantized, save_weights
from axml_ray.network.backends.cpu_backend import LIMITS, CpuBackend
from axml_ray.network.fast.frozen import WORDS, frozen
from axml_ray.network.fast.int8_table import Int8Table
from axml_ray.network.kinds import build_network
from axml_ray.network.level_network import TABLE, Beam
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings
from axml_ray.training.beam_search import expand_rows

SETTINGS = NetworkSettings(hidden=10, fully_connected=(12,), evidence=True)
TOKENS, _ = key_documents(30, 10)
ABOVE = Beam(torch.arange(4).expand(30, 4), torch.zeros(30, 4))


def best(network, precision: str) -> Beam:
    beam = None if network.level.first_child is None else ABOVE
    return expand_rows(network, TOKENS, beam, 10, precision=precision)


@pytest.mark.parametrize("level", [FLAT, DEEP], ids=["all nodes", "candidates"])
class TestFrozen:
    def test_in_float32_is_the_same_network_and_memory(self, level):
        network = small_network(level, evidence=True)
        state = network.state_dict()
        found = frozen(level, state, SETTINGS, "float32")
        for name, value in found.named_parameters():
            assert value.data_ptr() == state[name].data_ptr() and not value.requires_grad, name
        one, other = best(found, "float32"), best(network, "float32")
        assert torch.equal(one.nodes, other.nodes) and torch.allclose(one.scores, other.scores, rtol=1e-5)

    @pytest.mark.parametrize("most", [1 << 28, 0], ids=["turned once", "turned as read"])
    def test_in_bfloat16_computes_as_training_does(self, level, most, monkeypatch):
        monkeypatch.setattr(CpuBackend, "limits", replace(LIMITS, narrow_bytes=most))
        network = small_network(level, evidence=True)
        found = frozen(level, network.state_dict(), SETTINGS, "bfloat16")
        narrow = torch.bfloat16 if most else torch.float32
        assert found.get_parameter(TABLE).dtype == found.get_parameter(WORDS).dtype == narrow
        assert found.encoder.forward_lstm.weight_hh_l0.dtype == torch.bfloat16
        assert found.head.output.weight.dtype == torch.float32
        one, other = best(found, "bfloat16"), best(network, "bfloat16")
        scores = [torch.full((30, 10), -torch.inf).scatter(1, beam.nodes, beam.scores) for beam in (one, other)]
        assert torch.allclose(*scores, atol=0.02)

    @pytest.mark.parametrize("most", [1 << 28, 0], ids=["turned once", "turned as read"])
    def test_narrow_weights_compute_in_float32_where_asked(self, level, most, monkeypatch):
        monkeypatch.setattr(CpuBackend, "limits", replace(LIMITS, narrow_bytes=most))
        network = small_network(level, evidence=True)
        rounded = {name: value.bfloat16() for name, value in network.state_dict().items()}
        wide = {name: value.float() for name, value in rounded.items()}
        found = frozen(level, rounded, SETTINGS, "float32")
        for name in (TABLE, WORDS):
            assert (found.get_parameter(name).data_ptr() == rounded[name].data_ptr()) == (most == 0)
        one = best(found, "float32")
        other = best(frozen(level, wide, SETTINGS, "float32"), "float32")
        assert torch.equal(one.nodes, other.nodes) and torch.allclose(one.scores, other.scores, rtol=1e-5)

    @pytest.mark.parametrize("kind", ["attention", "bilstm", "xml_cnn"])
    @pytest.mark.parametrize("form", ["float32", "bfloat16", "plain"])
    def test_int8_tables_compute_as_their_values_do(self, level, kind, form):
        precision, implementation = ("float32", "plain") if form == "plain" else (form, "fused")
        settings = {"kind": kind, "implementation": implementation}
        state = small_network(level, **settings).state_dict()
        packed = {name: Int8Table(*quantized(state[name])) for name in (TABLE, WORDS)}
        wide = {name: table.unpacked() for name, table in packed.items()}
        networks = [
            frozen(level, state | tables, SETTINGS.model_copy(update=settings | {"evidence": False}), precision)
            for tables in (packed, wide)
        ]
        assert isinstance(networks[0].get_parameter(TABLE), Int8Table)
        one, other = (best(network, precision) for network in networks)
        assert torch.equal(one.nodes, other.nodes) and torch.equal(one.scores, other.scores)
        vectors = [each.attention.vectors(torch.arange(level.nodes), each.first_child) for each in networks]
        assert torch.equal(vectors[0].to(vectors[1]), vectors[1])

    def test_weights_of_something_else(self, level):
        state = small_network(level, evidence=True).state_dict()
        for wrong, message in [
            ({name: value for name, value in state.items() if name != TABLE}, TABLE),
            ({**state, "other": torch.ones(1)}, "other"),
            ({**state, TABLE: state[TABLE][1:]}, "size mismatch"),
            ({name: value for name, value in state.items() if name != WORDS}, WORDS),
        ]:
            with pytest.raises(ValueError, match=message):
                frozen(level, wrong, SETTINGS)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_int8_weights_are_read_in_place(tmp_path):
    """Opened, and used for predictions that read few rows, they take a small share of the file's size."""
    level, path = Level(2, 80_000, np.arange(0, 80_001, 8)), tmp_path / "weights.safetensors"
    words = {WORDS: torch.randn(100_000, 64)}
    network = build_network(level, words[WORDS], SETTINGS)
    save_weights(network.state_dict() | words, path, "int8")
    del network, words

    def private() -> int:
        return int(re.search(r"Private_Dirty: +(\d+)", Path("/proc/self/smaps_rollup").read_text())[1]) << 10

    before = private()
    opened = frozen(level, load_weights(path), SETTINGS, "float32")
    expand_rows(opened, TOKENS, ABOVE, 10, precision="float32")
    assert private() - before < 0.15 * path.stat().st_size


def test_vectors_are_what_was_placed():
    network = small_network(DEEP)
    nodes, vectors = torch.tensor([9, 0, 3, 5]), torch.randn(4, 20)
    network.set_label_vectors(nodes, vectors)
    assert torch.equal(network.attention.vectors(nodes, network.first_child), vectors)
