"""The rooms of the house, and which may know of which."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "langevin"

# A module may import from its own room and from the rooms above it in this list.
ROOMS = [
    ("errors",),
    ("checks", "contracts", "culprit", "forks", "spelling"),
    ("run",),
    ("posterior",),
    ("keys", "ratios"),
    ("data",),
    ("models",),
    ("kernels", "variational", "conjugacy"),
    ("tuning",),
    ("geometry",),
    ("engines",),
    ("methods",),
    ("diagnostics",),
    ("pictures", "predictions"),
    ("result",),
    ("store", "discrepancy", "resampling", "labelling", "copies", "surroundings"),
    ("predicting",),
    ("criticism",),
    ("assembly", "earlier", "plots", "naming"),
    ("continuing",),
    ("runs",),
    ("inference",),
    ("calibration",),
    ("__init__",),
    ("demos",),
    ("cli",),
]
LEVEL = {name: level for level, names in enumerate(ROOMS) for name in names}
# Fit offers save, predict, pictures and others as methods; they are imported when called.
LATE_ROOMS = ("store", "discrepancy", "resampling", "labelling", "predicting", "copies", "criticism")
LATE = {(room, other) for other in LATE_ROOMS for room in ("result", "predictions")} | {("pictures", "plots")}


def room(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path):
    """The rooms that a module imports from, other than for type checking."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "langevin":
            parts = node.module.split(".")[1:]
            yield from [parts[0]] if parts else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from ["__init__" for alias in node.names if alias.name == "langevin"]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    here = room(path)
    assert here in LEVEL, f"{here} is a new room: give it a place in ROOMS"
    for other in imports(path):
        assert LEVEL[other] <= LEVEL[here] or (here, other) in LATE, f"{path.name} imports {other}"
        assert other == here or LEVEL[other] != LEVEL[here] or len(ROOMS[LEVEL[here]]) > 1


def test_nothing_stored_can_execute():
    for path in SOURCE.rglob("*.py"):
        assert "pickle" not in path.read_text(), path


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_is_light():
    heavy = "('jax', 'numpyro', 'arviz_stats', 'xarray', 'matplotlib')"
    assert run_python(f"import sys, langevin, langevin.cli; print([m for m in {heavy} if m in sys.modules])") == "[]\n"


def test_every_public_name_is_there():
    import langevin as lv

    for name in lv.__all__:
        assert getattr(lv, name) is not None
    assert dir(lv) == sorted(lv.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        lv.nonsense  # noqa: B018


def test_files_stay_readable():
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path
