#include "kernels/cuda/cuda_watch.h"

#include <utility>

namespace starring {

CudaWatch::~CudaWatch() {
  {
    const MutexLock lock(mutex_);
    is_over_ = true;
  }
  ends_.NotifyOne();
  // No call is open: a watch outlives everything that it watches. Without a call the thread was never started.
  if (thread_.joinable()) thread_.join();
}

CudaWatch::Call::Call(CudaWatch* watch, const char* name) : watch_(watch) {
  if (watch_ == nullptr) return;
  const MutexLock lock(watch_->mutex_);
  watch_->calls_.push_back({.call = this, .name = name});
  // The thread does not start in the constructor: a process that never asks for a GPU gets no thread.
  if (!watch_->thread_.joinable()) watch_->thread_ = std::thread([watch] { watch->Look(); });
}

CudaWatch::Call::~Call() {
  if (watch_ == nullptr) return;
  const MutexLock lock(watch_->mutex_);
  // The call is found by its address, because calls of several threads end in any order. The list is short: each thread
  // has one call at most.
  std::erase_if(watch_->calls_, [this](const OpenCall& open) { return open.call == this; });
}

void CudaWatch::AskForPeers(std::function<std::string()> late_peers) {
  const MutexLock lock(mutex_);
  late_peers_ = std::move(late_peers);
}

void CudaWatch::Report(const char* call) { options_.hangs(call, ""); }

void CudaWatch::Look() {
  const MutexLock lock(mutex_);
  while (!ends_.WaitFor(mutex_, options_.deadline / kLooks,
                        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_over_; })) {
    const char* hanging = nullptr;  // the oldest one
    for (OpenCall& open : calls_) {
      // One look more than kLooks, because the first one may come right after the call began. The test is for equality,
      // so that each call is reported once.
      if (++open.looks == kLooks + 1 && hanging == nullptr) hanging = open.name;
    }
    if (hanging == nullptr) continue;
    const std::string late = late_peers_ ? late_peers_() : "";
    // The lock is free meanwhile: `hangs` may take as long as it likes, and other threads' calls must be able to begin
    // and end.
    mutex_.Unlock();
    options_.hangs(hanging, late);
    mutex_.Lock();
  }
}

}  // namespace starring
