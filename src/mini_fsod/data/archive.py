"""Exports as they come out of a labelling tool: a .zip, unpacked once into the cache.

What comes out is read like any folder. Only annotations and pictures are unpacked, within limits;
for pictures that lie elsewhere, annotations alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedReader
from pathlib import Path

from mini_fsod import console
from mini_fsod.data.file_names import ANNOTATIONS, is_picture, stays_inside
from mini_fsod.data.text import is_text, shown
from mini_fsod.errors import Problem, UserError
from mini_fsod.files import (
    FREE_SPACE,
    default_cache_folder,
    is_folder,
    is_full,
    lock,
    open_regular,
    real,
)
from mini_fsod.limits import (
    COCO_BYTES,
    PICTURE_BYTES,
    ZIP_DIRECTORY_BYTES,
    ZIP_ENTRIES,
    ZIP_FREE_BYTES,
    ZIP_RATIO,
)

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

# What zipfile raises on a damaged archive
DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, ValueError, EOFError)

# Where the end of a .zip says how long the list of its entries is: (signature, position of the
# number after it, its format). The second one is that of archives beyond 4 GB.
ENDS = ((b"PK\x05\x06", 12, "<L"), (b"PK\x06\x06", 40, "<Q"))
END_BYTES = 1 << 17

# Folders that mean something: alone in an archive, they are not left out of the path
MEANT = ("annotations", "labels", "images", "jpegimages", "data", "train", "val", "valid", "test")


class _RefusedError(Exception):
    """Why an archive is not unpacked."""


def unpacked(path: Path, pictures: bool = True) -> Path:
    """The folder with the content of a .zip, in the cache of decoded pictures.

    A folder that is alone in the archive is left out of the path. Unpacked again if the archive
    has changed; what was unpacked of its former content is deleted.
    """
    try:
        about = path.stat()
    except (OSError, ValueError) as error:
        raise _refusal(path, f"cannot be read ({getattr(error, 'strerror', error)})") from None
    cache = default_cache_folder() / "zips"
    place = _short_hash(os.fsencode(real(path)))
    name = f"{place}-{_short_hash(f'{about.st_size} {about.st_mtime_ns}'.encode())}"
    folder = cache / (name if pictures else f"{name}-annotations")
    if not is_folder(folder):
        with lock(cache / f".{place}.lock", wait=True):
            for old in cache.glob(f"{place}-*"):
                if not old.name.startswith(name):
                    shutil.rmtree(old, ignore_errors=True)
            if not is_folder(folder):
                _unpack(path, folder, pictures)
    return _only_folder(folder)


@contextmanager
def archives_named(
    archives: Mapping[Path, Path],
) -> Iterator[Callable[[list[Problem]], list[Problem]]]:
    """Errors, and the problems that are given to it, name archives and not where they were
    unpacked; `archives` are by these folders.
    """

    def named(text: str) -> str:
        for folder, archive in archives.items():
            text = text.replace(str(folder), str(archive))
        return text

    def all_named(problems: list[Problem]) -> list[Problem]:
        return [replace(p, what=named(p.what), fix=named(p.fix)) for p in problems]

    try:
        yield all_named if archives else list
    except UserError as error:
        error.what, error.fix = named(error.what), named(error.fix)
        error.args = (error.what,)
        raise


def _short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def _only_folder(folder: Path) -> Path:
    """The folder that holds everything: many archives have one folder, with the rest inside."""
    names = os.listdir(folder)
    while len(names) == 1 and names[0].lower() not in MEANT and is_folder(folder / names[0]):
        folder /= names[0]
        names = os.listdir(folder)
    return folder


def _unpack(path: Path, folder: Path, pictures: bool) -> None:
    """All or nothing: the folder appears when it is complete."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a killed process
    try:
        with open_regular(path) as source:
            _check_directory(source)
            with zipfile.ZipFile(source) as archive:
                entries = _chosen(archive, os.fstat(source.fileno()).st_size, pictures)
                _check_space(part.parent, sum(entry.file_size for entry in entries.values()))
                part.mkdir()
                with console.progress(f"unpacking {path.name}", len(entries)) as done:
                    for n, (name, entry) in enumerate(entries.items(), start=1):
                        target = part / name
                        target.parent.mkdir(parents=True, exist_ok=True)
                        with archive.open(entry) as content, target.open("xb") as copy:
                            shutil.copyfileobj(content, copy)
                        done(n)
        part.replace(folder)
    except _RefusedError as error:
        raise _refusal(path, str(error)) from None
    except OSError as error:
        fix = FREE_SPACE if is_full(error) else "Unpack it yourself, and give the folder."
        reason = error.strerror or str(error)[:120]
        raise UserError(f"{path}: cannot be unpacked ({reason}).", fix) from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        RuntimeError,
        ValueError,
        EOFError,
    ) as why:
        raise _refusal(path, f"a damaged .zip ({str(why)[:120]})") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _refusal(path: Path, what: str) -> UserError:
    return UserError(f"{path}: {what}.", "Export it again, or unpack it and give the folder.")


def _check_directory(source: BufferedReader) -> None:
    """Refuse a list of entries that would fill the memory: it is read before anything else."""
    size = os.fstat(source.fileno()).st_size
    source.seek(max(size - END_BYTES, 0))
    end = source.read(END_BYTES)
    source.seek(0)
    for signature, position, form in ENDS:
        at = end.rfind(signature)
        field = end[at + position : at + position + struct.calcsize(form)] if at >= 0 else b""
        if len(field) != struct.calcsize(form):
            continue
        length = struct.unpack(form, field)[0]
        if length != 0xFFFFFFFF and length > ZIP_DIRECTORY_BYTES:
            raise _RefusedError(f"the list of its files is over {ZIP_DIRECTORY_BYTES >> 20} MB")


def _chosen(archive: zipfile.ZipFile, size: int, pictures: bool) -> dict[str, zipfile.ZipInfo]:
    """{name: entry} of what is unpacked; an archive with anything suspicious is refused."""
    entries = archive.infolist()
    if len(entries) > ZIP_ENTRIES:
        raise _RefusedError(f"holds more than {ZIP_ENTRIES:,} files")
    chosen: dict[str, zipfile.ZipInfo] = {}
    for entry in entries:
        name = entry.filename.replace("\\", "/")
        if not is_text(name) or not stays_inside(name):
            raise _RefusedError(f"holds {shown(name)}, which is outside its folder")
        hidden = any(part.startswith((".", "__MACOSX")) for part in name.split("/"))
        picture = is_picture(name)
        if entry.is_dir() or hidden or not (picture or name.lower().endswith(ANNOTATIONS)):
            continue
        if picture and not pictures:
            continue
        if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
            raise _RefusedError(f"holds {shown(name)}, which is a link or no regular file")
        if entry.flag_bits & 1:
            raise _RefusedError("is encrypted")
        if entry.compress_type not in METHODS:
            raise _RefusedError(f"{shown(name)} is compressed in a way that is not read")
        most = PICTURE_BYTES if picture else COCO_BYTES
        if entry.file_size > most:
            raise _RefusedError(f"{shown(name)} is larger than {most >> 20:,} MB")
        if name in chosen:
            raise _RefusedError(f"holds {shown(name)} twice")
        chosen[name] = entry
    if sum(entry.file_size for entry in chosen.values()) > ZIP_FREE_BYTES + ZIP_RATIO * size:
        raise _RefusedError(f"would be more than {ZIP_RATIO} times as large when unpacked")
    if not chosen:
        raise _RefusedError("holds no annotations" + " or pictures" * pictures)
    return chosen


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise _RefusedError(
            f"needs {console.size(needed)} when unpacked, {folder} has {console.size(free)} free"
        )
