// One stream of a worker to a shard, with a connection of its own: sends requests in order, a bounded number
// unanswered, and after a broken connection opens the stream again and repeats what was not answered.
//
// Thread safety: one thread, that which polls the completion queue.
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
#include <vector>

#include "absl/status/status.h"
#include "common/trace.h"
#include "common/wire/exchange_message.h"
#include "common/wire/grpc_transport.h"

namespace starring {

// One request of this worker to one shard, from the trainer's call to the answer.
struct StarRequest {
  static constexpr int kNoBucket = -1;

  int shard = 0;
  int lane = 0;
  // StarClient::Wait waits for a whole group: the gradients of one bucket (its number), or all requests that are not
  // gradients (kNoBucket).
  int group = kNoBucket;
  v1::ExchangeMessage fields;
  std::span<const std::byte> payload;  // sent from where it lies
  std::span<std::byte> destination;    // where the answer's payload goes; it must have this length
  // If fields.shared(): neither payload nor answer travel, and this is the length of the answer.
  int64_t shared_answer_bytes = 0;
  v1::SharedMemory* parameter_memory = nullptr;  // if not null, takes what the answer says

  // Every slice that gRPC holds of `payload` shares this: while the count is above 1, gRPC may still read there.
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
    std::shared_ptr<grpc::Channel> channel;  // shared: gRPC's way
    grpc::CompletionQueue* queue = nullptr;  // outlives the lane's last event
    int rank = 0;
    int shard = 0;
    int lane = 0;
    uint64_t job_id = 0;
    TraceTrack* track = nullptr;  // null: there is no trace
    // `request` has its answer, which is copied to its destination.
    std::function<void(std::unique_ptr<StarRequest> request)> on_answer;
    // Fills in the progress of this worker.
    std::function<void(v1::Progress*)> fill_progress;
    // HERE or STALL: they answer no request.
    std::function<void(const v1::ExchangeMessage&)> on_note;
    // The job has failed, or this lane cannot go on: nothing will be answered any more.
    std::function<void(const absl::Status&)> on_failure;
  };
  explicit Lane(Options options);

  // Sends `request` when the connection is there and the requests before it leave room.
  void Post(std::unique_ptr<StarRequest> request);
  // Overtakes everything and has no answer.
  void PostAbort(const absl::Status& why);
  // Overtakes requests. kServer: and asks whether the server answers.
  enum class Asks { kNothing, kServer };
  void PostProgress(Asks asks);

  // Opens the stream when it is time to.
  void Tick(Time now);

  // Gives up all requests.
  std::vector<std::unique_ptr<StarRequest>> TakeRequests();
  // Ends the stream: kOrderly after what is being written and an abort, kNow at once. REQUIRES: no requests.
  enum class Urgency { kOrderly, kNow };
  void Close(Urgency urgency);
  bool closed() const { return state_ == State::kClosed; }
  bool open() const { return state_ == State::kOpen; }

  // The oldest request without an answer, or null.
  const StarRequest* oldest() const;
  // Why there is no connection, or OK.
  const absl::Status& connection() const { return connection_; }

  // The server's end of the newest connection, as common/host/peer_name.h spells it; empty before there was one.
  const std::string& peer() const { return peer_; }
  // Grows with every message that comes, and with every long one that leaves.
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
  void Write(const v1::ExchangeMessage& fields, std::span<const std::byte> payload, std::shared_ptr<const void> keeper);
  // The next part of the newest request that is sent.
  void WritePart();
  // Copies a part of the answer to `request` to its place. True when it was the last; InternalError if it has another
  // length than expected.
  absl::StatusOr<bool> TakePart(const ReceivedMessage& message, StarRequest* request);
  void TakeAnswer(const ReceivedMessage& message);
  // Of the exchange of a gradient; other requests are not traced.
  bool IsTraced(const StarRequest& request) const;
  TraceLabels LabelsOf(const StarRequest& request) const;
  // Ends a stream that is of no use any more, once gRPC has given back its events.
  void EndCall();

  const Options options_;
  grpc::GenericStub stub_;
  CompletionTag start_tag_{[this](bool ok) { OnStart(ok); }};
  CompletionTag read_tag_{[this](bool ok) { OnRead(ok); }};
  CompletionTag write_tag_{[this](bool ok) { OnWrite(ok); }};
  CompletionTag finish_tag_{[this](bool) { OnFinish(); }};

  std::deque<std::unique_ptr<StarRequest>> waiting_;
  std::deque<std::unique_ptr<StarRequest>> sent_;
  std::optional<absl::Status> abort_;
  std::optional<Asks> progress_;  // to be sent

  State state_ = State::kDown;
  bool closing_ = false;
  absl::Status connection_ = absl::UnavailableError("not connected yet");
  Time open_at_;  // in kDown
  std::chrono::milliseconds backoff_;
  int64_t payload_bytes_sent_ = 0;
  int64_t payload_bytes_received_ = 0;
  std::string peer_;
  int64_t signs_of_life_ = 0;

  // Of the current stream. The stream refers to the context and goes first.
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer incoming_;
  grpc::Status final_status_;
  bool hello_sent_ = false;
  int next_part_ = 0;  // of sent_.back(), if it is not written to its end: above 0
  bool abort_sent_ = false;
  bool writes_done_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool writing_much_ = false;  // more than fits where no process reads it
  bool finishing_ = false;
  TraceEvent write_;  // what is being written, if it is traced: has a name
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STAR_LANE_H_
