"""Run: pytest tests/inference/test_bundle.py

A real run exported, opened again, and damaged in every way that a copy or a stranger may damage it.
"""

import json
import shutil
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from axml_ray.inference.beam import TreePredictor, join_fingerprint
from axml_ray.inference.combining import Votes, combine, mean_ballot, ranked
from axml_ray.inference.ensemble import Ensemble, votes_of
from axml_ray.inference.frequency import Coefficients
from axml_ray.inference.frozen import WORDS
from axml_ray.inference.weights import SCALES, group_size, load_weights, quantized, restored, save_weights
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_run import train_run

from axml_ray import __version__
from axml_ray.configuration import open_run
from axml_ray.files import read_json, write_json
from axml_ray.inference.bundle import (
    CALIBRATION,
    LABELS,
    MANIFEST,
    SETTINGS,
    SHARED_WORDS,
    TOKENIZER,
    Bundle,
    BundleError,
    entries,
)
from axml_ray.inference.export import export_bundle
from axml_ray.network.level_network import TABLE
from axml_ray.settings import LinearSettings, SettingsError
from axml_ray.training.tree import neighbours_fingerprint

TREE, MODEL = "tree-1/tree.safetensors", "tree-0/level-2/model.safetensors"


@pytest.fixture
def copy(bundle_directory, tmp_path):
    return Path(shutil.copytree(bundle_directory, tmp_path / "bundle"))


def change(path: Path, edit: Callable[[dict], None]) -> None:
    content = read_json(path)
    edit(content)
    write_json(path, content)


def sign(bundle: Path) -> None:
    """Make the manifest true of the files as they are, as a malicious maker would."""
    manifest = bundle / MANIFEST
    files = {name: entry.model_dump() for name, entry in entries(bundle) if name != MANIFEST}
    change(manifest, lambda content: content.update(files=files))


class TestExport:
    def test_predicts_as_the_run_does(self, tiny_run, bundle_directory):
        tokens = tiny_run.corpus.split("test").tokens
        run, bundle = tiny_run.ensemble(), Bundle.open(bundle_directory).ensemble()
        (labels, scores), of_trees = run.predict(tokens)
        (same_labels, same_scores), same_trees = bundle.predict(tokens)
        assert np.array_equal(labels, same_labels) and np.array_equal(scores, same_scores)
        for one, other in zip(of_trees, same_trees, strict=True):
            assert np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])

    def test_says_what_it_is(self, tiny_run, bundle_directory):
        content = read_json(bundle_directory / MANIFEST)
        sizes = [list(tree.tree.level_sizes) for tree in tiny_run.ensemble().trees]
        assert content["format"] == "axml-ray bundle" and content["axml_ray"] == __version__
        assert content["level_sizes"] == sizes and content["labels"] == tiny_run.corpus.trained
        text = "".join((bundle_directory / name).read_text() for name in (MANIFEST, SETTINGS, CALIBRATION))
        assert str(tiny_run.settings.runs) not in text  # nor anything else of the machine

    @pytest.mark.parametrize("weights", ["bfloat16", "int8"])
    def test_of_fewer_bits(self, tiny_run, bundle_directory, tmp_path, weights):
        exported = export_bundle(tiny_run.settings, tmp_path / weights, weights)
        assert set(exported.scores) == {"float32", weights}
        for name, score in exported.scores["float32"].items():
            assert exported.scores[weights][name] == pytest.approx(score, abs=2)
        full, reduced = ((place / MODEL).stat().st_size for place in (bundle_directory, tmp_path / weights))
        assert reduced < 0.65 * full  # vectors and headers aside, a half and a quarter
        tokens = tiny_run.corpus.split("test").tokens
        (labels, scores), _ = Bundle.open(tmp_path / weights).ensemble().predict(tokens)
        (wanted, right), _ = Bundle.open(bundle_directory).ensemble().predict(tokens)
        assert scores[:, 0] == pytest.approx(right[:, 0], abs=0.05)
        assert (labels[:, 0] == wanted[:, 0]).mean() > 0.8

    def test_frozen_word_vectors_are_kept_once(self, tmp_path):
        run = train_run(tmp_path, epochs=1, train_embeddings=False)
        export_bundle(run.settings, tmp_path / "bundle")
        assert set(load_file(tmp_path / "bundle" / SHARED_WORDS)) == {WORDS}
        assert WORDS not in load_file(tmp_path / "bundle" / MODEL)
        tokens = run.corpus.split("test").tokens
        bundle = Bundle.open(tmp_path / "bundle").ensemble()
        assert np.array_equal(bundle.predict(tokens)[0][1], run.ensemble().predict(tokens)[0][1])
        tables = {network.encoder.embedding.weight.data_ptr() for tree in bundle.trees for network in tree.networks}
        assert len(tables) == 1

    def test_frequency_correction(self, tmp_path):
        run = train_run(tmp_path, epochs=1, correction=Coefficients(intercept=-1, score=0.7, both=0.02, frequency=-0.5))
        export_bundle(run.settings, tmp_path / "bundle")
        mine, theirs = Bundle.open(tmp_path / "bundle").ensemble(), run.ensemble()
        tokens, given = run.corpus.split("test").tokens, np.array([3, 0, 11])
        for found, right in zip(mine.predict(tokens)[0], theirs.predict(tokens)[0], strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-5)
        np.testing.assert_allclose(mine.score(tokens, given), theirs.score(tokens, given), rtol=1e-5)
        plain = run.settings.ensemble.model_copy(update={"frequency_correction": False})
        uncorrected = Ensemble.open(run.settings.model_copy(update={"ensemble": plain}), run.corpus)
        assert uncorrected.votes.correction is None
        summed = combine(*zip(*(ballot.found for ballot in theirs.find(tokens)), strict=True), 20)
        for found, right in zip(uncorrected.predict(tokens)[0], summed, strict=True):
            np.testing.assert_array_equal(found, right)
        for found, right in zip(theirs.predict(tokens)[0], theirs.votes.correction.ranked(summed, 2), strict=True):
            np.testing.assert_array_equal(found, right)
        more = run.settings.model_copy(update={"linear": LinearSettings(weight=0.5)})
        with pytest.raises(SettingsError, match=r"frequency\.json: no frequency correction of these trees; run jobs/"):
            votes_of(more, run.corpus)

    def test_linear_classifiers(self, tmp_path):
        run = train_run(tmp_path, epochs=1, linear=0.4)
        export_bundle(run.settings, tmp_path / "bundle", "bfloat16")
        tokens = run.corpus.split("test").tokens
        trees = Bundle.open(tmp_path / "bundle").ensemble().trees
        for mine, theirs in zip(trees, run.ensemble().trees, strict=True):
            assert mine.linear[1].share == theirs.linear[1].share == 0.4
            found, right = (tree.linear[0].find(tree.see(tokens), 20) for tree in (mine, theirs))
            assert np.array_equal(found[0], right[0]) and np.array_equal(found[1], right[1])
        plain = run.settings.model_copy(update={"linear": LinearSettings()})
        (tmp_path / "bundle" / "tree-1" / "linear.safetensors").unlink()
        sign(tmp_path / "bundle")
        with pytest.raises(BundleError, match=r"tree-1/linear\.safetensors: cannot be used \(it is missing\)"):
            Bundle.open(tmp_path / "bundle").ensemble()
        (run.settings.run_directory / "tree-0" / "linear.safetensors").write_bytes(b"")
        with pytest.raises(SettingsError, match=r"linear\.safetensors: no linear classifiers of these settings"):
            run.ensemble()
        assert Ensemble.open(plain, run.corpus).trees[0].linear is None

    def test_neighbours(self, tmp_path):
        run = train_run(tmp_path, epochs=1, linear=0.4, neighbours=7)
        export_bundle(run.settings, tmp_path / "bundle", "bfloat16")
        tokens, given = run.corpus.split("test").tokens, np.array([3, 0, 11])
        plain = run.settings.model_copy(update={"linear": LinearSettings(weight=0.4)})
        bundle, alone = Bundle.open(tmp_path / "bundle"), Ensemble.open(plain, run.corpus)
        for mine, theirs, without in zip(bundle.ensemble().trees, run.ensemble().trees, alone.trees, strict=True):
            for found, right in zip(
                *(tree.linear[0].find(tree.see(tokens), 20) for tree in (mine, theirs)), strict=True
            ):
                assert np.array_equal(found, right)
            linear, votes = theirs.linear[0], theirs.linear[0].neighbours
            assert (votes.count, votes.share) == (7, 0.2) and without.linear[0].neighbours is None
            share = votes.votes(linear.features.rows(tokens))[:, given].toarray()
            expected = 0.8 * without.linear[0].score(without.see(tokens), given) + 0.2 * share
            np.testing.assert_allclose(mine.linear[0].score(mine.see(tokens), given), expected, rtol=1e-5, atol=1e-7)
        together = run.ensemble()
        for found, tree in zip(together.find(tokens), together.trees, strict=True):  # looked up once for all trees
            for column, own in zip(found.found, tree.predict(tokens, together.votes.top_labels), strict=True):
                assert np.array_equal(column, own)
        expected = together.votes.scores(given, [tree.said_of(tokens, given)[..., :1] for tree in together.trees])
        assert np.array_equal(together.score(tokens, given), expected)
        last = together.trees[-1]
        linear, join = last.linear
        last.linear = replace(linear, features=replace(linear.features, lead_words=2, lead_weight=9.0)), join
        own = last.predict(tokens, together.votes.top_labels)[1]
        assert not np.array_equal(own, found[1])  # a tree that sees otherwise sees for itself
        assert np.array_equal(Ensemble(together.trees, together.votes).find(tokens)[-1][1], own)
        more = run.settings.linear.model_copy(update={"neighbours": 8})
        marks = {
            join_fingerprint(one, run.corpus)
            for one in (run.settings, plain, run.settings.model_copy(update={"linear": more}))
        }
        assert len(marks) == 3
        (tmp_path / "bundle" / "neighbours.safetensors").unlink()
        sign(tmp_path / "bundle")
        with pytest.raises(BundleError, match=r"neighbours\.safetensors: cannot be used \(it is missing\)"):
            Bundle.open(tmp_path / "bundle").ensemble()
        read = run.settings.linear.model_copy(update={"lead_words": 3})  # of other features
        assert neighbours_fingerprint(run.settings.model_copy(update={"linear": read}), run.corpus) != (
            neighbours_fingerprint(run.settings, run.corpus)
        )
        (run.settings.run_directory / "neighbours.safetensors").write_bytes(b"")
        with pytest.raises(SettingsError, match=r"neighbours\.safetensors: no training texts of these settings; run"):
            run.ensemble()

    def test_name_matches(self, tmp_path):
        run = train_run(tmp_path, epochs=1, linear=0.4, neighbours=7, name_matches_weight=0.3)
        export_bundle(run.settings, tmp_path / "bundle", "bfloat16")
        tokens, given = run.corpus.split("test").tokens, np.array([3, 0, 11])
        for mine, theirs in zip(Bundle.open(tmp_path / "bundle").ensemble().trees, run.ensemble().trees, strict=True):
            ours, linear = mine.linear[0], theirs.linear[0]
            assert (linear.names.share, ours.names.share) == (0.3, 0.3) and linear.share == pytest.approx(0.5)
            for found, right in zip(ours.find(ours.see(tokens), 20), linear.find(linear.see(tokens), 20), strict=True):
                assert np.array_equal(found, right)
            names = linear.names.votes(tokens)[:, given].toarray()
            nameless, alone = replace(linear, names=None), replace(linear, names=None, neighbours=None)
            expected = nameless.score(nameless.see(tokens), given) - 0.3 * alone.score(alone.see(tokens), given)
            np.testing.assert_allclose(ours.score(ours.see(tokens), given), expected + 0.3 * names, atol=1e-6)
        for changed in ({"name_matches_weight": 0.2}, {"name_stemmer": None}):
            other = run.settings.model_copy(update={"linear": run.settings.linear.model_copy(update=changed)})
            assert join_fingerprint(other, run.corpus) != join_fingerprint(run.settings, run.corpus)
        with pytest.raises(SettingsError, match=r"name_matches\.safetensors: no labels' names of these settings; run"):
            Ensemble.open(other, run.corpus)
        (tmp_path / "bundle" / "name_matches.safetensors").unlink()
        sign(tmp_path / "bundle")
        with pytest.raises(BundleError, match=r"name_matches\.safetensors: cannot be used \(it is missing\)"):
            Bundle.open(tmp_path / "bundle").ensemble()

    @pytest.mark.parametrize("correction", [None, Coefficients(intercept=-1, score=0.7, frequency=-0.5)])
    def test_learned_join(self, tmp_path, correction):
        run = train_run(tmp_path, epochs=1, linear=0.4, correction=correction, learned_join=True)
        export_bundle(run.settings, tmp_path / "bundle")
        tokens, given = run.corpus.split("test").tokens, np.array([3, 0, 11])
        mine, theirs = Bundle.open(tmp_path / "bundle").ensemble(), run.ensemble()
        for found, right in zip(mine.predict(tokens)[0], theirs.predict(tokens)[0], strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-5)
        np.testing.assert_allclose(mine.score(tokens, given), theirs.score(tokens, given), rtol=1e-5)
        labels, means = mean_ballot(theirs.find(tokens), 20)
        expected = ranked(labels, 2 * theirs.votes.learned.scores(labels, means, theirs.votes.correction), 20)
        for found, right in zip(theirs.predict(tokens)[0], expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-6)
        plain = Votes(20, theirs.votes.correction)
        assert not np.allclose(plain.ranking(theirs.find(tokens))[1], expected[1], rtol=0.1)
        # So are labels that are asked for, by what networks and classifiers say alone.
        said = []
        for tree in theirs.trees:
            alone = TreePredictor(tree.tree, tree.networks, tree.beam, tree.precision).score(tokens, given)
            by_linear = tree.linear[0].score(tree.see(tokens), given)
            said.append(np.stack([0.6 * alone + 0.4 * by_linear, alone, by_linear], axis=2))
        np.testing.assert_allclose(theirs.score(tokens, given), theirs.votes.scores(given, said), rtol=1e-4)
        more = run.settings.model_copy(update={"linear": run.settings.linear.model_copy(update={"cost": 2.0})})
        if correction is None:
            with pytest.raises(SettingsError, match=r"learned_join\.safetensors: no learned join of these trees; run"):
                votes_of(more, run.corpus)
        (tmp_path / "bundle" / "learned_join.safetensors").unlink()
        sign(tmp_path / "bundle")
        with pytest.raises(BundleError, match=r"learned_join\.safetensors: cannot be used \(it is missing\)"):
            Bundle.open(tmp_path / "bundle").ensemble()

    @pytest.mark.parametrize("kind", ["bilstm", "xml_cnn"])
    def test_other_networks(self, tmp_path, kind):
        run = train_run(tmp_path, trees=1, epochs=1, kind=kind, bottleneck=8, filters=4)
        export_bundle(run.settings, tmp_path / "bundle")
        tokens = run.corpus.split("test").tokens
        found = Bundle.open(tmp_path / "bundle").ensemble().predict(tokens)[0]
        assert np.array_equal(found[1], run.ensemble().predict(tokens)[0][1])

    def test_a_moved_run(self, tiny_run, tmp_path):
        moved = Path(shutil.copytree(tiny_run.settings.run_directory, tmp_path / "elsewhere"))
        export_bundle(open_run(moved), tmp_path / "bundle")
        assert Bundle.open(tmp_path / "bundle").trees == 2

    def test_takes_the_place_of_a_bundle_only(self, tiny_run, copy, tmp_path):
        (copy / "left over").write_text("x")
        export_bundle(tiny_run.settings, copy)
        Bundle.open(copy)
        other = tmp_path / "documents"
        other.mkdir()
        (other / "letter.txt").write_text("dear")
        with pytest.raises(SettingsError, match="exists and is no bundle"):
            export_bundle(tiny_run.settings, other)
        assert (other / "letter.txt").read_text() == "dear"

    def test_of_an_unfinished_run(self, tiny_run, tmp_path):
        moved = Path(shutil.copytree(tiny_run.settings.run_directory, tmp_path / "run"))
        shutil.rmtree(moved / "tree-1" / "level-2")
        with pytest.raises(SettingsError, match="level-2: no finished level"):
            export_bundle(open_run(moved), tmp_path / "bundle")
        assert not [path for path in tmp_path.iterdir() if path != moved]
        with pytest.raises(SettingsError, match="not a run"):
            open_run(tmp_path)


class TestOpen:
    def test_every_flipped_byte_is_found(self, copy):
        names = [name for name, _ in entries(copy) if name != MANIFEST]
        assert len(names) == 4 + 2 * 3
        for name in names:
            content = bytearray((copy / name).read_bytes())
            content[len(content) // 2] ^= 1
            (copy / name).write_bytes(content)
            with pytest.raises(BundleError, match=f"{name}: its checksum"):
                Bundle.open(copy)
            content[len(content) // 2] ^= 1
            (copy / name).write_bytes(content)
        Bundle.open(copy)

    @pytest.mark.parametrize("name", [SETTINGS, TOKENIZER, LABELS, CALIBRATION, TREE, MODEL])
    def test_missing_and_cut_short(self, copy, name):
        whole = (copy / name).read_bytes()
        (copy / name).write_bytes(whole[:-1])
        with pytest.raises(BundleError, match=f"{name}: [0-9,]+ bytes, not"):
            Bundle.open(copy, verify=False)
        (copy / name).unlink()
        with pytest.raises(BundleError, match=f"{name}: missing; copy or export"):
            Bundle.open(copy, verify=False)

    def test_no_bundle(self, tmp_path):
        with pytest.raises(BundleError, match="no bundle"):
            Bundle.open(tmp_path / "nowhere")

    def test_a_file_too_many(self, copy):
        (copy / "tree-0" / "run_me.py").write_text("raise SystemExit")
        with pytest.raises(BundleError, match=r"run_me.py: not in manifest.json; remove it"):
            Bundle.open(copy)
        sign(copy)
        with pytest.raises(BundleError, match=r"'tree-0/run_me.py' is no file of a bundle"):
            Bundle.open(copy)

    @pytest.mark.parametrize("version", [0, 2, "1", None])
    def test_another_version(self, copy, version):
        change(copy / MANIFEST, lambda content: content.update(version=version, axml_ray="9.8"))
        with pytest.raises(BundleError, match=r"a bundle of version .*written by axml-ray 9\.8; this program reads"):
            Bundle.open(copy)

    @pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "tree-0/../../secret", "tree-0\\x", "a\0b"])
    def test_paths_that_climb_out(self, copy, name):
        (copy.parent / "secret").write_text("x")
        change(copy / MANIFEST, lambda content: content["files"].update({name: {"bytes": 1, "sha256": "0"}}))
        with pytest.raises(BundleError, match="leads out of the bundle"):
            Bundle.open(copy)

    def test_links_that_climb_out(self, copy):
        (copy / TOKENIZER).rename(copy.parent / "outside.json")
        (copy / TOKENIZER).symlink_to(copy.parent / "outside.json")
        with pytest.raises(BundleError, match="leads out of the bundle"):
            Bundle.open(copy)

    @pytest.mark.parametrize(
        ("edit", "message"),
        [
            (lambda m: m.update(format="other"), "not the manifest of a bundle"),
            (lambda m: m["files"].pop(LABELS), r"'labels.parquet' is missing from its files"),
            (lambda m: m.update(labels=0), "labels: "),
            (lambda m: m.update(level_sizes=[[4, "x"]]), r"level_sizes.0.1: "),
            (lambda m: m.update(level_sizes=[[4, 14]]), "is no file of a bundle"),
            (lambda m: m.update(surprise=1), "surprise: "),
            (lambda m: m.pop("weights"), "weights: "),
        ],
    )
    def test_a_manifest_of_something_else(self, copy, edit, message):
        change(copy / MANIFEST, edit)
        with pytest.raises(BundleError, match=message):
            Bundle.open(copy)

    @pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
    def test_a_manifest_that_is_none(self, copy, content):
        (copy / MANIFEST).write_bytes(content)
        with pytest.raises(BundleError, match=MANIFEST):
            Bundle.open(copy)

    @pytest.mark.parametrize("content", ["!!python/object/apply:os.mkdir [hacked]", "name: [", "name: x\nrun: y\n"])
    def test_settings_run_nothing(self, copy, content, monkeypatch):
        monkeypatch.chdir(copy.parent)
        (copy / SETTINGS).write_text(content)
        sign(copy)
        with pytest.raises(BundleError, match=SETTINGS):
            Bundle.open(copy)
        assert not Path("hacked").exists()

    @pytest.mark.parametrize("name", [TOKENIZER, LABELS, CALIBRATION, TREE, MODEL])
    def test_signed_rubbish(self, copy, name):
        (copy / name).write_bytes(b'{"a": 1}' if name.endswith("json") else b"\x08" + b"\0" * 40)
        sign(copy)
        bundle = Bundle.open(copy)
        with pytest.raises(BundleError, match=f"{name}: cannot be used"):
            _ = bundle.tokenizer, bundle.labels, bundle.calibration, bundle.ensemble()

    def test_signed_parts_of_another_size(self, copy):
        state = load_file(copy / MODEL)
        for changed, message in [
            ({TABLE: state[TABLE][:-1].clone()}, "size mismatch"),
            ({WORDS: state[WORDS][:-1].clone()}, "vectors of"),
            ({"surprise": torch.ones(2)}, "surprise"),
            ({"head.output.bias": torch.ones(1, dtype=torch.float64)}, "float64"),
            ({TABLE: state[TABLE].to(torch.int8)}, "no scales"),
        ]:
            save_file({**state, **changed}, copy / MODEL)
            sign(copy)
            with pytest.raises(BundleError, match=f"{MODEL}: cannot be used .*{message}"):
                Bundle.open(copy).ensemble()
        save_file({name: value for name, value in state.items() if name != "head.output.bias"}, copy / MODEL)
        sign(copy)
        with pytest.raises(BundleError, match=r"head\.output\.bias"):
            Bundle.open(copy).ensemble()

    def test_signed_labels_of_another_tree(self, copy):
        change(copy / MANIFEST, lambda content: content.update(labels=13))
        with pytest.raises(BundleError, match=LABELS):
            _ = Bundle.open(copy).labels
        with pytest.raises(BundleError, match=r"tree-0/tree\.safetensors: cannot be used"):
            Bundle.open(copy).tree(0)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_tables_lie_in_the_file_itself(tiny_run, tmp_path, weights):
    """Mapped, not copied: so processes that open the same bundle share its memory."""
    export_bundle(tiny_run.settings, tmp_path / "bundle", weights)
    tree = Bundle.open(tmp_path / "bundle").tree(0, precision=weights)
    for number, network in enumerate(tree.networks, start=1):
        file = str(tmp_path / "bundle" / "tree-0" / f"level-{number}" / "model.safetensors")
        lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(file)]
        ranges = [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]
        for name in (TABLE, WORDS):
            place = network.get_parameter(name).data_ptr()
            assert any(start <= place < end for start, end in ranges), name


class TestWeights:
    @given(st.integers(1, 5), st.integers(1, 200), st.integers(0, 2**32 - 1), st.sampled_from([1e-30, 1.0, 1e20]))
    def test_int8_is_within_half_a_step(self, rows, width, seed, scale):
        matrix = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * scale
        matrix[0] = 0
        values, scales = quantized(matrix)
        assert values.shape == matrix.shape and len(scales) == rows * (width // group_size(width))
        step = scales.repeat_interleave(group_size(width)).view(rows, width)
        assert ((restored("x", values, scales) - matrix).abs() <= step * 0.501).all()

    @pytest.mark.parametrize(("width", "expected"), [(300, 60), (512, 64), (8, 8), (101, 101), (64, 64), (1, 1)])
    def test_groups(self, width, expected):
        assert group_size(width) == expected

    def test_vectors_stay_whole(self, tmp_path):
        state = {"table": torch.randn(4, 64), "bias": torch.randn(7), "one": torch.randn(())}
        save_weights(state, tmp_path / "x.safetensors", "int8")
        packed, found = load_file(tmp_path / "x.safetensors"), load_weights(tmp_path / "x.safetensors")
        assert packed["table"].dtype == torch.int8 and packed["table" + SCALES].dtype == torch.float32
        assert set(found) == set(state)
        assert torch.equal(found["bias"], state["bias"]) and torch.equal(found["one"], state["one"])


def test_the_package_says_its_version():
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__


def test_a_manifest_is_plain_json(bundle_directory):
    assert json.loads((bundle_directory / MANIFEST).read_text())["version"] == 1


def test_records_are_read_as_the_training_texts_were(tiny_run, tmp_path):
    from jobs.predict import reading_of

    def read(bundle: Bundle, **given: str) -> dict[str, str | None]:
        flags = {"text_field": None, "title_field": None, "id_field": None} | given
        return reading_of(Namespace(**flags), bundle)

    plain = {"text_field": "text", "title_field": None, "id_field": "id"}
    named = {"text_field": "body", "title_field": "title", "id_field": "number"}
    for fields in (plain, named):
        corpus = tiny_run.settings.corpus.model_copy(update=fields)
        export_bundle(tiny_run.settings.model_copy(update={"corpus": corpus}), tmp_path / "bundle")
        bundle = Bundle.open(tmp_path / "bundle")
        assert read(bundle) == fields
        assert read(bundle, text_field="abstract") == fields | {"text_field": "abstract"}
        assert not read(bundle, title_field="")["title_field"]
        # What older programs don't know is only written where it is needed.
        assert ("title_field" in (tmp_path / "bundle" / SETTINGS).read_text()) == (fields is named)
