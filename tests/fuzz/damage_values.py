"""What damaged files contain: odd values, pieces of syntax, beginnings of other formats."""

from __future__ import annotations

import math
from typing import Any

LARGE = 200_000  # items or levels of what is made very large: some megabytes at most

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 0.5, -0.0, 1e-320, 1e308, math.nan, math.inf, -math.inf),
    *(2**31, 2**63, -(2**70), 10**400, "", "1", "true", "nan", "1_0", "\u0661", "a\0b", "\ud800"),
    *("x" * 300, "x" * LARGE, "a\x1b[2J", "[bold]", "../x.png", "/etc/passwd", "/dev/zero", ".."),
    *("C:\\x.png", "b.png/../a.png", "bird", "car", "coco", [], {}, [[]], [{}], {"": None}),
    *([0] * 5, [1.5, "a", None], [1, 2, 3, 4], [math.nan] * 4, [-5, -5, 1e9, 1e9], {"a": {"b": 1}}),
)
TOKENS = {
    ".json": (b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"NaN", b"1e999", b"\\ud800"),
    ".yaml": (
        *(b"&a ", b"*a", b"!!python/object/apply:os.getcwd []", b"? ", b"- ", b": ", b"<<: ", b"{"),
        *(b"\t", b"---\n", b"!!binary ", b"|\n", b"'", b"%YAML 9\n", b"2001-01-01", b"0x1_f", b"["),
    ),
    ".xml": (
        *(
            b"<",
            b">",
            b"&lt;",
            b"&x;",
            b"</object>",
            b"<object>",
            b"<!--",
            b"<![CDATA[",
            b"<bndbox>",
        ),
        *(b"nan", b"-1", b"1e400", b'<!DOCTYPE a SYSTEM "file:///etc/passwd">', b"<size/>"),
    ),
    ".txt": (b" ", b"\n", b"nan", b"-1", b"1e400", b"../", b"/dev/zero\n", b"9" * 500, b"\r"),
}
MAGIC = (
    *(b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"GIF89a", b"RIFF"),
    *(
        b"II*\0",
        b"BM",
        b"\0\0\0 ftypavif",
        b"P6 9 9 255\n",
        b"PK\x03\x04",
        b"\x80\x04",
        b"\x93NUMPY",
    ),
)
