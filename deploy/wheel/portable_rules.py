"""The rules for a libstarring.so that runs on every x86-64 Linux with glibc 2.28 or newer (PEP 600: manylinux_2_28)."""

from __future__ import annotations

from collections.abc import Iterable

from deploy.bundle.elf_file import ElfFile
from deploy.bundle.make_bundle import GLIBC

GLIBC_MAX = (2, 28)
PLATFORM = "manylinux_{}_{}_x86_64".format(*GLIBC_MAX)

# Symbols of glibc that came after GLIBC_MAX, and that a build for GLIBC_MAX does without. Its <sys/stat.h> defines the
# functions of files in the header. The other two are calls of GCC's C++ library, and libc++ has its own ways.
DONE_WITHOUT = {"fstat", "fstatat", "lstat", "mknod", "stat", "__libc_single_threaded", "pthread_cond_clockwait"}
NAMES_MAX = 8  # in one sentence


def version_of(text: str) -> tuple[int, ...]:
    """GLIBC_2.3.4 as (2, 3, 4); () for another library's version, or none."""
    prefix, _, number = text.partition("_")
    return tuple(map(int, number.split("."))) if prefix == "GLIBC" and number.replace(".", "").isdigit() else ()


def faults(library: ElfFile) -> list[str]:
    """One sentence for each rule that the library breaks."""
    found = []
    foreign = [soname for soname in library.needed if not GLIBC.fullmatch(soname)]
    if foreign:
        found.append(f"{library.name} needs {some(foreign)}, and may need the libraries of glibc alone: link the "
                     "others statically")
    late = sorted(f"{name} ({version})" for name, version in library.imports if version_of(version) > GLIBC_MAX)
    if late or library.glibc > GLIBC_MAX:
        found.append(f"{library.name} needs glibc {dotted(library.glibc)}, and may need {dotted(GLIBC_MAX)}: do "
                     f"without {some(late) or 'its versions'}")
    # The linker of zig takes a symbol that nothing defines without a word.
    loose = sorted(name for name, version in library.imports if not version_of(version))
    if loose:
        found.append(f"{library.name} takes {some(loose)} from no library: compile the sources that define them")
    strays = sorted(name for name, _ in library.exports if not name.startswith("st_"))
    if strays:
        found.append(f"{library.name} exports {some(strays)}, and may export st_* alone: use the version script")
    if not library.exports:
        found.append(f"{library.name} exports nothing: link starring_c.cc and starring_data.cc")
    return found


def late_functions(imports: Iterable[tuple[str, str]], c_libraries: Iterable[ElfFile]) -> list[str]:
    """The imports of a library, built for this machine's glibc, that glibc GLIBC_MAX lacks.

    Most imports with a newer version exist in GLIBC_MAX, too: glibc 2.34 moved the functions of libpthread and libdl
    into libc, and gave them a second version. So a function is late if glibc defines no version of it up to GLIBC_MAX.
    """
    early = {name for library in c_libraries for name, version in library.exports
             if () < version_of(version) <= GLIBC_MAX}
    return sorted(f"{name} ({version})" for name, version in imports
                  if version_of(version) > GLIBC_MAX and name not in early | DONE_WITHOUT)


def some(names: list[str]) -> str:
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
