"""The pages of the documentation are built without a warning, and load nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zensical", reason='needs zensical (pip install "mini-fsod[docs]")')
    home = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", home)
    shutil.copytree(ROOT / "docs", home / "docs")
    words = [str(Path(sys.executable).parent / "zensical"), "build", "--clean", "--strict"]
    done = subprocess.run(words, cwd=home, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return home / "site"


def entries(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    if isinstance(nav, dict):
        return [page for value in nav.values() for page in entries(value)]
    assert isinstance(nav, list)
    return [page for value in nav for page in entries(value)]


def test_site_has_every_page_of_the_table_of_contents(site: Path) -> None:
    pages = entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert len(pages) == len(set(pages)) > 20
    for page in pages:
        built = site / page.removesuffix("index.md").removesuffix(".md") / "index.html"
        assert built.is_file(), page


def test_table_of_contents_has_every_page_but_those_of_the_lab() -> None:
    listed = entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert {page for page in pages if not page.startswith(("lab/", "results/"))} == {*listed}


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\bsrc=[\"']?(https?:[^\"'> ]+)", text)
        loaded += re.findall(
            r"<link[^>]*rel=[\"']?stylesheet[^>]*href=[\"']?(https?:[^\"'> ]+)", text
        )
        assert loaded == [], page
