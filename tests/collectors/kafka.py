"""Events in Kafka. The brokers are librdkafka's own, which it has for tests of clients: they speak Kafka's protocol over TCP and keep
what they are sent in memory. Records are read back by librdkafka's consumer."""

import ctypes
import glob
import json
import os
import pathlib
import signal

import confluent_kafka
import telemetry as tools

TOPIC = "stoker-events"
PARTITIONS = 3
PRODUCE = 0
NOT_ENOUGH_REPLICAS = 19


class Brokers:
    """A cluster of Kafka."""

    def __init__(self, count=2):
        folder = pathlib.Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
        (path,) = glob.glob(str(folder / "librdkafka-*.so*"))
        self.lib = lib = ctypes.CDLL(path)
        for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
            getattr(lib, name).restype = ctypes.c_void_p
        lib.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        words = ctypes.create_string_buffer(512)
        self.handle = ctypes.c_void_p(lib.rd_kafka_new(0, ctypes.c_void_p(lib.rd_kafka_conf_new()), words, 512))
        assert self.handle.value, words.value
        self.cluster = ctypes.c_void_p(lib.rd_kafka_mock_cluster_new(self.handle, count))
        self.count = count
        self.addresses = lib.rd_kafka_mock_cluster_bootstraps(self.cluster).decode().split(",")

    def make_topic(self, topic, partitions):
        assert self.lib.rd_kafka_mock_topic_create(self.cluster, topic.encode(), partitions, self.count) == 0

    def go_down(self):
        for broker in range(1, self.count + 1):
            assert self.lib.rd_kafka_mock_broker_set_down(self.cluster, broker) == 0

    def come_up(self):
        for broker in range(1, self.count + 1):
            assert self.lib.rd_kafka_mock_broker_set_up(self.cluster, broker) == 0

    def refuse(self, *errors):
        """The next records are answered with these errors."""
        codes = [ctypes.c_int(error) for error in errors]
        self.lib.rd_kafka_mock_push_request_errors(self.cluster, ctypes.c_int16(PRODUCE), ctypes.c_size_t(len(errors)), *codes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.rd_kafka_mock_cluster_destroy(self.cluster)
        self.lib.rd_kafka_destroy(self.handle)


class Reader:
    """Reads a topic from its beginning."""

    def __init__(self, brokers):
        self.consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": ",".join(brokers.addresses), "group.id": "test", "auto.offset.reset": "earliest"}
        )
        first = confluent_kafka.OFFSET_BEGINNING
        self.consumer.assign([confluent_kafka.TopicPartition(TOPIC, number, first) for number in range(PARTITIONS)])
        self.got = []

    def until(self, count):
        def look():
            record = self.consumer.poll(0.5)
            if record is not None and not record.error():
                self.got.append(record)
            return len(self.got) >= count

        tools.until(look, f"{count} records, there are {len(self.got)}")
        return sorted((json.loads(record.value()) for record in self.got), key=lambda event: event["seq"])


def check(stoker, folder):
    with Brokers() as brokers:
        return check_with(stoker, folder, brokers)


def check_with(stoker, folder, brokers):
    config = folder / "node.toml"
    config.write_text(
        f"""[node]
dir = "{folder / 'node'}"
memory = "1GiB"
[s3]
listen = ["127.0.0.1:0"]
[admin]
listen = "127.0.0.1:0"
metrics_open = true
[events]
kafka = {{ brokers = {json.dumps(brokers.addresses)}, topic = "{TOPIC}" }}
"""
    )
    command = [stoker, "serve", "--config", config, "--json"]
    # There is no topic. The node is killed: what it wrote down is all that is left.
    with tools.Program(command, folder / "first.log") as node:
        ready = json.loads(node.line())
        tools.until(lambda: tools.number(ready, "stoker_kafka_failures_total") >= 1, "a try that failed")
        assert tools.number(ready, "stoker_kafka_up") == 0
        assert tools.number(ready, "stoker_kafka_waiting") >= 1
        os.kill(ready["pid"], signal.SIGKILL)
        node.process.wait()
    assert "there is no topic `stoker-events`" in (folder / "first.log").read_text()
    # Then there are no brokers.
    brokers.make_topic(TOPIC, PARTITIONS)
    brokers.go_down()
    with tools.Program(command, folder / "second.log") as node:
        ready = json.loads(node.line())
        tools.until(lambda: tools.number(ready, "stoker_kafka_failures_total") >= 1, "a try that failed")
        # They come, and are not well at first.
        brokers.refuse(*[NOT_ENOUGH_REPLICAS] * 2)
        brokers.come_up()
        reader = Reader(brokers)
        reader.until(2)
        tools.until(lambda: tools.number(ready, "stoker_kafka_waiting") == 0, "nothing waits")
        assert tools.number(ready, "stoker_kafka_up") == 1
        node.stop()
    events = reader.until(3)
    # A third start sends nothing twice.
    with tools.Program(command, folder / "third.log") as node:
        ready = json.loads(node.line())
        events = reader.until(4)
        tools.until(lambda: tools.number(ready, "stoker_kafka_sent_total") == 1, "one was sent")
    events = reader.until(5)
    lines = [json.loads(line) for line in (folder / "node" / "events.jsonl").read_text().splitlines()]
    assert events == lines, (events, lines)
    assert [event["kind"] for event in events] == ["node_started", "node_started", "node_stopping", "node_started", "node_stopping"]
    check_records(reader.got)
    return f"{len(events)} events in {PARTITIONS} partitions kept over a kill, without a topic, without brokers; in order, none twice"


def check_records(records):
    partitions = {}
    for record in records:
        event = json.loads(record.value())
        assert record.key().decode() == event["about"], record.key()
        assert dict(record.headers()) == {"stoker-event-id": event["id"].encode()}, record.headers()
        assert partitions.setdefault(event["about"], record.partition()) == record.partition(), "a key has one partition"
    for partition in range(PARTITIONS):
        there = [record for record in records if record.partition() == partition]
        there.sort(key=lambda record: record.offset())
        order = [json.loads(record.value())["seq"] for record in there]
        assert order == sorted(order), order
