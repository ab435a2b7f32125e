// Random numbers that tell things apart.
#ifndef STARRING_COMMON_BASE_NONCE_H_
#define STARRING_COMMON_BASE_NONCE_H_

#include <cstdint>
#include <random>

namespace starring {

// A random number that tells one process, job or piece of memory from another. It is no seed: no result depends on it.
// Never 0, which means "none" on the wire.
//
// Thread safety: any thread.
inline uint64_t DrawNonce() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32 | device()) | 1;
}

}  // namespace starring

#endif  // STARRING_COMMON_BASE_NONCE_H_
