"""Tests deploy/count_tests.py: no problem may be counted as success."""

import json
import os
import tempfile
import unittest

from deploy import count_tests

GTEST = """<?xml version="1.0"?><testsuites><testsuite name="A">
  <testcase name="Passes" status="run" result="completed" classname="A" />
  <testcase name="Fails" status="run" result="completed" classname="A"><failure message="\x01"/></testcase>
  <testcase name="Skips" status="run" result="skipped" classname="A"><skipped message="why"/></testcase>
  <testcase name="DISABLED_Sleeps" status="notrun" result="suppressed" classname="A" />
</testsuite></testsuites>"""
PASSING = '<testsuites><testsuite><testcase name="Passes" status="run" classname="A"/></testsuite></testsuites>'
EMPTY = "<testsuites/>"
# The file that Bazel writes for a test that writes none.
LOG = """<testsuites><testsuite><testcase name="t" status="run"{}</testcase><system-out>
Generated test.log:
<![CDATA[Executing tests from //t
-----
{}]]></system-out></testsuite></testsuites>"""
FINISHED = {"id": {"buildFinished": {}}, "finished": {"exitCode": {"name": "SUCCESS"}}}


class CountTestsTest(unittest.TestCase):

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self._file_count = 0

    def events_of(self, label, status, *xmls, summary=True):
        """The events of a test that was built, with one attempt for each text in `xmls`."""
        events = [{"id": {"targetCompleted": {"label": label}}, "children": [{"testSummary": {"label": label}}],
                   "completed": {"success": True}}]
        for text in xmls:
            self._file_count += 1
            path = os.path.join(self._folder.name, f"test {self._file_count}.xml")
            with open(path, "w", encoding="latin-1") as file:
                file.write(text)
            outputs = [{"name": "test.xml", "uri": "file://" + path.replace(" ", "%20")}]
            events.append({"id": {"testResult": {"label": label, "run": 1, "shard": 1}},
                           "testResult": {"testActionOutput": outputs}})
        if summary:
            events.append({"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status}})
        return events

    def count(self, *events):
        return str(count_tests.count_run(list(events)))

    def test_counts_cases(self):
        count = count_tests.count_run([*self.events_of("//a", "FAILED", GTEST), FINISHED])
        self.assertEqual(str(count), "1 passed, 1 failed, 2 skipped")
        self.assertEqual(count.failed, ["//a A.Fails"])
        self.assertEqual(count.skipped, ["//a A.Skips", "//a A.DISABLED_Sleeps"])

    def test_counts_the_cases_of_a_log(self):
        for log, counted in (("Ran 20 tests in 0.1s\n\nOK\n", "20 passed, 0 failed, 0 skipped"),
                             ("Ran 1 test in 0.1s\n\nOK (skipped=1)\n", "0 passed, 0 failed, 1 skipped"),
                             ("...s\nRan 4 tests in 0.1s\n\nOK (skipped=3)\n", "1 passed, 0 failed, 3 skipped"),
                             ("SKIPPED: no torch\n", "0 passed, 0 failed, 1 skipped"),
                             ("all of the script's checks passed\n", "1 passed, 0 failed, 0 skipped")):
            self.assertEqual(self.count(*self.events_of("//t", "PASSED", LOG.format(">", log)), FINISHED), counted)
        log = "Ran 20 tests in 0.1s\n\nFAILED (errors=1)\n"
        failed = self.events_of("//t", "FAILED", LOG.format('><failure message="1"/>', log))
        self.assertEqual(self.count(*failed, FINISHED), "0 passed, 1 failed, 0 skipped")

    def test_any_byte_in_a_message(self):
        text = GTEST.replace('message="why"', 'message="\xff\x02"')
        self.assertEqual(self.count(*self.events_of("//a", "FAILED", text), FINISHED), "1 passed, 1 failed, 2 skipped")

    def test_ended_badly_after_its_cases_passed(self):
        self.assertEqual(self.count(*self.events_of("//a", "FAILED", PASSING), FINISHED),
                         "1 passed, 1 failed, 0 skipped")

    def test_ran_nothing(self):
        self.assertEqual(self.count(*self.events_of("//a", "PASSED", EMPTY), FINISHED),
                         "0 passed, 1 failed, 0 skipped")
        self.assertEqual(self.count(*self.events_of("//a", "PASSED", "not xml"), FINISHED),
                         "0 passed, 1 failed, 0 skipped")
        self.assertEqual(self.count(*self.events_of("//a", "PASSED"), FINISHED), "0 passed, 1 failed, 0 skipped")

    def test_never_summed_up(self):
        self.assertEqual(self.count(*self.events_of("//a", "", summary=False), FINISHED),
                         "0 passed, 1 failed, 0 skipped")

    def test_last_attempt_counts(self):
        self.assertEqual(self.count(*self.events_of("//a", "FLAKY", GTEST, PASSING), FINISHED),
                         "1 passed, 0 failed, 0 skipped")

    def test_did_not_build(self):
        library = {"id": {"targetCompleted": {"label": "//l"}}, "completed": {}}
        test = {"id": {"targetCompleted": {"label": "//t"}}, "completed": {},
                "children": [{"testSummary": {"label": "//t"}}]}
        aborted = {"id": {"targetCompleted": {"label": "//u"}}, "aborted": {"reason": "ANALYSIS_FAILURE"}}
        summary = {"id": {"testSummary": {"label": "//t"}}, "testSummary": {"overallStatus": "NO_STATUS"}}
        self.assertEqual(self.count(library, test, aborted, summary, FINISHED), "0 passed, 3 failed, 0 skipped")

    def test_incompatible_is_not_counted(self):
        skipped = {"id": {"targetCompleted": {"label": "//t"}}, "aborted": {"reason": "SKIPPED"}}
        self.assertEqual(self.count(skipped, FINISHED), "0 passed, 0 failed, 0 skipped")

    def test_clang_tidy(self):
        approved = {"id": {"targetCompleted": {"label": "//a"}},
                    "completed": {"success": True, "outputGroup": [{"name": "tidy"}]}}
        nothing_to_check = {"id": {"targetCompleted": {"label": "//b"}}, "completed": {"success": True}}
        refused = {"id": {"targetCompleted": {"label": "//c"}}, "completed": {"outputGroup": [{"name": "tidy"}]}}
        self.assertEqual(self.count(approved, nothing_to_check, refused, FINISHED), "1 passed, 1 failed, 0 skipped")

    def test_bazel_itself_failed(self):
        passing = self.events_of("//a", "PASSED", PASSING)
        self.assertEqual(self.count(*passing), "1 passed, 1 failed, 0 skipped")
        refused = {"id": {"buildFinished": {}}, "finished": {"exitCode": {"name": "PARSING_FAILURE", "code": 1}}}
        self.assertEqual(self.count(*passing, refused), "1 passed, 1 failed, 0 skipped")

    def test_times(self):
        def ran(label, milliseconds, **how):
            return {"id": {"testResult": {"label": label}},
                    "testResult": {"testAttemptDurationMillis": str(milliseconds), **how}}

        started = {"id": {"started": {}}, "started": {"startTimeMillis": "1000"}}
        finished = {**FINISHED, "finished": {**FINISHED["finished"], "finishTimeMillis": "61000"}}
        tests = [ran("//short", 10), ran("//long", 5000), ran("//cached", 9000, cachedLocally=True),
                 ran("//fetched", 9000, executionInfo={"cachedRemotely": True}), ran("//long", 7000)]
        count = count_tests.count_run([started, *tests, *self.events_of("//a", "PASSED", PASSING), finished])
        self.assertEqual(count.seconds, 60)
        self.assertEqual(count.slowest, [(7, "//long"), (0.01, "//short"), (0, "//a")])

        path = os.path.join(self._folder.name, "timed")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(event) + "\n"
                            for event in [started, *self.events_of("//a", "PASSED", PASSING), finished])
        self.assertEqual(count_tests.main([f"plain:40={path}"]), 0)  # 1.5 times the budget is still allowed
        self.assertEqual(count_tests.main([f"plain:39={path}"]), 1)
        self.assertEqual(count_tests.main(["--pace=2", f"plain:20={path}"]), 0)
        self.assertEqual(count_tests.main(["--pace=2", f"plain:19={path}"]), 1)

    def test_exit_status(self):
        path = os.path.join(self._folder.name, "events")
        for events, status in (([*self.events_of("//a", "PASSED", PASSING), FINISHED], 0),
                               ([*self.events_of("//a", "FAILED", GTEST), FINISHED], 1), ([FINISHED], 1), ([], 1)):
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(event) + "\n" for event in events)
            self.assertEqual(count_tests.main([f"plain={path}"]), status)
        with open(path, "a", encoding="utf-8") as file:
            file.write('{"cut')
        self.assertEqual(count_tests.main([f"plain={path}"]), 1)
        self.assertEqual(count_tests.main(["plain=/nowhere"]), 1)


if __name__ == "__main__":
    unittest.main()
