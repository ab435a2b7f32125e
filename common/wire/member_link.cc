#include "common/wire/member_link.h"

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/network/dial.h"
#include "common/wire/challenge.h"
#include "common/wire/grpc_transport.h"
#include "common/wire/request_proof.h"
#include "proto/starring/v1/coordinator.grpc.pb.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"

namespace starring {
namespace {

using Clock = std::chrono::steady_clock;

// These waits keep nothing safe: who is late to report is given up by the coordinator, after times that are flags, and
// how long there may be no stream is the owner's decision.
//
// Several reports in a second, the least time after which the coordinator takes a process for silent.
constexpr std::chrono::milliseconds kReportPause(250);
// The longest that an order goes unnoticed: one that the process waits for; any other. In each look this thread polls
// all of gRPC's connections, in place of the thread that exchanges gradients. With 10 ms throughout, a step of lenet5
// of 0.66 ms took 5 % longer than in a star that is not elastic.
constexpr std::chrono::milliseconds kLookForAwaited(10);
constexpr std::chrono::milliseconds kLook(50);
// A coordinator that is not there costs its members little, and one that is there again has them soon.
constexpr std::chrono::milliseconds kRetryPause(50);
constexpr std::chrono::milliseconds kConnectWait(200);
// For the coordinator to prove itself, which it does at once. One that is stopped is asked again.
constexpr std::chrono::seconds kChallengePatience(5);

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

// Waiting may help if the coordinator is not up, or ended the stream without saying why.
bool IsForGood(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return false;
    default:
      return true;
  }
}

}  // namespace

// One stream. gRPC uses it until each of its operations has come out of the queue.
class MemberLink::Stream {
 public:
  enum Tag { kChallenge, kStart, kRead, kWrite, kFinish, kTagCount };

  // The coordinator proves itself before anything of this process leaves.
  Stream(v1::ParameterServer::Stub* server, v1::Coordinator::Stub* stub, const std::string& key,
         grpc::CompletionQueue* queue)
      : stub_(stub), queue_(queue), signer_(key) {
    if (!signer_.needs_challenge()) {
      Start();
      return;
    }
    challenge_context_.set_deadline(std::chrono::system_clock::now() + kChallengePatience);
    challenge_ = server->AsyncChallenge(&challenge_context_, signer_.Ask(), queue);
    challenge_->Finish(&challenge_reply_, &status_, TagOf(kChallenge));
    ++pending_;
  }

  // True when nothing of the stream is left in the queue: status() says how it ended.
  bool OnEvent(void* tag, bool ok, const std::function<void(const v1::MemberOrder&)>& on_order) {
    --pending_;
    switch (static_cast<Tag>(static_cast<char*>(tag) - tags_)) {
      case kChallenge:
        challenge_outcome_ = ChallengeOutcome(status_, challenge_reply_, &signer_);
        // The coordinator is shard 0: another server of the job must not be taken for it.
        if (challenge_outcome_.ok() && signer_.shard() != 0) {
          challenge_outcome_ = absl::FailedPreconditionError(
              absl::StrCat("is the server of shard ", signer_.shard(), ", and the coordinator is shard 0's"));
        }
        challenge_outcome_.ok() ? Start() : static_cast<void>(is_over_ = true);
        break;
      case kStart:
        is_open_ = ok;
        ok ? Read() : Finish();
        break;
      case kRead:
        if (ok) {
          on_order(order_);
          run_has_ended_ = run_has_ended_ || order_.kind() == v1::MemberOrder::END;
          Read();
        } else {
          Finish();
        }
        break;
      case kWrite:
        is_writing_ = false;
        if (!ok) Finish();
        break;
      case kFinish:
        is_over_ = true;
        break;
      case kTagCount:
        break;
    }
    return is_over_ && pending_ == 0;
  }
  bool can_write() const { return is_open_ && !is_writing_ && !is_finishing_; }
  void Write(v1::MemberReport* report) {
    if (!std::exchange(has_written_, true)) signer_.Sign(kAttendMethod, report);
    is_writing_ = true;
    ++pending_;
    stream_->Write(*report, TagOf(kWrite));
  }
  bool has_written() const { return has_written_; }
  bool run_has_ended() const { return run_has_ended_; }
  void Cancel() {
    challenge_context_.TryCancel();
    context_.TryCancel();
  }
  // Not OK: the peer has not proved that it is the coordinator, and nothing else counts.
  const absl::Status& challenge_outcome() const { return challenge_outcome_; }
  absl::Status status() const { return FromGrpcStatus(status_); }

 private:
  void* TagOf(Tag tag) { return &tags_[tag]; }
  void Start() {
    stream_ = stub_->PrepareAsyncAttend(&context_, queue_);
    stream_->StartCall(TagOf(kStart));
    ++pending_;
  }
  void Read() {
    ++pending_;
    stream_->Read(&order_, TagOf(kRead));
  }
  void Finish() {
    if (std::exchange(is_finishing_, true)) return;
    ++pending_;
    stream_->Finish(&status_, TagOf(kFinish));
  }

  char tags_[kTagCount] = {};  // their addresses are the tags
  v1::Coordinator::Stub* const stub_;
  grpc::CompletionQueue* const queue_;
  RequestSigner signer_;
  grpc::ClientContext challenge_context_;
  v1::ChallengeReply challenge_reply_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::ChallengeReply>> challenge_;
  absl::Status challenge_outcome_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::MemberReport, v1::MemberOrder>> stream_;
  v1::MemberOrder order_;
  grpc::Status status_;
  int pending_ = 0;
  bool is_open_ = false;
  bool is_writing_ = false;
  bool is_finishing_ = false;
  bool is_over_ = false;
  bool has_written_ = false;
  bool run_has_ended_ = false;
};

MemberLink::MemberLink(Options options)
    : options_(std::move(options)), disconnected_since_ns_(NowNs()), thread_([this] { Run(); }) {}

MemberLink::~MemberLink() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  woken_.NotifyOne();
  thread_.join();
}

void MemberLink::ReportSoon(Then then) {
  {
    const MutexLock lock(mutex_);
    wanted_ = true;
    awaits_order_ = then == Then::kAwaitsOrder;
  }
  woken_.NotifyOne();
}

MemberLink::Wish MemberLink::AwaitWish(bool has_reported) {
  const MutexLock lock(mutex_);
  const bool is_stopping = stopping_;  // then the stream is about to end
  const bool is_steady = has_reported && !awaits_order_ && !is_stopping;
  // A stop that is known already ends no wait: the stream's last events take time, and the loop must not spin.
  woken_.WaitFor(mutex_, is_steady ? kLook : kLookForAwaited,
                 [this, is_stopping]()
                     ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return wanted_ || stopping_ != is_stopping; });
  return {.report = std::exchange(wanted_, false), .stop = stopping_};
}

void MemberLink::Take(const v1::MemberOrder& order) {
  // Only these let a process go on. A CUT, for instance, may reach a worker that waits for its next generation.
  const bool goes_on = order.kind() == v1::MemberOrder::TRAIN || order.kind() == v1::MemberOrder::SERVE ||
                       order.kind() == v1::MemberOrder::END;
  if (goes_on) {
    const MutexLock lock(mutex_);
    awaits_order_ = false;
  }
  options_.on_order(order);
}

std::string MemberLink::trouble() const {
  const MutexLock lock(mutex_);
  return trouble_;
}

std::chrono::steady_clock::duration MemberLink::disconnected_for() const {
  const int64_t since = disconnected_since_ns_;
  return since == 0 ? Clock::duration::zero() : std::chrono::nanoseconds(NowNs() - since);
}

bool MemberLink::IsRefused(const Stream& stream) {
  const absl::Status& unproved = stream.challenge_outcome();
  const absl::Status status = unproved.ok() ? stream.status() : unproved;
  const absl::Status explained =
      absl::IsUnavailable(status) ? ExplainConnectionError(std::string(status.message()), options_.security) : status;
  {
    const MutexLock lock(mutex_);
    // Either advice is for a worker that joins a server. An elastic run has no --check.
    trouble_ = std::string(
        absl::StripSuffix(absl::StripSuffix(explained.message(), ": start it, or correct --servers"), kFirewallWayOut));
  }
  // A process that has taken the coordinator's port for a while must not end this one.
  if (!unproved.ok() || !IsForGood(explained)) return false;
  options_.on_refused(absl::Status(
      explained.code(), absl::StrCat("coordinator ", options_.coordinator, ": ", std::string(explained.message()))));
  return true;
}

void MemberLink::Report(Stream& stream) {
  v1::MemberReport report;
  options_.report(&report, !stream.has_written());
  stream.Write(&report);
  disconnected_since_ns_ = 0;
}

void MemberLink::Run() {
  grpc::ChannelArguments arguments;
  // In spite of its name, this is how long one attempt to connect may take. A coordinator that is started again in
  // another pod has another address, which is looked up when the attempt at the old one is over.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);
  const std::shared_ptr<grpc::Channel> channel = OpenChannel(options_.coordinator, options_.security, arguments);
  const std::unique_ptr<v1::ParameterServer::Stub> server = v1::ParameterServer::NewStub(channel);
  const std::unique_ptr<v1::Coordinator::Stub> stub = v1::Coordinator::NewStub(channel);
  grpc::CompletionQueue queue;
  std::optional<Stream> stream;
  Clock::time_point next_attempt = Clock::now();
  Clock::time_point next_report;
  bool report_is_wanted = false;
  bool is_over_for_good = false;
  while (true) {
    // No wait in the queue: one thread polls for all of gRPC's connections in a process. The exchange's answers would
    // come to this one, which would have to wake the trainer's.
    const Wish wish = AwaitWish(stream.has_value() && stream->has_written());
    if (wish.stop && !stream.has_value()) break;
    if (wish.stop) stream->Cancel();
    report_is_wanted = report_is_wanted || wish.report;
    if (!stream.has_value() && !is_over_for_good && Clock::now() >= next_attempt) {
      stream.emplace(server.get(), stub.get(), options_.security.request_key, &queue);
      next_report = Clock::now();
    }
    bool is_over = false;
    void* tag = nullptr;
    bool ok = false;
    while (!is_over &&
           queue.AsyncNext(&tag, &ok, std::chrono::system_clock::now()) == grpc::CompletionQueue::GOT_EVENT) {
      is_over = stream->OnEvent(tag, ok, [this](const v1::MemberOrder& order) { Take(order); });
    }
    if (is_over) {
      // A coordinator that waits until all have heard of the end must not be asked again by those that have.
      is_over_for_good = stream->run_has_ended();
      // Only the loss of a stream that was open counts. Failed attempts after it leave the time as it is.
      int64_t connected = 0;
      disconnected_since_ns_.compare_exchange_strong(connected, NowNs());
      if (!wish.stop && !is_over_for_good) is_over_for_good = IsRefused(*stream);
      stream.reset();
      if (wish.stop || is_over_for_good) continue;
      // gRPC 1.51 drives a handshake only while somebody waits for it.
      channel->WaitForConnected(std::chrono::system_clock::now() + kConnectWait);
      next_attempt = Clock::now() + kRetryPause;
    }
    if (!stream.has_value() || !stream->can_write()) continue;
    if (!report_is_wanted && Clock::now() < next_report) continue;
    if (options_.works != nullptr && !options_.works()) continue;
    report_is_wanted = false;
    next_report = Clock::now() + kReportPause;
    Report(*stream);
  }
  // gRPC demands that a queue is empty when it is destroyed.
  queue.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) {
  }
}

}  // namespace starring
