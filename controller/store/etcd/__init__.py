"""Records and leadership in etcd (docs/adr/0001-etcd-client.md): one Controller leads, the others stand by."""
