#!/bin/bash
# Tests deploy/get_data.sh against mirrors that are folders of files.
set -uo pipefail
readonly GET_DATA=$1
readonly MIRROR=${TEST_TMPDIR}/mirror DIR=${TEST_TMPDIR}/data
readonly NAMES=({train,t10k}-{images-idx3,labels-idx1}-ubyte.gz)
unset STARRING_MIRROR

fail() {
  echo "FAILED (line ${BASH_LINENO[0]}): $*; output:" >&2
  cat "${TEST_TMPDIR}/output" >&2
  exit 1
}

get() { "${GET_DATA}" "$@" >"${TEST_TMPDIR}/output" 2>&1; }
said() { grep -q -- "$1" "${TEST_TMPDIR}/output"; }

mkdir -p "${MIRROR}"
for name in "${NAMES[@]}"; do
  echo "the content of ${name}" | gzip -n >"${MIRROR}/${name}"
done
(cd "${MIRROR}" && md5sum "${NAMES[@]}") >"${TEST_TMPDIR}/sums"
readonly MNIST=(mnist --dir="${DIR}" --mirror="file://${MIRROR}/")

# A file whose checksum is not the known one is refused and deleted.
get "${MNIST[@]}" && fail "took a file with a wrong checksum"
said "expected f68b3c2dcbeaaa9fbdd348bbdeb94873: not kept" || fail "does not say what it expected"
[[ -z $(find "${DIR}" -type f) ]] || fail "kept the wrong file"

# A partial file is continued at its end. If its beginning is wrong, the checksum shows it, and the file is deleted.
mkdir -p "${DIR}/.partial"
echo 123456789 >"${DIR}/.partial/train-images-idx3-ubyte.gz"
get "${MNIST[@]}" --checksums="${TEST_TMPDIR}/sums" && fail "did not go on from the partial file"
said "not kept" || fail "does not say that the file is wrong"
head -c 10 "${MIRROR}/train-images-idx3-ubyte.gz" >"${DIR}/.partial/train-images-idx3-ubyte.gz"
get "${MNIST[@]}" --checksums="${TEST_TMPDIR}/sums" || fail "could not fetch"
for name in "${NAMES[@]}"; do
  cmp "${MIRROR}/${name}" "${DIR}/${name}" || fail "${name} differs"
done
[[ ! -e ${DIR}/.partial ]] || fail "did not remove .partial"

# If all files are there, the mirror is not contacted. A damaged file is fetched again.
get mnist --dir="${DIR}" --mirror=file:///nowhere --checksums="${TEST_TMPDIR}/sums" || fail "fetched again"
echo damage >"${DIR}/t10k-labels-idx1-ubyte.gz"
get mnist --dir="${DIR}" --mirror=file:///nowhere --checksums="${TEST_TMPDIR}/sums" && fail "kept a damaged file"
STARRING_MIRROR=file://${MIRROR} get mnist --dir="${DIR}" --checksums="${TEST_TMPDIR}/sums" || fail "no STARRING_MIRROR"
cmp "${MIRROR}/t10k-labels-idx1-ubyte.gz" "${DIR}/t10k-labels-idx1-ubyte.gz" || fail "did not repair"

# README fetches MNIST into the folder that its worker reads.
command=$(grep -o '^\./deploy/get_data\.sh mnist' README.md) || fail "README.md does not fetch MNIST"
folder=$(sed -n 's/.*--dataset=mnist --data_dir=\([^ ]*\) .*/\1/p' README.md | head -n 1)
readonly CLONE=${TEST_TMPDIR}/clone
mkdir -p "${CLONE}/deploy"
cp "${GET_DATA}" "${CLONE}/deploy/get_data.sh"
(cd "${CLONE}" && STARRING_MIRROR=file://${MIRROR} ${command} --checksums="${TEST_TMPDIR}/sums") \
  >"${TEST_TMPDIR}/output" 2>&1 || fail "README's command failed"
cmp "${MIRROR}/train-images-idx3-ubyte.gz" "${CLONE}/${folder}/train-images-idx3-ubyte.gz" \
  || fail "README trains from ${folder}, which is empty"

# If the server cannot be reached (port 1 refuses connections), the message says so, and what to do.
get mnist --dir="${DIR}/offline" --mirror=http://127.0.0.1:1 && fail "succeeded without a server"
{ said "is this machine offline" && said "STARRING_MIRROR"; } || fail "unclear message"

# CIFAR-10 comes as an archive and ends as six files.
mkdir -p "${MIRROR}/cifar-10-batches-bin"
for name in data_batch_{1,2,3,4,5}.bin test_batch.bin readme.html; do
  echo "${name}" >"${MIRROR}/cifar-10-batches-bin/${name}"
done
tar -czf "${MIRROR}/cifar-10-binary.tar.gz" -C "${MIRROR}" cifar-10-batches-bin
(cd "${MIRROR}" && md5sum cifar-10-binary.tar.gz) >"${TEST_TMPDIR}/cifar_sums"
readonly CIFAR=(cifar10 --dir="${DIR}/cifar10" --checksums="${TEST_TMPDIR}/cifar_sums")
get "${CIFAR[@]}" --mirror="file://${MIRROR}" || fail "could not fetch CIFAR-10"
[[ $(find "${DIR}/cifar10" -mindepth 1 | wc -l) == 6 ]] || fail "expected six files, found: $(ls -A "${DIR}/cifar10")"
[[ $(cat "${DIR}/cifar10/test_batch.bin") == test_batch.bin ]] || fail "test_batch.bin differs"
get "${CIFAR[@]}" --mirror=file:///nowhere || fail "fetched CIFAR-10 again"

# Wrong arguments.
get && fail "took no argument"
get imagenet && fail "took an unknown data set"
said "unknown argument imagenet" || fail "does not name the argument"
get mnist cifar10 && fail "took two data sets"
echo PASSED
