"""Fetching published weights into the caches that torchvision and timm use.

Nothing is read here: `read_weights` reads the files. A server that does not answer is given up
after a few seconds; the libraries themselves wait for a minute or longer.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import torch

from mini_fsod.detector.weights import first_line
from mini_fsod.errors import UserError
from mini_fsod.files import digest, is_file

SECONDS = 4  # for the first answer of a server
HUB_FILES = ("model.safetensors", "pytorch_model.bin")  # in a repository of Hugging Face


class NotFetchedError(UserError):
    """A published file that is not on this machine could not be downloaded."""


def place_of(url: str) -> Path:
    """Where torch keeps the file of a URL."""
    return Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(url).path).name


def fetch_torchvision(name: str, url: str, checked: bool = False) -> Path:
    """The file of a URL in torch's cache, downloaded and its hash checked if it is not there.

    `checked`: the hash of a file that is there is checked too; somebody may have put it there.
    """
    path = place_of(url)
    if is_file(path):
        if checked:
            _check_hash(path, url)
        return path
    try:
        _refuse_silence(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        known = torch.hub.HASH_REGEX.search(path.name)
        prefix = known.group(1) if known else None
        torch.hub.download_url_to_file(url, str(path), prefix, progress=False)
    except (OSError, RuntimeError) as error:
        raise _not_fetched(name, url, error, path.parent) from error
    return path


def fetch_timm(name: str, known: Any) -> Path:
    """The file of a timm model in its cache; `known` is timm's `pretrained_cfg` of the model."""
    if known is None or not (known.hf_hub_id or known.url):
        raise UserError(
            f"timm has no weights of {name}.",
            "Use a model of timm.list_pretrained(), or give a .safetensors or .pth file.",
        )
    if not known.hf_hub_id:
        return fetch_torchvision(name, known.url)
    import huggingface_hub as hub  # timm depends on it
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    files = (known.hf_hub_filename,) if known.hf_hub_filename else HUB_FILES
    for file in files:
        cached = hub.try_to_load_from_cache(known.hf_hub_id, file)
        if isinstance(cached, str):
            return Path(cached)
    url = hub.hf_hub_url(known.hf_hub_id, files[0])
    try:
        _refuse_silence(url)
        for file in files:
            try:
                return Path(hub.hf_hub_download(known.hf_hub_id, file))
            except LocalEntryNotFoundError:  # the connection failed
                raise
            except EntryNotFoundError as error:
                missing = error
        raise missing
    except Exception as error:  # errors of several libraries
        raise _not_fetched(name, url, error) from error


def _check_hash(path: Path, url: str) -> None:
    """A UserError where the file's SHA-256 does not begin as its name says."""
    known = torch.hub.HASH_REGEX.search(path.name)
    if known and not digest(path).startswith(known.group(1)):
        raise UserError(
            f"{path}: incomplete or changed: its SHA-256 does not begin with {known.group(1)}.",
            f"Delete it, and fetch {url} again.",
        )


def _not_fetched(
    name: str, url: str, error: Exception, cache: Path | None = None
) -> NotFetchedError:
    """`cache` is the folder in which the file would be found, where that is all it takes."""
    if cache is not None:
        fix = f"Fetch {url} on another computer, and put the file into {cache}."
    else:
        fix = (
            f"Fetch {url} on another computer, copy it here, and give its path: "
            f"detector.weights=FILE for the detector, discriminator.weights={name}:FILE for a "
            "discriminator."
        )
    what = f"The weights of {name} could not be downloaded: {first_line(error)}."
    return NotFetchedError(what, fix)


def _refuse_silence(url: str) -> None:
    """An OSError if the server cannot be reached within `SECONDS`; any answer will do."""
    result: list[BaseException | None] = []

    def ask() -> None:
        try:
            with urlopen(Request(url, method="HEAD"), timeout=SECONDS):
                result.append(None)
        except HTTPError:
            result.append(None)
        except URLError as error:
            # the library that downloads may know the certificate
            known = isinstance(error.reason, ssl.SSLError)
            result.append(None if known else OSError(str(error.reason)))
        except Exception as error:
            result.append(OSError(str(error)))

    # looking up a name has no time limit of its own, hence the thread
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS)
    if not result:
        raise TimeoutError(f"no answer within {SECONDS} seconds")
    if result[0] is not None:
        raise result[0]
