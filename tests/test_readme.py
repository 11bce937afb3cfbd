"""Commands, settings and imports in README and on all pages are accepted, and the labels that they name exist."""

import importlib.util
import itertools
import re
import runpy
import shlex
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from axml_ray.cli.dispatch import COMMANDS as COMMAND_MODULES
from axml_ray.core.run_manifest import write_run_manifest
from axml_ray.corpus.readers.installed_packages import InstalledPackage
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
]
STARTS = ("axml-ray ", "python ", "make ", "ray job submit ")


def commands_of(page: Path) -> Iterator[str]:
    """Commands in fenced blocks and in code between backquotes, each on one line and without its comment."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    inline = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    for words in (*lines, *(" ".join(code.split()) for code in inline)):
        command = re.sub(r"\s#\s.*", "", words).strip()
        if command.startswith(STARTS) and "…" not in command:
            yield command


COMMANDS = sorted({command for page in PAGES for command in commands_of(page)})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where relative paths are taken from: a place with the run that the pages speak of."""
    place = tmp_path_factory.mktemp("home")
    for run in ("quickstart", "other"):
        (place / "runs" / run).mkdir(parents=True)
        shutil.copyfile(ROOT / "configs" / "quickstart.yaml", place / "runs" / run / "settings.yaml")
    for run in ("mine", "mine-continued"):
        (place / "runs" / run).mkdir()
        shutil.copyfile(ROOT / "configs" / "mine.yaml", place / "runs" / run / "settings.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AXML_RAY_HOME", str(place))
        for run in (place / "runs").iterdir():
            write_run_manifest(run)
        patch.chdir(ROOT)
        yield place


def test_the_pages_have_commands() -> None:
    assert len(COMMANDS) > 25
    assert len([command for command in COMMANDS if command.startswith("axml-ray ")]) > 10


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_accepted(home: Path, command: str) -> None:
    words = shlex.split(command)
    if words[:3] == ["ray", "job", "submit"]:
        words = words[words.index("--") + 1 :]
    if words[0] == "make":
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert {word for word in words[1:] if "=" not in word} <= set(targets)
        return
    if words[0] == "axml-ray":
        assert is_accepted(words[1], [filled(word) for word in words[2:]])
        return
    assert words[0] == "python"
    if words[1:3] == ["-m", "pip"]:  # the wheel is built and installed in `commands/test_wheel.py`
        return
    if words[1] == "-m":
        assert (ROOT / words[2]).is_dir() or importlib.util.find_spec(words[2])
        sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / words[2]).glob("*.py"))
        for key in (word.partition("=")[0] for word in words[3:] if re.fullmatch(r"\w+=.*", word)):
            assert re.search(rf"^    {key}: ", sources, re.MULTILINE), key
        return
    script, arguments = ROOT / words[1], [filled(word) for word in words[2:]]
    assert script.is_file()
    if script.parent.name == "jobs":
        runpy.run_path(str(script))["main"].parse(arguments)
        return
    sources = "".join(path.read_text(encoding="utf-8") for path in script.parent.glob("*.py"))
    for flag in (word.partition("=")[0] for word in arguments if word.startswith("--")):
        assert f'"{flag}"' in sources or is_setting(flag), flag
    for config in (word for word in arguments if word.startswith("configs/")):
        assert (ROOT / config).is_file()


def is_accepted(name: str, arguments: list[str]) -> bool:
    """Whether a command of `axml-ray` accepts its arguments; a name alone, in a sentence, must be that of a command."""
    if not arguments:
        return name in (*COMMAND_MODULES, "--help", "--version", "COMMAND")
    parse = import_module(COMMAND_MODULES[name][0]).main.parse
    try:
        parse(arguments)
    except SystemExit as ended:
        return ended.code == 0 and "--help" in arguments
    return True


def blocks_of(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_in_blocks_of_yaml_are_accepted(page: Path) -> None:
    for block in blocks_of(page, "yaml"):
        content = yaml.safe_load(block)
        assert load(None, **{"corpus": {"source": "installed_packages"}} | content)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_python_imports_is_there(page: Path) -> None:
    """In blocks of Python, which also compile, and in `from … import …` between backquotes."""
    blocks = blocks_of(page, "python")
    for block in blocks:
        compile(block, page.name, "exec")
    spans = re.findall(r"`(from axml_ray[\w.]* import \w+)`", page.read_text(encoding="utf-8"))
    for module, name in re.findall(r"^from (axml_ray[\w.]*) import (\w+)", "\n".join([*blocks, *spans]), re.MULTILINE):
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin, module
        assert re.search(rf"\b{name}\b", Path(spec.origin).read_text(encoding="utf-8")), (module, name)


def filled(word: str) -> str:
    """A word of a command with what stands for the reader's own: a sweep's best settings, a config's name."""
    if re.fullmatch(r"runs/.*\.yaml|configs/<.*>\.yaml", word):
        return "configs/quickstart.yaml"
    if "<" in word or re.search(r"\b(NAME|FILE)\b", word):
        return "quickstart"
    return {"N": "2", "TFLOPS": "50", "GIB": "8"}.get(word, word)


def is_setting(flag: str) -> bool:
    """Whether a flag is that of a setting."""
    model = Experiment
    for part in flag.removeprefix("--").split("."):
        field = getattr(model, "model_fields", {}).get(part)
        if field is None:
            return False
        model = field.annotation
    return True


def test_labels_in_commands_are_frequent_in_the_demo() -> None:
    named = [word for command in COMMANDS for flag, word in _pairs(command) if flag == "--label" and word != "NAME"]
    assert named
    for label in named:
        place = importlib.util.find_spec(label)
        assert place is not None and place.submodule_search_locations
        texts = list(InstalledPackage(Path(place.submodule_search_locations[0])).read())
        assert len(texts) >= 30  # a quarter of all texts are drawn


def _pairs(command: str) -> list[tuple[str, str]]:
    words = shlex.split(command)
    return list(itertools.pairwise(words))
