"""`mini presets`: the list, one preset, and the reference of keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mini_fsod import cli  # noqa: F401 - its own `presets` is registered first
from mini_fsod.commands import presets  # noqa: F401 - registers the command
from mini_fsod.config.load import KEYS, resolve
from mini_fsod.config.presets import PRESETS
from mini_fsod.config.reference import markdown_reference


def test_presets_lists_each_with_one_line(mini) -> None:
    code, out, _ = mini("presets")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(PRESETS)
    assert all(PRESETS[line.split()[0]].about in line for line in out.splitlines())


def test_presets_json_holds_every_key_of_each(mini) -> None:
    result = json.loads(mini("presets", "--json")[1])
    assert list(result) == list(PRESETS)
    assert result["demo"]["config"] == resolve("demo").model_dump(mode="json")
    assert all(entry["about"] for entry in result.values())


@pytest.mark.parametrize("name", ["photos", "demo", "voc-320-plus"])
def test_presets_of_a_name_shows_every_key_as_a_config_file(
    name: str, tmp_path: Path, mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # paths in a file are relative to it
    text = mini("presets", name)[1]
    Path("whole.yaml").write_text(text)
    assert resolve("whole.yaml") == resolve(name)
    comments = {
        line.strip().partition(":")[0]: line.partition("  # ")[2] for line in text.splitlines()
    }
    assert comments["alpha"].startswith("alpha in Eq. 5")
    assert comments["start"] == "start from the backbone's weights, or from the few-shot detector"
    assert comments["clip"].startswith("largest norm of the gradient")
    result = json.loads(mini("presets", "whole.yaml", "--json")[1])
    assert result == resolve(name).model_dump(mode="json")


def test_presets_options_resolve_what_depends_on_them(mini) -> None:
    words = ("voc-320", "--shots", 5, "--split", "voc-split2", "--seed", 1)
    result = json.loads(mini("presets", *words, "--json")[1])
    assert (result["shots"]["k"], result["shots"]["seed"]) == (5, 1)
    assert result["data"]["split"] == "voc-split2"
    assert result["transfer"]["iterations"] == 20_000


def test_presets_keys_is_the_reference_in_markdown_and_json(mini) -> None:
    assert mini("presets", "--keys")[1] == markdown_reference()
    rows = json.loads(mini("presets", "--keys", "--json")[1])
    assert {row["name"] for row in rows} <= {*KEYS}
    assert rows[0]["name"] == "seed"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("vocc-320",), "did you mean `voc-320`?"),
        (("photos", "--split", "pascal"), "--split pascal: must be voc-split1"),
        (("--shots", 5), "--shots needs a preset or a file."),
        (("photos", "--keys"), "--keys explains all keys, not those of one preset."),
    ],
)
def test_presets_rejects_wrong_use(mini, words: tuple[object, ...], message: str) -> None:
    code, out, err = mini("presets", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert "What to do:" in err
