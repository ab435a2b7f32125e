// The two answers that a server gives to strangers: who is let in (Admission), and how much its log says about those
// who are not (RefusalLog).
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_ADMISSION_H_
#define STARRING_SERVER_ADMISSION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/starring/v1/parameter_server.pb.h"

namespace starring {

// Decides who may talk to a server, before any part of a request is parsed or kept.
class Admission {
 public:
  // `token` is the one of the job's secret. Empty: there is no secret, and everyone who reaches the server is admitted.
  explicit Admission(std::string token) : token_(std::move(token)) {}

  // Unauthenticated if the token is wrong; InvalidArgument if the worker speaks another version of the wire, or if the
  // name of its run is too long. `peer` is where the request came from.
  absl::Status Check(const v1::JoinRequest& request, absl::string_view peer);
  absl::Status Check(const v1::GetStatusRequest& request, absl::string_view peer);
  absl::Status Check(const v1::CheckRequest& request, absl::string_view peer);
  // A request that brings nothing else. Unauthenticated if the token is wrong.
  absl::Status CheckToken(absl::string_view token, absl::string_view peer);

  // " (2 requests without the job's secret were refused, the last from PEER)", or nothing.
  std::string DescribeRefusals() const;

 private:
  const std::string token_;
  int64_t refused_count_ = 0;
  std::string last_refused_;
};

// The lines of a server's log about requests that it refused. Strangers must not be able to fill a disk or a terminal
// with them: in each period of kLogPeriodMs the first kLogRefusalsMax are shown and the others counted (limits.h).
class RefusalLog {
 public:
  using Clock = std::chrono::steady_clock;
  // `log` takes the lines that are shown.
  explicit RefusalLog(std::function<void(const std::string&)> log) : log_(std::move(log)) {}

  void Add(const std::string& line, Clock::time_point now);

 private:
  const std::function<void(const std::string&)> log_;
  int64_t count_ = 0;  // in the period that began at since_
  Clock::time_point since_;
};

}  // namespace starring

#endif  // STARRING_SERVER_ADMISSION_H_
