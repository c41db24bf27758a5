"""Lines of TOML keys."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from sessions_app.toml_lines import Path, key_lines

DOCUMENT = '''# a comment with = and [brackets]
title = "a # b ] \\" c"   # and one behind
"quoted key" . inner = 'x'
text = """
[not.a.table]
more = \\""" ""
"""
raw = \'\'\'
also = "not a key" \'\'\'

[server]
when = 1979-05-27 07:32:00
limits.daemon = 3

[[workspaces]]
id = "a"
source = { temporary = { location = "x" }, other = [1, { deep = 2 }] }

[[workspaces]]
id = "b"
list = [
  "one",  # first
  # nothing
  { name = "two" },
]
[workspaces.extra]
on = true
'''


def test_every_kind_of_key_has_its_line() -> None:
    lines = key_lines(DOCUMENT)
    expected: dict[Path, int] = {
        ("title",): 2,
        ("quoted key", "inner"): 3,
        ("text",): 4,
        ("raw",): 8,
        ("server",): 11,
        ("server", "when"): 12,
        ("server", "limits", "daemon"): 13,
        ("workspaces",): 15,
        ("workspaces", 0): 15,
        ("workspaces", 0, "source", "temporary", "location"): 17,
        ("workspaces", 0, "source", "other", 1, "deep"): 17,
        ("workspaces", 1): 19,
        ("workspaces", 1, "list", 0): 22,
        ("workspaces", 1, "list", 1, "name"): 24,
        ("workspaces", 1, "extra"): 26,
        ("workspaces", 1, "extra", "on"): 27,
    }
    assert {path: lines.get(path) for path in expected} == expected
    assert key_lines(DOCUMENT.replace("\n", "\r\n")) == lines
    assert key_lines("") == {}


def paths(value: object, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of everything inside a value that `tomllib` read."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*path, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from paths(inner, (*path, position))


KEYS = st.text(alphabet="ab-_1", min_size=1, max_size=3) | st.text(max_size=3).map(
    lambda text: (
        '"' + text.encode("unicode_escape").decode().replace("\\x", "\\u00").replace('"', '\\"') + '"'
    )
)
SCALARS = st.sampled_from(
    ['"s"', "'#]}'", '"""\n a"""""', "''' '' '''", "1_0", "1.5", "true", "2020-01-01 10:00:00Z"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + " , \n#]\n".join(items) + "\n]")
        | st.lists(st.tuples(KEYS, inner), max_size=2).map(
            lambda pairs: "{ " + ", ".join(f"{key} = {value}" for key, value in pairs) + " }"
        )
    ),
    max_leaves=6,
)
LINES = st.one_of(
    st.builds("{} = {} # [x]".format, KEYS, VALUES),
    st.builds("{}.{} = {}".format, KEYS, KEYS, VALUES),
    st.builds("[{}]".format, KEYS),
    st.builds("[[{}]]".format, KEYS),
    st.builds("[ {} . {} ]".format, KEYS, KEYS),
)


@given(st.lists(LINES, max_size=6).map("\n".join))
def test_whatever_the_library_reads_has_lines(text: str) -> None:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = key_lines(text)
    assert set(paths(document)) <= set(lines)
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())
