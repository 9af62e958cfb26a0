"""The gateway's north-bound REST interface (protocol.md section 5), described by openapi.json beside this file."""
