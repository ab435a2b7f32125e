"""Tests the list of cells, what differs between two of them, and the way from ring to star."""

import itertools
import json
import os
import unittest

import analysis
import sync_cells as cells
from made_results import make_configuration as configuration


def places(*syncs):
    """The cells of `syncs`; "star@own" is the star with servers on hosts of their own."""
    found = []
    for sync in syncs:
        name, _, own = sync.partition("@")
        found.append(cells.place_of({"sync": name, "accounting": cells.ACCOUNTING_OWN_HOSTS if own else
                                     "equal-workers"}))
    return found


def names(way):
    return [place.sync + ("@own" if place.placement == cells.OWN_HOSTS else "") for place in way]


class CellsTest(unittest.TestCase):
    def test_six_cells_that_all_differ(self):
        self.assertEqual(len(cells.CELLS), 6)
        self.assertEqual(len({(cell.topology, cell.placement, cell.transport) for cell in cells.CELLS}), 6)
        self.assertEqual(len({cell.name for cell in cells.CELLS}), 6)
        self.assertEqual(len({cell.marker for cell in cells.CELLS}), 6)
        # Only a star has servers, only servers speak gRPC, and a ring never has servers.
        for cell in cells.CELLS:
            self.assertEqual(cell.transport == "grpc", cell.sync == "star")
            self.assertFalse(cell.topology == "ring" and cell.has_servers)

    def test_every_way_of_messages_with_owners_is_compared(self):
        with open(os.path.join(os.path.dirname(cells.__file__), "cells.json"), encoding="utf-8") as file:
            rows = json.load(file)
        self.assertEqual([row["name"] for row in rows if row["memory"] == "messages" and
                          row["placement"] in cells.PLACEMENTS], list(cells.SYNCS))
        self.assertEqual({(row["name"], row["topology"], row["placement"], row["transport"]) for row in rows} -
                         {(cell.sync, cell.topology, cell.placement, cell.transport) for cell in cells.NAMED},
                         {("local", "local", "in each rank", "none"), ("mpi", "mpi", "in each rank", "mpi"),
                          ("nccl", "nccl", "in each rank", "mpi"), ("nccl-tcp", "nccl", "in each rank", "tcp"),
                          ("ring-tcp-shm", "ring", cells.RANKS, "tcp"), ("star-tcp-shm", "star", cells.RANKS, "tcp"),
                          ("ring-mpi-gpu", "ring", cells.RANKS, "mpi"), ("ring-tcp-gpu", "ring", cells.RANKS, "tcp"),
                          ("star-mpi-gpu", "star", cells.RANKS, "mpi"), ("star-tcp-gpu", "star", cells.RANKS, "tcp"),
                          ("star-servers-tcp-shm", "star", cells.SERVERS, "tcp"),
                          ("star-shm", "star", cells.SERVERS, "grpc")})

    def test_a_row_in_memory_has_its_flags(self):
        self.assertEqual(cells.CONTROLS, ("local", "ring-shm", "star-mpi-shm", "mpi", "nccl"))
        in_memory = {sync: ["--same_host=shared_memory"] for sync in ("ring-shm", "star-mpi-shm")}
        by_messages = {sync: ["--same_host=socket"] for sync in ("ring", "ring-tcp", "star-mpi", "star-tcp")}
        self.assertEqual(cells.WORKER_FLAGS, {**in_memory, **by_messages})

    def test_neighbours_of_the_list_are_one_step_apart(self):
        steps = [cells.differences(one, other) for one, other in itertools.pairwise(cells.CELLS)]
        self.assertEqual(steps, [1, 2, 1, 1, 1])  # ring-tcp and star-mpi are two ways to star-tcp

    def test_flags(self):
        self.assertEqual(cells.BY_SYNC["ring"].flags, ["--sync=ring", "--transport=mpi"])
        self.assertEqual(cells.BY_SYNC["star"].flags, ["--sync=star", "--transport=grpc"])
        self.assertEqual(cells.BY_SYNC["star-servers-tcp"].flags, cells.BY_SYNC["star-tcp"].flags)

    def test_who_starts_them(self):
        self.assertEqual(set(cells.BY_MPIRUN), {"ring", "ring-shm", "star-mpi", "star-mpi-shm", "mpi", "nccl"})
        self.assertEqual(set(cells.BY_RENDEZVOUS), {"ring-tcp", "star-tcp"})
        self.assertEqual(set(cells.WITHOUT_SERVERS),
                         {"ring", "ring-shm", "ring-tcp", "star-mpi", "star-tcp", "star-mpi-shm", "mpi"})

    def test_what_is_no_cell(self):
        for sync, accounting in (("mpi", "equal-workers"), ("star-mpi-shm", "equal-workers"),
                                 ("ddp", "equal-workers"), ("star", "equal-cores")):
            self.assertIsNone(cells.place_of({"sync": sync, "accounting": accounting}))

    def test_changes(self):
        star, own, ranks, ring = places("star", "star@own", "star-mpi", "ring")
        self.assertEqual(cells.changes(ranks, ring), ["topology: star to ring"])
        self.assertEqual(cells.changes(star, own), [f"placement: {cells.SERVERS} to {cells.OWN_HOSTS}"])
        self.assertEqual(len(cells.changes(ranks, star)), 2)
        self.assertEqual(cells.changes(star, star), [])
        # Servers on the workers' hosts are between the ranks and hosts of their own.
        self.assertEqual(cells.differences(*places("star-tcp", "star-servers-tcp@own")), 2)


class PathTest(unittest.TestCase):
    def path(self, *syncs):
        for order in (syncs, syncs[::-1]):
            way = names(cells.path(places(*order)))
        return way

    def test_all_six(self):
        self.assertEqual(self.path(*cells.SYNCS), ["ring", "ring-tcp", "star-tcp", "star-servers-tcp", "star"])

    def test_hosts_of_their_own_come_last(self):
        self.assertEqual(self.path("ring", "star-mpi", "star", "star@own"), ["ring", "star-mpi", "star", "star@own"])
        self.assertEqual(self.path("ring", "star", "star@own"), ["ring", "star", "star@own"])

    def test_a_missing_cell_makes_a_longer_step(self):
        self.assertEqual(self.path("ring", "star-mpi", "star"), ["ring", "star-mpi", "star"])
        self.assertEqual(self.path("ring", "star"), ["ring", "star"])
        self.assertEqual(self.path("ring-tcp", "star-tcp"), ["ring-tcp", "star-tcp"])
        self.assertEqual(self.path("ring", "star-mpi", "star-tcp", "star-servers-tcp", "star"),
                         ["ring", "star-mpi", "star-tcp", "star-servers-tcp", "star"])

    def test_no_way_without_both_ends(self):
        for syncs in ((), ("ring",), ("star", "star-mpi"), ("ring", "ring-tcp")):
            self.assertEqual(self.path(*syncs or ("ring",)), [], syncs)

    def test_no_way_is_cheaper(self):
        every = places(*cells.SYNCS, "star@own", "star-servers-tcp@own")

        def cost(way):
            return sum(cells.differences(one, other) ** 2 for one, other in itertools.pairwise(way))

        for count in range(2, 6):
            for chosen in itertools.combinations(every, count):
                way = cells.path(chosen)
                if not way:
                    continue
                between = [place for place in chosen if place not in (way[0], way[-1])]
                for size in range(len(between) + 1):
                    for middle in itertools.permutations(between, size):
                        self.assertLessEqual(cost(way), cost([way[0], *middle, way[-1]]), names(way))


class StepsTest(unittest.TestCase):
    def steps(self, *configurations):
        return analysis.cell_steps(list(configurations))

    def test_the_total_is_the_product_of_its_steps(self):
        found = self.steps(configuration("ring", [100, 90, 80, 101, 99, 100, 98]),
                           configuration("ring-tcp", [95, 97, 70, 88, 99, 91, 92]),
                           configuration("star-tcp", [80, 82, 81, 60, 85, 84, 80]),
                           configuration("star-servers-tcp", [70, 75, 60, 77, 71, 72, 73], servers=2),
                           configuration("star", [60, 61, 62, 50, 64, 65, 66], servers=2),
                           configuration("mpi", [1000] * 7), configuration("ddp", [10] * 7),
                           configuration("star", [500] * 7, workers=1, servers=1, accounting="equal-cores"))
        self.assertEqual([step["second"].split("/")[1] for step in found["path"]],
                         ["ring-tcp", "star-tcp", "star-servers-tcp", "star"])
        self.assertEqual([len(step["changes"]) for step in found["path"]], [1, 1, 1, 1])
        product = 1.0
        for step in found["path"]:
            product *= step["ratio"]["value"]
        self.assertAlmostEqual(product, found["total"]["ratio"]["value"], places=12)
        self.assertLess(product, 1)
        self.assertEqual(found["total"]["outcome"], "slower")
        self.assertEqual(found["others"], [])

    def test_the_product_holds_where_repeats_are_missing(self):
        middle = configuration("star-mpi", [90, 95, 85])
        for run, repeat in zip(middle["runs"], (0, 2, 5)):
            run["repeat"] = repeat
        found = self.steps(configuration("ring", [100, 50, 110, 40, 30, 120, 60]), middle,
                           configuration("star", [60, 61, 62, 63, 64, 65, 66], servers=2),
                           configuration("star", [70, 90, 60, 80, 75, 85, 65], servers=2,
                                         accounting=cells.ACCOUNTING_OWN_HOSTS))
        self.assertEqual(len(found["path"]), 3)
        self.assertEqual({step["ratio"]["pairs"] for step in [*found["path"], found["total"]]}, {3})
        product = 1.0
        for step in found["path"]:
            product *= step["ratio"]["value"]
        self.assertAlmostEqual(product, found["total"]["ratio"]["value"], places=12)

    def test_single_differences_beside_the_way(self):
        found = self.steps(*(configuration(sync, [10 + i] * 7, servers=2 if cells.BY_SYNC[sync].has_servers else 0)
                             for i, sync in enumerate(cells.SYNCS)))
        self.assertEqual([(step["first"].split("/")[1], step["second"].split("/")[1], step["differences"])
                          for step in found["others"]], [("ring", "star-mpi", 1), ("star-mpi", "star-tcp", 1)])

    def test_two_differences_are_counted(self):
        found = self.steps(configuration("ring", [100] * 7), configuration("star-mpi", [90] * 7),
                           configuration("star", [60] * 7, servers=2))
        self.assertEqual([step["differences"] for step in found["path"]], [1, 2])
        self.assertEqual([step["outcome"] for step in found["path"]], ["slower", "slower"])

    def test_one_step_is_its_own_total(self):
        found = self.steps(configuration("ring", [100] * 7), configuration("star-mpi", [100] * 7))
        self.assertEqual((len(found["path"]), found["total"], found["path"][0]["outcome"]), (1, None, "tie"))

    def test_nothing_to_compare(self):
        for only in ((), (configuration("ring", [1] * 7),), (configuration("ring", []), configuration("star", [1.0]))):
            self.assertEqual(self.steps(*only), {"path": [], "total": None, "others": []})


if __name__ == "__main__":
    unittest.main()
