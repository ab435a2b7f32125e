"""Tests that a lab drops the packets of chosen flows, and no other."""

import itertools
import subprocess
import sys
import unittest

from blocks import Flow, between
from netlab import Netlab

HOSTS = 3
PORTS = (7001, 7002)
# Takes orders: "from_port address port text" sends a datagram, "take port" prints the oldest one that has come there.
AGENT = """
import socket, sys
sockets = {}
for port in map(int, sys.argv[1:]):
    sockets[port] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sockets[port].bind(("", port))
    sockets[port].settimeout(10)
print("ready", flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "take":
        print(sockets[int(words[1])].recv(100).decode(), flush=True)
    else:
        sockets[int(words[0])].sendto(words[3].encode(), (words[1], int(words[2])))
        print("sent", flush=True)
"""


class FlowTest(unittest.TestCase):

    def test_where_it_is_dropped(self):
        self.assertEqual(Flow(source=1).port, ("port1", "ingress"))
        self.assertEqual(Flow(source=1, target=2).port, ("port1", "ingress"))
        self.assertEqual(Flow(target=2, target_port=7).port, ("port2", "egress"))
        self.assertRaises(ValueError, lambda: Flow(target_port=7).port)

    def test_a_flow_of_one_host_has_all_packets(self):
        self.assertEqual(Flow(source=1).program(str), "2,6 0 0 2,6 0 0 4294967295")

    def test_a_test_that_fails_jumps_to_the_last_instruction(self):
        program = Flow(source=0, target=1, source_port=5, target_port=6).program("10.0.0.{}".format)
        count, *code = program.split(",")
        self.assertEqual(len(code), int(count))
        jumps = [(i, list(map(int, one.split()))) for i, one in enumerate(code) if one.startswith("21 ")]
        self.assertEqual([value for _, (_, _, _, value) in jumps], [0x800, 0x0a000000, 0x0a000001, 5, 6])
        for i, (_, _, over, _) in jumps:
            self.assertEqual(i + 1 + over, len(code) - 1)


class BlockTest(unittest.TestCase):

    def setUp(self):
        reason = Netlab.why_not()
        if reason:
            self.skipTest("NOTHING RAN ACROSS HOSTS: no lab here: " + reason)
        self.lab = self.enterContext(Netlab(hosts=HOSTS))
        self.agents = []
        for host in range(HOSTS):
            agent = subprocess.Popen(self.lab.command(host, [sys.executable, "-c", AGENT, *map(str, PORTS)]),
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.addCleanup(agent.communicate)
            self.agents.append(agent)
            self.assertEqual(agent.stdout.readline(), "ready\n")
        self.assertEqual(self.lost(lambda: self.lab.block([])), set())  # and each host knows the others' addresses

    def ask(self, host, *words):
        print(*words, file=self.agents[host].stdin, flush=True)
        return self.agents[host].stdout.readline().strip()

    def send_all(self, text):
        """Sends a datagram from each port of each host to each port of each other one."""
        for source, target in itertools.permutations(range(HOSTS), 2):
            for ports in itertools.product(PORTS, repeat=2):
                words = (ports[0], self.lab.addresses[target], ports[1], "%s:%d:%d" % (text, source, ports[0]))
                self.assertEqual(self.ask(source, *words), "sent")

    def lost(self, block):
        """What is lost while `block()` holds, as (source, source's port, target, target's port). A path keeps the order
        of packets: what has not come before those that were sent afterwards was lost."""
        with block():
            self.send_all("during")
        self.send_all("after")
        lost = set()
        for target in range(HOSTS):
            senders = {"%d:%d" % sender for sender in itertools.product(set(range(HOSTS)) - {target}, PORTS)}
            for port in PORTS:
                come, after = set(), set()
                while after != senders:
                    text, _, sender = self.ask(target, "take", port).partition(":")
                    (come if text == "during" else after).add(sender)
                lost |= {(*map(int, sender.split(":")), target, port) for sender in senders - come}
        return lost

    def test_what_is_dropped(self):
        everything = {(source, source_port, target, target_port)
                      for source, target in itertools.permutations(range(HOSTS), 2)
                      for source_port, target_port in itertools.product(PORTS, repeat=2)}
        for flows, is_lost in (
                ([Flow(source=1)], lambda source, _, target, __: source == 1),
                ([Flow(target=1)], lambda source, _, target, __: target == 1),
                ([Flow(source=0, target=2)], lambda source, _, target, __: (source, target) == (0, 2)),
                (between(0, 2), lambda source, _, target, __: {source, target} == {0, 2}),
                ([Flow(target=2, target_port=7002)], lambda _, __, target, port: (target, port) == (2, 7002)),
                ([Flow(source=2, source_port=7001)], lambda source, port, _, __: (source, port) == (2, 7001)),
                ([Flow(source=0, target=1, target_port=7001), Flow(source=0, source_port=7002)],
                 lambda source, port, target, to_port: source == 0 and (port == 7002 or (target, to_port) == (1, 7001)))
        ):
            with self.subTest(flows=flows):
                self.assertEqual(self.lost(lambda flows=flows: self.lab.block(flows)),
                                 {one for one in everything if is_lost(*one)})

    def test_two_blocks_at_once(self):
        first, second = self.lab.block([Flow(source=1)]), self.lab.block([Flow(source=1, target=0)])
        first.lift()
        first.lift()
        self.assertEqual({one[:1] + one[2:3] for one in self.lost(lambda: second)}, {(1, 0)})


if __name__ == "__main__":
    unittest.main()
