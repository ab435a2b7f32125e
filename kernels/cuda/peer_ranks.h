// How many ranks of one host may map each other's GPU memory. For host and device.
#ifndef STARRING_KERNELS_CUDA_PEER_RANKS_H_
#define STARRING_KERNELS_CUDA_PEER_RANKS_H_

namespace starring {

// As many GPUs as one box has.
inline constexpr int kPeerRanksMax = 8;

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_PEER_RANKS_H_
