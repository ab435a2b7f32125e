#!/bin/bash
# Trains with the bundle in another Debian: alone, by star, and by ring over MPI and TCP. Compares the digests of the
# parameters with those on this system.
#
#   sudo bench/systems/debian.sh bazel-bin/deploy/starring-bundle.tar.gz [RELEASE [FOLDER]]
#
# RELEASE is bullseye (glibc 2.31, the default), trixie (2.41), or another one in Debian's archive. FOLDER keeps the
# system, 200 MB from there, for the next time; a folder that has the files of a system, of any distribution, is taken
# as it is. Needs root and debootstrap. No test starts it: bullseye is out of support, and will leave the archive.
#
# Exit status: 0 if the digests are equal.
set -euo pipefail

if [[ $# -lt 1 || ! -f $1 ]]; then
  echo "debian: usage: $0 BUNDLE [RELEASE [FOLDER]]: there is no file ${1:-named}" >&2
  exit 2
fi
bundle=$(realpath "$1")
tree=$(realpath "${3:-$(mktemp -d)}")
if [[ $# -lt 3 ]]; then trap 'rm -rf "${tree}"' EXIT; fi

if [[ ! -x ${tree}/bin/sh ]]; then
  debootstrap --variant=minbase "${2:-bullseye}" "${tree}" http://deb.debian.org/debian
fi
rm -rf "${tree}/box"
mkdir "${tree}/box"
tar xzf "${bundle}" -C "${tree}/box"
cat >"${tree}/box/jobs.sh" <<'END'
job="--dataset=synthetic --synthetic_train_count=400 --synthetic_test_count=50 --global_batch=33 --epochs=2"
job="$job --checkpoint_dir=none --same_host=socket"
run() {
  name=$1
  shift
  # shellcheck disable=SC2086
  "$@" $job --device=cpu --progress=plain 2>&1 |
    sed -n "s/^.*done after .* parameters \([0-9a-f]*\).*/$name \1/p" | sort -u
}
cd "$(dirname "$0")/starring"
run alone bin/worker
run star bin/launch --sync=star --workers=2 --servers=2 --
run ring bin/launch --sync=ring --workers=2 --
run tcp bin/launch --sync=ring --transport=tcp --workers=2 --
END

# The mounts are those of this one process, and go with it. Its own shell expands $1.
# shellcheck disable=SC2016
there=$(timeout 600 unshare --mount sh -ec '
  mount --bind /proc "$1/proc"
  mount --bind /dev "$1/dev"
  mount -t tmpfs none "$1/dev/shm"
  chroot "$1" ldd --version | head -n 1 >&2
  chroot "$1" env -i PATH=/usr/bin:/bin sh /box/jobs.sh
' sh "${tree}")
here=$(timeout 600 env -i PATH=/usr/bin:/bin sh "${tree}/box/jobs.sh")
echo "${there}"
if [[ $(wc -l <<<"${there}") != 4 || ${there} != "${here}" ]]; then
  echo "debian: here the digests are:" >&2
  echo "${here}" >&2
  exit 1
fi
echo "debian: the same digests as here"
