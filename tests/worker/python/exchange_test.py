"""Tests the hook's exchange in one process: a group that the test completes by hand, and buckets made of mocks."""

import gc
import importlib.util
import os
import sys
import threading
import time
import unittest
import weakref
from unittest import mock

if importlib.util.find_spec("torch") is None:
    print("SKIPPED: this python3 has no torch, so nothing of starring.torch was tested", file=sys.stderr)
    sys.exit(0)

import torch

from starring import _exchange, _library, _staging
from starring._library import StarringError


class Bucket:
    """What DDP hands to a hook."""

    def __init__(self, index, values, is_last=False, parameters=()):
        self._index, self._values, self._is_last, self._parameters = index, values, is_last, list(parameters)

    def index(self):
        return self._index

    def buffer(self):
        return self._values

    def is_last(self):
        return self._is_last

    def parameters(self):
        return self._parameters


class Group:
    """A library's group whose sums the test ends."""

    adds_in_gpu_memory, why_no_gpu_memory, device_copies, gpu_number = False, "", 0, 1

    def __init__(self):
        self.calls, self.waits, self.aborts, self.closed = [], [], [], threading.Event()
        self._ended, self._error, self._changed = set(), None, threading.Condition()

    def allreduce(self, *arguments):
        if self._error:
            raise self._error
        self.calls.append(arguments)
        return len(self.calls)

    def end(self, *tickets):
        with self._changed:
            self._ended.update(tickets)
            self._changed.notify_all()

    def fail(self, error):
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def wait(self, ticket, milliseconds):
        self.waits.append(ticket)
        with self._changed:
            self._changed.wait_for(lambda: ticket in self._ended or self._error, milliseconds / 1e3)
            if ticket not in self._ended and self._error:
                raise self._error
            return ticket in self._ended

    def abort(self, why):
        self.aborts.append(why)
        self.fail(StarringError(why, "peer"))

    def close(self):
        self.closed.set()


class ExchangeCase(unittest.TestCase):
    def setUp(self):
        patch = mock.patch.object(_exchange.dist, "GradBucket", Bucket)
        patch.start()
        self.addCleanup(patch.stop)
        self.group = Group()
        self.exchange = _exchange.BucketExchange(self.group, 1, 2, {}, 1.0)
        self.addCleanup(self.exchange.end)

    def submit(self, index, is_last=False, values=None):
        return self.exchange.submit(Bucket(index, torch.ones(4) if values is None else values, is_last))

    def assert_submit_fails(self, text, *arguments, **more):
        with self.assertRaisesRegex(StarringError, text) as caught:
            self.submit(*arguments, **more)
        return caught.exception


class ExchangeTest(ExchangeCase):
    def test_the_hook_returns_at_once_and_futures_end_in_order(self):
        values = [torch.ones(4), torch.ones(2)]
        futures = [self.submit(index, index == 1, values[index]) for index in (0, 1)]
        self.assertEqual([call[:2] for call in self.group.calls], [(0, 0), (0, 1)])
        self.assertEqual([call[3:] for call in self.group.calls],
                         [(values[0].data_ptr(), 4, _library.FLOAT32, 2.0, None),
                          (values[1].data_ptr(), 2, 0, 2.0, None)])
        self.group.end(2)
        time.sleep(0.05)
        self.assertFalse(futures[1].done())  # in order
        self.group.end(1)
        self.exchange.end_of_backward()
        self.assertIs(futures[0].wait(), values[0])
        self.assertIs(futures[1].wait(), values[1])
        self.assertEqual(self.exchange.step, 1)

    def test_steps_are_counted_by_the_last_bucket(self):
        for step in range(3):
            for index in (0, 1):
                self.submit(index, index == 1)
                self.group.end(2 * step + index + 1)
        self.assertEqual([call[:2] for call in self.group.calls],
                         [(step, index) for step in range(3) for index in (0, 1)])

    def test_an_error_comes_out_of_every_way(self):
        future = self.submit(0, True)
        self.group.fail(StarringError("rank 0 is gone", "peer"))
        with self.assertRaisesRegex(StarringError, "rank 0 is gone") as caught:
            self.exchange.end_of_backward()
        self.assertEqual(caught.exception.kind, "peer")
        with self.assertRaisesRegex(StarringError, "rank 0 is gone"):
            future.wait()
        self.assertEqual(self.assert_submit_fails("rank 0 is gone", 0).kind, "peer")
        self.assertEqual(self.group.aborts, [])
        self.assertEqual(str(self.exchange.failure), "rank 0 is gone")

    def test_a_call_that_is_refused_fails_its_future(self):
        self.group.fail(StarringError("no", "invalid"))
        future = self.submit(0)
        with self.assertRaisesRegex(StarringError, "no"):
            future.wait()
        self.assertEqual(self.group.aborts, ["rank 1 gave up in step 0: no"])
        self.assertEqual(self.group.waits, [])  # there is no sum

    def test_after_an_interrupt_in_the_hook_no_backward_waits(self):
        with mock.patch.object(self.group, "allreduce", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                self.submit(0, True)
        self.assertEqual(self.group.aborts, ["rank 1 was interrupted at bucket 0 of step 0"])
        with self.assertRaisesRegex(StarringError, "interrupted"):
            self.exchange.end_of_backward()
        self.assert_submit_fails("interrupted", 0)

    def test_a_backward_that_stopped_is_noticed_in_the_next(self):
        self.submit(0)
        self.assert_submit_fails("rank 1 began a backward after its backward of step 0 had stopped before bucket 1", 0)
        self.assertEqual(len(self.group.aborts), 1)

    def test_what_cannot_be_summed(self):
        for values, text in ((torch.ones(2, dtype=torch.float64), "torch.float64: only float32"),
                             (torch.ones(2).to_sparse(), "is sparse"),
                             (torch.ones(2, device="meta"), "is on meta")):
            exchange = _exchange.BucketExchange(Group(), 0, 2, {}, 1.0)
            with self.assertRaisesRegex(StarringError, text):
                exchange.submit(Bucket(0, values))
            exchange.end()
        with self.assertRaisesRegex(StarringError, "compiled autograd"):
            self.exchange.submit((torch.ones(2), None))

    def test_an_error_in_the_hook_comes_out_of_backward_as_it_is(self):
        for error in (StarringError("seeded", "peer"), KeyboardInterrupt("seeded")):
            futures = []
            weights = torch.ones(4, requires_grad=True)
            bucket = Bucket(0, torch.ones(4))
            weights.register_hook(lambda _: futures.append(_exchange.raise_after_backward(error, bucket)))
            with self.assertRaisesRegex(type(error), "seeded") as caught:
                weights.sum().backward()
            self.assertEqual(getattr(caught.exception, "kind", "peer"), "peer")
            self.assertTrue(futures[0].done())  # or C++ code that waits for it would wait for ever
            with self.assertRaisesRegex(type(error), "seeded"):
                _exchange.raise_after_backward(error, bucket)
            with self.assertRaisesRegex(type(error), "seeded"):
                _exchange.raise_after_backward(error, (torch.ones(2), None))

    def test_narrow_types(self):
        self.submit(0, values=torch.ones(2, dtype=torch.bfloat16))
        self.submit(1, values=torch.ones(2, dtype=torch.float16))
        self.group.end(1, 2)
        self.assertEqual([call[5] for call in self.group.calls], [_library.BFLOAT16, _library.FLOAT16])

    def test_the_end_without_sums_under_way_gives_no_reason(self):
        self.submit(0, True)
        self.group.end(1)
        self.exchange.end_of_backward()
        self.exchange.end()
        self.assertTrue(self.group.closed.is_set())
        self.assertEqual(self.group.aborts, [])
        self.assert_submit_fails("was closed", 0)
        self.exchange.end()

    def test_the_end_in_the_middle_of_a_step_is_told_to_all(self):
        future = self.submit(0)
        self.exchange.end("ValueError: seeded")
        self.assertEqual(self.group.aborts, ["rank 1 gave up in step 0: ValueError: seeded"])
        self.assertTrue(self.group.closed.is_set())
        with self.assertRaisesRegex(StarringError, "seeded"):
            future.wait()

    def test_a_process_that_ends_by_an_exception_says_so(self):
        with mock.patch.object(sys, "last_value", ValueError("seeded\nmore"), create=True):
            _exchange.end_all()
        self.assertEqual(self.group.aborts, ["rank 1 gave up in step 0: ValueError: seeded"])
        self.assertTrue(self.group.closed.is_set())

    def test_a_child_of_fork_does_nothing(self):
        with mock.patch.object(os, "getpid", return_value=1):
            self.exchange.end("child")
        self.assertEqual(self.group.aborts, [])
        self.assertFalse(self.group.closed.is_set())

    def test_no_more_sums_than_the_library_takes(self):
        with mock.patch.object(_library, "TICKETS_MAX", 2):
            for index in (0, 1):
                self.submit(index)
            threading.Timer(0.1, self.group.end, [1]).start()
            started = time.monotonic()
            self.submit(2, True)
        self.assertGreater(time.monotonic() - started, 0.05)
        self.group.end(2, 3)

    def test_an_exchange_that_is_over_is_freed(self):
        exchange = _exchange.BucketExchange(Group(), 0, 2, {}, 1.0)
        exchange.end()
        found = weakref.ref(exchange)
        del exchange
        gc.collect()
        self.assertIsNone(found())

    def test_layouts_follow_the_names(self):
        first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        names = _exchange.parameter_names(first)
        self.assertEqual(list(names.values()), ["weight (2, 2) torch.float32", "bias (2,) torch.float32"])
        self.assertEqual(_exchange.layout_hash(names.values()),
                         _exchange.layout_hash(_exchange.parameter_names(second).values()))
        self.assertNotEqual(_exchange.layout_hash(names.values()),
                            _exchange.layout_hash(reversed(list(names.values()))))
        self.assertEqual(_exchange.layout_hash(["a"]), 0x2F42665B399EF840)  # on every host and in every process


class StagedTest(ExchangeCase):
    """GPU buckets, with a stand-in for the staging: the copy to the host ends when the test says so."""

    def test_a_gpu_bucket_is_summed_in_host_memory(self):
        copied, back = threading.Event(), []
        on_gpu = mock.Mock(is_sparse=False, dtype=torch.float32)
        on_gpu.device.type = "cuda"
        host = torch.ones(4)
        staging = mock.Mock()
        staging.copy_to_host.return_value = _staging.Staged(on_gpu, host, None)
        staging.wait.side_effect = lambda _: copied.wait(10)
        staging.copy_back.side_effect = lambda staged, future: (back.append(staged), future.set_result(staged.host))
        self.exchange._staging = staging
        with mock.patch.object(torch.futures, "Future", side_effect=lambda devices=None: torch._C.Future([])):
            future = self.exchange.submit(Bucket(0, on_gpu, True))
        self.assertEqual(self.group.calls, [])
        copied.set()
        self.group.end(1)
        self.exchange.end_of_backward()
        self.assertEqual(self.group.calls[0][3], host.data_ptr())
        self.assertEqual(len(back), 1)
        self.assertTrue(future.done())
        self.exchange.end()
        self.assertTrue(self.group.closed.is_set())


class GpuMemoryTest(ExchangeCase):
    """A group that adds in GPU memory, and a stand-in for a tensor that is there."""

    def setUp(self):
        super().setUp()
        self.on_gpu = mock.Mock(is_sparse=False, dtype=torch.float16)
        self.on_gpu.device.type, self.on_gpu.device.index = "cuda", 1
        self.on_gpu.data_ptr.return_value, self.on_gpu.numel.return_value = 4096, 12

    def on_its_gpu(self):
        self.group.adds_in_gpu_memory, self.group.device_copies = True, 2
        stream = mock.patch.object(torch.cuda, "current_stream", return_value=mock.Mock(cuda_stream=77))
        future = mock.patch.object(torch.futures, "Future", side_effect=lambda devices=None: mock.Mock(devices=devices))
        for patch in (stream, future):
            patch.start()
            self.addCleanup(patch.stop)

    def test_a_bucket_is_summed_where_it_is(self):
        self.on_its_gpu()
        self.exchange._staging = None
        future = self.submit(0, True, self.on_gpu)
        self.assertEqual([call[3:] for call in self.group.calls], [(4096, 12, _library.FLOAT16, 2.0, 77)])
        torch.cuda.current_stream.assert_called_once_with(self.on_gpu.device)
        self.assertEqual(future.devices, [self.on_gpu.device])
        future.set_result.assert_not_called()
        self.group.end(1)
        self.exchange.end_of_backward()
        future.set_result.assert_called_once_with(self.on_gpu)
        self.assertEqual(self.exchange.device_copies, 2)

    def test_a_model_that_has_left_the_gpu(self):
        self.on_its_gpu()
        self.assert_submit_fails("bucket 0 is on cpu, and the group adds on cuda:1: move no model after attach", 0)
        self.assertEqual(len(self.group.aborts), 1)

    def test_a_model_on_another_gpu(self):
        self.on_its_gpu()
        self.on_gpu.device.index = 0
        self.assert_submit_fails("and the group adds on cuda:1", 0, values=self.on_gpu)


if __name__ == "__main__":
    unittest.main()
