"""Run: pytest tests/inference/test_bundle.py

A bundle opened, and damaged in every way that a copy or a stranger may damage it.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from bundle_files import MODEL, TREE, change, sign
from safetensors.torch import load_file, save_file

from axml_ray import Tagger, __version__
from axml_ray.core.files import read_json, write_json
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.bundle.manifest import (
    CALIBRATION,
    CARD,
    LABELS,
    MANIFEST,
    SETTINGS,
    TOKENIZER,
    BundleError,
    entries,
)
from axml_ray.network.fast.frozen import WORDS
from axml_ray.network.level_network import TABLE


class TestOpen:
    def test_every_flipped_byte_is_found(self, copy):
        names = [name for name, _ in entries(copy) if name not in (MANIFEST, CARD)]
        assert len(names) == 4 + 2 * 3
        for name in names:
            content = bytearray((copy / name).read_bytes())
            content[len(content) // 2] ^= 1
            (copy / name).write_bytes(content)
            with pytest.raises(BundleError, match=f"{name}: its checksum"):
                Bundle.open(copy)
            with pytest.raises(BundleError, match=f"{name}: "):
                Tagger.load(copy)
            content[len(content) // 2] ^= 1
            (copy / name).write_bytes(content)
        Bundle.open(copy)

    @pytest.mark.fault("truncated file of a bundle", "files")
    @pytest.mark.parametrize("name", [SETTINGS, TOKENIZER, LABELS, CALIBRATION, TREE, MODEL])
    def test_missing_and_cut_short(self, copy, name):
        whole = (copy / name).read_bytes()
        (copy / name).write_bytes(whole[:-1])
        with pytest.raises(BundleError, match=f"{name}: [0-9,]+ bytes, not"):
            Bundle.open(copy, verify=False)
        (copy / name).unlink()
        with pytest.raises(BundleError, match=f"{name}: missing; copy or export"):
            Bundle.open(copy, verify=False)

    def test_the_card_may_be_edited_or_removed(self, copy):
        (copy / CARD).write_text("# Mine\n")
        assert CARD in Bundle.open(copy).manifest.files
        (copy / CARD).unlink()
        Bundle.open(copy)
        change(copy / MANIFEST, lambda content: content["files"].pop(CARD))  # a bundle of an earlier version
        Bundle.open(copy)

    def test_other_files_may_be_there(self, copy):
        (copy / "LICENSE").write_text("CC BY 4.0")
        (copy / ".gitattributes").write_text("*.safetensors filter=lfs\n")
        (copy / ".cache" / "huggingface").mkdir(parents=True)
        (copy / ".cache" / "huggingface" / ".gitignore").write_text("*")
        Bundle.open(copy)

    def test_no_bundle(self, tmp_path):
        with pytest.raises(BundleError, match="no bundle"):
            Bundle.open(tmp_path / "nowhere")

    def test_a_file_too_many(self, copy):
        (copy / "trees" / "run_me.py").write_text("raise SystemExit")
        with pytest.raises(BundleError, match=r"run_me.py: not in manifest.json; remove it"):
            Bundle.open(copy)
        sign(copy)
        with pytest.raises(BundleError, match=r"'trees/run_me.py' is no file of a bundle"):
            Bundle.open(copy)

    @pytest.mark.parametrize("version", [0, 1, 3, "2", None])
    def test_another_version(self, copy, version):
        change(copy / MANIFEST, lambda content: content.update(version=version, axml_ray="9.8"))
        with pytest.raises(BundleError, match=r"a bundle of version .*written by axml-ray 9\.8; this program reads"):
            Bundle.open(copy)

    @pytest.mark.parametrize(
        "name",
        [
            "../secret",
            "/etc/hostname",
            "trees/../../secret",
            "members/network_tree-0/../../../secret",
            "trees\\x",
            "a\0b",
        ],
    )
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
            (lambda m: m.update(members=[]), "members: "),
            (lambda m: m["members"][0].update(weight=0), r"members\.0\.weight: "),
            (lambda m: m["members"][0].update(name="../secret"), r"members\.0\.name: "),
            (lambda m: m["members"][0].update(kind="os:system"), "member 'network_tree-0' is of the unknown kind"),
            (lambda m: m["members"][0].update(tree=2), "member 'network_tree-0' has no label tree 2"),
            (lambda m: m["members"].append(m["members"][0]), "two members have the same name"),
            (lambda m: m["members"].pop(), "is no file of a bundle"),
            (lambda m: m.update(combiner="os:system"), "unknown combiner 'os:system'"),
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
        place = str(Path(name).parent) if name == MODEL else name
        with pytest.raises(BundleError, match=f"{place}: cannot be used"):
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
            with pytest.raises(BundleError, match=f"{Path(MODEL).parent}: cannot be used .*{message}"):
                Bundle.open(copy).ensemble()
        save_file({name: value for name, value in state.items() if name != "head.output.bias"}, copy / MODEL)
        sign(copy)
        with pytest.raises(BundleError, match=r"head\.output\.bias"):
            Bundle.open(copy).ensemble()

    def test_signed_labels_of_another_tree(self, copy):
        change(copy / MANIFEST, lambda content: content.update(labels=13))
        with pytest.raises(BundleError, match=LABELS):
            _ = Bundle.open(copy).labels
        with pytest.raises(BundleError, match=r"trees/0\.safetensors: cannot be used"):
            Bundle.open(copy).label_tree(0)

    @pytest.mark.parametrize("change_config", [{"beam": "wide"}, {"surprise": 1}, {"network": None}])
    def test_signed_config_of_something_else(self, copy, change_config):
        change(copy / MANIFEST, lambda content: content["members"][0]["config"].update(change_config))
        with pytest.raises(BundleError, match="members/network_tree-0: cannot be used"):
            Bundle.open(copy).ensemble()


def test_the_package_says_its_version():
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__


def test_a_manifest_is_plain_json(bundle_directory):
    assert json.loads((bundle_directory / MANIFEST).read_text())["version"] == 2


def test_a_bundle_from_before_it_remembered_the_format_is_read(bundle_directory, tmp_path):
    shutil.copytree(bundle_directory, tmp_path / "bundle")
    path, manifest = tmp_path / "bundle" / SETTINGS, tmp_path / "bundle" / MANIFEST
    new = ("source", "csv_delimiter", "label")
    lines = [line for line in path.read_text().splitlines(keepends=True) if not line.startswith(new)]
    path.write_text("".join(lines))
    files = {name: entry.model_dump() for name, entry in entries(path.parent) if name != MANIFEST}
    write_json(manifest, read_json(manifest) | {"files": files})
    settings = Bundle.open(tmp_path / "bundle").settings
    assert (settings.source, settings.csv_delimiter) == ("auto", None)
