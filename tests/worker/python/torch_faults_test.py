"""Tests starring.torch with libstarring.so when ranks and servers are missing, die, stop or go astray."""

import datetime
import importlib.util
import os
import signal
import sys
import unittest

if importlib.util.find_spec("torch") is None:
    print("SKIPPED: this python3 has no torch, so nothing of starring.torch was tested", file=sys.stderr)
    sys.exit(0)

import ranks
import servers_of_job
import torch.distributed as dist
import torch_cases


class TorchFaultsTest(torch_cases.FaultCases):
    def test_a_missing_rank(self) -> None:
        self.assert_missing(3)

    def test_a_killed_rank(self) -> None:
        self.assert_killed(3)

    def test_a_stopped_rank(self) -> None:
        self.assert_stopped(3)

    def test_a_rank_that_stops_in_the_first_step_of_a_static_graph(self) -> None:
        self.assert_stopped_at_once(3)

    def test_an_exception_in_backward(self) -> None:
        self.assert_raising(3)

    def test_a_rank_that_goes_on_after_an_exception(self) -> None:
        self.assert_going_on(3)

    def test_a_rank_that_ends_early(self) -> None:
        self.assert_leaving(3)

    def test_interrupt(self) -> None:
        self.assert_interrupted(3)


class RestartTest(torch_cases.JobCase):
    """Ranks start again over the store of the attempt before, as under torchrun."""

    def test_a_restart_after_a_killed_rank(self) -> None:
        server = dist.TCPStore("127.0.0.1", 0, 1, True, datetime.timedelta(seconds=20))
        # Each attempt has the same number, as ranks of several torchruns may have.
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port), "FRESH_STORE": "1",
                       "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        first = self.job(2, "killed", environment=environment).wait()
        self.assertEqual([one.status for one in first], [0, -signal.SIGKILL], first[0].errors)
        for one in self.job(2, "accumulated", environment=environment).wait():
            self.assertEqual(one.status, 0, one.errors)
            self.assertEqual(one.said["accumulated"][0], one.said["accumulated"][1])


class TorchServersTest(torch_cases.BitsCases, torch_cases.FaultCases):
    def test_servers_change_no_bit(self) -> None:
        with servers_of_job.Servers(3) as servers:
            job = self.job(2, "star", "reference", environment=servers.environment)
            for one in job.wait():
                self.assertEqual(one.status, 0, one.errors)
                self.assertEqual(set(one.said["star"].values()), {one.said["reference"]})

    def test_a_dead_server(self) -> None:
        with servers_of_job.Servers(2) as servers:
            job = self.job(2, "slow_server", environment=servers.environment)
            job.await_file("training")
            os.kill(servers.processes()[1], signal.SIGKILL)
            for one in job.wait(seconds=torch_cases.FAULT_SECONDS_MAX + ranks.JOB_SECONDS_MAX):
                self.assertEqual(one.status, 0, one.errors)
                self.assertEqual(one.said["slow_server"]["type"], "StarringError")
                self.assertRegex(one.said["slow_server"]["text"], "server 1")


if __name__ == "__main__":
    unittest.main()
