"""How each transport frames messages: bytes on a wire, and nothing of what they say."""
