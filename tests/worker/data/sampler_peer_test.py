"""The shuffle of worker/data/sampler.h in Python, for peers that must visit samples in our order.

sampler_test.cc expects the same lists from the C++ side.
"""

import unittest

SHUFFLE = 2  # RandomPurpose::kShuffle
MASK = 0xFFFFFFFF


def philox4x32(counter, key):
    """Ten rounds; common/arithmetic/philox.h."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def permutation(sample_count, seed, epoch):
    """The order in which `epoch` visits the samples."""
    key = [seed & MASK, seed >> 32]
    order = list(range(sample_count))
    for i in range(sample_count - 1, 0, -1):
        word = philox4x32([i // 4 & MASK, i // 4 >> 32, epoch, SHUFFLE << 24], key)[i % 4]
        j = word * (i + 1) >> 32
        order[i], order[j] = order[j], order[i]
    return order


class PermutationTest(unittest.TestCase):

    def test_philox_matches_the_published_vector(self):
        self.assertEqual(philox4x32([0] * 4, [0] * 2), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])

    def test_permutation_is_the_one_sampler_test_expects(self):
        self.assertEqual(permutation(10, 0, 0), [3, 4, 8, 7, 0, 6, 9, 5, 1, 2])
        self.assertEqual(permutation(10, 0x123456789ABCDEF0, 7), [1, 7, 3, 4, 2, 8, 0, 5, 6, 9])


if __name__ == "__main__":
    unittest.main()
