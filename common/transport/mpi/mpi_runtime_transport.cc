#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "common/transport/mpi/mpi_library.h"
#include "common/transport/mpi/mpi_runtime.h"

namespace starring {
namespace {

// MPI counts in an int. Every message is shorter: a chunk, a segment, or a bucket (limits.h).
int CountOf(size_t size) {
  CHECK_LE(size, INT_MAX);
  return static_cast<int>(size);
}

// MPI moves messages only while it is called: a message of more than some kilobytes, and each stage of an allreduce,
// needs several calls on both sides, and a sleep delays all that come after it. Four ranks with a core each passed 4
// MiB around a ring in 11 ms when they slept after 50 us; MPI_Allreduce takes 2.7. After a tenth of a second nothing is
// urgent any more, but an allreduce, of which nothing is seen before its end, may last longer: a slow one moves some
// 100 bytes in a microsecond.
constexpr std::chrono::milliseconds kPollsFor{100};
constexpr int64_t kSlowBytesPerMicrosecond = 100;

// How long Wait pauses: the shorter, the sooner a message is found; the longer, the less of a core it takes. Pauses
// double, so that a message waits no longer than it has taken. Shorter ones, at most a sixteenth of the wait and 100
// us, made a step of mlp 5 % slower with two ranks on two cores. After a tenth of a second nothing is urgent any more:
// then a pause is at most 1/256 of the wait, and polls cost some 3 % of a core instead of 9 %.
constexpr std::chrono::microseconds kPauseMin{20};
constexpr std::chrono::microseconds kPauseMax{320};
constexpr int kPauseShare = 256;
constexpr std::chrono::microseconds kLongPauseMax{2000};

// Linux lengthens a thread's sleeps by up to 50 us by default, more than kPauseMin. A failure costs only time.
void SleepPrecisely() {
  thread_local const int precise = prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  static_cast<void>(precise);
}

template <class Abi>
class MpiRuntimeTransport final : public MpiTransport {
 public:
  MpiRuntimeTransport(const MpiRuntime& runtime, const MpiCalls<Abi>& calls, MpiCommunicator communicator)
      : rank_(runtime.rank()),
        world_size_(runtime.world_size()),
        owns_(communicator == MpiCommunicator::kOwn),
        calls_(calls),
        communicator_(calls.handles.world) {
    // MPI matches messages by communicator and tag, so in one of its own no message of another transport can take the
    // place of one of ours.
    if (owns_) mpi_.Comm_dup(handles_.world, &communicator_);
    // By default MPI ends the process at the first error, and no rank would be told why.
    mpi_.Comm_set_errhandler(communicator_, handles_.errors_return);
    // The library has a pointer to its limit. Without one, the limit is the least that the standard allows.
    int* tag_max = nullptr;
    int is_set = 0;
    mpi_.Comm_get_attr(communicator_, Abi::kTagUb, &tag_max, &is_set);
    if (is_set != 0) tag_max_ = *tag_max;
  }

  ~MpiRuntimeTransport() override {
    // Freeing is collective, and after an error the peers do not take part. Then the communicator stays, and the
    // process leaves without MPI_Finalize.
    if (owns_ && requests_.empty() && error_.ok()) mpi_.Comm_free(&communicator_);
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  int tag_max() const override { return tag_max_; }
  bool moves_device_memory() const override {
    return mpi_.query_cuda_support != nullptr && mpi_.query_cuda_support() == 1;
  }

  void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) override {
    Request request = handles_.request_null;
    const int code = mpi_.Isend(data.data(), CountOf(data.size()), handles_.byte, peer, tag, communicator_, &request);
    // A message that Open MPI sends inline comes back as an inactive request, which MPI_Testsome never reports.
    int is_complete = 0;
    if (code == kMpiSuccess) mpi_.Test(&request, &is_complete, Abi::StatusIgnore());
    if (is_complete != 0) {
      sent_.push_back(token);
    } else {
      Keep("MPI_Isend", code, request, token);
    }
  }

  void PostReceive(int peer, int tag, std::span<std::byte> data, Token token) override {
    Request request = handles_.request_null;
    const int code = mpi_.Irecv(data.data(), CountOf(data.size()), handles_.byte, peer, tag, communicator_, &request);
    if (token.bytes != nullptr) ++lengths_wanted_;
    Keep("MPI_Irecv", code, request, token);
  }

  void PostAllreduce(std::span<const float> contribution, std::span<float> sum, Token token) override {
    CHECK_EQ(contribution.size(), sum.size());
    Request request = handles_.request_null;
    // MPI matches collective operations by the order of the calls alone, which is why all ranks must post them in one
    // order.
    const int code = mpi_.Iallreduce(contribution.data(), sum.data(), CountOf(sum.size()), handles_.float32,
                                     handles_.sum, communicator_, &request);
    Keep("MPI_Iallreduce", code, request, token);
    const std::chrono::microseconds slow(static_cast<int64_t>(sum.size_bytes()) / kSlowBytesPerMicrosecond);
    polls_for_ = std::max(polls_for_, slow);
  }

  absl::Status Poll(std::vector<Token>& completed) override {
    if (!error_.ok()) return error_;
    const size_t before = completed.size();
    // OnCompletion may post the next operation, so a poster is never called from within a post. Operations that were
    // complete when they were posted are therefore handed on here.
    completed.insert(completed.end(), sent_.begin(), sent_.end());
    sent_.clear();
    if (absl::Status status = TestRequests(completed); !status.ok()) return status;
    if (completed.size() > before) waited_us_.store(0, std::memory_order_relaxed);
    return absl::OkStatus();
  }

  void Wait(std::chrono::microseconds longest) override {
    if (woken_.exchange(false, std::memory_order_relaxed)) return;
    const int64_t waited_us = waited_us_.load(std::memory_order_relaxed);
    const std::chrono::microseconds waited(waited_us);
    const auto pause = std::clamp(waited, kPauseMin, std::clamp(waited / kPauseShare, kPauseMax, kLongPauseMax));
    waited_us_.store(waited_us + pause.count(), std::memory_order_relaxed);
    SleepPrecisely();
    std::this_thread::sleep_for(std::min(pause, longest));
  }

  std::chrono::microseconds polls_for() const override { return polls_for_; }

  // A pause is so short that nothing need end it.
  void Wake() override { woken_.store(true, std::memory_order_relaxed); }

  std::optional<Received> TryReceive(int tag, std::span<std::byte> data) override {
    int is_there = 0;
    typename Abi::Message message = handles_.message_null;
    Status status;
    // A notice has no receive that waits for it: such a receive would be in flight for the whole run, and the
    // communicator could not be freed at the end.
    int code = mpi_.Improbe(Abi::kAnySource, tag, communicator_, &is_there, &message, &status);
    if (code != kMpiSuccess) KeepError("MPI_Improbe", code);
    if (code != kMpiSuccess || is_there == 0) return std::nullopt;
    int bytes = 0;
    mpi_.Get_count(&status, handles_.byte, &bytes);
    CHECK_LE(bytes, data.size());
    // A notice is so short that the whole of it has arrived with its announcement: this does not wait.
    code = mpi_.Mrecv(data.data(), bytes, handles_.byte, &message, Abi::StatusIgnore());
    if (code != kMpiSuccess) {
      // `data` holds no message, and must not be read as one.
      KeepError("MPI_Mrecv", code);
      return std::nullopt;
    }
    return Received{.peer = status.source, .bytes = bytes};
  }

 private:
  using Request = typename Abi::Request;
  using Status = typename Abi::Status;

  absl::Status TestRequests(std::vector<Token>& completed) {
    if (requests_.empty()) return absl::OkStatus();
    indices_.resize(requests_.size());
    if (lengths_wanted_ > 0) statuses_.resize(requests_.size());
    Status* const statuses = lengths_wanted_ > 0 ? statuses_.data() : Abi::StatusIgnore();
    int count = 0;
    // One call makes progress on everything and tests every request. Its cost grows with the operations in flight,
    // which the ring bounds (kRingOperationsInFlightMax).
    const int code = mpi_.Testsome(CountOf(requests_.size()), requests_.data(), &count, indices_.data(), statuses);
    // MPI guarantees nothing after an error, not even which receives it may still write to.
    if (code != kMpiSuccess) return error_ = calls_.Error("MPI_Testsome", code);
    if (count == kMpiUndefined || count == 0) return absl::OkStatus();
    // The order matters: the indices name places in the two arrays as they were before DropCompleted moves the rest up.
    for (int i = 0; i < count; ++i) {
      const Token token = tokens_[indices_[i]];
      if (token.bytes != nullptr) {
        int bytes = 0;
        mpi_.Get_count(&statuses[i], handles_.byte, &bytes);
        *token.bytes = bytes;
        --lengths_wanted_;
      }
      completed.push_back(token);
    }
    DropCompleted();
    return absl::OkStatus();
  }

  void Keep(const char* call, int code, Request request, Token token) {
    if (code != kMpiSuccess) {
      KeepError(call, code);
      return;
    }
    requests_.push_back(request);
    tokens_.push_back(token);
  }

  // A post and TryReceive return no status, so the next Poll reports their error. The first error stays: those that
  // follow are mostly its consequences.
  void KeepError(const char* call, int code) {
    if (error_.ok()) error_ = calls_.Error(call, code);
  }

  // MPI_Testsome sets the requests that have completed to null. The others move up in their order, in one pass, and
  // both arrays keep their memory.
  void DropCompleted() {
    size_t kept = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == handles_.request_null) continue;
      requests_[kept] = requests_[i];
      tokens_[kept] = tokens_[i];
      ++kept;
    }
    requests_.resize(kept);
    tokens_.resize(kept);
  }

  const int rank_;
  const int world_size_;
  const bool owns_;
  const MpiCalls<Abi> calls_;
  const MpiFunctions<Abi>& mpi_ = calls_.mpi;
  const MpiHandles<Abi>& handles_ = calls_.handles;
  typename Abi::Comm communicator_;
  int tag_max_ = 32767;
  std::chrono::microseconds polls_for_ = kPollsFor;
  absl::Status error_;  // the first one; it stays
  // In flight: tokens_[i] is the token of requests_[i].
  std::vector<Request> requests_;
  std::vector<Token> tokens_;
  std::vector<int> indices_;
  std::vector<Status> statuses_;
  int lengths_wanted_ = 0;              // receives in flight whose messages may be shorter
  std::vector<Token> sent_;             // complete when posted
  std::atomic<int64_t> waited_us_ = 0;  // the pauses since a poll has found something
  std::atomic<bool> woken_ = false;
};

}  // namespace

std::unique_ptr<MpiTransport> CreateMpiTransport(const MpiRuntime& runtime, MpiCommunicator communicator) {
  return std::visit(
      [&](const auto& calls) -> std::unique_ptr<MpiTransport> {
        using Abi = typename std::decay_t<decltype(calls)>::Abi;
        return std::make_unique<MpiRuntimeTransport<Abi>>(runtime, calls, communicator);
      },
      runtime.library().calls);
}

}  // namespace starring
