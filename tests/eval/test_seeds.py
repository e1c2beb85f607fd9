import json

import pytest

from mini_fsod.eval.seeds import interval95, mean_or_none, over_seeds, student_t


def test_student_t_equals_scipy():
    stats = pytest.importorskip("scipy.stats", reason="scipy comes with the demo extra")
    for freedom in [*range(1, 41), 100, 1001]:
        assert student_t(0.95, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)
        assert student_t(0.5, freedom) == pytest.approx(stats.t.ppf(0.75, freedom), rel=1e-9)


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (29, 2.045)]
)
def test_student_t_equals_printed_tables(freedom, t):
    assert student_t(0.95, freedom) == pytest.approx(t, abs=5e-4)


@pytest.mark.parametrize(
    ("values", "half"),
    [
        ([1, 2, 3], 4.302653 / 3**0.5),  # s = 1
        ([10, 14], 12.706205 * 8**0.5 / 2**0.5),  # s = sqrt(8)
        ([5, 5, 5, 5], 0),
    ],
)
def test_interval95_by_hand(values, half):
    assert interval95(values) == pytest.approx(half, rel=1e-6)


@pytest.mark.parametrize("values", [[], [5], [1, None, 3], [None, None]])
def test_interval95_is_none_with_missing_values(values):
    assert interval95(values) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 2, 6], 3), ([7], 7), ([1, None], None), ([None], None), ([], None)],
)
def test_mean_or_none_is_none_with_missing_values(values, expected):
    assert mean_or_none(values) == expected


def run(novel, base, detections):
    return {
        "metric": "voc07",
        "nAP50": novel,
        "bAP50": base,
        "AP50": novel,
        "per_class": {"cat": {"AP50": novel}, "owl": {"AP50": None}},
        "images": 3,
        "detections": detections,
    }


def test_over_seeds_averages_results():
    runs = [run(10.0, 50.0, 4), run(14.0, None, 6)]
    half = pytest.approx(12.706205 * 2, rel=1e-6)
    result = over_seeds(runs)
    assert result == {
        "metric": "voc07",
        "nAP50": 12,
        "bAP50": None,
        "AP50": 12,
        "per_class": {"cat": {"AP50": 12}, "owl": {"AP50": None}},
        "images": 3,
        "detections": [4, 6],
        "interval95": {"nAP50": half, "bAP50": None, "AP50": half},
        "runs": runs,
    }
    json.dumps(result, allow_nan=False)


def test_over_seeds_of_one_result_has_no_interval():
    assert over_seeds([run(10.0, 50.0, 4)])["interval95"] == dict.fromkeys(
        ["nAP50", "bAP50", "AP50"]
    )
