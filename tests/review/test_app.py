"""Who gets an answer from the page's server, and what it takes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from mini_fsod.limits import BODY_BYTES
from mini_fsod.review.app import make_app
from mini_fsod.review.decisions import JOURNAL, read_decisions
from mini_fsod.review.mined import MinedReview

TOKEN = "s3cret-token"
ORIGIN = "http://127.0.0.1:8765"
KNOWS = {"authorization": f"Bearer {TOKEN}"}
WRITES = KNOWS | {"origin": ORIGIN}
PATHS = ("/api/overview", "/api/page", "/api/image/0", "/api/none", "/none", "/api/decide")
STRICT = {
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@pytest.fixture
def client(review: MinedReview) -> TestClient:
    return TestClient(make_app(review, TOKEN), base_url=ORIGIN, raise_server_exceptions=False)


def first_item(client: TestClient) -> dict[str, Any]:
    return client.get("/api/page", headers=KNOWS).json()["items"][0]


def decide(client: TestClient, *decisions: Any, **headers: str) -> Any:
    content = json.dumps({"decisions": decisions})
    more = {"content-type": "application/json"} | headers
    return client.post("/api/decide", content=content, headers=WRITES | more)


def assert_strict(answer: Any) -> None:
    assert STRICT.items() <= dict(answer.headers).items()
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "set-cookie" not in answer.headers


# The token


def test_page_needs_the_token_in_its_address(client: TestClient) -> None:
    assert client.get(f"/?token={TOKEN}").status_code == 200
    for query in ("", "?token=", "?token=wrong", f"?token={TOKEN}x", f"?token={TOKEN}&token=b"):
        assert client.get(f"/{query}").status_code == 403, query
    assert client.get("/", headers=KNOWS).status_code == 403


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("value", [None, "", "Bearer", "Bearer wrong", "Basic x", "Bearer \xe9"])
def test_nothing_is_answered_without_the_token(
    client: TestClient, path: str, value: str | None
) -> None:
    headers = {} if value is None else {"authorization": value.encode("latin-1")}
    for answer in (
        client.get(f"{path}?token={TOKEN}", headers=headers),
        client.post(path, json={}, headers={"origin": ORIGIN} | headers),
    ):
        assert answer.status_code == 403
        assert_strict(answer)


# Foreign sites


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost.evil.example", "",
     "192.168.1.7:8765", "127.0.0.1@evil.example", "[::1", "0.0.0.0"],
)  # fmt: skip
def test_foreign_names_of_this_machine_are_refused(client: TestClient, host: str) -> None:
    """DNS rebinding: a foreign name that resolves to 127.0.0.1 keeps its name in Host."""
    for path in (f"/?token={TOKEN}", "/api/overview"):
        answer = client.get(path, headers=KNOWS | {"host": host})
        assert answer.status_code == 403
        assert_strict(answer)


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1:9999", "[::1]:8765", "LOCALHOST"])
def test_loopback_names_are_answered_at_any_port(client: TestClient, host: str) -> None:
    """An ssh tunnel may have another port."""
    assert client.get("/api/overview", headers=KNOWS | {"host": host}).status_code == 200


def test_a_server_for_the_network_is_reached_by_number_and_by_its_name(
    review: MinedReview,
) -> None:
    app = make_app(review, TOKEN, host="bench.local")
    client = TestClient(app, base_url=ORIGIN)
    for host, status in (
        ("192.168.1.7:8765", 200), ("bench.local:8765", 200), ("localhost", 200),
        ("evil.example", 403),
    ):  # fmt: skip
        answer = client.get("/api/overview", headers=KNOWS | {"host": host})
        assert answer.status_code == status, host


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://127.0.0.1:8765", "http://127.0.0.1:1", "", None],
)
def test_writes_from_foreign_origins_are_refused(
    client: TestClient, mined: Path, origin: str | None
) -> None:
    item = first_item(client)
    headers = KNOWS | ({} if origin is None else {"origin": origin})
    body = {"decisions": [{"item": item["id"], "do": "accept"}]}
    for path in ("/api/decide", "/api/undo"):
        answer = client.post(path, json=body, headers=headers)
        assert answer.status_code == 403
        assert_strict(answer)
    assert read_decisions(mined / JOURNAL) == []


def test_other_sites_cannot_even_read(client: TestClient) -> None:
    for more in ({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
                 {"origin": "http://evil.example"}):  # fmt: skip
        assert client.get("/api/overview", headers=KNOWS | more).status_code == 403
    preflight = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = client.options("/api/decide", headers=KNOWS | preflight)
    assert answer.status_code == 405
    assert_strict(answer)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_writes_must_be_json(client: TestClient, kind: str) -> None:
    """What a form can send without asking first is refused."""
    answer = decide(client, {"item": 0, "do": "accept"}, **{"content-type": kind})
    assert answer.status_code == 415


# The page


def test_page_is_one_file_that_loads_nothing_from_elsewhere(client: TestClient) -> None:
    answer = client.get(f"/?token={TOKEN}")
    assert_strict(answer)
    policy = answer.headers["content-security-policy"]
    (nonce,) = set(re.findall(r"'nonce-([\w-]+)'", policy))
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    text = answer.text
    assert text.count(f'nonce="{nonce}"') == text.count("<script") + text.count("<style") == 2
    assert client.get(f"/?token={TOKEN}").text != text  # another nonce
    outside = set(re.findall(r"https?://[^\s\"']+", text))
    assert outside == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"\son\w+=|style=|<link[^>]+stylesheet|innerHTML|eval\(", text)


# Files


@pytest.mark.parametrize(
    "path",
    [
        "/api/image/../../../../etc/passwd",
        "/api/image/..%2f..%2f..%2fetc%2fpasswd",
        "/api/image/%2e%2e/config.yaml",
        "/api/image/0/../../pool.json",
        "/api/image//etc/passwd",
        "/api/image/-1",
        "/api/image/0x10",
        "/api/image/1e3",
        "/api/image/999999",
        f"/api/image/{'9' * 5000}",
        "/api/image/²",
        "/pool.json",
        "/review.jsonl",
        "/page.js",
        "/%00",
    ],
)
def test_only_numbered_pictures_are_served(client: TestClient, path: str) -> None:
    answer = client.get(path, headers=KNOWS)
    assert answer.status_code in (400, 404, 422)
    assert answer.headers["content-type"] == "application/json"
    assert_strict(answer)


def test_a_picture_that_is_a_link_out_of_the_folder_is_not_served(
    client: TestClient, review: MinedReview, tmp_path: Path
) -> None:
    item = first_item(client)
    picture = review.data.mined.root / item["picture"]
    kept = picture.read_bytes()
    secret = tmp_path / "secret.png"
    secret.write_bytes(kept)
    assert client.get(f"/api/image/{item['id']}", headers=KNOWS).status_code == 200
    try:
        picture.unlink()
        picture.symlink_to(secret)
        # a new start: nothing is in memory
        review.gallery.__init__(  # type: ignore[misc]
            [picture] * len(review.gallery), [review.data.mined.root]
        )
        answer = client.get(f"/api/image/{item['id']}", headers=KNOWS)
        assert answer.status_code == 422
        assert "link to a place outside" in answer.json()["error"]
        assert review.gallery.outside() > 0
        shown = client.get(f"/api/page?item={item['id']}", headers=KNOWS).json()["items"][0]
        assert "link to a place outside" in shown["error"]
    finally:
        picture.unlink()
        picture.write_bytes(kept)


# What is sent


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"decisions": []}',
        b'{"decisions": [{}]}',
        b'{"decisions": [{"item": "0", "do": "accept"}]}',
        b'{"decisions": [{"item": 0.5, "do": "accept"}]}',
        b'{"decisions": [{"item": -1, "do": "accept"}]}',
        b'{"decisions": [{"item": true, "do": "accept"}]}',
        b'{"decisions": [{"item": 99999999999999999999, "do": "accept"}]}',
        b'{"decisions": [{"item": 0, "do": "undo"}]}',
        b'{"decisions": [{"item": 0, "do": "accept", "more": 1}]}',
        b'{"decisions": [{"item": 0, "do": "accept"}], "more": 1}',
        b'{"decisions": [{"item": 0, "do": "accept", "box": [1, 2, 3]}]}',
        b'{"decisions": [{"item": 0, "do": "accept", "box": [1, 2, NaN, 4]}]}',
        b'{"decisions": [{"item": 0, "do": "accept", "box": [1, 2, Infinity, 4]}]}',
        b'{"decisions": [{"item": 0, "do": "accept", "box": [1, 2, 1e999, 4]}]}',
        b'{"decisions": [{"item": 0, "do": "accept", "box": ["1", 2, 3, 4]}]}',
        b'{"decisions": [{"item": 0, "do": "accept", "class": 3}]}',
    ],
)
def test_malformed_bodies_are_refused(client: TestClient, mined: Path, body: bytes) -> None:
    headers = WRITES | {"content-type": "application/json"}
    answer = client.post("/api/decide", content=body, headers=headers)
    assert answer.status_code == 400
    assert_strict(answer)
    assert read_decisions(mined / JOURNAL) == []


@pytest.mark.parametrize(
    "decision",
    [
        {"do": "accept", "class": "no such class"},
        {"do": "accept", "class": "red"},  # a base class
        {"do": "accept", "box": [500, 500, 10, 10]},
        {"do": "accept", "box": [1, 1, 0, 10]},
        {"do": "accept", "box": [1, 1, -10, 10]},
        {"do": "accept", "box": [1e300, 1, 1e300, 10]},
        {"do": "draw", "class": "blue, light"},
        {"do": "draw", "box": [1, 1, 10, 10]},
    ],
)
def test_wrong_decisions_are_refused_and_not_saved(
    client: TestClient, mined: Path, decision: dict[str, Any]
) -> None:
    item = first_item(client)["id"]
    good = {"item": item, "do": "accept"}
    assert decide(client, good, {"item": item} | decision).status_code == 422
    assert decide(client, {"item": 10**6, "do": "accept"}).status_code == 422
    assert read_decisions(mined / JOURNAL) == []


def test_large_bodies_are_refused(client: TestClient) -> None:
    headers = WRITES | {"content-type": "application/json"}
    large = b" " * (BODY_BYTES + 1)
    assert client.post("/api/decide", content=large, headers=headers).status_code == 413

    def endless() -> Any:
        for _ in range(100):
            yield b" " * (BODY_BYTES // 10)

    assert client.post("/api/decide", content=endless(), headers=headers).status_code == 413
    lying = headers | {"content-length": "x"}
    assert client.post("/api/decide", content=b"{}", headers=lying).status_code == 413


def test_wrong_queries_are_refused(client: TestClient) -> None:
    for query in ("item=x", "item=99999", "class=none", "skip=a,b", "item=-1"):
        assert client.get(f"/api/page?{query}", headers=KNOWS).status_code in (400, 422), query
    assert client.get("/api/image/0?side=x", headers=KNOWS).status_code == 400
    assert client.get("/api/image/0?side=999999", headers=KNOWS).status_code == 200


# What it is for


def test_a_decision_is_on_the_disk_when_it_is_answered(client: TestClient, mined: Path) -> None:
    item = first_item(client)
    answer = decide(client, {"item": item["id"], "do": "accept"})
    assert answer.status_code == 200
    assert answer.json()["items"][0]["state"] == "accept"
    (saved,) = read_decisions(mined / JOURNAL)
    assert (saved.do, saved.place.picture, list(saved.place.box)) == (
        "accept", item["picture"], item["box"],
    )  # fmt: skip
    undone = client.post("/api/undo", json={}, headers=WRITES)
    assert undone.json()["item"]["state"] == "open"
    assert [d.do for d in read_decisions(mined / JOURNAL)] == ["accept", "undo"]


def test_a_full_disk_is_told(
    client: TestClient, review: MinedReview, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    item = first_item(client)
    monkeypatch.setattr(review.journal, "_sync", full)
    answer = decide(client, {"item": item["id"], "do": "accept"})
    assert answer.status_code == 507
    assert "No space left" in answer.json()["error"]
    assert first_item(client)["state"] == "open"
