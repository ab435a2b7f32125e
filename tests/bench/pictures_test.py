"""bench/pictures: the timeline, drawn from a small trace."""

import os
import unittest
import xml.etree.ElementTree as ElementTree

from bench import pictures

SVG = "{http://www.w3.org/2000/svg}"


def name(process, thread, text):
    kind = "process_name" if thread == 0 else "thread_name"
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": text}}


def span(process, thread, what, begin, end, **labels):
    return {"ph": "X", "name": what, "pid": process, "tid": thread, "ts": begin, "dur": end - begin, "args": labels}


def trace():
    events = [name(1, 0, "worker 0"), name(1, 1, "compute"), name(1, 2, "exchange <0>"), name(2, 0, "server 0"),
              name(2, 1, "shard"), name(3, 0, "worker 1"), name(3, 1, "compute")]
    for step, length in enumerate((9000, 2000, 3000)):
        begin = 10000 * step
        events += [span(1, 1, "step", begin, begin + length, step=step),
                   span(1, 1, "forward fc1", begin, begin + 500, step=step),
                   span(1, 1, "wait", begin + 100, begin + 200, step=step - 1, bucket=0),
                   span(1, 1, "backward fc1", begin + 500, begin + length, step=step),
                   span(1, 2, "send", begin + length, begin + length + 250, step=step, bucket=0),
                   span(2, 1, "sum + apply", begin + length + 300, begin + length + 400, step=step, bucket=0),
                   span(3, 1, "forward fc1", begin, begin + 600, step=step)]
    return {"traceEvents": events}


class PicturesTest(unittest.TestCase):

    def test_the_step_of_median_length_is_drawn(self):
        timeline = pictures.read_timeline(trace())
        self.assertEqual(pictures.step_of(timeline), 2)
        drawing = ElementTree.fromstring(pictures.draw_timeline(timeline, 1))
        titles = [title.text for title in drawing.iter(SVG + "title")]
        self.assertEqual(titles, ["forward fc1: 0.50 ms", "backward fc1: 1.50 ms", "forward fc1: 0.50 ms",
                                  "wait, bucket 0: 0.10 ms", "send, bucket 0: 0.25 ms",
                                  "sum + apply, bucket 0: 0.10 ms"])
        rows = [text.text for text in drawing.iter(SVG + "text") if ": " in text.text]
        self.assertEqual(rows[:3], ["worker 0: compute", "worker 0: exchange <0>", "server 0: shard"])
        # Nothing is drawn over the names of rows or out of the picture.
        for rect in list(drawing.iter(SVG + "rect"))[1:]:
            self.assertGreaterEqual(float(rect.get("x")), pictures.LEFT)
            self.assertLessEqual(float(rect.get("x")) + float(rect.get("width")), pictures.WIDTH - pictures.RIGHT + 1)

    def test_readmes_picture_shows_the_present_layout(self):
        with open(os.path.join(pictures.ROOT, "bench/pictures/report.layout"), encoding="utf-8") as file:
            self.assertEqual(file.read().strip(), pictures.layout_hash(),
                             "the template of a report has changed: make the picture again, see bench/pictures.py")

    def test_a_trace_without_steps_is_refused(self):
        with self.assertRaisesRegex(pictures.PictureError, "no step of worker 0"):
            pictures.step_of(pictures.read_timeline({"traceEvents": []}))
        with self.assertRaisesRegex(pictures.PictureError, "no layers of step 7"):
            pictures.draw_timeline(pictures.read_timeline(trace()), 7)


if __name__ == "__main__":
    unittest.main()
