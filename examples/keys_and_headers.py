"""Write a record with a key and headers, and read it again.

Keys and headers are stored and returned unchanged.
"""

from distributedlog import KeyedRecord
from distributedlog.blocking import local_cluster, open_namespace


def main() -> None:
    """Run the program on a local cluster."""
    with local_cluster(memory=True) as cluster, open_namespace(cluster.uri) as namespace:
        namespace.create_log("orders")
        log = namespace.open_log("orders")
        with log.open_writer() as writer:
            writer.write(b"without a key")
            writer.write(
                KeyedRecord(
                    payload=b"paid", key=b"1734", headers=[(b"trace", b"7f"), (b"trace", b"80")]
                )
            )
        with log.open_reader(to="end") as reader:
            for record in reader:
                print(record.payload, record.key, record.headers)


if __name__ == "__main__":
    main()
