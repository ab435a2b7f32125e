"""Tests that no folder is too full, and that neither files nor folders of production code need each other."""

import os
import unittest

import rooms
import style_test


class RoomsTest(unittest.TestCase):
    def test_the_source_tree(self):
        root = style_test.find_repository()
        texts = {}
        for path in style_test.list_files(root):
            if path.endswith(rooms.SOURCES):
                with open(os.path.join(root, path), encoding="utf-8") as file:
                    texts[path] = file.read()
        self.assertIn("tests/style/rooms.py", texts)
        self.assertEqual(list(rooms.full_rooms(texts)), [])
        self.assertEqual(list(rooms.problems(texts)), [])

    def test_a_room_that_is_too_full(self):
        paths = [f"common/job/{number}.cc" for number in range(26)]
        paths += [f"kernels/cuda/{number}.cu" for number in range(60)]
        self.assertEqual(list(rooms.full_rooms(paths)), ["common/job: 26 files, 25 are the limit"])
        self.assertEqual(list(rooms.full_rooms(paths[1:])), [])

    def test_pages_and_build_files_do_not_fill_a_room(self):
        paths = [f"server/{number}.h" for number in range(25)] + ["server/BUILD", "server/README.md"]
        self.assertEqual(list(rooms.full_rooms(paths)), [])

    def test_files_that_include_each_other(self):
        texts = {"common/a.h": '#include "common/b.h"\n', "common/b.h": '#include "common/c.h"\n',
                 "common/c.h": '#include <vector>\n#include "common/a.h"\n', "common/d.cc": '#include "common/a.h"\n'}
        self.assertEqual(list(rooms.problems(texts)),
                         ["these files need each other: common/a.h, common/b.h, common/c.h"])

    def test_folders_that_need_each_other(self):
        texts = {"server/a.h": '#include "server/door/b.h"\n', "server/door/b.h": "",
                 "server/door/c.cc": '#include "server/d.h"\n', "server/d.h": ""}
        self.assertEqual(list(rooms.problems(texts)),
                         ["these folders need each other: server, server/door\n"
                          "    server/a.h needs server/door/b.h\n    server/door/c.cc needs server/d.h"])

    def test_one_direction_is_no_circle(self):
        texts = {"server/a.h": '#include "server/door/b.h"\n', "server/door/b.h": '#include "common/c.h"\n',
                 "common/c.h": ""}
        self.assertEqual(list(rooms.problems(texts)), [])

    def test_python(self):
        texts = {"bench/one/a.py": "import b\n", "bench/one/b.py": "from typing import TYPE_CHECKING\n"
                 "if TYPE_CHECKING:\n    from a import Name\n", "bench/two/c.py": "import a\n"}
        self.assertEqual(rooms.needs(texts)["bench/two/c.py"], {"bench/one/a.py"})
        self.assertEqual(list(rooms.problems(texts)), ["these files need each other: bench/one/a.py, bench/one/b.py"])

    def test_a_package_is_imported_by_its_name(self):
        texts = {"worker/python/pack/__init__.py": "", "worker/python/pack/torch.py": "from pack import _part\n",
                 "worker/python/pack/_part.py": "import torch\n", "bench/job.py": "import torch, pack.torch\n"}
        self.assertEqual(rooms.needs(texts)["worker/python/pack/_part.py"], set())
        self.assertEqual(rooms.needs(texts)["worker/python/pack/torch.py"], {"worker/python/pack/_part.py"})
        self.assertEqual(rooms.needs(texts)["bench/job.py"], {"worker/python/pack/torch.py"})

    def test_tests_may_do_what_they_like(self):
        texts = {"tests/a.h": '#include "tests/b.h"\n', "tests/b.h": '#include "tests/a.h"\n'}
        self.assertEqual(list(rooms.problems(texts)), [])

    def test_a_long_chain_is_no_circle(self):
        texts = {f"common/{number}.h": f'#include "common/{number + 1}.h"\n' for number in range(5000)}
        self.assertEqual(list(rooms.problems(texts)), [])


if __name__ == "__main__":
    unittest.main()
