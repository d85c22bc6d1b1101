"""The first program of the README: start a cluster, write a record to a log and read it."""

from distributedlog import LogRecord
from distributedlog.blocking import local_cluster, open_namespace

if __name__ == "__main__":
    with local_cluster() as cluster, open_namespace(cluster.uri) as namespace:
        namespace.create_log("orders")
        orders = namespace.open_log("orders")
        with orders.open_writer() as writer:
            dlsn = writer.write(
                LogRecord(txid=1, payload=b"first")
            )  # durable; `submit` would wait only for buffer space
            writer.commit()  # now all earlier records are readable, too
        print(dlsn)
        with orders.open_reader() as reader:  # from the beginning
            record = reader.read_next()
            assert record is not None
            print(record.dlsn, record.txid, bytes(record.payload))
