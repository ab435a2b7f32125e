#include "worker/checkpoint/checkpointer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/not_written.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/flags/command_line.h"
#include "common/host/machine_limits.h"
#include "common/reduce/owner_map.h"
#include "worker/checkpoint/checkpoint_place.h"
#include "worker/step/in_flight_buckets.h"

namespace starring {
namespace {

// How long rank 0 waits for the disk before it takes part in a sum, which shows the other ranks that it is alive.
constexpr absl::Duration kWaitRound = absl::Milliseconds(250);
constexpr absl::Duration kLockPatience = absl::Seconds(5);
// The same in a run that goes on, whose other workers wait: who has just taken a lock signs it.
constexpr absl::Duration kSignPatience = absl::Milliseconds(200);
// How long a due checkpoint waits for the previous one: steps may be faster than a write. Far below any exchange
// deadline, which passes on the other ranks meanwhile.
constexpr absl::Duration kSkipPatience = absl::Seconds(1);

// Whose the lock of a folder is. Each generation of an elastic run has the same words: its run id ends with its number.
std::string HolderOf(const WorkerOptions& worker) {
  const std::string run = worker.elastic ? worker.run_id.substr(0, worker.run_id.rfind('/')) : worker.run_id;
  if (!run.empty()) return absl::StrCat("run \"", run, "\"");
  return worker.elastic ? absl::StrCat("the run of the coordinator ", worker.coordinator)
                        : absl::StrCat("process ", getpid());
}

std::string FormatSeconds(absl::Duration duration) { return absl::StrFormat("%g s", absl::ToDoubleSeconds(duration)); }

}  // namespace

static std::vector<std::string> StateNames(const OptimizerConfig& optimizer) {
  std::vector<std::string> names;
  for (int i = 0; i < StateVectorCount(optimizer); ++i) names.emplace_back(StateVectorName(optimizer, i));
  return names;
}

static absl::StatusOr<std::optional<FoundCheckpoint>> FindNewest(const WorkerOptions& worker, Network* network,
                                                                 OptimizerState wanted,
                                                                 const CheckpointFits& fits = nullptr) {
  std::map<std::string, int64_t> buffer_sizes;
  for (const NetworkBuffer& buffer : network->buffers()) {
    buffer_sizes[buffer.name] = static_cast<int64_t>(buffer.values.size());
  }
  return ReadNewestCheckpoint(worker.checkpoint_dir, network->layout(), StateNames(worker.optimizer), buffer_sizes,
                              wanted, fits);
}

absl::Status Checkpointer::CheckFolder(const WorkerOptions& worker) {
  if (worker.checkpoint_dir.empty()) return absl::OkStatus();
  // The checkpoints of a run that goes on are its own.
  WorkerOptions any = worker;
  any.resume = worker.resume || HasCheckpoint(worker.checkpoint_dir);
  RETURN_IF_ERROR(CheckCheckpointPlace(any));
  absl::Status status = CreateFolders(worker.checkpoint_dir);
  // No file is made: the lock is rank 0's, which must find it free.
  if (status.ok() && access(absl::StrCat(worker.checkpoint_dir, "/.").c_str(), W_OK | X_OK) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("cannot write in ", worker.checkpoint_dir));
  }
  if (status.ok()) return status;
  // A file system that does not answer may come back. It ends no other worker's run.
  if (absl::IsUnknown(status) || absl::IsUnavailable(status) || absl::IsResourceExhausted(status)) {
    return absl::UnavailableError(
        absl::StrCat("--checkpoint_dir=", worker.checkpoint_dir, ": ", std::string(status.message())));
  }
  return RefuseFlag("checkpoint_dir", worker.checkpoint_dir,
                    absl::StrCat(std::string(status.message()), ": name a folder that this worker can write"));
}

absl::StatusOr<int64_t> Checkpointer::NewestStep(const WorkerOptions& worker, Network* network) {
  ASSIGN_OR_RETURN(const std::optional<FoundCheckpoint> found, FindNewest(worker, network, OptimizerState::kCheckOnly));
  return found.has_value() ? found->checkpoint.step : 0;
}

Checkpointer::Checkpointer(Options options)
    : options_(std::move(options)),
      state_names_(StateNames(options_.worker->optimizer)),
      dir_(options_.worker->checkpoint_dir) {}

Checkpointer::~Checkpointer() {
  if (!options_.leaves_writes && !gave_up_) options_.writer->WaitFor(options_.worker->checkpoint_deadline);
  WarnOfFailure();
  // A disk that hangs would hang the end, too. A write in progress will have the folder.
  const bool may_remove = !gave_up_ && options_.writer->WaitFor(absl::ZeroDuration());
  if (options_.worker->saves_by_default && !dir_.empty() && may_remove) RemoveDefaultCheckpointDir(dir_);
}

void Checkpointer::MakeDefaultDir() {
  const auto make = [this]() -> absl::Status {
    const WorkerOptions& worker = *options_.worker;
    // Two elastic runs may have one name.
    const std::string holder =
        worker.elastic ? absl::StrCat(HolderOf(worker), " at ", worker.coordinator) : HolderOf(worker);
    ASSIGN_OR_RETURN(dir_, MakeDefaultCheckpointDir(options_.default_dir, worker.elastic ? holder : ""));
    absl::StatusOr<FolderLock> lock = FolderLock::Take(dir_, absl::ZeroDuration());
    // As in Create: an earlier rank 0 that sleeps may have the lock.
    if (worker.elastic && absl::IsFailedPrecondition(lock.status())) return absl::OkStatus();
    RETURN_IF_ERROR(lock.status());
    lock->Sign(holder);
    lock_.emplace(*std::move(lock));
    return absl::OkStatus();
  };
  const absl::Status made = make();
  if (made.ok()) return;
  options_.warn(absl::StrCat("warning: nothing will be saved: ", std::string(made.message()),
                             ": give --checkpoint_dir=FOLDER, or --checkpoint_dir=none"));
  if (!dir_.empty()) RemoveDefaultCheckpointDir(std::exchange(dir_, ""));
}

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::Create(Options options) {
  const WorkerOptions& worker = *options.worker;
  if (!options.goes_on) RETURN_IF_ERROR(CheckCheckpointPlace(worker));
  std::unique_ptr<Checkpointer> checkpointer(new Checkpointer(std::move(options)));
  // At the start, so that a person reads at once that nothing will be saved, and a disk that hangs stops no training at
  // its end. In an elastic run a disk that hangs would stop each generation, so there the folder is made at the end.
  if (worker.saves_by_default && worker.rank == 0 && !worker.elastic) checkpointer->MakeDefaultDir();
  // The lock is waited for, because a job that is restarted may begin while the one before it is still ending.
  if (!worker.checkpoint_dir.empty() && worker.rank == 0) {
    const bool goes_on = checkpointer->options_.goes_on;
    const std::string holder = HolderOf(worker);
    absl::StatusOr<FolderLock> lock = FolderLock::Take(worker.checkpoint_dir, goes_on ? kSignPatience : kLockPatience);
    // When the run goes on, an earlier rank 0, which sleeps, may still have the lock: the files that it writes when it
    // wakes up have the same bits. A folder that has become unfit since CheckFolder is a warning of each write, and
    // ends no other worker's run. A folder of another run ends this worker's part in it alone.
    const bool is_taken = absl::IsFailedPrecondition(lock.status());
    if (lock.ok()) {
      lock->Sign(holder);
      checkpointer->lock_.emplace(*std::move(lock));
    } else if (is_taken && (!goes_on || FolderLock::HolderOf(worker.checkpoint_dir) != holder)) {
      return RefuseFlag("checkpoint_dir", worker.checkpoint_dir, std::string(lock.status().message()));
    } else if (!goes_on) {
      return lock.status();
    }
    // A job that has ended while this one waited for the lock may have left its checkpoints.
    if (!goes_on) RETURN_IF_ERROR(CheckCheckpointPlace(worker));
  }
  return checkpointer;
}

// The element ranges that each owner updates; adjacent ranges are joined.
std::vector<std::vector<ElementRange>> Checkpointer::OwnerRanges(const GradientExchange& exchange) const {
  const BucketMap& buckets = *options_.buckets;
  const OwnerMap owners = exchange.facts().owners;
  std::vector<std::vector<ElementRange>> ranges(owners.owner_count());
  for (int owner = 0; owner < owners.owner_count(); ++owner) {
    std::vector<ElementRange>& of_owner = ranges[owner];
    // Bucket 0 is the end of the vector, so this order is ascending, and adjacent slices meet.
    for (int b = buckets.bucket_count() - 1; b >= 0; --b) {
      for (const ElementRange& range : owners.SliceOf(buckets.sum(b), owner)) {
        if (!of_owner.empty() && of_owner.back().end == range.begin) {
          of_owner.back().end = range.end;
        } else {
          of_owner.push_back(range);
        }
      }
    }
  }
  return ranges;
}

absl::StatusOr<int64_t> Checkpointer::Restore(std::span<float> parameters, std::vector<std::vector<float>>* state) {
  // Every rank reads, because every rank needs parameters and buffers. Only rank 0 keeps the optimizer's state, which
  // the exchange distributes.
  const std::string& dir = options_.worker->checkpoint_dir;
  std::vector<std::string> said;
  const CheckpointFits fits = [&](const Checkpoint& head, const std::string& folder) -> absl::Status {
    ASSIGN_OR_RETURN(said, CheckResume(head, folder, *options_.worker, facts_));
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(std::optional<FoundCheckpoint> found,
                   FindNewest(*options_.worker, options_.network,
                              writes() ? OptimizerState::kRead : OptimizerState::kCheckOnly, fits));
  if (!found.has_value()) {
    options_.warn(absl::StrCat("no checkpoint in ", dir, " yet: starting from the beginning"));
    return 0;
  }
  // Newer folders were damaged and passed over: the run goes back further than a person expects.
  for (const std::string& warning : found->warnings) Note(warning);
  Checkpoint& checkpoint = found->checkpoint;
  // The size that was fastest with another number of workers need not be the fastest now.
  if (checkpoint.world_size == options_.worker->world_size && options_.worker->TriesBucketSizes()) {
    chosen_bucket_bytes_ = checkpoint.bucket_bytes;
  }
  std::copy(checkpoint.parameters.begin(), checkpoint.parameters.end(), parameters.begin());
  for (const NetworkBuffer& buffer : options_.network->buffers()) {
    // ReadNewestCheckpoint has made sure that every buffer is there, with this many values.
    const std::vector<float>& values = checkpoint.buffers[buffer.name];
    RETURN_IF_ERROR(options_.network->WriteBuffer(buffer, values));
  }
  // A loss on another test set is not comparable.
  const auto fact = std::ranges::find(facts_, "data.test", [](const auto& one) { return one.first; });
  const auto written = checkpoint.config.find("data.test");
  const std::string test_now = fact == facts_.end() ? "" : fact->second;
  const std::string test_then = written == checkpoint.config.end() ? "" : written->second;
  best_ = test_now == test_then ? checkpoint.best : BestEpoch{};
  *state = std::move(checkpoint.state);
  options_.warn(absl::StrCat("resuming ", found->folder));
  for (const std::string& line : said) Note(line);
  if (checkpoint.step >= options_.end_step) {
    Note(absl::StrCat("0 steps were left: ", found->folder, " has ", checkpoint.step, " of ", options_.end_step,
                      " steps, so nothing is trained and the result is that checkpoint's: for more steps give a larger "
                      "--epochs or --max_steps, for another run another --checkpoint_dir"));
  }
  return checkpoint.step;
}

void Checkpointer::Note(const std::string& text) {
  options_.warn(text);
  resume_notes_.push_back(text);
}

absl::StatusOr<double> Checkpointer::SumOfRanks(double mine, GradientExchange* exchange) {
  std::array<double, 1> values = {mine};
  RETURN_IF_ERROR(exchange->Sum(SumPurpose::kCheckpoint, values));
  return values[0];
}

absl::Status Checkpointer::SavePeriodic(int64_t step, std::span<const float> parameters, GradientExchange* exchange) {
  if (!saves()) return absl::OkStatus();
  // Meanwhile the other ranks wait in the sum below, whose deadline is the exchange's.
  const absl::Duration patience = std::min(kSkipPatience, options_.worker->exchange_deadline / 4);
  const bool is_busy = !options_.writer->WaitFor(patience);
  // Only rank 0 knows whether it is still writing, and Save is collective: without this sum the others would gather the
  // optimizer's state alone.
  ASSIGN_OR_RETURN(const double busy_ranks, SumOfRanks(is_busy ? 1 : 0, exchange));
  if (busy_ranks == 0) return Save(step, parameters, *exchange, CheckpointWriter::AfterFailure::kGiveUp);
  if (writes()) WarnSkipped(step);  // only rank 0 can be the rank that is busy
  return absl::OkStatus();
}

void Checkpointer::WarnSkipped(int64_t step) const {
  options_.warn(absl::StrCat("warning: no checkpoint of step ", step, ": that of step ", options_.writer->step(),
                             " is still being written, after ", FormatSeconds(options_.writer->age())));
}

absl::Status Checkpointer::SaveSnapshot(int64_t step, std::span<const float> parameters, GradientExchange* exchange) {
  if (options_.worker->checkpoint_dir.empty() || !writes()) return absl::OkStatus();
  RETURN_IF_ERROR(AwaitSnapshot(exchange));
  if (!options_.writer->WaitFor(absl::ZeroDuration())) {
    WarnSkipped(step);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(reading_, Collect(step, parameters, *exchange));
  read_state_ = std::make_shared<std::vector<std::vector<float>>>(state_names_.size());
  for (std::vector<float>& vector : *read_state_) vector.resize(parameters.size());
  if (!read_state_->empty()) exchange->snapshots()->BeginRead(step, read_state_);
  return PollSnapshot(exchange);
}

absl::Status Checkpointer::PollSnapshot(GradientExchange* exchange) {
  return reading_.has_value() && exchange->snapshots()->HasRead() ? AwaitSnapshot(exchange) : absl::OkStatus();
}

absl::Status Checkpointer::AwaitSnapshot(GradientExchange* exchange) {
  if (!reading_.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(exchange->snapshots()->AwaitRead());
  reading_->state = std::move(*read_state_);
  return BeginWrite(*std::exchange(reading_, std::nullopt), CheckpointWriter::AfterFailure::kGiveUp);
}

bool Checkpointer::IsOverdue(const CheckpointSchedule& schedule, int64_t step) const {
  if (options_.worker->checkpoint_dir.empty() || !writes()) return false;
  const std::vector<CheckpointFolder> folders = ListCheckpointFolders(options_.worker->checkpoint_dir);
  const int64_t newest = folders.empty() ? 0 : folders.front().step;
  while (step > newest && !schedule.IsDue(step)) --step;
  return step > newest;
}

absl::Status Checkpointer::SaveFinal(int64_t step, std::span<const float> parameters, GradientExchange* exchange) {
  if (!saves()) return absl::OkStatus();
  return options_.worker->saves_by_default ? SaveByDefault(step, parameters, exchange)
                                           : SaveLast(step, parameters, exchange);
}

// A kernel that runs out of memory ends the process, whose training is complete.
absl::Status Checkpointer::CheckMemory(int64_t parameter_count) const {
  // The copies of parameters and state, and a tensor in PyTorch's order.
  const int64_t bytes = (2 + std::ssize(state_names_)) * parameter_count * static_cast<int64_t>(sizeof(float));
  const absl::StatusOr<int64_t> memory = AvailableMemoryBytes();
  if (!memory.ok() || bytes <= *memory) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("a checkpoint takes ", bytes, " bytes of memory, and ", *memory,
                                                   " are left: give --checkpoint_dir=FOLDER to try it"));
}

absl::Status Checkpointer::SaveByDefault(int64_t step, std::span<const float> parameters, GradientExchange* exchange) {
  if (writes() && options_.worker->elastic && dir_.empty()) MakeDefaultDir();
  const bool may_write = writes() && !dir_.empty();
  const absl::Status fits = may_write ? CheckMemory(std::ssize(parameters)) : absl::OkStatus();
  // Only rank 0 knows, and to save is collective.
  ASSIGN_OR_RETURN(const double writers, SumOfRanks(may_write && fits.ok() ? 1 : 0, exchange));
  const absl::Status saved = writers > 0 ? SaveLast(step, parameters, exchange) : fits;
  if (saved.ok() || (writers > 0 && !IsNotWritten(saved))) return saved;
  if (writes()) options_.warn(absl::StrCat("warning: ", std::string(saved.message())));
  return absl::OkStatus();
}

absl::Status Checkpointer::SaveLast(int64_t step, std::span<const float> parameters, GradientExchange* exchange) {
  RETURN_IF_ERROR(AwaitSnapshot(exchange));
  // One write at a time. How the one before has ended says nothing about this one, unless it does not end.
  const absl::Status before = WaitForWrite(step, exchange);
  if (!before.ok() && (gave_up_ || !IsNotWritten(before))) return before;
  if (!before.ok() && writes()) options_.warn(absl::StrCat("warning: ", std::string(before.message())));
  RETURN_IF_ERROR(Save(step, parameters, *exchange, CheckpointWriter::AfterFailure::kTryAgain));
  return WaitForWrite(step, exchange);
}

absl::Status Checkpointer::SaveBest(int64_t step, std::span<const float> parameters, GradientExchange* exchange) {
  // One write at a time, and this one must not be skipped: the epochs after it may all be worse.
  const absl::Status before = WaitForWrite(step, exchange);
  if (!before.ok() && !IsNotWritten(before)) return before;
  if (!before.ok() && writes()) options_.warn(absl::StrCat("warning: ", std::string(before.message())));
  if (std::exchange(gave_up_, false)) return absl::OkStatus();
  return Save(step, parameters, *exchange, CheckpointWriter::AfterFailure::kTryAgain, Place::kBest);
}

absl::Status Checkpointer::Save(int64_t step, std::span<const float> parameters, const GradientExchange& exchange,
                                CheckpointWriter::AfterFailure after_failure, Place place) {
  std::vector<std::vector<float>> state(state_names_.size());
  std::vector<std::span<float>> state_spans(state.size());
  if (writes()) {
    for (size_t i = 0; i < state.size(); ++i) {
      state[i].resize(parameters.size());
      state_spans[i] = state[i];
    }
  }
  // The call is collective, so the other ranks make it too before they return.
  RETURN_IF_ERROR(options_.gather_optimizer_state(state_spans));
  if (!writes()) return absl::OkStatus();
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Collect(step, parameters, exchange));
  checkpoint.state = std::move(state);
  return BeginWrite(std::move(checkpoint), after_failure, place);
}

absl::StatusOr<Checkpoint> Checkpointer::Collect(int64_t step, std::span<const float> parameters,
                                                 const GradientExchange& exchange) const {
  Checkpoint checkpoint{.step = step,
                        .epoch = step / options_.steps_per_epoch,
                        .config = DecidingValues(*options_.worker, facts_),
                        .finished = step >= options_.end_step,
                        .model = model_,
                        .best = best_,
                        .world_size = options_.worker->world_size,
                        .chunk_bytes = ChunkBytesFor(options_.worker->world_size),
                        .bucket_bytes = chosen_bucket_bytes_,
                        .parameters = {parameters.begin(), parameters.end()},
                        .state_names = state_names_,
                        .state = {},
                        .owner_ranges = OwnerRanges(exchange)};
  for (const NetworkBuffer& buffer : options_.network->buffers()) {
    std::vector<float>& values = checkpoint.buffers[buffer.name];
    values.resize(buffer.values.size());
    RETURN_IF_ERROR(options_.network->ReadBuffer(buffer, values));
  }
  return checkpoint;
}

absl::Status Checkpointer::CheckValues(const Checkpoint& checkpoint) const {
  const Layout& layout = options_.network->layout();
  RETURN_IF_ERROR(CheckFinite(layout, checkpoint.step, checkpoint.parameters));
  for (size_t i = 0; i < checkpoint.state.size(); ++i) {
    RETURN_IF_ERROR(CheckFinite(layout, checkpoint.step, checkpoint.state[i], absl::StrCat(".", state_names_[i])));
  }
  return absl::OkStatus();
}

absl::Status Checkpointer::BeginWrite(Checkpoint checkpoint, CheckpointWriter::AfterFailure after_failure,
                                      Place place) {
  // The previous write has ended. A failure is reported before the next one begins.
  WarnOfFailure();
  const int64_t step = checkpoint.step;
  const Layout& layout = options_.network->layout();
  // A checkpoint with a NaN in it would be resumed again and again.
  const absl::Status finite = CheckValues(checkpoint);
  if (!finite.ok() && !options_.worker->saves_by_default) return finite;
  if (!finite.ok() || dir_.empty()) {
    if (!finite.ok()) options_.warn(absl::StrCat("warning: no checkpoint: ", std::string(finite.message())));
    return absl::OkStatus();
  }
  // Not until the write has ended: a run that stops now must not tell a person that it is saved.
  is_saved_ = false;
  checkpoint.is_only = place == Place::kBest;
  best_in_writing_ = place == Place::kBest ? step : 0;
  options_.writer->Begin(place == Place::kBest ? absl::StrCat(dir_, "/best") : dir_, layout, std::move(checkpoint),
                         after_failure);
  return absl::OkStatus();
}

absl::Status Checkpointer::WaitForWrite(int64_t step, GradientExchange* exchange) {
  constexpr double kBusy = 0, kDone = 1, kLate = 2, kFailed = 3;  // what rank 0 adds to the sum; the others add 0
  const absl::Duration deadline = options_.worker->checkpoint_deadline;
  const absl::Duration round = std::min(kWaitRound, options_.worker->exchange_deadline / 4);
  const absl::Time end = SteadyNow() + deadline;
  absl::Status written;
  // Every turn is one sum, in which all ranks learn from rank 0 whether to go on. The others do nothing but wait in it.
  while (true) {
    double report = 0;
    if (writes()) {
      const bool has_ended = options_.writer->WaitFor(std::min(round, end - SteadyNow()));
      if (options_.on_wait != nullptr) options_.on_wait();
      if (has_ended) written = TakeResult();
      report = has_ended ? (written.ok() ? kDone : kFailed) : SteadyNow() >= end ? kLate : kBusy;
    }
    ASSIGN_OR_RETURN(const double of_rank_0, SumOfRanks(report, exchange));
    // From here on the ranks agree, so that all of them return the same kind of status.
    if (of_rank_0 == kBusy) continue;
    if (of_rank_0 == kDone) return absl::OkStatus();
    gave_up_ = of_rank_0 == kLate;
    if (gave_up_) {
      return NotWrittenError(absl::StrCat("rank 0 has not written the checkpoint of step ", step, " into ", dir_,
                                          " within ", FormatSeconds(deadline),
                                          ": look at the disk or give a longer --checkpoint_deadline_s; complete ones "
                                          "that are there stay"));
    }
    if (writes()) return NotWrittenError(written.message());
    return NotWrittenError(absl::StrCat("rank 0 could not write the checkpoint of step ", step, " into ", dir_,
                                        ", and its own last line says why"));
  }
}

// Takes the result of a write that has ended; OK if no write has ended.
absl::Status Checkpointer::TakeResult() {
  const std::optional<absl::Status> status = options_.writer->TakeResult();
  if (!status.has_value()) return absl::OkStatus();
  if (const int64_t best_step = std::exchange(best_in_writing_, 0); best_step > 0) {
    if (status->ok()) best_saved_step_ = best_step;
    return *status;
  }
  is_saved_ = status->ok();
  return *status;
}

void Checkpointer::WarnOfFailure() {
  const absl::Status status = TakeResult();
  if (!status.ok()) options_.warn(absl::StrCat("warning: ", std::string(status.message())));
}

}  // namespace starring
