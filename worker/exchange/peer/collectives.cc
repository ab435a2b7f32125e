#include "worker/exchange/peer/collectives.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/limits.h"
#include "common/status.h"

namespace starring {
namespace {

using Token = MessagePump::Token;

// Rank 0 can tell which rank is missing, another rank can only tell that rank 0 is late. With this grace the better
// message arrives before the worse one is made.
constexpr absl::Duration kVerdictGrace = absl::Seconds(2);

absl::Duration DeadlineOf(const MessagePump& pump, const CollectiveOptions& options) {
  return pump.rank() == 0 ? options.deadline : options.deadline + kVerdictGrace;
}

// Waits for operations. If they take too long, the error names the missing ranks.
absl::Status WaitFor(MessagePump& pump, std::span<const Token> tokens, const CollectiveOptions& options) {
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

// The parts that rank 0 receives from its peers, part r with sizes[r] bytes; parts[0] is empty. All receives are posted
// before the first wait, so that a slow rank does not hold up the others' messages.
absl::StatusOr<std::vector<std::vector<std::byte>>> ReceiveParts(MessagePump& pump, ControlTag tag,
                                                                 std::span<const uint64_t> sizes,
                                                                 const CollectiveOptions& options) {
  std::vector<Token> tokens;
  for (int rank = 1; rank < pump.world_size(); ++rank) {
    tokens.push_back(pump.Receive(rank, tag, static_cast<int64_t>(sizes[rank])));
  }
  RETURN_IF_ERROR(WaitFor(pump, tokens, options));
  std::vector<std::vector<std::byte>> parts(1);
  for (const Token token : tokens) parts.push_back(pump.Take(token));
  return parts;
}

absl::Status SendToRoot(MessagePump& pump, ControlTag tag, std::span<const std::byte> data,
                        const CollectiveOptions& options) {
  const Token token = pump.Send(0, tag, data);
  return WaitFor(pump, {&token, 1}, options);
}

}  // namespace

absl::Status GatherToRoot(MessagePump& pump, ControlTag tag, std::span<const std::byte> mine, std::span<std::byte> all,
                          const CollectiveOptions& options) {
  if (pump.rank() != 0) return SendToRoot(pump, tag, mine, options);
  CHECK_EQ(all.size(), mine.size() * pump.world_size());
  std::copy(mine.begin(), mine.end(), all.begin());
  // Rank 0's own part does not travel. The order of ranks is that of `all`, whichever came first.
  const std::vector<uint64_t> sizes(pump.world_size(), mine.size());
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
    for (int peer = 1; peer < pump.world_size(); ++peer) tokens.push_back(pump.Send(peer, tag, data));
    return WaitFor(pump, tokens, options);
  }
  tokens.push_back(pump.Receive(0, tag, static_cast<int64_t>(data.size())));
  RETURN_IF_ERROR(WaitFor(pump, tokens, options));
  const std::vector<std::byte> received = pump.Take(tokens[0]);
  std::copy(received.begin(), received.end(), data.begin());
  return absl::OkStatus();
}

// This is a pipeline: while a rank passes one segment on, it receives the next one. With S segments and N ranks the
// last segment arrives after S + N - 2 hops, and every link carries each segment once. (Sent by rank 0 to each rank,
// the data would leave it N - 1 times.) Segments arrive at their final place and are sent from there, so that nothing
// is copied.
absl::Status BroadcastFromRoot(MessagePump& pump, std::span<std::byte> data, const CollectiveOptions& options) {
  const int from = pump.rank() - 1;
  const int to = pump.rank() + 1;
  // Two segments may be leaving: one leaves while the next arrives, and memory in flight stays bounded.
  Token sent[2] = {};
  bool is_sent[2] = {false, false};
  for (size_t begin = 0, i = 0; begin < data.size(); begin += kBroadcastSegmentBytes, ++i) {
    const std::span<std::byte> segment =
        data.subspan(begin, std::min<size_t>(kBroadcastSegmentBytes, data.size() - begin));
    if (from >= 0) {
      const Token token = pump.ReceiveInto(from, ControlTag::kBroadcast, segment);
      RETURN_IF_ERROR(WaitFor(pump, {&token, 1}, options));
    }
    if (to == pump.world_size()) continue;
    if (is_sent[i % 2]) RETURN_IF_ERROR(WaitFor(pump, {&sent[i % 2], 1}, options));
    sent[i % 2] = pump.SendFrom(to, ControlTag::kBroadcast, segment);
    is_sent[i % 2] = true;
  }
  // The caller may change `data` when this call returns, so the last two segments must have left.
  for (int i = 0; i < 2; ++i) {
    if (is_sent[i]) RETURN_IF_ERROR(WaitFor(pump, {&sent[i], 1}, options));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> GatherTextToRoot(MessagePump& pump, std::string_view mine,
                                                          const CollectiveOptions& options) {
  const uint64_t size = mine.size();
  std::vector<uint64_t> sizes(pump.world_size());
  // The sizes go first, because a receive must be as long as its message (transport.h).
  RETURN_IF_ERROR(GatherToRoot(pump, ControlTag::kAgreementSize, std::as_bytes(std::span(&size, 1)),
                               std::as_writable_bytes(std::span(sizes)), options));
  std::vector<std::string> texts;
  if (pump.rank() != 0) {
    RETURN_IF_ERROR(SendToRoot(pump, ControlTag::kAgreement, std::as_bytes(std::span(mine)), options));
    return texts;
  }
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
  text.resize(size);
  return SendFromRoot(pump, ControlTag::kVerdict, std::as_writable_bytes(std::span(text)), options);
}

absl::Status Transfer(MessagePump& pump, Route route, std::span<std::byte> data, const CollectiveOptions& options) {
  const bool sends = pump.rank() == route.from;
  const int peer = sends ? route.to : route.from;
  std::vector<Token> tokens;  // by segment
  for (size_t begin = 0; begin < data.size(); begin += kTransferSegmentBytes) {
    const std::span<std::byte> segment =
        data.subspan(begin, std::min<size_t>(kTransferSegmentBytes, data.size() - begin));
    // Two segments may be in flight: one leaves while the one before it ends.
    if (tokens.size() > 1) RETURN_IF_ERROR(WaitFor(pump, {&tokens[tokens.size() - 2], 1}, options));
    tokens.push_back(sends ? pump.SendFrom(peer, ControlTag::kState, segment)
                           : pump.ReceiveInto(peer, ControlTag::kState, segment));
  }
  return WaitFor(pump, tokens, options);
}

absl::Status Barrier(MessagePump& pump, const CollectiveOptions& options) {
  std::byte mine{1};
  std::vector<std::byte> all(pump.rank() == 0 ? pump.world_size() : 0);
  // Rank 0 sends the second message when it has the first one of every rank, so no rank leaves before the last one
  // came.
  RETURN_IF_ERROR(GatherToRoot(pump, ControlTag::kBarrier, {&mine, 1}, all, options));
  return SendFromRoot(pump, ControlTag::kBarrierDone, {&mine, 1}, options);
}

}  // namespace starring
