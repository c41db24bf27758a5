"""The one JSON encoder: records become the bytes that are stored and sent.

Owns: how a struct is written, and free JSON of a client as it is kept. Does not own: envelopes (`ochat_site.rpc.envelope`) or
strict decoding of what clients send.
"""

from __future__ import annotations

import msgspec

encode = msgspec.json.Encoder(order="deterministic").encode
"""Return a struct, or a sequence of them, as compact UTF-8 JSON.

Maps such as labels are written sorted by key (wire 1); `Raw` members are carried as they are.
"""


def compact(text: bytes | msgspec.Raw) -> bytes:
    """Return JSON that somebody else wrote without the white space around its tokens, which stay as they were written.

    So it is one line wherever it is sent, also over transports that end a message with a line.
    """
    return msgspec.json.format(bytes(text), indent=-1)
