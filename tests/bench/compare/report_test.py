"""Tests the report: a self-contained file with all measurements, and without a winner if the losses do not agree.

The numbers in sample_results.json are invented."""

import copy
import html.parser
import os
import re
import shlex
import sys
import tempfile
import unittest
from unittest import mock

# matplotlib's cache of fonts goes to a folder that a test may write.
os.environ.setdefault("MPLCONFIGDIR", os.environ.get("TEST_TMPDIR", tempfile.gettempdir()))

try:
    import jinja2  # noqa: F401
    import matplotlib  # noqa: F401
except ImportError as error:
    print(f"SKIPPED: {error}, so nothing of the report was tested: apt-get install python3-matplotlib python3-jinja2",
          file=sys.stderr)
    sys.exit(0)

import analysis
import made_results
import ratios
import results as schema
from report import figures, plots, svg
from report.write import write_report

SAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sample_results.json")
SUMMARY_LINES_MAX = 60
VOID = ("meta", "link", "br", "hr", "img", "input", "col", "wbr")
HOSTILE = """</style><script>alert("x")</script><img src=x onerror=alert(1)>|`&'"""


class Page(html.parser.HTMLParser):
    """Checks that tags are balanced and ids unique; collects text, ids, links and resources to load."""

    def __init__(self, text):
        super().__init__()
        self.open, self.problems, self.ids, self.links, self.loads, self.text = [], [], [], [], [], []
        self.counts = {}
        self.feed(text)
        self.close()
        if self.open:
            self.problems.append(f"never closed: {self.open}")

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            elif name == "href" and tag == "a":
                self.links.append(value)
            elif name in ("src", "srcset", "data", "poster", "action") or name == "href":
                self.loads.append((tag, value))
            elif name.startswith("on"):
                self.problems.append(f"<{tag} {name}>")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self):
        return " ".join("".join(self.text).split())


class ReportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.results = schema.read(SAMPLE)
        cls.analysis = analysis.analyse(cls.results)
        cls.html, cls.summary = cls.write(cls.results, cls.analysis)
        cls.page = Page(cls.html)

    @staticmethod
    def write(results, found):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "report")
            path = write_report(results, found, out)
            assert sorted(os.listdir(out)) == ["index.html", "summary.md"], os.listdir(out)
            summary_path = os.path.join(out, "summary.md")
            with open(path, encoding="utf-8") as page, open(summary_path, encoding="utf-8") as summary:
                return page.read(), summary.read()

    def assert_shown(self, expected, text):
        """Like assertIn, but without the whole page in the message."""
        self.assertTrue(expected in text, f"not shown: {expected}")

    def changed(self, **changes):
        return {**copy.deepcopy(self.results), **changes}

    def few(self, *wanted):
        """A page with only some configurations, because one with all panels takes seconds."""
        return self.changed(configurations=[one for one in copy.deepcopy(self.results["configurations"])
                                            if one["id"] in wanted], training=[], exchanges=[], buckets=[],
                            missing_exchanges=[], predictions=[], uneven=None)

    def summary_of(self, results, found):
        """The summary alone, without the time that plots take."""
        with mock.patch.object(figures, "draw", return_value=[]):
            return self.write(results, found)[1]

    def test_is_well_formed(self):
        self.assertEqual(self.page.problems, [])
        self.assertEqual(len(self.page.ids), len(set(self.page.ids)))
        self.assertTrue(self.html.startswith("<!DOCTYPE html>"))

    def test_needs_nothing_beside_it(self):
        self.assertNotIn("script", self.page.counts)
        self.assertNotIn("link", self.page.counts)
        for tag, target in self.page.loads:
            self.assertTrue(target.startswith("#"), f"<{tag}> loads {target}")
            self.assertIn(target[1:], self.page.ids)
        for target in re.findall(r"url\(([^)]*)\)", self.html):
            self.assertIn(target[1:], self.page.ids)
        self.assertFalse("@import" in self.html)
        beside = [link for link in self.page.links if not link.startswith(("#", "https://ui.perfetto.dev"))]
        self.assertEqual(set(beside), {"summary.md", "results.json", "runs.csv", "./trace.json"})
        for link in self.page.links:
            if link.startswith("#"):
                self.assertIn(link[1:], self.page.ids)

    def test_shows_everything(self):
        words = self.page.words
        for sentence in self.analysis["verdict"]:
            self.assert_shown(" ".join(sentence.split()), words)
        for one in self.results["configurations"]:
            self.assert_shown(one["id"], words)
            self.assert_shown(shlex.join(one["command"]), words)
        for group in self.analysis["groups"]:
            for row in group["rows"]:
                self.assert_shown(f"{row['samples_per_second']['median']:,.0f}", words)
                self.assert_shown(row["bottleneck"]["why"], words)
        for version in self.results["versions"].values():
            self.assert_shown(version, words)
        for expected in ("4 hosts at 1 Gbit/s", "oversubscribed", "dataloader-batches", "74,659", "64 MB",
                         "bucket_cap_mb=1", *self.results["notes"], *self.results["peer_notes"]):
            self.assert_shown(expected, words)
        self.assertFalse('id="banner"' in self.html)

    def test_every_plot_says_what_it_is(self):
        for family in ("throughput", "steps", "breakdown", "scaling", "training", "exchange", "cpu"):
            self.assertIn(family, self.page.ids)
            self.assertIn(f"{family}-caption", self.page.ids)
        plots = re.findall(r"<svg ([^>]*)>", self.html)
        self.assertGreater(len(plots), 15)
        for attributes in plots:
            self.assertRegex(attributes, r'role="img" aria-label="[^"]{20,}"')
        for unit in ("samples/s", "ms per step", "seconds of training", "latency, µs", "bus bandwidth, GB/s",
                     "CPU use, % of one core", "test accuracy, %", "times as fast as the first of the two"):
            self.assert_shown(unit, self.page.words)

    def test_plots_fill_the_page(self):
        css = self.html[self.html.index("<style>"):self.html.index("</style>")]
        rem = float(re.search(r"body \{[^}]*max-width: ([\d.]+)rem; padding: \S+ clamp\([^)]*2rem\)", css)[1]) - 4
        self.assertEqual(rem * 16, svg.PAGE_WIDTH)
        families = re.findall(r'<div class="panels (\w+)">(.*?)</figure>\n</div>', self.html, re.S)
        self.assertEqual(len(families), len(set(re.findall(r'id="(\w+)-caption"', self.html))))
        for _, family in families:
            figures_of = re.findall(r'<figure class="of-(\d)"(.*?)(?=<figure|$)', family, re.S)
            free = 6  # tracks of the row
            for columns, body in figures_of:
                free -= 6 // int(columns)
                self.assertGreaterEqual(free, 0, "a panel does not fit in its row")
                free = free or 6
                widths = [int(width) for width in re.findall(r'<svg viewBox="0 0 (\d+) ', body)]
                wide = svg.WIDTHS.get(int(columns))
                self.assertEqual(widths, [svg.WIDTH, wide] if wide else [svg.WIDTH])
                self.assertLessEqual(int(columns) * (wide or svg.WIDTH) + (int(columns) - 1) * svg.GAP, svg.PAGE_WIDTH)
            self.assertEqual(free, 6, "the last row is not full")

    def test_rows_of_panels_are_full(self):
        for count in range(1, 40):
            columns = figures.columns_of(count)
            self.assertEqual(len(columns), count)
            self.assertEqual(sum(6 // one for one in columns) % 6, 0, columns)
        self.assertEqual(figures.columns_of(0), [])
        self.assertEqual(figures.columns_of(5), [3, 3, 3, 2, 2])

    def test_cells_side_by_side_and_step_by_step(self):
        group = next(group for group in self.analysis["groups"] if group["section"] == "netlab:4+4,1gbit")
        words = self.page.words
        for step in [*group["steps"]["path"], group["steps"]["total"]]:
            self.assert_shown(ratios.text(step["ratio"]), words)
        for change in ("topology: ring to star", "placement: in the ranks to in servers; transport: mpi to grpc "
                       "2 differences", "placement: in servers to in servers on hosts of their own",
                       "star, owners in servers on hosts of their own"):
            self.assert_shown(change, words)
        product = " × ".join(ratios.value_text(step["ratio"]) for step in group["steps"]["path"])
        self.assert_shown("total: " + product, words)
        self.assertIn("steps", self.page.ids)
        total = group["steps"]["total"]["ratio"]
        self.assert_shown(f"ring → star on own hosts {ratios.value_text(total)} \\[", self.summary)

    def test_no_steps_without_two_cells(self):
        page = Page(self.write(*self.analysed(self.few("lenet5/ring/2w/equal-workers/weak",
                                                       "lenet5/ddp/2w/equal-workers/weak")))[0])
        self.assertNotIn("steps", page.ids)
        self.assertFalse("cell by cell" in page.words)

    def test_says_that_few_repeats_decide_nothing(self):
        few = self.few("lenet5/ring/2w/equal-workers/weak", "lenet5/star/2w/equal-workers/weak")
        for one in few["configurations"]:
            del one["runs"][6:]
        page = Page(self.write(*self.analysed(few))[0])
        self.assert_shown("undecided 6 of 7 repeats", page.words)
        self.assert_shown("With fewer than 7 repeats nothing is decided", page.words)
        self.assertFalse("undecided" in self.page.words)

    def test_what_was_not_measured_has_its_reason(self):
        self.assert_shown("mpi4py not measured: no python3 here has mpi4py: apt-get install python3-mpi4py",
                          self.page.words)
        only = dict(self.few(), missing_exchanges=self.results["missing_exchanges"])
        self.assert_shown("mpi4py not measured", Page(self.write(*self.analysed(only))[0]).words)

    def test_shows_whose_buckets_are_larger_than_asked(self):
        self.assert_shown("mlp, 2w ■ ring 256 KB 29 112 KB 112 KB, 28 × 256 KB", self.page.words)
        self.assert_shown("mlp, 2w ◆ ddp 256 KB 2 4.04 MB 4.04 MB, 3.07 MB", self.page.words)
        self.assertFalse("Buckets: DDP" in Page(self.write(*self.analysed(self.few()))[0]).words)

    def test_two_workers_on_one_gpu_are_beside_their_control_and_ddp(self):
        self.assertNotIn("gpu-cells", self.page.ids)
        results = dict(self.few(), gpu_cells=made_results.make_gpu_cells())
        html, summary = self.write(*self.analysed(results))
        words = Page(html).words
        self.assert_shown("On cuda:0 (a GPU)", words)
        for row in ("mlp, batch 512", "one process 0.300 – – – – 1a1a1a1a1a1a", "control 0.600 – – – – 2b2b2b2b2b2b",
                    "ring:tcp:--same_host=gpu_memory 0.800 0.200 0.100, 0.400 3 pairs 0.250 0.310 3c3c3c3c3c3c",
                    "ddp 6.600 6.000 5.900, 6.200 3 pairs – 5.500 4d4d4d4d4d4d",
                    "nccl:tcp – – – – – exit status 2: no NCCL"):
            self.assert_shown(row, words)
        self.assert_shown("ring:tcp:--same_host=gpu_memory 0.200 ms, ddp 6.000 ms.", summary)

    def test_what_is_planned_is_named_as_such(self):
        self.assert_shown("Planned by bench:plan and not measured", self.page.words)
        self.assert_shown("Planned by bench:plan and not measured", self.summary)

    def test_uneven_and_failing_workers(self):
        words = self.page.words
        self.assertIn("uneven", self.page.ids)
        for sentence in [*self.analysis["uneven"]["sentences"], self.analysis["uneven"]["verdict"]]:
            self.assert_shown(sentence, words)
        for expected in ("■ the ring 3,121 ± 1.4 % 1,580 ± 1.0 % 51 % 1,310 ± 2.2 % 42 % 2 2: 1,322, 6: 1,290, 18: 804",
                         "◎ the elastic star 2,990 ± 1.2 % 2,130 ± 1.5 % 71 % 2,480 ± 1.7 % 83 % snapshots",
                         "tuned PyTorch DDP not measured: it failed twice: torchrun ended with 1:",
                         "1 11, 5 20.9, 42.1 11, 5 229.9 240.2 1.04 1 in 4 min 56 s",
                         "slowed by a control group with half of a core", "--restart_processes=1000",
                         "is a hyperparameter: each of the 16 is normalised by its own mean and variance"):
            self.assert_shown(expected, words)
        self.assert_shown("That decides for the elastic star", self.summary)
        self.assert_shown("| the elastic star | 2,990 | 2,130 | 2,480 |", self.summary)
        self.assertNotIn("uneven", Page(self.write(*self.analysed(self.few()))[0]).ids)

    def test_every_colour_of_a_plot_is_one_of_the_style(self):
        defined = set(re.findall(r"(--[\w-]+):", self.html[:self.html.index("</style>")]))
        self.assertLessEqual(set(re.findall(r"var\((--[\w-]+)\)", self.html)), defined)
        self.assertLessEqual({"--" + name for name in svg.COLOR_NAMES}, defined)
        for plot in re.findall(r"<svg .*?</svg>", self.html, re.S):
            self.assertEqual(re.findall(r"(?:fill|stroke): *#\w+", plot), [])
            self.assertIn("var(--", plot)

    def test_light_and_dark_define_the_same_names(self):
        light, dark = re.findall(r":root \{(.*?)\}", self.html, re.S)
        self.assertEqual(set(re.findall(r"--[\w-]+:", light)), set(re.findall(r"--[\w-]+:", dark)))

    def test_the_verdict_has_a_bar_for_each_sync(self):
        rows = [row for one in self.analysis["headline"] for row in one["rows"]]
        self.assertEqual(self.html.count('<span class="bar"'), len(rows))
        self.assert_shown("width: 100.0%", self.html)

    def test_models_of_numbers_have_an_error(self):
        numbers = self.few()
        numbers["training"] = copy.deepcopy([one for one in self.results["training"] if one["sync"] in ("star", "ddp")])
        for one in numbers["training"]:
            if one["model"] == "mlp":
                one.update(model="net.textproto", target_accuracy=0.0, target_rmse=0.655)
                for epoch in one["epochs"]:
                    epoch.update(test_accuracy=0, test_rmse=3.2109 / (1 + epoch["epoch"]))
        page = Page(self.write(*self.analysed(numbers))[0])
        for expected in ("Loss and accuracy or RMSE against time", "RMSE: net.textproto, 2 workers", "test RMSE",
                         "lower is better", "target 0.655", "accuracy or RMSE best epoch", "0.6422",
                         "Accuracy: lenet5", "test accuracy, %"):
            self.assert_shown(expected, page.words)
        self.assertEqual(page.problems, [])
        self.assertFalse("RMSE" in self.page.words)

    def test_the_test_set_at_the_end(self):
        numbers = self.few()
        numbers["training"] = copy.deepcopy(self.results["training"][:4])
        tests = [{"loss": "softmax", "accuracy": 0.8765, "top5_accuracy": 0.9912, "confusion": [871, 12, 13, 4]},
                 {"loss": "softmax", "accuracy": 0.8766, "top5_accuracy": 0.9912, "confusion": [871, 12, 13, 4]},
                 {"loss": "bce", "accuracy": 0.5, "auc": 0.93214}, {"loss": "mse", "rmse": 1.23456, "r2": -0.5}]
        for one, test in zip(numbers["training"], tests):
            one["test"] = {"mean_loss": 0.3114, "accuracy": 0, "top5_accuracy": 0, "auc": 0, "rmse": 0, "r2": 0,
                           "confusion": [], **test}
        numbers["training"][3]["test"]["mean_loss"] = "NaN"
        page = Page(self.write(*self.analysed(numbers))[0])
        self.assertEqual(page.problems, [])
        for expected in ("87.65 % 99.12 % – – –", "0.3114 bce 50.00 % – 0.9321 – –", "– mse – – – 1.235 -0.5000",
                         "lenet5, 2 workers: ring, star class 0 1 0 871 12 1 13 4"):
            self.assert_shown(expected, page.words.replace("\u00a0", " "))
        self.assertEqual(page.counts["details"], 1)
        self.assertNotIn("details", self.page.counts)

    def test_too_few_points_for_a_line_are_bars(self):
        times = [one for one in self.results["exchanges"] if one["section"] == "machine"]
        sizes = sorted({one["bytes"] for one in times})
        with svg.style():
            two = plots.exchange_latency("two", [one for one in times if one["bytes"] in sizes[:2]])
            three = plots.exchange_latency("three", [one for one in times if one["bytes"] in sizes[:3]])
        self.assert_shown("Bars of latency", two)
        self.assert_shown("Lines of latency", three)

    def test_the_axis_of_ratios_ends_at_eight(self):
        def ratio(value, low, high):
            return {"label": "a", "sync": "ring", "is_total": False,
                    "ratio": {"value": value, "low": low, "high": high, "pairs": 7}}

        with svg.style(), mock.patch.object(plots.Axes, "set_xlim", autospec=True) as limits:
            plots.ratios("wide", [ratio(2.0, 0.001, 934.0), ratio(1.0, 0.9, 1.1)])
            low, high = limits.call_args.args[1:]
        self.assertLess(8, high)
        self.assertLess(high, 30)
        self.assertLess(1 / 30, low)

    def test_summary_fits_a_page(self):
        self.assertLessEqual(len(self.summary.splitlines()), SUMMARY_LINES_MAX)
        self.assert_shown("lenet5 2w", self.summary)
        self.assertFalse("NO WINNER" in self.summary)
        many = self.changed(notes=[f"note {number}" for number in range(40)])
        found = dict(self.analysis, groups=self.analysis["groups"] * 3)
        self.assertLessEqual(len(self.summary_of(dict(many, training=[], exchanges=[]), found).splitlines()),
                             SUMMARY_LINES_MAX)

    def test_a_ratio_without_an_interval_has_no_gap(self):
        few = copy.deepcopy(self.results)
        for one in few["configurations"]:
            del one["runs"][2:]
        summary = self.summary_of(few, analysis.analyse(few))
        self.assertRegex(summary, r"samples/s with 2 workers: .*\(\d\.\d\d\)")
        self.assertNotRegex(summary, r"\d [,;.)]")

    def test_summary_marks_ties_with_the_best_alone(self):
        group = dict(next(group for group in self.analysis["groups"] if len(group["rows"]) > 2))
        rows = [dict(row, best=False, tie_with=[]) for row in group["rows"]]
        rows[0]["best"] = True
        rows[1]["tie_with"], rows[2]["tie_with"] = [rows[2]["id"]], [rows[1]["id"]]
        for ties in (0, 1):
            summary = self.summary_of(self.results, dict(self.analysis, groups=[dict(group, rows=rows)]))
            self.assertEqual(summary.count("(tie)"), ties)
            rows[1]["tie_with"] = [rows[0]["id"]]

    def test_says_where_double_precision_decided(self):
        settled = self.changed()
        settled["agreement"][0].update(peer_precision="double", single_difference=0.00082)
        for text in self.write(settled, self.analysis):
            self.assert_shown("8.2e-04", text)
            self.assert_shown("double precision", text)

    def test_the_summary_shows_each_models_worst_agreement(self):
        many = self.changed()
        first = many["agreement"][0]
        many["agreement"][1:1] = [dict(first, workers=workers, worst_relative_difference=10**-workers)
                                  for workers in (5, 3, 4)]
        summary = self.summary_of(many, self.analysis)
        self.assert_shown("1.0e-03", summary)
        self.assertFalse("1.0e-05" in summary or "steps is 1.0e-04" in summary)
        self.assert_shown("mlp agrees", summary)

    def test_no_winner_where_the_losses_do_not_agree(self):
        wrong = self.few("lenet5/ring/2w/equal-workers/weak", "lenet5/ddp/2w/equal-workers/weak")
        wrong["agreement"][0].update(agrees=False, worst_relative_difference=0.0123, worst_step=7)
        found = analysis.analyse(wrong)
        # Not even if the analysis would call one.
        for group in found["groups"]:
            group["rows"][0]["best"] = True
        page, summary = self.write(wrong, dict(found, calls_winner=True))
        self.assert_shown('role="alert"', page)
        self.assert_shown("No winner is called", Page(page).words)
        self.assert_shown("1.2e-02", page)
        self.assertFalse(">best<" in page)
        self.assertFalse("The longest bar is" in page)
        self.assert_shown("NO WINNER", summary)
        self.assertFalse("**best**" in summary)
        self.assert_shown(">best<", self.html)
        self.assert_shown("The longest bar is", self.html)
        self.assert_shown("**best**", self.summary)

    def test_without_torch_says_how_to_get_one(self):
        page, summary = self.write(*self.analysed(self.few("lenet5/ring/2w/equal-workers/weak",
                                                           "lenet5/star/2w/equal-workers/weak")))
        for text in (page, summary):
            self.assert_shown("apt-get install python3-torch", text)
        self.assertFalse("apt-get install python3-torch" in self.html)

    @staticmethod
    def analysed(results):
        return results, analysis.analyse(results)

    def test_a_hostile_name_stays_text(self):
        hostile = self.few("lenet5/ring/2w/equal-workers/weak", "lenet5/ddp/2w/equal-workers/weak")
        hostile["configurations"][0].update(model=HOSTILE, id=HOSTILE, sync=HOSTILE, section=HOSTILE,
                                            command=[HOSTILE], trace="../../x\"><b>/" + HOSTILE)
        hostile["machine"]["name"] = HOSTILE
        hostile["notes"] = [HOSTILE]
        hostile["versions"][HOSTILE] = HOSTILE
        hostile["agreement"][0]["model"] = HOSTILE
        hostile["exchanges"] = [{**self.results["exchanges"][0], "sync": HOSTILE}]
        found = analysis.analyse(dict(hostile, configurations=hostile["configurations"][1:]))
        found["groups"].append({"model": HOSTILE, "workers": 2, "scaling": "weak", "section": HOSTILE, "rows": [
            {**found["groups"][0]["rows"][0], "id": HOSTILE, "sync": HOSTILE}]})
        page, summary = self.write(hostile, found)
        parsed = Page(page)
        self.assertEqual(parsed.problems, [])
        for tag in ("script", "img", "b"):
            self.assertNotIn(tag, parsed.counts)
        self.assert_shown(" ".join(HOSTILE.split()), parsed.words)
        self.assertTrue(all(link.startswith(("#", "./", "https://ui.perfetto.dev", "summary", "results", "runs"))
                            and ".." not in link for link in parsed.links), parsed.links)
        for line in summary.splitlines():
            if not line.startswith("Command"):
                self.assertNotRegex(line, r"(?<!\\)<(script|img)")

    def test_empty_lists_do_not_break_it(self):
        empty = schema.empty([], "", {})
        page, summary = self.write(empty, {"verdict": [], "calls_winner": False, "groups": []})
        self.assertEqual(Page(page).problems, [])
        self.assert_shown("no verdict", page)
        self.assert_shown("Nothing was measured", summary)
        self.assertEqual(Page(self.write(*self.analysed(empty))[0]).problems, [])

    def test_a_busy_machine_is_marked(self):
        busy = schema.empty([], "", {"cores": 2, "load_before": 7.5})
        self.assert_shown("load average 7.5 on 2 cores", self.write(*self.analysed(busy))[0])
        self.assertFalse("not quiet" in self.html)

    def test_the_machine_has_cores_and_a_quota(self):
        for cores, quota, text in ((2, 0.5, "2\u00a0cores, quota\u00a00.5"), (1, None, "1\u00a0core"),
                                   (8, 1.25, "8\u00a0cores, quota\u00a01.25")):
            made = schema.empty([], "", {"cores": cores, "cpu_quota": quota})
            page, summary = self.write(*self.analysed(made))
            self.assertIn(text + ",", page)
            self.assertIn(text + ",", summary)

    def test_a_gpu_is_shown(self):
        with_gpu = self.few("lenet5/ring/2w/equal-workers/weak", "lenet5/ddp/2w/equal-workers/weak")
        for run in with_gpu["configurations"][0]["runs"]:
            run["gpu"] = {"percent": 61.5, "memory_bytes": 3 << 30}
        for run in with_gpu["configurations"][1]["runs"]:
            run["gpu"] = {"percent": None, "memory_bytes": 2 << 30}
        page = Page(self.write(*self.analysed(with_gpu))[0])
        self.assertIn("gpu", page.ids)
        self.assert_shown("62 %, 3 GB", page.words)
        self.assert_shown("too short to tell, 2 GB", page.words)
        self.assertNotIn("gpu", self.page.ids)

    def test_a_full_disk_leaves_the_last_page(self):
        empty = self.analysed(schema.empty([], "", {}))
        with tempfile.TemporaryDirectory() as folder:
            path = write_report(*empty, folder)
            with open(path, encoding="utf-8") as file:
                before = file.read()
            full = OSError(28, "No space left on device")
            other = self.few("lenet5/ring/2w/equal-workers/weak")
            for call in ("os.fsync", "os.replace"):
                with mock.patch(call, side_effect=full), self.assertRaises(OSError):
                    write_report(other, {"groups": [], "verdict": ["x"]}, folder)
                with open(path, encoding="utf-8") as file:
                    self.assertEqual(file.read(), before)
                self.assertEqual(sorted(os.listdir(folder)), ["index.html", "summary.md"])


if __name__ == "__main__":
    unittest.main()
