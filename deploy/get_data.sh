#!/bin/bash
# Fetches a data set into a folder for --data_dir.
#
#   deploy/get_data.sh mnist|cifar10 [--dir=DIR] [--mirror=URL] [--checksums=FILE]
#
#   --dir        the folder for the files; default: data/mnist or data/cifar10
#   --mirror     the URL of the folder that has the files (file:// works too); default: the variable STARRING_MIRROR,
#                else a public mirror of the data set
#   --checksums  a file with lines of md5sum that replace the known ones, for a mirror that repacked the files
#
# A file gets its name only once it is complete and its checksum is right. Until then it is in DIR/.partial, and the
# next run continues it. Files that are there are not fetched again. Fashion-MNIST needs no download: deploy/setup.sh
# installs it.
set -euo pipefail

die() {
  printf 'get_data: %s\n' "$@" >&2
  exit 1
}

usage() {
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
}

md5_of() { md5sum < "$1" | cut -d' ' -f1; }

# checksum_of NAME SUMS: prints the checksum of NAME, if SUMS, lines of "sum  name", has one.
checksum_of() { awk -v name="$1" '$2 == name || $2 == "*" name { print $1 }' <<<"$2"; }

# download URL FILE: continues FILE where an earlier attempt stopped.
download() {
  local url=$1 file=$2 status=0
  curl --fail --location --silent --show-error --retry 3 --connect-timeout 20 --continue-at - \
    --output "${file}" "${url}" || status=$?
  case ${status} in
    0) return 0 ;;
    # The partial file cannot be continued: the server does not support it (33), or not from this offset (22, which is
    # HTTP 416 here, and 36). Start over.
    22 | 33 | 36)
      if [[ -s ${file} ]]; then
        rm -f "${file}"
        download "${url}" "${file}"
        return
      fi
      die "the mirror does not have ${url} (curl status ${status})" \
        "name another mirror with --mirror=URL or STARRING_MIRROR" ;;
    37) die "there is no ${url}: name another mirror with --mirror=URL or STARRING_MIRROR" ;;
    23) die "cannot write ${file}: is the disk full?" ;;
    *) die "cannot fetch ${url} (curl status ${status}): is this machine offline?" \
        "name a mirror it can reach with --mirror=URL or STARRING_MIRROR, or put the files into the folder by hand;" \
        "what has arrived so far is kept for the next attempt" ;;
  esac
}

# fetch NAME: makes sure that DIR/NAME exists and has the right checksum.
fetch() {
  local name=$1 expected found part
  expected=$(checksum_of "${name}" "${checksums}")
  [[ -n ${expected} ]] || die "no checksum is known for ${name}: ${checksums_from} must list it"
  if [[ -f ${dir}/${name} && $(md5_of "${dir}/${name}") == "${expected}" ]]; then
    echo "get_data: ${dir}/${name} is there"
    return
  fi
  part=${partial}/${name}
  # A run that was stopped just before the rename has left a complete file.
  if [[ ! -f ${part} || $(md5_of "${part}") != "${expected}" ]]; then
    echo "get_data: fetching ${mirror}/${name}"
    download "${mirror}/${name}" "${part}"
  fi
  found=$(md5_of "${part}")
  if [[ ${found} != "${expected}" ]]; then
    # The next run would continue the wrong file, and its checksum would never be right.
    rm -f "${part}"
    die "${mirror}/${name} has the md5 ${found}, expected ${expected}: not kept" \
      "try again, or another mirror with --mirror=URL or STARRING_MIRROR"
  fi
  mv "${part}" "${dir}/${name}"
}

get_mnist() {
  local name
  for name in train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz t10k-images-idx3-ubyte.gz \
    t10k-labels-idx1-ubyte.gz; do
    fetch "${name}"
  done
}

get_cifar10() {
  local archive=cifar-10-binary.tar.gz name
  local names=(data_batch_1.bin data_batch_2.bin data_batch_3.bin data_batch_4.bin data_batch_5.bin test_batch.bin)
  for name in "${names[@]}"; do
    [[ -f ${dir}/${name} ]] || break
  done
  if [[ -f ${dir}/${name} && ${name} == test_batch.bin ]]; then
    echo "get_data: ${dir} has all of CIFAR-10"
    return
  fi
  fetch "${archive}"
  rm -rf "${partial}/unpacked"
  mkdir "${partial}/unpacked"
  tar -xzf "${dir}/${archive}" -C "${partial}/unpacked" --strip-components=1
  for name in "${names[@]}"; do
    [[ -f ${partial}/unpacked/${name} ]] || die "${dir}/${archive} holds no ${name}"
  done
  # test_batch.bin is moved last, so that its presence proves that all files are there.
  for name in "${names[@]}"; do
    mv "${partial}/unpacked/${name}" "${dir}/${name}"
  done
  rm -f "${dir}/${archive}"
}

dataset='' dir='' mirror=${STARRING_MIRROR:-} checksums='' checksums_from=--checksums
for argument in "$@"; do
  case ${argument} in
    --dir=*) dir=${argument#*=} ;;
    --mirror=*) mirror=${argument#*=} ;;
    --checksums=*)
      checksums_from=${argument#*=}
      checksums=$(cat "${checksums_from}") || die "cannot read ${checksums_from}" ;;
    --help | -h) usage; exit 0 ;;
    mnist | cifar10)
      [[ -z ${dataset} ]] || die "one data set at a time: both ${dataset} and ${argument} are given"
      dataset=${argument} ;;
    *) die "unknown argument ${argument}: see --help" ;;
  esac
done

case ${dataset} in
  mnist)
    mirror=${mirror:-https://ossci-datasets.s3.amazonaws.com/mnist}
    : "${checksums:=f68b3c2dcbeaaa9fbdd348bbdeb94873  train-images-idx3-ubyte.gz
d53e105ee54ea40749a09fcbcd1e9432  train-labels-idx1-ubyte.gz
9fb629c4189551a2d022fa330f9573f3  t10k-images-idx3-ubyte.gz
ec29112dd5afa0611ce80d1b7f02629c  t10k-labels-idx1-ubyte.gz}" ;;
  cifar10)
    mirror=${mirror:-https://www.cs.toronto.edu/~kriz}
    : "${checksums:=c32a1d4ab5d03f1284b67883e8d87530  cifar-10-binary.tar.gz}" ;;
  *)
    usage >&2
    exit 1 ;;
esac
mirror=${mirror%/}
dir=${dir:-data/${dataset}}
partial=${dir}/.partial
mkdir -p "${partial}"
"get_${dataset}"
rm -rf "${partial}"
echo "get_data: done; train on it with --dataset=${dataset} --data_dir=$(cd "${dir}" && pwd)"
