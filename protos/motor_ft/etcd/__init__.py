"""The subset of etcd's v3 API that the Controller's store uses; the ``*_pb2*`` files are generated."""
