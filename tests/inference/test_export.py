"""Run: pytest tests/inference/test_export.py

A real run exported: the bundle predicts as the run does.
"""

import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from bundle_files import MODEL, sign
from safetensors.torch import load_file, save_file
from tiny_run import train_run

from axml_ray import __version__
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json
from axml_ray.core.topk import weighted_sum
from axml_ray.ensemble.calibration import Calibration
from axml_ray.ensemble.frequency import Coefficients, FrequencyCalibration
from axml_ray.evaluation.metrics.predictions import title_of
from axml_ray.inference.bundle.bundle import VECTORS, Bundle
from axml_ray.inference.bundle.export import export_bundle
from axml_ray.inference.bundle.manifest import (
    CALIBRATION,
    CARD,
    FEATURES,
    MANIFEST,
    SETTINGS,
    WORD_VECTORS,
    BundleError,
    entries,
)
from axml_ray.members.network_tree import NetworkTree
from axml_ray.network.fast.frozen import WORDS
from axml_ray.network.level_network import TABLE
from axml_ray.runs.run import Run

BOTH = {"network_tree": {"weight": 0.6}, "linear_tree": {"weight": 0.4, "cluster_size": 4}}


class TestExport:
    def test_predicts_as_the_run_does(self, tiny_run, bundle_directory):
        tokens = tiny_run.corpus.split("test").tokens
        run, bundle = tiny_run.open_ensemble(), Bundle.open(bundle_directory).ensemble()
        of_run, of_bundle = run.rank_members(tokens), bundle.rank_members(tokens)
        assert list(of_run) == list(of_bundle) == ["network_tree-0", "network_tree-1"]
        for name, ranking in of_run.items():
            assert np.array_equal(ranking.labels, of_bundle[name].labels)
            assert np.array_equal(ranking.scores, of_bundle[name].scores)
        for one, other in zip(run.rank(tokens), bundle.rank(tokens), strict=True):
            assert np.array_equal(one, other)

    def test_says_what_it_is(self, tiny_run, bundle_directory):
        content = read_json(bundle_directory / MANIFEST)
        sizes = [list(tiny_run.open_tree(number).level_sizes) for number in range(2)]
        assert (content["format"], content["version"]) == ("axml-ray bundle", 2)
        assert content["axml_ray"] == __version__ and content["combiner"] == "mean"
        assert [(each["name"], each["kind"], each["tree"], each["weight"]) for each in content["members"]] == [
            ("network_tree-0", "network_tree", 0, 0.5), ("network_tree-1", "network_tree", 1, 0.5)]  # fmt: skip
        assert content["level_sizes"] == sizes and content["labels"] == tiny_run.corpus.trained
        text = "".join((bundle_directory / name).read_text() for name in (MANIFEST, SETTINGS, CALIBRATION))
        assert str(tiny_run.settings.runs) not in text  # nor anything else of the machine

    @pytest.mark.parametrize("weights", ["bfloat16", "int8"])
    def test_of_fewer_bits(self, tiny_run, bundle_directory, tmp_path, weights):
        exported = export_bundle(tiny_run, tmp_path / weights, weights)
        assert set(exported.scores) == {"float32", weights}
        for name, score in exported.scores["float32"].items():
            assert exported.scores[weights][name] == pytest.approx(score, abs=2)
        full, reduced = ((place / MODEL).stat().st_size for place in (bundle_directory, tmp_path / weights))
        assert reduced < 0.65 * full  # vectors and headers aside, a half and a quarter
        tokens = tiny_run.corpus.split("test").tokens
        labels, scores = Bundle.open(tmp_path / weights).ensemble().rank(tokens)
        wanted, right = Bundle.open(bundle_directory).ensemble().rank(tokens)
        assert scores[:, 0] == pytest.approx(right[:, 0], abs=0.05)
        assert (labels[:, 0] == wanted[:, 0]).mean() > 0.8

    def test_frozen_word_vectors_are_kept_once(self, tmp_path):
        run = train_run(tmp_path, epochs=1, train_embeddings=False)
        export_bundle(run, tmp_path / "bundle")
        assert set(load_file(tmp_path / "bundle" / WORD_VECTORS)) == {VECTORS}
        assert WORDS not in load_file(tmp_path / "bundle" / MODEL)
        tokens = run.corpus.split("test").tokens
        bundle = Bundle.open(tmp_path / "bundle").ensemble()
        assert np.array_equal(bundle.rank(tokens).scores, run.open_ensemble().rank(tokens).scores)
        networks = [network for member in bundle.members.values() for network in member.networks]
        assert len(networks) == 4
        assert len({network.encoder.embedding.weight.data_ptr() for network in networks}) == 1
        for damage, message in [
            (lambda path: save_file({VECTORS: load_file(path)[VECTORS][:-1].clone()}, path), "vectors of"),
            (lambda path: save_file({"other": torch.ones(2, 2)}, path), "no word vectors"),
            (lambda path: path.unlink(), "word_vectors.safetensors is missing"),
        ]:
            damage(tmp_path / "bundle" / WORD_VECTORS)
            sign(tmp_path / "bundle")
            with pytest.raises(BundleError, match=message):
                Bundle.open(tmp_path / "bundle").ensemble()

    def test_other_word_vectors_than_the_corpus_has_are_kept(self, tmp_path):
        """Frozen ones of a run that continues another one may be those that the other run trained."""
        run = train_run(tmp_path, epochs=1, train_embeddings=False)
        vectors = torch.from_numpy(run.corpus.word_vectors())
        for given, left_out in ((vectors, True), (vectors + 1, False)):
            to = tmp_path / str(left_out)
            to.mkdir()
            assert NetworkTree.export(run.members[0], to, "float32", given) is left_out
            levels = [load_file(path) for path in to.rglob("*.safetensors")]
            assert len(levels) == 2 and all((WORDS in level) is not left_out for level in levels)

    def test_fitted_weights(self, tmp_path):
        run = train_run(tmp_path, epochs=1, members=BOTH, combiner="weighted")
        fitted = run.open_combiner().about()
        assert set(fitted["weights"]) == set(BOTH) and fitted["documents"] == run.corpus.documents("valid")
        export_bundle(run, tmp_path / "bundle", "bfloat16")
        mine, theirs = Bundle.open(tmp_path / "bundle").ensemble(), run.open_ensemble()
        assert mine.combination.combiner.about() == fitted
        card = (tmp_path / "bundle" / CARD).read_text()
        for name, share in mine.combination.shares.items():
            kind = name.partition("-")[0]
            assert share == pytest.approx(fitted["weights"][kind] / (1 if kind == name else 2))
            assert f"| {title_of(name)} | {share:.3f} |" in card
        tokens = run.corpus.split("test").tokens
        np.testing.assert_allclose(mine.rank(tokens).scores, theirs.rank(tokens).scores, atol=0.02)
        calibration = Calibration.from_json(read_json(tmp_path / "bundle" / "calibration.json"))
        assert calibration.documents == run.corpus.documents("valid")
        for path in (tmp_path / "bundle" / "combiner").iterdir():
            content = path.read_bytes()
            path.write_text("{}")
            sign(tmp_path / "bundle")
            with pytest.raises(BundleError, match=path.name):
                Bundle.open(tmp_path / "bundle").ensemble()
            path.write_bytes(content)

    def test_a_fitted_combiner(self, tmp_path):
        calibration = FrequencyCalibration(
            Coefficients(intercept=-1, score=0.7, both=0.02, frequency=-0.5), np.ones(14, int)
        )
        run = train_run(tmp_path, epochs=1, members=BOTH, combiner="calibrated", fitted=calibration)
        export_bundle(run, tmp_path / "bundle")
        mine, theirs = Bundle.open(tmp_path / "bundle").ensemble(), run.open_ensemble()
        assert type(mine.combination.combiner) is FrequencyCalibration
        tokens, given = run.corpus.split("test").tokens, np.array([3, 0, 11])
        for found, right in zip(mine.rank(tokens), theirs.rank(tokens), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-5)
        np.testing.assert_allclose(mine.score(tokens, given), theirs.score(tokens, given), rtol=1e-5)
        rankings = list(mine.rank_members(tokens).values())
        mean = weighted_sum(rankings, [0.3, 0.3, 0.2, 0.2], 20)
        counted = FrequencyCalibration(calibration.coefficients, run.corpus.labels.counts)
        expected = counted.rank(run.member_weights, rankings, 20)
        for found, right in zip(mine.rank(tokens), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-5)
        assert not np.allclose(mine.rank(tokens).scores, mean.scores, rtol=0.1)
        members = run.settings.members.model_copy(
            update={"linear_tree": run.settings.members.linear_tree.model_copy(update={"weight": 0.1})}
        )
        more = Run(run.settings.model_copy(update={"members": members}), run.corpus)
        with pytest.raises(SettingsError, match="combiner: the combiner is not fitted for these members; run axml-ray"):
            more.open_ensemble()
        for path in (tmp_path / "bundle" / "combiner").iterdir():
            content = path.read_bytes()
            path.write_bytes(b"\x08" + b"\0" * 40)
            sign(tmp_path / "bundle")
            with pytest.raises(BundleError, match=rf"{path.name}.*cannot be used|combiner: cannot be used"):
                Bundle.open(tmp_path / "bundle").ensemble()
            path.unlink()
            sign(tmp_path / "bundle")
            with pytest.raises(BundleError, match="combiner: cannot be used"):
                Bundle.open(tmp_path / "bundle").ensemble()
            path.write_bytes(content)

    def test_members_of_all_kinds(self, mixed_run, tmp_path):
        export_bundle(mixed_run, tmp_path / "bundle", "bfloat16")
        tokens, given = mixed_run.corpus.split("test").tokens, np.array([3, 0, 11])
        mine, theirs = Bundle.open(tmp_path / "bundle").ensemble(), mixed_run.open_ensemble()
        assert [(each.name, each.kind, each.tree) for each in mine.combination.members] == [
            ("network_tree-0", "network_tree", 0), ("network_tree-1", "network_tree", 1),
            ("linear_tree-0", "linear_tree", 0), ("linear_tree-1", "linear_tree", 1),
            ("knn", "knn", None), ("label_names", "label_names", None)]  # fmt: skip
        assert [each.weight for each in mine.combination.members] == pytest.approx([0.2, 0.2, 0.15, 0.15, 0.2, 0.1])
        rankings, scores = mine.rank_members(tokens), mine.score_members(tokens, given)
        of_run, right = theirs.rank_members(tokens), theirs.score_members(tokens, given)
        for name in list(rankings)[2:]:  # the networks' weights are rounded
            assert np.array_equal(rankings[name].labels, of_run[name].labels), name
            assert np.array_equal(rankings[name].scores, of_run[name].scores), name
            assert np.array_equal(scores[name], right[name]) and scores[name].any(), name
        weighted = sum(each.weight * scores[each.name] for each in mine.combination.members)
        np.testing.assert_allclose(mine.score(tokens, given), weighted, rtol=1e-5)
        alone = Bundle.open(tmp_path / "bundle").ensemble(names=["knn"])
        assert list(alone.members) == ["knn"]
        np.testing.assert_allclose(alone.score(tokens, given), scores["knn"], rtol=1e-5)

    def test_damaged_files_of_members(self, mixed_bundle, tmp_path):
        bundle = Path(shutil.copytree(mixed_bundle, tmp_path / "bundle"))
        names = [name for name, _ in entries(bundle) if name.startswith("members/") or name == FEATURES]
        assert len(names) == 4 + 2 + 1 + 1 + 1
        for name in names:
            path, member = bundle / name, "/".join(name.split("/")[:2])
            content = path.read_bytes()
            path.write_bytes(b"\x08" + b"\0" * 40)
            sign(bundle)
            with pytest.raises(BundleError, match=f"{member}: cannot be used"):
                Bundle.open(bundle).ensemble()
            path.unlink()
            sign(bundle)
            with pytest.raises(BundleError, match=f"{member}: cannot be used|featurizer .* is missing"):
                Bundle.open(bundle).ensemble()
            path.write_bytes(content)
        sign(bundle)
        Bundle.open(bundle).ensemble()

    def test_damaged_files_of_a_run(self, mixed_run, tmp_path):
        runs = Path(shutil.copytree(mixed_run.settings.runs, tmp_path / "runs"))
        run = Run(mixed_run.settings.model_copy(update={"runs": runs}), mixed_run.corpus)
        run.open_ensemble()
        for spec in run.members[2:]:
            [path] = spec.directory.glob("*.safetensors")
            content = path.read_bytes()
            for damaged, message in [
                (b"", f"no {spec.title} of these settings; run"),
                (b"\xff" * len(content), "remove"),
            ]:
                path.write_bytes(damaged)
                with pytest.raises(SettingsError, match=message):
                    run.open_ensemble()
            path.write_bytes(content)
        run.layout.features.write_bytes(b"")
        with pytest.raises(SettingsError, match=r"features\.safetensors: no features of these settings; run"):
            run.open_ensemble()

    @pytest.mark.parametrize("kind", ["bilstm", "xml_cnn"])
    def test_other_networks(self, tmp_path, kind):
        run = train_run(tmp_path, trees=1, epochs=1, kind=kind)
        export_bundle(run, tmp_path / "bundle")
        tokens = run.corpus.split("test").tokens
        found = Bundle.open(tmp_path / "bundle").ensemble().rank(tokens)
        assert np.array_equal(found.scores, run.open_ensemble().rank(tokens).scores)

    def test_a_moved_run(self, tiny_run, tmp_path):
        moved = Path(shutil.copytree(tiny_run.settings.run_directory, tmp_path / "elsewhere"))
        export_bundle(Run.open(moved), tmp_path / "bundle")
        assert len(Bundle.open(tmp_path / "bundle").manifest.level_sizes) == 2

    def test_takes_the_place_of_a_bundle_only(self, tiny_run, copy, tmp_path):
        (copy / "LICENSE").write_text("CC BY 4.0")
        (copy / "members" / "left over").write_text("x")
        export_bundle(tiny_run, copy)
        Bundle.open(copy)
        assert (copy / "LICENSE").read_text() == "CC BY 4.0" and not (copy / "members" / "left over").exists()
        other = tmp_path / "documents"
        other.mkdir()
        (other / "letter.txt").write_text("dear")
        with pytest.raises(SettingsError, match="exists and is no bundle"):
            export_bundle(tiny_run, other)
        assert (other / "letter.txt").read_text() == "dear"

    def test_of_an_unfinished_run(self, tiny_run, tmp_path):
        moved = Path(shutil.copytree(tiny_run.settings.run_directory, tmp_path / "run"))
        shutil.rmtree(moved / "tree-1" / "network_tree" / "level-2")
        with pytest.raises(SettingsError, match="tree-1/network_tree: no network tree 2 of these settings"):
            export_bundle(Run.open(moved), tmp_path / "bundle")
        assert not [path for path in tmp_path.iterdir() if path != moved]
        with pytest.raises(SettingsError, match="not a run"):
            Run.open(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_tables_lie_in_the_file_itself(tiny_run, tmp_path, weights):
    """Mapped, not copied: so processes that open the same bundle share its memory."""
    export_bundle(tiny_run, tmp_path / "bundle", weights)
    bundle = Bundle.open(tmp_path / "bundle")
    member = bundle.member(bundle.manifest.members[0], precision="bfloat16" if weights == "bfloat16" else "float32")
    for number, network in enumerate(member.networks, start=1):
        file = str(tmp_path / "bundle" / "members" / "network_tree-0" / f"level-{number}" / "model.safetensors")
        lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(file)]
        ranges = [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]
        for name in (TABLE, WORDS):
            table = network.get_parameter(name)
            for part in (table.packed, table.scales) if weights == "int8" else (table,):
                assert any(start <= part.data_ptr() < end for start, end in ranges), name


def test_records_are_read_as_the_training_texts_were(tiny_run, tmp_path):
    from axml_ray.cli.predict import READING, reading_settings

    def read(bundle: Bundle, **given: str) -> dict[str, str | None]:
        flags = dict.fromkeys((*READING, "source")) | given
        return reading_settings(Namespace(**flags), bundle).model_dump(include={*READING, "source"})

    plain = {"text_field": "text", "title_field": None, "id_field": "id", "csv_delimiter": None}
    named = {"text_field": "body", "title_field": "title", "id_field": "number", "csv_delimiter": "\t"}
    for fields in (plain, named):
        corpus = tiny_run.settings.corpus.model_copy(update=fields | {"source": "csv"})
        settings = tiny_run.settings.model_copy(update={"corpus": corpus})
        export_bundle(Run(settings, tiny_run.corpus), tmp_path / "bundle")
        bundle = Bundle.open(tmp_path / "bundle")
        assert bundle.settings.source == "csv"  # of the training texts; that of others is known by their names
        assert read(bundle) == fields | {"source": "auto"}
        assert read(bundle, text_field="abstract", source="csv") == fields | {"text_field": "abstract", "source": "csv"}
        assert not read(bundle, title_field="")["title_field"]
        assert read(bundle, csv_delimiter="tab")["csv_delimiter"] == "\t"
        with pytest.raises(SettingsError, match=r"^--csv-delimiter: .*given: 'ab'"):
            read(bundle, csv_delimiter="ab")
