"""An address that could not be bound."""

from motor_ft.model.errors import FtError, Reason


def cannot_listen(listen: str) -> FtError:
    """Return the error for an address that could not be bound."""
    text = (
        f"cannot listen on {listen}: another process has it, or it is no address of this host; "
        "choose another address or stop that process"
    )
    return FtError(Reason.PORT_UNAVAILABLE, text, address=listen)
