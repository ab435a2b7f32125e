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
// With --transport=tcp the servers are ranks after the workers, as of worker --server_ranks; between machines all meet
// at --rendezvous, which takes the place of --addresses.
//
// --job_secret, --tls and so on, as worker and server have them, protect both sides; star_security.py compares them.
//
// GB/s is (pushed + pulled bytes of one worker) / time. `cpu` is the time that all processes together spend on a step
// on any core. Then, for each worker and each server, the mean of the time that it spends on a step, of its voluntary
// context switches (`sleeps`) and of its involuntary ones (`gives way`); a server's include its start and its end. The
// servers apply SGD with momentum. With --compute_us every step of a worker computes that long after its Submits.
#include <malloc.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "bench/computation.h"
#include "bench/counting_transport.h"
#include "bench/exchange_job.h"
#include "bench/exchange_row.h"
#include "bench/processes.h"
#include "bench/processor_cost.h"
#include "common/base/check.h"
#include "common/base/memory.h"
#include "common/security/transport_security.h"
#include "common/transport/tcp/openssl_tls.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "server/parameter_server.h"
#include "server/shard/shard_rank.h"
#include "worker/exchange/peer/peer_exchange.h"
#include "worker/exchange/star/star_exchange.h"

ABSL_FLAG(std::vector<std::string>, bytes,
          std::vector<std::string>({"4096", "65536", "262144", "1048576", "4194304", "16777216", "67108864"}),
          "sizes of the parameter vector");
ABSL_FLAG(int64_t, bucket_bytes, 1 << 20, "as --bucket_bytes of the worker");
ABSL_FLAG(std::string, sum_order, "chain", "as --sum_order of the worker");
ABSL_FLAG(int, workers, 2, "worker processes");
ABSL_FLAG(int, servers, 2, "server processes");
ABSL_FLAG(std::vector<std::string>, addresses, {}, "servers to use instead of own ones, in order of their shards");
ABSL_FLAG(std::string, transport, "grpc", "between workers and servers: grpc or tcp");
ABSL_FLAG(std::string, rendezvous, "", "tcp: where worker 0 listens, and servers that were started elsewhere find it");
ABSL_FLAG(int, rank, 0,
          "with --addresses or --rendezvous: which worker this process is, the only one it starts; rank 0 prints");
ABSL_FLAG(int, lanes, 1, "connections between a worker and a server");
ABSL_FLAG(bool, pin, true, "process i runs on core i modulo the number of cores: workers first, then servers");
ABSL_FLAG(bool, shared_memory, true, "arrays travel through shared memory, else through the socket");
ABSL_FLAG(int64_t, compute_us, 0, "how long each step of a worker computes between its Submits and its Awaits");
ABSL_FLAG(int64_t, steps_max, 3000, "steps of a size, where its bytes do not ask for fewer");
ABSL_FLAG(int64_t, steps_bytes, 1 << 30, "bytes of all steps of a size, which has 20 steps where they are too few");
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
  if (absl::GetFlag(FLAGS_pin)) PinToCore(process);
}

// The measurement that a process makes; a server knows its cost and its memory alone.
struct Row {
  double p50_ms = 0;
  double p95_ms = 0;
  int64_t steps = 0;
  ProcessorCost cost;    // of all steps
  int64_t messages = 0;  // sent in all steps
  double resident_kib = 0;
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

bool IsOverTcp() { return absl::GetFlag(FLAGS_transport) == "tcp"; }

// How a worker of the job finds the servers. `listener`: tcp, on this machine: of worker 0.
struct Place {
  std::vector<std::string> addresses;
  std::optional<TcpListener> listener;
};

// A rank of the world of workers and servers.
std::unique_ptr<Transport> ConnectOverTcp(int rank, Place& place) {
  const int servers = absl::GetFlag(FLAGS_servers);
  const TransportSecurity security = Security();
  TcpRendezvousOptions options = {.rank = rank,
                                  .world_size = absl::GetFlag(FLAGS_workers) + servers,
                                  .server_count = servers,
                                  .rendezvous = absl::GetFlag(FLAGS_rendezvous),
                                  .token = security.rank_key};
  auto tls = TlsContextOf(security);
  CHECK_OK(tls);
  options.tls = *std::move(tls);
  if (place.listener.has_value()) {
    options.rendezvous = place.listener->address();
    if (rank == 0) options.listener = std::move(place.listener);
  }
  auto transport = ConnectFullMesh(std::move(options));
  CHECK_OK(transport);
  return *std::move(transport);
}

int ServerRankProcess(int shard, Place& place, Row* row) {
  const int process = absl::GetFlag(FLAGS_workers) + shard;
  Pin(process);
  ShardRank server(ConnectOverTcp(process, place), {.shard = shard, .shard_count = absl::GetFlag(FLAGS_servers)});
  CHECK_OK(server.Run());
  row->cost = ReadProcessorCost();
  row->resident_kib = ReadResidentKib();
  return 0;
}

// `messages` counts those over TCP, and outlives the exchange.
std::unique_ptr<GradientExchange> MakeExchange(int rank, Place& place, std::atomic<int64_t>* messages) {
  if (IsOverTcp()) {
    return std::make_unique<PeerExchange>(
        std::make_unique<CountingTransport>(ConnectOverTcp(rank, place), messages),
        PeerExchange::Options{.algorithm = PeerExchange::Algorithm::kDedicated,
                              .sharing = absl::GetFlag(FLAGS_shared_memory) ? PeerExchange::HostSharing::kIfPossible
                                                                            : PeerExchange::HostSharing::kNever,
                              .server_count = absl::GetFlag(FLAGS_servers)});
  }
  auto exchange = CreateStarExchange(
      {.addresses = place.addresses,
       .lanes = absl::GetFlag(FLAGS_lanes),
       .run_id = "",
       .security = Security(),
       .same_host = absl::GetFlag(FLAGS_shared_memory) ? SameHost::kSharedMemory : SameHost::kSocket});
  CHECK_OK(exchange);
  return *std::move(exchange);
}

int ServerProcess(int shard, int address_pipe, Row* row) {
  Pin(absl::GetFlag(FLAGS_workers) + shard);
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
  row->cost = ReadProcessorCost();
  row->resident_kib = ReadResidentKib();
  return 0;
}

int64_t StepsFor(int64_t bytes) {
  const int64_t count = std::clamp<int64_t>(absl::GetFlag(FLAGS_steps_bytes) / bytes, 20, 3000);
  return std::min(count, std::max<int64_t>(1, absl::GetFlag(FLAGS_steps_max)));
}

int WorkerProcess(int rank, int64_t bytes, Place& place, Row* row) {
  Pin(rank);
  Computation computation;
  const double compute_us = static_cast<double>(absl::GetFlag(FLAGS_compute_us));
  const JobSpec job =
      MakeExchangeJob({.rank = rank,
                       .world_size = absl::GetFlag(FLAGS_workers),
                       .element_count = std::max<int64_t>(bytes / 4, 1),
                       .bucket_bytes = absl::GetFlag(FLAGS_bucket_bytes),
                       .sum_order = absl::GetFlag(FLAGS_sum_order) == "tree" ? SumOrder::kTree : SumOrder::kChain,
                       .has_servers = true,
                       .optimizer = {.momentum = static_cast<float>(absl::GetFlag(FLAGS_momentum))}});
  std::atomic<int64_t> messages = 0;
  const std::unique_ptr<GradientExchange> exchange = MakeExchange(rank, place, &messages);
  // In huge pages, as a worker's arrays are.
  AlignedFloats parameters(job.layout.element_count());
  std::ranges::fill(parameters.span(), 1.0f);
  AlignedFloats own(job.layout.element_count());
  CHECK_OK(exchange->Start(job, parameters.span()));
  const std::vector<std::span<float>>& memories = exchange->memory().gradients;
  const std::span<float> memory = memories.empty() ? std::span<float>() : memories.back();
  const std::span<float> gradient = memory.empty() ? own.span() : memory;
  // Such a small gradient keeps the parameters finite for thousands of steps.
  std::ranges::fill(gradient, 1e-6f);

  const int64_t steps = StepsFor(bytes);
  std::vector<double> times_ms;
  const ProcessorCost before = ReadProcessorCost();
  const int64_t messages_before = messages;
  for (int64_t step = 0; step < steps; ++step) {
    const Clock::time_point start = Clock::now();
    for (int b = 0; b < job.buckets.bucket_count(); ++b) {
      const ElementRange range = job.buckets.bucket(b);
      exchange->Submit({.round = step, .bucket = b, .gradient = gradient.subspan(range.begin, range.size())});
      if (compute_us > 0) computation.Run(compute_us / job.buckets.bucket_count());
    }
    // Buckets are awaited in the order in which forward needs them: the last bucket has the first layers.
    for (int b = job.buckets.bucket_count() - 1; b >= 0; --b) CHECK_OK(exchange->Await(step, b));
    times_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  const ProcessorCost cost = ReadProcessorCost() - before;
  const int64_t sent = messages - messages_before;
  CHECK_OK(exchange->Finish());
  std::sort(times_ms.begin(), times_ms.end());
  *row = {.p50_ms = times_ms[times_ms.size() / 2],
          .p95_ms = times_ms[times_ms.size() * 95 / 100],
          .steps = steps,
          .cost = cost,
          .messages = sent,
          .resident_kib = ReadResidentKib()};
  return 0;
}

bool PrintsJson() { return absl::GetFlag(FLAGS_format) == "json"; }

// The mean over processes of what a step costs one of them.
ProcessorCost StepCost(std::span<const Row> processes, int64_t steps) {
  ProcessorCost sum;
  for (const Row& process : processes) sum += process.cost;
  return sum * (1.0 / static_cast<double>(std::ssize(processes) * steps));
}

// `workers` and `servers` are the rows of the processes that this one has started.
void PrintJson(int64_t bytes, std::span<const Row> workers, std::span<const Row> servers) {
  const Row& row = workers[0];
  ExchangeRow printed = {.sync = IsOverTcp() ? "star-servers-tcp" : "star",
                         .workers = absl::GetFlag(FLAGS_workers),
                         .bytes = bytes,
                         // The computation is no part of the exchange, so its time is taken off.
                         .latency_us = 1e3 * row.p50_ms - static_cast<double>(absl::GetFlag(FLAGS_compute_us)),
                         .p95_us = 1e3 * row.p95_ms,
                         .cost = StepCost(workers, row.steps)};
  for (const Row& worker : workers) {
    printed.messages += static_cast<double>(worker.messages) / static_cast<double>(std::ssize(workers) * row.steps);
  }
  for (std::span<const Row> processes : {workers, servers}) {
    for (const Row& process : processes) {
      printed.resident_kib += process.resident_kib / static_cast<double>(std::ssize(workers) + std::ssize(servers));
    }
  }
  PrintExchangeRow(printed);
}

// Runs one worker of a job whose other processes are started elsewhere.
void MeasureAsOneWorker(int64_t bytes) {
  const int rank = absl::GetFlag(FLAGS_rank);
  Row row;
  Place place = {.addresses = absl::GetFlag(FLAGS_addresses), .listener = std::nullopt};
  WorkerProcess(rank, bytes, place, &row);
  if (rank == 0) PrintJson(bytes, {&row, 1}, {});
}

// Starts the servers on this machine. `rows`: by shard, in memory that is shared with them.
Place StartServers(std::span<Row> rows) {
  Place place;
  // Worker 0's process takes the listener; in the others it is only an address.
  if (IsOverTcp()) {
    auto listener = TcpListener::Listen("127.0.0.1:0");
    CHECK_OK(listener);
    place.listener = *std::move(listener);
    place.listener->KeepInChildren();
  }
  for (int shard = 0; shard < absl::GetFlag(FLAGS_servers); ++shard) {
    if (IsOverTcp()) {
      Fork([&] { return ServerRankProcess(shard, place, &rows[shard]); });
      continue;
    }
    int fds[2];
    CHECK_EQ(pipe(fds), 0);
    Fork([&] { return ServerProcess(shard, fds[1], &rows[shard]); });
    close(fds[1]);
    char text[64] = {};
    // The pipe takes so short a line as a whole, so one read gets all of it.
    CHECK_GE(read(fds[0], text, sizeof(text) - 1), 1);
    close(fds[0]);
    place.addresses.emplace_back(text, std::string(text).find('\n'));
  }
  return place;
}

void Measure(int64_t bytes) {
  const size_t worker_count = absl::GetFlag(FLAGS_workers), server_count = absl::GetFlag(FLAGS_servers);
  const SharedArray<Row> rows(worker_count + server_count);
  const std::span<Row> workers = rows.elements().first(worker_count), servers = rows.elements().subspan(worker_count);
  rusage before;
  // This counts children that have been waited for: the difference is that of this size's processes.
  getrusage(RUSAGE_CHILDREN, &before);
  Place place = StartServers(servers);
  for (int rank = 0; rank < absl::GetFlag(FLAGS_workers); ++rank) {
    Fork([&] { return WorkerProcess(rank, bytes, place, &workers[rank]); });
  }
  AwaitChildren();
  rusage after;
  getrusage(RUSAGE_CHILDREN, &after);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  if (PrintsJson()) return PrintJson(bytes, workers, servers);
  const Row& row = workers[0];
  const double steps = static_cast<double>(row.steps);
  // Each byte travels to the servers and back, hence the factor 2.
  std::printf("%12lld %10.3f %10.3f %8.2f %10.3f %10.3f", static_cast<long long>(bytes), row.p50_ms, row.p95_ms,
              2e-6 * static_cast<double>(bytes) / row.p50_ms,
              1e3 * (seconds(after.ru_utime) - seconds(before.ru_utime)) / steps,
              1e3 * (seconds(after.ru_stime) - seconds(before.ru_stime)) / steps);
  for (const ProcessorCost& cost : {StepCost(workers, row.steps), StepCost(servers, row.steps)}) {
    std::printf(" %10.3f %8.1f %10.1f", 1e-3 * cost.cpu_us, cost.voluntary_switches, cost.involuntary_switches);
  }
  std::printf("\n");
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  // As KeepFreedMemory does in worker and server, so that this measures what they do.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  absl::ParseCommandLine(argc, argv);
  const std::string transport = absl::GetFlag(FLAGS_transport);
  CHECK(transport == "grpc" || transport == "tcp") << "--transport=" << transport << ": it can be grpc or tcp";
  const std::string order = absl::GetFlag(FLAGS_sum_order);
  CHECK(order == "chain" || order == "tree") << "--sum_order=" << order << ": it can be chain or tree";
  const bool alone = !absl::GetFlag(FLAGS_addresses).empty() || !absl::GetFlag(FLAGS_rendezvous).empty();
  CHECK(!alone || absl::GetFlag(FLAGS_bytes).size() == 1) << ": --addresses and --rendezvous need one size in --bytes";
  if (!PrintsJson() && !alone) {
    std::printf("%12s %10s %10s %8s %10s %10s %10s %8s %10s %10s %8s %10s\n", "bytes", "p50 ms", "p95 ms", "GB/s",
                "cpu user", "cpu system", "worker ms", "sleeps", "gives way", "server ms", "sleeps", "gives way");
  }
  // Otherwise each forked process would print the buffer's lines again.
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
