"""Data in object storage: a folder named by a URL, such as s3://bucket/voc.

A `RemotePath` is a Path, so that the readers of data sets take it like a local folder. Its names
are listed once per process. Annotations are copied into the cache folder and read there; a picture
is fetched whenever it is opened, by the process that decodes it, and is kept nowhere.

Light: configurations import it. What asks a storage is in `mini_fsod/storage.py`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader, BytesIO
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any

from mini_fsod.data.file_names import ANNOTATIONS, is_picture, is_unread
from mini_fsod.errors import UserError

if TYPE_CHECKING:
    from mini_fsod.storage import Storage

URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)", re.DOTALL)  # Path makes one slash of two
FOLDER, FILE = stat.S_IFDIR | 0o555, stat.S_IFREG | 0o444


class RemotePath(PosixPath):
    """A file or folder in object storage. Only what readers need is there: nothing writes."""

    __slots__ = ()

    def __str__(self) -> str:
        text = super().__str__()
        match = URL.match(text)
        return f"{match[1]}://{match[2]}" if match else text

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        if _listed(self) is None and (is_picture(self.name) or is_unread(self.name)):
            # in a process that decodes and has listed nothing: opening it will tell
            return os.stat_result((FILE, 0, 0, 1, 0, 0, 0, 0, 0, 0))
        storage, name = _storage_of(self)
        found = storage.files.get(name)
        if found is None and name not in storage.folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        mode, size = (FOLDER, 0) if found is None else (FILE, found[0])
        return os.stat_result((mode, 0, 0, 1, 0, 0, size, 0, 0, 0))

    def open(self, *_: Any, **__: Any) -> BufferedReader:  # type: ignore[override]
        """The content, for reading: of an annotation from its copy, else fetched now."""
        known = _listed(self)
        copy = known[0].copies.get(known[1]) if known else None
        # typeshed asks for raw streams; any stream that reads will do
        return copy.open("rb") if copy else BufferedReader(BytesIO(_content(str(self))))  # type: ignore[type-var,unused-ignore]

    def absolute(self) -> RemotePath:
        return self

    def resolve(self, strict: bool = False) -> RemotePath:
        return self

    def names(self) -> list[str]:
        """What is in this folder."""
        storage, name = _storage_of(self)
        if name not in storage.folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return storage.folders[name]

    def walk(self, *_: Any, **__: Any) -> Iterator[tuple[str, list[str], list[str]]]:  # type: ignore[override,unused-ignore]
        """Walks the folders below, as os.walk does."""
        storage, start = _storage_of(self)
        waiting = [(str(self), start)]
        while waiting:
            path, name = waiting.pop()
            below = {n: _joined(name, n) for n in storage.folders.get(name, ())}
            folders = [n for n, full in below.items() if full in storage.folders]
            yield path, folders, [n for n, full in below.items() if full in storage.files]
            waiting += [(f"{path}/{n}", below[n]) for n in reversed(folders)]

    def digest(self) -> str:
        """Changes with the content, which is not read where the storage tells that it changed."""
        storage, name = _storage_of(self)
        size, sign = storage.files.get(name, (0, ""))
        content = f"{size} {sign}".encode() if sign else _content(str(self))
        return hashlib.blake2b(content).hexdigest()[:32]


def as_path(path: str | Path) -> Path:
    """A Path; a RemotePath if it is a URL, or was one."""
    return RemotePath(path) if URL.match(str(path)) else Path(path)


def entries(folder: Path) -> list[str]:
    return folder.names() if isinstance(folder, RemotePath) else os.listdir(folder)


def walk(
    folder: Path, onerror: Callable[[OSError], None] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk`, in object storage too."""
    if isinstance(folder, RemotePath):
        return folder.walk()
    return os.walk(folder, onerror=onerror)


_storages: dict[str, Storage] = {}  # by URL


def _listed(path: RemotePath) -> tuple[Storage, str] | None:
    """The storage that was listed and holds this path, and its name there."""
    text = str(path)
    for url, storage in _storages.items():
        if text == url or text.startswith(f"{url}/"):
            return storage, text[len(url) + 1 :]
    return None


def _storage_of(path: RemotePath) -> tuple[Storage, str]:
    known = _listed(path)
    if known is None:
        top = path
        if path.name.lower().endswith(ANNOTATIONS):  # its pictures are beside it
            top = path.parent.parent if path.parent.name == "annotations" else path.parent
        if top.name.lower().endswith(".zip"):
            raise UserError(f"{path}: a .zip in object storage.", "Unpack it there.")
        from mini_fsod.storage import list_storage  # progress bars are heavy

        _storages[str(top)] = list_storage(str(top))
        known = _listed(path)
        assert known is not None
    return known


def _content(url: str) -> bytes:
    from mini_fsod.storage import fetched

    return fetched(url)


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
