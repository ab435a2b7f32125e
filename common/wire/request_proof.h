// How a client and a server of a star prove to each other that they have the secret of one job.
//
//   client                                           server
//   Challenge   Nc                              ─▶
//                                               ◀─   Ns, shard, HMAC(key, "server", shard, Nc, Ns)
//   request     Nc, Ns,
//               HMAC(key, "client", method,
//                    Nc, Ns, request)           ─▶
//                                               ◀─   answer
//
// Words. The *key* is JobSecret::KeyFor(kRequests); the secret and the key never travel. *Nc* is the client's nonce: 32
// bytes that it draws for each challenge. *Ns* is the server's: HMAC(a number that the process has drawn, Nc, the
// client's end of the connection). The server keeps neither, so a stranger's challenge costs it no memory. *request* is
// the message as it is sent, but for its code, and for the payload of a Check.
//
// The scheme is SKID3, mutual authentication by a keyed hash (Menezes, van Oorschot, Vanstone: Handbook of Applied
// Cryptography, 10.3.2), with a nonce that needs no state, as the cookies of DTLS (RFC 6347, 4.2.1).
//
// The server proves itself first: a process that has taken a server's port gets Nc and nothing else. Each code names
// its side, and so cannot be sent back. A request's code covers the rank, the process's number and all else in it, so
// it can neither be changed nor serve another rank or method. Ns belongs to one connection of one process of the
// server, so a recorded request is worth nothing on another. The data after the request is neither encrypted nor
// authenticated: a host between the two can pass the proofs on and take over the connection. --tls prevents that.
//
// A client without a secret asks for no challenge; its requests carry the version of the wire alone.
//
// Cost: a round trip and five HMACs a connection, and nothing for a message of a step.
//
// Thread safety: pure functions, and a type for one thread.
#ifndef STARRING_COMMON_WIRE_REQUEST_PROOF_H_
#define STARRING_COMMON_WIRE_REQUEST_PROOF_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/starring/v1/proof.pb.h"

namespace starring {

inline constexpr size_t kProofNonceBytes = 32;
// A request whose code a server computes: a Join, or a check's note, with what is around it. At 200 MB/s less than a
// millisecond.
inline constexpr size_t kProvedBytesMax = 128 << 10;

// The names of the methods in codes.
inline constexpr char kJoinMethod[] = "Join";
inline constexpr char kGetStatusMethod[] = "GetStatus";
inline constexpr char kCheckMethod[] = "Check";
inline constexpr char kAttendMethod[] = "Attend";
inline constexpr char kGetRunMethod[] = "GetRun";

// The code of a reply, whose other fields are set.
std::string ServerCode(const std::string& key, const v1::ChallengeRequest& request, const v1::ChallengeReply& reply);

// The code of a request. `proof` has both nonces, `text` is RequestText.
std::string RequestCode(const std::string& key, absl::string_view method, const v1::RequestProof& proof,
                        const std::string& text);

// Where a request has its proof: a member's report in its hello.
template <typename Request>
v1::RequestProof* MutableProof(Request* request) {
  if constexpr (requires { request->mutable_hello(); }) {
    return request->mutable_hello()->mutable_proof();
  } else {
    return request->mutable_proof();
  }
}
template <typename Request>
const v1::RequestProof& ProofOf(const Request& request) {
  if constexpr (requires { request.hello(); }) {
    return request.hello().proof();
  } else {
    return request.proof();
  }
}

// The text that the code of a request covers. Both ends write it by one build's protobuf, in the order of field
// numbers.
template <typename Request>
std::string RequestText(Request request) {
  if constexpr (requires { request.clear_payload(); }) request.clear_payload();
  MutableProof(&request)->clear_code();
  return request.SerializePartialAsString();
}

// The client's part, for one connection.
class RequestSigner {
 public:
  // `key`: the job's, or empty.
  explicit RequestSigner(std::string key) : key_(std::move(key)) {}

  // Whether the server must be asked for a challenge before the next Sign.
  bool needs_challenge() const { return !key_.empty() && server_nonce_.empty(); }
  // Draws a fresh nonce. Forgets the challenge before.
  v1::ChallengeRequest Ask();
  // Unauthenticated, with the way out, if the server does not prove that it has the job's secret. The text completes a
  // sentence that begins with the server's name.
  absl::Status Take(const v1::ChallengeReply& reply);
  // Which shard the server is, as it has proved. REQUIRES: Take was OK.
  int shard() const { return shard_; }

  // Sets the request's proof. Nothing of the request may change afterwards, but a Check's payload.
  // REQUIRES: !needs_challenge().
  template <typename Request>
  void Sign(absl::string_view method, Request* request) const {
    v1::RequestProof* const proof = MutableProof(request);
    Fill(proof);
    if (!key_.empty()) proof->set_code(RequestCode(key_, method, *proof, RequestText(*request)));
  }

 private:
  void Fill(v1::RequestProof* proof) const;

  std::string key_;
  std::string client_nonce_;
  std::string server_nonce_;
  int shard_ = 0;
};

// For a server that does not know the method Challenge. Completes a sentence that begins with the server's name.
absl::Status NoChallengeError();

}  // namespace starring

#endif  // STARRING_COMMON_WIRE_REQUEST_PROOF_H_
