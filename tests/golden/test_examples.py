"""Every example of the protocol, read, refused and written as the contract says."""

from __future__ import annotations

import json

import pytest

from sessions_app.errors import Refusal
from tests.golden.contract import EXAMPLES, Example, complete, read, writing

READABLE = [example for example in EXAMPLES if example.valid or example.detect == "state"]
REFUSED = [example for example in EXAMPLES if not example.valid and example.detect != "state"]


def name(example: Example) -> str:
    return example.file.removesuffix(".json")


def test_the_examples_cover_every_sort() -> None:
    assert len(READABLE) > 250
    assert {example.detect for example in REFUSED} == {"json", "schema", "semantic"}


@pytest.mark.parametrize("example", READABLE, ids=name)
def test_is_read_and_written_again(example: Example) -> None:
    written = json.loads(read(example.definition, example.text))

    assert not list(writing(example.definition).iter_errors(written))
    if not example.decode_only:
        assert written == complete(example.definition, json.loads(example.text))


@pytest.mark.parametrize("example", REFUSED, ids=name)
def test_is_refused(example: Example) -> None:
    with pytest.raises((Refusal, ValueError)) as caught:
        read(example.definition, example.text)

    if isinstance(caught.value, Refusal):
        assert caught.value.code == example.refusal
