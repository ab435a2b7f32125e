#include "common/transport/collectives.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace starring {
namespace {

using Token = MessagePump::Token;

// How many ranks take part: the first ones of the world.
int CountOf(const MessagePump& pump, const CollectiveOptions& options) {
  return options.with_servers ? pump.world_size() : pump.worker_count();
}

absl::Duration DeadlineOf(const MessagePump& pump, const CollectiveOptions& options) {
  return pump.rank() == 0 ? options.deadline : options.deadline + absl::Milliseconds(kVerdictGraceMs);
}

// The parts that rank 0 receives from its peers, part r with sizes[r] bytes; parts[0] is empty. All receives are posted
// before the first wait, so that a slow rank does not hold up the others' messages.
absl::StatusOr<std::vector<std::vector<std::byte>>> ReceiveParts(MessagePump& pump, ControlTag tag,
                                                                 std::span<const uint64_t> sizes,
                                                                 const CollectiveOptions& options) {
  std::vector<Token> tokens;
  for (size_t rank = 1; rank < sizes.size(); ++rank) {
    tokens.push_back(pump.Receive(static_cast<int>(rank), tag, static_cast<int64_t>(sizes[rank])));
  }
  RETURN_IF_ERROR(AwaitAll(pump, tokens, options));
  std::vector<std::vector<std::byte>> parts(1);
  for (const Token token : tokens) parts.push_back(pump.Take(token));
  return parts;
}

// Refuses a length that no rank of this build announces, on all ranks.
absl::Status CheckTextBytes(MessagePump& pump, int rank, uint64_t bytes) {
  if (bytes <= static_cast<uint64_t>(kCollectiveTextBytesMax)) return absl::OkStatus();
  const absl::Status why =
      absl::InternalError(absl::StrCat("rank ", rank, " announces a text of ", bytes, " bytes, at most ",
                                       kCollectiveTextBytesMax, " are allowed: all ranks must run the same build"));
  pump.Abort(why);
  return why;
}

absl::Status SendToRoot(MessagePump& pump, ControlTag tag, std::span<const std::byte> data,
                        const CollectiveOptions& options) {
  const Token token = pump.Send(0, tag, data);
  return AwaitAll(pump, {&token, 1}, options);
}

// Moves much data in one direction between two ranks, segment by segment. A transport may take a segment long before
// its receiver wants it, and then has to keep it. So the receiver acknowledges each, and few are on their way.
class SegmentStream {
 public:
  enum class Direction { kSend, kReceive };
  SegmentStream(MessagePump& pump, int peer, ControlTag tag, Direction direction, const CollectiveOptions& options)
      : pump_(pump), peer_(peer), tag_(tag), direction_(direction), options_(options) {}

  // `segment` belongs to the stream until Finish.
  absl::Status Push(std::span<std::byte> segment) {
    if (in_flight_.size() == kSegmentsInFlightMax) RETURN_IF_ERROR(AwaitOldest());
    if (direction_ == Direction::kSend) {
      in_flight_.push_back(
          {.data = pump_.SendFrom(peer_, tag_, segment), .taken = pump_.Receive(peer_, ControlTag::kSegmentTaken, 1)});
    } else {
      in_flight_.push_back({.data = pump_.ReceiveInto(peer_, tag_, segment)});
    }
    return absl::OkStatus();
  }
  absl::Status Finish() {
    while (!in_flight_.empty()) RETURN_IF_ERROR(AwaitOldest());
    return absl::OkStatus();
  }

 private:
  struct Segment {
    Token data = 0;
    Token taken = 0;  // of a sender
  };

  absl::Status AwaitOldest() {
    Segment segment = in_flight_.front();
    in_flight_.pop_front();
    RETURN_IF_ERROR(AwaitAll(pump_, {&segment.data, 1}, options_));
    if (direction_ == Direction::kReceive) {
      const std::byte one{1};
      segment.taken = pump_.Send(peer_, ControlTag::kSegmentTaken, {&one, 1});
    }
    RETURN_IF_ERROR(AwaitAll(pump_, {&segment.taken, 1}, options_));
    if (direction_ == Direction::kSend) (void)pump_.Take(segment.taken);
    return absl::OkStatus();
  }

  MessagePump& pump_;
  const int peer_;
  const ControlTag tag_;
  const Direction direction_;
  const CollectiveOptions& options_;
  std::deque<Segment> in_flight_;
};

}  // namespace

absl::Status AwaitAll(MessagePump& pump, std::span<const Token> tokens, const CollectiveOptions& options) {
  const auto is_complete = [&](Token token) { return pump.IsComplete(token); };
  const absl::Duration deadline = DeadlineOf(pump, options);
  const absl::Status status = pump.PumpUntil([&] { return std::all_of(tokens.begin(), tokens.end(), is_complete); },
                                             DeadlineAfter(deadline), options.what);
  // Without a message it is this wait that was too long. With one it is the failure of an earlier wait, which is only
  // passed on.
  if (!absl::IsDeadlineExceeded(status) || !status.message().empty()) return status;
  ASSIGN_OR_RETURN(const std::string missing, pump.FindMissing());
  const absl::Status late = absl::DeadlineExceededError(
      absl::StrCat(options.what, " did not end within ", absl::FormatDuration(deadline), ": ", missing));
  // The peers wait in the same collective. They get this reason now, not the less precise one that they would find
  // themselves.
  pump.Abort(late);
  return late;
}

absl::Status GatherToRoot(MessagePump& pump, ControlTag tag, std::span<const std::byte> mine, std::span<std::byte> all,
                          const CollectiveOptions& options) {
  if (pump.rank() != 0) return SendToRoot(pump, tag, mine, options);
  CHECK_EQ(all.size(), mine.size() * CountOf(pump, options));
  std::copy(mine.begin(), mine.end(), all.begin());
  // Rank 0's own part does not travel. The order of ranks is that of `all`, whichever came first.
  const std::vector<uint64_t> sizes(CountOf(pump, options), mine.size());
  ASSIGN_OR_RETURN(const auto parts, ReceiveParts(pump, tag, sizes, options));
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    std::copy(parts[rank].begin(), parts[rank].end(), all.begin() + rank * mine.size());
  }
  return absl::OkStatus();
}

absl::Status SendFromRoot(MessagePump& pump, ControlTag tag, std::span<std::byte> data,
                          const CollectiveOptions& options) {
  std::vector<Token> tokens;
  // Rank 0 returns when its messages have left. That does not mean that the peers have taken them: Barrier is the call
  // that shows it.
  if (pump.rank() == 0) {
    for (int peer = 1; peer < CountOf(pump, options); ++peer) tokens.push_back(pump.Send(peer, tag, data));
    return AwaitAll(pump, tokens, options);
  }
  tokens.push_back(pump.Receive(0, tag, static_cast<int64_t>(data.size())));
  RETURN_IF_ERROR(AwaitAll(pump, tokens, options));
  const std::vector<std::byte> received = pump.Take(tokens[0]);
  std::copy(received.begin(), received.end(), data.begin());
  return absl::OkStatus();
}

// This is a pipeline: while a rank passes one segment on, it receives the next one. With S segments and N ranks the
// last segment arrives after S + N - 2 hops, and every link carries each segment once. (Sent by rank 0 to each rank,
// the data would leave it N - 1 times.) Segments arrive at their final place and are sent from there, so that nothing
// is copied.
absl::Status BroadcastFromRoot(MessagePump& pump, std::span<std::byte> data, const CollectiveOptions& options) {
  using Direction = SegmentStream::Direction;
  const int from = pump.rank() - 1;
  const int to = pump.rank() + 1;
  SegmentStream arriving(pump, from, ControlTag::kBroadcast, Direction::kReceive, options);
  SegmentStream leaving(pump, to, ControlTag::kBroadcast, Direction::kSend, options);
  for (size_t begin = 0; begin < data.size(); begin += kBroadcastSegmentBytes) {
    const std::span<std::byte> segment =
        data.subspan(begin, std::min<size_t>(kBroadcastSegmentBytes, data.size() - begin));
    if (from >= 0) {
      RETURN_IF_ERROR(arriving.Push(segment));
      RETURN_IF_ERROR(arriving.Finish());
    }
    if (to < CountOf(pump, options)) RETURN_IF_ERROR(leaving.Push(segment));
  }
  // The caller may change `data` when this call returns, so the last segments must have been taken.
  return leaving.Finish();
}

absl::StatusOr<std::vector<std::string>> GatherTextToRoot(MessagePump& pump, std::string_view mine,
                                                          const CollectiveOptions& options) {
  const uint64_t size = mine.size();
  std::vector<uint64_t> sizes(CountOf(pump, options));
  // The sizes go first, because a receive must be as long as its message (transport.h).
  RETURN_IF_ERROR(GatherToRoot(pump, ControlTag::kAgreementSize, std::as_bytes(std::span(&size, 1)),
                               std::as_writable_bytes(std::span(sizes)), options));
  std::vector<std::string> texts;
  if (pump.rank() != 0) {
    RETURN_IF_ERROR(SendToRoot(pump, ControlTag::kAgreement, std::as_bytes(std::span(mine)), options));
    return texts;
  }
  for (int rank = 1; rank < std::ssize(sizes); ++rank) RETURN_IF_ERROR(CheckTextBytes(pump, rank, sizes[rank]));
  ASSIGN_OR_RETURN(const auto parts, ReceiveParts(pump, ControlTag::kAgreement, sizes, options));
  texts.emplace_back(mine);
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    texts.emplace_back(reinterpret_cast<const char*>(parts[rank].data()), parts[rank].size());
  }
  return texts;
}

absl::Status SendTextFromRoot(MessagePump& pump, std::string& text, const CollectiveOptions& options) {
  // As above, the size goes first. An empty text is sent like any other: "no error" is one.
  uint64_t size = text.size();
  RETURN_IF_ERROR(SendFromRoot(pump, ControlTag::kVerdictSize, std::as_writable_bytes(std::span(&size, 1)), options));
  RETURN_IF_ERROR(CheckTextBytes(pump, 0, size));
  text.resize(size);
  return SendFromRoot(pump, ControlTag::kVerdict, std::as_writable_bytes(std::span(text)), options);
}

absl::Status Transfer(MessagePump& pump, Route route, std::span<std::byte> data, const CollectiveOptions& options) {
  using Direction = SegmentStream::Direction;
  const bool sends = pump.rank() == route.from;
  SegmentStream segments(pump, sends ? route.to : route.from, ControlTag::kState,
                         sends ? Direction::kSend : Direction::kReceive, options);
  for (size_t begin = 0; begin < data.size(); begin += kTransferSegmentBytes) {
    RETURN_IF_ERROR(segments.Push(data.subspan(begin, std::min<size_t>(kTransferSegmentBytes, data.size() - begin))));
  }
  return segments.Finish();
}

absl::Status Barrier(MessagePump& pump, const CollectiveOptions& options) {
  std::byte mine{1};
  std::vector<std::byte> all(pump.rank() == 0 ? CountOf(pump, options) : 0);
  // Rank 0 sends the second message when it has the first one of every rank, so no rank leaves before the last one
  // came.
  RETURN_IF_ERROR(GatherToRoot(pump, ControlTag::kBarrier, {&mine, 1}, all, options));
  return SendFromRoot(pump, ControlTag::kBarrierDone, {&mine, 1}, options);
}

}  // namespace starring
