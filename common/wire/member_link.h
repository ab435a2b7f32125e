// A process's connection to the coordinator of its elastic run (proto/starring/v1/coordinator.proto): reports four
// times a second and on demand, and takes orders. A connection that is lost is made again, until END has come; the
// process decides how long it waits for that (disconnected_for).
//
// Thread safety: any thread may call any method. The callbacks are called by the link's own thread, one at a time, and
// must not destroy the link.
#ifndef STARRING_COMMON_WIRE_MEMBER_LINK_H_
#define STARRING_COMMON_WIRE_MEMBER_LINK_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/security/transport_security.h"

namespace starring {

namespace v1 {
class MemberOrder;
class MemberReport;
}  // namespace v1

class MemberLink {
 public:
  struct Options {
    std::string coordinator;  // host:port
    TransportSecurity security;
    // Fills in a report: the shard's or the worker's part, and `hello` if it is the first one on its stream.
    std::function<void(v1::MemberReport* report, bool is_first)> report;
    std::function<void(const v1::MemberOrder&)> on_order;
    // The coordinator refuses this process, or cannot be talked to, for a reason that waiting does not change. Nothing
    // comes after this. A process at its address that does not prove to have the job's secret is not the coordinator.
    std::function<void(const absl::Status&)> on_refused;
    // Whether the process works. While it does not, no report leaves, which the coordinator takes for silence. Null: it
    // always does.
    std::function<bool()> works = nullptr;
  };
  explicit MemberLink(Options options);
  // The coordinator sees the connection end.
  ~MemberLink();
  MemberLink(const MemberLink&) = delete;
  MemberLink& operator=(const MemberLink&) = delete;

  // Something has changed: a report leaves as soon as the stream takes it, and not only after a quarter of a second. A
  // process that then waits for an order gets it sooner.
  enum class Then { kGoesOn, kAwaitsOrder };
  void ReportSoon(Then then);

  // How long there has been no stream; 0 while there is one.
  std::chrono::steady_clock::duration disconnected_for() const;
  // Why the last one ended, or was not begun; empty: none has.
  std::string trouble() const;

 private:
  class Stream;

  struct Wish {
    bool report = false;
    bool stop = false;
  };

  void Run();
  // Returns when something is wanted, or when it is time to look for events. The wish for a report is taken.
  // `has_reported`: on this stream.
  Wish AwaitWish(bool has_reported);
  void Take(const v1::MemberOrder& order);
  void Report(Stream& stream);
  // Whether a stream that ended so is not to be opened again; on_refused has been called then.
  bool IsRefused(const Stream& stream);

  const Options options_;
  mutable Mutex mutex_;
  ConditionVariable woken_;
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool awaits_order_ ABSL_GUARDED_BY(mutex_) = true;  // at first, how to begin
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string trouble_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> disconnected_since_ns_;  // of the steady clock; 0: connected
  std::thread thread_;                          // last: it uses the members above
};

}  // namespace starring

#endif  // STARRING_COMMON_WIRE_MEMBER_LINK_H_
