"""Tests the stranger's encoding: an attack that sends wrong bytes by mistake would prove nothing."""

import socket
import struct
import threading
import unittest

from bench.strangers import http2
from bench.strangers.http2 import Connection, fields, frame, message

DEADLINE_S = 20


class BytesTest(unittest.TestCase):
    def test_protobuf(self):
        self.assertEqual(fields((1, 150)), b"\x08\x96\x01")
        self.assertEqual(fields((2, b"testing")), b"\x12\x07testing")
        self.assertEqual(fields((3, ("fixed64", 1))), b"\x19\x01" + bytes(7))
        self.assertEqual(fields((1, -1)), b"\x08" + b"\xff" * 9 + b"\x01")

    def test_frames_and_messages(self):
        self.assertEqual(frame(http2.PING, http2.ACK, 0, b"12345678"), b"\0\0\x08\x06\x01\0\0\0\0" + b"12345678")
        self.assertEqual(message(b"abc"), b"\0\0\0\0\x03abc")
        self.assertEqual(message(b"", compressed=True, length=(1 << 32) - 1), b"\x01\xff\xff\xff\xff")

    def test_headers(self):
        block = http2.headers("Join", "gzip")
        self.assertTrue(block.startswith(b"\x83\x86\0\x05:path\x21/starring.v1.ParameterServer/Join"))
        self.assertIn(b"\0\x0dgrpc-encoding\x04gzip", block)


class ConnectionTest(unittest.TestCase):
    """Tests a connection to a socket that answers with the test's frames."""

    def setUp(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        self.taken = bytearray()
        accepted = []
        thread = threading.Thread(target=lambda: accepted.append(listener.accept()[0]))
        thread.start()
        self.client = Connection("127.0.0.1:%d" % listener.getsockname()[1])
        self.addCleanup(self.client.close)
        thread.join(DEADLINE_S)
        self.server = accepted[0]
        self.server.settimeout(DEADLINE_S)
        self.addCleanup(self.server.close)

    def test_keeps_the_windows(self):
        stream = self.client.new_stream("Exchange")
        self.assertEqual(self.client.send_data(stream, bytes(100000), patience_s=0), 65535)
        more = struct.pack(">I", 1000)
        self.server.sendall(frame(http2.WINDOW_UPDATE, 0, 0, more) + frame(http2.WINDOW_UPDATE, 0, stream, more))
        self.assertEqual(self.client.send_data(stream, bytes(100000), patience_s=0.2), 1000)

    def test_counts_answers_and_ends_streams(self):
        stream = self.client.new_stream("Join")
        self.server.sendall(frame(http2.DATA, 0, stream, message(b"x")) + frame(http2.RST_STREAM, 0, stream, bytes(4)))
        self.assertTrue(self.client.read(DEADLINE_S))
        self.assertEqual(self.client.answers, 1)
        self.assertEqual(self.client.send_data(stream, b"more"), 0)

    def test_notices_the_end(self):
        self.server.close()
        while self.client.read(DEADLINE_S):
            pass
        self.assertFalse(self.client.open)
        self.assertFalse(self.client.send(b"more"))


if __name__ == "__main__":
    unittest.main()
