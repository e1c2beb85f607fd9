"""`mini review`: a local page to correct what was mined, or to draw the first boxes."""

from __future__ import annotations

import secrets
import shlex
import socket
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from mini_fsod import console
from mini_fsod.commands.options import Novel, app, flag, out_option
from mini_fsod.errors import UserError
from mini_fsod.labels import novel_names

if TYPE_CHECKING:
    from mini_fsod.review.items import Review

TOKEN_BYTES = 24
OPEN = ("0.0.0.0", "::")  # all addresses of this machine


@app.command("review")
def review_command(
    source: Annotated[
        Path,
        Argument(
            metavar="RUN_OR_PHOTOS",
            help="A run's folder; with --novel, a folder of photos or a data set. "
            "Example: runs/first",
        ),
    ],
    novel: Novel = None,
    out: Annotated[
        Path | None,
        out_option("The file of shots to write: drawn boxes, or all accepted ones.", "five.json"),
    ] = None,
    host: Annotated[
        str, Option(help="Listen on another address. Example: --host 0.0.0.0")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        Option(
            metavar="NUMBER",
            min=0,
            max=65535,
            help="Listen on another port; 0: any. Example: --port 9000",
        ),
    ] = None,
    links: Annotated[
        bool,
        flag("--links", "Show pictures that are links to places outside of the data's folder."),
    ] = False,
) -> None:
    """Accept, reject and redraw mined boxes in a local page; or draw the first ones.

    Each decision is saved at once. `mini run` then trains on the corrected boxes.
    With --novel, boxes are drawn on photos, and -o is a file for shots.file.
    Example: mini review photos --novel bolt -o five.json
    """
    from mini_fsod.review.app import listen, make_app, serve

    if novel is not None and out is None:
        raise UserError("--novel needs a file to save the boxes in.", "Name it: -o five.json")
    with ExitStack() as stack:
        listening = stack.enter_context(listen(host, port))
        review: Review
        console.note(f"reading {source}")
        if novel is not None and out is not None:
            from mini_fsod.review.drawing import drawing

            names = novel_names(None, novel)
            review = stack.enter_context(drawing(source, names, out, links))
        else:
            from mini_fsod.review.mined import reviewed_run

            review = stack.enter_context(reviewed_run(source, out, links))
        if not links and (outside := review.gallery.outside()):
            pictures = console.count(outside, "picture")
            console.note(f"{pictures} not shown: links to places outside of the data; see --links")
        token = secrets.token_urlsafe(TOKEN_BYTES)
        if host in OPEN or not _is_local(host):
            console.note(
                "anyone in this network who knows the address can see the pictures and change "
                "decisions; the traffic is not encrypted"
            )
        address = f"http://{_address(host, listening)}/?token={token}"
        serve(make_app(review, token, host), listening, partial(_announce, address))
    _say_what_next(source, out, review)


def _announce(address: str) -> None:
    console.note("open this address in a browser; Ctrl-C ends the review")
    console.out.print(address, soft_wrap=True, markup=False)
    sys.stdout.flush()


def _is_local(host: str) -> bool:
    from mini_fsod.review.guard import is_loopback

    return is_loopback(host)


def _address(host: str, listening: socket.socket) -> str:
    """Host and port as a browser needs them."""
    name = _own_number() if host in OPEN else host
    return f"[{name}]:{_port(listening)}" if ":" in name else f"{name}:{_port(listening)}"


def _own_number() -> str:
    """This machine's number in the network, for phones that do not know its name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only chooses the way there
            number: str = probe.getsockname()[0]
            return number
        except OSError:
            return socket.gethostname()


def _port(listening: socket.socket) -> int:
    port: int = listening.getsockname()[1]
    return port


def _say_what_next(source: Path, out: Path | None, review: Review) -> None:
    rows = review.progress()
    accepted = sum(row["accepted"] for row in rows)
    if review.mode == "draw":
        counts = ", ".join(f"{row['name']} {row['accepted']}" for row in rows)
        console.note(f"{out}: {console.count(accepted, 'box')} ({counts})")
        return
    decided = sum(row["accepted"] + row["rejected"] for row in rows)
    console.note(f"{decided:,} decided, {accepted:,} accepted; saved in {source / 'review.jsonl'}")
    if out is not None:
        console.note(f"{out}: the shots and the accepted boxes, as shots for another run")
    console.note(f"to train on them: mini run {shlex.quote(str(source))}")
