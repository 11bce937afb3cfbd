"""What a space draws, and that it can't draw what makes no sense."""

import pickle
from pathlib import Path

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.core.errors import SettingsError
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load
from axml_ray.tuning.space import Space, apply_parameters, check_space

ROOT = Path(__file__).parents[2]
TREES = ("tune_spaces.tree", "tune_spaces.tree:shape", "tune_spaces.tree:or_flat")
NETWORKS = tuple(f"tune_spaces.attention{function}" for function in ("", ":training", ":rates"))
SHIPPED = TREES + NETWORKS


@pytest.fixture(scope="module")
def base() -> Experiment:
    return load(ROOT / "configs" / "quickstart.yaml")


def user_space(folder: Path, body: str) -> Space:
    path = folder / "mine.py"
    path.write_text(f"def space(draw):\n    {body}\n")
    return Space.load([str(path)])


class TestShipped:
    @given(names=st.tuples(st.sampled_from(TREES), st.sampled_from(NETWORKS)), seed=st.integers(0, 2**31))
    def test_every_draw_is_an_experiment_that_reads_what_was_drawn(self, base: Experiment, names, seed) -> None:
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
        drawn = Space.load(names).draw(study.ask())
        found = apply_parameters(base, drawn)
        flat = drawn.get("tree.height") == 0
        assert not (flat and any(path.startswith("tree.") for path in drawn.keys() - {"tree.height"}))
        if "network.kind" in drawn and found.network.kind != "attention":
            assert not found.network.evidence  # the config's is true
            assert "network.fully_connected.0" not in drawn
        if "training.epochs.0" in drawn:
            pairs = zip(found.training.epochs, found.training.average_after, strict=True)
            assert all(average < epochs for epochs, average in pairs)
        assert found.corpus.model_dump() == base.corpus.model_dump()  # without what is expected of it

    def test_all_that_the_spaces_promise_is_drawn(self, base: Experiment) -> None:
        found: set[str] = set()
        for name in SHIPPED:
            study = optuna.create_study(sampler=optuna.samplers.RandomSampler(1))
            for _ in range(30):
                found |= Space.load([name]).draw(study.ask()).keys()
        assert found >= {
            *(f"tree.{name}" for name in ("height", "cluster_size", "beam")),
            *(f"network.{name}" for name in ("kind", "hidden", "fully_connected.0", "embedding_dropout")),
            *(f"network.{name}" for name in ("encoder_dropout", "evidence", "label_vector_init")),
            *(f"training.{name}" for name in ("learning_rate", "batch_size", "epochs.1", "average_after.0")),
            "ensemble.trees",
        }


class TestSettings:
    @pytest.mark.parametrize("address", ["databricks", "https://me:secret@mlflow.example.org", "/mnt/mlruns"])
    def test_an_address_of_the_environment_stays(self, base: Experiment, address: str) -> None:
        tracking = base.tracking.model_copy(update={"tracker": "mlflow", "uri": address})
        found = apply_parameters(base.model_copy(update={"tracking": tracking}), {"network.hidden": 32})
        assert found.tracking == tracking and found.network.hidden == 32

    def test_lists_are_replaced_whole(self, base: Experiment) -> None:
        assert len(base.training.epochs) == 2
        found = apply_parameters(base, {"training.epochs.0": 7, "network.hidden": 32})
        assert found.training.epochs == (7,) and found.network.hidden == 32
        assert found.training.learning_rate == base.training.learning_rate

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"tree.hieght": 1}, r"tree\.hieght: unknown setting; did you mean 'height'"),
            ({"corpus.max_tokens": 1}, r"corpus\.max_tokens: not a setting that a sweep can draw"),
            ({"training.documents": 9}, r"training\.documents: not a setting that a sweep can draw"),
            ({"training.epochs.1": 2}, r"training\.epochs: places \[1\] were drawn; draw them from 0 on"),
            ({"tree.cluster_size": 12}, r"wrong together \(tree\.cluster_size=12\).*take 8 or 16"),
        ],
    )
    def test_one_clear_error(self, base: Experiment, parameters, message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            apply_parameters(base, parameters)


class TestTheUsersOwnSettings:
    @pytest.mark.parametrize("text", [
        "draw.suggest_float('training.learning_rate', 0.5, 1.0)",
        "draw.suggest_categorical('training.batch_size', [1, 2])",
        "draw.suggest_int('training.epochs.0', 2, 9)",  # of two levels, so it would be another experiment
        "draw.fix('network.evidence', True)",
        "draw.suggest_int('tree.beam', 8, {7: 64}[draw.suggest_int('tree.cluster_size', 7, 7)])",
    ])  # fmt: skip
    def test_are_left_out_where_the_space_has_no_place_for_them(self, tmp_path: Path, text: str) -> None:
        own = load(training={"learning_rate": 0.25, "epochs": [4, 3]}, corpus={"source": "installed_packages"})
        assert user_space(tmp_path, f"draw.suggest_int('tree.height', 0, 2)\n    {text}").of_settings(own) is None

    def test_hold_what_is_not_written_as_it_is_by_default(self, tmp_path: Path) -> None:
        text = (
            "draw.suggest_categorical('training.include_true_parents', [True, False])\n"
            "    draw.suggest_categorical('network.max_tokens', [None, 200])"
        )
        own = load(corpus={"source": "installed_packages"})
        expected = {"training.include_true_parents": True, "network.max_tokens": None}
        assert user_space(tmp_path, text).of_settings(own) == expected

    def test_have_places_in_lists(self, tmp_path: Path) -> None:
        corpus = {"source": "installed_packages", "expected": {"labels": 7}}  # isn't written with the settings
        own = load(training={"epochs": [4, 3], "average_after": [1, 1]}, corpus=corpus)
        space = user_space(tmp_path, "for place in (0, 1): draw.suggest_int(f'training.epochs.{place}', 2, 9)")
        assert space.of_settings(own) == {"training.epochs.0": 4, "training.epochs.1": 3}


class TestLoading:
    def test_a_space_can_be_pickled(self, tmp_path: Path) -> None:
        space = user_space(tmp_path, "draw.suggest_int('tree.height', 2, 2)")
        again = pickle.loads(pickle.dumps(space))
        assert again.fingerprint == space.fingerprint
        assert again(optuna.create_study().ask()) == {"number": 0, "parameters": {"tree.height": 2}}

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("nowhere.to_be_found", "No module named 'nowhere'.*a module such as tune_spaces.tree or a .py file"),
            ("missing.py", "there is no file .*missing.py"),
            ("tune_spaces.tree:width", r"has no function width\(draw\)"),
        ],
    )
    def test_what_is_missing_is_named(self, name: str, message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            Space.load([name])

    def test_what_a_users_file_raises_is_one_error(self, base: Experiment, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="at least one"):
            Space.load([])
        with pytest.raises(SettingsError, match="ZeroDivisionError"):
            check_space(user_space(tmp_path, "draw.suggest_int('tree.height', 0, 1 // 0)"), base, 0)
        with pytest.raises(SettingsError, match="it draws nothing"):
            check_space(user_space(tmp_path, "pass"), base, 0)
        with pytest.raises(SettingsError, match=r"\[8\] for network.fully_connected.*network.fully_connected\.0 on"):
            of_hidden = "[draw.suggest_int('network.hidden', 8, 8)]"
            check_space(user_space(tmp_path, f"draw.fix('network.fully_connected', {of_hidden})"), base, 0)
        with pytest.raises(SettingsError, match="8 or 16"):
            check_space(user_space(tmp_path, "draw.suggest_categorical('tree.cluster_size', [2, 4, 8, 12])"), base, 0)

    def test_its_mark_is_of_its_text(self, tmp_path: Path) -> None:
        first = user_space(tmp_path, "draw.suggest_int('tree.height', 0, 1)")
        assert user_space(tmp_path, "draw.suggest_int('tree.height', 0, 1)").fingerprint == first.fingerprint
        assert user_space(tmp_path, "draw.suggest_int('tree.height', 0, 2)").fingerprint != first.fingerprint
        (tmp_path / "most").write_text("1")
        body = f"draw.suggest_int('tree.height', 0, int(open({str(tmp_path / 'most')!r}).read()))"
        first = user_space(tmp_path, body)
        assert user_space(tmp_path, body).fingerprint == first.fingerprint
        (tmp_path / "most").write_text("2")
        assert user_space(tmp_path, body).fingerprint != first.fingerprint
        assert first.short_name == "mine"
        assert Space.load(["tune_spaces.tree:shape", "tune_spaces.attention"]).short_name == "tree-shape-attention"
