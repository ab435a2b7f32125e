#include "worker/exchange/star/lane.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/network/address.h"
#include "common/wire/exchange_message.h"

namespace starring {
namespace {

using v1::ExchangeMessage;

constexpr char kMethod[] = "/starring.v1.ParameterServer/Exchange";
// The pause before a stream is opened again, doubled after each failure: short enough to hide a dropped connection in a
// step, long enough not to flood a server that is starting.
constexpr std::chrono::milliseconds kBackoffMin(20);
constexpr std::chrono::milliseconds kBackoffMax(1000);
// The end of a write of this size or more shows that the server reads: the buffers of sockets do not take many of them.
constexpr int64_t kMuchBytes = 256 << 10;

ExchangeMessage::Kind AnswerKind(const StarRequest& request) {
  switch (request.fields.kind()) {
    case ExchangeMessage::INITIAL_PARAMETERS:
    case ExchangeMessage::INITIAL_STATE:
    case ExchangeMessage::SIDE_VALUES:
      return ExchangeMessage::ACCEPTED;
    case ExchangeMessage::FETCH_SIDE_VALUES:
      return ExchangeMessage::SIDE_VALUES_RESULT;
    case ExchangeMessage::FETCH_PARAMETERS:
      return ExchangeMessage::PARAMETERS;
    case ExchangeMessage::GRADIENT:
      return request.more_nodes_follow ? ExchangeMessage::ACCEPTED : ExchangeMessage::PARAMETERS;
    case ExchangeMessage::FETCH_STATE:
      return ExchangeMessage::STATE;
    case ExchangeMessage::SUM:
      return ExchangeMessage::SUM_RESULT;
    case ExchangeMessage::FINISH:
      return ExchangeMessage::FINISHED;
    case ExchangeMessage::SHARE:
      return ExchangeMessage::SHARED;
    default:
      return ExchangeMessage::UNKNOWN;
  }
}

bool Answers(const ExchangeMessage& answer, const StarRequest& request) {
  // Answers come in the order in which steps complete, not in that of the requests, so the fields tell which is which.
  const ExchangeMessage& asked = request.fields;
  return answer.kind() == AnswerKind(request) && answer.step() == asked.step() && answer.bucket() == asked.bucket() &&
         answer.vector() == asked.vector() && (!request.more_nodes_follow || answer.node() == asked.node());
}

// An array in shared memory does not travel.
int64_t TravellingBytes(const StarRequest& request) {
  return request.fields.shared() ? 0 : std::ssize(request.payload);
}

// The server has answered that it does not want this lane: opening it again cannot help.
bool IsRefusal(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::FAILED_PRECONDITION ||
         status.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
         status.error_code() == grpc::StatusCode::UNIMPLEMENTED;
}

}  // namespace

Lane::Lane(Options options) : options_(std::move(options)), stub_(options_.channel), backoff_(kBackoffMin) {}

void Lane::Post(std::unique_ptr<StarRequest> request) {
  if (closing_) return;
  // A request that waits for a connection counts as waiting, so that its deadline finds a server that never comes.
  request->since = std::chrono::steady_clock::now();
  if (options_.track != nullptr) request->posted_ns = TraceNow();
  waiting_.push_back(std::move(request));
  WriteNext();
}

void Lane::PostAbort(const absl::Status& why) {
  if (closing_ || abort_.has_value()) return;
  abort_ = why;
  WriteNext();
}

void Lane::PostProgress(Asks asks) {
  if (closing_) return;
  // One note is enough, since it is filled in when it is written. A question must not be lost to a note without one.
  if (!progress_.has_value() || asks == Asks::kServer) progress_ = asks;
  WriteNext();
}

void Lane::OnStopped(std::chrono::nanoseconds stop, Time now) {
  for (auto* queue : {&sent_, &waiting_}) {
    for (const std::unique_ptr<StarRequest>& request : *queue) request->since = std::min(request->since + stop, now);
  }
}

void Lane::Tick(Time now) {
  if (state_ == State::kDown && now >= open_at_) Open();
}

const StarRequest* Lane::oldest() const {
  if (!sent_.empty()) return sent_.front().get();
  return waiting_.empty() ? nullptr : waiting_.front().get();
}

void Lane::Open() {
  state_ = State::kStarting;
  // The new stream knows nothing of the old one: HELLO, an abort and the parts of a request are written again.
  hello_sent_ = is_known_ = abort_sent_ = writes_done_ = false;
  next_part_ = 0;
  context_ = std::make_unique<grpc::ClientContext>();
  stream_ = stub_.PrepareCall(context_.get(), kMethod, options_.queue);
  stream_->StartCall(&start_tag_);
}

void Lane::OnStart(bool ok) {
  // The server is not there yet, or the lane was closed meanwhile. OnFinish decides whether to try again.
  if (state_ != State::kStarting || !ok) {
    EndCall();
    return;
  }
  state_ = State::kOpen;
  peer_ = PeerNameOfUri(context_->peer());
  is_new_connection_ = true;
  // Requests of the stream before are sent again, ahead of those that never left and in the same order: a worker's
  // contributions of a bucket must arrive step after step. The server answers repeated ones again.
  while (!sent_.empty()) {
    sent_.back()->parts_received = 0;
    waiting_.push_front(std::move(sent_.back()));
    sent_.pop_back();
  }
  reading_ = true;
  stream_->Read(&incoming_, &read_tag_);
  WriteNext();
}

bool Lane::MaySendNext() const {
  if (waiting_.empty() || sent_.size() >= kLaneRequestsMax) return false;
  const auto travels = [](const std::unique_ptr<StarRequest>& request) { return TravellingBytes(*request) > 0; };
  return !travels(waiting_.front()) || std::ranges::count_if(sent_, travels) < options_.slices_max;
}

// gRPC takes one write at a time. These go first: HELLO, without which the server does not know the lane, and after
// which nothing else goes before the server has answered: it cuts a stranger that sends much. Then an abort, for which
// the other workers wait; the rest of a request that has begun, because the server collects the parts of one request of
// a lane at a time; progress, because the server may be asking who is stuck. A lane that is closing then ends its half
// of the stream; any other lane sends the next request.
void Lane::WriteNext() {
  if (state_ != State::kOpen || writing_) return;
  if (!hello_sent_) {
    hello_sent_ = true;
    ExchangeMessage hello;
    hello.set_kind(ExchangeMessage::HELLO);
    hello.set_rank(options_.rank);
    hello.set_lane(options_.lane);
    hello.set_job_id(options_.job_id);
    Write(hello, {}, nullptr);
  } else if (!is_known_ && (!closing_ || abort_.has_value())) {
    return;  // OnRead goes on
  } else if (abort_.has_value() && !abort_sent_) {
    abort_sent_ = true;
    ExchangeMessage message;
    message.set_kind(ExchangeMessage::ABORT);
    SetStatusFields(*abort_, &message);
    Write(message, {}, nullptr);
  } else if (next_part_ > 0) {
    WritePart();
  } else if (progress_.has_value() && !closing_) {
    ExchangeMessage message;
    message.set_kind(ExchangeMessage::PROGRESS);
    options_.fill_progress(message.mutable_progress());
    message.mutable_progress()->set_asks(progress_ == Asks::kServer);
    progress_.reset();
    Write(message, {}, nullptr);
  } else if (closing_) {
    if (std::exchange(writes_done_, true)) return;
    writing_ = true;
    stream_->WritesDone(&write_tag_);
  } else if (MaySendNext()) {
    std::unique_ptr<StarRequest>& request = waiting_.front();
    // The deadline of a request counts from when the server could see it. A repeated request keeps its first time: a
    // server that breaks every stream must not put the deadline off for ever.
    if (!std::exchange(request->was_sent, true)) request->since = std::chrono::steady_clock::now();
    payload_bytes_sent_ += static_cast<int64_t>(request->payload.size());
    sent_.push_back(std::move(request));
    waiting_.pop_front();
    WritePart();
  }
}

// A payload longer than one message may be goes in parts (exchange_message.h).
void Lane::WritePart() {
  const StarRequest& request = *sent_.back();
  if (IsTraced(request)) write_ = {.name = "send", .begin_ns = TraceNow(), .labels = LabelsOf(request)};
  const int64_t payload_bytes = TravellingBytes(request);
  if (payload_bytes == 0) {
    Write(request.fields, {}, nullptr);
    return;
  }
  const int part = next_part_;
  next_part_ = part + 1 < PartCount(payload_bytes) ? part + 1 : 0;
  const auto payload = request.payload.subspan(PartBegin(part), PartBytes(payload_bytes, part));
  if (part == 0) {
    // Nearly every payload has one part: its fields are not copied.
    Write(request.fields, payload, request.payload_use);
  } else {
    ExchangeMessage fields = request.fields;
    fields.set_part(part);
    Write(fields, payload, request.payload_use);
  }
}

void Lane::Write(const ExchangeMessage& fields, std::span<const std::byte> payload,
                 std::shared_ptr<const void> keeper) {
  writing_ = true;
  writing_much_ = static_cast<int64_t>(payload.size()) >= kMuchBytes;
  stream_->Write(MakeByteBuffer(fields, payload, std::move(keeper)), &write_tag_);
}

void Lane::OnWrite(bool ok) {
  writing_ = false;
  if (write_.name != nullptr) {
    write_.end_ns = TraceNow();
    options_.track->Add(std::exchange(write_, {}));
  }
  if (!ok || state_ != State::kOpen) {
    EndCall();
    return;
  }
  // Long writes count, or a server that receives a long slice over a slow link would be called silent.
  if (writing_much_) ++signs_of_life_;
  if (abort_sent_) abort_.reset();
  WriteNext();
}

void Lane::OnRead(bool ok) {
  reading_ = false;
  if (!ok || state_ != State::kOpen) {
    EndCall();
    return;
  }
  // Only a message proves that the server works: a stream also starts on a connection that is accepted and then closed.
  connection_ = absl::OkStatus();
  is_known_ = true;  // the first message answers HELLO
  ++signs_of_life_;
  backoff_ = kBackoffMin;
  if (const absl::StatusOr<ReceivedMessage> message = DecodeByteBuffer(incoming_); message.ok()) {
    incoming_.Clear();
    TakeAnswer(*message);
  } else {
    // A server that sends what does not parse is broken, and a new stream would not mend it.
    options_.on_failure(message.status());
  }
  // The lane reads after a failure, too: that read notices the end of the stream.
  reading_ = true;
  stream_->Read(&incoming_, &read_tag_);
  WriteNext();
}

void Lane::TakeAnswer(const ReceivedMessage& message) {
  payload_bytes_received_ += message.payload_bytes;
  if (closing_) return;
  if (message.fields.kind() == ExchangeMessage::ERROR) {
    options_.on_failure(GetStatusFields(message.fields));
    return;
  }
  switch (message.fields.kind()) {
    case ExchangeMessage::ASK_PROGRESS:
      PostProgress(Asks::kNothing);
      return;
    case ExchangeMessage::HERE:
    case ExchangeMessage::STALL:
      options_.on_note(message.fields);
      return;
    default:
      break;
  }
  const auto found =
      std::find_if(sent_.begin(), sent_.end(), [&](const auto& sent) { return Answers(message.fields, *sent); });
  // A request that was sent on two streams may be answered twice; the second answer finds no request.
  if (found == sent_.end()) return;
  if (const absl::StatusOr<bool> is_whole = TakePart(message, found->get()); !is_whole.ok()) {
    options_.on_failure(is_whole.status());
    return;
  } else if (!*is_whole) {
    return;
  }
  // This may be the answer to a request whose parts are still being written, because an earlier stream brought all of
  // them to the server. The rest need not be sent.
  if (std::next(found) == sent_.end()) next_part_ = 0;
  std::unique_ptr<StarRequest> request = std::move(*found);
  sent_.erase(found);
  if (IsTraced(*request)) AddFlight(options_.track, "exchange", request->posted_ns, LabelsOf(*request));
  if (request->parameter_memory != nullptr) *request->parameter_memory = message.fields.parameter_memory();
  options_.on_answer(std::move(request));
  WriteNext();
}

absl::StatusOr<bool> Lane::TakePart(const ReceivedMessage& message, StarRequest* request) {
  const bool shared = request->fields.shared();
  const int64_t whole = shared ? 0 : std::ssize(request->destination);
  const int part = message.fields.part();
  // Part 0 starts the answer again: after a broken stream the server sends the whole of it.
  const bool in_order = part == 0 || part == request->parts_received;
  const int64_t expected = in_order && part >= 0 && part < PartCount(whole) ? PartBytes(whole, part) : -1;
  if (message.payload_bytes != expected || message.fields.shared() != shared) {
    return absl::InternalError(absl::StrCat(
        "shard ", options_.shard, " answered ", ExchangeMessage::Kind_Name(request->fields.kind()), " with ",
        message.payload_bytes, " bytes", message.fields.shared() ? " in shared memory" : "", " as part ", part,
        ", expected part ", request->parts_received, " of ", whole, " bytes", shared ? " in shared memory" : ""));
  }
  const TraceSpan span(IsTraced(*request) ? options_.track : nullptr, "receive", LabelsOf(*request));
  if (shared) {
    payload_bytes_received_ += request->shared_answer_bytes;
  } else if (whole > 0) {
    CopyPieces(message.payload, request->destination.subspan(PartBegin(part), expected));
  }
  request->parts_received = part + 1;
  return request->parts_received == PartCount(whole);
}

bool Lane::IsTraced(const StarRequest& request) const {
  return options_.track != nullptr && request.fields.kind() == ExchangeMessage::GRADIENT;
}

TraceLabels Lane::LabelsOf(const StarRequest& request) const {
  return {.step = request.fields.step(), .bucket = request.fields.bucket(), .peer = options_.shard};
}

std::vector<std::unique_ptr<StarRequest>> Lane::TakeRequests() {
  std::vector<std::unique_ptr<StarRequest>> requests;
  // The oldest come first: they were sent before those that wait.
  for (auto* queue : {&sent_, &waiting_}) {
    requests.insert(requests.end(), std::make_move_iterator(queue->begin()), std::make_move_iterator(queue->end()));
    queue->clear();
  }
  next_part_ = 0;
  return requests;
}

void Lane::Close(Urgency urgency) {
  closing_ = true;
  // Without a stream there is no event that could finish the closing.
  if (state_ == State::kDown) {
    state_ = State::kClosed;
  } else if (urgency == Urgency::kNow) {
    // A write to a server that reads nothing would never end. Cancelling makes gRPC return all events.
    abort_.reset();
    if (context_ != nullptr) context_->TryCancel();
  } else {
    WriteNext();
  }
}

void Lane::EndCall() {
  if (state_ == State::kClosed || state_ == State::kDown) return;
  state_ = State::kEnding;
  // gRPC returns the events of a broken stream's read and write by itself. Finish must not be called before: the tags
  // and the buffer of the read are members, and the next stream would use them too.
  if (reading_ || writing_ || std::exchange(finishing_, true)) return;
  stream_->Finish(&final_status_, &finish_tag_);
}

void Lane::OnFinish() {
  finishing_ = false;
  // The stream goes before the context to which it refers.
  stream_.reset();
  context_.reset();
  incoming_.Clear();
  if (closing_) {
    state_ = State::kClosed;
    return;
  }
  state_ = State::kDown;
  // A stream that the server has ended with OK says nothing new about why there is no connection.
  if (connection_.ok() || !final_status_.ok()) {
    connection_ = absl::UnavailableError(final_status_.error_message());
  }
  open_at_ = std::chrono::steady_clock::now() + backoff_;
  backoff_ = std::min(2 * backoff_, kBackoffMax);
  if (IsRefusal(final_status_)) options_.on_failure(FromGrpcStatus(final_status_));
}

}  // namespace starring
