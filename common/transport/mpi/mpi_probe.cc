#include "common/transport/mpi/mpi_probe.h"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <list>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"

namespace starring {
namespace {

// Tags that the exchange, which has a communicator of its own, does not see.
constexpr int kRequestTag = 1;
constexpr int kAnswerTag = 2;
constexpr int kPings = 10;
// Several messages keep the link busy while an answer is on its way.
constexpr int kMessagesInFlight = 4;
// The text that one published name can hold. The rest is for the terminating zero, and for the count of parts with
// which the first part begins.
constexpr size_t kNameBytesMax = MPI_MAX_PORT_NAME - 16;
// A rank that sleeps answers late, which would be measured as the network's latency. So a rank stays awake this long
// after a message.
constexpr absl::Duration kAwake = absl::Milliseconds(3);
constexpr absl::Duration kPause = absl::Microseconds(200);

std::string PartName(const std::string& name, size_t part) { return absl::StrCat("starring-check:", name, ":", part); }

}  // namespace

struct MpiProbe::State {
  // A message in flight. Its buffer must not move until MPI has completed the request.
  struct Message {
    std::vector<char> buffer;
    MPI_Request request = MPI_REQUEST_NULL;
    int peer = 0;
    bool is_request = false;  // received, to be answered
  };

  MpiRuntime* runtime = nullptr;
  std::list<Message> messages;
  int answers = 0;  // to our requests
  absl::Time last_arrival = absl::InfinitePast();

  Message& Add(size_t size, int peer) {
    messages.emplace_back();
    messages.back().buffer.resize(std::max<size_t>(1, size));
    messages.back().peer = peer;
    return messages.back();
  }
  absl::Status Send(size_t size, int peer, int tag) {
    Message& message = Add(size, peer);
    // At least one byte, so that buffer.data() is not null. The list keeps the message until MPI_Test says that it has
    // left.
    const int code = MPI_Isend(message.buffer.data(), static_cast<int>(message.buffer.size()), MPI_BYTE, peer, tag,
                               MPI_COMM_WORLD, &message.request);
    return code == MPI_SUCCESS ? absl::OkStatus() : MpiError("MPI_Isend", code);
  }
  // Receives messages that have arrived and ends operations that have completed.
  absl::Status Progress() {
    // No receive is posted in advance: who will measure, and how long its messages are, is not known. One thread is in
    // MPI, so the message that was probed is the one that MPI_Irecv matches.
    for (const int tag : {kRequestTag, kAnswerTag}) {
      int there = 0;
      MPI_Status status;
      int code = MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &there, &status);
      if (code != MPI_SUCCESS) return MpiError("MPI_Iprobe", code);
      if (there == 0) continue;
      last_arrival = SteadyNow();
      int size = 0;
      MPI_Get_count(&status, MPI_BYTE, &size);
      Message& message = Add(static_cast<size_t>(size), status.MPI_SOURCE);
      message.is_request = tag == kRequestTag;
      if (tag == kAnswerTag) ++answers;
      code = MPI_Irecv(message.buffer.data(), size, MPI_BYTE, status.MPI_SOURCE, tag, MPI_COMM_WORLD, &message.request);
      if (code != MPI_SUCCESS) return MpiError("MPI_Irecv", code);
    }
    for (auto message = messages.begin(); message != messages.end();) {
      int done = 0;
      const int code = MPI_Test(&message->request, &done, MPI_STATUS_IGNORE);
      if (code != MPI_SUCCESS) return MpiError("MPI_Test", code);
      const auto current = message++;
      if (done == 0) continue;
      const bool answer = current->is_request;
      const int peer = current->peer;
      messages.erase(current);
      // The answer leaves only now, when all bytes of the request are here: the peer times them by it. One byte answers
      // for any length.
      if (answer) RETURN_IF_ERROR(Send(1, peer, kAnswerTag));
    }
    return absl::OkStatus();
  }
  absl::Status ProgressUntil(const std::function<bool()>& is_done, absl::Time end) {
    while (!is_done()) {
      RETURN_IF_ERROR(Progress());
      if (is_done()) break;
      // The clock is looked at after a round without success, so that a late answer which is here counts.
      const absl::Time now = SteadyNow();
      if (now >= end) return absl::DeadlineExceededError("a message does not arrive");
      Rest(now);
    }
    return absl::OkStatus();
  }
  void Rest(absl::Time now) const {
    if (now - last_arrival < kAwake) {
      sched_yield();
    } else {
      absl::SleepFor(kPause);
    }
  }
};

MpiProbe::MpiProbe(MpiRuntime* runtime) : state_(std::make_unique<State>()) {
  state_->runtime = runtime;
  // A check reports what does not work, and must survive it. By default MPI would end the process.
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
}

MpiProbe::~MpiProbe() {
  // MPI may still write to the buffers, so they stay until the process ends.
  if (!state_->messages.empty()) static_cast<void>(state_.release());
}

absl::Status MpiProbe::Publish(const std::string& name, const std::string& text) {
  const size_t parts = std::max<size_t>(1, (text.size() + kNameBytesMax - 1) / kNameBytesMax);
  // The first part is published last, so that a rank that finds it finds all others too.
  for (size_t part = parts; part-- > 0;) {
    std::string value = text.substr(part * kNameBytesMax, kNameBytesMax);
    if (part == 0) value = absl::StrCat(parts, " ", value);
    const int code = MPI_Publish_name(PartName(name, part).c_str(), MPI_INFO_NULL, value.c_str());
    if (code != MPI_SUCCESS) return MpiError("MPI_Publish_name", code);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> MpiProbe::Lookup(const std::string& name) {
  std::string text;
  int parts = 1;
  for (int part = 0; part < parts; ++part) {
    char value[MPI_MAX_PORT_NAME + 1] = "";
    const int code = MPI_Lookup_name(PartName(name, static_cast<size_t>(part)).c_str(), MPI_INFO_NULL, value);
    int kind = MPI_SUCCESS;
    MPI_Error_class(code, &kind);
    // That rank has not published yet, which is no error: the caller asks again.
    if (kind == MPI_ERR_NAME) return std::optional<std::string>();
    if (code != MPI_SUCCESS) return MpiError("MPI_Lookup_name", code);
    if (part > 0) {
      text += value;
      continue;
    }
    const std::pair<std::string, std::string> first = absl::StrSplit(value, absl::MaxSplits(' ', 1));
    if (!absl::SimpleAtoi(first.first, &parts) || parts < 1) {
      return absl::InternalError("MPI_Lookup_name returns a text that no rank has published");
    }
    text = first.second;
  }
  return std::optional<std::string>(std::move(text));
}

absl::StatusOr<std::vector<std::string>> MpiProbe::Gather(const std::string& text, absl::Time end) {
  // All texts have one size, so that one collective is enough. The buffers are not on the stack: MPI may still write to
  // them after a failure.
  const size_t size = static_cast<size_t>(kCheckCardBytesMax);
  if (text.size() >= size) return absl::InternalError("the text is too long to be gathered");
  const size_t world_size = static_cast<size_t>(state_->runtime->world_size());
  State::Message& own = state_->Add(size, 0);
  State::Message& all = state_->Add(size * world_size, 0);
  std::copy(text.begin(), text.end(), own.buffer.begin());
  int code = MPI_Iallgather(own.buffer.data(), static_cast<int>(size), MPI_BYTE, all.buffer.data(),
                            static_cast<int>(size), MPI_BYTE, MPI_COMM_WORLD, &all.request);
  if (code != MPI_SUCCESS) return MpiError("MPI_Iallgather", code);
  // MPI_Allgather would not do: in it, a rank that never comes keeps all others for ever.
  for (int done = 0; done == 0;) {
    code = MPI_Test(&all.request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return MpiError("MPI_Iallgather", code);
    if (done == 0 && SteadyNow() >= end) return absl::DeadlineExceededError("MPI's messages do not arrive");
    if (done == 0) absl::SleepFor(kPause);
  }
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < world_size; ++rank) texts.emplace_back(all.buffer.data() + rank * size);
  state_->messages.clear();
  return texts;
}

void MpiProbe::Serve(absl::Duration pause) {
  const absl::Time end = SteadyNow() + pause;
  // An error ends the serving only: the rank that measures reports what does not arrive.
  while (state_->Progress().ok()) {
    const absl::Time now = SteadyNow();
    if (now >= end && now - state_->last_arrival >= kAwake) return;
    state_->Rest(now);
  }
  absl::SleepFor(end - SteadyNow());
}

absl::StatusOr<MpiProbe::Measurement> MpiProbe::Measure(int peer, double seconds, absl::Time end) {
  State& state = *state_;
  Measurement result{.round_trip_us = std::numeric_limits<double>::max()};
  state.answers = 0;
  // The first ping makes the connection. Its time counts as well, but the smallest one is taken.
  for (int ping = 0; ping <= kPings; ++ping) {
    const absl::Time start = SteadyNow();
    RETURN_IF_ERROR(state.Send(1, peer, kRequestTag));
    RETURN_IF_ERROR(state.ProgressUntil([&] { return state.answers == ping + 1; }, end));
    result.round_trip_us = std::min(result.round_trip_us, absl::ToDoubleMicroseconds(SteadyNow() - start));
  }
  state.answers = 0;
  // Up to kMessagesInFlight requests are unanswered at a time. The time ends with the last answer: bytes that wait in
  // buffers have not arrived.
  int sent = 0;
  const absl::Time start = SteadyNow();
  while (sent == 0 ||
         (sent * kCheckPayloadBytesMax < kCheckBandwidthBytesMax && SteadyNow() - start < absl::Seconds(seconds))) {
    RETURN_IF_ERROR(state.Send(kCheckPayloadBytesMax, peer, kRequestTag));
    ++sent;
    RETURN_IF_ERROR(state.ProgressUntil([&] { return sent - state.answers < kMessagesInFlight; }, end));
  }
  RETURN_IF_ERROR(state.ProgressUntil([&] { return state.answers == sent; }, end));
  result.bytes_per_second =
      static_cast<double>(sent * kCheckPayloadBytesMax) / absl::ToDoubleSeconds(SteadyNow() - start);
  return result;
}

std::string MpiVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  // "Open MPI v4.1.4, package: ..."
  const std::string name = std::vector<std::string>(absl::StrSplit(std::string(text, length), ','))[0];
  return std::string(absl::string_view(name).substr(name.rfind('v') == std::string::npos ? 0 : name.rfind('v') + 1));
}

}  // namespace starring
