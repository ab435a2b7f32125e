// The two answers that a server gives to strangers: who is let in (Admission), and how much its log says about those
// who are not (RefusalLog).
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_DOOR_ADMISSION_H_
#define STARRING_SERVER_DOOR_ADMISSION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/wire/request_proof.h"
#include "proto/starring/v1/parameter_server.pb.h"

namespace starring {

// Decides who may talk to a server, before any part of a request is parsed or kept. common/wire/request_proof.h has the
// protocol.
class Admission {
 public:
  // `key` is the one of the job's secret. Empty: there is no secret, and everyone who reaches the server is admitted.
  Admission(std::string key, int shard);

  // Proves to `peer` that this server has the secret. Keeps nothing. InvalidArgument for a nonce of another length.
  absl::StatusOr<v1::ChallengeReply> Answer(const v1::ChallengeRequest& request, absl::string_view peer) const;

  // Whether `request`, of this method, may be served. InvalidArgument if the client speaks another version of the wire,
  // or if the request is too long; Unavailable if its proof is for another connection, so that the client must ask for
  // a challenge again; Unauthenticated if it has no proof, or a wrong one. `peer` is where the request came from.
  template <typename Request>
  absl::Status Check(absl::string_view method, const Request& request, absl::string_view peer);

  // " (2 requests without the job's secret were refused, the last from PEER)", or nothing.
  std::string DescribeRefusals() const;

 private:
  // `who` sends the request, of `bytes` without its payload, in `version` of the wire.
  struct Sender {
    std::string who;
    int version = 0;
    bool says_version = false;  // every program's request of that kind does
    size_t bytes = 0;
  };
  template <typename Request>
  static Sender SenderOf(const Request& request);
  absl::Status CheckSender(const Sender& sender) const;
  // `text`: RequestText of the request.
  absl::Status CheckProof(absl::string_view method, const v1::RequestProof& proof, const std::string& text,
                          absl::string_view peer);
  absl::Status Refuse(absl::string_view peer);
  std::string NonceFor(absl::string_view client_nonce, absl::string_view peer) const;

  const std::string key_;
  const int shard_;
  const std::string nonce_key_;  // known to this process alone
  int64_t refused_count_ = 0;
  std::string last_refused_;
};

template <typename Request>
Admission::Sender Admission::SenderOf(const Request& request) {
  Sender sender{.who = "the request", .version = ProofOf(request).wire_version(), .bytes = request.ByteSizeLong()};
  if constexpr (requires { request.payload(); }) sender.bytes -= request.payload().size();
  // Programs of every version say theirs at this place.
  if constexpr (requires { request.wire_version(); }) {
    sender.version = request.wire_version();
    sender.says_version = true;
    sender.who = absl::StrCat("rank ", request.rank());
  } else if constexpr (requires { request.hello(); }) {
    sender.version = request.hello().wire_version();
    sender.says_version = true;
    if (!request.hello().name().empty()) sender.who = request.hello().name();
  }
  return sender;
}

template <typename Request>
absl::Status Admission::Check(absl::string_view method, const Request& request, absl::string_view peer) {
  // The version comes first, so that an old program learns what is wrong. A stranger learns no more than the version.
  if (const absl::Status status = CheckSender(SenderOf(request)); !status.ok()) return status;
  const v1::RequestProof& proof = ProofOf(request);
  if (key_.empty() && proof.code().empty()) return absl::OkStatus();
  return CheckProof(method, proof, RequestText(request), peer);
}

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

#endif  // STARRING_SERVER_DOOR_ADMISSION_H_
