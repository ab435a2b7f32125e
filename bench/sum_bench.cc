// Latency of one sum of libstarring (worker/python/starring.h), from st_allreduce to st_wait, in real processes on this
// machine:
//
//   bazel-bin/bench/sum_bench                                       2 ranks, a star, 4 KB to 64 MB
//   bazel-bin/bench/sum_bench --topology=ring --ranks=4 --shared_memory=false
//   bazel-bin/bench/sum_bench --servers=2 --element_type=bfloat16
//
// The library takes all processes of one host to share its memory. With --shared_memory=false each says that it is on a
// host of its own, so that arrays travel through sockets. ddp/exchange.py measures the same by way of PyTorch.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/counting_transport.h"
#include "bench/exchange_row.h"
#include "bench/processes.h"
#include "bench/processor_cost.h"
#include "common/base/check.h"
#include "common/base/memory.h"
#include "common/reduce/arrays/element_sum.h"
#include "common/reduce/arrays/reduction.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "worker/python/group.h"

ABSL_FLAG(std::vector<std::string>, bytes,
          std::vector<std::string>({"4096", "65536", "262144", "1048576", "4194304", "16777216", "67108864"}),
          "sizes of the array");
ABSL_FLAG(std::string, topology, "star", "star or ring");
ABSL_FLAG(int, ranks, 2, "processes that bring arrays");
ABSL_FLAG(int, servers, 0, "of a star: processes that own the elements; 0: the ranks own them");
ABSL_FLAG(std::string, element_type, "float32", "float32, bfloat16 or float16");
ABSL_FLAG(bool, shared_memory, true, "arrays travel through shared memory, else through sockets");
ABSL_FLAG(bool, pin, true, "process i runs on core i modulo the number of cores: ranks first, then servers");
ABSL_FLAG(int64_t, steps_max, 2000, "measured sums of a size, where its bytes do not ask for fewer");
ABSL_FLAG(int64_t, steps_bytes, 256 << 20,
          "bytes of all sums of a size, of which there are 10 where these are too few");

namespace starring {
namespace {

using Clock = std::chrono::steady_clock;

// The measurement that a process makes; a server knows its memory alone.
struct Row {
  double p50_us = 0;
  double p95_us = 0;
  ProcessorCost cost;   // of a sum
  double messages = 0;  // sent in a sum
  double resident_kib = 0;
};

ElementType TypeOfFlag() {
  const std::string name = absl::GetFlag(FLAGS_element_type);
  for (ElementType type : {ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16}) {
    if (ElementTypeName(type) == name) return type;
  }
  CHECK(false) << "--element_type=" << name << ": it can be float32, bfloat16 or float16";
}

// Takes its place in the group. `listener`: of rank 0, which takes it; to the others it is an address.
std::unique_ptr<Group> Join(int rank, std::optional<TcpListener>& listener, std::atomic<int64_t>* messages) {
  const int ranks = absl::GetFlag(FLAGS_ranks), servers = absl::GetFlag(FLAGS_servers);
  if (absl::GetFlag(FLAGS_pin)) PinToCore(rank);
  TcpRendezvousOptions options = {.rank = rank,
                                  .world_size = ranks + servers,
                                  .server_count = servers,
                                  .rendezvous = listener->address(),
                                  .unexpected_bytes_max = GroupUnexpectedBytesMax(ranks)};
  if (rank == 0) options.listener = std::move(listener);
  auto transport = ConnectFullMesh(std::move(options));
  CHECK_OK(transport);
  Group::Options group = {.topology = absl::GetFlag(FLAGS_topology) == "ring" ? Topology::kRing : Topology::kStar,
                          .server_count = servers};
  if (!absl::GetFlag(FLAGS_shared_memory)) group.host_id = absl::StrCat("host of ", rank);
  auto created = Group::Create(std::make_unique<CountingTransport>(*std::move(transport), messages), std::move(group));
  CHECK_OK(created);
  return *std::move(created);
}

absl::Status WaitForEnd(Group& group, int64_t ticket) {
  std::optional<absl::Status> status;
  while (!status.has_value()) status = group.Wait(ticket, std::chrono::hours(1));
  return *status;
}

int ServerProcess(int rank, std::optional<TcpListener>& listener, Row* row) {
  std::atomic<int64_t> messages = 0;
  const std::unique_ptr<Group> group = Join(rank, listener, &messages);
  CHECK_OK(WaitForEnd(*group, Group::kServerTicket));
  row->resident_kib = ReadResidentKib();
  return 0;
}

int RankProcess(int rank, int64_t bytes, std::optional<TcpListener>& listener, Row* row) {
  std::atomic<int64_t> messages = 0;
  const std::unique_ptr<Group> group = Join(rank, listener, &messages);
  const ElementType type = TypeOfFlag();
  // Zeros stay zeros, whatever the type and however often they are added.
  // AlignedFloats counts floats, so the bytes are rounded up to whole ones.
  AlignedFloats array((bytes + 3) / 4);
  const int64_t steps_max = std::max<int64_t>(1, absl::GetFlag(FLAGS_steps_max));
  const int64_t steps = std::min(steps_max, std::max<int64_t>(10, absl::GetFlag(FLAGS_steps_bytes) / bytes));
  const int64_t warm_up = std::max<int64_t>(1, steps / 5);
  std::vector<double> times_us;
  ProcessorCost before;
  int64_t messages_before = 0;
  for (int64_t step = 0; step < warm_up + steps; ++step) {
    if (step == warm_up) {
      before = ReadProcessorCost();
      messages_before = messages;
    }
    const Clock::time_point start = Clock::now();
    const auto ticket = group->Begin({.step = step, .count = bytes / ElementBytes(type), .type = type},
                                     reinterpret_cast<std::byte*>(array.data()));
    CHECK_OK(ticket);
    CHECK_OK(WaitForEnd(*group, *ticket));
    if (step >= warm_up) times_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  const double per_step = 1.0 / static_cast<double>(steps);
  std::sort(times_us.begin(), times_us.end());
  *row = {.p50_us = times_us[times_us.size() / 2],
          .p95_us = times_us[times_us.size() * 95 / 100],
          .cost = (ReadProcessorCost() - before) * per_step,
          .messages = static_cast<double>(messages - messages_before) * per_step,
          .resident_kib = ReadResidentKib()};
  return 0;
}

void Measure(int64_t bytes) {
  const int ranks = absl::GetFlag(FLAGS_ranks), servers = absl::GetFlag(FLAGS_servers);
  auto listening = TcpListener::Listen("127.0.0.1:0");
  CHECK_OK(listening);
  std::optional<TcpListener> listener = *std::move(listening);
  listener->KeepInChildren();
  const SharedArray<Row> rows(ranks + servers);
  for (int process = 0; process < ranks + servers; ++process) {
    Row* const row = &rows.elements()[process];
    Fork([&] {
      return process < ranks ? RankProcess(process, bytes, listener, row) : ServerProcess(process, listener, row);
    });
  }
  AwaitChildren();
  ExchangeRow printed = {.sync = absl::StrCat("sum-", absl::GetFlag(FLAGS_topology), servers > 0 ? "-servers" : ""),
                         .workers = ranks,
                         .bytes = bytes,
                         .latency_us = rows.elements()[0].p50_us,
                         .p95_us = rows.elements()[0].p95_us};
  for (const Row& row : rows.elements()) {
    printed.cost += row.cost * (1.0 / ranks);
    printed.messages += row.messages / ranks;
    printed.resident_kib += row.resident_kib / (ranks + servers);
  }
  PrintExchangeRow(printed);
}

int Main() {
  const std::string topology = absl::GetFlag(FLAGS_topology);
  CHECK(topology == "star" || topology == "ring") << "--topology=" << topology << ": it can be star or ring";
  CHECK(topology == "star" || absl::GetFlag(FLAGS_servers) == 0) << ": a ring has no servers";
  for (const std::string& text : absl::GetFlag(FLAGS_bytes)) {
    int64_t bytes;
    CHECK(absl::SimpleAtoi(text, &bytes) && bytes >= 4) << "--bytes has " << text << ": a size is 4 or more";
    Measure(bytes);
  }
  return 0;
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return starring::Main();
}
