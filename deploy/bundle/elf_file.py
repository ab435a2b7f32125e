"""The facts of an ELF file that decide which libraries it is loaded with, read by pyelftools.

Writing a search path is the one thing that pyelftools cannot do: see ElfFile.with_rpath.
"""

from __future__ import annotations

import io
import struct

from elftools.common.exceptions import ELFError, ELFParseError
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

DYNAMIC_ENTRY_BYTES = 16
DT_RPATH = 15


class ElfError(Exception):
    """The file is not one that this module understands, or a change does not fit into it."""


def is_elf(data: bytes) -> bool:
    return data[:6] == b"\x7fELF\x02\x01"


class ElfFile:
    """Facts of the dynamic section. `data` is never changed: with_rpath returns a changed copy.

    needed: sonames of the libraries that are loaded with this file; none for a static program.
    rpath, runpath: where the loader searches them, or None. An RPATH also holds for the libraries of those libraries
      and comes before LD_LIBRARY_PATH; a RUNPATH does neither.
    versions: the newest version of each library's symbols that the file uses: {"GLIBC": (2, 34), "GCC": (3, 0)}.
    glibc: that of glibc. (0,) for none.
    imports: the symbols that the file takes from other libraries, each with its version ("GLIBC_2.17"), or "" for none.
      Symbols that may stay undefined (weak ones) are left out.
    exports: the symbols that other files may take from this one, with their versions or "".
    """

    def __init__(self, name: str, data: bytes) -> None:
        if not is_elf(data):
            raise ElfError(f"{name} is no 64-bit little-endian ELF file")
        self.name = name
        self.data = data
        self.needed: list[str] = []
        self.rpath: str | None = None
        self.runpath: str | None = None
        # Where each search path is in the file: its dynamic entry, and its text.
        self._paths: list[tuple[int, int]] = []
        try:
            elf = ELFFile(io.BytesIO(data))
            for segment in elf.iter_segments():
                if isinstance(segment, DynamicSegment):
                    self._read_dynamic(segment)
            self.versions = _newest_versions(elf)
            self.glibc = self.versions.get("GLIBC", (0,))
            self.imports, self.exports = _dynamic_symbols(elf)
        except (ELFError, ELFParseError) as error:
            raise ElfError(f"{name} is a broken ELF file: {error}") from error

    def _read_dynamic(self, segment: DynamicSegment) -> None:
        _, strings = segment.get_table_offset("DT_STRTAB")
        for index, tag in enumerate(segment.iter_tags()):
            if tag.entry.d_tag == "DT_NEEDED":
                self.needed.append(tag.needed)
            elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                if tag.entry.d_tag == "DT_RPATH":
                    self.rpath = tag.rpath
                else:
                    self.runpath = tag.runpath
                self._paths.append((segment["p_offset"] + index * DYNAMIC_ENTRY_BYTES, strings + tag.entry.d_val))

    @property
    def has_search_path(self) -> bool:
        return self.rpath is not None or self.runpath is not None

    def with_rpath(self, rpath: str) -> bytes:
        """A copy of the bytes whose only search path is the RPATH `rpath`, written over the old RPATH or RUNPATH."""
        if len(self._paths) != 1:
            raise ElfError(f"{self.name} has {len(self._paths)} search paths, one is expected")
        entry, begin = self._paths[0]
        # The text cannot grow: other strings follow it, and the file's tables point at them.
        room = self.data.index(b"\0", begin) - begin
        if len(rpath) > room:
            raise ElfError(f"{self.name}: the search path {rpath} does not fit into the {room} bytes of the old one")
        changed = bytearray(self.data)
        changed[begin:begin + room] = rpath.encode().ljust(room, b"\0")
        struct.pack_into("<Q", changed, entry, DT_RPATH)
        return bytes(changed)


def _newest_versions(elf: ELFFile) -> dict[str, tuple[int, ...]]:
    newest: dict[str, tuple[int, ...]] = {}
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, needed in section.iter_versions():
                for version in needed:
                    prefix, _, number = version.name.rpartition("_")
                    if prefix and number.replace(".", "").isdigit():
                        newest[prefix] = max(newest.get(prefix, (0,)), tuple(map(int, number.split("."))))
    return newest


def _dynamic_symbols(elf: ELFFile) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """The symbols that the file imports, and those that it exports, with their versions."""
    imports: set[tuple[str, str]] = set()
    exports: set[tuple[str, str]] = set()
    table = elf.get_section_by_name(".dynsym")
    if not isinstance(table, SymbolTableSection):
        return imports, exports
    numbers = elf.get_section_by_name(".gnu.version")
    names = _version_names(elf)
    for index, symbol in enumerate(table.iter_symbols()):
        if not symbol.name or symbol["st_info"]["bind"] == "STB_LOCAL":
            continue
        version = ""
        if isinstance(numbers, GNUVerSymSection):
            number = numbers.get_symbol(index)["ndx"]
            # The highest bit hides an older version of a symbol from the linker.
            version = names.get(number & 0x7fff, "") if isinstance(number, int) else ""
        if symbol["st_shndx"] != "SHN_UNDEF":
            exports.add((symbol.name, version))
        elif symbol["st_info"]["bind"] != "STB_WEAK":
            imports.add((symbol.name, version))
    return imports, exports


def _version_names(elf: ELFFile) -> dict[int, str]:
    """The versions by the numbers that the file gives them."""
    names: dict[int, str] = {}
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, needed in section.iter_versions():
                names.update({version["vna_other"]: version.name for version in needed})
        elif isinstance(section, GNUVerDefSection):
            for definition, texts in section.iter_versions():
                names[definition["vd_ndx"]] = next(texts).name
    return names
