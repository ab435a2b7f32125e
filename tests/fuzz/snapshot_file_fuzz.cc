// The files of earlier processes, as a shard of an elastic run finds them in its folder.
//
// Each file is two bytes, a head and what follows it, both after their lengths. The first byte is the step in the
// file's name. The second one says whether the file gets the right head, or the input's own, and whether that has its
// length.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <ios>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/memory.h"
#include "common/checkpoint/crc32c.h"
#include "server/elastic/snapshot_store.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/memory_folder.h"
#include "tests/fuzz/reached.h"

namespace {

constexpr int64_t kElements = 6;  // of two arrays
constexpr int64_t kArrayBytes = 2 * kElements * 4;
constexpr size_t kHeadBytes = 512;
constexpr int kFilesMax = 20;  // more than stay

std::string ContentOf(int64_t step, starring::FuzzInput& input) {
  const int shape = input.Byte();
  std::string head = input.Block(), body = input.Block();
  if ((shape & 1) != 0) {
    const size_t side_count = (std::max<size_t>(body.size(), kArrayBytes) - kArrayBytes) / 8;
    body.resize(kArrayBytes + 8 * side_count);
    head = absl::StrFormat("starring-snapshot-1 job=fuzz shard=0/1 step=%d elements=%d arrays=2 side=%d crc=%08x\n",
                           step, kElements, side_count, starring::Crc32c(body));
  }
  if ((shape & 3) != 0) head.resize(kHeadBytes);
  return head + body;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static starring::MemoryFolder folder;
  starring::FuzzInput input(data, size);
  const std::string& path = folder.Emptied();
  for (int file = 0; file < kFilesMax && !input.empty(); ++file) {
    const int64_t step = input.Byte();
    std::ofstream(absl::StrFormat("%s/snapshot-0of1-%09d", path, step), std::ios::binary) << ContentOf(step, input);
  }
  const auto store = starring::SnapshotStore::Open({.folder = path,
                                                    .job = "fuzz",
                                                    .slice_elements = {4, 0, 2},
                                                    .vector_count = 1,
                                                    .has_side_values = true,
                                                    .log = [](const std::string& line) { starring::Reached(line); }});
  CHECK_OK(store);
  starring::Reached(absl::StrCat("held ", (*store)->held().size()));
  for (const int64_t step : (*store)->held()) {
    const auto snapshot = (*store)->Get(step);
    CHECK_OK(snapshot);
    CHECK_EQ((*snapshot)->step, step);
    CHECK_EQ((*snapshot)->arrays.size(), 2u);
    for (const starring::AlignedFloats& array : (*snapshot)->arrays) CHECK_EQ(array.size(), kElements);
    CHECK_EQ((*store)->bytes_in_memory(), kArrayBytes);
  }
  const auto durable = (*store)->durable();
  CHECK_LE(durable.size(), starring::SnapshotStore::kFilesMax);
  starring::Reached(absl::StrCat("durable ", durable.size()));
  return 0;
}
