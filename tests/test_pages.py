"""Examples in README and pages run, their shapes are right, and their commands and keys exist."""

import argparse
import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import marl_framework
from marl_framework.config.loading import load_config
from marl_framework.config.messages import KEYS, SECTIONS
from marl_framework.main import make_parser
from tests.pages import PAGES, ROOT, Block, all_blocks, blocks, promised_shapes, run_script, shapes
from tests.running import results, run_main
from tests.soaking import in_soak
from tests.test_architecture import FLOORS

SCRIPTS = [block for block in all_blocks("python") if block.module is None]
SLOW = [block for block in SCRIPTS if "benchmarl" in block.code]
PARTS = [block for block in all_blocks("python") if block.module is not None]
COMMANDS = [(block, command) for block in all_blocks("sh") for command in block.commands()]
OURS = [(b, c) for b, c in COMMANDS if "marl_framework." in c or c.startswith("./train_with")]
EXTENDING = ROOT / "docs" / "extending.md"

pytestmark = pytest.mark.filterwarnings("ignore:Creating .*WeightUpdater which:DeprecationWarning")


def _label(value: object) -> str:
    return value[:60] if isinstance(value, str) else str(value)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    "block",
    [*in_soak(*SLOW), *(block for block in SCRIPTS if block not in SLOW)],
    ids=_label,
)
def test_a_script_runs_and_prints_the_shapes_of_its_comments(
    block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test may have imported this command; its module then hides the function `fly`.
    monkeypatch.delattr("marl_framework.fly", raising=False)
    for package in ("benchmarl", "torchrl", "vmas", "pettingzoo", "gymnasium"):
        if package in block.code:
            pytest.importorskip(package)
    with warnings.catch_warnings():
        if "benchmarl" in block.code:  # it uses names that TorchRL warns of
            warnings.filterwarnings("ignore", module=r"(benchmarl|torchrl|tensordict|torch)\b")
        printed = run_script(block)
    for line, promised in promised_shapes(block.code).items():
        assert printed[line] == promised, f"{block}, line {line} of the block"


@pytest.mark.parametrize("block", SCRIPTS, ids=_label)
def test_shapes_stand_only_where_a_test_compares_them(block: Block) -> None:
    comments = [shapes(found) for found in re.findall(r"  # (.*)", block.code)]
    assert [found for found in comments if found] == list(promised_shapes(block.code).values())


def test_there_is_an_example_of_each_own_part() -> None:
    found = [block.module for block in PARTS if block.page == EXTENDING]
    parts = "terrain sensor reward planner network algorithm"
    assert found == [f"my_{part}" for part in parts.split()]
    for block in PARTS:
        assert len(block.code.splitlines()) < 60


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.module)
def test_an_own_part_is_used_by_the_commands_after_it(part: Block, tmp_path: Path) -> None:
    assert part.module is not None
    sys.modules.pop(part.module, None)
    (tmp_path / f"{part.module}.py").write_text(part.code, encoding="utf-8")
    page = blocks(part.page)
    following = page[page.index(part) + 1]
    assert f"{part.module}." in following.code
    for command in following.commands():
        python, flag, module, *arguments = shlex.split(command)
        assert (python, flag) == ("python", "-m")
        assert importlib.import_module(module).main([*arguments, "--device", "cpu"]) == 0
    assert part.module in sys.modules


def test_the_algorithm_resumes_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    (part,) = (block for block in PARTS if block.module == "my_algorithm")
    (tmp_path / "my_algorithm.py").write_text(part.code, encoding="utf-8")

    def weights(name: str, *options: str) -> str:
        chosen = ("experiment.algorithm=my_algorithm.Reinforce",)
        assert run_main(tmp_path, name, *options, sets=chosen) == 0
        return results(tmp_path / "runs" / name)["weights_sha256"]

    half = weights("halved", "--set", "learning.training_steps=2")
    resumed = weights("halved", "--resume", "--allow-changed", "learning.training_steps")
    assert half != resumed == weights("whole")


def parsed(module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what a command line understands, and do nothing of it."""
    parse, found = argparse.ArgumentParser.parse_args, []

    def stop(parser: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> None:
        found.append(parse(parser, args, namespace))
        raise SystemExit

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    with pytest.raises(SystemExit):
        importlib.import_module(module).main(arguments)
    (options,) = found
    return options


@pytest.mark.parametrize(("block", "command"), OURS, ids=_label)
def test_a_command_of_ours_is_understood(block, command, monkeypatch) -> None:
    words = shlex.split(command)
    while "=" in words[0]:  # environment variables
        load_config(words.pop(0).partition("=")[2])
    if words[0] == "./train_with_backup.sh":
        assert (ROOT / words[0]).is_file()
        module, arguments = "marl_framework.main", ["--run-name", *words[1:]]
    else:
        assert words[0] in ("python", "torchrun")
        at = words.index("-m")
        module, arguments = words[at + 1], words[at + 2 :]
    if module.startswith("marl_framework.integrations."):  # the other library's own options
        assert importlib.util.find_spec(module) is not None
        return
    options = parsed(module, arguments, monkeypatch)
    if hasattr(options, "overrides"):
        load_config(getattr(options, "config", None) or "params.yaml", options.overrides)


@pytest.mark.parametrize(
    ("block", "command"), [each for each in COMMANDS if each not in OURS], ids=_label
)
def test_a_command_names_files_and_targets_that_exist(block: Block, command: str) -> None:
    words = shlex.split(command)
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word]
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    elif words[0] == "python" and words[1] == "-m":
        assert importlib.util.find_spec(words[2]) is not None
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_keys_in_the_text_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    sections = {name.partition(".")[0] for name in SECTIONS}
    named = re.findall(r"`([a-z_]+)\.([\w.]+)(?:[:=][^`]*)?`", text)
    keys = {f"{first}.{rest}" for first, rest in named if first in sections}
    keys = {key for key in keys if not key.endswith((".yaml", ".md", ".py", ".json"))}
    assert {key for key in keys if key not in KEYS and key not in SECTIONS} == set()


SLURM = [block for block in all_blocks("bash") if "#SBATCH" in block.code]


@pytest.mark.parametrize("script", SLURM, ids=str)
def test_a_script_saves_and_goes_on(script: Block) -> None:
    subprocess.run(["bash", "-n", "-c", script.code], check=True)
    (command,) = (line for line in script.commands() if line.startswith("srun "))
    words = shlex.split(command)
    options = make_parser().parse_args(words[words.index("marl_framework.main") + 1 :])
    assert options.resume
    assert f"runs/{options.run_name}/status.json" in script.code
    assert "--requeue" in script.code
    warning = re.search(r"--signal=(\w+)@\d+", script.code)
    assert warning is not None
    assert warning[1] == "USR1"
    if "torchrun" in words:
        assert "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1" in words


def test_there_is_a_script_for_one_host_and_one_for_several() -> None:
    assert ["torchrun" in script.code for script in SLURM] == [False, True]


REFERENCE = ROOT / "docs" / "reference"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    page = (site / "reference" / "missions" / "index.html").read_text(encoding="utf-8")
    assert 'id="marl_framework.mission.environment.MissionEnvironment.step"' in page
    assert "Move all UAVs" in page  # its docstring


def test_the_reference_has_every_public_name_once() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md")}
    index = pages.pop("index")
    shown = [
        (stem, name.rpartition(".")[2])
        for stem, text in pages.items()
        for name in re.findall(r"^::: marl_framework\.([\w.]+)$", text, re.MULTILINE)
    ]
    assert sorted([*(name for _, name in shown), "__version__"]) == sorted(marl_framework.__all__)
    for stem, name in shown:
        (row,) = [line for line in index.splitlines() if f"]({stem}.md)" in line]
        assert f"`{name}`" in row


def test_the_architecture_page_names_the_folders_and_files_of_the_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "marl_framework"
    folders = re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE)
    assert sorted(folders) == sorted(path.parent.name for path in package.glob("*/__init__.py"))
    assert [name for name in FLOORS if name in folders] == folders
    named = set(re.findall(r"`([\w/.]+(?:/|\.py))`", page)) - {"marl_framework/"}
    assert "algorithms/rollout.py" in named
    assert {name for name in named if not (package / name).exists()} == set()
    drawing = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    drawn = re.findall(r'font-weight="bold">(\w+)</text>', drawing)
    undrawn = {"kernels", "integrations", "prediction", "distillation", "exporting", "deployment"}
    undrawn |= {"flying"}
    assert set(folders) - set(drawn) == undrawn
    assert set(drawn) <= set(folders)
