// An environment of lines NAME=VALUE. A line's first character may be an abbreviation of a name: see kNames.
#include <iterator>
#include <map>
#include <string>

#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/host/launcher_environment.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

// A line that begins with a character from '0' on sets the variable of that number.
constexpr const char* kNames[] = {
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SLURM_STEP_ID",
    "SLURM_STEPID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_LOCALID",
    "SLURM_GPUS_PER_TASK",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "STARRING_CORES_PER_WORKER",
    "STARRING_CORES_PER_SERVER",
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  starring::FuzzInput input(data, size);
  std::map<std::string, std::string, std::less<>> variables;
  const std::string text = input.Rest();
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.empty()) continue;
    const size_t number = static_cast<unsigned char>(line[0]) - '0';
    if (number < std::size(kNames)) {
      variables[kNames[number]] = std::string(line.substr(1));
    } else {
      const std::pair<std::string, std::string> pair = absl::StrSplit(line, absl::MaxSplits('=', 1));
      variables[pair.first] = pair.second;
    }
  }
  const auto environment = starring::ReadLauncherEnvironment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  CHECK_GE(environment.rank, 0);
  CHECK_LT(environment.rank, environment.world_size);
  CHECK_GE(environment.local_rank, 0);
  CHECK_LT(environment.local_rank, environment.local_size);
  CHECK_GE(environment.core_limits.cores, 1);
  CHECK(starring::LauncherName(environment.launcher) != "unknown");
  return 0;
}
