"""Values that depend on the number of shots."""

from __future__ import annotations

import pytest

from mini_fsod.config.auto import auto_values
from mini_fsod.config.load import resolve
from mini_fsod.config.schema import Config

# K: transfer's iterations, decay and warm-up; tune's iterations; mine.mean_score; online's start,
# iterations and EMA warm-up in voc-320-plus. Figures of docs/results.md were measured with these.
EXPECTED = {
    1: (4_000, (0.75,), 0, 4_000, 0.65, "transfer", 7_000, 0.1),
    2: (8_000, (0.875,), 0, 8_000, 0.75, "transfer", 7_000, 0.1),
    3: (12_000, (0.916667,), 10, 8_000, 0.75, "transfer", 7_000, 0.1),
    5: (20_000, (0.9,), 10, 8_000, 0.75, "weights", 12_000, 1),
    10: (40_000, (0.9,), 10, 12_000, 0.8, "weights", 12_000, 1),
}


def by_shots(config: Config) -> tuple[object, ...]:
    transfer, online = config.transfer, config.online
    return (
        *(transfer.iterations, transfer.decay, transfer.warm_up, config.tune.iterations),
        *(config.mine.mean_score, online.start, online.iterations, online.ema_warm_up),
    )


@pytest.mark.parametrize("k", EXPECTED)
@pytest.mark.parametrize(
    ("name", "online"),
    [
        ("paper", (None, "weights", 18_000, 1)),
        ("voc-320", (None, "weights", 12_000, 1)),
        ("voc-320-plus", None),
    ],
)
def test_resolve_gives_each_k_its_values(
    name: str, online: tuple[object, ...] | None, k: int
) -> None:
    expected = EXPECTED[k] if online is None else (*EXPECTED[k][:4], *online)
    assert by_shots(resolve(name, shots=k)) == expected
    assert by_shots(resolve(name, [f"shots.k={k}"])) == expected


@pytest.mark.parametrize(("k", "like"), [(4, 3), (7, 5), (30, 10)])
def test_auto_values_of_another_k_are_those_of_the_next_smaller(k: int, like: int) -> None:
    assert auto_values(k) == auto_values(like)


@pytest.mark.parametrize(("k", "lengths"), [(10, (160_000, 4_000)), (30, (240_000, 8_000))])
def test_resolve_gives_coco_lengths_of_its_own(k: int, lengths: tuple[int, int]) -> None:
    config = resolve("coco", shots=k)
    assert (config.transfer.iterations, config.tune.iterations) == lengths
    assert (config.transfer.decay, config.transfer.warm_up) == ((0.9,), 10)


@pytest.mark.parametrize("k", [1, 5])
def test_resolve_auto_follows_online_start(k: int) -> None:
    online = resolve("voc-320-plus", ["online.start=weights"], shots=k).online
    assert (online.iterations, online.ema_warm_up) == (12_000, 1)
    online = resolve("voc-320-plus", ["online.start=transfer"], shots=k).online
    assert (online.iterations, online.ema_warm_up) == (7_000, 0.1)


def test_resolve_set_replaces_auto_and_the_other_way_round() -> None:
    config = resolve("voc-320", ["transfer.iterations=50", "mine.mean_score=auto"], shots=10)
    assert (config.transfer.iterations, config.mine.mean_score) == (50, 0.8)
    assert resolve("voc-320-plus", ["online.minutes=3"]).online.iterations is None


def test_auto_is_left_only_where_it_does_not_depend_on_k() -> None:
    def words(value: object, key: str = "") -> list[str]:
        if isinstance(value, dict):
            return [found for k, v in value.items() for found in words(v, f"{key}.{k}")]
        return [key.rpartition(".")[2]] if value == "auto" else []

    assert {*words(resolve("voc-320-plus").model_dump())} == {"device", "loading", "bf16"}
