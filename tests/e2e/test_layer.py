"""A channel layer that delays, doubles and drops: nothing durable is missed, nothing live is out of order with the log.

Turns by the real worker's host, through the real broadcast and feeds; hints and live events reach the readers by the layer
alone. Every frame is checked as it comes: a live event before its anchor, behind its operation's end, twice, or for a reader
without `security.read` ends the test (`tests.conformance.checked`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from channels.layers import get_channel_layer
from django.conf import settings as django_settings
from pytest_django import Settings

from tests.conformance.fixture import ADMIN, READER, WRITER
from tests.conformance.local import LocalSite
from tests.conformance.peers import Hold, delta
from tests.e2e.layers import FaultyLayer
from tests.support.model_scripts import Call, Pause, Reply, Text
from tests.support.model_servers import ModelServer

WORDS = [f"word{number} " for number in range(12)]
SPOKEN = [part for word in WORDS for part in (word, Pause(0.02))]
"""With pauses, or all of it would travel in one message."""


@pytest.fixture
def layer_seed(request: pytest.FixtureRequest) -> int:
    """What the layer's dice begin with."""
    seed: int = getattr(request, "param", 0)
    return seed


@pytest.fixture
async def faulty_site(
    local_store: None,
    model_server: ModelServer,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    layer_seed: int,
) -> AsyncIterator[LocalSite]:
    """A site in this process whose web process hears of its worker by a faulty layer alone."""
    for name, value in model_server.env().items():
        monkeypatch.setenv(name, value)
    model_server.reset()
    settings.CHANNEL_LAYERS = {
        "default": {"BACKEND": "tests.e2e.layers.FaultyLayer", "CONFIG": {"seed": layer_seed}}
    }
    site = LocalSite(django_settings.ENV.data_dir, model_server)
    try:
        await site.start(apart=True)
        yield site
        await site.check_laws()
    finally:
        await site.close()


async def _turns(site: LocalSite, count: int) -> Counter[str]:
    """Let turns run before readers of every kind; what the layer did to them."""
    writer = await (await site.peer()).create("open", start=True)
    readers = [
        await (await site.peer(person)).attach(writer.session_id, "read_only", after=0)
        for person in (ADMIN, ADMIN, WRITER, READER)
    ]
    reply = "".join(WORDS)
    for _ in range(count):
        site.model.answer(Reply(Text("look "), Call("clock")), Reply(Text(*SPOKEN)))
        await writer.say("go")
        await writer.until_ended()
    latest = (await writer.counters())[1]
    await asyncio.gather(*(reader.until(lambda r=reader: r.sequence == latest) for reader in readers))  # type: ignore[misc]

    replayed = await (await site.peer()).attach(writer.session_id, after=0)
    log = [(event.sequence, event.kind) for event in replayed.events]
    assert [sequence for sequence, _ in log] == [*range(1, latest + 1)]
    for reader in readers:
        assert [(event.sequence, event.kind) for event in reader.events] == log
    for reader in [writer, *readers[:2]]:
        assert reader.lives, "what is only delayed is shown"
        assert _is_part_of(reader, (f"look {reply}") * count)
    assert [reader.lives for reader in readers[2:]] == [[], []]
    layer = get_channel_layer()
    assert isinstance(layer, FaultyLayer)
    return layer.faults


def _is_part_of(reader: Hold, text: str) -> bool:
    """Tell whether what was streamed is the text with gaps: nothing of it twice, nothing out of order."""
    at = 0
    for live in reader.lives:
        piece = delta(live)
        if piece:
            at = text.find(piece, at)
            if at < 0:
                return False
            at += len(piece)
    return True


async def test_nothing_durable_is_missed_and_nothing_live_out_of_order(faulty_site: LocalSite) -> None:
    faults = await _turns(faulty_site, 4)

    for fault in ("dropped live", "doubled live", "delayed live", "dropped wake", "delayed wake"):
        assert faults[fault], f"the layer did not do its worst: {faults}"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layer_seed", range(1, 9), indirect=True)
async def test_however_the_dice_fall(faulty_site: LocalSite) -> None:
    await _turns(faulty_site, 25)
