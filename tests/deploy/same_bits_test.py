"""Tests the digests by which a libstarring.so is compared with GCC's, with the library that GCC built."""

import os
import unittest
from unittest import mock

from deploy.wheel import same_bits

GCC_LIBRARY = os.path.abspath("worker/python/libstarring.so")


class SameBitsTest(unittest.TestCase):
    def test_digests(self):
        with mock.patch.dict(os.environ):
            found = same_bits.digests(GCC_LIBRARY)
        self.assertEqual(set(found), {"batches", "star with 0 servers", "star with 1 servers", "ring with 0 servers"})
        # Servers change no bit. A ring adds in another order, which shows that the digest sees single bits.
        self.assertEqual(found["star with 0 servers"], found["star with 1 servers"])
        self.assertNotEqual(found["star with 0 servers"], found["ring with 0 servers"])

    def test_a_rank_that_fails_is_named(self):
        with mock.patch.dict(os.environ), self.assertRaisesRegex(RuntimeError, "batches: StarringError: there is no"):
            same_bits.digests("/nowhere/libstarring.so")


if __name__ == "__main__":
    unittest.main()
