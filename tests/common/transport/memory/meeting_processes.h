// Processes that meet to share memory, each as a thread of this process.
#ifndef STARRING_TESTS_COMMON_TRANSPORT_MEMORY_MEETING_PROCESSES_H_
#define STARRING_TESTS_COMMON_TRANSPORT_MEMORY_MEETING_PROCESSES_H_

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/transport/memory/host_memory.h"
#include "common/transport/message_pump.h"
#include "common/watch/stall_report.h"
#include "tests/common/transport/in_memory_transport.h"

namespace starring {

// The result of HostMemory::Meet, by rank. The servers are the last ranks.
inline std::vector<HostMemory::Outcome> MeetAll(int world_size, int server_count,
                                                const std::function<HostMemory::Options(int rank)>& options_of) {
  InMemoryNetwork network(world_size, 3);
  std::vector<HostMemory::Outcome> outcomes(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Transport> transport = network.CreateTransport(rank);
      MessagePump pump(transport.get(), StallOptions(), server_count);
      auto outcome = HostMemory::Meet(pump, options_of(rank),
                                      {.what = "meeting", .deadline = absl::Seconds(20), .with_servers = true});
      CHECK_OK(outcome);
      outcomes[rank] = *std::move(outcome);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_TRANSPORT_MEMORY_MEETING_PROCESSES_H_
