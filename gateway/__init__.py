"""The Gateway: every foreign protocol, towards engines and towards users; it decides nothing."""
