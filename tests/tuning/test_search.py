"""Trials that are drawn again as they were, and a search that finds what is good."""

from pathlib import Path

import pytest

from axml_ray.core.errors import SettingsError
from axml_ray.settings.configuration import load
from axml_ray.tuning.search import Method, Search
from axml_ray.tuning.space import Space

LINE = "def space(draw):\n    draw.suggest_float('training.learning_rate', 0.0, 1.0)\n"
FEW = "def space(draw):\n    draw.suggest_int('tree.height', 0, 2)\n    draw.fix('network.evidence', True)\n"
TRIALS = 12


@pytest.fixture
def space(tmp_path: Path) -> Space:
    return of_text(tmp_path, LINE)


def of_text(folder: Path, text: str) -> Space:
    path = folder / "line.py"
    path.write_text(text)
    return Space.load([str(path)])


def score(parameters: dict[str, float]) -> float:
    return -abs(parameters["training.learning_rate"] - 0.7)


def run(search: Search, trials: int, drawn: list[dict[str, float]]) -> None:
    """Draw up to `trials`, each told before the next; every third is stopped, one fails."""
    for number in range(len(drawn), trials):
        parameters = search.draw()
        assert parameters is not None
        drawn.append(parameters)
        tell(search, number, parameters)


def tell(search: Search, number: int, parameters: dict[str, float]) -> None:
    if number == 4:
        search.tell_failed(number)
    elif number % 3 == 2:
        search.tell_stopped(number, 100, score(parameters) if number % 2 else None)
    else:
        search.tell(number, [score(parameters)])


@pytest.mark.parametrize("method", ["random", "tpe"])
@pytest.mark.parametrize("kept", [0, 5, 11])
def test_a_search_that_goes_on_draws_the_same(space: Space, method: Method, kept: int) -> None:
    whole: list[dict[str, float]] = []
    run(Search(space, method, seed=3), TRIALS, whole)
    again = Search(space, method, seed=3)
    for number, parameters in enumerate(whole[:kept]):
        again.replay(parameters)
        tell(again, number, parameters)
    drawn = whole[:kept]
    run(again, TRIALS, drawn)
    assert drawn == whole
    other: list[dict[str, float]] = []
    run(Search(space, method, seed=4), TRIALS, other)
    assert not any(one in whole for one in other)


def test_random_trials_need_no_results(space: Space) -> None:
    told: list[dict[str, float]] = []
    run(Search(space, "random", seed=0), TRIALS, told)
    silent = Search(space, "random", seed=0)
    assert [silent.draw() for _ in range(TRIALS)] == told


def test_tpe_comes_nearer_than_chance(space: Space) -> None:
    best = {}
    for method in ("random", "tpe"):
        drawn: list[dict[str, float]] = []
        run(Search(space, method, seed=1), 40, drawn)  # type: ignore[arg-type]
        best[method] = sum(score(parameters) for parameters in drawn[20:])
    assert best["tpe"] > best["random"] + 1


def test_two_objectives(space: Space) -> None:
    search = Search(space, "tpe", seed=2, directions=("maximize", "minimize"))
    for number in range(TRIALS):
        rate = (search.draw() or {})["training.learning_rate"]
        search.tell(number, [rate, rate**2])
    assert search.draw() is not None


def test_nothing_is_drawn_twice(tmp_path: Path) -> None:
    for method in ("random", "tpe"):
        search = Search(of_text(tmp_path, FEW), method, seed=0)  # type: ignore[arg-type]
        drawn = [search.draw() for _ in range(4)]
        assert sorted(one["tree.height"] for one in drawn[:3] if one) == [0, 1, 2]
        assert drawn[3] is None
        assert all(one["network.evidence"] is True for one in drawn[:3] if one)


def test_a_trial_that_the_space_no_longer_draws_is_an_error(tmp_path: Path) -> None:
    search = Search(of_text(tmp_path, FEW), "random", seed=0)
    with pytest.raises(SettingsError, match="no longer draws trial 0"):
        search.replay({"tree.height": 1, "tree.beam": 4, "network.evidence": True})


class TestTheUsersOwnSettings:
    @pytest.mark.parametrize("method", ["random", "tpe"])
    def test_are_the_first_trial(self, space: Space, method: Method) -> None:
        base = load(training={"learning_rate": 0.25}, corpus={"source": "installed_packages"})
        search, without = Search(space, method, seed=3, base=base), Search(space, method, seed=3)
        without.draw()
        assert search.draw() == {"training.learning_rate": 0.25}
        assert search.draw() == without.draw()

    @pytest.mark.parametrize("text", [
        "draw.suggest_float('training.learning_rate', 0.5, 1.0)",
        "draw.suggest_categorical('training.batch_size', [1, 2])",
        "draw.suggest_int('training.epochs.0', 2, 9)",  # of two levels, so it would be another experiment
        "draw.fix('network.evidence', True)",
    ])  # fmt: skip
    def test_are_left_out_where_the_space_has_no_place_for_them(self, tmp_path: Path, text: str) -> None:
        space = of_text(tmp_path, f"def space(draw):\n    draw.suggest_int('tree.height', 0, 2)\n    {text}\n")
        base = load(training={"learning_rate": 0.25, "epochs": [4, 3]}, corpus={"source": "installed_packages"})
        assert space.of_settings(base) is None
        assert Search(space, "random", seed=0, base=base).draw() == Search(space, "random", seed=0).draw()

    def test_hold_what_is_not_written_as_it_is_by_default(self, tmp_path: Path) -> None:
        text = (
            "def space(draw):\n    draw.suggest_categorical('training.include_true_parents', [True, False])\n"
            "    draw.suggest_categorical('network.max_tokens', [None, 200])\n"
        )
        base = load(corpus={"source": "installed_packages"})
        own = {"training.include_true_parents": True, "network.max_tokens": None}
        assert of_text(tmp_path, text).of_settings(base) == own

    def test_have_places_in_lists(self, tmp_path: Path) -> None:
        text = (
            "def space(draw):\n    for place in (0, 1):\n        draw.suggest_int(f'training.epochs.{place}', 2, 9)\n"
        )
        corpus = {"source": "installed_packages", "expected": {"labels": 7}}  # isn't written with the settings
        base = load(training={"epochs": [4, 3], "average_after": [1, 1]}, corpus=corpus)
        assert of_text(tmp_path, text).of_settings(base) == {"training.epochs.0": 4, "training.epochs.1": 3}
