"""Parts of transactions, and the range of keys that begin alike."""

from motor_ft.etcd import rpc_pb2 as pb


def created_at(key: bytes, revision: int) -> pb.Compare:
    """The key is the one that was created at this revision; 0: it does not exist."""
    return pb.Compare(key=key, target=pb.Compare.CREATE, create_revision=revision)


def modified_at(key: bytes, revision: int) -> pb.Compare:
    """The key was last written at this revision; 0: it does not exist."""
    return pb.Compare(key=key, target=pb.Compare.MOD, mod_revision=revision)


def get(key: bytes) -> pb.RequestOp:
    """Read one key."""
    return pb.RequestOp(request_range=pb.RangeRequest(key=key))


def put(key: bytes, value: bytes, lease: int = 0) -> pb.RequestOp:
    """Write one key, which goes with the lease."""
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))


def delete_all(prefix: bytes) -> pb.RequestOp:
    """Delete every key that begins with the prefix."""
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=prefix, range_end=after(prefix)))


def after(prefix: bytes) -> bytes:
    """Return the first key behind all that begin with the prefix, which ends in ASCII."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
