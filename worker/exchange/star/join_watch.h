// Says why a Join takes long: which ranks have not joined, or that the server does not answer. Watches one Join, from
// its construction to its destruction.
//
// Thread safety: construction and destruction by one thread; a thread of its own does the rest.
#ifndef STARRING_WORKER_EXCHANGE_STAR_JOIN_WATCH_H_
#define STARRING_WORKER_EXCHANGE_STAR_JOIN_WATCH_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "common/mutex.h"
#include "worker/exchange/stall_report.h"

namespace starring {

class JoinWatch {
 public:
  // `server`: as messages name it. `channel`: to it, shared: gRPC's way. `token`: that of the job; may be empty.
  JoinWatch(std::string server, std::shared_ptr<grpc::Channel> channel, std::string token, const StallOptions& stall);
  ~JoinWatch();

 private:
  void Run();
  std::string WhoIsMissing();

  const std::string server_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::string token_;
  const StallTimes times_;
  const std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  grpc::ClientContext context_;  // of the question to the server
  StallReport report_;           // of thread_, and of the destructor after that
  Mutex mutex_;
  ConditionVariable changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STAR_JOIN_WATCH_H_
