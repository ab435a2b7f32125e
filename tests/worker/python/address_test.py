"""Tests addresses as text, of IPv4 and of IPv6."""

import socket
import unittest
from unittest import mock

from starring import _address


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


class AddressTest(unittest.TestCase):
    def test_an_ipv6_host_is_in_brackets(self):
        for text, host in (("127.0.0.1:80", "127.0.0.1"), ("a.b:80", "a.b"), ("[::1]:80", "::1")):
            self.assertEqual(_address.split(text), (host, 80))
            self.assertEqual(_address.join(host, 80), text)
        self.assertEqual(_address.join("[::1]", 80), "[::1]:80")
        for text in ("here", ":80", "::1:80", "[::1]", "here:", "here:x", "[here]:80x"):
            with self.assertRaisesRegex(ValueError, "host:port"):
                _address.split(text)

    def test_loopback(self):
        for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]"):
            self.assertTrue(_address.is_loopback(host), host)
        for host in ("10.0.0.1", "fd00::1", "localhost.example.org"):
            self.assertFalse(_address.is_loopback(host), host)

    def test_listens_on_what_the_host_has(self):
        hosts = ["127.0.0.1", "localhost"] + (["::1", "[::1]"] if has_ipv6() else [])
        for host in hosts:
            with _address.listen(host, 4) as listener:
                address = _address.join(host, listener.getsockname()[1])
                with socket.create_connection(_address.split(address), timeout=10):
                    pass
        with self.assertRaises(OSError):
            _address.listen("192.0.2.1")

    def test_listens_in_a_range(self):
        with _address.listen("127.0.0.1") as first:
            port = first.getsockname()[1]
            one = f"{port}-{port}"
            with self.assertRaisesRegex(OSError, f"no port from {port} to {port} is free: .* widen port_range"):
                _address.listen("127.0.0.1", port_range=one)
        with _address.listen("localhost", port_range=one) as again:
            self.assertEqual(again.getsockname()[1], port)
        for text in ("7000", "7100-7000", "0-1", "1-65536", "a-b", "-", "1-2-3"):
            with self.assertRaisesRegex(ValueError, "is not first-last, such as 7000-7100"):
                _address.listen("127.0.0.1", port_range=text)

    @unittest.skipUnless(has_ipv6(), "this machine has no IPv6")
    def test_a_name_may_mean_an_ipv6_address_only(self):
        six = [(socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", 0, 0, 0))]
        with mock.patch.object(_address.socket, "getaddrinfo", return_value=six):
            with _address.listen("localhost") as listener:
                self.assertEqual(listener.getsockname()[0], "::1")

    def test_the_address_from_which_another_host_is_reached(self):
        self.assertEqual(_address.own_address_towards("127.0.0.1"), "127.0.0.1")
        if has_ipv6():
            self.assertEqual(_address.own_address_towards("[::1]"), "::1")
        self.assertIsNone(_address.own_address_towards("no such host"))


if __name__ == "__main__":
    unittest.main()
