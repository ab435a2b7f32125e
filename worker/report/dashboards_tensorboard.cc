#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/checkpoint/crc32c.h"
#include "common/host/host_identity.h"
#include "common/host/log.h"
#include "proto/starring/v1/tensorboard_event.pb.h"
#include "worker/report/dashboards.h"

namespace starring {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

double Now() { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }

absl::string_view BytesOf(const auto& number) { return {reinterpret_cast<const char*>(&number), sizeof(number)}; }

// TFRecord's mask: a CRC over data that itself contains CRCs would detect fewer errors.
uint32_t MaskedCrc(absl::string_view bytes) { return std::rotr(Crc32c(bytes), 15) + 0xa282ead8; }

// A TFRecord is the length, the length's checksum, the data, and the data's checksum.
std::string Framed(absl::string_view record) {
  const uint64_t length = record.size();
  const uint32_t length_crc = MaskedCrc(BytesOf(length));
  const uint32_t record_crc = MaskedCrc(record);
  return absl::StrCat(BytesOf(length), BytesOf(length_crc), record, BytesOf(record_crc));
}

}  // namespace

Tensorboard::Tensorboard(Options options, std::string path, std::FILE* file)
    : options_(std::move(options)), path_(std::move(path)), file_(file) {}

Tensorboard::~Tensorboard() {
  if (file_ != nullptr) std::fclose(file_);
}

absl::StatusOr<std::unique_ptr<Tensorboard>> Tensorboard::Create(const Options& options) {
  // TensorBoard takes the files with "tfevents" in their names, in the order of their names.
  const std::string path = absl::StrFormat("%s/events.out.tfevents.%010d.%s.%d", options.dir,
                                           absl::ToUnixSeconds(absl::Now()), HostName(), getpid());
  std::error_code ignored;  // the open reports it
  std::filesystem::create_directories(options.dir, ignored);
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  const int open_error = errno;
  // The board owns the file from here on, also if the first record cannot be written.
  std::unique_ptr<Tensorboard> board(new Tensorboard(options, path, file));
  v1::TensorboardEvent first;
  first.set_wall_time(Now());
  // TensorBoard expects this record at the beginning of every event file.
  first.set_file_version("brain.Event:2");
  if (file == nullptr || !board->WriteRecord(first.SerializeAsString())) {
    return absl::InvalidArgumentError(absl::StrCat("flag --tensorboard_dir cannot be \"", options.dir, "\": ", path,
                                                   ": ", strerror(file == nullptr ? open_error : errno),
                                                   ": name a folder that can be written to"));
  }
  return board;
}

void Tensorboard::OnStep(const StepReport& report) {
  const double exchange = report.part_seconds[static_cast<int>(StepPart::kExposedExchange)];
  ++steps_;
  ++epoch_steps_;
  exchange_seconds_ += exchange;
  epoch_exchange_seconds_ += exchange;
  seconds_ += std::accumulate(report.part_seconds.begin(), report.part_seconds.end(), 0.0);
  // Loss and accuracy are this rank's; the rate counts the samples of all ranks.
  for (const FinishedStep& done : report.finished) {
    ++finished_;
    samples_ += done.batch;
    global_samples_ += done.global_count;
    loss_sum_ += done.loss.loss_sum;
    correct_ += done.loss.correct;
  }
  // Finished steps are counted: on a GPU losses are known some steps later, and a point needs the losses of its steps.
  if (finished_ < options_.steps_per_point) return;
  const auto samples = static_cast<double>(std::max<int64_t>(1, samples_));
  // Only finished steps bring the count to its limit, so this call has some.
  Write(report.finished.back().step,
        {{"step/loss", loss_sum_ / samples},
         {"step/accuracy", static_cast<double>(correct_) / samples},
         {"step/samples_per_second", static_cast<double>(global_samples_) / seconds_},
         {"step/exposed_exchange_ms", 1e3 * exchange_seconds_ / static_cast<double>(steps_)}});
  // The sums of an epoch go on: they have points of their own.
  steps_ = finished_ = samples_ = global_samples_ = correct_ = 0;
  loss_sum_ = seconds_ = exchange_seconds_ = 0;
}

void Tensorboard::OnEpoch(const EpochSummary& summary, int64_t next_step) {
  // The point is at the epoch's last step, so that both kinds of curves share an axis.
  Write(next_step - 1, {{"epoch/train_loss", summary.train_loss},
                        {"epoch/test_loss", summary.test_loss},
                        {"epoch/test_accuracy", summary.test_accuracy},
                        {"epoch/samples_per_second", summary.samples_per_second},
                        {"epoch/exposed_exchange_ms",
                         1e3 * epoch_exchange_seconds_ / static_cast<double>(std::max<int64_t>(1, epoch_steps_))}});
  epoch_steps_ = 0;
  epoch_exchange_seconds_ = 0;
}

void Tensorboard::Write(int64_t step, const Values& values) {
  if (file_ == nullptr) return;
  v1::TensorboardEvent event;
  event.set_wall_time(Now());
  event.set_step(step);
  for (const auto& [tag, value] : values) {
    v1::TensorboardSummary::Value& out = *event.mutable_summary()->add_value();
    out.set_tag(tag);
    out.set_simple_value(static_cast<float>(value));
  }
  if (WriteRecord(event.SerializeAsString())) return;
  // A full disk must not end a training that needs no TensorBoard: one message, and no points from here on.
  Log(absl::StrCat("no more points for TensorBoard: ", path_, ": ", strerror(errno)), LogLevel::kWarning);
  std::fclose(file_);
  file_ = nullptr;
}

bool Tensorboard::WriteRecord(const std::string& record) {
  const std::string framed = Framed(record);
  // The record is flushed at once, so that TensorBoard sees the point now, and a process that is killed loses none.
  return std::fwrite(framed.data(), 1, framed.size(), file_) == framed.size() && std::fflush(file_) == 0;
}

}  // namespace starring
