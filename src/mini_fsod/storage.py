"""What lies in object storage: its names, and copies of its annotations; by way of fsspec."""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_fsod import console
from mini_fsod.data.file_names import ANNOTATIONS
from mini_fsod.errors import UserError, brief
from mini_fsod.files import default_cache_folder, is_file, lock, write_bytes

AT_ONCE = 32  # annotation files that are fetched at the same time
# What storage systems call a sign that a file's content has changed
SIGNS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "mtime", "created")


@dataclass(frozen=True, slots=True)
class Storage:
    """What lies below a URL; names are relative to it, that of itself is ""."""

    files: dict[str, tuple[int, str]]  # bytes, and a sign of the content
    folders: dict[str, list[str]]  # what is in each
    copies: dict[str, Path]  # of annotations


def list_storage(url: str) -> Storage:
    """All names below a URL; none where there is nothing."""
    files, folders = {}, {"": list[str]()}
    with console.progress(f"listing {url}"):
        found = _asked(url, lambda system, top: (top, system.find(top, detail=True)))
    top, infos = found or ("", {})
    for full, info in infos.items():
        name = full[len(top) :].lstrip("/")
        if not name or name != posixpath.normpath(name) or name.startswith("../"):
            continue  # a folder's own entry, or a name that no folder on a disk can have
        sign = next((str(info[key]) for key in SIGNS if info.get(key)), "")
        files[name] = int(info.get("size") or 0), sign
        child = name
        while child:
            parent, _, last = child.rpartition("/")
            is_new = parent not in folders
            folders.setdefault(parent, []).append(last)
            child = parent if is_new else ""
    if not files:
        folders.clear()  # object storage has no empty folders
    return Storage(files, folders, _copied(url, files))


def _copied(url: str, files: dict[str, tuple[int, str]]) -> dict[str, Path]:
    """The annotations, copied into the cache where they are new, and what is old there deleted."""
    wanted = [
        name for name in files if name.lower().endswith(ANNOTATIONS) and "/." not in f"/{name}"
    ]
    cache = default_cache_folder() / "remote" / _short_hash(url)
    copies = {name: _copy_of(cache, name, *files[name]) for name in wanted}
    if not copies:
        return copies

    def fetch(name: str) -> None:
        write_bytes(copies[name], fetched(f"{url}/{name}"))

    with lock(cache.with_suffix(".lock"), wait=True):
        missing = [name for name in wanted if not files[name][1] or not is_file(copies[name])]
        try:
            with (
                console.progress(f"copying annotations of {url}", len(missing)) as done,
                ThreadPoolExecutor(AT_ONCE) as pool,
            ):
                for n, _ in enumerate(pool.map(fetch, missing), start=1):
                    done(n)
        except OSError as error:
            raise _refusal(url, error) from None
        kept = set(copies.values())
        for old in cache.glob("*/*"):
            if old not in kept:
                old.unlink(missing_ok=True)
    return copies


def _copy_of(cache: Path, name: str, size: int, sign: str) -> Path:
    """Named by what it is a copy of: one that is there is not out of date."""
    place = _short_hash(f"{name}\0{size}\0{sign}")
    return cache / place[:2] / place


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _system(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the name there."""
    from fsspec.core import url_to_fs  # not needed where all data is on disks

    # with more, s3fs asks for a file's length before it fetches it: twice the requests
    options = {"max_concurrency": 1} if url.startswith("s3:") else {}
    found: tuple[Any, str] = url_to_fs(url, **options)
    return found


def fetched(url: str) -> bytes:
    """The content of a file, or an OSError."""
    try:
        system, name = _system(url)
        content: bytes = system.cat_file(name)
        return content
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
    except Exception as error:  # each storage raises its own kinds
        raise OSError(errno.EIO, brief(str(error)) or type(error).__name__) from None


def _asked(url: str, question: Callable[[Any, str], Any]) -> Any:
    """The answer of a storage; None where there is nothing of that name."""
    scheme = url.partition(":")[0]
    try:
        system, top = _system(url)
        system.invalidate_cache()
        return question(system, top)
    except FileNotFoundError:
        return None
    except ImportError:
        raise UserError(
            f"{url}: {scheme}:// needs a package that is not installed.",
            'For s3://, run: pip install "mini-fsod[storage]". For others, see fsspec.',
        ) from None
    except ValueError as error:
        if "rotocol" not in str(error):
            raise _refusal(url, error) from None
        raise UserError(
            f"{url}: unknown kind of storage, {scheme}://.",
            "Use s3://BUCKET/FOLDER or a local folder.",
        ) from None
    except Exception as error:  # each storage raises its own kinds
        raise _refusal(url, error) from None


def _refusal(url: str, error: Exception) -> UserError:
    if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError", "PermissionError"):
        return UserError(
            f"{url}: access denied ({brief(str(error))}).",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or FSSPEC_S3_ANON=true for a public "
            "bucket.",
        )
    what = brief(getattr(error, "strerror", None) or str(error)) or type(error).__name__
    return UserError(f"{url}: cannot be read ({what}).", "Check the address and the network.")
