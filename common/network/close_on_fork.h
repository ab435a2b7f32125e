// Close-on-fork: a descriptor that children of fork close before fork returns in them. POSIX has FD_CLOFORK for that
// since 2024; Linux has not.
//
// A connection is over when the last process that has it has closed it or ended. O_CLOEXEC is enough for a child that
// starts another program. A child that goes on in this one, such as a worker of PyTorch's DataLoader, would keep its
// parent's connections, and nobody would notice that the parent has been killed. vfork and posix_spawn close nothing.
//
// Thread safety: different objects may be used by different threads, also while another thread forks.
#ifndef STARRING_COMMON_NETWORK_CLOSE_ON_FORK_H_
#define STARRING_COMMON_NETWORK_CLOSE_ON_FORK_H_

#include <utility>

namespace starring {

// Marks `fd`, unless it is -1, for as long as it lives. Destroy it before `fd` is closed: a later descriptor may have
// the same number. In a child of fork the descriptor is closed already, and an object from before the fork must not be
// destroyed there.
class CloseOnFork {
 public:
  explicit CloseOnFork(int fd = -1);
  CloseOnFork(CloseOnFork&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  CloseOnFork& operator=(CloseOnFork&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~CloseOnFork();

 private:
  int fd_;
};

}  // namespace starring

#endif  // STARRING_COMMON_NETWORK_CLOSE_ON_FORK_H_
