#!/bin/bash
# Opens the wheel `starring` in a Debian 11 (glibc 2.31, Python 3.9), and compares the digests of sums and batches there
# with those on this system.
#
#   sudo deploy/wheel/old_system.sh starring-0.1-py3-none-manylinux_2_28_x86_64.whl [FOLDER]
#
# FOLDER keeps the system, 200 MB from Debian's archive, for the next time. Needs root, debootstrap, unzip and numpy. No
# test starts it: Debian 11 is out of support, and will leave the archive.
#
# Exit status: 0 if the digests are equal.
set -euo pipefail

if [[ $# -lt 1 || ! -f $1 ]]; then
  echo "old_system: usage: $0 WHEEL [FOLDER]: there is no file ${1:-named}" >&2
  exit 2
fi
wheel=$(realpath "$1")
tree=$(realpath "${2:-$(mktemp -d)}")
if [[ $# -lt 2 ]]; then trap 'rm -rf "${tree}"' EXIT; fi
cd "$(dirname "$0")/../.."

if [[ ! -x ${tree}/usr/bin/python3 ]]; then
  debootstrap --variant=minbase --include=python3,python3-numpy bullseye "${tree}" http://deb.debian.org/debian
fi
rm -rf "${tree}/wheel"
mkdir -p "${tree}/wheel/deploy/wheel"
unzip -q "${wheel}" -d "${tree}/wheel"
cp deploy/wheel/same_bits.py "${tree}/wheel/deploy/wheel"

# The mounts are those of this one process, and go with it. Its own shell expands $1.
# shellcheck disable=SC2016
there=$(timeout 600 unshare --mount sh -ec '
  mount --bind /proc "$1/proc"
  mount --bind /dev "$1/dev"
  chroot "$1" ldd --version | head -n 1 >&2
  chroot "$1" env PYTHONPATH=/wheel python3 -m deploy.wheel.same_bits /wheel/starring/libstarring.so
' sh "${tree}")
export PYTHONPATH=${tree}/wheel
here=$(timeout 600 /usr/bin/python3 -m deploy.wheel.same_bits "${tree}/wheel/starring/libstarring.so")
echo "${there}"
if [[ ${there} != "${here}" ]]; then
  echo "old_system: here the digests are:" >&2
  echo "${here}" >&2
  exit 1
fi
echo "old_system: the same digests as here"
