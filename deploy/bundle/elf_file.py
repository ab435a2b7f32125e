"""The few facts of a 64-bit little-endian ELF file that decide which libraries it is loaded with."""

import re
import struct

PT_LOAD = 1
PT_DYNAMIC = 2
DT_NULL = 0
DT_NEEDED = 1
DT_STRTAB = 5
DT_STRSZ = 10
DT_RPATH = 15
DT_RUNPATH = 29


class ElfError(Exception):
    """The file is not what this module understands, or a change does not fit into it."""


def is_elf(data):
    return data[:6] == b"\x7fELF\x02\x01"


class ElfFile:
    """What the dynamic section says. `data` is never changed: with_rpath returns a changed copy.

    needed: sonames of the libraries that are loaded with this file.
    rpath, runpath: where they are searched, or None. An RPATH also holds for the libraries of those libraries and comes
      before LD_LIBRARY_PATH; a RUNPATH does neither.
    glibc: the newest version of glibc's symbols that the file uses, as a tuple: (2, 34). (0,) for none.
    """

    def __init__(self, name, data):
        if not is_elf(data):
            raise ElfError(f"{name} is no 64-bit little-endian ELF file")
        self.name = name
        self.data = data
        self._segments = self._read_segments()
        entries = self._read_dynamic()
        tables = {tag: value for tag, value, _ in entries}
        self._strings = self._offset(tables[DT_STRTAB]) if DT_STRTAB in tables else 0
        self.needed = [self._string(value) for tag, value, _ in entries if tag == DT_NEEDED]
        self.rpath = self._string(tables[DT_RPATH]) if DT_RPATH in tables else None
        self.runpath = self._string(tables[DT_RUNPATH]) if DT_RUNPATH in tables else None
        self._path_entries = [entry for entry in entries if entry[0] in (DT_RPATH, DT_RUNPATH)]
        strings = data[self._strings:self._strings + tables.get(DT_STRSZ, 0)]
        versions = re.findall(rb"(?<=\0)GLIBC_(\d+(?:\.\d+)+)(?=\0)", strings)
        self.glibc = max([(0,)] + [tuple(map(int, version.split(b"."))) for version in versions])

    def with_rpath(self, rpath):
        """A copy of the bytes whose RPATH or RUNPATH is now the RPATH `rpath`, written over the old one."""
        if len(self._path_entries) != 1:
            raise ElfError(f"{self.name} has {len(self._path_entries)} search paths, one is expected")
        _, value, offset = self._path_entries[0]
        begin = self._strings + value
        room = self.data.index(b"\0", begin) - begin
        if len(rpath) > room:
            raise ElfError(f"{self.name}: the search path {rpath} does not fit into the {room} bytes of the old one")
        changed = bytearray(self.data)
        changed[begin:begin + room] = rpath.encode().ljust(room, b"\0")
        struct.pack_into("<Q", changed, offset, DT_RPATH)
        return bytes(changed)

    def _read_segments(self):
        table, = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        segments = []
        for index in range(count):
            kind, _, offset, address, _, file_size, _, _ = struct.unpack_from("<IIQQQQQQ", self.data,
                                                                              table + index * size)
            segments.append((kind, offset, address, file_size))
        return segments

    def _offset(self, address):
        for kind, offset, begin, size in self._segments:
            if kind == PT_LOAD and begin <= address < begin + size:
                return address - begin + offset
        raise ElfError(f"{self.name}: address {address:#x} lies in no segment")

    def _string(self, index):
        begin = self._strings + index
        return self.data[begin:self.data.index(b"\0", begin)].decode()

    def _read_dynamic(self):
        """(tag, value, offset in the file) of every entry; none for a static program."""
        entries = []
        for kind, offset, _, size in self._segments:
            if kind != PT_DYNAMIC:
                continue
            for position in range(offset, offset + size, 16):
                tag, value = struct.unpack_from("<QQ", self.data, position)
                if tag == DT_NULL:
                    break
                entries.append((tag, value, position))
        return entries
