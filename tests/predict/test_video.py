"""Videos: frames are read and drawn by OpenCV; a small stand-in plays its part here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.tiny_detector import LABELS, tiny_detector
from mini_fsod import checkpoint
from mini_fsod.errors import UserError
from mini_fsod.predict.torch_model import TorchModel
from mini_fsod.predict.video import Video, VideoWriter, is_video

VIDEO = b"RIFF\0\0\0\0AVI "
FRAMES = np.random.RandomState(0).randint(0, 256, (3, 60, 80, 3)).astype(np.uint8)  # RGB


class FakeCapture:
    def __init__(self, path: str) -> None:
        self.left = list(FRAMES) if Path(path).read_bytes() == VIDEO else []

    def isOpened(self) -> bool:
        return bool(self.left)

    def get(self, number: int) -> float:
        return [80, 60, 10, len(FRAMES)][number] if self.left else 0

    def read(self) -> tuple[bool, Any]:
        return (True, self.left.pop(0)[..., ::-1]) if self.left else (False, None)

    def release(self) -> None:
        pass


class FakeWriter:
    written: list[Any] = []  # noqa: RUF012 - of the last writer

    def __init__(self, path: str, codec: int, rate: float, size: tuple[int, int]) -> None:
        self.path, self.about = Path(path), (codec, rate, size)
        FakeWriter.written = []
        self.path.write_bytes(b"part")

    def isOpened(self) -> bool:
        return True

    def write(self, frame: Any) -> None:
        FakeWriter.written.append(frame[..., ::-1])

    def release(self) -> None:
        pass


@pytest.fixture(autouse=True)
def opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("FRAME_WIDTH", "FRAME_HEIGHT", "FPS", "FRAME_COUNT")
    numbers = {f"CAP_PROP_{name}": n for n, name in enumerate(names)}
    fake = SimpleNamespace(
        VideoCapture=FakeCapture,
        VideoWriter=FakeWriter,
        VideoWriter_fourcc=lambda *letters: "".join(letters),
        **numbers,
    )
    monkeypatch.setitem(sys.modules, "cv2", fake)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    (tmp_path / "clip.avi").write_bytes(VIDEO)
    return tmp_path / "clip.avi"


def test_video_gives_rgb_frames(clip: Path) -> None:
    video = Video(clip)
    assert (video.size, video.rate, video.frames) == ((80, 60), 10, 3)
    np.testing.assert_array_equal(list(video), FRAMES)
    assert is_video(Path("a.MOV"))
    assert not is_video(Path("a.jpg"))


def test_video_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"RIFF no video")
    with pytest.raises(UserError, match=r"bad\.mp4: OpenCV cannot read"):
        Video(tmp_path / "bad.mp4")
    with pytest.raises(UserError, match="does not exist"):
        Video(tmp_path / "none.mp4")


def test_predict_video_equals_predict_of_its_frames(clip: Path) -> None:
    model = TorchModel(tiny_detector(), LABELS, Path("tiny"), "cpu")
    found = [prediction for _, prediction in model.predict_video(Video(clip))]
    assert [(p.frame, p.path) for p in found] == [(n, clip) for n in range(3)]
    for prediction, alone in zip(found, model.predict(list(FRAMES), score=0), strict=True):
        np.testing.assert_array_equal(prediction.xywh, alone.xywh)


def test_video_writer_renames_a_complete_video_only(tmp_path: Path) -> None:
    target = tmp_path / "out" / "v.mp4"

    def write(fails: bool) -> None:
        with VideoWriter(target, (80, 60), 10) as writer:
            writer.add(Image.fromarray(FRAMES[0]))
            if fails:
                raise KeyError

    with pytest.raises(KeyError):
        write(fails=True)
    assert list(target.parent.iterdir()) == []
    write(fails=False)
    assert list(target.parent.iterdir()) == [target]
    np.testing.assert_array_equal(FakeWriter.written[0], FRAMES[0])


def test_predict_command_counts_and_draws_frames(clip: Path, tmp_path: Path, mini: Any) -> None:
    saved = tmp_path / "tiny.safetensors"
    checkpoint.save(saved, tiny_detector(), LABELS, {"weights": None})
    words = ["--draw", tmp_path / "drawn", "--csv", tmp_path / "found.csv", "--score", "0.4"]
    code, out, err = mini("predict", saved, clip, *words, "--device", "cpu")
    assert code == 0, err
    assert len([line for line in out.splitlines() if "clip.avi" in line]) == 1  # one row
    assert [path.name for path in (tmp_path / "drawn").iterdir()] == ["clip.avi.mp4"]
    assert len(FakeWriter.written) == 3
    frames = {line.split(",")[1] for line in (tmp_path / "found.csv").read_text().splitlines()[1:]}
    assert frames <= {"0", "1", "2"}
    assert frames


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (b"\0\0\0\x20ftypisom", True),
        (b"\x1aE\xdf\xa3", True),
        (b"#EXTM3U\nhttp://example.org/a.ts\n", False),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", False),
        (b"", False),
    ],
)
def test_video_is_chosen_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, read: bool
) -> None:
    """OpenCV would follow lists of films to other files and addresses."""
    (tmp_path / "clip.mp4").write_bytes(content)
    monkeypatch.setattr(sys.modules[__name__], "VIDEO", content)
    if read:
        assert len([*Video(tmp_path / "clip.mp4")]) == len(FRAMES)
        return
    with pytest.raises(UserError, match=r"clip\.mp4: not a video in a supported format"):
        Video(tmp_path / "clip.mp4")
