// Latency, throughput and CPU time of the star, from the Submit to the Await of all buckets, in real processes on this
// machine:
//
//   bazel-bin/bench/star_bench                              2 workers, 2 servers, 4 KB to 64 MB
//   bazel-bin/bench/star_bench --workers=2 --servers=1 --lanes=4 --bytes=7600000 --bucket_bytes=1048576
//
// Between machines, with servers that were started there (a server serves one job, so one size):
//
//   bazel-bin/bench/star_bench --addresses=a:7077,b:7077 --workers=2 --rank=0 --bytes=7600000 --shared_memory=false
//
// --job_secret, --tls and so on, as worker and server have them, protect both sides; star_security.py compares them.
//
// GB/s is (pushed + pulled bytes of one worker) / time. `cpu` is the time that all processes together spend on a step
// on any core, `switches` their context switches. The servers apply SGD with momentum. With --compute_us every step of
// a worker computes that long after its Submits, and json's `latency_us` is the step's time beyond it.
#include <malloc.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "bench/computation.h"
#include "bench/exchange_job.h"
#include "common/check.h"
#include "common/security/transport_security.h"
#include "server/parameter_server.h"
#include "worker/exchange/star/star_exchange.h"

ABSL_FLAG(std::vector<std::string>, bytes,
          std::vector<std::string>({"4096", "65536", "262144", "1048576", "4194304", "16777216", "67108864"}),
          "sizes of the parameter vector");
ABSL_FLAG(int64_t, bucket_bytes, 1 << 20, "as --bucket_bytes of the worker");
ABSL_FLAG(int, workers, 2, "worker processes");
ABSL_FLAG(int, servers, 2, "server processes");
ABSL_FLAG(std::vector<std::string>, addresses, {}, "servers to use instead of own ones, in order of their shards");
ABSL_FLAG(int, rank, 0, "with --addresses: which worker this process is, the only one it starts; rank 0 prints");
ABSL_FLAG(int, lanes, 1, "connections between a worker and a server");
ABSL_FLAG(bool, pin, true, "worker i and server i run on core i modulo the number of cores");
ABSL_FLAG(bool, shared_memory, true, "arrays travel through shared memory, else through the socket");
ABSL_FLAG(int64_t, compute_us, 0, "how long each step of a worker computes between its Submits and its Awaits");
ABSL_FLAG(int64_t, steps_max, 3000, "steps of a size, where its bytes do not ask for fewer");
ABSL_FLAG(double, momentum, 0.9, "of SGD");
ABSL_FLAG(std::string, format, "table", "table, or json: an object a line, as bench/compare reads it");
ABSL_FLAG(std::string, job_secret, "", "as --job_secret of worker and server");
ABSL_FLAG(bool, tls, false, "as --tls of worker and server");
ABSL_FLAG(std::string, tls_ca, "", "as --tls_ca of worker and server");
ABSL_FLAG(std::string, tls_certificate, "", "as --tls_certificate of worker and server");
ABSL_FLAG(std::string, tls_key, "", "as --tls_key of worker and server");

namespace starring {
namespace {

using Clock = std::chrono::steady_clock;

void Pin(int process) {
  if (!absl::GetFlag(FLAGS_pin)) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(process % std::max(1u, std::thread::hardware_concurrency()), &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
}

// The measurement that rank 0 makes.
struct Row {
  double p50_ms = 0;
  double p95_ms = 0;
  int64_t steps = 0;
};

TransportSecurity Security() {
  auto security = LoadTransportSecurity({.job_secret = absl::GetFlag(FLAGS_job_secret),
                                         .tls = absl::GetFlag(FLAGS_tls),
                                         .tls_ca = absl::GetFlag(FLAGS_tls_ca),
                                         .tls_certificate = absl::GetFlag(FLAGS_tls_certificate),
                                         .tls_key = absl::GetFlag(FLAGS_tls_key)});
  CHECK_OK(security);
  return *std::move(security);
}

int ServerProcess(int shard, int address_pipe) {
  Pin(shard);
  auto server = ParameterServer::Start({.listen = "127.0.0.1:0",
                                        .shard = shard,
                                        .shard_count = absl::GetFlag(FLAGS_servers),
                                        .security = Security(),
                                        .join_deadline = absl::Seconds(60),
                                        .log = nullptr});
  CHECK_OK(server);
  const std::string address = (*server)->address() + "\n";
  CHECK_EQ(write(address_pipe, address.data(), address.size()), static_cast<ssize_t>(address.size()));
  const absl::Status status = (*server)->Wait();
  CHECK_OK(status);
  return 0;
}

int64_t StepsFor(int64_t bytes) {
  const int64_t count = std::clamp<int64_t>((int64_t{1} << 30) / bytes, 20, 3000);
  return std::min(count, std::max<int64_t>(1, absl::GetFlag(FLAGS_steps_max)));
}

int WorkerProcess(int rank, int64_t bytes, const std::vector<std::string>& addresses, Row* row) {
  Pin(rank);
  Computation computation;
  const double compute_us = static_cast<double>(absl::GetFlag(FLAGS_compute_us));
  const JobSpec job = MakeExchangeJob({.rank = rank,
                                       .world_size = absl::GetFlag(FLAGS_workers),
                                       .element_count = std::max<int64_t>(bytes / 4, 1),
                                       .bucket_bytes = absl::GetFlag(FLAGS_bucket_bytes),
                                       .optimizer = {.momentum = static_cast<float>(absl::GetFlag(FLAGS_momentum))}});
  auto exchange = CreateStarExchange(
      {.addresses = addresses,
       .lanes = absl::GetFlag(FLAGS_lanes),
       .run_id = "",
       .security = Security(),
       .same_host = absl::GetFlag(FLAGS_shared_memory) ? SameHost::kSharedMemory : SameHost::kSocket});
  CHECK_OK(exchange);
  std::vector<float> parameters(job.layout.element_count(), 1.0f);
  std::vector<float> own(job.layout.element_count());
  CHECK_OK((*exchange)->Start(job, parameters));
  const std::span<float> memory = (*exchange)->gradient_memory();
  const std::span<float> gradient = memory.empty() ? std::span<float>(own) : memory;
  std::ranges::fill(gradient, 1e-6f);

  const int64_t steps = StepsFor(bytes);
  std::vector<double> times_ms;
  for (int64_t step = 0; step < steps; ++step) {
    const Clock::time_point start = Clock::now();
    for (int b = 0; b < job.buckets.bucket_count(); ++b) {
      const ElementRange range = job.buckets.bucket(b);
      (*exchange)->Submit(step, b, gradient.subspan(range.begin, range.size()));
      if (compute_us > 0) computation.Run(compute_us / job.buckets.bucket_count());
    }
    // Buckets are awaited in the order in which forward needs them: the last bucket has the first layers.
    for (int b = job.buckets.bucket_count() - 1; b >= 0; --b) CHECK_OK((*exchange)->Await(step, b));
    times_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  CHECK_OK((*exchange)->Finish());
  std::sort(times_ms.begin(), times_ms.end());
  *row = {.p50_ms = times_ms[times_ms.size() / 2], .p95_ms = times_ms[times_ms.size() * 95 / 100], .steps = steps};
  return 0;
}

// The parent uses no gRPC, whose threads and locks would not survive a fork. _exit, so that a child does not run the
// parent's destructors.
template <typename Body>
void Fork(Body body) {
  const pid_t pid = fork();
  CHECK_GE(pid, 0);
  if (pid == 0) _exit(body());
}

bool PrintsJson() { return absl::GetFlag(FLAGS_format) == "json"; }

// Computes bus bandwidth as for an allreduce, so that both can be compared: 2 (N - 1) / N * bytes / time, although the
// star moves other amounts.
void PrintJson(int64_t bytes, const Row& row) {
  const int workers = absl::GetFlag(FLAGS_workers);
  const double bus_bytes = 2.0 * (workers - 1) / workers * static_cast<double>(bytes);
  const double exposed_us = 1e3 * row.p50_ms - static_cast<double>(absl::GetFlag(FLAGS_compute_us));
  std::printf(
      "{\"sync\": \"star\", \"workers\": %d, \"bytes\": %lld, \"latency_us\": %.2f, \"p95_us\": %.2f, "
      "\"bus_gb_per_s\": %.5f}\n",
      workers, static_cast<long long>(bytes), exposed_us, 1e3 * row.p95_ms, bus_bytes / exposed_us / 1e3);
  std::fflush(stdout);
}

// Runs one worker of a job whose other processes are started elsewhere.
void MeasureAsOneWorker(int64_t bytes) {
  const int rank = absl::GetFlag(FLAGS_rank);
  Row row;
  WorkerProcess(rank, bytes, absl::GetFlag(FLAGS_addresses), &row);
  if (rank == 0) PrintJson(bytes, row);
}

void Measure(int64_t bytes) {
  // `row` is shared with worker 0, which is another process.
  Row* const row =
      static_cast<Row*>(mmap(nullptr, sizeof(Row), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  CHECK(row != MAP_FAILED);
  rusage before;
  // This counts children that have been waited for: the difference is that of this size's processes.
  getrusage(RUSAGE_CHILDREN, &before);
  std::vector<std::string> addresses;
  for (int shard = 0; shard < absl::GetFlag(FLAGS_servers); ++shard) {
    int fds[2];
    CHECK_EQ(pipe(fds), 0);
    Fork([&] { return ServerProcess(shard, fds[1]); });
    close(fds[1]);
    char text[64] = {};
    CHECK_GE(read(fds[0], text, sizeof(text) - 1), 1);
    close(fds[0]);
    addresses.emplace_back(text, std::string(text).find('\n'));
  }
  for (int rank = 0; rank < absl::GetFlag(FLAGS_workers); ++rank) {
    Fork([&] {
      Row own;
      return WorkerProcess(rank, bytes, addresses, rank == 0 ? row : &own);
    });
  }
  int status = 0;
  while (wait(&status) > 0) CHECK_EQ(status, 0);
  rusage after;
  getrusage(RUSAGE_CHILDREN, &after);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  const double steps = static_cast<double>(row->steps);
  if (PrintsJson()) {
    PrintJson(bytes, *row);
    munmap(row, sizeof(Row));
    return;
  }
  std::printf("%12lld %10.3f %10.3f %8.2f %10.3f %10.3f %10.1f\n", static_cast<long long>(bytes), row->p50_ms,
              row->p95_ms, 2e-6 * static_cast<double>(bytes) / row->p50_ms,
              1e3 * (seconds(after.ru_utime) - seconds(before.ru_utime)) / steps,
              1e3 * (seconds(after.ru_stime) - seconds(before.ru_stime)) / steps,
              static_cast<double>(after.ru_nvcsw - before.ru_nvcsw + after.ru_nivcsw - before.ru_nivcsw) / steps);
  std::fflush(stdout);
  munmap(row, sizeof(Row));
}

int Main(int argc, char** argv) {
  // As KeepFreedMemory does in worker and server, so that this measures what they do.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  absl::ParseCommandLine(argc, argv);
  const bool alone = !absl::GetFlag(FLAGS_addresses).empty();
  CHECK(!alone || absl::GetFlag(FLAGS_bytes).size() == 1) << ": --addresses needs one size in --bytes";
  if (!PrintsJson() && !alone)
    std::printf("%12s %10s %10s %8s %10s %10s %10s\n", "bytes", "p50 ms", "p95 ms", "GB/s", "cpu user", "cpu system",
                "switches");
  std::fflush(stdout);
  for (const std::string& text : absl::GetFlag(FLAGS_bytes)) {
    int64_t bytes;
    CHECK(absl::SimpleAtoi(text, &bytes)) << text;
    alone ? MeasureAsOneWorker(bytes) : Measure(bytes);
  }
  return 0;
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) { return starring::Main(argc, argv); }
