"""The one JSON encoder of the kernel: records become the bytes that are stored and sent.

Owns: how a struct is written. Does not own: envelopes (`ochat_site.rpc.envelope`) or strict decoding of what clients send.
"""

from __future__ import annotations

import msgspec

encode = msgspec.json.Encoder().encode
"""Return a struct, or a sequence of them, as compact UTF-8 JSON; `Raw` members are carried as they are."""
