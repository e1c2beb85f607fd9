import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_fsod.errors import DataError, total
from mini_fsod.eval import detections as module
from mini_fsod.eval.detections import DatasetDetections, read_detections
from mini_fsod.limits import DETECTIONS_BYTES, PROBLEMS_KEPT

GOOD = {"image_id": 12, "category_id": 7, "bbox": [1, 2.5, 3, 4], "score": 0.5}


@pytest.fixture
def coco(make_dataset):
    return make_dataset([12, 40, 7], ["bird", "cat"], category_ids=[7, 3])


@pytest.fixture
def voc(make_dataset):
    return make_dataset(["000012", "2008_000040"], ["bird", "cat"])


@pytest.fixture
def read(tmp_path):
    def read(records, dataset):
        path = tmp_path / "dets.json"
        path.write_text(json.dumps(records))
        return read_detections(path, dataset)

    return read


def problems(records, dataset, read):
    with pytest.raises(DataError) as caught:
        read(records, dataset)
    return caught.value.problems


def test_read_detections_maps_ids_and_names_to_indices(coco, read):
    found = read(
        [
            {"image_id": 7, "category_id": 3, "bbox": [0, 0, 5, 5], "score": -2},
            {"image_id": 12, "category": "bird", "bbox": [-1, 2.5, 0, 0], "score": 0.25},
            {
                "image_id": 7.0,
                "category_id": 7,
                "category": "bird",
                "bbox": [1, 2, 3, 4],
                "score": 9,
            },
        ],
        coco,
    )
    assert found.image.tolist() == [2, 0, 2]
    assert found.label.tolist() == [1, 0, 0]
    assert found.xywh.tolist() == [[0, 0, 5, 5], [-1, 2.5, 0, 0], [1, 2, 3, 4]]
    assert found.score.tolist() == [-2, 0.25, 9]
    assert (found.image.dtype, found.xywh.dtype) == (np.int64, np.float64)


def test_read_detections_takes_stems_and_ignores_other_keys(voc, read):
    found = read([GOOD | {"image_id": "2008_000040", "category_id": 2, "area": None}], voc)
    assert (found.image.tolist(), found.label.tolist()) == ([1], [1])


def test_read_detections_may_be_empty(coco, read):
    found = read([], coco)
    assert len(found) == 0
    assert found.xywh.shape == (0, 4)


def test_of_takes_any_numeric_columns():
    found = DatasetDetections.of(
        np.array([0, 1]), [1, 0], np.ones((2, 4), dtype=np.float32), [1, 0]
    )
    assert len(found) == 2
    assert (found.label.dtype, found.xywh.dtype) == (np.int64, np.float64)
    assert DatasetDetections.of([], [], [], []).xywh.shape == (0, 4)


WRONG = [
    (3, "3 is not an object"),
    ([GOOD], "a list is not an object"),
    ({"image_id": None}, "image_id is null"),
    ({"image_id": True}, "image_id is true"),
    ({"image_id": [12]}, "image_id is a list"),
    ({"image_id": 13}, "no image with the id 13"),
    ({"image_id": 12.5}, "no image with the id 12.5"),
    ({"image_id": "12"}, 'the id "12". Its ids are numbers, such as 12'),
    ({"image_id": "\ud800"}, "no image with the id"),
    ({"category_id": 1}, "no class with the category_id 1"),
    ({"category_id": True}, "no class with the category_id true"),
    ({"category_id": "7"}, 'no class with the category_id "7"'),
    ({"category_id": {}}, "no class with the category_id an object"),
    ({"category_id": None}, '"category_id" or "category" is missing'),
    ({"category": "Birds"}, 'no class "Birds". Did you mean "bird"?'),
    ({"category": 7}, "no class 7"),
    ({"category": ["bird"]}, "no class a list"),
    ({"category": "cat"}, 'category_id 7 is "bird", but category is "cat"'),
    ({"bbox": None}, "bbox is null, not a list"),
    ({"bbox": "1234"}, "not a list of four numbers"),
    ({"bbox": {"x": 1}}, "bbox is an object"),
    ({"bbox": [1, 2, 3]}, "bbox has 3 values"),
    ({"bbox": [1, 2, 3, 4, 5]}, "bbox has 5 values"),
    ({"bbox": [1, 2, "3", 4]}, 'bbox contains "3", not a finite number'),
    ({"bbox": [1, 2, None, 4]}, "bbox contains null"),
    ({"bbox": [False, 2, 3, 4]}, "bbox contains false"),
    ({"bbox": [1, [2], 3, 4]}, "bbox contains a list"),
    ({"bbox": [float("nan"), 2, 3, 4]}, "bbox contains NaN"),
    ({"bbox": [1, float("-inf"), 3, 4]}, "bbox contains -Infinity"),
    ({"bbox": [1, 2, 10**400, 4]}, "not a finite number"),
    ({"bbox": [1, 2, -0.5, 4]}, "negative size: -0.5 x 4"),
    ({"bbox": [1, 2, 3, -4]}, "negative size: 3 x -4"),
    ({"score": None}, "score is null"),
    ({"score": True}, "score is true"),
    ({"score": "0.5"}, 'score is "0.5"'),
    ({"score": float("nan")}, "score is NaN"),
    ({"score": float("inf")}, "score is Infinity"),
    ({"score": 10**400}, "not a finite number"),
    ({"score": [0.5]}, "score is a list"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_read_detections_names_wrong_records(change, message, coco, read):
    wrong = GOOD | change if isinstance(change, dict) else change
    (problem,) = problems([GOOD, GOOD, wrong, GOOD], coco, read)
    assert problem.record == "detection 2 (counted from 0)"
    assert problem.file.endswith("dets.json")
    assert message in problem.what
    str(problem).encode()  # printable on any terminal that knows UTF-8


@pytest.mark.parametrize("key", ["image_id", "bbox", "score"])
def test_read_detections_names_missing_keys(key, coco, read):
    (problem,) = problems([{k: v for k, v in GOOD.items() if k != key}], coco, read)
    assert problem.what == f'"{key}" is missing'


def test_read_detections_suggests_the_stem_for_a_number(voc, read):
    (problem,) = problems([GOOD | {"image_id": 12, "category_id": 1}], voc, read)
    assert "the id 12." in problem.what
    assert 'such as "000012"' in problem.what


def test_read_detections_suggests_a_similar_stem(voc, read):
    (problem,) = problems([GOOD | {"image_id": "2008_00040", "category_id": 1}], voc, read)
    assert 'Did you mean "2008_000040"?' in problem.what


def test_read_detections_refuses_ambiguous_stems(make_dataset, read):
    dataset = make_dataset(["a", "b", "a"], ["bird"])
    good = GOOD | {"image_id": "b", "category_id": 1}
    assert read([good], dataset).image.tolist() == [1]
    (problem,) = problems([good, good | {"image_id": "a"}], dataset, read)
    assert 'several images have the id "a"' in problem.what


def test_read_detections_reports_all_problems(coco, read):
    wrong = {"image_id": 1, "category": "dog", "bbox": [1], "score": None}
    found = problems([wrong, GOOD, 4], coco, read)
    assert [p.record.split(" (")[0] for p in found] == ["detection 0"] * 4 + ["detection 2"]
    assert len({p.what for p in found}) == 5


def test_read_detections_limits_suggestions(voc, read, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "nearest", lambda word, _: asked.append(word) or "")
    records = [GOOD | {"image_id": f"x{i}", "category_id": 1} for i in range(100)]
    assert len(problems(records, voc, read)) == 100
    assert len(asked) == module.HINTS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a JSON list"),
        (b'[{"image_id": 12,', "broken JSON"),
        (b'"\xff"', "not UTF-8"),
        ("[]".encode("utf-16"), "not UTF-8"),
        (b"[" * 200_000, "nested too deep"),
        (b"[" + b"9" * 5000 + b"]", "broken JSON"),
        (b"{}", "not a JSON list"),
        (b"null", "not a JSON list"),
        (b"[] []", "more text after the end"),
    ],
)
def test_read_detections_refuses_wrong_files(content, message, coco, tmp_path):
    path = tmp_path / "dets.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_detections(path, coco)
    assert str(path) in str(caught.value)
    assert "mini check" not in caught.value.fix  # it does not look at results


def test_read_detections_refuses_a_key_given_twice(coco, tmp_path):
    path = tmp_path / "dets.json"
    record = json.dumps(GOOD)
    path.write_text(f'[{record}, {record[:-1]}, "score": 0.9}}]')
    with pytest.raises(DataError, match=r"detection 1 .*the key \"score\" is given twice"):
        read_detections(path, coco)


@pytest.mark.parametrize("element", ["{}", "1"])
def test_read_detections_lists_some_problems_and_counts_the_others(element, coco, tmp_path):
    path = tmp_path / "dets.json"
    path.write_text(f"[{','.join([element] * 5000)}]")
    with pytest.raises(DataError) as caught:
        read_detections(path, coco)
    assert len(caught.value.problems) < 5 * PROBLEMS_KEPT
    assert total(caught.value.problems) >= 5000
    assert any(p.what.endswith("000 more of this kind") for p in caught.value.problems)


def test_read_detections_explains_a_data_set(coco, tmp_path):
    path = tmp_path / "dets.json"
    path.write_text('{"images": [], "annotations": []}')
    with pytest.raises(DataError) as caught:
        read_detections(path, coco)
    assert '"annotations"' in caught.value.fix


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_read_detections_refuses_unreadable_paths(name, coco, tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_detections(tmp_path / name, coco)


def test_read_detections_skips_a_byte_order_mark(coco, tmp_path):
    path = tmp_path / "dets.json"
    path.write_text(json.dumps([GOOD]), encoding="utf-8-sig")
    assert len(read_detections(path, coco)) == 1


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=6,
)


@given(key=st.sampled_from([*GOOD, "category"]), value=ANY)
def test_read_detections_reads_or_reports_any_value(key, value, make_dataset, tmp_path_factory):
    """The fast reading and the careful one agree on every record: no third way out."""
    path = Path(tmp_path_factory.mktemp("any")) / "dets.json"
    path.write_text(json.dumps([GOOD, GOOD | {key: value}]))
    dataset = make_dataset([12], ["bird"], category_ids=[7])
    wrong = set()
    try:
        read_detections(path, dataset)
    except DataError as error:
        wrong = {p.record for p in error.problems}
    assert wrong <= {"detection 1 (counted from 0)"}


def test_read_detections_refuses_pipes(coco, tmp_path):
    os.mkfifo(tmp_path / "dets.json")
    with pytest.raises(DataError, match="not a regular file"):
        read_detections(tmp_path / "dets.json", coco)


def test_read_detections_reads_output_of_predict(coco, read):
    """A record a picture, known by its path, or by its name alone where that is enough."""
    bird = {"category": "bird", "bbox": [1, 2, 3, 4], "score": 0.5}
    cat = {"category": "cat", "bbox": [0, 0, 5, 5], "score": 0.25}
    written = [
        {"file": str(coco.path(2)), "width": 9, "height": 9, "detections": [bird, cat]},
        {"file": f"elsewhere/{coco.path(0).name}", "detections": [cat]},
        {"file": str(coco.path(1)), "detections": []},
    ]
    found = read(written, coco)
    assert found.image.tolist() == [2, 2, 0]
    assert found.label.tolist() == [0, 1, 1]
    (problem,) = problems([*written, {"file": "none.jpg", "detections": []}], coco, read)
    assert 'no picture "none.jpg"' in problem.what
    assert problem.record == "record 3"
    (problem,) = problems([written[0] | {"detections": [bird | {"score": "x"}]}], coco, read)
    assert "score" in problem.what
    assert problems([written[0] | {"detections": [bird, 7]}], coco, read)  # nothing is passed over


@pytest.mark.parametrize("kind", ["pipe", "device", "sparse"])
def test_read_detections_refuses_what_it_would_read_for_ever(kind, coco, tmp_path):
    path = tmp_path / "dets.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, DETECTIONS_BYTES + 1)
    with pytest.raises(DataError, match="cannot be read"):
        read_detections(path, coco)
