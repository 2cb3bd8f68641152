"""docs/pictures.md says what is so."""

import re
import warnings
from pathlib import Path

import pytest

import langevin as lv

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "pictures.md").read_text()
IMAGES = re.findall(r"!\[[^\]]*\]\(images/([^)]+)\)", PAGE)


def test_every_picture_is_on_the_page():
    calls = {name for name in dir(lv.Fit) if name.startswith("plot_")}
    assert calls == set(re.findall(r"^\| `fit\.(plot_\w+)", PAGE, re.MULTILINE))


@pytest.mark.parametrize("image", IMAGES)
def test_images_are_there_and_small(image):
    assert 1_000 < (DOCS / "images" / image).stat().st_size < 64_000


@pytest.mark.slow
def test_the_code_on_the_page_writes_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)  # The funnel is there to diverge.
        exec(code, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(IMAGES)
