// A *lane* is one connection of a worker to one shard, with one gRPC stream at a time. It sends requests in order, with
// a bounded number of them unanswered. When the connection breaks, it opens a new stream and sends the unanswered
// requests again; the shard recognises repeated ones. server/shard/exchange_lane.h is the other end.
//
// Thread safety: none; StarClient's mutex guards its lanes, and who holds it polls the completion queue.
#ifndef STARRING_WORKER_EXCHANGE_STAR_LANE_H_
#define STARRING_WORKER_EXCHANGE_STAR_LANE_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/metrics/trace.h"
#include "common/wire/exchange_message.h"
#include "common/wire/grpc_transport.h"

namespace starring {

// One request of this worker to one shard, from the trainer's call to the answer.
struct StarRequest {
  static constexpr int kNoBucket = -1;
  static constexpr int kSnapshot = -2;

  int shard = 0;
  int lane = 0;
  // StarClient::Wait waits for a whole group: the gradients of one bucket (its number), what reads a snapshot while
  // training goes on (kSnapshot), or all other requests (kNoBucket).
  int group = kNoBucket;
  v1::ExchangeMessage fields;
  bool more_nodes_follow = false;      // a GRADIENT that is not the last of this worker's share: ACCEPTED answers it
  std::span<const std::byte> payload;  // sent from the caller's memory, without a copy
  std::span<std::byte> destination;    // takes the answer's payload, which must have this length
  std::shared_ptr<void> destination_keeper;  // what `destination` is part of; null: the caller keeps it
  // The length of the answer if fields.shared(): then payload and answer are in shared memory and do not travel.
  int64_t shared_answer_bytes = 0;
  v1::SharedMemory* parameter_memory = nullptr;  // if not null, takes the answer's field of this name

  // Every slice of `payload` that gRPC holds shares this. While the count is above 1, gRPC may still read the payload.
  std::shared_ptr<const void> payload_use = std::make_shared<char>();
  std::chrono::steady_clock::time_point since;  // posted, or first sent
  bool was_sent = false;
  int parts_received = 0;  // of the answer; see exchange_message.h
  int64_t posted_ns = 0;   // TraceNow, if there is a trace
};

class Lane {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Options {
    std::shared_ptr<grpc::Channel> channel;  // shared, because gRPC wants it so
    grpc::CompletionQueue* queue = nullptr;  // outlives the lane's last event
    int rank = 0;
    int shard = 0;
    int lane = 0;
    uint64_t job_id = 0;
    int slices_max = 1;           // requests whose payload travels that may be sent and not yet answered
    TraceTrack* track = nullptr;  // null: there is no trace
    // `request` has been answered, and the answer has been copied to its destination.
    std::function<void(std::unique_ptr<StarRequest> request)> on_answer;
    // Fills in the progress of this worker.
    std::function<void(v1::Progress*)> fill_progress;
    // Takes HERE and STALL, which answer no request.
    std::function<void(const v1::ExchangeMessage&)> on_note;
    // The job has failed, or this lane cannot go on: no request will be answered any more.
    std::function<void(const absl::Status&)> on_failure;
  };
  explicit Lane(Options options);

  // Sends `request` as soon as there is a connection and enough of the requests before it have been answered.
  void Post(std::unique_ptr<StarRequest> request);
  // Tells the server, before anything else that waits, that this worker gives up. There is no answer.
  void PostAbort(const absl::Status& why);
  // Sends this worker's progress before requests that wait. kServer: also asks the server for a sign of life.
  enum class Asks { kNothing, kServer };
  void PostProgress(Asks asks);

  // This process was stopped for so long, and has just gone on at `now`: no request has waited meanwhile.
  void OnStopped(std::chrono::nanoseconds stop, Time now);

  // Opens the stream if the lane is down and its pause is over. To be called every few dozen milliseconds.
  void Tick(Time now);

  // Gives all requests that are not answered back to the caller. The destination of a request is not written any more.
  [[nodiscard]] std::vector<std::unique_ptr<StarRequest>> TakeRequests();
  // Ends the stream. kOrderly: after the current write and a posted abort. kNow: at once. REQUIRES: no requests.
  enum class Urgency { kOrderly, kNow };
  void Close(Urgency urgency);
  bool closed() const { return state_ == State::kClosed; }
  bool open() const { return state_ == State::kOpen; }

  // Whether a request waits to be sent.
  bool has_waiting() const { return !waiting_.empty(); }
  // The oldest request without an answer, or null.
  const StarRequest* oldest() const;
  // Why there is no connection, or OK.
  const absl::Status& connection() const { return connection_; }

  // The server's address in the newest connection, as common/network/address.h spells it; empty before the first one.
  const std::string& peer() const { return peer_; }
  // Whether the lane has been opened since the last call.
  [[nodiscard]] bool TakeNewConnection() { return std::exchange(is_new_connection_, false); }
  // Grows with every message received and with every long message sent.
  int64_t signs_of_life() const { return signs_of_life_; }

  int64_t payload_bytes_sent() const { return payload_bytes_sent_; }
  int64_t payload_bytes_received() const { return payload_bytes_received_; }

 private:
  enum class State { kDown, kStarting, kOpen, kEnding, kClosed };

  void Open();
  void OnStart(bool ok);
  void OnRead(bool ok);
  void OnWrite(bool ok);
  void OnFinish();
  void WriteNext();
  bool MaySendNext() const;
  void Write(const v1::ExchangeMessage& fields, std::span<const std::byte> payload, std::shared_ptr<const void> keeper);
  // Writes the next part of sent_.back().
  void WritePart();
  // Copies one part of the answer to the destination of `request`. True if it was the last part; InternalError if it
  // has another length than expected.
  absl::StatusOr<bool> TakePart(const ReceivedMessage& message, StarRequest* request);
  void TakeAnswer(const ReceivedMessage& message);
  // Only exchanges of gradients are traced.
  bool IsTraced(const StarRequest& request) const;
  TraceLabels LabelsOf(const StarRequest& request) const;
  // Ends the current stream as soon as gRPC has returned the events of its read and its write.
  void EndCall();

  const Options options_;
  grpc::GenericStub stub_;
  CompletionTag start_tag_{[this](bool ok) { OnStart(ok); }};
  CompletionTag read_tag_{[this](bool ok) { OnRead(ok); }};
  CompletionTag write_tag_{[this](bool ok) { OnWrite(ok); }};
  CompletionTag finish_tag_{[this](bool) { OnFinish(); }};

  std::deque<std::unique_ptr<StarRequest>> waiting_;  // not sent on the current stream
  std::deque<std::unique_ptr<StarRequest>> sent_;     // sent on it, at least in part, and not answered
  std::optional<absl::Status> abort_;                 // to be sent
  std::optional<Asks> progress_;                      // to be sent

  State state_ = State::kDown;
  bool closing_ = false;
  absl::Status connection_ = absl::UnavailableError("not connected yet");
  Time open_at_;  // in kDown
  std::chrono::milliseconds backoff_;
  int64_t payload_bytes_sent_ = 0;
  int64_t payload_bytes_received_ = 0;
  std::string peer_;
  bool is_new_connection_ = false;
  int64_t signs_of_life_ = 0;

  // State of the current stream. The stream refers to the context and must be destroyed before it.
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer incoming_;
  grpc::Status final_status_;
  bool hello_sent_ = false;
  bool is_known_ = false;  // the server has answered HELLO
  int next_part_ = 0;      // above 0: the part of sent_.back() to be written next; 0: it is written as a whole
  bool abort_sent_ = false;
  bool writes_done_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool writing_much_ = false;  // more bytes than socket buffers hold while no process reads them
  bool finishing_ = false;
  TraceEvent write_;  // the event of the current write; without a name, that write is not traced
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STAR_LANE_H_
