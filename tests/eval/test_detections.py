import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_fsod.errors import DataError
from mini_fsod.eval import detections as module
from mini_fsod.eval.detections import DatasetDetections, read_detections

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


def test_ids_and_names_become_indices_in_file_order(coco, read):
    found = read(
        [
            {"image_id": 7, "category_id": 3, "bbox": [0, 0, 5, 5], "score": -2},
            {"image_id": 12, "category": "bird", "bbox": [-1, 2.5, 0, 4], "score": 0.25},
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
    assert found.xywh.tolist() == [[0, 0, 5, 5], [-1, 2.5, 0, 4], [1, 2, 3, 4]]
    assert found.score.tolist() == [-2, 0.25, 9]
    assert (found.image.dtype, found.xywh.dtype) == (np.int64, np.float64)


def test_stems_are_ids_and_other_keys_are_passed_over(voc, read):
    found = read([GOOD | {"image_id": "2008_000040", "category_id": 2, "area": None}], voc)
    assert (found.image.tolist(), found.label.tolist()) == ([1], [1])


def test_no_detections(coco, read):
    found = read([], coco)
    assert len(found) == 0
    assert found.xywh.shape == (0, 4)


def test_from_arrays():
    found = DatasetDetections.of(
        np.array([0, 1]), [1, 0], np.ones((2, 4), dtype=np.float32), [1, 0]
    )
    assert len(found) == 2
    assert (found.label.dtype, found.xywh.dtype) == (np.int64, np.float64)
    assert DatasetDetections.of([], [], [], []).xywh.shape == (0, 4)


WRONG = [
    (3, "is 3, not an object"),
    ([GOOD], "is a list, not an object"),
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
    ({"category_id": None}, 'neither "category_id" nor "category"'),
    ({"category": "Birds"}, 'no class "Birds". Did you mean "bird"?'),
    ({"category": 7}, "no class 7"),
    ({"category": ["bird"]}, "no class a list"),
    ({"category": "cat"}, 'category_id 7 is "bird", but category is "cat"'),
    ({"bbox": None}, "bbox is null, not a list"),
    ({"bbox": "1234"}, "not a list of four numbers"),
    ({"bbox": {"x": 1}}, "bbox is an object"),
    ({"bbox": [1, 2, 3]}, "bbox has 3 entries"),
    ({"bbox": [1, 2, 3, 4, 5]}, "bbox has 5 entries"),
    ({"bbox": [1, 2, "3", 4]}, 'bbox holds "3", not a finite number'),
    ({"bbox": [1, 2, None, 4]}, "bbox holds null"),
    ({"bbox": [False, 2, 3, 4]}, "bbox holds false"),
    ({"bbox": [1, [2], 3, 4]}, "bbox holds a list"),
    ({"bbox": [float("nan"), 2, 3, 4]}, "bbox holds NaN"),
    ({"bbox": [1, float("-inf"), 3, 4]}, "bbox holds -Infinity"),
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
def test_a_wrong_record_is_named(change, message, coco, read):
    wrong = GOOD | change if isinstance(change, dict) else change
    (problem,) = problems([GOOD, GOOD, wrong, GOOD], coco, read)
    assert problem.record == "detection 2 (counted from 0)"
    assert problem.file.endswith("dets.json")
    assert message in problem.what
    str(problem).encode()  # printable on any terminal that knows UTF-8


@pytest.mark.parametrize("key", ["image_id", "bbox", "score"])
def test_a_missing_key_is_named(key, coco, read):
    (problem,) = problems([{k: v for k, v in GOOD.items() if k != key}], coco, read)
    assert problem.what == f'has no "{key}"'


def test_a_number_for_a_stem_tells_the_stem(voc, read):
    (problem,) = problems([GOOD | {"image_id": 12, "category_id": 1}], voc, read)
    assert "the id 12." in problem.what
    assert 'such as "000012"' in problem.what


def test_an_unknown_stem_has_a_hint(voc, read):
    (problem,) = problems([GOOD | {"image_id": "2008_00040", "category_id": 1}], voc, read)
    assert 'Did you mean "2008_000040"?' in problem.what


def test_a_stem_of_two_pictures_is_ambiguous(make_dataset, read):
    dataset = make_dataset(["a", "b", "a"], ["bird"])
    good = GOOD | {"image_id": "b", "category_id": 1}
    assert read([good], dataset).image.tolist() == [1]
    (problem,) = problems([good, good | {"image_id": "a"}], dataset, read)
    assert 'image_id "a" is the id of several images' in problem.what


def test_all_problems_are_told_at_once(coco, read):
    wrong = {"image_id": 1, "category": "dog", "bbox": [1], "score": None}
    found = problems([wrong, GOOD, 4], coco, read)
    assert [p.record.split(" (")[0] for p in found] == ["detection 0"] * 4 + ["detection 2"]
    assert len({p.what for p in found}) == 5


def test_hints_are_searched_a_few_times_only(voc, read, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "nearest", lambda word, _: asked.append(word) or "")
    records = [GOOD | {"image_id": f"x{i}", "category_id": 1} for i in range(100)]
    assert len(problems(records, voc, read)) == 100
    assert len(asked) == module.HINTS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b'[{"image_id": 12,', "is not JSON"),
        (b'"\xff"', "is not UTF-8"),
        ("[]".encode("utf-16"), "is not UTF-8"),
        (b"[" * 200_000, "nested too deep"),
        (b"[" + b"9" * 5000 + b"]", "is not JSON"),
        (b"{}", "holds an object, not a list"),
        (b"null", "holds null, not a list"),
    ],
)
def test_a_wrong_file_is_named(content, message, coco, tmp_path):
    path = tmp_path / "dets.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_detections(path, coco)
    assert str(path) in str(caught.value)
    assert "mini check" not in caught.value.fix  # it does not look at results


def test_a_data_set_instead_of_results_has_a_hint(coco, tmp_path):
    path = tmp_path / "dets.json"
    path.write_text('{"images": [], "annotations": []}')
    with pytest.raises(DataError) as caught:
        read_detections(path, coco)
    assert '"annotations"' in caught.value.fix


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_a_file_that_cannot_be_read(name, coco, tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_detections(tmp_path / name, coco)


def test_a_byte_order_mark_is_no_problem(coco, tmp_path):
    path = tmp_path / "dets.json"
    path.write_text(json.dumps([GOOD]), encoding="utf-8-sig")
    assert len(read_detections(path, coco)) == 1


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=6,
)


@given(key=st.sampled_from([*GOOD, "category"]), value=ANY)
def test_any_value_is_read_or_told(key, value, make_dataset, tmp_path_factory):
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


def test_pipes_are_not_waited_for(coco, tmp_path):
    os.mkfifo(tmp_path / "dets.json")
    with pytest.raises(DataError, match="not a regular file"):
        read_detections(tmp_path / "dets.json", coco)


def test_what_predict_wrote(coco, read):
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
