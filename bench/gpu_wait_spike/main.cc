// How streams of two processes may wait for each other on this machine's GPU 0, and whether they may share its memory.
//
//   bazel run //bench:gpu_wait_spike [-- --only=ipc,yield --rounds=1000 --seconds_max=90]
//
// It prints a table and a verdict for each question:
//   attributes  versions, and what the GPU says about stream memory operations, IPC and host memory
//   ipc         does CUDA IPC open between two processes, in both directions, for memory and events
//   ping_pong   a round of two processes, p50 and p99: paced by the host, by memory operations, by spinning kernels
//   yield       does a stream that waits leave the GPU to another process
// Where the daemon of NVIDIA's MPS runs, all of it is measured through MPS; the environment variable
// CUDA_MPS_PIPE_DIRECTORY=/nonexistent leaves the daemon out. No setting of the machine is changed.
//
// Each row has two processes of its own and a deadline. A row that fails is printed with CUDA's error, and the next one
// is measured. Exit status: 0; 1 a row failed; 2 there is no GPU, or a flag is wrong.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "bench/gpu_wait_spike/pair.h"
#include "bench/gpu_wait_spike/parts.h"
#include "bench/gpu_wait_spike/verdict.h"

ABSL_FLAG(std::string, only, "attributes,ipc,ping_pong,yield", "the questions, of those of the default");
ABSL_FLAG(int, rounds, 1000, "rounds of a ping-pong, at most 2000");
ABSL_FLAG(int, seconds_max, 90, "rows that do not fit into this time are not run");

namespace starring::gpu_wait {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRoundsMax = 2000;
constexpr std::chrono::milliseconds kRowLimit{15'000};
constexpr std::chrono::milliseconds kRowLeast{3'000};  // with less time left no row begins
constexpr absl::string_view kQuestions[] = {"attributes", "ipc", "ping_pong", "yield"};

class Spike {
 public:
  Spike(int rounds, std::chrono::seconds limit) : rounds_(rounds), end_(Clock::now() + limit) {}

  // Unavailable where there is no GPU.
  absl::Status AskAttributes() {
    const PairResult result = Run(NoteAttributes);
    if (absl::IsUnavailable(result.status)) return result.status;
    Print("attributes", result);
    Say(absl::StrCat("attributes: ", result.status.ok() ? result.notes.back() : std::string(result.status.message())));
    const char* const folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
    const MpsDaemon mps = FindMpsDaemon(folder != nullptr ? folder : "/tmp/nvidia-mps");
    Say(absl::StrCat("MPS: ", mps.text, mps.runs ? ": all rows are with MPS" : ": all rows are without MPS"));
    return absl::OkStatus();
  }

  void AskIpc() {
    const struct {
      const char* name;
      Part part;
    } rows[] = {{"memory", ShareMemory},
                {"event", ShareEvent},
                {"inner memory", ShareInnerMemory},
                {"own memory", OpenOwnMemory}};
    std::vector<std::string> answers;
    for (const auto& row : rows) {
      const PairResult result = Run(row.part);
      Print(absl::StrCat("ipc: ", row.name), result);
      answers.push_back(absl::StrCat(row.name, result.status.ok() ? " yes" : " NO"));
    }
    answers.resize(2);  // the others show where handles lead, and decide nothing
    Say(absl::StrCat("CUDA IPC between two processes: ", absl::StrJoin(answers, ", ")));
  }

  void AskPingPong() {
    const struct {
      const char* name;
      PingPong job;
    } rows[] = {
        {"host: event polled", {.way = WaitWay::kHostPolls}},
        {"host: event that blocks", {.way = WaitWay::kHostBlocks}},
        {"memory operations, host page", {.way = WaitWay::kMemoryOperation}},
        {"memory operations, host page, graph", {.way = WaitWay::kMemoryOperation, .capture = Capture::kGraph}},
        {"memory operations, device", {.way = WaitWay::kMemoryOperation, .place = WordPlace::kDeviceMemory}},
        {"memory operations, device, graph",
         {.way = WaitWay::kMemoryOperation, .place = WordPlace::kDeviceMemory, .capture = Capture::kGraph}},
        {"spinning kernel, host page", {.way = WaitWay::kSpinningKernel}},
        {"spinning kernel, host page, graph", {.way = WaitWay::kSpinningKernel, .capture = Capture::kGraph}},
        {"spinning kernel, device", {.way = WaitWay::kSpinningKernel, .place = WordPlace::kDeviceMemory}},
        {"spinning kernel, device, graph",
         {.way = WaitWay::kSpinningKernel, .place = WordPlace::kDeviceMemory, .capture = Capture::kGraph}},
    };
    std::string fastest = "none was measured";
    double fastest_us = 0;
    PrintPingPong("(no wait: from kernel to kernel, graph)", Run(RunKernelsAlone));
    for (const auto& row : rows) {
      PingPong job = row.job;
      job.rounds = rounds_;
      const PairResult result = Run([job](Peer& peer) { return RunPingPong(peer, job); });
      PrintPingPong(row.name, result);
      if (!result.status.ok() || result.series[0].empty()) continue;
      const double p50_us = Percentile(result.series[0], 50);
      if (fastest_us > 0 && p50_us >= fastest_us) continue;
      fastest_us = p50_us;
      fastest = row.name;
    }
    Say(absl::StrCat("the fastest round of two processes: ", fastest,
                     fastest_us > 0 ? absl::StrCat(", p50 ", fastest_us, " us") : ""));
  }

  void AskYield() {
    const auto ask = [&](const char* name, Meanwhile meanwhile) {
      const PairResult result = Run([meanwhile](Peer& peer) { return RunYield(peer, meanwhile); });
      const YieldTimes times = {.alone_ms = result.series[0], .waited_for_ms = result.series[1]};
      PrintNotes(YieldLine(absl::StrCat("yield: ", name), result.status, times), result);
      return result.status.ok() ? JudgeYield(times) : Yields::kUnknown;
    };
    const Yields page = ask("waits by a memory operation, host page", Meanwhile::kWaitsByMemoryOperation);
    ask("waits by a memory operation, device", Meanwhile::kWaitsByMemoryOperationOnDevice);
    const Yields spin = ask("waits by a spinning kernel, host page", Meanwhile::kWaitsBySpinningKernel);
    ask("computes", Meanwhile::kComputes);
    Say(YieldVerdict(page, spin));
  }

  // 0, or 1 if a row failed.
  int PrintVerdicts() const {
    std::printf("\n");
    for (const std::string& verdict : verdicts_) std::printf("VERDICT  %s\n", verdict.c_str());
    return failed_ ? 1 : 0;
  }

 private:
  PairResult Run(const Part& part) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now());
    if (left >= kRowLeast) return RunPair(part, std::min(left, kRowLimit));
    PairResult result;
    result.status = absl::DeadlineExceededError("not run, --seconds_max is over");
    return result;
  }

  void Print(absl::string_view name, const PairResult& result) {
    PrintNotes(
        result.status.ok() ? std::string(name) : absl::StrCat(name, " FAILED: ", std::string(result.status.message())),
        result);
  }
  void PrintPingPong(const char* name, const PairResult& result) {
    PrintNotes(PingPongLine(name, result.status, result.series[0]), result);
  }
  void PrintNotes(const std::string& line, const PairResult& result) {
    std::printf("%s\n", line.c_str());
    for (const std::string& note : result.notes) std::printf("    %s\n", note.c_str());
    std::fflush(stdout);
    if (!result.status.ok()) failed_ = true;
  }
  void Say(std::string verdict) { verdicts_.push_back(std::move(verdict)); }

  const int rounds_;
  const Clock::time_point end_;
  std::vector<std::string> verdicts_;
  bool failed_ = false;
};

int Refuse(const std::string& why) {
  std::fprintf(stderr, "gpu_wait_spike: %s\n", why.c_str());
  return 2;
}

int Main(const std::vector<std::string>& asked, int rounds, int seconds_max) {
  for (const std::string& name : asked) {
    if (std::find(std::begin(kQuestions), std::end(kQuestions), name) == std::end(kQuestions)) {
      return Refuse(absl::StrCat("--only has \"", name, "\": it can have ", absl::StrJoin(kQuestions, ", ")));
    }
  }
  if (rounds < 1 || rounds > kRoundsMax)
    return Refuse(absl::StrCat("--rounds is ", rounds, ": give 1 to ", kRoundsMax));
  if (seconds_max < 1) return Refuse(absl::StrCat("--seconds_max is ", seconds_max, ": give 1 or more"));
  const auto wanted = [&](absl::string_view name) {
    return std::find(asked.begin(), asked.end(), name) != asked.end();
  };
  Spike spike(rounds, std::chrono::seconds(seconds_max));
  // Always, because they tell whether there is a GPU.
  if (const absl::Status gpu = spike.AskAttributes(); !gpu.ok()) {
    std::fprintf(stderr, "no GPU: %s\n", std::string(gpu.message()).c_str());
    return 2;
  }
  if (wanted("ipc")) spike.AskIpc();
  if (wanted("ping_pong")) spike.AskPingPong();
  if (wanted("yield")) spike.AskYield();
  return spike.PrintVerdicts();
}

}  // namespace
}  // namespace starring::gpu_wait

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  // Else the first launch of a kernel loads it, which can wait for streams that wait for the other process.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  return starring::gpu_wait::Main(absl::StrSplit(absl::GetFlag(FLAGS_only), ','), absl::GetFlag(FLAGS_rounds),
                                  absl::GetFlag(FLAGS_seconds_max));
}
