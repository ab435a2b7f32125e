// The files of earlier processes, as a shard of an elastic run finds them in its folder.
//
// Each file is two bytes, a head and what follows it, both after their lengths. The first byte is the step in the
// file's name. The second one says whether the file gets the right head, or the input's own, whether that is a message,
// which becomes a record with its checksums, and whether it has a head's length.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <ios>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/memory.h"
#include "common/checkpoint/crc32c.h"
#include "proto/starring/v1/elastic_state.pb.h"
#include "server/elastic/record_file.h"
#include "server/elastic/snapshot_store.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/memory_folder.h"
#include "tests/fuzz/reached.h"

namespace {

constexpr int64_t kElements = 6;  // of two arrays
constexpr int64_t kArrayBytes = 2 * kElements * 4;
constexpr size_t kHeadBytes = 512;
const std::string kFirstLine = "starring-snapshot-2\n";
constexpr int kFilesMax = 20;  // more than stay

std::string ContentOf(int64_t step, starring::FuzzInput& input) {
  const int shape = input.Byte();
  std::string head = input.Block(), body = input.Block();
  if ((shape & 1) != 0) {
    const size_t side_count = (std::max<size_t>(body.size(), kArrayBytes) - kArrayBytes) / 8;
    body.resize(kArrayBytes + 8 * side_count);
    starring::v1::SnapshotHead proto;
    proto.set_job("fuzz");
    proto.set_shard_count(1);
    proto.set_step(step);
    proto.set_elements(kElements);
    proto.set_arrays(2);
    proto.set_side_values(static_cast<int64_t>(side_count));
    proto.set_crc(starring::Crc32c(body));
    head = kFirstLine + starring::ToRecord(proto);
  } else if ((shape & 4) != 0) {
    starring::v1::SnapshotHead proto;
    if (proto.ParseFromString(head)) head = kFirstLine + starring::ToRecord(proto);
  }
  if ((shape & 3) != 0) head.resize(kHeadBytes);
  return head + body;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static starring::MemoryFolder folder;
  starring::SilenceProtobuf();
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
  if (absl::IsInvalidArgument(store.status())) {  // another version
    starring::Reached(store.status().ToString());
    return 0;
  }
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
