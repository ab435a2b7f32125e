"""Tests --tensorboard_dir and --metrics_port with readers that share no code with the worker."""

import math
import os
import re
import socket
import struct
import time
import unittest
import urllib.error
import urllib.request

from tests.e2e.jobs import JobTest, SERVER, SMALL_JOB, WORKER

REFUSED = 2


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def masked_crc(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(content):
    """The records of a TFRecord file, whose checksums must all be right."""
    while content:
        length, length_crc = struct.unpack("<QI", content[:12])
        assert length_crc == masked_crc(content[:8])
        data = content[12:12 + length]
        assert struct.unpack("<I", content[12 + length:16 + length])[0] == masked_crc(data)
        yield data
        content = content[16 + length:]


def fields(message):
    """A protobuf message as {field number: [values]}, decoded by hand."""
    found, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7f) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        else:
            length = {1: 8, 5: 4}[kind] if kind != 2 else varint()
            value = message[at:at + length]
            at += length
            if kind != 2:
                value = struct.unpack("<d" if kind == 1 else "<f", value)[0]
        found.setdefault(key >> 3, []).append(value)
    return found


def scalars(path):
    """{tag: [(step, value)]} of an event file, with the field numbers of tensorflow/core/util/event.proto."""
    with open(path, "rb") as file:
        events = [fields(record) for record in records(file.read())]
    assert events[0][3] == [b"brain.Event:2"], events[0]
    found = {}
    for event in events[1:]:
        assert abs(event[1][0] - time.time()) < 3600, event
        for value in fields(event[5][0])[1]:
            value = fields(value)
            found.setdefault(value[1][0].decode(), []).append((event.get(2, [0])[0], value[2][0]))
    return found


class TensorboardTest(JobTest):

    def test_points_of_steps_and_epochs(self):
        for sync, workers in (("local", 1), ("ring", 2)):
            with self.subTest(sync=sync):
                folder = self.path(sync + "/events")
                record = self.train(sync, workers=workers, flags=[*SMALL_JOB, "--tensorboard_dir=" + folder,
                                                                  "--tensorboard_every_steps=3"])
                names = os.listdir(folder)
                self.assertEqual(len(names), 1, names)  # only rank 0 writes a file
                self.assertRegex(names[0], r"^events\.out\.tfevents\.\d{10}\.")
                points = scalars(os.path.join(folder, names[0]))
                # A point for every three of 14 steps, and one for each epoch, at its last step.
                for tag in ("loss", "accuracy", "samples_per_second", "exposed_exchange_ms"):
                    self.assertEqual([step for step, _ in points["step/" + tag]], [2, 5, 8, 11], tag)
                    self.assertTrue(all(math.isfinite(value) for _, value in points["step/" + tag]))
                self.assertTrue(all(value > 0 for _, value in points["step/samples_per_second"]))
                for tag in ("train_loss", "test_loss", "test_accuracy", "samples_per_second"):
                    self.assertEqual([step for step, _ in points["epoch/" + tag]], [6, 13], tag)
                    for (_, value), epoch in zip(points["epoch/" + tag], record["epochs"]):
                        self.assertAlmostEqual(value / epoch[tag], 1, places=5)
                exchange = [value for _, value in points["epoch/exposed_exchange_ms"]]
                self.assertEqual(len(exchange), 2)
                if workers > 1:
                    self.assertTrue(all(value > 0 for value in exchange), exchange)

    def test_a_program_without_standard_streams_writes_whole_files(self):
        for closed in (">&-", "<&- >&- 2>&-"):
            folder = self.path("events" + closed)
            done = self.run_to_end(["sh", "-c", 'exec "$@" ' + closed, "sh", WORKER, *SMALL_JOB,
                                    "--tensorboard_dir=" + folder, "--tensorboard_every_steps=3"])
            self.assertEqual(done.returncode, 0, done.output)
            name, = os.listdir(folder)
            self.assertEqual([step for step, _ in scalars(os.path.join(folder, name))["step/loss"]], [2, 5, 8, 11])

    def test_a_folder_that_cannot_be_written_is_refused(self):
        with open(self.path("file"), "w"):
            pass
        done = self.run_to_end([WORKER, *SMALL_JOB, "--tensorboard_dir=" + self.path("file/events")], deadline_s=60)
        self.assertEqual(done.returncode, REFUSED, done.output)
        for word in ("--tensorboard_dir", self.path("file/events"), "folder"):
            self.assertIn(word, done.output)


class MetricsTest(JobTest):

    def wait_for_urls(self, process, count):
        end = time.monotonic() + 60
        while True:
            found = re.findall(r"(worker|server) (\d+): metrics at (http://\S+)", self.output_of(process))
            if len(found) >= count:
                return {f"{role} {number}": url for role, number, url in found}
            if process.poll() is not None or time.monotonic() > end:
                self.fail("no metrics are announced:\n" + self.output_of(process))
            time.sleep(0.02)  # a file has no event to wait for

    def scrape(self, url):
        with urllib.request.urlopen(url, timeout=10) as answer:
            self.assertIn("text/plain", answer.headers["Content-Type"])
            text = answer.read().decode()
        return {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", text, re.M)}

    def scrape_until(self, process, url, done):
        """Polls the metrics of a running job until `done` accepts them. Returns them."""
        end = time.monotonic() + 60
        while True:
            try:
                numbers = self.scrape(url)
                if done(numbers):
                    return numbers
            except urllib.error.URLError:
                pass
            if process.poll() is not None or time.monotonic() > end:
                self.fail("these numbers never appeared:\n" + self.output_of(process))
            time.sleep(0.02)  # polls a running process

    def test_star_while_it_runs(self):
        # The job runs until it is stopped, so the test does not depend on its speed.
        flags = [*SMALL_JOB, "--epochs=1000000"]
        flags.remove("--epochs=2")
        process = self.start(self.job_command("star", workers=2, servers=2, flags=flags,
                                              launch_flags=["--metrics_port=0"]))
        urls = self.wait_for_urls(process, 4)
        self.assertTrue(all(url.startswith("http://127.0.0.1:") for url in urls.values()), urls)
        first = self.scrape_until(process, urls["worker 0"], lambda n: n.get("starring_epochs_finished", 0) >= 1)
        later = self.scrape_until(process, urls["worker 0"],
                                  lambda n: n["starring_steps_total"] > first["starring_steps_total"] + 7)
        for name in ("starring_samples_total", "starring_exchange_sent_bytes_total",
                     "starring_exchange_received_bytes_total", 'starring_step_seconds_total{part="forward"}',
                     'starring_step_seconds_total{part="exposed_exchange"}'):
            self.assertGreater(later[name], first[name], name)
        self.assertGreater(first["starring_loss"], 0)
        self.assertGreater(first["starring_samples_per_second"], 0)
        self.assertLessEqual(first["starring_test_accuracy_ratio"], 1)
        for shard in (0, 1):
            numbers = self.scrape_until(process, urls[f"server {shard}"],
                                        lambda n: n.get("starring_server_sums_total", 0) >= 20)
            last = [numbers[f'starring_server_worker_last_total{{rank="{rank}"}}'] for rank in (0, 1)]
            late = [numbers[f'starring_server_worker_late_seconds_total{{rank="{rank}"}}'] for rank in (0, 1)]
            # A scrape may fall between two updates.
            self.assertAlmostEqual(sum(last), numbers["starring_server_sums_total"], delta=1)
            self.assertGreater(numbers["starring_server_sum_seconds_total"], 0)
            self.assertGreater(numbers["starring_server_queue_seconds_total"], 0)
            self.assertGreater(sum(late), 0)
            self.assertGreater(numbers["starring_server_received_bytes_total"], 0)
            self.assertGreater(numbers["starring_server_sent_bytes_total"], 0)
            self.assertGreater(numbers["starring_server_steps_complete"], 0)
        process.terminate()
        self.assertEqual(self.finish(process).returncode, 0, self.output_of(process))

    def test_a_taken_port_is_refused(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for command in ([WORKER, *SMALL_JOB], [SERVER, "--listen=127.0.0.1:0"]):
                done = self.run_to_end([*command, f"--metrics_port={port}"], deadline_s=60)
                self.assertEqual(done.returncode, REFUSED, done.output)
                for word in (str(port), "taken", "another --metrics_port"):
                    self.assertIn(word, done.output)

    def test_wrong_values(self):
        for flag, word in (("--metrics_port=-2", "from -1 to 65535"), ("--metrics_port=70000", "65535"),
                           ("--tensorboard_every_steps=0", "from 1 to")):
            done = self.run_to_end([WORKER, *SMALL_JOB, flag], deadline_s=60)
            self.assertEqual(done.returncode, REFUSED, done.output)
            self.assertIn(word, done.output)
        done = self.run_to_end([SERVER, "--listen=127.0.0.1:0", "--shard=5", "--shard_count=6",
                                "--metrics_port=65531"], deadline_s=60)
        self.assertEqual(done.returncode, REFUSED, done.output)
        self.assertIn("65536", done.output)


if __name__ == "__main__":
    unittest.main()
