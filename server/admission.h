// Decides who may talk to a server, before anything of a request is parsed or kept.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_ADMISSION_H_
#define STARRING_SERVER_ADMISSION_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/starring/v1/parameter_server.pb.h"

namespace starring {

class Admission {
 public:
  // `token` is that of the job's secret; empty: there is none, and whoever reaches the server is admitted.
  explicit Admission(std::string token) : token_(std::move(token)) {}

  // Unauthenticated if the token is wrong; InvalidArgument if the worker speaks another version of the wire or its run
  // has too long a name. `peer` is where the request came from.
  absl::Status Check(const v1::JoinRequest& request, absl::string_view peer);
  absl::Status Check(const v1::GetStatusRequest& request, absl::string_view peer);
  absl::Status Check(const v1::CheckRequest& request, absl::string_view peer);

  // " (2 requests without the job's secret were refused, the last from PEER)", or nothing.
  std::string DescribeRefusals() const;

 private:
  absl::Status CheckToken(absl::string_view token, absl::string_view peer);

  const std::string token_;
  int64_t refused_count_ = 0;
  std::string last_refused_;
};

}  // namespace starring

#endif  // STARRING_SERVER_ADMISSION_H_
