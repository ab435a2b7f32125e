// Latency and bus bandwidth of one exchange, from the Submit to the Await of all buckets, for the ring, the star
// without servers (star-mpi) and mpi, and for a bare MPI_Allreduce as the base line, which applies no optimizer:
//
//   mpirun -np 2 --bind-to core bazel-bin/bench/ring_bench
//   mpirun -np 2 --bind-to core bazel-bin/bench/ring_bench --compute_us=2000     a trainer that computes meanwhile
//   mpirun -np 2 --bind-to core bazel-bin/bench/ring_bench --syncs=ring,ring-tcp,star-mpi,star-tcp
//   mpirun -np 2 --bind-to core bazel-bin/bench/ring_bench --syncs=library,star-mpi-shm,star-tcp-shm,auto
//
// In star-mpi-shm and star-tcp-shm the ranks share memory and use messages for all but gradients and parameters; auto
// is the way that the ranks choose at the start, over MPI (--sync=auto).
//
// mpirun starts the ranks of the cells over TCP as well, and MPI keeps them in step between their exchanges.
//
// Bus bandwidth is 2 (N - 1) / N * bytes / time: every link must carry at least these bytes, whatever the algorithm.
// With --compute_us, every step computes that long after its Submits, and `exposed` is the step's time beyond it. `cpu`
// is what a rank's threads spend on a step, on any core; `sleeps` and `gives way` are its voluntary and its involuntary
// context switches. All three are means over ranks and steps.
//
// With --micro_batches the ranks share that many leaves, and the order of sums is a tree; only the stars take them.
#include <mpi.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "bench/computation.h"
#include "bench/counting_transport.h"
#include "bench/exchange_job.h"
#include "bench/exchange_row.h"
#include "bench/processor_cost.h"
#include "common/base/check.h"
#include "common/base/memory.h"
#include "common/host/launcher_environment.h"
#include "common/job/cells.h"
#include "common/job/job_spec.h"
#include "common/job/leaf_shares.h"
#include "common/transport/mpi/mpi_runtime.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "worker/exchange/peer/peer_exchange.h"

ABSL_FLAG(std::vector<std::string>, bytes,
          std::vector<std::string>({"4096", "65536", "262144", "1048576", "4194304", "16777216", "67108864"}),
          "sizes of the parameter vector");
ABSL_FLAG(std::vector<std::string>, syncs, std::vector<std::string>({"library", "ring", "star-mpi", "mpi"}),
          "what to measure: library, the bare MPI_Allreduce, ring, ring-tcp, star-mpi, star-tcp, star-mpi-shm, "
          "star-tcp-shm, auto, mpi");
ABSL_FLAG(std::string, rendezvous, "127.0.0.1:0",
          "for the cells over TCP, which use no secret: an address of rank 0's host that all ranks reach, and a port");
ABSL_FLAG(int64_t, bucket_bytes, 1 << 30, "as --bucket_bytes of the worker; default: one bucket");
ABSL_FLAG(std::string, sum_order, "chain", "as --sum_order of the worker");
ABSL_FLAG(int, micro_batches, 0, "as --micro_batches of the worker; 0: every rank is a leaf");
ABSL_FLAG(int64_t, compute_us, 0, "how long each step computes between its Submits and its Awaits");
ABSL_FLAG(int64_t, steps_max, 2000, "measured steps of a size, where its bytes do not ask for fewer");
ABSL_FLAG(double, momentum, 0.9, "of SGD");
ABSL_FLAG(std::string, format, "table", "table, or json: an object a line, as bench/compare reads it");

namespace starring {
namespace {

using Clock = std::chrono::steady_clock;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Result {
  double p50_us = 0;
  double p95_us = 0;
  ProcessorCost cost;       // of a rank's step
  double messages = 0;      // that a rank sends in a step
  double resident_kib = 0;  // of a rank, so far
};

// Replaces what this rank has spent by the means over all ranks.
void TakeMeans(Result& result) {
  double* const values[] = {&result.cost.cpu_us, &result.cost.voluntary_switches, &result.cost.involuntary_switches,
                            &result.messages, &result.resident_kib};
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (double* value : values) {
    double sum = 0;
    MPI_Allreduce(value, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    *value = sum / ranks;
  }
}

int RepetitionsFor(int64_t bytes) {
  const int64_t count = std::clamp<int64_t>((256 << 20) / bytes, 10, 2000);
  return static_cast<int>(std::min(count, std::max<int64_t>(1, absl::GetFlag(FLAGS_steps_max))));
}

// Runs `step` between barriers; the first fifth of the runs is warm-up. A step's time is that of its slowest rank.
// `messages`: sent by this rank so far.
template <typename Step>
Result Measure(int64_t bytes, const std::atomic<int64_t>& messages, Step step) {
  const int repetitions = RepetitionsFor(bytes);
  std::vector<double> times;
  ProcessorCost cost;
  int64_t messages_before = 0;
  for (int i = 0; i < repetitions + repetitions / 5; ++i) {
    if (i == repetitions / 5) messages_before = messages;
    MPI_Barrier(MPI_COMM_WORLD);
    // The barrier polls, and is not counted.
    const ProcessorCost before = ReadProcessorCost();
    const Clock::time_point start = Clock::now();
    step(i);
    double us = MicrosecondsSince(start);
    if (i >= repetitions / 5) cost += ReadProcessorCost() - before;
    double slowest = 0;
    MPI_Allreduce(&us, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (i >= repetitions / 5) times.push_back(slowest);
  }
  std::sort(times.begin(), times.end());
  Result result = {.p50_us = times[times.size() / 2],
                   .p95_us = times[times.size() * 95 / 100],
                   .cost = cost * (1.0 / repetitions),
                   .messages = static_cast<double>(messages - messages_before) / repetitions,
                   .resident_kib = ReadResidentKib()};
  TakeMeans(result);
  return result;
}

// Connects the ranks at a port of rank 0, of which MPI tells the others.
std::unique_ptr<Transport> ConnectOverTcp(const MpiRuntime& mpi) {
  TcpRendezvousOptions options;
  options.rank = mpi.rank();
  options.world_size = mpi.world_size();
  options.insecure = true;
  char address[256] = {};
  if (mpi.rank() == 0) {
    auto listener = TcpListener::Listen(absl::GetFlag(FLAGS_rendezvous));
    CHECK_OK(listener);
    CHECK_LT(listener->address().size(), sizeof(address));
    listener->address().copy(address, sizeof(address) - 1);
    options.listener = *std::move(listener);
  }
  MPI_Bcast(address, sizeof(address), MPI_CHAR, 0, MPI_COMM_WORLD);
  if (mpi.rank() != 0) options.rendezvous = address;
  auto transport = ConnectFullMesh(std::move(options));
  CHECK_OK(transport);
  return *std::move(transport);
}

// Whether this program measures the cell: all those without servers.
bool MeasuredHere(const Cell& cell) { return cell.Exchanges() && cell.placement != Placement::kServers; }

std::string NamesOfSyncs() {
  std::string names = "library, auto";
  for (const Cell& cell : Cells()) {
    if (MeasuredHere(cell)) absl::StrAppend(&names, ", ", cell.name);
  }
  return names;
}

// `messages` outlives the exchange.
std::unique_ptr<PeerExchange> CreateExchange(const std::string& sync, const MpiRuntime& mpi,
                                             std::atomic<int64_t>* messages) {
  PeerExchange::Options options;
  const bool is_auto = sync == "auto";
  const auto cell =
      std::ranges::find_if(Cells(), [&](const Cell& each) { return MeasuredHere(each) && each.name == sync; });
  CHECK(is_auto || cell != Cells().end()) << "--syncs=" << sync << ": it can be " << NamesOfSyncs();
  if (is_auto) {
    options.algorithm = PeerExchange::Algorithm::kFastest;
    options.sharing = PeerExchange::HostSharing::kIfPossible;
  } else if (cell->placement == Placement::kEachRank) {
    options.algorithm = PeerExchange::Algorithm::kAllreduce;
  } else {
    options.algorithm = cell->sync == Sync::kRing ? PeerExchange::Algorithm::kRing : PeerExchange::Algorithm::kDirect;
    if (cell->same_host == SameHost::kSharedMemory) options.sharing = PeerExchange::HostSharing::kRequired;
  }
  if (!is_auto && cell->contact == Contact::kRendezvous)
    return std::make_unique<PeerExchange>(std::make_unique<CountingTransport>(ConnectOverTcp(mpi), messages), options);
  std::unique_ptr<MpiTransport> transport = CreateMpiTransport(mpi);
  options.mpi = transport.get();
  return std::make_unique<PeerExchange>(std::make_unique<CountingTransport>(std::move(transport), messages), options);
}

Result MeasureExchange(const std::string& sync, int64_t bytes, const MpiRuntime& mpi, Computation& computation) {
  std::atomic<int64_t> messages = 0;
  const std::unique_ptr<PeerExchange> created = CreateExchange(sync, mpi, &messages);
  PeerExchange& exchange = *created;
  const int micro_batches = absl::GetFlag(FLAGS_micro_batches);
  const bool is_tree = micro_batches > 0 || absl::GetFlag(FLAGS_sum_order) == "tree";
  const JobSpec job = MakeExchangeJob({.rank = mpi.rank(),
                                       .world_size = mpi.world_size(),
                                       .element_count = bytes / 4,
                                       .bucket_bytes = absl::GetFlag(FLAGS_bucket_bytes),
                                       .sum_order = is_tree ? SumOrder::kTree : SumOrder::kChain,
                                       .micro_batches = micro_batches,
                                       .optimizer = {.momentum = static_cast<float>(absl::GetFlag(FLAGS_momentum))}});
  // A worker's arrays are in huge pages as well: a copy between processes looks up every page.
  AlignedFloats parameters(job.layout.element_count());
  std::ranges::fill(parameters.span(), 0.5f);
  CHECK_OK(exchange.Start(job, parameters.span()));
  // A trainer writes its gradients where the exchange likes to have them.
  AlignedFloats own(exchange.memory().gradients.empty() ? job.layout.element_count() : 0);
  const std::span<float> gradient = own.size() == 0 ? exchange.memory().gradients.back() : own.span();
  std::ranges::fill(gradient, 1e-3f);
  const int buckets = job.buckets.bucket_count();
  const int nodes = static_cast<int>(ShareOf(mpi.rank(), LeafOwnersOf(job)).size());
  const double compute_us = static_cast<double>(absl::GetFlag(FLAGS_compute_us));
  const Result result = Measure(bytes, messages, [&](int64_t step) {
    for (int node = 0; node + 1 < nodes; ++node) {
      for (int b = 0; b < buckets; ++b) {
        const ElementRange range = job.buckets.bucket(b);
        exchange.Submit(
            {.round = step, .bucket = b, .gradient = gradient.subspan(range.begin, range.size()), .node = node});
      }
    }
    for (int b = 0; b < buckets; ++b) {
      const ElementRange range = job.buckets.bucket(b);
      exchange.Submit({.round = step, .bucket = b, .gradient = gradient.subspan(range.begin, range.size())});
      if (compute_us > 0) computation.Run(compute_us / buckets);
    }
    // Buckets are awaited in the order in which forward needs them: the last bucket has the first layers.
    for (int b = buckets - 1; b >= 0; --b) CHECK_OK(exchange.Await(step, b));
  });
  CHECK_OK(exchange.Finish());
  return result;
}

Result MeasureLibrary(int64_t bytes, Computation& computation) {
  AlignedFloats gradient(bytes / 4);
  std::ranges::fill(gradient.span(), 1e-3f);
  AlignedFloats sum(bytes / 4);
  const double compute_us = static_cast<double>(absl::GetFlag(FLAGS_compute_us));
  return Measure(bytes, /*messages=*/0, [&](int64_t) {
    if (compute_us > 0) computation.Run(compute_us);
    // The call blocks, so nothing of it overlaps with the computation.
    MPI_Allreduce(gradient.data(), sum.data(), static_cast<int>(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  });
}

bool PrintsJson() { return absl::GetFlag(FLAGS_format) == "json"; }

void Print(const char* name, int64_t bytes, int world_size, const Result& result) {
  const double compute_us = static_cast<double>(absl::GetFlag(FLAGS_compute_us));
  const double exposed_us = result.p50_us - compute_us;
  if (PrintsJson()) {
    PrintExchangeRow({.sync = name,
                      .workers = world_size,
                      .bytes = bytes,
                      .latency_us = exposed_us,
                      .p95_us = result.p95_us,
                      .cost = result.cost,
                      .messages = result.messages,
                      .resident_kib = result.resident_kib});
    return;
  }
  const double bus_bytes = 2.0 * (world_size - 1) / world_size * static_cast<double>(bytes);
  std::printf("%-8s %10lld %12.1f %12.1f %12.1f %10.2f %10.1f %8.2f %10.2f\n", name, static_cast<long long>(bytes),
              result.p50_us, result.p95_us, exposed_us, bus_bytes / exposed_us / 1e3, result.cost.cpu_us,
              result.cost.voluntary_switches, result.cost.involuntary_switches);
  std::fflush(stdout);
}

int Main() {
  auto runtime = MpiRuntime::Start(ReadLauncherEnvironment(getenv));
  CHECK_OK(runtime);
  MpiRuntime& mpi = **runtime;
  Computation computation;
  if (mpi.rank() == 0 && !PrintsJson()) {
    std::printf("%-8s %10s %12s %12s %12s %10s %10s %8s %10s\n", "what", "bytes", "p50 us", "p95 us", "exposed us",
                "bus GB/s", "cpu us", "sleeps", "gives way");
  }
  for (const std::string& text : absl::GetFlag(FLAGS_bytes)) {
    const int64_t bytes = std::stoll(text);
    for (const std::string& sync : absl::GetFlag(FLAGS_syncs)) {
      const Result result =
          sync == "library" ? MeasureLibrary(bytes, computation) : MeasureExchange(sync, bytes, mpi, computation);
      if (mpi.rank() == 0) Print(sync.c_str(), bytes, mpi.world_size(), result);
    }
  }
  return 0;
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return starring::Main();
}
