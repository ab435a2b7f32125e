"""Runs the tests of a file at the same time: for those that wait for processes and their deadlines."""

import sys
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Iterator


def _tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests_of(test)
        else:
            yield test


def main(count: int) -> None:
    """As unittest.main, with `count` tests at a time. Each needs folders and ports of its own. No class may have a
    setUpClass."""
    module = sys.modules["__main__"]
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(sys.argv[1:], module) if sys.argv[1:] else loader.loadTestsFromModule(module)

    def run(test: unittest.TestCase) -> unittest.TestResult:
        result = unittest.TestResult()
        test.run(result)
        return result

    tests = list(_tests_of(suite))
    begin = time.monotonic()
    with ThreadPoolExecutor(max_workers=count) as pool:
        results = list(pool.map(run, tests))
    failed = skipped = 0
    for result in results:
        skipped += len(result.skipped)
        for test, text in (*result.failures, *result.errors):
            failed += 1
            print("=" * 70, "FAIL: %s" % test.id(), text, sep="\n", file=sys.stderr)
    print("-" * 70, "Ran %d tests in %.3fs\n" % (len(tests), time.monotonic() - begin), sep="\n", file=sys.stderr)
    verdict = "FAILED (failures=%d)" % failed if failed else "OK (skipped=%d)" % skipped if skipped else "OK"
    print(verdict, file=sys.stderr)
    sys.exit(1 if failed or not tests else 0)
