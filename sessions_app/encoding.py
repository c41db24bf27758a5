"""The one JSON encoder: records become the bytes that are stored and sent.

Owns: how a struct is written. Does not own: envelopes (`ochat_site.rpc.envelope`) or strict decoding of what clients send.
"""

from __future__ import annotations

import msgspec

encode = msgspec.json.Encoder(order="deterministic").encode
"""Return a struct, or a sequence of them, as compact UTF-8 JSON.

Maps such as labels are written sorted by key (wire 1); `Raw` members are carried as they are.
"""
