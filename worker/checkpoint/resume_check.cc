#include "worker/checkpoint/resume_check.h"

#include <charconv>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/status.h"
#include "common/flags/flag_table.h"

namespace starring {
namespace {

constexpr char kEnvironment[] = "environment.";
constexpr char kSums[] = "sums.library";  // which adds the gradients, and decides their order

// Facts that are not here are said: they tell of the machine, and a run may go on on another one.
constexpr absl::string_view kRefusedFacts[] = {"model", "data.train"};

// A flag as it is written, a fact by its name.
std::string Named(absl::string_view name) {
  return absl::StrCat(WorkerFlags().Find(name) != nullptr ? "--" : "", name);
}

// As a person has written it: the update computes in float32, and 0.9 rounded to that has 17 digits as a double.
std::string Shown(absl::string_view name, const std::string& value) {
  const FlagRow* const row = WorkerFlags().Find(name);
  double number = 0;
  if (row == nullptr || row->limits().kind != FlagLimits::Kind::kReal || !absl::SimpleAtod(value, &number))
    return value;
  const auto rounded = static_cast<float>(number);
  if (static_cast<double>(rounded) != number) return value;
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), rounded).ptr};
}

absl::Status Refuse(absl::string_view name, absl::string_view mine, absl::string_view written,
                    const std::string& folder) {
  absl::string_view way_out = "give the same value, or train without --resume";
  if (name == "model") {
    way_out = "give the same layer file, and data of as many classes, or train without --resume in another folder";
  }
  if (name == "data.train") way_out = "give the same training data, or train without --resume in another folder";
  return absl::InvalidArgumentError(absl::StrCat(WorkerFlags().Find(name) != nullptr ? "flag " : "", Named(name),
                                                 " is ", mine, ", ", folder, " was written with ", written, ": ",
                                                 way_out));
}

// A version that did not have a flag did what is the flag's default now. Version 0 kept some of its flags only.
void AddWhatWasUsual(int version, std::map<std::string, std::string>* written) {
  const auto* const usual = static_cast<const WorkerOptions*>(WorkerFlags().defaults);
  for (const auto& [name, value] : DecidingValues(*usual, {})) {
    if (version > 0 || name == "sum_order" || name == "micro_batches") written->insert({name, value});
  }
}

// A run without a fact computes on another device, and its checkpoint has no value to compare. A variable that is
// missing was not set.
std::optional<std::string> ValueOf(const std::map<std::string, std::string>& values, const std::string& name,
                                   int version) {
  const auto found = values.find(name);
  if (found != values.end()) return found->second.empty() ? "none" : found->second;
  return version > 0 && absl::StartsWith(name, kEnvironment) ? std::optional<std::string>("none") : std::nullopt;
}

// With other workers sums are cut elsewhere, unless leaves cut them.
absl::Status CompareWorkers(const Checkpoint& checkpoint, const std::string& folder, const WorkerOptions& worker,
                            std::vector<std::string>* said) {
  if (checkpoint.world_size == worker.world_size) {
    if (checkpoint.chunk_bytes == 0 || checkpoint.chunk_bytes == ChunkBytesFor(checkpoint.world_size)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat(folder, " was written with chunk_bytes ", checkpoint.chunk_bytes,
                     ", this build adds in chunks of ", ChunkBytesFor(checkpoint.world_size), " with ",
                     checkpoint.world_size, " workers, which gives other bits: resume with the build that wrote it"));
  }
  if (checkpoint.world_size > 0 && worker.micro_batches == 0) {
    said->push_back(absl::StrCat("resumes with --world_size ", worker.world_size, ", ", folder, " was written with ",
                                 checkpoint.world_size, ": sums are cut elsewhere, which gives other bits"));
  }
  return absl::OkStatus();
}

}  // namespace

WhenResumed RuleOf(absl::string_view name) {
  for (const absl::string_view fact : kRefusedFacts) {
    if (fact == name) return WhenResumed::kRefused;
  }
  const FlagRow* const row = WorkerFlags().Find(name);
  return row != nullptr && row->Has(kSameWhenResumed) ? WhenResumed::kRefused : WhenResumed::kSaid;
}

std::map<std::string, std::string> DecidingValues(const WorkerOptions& worker, const Facts& facts) {
  std::map<std::string, std::string> values;
  for (auto& [flag, value] : ResumedFlags(WorkerFlags(), &worker)) values.insert_or_assign(flag, value);
  for (auto& [flag, value] : SaidFlags(WorkerFlags(), &worker)) values.insert_or_assign(flag, value);
  values[kSums] = worker.IsDeterministic() ? "Starring" : worker.sync == Sync::kNccl ? "NCCL" : "MPI";
  for (const auto& [name, value] : facts) values.insert_or_assign(name, value);
  return values;
}

absl::StatusOr<std::vector<std::string>> CheckResume(const Checkpoint& checkpoint, const std::string& folder,
                                                     const WorkerOptions& worker, const Facts& facts) {
  const std::map<std::string, std::string> mine = DecidingValues(worker, facts);
  std::map<std::string, std::string> written = checkpoint.config;
  AddWhatWasUsual(checkpoint.version, &written);
  std::vector<std::string> said;
  // A name that only one side has may differ, too: a missing variable of the environment counts as none.
  std::map<std::string, std::string> names = mine;
  names.insert(written.begin(), written.end());
  // Flags come before facts: another --seed explains other synthetic data.
  for (const bool dotted : {false, true}) {
    for (const auto& [name, unused] : names) {
      if (absl::StrContains(name, '.') != dotted) continue;
      const std::optional<std::string> now = ValueOf(mine, name, kCheckpointVersion);
      const std::optional<std::string> before = ValueOf(written, name, checkpoint.version);
      if (!now.has_value() || !before.has_value() || *now == *before) continue;
      if (RuleOf(name) == WhenResumed::kRefused) return Refuse(name, *now, *before, folder);
      said.push_back(absl::StrCat("resumes with ", Named(name), " ", Shown(name, *now), ", ", folder,
                                  " was written with ", Shown(name, *before)));
    }
  }
  RETURN_IF_ERROR(CompareWorkers(checkpoint, folder, worker, &said));
  if (checkpoint.version == 0) {
    said.push_back(absl::StrCat(folder,
                                " was written by a version that kept neither layer file, data, optimizer and schedule "
                                "nor threads and instruction set: they are not compared"));
  }
  return said;
}

}  // namespace starring
