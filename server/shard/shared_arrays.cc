#include "server/shard/shared_arrays.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/job/leaf_shares.h"

namespace starring {

SharedArrays::SharedArrays(const Options& options)
    : options_(options), workers_(options_.world_size), buckets_(options_.slices.size()) {}

absl::StatusOr<v1::SharedMemory> SharedArrays::Share(int rank, const v1::ExchangeMessage& request) {
  const auto node_count = std::ssize(ShareOf(rank, options_.leaf_owners));
  ASSIGN_OR_RETURN(auto gradients, SharedMemory::Open(request.gradient_memory(), node_count * options_.element_count,
                                                      SharedMemory::Access::kRead));
  // The worker's memory is kept only when there is memory for parameters as well: it shares both or none.
  RETURN_IF_ERROR(OpenParameters(request));
  workers_[rank].gradients = std::move(gradients);
  return parameters_->where();
}

absl::StatusOr<std::span<const float>> SharedArrays::GradientOf(int rank, int node) const {
  const std::span<const float> all = workers_[rank].gradients->values();
  if (node < 0 || node >= std::ssize(all) / options_.element_count) {
    return absl::InvalidArgumentError(absl::StrCat("node ", node, " of its share, for which it shares no memory"));
  }
  return all.subspan(static_cast<size_t>(node * options_.element_count), static_cast<size_t>(options_.element_count));
}

absl::Status SharedArrays::OpenParameters(const v1::ExchangeMessage& request) {
  if (parameters_ != nullptr) {
    if (!request.has_parameter_memory() || request.parameter_memory().nonce() == parameters_->where().nonce()) {
      return absl::OkStatus();
    }
    // A vector of parameters of its own would need a copy for each worker, so this worker uses the socket.
    return absl::UnavailableError("other workers have another memory for parameters");
  }
  if (request.has_parameter_memory()) {
    ASSIGN_OR_RETURN(parameters_, SharedMemory::Open(request.parameter_memory(), options_.element_count,
                                                     SharedMemory::Access::kReadWrite));
  } else {
    ASSIGN_OR_RETURN(parameters_, SharedMemory::Create(options_.element_count));
  }
  // The parameters may have been set before the first worker shared; a worker that only reads would never see them.
  for (int b = 0; b < static_cast<int>(buckets_.size()); ++b) Publish(b);
  return absl::OkStatus();
}

absl::Status SharedArrays::NoteRequest(int rank, const v1::ExchangeMessage& request) {
  Worker& worker = workers_[rank];
  if (request.shared() && worker.gradients == nullptr) {
    return absl::FailedPreconditionError("a request refers to shared memory, and none is shared");
  }
  // A worker may stop sharing at any request: its connection to another shard may have fallen back to the socket.
  sharing_count_ += static_cast<int>(request.shared()) - static_cast<int>(worker.shares);
  worker.shares = request.shared();
  return absl::OkStatus();
}

void SharedArrays::UpdateInPlaceIfAllShare(int bucket) {
  Bucket& b = buckets_[bucket];
  // There must be parameters first. While one worker reads by socket, each step has a buffer of its own: an answer, or
  // a repeat of it, may still be on its way when the next step is written.
  if (b.in_place || sharing_count_ < options_.world_size || options_.sums->Parameters(bucket) == nullptr) return;
  Publish(bucket);
  b.in_place = true;
  const ElementRange slice = options_.slices[bucket];
  options_.sums->UpdateInPlace(bucket, parameters_->writable_values().subspan(slice.begin, slice.size()), parameters_);
}

void SharedArrays::Publish(int bucket) {
  Bucket& b = buckets_[bucket];
  const auto sealed = options_.sums->Parameters(bucket);
  // A step is copied once, however many workers read it there.
  if (parameters_ == nullptr || sealed == nullptr || b.published == sealed->step()) return;
  // Updates in place are in that memory already.
  if (!b.in_place) {
    std::ranges::copy(sealed->parameters(), parameters_->writable_values().begin() + options_.slices[bucket].begin);
  }
  b.published = sealed->step();
}

void SharedArrays::PublishIfShared(int bucket) {
  if (sharing_count_ > 0) Publish(bucket);
}

}  // namespace starring
