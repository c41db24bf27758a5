"""The wire dialects: each encodes one public protocol and says nothing of sessions itself."""
