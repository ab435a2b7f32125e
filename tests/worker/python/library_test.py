"""Tests starring._library: that its st_options is that of starring.h, where it finds the library, and its errors."""

import ctypes
import os
import re
import tempfile
import unittest
from unittest import mock

from starring import _library

HEADER = "worker/python/starring.h"
TYPES = {"uint32_t": ctypes.c_uint32, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64,
         "const char*": ctypes.c_char_p, "const uint8_t*": ctypes.POINTER(ctypes.c_uint8),
         "double": ctypes.c_double, "void*": ctypes.c_void_p}


def settings(**changed):
    return _library.Settings(**{"rank": 0, "world_size": 1, "topology": "star", "rendezvous": "127.0.0.1:1",
                                "group_name": "g", **changed})


class HeaderTest(unittest.TestCase):
    def setUp(self):
        with open(HEADER, encoding="utf-8") as file:
            self.text = re.sub(r"//[^\n]*|/\*.*?\*/", "", file.read(), flags=re.S)

    def fields_of(self, struct):
        body = re.search(rf"typedef struct {struct} \{{(.*?)\}} {struct};", self.text, re.S)[1]
        fields = []
        for line in filter(None, (part.strip() for part in body.split(";"))):
            function = re.match(r"void \(\*(\w+)\)", line)
            if function:
                fields.append((function[1], _library._Say))
            else:
                kind, names = re.match(r"((?:const )?\w+\*?)\s+(.*)", line, re.S).groups()
                fields += [(name.strip(), TYPES[kind]) for name in names.split(",")]
        return fields

    def test_structs_have_the_fields_of_the_header(self):
        for name, struct in (("st_options", _library.Options), ("st_description", _library.Description)):
            self.assertEqual(list(struct._fields_), self.fields_of(name))

    def test_codes_and_types_are_those_of_the_header(self):
        values = {name: int(value) for name, value in re.findall(r"(ST_\w+) = (\d+)", self.text)}
        for name in ("OK", "TIMEOUT", "INVALID", "PEER", "INTERNAL", "FLOAT32", "BFLOAT16", "FLOAT16"):
            self.assertEqual(getattr(_library, name), values["ST_" + name])
        self.assertEqual(_library.TOPOLOGIES, {"star": values["ST_STAR"], "ring": values["ST_RING"]})

    def test_every_function_of_the_header_is_declared(self):
        names = re.findall(r"^(?:int|const char\*) (st_\w+)\(", self.text, re.M)
        library = mock.MagicMock()
        _library._declare(library)
        for name in names:
            arguments = re.search(rf"{name}\((.*?)\);", self.text, re.S)[1]
            self.assertEqual(len(getattr(library, name).argtypes), arguments.count(",") + 1, name)


class LoadTest(unittest.TestCase):
    def setUp(self):
        _library.load.cache_clear()
        self.addCleanup(_library.load.cache_clear)

    def test_a_missing_library_is_a_sentence(self):
        with mock.patch.dict(os.environ, STARRING_LIBRARY="/nowhere/libstarring.so"):
            with self.assertRaisesRegex(_library.StarringError, "no libstarring.so at /nowhere/libstarring.so: "):
                _library.load()

    def test_a_file_that_is_no_library_is_a_sentence(self):
        with tempfile.NamedTemporaryFile() as file, mock.patch.dict(os.environ, STARRING_LIBRARY=file.name):
            file.write(b"nothing")
            file.flush()
            with self.assertRaisesRegex(_library.StarringError, f"{file.name} cannot be used"):
                _library.load()

    def test_it_lies_in_the_wheel_or_above(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("STARRING_LIBRARY", None)
            found = _library.candidates()
        package = os.path.dirname(os.path.abspath(_library.__file__))
        self.assertEqual(found[:2], [os.path.join(package, "libstarring.so"),
                                     os.path.join(os.path.dirname(package), "libstarring.so")])


class RealLibraryTest(unittest.TestCase):
    """Calls of libstarring.so that need no other process."""

    def setUp(self):
        if not any(map(os.path.isfile, _library.candidates())):
            self.fail(f"no library at {_library.candidates()}")

    def test_an_error_is_the_librarys_sentence(self):
        with self.assertRaises(_library.StarringError) as caught:
            _library.Group(settings(rank=3, world_size=2))
        self.assertEqual(caught.exception.kind, "invalid")
        self.assertIn("3", str(caught.exception))

    def test_another_release_is_refused(self):
        with mock.patch.object(_library.ctypes, "sizeof", return_value=8):
            with self.assertRaisesRegex(_library.StarringError, "8 bytes"):
                _library.Group(settings())

    def test_one_rank_sums_alone(self):
        group = _library.Group(settings())
        values = (ctypes.c_float * 3)(2, 4, 8)
        ticket = group.allreduce(0, 0, 1, ctypes.addressof(values), 3, _library.FLOAT32, 2.0)
        while not group.wait(ticket, 1000):
            pass
        self.assertEqual(list(values), [1, 2, 4])
        with self.assertRaises(_library.StarringError):
            group.wait(ticket, 0)
        group.close()
        group.close()


if __name__ == "__main__":
    unittest.main()
