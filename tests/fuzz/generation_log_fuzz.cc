// The log of an elastic run's generations, as the coordinator, a launcher and `server --print_log` read it. A run whose
// log proves that every leaf counted once, and which the coordinator takes up, must be able to go on, and prove it at
// its end.
//
// The first byte says how many steps the run goes back, or, as a negative number, on: as far as snapshots say that it
// has come. The second byte says how many bytes of the file's end are cut off. The third byte says whether the rest is
// messages, after their lengths, which become records with their checksums: without them hardly any change of a log
// would be read. Otherwise the rest is the file.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <ios>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "proto/starring/v1/elastic_state.pb.h"
#include "server/elastic/generation_log.h"
#include "server/elastic/record_file.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/memory_folder.h"
#include "tests/fuzz/reached.h"

namespace {

using starring::GenerationLog;

constexpr int kLeaves = 4;

std::string ReadLog(starring::FuzzInput& input) {
  const bool is_framed = input.Byte() % 2 == 1;
  std::string log = is_framed ? "starring-generations-2\n" : input.Rest();
  while (!input.empty()) {
    // A message keeps fields that it does not know.
    starring::v1::GenerationLogEntry entry;
    if (!entry.ParseFromString(input.Block())) continue;
    log += starring::ToRecord(entry);
  }
  return log;
}

// False if the log does not say which generation has trained the steps that are to count, which is an error.
bool GoOnToTheEnd(GenerationLog& log, int64_t steps_back) {
  const int64_t number = log.last_number() + 1;
  const int64_t first_step = std::max(log.counted_end() - steps_back, log.first_step());
  const bool goes_on = first_step > log.counted_end();
  CHECK_OK(log.Prepare(number));
  const absl::Status committed = log.Commit(
      {.number = number, .first_step = first_step, .workers = {0xa1}, .leaf_owners = std::vector<int>(kLeaves)});
  if (!committed.ok()) {
    CHECK(goes_on && absl::IsDataLoss(committed)) << committed;
    starring::Reached(committed.ToString());
    return false;
  }
  CHECK_EQ(log.counted_end(), first_step);
  CHECK_OK(log.End(first_step + 1));
  starring::Reached("ended");
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static starring::MemoryFolder folder;
  starring::SilenceProtobuf();
  starring::FuzzInput input(data, size);
  const int64_t steps_back = static_cast<int8_t>(input.Byte());
  const size_t cut = input.Byte();
  std::string log_bytes = ReadLog(input);
  log_bytes.resize(log_bytes.size() - std::min(cut, log_bytes.size()));
  const std::string& path = folder.Emptied();
  std::ofstream(path + "/generations.log", std::ios::binary) << log_bytes;

  const GenerationLog::Run run = {
      .name = "run", .leaves = kLeaves, .shards = 2, .job = "ab12", .parts = {{"flags", "11", "give other flags"}}};
  const auto progress = GenerationLog::Peek(path).progress;
  const absl::Status proof = starring::CheckExactlyOnce(log_bytes);
  const absl::Status printed = GenerationLog::Print(path, [](const std::string&) {});
  CHECK_EQ(printed.ok(), proof.ok());
  starring::Reached(proof.ok() ? "proves itself" : proof.ToString());
  const auto log = GenerationLog::Open(path, run);
  starring::Reached(log.ok() ? "opened" : log.status().ToString());
  if (!log.ok()) return 0;
  CHECK(progress != GenerationLog::Progress::kEnded);
  CHECK_OK(proof);
  // No run comes so far, and what it would write then is refused.
  constexpr int64_t kStepsOnMax = 1 << 7;
  if (std::max((*log)->last_number(), (*log)->counted_end()) > starring::kStepMax - 2 * kStepsOnMax) return 0;
  if (!GoOnToTheEnd(**log, steps_back)) return 0;
  CHECK(GenerationLog::Peek(path).progress == GenerationLog::Progress::kEnded);
  return 0;
}
