#include "kernels/cuda/cuda_watch.h"

namespace starring {

CudaWatch::~CudaWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  ends_.notify_one();
  if (thread_.joinable()) thread_.join();
}

CudaWatch::Call::Call(CudaWatch* watch, const char* name) : watch_(watch), name_(name) {
  if (watch_ == nullptr) return;
  const std::lock_guard lock(watch_->mutex_);
  watch_->calls_.push_back(this);
  if (!watch_->thread_.joinable()) watch_->thread_ = std::thread([watch] { watch->Look(); });
}

CudaWatch::Call::~Call() {
  if (watch_ == nullptr) return;
  const std::lock_guard lock(watch_->mutex_);
  std::erase(watch_->calls_, this);
}

void CudaWatch::Look() {
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, options_.deadline / kLooks, [this] { return is_over_; })) {
    const char* hanging = nullptr;
    for (Call* const call : calls_) {
      // The first look may come right after the call began.
      if (++call->looks_ == kLooks + 1) hanging = call->name_;
    }
    if (hanging == nullptr) continue;
    lock.unlock();
    options_.hangs(hanging);
    lock.lock();
  }
}

}  // namespace starring
