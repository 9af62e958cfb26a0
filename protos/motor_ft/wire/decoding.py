"""What decoders raise for bytes that are not what they should be."""

import msgspec

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The last for text that is nested deeper than the decoder goes."""
